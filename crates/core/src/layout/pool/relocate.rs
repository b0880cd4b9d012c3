//! Relocation of a pool's disk: extents move to other grants, so that columns become empty, or data comes to another tier.
//!
//! A pass looks at what has to move, and begins some moves ([`moves`]). Guests go on meanwhile: what they write to an extent that
//! moves goes to both places ([`both`]). A grant with headers moves as a whole, once nothing else is in it ([`home`]).
//!
//! # Always true
//! - an extent of a frozen generation stays where it is while others read it: they do not see it move
//! - nothing moves while the gate is not open
//! - a closed grant gets nothing new
//!
//! # Picture
//! ```text
//!   vacate ──> closed grants ──┐
//!   place ───> extents ────────┴──> moves ──> empty ──> given back
//!                                                └─ with headers ──> another home, then given back
//! ```

use super::commit::Waiter;
use super::{EXTENTS_MAX, NONE, Pool, RELOCATE};
use crate::layout::{LayoutCx, LayoutNotice, OrderRefusal, Ordered};
use crate::request::Outcome;
use crate::units::{Span, Time};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use home::Home;
use moves::{Moves, Started};

mod both;
mod home;
mod moves;

pub(super) use both::Both;

/// What a tag names.
const PART: u64 = 15 << 56;
pub(super) const MOVE: u64 = RELOCATE | 1 << 56;
pub(super) const BOTH: u64 = RELOCATE | 2 << 56;
pub(super) const HOME: u64 = RELOCATE | 3 << 56;

/// Grants that a pass looks at in one turn. Origin: chosen; each has 64 records, some hundred nanoseconds.
const SLICE: u32 = 8;
/// How long the next slice waits for others. Origin: chosen; the next turn of the I/O thread.
const SLICE_AFTER: Span = Span::from_micros(1);
/// How long after a pass that left something, or a fault, it is tried again. Origin: chosen.
const AGAIN_AFTER: Span = Span::from_millis(200);
/// Orders to place extents that may wait. Origin: chosen; each is of 16 MiB or more.
const PLACES_MAX: usize = 64;

/// See the module.
#[derive(Default)]
pub(super) struct Relocation {
    /// Columns that are to be empty, one bit each.
    vacate: u32,
    /// The next grant that the pass looks at.
    next: u32,
    /// Extents of frozen generations that stay because others read them, as the last whole pass has found.
    held: u64,
    held_now: u64,
    is_reported: bool,
    places: VecDeque<Placing>,
    /// Whether others may read frozen generations.
    pub(super) has_readers: Readers,
    pub(super) moves: Moves,
    pub(super) home: Option<Home>,
    /// When the next slice is due, or something is tried again.
    pub(super) at: Option<Time>,
    /// Whether the next slice is due.
    is_due: bool,
    /// Extents and marks that have moved since the disk was attached.
    pub(super) moved: u64,
    /// Extents that found no room where they should be.
    unplaced: u64,
}

/// Extents of the disk that go to some columns.
#[derive(Clone, Copy, Debug)]
struct Placing {
    next: u32,
    end: u32,
    columns: u32,
}

/// Whether others may read frozen generations: clones, and readers of snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Readers {
    No,
    /// The order waits until nothing that they would see moves.
    Coming,
    /// So it is unless the daemon says otherwise.
    #[default]
    Yes,
}

impl Relocation {
    /// Columns that are to be empty.
    pub(super) fn is_vacated(&self, column: u16) -> bool {
        1_u32.checked_shl(column.into()).unwrap_or(0) & self.vacate != 0
    }

    /// Extents that stay because others read them.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Extents that found no room where they should be.
    pub(super) fn unplaced(&self) -> u64 {
        self.unplaced
    }

    /// Tries again after a while.
    fn later(&mut self, now: Time) {
        self.due_at(now + AGAIN_AFTER);
    }

    /// The next slice is due, once others had their turn.
    pub(super) fn soon(&mut self, now: Time) {
        self.due_at(now + SLICE_AFTER);
    }

    fn due_at(&mut self, at: Time) {
        self.at = Some(self.at.map_or(at, |other| other.min(at)));
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Time) {
        self.is_due |= self.at.take_if(|at| *at <= now).is_some();
    }
}

impl Pool {
    /// These columns are to be empty, and all others may be used.
    pub(super) fn order_vacate(
        &mut self,
        cx: &mut LayoutCx<'_>,
        columns: u32,
    ) -> Result<Ordered, OrderRefusal> {
        let relocation = &mut self.relocation;
        relocation.vacate = columns;
        relocation.next = 0;
        (relocation.held, relocation.held_now) = (0, 0);
        relocation.is_reported = columns == 0;
        relocation.soon(cx.now());
        let own: Vec<u32> = self.own.iter().copied().filter(|it| *it != NONE).collect();
        for number in own {
            self.close_if_vacated(number);
        }
        self.go_on(cx);
        Ok(Ordered::Now)
    }

    /// The pool's columns without these.
    fn columns_without(&self, columns: u32) -> u32 {
        let all = self.setup.columns.len().min(32);
        let all = u32::try_from((1_u64 << all) - 1).unwrap_or(u32::MAX);
        all & !columns
    }

    /// Closes a grant on a column that is to be empty, or opens it.
    pub(super) fn close_if_vacated(&mut self, number: u32) {
        let is_wanted = self
            .relocation
            .is_vacated(self.table.chunk(number).grant.column);
        self.close_grant(number, is_wanted);
    }

    /// A grant gets nothing new from now on, or gets it again.
    fn close_grant(&mut self, number: u32, closes: bool) {
        if closes {
            self.forget_zeroed(number);
            self.unlist(number);
        }
        self.table.close(number, closes);
        if !closes && self.table.chunk(number).free > 0 {
            self.list(number);
        }
    }

    /// These extents of the disk go to these columns.
    pub(super) fn order_place(
        &mut self,
        cx: &mut LayoutCx<'_>,
        extent: u32,
        count: u32,
        columns: u32,
    ) -> Result<Ordered, OrderRefusal> {
        if columns & self.columns_without(self.relocation.vacate) == 0 {
            return Err(OrderRefusal::NoColumn);
        }
        if self.relocation.places.len() >= PLACES_MAX {
            return Err(OrderRefusal::Busy);
        }
        self.relocation.places.push_back(Placing {
            next: extent,
            end: extent.saturating_add(count),
            columns,
        });
        self.relocation.soon(cx.now());
        self.go_on(cx);
        Ok(Ordered::Now)
    }

    /// Others read frozen generations from now on, or nobody does.
    pub(super) fn order_readers(
        &mut self,
        cx: &mut LayoutCx<'_>,
        reads: bool,
    ) -> Result<Ordered, OrderRefusal> {
        match (self.relocation.has_readers, reads) {
            (Readers::Coming, _) => Err(OrderRefusal::Busy),
            (_, false) => {
                self.relocation.has_readers = Readers::No;
                self.relocation.soon(cx.now());
                Ok(Ordered::Now)
            }
            (Readers::Yes, true) if self.relocation.home.is_none() => Ok(Ordered::Now),
            (_, true) if self.detaching => Err(OrderRefusal::Busy),
            (_, true) => {
                self.relocation.has_readers = Readers::Coming;
                self.go_on(cx);
                Ok(Ordered::Later)
            }
        }
    }

    /// Whoever reads from now on finds everything where it stays, or the attempt has failed.
    pub(super) fn readers_committed(&mut self, cx: &mut LayoutCx<'_>, outcome: Outcome) {
        if self.relocation.has_readers == Readers::Coming {
            self.relocation.has_readers = Readers::Yes;
            cx.ordered(outcome.map_err(|_| OrderRefusal::Unrecorded));
        }
    }

    /// A sub-I/O of a relocation has ended.
    pub(super) fn relocation_done(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: Outcome) {
        match RELOCATE | tag & PART {
            MOVE => self.move_done(cx, tag, outcome),
            BOTH => self.both_done(cx, tag, outcome),
            _ => self.home_done(cx, outcome),
        }
    }

    /// Goes on with moves, and begins others.
    pub(super) fn relocate(&mut self, cx: &mut LayoutCx<'_>) {
        if self.relocation.has_readers == Readers::Coming {
            self.let_readers_in(cx);
        }
        self.copy_home(cx);
        if self.relocation.moves.is_empty() && !self.relocation.is_due {
            return;
        }
        if self.paused || self.detaching || !self.gate.is_open() {
            return;
        }
        self.begin_moves(cx);
        self.go_on_moving(cx);
        self.announce();
    }

    /// Once nothing moves that readers would see, a commit says so.
    fn let_readers_in(&mut self, cx: &mut LayoutCx<'_>) {
        self.end_moves(cx, |pool, generation| generation != pool.current());
        let current = self.current();
        let is_quiet = self.relocation.home.is_none() && !self.relocation.moves.is_frozen(current);
        if is_quiet && !self.waiters.contains(&Waiter::Readers) && !self.is_committing_readers() {
            self.waiters.push(Waiter::Readers);
        }
    }

    /// Begins as many moves as may be under way.
    fn begin_moves(&mut self, cx: &mut LayoutCx<'_>) {
        if self.relocation.moves.is_full() || !core::mem::take(&mut self.relocation.is_due) {
            return;
        }
        if self.relocation.vacate != 0 {
            self.vacate_on(cx);
        }
        self.place_on(cx);
    }

    /// Looks at the next closed grants.
    fn vacate_on(&mut self, cx: &mut LayoutCx<'_>) {
        let columns = self.columns_without(self.relocation.vacate);
        let end = self.table.chunks_end();
        let slice = self.relocation.next..(self.relocation.next + SLICE).min(end);
        for number in slice.clone() {
            let is_closed = self
                .table
                .get(number)
                .is_some_and(|it| it.owner == 0 && it.is_closed);
            if !is_closed || self.is_home(number) {
                continue;
            }
            let records = self.table.records(number);
            let used = records.filter(|(_, record)| record.extent != NONE);
            let mut used: Vec<u32> = used.map(|(place, _)| place).collect();
            used.extend(&self.table.chunk(number).marks);
            for place in used {
                match self.begin_move(cx, place, columns) {
                    Started::Yes | Started::NotNow => {}
                    Started::Held => self.relocation.held_now += 1,
                    Started::NoRoom => {
                        self.relocation.next = number;
                        return self.relocation.later(cx.now());
                    }
                    Started::Full => {
                        self.relocation.next = number;
                        return;
                    }
                }
            }
            self.empty_grant(cx, number);
        }
        self.relocation.next = slice.end;
        if slice.end < end {
            return self.relocation.soon(cx.now());
        }
        self.relocation.next = 0;
        self.relocation.held = core::mem::take(&mut self.relocation.held_now);
        let mut own = self.setup.grants.iter().flatten();
        let is_empty = !own.any(|grant| self.relocation.is_vacated(grant.column));
        if is_empty {
            // Flushes go where the disk has something.
            self.targets = 0;
            for grant in self.setup.grants.iter().flatten() {
                self.targets |= 1 << self.setup.columns[usize::from(grant.column)].0;
            }
        }
        if !is_empty && self.table.dirty() > 0 && self.waiters.is_empty() {
            // A grant is empty once its header says so.
            self.waiters.push(Waiter::Nobody);
        }
        match is_empty {
            true if !core::mem::replace(&mut self.relocation.is_reported, true) => {
                cx.notice(LayoutNotice::Vacated);
            }
            true => {}
            false => self.relocation.later(cx.now()),
        }
    }

    /// A closed grant is given back once nothing is in it. One with headers needs another home first.
    fn empty_grant(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        if !self.is_empty_grant(number) {
            return;
        }
        let index = self.table.chunk(number).index;
        match self.setup.geometry.has_headers(index) {
            true => self.begin_home(cx, number),
            false => self.drop_grant(cx, number),
        }
    }

    /// Begins moves of the extents that are to be on some columns.
    fn place_on(&mut self, cx: &mut LayoutCx<'_>) {
        let mut looked_at = 0;
        while let Some(placing) = self.relocation.places.front().copied() {
            if looked_at == SLICE * EXTENTS_MAX {
                return self.relocation.soon(cx.now());
            }
            let columns = placing.columns & self.columns_without(self.relocation.vacate);
            if placing.next >= placing.end || columns == 0 {
                self.relocation.places.pop_front();
                continue;
            }
            looked_at += 1;
            let chain: Vec<u32> = self.table.chain(placing.next).collect();
            for place in chain {
                let chunk = self.table.chunk(self.table.chunk_of(place));
                let is_there = columns & 1 << (chunk.grant.column & 31) != 0;
                if chunk.owner > 0 || chunk.is_closed || is_there || super::Table::is_mark(place) {
                    continue;
                }
                match self.begin_move(cx, place, columns) {
                    Started::Yes => {}
                    Started::Held | Started::NotNow => self.relocation.unplaced += 1,
                    Started::NoRoom if self.is_refused_grant(cx.now()) => {
                        self.relocation.unplaced += 1;
                    }
                    Started::NoRoom => return self.relocation.later(cx.now()),
                    Started::Full => return,
                }
            }
            if let Some(placing) = self.relocation.places.front_mut() {
                placing.next += 1;
            }
        }
    }

    /// Extents, marks and headers on columns that are to be empty.
    pub(super) fn to_move(&self) -> u64 {
        let own = self.own.iter().filter(|it| **it != NONE);
        let chunks = own.map(|number| self.table.chunk(*number));
        let vacated = chunks.filter(|chunk| self.relocation.is_vacated(chunk.grant.column));
        let count = vacated.map(|chunk| {
            let headers = u64::from(self.setup.geometry.has_headers(chunk.index));
            u64::from(chunk.mapped) + chunk.marks.len() as u64 + headers
        });
        count.sum()
    }

    /// Nothing moves any more, because the layout ends or the disk is detached.
    pub(super) fn stop_relocation(&mut self, cx: &mut LayoutCx<'_>) {
        self.cancel_moves(cx);
        self.relocation.is_due = true;
        self.give_up_home(cx);
        if self.relocation.has_readers == Readers::Coming
            && !self.waiters.contains(&Waiter::Readers)
            && !self.is_committing_readers()
        {
            self.relocation.has_readers = Readers::Yes;
            cx.ordered(Err(OrderRefusal::Unrecorded));
        }
    }
}
