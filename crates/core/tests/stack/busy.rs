//! Sampled disks: their counts are right, and limits and orders still take effect at once.

use super::SIZE;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::effect::{ControlId, Effect};
use tidegate_core::filter::FilterKey;
use tidegate_core::filter::{Cx, Filter, Io, Verdict};
use tidegate_core::iocontrol::shared::{Groups, Shared};
use tidegate_core::iocontrol::{CostModel, DiskKey, Limit, Mode, Orders, Policy, Scheduler, Usage};
use tidegate_core::request::{Data, DiskId, Flags, IoId, Op, Request, Token};
use tidegate_core::shard::{Controlled, Event, Shard};
use tidegate_core::stack::Stack;
use tidegate_core::units::{Span, Time};

const CONTROL: ControlId = ControlId(0);
const DISK: DiskId = DiskId(0);
/// The datastore's time between two completions: 100,000 a second.
const STEP: Span = Span::from_micros(10);

/// Counts the reads that I/O control skipped.
#[derive(Clone, Default)]
struct Watch(Arc<AtomicU64>);

impl Filter for Watch {
    fn name(&self) -> &'static str {
        "watch"
    }
    fn submit(&mut self, _cx: &mut Cx<'_>, _io: &Io) -> Verdict {
        Verdict::Pass
    }
    fn complete(&mut self, _cx: &mut Cx<'_>, io: &Io) -> Verdict {
        self.0
            .fetch_add(u64::from(io.cost.0 == 0), Ordering::Relaxed);
        Verdict::Pass
    }
}

/// One disk and its I/Os in the datastore, oldest first.
struct Busy {
    shard: Shard,
    skipped: Watch,
    now: Time,
    started: VecDeque<IoId>,
    submitted: u64,
    out: Vec<Effect>,
}

impl Busy {
    fn new(policy: Policy) -> Busy {
        let mut busy = Busy {
            shard: Shard::new(64),
            skipped: Watch::default(),
            now: Time::from_nanos(1),
            started: VecDeque::new(),
            submitted: 0,
            out: Vec::new(),
        };
        let scheduler = Box::new(Scheduler::new(0, Shared::new(1, &Groups::new(0)), 32 << 10));
        let control = CONTROL;
        busy.handle(Event::Control { control, scheduler });
        busy.steer(orders());
        let key = DiskKey(7);
        let watch = Box::new(busy.skipped.clone());
        busy.handle(Event::Attach {
            disk: DISK,
            size: SIZE,
            read_only: false,
            stack: Stack::new(vec![(FilterKey(0), watch)]),
            control: Some(Box::new(Controlled {
                control,
                members: Vec::new(),
                key,
                policy,
                spent: None,
            })),
        });
        busy
    }

    fn handle(&mut self, event: Event) {
        self.shard.handle(self.now, event, &mut self.out);
        for effect in self.out.drain(..) {
            if let Effect::Start { io, .. } = effect {
                self.started.push_back(io);
            }
        }
    }

    fn steer(&mut self, orders: Orders) {
        let control = CONTROL;
        self.handle(Event::Steer { control, orders });
    }

    fn submit(&mut self, op: Op, len: u64) {
        let request = Request {
            op,
            flags: Flags::NONE,
            offset: self.submitted * 7_919 % 100 * 4_096,
            len,
            data: Data::NONE,
            arrived: self.now,
        };
        let token = Token(self.submitted);
        self.submitted += 1;
        let disk = DISK;
        self.handle(Event::Submitted {
            disk,
            token,
            request,
        });
    }

    fn finish(&mut self) {
        let io = self.started.pop_front().expect("something is in flight");
        let (disk, outcome) = (DISK, Ok(()));
        self.handle(Event::Finished { disk, io, outcome });
    }

    /// Completes this many I/Os and submits another after each: `depth` stay in flight.
    fn run(&mut self, ios: u64, depth: usize, len: u64) {
        while self.started.len() < depth {
            self.submit(Op::Read, len);
        }
        for _ in 0..ios {
            self.now = self.now + STEP;
            self.finish();
            self.submit(Op::Read, len);
        }
    }

    /// The number of skipped I/Os since the last call.
    fn skipped(&self) -> u64 {
        self.skipped.0.swap(0, Ordering::Relaxed)
    }

    fn usage(&mut self) -> Usage {
        let mut usage = Vec::new();
        self.shard.usage(CONTROL, self.now, &mut usage);
        assert_eq!(usage.len(), 1);
        usage.remove(0)
    }

    /// A disk that has become busy.
    fn at_work(policy: Policy) -> Busy {
        let mut busy = Busy::new(policy);
        busy.run(5_000, 32, 4_096);
        let usage = busy.usage();
        assert!(near(usage.ios, 5_000, 1), "{}", usage.ios);
        busy
    }
}

fn orders() -> Orders {
    Orders {
        window: reads(4_096),
        ..Orders::idle(CostModel::flash())
    }
}

/// The cost of this many 4 KiB reads.
fn reads(count: u64) -> u64 {
    count * CostModel::flash().cost(Op::Read, 4_096, false).0
}

fn near(value: u64, expected: u64, percent: u64) -> bool {
    value.abs_diff(expected) * 100 <= expected * percent
}

#[test]
fn one_io_in_32_of_a_busy_disk_is_sampled() {
    let mut busy = Busy::new(Policy::default());
    busy.run(1_000, 32, 4_096);
    assert_eq!(busy.skipped(), 0);
    // Without orders so far.
    busy.run(10_000, 32, 4_096);
    let skipped = busy.skipped();
    assert!((9_500..9_800).contains(&skipped), "{skipped}");
    // At 19,000 a second every I/O is counted, after a thousand have shown the rate.
    for io in 0..9_000 {
        busy.now = busy.now + Span::from_nanos(42_632);
        busy.run(1, 32, 4_096);
        if io == 3_000 {
            assert!(busy.skipped() > 0);
        }
    }
    assert_eq!(busy.skipped(), 0);
}

#[test]
fn reports_of_a_sampled_disk_are_right() {
    let mut busy = Busy::at_work(Policy::default());
    // Larger requests, three times as long in flight.
    for (len, depth) in [(4_096, 32), (16_384, 96)] {
        busy.run(depth as u64, depth, len);
        busy.usage();
        let began = busy.now;
        busy.run(20_000, depth, len);
        let span = busy.now.since(began).as_nanos();
        let usage = busy.usage();
        let cost = CostModel::flash().cost(Op::Read, len, false).0;
        let latency = Span::from_nanos(STEP.as_nanos() * depth as u64);
        let latency = CostModel::flash()
            .normalise(Op::Read, len, latency)
            .as_nanos();
        assert!(near(usage.ios, 20_000, 1), "{}", usage.ios);
        assert!(near(usage.units, 20_000, 1), "{}", usage.units);
        assert!(near(usage.bytes, 20_000 * len, 1), "{}", usage.bytes);
        assert!(near(usage.cost, 20_000 * cost, 1), "{}", usage.cost);
        assert!(near(usage.ended_cost, 20_000 * cost, 1));
        assert!(near(usage.latency_ns, usage.ios * latency, 1));
        let counted: u64 = usage.latency_counts.iter().map(|n| u64::from(*n)).sum();
        assert_eq!(counted, usage.ios);
        let in_flight = u64::try_from(usage.in_flight_cost_ns).expect("of 200 ms");
        assert!(near(in_flight, depth as u64 * cost * span, 5));
    }
}

#[test]
fn the_cost_in_flight_is_known_when_control_engages() {
    let mut busy = Busy::at_work(Policy::default());
    busy.run(1_000, 96, 4_096);
    // The window fits all of them, and half as many more.
    busy.steer(Orders {
        engaged: true,
        window: reads(144),
        per_second: reads(100_000),
        ..orders()
    });
    let before = busy.started.len();
    for _ in 0..200 {
        busy.submit(Op::Read, 4_096);
    }
    let more = busy.started.len() - before;
    assert!((8..=88).contains(&more), "{more} of 48, give or take");
    while !busy.started.is_empty() {
        busy.now = busy.now + STEP;
        busy.finish();
        assert!(busy.started.len() <= 184, "the window holds");
    }
    busy.usage();
    assert!(
        !busy.shard.is_active(CONTROL),
        "nothing counts as in flight"
    );
}

#[test]
fn the_window_limits_a_sampled_disk_without_other_limits() {
    let mut busy = Busy::new(Policy::default());
    busy.steer(Orders {
        window: reads(128),
        ..orders()
    });
    busy.run(5_000, 32, 4_096);
    busy.usage();
    for _ in 0..10_000 {
        busy.submit(Op::Read, 4_096);
    }
    // Skipped before the disk was found to be too busy: the 32, and less than the window.
    assert!(
        busy.started.len() <= 128 + 32 + 128,
        "{}",
        busy.started.len()
    );
    for _ in 0..300 {
        busy.now = busy.now + STEP;
        busy.finish();
    }
    // From then on it holds exactly, however busy the disk is.
    for _ in 0..3_000 {
        assert_eq!(busy.started.len(), 128);
        busy.now = busy.now + STEP;
        busy.finish();
        busy.submit(Op::Read, 4_096);
    }
}

#[test]
fn a_new_limit_of_a_sampled_disk_applies_to_its_first_io() {
    let mut busy = Busy::at_work(Policy::default());
    let limit = Some(Limit {
        sustained: 100,
        peak: 0,
        burst: 10,
    });
    let policy = Policy {
        limit,
        ..Policy::default()
    };
    busy.handle(Event::Policy { disk: DISK, policy });
    let before = busy.started.len();
    for _ in 0..100 {
        busy.submit(Op::Read, 4_096);
    }
    let passed = busy.started.len() - before;
    assert!((10..=11).contains(&passed), "{passed}");
}

#[test]
fn disks_with_a_latency_target_or_a_low_rate_are_not_sampled() {
    let target = Policy {
        latency_target: Some(Span::from_millis(5)),
        ..Policy::default()
    };
    let mut busy = Busy::at_work(target);
    busy.run(5_000, 32, 4_096);
    assert_eq!((busy.usage().ios, busy.skipped()), (5_000, 0));

    let mut slow = Busy::at_work(Policy::default());
    slow.now = slow.now + Span::from_secs(4);
    slow.usage();
    // A part of the I/Os in flight was skipped.
    while !slow.started.is_empty() {
        slow.finish();
    }
    slow.usage();
    slow.skipped();
    slow.run(100, 8, 4_096);
    assert_eq!((slow.usage().ios, slow.skipped()), (100, 0));
}

#[test]
fn no_io_is_skipped_on_a_congested_datastore_in_observe_mode() {
    let mut busy = Busy::at_work(Policy::default());
    busy.steer(Orders {
        mode: Mode::Observe,
        engaged: true,
        ..orders()
    });
    while !busy.started.is_empty() {
        busy.finish();
    }
    busy.skipped();
    busy.run(500, 32, 4_096);
    assert_eq!(busy.skipped(), 0, "after the order");
    busy.usage();
    busy.run(5_000, 32, 4_096);
    assert_eq!((busy.usage().ios, busy.skipped()), (5_000, 0));
}
