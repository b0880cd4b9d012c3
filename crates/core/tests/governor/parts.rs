//! A test for each rule of who gets what of a window: what counts, what counts once, and between which bounds.

use crate::FIXED;
use crate::bench::{Bench, asks, load, peer, usage};
use crate::world::settings;
use tidegate_core::governor::Settings;
use tidegate_core::governor::slot::{Entry, Record};
use tidegate_core::iocontrol::Usage;

#[test]
fn no_host_has_more_than_its_way_to_the_datastore_holds() {
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
    // Nearly all of the window of both is for us.
    assert_eq!(bench.cluster(), 32.0);
    assert_eq!(bench.window(), 16.0);
}

#[test]
fn what_a_reservation_needs_in_flight_follows_from_how_long_its_ios_stay_there() {
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
    // A thousand a second with sixty in flight: each stays for 60 ms, though a small one would take 24.
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
fn what_a_disks_part_brings_it_is_never_told_as_more_than_its_limit() {
    let limited = |limit| Usage {
        limit,
        ..usage(load(24.0, 60.0, 40.0))
    };
    let told = |limit: u64| {
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
    let [ours, theirs] = told(0);
    assert!(ours > 110 && theirs > 110, "{ours} {theirs}");
    // A part leaves room for a tenth more than the limit.
    assert_eq!(told(100), [100, 100]);
}

#[test]
fn entries_of_many_disks_on_two_hosts_are_no_disk_on_both_though_they_are_named_alike() {
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
    // 1000 of 9000 shares; of one of the two alone it would be 1000 of 5000.
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
