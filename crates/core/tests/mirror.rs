//! Mirrors over members that fail, hang, and are replaced.

use tidegate_core::layout::{LayoutOrder, MemberState, Target};
use tidegate_core::request::{Fault, Op};
use tidegate_core::shard::Event;
use world::{DISK, MIB, World};

#[path = "mirror/copies.rs"]
mod copies;
#[path = "mirror/opening.rs"]
mod opening;
#[path = "mirror/records.rs"]
mod records;
#[path = "mirror/world.rs"]
mod world;

#[test]
fn a_request_of_more_regions_than_can_be_hot_ends() {
    let mut world = World::new(4096 * MIB, 16);
    world.submit(1, Op::Discard, 0, 4095 * MIB);
    world.finish_all();
    assert_eq!(world.answered(), [1]);
    // And one that begins while others are under way.
    world.write(2, 4095 * MIB);
    world.submit(3, Op::WriteZeroes, MIB / 2, 4000 * MIB);
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
    // Those that found no buffer need none now.
    world.finish_all_on(0);
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
    world.holds = vec![Target(1)];
    world.pass(21);
    world.holds.clear();
    assert_eq!(world.order(LayoutOrder::Replace(Target(1))), Ok(()));
    world.finish_all();
    assert_eq!(world.state(1), MemberState::InSync);
}

/// A mirror of two whose member 1 was dropped, and whose state is being read to use it again.
fn that_tries_member_1() -> World {
    let mut world = World::new(16 * MIB, 16);
    world.write(1, 0);
    world.finish_on(1, Err(Fault::Io));
    world.finish_all_on(0);
    world.holds = vec![Target(1)];
    world.pass(10);
    assert_eq!(world.held.len(), 2);
    assert!(is_relied_on(&world));
    world
}

fn is_relied_on(world: &World) -> bool {
    let report = world.shard.layout_report(DISK);
    report.expect("it is attached").members[1].is_relied_on()
}

#[test]
fn a_member_that_is_dropped_while_its_state_is_read_may_get_another_image() {
    let mut world = that_tries_member_1();
    assert_eq!(world.order(LayoutOrder::Drop(Target(1))), Ok(()));
    assert!(!is_relied_on(&world));
    // What the old image had is not what the new one has.
    world.end_block(1, Ok(()));
    world.end_block(1, Ok(()));
    assert_eq!(world.rebuilds(), None);
    assert_eq!(world.state(1), MemberState::OutOfSync);
    world.holds.clear();
    assert_eq!(world.order(LayoutOrder::Replace(Target(1))), Ok(()));
    assert_eq!(world.rebuilds(), Some(16 * MIB));
}

#[test]
fn a_state_that_the_old_image_of_a_member_returns_late_does_not_count() {
    let mut world = that_tries_member_1();
    assert_eq!(world.order(LayoutOrder::Drop(Target(1))), Ok(()));
    let of_old: Vec<_> = world.held.drain(..).collect();
    world.holds.clear();
    assert_eq!(world.order(LayoutOrder::Replace(Target(1))), Ok(()));
    // It fails, and is tried again.
    world.finish_all_on(0);
    world.finish_on(1, Err(Fault::Io));
    world.holds = vec![Target(1)];
    while world.held.is_empty() {
        world.pass(1);
    }
    world.notices.clear();
    for block in of_old.into_iter().rev() {
        world.held.push_front(block);
    }
    for _ in 0..2 {
        world.end_block(1, Err(Fault::Gone));
    }
    assert_eq!(world.notices, []);
    for _ in 0..2 {
        world.end_block(1, Ok(()));
    }
    assert_eq!(world.rebuilds(), Some(16 * MIB));
}

#[test]
fn a_mirror_that_is_detached_is_left_without_hot_regions() {
    let mut world = World::new(16 * MIB, 16);
    world.write(1, 0);
    world.finish_all();
    world.handle(Event::Detach { disk: DISK });
    world.finish_all();
    assert!(world.detached);
    world.attach();
    assert!(
        world.flying.iter().all(|io| io.op == Op::Flush),
        "nothing is copied"
    );
}
