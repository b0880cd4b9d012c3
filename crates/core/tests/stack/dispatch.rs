//! Shards under I/O control: every request is answered once, whatever policies, orders and windows come.
//!
//! Several I/O threads share the datastore, as in a host. When nothing else is left to do, the time jumps to the next
//! deadline. A request without an answer then was lost, by a missed dispatch or a missed wake.

use super::{OPS, SIZE, datastore, filter};
use proptest::prelude::*;
use std::collections::VecDeque;
use tidegate_core::effect::{ControlId, Effect};
use tidegate_core::filter::FilterKey;
use tidegate_core::filter::FilterSpec;
use tidegate_core::iocontrol::shared::{Groups, GroupsHandle, Shared};
use tidegate_core::iocontrol::{
    CostModel, DiskKey, GroupId, GroupPolicy, Limit, Mode, Orders, Policy, Scheduler,
};
use tidegate_core::request::{Data, DiskId, Flags, IoId, Op, Request, Token};
use tidegate_core::shard::{Controlled, Event, Shard};
use tidegate_core::stack::{Place, Stack};
use tidegate_core::units::{Span, Time};

const CONTROL: ControlId = ControlId(3);
/// Disks of the host; every second one has no filter.
const DISKS: usize = 4;

#[derive(Clone, Debug)]
enum Act {
    Submit(usize, Op, u64, u64),
    Finish(usize),
    /// At one time: the oldest I/Os of the datastores complete, and these requests arrive.
    Together(usize, Vec<(usize, Op, u64)>),
    Pass(u64),
    Rearrange(usize, Vec<FilterSpec>),
    Policy(usize, Policy),
    Steer(Orders),
    Group(GroupPolicy),
    /// The client of every n-th request of a disk disconnects.
    Abandon(usize, u64),
    /// A disk is detached and then attached again.
    Detach(usize),
    /// A disk goes to another thread.
    Move(usize, usize),
}

fn limit() -> impl Strategy<Value = Limit> {
    (100..100_000_u64, 0..3_u64, 0..20_u64).prop_map(|(sustained, peak, burst)| Limit {
        sustained,
        peak: sustained * peak,
        burst,
    })
}

fn policy() -> impl Strategy<Value = Policy> {
    let maybe = |least: u64| {
        prop::option::weighted(0.3, limit()).prop_map(move |limit| {
            limit.map(|limit| Limit {
                sustained: limit.sustained * least,
                peak: limit.peak * least,
                burst: limit.burst * least,
            })
        })
    };
    let target = prop::option::weighted(0.2, 1..2_000_000_u64);
    let values = (
        100..=10_000_u32,
        0..100_u32,
        maybe(1),
        maybe(4096),
        target,
        0..4_u32,
    );
    values.prop_map(|(shares, reservation, limit, bandwidth, target, group)| {
        let policy = Policy {
            shares,
            reservation,
            limit,
            bandwidth,
            latency_target: target.map(Span::from_nanos),
            group: (group == 0).then_some(GroupId(0)),
        };
        policy.check().expect("a valid policy");
        policy
    })
}

fn orders() -> impl Strategy<Value = Orders> {
    let mode = prop_oneof![
        6 => Just(Mode::On), 1 => Just(Mode::Observe), 1 => Just(Mode::Off)
    ];
    let values = (
        mode,
        prop::bool::weighted(0.7),
        1..20_000_u64,
        0..=65_536_u32,
        prop::collection::vec(1..2_000_u64, 0..4),
    );
    values.prop_map(|(mode, engaged, window, theta, parts)| Orders {
        mode,
        engaged,
        window,
        theta,
        costs: CostModel::unknown(),
        latency_p99: Span::from_micros(500),
        per_second: window * 1_000 % 7_000_000,
        io_unit: 0,
        parts: (0..).map(DiskKey).zip(parts).collect(),
    })
}

fn act() -> impl Strategy<Value = Act> {
    let disk = 0..DISKS;
    prop_oneof![
        24 => (disk.clone(), 0..OPS.len(), 0..200_u64, 1..16_u64)
            .prop_map(|(disk, op, at, len)| Act::Submit(disk, OPS[op], at * 4_096, len * 512)),
        12 => any::<usize>().prop_map(Act::Finish),
        8 => (0..8_usize, prop::collection::vec((disk.clone(), 0..OPS.len(), 0..200_u64), 0..8))
            .prop_map(|(ends, asks)| {
                let asks = asks.into_iter();
                Act::Together(ends, asks.map(|(disk, op, at)| (disk, OPS[op], at * 4_096)).collect())
            }),
        6 => (0..1_000_000_u64).prop_map(Act::Pass),
        1 => (disk.clone(), prop::collection::vec(filter(), 0..3))
            .prop_map(|(disk, specs)| Act::Rearrange(disk, specs)),
        3 => (disk.clone(), policy()).prop_map(|(disk, policy)| Act::Policy(disk, policy)),
        3 => orders().prop_map(Act::Steer),
        1 => (prop::option::of(limit())).prop_map(|limit| Act::Group(GroupPolicy {
            limit,
            bandwidth: None,
        })),
        3 => (disk.clone(), 1..4_u64).prop_map(|(disk, nth)| Act::Abandon(disk, nth)),
        1 => disk.clone().prop_map(Act::Detach),
        3 => (disk, 0..4_usize).prop_map(|(disk, thread)| Act::Move(disk, thread)),
    ]
}

/// An I/O in a datastore.
struct Started {
    disk: DiskId,
    io: IoId,
    token: u64,
}

/// The state of a disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Here,
    Changing,
    Leaving,
}

struct Host {
    now: u64,
    shards: Vec<Shard>,
    /// By disk: the shard that has it.
    homes: [usize; DISKS],
    groups: GroupsHandle,
    lives: [Life; DISKS],
    policies: Vec<Policy>,
    started: Vec<Started>,
    /// By token: the number of answers.
    answers: Vec<u32>,
    /// By token: the disk.
    disk_of: Vec<usize>,
    /// By disk: whether it never had a filter, and its last started read or write.
    plain: [(bool, Option<u64>); DISKS],
    keys: u32,
}

impl Host {
    fn new(threads: usize, specs: &[FilterSpec], policies: Vec<Policy>) -> Host {
        let groups = Groups::new(1);
        let shared = Shared::new(threads, &groups);
        let mut host = Host {
            now: 1_000,
            shards: (0..threads).map(|_| Shard::new(4)).collect(),
            homes: std::array::from_fn(|disk| disk % threads),
            groups,
            lives: [Life::Leaving; DISKS],
            policies,
            started: Vec::new(),
            answers: Vec::new(),
            disk_of: Vec::new(),
            plain: [(true, None); DISKS],
            keys: 0,
        };
        for thread in 0..threads {
            let scheduler = Box::new(Scheduler::new(thread, shared.clone(), 4096));
            host.handle(
                thread,
                Event::Control {
                    control: CONTROL,
                    scheduler,
                },
            );
        }
        for disk in 0..DISKS {
            host.attach(disk, if disk % 2 == 0 { &[] } else { specs });
        }
        host
    }

    fn attach(&mut self, disk: usize, specs: &[FilterSpec]) {
        let filters = specs.iter().map(FilterSpec::build);
        self.keys += 10;
        let keys = (self.keys..).map(FilterKey);
        let attach = Event::Attach {
            disk: id(disk),
            size: SIZE,
            read_only: false,
            stack: Stack::new(keys.zip(filters).collect()),
            control: Some(Box::new(Controlled {
                control: CONTROL,
                members: Vec::new(),
                key: DiskKey(disk as u64),
                policy: self.policies[disk].clone(),
                spent: None,
            })),
        };
        self.lives[disk] = Life::Here;
        self.plain[disk] = (specs.is_empty(), None);
        self.handle(self.home(disk), attach);
    }

    fn home(&self, disk: usize) -> usize {
        self.homes[disk]
    }

    /// A disk goes to another shard, with everything that is under way.
    fn go(&mut self, disk: usize, to: usize) {
        let (from, to) = (self.home(disk), to % self.shards.len());
        let (now, mut out) = (Time::from_nanos(self.now), Vec::new());
        let moving = self.shards[from].take_out(now, id(disk), &mut out);
        self.carry_out(out);
        let moving = moving.expect("it is there");
        let mut out = Vec::new();
        let given = self.shards[to].take_in(now, id(disk), moving, &mut out);
        assert!(given.is_empty(), "no disk here has buffers");
        self.homes[disk] = to;
        self.carry_out(out);
    }

    /// Passes an event to a shard, and handles everything that follows at once.
    fn handle(&mut self, thread: usize, event: Event) {
        let mut out = Vec::new();
        self.shards[thread].handle(Time::from_nanos(self.now), event, &mut out);
        self.carry_out(out);
    }

    fn gather(&mut self, thread: usize, event: Event) {
        let mut out = Vec::new();
        self.shards[thread].gather(Time::from_nanos(self.now), event, &mut out);
        self.carry_out(out);
    }

    fn carry_out(&mut self, out: Vec<Effect>) {
        let mut outs = VecDeque::from([out]);
        let mut wakes = 0;
        while let Some(out) = outs.pop_front() {
            for effect in out {
                match effect {
                    Effect::Start {
                        disk, io, op, data, ..
                    } => self.start(disk, io, op, u64::from(data.buffer)),
                    Effect::Answer { token, .. } => {
                        let answers = &mut self.answers[usize::try_from(token.0).expect("few")];
                        *answers += 1;
                        assert_eq!(*answers, 1, "{token:?} was answered twice");
                    }
                    Effect::Wake { control, thread } => {
                        wakes += 1;
                        assert!(wakes < 1_000, "threads wake each other endlessly");
                        let (now, mut out) = (Time::from_nanos(self.now), Vec::new());
                        self.shards[thread].handle(now, Event::Woken { control }, &mut out);
                        outs.push_back(out);
                    }
                    Effect::Rearranged { disk } | Effect::Detached { disk, .. } => {
                        let life = &mut self.lives[disk.0 as usize];
                        if *life == Life::Changing {
                            *life = Life::Here;
                        }
                    }
                    Effect::SideWrite { .. } => panic!("no filter here uses a side file"),
                    Effect::ReadBlock { .. }
                    | Effect::WriteBlock { .. }
                    | Effect::Copy { .. }
                    | Effect::Zero { .. }
                    | Effect::Sum { .. }
                    | Effect::LayoutNotice { .. }
                    | Effect::LayoutOrdered { .. }
                    | Effect::Held { .. }
                    | Effect::Opened { .. } => panic!("no disk here has a layout"),
                }
            }
        }
    }

    fn start(&mut self, disk: DiskId, io: IoId, op: Op, token: u64) {
        let twice = self.started.iter().any(|s| (s.disk, s.io) == (disk, io));
        assert!(!twice, "an I/O starts once");
        let (plain, last) = &mut self.plain[disk.0 as usize];
        if *plain && matches!(op, Op::Read | Op::Write) {
            assert!(
                last.is_none_or(|last| last < token),
                "I/Os of a disk wait in order"
            );
            *last = Some(token);
        }
        self.started.push(Started { disk, io, token });
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::Submit(disk, op, offset, len) => {
                let event = self.ask(*disk, *op, *offset, *len);
                self.handle(self.home(*disk), event);
            }
            Act::Finish(_) if self.started.is_empty() => {}
            Act::Finish(which) => self.finish(which % self.started.len()),
            Act::Together(ends, asks) => {
                for _ in 0..(*ends).min(self.started.len()) {
                    let (thread, [ended, again]) = self.end(0);
                    self.gather(thread, ended);
                    let strays = self.shards[thread].strays();
                    self.gather(thread, again);
                    assert_eq!(self.shards[thread].strays(), strays + 1);
                }
                for &(disk, op, offset) in asks {
                    let event = self.ask(disk, op, offset, 4_096);
                    self.gather(self.home(disk), event);
                }
                for thread in 0..self.shards.len() {
                    let mut out = Vec::new();
                    self.shards[thread].flow(Time::from_nanos(self.now), &mut out);
                    self.carry_out(out);
                }
            }
            Act::Pass(span) => self.pass(self.now + span),
            Act::Rearrange(disk, specs) if self.lives[*disk] == Life::Here => {
                self.keys += 10;
                let keys = (self.keys..).map(FilterKey);
                let filters = specs.iter().map(FilterSpec::build);
                let places = keys
                    .zip(filters)
                    .map(|(key, filter)| Place::New(key, filter));
                self.lives[*disk] = Life::Changing;
                self.plain[*disk].0 &= specs.is_empty();
                let rearrange = Event::Rearrange {
                    disk: id(*disk),
                    places: places.collect(),
                };
                self.handle(self.home(*disk), rearrange);
            }
            Act::Policy(disk, policy) if self.lives[*disk] != Life::Leaving => {
                self.policies[*disk] = policy.clone();
                let policy = policy.clone();
                let disk = *disk;
                let event = Event::Policy {
                    disk: id(disk),
                    policy,
                };
                self.handle(self.home(disk), event);
            }
            Act::Steer(orders) => {
                for thread in 0..self.shards.len() {
                    let orders = orders.clone();
                    let control = CONTROL;
                    self.handle(thread, Event::Steer { control, orders });
                }
            }
            Act::Group(policy) => {
                self.groups
                    .set(Time::from_nanos(self.now), GroupId(0), policy);
            }
            Act::Abandon(disk, nth) => self.abandon(*disk, *nth),
            Act::Detach(disk) if self.lives[*disk] == Life::Here => {
                self.lives[*disk] = Life::Leaving;
                self.handle(self.home(*disk), Event::Detach { disk: id(*disk) });
            }
            Act::Move(disk, to) => self.go(*disk, *to),
            Act::Rearrange(..) | Act::Policy(..) | Act::Detach(_) => {}
        }
        for disk in 0..DISKS {
            let gone = self.shards[self.home(disk)].report(id(disk)).is_none();
            if gone {
                self.attach(disk, &[]);
            }
        }
    }

    fn ask(&mut self, disk: usize, op: Op, offset: u64, len: u64) -> Event {
        let token = self.answers.len() as u64;
        self.answers.push(0);
        self.disk_of.push(disk);
        let flush = op == Op::Flush;
        let request = Request {
            op,
            flags: Flags::NONE,
            offset: if flush { 0 } else { offset },
            len: if flush { 0 } else { len },
            data: Data {
                buffer: u32::try_from(token).expect("few"),
                start: 0,
            },
            arrived: Time::from_nanos(self.now),
        };
        Event::Submitted {
            disk: id(disk),
            token: Token(token),
            request,
        }
    }

    /// Of the abandoned requests only those in a datastore remain. Answered ones are named again, too.
    fn abandon(&mut self, disk: usize, nth: u64) {
        let all = (0..).zip(&self.disk_of);
        let gone = all.filter(|(token, of)| **of == disk && token % nth == 0);
        let gone: Vec<u64> = gone.map(|(token, _)| token).collect();
        let abandon = Event::Abandon {
            disk: id(disk),
            tokens: gone.iter().rev().map(|token| Token(*token)).collect(),
        };
        self.handle(self.home(disk), abandon);
        for token in gone {
            let there = self.started.iter().any(|started| started.token == token);
            let answers = self.answers[usize::try_from(token).expect("few")];
            assert_eq!(
                answers,
                u32::from(!there),
                "{token} is not in the datastore"
            );
        }
    }

    fn finish(&mut self, which: usize) {
        let (thread, [ended, again]) = self.end(which);
        self.handle(thread, ended);
        let strays = self.shards[thread].strays();
        self.handle(thread, again);
        assert_eq!(self.shards[thread].strays(), strays + 1);
    }

    /// Completes a started I/O, and repeats a completion that must have no effect.
    fn end(&mut self, which: usize) -> (usize, [Event; 2]) {
        let Started { disk, io, token } = self.started.remove(which);
        let thread = self.home(disk.0 as usize);
        let ends = [datastore(token), Ok(())];
        (
            thread,
            ends.map(|outcome| Event::Finished { disk, io, outcome }),
        )
    }

    fn deadline(&self) -> Option<(u64, usize)> {
        let deadlines = self.shards.iter().enumerate();
        let deadlines =
            deadlines.filter_map(|(thread, shard)| Some((shard.deadline()?.0.as_nanos(), thread)));
        deadlines.min()
    }

    /// Advances the time to `until`, with a tick at each deadline of a shard.
    fn pass(&mut self, until: u64) {
        while let Some((at, thread)) = self.deadline().filter(|(at, _)| *at <= until) {
            self.now = self.now.max(at);
            self.handle(thread, Event::Ticked);
            let next = self.shards[thread].deadline();
            assert!(
                next.is_none_or(|(next, _)| next.as_nanos() > self.now),
                "a tick at the deadline moves the deadline"
            );
        }
        self.now = self.now.max(until);
    }

    /// Completes all remaining I/Os and checks that none is left.
    fn drain(mut self) {
        loop {
            if !self.started.is_empty() {
                self.finish(0);
            } else if let Some((at, _)) = self.deadline() {
                self.pass(at);
            } else {
                break;
            }
        }
        let forgotten = self.answers.iter().filter(|&&times| times == 0).count();
        assert_eq!(forgotten, 0, "requests without an answer");
        for disk in 0..DISKS {
            if let Some(report) = self.shards[self.home(disk)].report(id(disk)) {
                assert_eq!((report.in_flight, report.waiting, report.held), (0, 0, 0));
            }
        }
        let inside: usize = self.shards.iter().map(Shard::in_flight).sum();
        assert_eq!(inside, 0);
        for thread in 0..self.shards.len() {
            let (mut usage, now) = (Vec::new(), Time::from_nanos(self.now));
            self.shards[thread].usage(CONTROL, now, &mut usage);
            usage.clear();
            self.shards[thread].usage(CONTROL, now + Span::from_millis(1), &mut usage);
            for one in usage {
                assert_eq!((one.in_flight_cost_ns, one.waiting_cost_ns), (0, 0));
            }
        }
    }
}

fn id(disk: usize) -> DiskId {
    DiskId(u32::try_from(disk).expect("few"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_is_answered_exactly_once_under_control(
        threads in 1..4_usize,
        specs in prop::collection::vec(filter(), 0..3),
        policies in prop::collection::vec(policy(), DISKS),
        acts in prop::collection::vec(act(), 0..200),
    ) {
        let mut host = Host::new(threads, &specs, policies);
        acts.iter().for_each(|act| host.act(act));
        host.drain();
    }
}
