//! The monitor of I/O threads on a real engine: it rests while nothing works, looks while something does, and acts.

use super::rig::{attach, client, eventually, spec};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_core::coalesce::Coalesce;
use tidegate_core::monitor::{Kind, Limits};
use tidegate_core::units::Span;
use tidegate_engine::datastore::memory;
use tidegate_engine::monitor::{Monitor, Settings as Policy};
use tidegate_engine::{Engine, Settings};

fn policy(policy: Kind, min: u16, max: u16) -> Policy {
    let limits = Limits { min, max };
    Policy { policy, limits }
}

/// Threads that poll, so that idle ones are seen to end that, too.
fn engine(threads: usize, max_threads: usize, monitor: Policy) -> Engine {
    Engine::start(&Settings {
        threads,
        max_threads,
        poll: Span::from_micros(50),
        always_poll: false,
        cpus: Vec::new(),
        curves: false,
        monitor,
        coalesce: Coalesce::default(),
    })
    .expect("the engine starts")
}

fn monitor(engine: &Engine) -> &Monitor {
    engine.monitor().expect("it runs as long as the engine")
}

/// Wake-ups of all I/O threads, and snapshots of the monitor.
fn activity(engine: &Engine) -> (u64, u64) {
    let threads = engine.statistics().threads();
    let wakes = threads.iter().map(|thread| thread.wakes.sum()).sum();
    (wakes, monitor(engine).status().ticks)
}

#[test]
fn four_hundred_idle_disks_wake_nobody_under_any_policy() {
    let engine = engine(2, 3, policy(Kind::Auto, 1, 3));
    let disks: Vec<_> = (0..400)
        .map(|at| {
            let opened = memory::open(1 << 20).expect("memory");
            let disk = spec(&format!("disk{at}"), opened.info.size);
            engine.attach(disk, opened).expect("the disk attaches")
        })
        .collect();
    for kind in [Kind::Auto, Kind::Iocm, Kind::Spdk, Kind::None] {
        let ticks = monitor(&engine).status().ticks;
        monitor(&engine).set(policy(kind, 1, 3));
        if kind != Kind::None {
            eventually("the new policy looks", || {
                monitor(&engine).status().ticks > ticks
            });
            eventually("the monitor rests", || monitor(&engine).status().resting);
        }
        let before = activity(&engine);
        std::thread::sleep(Duration::from_millis(2_500));
        assert_eq!(activity(&engine), before, "{}", kind.name());
    }
    assert_eq!(disks.len(), 400);
}

#[test]
fn the_first_request_wakes_the_monitor_and_the_end_of_the_load_lets_it_rest() {
    let engine = engine(1, 2, policy(Kind::Auto, 1, 2));
    let disk = attach(&engine, memory::open(64 << 20).expect("memory"));
    let mut guest = client(&disk);
    eventually("the monitor rests", || monitor(&engine).status().resting);
    let before = monitor(&engine).status().ticks;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                guest.write(0, &[7; 65_536]).expect("a write");
            }
        });
        eventually("it looks at the threads", || {
            let status = monitor(&engine).status();
            status.ticks >= before + 10 && status.detailed_ticks > 0
        });
        over.store(true, Ordering::Relaxed);
    });
    eventually("the monitor rests", || monitor(&engine).status().resting);
    let status = monitor(&engine).status();
    assert!(status.cpu > Span::ZERO && status.failed == 0, "{status:?}");
}

/// SPDK's policy gathers idle disks on the main thread and parks the others: it needs no load to act.
#[test]
fn a_policy_moves_disks_and_parks_threads_on_the_engine() {
    let engine = engine(3, 3, Policy::NONE);
    let disks: Vec<_> = (0..6)
        .map(|_| attach(&engine, memory::open(1 << 20).expect("memory")))
        .collect();
    assert!(disks.iter().any(|disk| disk.thread() > 0));
    monitor(&engine).set(policy(Kind::Spdk, 1, 3));
    let mut guest = client(&disks[5]);
    eventually("all disks are on the main thread", || {
        guest.write(0, &[7; 512]).expect("a write");
        disks.iter().all(|disk| disk.thread() == 0) && monitor(&engine).status().parked == 2
    });
    let events = monitor(&engine).take_events();
    let status = monitor(&engine).status();
    assert_eq!((status.moves, status.failed), (4, 0), "{events:?}");
    let parked = events
        .iter()
        .filter(|event| event.decision.to_string().starts_with("park"));
    assert_eq!(parked.count(), 2);
}
