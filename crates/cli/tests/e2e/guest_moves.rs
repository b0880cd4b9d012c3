//! A stock guest and fio on disks that move between I/O threads twenty times a second, while the daemon is killed.
//!
//! `TIDEGATE_E2E_DEATHS` sets how often; by hand it is 20.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::daemon::Daemon;
use crate::support::guest::{Guest, Hardware};
use crate::support::place::Place;
use crate::support::program::{PATIENCE, Program};

/// The time from one move of a disk to the next.
const BETWEEN_MOVES: Duration = Duration::from_millis(50);

/// Makes a file system with a file of noise. Then fio writes another file again and again until told to stop, and compares
/// what it reads with its checksums.
const LOAD: &str = "mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt && cd /mnt \
    && dd if=/dev/urandom of=noise bs=64k count=64 2>/dev/null && sha256sum noise >sum && sync \
    && { ( n=0; while test ! -e /run/stop; do \
        n=$((n + 1)); fio --name=load --filename=/mnt/load --size=8M --rw=randrw --rwmixread=30 --bs=4k --direct=1 \
            --ioengine=libaio --iodepth=16 --fsync=64 --verify=crc32c --verify_backlog=256 --verify_fatal=1 \
            --verify_state_save=0 --randseed=$n >/run/fio 2>&1 || { cp /run/fio /run/bad; break; }; \
        echo $n >/run/rounds; done; touch /run/stopped ) & }";

/// Moves disks to and fro until it is stopped. The daemon may be killed meanwhile.
struct Moves {
    socket: PathBuf,
    disks: Vec<&'static str>,
    over: AtomicBool,
    done: AtomicU32,
    /// What the daemon said that is no move and no end of its own.
    refused: Mutex<Vec<String>>,
}

impl Moves {
    fn of(daemon: &Daemon, disks: &[&'static str]) -> Moves {
        Moves {
            socket: Path::new(daemon.root()).join("run/tidegate.sock"),
            disks: disks.to_vec(),
            over: AtomicBool::new(false),
            done: AtomicU32::new(0),
            refused: Mutex::default(),
        }
    }

    fn run(&self) {
        let mut to = 0;
        while !self.over.load(Ordering::Relaxed) {
            to = 1 - to;
            for disk in &self.disks {
                match ask(&self.socket, disk, to) {
                    Some(answer) if answer.starts_with("HTTP/1.1 200") => {
                        self.done.fetch_add(1, Ordering::Relaxed);
                    }
                    // While the daemon starts, a disk may not be attached yet.
                    Some(answer) if answer.starts_with("HTTP/1.1 4") => {}
                    Some(answer) => self.refused.lock().expect("plain").push(answer),
                    None => {}
                }
            }
            thread::park_timeout(BETWEEN_MOVES);
        }
    }

    /// Waits until so many moves more are done.
    fn wait(&self, more: u32) {
        let enough = self.done.load(Ordering::Relaxed) + more;
        let deadline = Instant::now() + PATIENCE;
        while self.done.load(Ordering::Relaxed) < enough {
            let refused = self.refused.lock().expect("plain");
            assert!(Instant::now() < deadline, "nothing moves: {refused:?}");
            drop(refused);
            thread::park_timeout(BETWEEN_MOVES);
        }
    }
}

/// Ends the moves, also when the test fails.
struct End<'a>(&'a Moves);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// Asks for a move. `None` if the daemon does not answer: it is dead, or starts.
fn ask(socket: &Path, disk: &str, to: usize) -> Option<String> {
    let body = format!("{{\"thread\": {to}}}");
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let length = body.len();
    write!(
        stream,
        "POST /v1/disks/{disk}/thread HTTP/1.1\r\nHost: tidegate\r\nContent-Type: application/json\r\n\
         Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    (!answer.is_empty()).then_some(answer)
}

fn fio(daemon: &Daemon, disk: &str) {
    let said = Program::new("fio")
        .args([
            "--name=verify",
            "--ioengine=nbd",
            "--rw=randwrite",
            "--bsrange=4k-128k",
            "--size=24M",
        ])
        .args([
            "--iodepth=32",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--do_verify=1",
            "--fsync=64",
        ])
        .arg(format!("--uri={}", daemon.nbd_uri(disk)))
        .run();
    assert!(said.contains("err= 0"), "{said}");
}

/// The guest's load goes on: its disk does 100 more requests.
fn goes_on(guest: &mut Guest, daemon: &Daemon) {
    let done = || {
        let stats = daemon.json(&["stats", "d"]);
        stats["all"]["ops_total"].as_u64().unwrap_or(0)
    };
    let enough = done() + 100;
    let deadline = Instant::now() + PATIENCE;
    while done() < enough {
        if Instant::now() > deadline {
            let said = guest.run("cat /run/bad /run/fio; dmesg | tail -n 20; true");
            panic!("the guest's load stands still:\n{said}");
        }
        thread::park_timeout(Duration::from_millis(50));
    }
}

/// Statistics have each disk once, whichever thread has it.
fn each_is_counted_once(daemon: &Daemon) {
    let mut rest = daemon.rest();
    for _ in 0..100 {
        let sample = rest.ask("GET", "/v1/stats", "");
        let sample: Value = serde_json::from_str(&sample).expect("it is JSON");
        let disks = sample["disks"].as_array().expect("a list");
        let names: Vec<_> = disks.iter().map(|disk| disk["name"].as_str()).collect();
        assert_eq!(names, [Some("d"), Some("disk0"), Some("e")]);
    }
}

#[test]
fn a_guest_and_fio_go_on_while_disks_move_and_the_daemon_is_killed() {
    let place = Place::new();
    let root = place.join("root");
    fs::create_dir(&root).expect("a directory can be created");
    fs::write(root.join("tidegate.toml"), "[io]\nthreads = 2\n").expect("a file");
    let mut daemon = Daemon::start(&place);
    for disk in ["d", "e"] {
        daemon.run(&["disk", "create", disk, "--size", "64M", "--attach"]);
    }
    let socket = daemon.vhost_user("d");
    let mut guest = Guest::boot(
        &place,
        &Hardware {
            disks: &[&socket],
            cpus: 2,
        },
    );
    guest.run(LOAD);
    let moves = Moves::of(&daemon, &["d", "e"]);
    thread::scope(|scope| {
        scope.spawn(|| moves.run());
        let _end = End(&moves);
        fio(&daemon, "e");
        moves.wait(20);
        each_is_counted_once(&daemon);
        let deaths = std::env::var("TIDEGATE_E2E_DEATHS").ok();
        let deaths = deaths.and_then(|deaths| deaths.parse().ok()).unwrap_or(2);
        for _ in 0..deaths {
            goes_on(&mut guest, &daemon);
            daemon.crash_and_restart();
            moves.wait(20);
        }
        goes_on(&mut guest, &daemon);
        fio(&daemon, "e");
    });
    guest.run("touch /run/stop");
    guest.eventually("test -e /run/stopped");
    guest.run("if test -e /run/bad; then cat /run/bad; false; fi");
    println!(
        "{} moves, {} passes of fio in the guest",
        moves.done.load(Ordering::Relaxed),
        guest.run("cat /run/rounds")
    );
    let refused = moves.refused.lock().expect("plain");
    assert!(refused.is_empty(), "{refused:?}");
    guest.run("echo 3 >/proc/sys/vm/drop_caches && cd /mnt && sha256sum -c sum");
    guest.run("umount /mnt && e2fsck -fn /dev/vda");
    assert_eq!(guest.complaints(), "");
    assert!(daemon.stop("TERM").success());
}
