//! The miss-ratio curve of a disk: the part of its accesses that a cache of each size would miss.
//!
//! A [`Sampler`] sees each read and write of a disk, cached or not. It follows a few of the disk's pages and measures the
//! distance between two accesses of each: how many other pages came in between. An LRU cache of that many pages and one
//! more hits the second access. A page is followed if the hash of its number is below a threshold, so all accesses of a
//! page count or none. If too many pages are followed, the threshold falls. If few are still in use, it rises.
//!
//! # Always true
//! - a sampler takes at most 64 KiB, all of it allocated in [`Sampler::new`]
//! - the same accesses give the same curve
//! - a curve falls or stays level as the size grows, and lies between 0 and 1
//!
//! # Picture
//! ```text
//!   access ──> hash below the threshold? ──no──> count it
//!                   │ yes
//!                   v
//!              recency.rs: pages since the last access ──> distances.rs: weighted histogram ──> curve
//! ```
//!
//! # Units
//! Bytes outside. Inside, pages of 64 KiB ([`PAGE`]), as the flash cache has. An access is one request on one page.
//!
//! # Source
//! Waldspurger and others, "Efficient MRC Construction with SHARDS", FAST 2015: fixed size, with the adjustment of the
//! smallest distance.

use alloc::vec::Vec;

mod distances;
mod recency;

use distances::Distances;
use recency::Recency;

/// Bytes of a page.
pub const PAGE: u64 = 1 << PAGE_BITS;

const PAGE_BITS: u32 = 16;

/// Hashes that the threshold is compared with have so many bits: a rate of one in sixteen million is the smallest.
const HASH_BITS: u32 = 24;

/// The first threshold: one page in eight is followed. Origin: a followed access costs some hundred instructions, and the
/// others must stay cheap also on small disks. The curve of a disk with 20,000 used pages stays within the tested error.
const FIRST_THRESHOLD: u32 = 1 << (HASH_BITS - 3);

/// Half of the history fades after so many followed accesses, and pages without an access since the last time are
/// forgotten. Origin: it is twenty times the followed pages, so each in use has been accessed. With one page in eight
/// followed, a disk at a thousand accesses a second forgets half in nine minutes.
const FADE_AFTER: u32 = 1 << 16;

/// After the threshold has risen, so many followed accesses do not count. The pages that are followed from now on have to
/// be seen once before distances are right. Origin: five times the followed pages.
const WARM_UP: u32 = 1 << 14;

/// The most pages of one request that count. Longer requests zero or discard; no front end reads or writes more at once.
const MOST_PAGES: u64 = 1024;

/// The most sizes in a curve.
const POINTS: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct Sampler {
    /// Pages with a smaller hash are followed.
    threshold: u32,
    /// Followed accesses since the history last faded.
    since_fade: u32,
    /// Followed accesses that do not count yet.
    warm_up: u32,
    /// All accesses: reads, writes.
    accesses: [u64; 2],
    faded: [Faded; 2],
    recency: Recency,
    distances: [Distances; 2],
}

/// Accesses until the history last faded, and what still counts of them.
#[derive(Clone, Copy, Debug, Default)]
struct Faded {
    at: u64,
    rest: u64,
}

/// A curve, and what it was made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// Sizes of a cache in bytes, rising from 16 MiB, and the part of accesses that it would miss. The last size is that of
    /// all pages used; what it misses are first accesses. Empty if nothing was accessed.
    pub points: Vec<(u64, f64)>,
    /// Accesses since the sampler was made. They include faded ones.
    pub accesses: u64,
    /// Bytes of the pages in use, estimated.
    pub distinct_bytes: u64,
    /// The part of pages that is followed.
    pub rate: f64,
}

/// The accesses that a curve is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Reads and writes.
    All,
    /// Reads only. Writes still bring pages into the cache.
    Reads,
    /// Writes only.
    Writes,
}

impl Default for Sampler {
    fn default() -> Sampler {
        Sampler::new()
    }
}

impl Sampler {
    /// A sampler that has seen nothing. This allocates all that it will ever use.
    pub fn new() -> Sampler {
        Sampler {
            threshold: FIRST_THRESHOLD,
            since_fade: 0,
            warm_up: 0,
            accesses: [0; 2],
            faded: [Faded::default(); 2],
            recency: Recency::new(),
            distances: [Distances::new(), Distances::new()],
        }
    }

    /// Counts a read or write of `len` bytes at `offset`.
    #[inline]
    pub fn access(&mut self, offset: u64, len: u64, is_write: bool) {
        let page = offset >> PAGE_BITS;
        // A request of no bytes ends before it begins, and takes the slow way.
        if offset.wrapping_add(len).wrapping_sub(1) >> PAGE_BITS != page {
            return self.spanning(offset, len, is_write);
        }
        self.accesses[usize::from(is_write)] += 1;
        let hash = hash(page);
        if threshold_bits(hash) < self.threshold {
            self.followed(page, hash, is_write);
        }
    }

    /// An access of several pages, or of none.
    #[cold]
    fn spanning(&mut self, offset: u64, len: u64, is_write: bool) {
        if len == 0 {
            return;
        }
        let first = offset >> PAGE_BITS;
        let last = offset.saturating_add(len - 1) >> PAGE_BITS;
        for page in first..=last.min(first.saturating_add(MOST_PAGES - 1)) {
            self.accesses[usize::from(is_write)] += 1;
            let hash = hash(page);
            if threshold_bits(hash) < self.threshold {
                self.followed(page, hash, is_write);
            }
        }
    }

    #[cold]
    fn followed(&mut self, page: u64, hash: u64, is_write: bool) {
        // Disks end far before: this is 256 TiB.
        let Ok(page) = u32::try_from(page) else {
            return;
        };
        let weight = self.weight();
        let distance = self.recency.access(page, table_bits(hash));
        if self.warm_up > 0 {
            self.warm();
        } else {
            let distances = &mut self.distances[usize::from(is_write)];
            match distance {
                // Of all pages that came in between, this part was followed.
                Some(between) => {
                    distances.add(1 + ((u64::from(between) * weight) >> WEIGHT_BITS), weight);
                }
                None => distances.add_first(weight),
            }
        }
        while self.recency.is_full() {
            self.set_threshold(self.threshold - (self.threshold >> 3).max(1));
        }
        self.since_fade += 1;
        if self.since_fade >= FADE_AFTER {
            self.fade();
        }
    }

    /// Forgets the whole pages of a discarded range. No cache has them any more.
    pub fn discard(&mut self, offset: u64, len: u64) {
        let first = offset.div_ceil(PAGE);
        let end = offset.saturating_add(len) >> PAGE_BITS;
        if first < end {
            self.recency
                .retain(|page| !(first..end).contains(&u64::from(page)));
        }
    }

    /// The curve of reads and writes.
    pub fn curve(&self) -> Curve {
        self.curve_of(Of::All)
    }

    /// The curve of some accesses.
    pub fn curve_of(&self, of: Of) -> Curve {
        let kinds: &[usize] = match of {
            Of::All => &[0, 1],
            Of::Reads => &[0],
            Of::Writes => &[1],
        };
        let mut distances = Distances::new();
        let mut seen = 0;
        for &kind in kinds {
            distances.merge(&self.distances[kind]);
            seen += self.remembered(kind);
        }
        let rate = f64::from(self.threshold) / f64::from(1_u32 << HASH_BITS);
        let pages = (u64::from(self.recency.len()) * self.weight()) >> WEIGHT_BITS;
        Curve {
            points: distances.points(seen << WEIGHT_BITS, pages, POINTS),
            accesses: kinds.iter().map(|&kind| self.accesses[kind]).sum(),
            distinct_bytes: pages * PAGE,
            rate,
        }
    }

    /// Bytes that it takes, with all that it allocated.
    pub fn memory(&self) -> usize {
        size_of::<Sampler>()
            + self.recency.allocated()
            + self
                .distances
                .iter()
                .map(Distances::allocated)
                .sum::<usize>()
    }

    /// How many accesses a followed one stands for, with [`WEIGHT_BITS`] bits behind the point.
    fn weight(&self) -> u64 {
        (1 << (HASH_BITS + WEIGHT_BITS)) / u64::from(self.threshold)
    }

    /// Accesses of the faded history and after it.
    fn remembered(&self, kind: usize) -> u64 {
        let faded = self.faded[kind];
        faded.rest + (self.accesses[kind] - faded.at)
    }

    fn set_threshold(&mut self, threshold: u32) {
        self.threshold = threshold;
        self.recency
            .retain(|page| threshold_bits(hash(u64::from(page))) < threshold);
    }

    fn fade(&mut self) {
        self.since_fade = 0;
        for kind in 0..2 {
            self.forget_accesses(kind, self.remembered(kind) / 2);
            self.distances[kind].halve();
        }
        self.recency.forget_stale();
        let room = recency::MOST / 2 / self.recency.len().max(1);
        if room > 1 && self.threshold < FIRST_THRESHOLD {
            let raised = self.threshold.saturating_mul(u32::from(room));
            self.threshold = raised.min(FIRST_THRESHOLD);
            self.warm_up = WARM_UP;
        }
    }

    /// One more followed access of the warm-up. Accesses until its end do not count.
    fn warm(&mut self) {
        self.warm_up -= 1;
        for kind in 0..2 {
            self.forget_accesses(kind, self.faded[kind].rest);
        }
    }

    /// Of all accesses until now, only `rest` still count.
    fn forget_accesses(&mut self, kind: usize, rest: u64) {
        self.faded[kind] = Faded {
            at: self.accesses[kind],
            rest,
        };
    }
}

const WEIGHT_BITS: u32 = 8;

/// Two rounds of multiply and shift: pages that follow each other, or lie at equal distances, get unrelated hashes.
#[inline]
fn hash(page: u64) -> u64 {
    let once = page.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (once ^ (once >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

#[inline]
fn threshold_bits(hash: u64) -> u32 {
    const { assert!(HASH_BITS <= 32) };
    u32::try_from(hash >> (64 - HASH_BITS)).unwrap_or(u32::MAX)
}

/// Bits of the hash that the threshold does not look at.
fn table_bits(hash: u64) -> usize {
    usize::try_from((hash >> 20) & 0xffff).expect("sixteen bits fit")
}

#[cfg(test)]
mod tests;
