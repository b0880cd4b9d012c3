//! Reservations: met before shares count, not saved up, shrunk together, and never all of a datastore.

use super::world::{MS, REF, SECOND, World, at};
use super::{CREDIT, clients, io, lone, orders, shares};
use tidegate_core::iocontrol::{Cost, Offer, Pick, Policy, Scheduler};
use tidegate_core::request::{DiskId, Op};
use tidegate_core::units::Time;

fn reserved(shares: u32, reservation: u32) -> Policy {
    Policy {
        shares,
        reservation,
        ..Policy::default()
    }
}

#[test]
fn a_reservation_is_met_in_every_second_however_few_the_shares() {
    for seed in 0..4 {
        let mut policies = vec![reserved(500, 800)];
        policies.resize(13, shares(2_000));
        let mut world = World::new(1, 3_350, 8, clients(&policies, 16));
        world.exponential = true;
        world.chance.0 = seed;
        world.run(12 * SECOND);
        let windows: Vec<u64> = (4..48)
            .map(|quarter| world.count(0, quarter * SECOND / 4, quarter * SECOND / 4 + SECOND))
            .take(40)
            .collect();
        let least = windows.iter().min().expect("there are windows");
        assert!(*least >= 760, "{windows:?}");
        let mean = world.count(0, 2 * SECOND, 12 * SECOND) / 10;
        assert!(mean >= 792, "{mean}");
    }
}

#[test]
fn service_by_shares_does_not_reduce_a_reservation() {
    let mut policies = vec![reserved(100, 800)];
    policies.resize(5, shares(4_000));
    let mut made = clients(&policies, 32);
    for client in &mut made[1..] {
        client.on = false;
    }
    let mut world = World::new(1, 4_000, 4, made);
    world.run(3 * SECOND);
    assert!(world.count(0, 0, 3 * SECOND) > 11_000);
    for disk in 1..5 {
        world.turn_on(disk);
    }
    world.run(SECOND);
    let count = world.count(0, 3 * SECOND, 4 * SECOND);
    assert!(count >= 760, "{count}");
}

#[test]
fn a_reservation_is_not_saved_up_while_the_disk_is_idle() {
    let mut policies = vec![reserved(100, 1_000)];
    policies.resize(5, shares(4_000));
    let mut made = clients(&policies, 32);
    made[0].on = false;
    let mut world = World::new(1, 4_000, 4, made);
    world.run(5 * SECOND);
    world.turn_on(0);
    world.run(SECOND);
    // A second of it, 50 ms from before, the disk's credit, and its share.
    let count = world.count(0, 5 * SECOND, 6 * SECOND);
    assert!((950..=1_000 + 50 + 16 + 30).contains(&count), "{count}");
}

#[test]
fn a_disk_that_becomes_active_may_be_50_ms_behind_its_reservation() {
    let mut policies = vec![reserved(100, 1_000)];
    policies.resize(5, shares(4_000));
    let mut made = clients(&policies, 64);
    made[0].on = false;
    let mut world = World::new(1, 4_000, 4, made);
    world.run(5 * SECOND);
    world.turn_on(0);
    world.run(SECOND);
    // Its backlog, its reservation meanwhile, and its credit. Without the backlog it would have 70 at most.
    let count = world.count(0, 5 * SECOND, 5 * SECOND + 50 * MS);
    assert!((85..=120).contains(&count), "{count}");
}

#[test]
fn on_an_uncongested_datastore_a_reservation_applies_in_full() {
    let mut scheduler = lone(&[reserved(100, 1_000), shares(10_000)]);
    let orders = orders(|orders| {
        orders.window = REF;
        orders.theta = 0;
    });
    scheduler.steer(Time::ZERO, &orders);
    let now = at(SECOND);
    let offer = |scheduler: &mut Scheduler, disk, n: u64| {
        scheduler.offer(now, DiskId(disk), io(n), Op::Read, n << 20, 4_096)
    };
    assert!(matches!(offer(&mut scheduler, 1, 0), Offer::Start(_)));
    for (disk, n) in [(1, 1), (1, 2), (0, 3)] {
        assert_eq!(offer(&mut scheduler, disk, n), Offer::Wait);
    }
    scheduler.finished(now, DiskId(1), Op::Read, 4_096, now, Cost(REF));
    assert!(matches!(scheduler.pick(now), Pick::Now(DiskId(0), _, _)));
}

#[test]
fn infeasible_reservations_shrink_alike_and_leave_a_tenth() {
    // 6000 are reserved of 4000: the governor's fraction is 0.9 * 4000 / 6000.
    let mut policies = vec![reserved(100, 4_000), reserved(1_000, 2_000)];
    policies.resize(6, shares(2_000));
    let mut world = World::new(1, 4_000, 4, clients(&policies, 32));
    world.exponential = true;
    let theta = 0.6;
    world.steer(|orders| orders.theta = 65_536 / 10 * 6);
    world.run(6 * SECOND);
    for (disk, r) in [(0, 4_000.0), (1, 2_000.0)] {
        let count = world.count(disk, SECOND, 6 * SECOND) as f64 / 5.0;
        assert!(count >= 0.95 * theta * r, "{count} of {}", theta * r);
    }
    let others: u64 = world.costs(SECOND, 6 * SECOND)[2..].iter().sum();
    let all: u64 = world.costs(SECOND, 6 * SECOND).iter().sum();
    assert!(others as f64 >= 0.095 * all as f64, "{others} of {all}");
}

#[test]
fn a_reservation_is_scaled_by_the_governors_fraction() {
    let mut policies = vec![reserved(100, 2_000)];
    policies.resize(5, shares(10_000));
    let mut world = World::new(1, 4_000, 4, clients(&policies, 32));
    world.steer(|orders| orders.theta = 1 << 15);
    world.run(5 * SECOND);
    let count = world.count(0, SECOND, 5 * SECOND) / 4;
    assert!((950..=1_060).contains(&count), "{count}");
}

#[test]
fn reservations_leave_a_tenth_in_any_100_ms() {
    let mut policies = vec![reserved(1_000, 50_000)];
    policies.resize(4, shares(1_000));
    let mut world = World::new(1, 4_000, 4, clients(&policies, 32));
    world.run(3 * SECOND);
    for tenth in 10..300 {
        let costs = world.costs(tenth * 10 * MS, tenth * 10 * MS + 100 * MS);
        let all: u64 = costs.iter().sum();
        let others = all - costs[0];
        // What reservations may take in a row, and one request.
        let slack = (CREDIT + 2 * REF) / 10;
        assert!(others + slack >= all / 10, "{others} of {all}");
    }
    let costs = world.costs(SECOND, 3 * SECOND);
    let all: u64 = costs.iter().sum();
    assert!((all - costs[0]) * 100 >= all * 7, "{costs:?}");
}

#[test]
fn reservations_leave_a_tenth_of_the_first_100_ms_after_idle_time() {
    let mut policies = vec![reserved(1_000, 50_000)];
    policies.resize(4, shares(1_000));
    let mut made = clients(&policies, 32);
    made[0].on = false;
    let mut world = World::new(1, 4_000, 4, made);
    world.run(5 * SECOND);
    world.turn_on(0);
    world.run(SECOND);
    let costs = world.costs(5 * SECOND, 5 * SECOND + 100 * MS);
    let all: u64 = costs.iter().sum();
    // What reservations may take in a row, and the disk's idle credit.
    let slack = (2 * CREDIT + 2 * REF) / 10;
    assert!(all - costs[0] + slack >= all / 10, "{costs:?}");
}

#[test]
fn a_disk_is_served_at_once_after_its_reservation_is_removed() {
    let policies = [reserved(1_000, 3_000), shares(1_000)];
    let mut world = World::new(1, 4_000, 4, clients(&policies, 32));
    world.run(10 * SECOND);
    let costs = world.costs(SECOND, 10 * SECOND);
    assert!(costs[0] > 2 * costs[1], "{costs:?}");
    world.policy(0, &shares(1_000));
    world.run(SECOND);
    // Service beyond its shares counts against it for 100 ms of its rate, no longer.
    let count = world.count(0, 10 * SECOND, 10 * SECOND + SECOND / 2);
    assert!(count >= 700, "{count} of 1000");
}

#[test]
fn virtual_time_does_not_follow_reservations() {
    // Disk 0 is ahead by the service of its reservation. A light disk that becomes active must not be delayed by it.
    let policies = [reserved(1_000, 3_000), shares(1_000), shares(1_000)];
    let mut made = clients(&policies, 32);
    made[2].depth = 1;
    made[2].think = 50 * MS;
    let mut world = World::new(1, 4_000, 4, made);
    world.run(5 * SECOND);
    let waits = world.starts.iter().filter(|s| s.disk == 2 && s.at > SECOND);
    let waits: Vec<u64> = waits.map(|s| s.waited).collect();
    // It starts within ten I/Os of the others: reservations have priority until their nine tenths are used up.
    let worst = waits.iter().max().expect("it was served");
    assert!(*worst <= 8 * MS, "{worst}");
}
