//! The format of a scenario file, before it is checked.
//!
//! [`super::Scenario::read`] makes a checked scenario of it. What a file may say is what stands here; a word that is not
//! here is refused with its line.

use super::words::{Length, Size};
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
    /// How long it runs, where there are no phases.
    pub(crate) lasts: Option<Length>,
    /// Left out of figures at the beginning of each phase, unless an expectation says otherwise.
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
    #[serde(default)]
    pub(crate) expect: Vec<RawExpect>,
}

/// What is congested.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawDatastore {
    pub(crate) array: RawArray,
    /// `auto`, `off`, or a latency.
    pub(crate) threshold: Option<String>,
    /// `on`, `observe` or `off`.
    pub(crate) control: Option<String>,
    /// `flash`, `rotational` or `unknown`; what the operator said, or nobody.
    pub(crate) kind: Option<String>,
    pub(crate) io_unit: Option<Size>,
    pub(crate) coordination: Option<String>,
    /// Whether control learns what requests cost; as in the daemon it does not, if not said.
    pub(crate) learn: Option<bool>,
}

/// A named array, or servers with a queue.
#[derive(Debug)]
pub(crate) enum RawArray {
    Named(String),
    Table(RawArrayTable),
}

/// An array in figures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawArrayTable {
    /// Begin with the array of this name.
    pub(crate) like: Option<String>,
    /// Of 1,000 reads, how many its cache answers.
    pub(crate) read_hits: Option<u32>,
    /// How much of each member is used: the arm moves within it.
    pub(crate) member_size: Option<Size>,
    /// The size of its write-back cache.
    pub(crate) cache: Option<Size>,
    /// Or: so many servers with one queue...
    pub(crate) servers: Option<u32>,
    /// ... each of which needs so long for a read ...
    pub(crate) read: Option<Length>,
    /// ... or a write (as for a read, if not said) ...
    pub(crate) write: Option<Length>,
    /// ... and moves bytes at so much a second.
    pub(crate) rate: Option<Size>,
    /// `fixed` or `exponential` service times.
    pub(crate) service: Option<String>,
}

/// A host, or several alike.
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

/// Disks that have limits together.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawGroup {
    pub(crate) name: String,
    pub(crate) limit: Option<RawLimit>,
    pub(crate) bandwidth: Option<RawBandwidth>,
}

/// A disk, or several alike on each host of a name.
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
    /// The group that it belongs to.
    pub(crate) group: Option<String>,
    /// Its I/Os go past all control: somebody else's.
    #[serde(default)]
    pub(crate) unmanaged: bool,
    pub(crate) workload: RawWorkload,
}

/// Shares: a number, a name, or a list that is gone through in turn.
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

/// A limit that may be exceeded for a while.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawBurst {
    pub(crate) sustained: u64,
    pub(crate) peak: u64,
    pub(crate) burst: u64,
}

/// A bandwidth limit, in bytes a second.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawBandwidth {
    pub(crate) sustained: Size,
    pub(crate) peak: Option<Size>,
    pub(crate) burst: Option<Size>,
}

/// What a guest does.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub(crate) enum RawWorkload {
    /// A shop's database: users who think, then place an order.
    #[serde(rename_all = "kebab-case")]
    Shop {
        users: u32,
        think: Option<Length>,
        reads: Option<u32>,
        writes: Option<u32>,
        size: Option<Size>,
        depth: Option<u32>,
    },
    /// So many outstanding at any time.
    #[serde(rename_all = "kebab-case")]
    Access {
        outstanding: u32,
        size: Option<Size>,
        reads: Option<u32>,
        random: Option<u32>,
        think: Option<Length>,
        /// Makes what was written durable after so many writes; never, if not said.
        flush_every: Option<u32>,
    },
    /// So many a second, whatever happens to those before.
    #[serde(rename_all = "kebab-case")]
    Open {
        rate: u32,
        size: Option<Size>,
        reads: Option<u32>,
        random: Option<u32>,
    },
    /// What a disk was asked for once, from the file of a `trace` filter.
    #[serde(rename_all = "kebab-case")]
    Trace {
        /// Where from; relative to where the program runs.
        file: String,
        /// `recorded` (the times, if not said) or `outstanding`.
        pace: Option<String>,
        /// How fast recorded times pass; as they did, if not said.
        speed: Option<f64>,
    },
}

/// A stretch of the run in which nothing is changed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawPhase {
    pub(crate) name: String,
    pub(crate) lasts: Length,
    /// Disks that ask for nothing meanwhile.
    #[serde(default)]
    pub(crate) idle: Vec<String>,
    /// How fast the array works, in thousandths.
    pub(crate) speed: Option<u32>,
    /// What is set anew at its beginning, and stays so.
    #[serde(default)]
    pub(crate) set: Vec<RawSet>,
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

/// Something that goes wrong.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawFault {
    pub(crate) kind: String,
    /// Whom it befalls; every host, if not said.
    pub(crate) host: Option<String>,
    pub(crate) at: Length,
    /// Until the end, if not said.
    pub(crate) lasts: Option<Length>,
    /// How often, of 1,000 times; always, if not said.
    pub(crate) chance: Option<u32>,
    /// How much later, or how far the clock jumps.
    pub(crate) by: Option<Length>,
}

/// What is to come out.
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
    pub(crate) policy: Option<String>,
    pub(crate) against: Option<RawAgainst>,
    pub(crate) at_least: Option<f64>,
    pub(crate) at_most: Option<f64>,
    /// In so many of 100 seeds.
    pub(crate) of_seeds: Option<u32>,
    pub(crate) source: String,
}

/// The other run, or stretch, that a figure is divided by.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RawAgainst {
    pub(crate) policy: Option<String>,
    pub(crate) phase: Option<String>,
    pub(crate) threshold: Option<String>,
    /// Only these disks are there.
    pub(crate) alone: Option<Vec<String>>,
    /// Divided by what these have.
    pub(crate) disks: Option<Vec<String>>,
    pub(crate) hosts: Option<Vec<String>>,
}

// By hand, because an untagged enum says only that nothing fits, and not what is wrong with what nearly does.
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
