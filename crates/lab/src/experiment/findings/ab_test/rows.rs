//! The table of an A/B test: each contestant's figures, point by point.

use serde::Serialize;

use super::{AbResults, failures};
use crate::experiment::ab_test::store::Trial;
use crate::experiment::ab_test::{Measure, Server, Sweep};
use crate::experiment::summary::ab_test::point_words;
use crate::statistics::{Spread, spread};

/// What a contestant did at a point, over the quiet blocks; over all of them, if none was.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// In which sweep.
    pub sweep: String,
    /// At which point.
    pub point: String,
    /// Who.
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
    /// The same with the asker's.
    pub cpu_of_both_percent_per_kiops: Option<Spread>,
    /// What the asker had of a processor: near 100 it may be the bound.
    pub client_percent: Option<Spread>,
    /// Blocks in which it was measured.
    pub rounds: usize,
    /// Those of them in which the machine was quiet.
    pub quiet: usize,
    /// Trials that were thrown away and made again.
    pub rejected: usize,
    /// Blocks in which idle processors were kept awake.
    pub awake: usize,
    /// Why it was not measured, or what is to be known.
    pub note: Option<String>,
}

impl AbResults {
    /// All that was measured.
    pub(super) fn measured(&self) -> Vec<Measured> {
        let mut rows = Vec::new();
        for sweep in &self.ab_test.sweeps {
            for point in &sweep.points {
                for contestant in &sweep.contestants {
                    let name = &self.ab_test.contestants[*contestant].name;
                    rows.extend(self.row(sweep, &point.name, name));
                }
            }
        }
        rows
    }

    fn row(&self, sweep: &Sweep, point: &str, contestant: &str) -> Option<Measured> {
        let rounds = self.at(sweep, point);
        let absent = rounds.iter().flat_map(|round| &round.absent);
        let absent = absent.rev().find(|absent| absent.contestant == *contestant);
        let all: Vec<&Trial> = rounds
            .iter()
            .filter_map(|round| round.trial(contestant))
            .collect();
        let failed = failures(&rounds, contestant);
        if all.is_empty() && absent.is_none() && failed.is_empty() {
            return None;
        }
        let quiet: Vec<&Trial> = all.iter().copied().filter(|trial| trial.quiet).collect();
        let counted = if quiet.is_empty() { &all } else { &quiet };
        let of = |figure: &dyn Fn(&Trial) -> Option<f64>| {
            let values: Vec<f64> = counted.iter().filter_map(|trial| figure(trial)).collect();
            spread(&values)
        };
        let who = self
            .ab_test
            .contestants
            .iter()
            .find(|one| one.name == contestant);
        let served = who.is_some_and(|who| who.server != Server::Nobody);
        let note = if let Some(last) = failed.last() {
            Some(format!("failed in {} blocks: {}", failed.len(), last.why))
        } else if all.is_empty() {
            absent.map(|absent| absent.why.clone())
        } else if all.iter().any(|trial| trial.emulated) {
            Some("the guest's processor is emulated, without KVM".to_owned())
        } else if quiet.is_empty() {
            Some("no block was quiet".to_owned())
        } else {
            None
        };
        Some(Measured {
            sweep: sweep.title.clone(),
            point: point_words(sweep, point).replace(['\u{201c}', '\u{201d}'], ""),
            contestant: contestant.to_owned(),
            iops: of(&|trial| Some(trial.figure(Measure::Iops))),
            mb_per_s: of(&|trial| Some(trial.figure(Measure::Bandwidth))),
            p50_us: of(&|trial| Some(trial.p50_us)),
            p99_us: of(&|trial| Some(trial.p99_us)),
            cpu_percent_per_kiops: of(&|trial| served.then(|| trial.figure(Measure::Cpu))),
            cpu_of_both_percent_per_kiops: of(&Trial::cpu_of_both),
            client_percent: of(&|trial| trial.client_percent),
            rounds: all.len(),
            quiet: quiet.len(),
            rejected: all.iter().map(|trial| trial.rejected.len()).sum(),
            awake: all.iter().filter(|trial| trial.awake).count(),
            note,
        })
    }
}
