//! An experiment in words, for `lab show` and a report's first page: hosts, disks, phases, checks.

use serde::Serialize;
use tidegate_core::units::Span;
use tidegate_model::ArraySpec;
use tidegate_model::spec::{MemberSpec, Variation};
use tidegate_sim::scenario::{
    Ceiling, Control, Disk, Expect, Io, Kind, Measure, Pace, Scenario, Settings, Threshold,
    Workload,
};
use tidegate_sim::{Policy, Variant};

pub(super) mod ab_test;
mod layouts;
pub(super) mod study;

use super::ab_test::{bytes, request};
use super::store::Piece;
use super::{Entry, Experiment, On, PUBLISHED};
use crate::draw::label;
pub use ab_test::{AbTestSummary, ContestantSummary, SweepSummary};
pub use study::StudySummary;

/// An experiment in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// What it is called.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// Where it is from.
    pub source: String,
    /// Whether it is one of the published ones.
    pub published: bool,
    /// The hosts and disks, or the contestants.
    #[serde(flatten)]
    pub set_up: SetUp,
    /// In which ways it is run; of an A/B test the contestants.
    pub ways: Vec<String>,
    /// What is expected.
    pub checks: Vec<CheckSummary>,
    /// How long one run lasts.
    pub run_s: f64,
    /// How long it takes to run it in every way on real daemons.
    pub engine_s: f64,
    /// Why it cannot be run on real daemons, where it cannot.
    pub only_simulated: Option<&'static str>,
}

/// The hosts and disks, or the contestants, by the kind of experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum SetUp {
    /// Hosts and their disks on a datastore.
    Scenario(ScenarioSummary),
    /// Contestants and their work.
    AbTest(AbTestSummary),
    /// Inputs of a model, and what is played on it.
    Study(StudySummary),
}

/// A scenario's hosts and disks in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScenarioSummary {
    /// What serves the datastore.
    pub datastore: String,
    /// Where control engages.
    pub threshold: String,
    /// The hosts.
    pub hosts: Vec<String>,
    /// The disks.
    pub disks: Vec<DiskSummary>,
    /// What happens.
    pub phases: Vec<PhaseSummary>,
}

/// A disk in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiskSummary {
    /// What it is called.
    pub name: String,
    /// Its host.
    pub host: String,
    /// Its shares.
    pub shares: u32,
    /// Its other settings.
    pub settings: String,
    /// What its guest does.
    pub workload: String,
}

/// A phase in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseSummary {
    /// What it is called.
    pub name: String,
    /// How long it lasts.
    pub lasts_s: f64,
    /// Disks whose guests ask for nothing.
    pub idle: Vec<String>,
    /// What is changed at its beginning.
    pub changes: Vec<String>,
}

/// A check in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckSummary {
    /// Which figure, of whom, when, against what.
    pub what: String,
    /// What it must be.
    pub bar: String,
    /// What was published, or where the bar is from.
    pub published: String,
}

impl Entry {
    /// The experiment in words.
    #[must_use]
    pub fn summary(&self) -> Summary {
        match self {
            Entry::Scenario(experiment) => experiment.summary(),
            Entry::AbTest(ab_test) => ab_test.summary(),
            Entry::Study(study) => study.summary(),
        }
    }
}

impl Experiment {
    /// The experiment in words.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let scenario = &self.scenario;
        let ways = self.ways();
        let (hosts, disks) = (scenario.hosts.iter(), scenario.disks.iter());
        let expects = scenario.expects.iter();
        Summary {
            name: scenario.name.clone(),
            title: scenario.title.clone(),
            source: scenario.source.clone(),
            published: PUBLISHED.contains(&self.name()),
            set_up: SetUp::Scenario(ScenarioSummary {
                datastore: layouts::arrays(
                    scenario,
                    &array(&scenario.datastore.array, scenario.datastore.kind),
                ),
                threshold: threshold(scenario.datastore.threshold),
                hosts: hosts.map(|host| host.name.clone()).collect(),
                disks: disks.map(|disk| disk_summary(scenario, disk)).collect(),
                phases: phases(scenario),
            }),
            ways: ways.iter().map(|way| way_words(scenario, way)).collect(),
            checks: expects.map(|expect| check(scenario, expect)).collect(),
            run_s: self.lasts().as_secs_f64(),
            engine_s: match self.only_simulated() {
                Some(_) => 0.0,
                None => self.lasts().as_secs_f64() * self.ways_on(On::Engine).len() as f64,
            },
            only_simulated: self.only_simulated(),
        }
    }
}

fn disk_summary(scenario: &Scenario, disk: &Disk) -> DiskSummary {
    DiskSummary {
        name: disk.name.clone(),
        host: scenario.hosts[disk.host].name.clone(),
        shares: disk.policy.shares,
        settings: if disk.unmanaged {
            "past all control".to_owned()
        } else {
            settings(scenario, &disk.policy)
        },
        workload: layouts::place(scenario, disk)
            + &workload(&disk.workload)
            + &layouts::use_of(disk),
    }
}

pub(crate) fn settings(scenario: &Scenario, policy: &Settings) -> String {
    let mut words = Vec::new();
    if policy.reservation > 0 {
        words.push(format!(
            "reservation {} IOPS",
            label(policy.reservation.into())
        ));
    }
    if let Some(limit) = &policy.limit {
        words.push(format!("limit {}", ceiling(limit, " IOPS", 1.0)));
    }
    if let Some(limit) = &policy.bandwidth {
        words.push(format!("limit {}", ceiling(limit, " MB/s", 1e6)));
    }
    if let Some(target) = policy.latency_target {
        words.push(format!("latency target {}", length(target)));
    }
    if let Some(group) = policy.group {
        words.push(format!("group {}", scenario.groups[group].name));
    }
    words.join(", ")
}

fn ceiling(limit: &Ceiling, unit: &str, scale: f64) -> String {
    let mut words = format!("{}{unit}", label(limit.sustained as f64 / scale));
    if limit.peak > limit.sustained {
        words += &format!(", for a while {}{unit}", label(limit.peak as f64 / scale));
    }
    words
}

fn workload(workload: &Workload) -> String {
    match workload {
        Workload::Shop {
            users,
            think,
            reads,
            writes,
            size,
            depth,
        } => format!(
            "a shop of {users} users who think {}; an order reads {reads} and writes {writes} of {}, and flushes \
             its log; at most {depth} outstanding",
            length(*think),
            bytes(*size)
        ),
        Workload::Access {
            outstanding,
            io,
            think,
        } => {
            let pause = match *think {
                Span::ZERO => String::new(),
                think => format!(", thinks {} after each", length(think)),
            };
            format!("{outstanding} outstanding, {}{pause}", ios(io))
        }
        Workload::Open { rate, io } => format!("{rate} a second whatever comes, {}", ios(io)),
        Workload::Trace { trace, pace } => {
            let how = match pace {
                Pace::Recorded { speed: 100 } => "at their times".to_owned(),
                Pace::Recorded { speed } => format!("at {speed} % of their speed"),
                Pace::Outstanding => "with as many outstanding as there were".to_owned(),
            };
            format!("{} traced I/Os, {how}", trace.ios.len())
        }
    }
}

fn ios(io: &Io) -> String {
    request(io.size, io.reads, io.random, io.flush_every.into())
}

fn array(spec: &ArraySpec, kind: Kind) -> String {
    let kind = match kind {
        Kind::Flash => ", said to be flash",
        Kind::Rotational => ", said to be turning disks",
        Kind::Unknown => "",
    };
    let cache = match &spec.cache {
        Some(cache) => format!(", a write-back cache of {} before them", bytes(cache.size)),
        None => String::new(),
    };
    let member = match &spec.member {
        MemberSpec::Disk(_) => "turning disks".to_owned(),
        MemberSpec::Ssd(ssd) => {
            let vary = match ssd.variation {
                Variation::Fixed => "",
                Variation::Exponential => " on average",
            };
            let read = length(Span::from_nanos(ssd.read.base));
            format!(
                "{} servers behind one queue, {read}{vary} a read",
                ssd.channels
            )
        }
    };
    match (spec.members, &spec.member) {
        (1, MemberSpec::Ssd(_)) => format!("a modelled array: {member}{cache}{kind}"),
        (members, _) => format!(
            "a modelled {:?} of {members}: {member}{cache}{kind}",
            spec.level
        ),
    }
}

pub(crate) fn threshold(threshold: Threshold) -> String {
    match threshold {
        Threshold::Auto => "found".to_owned(),
        Threshold::Off => "off".to_owned(),
        Threshold::Fixed(span) => length(span),
    }
}

fn phases(scenario: &Scenario) -> Vec<PhaseSummary> {
    let summary = scenario.phases.iter().map(|phase| {
        let idle = scenario.disks.iter().zip(&phase.active);
        let idle = idle.filter(|(_, active)| !**active);
        let mut changes: Vec<String> = Vec::new();
        if phase.speed != 1_000 {
            changes.push(format!(
                "the array works at {} % of its speed",
                phase.speed / 10
            ));
        }
        for (disk, set) in &phase.set {
            let disk = &scenario.disks[*disk].name;
            let mut words = format!("{disk} has {} shares", set.shares);
            let others = settings(scenario, set);
            if !others.is_empty() {
                words += &format!(", {others}");
            }
            changes.push(words);
        }
        changes.extend(layouts::changes(scenario, phase));
        PhaseSummary {
            name: phase.name.clone(),
            lasts_s: seconds(phase.ends.since(phase.begins)),
            idle: idle.map(|(disk, _)| disk.name.clone()).collect(),
            changes,
        }
    });
    summary.collect()
}

/// A length of time as scenarios write it: `12ms`, `5min`; one that is not whole as it is.
pub(super) fn length(span: Span) -> String {
    const UNITS: [(u64, &str); 4] = [
        (60_000_000_000, "min"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
    ];
    let ns = span.as_nanos();
    let whole = |(unit, _): &&(u64, &str)| ns >= *unit && ns.is_multiple_of(*unit);
    match UNITS.iter().find(whole) {
        Some((unit, name)) => format!("{}{name}", ns / unit),
        None => span.to_string(),
    }
}

/// A span as seconds.
pub(super) fn seconds(span: Span) -> f64 {
    span.as_nanos() as f64 / 1e9
}

/// A way of running a scenario in words.
#[must_use]
pub fn way_words(scenario: &Scenario, way: &Variant) -> String {
    let policy = match way.policy {
        Policy::Ours => "with I/O control",
        Policy::Parda => "under PARDA",
        Policy::None => "without I/O control",
    };
    let other = way
        .threshold
        .map(|other| format!(", threshold {}", threshold(other)));
    let alone = alone(scenario, way, " and ").map(|names| format!(", {names} alone"));
    let policy = match scenario.configurations.get(way.configuration) {
        Some(own) if scenario.datastore.control == Control::Off => format!("with {}", own.name),
        Some(own) => format!("{policy}, with {}", own.name),
        None => policy.to_owned(),
    };
    format!(
        "{policy}{}{}",
        other.unwrap_or_default(),
        alone.unwrap_or_default()
    )
}

/// The same as part of a file's name.
#[must_use]
pub fn way_slug(scenario: &Scenario, way: &Variant) -> String {
    let policy = match way.policy {
        Policy::Ours => "managed",
        Policy::Parda => "parda",
        Policy::None => "unmanaged",
    };
    let other = way
        .threshold
        .map(|other| format!("-threshold-{}", threshold(other)));
    let alone = alone(scenario, way, "-").map(|names| format!("-{names}-alone"));
    let own = scenario.configurations.get(way.configuration);
    let own = own.map_or(String::new(), |own| {
        format!("-{}", own.name.replace(", ", "-"))
    });
    let slug = format!(
        "{policy}{own}{}{}",
        other.unwrap_or_default(),
        alone.unwrap_or_default()
    );
    slug.replace(
        |letter: char| !letter.is_ascii_alphanumeric() && !"-.".contains(letter),
        "_",
    )
}

/// The names of the only disks of a way, if some are left out.
fn alone(scenario: &Scenario, way: &Variant, between: &str) -> Option<String> {
    let names = way.alone.as_ref()?.iter();
    let names = names.map(|&disk| scenario.disks[disk].name.as_str());
    Some(names.collect::<Vec<_>>().join(between))
}

/// A run of a scenario.
pub(super) fn way_piece(scenario: &Scenario, way: &Variant, on: On, repeat: u32) -> Piece {
    Piece {
        on,
        repeat,
        slug: way_slug(scenario, way),
        words: way_words(scenario, way),
    }
}

/// A check in words.
#[must_use]
pub fn check(scenario: &Scenario, expect: &Expect) -> CheckSummary {
    CheckSummary {
        what: figure(scenario, expect),
        bar: bounds(expect.at_least, expect.at_most, unit(expect)),
        published: expect.source.clone(),
    }
}

/// A bar in words.
pub(super) fn bounds(at_least: Option<f64>, at_most: Option<f64>, unit: &str) -> String {
    match (at_least, at_most) {
        (Some(least), Some(most)) => format!("{} to {}{unit}", label(least), label(most)),
        (Some(least), None) => format!("at least {}{unit}", label(least)),
        (None, Some(most)) => format!("at most {}{unit}", label(most)),
        (None, None) => String::new(),
    }
}

/// The unit of a check's figure, with the space before it; a ratio has none.
#[must_use]
pub fn unit(expect: &Expect) -> &'static str {
    match expect.against {
        Some(_) => "",
        None => measure(expect).1,
    }
}

/// A check's figure in words, and its unit.
fn measure(expect: &Expect) -> (String, &'static str) {
    let (of, window) = (label(expect.of), length(expect.window));
    let percentile = label(expect.percentile);
    match expect.what {
        Measure::Iops => ("throughput".into(), " /s"),
        Measure::Bandwidth => ("bandwidth".into(), " MB/s"),
        Measure::Share => ("part of all I/Os".into(), " %"),
        Measure::DeviceShare => ("part of the array's time".into(), " %"),
        Measure::ShareError => ("furthest from its shares' part".into(), " %"),
        Measure::ShareErrorWindows => (
            format!("distance from shares' parts over {window}, {percentile}th percentile"),
            " %",
        ),
        Measure::Evenness => ("least by most for each share".into(), ""),
        Measure::Units => ("units as limits count them".into(), " /s"),
        Measure::UnitsLeast => (format!("units in the worst {window}"), " /s"),
        Measure::UnitsFirst => (format!("units in the first {window}"), " /s"),
        Measure::UnitsError => (format!("distance of units from {of} a second"), " %"),
        Measure::Latency => ("mean latency".into(), " ms"),
        Measure::LatencyPercentile => (format!("{percentile}th percentile of latency"), " ms"),
        Measure::DeviceLatency => ("the datastore's latency".into(), " ms"),
        Measure::DeviceLatencyError => (
            format!("distance of the datastore's latency from {of} ms"),
            " %",
        ),
        Measure::DeviceLatencySettles => (
            format!("time until the datastore's latency stays below {of} ms"),
            " s",
        ),
        Measure::Settles => (
            format!(
                "time until every disk stays within {} % of its shares' part",
                label(expect.within)
            ),
            " s",
        ),
        Measure::Dip => (format!("the worst {window} against the mean"), " %"),
        Measure::Resumed => (
            format!("had of its shares' part in the first {window}"),
            " %",
        ),
        Measure::Window => ("hosts' windows".into(), ""),
        Measure::LongestWait => ("longest wait in a scheduler".into(), " s"),
        Measure::Lag => ("widest gap between two disks, by what it may be".into(), ""),
        Measure::Coordination => ("I/Os on the coordination file, of all".into(), " %"),
        Measure::Orders => ("orders".into(), " /s"),
        Measure::OrderTime => ("time of an order".into(), " ms"),
        Measure::Isolation => (
            format!("the worst hundredth of seconds, of {of} I/Os"),
            " %",
        ),
        Measure::LatencyImpact => (
            format!("mean latency of seconds above {of} ms, 90th percentile"),
            " %",
        ),
        Measure::HostsLost => ("hosts said to be lost".into(), ""),
        Measure::External => ("load from outside noticed".into(), ""),
        Measure::Outstanding => ("outstanding at the datastore".into(), ""),
        Measure::ArrayShare => (
            format!("part of guests' cost on array {}", expect.array),
            " %",
        ),
        Measure::Background => (
            format!("background's part of the cost on array {}", expect.array),
            " %",
        ),
        Measure::RebuildRate => ("copied by rebuilds".into(), " MB/s"),
        Measure::RebuildTime => ("time until the rebuild has ended".into(), " s"),
        Measure::HitRatio => ("requests that the cache answers".into(), " %"),
        Measure::PhasesPassed => ("phases that pass".into(), ""),
        Measure::HitRatioPassed => (
            "requests that the cache answers in the last phase that passes".into(),
            " %",
        ),
        Measure::Score => ("score".into(), ""),
        Measure::FlashWrites => ("bytes written to flash for each of guests".into(), ""),
    }
}

/// Which figure a check is about.
fn figure(scenario: &Scenario, expect: &Expect) -> String {
    let (mut says, _) = measure(expect);
    says += &whose(scenario, expect.what, &expect.disks, &expect.hosts);
    if scenario.phases.len() > 1 {
        says += &format!(" in \u{201c}{}\u{201d}", scenario.phases[expect.phase].name);
    }
    if expect.run != Variant::of(Policy::Ours) {
        says += &format!(", {}", way_words(scenario, &expect.run));
    }
    if let Some(against) = &expect.against {
        let mut other = Vec::new();
        if against.disks != expect.disks || against.hosts != expect.hosts {
            let whose = whose(scenario, expect.what, &against.disks, &against.hosts);
            other.push(whose.trim_start().to_owned());
        }
        if against.phase != expect.phase {
            let phase = &scenario.phases[against.phase].name;
            other.push(format!("in \u{201c}{phase}\u{201d}"));
        }
        if against.run != expect.run {
            other.push(way_words(scenario, &against.run));
        }
        says += &format!(", by that {}", other.join(" "));
    }
    if expect.of_seeds < 100 {
        says += &format!(", with {} of 100 seeds", expect.of_seeds);
    }
    says
}

/// Of which disks or hosts, where not of all.
fn whose(scenario: &Scenario, what: Measure, disks: &[usize], hosts: &[usize]) -> String {
    let (names, all): (Vec<&str>, usize) = if what == Measure::Window {
        let names = hosts.iter().map(|&host| scenario.hosts[host].name.as_str());
        (names.collect(), scenario.hosts.len())
    } else {
        let names = disks.iter().map(|&disk| scenario.disks[disk].name.as_str());
        (names.collect(), scenario.disks.len())
    };
    match names.as_slice() {
        all_of_them if all_of_them.len() == all => String::new(),
        few @ ([_] | [_, _] | [_, _, _] | [_, _, _, _]) => format!(" of {}", few.join(", ")),
        many => format!(" of {} and {} others", many[..2].join(", "), many.len() - 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::fixtures::scenario;

    fn set_up(summary: &Summary) -> &ScenarioSummary {
        match &summary.set_up {
            SetUp::Scenario(set_up) => set_up,
            SetUp::AbTest(_) | SetUp::Study(_) => panic!("{} is a scenario", summary.name),
        }
    }

    #[test]
    fn an_experiment_says_who_shares_what_and_what_is_expected() {
        let summary = scenario("sioc-3", 100).summary();
        assert!(summary.published);
        let set_up = set_up(&summary);
        assert_eq!(set_up.threshold, "12ms");
        assert_eq!(set_up.hosts, ["host1", "host2"]);
        let disk = &set_up.disks[3];
        assert_eq!(disk.shares, 2_000);
        let shop = "a shop of 72 users who think 500ms";
        assert!(disk.workload.starts_with(shop), "{}", disk.workload);
        assert_eq!(set_up.phases[1].idle, ["vm4"]);
        assert_eq!((summary.run_s, summary.engine_s), (900.0, 1_800.0));
        let ssd = scenario("sioc-ssd", 100).summary();
        let disks = self::set_up(&ssd).disks.iter();
        let settings: Vec<&str> = disks.map(|disk| disk.settings.as_str()).collect();
        assert!(settings.contains(&"limit 500 IOPS") && settings.contains(&"reservation 600 IOPS"));
        assert_eq!(summary.ways, ["with I/O control", "without I/O control"]);
        for (place, what, bar) in [
            (
                2,
                "throughput of vm1, vm2, vm3 in \u{201c}idle\u{201d}, by that in \u{201c}all\u{201d}",
                "",
            ),
            (
                3,
                "hosts' windows of host1 in \u{201c}all\u{201d}, by that of host2",
                "0.64 to 0.69",
            ),
            (0, "", "at most 2 %"),
        ] {
            let check = &summary.checks[place];
            assert!(check.what.contains(what), "{}", check.what);
            assert!(check.bar.contains(bar), "{}", check.bar);
        }
    }

    #[test]
    fn every_experiment_has_a_summary_and_its_ways_have_names_of_their_own() {
        for entry in Entry::all().expect("they are experiments") {
            let summary = entry.summary();
            assert!(summary.checks.iter().all(|check| !check.bar.is_empty()));
            let Entry::Scenario(experiment) = entry else {
                continue;
            };
            let (scenario, ways) = (&experiment.scenario, experiment.ways());
            assert_eq!(summary.checks.len(), scenario.expects.len());
            let slugs = ways.iter().map(|way| way_slug(scenario, way));
            let slugs: std::collections::BTreeSet<String> = slugs.collect();
            assert_eq!(slugs.len(), ways.len(), "{}", summary.name);
        }
    }
}
