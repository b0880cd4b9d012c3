//! The policy `auto`: as many threads as requests need to be served soon, and no more; each change is tried and judged.
//!
//! It is called every 5 ms while there is load (every 20 ms while there is little). A thread is congested if two things hold:
//! in two of three ticks its requests waited longer than the target or through a whole tick, and it is busy for at least half
//! of its time. Then a disk moves to a thread that has room, or a parked thread gets half of the load. Every 100 ms it checks whether the load fits one thread fewer
//! or is uneven. A change of the number of threads, or of polling, is a trial: it is undone if it did no good.
//!
//! It does not know what a datastore does: a slow disk is not congested, since its requests do not wait for a thread. Nor is
//! a thread that lacks a CPU: its requests wait for that, and a move or another thread gives it none.
//!
//! # Always true
//! - one trial at a time; congestion is relieved by moves meanwhile
//! - a thread that it has not locked itself is never unlocked
//! - while a thread lacks a CPU, nothing is done about its delays, and no disk moves to it to relieve or to even
//! - changes are bounded, whatever guests do (`budget.rs`)
//! - a disk that moved in the last 500 ms moves only back, to a thread that was just activated, or from one that is emptied
//!
//! # Picture
//! ```text
//!                 congested, no room              keeps
//!   n threads ---------------------> trial n+1 ---------> n+1 threads
//!      ^  ^                             | undo: banned 2 s, 4 s, ...
//!      |  +-----------------------------+
//!      |      undo: banned                        keeps
//!      +---------------------------- trial n-1 ---------> n-1 threads
//!                                       ^ fits, 10 slow ticks; or a probe while guests lack CPUs
//! ```

mod bans;
mod budget;
mod leaving;
mod observed;
mod placement;
mod probe;
mod trial;

use super::decision::{Action, Decision, Verdict, Why};
use super::{Limits, Permille, Policy, Snapshot, ThreadNumber, ThreadState, Wish};
use crate::units::{Span, Time};
use alloc::vec::Vec;
use bans::{Bans, Direction, Offered};
use budget::Budget;
use leaving::Leaving;
use observed::{Observed, SlowTick};
use placement::Relocation;
use trial::{Cause, Outcome, Trial};

/// The fast tick. Origin: three of them are the reaction time that is wanted, 15 ms.
const FAST: Span = Span::from_millis(5);
/// The fast tick while threads are mostly idle: a load that comes is noticed in two ticks less, so in 30 ms.
const LIGHT_LOAD: Span = Span::from_millis(20);
/// The slow tick: for what saves CPUs.
const SLOW: Span = Span::from_millis(100);
/// Snapshots further apart do not continue each other: the host rested.
const GAP: Span = Span::from_millis(250);
/// Disks' counts of a longer time may be older than the congestion that they are to explain.
const FRESH: Span = Span::from_millis(25);
/// The target of the queueing delay. Origin: two wake-ups of an idle CPU; below it a thread more cannot help.
const TARGET: Span = Span::from_micros(100);
/// In dense mode requests wait for a scan of 1 ms and a call of 1 ms anyway.
const TARGET_DENSE: Span = Span::from_millis(2);
/// A thread gets a disk only if it is at most so busy afterwards.
const FIT: Permille = 750;
/// A move gains at least so much of the busier thread.
const GAIN: Permille = 50;
/// On one thread fewer, each is at most so busy.
const PACKED: Permille = 600;
/// A load so small is packed even if its delays are long, as they then come from waking up.
const PACKED_ANYWAY: Permille = 300;
/// So many slow ticks in a row before the load is packed.
const CALM: u32 = 10;
/// So many slow ticks in a row before an uneven load is moved.
const UNEVEN: u32 = 3;
/// Less deviation than this much (thousandths, squared) is even; so is a load whose busiest thread is below 300.
const EVEN: u64 = 50 * 50;
const EVEN_BELOW: Permille = 300;
/// Time between two rounds of making loads even. Origin: the residency of a disk, ten times.
const EVENED: Span = Span::from_secs(5);
/// After a change that was undone, queues need so long to drain.
const DRAINING: Span = Span::from_millis(100);
/// A disk that moved stays for so long.
const RESIDENCY: Span = Span::from_millis(500);
/// Moves in a slow tick, other than those of a change of the number of threads.
const MOVES: usize = 4;
const PROBES_SAVED: Span = Span::from_millis(900);
/// After a step down that had to be taken back within this time, the step down is banned, too.
const RETURN: Span = Span::from_secs(60);
/// The last step down.
#[derive(Clone, Copy, Debug)]
struct StepDown {
    at: Time,
    /// Active threads before.
    from: usize,
    offered: Offered,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Auto {
    limits: Limits,
    now: Time,
    observed: Observed,
    trial: Option<Trial>,
    bans: Bans,
    budget: Budget,
    leaving: Option<Leaving>,
    step_down: Option<StepDown>,
    /// Whether idle threads may poll.
    spin: bool,
    /// The load when polling was turned off.
    spin_off_at: Offered,
    /// Until then queues that a bad change filled are left to drain.
    draining: Time,
    /// Moves since the last slow tick.
    moves: usize,
    calm: u32,
    uneven: u32,
    evened: Time,
    probed: Time,
    probed_at: Offered,
    /// Time that probes may take.
    probe_credit: Span,
    /// Slow ticks since the load changed, and the load.
    steady: u32,
    steady_at: Offered,
}

impl Auto {
    /// A policy for a host whose threads poll as configured.
    pub fn new(limits: Limits) -> Auto {
        Auto {
            limits,
            now: Time::ZERO,
            observed: Observed::default(),
            trial: None,
            bans: Bans::default(),
            budget: Budget::default(),
            leaving: None,
            step_down: None,
            spin: true,
            spin_off_at: Offered::default(),
            draining: Time::ZERO,
            moves: 0,
            calm: 0,
            uneven: 0,
            evened: Time::ZERO,
            probed: Time::ZERO,
            probed_at: Offered::default(),
            probe_credit: PROBES_SAVED,
            steady: 0,
            steady_at: Offered::default(),
        }
    }

    fn push(&self, out: &mut Vec<Decision>, action: Action, why: Why) {
        let at = self.now;
        out.push(Decision { at, action, why });
    }

    fn push_moves(&self, out: &mut Vec<Decision>, moves: &[Relocation], why: Why) {
        for &(disk, _, to) in moves {
            self.push(out, Action::Move { disk, to }, why);
        }
    }

    /// The most threads that may be active.
    fn most(&self, snapshot: &Snapshot) -> usize {
        usize::from(self.limits.max.min(snapshot.host.cpus.max(1)))
    }

    /// Moves disks away from congested threads, or activates a thread.
    fn relieve(&mut self, snapshot: &Snapshot, out: &mut Vec<Decision>) {
        if self.now < self.draining {
            return;
        }
        let target = self.observed.target;
        let Some(worst) = self.observed.worst(snapshot) else {
            return;
        };
        let direction = self.trial.as_ref().map(|trial| trial.direction);
        if direction == Some(Direction::Down) {
            // One thread fewer does not do: the trial need not last any longer.
            self.conclude(snapshot, Trial::judge_early, out);
            return;
        }
        let at = usize::from(worst);
        let (busy, load) = (self.observed.busy(at), &snapshot.threads[at]);
        let delay = load.delay_p99;
        let why = Why::Congested {
            thread: worst,
            busy,
            delay,
            target,
            standing: load.standing,
            threads: narrow(snapshot.active()),
        };
        let wait = self.budget.wait();
        if wait > Span::ZERO {
            let thread = worst;
            let why = Why::TooManyChanges {
                thread,
                busy,
                delay,
                wait,
            };
            return self.report(worst, why, out);
        }
        let mut loads = self.observed.loads_with_cpu(snapshot);
        loads[at] = Some(busy);
        let shares: Vec<Permille> = loads.iter().map(|load| load.unwrap_or(0)).collect();
        let now = self.now;
        let parts = placement::parts(snapshot.disks.iter(), &shares, |disk| settled(disk, now));
        if self.moves < MOVES
            && let Some(relocation) = placement::relieve(worst, &loads, &parts, FIT, GAIN)
        {
            self.moves += 1;
            self.budget.pay();
            self.push_moves(out, &[relocation], why);
            self.observed.changed(&[worst, relocation.2]);
            return;
        }
        if direction.is_some() && direction != Some(Direction::Up) || self.leaving.is_some() {
            return;
        }
        let Some(parked) = parked(snapshot) else {
            return self.report_full(snapshot, worst, busy, Span::ZERO, out);
        };
        // A new thread gets disks that have just come as well: they cannot go back and forth.
        let all = placement::parts(snapshot.disks.iter(), &shares, |_| true);
        let moves = placement::halve(worst, parked, &all, GAIN);
        if moves.is_empty() {
            return self.report_one_disk(snapshot, worst, busy, &parts, out);
        }
        let before = self.observed.congested_window(worst);
        let n = snapshot.active();
        let left = self
            .bans
            .left(now, n, Direction::Up, self.observed.offered());
        if n >= self.most(snapshot) || (left > Span::ZERO && direction.is_none()) {
            return self.report_full(snapshot, worst, busy, left, out);
        }
        self.notice_return(n);
        self.budget.pay();
        let action = Action::Activate { thread: parked };
        self.push(out, action, why);
        self.push_moves(out, &moves, why);
        self.observed.changed(&[worst, parked]);
        let mut trial = match self.trial.take() {
            Some(trial) => trial,
            None => Trial::new(now, Direction::Up, n, before),
        };
        trial.restart(now);
        trial.threads.push(parked);
        trial.moves.extend(moves);
        self.trial = Some(trial);
        self.calm = 0;
    }

    /// A step up soon after a step down without more load: the step down was wrong, although its trial went well. A thread
    /// that is too busy reads fewer requests, so fewer do not mean less load.
    fn notice_return(&mut self, n: usize) {
        let offered = self.observed.offered();
        if let Some(step) = self.step_down.take()
            && step.from == n + 1
            && self.now.since(step.at) < RETURN
            && (step.offered.rate >= offered.rate || step.offered.is_near(offered))
        {
            self.bans
                .add(self.now, step.from, Direction::Down, step.offered);
        }
    }

    fn report(&mut self, thread: ThreadNumber, why: Why, out: &mut Vec<Decision>) {
        if self.observed.report(thread) {
            self.push(out, Action::Stay, why);
        }
    }

    fn report_full(
        &mut self,
        snapshot: &Snapshot,
        thread: ThreadNumber,
        busy: Permille,
        banned: Span,
        out: &mut Vec<Decision>,
    ) {
        let why = Why::NoThreadLeft {
            thread,
            busy,
            delay: snapshot.threads[usize::from(thread)].delay_p99,
            threads: narrow(snapshot.active()),
            banned,
        };
        if self.observed.report_all() {
            self.push(out, Action::Stay, why);
        }
    }

    fn report_one_disk(
        &mut self,
        snapshot: &Snapshot,
        thread: ThreadNumber,
        busy: Permille,
        parts: &[placement::Part],
        out: &mut Vec<Decision>,
    ) {
        let mut own = parts.iter().filter(|part| part.thread == thread);
        let largest = own.clone().next();
        // Disks that have just come will be movable soon.
        if own.any(|part| !part.movable && part.load > GAIN) {
            return;
        }
        let disk = largest.and_then(|part| snapshot.disks.iter().find(|d| d.disk == part.disk));
        if let Some(disk) = disk {
            let why = Why::OneDisk {
                thread,
                disk: disk.disk,
                busy,
                delay: snapshot.threads[usize::from(thread)].delay_p99,
                queues: disk.queues,
            };
            self.report(thread, why, out);
        }
    }

    /// Ends the trial with a verdict.
    fn conclude(
        &mut self,
        snapshot: &Snapshot,
        judge: fn(&Trial, Span) -> (Outcome, Verdict),
        out: &mut Vec<Decision>,
    ) {
        let Some(trial) = self.trial.take() else {
            return;
        };
        let (outcome, verdict) = judge(&trial, self.observed.target);
        let (base, direction) = (trial.base, trial.direction);
        let offered = trial.before.offered();
        let stays = match outcome {
            Outcome::Keep => {
                self.bans.judged(base, direction);
                self.push(out, Action::Stay, Why::Better(verdict));
                true
            }
            Outcome::Undo => {
                self.bans.judged(base, direction);
                let ban = self.bans.add(self.now, base, direction, offered);
                self.undo(snapshot, &trial, Why::Worse(verdict, ban), out);
                false
            }
            Outcome::Void(cause)
                if trial.stays_without_verdict(cause)
                    || cause == Cause::LessLoad && self.is_needed_yet(snapshot, &trial) =>
            {
                self.push(out, Action::Stay, Why::Void(verdict, Span::ZERO));
                true
            }
            Outcome::Void(_) => {
                let hold = self.bans.hold(self.now, base, direction);
                self.undo(snapshot, &trial, Why::Void(verdict, hold), out);
                false
            }
        };
        if !stays {
            self.budget.pay();
            self.draining = self.now + DRAINING;
        } else if direction == Direction::Down {
            self.step_down = Some(StepDown {
                at: self.now,
                from: base,
                offered,
            });
        }
        self.calm = 0;
    }

    /// Whether threads that a trial has added are needed although the load has changed: what is left does not fit those before.
    /// Otherwise a guest that stops during each trial would keep another thread from its neighbours.
    fn is_needed_yet(&self, snapshot: &Snapshot, trial: &Trial) -> bool {
        let loads = self.observed.loads(snapshot);
        let left: Permille = loads.iter().flatten().sum();
        let before = Permille::try_from(trial.base).unwrap_or(Permille::MAX);
        trial.direction == Direction::Up && left > PACKED.saturating_mul(before)
    }

    /// Reports a thread whose requests wait because it lacks a CPU.
    fn report_lack(&mut self, snapshot: &Snapshot, out: &mut Vec<Decision>) {
        if let Some((thread, stolen)) = self.observed.report_lack(snapshot) {
            let at = usize::from(thread);
            let why = Why::NoCpu {
                thread,
                stolen,
                busy: self.observed.busy(at),
                delay: snapshot.threads[at].delay_p99,
            };
            self.push(out, Action::Stay, why);
        }
    }

    /// What saves CPUs or makes loads even; every 100 ms.
    fn slow(&mut self, snapshot: &Snapshot, slow: &SlowTick, out: &mut Vec<Decision>) {
        let n = snapshot.active();
        let now = self.now;
        let shares: Vec<Permille> = slow.loads.iter().map(|load| load.unwrap_or(0)).collect();
        let parts = placement::parts(slow.disks.iter(), &shares, |disk| settled(disk, now));
        let victim = (0..)
            .zip(&slow.loads)
            .filter_map(|(number, load)| load.map(|load| (load, core::cmp::Reverse(number))))
            .min()
            .map(|(_, number)| number.0);
        let packed = victim.and_then(|thread| {
            let (moves, highest) = placement::empty(thread, &slow.loads, &parts)?;
            Some((thread, moves, highest))
        });
        let is_free = self.trial.is_none() && self.leaving.is_none();
        let fits = packed.as_ref().is_some_and(|&(_, _, highest)| {
            highest <= PACKED && (slow.is_prompt || highest <= PACKED_ANYWAY)
        });
        let is_candidate = is_free && n > usize::from(self.limits.min.max(1)) && fits;
        self.calm = if is_candidate { self.calm + 1 } else { 0 };
        let lacks_cpu = (0..slow.loads.len()).any(|at| self.observed.lacks_cpu(at));
        let is_steady = is_free && !slow.is_congested && !lacks_cpu;
        let is_uneven = is_steady && self.improve(slow, &parts).is_some();
        self.uneven = if is_uneven { self.uneven + 1 } else { 0 };
        if !is_free || !self.budget.is_ample() {
            return;
        }
        if let Some((thread, moves, highest)) = packed {
            let why = Why::Unneeded {
                threads: narrow(n),
                packed: highest,
                delay: slow.delay,
            };
            if self.calm >= CALM && self.step_down(n, thread, &moves, &parts, why, out) {
                return;
            }
            if self.probe(snapshot, slow, Some((thread, &moves, highest)), &parts, out) {
                return;
            }
        } else if self.probe(snapshot, slow, None, &parts, out) {
            return;
        }
        if self.uneven >= UNEVEN
            && now.since(self.evened) >= EVENED
            && let Some((moves, before, after)) = self.improve(slow, &parts)
        {
            self.push_moves(out, &moves, Why::Uneven { before, after });
            self.moves += moves.len();
            for _ in &moves {
                self.budget.pay();
            }
            self.evened = now;
            self.uneven = 0;
        }
    }

    /// The moves that improve the variance by a quarter, with the variance before and after.
    fn improve(
        &self,
        slow: &SlowTick,
        parts: &[placement::Part],
    ) -> Option<(Vec<Relocation>, u64, u64)> {
        let before = placement::variance(&slow.loads);
        let highest = slow.loads.iter().flatten().max()?;
        if before < EVEN || *highest < EVEN_BELOW {
            return None;
        }
        let (moves, after) = placement::even(&slow.loads, parts, MOVES.saturating_sub(self.moves));
        let gained = before.saturating_sub(after);
        (!moves.is_empty() && gained >= before / 4).then_some((moves, before, after))
    }

    /// Tries one thread fewer, if that is not banned and its disks may move.
    fn step_down(
        &mut self,
        n: usize,
        thread: ThreadNumber,
        moves: &[Relocation],
        parts: &[placement::Part],
        why: Why,
        out: &mut Vec<Decision>,
    ) -> bool {
        let mut own = parts.iter().filter(|part| part.thread == thread);
        let offered = self.observed.offered();
        let banned = self.bans.left(self.now, n, Direction::Down, offered) > Span::ZERO;
        if banned || own.any(|part| !part.movable) {
            return false;
        }
        self.budget.pay();
        self.leave(thread, moves, why, out);
        let mut trial = Trial::new(self.now, Direction::Down, n, self.observed.all());
        trial.threads.push(thread);
        trial.moves.extend_from_slice(moves);
        self.trial = Some(trial);
        self.calm = 0;
        self.observed.changed(&[thread]);
        for relocation in moves {
            self.observed.changed(&[relocation.2]);
        }
        true
    }

    /// Gives up a trial whose threads are not as it left them: an administrator changed them, or an action failed.
    fn check_trial(&mut self, snapshot: &Snapshot) {
        let Some(trial) = &self.trial else { return };
        let state = |thread: &ThreadNumber| snapshot.threads.get(usize::from(*thread));
        let is_as = |wanted: bool| {
            let mut threads = trial.threads.iter();
            threads.all(|thread| state(thread).is_some_and(|load| load.is_active() == wanted))
        };
        let holds = match trial.direction {
            Direction::Up => is_as(true),
            Direction::Down => is_as(false),
            Direction::SpinOn | Direction::SpinOff => true,
        };
        if !holds {
            let offered = trial.before.offered();
            self.bans
                .add(self.now, trial.base, trial.direction, offered);
            self.trial = None;
        }
    }
}

impl Policy for Auto {
    fn next(&self) -> Option<Wish> {
        let after = match self.trial.is_none() && self.observed.is_light() {
            true => LIGHT_LOAD,
            false => FAST,
        };
        let next = self.now + after;
        let judging = self.trial.as_ref().is_some_and(|t| t.wants_disks(next));
        Some(Wish {
            after,
            disks: judging || self.observed.wants_disks(next) || self.observed.is_slow(next),
        })
    }

    fn decide(&mut self, snapshot: &Snapshot, out: &mut Vec<Decision>) {
        self.now = snapshot.now;
        self.budget.earn(self.now);
        if snapshot.span > GAP {
            // What was before the host rested says nothing about now.
            self.observed.forget(snapshot.now);
            self.trial = None;
            self.calm = 0;
            self.uneven = 0;
            return;
        }
        self.check_trial(snapshot);
        self.observed.add(snapshot);
        if self.trial.as_mut().is_some_and(|trial| trial.see(snapshot)) {
            self.conclude(snapshot, Trial::judge, out);
            return;
        }
        let target = self.observed.target;
        let detailed = snapshot.disks_span.is_some();
        if detailed
            && self
                .trial
                .as_ref()
                .is_some_and(|trial| trial.is_disaster(target))
        {
            self.conclude(snapshot, Trial::judge, out);
            return;
        }
        let before = out.len();
        self.relieve(snapshot, out);
        if snapshot.disks_span.is_some() && self.observed.is_slow(snapshot.now) {
            let slow = self.observed.take_slow(snapshot);
            self.moves = 0;
            self.note_steadiness(&slow);
            self.report_lack(snapshot, out);
            let has_changed = out[before..].iter().any(|it| it.action != Action::Stay);
            if !has_changed {
                self.finish_leaving(snapshot, out);
                self.slow(snapshot, &slow, out);
            }
        }
    }
}

/// Whether a disk has been on its thread for long enough.
fn settled(disk: &super::DiskLoad, now: Time) -> bool {
    disk.moved.is_none_or(|moved| now.since(moved) >= RESIDENCY)
}

/// The lowest parked thread.
fn parked(snapshot: &Snapshot) -> Option<ThreadNumber> {
    let mut numbered = (0..).zip(&snapshot.threads);
    let found = numbered.find(|(_, thread)| thread.state == ThreadState::Parked);
    found.map(|(number, _)| number)
}

/// A number of threads; there are never more than fit.
fn narrow(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}
