//! The flash cache through crashes: short workloads in every order, and random runs, in each mode and on one or two devices.

use tidegate_core::filter::FilterSpec;
use tidegate_core::layout::cache::blocks::Header;
use tidegate_core::layout::cache::{Admission, CacheMode};
use tidegate_core::layout::{LayoutNotice, LayoutOrder, Refusal, Target};
use tidegate_core::request::{Fault, Flags, Op};
use tidegate_sim::crash::choice::RecordedChoices;
use tidegate_sim::crash::explore::{Act, Depth, explore, fail_each, requests};
use tidegate_sim::crash::seeds;
use tidegate_sim::crash::store::Defects;
use tidegate_sim::crash::world::{
    Failing, FlashDevices, Formatted, GuestRequest, Load, Over, Setup, Shape, World,
};

#[path = "cache/devices.rs"]
mod devices;
#[path = "cache/failures.rs"]
mod failures;
#[path = "cache/rules.rs"]
mod rules;

/// Sectors of the disk: five pages and a part of a block.
const SECTORS: u64 = 5 * 128 + 3;
/// Where a page ends.
const EDGE: u64 = 128;

fn cached(devices: u8, mode: CacheMode) -> Setup {
    Setup {
        shape: Shape::Cached {
            over: Over::Plain,
            devices,
            mode,
        },
        sectors: SECTORS,
        filters: vec![FilterSpec::Stats],
        defects: Defects::default(),
        devices: FlashDevices::Stay,
        load: Load::Short,
    }
}

fn each_kind() -> impl Iterator<Item = Setup> {
    let modes = [CacheMode::WriteThrough, CacheMode::WriteBack];
    modes
        .into_iter()
        .flat_map(|mode| [1, 2].map(|devices| cached(devices, mode)))
}

/// The same over more than one image.
fn each_over() -> impl Iterator<Item = Setup> {
    let kinds = [(1, CacheMode::WriteThrough), (2, CacheMode::WriteBack)];
    [Over::Stripe, Over::Mirror]
        .into_iter()
        .flat_map(move |over| {
            kinds.map(|(devices, mode)| Setup {
                shape: Shape::Cached {
                    over,
                    devices,
                    mode,
                },
                sectors: 5 * 128,
                ..cached(devices, mode)
            })
        })
}

#[test]
fn random_runs_of_a_cached_disk_hold() {
    for seed in 0..40 {
        for setup in each_kind().chain(each_over().filter(|_| seed < 20)) {
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

/// What an administrator does to a cache, and time.
fn acts() -> [Act; 11] {
    [
        Act::ChangeMode,
        Act::Order(LayoutOrder::CleanCache),
        Act::Order(LayoutOrder::Drop(Target(2))),
        Act::Order(LayoutOrder::Rebuild(Target(2))),
        Act::Order(LayoutOrder::Replace(Target(1))),
        Act::Order(LayoutOrder::CacheAdmission(Admission::Reads)),
        Act::GrowCache,
        Act::ShrinkCache,
        Act::Resize,
        Act::Detach,
        Act::Wait,
    ]
}

#[test]
fn a_cached_disk_keeps_its_promises_in_sampled_runs_of_three_acts() {
    let depth = Depth {
        longest: 3,
        faults: true,
        runs: 1,
    };
    let all: Vec<Act> = requests(EDGE - 1).into_iter().chain(acts()).collect();
    for (devices, mode) in [(1, CacheMode::WriteThrough), (2, CacheMode::WriteBack)] {
        let found = explore(&cached(devices, mode), &all, depth);
        if let Some(failure) = found.failure {
            let trace = failure.trace.join("\n");
            panic!("{mode:?}: {}\n{trace}", failure.what);
        }
        assert_eq!(found.workloads, 18 + 18 * 18 + 18 * 18 * 18);
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

/// Ends everything, the newest I/Os first.
fn end_newest_first(world: &mut World) {
    while world.effects() > 0 || world.in_flight() > 0 {
        match world.in_flight() {
            _ if world.effects() > 0 => world.perform(),
            count => world.complete(count - 1, Ok(())),
        }
    }
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
    end_newest_first(&mut world);
    done(&mut world, &[flush()]);
    // The cache is gone: the disk alone has it.
    crash(&mut world, 2);
    holds(world, "the disk under a cleaner");
}

/// A disk that ends within a block grows. What is beyond its old end is zeroes, also in the block that the end cut.
#[test]
fn directed_a_block_that_the_end_cut_has_zeroes_behind_it_after_the_disk_grew() {
    let end = SECTORS / 8 * 8;
    for mode in [CacheMode::WriteThrough, CacheMode::WriteBack] {
        for op in [Op::Write, Op::Read] {
            let mut world = opened(2, mode);
            done(&mut world, &[request(op, end - 8, 8)]);
            done(
                &mut world,
                &[request(op, end, 3), request(Op::Read, end, 3)],
            );
            world.resize(SECTORS + 200);
            let choices = &mut RecordedChoices::new(&[]);
            world.verify(end..SECTORS + 200, choices);
            done(&mut world, &[request(Op::Write, end + 5, 100)]);
            world.crash_again(choices);
            world.verify(0..SECTORS + 200, choices);
            assert_eq!(world.breach(), None, "{mode:?}, {op:?}");
        }
    }
}

/// What flash alone has is there after the disk grew and the host crashed.
#[test]
fn directed_dirty_blocks_survive_the_growth_of_their_disk() {
    let mut world = opened(1, CacheMode::WriteBack);
    done(&mut world, &[request(Op::Write, BLOCK, 8)]);
    world.resize(SECTORS + 200);
    // The header has the old size.
    crash(&mut world, 0);
    holds(world, "before the header says so");
}

fn act(op: Op, sector: u64, sectors: u64) -> Act {
    Act::Guest(request(op, sector, sectors))
}

#[test]
fn whichever_io_of_an_act_fails_a_cached_disk_keeps_its_promises() {
    let write = act(Op::Write, BLOCK, 8);
    let lines: [&[Act]; 4] = [
        &[
            write,
            act(Op::Read, BLOCK - 2, 12),
            act(Op::Flush, 0, 0),
            write,
        ],
        &[
            write,
            Act::Order(LayoutOrder::CleanCache),
            write,
            Act::ChangeMode,
            write,
        ],
        &[
            write,
            Act::GrowCache,
            write,
            act(Op::Discard, BLOCK, 4),
            Act::ShrinkCache,
            write,
        ],
        &[
            write,
            Act::Detach,
            act(Op::WriteZeroes, BLOCK - 4, 8),
            act(Op::Read, BLOCK, 8),
        ],
    ];
    for setup in each_kind() {
        for acts in lines {
            if let Err(failure) = fail_each(&setup, false, acts) {
                let trace = failure.trace.join("\n");
                panic!("{:?}, {acts:?}: {}\n{trace}", setup.shape, failure.what);
            }
        }
    }
}

/// Another disk had the same chunks before, in uses of the same numbers. None of its journal counts.
#[test]
fn directed_the_journal_of_an_earlier_disk_in_the_same_chunks_is_not_read() {
    let mut other = opened(1, CacheMode::WriteBack);
    other.become_disk(6);
    other.crash_again(&mut RecordedChoices::new(&[]));
    other.finish();
    for _ in 0..12 {
        done(&mut other, &[request(Op::Write, BLOCK, 8)]);
    }
    let mut world = opened(1, CacheMode::WriteBack);
    world.put_back(1, other.copy_of(1));
    // A disk of its own, which begins with the same numbers.
    world.become_disk(8);
    world.crash_again(&mut RecordedChoices::new(&[]));
    world.finish();
    assert_eq!(world.opened(), Some(Ok(())));
    done(&mut world, &[request(Op::Write, BLOCK + 8, 8)]);
    world.crash_again(&mut RecordedChoices::new(&[]));
    world.verify(BLOCK..BLOCK + 16, &mut RecordedChoices::new(&[]));
    assert_eq!(world.breach(), None);
}

#[test]
fn directed_two_devices_that_changed_places_are_refused_or_begin_anew() {
    for mode in [CacheMode::WriteThrough, CacheMode::WriteBack] {
        let mut world = opened(2, mode);
        done(&mut world, &[request(Op::Write, BLOCK, 8), flush()]);
        let devices = [world.copy_of(1), world.copy_of(2)];
        let [first, second] = devices.clone();
        world.put_back(1, second);
        world.put_back(2, first);
        world.crash_again(&mut RecordedChoices::new(&[]));
        world.finish();
        match mode {
            CacheMode::WriteThrough => assert_eq!(world.opened(), Some(Ok(()))),
            CacheMode::WriteBack => {
                assert_eq!(world.opened(), Some(Err(Refusal::Foreign(Target(1)))));
                let [first, second] = devices;
                world.put_back(1, first);
                world.put_back(2, second);
                world.crash_again(&mut RecordedChoices::new(&[]));
            }
        }
        holds(world, "devices in each other's place");
    }
}

/// A copy of one device from the use before is put in its place. It is not read: it gets everything again.
#[test]
fn directed_a_copy_of_a_device_from_an_earlier_use_is_not_read() {
    let mut world = opened(2, CacheMode::WriteBack);
    done(&mut world, &[request(Op::Write, BLOCK, 8)]);
    let old = world.copy_of(1);
    for _ in 0..2 {
        world.crash_again(&mut RecordedChoices::new(&[]));
        world.finish();
    }
    done(&mut world, &[request(Op::Write, BLOCK, 8)]);
    world.put_back(1, old);
    world.crash_again(&mut RecordedChoices::new(&[]));
    world.finish();
    let dropped = |notice: &LayoutNotice| {
        matches!(
            notice,
            LayoutNotice::Dropped {
                member: Target(1),
                ..
            }
        )
    };
    assert!(world.notices().iter().any(dropped));
    assert!(
        world
            .notices()
            .contains(&LayoutNotice::Rebuilt { member: Target(1) })
    );
    holds(world, "a copy of a device");
}

/// A device comes back after the other one went on alone, and is the only one left later.
#[test]
fn directed_a_device_that_was_left_behind_gets_everything_again() {
    let mut world = opened(2, CacheMode::WriteBack);
    done(&mut world, &[request(Op::Write, BLOCK, 8)]);
    world.order(LayoutOrder::Drop(Target(2)));
    world.finish();
    for block in 0..6 {
        done(
            &mut world,
            &[request(Op::Write, BLOCK + 8 * (block % 3), 8)],
        );
    }
    world.order(LayoutOrder::Rebuild(Target(2)));
    world.finish();
    assert!(
        world
            .notices()
            .contains(&LayoutNotice::Rebuilt { member: Target(2) })
    );
    world.do_without(1);
    world.crash_again(&mut RecordedChoices::new(&[]));
    world.finish();
    assert_eq!(world.opened(), Some(Ok(())));
    holds(world, "a device that came back");
}

/// While a device gets everything again it is void, also for an administrator who gives up the other one.
#[test]
fn directed_a_device_that_gets_everything_again_is_not_served_before() {
    let mut world = opened(2, CacheMode::WriteBack);
    done(&mut world, &[request(Op::Write, BLOCK, 8)]);
    let order = |world: &mut World, order| {
        world.order(order);
        end_all_but(world, |(target, op, _)| target == 2 && op == Op::Write);
    };
    world.order(LayoutOrder::Drop(Target(2)));
    world.finish();
    done(&mut world, &[request(Op::Write, BLOCK, 8)]);
    order(&mut world, LayoutOrder::Rebuild(Target(2)));
    // Its headers are void, and no page is copied yet.
    for _ in 0..2 {
        while world.effects() > 0 {
            world.perform();
        }
        let which = (0..world.in_flight()).find(|which| world.io(*which).0 == 2);
        world.complete(which.expect("a header"), Ok(()));
    }
    world.do_without(1);
    crash(&mut world, 0);
    world.finish();
    assert_eq!(world.opened(), Some(Err(Refusal::Missing(Target(1)))));
}

/// A disk gives chunks back while it writes, and another disk writes to them at once. Crashes at every step.
#[test]
fn directed_chunks_that_are_given_back_are_not_needed_any_more() {
    for mode in [CacheMode::WriteThrough, CacheMode::WriteBack] {
        for steps in 0..160 {
            let mut world = opened(2, mode);
            for page in 0..4 {
                done(&mut world, &[request(Op::Write, page * 128 + 8, 8)]);
                done(&mut world, &[request(Op::Read, page * 128 + 8, 8)]);
            }
            world.shrink_cache();
            world.submit(request(Op::Write, BLOCK, 8));
            for _ in 0..steps {
                if world.effects() > 0 {
                    world.perform();
                } else if world.in_flight() > 0 {
                    world.complete(0, Ok(()));
                } else if !world.pass_time() {
                    break;
                }
            }
            crash(&mut world, 0);
            let choices = &mut RecordedChoices::new(&[]);
            world.verify(0..SECTORS, choices);
            world.crash_again(choices);
            world.verify(0..SECTORS, choices);
            assert_eq!(world.breach(), None, "{mode:?}, {steps} steps");
        }
    }
}

#[test]
fn directed_a_cache_uses_the_chunks_that_it_gets_and_gives_them_back() {
    let mut world = opened(1, CacheMode::WriteThrough);
    let pages = |world: &World| world.cache().expect("it has a cache").pages;
    assert_eq!(pages(&world), 4);
    for _ in 0..3 {
        world.grow_cache();
        world.finish();
    }
    assert_eq!(pages(&world), 10);
    for page in 0..5 {
        done(&mut world, &[request(Op::Read, page * 128, 128)]);
    }
    for page in 0..5 {
        done(&mut world, &[request(Op::Read, page * 128, 128)]);
    }
    let cache = world.cache().expect("it has a cache");
    assert_eq!(cache.hits, 5);
    for _ in 0..3 {
        world.shrink_cache();
        while world.pass_time() {
            world.finish();
            if world
                .notices()
                .contains(&LayoutNotice::CacheShrunk { chunks: 1 })
            {
                break;
            }
        }
        world.finish();
    }
    world.crash_again(&mut RecordedChoices::new(&[]));
    world.verify(0..SECTORS, &mut RecordedChoices::new(&[]));
    assert_eq!(world.breach(), None);
}

/// While a device gets everything again, a block of the journal is left on it alone by a crash. The next start does not read
/// it. Once the device is used again the block must not count either.
#[test]
fn directed_a_block_of_the_journal_that_is_on_a_device_left_behind_alone_never_counts() {
    let mut world = opened(2, CacheMode::WriteThrough);
    done(&mut world, &[request(Op::Write, BLOCK, 8), flush()]);
    for sector in [2 * 128, 3 * 128, BLOCK] {
        done(&mut world, &[request(Op::Read, sector, 8)]);
    }
    world.wait(1);
    world.order(LayoutOrder::Drop(Target(2)));
    world.finish();
    world.order(LayoutOrder::Rebuild(Target(2)));
    // Its headers are void. Two pages are being copied, and the third one is written.
    end_all_but(&mut world, |(_, op, _)| op == Op::Read);
    world.submit(request(Op::Write, BLOCK, 8));
    end_all_but(&mut world, |io| {
        op_is_read(io) || io.0 == 1 && is_journal(io)
    });
    assert!((0..world.in_flight()).any(|which| is_journal(world.io(which))));
    crash(&mut world, 0);
    holds(world, "a block on one device");
}

fn op_is_read((target, op, _): (usize, Op, u64)) -> bool {
    target > 0 && op == Op::Read
}

/// The disk fails a write of a write-through cache. What flash has of it is not read: an orderly start would give it up.
#[test]
fn directed_a_write_that_the_disk_failed_is_not_read_from_flash() {
    // Every other write that fails has happened.
    for reads in 1..3 {
        let mut world = opened(1, CacheMode::WriteThrough);
        done(&mut world, &[request(Op::Write, BLOCK, 8)]);
        for _ in 0..reads {
            done(&mut world, &[request(Op::Read, BLOCK, 8)]);
        }
        let to_disk = |(target, op, _): (usize, Op, u64)| target == 0 && op == Op::Write;
        world.submit(request(Op::Write, BLOCK, 8));
        end_all_but(&mut world, to_disk);
        let which = (0..world.in_flight()).find(|which| to_disk(world.io(*which)));
        world.complete(which.expect("it goes to the disk"), Err(Fault::Gone));
        world.finish();
        done(&mut world, &[request(Op::Read, BLOCK, 8)]);
        world.detach();
        world.attach_again();
        holds(world, "a write that failed");
    }
}

/// The disk gets a block only after the record of its version on flash is durable: a crash could leave the older one there.
#[test]
fn directed_a_page_that_leaves_is_not_cleaned_before_its_record_is_durable() {
    let mut world = opened(1, CacheMode::WriteThrough);
    // What is read is durable on the disk.
    done(&mut world, &[flush()]);
    // The block's page is in the chunk that is given back.
    for sector in [2 * 128, 3 * 128, BLOCK] {
        done(&mut world, &[request(Op::Read, sector, 8)]);
    }
    // Until what was read is recorded.
    world.wait(1);
    world.finish();
    world.submit(request(Op::Write, BLOCK, 8));
    end_all_but(&mut world, is_journal);
    world.shrink_cache();
    end_all_but(&mut world, is_journal);
    // What the disk has is durable.
    world.submit(flush());
    end_all_but(&mut world, is_journal);
    crash(&mut world, 0);
    let choices = &mut RecordedChoices::new(&[]);
    world.verify(BLOCK..BLOCK + 8, choices);
    // The disk alone.
    crash(&mut world, 2);
    holds(world, "a page that leaves");
}

/// Zeroes are with the disk while a flush ends that covers the block's older bytes: these do not become clean.
#[test]
fn directed_a_flush_does_not_make_clean_what_is_being_replaced() {
    let mut world = opened(1, CacheMode::WriteBack);
    done(&mut world, &[request(Op::Write, BLOCK, 8)]);
    let flushes = |(target, op, _): (usize, Op, u64)| target == 0 && op == Op::Flush;
    let zeroes = |(target, op, _): (usize, Op, u64)| target == 0 && op == Op::WriteZeroes;
    world.order(LayoutOrder::CleanCache);
    end_all_but(&mut world, flushes);
    world.submit(request(Op::WriteZeroes, BLOCK, 8));
    end_all_but(&mut world, |io| flushes(io) || zeroes(io));
    assert!((0..world.in_flight()).any(|which| zeroes(world.io(which))));
    end_all_but(&mut world, zeroes);
    world.pass_time();
    end_all_but(&mut world, zeroes);
    // The zeroes come to the disk nevertheless.
    world.crash_again(&mut RecordedChoices::new(&[]));
    let choices = &mut RecordedChoices::new(&[]);
    world.verify(BLOCK..BLOCK + 8, choices);
    world.change_mode();
    world.finish();
    crash(&mut world, 2);
    holds(world, "zeroes beside a flush");
}

/// The newest header may be the one that cannot be read: it may say that a device was left behind.
#[test]
fn directed_a_header_that_cannot_be_read_does_not_count_as_none() {
    for after in 0..2 {
        let mut world = opened(2, CacheMode::WriteBack);
        world.order(LayoutOrder::Drop(Target(2)));
        world.finish();
        done(&mut world, &[request(Op::Write, BLOCK, 8)]);
        crash(&mut world, 0);
        world.fail_later(Failing {
            after,
            fault: Fault::Io,
            lasts: false,
        });
        world.finish();
        let failed = Refusal::Failed(Target(1), Fault::Io);
        assert_eq!(world.opened(), Some(Err(failed)), "place {after}");
        holds(world, "a header that cannot be read");
    }
}

/// The cache loses its device while it cleans a page. What it writes to the disk is older than what follows.
#[test]
fn directed_a_lost_cache_is_given_up_after_its_cleaner_has_ended() {
    let mut world = opened(1, CacheMode::WriteThrough);
    done(&mut world, &[request(Op::Read, BLOCK, 8)]);
    done(&mut world, &[request(Op::Write, BLOCK + 1, 1)]);
    let to_disk = |(target, op, _): (usize, Op, u64)| target == 0 && op == Op::Write;
    world.order(LayoutOrder::CleanCache);
    end_all_but(&mut world, to_disk);
    assert!((0..world.in_flight()).any(|which| to_disk(world.io(which))));
    world.submit(request(Op::Read, BLOCK, 8));
    while world.effects() > 0 {
        world.perform();
    }
    let flash = (0..world.in_flight()).find(|which| world.io(*which).0 == 1);
    world.complete(flash.expect("it is read from flash"), Err(Fault::Gone));
    end_all_but(&mut world, to_disk);
    world.submit(request(Op::Write, BLOCK, 8));
    end_newest_first(&mut world);
    done(&mut world, &[flush()]);
    crash(&mut world, 2);
    holds(world, "a cache that was given up");
}

/// What guests write while a cache is cleaned is not waited for.
#[test]
fn directed_a_cache_becomes_clean_while_its_disk_is_written_all_the_time() {
    let mut world = opened(1, CacheMode::WriteBack);
    for block in 0..4 {
        done(&mut world, &[request(Op::Write, BLOCK + 8 * block, 8)]);
    }
    world.change_mode();
    for _ in 0..400 {
        while world.pending() < 2 {
            world.submit(request(Op::Write, BLOCK, 8));
        }
        while world.effects() > 0 {
            world.perform();
        }
        if world.in_flight() > 0 {
            world.complete(0, Ok(()));
        }
    }
    let cleaned = LayoutNotice::CacheCleaned { left: 0 };
    assert!(world.notices().contains(&cleaned));
    world.finish();
    // Flash alone had them: they are on the disk, and durable there.
    crash(&mut world, 1);
    holds(world, "what was dirty");
}

/// One decayed block keeps neither its neighbours from the disk, nor newer bytes of itself.
#[test]
fn directed_a_decayed_dirty_block_is_the_only_one_that_is_not_cleaned() {
    let mut world = opened(1, CacheMode::WriteBack);
    for block in 0..4 {
        done(&mut world, &[request(Op::Write, BLOCK + 8 * block, 8)]);
    }
    let slot = (0..768).find(|sector| {
        let mut bytes = [0; 512];
        world.copy_of(1).read(sector * 512, &mut bytes);
        let mut own = [0; 512];
        own.copy_from_slice(&tidegate_sim::crash::fill(BLOCK, 1));
        bytes == own
    });
    world.damage(1, slot.expect("flash has the first block"));
    world.order(LayoutOrder::CleanCache);
    world.finish();
    let cleaned = |left| LayoutNotice::CacheCleaned { left };
    assert!(world.notices().contains(&cleaned(1)));
    let mut bytes = [0; 512];
    world.copy_of(0).read((BLOCK + 8) * 512, &mut bytes);
    assert_ne!(bytes, [0; 512], "its neighbour is on the disk");
    done(&mut world, &[request(Op::Write, BLOCK, 8)]);
    world.order(LayoutOrder::CleanCache);
    world.finish();
    assert!(world.notices().contains(&cleaned(0)));
    assert_eq!(world.breach(), None);
}
