//! The root of a pool's disk: each change of its generations is one block, written durably.
//!
//! # Always true
//! - one root is written at a time; what it changes counts once it is durable
//! - no number is given to two generations

use super::blocks::{GENERATIONS_MAX, Root};
use super::forest::FOREST_MAX;
use super::setup::Generation;
use super::{NONE, Pool, ROOT};
use crate::layout::{LayoutCx, LayoutNotice, OrderRefusal};
use crate::request::Outcome;
use alloc::collections::VecDeque;

/// Numbers of generations are smaller.
const NUMBER_MAX: u32 = (1 << 31) - 2;

/// See the module.
#[derive(Default)]
pub(super) struct RootState {
    pub(super) sequence: u64,
    /// The place where the next one goes. The newest valid one is at the other place. Until there is any it is place 0,
    /// however often that is torn.
    pub(super) next_place: u8,
    /// The last number that was given.
    pub(super) last: Generation,
    /// The first of them is being written, if `is_busy`.
    changes: VecDeque<Change>,
    is_busy: bool,
    /// Whether a write of it has failed: after a crash it may be there nevertheless.
    pub(super) is_doubtful: bool,
}

/// What a root changes. Generations by their place in the forest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The current generation is frozen: a new one sees it.
    Snapshot,
    /// The current generation goes: a new one sees this one.
    RollBack(u16),
    /// This one goes.
    Delete(u16),
    /// Nothing of this one is left.
    Gone(u16),
    /// Nothing: a root that failed is written over.
    Repair,
}

impl RootState {
    /// Whether one is being written.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }
}

impl Pool {
    /// Whether one more generation has room.
    ///
    /// # Errors
    /// It has not, or nothing can be recorded.
    pub(super) fn may_grow(&self) -> Result<(), OrderRefusal> {
        let is_full = self.forest.own().count() >= GENERATIONS_MAX
            || self.forest.len() >= FOREST_MAX
            || self.root.last.0 >= NUMBER_MAX;
        if is_full {
            return Err(OrderRefusal::TooMany);
        }
        match self.own.first() {
            Some(first) if *first != NONE => Ok(()),
            _ => Err(OrderRefusal::Unrecorded),
        }
    }

    /// Writes over a root that has failed, before anything else is durable: it may say that what is written now is gone.
    pub(super) fn repair_root(&mut self, cx: &mut LayoutCx<'_>) {
        if !self.root.changes.contains(&Change::Repair) {
            self.root.changes.push_back(Change::Repair);
        }
        self.write_root(cx);
    }

    /// Changes the generations. It counts once the root is durable.
    pub(super) fn change_root(&mut self, cx: &mut LayoutCx<'_>, change: Change) {
        self.root.changes.push_back(change);
        self.write_root(cx);
    }

    pub(super) fn write_root(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(change) = self.root.changes.front().copied() else {
            return;
        };
        if self.is_moving_home() || core::mem::replace(&mut self.root.is_busy, true) {
            return;
        }
        self.root.sequence += 1;
        let first = self.table.chunk(self.own[0]);
        let root = self.root_after(change, first.grant.life);
        let at = first.at + self.setup.geometry.root_at(self.root.next_place);
        cx.write_block(ROOT, first.target, at, root.encode());
    }

    /// The root with a change.
    pub(super) fn root_after(&self, change: Change, life: u64) -> Root {
        let mut root = Root {
            owner: self.owner(life),
            sequence: self.root.sequence,
            current: self.forest.at(self.current()).number,
            last: self.root.last,
            generations: self.forest.branches(),
        };
        let number = |place: u16| self.forest.at(place).number;
        match change {
            Change::Snapshot => root.grow(root.current),
            Change::RollBack(to) => {
                root.mark_going(root.current);
                root.grow(number(to));
            }
            Change::Delete(gone) => root.mark_going(number(gone)),
            Change::Gone(gone) => root.remove(number(gone)),
            Change::Repair => {}
        }
        root
    }

    /// The root was written.
    pub(super) fn root_written(&mut self, cx: &mut LayoutCx<'_>, outcome: Outcome) {
        self.root.is_busy = false;
        let Some(change) = self.root.changes.pop_front() else {
            return;
        };
        self.root.is_doubtful = outcome.is_err();
        if outcome.is_ok() {
            self.root.next_place = 1 - self.root.next_place;
            self.headers_written += 1;
            self.apply(cx, change);
        }
        let answer = outcome.map_err(|_| OrderRefusal::Unrecorded);
        match change {
            Change::Snapshot | Change::RollBack(_) => self.gate_switched(cx, answer),
            Change::Delete(_) => cx.ordered(answer),
            Change::Gone(_) => self.deletion_recorded(cx, outcome),
            Change::Repair => self.root_repaired(cx, outcome),
        }
        self.write_root(cx);
        self.go_on(cx);
    }

    fn apply(&mut self, cx: &mut LayoutCx<'_>, change: Change) {
        let current = self.current();
        match change {
            Change::Snapshot => {
                self.grow(current);
                let frozen = self.forest.at(current).number;
                cx.notice(LayoutNotice::Generation(frozen));
            }
            Change::RollBack(to) => {
                self.forest.at_mut(current).is_going = true;
                self.grow(to);
                let extents: alloc::vec::Vec<u32> = self.table.extents().collect();
                for extent in extents {
                    self.table.settle(extent, &self.forest);
                }
            }
            Change::Delete(gone) => self.forest.at_mut(gone).is_going = true,
            Change::Repair => {}
            Change::Gone(gone) => {
                let number = self.forest.at(gone).number;
                self.forest.remove(gone);
                let shown = self.forest.shown();
                self.forest.show(shown);
                cx.notice(LayoutNotice::GenerationGone(number));
            }
        }
    }

    /// A new generation that sees this one is written from now on.
    fn grow(&mut self, parent: u16) {
        self.root.last.0 += 1;
        let new = self.forest.grow(self.root.last, parent);
        self.forest.show(new);
    }
}

impl Root {
    fn grow(&mut self, parent: Generation) {
        let number = Generation(self.last.0 + 1);
        (self.last, self.current) = (number, number);
        self.generations.push(super::Branch {
            number,
            parent: Some(parent),
            is_going: false,
        });
    }

    fn mark_going(&mut self, number: Generation) {
        let branch = self.generations.iter_mut().find(|it| it.number == number);
        if let Some(branch) = branch {
            branch.is_going = true;
        }
    }

    fn remove(&mut self, number: Generation) {
        let gone = self.generations.iter().position(|it| it.number == number);
        let Some(gone) = gone.map(|place| self.generations.remove(place)) else {
            return;
        };
        for branch in &mut self.generations {
            if branch.parent == Some(number) {
                branch.parent = gone.parent;
            }
        }
    }
}
