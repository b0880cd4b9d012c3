//! Runs scenarios with many seeds and counts the results.
//!
//! # Always true
//! - Each seed is run once per scenario. The same seeds give the same results.

use crate::judge::{Verdict, judge};
use crate::scenario::{Scenario, ScenarioError};

/// The results of a scenario over many seeds.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Seeds run.
    pub seeds: u64,
    /// For each expectation: its results.
    pub expects: Vec<Expected>,
    /// Seeds with a breach, and the first breach of each.
    pub breached: Vec<(u64, String)>,
}

/// An expectation over many seeds.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// The number of seeds with which it passed.
    pub passed: u64,
    /// The values, by seed.
    pub values: Vec<f64>,
    /// The first seed with which it failed.
    pub first_miss: Option<u64>,
}

impl Tally {
    /// Runs one more seed.
    ///
    /// # Errors
    /// When a run is impossible.
    pub fn add(&mut self, scenario: &Scenario, seed: u64) -> Result<(), ScenarioError> {
        let verdict = judge(scenario, seed)?;
        self.count(&verdict);
        Ok(())
    }

    fn count(&mut self, verdict: &Verdict) {
        self.seeds += 1;
        self.expects
            .resize_with(verdict.judgements.len(), Expected::default);
        for judged in &verdict.judgements {
            let expected = &mut self.expects[judged.expect];
            expected.values.push(judged.value);
            match judged.holds {
                true => expected.passed += 1,
                false => expected.first_miss = expected.first_miss.or(Some(verdict.seed)),
            }
        }
        if let Some(breach) = verdict.breaches.first() {
            let message = format!("{:?}: {}", breach.at, breach.what);
            self.breached.push((verdict.seed, message));
        }
    }

    /// Whether no seed had a breach and each expectation passed with enough seeds.
    pub fn holds(&self, scenario: &Scenario) -> bool {
        let wanted = scenario
            .expects
            .iter()
            .map(|expect| u64::from(expect.of_seeds));
        let enough =
            |(expected, wanted): (&Expected, u64)| expected.passed * 100 >= wanted * self.seeds;
        self.breached.is_empty() && self.expects.iter().zip(wanted).all(enough)
    }
}
