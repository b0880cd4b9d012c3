//! Pools through crashes: every short workload with a crash at each step, I/Os that fail in turn, random runs.

use tidegate_core::request::{Flags, Op};
use tidegate_sim::crash::explore::Failure;
use tidegate_sim::crash::pool::explore::{
    Act, Depth, acts, explore, explore_one, fail_each, request,
};
use tidegate_sim::crash::pool::{EXTENT, SUB_BLOCK, Setup, seeds};

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
fn whichever_io_fails_a_pool_loses_nothing_that_was_answered() {
    let write = |sector, flags| Act::Guest(request(Op::Write, flags, sector, 3));
    let flush = Act::Guest(request(Op::Flush, Flags::NONE, 0, 0));
    let discard = Act::Guest(request(Op::Discard, Flags::NONE, 0, SUB_BLOCK));
    let zeroes = Act::Guest(request(Op::WriteZeroes, Flags::FUA, 3, 2 * SUB_BLOCK));
    let of_clone = Act::GuestOfClone(request(Op::Write, Flags::FUA, 1, 2));
    let other_sub_block = Act::Guest(request(Op::Write, Flags::NONE, SUB_BLOCK, SUB_BLOCK));
    let hidden = Act::Guest(request(Op::WriteZeroes, Flags::NONE, SUB_BLOCK, SUB_BLOCK));
    let released = [
        write(1, Flags::NONE),
        flush,
        discard,
        write(1, Flags::NONE),
        flush,
        write(1, Flags::FUA),
    ];
    let workloads: [&[Act]; 8] = [
        &[write(1, Flags::FUA), write(300, Flags::NONE), flush],
        &[write(1, Flags::NONE), Act::Snapshot, write(1, Flags::FUA)],
        &[discard, Act::Snapshot, Act::Delete, flush, Act::Detach],
        &[write(1, Flags::FUA), Act::Rollback, write(2, Flags::FUA)],
        &[Act::Clone, of_clone, Act::Remove, write(1, Flags::FUA)],
        // What was released is in a header that fails, and the write with FUA in another one.
        &released,
        // The place of a copy that has failed is not zeroed.
        &[write(1, Flags::FUA), other_sub_block, hidden, flush],
        &[zeroes, Act::AddColumn, Act::Snapshot, Act::Detach],
    ];
    for acts in workloads {
        match fail_each(&Setup::default(), acts) {
            Ok(ios) => assert!(ios > 2, "{ios} I/Os of {acts:?}"),
            Err(failure) => panic_with(&failure),
        }
    }
}

fn one_holds(setup: &Setup, workload: &[Act], stride: u32) {
    let found = explore_one(setup, workload, stride);
    if let Some(failure) = &found.failure {
        panic_with(failure);
    }
    assert!(found.runs > 50, "{}", found.runs);
}

#[test]
fn directed_what_was_discarded_is_not_overwritten_before_that_is_durable() {
    // Three extents for three of the disk: what is written next takes the place of what was discarded.
    let full = Setup {
        columns: 1,
        grants: 1,
        disks: 1,
        ..Setup::default()
    };
    let of = |op, extent: u64| Act::Guest(request(op, Flags::NONE, extent * EXTENT, SUB_BLOCK));
    let discard =
        |extent: u64| Act::Guest(request(Op::Discard, Flags::NONE, extent * EXTENT, EXTENT));
    let flush = Act::Guest(request(Op::Flush, Flags::NONE, 0, 0));
    let workload = [
        Act::Delete,
        of(Op::Write, 1),
        of(Op::Write, 2),
        flush,
        discard(0),
        discard(1),
        of(Op::Write, 1),
    ];
    one_holds(&full, &workload, 1);
}

#[test]
fn directed_a_grant_that_only_hides_something_is_not_given_back() {
    let setup = Setup {
        columns: 1,
        grants: 8,
        disks: 1,
        sectors: 10 * EXTENT,
        ..Setup::default()
    };
    let all = |op| Act::Guest(request(op, Flags::NONE, 0, 10 * EXTENT));
    let flush = Act::Guest(request(Op::Flush, Flags::NONE, 0, 0));
    let workload = [
        all(Op::Write),
        Act::Snapshot,
        all(Op::Write),
        flush,
        all(Op::Discard),
        all(Op::Read),
        flush,
        all(Op::Read),
        Act::Detach,
        all(Op::Read),
    ];
    one_holds(&setup, &workload, 11);
}

#[test]
fn random_runs_of_a_pool_hold() {
    for seed in 0..24 {
        if let Err(failure) = seeds::run(seed, STEPS) {
            println!("repeat: cargo xtask sim --stack --shape pool --seed {seed}");
            panic_with(&failure);
        }
    }
}
