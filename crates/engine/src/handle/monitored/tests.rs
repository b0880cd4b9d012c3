//! The snapshots of the monitor: what is read for them, and what that costs.

use super::*;
use crate::counters::{DiskCounters, Served, ThreadCounters};
use crate::thread::peers::Peers;
use std::time::Duration;
use tidegate_core::monitor::auto::Auto;
use tidegate_core::monitor::{Limits, Policy};

#[test]
fn a_wait_that_was_longer_than_the_interval_is_shared_with_the_next_ones() {
    let ms = Span::from_millis;
    // 20 ms were counted in an interval that took 5 of them.
    assert_eq!(owed(ms(20), ms(5)), ms(5));
    assert_eq!(owed(ms(20), ms(20)), ms(20));
    // A long stop is not spread over seconds.
    assert_eq!(owed(ms(900), ms(5)), ms(850));
}

const DISKS: u32 = 256;
const QUEUES: u16 = 2;
/// Of the 64 threads that may exist.
const ACTIVE: usize = 4;
const TICK: Span = Span::from_millis(5);

/// A host whose counters are written as its I/O threads would.
struct BusyHost {
    statistics: Statistics,
    placement: Arc<Placement>,
    pages: Vec<Arc<ThreadCounters>>,
    disks: Vec<Arc<DiskCounters>>,
    ticks: u64,
}

impl BusyHost {
    fn new() -> BusyHost {
        let statistics = Statistics::default();
        let peers = Arc::new(Peers::new(64).expect("there are descriptors"));
        let placement = Placement::new(Arc::clone(&peers), ACTIVE);
        let pages: Vec<_> = (0..64).map(|_| statistics.add_thread()).collect();
        for page in &pages {
            // The kernel counts for a thread that exists.
            page.begin(os::now());
        }
        let disks = (0..DISKS).map(|number| {
            let disk = Arc::new(DiskCounters::new(QUEUES.into()));
            statistics.add_disk(DiskId(number), &disk);
            placement.place(DiskId(number));
            disk
        });
        let disks = disks.collect();
        BusyHost {
            statistics,
            placement: Arc::new(placement),
            pages,
            disks,
            ticks: 0,
        }
    }

    fn subject(&self) -> Monitored {
        Monitored::new(
            self.statistics.clone(),
            Arc::clone(&self.placement),
            Known::default(),
            Arc::default(),
            (64, false),
        )
    }

    /// A tick passes: every queue had 25 requests, so there are 2.5 million a second.
    fn work(&mut self) {
        self.ticks += 1;
        let served = Served {
            taken: 25,
            answered: 25,
            bytes: 25 * 4096,
            busy: Span::from_micros(20),
            outstanding: Span::from_millis(2),
            ..Served::default()
        };
        for disk in &self.disks {
            for queue in 0..QUEUES {
                disk.queue(queue).charge(&served);
                disk.queue(queue).delayed(25, Span::from_micros(30));
            }
        }
        for page in &self.pages[..ACTIVE] {
            page.publish(self.ticks * 100, 0, self.ticks * 3_200);
            page.delayed(3_200, Span::from_micros(30));
        }
    }
}

/// CPU time of the monitor in a second of 200 ticks, with its sleeps, and how many of the ticks had disks. Times are those of
/// the ticks that it asks for; only the sleeps are shorter.
fn second(host: &mut BusyHost, subject: &mut Monitored, policy: &mut Auto) -> (Span, u32) {
    let (mut snapshot, mut decisions) = (Snapshot::default(), Vec::new());
    let (mut cpu, mut detailed) = (Span::ZERO, 0);
    for _ in 0..200 {
        host.work();
        let before = os::thread_cpu();
        std::thread::park_timeout(Duration::from_micros(20));
        let with_disks = policy.next().is_some_and(|wish| wish.disks);
        subject.snapshot(with_disks, &mut snapshot);
        snapshot.now = Time::ZERO + Span::from_nanos(TICK.as_nanos() * host.ticks);
        snapshot.span = TICK;
        if with_disks {
            snapshot.disks_span = Some(Span::from_millis(100));
            detailed += 1;
        }
        policy.decide(&snapshot, &mut decisions);
        cpu = cpu + os::thread_cpu().since(before);
        decisions.clear();
    }
    (cpu, detailed)
}

/// A hundredth of a second. Tests are built with fewer optimisations than the program, and take twice as long.
const MOST: Span = Span::from_millis(if cfg!(debug_assertions) { 20 } else { 10 });

/// The kernel counts the thread's time on a CPU, whatever else the machine does. What is left of its influence are caches: so
/// the best of some seconds counts.
#[test]
fn with_256_busy_disks_the_monitor_takes_less_than_a_hundredth_of_a_cpu() {
    let mut host = BusyHost::new();
    let (mut subject, mut policy) = (host.subject(), Auto::new(Limits { min: 4, max: 4 }));
    let seconds = (0..8).map(|_| second(&mut host, &mut subject, &mut policy));
    let seconds: Vec<(Span, u32)> = seconds.collect();
    println!("{seconds:?}");
    let least = seconds.iter().map(|(cpu, _)| *cpu).min();
    assert!(least.is_some_and(|cpu| cpu <= MOST), "{seconds:?}");
    // The threads are full all the time: each slow tick allows one more look at their disks.
    let detailed = seconds[1..].iter().map(|(_, detailed)| *detailed).max();
    assert!(detailed.is_some_and(|ticks| ticks <= 21), "{seconds:?}");
}

/// Most threads of a host with many CPUs are parked. Reading what the kernel counts for them would take more than all else.
#[test]
fn a_parked_thread_is_not_read_and_one_that_comes_into_use_begins_with_its_next_tick() {
    let host = BusyHost::new();
    let mut subject = host.subject();
    let mut snapshot = Snapshot::default();
    let mut look = |subject: &mut Monitored| {
        subject.snapshot(false, &mut snapshot);
        snapshot.threads[ACTIVE]
    };
    for _ in 0..2 {
        let load = look(&mut subject);
        assert_eq!(load.state, core::ThreadState::Parked);
        let read: Vec<bool> = subject.threads.iter().map(Option::is_some).collect();
        assert_eq!(read, [[true; ACTIVE].to_vec(), vec![false; 60]].concat());
    }
    host.placement
        .act(ACTIVE, PolicyAct::Activate)
        .expect("it is parked");
    // Its page says that it was busy since it was made, which was not in this tick.
    assert!(subject.has_worked());
    assert_eq!(look(&mut subject).busy, Span::ZERO);
    assert!(look(&mut subject).busy > Span::ZERO);
}
