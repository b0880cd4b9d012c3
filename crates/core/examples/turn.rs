//! A loop of I/Os through a shard, to count instructions: `turn HOW COUNT DISKS`.
//!
//! HOW is one of `none` (no control), `calm` (control, not engaged), `limited` (not engaged, below a limit), `engaged` (disks that
//! share a window, half of what they ask for), `all` (the same, with limits, reservations and latency targets). Four
//! I/Os of each disk are outstanding; their use is told every 50 ms.
//!
//! Run it under `valgrind --tool=callgrind` with two counts: the difference is what the I/Os cost.

use std::collections::VecDeque;
use tidegate_core::effect::{ControlId, Effect};
use tidegate_core::iocontrol::shared::{Groups, Shared};
use tidegate_core::iocontrol::{CostModel, DiskKey, Limit, Orders, Policy, Scheduler};
use tidegate_core::request::{Data, DiskId, Flags, IoId, Op, Request, Token};
use tidegate_core::shard::{Controlled, Event, Shard};
use tidegate_core::stack::Stack;
use tidegate_core::units::{Span, Time};

const CONTROL: ControlId = ControlId(0);
/// I/Os of each disk that are outstanding.
const DEPTH: u64 = 4;

fn main() {
    let mut args = std::env::args().skip(1);
    let how = args.next().unwrap_or_else(|| "none".into());
    let count: u64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let disks: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(2);
    let mut shard = Shard::new(64);
    let mut out = Vec::with_capacity(64);
    let all = how == "all";
    if how != "none" {
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
            size: 1 << 30,
            read_only: false,
            stack: Stack::new(Vec::new()),
            control: (how != "none").then(|| Box::new(controlled)),
        };
        shard.handle(Time::ZERO, attach, &mut out);
    }
    let answered = run(&mut shard, count, disks, &mut out);
    assert_eq!(answered, count);
    println!("{answered} answered");
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

fn run(shard: &mut Shard, count: u64, disks: u32, out: &mut Vec<Effect>) -> u64 {
    let mut now = Time::from_nanos(1_000_000);
    let (mut told, mut usage) = (now, Vec::new());
    let disks = u64::from(disks);
    let mut started: VecDeque<(DiskId, IoId)> = VecDeque::with_capacity(64);
    let (mut asked, mut answered) = (0, 0);
    while answered < count {
        while asked < count && asked - answered < DEPTH * disks {
            let disk = DiskId(u32::try_from(asked % disks).expect("it was 32 bits"));
            let request = Request {
                op: Op::Read,
                flags: Flags::NONE,
                offset: asked * 7_919 % 200_000 * 4096,
                len: 4096,
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
        answered += carry(out, &mut started);
        if let Some((disk, io)) = started.pop_front() {
            now = now + Span::from_micros(1);
            if now.since(told) >= Span::from_millis(50) {
                told = now;
                usage.clear();
                shard.usage(CONTROL, now, &mut usage);
            }
            let outcome = Ok(());
            shard.handle(now, Event::Finished { disk, io, outcome }, out);
            answered += carry(out, &mut started);
        }
    }
    answered
}

/// Takes in what the shard wants; tells how many were answered.
fn carry(out: &mut Vec<Effect>, started: &mut VecDeque<(DiskId, IoId)>) -> u64 {
    let mut answered = 0;
    for effect in out.drain(..) {
        match effect {
            Effect::Start { disk, io, .. } => started.push_back((disk, io)),
            Effect::Answer { .. } => answered += 1,
            other => panic!("{other:?}"),
        }
    }
    answered
}
