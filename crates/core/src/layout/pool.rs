//! The pool layout: a disk's extents lie where there was room in a pool, and each belongs to the generation that wrote it.
//!
//! The disk owns grants of the pool's columns. A header of each grant says what is in its extents; a root says which
//! generations there are. What a generation sees of a sub-block is the record that has it in the nearest generation on the way
//! to the root. Where the disk has nothing it reads as zeroes.
//!
//! # Always true
//! - P1 a write that finds no free extent fails with no space, and no other write does
//! - P2 a sub-block's bytes are durable before a header says that the extent has it
//! - P3 a flush flushes the members, then writes the headers that changed, and is answered then
//! - P4 an extent is not used again before a durable header has it no more, and nothing is under way there
//! - P5 an extent reads as zeroes before it is used first; otherwise whole sub-blocks of it are written, and seen afterwards
//! - P6 a sub-block of an older generation is copied before a part of it is written; nobody else writes it meanwhile
//! - P7 a snapshot has what was answered before it, and nothing that comes later
//! - P8 a discard of what an older generation has leaves a mark that hides it
//! - P9 a header counts only if it names the pool, the disk, the grant and its life
//! - P10 of two places of a block the newer valid one counts, and the next version goes over the other
//!
//! # Picture
//! ```text
//!   read  ──> index ──> record that sees all of it ──> One
//!                  └──> several, or none ──> sub-I/Os and zeroes
//!   write ──> index ──> record of this generation ──> One
//!                  └──> none: zeroed extent, record ──> One
//!                  └──> an older one: copy to an extent of this generation, record
//! ```
//!
//! # Source
//! ZFS's birth times and dead blocks, without its tree; the thin target of device-mapper, without its reference counts.

use super::fanout::Fanout;
use super::slots::Slots;
use super::{
    BlockOutcome, Layout, LayoutCx, LayoutIo, LayoutOrder, Map, MemberReport, MemberState,
    OrderRefusal, Ordered, Target,
};
use crate::request::{Data, Fault, Flags, IoId, Op, Outcome};
use crate::units::Time;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
pub use blocks::{Branch, Entry, GENERATIONS_MAX, Header, MARKS_MAX, Owner, Root};
pub use changed::{Changes, Searched};
pub(crate) use column::Column;
use commit::{Commit, Waiter};
use deletion::Deletion;
use forest::{Forest, NO_GENERATION};
use gate::Gate;
use index::NONE;
pub use intent::Intent;
use intent::IntentState;
use open::Opening;
use ops::{Wait, Waiting, Writing};
use records::Table;
use relocate::{Both, Relocation};
use resync::Rebuilds;
use root::RootState;
pub use setup::{
    ANCESTORS_MAX, Ancestor, EXTENTS_MAX, GRANTS_MAX, Generation, GenerationReport, Geometry,
    Grant, MEMBERS_MAX, PoolReport, PoolSetup, SUB_BLOCKS, Standing,
};
use space::SpaceState;
use write::{CopyOf, own_fault};

mod blocks;
mod changed;
mod column;
mod commit;
mod deletion;
mod direct;
mod forest;
mod gate;
mod index;
mod intent;
mod open;
mod ops;
mod read;
mod records;
mod relocate;
mod resync;
mod root;
mod setup;
mod space;
mod write;
mod zeroes;

/// See the module.
pub struct Pool {
    setup: PoolSetup,
    /// In bytes.
    size: u64,
    /// The generation that it only shows.
    view: Option<Generation>,
    state: State,
    /// The number of bytes of a sub-block and of an extent, as powers of two.
    shifts: (u32, u32),
    table: Table,
    forest: Forest,
    /// The numbers of the disk's grants in the table, by index; [`NONE`] if it has none.
    own: Vec<u32>,
    /// Columns that the disk has grants on, one bit for each target.
    targets: u32,
    /// Reads and flushes that are split.
    fanout: Fanout,
    /// What changes the disk, and does not go to one target at once.
    ops: Slots<Writing>,
    waiting: Waiting,
    /// Sub-I/Os of these that are under way.
    pieces: u32,
    /// Parts of these that the disk sees once they have ended.
    copying: Slots<CopyOf>,
    /// Their sub-blocks, by extent.
    locks: BTreeMap<u32, u16>,
    space: SpaceState,
    commit: Option<Commit>,
    /// Who waits for the next commit.
    waiters: Vec<Waiter>,
    /// Marks, with what of them goes once what is in its place is durable: the sub-blocks, and the commit.
    late_marks: BTreeMap<u32, (u16, u64)>,
    root: RootState,
    gate: Gate,
    deletion: Option<Deletion>,
    intent: IntentState,
    rebuilds: Rebuilds,
    relocation: Relocation,
    /// Writes to extents that move.
    both: Slots<Both>,
    /// When something is tried again.
    retry_at: Option<Time>,
    /// After a commit or a root that has failed: nothing in the background needs one before.
    failed_until: Option<Time>,
    /// When work goes on that was interrupted for others.
    step_at: Option<Time>,
    paused: bool,
    /// How often what is left is still committed, while it is paused.
    rest_tries: u8,
    detaching: bool,
    copies: u64,
    headers_written: u64,
}

enum State {
    Opening(Box<Opening>),
    Open,
    Refused,
}

/// What a tag names.
const READ: u64 = 0;
const PIECE: u64 = 1 << 60;
const COPY: u64 = 2 << 60;
const ZERO: u64 = 3 << 60;
const FLUSH: u64 = 4 << 60;
const HEADER: u64 = 5 << 60;
const ROOT: u64 = 6 << 60;
const OPEN_ROOT: u64 = 7 << 60;
const OPEN_HEADER: u64 = 8 << 60;
const EQUAL: u64 = 9 << 60;
const INTENT: u64 = 10 << 60;
const OPEN_INTENT: u64 = 11 << 60;
const OPEN_REPAIR: u64 = 12 << 60;
const REBUILD: u64 = 13 << 60;
/// Parts of a relocation, which a further number tells apart.
const RELOCATE: u64 = 14 << 60;
const HOME_BLOCK: u64 = 15 << 60;
const KIND: u64 = 15 << 60;

fn column_of(tag: u64) -> Target {
    let [column, ..] = tag.to_le_bytes();
    Target(column)
}

fn number(tag: u64) -> u32 {
    let [a, b, c, d, ..] = tag.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The sub-blocks from one on, up to another one that is not among them.
fn bits(from: u32, to: u32) -> u16 {
    let below = |end: u32| u16::try_from((1_u32 << end) - 1).expect("an extent has 16 sub-blocks");
    below(to) & !below(from)
}

/// The runs of sub-blocks that are set: the first one, and the one after the last.
fn runs(wanted: u16) -> impl Iterator<Item = (u32, u32)> {
    let mut left = u32::from(wanted);
    core::iter::from_fn(move || {
        (left != 0).then(|| {
            let first = left.trailing_zeros();
            let end = first + (left >> first).trailing_ones();
            left &= !((1 << end) - 1);
            (first, end)
        })
    })
}

impl Pool {
    /// A disk of a pool, or what one of its generations shows.
    ///
    /// # Panics
    /// Unless [`PoolSetup::check`] agrees.
    pub fn new(setup: PoolSetup, view: Option<Generation>) -> Pool {
        assert_eq!(setup.check(), Ok(()), "checked before");
        let geometry = setup.geometry;
        let (sub_block, extent) = (geometry.sub_block, geometry.extent());
        let [key, _] = setup.disk.as_chunks::<8>().0 else {
            unreachable!("16 bytes are two halves")
        };
        Pool {
            size: setup.size,
            view,
            state: State::Refused,
            shifts: (sub_block.trailing_zeros(), extent.trailing_zeros()),
            table: Table::new(u64::from_le_bytes(*key)),
            forest: Forest::default(),
            own: Vec::new(),
            targets: 0,
            fanout: Fanout::default(),
            ops: Slots::new(),
            waiting: Waiting::default(),
            pieces: 0,
            copying: Slots::new(),
            locks: BTreeMap::new(),
            space: SpaceState::default(),
            commit: None,
            waiters: Vec::new(),
            late_marks: BTreeMap::new(),
            root: RootState::default(),
            gate: Gate::Open,
            deletion: None,
            intent: IntentState::new(setup.members.iter().any(|members| members.len() > 1)),
            rebuilds: Rebuilds::default(),
            relocation: Relocation::default(),
            both: Slots::new(),
            retry_at: None,
            failed_until: None,
            step_at: None,
            paused: false,
            rest_tries: 0,
            detaching: false,
            copies: 0,
            headers_written: 0,
            setup,
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// The extent of the disk that a byte is in.
    #[inline]
    fn extent_at(&self, offset: u64) -> u32 {
        u32::try_from(offset >> self.shifts.1).expect("checked in the setup and when it is resized")
    }

    /// The sub-block of its extent that a byte is in.
    #[inline]
    fn sub_block_at(&self, offset: u64) -> u32 {
        let within = offset & ((1 << self.shifts.1) - 1);
        u32::try_from(within >> self.shifts.0).expect("an extent has 16 sub-blocks")
    }

    /// Where a byte of an extent is, at a place of the table.
    #[inline]
    fn address(&self, place: u32, offset: u64) -> (Target, u64) {
        let chunk = self.table.chunk(place / EXTENTS_MAX);
        let extent = u64::from(place % EXTENTS_MAX) << self.shifts.1;
        let within = offset & ((1 << self.shifts.1) - 1);
        (chunk.target, chunk.at + extent + within)
    }

    /// The sub-blocks of a range inside one extent, one bit each.
    #[inline]
    fn range_bits(&self, offset: u64, len: u64) -> u16 {
        let from = self.sub_block_at(offset);
        let to = self.sub_block_at(offset + len - 1) + 1;
        bits(from, to)
    }

    /// How many bytes from an offset on are in the same extent.
    fn left_of_extent(&self, offset: u64) -> u64 {
        let extent = 1 << self.shifts.1;
        extent - (offset & (extent - 1))
    }

    /// The generation that is written now.
    fn current(&self) -> u16 {
        self.forest.shown()
    }

    /// Goes on with whatever may go on after something has changed.
    fn go_on(&mut self, cx: &mut LayoutCx<'_>) {
        if !self.is_open() || self.view.is_some() {
            return;
        }
        self.refill(cx);
        self.retry(cx, Wait::Space);
        self.refill(cx);
        self.go_through_gate(cx);
        self.delete_on(cx);
        self.relocate(cx);
        self.plan_release(cx);
        self.write_intents(cx);
        self.cool_on(cx);
        self.rebuild_on(cx);
        self.begin_commit(cx);
    }

    /// A buffer of the arena. Mirrored columns below need some of their own.
    fn claim_buffer(&self, cx: &mut LayoutCx<'_>) -> Option<Data> {
        match self.setup.members.is_empty() {
            true => cx.claim(),
            false => cx.claim_above(),
        }
    }

    /// Returns such a buffer.
    fn release_buffer(&self, cx: &mut LayoutCx<'_>, slot: Data) {
        match self.setup.members.is_empty() {
            true => cx.release(slot),
            false => cx.release_above(slot),
        }
    }
}

impl Layout for Pool {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn open(&mut self, cx: &mut LayoutCx<'_>, _usable: u32, _fresh: bool) {
        self.begin_opening(cx);
    }

    fn at_once(&mut self, op: Op, flags: Flags, offset: u64, len: u64) -> Option<(Target, u64)> {
        self.look_up(op, flags, offset, len)
    }

    fn map(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) -> Map {
        match io.op {
            Op::Read => self.map_read(cx, io),
            Op::Write | Op::WriteZeroes | Op::Discard if self.view.is_some() => {
                Map::Done(Err(Fault::ReadOnly))
            }
            Op::Write => {
                let found = match self.direct(io.op, io.flags, io.offset, io.len) {
                    Some(found) if self.heat_at(io.offset) => Some(found),
                    Some(_) => None,
                    None => self.first_write(cx, io),
                };
                match found {
                    Some((target, offset)) => Map::One { target, offset },
                    None => self.take_op(cx, io),
                }
            }
            Op::WriteZeroes | Op::Discard => self.take_op(cx, io),
            Op::Flush if self.view.is_some() => Map::Done(Ok(())),
            Op::Flush => {
                self.waiters.push(Waiter::Io(io.id));
                self.begin_commit(cx);
                Map::Issued
            }
            Op::Extents => self.map_extents(cx, io),
            Op::Prefetch => match self.direct(Op::Read, io.flags, io.offset, io.len) {
                Some((target, offset)) => Map::One { target, offset },
                None => Map::Done(Ok(())),
            },
        }
    }

    fn failed(
        &mut self,
        _cx: &mut LayoutCx<'_>,
        _io: &LayoutIo,
        _target: Target,
        fault: Fault,
        _tries: u8,
    ) -> Map {
        Map::Done(Err(own_fault(fault)))
    }

    fn done(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: Outcome) {
        match tag & KIND {
            READ => {
                if let Some((io, outcome)) = self.fanout.end(tag, outcome) {
                    cx.answer(io, outcome);
                }
            }
            PIECE => self.piece_done(cx, tag, outcome),
            COPY => self.copy_done(cx, tag, outcome),
            ZERO => self.zeroed(cx, number(tag), outcome),
            EQUAL => self.equal_done(cx, outcome),
            REBUILD => self.rebuild_done(cx, column_of(tag), outcome),
            RELOCATE => self.relocation_done(cx, tag, outcome),
            _ => self.flushed(cx, outcome),
        }
    }

    fn block_done(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: BlockOutcome) {
        match tag & KIND {
            HEADER => self.header_written(cx, number(tag), outcome.map(|_| ())),
            ROOT => self.root_written(cx, outcome.map(|_| ())),
            INTENT => self.intent_written(cx, number(tag), outcome.map(|_| ())),
            OPEN_REPAIR => self.repaired(cx, outcome.map(|_| ())),
            OPEN_INTENT => self.intent_read(cx, tag, outcome),
            HOME_BLOCK => self.home_block_written(cx, outcome.map(|_| ())),
            OPEN_ROOT => self.root_read(cx, tag, outcome),
            _ => self.header_read(cx, tag, outcome),
        }
    }

    fn fenced(&mut self, cx: &mut LayoutCx<'_>) {
        self.space.fence_done();
        self.release_ready(cx);
        self.go_on(cx);
    }

    fn arena_ready(&mut self, cx: &mut LayoutCx<'_>) {
        self.retry(cx, Wait::Slot);
        self.go_on(cx);
    }

    fn deadline(&self) -> Option<Time> {
        let timed = [
            self.retry_at,
            self.failed_until,
            self.step_at,
            self.space.commit_at,
            self.intent.cool_at,
            self.rebuilds.deadline(),
            self.relocation.at,
        ];
        timed.into_iter().flatten().min()
    }

    fn tick(&mut self, cx: &mut LayoutCx<'_>) {
        let now = cx.now();
        if self.step_at.take_if(|at| *at <= now).is_some() {
            self.retry(cx, Wait::Step);
        }
        self.failed_until.take_if(|at| *at <= now);
        self.relocation.tick(now);
        let retries = self.retry_at.take_if(|at| *at <= now).is_some();
        if retries {
            self.space.may_want_again();
        }
        let commits = self.space.commit_at.take_if(|at| *at <= now).is_some();
        if commits && !self.paused {
            self.waiters.push(Waiter::Nobody);
        }
        if self.intent.cool_at.take_if(|at| *at <= now).is_some() {
            self.cool(cx);
        }
        self.rebuilds_due(now);
        self.go_on(cx);
    }

    fn order(
        &mut self,
        cx: &mut LayoutCx<'_>,
        order: LayoutOrder,
    ) -> Result<Ordered, OrderRefusal> {
        if let LayoutOrder::Standing { member, .. } = order {
            if self.view.is_none() {
                self.begin_rebuild(member);
            }
            self.go_on(cx);
            return Ok(Ordered::Now);
        }
        if !self.is_open() {
            return Err(OrderRefusal::NotOpen);
        }
        if self.view.is_some() && order.is_of_pool() {
            return Err(OrderRefusal::ReadOnly);
        }
        match order {
            LayoutOrder::Grant { index, grant } => self.add_grant(cx, index, grant),
            LayoutOrder::NoSpace => {
                self.no_space(cx);
                Ok(Ordered::Now)
            }
            LayoutOrder::SpaceAvailable => {
                self.space_available(cx);
                Ok(Ordered::Now)
            }
            LayoutOrder::TakeSnapshot => self.order_snapshot(cx),
            LayoutOrder::RollBack(to) => self.order_roll_back(cx, to),
            LayoutOrder::DeleteGeneration(gone) => self.order_deletion(cx, gone),
            LayoutOrder::Vacate { columns } => self.order_vacate(cx, columns),
            LayoutOrder::Place {
                extent,
                count,
                columns,
            } => self.order_place(cx, extent, count, columns),
            LayoutOrder::Readers(reads) => self.order_readers(cx, reads),
            LayoutOrder::HomeMoved { from, to } => self.order_home_moved(cx, from, to),
            LayoutOrder::AddMember => self.add_column(),
            LayoutOrder::Hold => self.order_hold(cx),
            LayoutOrder::Go => self.order_go(cx),
            LayoutOrder::Rate(rate) => {
                self.set_rate(cx, rate);
                Ok(Ordered::Now)
            }
            _ => Err(OrderRefusal::NotRedundant),
        }
    }

    fn resize(&mut self, _cx: &mut LayoutCx<'_>, size: u64) {
        self.size = size.min(u64::from(u32::MAX) << self.shifts.1);
        self.setup.size = self.size;
    }

    fn report(&self, members: &mut Vec<MemberReport>) {
        let targets = self.setup.columns.iter().map(|it| it.0 + 1).max();
        let member = MemberReport {
            state: MemberState::InSync,
            is_tried: false,
            in_flight: 0,
            faults: 0,
            copied: 0,
            to_copy: 0,
        };
        members.extend((0..targets.unwrap_or(0)).map(|_| member));
    }

    fn pooled(&self) -> Option<PoolReport> {
        let own = self.table.chunks().filter(|(_, chunk)| chunk.owner == 0);
        let (mut mapped, mut free, mut grants) = (0, 0, 0);
        for (_, chunk) in own {
            mapped += u64::from(chunk.mapped);
            free += u64::from(chunk.free);
            grants += 1;
        }
        let generations = self.forest.own().map(|place| {
            let member = self.forest.at(place);
            let parent = (member.parent != NO_GENERATION).then(|| self.forest.at(member.parent));
            GenerationReport {
                generation: member.number,
                parent: parent
                    .filter(|parent| parent.owner == 0)
                    .map(|it| it.number),
                extents: member.extents,
                is_going: member.is_going,
            }
        });
        let is_known = self.is_open();
        Some(PoolReport {
            is_view: self.view.is_some(),
            mapped,
            zeroed: self.space.zeroed() as u64,
            free,
            releasing: self.space.releasing() as u64,
            moving: self.relocation.moves.filling(),
            moved: self.relocation.moved,
            to_move: self.to_move(),
            held: self.relocation.held(),
            unplaced: self.relocation.unplaced(),
            grants,
            current: match is_known {
                true => self.forest.at(self.current()).number,
                false => Generation(0),
            },
            generations: generations.collect(),
            copies: self.copies,
            headers_written: self.headers_written,
            hot: self.hot_extents(),
            waiting: u32::try_from(self.waiting.of(Wait::Space)).unwrap_or(u32::MAX),
        })
    }

    fn find_changes(
        &self,
        from: Generation,
        to: Generation,
        changes: &mut Changes,
    ) -> Option<Searched> {
        self.find_changes_between(from, to, changes)
    }

    fn taken(&self, ios: &mut Vec<IoId>) {
        let waiting = self.waiting.all().map(|op| self.ops.peek(op).io.id);
        ios.extend(waiting);
    }

    fn abandon(&mut self, cx: &mut LayoutCx<'_>, ios: &[IoId]) {
        let gone: Vec<u32> = self.waiting.all().collect();
        for op in gone {
            if ios.contains(&self.ops.peek(op).io.id) {
                self.waiting.remove(op);
                self.fail(cx, op, Fault::Gone);
            }
        }
    }

    fn pause(&mut self, cx: &mut LayoutCx<'_>) {
        self.stop_relocation(cx);
        // The shard asks again whenever nothing is under way.
        if !core::mem::replace(&mut self.paused, true) {
            self.commit_rest(cx);
        }
    }

    fn resume(&mut self, cx: &mut LayoutCx<'_>) {
        self.paused = false;
        self.go_on(cx);
    }

    fn detaching(&mut self, cx: &mut LayoutCx<'_>) {
        self.detaching = true;
        self.stop_relocation(cx);
        self.give_up_gate(cx);
        if self.is_exhausted() {
            for op in self.waiting.take(Wait::Space) {
                self.fail(cx, op, Fault::Gone);
            }
        }
    }

    fn close(&mut self, cx: &mut LayoutCx<'_>) {
        self.paused = true;
        self.cool_all();
        self.stop_relocation(cx);
        self.commit_rest(cx);
    }
}

#[cfg(test)]
mod tests;
