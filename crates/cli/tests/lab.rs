//! `tidegate lab` as scripts meet it: exit status, tables and JSON, and the report that it leaves.
//!
//! Mostly in virtual time, which needs no machine. On real daemons only what needs little: small scenarios, and A/B tests of
//! a second ([`ab_tests`]).

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

#[path = "lab/ab_tests.rs"]
mod ab_tests;
#[path = "lab/flash_caches.rs"]
mod flash_caches;

/// Two disks that ask for more than the array has, one with twice the shares.
const SMALL: &str = r#"
name = "small"
title = "Two disks, one with twice the shares"
source = "made up"
lasts = "3s"
settling = "1s"
[datastore]
array = { servers = 4, read = "10ms", rate = "100MiB" }
threshold = "15ms"
[[host]]
name = "host1"
[[disk]]
name = "one"
host = "host1"
workload = { kind = "access", outstanding = 8 }
[[disk]]
name = "two"
host = "host1"
shares = 2000
workload = { kind = "access", outstanding = 8 }
[[expect]]
what = "iops"
at-least = 50
source = "it works at all"
"#;

struct Run {
    status: i32,
    out: String,
    err: String,
}

fn tidegate(words: &[&str]) -> Run {
    finished(Command::new(env!("CARGO_BIN_EXE_tidegate")).args(words))
}

fn finished(command: &mut Command) -> Run {
    let output = command.stdin(Stdio::null()).output();
    let output = output.expect("the program can be started");
    Run {
        status: output.status.code().expect("it ends by itself"),
        out: String::from_utf8(output.stdout).expect("text"),
        err: String::from_utf8(output.stderr).expect("text"),
    }
}

/// Interrupts a run when it says `begun`, and waits for its end: exit status and what it said after that.
fn interrupted(command: &mut Command, begun: &str) -> (Option<i32>, String) {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program can be started");
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let found = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(begun)));
    found.expect("it says when a run begins").expect("text");
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status();
    assert!(sent.expect("kill is there").success());
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    (child.wait().expect("it ends").code(), rest.join("\n"))
}

fn scratch() -> TempDir {
    TempDir::new().expect("a scratch directory")
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path that is text").to_owned()
}

/// How many entries a directory has.
fn left(place: &Path) -> usize {
    fs::read_dir(place).expect("it is there").count()
}

/// As it stands in a page.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[test]
fn a_run_in_virtual_time_gives_a_report_with_every_check() {
    let scratch = scratch();
    let out = text(&scratch.path().join("results"));
    let words = [
        "lab", "run", "sioc-3", "--on", "sim", "--scale", "0.1", "--out", &out,
    ];
    let run = tidegate(&[&words[..], &["-o", "json"]].concat());
    let found: Value = serde_json::from_str(&run.out).expect("JSON");
    let checks = found["checks"].as_array().expect("checks");
    // Those of the scenario, and that nothing was breached.
    let shown = tidegate(&["lab", "show", "sioc-3", "-o", "json"]);
    let shown: Value = serde_json::from_str(&shown.out).expect("JSON");
    let expected = shown["checks"].as_array().expect("checks");
    assert_eq!(checks.len(), expected.len() + 1);
    let failed = checks
        .iter()
        .filter(|check| check["verdict"] == "fail")
        .count();
    assert_eq!(run.status, i32::from(failed > 0), "{}", run.err);

    let page = fs::read_to_string(scratch.path().join("results/report.html")).expect("a page");
    let summary = fs::read_to_string(scratch.path().join("results/report.md")).expect("a summary");
    for check in expected {
        let what = check["what"].as_str().expect("words");
        assert!(page.contains(&escaped(what)), "{what}");
        assert!(summary.contains(what), "{what}");
    }
    for part in [
        "Throughput of all disks over time",
        "Shares against throughput",
        "Latency against the threshold, and hosts&#39; windows",
        "Latency as guests see it",
        "Orders of the shops",
        "Machine and method",
        "runs/sim-01-managed.json",
        "csv/sim-01-unmanaged.csv",
        "prefers-color-scheme:dark",
        "@media print",
    ] {
        let part = part.replace("&#39;", "'");
        assert!(page.contains(&part), "{part}");
    }
    for foreign in ["<script", "http://", "https://", "@import", "src="] {
        assert!(
            !page.contains(foreign),
            "the page needs nothing but itself: {foreign}"
        );
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert!(
        !page.contains("NaN"),
        "no figure is drawn that is no number"
    );

    // Stored runs are judged again with the same result, and equal themselves.
    let again = tidegate(&["lab", "report", &out, "-o", "json"]);
    let again: Value = serde_json::from_str(&again.out).expect("JSON");
    assert_eq!(again["checks"], found["checks"]);
    let compared = tidegate(&["lab", "compare", &out, &out]);
    assert_eq!(compared.status, 0, "{}", compared.err);
    assert!(compared.out.contains("+0.0 %"), "{}", compared.out);
}

#[test]
fn the_same_on_real_daemons_is_compared_with_the_simulator_and_leaves_no_daemon() {
    let scratch = scratch();
    let file = scratch.path().join("small.toml");
    fs::write(&file, SMALL).expect("it can be written");
    let out = text(&scratch.path().join("results"));
    let places = scratch.path().join("t");
    fs::create_dir(&places).expect("it can be made");
    let words = [
        "lab",
        "run",
        &text(&file),
        "--on",
        "engine,sim",
        "--out",
        &out,
    ];
    let run = finished(
        Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(words)
            .args(["-o", "json"])
            .env("TMPDIR", &places),
    );
    let found: Value = serde_json::from_str(&run.out).expect("JSON");
    assert_eq!(found["problems"], Value::Array(Vec::new()), "{}", run.err);
    let checks = found["checks"].as_array().expect("checks");
    let of = |on: &str, what: &str| {
        let found = checks.iter().find(|check| {
            check["on"] == on
                && check["what"]
                    .as_str()
                    .is_some_and(|says| says.contains(what))
        });
        found.unwrap_or_else(|| panic!("no {what} on {on}"))["verdict"].clone()
    };
    assert_eq!(of("engine", "throughput"), "pass");
    assert_eq!(of("engine", "I/Os that ended with an error"), "pass");
    assert_eq!(of("engine", "breaches"), "pass");
    assert_eq!(of("sim", "breaches"), "pass");
    let rows = found["agreement"]["rows"]
        .as_array()
        .expect("they are compared");
    assert_eq!(rows.len(), 2);
    let page = fs::read_to_string(scratch.path().join("results/report.html")).expect("a page");
    assert!(page.contains("Real daemons against the simulator"));
    assert_eq!(left(&places), 0, "daemons' roots go when they have ended");
    let runs = fs::read_dir(scratch.path().join("results/runs")).expect("they are there");
    assert_eq!(runs.count(), 2);
}

/// A mirror on fast arrays, which loses a member and gets it again.
const MIRRORED: &str = r#"
name = "mirrored"
title = "A rebuild beside a guest"
source = "made up"
settling = "500ms"
[datastore]
array = { servers = 4, read = "200us" }
arrays = 2
[[host]]
name = "h"
[[disk]]
name = "db1"
host = "h"
size = "64MiB"
layout = "mirror"
workload = { kind = "access", outstanding = 1, reads = 70 }
[[phase]]
name = "whole"
lasts = "1s"
[[phase]]
name = "lost"
lasts = "1s"
remove = [{ disk = "db1", member = 1 }]
[[phase]]
name = "rebuild"
lasts = "1s"
add = [{ disk = "db1", member = 1 }]
[[phase]]
name = "after"
lasts = "9s"
[[expect]]
what = "rebuild-time"
phase = "rebuild"
at-most = 10
source = "it ends"
[[expect]]
what = "latency-percentile"
phase = "rebuild"
against = { phase = "whole" }
at-most = 1e6
source = "there is one"
"#;

#[test]
fn a_mirror_is_rebuilt_beside_its_guest_on_real_daemons_as_in_virtual_time() {
    let scratch = scratch();
    let file = scratch.path().join("mirrored.toml");
    fs::write(&file, MIRRORED).expect("it can be written");
    let out = text(&scratch.path().join("results"));
    let on = ["--on", "engine,sim", "--out", &out, "-o", "json"];
    let run = tidegate(&[&["lab", "run", &text(&file)], &on[..]].concat());
    let found: Value = serde_json::from_str(&run.out).expect("JSON");
    assert_eq!(found["problems"], Value::Array(Vec::new()), "{}", run.err);
    for on in ["engine", "sim"] {
        let checks = found["checks"].as_array().expect("checks").iter();
        let own = checks.filter(|check| check["on"] == on);
        let failed: Vec<&Value> = own.filter(|check| check["verdict"] != "pass").collect();
        assert!(failed.is_empty(), "{failed:?}");
    }
    let page = fs::read_to_string(scratch.path().join("results/report.html")).expect("a page");
    assert!(page.contains("member 1 of db1 is added and rebuilt"));
}

/// Three disks of which each is limited in its own way: by itself, with its group, and from the second phase on.
const LIMITED: &str = r#"
name = "limited"
title = "Limits, with and without control"
source = "made up"
settling = "500ms"
[datastore]
array = { servers = 8, read = "5ms", rate = "100MiB" }
[[host]]
name = "host1"
[[group]]
name = "few"
limit = 100
[[disk]]
name = "one"
host = "host1"
limit = 100
workload = { kind = "access", outstanding = 8 }
[[disk]]
name = "two"
host = "host1"
group = "few"
workload = { kind = "access", outstanding = 8 }
[[disk]]
name = "three"
host = "host1"
workload = { kind = "access", outstanding = 8 }
[[phase]]
name = "before"
lasts = "1s"
[[phase]]
name = "after"
lasts = "3s"
set = [{ disk = "three", limit = 100 }]
"#;

#[test]
fn daemons_and_the_simulator_hold_no_disk_back_without_control() {
    let mut scenario = LIMITED.to_owned();
    for disk in ["one", "two", "three"] {
        for (policy, bar) in [("ours", "at-most = 150"), ("none", "at-least = 250")] {
            scenario += &format!(
                "[[expect]]\nwhat = \"iops\"\ndisks = [\"{disk}\"]\nphase = \"after\"\npolicy = \"{policy}\"\n\
                 {bar}\nsource = \"{policy} {disk}\"\n"
            );
        }
    }
    let scratch = scratch();
    let file = scratch.path().join("limited.toml");
    fs::write(&file, scenario).expect("it can be written");
    let (file, out) = (text(&file), text(&scratch.path().join("results")));
    let words = ["lab", "run", &file, "--on", "engine,sim", "--out", &out];
    let run = tidegate(&[&words[..], &["-o", "json"]].concat());
    let found: Value = serde_json::from_str(&run.out).expect("JSON");
    let checks = found["checks"].as_array().expect("checks");
    // How far the two places agree within a second is not what is asked here.
    let of = |on: &'static str| checks.iter().filter(move |check| check["on"] == on);
    // Six are the scenario's; that no I/O failed is seen on daemons only, that no limit was passed everywhere.
    assert_eq!((of("engine").count(), of("sim").count()), (6 + 2, 6 + 1));
    for check in of("engine").chain(of("sim")) {
        assert_eq!(check["verdict"], "pass", "{check:#}");
    }
}

#[test]
fn a_failed_check_ends_with_1_and_stands_first() {
    let scratch = scratch();
    let file = scratch.path().join("small.toml");
    let failing = format!(
        "{SMALL}\n[[expect]]\nwhat = \"iops\"\nat-least = 1000000\nsource = \"<a dream> & a half\"\n"
    );
    fs::write(&file, failing).expect("it can be written");
    let out = text(&scratch.path().join("results"));
    let run = tidegate(&["lab", "run", &text(&file), "--on", "sim", "--out", &out]);
    assert_eq!(run.status, 1);
    let lines: Vec<&str> = run.out.lines().collect();
    assert!(lines[2].starts_with("FAIL"), "{}", run.out);
    assert!(
        run.err.contains("expected at least 1,000,000 /s"),
        "{}",
        run.err
    );
    assert!(run.err.contains("report.html"), "{}", run.err);
    let page = fs::read_to_string(scratch.path().join("results/report.html")).expect("a page");
    let place = |words: &str| page.find(words).unwrap_or_else(|| panic!("no {words}"));
    assert!(place("1 FAIL") < place("<svg"));
    assert!(page.contains("&lt;a dream&gt; &amp; a half"));
    // A directory holds results of one experiment only.
    let other = tidegate(&[
        "lab", "run", "sioc-1", "--on", "sim", "--scale", "0.01", "--out", &out,
    ]);
    assert_eq!(other.status, 1);
    assert!(
        other.err.contains("name another directory"),
        "{}",
        other.err
    );
}

#[test]
fn a_missing_run_ends_with_1_in_every_verb() {
    let scratch = scratch();
    let file = scratch.path().join("small.toml");
    fs::write(&file, SMALL).expect("it can be written");
    let (file, out) = (text(&file), text(&scratch.path().join("results")));
    let go = |repeat: &str| {
        tidegate(&[
            "lab", "run", &file, "--on", "sim", "--repeat", repeat, "--out", &out,
        ])
    };
    assert_eq!(go("2").status, 0);
    let second = scratch.path().join("results/runs/sim-02-managed.json");
    fs::remove_file(&second).expect("it is there");
    for run in [tidegate(&["lab", "report", &out]), go("1")] {
        assert_eq!(run.status, 1, "{}", run.out);
        assert!(run.err.contains("1 runs are missing"), "{}", run.err);
    }
    assert_eq!(go("2").status, 0);
    assert_eq!(tidegate(&["lab", "report", &out]).status, 0);
}

#[test]
fn an_interrupted_run_leaves_whole_files_and_says_how_to_resume() {
    let scratch = scratch();
    let out = text(&scratch.path().join("results"));
    let words = [
        "lab", "run", "sioc-4", "--on", "sim", "--repeat", "99", "--out", &out,
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let (status, rest) = interrupted(command.args(words), "1/198");
    assert_eq!(status, Some(1), "{rest}");
    assert!(
        rest.contains("interrupted before all runs were made"),
        "{rest}"
    );
    assert!(rest.contains(&format!("--out {out} resumes")), "{rest}");
    for entry in fs::read_dir(scratch.path().join("results/runs")).expect("it is there") {
        let path = entry.expect("it can be listed").path();
        let whole: Result<Value, _> = serde_json::from_slice(&fs::read(&path).expect("a file"));
        assert!(whole.is_ok(), "{} is not whole", path.display());
    }
}

#[test]
fn an_interrupted_run_on_real_daemons_leaves_none() {
    let scratch = scratch();
    let file = scratch.path().join("small.toml");
    fs::write(&file, SMALL.replace("\"3s\"", "\"10min\"")).expect("it can be written");
    let (out, places) = (
        text(&scratch.path().join("results")),
        scratch.path().join("t"),
    );
    fs::create_dir(&places).expect("it can be made");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["lab", "run", &text(&file), "--out", &out]);
    let (status, rest) = interrupted(command.env("TMPDIR", &places), "1/1: real daemons");
    assert_eq!(status, Some(1), "{rest}");
    assert!(rest.contains("resumes"), "{rest}");
    assert_eq!(left(&places), 0, "daemons' roots go when they have ended");
    assert_eq!(left(&scratch.path().join("results/runs")), 0);
}

#[test]
fn nonsense_has_status_2_and_says_what_would_be_right() {
    for (words, says) in [
        (&["lab", "run", "sioc-99"][..], "see `tidegate lab list`"),
        (&["lab", "show", "sioc-99"], "see `tidegate lab list`"),
        (&["lab", "run", "sioc-1", "--scale", "2"], "from 0.01 to 1"),
        (&["lab", "run", "sioc-1", "--repeat", "0"], "--repeat"),
        (&["lab", "run", "row-11-host-death"], "--on sim"),
        (
            &["lab", "run", "filter-overhead", "--on", "sim"],
            "--on engine",
        ),
        (
            &["lab", "run", "million-iops", "--on", "engine,sim"],
            "real servers",
        ),
        (&["lab", "suite", "unpublished"], "published"),
    ] {
        let run = tidegate(words);
        assert_eq!(run.status, 2, "{words:?}: {}", run.err);
        assert!(run.err.contains(says), "{words:?}: {}", run.err);
    }
}

/// A trace as docs/filters/trace.md has it: one block of reads of 4 KiB, one each millisecond, 2 ms long.
fn trace(ios: u32) -> Vec<u8> {
    let mut head = b"TIDETRAC".to_vec();
    head.extend(1_u16.to_le_bytes());
    head.extend(40_u16.to_le_bytes());
    head.extend(ios.to_le_bytes());
    head.extend([7; 16]);
    for number in [1_u64 << 30, 0, 3] {
        head.extend(number.to_le_bytes());
    }
    let check = head.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    head.extend(check.to_le_bytes());
    for number in 0..ios {
        let at = 5_000_000_000 + u64::from(number) * 1_000_000;
        let offset = u64::from(number % 1_000) * 65_536;
        for field in [at, offset, 4_096, 2_000_000] {
            head.extend(field.to_le_bytes());
        }
        head.extend([0, 0, 0, 0xd1]);
        head.extend(number.to_le_bytes());
    }
    head
}

#[test]
fn a_trace_is_replayed_in_virtual_time_beside_what_was_recorded() {
    let scratch = scratch();
    let file = scratch.path().join("a.trace");
    fs::write(&file, trace(2_000)).expect("it can be written");
    let file = text(&file);
    let replayed = |words: &[&str]| {
        let words = [
            &["lab", "replay", &file, "--on", "sim", "-o", "json"],
            words,
        ]
        .concat();
        let run = tidegate(&words);
        assert_eq!(run.status, 0, "{}", run.err);
        serde_json::from_str::<Value>(&run.out).expect("JSON")
    };
    let number = |found: &Value, of: &str, what: &str| {
        found[of][what]
            .as_f64()
            .unwrap_or_else(|| panic!("no {of}.{what} in {found:#}"))
    };
    let ssd = replayed(&[]);
    assert_eq!(number(&ssd, "recorded", "ios"), 2_000.0);
    assert_eq!(number(&ssd, "replayed", "ios"), 2_000.0);
    assert_eq!(number(&ssd, "recorded", "latency_mean_us"), 2_000.0);
    assert_eq!(ssd["lost"], 3);
    assert!(
        number(&ssd, "replayed", "latency_mean_us") < 1_000.0,
        "{ssd:#}"
    );
    let disk = replayed(&["--array", "7k"]);
    assert!(
        number(&disk, "replayed", "latency_mean_us")
            > 10.0 * number(&ssd, "replayed", "latency_mean_us"),
        "an arm takes its time: {disk:#}"
    );
    let faster = replayed(&["--speed", "2"]);
    assert!(number(&faster, "replayed", "iops") > 1.8 * number(&ssd, "replayed", "iops"));
    let closed = replayed(&["--closed"]);
    assert!(number(&closed, "replayed", "iops") > 5.0 * number(&ssd, "replayed", "iops"));
    assert!(closed.get("speed_percent").is_none());
    let table = tidegate(&["lab", "replay", &file, "--on", "sim"]).out;
    for says in [
        "recorded",
        "replayed",
        "P99",
        "ssd, in virtual time",
        "never recorded: 3",
    ] {
        assert!(table.contains(says), "{says}: {table}");
    }
}

#[test]
fn the_scenario_of_a_replay_is_run_as_any_other() {
    let scratch = scratch();
    let (file, scenario) = (
        scratch.path().join("a.trace"),
        scratch.path().join("a.toml"),
    );
    fs::write(&file, trace(3_000)).expect("it can be written");
    let printed = tidegate(&[
        "lab",
        "replay",
        &text(&file),
        "--scenario",
        "--array",
        "nvme",
    ]);
    assert_eq!(printed.status, 0, "{}", printed.err);
    let expect =
        "\n[[expect]]\nwhat = \"iops\"\nat-least = 900\nsource = \"a thousand a second\"\n";
    fs::write(&scenario, printed.out + expect).expect("it can be written");
    let shown = tidegate(&["lab", "show", &text(&scenario)]).out;
    assert!(shown.contains("3000 traced I/Os"), "{shown}");
    let out = text(&scratch.path().join("results"));
    let run = tidegate(&["lab", "run", &text(&scenario), "--on", "sim", "--out", &out]);
    assert_eq!(run.status, 0, "{}{}", run.out, run.err);
    fs::remove_file(&file).expect("it is there");
    let gone = tidegate(&["lab", "show", &text(&scenario)]);
    assert_eq!(gone.status, 1);
    assert!(
        gone.err.contains("a.trace: it cannot be read"),
        "{}",
        gone.err
    );
}

#[test]
fn what_is_no_whole_trace_is_refused_with_its_place() {
    let scratch = scratch();
    let file = scratch.path().join("a.trace");
    let whole = trace(10);
    let mut damaged = whole.clone();
    damaged[64 + 40 + 35] = 0;
    for (bytes, says) in [
        (
            &whole[..whole.len() - 7],
            "the trace is cut off at byte 424",
        ),
        (&damaged[..], "the record at byte 104 is damaged"),
        (
            &b"name = \"sioc-1\"\n"[..],
            "byte 0 does not begin a block of a trace: is it another file?",
        ),
        (&[][..], "it has no I/O"),
    ] {
        fs::write(&file, bytes).expect("it can be written");
        let run = tidegate(&["lab", "replay", &text(&file), "--on", "sim"]);
        assert_eq!(run.status, 1, "{says}");
        assert!(run.err.contains(says), "{}", run.err);
        assert!(run.err.contains("tidegate lab record"), "{}", run.err);
    }
    let absent = tidegate(&["lab", "replay", "/nowhere/a.trace", "--on", "sim"]);
    assert!(absent.err.contains("No such file"), "{}", absent.err);
}

/// Four shops of two hosts before an array of some five hundred I/Os a second; of the last shop's shares. Each has so many
/// users that it wants more than its part also where that is large: what is judged is the parts, not the users' pauses.
fn shops(shares: u32) -> String {
    format!(
        r#"
name = "shops"
title = "Four shops, one of them with other shares"
lasts = "20s"
settling = "6s"
[datastore]
array = {{ servers = 8, read = "16ms", rate = "150MiB" }}
threshold = "40ms"
kind = "rotational"
[[host]]
name = "host1"
[[host]]
name = "host2"
[[disk]]
name = "vm1"
host = "host1"
workload = {{ kind = "shop", users = 36, think = "400ms", depth = 32 }}
[[disk]]
name = "vm2"
host = "host1"
workload = {{ kind = "shop", users = 36, think = "400ms", depth = 32 }}
[[disk]]
name = "vm3"
host = "host2"
workload = {{ kind = "shop", users = 36, think = "400ms", depth = 32 }}
[[disk]]
name = "vm4"
host = "host2"
shares = {shares}
workload = {{ kind = "shop", users = 36, think = "400ms", depth = 32 }}
[[expect]]
what = "iops"
at-least = 1
source = "it works at all"
"#
    )
}

/// Runs the shops on real daemons, and stores the results.
fn run_shops(place: &Path, shares: u32) {
    let file = place.join(format!("shops-{shares}.toml"));
    fs::write(&file, shops(shares)).expect("it can be written");
    let out = text(&place.join(format!("shops-{shares}")));
    let run = tidegate(&["lab", "run", &text(&file), "--on", "engine", "--out", &out]);
    assert_eq!(run.status, 0, "{}{}", run.out, run.err);
}

// The longest: tests begin in the order of their names, and nothing is to wait for this one in the end.
#[test]
fn a_change_foretold_by_what_if_is_what_real_daemons_then_do() {
    let scratch = scratch();
    let place = scratch.path();
    // At once: both meet the same machine.
    std::thread::scope(|scope| {
        scope.spawn(|| run_shops(place, 1_000));
        scope.spawn(|| run_shops(place, 4_000));
    });
    let asked = |from: &str, set: &str| {
        let from = text(&place.join(from));
        let run = tidegate(&[
            "lab", "what-if", "--from", &from, "--set", set, "-o", "json",
        ]);
        assert_eq!(run.status, 0, "{}", run.err);
        serde_json::from_str::<Value>(&run.out).expect("JSON")
    };
    let parts = |found: &Value, which: &str| {
        let disks = found["disks"].as_array().expect("disks").iter();
        let iops = disks.map(|disk| disk[which]["iops"].as_f64().expect("a number"));
        let iops: Vec<f64> = iops.collect();
        let all: f64 = iops.iter().sum();
        iops.iter().map(|iops| iops / all).collect::<Vec<f64>>()
    };
    let foretold = asked("shops-1000", "vm4.shares=4000");
    let then = asked("shops-4000", "vm4.shares=4000");
    let (before, said, did) = (
        parts(&foretold, "measured"),
        parts(&foretold, "changed"),
        parts(&then, "measured"),
    );
    println!("before {before:?}\nforetold {said:?}\nthen {did:?}");
    println!("{}", foretold["agreement"]["says"]);
    assert!(did[3] > 1.4 * before[3], "the change is one that is seen");
    for (disk, (said, did)) in said.iter().zip(&did).enumerate() {
        let off = said / did - 1.0;
        assert!(
            off.abs() <= 0.1,
            "vm{}: {:+.1} % off",
            disk + 1,
            off * 100.0
        );
    }
}

#[test]
fn what_if_says_what_it_cannot_go_by() {
    let scratch = scratch();
    let place = text(scratch.path());
    for (words, status, says) in [
        (
            &["--from", &place, "--set", "vm4.shares=4000"][..],
            1,
            "no results of `lab run`",
        ),
        (&["--from", &place, "--set", "vm4.speed=1"], 2, "no `speed`"),
        (&["--from", &place], 2, "--set"),
        (&["--set", "vm4.shares=4000"], 2, "<DATASTORE|--from <DIR>>"),
        (
            &["fast", "--from", &place, "--set", "vm4.shares=1"],
            2,
            "cannot be used with",
        ),
    ] {
        let run = tidegate(&[&["lab", "what-if"], words].concat());
        assert_eq!(run.status, status, "{words:?}: {}", run.err);
        assert!(run.err.contains(says), "{words:?}: {}", run.err);
    }
}

#[test]
fn results_that_what_if_was_given_for_a_datastore_are_to_be_named_by_from() {
    let scratch = scratch();
    let out = text(&scratch.path().join("results"));
    let run = tidegate(&[
        "lab",
        "run",
        "row-01-local-fairness",
        "--on",
        "sim",
        "--out",
        &out,
    ]);
    assert_eq!(run.status, 0, "{}{}", run.out, run.err);
    for place in ["results", &out] {
        let run = finished(
            Command::new(env!("CARGO_BIN_EXE_tidegate"))
                .args(["lab", "what-if", place, "--set", "vm1.shares=4000"])
                .args(["--root", &text(&scratch.path().join("root"))])
                .current_dir(scratch.path()),
        );
        assert_eq!(run.status, 2, "{place}: {}", run.err);
        let remedy = format!("--from {place}");
        assert!(run.err.contains(&remedy), "{place}: {}", run.err);
    }
}

#[test]
fn experiments_are_listed_the_published_ones_first() {
    let names = tidegate(&["lab", "list", "-o", "name"]).out;
    let names: Vec<&str> = names.lines().collect();
    assert_eq!(
        names[..8],
        [
            "sioc-1",
            "sioc-2",
            "sioc-3",
            "sioc-4",
            "sioc-ssd",
            "flash-cache",
            "vsan-scaling",
            "pools"
        ]
    );
    assert!(names.contains(&"row-04-reservation"));
    assert_eq!(
        names[8..13],
        [
            "io-threads",
            "dense-mode",
            "filter-overhead",
            "million-iops",
            "compare-scenarios"
        ]
    );
    let published = tidegate(&["lab", "list", "--published", "-o", "name"]).out;
    assert_eq!(published.lines().count(), 13);
    let shown = tidegate(&["lab", "show", "sioc-3"]).out;
    for says in [
        "phases of 300 s",
        "36 users",
        "2000",
        "12ms",
        "0.64 to 0.69",
    ] {
        assert!(shown.contains(says), "{says}: {shown}");
    }
}
