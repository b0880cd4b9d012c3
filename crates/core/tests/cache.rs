//! A flash cache at the shard: what a scan does to the pages that are used most.

use tidegate_core::block::BLOCK;
use tidegate_core::layout::cache::policy::Params;
use tidegate_core::layout::cache::{Admission, CacheMode, PAGE};
use tidegate_core::layout::{CacheChange, LayoutOrder};
use tidegate_core::shard::Event;
use tidegate_core::units::Span;
use world::{DISK, SIZE, World};

#[path = "cache/counters.rs"]
mod counters;
#[path = "cache/faults.rs"]
mod faults;
#[path = "cache/learned.rs"]
mod learned;
#[path = "cache/versions.rs"]
mod versions;
#[path = "cache/world.rs"]
mod world;

/// Reads one of the pages that are used most, the lower ones more often. Returns whether that came from flash.
fn read_hot(world: &mut World, random: &mut u64, pages: u64) -> bool {
    let mut next = || {
        *random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (*random >> 33) % pages
    };
    let page = next().min(next());
    let before = world.reads[1];
    world.read(page * PAGE, BLOCK as u64);
    world.reads[1] > before
}

/// The part of reads that came from flash, in ten thousandths.
fn hit_ratio(
    world: &mut World,
    random: &mut u64,
    pages: u64,
    mut between: impl FnMut(&mut World),
) -> u64 {
    const READS: u64 = 20_000;
    let mut hits = 0;
    for _ in 0..READS {
        hits += u64::from(read_hot(world, random, pages));
        between(world);
        world.pass(Span::from_millis(2));
    }
    hits * 10_000 / READS
}

#[test]
fn a_scan_of_the_whole_disk_costs_the_pages_in_use_at_most_a_point() {
    for policy in [None, Some(Params::S3_FIFO), Some(Params::LRU)] {
        // 61 chunks of pages: 976 of them, less than the pages in use.
        let mut world = World::new(62, policy);
        let mut random = 1;
        for _ in 0..2 {
            hit_ratio(&mut world, &mut random, 1200, |_| {});
        }
        let before = hit_ratio(&mut world, &mut random, 1200, |_| {});
        let mut at = 1200 * PAGE;
        let during = hit_ratio(&mut world, &mut random, 1200, |world| {
            if at < SIZE {
                world.read(at, 2 * PAGE);
                at += 2 * PAGE;
            }
        });
        assert!(before > 6_000, "{policy:?}: {before}");
        assert!(
            during + 100 >= before,
            "{policy:?}: {during} after {before}"
        );
        assert!(at >= SIZE, "the whole disk was read");
    }
}

#[test]
fn the_rest_of_a_page_is_read_once_the_policy_wants_it() {
    let mut world = World::new(8, Some(Params::S3_FIFO.filling(3)));
    for block in 0..2 {
        world.read(block * BLOCK as u64, BLOCK as u64);
    }
    assert_eq!((world.reads[0], world.cache().fills), (2, 2));
    world.read(5 * BLOCK as u64, BLOCK as u64);
    assert_eq!(
        (world.reads[0], world.cache().fills),
        (4, 4),
        "and the rest"
    );
    let before = world.reads;
    world.read(0, PAGE);
    assert_eq!(world.reads, [before[0], before[1] + 1], "one read of flash");
}

impl World {
    /// Changes what is below the cache, while the disk is held.
    fn change(&mut self, change: CacheChange) {
        self.handle(Event::Hold { disk: DISK });
        assert!(std::mem::take(&mut self.held), "nothing is in flight");
        let disk = DISK;
        self.handle(Event::ChangeCache { disk, change });
    }

    /// The targets that have been written since this was asked last.
    fn written(&mut self) -> Vec<u8> {
        self.write(0, 4096);
        std::mem::take(&mut self.writes).into_iter().collect()
    }
}

#[test]
fn flash_follows_the_members_of_a_disk_that_moves() {
    let mut world = World::new(8, Some(Params::LRU));
    while world.cache().hits == 0 {
        world.read(0, 4096);
        world.pass(Span::from_millis(2));
    }
    world.writes.clear();
    assert_eq!(world.written(), [0, 1], "the disk, and flash");
    world.change(CacheChange::BeginMove);
    world.writes.clear();
    assert_eq!(world.written(), [0, 1, 2], "both images, and flash");
    world.change(CacheChange::EndMove);
    world.writes.clear();
    assert_eq!(world.written(), [0, 1]);
}

/// A world whose first pages are on flash.
fn warm_world() -> World {
    let mut world = World::new(16, Some(Params::LRU));
    for page in [3, 1, 2, 0] {
        world.read(page * PAGE, PAGE);
    }
    world.reads = [0, 0];
    world
}

#[test]
fn a_read_that_one_run_of_blocks_on_flash_has_is_read_once_and_checked() {
    let mut world = warm_world();
    let blocks = BLOCK as u64;
    for (offset, len) in [(0, blocks), (PAGE + blocks, 3 * blocks), (2 * PAGE, PAGE)] {
        world.read(offset, len);
    }
    assert_eq!((world.reads, world.cache().hits), ([0, 3], 3));
    // Two pages, and a part of a block, are read in pieces.
    world.read(PAGE - blocks, 2 * blocks);
    world.read(512, 512);
    assert_eq!((world.reads, world.cache().hits), ([0, 6], 6));
}

#[test]
fn a_hit_that_is_not_as_it_was_written_comes_from_the_disk() {
    let mut world = warm_world();
    world.sum = 1;
    world.read(PAGE, 2 * BLOCK as u64);
    // Before that it is read with its range locked, and then into memory that no guest can change.
    assert_eq!(world.reads, [1, 3]);
    world.sum = 0;
    world.read(PAGE, 2 * BLOCK as u64);
    assert_eq!(world.reads[0], 2, "flash has these blocks no more");
    world.read(PAGE + 2 * BLOCK as u64, BLOCK as u64);
    assert_eq!(world.reads[0], 2, "it has the others");
}

#[test]
fn a_hit_that_its_device_fails_comes_from_the_disk() {
    let mut world = warm_world();
    world.flash_fails = true;
    world.read(2 * PAGE, BLOCK as u64);
    assert_eq!(world.reads[0], 1);
    assert_eq!(world.cache().read_faults, 2);
}

#[test]
fn a_page_that_is_written_again_and_again_is_as_old_as_what_the_disk_lacks() {
    let mut world = World::new(8, Some(Params::LRU));
    while world.cache().hits == 0 {
        world.read(0, PAGE);
        world.pass(Span::from_millis(2));
    }
    let order = LayoutOrder::CacheMode(CacheMode::WriteBack);
    world.handle(Event::LayoutOrder { disk: DISK, order });
    world.pass(Span::from_secs(2));
    assert_eq!(world.cache().dirty_since, None);
    world.write(0, 4096);
    let begun = world.now;
    assert_eq!(world.cache().dirty_since, Some(begun));
    // A guest that is never quiet: cleaned once in two minutes.
    for _ in 0..2000 {
        world.pass(Span::from_millis(200));
        world.write(0, 4096);
        let age = world
            .now
            .since(world.cache().dirty_since.expect("it is dirty"));
        assert!(age <= Span::from_secs(121), "{age}");
    }
    assert!(world.now.since(begun) > Span::from_secs(390));
    world.pass(Span::from_secs(2));
    assert_eq!(world.cache().dirty_since, None, "it was quiet");
    assert_eq!(world.cache().time_to_clean, Some(Span::ZERO));
}

#[test]
fn pages_that_are_written_again_and_again_share_flash_that_has_room_for_each_once() {
    // Seven chunks of pages: 112.
    let mut world = World::of_mode(8, Some(Params::LRU), CacheMode::WriteBack);
    const PAGES: u64 = 70;
    for round in 0..6 {
        for page in 0..PAGES {
            world.write(page * PAGE + round % 3 * 4096, 4096);
            world.pass(Span::from_millis(2));
        }
    }
    world.reads = [0, 0];
    for page in 0..PAGES {
        world.read(page * PAGE, 3 * 4096);
    }
    assert_eq!(world.reads[0], 0, "no block went past the cache");
}

impl World {
    fn admit(&mut self, admission: Admission) {
        let order = LayoutOrder::CacheAdmission(admission);
        self.handle(Event::LayoutOrder { disk: DISK, order });
    }

    /// Where a page is read from.
    fn reads_from_flash(&mut self, page: u64) -> bool {
        let before = self.reads[1];
        self.read(page * PAGE, BLOCK as u64);
        self.reads[1] > before
    }
}

#[test]
fn a_write_past_the_cache_gives_up_what_it_has_and_a_read_brings_it_in_again() {
    let mut world = warm_world();
    world.admit(Admission::Reads);
    assert!(world.reads_from_flash(2));
    for mode in [CacheMode::WriteThrough, CacheMode::WriteBack] {
        let order = LayoutOrder::CacheMode(mode);
        world.handle(Event::LayoutOrder { disk: DISK, order });
        world.writes.clear();
        assert_eq!(world.written(), [0], "flash is not written");
        assert!(!world.reads_from_flash(0), "{mode:?}");
        assert!(world.reads_from_flash(0), "it was brought in again");
    }
    world.write(9 * PAGE, PAGE);
    assert!(!world.reads_from_flash(9));
}

#[test]
fn a_cache_that_nothing_may_enter_answers_reads_of_what_it_has() {
    let mut world = warm_world();
    world.admit(Admission::Nothing);
    // What was brought in becomes clean, and that is recorded.
    for _ in 0..3 {
        world.pass(Span::from_secs(10));
    }
    let before = world.cache().flash_bytes;
    for _ in 0..3 {
        assert!(!world.reads_from_flash(9));
        assert!(world.reads_from_flash(2));
        world.pass(Span::from_secs(10));
    }
    assert_eq!(world.cache().flash_bytes, before);
    world.write(2 * PAGE, PAGE);
    assert!(!world.reads_from_flash(2));
    world.admit(Admission::All);
    world.reads_from_flash(9);
    assert!(world.reads_from_flash(9));
}
