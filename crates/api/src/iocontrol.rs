//! I/O control of a datastore: its settings, and the state that one host reports.
//!
//! The daemon's plan turns these words into the engine's; its report of a datastore comes back in them.
//!
//! # Units
//! Windows, demands and what is in flight count reference I/Os (a 4 KiB random read); rates of them end in `cost_per_s`.
//! Reservations, limits and what a disk gets count units of I/O a second: one for each `io_unit_bytes` of a request.

use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use crate::name::Name;
use crate::units::Span;

/// The least latency that a datastore may be held to: below it the network and the CPU are measured, not the datastore.
pub const THRESHOLD_MIN: Span = Span(200_000);

/// The greatest: guests take a disk slower than this for a broken one.
pub const THRESHOLD_MAX: Span = Span(100_000_000);

/// The least bytes that count as one unit.
pub const IO_UNIT_MIN: u32 = 4 << 10;

/// The most bytes that count as one unit.
pub const IO_UNIT_MAX: u32 = 128 << 10;

/// Bytes of a unit unless told otherwise, as vSphere has it.
pub const IO_UNIT: u32 = 32 << 10;

/// How far I/O control goes on a datastore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IoControlMode {
    /// Limits always hold; shares and reservations while the datastore is congested.
    #[default]
    On,
    /// Everything is computed and shown, and nobody is held back, by limits neither.
    Observe,
    /// Limits hold, and nothing else.
    Off,
}

/// Where a datastore counts as congested: `auto`, a latency such as `12ms`, or `off`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CongestionThreshold {
    /// Found while serving.
    #[default]
    Auto,
    /// This latency.
    At(Span),
    /// Nowhere: shares and reservations never hold.
    Off,
}

impl FromStr for CongestionThreshold {
    type Err = String;
    fn from_str(text: &str) -> Result<CongestionThreshold, String> {
        match text.trim() {
            "auto" => Ok(CongestionThreshold::Auto),
            "off" => Ok(CongestionThreshold::Off),
            latency => {
                let at: Span = latency
                    .parse()
                    .map_err(|error| format!("{error}; or say auto or off"))?;
                if (THRESHOLD_MIN..=THRESHOLD_MAX).contains(&at) {
                    Ok(CongestionThreshold::At(at))
                } else {
                    Err(format!(
                        "a congestion threshold of {at} is not from {THRESHOLD_MIN} to {THRESHOLD_MAX}; or say auto or off"
                    ))
                }
            }
        }
    }
}

impl std::fmt::Display for CongestionThreshold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CongestionThreshold::Auto => f.pad("auto"),
            CongestionThreshold::Off => f.pad("off"),
            CongestionThreshold::At(at) => at.fmt(f),
        }
    }
}

impl Serialize for CongestionThreshold {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CongestionThreshold {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<CongestionThreshold, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// How a datastore is controlled, as this host has it stored. Where hosts share a directory, what was set last on any of
/// them holds on all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IoControl {
    /// How far it goes.
    #[serde(default)]
    pub mode: IoControlMode,
    /// Where it engages: `auto`, a latency such as `12ms`, or `off`.
    #[serde(default)]
    #[schema(value_type = String)]
    pub congestion_threshold: CongestionThreshold,
    /// Bytes of a request that count as one unit of limits and reservations.
    #[serde(default = "io_unit")]
    pub io_unit_bytes: u32,
    /// A directory through which the hosts of a datastore find each other that has none of its own; null: this host
    /// decides by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub coordination: Option<PathBuf>,
}

impl Default for IoControl {
    fn default() -> IoControl {
        IoControl {
            mode: IoControlMode::default(),
            congestion_threshold: CongestionThreshold::default(),
            io_unit_bytes: IO_UNIT,
            coordination: None,
        }
    }
}

fn io_unit() -> u32 {
    IO_UNIT
}

/// Changes to how a datastore is controlled; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IoControlSet {
    /// How far it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<IoControlMode>,
    /// Where it engages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub congestion_threshold: Option<CongestionThreshold>,
    /// Bytes of a unit of limits and reservations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_unit_bytes: Option<u32>,
    /// The directory through which hosts find each other; null: none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::disk::null_is_a_value"
    )]
    #[schema(value_type = Option<String>)]
    pub coordination: Option<Option<PathBuf>>,
}

/// I/O control of a datastore as this host sees it now: while at least one of its disks is attached here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DatastoreControl {
    /// How far it goes: what was set last, on any host.
    pub mode: IoControlMode,
    /// Where it engages: what was set last, on any host.
    #[schema(value_type = String)]
    pub congestion_threshold: CongestionThreshold,
    /// Bytes of a unit of limits and reservations: what was set last, on any host.
    pub io_unit_bytes: u32,
    /// Whether it is engaged: shares and reservations hold.
    pub engaged: bool,
    /// Why it is engaged, or is not, as a sentence.
    pub why: String,
    /// The datastore's latency, all hosts together, as of a 4 KiB I/O; 0: nothing was measured.
    pub latency_us: f64,
    /// The latency above which it counts as congested now.
    pub threshold_us: f64,
    /// What all hosts together may have in flight.
    pub window_all: f64,
    /// This host's part of it.
    pub window: f64,
    /// What all hosts have in flight.
    pub in_flight: f64,
    /// What all hosts get through.
    pub cost_per_s: f64,
    /// The most that the datastore was seen to do; 0: nothing was seen.
    pub peak_cost_per_s: f64,
    /// Whether that is the datastore's most, and not only the load's.
    pub saturated: bool,
    /// What part of the reservations is met, 0 to 1.
    pub reservations_met: f64,
    /// Load that none of our hosts causes.
    pub external_load: bool,
    /// The other hosts cannot be heard.
    pub alone: bool,
    /// The other hosts cannot hear this one.
    pub mute: bool,
    /// Foreign or torn slots that were met since control began.
    pub unreadable_slots_total: u64,
    /// The directory through which hosts find each other; null: this host decides by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub directory: Option<PathBuf>,
    /// This host's slot there, once it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u16>,
    /// Why hosts cannot agree there, if they cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Hosts that use the datastore, this one first.
    pub hosts: Vec<HostControl>,
    /// The disks that they serve.
    pub shares: Vec<DiskControl>,
}

/// One host that uses a datastore.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostControl {
    /// Its identity: 32 hexadecimal digits, kept in its root.
    pub host: String,
    /// What people call it; null: it does not say, being of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether it is this one.
    pub here: bool,
    /// How long it has said nothing new.
    pub silent_s: f64,
    /// How long it may be silent before it counts as dead and its part goes to the others: by the pace at which it means
    /// to speak.
    #[serde(default)]
    pub lease_s: f64,
    /// Whether it should have spoken by now.
    pub suspect: bool,
    /// Whether it has engaged.
    pub engaged: bool,
    /// Its part of the window.
    pub window: f64,
    /// What it has in flight.
    pub in_flight: f64,
    /// Its latency.
    pub latency_us: f64,
    /// What it gets through.
    pub cost_per_s: f64,
    /// How many disks it tells of.
    pub disks: u64,
}

/// What one disk may get of a datastore, and gets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskControl {
    /// Its name; null: this host knows none of that identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Name>,
    /// Its identity among hosts: 16 hexadecimal digits.
    pub key: String,
    /// The host that serves it.
    pub host: String,
    /// Its shares.
    pub shares: u32,
    /// Its reservation; 0: none.
    pub reservation_iops: u64,
    /// Its limit; null: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_iops: Option<u64>,
    /// What it asks for.
    pub demand: f64,
    /// Its part of the window; of no meaning while control is not engaged.
    pub window: f64,
    /// What that part brings while the datastore is as it is; 0: not known.
    pub entitled_iops: u64,
    /// What it gets; null: another host serves it, and does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub got_iops: Option<u64>,
    /// Whether its reservation was not met in the last second.
    pub unmet: bool,
    /// Whether these are several disks of equal shares: a host with very many tells of the smallest as one.
    pub merged: bool,
}

/// What became of a disk's reservation when it was last asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Admission {
    /// How far it is promised.
    pub promise: Promise,
    /// Why, as a sentence.
    pub why: String,
}

/// How far a reservation is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Promise {
    /// The datastore was seen to be able to.
    Verified,
    /// It was never driven to its most: nobody knows yet.
    Unverified,
    /// All promises together are more than it can keep: they shrink in proportion.
    BestEffort,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_a_word_or_a_latency_in_range() {
        for (text, is) in [
            ("auto", CongestionThreshold::Auto),
            ("off", CongestionThreshold::Off),
            ("12ms", CongestionThreshold::At(Span(12_000_000))),
            ("200us", CongestionThreshold::At(THRESHOLD_MIN)),
        ] {
            assert_eq!(text.parse(), Ok(is));
            assert_eq!(is.to_string(), text);
        }
        for text in ["", "on", "12", "100us", "1s", "0"] {
            let error = text.parse::<CongestionThreshold>().unwrap_err();
            assert!(error.contains("auto"), "{error}");
        }
    }

    #[test]
    fn what_was_said_nothing_of_is_as_it_is_by_default() {
        let least: IoControl = serde_json::from_str("{}").unwrap();
        assert_eq!(least, IoControl::default());
        assert_eq!(least.io_unit_bytes, 32_768);
        let set: IoControlSet = serde_json::from_str(r#"{"coordination": null}"#).unwrap();
        assert_eq!(set.coordination, Some(None));
        assert_eq!(
            serde_json::to_string(&set).unwrap(),
            r#"{"coordination":null}"#
        );
    }
}
