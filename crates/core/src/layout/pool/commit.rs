//! Commits of a pool's disk: its members are flushed, and then the headers that have changed are written.
//!
//! One commit is under way at a time; flushes that come meanwhile share the next one. The headers are put together when it
//! begins: all bytes that they speak of were with the members then.
//!
//! # Always true
//! - a header is written after a flush of every member that the disk is on, which began after it was put together
//! - a header that was not written stays to be written, in the same place; nobody was told that it is durable

use super::blocks::{Entry, Header, Owner};
use super::records::{Space, Table};
use super::setup::{EXTENTS_MAX, Generation};
use super::{FLUSH, HEADER, NONE, Pool};
use crate::block::BLOCK;
use crate::layout::{LayoutCx, SubIo, Target};
use crate::request::{Data, Fault, Flags, IoId, Op, Outcome};
use crate::units::Span;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Headers that are written at once.
const WRITES: usize = 16;
/// Headers that may be to be written: more of them wait. Origin: chosen; as blocks they take 4 MiB.
const DIRTY_MAX: usize = 1024;
/// How long after a failure it is tried again, if nobody flushes before.
const AGAIN_AFTER: Span = Span::from_secs(1);

/// How often it is tried to leave everything durable when the layout ends. Origin: chosen; a fault that stays is left.
const REST_TRIES: u8 = 3;

/// Who waits for a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiter {
    /// A flush, or a write with FUA.
    Io(IoId),
    /// A snapshot.
    Gate,
    /// The deletion of a generation.
    Deletion,
    /// Extents that become cold.
    Intent,
    /// Extents whose new places are to be durable.
    Moves,
    /// Readers of frozen generations.
    Readers,
    Nobody,
}

/// See the module.
pub(super) struct Commit {
    waiters: Vec<Waiter>,
    /// Flushes, or headers, that are under way.
    left: usize,
    outcome: Outcome,
    /// Those that are not under way yet.
    headers: Vec<Pending>,
    /// Those that are.
    written: Vec<(u32, u64)>,
    is_flushed: bool,
}

struct Pending {
    chunk: u32,
    /// What it was then ([`HeaderState::changed`](super::records::HeaderState)).
    changed: u64,
    block: Box<[u8; BLOCK]>,
}

impl Pool {
    /// Whether more headers are to be written than may be.
    pub(super) fn has_too_many_dirty(&self) -> bool {
        self.table.dirty() >= DIRTY_MAX
    }

    /// Begins a commit if anybody waits for one and none is under way.
    pub(super) fn begin_commit(&mut self, cx: &mut LayoutCx<'_>) {
        let is_idle = self.commit.is_none() && !self.is_moving_home();
        if !is_idle || self.waiters.is_empty() || !self.is_open() {
            return;
        }
        if self.root.is_doubtful {
            return self.repair_root(cx);
        }
        let waiters = core::mem::take(&mut self.waiters);
        self.space.commit_begun();
        self.space.commit_at = None;
        let dirty = self.table.take_dirty();
        let headers = dirty.into_iter().map(|chunk| self.pending(chunk)).collect();
        let targets = (0..32).filter(|target| self.targets >> target & 1 == 1);
        let targets: Vec<Target> = targets.map(Target).collect();
        self.commit = Some(Commit {
            waiters,
            left: targets.len(),
            outcome: Ok(()),
            headers,
            written: Vec::new(),
            is_flushed: false,
        });
        for target in &targets {
            let sub = SubIo {
                target: *target,
                op: Op::Flush,
                flags: Flags::NONE,
                offset: 0,
                len: 0,
                data: Data::NONE,
                background: false,
            };
            cx.issue(FLUSH, sub);
        }
        if targets.is_empty() {
            self.end_commit(cx);
        }
    }

    /// Whether the commit that is under way lets readers in.
    pub(super) fn is_committing_readers(&self) -> bool {
        let commit = self.commit.as_ref();
        commit.is_some_and(|commit| commit.waiters.contains(&Waiter::Readers))
    }

    /// A header as it has to be written now.
    fn pending(&mut self, number: u32) -> Pending {
        let header = self.table.header_mut(number);
        header.sequence += 1;
        let (sequence, changed) = (header.sequence, header.changed);
        let chunk = self.table.chunk(number);
        let entry_of = |place: u32, sub_blocks: u16| {
            let record = self.table.at(place);
            match record.extent == NONE || sub_blocks == 0 {
                true => Entry::default(),
                false => Entry {
                    extent: record.extent,
                    generation: self.number_of(record.generation),
                    sub_blocks,
                },
            }
        };
        let entry = |place: u32| {
            let record = self.table.at(place);
            match self.relocation.moves.announced_at(place) {
                Some((from, copied)) if record.space() == Some(Space::Moving) => {
                    entry_of(from, copied)
                }
                _ => entry_of(place, record.bits),
            }
        };
        let extents = number * EXTENTS_MAX..number * EXTENTS_MAX + self.setup.geometry.extents;
        let coming = self.relocation.moves.marks_of(number);
        let marks = chunk.marks.iter().copied().chain(coming).map(entry);
        let header = Header {
            owner: self.owner(chunk.grant.life),
            sequence,
            index: chunk.index,
            column: chunk.grant.column,
            number: chunk.grant.number,
            extents: extents.map(entry).collect(),
            marks: marks.filter(|mark| !mark.is_free()).collect(),
        };
        Pending {
            chunk: number,
            changed,
            block: header.encode(),
        }
    }

    fn number_of(&self, generation: u16) -> Generation {
        self.forest.at(generation).number
    }

    /// Whose blocks are this disk's, in a grant of this life.
    pub(super) fn owner(&self, life: u64) -> Owner {
        Owner {
            pool: self.setup.pool,
            disk: self.setup.disk,
            life,
        }
    }

    /// A member was flushed.
    pub(super) fn flushed(&mut self, cx: &mut LayoutCx<'_>, outcome: Outcome) {
        let Some(commit) = &mut self.commit else {
            return;
        };
        commit.left -= 1;
        commit.outcome = commit.outcome.and(outcome);
        if commit.left == 0 {
            commit.is_flushed = true;
            self.write_headers(cx);
        }
    }

    /// Writes the next headers, or ends the commit.
    fn write_headers(&mut self, cx: &mut LayoutCx<'_>) {
        while let Some(commit) = &mut self.commit
            && commit.outcome.is_ok()
            && commit.left < WRITES
            && let Some(next) = commit.headers.pop()
        {
            commit.left += 1;
            commit.written.push((next.chunk, next.changed));
            let chunk = self.table.chunk(next.chunk);
            let (target, at) = self.header_at(chunk.index, chunk.header.next_place);
            cx.write_block(HEADER | u64::from(next.chunk), target, at, next.block);
        }
        if self.commit.as_ref().is_some_and(|commit| commit.left == 0) {
            self.end_commit(cx);
        }
    }

    /// Where a place of the header of one of the disk's grants is.
    fn header_at(&self, index: u32, place: u8) -> (Target, u64) {
        let geometry = &self.setup.geometry;
        let with = self.own[geometry.header_of(index) as usize];
        let chunk = self.table.chunk(with);
        (chunk.target, chunk.at + geometry.header_at(index, place))
    }

    /// A header was written.
    pub(super) fn header_written(&mut self, cx: &mut LayoutCx<'_>, chunk: u32, outcome: Outcome) {
        let Some(commit) = &mut self.commit else {
            return;
        };
        let Some(nth) = commit.written.iter().position(|(it, _)| *it == chunk) else {
            return;
        };
        let (_, changed) = commit.written.swap_remove(nth);
        commit.left -= 1;
        match outcome {
            Ok(()) => {
                let header = self.table.header_mut(chunk);
                header.next_place = 1 - header.next_place;
                header.written = changed;
                self.headers_written += 1;
            }
            Err(fault) => {
                commit.outcome = commit.outcome.and(Err(fault));
                self.table.list_again(chunk);
            }
        }
        self.write_headers(cx);
    }

    fn end_commit(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(commit) = self.commit.take() else {
            return;
        };
        for pending in &commit.headers {
            self.table.list_again(pending.chunk);
        }
        let outcome = commit.outcome.map_err(|fault| match fault {
            Fault::NoSpace => Fault::Io,
            fault => fault,
        });
        if outcome.is_ok() {
            self.failed_until = None;
            self.space.commit_done();
            self.drop_late_marks();
            self.release_ready(cx);
        } else {
            self.put_off(cx, &commit.waiters);
        }
        self.answer_waiters(cx, commit.waiters, outcome);
        self.go_on(cx);
        if self.paused {
            self.commit_left(cx);
        }
    }

    /// Nothing could be made durable: what needs that in the background is tried again after some time.
    fn put_off(&mut self, cx: &LayoutCx<'_>, waiters: &[Waiter]) {
        let again = cx.now() + AGAIN_AFTER;
        self.failed_until = Some(again);
        if waiters.contains(&Waiter::Nobody) || self.space.has_unwritten() {
            self.space.commit_at = Some(again);
        }
    }

    fn answer_waiters(&mut self, cx: &mut LayoutCx<'_>, waiters: Vec<Waiter>, outcome: Outcome) {
        for waiter in waiters {
            match waiter {
                Waiter::Io(io) => cx.answer(io, outcome),
                Waiter::Gate => self.gate_committed(cx, outcome),
                Waiter::Deletion => self.deletion_committed(cx, outcome),
                Waiter::Intent => self.intent_committed(cx, outcome),
                Waiter::Moves => self.moves_committed(cx, outcome),
                Waiter::Readers => self.readers_committed(cx, outcome),
                Waiter::Nobody => {}
            }
        }
        match outcome {
            Ok(()) => self.retry(cx, super::Wait::Commit),
            Err(fault) => {
                for op in self.waiting.take(super::Wait::Commit) {
                    self.fail(cx, op, fault);
                }
            }
        }
    }

    /// A root that had failed was written over, or could not be: then nothing can be made durable.
    pub(super) fn root_repaired(&mut self, cx: &mut LayoutCx<'_>, outcome: Outcome) {
        if outcome.is_err() {
            let waiters = core::mem::take(&mut self.waiters);
            self.put_off(cx, &waiters);
            self.answer_waiters(cx, waiters, outcome);
        }
    }

    /// Marks do not hide any more what is durable at a place of the same generation.
    fn drop_late_marks(&mut self) {
        let late = core::mem::take(&mut self.late_marks);
        for (mark, (bits, commit)) in late {
            match self.space.is_committed(commit) {
                true => self.trim_mark(mark, bits),
                false => drop(self.late_marks.insert(mark, (bits, commit))),
            }
        }
    }

    /// These sub-blocks of a mark go, if a place has them.
    fn trim_mark(&mut self, mark: u32, bits: u16) {
        let record = *self.table.at(mark);
        let places = self.table.chain(record.extent);
        let places = places.filter(|place| !Table::is_mark(*place));
        let places = places.map(|place| self.table.at(place));
        let own = places.filter(|it| it.generation == record.generation);
        let gone = own.fold(0, |all, it| all | it.bits) & bits & record.bits;
        if gone == record.bits {
            self.drop_mark(mark);
        } else if gone != 0 {
            self.table.touch(mark);
            let left = record.bits & !gone;
            self.table.relabel(mark, record.generation, left);
        }
    }

    /// Writes what would be lost without a flush, because the layout ends.
    pub(super) fn commit_rest(&mut self, cx: &mut LayoutCx<'_>) {
        self.rest_tries = REST_TRIES;
        self.commit_left(cx);
    }

    fn commit_left(&mut self, cx: &mut LayoutCx<'_>) {
        let is_left = self.table.dirty() > 0 || self.root.is_doubtful;
        if is_left && self.is_open() && self.waiters.is_empty() && self.rest_tries > 0 {
            self.rest_tries -= 1;
            self.waiters.push(Waiter::Nobody);
        }
        self.begin_commit(cx);
    }
}
