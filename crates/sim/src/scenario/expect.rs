//! The expectations of a scenario: figure, disks, phase, reference and bound.
//!
//! `judge.rs` computes the figures. This module names them and checks expectations.

use super::datastore::threshold;
use super::raw::{RawAgainst, RawExpect};
use super::{Scenario, ScenarioError, Threshold, named, within, wrong};
use crate::policy::Policy;
use tidegate_core::units::Span;

/// A figure and its bounds.
#[derive(Clone, Debug)]
pub struct Expect {
    /// The figure.
    pub what: Measure,
    /// The disks.
    pub disks: Vec<usize>,
    /// The hosts.
    pub hosts: Vec<usize>,
    /// The phase.
    pub phase: usize,
    /// The time left out at its beginning.
    pub skip: Span,
    /// The length of the figure's windows.
    pub window: Span,
    /// The tolerance in percent.
    pub within: f64,
    /// The percentile, if it is one.
    pub percentile: f64,
    /// The reference value, if it has one: a rate, a latency in milliseconds.
    pub of: f64,
    /// The array of the figure.
    pub array: usize,
    /// The run.
    pub run: Variant,
    /// The figure that it is divided by.
    pub against: Option<Against>,
    /// The lower bound.
    pub at_least: Option<f64>,
    /// The upper bound.
    pub at_most: Option<f64>,
    /// The number of seeds out of 100 that must be within the bounds.
    pub of_seeds: u32,
    /// The source of the bounds.
    pub source: String,
}

/// A variant of a run of a scenario. Figures are compared between variants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Variant {
    /// The policy.
    pub policy: Policy,
    /// Another threshold.
    pub threshold: Option<Threshold>,
    /// Only these disks.
    pub alone: Option<Vec<usize>>,
    /// The array and its cache, of those that the scenario compares.
    pub configuration: usize,
}

impl Variant {
    /// The scenario unchanged, under a policy.
    pub const fn of(policy: Policy) -> Variant {
        Variant {
            policy,
            threshold: None,
            alone: None,
            configuration: 0,
        }
    }
}

/// The reference figure of a ratio.
#[derive(Clone, Debug)]
pub struct Against {
    /// The run.
    pub run: Variant,
    /// The phase.
    pub phase: usize,
    /// The disks.
    pub disks: Vec<usize>,
    /// The hosts.
    pub hosts: Vec<usize>,
}

macro_rules! measures {
    ($($(#[doc = $text:literal])+ $name:ident = $word:literal),+ $(,)?) => {
        /// The figures of expectations.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Measure { $($(#[doc = $text])+ $name),+ }

        impl Measure {
            /// All of them.
            pub const ALL: &'static [Measure] = &[$(Measure::$name),+];

            /// Its name in a scenario.
            pub const fn word(self) -> &'static str {
                match self { $(Measure::$name => $word),+ }
            }
        }
    };
}

measures! {
    /// I/Os per second of all the disks together.
    Iops = "iops",
    /// MB per second.
    Bandwidth = "bandwidth",
    /// The disks' fraction of all I/Os, in percent.
    Share = "share",
    /// The disks' fraction of the array's working time, in percent.
    DeviceShare = "device-share",
    /// The largest deviation of a disk's cost from its fair share, in percent.
    ShareError = "share-error",
    /// The same per window: 99th percentile of windows and disks.
    ShareErrorWindows = "share-error-windows",
    /// The least cost per share divided by the greatest.
    Evenness = "evenness",
    /// Units per second, as counted for limits and reservations.
    Units = "units",
    /// The same in the worst window.
    UnitsLeast = "units-least",
    /// Units in the first window of the phase.
    UnitsFirst = "units-first",
    /// The deviation of units per second from `of`, in percent.
    UnitsError = "units-error",
    /// Guests' mean latency, in ms.
    Latency = "latency",
    /// A percentile of guests' latency, in ms.
    LatencyPercentile = "latency-percentile",
    /// The datastore's mean latency, in ms.
    DeviceLatency = "device-latency",
    /// Its deviation from `of`, in percent.
    DeviceLatencyError = "device-latency-error",
    /// Seconds until it stays at or below `of` for eight windows.
    DeviceLatencySettles = "device-latency-settles",
    /// Seconds until every disk's cost stays within `within` percent of its fair share for eight windows.
    Settles = "settles",
    /// The fewest I/Os of a window, in percent of the mean.
    Dip = "dip",
    /// The disks' cost in the first window, in percent of their fair share.
    Resumed = "resumed",
    /// The hosts' mean window, in reference I/Os.
    Window = "window",
    /// The longest time that an I/O of the disks waited in the scheduler, in seconds.
    LongestWait = "longest-wait",
    /// The widest gap between two backlogged disks, relative to its bound.
    Lag = "lag",
    /// I/Os on the coordination file, in percent of all I/Os.
    Coordination = "coordination",
    /// Orders per second.
    Orders = "orders",
    /// Mean time of an order, in ms.
    OrderTime = "order-time",
    /// The 1st percentile of I/Os per second, in percent of `of`.
    Isolation = "isolation",
    /// How much the mean latency per second exceeds `of` ms, 90th percentile, in percent.
    LatencyImpact = "latency-impact",
    /// Number of events in which a host reported another host as lost.
    HostsLost = "hosts-lost",
    /// Number of events in which a host reported load from outside the hosts.
    External = "external",
    /// Mean number of I/Os at the datastore.
    Outstanding = "outstanding",
    /// The disks' fraction of the guests' cost on one array, in percent.
    ArrayShare = "array-share",
    /// The fraction of one array's cost that the disks' work in the background has, in percent.
    Background = "background",
    /// MB per second that are copied to members of the disks.
    RebuildRate = "rebuild-rate",
    /// Seconds from the beginning of the phase until a rebuild of each disk has ended.
    RebuildTime = "rebuild-time",
    /// Requests that were answered without the disk below the cache, in percent. Flushes, scans and logs do not count.
    HitRatio = "hit-ratio",
    /// The number of phases, from the first one on, that are within every `quality`.
    PhasesPassed = "phases-passed",
    /// The hit ratio in the last of these phases, in percent.
    HitRatioPassed = "hit-ratio-passed",
    /// The geometric mean of I/Os per second of the disks whose names end with the same number, summed over the numbers.
    Score = "score",
    /// Bytes that were written to flash, for each byte that the disks' guests read or wrote.
    FlashWrites = "flash-writes",
}

pub(super) fn expect(
    raw: &RawExpect,
    scenario: &Scenario,
    settling: Span,
) -> Result<Expect, ScenarioError> {
    let Some(&what) = Measure::ALL.iter().find(|what| what.word() == raw.what) else {
        let words: Vec<_> = Measure::ALL.iter().map(|what| what.word()).collect();
        return wrong(format!("no such figure; use one of {}", words.join(", ")));
    };
    if raw.at_least.is_none() && raw.at_most.is_none() {
        return wrong("give `at-least`, `at-most` or both");
    }
    let phase = phase(raw.phase.as_deref(), scenario)?;
    let every = vec!["*".to_owned()];
    let disks = if raw.disks.is_empty() {
        &every
    } else {
        &raw.disks
    };
    let hosts = if raw.hosts.is_empty() {
        &every
    } else {
        &raw.hosts
    };
    let run = Variant {
        configuration: configuration(raw.configuration.as_deref(), scenario)?.unwrap_or(0),
        ..variant(raw.policy.as_deref(), None, None, scenario)?
    };
    let disks = disks_named(disks, scenario)?;
    let hosts = hosts_named(hosts, scenario)?;
    if scenario.has_layouts() && matches!(what, Measure::LongestWait | Measure::Lag) {
        return wrong("it is not known of disks with layouts, or of several arrays");
    }
    let whole_phase = matches!(
        what,
        Measure::Settles
            | Measure::RebuildTime
            | Measure::DeviceLatencySettles
            | Measure::Resumed
            | Measure::UnitsFirst
            | Measure::LongestWait
            | Measure::Lag
    );
    let needs_of = matches!(
        what,
        Measure::UnitsError
            | Measure::DeviceLatencyError
            | Measure::DeviceLatencySettles
            | Measure::Isolation
            | Measure::LatencyImpact
    );
    if needs_of && raw.of.is_none_or(|of| of <= 0.0) {
        return wrong("give the reference value `of`");
    }
    let against = raw.against.as_ref();
    let against = against.map(|raw| self::against(raw, &run, phase, &disks, &hosts, scenario));
    Ok(Expect {
        what,
        phase,
        skip: match raw.skip {
            Some(skip) => skip.0,
            None if whole_phase => Span::ZERO,
            None => settling,
        },
        window: raw.window.map_or(Span::from_secs(1), |window| window.0),
        within: raw.within.unwrap_or(12.0),
        percentile: raw.percentile.unwrap_or(99.0),
        of: raw.of.unwrap_or(0.0),
        array: array(raw.array, scenario)?,
        against: against.transpose()?,
        disks,
        hosts,
        run,
        at_least: raw.at_least,
        at_most: raw.at_most,
        of_seeds: within("of-seeds", raw.of_seeds.unwrap_or(100), 1, 100)?,
        source: raw.source.clone(),
    })
}

fn against(
    raw: &RawAgainst,
    run: &Variant,
    here: usize,
    disks: &[usize],
    hosts: &[usize],
    scenario: &Scenario,
) -> Result<Against, ScenarioError> {
    let policy = raw.policy.as_deref().unwrap_or(run.policy.word());
    let other = configuration(raw.configuration.as_deref(), scenario)?;
    Ok(Against {
        run: Variant {
            configuration: other.unwrap_or(run.configuration),
            ..variant(
                Some(policy),
                raw.threshold.as_deref(),
                raw.alone.as_deref(),
                scenario,
            )?
        },
        phase: match raw.phase.as_deref() {
            None => here,
            name => phase(name, scenario)?,
        },
        disks: match &raw.disks {
            None => disks.to_vec(),
            Some(names) => disks_named(names, scenario)?,
        },
        hosts: match &raw.hosts {
            None => hosts.to_vec(),
            Some(names) => hosts_named(names, scenario)?,
        },
    })
}

fn array(array: Option<u32>, scenario: &Scenario) -> Result<usize, ScenarioError> {
    let arrays = scenario.datastore.arrays;
    match array.unwrap_or(0) as usize {
        array if array < arrays => Ok(array),
        array => wrong(format!(
            "there is no array {array}: there are {arrays}, counted from 0"
        )),
    }
}

fn variant(
    policy: Option<&str>,
    other: Option<&str>,
    alone: Option<&[String]>,
    scenario: &Scenario,
) -> Result<Variant, ScenarioError> {
    let word = policy.unwrap_or(Policy::Ours.word());
    let Some(policy) = Policy::named(word) else {
        return wrong(format!("a policy is ours, parda or none, not `{word}`"));
    };
    Ok(Variant {
        policy,
        threshold: other.map(threshold).transpose()?,
        alone: alone
            .map(|names| disks_named(names, scenario))
            .transpose()?,
        configuration: 0,
    })
}

fn configuration(name: Option<&str>, scenario: &Scenario) -> Result<Option<usize>, ScenarioError> {
    let Some(name) = name else {
        return Ok(None);
    };
    let mut all = scenario.configurations.iter();
    match all.position(|configuration| configuration.name == name) {
        Some(place) => Ok(Some(place)),
        None => wrong(format!("no configuration is called `{name}`")),
    }
}

fn phase(name: Option<&str>, scenario: &Scenario) -> Result<usize, ScenarioError> {
    let phases = &scenario.phases;
    match name {
        None if phases.len() == 1 => Ok(0),
        None => wrong("there are several phases: name one"),
        Some(name) => match phases.iter().position(|phase| phase.name == name) {
            Some(place) => Ok(place),
            None => wrong(format!("no phase is called `{name}`")),
        },
    }
}

fn disks_named(names: &[String], scenario: &Scenario) -> Result<Vec<usize>, ScenarioError> {
    named(names, scenario.disks.iter().map(|disk| &disk.name), "disk")
}

fn hosts_named(names: &[String], scenario: &Scenario) -> Result<Vec<usize>, ScenarioError> {
    named(names, scenario.hosts.iter().map(|host| &host.name), "host")
}
