//! I/O control as an administrator meets it: limits, groups, what is set and shown, and hosts that share a datastore.
//!
//! Limits are judged by counts: over the time that a client measured, no more was served than is allowed. How fast the
//! machine is does not matter to that. What takes effect a moment later is waited for by asking again.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::{PATIENCE, Program};

/// Reads from each of the exports in turn, one request after the other; how long all took.
fn read(uris: &[String], reads: u64, bytes: u64) -> Duration {
    const SCRIPT: &str = "
import os, time, nbd
disks = []
for uri in os.environ['URIS'].split():
    disk = nbd.NBD()
    disk.connect_uri(uri)
    disks.append(disk)
reads, length = int(os.environ['READS']), int(os.environ['LENGTH'])
begun = time.monotonic_ns()
for n in range(reads):
    disks[n % len(disks)].pread(length, 0)
print(time.monotonic_ns() - begun)
";
    let took = Program::new("nbdsh")
        // Debian's nbdsh with Debian's Python.
        .env("PATH", "/usr/bin:/bin")
        .env("URIS", uris.join(" "))
        .env("READS", reads.to_string())
        .env("LENGTH", bytes.to_string())
        .args(["-c", SCRIPT])
        .run();
    Duration::from_nanos(took.trim().parse().expect("the script prints a number"))
}

/// Fails the test if `units` were more than a limit and its burst allow in that time.
fn within(units: u64, took: Duration, limit: u64, burst: u64) {
    let allowed = u128::from(limit) * took.as_nanos() / 1_000_000_000 + u128::from(burst) + 1;
    assert!(
        u128::from(units) <= allowed,
        "{units} units in {took:?}, where {limit} a second and {burst} more are allowed: {allowed}"
    );
}

fn json(daemon: &Daemon, words: &[&str]) -> Value {
    let words: Vec<&str> = words.iter().copied().chain(["-o", "json"]).collect();
    serde_json::from_str(&daemon.run(&words)).expect("-o json is JSON")
}

/// Asks until the answer is as it should be.
fn wait(daemon: &Daemon, words: &[&str], is: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let answer = json(daemon, words);
        if is(&answer) {
            return answer;
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "tidegate {words:?} goes on to answer {answer:#}"
        );
    }
}

/// The share of a disk in what `datastore show` tells.
fn share<'a>(shown: &'a Value, disk: &str) -> Option<&'a Value> {
    let shares = shown["control"]["shares"].as_array()?;
    shares.iter().find(|share| share["disk"] == disk)
}

/// A daemon with a datastore that is as fast as the machine.
fn with_null_datastore(place: &Place) -> Daemon {
    let daemon = Daemon::start(place);
    daemon.run(&["datastore", "add", "none", "--kind", "null"]);
    daemon
}

fn create(daemon: &Daemon, disk: &str, datastore: &str, words: &[&str]) {
    let mut all = vec![
        "disk", "create", disk, "-d", datastore, "--size", "16M", "--attach",
    ];
    all.extend(words);
    daemon.run(&all);
}

/// Two daemons on one directory, as two hosts that mount the same.
fn two_hosts(place: &Place) -> (Daemon, Daemon) {
    let shared = place.join("shared");
    fs::create_dir(&shared).expect("a directory can be made");
    let shared = shared.display().to_string();
    let [one, other] = ["one", "other"].map(|root| Daemon::start_with(place, root, &[]));
    for daemon in [&one, &other] {
        daemon.run(&["datastore", "add", "shared", "--path", &shared]);
    }
    (one, other)
}

fn owners(place: &Place) -> usize {
    let owners = fs::read_dir(place.join("shared/.tidegate/owners"));
    owners.map_or(0, |owners| owners.count())
}

/// Waits until so many hosts have a slot.
fn wait_for_owners(place: &Place, many: usize) {
    let begun = Instant::now();
    while owners(place) != many {
        assert!(
            begun.elapsed() < PATIENCE,
            "{} hosts have a slot, not {many}",
            owners(place)
        );
        std::thread::yield_now();
    }
}

#[test]
fn a_limit_its_burst_and_large_requests_are_counted_to_the_last() {
    let place = Place::new();
    let daemon = with_null_datastore(&place);
    create(
        &daemon,
        "d",
        "none",
        &[
            "--limit",
            "400",
            "--burst-iops",
            "1200",
            "--burst-seconds",
            "1",
        ],
    );
    let uri = [daemon.nbd_uri("d")];
    within(1_500, read(&uri, 1_500, 512), 400, 800);
    // What is set on an attached disk holds from the next request on, and 64 KiB are two units of 32 KiB.
    daemon.run(&["disk", "set", "d", "--limit", "200", "--burst-iops", "none"]);
    within(2 * 300, read(&uri, 300, 64 << 10), 200, 200 / 100);
    daemon.run(&["datastore", "set", "none", "--io-unit", "64KiB"]);
    let took = read(&uri, 300, 64 << 10);
    within(300, took, 200, 200 / 100);
    daemon.run(&[
        "disk",
        "set",
        "d",
        "--limit",
        "unlimited",
        "--limit-bw",
        "1MiB/s",
    ]);
    let bytes = 512 * 4096;
    within(
        bytes,
        read(&uri, 512, 4096),
        1 << 20,
        (1 << 20) / 100 + 4096,
    );
}

#[test]
fn a_groups_limit_holds_over_all_its_disks() {
    let place = Place::new();
    let daemon = with_null_datastore(&place);
    daemon.run(&["group", "set", "shop", "--limit", "300iops"]);
    create(&daemon, "a", "none", &["--group", "shop"]);
    create(&daemon, "b", "none", &["--group", "shop"]);
    let uris = [daemon.nbd_uri("a"), daemon.nbd_uri("b")];
    within(600, read(&uris, 600, 512), 300, 300 / 100);

    let refused = daemon.attempt(&["group", "remove", "shop"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let shown = json(&daemon, &["group", "show", "shop"]);
    assert_eq!(shown["disks"], serde_json::json!(["a", "b"]), "{shown}");
    for disk in ["a", "b"] {
        daemon.run(&["disk", "set", disk, "--group", "none"]);
    }
    daemon.run(&["group", "remove", "shop"]);
}

#[test]
fn a_policy_and_a_group_survive_a_restart() {
    let place = Place::new();
    let daemon = with_null_datastore(&place);
    daemon.run(&["group", "set", "shop", "--limit", "100iops"]);
    let policy = [
        "--shares",
        "high",
        "--reservation",
        "50",
        "--limit",
        "5000",
        "--burst-iops",
        "15000",
        "--burst-seconds",
        "10",
        "--limit-bw",
        "200MiB/s",
        "--latency-target",
        "5ms",
        "--group",
        "shop",
    ];
    create(&daemon, "d", "none", &policy);
    let before = json(&daemon, &["disk", "show", "d"])["policy"].clone();
    assert_eq!(before["burst_iops"], 15_000, "{before}");
    assert_eq!(before["latency_target_us"], 5_000, "{before}");
    daemon.run(&["datastore", "set", "none", "--congestion-threshold", "12ms"]);
    assert!(daemon.stop("TERM").success());

    let daemon = Daemon::start(&place);
    let after = json(&daemon, &["disk", "show", "d"]);
    assert_eq!(after["policy"], before);
    let shown = json(&daemon, &["datastore", "show", "none"]);
    assert_eq!(shown["control"]["congestion_threshold"], "12ms", "{shown}");
    within(300, read(&[daemon.nbd_uri("d")], 300, 512), 100, 100 / 100);
}

#[test]
fn who_observes_holds_nobody_back_and_off_leaves_limits() {
    let place = Place::new();
    let daemon = with_null_datastore(&place);
    daemon.run(&["datastore", "set", "none", "--io-control", "observe"]);
    create(&daemon, "d", "none", &["--limit", "10iops"]);
    let uri = [daemon.nbd_uri("d")];
    // Held to its limit this would take five times longer than the test may.
    let reads = 10 * 5 * PATIENCE.as_secs();
    read(&uri, reads, 512);
    daemon.run(&["datastore", "set", "none", "--io-control", "off"]);
    daemon.run(&["disk", "set", "d", "--limit", "200iops"]);
    within(400, read(&uri, 400, 512), 200, 200 / 100);
}

#[test]
fn hosts_that_share_a_directory_see_each_other_and_each_others_disks() {
    let place = Place::new();
    let (one, other) = two_hosts(&place);
    create(&one, "a", "shared", &["--shares", "low"]);
    create(&other, "b", "shared", &["--shares", "high"]);
    for daemon in [&one, &other] {
        let shown = wait(daemon, &["datastore", "show", "shared"], |shown| {
            let hosts = shown["control"]["hosts"].as_array();
            hosts.is_some_and(|hosts| hosts.len() == 2)
                && share(shown, "a").is_some()
                && share(shown, "b").is_some()
        });
        let shares = |disk| share(&shown, disk).expect("it is there")["shares"].clone();
        assert_eq!(
            (shares("a"), shares("b")),
            (500.into(), 2_000.into()),
            "{shown}"
        );
        assert_eq!(shown["control"]["hosts"][0]["here"], true, "{shown}");
        let table = daemon.run(&["datastore", "show", "shared"]);
        assert!(
            table.contains("SHARES") && table.contains("hosts meet in"),
            "{table}"
        );
    }
    // Who leaves is gone at once, and takes its slot along.
    wait_for_owners(&place, 2);
    assert!(other.stop("TERM").success());
    wait_for_owners(&place, 1);
    wait(&one, &["datastore", "show", "shared"], |shown| {
        let hosts = shown["control"]["hosts"].as_array();
        hosts.is_some_and(|hosts| hosts.len() == 1)
    });
}

#[test]
fn what_is_set_on_one_host_holds_on_the_other() {
    let place = Place::new();
    let (one, other) = two_hosts(&place);
    create(&one, "a", "shared", &[]);
    create(&other, "b", "shared", &[]);
    one.run(&[
        "datastore",
        "set",
        "shared",
        "--congestion-threshold",
        "12ms",
    ]);
    let show = ["datastore", "show", "shared"];
    wait(&other, &show, |shown| {
        shown["control"]["congestion_threshold"] == "12ms"
    });
    // The second change keeps the first, on whichever host it is made, with and without a disk attached there.
    other.run(&["datastore", "set", "shared", "--io-unit", "16KiB"]);
    wait(&one, &show, |shown| {
        shown["control"]["congestion_threshold"] == "12ms"
            && shown["control"]["io_unit_bytes"] == 16 << 10
    });
    one.run(&["disk", "detach", "a"]);
    one.run(&["datastore", "set", "shared", "--io-control", "observe"]);
    wait(&other, &show, |shown| {
        shown["control"]["mode"] == "observe"
            && shown["control"]["congestion_threshold"] == "12ms"
            && shown["control"]["io_unit_bytes"] == 16 << 10
    });
    one.run(&["datastore", "set", "shared", "--io-control", "on"]);
    wait(&other, &show, |shown| shown["control"]["mode"] == "on");

    // A disk's policy lies with the disk: the host that serves it takes up what another one was told.
    one.run(&["disk", "set", "b", "--limit", "200iops"]);
    wait(&other, &show, |shown| {
        share(shown, "b").is_some_and(|share| share["limit_iops"] == 200)
    });
    within(400, read(&[other.nbd_uri("b")], 400, 512), 200, 200 / 100);
}

#[test]
fn control_that_is_off_leaves_no_slot_and_comes_back() {
    let place = Place::new();
    let (one, other) = two_hosts(&place);
    create(&one, "a", "shared", &[]);
    create(&other, "b", "shared", &[]);
    wait_for_owners(&place, 2);
    one.run(&["datastore", "set", "shared", "--io-control", "off"]);
    wait_for_owners(&place, 0);
    let shown = json(&one, &["datastore", "show", "shared"]);
    assert_eq!(shown["control"]["slot"], Value::Null, "{shown}");
    other.run(&["datastore", "set", "shared", "--io-control", "on"]);
    wait_for_owners(&place, 2);
}

#[test]
fn hosts_without_a_common_datastore_directory_meet_where_they_are_told_to() {
    let place = Place::new();
    let meeting = place.join("shared");
    fs::create_dir(&meeting).expect("a directory can be made");
    let meet = |daemon: &Daemon, disk: &str, path: &Path| {
        daemon.run(&["datastore", "add", "far", "--kind", "null"]);
        let path = path.display().to_string();
        daemon.run(&["datastore", "set", "far", "--coordination", &path]);
        create(daemon, disk, "far", &[]);
    };
    let [one, other] = ["one", "other"].map(|root| Daemon::start_with(&place, root, &[]));
    meet(&one, "a", &meeting);
    meet(&other, "b", &meeting);
    wait(&one, &["datastore", "show", "far"], |shown| {
        let hosts = shown["control"]["hosts"].as_array();
        hosts.is_some_and(|hosts| hosts.len() == 2)
    });
    let refused = one.attempt(&["datastore", "set", "far", "--no-coordination"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let refused = one.attempt(&["datastore", "set", "local", "--coordination", "/tmp"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
}

#[test]
fn a_reservation_that_cannot_be_promised_is_refused_unless_it_need_not_be() {
    let place = Place::new();
    let daemon = Daemon::start(&place);
    daemon.run(&[
        "datastore",
        "add",
        "array",
        "--kind",
        "emulated",
        "--model",
        "fifo",
    ]);
    create(&daemon, "busy", "array", &[]);
    create(&daemon, "new", "array", &[]);
    let uri = daemon.nbd_uri("busy");
    let load = std::thread::spawn(move || {
        Program::new("fio")
            .args(["--name=load", "--ioengine=nbd", "--rw=randread", "--bs=4k"])
            .args(["--iodepth=64", "--time_based", "--runtime=60", "--size=16M"])
            .arg(format!("--uri={uri}"))
            .output()
    });
    let reserve = |more: &[&str]| {
        let words = ["disk", "set", "new", "--reservation", "1000000"];
        daemon.attempt(&[&words, more].concat())
    };
    // As long as nobody has seen what the array can do, nobody can say that it cannot.
    let said = loop {
        let answer = reserve(&[]);
        if !answer.status.success() {
            break String::from_utf8_lossy(&answer.stderr).into_owned();
        }
        daemon.run(&["disk", "set", "new", "--reservation", "0"]);
        assert!(!load.is_finished(), "it was never refused");
    };
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in ["cannot be promised", "may be promised", "--best-effort"] {
        assert!(said.contains(words), "no `{words}` in: {said}");
    }
    assert!(reserve(&["--best-effort"]).status.success());
    let shown = json(&daemon, &["disk", "show", "new"]);
    assert_eq!(shown["admission"]["promise"], "best-effort", "{shown}");
    // Attached anew it goes on as far as it goes.
    daemon.run(&["disk", "detach", "new", "--yes"]);
    daemon.run(&["disk", "attach", "new"]);
    let shown = json(&daemon, &["disk", "show", "new"]);
    assert_eq!(shown["admission"]["promise"], "best-effort", "{shown}");
    let table = daemon.run(&["disk", "show", "new"]);
    assert!(table.contains("best effort only"), "{table}");
    // With its server the load ends too, content or not.
    drop(daemon);
    load.join().expect("fio ends");
}
