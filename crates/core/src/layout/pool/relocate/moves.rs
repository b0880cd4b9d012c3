//! Moves: the extents of a pool's disk that are on the way from one place to another.
//!
//! All sub-blocks are copied, one by one. Then a commit adds the new place to the header of its grant, beside the old one. Once
//! that is durable the disk has the new place, and the old one is released as if it were discarded.
//!
//! # Always true
//! - from the first header that names the new place on, both places have the same bytes, or what they differ in is not
//!   durable for anybody; so a crash that finds both may take either
//! - a guest's write that came before the move has ended before anything is copied
//! - a place that was to be the new one is released like any other, if the move is given up
//!
//! # Picture
//! ```text
//!   fence ──> copy, sub-block by sub-block ──> announced ──commit──> swapped; the old place is releasing
//!     └────────────────────┴──────────────────────┴──give up──> the new place is releasing
//! ```

use super::super::commit::Waiter;
use super::super::records::{MOVING, Space, Table, USED_BEFORE};
use super::super::{EXTENTS_MAX, KIND, NONE, Pool, Wait, number};
use super::MOVE;
use crate::layout::LayoutCx;
use crate::request::{Data, Op, Outcome};
use alloc::vec::Vec;

/// Moves under way at once. Origin: chosen; they share the commits, and each has one sub-block in a buffer.
const MOVES_MAX: usize = 16;
/// Buffers that they have at once: others need them as well. Origin: chosen.
const SLOTS_MAX: usize = 4;

/// See the module.
#[derive(Default)]
pub(in crate::layout::pool) struct Moves {
    entries: Vec<Option<Move>>,
    /// Whether a commit is asked for that makes the new places durable.
    is_waiting: bool,
}

/// One extent, or one mark, that moves.
pub(in crate::layout::pool) struct Move {
    /// The old place, which may be a mark.
    pub(super) from: u32,
    /// The new place; of a mark, the grant whose header gets it.
    pub(super) to: u32,
    pub(super) extent: u32,
    generation: u16,
    /// The sub-blocks that the new place has.
    pub(super) copied: u16,
    copy: Option<Copying>,
    /// What guests' writes before it must have passed.
    fence: Option<u64>,
    /// The commit that makes the new place durable.
    announced: Option<u64>,
    /// Whether it is durable, and only waits for the end of guests' writes.
    is_durable: bool,
    is_given_up: bool,
}

/// A sub-block that is copied.
struct Copying {
    bits: u16,
    slot: Data,
    is_read: bool,
    is_locked: bool,
}

/// What became of a move that should begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::layout::pool) enum Started {
    Yes,
    /// Others read it.
    Held,
    /// It is under way, or something else is done to it.
    NotNow,
    NoRoom,
    /// As many are under way as may be.
    Full,
}

impl Move {
    /// The new place, or grant.
    #[cfg(test)]
    pub(in crate::layout::pool) fn to(&self) -> u32 {
        self.to
    }

    /// Whether writes wait for its end.
    pub(super) fn ends(&self) -> bool {
        self.is_durable
    }

    /// The old place.
    pub(in crate::layout::pool) fn from(&self) -> u32 {
        self.from
    }
}

impl Moves {
    fn iter(&self) -> impl Iterator<Item = (usize, &Move)> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(number, entry)| entry.as_ref().map(|it| (number, it)))
    }

    pub(in crate::layout::pool) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    pub(super) fn is_full(&self) -> bool {
        self.iter().count() >= MOVES_MAX
    }

    /// Whether an extent or a mark of a generation moves.
    pub(in crate::layout::pool) fn is_of(&self, generation: u16) -> bool {
        self.iter().any(|(_, it)| it.generation == generation)
    }

    /// Whether anything of a frozen generation moves.
    pub(super) fn is_frozen(&self, current: u16) -> bool {
        self.iter().any(|(_, it)| it.generation != current)
    }

    /// Places that are being filled.
    pub(in crate::layout::pool) fn filling(&self) -> u64 {
        let extents = self.iter().filter(|(_, it)| !it.is_given_up);
        let extents = extents.filter(|(_, it)| !Table::is_mark(it.from));
        extents.count() as u64
    }

    /// The move of an extent whose guests' writes go to both places.
    pub(in crate::layout::pool) fn of_extent(&self, extent: u32) -> Option<&Move> {
        let mut all = self.iter().map(|(_, it)| it);
        all.find(|it| it.extent == extent && !it.is_given_up && !Table::is_mark(it.from))
    }

    /// The old place whose bytes a new place has, if a header is to say so, with the sub-blocks.
    pub(in crate::layout::pool) fn announced_at(&self, place: u32) -> Option<(u32, u16)> {
        let mut all = self.iter().map(|(_, it)| it);
        let found = all.find(|it| {
            it.to == place && it.announced.is_some() && !it.is_given_up && !Table::is_mark(it.from)
        });
        found.map(|it| (it.from, it.copied))
    }

    /// The marks that a grant's header is to have as well.
    pub(in crate::layout::pool) fn marks_of(&self, chunk: u32) -> impl Iterator<Item = u32> + '_ {
        let all = self.iter().map(|(_, it)| it);
        let marks = all.filter(move |it| {
            Table::is_mark(it.from) && it.to == chunk && it.announced.is_some() && !it.is_given_up
        });
        marks.map(|it| it.from)
    }

    /// Whether marks move to a grant's header.
    pub(in crate::layout::pool) fn marks_to(&self, chunk: u32) -> usize {
        let marks = self.iter().filter(|(_, it)| Table::is_mark(it.from));
        marks.filter(|(_, it)| it.to == chunk).count()
    }

    fn put(&mut self, entry: Move) {
        match self.entries.iter_mut().find(|it| it.is_none()) {
            Some(free) => *free = Some(entry),
            None => self.entries.push(Some(entry)),
        }
    }

    fn numbers(&self) -> Vec<usize> {
        self.iter().map(|(number, _)| number).collect()
    }

    fn at(&mut self, number: usize) -> &mut Move {
        let entry = self.entries[number].as_mut();
        entry.expect("a move stays until it has ended")
    }

    fn find(&self, is_wanted: impl Fn(&Move) -> bool) -> Option<usize> {
        let mut all = self.iter();
        all.find(|(_, it)| is_wanted(it)).map(|(number, _)| number)
    }

    fn copying(&self) -> usize {
        self.iter().filter(|(_, it)| it.copy.is_some()).count()
    }
}

impl Pool {
    /// Begins to move an extent, or a mark, to one of these columns.
    pub(super) fn begin_move(
        &mut self,
        cx: &mut LayoutCx<'_>,
        place: u32,
        columns: u32,
    ) -> Started {
        let record = *self.table.at(place);
        let moves = &self.relocation.moves;
        if record.flags & MOVING != 0 {
            return Started::NotNow;
        }
        let is_frozen = record.generation != self.current();
        if is_frozen && self.relocation.has_readers != super::Readers::No {
            return Started::Held;
        }
        let is_busy = self.locks.contains_key(&record.extent)
            || moves.iter().any(|(_, it)| it.extent == record.extent)
            || record.bits == 0
            || self.is_being_deleted(record.generation);
        if is_busy {
            return Started::NotNow;
        }
        if moves.is_full() {
            return Started::Full;
        }
        let to = match Table::is_mark(place) {
            true => self.chunk_with_room(),
            false => self.place_for_move(cx, columns),
        };
        let Some(to) = to else {
            return Started::NoRoom;
        };
        let mut fence = None;
        if !Table::is_mark(place) {
            self.table.set_space(to, Space::Moving);
            fence = (!is_frozen).then(|| self.space.next_fence(cx));
        }
        self.table.set_moving(place, true);
        self.relocation.moves.put(Move {
            from: place,
            to,
            extent: record.extent,
            generation: record.generation,
            copied: 0,
            copy: None,
            fence,
            announced: None,
            is_durable: false,
            is_given_up: false,
        });
        Started::Yes
    }

    /// Goes on with each move.
    pub(super) fn go_on_moving(&mut self, cx: &mut LayoutCx<'_>) {
        let current = self.current();
        for number in self.relocation.moves.numbers() {
            if self.relocation.moves.copying() >= SLOTS_MAX {
                return;
            }
            let it = self.relocation.moves.at(number);
            let (from, fence, generation) = (it.from, it.fence, it.generation);
            if Table::is_mark(from) || it.is_given_up || it.copy.is_some() {
                continue;
            }
            let copied = it.copied;
            if let Some(fence) = fence
                && !self.space.is_fenced(fence)
            {
                // A fence that was under way then was none for it.
                self.space.next_fence(cx);
                continue;
            }
            let record = self.table.at(from);
            let locked = match generation == current {
                true => self.locks.get(&record.extent).copied().unwrap_or(0),
                false => 0,
            };
            let missing = record.bits & !copied & !locked;
            if missing == 0 {
                continue;
            }
            let bit = 1_u16 << missing.trailing_zeros();
            if !self.copy_sub_block(cx, number, bit, generation == current) {
                return;
            }
        }
    }

    /// Copies one sub-block. Returns false if there is no buffer.
    fn copy_sub_block(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: usize,
        bits: u16,
        is_locked: bool,
    ) -> bool {
        let to = self.relocation.moves.at(number).to;
        if !self.heat(to) {
            return true;
        }
        let Some(slot) = self.claim_buffer(cx) else {
            return false;
        };
        let it = self.relocation.moves.at(number);
        let (from, extent) = (it.from, it.extent);
        it.copy = Some(Copying {
            bits,
            slot,
            is_read: false,
            is_locked,
        });
        if is_locked {
            *self.locks.entry(extent).or_default() |= bits;
        }
        let (at, len) = self.bytes_of(extent, bits);
        let sub = self.sub(Op::Read, from, at, len, slot, self.is_unawaited());
        cx.issue(MOVE | number as u64, sub);
        true
    }

    /// Whether no guest waits for a copy.
    fn is_unawaited(&self) -> bool {
        self.waiting.of(Wait::Lock) == 0
    }

    /// Where a sub-block of an extent is on the disk, and how long it is, in bytes.
    fn bytes_of(&self, extent: u32, bits: u16) -> (u64, u64) {
        let within = u64::from(bits.trailing_zeros()) << self.shifts.0;
        let at = (u64::from(extent) << self.shifts.1) + within;
        (at, 1 << self.shifts.0)
    }

    /// A sub-I/O of a copy has ended.
    pub(in crate::layout::pool) fn move_done(
        &mut self,
        cx: &mut LayoutCx<'_>,
        tag: u64,
        outcome: Outcome,
    ) {
        let number = number(tag & !KIND) as usize;
        let it = self.relocation.moves.at(number);
        let (to, extent, is_given_up) = (it.to, it.extent, it.is_given_up);
        let Some(copy) = &mut it.copy else {
            return;
        };
        let (bits, slot) = (copy.bits, copy.slot);
        if outcome.is_ok() && !is_given_up && !core::mem::replace(&mut copy.is_read, true) {
            let (at, len) = self.bytes_of(extent, bits);
            let sub = self.sub(Op::Write, to, at, len, slot, self.is_unawaited());
            return cx.issue(tag, sub);
        }
        let is_locked = copy.is_locked;
        it.copy = None;
        self.release_buffer(cx, slot);
        if is_locked {
            self.unlock(extent, bits);
        }
        let it = self.relocation.moves.at(number);
        match outcome {
            _ if is_given_up => self.relocation.moves.entries[number] = None,
            Ok(()) => it.copied |= bits,
            Err(_) => {
                self.give_up_move(number);
                self.relocation.later(cx.now());
            }
        }
        self.retry(cx, Wait::Lock);
        self.go_on(cx);
    }

    /// Sub-blocks may be written again.
    pub(in crate::layout::pool) fn unlock(&mut self, extent: u32, bits: u16) {
        let locked = self.locks.remove(&extent).unwrap_or(0) & !bits;
        if locked != 0 {
            self.locks.insert(extent, locked);
        }
    }

    /// Once all that are under way are copied, the next commit names their new places.
    pub(super) fn announce(&mut self) {
        let commit = self.space.next_commit();
        let mut are_ready = true;
        let mut ready = Vec::new();
        for (number, it) in self.relocation.moves.iter() {
            let lacks = !Table::is_mark(it.from) && self.table.at(it.from).bits & !it.copied != 0;
            let is_known = it.is_durable || it.announced.is_some_and(|at| at >= commit);
            are_ready &= !lacks || it.is_given_up;
            if !it.is_given_up && !lacks && !is_known {
                ready.push(number);
            }
        }
        let is_batch = are_ready || ready.len() >= MOVES_MAX / 2;
        if ready.is_empty() || !is_batch || self.relocation.moves.is_waiting {
            return;
        }
        for number in ready {
            let it = self.relocation.moves.at(number);
            it.announced = Some(commit);
            let chunk = match Table::is_mark(it.from) {
                true => it.to,
                false => it.to / EXTENTS_MAX,
            };
            self.table.touch_chunk(chunk);
        }
        self.relocation.moves.is_waiting = true;
        self.waiters.push(Waiter::Moves);
    }

    /// The new places are durable, or could not be made so.
    pub(in crate::layout::pool) fn moves_committed(
        &mut self,
        cx: &mut LayoutCx<'_>,
        outcome: Outcome,
    ) {
        self.relocation.moves.is_waiting = false;
        if outcome.is_err() {
            return self.cancel_moves(cx);
        }
        for number in self.relocation.moves.numbers() {
            let it = self.relocation.moves.at(number);
            let commit = it.announced.filter(|_| !it.is_given_up);
            let is_durable = commit.is_some_and(|commit| self.space.is_committed(commit));
            if is_durable {
                self.relocation.moves.at(number).is_durable = true;
                self.end_move(number);
            }
        }
        self.relocation.soon(cx.now());
        self.retry(cx, Wait::Lock);
    }

    /// Writes to an extent have ended: a move that waited for that ends as well.
    pub(super) fn end_move_of(&mut self, extent: u32) {
        let is_here = |it: &Move| it.extent == extent && it.is_durable;
        if let Some(number) = self.relocation.moves.find(is_here) {
            self.end_move(number);
        }
    }

    /// Ends a move whose new place is durable, unless a guest's write is under way: who has read what that writes reads it again.
    fn end_move(&mut self, number: usize) {
        let it = self.relocation.moves.at(number);
        let (from, to, copied) = (it.from, it.to, it.copied);
        if Table::is_mark(from) {
            self.table.touch(from);
            self.table.set_moving(from, false);
            self.table.move_mark(from, to);
            self.table.touch(from);
        } else {
            let record = self.table.at(from);
            let is_written =
                record.generation == self.current() && self.locks.contains_key(&record.extent);
            assert_eq!(record.bits & !copied, 0, "what moves gets nothing new");
            if is_written {
                return;
            }
            self.swap(from, to);
        }
        self.relocation.moves.entries[number] = None;
        self.relocation.moved += 1;
    }

    /// The disk has what was at one place at another one.
    fn swap(&mut self, from: u32, to: u32) {
        let has_all = self.table.at(from).bits == u16::MAX;
        self.table.touch(from);
        self.table.swap(from, to);
        if !has_all {
            self.table.set_used_before(to);
        }
        self.release_place(from);
    }

    /// A move is given up. What it has copied is thrown away.
    pub(super) fn give_up_move(&mut self, number: usize) {
        let it = self.relocation.moves.at(number);
        if core::mem::replace(&mut it.is_given_up, true) {
            return;
        }
        let (from, to) = (it.from, it.to);
        let (was_announced, is_idle) = (it.announced.is_some(), it.copy.is_none());
        self.table.set_moving(from, false);
        match Table::is_mark(from) {
            true if was_announced => self.table.touch_chunk(to),
            true => {}
            false => {
                if was_announced {
                    self.table.touch(to);
                }
                self.table.set_space(to, Space::Releasing);
                self.release_place(to);
            }
        }
        if is_idle {
            self.relocation.moves.entries[number] = None;
        }
    }

    /// A guest's write to the new place of an extent has failed.
    pub(super) fn give_up_move_of(&mut self, from: u32, to: u32) {
        let is_this = |it: &Move| (it.from, it.to) == (from, to);
        if let Some(number) = self.relocation.moves.find(is_this) {
            self.give_up_move(number);
        }
    }

    /// Gives up all moves.
    pub(super) fn cancel_moves(&mut self, cx: &mut LayoutCx<'_>) {
        let numbers = self.relocation.moves.numbers();
        for number in &numbers {
            self.give_up_move(*number);
        }
        if !numbers.is_empty() {
            self.relocation.later(cx.now());
            self.retry(cx, Wait::Lock);
            self.plan_release(cx);
        }
    }

    /// Ends those moves whose generation `which` names: those that no commit names yet are given up.
    pub(super) fn end_moves(&mut self, cx: &mut LayoutCx<'_>, which: impl Fn(&Pool, u16) -> bool) {
        let mut given_up = false;
        for number in self.relocation.moves.numbers() {
            let it = self.relocation.moves.at(number);
            let (generation, is_new) = (it.generation, it.announced.is_none());
            if is_new && !it.is_given_up && which(self, generation) {
                self.give_up_move(number);
                given_up = true;
            }
        }
        if given_up {
            self.relocation.later(cx.now());
            self.retry(cx, Wait::Lock);
            self.plan_release(cx);
        }
    }

    /// Before the gate is closed all moves have ended. Returns whether they have.
    pub(in crate::layout::pool) fn has_ended_moves(&mut self, cx: &mut LayoutCx<'_>) -> bool {
        self.end_moves(cx, |_, _| true);
        self.relocation.moves.is_empty()
    }

    /// A mark goes: it does not move any more.
    pub(in crate::layout::pool) fn forget_mark(&mut self, mark: u32) {
        if let Some(number) = self.relocation.moves.find(|it| it.from == mark) {
            self.give_up_move(number);
        }
    }

    /// Whether something that moves is in the way of giving a grant back.
    pub(in crate::layout::pool) fn is_move_target(&self, chunk: u32) -> bool {
        self.relocation.moves.marks_to(chunk) > 0
    }

    /// A free place on one of these columns; if there is none, the disk asks for a grant.
    fn place_for_move(&mut self, cx: &mut LayoutCx<'_>, columns: u32) -> Option<u32> {
        let is_refused = self.is_refused_grant(cx.now());
        if self.table.free() < 2 && !is_refused {
            self.want_grant(cx);
            return None;
        }
        let found = self.pick_free_on(columns);
        if found.is_none() && !is_refused {
            self.want_grant(cx);
        }
        found
    }
}

const _: () = assert!(MOVING & USED_BEFORE == 0 && NONE == u32::MAX);
