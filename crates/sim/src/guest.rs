//! Guests' workloads: closed loops, access specifications, and open loops.
//!
//! The world reports starts, timers and completions to a guest. The guest appends its actions: I/Os, and timers. It
//! knows neither host nor datastore.
//!
//! # Always true
//! - A stopped guest issues nothing more, though completions may still arrive.
//! - An actor (a user, or one of the outstanding I/Os) does one thing at a time.
//!
//! # Picture: a shop's user
//! ```text
//!   think ──> read ──> read ... ──> log write ──> flush ──> order done ──> think
//!                                      └─ background page writes
//! ```

use crate::numbers::{index, small};
use crate::scenario::{Disk, Io, Workload};
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_core::request::Op;
use tidegate_core::units::{Span, Time};
use tidegate_model::Random;

mod locality;
mod replay;

use locality::Locality;
use replay::Replay;

/// An action of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// An I/O.
    Io {
        /// The actor that waits for it; none for a background I/O.
        actor: Option<u32>,
        /// The operation.
        op: Op,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// A timer.
    Wake {
        /// Its actor.
        actor: u32,
        /// Returned when it expires.
        epoch: u32,
        /// When it expires.
        at: Time,
    },
}

/// A guest, and the layout of its disk.
pub struct Guest {
    workload: Workload,
    size: u64,
    random: Random,
    active: bool,
    actors: Vec<Actor>,
    /// The next offset of the log, or of a sequential stream.
    next: u64,
    /// Writes since the last flush, for an access specification with flushes.
    unflushed: u32,
    /// Background I/Os in flight.
    background: u32,
    /// I/Os at the disk, and those that wait in the guest because its queue is full.
    at_disk: u32,
    queued: VecDeque<Action>,
    /// The replay of a trace. It has no actors.
    replay: Option<Replay>,
    /// Where random accesses are, if not anywhere.
    locality: Option<Locality>,
    /// A scan beside the workload. Its actor is the last one.
    scan: Option<Scan>,
}

#[derive(Clone, Copy, Debug)]
struct Scan {
    /// Bytes of a request.
    size: u64,
    next: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Actor {
    doing: Doing,
    step: u32,
    /// When its order began.
    begun: Time,
    /// Timers of an earlier epoch are ignored.
    epoch: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Doing {
    #[default]
    Nothing,
    Thinking,
    Waiting,
}

/// The most background I/Os: a guest's queues are finite.
const MOST_BACKGROUND: u32 = 4_096;
/// The log is this fraction of the disk, at its end.
const LOG_PART: u64 = 32;

impl Guest {
    /// A stopped guest whose random numbers start at `seed`.
    pub fn new(disk: &Disk, seed: u64) -> Guest {
        let actors = match disk.workload {
            Workload::Shop { users, .. } => users,
            Workload::Access { outstanding, .. } => outstanding,
            Workload::Open { .. } => 1,
            Workload::Trace { .. } => 0,
        };
        let actors = actors + u32::from(disk.scan.is_some());
        let span = match disk.workload {
            Workload::Shop { .. } => tables(disk.size),
            _ => disk.size,
        };
        let replay = match &disk.workload {
            Workload::Trace { trace, pace } => Some(Replay::new(Arc::clone(trace), *pace)),
            Workload::Shop { .. } | Workload::Access { .. } | Workload::Open { .. } => None,
        };
        Guest {
            workload: disk.workload.clone(),
            size: disk.size,
            random: Random::new(seed),
            active: false,
            actors: vec![Actor::default(); actors as usize],
            next: 0,
            unflushed: 0,
            background: 0,
            at_disk: 0,
            queued: VecDeque::new(),
            replay,
            locality: disk.working_set.map(|bytes| Locality::new(span, bytes)),
            scan: disk.scan.map(|size| Scan { size, next: 0 }),
        }
    }

    /// Holds back I/Os beyond the depth of the guest's queue.
    fn bound(&mut self, from: usize, out: &mut Vec<Action>) {
        let Workload::Shop { depth, .. } = self.workload else {
            return;
        };
        for action in out.drain(from..).collect::<Vec<_>>() {
            match action {
                Action::Io { .. } => self.queued.push_back(action),
                Action::Wake { .. } => out.push(action),
            }
        }
        while self.at_disk < depth
            && let Some(action) = self.queued.pop_front()
        {
            self.at_disk += 1;
            out.push(action);
        }
    }

    /// Starts, or continues after a stop.
    pub fn start(&mut self, now: Time, out: &mut Vec<Action>) {
        if self.active {
            return;
        }
        self.active = true;
        if let Some(replay) = &mut self.replay {
            return replay.start(now, out);
        }
        for actor in 0..self.actors.len() {
            if self.actors[actor].doing == Doing::Nothing {
                self.begin(now, actor, out);
            }
        }
    }

    /// Issues nothing more.
    pub fn stop(&mut self) {
        self.active = false;
        for actor in &mut self.actors {
            if actor.doing == Doing::Thinking {
                actor.doing = Doing::Nothing;
                actor.epoch += 1;
            }
        }
    }

    /// Loses everything in flight: its host is dead.
    pub(crate) fn lose(&mut self) {
        self.stop();
        for actor in &mut self.actors {
            actor.doing = Doing::Nothing;
            actor.epoch += 1;
        }
        self.background = 0;
        self.at_disk = 0;
        self.queued.clear();
        if let Some(replay) = &mut self.replay {
            replay.lose();
        }
    }

    /// Whether it may issue more.
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// A timer of an actor has expired.
    pub fn woke(&mut self, now: Time, actor: u32, epoch: u32, out: &mut Vec<Action>) {
        if let Some(replay) = &mut self.replay {
            if self.active {
                replay.woke(now, epoch, out);
            }
            return;
        }
        let place = actor as usize;
        if self.actors[place].epoch != epoch || self.actors[place].doing != Doing::Thinking {
            return;
        }
        if self.is_scan(Some(actor)) {
            return self.scan_step(actor, out);
        }
        match self.workload.clone() {
            Workload::Shop { .. } => {
                let from = out.len();
                self.actors[place].step = 0;
                self.actors[place].begun = now;
                self.shop_step(place, out);
                self.bound(from, out);
            }
            Workload::Access { io, .. } => self.issue(Some(actor), io, out),
            Workload::Open { io, .. } => {
                if self.background < MOST_BACKGROUND {
                    self.background += 1;
                    self.issue(None, io, out);
                }
                self.begin(now, place, out);
            }
            // The replay has its own timer.
            Workload::Trace { .. } => {}
        }
    }

    /// An I/O has completed. Returns the time of an order, if this completed one.
    pub fn answered(
        &mut self,
        now: Time,
        actor: Option<u32>,
        out: &mut Vec<Action>,
    ) -> Option<Span> {
        let from = out.len();
        self.at_disk = self.at_disk.saturating_sub(1);
        let order = self.advance(now, actor, out);
        self.bound(from, out);
        order
    }

    fn advance(&mut self, now: Time, actor: Option<u32>, out: &mut Vec<Action>) -> Option<Span> {
        if let Some(replay) = &mut self.replay {
            replay.answered(now, self.active, out);
            self.active &= !replay.is_over();
            return None;
        }
        let Some(actor) = actor else {
            self.background = self.background.saturating_sub(1);
            return None;
        };
        let place = actor as usize;
        if self.actors[place].doing != Doing::Waiting {
            return None;
        }
        self.actors[place].doing = Doing::Nothing;
        let mut order = None;
        match self.workload {
            _ if self.is_scan(Some(small(place))) => {}
            Workload::Shop { reads, .. } => {
                self.actors[place].step += 1;
                // Reads come first, then the log and its flush.
                if self.actors[place].step < reads + 2 {
                    if self.active {
                        self.shop_step(place, out);
                    }
                    return None;
                }
                order = Some(now.since(self.actors[place].begun));
            }
            Workload::Access { .. } | Workload::Open { .. } | Workload::Trace { .. } => {}
        }
        if self.active {
            self.begin(now, place, out);
        }
        order
    }

    /// An idle actor takes its next step.
    fn begin(&mut self, now: Time, place: usize, out: &mut Vec<Action>) {
        let pause = match self.workload {
            _ if self.is_scan(Some(small(place))) => 0,
            Workload::Shop { think, .. } => self.random.exponential(think.as_nanos()),
            Workload::Access { think, .. } if think == Span::ZERO => 0,
            Workload::Access { think, .. } => self.random.exponential(think.as_nanos()),
            Workload::Open { rate, .. } => self
                .random
                .exponential(1_000_000_000 / u64::from(rate))
                .max(1),
            Workload::Trace { .. } => return,
        };
        let actor = &mut self.actors[place];
        actor.doing = Doing::Thinking;
        let (number, epoch) = (small(place), actor.epoch);
        if pause == 0 {
            return self.woke(now, number, epoch, out);
        }
        out.push(Action::Wake {
            actor: number,
            epoch,
            at: now + Span::from_nanos(pause),
        });
    }

    fn shop_step(&mut self, place: usize, out: &mut Vec<Action>) {
        let Workload::Shop {
            reads,
            writes,
            size,
            ..
        } = self.workload
        else {
            return;
        };
        let actor = Some(small(place));
        let step = self.actors[place].step;
        self.actors[place].doing = Doing::Waiting;
        if step < reads {
            let offset = self.table_place(size);
            return out.push(Action::Io {
                actor,
                op: Op::Read,
                offset,
                len: size,
            });
        }
        if step > reads {
            return out.push(Action::Io {
                actor,
                op: Op::Flush,
                offset: 0,
                len: 0,
            });
        }
        for _ in 0..writes {
            if self.background < MOST_BACKGROUND {
                self.background += 1;
                let offset = self.table_place(size);
                out.push(Action::Io {
                    actor: None,
                    op: Op::Write,
                    offset,
                    len: size,
                });
            }
        }
        let log = self.size / LOG_PART;
        self.next = (self.next + size) % (log - size);
        out.push(Action::Io {
            actor,
            op: Op::Write,
            offset: self.size - log + self.next / size * size,
            len: size,
        });
    }

    /// Whether a request is part of a sequential stream: of a scan, or of a log.
    pub(crate) fn is_stream(&self, actor: Option<u32>, offset: u64) -> bool {
        self.is_scan(actor)
            || match &self.workload {
                Workload::Shop { .. } => offset >= tables(self.size),
                Workload::Access { io, .. } | Workload::Open { io, .. } => io.random == 0,
                Workload::Trace { .. } => false,
            }
    }

    /// Whether an actor's I/Os are those of the scan.
    fn is_scan(&self, actor: Option<u32>) -> bool {
        let last = self.actors.len().checked_sub(1);
        self.scan.is_some() && actor.is_some() && actor.map(|actor| actor as usize) == last
    }

    fn scan_step(&mut self, actor: u32, out: &mut Vec<Action>) {
        let Some(scan) = &mut self.scan else {
            return;
        };
        let offset = if scan.next + scan.size > self.size {
            0
        } else {
            scan.next
        };
        scan.next = offset + scan.size;
        let len = scan.size;
        self.actors[actor as usize].doing = Doing::Waiting;
        out.push(Action::Io {
            actor: Some(actor),
            op: Op::Read,
            offset,
            len,
        });
    }

    /// Issues one I/O of an access specification.
    fn issue(&mut self, actor: Option<u32>, io: Io, out: &mut Vec<Action>) {
        if let Some(actor) = actor {
            self.actors[actor as usize].doing = Doing::Waiting;
        }
        if io.flush_every > 0 && self.unflushed >= io.flush_every {
            self.unflushed = 0;
            return out.push(Action::Io {
                actor,
                op: Op::Flush,
                offset: 0,
                len: 0,
            });
        }
        let places = self.size / io.size;
        let offset = if self.random.below(100) < u64::from(io.random) {
            match &self.locality {
                Some(locality) => locality.draw(&mut self.random, io.size),
                None => self.random.below(places) * io.size,
            }
        } else {
            (self.next + 1) % places * io.size
        };
        self.next = offset / io.size;
        let read = self.random.below(100) < u64::from(io.reads);
        self.unflushed += u32::from(!read && io.flush_every > 0);
        out.push(Action::Io {
            actor,
            op: if read { Op::Read } else { Op::Write },
            offset,
            len: io.size,
        });
    }

    /// An offset in the tables. A few extents are used far more often than the rest.
    fn table_place(&mut self, size: u64) -> u64 {
        if let Some(locality) = &self.locality {
            return locality.draw(&mut self.random, size);
        }
        let tables = tables(self.size);
        let extent = tables / EXTENTS;
        let rank = self.zipf();
        // Hot extents are not adjacent: an odd factor spreads the ranks, one to one.
        let place = rank.wrapping_mul(619).wrapping_add(251) % EXTENTS;
        place * extent + self.random.below(extent / size) * size
    }

    /// A rank below [`EXTENTS`], with probability in proportion to 1/(rank + 1), by the inverse of the harmonic
    /// numbers.
    fn zipf(&mut self) -> u64 {
        let draw = self.random.below(HARMONIC[index(EXTENTS) - 1]);
        let rank = HARMONIC.partition_point(|&sum| sum <= draw);
        rank as u64
    }
}

/// Bytes of a shop's tables. The log follows them.
fn tables(size: u64) -> u64 {
    size - size / LOG_PART
}

/// Number of extents of a shop's tables.
const EXTENTS: u64 = 1_024;

/// Sums of 1/n, times 2^32.
const HARMONIC: [u64; 1_024] = {
    let mut sums = [0; 1_024];
    let (mut rank, mut sum) = (0, 0);
    while rank < sums.len() {
        sum += (1 << 32) / (rank as u64 + 1);
        sums[rank] = sum;
        rank += 1;
    }
    sums
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    fn guest(workload: &str) -> Guest {
        let text = format!(
            "name = 'a'\ntitle = 'b'\nlasts = '1s'\n[datastore]\narray = 'ssd'\n[[host]]\nname = 'h'\n\
             [[disk]]\nname = 'd'\nhost = 'h'\nworkload = {workload}"
        );
        Guest::new(&Scenario::read(&text).unwrap().disks[0], 1)
    }

    #[test]
    fn an_access_specification_maintains_its_outstanding_ios() {
        let mut guest = guest("{ kind = 'access', outstanding = 4 }");
        let mut out = Vec::new();
        guest.start(Time::ZERO, &mut out);
        assert_eq!(out.len(), 4);
        out.clear();
        assert_eq!(guest.answered(Time::ZERO, Some(2), &mut out), None);
        assert!(matches!(out[..], [Action::Io { actor: Some(2), .. }]));
        guest.stop();
        out.clear();
        guest.answered(Time::ZERO, Some(1), &mut out);
        assert_eq!(out, []);
        guest.start(Time::ZERO, &mut out);
        assert!(matches!(out[..], [Action::Io { actor: Some(1), .. }]));
    }

    #[test]
    fn a_log_is_appended_and_flushed_periodically() {
        let workload = "{ kind = 'access', outstanding = 1, size = '4KiB', reads = 0, random = 0, flush-every = 2 }";
        let mut guest = guest(workload);
        let (mut out, mut ops, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
        guest.start(Time::ZERO, &mut out);
        for _ in 0..6 {
            let Some(Action::Io {
                actor, op, offset, ..
            }) = out.pop()
            else {
                panic!("one I/O is outstanding");
            };
            ops.push(op);
            if op == Op::Write {
                offsets.push(offset);
            }
            guest.answered(Time::ZERO, actor, &mut out);
        }
        let (write, flush) = (Op::Write, Op::Flush);
        assert_eq!(ops, [write, write, flush, write, write, flush]);
        assert!(offsets.windows(2).all(|two| two[1] == two[0] + 4_096));
    }

    #[test]
    fn an_order_is_reads_a_log_write_and_a_flush() {
        let mut guest =
            guest("{ kind = 'shop', users = 1, think = '10ms', reads = 2, writes = 1 }");
        let mut out = Vec::new();
        guest.start(Time::ZERO, &mut out);
        let Action::Wake { actor, epoch, at } = out[0] else {
            panic!("a user thinks first, not {:?}", out[0]);
        };
        out.clear();
        guest.woke(at, actor, epoch, &mut out);
        let mut took = None;
        let mut ops = Vec::new();
        while took.is_none() {
            let mut next = Vec::new();
            for action in out.drain(..) {
                if let Action::Io { actor, op, .. } = action {
                    ops.push(op);
                    took = took.or(guest.answered(at + Span::from_millis(7), actor, &mut next));
                }
            }
            out = next;
        }
        assert_eq!(ops, [Op::Read, Op::Read, Op::Write, Op::Write, Op::Flush]);
        assert_eq!(took, Some(Span::from_millis(7)));
    }

    #[test]
    fn a_few_extents_are_used_far_more_often_than_the_rest() {
        let mut guest = guest("{ kind = 'shop', users = 1 }");
        let mut hot = 0;
        for _ in 0..10_000 {
            assert!(guest.table_place(8_192) < guest.size);
            hot += u32::from(guest.zipf() < 32);
        }
        // By harmonic numbers: 4.06 of 7.51.
        assert!((5_000..5_800).contains(&hot), "{hot}");
    }
}
