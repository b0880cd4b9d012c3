//! I/O control of disks with layouts: schedulers by target, limits before the layout, and background work.

use tidegate_core::effect::ControlId;
use tidegate_core::iocontrol::{Hold, Limit, Policy};
use tidegate_core::layout::cache::area::Area;
use tidegate_core::layout::cache::policy::Params;
use tidegate_core::layout::cache::{CacheMode, CacheSetup};
use tidegate_core::layout::{CacheChange, LayoutSpec, Refusal, Target};
use tidegate_core::request::{Fault, Op};
use tidegate_core::units::Span;
use world::{A, B, CHUNK, World, commands, policy};

#[path = "members/world.rs"]
mod world;

const STRIPE: LayoutSpec = LayoutSpec::Stripe { chunk: CHUNK };
const NONE: ControlId = ControlId::NONE;

/// A limit of so many a second, without a burst.
fn limited(sustained: u64) -> Policy {
    Policy {
        limit: Some(Limit {
            sustained,
            peak: 0,
            burst: 0,
        }),
        ..policy(1_000)
    }
}

#[test]
fn a_sub_io_waits_at_the_scheduler_of_its_own_target() {
    let mut world = World::new(STRIPE, &[A, B], policy(1_000));
    // One request fits on A, and any number on B.
    world.steer(A, 1);
    for token in 0..4 {
        // Two on each target.
        world.submit(token, Op::Read, token * CHUNK, 4096);
    }
    assert_eq!(world.started(), [(0, 1), (1, 2)]);
    assert_eq!(world.held(), 1);
    world.finish_on(1);
    assert_eq!(world.started(), [], "room on B does not help A");
    world.finish_on(0);
    assert_eq!(world.started(), [(0, 1)]);
    world.finish_on(1);
    world.finish_on(0);
    assert_eq!((world.answered().len(), world.held()), (4, 0));
}

/// A cache whose only device is away.
fn cache_setup() -> CacheSetup {
    CacheSetup {
        cache: [9; 16],
        disk: [7; 16],
        size: 64 << 20,
        devices: 1,
        area: Area::new(1 << 20, vec![1, 2, 3, 4]).expect("enough"),
        mode: CacheMode::WriteThrough,
        attachments: [0, 1],
        has_dirty: false,
        without: 0b1,
        policy: None,
        policy_state: Vec::new(),
    }
}

#[test]
fn a_disk_goes_on_as_it_was_if_its_cache_does_not_change_or_is_refused() {
    let mut world = World::new(STRIPE, &[A, B], policy(1_000));
    world.change_cache(CacheChange::Keep);
    world.submit(0, Op::Read, CHUNK, 4096);
    assert_eq!(world.started(), [(1, 1)]);
    world.finish_all();
    let cache = Box::new(cache_setup());
    let timeout = Span::from_millis(1_000);
    world.change_cache(CacheChange::Add { cache, timeout });
    assert!(matches!(world.opened, Err(Refusal::Missing(Target(_)))));
    world.submit(1, Op::Read, 2 * CHUNK, 4096);
    assert_eq!(world.started(), [], "it waits until the cache is removed");
    world.remove_cache();
    assert_eq!(world.started(), [(0, 1)]);
    world.finish_all();
    assert_eq!(world.answered().len(), 2);
    world.detach();
}

#[test]
fn a_hit_that_a_limit_delays_goes_to_flash_as_it_is() {
    let mut world = World::new(STRIPE, &[A, B], limited(10));
    let cache = Box::new(CacheSetup {
        without: 0,
        policy: Some(Params::LRU),
        ..cache_setup()
    });
    let timeout = Span::from_millis(1_000);
    world.change_cache(CacheChange::Add { cache, timeout });
    world.submit(0, Op::Read, 0, 4096);
    world.finish_all();
    world.pass_ms(1_000);
    // The cache has flushed the disk, which nobody used.
    world.finish_all();
    world.started();
    assert_eq!(world.answered().len(), 1);
    world.sums = 0;
    (1..4).for_each(|token| world.submit(token, Op::Read, 0, 4096));
    assert_eq!((world.started(), world.held()), (vec![(2, 1)], 2));
    for _ in 0..2 {
        world.finish_all();
        world.pass_ms(100);
        assert_eq!(world.started(), [(2, 1)]);
    }
    world.finish_all();
    assert_eq!((world.answered().len(), world.sums), (3, 0));
    world.detach();
}

#[test]
fn each_datastore_counts_what_reaches_it() {
    let mut world = World::new(STRIPE, &[A, B], policy(1_000));
    // Three chunks: two on target 0.
    world.submit(0, Op::Write, 0, 3 * CHUNK);
    world.finish_all();
    let ios = |world: &mut World, control| {
        let usage = world.usage(control);
        (usage.len(), usage[0].ios, usage[0].bytes)
    };
    assert_eq!(ios(&mut world, A), (1, 2, 2 * CHUNK));
    assert_eq!(ios(&mut world, B), (1, 1, CHUNK));
}

#[test]
fn two_targets_on_one_datastore_are_one_disk_there() {
    let mut world = World::new(STRIPE, &[A, A], policy(1_000));
    world.steer(A, 1);
    world.submit(0, Op::Read, 0, 4096);
    world.submit(1, Op::Read, CHUNK, 4096);
    assert_eq!((world.started(), world.held()), (vec![(0, 1)], 1));
    world.finish_on(0);
    assert_eq!(world.started(), [(1, 1)]);
    world.finish_on(1);
    let usage = world.usage(A);
    assert_eq!((usage.len(), usage[0].ios), (1, 2));
    world.detach();
}

#[test]
fn a_member_without_control_never_waits() {
    let mut world = World::new(STRIPE, &[NONE, B], policy(1_000));
    world.steer(B, 1);
    for token in 0..8 {
        world.submit(token, Op::Read, token * CHUNK, 4096);
    }
    assert_eq!(world.started(), [(0, 4), (1, 1)]);
    world.finish_all();
    assert_eq!(world.answered().len(), 8);
    world.detach();
}

#[test]
fn a_limit_counts_a_request_over_four_targets_once() {
    let mut world = World::new(STRIPE, &[A, B, A, B], limited(10));
    for token in 0..3 {
        world.submit(token, Op::Write, 4 * token * CHUNK, 4 * CHUNK);
    }
    let row = vec![(0, 1), (1, 1), (2, 1), (3, 1)];
    assert_eq!(world.started(), row, "one request, on all targets");
    world.finish_all();
    // Four chunks are 4 MiB, one unit each MiB: 0.4 s.
    assert_eq!(world.held(), 2);
    world.pass_ms(399);
    assert!(world.started().is_empty());
    world.pass_ms(1);
    assert_eq!(world.started(), row);
    world.finish_all();
    world.pass_ms(400);
    world.finish_all();
    assert_eq!(world.answered().len(), 3);
    let units: u64 = [A, B]
        .map(|control| world.usage(control)[0].units)
        .iter()
        .sum();
    assert_eq!(units, 12, "the datastores count sub-I/Os");
}

#[test]
fn delays_at_a_limit_are_reported_by_one_datastore() {
    let mut world = World::new(STRIPE, &[A, B], limited(1));
    world.submit(0, Op::Read, 0, 4096);
    world.finish_all();
    world.usage(A);
    world.usage(B);
    assert!(!world.is_active(A));
    world.submit(1, Op::Read, 0, 4096);
    assert!(world.is_active(A), "its governor hears of the limit");
    assert!(!world.is_active(B));
    world.pass_ms(500);
    let waited = world.usage(A)[0].held_ns[Hold::Limit.index()];
    assert_eq!(waited, 500_000_000);
    assert_eq!(world.usage(B)[0].held_ns, [0; 5]);
    assert_eq!(world.usage(A)[0].limit, 1);
}

#[test]
fn abandoned_requests_end_at_the_limit_and_at_the_targets() {
    let mut world = World::new(STRIPE, &[A, B], policy(1_000));
    world.steer(A, 1);
    world.submit(0, Op::Read, 0, 4096);
    // One chunk: the request itself waits. Two chunks: its sub-I/O waits.
    world.submit(1, Op::Read, 0, 4096);
    world.submit(2, Op::Read, 0, 2 * CHUNK);
    assert_eq!((world.started(), world.held()), (vec![(0, 1), (1, 1)], 2));
    world.abandon(&[0, 1, 2]);
    assert_eq!(world.answered(), [(1, Err(Fault::Gone))]);
    assert_eq!(world.held(), 1, "the other half of request 2 is under way");
    world.finish_all();
    assert_eq!(world.answered(), [(0, Ok(())), (2, Ok(()))]);

    world.set_policy(limited(1));
    world.submit(3, Op::Read, 0, 2 * CHUNK);
    world.submit(4, Op::Read, 0, 2 * CHUNK);
    world.finish_all();
    assert_eq!((world.answered(), world.held()), (vec![(3, Ok(()))], 1));
    world.abandon(&[4]);
    assert_eq!(world.answered(), [(4, Err(Fault::Gone))]);
    world.detach();
}

#[test]
fn a_detach_lifts_limits_and_waits_for_sub_ios() {
    let mut world = World::new(STRIPE, &[A, B], limited(1));
    world.steer(A, 1);
    for token in 0..3 {
        world.submit(token, Op::Read, 0, 2 * CHUNK);
    }
    assert_eq!((world.started(), world.held()), (vec![(0, 1), (1, 1)], 2));
    world.begin_detach();
    assert_eq!(world.started(), [(1, 2)], "A has no room, B has");
    assert_eq!(world.held(), 2);
    world.finish_all();
    assert_eq!(world.answered().len(), 3);
    let spent = world.detached().expect("it is detached");
    assert!(spent.is_some(), "the limit is used up for as long");
    world.release(A);
    world.release(B);
}

#[test]
fn a_new_policy_holds_at_the_limit_and_at_the_targets() {
    let mut world = World::new(STRIPE, &[A, B], limited(1));
    world.submit(0, Op::Read, 0, 4096);
    world.submit(1, Op::Read, 0, 4096);
    world.finish_all();
    assert_eq!(world.held(), 1);
    world.set_policy(policy(300));
    world.finish_all();
    assert_eq!(world.answered().len(), 2);
    let shares = [A, B].map(|control| world.usage(control)[0].shares);
    assert_eq!(shares, [300, 300]);
}

#[test]
fn a_datastore_that_only_observes_delays_nothing_at_its_disks_limits() {
    let mut world = World::new(STRIPE, &[A, B], limited(1));
    world.submit(0, Op::Read, 0, 4096);
    world.submit(1, Op::Read, 0, 4096);
    assert_eq!(world.held(), 1);
    world.observe(A);
    assert_eq!(world.held(), 0);
    world.finish_all();
    assert_eq!(world.answered().len(), 2);
}

#[test]
fn a_replaced_target_has_its_new_control_while_old_io_ends_at_the_old_one() {
    const C: ControlId = ControlId(2);
    let mut world = World::new(STRIPE, &[A, B], policy(1_000));
    world.steer(B, 1);
    for token in 0..3 {
        world.submit(token, Op::Read, CHUNK, 4096);
    }
    assert_eq!((world.started(), world.held()), (vec![(1, 1)], 2));
    world.set_controls(&[A, C], policy(1_000));
    world.submit(3, Op::Read, CHUNK, 4096);
    assert_eq!(world.started(), [(1, 1)], "C has room");
    world.finish_all();
    assert_eq!(world.answered().len(), 4);
    // The old one has it no more.
    assert!(world.usage(B).is_empty());
    assert_eq!(world.usage(C)[0].ios, 1);
    world.release(B);
    world.detach();
}

#[test]
fn a_moving_disk_is_under_both_datastores_and_keeps_what_it_used_of_its_limit() {
    let mut world = World::plain(A, limited(10));
    world.submit(0, Op::Write, 0, 4096);
    world.finish_all();
    world.begin_move(&[A, B]);
    world.submit(1, Op::Write, 0, 4096);
    assert_eq!(world.held(), 1, "the limit of A was used 0 s ago");
    world.pass_ms(100);
    world.finish_all();
    assert_eq!(world.answered().len(), 2);
    world.end_move(B);
    world.submit(2, Op::Write, 0, 4096);
    assert_eq!(world.held(), 1);
    world.pass_ms(100);
    world.finish_all();
    assert_eq!(world.answered().len(), 1);
    assert!(world.usage(A).is_empty());
    world.release(A);
    world.detach();
}

#[test]
fn requests_within_a_chunk_are_counted_as_on_one_image() {
    let mut world = World::new(STRIPE, &[A, B], policy(1_000));
    let starts = commands(&mut world, 64);
    assert_eq!(starts, 64);
    let ios: u64 = [A, B]
        .map(|control| world.usage(control)[0].ios)
        .iter()
        .sum();
    assert_eq!(ios, 64);
}

#[test]
fn background_work_gets_a_tenth_while_guests_wait_and_everything_when_they_do_not() {
    const SLOT: u64 = 64 << 10;
    let mut world = World::plain(A, policy(1_000));
    // A thread learns with its next orders what part its disks' background work has.
    world.stays = true;
    world.begin_move(&[A, B]);
    assert_eq!(world.held(), 0, "nobody else waits");
    // The source is congested: one request at a time.
    world.steer(A, 1);
    world.finish_on(0);
    assert!(!world.flying.is_empty(), "the copies go on");
    for token in 0..32 {
        world.submit(token, Op::Read, token * SLOT, SLOT);
    }
    world.started();
    let (mut guests, mut copies) = (0_usize, 0_usize);
    for token in 32..1_032 {
        // Copies arrive at once.
        while world.flying.iter().any(|(target, _)| target.0 == 1) {
            world.finish_on(1);
        }
        world.finish_on(0);
        let answered = world.answered().len();
        guests += answered;
        copies += 1 - answered;
        if answered == 1 {
            world.submit(token, Op::Read, token % 512 * SLOT, SLOT);
        }
    }
    let part = 1_000 * copies / (guests + copies);
    assert!((60..=105).contains(&part), "{copies} beside {guests}");
    // Without guests, the copies have the datastore.
    while world.answered().len() + world.held() > 0 && !world.flying.is_empty() {
        world.finish_all();
    }
    assert_eq!(world.held(), 0);
    world.end_move(B);
    world.detach();
}

#[test]
fn one_piece_is_copied_at_a_time_until_guests_have_been_idle_for_a_tenth_of_a_second() {
    let mut world = World::plain(A, policy(1_000));
    world.begin_move(&[A, B]);
    assert_eq!(world.started(), [(0, 4)], "nobody has used it");
    for _ in 0..4 {
        world.finish_on(0);
    }
    world.submit(0, Op::Read, 0, 4096);
    // The pieces that began before end.
    for _ in 0..4 {
        world.finish_on(1);
    }
    for _ in 0..10 {
        assert_eq!(world.flying.len(), 2, "the guest's read and one copy");
        world.finish_newest();
    }
    world.finish_on_any();
    assert_eq!(world.answered().len(), 1);
    world.pass_ms(99);
    for _ in 0..10 {
        assert_eq!(world.flying.len(), 1, "the guest may be back at once");
        world.finish_newest();
    }
    world.pass_ms(100);
    world.finish_on_any();
    world.finish_on_any();
    assert_eq!(world.flying.len(), 4);
    world.end_move(B);
    world.detach();
}

#[test]
fn a_disk_with_background_work_alone_has_a_tenth_of_its_shares() {
    let mut world = World::plain(A, policy(1_000));
    world.usage(A);
    world.begin_move(&[A, B]);
    assert!(world.usage(A)[0].cost > 0, "the copies are its use");
    world.finish_on(0);
    let usage = &world.usage(A)[0];
    assert_eq!((usage.shares, usage.active), (100, true));
    world.submit(0, Op::Read, 0, 4096);
    assert_eq!(world.usage(A)[0].shares, 1_000);
}

#[test]
fn a_move_is_held_and_a_disk_detached_without_a_wait_for_the_backgrounds_turn() {
    let mut world = World::plain(A, policy(1_000));
    world.steer(A, 1);
    world.submit(0, Op::Read, 0, 4096);
    world.begin_detach();
    world.finish_all();
    assert!(world.detached().is_some());

    let mut world = World::plain(A, policy(1_000));
    world.begin_move(&[A, B]);
    world.steer(A, 1);
    for token in 0..8 {
        world.submit(token, Op::Read, token << 16, 4096);
    }
    world.detach();
    assert_eq!(world.answered().len(), 8);
}

#[test]
fn a_guests_write_does_not_wait_for_the_turn_of_a_scrub() {
    let mut world = World::new(LayoutSpec::Mirror, &[A, B], policy(1_000));
    world.finish_all();
    // Reads of the guest fill A; the scrub waits behind them with its first piece locked.
    world.steer(A, 1);
    for token in 0..200 {
        world.submit(token, Op::Read, (1 << 20) + (token << 16), 64 << 10);
    }
    world.scrub();
    world.submit(200, Op::Write, 0, 4096);
    let mut ends = 0;
    let answered = |world: &mut World| world.answered().iter().any(|(token, _)| *token == 200);
    while !answered(&mut world) {
        world.finish_on_any();
        ends += 1;
        assert!(ends < 2_000);
    }
    world.finish_all();
    world.detach();
}
