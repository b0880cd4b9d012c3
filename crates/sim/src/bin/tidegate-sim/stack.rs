//! `tidegate-sim --stack`: the crash simulator of the data path.
//!
//! With `--seed` one random run, or as many as `--seeds` or `--swarm` allow from there on; without, the enumeration of
//! short workloads.

use std::time::{Duration, Instant};
use tidegate_core::filter::FilterSpec;
use tidegate_sim::crash::explore::{Failure, explore, requests};
use tidegate_sim::crash::seeds;
use tidegate_sim::crash::store::Defects;
use tidegate_sim::crash::world::Setup;

/// Requests of an enumerated workload, at most.
const LONGEST: usize = 3;
/// Steps of a random run.
const STEPS: u32 = 2_000;

/// What to run.
pub(crate) struct Options {
    /// The first seed; `None` for the enumeration.
    pub(crate) seed: Option<u64>,
    /// Seeds, at most.
    pub(crate) seeds: u64,
    /// For how long.
    pub(crate) swarm: Option<Duration>,
}

/// Runs it and prints the result. Returns whether everything held.
pub(crate) fn run(options: &Options) -> bool {
    match options.seed {
        Some(seed) => random(options, seed),
        None => enumerate(),
    }
}

fn setup(sectors: u64) -> Setup {
    Setup {
        sectors,
        filters: vec![FilterSpec::Stats],
        defects: Defects::default(),
    }
}

fn enumerate() -> bool {
    let began = Instant::now();
    let found = explore(&setup(4), LONGEST, &requests());
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "plain: {} workloads of up to {LONGEST} requests, {} runs, {seconds:.1} s",
        found.workloads, found.runs
    );
    match found.failure {
        Some(failure) => breach("cargo xtask sim --stack", &failure),
        None => true,
    }
}

fn random(options: &Options, first: u64) -> bool {
    let began = Instant::now();
    let seeds = match options.swarm {
        Some(_) => options.seeds,
        // One seed, unless a number is given.
        None if options.seeds == u64::MAX => 1,
        None => options.seeds,
    };
    let (mut runs, mut ios) = (0, 0);
    for seed in first..first.saturating_add(seeds) {
        if options.swarm.is_some_and(|most| began.elapsed() > most) {
            break;
        }
        match seeds::run(&setup(24), seed, STEPS) {
            Ok(completed) => (runs, ios) = (runs + 1, ios + completed),
            Err(failure) => {
                let command = format!("cargo xtask sim --stack --seed {seed}");
                return breach(&command, &failure);
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("plain: {runs} seeds, {ios} I/Os, {seconds:.1} s");
    true
}

fn breach(command: &str, failure: &Failure) -> bool {
    println!("{}", failure.trace.join("\n"));
    println!("\n{}\nrepeat: {command}", failure.what);
    false
}
