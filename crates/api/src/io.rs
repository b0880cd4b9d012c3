//! The words for a disk on its I/O thread: class, weight, and how its completions are coalesced.
//!
//! Descriptors, the configuration file, flags and REST use the same words. The daemon's plan turns them into the core's
//! types.
//!
//! # Always true
//! - a value reads back as it is written; one that is out of range is an error

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

/// The least and the most weight of a disk on its I/O thread.
pub const IO_WEIGHTS: std::ops::RangeInclusive<u32> = 1..=100;

/// The default weight.
pub const IO_WEIGHT: u32 = 10;

/// The least and the most vCPUs that can be declared for a virtual machine: KVM allows no more.
pub const VCPUS: std::ops::RangeInclusive<u32> = 1..=4096;

/// The most completions of a batch, and the longest time in microseconds that the first of them waits.
pub const MOST_COALESCED: (u32, u32) = (1024, 10_000);

/// How soon a disk's requests are taken where others compete for its I/O thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IoClass {
    /// In order.
    #[default]
    Normal,
    /// First in every second turn of the thread, within the disk's part of the time.
    Latency,
}

impl IoClass {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            IoClass::Normal => "normal",
            IoClass::Latency => "latency",
        }
    }

    pub(crate) fn is_normal(&self) -> bool {
        *self == IoClass::Normal
    }
}

impl FromStr for IoClass {
    type Err = String;
    fn from_str(text: &str) -> Result<IoClass, String> {
        match text {
            "normal" => Ok(IoClass::Normal),
            "latency" => Ok(IoClass::Latency),
            _ => Err(format!("'{text}' is neither normal nor latency")),
        }
    }
}

/// After how many completions, and when, a guest is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coalesce {
    /// Each time completions are there.
    Off,
    /// After so many completions, or once the first of them has waited so many microseconds.
    Static(u32, u32),
    /// As long as that pays; the I/O thread learns it for each queue.
    Adaptive,
}

impl fmt::Display for Coalesce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Coalesce::Off => f.write_str("off"),
            Coalesce::Static(frames, micros) => write!(f, "static:{frames},{micros}us"),
            Coalesce::Adaptive => f.write_str("adaptive"),
        }
    }
}

impl FromStr for Coalesce {
    type Err = String;
    fn from_str(text: &str) -> Result<Coalesce, String> {
        let (most, longest) = MOST_COALESCED;
        let wrong = || {
            format!(
                "'{text}' is neither off, adaptive nor static:COMPLETIONS,TIME, such as static:16,64us: 1 to {most} \
                 completions, and 0us to {longest}us"
            )
        };
        match text {
            "off" => return Ok(Coalesce::Off),
            "adaptive" => return Ok(Coalesce::Adaptive),
            _ => {}
        }
        let parts = text.strip_prefix("static:").and_then(|t| t.split_once(','));
        let (frames, time) = parts.ok_or_else(wrong)?;
        let number = |digits: &str| digits.parse::<u32>().map_err(|_| wrong());
        let micros = match (time.strip_suffix("us"), time.strip_suffix("ms")) {
            (Some(micros), _) => number(micros)?,
            (None, Some(millis)) => number(millis)?.checked_mul(1000).ok_or_else(wrong)?,
            (None, None) => return Err(wrong()),
        };
        let frames = number(frames)?;
        match (1..=most).contains(&frames) && micros <= longest {
            true => Ok(Coalesce::Static(frames, micros)),
            false => Err(wrong()),
        }
    }
}

impl Serialize for Coalesce {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Coalesce {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Coalesce, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl schemars::JsonSchema for Coalesce {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Coalesce".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "pattern": r"^(off|adaptive|static:\d+,\d+[mu]s)$",
            "examples": ["static:16,64us"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_reads_back_as_it_is_written() {
        for text in ["off", "adaptive", "static:1,0us", "static:1024,10000us"] {
            let setting: Coalesce = text.parse().unwrap();
            assert_eq!(setting.to_string(), text);
            let json = serde_json::to_string(&setting).unwrap();
            assert_eq!(serde_json::from_str::<Coalesce>(&json).unwrap(), setting);
        }
        for class in [IoClass::Normal, IoClass::Latency] {
            assert_eq!(class.as_str().parse(), Ok(class));
        }
    }

    #[test]
    fn a_time_may_be_in_milliseconds() {
        assert_eq!("static:16,10ms".parse(), Ok(Coalesce::Static(16, 10_000)));
        assert!("static:16,11ms".parse::<Coalesce>().is_err());
        assert!("static:16,4294968ms".parse::<Coalesce>().is_err());
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        for text in [
            "",
            "on",
            "static",
            "static:16",
            "static:0,8us",
            "static:1025,8us",
            "static:16,10001us",
            "static:16,64",
            "static:-1,8us",
        ] {
            assert!(text.parse::<Coalesce>().is_err(), "{text}");
        }
        assert!("fast".parse::<IoClass>().is_err());
    }
}
