//! The cost of an idle daemon, and what it still notices at once.

use std::time::{Duration, Instant};

use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::{PATIENCE, nbdsh_on};
use crate::support::transcript::Transcript;

/// How often slots are read and written while no disk has I/O, as docs/io-control.md says.
const ROUND: f64 = 8.0;

/// Sleeps of a datastore's own threads in a round: the carrier's for each of two jobs, and for what each may wait for at
/// the file system; the governor's for its deadline and for both answers, and one that was due before.
const EACH_ROUND: f64 = 6.0;

#[test]
fn with_idle_disks_only_the_governor_threads_wake_up() {
    let place = Place::new();
    let daemon = Daemon::start_with(&place, "root", &["--threads", "2"]);
    for disk in ["a", "b"] {
        daemon.run(&["disk", "create", disk, "--size", "8M", "--attach"]);
    }
    let process = daemon.process();
    let said = Transcript::new("nobody");
    // What was ordered is told and counted for a while; then two rounds pass in peace.
    let begun = Instant::now();
    loop {
        let (from, before) = (Instant::now(), process.sleeps());
        while from.elapsed() < Duration::from_secs(2 * 8) {
            said.pause(Duration::from_secs(1));
        }
        let rounds = from.elapsed().as_secs_f64() / ROUND + 1.0;
        let after = process.sleeps();
        let woke: Vec<(String, u64)> = after
            .iter()
            .filter_map(|(thread, sleeps)| {
                let earlier = before.iter().find(|(name, _)| name == thread);
                let woke = sleeps - earlier.map_or(0, |(_, sleeps)| *sleeps);
                (woke > 0).then(|| (thread.clone(), woke))
            })
            .collect();
        println!("in {:?}: {woke:?}", from.elapsed());
        let is_right = |(thread, woke): &(String, u64)| {
            let own = thread.starts_with("govern-") || thread.starts_with("slots-");
            own && *woke as f64 <= rounds * EACH_ROUND
        };
        if woke.iter().all(is_right) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "idle threads wake: {woke:?}");
    }
    assert!(daemon.stop("TERM").success());
}

#[test]
fn the_last_event_of_a_disk_is_reported_on_a_datastore_without_others() {
    let place = Place::new();
    let daemon = Daemon::start(&place);
    daemon.run(&["datastore", "add", "none", "--kind", "null"]);
    let create = ["disk", "create", "web1", "-d", "none", "--size", "8M"];
    let burst = [
        "--limit",
        "100",
        "--burst-iops",
        "500",
        "--burst-seconds",
        "1",
    ];
    daemon.run(&[&create[..], &burst, &["--attach"]].concat());
    // Some 450 are spent when it ends; the rest waits for the limit.
    nbdsh_on(
        &daemon.nbd_uri("web1"),
        "for n in range(600): h.pread(4096, 0)",
    );
    daemon.run(&["disk", "detach", "web1", "--yes"]);
    let begun = Instant::now();
    loop {
        let told = daemon.run(&["events"]);
        if told.contains("the burst of disk web1 is used up") {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "it is not told:\n{told}");
    }
    assert_eq!(
        daemon
            .said()
            .matches("the burst of disk web1 is used up")
            .count(),
        1
    );
    assert!(daemon.stop("TERM").success());
}
