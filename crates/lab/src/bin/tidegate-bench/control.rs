//! The cost of I/O control without congestion: IOPS and CPU of the engine alone, with and without it.
//!
//! The disk is empty, so that the engine's own work is all there is. What a dispatch costs where something is congested
//! is the business of `cargo bench -p tidegate-core --bench iocontrol`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use tidegate_lab::interleaved::BRIEF;
use tidegate_lab::measure::{Ask, Figures};
use tidegate_testing::peers;
use tidegate_testing::vhost::Wait;

use crate::bench::Bench;
use crate::compare::{BLOCKS_FOR_THREE_PERCENT, Blocks, Variant};
use crate::report::{Report, Rule};

const SCENARIO: &str = "control";
const WITHOUT: &str = "engine, no control";
const NOT_ENGAGED: &str = "engine, control not engaged";
/// Guests, the queue depth of each, and how they wait. One that sleeps in between has to be woken now more and now less
/// often, which moves its IOPS more than anything that the engine does; four that poll never let the I/O thread wait.
const LOADS: [(usize, u16, Wait); 3] = [
    (1, 32, Wait::Sleep),
    (1, 128, Wait::Sleep),
    (4, 32, Wait::Poll),
];
/// The part of its IOPS that a disk keeps under control that is not engaged.
const KEPT: f64 = 0.97;

/// The engine with and without control, in slices.
///
/// # Errors
/// A trial fails.
pub(crate) fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    for (guests, depth, wait) in LOADS {
        let case = match guests {
            1 => format!("QD {depth}"),
            _ => format!("{guests} polling guests of QD {depth}"),
        };
        let variant = |(name, controlled)| {
            let program = bench.options.bare.as_deref()?;
            Some(engine(program, name, controlled))
        };
        let both = [(WITHOUT, false), (NOT_ENGAGED, true)];
        let variants: Vec<_> = both.into_iter().filter_map(variant).collect();
        let ask = Ask {
            wait,
            ..Ask::random_reads(depth)
        };
        let blocks = Blocks::of_slices(BLOCKS_FOR_THREE_PERCENT, BRIEF, guests, &ask);
        bench.compare(report, (SCENARIO, &case), &variants, blocks)?;
        let ratio = report.ratio(
            SCENARIO,
            &case,
            NOT_ENGAGED,
            WITHOUT,
            |figures: &Figures| figures.iops,
        );
        let claim = format!("{SCENARIO} {case}: not engaged: IOPS by no control's");
        report.judge(SCENARIO, &case, claim, Rule::AtLeast(KEPT), ratio);
    }
    Ok(())
}

/// The engine alone, `program` being a `tidegate-bench`.
fn engine<'a>(program: &'a Path, name: &str, controlled: bool) -> Variant<'a> {
    Variant::server(name, move |bench: &Bench, sockets: &[PathBuf]| {
        peers::engine(program, sockets, controlled, bench.setup.server_cpu)
    })
}
