//! Devices of a flash cache that are replaced, removed and added under a verifying load, and a daemon that dies meanwhile.

use super::{Load, cache, devices, events, lose, often, read, refused, start, wait_for, write};
use super::{write_back, write_until_dirty};
use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::PATIENCE;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// A file that can become a device of the cache.
fn spare(place: &Place, name: &str) -> String {
    let path = place.join(name);
    let file = fs::File::create(&path).expect("a file");
    file.set_len(64 << 20).expect("a large file");
    path.display().to_string()
}

/// The devices of the cache, with their numbers.
fn shown(daemon: &Daemon) -> Vec<(u64, PathBuf)> {
    let cache = daemon.json(&["cache", "show", "fast"]);
    let devices = cache["devices"].as_array().cloned().unwrap_or_default();
    let device = |it: serde_json::Value| {
        let path = it["path"].as_str().unwrap_or_default();
        (it["device"].as_u64().unwrap_or(9), path.into())
    };
    devices.into_iter().map(device).collect()
}

/// Waits until the disk writes back to so many devices that have everything.
fn writes_back_to(daemon: &Daemon, devices: u64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = cache(daemon)["at_work"].clone();
        if now["mode"] == "write-back" && now["devices"] == devices {
            return;
        }
        assert!(Instant::now() < deadline, "{now:#}");
        thread::park_timeout(Duration::from_millis(20));
    }
}

#[test]
fn flash_devices_are_replaced_removed_and_added_under_load() {
    let place = Place::new();
    let daemon = start(&place);
    write_back(&daemon);
    let [one, two] = devices(&place);
    let third = spare(&place, "flash2");
    let load = Load::start(&place, &daemon);
    load.is_on_flash_only(&daemon);
    daemon.run(&["cache", "device", "replace", "fast", "1", "--with", &third]);
    assert_eq!(
        shown(&daemon),
        [(0, one.clone()), (1, third.clone().into())]
    );
    load.goes_on(&daemon);
    writes_back_to(&daemon, 2);
    let remove = ["cache", "device", "remove", "fast", "0", "--yes"];
    let said = refused(&daemon, &remove);
    assert!(said.contains("--single-device-ok"), "{said}");
    let accept = "disk set d --cache-mode write-back --single-device-ok";
    daemon.run(&accept.split(' ').collect::<Vec<_>>());
    load.is_on_flash_only(&daemon);
    daemon.run(&remove);
    assert_eq!(shown(&daemon), [(1, third.clone().into())]);
    load.goes_on(&daemon);
    writes_back_to(&daemon, 1);
    let last = ["cache", "device", "remove", "fast", "1", "--yes"];
    assert!(refused(&daemon, &last).contains("the only one"));
    // A device that was taken away is free.
    let two = two.display().to_string();
    daemon.run(&["cache", "device", "add", "fast", &two]);
    writes_back_to(&daemon, 2);
    // And the only one is replaced beside itself.
    daemon.run(&["cache", "device", "remove", "fast", "1", "--yes"]);
    daemon.run(&["cache", "device", "replace", "fast", "0", "--with", &third]);
    assert_eq!(shown(&daemon), [(1, third.into())]);
    load.goes_on(&daemon);
    writes_back_to(&daemon, 1);
    for word in ["added", "filled", "removed"] {
        let event = format!("cache-device-{word}");
        assert!(events(&daemon).contains(&event), "{event}");
    }
    println!("{} passes of fio", load.end());
    daemon.run(&["disk", "detach", "d", "--disconnect"]);
    assert_eq!(cache(&daemon)["has_dirty"], false);
}

#[test]
fn a_daemon_that_is_killed_while_it_replaces_a_flash_device_loses_nothing() {
    let place = Place::new();
    let mut daemon = start(&place);
    write_back(&daemon);
    let [one, two] = devices(&place);
    let all = [one, two, spare(&place, "flash2").into()];
    let load = Load::start(&place, &daemon);
    for round in 0..u64::from(often("TIDEGATE_E2E_DEATHS", 3)) {
        load.goes_on(&daemon);
        writes_back_to(&daemon, 2);
        let now = shown(&daemon);
        let unused = all
            .iter()
            .find(|path| !now.iter().any(|(_, it)| it == *path));
        let unused = unused.expect("one of three").display().to_string();
        let nth = (round % 2).to_string();
        let words = [
            "cache", "device", "replace", "fast", &nth, "--with", &unused,
        ];
        daemon.run(&[&words[..], &["--no-wait"]].concat());
        // Cleaning, the exchange and the copies take some tenths of a second.
        thread::park_timeout(Duration::from_millis(round * 37 % 400));
        daemon.crash_and_restart();
        // It is the old one or the new one, and the command can be given again.
        if !shown(&daemon)
            .iter()
            .any(|(_, it)| it.display().to_string() == unused)
        {
            writes_back_to(&daemon, 2);
            daemon.run(&words);
        }
        writes_back_to(&daemon, 2);
    }
    load.goes_on(&daemon);
    println!("{} passes of fio", load.end());
    daemon.run(&["disk", "detach", "d", "--disconnect"]);
    assert_eq!(cache(&daemon)["has_dirty"], false);
}

#[test]
fn a_flash_device_that_has_failed_is_replaced() {
    let place = Place::new();
    let daemon = start(&place);
    write_back(&daemon);
    write_until_dirty(&daemon);
    lose(&devices(&place)[0]);
    wait_for(&daemon, "\"devices\":1");
    write(&daemon, "0x66");
    let third = spare(&place, "flash2");
    let other = ["cache", "device", "replace", "fast", "1", "--with", &third];
    let said = refused(&daemon, &other);
    assert!(said.contains("cache device replace fast 0"), "{said}");
    daemon.run(&["cache", "device", "replace", "fast", "0", "--with", &third]);
    writes_back_to(&daemon, 2);
    // The new one is alone.
    lose(&devices(&place)[1]);
    wait_for(&daemon, "\"devices\":1");
    assert!(read(&daemon, "512k").contains("66 66 66"));
    daemon.run(&["disk", "detach", "d"]);
    daemon.run(&["disk", "set", "d", "--cache", "none"]);
    daemon.run(&["disk", "attach", "d"]);
    assert!(read(&daemon, "512k").contains("66 66 66"));
}
