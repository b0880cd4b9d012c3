//! I/Os that the disk or the only flash device fails, and what a read sees after that, in this use of the disk and later.

use super::{
    BLOCK, crash, done, end_all_but, end_newest_first, flush, holds, is_journal, op_is_read,
    opened, request,
};
use tidegate_core::layout::cache::CacheMode;
use tidegate_core::layout::{LayoutNotice, LayoutOrder};
use tidegate_core::request::{Fault, Op};
use tidegate_sim::crash::choice::RecordedChoices;
use tidegate_sim::crash::world::World;

fn to_disk((target, op, _): (usize, Op, u64)) -> bool {
    target == 0 && op.modifies()
}

fn is_flush((target, op, _): (usize, Op, u64)) -> bool {
    target == 0 && op == Op::Flush
}

/// Ends the first I/O that matches.
pub(super) fn end_one(
    world: &mut World,
    which: impl Fn((usize, Op, u64)) -> bool,
    outcome: Result<(), Fault>,
) {
    while world.effects() > 0 {
        world.perform();
    }
    let which = (0..world.in_flight()).find(|nth| which(world.io(*nth)));
    world.complete(which.expect("it is under way"), outcome);
}

/// The disk fails a write of a write-through cache. A read sees the disk's bytes. Then the mode changes, and a start counts
/// what is dirty on flash.
#[test]
fn directed_a_write_that_the_disk_failed_does_not_come_back_after_the_mode_has_changed() {
    // Every other write that fails has happened.
    for reads in 1..3 {
        let mut world = opened(1, CacheMode::WriteThrough);
        done(&mut world, &[request(Op::Write, BLOCK, 8), flush()]);
        crash(&mut world, 0);
        world.finish();
        for _ in 0..reads {
            done(&mut world, &[request(Op::Read, BLOCK, 8)]);
        }
        world.submit(request(Op::Write, BLOCK, 8));
        end_all_but(&mut world, to_disk);
        end_one(&mut world, to_disk, Err(Fault::Io));
        end_all_but(&mut world, is_journal);
        world.submit(request(Op::Read, BLOCK, 8));
        end_all_but(&mut world, is_journal);
        world.change_mode();
        end_all_but(&mut world, is_journal);
        crash(&mut world, 0);
        holds(world, "a write that failed");
    }
}

/// The disk fails zeroes over a block that flash has as well. Both are possible from then on, but not one after the other.
#[test]
fn directed_zeroes_that_the_disk_failed_do_not_come_back_later() {
    for reads in 1..3 {
        let mut world = opened(1, CacheMode::WriteThrough);
        done(&mut world, &[request(Op::Write, BLOCK, 8)]);
        for _ in 0..reads {
            done(&mut world, &[request(Op::Read, BLOCK, 8)]);
        }
        world.submit(request(Op::WriteZeroes, BLOCK, 8));
        end_all_but(&mut world, to_disk);
        end_one(&mut world, to_disk, Err(Fault::Io));
        world.finish();
        done(&mut world, &[request(Op::Read, BLOCK, 8)]);
        world.detach();
        world.attach_again();
        holds(world, "zeroes that failed");
    }
}

/// The mode becomes write-through, and the disk fails something while the cache is cleaned. What a read has seen on flash is
/// not given up with the cache's dirty blocks.
#[test]
fn directed_what_the_disk_failed_during_cleaning_is_cleaned_as_well() {
    for op in [Op::Write, Op::WriteZeroes] {
        for reads in 0..2 {
            let mut world = opened(1, CacheMode::WriteBack);
            let other = request(Op::Write, BLOCK + 8, 8);
            done(&mut world, &[request(Op::Write, BLOCK, 8), other]);
            for _ in 0..reads {
                done(&mut world, &[request(Op::Read, BLOCK, 8)]);
            }
            world.change_mode();
            // Both blocks are on the disk, and not durable there.
            end_all_but(&mut world, is_flush);
            world.submit(request(op, BLOCK, 8));
            end_all_but(&mut world, |io| is_flush(io) || to_disk(io));
            end_one(&mut world, to_disk, Err(Fault::Io));
            end_all_but(&mut world, is_flush);
            world.submit(request(Op::Read, BLOCK, 8));
            end_all_but(&mut world, is_flush);
            for _ in 0..100 {
                world.finish();
                if world
                    .notices()
                    .contains(&LayoutNotice::CacheCleaned { left: 0 })
                {
                    break;
                }
                world.pass_time();
            }
            world.finish();
            world.detach();
            world.attach_again();
            holds(world, "a write that failed during cleaning");
        }
    }
}

/// The only device fails while zeroes wait for the cleaner, after they have given up what was clean. Meanwhile another block
/// has become clean, and cannot be given up any more.
#[test]
fn directed_zeroes_that_wait_for_the_cleaner_are_answered_after_the_last_device_has_failed() {
    let mut world = opened(1, CacheMode::WriteBack);
    // So that nothing is cleaned by itself.
    for _ in 0..2 {
        world.grow_cache();
        world.finish();
    }
    let [clean, dirty, other] = [240, 248, 300];
    done(&mut world, &[flush(), request(Op::Read, clean, 8)]);
    done(&mut world, &[request(Op::Write, dirty, 8)]);
    world.wait(1);
    world.order(LayoutOrder::CleanCache);
    end_all_but(&mut world, is_flush);
    world.submit(request(Op::Write, other, 8));
    end_all_but(&mut world, is_flush);
    world.submit(request(Op::WriteZeroes, clean, 24));
    end_all_but(&mut world, |io| is_flush(io) || is_journal(io));
    assert!((0..world.in_flight()).any(|which| is_journal(world.io(which))));
    world.order(LayoutOrder::CleanCache);
    end_all_but(&mut world, |io| {
        is_flush(io) || is_journal(io) || to_disk(io)
    });
    assert!((0..world.in_flight()).any(|which| to_disk(world.io(which))));
    // The zeroes wait for the other page, and the first one becomes clean.
    end_one(&mut world, is_journal, Ok(()));
    end_one(&mut world, is_flush, Ok(()));
    world.submit(request(Op::Read, other, 8));
    end_one(&mut world, op_is_read, Err(Fault::Gone));
    while world.effects() > 0 {
        world.perform();
    }
    assert!(matches!(
        world.notices().last(),
        Some(LayoutNotice::CacheLost { dirty: 1, .. })
    ));
    world.finish();
    world.verify(0..0, &mut RecordedChoices::new(&[]));
    assert_eq!(world.breach(), None);
}

/// The only device of a write-through cache fails while the cleaner writes to the disk. The cache is given up, and the disk is
/// detached before the cleaner has ended. What waits for that is not lost.
#[test]
fn directed_writes_do_not_fail_if_a_disk_is_detached_while_its_cache_is_given_up() {
    let mut world = opened(1, CacheMode::WriteThrough);
    done(&mut world, &[request(Op::Read, BLOCK, 8)]);
    done(&mut world, &[request(Op::Write, BLOCK + 1, 1)]);
    world.order(LayoutOrder::CleanCache);
    end_all_but(&mut world, to_disk);
    assert!((0..world.in_flight()).any(|which| to_disk(world.io(which))));
    world.submit(request(Op::Read, BLOCK, 8));
    end_one(&mut world, op_is_read, Err(Fault::Gone));
    end_all_but(&mut world, to_disk);
    world.submit(request(Op::Write, BLOCK, 8));
    world.detach();
    world.attach_again();
    holds(world, "a write beside a detachment");
}

/// The cache is given up, and a write that had begun with it writes a whole block to the disk. What overlaps that waits for it.
#[test]
fn directed_a_write_waits_for_one_that_was_rescued_from_a_lost_cache() {
    let mut world = opened(1, CacheMode::WriteThrough);
    done(&mut world, &[request(Op::Read, BLOCK, 16)]);
    world.wait(1);
    world.submit(request(Op::Write, BLOCK + 1, 1));
    end_all_but(&mut world, is_journal);
    // It is owed to the disk whole, and its record is not durable.
    world.order(LayoutOrder::CleanCache);
    world.submit(request(Op::Read, BLOCK + 8, 8));
    end_one(&mut world, op_is_read, Err(Fault::Gone));
    end_all_but(&mut world, |io| to_disk(io) || is_journal(io));
    assert!((0..world.in_flight()).any(|which| to_disk(world.io(which))));
    world.submit(request(Op::Write, BLOCK, 1));
    end_newest_first(&mut world);
    holds(world, "a write beside a rescued one");
}

/// The disk fails a write, and the last device fails before flash has given it up. What flash has is not known then, and may
/// be read after the next start.
#[test]
fn directed_what_a_lost_cache_could_not_give_up_is_not_read_from_the_disk() {
    // Every other write that fails has happened.
    for reads in 1..3 {
        let mut world = opened(1, CacheMode::WriteThrough);
        done(&mut world, &[request(Op::Write, BLOCK, 8), flush()]);
        crash(&mut world, 0);
        world.finish();
        for _ in 0..reads {
            done(&mut world, &[request(Op::Read, BLOCK, 16)]);
        }
        world.wait(1);
        world.submit(request(Op::Write, BLOCK, 8));
        end_all_but(&mut world, to_disk);
        end_one(&mut world, to_disk, Err(Fault::Io));
        end_all_but(&mut world, is_journal);
        // Flash may have what the disk does not, in another mode.
        world.change_mode();
        end_all_but(&mut world, is_journal);
        world.submit(request(Op::Read, BLOCK + 8, 8));
        end_one(&mut world, op_is_read, Err(Fault::Gone));
        end_all_but(&mut world, is_journal);
        world.submit(request(Op::Read, BLOCK, 8));
        end_all_but(&mut world, is_journal);
        assert_eq!(world.pending(), 0);
        crash(&mut world, 0);
        holds(world, "a write that was not given up");
    }
}
