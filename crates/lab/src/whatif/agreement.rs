//! The agreement of a simulation with the measurement, and the confidence of its prediction.
//!
//! # Units
//! Percent of what was measured.

use serde::Serialize;
use tidegate_sim::Run;

use super::{Case, Did, Known, off, together};

/// How far the simulation as it is lies from what was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// What a prediction is worth by it.
    pub worth: Worth,
    /// By how much a disk's part of the throughput is off at most.
    pub share_off_percent: f64,
    /// By how much the throughput of all is off.
    pub iops_off_percent: f64,
    /// By how much a disk's latency is off at most.
    pub latency_off_percent: f64,
    /// By how much the datastore's is, as hosts report it; absent if it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datastore_latency_off_percent: Option<f64>,
    /// The same as a sentence.
    pub says: String,
}

/// What a prediction is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Worth {
    /// The simulator has what was measured nearly as it was.
    Good,
    /// It has it in the main.
    Fair,
    /// It has it otherwise: what it says of the changes is a hint at best.
    Poor,
}

/// Up to these a prediction is good, and fair: a disk's part, the throughput of all, a disk's latency, in percent. What
/// engine and simulator have of one scenario lies within 3 and 15; a case has guests and an array that are guessed.
const GOOD: [f64; 3] = [5.0, 10.0, 25.0];
const FAIR: [f64; 3] = [15.0, 25.0, 50.0];
/// A disk with less of the throughput than this is too small to judge by.
const COUNTS: f64 = 0.02;
impl Agreement {
    pub(super) fn of(case: &Case, run: &Run, as_is: &[Did]) -> Agreement {
        let both = case.measured.iter().zip(as_is);
        let both: Vec<(Did, Did)> = both
            .filter_map(|(measured, as_is)| Some(((*measured)?, *as_is)))
            .collect();
        let (measured, simulated): (Vec<Did>, Vec<Did>) = both.iter().copied().unzip();
        let (all, simulated_all) = (together(&measured), together(&simulated));
        let large = both
            .iter()
            .filter(|(measured, _)| measured.iops >= COUNTS * all.iops);
        let (mut share, mut latency) = (0.0_f64, 0.0_f64);
        for (measured, simulated) in large {
            let part = |did: &Did, all: &Did| did.iops / all.iops.max(1e-9);
            let parts = (part(simulated, &simulated_all), part(measured, &all));
            share = share.max(off(parts.0, parts.1).abs());
            latency = latency.max(off(simulated.latency_us, measured.latency_us).abs());
        }
        let iops = off(simulated_all.iops, all.iops);
        let datastore = match case.array {
            Known::Whole => None,
            Known::Point { latency_us } => Some(off(case.datastore_latency_us(run), latency_us)),
        };
        let within = |bars: [f64; 3]| {
            let [parts, sum, times] = bars;
            let slowest = latency.max(datastore.unwrap_or(0.0).abs());
            share <= parts && iops.abs() <= sum && slowest <= times
        };
        let of_datastore = datastore.map_or_else(String::new, |off| {
            format!(", the datastore's latency {off:+.0} % off")
        });
        let (worth, so) = if within(GOOD) {
            (Worth::Good, "what it says of the changes is worth much")
        } else if within(FAIR) {
            (
                Worth::Fair,
                "what it says of the changes is right in the main",
            )
        } else {
            (Worth::Poor, "what it says of the changes is a hint at best")
        };
        Agreement {
            worth,
            share_off_percent: share,
            iops_off_percent: iops,
            latency_off_percent: latency,
            datastore_latency_off_percent: datastore,
            says: format!(
                "as it is, the simulator has every disk's part of the throughput within {share:.1} %, all of it \
                 {iops:+.1} % off{of_datastore}, and every disk's latency within {latency:.0} % of what was measured: {so}"
            ),
        }
    }
}
