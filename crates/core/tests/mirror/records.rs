//! Recorded states of a mirror, and records or writes that fail on all members.

use super::world::{MIB, World};
use tidegate_core::layout::mirror::state::{HOT_MAX, MISSED, State};
use tidegate_core::layout::{LayoutOrder, MemberState, Target};
use tidegate_core::request::{Fault, Op};

#[test]
fn a_state_that_no_member_could_write_does_not_go_over_the_newest_one() {
    let mut world = World::new(16 * MIB, 16);
    let before = world.recorded(0).sequence;
    world.holds = vec![Target(0), Target(1)];
    world.write(1, 0);
    let failed = world.held[0].offset;
    world.end_block(0, Err(Fault::Io));
    world.end_block(1, Err(Fault::Io));
    assert_eq!(world.answers, [(1, Err(Fault::Io))]);
    world.write(2, MIB);
    // A crash may tear this block: the other one must be the newest that all have.
    assert_eq!(world.held[0].target, Target(0));
    assert_eq!(world.held[0].offset, failed);
    assert_eq!(world.recorded(0).sequence, before);
}

#[test]
fn of_members_that_fail_a_state_together_one_stays() {
    let mut world = World::new(16 * MIB, 16);
    world.holds = vec![Target(0), Target(1)];
    world.write(1, 0);
    world.fail_written_block(0);
    world.end_block(1, Err(Fault::Io));
    assert_eq!(world.state(0), MemberState::InSync);
    assert_eq!(world.state(1), MemberState::OutOfSync);
    world.holds.clear();
    world.answers.clear();
    world.write(2, 0);
    world.finish_all();
    assert_eq!(world.answered(), [2]);
    assert_eq!(world.recorded(0).in_sync, 0b01);
}

#[test]
fn of_members_that_fail_a_write_together_one_stays() {
    let mut world = World::new(16 * MIB, 16);
    world.write(1, 0);
    world.finish_on(0, Err(Fault::Io));
    world.finish_on(1, Err(Fault::Io));
    assert_eq!(world.answers, [(1, Err(Fault::Io))]);
    let states = [0, 1].map(|member| world.state(member));
    assert_eq!(states, [MemberState::InSync, MemberState::OutOfSync]);
    // Either may have the write: only one is read.
    for token in 2..6 {
        world.submit(token, Op::Read, 0, 4096);
    }
    assert!(world.flying.iter().all(|io| io.target == Target(0)));
}

#[test]
fn a_write_does_not_wait_for_a_state_on_a_member_that_hangs() {
    let mut world = World::new(16 * MIB, 16);
    world.holds = vec![Target(1)];
    world.write(1, 0);
    assert!(world.flying.is_empty(), "the region is not hot yet");
    world.pass(11);
    assert_eq!(world.state(1), MemberState::OutOfSync);
    world.finish_all();
    assert_eq!(world.answered(), [1]);
}

#[test]
fn writes_are_answered_after_the_loss_of_a_member_is_recorded() {
    let mut world = World::new(16 * MIB, 16);
    world.write(1, 0);
    world.write(2, MIB);
    world.holds = vec![Target(0)];
    // The second write fails on member 1. The first one ends on both, but a start without member 0 would lose it.
    world.finish(3, Err(Fault::Io));
    world.finish(2, Ok(()));
    assert_eq!(world.state(1), MemberState::OutOfSync);
    world.finish_all();
    assert_eq!(world.answers, [], "the loss is being recorded");
    world.end_block(0, Ok(()));
    let mut answered = world.answered();
    answered.sort_unstable();
    assert_eq!(answered, [1, 2]);
}

#[test]
fn each_state_goes_over_the_older_one() {
    let mut world = World::new(16 * MIB, 16);
    world.write(0, 0);
    // The first state after a start, and some more.
    world.begin_crash();
    world.holds = vec![Target(0)];
    world.finish_all();
    for token in 1..5 {
        let over = world.blocks[&(Target(0), world.held[0].offset)].clone();
        let (older, _) = State::decode(&over[..]).expect("a state");
        assert!(older.sequence < world.recorded(0).sequence);
        world.end_block(0, Ok(()));
        world.write(token, token * MIB);
    }
}

#[test]
fn copies_begin_after_the_rebuild_is_recorded() {
    let mut world = World::new(16 * MIB, 16);
    world
        .order(LayoutOrder::Drop(Target(1)))
        .expect("it is dropped");
    world.holds = vec![Target(0)];
    world
        .order(LayoutOrder::Replace(Target(1)))
        .expect("it is replaced");
    assert!(world.flying.is_empty(), "the state is being recorded");
    world.end_block(0, Ok(()));
    assert!(!world.flying.is_empty());
}

/// Regions that are hot in the newest state.
fn hot(world: &World) -> Vec<u32> {
    let regions = world.recorded(0).regions;
    regions.into_iter().filter(|at| at & MISSED == 0).collect()
}

/// So many regions are hot that cold ones are forgotten after each write.
fn crowded() -> (World, u32) {
    let many = u32::try_from(HOT_MAX / 2 + 10).expect("few");
    let mut world = World::new(4096 * MIB, 16);
    for region in 1..=many {
        write_region(&mut world, region);
    }
    (world, many)
}

fn write_region(world: &mut World, region: u32) {
    world.write(region.into(), u64::from(region) * MIB);
    world.finish_all();
}

#[test]
fn a_region_stays_hot_until_a_flush_has_ended() {
    let (mut world, many) = crowded();
    write_region(&mut world, many + 1);
    let expected: Vec<u32> = (1..=many + 1).collect();
    assert_eq!(hot(&world), expected, "nothing was flushed");
    world.flush(5_000);
    let flushes = world.flying.len();
    world.write(5_001, u64::from(many + 2) * MIB);
    assert!(hot(&world).contains(&1), "a flush is under way");
    while world.flying.len() > flushes {
        world.finish(flushes, Ok(()));
    }
    write_region_beside(&mut world, many + 3, flushes);
    assert!(hot(&world).contains(&1), "a flush is under way");
    world.finish_all();
    write_region(&mut world, many + 4);
    write_region(&mut world, many + 5);
    assert!(!hot(&world).contains(&1), "it was flushed");
}

/// Writes to a region while the oldest so many I/Os stay under way.
fn write_region_beside(world: &mut World, region: u32, oldest: usize) {
    world.write(region.into(), u64::from(region) * MIB);
    while world.flying.len() > oldest {
        world.finish(oldest, Ok(()));
    }
}

#[test]
fn a_flush_leaves_regions_hot_that_were_written_after_it_began() {
    let (mut world, many) = crowded();
    write_region(&mut world, 0);
    world.flush(5_000);
    let flushes = world.flying.len();
    write_region_beside(&mut world, 0, flushes);
    world.finish_all();
    for region in many + 1..many + 4 {
        write_region(&mut world, region);
    }
    assert!(!hot(&world).contains(&1), "the flush covers it");
    assert!(hot(&world).contains(&0), "the flush does not cover it");
}
