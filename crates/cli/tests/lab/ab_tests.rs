//! A/B tests as scripts meet them: missing contestants and omitted points are named, and an interruption leaves no server.

use std::fs;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::{finished, interrupted, left, scratch, text, tidegate};

/// Two Tidegates and a contestant that is not there, at two points. Every trial counts: the machine is not under test.
const AB_TEST: &str = r#"
name = "tiny"
title = "What a filter costs, in a second"
source = "made up"
[contest]
measure = "1s"
warm = "50ms"
rounds = 1
quiet = 100000.0
[[contestant]]
name = "plain"
server = "tidegate"
[[contestant]]
name = "filtered"
server = "tidegate"
filters = ["null"]
[[contestant]]
name = "daemon"
server = "storage-daemon"
[[sweep]]
name = "vms"
title = "By number of VMs"
across = "vms"
points = [1, 2]
brief = [2]
work = { outstanding = 4, size = "4KiB", reads = 100, random = 0 }
[[expect]]
what = "iops"
sweep = "vms"
contestant = "filtered"
against = { contestant = "plain" }
at-least = 0.001
source = "it works at all"
[[expect]]
what = "cpu"
sweep = "vms"
contestant = "plain"
against = { contestant = "daemon" }
at-most = 1000
source = "a peer that is not there"
"#;

/// Where the kernel is asked to keep idle CPUs awake.
const PM_QOS: &str = "/dev/cpu_dma_latency";

/// A search path that has only `taskset`.
fn bare_path(scratch: &TempDir) -> String {
    let dir = scratch.path().join("bin");
    fs::create_dir(&dir).expect("it can be made");
    let path = std::env::var_os("PATH").expect("there is a search path");
    let mut places = std::env::split_paths(&path).map(|place| place.join("taskset"));
    let found = places.find(|place| place.is_file());
    let found = found.expect("util-linux is on every Debian");
    std::os::unix::fs::symlink(found, dir.join("taskset")).expect("it can be linked");
    text(&dir)
}

#[test]
fn an_ab_test_is_run_judged_and_reported_and_a_missing_contestant_is_named() {
    let scratch = scratch();
    let file = scratch.path().join("tiny.toml");
    let failing = format!(
        "{AB_TEST}\n[[expect]]\nwhat = \"iops\"\nsweep = \"vms\"\nat = \"2\"\ncontestant = \"plain\"\n\
         at-least = 1e12\nsource = \"a dream\"\n"
    );
    fs::write(&file, failing).expect("it can be written");
    let places = scratch.path().join("t");
    fs::create_dir(&places).expect("it can be made");
    let out = text(&scratch.path().join("results"));
    let path = bare_path(&scratch);
    let go = |more: &[&str]| {
        finished(
            Command::new(env!("CARGO_BIN_EXE_tidegate"))
                .args(["lab", "run", &text(&file), "--out", &out])
                .args(more)
                .env("TMPDIR", &places)
                .env("PATH", &path),
        )
    };
    let run = go(&["-o", "json"]);
    let found: Value = serde_json::from_str(&run.out).expect("JSON");
    assert_eq!(found["problems"], Value::Array(Vec::new()), "{}", run.err);
    let verdicts: Vec<&str> = found["checks"]
        .as_array()
        .expect("checks")
        .iter()
        .filter_map(|check| check["verdict"].as_str())
        .collect();
    assert_eq!(verdicts, ["pass", "not-judged", "fail"], "{}", run.out);
    assert_eq!(run.status, 1);
    let note = found["checks"][1]["note"].as_str().expect("a reason");
    assert!(
        note.contains("qemu-storage-daemon is not installed"),
        "{note}"
    );
    let measured = found["measured"].as_array().expect("figures");
    assert_eq!(measured.len(), 2 * 3);
    let pm_qos = fs::OpenOptions::new().write(true).open(PM_QOS);
    let may_keep_awake = pm_qos.is_ok();
    for row in measured.iter().filter(|row| row["contestant"] != "daemon") {
        assert!(row["iops"]["median"].as_f64() > Some(0.0), "{row}");
        assert!(
            row["cpu_percent_per_kiops"]["median"].as_f64() > Some(0.0),
            "{row}"
        );
        assert_eq!(row["awake"] == 1, may_keep_awake, "{row}");
    }
    assert_eq!(left(&places), 0, "servers' roots go when they have ended");

    let page = fs::read_to_string(scratch.path().join("results/report.html")).expect("a page");
    let summary = fs::read_to_string(scratch.path().join("results/report.md")).expect("a summary");
    for part in [
        "What was measured",
        "Processor time",
        "By number of VMs",
        "is not installed",
        "1 FAIL",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(summary.contains("**FAIL**") && summary.contains("is not installed"));
    assert!(
        !page.contains("NaN"),
        "no figure is drawn that is no number"
    );
    let rows = fs::read_to_string(scratch.path().join("results/csv/engine-01-vms-2.csv"));
    assert_eq!(rows.expect("a table").lines().count(), 1 + 2);

    // A stored block is not made again, and the results equal themselves.
    let runs = scratch.path().join("results/runs");
    let stored = |name: &str| fs::read_to_string(runs.join(name)).expect("a block");
    let before = stored("engine-01-vms-1.json");
    let again = go(&["-o", "json"]);
    let again: Value = serde_json::from_str(&again.out).expect("JSON");
    assert_eq!(again["checks"], found["checks"]);
    assert_eq!(stored("engine-01-vms-1.json"), before);
    assert_eq!(left(&runs), 2);
    let compared = tidegate(&["lab", "compare", &out, &out, "-o", "wide"]);
    assert_eq!(compared.status, 0, "{}", compared.err);
    assert!(
        compared.out.contains("filtered, By number of VMs: 2 VMs"),
        "{}",
        compared.out
    );
}

/// The same in slices.
fn side_by_side() -> String {
    AB_TEST.replace("rounds = 1", "rounds = 1\nside-by-side = true")
}

#[test]
fn servers_that_run_side_by_side_are_measured_in_the_same_time_and_the_report_says_so() {
    let scratch = scratch();
    let file = scratch.path().join("tiny.toml");
    fs::write(&file, side_by_side()).expect("it can be written");
    let places = scratch.path().join("t");
    fs::create_dir(&places).expect("it can be made");
    let out = text(&scratch.path().join("results"));
    let run = finished(
        Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["lab", "run", &text(&file), "--out", &out])
            .env("TMPDIR", &places)
            .env("PATH", bare_path(&scratch)),
    );
    assert_eq!(run.status, 0, "{}", run.err);
    assert_eq!(left(&places), 0, "servers' roots go when they have ended");
    let path = scratch.path().join("results/runs/engine-01-vms-2.json");
    let text = fs::read_to_string(path).expect("a block");
    let block: Value = serde_json::from_str(&text).expect("JSON");
    let trials = block["trials"].as_array().expect("trials");
    let mut names: Vec<&str> = trials
        .iter()
        .filter_map(|trial| trial["contestant"].as_str())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["filtered", "plain"]);
    for trial in trials {
        assert!(trial["iops"].as_f64() > Some(0.0), "{trial}");
        assert!(trial["server_percent"].as_f64() > Some(0.0), "{trial}");
    }
    assert_eq!(trials[0]["noise"], trials[1]["noise"]);
    assert_eq!(block["absent"][0]["contestant"], "daemon");
    let summary = fs::read_to_string(scratch.path().join("results/report.md")).expect("a summary");
    assert!(summary.contains("servers run side by side"), "{summary}");
}

#[test]
fn a_short_ab_test_says_what_it_leaves_out() {
    let scratch = scratch();
    let file = scratch.path().join("tiny.toml");
    fs::write(&file, AB_TEST).expect("it can be written");
    let out = text(&scratch.path().join("results"));
    let path = bare_path(&scratch);
    let run = finished(
        Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["lab", "run", &text(&file), "--out", &out, "--scale", "0.1"])
            .env("PATH", &path),
    );
    assert_eq!(run.status, 0, "{}", run.err);
    assert_eq!(left(&scratch.path().join("results/runs")), 1);
    let summary = fs::read_to_string(scratch.path().join("results/report.md")).expect("a summary");
    assert!(
        summary.contains("Left out at this length: By number of VMs: 1."),
        "{summary}"
    );
}

#[test]
fn an_interrupted_ab_test_leaves_no_server_and_is_resumed() {
    is_interrupted_and_resumed(AB_TEST);
}

#[test]
fn an_interrupted_ab_test_in_slices_leaves_no_server_and_is_resumed() {
    is_interrupted_and_resumed(&side_by_side());
}

fn is_interrupted_and_resumed(ab_test: &str) {
    let scratch = scratch();
    let file = scratch.path().join("tiny.toml");
    fs::write(&file, ab_test).expect("it can be written");
    let (out, places) = (
        text(&scratch.path().join("results")),
        scratch.path().join("t"),
    );
    fs::create_dir(&places).expect("it can be made");
    let path = bare_path(&scratch);
    let command = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["lab", "run", &text(&file), "--out", &out, "--repeat", "2"]);
        command.env("TMPDIR", &places);
        command
    };
    // `kill` is found by this program, and not by the one that is interrupted.
    let (status, rest) = interrupted(command().env("PATH", &path), "tiny 2/4: real daemons");
    assert_eq!(status, Some(1), "{rest}");
    assert!(rest.contains("resumes"), "{rest}");
    assert_eq!(left(&places), 0, "servers' roots go when they have ended");
    let runs = scratch.path().join("results/runs");
    let there = left(&runs);
    assert!((1..4).contains(&there), "{there} blocks");
    let run = finished(command().env("PATH", &path));
    assert_eq!(run.status, 0, "{}", run.err);
    assert_eq!(left(&runs), 4);
}

#[test]
fn an_ab_test_is_shown_with_its_contestants_and_their_work() {
    let shown = tidegate(&["lab", "show", "filter-overhead"]).out;
    for says in [
        "null filter",
        "filters null",
        "By number of VMs, each with 128 outstanding",
        "at most 1.01",
    ] {
        assert!(shown.contains(says), "{says}: {shown}");
    }
}
