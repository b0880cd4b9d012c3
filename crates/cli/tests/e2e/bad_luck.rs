//! Full, failing and hanging datastores, and filters that change, under a load that verifies its data.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_testing::load::{Load, Source};
use tidegate_testing::tally::{Tally, Until};
use tidegate_testing::vhost::{GuestDriver, Vm, VmOptions, Wait};

use crate::support::daemon::Daemon;
use crate::support::place::{MIB, Place};
use crate::support::program::{PATIENCE, Program, Service, find, nbdsh_on};

/// A small file system of its own.
struct SmallDatastore {
    dir: PathBuf,
}

impl SmallDatastore {
    fn mount(place: &Place, bytes: u64) -> SmallDatastore {
        let image = place.image("small.ext4", bytes);
        // No blocks kept back for the superuser, who the daemon may be.
        Program::new("mkfs.ext4")
            .args(["-q", "-m", "0"])
            .arg(&image)
            .run();
        let dir = place.join("small");
        fs::create_dir(&dir).expect("a mount point can be made");
        Program::new("mount")
            .args(["-o", "loop"])
            .args([&image, &dir])
            .run();
        SmallDatastore { dir }
    }
}

impl Drop for SmallDatastore {
    fn drop(&mut self) {
        let output = Program::new("umount").arg(&self.dir).output();
        if !output.status.success() {
            // A daemon of a failed test may still hold it for a moment.
            let _ = Program::new("umount").arg("--lazy").arg(&self.dir).output();
        }
    }
}

/// Writes 4 KiB blocks all over the first `size` of a disk and reads each back.
fn fio_verify(uri: &str, size: &str) -> Program {
    Program::new("fio")
        .args(["--name=load", "--ioengine=nbd", "--rw=randwrite", "--bs=4k"])
        .args(["--iodepth=16", "--verify=crc32c", "--verify_backlog=256"])
        .args(["--verify_fatal=1", "--verify_state_save=0"])
        .arg(format!("--size={size}"))
        .arg(format!("--uri={uri}"))
}

#[test]
fn a_full_datastore_fails_writes_only_and_takes_them_again_after_space_is_freed() {
    /// Fills the disk to the brim, and then some; a block is its own number, all over.
    const FILL: &str = "
import struct
def content(n): return struct.pack('<Q', n + 1) * 8192       # 64 KiB
def refused(act):
    try:
        act()
    except nbd.Error as error:
        return error.errno
    return None
blocks = h.get_size() >> 16
done, errors = [], []
for n in range(64, blocks):
    error = refused(lambda: h.pwrite(content(n), n << 16))
    if error is None: done.append(n)
    else: errors.append(error)
assert len(done) > 100, len(done)
assert len(errors) > 100 and set(errors) == {'ENOSPC'}, set(errors)
for n in done: assert h.pread(1 << 16, n << 16) == content(n), n
last = done[-1]
h.pwrite(content(last + 7), last << 16)                       # what has its place can be written
assert h.pread(1 << 16, last << 16) == content(last + 7)
h.pwrite(content(last), last << 16)
for n in done[:128]: h.trim(1 << 16, n << 16)                 # 8 MiB return
missing = blocks - 1
h.pwrite(content(missing), missing << 16)
assert h.pread(1 << 16, missing << 16) == content(missing)
for n in done[128:]: assert h.pread(1 << 16, n << 16) == content(n), n
h.flush()
print('content')
";
    let place = Place::new();
    let small = SmallDatastore::mount(&place, 48 * MIB);
    let daemon = Daemon::start_with(&place, "root", &["--threads", "1"]);
    let path = small.dir.display().to_string();
    daemon.run(&["datastore", "add", "small", "--path", &path]);
    daemon.run(&[
        "disk", "create", "big", "-d", "small", "--size", "128M", "--attach",
    ]);
    let uri = daemon.nbd_uri("big");
    // Other blocks, which have their place, are written and verified all the while.
    fio_verify(&uri, "4M").run();
    let load = fio_verify(&uri, "4M").arg("--loops=3");
    let load = thread::spawn(move || load.run());
    assert!(nbdsh_on(&uri, FILL).contains("content"));
    load.join()
        .expect("a full datastore is no matter to what has its place");

    // Full again, and freed by somebody else this time.
    let hog = small.dir.join("hog");
    let filled = fs::write(&hog, vec![1; 8 << 20]);
    assert!(filled.is_err(), "the datastore is nearly full");
    nbdsh_on(
        &uri,
        "
refused = 0
for n in range(64, 512):
    try: h.pwrite(b'x' * 65536, n << 16)
    except nbd.Error as error:
        assert error.errno == 'ENOSPC', error.errno
        refused += 1
assert refused > 0
",
    );
    fs::remove_file(&hog).expect("space can be freed");
    // Anywhere: what it wrote before it freed, and places that it has had to leave out.
    nbdsh_on(
        &uri,
        "h.trim(28 << 20, 100 << 20)\nh.trim(32 << 20, 64 << 20)\nh.trim(28 << 20, 4 << 20)",
    );
    fio_verify(&uri, "24M").run();
    let status = daemon.stop("TERM");
    assert!(status.success(), "{status}");
    drop(small);
}

#[test]
fn a_failing_or_hanging_disk_affects_no_other_disk() {
    const ASK: &str = "
import sys
buffer = nbd.Buffer(4096)
cookie = h.aio_pread(buffer, 0)
print('asked', flush=True)
while not h.aio_command_completed(cookie): h.poll(-1)
print('answered', flush=True)
";
    /// Stopping may take 20 s, as the manual says; and a busy machine's slack.
    const STOP: Duration = Duration::from_secs(40);
    let place = Place::new();
    // One I/O thread: what one disk does, the others would feel.
    let daemon = Daemon::start_with(&place, "root", &["--threads", "1"]);
    let disk = |name: &str, filter: &str| {
        daemon.run(&[
            "disk", "create", name, "--size", "32M", "-f", filter, "--attach",
        ]);
        daemon.nbd_uri(name)
    };
    let sick = disk("sick", "fault:error=eio");
    let hung = disk("hung", "fault:delay=3600s");
    let well = disk("well", "stats");
    let args = ["-u".to_owned(), hung, "-c".to_owned(), ASK.to_owned()];
    let env = [("PATH", "/usr/bin:/bin".to_owned())];
    let waiting = Service::start("who waits", find("nbdsh").as_os_str(), &args, &env);
    waiting
        .said
        .wait("request", 0, PATIENCE, |said| said.find("asked"));
    nbdsh_on(
        &sick,
        "
for n in range(1000):
    try:
        h.pread(4096, 0)
        assert False, 'a sick disk answers'
    except nbd.Error as error:
        assert error.errno == 'EIO', error.errno
",
    );
    let load = fio_verify(&well, "32M").run();
    assert!(load.contains("err= 0"), "{load}");
    assert!(
        !waiting.said.text().contains("answered"),
        "an hour was over soon"
    );

    // The operator ends the drill: who waits is answered. Stopping takes its time, but not for ever.
    daemon.run(&["disk", "set", "sick", "--filter", "stats"]);
    nbdsh_on(&sick, "h.pread(4096, 0)");
    daemon.run(&["disk", "set", "hung", "--no-filters"]);
    waiting
        .said
        .wait("answer", 0, PATIENCE, |said| said.find("answered"));
    let asked = Instant::now();
    daemon.stop("TERM");
    assert!(
        asked.elapsed() < STOP,
        "stopping took {:?}",
        asked.elapsed()
    );
    let daemon = Daemon::start(&place);
    for name in ["sick", "hung", "well"] {
        nbdsh_on(&daemon.nbd_uri(name), "h.pread(4096, 0)");
    }
    assert!(daemon.stop("TERM").success());
}

/// Runs verified requests until it is told to stop; what came of them, and of the last reading of everything.
fn verify_until(stop: &AtomicBool, socket: &Path, queues: u16) -> anyhow::Result<Tally> {
    const PART: u64 = 4 << 20;
    let mut options = VmOptions::new(socket, 16);
    options.queues = queues;
    let mut driver = GuestDriver::new(vec![Vm::connect(options)?], Wait::Sleep);
    let mut sources: Vec<Source> = (0..queues)
        .map(|queue| {
            let mut load = Load::verified(16, PART);
            (load.start, load.seed) = (PART * u64::from(queue), u64::from(queue));
            Source::new(load)
        })
        .collect();
    let mut all = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        all.extend(driver.run(&mut sources, Until::Count(5000), &mut |_| {})?);
    }
    sources.iter_mut().for_each(Source::start_sweep);
    all.extend(driver.run(&mut sources, Until::Exhausted, &mut |_| {})?);
    Ok(Tally::sum(&all))
}

#[test]
fn filters_change_thousands_of_times_over_rest_under_verifying_clients() {
    /// Each is made durable, which is what takes the time; the engine's own test makes ten thousand.
    const CHANGES: usize = 2500;
    const STACKS: [&str; 6] = [
        r#"["stats"]"#,
        r#"["null", "stats"]"#,
        r#"["stats", "null"]"#,
        r#"["null", "fault:delay=50us,every=3", "stats", "null"]"#,
        "[]",
        r#"["null"]"#,
    ];
    let place = Place::new();
    let daemon = Daemon::start(&place);
    daemon.run(&["disk", "create", "busy", "--size", "64M", "--attach"]);
    let socket = daemon.vhost_user("busy");
    let uri = daemon.nbd_uri("busy");
    let stop = AtomicBool::new(false);
    let (tally, passes) = thread::scope(|scope| {
        let guest = scope.spawn(|| verify_until(&stop, &socket, 2));
        // Beyond the guest's part of the disk.
        let client = scope.spawn(|| {
            let mut passes = 0;
            while !stop.load(Ordering::Relaxed) {
                let said = fio_verify(&uri, "8M")
                    .arg("--offset=16M")
                    .arg(format!("--randseed={passes}"))
                    .run();
                assert!(said.contains("err= 0"), "{said}");
                passes += 1;
            }
            passes
        });
        let mut rest = daemon.rest();
        for change in 0..CHANGES {
            let body = format!(r#"{{"filters": {}}}"#, STACKS[change % STACKS.len()]);
            // A failure ends the test at once, not after all changes.
            if guest.is_finished() || client.is_finished() {
                break;
            }
            rest.ask("PATCH", "/v1/disks/busy", &body);
        }
        stop.store(true, Ordering::Relaxed);
        (
            guest.join().expect("a guest's thread ends"),
            client.join().expect("fio is content"),
        )
    });
    let tally = tally.expect("the server serves");
    assert_eq!(
        (tally.errors, tally.mismatched),
        (0, 0),
        "{:?}",
        tally.mismatches
    );
    assert!(tally.completed > 0 && passes > 0, "nothing was verified");
}

#[test]
fn a_full_log_pipe_blocks_nothing_and_lost_lines_are_counted() {
    let place = Place::new();
    let log = place.join("log");
    Program::new("mkfifo").arg(&log).run();
    // There is somebody who could read it, so that it can be opened and written to.
    let unread = File::options().read(true).write(true).open(&log);
    let unread = unread.expect("a pipe can be opened");
    let full = Program::new("dd")
        .args(["if=/dev/zero", "bs=4096", "count=1024", "oflag=nonblock"])
        .arg(format!("of={}", log.display()))
        .output();
    assert!(!full.status.success(), "a pipe takes 4 MiB");

    let daemon = Daemon::start_logging_to(&place, &log);
    daemon.run(&["disk", "create", "web1", "--size", "32M", "--attach"]);
    let load = fio_verify(&daemon.nbd_uri("web1"), "32M").run();
    assert!(load.contains("err= 0"), "{load}");
    let metrics = daemon.rest().ask("GET", "/metrics", "");
    let lost = metrics.lines().find_map(|line| {
        let lost = line.strip_prefix("tidegate_log_lines_lost_total ")?;
        lost.parse::<u64>().ok()
    });
    assert!(lost.is_some_and(|lost| lost > 0), "{lost:?}");

    let path = [log.display().to_string()];
    let reader = Service::start("who reads the log", find("cat").as_os_str(), &path, &[]);
    reader
        .said
        .wait("what filled it", 0, PATIENCE, |said| said.find('\0'));
    daemon.run(&["disk", "detach", "web1"]);
    for word in ["log lines were lost", "detached"] {
        reader.said.wait(word, 0, PATIENCE, |said| said.find(word));
    }
    assert!(daemon.stop("TERM").success());
    drop(unread);
}
