//! Mirrors over members that fail, hang, and are replaced.

use std::collections::{BTreeMap, VecDeque};
use tidegate_core::block::BLOCK;
use tidegate_core::effect::Effect;
use tidegate_core::layout::{
    LayoutNotice, LayoutOrder, LayoutSpec, MemberState, Members, OrderRefusal, Target, Tree,
};
use tidegate_core::request::{Data, DiskId, Fault, Flags, IoId, Op, Outcome, Request, Token};
use tidegate_core::shard::{Event, Shard};
use tidegate_core::stack::Stack;
use tidegate_core::units::{Span, Time};

const DISK: DiskId = DiskId(0);
const MIB: u64 = 1 << 20;

/// One I/O thread with mirrors, whose members do only what a test says.
struct World {
    shard: Shard,
    now: Time,
    /// I/Os that the members have, oldest first.
    flying: VecDeque<(DiskId, Target, IoId, Op)>,
    answers: Vec<(u64, Outcome)>,
    blocks: BTreeMap<(DiskId, Target, u64), Box<[u8; BLOCK]>>,
    /// Members whose blocks do not end.
    hangs: Vec<Target>,
    ordered: Vec<Result<(), OrderRefusal>>,
    notices: Vec<LayoutNotice>,
    detached: bool,
}

impl World {
    fn new(size: u64, slots: u32) -> World {
        let mut world = World {
            shard: Shard::new(64),
            now: Time::ZERO,
            flying: VecDeque::new(),
            answers: Vec::new(),
            blocks: BTreeMap::new(),
            hangs: Vec::new(),
            ordered: Vec::new(),
            notices: Vec::new(),
            detached: false,
        };
        let slots = (0..slots).map(|buffer| Data { buffer, start: 0 });
        world.shard.give_arena(slots.collect());
        world.attach(DISK, size);
        world
    }

    fn attach(&mut self, disk: DiskId, size: u64) {
        let tree = Tree::build(LayoutSpec::Mirror, Members::new([7; 16], size, 2));
        self.handle(Event::Attach {
            disk,
            size,
            read_only: false,
            stack: Stack::new(Vec::new()).over(tree.expect("a layout")),
            control: None,
        });
    }

    fn handle(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        let mut out = Vec::new();
        let mut steps = 0;
        while let Some(event) = events.pop_front() {
            steps += 1;
            assert!(steps < 10_000, "it goes in circles");
            self.shard.handle(self.now, event, &mut out);
            for effect in out.drain(..) {
                events.extend(self.carry_out(effect));
            }
        }
    }

    fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        let done = |disk, io, outcome| Some(Event::BlockDone { disk, io, outcome });
        match effect {
            Effect::Start {
                disk,
                target,
                io,
                op,
                ..
            } => {
                self.flying.push_back((disk, target, io, op));
                None
            }
            Effect::ReadBlock { target, .. } | Effect::WriteBlock { target, .. }
                if self.hangs.contains(&target) =>
            {
                None
            }
            Effect::ReadBlock {
                disk,
                target,
                io,
                offset,
            } => {
                let block = self.blocks.get(&(disk, target, offset));
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
                self.blocks.insert((disk, target, offset), block);
                done(disk, io, Ok(None))
            }
            Effect::Sum { disk, io, .. } => Some(Event::Summed { disk, io, sum: 0 }),
            Effect::Answer { token, outcome, .. } => {
                self.answers.push((token.0, outcome));
                None
            }
            Effect::Opened { outcome, .. } => {
                assert_eq!(outcome, Ok(()));
                None
            }
            Effect::LayoutOrdered { outcome, .. } => {
                self.ordered.push(outcome);
                None
            }
            Effect::LayoutNotice { notice, .. } => {
                self.notices.push(*notice);
                None
            }
            Effect::Detached { .. } => {
                self.detached = true;
                None
            }
            _ => None,
        }
    }

    fn submit(&mut self, disk: DiskId, token: u64, op: Op, offset: u64, len: u64) {
        let data = Data {
            buffer: 1_000,
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

    fn write(&mut self, token: u64, offset: u64) {
        self.submit(DISK, token, Op::Write, offset, 4096);
    }

    fn order(&mut self, order: LayoutOrder) -> Result<(), OrderRefusal> {
        self.handle(Event::LayoutOrder { disk: DISK, order });
        self.ordered.pop().expect("an answer")
    }

    /// The oldest I/O of this member ends.
    fn finish_on(&mut self, member: u8, outcome: Outcome) {
        let mut flying = self.flying.iter();
        let place = flying.position(|(disk, on, ..)| *disk == DISK && on.0 == member);
        self.finish(place.expect("the member has I/O"), outcome);
    }

    fn finish(&mut self, place: usize, outcome: Outcome) {
        let (disk, _, io, _) = self.flying.remove(place).expect("it is in flight");
        self.handle(Event::Finished { disk, io, outcome });
    }

    /// Each I/O of this member ends, and those that follow. A bounded number.
    fn finish_all_on(&mut self, member: u8) {
        for _ in 0..1_000 {
            let mut flying = self.flying.iter();
            let Some(place) = flying.position(|(_, on, ..)| on.0 == member) else {
                return;
            };
            self.finish(place, Ok(()));
        }
        panic!("it goes in circles");
    }

    fn finish_all(&mut self) {
        for _ in 0..10_000 {
            if self.flying.is_empty() {
                return;
            }
            self.finish(0, Ok(()));
        }
        panic!("it goes in circles");
    }

    fn pass(&mut self, seconds: u64) {
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

    fn answered(&mut self) -> Vec<u64> {
        let answers = std::mem::take(&mut self.answers);
        assert!(
            answers.iter().all(|(_, outcome)| outcome.is_ok()),
            "{answers:?}"
        );
        answers.into_iter().map(|(token, _)| token).collect()
    }

    fn state(&self, member: usize) -> MemberState {
        let report = self.shard.layout_report(DISK).expect("it has a layout");
        report.members[member].state
    }
}

#[test]
fn a_request_of_more_regions_than_can_be_hot_ends() {
    let mut world = World::new(4096 * MIB, 16);
    world.submit(DISK, 1, Op::Discard, 0, 4095 * MIB);
    world.finish_all();
    assert_eq!(world.answered(), [1]);
    // And one that begins while others are under way.
    world.write(2, 4095 * MIB);
    world.submit(DISK, 3, Op::WriteZeroes, MIB / 2, 4000 * MIB);
    world.write(4, 0);
    world.finish_all();
    let mut answered = world.answered();
    answered.sort_unstable();
    assert_eq!(answered, [2, 3, 4]);
}

#[test]
fn writes_do_not_wait_for_a_member_that_was_dropped_and_then_hangs() {
    let mut world = World::new(16 * MIB, 16);
    world.write(1, 0);
    world.write(2, MIB);
    world.finish_on(1, Err(Fault::Io));
    world.finish_all_on(0);
    assert_eq!(world.answered(), [1]);
    world.pass(11);
    assert_eq!(world.answered(), [2]);
}

#[test]
fn the_last_member_is_written_though_one_that_hangs_has_all_buffers() {
    let mut world = World::new(16 * MIB, 8);
    for token in 0..8 {
        world.write(token, token * MIB);
    }
    world.finish_all_on(0);
    world.pass(11);
    assert_eq!(world.answered().len(), 8);
    world.write(9, 0);
    world.finish_all_on(0);
    assert_eq!(world.answered(), [9]);
}

#[test]
fn a_replaced_member_is_not_dropped_for_what_the_old_one_still_has() {
    let mut world = World::new(16 * MIB, 16);
    world.write(1, 0);
    world.finish_on(0, Ok(()));
    world.pass(11);
    assert_eq!(world.answered(), [1]);
    let stuck = world.flying.pop_front().expect("it hangs");
    world
        .order(LayoutOrder::Replace(Target(1)))
        .expect("it is replaced");
    world.finish_all();
    assert_eq!(world.state(1), MemberState::InSync);
    for _ in 0..60 {
        world.pass(1);
        world.finish_all();
    }
    assert_eq!(world.state(1), MemberState::InSync);
    world.flying.push_back(stuck);
    world.finish(0, Err(Fault::Gone));
    world.write(2, 0);
    world.finish_all_on(0);
    world.pass(11);
    assert_eq!(world.answered(), [2], "a hang of the new one is seen");
}

#[test]
fn a_member_whose_state_cannot_be_read_for_long_can_be_replaced() {
    let mut world = World::new(16 * MIB, 16);
    world.write(1, 0);
    world.finish_on(1, Err(Fault::Io));
    world.finish_all_on(0);
    world.hangs = vec![Target(1)];
    world.pass(21);
    world.hangs.clear();
    assert_eq!(world.order(LayoutOrder::Replace(Target(1))), Ok(()));
    world.finish_all();
    assert_eq!(world.state(1), MemberState::InSync);
}

#[test]
fn a_mirror_that_is_detached_is_left_without_hot_regions() {
    let mut world = World::new(16 * MIB, 16);
    world.write(1, 0);
    world.finish_all();
    world.handle(Event::Detach { disk: DISK });
    world.finish_all();
    assert!(world.detached);
    world.attach(DISK, 16 * MIB);
    assert!(
        world.flying.iter().all(|(.., op)| *op == Op::Flush),
        "nothing is copied"
    );
}
