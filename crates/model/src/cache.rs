//! The dirty ranges of an array's write-back cache, merged and ordered by address.
//!
//! [`crate::array`] puts writes in and takes ranges out to write them back. Neighbours grow together, so small
//! sequential writes leave as whole rows, which is what spares RAID 5 its reads; an overwrite costs nothing more.
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
    /// Where writing back goes on; it sweeps upwards, then begins again.
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

    /// Takes out the next range to write back, not beyond the end of its row.
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
    fn neighbours_and_overwrites_become_one_range() {
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
    fn ranges_leave_a_row_at_a_time_sweeping_upwards() {
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
