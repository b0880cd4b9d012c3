//! Calls per completion and instructions per request, by how completions are coalesced and by depth.
//!
//! The guest sleeps until it is called. Calls are counted by the guest's own descriptors, instructions by callgrind. On a
//! modelled SSD completions come one by one; on nothing they come in the batches in which the thread takes requests.

use anyhow::{Context, Result};
use tidegate_testing::callgrind::per_request_of;
use tidegate_testing::load::{Load, Source};
use tidegate_testing::peers;
use tidegate_testing::server::{Launch, Server};
use tidegate_testing::tally::Until;
use tidegate_testing::vhost::{GuestDriver, Vm, VmOptions, Wait};

use tidegate_lab::statistics;

use crate::bench::{Bench, missing};
use crate::report::{Check, Report, Rule};

const SETTINGS: [&str; 3] = ["off", "static:16,64us", "adaptive"];
const DEPTHS: [u16; 4] = [1, 4, 32, 128];
/// Completions of a row by depth: what is learnt takes some of a second, which one request at a time needs no part of.
const REQUESTS: [u64; 4] = [5_000, 20_000, 100_000, 150_000];
/// Requests of the two runs under callgrind.
const COUNTED: [u64; 2] = [5_000, 25_000];

/// What adaptive coalescing may need of the calls at depth 32.
const MOST_CALLS: f64 = 0.8;
/// By how much calls at depth 1 may differ: there is one for each completion, unless the guest is still awake.
const SAME: f64 = 1.02;
/// How often the two of the checks are counted, alternating.
const BLOCKS: usize = 3;

/// Counts a table, and checks depths 1 and 32.
pub(crate) fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    for place in ["ssd", "null"] {
        for (depth, requests) in DEPTHS.into_iter().zip(REQUESTS) {
            for setting in SETTINGS {
                let launch = launch(bench, place, setting);
                let (calls, iops) = calls(bench, &launch, depth, requests)?;
                let instructions = match !missing(bench, report, &["valgrind"]) {
                    true => {
                        let scratch = bench.scratch.path();
                        let count = per_request_of(scratch, &launch, depth, COUNTED)?;
                        format!("{count:.0} instructions per request, ")
                    }
                    false => String::new(),
                };
                report.notes.push(format!(
                    "{place}, depth {depth}, {setting}: {calls:.3} calls per completion, {instructions}{:.1}k IOPS",
                    iops / 1000.0
                ));
            }
        }
    }
    let mut ratios = [Vec::new(), Vec::new()];
    for _ in 0..BLOCKS {
        for (at, ratio) in [0, 2].into_iter().zip(&mut ratios) {
            let of = |setting| {
                let launch = launch(bench, "ssd", setting);
                calls(bench, &launch, DEPTHS[at], REQUESTS[at])
            };
            let (off, adaptive) = (of("off")?.0, of("adaptive")?.0);
            ratio.push(adaptive / off.max(f64::MIN_POSITIVE));
        }
    }
    for ((claim, most), ratio) in [
        ("calls per completion at depth 1, adaptive by off's", SAME),
        (
            "calls per completion at depth 32, adaptive by off's",
            MOST_CALLS,
        ),
    ]
    .into_iter()
    .zip(&ratios)
    {
        let spread = statistics::spread(ratio);
        report.checks.push(Check::new(
            claim.to_owned(),
            Rule::AtMost(most),
            spread,
            BLOCKS,
        ));
    }
    Ok(())
}

fn launch(bench: &Bench, place: &str, setting: &str) -> Launch {
    let socket = bench.path("coalescing.sock");
    peers::engine_coalescing(&bench.itself(), &socket, place, setting, bench.server_cpu())
}

/// Calls per completion of a guest that sleeps, and completions per second.
fn calls(bench: &Bench, launch: &Launch, depth: u16, requests: u64) -> Result<(f64, f64)> {
    let server = Server::start(launch, bench.scratch.path())?;
    let vm = Vm::connect(VmOptions::new(&launch.sockets[0], depth))?;
    let mut sources = [Source::new(Load::random_reads(depth, vm.config().size))];
    let mut driver = GuestDriver::new(vec![vm], Wait::Sleep);
    driver.vms()[0].take_calls()?;
    let tallies = driver.run(&mut sources, Until::Count(requests), &mut |_| {})?;
    let calls = driver.vms()[0].take_calls()?;
    drop(driver);
    server.stop().context("the engine does not end")?;
    Ok((calls as f64 / requests as f64, tallies[0].iops()))
}
