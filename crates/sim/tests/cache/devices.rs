//! Devices of a cache that come back: what they lack, and how a start finds that out.

use super::{BLOCK, JOURNAL, cached, crash, done, each_kind, holds, opened, request};
use tidegate_core::layout::cache::CacheMode;
use tidegate_core::layout::cache::blocks::{Header, Journalled};
use tidegate_core::layout::{LayoutNotice, LayoutOrder, Refusal, Target};
use tidegate_core::request::Op;
use tidegate_sim::crash::choice::RecordedChoices;
use tidegate_sim::crash::seeds;
use tidegate_sim::crash::world::{FlashDevices, Load, Setup, World};

/// A block of the header or of the journal on a device.
fn block(world: &World, device: usize, at: u64) -> [u8; 4096] {
    let mut block = [0; 4096];
    world.copy_of(device).read(at, &mut block);
    block
}

/// Where a device's newest header is.
fn newest_header(world: &World, device: usize) -> u64 {
    let generation = |at: &u64| {
        let header = Header::decode(&block(world, device, *at));
        header.map_or(0, |header| header.generation)
    };
    let places = [JOURNAL, JOURNAL + 4096];
    let newest = places.into_iter().max_by_key(generation);
    newest.expect("there are two places")
}

/// Where a device's blocks of the journal are, in order.
fn journal(world: &World, device: usize) -> Vec<u64> {
    let places = (2..32).map(|nth| JOURNAL + nth * 4096);
    let blocks = places.filter_map(|at| {
        let block = Journalled::decode(&block(world, device, at)).ok()?;
        Some((block.sequence, at))
    });
    let mut blocks: Vec<(u64, u64)> = blocks.collect();
    blocks.sort_unstable();
    blocks.into_iter().map(|(_, at)| at).collect()
}

#[test]
fn random_runs_of_a_cached_disk_hold_whose_devices_come_and_go() {
    let kinds = [(1, CacheMode::WriteThrough), (2, CacheMode::WriteThrough)];
    for (devices, mode) in kinds.into_iter().chain([(2, CacheMode::WriteBack)]) {
        let setup = Setup {
            devices: FlashDevices::Unplugged,
            ..cached(devices, mode)
        };
        for seed in 0..20 {
            if let Err(failure) = seeds::run(&setup, seed, 500) {
                let trace = failure.trace.join("\n");
                panic!("{mode:?}, seed {seed}: {}\n{trace}", failure.what);
            }
        }
    }
}

#[test]
fn random_runs_of_a_cached_disk_hold_whose_requests_go_past_the_cache() {
    for setup in each_kind() {
        let setup = Setup {
            load: Load::Around,
            ..setup
        };
        for seed in 0..40 {
            if let Err(failure) = seeds::run(&setup, seed, 2_000) {
                let trace = failure.trace.join("\n");
                panic!("{:?}, seed {seed}: {}\n{trace}", setup.shape, failure.what);
            }
        }
    }
}

/// The newest header decays, which alone said that the other device was left behind. Blocks of the journal say it as well.
#[test]
fn directed_a_device_that_was_left_behind_is_found_by_the_journal() {
    for mode in [CacheMode::WriteThrough, CacheMode::WriteBack] {
        let mut world = opened(2, mode);
        done(&mut world, &[request(Op::Write, BLOCK, 8)]);
        done(&mut world, &[request(Op::Read, BLOCK, 8)]);
        world.wait(1);
        let old = world.copy_of(2);
        world.order(LayoutOrder::Drop(Target(2)));
        world.finish();
        done(&mut world, &[request(Op::Write, BLOCK, 8)]);
        let decays = newest_header(&world, 1);
        // The second device could not be written any more.
        world.put_back(2, old);
        world.damage(1, decays / 512);
        crash(&mut world, 0);
        world.finish();
        let rebuilt = LayoutNotice::Rebuilt { member: Target(2) };
        assert!(world.notices().contains(&rebuilt), "{mode:?}");
        // It is alone later.
        world.do_without(1);
        world.crash_again(&mut RecordedChoices::new(&[]));
        world.finish();
        assert_eq!(world.opened(), Some(Ok(())));
        holds(world, "a device that was left behind");
    }
}

/// A device that was dropped knows it, though it can be written and the other one is gone.
#[test]
fn directed_a_device_that_was_dropped_is_not_served_after_the_other_one_is_given_up() {
    let mut world = opened(2, CacheMode::WriteBack);
    done(&mut world, &[request(Op::Write, BLOCK, 8)]);
    world.order(LayoutOrder::Drop(Target(2)));
    world.finish();
    done(&mut world, &[request(Op::Write, BLOCK, 8)]);
    crash(&mut world, 2);
    world.do_without(1);
    world.crash_again(&mut RecordedChoices::new(&[]));
    world.finish();
    assert_eq!(world.opened(), Some(Err(Refusal::Missing(Target(1)))));
}

/// Two neighbouring blocks of the journal decay. What follows them shows that they were not its end.
#[test]
fn directed_blocks_that_decayed_in_the_journal_are_not_its_end() {
    let mut world = opened(1, CacheMode::WriteBack);
    for round in 0..6 {
        done(
            &mut world,
            &[request(Op::Write, BLOCK + 8 * (round % 3), 8)],
        );
    }
    let blocks = journal(&world, 1);
    for at in &blocks[blocks.len() - 3..blocks.len() - 1] {
        world.damage(1, at / 512);
    }
    crash(&mut world, 0);
    world.finish();
    assert_eq!(world.opened(), Some(Err(Refusal::Damaged(Target(1)))));
}

/// A device comes back that has gone on alone, with later blocks of the same journal. They never count.
#[test]
fn directed_later_blocks_of_a_device_that_gets_everything_again_never_count() {
    let write = |round: u64| request(Op::Write, BLOCK + 8 * (round % 3), 8);
    let mut other = opened(2, CacheMode::WriteBack);
    for round in 0..27 {
        done(&mut other, &[write(round)]);
    }
    let mut world = opened(2, CacheMode::WriteBack);
    done(&mut world, &[write(0)]);
    world.order(LayoutOrder::Drop(Target(2)));
    world.finish();
    world.put_back(2, other.copy_of(2));
    world.order(LayoutOrder::Rebuild(Target(2)));
    world.finish();
    let rebuilt = LayoutNotice::Rebuilt { member: Target(2) };
    assert!(world.notices().contains(&rebuilt));
    crash(&mut world, 0);
    world.finish();
    assert_eq!(world.opened(), Some(Ok(())));
    holds(world, "a ring with later blocks");
}

#[test]
fn random_runs_of_a_cached_disk_hold_whose_devices_are_replaced_removed_and_added() {
    for mode in [CacheMode::WriteThrough, CacheMode::WriteBack] {
        let setup = Setup {
            devices: FlashDevices::Exchanged,
            ..cached(2, mode)
        };
        for seed in 0..40 {
            if let Err(failure) = seeds::run(&setup, seed, 1_000) {
                let trace = failure.trace.join("\n");
                panic!("{mode:?}, seed {seed}: {}\n{trace}", failure.what);
            }
        }
    }
}

/// The device that stays was left behind, and does not know it: only the one that is replaced did. What it has is void.
#[test]
fn directed_a_device_that_stays_while_the_disk_is_detached_serves_nothing_older() {
    let mut world = opened(2, CacheMode::WriteThrough);
    let write = || request(Op::Write, BLOCK, 8);
    done(&mut world, &[write(), request(Op::Flush, 0, 0)]);
    done(&mut world, &[request(Op::Read, BLOCK, 8)]);
    // It is clean on flash.
    world.wait(5);
    let old = world.copy_of(1);
    world.order(LayoutOrder::Drop(Target(1)));
    world.finish();
    done(&mut world, &[write(), request(Op::Flush, 0, 0)]);
    // It could not be written any more.
    world.put_back(1, old);
    world.exchange_detached(1);
    world.finish();
    assert_eq!(world.opened(), Some(Ok(())));
    assert_eq!(world.cache().map(|cache| cache.devices), Some(0b11));
    holds(world, "a device that was left behind stays");
}

/// A second device is added, and then it is alone: it has everything.
#[test]
fn directed_a_device_that_was_added_has_everything_when_it_is_alone() {
    for mode in [CacheMode::WriteThrough, CacheMode::WriteBack] {
        let mut world = opened(2, mode);
        done(&mut world, &[request(Op::Write, BLOCK, 8)]);
        assert!(world.exchange_live(0, false), "{mode:?}");
        assert!(!world.exchange_live(1, true), "the last one stays");
        done(&mut world, &[request(Op::Write, BLOCK + 8, 8)]);
        let dropped = |world: &World| {
            let dropped = |notice: &&LayoutNotice| matches!(notice, LayoutNotice::Dropped { .. });
            world.notices().iter().filter(dropped).count()
        };
        let before = dropped(&world);
        crash(&mut world, 0);
        world.finish();
        assert_eq!(world.opened(), Some(Ok(())));
        assert_eq!(world.cache().map(|cache| cache.devices), Some(0b10));
        assert_eq!(dropped(&world), before, "an empty place loses nothing");
        world.add_device(0);
        done(&mut world, &[request(Op::Write, BLOCK, 8)]);
        world.wait(3);
        assert_eq!(world.cache().map(|cache| cache.devices), Some(0b11));
        assert!(world.exchange_live(1, false), "{mode:?}");
        crash(&mut world, 0);
        world.finish();
        assert_eq!(world.opened(), Some(Ok(())));
        holds(world, "a device that was added");
    }
}
