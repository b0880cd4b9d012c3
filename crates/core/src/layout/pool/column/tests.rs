//! The rules of a column, one by one: its members do only what a test says.

use super::*;
use crate::block::BLOCK;
use crate::layout::tree::Load;
use crate::layout::{Arena, LayoutCommand, SubIo};
use crate::request::{Data, DiskId, IoId};
use crate::units::Time;
use alloc::boxed::Box;
use alloc::vec;

use Standing::{Behind, InSync, Syncing};

/// The first buffer of the arena.
const ARENA: u32 = 1000;

#[derive(Clone, Debug, PartialEq)]
enum Job {
    Sub(u64, SubIo),
    Read(u64, Target),
    Write(u64, Target),
    /// A read that goes to one member.
    Sent(Target),
}

impl Job {
    fn member(&self) -> u8 {
        match self {
            Job::Sub(_, sub) => sub.target.0,
            Job::Read(_, target) | Job::Write(_, target) | Job::Sent(target) => target.0,
        }
    }
}

struct World {
    column: Column,
    commands: VecDeque<(u8, LayoutCommand)>,
    jobs: Vec<Job>,
    arena: Arena,
    answers: Vec<(u32, Outcome)>,
    blocks: Vec<BlockOutcome>,
    notices: Vec<LayoutNotice>,
    copied: usize,
    next: u32,
    loads: [Load; 3],
    now: Time,
}

impl World {
    fn new(members: &[Standing]) -> World {
        let mut arena = Arena::default();
        let slots = (ARENA..ARENA + 8).map(|buffer| Data { buffer, start: 0 });
        arena.give(slots.collect());
        World {
            column: Column::new(members),
            commands: VecDeque::new(),
            jobs: Vec::new(),
            arena,
            answers: Vec::new(),
            blocks: Vec::new(),
            notices: Vec::new(),
            copied: 0,
            next: 0,
            loads: [Load::default(); 3],
            now: Time::ZERO,
        }
    }

    fn hook<T>(&mut self, act: impl FnOnce(&mut Column, &mut LayoutCx<'_>) -> T) -> T {
        let mut cx = LayoutCx {
            now: self.now,
            disk: DiskId(0),
            node: 1,
            loads: &self.loads,
            commands: &mut self.commands,
            arena: &mut self.arena,
        };
        let result = act(&mut self.column, &mut cx);
        while let Some((_, command)) = self.commands.pop_front() {
            match command {
                LayoutCommand::Issue { tag, sub } => self.jobs.push(Job::Sub(tag, sub)),
                LayoutCommand::Answer { io, outcome } => self.answers.push((io.index, outcome)),
                LayoutCommand::ReadBlock { tag, target, .. } => {
                    self.jobs.push(Job::Read(tag, target));
                }
                LayoutCommand::WriteBlock { tag, target, .. } => {
                    self.jobs.push(Job::Write(tag, target));
                }
                LayoutCommand::Send { target, .. } => self.jobs.push(Job::Sent(target)),
                LayoutCommand::BlockEnded { outcome, .. } => self.blocks.push(outcome),
                LayoutCommand::Copy { .. } => self.copied += 1,
                LayoutCommand::Notice(notice) => self.notices.push(notice),
                _ => panic!("a column asks for nothing else"),
            }
        }
        result
    }

    fn io(&mut self, op: Op, flags: Flags, offset: u64, len: u64) -> (u32, Map) {
        self.next += 1;
        let index = self.next;
        let io = LayoutIo {
            id: IoId {
                index,
                generation: 0,
            },
            op,
            flags,
            offset,
            len,
            data: Data {
                buffer: index,
                start: 0,
            },
            background: false,
        };
        (index, self.hook(|column, cx| column.map(cx, &io)))
    }

    fn write(&mut self, offset: u64, len: u64) -> u32 {
        let (index, map) = self.io(Op::Write, Flags::NONE, offset, len);
        assert_eq!(map, Map::Issued);
        index
    }

    /// Where a read goes at once.
    fn read(&mut self, offset: u64) -> Option<u8> {
        match self.io(Op::Read, Flags::NONE, offset, 512).1 {
            Map::One { target, .. } => Some(target.0),
            _ => None,
        }
    }

    /// Ends the first job of a member.
    fn end(&mut self, member: u8, outcome: Outcome) {
        let nth = self.jobs.iter().position(|job| job.member() == member);
        match self.jobs.remove(nth.expect("it has one")) {
            Job::Sub(tag, _) => self.hook(|column, cx| column.done(cx, tag, outcome)),
            Job::Read(tag, _) => {
                let block = outcome.map(|()| Some(Box::new([member; BLOCK])));
                self.hook(|column, cx| column.block_done(cx, tag, block));
            }
            Job::Write(tag, _) => {
                let block = outcome.map(|()| None);
                self.hook(|column, cx| column.block_done(cx, tag, block));
            }
            Job::Sent(_) => {}
        }
    }

    fn stand(&mut self, member: u8, standing: Standing) -> Result<Ordered, OrderRefusal> {
        let member = Target(member);
        let order = LayoutOrder::Standing { member, standing };
        self.hook(|column, cx| column.order(cx, order))
    }

    fn answer(&self, index: u32) -> Option<Outcome> {
        let mut all = self.answers.iter().filter(|(io, _)| *io == index);
        let first = all.next().map(|(_, outcome)| *outcome);
        assert_eq!(all.next(), None, "an I/O is answered once");
        first
    }

    fn asked(&self) -> Vec<u8> {
        let asked = self.notices.iter().filter_map(|notice| match notice {
            LayoutNotice::Behind { member, .. } => Some(member.0),
            _ => None,
        });
        asked.collect()
    }

    fn members_with_jobs(&self) -> Vec<u8> {
        self.jobs.iter().map(Job::member).collect()
    }
}

#[test]
fn c1_a_write_is_answered_once_all_members_in_sync_have_it() {
    let mut world = World::new(&[InSync, InSync, Behind]);
    let io = world.write(0, 4096);
    assert_eq!(world.members_with_jobs(), [0, 1]);
    world.end(1, Ok(()));
    assert_eq!(world.answer(io), None);
    world.end(0, Ok(()));
    assert_eq!(world.answer(io), Some(Ok(())));
    assert_eq!(world.asked(), []);
    assert_eq!(world.arena.free(), 8);
}

#[test]
fn c1_a_write_that_a_member_fails_waits_until_the_catalog_calls_it_behind() {
    let mut world = World::new(&[InSync, InSync]);
    let io = world.write(0, 4096);
    world.end(0, Ok(()));
    world.end(1, Err(Fault::Io));
    assert_eq!((world.answer(io), world.asked()), (None, vec![1]));
    // The next one goes to the other only, and waits as well. The catalog is asked once.
    let next = world.write(4096, 4096);
    assert_eq!(world.members_with_jobs(), [0]);
    world.end(0, Ok(()));
    let (flush, _) = world.io(Op::Flush, Flags::NONE, 0, 0);
    world.end(0, Ok(()));
    assert_eq!((world.answer(next), world.answer(flush)), (None, None));
    assert_eq!(world.asked(), [1]);
    assert_eq!(world.stand(1, Behind), Ok(Ordered::Now));
    for io in [io, next, flush] {
        assert_eq!(world.answer(io), Some(Ok(())));
    }
    let later = world.write(0, 512);
    world.end(0, Ok(()));
    assert_eq!(world.answer(later), Some(Ok(())));
}

#[test]
fn c1_a_write_fails_if_the_catalog_cannot_record_what_it_lacks() {
    let mut world = World::new(&[InSync, InSync]);
    let io = world.write(0, 4096);
    world.end(0, Ok(()));
    world.end(1, Err(Fault::Gone));
    let order = LayoutOrder::Unrecorded(Target(1));
    assert_eq!(
        world.hook(|column, cx| column.order(cx, order)),
        Ok(Ordered::Now)
    );
    assert_eq!(world.answer(io), Some(Err(Fault::Io)));
    // The next one asks again. What is being detached does not wait for ever.
    let next = world.write(0, 512);
    world.end(0, Ok(()));
    assert_eq!((world.answer(next), world.asked()), (None, vec![1, 1]));
    world.hook(|column, cx| column.detaching(cx));
    assert_eq!(world.answer(next), None);
    assert!(world.column.deadline().is_some());
    world.now = world.column.deadline().unwrap();
    world.hook(|column, cx| column.tick(cx));
    assert_eq!(world.answer(next), Some(Err(Fault::Gone)));
    assert_eq!(world.column.deadline(), None);
}

#[test]
fn c1_a_write_fails_whose_only_good_member_is_behind_by_then() {
    let mut world = World::new(&[InSync, InSync]);
    let io = world.write(0, 4096);
    world.end(0, Ok(()));
    world.end(1, Err(Fault::Io));
    // Another disk was faster, and has asked for the other one.
    assert_eq!(world.stand(0, Behind), Ok(Ordered::Now));
    assert_eq!(world.answer(io), Some(Err(Fault::Io)));
    assert_eq!(world.read(0), Some(1), "the one that stays");
    assert_eq!(world.stand(1, Behind), Err(OrderRefusal::Last));
}

#[test]
fn c2_members_get_a_copy_of_the_bytes_and_one_alone_gets_them_as_they_are() {
    let mut world = World::new(&[InSync, InSync]);
    let io = world.write(0, 100 << 10);
    let buffer_of = |job: &Job| match job {
        Job::Sub(_, sub) => sub.data.buffer,
        _ => 0,
    };
    assert!(world.jobs.iter().all(|job| buffer_of(job) >= ARENA));
    assert_eq!((world.jobs.len(), world.copied), (4, 2));
    while let Some(member) = world.members_with_jobs().first() {
        world.end(*member, Ok(()));
    }
    assert_eq!(world.answer(io), Some(Ok(())));
    assert_eq!(world.stand(1, Behind), Ok(Ordered::Now));
    let alone = world.write(0, 100 << 10);
    assert_eq!(world.jobs.len(), 1);
    assert_eq!(buffer_of(&world.jobs[0]), alone);
}

#[test]
fn c2_a_write_goes_on_when_the_arena_has_room_again() {
    let mut world = World::new(&[InSync, InSync]);
    let many: Vec<u32> = (0..12).map(|nth| world.write(nth * 4096, 4096)).collect();
    assert_eq!(world.arena.free(), 8 - world.jobs.len() / 2);
    while let Some(member) = world.members_with_jobs().first() {
        world.end(*member, Ok(()));
        while world.arena.next_waiting().is_some() {
            world.hook(|column, cx| column.arena_ready(cx));
        }
    }
    for io in many {
        assert_eq!(world.answer(io), Some(Ok(())));
    }
}

#[test]
fn c3_members_that_sync_or_failed_or_are_behind_are_not_read() {
    let mut world = World::new(&[InSync, InSync, Behind]);
    let both: Vec<Option<u8>> = (0..4).map(|_| world.read(0)).collect();
    assert_eq!(both, [Some(1), Some(0), Some(1), Some(0)]);
    let io = world.write(1 << 20, 512);
    world.end(0, Err(Fault::Io));
    world.end(1, Ok(()));
    assert_eq!(world.stand(2, Syncing), Ok(Ordered::Now));
    assert_eq!(world.answer(io), None);
    // While the catalog does not know it either.
    assert!((0..4).all(|_| world.read(0) == Some(1)));
    assert_eq!(world.stand(0, Behind), Ok(Ordered::Now));
    assert!((0..4).all(|_| world.read(0) == Some(1)));
}

#[test]
fn c3_a_read_that_fails_goes_to_another_member() {
    let mut world = World::new(&[InSync, InSync]);
    let io = LayoutIo {
        id: IoId {
            index: 1,
            generation: 0,
        },
        op: Op::Read,
        flags: Flags::NONE,
        offset: 512,
        len: 512,
        data: Data::NONE,
        background: false,
    };
    let fails = |column: &mut Column, cx: &mut LayoutCx<'_>, member: u8, fault| {
        column.failed(cx, &io, Target(member), fault, 1)
    };
    let other = |member: u8| Map::One {
        target: Target(member),
        offset: 512,
    };
    assert_eq!(world.hook(|c, cx| fails(c, cx, 0, Fault::Io)), other(1));
    assert_eq!(world.asked(), [], "a bad range is no reason to lose it");
    assert_eq!(world.hook(|c, cx| fails(c, cx, 1, Fault::Gone)), other(0));
    assert_eq!(world.asked(), [1]);
    let last = world.hook(|c, cx| fails(c, cx, 0, Fault::Gone));
    assert_eq!(last, Map::Done(Err(Fault::Gone)));
}

#[test]
fn c4_writes_that_overlap_follow_one_another_and_reads_wait_for_them() {
    let mut world = World::new(&[InSync, InSync]);
    world.write(0, 4096);
    let second = world.write(512, 512);
    assert_eq!(world.jobs.len(), 2);
    assert_eq!(world.read(512), None);
    assert!(world.read(8192).is_some());
    world.end(0, Ok(()));
    world.end(1, Ok(()));
    assert_eq!(world.members_with_jobs(), [0, 1], "the second one");
    world.end(0, Ok(()));
    world.end(1, Ok(()));
    assert_eq!(world.answer(second), Some(Ok(())));
    assert!(matches!(world.jobs[..], [Job::Sent(_)]));
}

#[test]
fn c5_a_member_is_waited_for_from_its_report_on_and_read_once_the_catalog_says_so() {
    let mut world = World::new(&[InSync, Behind]);
    assert_eq!(world.stand(1, InSync), Err(OrderRefusal::Busy));
    assert_eq!(world.stand(1, Syncing), Ok(Ordered::Now));
    // While it syncs nobody waits for it.
    let io = world.write(0, 512);
    assert_eq!(world.members_with_jobs(), [0, 1]);
    world.end(0, Ok(()));
    world.end(1, Err(Fault::Io));
    assert_eq!(world.answer(io), Some(Ok(())));
    assert!(matches!(
        world.notices[..],
        [LayoutNotice::RebuildFailed { .. }]
    ));
    assert_eq!(world.stand(1, Syncing), Ok(Ordered::Now));
    let (flush, _) = world.io(Op::Flush, Flags::RESYNC, 0, 0);
    world.end(0, Ok(()));
    world.end(1, Ok(()));
    assert_eq!(world.answer(flush), Some(Ok(())));
    assert!(matches!(
        world.notices[1..],
        [LayoutNotice::Rebuilt { member: Target(1) }]
    ));
    assert!((0..4).all(|_| world.read(0) == Some(0)));
    let io = world.write(0, 512);
    world.end(0, Ok(()));
    world.end(1, Err(Fault::Io));
    assert_eq!(world.answer(io), None, "the catalog may call it in sync");
    // It does, and then it says that it is behind.
    assert_eq!(world.stand(1, InSync), Ok(Ordered::Now));
    assert_eq!(world.answer(io), None);
    assert!((0..4).all(|_| world.read(1 << 20) == Some(0)));
    assert_eq!(world.stand(1, Behind), Ok(Ordered::Now));
    assert_eq!(world.answer(io), Some(Ok(())));
}

#[test]
fn c5_a_flush_of_an_earlier_round_does_not_report_a_member() {
    let mut world = World::new(&[InSync, Syncing]);
    let (flush, _) = world.io(Op::Flush, Flags::RESYNC, 0, 0);
    world.end(1, Ok(()));
    assert_eq!(world.stand(1, Behind), Ok(Ordered::Now));
    assert_eq!(world.stand(1, Syncing), Ok(Ordered::Now));
    world.end(0, Ok(()));
    assert_eq!(world.answer(flush), Some(Ok(())));
    assert_eq!(world.notices, []);
}

#[test]
fn c6_of_members_that_fail_together_one_stays_and_the_write_fails() {
    let mut world = World::new(&[InSync, InSync]);
    let io = world.write(0, 512);
    world.end(1, Err(Fault::Io));
    world.end(0, Err(Fault::Io));
    assert_eq!(world.answer(io), Some(Err(Fault::Io)));
    assert_eq!(world.asked(), [1]);
    assert!((0..4).all(|_| world.read(0) == Some(0)));
    assert_eq!(world.stand(1, Behind), Ok(Ordered::Now));
    let alone = world.write(0, 512);
    world.end(0, Err(Fault::Gone));
    assert_eq!(world.answer(alone), Some(Err(Fault::Gone)));
    assert_eq!((world.read(0), world.asked()), (Some(0), vec![1]));
}

#[test]
fn a_copy_reads_one_member_and_writes_the_others_with_its_range_locked() {
    let mut world = World::new(&[InSync, InSync, Syncing]);
    let (copy, map) = world.io(Op::Read, Flags::RESYNC, 0, 4096);
    assert_eq!(map, Map::Issued);
    let source = world.members_with_jobs()[0];
    let write = world.write(0, 512);
    assert_eq!(world.jobs.len(), 1, "the write waits");
    world.end(source, Err(Fault::Io));
    let other = world.members_with_jobs()[0];
    assert_eq!((source + other, world.asked()), (1, vec![]));
    world.end(other, Ok(()));
    let mut written = world.members_with_jobs();
    written.sort_unstable();
    assert_eq!(written, [source, 2]);
    world.end(2, Ok(()));
    world.end(source, Ok(()));
    assert_eq!(world.answer(copy), Some(Ok(())));
    assert_eq!(
        (world.members_with_jobs().len(), world.answer(write)),
        (3, None)
    );
}

#[test]
fn a_copy_that_nobody_can_read_ends_the_rebuild() {
    let mut world = World::new(&[InSync, Syncing]);
    let (copy, _) = world.io(Op::Read, Flags::RESYNC, 0, 4096);
    world.end(0, Err(Fault::Io));
    assert_eq!(world.answer(copy), Some(Err(Fault::Io)));
    let failed = |notice: &LayoutNotice| matches!(notice, LayoutNotice::RebuildFailed { .. });
    assert!(world.notices.iter().any(failed), "{:?}", world.notices);
    assert_eq!((world.asked(), world.arena.free()), (vec![], 8));
}

fn block(copy: u8, block: Option<Box<[u8; BLOCK]>>) -> BlockIo {
    BlockIo {
        node: 0,
        tag: 9,
        offset: 0,
        copy,
        block,
    }
}

#[test]
fn blocks_are_written_to_all_and_read_of_each_member_in_sync() {
    let mut world = World::new(&[InSync, InSync, Behind]);
    let write = block(0, Some(Box::new([7; BLOCK])));
    world.hook(|column, cx| column.block(cx, write));
    assert_eq!(world.members_with_jobs(), [0, 1]);
    world.end(0, Ok(()));
    assert_eq!(world.blocks, []);
    world.end(1, Err(Fault::Io));
    assert_eq!(world.blocks, [], "as any other write");
    assert_eq!(world.stand(1, Behind), Ok(Ordered::Now));
    assert_eq!(world.blocks, [Ok(None)]);
    for copy in 0..3 {
        world.hook(|column, cx| column.block(cx, block(copy, None)));
    }
    assert_eq!(world.blocks[1..], [Ok(None), Ok(None)]);
    world.end(0, Ok(()));
    assert_eq!(world.blocks[3], Ok(Some(Box::new([0; BLOCK]))));
}

#[test]
fn a_block_that_a_member_cannot_read_waits_until_it_is_behind_and_then_does_not_count() {
    let mut world = World::new(&[InSync, InSync]);
    for copy in 0..2 {
        world.hook(|column, cx| column.block(cx, block(copy, None)));
    }
    world.end(1, Err(Fault::Io));
    world.end(0, Ok(()));
    assert_eq!((world.blocks.len(), world.asked()), (1, vec![1]));
    assert_eq!(world.stand(1, Behind), Ok(Ordered::Now));
    assert_eq!(world.blocks[1], Ok(None));
    // The last one fails.
    world.hook(|column, cx| column.block(cx, block(0, None)));
    world.end(0, Err(Fault::Io));
    assert_eq!(world.blocks[2], Err(Fault::Io));
}

#[test]
fn nothing_waits_for_a_member_that_hangs_once_it_is_behind() {
    let mut world = World::new(&[InSync, InSync]);
    let io = world.write(0, 512);
    world.end(0, Ok(()));
    world.hook(|column, cx| column.hung(cx, Target(1)));
    assert_eq!((world.answer(io), world.asked()), (None, vec![1]));
    assert_eq!(world.stand(1, Behind), Ok(Ordered::Now));
    assert_eq!(world.answer(io), Some(Ok(())));
    assert_eq!((world.arena.free(), world.arena.late()), (7, 1));
    // It is used again only after what it has has ended.
    world.loads[1].in_flight = 1;
    assert_eq!(world.stand(1, Syncing), Err(OrderRefusal::InFlight));
    world.loads[1].in_flight = 0;
    world.end(1, Ok(()));
    assert_eq!((world.arena.free(), world.arena.late()), (8, 0));
    assert_eq!(world.stand(1, Syncing), Ok(Ordered::Now));
}

#[test]
fn a_view_reads_a_member_once_the_catalog_calls_it_in_sync() {
    let mut world = World::new(&[]);
    world.column = Column::of_view(&[InSync, Behind]);
    assert_eq!(world.stand(1, Syncing), Ok(Ordered::Now));
    assert!((0..4).all(|_| world.read(0) == Some(0)));
    assert_eq!(world.stand(1, InSync), Ok(Ordered::Now));
    assert_eq!(world.stand(0, Behind), Ok(Ordered::Now));
    assert_eq!(world.read(0), Some(1));
    assert_eq!(world.notices, [], "it has nothing to copy");
}

#[test]
fn a_column_of_one_member_maps_everything_as_it_is() {
    let mut world = World::new(&[InSync]);
    for op in [Op::Read, Op::Write, Op::WriteZeroes, Op::Discard, Op::Flush] {
        let (_, map) = world.io(op, Flags::NONE, 512, 512);
        let one = Map::One {
            target: Target(0),
            offset: 512,
        };
        assert_eq!(map, one, "{op:?}");
    }
    assert_eq!(world.jobs, []);
}

#[test]
fn members_get_zeroes_for_a_discard() {
    let mut world = World::new(&[InSync, InSync]);
    let (_, map) = world.io(Op::Discard, Flags::NONE, 0, 4096);
    assert_eq!(map, Map::Issued);
    let is_zeroes = |job: &Job| match job {
        Job::Sub(_, sub) => sub.op == Op::WriteZeroes && sub.flags == Flags::MAY_UNMAP,
        _ => false,
    };
    assert!(world.jobs.len() == 2 && world.jobs.iter().all(is_zeroes));
}
