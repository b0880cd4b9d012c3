//! The table of an A/B test: each contestant's figures, point by point.

use serde::Serialize;

use super::{AbResults, absence, failures};
use crate::experiment::ab_test::store::Trial;
use crate::experiment::ab_test::{Measure, Server, Sweep};
use crate::statistics::{Spread, spread};

/// A contestant's figures at a point, over the quiet blocks; over all of them if none was quiet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The title of the sweep.
    pub sweep: String,
    /// The point.
    pub point: String,
    /// The contestant.
    pub contestant: String,
    /// Requests a second.
    pub iops: Option<Spread>,
    /// MB a second.
    pub mb_per_s: Option<Spread>,
    /// Median latency.
    pub p50_us: Option<Spread>,
    /// 99th percentile of it.
    pub p99_us: Option<Spread>,
    /// The server's processor time, in percent of one, for a thousand requests a second.
    pub cpu_percent_per_kiops: Option<Spread>,
    /// The same with the client's.
    pub cpu_of_both_percent_per_kiops: Option<Spread>,
    /// The client's processor time: near 100 it may be the limit.
    pub client_percent: Option<Spread>,
    /// Blocks in which it was measured.
    #[serde(rename = "rounds")]
    pub blocks: usize,
    /// Those of them in which the machine was quiet.
    pub quiet: usize,
    /// Trials that were discarded and repeated.
    pub rejected: usize,
    /// Blocks in which idle processors were kept awake.
    pub awake: usize,
    /// Why it was not measured, or what the reader must know.
    pub note: Option<String>,
}

impl AbResults {
    /// All measurements.
    pub(super) fn measured(&self) -> Vec<Measured> {
        let mut rows = Vec::new();
        for sweep in &self.ab_test.sweeps {
            for point in &sweep.points {
                for contestant in &sweep.contestants {
                    rows.extend(self.row(sweep, &point.name, contestant));
                }
            }
        }
        rows
    }

    fn row(&self, sweep: &Sweep, point: &str, contestant: &str) -> Option<Measured> {
        let blocks = self.at(sweep, point);
        let absent = absence(&blocks, contestant);
        let trials = blocks.iter().filter_map(|block| block.trial(contestant));
        let all: Vec<&Trial> = trials.collect();
        let failed = failures(&blocks, contestant);
        if all.is_empty() && absent.is_none() && failed.is_empty() {
            return None;
        }
        let quiet: Vec<&Trial> = all.iter().copied().filter(|trial| trial.quiet).collect();
        let counted = if quiet.is_empty() { &all } else { &quiet };
        let of = |figure: &dyn Fn(&Trial) -> Option<f64>| {
            let values: Vec<f64> = counted.iter().filter_map(|trial| figure(trial)).collect();
            spread(&values)
        };
        let one = self.ab_test.contestant(contestant);
        let served = one.is_some_and(|one| one.server != Server::Nobody);
        let note = match failed.last() {
            Some(last) => Some(format!("failed in {} blocks: {}", failed.len(), last.why)),
            None if all.is_empty() => absent.map(|absent| absent.why.clone()),
            None if all.iter().any(|trial| trial.emulated) => {
                Some("the guest's processor is emulated, without KVM".to_owned())
            }
            None => quiet.is_empty().then(|| "no block was quiet".to_owned()),
        };
        Some(Measured {
            sweep: sweep.title.clone(),
            point: sweep.words(point),
            contestant: contestant.to_owned(),
            iops: of(&|trial| Some(trial.figure(Measure::Iops))),
            mb_per_s: of(&|trial| Some(trial.figure(Measure::Bandwidth))),
            p50_us: of(&|trial| Some(trial.p50_us)),
            p99_us: of(&|trial| Some(trial.p99_us)),
            cpu_percent_per_kiops: of(&|trial| served.then(|| trial.figure(Measure::Cpu))),
            cpu_of_both_percent_per_kiops: of(&Trial::cpu_of_both),
            client_percent: of(&|trial| trial.client_percent),
            blocks: all.len(),
            quiet: quiet.len(),
            rejected: all.iter().map(|trial| trial.rejected.len()).sum(),
            awake: all.iter().filter(|trial| trial.awake).count(),
            note,
        })
    }
}
