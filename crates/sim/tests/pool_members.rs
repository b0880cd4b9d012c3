//! Columns of several members through crashes: members are lost, come back and are replaced at any step.

use tidegate_core::request::{Flags, Op};
use tidegate_sim::crash::explore::Failure;
use tidegate_sim::crash::pool::explore::{
    Act, Depth, acts_of_members, explore, fail_each, request,
};
use tidegate_sim::crash::pool::{SUB_BLOCK, Setup, seeds};

/// Steps of a random run: as many as one of `cargo xtask sim --stack` has.
const STEPS: u32 = 2_000;

fn panic_with(failure: &Failure) -> ! {
    panic!("{}\n{}", failure.trace.join("\n"), failure.what)
}

fn of_two() -> Setup {
    Setup {
        columns: 1,
        mirrors: 2,
        disks: 1,
        is_used: false,
        ..Setup::default()
    }
}

#[test]
fn a_mirrored_pool_keeps_its_promises_through_a_crash_at_each_step_of_two_acts() {
    let depth = Depth {
        longest: 2,
        stride: 7,
    };
    let found = explore(&of_two(), &acts_of_members(), depth);
    if let Some(failure) = &found.failure {
        panic_with(failure);
    }
    println!("{} workloads, {} runs", found.workloads, found.runs);
    assert!(found.runs > 500, "{}", found.runs);
}

#[test]
fn no_single_fault_of_a_member_reaches_a_guest() {
    let write = |sector, sectors| Act::Guest(request(Op::Write, Flags::NONE, sector, sectors));
    let acts = [
        write(1, 2),
        write(SUB_BLOCK, SUB_BLOCK),
        Act::Guest(request(Op::Write, Flags::FUA, SUB_BLOCK - 1, 2)),
        Act::Snapshot,
        write(1, 2),
        Act::Guest(request(Op::Flush, Flags::NONE, 0, 0)),
        Act::BringBack(0),
        Act::BringBack(1),
        write(2, SUB_BLOCK),
        Act::Guest(request(Op::Discard, Flags::NONE, 0, SUB_BLOCK)),
        Act::Detach,
    ];
    match fail_each(&of_two(), &acts) {
        Ok(swept) => assert!(swept > 60, "{swept}"),
        Err(failure) => panic_with(&failure),
    }
}

#[test]
fn random_runs_of_a_mirrored_pool_hold() {
    let mut rebuilt = 0;
    for seed in 2..25 {
        match seeds::run_mirrored(seed, STEPS) {
            Ok((_, more)) => rebuilt += more,
            Err(failure) => {
                println!("repeat: cargo xtask sim --stack --shape mirrored-pool --seed {seed}");
                panic_with(&failure);
            }
        }
    }
    assert!(rebuilt > 20, "{rebuilt} members were rebuilt");
}
