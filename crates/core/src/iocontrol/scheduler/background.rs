//! Work in the background: what copies and scrubs of layouts may take of a datastore.
//!
//! All disks' background I/Os on this thread wait in one queue. It takes part in the division by shares like a disk. Its
//! shares follow those of the active disks, so that it gets a tenth while they have I/O queued, on all threads together.
//! It has no reservation and saves no device time. While nobody else waits, it gets all there is.
//!
//! # Always true
//! - background I/Os start in the order in which they came
//! - each is counted as its disk's use, and no limit of a disk applies to it

use super::Scheduler;
use super::choice::Block;
use crate::iocontrol::cost::{counted_len, never_held};
use crate::iocontrol::disk::{Place, Queued};
use crate::iocontrol::policy::{SHARES_MIN, units};
use crate::iocontrol::tags::{Slope, later};
use crate::iocontrol::{Cost, Offer};
use crate::request::{DiskId, IoId, Op};
use crate::units::Time;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// What others get for each part of the background's: a tenth of the total is left to it. Origin: chosen; Linux's md
/// throttles a resync to a fixed rate instead.
const OTHER_PARTS: u64 = 9;

/// See the module.
pub(super) struct Background {
    /// By disk.
    queue: VecDeque<(u32, Queued)>,
    slope: Slope,
    tag: u64,
    /// Whether it was used since the last orders.
    used: bool,
}

impl Background {
    pub(super) fn new() -> Background {
        Background {
            queue: VecDeque::new(),
            slope: Slope::of(share_of(0, 1)),
            tag: 0,
            used: false,
        }
    }

    /// Takes out what a disk has queued, with the start tag of the first one.
    pub(super) fn take(&mut self, slot: u32) -> (Vec<Queued>, u64) {
        let mut taken = Vec::new();
        self.queue.retain(|(owner, queued)| {
            let is_own = *owner == slot;
            if is_own {
                taken.push(*queued);
            }
            !is_own
        });
        (taken, self.tag)
    }

    /// Queues what a disk brings, not before the tag that this had where it comes from.
    pub(super) fn put(&mut self, slot: u32, brought: Vec<Queued>, tag: u64) {
        self.tag = later(self.tag, tag);
        self.queue
            .extend(brought.into_iter().map(|queued| (slot, queued)));
    }

    /// The start tag of its next I/O, if one is queued.
    #[inline]
    pub(super) fn next(&self) -> Option<u64> {
        (!self.queue.is_empty()).then_some(self.tag)
    }

    /// The number of queued I/Os of the disk.
    pub(super) fn waiting(&self, disk: DiskId) -> usize {
        let queue = self.queue.iter();
        queue.filter(|(slot, _)| *slot == disk.0).count()
    }
}

/// The background's shares where active disks have so many. `threads`: how many threads have work in the background.
fn share_of(active: u64, threads: u64) -> u32 {
    let least = u64::from(SHARES_MIN) / OTHER_PARTS;
    let share = active / (OTHER_PARTS * threads.max(1));
    u32::try_from(share.max(least)).unwrap_or(u32::MAX)
}

/// What counts of a disk's shares while it works in the background only.
pub(super) fn background_shares(shares: u32) -> u32 {
    (shares / 10).max(1)
}

impl Scheduler {
    /// Offers an I/O for which nobody waits.
    ///
    /// # Panics
    /// If the disk is not here.
    pub(crate) fn offer_background(
        &mut self,
        now: Time,
        disk: DiskId,
        io: IoId,
        op: Op,
        offset: u64,
        len: u64,
    ) -> Offer {
        let slot = disk.0;
        self.background.used = true;
        if never_held(op) {
            let offer = self.consider(now, disk, io, op, offset, len);
            if let Offer::Start(cost) = offer {
                self.disk(slot).count_background(cost.0);
            }
            return offer;
        }
        let account = &mut self.accounts[slot as usize];
        let cost = self.orders.costs.cost(op, len, offset == account.end).0;
        account.end = offset.wrapping_add(len);
        let bytes = counted_len(op, len);
        let queued = Queued {
            io,
            cost,
            units: units(bytes, self.io_unit),
            bytes,
            since: now,
        };
        let is_first = self.background.queue.is_empty() && self.is_roomy();
        if self.passing && is_first && self.member.try_start(cost, cost, self.window) {
            self.count_background(now, slot, &queued);
            return Offer::Start(Cost(cost));
        }
        if self.background.queue.is_empty() {
            self.background.tag = later(self.background.tag, self.member.v());
        }
        self.background.queue.push_back((slot, queued));
        self.held += 1;
        self.calm = false;
        self.publish();
        Offer::Wait
    }

    /// Starts the next background I/O, if it fits in the window.
    pub(super) fn dispatch_background(&mut self, now: Time) -> Result<(u32, IoId, Cost), Block> {
        let Some((slot, queued)) = self.background.queue.front().copied() else {
            return Err(Block::Nothing);
        };
        let cost = queued.cost;
        let need = ((cost * self.fraction(now)) >> 16).max(1);
        if !self.member.try_start(cost, need, self.window) {
            return Err(Block::Full);
        }
        self.background.queue.pop_front();
        let start = self.background.tag;
        self.background.tag = start.wrapping_add(self.background.slope.span(cost));
        self.count_background(now, slot, &queued);
        self.held -= 1;
        self.note_calm();
        self.member.raise_v(later(self.member.v(), start));
        self.earn_reserve_credit(cost);
        self.publish();
        Ok((slot, queued.io, Cost(cost)))
    }

    fn count_background(&mut self, now: Time, slot: u32, queued: &Queued) {
        let Queued {
            cost, units, bytes, ..
        } = *queued;
        self.accounts[slot as usize].started(now, cost, units, bytes);
        self.disk(slot).count_background(cost);
    }

    /// Reports the completion of a background I/O.
    pub(crate) fn finished_background(
        &mut self,
        now: Time,
        disk: DiskId,
        op: Op,
        len: u64,
        issued: Time,
        cost: Cost,
    ) {
        if let Some(Some(disk)) = self.disks.get_mut(disk.0 as usize) {
            disk.background_in_flight = disk.background_in_flight.saturating_sub(cost.0);
        }
        self.finished(now, disk, op, len, issued, cost);
    }

    /// Somebody waits for the disk's background I/Os: those that are queued are not in the background from now on. Appends
    /// them. Call `pick` afterwards.
    pub(crate) fn hurry(&mut self, now: Time, disk: DiskId, out: &mut Vec<IoId>) {
        let slot = disk.0;
        if self.background.waiting(disk) == 0 {
            return;
        }
        self.now = now;
        let v = self.member.v();
        let of = self.disks[slot as usize]
            .as_mut()
            .expect("a disk with queued I/O is here");
        self.background.queue.retain(|(owner, queued)| {
            let is_own = *owner == slot;
            if is_own {
                of.push(now, v, *queued);
                out.push(queued.io);
            }
            !is_own
        });
        if of.place == Place::Idle {
            self.place(now, slot);
        }
        self.publish();
    }

    /// Adapts the background's shares to those of the active disks of all threads.
    pub(super) fn weigh_background(&mut self, active_shares: u64) {
        let used = core::mem::take(&mut self.background.used) || !self.background.queue.is_empty();
        let threads = self.member.exchange_background(used);
        self.background.slope = Slope::of(share_of(active_shares, threads));
    }
}
