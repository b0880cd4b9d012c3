//! Where each disk of a scheduler stands: ready, parked by its own limit, or waiting in its group.
//!
//! Called by [`super::Scheduler`] whenever a disk gets something to do, has started something, or is changed. It keeps
//! the heaps and the disks in step.
//!
//! # Always true
//! - a disk stands in the heaps of the ready exactly while its place is [`Place::Ready`]
//! - of a group that its limit holds, at most one disk is ready on this thread, so no crowd wakes for one place

use super::Scheduler;
use crate::iocontrol::disk::{Disk, Place};
use crate::iocontrol::limit::ticks;
use crate::iocontrol::policy::Policy;
use crate::request::DiskId;
use crate::units::{Span, Time};

/// From when on an I/O goes before everything but limits. With the time between looks, and as much for those that are
/// found, it is 10 s: a third of what guests wait before they give a disk up.
const OVERDUE: Span = Span::from_secs(8);
/// Time between looks for such I/Os.
const LOOK: Span = Span::from_secs(1);

/// Whether the first I/O of the disk waits since so long that it goes first.
pub(super) fn is_overdue(disk: &Disk, now: Time) -> bool {
    let first = disk.queue.front();
    first.is_some_and(|first| first.since + OVERDUE <= now)
}

impl Scheduler {
    /// Puts a disk that has started something where it belongs now.
    pub(super) fn go_on(&mut self, now: Time, slot: u32) {
        let limits = self.limits();
        let group = self.disk(slot).group;
        if let Some(group) = group
            && self.groups[group].released == Some(slot)
        {
            self.groups[group].released = None;
        }
        let disk = self.disk(slot);
        let due = if limits { disk.gates.due().0 } else { 0 };
        let (empty, free) = (disk.queue.is_empty(), disk.free);
        if !empty && (free || (due <= ticks(now) && !self.is_group_held(now, group))) {
            self.order(slot);
            return;
        }
        self.unplace(now, slot);
        self.place(now, slot);
        if let Some(group) = group {
            self.let_through(now, group);
        }
    }

    /// Whether a disk of this group would have to wait behind others of it.
    pub(super) fn is_group_held(&self, now: Time, group: Option<usize>) -> bool {
        let Some(group) = group.filter(|_| self.limits()) else {
            return false;
        };
        let of = &self.groups[group];
        of.parked || !of.waiting.is_empty() || self.member.groups().due(group) > ticks(now)
    }

    /// Finds the place of a disk that has none, if something of it waits.
    pub(super) fn place(&mut self, now: Time, slot: u32) {
        let (v, limits) = (self.member.v(), self.limits());
        let disk = self.disk(slot);
        if disk.queue.is_empty() {
            return;
        }
        disk.settle(now, v);
        disk.wakes(now, v);
        let (due, hold) = disk.gates.due();
        if limits && due > ticks(now) {
            disk.place = Place::Parked(hold);
            self.parked.set(slot, due);
            return;
        }
        if let Some(group) = disk.group
            && self.is_group_held(now, Some(group))
        {
            self.hold_in_group(now, slot, group);
            return;
        }
        self.disk(slot).place = Place::Ready;
        self.order(slot);
    }

    /// The disk is about to leave: neither limits of its own nor its group's hold back what waits, or keep its front end
    /// waiting. Ask `pick` afterwards.
    pub(crate) fn lift_limits(&mut self, now: Time, disk: DiskId) {
        let policy = Policy {
            limit: None,
            bandwidth: None,
            group: None,
            ..self.disk(disk.0).policy.clone()
        };
        self.change(now, disk, &policy);
    }

    /// Takes a disk out for good, or to be placed anew: its group goes on without it.
    pub(super) fn take_out(&mut self, now: Time, slot: u32) {
        self.unplace(now, slot);
        if let Some(group) = self.disk(slot).group {
            self.let_through(now, group);
        }
    }

    /// Takes a disk out of its place.
    fn unplace(&mut self, now: Time, slot: u32) {
        let v = self.member.v();
        let disk = self.disk(slot);
        disk.settle(now, v);
        let place = core::mem::replace(&mut disk.place, Place::Idle);
        let group = disk.group;
        match place {
            Place::Idle | Place::InGroup => {}
            Place::Ready => {
                self.ready.remove(slot);
                self.reserved.remove(slot);
                self.targets.remove(slot);
            }
            Place::Parked(_) => self.parked.remove(slot),
        }
        if let Some(group) = group {
            let group = &mut self.groups[group];
            group.waiting.remove(slot);
            if group.released == Some(slot) {
                group.released = None;
            }
        }
    }

    /// Brings the heaps up to date with the tags of a ready disk.
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

    /// A disk waits until its group may pass something.
    pub(super) fn hold_in_group(&mut self, now: Time, slot: u32, group: usize) {
        self.unplace(now, slot);
        let disk = self.disk(slot);
        disk.place = Place::InGroup;
        let tag = disk.tag;
        self.groups[group].waiting.set(slot, tag);
        self.let_through(now, group);
    }

    /// Makes one disk of the group ready if the group may pass something, or has it wait for the moment when it may.
    fn let_through(&mut self, now: Time, group: usize) {
        let limits = self.limits();
        let due = self.member.groups().due(group);
        let of = &mut self.groups[group];
        if of.parked || of.released.is_some() {
            return;
        }
        let Some((_, slot)) = of.waiting.peek() else {
            return;
        };
        let number = u32::try_from(group).expect("groups are numbered in 32 bits");
        if limits && due > ticks(now) {
            of.parked = true;
            self.parked_groups.set(number, due);
            return;
        }
        of.waiting.remove(slot);
        of.released = Some(slot);
        let v = self.member.v();
        let disk = self.disk(slot);
        disk.settle(now, v);
        disk.wakes(now, v);
        disk.place = Place::Ready;
        self.order(slot);
    }

    /// Makes ready what limits held until now.
    pub(super) fn release_due(&mut self, now: Time) {
        let tick = ticks(now);
        while let Some((due, slot)) = self.parked.peek() {
            if due > tick {
                break;
            }
            self.unplace(now, slot);
            self.place(now, slot);
        }
        while let Some((due, number)) = self.parked_groups.peek() {
            if due > tick {
                break;
            }
            self.parked_groups.remove(number);
            self.groups[number as usize].parked = false;
            self.let_through(now, number as usize);
        }
    }

    /// Nobody is to be held any more.
    pub(super) fn unpark(&mut self, now: Time) {
        while let Some((_, slot)) = self.parked.peek() {
            self.unplace(now, slot);
            self.place(now, slot);
        }
        for group in 0..self.groups.len() {
            let number = u32::try_from(group).expect("groups are numbered in 32 bits");
            self.parked_groups.remove(number);
            self.groups[group].parked = false;
            self.let_through(now, group);
        }
    }

    /// Notes the disks whose first I/O has waited for too long for its turn.
    pub(super) fn look_for_overdue(&mut self, now: Time) {
        self.look = now + LOOK;
        for (slot, disk) in (0..).zip(&mut self.disks) {
            let Some(disk) = disk else { continue };
            if disk.place == Place::Ready && !disk.overdue && is_overdue(disk, now) {
                disk.overdue = true;
                self.overdue.push_back(slot);
            }
        }
    }

    /// Lets other threads know what is ready here.
    #[inline]
    pub(super) fn publish(&mut self) {
        if !self.member.is_alone() {
            let start = self.ready.peek().map(|(tag, _)| tag);
            let due = self.reserved.peek().map(|(at, _)| at);
            self.member.publish(start, due);
        }
    }
}
