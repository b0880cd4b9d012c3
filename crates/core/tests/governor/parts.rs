//! The rules of how a window is divided: a test for each.

use crate::FIXED;
use crate::bench::{Bench, asks, load, peer, usage};
use crate::world::settings;
use tidegate_core::governor::Settings;
use tidegate_core::governor::slot::{Entry, Record};
use tidegate_core::iocontrol::Usage;
use tidegate_core::units::Span;

#[test]
fn a_hosts_window_is_bounded_by_its_path_to_the_datastore() {
    let narrow = Settings {
        window_most: 16,
        ..settings(5, FIXED)
    };
    let idle = Record {
        in_flight: 1.0,
        disks: vec![asks(1, 1.0)],
        ..peer(1, 24.0)
    };
    let mut bench = Bench::with(narrow, vec![idle]);
    bench.pass(2_000, load(24.0, 40.0, 20.0));
    // Nearly all of the cluster's window is for us.
    assert_eq!(bench.cluster(), 32.0);
    assert_eq!(bench.window(), 16.0);
}

#[test]
fn the_floor_of_a_reservation_follows_from_residence_time() {
    let heavy = Record {
        cluster: 100.0,
        in_flight: 60.0,
        rate: 1_000.0,
        ios: 1_000.0,
        disks: vec![Entry {
            shares: 10_000,
            ..asks(1, 200.0)
        }],
        ..peer(1, 24.0)
    };
    let mut bench = Bench::new(FIXED, vec![heavy]);
    // A thousand a second with sixty in flight: each takes 60 ms, though a small one would take 24.
    let ours = Usage {
        shares: 100,
        reservation: 500,
        ios: 50,
        units: 50,
        cost: 50 * 256,
        ended_cost: 50 * 256,
        latency_ns: 50 * 24_000_000,
        ..usage(load(24.0, 60.0, 40.0))
    };
    for _ in 0..100 {
        bench.report(&ours);
    }
    // A seventh more than 500 a second for 60 ms; by its shares it would have one.
    assert!((bench.window() - 34.5).abs() < 0.5, "{}", bench.window());
}

#[test]
fn the_reported_entitlement_never_exceeds_the_limit() {
    let limited = |limit| Usage {
        limit,
        ..usage(load(24.0, 60.0, 40.0))
    };
    let entitled = |limit: u64| {
        let other = Entry {
            limit: u32::try_from(limit).unwrap(),
            ..asks(1, 20.0)
        };
        let peer = Record {
            disks: vec![other],
            ..peer(1, 24.0)
        };
        let mut bench = Bench::new(FIXED, vec![peer]);
        (0..100).for_each(|_| bench.report(&limited(limit)));
        let report = bench.known();
        assert!(report.engaged);
        let theirs = report.hosts.iter().find_map(|host| host.told.first());
        [report.disks[0].entitled, theirs.unwrap().entitled]
    };
    let [ours, theirs] = entitled(0);
    assert!(ours > 110 && theirs > 110, "{ours} {theirs}");
    // A part leaves room for a tenth more than the limit.
    assert_eq!(entitled(100), [100, 100]);
}

#[test]
fn merged_entries_with_equal_keys_on_two_hosts_stay_separate() {
    let many = |host| Record {
        cluster: 90.0,
        disks: vec![Entry {
            shares: 4_000,
            merged: true,
            ..asks(7, 100.0)
        }],
        ..peer(host, 24.0)
    };
    let mut bench = Bench::new(FIXED, vec![many(1), many(2)]);
    bench.pass(3_000, load(24.0, 20.0, 60.0));
    // 1000 of 9000 shares; of a single one of the two it would be 1000 of 5000.
    let part = bench.window() / bench.cluster();
    assert!((part - 1.0 / 9.0).abs() < 0.002, "{part}");
}

#[test]
fn a_disk_on_two_hosts_counts_where_it_is_served() {
    let once_had_it = Entry {
        served: false,
        ..asks(5, 20.0)
    };
    let newer = Record {
        incarnation: 9_999,
        disks: vec![asks(1, 60.0), once_had_it],
        ..peer(1, 24.0)
    };
    let mut bench = Bench::new(FIXED, vec![newer]);
    bench.pass(3_000, load(24.0, 20.0, 60.0));
    let part = bench.window() / bench.cluster();
    assert!((part - 0.5).abs() < 0.01, "{part}");
}

#[test]
fn a_window_is_wider_for_longer_residence_times() {
    // Both have half of the shares, and twenty in flight, but the throughput is not equal.
    let by_shares = |latency_ms, for_ms| {
        let mut bench = Bench::new(FIXED, vec![peer(1, 20.0)]);
        let ours = load(latency_ms, 20.0, 20.0);
        bench.pass_ticks(3, ours);
        bench.pass(for_ms, ours);
        assert!(bench.engaged());
        bench.window() / (bench.cluster() / 2.0)
    };
    // A thousand a second and 400: the mean residence time is 28.6 ms.
    let longer = by_shares(50.0, 200_000);
    assert!((longer - 1.75).abs() < 0.02, "{longer}");
    let early = by_shares(50.0, 500);
    assert!((early - 1.0).abs() < 0.02, "{early}");
    // Whatever a few I/Os show, no host has more than twice its part.
    let longest = by_shares(400.0, 200_000);
    assert!((longest - 2.0).abs() < 0.02, "{longest}");
}

#[test]
fn a_paused_daemon_does_not_overestimate_residence_time() {
    let mut bench = Bench::new(FIXED, vec![peer(1, 25.0)]);
    let fine = load(25.0, 20.0, 20.0);
    bench.pass(30_000, fine);
    assert_eq!(bench.pauses(1), [1_000]);
    let before = bench.window() / bench.cluster();
    // It did not see the completions meanwhile.
    let still = Usage {
        ended_cost: usage(fine).ended_cost / 8,
        ..usage(fine)
    };
    for _ in 0..20 {
        bench.report(&still);
    }
    bench.pass(3_000, fine);
    let after = bench.window() / bench.cluster();
    assert!((after / before - 1.0).abs() < 0.01, "{before} {after}");
}

#[test]
fn a_disk_with_a_latency_target_has_room_for_bursts() {
    // The others demand all that there is, and have as many shares.
    let heavy = Record {
        disks: vec![asks(1, 200.0)],
        ..peer(1, 24.0)
    };
    let window = |latency_target| {
        let mut bench = Bench::new(FIXED, vec![heavy.clone()]);
        let ours = Usage {
            latency_target,
            ..usage(load(24.0, 4.0, 0.0))
        };
        for _ in 0..100 {
            bench.report(&ours);
        }
        assert!(bench.engaged());
        bench.window()
    };
    // A quarter more than four, and one. With the target: six tenths more, and one and six tenths.
    let without = window(Span::ZERO);
    assert!((without - 6.0).abs() < 0.2, "{without}");
    let with = window(Span::from_millis(100));
    assert!((with - 11.0).abs() < 0.3, "{with}");
}
