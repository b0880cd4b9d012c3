//! Guests' workloads: closed loops, access specifications, and open loops.
//!
//! The world tells a guest that it may begin, that it woke, and that an I/O was answered; the guest appends what it
//! wants: I/Os, and to be woken. It knows neither host nor datastore.
//!
//! # Always true
//! - A guest that was stopped wants nothing more, though answers may still come.
//! - An actor (a user, or one of the outstanding I/Os) does one thing at a time.
//!
//! # Picture: a shop's user
//! ```text
//!   think ──> read ──> read ... ──> log write ──> flush ──> order done ──> think
//!                                      └─ pages to be written, which nobody waits for
//! ```

use crate::numbers::{index, small};
use crate::scenario::{Disk, Io, Workload};
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_core::request::Op;
use tidegate_core::units::{Span, Time};
use tidegate_model::Random;

mod tape;

use tape::Tape;

/// What a guest wants of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// An I/O.
    Io {
        /// To whom its answer goes; nobody waits for it otherwise.
        actor: Option<u32>,
        /// What it does.
        op: Op,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        len: u64,
    },
    /// To be woken.
    Wake {
        /// Who.
        actor: u32,
        /// To be given back.
        epoch: u32,
        /// When.
        at: Time,
    },
}

/// A guest and its disk's content, as far as places go.
pub struct Guest {
    workload: Workload,
    size: u64,
    random: Random,
    active: bool,
    actors: Vec<Actor>,
    /// Where the log, or a sequential stream, goes on.
    next: u64,
    /// Writes since the last flush, of an access specification that has some.
    unflushed: u32,
    /// I/Os that nobody waits for, under way.
    loose: u32,
    /// At the disk, and what waits in the guest because that is as deep as its queue is.
    at_disk: u32,
    inside: VecDeque<Want>,
    /// A trace that is played back; nobody acts then.
    tape: Option<Tape>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Actor {
    doing: Doing,
    step: u32,
    /// When its order began.
    begun: Time,
    /// Wakings of an earlier one are stale.
    epoch: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Doing {
    #[default]
    Nothing,
    Thinking,
    Waiting,
}

/// More loose I/Os than this are not asked for: a guest's queues are not endless either.
const LOOSE_MOST: u32 = 4_096;
/// The log has this part of the disk, at its end.
const LOG_PART: u64 = 32;

impl Guest {
    /// A guest at rest, of which the chances begin at `seed`.
    pub fn new(disk: &Disk, seed: u64) -> Guest {
        let actors = match disk.workload {
            Workload::Shop { users, .. } => users,
            Workload::Access { outstanding, .. } => outstanding,
            Workload::Open { .. } => 1,
            Workload::Trace { .. } => 0,
        };
        let tape = match &disk.workload {
            Workload::Trace { trace, pace } => Some(Tape::new(Arc::clone(trace), *pace)),
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
            loose: 0,
            at_disk: 0,
            inside: VecDeque::new(),
            tape,
        }
    }

    /// Keeps back what is more than the guest's queue is deep.
    fn bound(&mut self, from: usize, out: &mut Vec<Want>) {
        let Workload::Shop { depth, .. } = self.workload else {
            return;
        };
        for want in out.drain(from..).collect::<Vec<_>>() {
            match want {
                Want::Io { .. } => self.inside.push_back(want),
                Want::Wake { .. } => out.push(want),
            }
        }
        while self.at_disk < depth
            && let Some(want) = self.inside.pop_front()
        {
            self.at_disk += 1;
            out.push(want);
        }
    }

    /// Begins, or goes on after a rest.
    pub fn start(&mut self, now: Time, out: &mut Vec<Want>) {
        if self.active {
            return;
        }
        self.active = true;
        if let Some(tape) = &mut self.tape {
            return tape.start(now, out);
        }
        for actor in 0..self.actors.len() {
            if self.actors[actor].doing == Doing::Nothing {
                self.begin(now, actor, out);
            }
        }
    }

    /// Asks for nothing more.
    pub fn stop(&mut self) {
        self.active = false;
        for actor in &mut self.actors {
            if actor.doing == Doing::Thinking {
                actor.doing = Doing::Nothing;
                actor.epoch += 1;
            }
        }
    }

    /// Loses everything that is under way: its host is gone.
    pub(crate) fn lose(&mut self) {
        self.stop();
        for actor in &mut self.actors {
            actor.doing = Doing::Nothing;
            actor.epoch += 1;
        }
        self.loose = 0;
        self.at_disk = 0;
        self.inside.clear();
        if let Some(tape) = &mut self.tape {
            tape.lose();
        }
    }

    /// Whether it may want something more.
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// The time has come for which an actor asked.
    pub fn woke(&mut self, now: Time, actor: u32, epoch: u32, out: &mut Vec<Want>) {
        if let Some(tape) = &mut self.tape {
            if self.active {
                tape.woke(now, epoch, out);
            }
            return;
        }
        let place = actor as usize;
        if self.actors[place].epoch != epoch || self.actors[place].doing != Doing::Thinking {
            return;
        }
        match self.workload.clone() {
            Workload::Shop { .. } => {
                let from = out.len();
                self.actors[place].step = 0;
                self.actors[place].begun = now;
                self.shop_step(place, out);
                self.bound(from, out);
            }
            Workload::Access { io, .. } => self.ask(Some(actor), io, out),
            Workload::Open { io, .. } => {
                if self.loose < LOOSE_MOST {
                    self.loose += 1;
                    self.ask(None, io, out);
                }
                self.begin(now, place, out);
            }
            // Its tape was woken.
            Workload::Trace { .. } => {}
        }
    }

    /// An I/O was answered. Gives the time an order took, if that ended one.
    pub fn answered(&mut self, now: Time, actor: Option<u32>, out: &mut Vec<Want>) -> Option<Span> {
        let from = out.len();
        self.at_disk = self.at_disk.saturating_sub(1);
        let order = self.goes_on(now, actor, out);
        self.bound(from, out);
        order
    }

    fn goes_on(&mut self, now: Time, actor: Option<u32>, out: &mut Vec<Want>) -> Option<Span> {
        if let Some(tape) = &mut self.tape {
            tape.answered(now, self.active, out);
            self.active &= !tape.is_over();
            return None;
        }
        let Some(actor) = actor else {
            self.loose = self.loose.saturating_sub(1);
            return None;
        };
        let place = actor as usize;
        if self.actors[place].doing != Doing::Waiting {
            return None;
        }
        self.actors[place].doing = Doing::Nothing;
        let mut order = None;
        match self.workload {
            Workload::Shop { reads, .. } => {
                self.actors[place].step += 1;
                // Reads, then the log and its flush.
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

    /// From doing nothing to the next thing.
    fn begin(&mut self, now: Time, place: usize, out: &mut Vec<Want>) {
        let pause = match self.workload {
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
        out.push(Want::Wake {
            actor: number,
            epoch,
            at: now + Span::from_nanos(pause),
        });
    }

    fn shop_step(&mut self, place: usize, out: &mut Vec<Want>) {
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
            return out.push(Want::Io {
                actor,
                op: Op::Read,
                offset,
                len: size,
            });
        }
        if step > reads {
            return out.push(Want::Io {
                actor,
                op: Op::Flush,
                offset: 0,
                len: 0,
            });
        }
        for _ in 0..writes {
            if self.loose < LOOSE_MOST {
                self.loose += 1;
                let offset = self.table_place(size);
                out.push(Want::Io {
                    actor: None,
                    op: Op::Write,
                    offset,
                    len: size,
                });
            }
        }
        let log = self.size / LOG_PART;
        self.next = (self.next + size) % (log - size);
        out.push(Want::Io {
            actor,
            op: Op::Write,
            offset: self.size - log + self.next / size * size,
            len: size,
        });
    }

    /// One I/O of an access specification.
    fn ask(&mut self, actor: Option<u32>, io: Io, out: &mut Vec<Want>) {
        if let Some(actor) = actor {
            self.actors[actor as usize].doing = Doing::Waiting;
        }
        if io.flush_every > 0 && self.unflushed >= io.flush_every {
            self.unflushed = 0;
            return out.push(Want::Io {
                actor,
                op: Op::Flush,
                offset: 0,
                len: 0,
            });
        }
        let places = self.size / io.size;
        let place = if self.random.below(100) < u64::from(io.random) {
            self.random.below(places)
        } else {
            (self.next + 1) % places
        };
        self.next = place;
        let read = self.random.below(100) < u64::from(io.reads);
        self.unflushed += u32::from(!read && io.flush_every > 0);
        out.push(Want::Io {
            actor,
            op: if read { Op::Read } else { Op::Write },
            offset: place * io.size,
            len: io.size,
        });
    }

    /// A place in the tables: a few extents are wanted far more often than the rest.
    fn table_place(&mut self, size: u64) -> u64 {
        let tables = self.size - self.size / LOG_PART;
        let extent = tables / EXTENTS;
        let rank = self.zipf();
        // Hot extents do not lie side by side: ranks are spread by an odd factor, which is one to one.
        let place = rank.wrapping_mul(619).wrapping_add(251) % EXTENTS;
        place * extent + self.random.below(extent / size) * size
    }

    /// A rank below [`EXTENTS`] with probability as 1/(rank + 1), by the inverse of the harmonic numbers.
    fn zipf(&mut self) -> u64 {
        let draw = self.random.below(HARMONIC[index(EXTENTS) - 1]);
        let rank = HARMONIC.partition_point(|&sum| sum <= draw);
        rank as u64
    }
}

/// Into so many extents a shop's tables fall.
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
    fn an_access_specification_keeps_its_outstanding_ios() {
        let mut guest = guest("{ kind = 'access', outstanding = 4 }");
        let mut out = Vec::new();
        guest.start(Time::ZERO, &mut out);
        assert_eq!(out.len(), 4);
        out.clear();
        assert_eq!(guest.answered(Time::ZERO, Some(2), &mut out), None);
        assert!(matches!(out[..], [Want::Io { actor: Some(2), .. }]));
        guest.stop();
        out.clear();
        guest.answered(Time::ZERO, Some(1), &mut out);
        assert_eq!(out, []);
        guest.start(Time::ZERO, &mut out);
        assert!(matches!(out[..], [Want::Io { actor: Some(1), .. }]));
    }

    #[test]
    fn a_log_is_appended_and_made_durable_every_so_often() {
        let words = "{ kind = 'access', outstanding = 1, size = '4KiB', reads = 0, random = 0, flush-every = 2 }";
        let mut guest = guest(words);
        let (mut out, mut ops, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
        guest.start(Time::ZERO, &mut out);
        for _ in 0..6 {
            let Some(Want::Io {
                actor, op, offset, ..
            }) = out.pop()
            else {
                panic!("it keeps one outstanding");
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
    fn an_order_is_its_reads_the_log_and_a_flush() {
        let mut guest =
            guest("{ kind = 'shop', users = 1, think = '10ms', reads = 2, writes = 1 }");
        let mut out = Vec::new();
        guest.start(Time::ZERO, &mut out);
        let Want::Wake { actor, epoch, at } = out[0] else {
            panic!("a user thinks first, not {:?}", out[0]);
        };
        out.clear();
        guest.woke(at, actor, epoch, &mut out);
        let mut took = None;
        let mut ops = Vec::new();
        while took.is_none() {
            let mut next = Vec::new();
            for want in out.drain(..) {
                if let Want::Io { actor, op, .. } = want {
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
    fn a_few_extents_are_wanted_far_more_often_than_the_rest() {
        let mut guest = guest("{ kind = 'shop', users = 1 }");
        let mut hot = 0;
        for _ in 0..10_000 {
            assert!(guest.table_place(8_192) < guest.size);
            hot += u32::from(guest.zipf() < 32);
        }
        // Harmonic numbers: 4.06 of 7.51.
        assert!((5_000..5_800).contains(&hot), "{hot}");
    }
}
