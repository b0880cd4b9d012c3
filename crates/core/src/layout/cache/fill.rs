//! Whole pages: the rest of a page is read from the disk once requests have brought enough of it.
//!
//! How much is enough is a parameter of the policy. The reads are work in the background, a few pages at once. A page's
//! missing blocks stay locked until they are on flash.
//!
//! # Always true
//! - what is filled is what the disk has: no write of these blocks goes to the disk meanwhile
//! - a guest that waits for such a page makes its read urgent

use super::write::{Part, span_of};
use super::{Admission, BACKING, Cache, FILL, PAGE, State, Task, blocks_within, tag};
use crate::layout::{LayoutCx, SubIo};
use crate::range_lock::Mode;
use crate::request::{Data, Flags, Op, Outcome};
use alloc::collections::VecDeque;

/// Pages that are filled at once. Origin: chosen; the disk still serves guests.
const TOGETHER: u32 = 4;
/// Pages that wait, at most. Further ones are filled when they are accessed again.
const WAITING: usize = 64;

/// See the module.
#[derive(Default)]
pub(super) struct Filler {
    queue: VecDeque<u32>,
    pub(super) active: u32,
}

/// The read of a page's missing blocks.
pub(super) struct Filling {
    op: u32,
    slot: u32,
    blocks: u16,
    arena: Data,
}

impl Cache {
    /// Notes that a page has more blocks than before: perhaps it has enough to be filled.
    pub(super) fn want_fill(&mut self, page: u32, slot: u32) {
        let (valid, wanted) = (self.map.masks(slot).0, self.keeper.fill_from());
        let queue = &mut self.filler.queue;
        let enough = valid.count_ones() >= wanted && valid != u16::MAX;
        if enough && queue.len() < WAITING && !queue.contains(&page) {
            queue.push_back(page);
        }
    }

    /// Begins to fill the next pages.
    pub(super) fn advance_fills(&mut self, cx: &mut LayoutCx<'_>) {
        while self.filler.active < TOGETHER
            && self.may_begin()
            && self.admission != Admission::Nothing
        {
            let Some(page) = self.filler.queue.pop_front() else {
                return;
            };
            let missing = self.missing(page);
            if missing == 0 {
                continue;
            }
            let (start, end) = span_of(page, missing);
            if self.lock.is_held(start, end) {
                continue;
            }
            self.filler.active += 1;
            let op = self.insert_task(Task::Fill, start, end - start);
            self.lock_task(cx, op, Mode::Exclusive);
        }
    }

    /// Blocks of a page that flash could have, and has not.
    fn missing(&self, page: u32) -> u16 {
        let Some(slot) = self.map.find(page) else {
            return 0;
        };
        match self.unsettled.contains_key(&page) {
            true => 0,
            false => blocks_within(page, 0, self.cached_end()) & !self.map.masks(slot).0,
        }
    }

    /// A page's missing blocks are locked: they are read.
    pub(super) fn fill_locked(&mut self, cx: &mut LayoutCx<'_>, op: u32) {
        let io = self.ops.at(op).io;
        let page = super::page_number(io.offset / PAGE);
        let within = blocks_within(page, io.offset, io.offset + io.len);
        let blocks = self.missing(page) & within;
        let slot = self.map.find(page).filter(|_| blocks != 0);
        let may_enter = self.may_begin() && self.admission != Admission::Nothing;
        let arena = match may_enter && slot.is_some() {
            true => cx.claim_above(),
            false => None,
        };
        let (Some(slot), Some(arena)) = (slot, arena) else {
            return self.unlock(cx, op);
        };
        self.map.pin(slot);
        let number = self.fillings.insert(Filling {
            op,
            slot,
            blocks,
            arena,
        });
        let sub = SubIo {
            target: BACKING,
            op: Op::Read,
            flags: Flags::NONE,
            offset: io.offset,
            len: io.len,
            data: arena.skip(super::skip(io.offset % PAGE)),
            background: true,
        };
        cx.issue(tag(FILL, number, BACKING), sub);
    }

    /// The disk has read a page's missing blocks.
    pub(super) fn fill_read(&mut self, cx: &mut LayoutCx<'_>, number: u32, outcome: Outcome) {
        let Filling {
            op,
            slot,
            blocks,
            arena,
        } = self.fillings.remove(number);
        let page = self.map.page(slot);
        if outcome.is_err() || !self.is_writable() || self.unsettled.contains_key(&page) {
            cx.release_above(arena);
            self.unpin(cx, slot);
            return self.unlock(cx, op);
        }
        self.ops.at(op).filling += 1;
        self.fills += 1;
        let part = self.parts.insert(Part::fill(op, page, slot, blocks, arena));
        self.write_part(cx, part);
    }

    /// Whether work in the background may begin.
    pub(super) fn may_begin(&self) -> bool {
        self.state == State::Ready && !self.cleaner.is_paused && !self.detaching && !self.closing
    }
}
