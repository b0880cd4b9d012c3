//! One I/O thread with a mirror, whose members do only what a test says.
//!
//! Blocks of a layout end at once, unless their member holds them. They survive a crash of the host.

use std::collections::{BTreeMap, VecDeque};
use tidegate_core::block::BLOCK;
use tidegate_core::effect::Effect;
use tidegate_core::layout::mirror::state::State;
use tidegate_core::layout::{
    DATA_AT, LayoutNotice, LayoutOrder, LayoutSpec, MemberState, Members, OrderRefusal, Refusal,
    Target, Tree,
};
use tidegate_core::request::{Data, DiskId, Fault, Flags, IoId, Op, Outcome, Request, Token};
use tidegate_core::shard::{Event, Shard};
use tidegate_core::stack::Stack;
use tidegate_core::units::{Span, Time};

pub(crate) const DISK: DiskId = DiskId(0);
pub(crate) const MIB: u64 = 1 << 20;
/// Where the two states are on a member.
pub(crate) const PLACES: [u64; 2] = [BLOCK as u64, 2 * BLOCK as u64];

pub(crate) type Block = Box<[u8; BLOCK]>;

/// An I/O that a member has.
pub(crate) struct Io {
    pub(crate) target: Target,
    pub(crate) op: Op,
    /// On the disk, in bytes.
    pub(crate) offset: u64,
    len: u64,
    io: IoId,
    /// For a flush: so many writes had ended when it began.
    covers: usize,
}

/// A block that a member has been given, to read or to write.
pub(crate) struct BlockIo {
    pub(crate) target: Target,
    pub(crate) offset: u64,
    io: IoId,
    write: Option<Block>,
}

/// What a member was given.
#[derive(Default)]
struct Given {
    /// Ranges that were written, in the order of their ends.
    written: Vec<(u64, u64)>,
    /// So many of them were flushed.
    flushed: usize,
}

/// See the module.
pub(crate) struct World {
    pub(crate) shard: Shard,
    /// Another I/O thread: the disk changes to it before each event.
    other: Shard,
    pub(crate) members: Members,
    pub(crate) layout: LayoutSpec,
    slots: u32,
    pub(crate) now: Time,
    /// I/Os that the members have, oldest first.
    pub(crate) flying: VecDeque<Io>,
    pub(crate) answers: Vec<(u64, Outcome)>,
    pub(crate) blocks: BTreeMap<(Target, u64), Block>,
    /// Members whose blocks wait.
    pub(crate) holds: Vec<Target>,
    pub(crate) held: VecDeque<BlockIo>,
    /// Members whose blocks fail.
    pub(crate) away: Vec<Target>,
    pub(crate) opened: Option<Result<(), Refusal>>,
    ordered: Vec<Result<(), OrderRefusal>>,
    pub(crate) notices: Vec<LayoutNotice>,
    pub(crate) detached: bool,
    given: BTreeMap<Target, Given>,
    /// What the member that is rebuilt lacks: no state says more of it than what was written and flushed.
    pub(crate) lacks: Vec<(u64, u64)>,
}

impl World {
    /// A mirror of two.
    pub(crate) fn new(size: u64, slots: u32) -> World {
        World::over(Members::new([7; 16], size, 2), slots)
    }

    /// A new mirror over these.
    pub(crate) fn over(members: Members, slots: u32) -> World {
        let mut world = World::unattached(members, slots);
        world.attach();
        assert_eq!(world.opened, Some(Ok(())));
        world
    }

    /// The members of a new mirror, on a host that has not begun to use it.
    pub(crate) fn unattached(members: Members, slots: u32) -> World {
        World {
            shard: Shard::new(64),
            other: Shard::new(64),
            members,
            layout: LayoutSpec::Mirror,
            slots,
            now: Time::ZERO,
            flying: VecDeque::new(),
            answers: Vec::new(),
            blocks: BTreeMap::new(),
            holds: Vec::new(),
            held: VecDeque::new(),
            away: Vec::new(),
            opened: None,
            ordered: Vec::new(),
            notices: Vec::new(),
            detached: false,
            given: BTreeMap::new(),
            lacks: Vec::new(),
        }
    }

    /// Attaches the disk to a new I/O thread.
    pub(crate) fn attach(&mut self) {
        let shards = [&mut self.shard, &mut self.other];
        for (shard, first) in shards.into_iter().zip([0, 1000]) {
            *shard = Shard::new(64);
            let slots = (first..first + self.slots).map(|buffer| Data { buffer, start: 0 });
            shard.give_arena(slots.collect());
        }
        let tree = Tree::build(self.layout, self.members);
        self.opened = None;
        self.handle(Event::Attach {
            disk: DISK,
            size: self.members.size,
            read_only: false,
            stack: Stack::new(Vec::new()).over(tree.expect("a layout")),
            control: None,
        });
    }

    /// The host crashes, and starts again until the disk has opened. I/Os under way are lost.
    pub(crate) fn crash(&mut self) {
        self.begin_crash();
        while self.opened.is_none() && !self.flying.is_empty() {
            self.finish(0, Ok(()));
        }
    }

    /// The same; opening waits for I/Os.
    pub(crate) fn begin_crash(&mut self) {
        self.flying.clear();
        self.held.clear();
        self.holds.clear();
        self.answers.clear();
        self.notices.clear();
        self.attach();
    }

    pub(crate) fn handle(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        let mut out = Vec::new();
        let mut steps = 0;
        while let Some(event) = events.pop_front() {
            steps += 1;
            assert!(steps < 10_000, "it goes in circles");
            self.hop(&mut out);
            self.shard.handle(self.now, event, &mut out);
            for effect in out.drain(..) {
                events.extend(self.carry_out(effect));
            }
        }
    }

    /// The disk goes to the other I/O thread, with everything that is under way.
    fn hop(&mut self, out: &mut Vec<Effect>) {
        if let Some(moving) = self.shard.take_out(self.now, DISK, out) {
            std::mem::swap(&mut self.shard, &mut self.other);
            let given = self.shard.take_in(self.now, DISK, moving, out);
            self.other.give_arena(given);
        }
    }

    fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Start {
                target,
                io,
                op,
                offset,
                len,
                ..
            } => {
                let covers = self.given.entry(target).or_default().written.len();
                self.flying.push_back(Io {
                    target,
                    op,
                    offset: offset.saturating_sub(DATA_AT),
                    len,
                    io,
                    covers,
                });
            }
            Effect::ReadBlock {
                target, io, offset, ..
            } => return self.begin_block(target, io, offset, None),
            Effect::WriteBlock {
                target,
                io,
                offset,
                block,
                ..
            } => return self.begin_block(target, io, offset, Some(block)),
            // Buffers differ.
            Effect::Sum { disk, io, data, .. } => {
                let sum = data.buffer;
                return Some(Event::Summed { disk, io, sum });
            }
            Effect::Answer { token, outcome, .. } => self.answers.push((token.0, outcome)),
            Effect::Opened { outcome, .. } => self.opened = Some(outcome),
            Effect::LayoutOrdered { outcome, .. } => self.ordered.push(outcome),
            Effect::LayoutNotice { notice, .. } => self.notices.push(*notice),
            Effect::Detached { .. } => self.detached = true,
            _ => {}
        }
        None
    }

    fn begin_block(
        &mut self,
        target: Target,
        io: IoId,
        offset: u64,
        write: Option<Block>,
    ) -> Option<Event> {
        if let Some(block) = &write {
            self.check_progress(block);
        }
        let block = BlockIo {
            target,
            offset,
            io,
            write,
        };
        if self.holds.contains(&target) {
            self.held.push_back(block);
            return None;
        }
        let outcome = match self.away.contains(&target) {
            true => Err(Fault::Gone),
            false => Ok(()),
        };
        Some(self.block_done(block, outcome))
    }

    /// A state says of a member that is rebuilt only what that has durably.
    fn check_progress(&self, block: &Block) {
        let Ok((state, _)) = State::decode(&block[..]) else {
            return;
        };
        let Some(syncing) = state.syncing else { return };
        let given = self.given.get(&Target(syncing.member));
        let durable = given.map_or(&[][..], |given| &given.written[..given.flushed]);
        for (from, to) in &self.lacks {
            let mut at = *from;
            while at < syncing.upto.min(*to) {
                let next = durable.iter().find(|(from, to)| *from <= at && at < *to);
                let what = format!("{at} is said to be rebuilt, up to {}", syncing.upto);
                at = next.expect(&what).1;
            }
        }
    }

    fn block_done(&mut self, block: BlockIo, outcome: Outcome) -> Event {
        let place = (block.target, block.offset);
        let outcome = outcome.map(|()| match block.write {
            Some(written) => {
                self.blocks.insert(place, written);
                None
            }
            None => {
                let block = self.blocks.get(&place).cloned();
                Some(block.unwrap_or_else(|| Box::new([0; BLOCK])))
            }
        });
        Event::BlockDone {
            disk: DISK,
            io: block.io,
            outcome,
        }
    }

    /// The oldest block that this member holds ends.
    pub(crate) fn end_block(&mut self, member: u8, outcome: Outcome) {
        let mut held = self.held.iter();
        let place = held.position(|block| block.target.0 == member);
        let block = self.held.remove(place.expect("it holds one"));
        let done = self.block_done(block.expect("it is there"), outcome);
        self.handle(done);
    }

    /// The same, which fails though the block is written.
    pub(crate) fn fail_written_block(&mut self, member: u8) {
        let mut held = self.held.iter();
        let block = held.find(|block| block.target.0 == member);
        let block = block.expect("it holds one");
        let written = block.write.clone().expect("it is a write");
        self.blocks.insert((block.target, block.offset), written);
        self.end_block(member, Err(Fault::Io));
    }

    /// The newest state on a member.
    pub(crate) fn recorded(&self, member: u8) -> State {
        let places = PLACES.map(|place| self.blocks.get(&(Target(member), place)));
        let states = places.into_iter().flatten();
        let states = states.filter_map(|block| State::decode(&block[..]).ok());
        let newest = states.max_by_key(|(state, _)| state.sequence);
        newest.expect("it has a state").0
    }

    /// A member's blocks.
    pub(crate) fn copy_of(&self, member: u8) -> Vec<(u64, Block)> {
        let own = self.blocks.iter();
        let own = own.filter(|((target, _), _)| target.0 == member);
        own.map(|((_, offset), block)| (*offset, block.clone()))
            .collect()
    }

    /// The member has these blocks from now on.
    pub(crate) fn put_back(&mut self, member: u8, copy: Vec<(u64, Block)>) {
        for (offset, block) in copy {
            self.blocks.insert((Target(member), offset), block);
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

    pub(crate) fn write(&mut self, token: u64, offset: u64) {
        self.submit(token, Op::Write, offset, 4096);
    }

    pub(crate) fn flush(&mut self, token: u64) {
        self.submit(token, Op::Flush, 0, 0);
    }

    /// An order that is answered later.
    pub(crate) fn begin_order(&mut self, order: LayoutOrder) {
        self.handle(Event::LayoutOrder { disk: DISK, order });
    }

    pub(crate) fn order(&mut self, order: LayoutOrder) -> Result<(), OrderRefusal> {
        self.begin_order(order);
        self.ordered.pop().expect("an answer")
    }

    /// The oldest I/O of this member ends.
    pub(crate) fn finish_on(&mut self, member: u8, outcome: Outcome) {
        let mut flying = self.flying.iter();
        let place = flying.position(|io| io.target.0 == member);
        self.finish(place.expect("the member has I/O"), outcome);
    }

    pub(crate) fn finish(&mut self, place: usize, outcome: Outcome) {
        let done = self.flying.remove(place).expect("it is in flight");
        let given = self.given.entry(done.target).or_default();
        match done.op {
            Op::Flush if outcome.is_ok() => given.flushed = given.flushed.max(done.covers),
            op if op.modifies() && outcome.is_ok() => {
                given.written.push((done.offset, done.offset + done.len));
            }
            _ => {}
        }
        self.handle(Event::Finished {
            disk: DISK,
            io: done.io,
            outcome,
        });
    }

    /// The oldest write of this member fails.
    pub(crate) fn fail_write(&mut self, member: u8) {
        let mut flying = self.flying.iter();
        let place = flying.position(|io| io.target.0 == member && io.op == Op::Write);
        self.finish(place.expect("it has a write"), Err(Fault::Io));
    }

    /// Each I/O of this member ends, and those that follow. A bounded number.
    pub(crate) fn finish_all_on(&mut self, member: u8) {
        for _ in 0..1_000 {
            let mut flying = self.flying.iter();
            let Some(place) = flying.position(|io| io.target.0 == member) else {
                return;
            };
            self.finish(place, Ok(()));
        }
        panic!("it goes in circles");
    }

    pub(crate) fn finish_all(&mut self) {
        for _ in 0..10_000 {
            if self.flying.is_empty() {
                return;
            }
            self.finish(0, Ok(()));
        }
        panic!("it goes in circles");
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

    pub(crate) fn answered(&mut self) -> Vec<u64> {
        let answers = std::mem::take(&mut self.answers);
        assert!(
            answers.iter().all(|(_, outcome)| outcome.is_ok()),
            "{answers:?}"
        );
        answers.into_iter().map(|(token, _)| token).collect()
    }

    pub(crate) fn state(&self, member: usize) -> MemberState {
        let report = self.shard.layout_report(DISK).expect("it has a layout");
        report.members[member].state
    }

    /// Whether a member has an I/O of this kind.
    pub(crate) fn has(&self, member: u8, op: Op) -> bool {
        let mut flying = self.flying.iter();
        flying.any(|io| io.target.0 == member && io.op == op)
    }

    /// Bytes that the last rebuild copies.
    pub(crate) fn rebuilds(&self) -> Option<u64> {
        self.notices.iter().rev().find_map(|notice| match notice {
            LayoutNotice::Rebuilding { bytes, .. } => Some(*bytes),
            _ => None,
        })
    }
}
