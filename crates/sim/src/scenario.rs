//! Scenarios: hosts, disks, workloads, an array, phases, faults and expectations. One format for the simulator and the
//! real engine.
//!
//! [`Scenario::read`] reads a file in two steps. `raw.rs` defines the file's syntax. This module makes a checked plan
//! of it: names are resolved, copies are made, and ranges are checked.
//!
//! # Always true
//! - Every index (of a host, a group, a disk, a phase) lies within the scenario's own lists.
//! - Phases cover the run without gaps.

mod configuration;
mod datastore;
pub(crate) mod expect;
mod layout;
mod plan;
pub(crate) mod quantities;
mod raw;

pub use configuration::{Configuration, FlashCache};
pub use datastore::{Control, Kind, Threshold};
pub use expect::{Against, Expect, Measure, Variant};

use self::raw::RawScenario;
use crate::numbers::BIN;
use crate::trace::Trace;
use std::fmt;
use std::sync::Arc;
use tidegate_core::layout::LayoutSpec;
use tidegate_core::units::{Span, Time};
use tidegate_model::ArraySpec;

/// A checked scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name, equal to its file's name.
    pub name: String,
    /// What it shows, in one line.
    pub title: String,
    /// Its source.
    pub source: String,
    /// The datastore.
    pub datastore: Datastore,
    /// The hosts that share it.
    pub hosts: Vec<Host>,
    /// Groups of disks with common limits.
    pub groups: Vec<Group>,
    /// The disks, those of a host in order.
    pub disks: Vec<Disk>,
    /// The phases, in order.
    pub phases: Vec<Phase>,
    /// The faults.
    pub faults: Vec<Fault>,
    /// Arrays and caches that are compared; none if there is only the datastore's own.
    pub configurations: Vec<Configuration>,
    /// What a phase must be within to pass. Their own phases mean nothing.
    pub quality: Vec<Expect>,
    /// The expectations.
    pub expects: Vec<Expect>,
}

/// A datastore and its I/O control.
#[derive(Clone, Debug)]
pub struct Datastore {
    /// The array behind it.
    pub array: ArraySpec,
    /// The latency at which control engages.
    pub threshold: Threshold,
    /// Whether control acts.
    pub control: Control,
    /// Its configured kind.
    pub kind: Kind,
    /// Bytes that count as one I/O for limits and reservations.
    pub io_unit: u32,
    /// Whether control learns the cost of requests.
    pub learn: bool,
    /// The location of the hosts' coordination file. By default it is on the array.
    pub coordination: Option<Coordination>,
    /// The number of equal datastores, each with an array and control of its own.
    pub arrays: usize,
}

/// The location of the hosts' coordination file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coordination {
    /// On the array. Its I/O uses the array's time, like any other file of the datastore.
    Array,
    /// In a directory on other storage: `tidegate datastore set --coordination`.
    Apart,
}

/// A host.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its number of I/O threads.
    pub threads: usize,
    /// When its daemon starts.
    pub joins: Time,
}

/// A group of disks. Its limits apply on each host to the sum of the group's disks there.
#[derive(Clone, Debug)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// IOPS ceiling of all its disks.
    pub limit: Option<Ceiling>,
    /// Bandwidth ceiling in bytes per second.
    pub bandwidth: Option<Ceiling>,
}

/// A disk, its settings and its guest.
#[derive(Clone, Debug)]
pub struct Disk {
    /// Its name.
    pub name: String,
    /// The host that serves it.
    pub host: usize,
    /// The I/O thread of that host.
    pub thread: usize,
    /// Size in bytes.
    pub size: u64,
    /// Its settings.
    pub policy: Settings,
    /// Whether it bypasses control.
    pub unmanaged: bool,
    /// How its bytes lie on its members.
    pub layout: LayoutSpec,
    /// The array of each member.
    pub members: Vec<usize>,
    /// Whether it has a part of the cache, in a configuration with one.
    pub cached: bool,
    /// The bytes within which random accesses are, with the popularity of recorded ones.
    pub working_set: Option<u64>,
    /// Whether a pool has no space for it before it is written.
    pub fresh: bool,
    /// Bytes of the requests of a scan beside the workload.
    pub scan: Option<u64>,
    /// Its guest's workload.
    pub workload: Workload,
}

/// A disk's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Relative weight.
    pub shares: u32,
    /// IOPS floor; zero for none.
    pub reservation: u32,
    /// IOPS ceiling.
    pub limit: Option<Ceiling>,
    /// Bandwidth ceiling in bytes per second.
    pub bandwidth: Option<Ceiling>,
    /// Target latency.
    pub latency_target: Option<Span>,
    /// The index of its group, if it has one.
    pub group: Option<usize>,
}

impl Settings {
    /// These shares, and nothing else.
    #[must_use]
    pub const fn of_shares(shares: u32) -> Settings {
        Settings {
            shares,
            reservation: 0,
            limit: None,
            bandwidth: None,
            latency_target: None,
            group: None,
        }
    }
}

/// A rate that may be exceeded up to a peak until a burst is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceiling {
    /// Per second, permanently.
    pub sustained: u64,
    /// Per second, while there is burst left; zero for no separate ceiling.
    pub peak: u64,
    /// The amount beyond `sustained`.
    pub burst: u64,
}

/// A guest's workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// A shop's database. Each user thinks, then places an order: reads one after the other, background page writes,
    /// and a sequential write to the log with a flush.
    Shop {
        /// Number of users.
        users: u32,
        /// Mean think time (exponential).
        think: Span,
        /// Reads per order, with locality.
        reads: u32,
        /// Background page writes per order.
        writes: u32,
        /// Bytes per I/O.
        size: u64,
        /// The most I/Os at the disk. The rest waits in the guest.
        depth: u32,
    },
    /// A constant number of outstanding I/Os.
    Access {
        /// The number.
        outstanding: u32,
        /// Their type.
        io: Io,
        /// A pause after each.
        think: Span,
    },
    /// I/Os at random times, independent of completions.
    Open {
        /// Mean rate per second.
        rate: u32,
        /// Their type.
        io: Io,
    },
    /// Replays a disk's recorded I/O. When stopped and started it continues. At its end it stops, and a start after
    /// that begins again.
    Trace {
        /// The recording.
        trace: Arc<Trace>,
        /// When each I/O is issued.
        pace: Pace,
    },
}

/// When a recorded I/O is issued again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At its recorded time, independent of completions.
    Recorded {
        /// The speed of time, in percent.
        speed: u32,
    },
    /// When no more I/Os are outstanding than at its recorded arrival.
    Outstanding,
}

/// The type of an access specification's I/Os.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// Bytes.
    pub size: u64,
    /// Percentage of reads.
    pub reads: u32,
    /// Percentage at random offsets.
    pub random: u32,
    /// Number of writes between flushes; 0 for no flushes.
    pub flush_every: u32,
}

/// A phase of the run.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// When it begins.
    pub begins: Time,
    /// When it ends.
    pub ends: Time,
    /// Whether each disk's guest is active.
    pub active: Vec<bool>,
    /// The array's speed, in thousandths.
    pub speed: u32,
    /// New settings from its beginning on.
    pub set: Vec<(usize, Settings)>,
    /// What happens to members at its beginning.
    pub members: Vec<MemberChange>,
}

/// What happens to a member of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberChange {
    /// The disk.
    pub disk: usize,
    /// The member's place in its layout.
    pub member: u8,
    /// Whether it is removed; otherwise it is added, empty, and rebuilt.
    pub removes: bool,
}

/// A fault.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// The affected hosts.
    pub hosts: Vec<usize>,
    /// When it begins.
    pub begins: Time,
    /// When it ends; [`Time::NEVER`] if it does not.
    pub ends: Time,
    /// Its probability, in thousandths.
    pub chance: u32,
    /// The delay, or the clock's jump.
    pub by: Span,
}

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The host is dead, with its guests.
    Dead,
    /// Its writes to the coordination file fail.
    Mute,
    /// Its reads of the coordination file fail.
    Deaf,
    /// Its daemon is paused; its guests wait.
    Paused,
    /// Its writes to the coordination file are torn: readers see half of the old slot and half of the new.
    Torn,
    /// Its writes to the coordination file become visible later.
    Delayed,
    /// Its wall clock jumps.
    Clock,
    /// The array completes nothing.
    Stalled,
    /// Its I/O threads share one CPU, in time slices of `by`.
    Starved,
}

/// Why a file is not a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError(String);

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ScenarioError {}

/// Shorthand for an error with its correction.
pub(crate) fn wrong<T>(message: impl Into<String>) -> Result<T, ScenarioError> {
    Err(ScenarioError(message.into()))
}

impl Scenario {
    /// Reads a scenario from a file's text.
    pub fn read(text: &str) -> Result<Scenario, ScenarioError> {
        let raw: RawScenario = toml::from_str(text).or_else(|error| wrong(error.to_string()))?;
        let name = raw.name.clone();
        plan::plan(raw).or_else(|error| wrong(format!("scenario `{name}`: {error}")))
    }

    /// Whether a file is meant to be a scenario. A/B tests of real servers and studies are in the same directory, and only
    /// the lab can run them.
    pub fn is_meant(text: &str) -> bool {
        let table: Result<toml::Table, _> = toml::from_str(text);
        table.map_or(true, |table| {
            !table.contains_key("contest") && !table.contains_key("study")
        })
    }

    /// Whether a disk has a layout or a cache, or there are several arrays.
    pub fn has_layouts(&self) -> bool {
        self.datastore.arrays > 1
            || !self.configurations.is_empty()
            || self.disks.iter().any(|disk| !disk.layout.is_plain())
    }

    /// The end of the run.
    pub fn ends(&self) -> Time {
        self.phases.last().map_or(Time::ZERO, |phase| phase.ends)
    }

    /// The same scenario with all phases, faults and joins at `percent` of their time, for a quick run. The guests' own
    /// times are unchanged. Phases begin and end with a bin, because half a bin would distort the figures of a short
    /// run.
    #[must_use]
    pub fn scaled(mut self, percent: u64) -> Scenario {
        let scale = |at: Time| match at {
            Time::NEVER => at,
            _ => Time::from_nanos(at.as_nanos() / 100 * percent),
        };
        let whole = |at: Time| {
            let (ns, bin) = (scale(at).as_nanos(), BIN.as_nanos());
            Time::from_nanos(if ns < bin { ns } else { ns - ns % bin })
        };
        for phase in &mut self.phases {
            (phase.begins, phase.ends) = (whole(phase.begins), whole(phase.ends));
        }
        for fault in &mut self.faults {
            (fault.begins, fault.ends) = (scale(fault.begins), scale(fault.ends));
        }
        for host in &mut self.hosts {
            host.joins = scale(host.joins);
        }
        for expect in self.expects.iter_mut().chain(&mut self.quality) {
            expect.skip = whole(Time::ZERO + expect.skip).since(Time::ZERO);
        }
        self
    }
}

/// The indices of the items whose names match any of `patterns`, in order. `*` matches any text.
pub(crate) fn named<'a>(
    patterns: &[String],
    names: impl Iterator<Item = &'a String>,
    what: &str,
) -> Result<Vec<usize>, ScenarioError> {
    let names: Vec<&String> = names.collect();
    for pattern in patterns {
        if !names.iter().any(|name| fits(pattern, name)) {
            return wrong(format!("no {what} is called `{pattern}`"));
        }
    }
    let fitting = names.iter().enumerate();
    Ok(fitting
        .filter(|(_, name)| patterns.iter().any(|pattern| fits(pattern, name)))
        .map(|(place, _)| place)
        .collect())
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            rest.char_indices()
                .map(|(at, _)| &rest[at..])
                .chain([""])
                .any(|rest| fits(tail, rest))
        }),
    }
}

pub(crate) fn within(what: &str, value: u32, least: u32, most: u32) -> Result<u32, ScenarioError> {
    match (least..=most).contains(&value) {
        true => Ok(value),
        false => wrong(format!("{what} = {value}: must be {least} to {most}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        name = "small"
        title = "Two disks"
        lasts = "10s"
        [datastore]
        array = "fifo"
        threshold = "25ms"
        [[host]]
        name = "h"
        count = 2
        [[disk]]
        name = "d"
        host = "h"
        count = 2
        shares = [500, 1000]
        workload = { kind = "access", outstanding = 8 }
    "#;

    #[test]
    fn copies_of_hosts_and_disks_get_numbered_names() {
        let scenario = Scenario::read(SMALL).unwrap();
        let names: Vec<_> = scenario
            .disks
            .iter()
            .map(|disk| disk.name.as_str())
            .collect();
        assert_eq!(names, ["h1.d1", "h1.d2", "h2.d1", "h2.d2"]);
        let shares: Vec<_> = scenario.disks.iter().map(|d| d.policy.shares).collect();
        assert_eq!(shares, [500, 1_000, 500, 1_000]);
        assert_eq!(scenario.ends(), Time::from_nanos(10_000_000_000));
    }

    #[test]
    fn a_scenario_scaled_by_half_has_half_the_length() {
        let scenario = Scenario::read(SMALL).unwrap().scaled(50);
        assert_eq!(scenario.ends(), Time::from_nanos(5_000_000_000));
    }

    #[test]
    fn phases_of_a_scaled_scenario_begin_and_end_with_a_bin() {
        let expect = "[[expect]]\nwhat = \"iops\"\nat-least = 1\nsource = \"none\"\n";
        let text = format!("{SMALL}\n{expect}");
        let scenario = Scenario::read(&text).unwrap().scaled(67);
        assert_eq!(scenario.ends(), Time::from_nanos(6_700_000_000));
        let skipped: Vec<Span> = scenario.expects.iter().map(|e| e.skip).collect();
        assert!(!skipped.is_empty());
        for skip in skipped {
            assert_eq!(skip.as_nanos() % BIN.as_nanos(), 0, "{skip:?}");
        }
        let tiny = Scenario::read(SMALL).unwrap().scaled(1);
        assert_eq!(tiny.ends(), Time::from_nanos(100_000_000));
    }

    #[test]
    fn an_ab_test_is_not_meant_to_be_a_scenario() {
        assert!(Scenario::is_meant(SMALL));
        assert!(Scenario::is_meant("neither ["));
        assert!(!Scenario::is_meant("name = \"x\"\n[contest]\nrounds = 3"));
        assert!(!Scenario::is_meant("name = \"x\"\n[study]\nof = \"y\""));
    }

    #[test]
    fn an_error_contains_its_correction() {
        for (from, to, message) in [
            ("\"25ms\"", "\"25\"", "`25`"),
            ("shares = [500, 1000]", "shares = 7", "must be 100 to 10000"),
            (
                "host = \"h\"",
                "host = \"g\"",
                "host `g`, which is not among the hosts",
            ),
            ("outstanding = 8", "outstanding = 8, speed = 3", "speed"),
            ("\"fifo\"", "\"tape\"", "no storage model is called 'tape'"),
            ("lasts = \"10s\"", "", "give the run's length"),
            ("\"access\"", "\"axcess\"", "axcess"),
        ] {
            let error = Scenario::read(&SMALL.replace(from, to)).expect_err(message);
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    #[test]
    fn a_star_matches_any_text() {
        for (pattern, name, fit) in [
            ("vm*", "vm1", true),
            ("*.d1", "h2.d1", true),
            ("*", "", true),
            ("h*.d*", "h10.d3", true),
            ("h*x", "h10.d3", false),
            ("vm1", "vm10", false),
        ] {
            assert_eq!(fits(pattern, name), fit, "{pattern} {name}");
        }
    }
}
