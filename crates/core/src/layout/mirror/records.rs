//! The recorded state of a mirror: hot regions, members in sync, and who waits for it to be recorded.
//!
//! One state is written at a time, to all members that are used. Whoever changes the state raises its version. Whoever
//! relies on a version waits until that is durable.
//!
//! # Always true
//! - a region that is written stays hot until a flush that began after the write has ended on all members that are used
//! - while a member is out of sync, a region that becomes cold is remembered as missed
//! - the newest durable state is not overwritten before a newer one is durable on all members that are used
//! - a record that no member could write fails everything that waits for it

use super::open::Opening;
use super::state::{HOT_MAX, MISSED, NEVER, REGION, State};
use super::{MEMBERS_MAX, Mirror, RECORD, STATE_AT, each, tag};
use crate::block::BLOCK;
use crate::layout::{LayoutCx, LayoutNotice, OrderRefusal, Refusal, Target};
use crate::request::{Fault, Outcome};
use alloc::vec::Vec;
use core::ops::Range;

/// A hot region.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hot {
    /// The version of the state that has it.
    since: u64,
    /// Writes under way.
    pub(super) writes: u32,
    /// When the last write ended; 0 once a flush has covered it.
    ended: u64,
}

/// What is recorded on the members, and who waits for it.
#[derive(Default)]
pub(super) struct Records {
    /// The sequence of the last state that was written to members.
    pub(super) sequence: u64,
    /// For each member: which of its two places has its newest state. The other one is written.
    pub(super) places: [u32; MEMBERS_MAX],
    /// The last sequence that all members used then have, and the members that it has in sync.
    pub(super) last: u64,
    pub(super) last_in_sync: u32,
    /// The version of the state as it stands here.
    pub(super) version: u64,
    /// The version that all members in sync have.
    pub(super) durable: u64,
    /// The version since which the members in sync are these.
    pub(super) set_at: u64,
    /// Whether the next record is the first one after the loss of all members.
    pub(super) retried: bool,
    writing: Option<Writing>,
    /// Which I/Os wait for which version.
    pub(super) waiting: Vec<(u64, u32)>,
}

/// A state that is being written.
struct Writing {
    version: u64,
    in_sync: u32,
    /// Members that get it.
    members: u32,
    pending: u32,
    failed: u32,
    /// Whether one of these is gone.
    gone: bool,
}

impl Mirror {
    /// Where a place is on a member, in bytes.
    pub(super) fn state_at(place: u32) -> u64 {
        STATE_AT + u64::from(place) * BLOCK as u64
    }

    /// Makes the regions of a write hot. Returns the version that has them all, or `None` if too many are hot.
    pub(super) fn make_hot(&mut self, offset: u64, len: u64) -> Option<u64> {
        let range = regions(offset, len);
        if !self.kept {
            return Some(0);
        }
        let mut new = self.cold_in(&range);
        if self.hot.len() + self.missed.len() + new > HOT_MAX {
            self.forget_cold();
            new = self.cold_in(&range);
        }
        if self.hot.len() + self.missed.len() + new > HOT_MAX && !self.missed.is_empty() {
            // Too many to remember: a member out of sync gets all bytes.
            self.missed.clear();
            self.overflow = true;
            if let Some(syncing) = &mut self.syncing {
                syncing.full = true;
            }
        }
        if self.hot.len() + new > HOT_MAX {
            return None;
        }
        if new > 0 {
            self.records.version += 1;
        }
        let version = self.records.version;
        let mut since = 0;
        for region in range {
            self.missed.remove(&region);
            let hot = self.hot.entry(region).or_insert(Hot {
                since: version,
                ..Hot::default()
            });
            hot.writes += 1;
            since = since.max(hot.since);
        }
        Some(since)
    }

    fn cold_in(&self, range: &Range<u32>) -> usize {
        let cold = range
            .clone()
            .filter(|region| !self.hot.contains_key(region));
        cold.count()
    }

    /// A write to these regions has ended.
    pub(super) fn uncount(&mut self, offset: u64, len: u64) {
        if !self.kept {
            return;
        }
        let moment = self.moment();
        for region in regions(offset, len) {
            let hot = self.hot.get_mut(&region);
            let hot = hot.expect("a written region stays hot");
            hot.writes -= 1;
            hot.ended = moment;
        }
    }

    /// A flush that began at this moment has ended: regions without a later write are equal on all members.
    pub(super) fn cool(&mut self, began: u64) {
        for hot in self.hot.values_mut() {
            if hot.writes == 0 && hot.ended < began {
                hot.ended = 0;
            }
        }
    }

    /// Forgets the regions that are equal on all members; the next record says so.
    pub(super) fn forget_cold(&mut self) {
        let degraded = self.is_degraded();
        let (missed, overflow) = (&mut self.missed, self.overflow);
        self.hot.retain(|region, hot| {
            let stays = hot.writes > 0 || hot.ended > 0;
            if !stays && degraded && !overflow {
                missed.insert(*region);
            }
            stays
        });
    }

    /// Whether a member out of sync whose newest state this is lacks at most the hot and the missed regions. None is forgotten
    /// between its drop and the end of its rebuild, so a rebuild by regions that failed does not matter.
    pub(super) fn lacks_only_missed(&self, member: u8, own: &State) -> bool {
        let place = usize::from(member);
        let (since, until) = (self.since[place], self.until[place]);
        if self.overflow || own.overflow || since == 0 || until == NEVER {
            return false;
        }
        if own.in_sync >> member & 1 == 1 {
            return (until..since).contains(&own.sequence);
        }
        let rebuilt = own.syncing;
        let by_regions = rebuilt.is_some_and(|of| of.member == member && !of.full);
        let is_later = (since..=self.records.sequence).contains(&own.sequence);
        let is_known = |region: &u32| {
            let region = region & !MISSED;
            self.missed.contains(&region) || self.hot.contains_key(&region)
        };
        by_regions && is_later && own.regions.iter().all(is_known)
    }

    /// Goes on with an I/O once this version of the state is recorded.
    pub(super) fn after_record(&mut self, cx: &mut LayoutCx<'_>, op: u32, version: u64) {
        if !self.kept || self.records.durable >= version {
            return self.recorded(cx, op);
        }
        self.records.waiting.push((version, op));
        self.record(cx);
    }

    /// Writes the state as it stands, unless one is being written.
    pub(super) fn record(&mut self, cx: &mut LayoutCx<'_>) {
        let records = &mut self.records;
        // A mirror that has refused to open has no member in sync.
        let refused = self.in_sync == 0;
        if !self.kept || refused || records.writing.is_some() || records.durable >= records.version
        {
            return;
        }
        if self.loss.is_some() {
            // No member could have it.
            return;
        }
        records.sequence += 1;
        let pending = self.active();
        // One that gets only some regions is out of sync as long as before. If that fails, it lacks nothing else.
        let by_regions = self.syncing.filter(|syncing| !syncing.full);
        let settled = pending & !by_regions.map_or(0, |syncing| 1 << syncing.member);
        for member in 0..self.members {
            let place = usize::from(member);
            let was_in_sync = self.records.last_in_sync >> member & 1 == 1;
            match (settled >> member & 1, self.since[place]) {
                (1, _) => (self.since[place], self.until[place]) = (0, 0),
                (_, 0) => {
                    self.since[place] = self.records.sequence;
                    self.until[place] = if was_in_sync {
                        self.records.last
                    } else {
                        NEVER
                    };
                }
                _ => {}
            }
        }
        self.records.writing = Some(Writing {
            version: self.records.version,
            in_sync: self.in_sync,
            members: pending,
            pending,
            failed: 0,
            gone: false,
        });
        let state = self.state();
        let [a, b, c, d, ..] = state.sequence.to_le_bytes();
        let number = u32::from_le_bytes([a, b, c, d]);
        for target in each(pending) {
            let place = Mirror::state_at(1 - self.records.places[usize::from(target.0)]);
            cx.write_block(
                tag(RECORD, number, target),
                target,
                place,
                state.encode(target.0),
            );
        }
    }

    /// The state as it stands.
    pub(super) fn state(&self) -> State {
        let hot = self.hot.keys().copied();
        let missed = self.missed.iter().map(|region| region | MISSED);
        let mut regions: Vec<u32> = hot.chain(missed).collect();
        regions.sort_unstable_by_key(|region| region & !MISSED);
        State {
            disk: self.disk,
            sequence: self.records.sequence,
            in_sync: self.in_sync,
            members: self.members,
            syncing: self.syncing,
            since: self.since,
            until: self.until,
            previous: self.records.last,
            overflow: self.overflow,
            regions,
        }
    }

    /// A member has the state that is being written, or failed to write it.
    pub(super) fn record_done(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u64,
        member: u8,
        outcome: Outcome,
    ) {
        let bit = 1 << member;
        let current = self.records.sequence & 0xffff_ffff == number;
        let Some(writing) = self.records.writing.as_mut().filter(|_| current) else {
            return;
        };
        if writing.pending & bit == 0 {
            return;
        }
        writing.pending &= !bit;
        if let Err(fault) = outcome {
            writing.failed |= bit;
            writing.gone |= fault == Fault::Gone;
        }
        self.finish_record(cx);
    }

    /// The state that is being written does not wait for this member any more.
    pub(super) fn give_up_record(&mut self, cx: &mut LayoutCx<'_>, member: u8) {
        let bit = 1 << member;
        if let Some(writing) = &mut self.records.writing
            && writing.pending & bit != 0
        {
            writing.pending &= !bit;
            writing.failed |= bit;
            writing.gone = true;
            self.finish_record(cx);
        }
    }

    fn finish_record(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(writing) = self.records.writing.take_if(|writing| writing.pending == 0) else {
            return;
        };
        if self.in_sync == 0 {
            // The mirror has refused to open meanwhile.
            return;
        }
        let failed = writing.failed & self.active();
        let all = failed & self.in_sync != 0 && !self.can_spare(failed);
        let fault = match writing.gone {
            true => Fault::Gone,
            false => Fault::Io,
        };
        if all && self.waits_after(fault, self.records.retried) {
            // It is recorded when one of them is back.
            return self.lose(cx, fault);
        }
        if all {
            // Of those that failed together one stays, so that no two members are more than a state apart. What waits for
            // the record fails.
            let stays = self.last_resort();
            if self.in_sync.count_ones() == 1 {
                cx.notice(LayoutNotice::Lost);
            }
            self.drop_members(cx, (self.in_sync | failed) & !stays, Fault::Io);
            return self.fail_waiting(cx);
        }
        // All that stay have it.
        for target in each(writing.members & !writing.failed) {
            let place = &mut self.records.places[usize::from(target.0)];
            *place = 1 - *place;
        }
        if failed != 0 {
            self.drop_members(cx, failed, Fault::Io);
            return self.record(cx);
        }
        self.records.retried = false;
        self.records.durable = writing.version;
        self.records.last = self.records.sequence;
        self.records.last_in_sync = writing.in_sync;
        let (durable, waiting) = (
            self.records.durable,
            core::mem::take(&mut self.records.waiting),
        );
        let (ready, rest): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|(wanted, _)| *wanted <= durable);
        self.records.waiting.extend(rest);
        for (_, op) in ready {
            self.recorded(cx, op);
        }
        self.opening_recorded(cx);
        self.drops_recorded(cx);
        self.copier_recorded(cx);
        self.record(cx);
    }

    pub(super) fn fail_waiting(&mut self, cx: &mut LayoutCx<'_>) {
        self.answer_drops(cx, Err(OrderRefusal::Unrecorded));
        if !matches!(self.opening, None | Some(Opening::Done)) {
            let first = Target(u8::try_from(self.in_sync.trailing_zeros()).unwrap_or(0));
            return self.refuse(cx, Refusal::Failed(first, Fault::Io));
        }
        for (_, op) in core::mem::take(&mut self.records.waiting) {
            self.end(cx, op, Err(Fault::Io));
        }
        // Nothing records the state again until somebody needs it: a rebuild begins anew later.
        if let Some(syncing) = self.syncing
            && self.copies_wait_for_record()
        {
            self.drop_members(cx, 1 << syncing.member, Fault::Io);
        }
    }
}

/// The regions of a write.
fn regions(offset: u64, len: u64) -> Range<u32> {
    let region = |at: u64| u32::try_from(at / REGION).expect("a disk is far below 2 PiB");
    match len {
        0 => 0..0,
        len => region(offset)..region(offset + len - 1) + 1,
    }
}
