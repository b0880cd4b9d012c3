//! The processor of several cores against random drivers: no time is lost, and nothing waits beside an idle core.

use proptest::prelude::*;
use tidegate_model::Random;
use tidegate_model::cpu::{CpuSpec, Cpus};

/// Plays a random driver: tasks get work, block, and wake each other.
fn play(cores: u32, tasks: usize, seed: u64, pinned: bool) {
    let (wake, switch) = (5_500, 1_200);
    let mut cpus = Cpus::new(
        0,
        CpuSpec {
            cores,
            wake,
            switch,
        },
    );
    let mut random = Random::new(seed);
    for task in 0..tasks {
        let slice = [100_000, 4_000_000][task % 2];
        let mask = match pinned && task % 3 == 0 {
            true => 1 << random.below(cores.into()),
            false => u64::MAX,
        };
        cpus.spawn(0, slice, mask);
        cpus.wake(0, task, 1 + random.below(1_000_000));
    }
    let mut now = 0;
    for _ in 0..3_000 {
        let Some(next) = cpus.next() else {
            now += 10_000;
            let task = usize::try_from(random.below(tasks as u64)).expect("small");
            cpus.wake(now, task, 1 + random.below(100_000));
            continue;
        };
        now = next;
        let Some(task) = cpus.pop(now) else {
            continue;
        };
        if random.chance(500) {
            let other = usize::try_from(random.below(tasks as u64)).expect("small");
            cpus.wake(now, other, 1 + random.below(3_000_000));
        }
        match random.below(3) {
            0 => cpus.block(now, task),
            1 => cpus.work(now, task, random.below(50_000)),
            _ => cpus.work(now, task, random.below(6_000_000)),
        }
        if random.chance(100) {
            let other = usize::try_from(random.below(tasks as u64)).expect("small");
            cpus.cut(now, other, random.below(1_000));
        }
        let sum = |task| {
            let times = cpus.times(now, task);
            times.run + times.wait + times.sleep
        };
        assert!(
            (0..tasks).all(|task| sum(task) == now),
            "a task's time sums to wall time"
        );
        let waits = (0..tasks).any(|task| cpus.is_waiting(task));
        let idle = (0..cpus.cores()).any(|core| cpus.is_idle(core));
        assert!(
            pinned || !(waits && idle),
            "a task waits beside an idle core"
        );
    }
    let all = (0..cpus.cores()).map(|core| cpus.core_times(now, core));
    let (run, whole) = all.fold((0, 0), |(run, whole), times| {
        (
            run + times.run,
            whole + times.run + times.switch + times.idle,
        )
    });
    let ran: u64 = (0..tasks).map(|task| cpus.times(now, task).run).sum();
    assert_eq!(run, ran, "cores run what tasks have run");
    assert_eq!(
        whole,
        now * u64::from(cores),
        "a core's time sums to wall time"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_time_is_lost(cores in 1_u32..6, tasks in 1_usize..14, seed: u64, pinned: bool) {
        play(cores, tasks, seed, pinned);
    }
}
