//! A what-if case from stored `lab run` results.
//!
//! Nothing is guessed here: the directory has the scenario that was run. So what a prediction is worth is what the simulator
//! is worth.

use std::path::Path;

use anyhow::{Context, Result, bail};
use tidegate_core::units::Span;
use tidegate_sim::results::DiskSeries;
use tidegate_sim::{Policy, Scenario, Variant};

use super::{Case, Did, Known, did, mode_note};
use crate::experiment::store::StoredRun;
use crate::experiment::summary::way_slug;
use crate::experiment::{Directory, On};

/// Of a phase, what is left out at its beginning where the experiment says nothing: windows settle in a second or two.
const SETTLING: Span = Span::from_secs(5);

/// The case of an experiment's results in `dir`, by its last phase or the one of that name: real daemons if it was run on
/// them, the simulator otherwise.
///
/// # Errors
/// It holds no results, or none of a run with I/O control, or has no such phase.
pub fn case(dir: &Path, phase: Option<&str>) -> Result<Case> {
    let Some(directory) = Directory::open(dir)? else {
        bail!(
            "{} holds no results of `lab run`: name a directory that it has left",
            dir.display()
        );
    };
    let mut scenario = directory.experiment()?.scenario;
    let variant = Variant::of(Policy::Ours);
    let slug = way_slug(&scenario, &variant);
    let runs: Vec<StoredRun> = directory.runs()?;
    let of = |on: On| {
        let runs = runs.iter();
        let runs = runs.filter(|run| {
            let piece = &run.head.piece;
            piece.on == on && piece.slug == slug
        });
        runs.collect::<Vec<_>>()
    };
    let (on, runs) = match (of(On::Engine), of(On::Sim)) {
        (engine, _) if !engine.is_empty() => (On::Engine, engine),
        (_, sim) if !sim.is_empty() => (On::Sim, sim),
        _ => bail!("{} holds no run with I/O control", dir.display()),
    };
    let place = place(&scenario, phase)?;
    let plan = &scenario.phases[place];
    let lasts = plan.ends.since(plan.begins);
    let half = Span::from_nanos(lasts.as_nanos() / 2);
    let skips = scenario.expects.iter().map(|expect| expect.skip);
    let skip = skips.max().unwrap_or(SETTLING).min(half);
    let (from, to) = (plan.begins + skip, plan.ends);
    let mut disks: Vec<Vec<Did>> = vec![Vec::new(); scenario.disks.len()];
    for stored in &runs {
        let run = stored.run(&scenario, &variant);
        let run = run.with_context(|| format!("a run in {} cannot be read", dir.display()))?;
        let series: &[DiskSeries] = &run.results.disks;
        for (disk, series) in disks.iter_mut().zip(series) {
            disk.push(did(series, from, to));
        }
    }
    let mut notes = vec![format!(
        "guests and array are the experiment's own; measured {} in phase {}",
        match on {
            On::Engine => "on real daemons",
            On::Sim => "in virtual time, with the same simulator",
        },
        scenario.phases[place].name
    )];
    notes.extend(mode_note(scenario.datastore.control));
    // What comes after it does not matter.
    scenario.phases.truncate(place + 1);
    Ok(Case {
        of: scenario.name.clone(),
        phase: place,
        skip,
        covers_s: std::time::Duration::from_nanos(to.since(from).as_nanos()).as_secs_f64(),
        measured: disks.iter().map(|runs| Some(mean(runs))).collect(),
        array: Known::Whole,
        scenario,
        notes,
    })
}

fn place(scenario: &Scenario, phase: Option<&str>) -> Result<usize> {
    let Some(name) = phase else {
        return Ok(scenario.phases.len() - 1);
    };
    let found = scenario.phases.iter().position(|plan| plan.name == name);
    found.with_context(|| {
        let names = scenario.phases.iter().map(|plan| plan.name.as_str());
        let names: Vec<&str> = names.collect();
        format!("it has no phase {name}: there are {}", names.join(", "))
    })
}

/// Over repeats.
fn mean(runs: &[Did]) -> Did {
    let count = runs.len().max(1) as f64;
    Did {
        iops: runs.iter().map(|did| did.iops).sum::<f64>() / count,
        latency_us: runs.iter().map(|did| did.latency_us).sum::<f64>() / count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::fixtures::{scenario, simulated};
    use crate::whatif::{Changes, Setting, Worth, predict};

    #[test]
    fn stored_results_of_the_simulator_are_what_the_simulator_says_again() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let experiment = scenario("sioc-3", 5);
        let entry = experiment.clone().into();
        let directory = Directory::begin(scratch.path(), &entry, 1, &[On::Sim], 1);
        let directory = directory.expect("it is empty");
        case(scratch.path(), None).expect_err("nothing was run yet");
        let way = Variant::of(Policy::Ours);
        let stored = simulated(&experiment.scenario, On::Sim, &way, 1);
        directory.store(&stored).expect("it can be written");

        let case = |phase| super::case(scratch.path(), phase);
        let again = case(None).expect("it is stored");
        assert_eq!(again.scenario.phases[again.phase].name, "again");
        let all = case(Some("all")).expect("it is stored");
        assert_eq!((all.phase, all.scenario.phases.len()), (0, 1));
        let error = case(Some("some")).expect_err("no such phase").to_string();
        assert!(error.contains("there are all, idle, again"), "{error}");

        let changes = Changes {
            disks: vec![("vm1".to_owned(), Setting::Shares(4_000))],
            threshold: None,
        };
        let predicted = predict(&all, &changes, &mut || Ok(())).expect("it can be modelled");
        assert_eq!(predicted.agreement.worth, Worth::Good, "{predicted:#?}");
        // Its users think: it does not take four times as much.
        let vm1 = &predicted.disks[0];
        assert!(
            (10.0..200.0).contains(&vm1.iops_change_percent),
            "{predicted:#?}"
        );
    }

    #[test]
    fn what_is_no_results_directory_is_refused() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let error = case(scratch.path(), None).expect_err("it is empty");
        assert!(error.to_string().contains("lab run"), "{error}");
    }
}
