//! A stream of server-sent events: the live samples of `top` and `stats --watch`.
//!
//! # Always true
//! - A field may be cut anywhere between two reads; an event is given out only when its empty line has come.
//!
//! # Source
//! WHATWG HTML, "Server-sent events": of its fields only `data` matters here.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use super::{Client, broken_off, unreachable};
use crate::failure::Failure;

/// An event longer than this is none of ours; a host's thousand disks fit several times over.
const LONGEST: usize = 64 << 20;

/// Values that come as long as the daemon lives.
#[derive(Debug)]
pub(crate) struct Stream<A> {
    client: Client,
    body: Incoming,
    patience: Duration,
    parser: Parser,
    values: PhantomData<A>,
}

impl<A: DeserializeOwned> Stream<A> {
    /// The values in `body`; `patience` is how long the next one may take.
    pub(super) fn new(client: Client, body: Incoming, patience: Duration) -> Stream<A> {
        Stream {
            client,
            body,
            patience,
            parser: Parser::default(),
            values: PhantomData,
        }
    }

    /// Waits for the next value. A stream that ended is an error: the daemon has gone.
    pub(crate) fn next(&mut self) -> Result<A, Failure> {
        loop {
            if let Some(data) = self.parser.events.pop_front() {
                return self.client.answer(data.as_bytes());
            }
            let socket = self.client.socket().to_owned();
            let body = &mut self.body;
            let frame = self.client.within(self.patience, async {
                match body.frame().await {
                    Some(frame) => frame.map_err(|e| broken_off(&socket, &e)),
                    None => Err(Failure::Unreachable(
                        unreachable(&socket)
                            .because("it has ended the stream")
                            .remedy("it is stopping or restarting: see `tidegate status`"),
                    )),
                }
            })?;
            if let Ok(data) = frame.into_data() {
                self.parser.feed(&data);
            }
        }
    }
}

/// Takes bytes, gives the data of whole events.
#[derive(Debug, Default)]
struct Parser {
    line: Vec<u8>,
    data: String,
    events: VecDeque<String>,
}

impl Parser {
    fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b'\n' => self.end_of_line(),
                _ if self.line.len() < LONGEST => self.line.push(byte),
                _ => {}
            }
        }
    }

    fn end_of_line(&mut self) {
        let line = String::from_utf8_lossy(&self.line).into_owned();
        self.line.clear();
        let line = line.trim_end_matches('\r');
        if line.is_empty() {
            if !self.data.is_empty() {
                self.events.push_back(std::mem::take(&mut self.data));
            }
        } else if let Some(data) = line.strip_prefix("data:") {
            if !self.data.is_empty() {
                self.data.push('\n');
            }
            self.data.push_str(data.strip_prefix(' ').unwrap_or(data));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_out_whole_however_they_are_cut() {
        let text = "event: sample\r\ndata: {\"a\":1}\r\n\r\n: still here\n\ndata:{\ndata:}\nid: 7\n\ndata: half";
        for size in 1..text.len() {
            let mut parser = Parser::default();
            for piece in text.as_bytes().chunks(size) {
                parser.feed(piece);
            }
            assert_eq!(parser.events, ["{\"a\":1}", "{\n}"], "in pieces of {size}");
        }
    }
}
