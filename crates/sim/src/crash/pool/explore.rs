//! Enumeration for pools: all short workloads of writes, snapshots and other acts, with a crash at each step.
//!
//! A step is an effect, an I/O or a commit. Each workload runs as often as it has steps, twice over: everything that was
//! not durable at the crash persists, or nothing does, or a part by chance. Then everything is read, and once more after
//! another crash while the pool opens.

use super::oracle::Disk;
use super::world::{Formatted, World};
use super::{SUB_BLOCK, Setup};
use crate::crash::choice::{AllChoices, Choose, RandomChoices, RecordedChoices};
use crate::crash::explore::{Explored, Failure};
use crate::crash::world::{Failing, GuestRequest};
use tidegate_core::request::{Fault, Flags, Op};

/// What a workload is made of. It is done to the first disk, unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A guest's request.
    Guest(GuestRequest),
    /// The same of the newest disk: a clone, if there is one.
    GuestOfClone(GuestRequest),
    /// A snapshot.
    Snapshot,
    /// The oldest snapshot is deleted.
    Delete,
    /// The newest snapshot gets a clone.
    Clone,
    /// The disk shows its oldest snapshot again.
    Rollback,
    /// The pool gets one more column.
    AddColumn,
    /// The newest disk is deleted.
    Remove,
    /// The disk is detached, and attached again.
    Detach,
    /// This member fails everything from now on.
    LoseMember(usize),
    /// This member is there again, with other bytes if it is behind.
    BringBack(usize),
    /// Everything that is under way ends.
    Finish,
}

const FIRST: Disk = Disk(0);

impl Act {
    fn run(self, world: &mut World) {
        let snapshots = world.snapshots(FIRST);
        let newest = world.disks().last().copied().unwrap_or(FIRST);
        match self {
            Act::Guest(request) => world.submit(FIRST, request),
            Act::GuestOfClone(request) => world.submit(newest, request),
            Act::Snapshot => world.snapshot(FIRST),
            Act::Delete => {
                if let Some(oldest) = snapshots.first() {
                    world.delete(FIRST, *oldest);
                }
            }
            Act::Clone => {
                if let Some(newest) = snapshots.last() {
                    world.clone_of(FIRST, *newest);
                }
            }
            Act::Rollback => {
                if let Some(oldest) = snapshots.first() {
                    world.roll_back(FIRST, *oldest);
                }
            }
            Act::AddColumn => world.add_column(),
            Act::Remove => world.remove(newest),
            Act::Detach => world.detach(FIRST),
            Act::LoseMember(member) => world.lose_member(member),
            Act::BringBack(member) => world.bring_back(member, true),
            Act::Finish => world.finish(),
        }
    }
}

/// A request of whole sectors of the first disk.
pub fn request(op: Op, flags: Flags, sector: u64, sectors: u64) -> GuestRequest {
    GuestRequest {
        op,
        flags,
        sector,
        sectors,
    }
}

/// The acts whose workloads are enumerated: writes of a part of one sub-block and over its end, a discard of a whole
/// one, zeroes over parts of two, a flush, and what an administrator does.
pub fn acts() -> Vec<Act> {
    vec![
        Act::Guest(request(Op::Write, Flags::NONE, 1, 2)),
        Act::Guest(request(Op::Write, Flags::FUA, SUB_BLOCK - 1, 2)),
        Act::Guest(request(Op::Discard, Flags::NONE, 0, SUB_BLOCK)),
        Act::Guest(request(
            Op::WriteZeroes,
            Flags::NONE,
            SUB_BLOCK / 2,
            SUB_BLOCK,
        )),
        Act::Guest(request(Op::Flush, Flags::NONE, 0, 0)),
        Act::Snapshot,
        Act::Delete,
        Act::Clone,
        Act::Rollback,
        Act::AddColumn,
        Act::GuestOfClone(request(Op::Write, Flags::NONE, 2, SUB_BLOCK)),
    ]
}

/// The same for columns of several members: these are lost, and come back.
pub fn acts_of_members() -> Vec<Act> {
    vec![
        Act::Guest(request(Op::Write, Flags::NONE, 1, 2)),
        Act::Guest(request(Op::Write, Flags::FUA, SUB_BLOCK - 1, 2)),
        Act::Guest(request(Op::WriteZeroes, Flags::NONE, 0, SUB_BLOCK)),
        Act::Guest(request(Op::Flush, Flags::NONE, 0, 0)),
        Act::Snapshot,
        Act::LoseMember(0),
        Act::LoseMember(1),
        Act::BringBack(0),
        Act::BringBack(1),
    ]
}

/// What has happened before the acts of a workload: the first sub-blocks have data, and there is a snapshot.
fn prepared(formatted: &Formatted) -> World {
    let mut world = formatted.world();
    world.finish();
    for act in [
        Act::Guest(request(Op::Write, Flags::NONE, 0, 2 * SUB_BLOCK)),
        Act::Finish,
        Act::Snapshot,
        Act::Finish,
    ] {
        act.run(&mut world);
    }
    world
}

/// How far an enumeration goes.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Acts of a workload.
    pub longest: usize,
    /// Only one in so many steps is a crash, another one for each workload.
    pub stride: u32,
}

/// Runs every workload of these acts, with a crash at each step. Ends at the first breach.
pub fn explore(setup: &Setup, acts: &[Act], depth: Depth) -> Explored {
    let formatted = Formatted::new(setup);
    let mut found = Explored::default();
    let mut words = AllChoices::default();
    loop {
        let of = u32::try_from(acts.len()).expect("there are few acts");
        let word = (0..depth.longest).map(|_| acts[words.choose(of) as usize]);
        let workload: Vec<Act> = word.collect();
        found.workloads += 1;
        let number = u32::try_from(found.workloads).unwrap_or(u32::MAX);
        let first = number % depth.stride;
        found.failure = crash_each(
            &formatted,
            &workload,
            [first, depth.stride],
            &mut found.runs,
        );
        if found.failure.is_some() || !words.advance() {
            return found;
        }
    }
}

/// Runs one workload with a crash at one in so many steps.
pub fn explore_one(setup: &Setup, workload: &[Act], stride: u32) -> Explored {
    let mut found = Explored {
        workloads: 1,
        ..Explored::default()
    };
    let formatted = Formatted::new(setup);
    found.failure = crash_each(&formatted, workload, [0, stride], &mut found.runs);
    found
}

/// Runs a workload with a crash at the first of these steps, and at each one so many steps later.
fn crash_each(
    formatted: &Formatted,
    workload: &[Act],
    [first, stride]: [u32; 2],
    runs: &mut u64,
) -> Option<Failure> {
    // With nothing under way between two acts, and with everything.
    for beside in [false, true] {
        let mut at = first;
        while let Some(outcome) = crash_at(formatted, workload, beside, at, runs) {
            if let Err(failure) = outcome {
                return Some(failure);
            }
            at += stride;
        }
    }
    None
}

/// Runs a workload up to this step, with a crash there. None: it has fewer steps.
fn crash_at(
    formatted: &Formatted,
    workload: &[Act],
    beside: bool,
    at: u32,
    runs: &mut u64,
) -> Option<Result<(), Failure>> {
    for remainder in [Remainder::All, Remainder::None, Remainder::Some(at)] {
        *runs += 1;
        let run = |record: bool| {
            let mut world = prepared(formatted);
            if record {
                world.record();
            }
            let mut choices = remainder.choices();
            let is_long = play(&mut world, workload, beside, at, choices.as_mut());
            (world, is_long)
        };
        let (world, is_long) = run(false);
        if world.breach().is_some() {
            let (world, _) = run(true);
            return Some(Err(Failure {
                what: format!(
                    "{workload:?}, beside each other: {beside}, crash at {at}, {remainder:?}: {}",
                    world.breach().unwrap_or_default()
                ),
                trace: world.trace().to_vec(),
            }));
        }
        if !is_long {
            return None;
        }
    }
    Some(Ok(()))
}

/// What a crash leaves of what is not durable.
#[derive(Clone, Copy, Debug)]
enum Remainder {
    All,
    None,
    /// By chance, from this seed.
    Some(u32),
}

impl Remainder {
    fn choices(self) -> Box<dyn Choose> {
        match self {
            Remainder::All => Box::new(Always(0)),
            Remainder::None => Box::new(Always(1)),
            Remainder::Some(seed) => Box::new(RandomChoices::new(seed.into())),
        }
    }
}

/// The same choice each time.
struct Always(u32);

impl Choose for Always {
    fn choose(&mut self, of: u32) -> u32 {
        self.0.min(of - 1)
    }
}

/// Returns whether the workload has so many steps.
fn play(
    world: &mut World,
    workload: &[Act],
    beside: bool,
    at: u32,
    choices: &mut dyn Choose,
) -> bool {
    let mut acts = workload.iter();
    let mut steps = 0;
    let mut is_long = true;
    while steps < at && world.breach().is_none() {
        steps += 1;
        // An act comes once nothing is under way, or after every third step.
        if (!beside || !steps.is_multiple_of(3)) && world.step() {
            continue;
        }
        match acts.next() {
            Some(act) => act.run(world),
            None if world.step() => {}
            None => {
                is_long = false;
                break;
            }
        }
    }
    world.crash(choices);
    // Opening is cut off as well: after more steps each time.
    for _ in 0..at % 8 {
        world.step();
    }
    world.crash(choices);
    world.verify(choices);
    world.crash(choices);
    world.verify(choices);
    is_long
}

/// Fails I/O number n of these acts, for n = 0, 1, 2 ... until there is no such I/O: once, and from then on for its
/// column; a write has happened nevertheless, or not. Each act has ended before the next one. Then either the disks work
/// without another start, or a crash takes everything that is not durable. Returns how many I/Os there were.
///
/// # Errors
/// What does not hold, with the trace of the run.
pub fn fail_each(setup: &Setup, acts: &[Act]) -> Result<u64, Failure> {
    let formatted = Formatted::new(setup);
    for after in 0.. {
        let mut failed = false;
        for (fault, lasts) in [
            (Fault::Io, false),
            (Fault::Gone, false),
            (Fault::Gone, true),
        ] {
            let failing = Failing {
                after,
                fault,
                lasts,
            };
            for (goes_on, other) in [(true, false), (false, false), (false, true)] {
                let mut world = prepared(&formatted);
                world.record();
                failed |= fail_one(&mut world, acts, failing, goes_on, other);
                if let Some(what) = world.breach() {
                    return Err(Failure {
                        what: format!("{failing:?}, goes on: {goes_on}, {other}: {what}"),
                        trace: world.trace().to_vec(),
                    });
                }
            }
        }
        if !failed {
            return Ok(after);
        }
    }
    Ok(u64::MAX)
}

/// Returns whether there was such an I/O.
fn fail_one(world: &mut World, acts: &[Act], failing: Failing, goes_on: bool, other: bool) -> bool {
    if other {
        world.let_others_happen();
    }
    world.fail_later(failing);
    for act in acts {
        act.run(world);
        world.finish();
    }
    let failed = world.has_failed();
    match goes_on {
        true => world.go_on_after_faults(),
        false => {
            world.repair();
            world.crash(&mut Always(1));
        }
    }
    let choices = &mut RecordedChoices::new(&[]);
    world.verify(choices);
    world.crash(choices);
    world.verify(choices);
    failed
}
