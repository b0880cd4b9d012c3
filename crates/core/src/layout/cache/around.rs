//! I/Os past the cache: zeroes, discards, flushes, and writes for which there is no slot.
//!
//! Blocks that the cache has of such a range are given up. Clean ones before: a crash that leaves the disk's new bytes must
//! not leave the cache's old ones valid. Dirty ones after the disk has the new bytes durably: until then, they are the only
//! copy of what was answered. A dirty block that is covered only in part is cleaned first.
//!
//! # Always true
//! - no block is valid on flash, after any crash, that is older than what the disk may show
//! - a dirty block is given up only after the disk has what replaces it durably

use super::journal::Waiter;
use super::loose::Loose;
use super::write::in_pages;
use super::{AROUND, BACKING, Cache, FLUSH, Locked, State, tag};
use crate::layout::{LayoutCx, LayoutIo, Map, SubIo, Target};
use crate::request::{Data, Fault, Flags, Op, Outcome};
use alloc::vec::Vec;

/// How far an I/O past the cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It has not begun.
    Begins,
    /// Clean blocks are being given up.
    GivesUpClean,
    /// It is with the disk. Whether dirty blocks are given up after.
    Disk { dirty: bool },
    /// Dirty blocks are being given up.
    GivesUpDirty,
}

impl Cache {
    /// An I/O that goes past the cache has its range.
    pub(super) fn around(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let io = self.ops.at(number).io;
        let (start, end) = (io.offset, io.offset + io.len);
        if self.is_settling(start, end) {
            return self.settling.push(number);
        }
        if self.cleaner.overlaps(start, end) {
            return self.behind.push(number);
        }
        if self.has_stuck_edge(start, end) {
            self.ops.at(number).fault = Some(Fault::Io);
            return self.end(cx, number);
        }
        if self.want_edges(start, end) {
            self.behind.push(number);
            return self.advance_cleaner(cx);
        }
        self.ops.at(number).stage = Stage::GivesUpClean;
        self.give_up_clean(cx, number);
    }

    /// Gives up the clean blocks of its range, and goes to the disk once there are none. While that is recorded, a flush can make
    /// dirty blocks clean: they are given up as well.
    fn give_up_clean(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let io = self.ops.at(number).io;
        match self.give_up(cx, io.offset, io.offset + io.len, false) {
            Some(change) => {
                self.after(change, Waiter::Op(number));
                self.advance_journal(cx);
            }
            None => self.around_to_disk(cx, number),
        }
    }

    /// Pages with a dirty block that the range covers in part.
    fn dirty_edges(&self, start: u64, end: u64) -> impl Iterator<Item = (u32, usize)> + '_ {
        let edges = [start, end].into_iter();
        let edges = edges.filter(|edge| !edge.is_multiple_of(super::CACHE_BLOCK));
        edges.filter_map(|edge| {
            let (page, block) = super::block_of(edge);
            let slot = self.map.find(page)?;
            (self.map.masks(slot).1 >> block & 1 == 1).then_some((page, block))
        })
    }

    /// Asks the cleaner for these. Returns whether there are some.
    fn want_edges(&mut self, start: u64, end: u64) -> bool {
        let edges = self.dirty_edges(start, end).map(|(page, _)| page);
        let edges: Vec<u32> = edges.collect();
        edges.iter().for_each(|page| self.cleaner.want(*page));
        !edges.is_empty()
    }

    /// Whether one of these cannot be cleaned.
    fn has_stuck_edge(&self, start: u64, end: u64) -> bool {
        let mut edges = self.dirty_edges(start, end);
        edges.any(|(page, block)| self.cleaner.is_stuck(page, block))
    }

    /// Gives up the clean or the dirty blocks of a range. Returns the last change, if there was one.
    fn give_up(&mut self, cx: &mut LayoutCx<'_>, start: u64, end: u64, dirty: bool) -> Option<u64> {
        let pages = (end - start).div_ceil(super::PAGE);
        let mut last = None;
        if pages <= u64::from(self.map.len()) {
            for piece in in_pages(start, end - start) {
                last = self
                    .give_up_of(cx, piece.page, piece.blocks, dirty)
                    .or(last);
            }
            return last;
        }
        // The range has more pages than the cache.
        for slot in 0..self.map.len() {
            if !self.map.is_first(slot) {
                continue;
            }
            let page = self.map.page(slot);
            let blocks = super::blocks_within(page, start, end);
            last = self.give_up_of(cx, page, blocks, dirty).or(last);
        }
        last
    }

    fn give_up_of(
        &mut self,
        cx: &mut LayoutCx<'_>,
        page: u32,
        blocks: u16,
        dirty: bool,
    ) -> Option<u64> {
        let slot = self.map.find(page)?;
        let (valid, of_dirty) = self.map.masks(slot);
        let blocks = match dirty {
            true => blocks & of_dirty,
            false => blocks & valid & !of_dirty,
        };
        (blocks != 0).then(|| self.drop_blocks(cx, page, blocks))
    }

    /// These blocks of a page are not valid any more. Returns the change.
    pub(super) fn drop_blocks(&mut self, cx: &LayoutCx<'_>, page: u32, blocks: u16) -> u64 {
        if let Some(slot) = self.map.find(page) {
            self.map.invalidate(slot, blocks);
            if self.map.masks(slot).1 == 0 {
                self.cleaner.cleaned(page);
            }
        }
        self.cleaner.dropped(page, blocks);
        let change = self.change(cx, page);
        self.unsettled.insert(page, change);
        self.after(change, Waiter::Settled(page));
        change
    }

    /// A page's blocks that were given up may be written again. A page without any leaves the cache.
    pub(super) fn settled(&mut self, page: u32, change: u64) {
        if self.unsettled.get(&page) != Some(&change) {
            return;
        }
        self.unsettled.remove(&page);
        self.doubtful.remove(&page);
        if let Some(slot) = self.map.find(page) {
            self.remove_if_empty(slot);
            self.free_twin_if_empty(page);
        }
    }

    /// The second slot of a page is free once it has no block, and no durable record names it.
    pub(super) fn free_twin_if_empty(&mut self, page: u32) {
        let Some(slot) = self.map.find(page) else {
            return;
        };
        let twin = self.map.twin(slot);
        let is_empty = twin.is_some_and(|twin| self.map.slot(twin).valid == 0);
        if is_empty
            && !self.map.slot(slot).is_pinned()
            && let Some(twin) = self.map.remove_twin(slot)
        {
            self.map.free_slot(twin);
        }
    }

    /// Lets clean blocks leave the second slots of some pages.
    pub(super) fn release_twins(&mut self, cx: &LayoutCx<'_>, most: usize) -> usize {
        let mut released = 0;
        for slot in self.map.with_twin(most) {
            let page = self.map.page(slot);
            let dirty = self.map.masks(slot).1;
            let twin = self.map.twin(slot);
            let blocks = twin.map_or(0, |twin| self.map.slot(twin).valid);
            let is_used = self.map.slot(slot).is_pinned() || self.unsettled.contains_key(&page);
            if dirty == 0 && !is_used {
                self.drop_blocks(cx, page, blocks);
                released += 1;
            }
        }
        released
    }

    /// Goes on with I/Os that waited for pages to settle.
    pub(super) fn resume_settled(&mut self, cx: &mut LayoutCx<'_>) {
        for number in core::mem::take(&mut self.settling) {
            self.modify_locked(cx, number);
        }
    }

    /// Goes on with I/Os that waited for the cleaner.
    pub(super) fn resume_behind(&mut self, cx: &mut LayoutCx<'_>) {
        for part in core::mem::take(&mut self.parts_behind) {
            self.part_to_disk(cx, part);
        }
        for number in core::mem::take(&mut self.behind) {
            match self.ops.at(number).stage {
                // Without flash nothing can be given up.
                Stage::GivesUpClean if self.state == State::Ready => self.around(cx, number),
                _ => self.modify_locked(cx, number),
            }
        }
    }

    /// The blocks that it gave up are durably given up.
    pub(super) fn around_recorded(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        match self.ops.at(number).stage {
            // Meanwhile a page may have become clean and left the cache: that is to be durable as well.
            Stage::GivesUpClean => self.around(cx, number),
            _ => self.end(cx, number),
        }
    }

    fn around_to_disk(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let io = self.ops.at(number).io;
        if self.cleaner.overlaps(io.offset, io.offset + io.len) {
            // It has begun meanwhile: its older bytes must not come to the disk after these.
            return self.behind.push(number);
        }
        let mut dirty = false;
        for page in self.cleaner.dirty_between(io.offset, io.offset + io.len) {
            let blocks = super::blocks_within(page, io.offset, io.offset + io.len);
            let slot = self.map.find(page);
            dirty |= slot.is_some_and(|slot| self.map.masks(slot).1 & blocks != 0);
            // A flush that is under way must not make them clean: the disk is about to have others.
            self.cleaner.replace(page, blocks);
        }
        self.ops.at(number).stage = Stage::Disk { dirty };
        let (op, flags) = match (io.op, dirty) {
            // What a discard leaves could be older than what is given up: zeroes are not.
            (Op::Discard, true) => (Op::WriteZeroes, io.flags.with(Flags::MAY_UNMAP)),
            (op, _) => (op, io.flags),
        };
        self.loose.add(io.offset, io.len);
        let sub = SubIo {
            target: BACKING,
            op,
            flags: if dirty { flags.with(Flags::FUA) } else { flags },
            offset: io.offset,
            len: io.len,
            data: io.data,
            background: io.background,
        };
        cx.issue(tag(AROUND, number, BACKING), sub);
    }

    /// The disk has answered.
    pub(super) fn around_done(&mut self, cx: &mut LayoutCx<'_>, number: u32, outcome: Outcome) {
        self.unflushed = true;
        let op = self.ops.at(number);
        op.fault = outcome.err();
        let io = op.io;
        for page in self.cleaner.replaced_between(io.offset, io.offset + io.len) {
            let blocks = super::blocks_within(page, io.offset, io.offset + io.len);
            self.cleaner.replaced(page, blocks);
        }
        self.loose.add(io.offset, io.len);
        let op = self.ops.at(number);
        let Stage::Disk { dirty: true } = op.stage else {
            return self.end(cx, number);
        };
        if self.state == State::Lost {
            // Flash has older bytes, and cannot be made to forget them.
            self.ops.at(number).fault = Some(Fault::Io);
        }
        if outcome.is_err() && self.keeps_dirty {
            self.owe_range(io.offset, io.offset + io.len);
            return self.end(cx, number);
        }
        if !self.is_writable() {
            return self.end(cx, number);
        }
        // After a failure as well: the disk has every answered write, and may have this one.
        self.ops.at(number).stage = Stage::GivesUpDirty;
        self.doubt(io.offset, io.offset + io.len);
        match self.give_up(cx, io.offset, io.offset + io.len, true) {
            Some(change) => {
                self.after(change, Waiter::Op(number));
                self.advance_journal(cx);
            }
            None => self.end(cx, number),
        }
    }

    /// The disk has something else than what flash has of the dirty blocks of a range, until that is given up.
    fn doubt(&mut self, start: u64, end: u64) {
        for page in self.cleaner.dirty_between(start, end) {
            let dirty = self.map.find(page).map_or(0, |slot| self.map.masks(slot).1);
            let blocks = dirty & super::blocks_within(page, start, end);
            *self.doubtful.entry(page).or_default() |= blocks;
        }
    }

    /// Whether the last device has failed before it gave up a block of this read, of which it has other bytes than the disk.
    #[inline]
    pub(super) fn is_lost_to(&self, io: &LayoutIo) -> bool {
        self.state == State::Lost && !self.doubtful.is_empty() && self.is_doubtful(io)
    }

    #[cold]
    fn is_doubtful(&self, io: &LayoutIo) -> bool {
        in_pages(io.offset, io.len).any(|piece| {
            let doubtful = self.doubtful.get(&piece.page);
            doubtful.is_some_and(|blocks| blocks & piece.blocks != 0)
        })
    }

    /// The disk may have something else than what flash has of the dirty blocks of a range.
    #[cold]
    fn owe_range(&mut self, start: u64, end: u64) {
        for page in self.cleaner.dirty_between(start, end) {
            let dirty = self.map.find(page).map_or(0, |slot| self.map.masks(slot).1);
            let blocks = dirty & super::blocks_within(page, start, end);
            self.cleaner.owe(page, blocks);
        }
    }

    /// Which parts of a range contain data, while flash has what the disk does not: a part of the range is answered, up to
    /// where the bytes are in another place.
    pub(super) fn take_extents(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) -> Map {
        let number = self.insert_op(io, 0);
        self.ops.at(number).open = 1;
        self.ask_extents(cx, number, 0);
        Map::Issued
    }

    /// Asks where the first byte of the range is, if these devices were tried.
    fn ask_extents(&mut self, cx: &mut LayoutCx<'_>, number: u32, tried: u8) {
        let io = self.ops.at(number).io;
        let end = io.offset + io.len;
        let dirty = self.cleaner.dirty_between(io.offset, end);
        let dirty = dirty.into_iter().find_map(|page| {
            let slot = self.map.find(page)?;
            let blocks = self.map.masks(slot).1 & super::blocks_within(page, io.offset, end);
            (blocks != 0).then(|| (page, slot, blocks.trailing_zeros() as usize))
        });
        let first = dirty.map(|(page, slot, block)| {
            let start = u64::from(page) * super::PAGE + block as u64 * super::CACHE_BLOCK;
            (start, self.map.holder(slot, block).unwrap_or(slot), block)
        });
        let (target, offset, len) = match first {
            Some((start, holder, block)) if start <= io.offset => {
                let Some(device) = self.reader(cx.loads, tried) else {
                    return self.op_part_ended(cx, number, Some(Fault::Io));
                };
                let within = io.offset - start;
                let offset = self.area.block_of_slot(holder, block) + within;
                (device, offset, io.len.min(super::CACHE_BLOCK - within))
            }
            Some((start, ..)) => (BACKING, io.offset, start - io.offset),
            None => (BACKING, io.offset, io.len),
        };
        let sub = SubIo {
            target,
            op: Op::Extents,
            flags: io.flags,
            offset,
            len,
            data: io.data,
            background: io.background,
        };
        cx.issue(
            tag(super::EXTENTS, number, target) | super::aux(0, tried),
            sub,
        );
    }

    /// A target has said which parts contain data.
    pub(super) fn extents_done(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        (target, tried): (Target, u8),
        outcome: Outcome,
    ) {
        match outcome {
            Err(_) if target != BACKING => {
                self.ask_extents(cx, number, tried | super::bit(target));
            }
            _ => self.op_part_ended(cx, number, outcome.err()),
        }
    }

    /// A flush. What was answered from flash is durable there; what went to the disk must be flushed.
    pub(super) fn take_flush(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) -> Map {
        if self.state == State::Lost {
            return Map::Done(Err(Fault::Io));
        }
        // A flush that is under way has not made them durable yet.
        if !self.unflushed && self.flushes.is_empty() {
            return Map::Done(Ok(()));
        }
        let number = self.insert_op(io, 0);
        self.ops.at(number).lock = Locked::No;
        self.flush_disk(cx, Some(number));
        Map::Issued
    }

    /// Flushes the disk, for an I/O or for the cleaner.
    pub(super) fn flush_disk(&mut self, cx: &mut LayoutCx<'_>, for_op: Option<u32>) {
        self.unflushed = false;
        let number = self.flushes.insert(Flushing {
            op: for_op,
            covers: self.cleaner.begin_flush(),
            loose: core::mem::take(&mut self.loose),
        });
        let sub = SubIo {
            target: BACKING,
            op: Op::Flush,
            flags: Flags::NONE,
            offset: 0,
            len: 0,
            data: Data::NONE,
            background: for_op.is_none(),
        };
        cx.issue(tag(FLUSH, number, BACKING), sub);
    }

    /// Which blocks of a page the disk may not have durably.
    pub(super) fn loose_of(&self, page: u32, blocks: u16) -> u16 {
        let under_way = self.flushes.iter();
        let under_way = under_way.map(|flush| flush.loose.of(page, blocks));
        under_way.fold(self.loose.of(page, blocks), |all, some| all | some)
    }

    pub(super) fn flush_done(&mut self, cx: &mut LayoutCx<'_>, number: u32, outcome: Outcome) {
        let flush = self.flushes.remove(number);
        if outcome.is_err() {
            self.unflushed = true;
            self.loose.merge(flush.loose);
        }
        if flush.covers {
            self.disk_flushed(cx, outcome);
        }
        if let Some(op) = flush.op {
            self.ops.at(op).fault = outcome.err();
            self.end(cx, op);
        }
    }

    /// These I/Os cannot go on: no device records what they wait for. After the cache is given up they go on without it.
    pub(super) fn strand_op(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        match self.state {
            State::Through => match self.ops.at(number).stage {
                Stage::GivesUpClean => self.around_to_disk(cx, number),
                _ => self.end(cx, number),
            },
            State::Losing if self.waits_for_order() => self.stranded_ops.push(number),
            _ => {
                self.ops.at(number).fault = Some(Fault::Io);
                self.end(cx, number);
            }
        }
    }
}

/// A flush of the disk that is under way.
pub(super) struct Flushing {
    op: Option<u32>,
    /// Whether blocks become clean by it.
    covers: bool,
    /// What it makes durable of what went past the cache.
    loose: Loose,
}
