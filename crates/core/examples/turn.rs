//! A loop of I/Os through a shard, to count instructions: `turn HOW COUNT DISKS`.
//!
//! HOW is one of `none` (no control), `calm` (control, not engaged), `limited` (not engaged, below a limit), `engaged` (disks that
//! share a window, half of what they ask for), `all` (the same, with limits, reservations and latency targets), `hit` (no
//! control; a flash cache has all that is read, without the checksums themselves), `pool` (no control; the disk is one of a
//! pool, and all of it is mapped). Four I/Os of each disk are outstanding;
//! their use is told every 50 ms.
//!
//! Run it under `valgrind --tool=callgrind` with two counts: the difference is what the I/Os cost.

use std::collections::VecDeque;
use tidegate_core::block::BLOCK;
use tidegate_core::effect::{ControlId, Effect};
use tidegate_core::iocontrol::shared::{Groups, Shared};
use tidegate_core::iocontrol::{CostModel, DiskKey, Limit, Orders, Policy, Scheduler};
use tidegate_core::layout::cache::area::Area;
use tidegate_core::layout::cache::{CacheMode, CacheSetup, PAGE};
use tidegate_core::layout::pool::{Geometry, Grant, PoolSetup};
use tidegate_core::layout::{LayoutSpec, Members, Target, Tree};
use tidegate_core::request::{Data, DiskId, Flags, IoId, Op, Request, Token};
use tidegate_core::shard::{Controlled, Event, Shard};
use tidegate_core::stack::Stack;
use tidegate_core::units::{Span, Time};

const CONTROL: ControlId = ControlId(0);
/// I/Os of each disk that are outstanding.
const DEPTH: u64 = 4;
/// Bytes of each disk.
const SIZE: u64 = 1 << 30;
/// Bytes that are read of a disk with a cache. The cache has room for twice as much.
const CACHED: u64 = 1024 * PAGE;

fn main() {
    let mut args = std::env::args().skip(1);
    let how = args.next().unwrap_or_else(|| "none".into());
    let count: u64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let disks: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(2);
    let mut shard = Shard::new(64);
    let mut out = Vec::with_capacity(64);
    let all = how == "all";
    let hit = how == "hit";
    if hit {
        let slot = |buffer| Data { buffer, start: 0 };
        shard.give_arena((1000..1064).map(slot).collect());
    }
    let pooled = how == "pool";
    let controls = how != "none" && !hit && !pooled;
    if controls {
        let window = DEPTH / 2 * u64::from(disks) * 272;
        govern(
            &mut shard,
            (all || how == "engaged").then_some(window),
            &mut out,
        );
    }
    for disk in 0..disks {
        let policy = Policy {
            shares: 1_000 * (disk % 4 + 1),
            reservation: if all && disk.is_multiple_of(4) {
                100
            } else {
                0
            },
            limit: (all || how == "limited").then_some(Limit::steady(1 << 40)),
            latency_target: (all && disk % 8 == 1).then_some(Span::from_millis(5)),
            ..Policy::default()
        };
        let controlled = Controlled {
            control: CONTROL,
            members: Vec::new(),
            key: DiskKey(disk.into()),
            policy,
            spent: None,
        };
        let attach = Event::Attach {
            disk: DiskId(disk),
            size: SIZE,
            read_only: false,
            stack: match how.as_str() {
                "hit" => cached(),
                "pool" => of_pool(),
                _ => Stack::new(Vec::new()),
            },
            control: controls.then(|| Box::new(controlled)),
        };
        shard.handle(Time::ZERO, attach, &mut out);
        let (mut started, mut events) = (VecDeque::new(), Vec::new());
        let now = Time::ZERO;
        carry(&mut shard, now, &mut out, &mut started, &mut events);
        // A pool's disk zeroes some of its space.
        while let Some((disk, io)) = started.pop_front() {
            shard.ended(now, disk, io, Ok(()), |_, _| 0);
            shard.flow(now, &mut out);
            carry(&mut shard, now, &mut out, &mut started, &mut events);
        }
    }
    let range = if hit { CACHED } else { 200_000 * 4096 };
    if hit {
        // Twice, and not in sequence: all pages are kept.
        let fill = (7 * PAGE, CACHED);
        let pages = 2 * CACHED / PAGE * u64::from(disks);
        run(&mut shard, Op::Read, pages, disks, fill, &mut out);
    }
    if pooled {
        // The first write to each page is not in sequence.
        let fill = (7 * PAGE, range.next_multiple_of(PAGE));
        let pages = fill.1 / PAGE * u64::from(disks);
        run(&mut shard, Op::Write, pages, disks, fill, &mut out);
    }
    let steps = (7_919 * 4096, range);
    let answered = run(&mut shard, Op::Read, count, disks, steps, &mut out);
    assert_eq!(answered, count);
    println!("{answered} answered");
}

/// The stack of a disk of one image, with a cache.
fn cached() -> Stack {
    let chunks = u32::try_from(2 * CACHED / (16 * PAGE)).expect("few");
    let cache = CacheSetup {
        cache: [9; 16],
        disk: [7; 16],
        size: SIZE,
        devices: 1,
        area: Area::new(16 * PAGE, (0..chunks).collect()).expect("enough"),
        mode: CacheMode::WriteThrough,
        attachments: [0, 1],
        has_dirty: false,
        without: 0,
        policy: None,
        policy_state: Vec::new(),
    };
    let members = Members::new([7; 16], SIZE, 1);
    Stack::new(Vec::new()).over(Tree::cached(LayoutSpec::Plain, members, cache))
}

/// The stack of a disk of a pool of two members, with as many grants as it needs.
fn of_pool() -> Stack {
    let grant = |number: u32| Grant {
        column: u16::from(number % 2 == 1),
        number: number / 2,
        life: 1,
    };
    let setup = PoolSetup {
        members: Vec::new(),
        pool: [9; 16],
        disk: [7; 16],
        size: SIZE,
        geometry: Geometry::default(),
        columns: vec![Target(0), Target(1)],
        grants: (0..17).map(grant).map(Some).collect(),
        ancestors: Vec::new(),
        thick: false,
    };
    Stack::new(Vec::new()).over(Tree::pool(setup, None))
}

/// Puts the shard's datastore under control, engaged where there is a window.
fn govern(shard: &mut Shard, window: Option<u64>, out: &mut Vec<Effect>) {
    let shared = Shared::new(1, &Groups::new(0));
    let scheduler = Scheduler::new(0, shared, 32 << 10);
    let orders = Orders {
        engaged: window.is_some(),
        window: window.unwrap_or(256 << 8),
        per_second: 256 * 100_000,
        ..Orders::idle(CostModel::flash())
    };
    let control = CONTROL;
    let scheduler = Box::new(scheduler);
    let begin = Event::Control { control, scheduler };
    shard.handle(Time::ZERO, begin, out);
    shard.handle(Time::ZERO, Event::Steer { control, orders }, out);
}

/// Reads or writes `count` blocks or pages, in steps of some bytes through a range.
fn run(
    shard: &mut Shard,
    op: Op,
    count: u64,
    disks: u32,
    (step, range): (u64, u64),
    out: &mut Vec<Effect>,
) -> u64 {
    let len = if step.is_multiple_of(PAGE) {
        PAGE
    } else {
        4096
    };
    let mut now = Time::from_nanos(1_000_000);
    let mut events = Vec::with_capacity(64);
    let (mut told, mut usage) = (now, Vec::new());
    let disks = u64::from(disks);
    let mut started: VecDeque<(DiskId, IoId)> = VecDeque::with_capacity(64);
    let (mut asked, mut answered) = (0, 0);
    while answered < count {
        while asked < count && asked - answered < DEPTH * disks {
            let disk = DiskId(u32::try_from(asked % disks).expect("it was 32 bits"));
            let request = Request {
                op,
                flags: Flags::NONE,
                offset: asked / disks * step % range,
                len,
                data: Data::NONE,
                arrived: now,
            };
            let token = Token(asked);
            let submitted = Event::Submitted {
                disk,
                token,
                request,
            };
            shard.handle(now, submitted, out);
            asked += 1;
        }
        answered += carry(shard, now, out, &mut started, &mut events);
        if let Some((disk, io)) = started.pop_front() {
            now = now + Span::from_micros(1);
            if now.since(told) >= Span::from_millis(50) {
                told = now;
                usage.clear();
                shard.usage(CONTROL, now, &mut usage);
            }
            let outcome = Ok(());
            shard.ended(now, disk, io, outcome, |_, _| 0);
            shard.flow(now, out);
            answered += carry(shard, now, out, &mut started, &mut events);
        }
    }
    answered
}

/// Takes in what the shard wants; tells how many were answered. A layout's own blocks are empty, and are written at once.
fn carry(
    shard: &mut Shard,
    now: Time,
    out: &mut Vec<Effect>,
    started: &mut VecDeque<(DiskId, IoId)>,
    events: &mut Vec<Event>,
) -> u64 {
    let mut answered = 0;
    while !out.is_empty() {
        for effect in out.drain(..) {
            let event = match effect {
                Effect::Start { disk, io, .. } => {
                    started.push_back((disk, io));
                    continue;
                }
                Effect::Answer { .. } => {
                    answered += 1;
                    continue;
                }
                Effect::Opened { .. } | Effect::Copy { .. } | Effect::Zero { .. } => continue,
                Effect::Sum { disk, io, .. } => Event::Summed { disk, io, sum: 0 },
                Effect::ReadBlock { disk, io, .. } => {
                    let outcome = Ok(Some(Box::new([0; BLOCK])));
                    Event::BlockDone { disk, io, outcome }
                }
                Effect::WriteBlock { disk, io, .. } => {
                    let outcome = Ok(None);
                    Event::BlockDone { disk, io, outcome }
                }
                other => panic!("{other:?}"),
            };
            events.push(event);
        }
        for event in events.drain(..) {
            shard.gather(now, event, out);
        }
        shard.flow(now, out);
    }
    answered
}
