//! Runs the short set of the simulator's scenarios with a few seeds. The swarm runs many more.
//!
//! `cargo xtask sim --scenario NAME --seed N` repeats any of these with more output.

use std::path::{Path, PathBuf};
use tidegate_core::units::Span;
use tidegate_sim::compare::{ROWS, check};
use tidegate_sim::judge::{describe, judge, too_short};
use tidegate_sim::scenario::FaultKind;
use tidegate_sim::seeds::PastFailure;
use tidegate_sim::world::run;
use tidegate_sim::{Policy, Scenario, Variant};

/// Quick scenarios, at least one for each kind of fault.
const SHORT: &[&str] = &[
    "background-part",
    "external-load",
    "rebuild-beside-guest",
    "rebuild-beside-guest-raid",
    "rebuild-beside-pauses",
    "row-01-local-fairness",
    "row-02-share-error",
    "row-04-reservation",
    "row-05-infeasible-reservations",
    "row-06-limits",
    "row-06-groups",
    "row-06-near-its-part",
    "row-07-burst",
    "row-09-join",
    "row-09-start-idle-resume",
    "row-10-capacity-halves",
    "row-11-deaf-hosts",
    "row-11-host-death",
    "row-11-late-slots",
    "row-11-mute-host",
    "row-11-torn-slots",
    "row-11-vanished-datastore",
    "row-12-start",
    "row-13-starvation",
    "row-14-idle-credit",
    "row-15-sizes",
    "row-18-isolation",
    "row-18-unattainable",
    "row-19-clock",
    "row-21-starved",
    "row-21-threads-04",
    "striped-shares",
];

const SEEDS: [u64; 2] = [1, 2];

fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

fn scenario(name: &str) -> Scenario {
    let path = scenarios().join(format!("{name}.toml"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Scenario::read(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("a readable directory").path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    paths.sort();
    paths
}

#[test]
fn every_scenario_is_valid_named_like_its_file_and_long_enough_to_be_judged() {
    let mut paths = files(&scenarios());
    paths.retain(|path| Scenario::is_meant(&std::fs::read_to_string(path).unwrap()));
    assert!(paths.len() > SHORT.len());
    for path in paths {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert_eq!(scenario(&name).name, name);
        let scenario = scenario(&name);
        assert!(!scenario.expects.is_empty(), "{name} expects nothing");
        for expect in &scenario.expects {
            let text = describe(&scenario, expect);
            assert_eq!(too_short(&scenario, expect), None, "{name}: {text}");
        }
    }
}

#[test]
fn every_compared_figure_exists_and_the_page_names_its_command() {
    let names = ROWS.iter().map(|row| row.scenario);
    let scenarios = names.map(|name| (name, scenario(name))).collect();
    check(&scenarios).unwrap();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let page = std::fs::read_to_string(docs.join("io-control-compared.md")).unwrap();
    assert!(page.contains("`cargo xtask sim --side-by-side --seeds "));
    for row in ROWS {
        let begins = format!("| {} | `{}` |", row.text, row.scenario);
        assert!(
            page.contains(&begins),
            "{begins} is missing: generate the page again"
        );
    }
}

/// Guests' completed I/Os, the hosts' I/Os on the coordination file, and the number of hosts that they saw.
fn done(text: &str) -> (u64, u64, usize) {
    let scenario = Scenario::read(text).expect("a scenario").scaled(10);
    let run = run(&scenario, &Variant::of(Policy::Ours), 1).expect("a run");
    let bins = &run.results.datastore.bins;
    let seen = run.results.events.iter();
    (
        bins.iter().map(|bin| bin.ios).sum(),
        bins.iter().map(|bin| bin.coordination).sum(),
        seen.filter(|(_, text)| text.contains("HostSeen")).count(),
    )
}

#[test]
fn a_coordination_file_on_other_storage_uses_no_array_time() {
    let text = std::fs::read_to_string(scenarios().join("sioc-1.toml")).unwrap();
    let with = |settings: &str| text.replace("[datastore]", &format!("[datastore]\n{settings}"));
    let (ios, slot_ios, seen) = done(&with("coordination = \"array\""));
    assert_eq!(
        (ios, slot_ios, seen),
        done(&text),
        "the array is the default"
    );
    let (ios_apart, slot_ios_apart, seen_apart) = done(&with("coordination = \"apart\""));
    assert_eq!(seen_apart, seen);
    assert!(
        slot_ios_apart.abs_diff(slot_ios) * 4 < slot_ios,
        "{slot_ios_apart} and {slot_ios}"
    );
    assert!(
        ios_apart > ios + slot_ios / 2 && ios_apart < ios + slot_ios * 2,
        "{ios_apart} and {ios}, {slot_ios} of the hosts"
    );
    let error = Scenario::read(&with("coordination = \"moon\"")).unwrap_err();
    assert!(
        error.to_string().contains("array or apart, not `moon`"),
        "{error}"
    );
}

/// Plays a scenario with each seed: the expectations that must hold with every seed and do not, and what was breached.
fn missed(name: &str) -> Vec<String> {
    let mut missed = Vec::new();
    let scenario = scenario(name);
    for seed in SEEDS {
        let verdict = judge(&scenario, seed).expect("it can be run");
        for judged in verdict.judgements.iter().filter(|judged| !judged.holds) {
            let expect = &scenario.expects[judged.expect];
            if expect.of_seeds == 100 {
                let text = describe(&scenario, expect);
                missed.push(format!("{name}, seed {seed}: {:.3}, {text}", judged.value));
            }
        }
        for breach in &verdict.breaches {
            missed.push(format!(
                "{name}, seed {seed}, {:?}: {}",
                breach.at, breach.what
            ));
        }
    }
    missed
}

#[test]
fn the_short_set_meets_its_expectations() {
    let missed: Vec<_> = SHORT.iter().flat_map(|name| missed(name)).collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// In real time their median is judged, with some slack: `crates/cli/tests/scenarios.rs`.
#[test]
fn the_scenarios_of_real_daemons_meet_their_expectations_in_virtual_time() {
    let mut names: Vec<_> = files(&scenarios())
        .iter()
        .filter_map(|path| path.file_stem()?.to_str().map(str::to_owned))
        .collect();
    names.retain(|name| name.starts_with("engine-"));
    assert!(names.len() >= 10, "{names:?}");
    let missed: Vec<_> = names.iter().flat_map(|name| missed(name)).collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn equal_seeds_have_equal_fingerprints_and_other_seeds_others() {
    for name in ["row-11-torn-slots", "row-19-clock", "row-21-threads-04"] {
        let scenario = scenario(name).scaled(30);
        for policy in Policy::ALL {
            let print = |seed| {
                run(&scenario, &Variant::of(policy), seed)
                    .unwrap()
                    .fingerprint
            };
            assert_eq!(print(5), print(5), "{name} under {}", policy.word());
            assert_ne!(print(5), print(6), "{name} under {}", policy.word());
        }
    }
}

#[test]
fn disks_with_layouts_have_equal_fingerprints_for_equal_seeds() {
    let scenario = scenario("background-part").scaled(10);
    for policy in [Policy::Ours, Policy::None] {
        let run = |seed| run(&scenario, &Variant::of(policy), seed).unwrap();
        assert_eq!(run(5).fingerprint, run(5).fingerprint);
        assert_ne!(run(5).fingerprint, run(6).fingerprint);
        assert_eq!(run(5).breaches, []);
    }
    let error = run(&scenario, &Variant::of(Policy::Parda), 5).unwrap_err();
    assert!(error.to_string().contains("has no layouts"), "{error}");
}

#[test]
fn a_rebuild_that_does_not_end_has_no_time() {
    let mut scenario = scenario("rebuild-beside-guest");
    let rebuild = scenario.phases.pop().expect("a phase after the rebuild");
    let last = scenario.phases.last_mut().expect("the rebuild");
    last.ends = last.begins + Span::from_secs(2);
    assert_eq!(rebuild.name, "rebuilt");
    let verdict = judge(&scenario, 1).unwrap();
    let judged = &verdict.judgements[0];
    assert!(judged.value.is_nan() && !judged.holds, "{judged:?}");
    assert_eq!(verdict.breaches, []);
}

#[test]
fn a_wall_clock_that_jumps_changes_nothing() {
    let jumps = scenario("row-19-clock");
    let mut steady = jumps.clone();
    steady.faults.retain(|fault| fault.kind != FaultKind::Clock);
    assert_ne!(steady.faults.len(), jumps.faults.len());
    let ours = Variant::of(Policy::Ours);
    let (jumps, steady) = (
        run(&jumps, &ours, 3).unwrap(),
        run(&steady, &ours, 3).unwrap(),
    );
    assert_eq!(
        jumps.results.disks[0].latencies_us,
        steady.results.disks[0].latencies_us
    );
}

#[test]
fn without_control_shares_have_no_effect() {
    let mut scenario = scenario("row-02-share-error");
    for expect in &mut scenario.expects {
        expect.run = Variant::of(Policy::None);
    }
    let verdict = judge(&scenario, 1).unwrap();
    assert!(
        !verdict.holds(&scenario),
        "the bounds distinguish control from none"
    );
}

#[test]
fn past_failures_stay_fixed() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let paths = files(&dir);
    assert!(
        !paths.is_empty(),
        "past failures are stored in {}",
        dir.display()
    );
    for path in paths {
        let past = PastFailure::read(&std::fs::read_to_string(&path).unwrap());
        let past = past.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let scenario = scenario(&past.scenario);
        let verdict = judge(&scenario, past.seed).unwrap();
        assert_eq!(verdict.breaches, [], "{}", path.display());
        for judged in &verdict.judgements {
            let expect = &scenario.expects[judged.expect];
            let required = past.expect.contains(&expect.what);
            assert!(
                judged.holds || !required,
                "{}: {:.3}, {}",
                path.display(),
                judged.value,
                describe(&scenario, expect)
            );
        }
    }
}
