//! `tidegate lab what-if` of a datastore that two hosts share: what it foretells, and what then is.
//!
//! The array is the bound: a modelled one of some three hundred I/Os a second, which leaves the machine nearly idle.
//! Everything is judged as parts of what all disks did, by the daemons' own counts; no time is.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_lab::array::{ArrayServer, ArraySpec, Stretch};

use crate::support::daemon::Daemon;
use crate::support::place::{MIB, Place};
use crate::support::program::{PATIENCE, Program, Service, find};
use crate::support::server::TIDEGATE;

/// The disks of each host, all of them with shares of a thousand at first.
const DISKS: [&[&str]; 2] = [&["vm1", "vm2"], &["vm3", "vm4"]];
/// The array's speed in thousandths of what the model does.
const SPEED: u32 = 100;
const THRESHOLD: &str = "80ms";
/// What each client keeps outstanding: more than its disk's part of what the threshold lets be in flight.
const DEPTH: u32 = 32;
/// So many I/Os of all disks are a proportion; a disk's part is then good to a few of a hundred.
const JUDGED: u64 = 2_400;
/// And so many pass before windows are what they come to be.
const SETTLING: u64 = 1_600;
/// By how much a disk's part may be off what was foretold.
const OFF: f64 = 0.1;

/// A host's daemon, and fio at work on its disks.
struct Host {
    daemon: Daemon,
    load: Option<Service>,
}

fn host(place: &Place, number: usize, array: &ArrayServer, meeting: &str) -> Host {
    let daemon = Daemon::start_with(place, &format!("host{number}"), &["--threads", "1"]);
    let uri = format!("nbd+unix:///?socket={}", array.socket().display());
    daemon.run(&["datastore", "add", "shared", "--kind", "nbd", "--uri", &uri]);
    let set = ["datastore", "set", "shared", "--coordination", meeting];
    daemon.run(&[&set[..], &["--congestion-threshold", THRESHOLD]].concat());
    for name in DISKS[number] {
        let create = ["disk", "create", name, "-d", "shared", "--size", "64M"];
        daemon.run(&[&create[..], &["--attach"]].concat());
    }
    Host { daemon, load: None }
}

impl Host {
    fn work(&mut self, number: usize) {
        let mut words: Vec<String> = [
            "--ioengine=nbd",
            "--rw=randread",
            "--bs=4k",
            "--size=64M",
            "--time_based",
            "--runtime=600",
            "--thread",
        ]
        .map(str::to_owned)
        .into();
        words.push(format!("--iodepth={DEPTH}"));
        for name in DISKS[number] {
            words.push(format!("--name={name}"));
            words.push(format!("--uri={}", self.daemon.nbd_uri(name)));
        }
        self.load = Some(Service::start("fio", find("fio").as_os_str(), &words, &[]));
    }

    fn pause(&self) {
        let load = self.load.as_ref().expect("it works");
        load.said.pause(Duration::from_millis(50));
    }

    fn ask(&self, path: &str) -> Value {
        serde_json::from_str(&self.daemon.rest().ask("GET", path, "")).expect("JSON")
    }
}

/// What every disk has answered until now.
fn counts(hosts: &[Host]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for host in hosts {
        let sample = host.ask("/v1/stats");
        for disk in sample["disks"].as_array().expect("disks") {
            let name = disk["name"].as_str().expect("a name");
            if name.starts_with("vm") {
                let ios = disk["all"]["ops_total"].as_u64().expect("a number");
                counts.insert(name.to_owned(), ios);
            }
        }
    }
    counts
}

/// Waits until all disks together have done so many I/Os. What each did.
fn pass(hosts: &[Host], ios: u64) -> BTreeMap<String, u64> {
    let (begun, before) = (Instant::now(), counts(hosts));
    loop {
        let mut did = counts(hosts);
        for (disk, now) in &mut did {
            *now -= before[disk];
        }
        if did.values().sum::<u64>() >= ios {
            return did;
        }
        assert!(begun.elapsed() < PATIENCE, "the disks stand still: {did:?}");
        hosts[0].pause();
    }
}

/// Each disk's part of the whole.
fn parts<N: Into<f64> + Copy>(of: &BTreeMap<String, N>) -> BTreeMap<&str, f64> {
    let all: f64 = of.values().map(|n| (*n).into()).sum();
    of.iter()
        .map(|(disk, n)| (disk.as_str(), (*n).into() / all))
        .collect()
}

#[test]
fn what_if_predicts_a_change_of_shares_from_the_data_of_one_host() {
    let place = Place::new();
    let names = DISKS.iter().copied().flatten();
    let stretches = (0..).zip(names).map(|(nth, name)| Stretch {
        name: (*name).to_owned(),
        begins: nth * 64 * MIB,
        size: 64 * MIB,
    });
    let spec = ArraySpec::named("fifo").expect("a name of the model's");
    let socket = place.join("array.sock");
    let array = ArrayServer::start(&spec, 1, stretches.collect(), &socket).expect("it starts");
    array.set_speed(SPEED);
    let meeting = place.join("meeting");
    fs::create_dir(&meeting).expect("a directory can be made");
    let meeting = meeting.display().to_string();
    let mut hosts: Vec<Host> = (0..DISKS.len())
        .map(|number| host(&place, number, &array, &meeting))
        .collect();

    // Before anybody asks for anything there is nothing to go by.
    let ask = ["lab", "what-if", "shared", "--set", "vm1.shares=4000"];
    let output = hosts[0].daemon.attempt(&ask);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("had any I/O"),
        "{said}"
    );

    for (number, host) in hosts.iter_mut().enumerate() {
        host.work(number);
    }
    pass(&hosts, SETTLING);
    pass(&hosts, JUDGED);
    let last = ["--last", "8s", "-o", "json"];
    let said = hosts[0].daemon.run(&[&ask[..], &last].concat());
    let foretold: Value = serde_json::from_str(&said).expect("JSON");
    hosts[0]
        .daemon
        .run(&["disk", "set", "vm1", "--shares", "4000"]);
    pass(&hosts, SETTLING);
    let did = pass(&hosts, JUDGED);

    let mut changed = BTreeMap::new();
    for disk in foretold["disks"].as_array().expect("disks") {
        let name = disk["disk"].as_str().expect("a name").to_owned();
        changed.insert(name, disk["changed"]["iops"].as_f64().expect("a number"));
    }
    println!("{}", foretold["agreement"]["says"]);
    // The other host's disks are known by what it tells of them: of this host's the names.
    let rest = changed
        .keys()
        .filter(|name| !DISKS[0].contains(&name.as_str()));
    assert_eq!(rest.count(), DISKS[1].len(), "{foretold:#}");
    let did: BTreeMap<String, f64> = did
        .into_iter()
        .map(|(name, ios)| (name, f64::from(u32::try_from(ios).expect("few"))))
        .collect();
    let (said, did) = (parts(&changed), parts(&did));
    println!("foretold {said:?}\nthen {did:?}");
    assert!(did["vm1"] > 0.4, "the change is one that is seen: {did:?}");
    for name in DISKS[0] {
        let off = said[name] / did[name] - 1.0;
        assert!(off.abs() <= OFF, "{name}: {:+.1} % off", off * 100.0);
    }
    for mut host in hosts {
        host.load.take().expect("it works").stop("INT");
        assert!(host.daemon.stop("TERM").success());
    }
}

#[test]
fn what_if_of_a_datastore_gives_the_reason_of_a_refusal_also_beside_results_of_its_name() {
    let place = Place::new();
    let daemon = Daemon::start(&place);
    fs::create_dir(place.join("stored")).expect("a directory can be made");
    let stored = place.join("stored").display().to_string();
    daemon.run(&[
        "datastore",
        "add",
        "results",
        "--kind",
        "dir",
        "--path",
        &stored,
    ]);
    let out = place.join("results").display().to_string();
    let made = ["lab", "run", "row-01-local-fairness", "--on", "sim"];
    Program::at(TIDEGATE).args(made).args(["--out", &out]).run();
    let beside = |datastore: &str| {
        let output = Program::at(TIDEGATE)
            .env("TIDEGATE_ROOT", place.join("root"))
            .args(["lab", "what-if", datastore, "--set", "vm1.shares=4000"])
            .within(place.path())
            .output();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let (status, said) = beside("results");
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("no disk of it is attached"), "{said}");
    assert!(!said.contains("--from"), "{said}");
    // With no datastore of that name the results were meant, and without results nothing was.
    daemon.run(&["datastore", "remove", "results"]);
    let (status, said) = beside("results");
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("--from results"), "{said}");
    let (status, said) = beside("nothing");
    assert_eq!(status, Some(1), "{said}");
    assert!(!said.contains("--from"), "{said}");
    assert!(daemon.stop("TERM").success());
}
