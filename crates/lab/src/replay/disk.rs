//! Replays a trace on an attached disk over NBD.
//!
//! One connection, one thread. The guest of the simulator says what is wanted and when it wants to be woken; here the time
//! is the clock's and the answers come from a daemon.
//!
//! # Always true
//! - It never blocks in a write while answers are due.
//! - What waits to be sent is at most `AHEAD` and one request: a slow disk costs time here, not memory.
//! - An answer belongs to a request that waits for one; anything else ends the replay with an error.
//!
//! # Source
//! doc/proto.md of the NetworkBlockDevice project: simple replies.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::poll::ppoll;
use nix::sys::time::TimeSpec;
use tidegate_core::request::{Flags, Op};
use tidegate_core::units::{Span, Time};
use tidegate_sim::guest::{Guest, Want};
use tidegate_sim::trace::{Trace, TracedIo};

use super::{LeftOut, Pace, Replayed, Writes, choose, traced_disk};
use crate::trace::Figures;
use tidegate_testing::nbd::async_connection::{Answer, AsyncConnection};
use tidegate_testing::nbd::wire::{self, Export};

/// The longest sleep: by then progress is reported, and a stop is noticed.
const LOOK: Duration = Duration::from_millis(100);
/// A disk that answers nothing for so long, though something is outstanding, does not answer any more.
const SILENT: Span = Span::from_secs(60);
/// Bytes that wait to be sent.
const AHEAD: usize = 4 << 20;
/// A request is never longer: longer I/Os go in pieces.
const LONGEST: u64 = 32 << 20;

/// How far a replay is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// I/Os that were answered.
    pub done: u64,
    /// I/Os that there are.
    pub of: u64,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It goes on.
    Continue,
    /// It asks for nothing more and ends.
    End,
}

/// A disk's door, and what may be asked of it.
#[derive(Debug)]
pub struct Target {
    connection: AsyncConnection<Piece>,
    export: Export,
    trace: Arc<Trace>,
    left_out: LeftOut,
    lost: u64,
}

impl Target {
    /// Connects, and chooses what is asked for. Nothing is asked yet.
    ///
    /// # Errors
    /// It cannot be connected to, is smaller than the trace reaches, is read-only, or nothing can be asked for.
    pub fn open(socket: &Path, export: &str, trace: &Trace, writes: Writes) -> Result<Target> {
        let (stream, found) = wire::connect(socket, export)?;
        if writes == Writes::Replay && found.read_only() {
            bail!("the disk is read-only, and the writes of the trace are to be replayed");
        }
        let can = |bit: u16| found.flags & 1 << bit != 0;
        let possible = |io: &TracedIo| match io.op {
            Op::Read | Op::Write => io.len > 0,
            Op::Flush => can(2),
            Op::Discard => can(5),
            Op::WriteZeroes => can(6),
            Op::Prefetch => can(10),
            Op::Extents => false,
        };
        let (chosen, left_out) = choose(trace, writes, possible)?;
        let reaches = chosen.reaches();
        if reaches > found.size {
            bail!(
                "the disk is smaller than the trace: it has {} bytes, and the trace reaches to byte {reaches}",
                found.size
            );
        }
        Ok(Target {
            connection: AsyncConnection::new(stream)?,
            export: found,
            trace: Arc::new(chosen),
            left_out,
            lost: trace.lost,
        })
    }

    /// How many I/Os will be asked for.
    #[must_use]
    pub fn ios(&self) -> u64 {
        self.trace.ios.len() as u64
    }

    /// How many of them change the disk.
    #[must_use]
    pub fn changes(&self) -> u64 {
        let ios = self.trace.ios.iter();
        ios.filter(|io| io.op.modifies()).count() as u64
    }

    /// Asks, and waits for the answers. `heed` is called some ten times a second.
    ///
    /// # Errors
    /// The disk breaks the protocol, goes away, or is silent.
    pub fn replay(self, pace: Pace, heed: &mut dyn FnMut(Progress) -> Flow) -> Result<Replayed> {
        let disk = traced_disk(&self.trace, pace);
        let mut session = Session {
            guest: Guest::new(&disk, 1),
            trace: self.trace,
            pace,
            connection: self.connection,
            export: self.export,
            clock: Instant::now(),
            wants: Vec::new(),
            alarm: None,
            waiting: VecDeque::new(),
            under_way: BTreeMap::new(),
            heard: Time::ZERO,
            ended: Vec::new(),
            done: 0,
            errors: 0,
            late: 0,
            latest: Span::ZERO,
        };
        let interrupted = session.live(heed)?;
        Ok(session.over(interrupted, self.left_out, self.lost))
    }
}

struct Session {
    guest: Guest,
    trace: Arc<Trace>,
    pace: Pace,
    connection: AsyncConnection<Piece>,
    export: Export,
    clock: Instant,
    wants: Vec<Want>,
    /// When the guest wants to be woken.
    alarm: Option<(Time, u32)>,
    /// Pieces that are not encoded yet.
    waiting: VecDeque<Piece>,
    /// By its place in the trace, an I/O that is outstanding.
    under_way: BTreeMap<u32, UnderWay>,
    /// When the last answer came.
    heard: Time,
    /// What ended well.
    ended: Vec<(Op, u64, Span)>,
    done: u64,
    errors: u64,
    late: u128,
    latest: Span,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    io: u32,
    offset: u64,
    len: u64,
}

#[derive(Clone, Copy, Debug)]
struct UnderWay {
    asked: Time,
    /// Pieces that are not answered.
    left: u64,
    failed: bool,
}

impl Session {
    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Whether it was ended early.
    fn live(&mut self, heed: &mut dyn FnMut(Progress) -> Flow) -> Result<bool> {
        let mut wants = std::mem::take(&mut self.wants);
        let begun = self.now();
        self.guest.start(begun, &mut wants);
        self.wants = wants;
        let (mut interrupted, mut look) = (false, begun);
        loop {
            self.ring();
            self.grant(begun);
            self.send()?;
            let idle = self.under_way.is_empty();
            if idle && (interrupted || !self.guest.is_active()) {
                return Ok(interrupted);
            }
            let now = self.now();
            if !idle && now > self.heard + SILENT {
                bail!(
                    "the disk has answered nothing for {SILENT}, and {} I/Os are outstanding",
                    self.under_way.len()
                );
            }
            if now >= look {
                look = now + Span::from_nanos(u64::try_from(LOOK.as_nanos()).unwrap_or(u64::MAX));
                let progress = Progress {
                    done: self.done,
                    of: self.trace.ios.len() as u64,
                };
                if heed(progress) == Flow::End && !interrupted {
                    interrupted = true;
                    self.guest.stop();
                }
            }
            self.wait()?;
            self.receive()?;
        }
    }

    /// Wakes the guest if its time has come.
    fn ring(&mut self) {
        let now = self.now();
        if let Some((at, epoch)) = self.alarm
            && at <= now
        {
            self.alarm = None;
            self.guest.woke(now, 0, epoch, &mut self.wants);
        }
    }

    /// Takes up what the guest wants.
    fn grant(&mut self, begun: Time) {
        let now = self.now();
        if self.under_way.is_empty() {
            self.heard = now;
        }
        for want in self.wants.drain(..) {
            match want {
                Want::Wake { epoch, at, .. } => self.alarm = Some((at, epoch)),
                Want::Io {
                    actor, offset, len, ..
                } => {
                    // A tape's actors are places in its trace.
                    let io = actor.unwrap_or(u32::MAX);
                    if let Pace::Recorded { speed } = self.pace {
                        let at = self.trace.ios[io as usize].at.as_nanos();
                        let due = u128::from(at) * 100 / u128::from(speed);
                        let due = Span::from_nanos(u64::try_from(due).unwrap_or(u64::MAX));
                        let late = now.since(begun + due);
                        self.late += u128::from(late.as_nanos());
                        self.latest = self.latest.max(late);
                    }
                    let pieces = len.div_ceil(LONGEST).max(1);
                    self.under_way.insert(
                        io,
                        UnderWay {
                            asked: now,
                            left: pieces,
                            failed: false,
                        },
                    );
                    self.waiting.extend((0..pieces).map(|piece| Piece {
                        io,
                        offset: offset + piece * LONGEST,
                        len: (len - piece * LONGEST).min(LONGEST),
                    }));
                }
            }
        }
    }

    /// Encodes what waits, as far as there is room, and sends what there is.
    fn send(&mut self) -> Result<()> {
        loop {
            while self.connection.unsent() < AHEAD
                && let Some(piece) = self.waiting.pop_front()
            {
                self.encode(piece);
            }
            let ready = self.connection.unsent();
            self.connection.send()?;
            if ready == 0 || self.connection.unsent() > 0 {
                return Ok(());
            }
        }
    }

    fn encode(&mut self, piece: Piece) {
        let io = &self.trace.ios[piece.io as usize];
        let command: u16 = match io.op {
            Op::Read | Op::Extents => 0,
            Op::Write => 1,
            Op::Flush => 3,
            Op::Discard => 4,
            Op::Prefetch => 5,
            Op::WriteZeroes => 6,
        };
        let mut flags = 0_u16;
        if io.op.modifies() && io.flags.has(Flags::FUA) && self.export.flags & 1 << 3 != 0 {
            flags |= 1;
        }
        if io.op == Op::WriteZeroes {
            if !io.flags.has(Flags::MAY_UNMAP) {
                flags |= 1 << 1;
            }
            if io.flags.has(Flags::FAST_ONLY) && self.export.flags & 1 << 11 != 0 {
                flags |= 1 << 4;
            }
        }
        let len = u32::try_from(piece.len).unwrap_or(u32::MAX);
        let (handle, out) = self.connection.ask(piece);
        out.extend_from_slice(&0x2560_9513_u32.to_be_bytes());
        out.extend_from_slice(&flags.to_be_bytes());
        out.extend_from_slice(&command.to_be_bytes());
        out.extend_from_slice(&handle.to_be_bytes());
        out.extend_from_slice(&piece.offset.to_be_bytes());
        out.extend_from_slice(&len.to_be_bytes());
        if io.op == Op::Write {
            // A trace holds no data: what is written is neither zeroes, which may cost less, nor the same everywhere.
            let mut state = piece.offset | 1;
            let words = bytes(piece.len).div_ceil(8);
            let end = out.len() + bytes(piece.len);
            for _ in 0..words {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                out.extend_from_slice(&state.to_le_bytes());
            }
            out.truncate(end);
        }
    }

    /// Until something can be read or written, or the guest is to be woken, or it is time to look up.
    fn wait(&self) -> Result<()> {
        let sleep = match self.alarm {
            Some((at, _)) => LOOK.min(Duration::from_nanos(at.since(self.now()).as_nanos())),
            None => LOOK,
        };
        match ppoll(
            &mut [self.connection.interest()],
            Some(TimeSpec::from_duration(sleep)),
            None,
        ) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait for answers"),
        }
    }

    fn receive(&mut self) -> Result<()> {
        self.connection.receive()?;
        let trace = Arc::clone(&self.trace);
        let io = |piece: &Piece| &trace.ios[piece.io as usize];
        let data = |piece: &Piece| match io(piece).op {
            Op::Read => piece.len,
            _ => 0,
        };
        while let Some(Answer { asked, ok }) = self.connection.answer(data)? {
            self.answered(asked.io, io(&asked), ok)?;
        }
        Ok(())
    }

    fn answered(&mut self, number: u32, io: &TracedIo, ok: bool) -> Result<()> {
        let now = self.now();
        self.heard = now;
        let Some(under_way) = self.under_way.get_mut(&number) else {
            bail!("the disk answered an I/O twice");
        };
        under_way.left -= 1;
        under_way.failed |= !ok;
        if under_way.left > 0 {
            return Ok(());
        }
        let (asked, failed) = (under_way.asked, under_way.failed);
        self.under_way.remove(&number);
        self.done += 1;
        match failed {
            true => self.errors += 1,
            false => self.ended.push((io.op, io.len, now.since(asked))),
        }
        self.guest.answered(now, Some(number), &mut self.wants);
        Ok(())
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "figures for a report: nanoseconds stay far below 2^52"
    )]
    fn over(self, interrupted: bool, left_out: LeftOut, lost: u64) -> Replayed {
        let lasts = self.heard.since(Time::ZERO);
        Replayed {
            recorded: Figures::recorded(&self.trace),
            replayed: Figures::of(self.ended.into_iter(), lasts),
            errors: self.errors,
            left_out,
            uncounted: 0,
            lost,
            late_mean_us: self.late as f64 / 1e3 / self.done.max(1) as f64,
            late_max_us: self.latest.as_nanos() as f64 / 1e3,
            interrupted,
        }
    }
}

fn bytes(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::{ArrayServer, ArraySpec, Stretch};
    use tempfile::TempDir;
    use tidegate_core::filter::trace::format::TracedDisk;

    fn trace(ios: &[(u64, Op, u64, u64)]) -> Trace {
        let ios = ios.iter().map(|&(at, op, offset, len)| TracedIo {
            at: Span::from_micros(at),
            op,
            flags: Flags::NONE,
            offset,
            len,
            latency: Span::from_millis(1),
            failed: false,
            beside: 0,
        });
        let trace = Trace {
            disk: TracedDisk::default(),
            ios: ios.collect(),
            lost: 0,
        };
        trace.only(|_| true)
    }

    fn server(place: &TempDir) -> ArrayServer {
        let stretch = Stretch {
            name: "a".into(),
            begins: 0,
            size: 1 << 30,
        };
        let spec = ArraySpec::named("fifo").expect("a name of the model's");
        let socket = place.path().join("array.sock");
        ArrayServer::start(&spec, 1, vec![stretch], &socket).expect("it starts")
    }

    #[test]
    fn every_io_is_asked_for_once_also_those_that_go_in_pieces() {
        let place = tempfile::tempdir().expect("a scratch directory");
        let server = server(&place);
        let trace = trace(&[
            (0, Op::Read, 0, 4_096),
            (100, Op::Write, 4_096, 70 << 20),
            (200, Op::Flush, 0, 0),
            (300, Op::Discard, 0, 4_096),
            (400, Op::Read, (1 << 30) - 512, 512),
        ]);
        for pace in [Pace::Recorded { speed: 100 }, Pace::Outstanding] {
            let target = Target::open(server.socket(), "a", &trace, Writes::Replay);
            let target = target.expect("it is there");
            assert_eq!((target.ios(), target.changes()), (4, 1));
            let _before = server.did();
            let replayed = target
                .replay(pace, &mut |_| Flow::Continue)
                .expect("it is answered");
            assert_eq!((replayed.replayed.ios, replayed.errors), (4, 0));
            assert_eq!(replayed.left_out.impossible, 1, "the array cannot discard");
            assert_eq!(server.did().ios, 2 + 3, "70 MiB are three requests");
        }
    }

    #[test]
    fn a_disk_that_is_too_small_is_refused_before_anything_is_asked() {
        let place = tempfile::tempdir().expect("a scratch directory");
        let server = server(&place);
        let trace = trace(&[(0, Op::Read, 0, 512), (1, Op::Read, 1 << 30, 512)]);
        let error = Target::open(server.socket(), "a", &trace, Writes::LeaveOut);
        let error = error.expect_err("it is too small").to_string();
        assert!(error.contains("reaches to byte 1073742336"), "{error}");
        assert_eq!(server.did().ios, 0);
    }

    #[test]
    fn who_interrupts_it_has_what_was_done_by_then() {
        let place = tempfile::tempdir().expect("a scratch directory");
        let server = server(&place);
        let trace = trace(&[(0, Op::Read, 0, 512), (3_600_000_000, Op::Read, 0, 512)]);
        let target = Target::open(server.socket(), "a", &trace, Writes::LeaveOut);
        let end = |progress: Progress| match progress.done {
            0 => Flow::Continue,
            _ => Flow::End,
        };
        let pace = Pace::Recorded { speed: 100 };
        let replayed = target.expect("it is there").replay(pace, &mut { end });
        let replayed = replayed.expect("it is answered");
        assert!(replayed.interrupted);
        assert_eq!(replayed.replayed.ios, 1);
    }
}
