//! Several schedulers share one datastore: the bounds of one thread hold among threads, and no wake is lost.
//!
//! Threads are asked in turn, woken late, and told of limits late, by chance. The atomics under real concurrency are
//! the matter of `loom_shared.rs`.

#[path = "iocontrol/world.rs"]
#[expect(dead_code, reason = "the test of one thread uses the rest")]
mod world;

use tidegate_core::iocontrol::shared::{Groups, Shared};
use tidegate_core::iocontrol::{
    DiskKey, GroupId, GroupPolicy, Limit, Offer, Orders, Pick, Policy, Scheduler,
};
use tidegate_core::request::{DiskId, IoId, Op};
use tidegate_core::units::Time;
use world::{Client, MS, REF, SECOND, World, plain_costs, worst_excess};

/// How far threads may differ, in cost at 1000 shares.
const REACH: f64 = 8.0 * REF as f64;

/// Disks of different shares and sizes over the threads; all backlogged.
fn mixed(threads: usize, group: Option<GroupId>) -> Vec<Client> {
    let shares = [500, 1_000, 2_000, 4_000];
    let lens = [4_096, 65_536, 4_096, 16_384];
    let client = |n: usize| {
        let policy = Policy {
            shares: shares[n % 4],
            group,
            ..Policy::default()
        };
        Client {
            thread: n % threads,
            len: lens[(n / 4) % 4],
            ..Client::new(policy, 48)
        }
    };
    (0..(2 * threads).max(8)).map(client).collect()
}

fn run(threads: usize, seed: u64, window: u64) -> World {
    let mut world = World::new(threads, 20_000, 8, mixed(threads, None));
    world.exponential = true;
    world.chance.0 = seed;
    // A wake takes up to 50 us here.
    world.late = MS / 20;
    world.steer(|orders| orders.window = window);
    world.run(2 * SECOND);
    world
}

#[test]
fn backlogged_disks_on_different_threads_differ_by_a_bounded_amount() {
    for threads in [1, 2, 4, 8, 16] {
        for seed in 0..3 {
            let world = run(threads, seed, 64 * REF);
            for one in 0..world.clients.len() {
                for other in 0..one {
                    let weight = |disk: usize| {
                        let client = &world.clients[disk];
                        let cost = plain_costs().cost(Op::Read, client.len, false).0;
                        cost as f64 * 1_000.0 / f64::from(client.policy.shares)
                    };
                    let bound = weight(one) + weight(other) + 2.0 * REACH;
                    let unfair = world.unfairness(one, other, SECOND / 2);
                    assert!(
                        unfair <= bound * 1.01,
                        "{threads} {seed}: {unfair} of {bound}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_window_is_full_and_kept_however_many_threads() {
    for threads in [1, 2, 4, 8, 16] {
        for window in [6 * REF + 128, 64 * REF] {
            let world = run(threads, 11, window);
            let mean = world.in_flight_area as f64 / (2 * SECOND) as f64 / window as f64;
            assert!((0.85..=1.15).contains(&mean), "{threads} {window}: {mean}");
            // An eighth of the window for what threads have not said yet, and the one that fits in part.
            let most = world.starts.iter().map(|s| s.in_flight).max();
            let most = most.expect("something started");
            assert!(
                most <= window + window / 8 + 512 + 8 * REF,
                "{threads} {window}: {most}"
            );
        }
    }
}

#[test]
fn threads_together_keep_a_groups_limit_exactly() {
    for threads in [1, 2, 4, 8, 16] {
        let mut world = World::new(threads, 50_000, 8, mixed(threads, Some(GroupId(1))));
        world.late = MS / 10;
        let limit = Limit {
            sustained: 3_000,
            peak: 6_000,
            burst: 500,
        };
        let policy = GroupPolicy {
            limit: Some(limit),
            bandwidth: None,
        };
        world.groups.set(Time::ZERO, GroupId(1), &policy);
        world.run(3 * SECOND);
        // 4, 16 and 64 KiB: one unit, one, and two.
        let passed: Vec<(u64, u64)> = world
            .starts
            .iter()
            .map(|s| (s.at, world.clients[s.disk].len.div_ceil(32_768)))
            .collect();
        assert!(worst_excess(&passed, 3_000, 500) <= 0, "{threads}");
        assert!(worst_excess(&passed, 6_000, 61) <= 0, "{threads}");
        let late = passed.iter().filter(|(at, _)| *at >= SECOND);
        let late: u64 = late.map(|(_, units)| units).sum();
        assert!(late.abs_diff(6_000) <= 40, "{threads}: {late}");
    }
}

#[test]
fn a_reservation_on_one_thread_is_met_against_backlog_on_another() {
    for seed in 0..3 {
        let mut made: Vec<Client> = (0..13)
            .map(|n| {
                let policy = Policy {
                    shares: 2_000,
                    ..Policy::default()
                };
                Client {
                    thread: 1 + n % 3,
                    ..Client::new(policy, 16)
                }
            })
            .collect();
        made[0].thread = 0;
        made[0].policy.shares = 100;
        made[0].policy.reservation = 800;
        let mut world = World::new(4, 3_350, 8, made);
        world.exponential = true;
        world.late = MS / 20;
        world.chance.0 = seed;
        world.run(6 * SECOND);
        for second in 1..6 {
            let count = world.count(0, second * SECOND, (second + 1) * SECOND);
            assert!(count >= 760, "second {second}: {count}");
        }
    }
}

#[test]
fn whoever_makes_room_names_the_thread_that_sleeps() {
    let shared = Shared::new(2, &Groups::new(0));
    let mut threads = [0, 1].map(|thread| Scheduler::new(thread, shared.clone(), 32_768));
    let mut orders = Orders::idle(plain_costs());
    orders.engaged = true;
    orders.window = REF;
    let now = Time::from_nanos(MS);
    for (thread, id) in threads.iter_mut().zip([0, 1]) {
        thread.add(now, DiskId(id), DiskKey(id.into()), &Policy::default());
        thread.steer(now, &orders);
    }
    let io = IoId::from_bits(1);
    let offer = threads[0].offer(now, DiskId(0), io, Op::Read, 0, 4_096);
    let Offer::Start(cost) = offer else {
        panic!("there is room")
    };
    let offer = threads[1].offer(now, DiskId(1), io, Op::Read, 0, 4_096);
    assert_eq!(offer, Offer::Wait);
    assert_eq!(threads[1].pick(now), Pick::Full);
    threads[0].finished(now, DiskId(0), Op::Read, 4_096, now, cost);
    assert_eq!(threads[0].pick(now), Pick::Other(1));
    assert!(matches!(threads[1].pick(now), Pick::Now(DiskId(1), _, _)));
    assert_eq!(threads[1].pick(now), Pick::Empty);
    assert_eq!(threads[0].pick(now), Pick::Empty);
}

#[test]
fn a_thread_with_a_light_disk_is_woken_and_the_datastore_stays_busy() {
    for threads in [2, 4, 16] {
        let mut made = mixed(threads, None);
        for client in &mut made {
            client.depth = 2;
            client.think = MS;
        }
        let mut world = World::new(threads, 5_000, 4, made);
        world.exponential = true;
        world.late = MS / 20;
        world.steer(|orders| orders.window = 4 * REF);
        world.run(4 * SECOND);
        let before = world.starts.len();
        world.run(SECOND);
        assert!(
            world.starts.len() > before + 100,
            "{threads}: it stands still"
        );
        let worst = world.starts.iter().map(|s| s.waited).max();
        assert!(
            worst.expect("something started") < SECOND,
            "{threads}: {worst:?}"
        );
    }
}
