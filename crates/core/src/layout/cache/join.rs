//! Pages with a second slot get along with the first one again.
//!
//! A block that is written again goes to the page's other slot, because a durable record names the place where it is. Pages
//! that are written often would all keep two slots, and flash would have room for half of them. So once slots are short,
//! the blocks of some second slots are moved to the first ones, as work in the background.
//!
//! # Always true
//! - a block is moved to a place that no durable record names, and is as it was written
//! - the second slot is free only after the record of the move is durable

use super::write::{Part, at_block, runs, span_of};
use super::{BLOCKS, CACHE_BLOCK, Cache, JOIN_READ, JOIN_SUM, PAGE, Task, blocks_of, check, tag};
use crate::layout::{LayoutCx, SubIo, Target};
use crate::range_lock::Mode;
use crate::request::{Data, Flags, Op, Outcome};
use crate::units::{Span, Time};

/// Pages that are joined at once. Origin: as many as are filled at once.
const TOGETHER: u32 = 4;
/// One slot in so many may be a second one. Origin: decision 0032. Fewer cost more writes to flash, more cost hits.
const SECOND: u32 = 64;
/// While one slot in so many is free, second ones cost nothing.
const SPARE: u32 = 16;
/// Of so many pages the one with the fewest blocks to move is taken.
const LOOKED_AT: usize = 8;

/// After a page that could not be read. Origin: chosen; it is not read all the time.
const AGAIN: Span = Span::from_secs(10);

/// See the module.
#[derive(Default)]
pub(super) struct Joiner {
    pub(super) active: u32,
    /// The first slot that is looked at next.
    cursor: u32,
    /// Whether joins are being begun.
    is_beginning: bool,
    /// When the next one may begin.
    not_before: Time,
}

/// The read of the blocks in a page's second slot.
pub(super) struct Joining {
    op: u32,
    slot: u32,
    blocks: u16,
    checks: [u16; BLOCKS],
    arena: Data,
    /// Reads and checksums that have not ended.
    open: u32,
    is_bad: bool,
}

impl Cache {
    /// Whether there are so many second slots that pages are joined.
    #[inline]
    fn joins(&self) -> bool {
        let slots = self.map.len();
        self.map.twins() > slots / SECOND && self.map.free_count() <= slots.div_ceil(SPARE)
    }

    /// Begins to join the next pages.
    pub(super) fn advance_joins(&mut self, cx: &mut LayoutCx<'_>) {
        if !self.joins() || cx.now() < self.joiner.not_before {
            return;
        }
        if core::mem::replace(&mut self.joiner.is_beginning, true) {
            return;
        }
        self.begin_joins(cx);
        self.joiner.is_beginning = false;
    }

    fn begin_joins(&mut self, cx: &mut LayoutCx<'_>) {
        for _ in 0..TOGETHER {
            let may_begin = self.may_begin() && self.shrinking.is_none();
            if self.joiner.active >= TOGETHER || !may_begin || !self.joins() {
                return;
            }
            let Some((page, blocks)) = self.next_join() else {
                return;
            };
            let (start, end) = span_of(page, blocks);
            self.joiner.active += 1;
            let op = self.insert_task(Task::Join, start, end - start);
            self.lock_task(cx, op, Mode::Exclusive);
        }
    }

    /// The next page that is joined, and the blocks of its second slot. Frees a second slot that has none any more.
    fn next_join(&mut self) -> Option<(u32, u16)> {
        let (mut best, mut empty) = (None, None);
        let mut looked = 0;
        let mut cursor = self.joiner.cursor;
        for (slot, twin) in self.map.with_twin_from(cursor).take(LOOKED_AT) {
            (looked, cursor) = (looked + 1, slot + 1);
            let (page, blocks) = (self.map.page(slot), self.map.slot(twin).valid);
            let start = u64::from(page) * PAGE;
            if blocks == 0 {
                empty = Some(page);
            }
            let is_used = blocks == 0
                || self.unsettled.contains_key(&page)
                || self.cleaner.is_cleaning(page)
                || self.lock.is_wanted(start, start + PAGE);
            let fewest =
                best.is_none_or(|(_, least): (u32, u16)| blocks.count_ones() < least.count_ones());
            if !is_used && fewest {
                best = Some((page, blocks));
            }
        }
        if let Some(page) = empty
            && !self.unsettled.contains_key(&page)
        {
            self.free_twin_if_empty(page);
        }
        self.joiner.cursor = if looked < LOOKED_AT { 0 } else { cursor };
        best
    }

    /// The blocks that a page's second slot had are locked: they are read.
    pub(super) fn join_locked(&mut self, cx: &mut LayoutCx<'_>, op: u32) {
        let io = self.ops.at(op).io;
        let page = super::page_number(io.offset / PAGE);
        let within = super::blocks_within(page, io.offset, io.offset + io.len);
        let slot = self.map.find(page);
        let twin = slot.and_then(|slot| self.map.twin(slot));
        let blocks = twin.map_or(0, |twin| self.map.slot(twin).valid) & within;
        let may_begin = self.may_begin()
            && self.shrinking.is_none()
            && blocks != 0
            && !self.unsettled.contains_key(&page);
        let (Some(slot), Some(twin), true) = (slot, twin, may_begin) else {
            return self.unlock(cx, op);
        };
        let Some(device) = self.reader(cx.loads, 0) else {
            return self.unlock(cx, op);
        };
        let Some(arena) = cx.claim_above() else {
            return self.unlock(cx, op);
        };
        self.map.pin(slot);
        let number = self.joinings.insert(Joining {
            op,
            slot,
            blocks,
            checks: self.map.slot(twin).checks,
            arena,
            open: 1,
            is_bad: false,
        });
        for (first, count) in runs(blocks) {
            self.joinings.at(number).open += 1;
            let sub = SubIo {
                target: device,
                op: Op::Read,
                flags: Flags::NONE,
                offset: self.area.block_of_slot(twin, first),
                len: count as u64 * CACHE_BLOCK,
                data: arena.skip(at_block(first)),
                background: true,
            };
            cx.issue(tag(JOIN_READ, number, device), sub);
        }
        self.join_read(cx, number, device, Ok(()));
    }

    /// A device has read a run of the second slot.
    pub(super) fn join_read(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        device: Target,
        outcome: Outcome,
    ) {
        let joining = self.joinings.at(number);
        joining.open -= 1;
        joining.is_bad |= outcome.is_err();
        if joining.open > 0 {
            return;
        }
        if joining.is_bad {
            // Reads find out what is wrong with it.
            return self.join_ended(cx, number);
        }
        let (blocks, arena) = (joining.blocks, joining.arena);
        joining.open = blocks.count_ones();
        for block in blocks_of(blocks) {
            let tag = tag(JOIN_SUM, number, device) | super::aux(block, 0);
            cx.sum(tag, arena.skip(at_block(block)), CACHE_BLOCK);
        }
    }

    /// The checksum of one of its blocks.
    pub(super) fn join_summed(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        block: usize,
        sum: u32,
    ) {
        let joining = self.joinings.at(number);
        joining.open -= 1;
        let is_bad = joining.checks[block] != check(sum);
        joining.is_bad |= is_bad;
        self.corrupt_blocks += u64::from(is_bad);
        if joining.open > 0 {
            return;
        }
        let (op, slot, blocks) = (joining.op, joining.slot, joining.blocks);
        let (arena, is_bad) = (joining.arena, joining.is_bad);
        let page = self.map.page(slot);
        if is_bad || !self.is_writable() || self.unsettled.contains_key(&page) {
            return self.join_ended(cx, number);
        }
        self.joinings.remove(number);
        self.ops.at(op).filling += 1;
        let part = self.parts.insert(Part::join(op, page, slot, blocks, arena));
        self.write_part(cx, part);
    }

    /// A page was not joined.
    fn join_ended(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        if self.joinings.peek(number).is_bad {
            // Nothing keeps it from being the next one again.
            self.joiner.not_before = cx.now() + AGAIN;
        }
        let Joining {
            op, slot, arena, ..
        } = self.joinings.remove(number);
        cx.release_above(arena);
        self.unpin(cx, slot);
        self.unlock(cx, op);
    }
}

const _: () = assert!(BLOCKS == 16, "masks have 16 bits");
