//! A long and rough run: many disks under load, and a server that dies under a verifying guest.
//!
//! `TIDEGATE_SOAK_SECONDS=600` makes it ten minutes; 20 seconds if nothing is said.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_testing::load::{Load, Source};
use tidegate_testing::tally::{Tally, Until};
use tidegate_testing::vhost::{GuestDriver, Vm, VmOptions, Wait};

use crate::support::daemon::Daemon;
use crate::support::place::{MIB, Place};
use crate::support::program::{PATIENCE, Service};
use crate::support::server::{Server, Serving, TIDEGATE};

const DISKS: usize = 24;
const QUEUES: u16 = 4;

/// What one queue has to itself.
const PART: u64 = 2 * MIB;

/// What memory may grow in the second half of a run: an allocator's own breathing, far below a leak of a byte per
/// request at ten thousand requests a second.
const BREATHING_KIB: u64 = 2048;

fn guest(socket: PathBuf) -> Vm {
    let mut options = VmOptions::new(&socket, 8);
    options.queues = QUEUES;
    Vm::connect(options).expect("a guest can connect")
}

fn sources(disks: usize) -> Vec<Source> {
    let queues = usize::from(QUEUES);
    (0..disks * queues)
        .map(|number| {
            let mut load = Load::verified(8, PART);
            load.start = PART * (number % queues) as u64;
            load.seed = number as u64;
            Source::new(load)
        })
        .collect()
}

#[test]
fn many_disks_under_load_leak_nothing_and_sleep_when_it_is_over() {
    let seconds = std::env::var("TIDEGATE_SOAK_SECONDS").map_or(20, |text| {
        text.parse().expect("TIDEGATE_SOAK_SECONDS is a number")
    });
    let span = Duration::from_secs(seconds);
    let place = Place::new();
    let daemon = Daemon::start_with(&place, "root", &["--threads", "2"]);
    let names: Vec<String> = (0..DISKS).map(|number| format!("d{number}")).collect();
    for name in &names {
        daemon.run(&["disk", "create", name, "--size", "8M", "--attach"]);
    }
    let process = daemon.process();
    let mut sockets = names.iter().map(|name| daemon.vhost_user(name));
    let (done, finished) = mpsc::channel();
    // Two threads of twelve guests each, one for every I/O thread; they bring their guests back, still connected.
    let loads: Vec<_> = (0..2)
        .map(|_| {
            let vms: Vec<Vm> = sockets.by_ref().take(DISKS / 2).map(guest).collect();
            let done = done.clone();
            thread::spawn(move || {
                let mut driver = GuestDriver::new(vms, Wait::Sleep);
                let mut sources = sources(DISKS / 2);
                let until = Until::Time(Duration::ZERO, span);
                let result = driver.run(&mut sources, until, &mut |_| {});
                // The other end is gone when the test has failed already.
                let _ = done.send(());
                (driver, result)
            })
        })
        .collect();

    let mut samples = Vec::new();
    let mut left = 2;
    while left > 0 {
        match finished.recv_timeout(span / 80) {
            Ok(()) => left -= 1,
            Err(RecvTimeoutError::Timeout) => {
                samples.push((process.resident_kib(), process.descriptors()));
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let mut drivers = Vec::new();
    let mut tallies = Vec::new();
    for load in loads {
        let (driver, result) = load.join().expect("a load's thread ends");
        drivers.push(driver);
        tallies.extend(result.expect("every guest is served to the end"));
    }
    let all = Tally::sum(&tallies);
    assert_eq!((all.errors, all.mismatched), (0, 0), "{:?}", all.mismatches);
    assert!(
        tallies.iter().all(|tally| tally.completed > 0),
        "a queue was starved"
    );

    // From the second quarter on: the first warms up buffers and tables.
    let quarter = samples.len() / 4;
    let (early, late) = (
        &samples[quarter..2 * quarter],
        &samples[samples.len() - quarter..],
    );
    let most = |part: &[(u64, usize)]| part.iter().max().copied().expect("there are samples");
    let ((early_kib, early_fds), (late_kib, late_fds)) = (most(early), most(late));
    assert_eq!(early_fds, late_fds, "descriptors");
    assert!(
        late_kib < early_kib + BREATHING_KIB,
        "memory grew from {early_kib} to {late_kib} KiB in {span:?} and {} requests",
        all.completed
    );

    // All guests are still connected and ask nothing: no thread wakes in a span of a second.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = process.sleeps();
        assert!(finished.recv_timeout(Duration::from_secs(1)).is_err());
        let after = process.sleeps();
        if before == after {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "idle threads wake: {before:?}\n{after:?}"
        );
    }
    drop(drivers);
    assert!(daemon.stop("TERM").success());
}

#[test]
fn a_sleeping_guest_gets_its_interrupt_with_each_moderation() {
    // Ways to call a guest are tried in turn, one every 32 ms of requests that come fast: here each is, many times.
    const SPAN: Duration = Duration::from_secs(1);
    let place = Place::new();
    let socket = place.join("vhost");
    // Only a thread that looks for work may call later, however slowly its guest wakes.
    let args = [
        "serve-one",
        "null:64M",
        "--poll-us",
        "20000",
        "--vhost-user",
    ];
    let mut args: Vec<String> = args.map(str::to_owned).into();
    args.push(socket.display().to_string());
    let mut server = Service::start("serve-one", TIDEGATE.as_ref(), &args, &[]);
    while !socket.exists() {
        assert!(server.alive(), "the server ended before it served");
        server.said.pause(Duration::from_millis(20));
    }
    for depth in [1, 2, 8] {
        let options = VmOptions::new(&socket, depth);
        let vm = Vm::connect(options).expect("a guest can connect");
        let load = Load::random_reads(depth, vm.config().size);
        // A driver that slept although it was answered, and was not called, says so.
        let result = GuestDriver::new(vec![vm], Wait::Sleep).run(
            &mut [Source::new(load)],
            Until::Time(Duration::ZERO, SPAN),
            &mut |_| {},
        );
        let tally = Tally::sum(&result.expect("the guest is called"));
        assert_eq!(tally.errors, 0);
    }
    assert!(server.stop("TERM").success());
}

#[test]
fn a_guest_of_our_own_finds_every_acknowledged_write_after_ten_deaths_of_its_server() {
    const DEATHS: u64 = 10;
    let place = Place::new();
    let image = place.image("image", PART * u64::from(QUEUES));
    let mut server = Server::start(&place, Serving::image(&image));
    let mut options = VmOptions::new(server.vhost_user(), 16);
    options.queues = QUEUES;
    options.reconnect = Some(PATIENCE);
    let (progress, rounds) = mpsc::channel();
    let (stop, stopped) = mpsc::channel();
    let guest = thread::spawn(move || -> anyhow::Result<Tally> {
        let mut driver = GuestDriver::new(vec![Vm::connect(options)?], Wait::Sleep);
        let mut sources = sources(1);
        let mut tallies = Vec::new();
        while stopped.try_recv().is_err() {
            tallies.extend(driver.run(&mut sources, Until::Count(3000), &mut |_| {})?);
            // Nobody listens any more when the test has failed.
            let _ = progress.send(());
        }
        sources.iter_mut().for_each(Source::start_sweep);
        tallies.extend(driver.run(&mut sources, Until::Exhausted, &mut |_| {})?);
        Ok(Tally::sum(&tallies))
    });
    let mut served = true;
    for _ in 0..DEATHS {
        // Some way into a round, whose requests are then in flight.
        served &= rounds.recv_timeout(PATIENCE).is_ok();
        while rounds.try_recv().is_ok() {}
        if !served {
            break;
        }
        server.crash_and_restart();
    }
    served &= rounds.recv_timeout(PATIENCE).is_ok();
    // Nobody is there to be stopped when it has failed.
    let _ = stop.send(());
    let tally = guest.join().expect("a guest's thread ends");
    let tally = tally.expect("the guest is served, again and again");
    assert!(served, "the guest was not served in time");
    assert_eq!(
        (tally.errors, tally.mismatched),
        (0, 0),
        "{:?}",
        tally.mismatches
    );
    assert_eq!(tally.reconnections, DEATHS);
}
