//! Two results directories side by side: two revisions, two machines, or two places to run.
//!
//! # Always true
//! - Only what both have is compared; what only one has is counted.

use std::path::Path;

use anyhow::{Result, bail};
use serde::Serialize;

use super::On;
use super::contest::judge::Measured;
use super::directory::{Directory, Suite};
use super::findings::{Check, Findings, Verdict};
use crate::statistics::Spread;

/// The two, side by side.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The first directory.
    pub before: String,
    /// The second.
    pub after: String,
    /// Checks that both have.
    pub checks: Vec<ComparedCheck>,
    /// What disks had, as far as both have it.
    pub figures: Vec<ComparedFigure>,
    /// Checks that only one of them has.
    pub unmatched: usize,
}

/// A check in both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedCheck {
    /// Of which experiment.
    pub experiment: String,
    /// Which figure.
    pub what: String,
    /// What it must be.
    pub bar: String,
    /// Its unit, with a space before it.
    pub unit: &'static str,
    /// It in the first.
    pub before: Option<Spread>,
    /// It in the second.
    pub after: Option<Spread>,
    /// How far the second is from the first, in percent of that.
    pub change_percent: Option<f64>,
    /// How it came out in the first.
    pub verdict_before: Verdict,
    /// How it came out in the second.
    pub verdict_after: Verdict,
}

/// What a disk had in both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedFigure {
    /// Of which experiment.
    pub experiment: String,
    /// In which way, phase, and which disk.
    pub of: String,
    /// I/Os a second in the first.
    pub iops_before: Option<Spread>,
    /// I/Os a second in the second.
    pub iops_after: Option<Spread>,
    /// Mean latency in the first; of a contest the median.
    pub latency_before_ms: Option<Spread>,
    /// Mean latency in the second; of a contest the median.
    pub latency_after_ms: Option<Spread>,
}

/// Compares what two directories hold; either may be a suite's.
///
/// # Errors
/// One holds no results, or they have nothing in common.
pub fn compare(before: &Path, after: &Path) -> Result<Comparison> {
    let (left, right) = (findings(before)?, findings(after)?);
    let mut comparison = Comparison {
        before: before.display().to_string(),
        after: after.display().to_string(),
        checks: Vec::new(),
        figures: Vec::new(),
        unmatched: 0,
    };
    for (one, other) in pairs(&left, &right) {
        comparison.add(one, other);
    }
    if comparison.checks.is_empty() {
        bail!(
            "{} and {} have no check in common",
            before.display(),
            after.display()
        );
    }
    Ok(comparison)
}

/// What a directory, or each of a suite, comes to.
fn findings(path: &Path) -> Result<Vec<Findings>> {
    let Some(suite) = Suite::open(path)? else {
        return Ok(vec![Findings::read(path)?]);
    };
    let mut all = Vec::new();
    for name in &suite.experiments {
        let place = path.join(name);
        if Directory::open(&place)?.is_some() {
            all.push(Findings::read(&place)?);
        }
    }
    Ok(all)
}

/// The experiments that both have.
fn pairs<'a>(
    left: &'a [Findings],
    right: &'a [Findings],
) -> impl Iterator<Item = (&'a Findings, &'a Findings)> {
    left.iter().filter_map(|one| {
        let same = |other: &&Findings| other.experiment.name == one.experiment.name;
        right.iter().find(same).map(|other| (one, other))
    })
}

impl Comparison {
    fn add(&mut self, one: &Findings, other: &Findings) {
        self.add_measured(one, other);
        let name = &one.experiment.name;
        let places = |findings: &Findings| -> Vec<On> {
            findings.stages.iter().map(|stage| stage.on).collect()
        };
        let (left, right) = (places(one), places(other));
        let common = left.iter().any(|on| right.contains(on));
        for check in &one.checks {
            // Where they were run in different places, these are what is compared.
            let same = |theirs: &&Check| {
                theirs.what == check.what
                    && (theirs.on == check.on
                        || !common && theirs.on.is_some() == check.on.is_some())
            };
            let Some(theirs) = other.checks.iter().find(same) else {
                self.unmatched += 1;
                continue;
            };
            self.checks.push(ComparedCheck {
                experiment: name.clone(),
                what: match (check.on, common && left.len() > 1) {
                    (Some(on), true) => format!("{} ({})", check.what, on.title()),
                    _ => check.what.clone(),
                },
                bar: check.bar.clone(),
                unit: check.unit,
                change_percent: change(check.ours, theirs.ours),
                before: check.ours,
                after: theirs.ours,
                verdict_before: check.verdict,
                verdict_after: theirs.verdict,
            });
        }
        for stage in &one.stages {
            let theirs = other
                .stages
                .iter()
                .find(|theirs| theirs.on == stage.on || !common);
            let theirs = theirs.map_or(&[][..], |theirs| &theirs.figures);
            for figure in &stage.figures {
                let key = |figure: &super::findings::Figure| {
                    format!("{} {}, {}", figure.disk, figure.way, figure.phase)
                };
                if let Some(theirs) = theirs.iter().find(|theirs| key(theirs) == key(figure)) {
                    self.figures.push(ComparedFigure {
                        experiment: name.clone(),
                        of: key(figure),
                        iops_before: figure.iops,
                        iops_after: theirs.iops,
                        latency_before_ms: figure.latency_ms,
                        latency_after_ms: theirs.latency_ms,
                    });
                }
            }
        }
    }

    /// What contestants did, where both were contests.
    fn add_measured(&mut self, one: &Findings, other: &Findings) {
        let key = |row: &Measured| format!("{}, {}: {}", row.contestant, row.sweep, row.point);
        let ms = |us: Option<Spread>| {
            us.map(|us| Spread {
                low: us.low / 1e3,
                median: us.median / 1e3,
                high: us.high / 1e3,
                count: us.count,
            })
        };
        for row in &one.measured {
            if let Some(theirs) = other.measured.iter().find(|theirs| key(theirs) == key(row)) {
                self.figures.push(ComparedFigure {
                    experiment: one.experiment.name.clone(),
                    of: key(row),
                    iops_before: row.iops,
                    iops_after: theirs.iops,
                    latency_before_ms: ms(row.p50_us),
                    latency_after_ms: ms(theirs.p50_us),
                });
            }
        }
    }

    /// Checks that held in the first and do not in the second.
    pub fn lost(&self) -> impl Iterator<Item = &ComparedCheck> {
        self.checks.iter().filter(|check| {
            check.verdict_before == Verdict::Pass && check.verdict_after == Verdict::Fail
        })
    }
}

/// How far a figure moved, in percent of where it was.
#[must_use]
pub fn change(before: Option<Spread>, after: Option<Spread>) -> Option<f64> {
    let (before, after) = (before?.median, after?.median);
    let change = (after / before - 1.0) * 100.0;
    change.is_finite().then_some(change)
}
