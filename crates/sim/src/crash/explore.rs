//! Enumeration: all schedules of short workloads, with a crash at every step.
//!
//! A step is a request submitted or an I/O completed, with all that it causes. Each run crashes at one of them, or at its end.
//! A write that is not durable then persists whole, in part, or not at all. The disk is read, crashes again, and is read again.

use super::choice::{AllChoices, Choose, RandomChoices, RecordedChoices};
use super::world::{Failing, Formatted, GuestRequest, Setup, World};
use tidegate_core::layout::LayoutOrder;
use tidegate_core::request::{Fault, Flags, Op};

/// The result of an enumeration.
#[derive(Clone, Debug, Default)]
pub struct Explored {
    /// Workloads.
    pub workloads: u64,
    /// Of these, the ones that have too many runs and were sampled.
    pub sampled: u64,
    /// Runs of them.
    pub runs: u64,
    /// The first run that breached something.
    pub failure: Option<Failure>,
}

/// A run in which something does not hold.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What does not hold.
    pub what: String,
    /// Each step of the run.
    pub trace: Vec<String>,
}

/// What a workload is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A guest's request.
    Guest(GuestRequest),
    /// A write whose buffer the guest changes before the answer.
    Fickle(GuestRequest),
    /// The guest changes that buffer now.
    Scribble,
    /// An administrator's order to the layouts.
    Order(LayoutOrder),
    /// Everything ends, and time passes until the next deadline.
    Wait,
    /// The next step of a move to another store.
    Move,
    /// The mirror gets one more member.
    Grow,
    /// The disk grows by a few rows of any stripe. Before, no front end passes on requests beyond its end.
    Resize,
    /// The disk is detached and attached again.
    Detach,
    /// The cache writes back from now on, or through.
    ChangeMode,
    /// The cache gets one more chunk.
    GrowCache,
    /// The cache gives a chunk back.
    ShrinkCache,
}

impl Act {
    fn run(self, world: &mut World) {
        match self {
            Act::Guest(request) if request.sector + request.sectors > world.sectors() => {}
            Act::Guest(request) => world.submit(request),
            Act::Fickle(request) => world.submit_fickle(request),
            Act::Scribble => world.scribble(),
            Act::Order(order) => world.order(order),
            Act::Wait => world.wait(1),
            Act::Move => drop(world.advance_move()),
            Act::Grow => world.grow(),
            Act::Resize => world.resize(world.sectors() + ROWS),
            Act::ChangeMode => world.change_mode(),
            Act::GrowCache => world.grow_cache(),
            Act::ShrinkCache => world.shrink_cache(),
            Act::Detach if world.opened() != Some(Ok(())) => {}
            Act::Detach => {
                world.detach();
                world.attach_again();
            }
        }
    }

    fn sectors(self) -> Option<(u64, u64)> {
        match self {
            Act::Guest(request) | Act::Fickle(request) if request.sectors > 0 => {
                Some((request.sector, request.sector + request.sectors))
            }
            _ => None,
        }
    }
}

/// Sectors of some rows of a stripe of two, three or four.
const ROWS: u64 = 96;

/// Requests to three sectors from `first` on, whose workloads cover what a disk can get wrong: overlap, FUA, flush,
/// discard, zeroes.
pub fn requests(first: u64) -> Vec<Act> {
    let request = |op, flags, sector, sectors| {
        Act::Guest(GuestRequest {
            op,
            flags,
            sector: if op == Op::Flush { 0 } else { first + sector },
            sectors,
        })
    };
    vec![
        request(Op::Write, Flags::NONE, 0, 2),
        request(Op::Write, Flags::NONE, 1, 2),
        request(Op::Write, Flags::FUA, 0, 2),
        request(Op::Read, Flags::NONE, 0, 3),
        request(Op::Flush, Flags::NONE, 0, 0),
        request(Op::Discard, Flags::NONE, 1, 1),
        request(Op::WriteZeroes, Flags::NONE, 1, 2),
    ]
}

/// How far an enumeration goes.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Requests of a workload, at most.
    pub longest: usize,
    /// Whether each I/O is also failed once.
    pub faults: bool,
    /// Runs of a workload, at most. One that has more is sampled instead, so often.
    pub runs: u64,
}

/// Runs every workload of the requests in every way. Ends at the first breach.
pub fn explore(setup: &Setup, requests: &[Act], depth: Depth) -> Explored {
    let mut found = Explored::default();
    let formatted = Formatted::new(setup);
    let setup = &formatted;
    for length in 1..=depth.longest {
        let mut words = AllChoices::default();
        loop {
            let of = u32::try_from(requests.len()).expect("there are few requests");
            let word = (0..length).map(|_| requests[words.choose(of) as usize]);
            let workload: Vec<Act> = word.collect();
            found.workloads += 1;
            if let Err(choices) = all_runs(setup, &workload, depth, &mut found) {
                found.failure = Some(again(setup, &workload, depth.faults, &choices));
                return found;
            }
            if !words.advance() {
                break;
            }
        }
    }
    found
}

/// Runs a workload in every way, or as often as the depth says.
///
/// # Errors
/// The choices of a run that breached something.
fn all_runs(
    setup: &Formatted,
    workload: &[Act],
    depth: Depth,
    found: &mut Explored,
) -> Result<(), Vec<u32>> {
    let mut all = AllChoices::default();
    for _ in 0..depth.runs {
        found.runs += 1;
        if !holds(setup, workload, depth.faults, &mut all) {
            return Err(all.choices());
        }
        if !all.advance() {
            return Ok(());
        }
    }
    found.sampled += 1;
    for seed in 0..depth.runs {
        found.runs += 1;
        let mut random = RandomChoices::new(seed);
        if !holds(setup, workload, depth.faults, &mut random) {
            return Err(random.record);
        }
    }
    Ok(())
}

fn holds(setup: &Formatted, workload: &[Act], faults: bool, choices: &mut dyn Choose) -> bool {
    let mut world = setup.world();
    run(&mut world, workload, faults, choices);
    world.breach().is_none()
}

/// Runs a failed run once more, to record it.
fn again(setup: &Formatted, workload: &[Act], faults: bool, choices: &[u32]) -> Failure {
    let mut world = setup.world();
    world.record();
    run(
        &mut world,
        workload,
        faults,
        &mut RecordedChoices::new(choices),
    );
    Failure {
        what: world.breach().unwrap_or_default().to_owned(),
        trace: world.trace().to_vec(),
    }
}

fn run(world: &mut World, workload: &[Act], faults: bool, choices: &mut dyn Choose) {
    // An orderly start.
    world.finish();
    let mut requests = workload.iter();
    let mut faults_left = u32::from(faults);
    for step in 0.. {
        world.bound(step);
        if world.breach().is_some() {
            break;
        }
        // A crash between effects is like one after them: what they started may persist or not, and answers only add to
        // what must hold.
        while world.effects() > 0 && world.breach().is_none() {
            world.perform();
        }
        let to_submit = u32::from(requests.len() > 0);
        let in_flight = u32::try_from(world.in_flight()).expect("a workload is short");
        // A move that has begun goes on, once nothing else is under way.
        let moves = u32::from(world.is_moving() && in_flight == 0 && world.can_advance_move());
        let ways = to_submit + in_flight * (1 + faults_left) + moves;
        if ways == 0 || choices.seldom() {
            world.crash(choices);
            break;
        }
        let choice = choices.choose(ways);
        if choice < to_submit {
            requests.next().expect("one is left").run(world);
        } else if choice == ways - moves {
            world.advance_move();
        } else if choice - to_submit < in_flight {
            world.complete((choice - to_submit) as usize, Ok(()));
        } else {
            faults_left = 0;
            world.complete((choice - to_submit - in_flight) as usize, Err(Fault::Io));
        }
    }
    recover(world, choices);
    let sectors = named(workload);
    world.verify(sectors.clone(), choices);
    world.crash_again(choices);
    world.verify(sectors, choices);
}

/// The sectors that a workload names.
fn named(workload: &[Act]) -> std::ops::Range<u64> {
    let named = || workload.iter().filter_map(|act| act.sectors());
    let first = named().map(|(first, _)| first).min();
    let end = named().map(|(_, end)| end).max();
    first.unwrap_or(0)..end.unwrap_or(0)
}

/// Fails I/O number n of these acts, for n = 0, 1, 2 ... until there is no such I/O: once, and from then on for its target.
/// Each act has ended before the next one. Returns how many I/Os there were.
///
/// # Errors
/// What does not hold, with the trace of the run.
pub fn fail_each(setup: &Setup, new: bool, acts: &[Act]) -> Result<u64, Failure> {
    let formatted = Formatted::new(setup);
    for after in 0.. {
        let mut failed = false;
        for (fault, lasts) in [
            (Fault::Io, false),
            (Fault::Gone, false),
            (Fault::Gone, true),
        ] {
            let mut world = match new {
                true => World::new(setup.clone()),
                false => formatted.world(),
            };
            world.record();
            if !new {
                world.finish();
            }
            world.fail_later(Failing {
                after,
                fault,
                lasts,
            });
            for act in acts {
                act.run(&mut world);
                world.finish();
            }
            failed |= world.has_failed();
            world.return_all();
            let choices = &mut RecordedChoices::new(&[]);
            world.verify(named(acts), choices);
            world.crash_again(choices);
            world.verify(named(acts), choices);
            if let Some(what) = world.breach() {
                return Err(Failure {
                    what: format!("I/O {after} fails with {fault:?}, lasting {lasts}: {what}"),
                    trace: world.trace().to_vec(),
                });
            }
        }
        if !failed {
            return Ok(after);
        }
    }
    Ok(u64::MAX)
}

/// Opening after the crash goes its way, or is cut off by another crash at any step.
fn recover(world: &mut World, choices: &mut dyn Choose) {
    for step in 0.. {
        world.bound(step);
        if world.breach().is_some() {
            return;
        }
        while world.effects() > 0 && world.breach().is_none() {
            world.perform();
        }
        if world.in_flight() == 0 {
            return;
        }
        if choices.seldom() {
            return world.crash_again(choices);
        }
        world.complete(0, Ok(()));
    }
}
