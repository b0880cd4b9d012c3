//! What I/O control costs where nothing is congested: IOPS and CPU of the engine alone, with and without it.
//!
//! The disk is empty, so that the engine's own work is all there is. What a dispatch costs where something is congested
//! is the business of `cargo bench -p tidegate-core --bench iocontrol`.

use anyhow::Result;

use super::{Bench, Contestant, measure};
use crate::engine::Control;
use crate::peers;
use crate::report::{Check, Figures, Report, Rule};

const SCENARIO: &str = "control";
const WITHOUT: &str = "engine, no control";
const NOT_ENGAGED: &str = "engine, control not engaged";
/// Queue depths at which the I/O thread, not the guest, sets the pace.
const DEPTHS: [u16; 2] = [32, 128];
/// The part of its IOPS that a disk keeps under control that is not engaged.
const KEPT: f64 = 0.97;
/// Differences of a few percent need more rounds than factors do.
const ROUNDS: usize = 3;

/// The engine with and without control, in turns.
///
/// # Errors
/// A trial fails.
pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    for depth in DEPTHS {
        let case = format!("QD {depth}");
        let mut contestants = Vec::new();
        if let Some(program) = &bench.options.bare {
            for (name, control) in [(WITHOUT, Control::None), (NOT_ENGAGED, Control::NotEngaged)] {
                contestants.push(Contestant::new(name, move |bench: &Bench| {
                    let socket = bench.path("engine.sock");
                    let launch = peers::engine(program, &socket, control, bench.options.server_cpu);
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
        report
            .checks
            .push(Check::new(claim, Rule::AtLeast(KEPT), ratio));
    }
    Ok(())
}
