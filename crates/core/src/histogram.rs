//! A latency histogram with logarithmic buckets: each quantile is exact within a sixteenth.
//!
//! The `stats` filter records into these; reports carry copies; the daemon turns them into Prometheus
//! buckets and JSON. Recording touches one bucket, a sum and a maximum, takes no branch, and allocates nothing.
//!
//! # Always true
//! - A bucket is at most a sixteenth of its lower bound wide, above 256 ns; below, 16 ns. So [`Histogram::quantile`]
//!   is never below the true value, and above it by at most a sixteenth (or 16 ns, whichever is more).
//! - `sum`, `max` and `count` are exact. Only values beyond [`Histogram::LONGEST`] share a bucket.
//! - `merge` of two equals recording both into one.
//!
//! # Picture
//! ```text
//! 16 ns each     16 ns each         32 ns each          64 ns each   ...
//! |0 ... 15|     |16 ... 31|        |32 ... 47|         |48 ... 63|        bucket
//! 0 ns           256 ns             512 ns              1024 ns
//! ```
//!
//! # Units
//! Nanoseconds.

use crate::units::Span;
use alloc::boxed::Box;
use alloc::vec;

/// Smaller differences are not recorded: reading the clock costs more.
const UNIT_BITS: u32 = 4;
/// Each doubling has 2^4 = 16 buckets: an error of at most a sixteenth, which no graph shows.
const SUB_BITS: u32 = 4;
/// Doublings, up to 2^37 ns. The first two are one unit wide.
const OCTAVES: u32 = 30;
const BUCKETS: usize = (OCTAVES << SUB_BITS) as usize;

/// A histogram of latencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    cells: Box<[u64; BUCKETS]>,
    sum: u64,
    max: u64,
}

/// A range of latencies and its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The shortest latency of the range.
    pub from: Span,
    /// The first latency beyond the range.
    pub to: Span,
    /// The number of recorded latencies.
    pub count: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

impl Histogram {
    /// Longer latencies (137 s) share the last bucket; guests time out long before.
    pub const LONGEST: Span = Span::from_nanos((1 << (OCTAVES + SUB_BITS - 1 + UNIT_BITS)) - 1);

    /// The number of buckets.
    pub const LEN: usize = BUCKETS;

    /// An empty histogram.
    pub fn new() -> Histogram {
        let cells = vec![0; BUCKETS].into_boxed_slice();
        let cells = cells
            .try_into()
            .expect("the slice was made with this length");
        Histogram {
            cells,
            sum: 0,
            max: 0,
        }
    }

    /// Records one latency.
    #[inline]
    pub fn record(&mut self, span: Span) {
        self.record_many(span, 1);
    }

    /// Records `times` latencies of this length, for a sample that represents others.
    #[inline]
    pub fn record_many(&mut self, span: Span, times: u64) {
        let ns = span.as_nanos();
        self.cells[place(ns)] += times;
        self.sum = self.sum.wrapping_add(ns.wrapping_mul(times));
        self.max = self.max.max(ns);
    }

    /// The number of recorded latencies.
    pub fn count(&self) -> u64 {
        self.cells.iter().sum()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.cells.iter().all(|&cell| cell == 0)
    }

    /// The sum of all latencies (for Prometheus' `_sum`).
    pub fn sum(&self) -> Span {
        Span::from_nanos(self.sum)
    }

    /// The mean; zero when empty.
    pub fn mean(&self) -> Span {
        Span::from_nanos(self.sum.checked_div(self.count()).unwrap_or(0))
    }

    /// The maximum; zero when empty.
    pub fn max(&self) -> Span {
        Span::from_nanos(self.max)
    }

    /// The latency that `permyriad` of 10,000 values do not exceed (5,000 is the median, 9,990 is p99.9); zero when
    /// empty.
    ///
    /// An upper bound within the error stated in the module's description, and never above the maximum.
    pub fn quantile(&self, permyriad: u32) -> Span {
        let rank = u128::from(self.count()) * u128::from(permyriad.min(10_000));
        let rank = rank.div_ceil(10_000).max(1);
        let mut below = 0;
        for (place, &cell) in self.cells.iter().enumerate() {
            below += u128::from(cell);
            if below >= rank {
                // The last bucket has no upper bound except the maximum.
                let last = if place == BUCKETS - 1 {
                    u64::MAX
                } else {
                    start(place + 1) - 1
                };
                return Span::from_nanos(last.min(self.max));
            }
        }
        Span::ZERO
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        for (cell, more) in self.cells.iter_mut().zip(other.cells.iter()) {
            *cell += more;
        }
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// The values recorded since `earlier`, an older copy. The maximum is that of the last bucket that grew.
    #[must_use]
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let mut grown = self.clone();
        for (cell, old) in grown.cells.iter_mut().zip(earlier.cells.iter()) {
            *cell = cell.saturating_sub(*old);
        }
        grown.sum = self.sum.wrapping_sub(earlier.sum);
        let last = grown.cells.iter().rposition(|&cell| cell > 0);
        grown.max = match last {
            None => 0,
            Some(place) if place == BUCKETS - 1 => self.max,
            Some(place) => self.max.min(start(place + 1) - 1),
        };
        grown
    }

    /// Resets all counts.
    pub fn clear(&mut self) {
        self.cells.fill(0);
        (self.sum, self.max) = (0, 0);
    }

    /// The buckets that are not empty, shortest first.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> {
        self.cells
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(place, &count)| {
                let to = if place == BUCKETS - 1 {
                    u64::MAX
                } else {
                    start(place + 1)
                };
                Bucket {
                    from: Span::from_nanos(start(place)),
                    to: Span::from_nanos(to),
                    count,
                }
            })
    }

    /// How many values certainly do not exceed `span`: those in all buckets that end at or before it.
    pub fn count_up_to(&self, span: Span) -> u64 {
        self.counts_up_to([span])[0]
    }

    /// The same for each of these ascending spans, for cumulative buckets.
    pub fn counts_up_to<const N: usize>(&self, spans: [Span; N]) -> [u64; N] {
        let (mut next, mut below) = (0, 0);
        spans.map(|span| {
            let end = match span.as_nanos().checked_add(1) {
                // The last bucket has no upper bound.
                Some(beyond) => place(beyond).min(BUCKETS - 1).max(next),
                None => BUCKETS,
            };
            below += self.cells[next..end].iter().sum::<u64>();
            next = end;
            below
        })
    }
}

/// The index of a latency's bucket.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "bounded by BUCKETS just before"
)]
const fn place(ns: u64) -> usize {
    let units = ns >> UNIT_BITS;
    let octave = (units | (1 << SUB_BITS)).ilog2() - SUB_BITS;
    let place = ((octave as u64) << SUB_BITS) + (units >> octave);
    if place < BUCKETS as u64 {
        place as usize
    } else {
        BUCKETS - 1
    }
}

/// The lower bound of a bucket.
const fn start(place: usize) -> u64 {
    let (octave, sub) = (place >> SUB_BITS, (place & ((1 << SUB_BITS) - 1)) as u64);
    match octave {
        0 => sub << UNIT_BITS,
        _ => ((1 << SUB_BITS) + sub) << (octave - 1) << UNIT_BITS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bucket_begins_where_the_one_before_ends() {
        for place_ in 0..BUCKETS {
            assert_eq!(place(start(place_)), place_);
            if place_ > 0 {
                assert_eq!(place(start(place_) - 1), place_ - 1);
            }
        }
    }

    #[test]
    fn the_last_bucket_counts_all_longer_latencies() {
        assert_eq!(place(Histogram::LONGEST.as_nanos()), BUCKETS - 1);
        assert_eq!(place(u64::MAX), BUCKETS - 1);
        assert!(Histogram::LONGEST >= Span::from_secs(137));
        let mut histogram = Histogram::new();
        histogram.record(Span::from_nanos(u64::MAX));
        assert_eq!(histogram.quantile(5_000), Span::from_nanos(u64::MAX));
        assert_eq!(
            histogram.buckets().next().map(|bucket| bucket.count),
            Some(1)
        );
    }

    #[test]
    fn an_empty_one_answers_zero() {
        let histogram = Histogram::new();
        assert!(histogram.is_empty());
        assert_eq!(
            (histogram.mean(), histogram.quantile(9_900)),
            (Span::ZERO, Span::ZERO)
        );
    }

    #[test]
    fn a_hundred_values_have_the_quantiles_one_expects() {
        let mut histogram = Histogram::new();
        (1..=100).for_each(|us| histogram.record(Span::from_micros(us)));
        assert_eq!(histogram.count(), 100);
        assert_eq!(histogram.mean(), Span::from_nanos(50_500));
        assert_eq!(histogram.max(), Span::from_micros(100));
        assert_eq!(histogram.quantile(10_000), Span::from_micros(100));
        let median = histogram.quantile(5_000).as_nanos();
        assert!(
            (50_000..=50_000 + 50_000 / 16).contains(&median),
            "{median}"
        );
        assert_eq!(histogram.count_up_to(Histogram::LONGEST), 100);
    }

    #[test]
    fn the_difference_counts_what_was_recorded_since_a_copy() {
        let mut histogram = Histogram::new();
        histogram.record(Span::from_millis(900));
        let earlier = histogram.clone();
        histogram.record(Span::from_micros(10));
        let since = histogram.since(&earlier);
        assert_eq!((since.count(), since.sum()), (1, Span::from_micros(10)));
        assert!(since.max() < Span::from_micros(11));
        histogram.clear();
        assert_eq!(histogram, Histogram::new());
    }
}
