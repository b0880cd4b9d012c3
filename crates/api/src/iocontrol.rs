//! I/O control of a datastore: its settings, and the state that one host reports.
//!
//! The daemon's plan turns the settings into the engine's. The daemon reports a datastore's state in these types.
//!
//! # Units
//! Windows, demands and I/O in flight count reference I/Os (a 4 KiB random read). Rates of them end in `cost_per_s`.
//! Reservations, limits and disks' rates count units of I/O per second: one for each `io_unit_bytes` of a request.

use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use crate::name::Name;
use crate::units::Span;

/// The lowest threshold. Below it, latency measures the network and the CPU, not the datastore.
pub const THRESHOLD_MIN: Span = Span(200_000);

/// The highest threshold. Guests treat a slower disk as broken.
pub const THRESHOLD_MAX: Span = Span(100_000_000);

/// The least bytes that count as one unit.
pub const IO_UNIT_MIN: u32 = 4 << 10;

/// The most bytes that count as one unit.
pub const IO_UNIT_MAX: u32 = 128 << 10;

/// The default bytes of a unit, as in vSphere.
pub const IO_UNIT: u32 = 32 << 10;

/// What I/O control enforces on a datastore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IoControlMode {
    /// Limits always apply. Shares and reservations apply while the datastore is congested.
    #[default]
    On,
    /// Everything is computed and shown, and no I/O is delayed, not even by limits.
    Observe,
    /// Only limits apply.
    Off,
}

/// The congestion threshold: `auto`, a latency such as `12ms`, or `off`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CongestionThreshold {
    /// Measured while serving.
    #[default]
    Auto,
    /// This latency.
    At(Span),
    /// None: shares and reservations never apply.
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
                    .map_err(|error| format!("{error}; or use auto or off"))?;
                if (THRESHOLD_MIN..=THRESHOLD_MAX).contains(&at) {
                    Ok(CongestionThreshold::At(at))
                } else {
                    Err(format!(
                        "a congestion threshold of {at} is not from {THRESHOLD_MIN} to {THRESHOLD_MAX}; or use auto or off"
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

/// A datastore's I/O control settings, as stored by this host. Where hosts share a directory, the latest change on any
/// of them applies to all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IoControl {
    /// What it enforces.
    #[serde(default)]
    pub mode: IoControlMode,
    /// The congestion threshold: `auto`, a latency such as `12ms`, or `off`.
    #[serde(default)]
    #[schema(value_type = String)]
    pub congestion_threshold: CongestionThreshold,
    /// Bytes of a request that count as one unit of limits and reservations.
    #[serde(default = "io_unit")]
    pub io_unit_bytes: u32,
    /// A directory through which the hosts of a datastore coordinate, if the datastore is not a directory itself; null:
    /// this host decides alone.
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

/// Changes to a datastore's I/O control. An absent field stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IoControlSet {
    /// What it enforces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<IoControlMode>,
    /// The congestion threshold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub congestion_threshold: Option<CongestionThreshold>,
    /// Bytes of a unit of limits and reservations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_unit_bytes: Option<u32>,
    /// The directory through which hosts coordinate; null: none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::disk::null_is_a_value"
    )]
    #[schema(value_type = Option<String>)]
    pub coordination: Option<Option<PathBuf>>,
}

/// A datastore's I/O control as seen by this host, while at least one of its disks is attached here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DatastoreControl {
    /// What it enforces: the latest setting of any host.
    pub mode: IoControlMode,
    /// The congestion threshold: the latest setting of any host.
    #[schema(value_type = String)]
    pub congestion_threshold: CongestionThreshold,
    /// Bytes of a unit of limits and reservations: the latest setting of any host.
    pub io_unit_bytes: u32,
    /// Whether it is engaged: shares and reservations apply.
    pub engaged: bool,
    /// Why it is engaged, or is not, as a sentence.
    pub why: String,
    /// The datastore's latency over all hosts, normalised to a 4 KiB I/O; 0: not measured.
    pub latency_us: f64,
    /// The current congestion threshold.
    pub threshold_us: f64,
    /// The window of all hosts together.
    pub window_all: f64,
    /// This host's share of it.
    pub window: f64,
    /// I/O in flight from all hosts.
    pub in_flight: f64,
    /// Throughput of all hosts.
    pub cost_per_s: f64,
    /// The highest measured throughput of the datastore; 0: not measured.
    pub peak_cost_per_s: f64,
    /// Whether that is the datastore's capability, and not only the load's.
    pub saturated: bool,
    /// The fraction of the reservations that is met, 0 to 1.
    pub reservations_met: f64,
    /// Whether there is load from outside our hosts.
    pub external_load: bool,
    /// Whether this host cannot read the other hosts' slots.
    pub alone: bool,
    /// Whether the other hosts cannot read this host's slot.
    pub mute: bool,
    /// Foreign or torn slots read since control began.
    pub unreadable_slots_total: u64,
    /// The directory through which hosts coordinate; null: this host decides alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub directory: Option<PathBuf>,
    /// This host's slot there, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u16>,
    /// Why hosts cannot coordinate there, if they cannot.
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
    /// Its identity: 32 hexadecimal digits, stored in its root.
    pub host: String,
    /// Its name; null: its version does not report one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether it is this host.
    pub here: bool,
    /// Seconds since its last report.
    pub silent_s: f64,
    /// Seconds of silence after which it counts as dead and the others get its share. The value follows from its
    /// reporting interval.
    #[serde(default)]
    pub lease_s: f64,
    /// Whether its report is overdue.
    pub suspect: bool,
    /// Whether it has engaged.
    pub engaged: bool,
    /// Its share of the window.
    pub window: f64,
    /// What it has in flight.
    pub in_flight: f64,
    /// Its latency.
    pub latency_us: f64,
    /// Its throughput.
    pub cost_per_s: f64,
    /// Number of disks that it reports.
    pub disks: u64,
}

/// What one disk is entitled to on a datastore, and what it gets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskControl {
    /// Its name; null: this host knows no disk of that identity.
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
    /// Its demand.
    pub demand: f64,
    /// Its share of the window. Meaningless while control is not engaged.
    pub window: f64,
    /// The IOPS that this share yields in the datastore's current state; 0: unknown.
    pub entitled_iops: u64,
    /// Its current IOPS; null: another host serves it and does not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub got_iops: Option<u64>,
    /// Whether it missed its reservation in the last second.
    pub unmet: bool,
    /// Whether this entry merges several disks of equal shares. A host with very many disks reports the smallest ones
    /// as one.
    pub merged: bool,
}

/// The result of the last check of a disk's reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Admission {
    /// Whether it can be met.
    pub promise: Promise,
    /// Why, as a sentence.
    pub why: String,
}

/// Whether a reservation can be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Promise {
    /// Measurements show that the datastore can meet it.
    Verified,
    /// The datastore was never saturated, so its capability is unknown.
    Unverified,
    /// All reservations together exceed the datastore's capability. They shrink in proportion.
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
    fn absent_settings_get_defaults() {
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
