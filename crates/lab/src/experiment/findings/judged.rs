//! Judges the checks of a scenario, and what must hold in every run.
//!
//! # Always true
//! - A repeat in which there is no figure does not hold, and is reported; it is never left out of the judgement.
//! - What must hold of every run is checked wherever runs were made.

use std::collections::BTreeMap;

use tidegate_core::units::Time;
use tidegate_sim::scenario::{Expect, Measure};
use tidegate_sim::{Policy, Variant, judge};

use super::{Check, Loaded, Outcome, Verdict};
use crate::experiment::summary::{bar, check, unit};
use crate::experiment::{On, way_words};
use crate::statistics::spread;

/// The scenario's checks in one place, and what must hold of every run.
pub(super) fn of(loaded: &Loaded, on: On) -> Vec<Check> {
    let scenario = &loaded.experiment.scenario;
    let mut values: Vec<Vec<f64>> = vec![Vec::new(); scenario.expects.len()];
    for repeat in loaded.repeats(on) {
        let runs = loaded.repeat(on, repeat);
        for judged in judge::judgements(scenario, &runs) {
            // A run that is missing is reported as such, and is no figure that does not hold.
            if ways(&scenario.expects[judged.expect]).all(|way| runs.contains_key(way)) {
                values[judged.expect].push(judged.value);
            }
        }
    }
    let each = scenario.expects.iter().zip(&values);
    let mut checks: Vec<Check> = each
        .map(|(expect, values)| {
            let outcome = match unjudged(loaded, on, expect) {
                Some(why) => Outcome::unjudged(why),
                None => Outcome::of(values, expect.at_least, expect.at_most, "repeats"),
            };
            let summary = check(scenario, expect);
            outcome.check(
                on,
                summary.what,
                summary.published,
                bar(expect),
                unit(expect),
            )
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
    );
    if on == On::Engine && simulated {
        return Some("only the simulator sees this".to_owned());
    }
    for way in ways(expect) {
        if on == On::Engine && way.policy == Policy::Parda {
            return Some("PARDA is the simulator's alone".to_owned());
        }
        let there = loaded.runs.get(&on).and_then(|ways| ways.get(way));
        if there.is_none_or(BTreeMap::is_empty) {
            return Some(format!("not run {}", way_words(scenario, way)));
        }
    }
    judge::too_short(scenario, expect)
}

/// What must hold of every run, whatever its figures.
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

/// How many breaches there are, and the first of them. The ways that ours is compared with keep no promises.
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
    let any = loaded.made.get(&on).is_some_and(|made| !made.is_empty());
    Check {
        on: Some(on),
        what: what.to_owned(),
        published: "no luck excuses one".to_owned(),
        bar: "at most 0".to_owned(),
        unit: "",
        ours: spread(&[bad as f64]).filter(|_| any),
        held: usize::from(any && bad == 0),
        of: usize::from(any),
        verdict: match (any, bad) {
            (false, _) => Verdict::NotJudged,
            (true, 0) => Verdict::Pass,
            (true, _) => Verdict::Fail,
        },
        note: if any {
            note
        } else {
            Some("nothing was run".to_owned())
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::store::{StoredBreach, StoredRun};
    use crate::experiment::summary::way_slug;
    use crate::experiment::{Directory, Experiment, Findings};
    use std::path::Path;
    use tidegate_sim::world;

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

    /// Keeps a run of each way as if made there, each changed by `change`.
    fn keep(
        place: &Path,
        experiment: &Experiment,
        on: On,
        repeats: u32,
        change: impl Fn(&Variant, u32, &mut StoredRun),
    ) -> Findings {
        let entry = experiment.clone().into();
        let directory = Directory::begin(place, &entry, 100, 1, &[on], repeats);
        let directory = directory.expect("it is ours");
        for repeat in 1..=repeats {
            for way in experiment.ways_on(on) {
                let run = world::run(&experiment.scenario, &way, u64::from(repeat));
                let run = run.expect("it can be modelled");
                let mut stored = StoredRun::of(&experiment.scenario, on, &run);
                stored.repeat = repeat;
                stored.way = way_slug(&experiment.scenario, &way);
                change(&way, repeat, &mut stored);
                directory.keep(&stored).expect("it can be written");
            }
        }
        Findings::read(place).expect("it can be read")
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

    fn found<'a>(findings: &'a Findings, what: &str) -> &'a Check {
        let mut checks = findings.checks.iter();
        let found = checks.find(|check| check.what.contains(what));
        found.unwrap_or_else(|| panic!("no {what} among {:?}", findings.checks))
    }

    #[test]
    fn a_limit_that_was_passed_on_real_daemons_fails_and_passed_without_control_does_not() {
        let experiment = Experiment::read(PAIR).expect("a scenario");
        for (policy, verdict) in [(Policy::Ours, Verdict::Fail), (Policy::None, Verdict::Pass)] {
            let scratch = tempfile::tempdir().expect("a scratch directory");
            let findings = keep(
                scratch.path(),
                &experiment,
                On::Engine,
                1,
                |way, _, stored| {
                    if way.policy == policy {
                        stored.breaches = vec![StoredBreach {
                            at_ns: 1_500_000_000,
                            what: "one had 200 where 100 are let".into(),
                        }];
                    }
                },
            );
            let check = found(&findings, "breaches");
            assert_eq!(check.verdict, verdict, "{check:?}");
            assert_eq!(findings.holds(), verdict == Verdict::Pass);
            if verdict == Verdict::Fail {
                let note = check.note.as_deref().unwrap_or_default();
                assert!(note.contains("one had 200"), "{note}");
            }
        }
    }

    #[test]
    fn a_disk_of_which_no_io_was_answered_has_no_latency_that_could_pass() {
        let experiment = Experiment::read(PAIR).expect("a scenario");
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let findings = keep(
            scratch.path(),
            &experiment,
            On::Engine,
            1,
            |_, _, stored| {
                starve(stored);
            },
        );
        for check in &findings.checks[..2] {
            assert_eq!((check.verdict, check.held, check.of), (Verdict::Fail, 0, 1));
            let note = check.note.as_deref().unwrap_or_default();
            assert!(note.contains("no figure in 1 of 1 repeats"), "{note}");
        }
    }

    #[test]
    fn repeats_without_a_figure_do_not_hold_and_are_counted() {
        let experiment = Experiment::read(PAIR).expect("a scenario");
        for (starved, verdict) in [(1, Verdict::Pass), (2, Verdict::Fail)] {
            let scratch = tempfile::tempdir().expect("a scratch directory");
            let findings = keep(
                scratch.path(),
                &experiment,
                On::Sim,
                3,
                |_, repeat, stored| {
                    if repeat <= starved {
                        starve(stored);
                    }
                },
            );
            let check = &findings.checks[0];
            let alone = usize::try_from(3 - starved).expect("a few");
            assert_eq!((check.verdict, check.held, check.of), (verdict, alone, 3));
            let note = check.note.as_deref().unwrap_or_default();
            assert!(note.contains(&format!("in {starved} of 3")), "{note}");
        }
    }

    #[test]
    fn a_phase_without_one_whole_window_is_not_judged() {
        let expect = "[[expect]]\nwhat = \"latency-impact\"\nof = 1000\nwindow = \"2500ms\"\nat-most = 5\n\
                      source = \"made up\"\n";
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let experiment = Experiment::read(&format!("{PAIR}\n{expect}")).expect("a scenario");
        let findings = keep(scratch.path(), &experiment, On::Sim, 1, |_, _, _| ());
        let check = &findings.checks[3];
        assert_eq!(check.verdict, Verdict::NotJudged, "{check:?}");
        let note = check.note.as_deref().unwrap_or_default();
        assert!(note.contains("shorter than a window of 2.5"), "{note}");
    }
}
