//! The state of each disk in a scheduler: ready, parked by its own limit, or waiting for its group.
//!
//! [`super::Scheduler`] calls it whenever a disk gets an I/O, starts one, or is changed. It keeps the heaps consistent
//! with the disks.
//!
//! # Always true
//! - a disk is in the heaps of ready disks exactly while its place is [`Place::Ready`]
//! - of a group that is over its limit, one disk at a time is ready on this thread, which avoids a thundering herd
//! - what a group's limit passes goes to the disk furthest behind by its shares, on any thread. A disk with priority
//!   that does not start an I/O delays the others for [`PATIENCE`], once in [`FORGET`]

use super::Scheduler;
use crate::iocontrol::disk::{Disk, Place};
use crate::iocontrol::limit::{TICKS_PER_NS, ticks};
use crate::iocontrol::policy::Policy;
use crate::iocontrol::shared::Groups;
use crate::iocontrol::tags::earlier;
use crate::request::{DiskId, IoId};
use crate::units::{Span, Time};
use alloc::vec::Vec;

/// An I/O that has waited this long has priority over everything but limits. With the scan interval, and as long again
/// to start those found, the wait is at most 10 s: a third of a guest's timeout. Origin: chosen; no measurement.
const OVERDUE: Span = Span::from_secs(8);
/// The interval of scans for such I/Os. Origin: chosen; no measurement.
const SCAN_EVERY: Span = Span::from_secs(1);

/// How long a group's disk with priority may delay the others: its thread's timer may be late, or its datastore full.
/// It is short against the 100 ms that a limit may be behind. Origin: chosen; no measurement.
const PATIENCE: u64 = 1_000_000 * TICKS_PER_NS;
/// After this long, others wait for it again. The limit's slack is longer than the wait, so no throughput is lost.
/// Origin: chosen; no measurement.
const FORGET: u64 = 10 * PATIENCE;

/// Passes an I/O through the limit of a disk's group, and charges the disk for it.
pub(super) fn pass_group(
    groups: &Groups,
    disk: &mut Disk,
    group: usize,
    now: Time,
    units: u64,
    bytes: u64,
) -> bool {
    let Some(took) = groups.take(group, ticks(now), units, bytes) else {
        return false;
    };
    disk.group_tag = groups.since(group, disk.group_tag);
    groups.passed(group, disk.group_tag);
    disk.charge_group(took);
    true
}

/// Whether the first I/O of the disk has waited so long that it has priority.
pub(super) fn is_overdue(disk: &Disk, now: Time) -> bool {
    let first = disk.queue.front();
    first.is_some_and(|first| first.since + OVERDUE <= now)
}

/// A group's number in the heap of timers, or a disk's in the other heaps.
fn number(index: usize) -> u32 {
    u32::try_from(index).expect("disks and groups are numbered in 32 bits")
}

impl Scheduler {
    /// Updates the state of a disk that has started an I/O.
    pub(super) fn requeue(&mut self, now: Time, slot: u32) {
        let limits = self.limits();
        let disk = self.disk(slot);
        let due = if limits { disk.gates.due().0 } else { 0 };
        let (empty, free) = (disk.queue.is_empty(), disk.free);
        let (group, tag) = (disk.group, disk.group_tag);
        if let Some(group) = group {
            self.groups[group].started += 1;
            self.clear_released(group, slot);
        }
        if !empty && (free || (due <= ticks(now) && !self.is_group_held(now, group, tag))) {
            self.order(slot);
        } else {
            self.unplace(now, slot);
            self.place(now, slot);
        }
        if let Some(group) = group {
            self.release_next(now, group);
        }
    }

    /// Whether a disk of this group at `tag` would have to wait, for the limit or for other disks of the group.
    pub(super) fn is_group_held(&self, now: Time, group: Option<usize>, tag: u64) -> bool {
        let Some(group) = group.filter(|_| self.limits()) else {
            return false;
        };
        let of = &self.groups[group];
        let groups = self.member.groups();
        of.parked
            || !of.waiting.is_empty()
            || groups.due(group) > ticks(now)
            || (self.member)
                .before_me_in_group(group, groups.since(group, tag), &[])
                .is_some()
    }

    /// Puts a disk that is in no heap into the right one, if it has queued I/Os.
    pub(super) fn place(&mut self, now: Time, slot: u32) {
        let (v, limits) = (self.member.v(), self.limits());
        let disk = self.disk(slot);
        if disk.queue.is_empty() {
            return;
        }
        disk.settle(now, v);
        disk.activate(now, v);
        let (due, hold) = disk.gates.due();
        if limits && due > ticks(now) {
            disk.place = Place::Parked(hold);
            self.parked.set(slot, due);
            return;
        }
        let tag = disk.group_tag;
        if let Some(group) = disk.group
            && self.is_group_held(now, Some(group), tag)
        {
            self.hold_in_group(now, slot, group);
            return;
        }
        self.disk(slot).place = Place::Ready;
        self.order(slot);
    }

    /// Lifts the limits of a disk that is about to be removed, its own and its group's. Its queued I/Os may then start.
    /// Call `pick` afterwards.
    pub(crate) fn lift_limits(&mut self, now: Time, disk: DiskId) {
        self.disk(disk.0).note_spent(now);
        let policy = Policy {
            limit: None,
            bandwidth: None,
            group: None,
            ..self.disk(disk.0).policy.clone()
        };
        self.change(now, disk, &policy);
    }

    /// Removes the queued I/Os of the disk that `gone` names, in order. They do not start. Call `pick` afterwards.
    pub(crate) fn abandon(
        &mut self,
        now: Time,
        disk: DiskId,
        gone: impl Fn(IoId) -> bool,
        out: &mut Vec<IoId>,
    ) {
        let slot = disk.0;
        let of = self.disk(slot);
        if !of.queue.iter().any(|queued| gone(queued.io)) {
            return;
        }
        self.now = now;
        let (v, before) = (self.member.v(), out.len());
        self.take_out(now, slot);
        let of = self.disk(slot);
        of.abandon(now, v, gone, out);
        of.overdue &= is_overdue(of, now);
        self.held -= out.len() - before;
        self.place(now, slot);
        self.note_calm();
        self.publish();
    }

    /// Takes a disk out of all heaps, for removal or to be placed again. Its group continues without it.
    pub(super) fn take_out(&mut self, now: Time, slot: u32) {
        self.unplace(now, slot);
        if let Some(group) = self.disk(slot).group {
            self.release_next(now, group);
        }
    }

    /// Removes a disk from its heap.
    fn unplace(&mut self, now: Time, slot: u32) {
        let v = self.member.v();
        let disk = self.disk(slot);
        disk.settle(now, v);
        let place = core::mem::replace(&mut disk.place, Place::Idle);
        let group = disk.group;
        match place {
            Place::Idle | Place::InGroup => {}
            Place::AtPart => self.at_part -= 1,
            Place::Ready => {
                self.ready.remove(slot);
                self.reserved.remove(slot);
                self.targets.remove(slot);
            }
            Place::Parked(_) => self.parked.remove(slot),
        }
        if let Some(group) = group {
            self.groups[group].waiting.remove(slot);
            self.clear_released(group, slot);
        }
    }

    /// Clears the group's released disk, once it has started an I/O or has been removed.
    fn clear_released(&mut self, group: usize, slot: u32) {
        let of = &mut self.groups[group];
        if of.released == Some(slot) {
            of.released = None;
            of.parked = false;
            self.parked_groups.remove(number(group));
        }
    }

    /// Updates the heaps with the tags of a ready disk.
    pub(super) fn order(&mut self, slot: u32) {
        let disk = self.disks[slot as usize]
            .as_mut()
            .expect("the heaps name disks that were added");
        if disk.place != Place::Ready {
            return;
        }
        self.ready.set(slot, disk.tag);
        if disk.is_reserved() {
            self.reserved.set(slot, disk.reserve_at);
        } else {
            self.reserved.remove(slot);
        }
        match disk.deadline() {
            Some(deadline) => self.targets.set(slot, deadline),
            None => self.targets.remove(slot),
        }
    }

    /// Queues a disk until its group may pass an I/O.
    pub(super) fn hold_in_group(&mut self, now: Time, slot: u32, group: usize) {
        self.unplace(now, slot);
        let disk = self.disks[slot as usize]
            .as_mut()
            .expect("the heaps and the engine name disks that were added");
        disk.place = Place::InGroup;
        disk.group_tag = self.member.groups().since(group, disk.group_tag);
        let tag = disk.group_tag;
        self.groups[group].waiting.set(slot, tag);
        self.release_next(now, group);
    }

    /// Makes one disk of the group ready if the group may pass an I/O and no other thread has priority. Otherwise sets
    /// a timer.
    fn release_next(&mut self, now: Time, group: usize) {
        if !self.groups[group].parked
            && let Some((tag, slot)) = self.groups[group].waiting.peek()
        {
            if let Some(until) = self.group_waits(now, group, tag) {
                self.groups[group].parked = true;
                self.parked_groups.set(number(group), until);
            } else {
                let of = &mut self.groups[group];
                of.waiting.remove(slot);
                of.released = Some(slot);
                of.parked = !of.waiting.is_empty();
                if of.parked {
                    let until = ticks(now).saturating_add(PATIENCE);
                    self.parked_groups.set(number(group), until);
                }
                let v = self.member.v();
                let disk = self.disk(slot);
                disk.settle(now, v);
                disk.activate(now, v);
                disk.place = Place::Ready;
                self.order(slot);
            }
        }
        self.publish_group(group);
    }

    /// The tick until which the group's first waiting disk here must wait, if it must.
    fn group_waits(&mut self, now: Time, group: usize, tag: u64) -> Option<u64> {
        let (tick, limits) = (ticks(now), self.limits());
        let of = &mut self.groups[group];
        if of.released.is_some() {
            return Some(tick.saturating_add(PATIENCE));
        }
        if !limits {
            return None;
        }
        let due = self.member.groups().due(group);
        if due > tick {
            return Some(due);
        }
        if tick >= of.forget {
            of.ignored.clear();
        }
        while let Some((seat, word)) = self.member.before_me_in_group(group, tag, &of.ignored) {
            if of.yielded != Some((seat, word, due)) {
                of.yielded = Some((seat, word, due));
                return Some(tick.saturating_add(PATIENCE));
            }
            // It did not start an I/O in time, and no other disk used the slack. Later it may: if others never waited
            // for it, a sleeping thread would always be too late.
            if of.ignored.is_empty() {
                of.forget = tick.saturating_add(FORGET);
            }
            if of.ignored.len() <= seat {
                of.ignored.resize(seat + 1, u64::MAX);
            }
            of.ignored[seat] = word;
        }
        None
    }

    /// Publishes how far behind this thread's disks are that wait for the group's limit. The last 16 ns of the tag
    /// count starts: otherwise the word would not change among disks that are equally far behind.
    fn publish_group(&self, group: usize) {
        let of = &self.groups[group];
        let waits = of.waiting.peek().map(|(tag, _)| tag);
        let released = of
            .released
            .and_then(|slot| self.disks[slot as usize].as_ref());
        let released_tag = released.map(|disk| disk.group_tag);
        let least = match (waits, released_tag) {
            (Some(one), Some(other)) => Some(earlier(one, other)),
            (one, other) => one.or(other),
        };
        let least = least.map(|tag| tag & !0xff | of.started & 0xff);
        self.member.publish_group(group, least);
    }

    /// Makes the disks ready whose limits have expired.
    pub(super) fn release_due(&mut self, now: Time) {
        let tick = ticks(now);
        while let Some((due, slot)) = self.parked.peek() {
            if due > tick {
                break;
            }
            self.unplace(now, slot);
            self.place(now, slot);
        }
        while let Some((due, group)) = self.parked_groups.peek() {
            if due > tick {
                break;
            }
            self.parked_groups.remove(group);
            let of = &mut self.groups[group as usize];
            of.parked = false;
            // It did not start an I/O in time.
            of.released = None;
            self.release_next(now, group as usize);
        }
    }

    /// Parks the disk, which has its part in flight.
    pub(super) fn hold_to_part(&mut self, now: Time, slot: u32) {
        self.unplace(now, slot);
        self.disk(slot).place = Place::AtPart;
        self.at_part += 1;
    }

    /// Makes the disk ready after one of its I/Os has completed, or its part has changed.
    pub(super) fn release_from_part(&mut self, now: Time, slot: u32) {
        let disk = self.disks.get_mut(slot as usize).and_then(Option::as_mut);
        if disk.is_some_and(|disk| disk.place == Place::AtPart) {
            self.unplace(now, slot);
            self.place(now, slot);
        }
    }

    /// Makes all delayed disks ready.
    pub(super) fn unpark(&mut self, now: Time) {
        while let Some((_, slot)) = self.parked.peek() {
            self.unplace(now, slot);
            self.place(now, slot);
        }
        for group in 0..self.groups.len() {
            self.parked_groups.remove(number(group));
            self.groups[group].parked = false;
            self.release_next(now, group);
        }
    }

    /// Marks the disks whose first I/O has waited too long.
    pub(super) fn scan_for_overdue(&mut self, now: Time) {
        self.next_scan = now + SCAN_EVERY;
        for slot in 0..self.disks.len() {
            let Some(disk) = &mut self.disks[slot] else {
                continue;
            };
            let waits = matches!(disk.place, Place::Ready | Place::AtPart);
            if waits && !disk.overdue && is_overdue(disk, now) {
                disk.overdue = true;
                let slot = number(slot);
                self.overdue.push_back(slot);
                // Its I/Os in flight may be stuck in the datastore.
                self.release_from_part(now, slot);
            }
        }
    }

    /// Publishes what is ready on this thread.
    #[inline]
    pub(super) fn publish(&mut self) {
        if !self.member.is_alone() {
            let start = self.ready.peek().map(|(tag, _)| tag);
            let start = match (start, self.background.next()) {
                (Some(one), Some(other)) => Some(earlier(one, other)),
                (one, other) => one.or(other),
            };
            let due = self.reserved.peek().map(|(at, _)| at);
            self.member.publish(start, due);
        }
    }
}
