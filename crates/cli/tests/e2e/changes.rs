//! Administrators of two hosts who change the same thing at the same moment.

use std::fs;
use std::time::Instant;

use serde_json::Value;

use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::PATIENCE;

/// How often both change a disk; each change is made durable, which takes its time.
const ROUNDS: u64 = 25;

fn get(daemon: &Daemon, path: &str) -> Value {
    let told = daemon.rest().ask("GET", path, "");
    serde_json::from_str(&told).expect("REST answers in JSON")
}

/// Each of two hosts changes something, at one moment.
fn both(daemons: &[Daemon; 2], path: &str, bodies: [String; 2]) {
    std::thread::scope(|scope| {
        for (daemon, body) in daemons.iter().zip(bodies) {
            let mut rest = daemon.rest();
            scope.spawn(move || rest.ask("PATCH", path, &body));
        }
    });
}

#[test]
fn concurrent_changes_on_two_hosts_are_all_applied() {
    let place = Place::new();
    let shared = place.join("shared");
    fs::create_dir(&shared).expect("a directory can be made");
    let shared = shared.display().to_string();
    let daemons = ["a", "b"].map(|disk| {
        let daemon = Daemon::start_with(&place, &format!("root-{disk}"), &["--threads", "1"]);
        daemon.run(&["datastore", "add", "shared", "--path", &shared]);
        let create = ["disk", "create", disk, "-d", "shared", "--size", "8M"];
        daemon.run(&[&create[..], &["--attach"]].concat());
        daemon
    });

    for round in 0..ROUNDS {
        let (shares, limit) = (1_000 + round, 5_000 + round);
        let bodies = [
            format!(r#"{{"policy": {{"shares": {shares}}}}}"#),
            format!(r#"{{"policy": {{"limit_iops": {limit}}}}}"#),
        ];
        both(&daemons, "/v1/disks/a", bodies);
        let policy = &get(&daemons[0], "/v1/disks/a")["policy"];
        assert_eq!(
            (&policy["shares"], &policy["limit_iops"]),
            (&shares.into(), &limit.into()),
            "round {round}: {policy}"
        );
    }

    for round in 0..3 {
        let (unit, threshold) = (8_192 + 4_096 * round, format!("{}ms", 12 + round));
        let bodies = [
            format!(r#"{{"io_control": {{"io_unit_bytes": {unit}}}}}"#),
            format!(r#"{{"io_control": {{"congestion_threshold": "{threshold}"}}}}"#),
        ];
        both(&daemons, "/v1/datastores/shared", bodies);
        let begun = Instant::now();
        for daemon in &daemons {
            loop {
                let control = &get(daemon, "/v1/datastores/shared")["control"];
                let now = (&control["io_unit_bytes"], &control["congestion_threshold"]);
                if now == (&unit.into(), &threshold.as_str().into()) {
                    break;
                }
                assert!(begun.elapsed() < PATIENCE, "round {round}: {now:?}");
                std::thread::yield_now();
            }
        }
    }
    for daemon in daemons {
        assert!(daemon.stop("TERM").success());
    }
}
