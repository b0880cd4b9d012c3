//! Whether real daemons and the simulator say the same of one scenario: what each disk has, and how long it waits for it.
//!
//! Where both are in one directory they are laid beside each other, by way, phase and disk; the worst disk decides.

use serde::Serialize;
use tidegate_sim::{Run, Scenario, Variant};

use super::findings::{Check, Loaded, Verdict, asks};
use super::series::{Band, Slice, mean_ms};
use super::{On, way_words};
use crate::statistics::spread;

/// How far parts of the throughput may be from each other, in percent of the simulator's.
const SHARES_WITHIN: f64 = 3.0;
/// How far mean latencies may be.
const LATENCY_WITHIN: f64 = 15.0;

/// Both places, side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// By way, phase and disk.
    pub rows: Vec<Row>,
}

/// One disk in one phase, in both places: medians over the repeats.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// In which way.
    pub way: String,
    /// In which phase.
    pub phase: String,
    /// Which disk.
    pub disk: String,
    /// Its part of all I/Os on real daemons, in percent.
    pub share_engine: f64,
    /// The same in the simulator.
    pub share_sim: f64,
    /// How far the first is from the second, in percent of that.
    pub share_off: f64,
    /// Its mean latency on real daemons, in milliseconds.
    pub latency_engine_ms: f64,
    /// The same in the simulator.
    pub latency_sim_ms: f64,
    /// How far the first is from the second, in percent of that.
    pub latency_off: f64,
}

/// Lays them side by side, where both were run.
#[must_use]
pub(super) fn of(loaded: &Loaded) -> Option<Agreement> {
    let scenario = &loaded.experiment.scenario;
    let engine = loaded.runs.get(&On::Engine)?;
    let sim = loaded.runs.get(&On::Sim)?;
    let mut rows = Vec::new();
    for (way, runs) in engine {
        let Some(others) = sim.get(way) else {
            continue;
        };
        for (place, phase) in scenario.phases.iter().enumerate() {
            for (disk, named) in scenario.disks.iter().enumerate() {
                let band = Band {
                    name: named.name.clone(),
                    disks: vec![disk],
                };
                if asks(&band, way, &phase.active) {
                    let here = standing(scenario, runs.values(), place, disk);
                    let there = standing(scenario, others.values(), place, disk);
                    rows.extend(row(scenario, way, place, disk, here, there));
                }
            }
        }
    }
    (!rows.is_empty()).then_some(Agreement { rows })
}

/// A disk's part and mean latency in a phase: the medians.
fn standing<'a>(
    scenario: &Scenario,
    runs: impl Iterator<Item = &'a Run>,
    phase: usize,
    disk: usize,
) -> Option<(f64, f64)> {
    let slice = Slice::settled(scenario, phase);
    let (mut shares, mut latencies) = (Vec::new(), Vec::new());
    for run in runs {
        shares.push(slice.share(run, &[disk]));
        latencies.extend(mean_ms(&slice.latencies(run, &[disk])));
    }
    Some((spread(&shares)?.median, spread(&latencies)?.median))
}

fn row(
    scenario: &Scenario,
    way: &Variant,
    phase: usize,
    disk: usize,
    here: Option<(f64, f64)>,
    there: Option<(f64, f64)>,
) -> Option<Row> {
    let ((share_engine, latency_engine_ms), (share_sim, latency_sim_ms)) = (here?, there?);
    let off = |ours: f64, theirs: f64| (ours / theirs - 1.0).abs() * 100.0;
    Some(Row {
        way: way_words(scenario, way),
        phase: scenario.phases[phase].name.clone(),
        disk: scenario.disks[disk].name.clone(),
        share_engine,
        share_sim,
        share_off: off(share_engine, share_sim),
        latency_engine_ms,
        latency_sim_ms,
        latency_off: off(latency_engine_ms, latency_sim_ms),
    })
}

impl Agreement {
    /// By way, whether shares and latencies agree.
    pub(super) fn checks(&self) -> Vec<Check> {
        let mut ways: Vec<&str> = self.rows.iter().map(|row| row.way.as_str()).collect();
        ways.dedup();
        let mut checks = Vec::new();
        for way in ways {
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.way == way).collect();
            checks.extend(worst(
                &rows,
                &format!("parts of the throughput, real daemons against the simulator, {way}"),
                SHARES_WITHIN,
                |row| row.share_off,
            ));
            checks.extend(worst(
                &rows,
                &format!("mean latency, real daemons against the simulator, {way}"),
                LATENCY_WITHIN,
                |row| row.latency_off,
            ));
        }
        checks
    }
}

/// The check of the disk that is furthest off.
fn worst(rows: &[&Row], what: &str, within: f64, off: fn(&Row) -> f64) -> Option<Check> {
    let worst = rows
        .iter()
        .max_by(|one, two| off(one).total_cmp(&off(two)))?;
    let value = off(worst);
    let holds = value <= within;
    Some(Check {
        on: None,
        what: what.to_owned(),
        published: "the two are to be of one mind".to_owned(),
        bar: format!("at most {within} %"),
        unit: " %",
        ours: spread(&[value]),
        held: usize::from(holds),
        verdict: match holds {
            _ if !value.is_finite() => Verdict::NotJudged,
            true => Verdict::Pass,
            false => Verdict::Fail,
        },
        note: Some(format!(
            "furthest: {} in \u{201c}{}\u{201d}",
            worst.disk, worst.phase
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(disk: &str, share_off: f64, latency_off: f64) -> Row {
        Row {
            way: "with I/O control".into(),
            phase: "all".into(),
            disk: disk.into(),
            share_engine: 0.0,
            share_sim: 0.0,
            share_off,
            latency_engine_ms: 0.0,
            latency_sim_ms: 0.0,
            latency_off,
        }
    }

    #[test]
    fn the_disk_that_is_furthest_off_decides() {
        let agreement = Agreement {
            rows: vec![row("vm1", 1.0, 16.0), row("vm2", 2.9, 3.0)],
        };
        let checks = agreement.checks();
        let verdicts: Vec<_> = checks.iter().map(|check| check.verdict).collect();
        assert_eq!(verdicts, [Verdict::Pass, Verdict::Fail]);
        let note = checks[1].note.as_deref().unwrap_or_default();
        assert!(note.contains("vm1"), "{note}");
    }
}
