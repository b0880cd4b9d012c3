//! Quantities with units in scenario files: `12ms`, `8KiB`.
//!
//! Serde calls them while it parses a file, so that an error has its line.

use crate::numbers::whole;
use serde::de::{Deserialize, Deserializer, Error};
use tidegate_core::units::Span;

/// A length of time: a number and `us`, `ms`, `s` or `min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Length(pub(crate) Span);

/// A number of bytes: a number and `B`, `KiB`, `MiB`, `GiB` or `TiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

const LENGTHS: [(&str, u64); 5] = [
    ("us", 1_000),
    ("ms", 1_000_000),
    ("min", 60_000_000_000),
    ("ns", 1),
    ("s", 1_000_000_000),
];

const SIZES: [(&str, u64); 5] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("B", 1),
];

impl Length {
    pub(crate) fn parse(word: &str) -> Result<Length, String> {
        scaled(word, &LENGTHS)
            .map(|ns| Length(Span::from_nanos(ns)))
            .ok_or_else(|| {
                format!("`{word}` is not a length of time: write `500us`, `12ms`, `4s` or `5min`")
            })
    }
}

impl Size {
    pub(crate) fn parse(word: &str) -> Result<Size, String> {
        scaled(word, &SIZES).map(Size).ok_or_else(|| {
            format!("`{word}` is not a size: write `512B`, `8KiB`, `64MiB` or `50GiB`")
        })
    }
}

fn scaled(word: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, unit) = units
        .iter()
        .find_map(|(unit, scale)| word.strip_suffix(unit).map(|number| (number, *scale)))?;
    let number: f64 = number.trim().parse().ok()?;
    let value = number * crate::numbers::float(unit);
    (number.is_finite() && (0.0..1e18).contains(&value)).then(|| whole(value))
}

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Length, D::Error> {
        Length::parse(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Size, D::Error> {
        Size::parse(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_sizes_are_parsed_with_their_units() {
        assert_eq!(Length::parse("12ms"), Ok(Length(Span::from_millis(12))));
        assert_eq!(Length::parse("1.5 s"), Ok(Length(Span::from_millis(1_500))));
        assert_eq!(Length::parse("2min"), Ok(Length(Span::from_secs(120))));
        assert_eq!(Size::parse("8KiB"), Ok(Size(8_192)));
        assert_eq!(Size::parse("512B"), Ok(Size(512)));
    }

    #[test]
    fn an_invalid_length_is_rejected_with_an_example() {
        for word in ["12", "ms", "-1s", "twelve s", "1e300s", "NaNs"] {
            let error = Length::parse(word).expect_err("an invalid length");
            assert!(error.contains(word) && error.contains("12ms"), "{error}");
        }
        assert!(Size::parse("8kb").is_err());
    }
}
