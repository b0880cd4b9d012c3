//! The coverage of a read: chunks may arrive in any order, each byte exactly once.
//!
//! Until it is filled, a read's buffer may contain another disk's data. A server that sends some bytes twice and
//! reports the read complete would leak them to the guest. This check detects that.
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
    /// Adds `len` received bytes from `from` on. False if one of them was received before.
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

    /// Whether the first `len` bytes were received.
    pub(super) fn is_whole(&self, len: u32) -> bool {
        self.ranges == [(0, len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_complete_after_its_chunks_in_any_order() {
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
    fn a_byte_received_twice_is_rejected() {
        let mut coverage = Coverage::default();
        assert!(coverage.add(4, 4));
        for (from, len) in [(4, 4), (0, 5), (7, 1), (5, 1), (0, 100), (u32::MAX, 2)] {
            assert!(!coverage.add(from, len), "{from}+{len}");
        }
        assert!(coverage.add(8, 1) && coverage.add(3, 1));
    }
}
