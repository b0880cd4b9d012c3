//! The choice of the disk whose I/O starts next.
//!
//! [`super::Scheduler::pick`] calls it, and so does `offer` when no other disk is ready.
//!
//! # Picture
//! ```text
//!   overdue ──> reservation due ──> latency target near ──> least start tag
//!                                                              │ another thread's is less: it has priority
//! ```

use super::Scheduler;
use super::places::{is_overdue, pass_group};
use crate::iocontrol::Cost;
use crate::iocontrol::disk::{CREDIT, Place, Queued};
use crate::iocontrol::limit::ticks;
use crate::iocontrol::tags::{SCALE_BITS, before, later};
use crate::request::IoId;
use crate::units::{Span, Time};

/// How far threads may differ (T): 8 reference I/Os of a disk with 1000 shares. Origin: MQFQ (ATC 2019) for the rule;
/// the value is chosen.
const REACH: u64 = ((8 * Cost::REFERENCE.0) << SCALE_BITS) / 1_000;

/// The ratio of reservations to other I/O at most: nine tenths of the total. Origin: chosen (decisions/0009).
const RESERVE_PARTS: u64 = 9;

/// What reservations may take in a row before other I/O gets its tenth. It is small against 100 ms of a datastore worth
/// controlling, so the tenth holds in any 100 ms. Origin: chosen (decisions/0009).
const RESERVE_CREDIT: u64 = CREDIT.0;

/// How long one random fraction applies to the window check. Origin: chosen; no measurement.
const DRAW: Span = Span::from_millis(2);

/// The golden ratio in 2^32: its multiples, modulo one, fill the interval evenly.
const GOLDEN: u32 = 0x9E37_79B9;

/// The start of the sequence. A fraction is never zero, so a window of whole requests admits exactly that many.
const HALF: u32 = 1 << 31;

/// The rule that selected an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Overdue,
    Reservation,
    Target,
    Shares,
    /// The least start tag is that of work in the background, which is no disk's.
    Background,
}

/// The reason why no I/O starts.
pub(super) enum Block {
    Nothing,
    Full,
    Turn(usize),
}

impl Scheduler {
    /// Starts the next I/O, if it may start.
    pub(super) fn dispatch(&mut self, now: Time) -> Result<(u32, IoId, Cost), Block> {
        loop {
            let (slot, phase) = self.choose(now)?;
            if phase == Phase::Background {
                return self.dispatch_background(now);
            }
            let fraction = self.fraction(now);
            let (window, limits) = (self.window, self.limits());
            let disk = self.disks[slot as usize]
                .as_mut()
                .expect("the heaps name disks that were added");
            let first = disk.queue.front().expect("a ready disk has a queued I/O");
            let (cost, units, bytes) = (first.cost, first.units, first.bytes);
            let need = ((cost * fraction) >> 16).max(1);
            let there = self.accounts[slot as usize].in_flight();
            let there = there.saturating_sub(disk.background_in_flight);
            if phase == Phase::Shares && there != 0 && there.saturating_add(need) > disk.part {
                self.hold_to_part(now, slot);
                self.publish();
                continue;
            }
            if !self.member.try_start(cost, need, window) {
                return Err(Block::Full);
            }
            if let Some(group) = disk.group
                && limits
                && !pass_group(self.member.groups(), disk, group, now, units, bytes)
            {
                self.member.finish(cost);
                self.hold_in_group(now, slot, group);
                self.publish();
                continue;
            }
            let io = self.start(now, slot, phase);
            self.publish();
            return Ok((slot, io, Cost(cost)));
        }
    }

    /// The disk with priority, and the rule that selected it.
    fn choose(&mut self, now: Time) -> Result<(u32, Phase), Block> {
        while let Some(slot) = self.overdue.front().copied() {
            let disk = self.disks[slot as usize].as_mut();
            match disk.filter(|disk| disk.overdue && disk.place == Place::Ready) {
                Some(_) => return Ok((slot, Phase::Overdue)),
                None => drop(self.overdue.pop_front()),
            }
        }
        if let Some((at, slot)) = self.reserved.peek()
            && at <= ticks(now)
            && self.member.has_reserve_credit()
        {
            return Ok((slot, Phase::Reservation));
        }
        let background = self.background.next();
        let Some((least, first)) = self.ready.peek() else {
            return match background {
                Some(tag) => self.choose_background(now, tag),
                None => Err(Block::Nothing),
            };
        };
        if let Some((slot, tag)) = self.near_target(now)
            && self.before(now, tag).is_none()
        {
            return Ok((slot, Phase::Target));
        }
        if let Some(tag) = background
            && before(tag, least)
        {
            return self.choose_background(now, tag);
        }
        // Only the least tag here is compared. So of two threads one is behind the other, never each behind the other.
        match self.before(now, least) {
            Some(thread) => Err(Block::Turn(thread)),
            None => Ok((first, Phase::Shares)),
        }
    }

    fn choose_background(&self, now: Time, tag: u64) -> Result<(u32, Phase), Block> {
        match self.before(now, tag) {
            Some(thread) => Err(Block::Turn(thread)),
            None => Ok((u32::MAX, Phase::Background)),
        }
    }

    /// Credits reservations after other I/O.
    pub(super) fn earn_reserve_credit(&self, cost: u64) {
        self.member
            .earn_reserve_credit(RESERVE_PARTS * cost, RESERVE_CREDIT);
    }

    /// Another thread that has priority over an I/O with this tag.
    fn before(&self, now: Time, tag: u64) -> Option<usize> {
        if self.window == u64::MAX {
            return None;
        }
        self.member.before_me(tag, REACH, ticks(now))
    }

    /// The disk that is about to miss its latency target, unless it has used more than its share.
    fn near_target(&mut self, now: Time) -> Option<(u32, u64)> {
        let latest = ticks(now + self.orders.latency_p99);
        let furthest = self.member.v().wrapping_add(self.lead / 4);
        while let Some((deadline, slot)) = self.targets.peek() {
            if deadline > latest {
                return None;
            }
            let tag = self.disk(slot).tag;
            if !before(furthest, tag) {
                return Some((slot, tag));
            }
            // Its next I/O may have priority again.
            self.targets.remove(slot);
        }
        None
    }

    /// The fraction of a request that must fit in the window, in 1/65536. All fractions are equally frequent.
    pub(super) fn fraction(&mut self, now: Time) -> u64 {
        if now >= self.redraw {
            let draw = now.as_nanos() / DRAW.as_nanos();
            self.redraw = Time::from_nanos((draw + 1) * DRAW.as_nanos());
            let low = u32::try_from(draw & u64::from(u32::MAX)).unwrap_or(0);
            self.fraction = u64::from(low.wrapping_mul(GOLDEN).wrapping_add(HALF) >> 16) | 1;
        }
        self.fraction
    }

    /// Accounts for the first I/O of a disk, which starts now.
    fn start(&mut self, now: Time, slot: u32, phase: Phase) -> IoId {
        let (v, lead) = (self.member.v(), self.lead);
        let disk = self.disk(slot);
        let queued = disk.pop(now, v).expect("a ready disk has a queued I/O");
        let Queued {
            io,
            cost,
            units,
            bytes,
            ..
        } = queued;
        let start = disk.tag;
        match phase {
            Phase::Shares | Phase::Background => disk.charge_turn(cost),
            Phase::Overdue | Phase::Reservation | Phase::Target => disk.charge(cost, v, lead),
        }
        if phase == Phase::Reservation {
            disk.charge_reservation(units);
        }
        if !disk.free {
            disk.gates.units.take(ticks(now), units);
            disk.gates.bytes.take(ticks(now), bytes);
        }
        disk.overdue = phase == Phase::Overdue && is_overdue(disk, now);
        self.accounts[slot as usize].started(now, cost, units, bytes);
        self.held -= 1;
        self.note_calm();
        if phase == Phase::Shares {
            self.member.raise_v(later(v, start));
        }
        match phase {
            Phase::Reservation => self.member.spend_reserve_credit(cost),
            Phase::Overdue | Phase::Target | Phase::Shares | Phase::Background => {
                self.earn_reserve_credit(cost);
            }
        }
        self.requeue(now, slot);
        io
    }
}
