//! The flash cache through crashes: short workloads in every order, and random runs, in each mode and on one or two devices.

use tidegate_core::filter::FilterSpec;
use tidegate_core::layout::cache::CacheMode;
use tidegate_core::layout::cache::blocks::Header;
use tidegate_core::layout::{LayoutNotice, LayoutOrder, Refusal, Target};
use tidegate_core::request::{Fault, Flags, Op};
use tidegate_sim::crash::choice::RecordedChoices;
use tidegate_sim::crash::explore::{Depth, explore, requests};
use tidegate_sim::crash::seeds;
use tidegate_sim::crash::store::Defects;
use tidegate_sim::crash::world::{Formatted, GuestRequest, Setup, Shape, World};

/// Sectors of the disk: five pages and a part of a block.
const SECTORS: u64 = 5 * 128 + 3;
/// Where a page ends.
const EDGE: u64 = 128;

fn cached(devices: u8, mode: CacheMode) -> Setup {
    Setup {
        shape: Shape::Cached { devices, mode },
        sectors: SECTORS,
        filters: vec![FilterSpec::Stats],
        defects: Defects::default(),
    }
}

fn each_kind() -> impl Iterator<Item = Setup> {
    let modes = [CacheMode::WriteThrough, CacheMode::WriteBack];
    modes
        .into_iter()
        .flat_map(|mode| [1, 2].map(|devices| cached(devices, mode)))
}

#[test]
fn random_runs_of_a_cached_disk_hold() {
    for seed in 0..40 {
        for setup in each_kind() {
            if let Err(failure) = seeds::run(&setup, seed, 500) {
                let trace = failure.trace.join("\n");
                panic!("{:?}, seed {seed}: {}\n{trace}", setup.shape, failure.what);
            }
        }
    }
}

#[test]
fn short_workloads_of_a_cached_disk_hold_in_every_order() {
    let depth = Depth {
        longest: 2,
        faults: true,
        runs: 60,
    };
    for setup in each_kind() {
        let found = explore(&setup, &requests(EDGE - 1), depth);
        if let Some(failure) = found.failure {
            let trace = failure.trace.join("\n");
            panic!("{:?}: {}\n{trace}", setup.shape, failure.what);
        }
        assert_eq!(found.workloads, 56);
    }
}

/// A block in the middle of a page.
const BLOCK: u64 = 136;

fn request(op: Op, sector: u64, sectors: u64) -> GuestRequest {
    GuestRequest {
        op,
        flags: Flags::NONE,
        sector,
        sectors,
    }
}

fn opened(devices: u8, mode: CacheMode) -> World {
    let mut world = Formatted::new(&cached(devices, mode)).world();
    world.finish();
    world
}

fn done(world: &mut World, requests: &[GuestRequest]) {
    for request in requests {
        world.submit(*request);
        world.finish();
    }
}

fn flush() -> GuestRequest {
    request(Op::Flush, 0, 0)
}

/// A crash after which only this target is away, if one is, and of what was volatile there is nothing left.
fn crash(world: &mut World, away: u32) {
    let mut choices = vec![away];
    choices.extend([1; 200]);
    world.crash(&mut RecordedChoices::new(&choices));
}

/// Reads the block twice, crashes once more and reads it again.
fn holds(mut world: World, what: &str) {
    let choices = &mut RecordedChoices::new(&[]);
    world.verify(BLOCK..BLOCK + 8, choices);
    world.crash_again(choices);
    world.verify(BLOCK..BLOCK + 8, choices);
    assert_eq!(world.breach(), None, "{what}");
}

#[test]
fn directed_a_dirty_block_is_given_up_only_after_the_disk_has_what_replaces_it() {
    let write = request(Op::Write, BLOCK, 8);
    for op in [Op::WriteZeroes, Op::Discard] {
        let mut world = opened(1, CacheMode::WriteBack);
        done(&mut world, &[write]);
        world.order(LayoutOrder::CleanCache);
        world.finish();
        // The disk has the first write, and only flash the second one.
        done(&mut world, &[write, flush(), request(op, BLOCK, 8)]);
        crash(&mut world, 0);
        holds(world, "zeroes over a dirty block");
    }
}

#[test]
fn directed_a_device_that_was_left_behind_is_not_served_alone() {
    for mode in [CacheMode::WriteThrough, CacheMode::WriteBack] {
        let mut world = opened(2, mode);
        let write = request(Op::Write, BLOCK, 8);
        done(&mut world, &[write, flush(), request(Op::Read, BLOCK, 8)]);
        // What was read is recorded.
        world.wait(1);
        world.submit(write);
        loop {
            while world.effects() > 0 {
                world.perform();
            }
            let second = (0..world.in_flight()).find(|which| world.io(*which).0 == 2);
            match second {
                // It fails its first I/O, and is left behind.
                Some(which) => break world.complete(which, Err(Fault::Gone)),
                None => world.complete(0, Ok(())),
            }
        }
        world.finish();
        done(&mut world, &[flush()]);
        // The first device is away, and the second one is back.
        crash(&mut world, 2);
        world.finish();
        if mode == CacheMode::WriteBack {
            assert_eq!(world.opened(), Some(Err(Refusal::Missing(Target(1)))));
        }
        holds(world, "a device that was left behind");
    }
}

#[test]
fn directed_a_block_that_decays_on_flash_is_not_served() {
    for (devices, mode) in [(1, CacheMode::WriteThrough), (2, CacheMode::WriteBack)] {
        let mut world = opened(devices, mode);
        done(&mut world, &[request(Op::Write, BLOCK, 8), flush()]);
        done(&mut world, &[request(Op::Read, BLOCK, 8)]);
        // All of the first device but its journal.
        for sector in 256..768 {
            world.damage(1, sector);
        }
        // Parts of blocks: the rest of them is read from flash.
        for block in 0..4 {
            done(&mut world, &[request(Op::Write, BLOCK + 8 * block + 1, 1)]);
        }
        holds(world, "decayed blocks of one device");
    }
}

#[test]
fn directed_a_block_that_decays_on_flash_does_not_come_to_the_disk() {
    let mut world = opened(2, CacheMode::WriteBack);
    for block in 0..4 {
        done(&mut world, &[request(Op::Write, BLOCK + 8 * block, 8)]);
    }
    for sector in 256..768 {
        world.damage(1, sector);
    }
    world.change_mode();
    world.finish();
    assert!(
        world
            .notices()
            .contains(&LayoutNotice::CacheCleaned { left: 0 })
    );
    // Without one of its devices the cache begins anew: the disk alone has the blocks.
    crash(&mut world, 2);
    let choices = &mut RecordedChoices::new(&[]);
    world.verify(BLOCK..BLOCK + 32, choices);
    assert_eq!(world.breach(), None);
}

/// Ends whatever does not match, newest first, and leaves what does under way.
fn end_all_but(world: &mut World, held: impl Fn((usize, Op, u64)) -> bool) {
    for _ in 0..1000 {
        while world.effects() > 0 {
            world.perform();
        }
        match (0..world.in_flight()).rfind(|which| !held(world.io(*which))) {
            Some(which) => world.complete(which, Ok(())),
            None => return,
        }
    }
    panic!("it ends");
}

/// Where a device's headers and journal are.
const JOURNAL: u64 = 3 * 128 * 1024;

fn is_journal((target, op, offset): (usize, Op, u64)) -> bool {
    target > 0 && op == Op::Write && offset >= JOURNAL + 2 * 4096
}

fn is_header((target, op, offset): (usize, Op, u64)) -> bool {
    target > 0 && op == Op::Write && (JOURNAL..JOURNAL + 2 * 4096).contains(&offset)
}

#[test]
fn directed_a_page_that_leaves_is_not_written_past_the_cache_before_that_is_durable() {
    let mut world = opened(1, CacheMode::WriteThrough);
    done(&mut world, &[request(Op::Write, BLOCK, 8), flush()]);
    // The first of these pages leaves when the last one comes.
    for page in [1, 0, 2, 3] {
        done(&mut world, &[request(Op::Read, page * 128 + 8, 8)]);
        world.wait(1);
    }
    world.submit(request(Op::Read, 4 * 128 + 8, 8));
    end_all_but(&mut world, is_journal);
    world.submit(request(Op::Write, BLOCK, 8));
    end_all_but(&mut world, is_journal);
    world.submit(flush());
    end_all_but(&mut world, is_journal);
    crash(&mut world, 0);
    holds(world, "a page that was leaving");
}

#[test]
fn directed_zeroes_wait_for_the_cleaner() {
    let mut world = opened(1, CacheMode::WriteBack);
    done(&mut world, &[request(Op::Write, BLOCK, 8)]);
    let to_disk = |(target, op, _): (usize, Op, u64)| target == 0 && op == Op::Write;
    world.order(LayoutOrder::CleanCache);
    end_all_but(&mut world, to_disk);
    assert!((0..world.in_flight()).any(|which| to_disk(world.io(which))));
    world.submit(request(Op::WriteZeroes, BLOCK, 8));
    end_all_but(&mut world, to_disk);
    world.finish();
    holds(world, "zeroes beside the cleaner");
}

#[test]
fn directed_no_write_is_answered_before_the_loss_of_a_device_is_recorded() {
    let mut world = opened(2, CacheMode::WriteBack);
    done(&mut world, &[request(Op::Write, BLOCK, 8), flush()]);
    world.submit(request(Op::Write, BLOCK, 8));
    loop {
        while world.effects() > 0 {
            world.perform();
        }
        let second = (0..world.in_flight()).find(|which| world.io(*which).0 == 2);
        match second {
            Some(which) => break world.complete(which, Err(Fault::Gone)),
            None => world.complete(0, Ok(())),
        }
    }
    end_all_but(&mut world, is_header);
    assert_eq!(world.pending(), 1, "its answer waits for the header");
    crash(&mut world, 0);
    holds(world, "a write beside a header");
}

#[test]
fn directed_an_older_header_does_not_hide_what_the_newest_one_had() {
    let mut world = opened(1, CacheMode::WriteBack);
    for round in 0..80 {
        done(
            &mut world,
            &[request(Op::Write, BLOCK + 8 * (round % 4), 8)],
        );
    }
    let generation = |at: u64| {
        let mut block = [0; 4096];
        world.copy_of(1).read(at, &mut block);
        Header::decode(&block).map_or(0, |header| header.generation)
    };
    let places = [JOURNAL, JOURNAL + 4096];
    let decays = places.into_iter().max_by_key(|at| generation(*at));
    let decays = decays.expect("there are two places");
    world.damage(1, decays / 512);
    crash(&mut world, 0);
    holds(world, "an older header");
}

#[test]
fn directed_the_last_block_of_the_journal_is_brought_to_every_device() {
    let mut world = opened(2, CacheMode::WriteBack);
    world.submit(request(Op::Write, BLOCK, 8));
    // The journal's block comes to the first device only.
    loop {
        while world.effects() > 0 {
            world.perform();
        }
        let journal = |which: &usize| {
            let (target, op, offset) = world.io(*which);
            target == 2 && op == Op::Write && offset >= 3 * 128 * 1024
        };
        let late = (0..world.in_flight()).find(journal);
        let other = (0..world.in_flight()).find(|which| Some(*which) != late);
        match other {
            Some(which) => world.complete(which, Ok(())),
            None => break,
        }
    }
    crash(&mut world, 0);
    world.finish();
    // What follows is on both, and then the first device is lost for good.
    done(&mut world, &[request(Op::Write, BLOCK + 8, 8), flush()]);
    crash(&mut world, 2);
    world.do_without(1);
    world.crash_again(&mut RecordedChoices::new(&[]));
    world.finish();
    assert_eq!(world.opened(), Some(Ok(())));
    let choices = &mut RecordedChoices::new(&[]);
    world.verify(BLOCK..BLOCK + 16, choices);
    assert_eq!(world.breach(), None);
}

#[test]
fn directed_the_ring_is_not_overwritten_before_its_header_is_durable() {
    let mut world = opened(1, CacheMode::WriteBack);
    let header = 3 * 128 * 1024..3 * 128 * 1024 + 2 * 4096;
    for round in 0..60 {
        if world.pending() == 0 {
            world.submit(request(Op::Write, BLOCK + 8 * (round % 4), 8));
        }
        loop {
            while world.effects() > 0 {
                world.perform();
            }
            // Headers stay under way.
            let other = |which: &usize| {
                let (target, op, offset) = world.io(*which);
                target != 1 || op != Op::Write || !header.contains(&offset)
            };
            match (0..world.in_flight()).find(other) {
                Some(which) => world.complete(which, Ok(())),
                None => break,
            }
        }
    }
    assert!(world.pending() > 0, "the journal is full, and waits");
    crash(&mut world, 0);
    holds(world, "a full journal");
}

#[test]
fn directed_a_cleaner_does_not_bring_older_bytes_to_the_disk_after_newer_ones() {
    let mut world = opened(1, CacheMode::WriteThrough);
    done(&mut world, &[request(Op::Read, BLOCK, 8)]);
    // A part of a block: the disk may lack the rest, so the cleaner writes it.
    done(&mut world, &[request(Op::Write, BLOCK + 1, 1)]);
    world.pass_time();
    world.pass_time();
    let mut held = None;
    for _ in 0..100 {
        while world.effects() > 0 {
            world.perform();
        }
        let to_disk = |which: &usize| {
            let (target, op, _) = world.io(*which);
            target == 0 && op == Op::Write
        };
        held = (0..world.in_flight()).find(to_disk);
        if held.is_some() || world.in_flight() == 0 {
            break;
        }
        world.complete(0, Ok(()));
    }
    assert!(held.is_some(), "the cleaner writes the block");
    world.submit(request(Op::Write, BLOCK, 8));
    // The newest I/Os end first.
    while world.effects() > 0 || world.in_flight() > 0 {
        match world.in_flight() {
            _ if world.effects() > 0 => world.perform(),
            count => world.complete(count - 1, Ok(())),
        }
    }
    done(&mut world, &[flush()]);
    // The cache is gone: the disk alone has it.
    crash(&mut world, 2);
    holds(world, "the disk under a cleaner");
}
