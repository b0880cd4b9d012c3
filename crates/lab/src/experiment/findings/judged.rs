//! Judges the checks of a scenario, and the guarantees of every run.
//!
//! # Always true
//! - A repeat without a figure fails and is reported. It is never left out of the verdict.
//! - Guarantees are checked in every run.

use std::collections::BTreeMap;

use tidegate_core::units::Time;
use tidegate_sim::scenario::{Expect, Measure};
use tidegate_sim::{Policy, Variant, judge};

use super::{Check, Loaded};
use crate::experiment::summary::{CheckSummary, check, unit};
use crate::experiment::{On, way_words};
use crate::play;

/// The scenario's checks in one place, and the guarantees of every run.
pub(super) fn of(loaded: &Loaded, on: On) -> Vec<Check> {
    let scenario = &loaded.experiment.scenario;
    let mut values: Vec<Vec<f64>> = vec![Vec::new(); scenario.expects.len()];
    for repeat in loaded.repeats(on) {
        let runs = loaded.repeat(on, repeat);
        for judged in judge::judgements(scenario, &runs) {
            // A missing run is reported as such, and fails no check.
            if ways(&scenario.expects[judged.expect]).all(|way| runs.contains_key(way)) {
                values[judged.expect].push(judged.value);
            }
        }
    }
    let each = scenario.expects.iter().zip(&values);
    let mut checks: Vec<Check> = each
        .map(|(expect, values)| {
            let check = Check::new(Some(on), check(scenario, expect), unit(expect));
            match unjudged(loaded, on, expect) {
                Some(why) => check.unjudged(why),
                None => check.judged(values, expect.at_least, expect.at_most, "repeats"),
            }
        })
        .collect();
    checks.extend(sound(loaded, on));
    checks
}

/// The ways in which it was to be run for a check.
fn ways(expect: &Expect) -> impl Iterator<Item = &Variant> {
    let other = expect.against.as_ref().map(|against| &against.run);
    std::iter::once(&expect.run).chain(other)
}

/// Why a check cannot be judged there, where it cannot.
fn unjudged(loaded: &Loaded, on: On, expect: &Expect) -> Option<String> {
    let scenario = &loaded.experiment.scenario;
    let simulated = matches!(
        expect.what,
        Measure::LongestWait
            | Measure::Lag
            | Measure::Coordination
            | Measure::HostsLost
            | Measure::External
            | Measure::ArrayShare
            | Measure::Background
            | Measure::RebuildRate
    );
    if on == On::Engine && simulated {
        return Some("only the simulator sees this".to_owned());
    }
    for way in ways(expect) {
        if on == On::Engine
            && let Some(why) = play::not_on_daemons(scenario, way)
        {
            return Some(why.to_owned());
        }
        let there = loaded.runs.get(&on).and_then(|ways| ways.get(way));
        if there.is_none_or(BTreeMap::is_empty) {
            return Some(format!("not run {}", way_words(scenario, way)));
        }
    }
    judge::too_short(scenario, expect)
}

/// The guarantees of every run, whatever its figures.
fn sound(loaded: &Loaded, on: On) -> Vec<Check> {
    let (breaches, first) = breached(loaded, on);
    match on {
        On::Engine => {
            let errors = loaded.errors.get(&on).copied().unwrap_or(0);
            vec![
                none_of(loaded, on, "I/Os that ended with an error", errors, None),
                none_of(loaded, on, "breaches: limits passed", breaches, first),
            ]
        }
        On::Sim => {
            let what = "breaches: limits passed, I/Os lost or answered twice, windows overrun";
            vec![none_of(loaded, on, what, breaches, first)]
        }
    }
}

/// How many breaches there are, and the first of them. The ways that it is compared with give no guarantees.
fn breached(loaded: &Loaded, on: On) -> (u64, Option<String>) {
    let ways = loaded.runs.get(&on).into_iter().flatten();
    let ours = ways.filter(|(way, _)| way.policy == Policy::Ours);
    let runs = ours.flat_map(|(_, runs)| runs.values());
    let mut breaches = runs.flat_map(|run| &run.breaches);
    let Some(first) = breaches.next() else {
        return (0, None);
    };
    let at = first.at.since(Time::ZERO);
    let first = format!("the first at {at}: {}", first.what);
    (1 + breaches.map(|_| 1).sum::<u64>(), Some(first))
}

/// The check that something happened in no run.
fn none_of(loaded: &Loaded, on: On, what: &str, bad: u64, note: Option<String>) -> Check {
    let summary = CheckSummary {
        what: what.to_owned(),
        published: "a guarantee: no exception is allowed".to_owned(),
        bar: "at most 0".to_owned(),
    };
    let check = Check::new(Some(on), summary, "");
    if loaded.made.get(&on).is_none_or(Vec::is_empty) {
        return check.unjudged("nothing was run".to_owned());
    }
    Check {
        note,
        ..check.judged(&[bad as f64], None, Some(0.0), "runs")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::fixtures;
    use crate::experiment::store::{StoredBreach, StoredRun};
    use crate::experiment::{Experiment, Findings, Verdict};

    /// Two disks, and what is expected of them.
    const PAIR: &str = r#"
        name = "pair"
        title = "Two disks"
        lasts = "3s"
        settling = "1s"
        [datastore]
        array = { servers = 4, read = "10ms", rate = "100MiB" }
        [[host]]
        name = "host1"
        [[disk]]
        name = "one"
        host = "host1"
        workload = { kind = "access", outstanding = 8 }
        [[disk]]
        name = "two"
        host = "host1"
        workload = { kind = "access", outstanding = 8 }
        [[expect]]
        what = "latency"
        disks = ["two"]
        at-most = 1000
        source = "made up"
        [[expect]]
        what = "latency-percentile"
        disks = ["two"]
        at-most = 1000
        source = "made up"
        [[expect]]
        what = "iops"
        policy = "none"
        at-least = 1
        source = "made up"
    "#;

    /// The findings of some repeats, each run changed by `change`.
    fn findings(
        more: &str,
        on: On,
        repeats: u32,
        change: impl Fn(&Variant, u32, &mut StoredRun),
    ) -> Findings {
        let experiment = Experiment::read(&format!("{PAIR}\n{more}")).expect("a scenario");
        let scratch = tempfile::tempdir().expect("a scratch directory");
        fixtures::stored(scratch.path(), &experiment, on, repeats, change);
        Findings::read(scratch.path()).expect("it can be read")
    }

    /// As if no I/O of its last disk had been answered.
    fn starve(stored: &mut StoredRun) {
        let disk = stored.disks.last_mut().expect("there are two");
        for column in [&mut disk.ios, &mut disk.bytes, &mut disk.cost] {
            column.fill(0);
        }
        disk.latencies_us.clear();
        disk.waits_us.clear();
    }

    #[test]
    fn a_limit_that_was_passed_on_real_daemons_fails_and_passed_without_control_does_not() {
        for (policy, verdict) in [(Policy::Ours, Verdict::Fail), (Policy::None, Verdict::Pass)] {
            let findings = findings("", On::Engine, 1, |way, _, stored| {
                if way.policy == policy {
                    stored.breaches = vec![StoredBreach {
                        at_ns: 1_500_000_000,
                        what: "one had 200 where 100 are let".into(),
                    }];
                }
            });
            let mut checks = findings.checks.iter();
            let check = checks.find(|check| check.what.contains("breaches"));
            let check = check.expect("it is checked");
            assert_eq!(check.verdict, verdict, "{check:?}");
            assert_eq!(findings.holds(), verdict == Verdict::Pass);
            let note = check.note.as_deref().unwrap_or_default();
            assert_eq!(note.contains("one had 200"), verdict == Verdict::Fail);
        }
    }

    #[test]
    fn a_disk_of_which_no_io_was_answered_has_no_latency_that_could_pass() {
        let findings = findings("", On::Engine, 1, |_, _, stored| starve(stored));
        for check in &findings.checks[..2] {
            let counts = (check.passed, check.of);
            assert_eq!((check.verdict, counts), (Verdict::Fail, (0, 1)));
            let note = check.note.as_deref().unwrap_or_default();
            assert!(note.contains("1 of 1 repeats fail"), "{note}");
        }
    }

    #[test]
    fn repeats_without_a_figure_fail_and_are_counted() {
        for (starved, verdict) in [(1, Verdict::Pass), (2, Verdict::Fail)] {
            let findings = findings("", On::Sim, 3, |_, repeat, stored| {
                if repeat <= starved {
                    starve(stored);
                }
            });
            let check = &findings.checks[0];
            let alone = usize::try_from(3 - starved).expect("a few");
            let counts = (check.passed, check.of);
            assert_eq!((check.verdict, counts), (verdict, (alone, 3)));
            let note = check.note.as_deref().unwrap_or_default();
            assert!(note.contains(&format!("{starved} of 3")), "{note}");
        }
    }

    #[test]
    fn a_phase_without_one_whole_window_is_not_judged() {
        let expect = "[[expect]]\nwhat = \"latency-impact\"\nof = 1000\nwindow = \"2500ms\"\nat-most = 5\n\
                      source = \"made up\"\n";
        let check = &findings(expect, On::Sim, 1, |_, _, _| ()).checks[3];
        assert_eq!(check.verdict, Verdict::NotJudged, "{check:?}");
        let note = check.note.as_deref().unwrap_or_default();
        assert!(note.contains("shorter than a window of 2.5"), "{note}");
    }
}
