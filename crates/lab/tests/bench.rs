//! The bench as a program: it measures peers, writes JSON, and does not pass what it could not measure.
//!
//! Trials are as short as they can be; no figure is judged here. Needs fio, nbdkit and valgrind.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;
use tidegate_lab::measure::test_file;
use tidegate_testing::callgrind;
use tidegate_testing::fio::{Running, random_reads_of};
use tidegate_testing::peers;
use tidegate_testing::vhost::Wait;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tidegate-bench");

fn bench(words: &[&str]) -> Output {
    command(words).output().expect("the bench starts")
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(["data-path", "--only", "filters"])
        .args(["--trials", "1", "--seconds", "0.05"])
        .args(["--max-noise", "100000"])
        .args(["--tidegate", "/nowhere/tidegate"])
        .args(words);
    command
}

#[test]
fn peers_are_measured_while_there_is_no_tidegate() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let json = dir.path().join("report.json");
    let output = bench(&["--no-check", "--json", json.to_str().expect("a plain path")]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = std::fs::read_to_string(&json).expect("the report was written");
    let report: Value = serde_json::from_str(&text).expect("the report is JSON");
    let series = report["series"].as_array().expect("a list of series");
    assert_eq!(series.len(), 3, "nbdkit with none, one and three filters");
    for series in series {
        let trial = &series["trials"][0];
        assert!(trial["iops"].as_f64().expect("a number") > 0.0);
        assert!(trial["cpu_percent_per_kiops"].as_f64().expect("a number") > 0.0);
        assert!(trial["resident_bytes"].as_u64().expect("a number") > 0);
    }
    assert!(String::from_utf8_lossy(&output.stdout).contains("nbdkit, 3 filters"));
}

#[test]
fn what_could_not_be_measured_fails_the_bench() {
    let output = bench(&[]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("discarded") && text.contains("does not exist"),
        "{text}"
    );
}

/// fio as it alternates with a server: what it does while it is halted, and what it has done once it goes on.
#[test]
fn fio_works_only_while_it_may() {
    // On a disk, where the directory of temporary files may be in memory.
    let file = test_file(Path::new(env!("CARGO_TARGET_TMPDIR")), 16).expect("a file");
    let fio = Running::start(&random_reads_of(file.path(), 4), 0).expect("fio starts");
    let requests = || fio.requests().expect("fio is there");
    let halted = requests();
    assert!(halted >= 4, "it had begun");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(requests(), halted);
    fio.go_on().expect("fio is there");
    let begun = Instant::now();
    while requests() < halted + 100 {
        assert!(begun.elapsed() < Duration::from_secs(20), "it goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_interrupted_bench_leaves_no_server_and_no_file_behind() {
    interrupted(|bench| kill(bench, Signal::SIGTERM));
}

#[test]
fn a_bench_whose_servers_are_interrupted_with_it_says_why_it_ends() {
    interrupted(|bench| killpg(bench, Signal::SIGINT));
}

/// Starts a bench in a process group of its own, interrupts it once it has started a server, and looks at how it ends.
fn interrupted(interrupt: impl Fn(Pid) -> nix::Result<()>) {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let bench = command(&[])
        .env("TMPDIR", scratch.path())
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the bench starts");
    let pid = bench.id();
    let patience = Instant::now() + Duration::from_secs(60);
    let servers = loop {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let children = std::fs::read_to_string(path).expect("it runs");
        if !children.trim().is_empty() {
            break children;
        }
        assert!(Instant::now() < patience, "it starts a server");
        std::thread::sleep(Duration::from_millis(1));
    };
    let pid = Pid::from_raw(i32::try_from(pid).expect("small"));
    interrupt(pid).expect("it runs");
    let output = bench.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("interrupted"), "{said}");
    for server in servers.split_whitespace() {
        assert!(
            !Path::new("/proc").join(server).exists(),
            "{server} runs on"
        );
    }
    let left = std::fs::read_dir(scratch.path()).expect("it is there");
    assert_eq!(left.count(), 0);
}

#[test]
fn one_core_for_both_sides_is_refused() {
    let output = bench(&["--server-cpu", "1", "--client-cpu", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("need a core each"));
}

#[test]
fn instructions_are_counted_per_request() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let socket = scratch.path().join("counted.sock");
    let launch = peers::bare(Path::new(PROGRAM), &socket, Wait::Sleep, 0);
    let count = callgrind::per_request(scratch.path(), &launch).expect("callgrind counts");
    assert!(
        (50.0..50_000.0).contains(&count),
        "{count} instructions for a request of the bare loop"
    );
}
