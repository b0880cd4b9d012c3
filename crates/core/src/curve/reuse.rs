//! A weighted histogram of reuse times, and the curve that it gives.
//!
//! A page leaves an LRU cache when as many other pages came in as the cache has. If `P(t)` is the part of accesses with a
//! reuse time beyond `t`, a cache of `P(0) + P(1) + ... + P(T - 1)` pages keeps a page for `T` accesses. It misses `P(T)`.
//!
//! # Always true
//! - a bucket is at most a sixteenth of its lower bound wide; up to 32 accesses, one access
//! - a point of the curve lies at the end of a bucket, so nothing is interpolated
//!
//! # Units
//! Accesses; pages.

use super::PAGE;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// Each doubling has sixteen buckets.
const SUB_BITS: u32 = 4;
/// Up to 2^32 accesses: the history fades before.
const BUCKETS: usize = ((32 - SUB_BITS as usize) << SUB_BITS) + (1 << SUB_BITS);

/// The smallest size of a curve, in pages: 16 MiB. Origin: flash is granted in pieces of 16 MiB.
const SMALLEST: f64 = 256.0;

/// See the module.
#[derive(Debug)]
pub(super) struct Reuse {
    /// Accesses in each bucket: reads, writes.
    buckets: Box<[[u32; 2]]>,
}

impl Reuse {
    pub(super) fn new() -> Reuse {
        Reuse {
            buckets: vec![[0; 2]; BUCKETS].into_boxed_slice(),
        }
    }

    pub(super) fn add(&mut self, time: u32, weight: u32, kind: usize) {
        let sum = &mut self.buckets[bucket(time)][kind];
        *sum = sum.saturating_add(weight);
    }

    pub(super) fn halve(&mut self) {
        for weight in self.buckets.iter_mut().flatten() {
            *weight /= 2;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buckets.iter().flatten().all(|weight| *weight == 0)
    }

    pub(super) fn allocated(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// The curve of the accesses of some kinds, if there were `seen` of each kind, and `pages` are in use. At most `most`
    /// points.
    pub(super) fn points(
        &self,
        kinds: &[usize],
        seen: [u64; 2],
        pages: u64,
        most: usize,
    ) -> Vec<(u64, f64)> {
        let all = seen[0] + seen[1];
        let wanted = kinds.iter().map(|&kind| seen[kind]).sum::<u64>();
        if wanted == 0 {
            return Vec::new();
        }
        let miss = |hits: u64, of: u64| (1.0 - hits as f64 / of as f64).clamp(0.0, 1.0);
        let used = self.buckets.iter().rposition(|both| *both != [0; 2]);
        let used = used.map_or(0, |used| used + 1);
        let (mut hits, mut wanted_hits) = (0, 0);
        let (mut size, mut stays, mut from) = (0.0, 1.0, 0);
        let mut points = Vec::new();
        for (at, both) in self.buckets[..used].iter().enumerate() {
            hits += u64::from(both[0]) + u64::from(both[1]);
            wanted_hits += kinds.iter().map(|&kind| u64::from(both[kind])).sum::<u64>();
            let (until, goes) = (last(at), miss(hits, all));
            // As if all times of the bucket were the longest. A size is too large rather than too small.
            size += (until - from) as f64 * stays;
            (stays, from) = (goes, until);
            points.push((size, miss(wanted_hits, wanted)));
        }
        thin(&points, pages as f64, most)
    }
}

/// The points from the smallest size on, at most `most`, the last at the size of all pages.
fn thin(points: &[(f64, f64)], pages: f64, most: usize) -> Vec<(u64, f64)> {
    let (largest, last) = points.last().copied().unwrap_or((0.0, 1.0));
    let end = largest.max(pages).max(1.0);
    let inner = points
        .iter()
        .filter(|(size, _)| *size >= SMALLEST && *size < end);
    let every = inner.clone().count().div_ceil(most - 1).max(1);
    let mut thinned = Vec::with_capacity(most);
    for (size, miss) in inner.step_by(every) {
        thinned.push((bytes(*size), *miss));
    }
    thinned.dedup_by_key(|(size, _)| *size);
    thinned.push((bytes(end), last));
    thinned
}

/// The bucket of a reuse time of at least one access.
fn bucket(time: u32) -> usize {
    let value = time.saturating_sub(1);
    let octave = (value >> SUB_BITS).checked_ilog2().map_or(0, |log| log + 1);
    let shift = octave.saturating_sub(1);
    let index = (shift << SUB_BITS) + (value >> shift);
    (index as usize).min(BUCKETS - 1)
}

/// The longest reuse time in a bucket.
fn last(bucket: usize) -> u64 {
    let shift = (bucket >> SUB_BITS).saturating_sub(1);
    let value = (bucket - (shift << SUB_BITS)) as u64;
    (value + 1) << shift
}

/// A size in bytes.
#[expect(
    clippy::cast_possible_truncation,
    reason = "bytes of a disk fit 64 bits, and sizes are not negative"
)]
fn bytes(pages: f64) -> u64 {
    (pages * PAGE as f64) as u64
}
