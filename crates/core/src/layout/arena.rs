//! The arena: buffers of an I/O thread for the layouts' own bytes.
//!
//! A number of buffers of [`SLOT`] bytes. A layout that finds none waits; the shard tells its disk when one has been
//! returned. A disk gets a buffer while it has less than a part of what is free, so that a disk whose member hangs leaves
//! buffers for the others. A buffer that only a hung member keeps is *late*: the engine gives others in its place.
//!
//! # Always true
//! - a buffer is with one layout at a time
//! - nothing is allocated after the buffers were given, except once for each disk
//! - a disk that has fewer than four buffers gets one if there is one
//!
//! # Source
//! Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches" (1998).

use crate::request::{Data, DiskId};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Bytes of a buffer. Origin: chosen; most requests fit, and a copy of this length is long enough for any device.
pub const SLOT: u64 = 64 << 10;

/// A disk may have one of so many free buffers, and one more. Origin: chosen; of 128 buffers one disk gets 26, and eight
/// disks that get all they can leave 19.
const PART: usize = 4;

/// But a disk may have so many in any case. Origin: a scrub needs one for each member, all at once.
const LEAST: usize = super::mirror::MEMBERS_MAX;

/// See the module.
#[derive(Debug, Default)]
pub struct Arena {
    free: Vec<Data>,
    /// By [`DiskId`]: how many it has, without late ones.
    held: Vec<u32>,
    /// The late ones, likewise.
    late: Vec<u32>,
    /// The same for layouts that have others below them.
    held_above: Vec<u32>,
    /// Those that are with layouts, and their disks. They are few, and the last claimed one is often the first returned.
    claimed: Vec<(DiskId, Data)>,
    /// How many there are.
    all: usize,
    /// Disks that found none, in order, and whether for a layout with others below it.
    waiting: VecDeque<(DiskId, bool)>,
}

/// What a disk that leaves an I/O thread has of its arena.
#[derive(Debug)]
pub(crate) struct Held {
    buffers: Vec<Data>,
    /// Buffers of layouts, of layouts with others below them, and late ones.
    counts: [u32; 3],
    /// Whether it waits for one of the first, and of the second kind.
    waits: [bool; 2],
}

impl Held {
    /// The buffers, late ones too.
    pub(crate) fn buffers(&self) -> &[Data] {
        &self.buffers
    }
}

impl Arena {
    /// Adds buffers of [`SLOT`] bytes each.
    pub fn give(&mut self, slots: Vec<Data>) {
        self.all += slots.len();
        self.free.extend(slots);
    }

    /// Free buffers.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Buffers, free or not.
    pub fn all(&self) -> usize {
        self.all
    }

    /// Buffers that only hung members keep.
    pub fn late(&self) -> usize {
        self.late.iter().map(|late| *late as usize).sum()
    }

    /// A disk leaves, with the buffers that it has.
    pub(crate) fn take_out(&mut self, disk: DiskId) -> Held {
        let counts = [&mut self.held, &mut self.held_above, &mut self.late];
        let counts = counts.map(|counts| core::mem::take(count(counts, disk)));
        let waits = [false, true].map(|above| {
            let place = self.waiting.iter().position(|it| *it == (disk, above));
            place.is_some_and(|place| self.waiting.remove(place).is_some())
        });
        let of_disk = |claimed: &mut (DiskId, Data)| claimed.0 == disk;
        let buffers = self.claimed.extract_if(.., of_disk);
        let buffers: Vec<Data> = buffers.map(|(_, slot)| slot).collect();
        self.all -= buffers.len();
        Held {
            buffers,
            counts,
            waits,
        }
    }

    /// A disk comes, with the buffers that it has. As many of the free ones, at most, leave for them.
    pub(crate) fn take_in(&mut self, disk: DiskId, held: &Held) -> Vec<Data> {
        let counts = [&mut self.held, &mut self.held_above, &mut self.late];
        for (counts, had) in counts.into_iter().zip(held.counts) {
            *count(counts, disk) += had;
        }
        for (waits, above) in held.waits.into_iter().zip([false, true]) {
            if waits {
                self.wait(disk, above);
            }
        }
        let came = held.buffers.len();
        self.claimed
            .extend(held.buffers.iter().map(|slot| (disk, *slot)));
        let others = self.free.split_off(self.free.len().saturating_sub(came));
        self.all += came;
        self.all -= others.len();
        others
    }

    /// How many disks wait for a buffer.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a disk waits for a buffer.
    #[inline]
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn claim(&mut self, disk: DiskId) -> Option<Data> {
        let may = may_claim(&self.held, disk, self.free.len());
        let slot = if may { self.free.pop() } else { None };
        match slot {
            Some(slot) => {
                *count(&mut self.held, disk) += 1;
                self.claimed.push((disk, slot));
            }
            None => self.wait(disk, false),
        }
        slot
    }

    /// The same for a layout that has others below it. A quarter of the buffers is left to these: what it waits for can end.
    pub(crate) fn claim_above(&mut self, disk: DiskId) -> Option<Data> {
        let may = self.may_claim_above(disk);
        let slot = if may { self.free.pop() } else { None };
        match slot {
            Some(slot) => {
                *count(&mut self.held_above, disk) += 1;
                self.claimed.push((disk, slot));
            }
            None => self.wait(disk, true),
        }
        slot
    }

    fn may_claim_above(&self, disk: DiskId) -> bool {
        let free = self.free.len().saturating_sub(self.all / PART);
        free > 0 && may_claim(&self.held_above, disk, free)
    }

    fn wait(&mut self, disk: DiskId, above: bool) {
        if !self.waiting.contains(&(disk, above)) {
            self.waiting.push_back((disk, above));
        }
    }

    /// A layout with others below it returns a buffer.
    pub(crate) fn release_above(&mut self, disk: DiskId, slot: Data) {
        *count(&mut self.held_above, disk) -= 1;
        self.put(slot);
    }

    /// A disk returns a buffer.
    pub(crate) fn release(&mut self, disk: DiskId, slot: Data) {
        *count(&mut self.held, disk) -= 1;
        self.put(slot);
    }

    /// Only a hung member keeps a buffer of this disk: it does not count as the disk's any more.
    pub(crate) fn make_late(&mut self, disk: DiskId) {
        *count(&mut self.held, disk) -= 1;
        *count(&mut self.late, disk) += 1;
    }

    /// A late buffer is returned.
    pub(crate) fn release_late(&mut self, disk: DiskId, slot: Data) {
        *count(&mut self.late, disk) -= 1;
        self.put(slot);
    }

    fn put(&mut self, slot: Data) {
        let mut claimed = self.claimed.iter();
        let place = claimed.rposition(|(_, other)| other.buffer == slot.buffer);
        let place = place.expect("a buffer is returned once");
        self.claimed.swap_remove(place);
        self.free.push(slot);
    }

    /// The next disk that waits, if there is a buffer for it.
    pub(crate) fn next_waiting(&mut self) -> Option<DiskId> {
        if self.free.is_empty() {
            return None;
        }
        let mut waiting = self.waiting.iter();
        let place = waiting.position(|(disk, above)| match above {
            true => self.may_claim_above(*disk),
            false => may_claim(&self.held, *disk, self.free.len()),
        })?;
        self.waiting.remove(place).map(|(disk, _)| disk)
    }
}

/// Whether a disk that has so many may have one more, of so many free ones.
fn may_claim(held: &[u32], disk: DiskId, free: usize) -> bool {
    let held = held.get(disk.0 as usize);
    let held = held.map_or(0, |held| *held as usize);
    held < LEAST || held <= free / PART
}

fn count(held: &mut Vec<u32>, disk: DiskId) -> &mut u32 {
    let place = disk.0 as usize;
    if held.len() <= place {
        held.resize(place + 1, 0);
    }
    &mut held[place]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(slots: u32) -> Arena {
        let mut arena = Arena::default();
        let slots = (0..slots).map(|buffer| Data { buffer, start: 0 });
        arena.give(slots.collect());
        arena
    }

    #[test]
    fn disks_that_take_all_they_can_leave_buffers_for_others() {
        let mut arena = arena(128);
        for disk in 0..8 {
            let claims = core::iter::from_fn(|| arena.claim(DiskId(disk)));
            let claims = claims.count();
            assert!(claims >= LEAST, "{claims} of disk {disk}");
        }
        assert!(arena.free() >= 19, "{}", arena.free());
        assert_eq!(arena.next_waiting(), None, "none may have more");
        assert!(arena.claim(DiskId(8)).is_some());
    }

    #[test]
    fn a_disk_takes_its_buffers_along_and_others_leave_for_them() {
        let (mut from, mut to) = (arena(6), arena(8));
        let disk = DiskId(3);
        let slots = [(); 4].map(|()| from.claim(disk).expect("the least"));
        from.make_late(disk);
        let above = from.claim_above(disk).expect("there is room");
        let last = from.claim(disk).expect("it has three");
        assert_eq!(from.claim(disk), None);
        let held = from.take_out(disk);
        let mut buffers: Vec<u32> = held.buffers().iter().map(|slot| slot.buffer).collect();
        buffers.sort_unstable();
        assert_eq!(buffers, [0, 1, 2, 3, 4, 5]);
        assert_eq!(
            (from.all, from.free(), from.late(), from.waiting()),
            (0, 0, 0, 0)
        );
        let others = to.take_in(disk, &held);
        assert_eq!((to.all, to.free(), to.late(), to.waiting()), (8, 2, 1, 1));
        from.give(others);
        assert_eq!((from.all, from.free()), (6, 6));
        to.release_late(disk, slots[0]);
        to.release(disk, last);
        slots[1..].iter().for_each(|slot| to.release(disk, *slot));
        to.release_above(disk, above);
        assert_eq!((to.free(), to.late()), (8, 0));
    }

    #[test]
    fn a_late_buffer_counts_for_nobody_until_it_is_returned() {
        let mut arena = arena(6);
        let disk = DiskId(0);
        let slots = [(); 4].map(|()| arena.claim(disk).expect("the least"));
        assert_eq!(arena.claim(disk), None);
        slots.iter().for_each(|_| arena.make_late(disk));
        assert_eq!((arena.late(), arena.next_waiting()), (4, Some(disk)));
        let own = arena.claim(disk).expect("it has none");
        slots
            .into_iter()
            .for_each(|slot| arena.release_late(disk, slot));
        arena.release(disk, own);
        assert_eq!((arena.late(), arena.free()), (0, 6));
    }
}
