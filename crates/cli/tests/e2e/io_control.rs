//! I/O control as an administrator meets it: limits, groups, what is set and shown, and hosts that share a datastore.
//!
//! Limits are judged by counts: of what clients asked for and were answered within an interval, in no interval was more
//! served than is allowed. How fast the machine is does not matter to that. What takes effect a moment later is waited
//! for by asking again.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_lab::play::watch::{Stay, excess};
use tidegate_testing::load::{Kind, Load, Operation, Source};
use tidegate_testing::nbd::wire;
use tidegate_testing::tally::Until;
use tidegate_testing::vhost::{GuestDriver, Vm, VmOptions, Wait};

use crate::support::daemon::Daemon;
use crate::support::place::Place;
use crate::support::program::{PATIENCE, Program};

/// An NBD client that waits for each answer before it asks again: so nothing of what it did escapes a look at intervals.
struct Client {
    stream: UnixStream,
}

impl Client {
    fn connect(uri: &str) -> Client {
        let place = uri.strip_prefix("nbd+unix:///");
        let place = place.and_then(|rest| rest.split_once("?socket="));
        let (name, socket) = place.expect("an NBD address on a Unix socket");
        let (stream, _) = wire::connect(Path::new(socket), name).expect("the disk is there");
        Client { stream }
    }

    fn ask(&mut self, kind: Kind, length: u32) {
        let operation = Operation {
            kind,
            length,
            ..Operation::FLUSH
        };
        let bytes = usize::try_from(length).expect("a request fits in memory");
        let (out, back) = match kind {
            Kind::Write => (bytes, 0),
            Kind::Read | Kind::Flush => (0, bytes),
        };
        let mut message = Vec::new();
        wire::request(&mut message, &operation, 0);
        message.resize(message.len() + out, 0);
        self.stream.write_all(&message).expect("it is taken");
        message.resize(wire::REPLY + back, 0);
        self.stream
            .read_exact(&mut message)
            .expect("it is answered");
        let reply = wire::reply(&message).expect("by a reply");
        assert_eq!(reply.expect("a whole one").error, 0);
    }
}

/// What a request was, and when its client asked and was answered.
#[derive(Clone, Copy)]
struct Served {
    asked: Duration,
    answered: Duration,
    bytes: u32,
}

/// So many requests altogether, of these sizes in turn, half of them writes: on so many connections, which take the
/// disks in turn and do not wait for each other.
fn load(uris: &[String], connections: usize, requests: usize, sizes: &[u32]) -> Vec<Served> {
    let begun = Instant::now();
    thread::scope(|scope| {
        let clients = (0..connections).map(|first| {
            let mut client = Client::connect(&uris[first % uris.len()]);
            scope.spawn(move || {
                let own = (first..requests).step_by(connections).map(|number| {
                    let bytes = sizes[number % sizes.len()];
                    let kind = [Kind::Read, Kind::Write][number / connections % 2];
                    let asked = begun.elapsed();
                    client.ask(kind, bytes);
                    let answered = begun.elapsed();
                    Served {
                        asked,
                        answered,
                        bytes,
                    }
                });
                own.collect::<Vec<_>>()
            })
        });
        let clients: Vec<_> = clients.collect();
        let served = clients.into_iter().map(|client| client.join());
        let served = served.map(|served| served.expect("a client is served to the end"));
        served.flatten().collect()
    })
}

/// What was served, as limits and reservations count it.
fn in_units(served: &[Served], unit: u32) -> Vec<Stay> {
    let units = |bytes: u32| u64::from(bytes.div_ceil(unit).max(1));
    counted(served, units)
}

fn in_bytes(served: &[Served]) -> Vec<Stay> {
    counted(served, u64::from)
}

fn counted(served: &[Served], amount: impl Fn(u32) -> u64) -> Vec<Stay> {
    let stays = served.iter().map(|one| Stay {
        asked: one.asked,
        answered: one.answered,
        amount: amount(one.bytes),
    });
    stays.collect()
}

/// Fails the test if in any interval there was more than a limit, its burst, and one request of `one` allow.
fn within(stays: &[Stay], limit: u64, burst: u64, one: u64) {
    let excess = excess(stays, limit).expect("something was asked for");
    assert!(
        excess <= (burst + one) as f64,
        "in an interval there are {excess:.3} more than {limit} a second, where {burst} and {one} more are allowed"
    );
}

/// How many a bare limit allows at once: a tenth of a second's.
const fn grace(limit: u64) -> u64 {
    limit / 10
}

/// Bytes of a unit, if nothing else is set.
const UNIT: u32 = 32 << 10;

/// Asks until the answer is as it should be.
fn wait(daemon: &Daemon, words: &[&str], is: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let answer = daemon.json(words);
        if is(&answer) {
            return answer;
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "tidegate {words:?} goes on to answer {answer:#}"
        );
    }
}

/// The share of a disk in what `datastore show` tells.
fn share<'a>(shown: &'a Value, disk: &str) -> Option<&'a Value> {
    let shares = shown["control"]["shares"].as_array()?;
    shares.iter().find(|share| share["disk"] == disk)
}

/// A daemon with a datastore that is as fast as the machine.
fn with_null_datastore(place: &Place) -> Daemon {
    let daemon = Daemon::start(place);
    daemon.run(&["datastore", "add", "none", "--kind", "null"]);
    daemon
}

fn create(daemon: &Daemon, disk: &str, datastore: &str, words: &[&str]) {
    let mut all = vec![
        "disk", "create", disk, "-d", datastore, "--size", "16M", "--attach",
    ];
    all.extend(words);
    daemon.run(&all);
}

/// Two daemons on one directory, as two hosts that mount the same.
fn two_hosts(place: &Place) -> (Daemon, Daemon) {
    let shared = place.join("shared");
    fs::create_dir(&shared).expect("a directory can be made");
    let shared = shared.display().to_string();
    let [one, other] = ["one", "other"].map(|root| Daemon::start_with(place, root, &[]));
    for daemon in [&one, &other] {
        daemon.run(&["datastore", "add", "shared", "--path", &shared]);
    }
    (one, other)
}

fn owners(place: &Place) -> usize {
    let owners = fs::read_dir(place.join("shared/.tidegate/owners"));
    owners.map_or(0, |owners| owners.count())
}

/// Waits until so many hosts have a slot.
fn wait_for_owners(place: &Place, many: usize) {
    let begun = Instant::now();
    while owners(place) != many {
        assert!(
            begun.elapsed() < PATIENCE,
            "{} hosts have a slot, not {many}",
            owners(place)
        );
        std::thread::yield_now();
    }
}

#[test]
fn a_limit_and_its_burst_hold_over_any_interval() {
    let place = Place::new();
    let daemon = with_null_datastore(&place);
    let words = "--limit 400 --burst-iops 1200 --burst-seconds 1";
    create(&daemon, "d", "none", &words.split(' ').collect::<Vec<_>>());
    let uri = [daemon.nbd_uri("d")];
    // All of the burst is to be had, and not one more: on four connections as on one.
    let stays = in_units(&load(&uri, 4, 1_500, &[512, 4096, 32 << 10]), UNIT);
    within(&stays, 400, 800, 1);
    within(&stays, 1_200, grace(1_200), 1);
    let had = excess(&stays, 400).expect("something was asked for");
    assert!(had >= 0.95 * 800.0, "of a burst of 800 only {had} were had");
    // What is set on an attached disk holds from the next request on.
    daemon.run(&["disk", "set", "d", "--limit", "200", "--burst-iops", "none"]);
    let stays = in_units(&load(&uri, 4, 400, &[512]), UNIT);
    within(&stays, 200, grace(200), 1);
}

#[test]
fn large_requests_count_as_many_units_as_they_have() {
    let place = Place::new();
    let daemon = with_null_datastore(&place);
    let mixed = [64 << 10, 512, 1 << 20, 33 << 10];
    create(&daemon, "d", "none", &["--limit", "200"]);
    let uri = [daemon.nbd_uri("d")];
    let stays = in_units(&load(&uri, 3, 80, &mixed), UNIT);
    within(&stays, 200, grace(200), 32);
    // Fewer of larger units.
    daemon.run(&["datastore", "set", "none", "--io-unit", "64KiB"]);
    let stays = in_units(&load(&uri, 3, 80, &mixed), 64 << 10);
    within(&stays, 200, grace(200), 16);
    // And more of smaller ones.
    daemon.run(&["datastore", "add", "fine", "--kind", "null"]);
    daemon.run(&["datastore", "set", "fine", "--io-unit", "4KiB"]);
    create(&daemon, "f", "fine", &["--limit", "400"]);
    let stays = in_units(&load(&[daemon.nbd_uri("f")], 3, 60, &[64 << 10, 512]), 4096);
    within(&stays, 400, grace(400), 16);
}

#[test]
fn a_bandwidth_limit_holds_over_any_interval() {
    let place = Place::new();
    let daemon = with_null_datastore(&place);
    create(&daemon, "d", "none", &["--limit-bw", "1MiB/s"]);
    let stays = in_bytes(&load(
        &[daemon.nbd_uri("d")],
        3,
        300,
        &[4096, 512, 16 << 10],
    ));
    within(&stays, 1 << 20, grace(1 << 20), 16 << 10);
}

#[test]
fn a_limit_holds_over_all_queues_of_a_guest() {
    const QUEUES: u16 = 4;
    let place = Place::new();
    let daemon = with_null_datastore(&place);
    create(&daemon, "d", "none", &["--limit", "300"]);
    let mut options = VmOptions::new(&daemon.vhost_user("d"), 8);
    options.queues = QUEUES;
    let guest = Vm::connect(options).expect("a guest can connect");
    let mut driver = GuestDriver::new(vec![guest], Wait::Sleep);
    let mut sources = vec![Source::new(Load::random_reads(1, 16 << 20)); usize::from(QUEUES)];
    let begun = Instant::now();
    let stays = (0..120).map(|_| {
        let asked = begun.elapsed();
        let until = Until::Count(5);
        let served = driver.run(&mut sources, until, &mut |_| {});
        let served = served.expect("the guest is served");
        let amount = served.iter().map(|queue| queue.completed).sum();
        Stay {
            asked,
            answered: begun.elapsed(),
            amount,
        }
    });
    let stays: Vec<Stay> = stays.collect();
    assert!(stays.iter().map(|stay| stay.amount).sum::<u64>() >= 600);
    within(&stays, 300, grace(300), 1);
}

#[test]
fn a_limit_holds_while_all_else_of_its_disk_is_changed() {
    let place = Place::new();
    let daemon = with_null_datastore(&place);
    create(&daemon, "d", "none", &["--limit", "250"]);
    let uri = [daemon.nbd_uri("d")];
    let served = thread::scope(|scope| {
        let load = scope.spawn(|| load(&uri, 4, 900, &[512]));
        let changes: &[&[&str]] = &[
            &["disk", "set", "d", "--shares", "high"],
            &["disk", "set", "d", "--no-filters"],
            &["disk", "set", "d", "--reservation", "10"],
            &["disk", "set", "d", "--filter", "stats"],
            &["disk", "set", "d", "--limit", "250"],
            &["datastore", "set", "none", "--congestion-threshold", "1ms"],
            &["disk", "set", "d", "--latency-target", "5ms"],
            &["datastore", "set", "none", "--io-control", "off"],
            &["datastore", "set", "none", "--io-control", "on"],
        ];
        let mut made = 0;
        for change in changes.iter().cycle() {
            if load.is_finished() {
                break;
            }
            daemon.run(change);
            made += 1;
        }
        assert!(made >= changes.len(), "it was over after {made} changes");
        load.join().expect("its clients are served to the end")
    });
    within(&in_units(&served, UNIT), 250, grace(250), 1);
}

#[test]
fn a_groups_limit_holds_over_all_its_disks() {
    let place = Place::new();
    let daemon = Daemon::start_with(&place, "root", &["--threads", "2"]);
    daemon.run(&["datastore", "add", "none", "--kind", "null"]);
    daemon.run(&["group", "set", "shop", "--limit", "300iops"]);
    let disks = ["a", "b", "c", "d"];
    for disk in disks {
        create(&daemon, disk, "none", &["--group", "shop"]);
    }
    let uris = disks.map(|disk| daemon.nbd_uri(disk));
    let stays = in_units(&load(&uris, 8, 600, &[512, 64 << 10]), UNIT);
    within(&stays, 300, grace(300), 2);

    let refused = daemon.attempt(&["group", "remove", "shop"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let shown = daemon.json(&["group", "show", "shop"]);
    assert_eq!(shown["disks"], serde_json::json!(disks), "{shown}");
    for disk in disks {
        daemon.run(&["disk", "set", disk, "--group", "none"]);
    }
    daemon.run(&["group", "remove", "shop"]);
}

#[test]
fn a_policy_and_a_group_survive_a_restart() {
    let place = Place::new();
    let daemon = with_null_datastore(&place);
    daemon.run(&["group", "set", "shop", "--limit", "100iops"]);
    let policy = [
        "--shares",
        "high",
        "--reservation",
        "50",
        "--limit",
        "5000",
        "--burst-iops",
        "15000",
        "--burst-seconds",
        "10",
        "--limit-bw",
        "200MiB/s",
        "--latency-target",
        "5ms",
        "--group",
        "shop",
    ];
    create(&daemon, "d", "none", &policy);
    let before = daemon.json(&["disk", "show", "d"])["policy"].clone();
    assert_eq!(before["burst_iops"], 15_000, "{before}");
    assert_eq!(before["latency_target_us"], 5_000, "{before}");
    daemon.run(&["datastore", "set", "none", "--congestion-threshold", "12ms"]);
    assert!(daemon.stop("TERM").success());

    let daemon = Daemon::start(&place);
    let after = daemon.json(&["disk", "show", "d"]);
    assert_eq!(after["policy"], before);
    let shown = daemon.json(&["datastore", "show", "none"]);
    assert_eq!(shown["control"]["congestion_threshold"], "12ms", "{shown}");
    let stays = in_units(&load(&[daemon.nbd_uri("d")], 2, 250, &[512]), UNIT);
    within(&stays, 100, grace(100), 1);
}

#[test]
fn observe_delays_nothing_and_off_applies_limits_only() {
    let place = Place::new();
    let daemon = with_null_datastore(&place);
    daemon.run(&["datastore", "set", "none", "--io-control", "observe"]);
    create(&daemon, "d", "none", &["--limit", "10iops"]);
    let uri = [daemon.nbd_uri("d")];
    // Held to its limit this would take five times longer than the test may.
    let requests = 10 * 5 * PATIENCE.as_secs();
    let requests = usize::try_from(requests).expect("a few thousand");
    load(&uri, 1, requests, &[512]);
    daemon.run(&["datastore", "set", "none", "--io-control", "off"]);
    daemon.run(&["disk", "set", "d", "--limit", "200iops"]);
    within(
        &in_units(&load(&uri, 2, 400, &[512]), UNIT),
        200,
        grace(200),
        1,
    );
}

#[test]
fn hosts_that_share_a_directory_see_each_other_and_each_others_disks() {
    let place = Place::new();
    let (one, other) = two_hosts(&place);
    create(&one, "a", "shared", &["--shares", "low"]);
    create(&other, "b", "shared", &["--shares", "high"]);
    for daemon in [&one, &other] {
        let shown = wait(daemon, &["datastore", "show", "shared"], |shown| {
            let hosts = shown["control"]["hosts"].as_array();
            hosts.is_some_and(|hosts| hosts.len() == 2)
                && share(shown, "a").is_some()
                && share(shown, "b").is_some()
        });
        let shares = |disk| share(&shown, disk).expect("it is there")["shares"].clone();
        assert_eq!(
            (shares("a"), shares("b")),
            (500.into(), 2_000.into()),
            "{shown}"
        );
        assert_eq!(shown["control"]["hosts"][0]["here"], true, "{shown}");
        let table = daemon.run(&["datastore", "show", "shared"]);
        assert!(
            table.contains("SHARES") && table.contains("slot file"),
            "{table}"
        );
    }
    // Who leaves is gone at once, and takes its slot along.
    wait_for_owners(&place, 2);
    assert!(other.stop("TERM").success());
    wait_for_owners(&place, 1);
    wait(&one, &["datastore", "show", "shared"], |shown| {
        let hosts = shown["control"]["hosts"].as_array();
        hosts.is_some_and(|hosts| hosts.len() == 1)
    });
}

#[test]
fn what_is_set_on_one_host_holds_on_the_other() {
    let place = Place::new();
    let (one, other) = two_hosts(&place);
    create(&one, "a", "shared", &[]);
    create(&other, "b", "shared", &[]);
    one.run(&[
        "datastore",
        "set",
        "shared",
        "--congestion-threshold",
        "12ms",
    ]);
    let show = ["datastore", "show", "shared"];
    wait(&other, &show, |shown| {
        shown["control"]["congestion_threshold"] == "12ms"
    });
    // The second change keeps the first, on whichever host it is made, with and without a disk attached there.
    other.run(&["datastore", "set", "shared", "--io-unit", "16KiB"]);
    wait(&one, &show, |shown| {
        shown["control"]["congestion_threshold"] == "12ms"
            && shown["control"]["io_unit_bytes"] == 16 << 10
    });
    one.run(&["disk", "detach", "a"]);
    one.run(&["datastore", "set", "shared", "--io-control", "observe"]);
    wait(&other, &show, |shown| {
        shown["control"]["mode"] == "observe"
            && shown["control"]["congestion_threshold"] == "12ms"
            && shown["control"]["io_unit_bytes"] == 16 << 10
    });
    one.run(&["datastore", "set", "shared", "--io-control", "on"]);
    wait(&other, &show, |shown| shown["control"]["mode"] == "on");

    // A disk's policy lies with the disk: the host that serves it takes up what another one was told.
    one.run(&["disk", "set", "b", "--limit", "200iops"]);
    wait(&other, &show, |shown| {
        share(shown, "b").is_some_and(|share| share["limit_iops"] == 200)
    });
    let stays = in_units(&load(&[other.nbd_uri("b")], 2, 400, &[512]), UNIT);
    within(&stays, 200, grace(200), 1);
}

#[test]
fn control_that_is_off_leaves_no_slot_and_comes_back() {
    let place = Place::new();
    let (one, other) = two_hosts(&place);
    create(&one, "a", "shared", &[]);
    create(&other, "b", "shared", &[]);
    wait_for_owners(&place, 2);
    one.run(&["datastore", "set", "shared", "--io-control", "off"]);
    wait_for_owners(&place, 0);
    let shown = one.json(&["datastore", "show", "shared"]);
    assert_eq!(shown["control"]["slot"], Value::Null, "{shown}");
    other.run(&["datastore", "set", "shared", "--io-control", "on"]);
    wait_for_owners(&place, 2);
}

#[test]
fn hosts_without_a_common_directory_coordinate_in_the_one_that_is_set() {
    let place = Place::new();
    let meeting = place.join("shared");
    fs::create_dir(&meeting).expect("a directory can be made");
    let meet = |daemon: &Daemon, disk: &str, path: &Path| {
        daemon.run(&["datastore", "add", "far", "--kind", "null"]);
        let path = path.display().to_string();
        daemon.run(&["datastore", "set", "far", "--coordination", &path]);
        create(daemon, disk, "far", &[]);
    };
    let [one, other] = ["one", "other"].map(|root| Daemon::start_with(&place, root, &[]));
    meet(&one, "a", &meeting);
    meet(&other, "b", &meeting);
    wait(&one, &["datastore", "show", "far"], |shown| {
        let hosts = shown["control"]["hosts"].as_array();
        hosts.is_some_and(|hosts| hosts.len() == 2)
    });
    let refused = one.attempt(&["datastore", "set", "far", "--no-coordination"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let refused = one.attempt(&["datastore", "set", "local", "--coordination", "/tmp"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
}

#[test]
fn a_reservation_that_cannot_be_promised_is_refused_without_best_effort() {
    let place = Place::new();
    let daemon = Daemon::start(&place);
    daemon.run(&[
        "datastore",
        "add",
        "array",
        "--kind",
        "emulated",
        "--model",
        "fifo",
    ]);
    create(&daemon, "busy", "array", &[]);
    create(&daemon, "new", "array", &[]);
    let uri = daemon.nbd_uri("busy");
    let load = std::thread::spawn(move || {
        Program::new("fio")
            .args(["--name=load", "--ioengine=nbd", "--rw=randread", "--bs=4k"])
            .args([
                "--iodepth=64",
                "--time_based",
                "--runtime=300",
                "--size=16M",
            ])
            .arg(format!("--uri={uri}"))
            .output()
    });
    let reserve = |more: &[&str]| {
        let words = ["disk", "set", "new", "--reservation", "1000000"];
        daemon.attempt(&[&words, more].concat())
    };
    // As long as nobody has seen what the array can do, nobody can say that it cannot.
    let said = loop {
        let answer = reserve(&[]);
        if !answer.status.success() {
            break String::from_utf8_lossy(&answer.stderr).into_owned();
        }
        daemon.run(&["disk", "set", "new", "--reservation", "0"]);
        assert!(!load.is_finished(), "it was never refused");
    };
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in ["cannot be guaranteed", "can be guaranteed", "--best-effort"] {
        assert!(said.contains(words), "no `{words}` in: {said}");
    }
    assert!(reserve(&["--best-effort"]).status.success());
    let shown = daemon.json(&["disk", "show", "new"]);
    assert_eq!(shown["admission"]["promise"], "best-effort", "{shown}");
    // Attached anew it goes on as far as it goes.
    daemon.run(&["disk", "detach", "new", "--yes"]);
    daemon.run(&["disk", "attach", "new"]);
    let shown = daemon.json(&["disk", "show", "new"]);
    assert_eq!(shown["admission"]["promise"], "best-effort", "{shown}");
    let table = daemon.run(&["disk", "show", "new"]);
    assert!(table.contains("best effort only"), "{table}");
    // With its server the load ends too, content or not.
    drop(daemon);
    load.join().expect("fio ends");
}
