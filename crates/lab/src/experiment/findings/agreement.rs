//! Compares real daemons with the simulator: each disk's throughput share and latency in one scenario.
//!
//! Where both are in one directory they are laid beside each other, by way, phase and disk; the worst disk decides.
//!
//! # Always true
//! - A disk that was served in one place and not in the other is the worst.

use serde::Serialize;

use super::{Check, Figure, Loaded, asks, figure};
use crate::experiment::On;
use crate::experiment::series::Band;
use crate::experiment::summary::CheckSummary;
use crate::statistics::Spread;

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
    /// How far the first is from the second, in percent of that; none of nothing.
    pub share_off: Option<f64>,
    /// Its mean latency on real daemons, in milliseconds; none if no I/O of it was answered.
    pub latency_engine_ms: Option<f64>,
    /// The same in the simulator.
    pub latency_sim_ms: Option<f64>,
    /// How far the first is from the second, in percent of that; none where one of them is.
    pub latency_off: Option<f64>,
}

/// Lays them side by side, where both were run. Not with caches: those of the simulator begin each phase empty, and more than
/// the array can do has no throughput that could agree.
#[must_use]
pub(super) fn of(loaded: &Loaded) -> Option<Agreement> {
    let scenario = &loaded.experiment.scenario;
    if !scenario.configurations.is_empty() {
        return None;
    }
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
                    let figure = |runs| figure(scenario, way, runs, place, &band);
                    rows.extend(Row::of(figure(runs), figure(others)));
                }
            }
        }
    }
    (!rows.is_empty()).then_some(Agreement { rows })
}

impl Row {
    /// None if it was not run in both places, or not served in either.
    fn of(engine: Figure, sim: Figure) -> Option<Row> {
        let median = |figure: Option<Spread>| figure.map(|figure| figure.median);
        let (share_engine, share_sim) = (median(engine.share)?, median(sim.share)?);
        let latency_engine_ms = median(engine.latency_ms);
        let latency_sim_ms = median(sim.latency_ms);
        (latency_engine_ms.is_some() || latency_sim_ms.is_some()).then(|| Row {
            way: engine.way,
            phase: engine.phase,
            disk: engine.disk,
            share_engine,
            share_sim,
            share_off: off(share_engine, share_sim),
            latency_engine_ms,
            latency_sim_ms,
            latency_off: latency_engine_ms.and_then(|ms| off(ms, latency_sim_ms?)),
        })
    }
}

/// How far a figure is from another, in percent of that.
fn off(ours: f64, theirs: f64) -> Option<f64> {
    let off = (ours / theirs - 1.0).abs() * 100.0;
    off.is_finite().then_some(off)
}

impl Agreement {
    /// By way, whether shares and latencies agree.
    pub(super) fn checks(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        for rows in self.rows.chunk_by(|one, other| one.way == other.way) {
            let against = format!("real daemons against the simulator, {}", rows[0].way);
            let what = format!("parts of the throughput, {against}");
            checks.extend(worst(rows, what, SHARES_WITHIN, |row| row.share_off));
            let what = format!("mean latency, {against}");
            checks.extend(worst(rows, what, LATENCY_WITHIN, |row| row.latency_off));
        }
        checks
    }
}

/// The check of the disk that is furthest off; one that was not served in one of the places is.
fn worst(rows: &[Row], what: String, within: f64, off: fn(&Row) -> Option<f64>) -> Option<Check> {
    let rank = |row: &Row| off(row).unwrap_or(f64::INFINITY);
    let rows = rows.iter();
    let worst = rows.max_by(|one, two| rank(one).total_cmp(&rank(two)))?;
    let value = off(worst);
    let of = format!("{} in \u{201c}{}\u{201d}", worst.disk, worst.phase);
    let silent = |latency: Option<f64>, place: On| {
        let silent = value.is_none() && latency.is_none();
        silent.then(|| format!("no I/O of {of} was answered, {}", place.title()))
    };
    let note = silent(worst.latency_engine_ms, On::Engine)
        .or_else(|| silent(worst.latency_sim_ms, On::Sim))
        .unwrap_or_else(|| format!("furthest: {of}"));
    let summary = CheckSummary {
        what,
        published: "both places must agree".to_owned(),
        bar: format!("at most {within} %"),
    };
    let check = Check::new(None, summary, " %");
    Some(Check {
        note: Some(note),
        ..check.judged(&[value.unwrap_or(f64::NAN)], None, Some(within), "places")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Verdict;
    use crate::statistics::spread;

    fn row(disk: &str, share_off: f64, latency_off: f64) -> Row {
        Row {
            way: "with I/O control".into(),
            phase: "all".into(),
            disk: disk.into(),
            share_engine: 0.0,
            share_sim: 0.0,
            share_off: Some(share_off),
            latency_engine_ms: Some(1.0),
            latency_sim_ms: Some(1.0),
            latency_off: Some(latency_off),
        }
    }

    fn checks(rows: Vec<Row>) -> Vec<(Verdict, String)> {
        let checks = Agreement { rows }.checks().into_iter();
        let checks = checks.map(|check| (check.verdict, check.note.unwrap_or_default()));
        checks.collect()
    }

    #[test]
    fn a_disk_that_is_not_served_in_one_of_the_places_fails() {
        let silent = Row {
            share_off: Some(100.0),
            latency_engine_ms: None,
            latency_off: None,
            ..row("vm3", 0.0, 0.0)
        };
        let [parts, latency] = &checks(vec![row("vm1", 1.0, 3.0), silent])[..] else {
            panic!("there are two checks");
        };
        assert_eq!((parts.0, latency.0), (Verdict::Fail, Verdict::Fail));
        let says = "no I/O of vm3 in \u{201c}all\u{201d} was answered, real daemons";
        assert_eq!(latency.1, says);
    }

    #[test]
    fn a_disk_that_real_daemons_starve_has_a_row() {
        let figure = |share: f64, ms: Option<f64>| Figure {
            way: "way".into(),
            phase: "all".into(),
            disk: "vm1".into(),
            iops: None,
            share: spread(&[share]),
            latency_ms: spread(ms.as_slice()),
            latency_p99_ms: None,
            hit_ratio: None,
            orders: None,
            order_ms: None,
        };
        let (none, some) = (figure(0.0, None), figure(20.0, Some(3.0)));
        for (here, there, offs) in [
            (&none, &some, Some((Some(100.0), None))),
            (&some, &none, Some((None, None))),
            (&none, &none, None),
        ] {
            let row = Row::of(here.clone(), there.clone());
            assert_eq!(row.map(|row| (row.share_off, row.latency_off)), offs);
        }
    }

    #[test]
    fn the_disk_that_is_furthest_off_decides() {
        let [parts, latency] = &checks(vec![row("vm1", 1.0, 16.0), row("vm2", 2.9, 3.0)])[..]
        else {
            panic!("there are two checks");
        };
        assert_eq!((parts.0, latency.0), (Verdict::Pass, Verdict::Fail));
        assert!(latency.1.contains("vm1"), "{}", latency.1);
    }
}
