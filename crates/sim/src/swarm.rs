//! The swarm: scenarios with many seeds.
//!
//! # Always true
//! - A seed is run once for each scenario; with the same seeds the same comes out.

use crate::judge::{Verdict, judge};
use crate::scenario::{Scenario, ScenarioError};

/// What a scenario came to over many seeds.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Seeds run.
    pub seeds: u64,
    /// For each expectation: with how many seeds it held, and the values.
    pub expects: Vec<Expected>,
    /// Seeds with a breach, and the first of each.
    pub breached: Vec<(u64, String)>,
}

/// An expectation over many seeds.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// With so many it held.
    pub held: u64,
    /// The values, by seed.
    pub values: Vec<f64>,
    /// The first seed with which it did not hold.
    pub first_miss: Option<u64>,
}

impl Tally {
    /// Runs one more seed.
    ///
    /// # Errors
    /// When a run cannot be made.
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
                true => expected.held += 1,
                false => expected.first_miss = expected.first_miss.or(Some(verdict.seed)),
            }
        }
        if let Some(breach) = verdict.breaches.first() {
            let says = format!("{:?}: {}", breach.at, breach.what);
            self.breached.push((verdict.seed, says));
        }
    }

    /// Whether no seed had a breach, and each expectation held with as many as it must.
    pub fn holds(&self, scenario: &Scenario) -> bool {
        let wanted = scenario
            .expects
            .iter()
            .map(|expect| u64::from(expect.of_seeds));
        let enough =
            |(expected, wanted): (&Expected, u64)| expected.held * 100 >= wanted * self.seeds;
        self.breached.is_empty() && self.expects.iter().zip(wanted).all(enough)
    }
}
