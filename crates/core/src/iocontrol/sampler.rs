//! Samples the I/Os of a busy disk: about one in 32 is counted and weighted with the number of I/Os that it represents.
//!
//! An unlimited disk on an uncongested datastore does hundreds of thousands of I/Os a second. Counting each in the
//! scheduler would cost more than it gains. Each I/O thread samples its own disks, so nothing is shared.
//!
//! # Always true
//! - every read and write is represented by a sampled one, itself or a later one; at most 63 are lost when a disk stops
//!   or sampling ends
//! - counts are right on average for any load pattern, since gaps are random

use crate::request::Op;

/// A sample represents 1 to 2^6 I/Os, one in 32 on average. Origin: measurement (decisions/0013).
const GAP_BITS: u32 = 6;

/// The sampling state of one disk.
#[derive(Clone, Debug)]
pub(crate) struct IoSampler {
    /// Reads and writes up to and including the next sample; 0: every one is counted.
    left: u32,
    /// The value of `left` after the last sample.
    gap: u32,
    random: u32,
    /// The end offset of the last I/O.
    end: u64,
}

impl IoSampler {
    /// Counts every I/O.
    pub(crate) const fn all() -> IoSampler {
        IoSampler {
            left: 0,
            gap: 1,
            random: 1,
            end: u64::MAX,
        }
    }

    /// Turns sampling on or off.
    pub(crate) fn enable(&mut self, on: bool) {
        match (on, self.left) {
            (true, 0) => self.next_gap(),
            (true, _) => {}
            (false, _) => self.left = 0,
        }
    }

    /// Whether this I/O is not counted: a later sample represents it.
    #[inline(always)]
    pub(crate) fn skips(&mut self, op: Op, offset: u64, len: u64) -> bool {
        if self.left <= 1 || !matches!(op, Op::Read | Op::Write) {
            return false;
        }
        self.left -= 1;
        self.end = offset.wrapping_add(len);
        true
    }

    /// For a sample: how many I/Os it represents, and whether it begins where the one before it ended. `None` without
    /// sampling.
    pub(crate) fn sampled(&mut self, op: Op, offset: u64, len: u64) -> Option<(u16, bool)> {
        if self.left != 1 || !matches!(op, Op::Read | Op::Write) {
            return None;
        }
        let sequential = offset == self.end;
        self.end = offset.wrapping_add(len);
        let times = u16::try_from(self.gap).expect("a gap has few bits");
        self.next_gap();
        Some((times, sequential))
    }

    fn next_gap(&mut self) {
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

    /// Samples a series of sequential 4 KiB reads; returns the weights of the samples.
    fn draw(sampler: &mut IoSampler, ios: u64) -> (Vec<u64>, u64) {
        let (mut stands, mut skipped) = (Vec::new(), 0);
        for io in 0..ios {
            let (op, offset) = (Op::Read, io * 4_096);
            if sampler.skips(op, offset, 4_096) {
                skipped += 1;
            } else {
                let drawn = sampler.sampled(op, offset, 4_096);
                stands.push(drawn.map_or(1, |(times, sequential)| {
                    assert!(sequential || io == 0);
                    u64::from(times)
                }));
            }
        }
        (stands, skipped)
    }

    #[test]
    fn every_io_is_counted_without_sampling() {
        let mut sampler = IoSampler::all();
        assert_eq!(draw(&mut sampler, 1_000).1, 0);
        sampler.enable(true);
        assert!(draw(&mut sampler, 1_000).1 > 0);
        sampler.enable(false);
        let (stands, skipped) = draw(&mut sampler, 1_000);
        assert_eq!((stands, skipped), (vec![1; 1_000], 0));
    }

    #[test]
    fn a_sample_represents_the_ios_before_it() {
        let mut sampler = IoSampler::all();
        sampler.enable(true);
        let (stands, skipped) = draw(&mut sampler, 100_000);
        let counted = stands.len() as u64;
        assert_eq!(counted + skipped, 100_000);
        assert!((2_900..3_250).contains(&counted), "{counted}");
        let sum: u64 = stands.iter().sum();
        assert!((99_937..=100_000).contains(&sum), "{sum}");
        assert_eq!(stands.iter().max(), Some(&64));
        sampler.enable(true);
        assert!(draw(&mut sampler, 100).1 > 0, "it continues");
    }

    #[test]
    fn only_reads_and_writes_are_skipped() {
        let mut sampler = IoSampler::all();
        sampler.enable(true);
        for op in Op::ALL {
            let skipped = (0..100)
                .filter(|_| sampler.skips(op, 0, 512) || sampler.sampled(op, 0, 512).is_some());
            let may = matches!(op, Op::Read | Op::Write);
            assert_eq!(skipped.count(), if may { 100 } else { 0 }, "{op:?}");
        }
    }
}
