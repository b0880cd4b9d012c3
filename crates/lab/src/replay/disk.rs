//! Replays a trace on an attached disk over NBD.
//!
//! One connection, one thread: a guest of the simulator whose workload is the trace (`NbdGuest`).

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tidegate_core::request::{Flags, Op};
use tidegate_core::units::{Span, Time};
use tidegate_engine::nbd::wire::{Abilities, command_flag};
use tidegate_sim::trace::{Trace, TracedIo};
use tidegate_testing::nbd::wire::{self, Export};

use super::{LeftOut, Pace, Replayed, Writes, choose, traced_disk};
use crate::nbd_guest::{Ended, NbdGuest};
use crate::trace::{Figures, Sum};

/// How often progress is reported and a stop is noticed.
const LOOK: Span = Span::from_millis(100);

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

/// An attached disk, and what may be requested of it.
#[derive(Debug)]
pub struct Target {
    stream: UnixStream,
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
            stream,
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

    /// Requests them, and waits for the answers. `heed` is called some ten times a second.
    ///
    /// # Errors
    /// The disk breaks the protocol, goes away, or is silent.
    pub fn replay(self, pace: Pace, heed: &mut dyn FnMut(Progress) -> Flow) -> Result<Replayed> {
        let trace = Arc::clone(&self.trace);
        let disk = traced_disk(&trace, pace);
        let (traced, offered) = (Arc::clone(&trace), self.export.flags);
        let flags = move |io: Option<u32>, _: Op| flags(&traced.ios[place(io)], offered);
        let guest = NbdGuest::new(self.stream, &disk, 1, Instant::now())?;
        let mut guest = guest.with_flags(Box::new(flags));
        let (begun, mut look) = (guest.now(), guest.now());
        let mut counted = Counted::default();
        let mut interrupted = false;
        guest.start();
        while !guest.is_over() {
            if guest.now() >= look {
                look = guest.now() + LOOK;
                let progress = Progress {
                    done: counted.done,
                    of: trace.ios.len() as u64,
                };
                if heed(progress) == Flow::End {
                    interrupted = true;
                    guest.stop();
                }
            }
            guest.step(Duration::from_nanos(LOOK.as_nanos()), None, &mut |io| {
                counted.add(&io, due(&trace, pace, &io).map(|due| begun + due));
            })?;
        }
        Ok(counted.over(&trace, interrupted, self.left_out, self.lost))
    }
}

/// An I/O's place in its trace.
fn place(io: Option<u32>) -> usize {
    io.map_or(usize::MAX, |place| place as usize)
}

/// When an I/O was due, after the beginning; none at the pace of what was outstanding.
fn due(trace: &Trace, pace: Pace, io: &Ended) -> Option<Span> {
    let Pace::Recorded { speed } = pace else {
        return None;
    };
    let at = trace.ios[place(io.actor)].at.as_nanos();
    let due = u128::from(at) * 100 / u128::from(speed);
    Some(Span::from_nanos(u64::try_from(due).unwrap_or(u64::MAX)))
}

/// The flags of a traced I/O on the wire, where the disk offers them.
fn flags(io: &TracedIo, offered: u16) -> u16 {
    let mut flags = 0;
    if io.op.modifies() && io.flags.has(Flags::FUA) && offered & Abilities::FUA.bits() != 0 {
        flags |= command_flag::FUA;
    }
    if io.op == Op::WriteZeroes {
        if !io.flags.has(Flags::MAY_UNMAP) {
            flags |= command_flag::NO_HOLE;
        }
        if io.flags.has(Flags::FAST_ONLY) && offered & Abilities::FAST_ZERO.bits() != 0 {
            flags |= command_flag::FAST_ZERO;
        }
    }
    flags
}

/// What has ended so far.
#[derive(Default)]
struct Counted {
    done: u64,
    errors: u64,
    sum: Sum,
    lasts: Span,
    late: u128,
    latest: Span,
}

impl Counted {
    fn add(&mut self, io: &Ended, due: Option<Time>) {
        self.done += 1;
        self.lasts = io.ended.since(Time::ZERO);
        let late = due.map_or(Span::ZERO, |due| io.asked.since(due));
        self.late += u128::from(late.as_nanos());
        self.latest = self.latest.max(late);
        match io.failed {
            true => self.errors += 1,
            false => self.sum.add(io.op, io.len, io.ended.since(io.asked)),
        }
    }

    fn over(self, trace: &Trace, interrupted: bool, left_out: LeftOut, lost: u64) -> Replayed {
        Replayed {
            recorded: Figures::recorded(trace),
            replayed: self.sum.over(self.lasts),
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
            outstanding: 0,
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
