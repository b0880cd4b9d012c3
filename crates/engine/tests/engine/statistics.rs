//! Tests of the counters that are read beside the I/O threads.

use super::rig::{attach, client, engine, eventually};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidegate_core::units::Span;
use tidegate_engine::counters::{ThreadActivity, ThreadTimes};
use tidegate_engine::datastore::memory;
use tidegate_engine::{Engine, Settings};

/// A thread that polls for up to 50 us, on this CPU.
fn polling(cpus: Vec<usize>) -> Engine {
    Engine::start(&Settings {
        threads: 1,
        max_threads: 1,
        poll: Span::from_micros(50),
        always_poll: true,
        cpus,
        curves: true,
        monitor: tidegate_engine::monitor::Settings::NONE,
        coalesce: tidegate_core::coalesce::Coalesce::default(),
    })
    .unwrap()
}

fn thread(engine: &Engine) -> ThreadActivity {
    engine.statistics().threads().remove(0)
}

/// Runs `act`. Returns the thread's times meanwhile, and the wall clock's.
fn times(engine: &Engine, act: impl FnOnce()) -> (ThreadTimes, Duration) {
    let (before, clock) = (thread(engine), Instant::now());
    act();
    let (after, wall) = (thread(engine), clock.elapsed());
    (after.since(&before), wall)
}

fn assert_within_a_hundredth(sum: Span, wall: Duration, times: ThreadTimes) {
    let (sum, wall) = (u128::from(sum.as_nanos()), wall.as_nanos());
    assert!(
        sum.abs_diff(wall) * 100 < wall,
        "{sum} ns of {wall} ns: {times:?}"
    );
}

#[test]
fn busy_polling_sleeping_and_stolen_time_are_the_wall_clocks() {
    let engine = polling(Vec::new());
    let disk = attach(&engine, memory::open(64 << 20).unwrap());
    let mut guest = client(&disk);
    let (working, wall) = times(&engine, || {
        let until = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until {
            guest.write(0, &[7; 65_536]).unwrap();
        }
    });
    assert_within_a_hundredth(working.sum(), wall, working);
    assert!(working.busy > Span::from_millis(10), "{working:?}");
    // Asleep, while another thread works for some time of its CPU.
    let (idle, wall) = times(&engine, || burn(Duration::from_millis(100)));
    assert_within_a_hundredth(idle.sum(), wall, idle);
    let awake = idle.busy + idle.spinning + idle.stolen;
    assert!(awake < Span::from_millis(5), "{idle:?}");
}

fn burn(cpu: Duration) {
    let until = Instant::now() + cpu;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// A thread that shares its CPU with another that never sleeps gets about half of it.
#[test]
fn time_that_others_had_the_cpu_is_stolen() {
    let engine = polling(vec![0]);
    let disk = attach(&engine, memory::open(64 << 20).unwrap());
    let ended = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&ended);
    let other = polling(vec![0]);
    let rival = attach(&other, memory::open(64 << 20).unwrap());
    let load = move |disk| {
        let mut guest = client(&disk);
        move |ended: &AtomicBool| {
            while !ended.load(Ordering::Relaxed) {
                guest.write(0, &[7; 262_144]).unwrap();
            }
        }
    };
    let (mut first, mut second) = (load(disk), load(rival));
    let also = Arc::clone(&ended);
    let loads = [
        std::thread::spawn(move || first(&stop)),
        std::thread::spawn(move || second(&also)),
    ];
    let (shared, wall) = times(&engine, || std::thread::sleep(Duration::from_millis(500)));
    ended.store(true, Ordering::Relaxed);
    for load in loads {
        load.join().unwrap();
    }
    assert_within_a_hundredth(shared.sum(), wall, shared);
    // The kernel's own count says that the thread waited for its CPU.
    assert!(shared.stolen > Span::from_millis(25), "{shared:?}");
}

#[test]
fn the_busy_time_of_all_disks_is_that_of_their_thread() {
    let engine = engine(1);
    let disks: Vec<_> = (0..3)
        .map(|_| attach(&engine, memory::open(16 << 20).unwrap()))
        .collect();
    let mut guests: Vec<_> = disks.iter().map(client).collect();
    let statistics = engine.statistics();
    let sums = || {
        let disks = statistics.disks();
        let busy: u64 = disks.iter().map(|disk| disk.busy().as_nanos()).sum();
        let thread = thread(&engine);
        (busy, thread.busy.as_nanos(), disks, thread)
    };
    let (disks_before, busy_before, ..) = sums();
    for round in 0..6000 {
        for (nth, guest) in guests.iter_mut().enumerate() {
            // The second has twice the requests of the others, the third longer ones.
            guest.write(4096, &vec![7; 4096 << nth]).unwrap();
            if nth == 1 {
                guest.read(8192 * (round % 100), 4096).unwrap();
            }
        }
    }
    let (disks_after, busy_after, disks, thread) = sums();
    let (charged, busy) = (disks_after - disks_before, busy_after - busy_before);
    assert!(
        charged.abs_diff(busy) * 50 <= busy,
        "{charged} ns of {busy} ns, and {:?} for nothing",
        thread.unassigned
    );
    let requests: Vec<u64> = disks.iter().map(|disk| disk.requests()).collect();
    for (disk, expected) in disks.iter().zip([6000, 12_000, 6000]) {
        // The last turns are counted later.
        assert!(
            (expected - 64..=expected).contains(&disk.requests()),
            "{requests:?}"
        );
        assert!(disk.answered() <= disk.requests());
        assert!(disk.delays().count() == disk.requests());
    }
    let kib = disks[2].bytes() / disks[2].requests() / 1024;
    assert_eq!(kib, 16);
    assert!(thread.requests >= 24_000 - 64, "{}", thread.requests);
    assert_eq!(thread.delays.count(), thread.requests);
}

#[test]
fn reading_the_statistics_wakes_no_thread() {
    let engine = engine(2);
    let disk = attach(&engine, memory::open(1 << 20).unwrap());
    let mut guest = client(&disk);
    guest.write(0, &[1; 4096]).unwrap();
    let statistics = engine.statistics();
    let counts = || {
        let threads = statistics.threads().into_iter();
        let counts = threads.map(|thread| (thread.wakes.sum(), thread.turns, thread.busy));
        counts.collect::<Vec<_>>()
    };
    eventually("the threads are idle", || {
        let before = counts();
        burn(Duration::from_millis(5));
        counts() == before
    });
    let before = counts();
    for _ in 0..10_000 {
        assert_eq!(statistics.disks().len(), 1);
        assert_eq!(counts(), before);
    }
    drop(guest);
    disk.detach_fully().unwrap();
    assert!(
        statistics.disks().is_empty(),
        "a detached disk is forgotten"
    );
}
