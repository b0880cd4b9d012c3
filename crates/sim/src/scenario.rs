//! Scenarios: hosts, disks, workloads, an array, phases, faults and expectations. One format for the simulator and the
//! real engine.
//!
//! [`Scenario::read`] takes a file in two steps: `raw.rs` holds what may be written, and here it becomes a checked
//! plan: names are looked up, copies are made, percentages are percentages. After that nothing is a word any more.
//!
//! # Always true
//! - Every index (of a host, a group, a disk, a phase) lies within the scenario's own lists.
//! - Phases follow each other without a gap from the beginning to the end.

pub(crate) mod expect;
mod plan;
mod raw;
mod store;
pub(crate) mod words;

pub use expect::{Against, Expect, Measure, Variant};
pub use store::{Control, Kind, Threshold};

use self::raw::RawScenario;
use crate::numbers::BIN;
use crate::trace::Trace;
use std::fmt;
use std::sync::Arc;
use tidegate_core::units::{Span, Time};
use tidegate_model::ArraySpec;

/// A checked scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it is called, as its file is.
    pub name: String,
    /// What it shows, in a line.
    pub title: String,
    /// Where it is from.
    pub source: String,
    /// What is congested.
    pub datastore: Datastore,
    /// Who shares it.
    pub hosts: Vec<Host>,
    /// Groups of disks that have limits together.
    pub groups: Vec<Group>,
    /// The disks, those of a host in order.
    pub disks: Vec<Disk>,
    /// What happens, one after the other.
    pub phases: Vec<Phase>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// What is to come out.
    pub expects: Vec<Expect>,
}

/// A datastore and how it is controlled.
#[derive(Clone, Debug)]
pub struct Datastore {
    /// What serves it.
    pub array: ArraySpec,
    /// The latency at which control engages.
    pub threshold: Threshold,
    /// Whether control acts.
    pub control: Control,
    /// What it was said to be.
    pub kind: Kind,
    /// Bytes that count as one I/O for limits and reservations.
    pub io_unit: u32,
    /// Whether control learns what requests cost.
    pub learn: bool,
    /// Where the hosts' coordination file lies; if nobody said so, on the array.
    pub coordination: Option<Coordination>,
}

/// Where the hosts' coordination file lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coordination {
    /// On the array, whose time it takes, like any other file of the datastore.
    Array,
    /// In a directory on something else: `tidegate datastore set --coordination`.
    Apart,
}

/// A host.
#[derive(Clone, Debug)]
pub struct Host {
    /// What it is called.
    pub name: String,
    /// How many I/O threads it has.
    pub threads: usize,
    /// When its daemon starts.
    pub joins: Time,
}

/// A group of disks. Its limits hold on each host, over all disks of the group there.
#[derive(Clone, Debug)]
pub struct Group {
    /// What it is called.
    pub name: String,
    /// IOPS ceiling of all its disks.
    pub limit: Option<Ceiling>,
    /// Ceiling in bytes a second.
    pub bandwidth: Option<Ceiling>,
}

/// A disk, its settings and its guest.
#[derive(Clone, Debug)]
pub struct Disk {
    /// What it is called.
    pub name: String,
    /// The host that serves it.
    pub host: usize,
    /// The I/O thread of that host.
    pub thread: usize,
    /// Bytes.
    pub size: u64,
    /// What it is set to.
    pub policy: Settings,
    /// Past all control.
    pub unmanaged: bool,
    /// What its guest does.
    pub workload: Workload,
}

/// What a disk is set to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Relative weight.
    pub shares: u32,
    /// IOPS floor; zero for none.
    pub reservation: u32,
    /// IOPS ceiling.
    pub limit: Option<Ceiling>,
    /// Ceiling in bytes a second.
    pub bandwidth: Option<Ceiling>,
    /// The latency that it is to have.
    pub latency_target: Option<Span>,
    /// The place of its group, if it has one.
    pub group: Option<usize>,
}

/// A rate that may be exceeded up to a peak until a burst is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceiling {
    /// Each second, for ever.
    pub sustained: u64,
    /// Each second, while there is burst left; zero for no ceiling of its own.
    pub peak: u64,
    /// How much may be had beyond `sustained`.
    pub burst: u64,
}

/// What a guest does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// A shop's database: each user thinks, then has an order served: reads one after the other, pages written behind
    /// its back, and the log, sequential and flushed.
    Shop {
        /// How many.
        users: u32,
        /// How long they think, on average (exponential).
        think: Span,
        /// Reads of an order, with locality.
        reads: u32,
        /// Pages that an order leaves to be written.
        writes: u32,
        /// Bytes of each.
        size: u64,
        /// How many I/Os the guest keeps at its disk at most; the rest waits inside.
        depth: u32,
    },
    /// Keeps so many outstanding.
    Access {
        /// How many.
        outstanding: u32,
        /// Of which kind.
        io: Io,
        /// A pause after each.
        think: Span,
    },
    /// Asks at random moments, whatever becomes of what it asked before.
    Open {
        /// A second, on average.
        rate: u32,
        /// Of which kind.
        io: Io,
    },
    /// Asks for what a disk was asked for once. Stopped and started it goes on; at its end it stops, and when started
    /// after that it begins again.
    Trace {
        /// What that was.
        trace: Arc<Trace>,
        /// When each I/O is asked for.
        pace: Pace,
    },
}

/// When a traced I/O is asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At its time, whatever becomes of those before.
    Recorded {
        /// How fast the time passes, in percent.
        speed: u32,
    },
    /// Once no more are outstanding than were when it arrived.
    Outstanding,
}

/// The I/Os of an access specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// Bytes.
    pub size: u64,
    /// How many of 100 are reads.
    pub reads: u32,
    /// How many of 100 are at random places.
    pub random: u32,
    /// A flush after so many writes; 0 for never.
    pub flush_every: u32,
}

/// A stretch of the run.
#[derive(Clone, Debug)]
pub struct Phase {
    /// What it is called.
    pub name: String,
    /// When it begins.
    pub begins: Time,
    /// When it ends.
    pub ends: Time,
    /// Whether each disk's guest asks for anything.
    pub active: Vec<bool>,
    /// How fast the array works, in thousandths.
    pub speed: u32,
    /// New settings, as of its beginning.
    pub set: Vec<(usize, Settings)>,
}

/// Something that goes wrong.
#[derive(Clone, Debug)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// Whom it befalls.
    pub hosts: Vec<usize>,
    /// When it begins.
    pub begins: Time,
    /// When it ends; [`Time::NEVER`] if it does not.
    pub ends: Time,
    /// How often, of 1,000 times.
    pub chance: u32,
    /// How much later, or how far.
    pub by: Span,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The host is gone, with its guests.
    Dead,
    /// Its writes to the coordination file fail.
    Mute,
    /// Its reads of the coordination file fail.
    Deaf,
    /// Its daemon does nothing; its guests wait.
    Paused,
    /// What it writes to the coordination file is read half old, half new.
    Torn,
    /// What it writes to the coordination file is seen later.
    Delayed,
    /// Its wall clock jumps.
    Clock,
    /// The array answers nothing.
    Stalled,
    /// Its I/O threads have one processor, in turns of `by`.
    Starved,
}

/// Why a file is no scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError(String);

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ScenarioError {}

/// Shorthand for an error that says what is wrong and what would be right.
pub(crate) fn wrong<T>(says: impl Into<String>) -> Result<T, ScenarioError> {
    Err(ScenarioError(says.into()))
}

impl Scenario {
    /// Reads a scenario from a file's text.
    pub fn read(text: &str) -> Result<Scenario, ScenarioError> {
        let raw: RawScenario = toml::from_str(text).or_else(|error| wrong(error.to_string()))?;
        let name = raw.name.clone();
        plan::plan(raw).or_else(|error| wrong(format!("scenario `{name}`: {error}")))
    }

    /// Whether a file is meant to be a scenario. Contests lie beside them, which the lab alone can make: they are of real
    /// servers.
    pub fn is_meant(text: &str) -> bool {
        let table: Result<toml::Table, _> = toml::from_str(text);
        table.map_or(true, |table| !table.contains_key("contest"))
    }

    /// How long it runs.
    pub fn ends(&self) -> Time {
        self.phases.last().map_or(Time::ZERO, |phase| phase.ends)
    }

    /// The same with every phase, fault and joining at `percent` of its time: a quick look at a long scenario. The
    /// guests' own times stay as they are. What is measured begins and ends with a bin: half a bin more or less would
    /// be three in a thousand of a short run.
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
        for expect in &mut self.expects {
            expect.skip = whole(Time::ZERO + expect.skip).since(Time::ZERO);
        }
        self
    }
}

/// The places of those whose names fit any of `patterns`, in order; `*` stands for anything.
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
    fn copies_of_hosts_and_disks_are_made_and_named() {
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
    fn a_half_is_half_as_long() {
        let scenario = Scenario::read(SMALL).unwrap().scaled(50);
        assert_eq!(scenario.ends(), Time::from_nanos(5_000_000_000));
    }

    #[test]
    fn what_is_left_of_a_scenario_begins_and_ends_with_a_bin() {
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
    fn a_contest_is_not_meant_to_be_a_scenario() {
        assert!(Scenario::is_meant(SMALL));
        assert!(Scenario::is_meant("neither ["));
        assert!(!Scenario::is_meant("name = \"x\"\n[contest]\nrounds = 3"));
    }

    #[test]
    fn what_is_wrong_is_said_with_what_would_be_right() {
        for (from, to, says) in [
            ("\"25ms\"", "\"25\"", "`25`"),
            ("shares = [500, 1000]", "shares = 7", "must be 100 to 10000"),
            (
                "host = \"h\"",
                "host = \"g\"",
                "host `g`, which is not among the hosts",
            ),
            ("outstanding = 8", "outstanding = 8, speed = 3", "speed"),
            ("\"fifo\"", "\"tape\"", "no storage model is called 'tape'"),
            ("lasts = \"10s\"", "", "say how long it takes"),
            ("\"access\"", "\"axcess\"", "axcess"),
        ] {
            let error = Scenario::read(&SMALL.replace(from, to)).expect_err(says);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn a_star_stands_for_anything() {
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
