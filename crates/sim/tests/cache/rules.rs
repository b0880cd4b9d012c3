//! Rules of the cache that random runs seldom break: each has the shortest sequence that shows it.

use super::failures::end_one;
use super::{
    BLOCK, crash, done, end_all_but, flush, holds, is_journal, op_is_read, opened, request,
};
use tidegate_core::layout::cache::CacheMode;
use tidegate_core::layout::{LayoutNotice, LayoutOrder, Refusal, Target};
use tidegate_core::request::Op;
use tidegate_sim::crash::choice::RecordedChoices;
use tidegate_sim::crash::world::World;

/// A write of a block to flash.
fn is_data((target, op, offset): (usize, Op, u64)) -> bool {
    target > 0 && op == Op::Write && !is_journal((target, op, offset))
}

fn assert_nothing_is_corrupt(world: &World) {
    let corrupt = |notice: &&LayoutNotice| matches!(notice, LayoutNotice::CacheCorrupt { .. });
    assert_eq!(world.notices().iter().find(corrupt), None);
}

/// Dirty blocks are given up after zeroes. Their slot gets no other page before that is durable: a crash leaves them dirty.
#[test]
fn directed_a_slot_is_not_free_before_the_record_of_its_page_is_durable() {
    let mut world = opened(1, CacheMode::WriteBack);
    done(&mut world, &[request(Op::Write, BLOCK, 8)]);
    world.submit(request(Op::WriteZeroes, BLOCK, 8));
    end_all_but(&mut world, is_journal);
    assert!((0..world.in_flight()).any(|which| is_journal(world.io(which))));
    // Another page comes in.
    world.submit(request(Op::Write, BLOCK + 256, 8));
    end_all_but(&mut world, is_journal);
    crash(&mut world, 0);
    world.finish();
    let choices = &mut RecordedChoices::new(&[]);
    world.verify(BLOCK..BLOCK + 8, choices);
    assert_nothing_is_corrupt(&world);
    assert_eq!(world.breach(), None);
}

/// The missing blocks of a page are read from the disk while a guest writes one of them.
#[test]
fn directed_a_page_is_not_filled_beside_a_write() {
    let mut world = opened(1, CacheMode::WriteBack);
    let fills = |(target, op, _): (usize, Op, u64)| target == 0 && op == Op::Read;
    // The first blocks of a page, so that the others are free.
    for block in 0..3 {
        world.submit(request(Op::Write, 256 + 8 * block, 8));
        end_all_but(&mut world, fills);
    }
    end_one(&mut world, fills, Ok(()));
    end_all_but(&mut world, is_data);
    assert!((0..world.in_flight()).any(|which| is_data(world.io(which))));
    world.submit(request(Op::Write, 256 + 24, 8));
    // The older bytes come to flash last.
    super::end_newest_first(&mut world);
    let choices = &mut RecordedChoices::new(&[]);
    world.verify(256..256 + 32, choices);
    assert_eq!(world.breach(), None);
}

/// Two pages of two blocks each, on the first device alone, which the second one is about to get.
fn resyncing() -> World {
    let mut world = opened(2, CacheMode::WriteBack);
    world.grow_cache();
    world.finish();
    world.grow_cache();
    world.finish();
    done(&mut world, &[request(Op::Write, BLOCK, 8)]);
    world.order(LayoutOrder::Drop(Target(2)));
    world.finish();
    done(&mut world, &[request(Op::Write, BLOCK, 8), flush()]);
    world
}

/// The second device is alone, and has everything.
fn alone(mut world: World, what: &str) {
    let rebuilt = LayoutNotice::Rebuilt { member: Target(2) };
    assert!(world.notices().contains(&rebuilt), "{what}");
    world.do_without(1);
    world.crash_again(&mut RecordedChoices::new(&[]));
    world.finish();
    assert_eq!(world.opened(), Some(Ok(())));
    let choices = &mut RecordedChoices::new(&[]);
    world.verify(BLOCK..BLOCK + 8, choices);
    assert_nothing_is_corrupt(&world);
    holds(world, what);
}

/// A page is written after it was copied to a device that gets everything again.
#[test]
fn directed_a_device_that_gets_everything_again_gets_new_writes() {
    let mut world = resyncing();
    world.order(LayoutOrder::Rebuild(Target(2)));
    // The page is copied, and the journal must go on until the second device has all that is needed.
    end_all_but(&mut world, is_journal);
    let copied = |notice: &LayoutNotice| matches!(notice, LayoutNotice::Rebuilding { .. });
    assert!(world.notices().iter().any(copied));
    world.submit(request(Op::Write, BLOCK, 8));
    end_all_but(&mut world, is_journal);
    world.finish();
    alone(world, "a page that was written after it was copied");
}

/// The journal goes on while pages are still copied to a device.
#[test]
fn directed_a_device_is_not_used_again_before_all_pages_were_copied() {
    let mut world = resyncing();
    world.order(LayoutOrder::Rebuild(Target(2)));
    end_all_but(&mut world, op_is_read);
    assert!((0..world.in_flight()).any(|which| op_is_read(world.io(which))));
    for round in 0..60 {
        world.submit(request(Op::Write, BLOCK + 256 + 8 * (round % 3), 8));
        end_all_but(&mut world, op_is_read);
    }
    let rebuilt = LayoutNotice::Rebuilt { member: Target(2) };
    assert!(!world.notices().contains(&rebuilt));
    world.finish();
    alone(world, "a page that was copied last");
}

/// A device comes back that has two headers: the older one says that it is alone, the newer one names both. Each becomes void,
/// and the host crashes in between. The device is older than the other one, which is away then: it does not count.
#[test]
fn directed_the_older_header_of_a_device_that_comes_back_is_void_first() {
    let unplug = |world: &mut World, device: u32| {
        world.plug(&mut RecordedChoices::new(&[3, device]));
    };
    let plug_again = |world: &mut World| world.plug(&mut RecordedChoices::new(&[3, 1]));
    let write = request(Op::Write, BLOCK, 8);
    for completed in 0..4 {
        let mut world = opened(2, CacheMode::WriteBack);
        unplug(&mut world, 1);
        done(&mut world, &[write]);
        let alone = world.cache().map(|cache| cache.devices);
        plug_again(&mut world);
        world.finish();
        let both = world.cache().map(|cache| cache.devices);
        assert_eq!((alone, both), (Some(0b01), Some(0b11)));
        unplug(&mut world, 0);
        done(&mut world, &[write]);
        assert_eq!(world.cache().map(|cache| cache.devices), Some(0b10));
        plug_again(&mut world);
        // So many writes to it complete, newest first.
        for _ in 0..completed {
            while world.effects() > 0 {
                world.perform();
            }
            let which = (0..world.in_flight()).rev();
            let which = which.into_iter().find(|which| world.io(*which).0 == 1);
            world.complete(which.expect("a write of its headers or its ring"), Ok(()));
        }
        crash(&mut world, 3);
        world.finish();
        let missing = Refusal::Missing(Target(2));
        assert_eq!(world.opened(), Some(Err(missing)), "{completed} writes");
    }
}
