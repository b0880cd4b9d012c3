//! What a dispatch through I/O control costs, as a ratio to a plain queue in the same run.
//!
//! `cargo bench -p tidegate-core --bench iocontrol`. Each round offers, picks and ends one I/O of one of N disks; the
//! plain queue does the same with a queue and nothing else. Numbers are of this machine; the ratio is what to compare.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use tidegate_core::iocontrol::shared::{Groups, Shared};
use tidegate_core::iocontrol::{
    Cost, CostModel, DiskKey, Limit, Offer, Orders, Pick, Policy, Scheduler,
};
use tidegate_core::request::{DiskId, IoId, Op};
use tidegate_core::units::{Span, Time};

const ROUNDS: u64 = 100_000;

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
