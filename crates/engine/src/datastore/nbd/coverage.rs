//! The coverage of a read: chunks may arrive in any order, each byte exactly once.
//!
//! The buffer of a read may hold bytes of another disk until it is filled. A server that sends some bytes twice and
//! calls the read done would hand those to the guest: this is what notices.
//!
//! # Always true
//! - ranges are sorted, do not touch and do not overlap

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    /// From and to, in bytes of the read.
    ranges: Vec<(u32, u32)>,
}

impl Coverage {
    /// `len` bytes from `from` on come. False when one of them came before.
    pub(super) fn add(&mut self, from: u32, len: u32) -> bool {
        let Some(to) = from.checked_add(len) else {
            return false;
        };
        let at = self.ranges.partition_point(|range| range.1 <= from);
        if self.ranges.get(at).is_some_and(|range| range.0 < to) {
            return false;
        }
        let joins_next = self.ranges.get(at).is_some_and(|range| range.0 == to);
        let joins_last = at > 0 && self.ranges[at - 1].1 == from;
        match (joins_last, joins_next) {
            (true, true) => {
                self.ranges[at - 1].1 = self.ranges[at].1;
                self.ranges.remove(at);
            }
            (true, false) => self.ranges[at - 1].1 = to,
            (false, true) => self.ranges[at].0 = from,
            (false, false) => self.ranges.insert(at, (from, to)),
        }
        true
    }

    /// Whether the first `len` bytes have come.
    pub(super) fn is_whole(&self, len: u32) -> bool {
        self.ranges == [(0, len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_whole_when_its_pieces_came_in_any_order() {
        let mut coverage = Coverage::default();
        for (from, len) in [(8, 4), (0, 4), (12, 4)] {
            assert!(coverage.add(from, len));
            assert!(!coverage.is_whole(16));
        }
        assert!(coverage.add(4, 4));
        assert!(coverage.is_whole(16));
        assert!(!coverage.is_whole(17));
    }

    #[test]
    fn a_byte_comes_once() {
        let mut coverage = Coverage::default();
        assert!(coverage.add(4, 4));
        for (from, len) in [(4, 4), (0, 5), (7, 1), (5, 1), (0, 100), (u32::MAX, 2)] {
            assert!(!coverage.add(from, len), "{from}+{len}");
        }
        assert!(coverage.add(8, 1) && coverage.add(3, 1));
    }
}
