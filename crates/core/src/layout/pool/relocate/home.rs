//! The home of headers: a grant whose first extent has headers and roots moves as a whole, once nothing else is in it.
//!
//! Its metadata is copied to an empty grant, and the catalog exchanges the indexes of the two in one commit. No header and no root
//! is written meanwhile, so whichever of the two the catalog names has all of them.
//!
//! # Always true
//! - from the first byte that is copied to the order that ends it, nothing is committed
//! - before the catalog is asked, the copy is durable
//! - once it was asked, only its order goes on: nobody else knows which grant counts
//!
//! # Picture
//! ```text
//!   chosen ──> copy 16 pieces ──> root, with the life of its new grant ──> flush ──notice──> asked ──order──> exchanged
//!      └───────────┴─────────────────────┴───────────────────────────────────┴──fault──> given up
//! ```

use super::super::records::Space;
use super::super::root::Change;
use super::super::{HOME_BLOCK, NONE, Pool, SUB_BLOCKS};
use super::HOME;
use crate::layout::{LayoutCx, LayoutNotice, OrderRefusal, Ordered, SubIo};
use crate::request::{Data, Flags, Op, Outcome};

/// See the module.
pub(in crate::layout::pool) struct Home {
    /// The numbers of the grants in the table.
    from: u32,
    to: u32,
    stage: Stage,
    slot: Option<Data>,
    is_given_up: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has no buffer for the next piece.
    Waiting(u32),
    Reading(u32),
    Writing(u32),
    /// The root, or the record of hot extents, with the life of the new grant.
    Root,
    Intent,
    Flush,
    Asked,
}

impl Pool {
    /// Whether a grant takes part in a change of a home.
    pub(super) fn is_home(&self, number: u32) -> bool {
        let home = self.relocation.home.as_ref();
        home.is_some_and(|it| it.from == number || it.to == number)
    }

    /// Whether headers and roots are being copied: none is written meanwhile.
    pub(in crate::layout::pool) fn is_moving_home(&self) -> bool {
        self.relocation.home.is_some()
    }

    /// Begins to move the headers in a grant where nothing else is.
    pub(super) fn begin_home(&mut self, cx: &mut LayoutCx<'_>, from: u32) {
        // Whoever begins to read finds the headers where the catalog said.
        let has_readers = self.relocation.has_readers != super::Readers::No;
        if self.relocation.home.is_some() || has_readers {
            return;
        }
        let own = self.own.iter().copied().filter(|it| *it != NONE);
        let fits = |number: &u32| {
            let chunk = self.table.chunk(*number);
            let has_headers = self.setup.geometry.has_headers(chunk.index);
            !chunk.is_closed && !has_headers && self.is_empty_grant(*number)
        };
        let mut own = own.filter(fits);
        let Some(to) = own.next() else {
            if !self.is_refused_grant(cx.now()) {
                self.want_grant(cx);
            }
            return;
        };
        drop(own);
        self.close_grant(to, true);
        self.relocation.home = Some(Home {
            from,
            to,
            stage: Stage::Waiting(0),
            slot: None,
            is_given_up: false,
        });
        self.copy_home(cx);
    }

    /// Copies the next piece.
    pub(in crate::layout::pool) fn copy_home(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(home) = &self.relocation.home else {
            return;
        };
        let Stage::Waiting(piece) = home.stage else {
            return;
        };
        let from = home.from;
        if home.is_given_up {
            return self.end_home(cx);
        }
        // What is being written ends first.
        if self.commit.is_some() || self.root.is_busy() || self.is_writing_intent() {
            return;
        }
        if piece == SUB_BLOCKS {
            return self.write_home_root(cx);
        }
        let Some(slot) = self.claim_buffer(cx) else {
            return;
        };
        if let Some(home) = &mut self.relocation.home {
            (home.slot, home.stage) = (Some(slot), Stage::Reading(piece));
        }
        self.home_io(cx, Op::Read, from, piece, slot);
    }

    fn home_io(&mut self, cx: &mut LayoutCx<'_>, op: Op, chunk: u32, piece: u32, data: Data) {
        let chunk = self.table.chunk(chunk);
        let (offset, len) = match op {
            Op::Flush => (0, 0),
            _ => {
                let within = u64::from(piece) << self.shifts.0;
                (chunk.at + within, 1 << self.shifts.0)
            }
        };
        let sub = SubIo {
            target: chunk.target,
            op,
            flags: Flags::NONE,
            offset,
            len,
            data,
            background: false,
        };
        cx.issue(HOME, sub);
    }

    /// A sub-I/O of the copy has ended.
    pub(in crate::layout::pool) fn home_done(&mut self, cx: &mut LayoutCx<'_>, outcome: Outcome) {
        let Some(home) = &mut self.relocation.home else {
            return;
        };
        if outcome.is_err() || home.is_given_up {
            return self.end_home(cx);
        }
        match (home.stage, home.slot) {
            (Stage::Reading(piece), Some(slot)) => {
                home.stage = Stage::Writing(piece);
                let to = home.to;
                self.home_io(cx, Op::Write, to, piece, slot);
            }
            (Stage::Writing(piece), Some(slot)) => {
                home.stage = Stage::Waiting(piece + 1);
                home.slot = None;
                self.release_buffer(cx, slot);
                self.copy_home(cx);
            }
            (Stage::Flush, _) => {
                home.stage = Stage::Asked;
                let (from, to) = (home.from, home.to);
                let [from, to] = [from, to].map(|it| self.table.chunk(it).index);
                cx.notice(LayoutNotice::HomeMoved { from, to });
            }
            _ => {}
        }
    }

    /// The first grant's life is in the roots: the copy gets one of its own.
    fn write_home_root(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(home) = &mut self.relocation.home else {
            return;
        };
        let (from, to) = (home.from, home.to);
        if self.table.chunk(from).index != 0 {
            return self.write_home_intent(cx);
        }
        home.stage = Stage::Root;
        self.root.sequence += 1;
        let chunk = self.table.chunk(to);
        let root = self.root_after(Change::Repair, chunk.grant.life);
        let at = chunk.at + self.setup.geometry.root_at(self.root.next_place);
        cx.write_block(HOME_BLOCK, chunk.target, at, root.encode());
    }

    /// So does the record of hot extents, if there are mirrored columns.
    fn write_home_intent(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(home) = &mut self.relocation.home else {
            return;
        };
        home.stage = Stage::Intent;
        let (from, to) = (home.from, home.to);
        let index = self.table.chunk(from).index;
        if !self.copy_intent(cx, HOME_BLOCK, index, to) {
            self.flush_home(cx);
        }
    }

    /// A block of the copy was written.
    pub(in crate::layout::pool) fn home_block_written(
        &mut self,
        cx: &mut LayoutCx<'_>,
        outcome: Outcome,
    ) {
        let home = self.relocation.home.as_ref();
        match home.map(|it| (it.stage, it.is_given_up)) {
            Some((Stage::Root, false)) if outcome.is_ok() => self.write_home_intent(cx),
            Some((Stage::Intent, false)) if outcome.is_ok() => self.flush_home(cx),
            _ => self.end_home(cx),
        }
    }

    fn flush_home(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(home) = &mut self.relocation.home else {
            return;
        };
        home.stage = Stage::Flush;
        let to = home.to;
        self.home_io(cx, Op::Flush, to, 0, Data::NONE);
    }

    /// Gives it up as soon as nothing of it is under way, unless the catalog was asked.
    pub(super) fn give_up_home(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(home) = &mut self.relocation.home else {
            return;
        };
        match home.stage {
            Stage::Asked => {}
            Stage::Waiting(_) => self.end_home(cx),
            _ => home.is_given_up = true,
        }
    }

    /// It has failed, or was given up: the headers stay where they are.
    fn end_home(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(home) = self.relocation.home.take() else {
            return;
        };
        if let Some(slot) = home.slot {
            self.release_buffer(cx, slot);
        }
        self.close_if_vacated(home.to);
        self.relocation.later(cx.now());
        self.commit_again(cx);
    }

    /// The catalog has exchanged the indexes of two grants.
    pub(in crate::layout::pool) fn order_home_moved(
        &mut self,
        cx: &mut LayoutCx<'_>,
        from: u32,
        to: u32,
    ) -> Result<Ordered, OrderRefusal> {
        let asked = self.relocation.home.as_ref().filter(|home| {
            let indexes = [home.from, home.to].map(|it| self.table.chunk(it).index);
            home.stage == Stage::Asked && indexes == [from, to]
        });
        let Some((old, new)) = asked.map(|home| (home.from, home.to)) else {
            return Err(OrderRefusal::BadGrant);
        };
        self.relocation.home = None;
        self.table.exchange(old, new);
        self.table.set_space(old * super::EXTENTS_MAX, Space::Free);
        self.table
            .set_space(new * super::EXTENTS_MAX, Space::Metadata);
        self.own.swap(from as usize, to as usize);
        self.setup.grants.swap(from as usize, to as usize);
        if from == 0 {
            self.root.next_place = 1 - self.root.next_place;
        }
        self.intent_copied(from);
        self.forget_intent(old);
        self.forget_intent(new);
        self.relocation.moved += 1;
        self.close_if_vacated(new);
        self.relocation.soon(cx.now());
        self.commit_again(cx);
        Ok(Ordered::Now)
    }

    /// Commits and roots that waited go on.
    fn commit_again(&mut self, cx: &mut LayoutCx<'_>) {
        self.write_root(cx);
        self.begin_commit(cx);
        self.go_on(cx);
    }
}
