//! The method of a report: how its runs were made, and whether the machine disturbed them.

use crate::draw::label;
use crate::experiment::findings::{Findings, Made};
use crate::experiment::store::Busy;
use crate::experiment::summary::AbTestSummary;
use crate::experiment::{On, SetUp};
use crate::interleaved::BRIEF;

/// Above this part of a processor in percent, other programs are reported beside the verdict.
const DISTURBED: f64 = 20.0;
/// Above this part of all processors, work waits for one now and then.
const FULL: f64 = 0.85;

/// The runs on real daemons.
fn engine(findings: &Findings) -> impl Iterator<Item = &Made> {
    let stages = findings.stages.iter();
    let engine = stages.filter(|stage| stage.on == On::Engine);
    engine.flat_map(|stage| &stage.runs)
}

/// Warnings of a machine that stalled, was busy with other work, or was full: its figures say little of I/O control.
pub(super) fn disturbed(all: &[&Findings]) -> Vec<String> {
    let (mut of, mut others, mut full) = (0, 0, 0);
    let (mut stalled, mut most_ms) = (0, 0.0_f64);
    for findings in all {
        let most = findings.machine.cpus as f64 * 100.0 * FULL;
        for made in engine(findings) {
            let foreign = made.busy.foreign_percent + made.busy.steal_percent;
            of += 1;
            if let Some(late) = made.late.filter(|late| late.stood_still()) {
                stalled += 1;
                most_ms = most_ms.max(late.most_us as f64 / 1e3);
            }
            others += usize::from(foreign > DISTURBED);
            // An A/B test is to fill its two processors.
            let filled = foreign + made.busy.own_percent > most
                && matches!(findings.experiment.set_up, SetUp::Scenario(_));
            full += usize::from(foreign <= DISTURBED && filled);
        }
    }
    let says = [
        (
            stalled,
            format!(
                "The machine stalled in {stalled} of {of} runs on real daemons. The emulated array answered up to \
                 {most_ms:.0} ms late. A failure there says nothing of I/O control: repeat the run."
            ),
        ),
        (
            others,
            format!(
                "The machine was not quiet. In {others} of {of} runs on real daemons, other programs used more than \
                 {DISTURBED:.0} % of a processor (see the raw data). Repeat failures on a quiet machine."
            ),
        ),
        (
            full,
            format!(
                "The processors were full in {full} of {of} runs on real daemons. The processors, not the array, were the \
                 limit there. A larger machine is needed."
            ),
        ),
    ];
    let says = says.into_iter().filter(|(count, _)| *count > 0);
    says.map(|(_, says)| says).collect()
}

/// How the runs were made: some sentences each.
pub(super) fn of(findings: &Findings) -> Vec<String> {
    let mut says = match &findings.experiment.set_up {
        SetUp::AbTest(summary) => ab_test(findings, summary),
        SetUp::Scenario(_) => scenario(findings),
        SetUp::Study(_) => study(findings),
    };
    says.push(
        "Compare ratios between machines, not absolute figures. Quote both with the machine."
            .to_owned(),
    );
    says
}

fn scenario(findings: &Findings) -> Vec<String> {
    let has = |on: On| findings.stages.iter().any(|stage| stage.on == on);
    let mut says = Vec::new();
    if has(On::Engine) {
        says.push(
            "On real daemons: a new daemon for each host, set up by its command line. The scenario's guests use NBD. Behind \
             the daemons one modelled array, shared over NBD, works in real time. The array is the limit, not the processor."
                .to_owned(),
        );
    }
    if has(On::Sim) {
        says.push(
            "In virtual time: the same schedulers, governors, guests and array in the simulator. It reads no clock of the \
             machine."
                .to_owned(),
        );
    }
    says.push(format!(
        "Length: {} % of the published phases. The guests' own times are as published.",
        findings.percent
    ));
    says.push(
        "Warm-up: each check omits the beginning of its phase, as its scenario says. A shorter run omits the same part."
            .to_owned(),
    );
    says.push(match findings.repeat {
        1 => "Each way was run once: figures have no spread.".to_owned(),
        n => format!(
            "Each way was run {n} times with seeds {} to {}. The ways alternate, and so does the first one. A figure is the \
             median, with the smallest and largest in brackets. The median is judged.",
            findings.seed,
            findings.seed + u64::from(n) - 1
        ),
    });
    let made = findings.stages.iter().flat_map(|stage| &stage.runs);
    let rejected: usize = made.map(|made| made.rejected).sum();
    if rejected > 0 {
        says.push(format!(
            "{rejected} runs were discarded and repeated, because other programs used the processors."
        ));
    }
    if has(On::Engine) {
        let most = |what: fn(&Busy) -> f64| {
            let each = engine(findings).map(|made| what(&made.busy));
            each.fold(0.0, f64::max)
        };
        says.push(format!(
            "Of all processors, in percent of one: guests, daemons and array used up to {:.0}, other programs up to \
             {:.0}, other machines up to {:.0}.",
            most(|busy| busy.own_percent),
            most(|busy| busy.foreign_percent),
            most(|busy| busy.steal_percent)
        ));
    }
    says.push(
        "Lines over time are of the first repeat. Latencies by percentile are of all repeats together.".to_owned(),
    );
    says
}

fn study(findings: &Findings) -> Vec<String> {
    vec![
        "In virtual time: the policies, the round robin and the coalescing of the engine. Cores, guests, turns, kicks and calls are \
         modelled, with the costs that stand above."
            .to_owned(),
        "The trace was fixed before a policy was run on it.".to_owned(),
        format!("Length: {} % of what the study plays.", findings.percent),
        match findings.repeat {
            1 => "Each part was played once.".to_owned(),
            n => format!(
                "Each part was played {n} times with seeds {} to {}. The median is judged; tables and pictures are of the first.",
                findings.seed,
                findings.seed + u64::from(n) - 1
            ),
        },
    ]
}

fn ab_test(findings: &Findings, summary: &AbTestSummary) -> Vec<String> {
    let mut says = vec![
        "On real servers: a new server for every trial. The server has one processor and the client another, the same two \
         for all contestants. A client that uses the file itself has the server's. If one processor takes all interrupts of \
         the file's disk, the server has it."
            .to_owned(),
        format!(
            "{} blocks at every point, with {} s measured in each trial. Contestants alternate, and each is first in some \
             blocks. A ratio is taken within a block. The median of the blocks is judged.",
            u64::from(summary.blocks) * u64::from(findings.repeat),
            label(summary.trial_s)
        ),
        "A check over several points is of their geometric mean, unless it says otherwise.".to_owned(),
        "A trial that other programs disturbed was repeated, up to a fifth of all trials. Trials that stayed disturbed are \
         drawn, and not judged."
            .to_owned(),
        format!("Length: {} % of what the file says.", findings.percent),
    ];
    if summary.side_by_side {
        says.push(format!(
            "In a block all servers run side by side, and each is measured in slices of {} ms. So a difference of a percent \
             is measured within the same tenth of a second. A server without a slice sleeps.",
            BRIEF.span.as_millis()
        ));
    }
    if summary.left_out.is_empty() {
        says.push("All points of the file are there.".to_owned());
    }
    let left_out = summary.left_out.iter();
    says.extend(left_out.map(|point| format!("Left out at this length: {point}.")));
    let sum = |what: fn(&crate::experiment::findings::ab_test::Measured) -> usize| -> usize {
        findings.measured.iter().map(what).sum()
    };
    says.push(format!(
        "Of {} trials {} were quiet. {} were discarded and repeated. In {} of them idle processors were kept awake, as hosts \
         are tuned for latency. The others include the time to wake a processor.",
        sum(|row| row.blocks),
        sum(|row| row.quiet),
        sum(|row| row.rejected),
        sum(|row| row.awake)
    ));
    says
}
