//! Long random runs by seed, and the shortest form of one that fails.
//!
//! A run mixes overlapping requests, completions out of order, failed I/Os, changes of filters and crashes. In one of four the disk
//! goes from one I/O thread to another before each event.

mod around;

use super::choice::{Choose, RandomChoices, RecordedChoices};
use super::explore::Failure;
use super::world::{GuestRequest, Setup, World};
use tidegate_core::filter::FilterSpec;
use tidegate_core::layout::{LayoutOrder, OnLoss, Target};
use tidegate_core::request::{Fault, Flags, Op};

/// Requests under way at once, at most.
const MOST_PENDING: usize = 8;

/// One random run of so many steps.
///
/// # Errors
/// What does not hold, with the shortest trace that shows it.
pub fn run(setup: &Setup, seed: u64, steps: u32) -> Result<u64, Failure> {
    let mut random = RandomChoices::new(seed);
    let mut world = of_seed(setup, seed);
    play(&mut world, &mut random, steps);
    if world.breach().is_none() {
        return Ok(world.completed());
    }
    let shortest = shorten(random.record, |choices| {
        let mut world = of_seed(setup, seed);
        play(&mut world, &mut RecordedChoices::new(choices), steps);
        world.breach().is_some()
    });
    let mut world = of_seed(setup, seed);
    world.record();
    play(&mut world, &mut RecordedChoices::new(&shortest), steps);
    Err(Failure {
        what: world.breach().unwrap_or_default().to_owned(),
        trace: world.trace().to_vec(),
    })
}

/// A new disk. One of four changes its I/O thread before each event.
fn of_seed(setup: &Setup, seed: u64) -> World {
    let mut world = World::new(setup.clone());
    if seed % 4 == 1 {
        world.change_threads();
    }
    world
}

/// Removes the choices without which `fails` stays true.
///
/// # Source
/// Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input" (TSE 2002).
pub(super) fn shorten(mut choices: Vec<u32>, fails: impl Fn(&[u32]) -> bool) -> Vec<u32> {
    let mut piece = choices.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < choices.len() {
            let end = (at + piece).min(choices.len());
            let shorter = [&choices[..at], &choices[end..]].concat();
            if fails(&shorter) {
                choices = shorter;
            } else {
                at = end;
            }
        }
        piece /= 2;
    }
    choices
}

fn play(world: &mut World, choices: &mut dyn Choose, steps: u32) {
    // One of so many I/Os fails.
    let fails = [64, 256, u32::MAX][choices.choose(3) as usize];
    // And one of so many steps is a crash.
    let crashes = [12, 64, 256][choices.choose(3) as usize];
    for _ in 0..steps {
        if world.breach().is_some() || choices.is_over() {
            break;
        }
        if choices.choose(crashes) == 1 {
            crash(world, choices);
        }
        step(world, choices, fails);
    }
    world.verify(0..world.sectors(), choices);
}

/// A crash, after which the disk is read, or goes on at once.
fn crash(world: &mut World, choices: &mut dyn Choose) {
    world.crash(choices);
    if choices.choose(4) == 1 {
        world.verify(0..world.sectors(), choices);
    }
}

fn step(world: &mut World, choices: &mut dyn Choose, fails: u32) {
    if world.effects() > 0 && choices.choose(8) > 0 {
        return world.perform();
    }
    match choices.choose(64) {
        0 if world.is_cached() => world.change_mode(),
        1 if world.is_cached() => world.order(LayoutOrder::CleanCache),
        0 | 1 if choices.choose(4) > 0 => world.order(order(world.targets(), choices)),
        1 => world.rearrange(filters(choices.choose(4))),
        2 => drop(world.pass_time()),
        3 => world.order(order(world.targets(), choices)),
        4 => world.hang(choices.choose(world.targets().into()) as usize),
        5 => world.wait(1 + choices.choose(4)),
        6 => world.scribble(),
        7 => drop(world.advance_move()),
        32 if world.is_cached() => cache_act(world, choices),
        33 if world.unplugs() => world.plug(choices),
        35..=37 if world.exchanges() => world.exchange_flash(choices),
        34 if world.goes_around() => around_act(world, choices),
        32 if has_more_acts(world.targets()) => match choices.choose(16) {
            1 => world.grow_and_crash(choices),
            2 | 3 => world.grow(),
            _ => {}
        },
        8..32 if world.pending() < MOST_PENDING => {
            let request = match world.goes_around() && choices.choose(2) == 1 {
                true => around::request(world.sectors(), choices),
                false => request(world.sectors(), world.grain(), choices),
            };
            match choices.choose(4) {
                0 => world.submit_fickle(request),
                _ => world.submit(request),
            }
        }
        _ if world.in_flight() > 0 => {
            let in_flight = u32::try_from(world.in_flight()).expect("few are in flight");
            let which = choices.choose(in_flight) as usize;
            if world.hangs(which) {
                return;
            }
            let outcome = match choices.choose(fails) {
                1 => Err(Fault::Io),
                2 => Err(Fault::Gone),
                _ => Ok(()),
            };
            world.complete(which, outcome);
        }
        _ => {}
    }
}

/// What makes requests go past a cache, or ends that, and a disk that grows below it.
fn around_act(world: &mut World, choices: &mut dyn Choose) {
    match choices.choose(4) {
        0 | 1 => world.admit(choices),
        2 => world.order(LayoutOrder::CleanCache),
        _ => world.grow_disk(choices),
    }
}

/// What an administrator does to a cache, or what happens to its devices.
fn cache_act(world: &mut World, choices: &mut dyn Choose) {
    match choices.choose(8) {
        0 | 1 => world.grow_cache(),
        2 | 3 => world.shrink_cache(),
        4 => world.decay(choices),
        5 if world.opened() == Some(Ok(())) => {
            world.detach();
            world.attach_again();
        }
        6 => world.replace_device(choices),
        7 => world.lose_device(choices),
        _ => {}
    }
}

/// Whether a mirror also gets members, and waits for lost ones. Not one of two, so that past seeds stay what they are.
fn has_more_acts(targets: u8) -> bool {
    targets > 2
}

fn order(targets: u8, choices: &mut dyn Choose) -> LayoutOrder {
    let target = choices.choose(targets.into());
    let target = Target(u8::try_from(target).expect("a target"));
    match choices.choose(if has_more_acts(targets) { 12 } else { 10 }) {
        0 => LayoutOrder::Drop(target),
        10 => LayoutOrder::OnLoss(OnLoss::Wait),
        11 => LayoutOrder::OnLoss(OnLoss::Fail),
        5 => LayoutOrder::Rate(1 << 20),
        6 => LayoutOrder::Rate(0),
        1 => LayoutOrder::Scrub { repair: true },
        2 => LayoutOrder::StopScrub,
        3 => LayoutOrder::Replace(target),
        4 => LayoutOrder::Scrub { repair: false },
        _ => LayoutOrder::Rebuild(target),
    }
}

fn filters(which: u32) -> Vec<FilterSpec> {
    match which {
        0 => Vec::new(),
        1 => vec![FilterSpec::Stats],
        2 => vec![FilterSpec::Null, FilterSpec::Stats],
        _ => vec![FilterSpec::Stats, FilterSpec::Null, FilterSpec::Null],
    }
}

/// A request somewhere on the disk, or around multiples of so many sectors.
fn request(disk: u64, grain: Option<u64>, choices: &mut dyn Choose) -> GuestRequest {
    let op = match choices.choose(16) {
        0..6 => Op::Write,
        6..11 => Op::Read,
        11 | 12 => Op::Flush,
        13 => Op::Discard,
        14 => Op::WriteZeroes,
        _ => Op::Extents,
    };
    let within = |bound: u64, choices: &mut dyn Choose| {
        let bound = u32::try_from(bound).expect("a simulated disk is small");
        u64::from(choices.choose(bound))
    };
    let sector = match grain {
        Some(grain) => {
            let edge = within(disk / grain + 1, choices) * grain;
            let sector = edge + within(24, choices);
            sector.saturating_sub(12).min(disk - 1)
        }
        None => within(disk, choices),
    };
    let sectors = 1 + within((disk - sector).min(8), choices);
    let flags = match op.modifies() && choices.choose(4) == 1 {
        true => Flags::FUA,
        false => Flags::NONE,
    };
    match op {
        Op::Flush => GuestRequest {
            op,
            flags,
            sector: 0,
            sectors: 0,
        },
        _ => GuestRequest {
            op,
            flags,
            sector,
            sectors,
        },
    }
}
