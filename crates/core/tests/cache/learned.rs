//! The state of a cache's policy, in the next use of the disk.

use super::world::{DISK, World};
use tidegate_core::layout::cache::PAGE;
use tidegate_core::layout::cache::policy::{Exported, check_state};
use tidegate_core::request::Op;
use tidegate_core::units::Span;

const CHUNKS: u32 = 4;
/// Pages that are read in turn. Ghosts of all of them fit.
const PAGES: u64 = 12;
/// Groups of so many pages: more than the cache has slots.
const GROUPS: u64 = 6;

/// Reads so many pages from the first one on. The policy counts accesses of a page that are not in one moment.
fn round(world: &mut World, first: u64) {
    for page in 0..PAGES {
        // Not in order: long sequences do not enter.
        world.read((first + page * 7 % PAGES) * PAGE, PAGE);
    }
    world.request(Op::Flush, 0, 0);
    world.pass(Span::from_millis(200));
}

/// A cache that has evicted pages.
fn full() -> World {
    let mut world = World::new(CHUNKS, None);
    for nth in 0..3 * GROUPS {
        round(&mut world, nth / 3 * PAGES);
    }
    let cache = world.cache();
    assert!(cache.fills > cache.pages.into(), "it is full: {cache:?}");
    world
}

/// The state, in parts of so many bytes.
fn state(world: &World, most: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while world.shard.export_policy(DISK, most, &mut out) == Some(Exported::Part) {}
    out
}

#[test]
fn a_page_that_was_evicted_before_a_restart_enters_at_its_first_access_after_it() {
    let world = full();
    let learned = state(&world, usize::MAX);
    assert_eq!(state(&world, 64), learned, "in many parts");
    assert_eq!(check_state(&learned), Ok(()));

    let entered = |mut world: World| {
        for group in 0..GROUPS {
            round(&mut world, group * PAGES);
        }
        world.cache().fills
    };
    let after = entered(World::resumed(CHUNKS, &learned));
    assert!(after > PAGES, "{after} enter at once");
    assert_eq!(entered(World::new(CHUNKS, None)), 0);
}

#[test]
fn pages_that_were_nearly_worth_it_still_are_in_a_larger_cache_after_a_restart() {
    let mut world = World::new(CHUNKS, None);
    for page in 0..8 {
        world.read(page * PAGE, PAGE);
        world.pass(Span::from_millis(200));
        world.read(page * PAGE, PAGE);
    }
    assert_eq!(world.cache().fills, 0, "the third access counts");
    let mut after = World::resumed(3 * CHUNKS, &state(&world, 64));
    for page in 0..8 {
        after.read(page * PAGE, PAGE);
    }
    assert_eq!(after.cache().fills, 8);
}

#[test]
fn what_is_no_state_changes_nothing() {
    let learned = state(&full(), usize::MAX);
    let mut others = vec![
        vec![1],
        vec![0xff; 500],
        learned[..learned.len() - 1].to_vec(),
    ];
    for (place, byte) in [(0, 2), (28, 200)] {
        let mut other = learned.clone();
        other[place] = byte;
        others.push(other);
    }
    for other in others {
        assert!(check_state(&other).is_err());
        let mut after = World::resumed(CHUNKS, &other);
        round(&mut after, 0);
        assert_eq!(after.cache().fills, 0);
    }
    // A disk that was larger had other pages.
    let mut larger = learned;
    larger[20..28].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(check_state(&larger), Ok(()));
    let mut after = World::resumed(CHUNKS, &larger);
    round(&mut after, 0);
    assert_eq!(after.cache().fills, 0);
}

#[test]
fn the_state_is_due_every_few_minutes_of_use_and_never_of_an_idle_disk() {
    let mut world = World::new(CHUNKS, None);
    for _ in 0..3600 {
        world.read(0, PAGE);
        world.pass(Span::from_secs(1));
    }
    assert!((10..=12).contains(&world.due), "{} in an hour", world.due);
    let before = world.due;
    for _ in 0..3600 {
        world.pass(Span::from_secs(1));
    }
    assert_eq!(world.due, before);
}
