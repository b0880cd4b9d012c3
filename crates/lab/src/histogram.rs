//! Latencies in buckets whose width grows with the value: cheap to record, 1.6 % wide, mergeable.
//!
//! The clients record into one per queue; [`crate::tally`] merges them and asks for percentiles.
//!
//! # Always true
//! - Every value falls in exactly one bucket, and `percentile` answers within one bucket's width (tested).
//! # Units
//! - Nanoseconds.

/// Buckets per doubling. 64 makes a bucket at most 1/64 of its value wide.
const STEP_BITS: u32 = 6;
const STEPS: u64 = 1 << STEP_BITS;
/// Values of 2^40 ns (18 minutes) and more share the last bucket.
const TOP_BIT: u32 = 40;
const BUCKETS: usize = ((TOP_BIT - STEP_BITS + 1) as usize) * (1 << STEP_BITS);

/// Counts of latencies by size.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            total: 0,
        }
    }
}

impl Histogram {
    /// Counts one value.
    #[inline]
    pub fn record(&mut self, nanos: u64) {
        self.counts[bucket(nanos)] += 1;
        self.total += 1;
    }

    /// Adds what `other` counted.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.total = 0;
    }

    /// How many values were counted.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.total
    }

    /// Whether nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The value below or at which `percent` of the counted values lie; the middle of its bucket, 0 when empty.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> u64 {
        let mut left = rank(self.total, percent);
        for (index, count) in self.counts.iter().enumerate() {
            if *count >= left && *count > 0 {
                return middle(index);
            }
            left -= left.min(*count);
        }
        0
    }
}

/// Which of `total` sorted values, counted from 1, is the percentile (nearest rank).
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a rank lies between 1 and the total, far below 2^52"
)]
fn rank(total: u64, percent: f64) -> u64 {
    ((total as f64 * percent / 100.0).ceil() as u64).clamp(1, total.max(1))
}

#[inline]
fn bucket(value: u64) -> usize {
    let index = if value < STEPS {
        value
    } else {
        let bit = 63 - value.leading_zeros();
        let shift = bit - STEP_BITS;
        u64::from(shift + 1) * STEPS + ((value >> shift) - STEPS)
    };
    usize::try_from(index).map_or(BUCKETS - 1, |index| index.min(BUCKETS - 1))
}

fn middle(index: usize) -> u64 {
    let index = index as u64;
    if index < STEPS {
        return index;
    }
    let shift = index / STEPS - 1;
    let low = (index % STEPS + STEPS) << shift;
    low + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_ramp_are_within_a_bucket() {
        let mut histogram = Histogram::default();
        for value in 1..=100_000 {
            histogram.record(value);
        }
        for (percent, exact) in [
            (50.0, 50_000.0),
            (99.0, 99_000.0),
            (99.9, 99_900.0),
            (100.0, 1e5),
        ] {
            let got = histogram.percentile(percent) as f64;
            assert!(
                (got - exact).abs() / exact < 0.016,
                "{percent}: {got} for {exact}"
            );
        }
    }

    #[test]
    fn small_values_are_exact() {
        let mut histogram = Histogram::default();
        for value in [3, 5, 7] {
            histogram.record(value);
        }
        assert_eq!(histogram.percentile(50.0), 5);
        assert_eq!(histogram.percentile(1.0), 3);
        assert_eq!(histogram.percentile(100.0), 7);
    }

    #[test]
    fn nothing_counted_answers_zero() {
        assert_eq!(Histogram::default().percentile(99.0), 0);
    }

    #[test]
    fn huge_values_share_the_last_bucket() {
        let mut histogram = Histogram::default();
        histogram.record(u64::MAX);
        histogram.record(1 << TOP_BIT);
        assert_eq!(histogram.len(), 2);
        assert!(histogram.percentile(50.0) > 1 << (TOP_BIT - 1));
    }

    #[test]
    fn merging_adds_the_counts() {
        let (mut one, mut two) = (Histogram::default(), Histogram::default());
        one.record(10);
        two.record(30);
        two.record(30);
        one.merge(&two);
        assert_eq!(one.len(), 3);
        assert_eq!(one.percentile(99.0), 30);
        one.clear();
        assert!(one.is_empty());
    }

    #[test]
    fn every_value_lies_in_the_bucket_whose_middle_is_nearest() {
        for value in [0, 1, 63, 64, 65, 127, 128, 1000, 4095, 4096, 1_000_000] {
            let near = middle(bucket(value));
            assert!(near.abs_diff(value) <= value / 64, "{value} -> {near}");
        }
    }
}
