//! Members that a mirror uses at a start and later: old copies, other disks' members, and members that went on alone.

use super::world::{Io, MIB, PLACES, World};
use tidegate_core::layout::mirror::state::MISSED;
use tidegate_core::layout::{
    DATA_AT, LayoutNotice, LayoutOrder, LayoutSpec, MemberState, Members, OrderRefusal, Refusal,
    Target,
};
use tidegate_core::request::{Fault, Op};

const SIZE: u64 = 16 * MIB;
const MEMBERS: [Target; 2] = [Target(0), Target(1)];

fn members() -> Members {
    Members::new([7; 16], SIZE, 2)
}

/// Member 1 fails a write to the first region, and is dropped.
fn fail_member(world: &mut World) {
    world.write(90, 0);
    world.finish_on(1, Err(Fault::Io));
    world.finish_all_on(0);
    assert_eq!(world.state(1), MemberState::OutOfSync);
}

#[test]
fn a_state_that_was_being_recorded_at_a_crash_is_never_taken_for_a_later_one() {
    let mut world = World::new(SIZE, 16);
    fail_member(&mut world);
    world.pass(10);
    assert_eq!(world.state(1), MemberState::Rebuilding);
    while !world.has(1, Op::Flush) {
        world.finish(0, Ok(()));
    }
    // Member 1 alone learns that it is in sync.
    world.holds = vec![Target(0)];
    world.finish_all();
    assert_eq!(world.recorded(1).in_sync, 0b11);
    assert_eq!(world.recorded(0).in_sync, 0b01);
    world.away = vec![Target(1)];
    world.crash();
    assert_eq!(world.opened, Some(Ok(())));
    // The guest has read what member 0 has.
    world.away.clear();
    world.crash();
    assert_eq!(world.opened, Some(Ok(())));
    assert_ne!(world.state(1), MemberState::InSync);
}

#[test]
fn a_member_whose_newest_state_has_it_out_of_sync_gets_all_bytes() {
    let mut world = World::new(SIZE, 16);
    world.holds = MEMBERS.to_vec();
    // While a state with member 1 is being recorded, it is dropped and replaced by an empty image.
    world.write(1, 0);
    world.end_block(1, Ok(()));
    world.begin_order(LayoutOrder::Drop(Target(1)));
    world
        .order(LayoutOrder::Replace(Target(1)))
        .expect("it is replaced");
    world.end_block(1, Ok(()));
    world.end_block(0, Ok(()));
    // The next state says so. Member 1 has it, but fails; the first one without member 1 follows.
    assert_eq!(world.held.len(), 2);
    world.end_block(0, Ok(()));
    world.fail_written_block(1);
    world.holds.clear();
    world.end_block(0, Ok(()));
    world.finish_all();
    assert_eq!(world.state(1), MemberState::OutOfSync);
    let (state, own) = (world.recorded(0), world.recorded(1));
    assert!((state.until[1]..state.since[1]).contains(&own.sequence));
    world.pass(20);
    assert_eq!(world.rebuilds(), Some(SIZE));
}

#[test]
fn an_old_copy_of_a_member_gets_all_bytes() {
    let mut world = World::new(SIZE, 16);
    let copy = world.copy_of(1);
    for region in 1..4 {
        world.write(region, region * MIB);
        world.finish_all();
    }
    fail_member(&mut world);
    world.put_back(1, copy);
    world.pass(10);
    assert_eq!(world.rebuilds(), Some(SIZE));
}

#[test]
fn a_member_that_was_just_dropped_gets_what_it_lacks() {
    let mut world = World::new(SIZE, 16);
    fail_member(&mut world);
    world.pass(10);
    assert_eq!(world.rebuilds(), Some(MIB));
}

/// Member 1 lacks one region, and is being rebuilt.
fn rebuild_one_region(world: &mut World) {
    fail_member(world);
    world.pass(10);
    assert_eq!(world.state(1), MemberState::Rebuilding);
    assert_eq!(world.rebuilds(), Some(MIB));
}

#[test]
fn a_member_whose_rebuild_by_regions_failed_gets_only_regions_again() {
    let mut world = World::new(SIZE, 16);
    rebuild_one_region(&mut world);
    // Some of it is copied. A guest's write to another region fails on it.
    for _ in 0..8 {
        world.finish(0, Ok(()));
    }
    world.write(91, 5 * MIB);
    world.fail_write(1);
    world.finish_all();
    assert_eq!(world.state(1), MemberState::OutOfSync);
    world.write(92, 9 * MIB);
    world.finish_all();
    world.notices.clear();
    world.pass(30);
    assert_eq!(world.rebuilds(), Some(3 * MIB));
    // Again, after a start.
    world.crash();
    while !world.has(1, Op::Write) {
        world.finish(0, Ok(()));
    }
    world.fail_write(1);
    assert_eq!(world.state(1), MemberState::OutOfSync);
    world.finish_all();
    world.notices.clear();
    world.pass(600);
    assert_eq!(world.rebuilds(), Some(3 * MIB));
    world.finish_all();
    assert_eq!(world.state(1), MemberState::InSync);
}

#[test]
fn a_member_that_cannot_record_its_rebuild_by_regions_gets_only_regions_again() {
    let mut world = World::new(SIZE, 16);
    fail_member(&mut world);
    world.holds = vec![Target(1)];
    world.pass(10);
    // Its states are read. The next one fails.
    world.end_block(1, Ok(()));
    world.end_block(1, Ok(()));
    world.end_block(1, Err(Fault::Io));
    world.holds.clear();
    assert_eq!(world.state(1), MemberState::OutOfSync);
    world.notices.clear();
    world.pass(30);
    assert_eq!(world.rebuilds(), Some(MIB));
    world.finish_all();
    assert_eq!(world.state(1), MemberState::InSync);
}

#[test]
fn a_member_whose_full_rebuild_failed_gets_all_bytes_again() {
    let mut world = World::new(SIZE, 16);
    fail_member(&mut world);
    world
        .order(LayoutOrder::Replace(Target(1)))
        .expect("it is replaced");
    assert_eq!(world.rebuilds(), Some(SIZE));
    world.finish(0, Ok(()));
    world.fail_write(1);
    world.finish_all();
    world.notices.clear();
    world.pass(30);
    assert_eq!(world.rebuilds(), Some(SIZE));
}

#[test]
fn an_old_copy_from_an_earlier_rebuild_by_regions_gets_all_bytes() {
    let mut world = World::new(SIZE, 16);
    rebuild_one_region(&mut world);
    let copy = world.copy_of(1);
    world.finish_all();
    assert_eq!(world.state(1), MemberState::InSync);
    // What was missed then is forgotten.
    world.pass(10);
    world.finish_all();
    fail_member(&mut world);
    world.put_back(1, copy);
    world.notices.clear();
    world.pass(300);
    assert_eq!(world.rebuilds(), Some(SIZE));
}

#[test]
fn a_rebuilt_member_that_is_dropped_before_it_is_recorded_gets_all_bytes() {
    let mut world = World::new(SIZE, 16);
    rebuild_one_region(&mut world);
    let copy = world.copy_of(1);
    // Another region is written, and becomes cold.
    world.write(91, 5 * MIB);
    for seconds in [6, 0] {
        let is_copy = |io: &Io| io.op != Op::Flush && io.offset < 5 * MIB;
        while let Some(place) = world.flying.iter().position(|io| !is_copy(io)) {
            world.finish(place, Ok(()));
        }
        world.pass(seconds);
    }
    assert_eq!(world.state(1), MemberState::Rebuilding);
    assert_eq!(world.recorded(0).regions, [MISSED, MISSED | 5]);
    // A state is being written when the rebuild ends, and the member is dropped. What was copied is written again.
    while world.flying.iter().any(|io| io.offset < MIB / 4) {
        world.finish(0, Ok(()));
    }
    world.holds = vec![Target(0)];
    world.write(92, 0);
    for _ in 0..1_000 {
        if world.state(1) == MemberState::InSync {
            break;
        }
        world.finish(0, Ok(()));
    }
    assert_eq!(world.state(1), MemberState::InSync);
    world.begin_order(LayoutOrder::Drop(Target(1)));
    assert_eq!(world.state(1), MemberState::OutOfSync);
    world.holds.clear();
    world.end_block(0, Ok(()));
    world.finish_all();
    world.put_back(1, copy);
    world.notices.clear();
    world
        .order(LayoutOrder::Rebuild(Target(1)))
        .expect("it is rebuilt");
    assert_eq!(world.rebuilds(), Some(SIZE));
}

#[test]
fn a_member_is_not_used_again_while_it_has_an_earlier_write() {
    let mut world = World::new(SIZE, 16);
    world.write(1, 0);
    world.finish_on(0, Ok(()));
    // It hangs, and is dropped.
    world.pass(11);
    assert_eq!(world.answered(), [1]);
    for _ in 0..600 {
        world.pass(1);
        assert_eq!(world.state(1), MemberState::OutOfSync);
    }
    let refused = world.order(LayoutOrder::Rebuild(Target(1)));
    assert_eq!(refused, Err(OrderRefusal::InFlight));
    assert_eq!(world.state(1), MemberState::OutOfSync);
    world.finish_on(1, Ok(()));
    assert_eq!(world.order(LayoutOrder::Rebuild(Target(1))), Ok(()));
    world.finish_all();
    assert_eq!(world.state(1), MemberState::InSync);
}

/// The host uses this member alone, because the other one was given up, and its guest writes.
fn go_on_alone(world: &mut World, member: u8) {
    world.members.without = 0b11 & !(1 << member);
    world.crash();
    assert_eq!(world.opened, Some(Ok(())));
    world.write(50, 2 * MIB);
    world.finish_all();
    assert_eq!(world.recorded(member).in_sync, 1 << member);
}

#[test]
fn members_that_went_on_without_each_other_are_refused_at_a_start() {
    for order in [[0, 1], [1, 0]] {
        let mut world = World::new(SIZE, 16);
        for member in order {
            go_on_alone(&mut world, member);
        }
        world.members.without = 0;
        world.crash();
        let split = |member| Some(Err(Refusal::Split(Target(member))));
        assert!(world.opened == split(0) || world.opened == split(1));
    }
}

#[test]
fn a_member_that_went_on_alone_is_not_used_again_by_itself() {
    let mut world = World::new(SIZE, 16);
    fail_member(&mut world);
    // Another host uses it without the first one, and its guest writes.
    let mut elsewhere = World::unattached(members(), 16);
    for member in 0..2 {
        elsewhere.put_back(member, world.copy_of(member));
    }
    elsewhere.away = vec![Target(0)];
    go_on_alone(&mut elsewhere, 1);
    world.put_back(1, elsewhere.copy_of(1));
    world.pass(600);
    let refused = LayoutNotice::RebuildFailed {
        member: Target(1),
        fault: Fault::Invalid,
    };
    assert!(world.notices.contains(&refused));
    assert_eq!(world.rebuilds(), None);
    assert_eq!(world.state(1), MemberState::OutOfSync);
}

#[test]
fn a_label_that_is_not_this_members_is_refused() {
    let formatted = World::new(SIZE, 16);
    let opens_over = |formatted: &World, members: Members| {
        let mut world = World::unattached(members, 16);
        for member in 0..2 {
            world.put_back(member, formatted.copy_of(member));
        }
        world.crash();
        world.opened
    };
    let opens_as = |members| opens_over(&formatted, members);
    let foreign = Some(Err(Refusal::Foreign(Target(0))));
    assert_eq!(opens_as(members()), Some(Ok(())));
    let other_disk = Members::new([8; 16], SIZE, 2);
    assert_eq!(opens_as(other_disk), foreign);
    let larger = World::over(Members::new([7; 16], SIZE, 3), 16);
    assert_eq!(opens_over(&larger, members()), foreign);
    let elsewhere = Members {
        data_at: DATA_AT / 2,
        ..members()
    };
    assert_eq!(opens_as(elsewhere), foreign);
    let mut other_layout = World::unattached(members(), 16);
    other_layout.layout = LayoutSpec::Stripe { chunk: MIB };
    let mut swapped = World::unattached(members(), 16);
    for member in 0..2 {
        other_layout.put_back(member, formatted.copy_of(member));
        swapped.put_back(1 - member, formatted.copy_of(member));
    }
    for mut world in [other_layout, swapped] {
        let blocks = world.blocks.clone();
        world.crash();
        assert_eq!(world.opened, foreign);
        assert_eq!(world.blocks, blocks, "nothing is written");
    }
}

#[test]
fn a_state_of_another_disk_or_member_is_refused() {
    let other = World::over(Members::new([8; 16], SIZE, 2), 16);
    let states = |world: &World, member| {
        let mut blocks = world.copy_of(member);
        blocks.retain(|(offset, _)| PLACES.contains(offset));
        blocks
    };
    let mut world = World::new(SIZE, 16);
    let own = states(&world, 1);
    for foreign in [states(&other, 1), states(&world, 0)] {
        world.put_back(1, foreign.clone());
        world.crash();
        assert_eq!(world.opened, Some(Err(Refusal::Foreign(Target(1)))));
        world.put_back(1, own.clone());
        world.crash();
        assert_eq!(world.opened, Some(Ok(())));
    }
    // Nor is such a member used while the disk is open.
    fail_member(&mut world);
    world.put_back(1, states(&other, 1));
    world.pass(600);
    assert_eq!(world.rebuilds(), None);
}

#[test]
fn a_new_disk_is_not_formatted_while_a_member_is_away() {
    for away in MEMBERS {
        let mut world = World::unattached(members(), 16);
        world.away = vec![away];
        world.attach();
        assert_eq!(world.opened, Some(Err(Refusal::Missing(away))));
        assert!(world.blocks.is_empty(), "nothing is written");
        world.away.clear();
        world.crash();
        assert_eq!(world.opened, Some(Ok(())));
    }
}

#[test]
fn a_new_mirror_that_loses_a_member_is_refused_and_formatted_again() {
    for fails in [true, false] {
        let mut world = World::unattached(members(), 16);
        world.holds = vec![Target(1)];
        world.attach();
        // Its label is read and written. Then the first state fails, or hangs.
        world.end_block(1, Ok(()));
        world.end_block(1, Ok(()));
        match fails {
            true => world.end_block(1, Err(Fault::Io)),
            false => world.pass(11),
        }
        assert!(matches!(
            world.opened,
            Some(Err(Refusal::Failed(Target(1), _)))
        ));
        assert_eq!(world.recorded(0).in_sync, 0b11, "no member is alone");
        world.pass(60);
        assert_eq!(world.recorded(0).in_sync, 0b11, "no member is alone");
        world.crash();
        assert_eq!(world.opened, Some(Ok(())));
        assert_eq!(world.state(1), MemberState::InSync);
    }
}

#[test]
fn a_mirror_that_refused_to_open_records_nothing() {
    let mut world = World::new(SIZE, 16);
    world.write(1, 0);
    world.begin_crash();
    world.holds = MEMBERS.to_vec();
    world.finish_all();
    // The hot region is equal, and both are to record that. One fails, then the other hangs.
    world.end_block(0, Err(Fault::Io));
    world.pass(11);
    assert!(matches!(world.opened, Some(Err(Refusal::Failed(..)))));
    assert!(world.held.iter().all(|block| block.target == Target(1)));
}

#[test]
fn a_mirror_that_refused_to_open_copies_nothing() {
    let mut world = World::new(SIZE, 16);
    world.write(1, 0);
    world.begin_crash();
    world.holds = vec![Target(1)];
    // Member 0 hangs with a copy of the hot region, and member 1 fails the state without it.
    world.finish_on(1, Ok(()));
    world.pass(11);
    world.end_block(1, Err(Fault::Io));
    assert!(matches!(world.opened, Some(Err(Refusal::Failed(..)))));
    world.finish_all();
    assert!(world.flying.is_empty());
}
