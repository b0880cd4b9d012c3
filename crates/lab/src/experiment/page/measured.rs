//! A contest's tables: who competes, and what each did at every point; for the page and for Markdown alike.

use super::parts;
use crate::draw::label;
use crate::experiment::SetUp;
use crate::experiment::ab_test::judge::Measured;
use crate::experiment::findings::Findings;
use crate::experiment::summary::AboutContest;

/// What stands above the columns; the first two are words.
pub(super) const HEAD: [&str; 9] = [
    "Point",
    "Contestant",
    "I/Os a second",
    "MB/s",
    "Latency, median",
    "99 % at or below",
    "Server, %/k",
    "Both, %/k",
    "Who asks had",
];

/// What stands below the tables.
pub(super) const KEY: &str = "%/k: percent of a processor for 1,000 I/Os a second, of the server alone and with who asks. \
     Who asks had so much of a processor: near 100 % that is the bound.";

/// A row's cells, each with its least and most, and what is to be known of it.
pub(super) fn cells(row: &Measured) -> (Vec<(String, Option<String>)>, Option<String>) {
    let figures = [
        (row.iops, ""),
        (row.mb_per_s, ""),
        (row.p50_us, " us"),
        (row.p99_us, " us"),
        (row.cpu_percent_per_kiops, ""),
        (row.cpu_of_both_percent_per_kiops, ""),
        (row.client_percent, " %"),
    ];
    let figures = figures
        .into_iter()
        .map(|(spread, unit)| parts(spread, unit, label));
    let mut notes: Vec<String> = row.note.clone().into_iter().collect();
    if row.quiet < row.rounds {
        notes.push(format!("{} of {} rounds quiet", row.quiet, row.rounds));
    }
    if row.rejected > 0 {
        notes.push(format!("{} trials made again", row.rejected));
    }
    let note = (!notes.is_empty()).then(|| notes.join("; "));
    (figures.collect(), note)
}

/// The rows by their sweeps, in order.
pub(super) fn sweeps(findings: &Findings) -> Vec<(&str, Vec<&Measured>)> {
    let mut sweeps: Vec<(&str, Vec<&Measured>)> = Vec::new();
    for row in &findings.measured {
        match sweeps.iter_mut().find(|(name, _)| *name == row.sweep) {
            Some((_, rows)) => rows.push(row),
            None => sweeps.push((&row.sweep, vec![row])),
        }
    }
    sweeps
}

/// Who competes in what: a name and what it is.
pub(super) fn set_up(about: &AboutContest) -> Vec<(String, String)> {
    let contestants = about.contestants.iter();
    let mut facts: Vec<(String, String)> = contestants
        .map(|one| (one.name.clone(), one.what.clone()))
        .collect();
    for sweep in &about.sweeps {
        let what = if sweep.work.len() == sweep.points.len() && sweep.points.len() > 1 {
            let each = sweep.points.iter().zip(&sweep.work);
            let each = each.map(|(point, work)| format!("{point}: {work}"));
            each.collect::<Vec<_>>().join("; ")
        } else {
            format!(
                "{} (at the first: {})",
                sweep.points.join(", "),
                sweep.work.join("; ")
            )
        };
        facts.push((sweep.title.clone(), what));
    }
    facts
}

/// The contest's part of what an experiment is, if it is one.
pub(super) fn contest(findings: &Findings) -> Option<&AboutContest> {
    match &findings.experiment.set_up {
        SetUp::Contest(about) => Some(about),
        SetUp::Scenario(_) => None,
    }
}
