//! Instructions per request, counted by callgrind: a figure that wobbles by less than one in a hundred.
//!
//! The server runs under valgrind twice, for a few and for many requests; the difference is what the requests cost, and
//! start and end drop out. Only the program's own instructions are counted, not the kernel's. Guests are the usual ones, QD 32.

use std::path::Path;

use anyhow::{Context, Result};

use super::scenarios::STACKS;
use super::{Bench, missing};
use crate::engine::Control;
use crate::load::{Load, Source};
use crate::peers::{self, Store};
use crate::report::{Check, Report, Rule};
use crate::server::{Launch, Server};
use crate::statistics;
use crate::tally::Until;
use crate::vhost::{Station, Vm, VmOptions, Wait};

const FEW: u64 = 20_000;
const MANY: u64 = 120_000;
const DEPTH: u16 = 32;
/// How often each is counted, in turn: how many requests a turn finds is chance, and what a turn costs is shared by them.
const ROUNDS: usize = 5;
/// What each of [`STACKS`] may add. A filter is called twice for all requests that are carried out together; `stats` looks at each that ends.
/// These guard what was reached, beside the percentages that are wanted.
const MOST_ADDED: [f64; 3] = [15.0, 20.0, 45.0];

/// What I/O control may add, as a part, while it is not engaged: nobody who needs no control should feel it.
const CONTROL_MOST: f64 = 1.03;

/// Counts with no filter, with each stack, and under I/O control.
///
/// # Errors
/// A run fails.
pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    stacks(bench, report)?;
    control(bench, report)
}

fn stacks(bench: &Bench, report: &mut Report) -> Result<()> {
    let mut plain = Vec::new();
    let mut with = vec![Vec::new(); STACKS.len()];
    if bench.has_tidegate() && !missing(report, &["valgrind"]) {
        for _ in 0..ROUNDS {
            plain.push(ours(bench, &[])?);
            for (counts, (_, filters, _)) in with.iter_mut().zip(STACKS) {
                counts.push(ours(bench, filters)?);
            }
        }
        let each = std::iter::once(("no filter", &plain))
            .chain(STACKS.iter().map(|(name, ..)| *name).zip(&with));
        for (name, counts) in each {
            if let Some(count) = statistics::spread(counts) {
                let note = format!("instructions per request, {name}: {:.0}", count.median);
                report.notes.push(note);
            }
        }
    }
    for (((name, _, bound), most), counts) in STACKS.into_iter().zip(MOST_ADDED).zip(&with) {
        let ratio = statistics::ratio(counts, &plain);
        let more: Vec<f64> = counts
            .iter()
            .zip(&plain)
            .map(|(with, without)| with - without)
            .collect();
        let added = statistics::ratio(&more, &vec![1.0; more.len()]);
        let claim = format!("instructions per request, {name} by no filter's");
        report
            .checks
            .push(Check::new(claim, Rule::AtMost(bound), ratio, ROUNDS));
        let claim = format!("instructions per request that {name} adds");
        report
            .checks
            .push(Check::new(claim, Rule::AtMost(most), added, ROUNDS));
    }
    Ok(())
}

/// Counts the engine alone with and without control, which is not engaged.
fn control(bench: &Bench, report: &mut Report) -> Result<()> {
    let mut ratio = None;
    if let Some(program) = &bench.options.bare
        && !missing(report, &["valgrind"])
    {
        let mut counts = [0.0; 2];
        for (control, count) in [Control::None, Control::NotEngaged]
            .into_iter()
            .zip(&mut counts)
        {
            let sockets = [bench.path("counted.sock")];
            let launch = peers::engine(program, &sockets, control, bench.options.server_cpu);
            *count = per_request(bench, &launch)?;
        }
        let [without, with] = counts;
        report.notes.push(format!(
            "instructions per request, the engine alone: {without:.0}; under control that is not engaged: {with:.0}"
        ));
        ratio = statistics::ratio(&[with], &[without]);
    }
    report.checks.push(Check::new(
        "instructions per request, control not engaged by no control's",
        Rule::AtMost(CONTROL_MOST),
        ratio,
        1,
    ));
    Ok(())
}

fn ours(bench: &Bench, filters: &[&str]) -> Result<f64> {
    let tidegate = bench.tidegate(&Store::Null, filters, Some(0));
    let socket = bench.path("counted.sock");
    per_request(
        bench,
        &peers::tidegate(
            "tidegate",
            &tidegate,
            Some(&socket),
            None,
            bench.options.server_cpu,
        ),
    )
}

/// Instructions that a server of one vhost-user socket spends per request.
///
/// # Errors
/// valgrind, the server or the guest fails.
#[expect(
    clippy::cast_precision_loss,
    reason = "instruction counts stay below 2^52"
)]
pub fn per_request(bench: &Bench, launch: &Launch) -> Result<f64> {
    let few = count(bench, launch, FEW)?;
    let many = count(bench, launch, MANY)?;
    Ok(many.saturating_sub(few) as f64 / (MANY - FEW) as f64)
}

fn count(bench: &Bench, launch: &Launch, requests: u64) -> Result<u64> {
    let out = bench.path("callgrind.out");
    let under = under_callgrind(launch, &out);
    let server = Server::start(&under, bench.scratch.path())?;
    let vm = Vm::connect(VmOptions::new(&launch.sockets[0], DEPTH))?;
    let mut sources = [Source::new(Load::random_reads(DEPTH, vm.config().size))];
    let mut station = Station::new(vec![vm], Wait::Sleep);
    station.run(&mut sources, Until::Count(requests), &mut |_| {})?;
    drop(station);
    server.stop()?;
    let text = std::fs::read_to_string(&out)
        .with_context(|| format!("callgrind wrote no {}", out.display()))?;
    total(&text).context("callgrind's output has no total")
}

fn under_callgrind(launch: &Launch, out: &Path) -> Launch {
    let mut under = launch.clone();
    // valgrind does not let other threads run while one waits in a system call of which it does not know that it waits.
    under.program = "env".into();
    let mut words = vec![
        "TIDEGATE_NAP=1".into(),
        "valgrind".into(),
        "--tool=callgrind".into(),
        format!("--callgrind-out-file={}", out.display()).into(),
    ];
    words.push(launch.program.clone().into_os_string());
    words.append(&mut under.arguments);
    under.arguments = words;
    under
}

fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| {
        line.strip_prefix("totals:")
            .or_else(|| line.strip_prefix("summary:"))
    })?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read() {
        assert_eq!(total("events: Ir\nsummary: 12345 6\n"), Some(12_345));
        assert_eq!(total("events: Ir\n"), None);
    }
}
