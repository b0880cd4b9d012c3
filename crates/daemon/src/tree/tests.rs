//! The control tree on a daemon that is played: its files, its refusals, and random paths and values.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use tidegate_api::dense::{DenseCondition, DenseConditions, DenseMode, DenseStatus};
use tidegate_api::disk::DiskSet;
use tidegate_api::io::{Coalesce, IoClass};
use tidegate_api::or_default::OrDefault;
use tidegate_api::thread::{DiskThread, ThreadState};
use tidegate_core::monitor::{Kind, Limits};
use tidegate_core::units::Span;
use tidegate_engine::counters::{DelayHistogram, QueueActivity};
use tidegate_engine::guests::GuestActivity;
use tidegate_engine::monitor::{Settings, Status};

use super::controlled::Device;
use super::*;
use crate::os_error;

/// A daemon with three I/O threads and two disks, and the rules of the engine.
#[derive(Debug)]
struct Played {
    state: RefCell<State>,
    /// How often the queues of a disk were read.
    reads: Cell<usize>,
}

#[derive(Clone, Debug, PartialEq)]
struct State {
    threads: Vec<ThreadState>,
    default: Option<u32>,
    disks: BTreeMap<Name, u32>,
    settings: BTreeMap<Name, DeviceSettings>,
    dense: DenseMode,
    monitor: Settings,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct DeviceSettings {
    weight: u32,
    class: IoClass,
    coalesce: OrDefault<Coalesce>,
    vcpus: OrDefault<u32>,
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn busy<T>(why: &str) -> Outcome<T> {
    Err(Problem::new(ProblemCode::Busy, why).remedy("do something else"))
}

impl Played {
    fn new() -> Played {
        let state = State {
            threads: vec![
                ThreadState::Active,
                ThreadState::Active,
                ThreadState::Parked,
            ],
            default: None,
            settings: BTreeMap::new(),
            dense: DenseMode::Auto,
            monitor: Settings {
                policy: Kind::Auto,
                limits: Limits { min: 1, max: 3 },
            },
            disks: BTreeMap::from([(name("db1"), 0), (name("N"), 1)]),
        };
        Played {
            state: RefCell::new(state),
            reads: Cell::new(0),
        }
    }

    fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Changes the state of a thread from one of `from`.
    fn turn(&self, thread: u32, from: &[ThreadState], to: ThreadState) -> Outcome<()> {
        let mut state = self.state.borrow_mut();
        let state = &mut state.threads[thread as usize];
        match from.contains(state) {
            true => *state = to,
            false => return busy("it is in another state"),
        }
        Ok(())
    }

    fn settings(&self, name: &Name) -> DeviceSettings {
        let settings = self.state().settings.get(name).copied();
        settings.unwrap_or(DeviceSettings {
            weight: 10,
            class: IoClass::Normal,
            coalesce: OrDefault::Default,
            vcpus: OrDefault::Default,
        })
    }

    fn must_be_a_thread(&self, thread: u32) -> Outcome<()> {
        thread_of(self, thread).map(drop)
    }
}

impl Controlled for Played {
    fn now_ns(&self) -> u64 {
        17
    }

    fn threads(&self) -> Outcome<Vec<Thread>> {
        let state = self.state.borrow();
        let thread = |(thread, of): (u32, &ThreadState)| Thread {
            thread,
            state: *of,
            is_default: state.default == Some(thread),
            cpu: (thread == 1).then_some(3),
            disks: state
                .disks
                .iter()
                .filter(|(_, on)| **on == thread)
                .map(|(name, _)| name.clone())
                .collect(),
            age_ns_total: 60,
            busy_ns_total: 10,
            spin_ns_total: 20,
            sleep_ns_total: 30,
            cpu_ns_total: 25,
            run_delay_ns_total: 6,
            requests_total: 9,
            turns_total: 4,
            wakeups_total: 5,
            stalls_total: 1,
            longest_turn_us: 1.5,
            queue_delay_p50_us: 0.25,
            queue_delay_p99_us: 12.0,
            moved_in_total: 2,
            moved_out_total: 3,
        };
        Ok((0..).zip(&state.threads).map(thread).collect())
    }

    fn create_thread(&self) -> Outcome<u32> {
        let mut state = self.state.borrow_mut();
        let parked = state
            .threads
            .iter()
            .position(|it| *it == ThreadState::Parked);
        match parked {
            Some(nth) => {
                state.threads[nth] = ThreadState::Active;
                Ok(u32::try_from(nth).unwrap())
            }
            None => busy("all I/O threads run"),
        }
    }

    fn remove_thread(&self, thread: u32) -> Outcome<()> {
        self.must_be_a_thread(thread)?;
        if self.state().disks.values().any(|on| *on == thread) {
            return busy("it has disks");
        }
        self.turn(thread, &[ThreadState::Locked], ThreadState::Parked)
    }

    fn lock_thread(&self, thread: u32) -> Outcome<()> {
        let from = [ThreadState::Active, ThreadState::Locked];
        self.turn(thread, &from, ThreadState::Locked)
    }

    fn unlock_thread(&self, thread: u32) -> Outcome<()> {
        let from = [ThreadState::Active, ThreadState::Locked];
        self.turn(thread, &from, ThreadState::Active)
    }

    fn set_default_thread(&self, thread: Option<u32>) -> Outcome<()> {
        if let Some(thread) = thread {
            self.must_be_a_thread(thread)?;
            if self.state().threads[thread as usize] != ThreadState::Active {
                return busy("it is not active");
            }
        }
        self.state.borrow_mut().default = thread;
        Ok(())
    }

    fn dense(&self) -> DenseStatus {
        let condition = |value| DenseCondition {
            value,
            threshold: 16.0,
            holds: value >= 16.0,
        };
        DenseStatus {
            mode: self.state().dense,
            on: self.state().dense == DenseMode::On,
            conditions: Some(DenseConditions {
                vms: condition(16.0),
                vcpus: condition(15.0),
                utilisation_percent: condition(16.0),
                assumed_vms: 0,
            }),
        }
    }

    fn set_dense(&self, mode: DenseMode) -> Outcome<()> {
        self.state.borrow_mut().dense = mode;
        Ok(())
    }

    fn monitor(&self) -> Outcome<Status> {
        Ok(Status {
            moves: 6,
            ..Status::new(self.state().monitor)
        })
    }

    fn set_monitor(&self, settings: Settings) -> Outcome<()> {
        self.state.borrow_mut().monitor = settings;
        Ok(())
    }

    fn devices(&self) -> Vec<Name> {
        self.state().disks.into_keys().collect()
    }

    fn device(&self, name: &Name) -> Outcome<Device> {
        match self.state().disks.get(name) {
            Some(thread) => Ok(Device {
                datastore: "local".parse().unwrap(),
                thread: *thread,
                size_bytes: 1 << 30,
                queues: 2,
                clients: 3,
                owners: vec![42, 43],
                weight: self.settings(name).weight,
                class: self.settings(name).class,
                coalesce: self.settings(name).coalesce,
                vcpus: self.settings(name).vcpus,
            }),
            None => {
                Err(Problem::new(ProblemCode::NotFound, "it is not attached").remedy("attach it"))
            }
        }
    }

    fn move_device(&self, name: &Name, thread: u32) -> Outcome<DiskThread> {
        let from = self.device(name)?.thread;
        self.must_be_a_thread(thread)?;
        if self.state().threads[thread as usize] != ThreadState::Active {
            return Err(os_error::invalid("it is not active").remedy("name another"));
        }
        self.state.borrow_mut().disks.insert(name.clone(), thread);
        Ok(DiskThread {
            disk: name.clone(),
            from,
            thread,
            pause_us: 12.34,
            in_flight: 7,
        })
    }

    fn set_device(&self, name: &Name, order: &DiskSet) -> Outcome<()> {
        self.device(name)?;
        let before = self.settings(name);
        let weight = |it: OrDefault<u32>| it.value().unwrap_or(10);
        let settings = DeviceSettings {
            weight: order.io_weight.map_or(before.weight, weight),
            class: order.io_class.unwrap_or(before.class),
            coalesce: order.coalesce.unwrap_or(before.coalesce),
            vcpus: order.vcpus.unwrap_or(before.vcpus),
        };
        self.state
            .borrow_mut()
            .settings
            .insert(name.clone(), settings);
        Ok(())
    }

    fn queues(&self, name: &Name) -> Outcome<Vec<(Queue, QueueActivity)>> {
        self.device(name)?;
        self.reads.set(self.reads.get() + 1);
        let did = |requests| QueueActivity {
            requests,
            answered: requests,
            bytes: 512 * requests,
            outstanding: Span::from_micros(7),
            busy: Span::from_micros(3),
            kicks: 1,
            calls: 0,
            standing_since: None,
            delays: DelayHistogram::default(),
        };
        Ok(vec![
            (Queue::Ring(0), did(8)),
            (Queue::Ring(1), did(0)),
            (Queue::Connections, did(5)),
        ])
    }

    fn machines(&self) -> Vec<u32> {
        vec![42, 43]
    }

    fn machine(&self, pid: u32) -> Option<Machine> {
        let counted = GuestActivity {
            process: 42,
            vcpus: 4,
            assumed: false,
            run: Span::from_micros(8),
            run_delay: Span::from_micros(2),
        };
        [42, 43].contains(&pid).then(|| Machine {
            pid,
            declared: self.settings(&name("db1")).vcpus.value(),
            counted: (pid == 42).then_some(counted),
            devices: vec![name("db1")],
        })
    }
}

fn text_of(on: &Played, path: &str) -> String {
    read(on, path).unwrap().value.unwrap()
}

fn names_in(on: &Played, path: &str) -> Vec<String> {
    let entries = read(on, path).unwrap().entries;
    entries.into_iter().map(|entry| entry.name).collect()
}

fn errno(problem: Result<impl std::fmt::Debug, Problem>) -> &'static str {
    problem.unwrap_err().errno.unwrap().as_str()
}

#[test]
fn a_file_is_one_line_or_a_line_for_each_thing() {
    let on = Played::new();
    assert_eq!(text_of(&on, "/thread/0/state"), "active\n");
    assert_eq!(text_of(&on, "thread/1/cpu"), "3\n");
    assert_eq!(text_of(&on, "/thread/0/cpu"), "");
    assert_eq!(text_of(&on, "/thread/0/disks"), "db1\n");
    assert_eq!(text_of(&on, "/device/db1/owner"), "42\n43\n");
    assert_eq!(text_of(&on, "/vm/42/vcpus"), "4\n");
    assert_eq!(text_of(&on, "/vm/42/devices/"), "db1\n");
    assert_eq!(text_of(&on, "/vm/42/run_ns"), "8000\n");
    assert_eq!(text_of(&on, "/vm/42/run_delay_ns"), "2000\n");
    assert_eq!(text_of(&on, "/vm/43/vcpus"), "");
    assert_eq!(text_of(&on, "/vm/43/run_ns"), "");
    assert_eq!(text_of(&on, "/thread/default"), "auto\n");
    assert_eq!(
        text_of(&on, "/dense/conditions"),
        "vms 16.0 16.0 1\nvcpus 15.0 16.0 0\nutilisation 16.0 16.0 1\n"
    );
    assert_eq!(text_of(&on, "/monitor/state"), "running\n");
    assert_eq!(text_of(&on, "/monitor/moves"), "6\n");
    assert_eq!(text_of(&on, "/thread/0/queue_delay_p99_us"), "12.0\n");
    assert_eq!(text_of(&on, "/queue/db1.0/requests"), "8\n");
    assert_eq!(text_of(&on, "/queue/db1.nbd/calls"), "0\n");
    assert_eq!(text_of(&on, "/thread/active"), "2\n");
    let node = read(&on, "/thread/create").unwrap();
    assert_eq!((node.value, node.access), (None, TreeAccess::Write));
}

#[test]
fn a_directory_lists_its_files_and_the_things_that_are_there() {
    let on = Played::new();
    assert_eq!(
        names_in(&on, ""),
        [
            "now_ns", "thread", "device", "queue", "dense", "monitor", "vm"
        ]
    );
    assert_eq!(
        names_in(&on, "/thread"),
        ["create", "remove", "default", "active", "0", "1", "2"]
    );
    assert_eq!(names_in(&on, "/device"), ["N", "db1"]);
    let queues = ["N.0", "N.1", "N.nbd", "db1.0", "db1.1", "db1.nbd"];
    assert_eq!(names_in(&on, "/queue"), queues);
    let files = ["vcpus", "run_ns", "run_delay_ns", "devices"];
    assert_eq!(names_in(&on, "/vm/42"), files);
    assert_eq!(names_in(&on, "/vm"), ["42", "43"]);
    assert_eq!(text_of(&on, "/device/N/thread"), "1\n");
}

#[test]
fn a_list_of_queues_reads_each_disk_once_and_a_queue_only_its_own() {
    let on = Played::new();
    let disks: Vec<Name> = (0..500).map(|nth| name(&format!("d{nth}"))).collect();
    let all = disks.iter().map(|disk| (disk.clone(), 0));
    on.state.borrow_mut().disks = all.collect();
    assert_eq!(names_in(&on, "/queue").len(), 3 * disks.len());
    assert_eq!(on.reads.take(), disks.len());
    assert_eq!(text_of(&on, "/queue/d7.1/requests"), "0\n");
    assert_eq!(on.reads.take(), 1);
}

#[test]
fn every_listed_node_can_be_read_and_has_a_meaning() {
    let on = Played::new();
    let mut left = vec![String::new()];
    let mut files = 0;
    while let Some(path) = left.pop() {
        let node = read(&on, &path).unwrap();
        assert!(!node.about.is_empty(), "{path}");
        for entry in node.entries {
            let path = format!("{path}/{}", entry.name);
            let inner = read(&on, &path).unwrap();
            assert_eq!((inner.kind, inner.access), (entry.kind, entry.access));
            assert_eq!(inner.path, path);
            match entry.kind {
                TreeKind::Directory => left.push(path),
                TreeKind::File => {
                    files += 1;
                    assert_eq!(inner.value.is_some(), entry.access.reads(), "{path}");
                }
            }
        }
    }
    assert!(
        files > nodes().count(),
        "each thread and disk has its files"
    );
}

#[test]
fn a_write_takes_effect_before_it_is_answered() {
    let on = Played::new();
    assert_eq!(write(&on, "/thread/create", "1\n").unwrap().result, "2");
    assert_eq!(text_of(&on, "/thread/2/state"), "active\n");
    let moved = write(&on, "/device/db1/thread", " 2 ").unwrap();
    assert_eq!(moved.result, "pause_us 12.3");
    assert_eq!(text_of(&on, "/thread/2/disks"), "db1\n");
    write(&on, "/thread/0/locked", "1").unwrap();
    assert_eq!(text_of(&on, "/thread/0/locked"), "1\n");
    write(&on, "/thread/remove", "0").unwrap();
    assert_eq!(text_of(&on, "/thread/0/state"), "parked\n");
    write(&on, "/dense/mode", "on").unwrap();
    assert_eq!(text_of(&on, "/dense/mode"), "on\n");
    assert_eq!(text_of(&on, "/dense/on"), "1\n");
    for (file, value) in [("policy", "spdk"), ("min", "2"), ("max", "2")] {
        let path = format!("/monitor/{file}");
        write(&on, &path, value).unwrap();
        assert_eq!(text_of(&on, &path), format!("{value}\n"));
    }
    assert_eq!(errno(write(&on, "/monitor/max", "1")), "EINVAL");
    assert_eq!(errno(write(&on, "/monitor/min", "3")), "EINVAL");
    for (file, value) in [
        ("weight", "25"),
        ("class", "latency"),
        ("coalesce", "static:16,64us"),
        ("coalesce", "default"),
        ("vcpus", "4096"),
        ("vcpus", "default"),
        ("vcpus", "6"),
    ] {
        let path = format!("/device/db1/{file}");
        write(&on, &path, value).unwrap();
        assert_eq!(text_of(&on, &path), format!("{value}\n"));
    }
    assert_eq!(text_of(&on, "/device/N/weight"), "10\n");
    // What is declared counts.
    assert_eq!(text_of(&on, "/vm/42/vcpus"), "6\n");
    assert_eq!(text_of(&on, "/vm/43/vcpus"), "6\n");
    write(&on, "/thread/default", "1").unwrap();
    assert_eq!(text_of(&on, "/thread/default"), "1\n");
    write(&on, "/thread/default", "auto").unwrap();
    assert_eq!(text_of(&on, "/thread/default"), "auto\n");
}

#[test]
fn a_refusal_has_the_name_of_its_system_error_and_what_to_do() {
    let on = Played::new();
    for (path, expected) in [
        ("/nothing", "ENOENT"),
        ("/thread/9", "ENOENT"),
        ("/thread/00", "ENOENT"),
        ("/thread/+1/state", "ENOENT"),
        ("/thread/0/../1", "ENOENT"),
        ("/device/web1/thread", "ENOENT"),
        ("/vm/7", "ENOENT"),
        ("/queue/db1", "ENOENT"),
        ("/queue/db1.2", "ENOENT"),
        ("/queue/web1.0", "ENOENT"),
        ("/queue/db1.-1/calls", "ENOENT"),
        ("/thread/0/state/x", "ENOTDIR"),
        ("/now_ns/x/y", "ENOTDIR"),
    ] {
        assert_eq!(errno(read(&on, path)), expected, "{path}");
    }
    let long = "1".repeat(LONGEST + 1);
    for (path, value, expected) in [
        ("/thread", "1", "EISDIR"),
        ("/thread/0/state", "parked", "EACCES"),
        ("/vm/42/devices", "db1", "EACCES"),
        ("/vm/7/devices", "db1", "ENOENT"),
        ("/thread/0/locked", "2", "EINVAL"),
        ("/thread/0/locked", "", "EINVAL"),
        ("/thread/9/locked", "1", "ENOENT"),
        ("/thread/remove", "9", "ENOENT"),
        ("/thread/remove", "0", "EBUSY"),
        ("/thread/remove", "-1", "EINVAL"),
        ("/thread/default", "2", "EBUSY"),
        ("/device/db1/thread", "2", "EINVAL"),
        ("/device/db1/thread", "4294967296", "EINVAL"),
        ("/device/db1/weight", "101", "EINVAL"),
        ("/device/db1/weight", "none", "EINVAL"),
        ("/device/db1/vcpus", "0", "EINVAL"),
        ("/device/db1/vcpus", "4097", "EINVAL"),
        ("/device/db1/coalesce", "none", "EINVAL"),
        ("/", "1", "EISDIR"),
        ("", "1", "EISDIR"),
        ("/dense/mode", "full", "EINVAL"),
        ("/dense/on", "1", "EACCES"),
        ("/monitor/policy", "best", "EINVAL"),
        ("/monitor/max", "4", "EINVAL"),
        ("/monitor/min", "0", "EINVAL"),
        ("/monitor/moves", "0", "EACCES"),
        ("/device/db1/class", "urgent", "EINVAL"),
        ("/device/db1/coalesce", "static:0,1us", "EINVAL"),
        ("/device/web1/class", "latency", "ENOENT"),
        ("/thread/create", long.as_str(), "E2BIG"),
    ] {
        assert_eq!(
            errno(write(&on, path, value)),
            expected,
            "{path} {value:.9}"
        );
    }
    let problem = write(&on, "/thread/remove", "0").unwrap_err();
    assert_eq!(problem.what, "cannot write /thread/remove (EBUSY)");
    assert_eq!(on.state(), Played::new().state());
}

/// A small generator of numbers: the same ones in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % most as u64).unwrap()
    }

    fn one_of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }

    /// Any characters, of one to four bytes.
    fn noise(&mut self) -> String {
        let length = self.below(12);
        let any = |_| char::from_u32(u32::try_from(self.below(0x2_0000)).unwrap());
        (0..length).filter_map(any).collect()
    }

    /// A path that exists, nearly exists, or is nonsense.
    fn path(&mut self) -> String {
        const WORDS: &[&str] = &[
            "thread",
            "device",
            "vm",
            "queue",
            "db1.0",
            "0",
            "1",
            "2",
            "9",
            "42",
            "N",
            "NAME",
            "PID",
            "db1",
            "state",
            "locked",
            "create",
            "remove",
            "default",
            "disks",
            "devices",
            "..",
            ".",
            "",
            "-1",
            "99999999999",
            "busy_ns",
        ];
        match self.below(4) {
            0 | 3 => {
                let all: Vec<&Node> = nodes().collect();
                let is_written = |it: &&Node| it.file.access().writes();
                let written = all.iter().copied().filter(is_written).collect();
                let from: Vec<&Node> = match self.below(2) {
                    0 => all,
                    _ => written,
                };
                let node = from[self.below(from.len())];
                let thread = self.one_of(&["0", "1", "2", "1", "0", "3"]);
                let path = node
                    .path
                    .replace("/NAME", &format!("/{}", self.one_of(&["db1", "N", "x"])));
                path.replace("/N/", &format!("/{thread}/"))
                    .replace("PID", "42")
                    .replace("QUEUE", self.one_of(&["db1.0", "N.nbd", "db1.7"]))
            }
            1 => self.noise(),
            _ => {
                let words = (0..=self.below(4)).map(|_| self.one_of(WORDS));
                words.collect::<Vec<_>>().join("/")
            }
        }
    }

    fn value(&mut self) -> String {
        match self.below(8) {
            0 => self.noise(),
            1 => "7".repeat(self.below(2 * LONGEST)),
            2..5 => {
                let words = &[
                    "0", "1", " 2\n", "auto", "default", "latency", "off", "none",
                ];
                self.one_of(words).to_owned()
            }
            _ => self
                .one_of(&[
                    "0", "1", "2", "3", "auto", "", "\n", "1\n", "-0", "0x1", "1 2", "\0",
                ])
                .to_owned(),
        }
    }
}

#[test]
fn random_paths_and_values_are_answered_or_refused_by_name_and_a_refusal_changes_nothing() {
    let on = Played::new();
    let mut random = Random(0x51de_6a7e_1234_5678);
    let (mut reads, mut writes) = (0, 0);
    for nth in 0..90_000 {
        let (path, value) = (random.path(), random.value());
        let before = on.state();
        let refused = match random.below(2) {
            0 => {
                let answer = read(&on, &path);
                reads += usize::from(answer.is_ok());
                assert_eq!(on.state(), before, "a read of {path:?} changed something");
                answer.err()
            }
            _ => {
                let answer = write(&on, &path, &value);
                writes += usize::from(answer.is_ok());
                answer.err()
            }
        };
        if let Some(problem) = refused {
            let at = format!("{nth}: {path:?} {value:.20?}: {problem}");
            let errno = problem.errno.expect("each has one").as_str();
            assert!(problem.what.ends_with(&format!("({errno})")), "{at}");
            assert!(!problem.why.is_empty() && problem.remedy.is_some(), "{at}");
            assert_eq!(on.state(), before, "{at}");
        }
        let state = on.state();
        let Limits { min, max } = state.monitor.limits;
        assert!(
            (1..=max).contains(&min) && max <= 3,
            "{nth}: {path:?} {value:?}"
        );
        let is_served = |on: &u32| state.threads[*on as usize] != ThreadState::Parked;
        assert!(
            state.disks.values().all(is_served),
            "{nth}: {path:?} {value:?}"
        );
    }
    assert!(
        reads > 1_000 && writes > 1_000,
        "{reads} reads, {writes} writes"
    );
}

#[test]
fn the_reference_has_every_file() {
    let text = reference();
    for node in nodes() {
        assert!(
            text.contains(&format!("| `{}` |", node.path)),
            "{}",
            node.path
        );
    }
}
