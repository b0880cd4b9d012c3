//! Faults of the order in which things end: each test once lost data, answered with an error, or ended the daemon.

use super::warm_world;
use super::world::{DISK, Keeps, World};
use tidegate_core::effect::Effect;
use tidegate_core::layout::cache::policy::Params;
use tidegate_core::layout::cache::{CacheMode, PAGE};
use tidegate_core::layout::{CacheChange, LayoutOrder, Target};
use tidegate_core::request::{Fault, Op};
use tidegate_core::shard::Event;
use tidegate_core::units::Span;

fn order(world: &mut World, order: LayoutOrder) {
    world.handle(Event::LayoutOrder { disk: DISK, order });
}

#[test]
fn a_write_waits_for_the_copy_of_its_page_to_a_device_after_another_copy_has_ended() {
    let mode = CacheMode::WriteBack;
    let mut world = World::of_devices(16, Some(Params::LRU), mode, 2);
    for page in 0..6 {
        world.write(page * PAGE, PAGE);
    }
    order(&mut world, LayoutOrder::Drop(Target(2)));
    world.keeps = Keeps::FlashReads;
    order(&mut world, LayoutOrder::Replace(Target(2)));
    assert_eq!(world.kept.len(), 2, "two pages are read");
    let first = world.kept.remove(0);
    world.handle(first);
    let answered = world.answers.len();
    world.write(PAGE, 4096);
    assert_eq!(world.answers.len(), answered, "its page is being copied");
    world.flash_writes.clear();
    while !world.kept.is_empty() {
        let read = world.kept.remove(0);
        world.handle(read);
    }
    assert_eq!(world.answers.len(), answered + 1);
    let mut newest = world.flash_writes.iter().filter(|(device, _)| *device == 1);
    let place = newest.next_back().expect("the write went to both").1;
    let count = world.flash_writes.iter().filter(|at| **at == (2, place));
    assert_eq!(count.count(), 1, "no copy follows what was written");
}

#[test]
fn a_read_that_is_repeated_for_itself_is_not_overtaken_by_writes() {
    let mut world = World::of_mode(16, Some(Params::LRU), CacheMode::WriteBack);
    for page in 0..4 {
        world.write(page * PAGE, PAGE);
    }
    world.keeps = Keeps::FlashReads;
    world.answers.clear();
    world.read(PAGE, 4096);
    // The guest changes its memory twice: the read is repeated into a buffer.
    for _ in 0..2 {
        world.sum = 1;
        let read = world.kept.remove(0);
        world.handle(read);
        world.sum = 0;
    }
    // A write elsewhere ends. Then the block is written twice, which would come to the place that is read.
    world.write(3 * PAGE, 4096);
    assert_eq!(world.answers.len(), 1);
    world.write(PAGE, 4096);
    world.write(PAGE, 4096);
    assert_eq!(world.answers.len(), 1, "both wait for the read");
    let read = world.kept.remove(0);
    world.handle(read);
    assert_eq!(world.answers, [Ok(()); 4]);
    assert_eq!(world.corrupt, 0);
}

#[test]
fn a_held_disk_writes_no_journal() {
    let mut world = warm_world();
    world.pass(Span::from_secs(1));
    world.change(CacheChange::BeginMove);
    world.read(7 * PAGE, PAGE);
    world.handle(Event::Hold { disk: DISK });
    assert!(std::mem::take(&mut world.held), "nothing is in flight");
    // A record is due.
    world.keeps = Keeps::Blocks;
    world.pass(Span::from_millis(200));
    assert!(world.kept.is_empty());
    let change = CacheChange::EndMove;
    world.handle(Event::ChangeCache { disk: DISK, change });
    world.pass(Span::from_millis(200));
    assert_eq!(world.kept.len(), 1, "it is written afterwards");
}

#[test]
fn a_deadline_in_the_turn_that_holds_a_disk_begins_nothing() {
    let mut world = warm_world();
    world.pass(Span::from_secs(1));
    world.read(7 * PAGE, PAGE);
    let mut out = Vec::new();
    let hold = Event::Hold { disk: DISK };
    world.shard.handle(world.now, hold, &mut out);
    world.now = world.now + Span::from_millis(150);
    world.shard.handle(world.now, Event::Ticked, &mut out);
    assert!(matches!(out[..], [Effect::Held { .. }]), "{out:?}");
}

/// Runs with the stack of an I/O thread.
fn on_a_thread(run: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(run);
    thread.expect("a thread").join().expect("it ends");
}

#[test]
fn as_many_requests_as_a_ring_has_wait_for_one_block_and_fail_together() {
    on_a_thread(|| {
        let mut world = World::of_mode(16, Some(Params::LRU), CacheMode::WriteBack);
        for _ in 0..3 {
            world.write(0, PAGE);
        }
        (world.keeps, world.may_fail) = (Keeps::All, true);
        world.answers.clear();
        for _ in 0..32_768 {
            world.request(Op::WriteZeroes, 0, 512);
        }
        // Flash is read well. Then the disk fails what the cleaner writes.
        for _ in 0..4 {
            for event in std::mem::take(&mut world.kept) {
                let writes = world.last == Some(Op::Write);
                let event = match event {
                    Event::Finished { disk, io, .. } if writes => Event::Finished {
                        disk,
                        io,
                        outcome: Err(Fault::NoSpace),
                    },
                    other => other,
                };
                world.handle(event);
            }
        }
        assert_eq!(world.answers.len(), 32_768);
    });
}

#[test]
fn what_becomes_clean_while_zeroes_wait_for_the_journal_is_given_up_as_well() {
    let mut world = World::of_mode(16, Some(Params::LRU), CacheMode::WriteBack);
    for _ in 0..3 {
        world.write(0, PAGE);
    }
    order(&mut world, LayoutOrder::CleanCache);
    world.pass(Span::from_secs(2));
    assert_eq!(world.cache().dirty, 0);
    // One block is dirty, and the flush that makes it clean is under way.
    world.write(4096, 4096);
    world.keeps = Keeps::All;
    order(&mut world, LayoutOrder::CleanCache);
    while world.last != Some(Op::Flush) {
        let next = world.kept.remove(0);
        world.handle(next);
    }
    let flush = world.kept.remove(0);
    assert!(world.kept.is_empty());
    // Zeroes come past the cache: the clean block is given up, and that is recorded.
    world.keeps = Keeps::Blocks;
    let answered = world.answers.len();
    world.request(Op::WriteZeroes, 0, 8192);
    assert!(!world.kept.is_empty());
    world.handle(flush);
    while !world.kept.is_empty() {
        let next = world.kept.remove(0);
        world.handle(next);
    }
    assert_eq!(world.answers.len(), answered + 1);
    world.keeps = Keeps::Nothing;
    world.reads = [0, 0];
    world.read(4096, 4096);
    assert_eq!(world.reads, [1, 0], "the disk has what is newest");
}

#[test]
fn chunks_are_given_back_while_a_guest_reads_what_is_in_them_all_the_time() {
    let mut world = World::of_mode(16, Some(Params::LRU), CacheMode::WriteBack);
    (0..200).for_each(|page| world.write(page * PAGE, 4096));
    order(&mut world, LayoutOrder::CleanCache);
    world.pass(Span::from_secs(2));
    assert_eq!(world.cache().dirty, 0);
    // Of each page one read at least is always under way.
    world.keeps = Keeps::FlashReads;
    let read_all = |world: &mut World| (0..200).for_each(|page| world.read(page * PAGE, 4096));
    read_all(&mut world);
    assert!(world.kept.len() > 190, "{}", world.kept.len());
    order(&mut world, LayoutOrder::ShrinkCache { count: 4 });
    for _ in 0..20 {
        let before = std::mem::take(&mut world.kept);
        read_all(&mut world);
        before.into_iter().for_each(|event| world.handle(event));
        world.pass(Span::from_millis(100));
    }
    assert_eq!(world.shrunk, 4);
}

#[test]
fn chunks_are_given_back_while_a_guest_writes_what_is_in_them_all_the_time() {
    let mut world = World::of_mode(16, Some(Params::LRU), CacheMode::WriteBack);
    (0..200).for_each(|page| world.write(page * PAGE, 4096));
    // There is room for what leaves.
    (0..100).for_each(|page| world.request(Op::Discard, page * PAGE, PAGE));
    world.pass(Span::from_secs(1));
    let write_all = |world: &mut World| (170..200).for_each(|page| world.write(page * PAGE, 4096));
    world.keeps = Keeps::All;
    write_all(&mut world);
    order(&mut world, LayoutOrder::ShrinkCache { count: 4 });
    for _ in 0..200 {
        // What was written is written again before the disk has it durably.
        let before = std::mem::take(&mut world.kept);
        write_all(&mut world);
        before.into_iter().for_each(|event| world.handle(event));
        world.pass(Span::from_millis(100));
    }
    assert_eq!(world.shrunk, 4);
}
