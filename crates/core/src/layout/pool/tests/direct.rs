//! Writes that go to a member as they are, and first writes that need no zeroes.

use super::*;

const SIZE: u64 = 64 * EXTENT;

/// Whether an I/O is with a member as it is.
fn is_direct(world: &World, io: u32) -> bool {
    let of = |job: &Job| matches!(job, Job::Guest(id, _) if id.index == io);
    world.nth(of).is_some()
}

fn begin(world: &mut World, at: u64, len: u64, byte: u8) -> u32 {
    let bytes = alloc::vec![byte; usize::try_from(len).unwrap()];
    world.begin(Op::Write, Flags::NONE, at, &bytes, len)
}

#[test]
fn first_writes_to_a_zeroed_extent_go_to_their_member_as_they_are() {
    let mut world = World::new(SIZE);
    let first = begin(&mut world, 512, 512, 1);
    // To a sub-block that nobody has, beside it.
    let second = begin(&mut world, 2 * SUB + 512, 512, 2);
    assert!(is_direct(&world, first) && is_direct(&world, second));
    // What is not there yet is zeroes, and stays so around it.
    let early = world.begin(Op::Read, Flags::NONE, 0, &[], SUB);
    world.jobs.rotate_right(1);
    world.run();
    assert!(world.bytes_of(early).iter().all(|it| *it == 0));
    assert!(world.has(0, 512, 0) && world.has(512, 512, 1) && world.has(1024, SUB, 0));
    assert!(world.has(2 * SUB + 512, 512, 2) && world.has(2 * SUB + 1024, SUB, 0));
    assert_eq!(world.report().mapped, 1);
    assert_eq!(world.flush(), Ok(()));
    world.crash();
    assert!(world.has(512, 512, 1) && world.has(2 * SUB + 512, 512, 2));
}

#[test]
fn a_first_write_is_not_direct_where_bytes_of_an_older_use_may_be() {
    let mut world = World::new(SIZE);
    world.fill(0, 512, 1);
    assert_eq!(world.flush(), Ok(()));
    world.crash();
    // No header names this sub-block: a write that was lost may be there.
    let lost = begin(&mut world, SUB + 512, 512, 2);
    assert!(!is_direct(&world, lost));
    world.run();
    world.snapshot();
    // An older generation has it.
    let older = begin(&mut world, SUB, 512, 3);
    assert!(!is_direct(&world, older));
    world.run();
    // Nobody has it, and the extent of this generation is zeroed.
    let fresh = begin(&mut world, 3 * SUB, 512, 4);
    assert!(is_direct(&world, fresh));
    world.run();
    assert!(
        world.has(SUB, 512, 3) && world.has(SUB + 512, 512, 2) && world.has(SUB + 1024, 512, 0)
    );
    assert!(world.has(3 * SUB, 512, 4) && world.has(3 * SUB + 512, 512, 0));
}

#[test]
fn a_discard_of_an_older_sub_block_is_not_undone_by_a_first_write() {
    let mut world = World::new(SIZE);
    world.fill(0, EXTENT, 1);
    world.snapshot();
    assert_eq!(world.io(Op::Discard, Flags::NONE, SUB, &[], SUB), Ok(()));
    let write = begin(&mut world, SUB + 512, 512, 2);
    assert!(!is_direct(&world, write), "a mark hides what is below");
    world.run();
    assert!(
        world.has(SUB, 512, 0) && world.has(SUB + 512, 512, 2) && world.has(SUB + 1024, 512, 0)
    );
    assert!(world.has(0, SUB, 1));
}

#[test]
fn whole_first_writes_are_written_once_and_show_nothing_of_an_earlier_use() {
    let mut world = World::new(SIZE);
    let (before, zeroed) = (world.performed, world.report().zeroed);
    world.fill(0, EXTENT, 1);
    world.fill(EXTENT, 2 * SUB, 2);
    assert_eq!(world.performed, before + 2, "nothing is zeroed for them");
    assert_eq!(world.report().zeroed, zeroed);
    // While one is under way, nothing is there.
    let write = begin(&mut world, 2 * EXTENT, SUB, 3);
    let read = world.begin(Op::Read, Flags::NONE, 2 * EXTENT, &[], SUB);
    assert!(world.bytes_of(read).iter().all(|it| *it == 0));
    world.run();
    assert_eq!(world.answers[&write], Ok(()));
    // A part of another sub-block, with zeroes around.
    world.fill(2 * EXTENT + SUB + 512, 512, 4);
    assert!(world.has(2 * EXTENT, SUB, 3) && world.has(2 * EXTENT + SUB, 512, 0));
    assert!(world.has(2 * EXTENT + SUB + 512, 512, 4));
    assert!(world.has(2 * EXTENT + SUB + 1024, EXTENT, 0));
    assert!(world.has(EXTENT + 2 * SUB, EXTENT - 2 * SUB, 0));
    // What was not flushed is gone, and what is there is still nobody's.
    world.crash();
    assert!(world.has(0, 3 * EXTENT, 0));
}

#[test]
fn p7_a_first_write_waits_while_a_snapshot_is_taken() {
    let mut world = World::new(SIZE);
    world.fill(0, EXTENT, 1);
    let under_way = begin(&mut world, 0, 512, 2);
    assert!(is_direct(&world, under_way));
    let order = world.pool_order(LayoutOrder::TakeSnapshot);
    assert_eq!(order, Ok(Ordered::Later), "a write is under way");
    let later = begin(&mut world, 4 * EXTENT, 512, 3);
    assert!(!is_direct(&world, later));
    world.run();
    assert_eq!(world.ordered.pop(), Some(Ok(())));
    assert_eq!(world.answers[&later], Ok(()));
    assert!(world.has(4 * EXTENT, 512, 3));
    assert_eq!(world.flush(), Ok(()));
    world.open(Some(Generation(1)));
    world.run();
    assert!(world.has(0, 512, 2) && world.has(4 * EXTENT, 512, 0));
}
