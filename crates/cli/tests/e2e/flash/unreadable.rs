//! Dirty pages that flash does not return as they were written, while their disk is in use.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use super::{devices, write_until_dirty};
use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::{PATIENCE, Program};

/// Overwrites a device that is open, without a change of its size.
fn overwrite(device: &Path) {
    let len = fs::metadata(device).expect("a device").len();
    let bytes = vec![0xd7; usize::try_from(len).expect("a small file")];
    let file = File::options().write(true).open(device);
    file.and_then(|file| file.write_all_at(&bytes, 0))
        .expect("it can be written");
}

#[test]
fn writes_that_only_overwritten_flash_had_are_shown_until_they_are_written_again() {
    let place = Place::new();
    let daemon = Daemon::start(&place);
    daemon.run(&["disk", "create", "d", "--size", "32M", "--attach"]);
    let device = &devices(&place)[0];
    let path = device.display().to_string();
    daemon.run(&[
        "cache", "create", "fast", "--device", &path, "--size", "64M",
    ]);
    let set = "disk set d --cache fast --cache-mode write-back --single-device-ok";
    daemon.run(&set.split(' ').collect::<Vec<_>>());
    assert!(
        !daemon
            .run(&["cache", "show", "fast"])
            .contains("unreadable")
    );
    let deadline = Instant::now() + PATIENCE;
    loop {
        write_until_dirty(&daemon);
        overwrite(device);
        // It is dirty no more if it was cleaned just before.
        if !daemon.attempt(&["cache", "flush", "fast"]).status.success() {
            break;
        }
        assert!(Instant::now() < deadline, "it is always cleaned before");
    }
    let shown = daemon.run(&["cache", "show", "fast"]);
    for part in ["1 page unreadable", "--discard-cache"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("clean in"), "{shown}");
    let listed = daemon.run(&["cache", "list"]);
    assert!(listed.contains("1 page unreadable"), "{listed}");
    let problem = "1 page of 64 KiB of disk d cannot be read from cache fast";
    let status = daemon.json(&["status"])["problems"].to_string();
    assert!(status.contains(problem), "{status}");
    let disk = daemon.json(&["disk", "show", "d"])["flash"].clone();
    assert_eq!(disk["at_work"]["unreadable_pages"], 1, "{disk:#}");
    assert!(disk["problem"].to_string().contains(problem), "{disk:#}");
    // The guest writes it again.
    let said = Program::new("qemu-io")
        .args(["-f", "raw", "-c", "write -P 0x12 0 4k", "-c", "flush"])
        .arg(daemon.nbd_uri("d"))
        .run();
    assert!(said.contains("wrote 4096"), "{said}");
    daemon.run(&["cache", "flush", "fast"]);
    let shown = daemon.run(&["cache", "show", "fast"]);
    assert!(!shown.contains("unreadable"), "{shown}");
    assert_eq!(daemon.json(&["status"])["problems"].to_string(), "[]");
}
