//! A guest of the simulator in real time: its I/O goes to a disk over NBD.
//!
//! The guest itself ([`tidegate_sim::guest`]) is the simulator's; here the time is the clock's, and a daemon answers.
//! Scenarios, replays and the demonstration use it, each on a thread of its own that decides how long it runs and what is
//! counted.
//!
//! # Always true
//! - It never blocks in a write while answers are due, and sleeps while nothing happens.
//! - At most [`AHEAD`] and one request wait to be sent: a slow disk costs time here, not memory.
//! - An answer belongs to a request that waits for one; anything else is an error.
//!
//! # Source
//! doc/proto.md of the NetworkBlockDevice project: simple replies.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use tidegate_core::request::Op;
use tidegate_core::units::{Span, Time};
use tidegate_engine::nbd::wire::{RequestHeader, command};
use tidegate_sim::guest::{Action, Guest};
use tidegate_sim::scenario::Disk;
use tidegate_testing::nbd::async_connection::{Answer, AsyncConnection};

/// A disk that answers nothing for so long, though something is outstanding, does not answer any more.
const SILENT: Span = Span::from_secs(60);
/// Bytes that wait to be sent.
const AHEAD: usize = 4 << 20;
/// A request is never longer: longer I/Os are sent in pieces.
const LONGEST: u64 = 32 << 20;

/// An I/O that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// The actor that waited for it. Of a trace: its place in the trace.
    pub(crate) actor: Option<u32>,
    /// What it did.
    pub(crate) op: Op,
    /// Where, in bytes.
    pub(crate) offset: u64,
    /// How much, in bytes.
    pub(crate) len: u64,
    /// When the guest requested it.
    pub(crate) asked: Time,
    /// When the last answer came.
    pub(crate) ended: Time,
    /// Whether the disk answered with an error.
    pub(crate) failed: bool,
    /// How long an order took, if this I/O ended one.
    pub(crate) order: Option<Span>,
}

/// The NBD flags of an actor's I/O.
type CommandFlags = Box<dyn Fn(Option<u32>, Op) -> u16 + Send>;

/// See the module.
pub(crate) struct NbdGuest {
    guest: Guest,
    connection: AsyncConnection<Piece>,
    clock: Instant,
    flags: CommandFlags,
    wants: Vec<Action>,
    /// When an actor wants to be woken.
    alarms: BinaryHeap<Reverse<(Time, u32, u32)>>,
    /// Pieces that are not encoded yet.
    waiting: VecDeque<Piece>,
    /// I/Os that are outstanding, and how many pieces of each are not answered.
    outstanding: BTreeMap<u64, (Ended, u64)>,
    numbered: u64,
    /// When the last answer came.
    heard: Time,
}

/// A request of an I/O.
#[derive(Clone, Copy, Debug)]
struct Piece {
    io: u64,
    op: Op,
    flags: u16,
    offset: u64,
    len: u64,
}

impl NbdGuest {
    /// A guest at rest on a disk whose handshake is done. Its times are those since `clock`.
    pub(crate) fn new(
        stream: UnixStream,
        disk: &Disk,
        seed: u64,
        clock: Instant,
    ) -> Result<NbdGuest> {
        Ok(NbdGuest {
            guest: Guest::new(disk, seed),
            connection: AsyncConnection::new(stream)?,
            clock,
            flags: Box::new(|_, _| 0),
            wants: Vec::new(),
            alarms: BinaryHeap::new(),
            waiting: VecDeque::new(),
            outstanding: BTreeMap::new(),
            numbered: 0,
            heard: Time::ZERO,
        })
    }

    /// Sets the NBD flags of its requests; there are none otherwise.
    pub(crate) fn with_flags(self, flags: CommandFlags) -> NbdGuest {
        NbdGuest { flags, ..self }
    }

    /// The time by its clock.
    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Begins, or continues after a rest.
    pub(crate) fn start(&mut self) {
        let now = self.now();
        self.guest.start(now, &mut self.wants);
        self.take_wants();
    }

    /// Requests nothing more.
    pub(crate) fn stop(&mut self) {
        self.guest.stop();
    }

    /// Whether nothing is outstanding, and nothing more will be requested.
    pub(crate) fn is_over(&self) -> bool {
        self.outstanding.is_empty() && !self.guest.is_active()
    }

    /// Sends, sleeps until something happens, and receives. It sleeps no longer than `longest`, and not beyond the moment at
    /// which `wake` has something to read. `ended` gets each I/O that has ended.
    ///
    /// # Errors
    /// The disk breaks the protocol, goes away, or is silent.
    pub(crate) fn step(
        &mut self,
        longest: Duration,
        wake: Option<&UnixStream>,
        ended: &mut dyn FnMut(Ended),
    ) -> Result<()> {
        self.send()?;
        self.sleep(longest, wake)?;
        self.receive(ended)?;
        let now = self.now();
        while let Some(&Reverse((at, actor, epoch))) = self.alarms.peek()
            && at <= now
        {
            self.alarms.pop();
            self.guest.woke(now, actor, epoch, &mut self.wants);
        }
        self.take_wants();
        if !self.outstanding.is_empty() && now > self.heard + SILENT {
            bail!(
                "the disk has answered nothing for {SILENT}, and {} I/Os are outstanding",
                self.outstanding.len()
            );
        }
        self.send()
    }

    /// Cuts what the guest wants into requests.
    fn take_wants(&mut self) {
        let now = self.now();
        if self.outstanding.is_empty() {
            self.heard = now;
        }
        for want in self.wants.drain(..) {
            let (actor, op, offset, len) = match want {
                Action::Wake { actor, epoch, at } => {
                    self.alarms.push(Reverse((at, actor, epoch)));
                    continue;
                }
                Action::Io {
                    actor,
                    op,
                    offset,
                    len,
                } => (actor, op, offset, len),
            };
            self.numbered += 1;
            let (io, flags) = (self.numbered, (self.flags)(actor, op));
            let pieces = len.div_ceil(LONGEST).max(1);
            let asked = Ended {
                actor,
                op,
                offset,
                len,
                asked: now,
                ended: now,
                failed: false,
                order: None,
            };
            self.outstanding.insert(io, (asked, pieces));
            self.waiting.extend((0..pieces).map(|piece| Piece {
                io,
                op,
                flags,
                offset: offset + piece * LONGEST,
                len: (len - piece * LONGEST).min(LONGEST),
            }));
        }
    }

    /// Encodes what waits, as far as there is room, and sends what there is.
    fn send(&mut self) -> Result<()> {
        loop {
            while self.connection.unsent() < AHEAD
                && let Some(piece) = self.waiting.pop_front()
            {
                let (cookie, out) = self.connection.request(piece);
                piece.encode(cookie, out);
            }
            let ready = self.connection.unsent();
            self.connection.send()?;
            if ready == 0 || self.connection.unsent() > 0 {
                return Ok(());
            }
        }
    }

    fn sleep(&self, longest: Duration, wake: Option<&UnixStream>) -> Result<()> {
        let alarm = self.alarms.peek().map_or(longest, |Reverse((at, ..))| {
            longest.min(Duration::from_nanos(at.since(self.now()).as_nanos()))
        });
        let wake = wake.map(|wake| PollFd::new(wake.as_fd(), PollFlags::POLLIN));
        let mut fds: Vec<PollFd<'_>> = wake.into_iter().collect();
        fds.push(self.connection.interest());
        match ppoll(&mut fds, Some(TimeSpec::from_duration(alarm)), None) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait for answers"),
        }
    }

    fn receive(&mut self, ended: &mut dyn FnMut(Ended)) -> Result<()> {
        self.connection.receive()?;
        let data = |piece: &Piece| match piece.op {
            Op::Read => piece.len,
            _ => 0,
        };
        while let Some(Answer { note: asked, ok }) = self.connection.answer(data)? {
            let now = self.now();
            self.heard = now;
            let Some((io, left)) = self.outstanding.get_mut(&asked.io) else {
                bail!("the disk answered an I/O twice");
            };
            *left -= 1;
            io.failed |= !ok;
            if *left > 0 {
                continue;
            }
            let mut io = *io;
            self.outstanding.remove(&asked.io);
            io.ended = now;
            io.order = self.guest.answered(now, io.actor, &mut self.wants);
            ended(io);
        }
        Ok(())
    }
}

impl Piece {
    /// Appends the request, with its data if it writes.
    fn encode(&self, cookie: u64, out: &mut Vec<u8>) {
        let header = RequestHeader {
            flags: self.flags,
            command: match self.op {
                Op::Read | Op::Extents => command::READ,
                Op::Write => command::WRITE,
                Op::Flush => command::FLUSH,
                Op::Discard => command::TRIM,
                Op::Prefetch => command::CACHE,
                Op::WriteZeroes => command::WRITE_ZEROES,
            },
            cookie,
            offset: self.offset,
            len: u32::try_from(self.len).unwrap_or(u32::MAX),
        };
        out.extend_from_slice(&header.encode());
        if self.op == Op::Write {
            // Neither zeroes, which may cost less, nor the same everywhere.
            let mut state = self.offset | 1;
            let end = out.len() + usize::try_from(self.len).unwrap_or(usize::MAX);
            for _ in 0..self.len.div_ceil(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                out.extend_from_slice(&state.to_le_bytes());
            }
            out.truncate(end);
        }
    }
}
