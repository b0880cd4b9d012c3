//! The dirty ranges of an array's write-back cache, merged and ordered by address.
//!
//! [`crate::array`] inserts writes and removes ranges to destage them. Adjacent ranges are merged, so that small
//! sequential writes are destaged as whole rows, for which RAID 5 needs no reads. An overwrite costs nothing.
//!
//! # Always true
//! - Ranges neither overlap nor touch.
//! - `bytes` is the sum of their lengths.

use alloc::collections::BTreeMap;

/// The dirty ranges.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dirty {
    /// Start -> end.
    ranges: BTreeMap<u64, u64>,
    bytes: u64,
    /// The position of the next destage. It moves upwards and wraps around.
    cursor: u64,
}

impl Dirty {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn covers(&self, start: u64, end: u64) -> bool {
        self.ranges
            .range(..=start)
            .next_back()
            .is_some_and(|(_, &range_end)| range_end >= end)
    }

    pub(crate) fn insert(&mut self, mut start: u64, mut end: u64) {
        while let Some((&from, &to)) = self.ranges.range(..=end).next_back() {
            if to < start {
                break;
            }
            self.ranges.remove(&from);
            self.bytes -= to - from;
            (start, end) = (start.min(from), end.max(to));
        }
        self.ranges.insert(start, end);
        self.bytes += end - start;
    }

    /// Removes the next range to destage. It ends within its row.
    pub(crate) fn take(&mut self, row: u64) -> Option<(u64, u64)> {
        let next = self.ranges.range(self.cursor..).next();
        let (&start, &range_end) = next.or_else(|| self.ranges.first_key_value())?;
        let end = range_end.min((start / row + 1) * row);
        self.ranges.remove(&start);
        if end < range_end {
            self.ranges.insert(end, range_end);
        }
        self.bytes -= end - start;
        self.cursor = end;
        Some((start, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_and_overwritten_ranges_are_merged() {
        let mut dirty = Dirty::default();
        dirty.insert(0, 4);
        dirty.insert(8, 12);
        dirty.insert(4, 8);
        assert_eq!((dirty.ranges.len(), dirty.bytes()), (1, 12));
        dirty.insert(2, 10);
        assert_eq!(dirty.bytes(), 12);
        assert!(dirty.covers(0, 12) && !dirty.covers(0, 13) && !dirty.covers(12, 13));
    }

    #[test]
    fn ranges_are_destaged_upwards_one_row_at_a_time() {
        let mut dirty = Dirty::default();
        dirty.insert(5, 25);
        dirty.insert(40, 41);
        assert_eq!(dirty.take(10), Some((5, 10)));
        assert_eq!(dirty.take(10), Some((10, 20)));
        dirty.insert(0, 1);
        assert_eq!(dirty.take(10), Some((20, 25)));
        assert_eq!(dirty.take(10), Some((40, 41)));
        assert_eq!(dirty.take(10), Some((0, 1)));
        assert_eq!((dirty.take(10), dirty.bytes()), (None, 0));
    }
}
