//! A flash device that was left behind gets everything again from the other one, as work in the background.
//!
//! Its old headers are made void first: they said that it has everything. Its ring is made blank: it may have blocks of a
//! journal that the other device has not. From then on it gets all that is written to flash. The blocks of each page are read from the other device, checked, and written to it, with the page locked against
//! changes. Its journal is whole once every block that is needed was written after it came back: the sweep goes on until
//! then. At last the header says that it has everything.
//!
//! # Always true
//! - a header that says that a device has everything is durable only after that device has it durably
//! - a device is not used again while it has earlier I/O

use super::write::{at_block, runs};
use super::{
    BLOCKS, CACHE_BLOCK, COPY_READ, COPY_SUM, COPY_WRITE, Cache, PAGE, SYNC_BLANK, SYNC_HEADER,
    State, Task, blocks_of, each, tag,
};
use crate::layout::{BlockOutcome, LayoutCx, LayoutNotice, OrderRefusal, SubIo, Target};
use crate::range_lock::Mode;
use crate::request::{Data, Fault, Flags, Op, Outcome};

/// Pages that are copied at once.
const TOGETHER: u32 = 2;

/// A device that gets everything again.
pub(super) struct Resync {
    pub(super) device: Target,
    step: Step,
    /// The next slot whose page is copied.
    pub(super) next: u32,
    /// Blocks of the journal from this one on are on it. It may have an earlier block of the first number, which a crash
    /// left there alone: that one is overwritten as well.
    journal_from: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// So many of its headers are not void yet.
    Voiding(u32),
    /// This part of its ring is not blank yet.
    Blanking(usize),
    Copying,
    /// The header that names it is not durable yet.
    Heading,
}

/// A page that is copied.
pub(super) struct Copying {
    op: u32,
    slot: u32,
    arena: Data,
    blocks: u16,
    checks: [u16; BLOCKS],
    open: u32,
    bad: u16,
    failed: bool,
}

impl Cache {
    /// Devices that get what is written.
    pub(super) fn written(&self) -> u32 {
        self.in_sync | self.syncing()
    }

    /// The device that gets everything again, as one bit.
    pub(super) fn syncing(&self) -> u32 {
        match &self.resync {
            Some(resync) if resync.step == Step::Copying => 1 << resync.device.0,
            _ => 0,
        }
    }

    /// A device that was left behind, or is another one, is to be used again.
    pub(super) fn begin_resync(
        &mut self,
        cx: &mut LayoutCx<'_>,
        device: Target,
    ) -> Result<(), OrderRefusal> {
        let bit = 1 << device.0;
        if self.state != State::Ready {
            return Err(OrderRefusal::NotOpen);
        }
        if self.devices() & bit == 0 {
            return Err(OrderRefusal::NoMember);
        }
        if self.in_sync & bit != 0 {
            return Err(OrderRefusal::InSync);
        }
        if self.resync.is_some() || self.copy_ops > 0 {
            return Err(OrderRefusal::Busy);
        }
        self.resyncs = self.resyncs.wrapping_add(1);
        self.heading.behind &= !bit;
        self.resync = Some(Resync {
            device,
            step: Step::Voiding(2),
            next: 0,
            journal_from: 0,
        });
        self.void_header(cx, device, 0);
        Ok(())
    }

    /// Makes a header of the device void: the older one first, which may say that it was alone. The newer one names both, or says
    /// that the device is behind. A header that the device has failed to write is not the newer one.
    fn void_header(&mut self, cx: &mut LayoutCx<'_>, device: Target, nth: u64) {
        // It is older than any other one: what the other device has counts, also if its last header is not durable yet.
        let header = super::blocks::Header {
            generation: 0,
            ..self.heading.header_of(device, self.in_sync)
        };
        let older = 1 - self.heading.newest[usize::from(device.0) - 1];
        let at = self.area.header_at(older + nth);
        let tag = tag(SYNC_HEADER, self.resyncs, device);
        cx.write_block(tag, device, at, header.encode());
    }

    /// A place of the device's header is void, or not.
    pub(super) fn voided(&mut self, cx: &mut LayoutCx<'_>, round: u32, outcome: BlockOutcome) {
        if round != self.resyncs {
            return;
        }
        let Some(resync) = &mut self.resync else {
            return;
        };
        let Step::Voiding(left) = &mut resync.step else {
            return;
        };
        if let Err(fault) = outcome {
            return self.resync_failed(cx, fault);
        }
        *left -= 1;
        let (left, device) = (*left, resync.device);
        match left {
            0 => self.blank_ring(cx, 0),
            _ => self.void_header(cx, device, 1),
        }
    }

    /// Makes a part of the device's ring blank, or begins to copy.
    fn blank_ring(&mut self, cx: &mut LayoutCx<'_>, part: usize) {
        let Some(resync) = &mut self.resync else {
            return;
        };
        let Some((offset, len)) = self.area.ring_part(part) else {
            return self.begin_copying(cx);
        };
        resync.step = Step::Blanking(part);
        let device = resync.device;
        let sub = SubIo {
            target: device,
            op: Op::WriteZeroes,
            flags: Flags::FUA,
            offset,
            len,
            data: Data::NONE,
            background: true,
        };
        cx.issue(tag(SYNC_BLANK, self.resyncs, device), sub);
    }

    /// A part of the device's ring is blank, or not.
    pub(super) fn blanked(&mut self, cx: &mut LayoutCx<'_>, round: u32, outcome: Outcome) {
        let step = self.resync.as_ref().map(|resync| resync.step);
        let (true, Some(Step::Blanking(part))) = (round == self.resyncs, step) else {
            return;
        };
        match outcome {
            Ok(()) => self.blank_ring(cx, part + 1),
            Err(fault) => self.resync_failed(cx, fault),
        }
    }

    /// Both headers and the ring are void.
    fn begin_copying(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(resync) = &mut self.resync else {
            return;
        };
        resync.step = Step::Copying;
        resync.journal_from = self.journal.next;
        let bytes = u64::from(self.map.len() - self.map.free_count()) * PAGE;
        let member = resync.device;
        cx.notice(LayoutNotice::Rebuilding { member, bytes });
        self.advance_resync(cx);
    }

    /// The device does not get anything any more.
    pub(super) fn resync_failed(&mut self, cx: &mut LayoutCx<'_>, fault: Fault) {
        if let Some(resync) = self.resync.take() {
            let member = resync.device;
            self.journal_forget(member);
            cx.notice(LayoutNotice::RebuildFailed { member, fault });
            self.finish_block(cx);
        }
    }

    /// Copies the next pages, or ends.
    pub(super) fn advance_resync(&mut self, cx: &mut LayoutCx<'_>) {
        loop {
            let may_begin = self.may_begin();
            let slots = self.map.len();
            let Some(resync) = &mut self.resync else {
                return;
            };
            let busy = self.copy_ops >= TOGETHER || !may_begin || self.resync_waits;
            if resync.step != Step::Copying || busy || resync.next >= slots {
                break;
            }
            let slot = resync.next;
            resync.next += 1;
            if !self.map.is_first(slot) {
                continue;
            }
            self.copy_ops += 1;
            // One that is being changed gets it there, unless that began before.
            let op = self.insert_task(Task::Copy, u64::from(self.map.page(slot)) * PAGE, PAGE);
            self.lock_task(cx, op, Mode::Exclusive);
        }
        self.end_resync(cx);
    }

    /// Whether the journal has to advance until a device has all of it.
    pub(super) fn resync_needs_journal(&self) -> bool {
        self.resync.as_ref().is_some_and(|resync| {
            let copied = resync.step == Step::Copying && resync.next >= self.map.len();
            copied && self.copy_ops == 0 && self.journal.tail <= resync.journal_from
        })
    }

    fn end_resync(&mut self, cx: &mut LayoutCx<'_>) {
        let slots = self.map.len();
        let may_begin = self.may_begin();
        let Some(resync) = &mut self.resync else {
            return;
        };
        let copied = resync.next >= slots && self.copy_ops == 0;
        if resync.step != Step::Copying || !copied || !may_begin {
            return;
        }
        if self.journal.tail <= resync.journal_from {
            return self.advance_journal(cx);
        }
        resync.step = Step::Heading;
        self.in_sync |= 1 << resync.device.0;
        self.must_head(cx);
    }

    /// The header is durable.
    pub(super) fn resync_headed(&mut self, cx: &mut LayoutCx<'_>) {
        let ended = self.resync.take_if(|resync| resync.step == Step::Heading);
        if let Some(Resync { device: member, .. }) = ended {
            cx.notice(LayoutNotice::Rebuilt { member });
        }
    }

    /// A page that is copied does not change now.
    pub(super) fn copy_locked(&mut self, cx: &mut LayoutCx<'_>, op: u32) {
        let page = super::page_number(self.ops.at(op).io.offset / PAGE);
        let slot = self.map.find(page);
        let blocks = slot.map_or(0, |slot| self.map.masks(slot).0);
        let Some(slot) = slot.filter(|_| blocks != 0 && self.syncing() != 0) else {
            return self.copied(cx, op);
        };
        let Some(arena) = cx.claim_above() else {
            // It is tried again from this slot on.
            if let Some(resync) = &mut self.resync {
                resync.next = resync.next.min(slot);
            }
            self.resync_waits = true;
            return self.copied(cx, op);
        };
        let Some(device) = self.reader(cx.loads, 0) else {
            cx.release_above(arena);
            return self.copied(cx, op);
        };
        self.map.pin(slot);
        let mut checks = [0; BLOCKS];
        for block in blocks_of(blocks) {
            let holder = self.map.holder(slot, block).expect("it is valid");
            checks[block] = self.map.slot(holder).checks[block];
        }
        let number = self.copies.insert(Copying {
            op,
            slot,
            arena,
            blocks,
            checks,
            open: 1,
            bad: 0,
            failed: false,
        });
        self.copy_runs(cx, number, device, Op::Read, blocks);
        self.copy_read(cx, number, Ok(()));
    }

    /// Reads or writes blocks of a page, where they are.
    fn copy_runs(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        device: Target,
        op: Op,
        blocks: u16,
    ) {
        let copying = self.copies.peek(number);
        let (slot, arena) = (copying.slot, copying.arena);
        let (kind, flags) = match op {
            Op::Read => (COPY_READ, Flags::NONE),
            _ => (COPY_WRITE, Flags::FUA),
        };
        let twin = self.map.twin(slot);
        for slot in core::iter::once(slot).chain(twin) {
            for (first, count) in runs(self.map.slot(slot).valid & blocks) {
                self.copies.at(number).open += 1;
                let sub = SubIo {
                    target: device,
                    op,
                    flags,
                    offset: self.area.block_of_slot(slot, first),
                    len: count as u64 * CACHE_BLOCK,
                    data: arena.skip(at_block(first)),
                    background: true,
                };
                if op == Op::Write {
                    self.data_bytes += sub.len;
                }
                cx.issue(tag(kind, number, device), sub);
            }
        }
    }

    pub(super) fn copy_read(&mut self, cx: &mut LayoutCx<'_>, number: u32, outcome: Outcome) {
        let copying = self.copies.at(number);
        copying.open -= 1;
        copying.failed |= outcome.is_err();
        if copying.open > 0 {
            return;
        }
        let (blocks, arena) = (copying.blocks, copying.arena);
        if copying.failed {
            // It is left to reads to find out what cannot be read.
            return self.copy_ended(cx, number, Err(Fault::Io));
        }
        copying.open = blocks.count_ones();
        for block in blocks_of(blocks) {
            let tag = tag(COPY_SUM, number, super::BACKING) | super::aux(block, 0);
            cx.sum(tag, arena.skip(at_block(block)), CACHE_BLOCK);
        }
    }

    pub(super) fn copy_summed(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        block: usize,
        sum: u32,
    ) {
        let copying = self.copies.at(number);
        copying.open -= 1;
        if copying.checks[block] != super::check(sum) {
            copying.bad |= 1 << block;
            self.corrupt_blocks += 1;
        }
        if copying.open > 0 {
            return;
        }
        let (slot, blocks, bad) = (copying.slot, copying.blocks, copying.bad);
        if bad != 0 {
            let page = self.map.page(slot);
            match self.has_only_copy(slot, bad) {
                true => self.corrupt(cx, page),
                false if self.is_writable() => drop(self.drop_blocks(cx, page, bad)),
                false => {}
            }
        }
        let syncing = each(self.syncing()).next();
        let Some(device) = syncing else {
            return self.copy_ended(cx, number, Ok(()));
        };
        self.copies.at(number).open = 1;
        self.copy_runs(cx, number, device, Op::Write, blocks & !bad);
        self.copy_written(cx, number, Ok(()));
    }

    pub(super) fn copy_written(&mut self, cx: &mut LayoutCx<'_>, number: u32, outcome: Outcome) {
        let copying = self.copies.at(number);
        copying.open -= 1;
        if let Err(fault) = outcome {
            copying.failed = true;
            if self.syncing() != 0 {
                self.resync_failed(cx, fault);
            }
        }
        if self.copies.at(number).open == 0 {
            self.copy_ended(cx, number, Ok(()));
        }
    }

    fn copy_ended(&mut self, cx: &mut LayoutCx<'_>, number: u32, outcome: Outcome) {
        let Copying {
            op, slot, arena, ..
        } = self.copies.remove(number);
        cx.release_above(arena);
        self.unpin(cx, slot);
        if let Err(fault) = outcome {
            self.resync_failed(cx, fault);
        }
        self.copied(cx, op);
    }

    /// A page was copied, or need not be.
    fn copied(&mut self, cx: &mut LayoutCx<'_>, op: u32) {
        self.unlock(cx, op);
        if !self.resync_waits {
            self.advance_resync(cx);
        }
    }

    /// There may be a buffer for the next page.
    pub(super) fn feed_resync(&mut self, cx: &mut LayoutCx<'_>) {
        if core::mem::take(&mut self.resync_waits) {
            self.advance_resync(cx);
        }
    }
}
