//! Governors of several hosts on one array, through a table of slots.
#![expect(clippy::cast_possible_truncation, reason = "the world's small numbers")]

#[path = "governor/bench.rs"]
mod bench;
#[path = "governor/held.rs"]
mod held;
#[path = "governor/rules.rs"]
mod rules;
#[path = "governor/trouble.rs"]
mod trouble;
#[path = "governor/world.rs"]
mod world;

use tidegate_core::governor::{GovernorEvent, Threshold};
use tidegate_core::units::Span;
use world::{Disk, World, disk};

const FIXED: Threshold = Threshold::Fixed(Span::from_millis(25));

/// Four hosts of one disk each, shares 1:1:2:2, an array of 3,350 I/Os a second.
fn four() -> World {
    let disks: Vec<[Disk; 1]> = [1_000, 1_000, 2_000, 2_000]
        .iter()
        .zip(1..)
        .map(|(&shares, key)| [disk(key, shares, 64.0)])
        .collect();
    let hosts: Vec<&[Disk]> = disks.iter().map(|disks| &disks[..]).collect();
    World::new(3_350.0, 2.0, FIXED, &hosts)
}

fn report(what: &str, took: u64) {
    println!("{what}: {took} ms");
}

#[test]
fn from_cold_four_hosts_reach_their_shares_and_the_threshold_in_about_a_second() {
    let mut world = four();
    let took = world.settles(20_000);
    report("start", took);
    world.run(2_000);
    world.mark();
    world.run(10_000);
    println!(
        "error {} latency {} rate {} windows {:?}",
        world.share_error(),
        world.mean_latency(),
        world.mean_rate(),
        world.windows()
    );
    let engaged = world.hosts[0].events[0].0;
    assert!(took <= engaged + 1_500, "{took} {engaged}");
    assert!(world.share_error() < 0.02, "{}", world.share_error());
    assert!(
        (22.5..27.5).contains(&world.mean_latency()),
        "{}",
        world.mean_latency()
    );
    assert!(world.mean_rate() > 0.97 * 3_350.0);
}

#[test]
fn an_idle_disks_part_is_lent_to_the_others_and_returned() {
    let mut world = four();
    world.run(10_000);
    world.hosts[3].disks[0].wants = 0.0;
    world.mark();
    let from = world.now;
    let mut took = u64::MAX;
    while world.now < from + 5_000 {
        world.mark();
        world.run(100);
        let rates = world.rates();
        if rates[2] > 0.9 * 3_350.0 / 2.0 && took == u64::MAX {
            took = world.now - from;
        }
    }
    report("idle", took);
    // An idle host retains the minimum that keeps it measurable.
    let idle = world.windows()[3];
    assert!((1.0..=4.0).contains(&idle), "{idle}");
    assert!(took <= 1_500, "{took}");
    world.hosts[3].disks[0].wants = 64.0;
    world.mark();
    world.run(1_000);
    let part = world.rates()[3] / (3_350.0 / 3.0);
    assert!(part >= 0.65, "{part}");
    let took = world.settles(5_000);
    report("resume, after a second", took);
    assert!(took <= 500);
}

#[test]
fn a_single_latency_spike_does_not_engage_control() {
    let mut world = four();
    for host in &mut world.hosts {
        host.disks[0].wants = 15.0;
    }
    world.run(10_000);
    world.most = 1_000.0;
    world.run(50);
    world.most = 3_350.0;
    world.run(10_000);
    assert!(world.hosts.iter().all(|host| !host.orders.engaged));
    assert_eq!(
        world.happened(0, |event| matches!(event, GovernorEvent::Engaged { .. })),
        0
    );
}

#[test]
fn one_tick_above_the_threshold_does_not_engage_control() {
    let mut world = World::new(3_350.0, 2.0, FIXED, &[&[disk(1, 1_000, 60.0)]]);
    world.run(10_000);
    let ticks = world.hosts[0].ticks;
    while world.hosts[0].ticks == ticks {
        world.run(5);
    }
    world.most = 1_000.0;
    world.run(80);
    world.most = 3_350.0;
    while world.hosts[0].ticks == ticks + 1 {
        world.run(5);
    }
    let seen = world.hosts[0].governor.report().latency;
    assert!(seen > Span::from_millis(25), "{seen}");
    world.run(10_000);
    assert_eq!(
        world.happened(0, |event| matches!(event, GovernorEvent::Engaged { .. })),
        0
    );
}

#[test]
fn an_automatic_threshold_dithers_the_window_once_a_minute() {
    let mut world = World::new(
        3_350.0,
        2.0,
        Threshold::Auto,
        &[&[disk(1, 1_000, 64.0)], &[disk(2, 1_000, 64.0)]],
    );
    world.run(30_000);
    let (mut wide, mut narrow) = (0, 0);
    for _ in 0..2_000 {
        world.run(100);
        let all: f64 = world.windows().iter().sum();
        let cluster = world.hosts[0].governor.report().cluster as f64 / 256.0;
        wide += u32::from(all > 1.08 * cluster);
        narrow += u32::from(all < 0.92 * cluster);
    }
    println!("{wide} {narrow}");
    assert!(
        wide >= 5 && narrow >= 5 && wide + narrow < 60,
        "{wide} {narrow}"
    );
}

#[test]
fn a_joining_host_starts_with_the_others_window() {
    let mut world = four();
    world.run(10_000);
    let others = world.hosts[0].governor.report().cluster as f64;
    world.join(FIXED, &[disk(9, 3_000, 64.0)]);
    while world.hosts[4].ticks == 0 {
        world.run(5);
    }
    let own = world.hosts[4].governor.report().cluster as f64;
    assert!((own / others - 1.0).abs() < 0.1, "{own} {others}");
    assert!(world.hosts[4].orders.engaged);
}

#[test]
fn reservations_are_admitted_up_to_four_fifths_of_the_observed_peak() {
    use tidegate_core::governor::Admission;
    use tidegate_core::iocontrol::Policy;
    let mut world = World::new(
        3_350.0,
        2.0,
        Threshold::Auto,
        &[&[disk(1, 1_000, 64.0)], &[disk(2, 1_000, 64.0)]],
    );
    let asks = |reservation| Policy {
        reservation,
        ..Policy::default()
    };
    let admits =
        |world: &World, reservation| world.hosts[0].governor.admit(None, &asks(reservation));
    assert_eq!(admits(&world, 1_000), Admission::Unverified);
    world.run(120_000);
    assert_eq!(admits(&world, 2_500), Admission::Verified);
    assert!(
        matches!(admits(&world, 2_800), Admission::Refused { .. }),
        "{:?}",
        admits(&world, 2_800)
    );
    world.hosts[1].disks[0].reservation = 1_000;
    world.run(3_000);
    assert!(matches!(admits(&world, 2_000), Admission::Refused { .. }));
}

#[test]
fn a_reservation_holds_against_other_hosts_shares() {
    let mut world = four();
    world.hosts[0].disks[0].reservation = 1_200;
    world.hosts[0].disks[0].shares = 500;
    world.run(6_000);
    world.mark();
    world.run(10_000);
    let rates = world.rates();
    println!("{rates:?}");
    assert!(rates[0] >= 0.99 * 1_200.0, "{rates:?}");
    assert!((rates[2] / rates[1] - 2.0).abs() < 0.06, "{rates:?}");
}

#[test]
fn infeasible_reservations_leave_a_tenth_to_the_others() {
    let mut world = four();
    for host in &mut world.hosts[..2] {
        host.disks[0].reservation = 4_000;
    }
    world.run(6_000);
    world.mark();
    world.run(10_000);
    let rates = world.rates();
    println!("{rates:?}");
    assert!(rates[2] + rates[3] >= 0.095 * 3_350.0, "{rates:?}");
    assert!(
        rates[0] > 0.95 * 0.45 * 3_350.0 && (rates[0] / rates[1] - 1.0).abs() < 0.05,
        "{rates:?}"
    );
    assert!(
        world.happened(0, |event| matches!(
            event,
            GovernorEvent::ReservationsShrunk { .. }
        )) >= 1
    );
}

#[test]
fn a_leaving_host_frees_its_part_at_the_next_tick() {
    let mut world = four();
    world.run(10_000);
    world.leave(2);
    world.run(1_100);
    assert_eq!(
        world.happened(0, |event| matches!(
            event,
            GovernorEvent::HostLost { left: true, .. }
        )),
        1
    );
    assert!(world.settles(2_000) <= 1_000);
}

#[test]
fn a_joining_host_adopts_the_window_and_soon_has_its_part() {
    let mut world = four();
    world.run(10_000);
    world.join(FIXED, &[disk(9, 3_000, 64.0)]);
    let took = world.settles(10_000);
    report("join", took);
    assert!(took <= 1_500, "{took}");
}

#[test]
fn every_host_applies_a_new_threshold() {
    let mut world = four();
    world.run(10_000);
    world.common(1, Threshold::Fixed(Span::from_millis(12)));
    world.run(2_500);
    world.mark();
    world.run(5_000);
    assert!(
        (10.8..13.2).contains(&world.mean_latency()),
        "{}",
        world.mean_latency()
    );
    world.common(1, Threshold::Off);
    world.run(3_000);
    assert!(world.windows().iter().all(|&window| window == 256.0));
}

#[test]
fn many_hosts_on_a_fast_array_share_within_two_per_cent() {
    for hosts in [2, 3, 8, 24] {
        let disks: Vec<Vec<Disk>> = (0..hosts)
            .map(|host| {
                (0..8)
                    .map(|at| disk(host * 8 + at, 500 << (at % 3), 32.0))
                    .collect()
            })
            .collect();
        let slices: Vec<&[Disk]> = disks.iter().map(Vec::as_slice).collect();
        let threshold = Threshold::Fixed(Span::from_micros(450));
        let mut world = World::new(200_000.0, 0.2, threshold, &slices);
        world.run(8_000);
        world.mark();
        world.run(5_000);
        println!(
            "{hosts} hosts: error {:.4} latency {:.3}",
            world.share_error(),
            world.mean_latency()
        );
        assert!(
            world.share_error() < 0.02,
            "{hosts}: {}",
            world.share_error()
        );
        assert!(
            (0.40..0.50).contains(&world.mean_latency()),
            "{}",
            world.mean_latency()
        );
    }
}

#[test]
fn a_long_interval_cut_short_by_a_disk_is_not_a_pause() {
    let mut world = four();
    for host in &mut world.hosts {
        host.disks[0].wants = 0.0;
    }
    world.run(10_900);
    for host in &mut world.hosts {
        host.disks[0].wants = 64.0;
    }
    world.run(5_000);
    for host in 0..4 {
        let paused = |event: &GovernorEvent| matches!(event, GovernorEvent::Paused { .. });
        assert_eq!(world.happened(host, paused), 0);
    }
}

#[test]
fn an_uncongested_datastore_delays_no_io_and_has_little_slot_traffic() {
    let mut world = four();
    for host in &mut world.hosts {
        host.disks[0].wants = 1.5;
    }
    world.run(2_000);
    let before = world.hosts[0].published;
    world.run(40_000);
    assert!(world.windows().iter().all(|&window| window == 256.0));
    assert!(
        world.hosts[0].published - before <= 11,
        "{}",
        world.hosts[0].published
    );
}

#[test]
fn control_disengages_ten_seconds_after_the_load_ends() {
    let mut world = four();
    world.run(10_000);
    for host in &mut world.hosts {
        host.disks[0].wants = 2.0;
    }
    world.run(8_000);
    assert!(world.hosts.iter().all(|host| host.orders.engaged));
    world.run(8_000);
    assert!(world.hosts.iter().all(|host| !host.orders.engaged));
}

#[test]
fn the_automatic_threshold_finds_the_knee_without_losing_throughput() {
    let mut world = four();
    let disks: Vec<Disk> = world
        .hosts
        .iter()
        .map(|host| host.disks[0].clone())
        .collect();
    let hosts: Vec<&[Disk]> = disks.chunks(1).collect();
    world = World::new(20_000.0, 0.5, Threshold::Auto, &hosts);
    world.run(600_000);
    world.mark();
    world.run(60_000);
    println!(
        "latency {} rate {} threshold {}",
        world.mean_latency(),
        world.mean_rate(),
        world.hosts[0].governor.report().threshold
    );
    // The knee is at ten I/Os and half a millisecond; the initial threshold was ten milliseconds.
    assert!(world.mean_latency() < 2.0, "{}", world.mean_latency());
    assert!(world.mean_rate() > 0.95 * 20_000.0, "{}", world.mean_rate());
    assert!(world.share_error() < 0.05, "{}", world.share_error());
}

#[test]
fn a_missed_latency_target_tightens_the_threshold_until_it_is_met() {
    let mut world = four();
    world.hosts[0].disks[0].target = Span::from_millis(14);
    world.run(60_000);
    world.mark();
    world.run(20_000);
    println!(
        "latency {} rate {}",
        world.mean_latency(),
        world.mean_rate()
    );
    assert!(world.mean_latency() < 17.0, "{}", world.mean_latency());
    assert!(world.mean_rate() > 0.95 * 3_350.0);
}

#[test]
fn the_same_world_twice_is_the_same() {
    let run = || {
        let mut world = four();
        world.run(5_000);
        (
            world.slots.clone(),
            world
                .rates()
                .iter()
                .map(|rate| rate.to_bits())
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(run(), run());
}
