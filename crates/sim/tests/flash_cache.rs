//! The experiments `flash-cache` and `flash-cache-scan`, with smaller disks and shorter phases.
//!
//! `cargo xtask sim --scenario flash-cache` plays the whole one.

use std::path::Path;
use tidegate_sim::judge::{Stretch, describe, judgements, needed};
use tidegate_sim::scenario::{Expect, Measure};
use tidegate_sim::world::run;
use tidegate_sim::{Policy, Run, Scenario, Variant};

fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let path = path.join(format!("{name}.toml"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The scenario with sizes divided by a number, and phases at so many percent of their length.
fn small(text: &str, by: u64, percent: u64) -> Scenario {
    let divided = |piece: &str| {
        let begin = piece.rfind('"').expect("a size is a string") + 1;
        let size: u64 = piece[begin..].parse().expect("a size is a number");
        format!("{}{}", &piece[..begin], size / by)
    };
    let pieces: Vec<&str> = text.split("MiB\"").collect();
    let (last, sizes) = pieces.split_last().expect("there is one piece");
    let sizes = sizes.iter().map(|piece| divided(piece) + "MiB\"");
    let text = sizes.collect::<String>() + last;
    Scenario::read(&text).expect("a scenario").scaled(percent)
}

fn with(configuration: &str, scenario: &Scenario) -> Run {
    let mut all = scenario.configurations.iter();
    let place = all.position(|other| other.name == configuration);
    let variant = Variant {
        configuration: place.expect("there is such a configuration"),
        ..Variant::of(Policy::Ours)
    };
    let run = run(scenario, &variant, 1).expect("it can be run");
    assert_eq!(run.breaches, [], "{configuration}");
    run
}

/// A figure of a phase.
fn figure(scenario: &Scenario, run: &Run, what: Measure, phase: usize) -> f64 {
    let expect = Expect {
        what,
        ..scenario.expects[0].clone()
    };
    let all: Vec<usize> = (0..scenario.disks.len()).collect();
    let hosts: Vec<usize> = (0..scenario.hosts.len()).collect();
    let stretch = Stretch {
        scenario,
        run,
        phase,
        disks: &all,
        hosts: &hosts,
    };
    stretch.measure(&expect)
}

#[test]
fn a_cache_carries_more_tiles_and_on_half_of_the_disks_as_many_as_without() {
    let scenario = small(&text("flash-cache"), 7, 6);
    let passed = |name| {
        let run = with(name, &scenario);
        let hits = figure(&scenario, &run, Measure::HitRatio, 3);
        (figure(&scenario, &run, Measure::PhasesPassed, 0), hits)
    };
    let (without, none) = passed("20 disks");
    assert!(without >= 1.0 && none.is_nan(), "{without}, {none}");
    let (cached, hits) = passed("20 disks, 92 GB");
    assert!(cached > without, "{cached} and {without} tiles");
    let (on_half, _) = passed("11 disks, 92 GB");
    assert!(on_half >= without, "{on_half} and {without} tiles");
    let (large, nearly_all) = passed("20 disks, 366 GB");
    assert!(large >= cached, "{large} and {cached} tiles");
    // The rest are the first accesses of pages: phases are short.
    assert!(
        nearly_all > hits && nearly_all > 95.0,
        "{hits} and {nearly_all} %"
    );
}

#[test]
fn a_scan_leaves_the_hot_set_in_the_cache_and_streams_are_as_fast_as_without_one() {
    let scenario = small(&text("flash-cache-scan").replace("2GiB", "2048MiB"), 10, 20);
    let runs = needed(&scenario).into_iter().map(|variant| {
        let run = run(&scenario, &variant, 1).expect("it can be run");
        assert_eq!(run.breaches, []);
        (variant, run)
    });
    for judged in judgements(&scenario, &runs.collect()) {
        let text = describe(&scenario, &scenario.expects[judged.expect]);
        assert!(judged.holds, "{}: {text}", judged.value);
    }
}
