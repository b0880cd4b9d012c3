//! Enumeration: all schedules of short workloads, with a crash at every step.
//!
//! A step is a request submitted, an effect performed, or an I/O completed. Each run crashes at one of them, or at its end.
//! A write that is not durable then persists whole, in part, or not at all. The disk is read, crashes again, and is read again.

use super::choice::{AllChoices, Choose, RecordedChoices};
use super::world::{GuestRequest, Setup, World};
use tidegate_core::request::{Flags, Op};

/// The result of an enumeration.
#[derive(Clone, Debug, Default)]
pub struct Explored {
    /// Workloads.
    pub workloads: u64,
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

/// Requests whose workloads cover what a disk of four sectors can get wrong: overlap, FUA, flush, discard, zeroes.
pub fn requests() -> Vec<GuestRequest> {
    let request = |op, flags, sector, sectors| GuestRequest {
        op,
        flags,
        sector,
        sectors,
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

/// Runs every workload of up to `longest` of these requests in every way. Ends at the first breach.
pub fn explore(setup: &Setup, longest: usize, requests: &[GuestRequest]) -> Explored {
    let mut found = Explored::default();
    for length in 1..=longest {
        let mut words = AllChoices::default();
        loop {
            let of = u32::try_from(requests.len()).expect("there are few requests");
            let word = (0..length).map(|_| requests[words.choose(of) as usize]);
            let workload: Vec<GuestRequest> = word.collect();
            found.workloads += 1;
            if let Some(failure) = all_runs(setup, &workload, &mut found.runs) {
                found.failure = Some(failure);
                return found;
            }
            if !words.advance() {
                break;
            }
        }
    }
    found
}

fn all_runs(setup: &Setup, workload: &[GuestRequest], runs: &mut u64) -> Option<Failure> {
    let mut all = AllChoices::default();
    loop {
        *runs += 1;
        let mut world = World::new(setup.clone());
        run(&mut world, workload, &mut all);
        if world.breach().is_some() {
            return Some(again(setup, workload, &all.choices()));
        }
        if !all.advance() {
            return None;
        }
    }
}

/// Runs a failed run once more, to record it.
fn again(setup: &Setup, workload: &[GuestRequest], choices: &[u32]) -> Failure {
    let mut world = World::new(setup.clone());
    world.record();
    run(&mut world, workload, &mut RecordedChoices::new(choices));
    Failure {
        what: world.breach().unwrap_or_default().to_owned(),
        trace: world.trace().to_vec(),
    }
}

fn run(world: &mut World, workload: &[GuestRequest], choices: &mut dyn Choose) {
    let mut requests = workload.iter();
    while world.breach().is_none() {
        let to_submit = u32::from(requests.len() > 0);
        let in_flight = u32::try_from(world.in_flight()).expect("a workload is short");
        // The first choice continues the run, the last one crashes the host.
        let crash = match world.effects() {
            0 => to_submit + in_flight,
            _ => 1,
        };
        let choice = choices.choose(crash + 1);
        if choice == crash {
            world.crash(choices);
            break;
        }
        if world.effects() > 0 {
            world.perform();
        } else if choice < to_submit {
            world.submit(*requests.next().expect("one is left"));
        } else {
            world.complete((choice - to_submit) as usize, Ok(()));
        }
    }
    world.verify();
    world.crash(choices);
    world.verify();
}
