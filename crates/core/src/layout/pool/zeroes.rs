//! Discards of a pool's disk, and writes of zeroes.
//!
//! An extent of which all is discarded is free again. What an older generation has is hidden by a mark: bits of an extent of the
//! current generation that reads as zeroes there, or a record without a place in some header.
//!
//! # Always true
//! - an extent leaves its header in the same write that adds the mark which hides what was below it
//! - a discard changes nothing of a sub-block that it does not cover; a write of zeroes does

use super::blocks::MARKS_MAX;
use super::ops::{Step, Wait};
use super::records::{Table, USED_BEFORE};
use super::{PIECE, Pool, runs};
use crate::layout::{LayoutCx, LayoutIo, SubIo};
use crate::request::{Data, Flags, Op};
use alloc::vec::Vec;

/// Grants that are looked at for one whose header has room for a mark. Origin: chosen; the last ones have most often.
const HEADERS_TRIED: usize = 16;

impl Pool {
    /// Carries out the next part of a discard, or of a write of zeroes.
    pub(super) fn step_zeroes(
        &mut self,
        cx: &mut LayoutCx<'_>,
        op: u32,
        io: &LayoutIo,
        at: u64,
        len: u64,
    ) -> Step {
        let (extent, len) = (self.extent_at(at), len.min(self.left_of_extent(at)));
        if self.table.first(extent).is_none() {
            return Step::Done(len);
        }
        let locked = self.locks.get(&extent).copied().unwrap_or(0);
        if locked & self.range_bits(at, len) != 0 || self.moving_now(extent).is_some() {
            return Step::Wait(Wait::Lock);
        }
        if !self.heat_extent(extent) {
            return Step::Wait(Wait::Intent);
        }
        let sub_block = 1_u64 << self.shifts.0;
        let within = at & (sub_block - 1);
        let is_end = at + len >= self.size;
        // A part of a sub-block, at the beginning or at the end.
        if within != 0 || len < sub_block && !is_end {
            let len = len.min(sub_block - within);
            return match io.op {
                Op::Discard => Step::Done(len),
                _ => self.zero_part(cx, op, io, at, len),
            };
        }
        let len = match is_end {
            true => len,
            false => len & !(sub_block - 1),
        };
        let wanted = self.range_bits(at, len);
        match self.hide(cx, op, io, extent, wanted) {
            Some(wait) => Step::Wait(wait),
            None => Step::Done(len),
        }
    }

    /// Zeroes a part of a sub-block.
    fn zero_part(
        &mut self,
        cx: &mut LayoutCx<'_>,
        op: u32,
        io: &LayoutIo,
        at: u64,
        len: u64,
    ) -> Step {
        let extent = self.extent_at(at);
        let source = self.table.source(extent, self.sub_block_at(at));
        let Some(from) = source.filter(|place| !Table::is_mark(*place)) else {
            return Step::Done(len);
        };
        if self.table.at(from).generation == self.current() {
            self.begin_piece(op);
            let sub = SubIo {
                flags: own_flags(io.flags),
                ..self.sub(Op::WriteZeroes, from, at, len, Data::NONE, io.background)
            };
            cx.issue(PIECE | u64::from(op), sub);
            return Step::Done(len);
        }
        match self.own_place(extent, false) {
            Some(place) if !self.heat(place) => Step::Wait(Wait::Intent),
            Some(place) => self.copy_part(cx, op, io, [Some(from), Some(place)], at, len, None),
            None => Step::Wait(Wait::Space),
        }
    }

    /// Whole sub-blocks of an extent read as zeroes from now on. Returns what that waits for.
    fn hide(
        &mut self,
        cx: &mut LayoutCx<'_>,
        op: u32,
        io: &LayoutIo,
        extent: u32,
        wanted: u16,
    ) -> Option<Wait> {
        let current = self.current();
        let chain: Vec<u32> = self.table.chain(extent).collect();
        let of_current = |pool: &Pool, place: &u32| pool.table.at(*place).generation == current;
        let below = chain.iter().filter(|place| {
            let generation = self.table.at(**place).generation;
            !of_current(self, place) && self.forest.rank(generation) > 0
        });
        let below = below.fold(0, |all, place| all | self.table.at(*place).bits);
        let is_own = |place: &&u32| of_current(self, place) && !Table::is_mark(**place);
        let own: Vec<u32> = chain.iter().filter(is_own).copied().collect();
        for place in &own {
            let has = self.table.at(*place).bits;
            let locked = self.locks.contains_key(&extent);
            if has & wanted == 0 {
                continue;
            }
            if has & !wanted == 0 && !locked && self.mark_in_place(*place, has & below) {
                self.release(*place);
                continue;
            }
            self.zero_or_discard(cx, op, io, *place, extent, has & wanted);
        }
        // What older generations have.
        let sees = |pool: &Pool, place: &u32| !of_current(pool, place) && !Table::is_mark(*place);
        let rest = self.table.chain(extent).filter(|place| sees(self, place));
        let rest = rest.fold(0, |all, place| all | self.table.at(place).seen) & wanted;
        if rest == 0 {
            return None;
        }
        let left: Vec<u32> = self.table.chain(extent).collect();
        let own = left.iter().copied().filter(|place| of_current(self, place));
        let (marks, places): (Vec<u32>, Vec<u32>) = own.partition(|it| Table::is_mark(*it));
        let clean = |place: &&u32| self.table.at(**place).flags & USED_BEFORE == 0;
        if let Some(place) = places.iter().find(clean) {
            self.claim(*place, rest);
            return None;
        }
        if let Some(mark) = marks.iter().find(|mark| self.table.at(**mark).bits != 0)
            && places.is_empty()
        {
            self.claim(*mark, rest);
            return None;
        }
        if let Some(place) = places.first() {
            self.zero_at(cx, op, *place, extent, rest);
            return None;
        }
        if let Some(chunk) = self.chunk_with_room() {
            self.mark(chunk, extent, rest);
            return None;
        }
        if io.op == Op::Discard {
            return None;
        }
        match self.own_place(extent, false) {
            Some(place) => {
                self.claim(place, rest);
                None
            }
            None => Some(Wait::Space),
        }
    }

    /// An extent will be free: what is below these sub-blocks of it is hidden by a mark in the same header. Returns whether
    /// there is room for it.
    fn mark_in_place(&mut self, place: u32, hidden: u16) -> bool {
        if hidden == 0 {
            return true;
        }
        let chunk = self.table.chunk_of(place);
        if !self.has_room_for_mark(chunk) {
            return false;
        }
        let extent = self.table.at(place).extent;
        self.mark(chunk, extent, hidden);
        true
    }

    /// Adds a mark of the current generation to a header.
    fn mark(&mut self, chunk: u32, extent: u32, hidden: u16) {
        let (mark, current) = (self.table.new_mark(chunk), self.current());
        self.table.put(mark, extent, current, 0, 0);
        self.claim(mark, hidden);
    }

    /// A grant whose header has room for a mark.
    pub(super) fn chunk_with_room(&self) -> Option<u32> {
        let own = self.own.iter().rev().filter(|it| **it != super::NONE);
        let own = own.filter(|it| !self.table.chunk(**it).is_closed);
        let mut tried = own.copied().take(HEADERS_TRIED);
        tried.find(|chunk| self.has_room_for_mark(*chunk))
    }

    /// Whether one more mark fits in the header of a grant, beside those that move there.
    fn has_room_for_mark(&self, chunk: u32) -> bool {
        let coming = self.relocation.moves.marks_to(chunk);
        self.table.chunk(chunk).marks.len() + coming < MARKS_MAX
    }

    /// Sub-blocks that stay at their place read as zeroes, or have nothing of worth.
    fn zero_or_discard(
        &mut self,
        cx: &mut LayoutCx<'_>,
        op: u32,
        io: &LayoutIo,
        place: u32,
        extent: u32,
        wanted: u16,
    ) {
        let sub_block = 1_u64 << self.shifts.0;
        for (first, end) in runs(wanted) {
            let at = (u64::from(extent) << self.shifts.1) + u64::from(first) * sub_block;
            let len = u64::from(end - first) * sub_block;
            self.begin_piece(op);
            let sub = SubIo {
                flags: own_flags(io.flags),
                ..self.sub(io.op, place, at, len, Data::NONE, io.background)
            };
            cx.issue(PIECE | u64::from(op), sub);
        }
    }
}

/// The flags of a sub-I/O: what is durable is decided when all have ended.
fn own_flags(flags: Flags) -> Flags {
    let kept = [Flags::MAY_UNMAP, Flags::FAST_ONLY];
    let kept = kept.into_iter().filter(|flag| flags.has(*flag));
    kept.fold(Flags::NONE, Flags::with)
}
