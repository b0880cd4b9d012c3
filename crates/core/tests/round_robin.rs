//! Tests of an I/O thread's round robin: its bounds for random weights, sizes and costs.
//!
//! A depth-1 queue beside 63 deep ones runs in virtual time, and so does the learning of costs.

use proptest::prelude::*;
use std::collections::{BinaryHeap, VecDeque};
use tidegate_core::round_robin::{
    Allowance, Cost, Flow, Flows, IN_FLIGHT, IoClass, Left, MOST_BYTES, MOST_REQUESTS, QUANTUM,
    RoundRobin, Share, TURN, Weight,
};
use tidegate_core::units::Span;

fn share(weight: u32) -> Share {
    Share {
        class: IoClass::Normal,
        weight: Weight::new(weight).expect("in range"),
    }
}

/// A queue of requests, by their sizes. An endless one repeats them.
struct Waiting {
    flow: Flow,
    sizes: VecDeque<u64>,
    endless: bool,
    /// Requests and bytes of the last turn.
    turn: (u32, u64),
    in_flight: u32,
}

impl Waiting {
    fn endless(flow: Flow, sizes: Vec<u64>) -> Waiting {
        Waiting {
            flow,
            sizes: sizes.into(),
            endless: true,
            turn: (0, 0),
            in_flight: 0,
        }
    }

    fn largest(&self) -> u64 {
        let cost = self.flow.cost();
        let costs = self.sizes.iter().map(|&size| cost.of_request(size));
        costs.max().map_or(0, Span::as_nanos)
    }

    /// In quanta of its weight.
    fn quanta(&self) -> f64 {
        let quantum = QUANTUM.as_nanos() * u64::from(self.flow.share().weight.get()) / 10;
        self.flow.charged().as_nanos() as f64 / quantum as f64
    }
}

#[derive(Default)]
struct World {
    queues: Vec<Waiting>,
    visits: Vec<usize>,
}

impl Flows for World {
    fn count(&self) -> usize {
        self.queues.len()
    }

    fn flow(&mut self, at: usize) -> Option<&mut Flow> {
        Some(&mut self.queues[at].flow)
    }

    fn visit(&mut self, at: usize, allowance: &mut Allowance) -> Left {
        self.visits.push(at);
        let queue = &mut self.queues[at];
        while allowance.is_left()
            && queue.in_flight < allowance.in_flight()
            && let Some(size) = queue.sizes.pop_front()
        {
            allowance.take(size);
            queue.turn = (queue.turn.0 + 1, queue.turn.1 + size);
            queue.in_flight += 1;
            if queue.endless {
                queue.sizes.push_back(size);
            }
        }
        match queue.sizes.is_empty() {
            true => Left::Nothing,
            false if queue.in_flight >= allowance.in_flight() => Left::Blocked,
            false => Left::More,
        }
    }
}

impl World {
    /// One turn in pieces, as the engine takes them. All that was taken has completed before the next.
    fn turn(&mut self, turns: &mut RoundRobin, first: usize) -> u64 {
        for queue in &mut self.queues {
            (queue.turn, queue.in_flight) = ((0, 0), 0);
        }
        let before = self.charged();
        self.visits.clear();
        turns.begin();
        let mut left = MOST_REQUESTS;
        while left > 0 && turns.pass(self, first, 16).more {
            left -= 16;
        }
        self.charged() - before
    }

    fn charged(&self) -> u64 {
        let charged = self.queues.iter().map(|queue| queue.flow.charged());
        charged.map(Span::as_nanos).sum()
    }

    fn largest(&self) -> u64 {
        self.queues.iter().map(Waiting::largest).max().unwrap_or(0)
    }
}

fn sizes() -> impl Strategy<Value = Vec<u64>> {
    let size = prop_oneof![Just(512), Just(4096), 512..65_536_u64, Just(1 << 20)];
    prop::collection::vec(size, 1..20)
}

fn cost() -> impl Strategy<Value = Cost> {
    (100..20_000_u64, 0..200_u64)
        .prop_map(|(request, kib)| Cost::new(Span::from_nanos(request), Span::from_nanos(kib)))
}

fn busy_queue() -> impl Strategy<Value = Waiting> {
    let weight = prop_oneof![Just(10), Just(10), 1..=100_u32];
    (weight, cost(), sizes()).prop_map(|(weight, cost, sizes)| {
        Waiting::endless(Flow::with_cost(share(weight), cost), sizes)
    })
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?}", self.flow, self.sizes)
    }
}

proptest! {
    /// Over any period, queues that always have requests get time by their weights. No turn is longer than it may be,
    /// and no queue takes more of it than its caps.
    #[test]
    fn busy_queues_get_time_in_proportion_to_their_weights(
        queues in prop::collection::vec(busy_queue(), 2..12),
        firsts in prop::collection::vec(0..12_usize, 200..600),
        mark in 0..200_usize,
    ) {
        let mut world = World { queues, visits: Vec::new() };
        let mut turns = RoundRobin::new();
        let largest = world.largest();
        let mut then = Vec::new();
        for (number, first) in firsts.into_iter().enumerate() {
            if number == mark {
                then = world.queues.iter().map(Waiting::quanta).collect();
            }
            let took = world.turn(&mut turns, first);
            prop_assert!(took > 0, "there is always work");
            prop_assert!(took <= TURN.as_nanos() + largest, "{took}");
            for queue in &world.queues {
                let (requests, bytes) = queue.turn;
                prop_assert!(requests <= MOST_REQUESTS);
                prop_assert!(bytes < MOST_BYTES + (1 << 20));
            }
            if number < mark {
                continue;
            }
            let used: Vec<f64> = world.queues.iter().zip(&then).map(|(queue, then)| queue.quanta() - then).collect();
            for (a, queue_a) in world.queues.iter().enumerate() {
                for (b, queue_b) in world.queues.iter().enumerate() {
                    let quantum = |queue: &Waiting| 5_000 * u64::from(queue.flow.share().weight.get());
                    let over = |queue: &Waiting| queue.largest() as f64 / quantum(queue) as f64;
                    // The bound of the module, in quanta: for equal weights it is 2 * (quantum + L).
                    let most = 2.0 * (1.0 + over(queue_a).max(over(queue_b)));
                    prop_assert!((used[a] - used[b]).abs() <= most + 1e-6, "{a} {b}: {used:?}, at most {most}");
                }
            }
        }
    }

    /// A queue that gets a request is visited before the others have used more than a quantum each, and a request more.
    #[test]
    fn a_queue_that_becomes_active_waits_at_most_for_the_others_quanta(
        queues in prop::collection::vec(busy_queue(), 1..70),
        warm in 0..300_usize,
        first in 0..70_usize,
        weight in 1..=100_u32,
    ) {
        let mut world = World { queues, visits: Vec::new() };
        world.queues.push(Waiting {
            endless: false,
            ..Waiting::endless(Flow::new(share(weight)), Vec::new())
        });
        let new = world.queues.len() - 1;
        let mut turns = RoundRobin::new();
        for turn in 0..warm {
            world.turn(&mut turns, first + turn);
        }
        let others = &world.queues[..new];
        let quanta: u64 = others.iter().map(|queue| 5_000 * u64::from(queue.flow.share().weight.get())).sum();
        let most = quanta + (others.len() as u64) * world.largest();
        world.queues[new].sizes.push_back(4096);
        let mut waited = 0;
        while !world.queues[new].sizes.is_empty() {
            waited += world.turn(&mut turns, first);
            prop_assert!(waited <= most + TURN.as_nanos(), "{waited} of {most}");
        }
    }

    /// What a queue did not use while it was empty does not add up.
    #[test]
    fn an_idle_queue_saves_no_time(idle in 1..2_000_usize, weight in 1..=100_u32) {
        let mut world = World::default();
        for _ in 0..2 {
            world.queues.push(Waiting::endless(Flow::new(share(weight)), vec![4096]));
        }
        let late = world.queues[1].sizes.pop_front().expect("one");
        let mut turns = RoundRobin::new();
        for _ in 0..idle {
            world.turn(&mut turns, 0);
        }
        world.queues[1].sizes.push_back(late);
        let before = world.queues[0].quanta();
        for _ in 0..200 {
            world.turn(&mut turns, 0);
        }
        let (busy, late) = (world.queues[0].quanta() - before, world.queues[1].quanta());
        let most = 2.0 * (1.0 + world.largest() as f64 / (5_000.0 * f64::from(weight)));
        prop_assert!((late - busy).abs() <= most, "{late} {busy}");
    }
}

#[test]
fn a_queue_of_class_latency_is_visited_first_in_every_second_turn() {
    let mut world = World::default();
    for _ in 0..8 {
        world
            .queues
            .push(Waiting::endless(Flow::new(share(10)), vec![4096]));
    }
    let class = IoClass::Latency;
    let latency = Share { class, ..share(10) };
    world.queues[5].flow.set_share(latency);
    let mut turns = RoundRobin::new();
    world.turn(&mut turns, 0);
    let mut first = 0;
    for _ in 0..400 {
        let before = world.queues[5].flow.charged();
        world.turn(&mut turns, 0);
        let is_first = world.visits[0] == 5;
        first += u32::from(is_first);
        assert!(!is_first || world.queues[5].flow.charged() > before);
    }
    // Not in turns in which it had used its time of the round.
    assert!((40..=200).contains(&first), "{first} of 400");
    let spread = world.queues.iter().map(Waiting::quanta);
    let (least, most) = spread.fold((f64::MAX, 0.0_f64), |(a, b), q| (a.min(q), b.max(q)));
    assert!(most - least <= 2.1, "it has no more time than the others");
}

#[test]
fn competing_queues_share_the_requests_in_flight_by_their_weights() {
    let mut world = World::default();
    for weight in [10, 10, 20, 40] {
        world
            .queues
            .push(Waiting::endless(Flow::new(share(weight)), vec![512]));
    }
    let mut turns = RoundRobin::new();
    for _ in 0..1_000 {
        turns.begin();
        let passed = turns.pass(&mut world, 0, 32);
        if passed.requests == 0 {
            break;
        }
    }
    let in_flight: Vec<u32> = world.queues.iter().map(|queue| queue.in_flight).collect();
    let part = u32::try_from(IN_FLIGHT / 8).expect("small");
    assert_eq!(in_flight, [part, part, 2 * part, 4 * part]);
}

/// A thread in virtual time: fixed costs for each request and each completion, and a device with a fixed latency.
struct Thread {
    now: u64,
    turns: RoundRobin,
    /// Known to the thread only from the time of parts of its turns.
    costs: Vec<u64>,
    flows: Vec<Flow>,
    /// By queue: the times since when its requests wait.
    waiting: Vec<VecDeque<u64>>,
    arrived: Vec<VecDeque<u64>>,
    device: BinaryHeap<std::cmp::Reverse<(u64, usize)>>,
    latencies: Vec<Vec<u64>>,
    work: u64,
    fetched: Vec<u64>,
}

const DEVICE: u64 = 100_000;
const COMPLETIONS: usize = 256;

impl Flows for Thread {
    fn count(&self) -> usize {
        self.flows.len()
    }

    fn flow(&mut self, at: usize) -> Option<&mut Flow> {
        Some(&mut self.flows[at])
    }

    fn visit(&mut self, at: usize, allowance: &mut Allowance) -> Left {
        while allowance.is_left()
            && let Some(since) = self.waiting[at].pop_front()
        {
            allowance.take(4096);
            self.work += self.costs[at] / 2;
            self.fetched[at] += 1;
            self.arrived[at].push_back(since);
            let done = self.now + self.work + DEVICE;
            self.device.push(std::cmp::Reverse((done, at)));
        }
        match self.waiting[at].is_empty() {
            true => Left::Nothing,
            false => Left::More,
        }
    }
}

impl Thread {
    /// A closed loop of so many requests for each queue.
    fn new(queues: &[(usize, u64)]) -> Thread {
        Thread {
            now: 0,
            turns: RoundRobin::new(),
            costs: queues.iter().map(|(_, cost)| *cost).collect(),
            flows: vec![Flow::new(Share::default()); queues.len()],
            waiting: queues
                .iter()
                .map(|(depth, _)| VecDeque::from(vec![0; *depth]))
                .collect(),
            arrived: vec![VecDeque::new(); queues.len()],
            device: BinaryHeap::new(),
            latencies: vec![Vec::new(); queues.len()],
            work: 0,
            fetched: vec![0; queues.len()],
        }
    }

    fn turn(&mut self, number: usize) {
        let mut turns = std::mem::take(&mut self.turns);
        self.work = 300;
        turns.begin();
        let mut ended = Vec::new();
        for _ in 0..COMPLETIONS {
            match self.device.peek() {
                Some(&std::cmp::Reverse((done, at))) if done <= self.now => {
                    self.device.pop();
                    self.work += self.costs[at] / 2;
                    if turns.is_learning() {
                        ended.push(at);
                    }
                    let since = self.arrived[at].pop_front().expect("it was fetched");
                    self.latencies[at].push(self.now + self.work - since);
                    self.waiting[at].push_back(self.now + self.work);
                }
                _ => break,
            }
        }
        if turns.is_learning() {
            // Those of one queue are carried out alone.
            if let Some(&one) = ended.get(number % ended.len().max(1)) {
                let count = ended.iter().filter(|at| **at == one).count();
                self.flows[one].completed(&turns, u32::try_from(count).expect("a few"));
                let took = self.costs[one] / 2 * count as u64;
                turns.learn_completions(self, Span::from_nanos(took));
            }
            let before = self.work;
            turns.sample(self);
            let took = Span::from_nanos(self.work - before);
            turns.learn_requests(self, took);
        }
        let mut left = MOST_REQUESTS;
        let first = number.wrapping_mul(0x9e37_79b9) % self.flows.len();
        while left > 0 && turns.pass(self, first, 16).more {
            left -= 16;
        }
        self.now += self.work;
        self.turns = turns;
    }

    fn run(&mut self, long: u64) {
        let until = self.now + long;
        let mut number = 0;
        while self.now < until {
            self.turn(number);
            number += 1;
        }
    }

    fn p99(&mut self, at: usize) -> u64 {
        let latencies = &mut self.latencies[at];
        latencies.sort_unstable();
        latencies[latencies.len() * 99 / 100]
    }
}

#[test]
fn a_depth_1_queue_beside_63_deep_ones_is_at_most_three_times_as_slow_as_alone() {
    for (depth, cost) in [
        (32, 1_000),
        (128, 1_000),
        (128, 500),
        (1024, 1_000),
        (128, 2_000),
        (32, 4_000),
        (32, 10_000),
        (128, 10_000),
        (32, 20_000),
    ] {
        let mut alone = Thread::new(&[(1, 1_000)]);
        alone.run(1_000_000_000);
        let mut queues = vec![(depth, cost); 63];
        queues.push((1, 1_000));
        let mut beside = Thread::new(&queues);
        beside.run(1_000_000_000);
        let (alone, beside) = (alone.p99(0), beside.p99(63));
        assert!(beside <= 3 * alone, "{depth} deep: {beside} and {alone} ns");
    }
}

/// The thread measures parts of turns, and learns from them what each queue's requests cost.
#[test]
fn queues_whose_requests_cost_differently_get_equal_time() {
    for costs in [[400, 8_000], [8_000, 400], [1_000, 3_000], [20_000, 1_000]] {
        let mut thread = Thread::new(&[(1024, costs[0]), (1024, costs[1])]);
        thread.run(200_000_000);
        let before = thread.fetched.clone();
        thread.run(1_000_000_000);
        let time = |at: usize| (thread.fetched[at] - before[at]) * costs[at];
        let (a, b) = (time(0), time(1));
        assert!(a.abs_diff(b) * 8 < a + b, "{costs:?}: {a} and {b} ns");
    }
}
