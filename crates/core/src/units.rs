//! Time and span as plain numbers of nanoseconds.
//!
//! Code in this crate receives the time as an argument and never reads a clock. The engine reads the monotonic clock,
//! the simulator its virtual one.
//!
//! # Units
//! Nanoseconds in 64 bits: 584 years, so sums saturate rather than wrap.

use core::fmt;
use core::ops::{Add, Sub};

/// A point in time, in nanoseconds since an arbitrary origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

/// A length of time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Time {
    /// The origin; also the value of a time stamp before it is set.
    pub const ZERO: Time = Time(0);
    /// Later than any event.
    pub const NEVER: Time = Time(u64::MAX);

    /// The moment `ns` nanoseconds after the origin.
    pub const fn from_nanos(ns: u64) -> Time {
        Time(ns)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this; zero if this is not later.
    pub const fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// The empty span.
    pub const ZERO: Span = Span(0);

    /// A span of `ns` nanoseconds.
    pub const fn from_nanos(ns: u64) -> Span {
        Span(ns)
    }

    /// A span of `us` microseconds.
    pub const fn from_micros(us: u64) -> Span {
        Span(us.saturating_mul(1_000))
    }

    /// A span of `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Span {
        Span(ms.saturating_mul(1_000_000))
    }

    /// A span of `s` seconds.
    pub const fn from_secs(s: u64) -> Span {
        Span(s.saturating_mul(1_000_000_000))
    }

    /// The span in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The span in whole microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }
}

impl Add<Span> for Time {
    type Output = Time;
    fn add(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl Sub<Time> for Time {
    type Output = Span;
    fn sub(self, earlier: Time) -> Span {
        self.since(earlier)
    }
}

impl Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Span {
    /// Three significant digits in the unit that reads best: `850ns`, `12.5us`, `3.20ms`, `1.00s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0..1_000 => return write!(f, "{}ns", self.0),
            1_000..1_000_000 => (1_000, "us"),
            1_000_000..1_000_000_000 => (1_000_000, "ms"),
            _ => (1_000_000_000, "s"),
        };
        let whole = self.0 / unit;
        let thousandths = self.0 % unit * 1_000 / unit;
        match whole {
            0..10 => write!(f, "{whole}.{:02}{name}", thousandths / 10),
            10..100 => write!(f, "{whole}.{:01}{name}", thousandths / 100),
            _ => write!(f, "{whole}{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_moment_is_never_a_negative_time_after_a_later_one() {
        assert_eq!(Time::from_nanos(3).since(Time::from_nanos(5)), Span::ZERO);
        assert_eq!(Time::NEVER + Span::from_secs(1), Time::NEVER);
    }

    #[test]
    fn a_span_reads_in_the_unit_that_fits() {
        assert_eq!(Span::from_nanos(850).to_string(), "850ns");
        assert_eq!(Span::from_nanos(12_540).to_string(), "12.5us");
        assert_eq!(Span::from_micros(3_200).to_string(), "3.20ms");
        assert_eq!(Span::from_secs(1).to_string(), "1.00s");
        assert_eq!(Span::from_millis(450).to_string(), "450ms");
    }
}
