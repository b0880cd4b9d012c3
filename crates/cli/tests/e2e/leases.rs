//! Hosts that share a disk's bytes, and who of them may have it open: two daemons, of which one dies or stands still.
//!
//! On a local file system the kernel's lock decides; in front of an NBD server nothing but the lease does.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::{Program, nbdsh_on};
use crate::support::server::{Server, Serving};

fn nbdsh(daemon: &Daemon, script: &str) -> String {
    nbdsh_on(&daemon.nbd_uri("db1"), script)
}

/// `kill -NAME`.
fn signal(daemon: &Daemon, name: &str) {
    Program::new("kill")
        .args([format!("-{name}"), daemon.id().to_string()])
        .run();
}

/// What an order says that must be refused, in one line.
fn refused(daemon: &Daemon, words: &[&str]) -> String {
    let output = daemon.attempt(words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "it is refused: {said}");
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Says in a root's configuration what its host is called.
fn call(root: &Path, name: &str) {
    fs::create_dir_all(root).expect("a directory can be made");
    let config = format!("[host]\nname = \"{name}\"\n");
    fs::write(root.join("tidegate.toml"), config).expect("a configuration can be written");
}

fn assert_says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "no `{word}` in: {said}");
    }
}

#[test]
fn on_a_local_datastore_a_paused_host_keeps_its_disk_and_a_killed_ones_is_taken_over() {
    let place = Place::new();
    let shared = place.join("shared");
    fs::create_dir(&shared).expect("a directory can be made");
    let shared = shared.display().to_string();
    let daemons = ["one", "two"].map(|root| {
        let daemon = Daemon::start_with(&place, root, &[]);
        let add = ["datastore", "add", "shared", "--kind", "dir", "--path"];
        daemon.run(&[&add[..], &[&shared]].concat());
        daemon
    });
    let [mut one, two] = daemons;
    let create = ["disk", "create", "db1", "--datastore", "shared"];
    one.run(&[&create[..], &["--size", "8M", "--attach"]].concat());
    nbdsh(&one, "h.pwrite(b'a' * 4096, 0)");

    signal(&one, "STOP");
    let said = refused(
        &two,
        &["disk", "attach", "db1", "--force-takeover", "--yes"],
    );
    assert_says(&said, &["in use by another daemon", "open on host"]);
    signal(&one, "CONT");
    nbdsh(
        &one,
        "assert h.pread(4096, 0) == b'a' * 4096\nh.pwrite(b'b' * 4096, 0)\nh.flush()",
    );

    one.kill();
    two.run(&["disk", "attach", "db1"]);
    nbdsh(&two, "assert h.pread(4096, 0) == b'b' * 4096");
}

#[test]
fn in_front_of_an_nbd_server_only_a_fenced_hosts_disk_is_taken_over_and_it_writes_nothing_more() {
    let place = Place::new();
    let image = place.image("image", 8 << 20);
    let server = Server::start(&place, Serving::image(&image));
    let uri = format!("nbd+unix://?socket={}", server.nbd().display());
    let meeting: PathBuf = place.join("meeting");
    fs::create_dir(&meeting).expect("a directory can be made");
    let meeting = meeting.display().to_string();
    let [one, two] = ["one", "two"].map(|root| {
        call(&place.join(root), &format!("host-{root}"));
        let daemon = Daemon::start_with(&place, root, &[]);
        daemon.run(&["datastore", "add", "up", "--kind", "nbd", "--uri", &uri]);
        daemon.run(&["datastore", "set", "up", "--coordination", &meeting]);
        let create = ["disk", "create", "db1", "--datastore", "up"];
        daemon.run(&[&create[..], &["--export", "disk"]].concat());
        daemon
    });
    one.run(&["disk", "attach", "db1"]);
    nbdsh(&one, "h.pwrite(b'a' * 4096, 0)");
    let said = refused(&two, &["disk", "attach", "db1"]);
    assert_says(
        &said,
        &["open on host host-one", "it has just renewed its lease"],
    );

    signal(&one, "STOP");
    let said = refused(&two, &["disk", "attach", "db1"]);
    assert_says(
        &said,
        &[
            "stopped renewing its lease",
            "power it off",
            "--force-takeover",
        ],
    );
    two.run(&["disk", "attach", "db1", "--force-takeover", "--yes"]);
    nbdsh(&two, "h.pwrite(b'b' * 4096, 0)\nh.flush()");

    signal(&one, "CONT");
    nbdsh(
        &one,
        "
try:
    h.pwrite(b'c' * 4096, 0)
    assert False, 'a write to a disk that another host has'
except nbd.Error as error:
    assert error.errno == 'EIO', error.errno
",
    );
    nbdsh(&two, "assert h.pread(4096, 0) == b'b' * 4096");
    let shown = one.run(&["disk", "show", "db1"]);
    assert_says(&shown, &["not written any more", "has taken the disk over"]);
    one.run(&["disk", "detach", "db1", "--disconnect"]);
    // What the one gives back is not the other's.
    let said = refused(&one, &["disk", "attach", "db1"]);
    assert_says(&said, &["open on host"]);
    two.run(&["disk", "detach", "db1", "--disconnect"]);
    one.run(&["disk", "attach", "db1"]);
}
