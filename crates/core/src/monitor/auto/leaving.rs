//! Emptying threads and parking them, and undoing trials.
//!
//! A thread is locked, its disks move, and it is parked. If a disk could not move, the rest follows at slow ticks. After some
//! seconds the thread becomes active again.

use super::bans::Direction;
use super::placement::{self, Relocation};
use super::trial::Trial;
use super::{Action, Auto, Decision, Permille, Snapshot, ThreadNumber, ThreadState, Why};
use crate::units::{Span, Time};
use alloc::vec::Vec;

/// A locked thread whose disks do not leave becomes active again.
const LEAVING: Span = Span::from_secs(5);

/// A thread that is being emptied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    thread: ThreadNumber,
    since: Time,
    why: Why,
}

impl Auto {
    /// Takes a change back.
    pub(super) fn undo(
        &mut self,
        snapshot: &Snapshot,
        trial: &Trial,
        why: Why,
        out: &mut Vec<Decision>,
    ) {
        match trial.direction {
            Direction::Up => {
                for &thread in trial.threads.iter().rev() {
                    let moves = self.back_from(snapshot, thread, trial);
                    self.leave(thread, &moves, why, out);
                }
            }
            Direction::Down => {
                for &thread in &trial.threads {
                    self.push(out, Action::Activate { thread }, why);
                }
                let is_there = |&&(disk, _, to): &&Relocation| {
                    let mut disks = snapshot.disks.iter();
                    disks.any(|load| load.disk == disk && load.thread == to)
                };
                let moved = trial.moves.iter().filter(is_there);
                let back: Vec<_> = moved.map(|&(disk, from, to)| (disk, to, from)).collect();
                self.push_moves(out, &back, why);
                self.leaving = None;
            }
            Direction::SpinOn | Direction::SpinOff => {
                self.spin = trial.direction == Direction::SpinOff;
                self.push(out, Action::Spin { on: self.spin }, why);
            }
        }
    }

    /// Where the disks of a thread go that the trial activated: back, or to the least busy.
    fn back_from(
        &self,
        snapshot: &Snapshot,
        thread: ThreadNumber,
        trial: &Trial,
    ) -> Vec<Relocation> {
        let mut loads = self.observed.loads(snapshot);
        for &temporary in &trial.threads {
            loads[usize::from(temporary)] = None;
        }
        let shares: Vec<Permille> = loads.iter().map(|load| load.unwrap_or(0)).collect();
        let parts = placement::parts(snapshot.disks.iter(), &shares, |_| true);
        let (moves, _) = placement::empty(thread, &loads, &parts).unwrap_or_default();
        let origin = |disk| {
            let mut of_trial = trial.moves.iter();
            let first = of_trial.find(|relocation| relocation.0 == disk)?;
            let is_active = loads.get(usize::from(first.1)).copied().flatten().is_some();
            is_active.then_some(first.1)
        };
        let back = moves
            .into_iter()
            .map(|(disk, from, to)| (disk, from, origin(disk).unwrap_or(to)));
        back.collect()
    }

    /// Empties a thread and parks it.
    pub(super) fn leave(
        &mut self,
        thread: ThreadNumber,
        moves: &[Relocation],
        why: Why,
        out: &mut Vec<Decision>,
    ) {
        self.push(out, Action::Lock { thread }, why);
        self.push_moves(out, moves, why);
        self.push(out, Action::Park { thread }, why);
        let since = self.now;
        self.leaving = Some(Leaving { thread, since, why });
    }

    /// Parks a thread that could not be emptied at once, or takes it back.
    pub(super) fn finish_leaving(&mut self, snapshot: &Snapshot, out: &mut Vec<Decision>) {
        let Some(leaving) = self.leaving else { return };
        let (thread, at) = (leaving.thread, usize::from(leaving.thread));
        let state = snapshot.threads.get(at).map(|thread| thread.state);
        // An administrator may have locked it, too, or taken it into use.
        if state != Some(ThreadState::Leaving) {
            self.leaving = None;
            return;
        }
        if self.now.since(leaving.since) > LEAVING {
            self.push(out, Action::Activate { thread }, leaving.why);
            self.leaving = None;
            // A disk that cannot leave, as one that hangs in a detach, would not leave the next time either.
            let active = snapshot.threads.iter();
            let active = active.filter(|thread| thread.state == ThreadState::Active);
            let offered = self.observed.offered();
            self.bans
                .add(self.now, active.count() + 1, Direction::Down, offered);
            return;
        }
        let loads = self.observed.loads(snapshot);
        let shares: Vec<Permille> = loads.iter().map(|load| load.unwrap_or(0)).collect();
        let parts = placement::parts(snapshot.disks.iter(), &shares, |_| true);
        let (moves, _) = placement::empty(thread, &loads, &parts).unwrap_or_default();
        self.push_moves(out, &moves, leaving.why);
        self.push(out, Action::Park { thread }, leaving.why);
    }
}
