//! I/Os on a column, and the parts of them that are with its members.
//!
//! A guest's write is copied into buffers of the arena, piece by piece, so that all members get the same bytes. A member that
//! hangs keeps its buffer until its I/O ends; the I/O is answered without it. The only member that is used gets the guest's
//! own bytes. An I/O with [`Flags::RESYNC`] reads a range from one member and writes it to all others.
//!
//! # Always true
//! - an I/O ends once, after every piece of it has ended on each member that is still waited for
//! - a buffer returns to the arena after its last I/O has ended
//! - between the read and the writes of a copy nobody else writes there

use super::{BLOCK_PIECE, Column, PIECE, each, tag};
use crate::block::BLOCK;
use crate::layout::{
    BlockIo, BlockOutcome, DropCause, LayoutCx, LayoutIo, LayoutNotice, SLOT, SubIo, Target,
};
use crate::range_lock::{Mode, Wanted};
use crate::request::{Data, Fault, Flags, IoId, Op, Outcome};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// An I/O that the column has taken.
pub(super) struct Doing {
    from: Origin,
    what: What,
    flags: Flags,
    offset: u64,
    len: u64,
    background: bool,
    /// How often a member had begun to sync before.
    round: u32,
    /// Bytes that were given to members.
    given: u64,
    /// Pieces that have not ended.
    open: u32,
    /// Members that were given all of it so far, one bit each.
    to: u32,
    /// Those that have failed a part.
    failed: u32,
    fault: Option<Fault>,
}

/// Who is answered.
#[derive(Clone, Copy)]
enum Origin {
    Io(IoId),
    /// The layout above, and its tag.
    Block(u8, u64),
}

enum What {
    /// It only waits for its range.
    Read,
    Write(Data),
    /// Zeroes.
    Zeroes,
    Flush,
    /// Members are made equal: whether the bytes were read, and who could not read them.
    Copy {
        is_read: bool,
        unreadable: u32,
    },
    ReadBlock(u8),
    WriteBlock(Box<[u8; BLOCK]>),
}

/// A part of an I/O that is with members.
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

impl Column {
    /// Takes an I/O.
    pub(super) fn take(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) {
        let (what, mode) = match io.op {
            Op::Read if io.flags.has(Flags::RESYNC) => {
                let (is_read, unreadable) = (false, 0);
                (
                    What::Copy {
                        is_read,
                        unreadable,
                    },
                    Some(Mode::Exclusive),
                )
            }
            Op::Write => (What::Write(io.data), Some(Mode::Exclusive)),
            // What a discard leaves could differ between members: zeroes do not.
            Op::WriteZeroes | Op::Discard => (What::Zeroes, Some(Mode::Exclusive)),
            Op::Flush => (What::Flush, None),
            Op::Read | Op::Extents | Op::Prefetch => (What::Read, Some(Mode::Shared)),
        };
        let flags = match io.op {
            Op::Discard => io.flags.with(Flags::MAY_UNMAP),
            _ => io.flags,
        };
        let number = self.ops.insert(Doing {
            from: Origin::Io(io.id),
            what,
            flags,
            offset: io.offset,
            len: io.len,
            background: io.background,
            round: self.rounds,
            given: 0,
            open: 0,
            to: u32::MAX,
            failed: 0,
            fault: None,
        });
        self.enter(cx, number, mode);
    }

    /// Takes a block of the layout above.
    pub(super) fn take_block(&mut self, cx: &mut LayoutCx<'_>, io: BlockIo) {
        let (what, mode) = match io.block {
            Some(block) => (What::WriteBlock(block), Some(Mode::Exclusive)),
            None => (What::ReadBlock(io.copy), None),
        };
        let number = self.ops.insert(Doing {
            from: Origin::Block(io.node, io.tag),
            what,
            flags: Flags::NONE,
            offset: io.offset,
            len: BLOCK as u64,
            background: false,
            round: self.rounds,
            given: 0,
            open: 0,
            to: u32::MAX,
            failed: 0,
            fault: None,
        });
        self.enter(cx, number, mode);
    }

    fn enter(&mut self, cx: &mut LayoutCx<'_>, number: u32, mode: Option<Mode>) {
        let op = self.ops.at(number);
        let Some(mode) = mode.filter(|_| op.len > 0) else {
            return self.issue(cx, number);
        };
        let wanted = Wanted {
            id: number,
            start: op.offset,
            end: op.offset + op.len,
            mode,
        };
        if self.lock.acquire(wanted) {
            self.issue(cx, number);
        }
    }

    fn unlock(&mut self, cx: &mut LayoutCx<'_>, holder: u32) {
        let mut started = Vec::new();
        self.lock.release(holder, &mut started);
        for number in started {
            self.issue(cx, number);
        }
    }

    /// Gives an I/O to the members: it has its range.
    fn issue(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let writers = self.writers();
        let op = self.ops.at(number);
        match &op.what {
            What::Read => {
                let (from, offset) = (op.from, op.offset);
                self.ops.remove(number);
                let target = Target(self.reader(cx, 0).unwrap_or(0));
                if let Origin::Io(io) = from {
                    cx.send(io, target, offset);
                }
                self.unlock(cx, number);
            }
            What::Write(_) if op.len > 0 => self.feed(cx, number),
            What::Write(data) => {
                let data = *data;
                self.issue_piece(cx, number, (0, 0), Op::Write, data, None, writers);
            }
            What::Zeroes => {
                let len = op.len;
                op.given = len;
                let (op, all) = (Op::WriteZeroes, (0, len));
                self.issue_piece(cx, number, all, op, Data::NONE, None, writers);
            }
            What::Flush => {
                self.issue_piece(cx, number, (0, 0), Op::Flush, Data::NONE, None, writers);
            }
            What::Copy { .. } => self.read_copy(cx, number),
            What::ReadBlock(copy) => {
                let copy = *copy;
                self.read_block(cx, number, copy);
            }
            What::WriteBlock(block) => {
                let (block, offset) = (block.clone(), op.offset);
                op.given = op.len;
                let piece = self.new_piece(number, None, writers);
                for member in each(writers) {
                    let tag = tag(BLOCK_PIECE, piece, member);
                    cx.write_block(tag, Target(member), offset, block.clone());
                }
            }
        }
    }

    /// Gives as much of a write to the members as there are buffers for.
    fn feed(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        loop {
            let writers = self.writers();
            let op = self.ops.at(number);
            let What::Write(data) = op.what else {
                return;
            };
            let (given, left) = (op.given, op.len - op.given);
            if left == 0 {
                return;
            }
            let skipped = u32::try_from(given).expect("front ends bound a request with bytes");
            let data = data.skip(skipped);
            if writers.count_ones() == 1 {
                // No other member could get other bytes. And one that hangs may have all buffers.
                op.given += left;
                let part = (given, left);
                return self.issue_piece(cx, number, part, Op::Write, data, None, writers);
            }
            let Some(slot) = cx.claim() else {
                return self.hungry.push_back(number);
            };
            let len = left.min(SLOT);
            self.ops.at(number).given += len;
            cx.copy(data, slot, len);
            let part = (given, len);
            self.issue_piece(cx, number, part, Op::Write, slot, Some(slot), writers);
        }
    }

    pub(super) fn feed_hungry(&mut self, cx: &mut LayoutCx<'_>) {
        for _ in 0..self.hungry.len() {
            if let Some(number) = self.hungry.pop_front() {
                match self.ops.at(number).what {
                    What::Write(_) => self.feed(cx, number),
                    _ => self.read_copy(cx, number),
                }
            }
        }
    }

    fn new_piece(&mut self, number: u32, slot: Option<Data>, pending: u32) -> u32 {
        let op = self.ops.at(number);
        op.open += 1;
        op.to &= pending;
        self.pieces.insert(Piece {
            op: number,
            slot,
            pending,
            late: 0,
            is_late: false,
        })
    }

    #[expect(clippy::too_many_arguments, reason = "a sub-I/O has that many parts")]
    fn issue_piece(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        (start, len): (u64, u64),
        kind: Op,
        data: Data,
        slot: Option<Data>,
        pending: u32,
    ) {
        let piece = self.new_piece(number, slot, pending);
        self.issue_sub(cx, number, piece, (start, len), kind, data, pending);
    }

    #[expect(clippy::too_many_arguments, reason = "a sub-I/O has that many parts")]
    fn issue_sub(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        piece: u32,
        (start, len): (u64, u64),
        kind: Op,
        data: Data,
        to: u32,
    ) {
        let op = self.ops.peek(number);
        let kept = [Flags::FUA, Flags::MAY_UNMAP];
        let kept = kept.into_iter().filter(|flag| op.flags.has(*flag));
        let flags = kept.fold(Flags::NONE, Flags::with);
        let (offset, background) = (op.offset + start, op.background);
        for member in each(to) {
            let sub = SubIo {
                target: Target(member),
                op: kind,
                flags,
                offset,
                len,
                data,
                background,
            };
            cx.issue(tag(PIECE, piece, member), sub);
        }
    }

    /// Reads what is copied from a member in sync.
    fn read_copy(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let op = self.ops.at(number);
        let What::Copy { unreadable, .. } = op.what else {
            return;
        };
        let (len, fault) = (op.len, op.fault);
        let Some(source) = self.reader(cx, unreadable) else {
            return self.end(cx, number, Err(fault.unwrap_or(Fault::Io)));
        };
        let Some(slot) = cx.claim() else {
            return self.hungry.push_back(number);
        };
        self.ops.at(number).to = u32::MAX;
        let part = (0, len);
        self.issue_piece(cx, number, part, Op::Read, slot, Some(slot), 1 << source);
    }

    /// The bytes of a copy were read into the buffer of its piece: all others get them.
    fn write_copy(&mut self, cx: &mut LayoutCx<'_>, piece: u32) {
        let (number, slot) = (self.pieces.at(piece).op, self.pieces.at(piece).slot);
        let writers = self.writers();
        let op = self.ops.at(number);
        let source = op.to;
        op.what = What::Copy {
            is_read: true,
            unreadable: 0,
        };
        op.to |= writers;
        op.given = op.len;
        let (to, len) = (writers & !source, op.len);
        self.pieces.at(piece).pending = to;
        self.copied += if self.syncing == 0 { 0 } else { len };
        match (to, slot) {
            (0, _) | (_, None) => self.piece_ended(cx, piece),
            (_, Some(slot)) => {
                self.issue_sub(cx, number, piece, (0, len), Op::Write, slot, to);
            }
        }
    }

    /// Reads a block of one of the members, by its place among them. One that is not in sync has none.
    fn read_block(&mut self, cx: &mut LayoutCx<'_>, number: u32, copy: u8) {
        let bit = 1_u32 << copy.min(31);
        if self.in_sync & bit == 0 {
            return self.end_block(cx, number, Ok(None));
        }
        let op = self.ops.at(number);
        op.given = op.len;
        if self.failing & bit != 0 {
            (op.to, op.failed) = (0, bit);
            return self.settle(cx, number);
        }
        let offset = op.offset;
        let piece = self.new_piece(number, None, bit);
        cx.read_block(tag(BLOCK_PIECE, piece, copy), Target(copy), offset);
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
        let is_reading = matches!(self.ops.at(op).what, What::Copy { is_read: false, .. });
        match outcome {
            Ok(()) if is_reading => return self.write_copy(cx, number),
            Ok(()) => {}
            Err(fault) => self.note_failure(cx, op, member, fault),
        }
        self.piece_ended(cx, number);
    }

    /// The same for a block.
    pub(super) fn block_piece_done(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        member: u8,
        outcome: BlockOutcome,
    ) {
        let piece = self.pieces.at(number);
        let is_awaited = piece.late >> member & 1 == 0;
        let op = piece.op;
        match outcome {
            Ok(Some(block)) if is_awaited => {
                self.pieces.remove(number);
                self.end_block(cx, op, Ok(Some(block)));
            }
            outcome => self.piece_done(cx, number, member, outcome.map(|_| ())),
        }
    }

    fn note_failure(&mut self, cx: &mut LayoutCx<'_>, op: u32, member: u8, fault: Fault) {
        let bit = 1 << member;
        let op = self.ops.at(op);
        op.fault.get_or_insert(fault);
        match &mut op.what {
            What::Copy {
                is_read: false,
                unreadable,
            } => {
                *unreadable |= bit;
                let member = Target(member);
                cx.notice(LayoutNotice::ReadFailed { member, fault });
            }
            _ => op.failed |= bit,
        }
    }

    /// Goes on with the I/O of a piece that nobody who is waited for has any more.
    fn piece_ended(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let piece = self.pieces.at(number);
        if piece.pending != 0 {
            return;
        }
        let op_number = piece.op;
        self.free_piece(cx, number);
        let op = self.ops.at(op_number);
        op.open -= 1;
        if matches!(op.what, What::Copy { is_read: false, .. }) {
            return self.read_copy(cx, op_number);
        }
        let is_given = match op.what {
            What::Write(_) => op.given == op.len,
            _ => true,
        };
        if op.open == 0 && is_given {
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
            // An earlier one may have ended it.
            let Some(piece) = self.pieces.get(number) else {
                continue;
            };
            if piece.pending & bit == 0 {
                continue;
            }
            let (op, slot) = (piece.op, piece.slot);
            // A member that was alone has the guest's own bytes: they must stay until it has ended.
            if slot.is_none() && matches!(self.ops.at(op).what, What::Write(_)) {
                continue;
            }
            let piece = self.pieces.at(number);
            piece.pending &= !bit;
            piece.late |= bit;
            self.note_failure(cx, op, member, Fault::Gone);
            self.piece_ended(cx, number);
        }
    }

    /// All members that are waited for have ended an I/O.
    fn members_done(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let op = self.ops.at(number);
        let (failed, fault) = (op.failed, op.fault.unwrap_or(Fault::Io));
        let is_reading = matches!(op.what, What::ReadBlock(_));
        let has_it = op.to & !failed & self.in_sync;
        let cause = DropCause::Failed(fault);
        if has_it == 0 && !is_reading {
            // Of those that failed together one stays: what it has is what the disk has.
            let stays = self.readers() & failed;
            let stays = stays & stays.wrapping_neg();
            for member in each(failed & !stays) {
                self.lose(cx, member, cause);
            }
            return self.end(cx, number, Err(fault));
        }
        for member in each(failed) {
            self.lose(cx, member, cause);
        }
        self.settle(cx, number);
    }

    /// Answers an I/O, unless it waits for the catalog.
    fn settle(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let op = self.ops.peek(number);
        let (failed, fault) = (op.failed, op.fault.unwrap_or(Fault::Gone));
        let good = op.to & !failed;
        if matches!(op.what, What::ReadBlock(_)) {
            // A copy that cannot be read is not missed once its member is behind.
            let missing = failed & self.needed();
            return match missing {
                0 => self.end_block(cx, number, Ok(None)),
                _ if missing & self.failing == 0 => self.end_block(cx, number, Err(fault)),
                _ => self.hold(cx, number, missing, fault),
            };
        }
        match self.needed() & !good & (failed | self.failing) {
            _ if good & self.in_sync == 0 => self.end(cx, number, Err(fault)),
            0 => self.end(cx, number, Ok(())),
            missing => self.hold(cx, number, missing, fault),
        }
    }

    /// An I/O waits until the catalog calls these members behind.
    fn hold(&mut self, cx: &mut LayoutCx<'_>, number: u32, missing: u32, fault: Fault) {
        for member in each(missing) {
            self.ask(cx, member, DropCause::Failed(fault));
        }
        self.held.push(number);
        self.be_patient(cx.now());
    }

    /// The catalog has answered: some may go on.
    pub(super) fn judge_held(&mut self, cx: &mut LayoutCx<'_>) {
        for number in core::mem::take(&mut self.held) {
            self.settle(cx, number);
        }
    }

    /// Those fail that wait for one of these members.
    pub(super) fn fail_held(&mut self, cx: &mut LayoutCx<'_>, members: u32, fault: Fault) {
        for number in core::mem::take(&mut self.held) {
            let op = self.ops.peek(number);
            let waits = self.needed() & !(op.to & !op.failed) & members;
            match waits {
                0 => self.held.push(number),
                _ => self.end(cx, number, Err(fault)),
            }
        }
    }

    fn end_block(&mut self, cx: &mut LayoutCx<'_>, number: u32, outcome: BlockOutcome) {
        let op = self.ops.remove(number);
        if let Origin::Block(node, tag) = op.from {
            cx.block_ended(node, tag, outcome);
        }
        self.unlock(cx, number);
    }

    /// Ends an I/O.
    fn end(&mut self, cx: &mut LayoutCx<'_>, number: u32, outcome: Outcome) {
        let op = self.ops.peek(number);
        let is_copy = matches!(op.what, What::Copy { .. });
        let joins = matches!(op.what, What::Flush) && op.flags.has(Flags::RESYNC);
        let is_current = op.round == self.rounds;
        let has_all = op.to & !op.failed;
        match op.from {
            Origin::Block(..) => self.end_block(cx, number, outcome.map(|()| None)),
            Origin::Io(io) => {
                self.ops.remove(number);
                match outcome {
                    // Before anything else is answered: from here on it is waited for.
                    Ok(()) if joins && is_current && self.syncing & !has_all == 0 => self.join(cx),
                    // What cannot be copied, the member that is rebuilt never gets.
                    Err(fault) if joins || is_copy => {
                        for member in each(self.syncing) {
                            self.lose(cx, member, DropCause::Failed(fault));
                        }
                    }
                    _ => {}
                }
                cx.answer(io, outcome);
                self.unlock(cx, number);
            }
        }
    }
}
