//! Long random runs of a pool by seed, and the shortest form of one that fails.

use super::world::World;
use super::{EXTENT, SUB_BLOCK, Setup};
use crate::crash::choice::{Choose, RandomChoices, RecordedChoices};
use crate::crash::explore::Failure;
use crate::crash::seeds::shorten;
use crate::crash::world::GuestRequest;
use std::cell::Cell;
use tidegate_core::request::{Fault, Flags, Op};

/// Requests under way at once, at most.
const MOST_PENDING: usize = 8;
/// Runs to shorten one that fails, at most. Origin: chosen; they take some seconds.
const MOST_TRIES: u32 = 600;

/// One random run of so many steps. Returns how many I/Os it had.
///
/// # Errors
/// What does not hold, with the shortest trace that shows it.
pub fn run(seed: u64, steps: u32) -> Result<u64, Failure> {
    run_over(&of_seed(seed), seed, steps).map(|world| world.completed())
}

/// The same of a pool whose columns have several members, which are lost, come back and are replaced. Returns how many I/Os it
/// had, and how many members were rebuilt.
///
/// # Errors
/// As [`run`].
pub fn run_mirrored(seed: u64, steps: u32) -> Result<(u64, u64), Failure> {
    let setup = Setup {
        mirrors: if seed % 8 == 7 { 3 } else { 2 },
        ..of_seed(seed)
    };
    run_over(&setup, seed, steps).map(|world| (world.completed(), world.joined()))
}

fn run_over(setup: &Setup, seed: u64, steps: u32) -> Result<World, Failure> {
    let mut random = RandomChoices::new(seed);
    let mut world = World::new(setup);
    play(&mut world, &mut random, steps);
    if world.breach().is_none() {
        return Ok(world);
    }
    let tries = Cell::new(0);
    let shortest = shorten(random.record, |choices| {
        tries.set(tries.get() + 1);
        if tries.get() > MOST_TRIES {
            return false;
        }
        let mut world = World::new(setup);
        play(&mut world, &mut RecordedChoices::new(choices), steps);
        world.breach().is_some()
    });
    let mut world = World::new(setup);
    world.record();
    play(&mut world, &mut RecordedChoices::new(&shortest), steps);
    Err(Failure {
        what: world.breach().unwrap_or_default().to_owned(),
        trace: world.trace().to_vec(),
    })
}

/// Every other pool is soon full, every fourth has one disk only, and some reserve all space. In every eighth one disk has
/// just as many extents as it can use: what it discards is used again at once.
fn of_seed(seed: u64) -> Setup {
    if seed % 8 == 7 {
        return Setup {
            columns: 1,
            grants: 1,
            disks: 1,
            ..Setup::default()
        };
    }
    Setup {
        columns: if seed % 8 == 3 { 1 } else { 2 },
        grants: if seed.is_multiple_of(2) { 8 } else { 3 },
        disks: if seed % 4 == 1 { 1 } else { 2 },
        thick: seed % 16 == 5,
        is_used: seed % 8 < 6,
        ..Setup::default()
    }
}

fn play(world: &mut World, choices: &mut dyn Choose, steps: u32) {
    // One of so many I/Os fails.
    let fails = [64, u32::MAX, u32::MAX, u32::MAX][choices.choose(4) as usize];
    // And one of so many steps is a crash.
    let crashes = [24, 96, 384][choices.choose(3) as usize];
    world.finish();
    for _ in 0..steps {
        if world.breach().is_some() || choices.is_over() {
            break;
        }
        if choices.choose(crashes) == 1 {
            world.crash(choices);
            if choices.choose(4) == 1 {
                world.verify(choices);
            }
        }
        step(world, choices, fails);
    }
    world.verify(choices);
    world.crash(choices);
    world.verify(choices);
}

fn step(world: &mut World, choices: &mut dyn Choose, fails: u32) {
    let [in_flight, effects, deeds] = world.ways();
    if effects > 0 && choices.choose(8) > 0 {
        return world.perform();
    }
    match choices.choose(64) {
        0..5 => act(world, choices),
        5 => drop(world.pass_time()),
        6 => world.finish(),
        7..10 if deeds > 0 => world.work(),
        10..32 if world.pending() < MOST_PENDING => {
            if let Some(disk) = pick(&world.disks(), choices) {
                let request = request(world.sectors(disk), choices);
                world.submit(disk, request);
            }
        }
        _ if in_flight > 0 => {
            let in_flight = u32::try_from(in_flight).expect("few are in flight");
            let outcome = match choices.choose(fails) {
                1 => Err(Fault::Io),
                2 => Err(Fault::Gone),
                _ => Ok(()),
            };
            world.complete(choices.choose(in_flight) as usize, outcome);
        }
        _ if deeds > 0 => world.work(),
        _ => {}
    }
}

/// What an administrator does to one of the disks.
fn act(world: &mut World, choices: &mut dyn Choose) {
    let members = u32::try_from(world.members()).expect("few");
    if members > 0 && choices.choose(5) == 1 {
        let member = choices.choose(members) as usize;
        return match choices.choose(3) {
            0 => world.lose_member(member),
            1 => world.bring_back(member, false),
            _ => world.bring_back(member, true),
        };
    }
    let Some(disk) = pick(&world.disks(), choices) else {
        return;
    };
    let act = choices.choose(32);
    let snapshot = pick(&world.snapshots(disk), choices);
    match (act, snapshot) {
        (0..8, _) => world.snapshot(disk),
        (8..16, Some(snapshot)) => world.delete(disk, snapshot),
        (16..20, Some(snapshot)) => world.roll_back(disk, snapshot),
        (20..23, Some(snapshot)) => world.clone_of(disk, snapshot),
        (23..25, Some(snapshot)) => drop(world.view(disk, snapshot)),
        (25 | 26, _) => {
            if let Some(view) = pick(&world.views(), choices) {
                world.read_view(view);
            }
        }
        (27, _) => {
            if let Some(view) = pick(&world.views(), choices) {
                world.close_view(view);
            }
        }
        (28, _) => world.detach(disk),
        (29, _) => world.remove(disk),
        (30, _) if choices.choose(4) == 1 => world.add_column(),
        (31, _) if choices.choose(2) == 1 => world.grow(disk, EXTENT / 2),
        _ => {}
    }
}

fn pick<T: Copy>(of: &[T], choices: &mut dyn Choose) -> Option<T> {
    let count = u32::try_from(of.len()).expect("few");
    if count == 0 {
        return None;
    }
    Some(of[choices.choose(count) as usize])
}

/// A request around the edges of sub-blocks, most of them of a few sectors.
fn request(disk: u64, choices: &mut dyn Choose) -> GuestRequest {
    let op = match choices.choose(16) {
        0..7 => Op::Write,
        7..10 => Op::Read,
        10 | 11 => Op::Flush,
        12 | 13 => Op::Discard,
        14 => Op::WriteZeroes,
        _ => Op::Extents,
    };
    let within = |bound: u64, choices: &mut dyn Choose| {
        u64::from(choices.choose(u32::try_from(bound).expect("a simulated disk is small")))
    };
    // Few sub-blocks are used, so that requests meet: some at each end of an extent.
    let extent = within(disk.div_ceil(EXTENT), choices);
    let sub = [0, 1, 14, 15][choices.choose(4) as usize];
    let sector = extent * EXTENT + sub * SUB_BLOCK;
    let (sector, sectors) = match choices.choose(8) {
        // Whole sub-blocks.
        0 | 1 => (sector, SUB_BLOCK * (1 + within(3, choices))),
        // A whole extent and more.
        2 => (extent * EXTENT, EXTENT + within(3, choices) * 5),
        _ => (sector + within(SUB_BLOCK, choices), 1 + within(12, choices)),
    };
    let sector = sector.min(disk - 1);
    let flags = match op.modifies() && choices.choose(4) == 1 {
        true => Flags::FUA,
        false => Flags::NONE,
    };
    GuestRequest {
        op,
        flags,
        sector,
        sectors: sectors.min(disk - sector),
    }
}
