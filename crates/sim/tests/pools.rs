//! The experiments `pools` and `vsan-scaling`, with shorter phases.
//!
//! `cargo xtask sim --scenario pools` plays the whole one.

use std::path::Path;
use tidegate_sim::Scenario;
use tidegate_sim::judge::{describe, judge, too_short};

fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let path = path.join(format!("{name}.toml"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Plays the scenario with phases of so many percent, and expects that all of it holds.
fn holds(name: &str, percent: u64) {
    let scenario = Scenario::read(&text(name)).expect("a scenario");
    let scenario = scenario.scaled(percent);
    let verdict = judge(&scenario, 1).expect("it can be run");
    assert_eq!(verdict.breaches, []);
    for judged in &verdict.judgements {
        let expect = &scenario.expects[judged.expect];
        assert_eq!(too_short(&scenario, expect), None);
        let text = describe(&scenario, expect);
        assert!(judged.holds, "{}: {text}", judged.value);
    }
    assert_eq!(verdict.judgements.len(), scenario.expects.len());
}

#[test]
fn a_pool_is_as_fast_as_disks_on_its_raid_groups() {
    holds("pools", 50);
}

#[test]
fn throughput_grows_with_hosts_and_disk_groups() {
    holds("vsan-scaling", 100);
}

#[test]
fn a_pool_needs_arrays_for_each_host_and_plain_disks() {
    let text = text("vsan-scaling");
    for (from, to, message) in [
        (
            "arrays = 16",
            "arrays = 15",
            "cannot be divided among 4 hosts",
        ),
        (
            "groups = 2",
            "groups = 5",
            "a pool has 1 to 32 groups, and its host 4 arrays",
        ),
        ("pool = 50\ngroups = 2", "groups = 2", "needs `pool`"),
        ("pool = 50", "pool = 0", "must be 1 to 100"),
        (
            "size = \"4GiB\"",
            "size = \"4GiB\"\nlayout = \"stripe\"",
            "cannot be in a pool",
        ),
    ] {
        let error = Scenario::read(&text.replacen(from, to, 1)).expect_err(message);
        assert!(error.to_string().contains(message), "{error}");
    }
}
