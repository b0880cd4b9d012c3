//! The space of a pool's disk: which extents of its grants are free, which are zeroed, and when it needs another grant.
//!
//! A few extents are zeroed ahead of need. An extent that is not used any more is free once a commit that began afterwards has
//! succeeded, and all I/O that was under way when it was released has ended.
//!
//! # Always true
//! - an extent is zeroed after it was free, and before it is used
//! - a grant is given back only while nothing is in it, nothing is under way there, and its header says so durably
//!
//! # Picture
//! ```text
//!   used ──release──> releasing ──commit and fence──> free ──> zeroing ──> zeroed ──> used
//! ```

use super::commit::Waiter;
use super::ops::Wait;
use super::records::{NewChunk, Space};
use super::{EXTENTS_MAX, GRANTS_MAX, Grant, NONE, Pool, ZERO};
use crate::layout::{LayoutCx, LayoutNotice, OrderRefusal, Ordered, SubIo, Target};
use crate::request::{Data, Fault, Flags, Op, Outcome};
use crate::units::{Span, Time};
use alloc::collections::VecDeque;

/// Extents that are zeroed ahead. Origin: chosen; 4 MiB last for some milliseconds of a fast sequential writer.
const AHEAD: usize = 4;
/// The most of them, while writes wait.
const AHEAD_MAX: usize = 16;
/// Grants that are looked at for one on another column. Origin: the most columns of a disk.
const COLUMNS_TRIED: usize = 32;
/// Extents that are zeroed at once.
const ZEROING_MAX: u32 = 4;
/// How long what was released waits for a commit of somebody else. Origin: chosen.
const COMMIT_AFTER: Span = Span::from_secs(1);
/// How long after a refusal, or a fault, it is tried again. Origin: chosen.
pub(super) const RETRY_AFTER: Span = Span::from_secs(1);

/// See the module.
#[derive(Default)]
pub(super) struct SpaceState {
    zeroed: VecDeque<u32>,
    zeroing: u32,
    /// Grants that have free extents. Some may not have any more.
    with_free: VecDeque<u32>,
    /// The target of the extent that was zeroed last.
    last: Option<Target>,
    releasing: VecDeque<Release>,
    /// Fences that have begun, and that are complete.
    fences: (u64, u64),
    /// Commits that have begun, and the last one that has succeeded.
    commits: (u64, u64),
    /// Whether a grant was asked for.
    is_wanted: bool,
    /// Until when none is asked for again: the pool has none.
    refused_until: Option<Time>,
    /// When what was released is committed.
    pub(super) commit_at: Option<Time>,
}

struct Release {
    place: u32,
    fence: u64,
    commit: u64,
}

impl SpaceState {
    pub(super) fn zeroed(&self) -> usize {
        self.zeroed.len()
    }

    pub(super) fn releasing(&self) -> usize {
        self.releasing.len()
    }

    pub(super) fn take_zeroed(&mut self) -> Option<u32> {
        self.zeroed.pop_front()
    }

    /// Whether something was released, and a crash may bring it back.
    pub(super) fn has_unwritten(&self) -> bool {
        self.releasing
            .back()
            .is_some_and(|last| last.commit > self.commits.1)
    }

    /// The first commit that has everything of now.
    pub(super) fn next_commit(&self) -> u64 {
        self.commits.0 + 1
    }

    pub(super) fn commit_begun(&mut self) {
        self.commits.0 += 1;
    }

    pub(super) fn commit_done(&mut self) {
        self.commits.1 = self.commits.0;
    }

    /// Whether everything of this commit is durable.
    pub(super) fn is_committed(&self, commit: u64) -> bool {
        commit <= self.commits.1
    }

    /// Begins a fence, or will. Returns its number.
    pub(super) fn next_fence(&mut self, cx: &mut LayoutCx<'_>) -> u64 {
        let number = self.fences.0 + 1;
        if self.fences.0 == self.fences.1 {
            self.fences.0 = number;
            cx.fence();
        }
        number
    }

    pub(super) fn fence_done(&mut self) {
        self.fences.1 = self.fences.0;
    }

    pub(super) fn is_fenced(&self, fence: u64) -> bool {
        fence <= self.fences.1
    }

    pub(super) fn may_want_again(&mut self) {
        self.refused_until = None;
    }
}

impl Pool {
    /// Zeroes extents ahead, and asks for a grant if the disk has few that are free.
    pub(super) fn refill(&mut self, cx: &mut LayoutCx<'_>) {
        let waiting = self.waiting.of(Wait::Space);
        let ends = self.paused || self.detaching && waiting == 0;
        if ends || self.view.is_some() || !self.is_open() {
            return;
        }
        let wanted = (AHEAD + waiting).min(AHEAD_MAX);
        while self.space.zeroing < ZEROING_MAX
            && self.space.zeroed.len() + (self.space.zeroing as usize) < wanted
            && let Some(place) = self.pick_free()
        {
            self.table.set_space(place, Space::Zeroing);
            self.space.zeroing += 1;
            // Its first write need not wait for that.
            self.heat(place);
            let (target, offset) = self.address(place, 0);
            let sub = SubIo {
                target,
                op: Op::WriteZeroes,
                flags: Flags::NONE,
                offset,
                len: 1 << self.shifts.1,
                data: Data::NONE,
                background: waiting == 0,
            };
            cx.issue(ZERO | u64::from(place), sub);
        }
        let is_idle = self.space.zeroing == 0 && self.table.free() == 0;
        let may_commit = self.waiters.is_empty() && self.failed_until.is_none();
        if waiting > 0 && is_idle && self.space.has_unwritten() && may_commit {
            self.waiters.push(Waiter::Nobody);
        }
        let low = u64::from(self.setup.geometry.extents / 2).max(1);
        let left = self.thick_left();
        if self.free_in_all() < low || left > 0 {
            self.want(cx, left);
        }
    }

    /// Whether the pool has refused a grant, and is not asked again yet.
    pub(super) fn is_refused_grant(&self, now: Time) -> bool {
        self.space.refused_until.is_some_and(|until| now < until)
    }

    /// Asks for a grant.
    pub(super) fn want_grant(&mut self, cx: &mut LayoutCx<'_>) {
        self.want(cx, self.thick_left());
    }

    /// Whether no space will come: the pool has refused, and nothing is about to be free.
    pub(super) fn is_refused(&self, now: Time) -> bool {
        let refused = self.space.refused_until.is_some_and(|until| now < until);
        refused && self.is_exhausted()
    }

    /// Whether the disk has no space without another grant.
    pub(super) fn is_exhausted(&self) -> bool {
        let comes = !self.space.releasing.is_empty() || !self.relocation.moves.is_empty();
        self.free_in_all() == 0 && !comes
    }

    /// Extents that are free, or will be after they are zeroed.
    fn free_in_all(&self) -> u64 {
        self.table.free() + self.space.zeroed.len() as u64 + u64::from(self.space.zeroing)
    }

    /// Extents that a disk lacks that reserves all its space.
    fn thick_left(&self) -> u64 {
        if !self.setup.thick {
            return 0;
        }
        let all = self.size.div_ceil(1 << self.shifts.1);
        let own = self.forest.at(self.current()).extents;
        let coming = self.free_in_all() + self.space.releasing.len() as u64;
        all.saturating_sub(own + coming)
    }

    fn want(&mut self, cx: &mut LayoutCx<'_>, thick_left: u64) {
        let refused = self.space.refused_until.is_some_and(|it| cx.now() < it);
        if refused || core::mem::replace(&mut self.space.is_wanted, true) {
            return;
        }
        cx.notice(LayoutNotice::GrantWanted { thick_left });
    }

    /// A grant has a free extent.
    pub(super) fn list(&mut self, number: u32) {
        let chunk = self.table.chunk_mut(number);
        if !chunk.is_closed && !core::mem::replace(&mut chunk.is_listed, true) {
            self.space.with_free.push_back(number);
        }
    }

    /// A grant gets nothing new.
    pub(super) fn unlist(&mut self, number: u32) {
        self.table.chunk_mut(number).is_listed = false;
        self.space.with_free.retain(|it| *it != number);
    }

    /// What was zeroed ahead in a grant is only free again.
    pub(super) fn forget_zeroed(&mut self, number: u32) {
        let is_here = |place: &u32| place / EXTENTS_MAX == number;
        let here = self.space.zeroed.iter().copied().filter(is_here);
        let here: alloc::vec::Vec<u32> = here.collect();
        self.space.zeroed.retain(|place| !is_here(place));
        for place in here {
            self.table.set_space(place, Space::Free);
        }
    }

    /// A free extent on one of these columns, one bit each. They take turns.
    pub(super) fn pick_free_on(&mut self, columns: u32) -> Option<u32> {
        let fits = |number: &u32| {
            let chunk = self.table.chunk(*number);
            chunk.free > 0 && columns & 1 << (chunk.grant.column & 31) != 0
        };
        let nth = self.space.with_free.iter().position(fits)?;
        let number = self.space.with_free.remove(nth)?;
        self.space.with_free.push_back(number);
        let mut records = self.table.records(number);
        let free = records.find(|(_, record)| record.space() == Some(Space::Free));
        free.map(|(place, _)| place)
    }

    /// The next free extent, on another column than the last one if there is one.
    pub(super) fn pick_free(&mut self) -> Option<u32> {
        while let Some(first) = self.space.with_free.front().copied()
            && self.table.chunk(first).free == 0
        {
            self.space.with_free.pop_front();
            self.table.chunk_mut(first).is_listed = false;
        }
        let last = self.space.last;
        let mut others = self.space.with_free.iter().take(COLUMNS_TRIED);
        let nth = others.position(|number| {
            let chunk = self.table.chunk(*number);
            chunk.free > 0 && Some(chunk.target) != last
        });
        let number = self.space.with_free.remove(nth.unwrap_or(0))?;
        self.space.with_free.push_back(number);
        self.space.last = Some(self.table.chunk(number).target);
        let mut records = self.table.records(number);
        let free = records.find(|(_, record)| record.space() == Some(Space::Free));
        free.map(|(place, _)| place)
    }

    /// An extent was zeroed.
    pub(super) fn zeroed(&mut self, cx: &mut LayoutCx<'_>, place: u32, outcome: Outcome) {
        self.space.zeroing -= 1;
        match outcome {
            Ok(()) if self.table.chunk(place / EXTENTS_MAX).is_closed => {
                self.table.set_space(place, Space::Free);
                self.go_on(cx);
            }
            Ok(()) => {
                self.table.set_space(place, Space::Zeroed);
                self.space.zeroed.push_back(place);
                self.go_on(cx);
            }
            Err(_) => {
                // Nobody asks for it again before some time has passed.
                self.table.set_space(place, Space::Free);
                self.list(place / EXTENTS_MAX);
                self.retry_at = Some(cx.now() + RETRY_AFTER);
                if self.space.zeroing == 0 {
                    for op in self.waiting.take(Wait::Space) {
                        self.fail(cx, op, Fault::Io);
                    }
                }
            }
        }
    }

    /// An extent has nothing of the disk any more.
    pub(super) fn release(&mut self, place: u32) {
        let record = *self.table.at(place);
        self.table.touch(place);
        self.table.remove(place, Space::Releasing, &self.forest);
        let extents = &mut self.forest.at_mut(record.generation).extents;
        *extents = extents.saturating_sub(1);
        self.release_place(place);
    }

    /// A place is free once that is durable, and nothing is under way there.
    pub(super) fn release_place(&mut self, place: u32) {
        self.space.releasing.push_back(Release {
            place,
            fence: self.space.fences.0 + 1,
            commit: self.space.next_commit(),
        });
    }

    /// Begins the fence, and plans the commit, that what was released waits for.
    pub(super) fn plan_release(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(first) = self.space.releasing.front() else {
            return;
        };
        if !self.space.is_fenced(first.fence) {
            self.space.next_fence(cx);
        }
        if self.space.has_unwritten() && self.space.commit_at.is_none() {
            self.space.commit_at = Some(cx.now() + COMMIT_AFTER);
        }
    }

    /// What was released is free, as far as it is durable and nothing is under way there.
    pub(super) fn release_ready(&mut self, cx: &mut LayoutCx<'_>) {
        while let Some(first) = self.space.releasing.front()
            && self.space.is_fenced(first.fence)
            && self.space.is_committed(first.commit)
        {
            let place = first.place;
            self.space.releasing.pop_front();
            self.table.set_space(place, Space::Free);
            self.list(place / EXTENTS_MAX);
            self.give_back(cx, place / EXTENTS_MAX);
        }
        self.plan_release(cx);
    }

    /// Gives a grant back in which nothing is, if the disk has enough without it.
    pub(super) fn give_back(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let extents = u64::from(self.setup.geometry.extents);
        let Some(chunk) = self.table.get(number) else {
            return;
        };
        let stays = chunk.is_closed || self.setup.geometry.has_headers(chunk.index);
        if stays || self.setup.thick || self.free_in_all() < 2 * extents {
            return;
        }
        if self.is_empty_grant(number) {
            self.drop_grant(cx, number);
        }
    }

    /// Whether nothing of the disk is in a grant but headers, durably.
    pub(super) fn is_empty_grant(&self, number: u32) -> bool {
        let chunk = self.table.chunk(number);
        let is_unused = chunk.mapped == 0 && chunk.marks.is_empty() && !chunk.header.is_dirty();
        let is_free = |space| {
            let free = [Space::Free, Space::Zeroed, Space::Metadata];
            free.map(Some).contains(&space)
        };
        let mut records = self.table.records(number);
        is_unused && !self.is_move_target(number) && records.all(|(_, it)| is_free(it.space()))
    }

    /// Gives back a grant in which nothing is.
    pub(super) fn drop_grant(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let index = self.table.chunk(number).index;
        self.space
            .zeroed
            .retain(|place| place / EXTENTS_MAX != number);
        self.space.with_free.retain(|chunk| *chunk != number);
        self.table.remove_chunk(number);
        self.forget_intent(number);
        self.own[index as usize] = NONE;
        self.setup.grants[index as usize] = None;
        cx.notice(LayoutNotice::GrantEmpty { index });
    }

    /// The disk has one more grant.
    pub(super) fn add_grant(
        &mut self,
        cx: &mut LayoutCx<'_>,
        index: u32,
        grant: Grant,
    ) -> Result<Ordered, OrderRefusal> {
        let place = index as usize;
        let is_next = place == self.own.len() && index < GRANTS_MAX;
        let was_given_back = self.own.get(place) == Some(&NONE);
        let is_known = self
            .setup
            .grants
            .iter()
            .flatten()
            .any(|own| (own.column, own.number) == (grant.column, grant.number));
        let geometry = &self.setup.geometry;
        let header_of = self.own.get(geometry.header_of(index) as usize);
        let has_header = geometry.has_headers(index) || header_of.is_some_and(|it| *it != NONE);
        let fits = (is_next || was_given_back) && !is_known && has_header;
        if !fits || !self.setup.has_place(&grant) {
            return Err(OrderRefusal::BadGrant);
        }
        if is_next {
            self.own.push(NONE);
            self.setup.grants.push(None);
        }
        self.setup.grants[place] = Some(grant);
        self.own[place] = self.put_chunk(0, index, grant);
        self.list(self.own[place]);
        self.close_if_vacated(self.own[place]);
        self.relocation.soon(cx.now());
        self.space.is_wanted = false;
        self.space.refused_until = None;
        self.go_on(cx);
        Ok(Ordered::Now)
    }

    /// The pool has one more column, whose target follows the last one.
    pub(super) fn add_column(&mut self) -> Result<Ordered, OrderRefusal> {
        // A column of several members needs to know which of them are in sync.
        if !self.setup.members.is_empty() {
            return Err(OrderRefusal::Fixed);
        }
        let next = u8::try_from(self.setup.targets()).map_err(|_| OrderRefusal::Fixed)?;
        self.setup.columns.push(Target(next));
        Ok(Ordered::Now)
    }

    /// Adds a grant to the table.
    pub(super) fn put_chunk(&mut self, owner: u8, index: u32, grant: Grant) -> u32 {
        let geometry = self.setup.geometry;
        let target = self.setup.columns[usize::from(grant.column)];
        if owner == 0 {
            self.targets |= 1 << target.0;
        }
        self.table.add_chunk(NewChunk {
            owner,
            index,
            grant,
            target,
            at: geometry.grant_at(grant),
            extents: geometry.extents,
            has_headers: geometry.has_headers(index),
        })
    }

    /// The pool has no grant.
    pub(super) fn no_space(&mut self, cx: &mut LayoutCx<'_>) {
        let until = cx.now() + RETRY_AFTER;
        self.space.is_wanted = false;
        self.space.refused_until = Some(until);
        self.retry_at = Some(until);
        if self.is_refused(cx.now()) {
            for op in self.waiting.take(Wait::Space) {
                self.fail(cx, op, Fault::NoSpace);
            }
        }
    }

    /// The pool may have a grant again: writes that need space are not refused before the disk has asked.
    pub(super) fn space_available(&mut self, cx: &mut LayoutCx<'_>) {
        self.space.may_want_again();
        self.go_on(cx);
    }

    /// After opening: what has no record is free.
    pub(super) fn list_free(&mut self) {
        let own = self.table.chunks().filter(|(_, it)| it.free > 0);
        let own: alloc::vec::Vec<u32> = own.map(|(number, _)| number).collect();
        for number in own {
            self.list(number);
        }
    }
}
