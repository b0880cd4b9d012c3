//! What I/O control costs where nothing is congested: IOPS and CPU of the engine alone, with and without it.
//!
//! The disk is empty, so that the engine's own work is all there is. What a dispatch costs where something is congested
//! is the business of `cargo bench -p tidegate-core --bench iocontrol`.

use anyhow::Result;

use super::{Bench, Contestant, measure};
use crate::engine::Control;
use crate::peers;
use crate::report::{Figures, Report, Rule};

const SCENARIO: &str = "control";
const WITHOUT: &str = "engine, no control";
const NOT_ENGAGED: &str = "engine, control not engaged";
/// Guests, and the queue depth of each. A single one sleeps in between, and how often it has to be woken moves its IOPS
/// more than anything that the engine does; four never let the I/O thread wait.
const LOADS: [(usize, u16); 3] = [(1, 32), (1, 128), (4, 32)];
/// The part of its IOPS that a disk keeps under control that is not engaged.
const KEPT: f64 = 0.97;
/// Differences of a few percent need more rounds than factors do: rounds differ by a tenth, and the median of 63 by some
/// 2 % from run to run.
const ROUNDS: usize = 9;

/// The engine with and without control, in turns.
///
/// # Errors
/// A trial fails.
pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    for (guests, depth) in LOADS {
        let case = match guests {
            1 => format!("QD {depth}"),
            _ => format!("{guests} guests of QD {depth}"),
        };
        let mut contestants = Vec::new();
        if let Some(program) = &bench.options.bare {
            for (name, control) in [(WITHOUT, Control::None), (NOT_ENGAGED, Control::NotEngaged)] {
                contestants.push(Contestant::new(name, move |bench: &Bench| {
                    let sockets = (0..guests).map(|guest| bench.path(&format!("e{guest}.sock")));
                    let sockets: Vec<_> = sockets.collect();
                    let launch =
                        peers::engine(program, &sockets, control, bench.options.server_cpu);
                    measure::vhost(bench, &launch, depth)
                }));
            }
        }
        bench.compete_closely(report, SCENARIO, &case, &contestants, ROUNDS)?;
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
