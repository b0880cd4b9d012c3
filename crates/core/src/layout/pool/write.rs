//! Writes to a pool's disk that need a place first, or more than one.
//!
//! A write to a sub-block that nobody has goes to a zeroed extent of the current generation at once. Whole sub-blocks go to an
//! extent that is not zeroed, if there is one. So a large write is not written twice. One to a sub-block that an older
//! generation has goes to an extent of the current one too. The disk sees such sub-blocks once they are there as a whole. If
//! only a part is written, the rest is copied through the arena.
//!
//! # Always true
//! - while a sub-block is copied, its range is locked: other writes and discards of it wait
//! - until a copy has ended the disk sees the older place

use super::ops::{Step, Wait};
use super::records::{Space, Table, USED_BEFORE};
use super::{COPY, KIND, PIECE, Pool, bits};
use crate::layout::{LayoutCx, LayoutIo, SubIo};
use crate::request::{Data, Fault, Flags, Op, Outcome};
use alloc::vec::Vec;

/// A part of an I/O that the disk sees once it has ended.
pub(super) struct CopyOf {
    /// The I/O.
    op: u32,
    /// The extent of the disk, and its sub-blocks.
    extent: u32,
    bits: u16,
    /// Where they go.
    place: u32,
    /// The rest of the sub-block, while it is read and written.
    rest: Option<Rest>,
}

/// A sub-block that is copied.
struct Rest {
    slot: Data,
    /// What is written to a part of it; `None` for zeroes.
    data: Option<Data>,
    /// From there on, in bytes of the sub-block.
    within: u64,
    len: u64,
    is_read: bool,
}

impl Rest {
    /// The rest is there: adds what is written.
    fn fill(&mut self, cx: &mut LayoutCx<'_>) {
        self.is_read = true;
        let within = u32::try_from(self.within).expect("a sub-block is small");
        let to = self.slot.skip(within);
        match self.data {
            Some(data) => cx.copy(data, to, self.len),
            None => cx.zero(to, self.len),
        }
    }
}

/// How a sub-block is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// The current generation has it at this place.
    InPlace(u32),
    /// Nobody has it.
    Fresh,
    /// An older generation has it, and all of it is written.
    Whole,
    /// An older generation has it at this place, and a part of it is written.
    Part(u32),
}

impl Pool {
    /// Carries out the next part of a write.
    pub(super) fn step_write(
        &mut self,
        cx: &mut LayoutCx<'_>,
        op: u32,
        io: &LayoutIo,
        at: u64,
        len: u64,
    ) -> Step {
        let extent = self.extent_at(at);
        let len = len.min(self.left_of_extent(at));
        if self.locks.get(&extent).copied().unwrap_or(0) & self.range_bits(at, len) != 0 {
            return Step::Wait(Wait::Lock);
        }
        let how = self.how(at, len);
        match self.moving_now(extent) {
            Some(place) if how == How::InPlace(place) => {
                return self.write_both(cx, op, io, at, len);
            }
            // A sub-block that it has not yet waits until all of it has moved.
            Some(_) if !matches!(how, How::InPlace(_)) => return Step::Wait(Wait::Lock),
            _ => {}
        }
        let len = self.run(how, at, len);
        let wanted = self.range_bits(at, len);
        let data = data_of(io, at);
        let place = match how {
            How::InPlace(place) => place,
            _ => match self.own_place(extent, self.is_whole(at, len)) {
                Some(place) => place,
                None => return Step::Wait(Wait::Space),
            },
        };
        if !self.heat(place) {
            return Step::Wait(Wait::Intent);
        }
        let is_clean = self.table.at(place).flags & USED_BEFORE == 0;
        match how {
            How::InPlace(_) => self.issue_piece(cx, op, io, place, at, len, data),
            How::Fresh if is_clean => {
                self.claim(place, wanted);
                self.issue_piece(cx, op, io, place, at, len, data);
            }
            How::Fresh => return self.write_over(cx, op, io, place, at, len),
            How::Whole => self.write_whole(cx, op, io, place, at, len),
            How::Part(from) => {
                let data = Some(data);
                return self.copy_part(cx, op, io, [Some(from), Some(place)], at, len, data);
            }
        }
        Step::Done(len)
    }

    /// The place of the current generation that moves, of an extent.
    pub(super) fn moving_now(&self, extent: u32) -> Option<u32> {
        let from = self.relocation.moves.of_extent(extent)?.from();
        (self.table.at(from).generation == self.current()).then_some(from)
    }

    /// Writes whole sub-blocks to a place. The disk sees them there once they are.
    fn write_whole(
        &mut self,
        cx: &mut LayoutCx<'_>,
        op: u32,
        io: &LayoutIo,
        place: u32,
        at: u64,
        len: u64,
    ) {
        let copy = CopyOf {
            op,
            extent: self.extent_at(at),
            bits: self.range_bits(at, len),
            place,
            rest: None,
        };
        let sub = self.sub(Op::Write, place, at, len, data_of(io, at), io.background);
        self.begin_copy(cx, copy, sub);
    }

    /// Writes to sub-blocks that nobody has, at a place that may have anything: whole ones, or one with zeroes around.
    fn write_over(
        &mut self,
        cx: &mut LayoutCx<'_>,
        op: u32,
        io: &LayoutIo,
        place: u32,
        at: u64,
        len: u64,
    ) -> Step {
        let sub_block = 1_u64 << self.shifts.0;
        let whole = match at & (sub_block - 1) {
            0 => len & !(sub_block - 1),
            _ => 0,
        };
        if whole > 0 {
            self.write_whole(cx, op, io, place, at, whole);
            return Step::Done(whole);
        }
        let len = len.min(sub_block - (at & (sub_block - 1)));
        let data = Some(data_of(io, at));
        self.copy_part(cx, op, io, [None, Some(place)], at, len, data)
    }

    fn how(&self, at: u64, len: u64) -> How {
        let source = self.table.source(self.extent_at(at), self.sub_block_at(at));
        let sub_block = 1_u64 << self.shifts.0;
        let is_whole = at & (sub_block - 1) == 0 && len >= sub_block;
        match source {
            None => How::Fresh,
            Some(place) if Table::is_mark(place) => How::Fresh,
            Some(place) if self.table.at(place).generation == self.current() => How::InPlace(place),
            Some(_) if is_whole => How::Whole,
            Some(place) => How::Part(place),
        }
    }

    /// How much of a range is written in the same way as its first sub-block.
    fn run(&self, how: How, at: u64, len: u64) -> u64 {
        let sub_block = 1_u64 << self.shifts.0;
        let mut run = (sub_block - (at & (sub_block - 1))).min(len);
        if matches!(how, How::Part(_)) {
            return run;
        }
        while run < len && self.how(at + run, len - run) == how {
            run = (run + sub_block).min(len);
        }
        run
    }

    /// Whether a range is whole sub-blocks.
    pub(super) fn is_whole(&self, at: u64, len: u64) -> bool {
        (at | len) & ((1 << self.shifts.0) - 1) == 0
    }

    /// The extent of the current generation that more sub-blocks of an extent of the disk can go to. If there is none, it gets
    /// one that is free: for `whole` ones it need not be zeroed.
    pub(super) fn own_place(&mut self, extent: u32, whole: bool) -> Option<u32> {
        let current = self.current();
        let fits = |place: &u32| {
            let record = self.table.at(*place);
            record.generation == current && !Table::is_mark(*place)
        };
        let found = self.table.chain(extent).find(fits);
        if found.is_some() {
            return found;
        }
        let marks: Vec<u32> = self
            .table
            .chain(extent)
            .filter(|it| Table::is_mark(*it) && self.table.at(*it).generation == current)
            .collect();
        let unzeroed = match whole && marks.is_empty() {
            true => self.pick_free(),
            false => None,
        };
        let (place, flags) = match unzeroed {
            Some(place) => (place, USED_BEFORE),
            None => (self.space.take_zeroed()?, 0),
        };
        self.table.put(place, extent, current, 0, flags);
        self.forest.at_mut(current).extents += 1;
        // What was hidden reads as zeroes here as well.
        let hidden = marks.iter().map(|mark| self.table.at(*mark).bits);
        let hidden = hidden.fold(0, |all, bits| all | bits);
        if hidden != 0 {
            self.claim(place, hidden);
        }
        Some(place)
    }

    /// The disk sees these sub-blocks at a place of the current generation.
    pub(super) fn claim(&mut self, place: u32, wanted: u16) {
        self.table.claim(place, wanted);
        self.table.touch(place);
        if self.table.has_marks() && !Table::is_mark(place) {
            self.outdate_marks(place, wanted);
        }
    }

    /// What a place has, marks of its generation need not hide any more, once that is durable.
    fn outdate_marks(&mut self, place: u32, wanted: u16) {
        let record = *self.table.at(place);
        let commit = self.space.next_commit();
        for mark in self.table.chain(record.extent) {
            let other = self.table.at(mark);
            let bits = other.bits & wanted;
            if bits != 0 && Table::is_mark(mark) && other.generation == record.generation {
                let late = self.late_marks.entry(mark).or_default();
                *late = (late.0 | bits, commit);
            }
        }
    }

    pub(super) fn sub(
        &self,
        op: Op,
        place: u32,
        at: u64,
        len: u64,
        data: Data,
        background: bool,
    ) -> SubIo {
        let (target, offset) = self.address(place, at);
        SubIo {
            target,
            op,
            flags: Flags::NONE,
            offset,
            len,
            data,
            background,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a sub-I/O has that many parts")]
    fn issue_piece(
        &mut self,
        cx: &mut LayoutCx<'_>,
        op: u32,
        io: &LayoutIo,
        place: u32,
        at: u64,
        len: u64,
        data: Data,
    ) {
        self.begin_piece(op);
        let sub = self.sub(Op::Write, place, at, len, data, io.background);
        cx.issue(PIECE | u64::from(op), sub);
    }

    /// Locks sub-blocks until they are at their new place.
    fn begin_copy(&mut self, cx: &mut LayoutCx<'_>, copy: CopyOf, sub: SubIo) {
        *self.locks.entry(copy.extent).or_default() |= copy.bits;
        self.begin_piece(copy.op);
        let number = self.copying.insert(copy);
        cx.issue(COPY | u64::from(number), sub);
    }

    /// Copies a sub-block from one place to another, with a part of it written, or zeroed. What comes from no place is zeroes.
    #[expect(clippy::too_many_arguments, reason = "a copy has that many parts")]
    pub(super) fn copy_part(
        &mut self,
        cx: &mut LayoutCx<'_>,
        op: u32,
        io: &LayoutIo,
        [from, place]: [Option<u32>; 2],
        at: u64,
        len: u64,
        data: Option<Data>,
    ) -> Step {
        let (Some(slot), Some(place)) = (self.claim_buffer(cx), place) else {
            return Step::Wait(Wait::Slot);
        };
        let sub_block = 1_u64 << self.shifts.0;
        let start = at & !(sub_block - 1);
        let mut rest = Rest {
            slot,
            data,
            within: at - start,
            len,
            is_read: false,
        };
        let sub = match from {
            Some(from) => self.sub(Op::Read, from, start, sub_block, slot, io.background),
            None => {
                cx.zero(slot, sub_block);
                rest.fill(cx);
                self.sub(Op::Write, place, start, sub_block, slot, io.background)
            }
        };
        let copy = CopyOf {
            op,
            extent: self.extent_at(at),
            bits: self.range_bits(at, 1),
            place,
            rest: Some(rest),
        };
        self.begin_copy(cx, copy, sub);
        self.copies += u64::from(from.is_some());
        Step::Done(len)
    }

    /// Zeroes sub-blocks at a place. The disk sees them there once they are.
    pub(super) fn zero_at(
        &mut self,
        cx: &mut LayoutCx<'_>,
        op: u32,
        place: u32,
        extent: u32,
        wanted: u16,
    ) {
        for (first, end) in super::runs(wanted) {
            let sub_block = 1_u64 << self.shifts.0;
            let at = (u64::from(extent) << self.shifts.1) + u64::from(first) * sub_block;
            let len = u64::from(end - first) * sub_block;
            let copy = CopyOf {
                op,
                extent,
                bits: bits(first, end),
                place,
                rest: None,
            };
            let sub = self.sub(Op::WriteZeroes, place, at, len, Data::NONE, false);
            self.begin_copy(cx, copy, sub);
        }
    }

    pub(super) fn piece_done(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: Outcome) {
        let op = super::number(tag & !KIND);
        self.end_piece(cx, op, outcome.map_err(own_fault));
    }

    /// A sub-I/O of a copy has ended.
    pub(super) fn copy_done(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: Outcome) {
        let number = super::number(tag & !KIND);
        let copy = self.copying.at(number);
        let (place, extent) = (copy.place, copy.extent);
        if let Some(rest) = &mut copy.rest
            && !rest.is_read
            && outcome.is_ok()
        {
            rest.fill(cx);
            let slot = rest.slot;
            let first = copy.bits.trailing_zeros();
            let sub_block = 1_u64 << self.shifts.0;
            let at = (u64::from(extent) << self.shifts.1) + u64::from(first) * sub_block;
            let sub = self.sub(Op::Write, place, at, sub_block, slot, false);
            return cx.issue(tag, sub);
        }
        let copy = self.copying.remove(number);
        if let Some(rest) = copy.rest {
            self.release_buffer(cx, rest.slot);
        }
        self.unlock(extent, copy.bits);
        match outcome {
            Ok(()) => self.claim(place, copy.bits),
            Err(_) => self.give_up_place(place, extent),
        }
        self.end_piece(cx, copy.op, outcome.map_err(own_fault));
        self.retry(cx, Wait::Lock);
        self.go_on(cx);
    }

    /// A copy to a place has failed: if nothing else is there, it is free, and not zeroed any more. Otherwise the
    /// sub-block there may not be zeroes.
    fn give_up_place(&mut self, place: u32, extent: u32) {
        let record = *self.table.at(place);
        if record.bits != 0 || self.locks.contains_key(&extent) {
            return self.table.set_used_before(place);
        }
        self.forest.at_mut(record.generation).extents -= 1;
        self.table.remove(place, Space::Free, &self.forest);
        self.list(place / super::EXTENTS_MAX);
    }
}

/// The part of a buffer that goes to an offset of the disk.
pub(super) fn data_of(io: &LayoutIo, at: u64) -> Data {
    io.data
        .skip(u32::try_from(at - io.offset).expect("a buffer is below 4 GiB"))
}

/// To a client, a full member is an error of the pool: its space was granted.
pub(super) fn own_fault(fault: Fault) -> Fault {
    match fault {
        Fault::NoSpace => Fault::Io,
        fault => fault,
    }
}

const _: () = assert!(super::SUB_BLOCKS == u16::BITS, "one bit for each");
