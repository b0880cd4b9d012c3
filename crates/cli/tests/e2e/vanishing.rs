//! Damaged slot files and vanishing datastores: I/O continues, and the hosts find each other again.
//!
//! `TIDEGATE_VANISH_SECONDS=60` keeps datastores away for a minute. If nothing is said, the directory through which hosts
//! meet is away for ten seconds longer than the lease of a host, and an upstream stands still for ten seconds.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::daemon::Daemon;
use crate::support::place::{MIB, Place};
use crate::support::program::{PATIENCE, Program, Service, find};
use crate::support::server::{Server, Serving};

/// A slot of `hosts.v1`, and what the first and all others begin with.
const SLOT: usize = 4096;
const COMMON: &[u8] = b"TIDEGALL";
const HOST: &[u8] = b"TIDEGHST";

/// How long something is to be away; `usual` if nothing is said.
fn away(usual: Duration) -> Duration {
    std::env::var("TIDEGATE_VANISH_SECONDS").map_or(usual, |text| {
        let seconds = text.parse();
        Duration::from_secs(seconds.expect("TIDEGATE_VANISH_SECONDS is a number"))
    })
}

/// A client that writes blocks and reads them back, all the while.
struct Load {
    service: Service,
    stop: PathBuf,
}

impl Load {
    fn on(place: &Place, daemon: &Daemon, disk: &str) -> Load {
        const SCRIPT: &str = "
import os, struct, time
n = 0
while not os.path.exists(os.environ['STOP']):
    content = struct.pack('<Q', n) * 512
    h.pwrite(content, n % 256 << 12)
    assert h.pread(4096, n % 256 << 12) == content
    n += 1
    if n % 20 == 0: print('block', n, flush=True)
    time.sleep(0.005)
print('content', flush=True)
";
        let stop = place.join(&format!("stop-{disk}"));
        let args = ["-u", &daemon.nbd_uri(disk), "-c", SCRIPT].map(str::to_owned);
        let env = [
            ("PATH", "/usr/bin:/bin".to_owned()),
            ("STOP", stop.display().to_string()),
        ];
        let service = Service::start("load", find("nbdsh").as_os_str(), &args, &env);
        let load = Load { service, stop };
        load.goes_on();
        load
    }

    /// Waits for more to be done.
    fn goes_on(&self) {
        let said = &self.service.said;
        // Of two, one may have been written before now.
        said.wait("more blocks", said.mark(), PATIENCE, |more| {
            more.match_indices("block").nth(1)?;
            Some(())
        });
    }

    /// Ends it; all must have been right.
    fn end(mut self) {
        fs::write(&self.stop, "").expect("a file can be written");
        assert!(self.service.end().success(), "a client is not content");
    }
}

fn control(daemon: &Daemon, datastore: &str) -> Value {
    daemon.json(&["datastore", "show", datastore])["control"].take()
}

/// Waits until something is so.
fn wait(what: &str, mut is: impl FnMut() -> Result<(), String>) {
    let begun = Instant::now();
    while let Err(why) = is() {
        assert!(begun.elapsed() < PATIENCE, "{what}: {why}");
        std::thread::yield_now();
    }
}

/// Waits until a host hears of so many, all of them well.
fn wait_for_hosts(daemon: &Daemon, datastore: &str, many: usize) {
    wait("hosts that hear each other", || {
        let control = control(daemon, datastore);
        let hosts = control["hosts"].as_array().map_or(&[][..], Vec::as_slice);
        let well = hosts.iter().filter(|host| host["suspect"] == false);
        let trouble = &control["trouble"];
        match well.count() == many && hosts.len() == many && trouble.is_null() {
            true => Ok(()),
            false => Err(format!("{control:#}")),
        }
    });
}

/// How often a daemon has said something.
fn told(daemon: &Daemon, words: &str) -> usize {
    daemon.said().matches(words).count()
}

fn wait_until_told(daemon: &Daemon, words: &str, times: usize) {
    wait("the log", || match told(daemon, words) >= times {
        true => Ok(()),
        false => Err(format!("'{words}' is not there {times} times")),
    });
}

const TROUBLE: &str = "the slots of hosts in .tidegate cannot be";
const TROUBLE_OVER: &str = "the slots of hosts can be read and written again";
const FOREIGN: &str = "holds no host's word";
const FOREIGN_OVER: &str = "every slot of .tidegate/hosts.v1 makes sense again";

/// Two daemons on one directory, each with a disk under load.
fn two_hosts(place: &Place) -> ([Daemon; 2], [Load; 2]) {
    let shared = place.join("shared");
    fs::create_dir(&shared).expect("a directory can be made");
    let shared = shared.display().to_string();
    let daemons = ["a", "b"].map(|disk| {
        let daemon = Daemon::start_with(place, &format!("root-{disk}"), &["--threads", "1"]);
        daemon.run(&["datastore", "add", "shared", "--path", &shared]);
        let create = ["disk", "create", disk, "-d", "shared", "--size", "8M"];
        daemon.run(&[&create[..], &["--attach"]].concat());
        daemon
    });
    let [one, other] = &daemons;
    let loads = [Load::on(place, one, "a"), Load::on(place, other, "b")];
    (daemons, loads)
}

#[test]
fn damaged_truncated_and_foreign_slot_files_are_repaired_and_reported_once() {
    let place = Place::new();
    let (daemons, loads) = two_hosts(&place);
    let folder = place.join("shared/.tidegate");
    let file = folder.join("hosts.v1");
    let whole = || {
        wait("a slot file with both hosts", || {
            let bytes = fs::read(&file).map_err(|error| error.to_string())?;
            let begins = |slot: usize, magic: &[u8]| bytes[slot * SLOT..].starts_with(magic);
            match bytes.len() >= 3 * SLOT && begins(0, COMMON) && begins(1, HOST) && begins(2, HOST)
            {
                true => Ok(()),
                false => Err(format!("{} bytes", bytes.len())),
            }
        });
        for (daemon, load) in daemons.iter().zip(&loads) {
            wait_for_hosts(daemon, "shared", 2);
            wait("what was set", || {
                let unit = &control(daemon, "shared")["io_unit_bytes"];
                match *unit == 16 << 10 {
                    true => Ok(()),
                    false => Err(format!("the unit is {unit}")),
                }
            });
            load.goes_on();
        }
    };
    daemons[0].run(&["datastore", "set", "shared", "--io-unit", "16KiB"]);
    whole();

    // Foreign bytes over everything: each host writes its own slot again, and one of them what is set for all. What is
    // nobody's stays as it is and is told, until somebody takes it away.
    let writable = OpenOptions::new().write(true).open(&file);
    let writable = writable.expect("the file is there");
    let foreign = b"nothing of ours ".repeat(10 * SLOT / 16);
    writable
        .write_all_at(&foreign, 0)
        .expect("it can be written");
    whole();
    for daemon in &daemons {
        wait_until_told(daemon, FOREIGN, 1);
        let control = control(daemon, "shared");
        assert!(
            control["unreadable_slots_total"].as_u64() > Some(0),
            "{control:#}"
        );
    }
    let nothing = vec![0; 7 * SLOT];
    let after = 3 * SLOT as u64;
    writable
        .write_all_at(&nothing, after)
        .expect("it can be written");
    for daemon in &daemons {
        wait_until_told(daemon, FOREIGN_OVER, 1);
    }

    // Cut off in the midst of a slot.
    writable.set_len(5_000).expect("it can be cut");
    whole();

    // Another file in its place, then none at all, nor its directory.
    let other = place.join("shared/other");
    fs::write(&other, vec![0x5a; 3 * SLOT + 100]).expect("a file can be written");
    fs::rename(&other, &file).expect("a file can be replaced");
    whole();
    fs::rename(&folder, place.join("shared/.moved")).expect("a directory can be moved");
    whole();

    loads.into_iter().for_each(Load::end);
    for daemon in daemons {
        assert_eq!(told(&daemon, TROUBLE), 0, "{}", daemon.said());
        // The foreign bytes, and the foreign file, if that was read twice before it was mended.
        assert!(told(&daemon, FOREIGN) <= 2, "{}", daemon.said());
        assert_eq!(
            told(&daemon, "no longer writes its slot"),
            0,
            "{}",
            daemon.said()
        );
        assert!(daemon.stop("TERM").success());
    }
}

/// A directory that is another one, until it is taken away.
struct Mount(PathBuf);

impl Mount {
    fn of(kind: &[&str], at: PathBuf) -> Mount {
        fs::create_dir_all(&at).expect("a mount point can be made");
        Program::new("mount").args(kind).arg(&at).run();
        Mount(at)
    }

    fn again(&self, kind: &[&str]) {
        Program::new("mount").args(kind).arg(&self.0).run();
    }

    /// As a file server that goes away does, but for that nobody waits for it: files that are open stay.
    fn vanish(&self) {
        Program::new("umount").arg("-l").arg(&self.0).run();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Program::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn in_a_read_only_directory_disks_are_served_without_coordination_and_it_is_reported_once() {
    let place = Place::new();
    let meeting = place.join("meeting");
    let mount = Mount::of(
        &["-t", "tmpfs", "-o", "size=4m", "tidegate-test"],
        meeting.join(".tidegate"),
    );
    let daemon = Daemon::start_with(&place, "root", &["--threads", "1"]);
    daemon.run(&["datastore", "add", "ram", "--kind", "memory"]);
    let meeting = meeting.display().to_string();
    daemon.run(&["datastore", "set", "ram", "--coordination", &meeting]);
    daemon.run(&["disk", "create", "a", "-d", "ram", "--size", "8M"]);
    // Once without a slot file, once with the one that was left there.
    for round in 1..=2 {
        mount.again(&["-o", "remount,ro"]);
        daemon.run(&["disk", "attach", "a"]);
        wait_until_told(&daemon, TROUBLE, round);
        let load = Load::on(&place, &daemon, "a");
        let shown = control(&daemon, "ram");
        assert!(
            shown["slot"].is_null() && !shown["trouble"].is_null(),
            "{shown:#}"
        );
        load.goes_on();
        mount.again(&["-o", "remount,rw"]);
        wait_until_told(&daemon, TROUBLE_OVER, round);
        wait("a slot", || {
            match control(&daemon, "ram")["slot"].is_null() {
                true => Err("there is none".to_owned()),
                false => Ok(()),
            }
        });
        load.goes_on();
        load.end();
        fs::remove_file(place.join("stop-a")).expect("it was written");
        assert_eq!(told(&daemon, TROUBLE), round, "{}", daemon.said());
        assert_eq!(told(&daemon, TROUBLE_OVER), round, "{}", daemon.said());
        daemon.run(&["disk", "detach", "a", "--yes"]);
    }
    assert!(daemon.stop("TERM").success());
}

/// fio, with more reads outstanding than a slow array likes.
fn backlog(daemon: &Daemon, disk: &str) -> Service {
    let args = [
        "--name=load",
        "--ioengine=nbd",
        "--rw=randread",
        "--bs=4k",
        "--iodepth=64",
        "--size=64M",
        "--time_based",
        "--runtime=600",
        &format!("--uri={}", daemon.nbd_uri(disk)),
    ]
    .map(str::to_owned);
    Service::start("fio", find("fio").as_os_str(), &args, &[])
}

/// What a disk has done so far.
fn done(daemon: &Daemon, disk: &str) -> u64 {
    let told = daemon
        .rest()
        .ask("GET", &format!("/v1/disks/{disk}/stats"), "");
    let told: Value = serde_json::from_str(&told).expect("REST answers in JSON");
    let ended = &told["all"]["ops_total"];
    ended
        .as_u64()
        .unwrap_or_else(|| panic!("no I/Os in {told:#}"))
}

#[test]
fn hosts_continue_without_a_vanished_coordination_directory_and_resume_with_it() {
    let place = Place::new();
    let shared = place.join("shared");
    fs::create_dir(&shared).expect("a directory can be made");
    let shared = shared.display().to_string();
    // Each host has mounted it for itself.
    let bind = ["--bind", &shared];
    let mounts = ["one", "other"].map(|host| Mount::of(&bind, place.join(&format!("mnt-{host}"))));
    let daemons = ["one", "other"].map(|host| {
        let daemon = Daemon::start_with(&place, host, &["--threads", "1"]);
        let add = ["datastore", "add", "array", "--kind", "emulated"];
        daemon.run(&[&add[..], &["--model", "raid0-2x15k"]].concat());
        let meeting = place.join(&format!("mnt-{host}")).display().to_string();
        let set = ["datastore", "set", "array", "--coordination", &meeting];
        daemon.run(&[&set[..], &["--congestion-threshold", "40ms"]].concat());
        let create = ["disk", "create", host, "-d", "array", "--size", "64M"];
        daemon.run(&[&create[..], &["--attach"]].concat());
        daemon
    });
    let [one, other] = &daemons;
    let loads = [backlog(one, "one"), backlog(other, "other")];
    for daemon in &daemons {
        wait_for_hosts(daemon, "array", 2);
        wait("a congested array", || {
            match control(daemon, "array")["engaged"] == true {
                true => Ok(()),
                false => Err("it is not".to_owned()),
            }
        });
    }
    let lease = control(one, "array")["hosts"][0]["lease_s"].as_f64();
    let lease = Duration::from_secs_f64(lease.expect("a host says how long it may be silent"));
    let span = away(lease + Duration::from_secs(10));
    println!("lease {lease:?}, away for {span:?}");

    mounts[0].vanish();
    let (gone, before) = (Instant::now(), done(one, "one"));
    // Alone before it is back, as long as it is away for longer than a lease.
    wait_until_told(one, "cannot be read: this host decides alone", 1);
    wait_until_told(other, "no longer writes its slot", 1);
    while gone.elapsed() < span {
        loads[0].said.pause(Duration::from_millis(200));
    }
    assert!(done(one, "one") > before, "I/O went on");
    let shown = control(one, "array");
    assert_eq!(shown["alone"], true, "{shown:#}");
    assert!(!shown["trouble"].is_null(), "{shown:#}");
    // Nothing was made in the place of what had been mounted.
    let left = fs::read_dir(&mounts[0].0).expect("the mount point is there");
    assert_eq!(left.count(), 0);

    mounts[0].again(&bind);
    for daemon in &daemons {
        wait_for_hosts(daemon, "array", 2);
    }
    let before = [done(one, "one"), done(other, "other")];
    wait("I/O goes on on both", || {
        let now = [done(one, "one"), done(other, "other")];
        match now[0] > before[0] + 100 && now[1] > before[1] + 100 {
            true => Ok(()),
            false => Err(format!("{before:?}, now {now:?}")),
        }
    });
    for (words, times) in [
        (TROUBLE, 1),
        (TROUBLE_OVER, 1),
        ("cannot be read: this host decides alone", 1),
        ("can be read again", 1),
        ("cannot be written: it takes no more", 1),
        ("can be written again", 1),
    ] {
        wait_until_told(one, words, times);
        assert_eq!(told(one, words), times, "'{words}' in:\n{}", one.said());
        assert_eq!(told(other, words), 0, "'{words}' in:\n{}", other.said());
    }
    assert_eq!(
        told(other, "no longer writes its slot"),
        1,
        "{}",
        other.said()
    );
    for mut load in loads {
        load.stop("INT");
        let said = load.said.text();
        assert!(said.contains("err= 0"), "{said}");
    }
    let [one, other] = daemons;
    assert!(one.stop("TERM").success() && other.stop("TERM").success());
}

/// `kill -NAME`.
fn signal(id: u32, name: &str) {
    Program::new("kill")
        .args([format!("-{name}"), id.to_string()])
        .run();
}

#[test]
fn a_stalled_upstream_delays_only_its_own_disk() {
    /// From then on requests fail at once, until the upstream is back: docs/datastores.md.
    const WAITS: Duration = Duration::from_secs(30);
    let place = Place::new();
    let image = place.image("image", 8 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    let daemon = Daemon::start_with(&place, "root", &["--threads", "1"]);
    let uri = format!("nbd+unix://?socket={}", server.nbd().display());
    daemon.run(&["datastore", "add", "up", "--kind", "nbd", "--uri", &uri]);
    let meeting = place.join("meeting");
    fs::create_dir(&meeting).expect("a directory can be made");
    let meeting = meeting.display().to_string();
    daemon.run(&["datastore", "set", "up", "--coordination", &meeting]);
    let create = ["disk", "create", "far", "-d", "up", "--export", "disk"];
    daemon.run(&[&create[..], &["--attach"]].concat());
    daemon.run(&["disk", "create", "near", "--size", "8M", "--attach"]);
    let (far, near) = (
        Load::on(&place, &daemon, "far"),
        Load::on(&place, &daemon, "near"),
    );
    let span = away(Duration::from_secs(10));
    signal(server.id(), "STOP");
    let gone = Instant::now();
    // What is under way ends; then nothing does.
    let mut mark = far.service.said.mark();
    while gone.elapsed() < span {
        near.goes_on();
        far.service.said.pause(Duration::from_millis(500));
        let said = far.service.said.mark();
        assert!(
            said == mark || gone.elapsed() < span / 2 || span > WAITS,
            "it goes on without its bytes"
        );
        mark = said;
        // Nor does control: the hosts' directory is there.
        let shown = control(&daemon, "up");
        assert!(
            shown["trouble"].is_null() && !shown["slot"].is_null(),
            "{shown:#}"
        );
        assert_eq!(
            (&shown["alone"], &shown["mute"]),
            (&false.into(), &false.into()),
            "{shown:#}"
        );
    }
    signal(server.id(), "CONT");
    if span < WAITS {
        far.goes_on();
        far.end();
    } else {
        // Its client was told of an error when the patience was over; the next is served.
        drop(far);
        let again = Load::on(&place, &daemon, "far");
        again.end();
    }
    near.end();
    assert!(daemon.stop("TERM").success());
}
