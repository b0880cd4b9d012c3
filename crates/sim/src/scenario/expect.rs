//! The expectations of a scenario: figure, disks, phase, reference and bound.
//!
//! `judge.rs` computes the figures; here they have their names and are checked.

use super::raw::{RawAgainst, RawExpect};
use super::store::threshold;
use super::{Scenario, ScenarioError, Threshold, named, within, wrong};
use crate::policy::Policy;
use tidegate_core::units::Span;

/// A figure and its mark.
#[derive(Clone, Debug)]
pub struct Expect {
    /// Which figure.
    pub what: Measure,
    /// Of which disks.
    pub disks: Vec<usize>,
    /// Of which hosts.
    pub hosts: Vec<usize>,
    /// In which phase.
    pub phase: usize,
    /// Left out at its beginning.
    pub skip: Span,
    /// The length of the windows that it looks at.
    pub window: Span,
    /// How far off still counts as there, in percent.
    pub within: f64,
    /// Which percentile, where it is one.
    pub percentile: f64,
    /// What it is measured against, where that is a number: a rate, a latency in milliseconds.
    pub of: f64,
    /// In which run.
    pub run: Variant,
    /// Divided by the same figure elsewhere.
    pub against: Option<Against>,
    /// The least it may be.
    pub at_least: Option<f64>,
    /// The most it may be.
    pub at_most: Option<f64>,
    /// In how many of 100 seeds it holds.
    pub of_seeds: u32,
    /// Where the mark is from.
    pub source: String,
}

/// A scenario may be run in several ways; figures are compared between them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Variant {
    /// Under which control.
    pub policy: Policy,
    /// With another threshold.
    pub threshold: Option<Threshold>,
    /// With only these disks.
    pub alone: Option<Vec<usize>>,
}

impl Variant {
    /// The scenario as it is, under a policy.
    pub const fn of(policy: Policy) -> Variant {
        Variant {
            policy,
            threshold: None,
            alone: None,
        }
    }
}

/// Where the figure is found that another is divided by.
#[derive(Clone, Debug)]
pub struct Against {
    /// In which run.
    pub run: Variant,
    /// In which phase.
    pub phase: usize,
    /// Of which disks.
    pub disks: Vec<usize>,
    /// Of which hosts.
    pub hosts: Vec<usize>,
}

macro_rules! measures {
    ($($(#[doc = $says:literal])+ $name:ident = $word:literal),+ $(,)?) => {
        /// The figures that a scenario may expect something of.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Measure { $($(#[doc = $says])+ $name),+ }

        impl Measure {
            /// All of them.
            pub const ALL: &'static [Measure] = &[$(Measure::$name),+];

            /// Its word in a scenario.
            pub const fn word(self) -> &'static str {
                match self { $(Measure::$name => $word),+ }
            }
        }
    };
}

measures! {
    /// I/Os a second, all the disks together.
    Iops = "iops",
    /// Bytes a second, in MB.
    Bandwidth = "bandwidth",
    /// What part of all I/Os the disks have, in percent.
    Share = "share",
    /// What part of the array's working time the disks have, in percent.
    DeviceShare = "device-share",
    /// How far any disk's cost is from its shares' part of all of theirs, in percent.
    ShareError = "share-error",
    /// The same over each window, 99th percentile of windows and disks.
    ShareErrorWindows = "share-error-windows",
    /// Least cost for its shares divided by the most.
    Evenness = "evenness",
    /// Units a second, as limits and reservations count.
    Units = "units",
    /// The same in the window that had least.
    UnitsLeast = "units-least",
    /// Units in the first window of the phase.
    UnitsFirst = "units-first",
    /// How far units a second are from `of`, in percent.
    UnitsError = "units-error",
    /// Guests' mean latency, in ms.
    Latency = "latency",
    /// A percentile of guests' latency, in ms.
    LatencyPercentile = "latency-percentile",
    /// The datastore's mean latency, in ms.
    DeviceLatency = "device-latency",
    /// How far it is from `of`, in percent.
    DeviceLatencyError = "device-latency-error",
    /// Seconds until it stays at or below `of`, for eight windows.
    DeviceLatencySettles = "device-latency-settles",
    /// Seconds until every disk's cost stays within `within` percent of its shares' part, for eight windows.
    Settles = "settles",
    /// A window's I/Os, the fewest, in percent of the mean.
    Dip = "dip",
    /// What the disks have in the first window, in percent of their shares' part.
    Resumed = "resumed",
    /// The hosts' mean window, in reference I/Os.
    Window = "window",
    /// The longest that any I/O of the disks waited for its turn, in seconds.
    LongestWait = "longest-wait",
    /// The widest gap between two backlogged disks, divided by what it may be.
    Lag = "lag",
    /// I/Os on the coordination file, in percent of all.
    Coordination = "coordination",
    /// Orders a second.
    Orders = "orders",
    /// Mean time that an order takes, in ms.
    OrderTime = "order-time",
    /// What the 1st percentile of seconds has of `of` I/Os, in percent.
    Isolation = "isolation",
    /// How much the mean latency of seconds is above `of` ms, 90th percentile, in percent.
    LatencyImpact = "latency-impact",
    /// How often any host said that another was lost.
    HostsLost = "hosts-lost",
    /// How often any host said that there is load that no host causes.
    External = "external",
    /// I/Os at the datastore, on average.
    Outstanding = "outstanding",
}

pub(super) fn expect(
    raw: &RawExpect,
    scenario: &Scenario,
    settling: Span,
) -> Result<Expect, ScenarioError> {
    let Some(&what) = Measure::ALL.iter().find(|what| what.word() == raw.what) else {
        let words: Vec<_> = Measure::ALL.iter().map(|what| what.word()).collect();
        return wrong(format!("no such figure; there are {}", words.join(", ")));
    };
    if raw.at_least.is_none() && raw.at_most.is_none() {
        return wrong("say `at-least`, `at-most` or both");
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
    let run = variant(raw.policy.as_deref(), None, None, scenario)?;
    let disks = disks_named(disks, scenario)?;
    let hosts = hosts_named(hosts, scenario)?;
    let whole_phase = matches!(
        what,
        Measure::Settles
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
        return wrong("say `of` what");
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
    Ok(Against {
        run: variant(
            Some(policy),
            raw.threshold.as_deref(),
            raw.alone.as_deref(),
            scenario,
        )?,
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
    })
}

fn phase(name: Option<&str>, scenario: &Scenario) -> Result<usize, ScenarioError> {
    let phases = &scenario.phases;
    match name {
        None if phases.len() == 1 => Ok(0),
        None => wrong("there are several phases: say which"),
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
