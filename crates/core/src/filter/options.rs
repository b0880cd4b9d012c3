//! The parser of filter options: `NAME:key=value,word,...`.
//!
//! [`super::FilterSpec`] and the filters' own parsers use it, so that every filter's options look and fail alike. It
//! runs when a person or a configuration file speaks, never on the data path.

use crate::units::Span;
use alloc::string::String;
use core::fmt;

/// Why a filter's words cannot be understood, in a sentence that says what would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionsError(pub(super) String);

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for OptionsError {}

/// Shorthand for an [`OptionsError`] with a formatted sentence.
macro_rules! refuse {
    ($($sentence:tt)*) => { $crate::filter::options::OptionsError(alloc::format!($($sentence)*)) };
}
pub(super) use refuse;

/// The options in `text`, one after the other: a key, and its value where there is one.
pub(super) fn each(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    text.split(',')
        .map(str::trim)
        .filter(|option| !option.is_empty())
        .map(|option| match option.split_once('=') {
            Some((key, value)) => (key.trim(), Some(value.trim())),
            None => (option, None),
        })
}

/// The value that `key` must have.
pub(super) fn required<'t>(key: &str, value: Option<&'t str>) -> Result<&'t str, OptionsError> {
    value
        .filter(|value| !value.is_empty())
        .ok_or_else(|| refuse!("`{key}` needs a value: write {key}=..."))
}

/// A plain number.
pub(super) fn number(key: &str, value: Option<&str>) -> Result<u64, OptionsError> {
    let value = required(key, value)?;
    value
        .parse()
        .map_err(|_| refuse!("{key}={value} is not a whole number"))
}

/// A size as people write it: `4096`, `4k`, `1M`, `10GiB` (all powers of 1,024).
pub(super) fn size(key: &str, value: &str) -> Result<u64, OptionsError> {
    let wrong =
        || refuse!("{key}={value} is not a size: write bytes, or a number with K, M, G or T");
    let digits = value.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &value[digits.len()..] {
        "" | "B" => 0,
        "k" | "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return Err(wrong()),
    };
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    count.checked_mul(1 << shift).ok_or_else(wrong)
}

/// A length of time: a whole number with `ns`, `us`, `ms` or `s`.
pub(super) fn span(key: &str, value: Option<&str>) -> Result<Span, OptionsError> {
    let value = required(key, value)?;
    let wrong =
        || refuse!("{key}={value} is not a time: write a whole number with ns, us, ms or s");
    let digits = value.trim_end_matches(|c: char| !c.is_ascii_digit());
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    Ok(match &value[digits.len()..] {
        "ns" => Span::from_nanos(count),
        "us" => Span::from_micros(count),
        "ms" => Span::from_millis(count),
        "s" => Span::from_secs(count),
        _ => return Err(wrong()),
    })
}

/// A fraction between 0 and 1 with up to nine places, in billionths.
pub(super) fn fraction(key: &str, value: Option<&str>) -> Result<u32, OptionsError> {
    let value = required(key, value)?;
    let wrong = || refuse!("{key}={value} is not between 0 and 1: write, for example, 0.01");
    let (whole, places) = value.split_once('.').unwrap_or((value, ""));
    let mut billionths: u32 = match whole {
        "0" | "" if !(whole.is_empty() && places.is_empty()) => 0,
        "1" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    let mut worth: u32 = 100_000_000;
    for digit in places.chars() {
        billionths += digit.to_digit(10).ok_or_else(wrong)? * worth;
        worth /= 10;
    }
    if billionths > 1_000_000_000 {
        Err(wrong())
    } else {
        Ok(billionths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn sizes_times_and_fractions_read_as_people_write_them() {
        assert_eq!(size("from", "10GiB"), Ok(10 << 30));
        assert_eq!(size("from", "512"), Ok(512));
        assert_eq!(span("delay", Some("5ms")), Ok(Span::from_millis(5)));
        assert_eq!(fraction("probability", Some("0.01")), Ok(10_000_000));
        assert_eq!(fraction("probability", Some("1")), Ok(1_000_000_000));
        assert_eq!(fraction("probability", Some(".5")), Ok(500_000_000));
    }

    #[test]
    fn nonsense_is_refused_with_a_way_out() {
        for wrong in ["", "x", "10X", "-1", "99999999999999T", "é"] {
            let error = size("from", wrong).unwrap_err().to_string();
            assert!(error.contains("K, M, G or T"), "{error}");
        }
        for wrong in ["5", "ms", "5m", "1.5s", "5µs"] {
            assert!(span("delay", Some(wrong)).is_err(), "{wrong}");
        }
        for wrong in ["2", "1.1", "0.x", "", ".", "-0.1", "1e-3"] {
            assert!(fraction("probability", Some(wrong)).is_err(), "{wrong}");
        }
        assert!(
            span("delay", None)
                .unwrap_err()
                .to_string()
                .contains("delay=...")
        );
    }
}
