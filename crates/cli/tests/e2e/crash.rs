//! The server dies under a verifying load, again and again, and its guests and clients do not notice.
//!
//! A guest runs fio with checksums on each block; QEMU keeps the queues' in-flight region and hands it to the next
//! server, which must finish what the last one had begun: each request once, none forgotten. On NBD the client must
//! ask again by itself: QEMU's block layer does, with fio in front of it.

use std::fs;
use std::thread;
use std::time::Instant;

use serde_json::Value;
use tidegate_testing::load::{Load, Source};
use tidegate_testing::tally::{Tally, Until};
use tidegate_testing::vhost::{GuestDriver, Vm, VmOptions, Wait};

use crate::support::daemon::Daemon;
use crate::support::guest::{Guest, Hardware};
use crate::support::place::{MIB, Place};
use crate::support::program::{PATIENCE, Program, Service, find};
use crate::support::server::{Server, Serving, wait_until_it_answers};

/// How often the server is killed.
const DEATHS: u32 = 10;

/// The guest's disks: the first is of a server of one disk, the second of a host's daemon.
const DISKS: [&str; 2] = ["vda", "vdb"];

/// Writes 4 KiB blocks all over 8 MiB and verifies them, pass after pass, each with other bytes, until it is asked
/// to stop or finds something wrong. What is read back must be what was last written there.
fn load(disk: &str) -> String {
    format!(
        "pass=0; code=0; \
         while [ $code = 0 ] && [ ! -e /run/stop ]; do pass=$((pass + 1)); \
         fio --name=load --filename=/dev/{disk} --size=8M --direct=1 --ioengine=libaio --iodepth=16 \
         --rw=randwrite --bs=4k --verify=crc32c --verify_backlog=256 --verify_fatal=1 --randseed=$pass \
         >/run/{disk}.log 2>&1; code=$?; done; echo $code >/run/{disk}.code"
    )
}

/// Prints how much of a disk the guest has completed, reads and writes, as its kernel counts it.
fn completed(disk: &str) -> String {
    format!("awk '{{print $1 + $5}}' /sys/block/{disk}/stat")
}

/// How many requests a load completes between two deaths.
const BETWEEN_DEATHS: u64 = 500;

/// The load on a disk continues: some hundreds of requests more than now.
fn wait_for_progress(guest: &mut Guest, disk: &str, round: u32) {
    let completed = completed(disk);
    let now: u64 = guest
        .run(&completed)
        .parse()
        .expect("the kernel counts in numbers");
    let (code, said) = guest.attempt(
        &format!(
            "while [ $({completed}) -lt {} ]; do test ! -e /run/{disk}.code || exit 1; sleep 0.05; done",
            now + BETWEEN_DEATHS
        ),
        PATIENCE,
    );
    if code != 0 {
        let report = guest.run(&format!("cat /run/{disk}.log; dmesg | tail -20"));
        panic!("the load on {disk} ended before death {round}: {said}\n{report}");
    }
}

/// One guest for both, since its boot and its connecting again take most of the time.
#[test]
fn a_guest_continues_when_a_server_and_a_daemon_are_killed_ten_times() {
    let place = Place::new();
    let image = place.image("image", 64 * MIB);
    let mut server = Server::start(&place, Serving::image(&image));
    let mut daemon = Daemon::start(&place);
    daemon.run(&["disk", "create", "system", "--size", "64M", "--attach"]);
    let system = daemon.vhost_user("system");
    let mut guest = Guest::boot(
        &place,
        &Hardware {
            disks: &[server.vhost_user(), &system],
            cpus: 2,
        },
    );
    for disk in DISKS {
        guest.run(&format!("{{ {}; }} &", load(disk)));
    }
    for death in 1..=DEATHS {
        for disk in DISKS {
            wait_for_progress(&mut guest, disk, death);
        }
        server.crash_and_restart();
        daemon.crash_and_restart();
    }
    for disk in DISKS {
        wait_for_progress(&mut guest, disk, DEATHS + 1);
    }
    guest.run("touch /run/stop");
    for disk in DISKS {
        guest.eventually(&format!("test -e /run/{disk}.code"));
        let report = guest.run(&format!("cat /run/{disk}.code /run/{disk}.log"));
        assert!(
            report.starts_with("0\n") && report.contains("err= 0"),
            "fio complains:\n{report}"
        );
    }
    assert_eq!(guest.complaints(), "");
}

/// The hardest case of an account in flight, made to happen: each queue's oldest write is still held back while
/// thousands of later ones have been answered. Nothing in the rings tells the next daemon of it; only the account does.
#[test]
fn a_write_held_back_long_before_the_daemon_died_is_answered_by_the_next_and_no_other_is() {
    const QUEUES: u16 = 2;
    const PART: u64 = MIB;
    const REQUESTS: u64 = 20_000;
    let place = Place::new();
    let mut daemon = Daemon::start(&place);
    let held = (0..u64::from(QUEUES)).map(|queue| {
        format!(
            "fault:delay=3600s,op=write,range={}-{}",
            PART * queue,
            PART * queue + 4096
        )
    });
    let mut create: Vec<String> = ["disk", "create", "slow", "--size", "8M", "--attach"]
        .map(str::to_owned)
        .into();
    for filter in std::iter::once("stats".to_owned()).chain(held) {
        create.extend(["--filter".to_owned(), filter]);
    }
    daemon.run(&create.iter().map(String::as_str).collect::<Vec<_>>());
    let mut options = VmOptions::new(&daemon.vhost_user("slow"), 16);
    options.queues = QUEUES;
    options.reconnect = Some(PATIENCE);
    let mut driver = GuestDriver::new(
        vec![Vm::connect(options).expect("a guest can connect")],
        Wait::Sleep,
    );
    let guest = thread::spawn(move || -> anyhow::Result<Tally> {
        // Each queue has a part of the disk to itself, whose first block it meets sooner or later.
        let mut sources: Vec<Source> = (0..QUEUES)
            .map(|queue| {
                let mut load = Load::verified(16, PART);
                (load.start, load.seed) = (PART * u64::from(queue), u64::from(queue));
                Source::new(load)
            })
            .collect();
        let mut tallies = driver.run(&mut sources, Until::Count(REQUESTS), &mut |_| {})?;
        sources.iter_mut().for_each(Source::start_sweep);
        tallies.extend(driver.run(&mut sources, Until::Exhausted, &mut |_| {})?);
        Ok(Tally::sum(&tallies))
    });
    let deadline = Instant::now() + PATIENCE;
    loop {
        let stats = daemon.run(&["stats", "slow", "-o", "json"]);
        let disk: Value = serde_json::from_str(&stats).expect("statistics are JSON");
        let answered = disk["all"]["ops_total"].as_u64();
        if answered == Some(REQUESTS - u64::from(QUEUES)) {
            assert_eq!(disk["outstanding"], QUEUES, "the rest is held back");
            break;
        }
        assert!(
            !guest.is_finished() && Instant::now() < deadline,
            "the guest does not come to the held blocks: {disk}"
        );
    }
    // The next daemon holds nothing back. (This one would keep a filter for as long as it holds a request.)
    daemon.kill();
    let descriptor = place.join("root/local/slow/disk.toml");
    let told = fs::read_to_string(&descriptor).expect("a disk has a descriptor");
    fs::write(&descriptor, told.replace("3600s", "1ms")).expect("it can be changed");
    let _next = Daemon::start(&place);
    let tally = guest.join().expect("a guest's thread ends");
    let tally = tally.expect("everything is answered, and once");
    assert_eq!(
        (tally.errors, tally.mismatched, tally.reconnections),
        (0, 0, 1),
        "{:?}",
        tally.mismatches
    );
}

#[test]
fn an_nbd_client_that_reconnects_loses_nothing_when_the_server_is_killed_ten_times() {
    // Enough passes to last for ten deaths; each verifies all that it wrote.
    const LOAD: [&str; 10] = [
        "--name=load",
        "--ioengine=nbd",
        "--rw=randwrite",
        "--bs=4k",
        "--size=16M",
        "--iodepth=16",
        "--verify=crc32c",
        "--verify_backlog=256",
        "--verify_fatal=1",
        "--loops=1",
    ];
    let place = Place::new();
    let image = place.image("image", 64 * MIB);
    let mut server = Server::start(&place, Serving::image(&image));
    let front = place.join("front");
    let args = [
        format!(
            "--blockdev=nbd,node-name=disk,reconnect-delay=60,server.type=unix,server.path={}",
            server.nbd().display()
        ),
        format!(
            "--nbd-server=addr.type=unix,addr.path={},max-connections=0",
            front.display()
        ),
        "--export=nbd,id=nbd,node-name=disk,name=,writable=on".to_owned(),
    ];
    let program = find("qemu-storage-daemon");
    let mut qemu = Service::start("QEMU's NBD client", program.as_os_str(), &args, &[]);
    wait_until_it_answers(&mut qemu, &front);

    let mut deaths = 0;
    let mut pass = 0;
    while deaths < DEATHS {
        pass += 1;
        let load = Program::new("fio")
            .args(LOAD)
            .arg(format!("--randseed={pass}"))
            .arg(format!("--uri=nbd+unix:///?socket={}", front.display()));
        let fio = thread::spawn(move || load.run());
        // A death each time that the load has written some more, as the image's own clock tells.
        let mut last = modified(&image);
        while !fio.is_finished() && deaths < DEATHS {
            let now = modified(&image);
            if now != last {
                server.crash_and_restart();
                deaths += 1;
                last = modified(&image);
            }
            qemu.said.pause(std::time::Duration::from_millis(50));
        }
        let said = fio.join().expect("fio is content, or has said why not");
        assert!(said.contains("err= 0"), "{said}");
    }
}

fn modified(image: &std::path::Path) -> std::time::SystemTime {
    let metadata = std::fs::metadata(image).expect("the image is there");
    metadata.modified().expect("Linux keeps this")
}
