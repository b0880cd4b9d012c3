//! Writes into the cache: by guests, and of what was read from the disk.
//!
//! A *part* is what goes to one page. It is assembled in a buffer of the arena, so that its checksums fit its bytes. Blocks
//! that it covers in part are read before. It is written to flash, to blocks that no durable record names, and recorded
//! after that. Then it is valid, and in a write-through cache it goes to the disk.
//!
//! # Always true
//! - a part is written only to blocks that are free in the durable journal
//! - it is recorded only after every device that is used has it durably
//! - the guest's answer comes after the record is durable

use super::journal::Waiter;
use super::map::NONE;
use super::{
    BACK, BACKING, BLOCKS, CACHE_BLOCK, Cache, DATA, EDGE, EDGE_SUM, PAGE, PART_SUM, State,
    blocks_of, each, masked, tag,
};
use crate::layout::{LayoutCx, SubIo, Target};
use crate::request::{Data, Fault, Flags, Op, Outcome};

/// Bytes for one page, on their way into the cache.
pub(super) struct Part {
    /// The I/O that it belongs to.
    pub(super) op: u32,
    pub(super) page: u32,
    /// The page's first slot. It is pinned.
    pub(super) slot: u32,
    /// The page's second slot, if it gets blocks.
    twin: u32,
    /// Blocks that it covers, at least in part.
    pub(super) blocks: u16,
    /// Of these, the ones that go to the second slot.
    to_twin: u16,
    /// Its first byte on the disk.
    start: u64,
    len: u64,
    /// The guest's bytes. A fill has none.
    data: Option<Data>,
    pub(super) arena: Option<Data>,
    /// Blocks whose other bytes are being read.
    edges: u16,
    /// Writes to flash, and checksums, that have not ended.
    open: u32,
    checks: [u16; BLOCKS],
    /// Devices that have it.
    written: u32,
    flags: Flags,
    fault: Option<Fault>,
    /// Whether it was in the page's second slot before.
    is_join: bool,
}

impl Part {
    /// What was read from the disk becomes part of the cache. Its bytes are in the arena.
    pub(super) fn fill(op: u32, page: u32, slot: u32, blocks: u16, arena: Data) -> Part {
        Part {
            op,
            page,
            slot,
            twin: NONE,
            blocks,
            to_twin: 0,
            start: 0,
            len: 0,
            data: None,
            arena: Some(arena),
            edges: 0,
            open: 0,
            checks: [0; BLOCKS],
            written: 0,
            flags: Flags::NONE,
            fault: None,
            is_join: false,
        }
    }

    /// Blocks of a page's second slot go to the first one. Their bytes are in the arena.
    pub(super) fn join(op: u32, page: u32, slot: u32, blocks: u16, arena: Data) -> Part {
        Part {
            is_join: true,
            ..Part::fill(op, page, slot, blocks, arena)
        }
    }

    fn is_fill(&self) -> bool {
        self.data.is_none()
    }

    /// Where its arena's buffer has a block.
    fn at(&self, block: usize) -> Data {
        let arena = self
            .arena
            .expect("it has a buffer while it is with a device");
        arena.skip(at_block(block))
    }
}

/// The offset of a block in its page, in bytes.
pub(super) fn at_block(block: usize) -> u32 {
    u32::try_from(block as u64 * CACHE_BLOCK).expect("a page is short")
}

/// Where on the disk the blocks of a page begin and end, from the first to the last of a mask.
pub(super) fn span_of(page: u32, blocks: u16) -> (u64, u64) {
    let begins = u64::from(page) * PAGE;
    let first = u64::from(blocks.trailing_zeros());
    let after = u64::from(16 - blocks.leading_zeros());
    (begins + first * CACHE_BLOCK, begins + after * CACHE_BLOCK)
}

/// A range of the disk that lies in one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InPage {
    pub(super) page: u32,
    /// Its first byte on the disk.
    pub(super) start: u64,
    pub(super) len: u64,
    /// Blocks that it covers, at least in part.
    pub(super) blocks: u16,
}

/// The pages of a range.
pub(super) fn in_pages(offset: u64, len: u64) -> impl Iterator<Item = InPage> {
    let end = offset + len;
    let mut at = offset;
    core::iter::from_fn(move || {
        (at < end).then(|| {
            let page = at / PAGE;
            let stop = end.min((page + 1) * PAGE);
            let first = at % PAGE / CACHE_BLOCK;
            let last = (stop - 1) % PAGE / CACHE_BLOCK;
            let piece = InPage {
                page: super::page_number(page),
                start: at,
                len: stop - at,
                blocks: masked(first, last),
            };
            at = stop;
            piece
        })
    })
}

impl Cache {
    /// A write has its range.
    pub(super) fn write_locked(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let io = self.ops.at(number).io;
        let (start, end) = (io.offset, io.offset + io.len);
        if self.is_settling(start, end) {
            return self.settling.push(number);
        }
        // The cleaner's older bytes must not come to the disk after these.
        if !self.mode.is_write_back() && self.cleaner.overlaps(start, end) {
            return self.behind.push(number);
        }
        if end > self.cached_end() || !self.plan_write(cx, number) {
            return self.around(cx, number);
        }
        self.issue_write(cx, number);
    }

    /// Whether any page of a range has blocks that must not be written yet.
    pub(super) fn is_settling(&self, start: u64, end: u64) -> bool {
        let unsettled = &self.unsettled;
        !unsettled.is_empty()
            && in_pages(start, end - start).any(|piece| unsettled.contains_key(&piece.page))
    }

    /// Gives each page of a write the slots that it needs, and pins them. Returns whether there were enough, in chunks that stay:
    /// otherwise nothing is pinned, and the write goes around the cache.
    fn plan_write(&mut self, cx: &mut LayoutCx<'_>, number: u32) -> bool {
        let op = self.ops.peek(number);
        let (io, is_sequential) = (op.io, op.is_sequential);
        let mut pinned = 0;
        let mut enough = true;
        for piece in in_pages(io.offset, io.len) {
            let slot = match self.map.find(piece.page) {
                Some(slot) if self.is_overdue(cx.now(), slot) => {
                    enough = false;
                    break;
                }
                Some(slot) => slot,
                None if self.allocates(cx, &io, piece.page, is_sequential) => {
                    match self.add_page(piece.page) {
                        Some(slot) => slot,
                        None => continue,
                    }
                }
                None => continue,
            };
            let taken = self.map.slot(slot).valid & piece.blocks;
            if taken != 0 && self.map.twin(slot).is_none() && self.map.add_twin(slot).is_none() {
                enough = false;
                break;
            }
            self.map.pin(slot);
            pinned += 1;
            self.policy_hit(cx.now(), slot, piece.page);
        }
        if !enough {
            for piece in in_pages(io.offset, io.len) {
                if pinned == 0 {
                    break;
                }
                if let Some(slot) = self.map.find(piece.page) {
                    self.unpin(cx, slot);
                    pinned -= 1;
                }
            }
        }
        enough
    }

    fn issue_write(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let op = self.ops.at(number);
        op.open = 1;
        let io = op.io;
        // Neighbouring pages that are not cached go to the disk together.
        let mut direct: Option<(u64, u64)> = None;
        for piece in in_pages(io.offset, io.len) {
            match self.map.find(piece.page) {
                None => {
                    let (start, _) = direct.unwrap_or((piece.start, 0));
                    direct = Some((start, piece.start + piece.len));
                }
                Some(slot) => {
                    if let Some((start, end)) = direct.take() {
                        self.write_direct(cx, number, start, end);
                    }
                    self.begin_part(cx, number, slot, piece);
                }
            }
        }
        if let Some((start, end)) = direct {
            self.write_direct(cx, number, start, end);
        }
        self.op_part_ended(cx, number, None);
    }

    /// Writes a range that is not cached to the disk.
    fn write_direct(&mut self, cx: &mut LayoutCx<'_>, number: u32, start: u64, end: u64) {
        self.loose.add(start, end - start);
        let op = self.ops.at(number);
        op.open += 1;
        let io = op.io;
        let sub = SubIo {
            target: BACKING,
            op: Op::Write,
            flags: io.flags,
            offset: start,
            len: end - start,
            data: io.data.skip(super::skip(start - io.offset)),
            background: io.background,
        };
        cx.issue(tag(super::DIRECT, number, BACKING), sub);
    }

    /// The disk has a range that is not cached.
    pub(super) fn direct_done(&mut self, cx: &mut LayoutCx<'_>, number: u32, outcome: Outcome) {
        self.unflushed = true;
        let io = self.ops.at(number).io;
        self.loose.add(io.offset, io.len);
        self.op_part_ended(cx, number, outcome.err());
    }

    fn begin_part(&mut self, cx: &mut LayoutCx<'_>, number: u32, slot: u32, piece: InPage) {
        let op = self.ops.at(number);
        op.open += 1;
        let io = op.io;
        let twin = self.map.twin(slot);
        let part = Part {
            op: number,
            page: piece.page,
            slot,
            twin: twin.unwrap_or(NONE),
            blocks: piece.blocks,
            to_twin: self.map.slot(slot).valid & piece.blocks,
            start: piece.start,
            len: piece.len,
            data: Some(io.data.skip(super::skip(piece.start - io.offset))),
            arena: None,
            edges: 0,
            open: 0,
            checks: [0; BLOCKS],
            written: 0,
            flags: io.flags,
            fault: None,
            is_join: false,
        };
        let part = self.parts.insert(part);
        self.feed(cx, part);
    }

    /// Gives a part its buffer, once there is one.
    fn feed(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let Some(arena) = cx.claim_above() else {
            return self.hungry.push_back(number);
        };
        let part = self.parts.at(number);
        part.arena = Some(arena);
        part.edges = edges(part.start, part.len);
        self.read_edges(cx, number);
    }

    /// The arena has room again.
    pub(super) fn feed_hungry(&mut self, cx: &mut LayoutCx<'_>) {
        for _ in 0..self.hungry.len() {
            if let Some(number) = self.hungry.pop_front() {
                self.feed(cx, number);
            }
        }
    }

    /// Reads blocks that the part covers in part.
    fn read_edges(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let part = self.parts.peek(number);
        let (slot, page, edges) = (part.slot, part.page, part.edges);
        if edges == 0 {
            return self.assemble(cx, number);
        }
        for block in blocks_of(edges) {
            self.read_edge(cx, number, slot, page, block, 0);
        }
    }

    /// Reads one of them, where it is, if these devices were tried.
    fn read_edge(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        slot: u32,
        page: u32,
        block: usize,
        tried: u8,
    ) {
        let holder = self.map.holder(slot, block);
        let (target, offset) = match (holder, self.reader(cx.loads, tried)) {
            (Some(holder), Some(device)) => (device, self.area.block_of_slot(holder, block)),
            (Some(_), None) => return self.edge_failed(cx, number, block),
            (None, _) => (BACKING, u64::from(page) * PAGE + u64::from(at_block(block))),
        };
        // The disk may end within the block.
        let len = match target {
            BACKING => CACHE_BLOCK.min(self.size.saturating_sub(offset)),
            _ => CACHE_BLOCK,
        };
        let sub = SubIo {
            target,
            op: Op::Read,
            flags: Flags::NONE,
            offset,
            len,
            data: self.parts.peek(number).at(block),
            background: false,
        };
        let tag = tag(EDGE, number, target) | super::aux(block, tried);
        cx.issue(tag, sub);
    }

    /// A block that a part covers in part was read.
    pub(super) fn edge_read(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        target: Target,
        (block, tried): (usize, u8),
        outcome: Outcome,
    ) {
        let part = self.parts.peek(number);
        let (slot, page) = (part.slot, part.page);
        match outcome {
            Ok(()) if target == BACKING => self.edge_ready(cx, number, block),
            Ok(()) => {
                let tag = tag(EDGE_SUM, number, target) | super::aux(block, tried);
                cx.sum(tag, self.parts.peek(number).at(block), CACHE_BLOCK);
            }
            Err(fault) if target == BACKING => {
                self.parts.at(number).fault = Some(fault);
                self.edge_ready(cx, number, block);
            }
            Err(_) => {
                let tried = tried | super::bit(target);
                self.read_edge(cx, number, slot, page, block, tried);
            }
        }
    }

    /// The checksum of a block that was read from flash.
    pub(super) fn edge_summed(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        device: Target,
        (block, tried): (usize, u8),
        sum: u32,
    ) {
        let part = self.parts.peek(number);
        let (slot, page) = (part.slot, part.page);
        let holder = self.map.holder(slot, block);
        let expected = holder.map(|holder| self.map.slot(holder).checks[block]);
        match expected {
            Some(expected) if expected == super::check(sum) => self.edge_ready(cx, number, block),
            _ => {
                self.corrupt_blocks += u64::from(expected.is_some());
                let tried = tried | super::bit(device);
                self.read_edge(cx, number, slot, page, block, tried);
            }
        }
    }

    /// No device has a block as it was written.
    fn edge_failed(&mut self, cx: &mut LayoutCx<'_>, number: u32, block: usize) {
        let part = self.parts.peek(number);
        let (slot, page) = (part.slot, part.page);
        if self.has_only_copy(slot, 1 << block) {
            self.corrupt(cx, page);
            self.parts.at(number).fault = Some(Fault::Io);
            return self.edge_ready(cx, number, block);
        }
        // The disk has it. It is overwritten here, in the other slot if it is valid in the first one.
        let offset = u64::from(page) * PAGE + u64::from(at_block(block));
        let sub = SubIo {
            target: BACKING,
            op: Op::Read,
            flags: Flags::NONE,
            offset,
            len: CACHE_BLOCK.min(self.size.saturating_sub(offset)),
            data: self.parts.peek(number).at(block),
            background: false,
        };
        let tag = tag(EDGE, number, BACKING) | super::aux(block, 0);
        cx.issue(tag, sub);
    }

    fn edge_ready(&mut self, cx: &mut LayoutCx<'_>, number: u32, block: usize) {
        let part = self.parts.at(number);
        part.edges &= !(1 << block);
        if part.edges == 0 {
            self.assemble(cx, number);
        }
    }

    /// All bytes of a part are there, but for the guest's.
    fn assemble(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let part = self.parts.peek(number);
        if part.fault.is_some() {
            return self.part_ended(cx, number);
        }
        let arena = part.arena.expect("it was just claimed");
        if let Some(data) = part.data {
            cx.copy(data, arena.skip(super::skip(part.start % PAGE)), part.len);
        }
        self.write_part(cx, number);
    }

    /// Writes a part to flash.
    pub(super) fn write_part(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let syncing = self.syncing();
        let part = self.parts.at(number);
        let (blocks, to_twin) = (part.blocks, part.to_twin);
        part.open = 1 + blocks.count_ones();
        part.written = self.in_sync | syncing;
        let background = part.is_fill();
        for block in blocks_of(blocks) {
            let tag = tag(PART_SUM, number, BACKING) | super::aux(block, 0);
            cx.sum(tag, self.parts.peek(number).at(block), CACHE_BLOCK);
        }
        for (of, slot_of) in [
            (blocks & !to_twin, self.parts.peek(number).slot),
            (to_twin, self.parts.peek(number).twin),
        ] {
            for (first, count) in runs(of) {
                let len = count as u64 * CACHE_BLOCK;
                for device in each(self.parts.peek(number).written) {
                    let part = self.parts.at(number);
                    part.open += 1;
                    let sub = SubIo {
                        target: device,
                        op: Op::Write,
                        flags: Flags::FUA,
                        offset: self.area.block_of_slot(slot_of, first),
                        len,
                        data: part.at(first),
                        background,
                    };
                    cx.issue(tag(DATA, number, device), sub);
                    self.data_bytes += len;
                }
            }
        }
        self.part_io_ended(cx, number);
    }

    /// A device has a run of a part, or has failed.
    pub(super) fn data_written(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        device: Target,
        outcome: Outcome,
    ) {
        if let Err(fault) = outcome {
            self.parts.at(number).written &= !(1 << device.0);
            self.flash_failed(cx, device, fault);
        }
        self.part_io_ended(cx, number);
    }

    /// The checksum of a block of a part.
    pub(super) fn part_summed(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        block: usize,
        sum: u32,
    ) {
        self.parts.at(number).checks[block] = super::check(sum);
        self.part_io_ended(cx, number);
    }

    fn part_io_ended(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let part = self.parts.at(number);
        part.open -= 1;
        if part.open > 0 {
            return;
        }
        let is_fill = part.is_fill();
        if part.written & self.in_sync != self.in_sync || !self.is_writable() {
            // The only device has failed.
            return match is_fill {
                true => self.part_ended(cx, number),
                false => self.part_stranded(cx, number),
            };
        }
        let change = self.put_part(cx, number);
        let part = self.parts.peek(number);
        self.want_fill(part.page, part.slot);
        match is_fill {
            // Nobody waits for its record.
            true => self.part_ended(cx, number),
            false => self.after(change, Waiter::Part(number)),
        }
        self.advance_journal(cx);
        self.advance_fills(cx);
    }

    /// A part is in the cache from now on. Returns the change of its page.
    fn put_part(&mut self, cx: &mut LayoutCx<'_>, number: u32) -> u64 {
        let part = self.parts.peek(number);
        if part.is_join {
            return self.put_joined(cx, number);
        }
        let Part {
            page,
            slot,
            twin,
            blocks,
            to_twin,
            checks,
            ..
        } = *part;
        let is_fill = part.is_fill();
        let dirty = if is_fill {
            self.loose_of(page, blocks)
        } else {
            blocks
        };
        self.map.invalidate(slot, blocks);
        for (slot, of) in [(slot, blocks & !to_twin), (twin, to_twin)] {
            if of == 0 {
                continue;
            }
            let at = self.map.slot_mut(slot);
            at.valid |= of;
            at.dirty |= of & dirty;
            for block in blocks_of(of) {
                at.checks[block] = checks[block];
            }
        }
        if dirty != 0 {
            self.cleaner.dirtied(page, dirty, cx.now());
        }
        if is_fill {
            self.cleaner.wrote(page, dirty);
        }
        let change = self.change(cx, page);
        if dirty != 0 {
            self.cleaner.recorded_by(page, change);
        }
        change
    }

    /// Blocks that were in the second slot are in the first one from now on. They are as dirty as they were. Where they were
    /// they may be written again once that is durable.
    fn put_joined(&mut self, cx: &mut LayoutCx<'_>, number: u32) -> u64 {
        let Part {
            page,
            slot,
            blocks,
            checks,
            ..
        } = *self.parts.peek(number);
        let dirty = self.map.masks(slot).1 & blocks;
        self.map.invalidate(slot, blocks);
        let at = self.map.slot_mut(slot);
        at.valid |= blocks;
        at.dirty |= dirty;
        for block in blocks_of(blocks) {
            at.checks[block] = checks[block];
        }
        let change = self.change(cx, page);
        self.unsettled.insert(page, change);
        self.after(change, Waiter::Settled(page));
        self.hasten();
        change
    }

    /// The record of a part is durable, or the one that gives it up after the disk has failed to write it.
    pub(super) fn part_recorded(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let has_failed = self.parts.peek(number).fault.is_some();
        if has_failed || self.mode.is_write_back() {
            return self.part_ended(cx, number);
        }
        self.part_to_disk(cx, number);
    }

    /// Writes a part to the disk. A block that it covers in part goes there whole if the disk lacks its other bytes.
    pub(super) fn part_to_disk(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let part = self.parts.peek(number);
        if self.cleaner.is_cleaning(part.page) {
            // Its older bytes must not come to the disk after these.
            return self.parts_behind.push(number);
        }
        let owed = self.cleaner.owes(part.page, edges(part.start, part.len));
        let (mut start, mut end) = (part.start, part.start + part.len);
        let first = start / CACHE_BLOCK * CACHE_BLOCK;
        if owed >> (first % PAGE / CACHE_BLOCK) & 1 == 1 {
            start = first;
        }
        if owed >> ((end - 1) % PAGE / CACHE_BLOCK) & 1 == 1 {
            end = end.next_multiple_of(CACHE_BLOCK).min(self.size);
        }
        let part = self.parts.at(number);
        (part.start, part.len) = (start, end - start);
        let arena = part.arena.expect("it has a buffer until it ends");
        let sub = SubIo {
            target: BACKING,
            op: Op::Write,
            flags: part.flags,
            offset: start,
            len: end - start,
            data: arena.skip(super::skip(start % PAGE)),
            background: false,
        };
        cx.issue(tag(BACK, number, BACKING), sub);
    }

    /// The disk has a part of a write-through cache.
    pub(super) fn part_on_disk(&mut self, cx: &mut LayoutCx<'_>, number: u32, outcome: Outcome) {
        self.unflushed = true;
        let part = self.parts.at(number);
        let (page, start, len) = (part.page, part.start, part.len);
        match outcome {
            Ok(()) => {
                // A block that it covers in part has other bytes that the disk may lack.
                let whole = part.blocks & !edges(start, len);
                self.cleaner.wrote(page, whole);
            }
            Err(fault) => {
                part.fault = Some(fault);
                return self.part_failed(cx, number);
            }
        }
        self.part_ended(cx, number);
    }

    /// The disk has failed to write a part. Flash may have what the disk lacks, or flash gives it up. It does so durably
    /// before the answer: a use of the disk that begins with dirty blocks would read what no guest has read before.
    #[cold]
    fn part_failed(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let part = self.parts.peek(number);
        let (page, blocks) = (part.page, part.blocks);
        if self.keeps_dirty {
            self.cleaner.owe(page, blocks);
        } else if self.is_writable() {
            *self.doubtful.entry(page).or_default() |= blocks;
            let change = self.drop_blocks(cx, page, blocks);
            self.after(change, Waiter::Part(number));
            return self.advance_journal(cx);
        }
        self.part_ended(cx, number);
    }

    /// No device is left to have a part: it goes to the disk, once the cache is given up.
    fn part_stranded(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        match self.state {
            State::Through => self.part_to_disk(cx, number),
            State::Losing if self.waits_for_order() => self.stranded.push(number),
            _ => {
                self.parts.at(number).fault = Some(Fault::Io);
                self.part_ended(cx, number);
            }
        }
    }

    /// The cache is given up: parts go to the disk.
    pub(super) fn rescue_stranded(&mut self, cx: &mut LayoutCx<'_>) {
        for number in core::mem::take(&mut self.stranded) {
            match self.state {
                State::Through => self.part_to_disk(cx, number),
                _ => {
                    self.parts.at(number).fault = Some(Fault::Io);
                    self.part_ended(cx, number);
                }
            }
        }
    }

    /// Parts that wait for a record that no device will have.
    pub(super) fn strand(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        match self.parts.peek(number).fault {
            Some(_) => self.part_ended(cx, number),
            None => self.part_stranded(cx, number),
        }
    }

    pub(super) fn part_ended(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let part = self.parts.remove(number);
        if let Some(arena) = part.arena {
            cx.release_above(arena);
        }
        self.unpin(cx, part.slot);
        match part.is_fill() {
            true => self.fill_ended(cx, part.op),
            false => self.op_part_ended(cx, part.op, part.fault),
        }
    }
}

/// Blocks that a range of one page covers in part.
fn edges(start: u64, len: u64) -> u16 {
    let end = start + len;
    let block = |byte: u64| byte % PAGE / CACHE_BLOCK;
    let mut edges = 0;
    if !start.is_multiple_of(CACHE_BLOCK) {
        edges |= 1 << block(start);
    }
    if !end.is_multiple_of(CACHE_BLOCK) {
        edges |= 1 << block(end - 1);
    }
    edges
}

/// Neighbouring blocks of a mask: the first one and how many.
pub(super) fn runs(mask: u16) -> impl Iterator<Item = (usize, usize)> {
    let mut left = mask;
    core::iter::from_fn(move || {
        (left != 0).then(|| {
            let first = left.trailing_zeros();
            let count = (left >> first).trailing_ones();
            let run = (u32::from(u16::MAX) >> (16 - count)) << first;
            left &= !u16::try_from(run).expect("16 blocks");
            (first as usize, count as usize)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_range_is_cut_at_pages() {
        let pieces: Vec<InPage> = in_pages(PAGE - 512, 1024).collect();
        assert_eq!(pieces.len(), 2);
        assert_eq!((pieces[0].page, pieces[0].blocks), (0, 0x8000));
        assert_eq!(
            (pieces[1].start, pieces[1].len, pieces[1].blocks),
            (PAGE, 512, 1)
        );
        let whole: Vec<InPage> = in_pages(3 * PAGE, PAGE).collect();
        assert_eq!((whole.len(), whole[0].blocks), (1, 0xffff));
    }

    #[test]
    fn a_mask_spans_from_its_first_block_to_its_last() {
        assert_eq!(span_of(0, 1), (0, 4096));
        assert_eq!(span_of(2, 0xffff), (2 * PAGE, 3 * PAGE));
        assert_eq!(span_of(1, 0b1_0010), (PAGE + 4096, PAGE + 5 * 4096));
    }

    #[test]
    fn edges_are_blocks_that_are_covered_in_part() {
        assert_eq!(edges(0, PAGE), 0);
        assert_eq!(edges(512, 512), 1);
        assert_eq!(edges(4096, 4097), 0b100);
        assert_eq!(edges(PAGE + 100, 8192), 0b101);
    }

    #[test]
    fn runs_are_neighbours() {
        assert_eq!(runs(0).count(), 0);
        assert_eq!(runs(0xffff).collect::<Vec<_>>(), [(0, 16)]);
        assert_eq!(
            runs(0b1011_0001).collect::<Vec<_>>(),
            [(0, 1), (4, 2), (7, 1)]
        );
    }
}
