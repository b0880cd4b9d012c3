//! Disks on several datastores under real clients: striped, mirrored, without a member, and moved while in use.

use std::fs;
use std::path::PathBuf;

use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::Program;

/// A daemon with the datastores `one`, `two`, `three` and `four`.
fn start(place: &Place) -> (Daemon, [PathBuf; 4]) {
    let daemon = Daemon::start(place);
    let paths = ["one", "two", "three", "four"].map(|name| {
        let path = place.join(name);
        fs::create_dir(&path).expect("a directory can be created");
        let shown = path.display().to_string();
        daemon.run(&["datastore", "add", name, "--path", &shown]);
        path
    });
    (daemon, paths)
}

fn create(daemon: &Daemon, layout: &str, on: &[&str]) {
    let mut words = vec![
        "disk", "create", "d", "--size", "32M", "--attach", "--layout", layout,
    ];
    words.extend(on.iter().flat_map(|on| ["--on", on]));
    daemon.run(&words);
}

/// fio's checksums over NBD, with one connection.
fn fio(daemon: &Daemon) {
    let said = Program::new("fio")
        .args([
            "--name=verify",
            "--ioengine=nbd",
            "--rw=randwrite",
            "--bsrange=4k-128k",
            "--size=24M",
        ])
        .args([
            "--iodepth=32",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--do_verify=1",
            "--fsync=64",
        ])
        .arg(format!("--uri={}", daemon.nbd_uri("d")))
        .run();
    assert!(said.contains("err= 0"), "{said}");
}

fn states(daemon: &Daemon) -> Vec<String> {
    let list = daemon.json(&["disk", "member", "list", "d"]);
    let members = list["members"].as_array().expect("a list of members");
    let state = |member: &serde_json::Value| member["state"].as_str().unwrap_or("").to_owned();
    members.iter().map(state).collect()
}

#[test]
fn fio_verifies_a_striped_disk_which_is_not_attached_without_a_member() {
    let place = Place::new();
    let (daemon, [_, two, ..]) = start(&place);
    create(&daemon, "stripe:chunk=64K", &["one", "two", "three"]);
    fio(&daemon);
    daemon.run(&["disk", "detach", "d"]);
    fs::rename(&two, place.join("aside")).expect("a directory can be renamed");
    let refused = daemon.attempt(&["disk", "attach", "d"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("datastore two is not mounted"),
        "{said}"
    );
    fs::rename(place.join("aside"), &two).expect("a directory can be renamed");
    daemon.run(&["disk", "attach", "d"]);
}

#[test]
fn fio_verifies_a_mirrored_disk_after_a_crash_without_a_member_and_with_a_replaced_one() {
    let place = Place::new();
    let (mut daemon, [_, two, ..]) = start(&place);
    create(&daemon, "mirror", &["one", "two"]);
    fio(&daemon);
    daemon.crash_and_restart();
    assert_eq!(states(&daemon), ["in-sync", "in-sync"]);
    daemon.run(&["disk", "detach", "d"]);
    fs::rename(&two, place.join("aside")).expect("a directory can be renamed");
    let refused = daemon.attempt(&["disk", "attach", "d"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("member 1 on two"),
        "{said}"
    );
    daemon.run(&["disk", "attach", "d", "--without", "1", "--yes"]);
    assert_eq!(states(&daemon), ["in-sync", "away"]);
    fio(&daemon);
    let shown = daemon.run(&["disk", "show", "d"]);
    assert!(shown.contains("attached, degraded"), "{shown}");
    daemon.run(&["disk", "member", "replace", "d", "1", "--on", "three"]);
    assert_eq!(states(&daemon), ["in-sync", "in-sync"]);
    let scrubbed = daemon.run(&["disk", "scrub", "d"]);
    let scrub = &daemon.json(&["disk", "show", "d"])["scrub"];
    assert_eq!(scrub["different"], 0, "{scrubbed}{scrub}");
    fio(&daemon);
}

#[test]
fn a_mirror_gets_two_more_members_while_fio_verifies_it() {
    let place = Place::new();
    let (mut daemon, paths) = start(&place);
    create(&daemon, "mirror", &["one", "two"]);
    daemon.run(&["disk", "set", "d", "--member-timeout", "30s"]);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| fio(&daemon));
        for on in ["three", "four"] {
            daemon.run(&["disk", "member", "add", "d", "--on", on]);
        }
        load.join().expect("fio finds each block as it was written");
    });
    assert_eq!(states(&daemon), ["in-sync"; 4]);
    let shown = daemon.run(&["disk", "show", "d"]);
    assert!(shown.contains("member timeout:  30s"), "{shown}");
    daemon.crash_and_restart();
    assert_eq!(states(&daemon), ["in-sync"; 4]);
    daemon.run(&["disk", "scrub", "d"]);
    assert_eq!(daemon.json(&["disk", "show", "d"])["scrub"]["different"], 0);
    daemon.run(&["disk", "detach", "d"]);
    daemon.run(&["disk", "delete", "d", "--yes"]);
    assert!(paths.iter().all(|path| !path.join("d").exists()));
}

#[test]
fn a_disk_is_moved_to_and_fro_while_fio_verifies_it() {
    let place = Place::new();
    let (daemon, [one, two, ..]) = start(&place);
    daemon.run(&[
        "disk",
        "create",
        "d",
        "--size",
        "32M",
        "--datastore",
        "one",
        "--attach",
    ]);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| fio(&daemon));
        for to in ["two", "one", "two", "one"] {
            daemon.run(&["disk", "move", "d", "--to", to]);
        }
        load.join().expect("fio finds each block as it was written");
    });
    assert!(one.join("d/image").exists() && !two.join("d").exists());
    fio(&daemon);
}
