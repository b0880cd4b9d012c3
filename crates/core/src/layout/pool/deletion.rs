//! The deletion of a generation: what only it needs is free, and the rest belongs to the one that sees it.
//!
//! One generation at a time, in slices of its grants. What its child hides is free; what the child sees becomes the child's.
//! A generation with several children waits until one is left.
//!
//! # Always true
//! - what hides a sub-block of a generation is durable before that sub-block goes
//! - a generation leaves the root after all headers are durable that had something of it
//!
//! # Picture
//! ```text
//!   scan a slice ──something hidden or seen──> commit ──> apply ──> scan the next
//!        └──end──> commit ──> root ──> gone
//! ```

use super::commit::Waiter;
use super::forest::NO_GENERATION;
use super::records::{Space, Table};
use super::root::Change;
use super::setup::Generation;
use super::{NONE, Pool};
use crate::layout::{LayoutCx, OrderRefusal, Ordered};
use crate::request::Outcome;
use crate::units::Span;
use alloc::vec::Vec;

/// Grants that are looked at in a slice. Origin: chosen; 1024 records take some tens of microseconds.
const SLICE: u32 = 16;
/// How long the next slice waits for others. Origin: chosen; the next turn of the I/O thread.
const SLICE_AFTER: Span = Span::from_micros(1);
/// How long after a fault it is tried again. Origin: chosen.
const AGAIN_AFTER: Span = Span::from_secs(1);

/// See the module.
pub(super) struct Deletion {
    generation: u16,
    child: Option<u16>,
    /// The next grant that is looked at.
    next: u32,
    /// What was found, with what hides it, which becomes durable.
    plan: Vec<(u32, u16)>,
    stage: Stage,
    /// Whether something could not be changed in this pass.
    is_incomplete: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Scan,
    /// The plan becomes possible, or the whole pass durable.
    Commit,
    Root,
}

impl Pool {
    pub(super) fn order_deletion(
        &mut self,
        cx: &mut LayoutCx<'_>,
        gone: Generation,
    ) -> Result<Ordered, OrderRefusal> {
        let gone = self.named(gone)?;
        self.change_root(cx, Change::Delete(gone));
        Ok(Ordered::Later)
    }

    /// Goes on with the deletion of generations.
    pub(super) fn delete_on(&mut self, cx: &mut LayoutCx<'_>) {
        let others_first = self.step_at.is_some() || self.failed_until.is_some();
        if self.paused || self.detaching || !self.gate.is_open() || others_first {
            return;
        }
        if self.deletion.is_none() {
            let Some(generation) = self.next_deletion() else {
                return;
            };
            // What moves is not where it is looked for.
            if self.relocation.moves.is_of(generation) {
                return;
            }
            self.deletion = Some(Deletion {
                generation,
                child: self.forest.children(generation).next(),
                next: 0,
                plan: Vec::new(),
                stage: Stage::Scan,
                is_incomplete: false,
            });
        }
        if self
            .deletion
            .as_ref()
            .is_some_and(|it| it.stage == Stage::Scan)
        {
            self.scan(cx);
        }
    }

    /// A generation that goes, and has one child at most.
    fn next_deletion(&self) -> Option<u16> {
        let mut own = self.forest.own();
        own.find(|it| self.forest.at(*it).is_going && self.forest.children(*it).nth(1).is_none())
    }

    /// Whether a generation is being deleted, or is the next one.
    pub(super) fn is_being_deleted(&self, generation: u16) -> bool {
        let deletion = self.deletion.as_ref();
        deletion.is_some_and(|it| it.generation == generation)
            || self.forest.at(generation).is_going
                && self.forest.children(generation).nth(1).is_none()
    }

    /// Looks at the next slice.
    fn scan(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(mut deletion) = self.deletion.take() else {
            return;
        };
        let end = self.table.chunks_end();
        let slice = deletion.next..(deletion.next + SLICE).min(end);
        deletion.next = slice.end;
        for number in slice {
            let Some(chunk) = self.table.get(number).filter(|it| it.owner == 0) else {
                continue;
            };
            let marks = chunk.marks.iter().copied();
            let records = self.table.records(number).map(|(place, _)| place);
            for place in records.chain(marks) {
                let record = self.table.at(place);
                if record.extent != NONE && record.generation == deletion.generation {
                    let hidden = self.hidden_by(deletion.child, record.extent);
                    deletion.plan.push((place, hidden));
                }
            }
        }
        if deletion.plan.is_empty() && deletion.next < end {
            // Others first.
            self.step_at = Some(cx.now() + SLICE_AFTER);
        } else {
            deletion.stage = Stage::Commit;
            self.waiters.push(Waiter::Deletion);
        }
        self.deletion = Some(deletion);
    }

    /// The sub-blocks of an extent that a generation has, or hides.
    fn hidden_by(&self, child: Option<u16>, extent: u32) -> u16 {
        let Some(child) = child else {
            return u16::MAX;
        };
        let own = self.table.chain(extent).map(|place| self.table.at(place));
        let own = own.filter(|record| record.generation == child);
        own.fold(0, |all, record| all | record.bits)
    }

    /// What hides the plan is durable, or the whole pass is.
    pub(super) fn deletion_committed(&mut self, cx: &mut LayoutCx<'_>, outcome: Outcome) {
        let Some(mut deletion) = self.deletion.take() else {
            return;
        };
        deletion.stage = Stage::Scan;
        if outcome.is_err() {
            // From the beginning: what was applied stays to be written.
            return;
        }
        let plan = core::mem::take(&mut deletion.plan);
        let is_end = plan.is_empty() && deletion.next >= self.table.chunks_end();
        for (place, hidden) in plan {
            deletion.is_incomplete |= !self.delete_at(&deletion, place, hidden);
        }
        self.plan_release(cx);
        if is_end && deletion.is_incomplete {
            // Once more: what it waited for has ended meanwhile.
            (deletion.next, deletion.is_incomplete) = (0, false);
        } else if is_end {
            deletion.stage = Stage::Root;
            self.change_root(cx, Change::Gone(deletion.generation));
        }
        self.deletion = Some(deletion);
    }

    /// Deletes what a place has. Returns false if it is in use.
    fn delete_at(&mut self, deletion: &Deletion, place: u32, hidden: u16) -> bool {
        let record = *self.table.at(place);
        if record.extent == NONE || record.generation != deletion.generation {
            return true;
        }
        // What hides more by now is not durable yet.
        let hides_more = self.hidden_by(deletion.child, record.extent) & !hidden & record.bits != 0;
        if hides_more || self.locks.contains_key(&record.extent) {
            return false;
        }
        let left = record.bits & !hidden;
        let hides_nothing = self.forest.at(deletion.generation).parent == NO_GENERATION;
        let is_mark = Table::is_mark(place);
        match deletion.child {
            Some(child) if left != 0 && !(is_mark && hides_nothing) => {
                self.table.touch(place);
                self.table.relabel(place, child, left);
                self.table.settle(record.extent, &self.forest);
                if !is_mark {
                    self.forest.at_mut(deletion.generation).extents -= 1;
                    self.forest.at_mut(child).extents += 1;
                }
            }
            _ if is_mark => self.drop_mark(place),
            _ => self.release(place),
        }
        true
    }

    /// A mark goes.
    pub(super) fn drop_mark(&mut self, mark: u32) {
        self.late_marks.remove(&mark);
        self.forget_mark(mark);
        self.table.touch(mark);
        self.table.remove(mark, Space::Free, &self.forest);
    }

    /// The root does not have it any more.
    pub(super) fn deletion_recorded(&mut self, cx: &mut LayoutCx<'_>, outcome: Outcome) {
        self.deletion = None;
        if outcome.is_err() {
            self.failed_until = Some(cx.now() + AGAIN_AFTER);
        }
    }
}
