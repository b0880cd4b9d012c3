//! The policy of a flash cache goes on after a restart of the daemon with what it had learned.

use std::fs;
use std::path::PathBuf;

use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::nbdsh_on;

/// Pages of the disk that are read, in groups of twelve: more than the part has slots.
const GROUPS: u32 = 8;

/// Reads each page of the groups so many times, with pauses after which an access counts again.
fn read(daemon: &Daemon, groups: std::ops::Range<u32>, times: u32) {
    let script = format!(
        "import time\nfor group in range({}, {}):\n  for _ in range({times}):\n    for page in range(12):\n      \
         h.pread(65536, (group * 12 + page * 5 % 12) * 65536)\n    h.flush()\n    time.sleep(0.12)",
        groups.start, groups.end
    );
    nbdsh_on(&daemon.nbd_uri("d"), &script);
}

fn fills(daemon: &Daemon) -> u64 {
    let shown = daemon.json(&["disk", "show", "d"]);
    let fills = &shown["flash"]["at_work"]["fills_total"];
    fills.as_u64().expect("a number")
}

/// The files of what policies have learned.
fn stored(place: &Place) -> Vec<PathBuf> {
    let entries = fs::read_dir(place.join("root/state/caches")).expect("there is a cache");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .filter(|path| path.extension() == Some("policy".as_ref()))
        .collect()
}

#[test]
fn pages_that_were_evicted_before_a_restart_enter_at_their_first_access_after_it() {
    let place = Place::new();
    let daemon = Daemon::start(&place);
    daemon.run(&["disk", "create", "d", "--size", "8M", "--attach"]);
    let flash = place.join("flash").display().to_string();
    daemon.run(&[
        "cache", "create", "fast", "--device", &flash, "--size", "64M",
    ]);
    daemon.run(&["disk", "set", "d", "--cache", "fast", "--cache-max", "4M"]);
    read(&daemon, 0..GROUPS, 3);
    assert!(fills(&daemon) > 48, "it is full: {}", fills(&daemon));
    assert!(daemon.stop("TERM").success());

    let files = stored(&place);
    assert_eq!(files.len(), 1, "{files:?}");
    let learned = fs::read(&files[0]).expect("it can be read");
    let daemon = Daemon::start(&place);
    assert_eq!(fills(&daemon), 0);
    read(&daemon, 0..GROUPS, 1);
    let entered = fills(&daemon);
    assert!(entered > 0, "some were known");
    assert!(!daemon.run(&["events"]).contains("begins anew"));
    assert!(daemon.stop("TERM").success());

    // A damaged one is ignored: no page is known, and the disk has its cache.
    fs::write(&files[0], &learned[..learned.len() / 2]).expect("it can be written");
    let daemon = Daemon::start(&place);
    read(&daemon, 0..GROUPS, 1);
    assert_eq!(fills(&daemon), 0, "nothing is known, and {entered} were");
    let events = daemon.run(&["events"]);
    assert!(
        events.contains("the policy of cache fast begins anew for disk d"),
        "{events}"
    );
    assert!(daemon.stop("TERM").success());
    assert_eq!(stored(&place), files, "it is stored again");
}
