//! A stock guest on a disk with a mirrored write-back cache, while the daemon is killed, and the disk moves and grows.
//!
//! `TIDEGATE_E2E_DEATHS` sets how often; by hand it is 20.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::daemon::Daemon;
use crate::support::guest::{Guest, Hardware};
use crate::support::place::Place;
use crate::support::program::PATIENCE;

/// Makes a file system with a file of noise. Then fio writes another file again and again until told to stop, and compares
/// what it reads with its checksums.
const LOAD: &str = "mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt && cd /mnt \
    && dd if=/dev/urandom of=noise bs=64k count=64 2>/dev/null && sha256sum noise >sum && sync \
    && { ( n=0; while test ! -e /run/stop; do \
        n=$((n + 1)); fio --name=load --filename=/mnt/load --size=8M --rw=randrw --rwmixread=30 --bs=4k --direct=1 \
            --ioengine=libaio --iodepth=16 --fsync=64 --verify=crc32c --verify_backlog=256 --verify_fatal=1 \
            --verify_state_save=0 --randseed=$n >/run/fio 2>&1 || { cp /run/fio /run/bad; break; }; \
        echo $n >/run/rounds; done; touch /run/stopped ) & }";

/// Waits until the guest has done 100 more requests, and some of what it wrote is only on flash.
fn goes_on(guest: &mut Guest, daemon: &Daemon) {
    let done = || {
        let stats = daemon.json(&["stats", "d"]);
        stats["all"]["ops_total"].as_u64().unwrap_or(0)
    };
    let dirty = || {
        let shown = daemon.json(&["disk", "show", "d"]);
        shown["flash"]["at_work"]["dirty_bytes"]
            .as_u64()
            .unwrap_or(0)
    };
    let enough = done() + 100;
    let deadline = Instant::now() + PATIENCE;
    while done() < enough || dirty() == 0 {
        if Instant::now() > deadline {
            let said = guest.run("cat /run/bad /run/fio; dmesg | tail -n 20; true");
            panic!("the guest's load stands still:\n{said}");
        }
        thread::park_timeout(Duration::from_millis(50));
    }
}

#[test]
fn a_guest_on_a_write_back_cache_sees_no_crash_of_the_daemon_and_no_move() {
    let place = Place::new();
    let mut daemon = Daemon::start(&place);
    daemon.run(&["disk", "create", "d", "--size", "64M", "--attach"]);
    let [one, two] = ["flash0", "flash1"].map(|name| place.join(name).display().to_string());
    daemon.run(&[
        "cache", "create", "fast", "--device", &one, "--mirror", &two, "--size", "64M",
    ]);
    let cache = "disk set d --cache fast --cache-mode write-back";
    daemon.run(&cache.split(' ').collect::<Vec<_>>());
    let socket = daemon.vhost_user("d");
    let mut guest = Guest::boot(
        &place,
        &Hardware {
            disks: &[&socket],
            cpus: 2,
        },
    );
    guest.run(LOAD);
    let deaths = std::env::var("TIDEGATE_E2E_DEATHS").ok();
    let deaths = deaths.and_then(|deaths| deaths.parse().ok()).unwrap_or(2);
    for _ in 0..deaths {
        goes_on(&mut guest, &daemon);
        daemon.crash_and_restart();
    }
    fs::create_dir(place.join("other")).expect("a directory can be created");
    let other = place.join("other").display().to_string();
    for change in [
        &["datastore", "add", "other", "--path", &other][..],
        &["disk", "move", "d", "--to", "other"],
        &["disk", "resize", "d", "72M"],
    ] {
        goes_on(&mut guest, &daemon);
        daemon.run(change);
    }
    goes_on(&mut guest, &daemon);
    daemon.crash_and_restart();
    goes_on(&mut guest, &daemon);
    guest.run("touch /run/stop");
    guest.eventually("test -e /run/stopped");
    guest.run("if test -e /run/bad; then cat /run/bad; false; fi");
    println!("{} passes of fio", guest.run("cat /run/rounds"));
    guest.run("echo 3 >/proc/sys/vm/drop_caches && cd /mnt && sha256sum -c sum");
    guest.run("umount /mnt && e2fsck -fn /dev/vda");
    assert_eq!(guest.complaints(), "");
    // The same bytes without the cache.
    daemon.run(&["disk", "set", "d", "--cache", "none"]);
    guest.run("echo 3 >/proc/sys/vm/drop_caches && e2fsck -fn /dev/vda");
    guest.run("mount /dev/vda /mnt && cd /mnt && sha256sum -c sum");
    assert_eq!(guest.complaints(), "");
}
