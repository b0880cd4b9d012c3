//! `tidegate lab record` and `replay` of disks that clients work on.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::{PATIENCE, Service, find, nbdsh_on};
use crate::support::server::TIDEGATE;

/// What the known load asks for.
const READS: u64 = 1_000;
const WRITES: u64 = 300;

/// A disk of so many MiB, attached.
fn disk(daemon: &Daemon, name: &str, mib: u32) -> String {
    let size = format!("{mib}M");
    daemon.run(&["disk", "create", name, "--size", &size, "--attach"]);
    daemon.nbd_uri(name)
}

/// Reads and writes blocks of a disk, with 16 outstanding, and flushes.
fn work(uri: &str) {
    let script = format!(
        "
import nbd
def ask(begin):
    while h.aio_in_flight() >= 16:
        h.poll(-1)
    begin()
def done(error):
    assert error.value == 0
    return 1
for block in range({READS}):
    ask(lambda: h.aio_pread(nbd.Buffer(4096), block * 4096, completion=done))
data = nbd.Buffer.from_bytearray(bytearray(b'x' * 8192))
for block in range({WRITES}):
    ask(lambda: h.aio_pwrite(data, block * 8192, completion=done))
while h.aio_in_flight() > 0:
    h.poll(-1)
h.flush()
"
    );
    nbdsh_on(uri, &script);
}

/// A client that is connected to a disk and asks for nothing.
fn connected(uri: &str) -> Service {
    let script = "import time\nprint('it is there', flush=True)\ntime.sleep(600)";
    let words = ["-u", uri, "-c", script].map(str::to_owned);
    let path = ("PATH", "/usr/bin:/bin".to_owned());
    let client = Service::start("nbdsh", find("nbdsh").as_os_str(), &words, &[path]);
    let there = |said: &str| said.contains("it is there").then_some(());
    client.said.wait("its connection", 0, PATIENCE, there);
    client
}

/// `tidegate lab record` at work.
fn recorder(place: &Place, file: &Path) -> Service {
    let words = ["lab", "record", "web1", "--for", "10min", "-o", "json"];
    let mut words: Vec<String> = words.map(str::to_owned).into();
    words.push(file.display().to_string());
    let root = place.join("root").display().to_string();
    let recorder = Service::start(
        "tidegate lab record",
        TIDEGATE.as_ref(),
        &words,
        &[("TIDEGATE_ROOT", root)],
    );
    let begun = |said: &str| said.contains("recording disk web1").then_some(());
    recorder.said.wait("its beginning", 0, PATIENCE, begun);
    recorder
}

/// The JSON that stands in what somebody said.
fn json(said: &str) -> Value {
    let begins = said
        .find("\n{")
        .unwrap_or_else(|| panic!("no JSON in:\n{said}"));
    let mut values = serde_json::Deserializer::from_str(&said[begins..]).into_iter();
    let first = values.next().expect("there is one");
    first.unwrap_or_else(|error| panic!("{error}:\n{said}"))
}

fn filters(daemon: &Daemon, disk: &str) -> String {
    let said = daemon.run(&["disk", "show", disk, "-o", "json"]);
    let shown: Value = serde_json::from_str(&said).expect("JSON");
    shown["filters"].to_string()
}

/// How many I/Os of a kind a disk has answered.
fn answered(daemon: &Daemon, disk: &str, kind: &str) -> u64 {
    let said = daemon
        .rest()
        .ask("GET", &format!("/v1/disks/{disk}/stats"), "");
    let stats: Value = serde_json::from_str(&said).expect("JSON");
    let ops = stats["ops"].as_array().expect("a list");
    let of = ops.iter().find(|op| op["op"] == kind);
    of.map_or(0, |op| op["ops_total"].as_u64().expect("a number"))
}

/// What `tidegate ARGS` complains of, which must fail.
fn refused(daemon: &Daemon, words: &[&str]) -> String {
    let output = daemon.attempt(words);
    assert!(!output.status.success(), "{words:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_recording_has_exactly_the_ios_of_a_known_load_and_a_replay_does_them_again() {
    let place = Place::new();
    let daemon = Daemon::start(&place);
    let uri = disk(&daemon, "web1", 64);
    let dir = place.join("traces");
    fs::create_dir(&dir).expect("a directory can be made");
    let file = dir.join("web1.trace");
    let mut recorder = recorder(&place, &file);
    let traced = filters(&daemon, "web1");
    assert!(
        traced.starts_with("[\"trace:path="),
        "it is on top: {traced}"
    );
    let name = file.display().to_string();
    let second = refused(&daemon, &["lab", "record", "web1", &format!("{name}2")]);
    assert!(second.contains("a trace filter already"), "{second}");
    work(&uri);
    assert!(recorder.stop("INT").success(), "an interruption is an end");
    let told = json(&recorder.said.text());
    let count = |of: &Value, what: &str| of[what].as_u64().unwrap_or(u64::MAX);
    assert_eq!(count(&told["recorded"], "reads"), READS, "{told:#}");
    assert_eq!(count(&told["recorded"], "writes"), WRITES, "{told:#}");
    assert_eq!(count(&told["recorded"], "others"), 1, "{told:#}");
    assert_eq!(count(&told, "lost"), 0);
    assert_eq!(told["ended"], "interrupted");
    assert_eq!(filters(&daemon, "web1"), "[\"stats\"]");
    assert_eq!(
        fs::read_dir(&dir).expect("it is there").count(),
        1,
        "the file alone"
    );
    let size = fs::metadata(&file).expect("it is there").len();
    assert_eq!(count(&told, "size_bytes"), size);

    // Another disk is asked for the same; without being told so, for nothing that changes it.
    disk(&daemon, "web2", 64);
    let replay = |words: &[&str]| {
        let words = [
            &["lab", "replay", &name, "--disk", "web2", "-o", "json"],
            words,
        ]
        .concat();
        serde_json::from_str::<Value>(&daemon.run(&words)).expect("JSON")
    };
    let read = replay(&["--closed"]);
    assert_eq!(count(&read["replayed"], "ios"), READS + 1, "{read:#}");
    assert_eq!(count(&read["left_out"], "writes"), WRITES);
    assert_eq!(answered(&daemon, "web2", "read"), READS);
    assert_eq!(answered(&daemon, "web2", "write"), 0);
    let written = replay(&["--writes", "--yes", "--speed", "10"]);
    assert_eq!(
        count(&written["replayed"], "ios"),
        READS + WRITES + 1,
        "{written:#}"
    );
    assert_eq!(answered(&daemon, "web2", "read"), 2 * READS);
    assert_eq!(answered(&daemon, "web2", "write"), WRITES);
    assert_eq!(answered(&daemon, "web2", "flush"), 2);
    for figure in ["reads", "writes", "bytes"] {
        assert_eq!(written["recorded"][figure], written["replayed"][figure]);
    }

    // What cannot be, is not begun.
    let unasked = refused(
        &daemon,
        &["lab", "replay", &name, "--disk", "web2", "--writes"],
    );
    assert!(unasked.contains("its data will be lost"), "{unasked}");
    let mut other = connected(&daemon.nbd_uri("web2"));
    let taken = [
        "lab", "replay", &name, "--disk", "web2", "--writes", "--yes",
    ];
    let taken = refused(&daemon, &taken);
    assert!(taken.contains("another client is connected"), "{taken}");
    other.kill();
    disk(&daemon, "web3", 1);
    let small = refused(&daemon, &["lab", "replay", &name, "--disk", "web3"]);
    assert!(small.contains("smaller than the trace"), "{small}");
    assert_eq!(answered(&daemon, "web3", "read"), 0);
    let there = refused(&daemon, &["lab", "record", "web1", &name]);
    assert!(
        there.contains("exists already") && there.contains("--force"),
        "{there}"
    );
    daemon.run(&["disk", "detach", "web3"]);
    let detached = refused(&daemon, &["lab", "record", "web3", &format!("{name}3")]);
    assert!(detached.contains("tidegate disk attach web3"), "{detached}");
    assert!(daemon.stop("TERM").success());
}

#[test]
fn a_disk_without_io_leaves_no_file_and_one_that_is_detached_ends_its_recording() {
    let place = Place::new();
    let mut daemon = Daemon::start(&place);
    let uri = disk(&daemon, "web1", 64);
    let dir = place.join("traces");
    fs::create_dir(&dir).expect("a directory can be made");
    let file = dir.join("web1.trace");
    let name = file.display().to_string();
    let idle = refused(&daemon, &["lab", "record", "web1", &name, "--for", "200ms"]);
    assert!(idle.contains("had no I/O"), "{idle}");
    assert_eq!(fs::read_dir(&dir).expect("it is there").count(), 0);
    assert_eq!(filters(&daemon, "web1"), "[\"stats\"]");

    let mut first = recorder(&place, &file);
    work(&uri);
    daemon.run(&["disk", "detach", "web1"]);
    assert!(first.end().success());
    let told = json(&first.said.text());
    assert_eq!(told["ended"], "detached", "{told:#}");
    assert_eq!(told["recorded"]["reads"], READS, "{told:#}");
    assert_eq!(filters(&daemon, "web1"), "[\"stats\"]");
    daemon.run(&["disk", "attach", "web1"]);

    // A daemon that dies takes what it had not written with it, and nothing else.
    let again = dir.join("again.trace");
    let mut second = recorder(&place, &again);
    daemon.crash_and_restart();
    work(&daemon.nbd_uri("web1"));
    assert!(second.stop("INT").success());
    let told = json(&second.said.text());
    assert_eq!(told["recorded"]["reads"], READS, "{told:#}");
    assert_eq!(filters(&daemon, "web1"), "[\"stats\"]");

    // Where the daemon's file cannot be, nothing changes.
    let nowhere = place.join("nowhere/web1.trace").display().to_string();
    let failed = refused(&daemon, &["lab", "record", "web1", &nowhere]);
    assert!(failed.contains("cannot make a directory"), "{failed}");
    assert_eq!(filters(&daemon, "web1"), "[\"stats\"]");
    assert!(daemon.stop("TERM").success());
}
