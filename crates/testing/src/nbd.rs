//! A batching NBD client over a Unix socket: many requests per write, many replies per read.
//!
//! One connection, one thread. It uses only the protocol features that a load needs: fixed newstyle, EXPORT_NAME,
//! simple replies. It shares no code with the product's NBD implementation, which it measures.
//!
//! # Always true
//! - It never blocks in a write while replies are pending. A server that waits for us to read would block forever.
//! - A reply's handle names a request in flight. Any other reply is an error of the server.
//! # Source
//! doc/proto.md of the NetworkBlockDevice project.

pub mod async_connection;
pub mod wire;

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv, send};

use crate::load::{Kind, Operation, Source};
use crate::tally::{Edge, SILENCE, Tally, Until};
use wire::Export;

/// Replies are read in pieces of at most this size: half of a usual second-level cache.
const BULK: usize = 512 << 10;

/// A connection with its requests in flight.
#[derive(Debug)]
pub struct Connection {
    socket: PathBuf,
    name: String,
    stream: UnixStream,
    export: Export,
    reconnect: Option<Duration>,
    requests: Vec<Option<(Operation, u64)>>,
    free: Vec<u16>,
    outgoing: Vec<u8>,
    sent: usize,
    incoming: Vec<u8>,
    filled: usize,
}

struct Run<'a> {
    clock: Instant,
    until: Until,
    probe: &'a mut dyn FnMut(Edge),
    opened: Option<u64>,
    closed: Option<u64>,
    issued: u64,
}

impl Connection {
    /// Connects to export `name` and prepares for `depth` requests of `block` bytes. With `reconnect`, a lost server is
    /// awaited for this long, and requests in flight are sent again.
    ///
    /// # Errors
    /// The server is unreachable or rejects the export.
    pub fn open(
        socket: &Path,
        name: &str,
        depth: u16,
        block: u32,
        reconnect: Option<Duration>,
    ) -> Result<Self> {
        let (stream, export) = wire::connect(socket, name)?;
        let block = usize::try_from(block).context("a block fits memory")?;
        Ok(Self {
            socket: socket.to_owned(),
            name: name.to_owned(),
            stream,
            export,
            reconnect,
            requests: vec![None; usize::from(depth)],
            free: (0..depth).rev().collect(),
            outgoing: Vec::new(),
            sent: 0,
            incoming: vec![0; BULK.max(2 * (block + wire::REPLY))],
            filled: 0,
        })
    }

    /// The server's description of the export.
    #[must_use]
    pub fn export(&self) -> Export {
        self.export
    }

    /// Runs `source`, like [`crate::vhost::GuestDriver::run`].
    ///
    /// # Errors
    /// The server breaks the protocol, does not return, or is silent.
    pub fn run(
        &mut self,
        source: &mut Source,
        until: Until,
        probe: &mut dyn FnMut(Edge),
    ) -> Result<Tally> {
        let mut tally = Tally::default();
        let mut run = Run {
            clock: Instant::now(),
            until,
            probe,
            opened: None,
            closed: None,
            issued: 0,
        };
        loop {
            let now = run.advance_clock(&mut tally);
            self.issue(source, &mut run, now);
            if self.free.len() == self.requests.len() {
                break;
            }
            match self.exchange() {
                Ok(()) => self.answer(source, &mut run, &mut tally)?,
                Err(error) => self.recover(&error, &mut tally)?,
            }
        }
        run.close();
        tally.elapsed = run.elapsed();
        Ok(tally)
    }

    fn issue(&mut self, source: &mut Source, run: &mut Run<'_>, now: u64) {
        while !run.is_over() && !self.free.is_empty() {
            let Some(operation) = source.next_operation() else {
                break;
            };
            let slot = self.free.pop().expect("a free slot was seen");
            self.requests[usize::from(slot)] = Some((operation, now));
            self.encode(slot, &operation, source);
            run.issued += 1;
        }
    }

    fn encode(&mut self, slot: u16, operation: &Operation, source: &Source) {
        wire::request(&mut self.outgoing, operation, u64::from(slot));
        if operation.kind == Kind::Write {
            let start = self.outgoing.len();
            let length = usize::try_from(operation.length).expect("u32 fits usize");
            self.outgoing.resize(start + length, 0);
            if source.verifies() {
                source.fill(operation, &mut self.outgoing[start..]);
            }
        }
    }

    /// Sends and receives what is possible without blocking. Sleeps only if both are impossible.
    fn exchange(&mut self) -> Result<()> {
        let fd = self.stream.as_raw_fd();
        if self.sent < self.outgoing.len() {
            match send(
                fd,
                &self.outgoing[self.sent..],
                MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
            ) {
                Ok(count) => self.sent += count,
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(error) => return Err(error).context("cannot send"),
            }
            if self.sent == self.outgoing.len() {
                self.outgoing.clear();
                self.sent = 0;
            }
        }
        let blocked = !self.outgoing.is_empty();
        // If everything is sent, the read itself may sleep. Otherwise poll for both directions.
        let flags = if blocked {
            MsgFlags::MSG_DONTWAIT
        } else {
            MsgFlags::empty()
        };
        match recv(fd, &mut self.incoming[self.filled..], flags) {
            Ok(0) => bail!("{} closed the connection", self.socket.display()),
            Ok(count) => self.filled += count,
            Err(Errno::EAGAIN) if blocked => self.wait_for_either()?,
            Err(Errno::EAGAIN) => bail!("the server has sent no reply for {SILENCE:?}"),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("cannot receive"),
        }
        Ok(())
    }

    fn wait_for_either(&self) -> Result<()> {
        let mut fds = [PollFd::new(
            self.stream.as_fd(),
            PollFlags::POLLIN | PollFlags::POLLOUT,
        )];
        let timeout = PollTimeout::try_from(SILENCE).context("a timeout of seconds")?;
        match poll(&mut fds, timeout) {
            Ok(0) => bail!("the server has neither read nor replied for {SILENCE:?}"),
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait for the socket"),
        }
    }

    /// Processes every complete reply in the input.
    fn answer(&mut self, source: &mut Source, run: &mut Run<'_>, tally: &mut Tally) -> Result<()> {
        let mut at = 0;
        let now = run.now();
        let counted = run.closed.is_none();
        while let Some(reply) = wire::reply(&self.incoming[at..self.filled])? {
            let request = usize::try_from(reply.handle)
                .ok()
                .and_then(|slot| self.requests.get(slot));
            let Some(Some((operation, started))) = request.copied() else {
                bail!(
                    "the server replied to request {}, which is not in flight",
                    reply.handle
                );
            };
            let ok = reply.error == 0;
            let mut end = at + wire::REPLY;
            if ok && operation.kind == Kind::Read {
                end += usize::try_from(operation.length).context("a block fits memory")?;
            }
            if end > self.filled {
                break;
            }
            if !ok {
                tally.errors += 1;
            } else if counted {
                tally.completed += 1;
            }
            if counted {
                tally.latency.record(now.saturating_sub(started));
            }
            if source.verifies()
                && let Err(mismatch) =
                    source.answered(&operation, ok, &self.incoming[at + wire::REPLY..end])
            {
                tally.mismatch(mismatch);
            }
            let slot = u16::try_from(reply.handle).context("a slot's number")?;
            self.requests[usize::from(slot)] = None;
            self.free.push(slot);
            at = end;
        }
        self.incoming.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }

    /// Reconnects and sends every request in flight again.
    fn recover(&mut self, error: &anyhow::Error, tally: &mut Tally) -> Result<()> {
        let Some(timeout) = self.reconnect else {
            bail!("{error:#}")
        };
        let deadline = Instant::now() + timeout;
        (self.stream, self.export) = loop {
            match wire::connect(&self.socket, &self.name) {
                Ok(found) => break found,
                Err(error) if Instant::now() > deadline => {
                    return Err(
                        error.context(format!("the server did not return within {timeout:?}"))
                    );
                }
                // There is no event for a returned process: poll for it.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        tally.reconnections += 1;
        self.outgoing.clear();
        self.sent = 0;
        self.filled = 0;
        for (slot, request) in self.requests.iter().enumerate() {
            let Some((operation, _)) = request else {
                continue;
            };
            wire::request(&mut self.outgoing, operation, slot as u64);
            if operation.kind == Kind::Write {
                let start = self.outgoing.len();
                let length = usize::try_from(operation.length).context("a block fits memory")?;
                self.outgoing.resize(start + length, 0);
                if operation.sequence != 0 {
                    crate::stamp::fill(
                        &mut self.outgoing[start..],
                        operation.offset,
                        operation.sequence,
                    );
                }
            }
        }
        Ok(())
    }
}

impl Run<'_> {
    fn now(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn is_over(&self) -> bool {
        match self.until {
            Until::Time(..) => self.closed.is_some(),
            Until::Count(count) => self.issued >= count,
            Until::Exhausted => false,
        }
    }

    fn advance_clock(&mut self, tally: &mut Tally) -> u64 {
        let now = self.now();
        let (warm, span) = match self.until {
            Until::Time(warm, span) => (warm, span),
            _ => (Duration::ZERO, Duration::MAX),
        };
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        match self.opened {
            None if now >= nanos(warm) => {
                tally.reopen();
                (self.probe)(Edge::Open);
                self.opened = Some(self.now());
            }
            Some(opened) if self.closed.is_none() && now.saturating_sub(opened) >= nanos(span) => {
                self.close()
            }
            _ => {}
        }
        now
    }

    fn close(&mut self) {
        if self.closed.is_none() {
            self.closed = Some(self.now());
            (self.probe)(Edge::Close);
        }
    }

    fn elapsed(&self) -> Duration {
        let (opened, closed) = (
            self.opened.unwrap_or(0),
            self.closed.unwrap_or_else(|| self.now()),
        );
        Duration::from_nanos(closed - opened)
    }
}
