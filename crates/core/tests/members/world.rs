//! One I/O thread with three datastores under control, and one disk with a layout.

use std::collections::{BTreeMap, VecDeque};
use tidegate_core::block::BLOCK;
use tidegate_core::effect::{ControlId, Effect};
use tidegate_core::iocontrol::shared::{Groups, Shared};
use tidegate_core::iocontrol::{
    Cost, CostModel, DiskKey, Mode, Orders, Policy, Scheduler, Spent, Usage,
};
use tidegate_core::layout::{CacheChange, LayoutOrder, LayoutSpec, Members, Refusal, Target, Tree};
use tidegate_core::request::{Data, DiskId, Flags, IoId, Op, Outcome, Request, Token};
use tidegate_core::shard::{Controlled, Event, Shard};
use tidegate_core::stack::Stack;
use tidegate_core::units::{Span, Time};

/// The controls of the datastores.
pub(crate) const A: ControlId = ControlId(0);
pub(crate) const B: ControlId = ControlId(1);
/// Bytes of a chunk.
pub(crate) const CHUNK: u64 = 1 << 20;

const DISK: DiskId = DiskId(0);
const KEY: DiskKey = DiskKey(77);
const SIZE: u64 = 64 << 20;

/// See the module.
pub(crate) struct World {
    pub(crate) shard: Shard,
    /// Another I/O thread: the disk changes to it before each event.
    other: Shard,
    /// Whether it stays on its thread instead.
    pub(crate) stays: bool,
    now: Time,
    policy: Policy,
    /// I/Os that the datastores have, oldest first.
    pub(crate) flying: VecDeque<(Target, IoId)>,
    /// Those that began since they were last asked for, by target.
    begun: BTreeMap<u8, usize>,
    answers: Vec<(u64, Outcome)>,
    /// Checksums that the layouts have asked for.
    pub(crate) sums: u64,
    detached: Option<Option<Box<Spent>>>,
    blocks: BTreeMap<(Target, u64), Box<[u8; BLOCK]>>,
    /// How its layouts opened.
    pub(crate) opened: Result<(), Refusal>,
}

/// A policy of so many shares.
pub(crate) fn policy(shares: u32) -> Policy {
    Policy {
        shares,
        ..Policy::default()
    }
}

/// A disk's control on these datastores.
fn controlled(members: &[ControlId], policy: Policy) -> Box<Controlled> {
    let under = members.iter().copied().find(|c| *c != ControlId::NONE);
    Box::new(Controlled {
        control: under.expect("one is under control"),
        members: members.to_vec(),
        key: KEY,
        policy,
        spent: None,
    })
}

/// Reads so many blocks one after the other; returns how many started.
pub(crate) fn commands(world: &mut World, count: u64) -> usize {
    let mut starts = 0;
    for token in 0..count {
        world.submit(token, Op::Read, token * 4096, 4096);
        starts += world.started().iter().map(|(_, ios)| ios).sum::<usize>();
        world.finish_all();
    }
    starts
}

impl World {
    fn empty(policy: Policy) -> World {
        let mut world = World {
            shard: Shard::new(64),
            other: Shard::new(64),
            stays: false,
            now: Time::ZERO,
            policy,
            flying: VecDeque::new(),
            begun: BTreeMap::new(),
            answers: Vec::new(),
            sums: 0,
            detached: None,
            blocks: BTreeMap::new(),
            opened: Ok(()),
        };
        let groups = Groups::new(0);
        let shared = [(); 3].map(|()| Shared::new(2, &groups));
        let shards = [&mut world.shard, &mut world.other];
        for (thread, shard) in shards.into_iter().enumerate() {
            let first = 1000 * u32::try_from(thread).expect("two");
            let slots = (first..first + 64).map(|buffer| Data { buffer, start: 0 });
            shard.give_arena(slots.collect());
            for (control, shared) in (0..).zip(&shared) {
                let control = Event::Control {
                    control: ControlId(control),
                    scheduler: Box::new(Scheduler::new(thread, shared.clone(), 1 << 20)),
                };
                shard.handle(Time::ZERO, control, &mut Vec::new());
            }
        }
        world
    }

    /// A disk with a layout whose members are on these datastores.
    pub(crate) fn new(layout: LayoutSpec, members: &[ControlId], policy: Policy) -> World {
        let mut world = World::empty(policy.clone());
        let tree = Tree::build(layout, Members::new([7; 16], SIZE, members.len()));
        let stack = Stack::new(Vec::new()).over(tree.expect("a layout"));
        world.attach(stack, controlled(members, policy));
        world
    }

    /// A disk of one image.
    pub(crate) fn plain(control: ControlId, policy: Policy) -> World {
        let mut world = World::empty(policy.clone());
        let mut under = controlled(&[control], policy);
        under.members.clear();
        world.attach(Stack::new(Vec::new()), under);
        world
    }

    fn attach(&mut self, stack: Stack, control: Box<Controlled>) {
        self.handle(Event::Attach {
            disk: DISK,
            size: SIZE,
            read_only: false,
            stack,
            control: Some(control),
        });
        assert_eq!(self.opened, Ok(()));
    }

    /// Handles an event, and all that follows without the guest or the datastores.
    pub(crate) fn handle(&mut self, event: Event) {
        let mut out = Vec::new();
        self.take(event, &mut out);
        self.carry_out_all(out);
    }

    fn take(&mut self, event: Event, out: &mut Vec<Effect>) {
        self.hop(out);
        if let Event::Steer { control, orders } = &event {
            let (control, orders) = (*control, orders.clone());
            let event = Event::Steer { control, orders };
            self.other.handle(self.now, event, out);
        }
        self.shard.handle(self.now, event, out);
    }

    fn carry_out_all(&mut self, mut out: Vec<Effect>) {
        while !out.is_empty() {
            assert_eq!(self.shard.strays(), 0);
            for effect in std::mem::take(&mut out) {
                if let Some(event) = self.carry_out(effect) {
                    self.take(event, &mut out);
                }
            }
        }
    }

    /// The disk goes to the other I/O thread, with everything that is under way.
    fn hop(&mut self, out: &mut Vec<Effect>) {
        if self.stays {
            return;
        }
        if let Some(moving) = self.shard.take_out(self.now, DISK, out) {
            std::mem::swap(&mut self.shard, &mut self.other);
            let given = self.shard.take_in(self.now, DISK, moving, out);
            self.other.give_arena(given);
        }
    }

    fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        let done = |disk, io, outcome| Some(Event::BlockDone { disk, io, outcome });
        match effect {
            Effect::Start { target, io, .. } => {
                self.flying.push_back((target, io));
                *self.begun.entry(target.0).or_default() += 1;
                None
            }
            Effect::ReadBlock {
                disk,
                target,
                io,
                offset,
            } => {
                let block = self.blocks.get(&(target, offset));
                let block = block.cloned().unwrap_or_else(|| Box::new([0; BLOCK]));
                done(disk, io, Ok(Some(block)))
            }
            Effect::WriteBlock {
                disk,
                target,
                io,
                offset,
                block,
            } => {
                self.blocks.insert((target, offset), block);
                done(disk, io, Ok(None))
            }
            Effect::Sum { disk, io, .. } => {
                self.sums += 1;
                Some(Event::Summed { disk, io, sum: 0 })
            }
            Effect::Answer { token, outcome, .. } => {
                self.answers.push((token.0, outcome));
                None
            }
            Effect::Opened { outcome, .. } => {
                self.opened = outcome;
                None
            }
            Effect::LayoutOrdered { outcome, .. } => {
                assert_eq!(outcome, Ok(()));
                None
            }
            Effect::Detached { spent, .. } => {
                self.detached = Some(spent);
                None
            }
            _ => None,
        }
    }

    pub(crate) fn submit(&mut self, token: u64, op: Op, offset: u64, len: u64) {
        let data = Data {
            buffer: 1_000,
            start: 0,
        };
        self.handle(Event::Submitted {
            disk: DISK,
            token: Token(token),
            request: Request {
                op,
                flags: Flags::NONE,
                offset,
                len,
                data,
                arrived: self.now,
            },
        });
    }

    fn finish(&mut self, place: usize) {
        let (_, io) = self.flying.remove(place).expect("it is in flight");
        self.shard.ended(self.now, DISK, io, Ok(()), |_, _| 0);
        let mut out = Vec::new();
        self.shard.flow(self.now, &mut out);
        self.carry_out_all(out);
    }

    /// The oldest I/O of this target ends.
    pub(crate) fn finish_on(&mut self, target: u8) {
        let mut flying = self.flying.iter();
        let place = flying.position(|(on, _)| on.0 == target);
        self.finish(place.expect("the target has I/O"));
    }

    /// The oldest I/O ends.
    pub(crate) fn finish_on_any(&mut self) {
        self.finish(0);
    }

    /// The newest I/O ends.
    pub(crate) fn finish_newest(&mut self) {
        self.finish(self.flying.len() - 1);
    }

    pub(crate) fn scrub(&mut self) {
        self.handle(Event::LayoutOrder {
            disk: DISK,
            order: LayoutOrder::Scrub { repair: false },
        });
    }

    /// Each I/O ends, and those that follow.
    pub(crate) fn finish_all(&mut self) {
        while !self.flying.is_empty() {
            self.finish(0);
        }
        self.begun.clear();
    }

    /// I/Os that began since the last call, by target.
    pub(crate) fn started(&mut self) -> Vec<(u8, usize)> {
        std::mem::take(&mut self.begun).into_iter().collect()
    }

    pub(crate) fn answered(&mut self) -> Vec<(u64, Outcome)> {
        std::mem::take(&mut self.answers)
    }

    pub(crate) fn held(&self) -> usize {
        self.shard.report(DISK).expect("attached").held
    }

    /// The datastore is congested, with room for so many reads of 4 KiB.
    pub(crate) fn steer(&mut self, control: ControlId, reads: u64) {
        let orders = Orders {
            engaged: true,
            window: reads * Cost::REFERENCE.0,
            ..Orders::idle(CostModel::flash())
        };
        self.handle(Event::Steer { control, orders });
    }

    pub(crate) fn observe(&mut self, control: ControlId) {
        let orders = Orders {
            mode: Mode::Observe,
            ..Orders::idle(CostModel::flash())
        };
        self.handle(Event::Steer { control, orders });
    }

    pub(crate) fn pass_ms(&mut self, ms: u64) {
        self.now = self.now + Span::from_millis(ms);
        if self.shard.deadline().is_some_and(|(at, _)| at <= self.now) {
            self.handle(Event::Ticked);
        }
    }

    pub(crate) fn usage(&mut self, control: ControlId) -> Vec<Usage> {
        let mut usage = Vec::new();
        self.shard.usage(control, self.now, &mut usage);
        usage
    }

    pub(crate) fn is_active(&self, control: ControlId) -> bool {
        self.shard.is_active(control)
    }

    pub(crate) fn abandon(&mut self, tokens: &[u64]) {
        let tokens = tokens.iter().map(|token| Token(*token)).collect();
        self.handle(Event::Abandon { disk: DISK, tokens });
    }

    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.policy = policy.clone();
        self.handle(Event::Policy { disk: DISK, policy });
    }

    pub(crate) fn set_controls(&mut self, members: &[ControlId], policy: Policy) {
        self.handle(Event::Controls {
            disk: DISK,
            controlled: Some(controlled(members, policy)),
        });
    }

    /// Holds the disk, and changes its flash cache.
    pub(crate) fn change_cache(&mut self, change: CacheChange) {
        let disk = DISK;
        self.handle(Event::Hold { disk });
        self.handle(Event::ChangeCache { disk, change });
    }

    /// A refused cache is removed.
    pub(crate) fn remove_cache(&mut self) {
        let (disk, change) = (DISK, CacheChange::Remove);
        self.handle(Event::ChangeCache { disk, change });
    }

    /// Moves a disk of one image from the first of these datastores to the second.
    pub(crate) fn begin_move(&mut self, members: &[ControlId; 2]) {
        self.handle(Event::Hold { disk: DISK });
        self.set_controls(members, self.policy.clone());
        let tree = Some(Box::new(Tree::transfer(SIZE)));
        self.handle(Event::Relay { disk: DISK, tree });
    }

    pub(crate) fn end_move(&mut self, control: ControlId) {
        self.handle(Event::Hold { disk: DISK });
        self.finish_all();
        let mut under = controlled(&[control], self.policy.clone());
        under.members.clear();
        self.handle(Event::Controls {
            disk: DISK,
            controlled: Some(under),
        });
        self.handle(Event::Relay {
            disk: DISK,
            tree: None,
        });
    }

    pub(crate) fn begin_detach(&mut self) {
        self.handle(Event::Detach { disk: DISK });
    }

    pub(crate) fn detached(&mut self) -> Option<Option<Box<Spent>>> {
        self.detached.take()
    }

    pub(crate) fn detach(&mut self) {
        self.begin_detach();
        self.finish_all();
        assert!(self.detached().is_some(), "nothing of it is left");
        assert_eq!(self.shard.in_flight(), 0);
        for control in 0..3 {
            self.release(ControlId(control));
        }
    }

    pub(crate) fn release(&mut self, control: ControlId) {
        self.handle(Event::Release { control });
    }
}
