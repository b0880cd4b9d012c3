//! The scheduler of one thread on a small datastore: a test for each rule.
//!
//! The test world is in `iocontrol/world.rs`. This file tests shares, the window and latency targets. Bounds follow
//! from the algorithm, not from a run.

#[path = "iocontrol/held.rs"]
mod held;
#[path = "iocontrol/limits.rs"]
mod limits;
#[path = "iocontrol/reservations.rs"]
mod reservations;
#[path = "iocontrol/world.rs"]
mod world;

use proptest::prelude::*;
use tidegate_core::iocontrol::shared::{Groups, Shared};
use tidegate_core::iocontrol::{
    Cost, DiskKey, GroupId, Hold, Limit, Offer, Orders, Pick, Policy, Scheduler,
};
use tidegate_core::request::{DiskId, IoId, Op};
use tidegate_core::units::Time;
use world::{Client, MS, REF, SECOND, World, at, ms, plain_costs};

/// The credit of an idle disk.
const CREDIT: u64 = 16 * REF;

fn shares(shares: u32) -> Policy {
    Policy {
        shares,
        ..Policy::default()
    }
}

fn limited(limit: Limit) -> Policy {
    Policy {
        limit: Some(limit),
        ..Policy::default()
    }
}

fn clients(policies: &[Policy], depth: usize) -> Vec<Client> {
    let policies = policies.iter();
    policies
        .map(|policy| Client::new(policy.clone(), depth))
        .collect()
}

fn lone(policies: &[Policy]) -> Scheduler {
    let mut scheduler = Scheduler::new(0, Shared::new(1, &Groups::new(0)), 32_768);
    for (id, policy) in (0..).zip(policies) {
        scheduler.add(Time::ZERO, DiskId(id), DiskKey(id.into()), policy);
    }
    scheduler
}

fn orders(change: impl FnOnce(&mut Orders)) -> Orders {
    let mut orders = Orders::idle(plain_costs());
    change(&mut orders);
    orders
}

fn io(n: u64) -> IoId {
    IoId::from_bits(n)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn two_backlogged_disks_differ_by_a_bounded_amount_at_any_instant(
        disks in prop::collection::vec((100..10_000_u32, 0..4_usize, 1..40_usize), 2..8),
        stations in 1..5_usize,
        exponential in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let sizes = [512, 4_096, 65_536, 262_144];
        let made = disks.iter().map(|(of, size, depth)| Client {
            len: sizes[*size],
            // At least as many as the window admits, so that some I/O is always queued.
            depth: depth + 20,
            ..Client::new(shares(*of), 0)
        });
        let mut world = World::new(1, 20_000, stations, made.collect());
        world.exponential = exponential;
        world.chance.0 = seed;
        world.run(SECOND);
        for one in 0..disks.len() {
            for other in 0..one {
                let bound: f64 = [one, other].iter().map(|disk| {
                    let client = &world.clients[*disk];
                    let cost = plain_costs().cost(Op::Read, client.len, false).0;
                    cost as f64 * 1_000.0 / f64::from(client.policy.shares)
                }).sum();
                // All become active at once without credit; rounding is far below a unit of cost.
                let unfair = world.unfairness(one, other, 0);
                // The first may start before the others arrive.
                let credit = CREDIT as f64 * 1_000.0 / f64::from(disks[one].0.min(disks[other].0));
                prop_assert!(unfair <= bound + credit, "{unfair} of {bound} + {credit}");
                let settled = world.unfairness(one, other, SECOND / 2);
                // Tags are whole numbers: a hundred thousandth of what passed.
                let passed: u64 = world.costs(0, SECOND).iter().sum();
                let drift = 1e-5 * passed as f64;
                prop_assert!(settled <= bound + drift + 1.0, "{settled} of {bound}");
            }
        }
    }
}

#[test]
fn an_idle_disk_gains_at_most_its_credit() {
    for idle in [100 * MS, SECOND, 30 * SECOND] {
        let mut made = clients(&[shares(1_000), shares(1_000)], 64);
        made[1].on = false;
        let mut world = World::new(1, 4_000, 4, made);
        world.run(idle);
        world.turn_on(1);
        world.run(SECOND);
        let (mut ahead, mut worst) = (0_i64, 0);
        for start in world.starts.iter().filter(|s| s.at >= idle) {
            ahead += if start.disk == 1 { 1 } else { -1 };
            worst = worst.max(ahead);
        }
        // It gets its credit, which makes light disks fast, and one more request of each.
        assert!((14..=18).contains(&worst), "{worst} after {idle}");
    }
}

#[test]
fn a_backlogged_disk_is_served_within_ten_fair_intervals() {
    let mut policies = vec![shares(100)];
    policies.resize(20, shares(5_000));
    let mut world = World::new(1, 10_000, 4, clients(&policies, 32));
    world.run(20 * SECOND);
    // Its fair rate is 10 000 * 100 / 95 100 a second.
    let mut last = SECOND;
    for start in world.starts.iter().filter(|s| s.disk == 0 && s.at > SECOND) {
        assert!(start.at - last <= SECOND, "{} after {last}", start.at);
        last = start.at;
    }
    assert!(20 * SECOND - last <= SECOND);
}

#[test]
fn no_io_is_queued_longer_than_ten_seconds() {
    // By shares it would be served every 50 s.
    let mut policies = vec![shares(100)];
    policies.resize(11, shares(10_000));
    let mut world = World::new(1, 20, 1, clients(&policies, 1));
    for client in &mut world.clients {
        client.depth = 2;
    }
    world.steer(|orders| orders.window = 2 * REF);
    world.run(120 * SECOND);
    let mut served = 0;
    for start in &world.starts {
        assert!(start.disk != 0 || start.waited <= 10 * SECOND, "{start:?}");
        served += u64::from(start.disk == 0);
    }
    assert!(served >= 8, "{served}");
}

#[test]
fn equal_shares_get_equal_device_time_whatever_the_size() {
    for exponential in [false, true] {
        let mut made = clients(&[shares(1_000), shares(1_000)], 64);
        made[1].len = 262_144;
        let mut world = World::new(1, 20_000, 4, made);
        world.exponential = exponential;
        world.run(4 * SECOND);
        let costs = world.costs(SECOND, 4 * SECOND);
        let part = costs[0] as f64 / (costs[0] + costs[1]) as f64;
        assert!((0.475..=0.525).contains(&part), "{part}");
    }
}

#[test]
fn a_window_that_is_a_fraction_holds_on_average() {
    for (window, low, high) in [(640, 2.40, 2.60), (1_152, 4.40, 4.60), (896, 3.40, 3.60)] {
        let mut world = World::new(1, 2_000, 2, clients(&[shares(1_000)], 32));
        world.exponential = true;
        world.steer(|orders| orders.window = window);
        world.run(20 * SECOND);
        let mean = world.in_flight_area as f64 / (20 * SECOND) as f64 / REF as f64;
        assert!((low..=high).contains(&mean), "{mean} for {window}");
    }
}

#[test]
fn a_request_larger_than_the_window_runs_alone() {
    let mut made = clients(&[shares(1_000)], 8);
    made[0].len = 1 << 20;
    let mut world = World::new(1, 2_000, 2, made);
    world.steer(|orders| orders.window = REF);
    world.run(SECOND);
    assert!(world.starts.len() > 50);
    assert!(world.starts.iter().all(|s| s.in_flight == s.cost));
}

#[test]
fn a_latency_target_changes_the_order_but_not_the_share() {
    // It demands less than its share, in bursts that exceed its credit.
    let run = |target: Option<u64>| {
        let mut policies = vec![shares(1_000); 16];
        policies[0].latency_target = target.map(ms);
        let mut made = clients(&policies, 8);
        made[0].depth = 24;
        let mut world = World::new(1, 4_000, 4, made);
        world.exponential = true;
        world.steer(|orders| orders.latency_p99 = ms(6));
        for _ in 0..60 {
            world.turn_on(0);
            world.run(MS);
            world.clients[0].on = false;
            world.run(299 * MS);
        }
        let of_it = world.starts.iter().filter(|s| s.disk == 0);
        let mut waits: Vec<u64> = of_it.map(|s| s.waited).collect();
        waits.sort_unstable();
        (waits[waits.len() * 9 / 10], world.costs(0, world.now))
    };
    let (without, account) = run(None);
    let (with, preferred) = run(Some(10));
    assert!(with * 10 <= without * 8, "{with} of {without}");
    // A target that is not about to be missed has no effect.
    assert_eq!(run(Some(10_000)), (without, account.clone()));
    let all: u64 = account.iter().sum();
    for (one, other) in account.iter().zip(&preferred) {
        assert!(
            one.abs_diff(*other) * 50 <= all / 16,
            "{account:?} {preferred:?}"
        );
    }
}

#[test]
fn a_disk_above_its_share_has_no_priority_for_its_target() {
    let mut policies = vec![shares(100); 8];
    policies[0].latency_target = Some(ms(1));
    let mut world = World::new(1, 4_000, 4, clients(&policies, 16));
    world.steer(|orders| orders.latency_p99 = ms(6));
    world.run(5 * SECOND);
    let costs = world.costs(SECOND, 5 * SECOND);
    let part = costs[0] as f64 / costs.iter().sum::<u64>() as f64;
    assert!(part <= 0.14, "{part}");
}

#[test]
fn a_flush_is_never_queued_but_is_charged() {
    let mut scheduler = lone(&[shares(1_000), shares(1_000)]);
    scheduler.steer(
        Time::ZERO,
        &orders(|orders| {
            orders.engaged = true;
            orders.window = REF;
        }),
    );
    let now = at(MS);
    let first = scheduler.offer(now, DiskId(0), io(0), Op::Read, 1 << 20, 4_096);
    assert!(matches!(first, Offer::Start(_)));
    for n in 1..9 {
        for disk in [0, 1] {
            let offer = scheduler.offer(
                now,
                DiskId(disk),
                io(n * 2 + u64::from(disk)),
                Op::Read,
                n << 21,
                4_096,
            );
            assert_eq!(offer, Offer::Wait);
        }
        // If it were queued, the disk's writes behind it would be too.
        let flush = scheduler.offer(now, DiskId(0), io(100 + n), Op::Flush, 0, 0);
        let Offer::Start(cost) = flush else {
            panic!("a flush waits")
        };
        scheduler.finished(now, DiskId(0), Op::Flush, 0, now, cost);
        let discard = scheduler.offer(now, DiskId(0), io(200), Op::Discard, 0, 1 << 30);
        let Offer::Start(cost) = discard else {
            panic!("a discard waits")
        };
        scheduler.finished(now, DiskId(0), Op::Discard, 1 << 30, now, cost);
    }
    // Disk 0 owes for 16 of them; the other goes first.
    let mut order = Vec::new();
    scheduler.finished(now, DiskId(0), Op::Read, 4_096, now, Cost(REF));
    while let Pick::Now(disk, _, cost) = scheduler.pick(now) {
        order.push(disk.0);
        scheduler.finished(now, disk, Op::Read, 4_096, now, cost);
    }
    assert_eq!(order.len(), 16);
    assert!(
        order[..8].iter().filter(|disk| **disk == 1).count() >= 7,
        "{order:?}"
    );
}

#[test]
fn on_an_uncongested_datastore_ios_start_at_once_regardless_of_shares() {
    let mut scheduler = lone(&[shares(100), shares(10_000)]);
    scheduler.steer(Time::ZERO, &orders(|orders| orders.window = 16 * REF));
    for n in 0..16 {
        let offer = scheduler.offer(
            at(n),
            DiskId((n % 2) as u32),
            io(n),
            Op::Read,
            n << 20,
            4_096,
        );
        assert!(matches!(offer, Offer::Start(_)));
    }
    assert_eq!(scheduler.in_flight(), Cost(16 * REF));
    // The window still limits.
    let offer = scheduler.offer(at(99), DiskId(0), io(99), Op::Read, 0, 65_536);
    assert_eq!(offer, Offer::Wait);
    assert_eq!(scheduler.pick(at(99)), Pick::Full);
    scheduler.finished(at(100), DiskId(0), Op::Read, 4_096, at(0), Cost(3 * REF));
    assert!(matches!(
        scheduler.pick(at(100)),
        Pick::Now(DiskId(0), _, _)
    ));
}

#[test]
fn usage_before_congestion_does_not_count_against_a_disk() {
    let mut scheduler = lone(&[shares(100), shares(10_000)]);
    scheduler.steer(Time::ZERO, &orders(|orders| orders.window = 4 * REF));
    for n in 0..50 {
        let offer = scheduler.offer(at(n), DiskId(0), io(n), Op::Read, n << 20, 4_096);
        assert!(matches!(offer, Offer::Start(_)));
        scheduler.finished(at(n), DiskId(0), Op::Read, 4_096, at(n), Cost(REF));
    }
    scheduler.steer(
        at(100),
        &orders(|orders| {
            orders.engaged = true;
            orders.window = REF;
        }),
    );
    let offer = scheduler.offer(at(100), DiskId(1), io(100), Op::Read, 0, 4_096);
    assert!(matches!(offer, Offer::Start(_)));
    for disk in [0, 1] {
        let io = io(101 + u64::from(disk));
        let offer = scheduler.offer(at(100), DiskId(disk), io, Op::Read, 1 << 30, 4_096);
        assert_eq!(offer, Offer::Wait);
    }
    scheduler.finished(at(101), DiskId(1), Op::Read, 4_096, at(100), Cost(REF));
    assert!(matches!(
        scheduler.pick(at(101)),
        Pick::Now(DiskId(0), _, _)
    ));
}

#[test]
fn queued_ios_can_be_drained_and_the_disk_removed() {
    let of_group = Policy {
        group: Some(GroupId(0)),
        ..limited(Limit {
            sustained: 10,
            peak: 0,
            burst: 0,
        })
    };
    let groups = Groups::new(1);
    let mut scheduler = Scheduler::new(0, Shared::new(1, &groups), 32_768);
    scheduler.add(Time::ZERO, DiskId(5), DiskKey(5), &of_group);
    for n in 0..4 {
        scheduler.offer(at(0), DiskId(5), io(n), Op::Write, n << 20, 4_096);
    }
    assert_eq!(scheduler.waiting(DiskId(5)), 3);
    let mut out = Vec::new();
    scheduler.drain(DiskId(5), &mut out);
    assert_eq!(out, [io(1), io(2), io(3)]);
    assert_eq!(scheduler.pick(at(1)), Pick::Empty);
    assert_eq!(scheduler.deadline(), None);
    scheduler.remove(DiskId(5));
    scheduler.finished(at(9), DiskId(5), Op::Write, 4_096, at(0), Cost(REF));
    scheduler.add(at(10), DiskId(5), DiskKey(6), &of_group);
}

#[test]
fn usage_reports_wait_reasons_and_io_in_flight() {
    let policies = [limited(Limit::steady(500)), shares(1_000), shares(1_000)];
    let mut world = World::new(1, 4_000, 4, clients(&policies, 8));
    world.steer(|orders| orders.window = 4 * REF);
    world.run(2 * SECOND);
    let mut usage = Vec::new();
    world.schedulers[0].usage(at(world.now), &mut usage);
    let counted: u128 = usage.iter().map(|u| u.in_flight_cost_ns).sum();
    assert_eq!(counted, world.in_flight_area);
    let held = |disk: usize, hold: Hold| usage[disk].held_ns[hold.index()];
    assert!(held(0, Hold::Limit) > 10 * held(0, Hold::Shares));
    assert!(held(1, Hold::Shares) + held(1, Hold::Window) > SECOND);
    assert_eq!(held(1, Hold::Limit), 0);
    for (disk, of) in usage.iter().enumerate() {
        assert!(of.active);
        assert_eq!(of.units, world.count(disk, 0, 3 * SECOND));
        assert_eq!(of.bytes, of.units * 4_096);
        assert_eq!(of.latency_counts.iter().sum::<u32>() as u64, of.ios);
        // Little's law, on both sides of the window: what waits and what is in flight is what is outstanding.
        let outstanding = of.in_flight_cost_ns + of.waiting_cost_ns;
        assert_eq!(outstanding, u128::from(8 * REF) * u128::from(2 * SECOND));
    }
    let mut bins = Vec::new();
    world.schedulers[0].bins(&mut bins);
    let reads: u64 = bins.iter().map(|bin| bin.reads).sum();
    assert!(reads > 7_000, "{reads}");
    usage.clear();
    world.schedulers[0].usage(at(world.now), &mut usage);
    assert_eq!((usage[1].ios, usage[1].in_flight_cost_ns), (0, 0));
}
