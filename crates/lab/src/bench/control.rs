//! What I/O control costs where nothing is congested: IOPS and CPU of the engine alone, with and without it.
//!
//! The disk is empty, so that the engine's own work is all there is. What a dispatch costs where something is congested
//! is the business of `cargo bench -p tidegate-core --bench iocontrol`.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::Bench;
use super::closely::{Guests, Kind, Pace, ROUNDS_FOR_THREE_PERCENT, Rival};
use super::measure::Ask;
use crate::engine::Control;
use crate::peers;
use crate::report::{Figures, Report, Rule};
use crate::vhost::Wait;

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

/// The engine with and without control, in turns.
///
/// # Errors
/// A trial fails.
pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    for (guests, depth, wait) in LOADS {
        let case = match guests {
            1 => format!("QD {depth}"),
            _ => format!("{guests} polling guests of QD {depth}"),
        };
        let rival = |(name, control)| {
            let program = bench.options.bare.as_deref()?;
            Some(engine(program, name, control))
        };
        let both = [(WITHOUT, Control::None), (NOT_ENGAGED, Control::NotEngaged)];
        let rivals: Vec<_> = both.into_iter().filter_map(rival).collect();
        let guests = Guests {
            count: guests,
            ask: Ask {
                wait,
                ..Ask::random_reads(depth)
            },
            pace: Pace::Brief,
        };
        let times = ROUNDS_FOR_THREE_PERCENT;
        bench.compete_in_turn(report, (SCENARIO, &case), &rivals, &guests, times)?;
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
fn engine<'a>(program: &'a Path, name: &str, control: Control) -> Rival<'a> {
    Rival {
        name: name.into(),
        kind: Kind::Server(Box::new(move |bench: &Bench, sockets: &[PathBuf]| {
            peers::engine(program, sockets, control, bench.options.server_cpu)
        })),
    }
}
