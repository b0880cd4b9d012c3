//! Three hosts before one array, twelve disks with shares, fio at each of them; and the host that dies.
//!
//! The array is the bound: a modelled one of a thousand I/Os a second, which leaves the machine nearly idle. Everything
//! is judged by what fio saw of its own I/Os, as proportions. The one span that is judged is the product's own: what it
//! says of how long a silent host keeps its part, and a second.
//!
//! `TIDEGATE_HOSTS_SEED=N` kills the same host at the same moment again.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tidegate_lab::array::{ArrayServer, ArraySpec, Stretch};

use crate::support::daemon::Daemon;
use crate::support::place::{MIB, Place};
use crate::support::program::{PATIENCE, Service, find};

/// The shares of each host's disks.
const SHARES: [[u32; 4]; 3] = [
    [500, 1000, 1000, 2000],
    [500, 500, 1000, 1000],
    [1000, 1000, 2000, 2000],
];

/// The array's speed in I/Os a second, and in thousandths of what the model does: so slow that the machine is nearly idle.
const RATE: u64 = 1_005;
const SPEED: u32 = 300;

/// Where the datastore counts as congested: some ninety of its I/Os. An I/O's time is so long that what a busy machine
/// adds to it, on one host more than on another, is a small part of it.
const THRESHOLD: &str = "90ms";

/// What each client keeps outstanding: more than its disk's part of that, so that it always has something waiting.
const DEPTH: u32 = 64;

/// Seconds before hosts have found their windows, and then over which proportions are judged: thousands of I/Os, so that
/// one more or less is nothing. Only those count in which the array was the bound.
const SETTLING: usize = 4;
const JUDGED: usize = 6;

/// The array was the bound in a second in which it did this part of what it can, and in the one before: a machine that is
/// too busy for that divides by rules of its own.
const BOUND: f64 = 0.9;

/// By how much a disk's part of the whole may differ from what its shares say.
const OFF: f64 = 0.05;

/// What of the parts that they have in the end the survivors get when they have taken up the dead host's part.
const TAKEN_UP: f64 = 0.95;

/// Throughput is what ended in so long.
const MOMENT_MS: u64 = 1_000;

/// What a dead host's part may be free for, beyond its lease.
const GRACE: Duration = Duration::from_secs(1);

/// One host: its daemon, and the client of its four disks.
struct Host {
    daemon: Daemon,
    load: Service,
    logs: PathBuf,
}

fn disk(host: usize, place: usize) -> String {
    format!("h{host}d{place}")
}

/// The hosts' daemons, with all disks attached.
fn daemons(place: &Place, array: &ArrayServer) -> Vec<Daemon> {
    let meeting = place.join("meeting");
    fs::create_dir(&meeting).expect("a directory can be made");
    let meeting = meeting.display().to_string();
    let uri = format!("nbd+unix:///?socket={}", array.socket().display());
    let hosts = 0..SHARES.len();
    let start = |number| Daemon::start_with(place, &format!("host{number}"), &["--threads", "1"]);
    let daemons: Vec<Daemon> = hosts.map(start).collect();
    std::thread::scope(|scope| {
        for (number, daemon) in daemons.iter().enumerate() {
            let (uri, meeting) = (&uri, &meeting);
            scope.spawn(move || {
                let add = ["datastore", "add", "shared", "--kind", "nbd", "--uri", uri];
                daemon.run(&add);
                let set = ["datastore", "set", "shared", "--coordination", meeting];
                daemon.run(&[&set[..], &["--congestion-threshold", THRESHOLD]].concat());
                for (nth, shares) in SHARES[number].iter().enumerate() {
                    let (name, shares) = (disk(number, nth), shares.to_string());
                    let create = ["disk", "create", &name, "-d", "shared", "--size", "64M"];
                    daemon.run(&[&create[..], &["--shares", &shares, "--attach"]].concat());
                }
            });
        }
    });
    daemons
}

/// fio at work on a host's disks.
fn at_work(place: &Place, number: usize, daemon: Daemon) -> Host {
    let logs = place.join(&format!("logs{number}"));
    fs::create_dir(&logs).expect("a directory can be made");
    let mut words: Vec<String> = [
        "--ioengine=nbd",
        "--rw=randread",
        "--bs=4k",
        "--size=64M",
        "--time_based",
        "--runtime=600",
        "--thread",
        "--disable_clat=1",
        "--disable_slat=1",
        "--log_unix_epoch=1",
    ]
    .map(str::to_owned)
    .into();
    words.push(format!("--iodepth={DEPTH}"));
    for nth in 0..SHARES[number].len() {
        let name = disk(number, nth);
        words.push(format!("--name={name}"));
        words.push(format!("--uri={}", daemon.nbd_uri(&name)));
        words.push(format!("--write_lat_log={}", logs.join(&name).display()));
    }
    let load = Service::start("fio", find("fio").as_os_str(), &words, &[]);
    Host { daemon, load, logs }
}

impl Host {
    /// What it knows of the datastore's control.
    fn control(&self) -> Value {
        let told = self.daemon.rest().ask("GET", "/v1/datastores/shared", "");
        let mut told: Value = serde_json::from_str(&told).expect("REST answers in JSON");
        told["control"].take()
    }

    /// Ends its client; fails the test if an I/O had failed. When each I/O of each disk ended, in milliseconds of the wall
    /// clock.
    fn ended(&mut self) -> BTreeMap<String, Vec<u64>> {
        self.load.stop("INT");
        let said = self.load.said.text();
        assert_eq!(said.matches("err= 0").count(), 4, "fio met errors:\n{said}");
        let logs = fs::read_dir(&self.logs).expect("the logs are there");
        let mut all = BTreeMap::new();
        for log in logs.flatten() {
            let name = log.file_name().to_string_lossy().into_owned();
            let (disk, _) = name.split_once("_lat").expect("logs of latencies only");
            let text = fs::read_to_string(log.path()).expect("a log can be read");
            let ended = text.lines().map(|line| {
                let at = line.split(',').next().unwrap_or_default();
                at.trim().parse().expect("a log's line begins with a time")
            });
            all.insert(disk.to_owned(), ended.collect());
        }
        assert_eq!(all.len(), 4, "a log for each disk");
        all
    }
}

/// A second of the array, in milliseconds of the wall clock.
#[derive(Clone, Copy)]
struct Second {
    from: u64,
    to: u64,
    was_bound: bool,
}

/// Watches the array until it was the bound for so many seconds. Those.
fn watch(array: &ArrayServer, host: &Host, seconds: usize) -> Vec<Second> {
    let begun = Instant::now();
    let (mut all, mut from, mut ios) = (Vec::<Second>::new(), now_ms(), 0);
    // What it did before this does not count.
    let _before = array.did();
    let mut bound = Vec::new();
    while bound.len() < seconds {
        assert!(
            begun.elapsed() < PATIENCE,
            "the array is not the bound: the machine is too busy"
        );
        host.load.said.pause(Duration::from_millis(20));
        ios += array.did().ios;
        let to = now_ms();
        if to < from + MOMENT_MS {
            continue;
        }
        let could = (to - from) as f64 * RATE as f64 / 1e3;
        let second = Second {
            from,
            to,
            was_bound: ios as f64 >= BOUND * could,
        };
        if second.was_bound && all.last().is_none_or(|last| last.was_bound) {
            bound.push(second);
        }
        all.push(second);
        (from, ios) = (to, 0);
    }
    bound
}

/// Asks a host until what it knows is as it should be.
fn wait_until(host: &Host, what: &str, mut is: impl FnMut(&Value) -> bool) {
    let begun = Instant::now();
    loop {
        let control = host.control();
        if is(&control) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: not so in {control:#}");
        host.load.said.pause(Duration::from_millis(50));
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.expect("after 1970").as_millis()).expect("before the year 500,000,000")
}

/// I/Os that ended in a span of time.
fn count(ended: &[u64], from: u64, to: u64) -> usize {
    ended.iter().filter(|at| (from..to).contains(*at)).count()
}

/// Fails the test unless each disk got what its shares say of what all got.
fn judge(what: &str, shares: &BTreeMap<String, u32>, got: &BTreeMap<&str, usize>) {
    let all: usize = got.values().sum();
    let whole: u32 = got.keys().map(|disk| shares[*disk]).sum();
    let mut said = format!("{what}, of {all} I/Os:");
    let mut worst: f64 = 0.0;
    for (disk, ios) in got {
        let due = all as f64 * f64::from(shares[*disk]) / f64::from(whole);
        let off = *ios as f64 / due - 1.0;
        worst = worst.max(off.abs());
        said += &format!("\n  {disk}: {ios} I/Os, {:+.1} % off", off * 100.0);
    }
    println!("{said}");
    assert!(worst <= OFF, "{said}");
}

/// A number below another from a seed: splitmix64's first.
fn drawn(seed: u64, below: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) % below
}

#[test]
fn survivors_take_the_share_of_a_dead_host_within_its_lease_and_a_second() {
    let seed = std::env::var("TIDEGATE_HOSTS_SEED").map_or_else(
        |_| now_ms(),
        |text| text.parse().expect("TIDEGATE_HOSTS_SEED is a number"),
    );
    println!("to repeat: TIDEGATE_HOSTS_SEED={seed}");
    let victim = usize::from(drawn(seed, 3) > 0) + usize::from(drawn(seed, 3) > 1);
    // Anywhere between two looks of hosts that are calm, and a bit.
    let later = drawn(seed.wrapping_add(1), 2_000);

    let place = Place::new();
    let mut shares = BTreeMap::new();
    let mut stretches = Vec::new();
    for (number, all) in SHARES.iter().enumerate() {
        for (nth, share) in all.iter().enumerate() {
            let name = disk(number, nth);
            stretches.push(Stretch {
                begins: stretches.len() as u64 * 64 * MIB,
                size: 64 * MIB,
                name: name.clone(),
            });
            shares.insert(name, *share);
        }
    }
    let spec = ArraySpec::named("fifo").expect("a name of the model's");
    let array = ArrayServer::start(&spec, seed, stretches, &place.join("array.sock"));
    let array = array.expect("the array starts");
    array.set_speed(SPEED);
    let daemons = daemons(&place, &array).into_iter().enumerate();
    let mut hosts: Vec<Host> = daemons
        .map(|(number, daemon)| at_work(&place, number, daemon))
        .collect();
    for host in &hosts {
        wait_until(host, "three hosts at one congested datastore", |control| {
            let hosts = control["hosts"].as_array();
            control["engaged"] == true && hosts.is_some_and(|hosts| hosts.len() == SHARES.len())
        });
    }
    watch(&array, &hosts[0], SETTLING);
    let before = watch(&array, &hosts[0], JUDGED);
    hosts[0].load.said.pause(Duration::from_millis(later));
    let identity = hosts[victim].control()["hosts"][0]["host"].clone();
    let (killed, clock) = (now_ms(), Instant::now());
    hosts[victim].daemon.kill();

    // Until they give it up, the others say how long it may be silent.
    let mut lease = Duration::ZERO;
    let mut given_up = Vec::new();
    for (_, host) in hosts
        .iter()
        .enumerate()
        .filter(|(number, _)| *number != victim)
    {
        wait_until(host, "a dead host is given up", |control| {
            let hosts = control["hosts"].as_array().expect("a list of hosts");
            let dead = hosts.iter().find(|host| host["host"] == identity);
            if let Some(told) = dead.and_then(|dead| dead["lease_s"].as_f64()) {
                lease = lease.max(Duration::from_secs_f64(told));
            }
            dead.is_none()
        });
        given_up.push(clock.elapsed());
    }
    let alive = &hosts[(victim + 1) % SHARES.len()];
    watch(&array, alive, SETTLING);
    let after = watch(&array, alive, JUDGED);

    // The dead host's client has met its end as an error, which is not what is judged.
    hosts.remove(victim);
    let mut ended = BTreeMap::new();
    for host in &mut hosts {
        ended.extend(host.ended());
    }
    let in_span = |from, to| -> BTreeMap<&str, usize> {
        let counts = ended.iter();
        let counts = counts.map(|(disk, ended)| (disk.as_str(), count(ended, from, to)));
        counts.collect()
    };
    let in_all = |seconds: &[Second]| {
        let mut sums = BTreeMap::new();
        for second in seconds {
            for (disk, ios) in in_span(second.from, second.to) {
                *sums.entry(disk).or_default() += ios;
            }
        }
        sums
    };
    judge("before the death", &shares, &in_all(&before));
    judge("after it", &shares, &in_all(&after));

    let sum = |got: BTreeMap<&str, usize>| got.values().sum::<usize>() as f64;
    let span: u64 = after.iter().map(|second| second.to - second.from).sum();
    let parts = sum(in_all(&after)) / span as f64 * MOMENT_MS as f64;
    let over = after.last().map_or(killed, |second| second.to);
    let taken = (killed..over)
        .step_by(20)
        .map(|at| at + MOMENT_MS)
        .find(|to| sum(in_span(to - MOMENT_MS, *to)) >= TAKEN_UP * parts);
    let taken = Duration::from_millis(taken.expect("they take up its part") - killed);
    println!("lease {lease:?}, given up after {given_up:?}, its part taken up after {taken:?}");
    assert!(
        lease > Duration::ZERO,
        "nobody said how long a host may be silent"
    );
    assert!(
        taken <= lease + GRACE,
        "its part was taken up after {taken:?}, its lease is {lease:?}"
    );
    for host in hosts {
        assert!(host.daemon.stop("TERM").success());
    }
}
