//! Several schedulers share one datastore: the bounds of one thread hold among threads, and no wake is lost.
//!
//! Threads are called in rotation, and woken and informed of limits with random delays. `loom_shared.rs` tests the
//! atomics under real concurrency.

#[path = "iocontrol/world.rs"]
#[expect(dead_code, reason = "the test of one thread uses the rest")]
mod world;

use tidegate_core::iocontrol::shared::{Groups, Member, Shared};
use tidegate_core::iocontrol::{
    DiskKey, GroupId, GroupPolicy, Hold, Limit, Offer, Orders, Pick, Policy, Scheduler,
};
use tidegate_core::request::{DiskId, IoId, Op};
use tidegate_core::units::{Span, Time};
use world::{Client, MS, REF, SECOND, World, at, plain_costs, worst_excess};

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
fn any_number_of_threads_fills_but_does_not_exceed_the_window() {
    for threads in [1, 2, 4, 8, 16] {
        for window in [6 * REF + 128, 64 * REF] {
            let world = run(threads, 11, window);
            let mean = world.in_flight_area as f64 / (2 * SECOND) as f64 / window as f64;
            assert!((0.85..=1.15).contains(&mean), "{threads} {window}: {mean}");
            // An eighth of the window for unpublished cost, and the I/O that fits in part.
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
fn threads_together_observe_a_groups_limit_exactly() {
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

/// Eight disks of a group, the first half of them on thread 0, and a busy disk without a group.
fn divided(threads: usize, shares: &[u32], late: u64) -> World {
    let disk = |n: usize| {
        let policy = Policy {
            shares: shares[n % shares.len()],
            group: Some(GroupId(1)),
            ..Policy::default()
        };
        Client {
            thread: n.saturating_sub(3) % threads,
            ..Client::new(policy, 16)
        }
    };
    let mut made: Vec<Client> = (0..8).map(disk).collect();
    made.push(Client::new(Policy::default(), 4));
    let mut world = World::new(threads, 50_000, 8, made);
    world.late = late;
    world.steer(|orders| orders.engaged = false);
    world
}

fn group_limit(world: &World, per_second: u64) {
    let policy = GroupPolicy {
        limit: Some(Limit::steady(per_second)),
        bandwidth: None,
    };
    world.groups.set(at(world.now), GroupId(1), &policy);
}

#[test]
fn a_groups_limit_is_divided_by_shares_whatever_thread_a_disk_is_on() {
    for threads in [1, 2, 4, 8, 16] {
        // Without timer delays the threads come in the same order each time.
        for (per_second, late) in [
            (300, MS / 10),
            (3_000, MS / 10),
            (12_000, MS / 10),
            (3_000, 0),
        ] {
            let mut world = divided(threads, &[500, 1_000, 1_500, 2_000], late);
            group_limit(&world, per_second);
            world.run(5 * SECOND);
            let counts: Vec<u64> = (0..8)
                .map(|disk| world.count(disk, SECOND, 5 * SECOND))
                .collect();
            let all = 4 * per_second;
            assert!(
                counts.iter().sum::<u64>().abs_diff(all) * 100 <= all,
                "{threads}, {per_second}: {counts:?}"
            );
            for (disk, count) in counts.iter().enumerate() {
                let part = all * u64::from(world.clients[disk].policy.shares) / 10_000;
                // Two per cent, the lead of a thread at both ends, and an I/O.
                let off = part / 50 + 2 * (per_second / 500) + 2;
                assert!(
                    count.abs_diff(part) <= off,
                    "{threads}, {per_second}, {late}: {count} of {part}, {counts:?}"
                );
            }
        }
    }
}

#[test]
fn unused_group_limit_is_available_on_other_threads() {
    let mut world = divided(4, &[1_000], MS / 10);
    group_limit(&world, 4_000);
    // One is limited to a tenth of its part, one is idle, one has think time.
    world.clients[4].on = false;
    world.clients[5].depth = 1;
    world.clients[5].think = 10 * MS;
    world.policy(
        1,
        &Policy {
            limit: Some(Limit::steady(50)),
            group: Some(GroupId(1)),
            ..Policy::default()
        },
    );
    world.run(5 * SECOND);
    let counts: Vec<u64> = (0..8)
        .map(|disk| world.count(disk, SECOND, 5 * SECOND))
        .collect();
    assert!(
        counts.iter().sum::<u64>().abs_diff(16_000) <= 100,
        "{counts:?}"
    );
    assert!((190..=210).contains(&counts[1]), "{counts:?}");
    assert!(counts[5] >= 350, "it should hardly wait: {counts:?}");
    let part = (16_000 - counts[1] - counts[5]) / 5;
    for disk in [0, 2, 3, 6, 7] {
        assert!(counts[disk].abs_diff(part) * 50 <= part, "{counts:?}");
    }
}

#[test]
fn a_disk_on_a_full_datastore_does_not_delay_its_group() {
    for threads in [1, 2] {
        let client = |thread: usize, group: Option<GroupId>| {
            let policy = Policy {
                group,
                ..Policy::default()
            };
            Client {
                thread: thread % threads,
                ..Client::new(policy, 16)
            }
        };
        let mut made = vec![client(0, Some(GroupId(1))), client(1, Some(GroupId(1)))];
        made[0].op = Op::Write;
        made.extend((0..4).map(|thread| client(thread, None)));
        let mut world = World::new(threads, 6_000, 8, made);
        // A write costs ten reads: a sixth of the datastore does a hundred, where half of the limit would be 300.
        world.steer(|orders| {
            orders.window = 32 * REF;
            orders.costs.write_base = 10 * REF - 16;
        });
        group_limit(&world, 600);
        world.run(6 * SECOND);
        let [writes, reads] = [0, 1].map(|disk| world.count(disk, SECOND, 6 * SECOND) / 5);
        assert!((85..=115).contains(&writes), "{threads}: {writes}");
        assert!(writes + reads >= 580, "{threads}: {writes} {reads}");
    }
}

#[test]
fn a_new_io_does_not_overtake_a_disk_further_behind_on_another_thread() {
    let groups = Groups::new(1);
    let shared = Shared::new(2, &groups);
    let limit = GroupPolicy {
        limit: Some(Limit {
            sustained: 1_000,
            peak: 0,
            burst: 0,
        }),
        bandwidth: None,
    };
    groups.set(Time::ZERO, GroupId(0), &limit);
    let mut threads = [0, 1].map(|thread| Scheduler::new(thread, shared.clone(), 32_768));
    for (thread, (id, shares)) in threads.iter_mut().zip([(0, 100), (1, 1_000)]) {
        let policy = Policy {
            shares,
            group: Some(GroupId(0)),
            ..Policy::default()
        };
        thread.add(Time::ZERO, DiskId(id), DiskKey(id.into()), &policy);
    }
    let offer = |thread: &mut Scheduler, disk: u32, now: u64| {
        let io = IoId::from_bits(now);
        thread.offer(at(now), DiskId(disk), io, Op::Read, now << 20, 4_096)
    };
    let [first, second] = &mut threads;
    assert!(matches!(offer(first, 0, 0), Offer::Start(_)));
    assert_eq!(offer(second, 1, 1), Offer::Wait);
    // The second thread's timer is late; the first gets another I/O just now.
    assert_eq!(offer(first, 0, MS + 1), Offer::Wait);
    assert!(matches!(second.pick(at(MS + 2)), Pick::Now(..)));
}

#[test]
fn an_absent_thread_delays_its_group_only_once() {
    let groups = Groups::new(1);
    let shared = Shared::new(2, &groups);
    let limit = GroupPolicy {
        limit: Some(Limit {
            sustained: 1_000,
            peak: 0,
            burst: 0,
        }),
        bandwidth: None,
    };
    groups.set(Time::ZERO, GroupId(0), &limit);
    let policy = Policy {
        group: Some(GroupId(0)),
        ..Policy::default()
    };
    let mut threads = [0, 1].map(|thread| Scheduler::new(thread, shared.clone(), 32_768));
    let mut number = 0;
    let mut offer = |thread: &mut Scheduler, disk: u32, now: u64| {
        number += 1;
        let io = IoId::from_bits(number);
        thread.offer(at(now), DiskId(disk), io, Op::Read, number << 20, 4_096)
    };
    for (thread, id) in threads.iter_mut().zip([0, 1]) {
        thread.add(Time::ZERO, DiskId(id), DiskKey(id.into()), &policy);
    }
    // The first has started some; both are backlogged, and the other thread sleeps on.
    assert!(matches!(offer(&mut threads[0], 0, 0), Offer::Start(_)));
    for _ in 0..8 {
        assert_eq!(offer(&mut threads[0], 0, 1), Offer::Wait);
        assert_eq!(offer(&mut threads[1], 1, 1), Offer::Wait);
    }
    let mut now = 0;
    let mut passed = Vec::new();
    while now < 20 * MS {
        let [first, _] = &mut threads;
        match first.pick(at(now)) {
            Pick::Now(..) => passed.push(now),
            Pick::At(when, _) => now = when.as_nanos(),
            other => panic!("{other:?}"),
        }
        if passed.len() == 8 {
            break;
        }
    }
    // Two that it may be ahead, a millisecond of waiting, and from then on one each.
    assert_eq!(passed, [1, 2, 4, 5, 6, 7, 8, 9].map(|ms| ms * MS));
    // When it returns, it has priority until it has caught up within the bounds.
    assert!(matches!(threads[1].pick(at(now + MS)), Pick::Now(..)));
    assert!(matches!(offer(&mut threads[0], 0, now + MS), Offer::Wait));
}

#[test]
fn a_thread_keeps_priority_while_others_use_the_group_limit() {
    let groups = Groups::new(1);
    let shared = Shared::new(3, &groups);
    let limit = GroupPolicy {
        limit: Some(Limit {
            sustained: 1_000,
            peak: 0,
            burst: 0,
        }),
        bandwidth: None,
    };
    groups.set(Time::ZERO, GroupId(0), &limit);
    let mut threads = [0, 1, 2].map(|thread| Scheduler::new(thread, shared.clone(), 32_768));
    for (thread, (id, shares)) in threads.iter_mut().zip([(0, 100), (1, 1_000), (2, 1_000)]) {
        let policy = Policy {
            shares,
            group: Some(GroupId(0)),
            ..Policy::default()
        };
        thread.add(Time::ZERO, DiskId(id), DiskKey(id.into()), &policy);
    }
    let offer = |thread: &mut Scheduler, disk: u32, n: u64| {
        let io = IoId::from_bits(n);
        thread.offer(Time::ZERO, DiskId(disk), io, Op::Read, n << 20, 4_096)
    };
    // The first is ahead by ten times due to its few shares. It is backlogged, as the others are.
    assert!(matches!(offer(&mut threads[0], 0, 1), Offer::Start(_)));
    for (thread, n) in [(0, 2), (1, 3), (2, 4)] {
        let disk = u32::try_from(thread).expect("three");
        assert_eq!(offer(&mut threads[thread], disk, n), Offer::Wait);
    }
    let waits = |ms: u64| Pick::At(at(ms * MS), Hold::GroupLimit);
    // Both others have priority; the second does not start, and the third does.
    assert_eq!(threads[0].pick(at(MS)), waits(2));
    assert!(matches!(threads[2].pick(at(MS)), Pick::Now(..)));
    // The second only had to wait for the third, and still has priority.
    assert_eq!(threads[0].pick(at(2 * MS)), waits(3));
    // No thread has used the limit since.
    assert!(matches!(threads[0].pick(at(3 * MS)), Pick::Now(..)));
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
fn full_threads_do_not_yield_to_each_other_endlessly_for_a_latency_target() {
    let shared = Shared::new(2, &Groups::new(0));
    let mut threads = [0, 1].map(|thread| Scheduler::new(thread, shared.clone(), 32_768));
    let mut orders = Orders::idle(plain_costs());
    (orders.engaged, orders.window) = (true, REF);
    // The throughput is such that no disk is too far ahead for its target, and the latency is too high for it.
    orders.per_second = 1 << 24;
    orders.latency_p99 = Span::from_millis(1);
    let now = at(MS);
    let policy = Policy {
        shares: 100,
        latency_target: Some(Span::from_nanos(1)),
        ..Policy::default()
    };
    for (thread, id, policy) in [
        (0, 0, Policy::default()),
        (0, 1, policy),
        (1, 2, Policy::default()),
    ] {
        threads[thread].add(now, DiskId(id), DiskKey(id.into()), &policy);
    }
    for thread in &mut threads {
        thread.steer(now, &orders);
    }
    let mut ios = (0..).map(IoId::from_bits);
    let mut offer = |thread: usize, disk: u32, op: Op| {
        let io = ios.next().expect("endless");
        threads[thread].offer(now, DiskId(disk), io, op, 1 << 30, 4_096)
    };
    // The window is full. The debt of flushes puts the disk with a target behind the other thread's. That one is behind
    // the first thread's other disk.
    assert!(matches!(offer(0, 0, Op::Read), Offer::Start(_)));
    let debt = |disk: u32| if disk == 1 { 4 } else { 20 };
    for (thread, disk) in [(0, 1), (1, 2)] {
        for _ in 0..debt(disk) {
            assert!(matches!(offer(thread, disk, Op::Flush), Offer::Start(_)));
        }
    }
    for (thread, disk) in [(0, 0), (0, 1), (1, 2)] {
        assert_eq!(offer(thread, disk, Op::Read), Offer::Wait);
    }
    assert_eq!(
        threads[0].pick(now),
        Pick::Full,
        "no other can start before it"
    );
}

#[test]
fn a_thread_that_makes_room_finds_the_sleeping_thread() {
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
            "{threads}: it makes no progress"
        );
        let worst = world.starts.iter().map(|s| s.waited).max();
        assert!(
            worst.expect("something started") < SECOND,
            "{threads}: {worst:?}"
        );
    }
}

#[test]
fn virtual_time_is_monotonic() {
    let member = Member::new(0, Shared::new(2, &Groups::new(0)));
    for (tag, then) in [(9, 9), (5, 9), (u64::MAX, 9), (12, 12)] {
        member.raise_v(tag);
        assert_eq!(member.v(), then);
    }
}

#[test]
fn an_idle_thread_has_published_all_its_cost() {
    let shared = Shared::new(2, &Groups::new(0));
    let mut member = Member::new(0, shared.clone());
    member.fit(64 * REF);
    for cost in [1_100, 700, 400] {
        assert!(member.try_start(cost, cost, 64 * REF));
    }
    for cost in [400, 1_100, 700] {
        member.finish(cost);
    }
    assert_eq!(Member::new(1, shared).in_flight(), 0);
}

#[test]
fn no_thread_is_woken_for_room_that_is_already_used() {
    let shared = Shared::new(3, &Groups::new(0));
    let mut threads = [0, 1, 2].map(|thread| Scheduler::new(thread, shared.clone(), 32_768));
    let mut orders = Orders::idle(plain_costs());
    orders.engaged = true;
    orders.window = REF;
    let now = Time::from_nanos(MS);
    for (thread, id) in threads.iter_mut().zip([0, 1, 2]) {
        thread.add(now, DiskId(id), DiskKey(id.into()), &Policy::default());
        thread.steer(now, &orders);
    }
    let io = IoId::from_bits(1);
    let offer = threads[1].offer(now, DiskId(1), io, Op::Read, 0, 4_096);
    assert!(matches!(offer, Offer::Start(_)));
    let offer = threads[2].offer(now, DiskId(2), io, Op::Read, 0, 4_096);
    assert_eq!((offer, threads[2].pick(now)), (Offer::Wait, Pick::Full));
    assert_eq!(threads[0].pick(now), Pick::Empty);
}

#[test]
fn reservation_debt_is_bounded_to_100_ms_of_share_across_threads() {
    let mut made: Vec<Client> = (0..8)
        .map(|n| Client {
            thread: if n == 0 { 0 } else { 1 + n % 3 },
            ..Client::new(Policy::default(), 32)
        })
        .collect();
    made[0].policy.reservation = 3_000;
    let mut world = World::new(4, 4_000, 4, made);
    world.run(10 * SECOND);
    let costs = world.costs(SECOND, 10 * SECOND);
    assert!(costs[0] > 4 * costs[1], "{costs:?}");
    world.policy(0, &Policy::default());
    world.run(SECOND);
    // Its share is 500 a second.
    let count = world.count(0, 10 * SECOND, 10 * SECOND + SECOND / 2);
    assert!(count >= 150, "{count} of 250");
}
