//! The map of the cache: which pages it has, and in which slots.
//!
//! A page's blocks are in one slot, or in two: a block that is dirty is never overwritten where it is, because a crash in
//! that moment would lose it. Its next version goes to the same place of a second slot, the *twin*.
//!
//! # Always true
//! - a block is valid in one slot of its page at most
//! - what is dirty is valid
//! - a slot is free, or belongs to one page
//! - a slot from the bound on is given to no page
//!
//! # Units
//! Masks have one bit for each block of a page. Memory: 42 bytes a slot, and 5.4 for the index.

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
    /// Its page; for a free slot the next free one. In two halves, so that a slot is aligned to two bytes.
    page: [u16; 2],
    pub(super) valid: u16,
    pub(super) dirty: u16,
    pub(super) checks: [u16; BLOCKS],
    /// I/Os that use it, and what it is, in the bits from [`FREE`] on.
    state: u16,
}

const FREE: u16 = 1 << 13;
const TWIN: u16 = 1 << 14;
/// Its page waits in the journal's queue.
const QUEUED: u16 = 1 << 15;
/// I/Os that are counted in a slot; more are counted in the map.
const PINS: u16 = FREE - 1;

const _: () = assert!(size_of::<Slot>() == 42, "memory for each slot is bounded");

impl Slot {
    const NEW: Slot = Slot {
        page: [u16::MAX; 2],
        valid: 0,
        dirty: 0,
        checks: [0; BLOCKS],
        state: 0,
    };

    fn page(&self) -> u32 {
        u32::from(self.page[0]) | u32::from(self.page[1]) << 16
    }

    /// Another page, or the next free slot, with no valid block. Pins stay.
    fn renew(&mut self, page: u32, what: u16) {
        let [a, b, c, d] = page.to_le_bytes();
        self.page = [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])];
        (self.valid, self.dirty) = (0, 0);
        self.state = self.state & PINS | what;
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.state & PINS != 0
    }
}

/// What a record says, beside those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replayed {
    Agrees,
    /// It names a slot that the disk does not have any more. A later record of the page must say where that is now.
    Elsewhere,
    /// It names a slot that another page has.
    Contradiction,
}

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
    /// Pins beyond those that a slot counts.
    more_pins: BTreeMap<u32, u32>,
    /// The first slot that is given to no page any more.
    bound: u32,
}

impl Map {
    /// A map of free slots.
    pub(super) fn new(slots: u32) -> Map {
        let mut map = Map {
            slots: Vec::new(),
            index: vec![NONE; 1],
            free: NONE,
            free_count: 0,
            twins: BTreeMap::new(),
            more_pins: BTreeMap::new(),
            bound: 0,
        };
        map.grow(slots);
        map
    }

    /// It has so many slots from now on, which is not fewer. This moves all of them.
    pub(super) fn grow(&mut self, slots: u32) {
        let first = self.len();
        self.bound = slots;
        self.slots.reserve_exact((slots - first) as usize);
        self.slots.resize(slots as usize, Slot::NEW);
        for number in (first..slots).rev() {
            self.free_slot(number);
        }
        self.index = vec![NONE; slots as usize * 4 / 3 + 1];
        for slot in 0..first {
            if self.is_first(slot) {
                let place = self.place(self.page(slot));
                self.index[place] = slot;
            }
        }
    }

    /// Slots from this one on are given to no page any more.
    pub(super) fn set_bound(&mut self, bound: u32) {
        self.bound = bound;
        let mut slot = core::mem::replace(&mut self.free, NONE);
        self.free_count = 0;
        while slot != NONE {
            let next = self.page(slot);
            self.slot_mut(slot).state &= !FREE;
            self.free_slot(slot);
            slot = next;
        }
    }

    /// The first slot from this one on that has a page.
    pub(super) fn used_from(&self, slot: u32) -> Option<u32> {
        (slot..self.len()).find(|slot| self.slot(*slot).state & FREE == 0)
    }

    /// Forgets the slots from the bound on, which are free.
    pub(super) fn shrink(&mut self) {
        debug_assert!(self.used_from(self.bound).is_none(), "they are free");
        self.slots.truncate(self.bound as usize);
        self.slots.shrink_to_fit();
    }

    /// One more I/O uses a slot: it is not given to another page.
    #[inline(always)]
    pub(super) fn pin(&mut self, slot: u32) {
        let at = self.slot_mut(slot);
        if at.state & PINS == PINS {
            self.pin_more(slot);
        } else {
            at.state += 1;
        }
    }

    #[cold]
    fn pin_more(&mut self, slot: u32) {
        *self.more_pins.entry(slot).or_default() += 1;
    }

    /// One I/O less uses a slot.
    #[inline(always)]
    pub(super) fn unpin(&mut self, slot: u32) {
        if !self.more_pins.is_empty() && self.unpin_more(slot) {
            return;
        }
        let at = self.slot_mut(slot);
        assert!(
            at.is_pinned(),
            "a slot is unpinned as often as it was pinned"
        );
        at.state -= 1;
    }

    /// Whether the slot has pins in the map, and one less now.
    #[cold]
    fn unpin_more(&mut self, slot: u32) -> bool {
        let Some(more) = self.more_pins.get_mut(&slot) else {
            return false;
        };
        *more -= 1;
        if *more == 0 {
            self.more_pins.remove(&slot);
        }
        true
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("slots have 32 bits")
    }

    pub(super) fn free_count(&self) -> u32 {
        self.free_count
    }

    #[inline]
    pub(super) fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    #[inline]
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
    #[inline(always)]
    fn place(&self, page: u32) -> usize {
        let mut at = self.home(page);
        while self.index[at] != NONE && self.slots[self.index[at] as usize].page() != page {
            at += 1;
            if at == self.index.len() {
                at = 0;
            }
        }
        at
    }

    /// The first slot of a page.
    #[inline(always)]
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
        self.free = self.slots[slot as usize].page();
        self.free_count -= 1;
        self.slots[slot as usize].state &= !FREE;
        Some(slot)
    }

    /// The slot is free from now on.
    pub(super) fn free_slot(&mut self, slot: u32) {
        let (free, bound) = (self.free, self.bound);
        let at = self.slot_mut(slot);
        debug_assert!(at.state & (FREE | PINS) == 0, "a slot is freed once");
        at.renew(if slot < bound { free } else { NONE }, FREE);
        if slot < bound {
            self.free = slot;
            self.free_count += 1;
        }
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
        self.slot_mut(slot).renew(page, 0);
    }

    /// Gives a page its second slot. `None` if no slot is free.
    pub(super) fn add_twin(&mut self, slot: u32) -> Option<u32> {
        let twin = self.take()?;
        self.enter_twin(slot, twin);
        Some(twin)
    }

    fn enter_twin(&mut self, slot: u32, twin: u32) {
        let page = self.page(slot);
        self.slot_mut(twin).renew(page, TWIN);
        self.twins.insert(slot, twin);
    }

    /// How many second slots there are.
    #[inline]
    pub(super) fn twins(&self) -> u32 {
        u32::try_from(self.twins.len()).expect("slots have 32 bits")
    }

    /// The pages with a second slot from this first one on, with both.
    pub(super) fn with_twin_from(&self, slot: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.twins.range(slot..).map(|(slot, twin)| (*slot, *twin))
    }

    /// Some pages with a second slot.
    pub(super) fn with_twin(&self, most: usize) -> Vec<u32> {
        self.twins.keys().take(most).copied().collect()
    }

    /// Takes the second slot away from a page. The caller frees it.
    pub(super) fn remove_twin(&mut self, slot: u32) -> Option<u32> {
        let twin = self.twins.remove(&slot)?;
        self.retire(twin);
        Some(twin)
    }

    /// A slot that belongs to no page, and is not free.
    fn retire(&mut self, slot: u32) {
        self.slot_mut(slot).renew(NONE, 0);
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
            let home = self.home(self.slots[other as usize].page());
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
        self.slots[slot as usize].page()
    }

    /// Whether a slot is the first one of a page.
    pub(super) fn is_first(&self, slot: u32) -> bool {
        let at = self.slot(slot);
        at.state & (FREE | TWIN) == 0 && at.page() != NONE
    }

    /// Whether a slot belongs to a page.
    pub(super) fn has_page(&self, slot: u32) -> bool {
        let at = self.slot(slot);
        at.state & FREE == 0 && at.page() != NONE
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

    /// The slot of a page in which all of these blocks are valid.
    #[inline(always)]
    pub(super) fn holder_of_all(&self, slot: u32, blocks: u16) -> Option<u32> {
        let has_all = |slot: u32| self.slot(slot).valid & blocks == blocks;
        if has_all(slot) {
            return Some(slot);
        }
        self.twin(slot).filter(|twin| has_all(*twin))
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
        let queued = at.state & QUEUED != 0;
        at.state |= QUEUED;
        !queued
    }

    /// The page is not in the queue any more.
    pub(super) fn unqueue(&mut self, slot: u32) {
        self.slot_mut(slot).state &= !QUEUED;
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

    /// Takes over the state of a page from the journal. `slot` finds slots of the device's numbers.
    pub(super) fn replay(
        &mut self,
        record: &Record,
        slot: impl Fn(u32) -> Option<u32>,
    ) -> Replayed {
        for slot in self.remove(record.page).into_iter().flatten() {
            self.free_slot(slot);
        }
        let mut places = record.places.iter().flatten();
        if places.any(|placed| slot(placed.slot).is_none()) {
            return Replayed::Elsewhere;
        }
        let mut first = None;
        for placed in record.places.iter().flatten() {
            let slot = slot(placed.slot).expect("it was just there");
            if self.slot(slot).state & FREE == 0 {
                return Replayed::Contradiction;
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
        Replayed::Agrees
    }

    /// Takes this slot while the map is recovered: it stays in the list of free ones until [`Map::relink`].
    fn claim(&mut self, slot: u32) {
        self.slot_mut(slot).state &= !FREE;
    }

    /// Makes the list of free slots anew, after the recovery.
    pub(super) fn relink(&mut self) {
        (self.free, self.free_count) = (NONE, 0);
        for slot in (0..self.len()).rev() {
            if self.slot(slot).state & FREE != 0 {
                self.slot_mut(slot).state = 0;
                self.free_slot(slot);
            }
        }
    }
}
