//! The format of a scenario file, before it is checked.
//!
//! [`super::Scenario::read`] makes a checked scenario of it. These types define the format. An unknown key is an error
//! with its line.

use super::quantities::{Length, Size};
use serde::Deserialize;
use serde::de::{Deserializer, Error};

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawScenario {
    pub(crate) name: String,
    pub(crate) title: String,
    #[serde(default)]
    pub(crate) source: String,
    /// The length of the run, if there are no phases.
    pub(crate) lasts: Option<Length>,
    /// Left out of figures at the beginning of each phase, unless an expectation overrides it.
    pub(crate) settling: Option<Length>,
    pub(crate) datastore: RawDatastore,
    #[serde(default)]
    pub(crate) host: Vec<RawHost>,
    #[serde(default)]
    pub(crate) group: Vec<RawGroup>,
    #[serde(default)]
    pub(crate) disk: Vec<RawDisk>,
    #[serde(default)]
    pub(crate) phase: Vec<RawPhase>,
    #[serde(default)]
    pub(crate) fault: Vec<RawFault>,
    /// What every phase is compared with, to find how many of them pass.
    #[serde(default)]
    pub(crate) quality: Vec<RawExpect>,
    /// Arrays and caches that are compared.
    #[serde(default)]
    pub(crate) configuration: Vec<RawConfiguration>,
    #[serde(default)]
    pub(crate) expect: Vec<RawExpect>,
}

/// An array with or without a cache in front of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawConfiguration {
    pub(crate) name: String,
    /// Default: the datastore's.
    pub(crate) array: Option<RawArray>,
    /// Flash for all cached disks together. Default: no cache.
    pub(crate) cache: Option<Size>,
    /// Each half of every host's mirrored flash. Default: `ssd`.
    pub(crate) flash: Option<RawArray>,
    /// How often the broker of each host gives disks other parts of the flash. Default: never.
    pub(crate) broker: Option<Length>,
    /// What the cache keeps: `auto` (the default), or a policy that is always used.
    pub(crate) policy: Option<String>,
    /// Disks are in a pool of their host, whose space they have up to so many percent once all of them are full. Default:
    /// no pools.
    pub(crate) pool: Option<u32>,
    /// How many of its arrays the pool of each host has. Default: all.
    pub(crate) groups: Option<u32>,
}

/// The datastore.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawDatastore {
    pub(crate) array: RawArray,
    /// `auto`, `off`, or a latency.
    pub(crate) threshold: Option<String>,
    /// `on`, `observe` or `off`.
    pub(crate) control: Option<String>,
    /// `flash`, `rotational` or `unknown`: the operator's setting, if any.
    pub(crate) kind: Option<String>,
    pub(crate) io_unit: Option<Size>,
    pub(crate) coordination: Option<String>,
    /// Whether control learns the cost of requests. Default: false, as in the daemon.
    pub(crate) learn: Option<bool>,
    /// The number of equal datastores, with an array each. Default: 1.
    pub(crate) arrays: Option<u32>,
}

/// A named array, or servers with a queue.
#[derive(Debug)]
pub(crate) enum RawArray {
    Named(String),
    Table(RawArrayTable),
}

/// The parameters of an array.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawArrayTable {
    /// Start with the array of this name.
    pub(crate) like: Option<String>,
    /// Reads out of 1,000 that its cache serves.
    pub(crate) read_hits: Option<u32>,
    /// The used capacity of each member. The arm moves within it.
    pub(crate) member_size: Option<Size>,
    /// The size of its write-back cache.
    pub(crate) cache: Option<Size>,
    /// Alternatively, this many servers with one queue...
    pub(crate) servers: Option<u32>,
    /// ... each with this service time for a read ...
    pub(crate) read: Option<Length>,
    /// ... and this one for a write (default: as for a read) ...
    pub(crate) write: Option<Length>,
    /// ... plus the transfer time at this many bytes per second.
    pub(crate) rate: Option<Size>,
    /// `fixed` or `exponential` service times.
    pub(crate) service: Option<String>,
}

/// A host, or several equal ones.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawHost {
    pub(crate) name: String,
    #[serde(default = "one")]
    pub(crate) count: u32,
    #[serde(default = "one")]
    pub(crate) threads: u32,
    /// When its daemon starts.
    pub(crate) joins: Option<Length>,
}

/// Disks with common limits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawGroup {
    pub(crate) name: String,
    pub(crate) limit: Option<RawLimit>,
    pub(crate) bandwidth: Option<RawBandwidth>,
}

/// A disk, or several equal ones on each host of a name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawDisk {
    pub(crate) name: String,
    pub(crate) host: String,
    #[serde(default = "one")]
    pub(crate) count: u32,
    pub(crate) thread: Option<u32>,
    pub(crate) size: Option<Size>,
    pub(crate) shares: Option<RawShares>,
    pub(crate) reservation: Option<u32>,
    pub(crate) limit: Option<RawLimit>,
    pub(crate) bandwidth: Option<RawBandwidth>,
    pub(crate) latency_target: Option<Length>,
    /// Its group.
    pub(crate) group: Option<String>,
    /// Whether its I/Os bypass control: external load.
    #[serde(default)]
    pub(crate) unmanaged: bool,
    /// Its layout, as `tidegate disk create --layout` takes it. Default: `plain`.
    pub(crate) layout: Option<String>,
    /// The arrays of its members, counted from 0. Default: one member on each; of a plain disk, the first.
    pub(crate) on: Option<Vec<u32>>,
    /// Whether it has a part of the cache, in a configuration with one.
    #[serde(default)]
    pub(crate) cached: bool,
    /// Random accesses are within so many bytes, and as popular as recorded ones. Default: anywhere, and equally popular.
    pub(crate) working_set: Option<Size>,
    /// Whether a pool has no space for it before it is written. Default: all of it has its place.
    #[serde(default)]
    pub(crate) fresh: bool,
    /// One more guest reads the whole disk in order, again and again, in requests of so many bytes.
    pub(crate) scan: Option<Size>,
    pub(crate) workload: RawWorkload,
}

/// Shares: a number, a name, or a list that is used cyclically.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum RawShares {
    Number(u32),
    Name(String),
    Turns(Vec<u32>),
}

/// A limit: a number, or with a peak and a burst.
#[derive(Clone, Debug)]
pub(crate) enum RawLimit {
    Sustained(u64),
    Burst(RawBurst),
}

/// A limit that may be exceeded for some time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawBurst {
    pub(crate) sustained: u64,
    pub(crate) peak: u64,
    pub(crate) burst: u64,
}

/// A bandwidth limit, in bytes per second.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawBandwidth {
    pub(crate) sustained: Size,
    pub(crate) peak: Option<Size>,
    pub(crate) burst: Option<Size>,
}

/// A guest's workload.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub(crate) enum RawWorkload {
    /// A shop's database: users think, then place an order.
    #[serde(rename_all = "kebab-case")]
    Shop {
        users: u32,
        think: Option<Length>,
        reads: Option<u32>,
        writes: Option<u32>,
        size: Option<Size>,
        depth: Option<u32>,
    },
    /// A constant number of outstanding I/Os.
    #[serde(rename_all = "kebab-case")]
    Access {
        outstanding: u32,
        size: Option<Size>,
        reads: Option<u32>,
        random: Option<u32>,
        think: Option<Length>,
        /// The number of writes between flushes. Default: no flushes.
        flush_every: Option<u32>,
    },
    /// A constant rate, independent of completions.
    #[serde(rename_all = "kebab-case")]
    Open {
        rate: u32,
        size: Option<Size>,
        reads: Option<u32>,
        random: Option<u32>,
    },
    /// A disk's recorded I/O, from the file of a `trace` filter.
    #[serde(rename_all = "kebab-case")]
    Trace {
        /// The file, relative to the working directory.
        file: String,
        /// `recorded` (the default) or `outstanding`.
        pace: Option<String>,
        /// The speed of recorded times. Default: 1.
        speed: Option<f64>,
    },
}

/// A phase of the run with constant settings.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawPhase {
    pub(crate) name: String,
    pub(crate) lasts: Length,
    /// Disks that are inactive in it.
    #[serde(default)]
    pub(crate) idle: Vec<String>,
    /// The array's speed, in thousandths.
    pub(crate) speed: Option<u32>,
    /// New settings from its beginning on. They stay in effect.
    #[serde(default)]
    pub(crate) set: Vec<RawSet>,
    /// Members that mirrors do without from its beginning on.
    #[serde(default)]
    pub(crate) remove: Vec<RawMember>,
    /// Members that mirrors get again at its beginning. They are rebuilt.
    #[serde(default)]
    pub(crate) add: Vec<RawMember>,
}

/// A member of a disk with a layout.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawMember {
    pub(crate) disk: String,
    /// Its place in the layout, counted from 0.
    pub(crate) member: u32,
}

/// A disk's new settings.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawSet {
    pub(crate) disk: String,
    pub(crate) shares: Option<RawShares>,
    pub(crate) reservation: Option<u32>,
    pub(crate) limit: Option<RawLimit>,
}

/// A fault.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawFault {
    pub(crate) kind: String,
    /// The affected hosts. Default: every host.
    pub(crate) host: Option<String>,
    pub(crate) at: Length,
    /// Default: until the end.
    pub(crate) lasts: Option<Length>,
    /// The probability in thousandths. Default: always.
    pub(crate) chance: Option<u32>,
    /// The delay, or the clock's jump.
    pub(crate) by: Option<Length>,
}

/// An expectation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawExpect {
    pub(crate) what: String,
    #[serde(default)]
    pub(crate) disks: Vec<String>,
    #[serde(default)]
    pub(crate) hosts: Vec<String>,
    pub(crate) phase: Option<String>,
    pub(crate) skip: Option<Length>,
    pub(crate) window: Option<Length>,
    pub(crate) within: Option<f64>,
    pub(crate) percentile: Option<f64>,
    pub(crate) of: Option<f64>,
    /// The array of the figure, counted from 0.
    pub(crate) array: Option<u32>,
    pub(crate) policy: Option<String>,
    /// Default: the first one.
    pub(crate) configuration: Option<String>,
    pub(crate) against: Option<RawAgainst>,
    pub(crate) at_least: Option<f64>,
    pub(crate) at_most: Option<f64>,
    /// The number of seeds out of 100 that must be within the bounds.
    pub(crate) of_seeds: Option<u32>,
    pub(crate) source: String,
}

/// The reference of a ratio.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawAgainst {
    pub(crate) policy: Option<String>,
    pub(crate) configuration: Option<String>,
    pub(crate) phase: Option<String>,
    pub(crate) threshold: Option<String>,
    /// Run only these disks.
    pub(crate) alone: Option<Vec<String>>,
    /// Divide by the figure of these disks.
    pub(crate) disks: Option<Vec<String>>,
    pub(crate) hosts: Option<Vec<String>>,
}

// Written by hand, because the error of an untagged enum does not name the faulty key.
impl<'de> Deserialize<'de> for RawArray {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RawArray, D::Error> {
        match toml::Value::deserialize(from)? {
            toml::Value::String(name) => Ok(RawArray::Named(name)),
            table => RawArrayTable::deserialize(table)
                .map(RawArray::Table)
                .map_err(D::Error::custom),
        }
    }
}

impl<'de> Deserialize<'de> for RawLimit {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RawLimit, D::Error> {
        match toml::Value::deserialize(from)? {
            toml::Value::Integer(rate) => u64::try_from(rate)
                .map(RawLimit::Sustained)
                .map_err(D::Error::custom),
            table => RawBurst::deserialize(table)
                .map(RawLimit::Burst)
                .map_err(D::Error::custom),
        }
    }
}

fn one() -> u32 {
    1
}
