//! Pools through crashes: every short workload with a crash at each step, and random runs.

use tidegate_sim::crash::explore::Failure;
use tidegate_sim::crash::pool::explore::{Act, Depth, acts, explore};
use tidegate_sim::crash::pool::{Setup, seeds};

/// Steps of a random run: as many as one of `cargo xtask sim --stack` has.
const STEPS: u32 = 2_000;

fn panic_with(failure: &Failure) -> ! {
    panic!("{}\n{}", failure.trace.join("\n"), failure.what)
}

fn holds(setup: &Setup, acts: &[Act], depth: Depth) {
    let found = explore(setup, acts, depth);
    if let Some(failure) = &found.failure {
        panic_with(failure);
    }
    println!("{} workloads, {} runs", found.workloads, found.runs);
    assert!(found.runs > 500, "{}", found.runs);
}

#[test]
fn a_pool_keeps_its_promises_through_a_crash_at_each_step_of_two_acts() {
    let depth = Depth {
        longest: 2,
        stride: 5,
    };
    holds(&Setup::default(), &acts(), depth);
}

#[test]
fn a_pool_keeps_its_promises_through_crashes_of_three_acts() {
    // All of them run, each with a few of its crashes.
    let depth = Depth {
        longest: 3,
        stride: 61,
    };
    holds(&Setup::default(), &acts(), depth);
}

#[test]
fn a_full_pool_keeps_its_promises_through_a_crash_at_each_step() {
    let full = Setup {
        columns: 1,
        grants: 2,
        disks: 1,
        ..Setup::default()
    };
    let depth = Depth {
        longest: 2,
        stride: 7,
    };
    holds(&full, &acts(), depth);
}

#[test]
fn random_runs_of_a_pool_hold() {
    for seed in 2..16 {
        if let Err(failure) = seeds::run(seed, STEPS) {
            println!("repeat: cargo xtask sim --stack --shape pool --seed {seed}");
            panic_with(&failure);
        }
    }
}
