//! The datastore of a scenario: its array and its control.
//!
//! An array is a named model, a named model with some changed parameters, or servers with one queue (the array of
//! queueing theory).

use super::quantities::Length;
use super::raw::{RawArray, RawArrayTable, RawDatastore};
use super::{Coordination, Datastore, ScenarioError, within, wrong};
use tidegate_core::units::Span;
use tidegate_model::ArraySpec;
use tidegate_model::spec::{CacheSpec, Cost, MemberSpec, SsdSpec, Variation};

/// The congestion threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Threshold {
    /// Determined at the knee of the latency curve.
    Auto,
    /// This latency.
    Fixed(Span),
    /// Never.
    Off,
}

/// The mode of control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// It acts.
    On,
    /// It only computes.
    Observe,
    /// It is off.
    Off,
}

/// A datastore's configured kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Flash.
    Flash,
    /// Rotating disks.
    Rotational,
    /// Not configured.
    Unknown,
}

pub(super) fn datastore(raw: &RawDatastore) -> Result<Datastore, ScenarioError> {
    let io_unit = raw.io_unit.map_or(32 << 10, |size| size.0);
    let io_unit = u32::try_from(io_unit).or_else(|_| wrong("io-unit is 4KiB to 128KiB"))?;
    Ok(Datastore {
        array: any_array(&raw.array)?,
        threshold: match &raw.threshold {
            None => Threshold::Auto,
            Some(word) => threshold(word)?,
        },
        control: match raw.control.as_deref() {
            None | Some("on") => Control::On,
            Some("observe") => Control::Observe,
            Some("off") => Control::Off,
            Some(other) => return wrong(format!("control is on, observe or off, not `{other}`")),
        },
        kind: match raw.kind.as_deref() {
            None | Some("unknown") => Kind::Unknown,
            Some("flash") => Kind::Flash,
            Some("rotational") => Kind::Rotational,
            Some(other) => {
                return wrong(format!(
                    "kind is flash, rotational or unknown, not `{other}`"
                ));
            }
        },
        learn: raw.learn.unwrap_or(false),
        arrays: within("arrays", raw.arrays.unwrap_or(1), 1, 32)? as usize,
        coordination: match raw.coordination.as_deref() {
            None => None,
            Some("array") => Some(Coordination::Array),
            Some("apart") => Some(Coordination::Apart),
            Some(other) => return wrong(format!("coordination is array or apart, not `{other}`")),
        },
        io_unit: within("io-unit", io_unit, 4 << 10, 128 << 10)?,
    })
}

pub(super) fn threshold(word: &str) -> Result<Threshold, ScenarioError> {
    Ok(match word {
        "auto" => Threshold::Auto,
        "off" => Threshold::Off,
        _ => Threshold::Fixed(Length::parse(word).or_else(wrong)?.0),
    })
}

/// An array, however it is written.
pub(super) fn any_array(raw: &RawArray) -> Result<ArraySpec, ScenarioError> {
    match raw {
        RawArray::Named(name) => array_named(name),
        RawArray::Table(table) => array(table),
    }
}

pub(super) fn array_named(name: &str) -> Result<ArraySpec, ScenarioError> {
    ArraySpec::named(name).or_else(|error| wrong(error.to_string()))
}

fn array(raw: &RawArrayTable) -> Result<ArraySpec, ScenarioError> {
    let mut spec = match (&raw.like, raw.servers) {
        (Some(name), None) => array_named(name)?,
        (None, Some(servers)) => ArraySpec::single(MemberSpec::Ssd(queue(raw, servers)?)),
        _ => return wrong("an array needs `like` or `servers`"),
    };
    if let Some(size) = raw.cache {
        spec.cache = Some(CacheSpec::of_size(size.0));
    }
    if let Some(size) = raw.member_size {
        match &mut spec.member {
            MemberSpec::Disk(disk) => disk.capacity = size.0,
            MemberSpec::Ssd(ssd) => ssd.capacity = size.0,
        }
    }
    if let Some(hits) = raw.read_hits {
        let Some(cache) = &mut spec.cache else {
            return wrong("`read-hits` needs an array with a cache");
        };
        cache.read_hits_permille = hits;
    }
    spec.validate().or_else(|error| wrong(error.to_string()))?;
    Ok(spec)
}

/// Servers with one queue in front of them.
fn queue(raw: &RawArrayTable, servers: u32) -> Result<SsdSpec, ScenarioError> {
    let Some(read) = raw.read else {
        return wrong("`servers` need the service time of a `read`");
    };
    // An I/O is one piece up to this size, and bytes have no cost unless a rate is given.
    let (whole, no_cost) = (1 << 20, 1 << 50);
    let cost = |length: Length| Cost {
        base: length.0.as_nanos(),
        bytes_per_second: raw.rate.map_or(no_cost, |size| size.0),
    };
    Ok(SsdSpec {
        capacity: 4 << 40,
        channels: servers,
        page: whole,
        read: cost(read),
        write: cost(raw.write.unwrap_or(read)),
        flush: 1_000,
        variation: match raw.service.as_deref() {
            None | Some("exponential") => Variation::Exponential,
            Some("fixed") => Variation::Fixed,
            Some(other) => {
                return wrong(format!("service is fixed or exponential, not `{other}`"));
            }
        },
    })
}
