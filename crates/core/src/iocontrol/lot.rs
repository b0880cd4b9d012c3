//! Which I/Os of a busy disk are counted: one in 32 or so, drawn by lot, which stands for those before it.
//!
//! A disk that nothing holds, on a datastore that is not congested, does hundreds of thousands of I/Os a second, and
//! counting each would cost more than is gained: the shard lets most of them past the scheduler without a word. Each
//! thread's own disks only, so that nothing is shared.
//!
//! # Always true
//! - every read and write is counted by one that is drawn, itself or a later one, but for the last few, 63
//!   at most, of a disk that stops, or of which every one counts again
//! - what is counted is right on average, however regular the load: gaps have no beat

use crate::request::Op;

/// From one that is counted to the next it is 1 to 2^6 I/Os.
const GAP_BITS: u32 = 6;

/// See the module. One for each disk.
#[derive(Clone, Debug)]
pub(crate) struct Lot {
    /// Reads and writes up to the next that is counted, that one included; 0: every one is.
    left: u32,
    /// What `left` was when it was drawn.
    gap: u32,
    random: u32,
    /// Where the last one ended.
    end: u64,
}

impl Lot {
    /// That of a disk of which every I/O counts.
    pub(crate) const fn every() -> Lot {
        Lot {
            left: 0,
            gap: 1,
            random: 1,
            end: u64::MAX,
        }
    }

    /// Whether not every I/O counts from now on.
    pub(crate) fn turn(&mut self, on: bool) {
        match (on, self.left) {
            (true, 0) => self.draw(),
            (true, _) => {}
            (false, _) => self.left = 0,
        }
    }

    /// Whether a later one stands for this I/O.
    #[inline(always)]
    pub(crate) fn skips(&mut self, op: Op, offset: u64, len: u64) -> bool {
        if self.left <= 1 || !matches!(op, Op::Read | Op::Write) {
            return false;
        }
        self.left -= 1;
        self.end = offset.wrapping_add(len);
        true
    }

    /// For how many this I/O stands that is not skipped, and whether it begins where the one before it ended; `None`: for
    /// itself, as every one.
    pub(crate) fn drawn(&mut self, op: Op, offset: u64, len: u64) -> Option<(u16, bool)> {
        if self.left != 1 || !matches!(op, Op::Read | Op::Write) {
            return None;
        }
        let sequential = offset == self.end;
        self.end = offset.wrapping_add(len);
        let times = u16::try_from(self.gap).expect("a gap has few bits");
        self.draw();
        Some((times, sequential))
    }

    fn draw(&mut self) {
        self.random = self
            .random
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        self.gap = 1 + (self.random >> (u32::BITS - GAP_BITS));
        self.left = self.gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    /// What becomes of so many reads of 4 KiB, one behind the other: for how many each stands that counts.
    fn draw(lot: &mut Lot, ios: u64) -> (Vec<u64>, u64) {
        let (mut stands, mut skipped) = (Vec::new(), 0);
        for io in 0..ios {
            let (op, offset) = (Op::Read, io * 4_096);
            if lot.skips(op, offset, 4_096) {
                skipped += 1;
            } else {
                let drawn = lot.drawn(op, offset, 4_096);
                stands.push(drawn.map_or(1, |(times, sequential)| {
                    assert!(sequential || io == 0);
                    u64::from(times)
                }));
            }
        }
        (stands, skipped)
    }

    #[test]
    fn every_io_counts_unless_told_otherwise() {
        let mut lot = Lot::every();
        assert_eq!(draw(&mut lot, 1_000).1, 0);
        lot.turn(true);
        assert!(draw(&mut lot, 1_000).1 > 0);
        lot.turn(false);
        let (stands, skipped) = draw(&mut lot, 1_000);
        assert_eq!((stands, skipped), (vec![1; 1_000], 0));
    }

    #[test]
    fn one_in_32_stands_for_those_before_it() {
        let mut lot = Lot::every();
        lot.turn(true);
        let (stands, skipped) = draw(&mut lot, 100_000);
        let counted = stands.len() as u64;
        assert_eq!(counted + skipped, 100_000);
        assert!((2_900..3_250).contains(&counted), "{counted}");
        let sum: u64 = stands.iter().sum();
        assert!((99_937..=100_000).contains(&sum), "{sum}");
        assert_eq!(stands.iter().max(), Some(&64));
        lot.turn(true);
        assert!(draw(&mut lot, 100).1 > 0, "it goes on");
    }

    #[test]
    fn only_reads_and_writes_are_skipped() {
        let mut lot = Lot::every();
        lot.turn(true);
        for op in Op::ALL {
            let skipped =
                (0..100).filter(|_| lot.skips(op, 0, 512) || lot.drawn(op, 0, 512).is_some());
            let may = matches!(op, Op::Read | Op::Write);
            assert_eq!(skipped.count(), if may { 100 } else { 0 }, "{op:?}");
        }
    }
}
