//! Reads: from flash, from the disk, and what is kept of the latter.
//!
//! A read is cut at pages, and where its blocks lie in different places. What comes from flash is checked block by block. A
//! block that is not as it was written is read again, into memory that no guest can change, and from the other device.
//! What comes from the disk and is worth it becomes part of the cache: its range stays locked until it is.
//!
//! # Always true
//! - no bytes from flash are answered whose checksum does not fit
//! - a page is pinned while it is being read
//! - what is filled is what the disk has: no write of these blocks goes to the disk meanwhile

use super::map::NONE;
use super::write::{InPage, Part, at_block, in_pages, runs};
use super::{
    Admission, BACKING, BLOCKS, CACHE_BLOCK, Cache, Locked, PAGE, READ, READ_SUM, State, blocks_of,
    masked, tag,
};
use crate::layout::{LayoutCx, LayoutIo, Map, SubIo, Target};
use crate::range_lock::{Mode, Wanted};
use crate::request::{Data, Fault, Flags, Op, Outcome};
use alloc::vec::Vec;

/// Neighbouring blocks of a page that lie in one place, as a part of a read.
pub(super) struct Piece {
    op: u32,
    page: u32,
    /// The page's first slot, pinned. None if the bytes come from the disk.
    slot: Option<u32>,
    /// Its first byte on the disk.
    start: u64,
    len: u64,
    /// Where the guest wants it.
    data: Data,
    /// A buffer with whole blocks, at their places in the page.
    arena: Option<Data>,
    /// The slot that has it, and its checksums, as they were when it was asked for.
    holder: u32,
    checks: [u16; BLOCKS],
    /// Checksums that have not come.
    sums: u32,
    /// Whether one did not fit.
    is_bad: bool,
    /// Whether it was asked for with its range locked: then nothing but decay explains bytes that do not fit.
    is_locked: bool,
    /// Devices that were tried, one bit each, and the one that is tried now.
    tried: u8,
    device: Target,
    /// Whether it is to become part of the cache.
    fills: bool,
}

impl Piece {
    fn blocks(&self) -> u16 {
        let first = self.start % PAGE / CACHE_BLOCK;
        let last = (self.start + self.len - 1) % PAGE / CACHE_BLOCK;
        masked(first, last)
    }

    fn is_aligned(&self) -> bool {
        self.start.is_multiple_of(CACHE_BLOCK) && self.len.is_multiple_of(CACHE_BLOCK)
    }

    fn first(&self) -> usize {
        self.blocks().trailing_zeros() as usize
    }
}

/// A read with more pages is not kept. Origin: chosen; it is sequential.
const PAGES_FILLED: u64 = 16;

impl Cache {
    /// Takes a read that is no [`Hit`](crate::layout::Hit), or sends it to the disk.
    pub(super) fn take_read(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) -> Map {
        if self.is_lost_to(io) {
            return Map::Done(Err(Fault::Io));
        }
        let fills = self.judge_fills(cx, io);
        let first = io.offset / CACHE_BLOCK * CACHE_BLOCK;
        let end = (io.offset + io.len).next_multiple_of(CACHE_BLOCK);
        if fills == 0 && self.lock.is_idle() {
            let mut pages = in_pages(io.offset, io.len);
            if pages.all(|piece| !self.has_any(piece)) {
                return Map::One {
                    target: BACKING,
                    offset: io.offset,
                };
            }
            let number = self.insert_op(io, 0);
            self.read_locked(cx, number);
            return Map::Issued;
        }
        let number = self.insert_op(io, fills);
        let op = self.ops.at(number);
        (op.lock, op.is_exclusive) = (Locked::Asked, fills != 0);
        let wanted = Wanted {
            id: number,
            start: first,
            end,
            mode: if fills == 0 {
                Mode::Shared
            } else {
                Mode::Exclusive
            },
        };
        self.lock_or_hurry(cx, wanted);
        Map::Issued
    }

    fn has_any(&self, piece: InPage) -> bool {
        let slot = self.map.find(piece.page);
        slot.is_some_and(|slot| self.map.masks(slot).0 & piece.blocks != 0)
    }

    /// Which pages of a read are worth to be kept, one bit each. Counts the accesses.
    fn judge_fills(&mut self, cx: &LayoutCx<'_>, io: &LayoutIo) -> u32 {
        let sequential = self.note_stream(io.offset, io.len);
        let few = io.len.div_ceil(PAGE) < PAGES_FILLED && self.is_writable();
        let few = few && io.offset + io.len <= self.cached_end();
        let few = few && self.admission != Admission::Nothing;
        let mut fills = 0;
        for (nth, piece) in (0..).zip(in_pages(io.offset, io.len)) {
            if !sequential {
                self.shadow(cx.now(), piece.page, piece.blocks, false);
            }
            let slot = self.map.find(piece.page);
            let missing = match slot {
                Some(slot) => piece.blocks & !self.map.masks(slot).0,
                None => piece.blocks,
            };
            if let (Some(slot), 0) = (slot, missing) {
                if !sequential {
                    self.policy_hit(cx.now(), slot, piece.page);
                }
                self.hits += 1;
                continue;
            }
            self.misses += 1;
            let worth = !sequential && self.admits(cx, piece.page, slot, false);
            if few && worth && !self.unsettled.contains_key(&piece.page) {
                fills |= 1 << nth;
            }
        }
        fills
    }

    /// A read has its range, or needs none.
    pub(super) fn read_locked(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let op = self.ops.at(number);
        if core::mem::replace(&mut op.is_begun, true) {
            return self.read_again(cx, number);
        }
        op.open = 1;
        let (io, fills) = (op.io, op.fills);
        for (nth, page) in (0..).zip(in_pages(io.offset, io.len)) {
            let fills = fills.checked_shr(nth).unwrap_or(0) & 1 == 1;
            self.read_page(cx, number, page, fills, false);
        }
        self.op_part_ended(cx, number, None);
    }

    /// Reads pieces again that were not as they were written, now that nothing changes them.
    fn read_again(&mut self, cx: &mut LayoutCx<'_>, op: u32) {
        // Taken out before: what ends here may let others go on that have pieces in the list.
        let (reads, mut own) = (&self.reads, Vec::new());
        self.again.retain(|number| {
            let is_own = reads.peek(*number).op == op;
            if is_own {
                own.push(*number);
            }
            !is_own
        });
        for number in own {
            self.replan(cx, number);
        }
    }

    fn replan(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let piece = self.reads.peek(number);
        let page = InPage {
            page: piece.page,
            start: piece.start,
            len: piece.len,
            blocks: piece.blocks(),
        };
        self.read_page(cx, piece.op, page, false, true);
        self.piece_ended(cx, number, None);
    }

    fn read_page(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        page: InPage,
        fills: bool,
        is_locked: bool,
    ) {
        let slot = self.map.find(page.page);
        let twin = slot.and_then(|slot| self.map.twin(slot));
        let valid = |slot: Option<u32>| slot.map_or(0, |slot| self.map.slot(slot).valid);
        let (first, second) = (valid(slot) & page.blocks, valid(twin) & page.blocks);
        let missing = page.blocks & !first & !second;
        let mut fills = fills && runs(missing).count() == 1;
        for (mask, holder) in [(first, slot), (second, twin), (missing, None)] {
            for (block, count) in runs(mask) {
                let from = u64::from(page.page) * PAGE + u64::from(at_block(block));
                let start = from.max(page.start);
                let end = (from + count as u64 * CACHE_BLOCK).min(page.start + page.len);
                let op = self.ops.at(number);
                op.open += 1;
                let data = op.io.data.skip(super::skip(start - op.io.offset));
                let piece = self.reads.insert(Piece {
                    op: number,
                    page: page.page,
                    slot: slot.filter(|_| holder.is_some()),
                    start,
                    len: end - start,
                    data,
                    arena: None,
                    holder: holder.unwrap_or(NONE),
                    checks: holder.map_or([0; BLOCKS], |holder| self.map.slot(holder).checks),
                    sums: 0,
                    is_bad: false,
                    is_locked,
                    tried: 0,
                    device: BACKING,
                    fills: false,
                });
                match (slot, holder) {
                    (Some(slot), Some(_)) => {
                        self.map.pin(slot);
                        self.read_flash(cx, piece);
                    }
                    _ => self.read_disk(cx, piece, core::mem::take(&mut fills)),
                }
            }
        }
    }

    /// Reads a piece from flash. Bytes that begin or end within a block need a buffer to be checked, and so does what was
    /// not as it was written: the guest may have changed its memory.
    fn read_flash(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let tried = self.reads.peek(number).tried;
        let Some(device) = self.reader(cx.loads, tried) else {
            return self.flash_unreadable(cx, number);
        };
        let piece = self.reads.at(number);
        piece.device = device;
        let needs_buffer = !piece.is_aligned() || piece.is_locked;
        if needs_buffer && piece.arena.is_none() {
            piece.arena = cx.claim_above();
            if piece.arena.is_none() {
                return self.hungry_reads.push_back(number);
            }
        }
        let first = piece.first();
        let (len, data) = match piece.arena {
            Some(arena) => {
                let blocks = u64::from(piece.blocks().count_ones());
                (blocks * CACHE_BLOCK, arena.skip(at_block(first)))
            }
            None => (piece.len, piece.data),
        };
        let sub = SubIo {
            target: device,
            op: Op::Read,
            flags: Flags::NONE,
            offset: self.area.block_of_slot(piece.holder, first),
            len,
            data,
            background: false,
        };
        cx.issue(tag(READ, number, device), sub);
    }

    /// Reads a piece from the disk, into a buffer if it is to be kept.
    fn read_disk(&mut self, cx: &mut LayoutCx<'_>, number: u32, fills: bool) {
        let piece = self.reads.at(number);
        piece.slot = None;
        if fills && piece.arena.is_none() {
            piece.arena = cx.claim_above();
        }
        piece.fills = fills && piece.arena.is_some();
        if !piece.fills
            && let Some(arena) = piece.arena.take()
        {
            cx.release_above(arena);
        }
        let (offset, len, data) = match piece.arena {
            Some(arena) => {
                let first = at_block(piece.first());
                let offset = u64::from(piece.page) * PAGE + u64::from(first);
                let len = u64::from(piece.blocks().count_ones()) * CACHE_BLOCK;
                // The disk may end within a block.
                (offset, len.min(self.size - offset), arena.skip(first))
            }
            None => (piece.start, piece.len, piece.data),
        };
        let sub = SubIo {
            target: BACKING,
            op: Op::Read,
            flags: Flags::NONE,
            offset,
            len,
            data,
            background: self.ops.peek(self.reads.peek(number).op).io.background,
        };
        cx.issue(tag(READ, number, BACKING), sub);
    }

    pub(super) fn feed_hungry_reads(&mut self, cx: &mut LayoutCx<'_>) {
        for _ in 0..self.hungry_reads.len() {
            if let Some(number) = self.hungry_reads.pop_front() {
                self.read_flash(cx, number);
            }
        }
    }

    /// A piece was read, or not.
    pub(super) fn piece_read(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        target: Target,
        outcome: Outcome,
    ) {
        if target == BACKING {
            return self.disk_read(cx, number, outcome);
        }
        let piece = self.reads.at(number);
        if let Err(fault) = outcome {
            piece.tried |= super::bit(target);
            self.read_faults += 1;
            if fault == Fault::Gone {
                self.flash_failed(cx, target, fault);
            }
            return self.read_flash(cx, number);
        }
        let blocks = piece.blocks();
        piece.sums = blocks.count_ones();
        piece.is_bad = false;
        let (data, skip) = match piece.arena {
            Some(arena) => (arena, 0),
            None => (piece.data, at_block(piece.first())),
        };
        for block in blocks_of(blocks) {
            let tag = tag(READ_SUM, number, target) | super::aux(block, 0);
            cx.sum(tag, data.skip(at_block(block) - skip), CACHE_BLOCK);
        }
    }

    /// The checksum of a block of a piece.
    pub(super) fn piece_summed(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        block: usize,
        sum: u32,
    ) {
        let piece = self.reads.at(number);
        let is_bad = piece.checks[block] != super::check(sum);
        // Without the lock it may have been written meanwhile.
        self.corrupt_blocks += u64::from(is_bad && piece.is_locked);
        piece.is_bad |= is_bad;
        piece.sums -= 1;
        if piece.sums > 0 {
            return;
        }
        if piece.is_bad {
            return self.was_bad(cx, number);
        }
        if let Some(arena) = piece.arena {
            let start = super::skip(piece.start % PAGE);
            cx.copy(arena.skip(start), piece.data, piece.len);
        }
        self.piece_ended(cx, number, None);
    }

    /// A piece was not as it was written. Perhaps it was written meanwhile: it is read again with its range locked, for it
    /// alone. A shared range would not last: the lock forgets those once no exclusive one is left.
    fn was_bad(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let piece = self.reads.at(number);
        if piece.is_locked {
            piece.tried |= super::bit(piece.device);
            return self.read_flash(cx, number);
        }
        self.again.push(number);
        let op_number = self.reads.peek(number).op;
        let op = self.ops.at(op_number);
        match op.lock {
            Locked::Has if op.is_exclusive => return self.read_again(cx, op_number),
            Locked::Asked => return,
            Locked::Has => self.lock.release(op_number, &mut self.started),
            Locked::No => {}
        }
        let op = self.ops.at(op_number);
        (op.lock, op.is_exclusive) = (Locked::Asked, true);
        let wanted = Wanted {
            id: op_number,
            start: op.io.offset / CACHE_BLOCK * CACHE_BLOCK,
            end: (op.io.offset + op.io.len).next_multiple_of(CACHE_BLOCK),
            mode: Mode::Exclusive,
        };
        self.lock_or_hurry(cx, wanted);
        self.start_waiting(cx);
    }

    /// No device has the piece as it was written.
    fn flash_unreadable(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let piece = self.reads.peek(number);
        let (page, blocks) = (piece.page, piece.blocks());
        let slot = piece.slot.expect("it was to be read from flash");
        if self.has_only_copy(slot, blocks) {
            self.corrupt(cx, page);
            return self.piece_ended(cx, number, Some(Fault::Io));
        }
        // The disk has it.
        if self.is_writable() {
            self.drop_blocks(cx, page, blocks);
        }
        self.unpin(cx, slot);
        self.read_disk(cx, number, false);
    }

    /// Whether the disk lacks some of these blocks of a page.
    pub(super) fn has_only_copy(&self, slot: u32, blocks: u16) -> bool {
        match self.state {
            // No device is left, and nothing was lost by that.
            State::Losing | State::Through => false,
            State::Lost => true,
            _ => self.keeps_dirty && self.map.masks(slot).1 & blocks != 0,
        }
    }

    /// The disk has answered.
    fn disk_read(&mut self, cx: &mut LayoutCx<'_>, number: u32, outcome: Outcome) {
        let piece = self.reads.at(number);
        if let (Ok(()), Some(arena)) = (outcome, piece.arena) {
            let start = super::skip(piece.start % PAGE);
            cx.copy(arena.skip(start), piece.data, piece.len);
        }
        if outcome.is_ok() && piece.fills {
            self.begin_fill(cx, number);
        }
        self.piece_ended(cx, number, outcome.err());
    }

    /// Makes what was read from the disk a part of the cache, if there is a slot.
    fn begin_fill(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let piece = self.reads.peek(number);
        let (op, page, blocks) = (piece.op, piece.page, piece.blocks());
        if !self.is_writable() || self.unsettled.contains_key(&page) {
            return;
        }
        let found = self.map.find(page);
        let Some(slot) = found.or_else(|| self.add_page(page)) else {
            return;
        };
        let arena = self.reads.at(number).arena.take();
        let arena = arena.expect("a piece that fills has a buffer");
        self.map.pin(slot);
        self.ops.at(op).filling += 1;
        self.fills += 1;
        let part = self.parts.insert(Part::fill(op, page, slot, blocks, arena));
        self.write_part(cx, part);
    }

    fn piece_ended(&mut self, cx: &mut LayoutCx<'_>, number: u32, fault: Option<Fault>) {
        let piece = self.reads.remove(number);
        if let Some(arena) = piece.arena {
            cx.release_above(arena);
        }
        if let Some(slot) = piece.slot {
            self.unpin(cx, slot);
        }
        self.op_part_ended(cx, piece.op, fault);
    }
}

const _: () = assert!(BLOCKS == 16, "masks have 16 bits");
