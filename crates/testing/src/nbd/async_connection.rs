//! A non-blocking NBD connection: it sends and receives what the socket takes and has.
//!
//! For event loops: the lab's guests in real time, and its replays. The caller decides what to request, what an answer
//! means, and how long to sleep.
//!
//! # Always true
//! - It never blocks.
//! - An answer belongs to a request that waits for one; anything else is an error.
//! - A handle is used again only once its answer was taken.
//!
//! # Source
//! doc/proto.md of the NetworkBlockDevice project: simple replies.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags};

use super::wire;

/// Bytes read before answers are looked at.
const BULK: usize = 256 << 10;

/// A connection and what was asked of it, each request with its owner's note.
#[derive(Debug)]
pub struct AsyncConnection<T> {
    stream: UnixStream,
    outgoing: Vec<u8>,
    sent: usize,
    incoming: Vec<u8>,
    taken: usize,
    /// By handle.
    asked: Vec<Option<T>>,
    free: Vec<usize>,
}

/// An answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// What was noted with the request.
    pub asked: T,
    /// Whether it was done.
    pub ok: bool,
}

impl<T: Copy> AsyncConnection<T> {
    /// Over a connection whose handshake is done.
    pub fn new(stream: UnixStream) -> Result<AsyncConnection<T>> {
        stream
            .set_nonblocking(true)
            .context("cannot prepare a connection")?;
        Ok(AsyncConnection {
            stream,
            outgoing: Vec::new(),
            sent: 0,
            incoming: Vec::new(),
            taken: 0,
            asked: Vec::new(),
            free: Vec::new(),
        })
    }

    /// Notes a request. Under which handle, and where its bytes are to be appended.
    pub fn ask(&mut self, note: T) -> (u64, &mut Vec<u8>) {
        let slot = self.free.pop().unwrap_or(self.asked.len());
        if slot == self.asked.len() {
            self.asked.push(None);
        }
        self.asked[slot] = Some(note);
        (slot as u64, &mut self.outgoing)
    }

    /// Requests that wait for an answer.
    pub fn outstanding(&self) -> usize {
        self.asked.len() - self.free.len()
    }

    /// Bytes that wait to be sent.
    pub fn unsent(&self) -> usize {
        self.outgoing.len() - self.sent
    }

    /// Sends what the server takes.
    pub fn send(&mut self) -> Result<()> {
        while self.unsent() > 0 {
            match self.stream.write(&self.outgoing[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("the server takes no requests"),
            }
        }
        // What was sent goes when it is more than what was not.
        if self.sent > self.outgoing.len() / 2 {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// For `poll`: when there is something to do here.
    pub fn interest(&self) -> PollFd<'_> {
        let mut events = PollFlags::POLLIN;
        if self.unsent() > 0 {
            events |= PollFlags::POLLOUT;
        }
        PollFd::new(self.stream.as_fd(), events)
    }

    /// Reads what there is, within bounds.
    pub fn receive(&mut self) -> Result<()> {
        self.incoming.drain(..self.taken);
        self.taken = 0;
        let mut piece = [0; 16 << 10];
        let mut read = 0;
        while read < BULK {
            match self.stream.read(&mut piece) {
                Ok(0) => bail!("the server hung up"),
                Ok(count) => {
                    self.incoming.extend_from_slice(&piece[..count]);
                    read += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("the server gives no answers"),
            }
        }
        Ok(())
    }

    /// Takes the next answer that was read whole. `data`: how many bytes follow the head of one that is good.
    pub fn answer(&mut self, data: impl FnOnce(&T) -> u64) -> Result<Option<Answer<T>>> {
        let Some(reply) = wire::reply(&self.incoming[self.taken..])? else {
            return Ok(None);
        };
        let slot = usize::try_from(reply.handle).unwrap_or(usize::MAX);
        let Some(&Some(asked)) = self.asked.get(slot) else {
            bail!("the server answered what nobody had asked");
        };
        let ok = reply.error == 0;
        let data = if ok { data(&asked) } else { 0 };
        let end =
            (self.taken + wire::REPLY).saturating_add(usize::try_from(data).unwrap_or(usize::MAX));
        if self.incoming.len() < end {
            return Ok(None);
        }
        self.taken = end;
        self.asked[slot] = None;
        self.free.push(slot);
        Ok(Some(Answer { asked, ok }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollTimeout, poll};

    fn pair() -> (AsyncConnection<char>, UnixStream) {
        let (near, far) = UnixStream::pair().expect("two ends");
        (AsyncConnection::new(near).expect("it is prepared"), far)
    }

    fn reply(handle: u64, error: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = 0x6744_6698_u32.to_be_bytes().to_vec();
        bytes.extend(error.to_be_bytes());
        bytes.extend(handle.to_be_bytes());
        bytes.extend(data);
        bytes
    }

    fn answers(line: &mut AsyncConnection<char>) -> Vec<(char, bool)> {
        line.receive().expect("the other end is there");
        let next = |line: &mut AsyncConnection<char>| line.answer(|_| 4).expect("it was asked");
        let answers = std::iter::from_fn(|| next(line).map(|answer| (answer.asked, answer.ok)));
        answers.collect()
    }

    #[test]
    fn answers_come_in_any_order_and_pieces_and_only_good_ones_have_data() {
        let (mut line, mut far) = pair();
        let handles = ['a', 'b', 'c'].map(|note| line.ask(note).0);
        assert_eq!((handles, line.outstanding()), ([0, 1, 2], 3));
        assert_eq!(answers(&mut line), []);
        let mut bytes = reply(1, 5, b"");
        bytes.extend(reply(2, 0, b"data"));
        bytes.extend(reply(0, 0, b"data"));
        for piece in bytes.chunks(bytes.len() - 1) {
            far.write_all(piece).expect("it is taken");
            let all = piece.len() == 1;
            assert_eq!(
                answers(&mut line),
                if all {
                    vec![('a', true)]
                } else {
                    vec![('b', false), ('c', true)]
                }
            );
        }
        assert_eq!(line.outstanding(), 0);
        let again = line.ask('d').0;
        assert!(
            handles.contains(&again),
            "a handle that is free is used again"
        );
    }

    #[test]
    fn an_answer_that_nobody_waits_for_is_an_error_and_so_is_one_who_hangs_up() {
        let (mut line, mut far) = pair();
        line.ask('a');
        far.write_all(&reply(0, 0, b"data")).expect("it is taken");
        far.write_all(&reply(0, 0, b"data")).expect("it is taken");
        line.receive().expect("it is there");
        line.answer(|_| 4).expect("it was asked");
        let twice = line.answer(|_| 4).expect_err("it was answered");
        assert!(twice.to_string().contains("nobody had asked"), "{twice}");
        drop(far);
        line.receive().expect_err("nobody is there");
    }

    #[test]
    fn what_the_server_does_not_take_yet_waits_and_goes_when_it_does() {
        let (mut line, mut far) = pair();
        let bytes: Vec<u8> = (0..4_u32 << 20).map(|at| at.to_le_bytes()[1]).collect();
        line.ask('a').1.extend(&bytes);
        line.send().expect("the other end is there");
        let waits = line.unsent();
        assert!(0 < waits && waits < bytes.len(), "{waits}");
        let mut heard: Vec<u8> = Vec::new();
        let mut piece = vec![0; 1 << 20];
        while heard.len() < bytes.len() {
            let count = far.read(&mut piece).expect("more was sent");
            heard.extend(&piece[..count]);
            line.send().expect("the other end is there");
        }
        assert!(heard == bytes && line.unsent() == 0);
        assert_eq!(
            poll(&mut [line.interest()], PollTimeout::ZERO),
            Ok(0),
            "there is nothing to do"
        );
    }
}
