//! Mirrors whose members are lost, hang, become more, or change while they are rebuilt.

use std::collections::BTreeSet;
use tidegate_core::layout::{
    DropCause, LayoutNotice, LayoutOrder, MemberState, Members, OnLoss, OrderRefusal, Target, Tree,
};
use tidegate_core::request::{DiskId, Fault, Op, Token};
use tidegate_core::shard::Event;
use tidegate_core::stack::Stack;
use tidegate_core::units::Span;
use world::{DISK, MIB, World};

use MemberState::{InSync, OutOfSync, Rebuilding};

#[path = "mirror_policy/world.rs"]
mod world;

fn mirror(size: u64, count: usize) -> Members {
    Members::new([7; 16], size, count)
}

fn waiting(count: usize) -> Members {
    Members {
        on_loss: OnLoss::Wait,
        ..mirror(16 * MIB, count)
    }
}

/// A mirror that waits, whose member 1 is out of sync and whose member 0 fails everything.
fn lost(fault: Fault) -> World {
    let mut world = World::new(waiting(2), 64);
    world.gone.insert(1, Fault::Io);
    world.write(1, 0);
    world.finish_all();
    assert_eq!(world.answered(), [1]);
    world.gone.insert(0, fault);
    world.write(2, 0);
    world.read(3, MIB);
    world.submit(DISK, 4, Op::Flush, 0, 0);
    assert_eq!(world.answers(), []);
    assert!(world.report().waiting);
    world
}

#[test]
fn io_waits_for_the_last_member_and_goes_on_when_it_is_back() {
    for fault in [Fault::Io, Fault::Gone] {
        let mut world = lost(fault);
        world.pass(30);
        world.write(5, MIB);
        assert_eq!(world.answers(), []);
        world.gone.remove(&0);
        world.pass(2);
        world.finish_all();
        let answered: BTreeSet<u64> = world.answered().into_iter().collect();
        assert_eq!(answered, BTreeSet::from([2, 3, 4, 5]));
        assert!(!world.report().waiting);
        let count = |notice| world.notices.iter().filter(|n| **n == notice).count();
        assert_eq!(count(LayoutNotice::Waiting), 1);
        assert_eq!(count(LayoutNotice::Resumed), 1);
        assert_eq!(count(LayoutNotice::Lost), 0);
        // No rebuild of it, and the other one comes back as ever.
        world.gone.clear();
        world.pass(400);
        world.finish_all();
        assert_eq!(world.states(), [InSync; 2]);
    }
}

#[test]
fn io_fails_at_once_without_that_policy() {
    let mut world = World::new(mirror(16 * MIB, 2), 64);
    world.gone.extend([(0, Fault::Gone), (1, Fault::Gone)]);
    for token in [1, 3] {
        world.write(token, 0);
        world.read(token + 1, 0);
    }
    let answers = world.answers();
    let failed = |(token, outcome)| (token, outcome) == (token, Err(Fault::Io));
    assert!(answers.len() == 4 && answers.iter().copied().all(failed));
    assert!(world.notices.contains(&LayoutNotice::Lost));
}

#[test]
fn io_that_waits_fails_when_the_disk_is_detached() {
    let mut world = lost(Fault::Io);
    world.handle(Event::Detach { disk: DISK });
    let answers = world.answers();
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|(_, outcome)| outcome.is_err()));
    assert!(world.detached);
}

#[test]
fn io_that_waits_ends_when_its_client_disconnects() {
    for fault in [Fault::Io, Fault::Gone] {
        let mut world = lost(fault);
        // Over the first write, and one that needs a record.
        world.write(5, 0);
        world.write(6, 8 * MIB);
        // One after the other, also those that wait for others.
        for token in [5, 2, 4, 6] {
            let tokens = vec![Token(token)];
            world.handle(Event::Abandon { disk: DISK, tokens });
        }
        let answers = world.answers();
        assert!(answers.iter().all(|(_, outcome)| outcome.is_err()));
        let ended: BTreeSet<u64> = answers.into_iter().map(|(token, _)| token).collect();
        assert_eq!(ended, BTreeSet::from([2, 4, 5, 6]));
        world.write(7, 0);
        world.gone.clear();
        world.pass(2);
        world.finish_all();
        let answered: BTreeSet<u64> = world.answered().into_iter().collect();
        assert_eq!(answered, BTreeSet::from([3, 7]));
    }
}

#[test]
fn io_that_waits_fails_when_the_policy_becomes_fail() {
    let mut world = lost(Fault::Io);
    assert_eq!(world.order(LayoutOrder::OnLoss(OnLoss::Fail)), Ok(()));
    assert_eq!(world.answers().len(), 3);
    assert!(!world.report().waiting);
    assert_eq!(world.order(LayoutOrder::OnLoss(OnLoss::Wait)), Ok(()));
    world.write(5, 0);
    assert_eq!(world.answers(), []);
    world.gone.clear();
    world.pass(2);
    world.finish_all();
    assert_eq!(world.answered(), [5]);
}

#[test]
fn of_members_that_were_lost_together_the_first_that_is_back_is_used() {
    let mut world = World::new(waiting(2), 64);
    world.write(1, 0);
    world.finish_all();
    world.write(2, 0);
    world.gone.extend([(0, Fault::Gone), (1, Fault::Gone)]);
    world.finish_on(0, Err(Fault::Gone));
    world.finish_on(1, Err(Fault::Gone));
    assert_eq!(world.answered(), [1]);
    assert_eq!(world.states(), [InSync; 2]);
    world.pass(20);
    world.gone.remove(&1);
    world.pass(2);
    world.finish_all();
    assert_eq!(world.answered(), [2]);
    assert_eq!(world.states(), [OutOfSync, InSync]);
    world.gone.clear();
    world.pass(60);
    let offsets: BTreeSet<u64> = world.flying.iter().map(|io| io.offset).collect();
    assert!(offsets.iter().all(|at| *at < 2 * MIB), "one region lacks");
    world.finish_all();
    assert_eq!(world.states(), [InSync; 2]);
}

#[test]
fn a_member_that_comes_back_as_an_old_copy_is_not_used() {
    let mut world = World::new(waiting(2), 64);
    world.write(1, 0);
    world.finish_all();
    let old = world.blocks.clone();
    world.gone.insert(1, Fault::Io);
    world.write(2, 0);
    world.finish_all();
    world.gone.insert(0, Fault::Io);
    world.write(3, 0);
    let current = std::mem::replace(&mut world.blocks, old);
    world.gone.clear();
    world.pass(30);
    assert_eq!(world.answered(), [1, 2]);
    assert!(world.report().waiting);
    world.blocks = current;
    world.pass(2);
    world.finish_all();
    assert_eq!(world.answered(), [3]);
}

#[test]
fn an_io_that_fails_again_on_a_member_that_answers_is_no_loss() {
    let mut world = World::new(waiting(2), 64);
    world.gone.insert(1, Fault::Io);
    world.write(1, 0);
    world.finish_all();
    for _ in 0..2 {
        world.write(2, 0);
        world.read(3, 0);
        for _ in 0..20 {
            if world.flying.is_empty() {
                break;
            }
            world.finish_on(0, Err(Fault::Io));
        }
        let mut answers = world.answers();
        answers.sort_by_key(|(token, _)| *token);
        answers.retain(|(token, _)| *token > 1);
        assert_eq!(answers, [(2, Err(Fault::Io)), (3, Err(Fault::Io))]);
        assert!(!world.report().waiting);
    }
}

#[test]
fn a_last_member_that_hangs_is_waited_for_and_said_to_be() {
    let mut world = World::new(waiting(2), 64);
    world.gone.insert(1, Fault::Io);
    world.write(1, 0);
    world.finish_all();
    world.write(2, 0);
    world.hung.push(0);
    world.pass(11);
    assert!(world.report().waiting);
    world.write(3, 0);
    world.unhang();
    world.finish_all();
    world.pass(2);
    world.finish_all();
    assert_eq!(world.answered(), [1, 2, 3]);
    assert!(!world.report().waiting);
}

#[test]
fn a_dropped_member_is_reported_with_the_cause() {
    let cause = |world: &World| {
        let dropped = world.notices.iter().filter_map(|notice| match notice {
            LayoutNotice::Dropped { member, cause } => Some((member.0, *cause)),
            _ => None,
        });
        dropped.collect::<Vec<_>>()
    };
    let world = || World::new(mirror(16 * MIB, 2), 64);
    let mut hung = world();
    hung.hung.push(1);
    hung.write(1, 0);
    hung.pass(11);
    assert_eq!(cause(&hung), [(1, DropCause::Hung)]);
    let mut removed = world();
    assert_eq!(removed.order(LayoutOrder::Drop(Target(1))), Ok(()));
    assert_eq!(cause(&removed), [(1, DropCause::Ordered)]);
    let mut failed = world();
    failed.gone.insert(1, Fault::Io);
    failed.write(1, 0);
    failed.finish_all();
    assert_eq!(cause(&failed), [(1, DropCause::Failed(Fault::Io))]);
}

#[test]
fn the_timeout_of_members_is_a_setting_of_the_disk() {
    let members = Members {
        timeout: Span::from_secs(30),
        ..mirror(16 * MIB, 2)
    };
    let mut world = World::new(members, 64);
    world.write(1, 0);
    world.finish_on(0, Ok(()));
    world.pass(29);
    assert_eq!(world.answered(), []);
    world.pass(2);
    assert_eq!(world.answered(), [1]);
    world.finish_all();
    world.pass(60);
    world.finish_all();
    assert_eq!(world.states(), [InSync; 2]);
    let timeout = LayoutOrder::Timeout(Span::from_secs(2));
    assert_eq!(world.order(timeout), Ok(()));
    world.write(2, 0);
    world.finish_on(0, Ok(()));
    world.pass(3);
    assert_eq!(world.answered(), [2]);
}

#[test]
fn a_mirror_that_has_got_a_member_opens_with_labels_and_states_of_fewer() {
    let mut world = World::new(mirror(16 * MIB, 2), 64);
    world.write(1, 0);
    world.finish_all();
    // The descriptor names it, and the daemon dies.
    world.crash(mirror(16 * MIB, 3));
    world.finish_all();
    assert_eq!(world.states(), [InSync, InSync, OutOfSync]);
    let third = Target(2);
    assert_eq!(world.order(LayoutOrder::Replace(third)), Ok(()));
    world.finish_all();
    assert_eq!(world.states(), [InSync; 3]);
    world.crash(mirror(16 * MIB, 3));
    world.finish_all();
    assert_eq!(world.states(), [InSync; 3]);
    for outcome in [Ok(()), Err(OrderRefusal::Fixed)] {
        assert_eq!(world.order(LayoutOrder::AddMember), outcome);
    }
    assert_eq!(world.states(), [InSync, InSync, InSync, OutOfSync]);
}

#[test]
fn a_blank_member_has_a_label_before_it_is_in_sync() {
    let mut world = World::new(mirror(16 * MIB, 2), 64);
    assert_eq!(world.order(LayoutOrder::AddMember), Ok(()));
    // Not replaced: its image is taken as it is.
    assert_eq!(world.order(LayoutOrder::Rebuild(Target(2))), Ok(()));
    world.finish_all();
    assert_eq!(world.states(), [InSync; 3]);
    world.crash(mirror(16 * MIB, 3));
    world.finish_all();
    assert_eq!(world.states(), [InSync; 3]);
}

#[test]
fn an_order_to_do_without_a_member_is_answered_once_that_is_recorded() {
    let mut world = World::new(mirror(16 * MIB, 2), 64);
    let drop = || Event::LayoutOrder {
        disk: DISK,
        order: LayoutOrder::Drop(Target(1)),
    };
    world.hung.push(0);
    world.handle(drop());
    assert_eq!(world.ordered, []);
    world.unhang();
    assert_eq!(world.ordered, [Ok(())]);
    world.handle(drop());
    assert_eq!(world.ordered, [Ok(()), Ok(())], "it is recorded already");
    // Nobody can record it.
    let mut world = World::new(mirror(16 * MIB, 2), 64);
    world.gone.insert(0, Fault::Io);
    world.handle(drop());
    assert_eq!(world.ordered, [Err(OrderRefusal::Unrecorded)]);
}

#[test]
fn nothing_is_written_to_a_member_that_cannot_be_rebuilt_now() {
    let mut world = World::new(mirror(16 * MIB, 3), 64);
    for member in [1, 2] {
        assert_eq!(world.order(LayoutOrder::Drop(Target(member))), Ok(()));
    }
    assert_eq!(world.order(LayoutOrder::Rebuild(Target(1))), Ok(()));
    assert_eq!(world.states(), [InSync, Rebuilding, OutOfSync]);
    world.blocks.retain(|(_, target, _), _| target.0 != 2);
    let replaced = world.order(LayoutOrder::Replace(Target(2)));
    assert_eq!(replaced, Err(OrderRefusal::Busy));
    assert!(world.blocks.keys().all(|(_, target, _)| target.0 != 2));
}

#[test]
fn a_label_that_hangs_does_not_bar_orders_for_ever() {
    let mut world = World::new(mirror(16 * MIB, 2), 64);
    assert_eq!(world.order(LayoutOrder::Drop(Target(1))), Ok(()));
    world.hung.push(1);
    assert_eq!(world.order(LayoutOrder::Replace(Target(1))), Ok(()));
    let early = world.order(LayoutOrder::Rate(0));
    assert_eq!(early, Err(OrderRefusal::NotOpen));
    world.pass(11);
    assert_eq!(world.order(LayoutOrder::Rate(0)), Ok(()));
    world.unhang();
    assert_eq!(world.states(), [InSync, OutOfSync]);
    assert_eq!(world.order(LayoutOrder::Replace(Target(1))), Ok(()));
    world.finish_all();
    assert_eq!(world.states(), [InSync; 2]);
}

#[test]
fn an_order_to_do_without_a_member_fails_if_the_others_do_not_record_it_in_time() {
    let mut world = World::new(mirror(16 * MIB, 2), 64);
    world.hung.push(0);
    world.handle(Event::LayoutOrder {
        disk: DISK,
        order: LayoutOrder::Drop(Target(1)),
    });
    world.pass(9);
    assert_eq!(world.ordered, []);
    world.pass(2);
    assert_eq!(world.ordered, [Err(OrderRefusal::Unrecorded)]);
    world.unhang();
    assert_eq!(world.ordered.len(), 1, "it is answered once");
    assert_eq!(world.states(), [InSync, OutOfSync]);
    assert_eq!(world.order(LayoutOrder::Drop(Target(1))), Ok(()));
}

#[test]
fn a_write_does_not_wait_for_the_image_that_a_member_had_before() {
    let mut world = World::new(mirror(16 * MIB, 2), 64);
    world.write(1, 0);
    world.finish_on(0, Ok(()));
    let old = world.flying.pop_front().expect("member 1 has it");
    for order in [
        LayoutOrder::Drop(Target(1)),
        LayoutOrder::Replace(Target(1)),
    ] {
        assert_eq!(world.order(order), Ok(()));
    }
    assert_eq!(world.answered(), [1]);
    world.finish_all();
    assert_eq!(world.states(), [InSync; 2]);
    assert_eq!(world.late_buffers(), 1);
    world.flying.push_back(old);
    world.finish_all();
    assert_eq!(world.late_buffers(), 0);
}

#[test]
fn io_waits_again_if_the_member_is_gone_again_before_it_has_the_state() {
    let mut world = World::new(waiting(2), 64);
    world.gone.insert(1, Fault::Io);
    world.write(1, 0);
    world.finish_all();
    assert_eq!(world.answered(), [1]);
    world.read_only = true;
    world.gone.insert(0, Fault::Gone);
    // Another region: its state is recorded first.
    world.write(2, MIB);
    for _ in 0..3 {
        world.gone.remove(&0);
        world.pass(2);
        assert_eq!(world.answers(), []);
        assert!(world.report().waiting);
    }
    world.read_only = false;
    world.pass(2);
    world.finish_all();
    assert_eq!(world.answered(), [2]);
}

/// A plain disk that has begun to move.
fn moving(size: u64) -> World {
    let mut world = World::empty(64);
    world.attach_stack(DISK, size, Stack::new(Vec::new()));
    world.handle(Event::Hold { disk: DISK });
    assert!(std::mem::take(&mut world.held));
    let tree = Some(Box::new(Tree::transfer(size)));
    world.handle(Event::Relay { disk: DISK, tree });
    world
}

#[test]
fn a_move_goes_on_after_a_switch_that_took_too_long() {
    let mut world = moving(4 * MIB);
    for _ in 0..5 {
        world.finish(0, Ok(()));
    }
    world.handle(Event::Hold { disk: DISK });
    let pieces = world.flying.len();
    world.handle(Event::Unhold { disk: DISK });
    // A piece that is with a member could land on what is copied anew.
    assert!(!world.held && pieces > 0);
    assert_eq!(world.flying.len(), pieces);
    world.finish_all();
    assert_eq!(world.states(), [InSync; 2]);
}

#[test]
fn writes_that_find_too_many_regions_hot_flush_once_for_all_of_them() {
    let mut world = World::new(mirror(2_000 * MIB, 2), 8_000);
    for region in 0..1_000 {
        world.write(region, region * MIB);
    }
    let flushes = |world: &World| world.started.get("Flush").copied().unwrap_or(0);
    assert_eq!(flushes(&world), 0, "a write is under way in each region");
    world.finish_on(0, Ok(()));
    world.finish_on(1, Ok(()));
    assert_eq!(flushes(&world), 2, "one on each member");
    world.finish_all();
    assert_eq!(world.answered().len(), 1_000);
    assert!(flushes(&world) < 60, "{}", flushes(&world));
}

#[test]
fn a_member_that_is_rebuilt_gets_what_the_disk_has_grown_by() {
    let mut world = World::new(mirror(4 * MIB, 2), 64);
    assert_eq!(world.order(LayoutOrder::Drop(Target(1))), Ok(()));
    assert_eq!(world.order(LayoutOrder::Replace(Target(1))), Ok(()));
    world.handle(Event::Resize {
        disk: DISK,
        size: 6 * MIB,
    });
    let mut furthest = 0;
    while let Some(io) = world.flying.front() {
        furthest = furthest.max(io.offset);
        world.finish(0, Ok(()));
    }
    assert_eq!(world.states(), [InSync; 2]);
    // The data begin 1 MiB after the begin, and pieces have 64 KiB.
    assert_eq!(furthest, 7 * MIB - (64 << 10));
    // Later ones get all of it.
    world.handle(Event::Resize {
        disk: DISK,
        size: 8 * MIB,
    });
    assert_eq!(world.order(LayoutOrder::Drop(Target(1))), Ok(()));
    assert_eq!(world.order(LayoutOrder::Replace(Target(1))), Ok(()));
    let bytes = world.report().members[1].to_copy;
    assert_eq!(bytes, 8 * MIB);
}

#[test]
fn a_disk_whose_member_hangs_leaves_buffers_for_others() {
    let mut world = World::new(mirror(64 * MIB, 3), 64);
    let other = DiskId(1);
    world.attach(other, mirror(64 * MIB, 2));
    for token in 0..64 {
        world.write(token, token << 16);
    }
    world.finish_all_on(&[0, 1]);
    assert_eq!(world.answered(), []);
    world.submit(other, 100, Op::Write, 0, 4096);
    while let Some(place) = world.flying.iter().position(|io| io.disk == other) {
        world.finish(place, Ok(()));
    }
    assert_eq!(world.answered(), [100]);
    // What the hung member keeps is nobody's, and others can be given.
    world.pass(11);
    world.finish_all_on(&[0, 1]);
    assert_eq!(world.answered().len(), 64);
    let late = world.late_buffers();
    assert!(late > 4);
    world.finish_all();
    assert_eq!(world.late_buffers(), 0);
}
