//! A weighted histogram of distances, and the curve that it gives.
//!
//! # Always true
//! - a bucket is at most an eighth of its lower bound wide; up to sixteen pages, one page
//! - a point of the curve lies at the end of a bucket, so nothing is interpolated
//!
//! # Units
//! Pages; weights as the sampler gives them.

use super::PAGE;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// Each doubling has eight buckets.
const SUB_BITS: u32 = 3;
/// Up to 2^32 pages, which is more than a disk has.
const BUCKETS: usize = ((32 - SUB_BITS as usize) << SUB_BITS) + (1 << SUB_BITS);

/// The smallest size of a curve, in pages: 16 MiB. Origin: flash is granted in pieces of 16 MiB. With one page in eight
/// followed, distances below a hundred pages are only known roughly.
const SMALLEST: u64 = 256;

/// See the module.
#[derive(Debug)]
pub(super) struct Distances {
    buckets: Box<[u64]>,
    /// Weight of first accesses: no cache hits them.
    first: u64,
}

impl Distances {
    pub(super) fn new() -> Distances {
        Distances {
            buckets: vec![0; BUCKETS].into_boxed_slice(),
            first: 0,
        }
    }

    /// An access that a cache of `pages` would hit, and a smaller one would miss.
    pub(super) fn add(&mut self, pages: u64, weight: u64) {
        self.buckets[bucket(pages)] += weight;
    }

    /// An access of a page that was not accessed before.
    pub(super) fn add_first(&mut self, weight: u64) {
        self.first += weight;
    }

    pub(super) fn halve(&mut self) {
        for weight in &mut self.buckets {
            *weight /= 2;
        }
        self.first /= 2;
    }

    pub(super) fn merge(&mut self, other: &Distances) {
        for (weight, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *weight += more;
        }
        self.first += other.first;
    }

    pub(super) fn allocated(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// The curve if all accesses together weigh `seen`, and `pages` are in use. At most `most` points.
    ///
    /// The sampled accesses weigh more or less than all together, as hot pages are among them or not. The difference
    /// counts as hits of the smallest distance: hot pages have it.
    pub(super) fn points(&self, seen: u64, pages: u64, most: usize) -> Vec<(u64, f64)> {
        if seen == 0 {
            return Vec::new();
        }
        let sampled = self.buckets.iter().sum::<u64>() + self.first;
        let mut hits = signed(seen) - signed(sampled);
        let miss = |hits: i64| (1.0 - hits.max(0) as f64 / seen as f64).clamp(0.0, 1.0);
        let used = self.buckets.iter().rposition(|weight| *weight > 0);
        let used = used.map_or(0, |used| used + 1);
        // All pages in use. Some that were in use may be forgotten: distances can be longer.
        let end = pages.max(used.checked_sub(2).map_or(1, |before| last(before) + 1));
        let inner = used.saturating_sub(bucket(SMALLEST));
        let every = inner.div_ceil(most - 1).max(1);
        let mut points = Vec::with_capacity(most);
        for (at, weight) in self.buckets[..used].iter().enumerate() {
            hits += signed(*weight);
            let wanted = last(at) >= SMALLEST && last(at) < end;
            if wanted && (at - bucket(SMALLEST)).is_multiple_of(every) {
                points.push((last(at) * PAGE, miss(hits)));
            }
        }
        points.push((end * PAGE, miss(hits)));
        points
    }
}

fn signed(weight: u64) -> i64 {
    i64::try_from(weight).unwrap_or(i64::MAX)
}

/// The bucket of a distance of at least one page.
fn bucket(pages: u64) -> usize {
    let value = pages.saturating_sub(1).min(u64::from(u32::MAX));
    let octave = (value >> SUB_BITS).checked_ilog2().map_or(0, |log| log + 1);
    let shift = octave.saturating_sub(1);
    let index = u64::from(shift) * (1 << SUB_BITS) + (value >> shift);
    usize::try_from(index)
        .unwrap_or(BUCKETS - 1)
        .min(BUCKETS - 1)
}

/// The longest distance in a bucket, in pages.
fn last(bucket: usize) -> u64 {
    let shift = (bucket >> SUB_BITS).saturating_sub(1);
    let value = (bucket - (shift << SUB_BITS)) as u64;
    ((value + 1) << shift).min(1 << 32)
}
