//! The automatic threshold against arrays with a known knee.

use super::*;
use alloc::vec::Vec;

fn array(most: f64, least_ms: f64, in_flight: f64) -> Sight {
    let rate = most.min(in_flight / (least_ms / 1e3));
    Sight {
        latency: in_flight / rate * 1e9,
        in_flight,
        rate,
        hosts: 1,
        short: false,
    }
}

const TICK: Span = Span::from_millis(100);

#[test]
fn without_data_there_is_no_knee() {
    assert_eq!(Curve::default().knee(), None);
    let mut curve = Curve::default();
    curve.saw(TICK, &Sight::default());
    assert_eq!(curve.knee(), None);
}

#[test]
fn the_knee_is_found_only_under_more_load() {
    let mut curve = Curve::default();
    let load = |curve: &mut Curve, in_flight| {
        (0..20).for_each(|_| curve.saw(TICK, &array(20_000.0, 0.5, in_flight)));
        curve.knee().unwrap()
    };
    assert!(!load(&mut curve, 3.0).saturated);
    assert!(!load(&mut curve, 7.0).saturated);
    load(&mut curve, 10.0);
    let knee = load(&mut curve, 80.0);
    assert!(knee.saturated && knee.bracketed);
    assert!((8.0..14.0).contains(&knee.in_flight), "{knee:?}");
    assert!((0.45e6..0.7e6).contains(&knee.latency), "{knee:?}");
    assert_eq!(knee.peak, 20_000.0);
}

#[test]
fn a_slower_array_changes_the_curve_within_seconds() {
    let mut curve = Curve::default();
    for _ in 0..50 {
        for in_flight in [5.0, 10.0, 20.0, 40.0, 80.0] {
            curve.saw(TICK, &array(20_000.0, 0.5, in_flight));
        }
    }
    for _ in 0..600 {
        curve.saw(TICK, &array(10_000.0, 0.5, 80.0));
    }
    let knee = curve.knee().unwrap();
    assert!(knee.peak < 11_000.0, "{knee:?}");
}

#[test]
fn the_threshold_moves_a_tenth_in_ten_seconds_and_stays_in_its_bounds() {
    let mut seeker = Seeker::new(5e6);
    let knee = Knee {
        latency: 0.1e6,
        least: 0.1e6,
        bracketed: true,
        ..Knee::default()
    };
    (0..100).for_each(|_| seeker.seek(TICK, &knee));
    assert!(
        (0.88..0.92).contains(&(seeker.at() / 5e6)),
        "{}",
        seeker.at()
    );
    (0..100_000).for_each(|_| seeker.seek(TICK, &knee));
    assert_eq!(seeker.at(), 0.3e6);
}

#[test]
fn the_threshold_is_a_quarter_above_the_knee_and_at_least_twice_the_least_latency() {
    let goal = |latency: f64| {
        let mut seeker = Seeker::new(5e6);
        let knee = Knee {
            latency,
            least: 1e6,
            bracketed: true,
            ..Knee::default()
        };
        (0..1_000).for_each(|_| seeker.seek(Span::from_secs(10), &knee));
        seeker.at()
    };
    assert_eq!(goal(4e6), 5e6);
    assert_eq!(goal(1.1e6), 2e6);
}

#[test]
fn the_threshold_moves_down_while_nothing_lower_is_known() {
    let mut seeker = Seeker::new(10e6);
    let knee = Knee {
        latency: 10e6,
        least: 10e6,
        ..Knee::default()
    };
    seeker.seek(Span::from_secs(10), &knee);
    assert!(seeker.at() < 10e6);
    seeker.seek(
        Span::from_secs(10),
        &Knee {
            bracketed: true,
            ..knee
        },
    );
    assert!(seeker.at() > 9e6);
}

#[test]
fn the_search_downwards_ends_where_throughput_falls() {
    // Latency rises before the array is full: 0.94 of the most at 12 in flight.
    let soft = |in_flight: f64| Sight {
        rate: 20_000.0 * in_flight / (in_flight + 0.75),
        latency: (in_flight + 0.75) / 20_000.0 * 1e9,
        ..array(20_000.0, 0.5, in_flight)
    };
    let (mut curve, mut seeker) = (Curve::default(), Seeker::new(10e6));
    let mut lows = Vec::new();
    for _ in 0..6_000 {
        let in_flight = (seeker.at() / 1e9 * 20_000.0 - 0.75).max(1.0);
        curve.saw(TICK, &soft(in_flight));
        if let Some(knee) = curve.knee() {
            seeker.seek(TICK, &knee);
            lows.push(curve.bins[place(in_flight)].rate);
        }
    }
    // 0.95 of the most is done with some fourteen in flight, at 0.75 ms.
    assert!((0.6e6..1.1e6).contains(&seeker.at()), "{}", seeker.at());
    assert!(lows.iter().all(|&rate| rate >= 0.9 * 20_000.0));
}

#[test]
fn a_brief_drop_does_not_end_the_search_downwards() {
    let mut curve = Curve::default();
    let saw = |curve: &mut Curve, times, in_flight, part| {
        let full = array(20_000.0, 0.5, in_flight);
        let rate = part * full.rate;
        (0..times).for_each(|_| curve.saw(TICK, &Sight { rate, ..full }));
        curve.knee().unwrap()
    };
    saw(&mut curve, 100, 80.0, 1.0);
    let chance = saw(&mut curve, 5, 30.0, 0.93);
    assert!((20.0..40.0).contains(&chance.in_flight) && !chance.falls);
    assert!(saw(&mut curve, 20, 30.0, 0.93).falls);
}

#[test]
fn the_minimum_latency_is_known_only_below_the_knee() {
    let knee = Knee {
        latency: 4e6,
        least: 4e6,
        falls: true,
        ..Knee::default()
    };
    let mut seeker = Seeker::new(4e6);
    (0..1_000).for_each(|_| seeker.seek(Span::from_secs(10), &knee));
    assert_eq!(seeker.at(), 5e6);
}

#[test]
fn pressure_tightens_in_steps_until_throughput_is_lost() {
    let mut curve = Curve::default();
    let mut load = |in_flight| {
        (0..20).for_each(|_| curve.saw(TICK, &array(20_000.0, 0.5, in_flight)));
        curve.tightest(0.7, 3e6) / 1e6
    };
    // 2 ms with 40 in flight, and so on. The throughput with less is unknown.
    assert!((1.39..1.41).contains(&load(40.0)));
    assert!((0.69..0.71).contains(&load(20.0)));
    assert!((0.34..0.36).contains(&load(10.0)));
    // A quarter of the peak is too little; the search ends a tenth above the least latency.
    assert!((0.54..0.56).contains(&load(2.5)));
}

#[test]
fn pressure_needs_a_known_peak_and_stays_above_the_least_latency() {
    let mut curve = Curve::default();
    assert_eq!(curve.tightest(0.7, 2e6), 2e6);
    let mut load = |in_flight| {
        (0..20).for_each(|_| curve.saw(TICK, &array(20_000.0, 0.5, in_flight)));
        curve.tightest(0.7, 2e6) / 1e6
    };
    // Without congestion: this throughput does not show the peak.
    assert_eq!(load(2.5), 2.0);
    // 1.5 ms with thirty in flight; the throughput in between is unknown.
    assert!((1.04..1.06).contains(&load(30.0)));
    // The search ends a tenth above the least latency, whatever is known below.
    assert!((0.54..0.56).contains(&load(14.0)));
    assert!((0.54..0.56).contains(&load(10.0)));
    assert!((0.54..0.56).contains(&load(6.0)));
}

#[test]
fn pressure_tightens_at_once_relaxes_slowly_and_never_passes_its_floor() {
    let mut pressure = Pressure::default();
    (0..100).for_each(|_| pressure.felt(TICK, 2.0));
    assert_eq!(pressure.on(20e6, 0.0), 5e6);
    assert_eq!(pressure.on(20e6, 8e6), 8e6);
    assert_eq!(pressure.on(20e6, 80e6), 20e6);
    (0..10).for_each(|_| pressure.felt(TICK, 0.5));
    assert!(
        (5.2e6..5.3e6).contains(&pressure.on(20e6, 0.0)),
        "{}",
        pressure.on(20e6, 0.0)
    );
}

#[test]
fn an_accepted_bin_stays_valid_for_an_hour() {
    let mut curve = Curve::default();
    let mut see = |in_flight, times| {
        (0..times).for_each(|_| curve.saw(TICK, &array(20_000.0, 0.5, in_flight)));
        curve.tightest(0.7, 4e6)
    };
    assert_eq!(see(10.0, 20), 4e6, "the peak is not known");
    // Half a second near the threshold.
    let tight = see(80.0, 5);
    assert!(tight < 1e6, "{tight}");
    // Then half an hour without.
    assert_eq!(see(10.0, 18_000), tight);
    // After two hours the array may have changed.
    assert_eq!(see(10.0, 54_000), 4e6);
}

#[test]
fn the_narrowest_window_leaves_the_given_part_of_the_peak() {
    let mut curve = Curve::default();
    assert_eq!(curve.narrowest(0.7), None);
    let mut see = |in_flight| {
        (0..20).for_each(|_| curve.saw(TICK, &array(20_000.0, 0.5, in_flight)));
        curve.narrowest(0.7).unwrap()
    };
    // The throughput of fewer is unknown.
    assert!((50.0..60.0).contains(&see(80.0)));
    assert!((25.0..31.0).contains(&see(40.0)));
    assert!((6.0..8.0).contains(&see(10.0)));
    // Six reach six tenths.
    assert!((8.0..12.0).contains(&see(6.0)));
}
