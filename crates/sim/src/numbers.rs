//! Conversions between integers and fractions.
//!
//! Decisions never use them; only scenario values that are fractions, and reports.

use tidegate_core::units::Span;

/// A count as a fraction; exact below 2^53, which no run reaches.
pub(crate) fn float(n: u64) -> f64 {
    n as f64
}

/// A length as a fraction.
pub(crate) fn count(n: usize) -> f64 {
    n as f64
}

/// The nearest integer; zero for negative values and NaN.
#[expect(
    clippy::cast_possible_truncation,
    reason = "`as` saturates and converts NaN to zero, as intended"
)]
pub(crate) fn whole(x: f64) -> u64 {
    x.round() as u64
}

/// A number that indexes something in memory.
pub(crate) fn index(n: u64) -> usize {
    usize::try_from(n).expect("what is in memory can be indexed")
}

/// An index of a table as a small number.
pub(crate) fn small(n: usize) -> u32 {
    u32::try_from(n).expect("a scenario has far fewer than 2^32 of anything")
}

/// A fraction; zero of nothing.
pub(crate) fn part(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// The length of a bin.
pub const BIN: Span = Span::from_millis(100);
