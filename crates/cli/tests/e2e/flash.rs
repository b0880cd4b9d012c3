//! A flash cache under real clients: the daemon dies under a verifying load, the cache changes under it, and flash is lost.
//!
//! `TIDEGATE_E2E_DEATHS` and `TIDEGATE_E2E_CHANGES` set how often; by hand they are 20 and 50.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::{PATIENCE, Program, Service, find};
use crate::support::server::wait_until_it_answers;

mod devices;
mod unreadable;

/// A daemon with disk `d` and cache `fast` of two files, which may be written often.
fn start(place: &Place) -> Daemon {
    start_with(place, "1000dwpd")
}

fn start_with(place: &Place, endurance: &str) -> Daemon {
    let daemon = Daemon::start(place);
    daemon.run(&["disk", "create", "d", "--size", "32M", "--attach"]);
    let [one, two] = devices(place).map(|path| path.display().to_string());
    daemon.run(&[
        "cache",
        "create",
        "fast",
        "--device",
        &one,
        "--mirror",
        &two,
        "--size",
        "64M",
        "--endurance",
        endurance,
    ]);
    daemon
}

fn devices(place: &Place) -> [PathBuf; 2] {
    ["flash0", "flash1"].map(|name| place.join(name))
}

fn write_back(daemon: &Daemon) {
    daemon.run(&[
        "disk",
        "set",
        "d",
        "--cache",
        "fast",
        "--cache-mode",
        "write-back",
    ]);
}

fn cache(daemon: &Daemon) -> Value {
    daemon.json(&["disk", "show", "d"])["flash"].clone()
}

fn often(variable: &str, usual: u32) -> u32 {
    let told = std::env::var(variable).ok();
    told.and_then(|told| told.parse().ok()).unwrap_or(usual)
}

/// fio's checksums over NBD through QEMU, which connects again by itself: pass after pass until it is told to stop.
struct Load {
    _qemu: Service,
    front: PathBuf,
    stop: PathBuf,
    passes: Option<JoinHandle<u32>>,
}

impl Load {
    fn start(place: &Place, daemon: &Daemon) -> Load {
        let front = place.join("front");
        let socket = place.join("root/run/nbd.sock");
        assert!(daemon.nbd_uri("d").contains("nbd.sock"));
        let args = [
            format!(
                "--blockdev=nbd,node-name=disk,reconnect-delay=60,export=d,server.type=unix,server.path={}",
                socket.display()
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
        let stop = place.join("stop");
        let (there, until) = (front.clone(), stop.clone());
        let passes = thread::spawn(move || {
            let mut pass = 0;
            while !until.exists() {
                pass += 1;
                let said = Program::new("fio")
                    .args([
                        "--name=load",
                        "--ioengine=nbd",
                        "--rw=randrw",
                        "--rwmixread=30",
                        "--bs=4k",
                    ])
                    .args([
                        "--size=8M",
                        "--iodepth=16",
                        "--verify=crc32c",
                        "--verify_backlog=256",
                    ])
                    .args(["--verify_fatal=1", "--fsync=64"])
                    .arg(format!("--randseed={pass}"))
                    .arg(format!("--uri=nbd+unix:///?socket={}", there.display()))
                    .run();
                assert!(said.contains("err= 0"), "{said}");
            }
            pass
        });
        Load {
            _qemu: qemu,
            front,
            stop,
            passes: Some(passes),
        }
    }

    /// The load writes some more than now.
    fn goes_on(&self, daemon: &Daemon) {
        let written = || {
            let stats = daemon.json(&["stats", "d"]);
            stats["all"]["ops_total"].as_u64().unwrap_or(0)
        };
        let enough = written() + 300;
        let deadline = Instant::now() + PATIENCE;
        while written() < enough {
            self.must_run();
            assert!(Instant::now() < deadline, "the load stands still");
            thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// Some of what it writes is only on flash.
    fn is_on_flash_only(&self, daemon: &Daemon) {
        let deadline = Instant::now() + PATIENCE;
        while cache(daemon)["at_work"]["dirty_bytes"].as_u64() == Some(0) {
            self.must_run();
            assert!(Instant::now() < deadline, "nothing is only on flash");
            thread::park_timeout(Duration::from_millis(20));
        }
    }

    fn must_run(&self) {
        let is_over = self.passes.as_ref().is_none_or(JoinHandle::is_finished);
        assert!(
            !is_over,
            "fio has ended; {} was its server",
            self.front.display()
        );
    }

    /// Ends it after its pass; how many it has made.
    fn end(mut self) -> u32 {
        fs::write(&self.stop, "").expect("a file can be written");
        let passes = self.passes.take().expect("it runs");
        passes
            .join()
            .expect("fio finds each block as it was written")
    }
}

#[test]
fn a_write_back_cache_loses_nothing_when_the_daemon_is_killed_again_and_again() {
    let place = Place::new();
    let mut daemon = start(&place);
    write_back(&daemon);
    let load = Load::start(&place, &daemon);
    for _ in 0..often("TIDEGATE_E2E_DEATHS", 3) {
        load.goes_on(&daemon);
        load.is_on_flash_only(&daemon);
        daemon.crash_and_restart();
        assert_eq!(cache(&daemon)["at_work"]["mode"], "write-back");
    }
    load.goes_on(&daemon);
    let passes = load.end();
    println!("{passes} passes of fio");
    daemon.run(&["disk", "detach", "d", "--disconnect"]);
    assert_eq!(cache(&daemon)["has_dirty"], false);
}

#[test]
fn a_cache_is_changed_taken_off_and_given_back_under_load() {
    let place = Place::new();
    let daemon = start(&place);
    let load = Load::start(&place, &daemon);
    for _ in 0..often("TIDEGATE_E2E_CHANGES", 3) {
        for change in [
            &["--cache", "fast"][..],
            &["--cache-mode", "write-back"],
            &["--cache-mode", "write-through"],
            &["--cache-mode", "write-back"],
            &["--cache", "none"],
        ] {
            let mut words = vec!["disk", "set", "d"];
            words.extend(change);
            daemon.run(&words);
            load.goes_on(&daemon);
        }
    }
    println!("{} passes of fio", load.end());
    daemon.run(&["cache", "remove", "fast"]);
}

#[test]
fn a_load_goes_on_past_a_cache_whose_write_budget_is_used_up() {
    let place = Place::new();
    // A day's budget is 6 MiB.
    let daemon = start_with(&place, "0.1dwpd");
    write_back(&daemon);
    let load = Load::start(&place, &daemon);
    let shown = || daemon.json(&["cache", "show", "fast"]);
    let deadline = Instant::now() + PATIENCE;
    while cache(&daemon)["at_work"]["budget_is_spent"] != true {
        load.must_run();
        assert!(Instant::now() < deadline, "{:#}", shown());
        thread::park_timeout(Duration::from_millis(100));
    }
    assert_eq!(shown()["budget_is_spent"], true);
    // What was under way has ended.
    load.goes_on(&daemon);
    let written = || {
        let cache = shown();
        ["flash_written_bytes_total", "flash_journal_bytes_total"]
            .map(|count| cache[count].as_u64().expect("a count"))
    };
    let before = written();
    load.goes_on(&daemon);
    let after = written();
    let [all, journal] = [0, 1].map(|nth| after[nth] - before[nth]);
    assert!(before[0] > before[1], "guests' data was written before");
    assert_eq!(all, journal, "only records that pages are given up");
    assert_eq!(cache(&daemon)["at_work"]["budget_is_spent"], true);
    let said = daemon.run(&["cache", "show", "fast"]);
    assert!(said.contains("used up"), "{said}");
    assert!(events(&daemon).contains("cache-budget-spent"));
    load.end();
    daemon.run(&["disk", "set", "d", "--cache", "none"]);
}

/// What a disk has at a place, read over NBD.
fn read(daemon: &Daemon, at: &str) -> String {
    Program::new("qemu-io")
        .args(["-f", "raw", "-r", "-c", &format!("read -v {at} 512")])
        .arg(daemon.nbd_uri("d"))
        .run()
}

fn write(daemon: &Daemon, pattern: &str) {
    let command = format!("write -P {pattern} 0 1M");
    let said = Program::new("qemu-io")
        .args(["-f", "raw", "-c", &command, "-c", "flush"])
        .arg(daemon.nbd_uri("d"))
        .run();
    assert!(said.contains("wrote 1048576"), "{said}");
}

/// Writes until the writes are on flash only.
fn write_until_dirty(daemon: &Daemon) {
    let deadline = Instant::now() + PATIENCE;
    while cache(daemon)["at_work"]["dirty_bytes"].as_u64() == Some(0) {
        assert!(Instant::now() < deadline, "nothing is only on flash");
        let said = Program::new("qemu-io")
            .args(["-f", "raw", "-c", "write -P 0x11 0 4k", "-c", "flush"])
            .arg(daemon.nbd_uri("d"))
            .run();
        assert!(said.contains("wrote 4096"), "{said}");
    }
}

fn refused(daemon: &Daemon, words: &[&str]) -> String {
    let tried = daemon.attempt(words);
    let said = String::from_utf8_lossy(&tried.stderr).into_owned();
    assert!(!tried.status.success(), "{said}");
    said
}

fn noise(path: &Path) {
    let len = fs::metadata(path).expect("a device").len();
    let bytes = vec![0xd7; usize::try_from(len).expect("a small file")];
    fs::write(path, bytes).expect("it can be written");
}

#[test]
fn flash_that_was_overwritten_is_refused_and_the_disk_is_as_it_was() {
    let place = Place::new();
    let daemon = start(&place);
    write(&daemon, "0x22");
    write_back(&daemon);
    write_until_dirty(&daemon);
    daemon.run(&["disk", "detach", "d", "--keep-dirty"]);
    let image = place.join("root/local/d/image");
    let before = fs::read(&image).expect("an image");
    daemon.stop("TERM");
    devices(&place).iter().for_each(|device| noise(device));
    let daemon = Daemon::start(&place);
    let said = refused(&daemon, &["disk", "attach", "d"]);
    for part in ["cache fast", "overwritten", "--discard-cache"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(
        fs::read(&image).expect("an image") == before,
        "nothing was changed"
    );
    let shown = daemon.run(&["cache", "show", "fast"]);
    assert!(shown.contains("overwritten"), "{shown}");
    daemon.run(&["disk", "attach", "d", "--discard-cache", "--yes"]);
    assert!(read(&daemon, "64k").contains("22 22 22"));
}

#[test]
fn another_daemon_refuses_a_disk_with_dirty_data_and_never_leads_to_stale_flash() {
    let place = Place::new();
    let shared = place.join("shared").display().to_string();
    fs::create_dir(&shared).expect("a directory");
    let daemon = Daemon::start(&place);
    daemon.run(&["datastore", "add", "shared", "--path", &shared]);
    daemon.run(&[
        "disk",
        "create",
        "d",
        "--size",
        "32M",
        "--datastore",
        "shared",
        "--attach",
    ]);
    let [one, two] = devices(&place).map(|path| path.display().to_string());
    daemon.run(&[
        "cache", "create", "fast", "--device", &one, "--mirror", &two, "--size", "64M",
    ]);
    write_back(&daemon);
    write_until_dirty(&daemon);
    let mut daemon = daemon;
    daemon.kill();
    let other = Daemon::start_with(&place, "other", &[]);
    other.run(&["datastore", "add", "shared", "--path", &shared]);
    let said = refused(&other, &["disk", "attach", "d"]);
    for part in ["cache fast", "up to", "cache flush fast d"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let daemon = Daemon::start(&place);
    daemon.run(&["disk", "set", "d", "--cache-mode", "write-through"]);
    write(&daemon, "0x33");
    daemon.run(&["disk", "detach", "d"]);
    other.run(&["disk", "attach", "d"]);
    write(&other, "0x44");
    other.run(&["disk", "detach", "d"]);
    daemon.run(&["disk", "attach", "d"]);
    assert_eq!(cache(&daemon)["at_work"]["in_use"], true);
    assert!(read(&daemon, "0").contains("44 44 44"));
    assert!(read(&daemon, "64k").contains("44 44 44"));
}

/// A device fails from now on: its file is cut, which the daemon notices.
fn lose(device: &Path) {
    let file = fs::File::options().write(true).open(device);
    file.and_then(|file| file.set_len(0))
        .expect("it can be cut");
}

fn events(daemon: &Daemon) -> String {
    daemon.run(&["events", "-o", "json"])
}

/// Waits until what is shown of the disk has this, while something is written.
fn wait_for(daemon: &Daemon, what: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !cache(daemon).to_string().contains(what) {
        assert!(Instant::now() < deadline, "no {what} in {}", cache(daemon));
        let _ = Program::new("qemu-io")
            .args(["-f", "raw", "-c", "write -P 0x22 0 64k", "-c", "read 0 64k"])
            .arg(daemon.nbd_uri("d"))
            .output();
    }
}

#[test]
fn a_write_through_disk_goes_on_when_all_flash_is_lost() {
    let place = Place::new();
    let mut daemon = start(&place);
    daemon.run(&["disk", "set", "d", "--cache", "fast"]);
    write(&daemon, "0x22");
    devices(&place).iter().for_each(|device| lose(device));
    wait_for(&daemon, "have failed");
    write(&daemon, "0x55");
    daemon.crash_and_restart();
    assert!(read(&daemon, "0").contains("55 55 55"));
}

#[test]
fn a_disk_that_moves_goes_on_when_all_flash_is_lost() {
    let place = Place::new();
    let daemon = start(&place);
    daemon.run(&["disk", "set", "d", "--cache", "fast"]);
    write(&daemon, "0x22");
    let other = place.join("other").display().to_string();
    fs::create_dir(&other).expect("a directory can be created");
    daemon.run(&["datastore", "add", "other", "--path", &other]);
    // This takes longer than the test.
    let slow = "disk move d --to other --rate 64KiB/s --no-wait";
    daemon.run(&slow.split(' ').collect::<Vec<_>>());
    devices(&place).iter().for_each(|device| lose(device));
    wait_for(&daemon, "have failed");
    write(&daemon, "0x55");
    let jobs = daemon.json(&["job", "list"]);
    let mut jobs = jobs["jobs"].as_array().into_iter().flatten();
    let job = jobs.find(|job| job["state"] == "running");
    let job = job.expect("it still moves");
    daemon.run(&["job", "cancel", &job["id"].to_string()]);
    assert!(read(&daemon, "0").contains("55 55 55"));
}

#[test]
fn a_mirrored_write_back_cache_goes_on_with_one_device() {
    let place = Place::new();
    let daemon = start(&place);
    write_back(&daemon);
    write_until_dirty(&daemon);
    lose(&devices(&place)[0]);
    wait_for(&daemon, "\"devices\":1");
    write(&daemon, "0x66");
    assert!(events(&daemon).contains("cache-device-lost"));
    daemon.run(&["disk", "detach", "d"]);
    daemon.run(&["disk", "set", "d", "--cache", "none"]);
    daemon.run(&["disk", "attach", "d"]);
    assert!(read(&daemon, "0").contains("66 66 66"));
}

#[test]
fn a_write_back_disk_on_one_device_stops_when_that_is_lost_and_says_what_is_lost() {
    let place = Place::new();
    let daemon = Daemon::start(&place);
    daemon.run(&["disk", "create", "d", "--size", "32M", "--attach"]);
    let device = devices(&place)[0].display().to_string();
    daemon.run(&[
        "cache", "create", "fast", "--device", &device, "--size", "64M",
    ]);
    let words = [
        "disk",
        "set",
        "d",
        "--cache",
        "fast",
        "--cache-mode",
        "write-back",
    ];
    assert!(refused(&daemon, &words).contains("--single-device-ok"));
    daemon.run(&[&words[..], &["--single-device-ok"]].concat());
    write_until_dirty(&daemon);
    lose(&devices(&place)[0]);
    wait_for(&daemon, "has stopped");
    let said = cache(&daemon).to_string();
    assert!(said.contains("65536 bytes"), "{said}");
    daemon.run(&["disk", "detach", "d", "--keep-dirty"]);
    daemon.run(&["disk", "attach", "d", "--discard-cache", "--yes"]);
}
