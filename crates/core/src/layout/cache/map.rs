//! The map of the cache: which pages it has, and in which slots.
//!
//! A page's blocks are in one slot, or in two: a block that is dirty is never overwritten where it is, because a crash in
//! that moment would lose it. Its next version goes to the same place of a second slot, the *twin*.
//!
//! # Always true
//! - a block is valid in one slot of its page at most
//! - what is dirty is valid
//! - a slot is free, or belongs to one page
//!
//! # Units
//! Masks have one bit for each block of a page. Memory: 44 bytes a slot, and 5.4 for the index.

use super::BLOCKS;
use super::blocks::{Placed, Record};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// No slot, or no page.
pub(super) const NONE: u32 = u32::MAX;

/// A slot of the flash devices.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    /// Its page; for a free slot the next free one.
    page: u32,
    pub(super) valid: u16,
    pub(super) dirty: u16,
    pub(super) checks: [u16; BLOCKS],
    /// I/Os that use it: it is not given to another page.
    pub(super) pins: u16,
    flags: u8,
}

const FREE: u8 = 1;
const TWIN: u8 = 2;
/// Its page waits in the journal's queue.
const QUEUED: u8 = 4;

const _: () = assert!(size_of::<Slot>() == 44, "memory for each slot is bounded");

/// See the module.
pub(super) struct Map {
    slots: Vec<Slot>,
    /// Slots by page, with linear probing.
    index: Vec<u32>,
    /// The first free slot.
    free: u32,
    free_count: u32,
    /// The second slot of a page, by its first one.
    twins: BTreeMap<u32, u32>,
}

impl Map {
    /// A map of free slots.
    pub(super) fn new(slots: u32) -> Map {
        let slot = Slot {
            page: NONE,
            valid: 0,
            dirty: 0,
            checks: [0; BLOCKS],
            pins: 0,
            flags: 0,
        };
        let mut map = Map {
            slots: vec![slot; slots as usize],
            index: vec![NONE; slots as usize * 4 / 3 + 1],
            free: NONE,
            free_count: 0,
            twins: BTreeMap::new(),
        };
        for number in (0..slots).rev() {
            map.free_slot(number);
        }
        map
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("slots have 32 bits")
    }

    pub(super) fn free_count(&self) -> u32 {
        self.free_count
    }

    pub(super) fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    pub(super) fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    /// Where a page belongs in the index.
    fn home(&self, page: u32) -> usize {
        // Fibonacci hashing: Knuth, The Art of Computer Programming 3, 6.4.
        let hash = u64::from(page.wrapping_mul(0x9e37_79b9));
        ((hash * self.index.len() as u64) >> 32) as usize
    }

    /// The place of a page in the index, or the empty place where it would be.
    #[inline]
    fn place(&self, page: u32) -> usize {
        let mut at = self.home(page);
        while self.index[at] != NONE && self.slots[self.index[at] as usize].page != page {
            at += 1;
            if at == self.index.len() {
                at = 0;
            }
        }
        at
    }

    /// The first slot of a page.
    #[inline]
    pub(super) fn find(&self, page: u32) -> Option<u32> {
        let slot = *self.index.get(self.place(page))?;
        (slot != NONE).then_some(slot)
    }

    /// The second slot of the page that has this first one.
    #[inline]
    pub(super) fn twin(&self, slot: u32) -> Option<u32> {
        if self.twins.is_empty() {
            return None;
        }
        self.twins.get(&slot).copied()
    }

    /// Takes a free slot.
    fn take(&mut self) -> Option<u32> {
        let slot = self.free;
        if slot == NONE {
            return None;
        }
        self.unfree(slot, NONE);
        Some(slot)
    }

    /// Takes this slot, which follows `before` in the list of free ones.
    fn unfree(&mut self, slot: u32, before: u32) {
        let next = self.slots[slot as usize].page;
        match before {
            NONE => self.free = next,
            before => self.slots[before as usize].page = next,
        }
        self.free_count -= 1;
        self.slots[slot as usize].flags &= !FREE;
    }

    /// The slot is free from now on.
    pub(super) fn free_slot(&mut self, slot: u32) {
        let free = self.free;
        let at = self.slot_mut(slot);
        debug_assert!(at.flags & FREE == 0 && at.pins == 0, "a slot is freed once");
        (at.page, at.flags, at.valid, at.dirty) = (free, FREE, 0, 0);
        self.free = slot;
        self.free_count += 1;
    }

    /// Gives a page its first slot, with no valid block. `None` if no slot is free.
    pub(super) fn add(&mut self, page: u32) -> Option<u32> {
        let slot = self.take()?;
        self.enter(page, slot);
        Some(slot)
    }

    fn enter(&mut self, page: u32, slot: u32) {
        let place = self.place(page);
        debug_assert!(self.index[place] == NONE, "a page is entered once");
        self.index[place] = slot;
        let at = self.slot_mut(slot);
        (at.page, at.flags, at.valid, at.dirty) = (page, 0, 0, 0);
    }

    /// Gives a page its second slot. `None` if no slot is free.
    pub(super) fn add_twin(&mut self, slot: u32) -> Option<u32> {
        let twin = self.take()?;
        self.enter_twin(slot, twin);
        Some(twin)
    }

    fn enter_twin(&mut self, slot: u32, twin: u32) {
        let page = self.page(slot);
        let at = self.slot_mut(twin);
        (at.page, at.flags, at.valid, at.dirty) = (page, TWIN, 0, 0);
        self.twins.insert(slot, twin);
    }

    /// Takes the second slot away from a page. The caller frees it.
    pub(super) fn remove_twin(&mut self, slot: u32) -> Option<u32> {
        let twin = self.twins.remove(&slot)?;
        self.retire(twin);
        Some(twin)
    }

    /// A slot that belongs to no page, and is not free.
    fn retire(&mut self, slot: u32) {
        let at = self.slot_mut(slot);
        (at.page, at.flags, at.valid, at.dirty) = (NONE, 0, 0, 0);
    }

    /// Removes a page. The caller frees its slots.
    pub(super) fn remove(&mut self, page: u32) -> [Option<u32>; 2] {
        let mut hole = self.place(page);
        let slot = self.index[hole];
        if slot == NONE {
            return [None, None];
        }
        // Knuth 6.4, algorithm R: those behind it that may move up do.
        let len = self.index.len();
        let mut at = hole;
        loop {
            at = if at + 1 == len { 0 } else { at + 1 };
            let other = self.index[at];
            if other == NONE {
                break;
            }
            let home = self.home(self.slots[other as usize].page);
            let stays = match hole <= at {
                true => hole < home && home <= at,
                false => hole < home || home <= at,
            };
            if !stays {
                self.index[hole] = other;
                hole = at;
            }
        }
        self.index[hole] = NONE;
        let twin = self.remove_twin(slot);
        self.retire(slot);
        [Some(slot), twin]
    }

    /// The page of a slot that is not free.
    pub(super) fn page(&self, slot: u32) -> u32 {
        self.slots[slot as usize].page
    }

    /// Whether a slot is the first one of a page.
    pub(super) fn is_first(&self, slot: u32) -> bool {
        let at = self.slot(slot);
        at.flags & (FREE | TWIN) == 0 && at.page != NONE
    }

    /// Valid and dirty blocks of a page, in both of its slots.
    pub(super) fn masks(&self, slot: u32) -> (u16, u16) {
        let first = self.slot(slot);
        let twin = self.twin(slot).map_or((0, 0), |twin| {
            let twin = self.slot(twin);
            (twin.valid, twin.dirty)
        });
        (first.valid | twin.0, first.dirty | twin.1)
    }

    /// The slot of a page in which this block is valid.
    pub(super) fn holder(&self, slot: u32, block: usize) -> Option<u32> {
        let bit = 1 << block;
        if self.slot(slot).valid & bit != 0 {
            return Some(slot);
        }
        self.twin(slot)
            .filter(|twin| self.slot(*twin).valid & bit != 0)
    }

    /// These blocks of a page are not valid any more.
    pub(super) fn invalidate(&mut self, slot: u32, blocks: u16) {
        let twin = self.twin(slot);
        for slot in core::iter::once(slot).chain(twin) {
            let at = self.slot_mut(slot);
            at.valid &= !blocks;
            at.dirty &= !blocks;
        }
    }

    /// These blocks of a page are on the disk as well.
    pub(super) fn clean(&mut self, slot: u32, blocks: u16) {
        let twin = self.twin(slot);
        for slot in core::iter::once(slot).chain(twin) {
            self.slot_mut(slot).dirty &= !blocks;
        }
    }

    /// Marks the page as waiting in the journal's queue. Returns whether it was not.
    pub(super) fn queue(&mut self, slot: u32) -> bool {
        let at = self.slot_mut(slot);
        let queued = at.flags & QUEUED != 0;
        at.flags |= QUEUED;
        !queued
    }

    /// The page is not in the queue any more.
    pub(super) fn unqueue(&mut self, slot: u32) {
        self.slot_mut(slot).flags &= !QUEUED;
    }

    /// The state of a page for the journal. `number` numbers slots over the device.
    pub(super) fn record(&self, page: u32, number: impl Fn(u32) -> u32) -> Record {
        let placed = |slot: u32| {
            let at = self.slot(slot);
            let mut placed = Placed {
                slot: number(slot),
                valid: at.valid,
                dirty: at.dirty,
                checks: [0; BLOCKS],
            };
            for block in super::blocks_of(at.valid) {
                placed.checks[block] = at.checks[block];
            }
            (at.valid != 0).then_some(placed)
        };
        let slot = self.find(page);
        let twin = slot.and_then(|slot| self.twin(slot));
        Record {
            page,
            places: match [slot.and_then(placed), twin.and_then(placed)] {
                [None, twin] => [twin, None],
                places => places,
            },
        }
    }

    /// Takes over the state of a page from the journal. `slot` finds slots of the device's numbers. Returns whether that
    /// agrees with the others.
    pub(super) fn replay(&mut self, record: &Record, slot: impl Fn(u32) -> Option<u32>) -> bool {
        for slot in self.remove(record.page).into_iter().flatten() {
            self.free_slot(slot);
        }
        let mut first = None;
        for placed in record.places.iter().flatten() {
            let Some(slot) = slot(placed.slot) else {
                return false;
            };
            if self.slot(slot).flags & FREE == 0 {
                return false;
            }
            self.claim(slot);
            match first {
                None => {
                    self.enter(record.page, slot);
                    first = Some(slot);
                }
                Some(first) => self.enter_twin(first, slot),
            }
            let at = self.slot_mut(slot);
            (at.valid, at.dirty, at.checks) = (placed.valid, placed.dirty, placed.checks);
        }
        true
    }

    /// Takes this slot while the map is recovered: it stays in the list of free ones until [`Map::relink`].
    fn claim(&mut self, slot: u32) {
        self.slot_mut(slot).flags &= !FREE;
    }

    /// Makes the list of free slots anew, after the recovery.
    pub(super) fn relink(&mut self) {
        (self.free, self.free_count) = (NONE, 0);
        for slot in (0..self.len()).rev() {
            if self.slot(slot).flags & FREE != 0 {
                self.slot_mut(slot).flags = 0;
                self.free_slot(slot);
            }
        }
    }
}
