//! The guests' I/Os on a mirror, and the parts of them that are with the members.
//!
//! A write is copied into buffers of the arena, piece by piece, so that all members get the same bytes. A member that hangs
//! keeps its buffer until its I/O ends; the guest's I/O is answered without it. The only member that is used gets the guest's
//! own bytes.
//!
//! # Always true
//! - an I/O ends once, after every piece of it has ended on each member that is still used
//! - a buffer returns to the arena after its last I/O has ended

use super::loss::Next;
use super::records::Hot;
use super::state::HOT_MAX;
use super::{COPY_LOCK, Mirror, PIECE, SCRUB_LOCK, each, tag};
use crate::layout::{LayoutCx, LayoutIo, LayoutNotice, Map, SLOT, SubIo};
use crate::range_lock::{Mode, Wanted};
use crate::request::{self, Data, Fault, Flags, IoId, Outcome};
use alloc::vec::Vec;

/// An I/O that the mirror has taken.
pub(super) struct Op {
    /// None for a flush of the mirror's own.
    pub(super) io: Option<IoId>,
    op: request::Op,
    flags: Flags,
    offset: u64,
    len: u64,
    data: Data,
    stage: Stage,
    /// Whether its client has disconnected.
    pub(super) gone: bool,
    /// Whether it has begun again after the loss of all members.
    pub(super) retried: bool,
    /// The range whose regions count it: all of it, or the window of it that is being written.
    counted: Option<(u64, u64)>,
    /// Bytes that were given to members.
    given: u64,
    /// Pieces that have not ended.
    open: u32,
    /// Members that have failed.
    failed: u32,
    fault: Option<Fault>,
    /// For a flush: when it began.
    began: u64,
}

/// Bytes of a request without bytes that are written together: with several of them, fewer regions are hot than are
/// possible. Origin: a quarter of [`HOT_MAX`] regions.
const WINDOW: u64 = 256 << 20;

impl Op {
    /// What of it is written next: all that is left, or a window of it.
    fn window(&self) -> (u64, u64) {
        let left = self.len - self.given;
        let len = match self.op {
            request::Op::Write => left,
            _ => left.min(WINDOW),
        };
        (self.offset + self.given, len)
    }

    /// What the members have failed is to be given to them again.
    fn rewind(&mut self) {
        self.given = match self.counted {
            Some((offset, _)) => offset - self.offset,
            None => 0,
        };
        (self.stage, self.failed, self.fault) = (Stage::Waits, 0, None);
    }

    /// Whether all of it was given to members.
    fn is_given(&self) -> bool {
        self.given == self.len
    }
}

/// A part of an I/O that is with the members.
pub(super) struct Piece {
    op: u32,
    slot: Option<Data>,
    /// Members that have not ended it.
    pending: u32,
    /// Members that have not ended it and are not waited for.
    late: u32,
    /// Whether nobody but such members has its buffer.
    is_late: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// For its range, or for its regions to be recorded as hot.
    Waits,
    /// With the members.
    Issued,
    /// For a state without the members that failed it.
    Drops,
}

impl Mirror {
    /// Takes a guest's I/O, or sends it to one member.
    pub(super) fn take(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) -> Map {
        self.used_at = Some(cx.now());
        let reads = !io.op.modifies() && io.op != request::Op::Flush;
        if reads && self.lock.is_idle() && self.loss.is_none() {
            return Map::One {
                target: self.reader(cx),
                offset: io.offset,
            };
        }
        if io.flags.has(Flags::FAST_ONLY) {
            // Some members may be able to and others not: then they would differ.
            return Map::Done(Err(Fault::Unsupported));
        }
        // What a discard leaves could differ between members: zeroes do not.
        let (op, flags) = match io.op {
            request::Op::Discard => (request::Op::WriteZeroes, io.flags.with(Flags::MAY_UNMAP)),
            op => (op, io.flags),
        };
        let number = self.insert(&LayoutIo { op, flags, ..*io });
        match self.loss {
            Some(_) => self.hold(number, Next::Enter),
            None => self.enter(cx, number),
        }
        Map::Issued
    }

    fn insert(&mut self, io: &LayoutIo) -> u32 {
        let began = self.moment();
        self.ops.insert(Op {
            io: Some(io.id),
            op: io.op,
            flags: io.flags,
            offset: io.offset,
            len: io.len,
            data: io.data,
            stage: Stage::Waits,
            gone: false,
            retried: false,
            counted: None,
            given: 0,
            open: 0,
            failed: 0,
            fault: None,
            began,
        })
    }

    /// An I/O that was taken begins.
    pub(super) fn enter(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let op = self.ops.at(number);
        if op.op == request::Op::Flush {
            return self.issue(cx, number);
        }
        let wanted = Wanted {
            id: number,
            start: op.offset,
            end: op.offset + op.len,
            mode: match op.op.modifies() {
                true => Mode::Exclusive,
                false => Mode::Shared,
            },
        };
        if self.lock.acquire(wanted) {
            self.locked(cx, number);
        } else if self.hurry_scrub(wanted.start, wanted.end) {
            cx.hurry();
        }
    }

    /// A read has failed on every member in sync. Returns whether it waits for one of them.
    pub(super) fn hold_read(
        &mut self,
        cx: &mut LayoutCx<'_>,
        io: &LayoutIo,
        fault: Fault,
        tries: u8,
    ) -> bool {
        // So many at least were made after a member was back.
        let tried = u32::from(tries) > self.in_sync.count_ones() + 1;
        if !self.waits_after(fault, tried) {
            return false;
        }
        let number = self.insert(io);
        self.lose(cx, fault);
        self.hold(number, Next::Enter);
        true
    }

    /// Lets those go on that waited for a range.
    pub(super) fn unlock(&mut self, cx: &mut LayoutCx<'_>, holder: u32) {
        let mut started = Vec::new();
        self.lock.release(holder, &mut started);
        for holder in started {
            match holder {
                SCRUB_LOCK => self.scrub_locked(cx),
                copy if copy >= COPY_LOCK => self.copy_locked(cx, copy & !COPY_LOCK),
                op => self.locked(cx, op),
            }
        }
    }

    /// An I/O has its range.
    fn locked(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let op = self.ops.at(number);
        if op.op.modifies() {
            let (offset, len) = (op.offset, op.len);
            self.disturb_copies(offset, offset + len);
            return self.heat(cx, number);
        }
        // A read only had to wait.
        let op = self.ops.remove(number);
        let io = op.io.expect("a read is a guest's or a filter's");
        let target = self.reader(cx);
        cx.send(io, target, op.offset);
        self.unlock(cx, number);
    }

    /// Makes the regions of a write hot, then issues it.
    fn heat(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let (offset, len) = self.ops.at(number).window();
        match self.make_hot(offset, len) {
            None => {
                self.crowded.push(number);
                self.flush_crowd(cx);
            }
            Some(since) => {
                self.ops.at(number).counted = Some((offset, len));
                self.after_record(cx, number, since);
            }
        }
    }

    /// Flushes the members for writes that wait for a region to become cold, if a flush can make one so: in the others writes
    /// are under way.
    fn flush_crowd(&mut self, cx: &mut LayoutCx<'_>) {
        let is_idle = |hot: &Hot| hot.writes == 0;
        if !self.crowded.is_empty() && self.hot.values().any(is_idle) {
            self.flush_own(cx);
        }
    }

    /// A window of an I/O has ended, and is not the last one.
    fn next_window(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let op = self.ops.at(number);
        op.stage = Stage::Waits;
        op.failed = 0;
        if let Some((offset, len)) = op.counted.take() {
            self.uncount(offset, len);
            self.flush_crowd(cx);
        }
        self.heat(cx, number);
    }

    /// Flushes the members, so that regions become cold.
    pub(super) fn flush_own(&mut self, cx: &mut LayoutCx<'_>) {
        if core::mem::replace(&mut self.flushing, true) {
            return;
        }
        let began = self.moment();
        let number = self.ops.insert(Op {
            io: None,
            op: request::Op::Flush,
            flags: Flags::NONE,
            offset: 0,
            len: 0,
            data: Data::NONE,
            stage: Stage::Waits,
            gone: false,
            retried: false,
            counted: None,
            given: 0,
            open: 0,
            failed: 0,
            fault: None,
            began,
        });
        self.issue(cx, number);
    }

    fn own_flush_ended(&mut self, cx: &mut LayoutCx<'_>, outcome: Outcome) {
        self.flushing = false;
        self.forget_cold();
        if self.closing || self.crowded.is_empty() {
            self.records.version += 1;
            self.record(cx);
        }
        for number in core::mem::take(&mut self.crowded) {
            match outcome {
                Ok(()) => self.heat(cx, number),
                Err(fault) => self.end(cx, number, Err(fault)),
            }
        }
    }

    /// The state that an I/O waited for is recorded.
    pub(super) fn recorded(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let op = self.ops.at(number);
        match op.stage {
            Stage::Waits => self.issue(cx, number),
            Stage::Drops if !op.is_given() => self.next_window(cx, number),
            Stage::Drops => self.end(cx, number, Ok(())),
            Stage::Issued => unreachable!("an issued I/O waits for its members only"),
        }
    }

    /// Gives an I/O to all members that are used.
    pub(super) fn issue(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let op = self.ops.at(number);
        op.stage = Stage::Issued;
        match op.op {
            request::Op::Write if op.len > 0 => self.feed(cx, number),
            _ => {
                let (start, data, (_, len)) = (op.given, op.data, op.window());
                op.given += len;
                self.issue_piece(cx, number, (start, len), data, None);
            }
        }
    }

    /// Gives as much of a write to the members as there are buffers for.
    fn feed(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        loop {
            let op = self.ops.at(number);
            let (given, left) = (op.given, op.len - op.given);
            if left == 0 {
                return;
            }
            let skipped = u32::try_from(given).expect("front ends bound a request with bytes");
            let data = op.data.skip(skipped);
            if self.active().count_ones() == 1 {
                // No other member could get other bytes. And one that hangs may have all buffers.
                self.ops.at(number).given = given + left;
                return self.issue_piece(cx, number, (given, left), data, None);
            }
            let Some(slot) = cx.claim() else {
                return self.hungry.push_back(number);
            };
            let len = left.min(SLOT);
            self.ops.at(number).given += len;
            cx.copy(data, slot, len);
            self.issue_piece(cx, number, (given, len), slot, Some(slot));
        }
    }

    pub(super) fn feed_hungry(&mut self, cx: &mut LayoutCx<'_>) {
        for _ in 0..self.hungry.len() {
            if let Some(number) = self.hungry.pop_front() {
                self.feed(cx, number);
            }
        }
    }

    fn issue_piece(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        (start, len): (u64, u64),
        data: Data,
        slot: Option<Data>,
    ) {
        let pending = self.active();
        let op = self.ops.at(number);
        op.open += 1;
        let (op, flags, offset) = (op.op, op.flags, op.offset + start);
        let piece = self.pieces.insert(Piece {
            op: number,
            slot,
            pending,
            late: 0,
            is_late: false,
        });
        for target in each(pending) {
            let sub = SubIo {
                target,
                op,
                flags,
                offset,
                len,
                data,
                background: false,
            };
            cx.issue(tag(PIECE, piece, target), sub);
        }
    }

    /// A member has ended its part of an I/O.
    pub(super) fn piece_done(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        member: u8,
        outcome: Outcome,
    ) {
        let bit = 1 << member;
        let piece = self.pieces.at(number);
        if piece.late & bit != 0 {
            piece.late &= !bit;
            return self.free_piece(cx, number);
        }
        piece.pending &= !bit;
        let op = piece.op;
        if let Err(fault) = outcome {
            self.note_failure(op, bit, fault);
        }
        self.piece_ended(cx, number);
    }

    fn note_failure(&mut self, op: u32, bit: u32, fault: Fault) {
        let op = self.ops.at(op);
        op.failed |= bit;
        op.fault.get_or_insert(fault);
    }

    /// Goes on with the I/O of a piece that no used member has any more.
    fn piece_ended(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let piece = self.pieces.at(number);
        if piece.pending != 0 {
            return;
        }
        let op_number = piece.op;
        self.free_piece(cx, number);
        let op = self.ops.at(op_number);
        op.open -= 1;
        let hungry = op.op == request::Op::Write && !op.is_given();
        if op.open == 0 && !hungry {
            self.members_done(cx, op_number);
        }
    }

    fn free_piece(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let piece = self.pieces.at(number);
        if piece.pending != 0 {
            return;
        }
        if piece.late != 0 {
            if piece.slot.is_some() && !core::mem::replace(&mut piece.is_late, true) {
                cx.make_late();
            }
            return;
        }
        let piece = self.pieces.remove(number);
        match piece.slot {
            Some(slot) if piece.is_late => cx.release_late(slot),
            Some(slot) => cx.release(slot),
            None => {}
        }
    }

    /// No I/O waits for this member any more.
    pub(super) fn give_up_on(&mut self, cx: &mut LayoutCx<'_>, member: u8) {
        let bit = 1 << member;
        for number in self.pieces.numbers() {
            let piece = self.pieces.at(number);
            if piece.pending & bit == 0 {
                continue;
            }
            let op = piece.op;
            // A member that was alone has the guest's own bytes: they must stay until it has ended.
            let is_guests = piece.slot.is_none() && self.ops.at(op).op == request::Op::Write;
            if !is_guests {
                piece.pending &= !bit;
                piece.late |= bit;
                self.note_failure(op, bit, Fault::Gone);
                self.piece_ended(cx, number);
            }
        }
    }

    /// All members that are used have ended an I/O.
    fn members_done(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let op = self.ops.at(number);
        let (failed, fault, kind, began) = (op.failed, op.fault, op.op, op.began);
        let retried = core::mem::take(&mut op.retried);
        let fault = fault.unwrap_or(Fault::Io);
        let failed = failed & self.active();
        if failed == 0 {
            if kind == request::Op::Flush {
                self.cool(began);
            }
            // Others may have dropped a member meanwhile: nothing is answered before that is recorded.
            self.ops.at(number).stage = Stage::Drops;
            return self.after_record(cx, number, self.records.set_at);
        }
        // Of those that failed together one stays: what it has is what the disk has.
        let all = failed & self.in_sync != 0 && !self.can_spare(failed) || self.leads(failed);
        if all && self.waits_after(fault, retried) {
            self.ops.at(number).rewind();
            self.lose(cx, fault);
            return self.hold(number, Next::Issue);
        }
        let stays = if all { self.last_resort() } else { 0 };
        let dropped = if all { self.active() } else { failed };
        if all && self.in_sync.count_ones() == 1 {
            cx.notice(LayoutNotice::Lost);
        }
        self.drop_members(cx, dropped & !stays, fault);
        if all {
            self.end(cx, number, Err(fault));
            return self.record(cx);
        }
        self.ops.at(number).stage = Stage::Drops;
        self.after_record(cx, number, self.records.set_at);
    }

    /// Ends an I/O.
    pub(super) fn end(&mut self, cx: &mut LayoutCx<'_>, number: u32, outcome: Outcome) {
        let op = self.ops.remove(number);
        let Some(io) = op.io else {
            return self.own_flush_ended(cx, outcome);
        };
        cx.answer(io, outcome);
        if !op.op.modifies() {
            return;
        }
        if let Some((offset, len)) = op.counted {
            self.uncount(offset, len);
            self.cool_at = self.kept.then(|| cx.now() + super::COOL_AFTER);
        }
        if self.hot.len() > HOT_MAX / 2 {
            self.forget_cold();
        }
        self.flush_crowd(cx);
        self.unlock(cx, number);
    }
}
