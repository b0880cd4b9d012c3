//! Tables of an A/B test, for HTML and Markdown: contestants, and their figures at every point.

use super::parts;
use crate::draw::label;
use crate::experiment::SetUp;
use crate::experiment::findings::Findings;
use crate::experiment::findings::ab_test::Measured;
use crate::experiment::summary::AbTestSummary;
use crate::interleaved::BRIEF;

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
pub(super) fn set_up(summary: &AbTestSummary) -> Vec<(String, String)> {
    let contestants = summary.contestants.iter();
    let mut facts: Vec<(String, String)> = contestants
        .map(|one| (one.name.clone(), one.what.clone()))
        .collect();
    for sweep in &summary.sweeps {
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

/// The A/B test's part of what an experiment is, if it is one.
pub(super) fn ab_test(findings: &Findings) -> Option<&AbTestSummary> {
    match &findings.experiment.set_up {
        SetUp::AbTest(summary) => Some(summary),
        SetUp::Scenario(_) => None,
    }
}

/// How its blocks were made: one sentence each.
pub(super) fn method(findings: &Findings, summary: &AbTestSummary) -> Vec<String> {
    let mut says = vec![
        "On real servers: a fresh server for every trial, with one processor for it and another for who asks; the same \
         two for all contestants. Who asks a file itself has a server's. Where one processor takes all interrupts of the \
         file's disk, that is the server's. Servers' processor time is read at the edges of the measured window."
            .to_owned(),
        format!(
            "{} blocks at every point, {} s measured in each trial. Contestants take turns, and each is first in some blocks. A \
             ratio is taken within a block, and the median of the rounds is judged; in brackets from the least to the most.",
            u64::from(summary.rounds) * u64::from(findings.repeat),
            label(summary.trial_s)
        ),
        "A check over several points is of their geometric mean, unless it says otherwise.".to_owned(),
        "A trial during which others had more of a processor than it bears was made again, a fifth of all trials at \
         most; those that stayed disturbed are drawn, and judged by nobody."
            .to_owned(),
        format!("Length: {} % of what the file says.", findings.percent),
    ];
    if summary.side_by_side {
        says.push(format!(
            "In a block all servers run side by side, and each is asked in turns of {} ms: what differs by a percent is \
             measured within the same tenth of a second. Whoever has no turn sleeps.",
            BRIEF.span.as_millis()
        ));
    }
    if summary.left_out.is_empty() {
        says.push("All points of the file are there.".to_owned());
    }
    for left_out in &summary.left_out {
        says.push(format!("Left out at this length: {left_out}."));
    }
    let rejected: usize = findings.measured.iter().map(|row| row.rejected).sum();
    let trials: usize = findings.measured.iter().map(|row| row.rounds).sum();
    let quiet: usize = findings.measured.iter().map(|row| row.quiet).sum();
    says.push(format!(
        "Of {trials} trials {quiet} were quiet; {rejected} were thrown away before and made again."
    ));
    let awake: usize = findings.measured.iter().map(|row| row.awake).sum();
    says.push(format!(
        "In {awake} of them idle processors were kept awake, as hosts are tuned for latency; in the others waking them is \
         measured too."
    ));
    says.push("Ratios travel, absolute figures do not: quote both with the machine.".to_owned());
    says
}
