//! The control tree of a real daemon: by commands, by REST, and mounted as files.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;

use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::{PATIENCE, Program, Service, nbdsh_on};
use crate::support::server::TIDEGATE;

/// A daemon with two I/O threads in use, and disk `db1`.
fn daemon(place: &Place) -> Daemon {
    let daemon = Daemon::start_with_two_threads(place);
    daemon.run(&["disk", "create", "db1", "--size", "8M", "--attach"]);
    daemon
}

/// Whether guests' data is where it was put, read and written through an NBD client.
fn serves(daemon: &Daemon) {
    let script =
        "h.pwrite(b'tide' * 1024, 8192); h.flush(); print(h.pread(4096, 8192) == b'tide' * 1024)";
    let said = nbdsh_on(&daemon.nbd_uri("db1"), script);
    assert_eq!(said.trim(), "True");
}

#[test]
fn the_tree_is_read_and_written_by_commands() {
    let place = Place::new();
    let daemon = daemon(&place);
    let listed = daemon.run(&["get", "/"]);
    for directory in ["thread/", "device/", "vm/"] {
        assert!(listed.lines().any(|line| line == directory), "{listed}");
    }
    assert_eq!(daemon.run(&["get", "/thread/1/state"]), "active\n");
    daemon.run(&["set", "/thread/1/locked", "1"]);
    assert_eq!(daemon.run(&["get", "thread/1/state"]), "locked\n");
    let threads = daemon.json(&["thread", "list"]);
    assert_eq!(threads["threads"][1]["state"], "locked", "{threads:#}");
    daemon.run(&["thread", "unlock", "1"]);
    assert_eq!(daemon.run(&["get", "/thread/1/locked"]), "0\n");
    let sum = ["busy_ns", "spin_ns", "sleep_ns"].map(|file| {
        let text = daemon.run(&["get", &format!("/thread/0/{file}")]);
        text.trim().parse::<u64>().expect("a count")
    });
    let age = daemon.run(&["get", "/thread/0/age_ns"]);
    let age: u64 = age.trim().parse().expect("a count");
    assert!(sum.iter().sum::<u64>() <= age, "{sum:?} of {age}");
    daemon.run(&["set", "/device/db1/weight", "25"]);
    daemon.run(&["set", "/device/db1/class", "latency"]);
    daemon.run(&["set", "/device/db1/coalesce", "static:16,64us"]);
    let shown = daemon.json(&["disk", "show", "db1"]);
    assert_eq!(
        (&shown["io_weight"], &shown["io_class"], &shown["coalesce"]),
        (&25.into(), &"latency".into(), &"static:16,64us".into()),
        "{shown:#}"
    );
    assert_eq!(daemon.run(&["get", "/device/db1/weight"]), "25\n");
    daemon.run(&["set", "/device/db1/vcpus", "6"]);
    assert_eq!(daemon.json(&["disk", "show", "db1"])["vcpus"], 6);
    for (path, value, errno) in [
        ("/device/db1/thread", "77", "ENOENT"),
        ("/", "1", "EISDIR"),
        ("/thread", "1", "EISDIR"),
    ] {
        let refused = daemon.attempt(&["set", path, value, "-o", "json"]);
        assert_eq!(refused.status.code(), Some(1), "{path}");
        let problem: Value = serde_json::from_slice(&refused.stderr).expect("-o json is JSON");
        assert_eq!(problem["problem"]["errno"], errno, "{problem:#}");
    }
    assert!(daemon.stop("TERM").success());
}

#[test]
fn a_disk_moves_between_threads_and_says_how_long_it_paused() {
    let place = Place::new();
    let daemon = daemon(&place);
    let uri = daemon.nbd_uri("db1");
    serves(&daemon);
    for _ in 0..3 {
        let from = daemon.run(&["get", "/device/db1/thread"]);
        let to = if from == "0\n" { "1" } else { "0" };
        let moved = daemon.json(&["thread", "move", "db1", to]);
        assert_eq!(moved["thread"].to_string(), to, "{moved:#}");
        assert!(moved["pause_us"].as_f64().is_some(), "{moved:#}");
        assert_eq!(daemon.run(&["get", "/device/db1/thread"]).trim(), to);
        let disks = daemon.run(&["get", &format!("/thread/{to}/disks")]);
        assert!(disks.lines().any(|disk| disk == "db1"), "{disks}");
        let script = "print(h.pread(4096, 8192) == b'tide' * 1024)";
        assert_eq!(nbdsh_on(&uri, script).trim(), "True");
    }
    let begun = Instant::now();
    while !(daemon.run(&["events"])).contains("an administrator ordered it (from=") {
        assert!(begun.elapsed() < PATIENCE, "the moves are no events");
    }
    // A locked thread gets no disk, and one with disks is not removed.
    let here = daemon.run(&["get", "/device/db1/thread"]);
    let here = here.trim();
    let other = if here == "0" { "1" } else { "0" };
    daemon.run(&["thread", "lock", other]);
    assert!(
        !daemon
            .attempt(&["thread", "move", "db1", other])
            .status
            .success()
    );
    assert!(!daemon.attempt(&["thread", "remove", here]).status.success());
    serves(&daemon);
    assert!(daemon.stop("TERM").success());
}

/// The same numbers in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % most as u64).expect("it is below")
    }

    fn word(&mut self) -> String {
        const WORDS: &[&str] = &[
            "thread",
            "device",
            "vm",
            "monitor",
            "dense",
            "queue",
            "0",
            "1",
            "2",
            "63",
            "db1",
            "state",
            "locked",
            "create",
            "remove",
            "default",
            "cpu",
            "disks",
            "now_ns",
            "..",
            "",
            "-1",
            "99999999999",
        ];
        match self.below(6) {
            0 => {
                let length = self.below(300);
                let byte = |_| char::from(u8::try_from(33 + self.below(90)).expect("it is ASCII"));
                (0..length).map(byte).collect()
            }
            _ => WORDS[self.below(WORDS.len())].to_owned(),
        }
    }

    fn path(&mut self) -> String {
        let known = [
            "thread/0/locked",
            "thread/1/locked",
            "thread/create",
            "thread/remove",
            "thread/default",
            "device/db1/thread",
            "thread/1/state",
            "device/db1/owner",
        ];
        match self.below(3) {
            0 => (0..=self.below(5))
                .map(|_| self.word())
                .collect::<Vec<_>>()
                .join("/"),
            _ => known[self.below(known.len())].to_owned(),
        }
    }

    fn value(&mut self) -> String {
        match self.below(4) {
            0 => self.word(),
            1 => "9".repeat(self.below(9000)),
            _ => ["0", "1", "2", "auto", "", "1\n"][self.below(6)].to_owned(),
        }
    }
}

fn encoded(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let each = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    path.bytes().map(each).collect()
}

/// Ends a test of random commands: the disk is served, and both threads can be used.
fn is_whole_afterwards(daemon: &Daemon) {
    serves(daemon);
    let threads = daemon.json(&["thread", "list"]);
    let threads = threads["threads"].as_array().expect("a list");
    let of = |state: &str| threads.iter().filter(|it| it["state"] == state).count();
    assert!(of("active") + of("locked") >= 1, "{threads:?}");
    let served: usize = threads
        .iter()
        .map(|it| it["disks"].as_array().map_or(0, Vec::len))
        .sum();
    assert_eq!(served, 2, "disk0 and db1 have one thread each: {threads:?}");
}

#[test]
fn hundreds_of_random_requests_are_answered_with_the_names_of_errors() {
    let place = Place::new();
    let daemon = daemon(&place);
    let mut rest = daemon.rest();
    let mut random = Random(0x7a3d_11c5_9e37_79b9);
    let (mut done, mut refused) = (0, 0);
    for nth in 0..800 {
        let path = format!("/v1/tree/{}", encoded(&random.path()));
        let (method, body) = match random.below(3) {
            0 => ("GET", String::new()),
            _ => {
                let value = random.value();
                ("PUT", serde_json::json!({ "value": value }).to_string())
            }
        };
        let (status, answer) = rest.attempt(method, &path, &body);
        let at = format!("{nth}: {method} {path} {body:.60}: {status} {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{at}"));
        match status {
            200 => done += 1,
            400..=499 => {
                refused += 1;
                // The root has no way to be written, and a URL may be too long for the server: neither reaches the tree.
                let tree = answer["what"].as_str().is_some_and(|it| it.contains(" /"));
                assert!(tree || status != 400, "{at}");
                if answer["what"]
                    .as_str()
                    .is_some_and(|it| it.starts_with("cannot "))
                {
                    assert!(
                        answer["errno"].is_string() && answer["remedy"].is_string(),
                        "{at}"
                    );
                }
            }
            _ => panic!("{at}"),
        }
    }
    assert!(
        done > 100 && refused > 100,
        "{done} done, {refused} refused"
    );
    is_whole_afterwards(&daemon);
    assert!(daemon.stop("TERM").success());
}

/// A mounted control tree.
struct Mounted {
    service: Service,
    dir: PathBuf,
}

impl Mounted {
    /// Mounts it; none where this machine has no FUSE: then the program has said so, and what to do.
    fn of(daemon: &Daemon, place: &Place) -> Option<Mounted> {
        let dir = place.join("control");
        fs::create_dir_all(&dir).expect("a mount point can be made");
        if !Path::new("/dev/fuse").exists() {
            let refused = daemon.attempt(&["mount", &dir.display().to_string()]);
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert_eq!(refused.status.code(), Some(1), "{said}");
            assert!(
                said.contains("there is no /dev/fuse") && said.contains("modprobe"),
                "{said}"
            );
            println!("left out: this machine has no /dev/fuse");
            return None;
        }
        let args = ["mount".to_owned(), dir.display().to_string()];
        let root = [("TIDEGATE_ROOT", daemon.root().to_owned())];
        let service = Service::start("tidegate mount", TIDEGATE.as_ref(), &args, &root);
        service.said.wait("the mount", 0, PATIENCE, |said| {
            said.contains("the control tree is mounted").then_some(())
        });
        Some(Mounted { service, dir })
    }

    fn read(&self, path: &str) -> std::io::Result<String> {
        fs::read_to_string(self.dir.join(path))
    }

    /// As a shell does: truncate, then write.
    fn write(&self, path: &str, value: &str) -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .truncate(true)
            .open(self.dir.join(path))?;
        file.write_all(value.as_bytes())
    }

    fn is_there(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts can be read");
        let dir = self.dir.display().to_string();
        mounts
            .lines()
            .any(|line| line.split(' ').nth(1) == Some(&dir))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = Program::new("umount").arg("-l").arg(&self.dir).output();
        }
    }
}

/// The name of the system error of a failed access.
fn errno(result: std::io::Result<impl std::fmt::Debug>) -> i32 {
    let error = result.expect_err("it is refused");
    error.raw_os_error().expect("it is the system's")
}

const ENOENT: i32 = 2;
const E2BIG: i32 = 7;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const ENOTDIR: i32 = 20;
const EINVAL: i32 = 22;

#[test]
fn a_mounted_tree_behaves_like_sysfs_and_unmounts_when_it_is_interrupted() {
    let place = Place::new();
    let daemon = daemon(&place);
    let Some(mut mounted) = Mounted::of(&daemon, &place) else {
        return;
    };
    assert_eq!(mounted.read("thread/0/state").expect("a file"), "active\n");
    let length = fs::metadata(mounted.dir.join("thread/0/state")).expect("a file");
    assert_eq!(length.len(), 4096);
    mounted.write("thread/1/locked", "1\n").expect("it locks");
    assert_eq!(daemon.run(&["get", "/thread/1/state"]), "locked\n");
    mounted.write("thread/1/locked", "0").expect("it unlocks");
    assert_eq!(mounted.read("thread/1/state").expect("a file"), "active\n");
    // One open file: a read at the beginning takes the value anew.
    let mut clock = fs::File::open(mounted.dir.join("now_ns")).expect("a file");
    let mut readings = [String::new(), String::new()];
    for reading in &mut readings {
        std::io::Seek::rewind(&mut clock).expect("it goes back");
        clock.read_to_string(reading).expect("it is text");
    }
    let [first, second] = readings.map(|it| it.trim().parse::<u64>().expect("a time"));
    assert!(first < second, "{first} {second}");
    assert_eq!(errno(mounted.read("nothing")), ENOENT);
    assert_eq!(errno(mounted.read("thread/77/state")), ENOENT);
    assert_eq!(errno(mounted.read("thread/0/state/x")), ENOTDIR);
    assert_eq!(errno(mounted.read("thread/create")), EACCES);
    assert_eq!(errno(mounted.write("thread/0/state", "x")), EACCES);
    assert_eq!(errno(mounted.write("thread/0/locked", "x")), EINVAL);
    assert_eq!(
        errno(mounted.write("thread/0/locked", &"1".repeat(5000))),
        E2BIG
    );
    let home = mounted.read("device/db1/thread").expect("a file");
    assert_eq!(errno(mounted.write("thread/remove", &home)), EBUSY);
    let listed = fs::read_dir(mounted.dir.join("device")).expect("a directory");
    let names: Vec<_> = listed.map(|it| it.expect("an entry").file_name()).collect();
    assert!(names.iter().any(|name| name == "db1"), "{names:?}");
    assert!(fs::write(mounted.dir.join("new"), "1").is_err());
    for place in [mounted.dir.clone(), mounted.dir.join("thread")] {
        let over = daemon.attempt(&["mount", &place.display().to_string()]);
        let said = String::from_utf8_lossy(&over.stderr).into_owned();
        assert!(!over.status.success(), "{said}");
        assert!(said.contains("mounted already at"), "{said}");
    }
    assert!(mounted.service.stop("TERM").success());
    assert!(!mounted.is_there());
    assert!(daemon.stop("TERM").success());
}

#[test]
fn a_mount_that_is_killed_or_fed_nonsense_never_hurts_the_daemon() {
    let place = Place::new();
    let daemon = daemon(&place);
    let Some(mut mounted) = Mounted::of(&daemon, &place) else {
        return;
    };
    let mut random = Random(0x1f83_d9ab_fb41_bd6b);
    let (mut done, mut refused) = (0, 0);
    for _ in 0..300 {
        let path = random.path().replace("..", "x");
        let result = match random.below(3) {
            0 => mounted.read(path.trim_start_matches('/')).map(drop),
            _ => mounted.write(path.trim_start_matches('/'), &random.value()),
        };
        match result {
            Ok(()) => done += 1,
            Err(error) => {
                refused += 1;
                assert!(error.raw_os_error().is_some(), "{path}: {error}");
            }
        }
    }
    assert!(done > 20 && refused > 20, "{done} done, {refused} refused");
    // A client in the middle of it dies, and then the mount itself.
    let open = fs::File::open(mounted.dir.join("now_ns")).expect("a file");
    mounted.service.kill();
    drop(open);
    let dead = daemon.attempt(&["mount", &mounted.dir.display().to_string()]);
    let said = String::from_utf8_lossy(&dead.stderr).into_owned();
    assert!(!dead.status.success() && said.contains("umount"), "{said}");
    is_whole_afterwards(&daemon);
    let begun = Instant::now();
    daemon.run(&["status"]);
    assert!(begun.elapsed() < PATIENCE);
    assert!(daemon.stop("TERM").success());
}
