//! The miss-ratio curve of a disk: the part of its accesses that a cache of each size would miss.
//!
//! A [`Sampler`] sees each read and write of a disk, cached or not. It draws a few of the accesses at random and watches
//! their pages until the next access: the accesses in between are the reuse time. The distribution of reuse times gives
//! the miss ratio of an LRU cache of any size. [`Sampler::passes`] is on the path of each request, so it is small and all
//! that is inline: it counts, and looks whether the page may be watched.
//!
//! # Always true
//! - a sampler takes at most 64 KiB, all of it allocated at the first access: idle disks take none
//! - the same accesses give the same curve
//! - a curve falls or stays level as the size grows, and lies between 0 and 1
//!
//! # Picture
//! ```text
//!   access ──> count it ──> drawn, or page perhaps watched? ──no──> nothing
//!                               │ yes
//!                               v
//!   sampled.rs: watched.rs: accesses since the page was drawn ──> reuse.rs: histogram of times ──> curve
//! ```
//!
//! # Units
//! Bytes outside. Inside, pages of 64 KiB ([`PAGE`]), as the flash cache has. An access is one request on one page. Time
//! is counted in accesses.
//!
//! # Source
//! Hu and others, "Kinetic Modeling of Data Eviction in Cache", USENIX ATC 2016 (average eviction time).

use crate::request::Op;
use crate::units::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;

mod reuse;
mod sampled;
mod watched;

use sampled::Sampled;
use watched::MayWatch;

/// Bytes of a page.
pub const PAGE: u64 = 1 << PAGE_BITS;

const PAGE_BITS: u32 = 16;

/// The most pages of one request that count. Longer requests zero or discard; no front end reads or writes more at once.
const MOST_PAGES: u64 = 1024;

/// The most sizes in a curve.
const POINTS: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct Sampler {
    /// By operation: requests up to and including the next drawn one. They begin at one for reads and writes, and never
    /// end for others.
    left: [u64; Op::ALL.len()],
    /// Whether a page may be watched. Empty before the first access.
    may_watch: MayWatch,
    sampled: Option<Box<Sampled>>,
    seed: u32,
}

/// So many requests are not reached.
const NEVER: u64 = u64::MAX;

/// The seed of all samplers of the product. The error does not depend on it.
const SEED: u32 = 1;

/// A curve, and what it was made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Sizes of a cache in bytes, rising from 16 MiB, and the part of accesses that it would miss. The last size is that of
    /// all pages used; what it misses are first accesses. Empty if nothing was accessed.
    pub points: Vec<(u64, f64)>,
    /// When the first access came.
    pub since: Option<Time>,
    /// Accesses since then. They include faded ones.
    pub accesses: u64,
    /// Sampled accesses that the curve is made of.
    pub sampled: u64,
    /// Bytes of the pages in use, estimated.
    pub distinct_bytes: u64,
    /// The part of accesses that is drawn now.
    pub rate: f64,
    /// Whether it has seen enough.
    pub trust: Trust,
}

/// Whether a curve has seen enough to be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// It has.
    Enough,
    /// Nothing is sampled.
    Off,
    /// Too few accesses were sampled.
    FewAccesses,
    /// More than half of the accesses were the first of their page. The curve may still fall.
    MostlyFirst,
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

/// Fewer sampled accesses are too few. Origin: a ratio that 1,000 independent draws estimate is wrong by 0.03 at most, 19
/// times in 20.
const ENOUGH: u64 = 1_000;

impl Default for Sampler {
    fn default() -> Sampler {
        Sampler::new()
    }
}

impl Sampler {
    /// A sampler that has seen nothing, and has allocated nothing.
    pub fn new() -> Sampler {
        Sampler::seeded(SEED)
    }

    /// The same with other random numbers.
    pub fn seeded(seed: u32) -> Sampler {
        let mut sampler = Sampler::off();
        sampler.seed = seed;
        sampler.left[Op::Read.index()] = 1;
        sampler.left[Op::Write.index()] = 1;
        sampler
    }

    /// A sampler that samples nothing.
    pub fn off() -> Sampler {
        Sampler {
            left: [NEVER; Op::ALL.len()],
            may_watch: MayWatch::none(),
            sampled: None,
            seed: SEED,
        }
    }

    /// Counts a request. Returns whether it must be given to [`Sampler::sample`].
    #[inline(always)]
    pub fn passes(&mut self, op: Op, offset: u64, len: u64) -> bool {
        let left = &mut self.left[op.index()];
        *left -= 1;
        if *left == 0 {
            return true;
        }
        // A request of no bytes at the begin of a page ends in the page before: it takes the slow way too.
        let last = offset.wrapping_add(len).wrapping_sub(1);
        (last ^ offset) >= PAGE || self.may_watch.has(page(offset >> PAGE_BITS))
    }

    /// Takes in a request that is drawn, touches several pages, or whose page may be watched. Few requests come here.
    #[cold]
    #[inline(never)]
    pub fn sample(&mut self, now: Time, op: Op, offset: u64, len: u64) {
        let is_access = matches!(op, Op::Read | Op::Write) && len > 0;
        match &mut self.sampled {
            Some(sampled) if is_access => {
                let left = &mut self.left;
                if sampled.concerns(&self.may_watch, left, op.index(), offset, len) {
                    sampled.access(&mut self.may_watch, left, op.index(), offset, len);
                }
            }
            _ => self.sample_other(now, op, offset, len),
        }
    }

    /// Takes in the first access, or a request that is none.
    #[cold]
    #[inline(never)]
    fn sample_other(&mut self, now: Time, op: Op, offset: u64, len: u64) {
        let (left, may_watch) = (&mut self.left, &mut self.may_watch);
        match (op, &mut self.sampled) {
            (Op::Read | Op::Write, _) if len == 0 => left[op.index()] += 1,
            // Of what is zeroed or discarded, no cache has the pages any more.
            (Op::Discard | Op::WriteZeroes, Some(sampled)) => {
                sampled.forget(may_watch, offset, len);
            }
            (Op::Read | Op::Write, sampled) if left[op.index()] == 0 => {
                let sampled = sampled.insert(Box::new(Sampled::new(now, self.seed, may_watch)));
                sampled.access(may_watch, left, op.index(), offset, len);
            }
            _ => {}
        }
    }

    /// Counts a request, and samples it if it is drawn.
    pub fn access(&mut self, now: Time, op: Op, offset: u64, len: u64) {
        if self.passes(op, offset, len) {
            self.sample(now, op, offset, len);
        }
    }

    /// The curve of reads and writes.
    pub fn curve(&self) -> Curve {
        self.curve_of(Of::All)
    }

    /// The same without points if too few accesses were sampled: that costs nearly nothing.
    pub fn curve_if_known(&self) -> Curve {
        match &self.sampled {
            Some(sampled) if !sampled.is_enough() => sampled.without_points(&self.left),
            _ => self.curve(),
        }
    }

    /// The curve of some accesses.
    pub fn curve_of(&self, of: Of) -> Curve {
        match &self.sampled {
            Some(sampled) => sampled.curve_of(&self.left, of),
            None if self.left[0] > NEVER / 2 => Curve {
                trust: Trust::Off,
                ..Curve::empty()
            },
            None => Curve::empty(),
        }
    }

    /// Bytes that it takes, with all that it allocated.
    pub fn memory(&self) -> usize {
        let sampled = self.sampled.as_ref();
        size_of::<Sampler>()
            + self.may_watch.allocated()
            + sampled.map_or(0, |sampled| sampled.memory())
    }
}

impl Curve {
    /// The curve of a disk without accesses.
    pub fn empty() -> Curve {
        Curve {
            points: Vec::new(),
            since: None,
            accesses: 0,
            sampled: 0,
            distinct_bytes: 0,
            rate: 0.0,
            trust: Trust::FewAccesses,
        }
    }

    /// The part of accesses that a cache of so many bytes misses; `None` without accesses. Between two sizes, that of the
    /// smaller one. Below the first size nothing is known.
    pub fn miss(&self, bytes: u64) -> Option<f64> {
        let below = self.points.partition_point(|(size, _)| *size <= bytes);
        let place = below.checked_sub(1)?;
        self.points.get(place).map(|(_, miss)| *miss)
    }
}

/// The number of a page in 32 bits. Disks end far before 256 TiB.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "pages beyond 256 TiB do not exist"
)]
fn page(number: u64) -> u32 {
    number as u32
}

#[cfg(test)]
mod tests;
