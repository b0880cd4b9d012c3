//! A guest of a disk whose detach takes too long: no other instance of the disk touches its rings before the old one has
//! ended.

use std::thread;
use std::time::Instant;

use tidegate_testing::load::{Load, Source};
use tidegate_testing::tally::{Tally, Until};
use tidegate_testing::vhost::{GuestDriver, Vm, VmOptions, Wait};

use crate::support::daemon::Daemon;
use crate::support::place::{MIB, Place};
use crate::support::program::PATIENCE;
use crate::support::server::{Server, Serving};

/// Enough to be under way while the upstream is killed.
const REQUESTS: u64 = 50_000;

#[test]
fn a_guests_rings_are_served_again_only_after_a_detach_that_gave_up_has_ended() {
    let place = Place::new();
    let image = place.image("image", 8 * MIB);
    let mut upstream = Server::start(&place, Serving::image(&image));
    let daemon = Daemon::start(&place);
    let uri = format!("nbd+unix://?socket={}", upstream.nbd().display());
    daemon.run(&["datastore", "add", "up", "--kind", "nbd", "--uri", &uri]);
    let create = ["disk", "create", "far", "-d", "up", "--export", "disk"];
    daemon.run(&[&create[..], &["--attach"]].concat());
    let mut options = VmOptions::new(&daemon.vhost_user("far"), 16);
    options.reconnect = Some(PATIENCE);
    let vm = Vm::connect(options).expect("a guest can connect");
    let mut driver = GuestDriver::new(vec![vm], Wait::Sleep);
    let guest = thread::spawn(move || -> anyhow::Result<Tally> {
        let mut load = Load::verified(16, 4 * MIB);
        // A flush that is under way when the upstream goes may fail, as it must where writes may be lost.
        load.flush_every = 0;
        let mut sources = vec![Source::new(load)];
        let mut tallies = driver.run(&mut sources, Until::Count(REQUESTS), &mut |_| {})?;
        sources.iter_mut().for_each(Source::start_sweep);
        tallies.extend(driver.run(&mut sources, Until::Exhausted, &mut |_| {})?);
        Ok(Tally::sum(&tallies))
    });
    wait_for_requests(&daemon);
    upstream.kill();

    let refused = |args: &[&str]| {
        let output = daemon.attempt(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("still being detached"), "{said}");
    };
    refused(&["disk", "detach", "far", "--disconnect"]);
    refused(&["disk", "attach", "far"]);
    let shown = daemon.json(&["disk", "show", "far"]);
    assert_eq!(
        (&shown["detaching"], &shown["attached"]),
        (&true.into(), &false.into()),
        "{shown:#}"
    );
    assert!(daemon.run(&["disk", "list"]).contains("detaching"));

    upstream.crash_and_restart();
    // As the refusals say.
    daemon.run(&["disk", "detach", "far"]);
    daemon.run(&["disk", "attach", "far"]);
    let tally = guest.join().expect("a guest's thread ends");
    let tally = tally.expect("everything is answered, and once");
    assert_eq!(
        (tally.errors, tally.mismatched, tally.reconnections),
        (0, 0, 1),
        "{:?}",
        tally.mismatches
    );
    let shown = daemon.json(&["disk", "show", "far"]);
    let faults = &shown["rings"];
    assert_eq!(
        (&faults["nonsense_total"], &faults["broken_total"]),
        (&0.into(), &0.into()),
        "{shown:#}"
    );
}

/// Until the guest's load is under way.
fn wait_for_requests(daemon: &Daemon) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let stats = daemon.json(&["stats", "far"]);
        if stats["all"]["ops_total"].as_u64() > Some(100) {
            return;
        }
        assert!(Instant::now() < deadline, "no request comes: {stats}");
    }
}
