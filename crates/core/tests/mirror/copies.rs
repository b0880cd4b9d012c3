//! Rebuilds and scrubs beside writes, and members that are lost meanwhile.

use super::world::{MIB, World};
use tidegate_core::layout::{LayoutOrder, MemberState, Members, Target};
use tidegate_core::request::{Fault, Op};

const SLOT: u64 = 64 << 10;

#[test]
fn what_a_state_says_of_a_full_rebuild_is_durable() {
    let size = 200 * MIB;
    let mut world = World::new(size, 16);
    drop_and_forget(&mut world);
    world.lacks = vec![(0, size)];
    world
        .order(LayoutOrder::Replace(Target(1)))
        .expect("it is replaced");
    check_to_the_end(&mut world, &[128 * MIB]);
}

#[test]
fn what_a_state_says_of_a_rebuild_of_some_regions_is_durable() {
    let mut world = World::new(200 * MIB, 16);
    drop_and_forget(&mut world);
    let lacks = [(0, 70), (80, 90), (190, 191)].map(|(from, to)| (from * MIB, to * MIB));
    for (from, to) in lacks {
        for at in (from..to).step_by(1 << 20) {
            world.write(at, at);
            world.finish_all();
        }
    }
    world.lacks = lacks.into();
    world
        .order(LayoutOrder::Rebuild(Target(1)))
        .expect("it is rebuilt");
    assert_eq!(world.rebuilds(), Some(81 * MIB));
    check_to_the_end(&mut world, &[64 * MIB]);
}

/// Member 1 is dropped in order, and nothing that it got before counts.
fn drop_and_forget(world: &mut World) {
    world
        .order(LayoutOrder::Drop(Target(1)))
        .expect("it is dropped");
}

/// The world compares each state with what the member has. Some must say how far the rebuild is.
fn check_to_the_end(world: &mut World, reaches: &[u64]) {
    let mut reached = Vec::new();
    for _ in 0..20_000 {
        let Some(syncing) = world.recorded(0).syncing else {
            break;
        };
        if syncing.upto > 0 && !reached.contains(&syncing.upto) {
            reached.push(syncing.upto);
        }
        // Not in order: a piece that begins later may end earlier.
        let last = world.flying.len() - 1;
        world.finish(last, Ok(()));
    }
    assert!(reaches.iter().all(|at| reached.contains(at)), "{reached:?}");
    assert_eq!(world.state(1), MemberState::InSync);
}

#[test]
fn a_rebuild_ends_though_a_guest_always_overwrites_the_same_piece() {
    let mut world = World::new(MIB, 16);
    drop_and_forget(&mut world);
    world
        .order(LayoutOrder::Replace(Target(1)))
        .expect("it is replaced");
    for token in 0..200 {
        let under_way = world.flying.len();
        world.write(token, 0);
        for _ in 0..under_way {
            world.finish(0, Ok(()));
        }
        if world.state(1) == MemberState::InSync {
            return;
        }
    }
    panic!("the rebuild does not end");
}

#[test]
fn a_start_goes_on_with_the_last_member_though_copies_fail_on_both() {
    let mut world = World::new(16 * MIB, 16);
    world.write(1, 0);
    world.begin_crash();
    // One piece is read from member 0, because member 1 cannot read it.
    world.finish_on(1, Err(Fault::Io));
    world.finish_on(0, Ok(()));
    world.finish_on(1, Ok(()));
    assert!(world.has(0, Op::Write) && world.has(1, Op::Write));
    world.fail_write(0);
    world.fail_write(1);
    let states = [0, 1].map(|member| world.state(member));
    assert_eq!(states, [MemberState::OutOfSync, MemberState::InSync]);
    world.finish_all();
    assert_eq!(world.opened, Some(Ok(())));
}

#[test]
fn what_was_read_from_a_member_that_was_dropped_meanwhile_is_not_copied() {
    let mut world = World::over(Members::new([7; 16], MIB / 16, 3), 16);
    world
        .order(LayoutOrder::Drop(Target(2)))
        .expect("it is dropped");
    world.write(1, 0);
    world.finish_all();
    world
        .order(LayoutOrder::Rebuild(Target(2)))
        .expect("it is rebuilt");
    let source = world.flying.front().expect("a piece is read").target;
    world
        .order(LayoutOrder::Drop(source))
        .expect("another one stays");
    world.write(2, 0);
    world.finish_on(source.0, Ok(()));
    let other = Target(1 - source.0);
    assert!(world.has(other.0, Op::Read), "the piece is read again");
    assert!(
        world.flying.iter().filter(|io| io.target.0 == 2).count() < 2,
        "member 2 has the guest's write only"
    );
    world.finish_all();
    assert_eq!(world.state(2), MemberState::InSync);
}

#[test]
fn a_write_waits_for_the_write_of_a_repair_though_the_scrub_was_stopped() {
    for stopped in [false, true] {
        let mut world = World::new(SLOT, 16);
        world
            .order(LayoutOrder::Scrub { repair: true })
            .expect("it begins");
        // Checksums differ in this world.
        world.finish_on(0, Ok(()));
        world.finish_on(1, Ok(()));
        assert!(world.has(1, Op::Write), "member 1 is repaired");
        if stopped {
            world.order(LayoutOrder::StopScrub).expect("it is stopped");
        }
        world.write(1, 0);
        assert_eq!(world.flying.len(), 1, "the repair alone");
        world.finish_on(1, Ok(()));
        assert!(world.has(0, Op::Write) && world.has(1, Op::Write));
        world.finish_all();
        assert_eq!(world.answered(), [1]);
    }
}

#[test]
fn a_write_waits_for_each_write_of_a_repair() {
    // Members 1 and 2 are repaired. One fails, or neither.
    for outcome in [Ok(()), Err(Fault::Io)] {
        let mut world = World::over(Members::new([7; 16], SLOT, 3), 16);
        world
            .order(LayoutOrder::Scrub { repair: true })
            .expect("it begins");
        for member in 0..3 {
            world.finish_on(member, Ok(()));
        }
        world.finish_on(1, outcome);
        world.write(1, 0);
        assert_eq!(world.flying.len(), 1, "the repair of member 2 alone");
        world.finish_on(2, Ok(()));
        assert!(world.has(0, Op::Write) && world.has(2, Op::Write));
        world.finish_all();
        assert_eq!(world.answered(), [1]);
    }
}

#[test]
fn a_rebuild_does_not_wait_for_a_source_that_hangs() {
    let mut world = World::over(Members::new([7; 16], MIB, 3), 16);
    world
        .order(LayoutOrder::Drop(Target(2)))
        .expect("it is dropped");
    world
        .order(LayoutOrder::Replace(Target(2)))
        .expect("it is replaced");
    let hangs = world.flying.front().expect("a piece is read").target;
    world.pass(11);
    for _ in 0..100 {
        for member in [1 - hangs.0, 2] {
            world.finish_all_on(member);
        }
    }
    assert_eq!(world.state(2), MemberState::InSync);
    assert_eq!(world.state(hangs.0.into()), MemberState::OutOfSync);
}

/// All buffers are with copies of ranges that are being written, and the writes wait for buffers.
#[test]
fn a_copy_that_waits_for_its_range_leaves_its_buffer_to_the_writes() {
    let mut world = World::new(MIB, 4);
    drop_and_forget(&mut world);
    world
        .order(LayoutOrder::Replace(Target(1)))
        .expect("it is replaced");
    assert_eq!(world.flying.len(), 4, "pieces that are read together");
    for piece in 0..4 {
        world.write(piece, piece * SLOT);
    }
    world.finish_all();
    let mut answered = world.answered();
    answered.sort_unstable();
    assert_eq!(answered, [0, 1, 2, 3]);
    assert_eq!(world.state(1), MemberState::InSync);
}
