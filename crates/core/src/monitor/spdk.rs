//! The policy `spdk`: that of SPDK's dynamic scheduler, for comparison.
//!
//! Every second it places each disk anew, by busy shares alone. Disks below 20 % go to the main thread, the lowest active
//! one. Others go to the first thread, by number, that would be at most 80 % busy with them. A thread from 95 % on gives
//! disks to the least busy one if nothing fits. A thread without disks is parked; a parked one that gets disks is
//! activated. Nothing is tried or undone.
//!
//! # Source
//! `module/scheduler/dynamic/scheduler_dynamic.c` of SPDK. Its lightweight threads are our disks, its cores our threads.

use super::decision::{Action, Decision, Why};
use super::{Limits, Permille, Policy, Snapshot, ThreadNumber, ThreadState, Wish, permille};
use crate::units::Span;
use alloc::vec::Vec;

/// The scheduler's period.
const PERIOD: Span = Span::from_secs(1);
/// Disks below it are idle.
const LOAD_LIMIT: Permille = 200;
/// A thread gets a disk if it is at most so busy with it.
const CORE_LIMIT: Permille = 800;
/// A thread from here on is overloaded.
const CORE_BUSY: Permille = 950;

/// A thread as it will be.
#[derive(Clone, Copy, Debug)]
struct Core {
    usable: bool,
    busy: Permille,
    disks: usize,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Spdk {
    limits: Limits,
}

impl Spdk {
    /// A policy.
    pub fn new(limits: Limits) -> Spdk {
        Spdk { limits }
    }

    /// The threads; parked ones up to the limit are usable as they are activated for a disk.
    fn cores(&self, snapshot: &Snapshot) -> Vec<Core> {
        let mut spare = usize::from(self.limits.max).saturating_sub(snapshot.active());
        let core = |thread: &super::ThreadLoad| Core {
            usable: match thread.state {
                ThreadState::Active => true,
                ThreadState::Parked if spare > 0 => {
                    spare -= 1;
                    true
                }
                _ => false,
            },
            busy: thread.busy_share(),
            disks: 0,
        };
        let mut cores: Vec<Core> = snapshot.threads.iter().map(core).collect();
        for disk in &snapshot.disks {
            if let Some(core) = cores.get_mut(usize::from(disk.thread)) {
                core.disks += 1;
            }
        }
        cores
    }
}

impl Policy for Spdk {
    fn next(&self) -> Option<Wish> {
        Some(Wish {
            after: PERIOD,
            disks: true,
        })
    }

    fn decide(&mut self, snapshot: &Snapshot, out: &mut Vec<Decision>) {
        let Some(span) = snapshot.disks_span else {
            return;
        };
        let mut cores = self.cores(snapshot);
        let Some(main) = snapshot.threads.iter().position(|t| t.is_active()) else {
            return;
        };
        let mut woken: Vec<usize> = Vec::new();
        for is_idle_pass in [true, false] {
            for disk in &snapshot.disks {
                let from = usize::from(disk.thread);
                let load = permille(disk.busy, span);
                // A locked thread is an administrator's.
                let is_ours = cores.get(from).is_some_and(|core| core.usable);
                if !is_ours || (load < LOAD_LIMIT) != is_idle_pass {
                    continue;
                }
                let to = match is_idle_pass {
                    true => main,
                    false => optimal(&cores, from, main, load),
                };
                if to == from {
                    continue;
                }
                let why = Why::Shares {
                    disk: load,
                    from: cores[from].busy,
                    to: cores[to].busy,
                };
                cores[from].busy = cores[from].busy.saturating_sub(load);
                cores[from].disks -= 1;
                cores[to].busy += load;
                cores[to].disks += 1;
                if !snapshot.threads[to].is_active() && !woken.contains(&to) {
                    woken.push(to);
                    let thread = number(to);
                    push(snapshot, out, Action::Activate { thread }, why);
                }
                let action = Action::Move {
                    disk: disk.disk,
                    to: number(to),
                };
                push(snapshot, out, action, why);
            }
        }
        let mut active = snapshot.active() + woken.len();
        for at in (0..cores.len()).rev() {
            let empty = snapshot.threads[at].is_active() && cores[at].disks == 0;
            if empty && at != main && active > usize::from(self.limits.min.max(1)) {
                active -= 1;
                let threads = u16::try_from(active).unwrap_or(u16::MAX);
                let (thread, why) = (number(at), Why::Empty { threads });
                push(snapshot, out, Action::Lock { thread }, why);
                push(snapshot, out, Action::Park { thread }, why);
            }
        }
    }
}

/// The thread for a busy disk: the first that it fits on, main first, as long as that is a step down or its own is
/// overloaded.
fn optimal(cores: &[Core], from: usize, main: usize, load: Permille) -> usize {
    let is_over = cores[from].disks > 1 && cores[from].busy >= CORE_BUSY;
    let mut least = from;
    for (at, core) in cores.iter().enumerate() {
        if !core.usable {
            continue;
        }
        if core.busy < cores[least].busy {
            least = at;
        }
        let fits = core.disks == 0 || core.busy + load <= CORE_LIMIT;
        let is_preferred = at == main || (at < from && from != main) || is_over;
        if at != from && fits && is_preferred {
            return at;
        }
    }
    match is_over {
        true => least,
        false => from,
    }
}

fn number(at: usize) -> ThreadNumber {
    ThreadNumber::try_from(at).unwrap_or(ThreadNumber::MAX)
}

fn push(snapshot: &Snapshot, out: &mut Vec<Decision>, action: Action, why: Why) {
    out.push(Decision {
        at: snapshot.now,
        action,
        why,
    });
}
