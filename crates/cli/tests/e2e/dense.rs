//! Dense mode on a daemon: what a web farm costs with it and without, and that an idle host stays asleep.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use tidegate_testing::vhost::{Served, Vm, VmOptions, WebFarm};

use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::PATIENCE;

const GUESTS: usize = 32;

/// Each page is a document and its parts.
const FARM: WebFarm = WebFarm {
    pages_per_s: 25,
    reads: 8,
    gap: Duration::from_micros(150),
};

/// Gives the daemon's threads and this one priority over other programs of the machine, where that is allowed. A guest that
/// is late submits its reads together, which hides what each of them costs.
fn take_priority(daemon: &Daemon) {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.id())).expect("the daemon runs");
    let own = fs::read_link("/proc/thread-self").expect("this thread");
    let threads = tasks.flatten().map(|task| task.file_name());
    let own = own.file_name().map(std::ffi::OsStr::to_owned);
    let mut renice = Command::new("renice");
    renice.args(["-n", "-19", "-p"]).args(threads.chain(own));
    // Without it the test means the same, on a machine that does nothing else.
    let _ = renice.output();
}

/// What a run costs, as the daemon counts it.
#[derive(Debug)]
struct Cost {
    wakeups_per_s: f64,
    calls_per_read: f64,
    kicks_per_read: f64,
}

/// The sum of a metric over its labels.
fn metric(daemon: &Daemon, name: &str) -> f64 {
    let page = daemon.rest().ask("GET", "/metrics", "");
    let lines = page.lines().filter(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
    });
    let values = lines.map(|line| line.rsplit(' ').next().expect("a value"));
    values
        .map(|value| value.parse::<f64>().expect("a number"))
        .sum()
}

fn daemon(place: &Place, root: &str, mode: &str) -> Daemon {
    let config = format!("[io]\nthreads = 1\n\n[dense]\nmode = \"{mode}\"\n");
    let path = place.join(root);
    fs::create_dir(&path).expect("a directory can be created");
    fs::write(path.join("tidegate.toml"), config).expect("a configuration can be written");
    let daemon = Daemon::start_with(place, root, &[]);
    daemon.run(&["datastore", "add", "mem", "--kind", "memory"]);
    for guest in 0..GUESTS {
        let name = format!("web{guest}");
        daemon.run(&[
            "disk", "create", &name, "-d", "mem", "--size", "8M", "--attach",
        ]);
    }
    daemon
}

fn guests(daemon: &Daemon) -> Vec<Vm> {
    let connect = |guest| {
        let socket = daemon.vhost_user(&format!("web{guest}"));
        Vm::connect(VmOptions::new(&socket, 16)).expect("a guest can connect")
    };
    (0..GUESTS).map(connect).collect()
}

/// The farm for a while: its cost and what it was served.
fn run(daemon: &Daemon, vms: &mut [Vm]) -> (Cost, Served) {
    const SPAN: Duration = Duration::from_secs(3);
    let counts = || {
        [
            "tidegate_iothread_wakeups_total",
            "tidegate_disk_calls_total",
            "tidegate_disk_kicks_total",
        ]
        .map(|name| metric(daemon, name))
    };
    let (before, begun) = (counts(), Instant::now());
    let served = FARM.run(vms, SPAN).expect("every read is answered");
    let (after, lasted) = (counts(), begun.elapsed());
    let [wakeups, calls, kicks] = [0, 1, 2].map(|nth| after[nth] - before[nth]);
    let reads = served.reads as f64;
    let cost = Cost {
        wakeups_per_s: wakeups / lasted.as_secs_f64(),
        calls_per_read: calls / reads,
        kicks_per_read: kicks / reads,
    };
    (cost, served)
}

#[test]
fn a_web_farm_takes_less_wakeups_and_interrupts_in_dense_mode() {
    let place = Place::new();
    let daemons = ["off", "on"].map(|mode| (mode, daemon(&place, mode, mode)));
    let mut costs = Vec::new();
    for (mode, daemon) in &daemons {
        let mut vms = guests(daemon);
        take_priority(daemon);
        let (cost, served) = run(daemon, &mut vms);
        println!(
            "dense {mode}: {cost:?}, {} reads, p50 {:?}, p95 {:?}",
            served.reads,
            served.latency(50),
            served.latency(95)
        );
        assert_eq!(served.errors, 0);
        costs.push(cost);
        assert_eq!(
            metric(daemon, "tidegate_dense_mode_state"),
            f64::from(u8::from(*mode == "on"))
        );
        let status = daemon.run(&["status"]);
        assert!(
            status.contains(&format!("{mode} (mode {mode}): no sample yet")),
            "{status}"
        );
    }
    let (off, on) = (&costs[0], &costs[1]);
    assert!(on.wakeups_per_s <= 0.7 * off.wakeups_per_s, "{costs:?}");
    assert!(on.calls_per_read <= 0.7 * off.calls_per_read, "{costs:?}");
    assert!(on.kicks_per_read <= 0.7 * off.kicks_per_read, "{costs:?}");
    for (_, daemon) in daemons {
        assert!(daemon.stop("TERM").success());
    }
}

#[test]
fn idle_guests_of_a_dense_host_wake_no_thread() {
    let place = Place::new();
    let daemon = daemon(&place, "root", "on");
    let mut vms = guests(&daemon);
    let served = FARM.run(&mut vms, Duration::from_secs(1));
    let served = served.expect("every read is answered");
    assert!(served.reads > 0 && served.errors == 0, "{served:?}");
    let status = daemon.run(&["status"]);
    assert!(status.contains("on (mode on): no sample yet"), "{status}");
    let process = daemon.process();
    // All guests are connected and ask nothing: no thread sleeps anew in a span of two seconds.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = process.sleeps();
        std::thread::sleep(Duration::from_secs(2));
        let after = process.sleeps();
        if before == after {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "idle threads wake: {before:?}\n{after:?}"
        );
    }
    drop(vms);
    assert!(daemon.stop("TERM").success());
}
