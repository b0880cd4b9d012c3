//! Instructions per request of filters and of I/O control, counted by callgrind.

use anyhow::Result;
use tidegate_lab::statistics;
use tidegate_testing::callgrind::{per_request, per_request_after};
use tidegate_testing::peers::{self, Store};

use crate::bench::{Bench, TIDEGATE, missing};
use crate::report::{Check, Report, Rule};
use crate::scenarios::STACKS;

/// How often each is counted, alternating: how many requests a loop of the I/O thread finds is chance, and they share its cost.
const BLOCKS: usize = 5;
/// What each of [`STACKS`] may add. A filter is called twice for all requests that are carried out together; `stats` looks at each that ends.
/// These guard what was reached, beside the percentages that are wanted.
const MOST_ADDED: [f64; 3] = [15.0, 20.0, 45.0];

/// What I/O control may add, as a part, while it is not engaged: who needs no control pays little for it.
const CONTROL_MOST: f64 = 1.03;

/// What a read that the flash cache answers may cost, as a part of one without a cache: it is found, and checked.
const HIT_MOST: f64 = 1.5;

/// Reads after which the cache has all of the disk.
const CACHE_WARM_UP: u64 = 150_000;

/// Counts with no filter, with each stack, and under I/O control.
pub(crate) fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    stacks(bench, report)?;
    control(bench, report)?;
    cache(bench, report)
}

/// Counts reads of a disk in memory, with a flash cache in memory that has all of it and without.
fn cache(bench: &Bench, report: &mut Report) -> Result<()> {
    let mut ratio = None;
    if !missing(bench, report, &["valgrind"]) {
        let count = |place| {
            let sockets = [bench.path("counted.sock")];
            let cpu = bench.server_cpu();
            let launch = peers::engine_in_memory(&bench.itself(), &sockets, place, cpu);
            per_request_after(bench.scratch.path(), &launch, CACHE_WARM_UP)
        };
        let (without, with) = (count("memory")?, count("cached")?);
        report.notes.push(format!(
            "instructions per read, a disk in memory: {without:.0}; from its flash cache: {with:.0}"
        ));
        ratio = statistics::ratio(&[with], &[without]);
    }
    let claim = "instructions per read that the flash cache answers, by those without one";
    report
        .checks
        .push(Check::new(claim, Rule::AtMost(HIT_MOST), ratio, 1));
    Ok(())
}

fn stacks(bench: &Bench, report: &mut Report) -> Result<()> {
    let mut plain = Vec::new();
    let mut with = vec![Vec::new(); STACKS.len()];
    if !missing(bench, report, &[TIDEGATE, "valgrind"]) {
        for _ in 0..BLOCKS {
            plain.push(ours(bench, &[])?);
            for (counts, (_, filters, _)) in with.iter_mut().zip(STACKS) {
                counts.push(ours(bench, filters)?);
            }
        }
    }
    let names = ["no filter"]
        .into_iter()
        .chain(STACKS.map(|(name, ..)| name));
    for (name, counts) in names.zip([&plain].into_iter().chain(&with)) {
        if let Some(count) = statistics::spread(counts) {
            let note = format!("instructions per request, {name}: {:.0}", count.median);
            report.notes.push(note);
        }
    }
    for (((name, _, bound), most), counts) in STACKS.into_iter().zip(MOST_ADDED).zip(&with) {
        let more = counts
            .iter()
            .zip(&plain)
            .map(|(with, without)| with - without);
        let added = statistics::spread(&more.collect::<Vec<_>>());
        let ratio = statistics::ratio(counts, &plain);
        let by_none = format!("instructions per request, {name} by no filter's");
        let adds = format!("instructions per request that {name} adds");
        for (claim, most, spread) in [(by_none, bound, ratio), (adds, most, added)] {
            report
                .checks
                .push(Check::new(claim, Rule::AtMost(most), spread, BLOCKS));
        }
    }
    Ok(())
}

/// Counts the engine alone with and without control, which is not engaged.
fn control(bench: &Bench, report: &mut Report) -> Result<()> {
    let mut ratio = None;
    if !missing(bench, report, &["valgrind"]) {
        let count = |controlled| {
            let sockets = [bench.path("counted.sock")];
            let cpu = bench.server_cpu();
            let launch = peers::engine(&bench.itself(), &sockets, controlled, cpu);
            per_request(bench.scratch.path(), &launch)
        };
        let (without, with) = (count(false)?, count(true)?);
        report.notes.push(format!(
            "instructions per request, the engine alone: {without:.0}; under control that is not engaged: {with:.0}"
        ));
        ratio = statistics::ratio(&[with], &[without]);
    }
    let claim = "instructions per request, control not engaged by no control's";
    report
        .checks
        .push(Check::new(claim, Rule::AtMost(CONTROL_MOST), ratio, 1));
    Ok(())
}

fn ours(bench: &Bench, filters: &[&str]) -> Result<f64> {
    let tidegate = bench.tidegate(&Store::Null, filters, Some(0));
    let socket = bench.path("counted.sock");
    per_request(
        bench.scratch.path(),
        &peers::tidegate(
            "tidegate",
            &tidegate,
            Some(&socket),
            None,
            bench.server_cpu(),
        ),
    )
}
