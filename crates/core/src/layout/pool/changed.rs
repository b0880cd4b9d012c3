//! Changed sub-blocks: where two generations of a pool's disk differ, for backups.
//!
//! The records are read a part at a time, so that guests are served between two parts. What is not between the two
//! generations is not read twice, and what is written meanwhile belongs to neither of them.
//!
//! # Always true
//! - of generation 0, which is none, all that the other generation has differs
//! - a sub-block that differs is in the result; one that was written with the same bytes, or written and discarded, may be

use super::runs;
use super::setup::Generation;
use super::{NONE, Pool};
use alloc::vec::Vec;
use core::ops::Range;

/// Grants that are read in a part: 16,384 records, some 50 us.
const PART: usize = 256;

/// The parts of a disk that may differ between two generations, as far as they are found.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// The number of the grant that is read next.
    next: u32,
    /// Extents, with a bit for each sub-block. An extent can be there several times.
    found: Vec<(u32, u16)>,
    /// The number of bytes of a sub-block and of an extent, as powers of two.
    shifts: (u32, u32),
    /// Of the disk, in bytes.
    size: u64,
}

/// How far a search for changes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Searched {
    /// More is to be read.
    Part,
    /// Everything was read.
    All,
}

impl Changes {
    /// The ranges in bytes, ascending; none touches another.
    pub fn ranges(mut self) -> Vec<Range<u64>> {
        self.found.sort_unstable_by_key(|(extent, _)| *extent);
        self.found.dedup_by(|next, last| {
            let is_same = next.0 == last.0;
            if is_same {
                last.1 |= next.1;
            }
            is_same
        });
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (extent, changed) in self.found {
            let start = u64::from(extent) << self.shifts.1;
            for (first, end) in runs(changed) {
                let at = |sub_block: u32| start + (u64::from(sub_block) << self.shifts.0);
                let range = at(first)..at(end).min(self.size);
                match ranges.last_mut() {
                    Some(last) if last.end == range.start => last.end = range.end,
                    _ if range.start < range.end => ranges.push(range),
                    _ => {}
                }
            }
        }
        ranges
    }
}

impl Pool {
    /// Finds more of what may differ between two generations
    /// ([`Layout::find_changes`](crate::layout::Layout::find_changes)).
    pub(super) fn find_changes_between(
        &self,
        from: Generation,
        to: Generation,
        changes: &mut Changes,
    ) -> Option<Searched> {
        if !self.is_open() {
            return None;
        }
        // Generation 0 is none: it sees nothing, and all that the other one sees differs.
        let seen = |number: Generation| match number {
            Generation(0) => Some(Vec::new()),
            number => {
                let found = self.forest.find(0, number)?;
                Some(self.forest.path(found).collect::<Vec<u16>>())
            }
        };
        let (one, other) = (seen(from)?, seen(to)?);
        let is_between = |generation: &u16| one.contains(generation) != other.contains(generation);
        let mut between: Vec<u16> = one.iter().chain(&other).copied().collect();
        between.retain(is_between);
        between.sort_unstable();
        (changes.shifts, changes.size) = (self.shifts, self.size);
        let left = self.table.chunks_from(changes.next);
        for (number, chunk) in left.take(PART) {
            let records = self.table.records(number).map(|(_, record)| record);
            let marks = chunk.marks.iter().map(|mark| self.table.at(*mark));
            for record in records.chain(marks) {
                let is_wanted = record.extent != NONE && record.bits != 0;
                if is_wanted && between.binary_search(&record.generation).is_ok() {
                    changes.found.push((record.extent, record.bits));
                }
            }
            changes.next = number + 1;
        }
        Some(match self.table.chunks_from(changes.next).next() {
            Some(_) => Searched::Part,
            None => Searched::All,
        })
    }
}
