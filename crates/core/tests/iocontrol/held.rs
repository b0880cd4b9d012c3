//! Disks that the governor's orders limit to a share of the window.

use crate::world::{MS, REF, SECOND, World, at};
use crate::{clients, io, limited, lone, orders, shares};
use tidegate_core::iocontrol::{Cost, DiskKey, Hold, Limit, Offer, Pick};
use tidegate_core::request::{DiskId, Op};

/// Two backlogged disks of equal shares. The first may have `part` in flight.
fn two(threads: usize, part: u64) -> World {
    let mut made = clients(&[shares(1_000), shares(1_000)], 32);
    made[1].thread = threads - 1;
    let mut world = World::new(threads, 4_000, 4, made);
    world.steer(|orders| orders.parts = vec![(DiskKey(0), part)]);
    world
}

/// The first disk's fraction of the recent throughput.
fn first(world: &World) -> f64 {
    let costs = world.costs(world.now - SECOND, world.now);
    costs[0] as f64 / (costs[0] + costs[1]) as f64
}

#[test]
fn others_get_what_a_limited_disk_does_not() {
    for threads in [1, 2] {
        let mut world = two(threads, 4 * REF);
        world.run(3 * SECOND);
        // Four of sixteen in flight.
        assert!((0.24..=0.26).contains(&first(&world)), "{}", first(&world));
        let done: u64 = world.costs(SECOND, 3 * SECOND).iter().sum();
        assert!(done >= 7_990 * REF, "{done}");
        // A part above its share: shares decide again. The same holds without parts.
        world.steer(|orders| orders.parts = vec![(DiskKey(0), 12 * REF)]);
        world.run(2 * SECOND);
        assert!((0.49..=0.51).contains(&first(&world)), "{}", first(&world));
        world.steer(|orders| orders.parts = vec![(DiskKey(0), REF)]);
        world.run(2 * SECOND);
        assert!((0.05..=0.07).contains(&first(&world)), "{}", first(&world));
        world.steer(|_| ());
        world.run(2 * SECOND);
        assert!((0.49..=0.51).contains(&first(&world)), "{}", first(&world));
    }
}

#[test]
fn parts_delay_no_disk_on_an_uncongested_datastore() {
    let mut world = two(1, REF);
    world.steer(|orders| {
        orders.engaged = false;
        orders.parts = vec![(DiskKey(0), REF)];
    });
    world.run(3 * SECOND);
    assert!(first(&world) > 0.45, "{}", first(&world));
}

#[test]
fn a_part_that_is_a_fraction_holds_on_average() {
    for (part, low, high) in [(640, 2.4, 2.6), (1_152, 4.4, 4.6)] {
        let mut world = World::new(1, 2_000, 2, clients(&[shares(1_000)], 32));
        world.exponential = true;
        world.steer(|orders| orders.parts = vec![(DiskKey(0), part)]);
        world.run(20 * SECOND);
        let mean = world.in_flight_area as f64 / (20 * SECOND) as f64 / REF as f64;
        assert!((low..=high).contains(&mean), "{mean} for {part}");
    }
}

#[test]
fn a_request_larger_than_the_part_starts_when_its_disk_is_idle() {
    let mut made = clients(&[shares(1_000), shares(1_000)], 8);
    made[0].len = 1 << 20;
    let mut world = World::new(1, 20_000, 4, made);
    world.steer(|orders| orders.parts = vec![(DiskKey(0), REF)]);
    world.run(2 * SECOND);
    assert!(world.count(0, SECOND, 2 * SECOND) > 20);
}

#[test]
fn waiting_for_the_part_counts_as_waiting_for_shares() {
    let mut world = two(1, REF);
    world.run(2 * SECOND);
    let mut usage = Vec::new();
    world.schedulers[0].usage(at(world.now), &mut usage);
    let held = |hold: Hold| usage[0].held_ns[hold.index()];
    assert!(held(Hold::Shares) > 50 * held(Hold::Window), "{usage:?}");
    assert!(held(Hold::Shares) > 50 * SECOND);
}

#[test]
fn a_disk_at_its_part_still_has_its_limit() {
    let mut made = clients(&[limited(Limit::steady(500)), shares(1_000)], 32);
    made[0].think = MS;
    let mut world = World::new(1, 4_000, 4, made);
    world.steer(|orders| orders.parts = vec![(DiskKey(0), 2 * REF)]);
    world.run(3 * SECOND);
    let done = world.count(0, SECOND, 3 * SECOND);
    assert!((900..=1_001).contains(&done), "{done}");
}

#[test]
fn hanging_ios_delay_their_disk_no_longer_than_the_overdue_bound() {
    let mut scheduler = lone(&[shares(1_000)]);
    scheduler.steer(
        at(0),
        &orders(|orders| {
            orders.engaged = true;
            orders.window = 8 * REF;
            orders.parts = vec![(DiskKey(0), REF)];
        }),
    );
    for n in 0..3 {
        scheduler.offer(at(n), DiskId(0), io(n), Op::Read, n << 20, 4_096);
    }
    assert_eq!(scheduler.waiting(DiskId(0)), 2);
    let mut now = MS;
    while scheduler.waiting(DiskId(0)) == 2 {
        assert!(now < 10 * SECOND, "it waits too long");
        while let Pick::Now(..) = scheduler.pick(at(now)) {}
        now += 100 * MS;
    }
    assert!(now > 7 * SECOND, "{now}");
}

#[test]
fn a_disk_at_its_part_can_be_removed_and_late_completions_are_ignored() {
    let mut scheduler = lone(&[shares(1_000), shares(1_000)]);
    scheduler.steer(
        at(0),
        &orders(|orders| {
            orders.engaged = true;
            orders.window = 8 * REF;
            orders.parts = vec![(DiskKey(0), REF)];
        }),
    );
    let offer = |scheduler: &mut tidegate_core::iocontrol::Scheduler, n| {
        scheduler.offer(at(n), DiskId(0), io(n), Op::Read, n << 20, 4_096)
    };
    assert!(matches!(offer(&mut scheduler, 1), Offer::Start(_)));
    assert_eq!(offer(&mut scheduler, 2), Offer::Wait);
    assert_eq!(offer(&mut scheduler, 3), Offer::Wait);
    assert_eq!(scheduler.pick(at(4)), Pick::Empty, "it has its part");
    assert!(
        scheduler.someone_waits(),
        "a completion must be followed by a pick"
    );
    scheduler.finished(at(5), DiskId(0), Op::Read, 4_096, at(1), Cost(REF));
    assert!(matches!(scheduler.pick(at(5)), Pick::Now(DiskId(0), _, _)));
    assert_eq!(scheduler.pick(at(5)), Pick::Empty);
    let mut out = Vec::new();
    scheduler.drain(DiskId(0), &mut out);
    assert_eq!(out, [io(3)]);
    scheduler.remove(DiskId(0));
    scheduler.finished(at(6), DiskId(0), Op::Read, 4_096, at(5), Cost(REF));
    assert_eq!(scheduler.pick(at(6)), Pick::Empty);
    assert!(!scheduler.someone_waits());
}
