//! The cost of a dispatch through I/O control, as a ratio to a plain queue in the same run.
//!
//! `cargo bench -p tidegate-core --bench iocontrol`. Each round offers, picks and ends one I/O of one of N disks; the
//! plain queue does the same with a queue and nothing else. Numbers are of this machine; the ratio is what to compare.
//! Then a request's whole way through the shard, as an I/O thread takes it on the empty datastore, without control and
//! under control that is not engaged: what the difference is of a request's cost in a daemon is what it takes of its IOPS.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use tidegate_core::effect::{ControlId, Effect};
use tidegate_core::iocontrol::shared::{Groups, Shared};
use tidegate_core::iocontrol::{
    Cost, CostModel, DiskKey, Limit, Offer, Orders, Pick, Policy, Scheduler,
};
use tidegate_core::request::{Data, DiskId, Flags, IoId, Op, Request, Token};
use tidegate_core::shard::{Controlled, Event, Shard};
use tidegate_core::stack::Stack;
use tidegate_core::units::{Span, Time};

const ROUNDS: u64 = 100_000;
/// Requests that an I/O thread carries out together.
const AT_ONCE: u64 = 16;
/// What lies between two such pieces, in nanoseconds: five million requests a second.
const PIECE_NS: u64 = 3_200;
/// Pieces between two looks of the governor: a tenth of a second.
const PIECES_PER_LOOK: u64 = 100_000_000 / PIECE_NS;

fn main() {
    println!("disks  path                      ns/dispatch  ratio to a plain queue");
    for disks in [16, 256, 1024] {
        let plain = best(|| plain(disks));
        println!("{disks:5}  plain queue               {plain:11.1}  1.00");
        let none = |_| Policy::default();
        let mixed = |n: u32| Policy {
            shares: 500 + 500 * (n % 4),
            reservation: if n.is_multiple_of(4) { 100 } else { 0 },
            latency_target: (n % 8 == 1).then_some(Span::from_millis(5)),
            ..Policy::default()
        };
        let limited = |n: u32| Policy {
            limit: Some(Limit::steady(50_000_000)),
            ..mixed(n)
        };
        let rows: [(&str, f64); 4] = [
            ("not engaged", best(|| pass(disks))),
            ("engaged, shares", best(|| engaged(disks, none))),
            ("engaged, everything", best(|| engaged(disks, mixed))),
            ("engaged, and limits", best(|| engaged(disks, limited))),
        ];
        for (name, ns) in rows {
            println!("{disks:5}  {name:24}  {ns:11.1}  {:.2}", ns / plain);
        }
    }
    whole_way();
}

/// Prints what a request's way through the shard takes without control and with control that is not engaged.
fn whole_way() {
    let mut ways = [(false, f64::INFINITY), (true, f64::INFINITY)];
    // In turns, so that a machine that drifts drifts for both.
    for _ in 0..20 {
        for (controlled, least) in &mut ways {
            *least = least.min(shard(*controlled));
        }
    }
    let [(_, without), (_, with)] = ways;
    let added = with - without;
    println!();
    println!(
        "a request through the shard: {without:.1} ns, under control that is not engaged {with:.1} ns"
    );
    println!(
        "{added:.1} ns more: 3 % of the IOPS where a request costs {:.0} ns in all",
        added / 0.03
    );
}

/// Nanoseconds of a request that ends at once.
fn shard(controlled: bool) -> f64 {
    const DISK: DiskId = DiskId(0);
    const CONTROL: ControlId = ControlId(0);
    let mut shard = Shard::new(64);
    let mut out = Vec::with_capacity(64);
    let control = controlled.then(|| {
        let scheduler = Box::new(scheduler(0, false, |_| Policy::default()));
        let control = CONTROL;
        shard.handle(Time::ZERO, Event::Control { control, scheduler }, &mut out);
        Box::new(Controlled {
            control,
            members: Vec::new(),
            key: DiskKey(1),
            policy: Policy::default(),
            spent: None,
        })
    });
    let attach = Event::Attach {
        disk: DISK,
        size: 1 << 40,
        read_only: false,
        stack: Stack::new(Vec::new()),
        control,
    };
    shard.handle(Time::ZERO, attach, &mut out);
    let (mut carrying, mut usage, mut answers) = (Vec::with_capacity(64), Vec::new(), 0);
    let begun = Instant::now();
    for piece in 0..ROUNDS / AT_ONCE * 10 {
        let now = Time::from_nanos(piece * PIECE_NS);
        for n in 0..AT_ONCE {
            let request = Request {
                op: Op::Read,
                flags: Flags::NONE,
                offset: black_box(piece * 7 + n) % 100_000 * 4_096,
                len: 4_096,
                data: Data::NONE,
                arrived: now,
            };
            let (disk, token) = (DISK, Token(n));
            let asked = Event::Submitted {
                disk,
                token,
                request,
            };
            shard.gather(now, asked, &mut out);
        }
        shard.flow(now, &mut out);
        while !out.is_empty() {
            std::mem::swap(&mut out, &mut carrying);
            for effect in carrying.drain(..) {
                match effect {
                    Effect::Start { disk, io, .. } => {
                        let outcome = Ok(());
                        shard.gather(now, Event::Finished { disk, io, outcome }, &mut out);
                    }
                    Effect::Answer { .. } => answers += 1,
                    other => panic!("of a read comes no {other:?}"),
                }
            }
            shard.flow(now, &mut out);
        }
        if controlled && piece % PIECES_PER_LOOK == 0 {
            usage.clear();
            shard.usage(CONTROL, now, &mut usage);
        }
    }
    let each = begun.elapsed().as_secs_f64() * 1e9 / f64::from(answers);
    black_box(&usage);
    each
}

/// The best of twenty: what is slower was disturbed.
fn best(mut run: impl FnMut() -> f64) -> f64 {
    (0..20).map(|_| run()).fold(f64::INFINITY, f64::min)
}

fn per_round(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e9 / ROUNDS as f64
}

fn disk_of(n: u64, disks: u32) -> DiskId {
    DiskId(u32::try_from(n % u64::from(disks)).expect("disks are numbered in 32 bits"))
}

fn plain(disks: u32) -> f64 {
    let mut queue = VecDeque::new();
    let mut counts = vec![0_u64; disks as usize];
    for n in 0..u64::from(disks) * 4 {
        queue.push_back((disk_of(n, disks), IoId::from_bits(n)));
    }
    let begun = Instant::now();
    for n in 0..ROUNDS {
        let (disk, io) = queue.pop_front().expect("it is never empty");
        counts[disk.0 as usize] += black_box(io).to_bits() & 1;
        queue.push_back((disk, IoId::from_bits(black_box(n))));
    }
    black_box(counts);
    per_round(begun)
}

fn scheduler(disks: u32, engaged: bool, policy: impl Fn(u32) -> Policy) -> Scheduler {
    let mut scheduler = Scheduler::new(0, Shared::new(1, &Groups::new(0)), 32_768);
    for disk in 0..disks {
        let key = DiskKey(disk.into());
        scheduler.add(Time::ZERO, DiskId(disk), key, &policy(disk));
    }
    let orders = Orders {
        engaged,
        window: 64 * 320,
        per_second: 1_000_000 * 256,
        latency_p99: Span::from_millis(1),
        ..Orders::idle(CostModel::flash())
    };
    scheduler.steer(Time::ZERO, &orders);
    scheduler
}

fn pass(disks: u32) -> f64 {
    let mut scheduler = scheduler(disks, false, |_| Policy::default());
    let begun = Instant::now();
    for n in 0..ROUNDS {
        let now = Time::from_nanos(n * 1_000);
        let disk = disk_of(n, disks);
        let offer = scheduler.offer(
            now,
            disk,
            IoId::from_bits(n),
            Op::Read,
            black_box(n) << 13,
            4_096,
        );
        if let Offer::Start(cost) = offer {
            scheduler.finished(now, disk, Op::Read, 4_096, now, cost);
        }
    }
    per_round(begun)
}

fn engaged(disks: u32, policy: impl Fn(u32) -> Policy) -> f64 {
    let mut scheduler = scheduler(disks, true, policy);
    let mut flying = VecDeque::new();
    for n in 0..u64::from(disks) * 4 + 64 {
        let disk = disk_of(n, disks);
        let offer = scheduler.offer(
            Time::ZERO,
            disk,
            IoId::from_bits(n),
            Op::Read,
            n << 13,
            4_096,
        );
        if let Offer::Start(cost) = offer {
            flying.push_back((disk, cost));
        }
    }
    let begun = Instant::now();
    for n in 0..ROUNDS {
        let now = Time::from_nanos(n * 1_000);
        let (disk, cost): (DiskId, Cost) = flying.pop_front().expect("the window is full");
        scheduler.finished(now, disk, Op::Read, 4_096, now, cost);
        let io = IoId::from_bits(n);
        let _waits = scheduler.offer(now, disk, io, Op::Read, black_box(n) << 13, 4_096);
        while let Pick::Now(disk, _, cost) = scheduler.pick(now) {
            flying.push_back((disk, cost));
        }
    }
    per_round(begun)
}
