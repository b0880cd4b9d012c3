//! Mirrors on one I/O thread, whose members are whole, gone or hung as a test says.

use std::collections::{BTreeMap, VecDeque};
use tidegate_core::block::BLOCK;
use tidegate_core::effect::Effect;
use tidegate_core::layout::{
    LayoutNotice, LayoutOrder, LayoutReport, LayoutSpec, MemberState, Members, OrderRefusal,
    Target, Tree,
};
use tidegate_core::request::{Data, DiskId, Fault, Flags, IoId, Op, Outcome, Request, Token};
use tidegate_core::shard::{Event, Shard};
use tidegate_core::stack::Stack;
use tidegate_core::units::{Span, Time};

pub(crate) const DISK: DiskId = DiskId(0);
pub(crate) const MIB: u64 = 1 << 20;

/// An I/O that a member has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flying {
    pub(crate) disk: DiskId,
    pub(crate) member: u8,
    pub(crate) io: IoId,
    pub(crate) offset: u64,
}

/// The blocks of the layouts, by disk, member and offset.
pub(crate) type Blocks = BTreeMap<(DiskId, Target, u64), Box<[u8; BLOCK]>>;

pub(crate) struct World {
    shard: Shard,
    now: Time,
    /// I/Os that the members have, oldest first.
    pub(crate) flying: VecDeque<Flying>,
    answers: Vec<(u64, Outcome)>,
    pub(crate) blocks: Blocks,
    /// Blocks that a hung member has.
    stuck: Vec<Event>,
    /// Members that fail everything.
    pub(crate) gone: BTreeMap<u8, Fault>,
    /// Members whose blocks do not end.
    pub(crate) hung: Vec<u8>,
    /// Whether members are gone again when they are to write a block.
    pub(crate) read_only: bool,
    pub(crate) ordered: Vec<Result<(), OrderRefusal>>,
    pub(crate) notices: Vec<LayoutNotice>,
    pub(crate) held: bool,
    pub(crate) detached: bool,
    /// How many I/Os of each kind were given to members.
    pub(crate) started: BTreeMap<String, u32>,
}

impl World {
    pub(crate) fn new(members: Members, slots: u32) -> World {
        let mut world = World::empty(slots);
        world.attach(DISK, members);
        world
    }

    pub(crate) fn empty(slots: u32) -> World {
        let mut world = World {
            shard: Shard::new(64),
            now: Time::ZERO,
            flying: VecDeque::new(),
            answers: Vec::new(),
            blocks: Blocks::new(),
            stuck: Vec::new(),
            gone: BTreeMap::new(),
            hung: Vec::new(),
            read_only: false,
            ordered: Vec::new(),
            notices: Vec::new(),
            held: false,
            detached: false,
            started: BTreeMap::new(),
        };
        world.give_arena(0..slots);
        world
    }

    /// A shard that knows nothing, over the same members.
    pub(crate) fn crash(&mut self, members: Members) {
        let blocks = std::mem::take(&mut self.blocks);
        *self = World::empty(16);
        self.blocks = blocks;
        self.attach(DISK, members);
    }

    pub(crate) fn give_arena(&mut self, slots: std::ops::Range<u32>) {
        let slots = slots.map(|buffer| Data { buffer, start: 0 });
        self.shard.give_arena(slots.collect());
    }

    pub(crate) fn late_buffers(&self) -> usize {
        self.shard.late_buffers()
    }

    pub(crate) fn attach(&mut self, disk: DiskId, members: Members) {
        let tree = Tree::build(LayoutSpec::Mirror, members).expect("a layout");
        self.attach_stack(disk, members.size, Stack::new(Vec::new()).over(tree));
    }

    pub(crate) fn attach_stack(&mut self, disk: DiskId, size: u64, stack: Stack) {
        self.handle(Event::Attach {
            disk,
            size,
            read_only: false,
            stack,
            control: None,
        });
    }

    pub(crate) fn handle(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        let mut out = Vec::new();
        let mut steps = 0;
        while let Some(event) = events.pop_front() {
            steps += 1;
            assert!(steps < 10_000, "it goes in circles");
            self.shard.handle(self.now, event, &mut out);
            for effect in out.drain(..) {
                let event = self.carry_out(effect);
                events.extend(event);
            }
        }
        assert_eq!(self.shard.strays(), 0);
    }

    fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Start {
                disk,
                target,
                io,
                op,
                offset,
                ..
            } => {
                *self.started.entry(format!("{op:?}")).or_default() += 1;
                if let Some(fault) = self.gone.get(&target.0) {
                    let outcome = Err(*fault);
                    return Some(Event::Finished { disk, io, outcome });
                }
                let member = target.0;
                self.flying.push_back(Flying {
                    disk,
                    member,
                    io,
                    offset,
                });
            }
            Effect::ReadBlock {
                disk,
                target,
                io,
                offset,
            } => {
                let block = self.blocks.get(&(disk, target, offset));
                let block = block.cloned().unwrap_or_else(|| Box::new([0; BLOCK]));
                return self.block(disk, target, io, Some(block));
            }
            Effect::WriteBlock {
                disk,
                target,
                io,
                offset,
                block,
            } => {
                if self.read_only {
                    let outcome = Err(Fault::Gone);
                    return Some(Event::BlockDone { disk, io, outcome });
                }
                let away = self.gone.contains_key(&target.0) || self.hung.contains(&target.0);
                if !away {
                    self.blocks.insert((disk, target, offset), block);
                }
                return self.block(disk, target, io, None);
            }
            Effect::Sum { disk, io, .. } => return Some(Event::Summed { disk, io, sum: 0 }),
            Effect::Answer { token, outcome, .. } => self.answers.push((token.0, outcome)),
            Effect::Opened { outcome, .. } => assert_eq!(outcome, Ok(())),
            Effect::LayoutOrdered { outcome, .. } => self.ordered.push(outcome),
            Effect::LayoutNotice { notice, .. } => self.notices.push(*notice),
            Effect::Detached { .. } => self.detached = true,
            Effect::Held { .. } => self.held = true,
            _ => {}
        }
        None
    }

    /// A block ends, unless its member hangs.
    fn block(
        &mut self,
        disk: DiskId,
        target: Target,
        io: IoId,
        read: Option<Box<[u8; BLOCK]>>,
    ) -> Option<Event> {
        let outcome = match self.gone.get(&target.0) {
            Some(fault) => Err(*fault),
            None => Ok(read),
        };
        let done = Event::BlockDone { disk, io, outcome };
        if self.hung.contains(&target.0) {
            self.stuck.push(done);
            return None;
        }
        Some(done)
    }

    /// No member hangs any more, as far as blocks go. What was written meanwhile is lost.
    pub(crate) fn unhang(&mut self) {
        self.hung.clear();
        for event in std::mem::take(&mut self.stuck) {
            self.handle(event);
        }
    }

    pub(crate) fn submit(&mut self, disk: DiskId, token: u64, op: Op, offset: u64, len: u64) {
        let data = Data {
            buffer: 1_000_000,
            start: 0,
        };
        self.handle(Event::Submitted {
            disk,
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

    pub(crate) fn write(&mut self, token: u64, offset: u64) {
        self.submit(DISK, token, Op::Write, offset, 4096);
    }

    pub(crate) fn read(&mut self, token: u64, offset: u64) {
        self.submit(DISK, token, Op::Read, offset, 4096);
    }

    /// An order that is answered at once.
    pub(crate) fn order(&mut self, order: LayoutOrder) -> Result<(), OrderRefusal> {
        self.handle(Event::LayoutOrder { disk: DISK, order });
        self.ordered.pop().expect("an answer")
    }

    /// The oldest I/O of this member ends.
    pub(crate) fn finish_on(&mut self, member: u8, outcome: Outcome) {
        let place = self.flying.iter().position(|io| io.member == member);
        self.finish(place.expect("the member has I/O"), outcome);
    }

    pub(crate) fn finish(&mut self, place: usize, outcome: Outcome) {
        let Flying { disk, io, .. } = self.flying.remove(place).expect("it is in flight");
        self.handle(Event::Finished { disk, io, outcome });
    }

    /// Each I/O of these members ends, and those that follow. A bounded number.
    pub(crate) fn finish_all_on(&mut self, members: &[u8]) {
        for _ in 0..10_000 {
            let mut flying = self.flying.iter();
            let Some(place) = flying.position(|io| members.contains(&io.member)) else {
                return;
            };
            self.finish(place, Ok(()));
        }
        panic!("it goes in circles");
    }

    pub(crate) fn finish_all(&mut self) {
        self.finish_all_on(&[0, 1, 2, 3]);
    }

    pub(crate) fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now = self.now + Span::from_secs(1);
            for _ in 0..100 {
                if self.shard.deadline().is_none_or(|(at, _)| at > self.now) {
                    break;
                }
                self.handle(Event::Ticked);
            }
        }
    }

    pub(crate) fn answers(&mut self) -> Vec<(u64, Outcome)> {
        std::mem::take(&mut self.answers)
    }

    /// The requests that were answered without an error.
    pub(crate) fn answered(&mut self) -> Vec<u64> {
        let answers = self.answers();
        assert!(
            answers.iter().all(|(_, outcome)| outcome.is_ok()),
            "{answers:?}"
        );
        answers.into_iter().map(|(token, _)| token).collect()
    }

    pub(crate) fn report(&self) -> LayoutReport {
        self.shard.layout_report(DISK).expect("it has a layout")
    }

    pub(crate) fn states(&self) -> Vec<MemberState> {
        let members = self.report().members;
        members.iter().map(|member| member.state).collect()
    }
}
