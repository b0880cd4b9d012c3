//! Deficit round robin in time: which queues and connections an I/O thread visits in a turn, and how much each may take.
//!
//! The I/O thread calls [`RoundRobin::begin`] and [`RoundRobin::pass`] while more than one flow is active. A flow is a virtqueue or
//! an NBD connection. The thread fetches requests; this module only counts and chooses. It knows neither rings nor
//! sockets. A [`Flow`] belongs to its queue, so it moves to another thread with it.
//!
//! In each round a flow may use [`QUANTUM`] of the thread's time, times its weight. A round ends when no flow with work
//! has time left. A round takes many turns: a turn ends after [`TURN`], so that completions and new requests of
//! shallow queues need not wait for a round. Within a turn the order is:
//!
//! 1. flows of class [`IoClass::Latency`], in every second turn;
//! 2. shallow flows: those that were always emptied within their part of a turn;
//! 3. the others, one after the other, from where the last turn ended.
//!
//! No order lets a flow exceed its time of a round, so none can starve the others.
//!
//! # Always true
//! - flows that always have requests, and have equal weights, differ by at most `2 * (QUANTUM + L)` of time over any
//!   period, where `L` is the cost of the largest request
//! - a request of a flow with time left waits at most for the others' quanta, and `L` for each flow
//! - a flow keeps at most one quantum for the next round, and none if it was emptied
//!
//! # Units
//! Costs are nanoseconds of the thread's time, estimated from parts of some turns ([`RoundRobin::is_learning`]).
//!
//! # Source
//! M. Shreedhar, G. Varghese: Efficient Fair Queuing using Deficit Round Robin, SIGCOMM 1995. The priority of shallow
//! flows is that of new flows in FQ-CoDel (RFC 8290).

use crate::units::Span;
use core::fmt;

mod cost;

pub use cost::Cost;
use cost::Work;

/// Time of a flow with the default weight in each round. It is shorter than the latency of a flash device, and longer
/// than the cost of most requests.
pub const QUANTUM: Span = Span::from_micros(50);
/// Time after which a turn takes no more requests. A request of a shallow queue waits for one turn to be fetched, and
/// its completion for another. With 100 us for the device, two such waits keep the whole below three times as much.
pub const TURN: Span = Span::from_micros(50);
/// Requests that one flow may take in a turn.
pub const MOST_REQUESTS: u32 = 32;
/// Bytes that one flow may take in a turn; the last request may exceed it.
pub const MOST_BYTES: u64 = 256 << 10;
/// Requests that all competing flows of a thread should have in flight together. A flow has its weight's part.
pub const IN_FLIGHT: u64 = 4096;
/// Requests that any flow may have in flight.
const LEAST_IN_FLIGHT: u64 = 8;
/// In one turn of so many, costs are learnt: measuring takes two readings of the clock, and what is carried out alone saves
/// nothing by company.
const LEARN_ONE_IN: u64 = 16;
/// Requests that are measured at a time. A few, because they may cost much more than is known.
const SAMPLE: u32 = 4;

/// The class of a disk's requests on its I/O thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoClass {
    /// Its turn comes in order.
    #[default]
    Normal,
    /// It is visited first in every second turn, as long as it has time left.
    Latency,
}

/// The weight of a disk among those of its I/O thread: 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight(u8);

impl Weight {
    /// The range of weights.
    pub const RANGE: core::ops::RangeInclusive<u32> = 1..=100;

    /// A weight, if it is in range.
    pub fn new(weight: u32) -> Option<Weight> {
        let in_range = Weight::RANGE.contains(&weight);
        u8::try_from(weight).ok().filter(|_| in_range).map(Weight)
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0.into()
    }

    /// Time in a round, in nanoseconds.
    fn quantum(self) -> i64 {
        const UNIT: i64 = QUANTUM.as_nanos() as i64 / DEFAULT_WEIGHT as i64;
        UNIT * i64::from(self.0)
    }
}

/// The default weight. Those below it get less time, down to a tenth.
const DEFAULT_WEIGHT: u8 = 10;

impl Default for Weight {
    fn default() -> Weight {
        Weight(DEFAULT_WEIGHT)
    }
}

/// What a disk's queues and connections may have of their I/O thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// The class.
    pub class: IoClass,
    /// The weight.
    pub weight: Weight,
}

impl fmt::Display for IoClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoClass::Normal => "normal",
            IoClass::Latency => "latency",
        })
    }
}

/// What a visit left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing: every request was taken.
    Nothing,
    /// Requests that may be taken.
    More,
    /// Requests that may not be taken before others complete.
    Blocked,
}

/// The state of one queue or connection.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    share: Share,
    cost: Cost,
    /// Time left in `round`, in nanoseconds; a debt if negative.
    deficit: i64,
    round: u64,
    /// The last round in which it had more work than its part of a turn allows.
    deep: u64,
    left: Left,
    /// The turn of the three below.
    turn: u64,
    requests: u32,
    bytes: u64,
    completions: u32,
    /// Known cost beside that of requests and bytes, in 1/256 ns.
    extra: i64,
    /// Time that it was charged, ever.
    charged: u64,
}

impl Flow {
    /// A flow that has not had a request yet.
    pub fn new(share: Share) -> Flow {
        Flow::with_cost(share, Cost::default())
    }

    /// A flow whose costs are known.
    pub fn with_cost(share: Share, cost: Cost) -> Flow {
        Flow {
            share,
            cost,
            deficit: 0,
            round: 0,
            deep: 0,
            left: Left::Nothing,
            turn: 0,
            requests: 0,
            bytes: 0,
            completions: 0,
            extra: 0,
            charged: 0,
        }
    }

    /// It comes to another thread, whose rounds and turns have other numbers. A debt remains.
    pub fn moved(&mut self) {
        *self = Flow {
            deficit: self.deficit.min(0),
            charged: self.charged,
            ..Flow::with_cost(self.share, self.cost)
        };
    }

    /// Its share.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Changes its share, from the next round on.
    pub fn set_share(&mut self, share: Share) {
        self.share = share;
    }

    /// The thread's time that it was charged while it competed with others.
    pub fn charged(&self) -> Span {
        Span::from_nanos(self.charged)
    }

    /// The estimated cost of its requests.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// So many of its requests have completed in this turn. To be called if [`RoundRobin::is_learning`].
    pub fn completed(&mut self, turns: &RoundRobin, count: u32) {
        self.open_turn(turns.turn);
        self.completions += count;
    }

    fn completed_work(&self) -> Work {
        Work {
            completions: self.completions,
            ..Work::default()
        }
    }

    fn open_turn(&mut self, turn: u64) {
        if self.turn != turn {
            self.turn = turn;
            (self.requests, self.bytes, self.completions) = (0, 0, 0);
            self.extra = 0;
        }
    }

    /// Grants its time of the rounds since it was last visited.
    fn top_up(&mut self, round: u64) {
        if self.round == round {
            return;
        }
        let quantum = self.share.weight.quantum();
        let missed = i64::try_from(round - self.round - 1).unwrap_or(i64::MAX);
        let kept = self.deficit.saturating_add(quantum.saturating_mul(missed));
        let most = if self.left == Left::Nothing {
            0
        } else {
            quantum
        };
        self.deficit = kept.min(most) + quantum;
        self.round = round;
    }

    /// Whether it has, or had in the last round, more work than its part of a turn allows.
    fn is_deep(&self, round: u64) -> bool {
        self.deep + 1 >= round
    }

    fn may_take_more_this_turn(&self) -> bool {
        self.requests < MOST_REQUESTS && self.bytes < MOST_BYTES && self.deficit > 0
    }
}

/// What one visit may take, and has taken.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    requests: u32,
    in_flight: u32,
    /// Whether bytes and time count: others compete.
    metered: bool,
    bytes: u64,
    /// Time left in 1/256 ns.
    time: i64,
    cost: Cost,
    taken: u32,
    taken_bytes: u64,
    extra: i64,
}

impl Allowance {
    /// So many requests, whatever they cost: nothing competes.
    #[inline]
    pub fn of_requests(requests: u32) -> Allowance {
        Allowance {
            requests,
            in_flight: u32::MAX,
            metered: false,
            bytes: u64::MAX,
            time: i64::MAX,
            cost: Cost::FREE,
            taken: 0,
            taken_bytes: 0,
            extra: 0,
        }
    }

    /// Whether another request may be taken.
    #[inline]
    pub fn is_left(&self) -> bool {
        self.requests > 0 && (!self.metered || self.bytes > 0 && self.time > 0)
    }

    /// Requests that may still be taken, if they cost nothing.
    #[inline]
    pub fn requests(&self) -> u32 {
        self.requests
    }

    /// Requests that the flow may have in flight.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// A request was taken that moves so many bytes.
    #[inline]
    pub fn take(&mut self, bytes: u64) {
        self.count(1);
        if self.metered {
            self.charge(bytes);
        }
    }

    /// Whether bytes and time count: others compete. Otherwise it is enough to count requests.
    #[inline]
    pub fn is_metered(&self) -> bool {
        self.metered
    }

    /// So many requests were taken.
    #[inline]
    pub fn count(&mut self, requests: u32) {
        self.requests -= requests;
        self.taken += requests;
    }

    /// A request moves so many bytes, and is counted later. Returns whether bytes and time are left.
    #[inline(never)]
    pub fn charge(&mut self, bytes: u64) -> bool {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.time = self.time.saturating_sub(self.cost.of(1, bytes));
        self.taken_bytes = self.taken_bytes.saturating_add(bytes);
        self.bytes > 0 && self.time > 0
    }

    /// Taking them took so much longer than usual.
    #[cold]
    pub fn spend(&mut self, time: Span) {
        let extra =
            i64::try_from(time.as_nanos()).map_or(i64::MAX, |ns| ns.saturating_mul(cost::UNIT));
        self.extra = self.extra.saturating_add(extra);
        self.time = self.time.saturating_sub(extra);
    }

    /// Requests taken.
    #[inline]
    pub fn taken(&self) -> u32 {
        self.taken
    }
}

/// The flows that compete for a thread, numbered from 0.
pub trait Flows {
    /// How many there are, during one [`RoundRobin::pass`].
    fn count(&self) -> usize;
    /// The state of one, unless it is gone.
    fn flow(&mut self, at: usize) -> Option<&mut Flow>;
    /// Takes requests of one while [`Allowance::is_left`].
    fn visit(&mut self, at: usize, allowance: &mut Allowance) -> Left;
}

/// What a pass has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Requests taken.
    pub requests: u32,
    /// Whether another pass in this turn may take more.
    pub more: bool,
}

/// The round robin of one I/O thread.
#[derive(Debug)]
pub struct RoundRobin {
    /// The number of the round, above those of new flows.
    round: u64,
    turn: u64,
    /// Where the next visit of a deep flow begins.
    cursor: usize,
    /// Time that the requests of this turn are estimated to take, in nanoseconds.
    spent: i64,
    /// Sum of all weights, and number of flows of class latency, at the last pass.
    weights: u64,
    latency: usize,
    /// Where the search for the next sampled flow begins.
    next_sample: usize,
    /// The flow that was sampled in this turn.
    sampled: Option<usize>,
    /// Whether an estimate was far too low in the last turn, and in this one.
    far_off: bool,
    found_far_off: bool,
}

impl Default for RoundRobin {
    fn default() -> RoundRobin {
        RoundRobin::new()
    }
}

/// [`TURN`] in nanoseconds.
const TURN_NS: i64 = TURN.as_nanos() as i64;

impl RoundRobin {
    /// For a thread without flows.
    pub const fn new() -> RoundRobin {
        RoundRobin {
            round: 2,
            turn: 0,
            cursor: 0,
            spent: 0,
            weights: 0,
            latency: 0,
            next_sample: 0,
            sampled: None,
            far_off: false,
            found_far_off: false,
        }
    }

    /// A turn begins.
    pub fn begin(&mut self) {
        self.turn += 1;
        self.spent = 0;
        self.sampled = None;
        self.far_off = core::mem::take(&mut self.found_far_off);
    }

    /// Whether costs are learnt in this turn: regularly, or because an estimate was far too low. Then the thread
    ///
    /// 1. carries out the completions of one disk alone, and calls [`RoundRobin::learn_completions`];
    /// 2. carries out all others;
    /// 3. takes one flow's requests by [`RoundRobin::sample`], carries them out, and calls [`RoundRobin::learn_requests`];
    /// 4. goes on as in other turns.
    pub fn is_learning(&self) -> bool {
        self.turn.is_multiple_of(LEARN_ONE_IN) || self.far_off
    }

    /// The completions of this turn so far, and nothing else, took this long: corrects the costs of the flows that had some.
    pub fn learn_completions(&mut self, flows: &mut impl Flows, took: Span) {
        let mut fit = cost::Fit::new(took, 0);
        for at in 0..flows.count() {
            if let Some(flow) = self.served(flows, at) {
                fit.add(&flow.cost, &flow.completed_work());
            }
        }
        let Some(fitted) = fit.fitted() else {
            return;
        };
        self.found_far_off |= fitted.is_far_off();
        for at in 0..flows.count() {
            if let Some(flow) = self.served(flows, at) {
                let work = flow.completed_work();
                fitted.correct(&mut flow.cost, &work);
            }
        }
    }

    /// A flow, if it was visited or had completions in this turn.
    fn served<'a>(&self, flows: &'a mut impl Flows, at: usize) -> Option<&'a mut Flow> {
        flows.flow(at).filter(|flow| flow.turn == self.turn)
    }

    /// Visits flows until one had requests, whose cost is to be measured.
    pub fn sample(&mut self, flows: &mut impl Flows) -> Passed {
        let mut passed = Passed::default();
        let count = flows.count();
        let from = self.next_sample % count.max(1);
        for at in (from..count).chain(0..from) {
            self.visit(flows, at, TURN_NS, SAMPLE, &mut passed);
            if passed.requests > 0 {
                self.sampled = Some(at);
                self.next_sample = at + 1;
                break;
            }
        }
        if let Some(flow) = self.sampled.and_then(|at| flows.flow(at)) {
            flow.completions = 0;
        }
        passed
    }

    /// The requests that [`RoundRobin::sample`] has taken, and nothing else, took this long: corrects their flow's costs.
    /// Those that have completed meanwhile are known from [`Flow::completed`].
    pub fn learn_requests(&mut self, flows: &mut impl Flows, took: Span) {
        let Some(at) = self.sampled.take() else {
            return;
        };
        let Some(flow) = self.served(flows, at) else {
            return;
        };
        let work = Work {
            arrivals: flow.requests,
            completions: flow.completions,
            bytes: flow.bytes,
        };
        let mut fit = cost::Fit::new(took, flow.extra);
        fit.add(&flow.cost, &work);
        if let Some(fitted) = fit.fitted() {
            fitted.correct(&mut flow.cost, &work);
            self.found_far_off |= fitted.is_far_off();
        }
    }

    /// Visits flows, each for at most `piece` requests. Shallow flows are visited from number `first` on.
    pub fn pass(&mut self, flows: &mut impl Flows, first: usize, piece: u32) -> Passed {
        let mut passed = Passed::default();
        let count = flows.count();
        if count == 0 {
            return passed;
        }
        loop {
            self.visit_all(flows, count, first % count, piece, &mut passed);
            // Every flow that was visited is empty. Others may have no time left.
            if passed.requests > 0 || self.is_over() || !self.next_round(flows, count) {
                return passed;
            }
        }
    }

    /// Whether the turn has taken as much as it may.
    fn is_over(&self) -> bool {
        self.spent >= TURN_NS
    }

    fn visit_all(
        &mut self,
        flows: &mut impl Flows,
        count: usize,
        first: usize,
        piece: u32,
        passed: &mut Passed,
    ) {
        let latency_first = self.latency > 0 && self.turn.is_multiple_of(2);
        if latency_first {
            for at in 0..count {
                let class = flows.flow(at).map(|flow| flow.share.class);
                if class == Some(IoClass::Latency) {
                    self.visit(flows, at, TURN_NS, piece, passed);
                }
            }
        }
        let part = (TURN_NS / i64::try_from(count).unwrap_or(i64::MAX)).max(1);
        let (mut weights, mut latency, mut deep) = (0, 0, 0);
        for at in (first..count).chain(0..first) {
            let Some(flow) = flows.flow(at) else {
                continue;
            };
            let is_latency = flow.share.class == IoClass::Latency;
            weights += u64::from(flow.share.weight.get());
            latency += usize::from(is_latency);
            if flow.is_deep(self.round) {
                deep += 1;
            } else if !(is_latency && latency_first) {
                self.visit(flows, at, part, piece, passed);
                let now_deep = flows.flow(at).is_some_and(|flow| flow.is_deep(self.round));
                deep += usize::from(now_deep);
            }
        }
        (self.weights, self.latency) = (weights, latency);
        // As long as a turn may be much longer than it seems, one flow with much work is enough.
        if deep > 0 && !self.found_far_off {
            self.visit_deep(flows, count, piece, passed);
        }
    }

    /// Visits the flows with much work, until the turn is over.
    fn visit_deep(
        &mut self,
        flows: &mut impl Flows,
        count: usize,
        piece: u32,
        passed: &mut Passed,
    ) {
        let from = self.cursor % count;
        for at in (from..count).chain(0..from) {
            if self.is_over() {
                self.cursor = at;
                return;
            }
            let is_deep = flows.flow(at).is_some_and(|flow| flow.is_deep(self.round));
            if is_deep {
                self.visit(flows, at, TURN_NS, piece, passed);
            }
        }
        self.cursor = from + 1;
    }

    /// Visits one flow, for at most `most` of time.
    fn visit(
        &mut self,
        flows: &mut impl Flows,
        at: usize,
        most: i64,
        piece: u32,
        passed: &mut Passed,
    ) {
        let Some(flow) = flows.flow(at) else {
            return;
        };
        flow.top_up(self.round);
        flow.open_turn(self.turn);
        if self.is_over() || !flow.may_take_more_this_turn() {
            return;
        }
        let time = flow.deficit.min(most).min(TURN_NS - self.spent);
        let all = IN_FLIGHT * u64::from(flow.share.weight.get()) / self.weights.max(1);
        let in_flight = u32::try_from(all.max(LEAST_IN_FLIGHT)).unwrap_or(u32::MAX);
        let mut allowance = Allowance {
            requests: piece.min(MOST_REQUESTS - flow.requests),
            bytes: MOST_BYTES - flow.bytes,
            time: time.saturating_mul(cost::UNIT),
            cost: flow.cost,
            in_flight,
            metered: true,
            taken: 0,
            taken_bytes: 0,
            extra: 0,
        };
        let left = flows.visit(at, &mut allowance);
        let (requests, bytes) = (allowance.taken, allowance.taken_bytes);
        passed.requests += requests;
        let Some(flow) = flows.flow(at) else {
            return;
        };
        let cost = flow.cost.of(requests, bytes);
        let charge = cost.saturating_add(allowance.extra) / cost::UNIT;
        flow.deficit = flow.deficit.saturating_sub(charge);
        flow.charged = flow.charged.saturating_add(charge.unsigned_abs());
        flow.requests += requests;
        flow.bytes = flow.bytes.saturating_add(bytes);
        flow.extra = flow.extra.saturating_add(allowance.extra);
        flow.left = left;
        self.spent = self.spent.saturating_add(charge);
        if left == Left::More {
            let again = flow.may_take_more_this_turn();
            // Only its own work counts, not the end of a turn that others filled.
            let used_its_part = charge >= most.min(TURN_NS / 2);
            if !again || used_its_part {
                flow.deep = self.round;
            }
            passed.more |= again && !self.is_over();
        }
    }

    /// If no flow that has time has work, begins the round in which the next one has time. False if all have time, or if
    /// one with work only waits for the next turn.
    fn next_round(&mut self, flows: &mut impl Flows, count: usize) -> bool {
        let mut least = i64::MAX;
        for at in 0..count {
            match flows.flow(at) {
                Some(flow) if flow.deficit <= 0 => {
                    let rounds = -flow.deficit / flow.share.weight.quantum() + 1;
                    least = least.min(rounds);
                }
                Some(flow) if flow.left == Left::More => return false,
                _ => {}
            }
        }
        let found = least < i64::MAX;
        if found {
            self.round += least.unsigned_abs();
        }
        found
    }
}
