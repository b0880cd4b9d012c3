//! Medians, spreads and paired ratios of trials.
//!
//! The runner measures A, B, A, B ...; the ratio of each round is taken first and the median of the ratios second,
//! so that a core whose speed drifts between rounds does not show up as a difference between A and B.
//!
//! # Always true
//! - `low <= median <= high`.

use serde::Serialize;

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
}

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
    let half = sorted.len() / 2;
    let median = if sorted.len() % 2 == 1 {
        sorted[half]
    } else {
        f64::midpoint(sorted[half - 1], sorted[half])
    };
    Some(Spread {
        low,
        median,
        high,
        count: sorted.len(),
    })
}

/// The spread of `ours[i] / theirs[i]`, round by round. Rounds that lack either side are left out.
#[must_use]
pub fn ratio(ours: &[f64], theirs: &[f64]) -> Option<Spread> {
    let ratios: Vec<f64> = ours
        .iter()
        .zip(theirs)
        .map(|(our, their)| our / their)
        .collect();
    spread(&ratios)
}

/// Of `wanted` rounds the least that a median may be taken of: half of them and no fewer than three; of fewer than three,
/// all.
#[must_use]
pub fn least_of(wanted: usize) -> usize {
    wanted.div_ceil(2).max(3).min(wanted)
}

/// Whether so many rounds of those wanted are enough to judge by.
#[must_use]
pub fn enough(got: usize, wanted: usize) -> bool {
    got > 0 && got >= least_of(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_odd_count_is_the_middle_value() {
        let got = spread(&[9.0, 1.0, 4.0]).expect("three values");
        assert_eq!(
            (got.low, got.median, got.high, got.count),
            (1.0, 4.0, 9.0, 3)
        );
    }

    #[test]
    fn the_median_of_an_even_count_is_between_the_middle_two() {
        assert_eq!(
            spread(&[4.0, 1.0, 2.0, 8.0]).expect("four values").median,
            3.0
        );
    }

    #[test]
    fn half_of_the_rounds_and_no_fewer_than_three_are_enough_and_all_where_fewer_are_wanted() {
        for (wanted, least) in [(1, 1), (2, 2), (3, 3), (5, 3), (7, 4), (21, 11)] {
            assert!(enough(least, wanted), "{least} of {wanted}");
            assert!(!enough(least - 1, wanted), "{} of {wanted}", least - 1);
        }
        assert!(!enough(0, 0));
    }

    #[test]
    fn no_values_have_no_spread() {
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[f64::NAN]), None);
    }

    #[test]
    fn a_ratio_is_taken_round_by_round() {
        // The machine runs at half speed in the second round: the ratio does not see it.
        let got = ratio(&[200.0, 100.0, 200.0], &[100.0, 50.0, 100.0]).expect("three rounds");
        assert_eq!((got.low, got.median, got.high), (2.0, 2.0, 2.0));
    }

    #[test]
    fn a_ratio_to_nothing_is_left_out() {
        assert_eq!(ratio(&[1.0], &[0.0]), None);
    }
}
