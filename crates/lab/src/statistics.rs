//! Medians, spreads, paired ratios and confidence intervals of trials.
//!
//! The runner measures A, B, A, B ...; the ratio of each block is taken first and the median of the ratios second.
//! A machine whose speed drifts between blocks does not show up as a difference between A and B.
//!
//! # Always true
//! - `low <= median <= high`, and the confidence interval is within `low` and `high`.
//! # Source
//! B. Efron, "Bootstrap methods: another look at the jackknife", 1979 (percentile method).

use serde::Serialize;

use tidegate_testing::stamp::mix;

/// A median with the extremes it was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The smallest value.
    pub low: f64,
    /// The middle one, or the mean of the middle two.
    pub median: f64,
    /// The largest value.
    pub high: f64,
    /// How many values there were.
    pub count: usize,
    /// The 95 % confidence interval of the median, by bootstrap.
    pub interval: [f64; 2],
}

impl Spread {
    /// The same in another unit.
    #[must_use]
    pub fn scaled(self, by: f64) -> Self {
        Self {
            low: self.low * by,
            median: self.median * by,
            high: self.high * by,
            count: self.count,
            interval: self.interval.map(|end| end * by),
        }
    }
}

/// Resamples of a bootstrap: the interval's ends are stable to a few percent of its width.
const RESAMPLES: usize = 500;

/// The median and extremes of `values`; none when there are none. Values that are not numbers are left out.
#[must_use]
pub fn spread(values: &[f64]) -> Option<Spread> {
    let mut sorted: Vec<f64> = values
        .iter()
        .copied()
        .filter(|value| value.is_finite())
        .collect();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (*sorted.first()?, *sorted.last()?);
    Some(Spread {
        low,
        median: median(&sorted),
        high,
        count: sorted.len(),
        interval: interval(&sorted),
    })
}

pub(crate) fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[half]
    } else {
        f64::midpoint(sorted[half - 1], sorted[half])
    }
}

/// The 95 % confidence interval of the median. The same values give the same interval.
fn interval(sorted: &[f64]) -> [f64; 2] {
    let count = sorted.len();
    if count < 3 {
        return [sorted[0], sorted[count - 1]];
    }
    let mut state = 0;
    let mut medians: Vec<f64> = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        let mut places: Vec<usize> = (0..count)
            .map(|_| {
                state += 1;
                usize::try_from(mix(state) >> 33).unwrap_or(0) % count
            })
            .collect();
        places.sort_unstable();
        let sample: Vec<f64> = places.into_iter().map(|place| sorted[place]).collect();
        medians.push(median(&sample));
    }
    medians.sort_by(f64::total_cmp);
    let tail = RESAMPLES / 40;
    [medians[tail], medians[RESAMPLES - 1 - tail]]
}

/// The spread of `ours[i] / theirs[i]`, block by block. Blocks that lack either side are left out.
#[must_use]
pub fn ratio(ours: &[f64], theirs: &[f64]) -> Option<Spread> {
    let ratios: Vec<f64> = ours
        .iter()
        .zip(theirs)
        .map(|(our, their)| our / their)
        .collect();
    spread(&ratios)
}

/// The nearest whole number; zero of negative ones.
#[expect(
    clippy::cast_possible_truncation,
    reason = "`as` saturates and makes zero of what is no number, as intended"
)]
pub(crate) fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// Of `wanted` blocks the least that a median may be taken of: half of them and no fewer than three; of fewer than three,
/// all.
#[must_use]
pub fn least_of(wanted: usize) -> usize {
    wanted.div_ceil(2).max(3).min(wanted)
}

/// Whether so many blocks of those wanted are enough to judge by.
#[must_use]
pub fn enough(got: usize, wanted: usize) -> bool {
    got > 0 && got >= least_of(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_extremes_and_the_middle_of_what_are_numbers() {
        for (values, expected) in [
            (&[9.0, 1.0, 4.0][..], Some((1.0, 4.0, 9.0, 3))),
            (&[4.0, 1.0, 2.0, 8.0], Some((1.0, 3.0, 8.0, 4))),
            (&[f64::NAN, 2.0], Some((2.0, 2.0, 2.0, 1))),
            (&[f64::NAN], None),
            (&[], None),
        ] {
            let got = spread(values).map(|got| (got.low, got.median, got.high, got.count));
            assert_eq!(got, expected, "{values:?}");
        }
    }

    #[test]
    fn the_confidence_interval_narrows_with_more_values() {
        let of = |count: u32| {
            let values: Vec<f64> = (0..count).map(|n| f64::from(n * 37 % 101)).collect();
            let spread = spread(&values).expect("values");
            let [from, to] = spread.interval;
            assert!(spread.low <= from && from <= spread.median && spread.median <= to);
            to - from
        };
        assert!(of(100) < of(9), "{} {}", of(100), of(9));
    }

    #[test]
    fn half_of_the_blocks_and_no_fewer_than_three_are_enough_and_all_where_fewer_are_wanted() {
        for (wanted, least) in [(1, 1), (2, 2), (3, 3), (5, 3), (7, 4), (21, 11)] {
            assert!(enough(least, wanted), "{least} of {wanted}");
            assert!(!enough(least - 1, wanted), "{} of {wanted}", least - 1);
        }
        assert!(!enough(0, 0));
    }

    #[test]
    fn a_ratio_is_taken_block_by_block_and_one_to_nothing_is_left_out() {
        // The machine runs at half speed in the second block: the ratio does not see it.
        let got = ratio(&[200.0, 100.0, 200.0], &[100.0, 50.0, 100.0]).expect("three blocks");
        assert_eq!((got.low, got.median, got.high), (2.0, 2.0, 2.0));
        assert_eq!(ratio(&[1.0], &[0.0]), None);
    }
}
