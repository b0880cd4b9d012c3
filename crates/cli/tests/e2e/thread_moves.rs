//! Disks that move between I/O threads while guests and clients verify their data, vanish, and come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_testing::load::{Load, Source};
use tidegate_testing::tally::{Tally, Until};
use tidegate_testing::vhost::{GuestDriver, Vm, VmOptions, Wait};

use crate::support::daemon::Daemon;
use crate::support::place::{MIB, Place};
use crate::support::program::{PATIENCE, Service, find};
use crate::support::transcript::Transcript;

/// Guests that come and go.
const ROUNDS: usize = 8;

/// Requests of each.
const REQUESTS: u64 = 3_000;

/// Moves disks back and forth until it is stopped.
struct Mover {
    stop: Arc<AtomicBool>,
    moving: JoinHandle<Vec<f64>>,
}

impl Mover {
    fn of(daemon: &Daemon, disks: &[&str]) -> Mover {
        let mut rest = daemon.rest();
        let stop = Arc::new(AtomicBool::new(false));
        let disks: Vec<String> = disks.iter().map(|disk| (*disk).to_owned()).collect();
        let stopped = Arc::clone(&stop);
        let moving = thread::spawn(move || {
            let mut pauses = Vec::new();
            for to in (0..2).cycle() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                for disk in &disks {
                    let body = format!("{{\"thread\": {to}}}");
                    let moved = rest.ask("POST", &format!("/v1/disks/{disk}/thread"), &body);
                    let moved: Value = serde_json::from_str(&moved).expect("it is JSON");
                    assert_eq!(moved["thread"], to, "{moved}");
                    pauses.push(moved["pause_us"].as_f64().expect("a time"));
                }
            }
            pauses
        });
        Mover { stop, moving }
    }

    /// The pauses of all moves, in microseconds, from the shortest.
    fn end(self) -> Vec<f64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut pauses = self.moving.join().expect("every move succeeds");
        pauses.sort_by(f64::total_cmp);
        pauses
    }
}

fn guest(daemon: &Daemon, disk: &str) -> GuestDriver {
    let options = VmOptions::new(&daemon.vhost_user(disk), 16);
    let vm = Vm::connect(options).expect("a guest can connect");
    GuestDriver::new(vec![vm], Wait::Sleep)
}

/// Runs a guest's load that checks what it reads.
fn verify(mut driver: GuestDriver, requests: u64) -> Tally {
    let mut sources = vec![Source::new(Load::verified(16, 4 * MIB))];
    let tallies = driver.run(&mut sources, Until::Count(requests), &mut |_| {});
    Tally::sum(&tallies.expect("the guest is served"))
}

/// An NBD client with writes in flight beyond the guests' part, that goes on until it is killed.
fn client(daemon: &Daemon, disk: &str) -> Service {
    const SCRIPT: &str = "
print('begun', flush=True)
while True:
    for n in range(64):
        h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(4096)), (4 << 20) + (n << 12))
    while h.aio_in_flight(): h.poll(-1)
";
    let args = ["-u", &daemon.nbd_uri(disk), "-c", SCRIPT].map(str::to_owned);
    let env = [("PATH", "/usr/bin:/bin".to_owned())];
    let client = Service::start("client", find("nbdsh").as_os_str(), &args, &env);
    client.said.wait("its first word", 0, PATIENCE, |said| {
        said.contains("begun").then_some(())
    });
    client
}

#[test]
fn clients_that_vanish_in_the_middle_of_moves_leave_nothing_behind() {
    let place = Place::new();
    let daemon = Daemon::start_with_two_threads(&place);
    for disk in ["stays", "comes"] {
        daemon.run(&["disk", "create", disk, "--size", "8M", "--attach"]);
    }
    let process = daemon.process();
    let said = Transcript::new("nobody");
    // Every table and thread that is kept for reuse exists after this.
    verify(guest(&daemon, "comes"), 100);
    drop(client(&daemon, "comes"));
    let gone = |least: Option<usize>| {
        let begun = Instant::now();
        loop {
            let shown = daemon.json(&["disk", "show", "comes"]);
            let clients = shown["clients"].as_array().map_or(0, Vec::len);
            let open = process.descriptors();
            if clients == 0 && least.is_none_or(|least| open <= least) {
                return open;
            }
            let kept = format!("{clients} clients, {open} descriptors; before {least:?}");
            assert!(begun.elapsed() < PATIENCE, "something is left: {kept}");
            said.pause(Duration::from_millis(100));
        }
    };
    gone(None);
    let stays = guest(&daemon, "stays");
    let before = gone(None);

    let mover = Mover::of(&daemon, &["stays", "comes"]);
    let verified = thread::spawn(move || verify(stays, 20 * REQUESTS));
    for _ in 0..ROUNDS {
        let mut killed = client(&daemon, "comes");
        let tally = verify(guest(&daemon, "comes"), REQUESTS);
        assert_eq!(
            (tally.errors, tally.mismatched),
            (0, 0),
            "{:?}",
            tally.mismatches
        );
        killed.kill();
    }
    let tally = verified.join().expect("the guest's thread ends");
    assert_eq!(
        (tally.errors, tally.mismatched),
        (0, 0),
        "{:?}",
        tally.mismatches
    );
    let pauses = mover.end();
    let at = |part: usize| pauses[(pauses.len() - 1) * part / 100];
    println!(
        "{} moves; pause p50 {} us, p99 {} us, longest {} us",
        pauses.len(),
        at(50),
        at(99),
        at(100)
    );
    assert!(pauses.len() > 100, "{} moves", pauses.len());
    // The guest that stayed has gone by now, too.
    gone(Some(before));
    let threads = daemon.json(&["thread", "list"]);
    let threads = threads["threads"].as_array().expect("a list");
    let moved = |way: &str| {
        threads
            .iter()
            .filter_map(|it| it[way].as_u64())
            .sum::<u64>()
    };
    assert_eq!(moved("moved_in_total"), moved("moved_out_total"));
    assert!(daemon.stop("TERM").success());
}
