//! Dense mode on a daemon: guests are served, and an idle host stays asleep.

use std::fs;
use std::time::{Duration, Instant};

use tidegate_testing::vhost::{Vm, VmOptions, WebFarm};

use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::PATIENCE;

const GUESTS: usize = 16;

/// Half of the guests' pages of a published web farm at 50 requests a second, each of a document and seven parts.
const FARM: WebFarm = WebFarm {
    pages_per_s: 25,
    reads: 8,
    gap: Duration::from_micros(150),
};

fn daemon(place: &Place, root: &str, mode: &str) -> Daemon {
    let config = format!("[io]\nthreads = 1\n\n[dense]\nmode = \"{mode}\"\n");
    let path = place.join(root);
    fs::create_dir(&path).expect("a directory can be created");
    fs::write(path.join("tidegate.toml"), config).expect("a configuration can be written");
    let daemon = Daemon::start_with(place, root, &[]);
    daemon.run(&["datastore", "add", "mem", "--kind", "memory"]);
    for guest in 0..GUESTS {
        let name = format!("web{guest}");
        daemon.run(&[
            "disk", "create", &name, "-d", "mem", "--size", "8M", "--attach",
        ]);
    }
    daemon
}

fn guests(daemon: &Daemon) -> Vec<Vm> {
    let connect = |guest| {
        let socket = daemon.vhost_user(&format!("web{guest}"));
        Vm::connect(VmOptions::new(&socket, 16)).expect("a guest can connect")
    };
    (0..GUESTS).map(connect).collect()
}

#[test]
fn idle_guests_of_a_dense_host_wake_no_thread() {
    let place = Place::new();
    let daemon = daemon(&place, "root", "on");
    let mut vms = guests(&daemon);
    let served = FARM.run(&mut vms, Duration::from_secs(1));
    let served = served.expect("every read is answered");
    assert!(served.reads > 0 && served.errors == 0, "{served:?}");
    let status = daemon.run(&["status"]);
    assert!(status.contains("on (mode on): no sample yet"), "{status}");
    let page = daemon.rest().ask("GET", "/metrics", "");
    assert!(page.contains("tidegate_dense_mode_state 1"), "{page}");
    let process = daemon.process();
    // All guests are connected and ask nothing: no thread sleeps anew in a span of two seconds.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = process.sleeps();
        std::thread::sleep(Duration::from_secs(2));
        let after = process.sleeps();
        if before == after {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "idle threads wake: {before:?}\n{after:?}"
        );
    }
    drop(vms);
    assert!(daemon.stop("TERM").success());
}
