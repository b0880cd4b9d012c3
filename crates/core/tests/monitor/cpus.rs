//! The CPU rule of `auto` on constructed snapshots: a thread that lacks a CPU is not congested.

use tidegate_core::monitor::auto::Auto;
use tidegate_core::monitor::{
    Action, Decision, DiskLoad, HostLoad, Limits, Policy, Snapshot, ThreadLoad, ThreadState, Why,
};
use tidegate_core::request::DiskId;
use tidegate_core::units::{Span, Time};

const TICK: Span = Span::from_millis(5);

/// A thread whose requests wait too long. It was busy for all of the time that it had a CPU.
fn late(stolen: u64) -> ThreadLoad {
    let stolen = Span::from_nanos(TICK.as_nanos() * stolen / 100);
    ThreadLoad {
        state: ThreadState::Active,
        busy: Span::from_nanos(TICK.as_nanos() - stolen.as_nanos()),
        stolen,
        delay_p99: Span::from_micros(900),
        arrivals: 500,
        completions: 500,
        work: 10_000,
        ..ThreadLoad::default()
    }
}

/// A thread that is busy for a tenth of its time, and waits for a CPU for so many hundredths.
fn idle(stolen: u64) -> ThreadLoad {
    let part = |hundredths| Span::from_nanos(TICK.as_nanos() * hundredths / 100);
    ThreadLoad {
        state: ThreadState::Active,
        busy: part(10),
        sleep: part(90 - stolen),
        stolen: part(stolen),
        delay_p99: Span::from_micros(20),
        arrivals: 50,
        completions: 50,
        work: 1_000,
        ..ThreadLoad::default()
    }
}

/// Lets `auto` see these threads for so many ticks. Four equal disks are on thread 0.
fn watch(policy: &mut Auto, from: u64, ticks: u64, threads: &[ThreadLoad]) -> Vec<Decision> {
    watch_on(HostLoad::default(), policy, from, ticks, threads)
}

/// The same on this host of four CPUs.
fn watch_on(
    host: HostLoad,
    policy: &mut Auto,
    from: u64,
    ticks: u64,
    threads: &[ThreadLoad],
) -> Vec<Decision> {
    let mut out = Vec::new();
    for tick in from + 1..=from + ticks {
        let disk = |disk| DiskLoad {
            busy: Span::from_millis(1),
            arrivals: 125,
            completions: 125,
            work: 2_500,
            outstanding: Span::from_millis(40),
            queues: 1,
            ..DiskLoad::idle(DiskId(disk), 0)
        };
        let snapshot = Snapshot {
            now: Time::ZERO + Span::from_nanos(TICK.as_nanos() * tick),
            span: TICK,
            host: HostLoad { cpus: 4, ..host },
            threads: threads.to_vec(),
            disks_span: Some(TICK),
            disks: (0..4).map(disk).collect(),
        };
        policy.decide(&snapshot, &mut out);
    }
    out
}

fn auto() -> Auto {
    Auto::new(Limits { min: 1, max: 4 })
}

#[test]
fn a_thread_that_lacks_a_cpu_is_reported_once_and_its_disks_stay() {
    for stolen in [20, 45, 90] {
        // Ten seconds, with another thread that has room, and one that is parked.
        let threads = [late(stolen), idle(0), ThreadLoad::default()];
        let decisions = watch(&mut auto(), 0, 2_000, &threads);
        let said: Vec<String> = decisions.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            matches!(decisions[0].why, Why::NoCpu { thread: 0, .. }),
            "{said:?}"
        );
    }
}

#[test]
fn the_same_delays_of_a_thread_that_has_a_cpu_are_relieved_at_once() {
    for stolen in [0, 10] {
        let threads = [late(stolen), idle(0), ThreadLoad::default()];
        let decisions = watch(&mut auto(), 0, 4, &threads);
        let first = decisions.first().map(|decision| decision.action);
        assert!(
            matches!(first, Some(Action::Move { to: 1, .. })),
            "{decisions:?}"
        );
    }
}

#[test]
fn disks_leave_a_thread_whose_cpu_others_use_if_other_threads_have_cpus_of_their_own() {
    let pinned = HostLoad {
        pinned: true,
        ..HostLoad::default()
    };
    let first = |threads: &[ThreadLoad]| {
        let decisions = watch_on(pinned, &mut auto(), 0, 5, threads);
        let mut actions = decisions.iter().map(|decision| decision.action);
        actions.find(|action| !matches!(action, Action::Stay))
    };
    let with_room = first(&[late(45), idle(0), ThreadLoad::default()]);
    assert!(
        matches!(with_room, Some(Action::Move { to: 1, .. })),
        "{with_room:?}"
    );
    let parked = first(&[late(45), idle(45), ThreadLoad::default()]);
    assert!(
        matches!(parked, Some(Action::Activate { thread: 2 })),
        "{parked:?}"
    );
}

#[test]
fn a_shortage_that_ends_is_forgotten_within_three_ticks() {
    let mut policy = auto();
    watch(&mut policy, 0, 200, &[late(45), ThreadLoad::default()]);
    let after = watch(&mut policy, 200, 4, &[late(0), ThreadLoad::default()]);
    let is_activation = |it: &Decision| matches!(it.action, Action::Activate { thread: 1 });
    assert!(after.iter().any(is_activation), "{after:?}");
}

#[test]
fn no_disk_goes_to_a_thread_that_lacks_a_cpu() {
    let threads = [late(0), idle(45), ThreadLoad::default()];
    let decisions = watch(&mut auto(), 0, 10, &threads);
    let goes_to = |it: &Decision| match it.action {
        Action::Move { to, .. } => Some(to),
        _ => None,
    };
    let goes: Vec<u16> = decisions.iter().filter_map(goes_to).collect();
    assert!(
        !goes.is_empty() && goes.iter().all(|to| *to == 2),
        "{goes:?}"
    );
}

#[test]
fn threads_that_lack_cpus_may_become_fewer() {
    // Little to do, on a host that is full: the delays come from waiting for CPUs.
    let mut threads = [idle(45), idle(45)];
    threads[0].delay_p99 = Span::from_millis(3);
    let decisions = watch(&mut auto(), 0, 400, &threads);
    let is_lock = |it: &Decision| matches!(it.action, Action::Lock { .. });
    assert!(decisions.iter().any(is_lock), "{decisions:?}");
    let is_more = |it: &Decision| matches!(it.action, Action::Activate { .. });
    assert!(!decisions[..1].iter().any(is_more), "{decisions:?}");
}
