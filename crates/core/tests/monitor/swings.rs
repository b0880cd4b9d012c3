//! Loads that swing, by chance or on purpose: trials without a verdict, and how many changes a guest can bring about.

use super::world::{Demand, World};
use super::{changes, host, limits};
use proptest::prelude::*;
use tidegate_core::monitor::auto::Auto;
use tidegate_core::monitor::{Action, Limits, Why};

const DEEP: Demand = Demand::Closed(32.0, 500.0);
const NOTHING: Demand = Demand::Open(0.0);

fn set(world: &mut World, disks: usize, demand: Demand) {
    for disk in &mut world.disks[..disks] {
        disk.demand = demand;
    }
}

/// When something of this kind was decided, in milliseconds.
fn times(world: &World, is_it: impl Fn(&Action, &Why) -> bool) -> Vec<u64> {
    let found = world.log.iter().filter(|it| is_it(&it.action, &it.why));
    found.map(|it| it.at.as_nanos() / 1_000_000).collect()
}

fn activations(world: &World) -> Vec<u64> {
    times(world, |action, _| matches!(action, Action::Activate { .. }))
}

#[test]
fn a_trial_of_another_thread_is_taken_back_if_the_load_fell_and_is_not_repeated_for_a_second() {
    let mut policy = Auto::new(limits(2));
    let mut world = host(4, 8, DEEP);
    while activations(&world).is_empty() {
        world.run(5, &mut policy);
    }
    set(&mut world, 8, NOTHING);
    world.run(500, &mut policy);
    let void = times(&world, |action, why| {
        matches!(why, Why::Void(_, hold) if hold.as_nanos() > 0)
            && matches!(action, Action::Park { .. })
    });
    assert_eq!(void.len(), 1, "{:?}", world.log);
    assert_eq!(world.active(), 1);
    set(&mut world, 8, DEEP);
    world.run(3_000, &mut policy);
    let again = activations(&world);
    assert_eq!(world.active(), 2);
    assert!(again.len() == 2 && again[1] - void[0] >= 1_000, "{again:?}");
}

#[test]
fn a_trial_of_another_thread_stays_if_the_load_rose() {
    let mut policy = Auto::new(limits(2));
    let mut world = host(4, 8, DEEP);
    set(&mut world, 4, NOTHING);
    while activations(&world).is_empty() {
        world.run(5, &mut policy);
    }
    set(&mut world, 4, Demand::Closed(64.0, 500.0));
    world.run(3_000, &mut policy);
    assert_eq!(world.active(), 2);
    assert_eq!(activations(&world).len(), 1, "{:?}", world.log);
}

/// The most changes in so many seconds: see the budget of `auto`. A trial that is taken back is one more.
fn most(seconds: u64) -> usize {
    2 * (32 + usize::try_from(seconds).expect("a few") / 3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Guests that switch a deep load on and off, each at its own pace, for ten minutes.
    #[test]
    fn guests_whose_load_swings_bring_about_a_bounded_number_of_changes(
        cpus in 2_u16..6,
        paces in prop::collection::vec((5_u64..4_000, 5_u64..4_000), 2..6),
    ) {
        let mut policy = Auto::new(limits(cpus));
        let mut world = World::new(cpus, usize::from(cpus), 1);
        for disk in 0..paces.len() * 2 {
            world.attach(0, if disk % 2 == 0 { DEEP } else { NOTHING }, 10.0);
        }
        for step in 0..600_000 / 20 {
            for (guest, (on, off)) in paces.iter().enumerate() {
                let is_on = step * 20 % (on + off) < *on;
                world.disks[guest * 2].demand = if is_on { DEEP } else { NOTHING };
                world.disks[guest * 2 + 1].demand = if is_on { NOTHING } else { DEEP };
            }
            world.run(20, &mut policy);
        }
        let made = changes(&world.log, 0);
        prop_assert!(made <= most(600), "{made}");
        let said = times(&world, |action, _| *action == Action::Stay).len();
        prop_assert!(said <= 3 * most(600), "{said} events without a change");
    }
}

/// The worst that was found: another thread is of no use, and whenever one was tried and taken back, the guest changes its load
/// by so much that the ban ends.
#[test]
fn a_guest_that_changes_its_load_after_each_trial_brings_about_few_of_them() {
    let mut policy = Auto::new(limits(2));
    let mut world = host(4, 4, DEEP);
    world.tax = 1.1;
    let mut was = 1;
    while world.now < 600e6 {
        world.run(5, &mut policy);
        let active = world.active();
        if active < was {
            for disk in &mut world.disks {
                disk.service = if disk.service > 15.0 { 10.0 } else { 20.0 };
            }
        }
        was = active;
    }
    let made = changes(&world.log, 0);
    assert!((50..=most(600) / 2).contains(&made), "{made}");
    let said = times(&world, |_, why| matches!(why, Why::TooManyChanges { .. }));
    assert!((1..=most(600)).contains(&said.len()), "{}", said.len());
}

/// Guests of which now these, now those have much to do: each time the load is uneven, and evened out by several moves.
#[test]
fn guests_that_take_turns_bring_about_a_bounded_number_of_moves() {
    let mut policy = Auto::new(Limits { min: 2, max: 2 });
    let mut world = World::new(2, 2, 2);
    for disk in 0..16 {
        world.attach(disk % 2, NOTHING, 10.0);
    }
    for _ in 0..600 / 5 {
        // Those of the thread with more disks have all the load.
        let busy = (0..2).max_by_key(|at| world.disks.iter().filter(|it| it.thread == *at).count());
        for disk in &mut world.disks {
            let is_busy = Some(disk.thread) == busy;
            disk.demand = Demand::Open(if is_busy { 6_000.0 } else { 0.0 });
        }
        world.run(5_200, &mut policy);
    }
    let moves = world
        .log
        .iter()
        .filter(|it| matches!(it.action, Action::Move { .. }))
        .count();
    // None of them takes a trial back.
    assert!((100..=most(600) / 2).contains(&moves), "{moves}");
}

/// Requests that wait too long in one of three ticks are no congestion, but a reason to look at disks.
#[test]
fn a_guest_whose_requests_wait_now_and_then_does_not_make_the_monitor_look_at_disks_all_the_time() {
    let mut policy = Auto::new(limits(1));
    let mut world = host(2, 8, Demand::Open(6_000.0));
    let mut looks = 0;
    for burst in 0..1_000 {
        let demand = if burst % 3 == 0 { 25_000.0 } else { 6_000.0 };
        set(&mut world, 8, Demand::Open(demand));
        world.run_and(5, &mut policy, |snapshot, _| {
            looks += u32::from(snapshot.disks_span.is_some());
        });
    }
    // Five seconds: ten slow ticks in each, one more for each of them, and the first ones.
    assert!((40..=110).contains(&looks), "{looks}");
}

/// Steady guests need another thread. One with half of the load stops whenever that is tried, and goes on once it is taken back.
#[test]
fn a_guest_that_stops_during_trials_does_not_keep_a_thread_from_its_neighbours() {
    let mut policy = Auto::new(limits(2));
    let mut world = host(4, 8, DEEP);
    let (mut was, mut relieved) = (1, 0);
    while world.now < 100e6 {
        world.run(5, &mut policy);
        let active = world.active();
        if active != was {
            set(&mut world, 4, if active > was { NOTHING } else { DEEP });
        }
        relieved += u32::from(active == 2);
        was = active;
    }
    assert!(relieved * 5 >= 90_000, "{relieved}");
    let was_tried = |why: &Why| matches!(why, Why::Void(..));
    assert!(
        !times(&world, |_, why| was_tried(why)).is_empty(),
        "{:?}",
        world.log
    );
}
