//! Rows of I/O control's properties on the real engine: daemons, one for each host, before an emulated array.
//!
//! Each test plays a scenario of `scenarios/engine-*.toml` in real time and has it judged by the simulator's own code.
//! The arrays do a few hundred I/Os a second: what daemons, guests and array need of the machine is little, and its
//! delays are small against the array's latencies. `cargo xtask test` plays several at a time; they know nothing of each
//! other.
//!
//! Where the machine stood still meanwhile, as one does whose hypervisor gives its cores to others, what does not hold
//! proves nothing: then a scenario is played again, by itself. The array knows: it answers late.
//!
//! `tidegate lab run scenarios/NAME.toml --on engine` plays one of them alone, and draws it.

use std::path::Path;
use std::sync::{PoisonError, RwLock};

use tidegate_lab::play;

/// How often a scenario is played until the machine lets it be.
const TRIES: u32 = 4;

/// Who plays a scenario for the first time does so beside others, who plays it again by itself.
static STAGE: RwLock<()> = RwLock::new(());

/// Plays a scenario until it holds, or until it does not though the machine did not stand still.
fn holds(name: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let scenario = play::read(&file.join(format!("{name}.toml"))).expect("it can be read");
    let program = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    let mut say = |says: &str| println!("{says}");
    for attempt in 1..=TRIES {
        let again = attempt > 1;
        let _beside_others = (!again).then(|| STAGE.read().unwrap_or_else(PoisonError::into_inner));
        let _alone = again.then(|| STAGE.write().unwrap_or_else(PoisonError::into_inner));
        let performances = play::play(program, &scenario, 1, &mut say);
        let performances = performances.unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let (text, all) = play::judged(&scenario, &performances);
        println!("{name}\n{text}");
        if all {
            return;
        }
        let disturbed = play::was_disturbed(&performances);
        assert!(disturbed, "{name} does not hold:\n{text}");
    }
    panic!(
        "{name} does not hold; the machine stood still in each of {TRIES} tries, which may be why"
    );
}

#[test]
fn row_2_every_disk_has_its_shares_part_whichever_host_serves_it() {
    holds("engine-row-02-share-error");
}

#[test]
fn row_4_a_reservation_is_met_in_every_second_among_heavier_disks() {
    holds("engine-row-04-reservation");
}

#[test]
fn row_6_limits_are_exact_for_small_and_large_requests_and_bandwidth() {
    holds("engine-row-06-limits");
}

#[test]
fn row_6_a_groups_limit_is_exact_over_all_its_disks_of_a_host() {
    holds("engine-row-06-groups");
}

#[test]
fn row_8_nothing_is_lost_where_some_do_not_ask_for_their_part() {
    holds("engine-row-08-work-conservation");
}

#[test]
fn row_9_a_host_that_joins_has_its_part_soon() {
    holds("engine-row-09-join");
}

#[test]
fn row_9_proportions_are_there_soon_after_every_change() {
    holds("engine-row-09-start-idle-resume");
}

#[test]
fn row_12_latency_is_held_at_the_threshold() {
    holds("engine-row-12-latency");
}

#[test]
fn row_17_the_knee_is_found_and_a_light_disk_has_a_short_tail() {
    holds("engine-row-17-tail");
}

#[test]
fn row_18_a_latency_target_that_cannot_be_met_starves_nobody() {
    holds("engine-row-18-unattainable");
}
