//! The policy `iocm`: that of MIKELANGELO's dynamic I/O manager, for comparison.
//!
//! Every 0.1 s it looks at idle time. A wish that appeared in at least 60 % of the last 20 ticks is carried out: a thread
//! more or fewer. Then it waits for 0.5 s, measures for 0.5 s, and undoes the change unless more bytes a second pass.
//! Meanwhile it does nothing else (the manager sleeps). Disks are dealt out by index, modulo the number of threads.
//!
//! # Source
//! `io_workers_manager.py`, `io_manager.py` and `algos/throughput_policy.py` of the dynamic I/O manager. Adapted: its
//! mode without shared threads does not exist here, so one thread is always active; idle time of the guests' CPUs is
//! that of all CPUs without what our threads sleep, since CPUs are not divided between both.

use super::decision::{Action, Decision, Why};
use super::{
    DiskLoad, Limits, Permille, Policy, Snapshot, ThreadNumber, ThreadState, Wish, permille,
};
use crate::units::Span;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The tick of the generated configuration.
const TICK: Span = Span::from_millis(100);
/// Ticks over which a wish is counted, and in how many of them it must appear.
const VOTES: usize = 20;
const MAJORITY: usize = 12;
/// Halves of ticks since the last good change before the next: 7.5 ticks.
const AFTER_GOOD: u64 = 15;
/// Ticks of settling and of measuring.
const GRACE: usize = 5;
const MEASURED: usize = 5;
/// The first penalty and the longest, in ticks.
const PENALTY: u16 = 20;
const MOST_PENALTY: u16 = 100;
/// A change is good with so many bytes a microsecond more: 0.01 bytes a cycle of its 2.2 GHz machine.
const BETTER: u64 = 22;
/// Less idle time than this (of a CPU) calls for a thread, if guests leave more than a CPU idle.
const ADD_BELOW: Permille = 120;
const GUESTS_IDLE: Permille = 1000;
/// More idle time than this lets a thread go, if guests have less than 5 % of a CPU; far more lets it go anyway.
const REMOVE_ABOVE: Permille = 800;
const REMOVE_ABOVE_OF_FOUR: Permille = 1000;
const REMOVE_ANYWAY: Permille = 1300;
const GUESTS_STARVE: Permille = 50;
/// With smaller requests in the mean, fewer threads batch better.
const SMALL: u64 = 1600;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Add,
    Remove,
}

/// How often a change was wished for, and when it failed.
#[derive(Clone, Debug, Default)]
struct History {
    votes: VecDeque<bool>,
    /// The tick of the last failure, and the penalty.
    failed: Option<(u64, u16)>,
}

impl History {
    /// Takes a tick; whether the change may be made.
    fn vote(&mut self, tick: u64, wished: bool) -> bool {
        if !wished && self.votes.is_empty() {
            return false;
        }
        if self.votes.len() == VOTES {
            self.votes.pop_front();
        }
        self.votes.push_back(wished);
        let forgiven = self
            .failed
            .is_none_or(|(at, penalty)| tick > at + u64::from(penalty));
        wished && self.votes.len() == VOTES && self.wishes() >= MAJORITY && forgiven
    }

    fn wishes(&self) -> usize {
        self.votes.iter().filter(|&&wished| wished).count()
    }
}

/// A change that is being judged; the policy does nothing else meanwhile.
#[derive(Clone, Copy, Debug)]
struct Regret {
    change: Change,
    thread: ThreadNumber,
    before: u64,
    ticks: usize,
    sum: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Iocm {
    limits: Limits,
    tick: u64,
    add: History,
    remove: History,
    last_good: Option<u64>,
    /// Bytes a microsecond in the last ticks.
    rates: VecDeque<u64>,
    regret: Option<Regret>,
}

impl Iocm {
    /// A policy.
    pub fn new(limits: Limits) -> Iocm {
        Iocm {
            limits,
            tick: 0,
            add: History::default(),
            remove: History::default(),
            last_good: None,
            rates: VecDeque::new(),
            regret: None,
        }
    }

    /// Waits, measures, then keeps or undoes the change.
    fn regret(&mut self, mut regret: Regret, s: &Snapshot, rate: u64, out: &mut Vec<Decision>) {
        regret.ticks += 1;
        if regret.ticks > GRACE {
            regret.sum += rate;
        }
        if regret.ticks < GRACE + MEASURED {
            self.regret = Some(regret);
            return;
        }
        let after = regret.sum / MEASURED as u64;
        let before = regret.before;
        if after > before + BETTER || after == before {
            self.last_good = Some(self.tick);
            self.add = History::default();
            self.remove = History::default();
            let banned = 0;
            let why = Why::Regret {
                before,
                after,
                banned,
            };
            push(s, out, Action::Stay, why);
            return;
        }
        let history = match regret.change {
            Change::Add => &mut self.add,
            Change::Remove => &mut self.remove,
        };
        let banned = match history.failed {
            None => PENALTY,
            Some((_, penalty)) => (penalty * 2).min(MOST_PENALTY),
        };
        history.failed = Some((self.tick, banned));
        let why = Why::Regret {
            before,
            after,
            banned,
        };
        match regret.change {
            Change::Add => remove(s, regret.thread, why, out),
            Change::Remove => add(s, regret.thread, why, out),
        }
    }
}

impl Policy for Iocm {
    fn next(&self) -> Option<Wish> {
        Some(Wish {
            after: TICK,
            disks: true,
        })
    }

    fn decide(&mut self, snapshot: &Snapshot, out: &mut Vec<Decision>) {
        let Some(span) = snapshot.disks_span.filter(|span| *span > Span::ZERO) else {
            return;
        };
        let bytes: u64 = snapshot.disks.iter().map(|disk| disk.bytes).sum();
        let requests: u64 = snapshot.disks.iter().map(|disk| disk.completions).sum();
        let rate = bytes / span.as_micros().max(1);
        if let Some(regret) = self.regret.take() {
            return self.regret(regret, snapshot, rate, out);
        }
        self.tick += 1;
        if self.rates.len() == MEASURED {
            self.rates.pop_front();
        }
        self.rates.push_back(rate);

        let active = active(snapshot);
        let n = active.len();
        let threads = active.iter().map(|&at| snapshot.threads[usize::from(at)]);
        let sum = |of: fn(&super::ThreadLoad) -> Span| {
            let spans = threads.clone().map(|thread| of(&thread));
            spans.fold(Span::ZERO, |sum, span| sum + span)
        };
        let idle = permille(sum(|t| t.spin + t.sleep), snapshot.span);
        let asleep = permille(sum(|t| t.sleep), snapshot.span);
        let guests_idle = permille(snapshot.host.idle, span).saturating_sub(asleep);

        let removable = match n {
            0..=3 => idle > REMOVE_ABOVE,
            _ => idle > REMOVE_ABOVE_OF_FOUR,
        };
        let is_small = requests > 0 && bytes / requests < SMALL;
        let wants_add = idle < ADD_BELOW && guests_idle > GUESTS_IDLE;
        let wants_less = (removable && guests_idle < GUESTS_STARVE) || idle > REMOVE_ANYWAY;
        let wants_remove = !wants_add && (wants_less || is_small);
        let parked = (0..)
            .zip(&snapshot.threads)
            .find(|(_, t)| t.state == ThreadState::Parked);
        let can_add = wants_add && n < usize::from(self.limits.max) && parked.is_some();
        let can_remove = wants_remove && n > usize::from(self.limits.min.max(1));
        let may_add = self.add.vote(self.tick, can_add);
        let may_remove = self.remove.vote(self.tick, can_remove);
        let recently = self
            .last_good
            .is_some_and(|good| (self.tick - good) * 2 < AFTER_GOOD);
        if recently {
            return;
        }
        let why = |history: &History| Why::Idle {
            threads_idle: idle,
            guests_idle,
            votes: u16::try_from(history.wishes()).unwrap_or(u16::MAX),
        };
        let before = self.rates.iter().sum::<u64>() / self.rates.len().max(1) as u64;
        let change = if let (true, Some((thread, _))) = (may_add, parked) {
            add(snapshot, thread, why(&self.add), out);
            Some((Change::Add, thread))
        } else if let (true, Some(&thread)) = (may_remove, active.last()) {
            remove(snapshot, thread, why(&self.remove), out);
            Some((Change::Remove, thread))
        } else {
            None
        };
        self.regret = change.map(|(change, thread)| Regret {
            change,
            thread,
            before,
            ticks: 0,
            sum: 0,
        });
    }
}

fn push(snapshot: &Snapshot, out: &mut Vec<Decision>, action: Action, why: Why) {
    out.push(Decision {
        at: snapshot.now,
        action,
        why,
    });
}

/// The active threads, by number.
fn active(snapshot: &Snapshot) -> Vec<ThreadNumber> {
    let numbered = (0..).zip(&snapshot.threads);
    let active = numbered.filter(|(_, thread)| thread.is_active());
    active.map(|(number, _)| number).collect()
}

fn add(snapshot: &Snapshot, thread: ThreadNumber, why: Why, out: &mut Vec<Decision>) {
    let mut threads = active(snapshot);
    if !threads.contains(&thread) {
        threads.push(thread);
        threads.sort_unstable();
    }
    push(snapshot, out, Action::Activate { thread }, why);
    deal(snapshot, &threads, out);
}

fn remove(snapshot: &Snapshot, thread: ThreadNumber, why: Why, out: &mut Vec<Decision>) {
    let mut threads = active(snapshot);
    threads.retain(|&other| other != thread);
    push(snapshot, out, Action::Lock { thread }, why);
    deal(snapshot, &threads, out);
    push(snapshot, out, Action::Park { thread }, why);
}

/// Deals the disks of active threads out by index. Those of a locked thread stay there.
fn deal(snapshot: &Snapshot, threads: &[ThreadNumber], out: &mut Vec<Decision>) {
    let is_active = |disk: &&DiskLoad| {
        let thread = snapshot.threads.get(usize::from(disk.thread));
        thread.is_some_and(|thread| thread.state == ThreadState::Active)
    };
    let mut disks: Vec<_> = snapshot.disks.iter().filter(is_active).collect();
    disks.sort_by_key(|disk| disk.disk);
    for (disk, index) in disks.into_iter().zip(0_u32..) {
        let Some(&to) = threads.get(index as usize % threads.len().max(1)) else {
            return;
        };
        if disk.thread != to {
            let threads = u16::try_from(threads.len()).unwrap_or(u16::MAX);
            let why = Why::Index { index, threads };
            let disk = disk.disk;
            push(snapshot, out, Action::Move { disk, to }, why);
        }
    }
}
