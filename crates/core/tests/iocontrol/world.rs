//! A small world for the schedulers: clients that keep I/Os outstanding, and a datastore that serves them in order.
//!
//! The datastore has stations. Each takes `ns_per_cost` for a unit of cost, exactly or exponentially distributed.
//! Threads are schedulers that share one datastore. They are called as by an I/O thread, and woken late.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate_core::iocontrol::shared::{Groups, Shared};
use tidegate_core::iocontrol::{
    Cost, CostModel, DiskKey, GroupsHandle, Offer, Orders, Pick, Policy, Scheduler,
};
use tidegate_core::request::{DiskId, IoId, Op};
use tidegate_core::units::{Span, Time};

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const MS: u64 = 1_000_000;
/// One reference I/O.
pub(crate) const REF: u64 = 256;

/// Costs in which every request of 4 KiB or less costs one reference, and bytes count as on flash.
pub(crate) fn plain_costs() -> CostModel {
    CostModel {
        write_base: 256,
        write_sequential: 256,
        read_base: 240,
        read_sequential: 240,
        ..CostModel::flash()
    }
}

pub(crate) fn at(ns: u64) -> Time {
    Time::from_nanos(ns)
}

/// A deterministic random generator.
pub(crate) struct Chance(pub u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a time in ns is far below 2^53"
    )]
    fn exponential(&mut self, mean: u64) -> u64 {
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        (-(1.0 - unit).ln() * mean as f64) as u64
    }
}

/// One client on one disk.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) thread: usize,
    pub(crate) policy: Policy,
    pub(crate) op: Op,
    pub(crate) len: u64,
    /// I/Os that it keeps outstanding while it is on.
    pub(crate) depth: usize,
    /// How long it waits after a completion before its next I/O.
    pub(crate) think: u64,
    pub(crate) on: bool,
}

impl Client {
    pub(crate) fn new(policy: Policy, depth: usize) -> Client {
        Client {
            thread: 0,
            policy,
            op: Op::Read,
            len: 4_096,
            depth,
            think: 0,
            on: true,
        }
    }
}

/// An I/O in the datastore.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) at: u64,
    pub(crate) disk: usize,
    pub(crate) cost: u64,
    pub(crate) waited: u64,
    /// Cost in flight once it has started.
    pub(crate) in_flight: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// The governor sends orders.
    Steer,
    Ask(usize),
    Arrive(usize),
    End(usize),
}

struct Io {
    disk: usize,
    offered: u64,
    issued: u64,
    cost: u64,
    done: bool,
}

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) schedulers: Vec<Scheduler>,
    pub(crate) groups: GroupsHandle,
    pub(crate) clients: Vec<Client>,
    pub(crate) starts: Vec<Start>,
    pub(crate) chance: Chance,
    pub(crate) exponential: bool,
    /// The maximum delay of timers and wakes.
    pub(crate) late: u64,
    pub(crate) ns_per_cost: u64,
    stations: Vec<u64>,
    happenings: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    asked_at: Vec<u64>,
    order: u64,
    ios: Vec<Io>,
    in_flight: u64,
    /// Integral of the cost in flight over time.
    pub(crate) in_flight_area: u128,
    outstanding: Vec<usize>,
    orders: Orders,
}

impl World {
    /// A datastore with this rate in reference I/Os over its stations, and `threads` threads.
    pub(crate) fn new(
        threads: usize,
        per_second: u64,
        stations: usize,
        clients: Vec<Client>,
    ) -> World {
        let groups = Groups::new(8);
        let shared = Shared::new(threads, &groups);
        let mut schedulers: Vec<Scheduler> = (0..threads)
            .map(|thread| Scheduler::new(thread, shared.clone(), 32_768))
            .collect();
        for (id, client) in clients.iter().enumerate() {
            schedulers[client.thread].add(
                Time::ZERO,
                disk_id(id),
                DiskKey(id as u64),
                &client.policy,
            );
        }
        let mut world = World {
            now: 0,
            schedulers,
            groups,
            outstanding: vec![0; clients.len()],
            clients,
            starts: Vec::new(),
            chance: Chance(7),
            exponential: false,
            late: 0,
            ns_per_cost: SECOND * stations as u64 / (per_second * REF),
            stations: vec![0; stations],
            happenings: BinaryHeap::new(),
            asked_at: vec![u64::MAX; threads],
            order: 0,
            ios: Vec::new(),
            in_flight: 0,
            in_flight_area: 0,
            orders: Orders::idle(plain_costs()),
        };
        world.steer(|_| ());
        world
    }

    /// Sends the orders of a congested datastore with a window of 16, modified by `change`.
    pub(crate) fn steer(&mut self, change: impl FnOnce(&mut Orders)) {
        let mut orders = Orders::idle(plain_costs());
        orders.engaged = true;
        orders.window = 16 * REF;
        orders.per_second = SECOND * self.stations.len() as u64 / self.ns_per_cost;
        change(&mut orders);
        self.orders = orders;
        self.send_orders();
    }

    fn send_orders(&mut self) {
        for scheduler in &mut self.schedulers {
            scheduler.steer(at(self.now), &self.orders);
        }
        for thread in 0..self.schedulers.len() {
            self.push(self.now, Happening::Ask(thread));
        }
    }

    /// Starts a client; its outstanding I/Os arrive now.
    pub(crate) fn turn_on(&mut self, disk: usize) {
        self.clients[disk].on = true;
        self.push(self.now, Happening::Arrive(disk));
    }

    pub(crate) fn policy(&mut self, disk: usize, policy: &Policy) {
        let thread = self.clients[disk].thread;
        self.schedulers[thread].change(at(self.now), disk_id(disk), policy);
        self.push(self.now, Happening::Ask(thread));
    }

    fn push(&mut self, when: u64, what: Happening) {
        self.order += 1;
        self.happenings.push(Reverse((when, self.order, what)));
    }

    /// Runs for `span`.
    pub(crate) fn run(&mut self, span: u64) {
        if self.now == 0 {
            self.push(0, Happening::Steer);
            for disk in 0..self.clients.len() {
                self.push(0, Happening::Arrive(disk));
            }
        }
        let end = self.now + span;
        while let Some(Reverse((when, _, what))) = self.happenings.peek().copied() {
            if when > end {
                break;
            }
            self.happenings.pop();
            self.pass_to(when);
            match what {
                Happening::Ask(thread) => {
                    if self.asked_at[thread] <= when {
                        self.asked_at[thread] = u64::MAX;
                    }
                    self.ask(thread);
                }
                Happening::Steer => {
                    self.send_orders();
                    self.push(when + 100 * MS, Happening::Steer);
                }
                Happening::Arrive(disk) => self.arrive(disk),
                Happening::End(io) => self.end(io),
            }
        }
        self.pass_to(end);
    }

    fn pass_to(&mut self, when: u64) {
        let span = u128::from(when - self.now);
        self.in_flight_area += span * u128::from(self.in_flight);
        self.now = when;
    }

    fn arrive(&mut self, disk: usize) {
        let client = self.clients[disk].clone();
        if !client.on {
            return;
        }
        while self.outstanding[disk] < client.depth {
            self.outstanding[disk] += 1;
            let io = self.ios.len();
            self.ios.push(Io {
                disk,
                offered: self.now,
                issued: 0,
                cost: 0,
                done: false,
            });
            let offset = self.chance.below(1 << 30) << 12;
            let offer = self.schedulers[client.thread].offer(
                at(self.now),
                disk_id(disk),
                IoId::from_bits(io as u64),
                client.op,
                offset,
                client.len,
            );
            if let Offer::Start(cost) = offer {
                self.start(io, cost);
            }
        }
        self.ask(client.thread);
    }

    fn ask(&mut self, thread: usize) {
        loop {
            match self.schedulers[thread].pick(at(self.now)) {
                Pick::Now(disk, io, cost) => {
                    let io = usize::try_from(io.to_bits()).expect("the world's own number");
                    assert_eq!(self.ios[io].disk, disk.0 as usize);
                    self.start(io, cost);
                }
                Pick::At(when, _) => {
                    let when = when.as_nanos();
                    assert!(when > self.now, "a time in the past is no reason to wait");
                    if when < self.asked_at[thread] {
                        self.asked_at[thread] = when;
                        let late = self.chance.below(self.late);
                        self.push(when + late, Happening::Ask(thread));
                    }
                    return;
                }
                Pick::Other(other) => {
                    let late = self.chance.below(self.late);
                    return self.push(self.now + late, Happening::Ask(other));
                }
                Pick::Full | Pick::Behind | Pick::Empty => {
                    if let Some(when) = self.schedulers[thread].deadline()
                        && when.as_nanos() < self.asked_at[thread]
                    {
                        self.asked_at[thread] = when.as_nanos();
                        self.push(when.as_nanos().max(self.now), Happening::Ask(thread));
                    }
                    return;
                }
            }
        }
    }

    fn start(&mut self, io: usize, cost: Cost) {
        let (disk, offered) = (self.ios[io].disk, self.ios[io].offered);
        self.in_flight += cost.0;
        self.ios[io].issued = self.now;
        self.ios[io].cost = cost.0;
        self.starts.push(Start {
            at: self.now,
            disk,
            cost: cost.0,
            waited: self.now - offered,
            in_flight: self.in_flight,
        });
        let mean = cost.0 * self.ns_per_cost;
        let service = if self.exponential {
            self.chance.exponential(mean)
        } else {
            mean
        };
        let now = self.now;
        let station = self.stations.iter_mut().min().expect("there is a station");
        *station = (*station).max(now) + service;
        let when = *station;
        self.push(when, Happening::End(io));
    }

    fn end(&mut self, io: usize) {
        let Io {
            disk,
            issued,
            cost,
            done,
            ..
        } = self.ios[io];
        assert!(!done, "an I/O ends once");
        self.ios[io].done = true;
        self.in_flight -= cost;
        self.outstanding[disk] -= 1;
        let client = &self.clients[disk];
        let (thread, think) = (client.thread, client.think);
        self.schedulers[thread].finished(
            at(self.now),
            disk_id(disk),
            client.op,
            client.len,
            at(issued),
            Cost(cost),
        );
        if think == 0 {
            self.arrive(disk);
        } else {
            self.push(self.now + think, Happening::Arrive(disk));
        }
        self.ask(thread);
    }

    /// Cost that started on each disk between two moments.
    pub(crate) fn costs(&self, from: u64, to: u64) -> Vec<u64> {
        let mut costs = vec![0; self.clients.len()];
        for start in self.starts.iter().filter(|s| s.at >= from && s.at < to) {
            costs[start.disk] += start.cost;
        }
        costs
    }

    /// I/Os that started on one disk between two moments.
    pub(crate) fn count(&self, disk: usize, from: u64, to: u64) -> u64 {
        let of = |s: &&Start| s.disk == disk && s.at >= from && s.at < to;
        self.starts.iter().filter(of).count() as u64
    }

    /// The starts of the disks in `of`, for [`worst_excess`].
    pub(crate) fn passed(&self, of: &[usize], amount: u64) -> Vec<(u64, u64)> {
        let starts = self.starts.iter().filter(|s| of.contains(&s.disk));
        starts.map(|s| (s.at, amount)).collect()
    }

    /// Over all intervals, the greatest difference between two disks' cost by shares, in cost at 1000 shares.
    pub(crate) fn unfairness(&self, one: usize, other: usize, from: u64) -> f64 {
        let share = |disk: usize| f64::from(self.clients[disk].policy.shares) / 1_000.0;
        let (mut lead, mut low, mut high) = (0.0_f64, 0.0_f64, 0.0_f64);
        for start in self.starts.iter().filter(|s| s.at >= from) {
            if start.disk == one {
                lead += start.cost as f64 / share(one);
            } else if start.disk == other {
                lead -= start.cost as f64 / share(other);
            }
            low = low.min(lead);
            high = high.max(lead);
        }
        high - low
    }
}

pub(crate) fn disk_id(id: usize) -> DiskId {
    DiskId(u32::try_from(id).expect("few disks"))
}

/// The largest excess of any interval over `per_second * interval + burst`, without its last request. Never positive
/// for an exact limit.
pub(crate) fn worst_excess(passed: &[(u64, u64)], per_second: u64, burst: u64) -> i128 {
    // With f(k) = amount before k - rate * time of k: the excess of an interval is a difference of two f.
    let rate = i128::from(per_second);
    let (mut before, mut least, mut worst) = (0_i128, i128::MAX, i128::MIN);
    for (when, amount) in passed {
        let f = before * i128::from(SECOND) - rate * i128::from(*when);
        least = least.min(f);
        worst = worst.max(f - least);
        before += i128::from(*amount);
    }
    worst - i128::from(burst) * i128::from(SECOND)
}

pub(crate) fn ms(n: u64) -> Span {
    Span::from_millis(n)
}
