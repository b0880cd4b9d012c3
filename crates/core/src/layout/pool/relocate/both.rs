//! Writes of guests to an extent that moves: they go to both places, so that either has everything.
//!
//! Each is of one sub-block at most, and holds it: two writes of the same bytes have one order at both places. A guest may change
//! its buffer meanwhile, so both places get a copy of it.
//!
//! # Always true
//! - a write is answered after both places have it
//! - if one of them has not, the move is given up before the write is answered

use super::super::ops::{Step, Wait};
use super::super::write::{data_of, own_fault};
use super::super::{KIND, Pool, number};
use super::BOTH;
use crate::layout::{LayoutCx, LayoutIo};
use crate::request::{Data, Op, Outcome};

/// Of a tag: the write to the new place.
const NEW: u64 = 1 << 40;

/// A write that goes to both places, or to the old one only, whose bytes the new one has not yet.
pub(in crate::layout::pool) struct Both {
    op: u32,
    extent: u32,
    bits: u16,
    slot: Option<Data>,
    /// The places of the move.
    move_of: (u32, u32),
    left: u8,
    /// What the write to the old place has come to.
    outcome: Outcome,
    has_failed: bool,
}

impl Pool {
    /// Writes to an extent that moves, where the disk has it.
    pub(in crate::layout::pool) fn write_both(
        &mut self,
        cx: &mut LayoutCx<'_>,
        op: u32,
        io: &LayoutIo,
        at: u64,
        len: u64,
    ) -> Step {
        let extent = self.extent_at(at);
        let Some(it) = self.relocation.moves.of_extent(extent) else {
            return Step::Wait(Wait::Lock);
        };
        if it.ends() {
            return Step::Wait(Wait::Lock);
        }
        let (from, to, copied) = (it.from, it.to, it.copied);
        let is_hot = self.heat(from);
        if !self.heat(to) || !is_hot {
            return Step::Wait(Wait::Intent);
        }
        let sub_block = 1_u64 << self.shifts.0;
        let len = len.min(sub_block - (at & (sub_block - 1)));
        let bits = self.range_bits(at, len);
        let mut slot = None;
        let mut data = data_of(io, at);
        if copied & bits != 0 {
            let Some(own) = self.claim_buffer(cx) else {
                return Step::Wait(Wait::Slot);
            };
            cx.copy(data, own, len);
            (slot, data) = (Some(own), own);
        }
        *self.locks.entry(extent).or_default() |= bits;
        self.begin_piece(op);
        let number = self.both.insert(Both {
            op,
            extent,
            bits,
            slot,
            move_of: (from, to),
            left: 1 + u8::from(slot.is_some()),
            outcome: Ok(()),
            has_failed: false,
        });
        let tag = BOTH | u64::from(number);
        let sub = self.sub(Op::Write, from, at, len, data, io.background);
        cx.issue(tag, sub);
        if slot.is_some() {
            let sub = self.sub(Op::Write, to, at, len, data, io.background);
            cx.issue(tag | NEW, sub);
        }
        Step::Done(len)
    }

    /// One of the two places has it, or has failed.
    pub(in crate::layout::pool) fn both_done(
        &mut self,
        cx: &mut LayoutCx<'_>,
        tag: u64,
        outcome: Outcome,
    ) {
        let place = number(tag & !KIND);
        let both = self.both.at(place);
        both.left -= 1;
        both.has_failed |= outcome.is_err();
        if tag & NEW == 0 {
            both.outcome = outcome.map_err(own_fault);
        }
        if both.left > 0 {
            return;
        }
        let both = self.both.remove(place);
        if both.has_failed {
            self.give_up_move_of(both.move_of.0, both.move_of.1);
        }
        if let Some(slot) = both.slot {
            self.release_buffer(cx, slot);
        }
        self.unlock(both.extent, both.bits);
        self.end_move_of(both.extent);
        self.end_piece(cx, both.op, both.outcome);
        self.retry(cx, Wait::Lock);
        self.go_on(cx);
    }
}
