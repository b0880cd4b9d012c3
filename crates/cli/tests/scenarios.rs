//! Scenarios of I/O control on the real engine: a daemon for each host, all on one emulated array, in real time.
//!
//! Each test plays `scenarios/engine-*.toml` once and judges the median over windows ([`play::judged`]). The same files are
//! judged in virtual time, at their own bounds, by `crates/sim/tests/short.rs`. Why there are two verdicts is in
//! `docs/decisions/0025-median-in-real-time.md`.
//!
//! The arrays do some hundred I/Os a second: daemons, guests and array need little of the machine. `cargo xtask test` plays
//! several scenarios at a time; they know nothing of each other. `tidegate lab run scenarios/NAME.toml --on engine` plays one
//! alone, and draws it.

use std::path::Path;

use tidegate_lab::play;

/// Plays a scenario and fails unless it holds.
fn holds(name: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let scenario = play::read(&file.join(format!("{name}.toml"))).expect("it can be read");
    let program = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    let mut say = |says: &str| println!("{says}");
    let performances = play::play(program, &scenario, 1, &mut say);
    let performances = performances.unwrap_or_else(|error| panic!("{name}: {error:#}"));
    let (text, all) = play::judged(&scenario, &performances);
    println!("{name}\n{text}");
    assert!(all, "{name} does not hold:\n{text}");
}

#[test]
fn row_2_disks_get_their_shares_on_whichever_host() {
    holds("engine-row-02-share-error");
}

#[test]
fn row_4_a_reservation_is_met_among_heavier_disks() {
    holds("engine-row-04-reservation");
}

#[test]
fn row_6_limits_are_exact_for_small_and_large_requests_and_bandwidth() {
    holds("engine-row-06-limits");
}

#[test]
fn row_6_a_group_limit_is_exact_over_its_disks_of_a_host() {
    holds("engine-row-06-groups");
}

#[test]
fn row_8_unused_shares_are_given_to_other_disks() {
    holds("engine-row-08-work-conservation");
}

#[test]
fn row_9_a_host_that_joins_gets_its_share() {
    holds("engine-row-09-join");
}

#[test]
fn row_9_shares_follow_every_change() {
    holds("engine-row-09-start-idle-resume");
}

#[test]
fn row_12_latency_stays_near_the_threshold() {
    holds("engine-row-12-latency");
}

#[test]
fn row_17_an_automatic_threshold_gives_a_light_disk_a_short_tail() {
    holds("engine-row-17-tail");
}

#[test]
fn row_18_an_unattainable_latency_target_leaves_others_their_throughput() {
    holds("engine-row-18-unattainable");
}
