//! The rules of which disks are limited to their share: a test for each.

use crate::FIXED;
use crate::bench::{Bench, Load, asks, load, peer, usage};
use tidegate_core::governor::Threshold;
use tidegate_core::governor::slot::Record;
use tidegate_core::iocontrol::{DiskKey, Usage};
use tidegate_core::units::Span;

/// Our disk has thirty in flight; its part is half of forty.
const GREEDY: Load = load(23.5, 30.0, 20.0);
/// Long enough for a lasting shortage of the others.
const LONG: u64 = 25_000;

/// Another host with half of the shares, whose disk has this demand.
fn other(demand: f64) -> Record {
    Record {
        disks: vec![asks(1, demand)],
        ..peer(1, 23.5)
    }
}

fn engaged(peers: Vec<Record>) -> Bench {
    let mut bench = Bench::new(FIXED, peers);
    bench.pass_ticks(3, load(28.0, 20.0, 20.0));
    assert!(bench.engaged());
    bench
}

/// The limit of our disk, if it has one.
fn held(bench: &Bench) -> Option<f64> {
    let parts = bench.parts();
    assert!(parts.iter().all(|(key, _)| *key == DiskKey(5)));
    parts.first().map(|(_, part)| *part as f64 / 256.0)
}

#[test]
fn a_disk_above_its_part_is_limited_while_others_are_short() {
    let mut bench = engaged(vec![other(60.0)]);
    bench.pass(8_000, GREEDY);
    assert_eq!(held(&bench), None, "the shortage is too short");
    bench.pass(LONG, GREEDY);
    let part = held(&bench).expect("it is limited");
    // Hosts' windows are wider for longer residence times, and so are parts.
    assert!((part - bench.window() - 0.25).abs() < 0.05, "{part}");
    assert!(part < 25.0, "{part}");
}

#[test]
fn a_bursty_disk_within_its_average_part_is_not_limited() {
    let mut bench = engaged(vec![other(60.0)]);
    bench.pass(LONG, GREEDY);
    assert!(held(&bench).is_some());
    bench.pass(5_000, load(23.5, 19.0, 20.0));
    assert_eq!(held(&bench), None);
    bench.pass(100, GREEDY);
    assert_eq!(held(&bench), None, "a burst");
}

#[test]
fn no_disk_is_limited_while_others_get_most_of_their_demand() {
    let mut bench = engaged(vec![other(21.0)]);
    bench.pass(LONG, GREEDY);
    assert_eq!(held(&bench), None);
}

#[test]
fn no_disk_is_limited_after_intermittent_shortages() {
    let mut bench = engaged(vec![other(60.0)]);
    for _ in 0..6 {
        bench.peers[0].disks = vec![asks(1, 60.0)];
        bench.pass(4_000, GREEDY);
        bench.peers[0].disks = vec![asks(1, 10.0)];
        bench.pass(1_000, GREEDY);
        assert_eq!(held(&bench), None);
    }
}

#[test]
fn the_duration_of_a_shortage_restarts_when_control_engages() {
    let mut bench = engaged(vec![other(60.0)]);
    bench.pass(LONG, GREEDY);
    assert!(held(&bench).is_some());
    bench.peers[0] = Record {
        flags: Default::default(),
        ..peer(1, 1.0)
    };
    bench.pass(20_000, load(1.0, 1.0, 0.0));
    assert!(!bench.engaged() && held(&bench).is_none());
    bench.peers[0] = other(60.0);
    bench.pass(8_000, GREEDY);
    assert!(bench.engaged());
    assert_eq!(held(&bench), None);
}

#[test]
fn a_host_working_alone_limits_no_disk() {
    let mut bench = engaged(vec![other(60.0)]);
    bench.pass(LONG, GREEDY);
    assert!(held(&bench).is_some());
    bench.deaf = true;
    bench.pass(20_000, GREEDY);
    assert!(bench.engaged());
    assert_eq!(held(&bench), None);
}

#[test]
fn no_disk_is_limited_while_a_latency_target_narrows_the_window() {
    let mut bench = engaged(vec![other(60.0)]);
    let prompt = Usage {
        latency_target: Span::from_millis(5),
        ..usage(GREEDY)
    };
    for _ in 0..LONG / 50 {
        bench.report(&prompt);
    }
    assert!(bench.known().threshold < Span::from_millis(25));
    assert_eq!(held(&bench), None);
}

#[test]
fn disks_are_limited_alike_with_an_automatic_threshold() {
    let mut bench = Bench::new(Threshold::Auto, vec![other(60.0)]);
    bench.peers[0].threshold = 25e6;
    bench.pass_ticks(3, load(28.0, 20.0, 20.0));
    bench.pass(LONG, GREEDY);
    assert!(held(&bench).is_some());
}
