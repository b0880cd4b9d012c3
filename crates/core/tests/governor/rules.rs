//! The rules of window, threshold and ticks: a test for each that a world of many hosts would hide.

#[path = "parts.rs"]
mod parts;
#[path = "silence.rs"]
mod silence;

use super::FIXED;
use super::bench::{Bench, asks, load, peer, usage};
use super::world::settings;
use tidegate_core::governor::slot::{Flags, Record};
use tidegate_core::governor::window::{self, Sight, step};
use tidegate_core::governor::{Kind, Settings, Threshold};
use tidegate_core::iocontrol::Usage;
use tidegate_core::units::Span;

#[test]
fn a_host_engages_after_others_once_latency_is_near_the_threshold() {
    let not_yet = Record {
        flags: Flags::default(),
        ..peer(1, 10.0)
    };
    let mut bench = Bench::new(FIXED, vec![not_yet]);
    bench.pass(10_000, load(10.0, 8.0, 0.0));
    assert!(!bench.engaged());
    // The other host engages. Here the latency is well below the threshold and stays there.
    bench.peers[0] = peer(1, 10.0);
    bench.pass(10_000, load(10.0, 8.0, 0.0));
    assert!(
        !bench.engaged(),
        "far below the threshold no I/O is delayed"
    );
    bench.peers[0] = peer(1, 20.0);
    bench.pass(5_000, load(20.0, 16.0, 0.0));
    assert!(bench.engaged(), "not far below it");
    // It started from the others' window, and not from the I/O in flight, which would give it more by now.
    assert!(bench.cluster() < 52.0, "{}", bench.cluster());
}

#[test]
fn control_stays_engaged_while_any_window_limits() {
    let mut bench = Bench::new(FIXED, vec![peer(1, 30.0)]);
    bench.pass(3_000, load(30.0, 20.0, 20.0));
    assert!(bench.engaged());
    let mut quiet = peer(1, 5.0);
    quiet.flags = Flags::ENGAGED.with(Flags::BINDING, true);
    bench.peers[0] = quiet;
    bench.pass(30_000, load(5.0, 2.0, 0.0));
    assert!(bench.engaged(), "another host's window limits");
    bench.peers[0].flags = Flags::ENGAGED;
    bench.pass(9_000, load(5.0, 2.0, 0.0));
    assert!(bench.engaged(), "before ten seconds have passed");
    bench.pass(3_000, load(5.0, 2.0, 0.0));
    assert!(!bench.engaged());
}

#[test]
fn an_urgent_record_causes_an_early_tick() {
    let mut bench = Bench::new(FIXED, vec![peer(1, 25.0)]);
    let steady = load(25.0, 20.0, 20.0);
    bench.pass(10_000, steady);
    let calm = |ticks: &[u64]| ticks.windows(2).next_back().map(|two| two[1] - two[0]);
    assert_eq!(calm(&bench.ticks), Some(1_000), "{:?}", bench.ticks);
    bench.peers[0].flags = Flags::ENGAGED.with(Flags::URGENT, true);
    bench.pass(1_200, steady);
    assert!(calm(&bench.ticks) < Some(300), "{:?}", bench.ticks);
}

#[test]
fn unused_window_is_split_equally_among_hosts() {
    let mut bench = Bench::new(FIXED, vec![peer(1, 23.0)]);
    bench.pass(5_000, load(23.0, 20.0, 20.0));
    let mut little = peer(1, 23.0);
    (little.in_flight, little.rate, little.ios) = (4.0, 160.0, 160.0);
    little.disks = vec![asks(1, 4.0)];
    bench.peers[0] = little;
    bench.pass(5_000, load(23.0, 4.0, 0.0));
    assert!(bench.engaged());
    // Both may have a quarter more than their use, and one; half of the rest is ours.
    let slack = bench.cluster() - 2.0 * 6.0;
    assert!(slack > 20.0, "{slack}");
    assert!(
        (bench.window() - 6.0 - slack / 2.0).abs() < 1.0,
        "{} {slack}",
        bench.window()
    );
}

#[test]
fn all_hosts_use_the_median_of_the_automatic_thresholds() {
    let found = |host, ms: f64| Record {
        threshold: ms * 1e6,
        ..peer(host, 2.0)
    };
    let mut bench = Bench::new(
        Threshold::Auto,
        vec![found(1, 3.0), found(2, 8.0), found(3, 4.0)],
    );
    bench.pass(300, load(0.0, 0.0, 0.0));
    assert_eq!(bench.known().threshold, Span::from_millis(4));
}

#[test]
fn the_law_does_not_undo_a_dither() {
    let run = |flags: Flags| {
        let mut bench = Bench::new(Threshold::Auto, vec![peer(1, 10.0)]);
        bench.peers[0].threshold = 10e6;
        bench.pass(1_000, load(10.0, 20.0, 20.0));
        assert!(bench.engaged());
        bench.peers[0] = Record {
            threshold: 10e6,
            flags: Flags::ENGAGED.with(flags, true),
            ..peer(1, 11.5)
        };
        let before = bench.cluster();
        bench.pass(2_500, load(11.5, 20.0, 20.0));
        (bench.cluster() / before, bench.window() / bench.cluster())
    };
    let (law, whole) = run(Flags::default());
    assert!(law < 0.97 && (whole - 0.5).abs() < 0.03, "{law} {whole}");
    let (law, whole) = run(Flags::WIDER);
    assert!(law > 0.985 && (whole - 0.55).abs() < 0.03, "{law} {whole}");
}

#[test]
fn latency_is_weighted_by_ios() {
    // A host with few I/Os has a high latency; the datastore as a whole is at the threshold.
    let mut few = peer(1, 60.0);
    (few.ios, few.rate, few.in_flight) = (20.0, 20.0, 1.2);
    let mut bench = Bench::new(FIXED, vec![few, peer(2, 24.0)]);
    bench.pass(4_000, load(24.0, 18.0, 20.0));
    assert!(bench.engaged(), "the others are engaged");
    // It neither yields to the few I/Os nor ignores the many.
    let cluster = bench.cluster();
    assert!((35.0..50.0).contains(&cluster), "{cluster}");
}

#[test]
fn one_host_with_hanging_ios_has_bounded_effect_on_the_window() {
    let mut stuck = peer(1, 24.0);
    stuck.latency = 20e9;
    let mut bench = Bench::new(
        FIXED,
        vec![stuck, peer(2, 24.0), peer(3, 24.0), peer(4, 24.0)],
    );
    bench.pass(200, load(24.0, 20.0, 20.0));
    for peer in &mut bench.peers {
        peer.cluster = 100.0;
    }
    bench.pass(300, load(24.0, 20.0, 20.0));
    // A fifth of the I/Os, counted as four times the threshold, makes the mean 1.6 times it: the window shrinks to six
    // tenths. Counted in full it would shrink to a quarter at once.
    assert!(bench.cluster() > 45.0, "{}", bench.cluster());
}

#[test]
fn one_tick_uses_a_ratio_between_a_quarter_and_two() {
    let seen = |latency_ms: f64| Sight {
        latency: latency_ms * 1e6,
        in_flight: 80.0,
        rate: 80.0 / latency_ms * 1e3,
        hosts: 2,
        short: false,
    };
    // Three tenths of the way to twice the window; a quarter of the I/O in flight.
    assert_eq!(step(80.0, 25e6, &seen(0.1)), 104.0);
    assert_eq!(step(80.0, 25e6, &seen(10_000.0)), 20.0);
}

#[test]
fn throughput_is_recorded_only_at_a_stable_io_in_flight() {
    let mut bench = Bench::new(Threshold::Auto, vec![]);
    for _ in 0..20 {
        bench.pass_ticks(1, load(5.0, 10.0, 0.0));
        bench.pass_ticks(1, load(5.0, 40.0, 0.0));
    }
    assert_eq!(bench.known().peak, 0);
    bench.pass_ticks(4, load(5.0, 40.0, 0.0));
    assert_eq!(bench.known().peak, 8_000 * 256);
}

#[test]
fn the_initial_threshold_depends_on_the_kind_of_datastore() {
    for (kind, ms) in [
        (Kind::Flash, 5),
        (Kind::Rotational, 30),
        (Kind::Unknown, 10),
    ] {
        let settings = Settings {
            kind,
            ..settings(5, Threshold::Auto)
        };
        let bench = Bench::with(settings, vec![]);
        assert_eq!(bench.known().threshold, Span::from_millis(ms));
    }
}

#[test]
fn the_cluster_window_is_bounded_by_all_hosts_paths() {
    let sight = Sight {
        latency: 1e6,
        in_flight: 400.0,
        rate: 400_000.0,
        hosts: 2,
        short: false,
    };
    assert_eq!(window::next(400.0, 400.0, 25e6, &sight, 256.0), 512.0);
}

#[test]
fn hosts_that_engage_together_start_from_the_total_io_in_flight() {
    let mut bench = Bench::new(FIXED, vec![]);
    let busy = load(50.0, 200.0, 50.0);
    bench.pass_ticks(2, busy);
    // Twice the threshold: the window is half of the known I/O in flight, less the margin below the threshold.
    assert!(bench.engaged() && (bench.cluster() - 93.0).abs() < 1.0);
    let begins = Record {
        flags: Flags::default(),
        in_flight: 200.0,
        rate: 4_000.0,
        ios: 4_000.0,
        ..peer(1, 50.0)
    };
    bench.peers.push(begins);
    bench.pass_ticks(1, busy);
    // The peer has the same in flight: the window is half of both, and not a quarter of our own.
    assert!((bench.cluster() - 186.0).abs() < 2.0, "{}", bench.cluster());
}

#[test]
fn the_law_aims_below_a_fixed_and_at_an_automatic_threshold() {
    // The growth of the window while latency is this part of a threshold of 10 ms.
    let grows = |threshold, part: f64| {
        let mut bench = Bench::new(threshold, vec![peer(1, 10.0)]);
        bench.peers[0].threshold = 10e6;
        bench.pass(1_000, load(10.5, 20.0, 20.0));
        assert!(bench.engaged());
        let before = bench.cluster();
        let (ours, done) = (before / 2.0, before / 2.0 / part * 100.0);
        bench.peers[0] = Record {
            cluster: before,
            in_flight: ours,
            rate: done,
            ios: done,
            threshold: 10e6,
            ..peer(1, 10.0 * part)
        };
        bench.pass(1_000, load(10.0 * part, ours, 20.0));
        let threshold = bench.known().threshold.as_nanos();
        assert!((9_950_000..=10_000_000).contains(&threshold), "{threshold}");
        bench.cluster() / before
    };
    let set = Threshold::Fixed(Span::from_millis(10));
    let all = [(set, 0.97), (set, 0.9), (Threshold::Auto, 0.97)];
    let [above, below, found] = all.map(|(threshold, part)| grows(threshold, part));
    assert!(
        above < 0.995 && below > 1.005 && found > 1.0,
        "{above} {below} {found}"
    );
}

#[test]
fn a_peer_with_hanging_ios_does_not_shrink_our_window() {
    let mut bench = Bench::new(FIXED, vec![peer(1, 24.0)]);
    bench.pass(2_000, load(26.0, 20.0, 20.0));
    assert!(bench.engaged());
    let before = bench.cluster();
    // Eight of its I/Os a second complete, each after twenty seconds; ours have normal latency.
    bench.peers[0] = Record {
        cluster: before,
        ios: 8.0,
        rate: 8.0,
        ..peer(1, 20_000.0)
    };
    bench.pass(1_000, load(20.0, before / 2.0, 20.0));
    let after = bench.cluster();
    assert!(after > 0.9 * before, "{before} {after}");
}

#[test]
fn latency_at_low_io_in_flight_does_not_engage_with_a_known_curve() {
    let engages = |in_flight| {
        let mut bench = Bench::new(FIXED, vec![]);
        // Four thousand a second, from some twenty in flight on.
        for (latency_ms, in_flight) in [(20.0, 80.0), (10.0, 40.0), (5.0, 20.0), (5.0, 10.0)] {
            bench.pass(60_000, load(latency_ms, in_flight, 0.0));
        }
        assert!(!bench.engaged());
        bench.pass_ticks(4, load(30.0, in_flight, 0.0));
        bench.engaged()
    };
    assert!(!engages(4.0));
    assert!(engages(40.0));
}

#[test]
fn unrelated_latency_does_not_end_the_calm_interval() {
    let mut bench = Bench::new(FIXED, vec![]);
    bench.pass_ticks(2, load(30.0, 40.0, 20.0));
    assert!(bench.engaged());
    bench.pass(6_000, load(5.0, 20.0, 0.0));
    assert!(bench.engaged());
    assert_eq!(bench.pauses(3), [1_000; 3], "{:?}", bench.ticks);
}

#[test]
fn the_calm_interval_needs_latency_near_the_threshold() {
    let mut bench = Bench::new(FIXED, vec![]);
    bench.pass_ticks(2, load(30.0, 256.0, 50.0));
    assert!(bench.engaged());
    // The window is at its maximum, and does not change any more.
    bench.pass(5_000, load(19.5, 256.0, 50.0));
    assert_eq!(bench.window(), 256.0);
    assert_eq!(bench.pauses(3), [100; 3], "{:?}", bench.ticks);
    bench.pass(5_000, load(21.0, 256.0, 50.0));
    assert_eq!(bench.pauses(3), [1_000; 3], "{:?}", bench.ticks);
}

#[test]
fn saved_budget_is_spent_after_engaging_and_far_from_the_threshold() {
    // Two hosts may tick four times a second at a datastore that does 1,600.
    let fine = load(25.0, 20.0, 20.0);
    let begun = || {
        let mut bench = Bench::new(FIXED, vec![peer(1, 25.0)]);
        bench.pass_ticks(3, load(28.0, 20.0, 20.0));
        assert!(bench.engaged());
        bench
    };
    let often = |bench: &Bench, ticks: usize| bench.pauses(ticks).iter().all(|&pause| pause == 100);
    let mut bench = begun();
    bench.pass_ticks(6, fine);
    assert!(often(&bench, 6), "{:?}", bench.pauses(6));
    let mut settled = begun();
    settled.pass(20_000, fine);
    assert!(!often(&settled, 1), "{:?}", settled.pauses(4));
    let mut bench = begun();
    bench.pass(20_000, fine);
    bench.peers[0].cluster = 80.0;
    bench.pass_ticks(4, fine);
    assert!(often(&bench, 2), "{:?}", bench.pauses(4));
    // Without another host to differ from.
    let mut bench = Bench::new(FIXED, vec![]);
    bench.pass_ticks(3, load(28.0, 20.0, 20.0));
    bench.pass(20_000, fine);
    bench.pass_ticks(4, load(50.0, 20.0, 20.0));
    assert!(often(&bench, 2), "{:?}", bench.pauses(4));
}

#[test]
fn a_brief_drop_in_throughput_does_not_slow_the_ticks() {
    let mut bench = Bench::new(FIXED, vec![]);
    // Too little for a curve: nothing else shows yet what the datastore can do.
    bench.pass_ticks(2, load(50.0, 100.0, 100.0));
    assert!(bench.engaged());
    let stuck = Usage {
        ios: 1,
        units: 1,
        cost: 256,
        ended_cost: 256,
        latency_ns: 50_000_000,
        ..usage(load(50.0, 100.0, 100.0))
    };
    for _ in 0..200 {
        bench.report(&stuck);
    }
    assert!(
        bench.pauses(20).iter().all(|&pause| pause <= 300),
        "{:?}",
        bench.ticks
    );
}

#[test]
fn a_latency_target_alone_leaves_the_minimum_throughput() {
    // Four thousand a second, and 5 ms when idle; 14 in flight leave seven tenths of that.
    let engaged = |latency_target| {
        let mut bench = Bench::new(FIXED, vec![]);
        for (latency_ms, in_flight) in [(30.0, 120.0), (10.0, 40.0), (5.0, 20.0), (5.0, 10.0)] {
            for _ in 0..60 {
                bench.report(&Usage {
                    latency_target,
                    ..usage(load(latency_ms, in_flight, 20.0))
                });
            }
        }
        assert!(bench.engaged());
        bench
    };
    let narrowed = |mut bench: Bench, latency_target, latency_ms, looks| {
        for _ in 0..looks {
            let in_flight = bench.window();
            bench.report(&Usage {
                latency_target,
                ..usage(load(latency_ms, in_flight, 20.0))
            });
        }
        bench.cluster()
    };
    let (none, target) = (Span::ZERO, Span::from_millis(1));
    let for_a_target = narrowed(engaged(target), target, 8.0, 100);
    assert!((12.0..25.0).contains(&for_a_target), "{for_a_target}");
    // For the threshold it does so at once, before the curve shows the lower throughput.
    let for_the_threshold = narrowed(engaged(target), target, 40.0, 20);
    assert!(for_the_threshold < 5.0, "{for_the_threshold}");
    // Without a target only the law widens it again.
    let mut bench = engaged(none);
    bench.pass(5_000, load(40.0, 8.0, 20.0));
    let narrow = bench.cluster();
    bench.pass(5_000, load(24.9, 4.0, 20.0));
    let after = bench.cluster();
    assert!(narrow < 8.0 && after < 1.5 * narrow, "{narrow} {after}");
}
