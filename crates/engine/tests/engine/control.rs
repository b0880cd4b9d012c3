//! Tests of disks under I/O control on real I/O threads: shares, limits and changes. Tests with several hosts are in
//! `control/hosts.rs`.
//!
//! The assertions are proportions, counts and bounds that hold on any machine, however busy. No test asserts how long
//! something takes.

mod hosts;
mod members;

use super::client::Client;
use super::rig::{PATIENCE, client, engine, eventually, filters, spec};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;
use tidegate_core::governor::{self, Admission, GovernorEvent, Kind as Medium, Threshold};
use tidegate_core::iocontrol::{DiskKey, GroupId, GroupPolicy, Limit, Mode, Policy};
use tidegate_core::request::{Flags, Op};
use tidegate_core::units::Span;
use tidegate_engine::control::{Control, Event, Report, Settings, UnderControl};
use tidegate_engine::datastore::{OpenedImage, emulated, memory};
use tidegate_engine::{Disk, Engine, Kind};

const SIZE: u64 = 64 << 20;

pub(crate) fn settings(host: u8, threshold: Threshold) -> Settings {
    Settings {
        name: "shared".into(),
        directory: None,
        host_name: format!("host{host}"),
        governor: governor::Settings {
            host: [host; 16],
            incarnation: 77 + u64::from(host),
            mode: Mode::On,
            threshold,
            io_unit: 32 << 10,
            kind: Medium::Unknown,
            window_most: 256,
            learn: false,
        },
    }
}

/// Outstanding reads of a client that is always backlogged: a third of a second's work.
const BACKLOG: u64 = 128;

/// A few hundred small reads a second: a busy machine's delays do not matter.
fn slow() -> OpenedImage {
    let spec: emulated::Spec = "raid0-2x15k,size=64M,seed=3".parse().unwrap();
    emulated::open(&spec).unwrap()
}

pub(crate) fn attach(
    engine: &Engine,
    control: &Control,
    key: u64,
    policy: Policy,
    opened: OpenedImage,
) -> Disk {
    let mut spec = spec("disk", opened.info.size);
    spec.control = Some(UnderControl {
        control: control.clone(),
        key: DiskKey(key),
        policy,
    });
    engine.attach(spec, opened).unwrap()
}

fn shares(shares: u32) -> Policy {
    Policy {
        shares,
        ..Policy::default()
    }
}

pub(crate) fn limited(sustained: u64, burst: u64) -> Policy {
    let limit = Limit {
        sustained,
        peak: 0,
        burst,
    };
    Policy {
        limit: Some(limit),
        ..Policy::default()
    }
}

/// A client with `depth` small reads outstanding until it is dropped.
struct Workload {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Workload {
    fn on(disk: &Disk, depth: u64) -> Workload {
        let stop = Arc::new(AtomicBool::new(false));
        let (own, mut client) = (Arc::clone(&stop), client(disk));
        let thread = std::thread::spawn(move || {
            let (mut sent, mut answered) = (0_u64, 0);
            loop {
                let depth = if own.load(Ordering::Relaxed) {
                    0
                } else {
                    depth
                };
                while sent - answered < depth {
                    read(&mut client, sent * 7_919 % 16_000 * 4096);
                    sent += 1;
                }
                if sent == answered {
                    return;
                }
                let (_, answer) = client.next_answer().expect("the disk answers");
                assert!(answer.is_ok());
                answered += 1;
            }
        });
        Workload {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "a client failed");
    }
}

fn read(client: &mut Client, offset: u64) -> u64 {
    client.send(Op::Read, Flags::NONE, offset, 4096, &[])
}

fn used(report: &Report, key: u64) -> (u64, u64) {
    let disk = report.disks.iter().find(|disk| disk.key == DiskKey(key));
    disk.map_or((0, 0), |disk| (disk.ios, disk.cost))
}

fn two_to_one(threads: usize) {
    let engine = engine(threads);
    let threshold = Threshold::Fixed(Span::from_millis(40));
    let control = engine.control(settings(1, threshold)).unwrap();
    let heavy = attach(&engine, &control, 1, shares(2_000), slow());
    let light = attach(&engine, &control, 2, shares(1_000), slow());
    let workloads = [Workload::on(&heavy, BACKLOG), Workload::on(&light, BACKLOG)];
    eventually("control engages", || {
        control.report().unwrap().governor.engaged
    });
    let costs = || {
        let report = control.report().unwrap();
        assert!(report.governor.engaged, "control stays engaged");
        [used(&report, 1).1, used(&report, 2).1]
    };
    // The window must settle first: until then the datastore's queues are those from before.
    let settled = costs();
    eventually("the window settles", || costs()[1] > settled[1] + 256 * 100);
    let begin = costs();
    eventually("enough I/O was done", || costs()[1] > begin[1] + 256 * 400);
    let end = costs();
    let ratio = (end[0] - begin[0]) as f64 / (end[1] - begin[1]) as f64;
    assert!((1.8..=2.2).contains(&ratio), "2 to 1 came out as {ratio}");
    let held = control.report().unwrap().disks[0].held_ns;
    assert!(held[0] + held[1] > 0, "they waited for shares and window");
    let events = control.events().told;
    assert!(
        events
            .iter()
            .any(|(_, event)| matches!(event, Event::Governor(GovernorEvent::Engaged { .. })))
    );
    drop(workloads);
}

#[test]
fn a_congested_datastore_is_divided_by_shares() {
    two_to_one(1);
}

#[test]
fn shares_hold_over_two_io_threads() {
    two_to_one(2);
}

/// A request starts after it is sent and before it is answered, so this bound holds on any machine.
#[test]
fn a_limit_is_exact_over_any_interval() {
    let engine = engine(1);
    let control = engine.control(settings(1, Threshold::Off)).unwrap();
    let disk = attach(
        &engine,
        &control,
        1,
        limited(400, 8),
        memory::open(SIZE).unwrap(),
    );
    let mut c = client(&disk);
    let begin = Instant::now();
    let mut spans = Vec::new();
    for round in 0..240_u64 {
        // Each seventh request is of two units.
        let len = if round % 7 == 0 { 64 << 10 } else { 4096 };
        let sent = begin.elapsed();
        assert!(c.read(round * 4096, len).is_ok());
        spans.push((
            sent,
            begin.elapsed(),
            u64::from(len.div_ceil(32 << 10).max(1)),
        ));
    }
    for (first, (sent, ..)) in spans.iter().enumerate() {
        let mut units = 0;
        for (_, answered, more) in &spans[first..] {
            units += more;
            let span = (*answered - *sent).as_secs_f64();
            // The interval may include one request of two units.
            assert!(
                units as f64 <= 400.0 * span + 8.0 + 2.0,
                "{units} units in {span} s"
            );
        }
    }
    eventually("its wait for the limit is counted", || {
        let report = control.report().unwrap();
        report.disks.first().is_some_and(|disk| disk.held_ns[2] > 0)
    });
}

#[test]
fn disks_of_a_group_share_its_limit() {
    let engine = engine(1);
    let control = engine.control(settings(1, Threshold::Off)).unwrap();
    let group = GroupId(3);
    let limit = Limit {
        sustained: 300,
        peak: 0,
        burst: 4,
    };
    let policy = GroupPolicy {
        limit: Some(limit),
        bandwidth: None,
    };
    engine.set_group(group, &policy).unwrap();
    let member = Policy {
        group: Some(group),
        ..Policy::default()
    };
    let disks = [1, 2].map(|key| {
        let opened = memory::open(SIZE).unwrap();
        attach(&engine, &control, key, member.clone(), opened)
    });
    let mut clients = disks.each_ref().map(client);
    let begin = Instant::now();
    for round in 0..100 {
        for c in &mut clients {
            assert!(c.read(round * 4096, 4096).is_ok());
        }
        let most = 300.0 * begin.elapsed().as_secs_f64() + 4.0 + 1.0;
        assert!(2.0 * (round + 1) as f64 <= most);
    }
}

#[test]
fn no_request_waits_while_nothing_is_congested() {
    let engine = engine(1);
    let control = engine.control(settings(1, Threshold::Auto)).unwrap();
    let disk = attach(
        &engine,
        &control,
        1,
        shares(100),
        memory::open(SIZE).unwrap(),
    );
    let workload = Workload::on(&disk, 16);
    eventually("the disk has done I/O", || {
        used(&control.report().unwrap(), 1).0 > 1_000
    });
    drop(workload);
    let report = control.report().unwrap();
    assert!(!report.governor.engaged);
    assert_eq!(report.disks[0].held_ns, [0; 5]);
    assert_eq!(disk.report().unwrap().held, 0);
}

#[test]
fn a_policy_changes_at_once_and_loses_no_request() {
    let engine = engine(1);
    let control = engine.control(settings(1, Threshold::Off)).unwrap();
    let disk = attach(
        &engine,
        &control,
        1,
        limited(1, 0),
        memory::open(SIZE).unwrap(),
    );
    let mut c = client(&disk);
    let mut open: Vec<u64> = (0..200).map(|at| read(&mut c, at * 4096)).collect();
    eventually("the requests wait", || disk.report().unwrap().held > 190);
    // It is refused, and nothing changes.
    let wrong = Policy {
        shares: 1,
        ..Policy::default()
    };
    let refused = disk.set_policy(&wrong).err().map(|e| e.kind());
    assert_eq!(refused, Some(Kind::Invalid));
    disk.set_policy(&shares(500)).unwrap();
    // At one request a second the client would time out long before the last.
    while !open.is_empty() {
        let (cookie, answer) = c.next_answer().expect("the disk answers");
        assert!(answer.is_ok());
        let place = open.iter().position(|one| *one == cookie);
        open.remove(place.expect("each is answered once"));
    }
    let free = engine.attach(spec("free", SIZE), memory::open(SIZE).unwrap());
    let refused = free.unwrap().set_policy(&shares(500));
    assert_eq!(refused.err().map(|e| e.kind()), Some(Kind::Unsupported));
}

#[test]
fn a_detach_waits_for_scheduled_requests() {
    let engine = engine(1);
    let control = engine.control(settings(1, Threshold::Off)).unwrap();
    let disk = attach(
        &engine,
        &control,
        1,
        limited(50, 0),
        memory::open(SIZE).unwrap(),
    );
    let mut c = client(&disk);
    for at in 0..40 {
        read(&mut c, at * 4096);
    }
    eventually("the requests wait", || disk.report().unwrap().held >= 10);
    disk.detach(PATIENCE).unwrap();
    while let Some((_, answer)) = c.next_answer() {
        assert!(answer.is_ok(), "requests in flight are performed");
    }
    let report = &engine.threads().unwrap()[0];
    assert_eq!((report.in_flight, report.strays), (0, 0));
    // The control continues, and so does its next disk, with the same number.
    let next = attach(
        &engine,
        &control,
        2,
        shares(100),
        memory::open(SIZE).unwrap(),
    );
    assert!(client(&next).read(0, 4096).is_ok());
}

/// A disk that starts one request a second, and a client with requests for some two minutes: longer than any timeout
/// here.
fn delayed_by_limit(engine: &Engine) -> (Disk, Client) {
    let control = engine.control(settings(1, Threshold::Off)).unwrap();
    let disk = attach(
        engine,
        &control,
        1,
        limited(1, 0),
        memory::open(SIZE).unwrap(),
    );
    let mut c = client(&disk);
    for at in 0..BACKLOG {
        read(&mut c, at * 4096);
    }
    eventually("the requests wait", || disk.report().unwrap().held >= 100);
    (disk, c)
}

/// Starts a change of filters that waits for the limit; returns its result.
fn start_waiting_change(disk: &Disk) -> JoinHandle<Option<Kind>> {
    let own = disk.clone();
    let change = std::thread::spawn(move || {
        let changed = own.restack(&filters(&["null"]), PATIENCE);
        changed.err().map(|error| error.kind())
    });
    eventually("the change waits", || {
        let resized = disk.resize(SIZE);
        resized.err().map(|error| error.kind()) == Some(Kind::Busy)
    });
    change
}

#[test]
fn a_detach_waits_for_no_limit() {
    let engine = engine(1);
    let (disk, mut c) = delayed_by_limit(&engine);
    disk.detach(PATIENCE).unwrap();
    while let Some((_, answer)) = c.next_answer() {
        assert!(answer.is_ok(), "requests in flight are performed");
    }
    let report = &engine.threads().unwrap()[0];
    assert_eq!((report.in_flight, report.strays), (0, 0));
}

#[test]
fn a_limit_can_be_lifted_while_a_change_of_filters_waits_for_it() {
    let engine = engine(1);
    let (disk, mut c) = delayed_by_limit(&engine);
    let change = start_waiting_change(&disk);
    disk.set_policy(&shares(1_000)).unwrap();
    assert_eq!(change.join().unwrap(), None, "the filters have changed");
    for _ in 0..BACKLOG {
        assert!(matches!(c.next_answer(), Some((_, Ok(_)))));
    }
}

#[test]
fn a_detach_overtakes_a_change_of_filters() {
    let engine = engine(1);
    let (disk, _c) = delayed_by_limit(&engine);
    let change = start_waiting_change(&disk);
    disk.detach(PATIENCE).unwrap();
    assert_eq!(change.join().unwrap(), Some(Kind::Gone));
    let report = &engine.threads().unwrap()[0];
    assert_eq!((report.in_flight, report.strays), (0, 0));
}

#[test]
fn a_control_ends_with_its_last_disk_and_its_number_is_reused() {
    let engine = engine(2);
    for round in 0..20 {
        let control = engine.control(settings(1, Threshold::Auto)).unwrap();
        let disk = attach(
            &engine,
            &control,
            round,
            shares(100),
            memory::open(SIZE).unwrap(),
        );
        // The disk keeps the control alive.
        drop(control);
        assert!(client(&disk).read(0, 4096).is_ok());
        disk.detach(PATIENCE).unwrap();
    }
    let other = super::rig::engine(1);
    let foreign = other.control(settings(1, Threshold::Auto)).unwrap();
    let mut spec = spec("disk", SIZE);
    spec.control = Some(UnderControl {
        control: foreign.clone(),
        key: DiskKey(1),
        policy: shares(100),
    });
    let refused = engine.attach(spec, memory::open(SIZE).unwrap());
    assert_eq!(refused.err().map(|e| e.kind()), Some(Kind::Invalid));
    other.stop();
    assert_eq!(
        foreign.report().err().map(|e| e.kind()),
        Some(Kind::Gone),
        "the control ended with its engine"
    );
}

#[test]
fn settings_of_an_administrator_apply_and_are_reported() {
    let engine = engine(1);
    let control = engine.control(settings(1, Threshold::Auto)).unwrap();
    let threshold = Threshold::Fixed(Span::from_millis(12));
    control.set(Mode::Observe, threshold).unwrap();
    eventually("the setting is reported", || {
        let report = control.report().unwrap().governor;
        report.mode == Mode::Observe && report.threshold == Span::from_millis(12)
    });
    let policy = Policy {
        reservation: 100,
        ..Policy::default()
    };
    // The datastore was never seen at its limit.
    let admission = control.admit(None, &policy).unwrap();
    assert!(matches!(admission, Admission::Unverified));
}

/// As in [`a_limit_is_exact_over_any_interval`], although the disk is detached in between.
#[test]
fn an_attached_again_disk_has_no_second_burst() {
    let engine = engine(2);
    let begin = Instant::now();
    let mut done = 0;
    let mut others = Vec::new();
    for _ in 0..3 {
        // The control ends with its last disk.
        let control = engine.control(settings(1, Threshold::Off)).unwrap();
        let opened = memory::open(SIZE).unwrap();
        let disk = attach(&engine, &control, 1, limited(40, 60), opened);
        let mut c = client(&disk);
        for round in 0..40_u64 {
            assert!(c.read(round * 4096, 4096).is_ok());
            done += 1;
            let most = 40.0 * begin.elapsed().as_secs_f64() + 60.0 + 1.0;
            assert!(f64::from(done) <= most, "{done} of {most}");
        }
        drop(c);
        disk.detach(PATIENCE).unwrap();
        // The next time it is on the other I/O thread.
        let other = memory::open(SIZE).unwrap();
        others.push(engine.attach(spec("other", SIZE), other).unwrap());
    }
}
