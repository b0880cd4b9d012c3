//! A histogram of delays with one writer, which other threads read.
//!
//! # Units
//! The first four buckets are 256 ns wide. From 1 us on each doubling has four buckets, so that a quantile is above the
//! true value by a quarter at most.

use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::units::Span;

/// The narrowest bucket is 2^8 ns: shorter delays are not worth a difference.
const UNIT_BITS: u32 = 8;
/// Four buckets for each doubling, up to 8 s; longer delays share the last one.
const BUCKETS: usize = 96;

/// See the module. Delays of zero are not recorded: they are those that the total has more.
#[derive(Debug)]
pub(super) struct Delays {
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Delays {
    fn default() -> Delays {
        Delays {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }
}

impl Delays {
    /// Records `times` delays of this length. Only one thread may call it.
    #[inline]
    pub(super) fn record(&self, delay: Span, times: u64) {
        let bucket = &self.buckets[place(delay.as_nanos())];
        bucket.store(bucket.load(Ordering::Relaxed) + times, Ordering::Relaxed);
    }

    /// Adds them to a histogram. Of `total` delays those that were not recorded were zero.
    pub(super) fn add_to(&self, total: u64, sum: &mut DelayHistogram) {
        let mut recorded = 0;
        for (sum, bucket) in sum.buckets.iter_mut().zip(&self.buckets) {
            let times = bucket.load(Ordering::Relaxed);
            *sum += times;
            recorded += times;
        }
        sum.buckets[0] += total.saturating_sub(recorded);
    }

    /// A copy. Of `total` delays those that were not recorded were zero.
    pub(super) fn read(&self, total: u64) -> DelayHistogram {
        let mut buckets = [0; BUCKETS];
        for (copy, bucket) in buckets.iter_mut().zip(&self.buckets) {
            *copy = bucket.load(Ordering::Relaxed);
        }
        let recorded: u64 = buckets.iter().sum();
        buckets[0] += total.saturating_sub(recorded);
        DelayHistogram { buckets }
    }
}

#[inline]
fn place(ns: u64) -> usize {
    let units = ns >> UNIT_BITS;
    if units < 4 {
        return units as usize;
    }
    let doubling = units.ilog2();
    let quarter = (units >> (doubling - 2)) & 3;
    ((doubling as usize - 1) * 4 + quarter as usize).min(BUCKETS - 1)
}

/// The first delay of a bucket, in nanoseconds.
fn begin(bucket: usize) -> u64 {
    if bucket < 4 {
        return (bucket as u64) << UNIT_BITS;
    }
    let (doubling, quarter) = (bucket / 4 + 1, bucket % 4);
    ((4 + quarter as u64) << (doubling - 2)) << UNIT_BITS
}

/// How long requests waited: their numbers, by delay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayHistogram {
    buckets: [u64; BUCKETS],
}

impl Default for DelayHistogram {
    fn default() -> DelayHistogram {
        DelayHistogram {
            buckets: [0; BUCKETS],
        }
    }
}

impl DelayHistogram {
    /// Forgets all delays.
    pub(super) fn clear(&mut self) {
        self.buckets.fill(0);
    }

    /// The number of delays.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The delay that `permyriad` of 10,000 requests do not exceed (9,900 is p99), at most a quarter too long; zero if
    /// there are none.
    pub fn quantile(&self, permyriad: u64) -> Span {
        let count = self.count();
        let rank = (count * permyriad.min(10_000)).div_ceil(10_000).max(1);
        let mut seen = 0;
        for (bucket, &times) in self.buckets.iter().enumerate() {
            seen += times;
            if seen >= rank {
                // The first bucket is that of delays of zero.
                return match bucket {
                    0 => Span::ZERO,
                    _ => Span::from_nanos(begin(bucket + 1) - 1),
                };
            }
        }
        Span::ZERO
    }

    /// All delays added up, as if each was in the middle of its bucket; those of the first bucket are zero.
    pub fn sum(&self) -> Span {
        let numbered = self.buckets.iter().enumerate().skip(1);
        let sums = numbered.filter(|(_, times)| **times > 0);
        let sums = sums.map(|(bucket, &times)| {
            let middle = (begin(bucket) + begin(bucket + 1)) / 2;
            middle.saturating_mul(times)
        });
        Span::from_nanos(sums.fold(0, u64::saturating_add))
    }

    /// The delays since an earlier reading of the same histogram.
    #[must_use]
    pub fn since(&self, before: &DelayHistogram) -> DelayHistogram {
        let mut buckets = self.buckets;
        for (now, before) in buckets.iter_mut().zip(&before.buckets) {
            *now = now.saturating_sub(*before);
        }
        DelayHistogram { buckets }
    }

    /// The sum and the 99th percentile of the delays since an earlier reading: [`since`](Self::since), [`sum`](Self::sum) and
    /// [`quantile`](Self::quantile) in one pass, for a reader of hundreds of histograms.
    pub(crate) fn news(&self, before: &DelayHistogram) -> (Span, Span) {
        let (mut count, mut sum, mut last) = (0, 0_u64, 0);
        for (bucket, (now, before)) in self.buckets.iter().zip(&before.buckets).enumerate() {
            let times = now.saturating_sub(*before);
            if times > 0 {
                count += times;
                last = bucket;
                let middle = match bucket {
                    0 => 0,
                    _ => (begin(bucket) + begin(bucket + 1)) / 2,
                };
                sum = sum.saturating_add(middle.saturating_mul(times));
            }
        }
        // So many are longer than the percentile, at most.
        let longer = count - (count * 99).div_ceil(100);
        let mut seen = 0;
        while last > 0 {
            seen += self.buckets[last].saturating_sub(before.buckets[last]);
            if seen > longer {
                let end = Span::from_nanos(begin(last + 1) - 1);
                return (Span::from_nanos(sum), end);
            }
            last -= 1;
        }
        (Span::from_nanos(sum), Span::ZERO)
    }

    /// Adds those of another histogram.
    pub fn merge(&mut self, other: &DelayHistogram) {
        for (sum, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += more;
        }
    }

    /// The buckets with their ends, for metrics: the first delay beyond each, and its number.
    pub fn buckets(&self) -> impl Iterator<Item = (Span, u64)> + '_ {
        let numbered = self.buckets.iter().enumerate();
        numbered.map(|(bucket, &times)| (Span::from_nanos(begin(bucket + 1)), times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_delay_is_in_the_bucket_between_its_bounds() {
        let mut ns = 0;
        while ns < 8_000_000_000 {
            let bucket = place(ns);
            assert!(begin(bucket) <= ns && ns < begin(bucket + 1), "{ns} ns");
            ns += 1 + ns / 7;
        }
        assert_eq!(place(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_quantile_is_at_most_a_quarter_too_long() {
        let delays = Delays::default();
        for micros in 1..=1000 {
            delays.record(Span::from_micros(micros), 1);
        }
        let read = delays.read(1000);
        for (permyriad, exact) in [(5000, 500), (9000, 900), (9900, 990), (10_000, 1000)] {
            let found = read.quantile(permyriad).as_nanos();
            assert!(
                (exact * 1000..=exact * 1250).contains(&found),
                "{permyriad}: {found} ns"
            );
        }
    }

    #[test]
    fn news_are_the_sum_and_the_percentile_of_the_difference() {
        let delays = Delays::default();
        let mut random = 88_172_645_463_325_252_u64;
        let mut total = 0;
        let mut before = delays.read(total);
        for round in 0..2_000 {
            for _ in 0..round % 7 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let times = random % 150;
                delays.record(Span::from_nanos(random >> (20 + random % 44)), times);
                total += times + random % 3;
            }
            let now = delays.read(total);
            let since = now.since(&before);
            assert_eq!(now.news(&before), (since.sum(), since.quantile(9900)));
            before = now;
        }
    }

    #[test]
    fn delays_that_were_not_recorded_were_zero() {
        let delays = Delays::default();
        delays.record(Span::from_micros(300), 5);
        let read = delays.read(1000);
        assert_eq!(read.count(), 1000);
        assert_eq!(read.quantile(9900), Span::ZERO);
        assert!(read.quantile(9960) >= Span::from_micros(300));
        let more = Delays::default();
        more.record(Span::from_micros(300), 5);
        assert_eq!(read.since(&more.read(5)).count(), 995);
        assert_eq!(DelayHistogram::default().quantile(9900), Span::ZERO);
    }
}
