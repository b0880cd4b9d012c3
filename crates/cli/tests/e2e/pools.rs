//! Disks on pools over NBD: the daemon is killed under load, and fio finds every block that was flushed before.

use std::thread;

use crate::support::daemon::Daemon;
use crate::support::place::{MIB, Place};
use crate::support::program::Program;

/// How often the daemon is killed.
const DEATHS: u64 = 20;

/// Blocks of 4 KiB all over 8 MiB of a disk, in the order that this seed gives.
fn fio(uri: &str, at: u64, seed: u64) -> Program {
    Program::new("fio")
        .args([
            "--name=blocks",
            "--ioengine=nbd",
            "--rw=randwrite",
            "--bs=4k",
            "--size=8M",
            "--iodepth=16",
            "--verify=crc32c",
            "--verify_fatal=1",
        ])
        .arg(format!("--randseed={seed}"))
        .arg(format!("--offset={at}"))
        .arg(format!("--uri={uri}"))
}

fn mapped(daemon: &Daemon) -> u64 {
    let shown = daemon.json(&["disk", "show", "vm1"]);
    let mapped = shown["pool"]["mapped_bytes"].as_u64();
    mapped.unwrap_or_else(|| panic!("no mapped bytes in:\n{shown:#}"))
}

#[test]
fn a_disk_on_a_pool_has_what_was_flushed_after_the_daemon_was_killed_twenty_times() {
    let place = Place::new();
    let mut daemon = Daemon::start(&place);
    let member = |name: &str| place.join(name).display().to_string();
    let group = format!("stripe:{},{}", member("a"), member("b"));
    daemon.run(&["pool", "create", "p", "--group", &group, "--size", "1G"]);
    daemon.run(&[
        "disk",
        "create",
        "vm1",
        "--datastore",
        "p",
        "--size",
        "1T",
        "--attach",
    ]);
    for death in 0..DEATHS {
        let uri = daemon.nbd_uri("vm1");
        // Four parts in turn: unused space, and space that has blocks of an earlier round.
        let at = death % 4 * 64 * MIB;
        let said = fio(&uri, at, death)
            .args(["--do_verify=0", "--end_fsync=1"])
            .run();
        assert!(said.contains("err= 0"), "{said}");
        // Another part, in unused space, is written while the daemon dies.
        let before = mapped(&daemon);
        let busy = (512 + 16 * death) * MIB;
        let load = thread::spawn(move || fio(&uri, busy, death).arg("--do_verify=0").output());
        while mapped(&daemon) == before && !load.is_finished() {
            thread::yield_now();
        }
        daemon.crash_and_restart();
        load.join().expect("fio ends, with or without an error");
        let said = fio(&daemon.nbd_uri("vm1"), at, death)
            .arg("--verify_only")
            .run();
        assert!(said.contains("err= 0"), "after death {death}: {said}");
    }
    let checked = daemon.json(&["pool", "check", "p"]);
    assert_eq!(checked["findings"], serde_json::json!([]), "{checked:#}");
    daemon.run(&["disk", "detach", "vm1"]);
    daemon.run(&["disk", "delete", "vm1", "--yes"]);
    daemon.run(&["pool", "destroy", "p", "--yes"]);
}
