//! The monitor's policies on a fluid model of a host.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the world's small numbers"
)]

#[path = "monitor/cpus.rs"]
mod cpus;
#[path = "monitor/swings.rs"]
mod swings;
#[path = "monitor/world.rs"]
mod world;

use proptest::prelude::*;
use tidegate_core::monitor::auto::Auto;
use tidegate_core::monitor::{Action, Decision, Kind, Limits, ThreadState, Why, record};
use tidegate_core::units::Span;
use world::{Demand, World};

fn limits(max: u16) -> Limits {
    Limits { min: 1, max }
}

/// A decision that changes something, and is no undoing.
fn is_change(decision: &Decision) -> bool {
    decision.action != Action::Stay && !matches!(decision.why, Why::Worse(..))
}

/// How many changes were made from `from` on; the actions of one moment are one change.
fn changes(log: &[Decision], from: usize) -> usize {
    let mut moments: Vec<_> = log[from..]
        .iter()
        .filter(|d| is_change(d))
        .map(|d| d.at)
        .collect();
    moments.dedup();
    moments.len()
}

/// A host with disks of 10 us a request on thread 0.
fn host(cpus: u16, disks: usize, demand: Demand) -> World {
    let mut world = World::new(cpus, usize::from(cpus), 1);
    for _ in 0..disks {
        world.attach(0, demand, 10.0);
    }
    world
}

/// How long after `from` (microseconds) the number of threads rose, in milliseconds.
fn reaction(world: &World, from: f64) -> Option<f64> {
    let rose = |d: &&Decision| matches!(d.action, Action::Activate { .. });
    let first = world.log.iter().find(rose)?;
    Some((first.at.as_nanos() as f64 / 1000.0 - from) / 1000.0)
}

/// A burst on one thread of a host of four CPUs after two calm seconds: how long the policy takes to use more.
fn burst(kind: Kind) -> (Option<f64>, World) {
    let mut policy = kind.build(limits(4));
    let mut world = host(4, 4, Demand::Open(1000.0));
    world.run(2000, policy.as_mut());
    let from = world.now;
    for disk in &mut world.disks {
        disk.demand = Demand::Closed(32.0, 500.0);
    }
    world.run(10_000, policy.as_mut());
    (reaction(&world, from), world)
}

#[test]
fn auto_reacts_within_50_ms_and_the_others_as_published() {
    let (auto, world) = burst(Kind::Auto);
    println!("auto {auto:?} ms, {} threads", world.active());
    assert!(auto.is_some_and(|ms| ms <= 50.0), "{auto:?}");
    let (spdk, _) = burst(Kind::Spdk);
    assert!(
        spdk.is_some_and(|ms| (500.0..=2000.0).contains(&ms)),
        "{spdk:?}"
    );
    let (iocm, _) = burst(Kind::Iocm);
    assert!(iocm.is_some_and(|ms| ms >= 1900.0), "{iocm:?}");
    let (none, world) = burst(Kind::None);
    assert!(none.is_none() && world.log.is_empty());
}

#[test]
fn a_burst_gets_as_many_threads_as_help() {
    let (_, world) = burst(Kind::Auto);
    for decision in &world.log {
        println!("{} {decision}", decision.at.as_nanos() / 1_000_000);
    }
    assert_eq!(world.active(), 4);
    let mut counts = [0; 4];
    for disk in &world.disks {
        counts[disk.thread] += 1;
    }
    assert_eq!(counts, [1; 4]);
}

#[test]
fn one_disk_alone_is_reported_once_and_left_where_it_is() {
    let mut policy = Auto::new(limits(4));
    let mut world = host(4, 1, Demand::Closed(64.0, 500.0));
    world.run(20_000, &mut policy);
    let texts: Vec<String> = world.log.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(
        texts[0].starts_with("stay: one disk is the whole load of thread 0 "),
        "{texts:?}"
    );
}

#[test]
fn a_load_that_ends_lets_threads_go_within_seconds_and_the_next_is_served_at_once() {
    let mut policy = Auto::new(limits(4));
    let mut world = host(4, 8, Demand::Closed(32.0, 500.0));
    world.run(5_000, &mut policy);
    assert_eq!(world.active(), 4);
    for disk in &mut world.disks {
        disk.demand = Demand::Open(500.0);
    }
    world.run(10_000, &mut policy);
    assert_eq!(world.active(), 1);
    assert!(
        world
            .disks
            .iter()
            .all(|disk| disk.thread == world.disks[0].thread)
    );
    for disk in &mut world.disks {
        disk.demand = Demand::Closed(32.0, 500.0);
    }
    world.run(2_000, &mut policy);
    assert_eq!(world.active(), 4);
}

#[test]
fn a_square_wave_of_two_seconds_changes_the_threads_at_most_twice_an_edge() {
    for (low, high) in [(500.0, 16_000.0), (2_000.0, 13_000.0), (4_000.0, 30_000.0)] {
        let mut policy = Auto::new(limits(2));
        let mut world = host(2, 8, Demand::Open(low));
        world.run(3_000, &mut policy);
        for edge in 0..40 {
            let from = world.log.len();
            for disk in &mut world.disks {
                disk.demand = Demand::Open(if edge % 2 == 0 { high } else { low });
            }
            world.run(1_000, &mut policy);
            let is_number =
                |d: &&Decision| matches!(d.action, Action::Activate { .. } | Action::Park { .. });
            let changed = world.log[from..].iter().filter(is_number).count();
            assert!(changed <= 2, "{changed} at edge {edge} of {low}..{high}");
        }
    }
}

#[test]
fn idle_disks_are_not_moved_to_and_fro() {
    for kind in Kind::ALL {
        let mut policy = kind.build(limits(4));
        let mut world = World::new(4, 4, 2);
        for disk in 0..6 {
            world.attach(
                disk % 2,
                Demand::Open(if disk == 0 { 30_000.0 } else { 1.0 }),
                10.0,
            );
        }
        world.run(20_000, policy.as_mut());
        let from = world.log.len();
        world.run(60_000, policy.as_mut());
        assert_eq!(changes(&world.log, from), 0, "{}", kind.name());
    }
}

#[test]
fn a_locked_thread_gets_no_disk_and_stays_locked() {
    for kind in Kind::ALL {
        let mut policy = kind.build(limits(4));
        let mut world = World::new(4, 4, 4);
        for disk in 0..12 {
            world.attach(disk % 3, Demand::Closed(32.0, 500.0), 10.0);
        }
        world.set_state(3, ThreadState::Locked);
        for round in 0..6 {
            for (at, disk) in world.disks.iter_mut().enumerate() {
                disk.demand = match (at + round) % 3 {
                    0 => Demand::Closed(64.0, 500.0),
                    1 => Demand::Open(100.0),
                    _ => Demand::Open(5_000.0),
                };
            }
            world.run_and(5_000, policy.as_mut(), |_, decisions| {
                for decision in decisions {
                    let about = match decision.action {
                        Action::Move { to, .. } => Some(to),
                        Action::Activate { thread }
                        | Action::Lock { thread }
                        | Action::Park { thread } => Some(thread),
                        Action::Spin { .. } | Action::Stay => None,
                    };
                    assert_ne!(about, Some(3), "{}: {decision}", kind.name());
                }
            });
            assert_eq!(world.state(3), ThreadState::Locked);
        }
    }
}

#[test]
fn the_disks_of_a_locked_thread_stay_there() {
    for kind in Kind::ALL {
        let mut policy = kind.build(limits(4));
        let mut world = World::new(4, 4, 2);
        // The locked thread is full, and the other one idle.
        for disk in 0..6 {
            let demand = match disk % 3 {
                0 => Demand::Open(10.0),
                _ => Demand::Closed(32.0, 500.0),
            };
            world.attach(disk % 2, demand, 10.0);
        }
        world.set_state(1, ThreadState::Locked);
        world.run_and(10_000, policy.as_mut(), |snapshot, decisions| {
            for decision in decisions {
                if let Action::Move { disk, .. } = decision.action {
                    let mut disks = snapshot.disks.iter();
                    let from = disks.find(|it| it.disk == disk).map(|it| it.thread);
                    assert_ne!(from, Some(1), "{}: {decision}", kind.name());
                }
            }
        });
        assert_eq!(world.state(1), ThreadState::Locked);
    }
}

#[test]
fn a_thread_that_brings_nothing_is_undone_and_tried_ever_more_rarely() {
    // Two threads take twice the time for each request.
    let mut policy = Auto::new(limits(2));
    let mut world = host(4, 4, Demand::Closed(32.0, 500.0));
    world.tax = 1.1;
    let alone =
        host(4, 4, Demand::Closed(32.0, 500.0)).rate(1_000, &mut *Kind::None.build(limits(2)));
    let rate = world.rate(120_000, &mut policy);
    let undone = world
        .log
        .iter()
        .filter(|d| matches!(d.why, Why::Worse(..)) && matches!(d.action, Action::Park { .. }));
    let undone = undone.count();
    assert!((3..=6).contains(&undone), "{undone}");
    assert_eq!(world.active(), 1);
    assert!(rate > 0.97 * alone, "{rate} of {alone}");
    // Another load may be another matter.
    for disk in &mut world.disks {
        disk.service = 20.0;
    }
    world.tax = 0.0;
    world.run(1_000, &mut policy);
    assert_eq!(world.active(), 2);
}

#[test]
fn iocm_waits_for_a_second_then_undoes_what_brought_nothing_and_bans_it() {
    let mut policy = Kind::Iocm.build(limits(2));
    let mut world = host(4, 4, Demand::Closed(32.0, 500.0));
    world.tax = 1.1;
    world.run(60_000, policy.as_mut());
    let at = |d: &Decision| d.at.as_nanos() / 1_000_000;
    let added: Vec<u64> = world
        .log
        .iter()
        .filter(|d| matches!(d.action, Action::Activate { .. }))
        .map(at)
        .collect();
    let removed: Vec<u64> = world
        .log
        .iter()
        .filter(|d| matches!(d.action, Action::Park { .. }))
        .map(at)
        .collect();
    assert_eq!(added[0], 2_000);
    assert_eq!(
        removed[0],
        added[0] + 1_000,
        "five ticks of settling, five of measuring"
    );
    let pauses: Vec<u64> = added.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses[0] >= 3_000 && pauses[1] >= 5_000, "{pauses:?}");
    let after: Vec<u64> = pauses[2..].to_vec();
    assert!(after.iter().all(|&pause| pause >= 9_000), "{pauses:?}");
}

#[test]
fn spdk_gathers_idle_disks_on_the_main_thread_and_parks_empty_ones() {
    let mut policy = Kind::Spdk.build(limits(4));
    let mut world = World::new(4, 4, 4);
    for disk in 0..8 {
        let rate = if disk == 5 { 50_000.0 } else { 1_000.0 };
        world.attach(disk % 4, Demand::Open(rate), 10.0);
    }
    world.run(1_500, policy.as_mut());
    let places: Vec<usize> = world.disks.iter().map(|disk| disk.thread).collect();
    assert_eq!(places, [0; 8], "all fit on the main thread below 80 %");
    assert_eq!(world.active(), 1);
    world.disks[5].demand = Demand::Open(95_000.0);
    world.run(4_000, policy.as_mut());
    assert_eq!(world.active(), 2);
    assert_eq!(world.disks[5].thread, 1);
}

#[test]
fn recorded_snapshots_replay_through_every_policy() {
    let mut policy = Auto::new(limits(4));
    let mut world = host(4, 8, Demand::Open(1000.0));
    world.record = Some(String::new());
    world.run(500, &mut policy);
    for disk in &mut world.disks {
        disk.demand = Demand::Closed(32.0, 500.0);
    }
    world.run(1_500, &mut policy);
    let text = world.record.take().expect("it was recorded");
    let snapshots = record::read(&text).expect("it was written so");
    assert!(snapshots.len() > 300);
    for kind in Kind::ALL {
        let replay = || {
            let mut policy = kind.build(limits(4));
            let mut out = Vec::new();
            for snapshot in &snapshots {
                policy.decide(snapshot, &mut out);
            }
            out
        };
        let once = replay();
        assert_eq!(once, replay(), "{}", kind.name());
        if kind == Kind::Auto {
            assert_eq!(once, world.log);
            assert!(once.len() > 4);
        }
    }
}

#[test]
fn a_monitor_that_ends_leaves_threads_and_disks_as_they_are() {
    let mut policy = Auto::new(limits(4));
    let mut world = host(4, 8, Demand::Closed(32.0, 500.0));
    world.run(3_000, &mut policy);
    let (threads, rate) = (world.active(), world.rate(1_000, &mut policy));
    let places: Vec<usize> = world.disks.iter().map(|disk| disk.thread).collect();
    let mut none = Kind::None.build(limits(4));
    let after = world.rate(1_000, none.as_mut());
    assert_eq!(world.active(), threads);
    assert!((after / rate - 1.0).abs() < 0.01, "{rate} {after}");
    assert!(world.disks.iter().map(|disk| disk.thread).eq(places));
}

fn demand() -> impl Strategy<Value = Demand> {
    prop_oneof![
        (10.0..20_000.0).prop_map(Demand::Open),
        (1.0..64.0, 500.0..5_000.0).prop_map(|(depth, latency)| Demand::Closed(depth, latency)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// After settling, a constant load sees at most one change a minute, under whatever policy `auto` runs.
    #[test]
    fn under_a_constant_load_at_most_one_change_a_minute(
        cpus in 1_u16..8,
        guests in 0.0..8.0,
        disks in prop::collection::vec((demand(), 2.0..40.0), 1..14),
    ) {
        let mut policy = Auto::new(limits(cpus));
        let mut world = World::new(cpus, usize::from(cpus), 1);
        world.guests = guests;
        for (demand, service) in disks {
            world.attach(0, demand, service);
        }
        world.run(300_000, &mut policy);
        let from = world.log.len();
        world.run(60_000, &mut policy);
        let after: Vec<String> = world.log[from..].iter().map(ToString::to_string).collect();
        prop_assert!(changes(&world.log, from) <= 1, "{after:#?}");
    }

    /// However the load changes, as long as one thread serves it well no change of threads is banned.
    #[test]
    fn a_change_of_the_load_alone_bans_nothing(
        loads in prop::collection::vec((50.0..1500.0, 100_u64..700), 20..60),
    ) {
        let mut policy = Auto::new(limits(2));
        let mut world = World::new(2, 2, 2);
        for disk in 0..4 {
            world.attach(disk % 2, Demand::Open(1000.0), 10.0);
        }
        for (rate, ms) in loads {
            for disk in &mut world.disks {
                disk.demand = Demand::Open(rate * 8.0);
            }
            world.run(ms, &mut policy);
        }
        let worse = world.log.iter().find(|d| matches!(d.why, Why::Worse(..)));
        prop_assert!(worse.is_none(), "{}", worse.map(ToString::to_string).unwrap_or_default());
    }
}

/// Ticks and those with disks in ten seconds, after some.
fn ticks(world: &mut World) -> (u32, u32) {
    let mut policy = Auto::new(limits(4));
    world.run(30_000, &mut policy);
    let (mut ticks, mut details) = (0, 0);
    world.run_and(10_000, &mut policy, |snapshot, _| {
        ticks += 1;
        details += u32::from(snapshot.disks_span.is_some());
        assert!(snapshot.span >= Span::from_millis(5));
    });
    (ticks, details)
}

#[test]
fn a_policy_asks_for_disks_rarely_while_nothing_is_wrong() {
    let (ticks, details) = ticks(&mut host(4, 256, Demand::Open(100.0)));
    assert!(ticks <= 2_000, "{ticks}");
    assert!(details <= 105, "{details}");
}

#[test]
fn a_policy_asks_for_disks_rarely_while_nothing_can_be_done() {
    let (ticks, details) = ticks(&mut host(4, 256, Demand::Closed(32.0, 500.0)));
    assert!(ticks <= 2_000, "{ticks}");
    assert!(details <= 105, "{details}");
}
