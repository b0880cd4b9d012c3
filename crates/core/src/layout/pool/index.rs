//! The index of a pool's disk: the first record of each of its extents that has any.
//!
//! An extendible hash table: a directory of segments with 512 slots each. A segment that is full becomes two. So an insertion
//! moves one segment at most, and the table is never much larger than what is in it.
//!
//! # Always true
//! - a slot names a record whose chain has all records of its extent
//! - a segment always has free slots, so that a search ends
//!
//! # Source
//! Fagin et al., "Extendible hashing: a fast access method for dynamic files" (1979).

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// Slots of a segment at first. Origin: chosen; to split one takes some microseconds.
const SLOTS: usize = 512;

/// Of 8 slots so many are used at most: a search of a fuller segment takes long.
const FULL: usize = 7;

/// A directory has 2 to the power of this many entries at most. Origin: what 64 TiB need, and some more.
const DEPTH_MAX: u32 = 20;

/// No record.
pub(super) const NONE: u32 = u32::MAX;

/// See the module.
pub(super) struct Index {
    directory: Vec<u32>,
    /// The directory has 2 to the power of this many entries.
    depth: u32,
    segments: Vec<Segment>,
    /// Multiplies keys: odd, and unknown to guests.
    key: u64,
}

struct Segment {
    /// How many bits of the hash are the same in all of it.
    depth: u32,
    used: usize,
    slots: Box<[u32]>,
}

impl Segment {
    fn new(depth: u32, slots: usize) -> Segment {
        Segment {
            depth,
            used: 0,
            slots: vec![NONE; slots].into_boxed_slice(),
        }
    }

    #[inline]
    fn slot(&self, hash: u64) -> usize {
        let [_, _, low, high, ..] = hash.to_le_bytes();
        usize::from(u16::from_le_bytes([low, high])) & (self.slots.len() - 1)
    }

    fn put(&mut self, hash: u64, record: u32) {
        let mut at = self.slot(hash);
        while self.slots[at] != NONE {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = record;
        self.used += 1;
    }

    fn is_full(&self) -> bool {
        self.used * 8 >= self.slots.len() * FULL
    }
}

impl Index {
    /// An empty index. `key` makes its hash different from others.
    pub(super) fn new(key: u64) -> Index {
        Index {
            directory: vec![0],
            depth: 0,
            segments: vec![Segment::new(0, SLOTS)],
            key: 0x9e37_79b9_7f4a_7c15 ^ key << 1,
        }
    }

    #[inline]
    fn hash(&self, extent: u32) -> u64 {
        let hash = (u64::from(extent) + 1).wrapping_mul(self.key);
        (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    #[inline]
    fn segment(&self, hash: u64) -> usize {
        let entry = (hash >> 1) >> (63 - self.depth);
        let entry = usize::try_from(entry).expect("the directory is in memory");
        self.directory[entry] as usize
    }

    /// The first record of an extent, and what `of_extent` has found at it: something if it is one of this extent.
    #[inline(always)]
    pub(super) fn find<T>(
        &self,
        extent: u32,
        of_extent: impl Fn(u32) -> Option<T>,
    ) -> Option<(u32, T)> {
        let hash = self.hash(extent);
        let segment = &self.segments[self.segment(hash)];
        let mut at = segment.slot(hash);
        loop {
            let record = segment.slots[at];
            if record == NONE {
                return None;
            }
            if let Some(found) = of_extent(record) {
                return Some((record, found));
            }
            at = (at + 1) & (segment.slots.len() - 1);
        }
    }

    /// An extent that has none gets its first record.
    pub(super) fn insert(&mut self, extent: u32, record: u32, extent_of: impl Fn(u32) -> u32) {
        let hash = self.hash(extent);
        while self.segments[self.segment(hash)].is_full() {
            self.grow(hash, &extent_of);
        }
        let segment = self.segment(hash);
        self.segments[segment].put(hash, record);
    }

    /// The first record of an extent is another one.
    pub(super) fn replace(&mut self, extent: u32, from: u32, to: u32) {
        if from == to {
            return;
        }
        let (segment, at) = self.at(extent, from);
        self.segments[segment].slots[at] = to;
    }

    /// An extent has no record any more.
    pub(super) fn remove(&mut self, extent: u32, record: u32, extent_of: impl Fn(u32) -> u32) {
        let (segment, mut hole) = self.at(extent, record);
        let key = |index: &Index, record| index.hash(extent_of(record));
        self.segments[segment].used -= 1;
        self.segments[segment].slots[hole] = NONE;
        // Those behind it move up, so that each is found from its slot on.
        let mask = self.segments[segment].slots.len() - 1;
        let mut at = (hole + 1) & mask;
        loop {
            let record = self.segments[segment].slots[at];
            if record == NONE {
                return;
            }
            let home = self.segments[segment].slot(key(self, record));
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.segments[segment].slots[hole] = record;
                self.segments[segment].slots[at] = NONE;
                hole = at;
            }
            at = (at + 1) & mask;
        }
    }

    /// The slot of a record.
    ///
    /// # Panics
    /// If it is not the first one of its extent.
    fn at(&self, extent: u32, record: u32) -> (usize, usize) {
        let hash = self.hash(extent);
        let number = self.segment(hash);
        let segment = &self.segments[number];
        let mut at = segment.slot(hash);
        while segment.slots[at] != record {
            assert!(segment.slots[at] != NONE, "the index has each first record");
            at = (at + 1) & (segment.slots.len() - 1);
        }
        (number, at)
    }

    /// Makes room in the segment of this hash.
    fn grow(&mut self, hash: u64, extent_of: &impl Fn(u32) -> u32) {
        let number = self.segment(hash);
        let depth = self.segments[number].depth;
        if depth == DEPTH_MAX {
            let slots = self.segments[number].slots.len() * 2;
            let old = core::mem::replace(&mut self.segments[number], Segment::new(depth, slots));
            return self.put_all(&old, extent_of);
        }
        if depth == self.depth {
            self.directory = self
                .directory
                .iter()
                .flat_map(|segment| [*segment; 2])
                .collect();
            self.depth += 1;
        }
        let slots = self.segments[number].slots.len();
        let old = core::mem::replace(&mut self.segments[number], Segment::new(depth + 1, slots));
        let other = u32::try_from(self.segments.len()).expect("segments are far fewer");
        self.segments.push(Segment::new(depth + 1, slots));
        // The upper half of its entries.
        let width = 1_usize << (self.depth - depth);
        let entry = usize::try_from((hash >> 1) >> (63 - self.depth)).expect("as in `segment`");
        let first = entry & !(width - 1);
        self.directory[first + width / 2..first + width].fill(other);
        self.put_all(&old, extent_of);
    }

    fn put_all(&mut self, old: &Segment, extent_of: &impl Fn(u32) -> u32) {
        for record in old.slots.iter().filter(|record| **record != NONE) {
            let hash = self.hash(extent_of(*record));
            let segment = self.segment(hash);
            self.segments[segment].put(hash, *record);
        }
    }

    /// The first records of all extents.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let slots = self.segments.iter().flat_map(|segment| &segment.slots);
        slots.copied().filter(|record| *record != NONE)
    }

    /// Bytes in memory.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let slots: usize = self.segments.iter().map(|it| it.slots.len() * 4).sum();
        slots + self.directory.len() * 4 + self.segments.capacity() * size_of::<Segment>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    #[test]
    fn the_index_is_a_map() {
        let (mut index, mut map) = (Index::new(7), BTreeMap::new());
        let extent_of = |record: u32| record ^ 0x5555;
        let mut state = 1_u64;
        for _ in 0..60_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let extent = u32::try_from(state >> 49).unwrap();
            let record = extent ^ 0x5555;
            match map.remove(&extent) {
                Some(record) => index.remove(extent, record, extent_of),
                None => {
                    map.insert(extent, record);
                    index.insert(extent, record, extent_of);
                }
            }
        }
        assert!(map.len() > 5_000);
        for extent in 0..1 << 15 {
            let found = index.find(extent, |record| (extent_of(record) == extent).then_some(()));
            assert_eq!(found.map(|(record, ())| record), map.get(&extent).copied());
        }
        assert_eq!(index.iter().count(), map.len());
    }

    #[test]
    fn keys_that_collide_make_a_segment_larger_and_no_directory() {
        let mut index = Index::new(0);
        // Only the lowest bits differ in what is hashed: simulate a full depth.
        index.segments[0].depth = DEPTH_MAX;
        for extent in 0..5_000 {
            index.insert(extent, extent, |record| record);
        }
        assert_eq!((index.directory.len(), index.segments.len()), (1, 1));
        let find = |extent| index.find(extent, |record| (record == extent).then_some(()));
        assert!((0..5_000).all(|extent| find(extent) == Some((extent, ()))));
        assert_eq!(find(5_000), None);
    }
}
