//! Copies between the members of a pool's columns: what may differ after a crash, and what a member lacks that is back.
//!
//! Each disk copies its own grants. A copy is a read of a range with [`Flags::RESYNC`] to the column, which reads it from one
//! member and writes it to the others. After a crash the hot extents are copied and flushed before the disk opens. While a
//! member syncs, every extent that is not free is copied in the background, then the column is flushed: from there on the
//! member has everything of the disk.
//!
//! # Always true
//! - W2 no byte of a hot extent is read after a crash before all members in sync have the same there, durably
//! - W3 a member that syncs has every extent of the disk that is not free, its headers and roots included, before that is
//!   reported

use super::records::Space;
use super::setup::Standing;
use super::{EQUAL, EXTENTS_MAX, Intent, OPEN_INTENT, OPEN_REPAIR, Pool, REBUILD, SUB_BLOCKS};
use crate::block::BLOCK;
use crate::layout::{BlockOutcome, LayoutCx, Refusal, SubIo, Target};
use crate::request::{Data, Flags, Op, Outcome};
use crate::units::{Span, Time};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Copies at once. Origin: chosen; they keep a member busy, and leave most of the arena to guests.
const WINDOW: u32 = 4;

/// What is made equal before the disk opens.
#[derive(Default)]
pub(super) struct Equal {
    stage: Stage,
    /// Blocks that are written to members that lack them.
    repairs: u32,
    /// What is left to copy: places, and the sub-block that is next of the last one.
    places: Vec<u32>,
    next: u32,
    in_flight: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Roots and headers are being read.
    #[default]
    Headers,
    Intents,
    Copies,
    Flush,
}

/// A column with a member that syncs.
pub(super) struct Rebuild {
    column: Target,
    /// The next piece: the number of the grant, the extent in it, and its sub-block.
    next: (u32, u32, u32),
    in_flight: u32,
    is_flushing: bool,
    /// When the next piece may be copied.
    at: Option<Time>,
}

/// The columns that are rebuilt.
#[derive(Default)]
pub(super) struct Rebuilds {
    all: Vec<Rebuild>,
    /// Bytes a second that are copied at most; 0 for as many as possible.
    rate: u64,
}

impl Rebuilds {
    pub(super) fn deadline(&self) -> Option<Time> {
        self.all.iter().filter_map(|rebuild| rebuild.at).min()
    }
}

impl Pool {
    /// Goes on with opening after everything that was being read is there. Returns whether the disk can open.
    pub(super) fn make_equal(&mut self, cx: &mut LayoutCx<'_>) -> bool {
        loop {
            let is_writer = self.intent.is_used && self.view.is_none();
            let Some(opening) = self.opening() else {
                return false;
            };
            let equal = &mut opening.equal;
            if equal.repairs > 0 || equal.in_flight > 0 {
                if equal.stage == Stage::Copies {
                    self.copy_equal(cx);
                }
                return false;
            }
            match equal.stage {
                _ if !is_writer => return true,
                Stage::Headers => {
                    equal.stage = Stage::Intents;
                    let indexes = self.intent_indexes();
                    for index in &indexes {
                        self.read_intent(cx, *index);
                    }
                    if !indexes.is_empty() {
                        return false;
                    }
                }
                Stage::Intents => {
                    equal.stage = Stage::Copies;
                    let places = self.unequal_places();
                    if places.is_empty() {
                        return true;
                    }
                    if let Some(opening) = self.opening() {
                        opening.equal.places = places;
                    }
                    self.copy_equal(cx);
                }
                Stage::Copies if equal.places.is_empty() => {
                    equal.stage = Stage::Flush;
                    self.flush_equal(cx);
                }
                Stage::Copies => self.copy_equal(cx),
                Stage::Flush => return true,
            }
        }
    }

    /// The hot places that have something, on columns of which several members are read.
    fn unequal_places(&self) -> Vec<u32> {
        let mut places = self.hot_places();
        places.retain(|place| {
            let record = self.table.at(*place);
            let target = self.table.chunk(place / EXTENTS_MAX).target;
            let members = self.setup.members.get(usize::from(target.0));
            let in_sync = members.into_iter().flatten();
            let in_sync = in_sync.filter(|it| **it == Standing::InSync).count();
            record.space().is_none() && in_sync > 1
        });
        places
    }

    fn read_intent(&mut self, cx: &mut LayoutCx<'_>, index: u32) {
        let chunk = self.table.chunk(self.own[index as usize]);
        let (target, at) = (chunk.target, chunk.at);
        let at = [0, 1].map(|place| at + self.setup.geometry.intent_at(place));
        self.read_pair(cx, OPEN_INTENT, 0, index, target, at);
    }

    /// A place of a record was read.
    pub(super) fn intent_read(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: BlockOutcome) {
        let Some((_, index, pair)) = self.pair_read(tag, outcome) else {
            return;
        };
        let chunk = self.table.chunk(self.own[index as usize]);
        let (target, at, life) = (chunk.target, chunk.at, chunk.grant.life);
        if let Some(fault) = pair.failed {
            return self.refuse(cx, Refusal::Failed(target, fault));
        }
        let owner = self.owner(life);
        let sequence = |it: &Intent| {
            let is_own = it.owner == owner && it.index == index;
            is_own.then_some(it.sequence)
        };
        let is_named = |block: &[u8]| Intent::names(&owner, block);
        let found = pair.judge(is_named, Intent::decode, sequence);
        if found.is_newer {
            return self.refuse(cx, Refusal::Newer(target));
        }
        if let Some((record, place)) = &found.newest {
            let is_newest = |block: &[u8]| Intent::decode(block).as_ref() == Ok(record);
            let at = at + self.setup.geometry.intent_at(*place);
            self.repair(cx, pair.lacking(*place, is_newest), target, at);
        }
        self.load_intent(index, found.newest, found.is_damaged);
        self.go_on_opening(cx);
    }

    /// Writes the newest block of a pair to the members that lack it: nothing relies on it before.
    pub(super) fn repair(
        &mut self,
        cx: &mut LayoutCx<'_>,
        lacking: Option<&[u8; BLOCK]>,
        target: Target,
        at: u64,
    ) {
        let Some(block) = lacking.filter(|_| self.view.is_none()) else {
            return;
        };
        cx.write_block(OPEN_REPAIR, target, at, Box::new(*block));
        if let Some(opening) = self.opening() {
            opening.equal.repairs += 1;
        }
    }

    /// Such a block was written.
    pub(super) fn repaired(&mut self, cx: &mut LayoutCx<'_>, outcome: Outcome) {
        let Some(opening) = self.opening() else {
            return;
        };
        opening.equal.repairs -= 1;
        match outcome {
            Ok(()) => self.go_on_opening(cx),
            Err(fault) => self.refuse(cx, Refusal::Failed(Target(0), fault)),
        }
    }

    /// Copies more of the hot extents.
    fn copy_equal(&mut self, cx: &mut LayoutCx<'_>) {
        while let Some(opening) = self.opening()
            && opening.equal.in_flight < WINDOW
            && let Some(place) = opening.equal.places.last().copied()
        {
            let sub_block = opening.equal.next;
            opening.equal.next = (sub_block + 1) % SUB_BLOCKS;
            if opening.equal.next == 0 {
                opening.equal.places.pop();
            }
            opening.equal.in_flight += 1;
            let sub = self.copy_of(place, sub_block, false);
            cx.issue(EQUAL, sub);
        }
    }

    fn flush_equal(&mut self, cx: &mut LayoutCx<'_>) {
        let targets = (0..32).filter(|target| self.targets >> target & 1 == 1);
        let targets: Vec<Target> = targets.map(Target).collect();
        for target in targets {
            if let Some(opening) = self.opening() {
                opening.equal.in_flight += 1;
            }
            cx.issue(EQUAL, flush_of(target, Flags::NONE));
        }
    }

    /// Something that is made equal has ended.
    pub(super) fn equal_done(&mut self, cx: &mut LayoutCx<'_>, outcome: Outcome) {
        let Some(opening) = self.opening() else {
            return;
        };
        opening.equal.in_flight -= 1;
        match outcome {
            Ok(()) => self.go_on_opening(cx),
            Err(fault) => self.refuse(cx, Refusal::Failed(Target(0), fault)),
        }
    }

    /// A sub-block at a place is made equal on all members.
    fn copy_of(&self, place: u32, sub_block: u32, background: bool) -> SubIo {
        let chunk = self.table.chunk(place / EXTENTS_MAX);
        let extent = u64::from(place % EXTENTS_MAX) << self.shifts.1;
        let len = 1 << self.shifts.0;
        SubIo {
            target: chunk.target,
            op: Op::Read,
            flags: Flags::RESYNC,
            offset: chunk.at + extent + u64::from(sub_block) * len,
            len,
            data: Data::NONE,
            background,
        }
    }

    /// The columns of the setup that have a member that syncs are rebuilt.
    pub(super) fn begin_rebuilds(&mut self) {
        let syncs = |members: &Vec<Standing>| members.contains(&Standing::Syncing);
        let columns = (0..).map(Target).zip(&self.setup.members);
        let columns = columns.filter(|(_, members)| syncs(members));
        // A view writes nothing: its disk copies.
        let columns = columns.filter(|_| self.view.is_none());
        let columns: Vec<Target> = columns.map(|(column, _)| column).collect();
        columns.into_iter().for_each(|it| self.begin_rebuild(it));
    }

    /// A column has a member that syncs from now on: the disk is copied to it.
    pub(super) fn begin_rebuild(&mut self, column: Target) {
        self.rebuilds
            .all
            .retain(|it| it.column != column || it.in_flight > 0);
        let rebuild = Rebuild {
            column,
            next: (0, 0, 0),
            in_flight: 0,
            is_flushing: false,
            at: None,
        };
        match self.rebuilds.all.iter_mut().find(|it| it.column == column) {
            // From the beginning, once what is under way has ended.
            Some(known) => (known.next, known.is_flushing) = ((0, 0, 0), false),
            None => self.rebuilds.all.push(rebuild),
        }
    }

    /// Bytes a second that are copied at most.
    pub(super) fn set_rate(&mut self, cx: &mut LayoutCx<'_>, rate: u64) {
        self.rebuilds.rate = rate;
        self.rebuilds.all.iter_mut().for_each(|it| it.at = None);
        self.rebuild_on(cx);
    }

    /// Goes on with rebuilds.
    pub(super) fn rebuild_on(&mut self, cx: &mut LayoutCx<'_>) {
        for nth in 0..self.rebuilds.all.len() {
            self.copy_next(cx, nth);
        }
    }

    /// Time has passed: what waited for its rate goes on.
    pub(super) fn rebuilds_due(&mut self, now: Time) {
        for rebuild in &mut self.rebuilds.all {
            rebuild.at.take_if(|at| *at <= now);
        }
    }

    fn copy_next(&mut self, cx: &mut LayoutCx<'_>, nth: usize) {
        loop {
            let rebuild = &self.rebuilds.all[nth];
            let may = rebuild.in_flight < WINDOW && !rebuild.is_flushing && rebuild.at.is_none();
            if !may || self.paused || !self.is_open() {
                return;
            }
            let column = rebuild.column;
            let tag = REBUILD | u64::from(column.0);
            match self.next_copy(nth) {
                Some((place, sub_block)) => {
                    let sub = self.copy_of(place, sub_block, true);
                    let rebuild = &mut self.rebuilds.all[nth];
                    rebuild.in_flight += 1;
                    if let Some(nanos) = (sub.len * 1_000_000_000).checked_div(self.rebuilds.rate) {
                        rebuild.at = Some(cx.now() + Span::from_nanos(nanos.max(1)));
                    }
                    cx.issue(tag, sub);
                }
                None if self.rebuilds.all[nth].in_flight > 0 => return,
                None => {
                    let rebuild = &mut self.rebuilds.all[nth];
                    (rebuild.is_flushing, rebuild.in_flight) = (true, 1);
                    return cx.issue(tag, flush_of(column, Flags::RESYNC));
                }
            }
        }
    }

    /// The next piece of a rebuild.
    fn next_copy(&mut self, nth: usize) -> Option<(u32, u32)> {
        let extents = self.setup.geometry.extents;
        let Rebuild { column, next, .. } = &mut self.rebuilds.all[nth];
        while next.0 < self.table.chunks_end() {
            let (number, extent, sub_block) = *next;
            let chunk = self.table.get(number);
            let chunk = chunk.filter(|it| it.owner == 0 && it.target == *column);
            let place = number * EXTENTS_MAX + extent;
            if chunk.is_none() || extent == extents {
                *next = (number + 1, 0, 0);
            } else if sub_block == SUB_BLOCKS || self.table.at(place).space() == Some(Space::Free) {
                *next = (number, extent + 1, 0);
            } else {
                *next = (number, extent, sub_block + 1);
                return Some((place, sub_block));
            }
        }
        None
    }

    /// A piece of a rebuild was copied, or its column was flushed.
    pub(super) fn rebuild_done(&mut self, cx: &mut LayoutCx<'_>, column: Target, outcome: Outcome) {
        let nth = self.rebuilds.all.iter().position(|it| it.column == column);
        let Some(nth) = nth else {
            return;
        };
        let rebuild = &mut self.rebuilds.all[nth];
        rebuild.in_flight -= 1;
        // The column has reported how it has ended. One that has failed does not copy on.
        if rebuild.is_flushing || outcome.is_err() {
            rebuild.is_flushing = true;
            if rebuild.in_flight == 0 {
                self.rebuilds.all.remove(nth);
            }
            return;
        }
        self.copy_next(cx, nth);
    }
}

fn flush_of(target: Target, flags: Flags) -> SubIo {
    SubIo {
        target,
        op: Op::Flush,
        flags,
        offset: 0,
        len: 0,
        data: Data::NONE,
        background: false,
    }
}
