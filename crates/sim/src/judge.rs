//! The verdict on a run: it compares the results with the scenario's expectations.
//!
//! [`judge`] makes the runs that a scenario's expectations need (each variant once), computes the figures in
//! `measure.rs` and compares them with their bounds. A missed bound is reported with both numbers. Nothing is rounded.
//!
//! # Always true
//! - A run with a breach never passes, whatever its figures.
//! - A figure without data is NaN, which is within no bound.

pub mod by_window;
mod measure;

use crate::invariants::Breach;
use crate::policy::Policy;
use crate::scenario::{Expect, Measure, Scenario, ScenarioError, Variant};
use crate::world::{Run, run};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use measure::Stretch;

/// The result of an expectation.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// The expectation's index in the scenario.
    pub expect: usize,
    /// The figure.
    pub value: f64,
    /// Whether it is within its bounds.
    pub holds: bool,
}

/// The results of a scenario with one seed.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The seed.
    pub seed: u64,
    /// One for each expectation.
    pub judgements: Vec<Judgement>,
    /// The breaches in runs under our control.
    pub breaches: Vec<Breach>,
    /// The fingerprint of the scenario's own run.
    pub fingerprint: u64,
    /// All runs.
    pub runs: BTreeMap<Variant, Run>,
}

impl Verdict {
    /// Whether there is no breach and every expectation that must hold with every seed does. A run that is too short
    /// for a figure is not judged by it.
    pub fn holds(&self, scenario: &Scenario) -> bool {
        let must = |judged: &Judgement| {
            let expect = &scenario.expects[judged.expect];
            expect.of_seeds == 100 && too_short(scenario, expect).is_none()
        };
        self.breaches.is_empty() && self.judgements.iter().all(|j| j.holds || !must(j))
    }
}

/// Runs a scenario in every variant that its expectations need, and judges it.
///
/// # Errors
/// When a run is impossible.
pub fn judge(scenario: &Scenario, seed: u64) -> Result<Verdict, ScenarioError> {
    let mut runs = BTreeMap::new();
    let own = Variant::of(Policy::Ours);
    for variant in needed(scenario) {
        let run = run(scenario, &variant, seed)?;
        runs.insert(variant, run);
    }
    let judgements = judgements(scenario, &runs);
    Ok(Verdict {
        seed,
        judgements,
        // The baselines may violate the invariants.
        breaches: runs
            .iter()
            .filter(|(variant, _)| variant.policy == Policy::Ours)
            .flat_map(|(_, run)| run.breaches.clone())
            .collect(),
        fingerprint: runs.get(&own).map_or(0, |run| run.fingerprint),
        runs,
    })
}

/// The variants that a scenario's expectations need, including the scenario itself under our control.
pub fn needed(scenario: &Scenario) -> BTreeSet<Variant> {
    let needed = scenario.expects.iter().flat_map(|expect| {
        let other = expect.against.as_ref().map(|against| against.run.clone());
        [Some(expect.run.clone()), other]
    });
    let own = Variant::of(Policy::Ours);
    needed.flatten().chain([own]).collect()
}

/// Compares every expectation with runs from any source. An expectation fails if its run is missing.
pub fn judgements(scenario: &Scenario, runs: &BTreeMap<Variant, Run>) -> Vec<Judgement> {
    let judge = |(place, expect): (usize, &Expect)| {
        let value = value(scenario, expect, &expect.run, runs);
        Judgement {
            expect: place,
            value,
            holds: expect.at_least.is_none_or(|least| value >= least)
                && expect.at_most.is_none_or(|most| value <= most),
        }
    };
    scenario.expects.iter().enumerate().map(judge).collect()
}

/// Why a run is too short to judge an expectation. Its phase ends before the settling time, or is shorter than the
/// windows of the figure.
pub fn too_short(scenario: &Scenario, expect: &Expect) -> Option<String> {
    let other = expect.against.as_ref().map(|against| against.phase);
    [Some(expect.phase), other]
        .into_iter()
        .flatten()
        .find_map(|phase| short_of(scenario, expect, phase))
}

fn short_of(scenario: &Scenario, expect: &Expect, phase: usize) -> Option<String> {
    let phase = &scenario.phases[phase];
    let settled = phase.begins + expect.skip;
    if settled >= phase.ends {
        return Some("the phase ends before the settling time: run it longer".to_owned());
    }
    let (from, needs) = match expect.what {
        Measure::Settles | Measure::DeviceLatencySettles => (phase.begins, measure::STAYS),
        Measure::UnitsFirst | Measure::Resumed => (phase.begins, 1),
        Measure::ShareErrorWindows
        | Measure::UnitsLeast
        | Measure::Dip
        | Measure::Isolation
        | Measure::LatencyImpact => (settled, 1),
        _ => return None,
    };
    let left = phase.ends.since(from).as_nanos();
    (left < needs * expect.window.as_nanos()).then(|| {
        let windows = match needs {
            1 => "a window".to_owned(),
            needs => format!("{needs} windows"),
        };
        format!(
            "the phase is shorter than {windows} of {}: run it longer",
            expect.window
        )
    })
}

/// An expectation's figure under each policy. The reference that it is divided by stays the same.
///
/// # Errors
/// When a run is impossible.
pub fn side_by_side(
    scenario: &Scenario,
    seed: u64,
) -> Result<Vec<(usize, [f64; 3])>, ScenarioError> {
    let mut runs = judge(scenario, seed)?.runs;
    let mut rows = Vec::new();
    for (place, expect) in scenario.expects.iter().enumerate() {
        if expect.run != Variant::of(Policy::Ours) {
            continue;
        }
        let mut row = [0.0; 3];
        for (cell, policy) in row.iter_mut().zip(Policy::ALL) {
            let variant = Variant::of(policy);
            if let Entry::Vacant(place) = runs.entry(variant.clone()) {
                let run = run(scenario, place.key(), seed)?;
                place.insert(run);
            }
            *cell = value(scenario, expect, &variant, &runs);
        }
        rows.push((place, row));
    }
    Ok(rows)
}

/// The figure of an expectation in a run. NaN if a run is missing.
fn value(
    scenario: &Scenario,
    expect: &Expect,
    variant: &Variant,
    runs: &BTreeMap<Variant, Run>,
) -> f64 {
    let Some(run) = runs.get(variant) else {
        return f64::NAN;
    };
    let here = Stretch {
        scenario,
        run,
        phase: expect.phase,
        disks: &expect.disks,
        hosts: &expect.hosts,
    };
    let value = here.measure(expect);
    let Some(against) = &expect.against else {
        return value;
    };
    let Some(run) = runs.get(&against.run) else {
        return f64::NAN;
    };
    let there = Stretch {
        scenario,
        run,
        phase: against.phase,
        disks: &against.disks,
        hosts: &against.hosts,
    };
    // Without a reference there is no figure.
    match there.measure(expect) {
        0.0 => f64::NAN,
        other => value / other,
    }
}

/// An expectation as text: figure, disks, phase and bounds.
pub fn describe(scenario: &Scenario, expect: &Expect) -> impl fmt::Display {
    let mut text = expect.what.word().to_owned();
    if expect.disks.len() < scenario.disks.len() {
        let names = expect
            .disks
            .iter()
            .map(|&disk| scenario.disks[disk].name.as_str());
        let names: Vec<_> = names.take(4).collect();
        text += &format!(" of {}", names.join(", "));
    }
    if scenario.phases.len() > 1 {
        text += &format!(" in `{}`", scenario.phases[expect.phase].name);
    }
    if expect.run.policy != Policy::Ours {
        text += &format!(" under {}", expect.run.policy.word());
    }
    if let Some(own) = scenario.configurations.get(expect.run.configuration) {
        text += &format!(" with {}", own.name);
    }
    if let Some(against) = &expect.against {
        let own = scenario.configurations.get(against.run.configuration);
        let policy = own.map_or(against.run.policy.word(), |own| &own.name);
        let alone = if against.run.alone.is_some() {
            ", alone"
        } else {
            ""
        };
        let phase = &scenario.phases[against.phase].name;
        text += &format!(" against {policy}{alone} (`{phase}`)");
    }
    if let Some(least) = expect.at_least {
        text += &format!(", at least {least}");
    }
    if let Some(most) = expect.at_most {
        text += &format!(", at most {most}");
    }
    if expect.of_seeds < 100 {
        text += &format!(", with {} of 100 seeds", expect.of_seeds);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two disks, of which the second issues no I/O.
    const SILENT: &str = r#"
        name = "silent"
        title = "A disk that does nothing"
        settling = "1s"
        [datastore]
        array = "fifo"
        threshold = "25ms"
        [[host]]
        name = "h"
        [[disk]]
        name = "busy"
        host = "h"
        workload = { kind = "access", outstanding = 8 }
        [[disk]]
        name = "silent"
        host = "h"
        workload = { kind = "access", outstanding = 8 }
        [[phase]]
        name = "all"
        lasts = "4s"
        idle = ["silent"]
    "#;

    fn silent(what: &str) -> Scenario {
        let expect = format!(
            "[[expect]]\nwhat = \"{what}\"\ndisks = [\"silent\"]\nof = 1\nat-most = 1e9\nsource = \"made up\"\n"
        );
        Scenario::read(&format!("{SILENT}\n{expect}")).unwrap()
    }

    #[test]
    fn a_disk_without_io_is_within_no_bound() {
        for what in [
            "latency",
            "latency-percentile",
            "order-time",
            "longest-wait",
            "share-error",
            "share-error-windows",
        ] {
            let verdict = judge(&silent(what), 1).unwrap();
            let judged = &verdict.judgements[0];
            assert!(judged.value.is_nan() && !judged.holds, "{what}: {judged:?}");
        }
        // The number of I/Os is a valid figure for it.
        let judged = judge(&silent("iops"), 1).unwrap().judgements;
        assert_eq!((judged[0].value, judged[0].holds), (0.0, true));
    }

    #[test]
    fn a_phase_shorter_than_its_windows_is_reported() {
        let whole = silent("isolation");
        assert_eq!(too_short(&whole, &whole.expects[0]), None);
        let short = whole.scaled(25);
        let text = too_short(&short, &short.expects[0]).unwrap();
        assert!(text.contains("shorter than a window of 1.00s"), "{text}");
        let verdict = judge(&short, 1).unwrap();
        assert!(verdict.judgements[0].value.is_nan());
        assert!(verdict.holds(&short), "it is not judged");
    }
}
