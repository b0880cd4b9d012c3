//! Every fixed set-up of I/O threads beside the policies, on one trace: the best fixed set-up of each phase is the bar.
//!
//! A score is useful work: guests' computing, and for each answered request the guest's work and the service. It is given in
//! thousandths of a core. A phase's score begins after it has settled. The score of the whole trace includes that time.

use super::outcome::{Outcome, SAMPLE};
use super::trace::{Idle, SetUp, Trace};
use super::world::World;
use tidegate_core::monitor::Policy;

/// How long a phase settles before it is judged.
pub const SETTLES: u64 = 1_000_000_000;

/// How policies begin: with one thread that polls where that pays, on shared cores. It is the engine's default.
pub const BEGIN: SetUp = SetUp {
    threads: 1,
    idle: Idle::Spin,
    own_cores: false,
};

/// Plays a trace with a fixed set-up.
#[must_use]
pub fn fixed(trace: &Trace, set_up: SetUp, settles: u64, seed: u64) -> Outcome {
    World::new(trace, set_up, None, seed).run(settles)
}

/// Plays a trace with a policy.
#[must_use]
pub fn with_policy(trace: &Trace, policy: Box<dyn Policy>, settles: u64, seed: u64) -> Outcome {
    World::new(trace, BEGIN, Some(policy), seed).run(settles)
}

/// A fixed set-up or a policy on a trace.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// The set-up, if it is fixed.
    pub fixed: Option<SetUp>,
    /// The score of each phase after it has settled.
    pub settled: Vec<u64>,
    /// The score of each phase from its beginning.
    pub whole: Vec<u64>,
    /// What came of it.
    pub outcome: Outcome,
}

impl Row {
    /// The scores of a run.
    #[must_use]
    pub fn new(name: String, fixed: Option<SetUp>, trace: &Trace, outcome: Outcome) -> Row {
        let scores = |settles: u64| {
            let phases = 0..trace.phases.len();
            let score = phases.map(|phase| {
                let begins = trace.begins(phase);
                outcome.score(begins + settles, begins + trace.phases[phase].lasts)
            });
            score.collect()
        };
        Row {
            settled: scores(outcome.settles),
            whole: scores(0),
            name,
            fixed,
            outcome,
        }
    }

    /// The mean over the phases of this row's whole scores, each by the best fixed set-up's, in thousandths.
    #[must_use]
    pub fn normalised(&self, best: &[u64]) -> u64 {
        let parts = self.whole.iter().zip(best);
        let sum: u64 = parts.map(|(own, best)| own * 1_000 / best.max(&1)).sum();
        sum / (best.len() as u64).max(1)
    }
}

/// The best score of each phase among fixed set-ups: the clairvoyant choice. `of` chooses the scores.
#[must_use]
pub fn best(rows: &[Row], of: impl Fn(&Row) -> &[u64]) -> Vec<u64> {
    let fixed: Vec<&Row> = rows.iter().filter(|row| row.fixed.is_some()).collect();
    let phases = 0..fixed.first().map_or(0, |row| of(row).len());
    phases
        .map(|phase| fixed.iter().map(|row| of(row)[phase]).max().unwrap_or(0))
        .collect()
}

/// How long a policy takes to change anything after a phase has begun.
#[must_use]
pub fn reacts(trace: &Trace, outcome: &Outcome, phase: usize) -> Option<u64> {
    let begins = trace.begins(phase);
    let ends = begins + trace.phases[phase].lasts;
    let changes = outcome.changes.iter();
    let mut own = changes.filter(|change| change.at >= begins && change.at < ends);
    own.find(|change| change.resized || change.moved)
        .map(|change| change.at - begins)
}

/// How long it takes after a phase has begun until a tenth of a second has this score. None if it never does.
#[must_use]
pub fn adapts(trace: &Trace, outcome: &Outcome, phase: usize, score: u64) -> Option<u64> {
    const WINDOW: u64 = 10 * SAMPLE;
    let begins = trace.begins(phase);
    let lasts = trace.phases[phase].lasts;
    let mut at = 0;
    while at + WINDOW <= lasts {
        if outcome.score(begins + at, begins + at + WINDOW) >= score {
            return Some(at);
        }
        at += SAMPLE;
    }
    None
}
