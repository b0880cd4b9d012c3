//! Arithmetic that the control laws share; its results are identical on every machine.
//!
//! It uses only `+ - * /` and comparisons, which are exact to the last bit everywhere. A run of the simulator can
//! therefore be repeated on another machine. Logarithms and powers do not have this property.

use crate::units::Span;

/// Nanoseconds in a second.
pub(super) const SECOND: f64 = 1e9;

/// A span in nanoseconds, for calculations.
#[expect(
    clippy::cast_precision_loss,
    reason = "a span of more than 2^53 ns is a hundred days"
)]
pub(super) const fn nanos(span: Span) -> f64 {
    span.as_nanos() as f64
}

/// A whole number for calculations.
#[expect(
    clippy::cast_precision_loss,
    reason = "rates and counts, not identities"
)]
pub(super) const fn real(count: u64) -> f64 {
    count as f64
}

/// A calculated span; zero if it is NaN or negative.
pub(super) fn span(nanos: f64) -> Span {
    Span::from_nanos(whole(nanos))
}

/// The whole part, within the range of `u64`; NaN is 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion saturates, and that is wanted"
)]
pub(super) const fn whole(value: f64) -> u64 {
    value as u64
}

/// The whole part, within the range of `u32`; NaN is 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion saturates, and that is wanted"
)]
pub(super) const fn whole32(value: f64) -> u32 {
    value as u32
}

/// The whole part, within the range of `u16`; NaN is 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion saturates, and that is wanted"
)]
pub(super) const fn whole16(value: f64) -> u16 {
    value as u16
}

/// The rest of one after `elapsed` with this half-life: exact at whole half-lives, linear in between.
pub(super) fn left(elapsed: Span, half_life: Span) -> f64 {
    let (elapsed, half_life) = (elapsed.as_nanos(), half_life.as_nanos().max(1));
    let halvings = elapsed / half_life;
    if halvings >= 60 {
        return 0.0;
    }
    let between = real(elapsed % half_life) / real(half_life);
    (1.0 - between / 2.0) / real(1 << halvings)
}

/// Clamps a number from another host; NaN becomes the lower bound.
pub(super) fn sane(value: f64, low: f64, high: f64) -> f64 {
    if value.is_nan() {
        return low;
    }
    value.clamp(low, high)
}

/// The median; of an even count the mean of the two middle values. `None` if empty.
pub(super) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some((values[middle - 1] + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decay_halves_per_half_life_and_never_grows() {
        let half_life = Span::from_millis(100);
        assert_eq!(left(Span::ZERO, half_life), 1.0);
        assert_eq!(left(half_life, half_life), 0.5);
        assert_eq!(left(Span::from_millis(300), half_life), 0.125);
        assert_eq!(left(Span::from_secs(60), half_life), 0.0);
        let mut before = 1.0;
        for ms in 1..1_000 {
            let now = left(Span::from_millis(ms), half_life);
            assert!(now <= before && now > 0.0);
            before = now;
        }
    }

    #[test]
    fn a_foreign_number_is_brought_within_bounds() {
        assert_eq!(sane(f64::NAN, 1.0, 2.0), 1.0);
        assert_eq!(sane(f64::INFINITY, 1.0, 2.0), 2.0);
        assert_eq!(sane(-3.0, 1.0, 2.0), 1.0);
        assert_eq!(whole(f64::NAN), 0);
        assert_eq!(whole(-1.0), 0);
    }

    #[test]
    fn the_median_is_not_moved_by_one_liar() {
        assert_eq!(median(&mut [5.0, 1e9, 6.0]), Some(6.0));
        assert_eq!(median(&mut [1.0, 3.0]), Some(2.0));
        assert_eq!(median(&mut []), None);
    }
}
