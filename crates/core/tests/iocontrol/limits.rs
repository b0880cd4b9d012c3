//! Limits of disks and of groups: exact over any interval, reached in the mean, with a burst, on and off.

use super::world::{MS, REF, SECOND, World, at, worst_excess};
use super::{clients, io, limited, lone, orders, shares};
use proptest::prelude::*;
use tidegate_core::iocontrol::{
    GroupId, GroupPolicy, Hold, Limit, Mode, Offer, Pick, Policy, Scheduler,
};
use tidegate_core::request::{DiskId, Op};
use tidegate_core::units::Time;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_interval_sees_more_of_a_disk_or_group_than_its_limits(
        sustained in 50..20_000_u64,
        factor in prop_oneof![Just(0_u64), 2..5_u64],
        burst in prop_oneof![Just(0_u64), 1..2_000_u64],
        group in 500..20_000_u64,
        bandwidth in 1_000_000..100_000_000_u64,
        len in prop_oneof![Just(4_096_u64), Just(65_536), Just(1 << 20)],
        depth in 1..40_usize,
        late in 0..3_000_000_u64,
        engaged in any::<bool>(),
    ) {
        let limit = Limit { sustained, peak: factor * sustained, burst };
        let of_group = Policy { group: Some(GroupId(3)), ..Policy::default() };
        let bytes = Policy { bandwidth: Some(Limit::steady(bandwidth)), ..Policy::default() };
        let both = Policy { group: Some(GroupId(3)), ..limited(limit) };
        let policies = [limited(limit), bytes, of_group.clone(), of_group, both, shares(500)];
        let mut made = clients(&policies, depth);
        for client in &mut made {
            client.len = len;
        }
        let mut world = World::new(1, 50_000, 4, made);
        world.late = late;
        world.groups.set(Time::ZERO, GroupId(3), &GroupPolicy {
            limit: Some(Limit { sustained: group, peak: 2 * group, burst }),
            bandwidth: None,
        });
        world.steer(|orders| orders.engaged = engaged);
        world.run(2 * SECOND);
        let units = len.div_ceil(32_768);
        let peak_burst = |peak: u64| (peak / 100) + 1;
        for disk in [0, 4] {
            let passed = world.passed(&[disk], units);
            prop_assert!(worst_excess(&passed, sustained, burst) <= 0);
            if factor > 0 {
                prop_assert!(worst_excess(&passed, limit.peak, peak_burst(limit.peak)) <= 0);
            }
        }
        prop_assert!(worst_excess(&world.passed(&[1], len), bandwidth, bandwidth / 10) <= 0);
        let passed = world.passed(&[2, 3, 4], units);
        prop_assert!(worst_excess(&passed, group, burst) <= 0);
        prop_assert!(worst_excess(&passed, 2 * group, peak_burst(2 * group)) <= 0);
    }
}

#[test]
fn a_limit_is_reached_in_the_mean_though_timers_are_late() {
    let limits = [300, 1_000, 2_500];
    let policies = limits.map(|limit| limited(Limit::steady(limit)));
    let mut world = World::new(1, 50_000, 4, clients(&policies, 16));
    world.late = MS;
    world.run(21 * SECOND);
    for (disk, limit) in limits.into_iter().enumerate() {
        let count = world.count(disk, SECOND, 21 * SECOND);
        let expected = 20 * limit;
        assert!(
            count.abs_diff(expected) * 1_000 <= expected + 1_000,
            "{count} of {expected}"
        );
    }
}

#[test]
fn a_burst_runs_at_the_peak_and_then_the_limit_applies() {
    let limit = Limit::bursting(300, 900, 1);
    let mut world = World::new(1, 50_000, 4, clients(&[limited(limit)], 64));
    world.late = MS;
    world.run(5 * SECOND);
    let first = world.count(0, 0, SECOND);
    assert!((890..=910).contains(&first), "{first}");
    let later = world.count(0, 2 * SECOND, 5 * SECOND);
    assert!((899..=901).contains(&later), "{later}");
    // It refills while unused: at the sustained rate, in burst / limit.
    world.clients[0].on = false;
    world.run(2_300 * MS);
    world.turn_on(0);
    let from = world.now;
    world.run(SECOND);
    let again = world.count(0, from, from + SECOND);
    assert!((880..=915).contains(&again), "{again}");
}

#[test]
fn a_groups_limit_is_divided_by_shares_and_no_disk_starves() {
    let of_group = |of| Policy {
        group: Some(GroupId(0)),
        ..shares(of)
    };
    let policies: Vec<Policy> = [1_000, 1_000, 2_000, 4_000].map(of_group).to_vec();
    let mut world = World::new(1, 50_000, 4, clients(&policies, 16));
    // Several may pass each time: not all are of the first disk.
    world.late = 4 * MS;
    let limit = Some(Limit::steady(2_000));
    let policy = GroupPolicy {
        limit,
        bandwidth: None,
    };
    world.groups.set(Time::ZERO, GroupId(0), &policy);
    world.run(5 * SECOND);
    let counts: Vec<u64> = (0..4).map(|d| world.count(d, SECOND, 5 * SECOND)).collect();
    assert!(
        counts.iter().sum::<u64>().abs_diff(8_000) <= 25,
        "{counts:?}"
    );
    for (count, part) in counts.into_iter().zip([1_000, 1_000, 2_000, 4_000]) {
        assert!(count.abs_diff(part) <= 50, "{count} of {part}");
    }
}

#[test]
fn a_disk_that_becomes_active_has_saved_little_of_its_groups_limit() {
    let of_group = Policy {
        group: Some(GroupId(0)),
        ..shares(1_000)
    };
    let mut made = clients(&[of_group.clone(), of_group, shares(1_000)], 16);
    made[1].on = false;
    let mut world = World::new(1, 50_000, 4, made);
    let limit = Some(Limit::steady(2_000));
    let policy = GroupPolicy {
        limit,
        bandwidth: None,
    };
    world.groups.set(Time::ZERO, GroupId(0), &policy);
    world.run(5 * SECOND);
    world.turn_on(1);
    world.run(SECOND);
    let count = world.count(1, 5 * SECOND, 6 * SECOND);
    // Half of the limit, and 4 ms of all of it.
    assert!((980..=1_020).contains(&count), "{count}");
}

#[test]
fn limits_apply_with_control_off_but_not_when_observing() {
    let mut scheduler = lone(&[limited(Limit {
        sustained: 10,
        peak: 0,
        burst: 0,
    })]);
    scheduler.steer(Time::ZERO, &orders(|orders| orders.mode = Mode::Off));
    let mut offers = Vec::new();
    for n in 0..4 {
        offers.push(scheduler.offer(at(0), DiskId(0), io(n), Op::Read, n << 20, 4_096));
    }
    assert_eq!(offers[1..], [Offer::Wait; 3]);
    let due = at(100 * MS);
    assert_eq!(scheduler.pick(at(1)), Pick::At(due, Hold::Limit));
    assert_eq!(scheduler.deadline(), Some(due));
    scheduler.steer(at(2), &orders(|orders| orders.mode = Mode::Observe));
    for n in 1..4 {
        let Pick::Now(_, name, _) = scheduler.pick(at(3)) else {
            panic!("it is delayed")
        };
        assert_eq!(name, io(n));
    }
    assert_eq!(scheduler.pick(at(3)), Pick::Empty);
}

#[test]
fn observing_delays_no_io_and_reports_would_be_delays() {
    let mut scheduler = lone(&[limited(Limit::steady(100))]);
    scheduler.steer(
        Time::ZERO,
        &orders(|orders| {
            orders.engaged = true;
            orders.mode = Mode::Observe;
            orders.window = REF;
        }),
    );
    for n in 0..100 {
        let offer = scheduler.offer(at(n * MS), DiskId(0), io(n), Op::Read, n << 20, 4_096);
        assert!(matches!(offer, Offer::Start(_)));
    }
    assert_eq!(scheduler.pick(at(100 * MS)), Pick::Empty);
    let mut usage = Vec::new();
    scheduler.usage(at(100 * MS), &mut usage);
    assert_eq!(usage[0].cost, 100 * REF);
    assert!(usage[0].held_ns[Hold::Limit.index()] > 0);
}

#[test]
fn a_small_limit_is_reached_in_the_mean_though_timers_are_late() {
    let limits = [3, 30, 50, 99];
    let policies = limits.map(|limit| limited(Limit::steady(limit)));
    let mut world = World::new(1, 50_000, 4, clients(&policies, 4));
    world.late = 10 * MS;
    world.run(21 * SECOND);
    for (disk, limit) in limits.into_iter().enumerate() {
        let count = world.count(disk, SECOND, 21 * SECOND);
        assert!(count.abs_diff(20 * limit) <= 1, "{count} of 20 x {limit}");
        let passed = world.passed(&[disk], 1);
        assert!(
            worst_excess(&passed, limit, (limit / 10).max(1)) <= 0,
            "{limit}"
        );
    }
}

/// How many of `most` simultaneous I/Os pass at once.
fn pass(scheduler: &mut Scheduler, now: Time, most: u64) -> u64 {
    let offer = |n: u64| scheduler.offer(now, DiskId(0), io(n), Op::Read, n << 20, 4_096);
    let starts = (0..most)
        .map(offer)
        .take_while(|offer| matches!(offer, Offer::Start(_)));
    let passed = starts.count() as u64;
    scheduler.drain(DiskId(0), &mut Vec::new());
    passed
}

fn bursting(sustained: u64, burst: u64) -> Policy {
    limited(Limit {
        sustained,
        peak: 0,
        burst,
    })
}

#[test]
fn a_reattached_disk_has_its_remaining_burst_and_its_refill() {
    let mut scheduler = lone(&[bursting(10, 100)]);
    // A burst is what may be ahead: the I/O that reaches it still passes.
    assert_eq!(pass(&mut scheduler, at(SECOND), 200), 101);
    let spent = scheduler.remove(DiskId(0)).expect("all of it is");
    assert_eq!(spent.over_at(), at(SECOND + 10_100 * MS));
    let mut back = lone(&[bursting(10, 100)]);
    back.resume(at(3 * SECOND), DiskId(0), &spent);
    assert_eq!(pass(&mut back, at(3 * SECOND), 200), 20);
    // Meanwhile its limit changed: use of the old limit counts against the new one.
    let mut back = lone(&[bursting(10, 120)]);
    back.resume(at(3 * SECOND), DiskId(0), &spent);
    assert_eq!(pass(&mut back, at(3 * SECOND), 200), 40);
    let mut back = lone(&[shares(1_000)]);
    back.resume(at(3 * SECOND), DiskId(0), &spent);
    assert_eq!(pass(&mut back, at(3 * SECOND), 200), 200);
    let mut late = lone(&[bursting(10, 100)]);
    late.resume(at(60 * SECOND), DiskId(0), &spent);
    assert_eq!(pass(&mut late, at(60 * SECOND), 200), 101);
}

#[test]
fn a_reattached_disk_has_its_remaining_bandwidth_burst() {
    let bytes = Policy {
        bandwidth: Some(Limit {
            sustained: 40_960,
            peak: 0,
            burst: 409_600,
        }),
        ..Policy::default()
    };
    let mut scheduler = lone(std::slice::from_ref(&bytes));
    assert_eq!(pass(&mut scheduler, at(0), 200), 101);
    let spent = scheduler.remove(DiskId(0)).expect("all of it is");
    let mut back = lone(&[bytes]);
    back.resume(at(SECOND), DiskId(0), &spent);
    assert_eq!(pass(&mut back, at(SECOND), 200), 10);
    assert_eq!(lone(&[shares(1_000)]).remove(DiskId(0)), None);
}
