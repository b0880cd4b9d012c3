//! Changed sub-blocks: where two generations of a pool's disk differ, for backups.

use super::runs;
use super::setup::Generation;
use super::{NONE, Pool};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

impl Pool {
    /// Which parts of the disk may differ between two of its generations ([`Layout::changed`](crate::layout::Layout::changed)).
    pub(super) fn changed_between(
        &self,
        from: Generation,
        to: Generation,
    ) -> Option<Vec<Range<u64>>> {
        if !self.is_open() {
            return None;
        }
        let [from, to] = [from, to].map(|number| self.forest.find(0, number));
        let (from, to) = (from?, to?);
        let [one, other] = [from, to].map(|it| self.forest.path(it).collect::<Vec<u16>>());
        let is_between = |generation: &u16| one.contains(generation) != other.contains(generation);
        let mut between: Vec<u16> = one.iter().chain(&other).copied().collect();
        between.retain(is_between);
        between.sort_unstable();
        let mut extents: BTreeMap<u32, u16> = BTreeMap::new();
        for (number, chunk) in self.table.chunks() {
            let records = self.table.records(number).map(|(_, record)| record);
            let marks = chunk.marks.iter().map(|mark| self.table.at(*mark));
            for record in records.chain(marks) {
                let is_wanted = record.extent != NONE && record.bits != 0;
                if is_wanted && between.binary_search(&record.generation).is_ok() {
                    *extents.entry(record.extent).or_default() |= record.bits;
                }
            }
        }
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (extent, changed) in extents {
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
        Some(ranges)
    }
}
