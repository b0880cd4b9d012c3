//! A stock guest with its disk: reboot, unplug, trim, cache modes, and a file system.

use std::fs;

use crate::support::daemon::Daemon;
use crate::support::guest::{Guest, Hardware};
use crate::support::place::{MIB, Place, allocated};
use crate::support::program::{Service, find};
use crate::support::server::{Server, Serving, TIDEGATE, wait_until_it_answers};

/// Writes a file of noise to a new file system, and leaves its checksum in `/mnt/sum`.
const FILL: &str = "mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt \
    && dd if=/dev/urandom of=/mnt/noise bs=64k count=320 2>/dev/null \
    && cd /mnt && sha256sum noise >sum && sync";

fn boot(place: &Place, server: &Server) -> Guest {
    Guest::boot(
        place,
        &Hardware {
            disks: &[server.vhost_user()],
            cpus: 2,
        },
    )
}

#[test]
fn a_file_system_outlives_a_reset_and_a_new_server() {
    let place = Place::new();
    let image = place.image("image", 128 * MIB);
    let mut server = Server::start(&place, Serving::image(&image));
    let mut guest = boot(&place, &server);
    assert_eq!(
        guest.run("cat /sys/block/vda/size"),
        (128 * MIB / 512).to_string()
    );
    guest.run(FILL);
    let sum = guest.run("cat /mnt/sum");

    guest.reset();
    guest.run("mount /dev/vda /mnt && cd /mnt && sha256sum -c sum");
    assert_eq!(guest.run("cat /mnt/sum"), sum);
    guest.run("umount /mnt && e2fsck -fn /dev/vda");
    assert_eq!(guest.complaints(), "");
    drop(guest);

    server.crash_and_restart();
    let place = Place::new();
    let mut guest = boot(&place, &server);
    guest.run("mount /dev/vda /mnt && cd /mnt && sha256sum -c sum");
    assert_eq!(guest.complaints(), "");
}

#[test]
fn a_disk_is_unplugged_from_a_running_guest_and_plugged_in_again() {
    let place = Place::new();
    let image = place.image("image", 128 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    let mut guest = boot(&place, &server);
    guest.run(FILL);
    guest.run("umount /mnt");

    for _ in 0..2 {
        guest.unplug(0);
        guest.run("test ! -e /sys/block/vda");
        guest.plug(0, server.vhost_user());
        guest.eventually("test -b /dev/vda");
    }
    guest.run("mount /dev/vda /mnt && cd /mnt && sha256sum -c sum");
    assert_eq!(guest.complaints(), "");
}

#[test]
fn trimming_gives_the_space_back_to_the_datastore() {
    let place = Place::new();
    let image = place.image("image", 128 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    let mut guest = boot(&place, &server);
    guest.run(FILL);
    let full = allocated(&image);
    assert!(
        full >= 20 * MIB,
        "20 MiB of noise take {full} bytes of the image"
    );

    guest.run("rm /mnt/noise && sync && fstrim /mnt");
    let trimmed = allocated(&image);
    assert!(
        trimmed + 19 * MIB < full,
        "of {full} bytes, {trimmed} are left after the trim"
    );
    guest.run("blkdiscard -f /dev/vda 2>/dev/null || { umount /mnt && blkdiscard /dev/vda; }");
    let discarded = allocated(&image);
    assert!(
        discarded <= MIB,
        "{discarded} bytes are left after the whole disk was discarded"
    );
    assert_eq!(guest.complaints(), "");
}

#[test]
fn a_write_is_durable_before_its_answer_when_the_guest_is_told_write_through() {
    let place = Place::new();
    let (log, socket) = (place.join("log"), place.join("upstream"));
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
    let source = format!("nbd+unix:///?socket={}", socket.display());
    let server = Server::start(
        &place,
        Serving {
            source,
            read_only: false,
        },
    );
    let mut guest = boot(&place, &server);
    let durable = || {
        let log = fs::read_to_string(&log).expect("nbdkit writes its log");
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

    // A guest that is told write-back asks for durability itself.
    guest.run("echo 'write back' >/sys/block/vda/cache_type");
    assert_eq!(guest.run("cat /sys/block/vda/cache_type"), "write back");
    let before = durable();
    guest.run("dd if=/dev/urandom of=/dev/vda bs=4k count=8 oflag=direct 2>/dev/null");
    let after = durable();
    assert_eq!(after.0, before.0, "nobody asked for durability");
    assert!(after.1 > before.1, "the writes went to the datastore");
    guest.run("dd if=/dev/urandom of=/dev/vda bs=4k count=8 oflag=direct conv=fsync 2>/dev/null");
    assert!(durable().0 > after.0, "a flush was asked for");

    // One that is told write-through does not: every single write must be durable by itself.
    guest.run("echo 'write through' >/sys/block/vda/cache_type");
    let each_write_is_durable = |guest: &mut Guest| {
        assert_eq!(guest.run("cat /sys/block/vda/cache_type"), "write through");
        let before = durable();
        guest.run("dd if=/dev/urandom of=/dev/vda bs=4k count=8 oflag=direct 2>/dev/null");
        let after = durable();
        assert!(
            after.0 >= before.0 + 8,
            "8 writes, {} made durable",
            after.0 - before.0
        );
    };
    each_write_is_durable(&mut guest);
    // QEMU shows the next guest what this one chose, and says nothing of it to us.
    guest.reset();
    each_write_is_durable(&mut guest);
}

/// What a guest hears before it has chosen anything: QEMU reads the configuration space when the device is made, long
/// before the guest's driver acknowledges a feature.
#[test]
fn a_guest_finds_the_cache_that_its_disk_is_set_to() {
    let place = Place::new();
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
    let sockets = ["default", "through", "set"].map(|disk| daemon.vhost_user(disk));
    let [default, through, set] = &sockets;
    let mut guest = Guest::boot(
        &place,
        &Hardware {
            disks: &[default, through, set, &one],
            cpus: 1,
        },
    );
    let found = ["vda", "vdb", "vdc", "vdd"]
        .map(|disk| guest.run(&format!("cat /sys/block/{disk}/cache_type")));
    assert_eq!(
        found,
        ["write back", "write through", "write back", "write through"]
    );
    // Who could still flush, or turn the cache on, is not the one for whom each write is made durable.
    let offered = ["vda", "vdb", "vdc", "vdd"]
        .map(|disk| guest.run(&format!("cut -c 10,12 /sys/block/{disk}/device/features")));
    assert_eq!(offered, ["11", "00", "11", "00"], "FLUSH, CONFIG_WCE");
}

#[test]
fn a_guest_cannot_write_to_a_read_only_disk() {
    let place = Place::new();
    let image = place.noise("image", 16 * MIB);
    let before = fs::read(&image).expect("the image can be read");
    let server = Server::start(
        &place,
        Serving {
            read_only: true,
            ..Serving::image(&image)
        },
    );
    let mut guest = boot(&place, &server);
    assert_eq!(guest.run("cat /sys/block/vda/ro"), "1");
    let (code, _) = guest.attempt(
        "dd if=/dev/zero of=/dev/vda bs=4k count=1 oflag=direct",
        crate::support::program::PATIENCE,
    );
    assert_ne!(code, 0, "a write to a read-only disk must fail");
    assert!(
        fs::read(&image).expect("the image can be read") == before,
        "the image has changed"
    );
}

#[test]
fn a_disk_reads_and_writes_memory_that_was_plugged_in_later() {
    let place = Place::new();
    let image = place.image("image", 256 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    let mut guest = boot(&place, &server);
    guest.add_memory(256);
    // More than the guest had free before: some of it must lie in the new memory, and the disk's I/O there with it.
    guest.run("mount -t tmpfs -o size=700m none /tmp");
    guest.run("dd if=/dev/urandom of=/tmp/seed bs=1M count=4 2>/dev/null");
    guest.run("for part in $(seq 50); do echo $part; cat /tmp/seed; done >/tmp/noise");
    guest.run("truncate -s 200M /tmp/noise && dd if=/tmp/noise of=/dev/vda bs=1M oflag=direct");
    guest.run("dd if=/dev/vda of=/tmp/back bs=1M count=200 iflag=direct");
    guest.run("cmp /tmp/noise /tmp/back");
    assert_eq!(guest.complaints(), "");
}
