//! A cache's counters: bytes written to flash, and blocks that are not as they were written.

use super::warm_world;
use super::world::{DISK, World};
use tidegate_core::layout::cache::policy::Params;
use tidegate_core::layout::cache::{Admission, CACHE_BLOCK, CacheMode, PAGE};
use tidegate_core::layout::{CacheReport, LayoutOrder, Target};
use tidegate_core::request::{Fault, Outcome};
use tidegate_core::shard::Event;
use tidegate_core::units::Span;

fn order(world: &mut World, order: LayoutOrder) {
    world.handle(Event::LayoutOrder { disk: DISK, order });
}

/// Bytes of pages that were written to flash.
fn data(report: CacheReport) -> u64 {
    report.flash_bytes - report.journal_bytes
}

#[test]
fn bytes_of_pages_are_counted_apart_from_those_of_records() {
    let mut world = World::of_mode(16, Some(Params::LRU), CacheMode::WriteBack);
    let begun = world.cache();
    assert_eq!(data(begun), 0);
    for page in 0..4 {
        world.write(page * PAGE, PAGE);
    }
    let written = world.cache();
    assert_eq!(data(written), 4 * PAGE);
    let records = (written.journal_bytes - begun.journal_bytes) / CACHE_BLOCK;
    assert!((1..=4).contains(&records), "{records}");
    // Pages that are given up are recorded, and nothing enters flash.
    world.admit(Admission::Nothing);
    for page in 0..4 {
        world.write(page * PAGE, PAGE);
        world.read(page * PAGE, PAGE);
    }
    world.pass(Span::from_secs(10));
    let after = world.cache();
    assert_eq!(data(after), data(written));
    assert!(after.journal_bytes > written.journal_bytes);
}

#[test]
fn what_is_copied_to_a_device_that_is_back_counts_as_written() {
    let mut world = World::of_devices(16, Some(Params::LRU), CacheMode::WriteBack, 2);
    for page in 0..6 {
        world.write(page * PAGE, PAGE);
    }
    assert_eq!(data(world.cache()), 2 * 6 * PAGE, "on both devices");
    order(&mut world, LayoutOrder::Drop(Target(2)));
    order(&mut world, LayoutOrder::Replace(Target(2)));
    world.pass(Span::from_secs(1));
    assert_eq!(world.cache().devices, 0b11);
    assert_eq!(data(world.cache()), 3 * 6 * PAGE);
}

/// Reads a block whose checksum does not fit.
fn read_corrupt(world: &mut World, page: u64) -> Outcome {
    world.sum = 1;
    world.read(page * PAGE, CACHE_BLOCK);
    world.sum = 0;
    world.answers.pop().expect("it was answered")
}

#[test]
fn a_block_that_does_not_fit_is_counted_once_and_comes_from_the_disk() {
    let mut world = warm_world();
    assert_eq!(read_corrupt(&mut world, 1), Ok(()));
    assert_eq!((world.cache().corrupt_blocks, world.corrupt), (1, 0));
    assert_eq!(read_corrupt(&mut world, 1), Ok(()), "flash has it no more");
    assert_eq!(world.cache().corrupt_blocks, 1);
}

#[test]
fn each_read_of_what_is_corrupt_on_flash_only_counts_and_one_in_a_minute_is_reported() {
    let mut world = World::of_devices(16, Some(Params::LRU), CacheMode::WriteBack, 2);
    world.may_fail = true;
    for page in 0..4 {
        world.write(page * PAGE, PAGE);
    }
    for nth in 1..=50 {
        assert_eq!(read_corrupt(&mut world, nth % 4), Err(Fault::Io));
        assert_eq!(world.cache().corrupt_blocks, 2 * nth, "on both devices");
        assert_eq!(world.corrupt, 1);
    }
    world.now = world.now + Span::from_secs(60);
    for _ in 0..2 {
        assert_eq!(read_corrupt(&mut world, 0), Err(Fault::Io));
    }
    assert_eq!(world.corrupt, 2);
}

#[test]
fn dirty_pages_that_no_device_returns_as_written_are_counted_until_they_are_written_again() {
    let mut world = World::of_devices(16, Some(Params::LRU), CacheMode::WriteBack, 2);
    world.may_fail = true;
    // There is a pace of cleaning.
    world.write(8 * PAGE, PAGE);
    world.pass(Span::from_secs(3));
    assert_eq!(world.cache().time_to_clean, Some(Span::ZERO));
    for page in 0..4 {
        world.write(page * PAGE, PAGE);
    }
    assert_eq!(world.cache().unreadable, 0, "nothing was read yet");
    world.sum = 1;
    order(&mut world, LayoutOrder::CleanCache);
    let report = world.cache();
    assert_eq!((report.dirty, report.unreadable), (4, 4));
    assert_eq!(report.time_to_clean, None);
    world.sum = 0;
    world.write(0, PAGE);
    assert_eq!(world.cache().unreadable, 3);
    for page in 1..4 {
        world.write(page * PAGE, PAGE);
    }
    world.pass(Span::from_secs(3));
    let report = world.cache();
    assert_eq!((report.dirty, report.unreadable), (0, 0));
    assert!(report.time_to_clean.is_some());
}

/// A guest that never flushes causes no more work once it has been idle for a while: nothing wakes its thread.
#[test]
fn an_idle_cache_whose_guest_never_flushed_has_no_deadline() {
    for mode in [CacheMode::WriteThrough, CacheMode::WriteBack] {
        let mut world = World::of_mode(4, Some(Params::LRU), mode);
        for page in 0..8 {
            world.read(page * 7 % 8 * PAGE, PAGE);
        }
        assert!(world.cache().fills > 0);
        world.write(0, PAGE);
        let mut ticks = 0;
        let end = world.now + Span::from_secs(600);
        while let Some((at, _)) = world.shard.deadline()
            && at <= end
        {
            world.now = world.now.max(at);
            world.handle(Event::Ticked);
            ticks += 1;
        }
        assert!(ticks < 20, "{mode:?}: {ticks} ticks, {:?}", world.cache());
        assert_eq!(world.cache().dirty, 0, "{mode:?}");
    }
}
