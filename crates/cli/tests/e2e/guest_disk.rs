//! A stock guest with its disks: reset, unplug, trim, added memory, cache modes, and a file system.

use std::fs;
use std::path::Path;

use crate::support::daemon::Daemon;
use crate::support::guest::{Guest, Hardware};
use crate::support::place::{MIB, Place, allocated};
use crate::support::program::{PATIENCE, Service, find};
use crate::support::server::{Server, Serving, TIDEGATE, wait_until_it_answers};

/// Writes a file of noise to a new file system, and leaves its checksum in `/mnt/sum`.
const FILL: &str = "mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt \
    && dd if=/dev/urandom of=/mnt/noise bs=64k count=320 2>/dev/null \
    && cd /mnt && sha256sum noise >sum && sync";

/// Mounts the file system and compares the file of noise with its checksum.
const VERIFY: &str = "mount /dev/vda /mnt && cd /mnt && sha256sum -c sum";

/// One guest for all of it: each step begins with the file system that the one before has left.
#[test]
fn a_file_system_survives_a_reset_a_new_server_and_an_unplug_and_is_trimmed() {
    let place = Place::new();
    let image = place.image("image", 128 * MIB);
    let more = place.image("more", 256 * MIB);
    let mut server = Server::start(&place, Serving::image(&image));
    let memory = Server::start_named(&place, "memory", Serving::image(&more));
    let disks = [server.vhost_user(), memory.vhost_user()];
    let mut guest = Guest::boot(
        &place,
        &Hardware {
            disks: &disks,
            cpus: 2,
        },
    );
    assert_eq!(
        guest.run("cat /sys/block/vda/size"),
        (128 * MIB / 512).to_string()
    );
    guest.run(FILL);
    let sum = guest.run("cat /mnt/sum");

    guest.reset();
    guest.run(VERIFY);
    assert_eq!(guest.run("cat /mnt/sum"), sum);
    guest.run("umount /mnt && e2fsck -fn /dev/vda");
    assert_eq!(guest.complaints(), "");

    server.crash_and_restart();
    guest.run("echo 3 >/proc/sys/vm/drop_caches");
    guest.run(VERIFY);
    guest.run("umount /mnt");
    assert_eq!(guest.complaints(), "");

    for _ in 0..2 {
        guest.unplug(0);
        guest.run("test ! -e /sys/block/vda");
        guest.plug(0, server.vhost_user());
        guest.eventually("test -b /dev/vda");
    }
    guest.run(VERIFY);
    assert_eq!(guest.complaints(), "");

    trimming_frees_space(&mut guest, &image);
    assert_eq!(guest.complaints(), "");
    added_memory_is_read_and_written(&mut guest, "/dev/vdb");
    assert_eq!(guest.complaints(), "");
}

/// The file of noise is mounted.
fn trimming_frees_space(guest: &mut Guest, image: &Path) {
    let full = allocated(image);
    assert!(
        full >= 20 * MIB,
        "20 MiB of noise take {full} bytes of the image"
    );
    guest.run("rm /mnt/noise && sync && fstrim /mnt");
    let trimmed = allocated(image);
    assert!(
        trimmed + 19 * MIB < full,
        "of {full} bytes, {trimmed} are left after the trim"
    );
    guest.run("blkdiscard -f /dev/vda 2>/dev/null || { umount /mnt && blkdiscard /dev/vda; }");
    let discarded = allocated(image);
    assert!(
        discarded <= MIB,
        "{discarded} bytes are left after the whole disk was discarded"
    );
}

/// The disk reads and writes memory that is plugged in while it is in use.
fn added_memory_is_read_and_written(guest: &mut Guest, disk: &str) {
    guest.add_memory(256);
    // More than the guest had free before: some of it must lie in the new memory, and the disk's I/O there with it.
    guest.run("mount -t tmpfs -o size=700m none /tmp");
    guest.run("dd if=/dev/urandom of=/tmp/seed bs=1M count=4 2>/dev/null");
    guest.run("for part in $(seq 50); do echo $part; cat /tmp/seed; done >/tmp/noise");
    guest.run(&format!(
        "truncate -s 200M /tmp/noise && dd if=/tmp/noise of={disk} bs=1M oflag=direct"
    ));
    guest.run(&format!(
        "dd if={disk} of=/tmp/back bs=1M count=200 iflag=direct"
    ));
    // busybox compares byte by byte.
    guest.run("/usr/bin/cmp /tmp/noise /tmp/back");
}

/// One guest for all of it: the cache that it finds on each disk, what it then has of it, and a disk that refuses writes.
#[test]
fn a_guest_finds_the_cache_that_its_disk_is_set_to_and_has_its_writes_durable_by_it() {
    let place = Place::new();
    let (log, socket) = (place.join("log"), place.join("upstream"));
    let _upstream = logging_upstream(&log, &socket);
    let source = format!("nbd+unix:///?socket={}", socket.display());
    let logged = Serving {
        source,
        read_only: false,
    };
    let logged = Server::start_named(&place, "logged", logged);
    let fixed = place.noise("fixed", 16 * MIB);
    let before = fs::read(&fixed).expect("the image can be read");
    let read_only = Serving {
        read_only: true,
        ..Serving::image(&fixed)
    };
    let read_only = Server::start_named(&place, "read-only", read_only);

    let daemon = Daemon::start(&place);
    let create = |name: &str, more: &[&str]| {
        daemon.run(&[&["disk", "create", name, "--size", "8M"], more].concat());
    };
    create("default", &["--attach"]);
    create("through", &["--cache", "write-through", "--attach"]);
    create("set", &["--cache", "write-through"]);
    daemon.run(&["disk", "set", "set", "--cache", "write-back"]);
    daemon.run(&["disk", "attach", "set"]);
    let one = place.join("one");
    let args = [
        "serve-one",
        "memory:8M",
        "--write-through",
        "--vhost-user",
        &one.display().to_string(),
    ];
    let mut server = Service::start(
        "serve-one",
        TIDEGATE.as_ref(),
        &args.map(str::to_owned),
        &[],
    );
    wait_until_it_answers(&mut server, &one);
    let [default, through, set] = ["default", "through", "set"].map(|disk| daemon.vhost_user(disk));
    let mut guest = Guest::boot(
        &place,
        &Hardware {
            disks: &[
                logged.vhost_user(),
                &default,
                &through,
                &set,
                &one,
                read_only.vhost_user(),
            ],
            cpus: 1,
        },
    );

    cache_is_as_set(&mut guest, ["vdb", "vdc", "vdd", "vde"]);
    writes_are_durable_by_the_cache(&mut guest, "vda", &log);
    assert_eq!(guest.run("cat /sys/block/vdf/ro"), "1");
    let write = "dd if=/dev/zero of=/dev/vdf bs=4k count=1 oflag=direct";
    let (code, _) = guest.attempt(write, PATIENCE);
    assert_ne!(code, 0, "a write to a read-only disk must fail");
    assert!(
        fs::read(&fixed).expect("the image can be read") == before,
        "the image has changed"
    );
}

/// An NBD server in memory that writes down what it is asked.
fn logging_upstream(log: &Path, socket: &Path) -> Service {
    let mut upstream = Service::start(
        "nbdkit",
        find("nbdkit").as_os_str(),
        &[
            "--foreground".to_owned(),
            format!("--unix={}", socket.display()),
            "--filter=log".to_owned(),
            "memory".to_owned(),
            "64M".to_owned(),
            format!("logfile={}", log.display()),
        ],
        &[],
    );
    while !socket.exists() {
        assert!(upstream.alive(), "nbdkit ended before it served");
        upstream.said.pause(std::time::Duration::from_millis(20));
    }
    upstream
}

/// What a guest finds before it has chosen anything: QEMU reads the configuration space when the device is made, long
/// before the guest's driver acknowledges a feature.
fn cache_is_as_set(guest: &mut Guest, disks: [&str; 4]) {
    let found = disks.map(|disk| guest.run(&format!("cat /sys/block/{disk}/cache_type")));
    assert_eq!(
        found,
        ["write back", "write through", "write back", "write through"]
    );
    // A guest that could still flush, or turn the cache on, is not one for which each write is made durable.
    let offered =
        disks.map(|disk| guest.run(&format!("cut -c 10,12 /sys/block/{disk}/device/features")));
    assert_eq!(offered, ["11", "00", "11", "00"], "FLUSH, CONFIG_WCE");
}

/// The upstream's log shows what was made durable.
fn writes_are_durable_by_the_cache(guest: &mut Guest, disk: &str, log: &Path) {
    let durable = || {
        let log = fs::read_to_string(log).expect("nbdkit writes its log");
        let flushes = log
            .lines()
            .filter(|l| l.contains(" Flush ") && !l.contains("...Flush"))
            .count();
        let fua = log
            .lines()
            .filter(|l| l.contains(" Write ") && l.contains("fua=1"))
            .count();
        (
            flushes + fua,
            log.lines().filter(|l| l.contains(" Write ")).count(),
        )
    };
    let cache = format!("/sys/block/{disk}/cache_type");
    let write = format!("dd if=/dev/urandom of=/dev/{disk} bs=4k count=8 oflag=direct 2>/dev/null");

    // A guest that is told write-back asks for durability itself.
    guest.run(&format!("echo 'write back' >{cache}"));
    assert_eq!(guest.run(&format!("cat {cache}")), "write back");
    let before = durable();
    guest.run(&write);
    let after = durable();
    assert_eq!(after.0, before.0, "nobody asked for durability");
    assert!(after.1 > before.1, "the writes went to the datastore");
    guest.run(&write.replace("oflag=direct", "oflag=direct conv=fsync"));
    assert!(durable().0 > after.0, "a flush was asked for");

    // One that is told write-through does not: every single write must be durable by itself.
    guest.run(&format!("echo 'write through' >{cache}"));
    let each_write_is_durable = |guest: &mut Guest| {
        assert_eq!(guest.run(&format!("cat {cache}")), "write through");
        let before = durable();
        guest.run(&write);
        let after = durable();
        assert!(
            after.0 >= before.0 + 8,
            "8 writes, {} made durable",
            after.0 - before.0
        );
    };
    each_write_is_durable(guest);
    // QEMU shows the next guest what this one chose, and says nothing of it to us.
    guest.reset();
    each_write_is_durable(guest);
}
