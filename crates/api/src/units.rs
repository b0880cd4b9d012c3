//! Quantities with units: `10G`, `512MiB`, `5000iops`, `200MiB/s`, `25ms`, `high`, `unlimited`.
//!
//! `parse` reads the text of flags and TOML files. `Display` writes it.
//!
//! # Always true
//! - What is displayed parses back to exactly the same value (property-tested).
//! - A value that is not a whole number of its smallest unit is rejected, never rounded: `1.5G` is a size, `0.3` is
//!   not.
//! - Parsing never panics and never overflows silently.
//!
//! # Units
//! `K M G T P E` and `KiB` ... `EiB` are powers of 1024, as in every disk tool. `kB MB` ... `EB` are powers of 1000.
//! Case is ignored, except in rates: `MB/s` is megabytes. `Mb/s` or `mbps`, which elsewhere mean megabits, are
//! rejected. `Mbit/s` is megabits.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};

/// Why a text is not a quantity. The message quotes the text and shows valid examples.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not {expected}: {why}")]
pub struct UnitError {
    text: String,
    expected: &'static str,
    why: &'static str,
}

impl UnitError {
    fn new(text: &str, expected: &'static str, why: &'static str) -> UnitError {
        // A hostile file may have a megabyte here. The message quotes only its start.
        UnitError {
            text: text.chars().take(64).collect(),
            expected,
            why,
        }
    }
}

const SIZE: &str = "a size such as 10G, 512MiB or 4096";
const RATE: &str = "a rate such as 200MiB/s, 1GB/s or 100Mbit/s";
const IOPS: &str = "a number of I/Os a second such as 5000iops or 5k";
const SPAN: &str = "a length of time such as 25ms, 50us or 2s";
const SHARES: &str = "shares: low, normal, high or a number from 100 to 10000";

/// Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// Bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(pub u64);

/// I/Os per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Iops(pub u64);

/// A length of time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

/// A disk's relative weight: `low`, `normal` and `high` are 500, 1000 and 2000, as vSphere has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shares(u32);

/// A ceiling, or none. `--limit unlimited` (or `-1`) is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Limit<T> {
    /// No ceiling.
    #[default]
    Unlimited,
    /// At most this much.
    At(T),
}

const BINARY: [&str; 7] = ["", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Bytes in one of the unit, given in lower case. None if there is no such unit.
fn bytes_in(unit: &str) -> Option<u64> {
    let power = |base: u64, letter: &str| -> Option<u64> {
        let nth = ["k", "m", "g", "t", "p", "e"]
            .iter()
            .position(|l| *l == letter)?;
        base.checked_pow(u32::try_from(nth).ok()? + 1)
    };
    match unit {
        "" | "b" | "bytes" => Some(1),
        _ => match (unit.strip_suffix("ib"), unit.strip_suffix('b')) {
            (Some(letter), _) => power(1024, letter),
            (None, Some(letter)) => power(1000, letter),
            (None, None) => power(1024, unit),
        },
    }
}

/// Splits `12.5 MiB` into its number and its unit.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim())
}

/// `number` times `scale`, exactly, or why that is impossible.
fn scaled(number: &str, scale: u64) -> Result<u64, &'static str> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.replace('_', "");
    let (whole, part) = (digits(whole), digits(part));
    let part = part.trim_end_matches('0');
    if whole.is_empty() {
        return Err("it must begin with a digit");
    }
    // 18 decimals keep the power of ten within 64 bits. No unit here is divisible further.
    if part.len() > 18 || part.contains('.') {
        return Err("it has too many decimals");
    }
    let whole: u64 = whole.parse().map_err(|_| "the number is too large")?;
    let places = u32::try_from(part.len()).map_err(|_| "it has too many decimals")?;
    let divisor = 10u128.pow(places);
    let part: u128 = if part.is_empty() {
        0
    } else {
        part.parse().map_err(|_| "bad decimals")?
    };
    let fraction = part * u128::from(scale);
    if !fraction.is_multiple_of(divisor) {
        return Err("it is not a whole number of the smallest unit");
    }
    let total = u128::from(whole) * u128::from(scale) + fraction / divisor;
    u64::try_from(total).map_err(|_| "the number is too large")
}

/// The unit of a rate (without its `/s`): bits, as a power of 1000 or 1024 of them, or bytes.
enum RateUnit {
    Bits(u64),
    Bytes(u64),
}

impl RateUnit {
    /// Reads `unit` in its original case: a small `b` means bits to some and bytes to others.
    fn read(unit: &str) -> Result<RateUnit, &'static str> {
        const UNKNOWN: &str = "unknown unit";
        let lower = unit.to_ascii_lowercase();
        let bits = lower.strip_suffix("bits").or(lower.strip_suffix("bit"));
        if let Some(prefix) = bits {
            let scale = match prefix {
                "" => Some(1),
                prefix => bytes_in(&format!("{prefix}b")),
            };
            return scale.map(RateUnit::Bits).ok_or(UNKNOWN);
        }
        let scale = bytes_in(&lower).ok_or(UNKNOWN)?;
        // Mebibits are not in use, so `mib` is not ambiguous.
        if unit.ends_with('b') && !lower.ends_with("ib") {
            return Err("a small b can mean bits: write MB/s for bytes, Mbit/s for bits");
        }
        Ok(RateUnit::Bytes(scale))
    }

    /// `number` of this unit, in bytes.
    fn bytes(self, number: &str) -> Result<u64, &'static str> {
        match self {
            RateUnit::Bytes(scale) => scaled(number, scale),
            RateUnit::Bits(scale) => match scaled(number, scale)? {
                bits if bits.is_multiple_of(8) => Ok(bits / 8),
                _ => Err("it is not a whole number of bytes"),
            },
        }
    }
}

/// The largest of `units` (scale, name), given from small to large, that divides `value`, and the quotient.
fn best<'a>(value: u64, units: &[(u64, &'a str)]) -> (u64, &'a str) {
    let fits = units
        .iter()
        .rev()
        .find(|(scale, _)| value != 0 && value.is_multiple_of(*scale));
    fits.map_or((value, units[0].1), |(scale, name)| (value / scale, name))
}

fn binary_units() -> [(u64, &'static str); 7] {
    let mut units = [(1u64, ""); 7];
    for (nth, unit) in units.iter_mut().enumerate() {
        *unit = (1 << (10 * nth), BINARY[nth]);
    }
    units
}

impl FromStr for Size {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Size, UnitError> {
        let (number, unit) = split(text);
        let scale = bytes_in(&unit.to_ascii_lowercase())
            .ok_or_else(|| UnitError::new(text, SIZE, "unknown unit; use K, M, G or T"))?;
        scaled(number, scale)
            .map(Size)
            .map_err(|why| UnitError::new(text, SIZE, why))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = best(self.0, &binary_units());
        f.pad(&format!("{number}{unit}"))
    }
}

impl FromStr for Rate {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Rate, UnitError> {
        let refused = |why| UnitError::new(text, RATE, why);
        let (number, unit) = split(text);
        let per_second = ["/s", "ps"].iter().find_map(|end| {
            let at = unit.len().checked_sub(end.len())?;
            let (unit, tail) = (unit.get(..at)?, unit.get(at..)?);
            tail.eq_ignore_ascii_case(end).then_some(unit)
        });
        if unit.to_ascii_lowercase().ends_with("iops") {
            return Err(refused("it is a number of I/Os; limit that with --limit"));
        }
        let unit = per_second.ok_or_else(|| refused("it must end in /s"))?;
        let unit = RateUnit::read(unit.trim()).map_err(refused)?;
        unit.bytes(number).map(Rate).map_err(refused)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = best(self.0, &binary_units());
        let unit = if unit.is_empty() { "B" } else { unit };
        f.pad(&format!("{number}{unit}/s"))
    }
}

impl FromStr for Iops {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Iops, UnitError> {
        let (number, unit) = split(text);
        let unit = unit.to_ascii_lowercase();
        let scale = match unit.strip_suffix("iops").unwrap_or(&unit).trim() {
            "" => 1,
            "k" => 1_000,
            "m" => 1_000_000,
            other if other.ends_with("/s") || other.ends_with("ps") => {
                let why = "it is a bandwidth; limit that with --limit-bandwidth, such as 100MB/s";
                return Err(UnitError::new(text, IOPS, why));
            }
            _ => return Err(UnitError::new(text, IOPS, "unknown unit; use iops, k or m")),
        };
        scaled(number, scale)
            .map(Iops)
            .map_err(|why| UnitError::new(text, IOPS, why))
    }
}

impl fmt::Display for Iops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}iops", self.0))
    }
}

const SPAN_UNITS: [(u64, &str); 6] = [
    (1, "ns"),
    (1_000, "us"),
    (1_000_000, "ms"),
    (1_000_000_000, "s"),
    (60_000_000_000, "min"),
    (3_600_000_000_000, "h"),
];

impl Span {
    /// Converts to the standard library's type.
    pub const fn to_duration(self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0)
    }
}

impl FromStr for Span {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Span, UnitError> {
        let (number, unit) = split(text);
        let unit = unit.to_ascii_lowercase();
        let unit = match unit.as_str() {
            "µs" => "us",
            "m" => "min",
            unit => unit,
        };
        let scale = match SPAN_UNITS.iter().find(|(_, name)| *name == unit) {
            Some((scale, _)) => *scale,
            // Zero is the same in every unit.
            None if unit.is_empty() && number == "0" => 1,
            None if unit.is_empty() => {
                return Err(UnitError::new(
                    text,
                    SPAN,
                    "the unit is missing; add ns, us, ms, s, min or h",
                ));
            }
            None => {
                return Err(UnitError::new(
                    text,
                    SPAN,
                    "unknown unit; use ns, us, ms, s, min or h",
                ));
            }
        };
        scaled(number, scale)
            .map(Span)
            .map_err(|why| UnitError::new(text, SPAN, why))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = best(self.0, &SPAN_UNITS);
        f.pad(&format!("{number}{unit}"))
    }
}

impl Shares {
    /// Half of normal.
    pub const LOW: Shares = Shares(500);
    /// A disk's default.
    pub const NORMAL: Shares = Shares(1000);
    /// Twice normal.
    pub const HIGH: Shares = Shares(2000);
    /// The heaviest weight. A thousand times normal is more than enough, and 64-bit virtual time cannot overflow.
    pub const MAX: u32 = 1_000_000;

    /// A weight from 1 to [`Shares::MAX`]. None for any other number.
    pub const fn new(weight: u32) -> Option<Shares> {
        if weight >= 1 && weight <= Shares::MAX {
            Some(Shares(weight))
        } else {
            None
        }
    }

    /// The weight.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Default for Shares {
    fn default() -> Shares {
        Shares::NORMAL
    }
}

impl FromStr for Shares {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Shares, UnitError> {
        match text.trim().to_ascii_lowercase().as_str() {
            "low" => Ok(Shares::LOW),
            "normal" => Ok(Shares::NORMAL),
            "high" => Ok(Shares::HIGH),
            number => {
                let weight = number
                    .parse()
                    .map_err(|_| UnitError::new(text, SHARES, "unknown word"))?;
                Shares::new(weight)
                    .ok_or_else(|| UnitError::new(text, SHARES, "it is out of range"))
            }
        }
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match *self {
            Shares::LOW => "low",
            Shares::NORMAL => "normal",
            Shares::HIGH => "high",
            Shares(weight) => return f.pad(&weight.to_string()),
        };
        f.pad(word)
    }
}

impl<T> Limit<T> {
    /// The ceiling as an option, as in JSON (`null` is no ceiling).
    pub fn to_option(self) -> Option<T> {
        match self {
            Limit::Unlimited => None,
            Limit::At(value) => Some(value),
        }
    }
}

impl<T> From<Option<T>> for Limit<T> {
    fn from(value: Option<T>) -> Limit<T> {
        value.map_or(Limit::Unlimited, Limit::At)
    }
}

impl<T: FromStr> FromStr for Limit<T> {
    type Err = T::Err;
    fn from_str(text: &str) -> Result<Limit<T>, T::Err> {
        match text.trim() {
            "unlimited" | "-1" => Ok(Limit::Unlimited),
            other => other.parse().map(Limit::At),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Limit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Unlimited => f.pad("unlimited"),
            Limit::At(value) => value.fmt(f),
        }
    }
}

/// A text, or the bare number that TOML allows where the unit is implied.
#[derive(serde::Deserialize)]
#[serde(untagged, expecting = "a number or a text with its unit")]
enum Raw {
    Number(u64),
    Text(String),
}

macro_rules! in_files {
    ($type:ident, $pattern:literal, $example:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<$type, D::Error> {
                let text = match Raw::deserialize(d)? {
                    Raw::Number(number) => number.to_string(),
                    Raw::Text(text) => text,
                };
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }
            fn inline_schema() -> bool {
                true
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": ["string", "integer"],
                    "pattern": $pattern,
                    "examples": [$example],
                })
            }
        }
    };
}

in_files!(
    Size,
    r"^\d[\d_.]*\s*([kKmMgGtTpPeE]?(i?[bB])?|bytes)$",
    "10GiB"
);
in_files!(
    Rate,
    r"^\d[\d_.]*\s*[kKmMgGtTpPeE]?(B|i[bB]|i?[bB]its?)?(/s|ps)$",
    "200MiB/s"
);
in_files!(
    Iops,
    r"^\d[\d_.]*\s*[kKmM]?([iI][oO][pP][sS])?$",
    "5000iops"
);
in_files!(Span, r"^\d[\d_.]*\s*(ns|us|µs|ms|s|min|h)$", "25ms");
in_files!(Shares, r"^(low|normal|high|\d+)$", "normal");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_written_either_way() {
        assert_eq!("10m".parse::<Span>(), "10min".parse());
        assert_eq!("10m".parse(), Ok(Span(600_000_000_000)));
    }
    use proptest::prelude::*;

    fn size(text: &str) -> u64 {
        text.parse::<Size>().unwrap().0
    }

    #[test]
    fn sizes_have_the_meaning_of_disk_tools() {
        assert_eq!(size("10G"), 10 << 30);
        assert_eq!(size("512MiB"), 512 << 20);
        assert_eq!(size("512 mib"), 512 << 20);
        assert_eq!(size("1.5G"), 3 << 29);
        assert_eq!(size("2GB"), 2_000_000_000);
        assert_eq!(size("4_096"), 4096);
        assert_eq!(size("7b"), 7);
    }

    #[test]
    fn other_units_are_accepted() {
        assert_eq!("200MiB/s".parse(), Ok(Rate(200 << 20)));
        assert_eq!("1GBps".parse(), Ok(Rate(1_000_000_000)));
        assert_eq!("5000iops".parse(), Ok(Iops(5000)));
        assert_eq!("5k".parse(), Ok(Iops(5000)));
        assert_eq!("25ms".parse(), Ok(Span(25_000_000)));
        assert_eq!("0".parse(), Ok(Span(0)));
        assert_eq!("1.5us".parse(), Ok(Span(1_500)));
        assert_eq!("high".parse(), Ok(Shares::HIGH));
        assert_eq!("-1".parse(), Ok(Limit::<Iops>::Unlimited));
        assert_eq!("2000iops".parse(), Ok(Limit::At(Iops(2000))));
    }

    #[test]
    fn a_rate_with_an_ambiguous_b_is_rejected_and_bits_are_accepted() {
        for text in [
            "100mbps", "100Mbps", "100Mb/s", "100mb/s", "1gbps", "64kb/s", "9600bps", "800b/s",
        ] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains("MB/s for bytes, Mbit/s for bits"), "{error}");
        }
        for (text, bytes) in [
            ("100Mbit/s", 12_500_000),
            ("100 mbits/s", 12_500_000),
            ("1Gbitps", 125_000_000),
            ("8bit/s", 1),
            ("1Mibit/s", 131_072),
            ("100MBps", 100_000_000),
            ("100MB/s", 100_000_000),
            ("100mib/s", 100 << 20),
            ("100m/s", 100 << 20),
            ("4096B/s", 4096),
            ("4096 /s", 4096),
        ] {
            assert_eq!(text.parse(), Ok(Rate(bytes)), "{text}");
        }
        assert!("1bit/s".parse::<Rate>().is_err());
        assert!("1xbit/s".parse::<Rate>().is_err());
        assert_eq!(
            "100mb".parse(),
            Ok(Size(100_000_000)),
            "a size in bits is rejected"
        );
    }

    #[test]
    fn an_inexact_value_is_rejected_not_rounded() {
        for text in [
            "0.3",
            "1.0001K",
            "",
            "G",
            "-5G",
            "10X",
            "99999999999999E",
            "1e9",
            ".5G",
            "1.2.3G",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        assert!("25".parse::<Span>().is_err());
        assert!("0.5ns".parse::<Span>().is_err());
        assert!("10MiB".parse::<Rate>().is_err());
        assert!("0".parse::<Shares>().is_err());
        assert!("1000001".parse::<Shares>().is_err());
    }

    #[test]
    fn an_error_quotes_the_text_and_shows_a_valid_one() {
        let error = "10X".parse::<Size>().unwrap_err().to_string();
        assert_eq!(
            error,
            "'10X' is not a size such as 10G, 512MiB or 4096: unknown unit; use K, M, G or T"
        );
    }

    proptest! {
        #[test]
        fn a_displayed_value_parses_back_unchanged(value: u64, shift in 0u32..64) {
            let value = value >> shift << (shift / 2);
            prop_assert_eq!(Size(value).to_string().parse(), Ok(Size(value)));
            prop_assert_eq!(Rate(value).to_string().parse(), Ok(Rate(value)));
            prop_assert_eq!(Iops(value).to_string().parse(), Ok(Iops(value)));
            prop_assert_eq!(Span(value).to_string().parse(), Ok(Span(value)));
            if let Some(shares) = u32::try_from(value).ok().and_then(Shares::new) {
                prop_assert_eq!(shares.to_string().parse(), Ok(shares));
            }
        }

        #[test]
        fn no_text_makes_a_parser_panic(text in ".{0,40}") {
            let _ = text.parse::<Size>();
            let _ = text.parse::<Rate>();
            let _ = text.parse::<Iops>();
            let _ = text.parse::<Span>();
            let _ = text.parse::<Shares>();
        }

        #[test]
        fn near_quantities_do_not_make_a_parser_panic(text in "[0-9._]{0,30} ?[a-zA-Zµ/]{0,5}") {
            let _ = text.parse::<Size>();
            let _ = text.parse::<Rate>();
            let _ = text.parse::<Span>();
        }
    }
}
