//! The shard against a simple model: random filters, requests, completions, times, and changes of filters.
//!
//! The model (below) uses lists and counters and shares no code with the crate. These must agree: which I/Os start, in
//! which order and how; and each request's result and the event that completes it. Probes between the filters check the
//! order of hooks. A datastore whose control delays no I/O must behave the same. `stack/dispatch.rs` tests how control
//! may change the order, but never the results.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use tidegate_core::effect::{ControlId, Effect};
use tidegate_core::filter::FilterKey;
use tidegate_core::filter::fault::{FaultAct, FaultSpec};
use tidegate_core::filter::{Cx, Filter, FilterSpec, Io, Verdict};
use tidegate_core::iocontrol::shared::{Groups, Shared};
use tidegate_core::iocontrol::{CostModel, DiskKey, Orders, Policy, Scheduler};
use tidegate_core::request::{Data, DiskId, Fault, Flags, IoId, Op, Outcome, Request, Token};
use tidegate_core::shard::{Controlled, Event, Shard};
use tidegate_core::stack::{Place, Stack};
use tidegate_core::units::{Span, Time};

#[path = "stack/busy.rs"]
mod busy;
#[path = "stack/dispatch.rs"]
mod dispatch;

const DISK: DiskId = DiskId(0);
const SIZE: u64 = 1 << 20;
const OPS: [Op; 4] = [Op::Read, Op::Write, Op::Flush, Op::Discard];

/// One action.
#[derive(Clone, Debug)]
enum Act {
    Submit(Op, u64, u64),
    /// The datastore completes one of its I/Os.
    Finish(usize),
    /// At one time: the oldest I/Os of the datastore complete, and these requests arrive.
    Together(usize, Vec<(Op, u64, u64)>),
    Pass(u64),
    Rearrange(Vec<FilterSpec>),
}

fn filter() -> impl Strategy<Value = FilterSpec> {
    let act = prop_oneof![
        Just(FaultAct::Fail(Fault::NoSpace)),
        (1..50_u64, any::<bool>()).prop_map(|(span, fails)| {
            FaultAct::Delay(Span::from_nanos(span), fails.then_some(Fault::Gone))
        }),
        (prop::option::of(0..3_000_u64), any::<bool>()).prop_map(|(keep, fails)| {
            FaultAct::Torn {
                keep,
                answer: if fails { Err(Fault::Invalid) } else { Ok(()) },
            }
        }),
        Just(FaultAct::Lost),
    ];
    let rule = (
        act,
        prop::option::of(0..OPS.len()),
        0..3_u64,
        1..4_u64,
        0..6_u64,
        0..SIZE / 2,
    );
    let fault = rule.prop_map(|(act, op, after, every, count, from)| {
        let op = match act {
            FaultAct::Torn { .. } | FaultAct::Lost => Some(Op::Write),
            FaultAct::Fail(_) | FaultAct::Delay(..) => op.map(|op| OPS[op]),
        };
        let spec = FaultSpec {
            op,
            after,
            every,
            count,
            from,
            ..FaultSpec::always(act)
        };
        spec.validate().expect("a valid rule");
        FilterSpec::Fault(spec)
    });
    prop_oneof![1 => Just(FilterSpec::Null), 1 => Just(FilterSpec::Stats), 4 => fault]
}

fn act() -> impl Strategy<Value = Act> {
    let ask = || {
        (0..OPS.len(), 0..200_u64, 1..16_u64)
            .prop_map(|(op, at, len)| (OPS[op], at * 4_096, len * 512))
    };
    prop_oneof![
        8 => ask().prop_map(|(op, offset, len)| Act::Submit(op, offset, len)),
        6 => any::<usize>().prop_map(Act::Finish),
        4 => (0..5_usize, prop::collection::vec(ask(), 0..6))
            .prop_map(|(ends, asks)| Act::Together(ends, asks)),
        6 => (0..30_u64).prop_map(Act::Pass),
        1 => prop::collection::vec(filter(), 0..5).prop_map(Act::Rearrange),
    ]
}

/// The datastore's result of a request, by its token.
fn datastore(token: u64) -> Outcome {
    if token % 5 == 4 {
        Err(Fault::Io)
    } else {
        Ok(())
    }
}

/// The direction in which an I/O passed a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Down,
    Up,
}

type Log = Arc<Mutex<Vec<(IoId, usize, Way)>>>;

/// A filter between the others that records what it sees.
struct Probe {
    level: usize,
    log: Log,
}

impl Filter for Probe {
    fn name(&self) -> &'static str {
        "probe"
    }
    fn submit(&mut self, _cx: &mut Cx<'_>, io: &Io) -> Verdict {
        self.log
            .lock()
            .expect("no test thread panicked")
            .push((io.id, self.level, Way::Down));
        Verdict::Pass
    }
    fn complete(&mut self, _cx: &mut Cx<'_>, io: &Io) -> Verdict {
        self.log
            .lock()
            .expect("no test thread panicked")
            .push((io.id, self.level, Way::Up));
        Verdict::Pass
    }
}

/// The filters with a probe above each and one at the bottom.
fn probed(specs: &[FilterSpec], log: &Log, first: u32) -> Vec<(FilterKey, Box<dyn Filter>)> {
    let probe = |level| -> Box<dyn Filter> {
        Box::new(Probe {
            level,
            log: log.clone(),
        })
    };
    let mut filters = Vec::new();
    for (level, spec) in specs.iter().enumerate() {
        filters.extend([probe(level), spec.build()]);
    }
    filters.push(probe(specs.len()));
    (first..).map(FilterKey).zip(filters).collect()
}

/// F1, F2, F3: every I/O passed each probe once on its way down, in order, and once on its way up, in reverse.
fn check_order(log: &Log) {
    let mut seen: BTreeMap<IoId, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    for &(io, level, way) in log.lock().expect("no test thread panicked").iter() {
        let (down, up) = seen.entry(io).or_default();
        match way {
            Way::Down => down.push(level),
            Way::Up => up.push(level),
        }
    }
    for (io, (down, mut up)) in seen {
        assert!(
            down.windows(2).all(|pair| pair[1] == pair[0] + 1),
            "{io:?} went down {down:?}"
        );
        up.reverse();
        assert_eq!(down, up, "{io:?} came up through others than it went down");
    }
}

/// A request that reached the datastore: token, operation, offset, length.
type Start = (u64, Op, u64, u64);

/// The expected behaviour, by lists and counters.
#[derive(Default)]
struct Model {
    now: u64,
    rules: Vec<Rule>,
    /// The next arrangement, and the requests that arrived since it was ordered.
    next: Option<(Vec<FilterSpec>, Vec<Start>)>,
    inside: BTreeMap<u64, Inside>,
    /// Delayed requests in order: level, until, token.
    parked: Vec<(usize, u64, u64)>,
    starts: Vec<Start>,
    answers: Vec<(u64, Outcome)>,
}

struct Rule {
    spec: FilterSpec,
    matched: u64,
    struck: u64,
}

/// A request inside the stack, as its current layer sees it.
struct Inside {
    start: Start,
    /// The result that each tearing filter gives a success.
    torn: Vec<Outcome>,
}

impl Model {
    fn arrange(&mut self, specs: Vec<FilterSpec>) {
        self.rules = specs
            .into_iter()
            .map(|spec| Rule {
                spec,
                matched: 0,
                struck: 0,
            })
            .collect();
    }

    /// These requests arrive at one time.
    fn submit(&mut self, starts: Vec<Start>) {
        if let Some((_, waiting)) = &mut self.next {
            return waiting.extend(starts);
        }
        let mut going = Vec::new();
        for start in starts {
            going.push(start.0);
            let torn = Vec::new();
            self.inside.insert(start.0, Inside { start, torn });
        }
        // They pass each filter together. Those that a filter diverts continue after the others.
        let mut later = VecDeque::new();
        for level in 0..self.rules.len() {
            going.retain(|&token| self.passes(token, level, &mut later));
        }
        let through = going.iter().map(|token| self.inside[token].start);
        self.starts.extend(through);
        self.walk(later);
    }

    fn rearrange(&mut self, specs: Vec<FilterSpec>) {
        self.next = Some((specs, Vec::new()));
        // All filters are removed and release their delayed I/Os, the top one first, since its I/Os pass the lower
        // ones.
        for level in 0..self.rules.len() {
            let (here, elsewhere): (Vec<_>, Vec<_>) =
                self.parked.drain(..).partition(|(at, ..)| *at == level);
            self.parked = elsewhere;
            let going = here.into_iter();
            self.walk(
                going
                    .map(|(_, _, token)| (token, level + 1 + 1_000))
                    .collect(),
            );
        }
        self.settle();
    }

    fn settle(&mut self) {
        if self.inside.is_empty()
            && let Some((specs, waiting)) = self.next.take()
        {
            self.arrange(specs);
            self.submit(waiting);
        }
    }

    fn tick(&mut self) {
        let (mut due, later): (Vec<_>, Vec<_>) = self
            .parked
            .drain(..)
            .partition(|(_, until, _)| *until <= self.now);
        self.parked = later;
        due.sort_by_key(|(level, ..)| *level);
        let mut going = VecDeque::new();
        for (level, _, token) in due {
            going.push_back((token, level + 1 + 1_000));
        }
        self.walk(going);
        self.settle();
    }

    fn finish(&mut self, tokens: &[u64]) {
        for &token in tokens {
            self.end(token, datastore(token));
        }
        self.settle();
    }

    /// At one time these I/Os complete and those requests arrive. While the filters change, the requests wait.
    fn together(&mut self, ended: &[u64], starts: Vec<Start>) {
        if self.next.is_some() {
            self.submit(starts);
            self.finish(ended);
        } else {
            self.finish(ended);
            self.submit(starts);
        }
    }

    fn end(&mut self, token: u64, outcome: Outcome) {
        let inside = self.inside.remove(&token).expect("inside");
        let outcome = inside
            .torn
            .into_iter()
            .rev()
            .fold(outcome, |end, answer| end.and(answer));
        self.answers.push((token, outcome));
    }

    /// Moves requests on from their levels; 1,000 more means that a delay there is over.
    fn walk(&mut self, mut going: VecDeque<(u64, usize)>) {
        while let Some((token, mut level)) = going.pop_front() {
            if level > 1_000 {
                level -= 1_000;
                if let FilterSpec::Fault(FaultSpec {
                    act: FaultAct::Delay(_, Some(fault)),
                    ..
                }) = self.rules[level - 1].spec
                {
                    self.end(token, Err(fault));
                    continue;
                }
            }
            while level < self.rules.len() && self.passes(token, level, &mut going) {
                level += 1;
            }
            if level == self.rules.len() {
                self.starts.push(self.inside[&token].start);
            }
        }
    }

    /// Whether a request passes the filter of a level. Otherwise it has completed, is delayed, or continues later.
    fn passes(&mut self, token: u64, level: usize, later: &mut VecDeque<(u64, usize)>) -> bool {
        let inside = self.inside.get_mut(&token).expect("inside");
        match self.rules[level].strikes(&inside.start) {
            None => return true,
            Some(FaultAct::Fail(fault)) => self.end(token, Err(fault)),
            Some(FaultAct::Lost) => self.end(token, Ok(())),
            Some(FaultAct::Delay(span, _)) => {
                self.parked.push((level, self.now + span.as_nanos(), token));
            }
            Some(FaultAct::Torn { keep, answer }) => {
                let len = &mut inside.start.3;
                *len = keep.unwrap_or(*len / 1_024 * 512).min(*len);
                if *len == 0 {
                    self.end(token, answer);
                } else {
                    inside.torn.push(answer);
                    later.push_back((token, level + 1));
                }
            }
        }
        false
    }

    /// Whether a lost write may be reported as successful.
    fn lies(&self) -> bool {
        let specs = self.rules.iter().map(|rule| &rule.spec);
        specs.chain(self.next.iter().flat_map(|(specs, _)| specs)).any(|spec| {
            matches!(spec, FilterSpec::Fault(spec) if matches!(spec.act, FaultAct::Lost | FaultAct::Torn { .. }))
        })
    }
}

impl Rule {
    fn strikes(&mut self, &(_, op, offset, len): &Start) -> Option<FaultAct> {
        let FilterSpec::Fault(spec) = &self.spec else {
            return None;
        };
        if spec.op.is_some_and(|only| only != op) || (op != Op::Flush && offset + len <= spec.from)
        {
            return None;
        }
        self.matched += 1;
        if self.matched <= spec.after
            || !(self.matched - spec.after).is_multiple_of(spec.every)
            || self.struck >= spec.count
        {
            return None;
        }
        self.struck += 1;
        Some(spec.act)
    }
}

/// Control that counts and delays no I/O: not engaged, no limit, and a window that these requests do not fill.
fn calm(shard: &mut Shard) -> Box<Controlled> {
    let control = ControlId(0);
    let shared = Shared::new(1, &Groups::new(0));
    let scheduler = Box::new(Scheduler::new(0, shared, 32 << 10));
    let orders = Orders {
        window: 1 << 40,
        ..Orders::idle(CostModel::flash())
    };
    let mut out = Vec::new();
    for event in [
        Event::Control { control, scheduler },
        Event::Steer { control, orders },
    ] {
        shard.handle(Time::ZERO, event, &mut out);
    }
    assert_eq!(out, []);
    Box::new(Controlled {
        control,
        members: Vec::new(),
        key: DiskKey(7),
        policy: Policy::default(),
        spent: None,
    })
}

/// Runs shard and model in parallel.
struct Pair {
    now: u64,
    shard: Shard,
    model: Model,
    log: Log,
    out: Vec<Effect>,
    /// The I/Os in the datastore.
    with_datastore: Vec<(IoId, u64)>,
    starts: Vec<Start>,
    answers: Vec<(u64, Outcome)>,
    ops: Vec<Op>,
    /// Writes and flushes that the datastore completed successfully.
    durable: BTreeSet<u64>,
    /// Writes that honest filters reported as successful.
    promised: BTreeSet<u64>,
    keys: u32,
    changes: usize,
}

impl Pair {
    fn new(specs: Vec<FilterSpec>, controlled: bool) -> Pair {
        let log = Log::default();
        let mut shard = Shard::new(4);
        let stack = Stack::new(probed(&specs, &log, 0));
        let control = controlled.then(|| calm(&mut shard));
        let attach = Event::Attach {
            disk: DISK,
            size: SIZE,
            read_only: false,
            stack,
            control,
        };
        shard.handle(Time::ZERO, attach, &mut Vec::new());
        let mut model = Model::default();
        model.arrange(specs);
        Pair {
            now: 0,
            shard,
            model,
            log,
            out: Vec::new(),
            with_datastore: Vec::new(),
            starts: Vec::new(),
            answers: Vec::new(),
            ops: Vec::new(),
            durable: BTreeSet::new(),
            promised: BTreeSet::new(),
            keys: 100,
            changes: 0,
        }
    }

    fn handle(&mut self, event: Event) {
        self.shard
            .handle(Time::from_nanos(self.now), event, &mut self.out);
    }

    fn gather(&mut self, event: Event) {
        let before = self.out.len();
        self.shard
            .gather(Time::from_nanos(self.now), event, &mut self.out);
        assert_eq!(self.out.len(), before, "gathered I/Os wait for `flow`");
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::Submit(op, offset, len) => {
                let (event, start) = self.ask(*op, *offset, *len);
                self.handle(event);
                self.model.submit(vec![start]);
            }
            Act::Finish(_) if self.with_datastore.is_empty() => {}
            Act::Finish(which) => {
                let (event, token) = self.end(which % self.with_datastore.len());
                self.handle(event);
                self.model.finish(&[token]);
            }
            Act::Together(ends, asks) => {
                let mut ended = Vec::new();
                for _ in 0..(*ends).min(self.with_datastore.len()) {
                    let (event, token) = self.end(0);
                    self.gather(event);
                    ended.push(token);
                }
                let mut starts = Vec::new();
                for &(op, offset, len) in asks {
                    let (event, start) = self.ask(op, offset, len);
                    self.gather(event);
                    starts.push(start);
                }
                self.shard.flow(Time::from_nanos(self.now), &mut self.out);
                self.model.together(&ended, starts);
            }
            Act::Pass(span) => self.pass(self.now + span),
            Act::Rearrange(_) if self.model.next.is_some() => {}
            Act::Rearrange(specs) => {
                let filters = probed(specs, &self.log, self.keys);
                self.keys += 100;
                let places = filters
                    .into_iter()
                    .map(|(key, filter)| Place::New(key, filter));
                self.handle(Event::Rearrange {
                    disk: DISK,
                    places: places.collect(),
                });
                self.model.rearrange(specs.clone());
                self.changes += 1;
            }
        }
        self.look();
    }

    /// A request, for the shard and for the model.
    fn ask(&mut self, op: Op, offset: u64, len: u64) -> (Event, Start) {
        let token = self.ops.len() as u64;
        self.ops.push(op);
        let (offset, len) = if op == Op::Flush {
            (0, 0)
        } else {
            (offset, len)
        };
        let data = Data {
            buffer: u32::try_from(token).expect("few"),
            start: 0,
        };
        let arrived = Time::from_nanos(self.now);
        let request = Request {
            op,
            flags: Flags::FUA,
            offset,
            len,
            data,
            arrived,
        };
        let event = Event::Submitted {
            disk: DISK,
            token: Token(token),
            request,
        };
        (event, (token, op, offset, len))
    }

    /// A completion, for the shard and for the model.
    fn end(&mut self, which: usize) -> (Event, u64) {
        let (io, token) = self.with_datastore.remove(which);
        if datastore(token).is_ok() {
            self.durable.insert(token);
        }
        let event = Event::Finished {
            disk: DISK,
            io,
            outcome: datastore(token),
        };
        (event, token)
    }

    /// Advances the time to `until`, with a tick at each deadline of the shard.
    fn pass(&mut self, until: u64) {
        while let Some((at, _)) = self
            .shard
            .deadline()
            .filter(|(at, _)| at.as_nanos() <= until)
        {
            self.now = self.now.max(at.as_nanos());
            self.model.now = self.now;
            self.handle(Event::Ticked);
            let moved = self
                .shard
                .deadline()
                .is_none_or(|(next, _)| next.as_nanos() > self.now);
            assert!(moved, "a tick at the deadline moves the deadline");
            self.model.tick();
        }
        self.now = until;
        self.model.now = until;
    }

    /// Handles the shard's effects.
    fn look(&mut self) {
        for effect in std::mem::take(&mut self.out) {
            match effect {
                Effect::Start {
                    io,
                    op,
                    flags,
                    offset,
                    len,
                    data,
                    ..
                } => {
                    assert_eq!((flags, data.start), (Flags::FUA, 0), "F6: not edited");
                    assert!(offset + len <= SIZE);
                    let token = u64::from(data.buffer);
                    if op == Op::Flush {
                        // F4: writes reported as successful are below before the flush.
                        assert!(self.promised.is_subset(&self.durable), "F4");
                    }
                    self.with_datastore.push((io, token));
                    self.starts.push((token, op, offset, len));
                }
                Effect::Answer {
                    token: Token(token),
                    op,
                    outcome,
                    ..
                } => {
                    assert_eq!(op, self.ops[usize::try_from(token).expect("few")]);
                    self.answers.push((token, outcome));
                    let promise = matches!(op, Op::Write | Op::Flush) && outcome.is_ok();
                    if promise && !self.model.lies() && self.changes == 0 {
                        // F5: no filter answers instead of the datastore.
                        assert!(self.durable.contains(&token), "F5");
                        self.promised.insert(token);
                    }
                }
                Effect::Rearranged { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(self.starts, self.model.starts);
        // Completions of one event have no order: none waited for another.
        let by_token = |answers: &[(u64, Outcome)]| {
            let mut answers = answers.to_vec();
            answers.sort_unstable_by_key(|(token, _)| *token);
            answers
        };
        assert_eq!(by_token(&self.answers), by_token(&self.model.answers));
    }

    /// Completes all remaining I/Os and checks the totals.
    fn drain(mut self) {
        while !self.with_datastore.is_empty() || self.shard.deadline().is_some() {
            self.act(&Act::Finish(0));
            self.act(&Act::Pass(10));
        }
        assert_eq!((self.shard.in_flight(), self.shard.strays()), (0, 0));
        let answered: BTreeSet<_> = self.answers.iter().map(|(token, _)| *token).collect();
        assert_eq!(
            (answered.len(), self.answers.len()),
            (self.ops.len(), self.ops.len())
        );
        check_order(&self.log);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn shard_and_model_agree_and_every_request_is_answered_exactly_once(
        specs in prop::collection::vec(filter(), 0..6),
        acts in prop::collection::vec(act(), 0..120), controlled in any::<bool>(),
    ) {
        let mut pair = Pair::new(specs, controlled);
        acts.iter().for_each(|act| pair.act(act));
        pair.drain();
    }

    #[test]
    fn a_trace_reader_survives_any_bytes(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        records in 0..4_u32, flips in prop::collection::vec((any::<usize>(), any::<u8>()), 0..4),
    ) {
        use tidegate_core::filter::trace::format::{Header, Reader, TracedDisk};
        let header = Header { disk: TracedDisk::default(), records, dropped: 0 };
        bytes.splice(0..0, header.encode());
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        // For any damage it ends, and an error is its last result.
        let said: Vec<_> = Reader::new(&bytes).take(1_000).collect();
        prop_assert!(said.len() < 1_000);
        let first_error = said.iter().position(Result::is_err);
        prop_assert!(first_error.is_none_or(|place| place + 1 == said.len()));
    }
}
