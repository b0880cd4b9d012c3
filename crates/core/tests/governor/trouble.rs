//! Faults between hosts and of the array, and the governors' reaction.

use super::bench::{Bench, load, peer};
use super::world::{World, disk};
use super::{FIXED, four};
use tidegate_core::governor::slot::{Common, Entry, Record};
use tidegate_core::governor::{GovernorEvent, Threshold};
use tidegate_core::units::Span;

#[test]
fn a_disk_that_becomes_active_gets_its_part_before_others_know() {
    let mut world = four();
    world.hosts[3].disks[0].wants = 0.0;
    world.run(20_000);
    for host in &mut world.hosts[..3] {
        // They continue with their last information.
        host.deaf = true;
    }
    let before = world.windows()[3];
    world.hosts[3].disks[0].wants = 64.0;
    world.run(100);
    let after = world.windows()[3];
    println!("{before} {after}");
    // A third of about 84.
    assert!(before <= 6.0 && after >= 0.85 * 28.0, "{before} {after}");
}

#[test]
fn a_paused_daemon_joins_again() {
    let mut world = four();
    world.run(10_000);
    world.hosts[2].alive = false;
    world.run(20_000);
    world.hosts[2].alive = true;
    world.run(2_000);
    assert_eq!(
        world.happened(2, |event| matches!(event, GovernorEvent::Paused { .. })),
        1
    );
    assert!(world.settles(3_000) <= 1_000);
}

#[test]
fn a_paused_daemon_adopts_the_others_window() {
    let mut world = four();
    world.run(10_000);
    world.hosts[2].alive = false;
    world.most /= 2.0;
    world.run(20_000);
    let ticks = world.hosts[2].ticks;
    world.hosts[2].alive = true;
    while world.hosts[2].ticks == ticks {
        world.run(5);
    }
    let cluster = |host: usize| world.hosts[host].governor.report().cluster as f64;
    let (own, others) = (cluster(2), cluster(0));
    // Its own old one was twice that; the law has ticked once since.
    assert!((own / others - 1.0).abs() < 0.3, "{own} {others}");
}

#[test]
fn a_migrating_disk_counts_once() {
    let mut world = four();
    // Its old host still lists it, and has no I/O for it.
    world.hosts[0].disks.push(disk(4, 2_000, 0.0));
    world.run(10_000);
    world.mark();
    world.run(5_000);
    let rates = world.rates();
    assert!(
        (rates[4] / rates[2] - 2.0).abs() < 0.1 || (rates[4] / rates[3] - 1.0).abs() < 0.05,
        "{rates:?}"
    );
}

#[test]
fn a_disk_served_by_two_hosts_has_one_part_on_one_host() {
    let mut world = four();
    world.run(10_000);
    // It is migrating to the last host, and its guest sends I/O through both.
    world.hosts[0].disks.push(disk(4, 2_000, 64.0));
    world.run(10_000);
    world.mark();
    world.run(5_000);
    let rates = world.rates();
    // The others keep their proportions to it: two, two and a half of it.
    let part = |rate: f64| rate / rates.iter().sum::<f64>();
    assert!((part(rates[3]) - 2.0 / 6.0).abs() < 0.02, "{rates:?}");
    assert!((part(rates[4]) - 2.0 / 6.0).abs() < 0.02, "{rates:?}");
    assert!((part(rates[2]) - 1.0 / 6.0).abs() < 0.02, "{rates:?}");
}

#[test]
fn isolated_hosts_still_hold_the_threshold() {
    let mut world = four();
    world.run(10_000);
    for host in &mut world.hosts {
        host.deaf = true;
    }
    world.run(10_000);
    world.most /= 2.0;
    world.run(20_000);
    world.mark();
    world.run(10_000);
    // Each host alone adds a little for its shares: the latency ends above the threshold, but below twice that.
    assert!(
        world.mean_latency() < 1.5 * 25.0,
        "{}",
        world.mean_latency()
    );
    assert!(world.mean_rate() > 0.97 * world.most);
}

#[test]
fn ios_that_hung_with_a_hosts_reads_do_not_affect_later_latency() {
    let mut bench = Bench::new(FIXED, vec![peer(1, 24.0)]);
    bench.pass(5_000, load(24.0, 20.0, 20.0));
    let before = bench.cluster();
    bench.deaf = true;
    // A host with failing reads notices when the read fails; I/Os completing then took as long.
    bench.pass_ticks(1, load(24.0, 20.0, 20.0));
    bench.report(&super::bench::usage(load(4_000.0, 4_000.0, 20.0)));
    bench.deaf = false;
    bench.hear();
    for _ in 0..20 {
        bench.pass(100, load(24.0, 20.0, 20.0));
        let after = bench.cluster();
        assert!(after > 0.9 * before, "{before} {after}");
        let latency = bench.known().latency;
        assert!(latency < Span::from_millis(25), "{latency}");
    }
}

#[test]
fn a_mute_host_does_not_use_others_unused_parts() {
    let mut world = four();
    world.run(10_000);
    world.hosts[1].mute = true;
    world.run(9_000);
    let said = Record::decode(&world.slots[2]).expect("its last record is there");
    let said = said.window;
    for host in &mut world.hosts[2..] {
        host.disks[0].wants = 0.0;
    }
    world.run(5_000);
    let after = world.windows();
    assert!(after[1] <= 1.01 * said, "{said} {after:?}");
    // A host that publishes does.
    assert!(after[0] > 1.5 * said, "{said} {after:?}");
}

#[test]
fn a_foreign_slot_that_claims_everything_is_clamped() {
    let mut world = four();
    world.run(10_000);
    for sequence in 1..=100 {
        let greedy = Entry {
            key: 77,
            shares: 0xff_ffff,
            demand: 4_000.0,
            unit_cost: 1.0,
            served: true,
            ..Entry::default()
        };
        let record = Record {
            host: [99; 16],
            sequence,
            tick_ms: 0,
            cluster: f64::INFINITY,
            ios: f64::NAN,
            latency: -1.0,
            in_flight: f64::NEG_INFINITY,
            rate: f64::NAN,
            disks: vec![greedy],
            ..Record::default()
        };
        world.slots[40] = record.encode().to_vec();
        world.run(100);
    }
    // It counts as one disk of the maximum shares: ours keep six sixteenths of the window.
    let ours: f64 = world.windows().iter().sum();
    assert!(
        ours.is_finite() && ours > 0.3 * world.mean_latency() * 3.35,
        "{ours}"
    );
    world.mark();
    world.run(20_000);
    world.mark();
    world.run(2_000);
    assert!(world.share_error() < 0.05);
}

#[test]
fn a_halved_array_speed_is_detected_within_a_second() {
    let mut world = four();
    world.run(10_000);
    world.most /= 2.0;
    world.run(1_000);
    world.mark();
    world.run(500);
    assert!(
        world.mean_latency() <= 1.3 * 25.0,
        "{}",
        world.mean_latency()
    );
    assert_eq!(
        world.happened(0, |event| matches!(
            event,
            GovernorEvent::ExternalLoad { .. }
        )),
        0
    );
}

#[test]
fn a_dead_hosts_part_is_divided_within_its_lease_and_a_second() {
    let mut world = four();
    world.run(10_000);
    world.hosts[2].alive = false;
    let from = world.now;
    let lost = |world: &World| {
        world.happened(0, |event| {
            matches!(event, GovernorEvent::HostLost { left: false, .. })
        })
    };
    while lost(&world) == 0 && world.now < from + 20_000 {
        world.run(100);
    }
    let after = world.now - from;
    let took = world.settles(5_000);
    println!("dead after {after} ms, divided after {took} ms more");
    // A calm host ticks once a second: its lease is eight of those.
    assert!(after + took <= 8_000 + 2_100, "{after} {took}");
    assert!(took <= 1_000);
}

#[test]
fn a_mute_host_uses_at_most_its_last_published_part() {
    let mut world = four();
    world.run(10_000);
    let before = world.windows()[1];
    world.hosts[1].mute = true;
    world.run(20_000);
    world.mark();
    world.run(5_000);
    assert!(world.windows()[1] <= 1.01 * before, "{:?}", world.windows());
    assert_eq!(
        world.happened(1, |event| matches!(event, GovernorEvent::Mute { on: true })),
        1
    );
    assert!(
        (20.0..30.0).contains(&world.mean_latency()),
        "{}",
        world.mean_latency()
    );
    world.hosts[1].mute = false;
    world.run(3_000);
    assert!(world.settles(5_000) <= 1_500);
}

#[test]
fn a_deaf_host_works_alone_and_reconnects() {
    let mut world = four();
    world.run(10_000);
    let before = world.windows()[1];
    world.hosts[1].deaf = true;
    world.run(900);
    // Frozen at first: it does not decide without readable slots.
    assert!((world.windows()[1] / before - 1.0).abs() < 0.02);
    world.run(20_000);
    assert_eq!(
        world.happened(1, |event| matches!(
            event,
            GovernorEvent::Alone { on: true }
        )),
        1
    );
    world.mark();
    world.run(5_000);
    assert!(
        (20.0..35.0).contains(&world.mean_latency()),
        "{}",
        world.mean_latency()
    );
    world.hosts[1].deaf = false;
    world.run(2_000);
    assert_eq!(
        world.happened(1, |event| matches!(
            event,
            GovernorEvent::Alone { on: false }
        )),
        1
    );
    assert!(world.settles(5_000) <= 1_500);
}

#[test]
fn a_host_with_failing_reads_ignores_old_records() {
    let mut world = four();
    world.run(10_000);
    let before = world.windows();
    world.hosts[1].deaf = true;
    world.most /= 2.0;
    world.run(900);
    let after = world.windows();
    assert!(
        (after[1] / before[1] - 1.0).abs() < 0.02,
        "{before:?} {after:?}"
    );
    assert!(after[0] < 0.8 * before[0], "{before:?} {after:?}");
}

#[test]
fn a_host_with_failing_reads_changes_nothing() {
    let mut bench = Bench::new(FIXED, vec![peer(2, 30.0)]);
    bench.pass(1_000, load(30.0, 20.0, 20.0));
    assert!(bench.engaged());
    let decided = |bench: &Bench| (bench.window(), bench.cluster());
    bench.deaf = true;
    let before = decided(&bench);
    bench.pass_ticks(3, load(60.0, 20.0, 20.0));
    assert_eq!(decided(&bench), before);
    bench.deaf = false;
    bench.pass_ticks(3, load(60.0, 20.0, 20.0));
    assert!(bench.cluster() < 0.9 * before.1, "{before:?}");
}

#[test]
fn no_host_is_declared_dead_after_a_datastore_outage() {
    let mut world = four();
    world.run(10_000);
    for host in &mut world.hosts {
        (host.deaf, host.mute) = (true, true);
    }
    world.run(60_000);
    for host in &mut world.hosts {
        (host.deaf, host.mute) = (false, false);
    }
    world.run(3_000);
    for host in 0..4 {
        assert_eq!(
            world.happened(host, |event| matches!(
                event,
                GovernorEvent::HostLost { .. }
            )),
            0
        );
    }
    assert!(world.settles(5_000) <= 1_500);
}

#[test]
fn torn_slots_and_garbage_change_nothing() {
    let mut world = four();
    world.run(10_000);
    let seed = |at: usize| {
        (at as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .to_le_bytes()[5]
    };
    for (at, slot) in world.slots[20..30].iter_mut().enumerate() {
        *slot = (0..4_096 * (at % 2 + 1))
            .map(|byte| seed(byte + at))
            .collect();
    }
    let old = world.slots[2].clone();
    world.mark();
    for _ in 0..50 {
        world.run(20);
        // Half of an older slot behind a newer one.
        if world.slots[2].len() == 4_096 {
            world.slots[2][2_048..].copy_from_slice(&old[2_048..]);
        }
    }
    assert!(world.share_error() < 0.05, "{}", world.share_error());
    for host in &world.hosts {
        assert_eq!(
            host.events.iter().filter(|(at, _)| *at > 10_000).count(),
            0,
            "{:?}",
            host.events
        );
    }
    assert!(world.hosts[0].governor.report().unreadable > 0);
}

#[test]
fn external_load_does_not_reduce_hosts_to_their_floors() {
    let mut world = four();
    world.run(10_000);
    let before: f64 = world.windows().iter().sum();
    world.others = 400.0;
    world.run(20_000);
    let external = |world: &World, host, on| {
        world.happened(host, |event| *event == GovernorEvent::ExternalLoad { on })
    };
    let after: f64 = world.windows().iter().sum();
    println!("{before} {after}");
    assert!(after >= 0.4 * before, "{before} {after}");
    // While the external load lasts, it is one event on each host, whatever the trials.
    world.run(60_000);
    for host in 0..4 {
        assert_eq!(
            (external(&world, host, true), external(&world, host, false)),
            (1, 0)
        );
    }
    world.mark();
    world.run(10_000);
    assert!(world.share_error() < 0.04, "{}", world.share_error());
    world.others = 0.0;
    world.run(5_000);
    for host in 0..4 {
        assert_eq!(
            (external(&world, host, true), external(&world, host, false)),
            (1, 1)
        );
    }
    let again: f64 = world.windows().iter().sum();
    assert!(again >= 0.9 * before, "{before} {again}");
}

#[test]
fn a_slower_array_is_not_external_load() {
    for part in [0.5, 0.3, 0.1] {
        let mut world = four();
        world.run(10_000);
        world.most *= part;
        world.run(60_000);
        for host in &world.hosts {
            let external = |(_, event): &&(u64, GovernorEvent)| {
                matches!(event, GovernorEvent::ExternalLoad { .. })
            };
            assert_eq!(host.events.iter().filter(external).count(), 0, "{part}");
        }
        // The trial is over.
        let latency = world.latency * 1e3;
        assert!((20.0..30.0).contains(&latency), "{part}: {latency}");
    }
}

#[test]
fn a_host_and_its_copy_are_treated_as_two_hosts() {
    use super::FIXED;
    use super::world::settings;
    use tidegate_core::governor::{Governor, Settings};
    let disks = [1_000, 2_000, 1_000].map(|shares| disk(u64::from(shares) + 7, shares, 64.0));
    let mut disks = disks.to_vec();
    disks[2].key = 9;
    let hosts: Vec<_> = disks.chunks(1).collect();
    let mut world = World::new(3_350.0, 2.0, FIXED, &hosts);
    // The second has the first one's name. Both have slots of their own, or it would be known at once.
    world.hosts[1].governor = Governor::new(Settings {
        incarnation: 5_000,
        ..settings(1, FIXED)
    });
    world.hosts[1].governor.sits_at(2);
    world.run(10_000);
    let displaced = |host| world.happened(host, |event| *event == GovernorEvent::Displaced);
    assert_eq!([0, 1, 2].map(displaced), [0, 1, 0]);
    assert_eq!(world.hosts[0].governor.host(), [1; 16]);
    assert_ne!(world.hosts[1].governor.host(), [1; 16]);
    world.mark();
    world.run(5_000);
    assert!(world.share_error() < 0.05, "{:?}", world.rates());
}

#[test]
fn a_host_with_failing_writes_retries_fast_until_one_succeeds() {
    let mut bench = Bench::new(FIXED, vec![peer(1, 25.0)]);
    let fine = load(25.0, 20.0, 20.0);
    bench.pass(30_000, fine);
    assert_eq!(bench.pauses(3), [1_000; 3], "{:?}", bench.ticks);
    bench.mute = true;
    bench.pass_ticks(4, fine);
    // The budget of two hosts while nothing is urgent.
    assert_eq!(bench.pauses(2), [250; 2], "{:?}", bench.ticks);
    bench.mute = false;
    bench.pass(10_000, fine);
    assert_eq!(bench.pauses(3), [1_000; 3], "{:?}", bench.ticks);
}

/// A slot 0 that switches control off for ever.
fn off(generation: u64) -> Vec<u8> {
    let common = Common {
        generation,
        ..Common::default()
    };
    common.encode().to_vec()
}

fn refused(event: &GovernorEvent) -> bool {
    matches!(event, GovernorEvent::GenerationRefused { .. })
}

#[test]
fn an_implausible_generation_is_refused_and_reported_once_per_host() {
    let mut world = four();
    world.run(5_000);
    let before: Vec<_> = world
        .hosts
        .iter()
        .map(|host| host.governor.common())
        .collect();
    for generation in [u64::MAX, Common::GENERATION_MOST + 1] {
        world.slots[0] = off(generation);
        world.run(5_000);
    }
    for (at, before) in before.iter().enumerate() {
        assert_eq!(world.hosts[at].governor.common(), *before);
        assert_eq!(world.happened(at, refused), 2, "one event on each");
    }
    world.common(1, FIXED);
    world.run(9_000);
    let set = world.hosts[1].governor.common();
    for host in &world.hosts {
        assert_eq!(host.governor.common(), set);
    }
}

#[test]
fn at_the_highest_generation_an_administrator_can_still_change_settings() {
    let mut world = four();
    world.run(5_000);
    world.slots[0] = off(Common::GENERATION_MOST);
    world.run(9_000);
    for (from, ms) in [(2, 7), (0, 9)] {
        let threshold = Threshold::Fixed(Span::from_millis(ms));
        world.common(from, threshold);
        world.run(9_000);
        for host in &world.hosts {
            assert_eq!(host.governor.common().threshold(), threshold);
        }
    }
}
