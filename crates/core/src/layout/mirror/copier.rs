//! Copies from members in sync to others: hot regions after a crash, and everything that a rebuilt member lacks.
//!
//! A range is copied in pieces of [`SLOT`] bytes. Guests' writes do not wait: a piece that was written meanwhile is copied
//! again. After two such tries the piece's range is locked, so that the copy ends under any load.
//!
//! # Always true
//! - a piece counts as copied only if no write to it was under way between the begin of its read and the end of its writes
//! - a piece that waits for its lock has no buffer: the writes that hold the range may wait for one
//! - "rebuilt up to" is recorded after the member was flushed
//!
//! # Source
//! md's resync and DRBD's resync also copy beside writes; both make writes wait for the copy of their range.

use super::state::{REGION, Syncing};
use super::{COPY, COPY_LOCK, Mirror, each, tag};
use crate::layout::{LayoutCx, LayoutNotice, SLOT, SubIo, Target};
use crate::range_lock::{Mode, Wanted};
use crate::request::{Data, Fault, Flags, Op, Outcome};
use crate::units::{Span, Time};
use alloc::vec::Vec;

/// Pieces that are copied together while guests are idle; one while they have I/O.
const TOGETHER: usize = 4;
/// Guests are idle after so long without I/O: several pieces together delay an I/O that comes after a shorter pause.
/// Origin: chosen. In the simulator, rebuilds less than double the 99th percentile of guests with longer pauses.
const IDLE_AFTER: Span = Span::from_millis(100);
/// Tries without a lock.
const TRIES: u32 = 2;
/// With a rate: how long a piece waits that has no buffer. Origin: chosen; far below a second, far above an I/O.
const LATER: Span = Span::from_millis(10);
/// A member is flushed, and the progress recorded, after so many bytes. Origin: chosen; a second or so of copying.
const STRIDE: u64 = 64 << 20;

/// Copies that are under way.
pub(super) struct Copier {
    /// Who gets the copies; `None`: all members that are used, after a crash.
    pub(super) member: Option<u8>,
    /// What is left, in bytes of the disk, last first.
    ranges: Vec<(u64, u64)>,
    slots: Vec<Slot>,
    step: Step,
    /// Bytes that were copied, and that are to be in all.
    pub(super) copied: u64,
    pub(super) total: u64,
    /// Bytes copied since the progress was recorded.
    since: u64,
    /// With a rate: when the next piece may begin.
    next_at: Time,
}

enum Step {
    /// The state that says so is being recorded.
    Recording(u64),
    Copying,
    /// These members are being flushed, one bit each; then it goes on, or ends.
    Flushing {
        pending: u32,
        last: bool,
    },
}

/// A piece that is being copied.
pub(super) struct Slot {
    number: u32,
    at: u64,
    len: u64,
    /// Its buffer, unless it waits for its lock, or for a buffer after that.
    data: Option<Data>,
    from: u8,
    tries: u32,
    /// Members that failed to read it.
    unreadable: u32,
    dirty: bool,
    lock: Lock,
    /// I/Os under way, one bit for each member.
    pending: u32,
    writing: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lock {
    None,
    Waits,
    Held,
}

impl Copier {
    /// The copies of these ranges, which ascend.
    pub(super) fn new(member: Option<u8>, mut ranges: Vec<(u64, u64)>) -> Copier {
        let total = ranges.iter().map(|(from, to)| to - from).sum();
        ranges.reverse();
        Copier {
            member,
            ranges,
            slots: Vec::new(),
            step: Step::Copying,
            copied: 0,
            total,
            since: 0,
            next_at: Time::ZERO,
        }
    }

    /// Whether one member gets the copies.
    pub(super) fn is_rebuild(&self) -> bool {
        self.member.is_some()
    }
}

impl Mirror {
    /// The ranges of regions, merged, cut to the disk.
    pub(super) fn ranges_of(&self, regions: impl Iterator<Item = u32>) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for region in regions {
            let from = u64::from(region) * REGION;
            let to = (from + REGION).min(self.size);
            match ranges.last_mut() {
                Some(last) if last.1 == from => last.1 = to,
                _ if from < to => ranges.push((from, to)),
                _ => {}
            }
        }
        ranges
    }

    /// Begins to copy once this version of the state is recorded.
    pub(super) fn begin_copies(&mut self, cx: &mut LayoutCx<'_>, mut copier: Copier, version: u64) {
        let recorded = !self.kept || self.records.durable >= version;
        if !recorded {
            copier.step = Step::Recording(version);
        }
        self.copier = Some(copier);
        match recorded {
            true => self.advance_copies(cx),
            false => self.record(cx),
        }
    }

    /// A state is recorded.
    pub(super) fn copier_recorded(&mut self, cx: &mut LayoutCx<'_>) {
        let durable = self.records.durable;
        if let Some(copier) = &mut self.copier
            && matches!(copier.step, Step::Recording(version) if version <= durable)
        {
            copier.step = Step::Copying;
            self.advance_copies(cx);
        }
    }

    /// Whether copies wait until the state is recorded.
    pub(super) fn copies_wait_for_record(&self) -> bool {
        let copier = self.copier.as_ref();
        copier.is_some_and(|copier| matches!(copier.step, Step::Recording(_)))
    }

    /// When the next piece may begin, if a rate delays it.
    pub(super) fn copies_at(&self) -> Option<Time> {
        let copier = self.copier.as_ref()?;
        let waits =
            matches!(copier.step, Step::Copying) && self.rate > 0 && copier.slots.is_empty();
        waits.then_some(copier.next_at)
    }

    /// The next piece may begin now. If there is no buffer for it, it begins when there is one, or a little later.
    pub(super) fn copies_due(&mut self, cx: &mut LayoutCx<'_>) {
        self.advance_copies(cx);
        let late = self.copies_at().is_some_and(|at| at <= cx.now());
        if let (true, Some(copier)) = (late, &mut self.copier) {
            copier.next_at = cx.now() + LATER;
        }
    }

    /// Begins as many pieces as possible, or ends.
    pub(super) fn advance_copies(&mut self, cx: &mut LayoutCx<'_>) {
        loop {
            let busy = self.guests_are_busy(cx);
            let rate = self.rate;
            let Some(copier) = &mut self.copier else {
                return;
            };
            if !matches!(copier.step, Step::Copying) {
                return;
            }
            let stop = copier.since >= STRIDE || copier.ranges.is_empty();
            if stop {
                if copier.slots.is_empty() {
                    self.flush_copies(cx);
                }
                return;
            }
            let late = rate > 0 && cx.now() < copier.next_at;
            if copier.slots.len() >= if busy { 1 } else { TOGETHER } || late {
                return;
            }
            let Some(data) = cx.claim() else { return };
            let (at, end) = copier.ranges.pop().expect("one is left");
            let len = (end - at).min(SLOT);
            if at + len < end {
                copier.ranges.push((at + len, end));
            }
            copier.since += len;
            if let Some(nanos) = (len * 1_000_000_000).checked_div(rate) {
                copier.next_at = copier.next_at.max(cx.now()) + Span::from_nanos(nanos);
            }
            let from = self.next_in_sync(self.last_read);
            let number = self.next_copy;
            self.next_copy = (self.next_copy + 1) % (COPY_LOCK - 1);
            let slot = Slot {
                number,
                at,
                len,
                data: Some(data),
                from,
                tries: 0,
                unreadable: 0,
                dirty: false,
                lock: Lock::None,
                pending: 0,
                writing: false,
            };
            if let Some(copier) = &mut self.copier {
                copier.slots.push(slot);
            }
            self.read_copy(cx, number);
        }
    }

    /// Whether guests have I/O under way, or had some lately.
    fn guests_are_busy(&mut self, cx: &LayoutCx<'_>) -> bool {
        if !self.ops.is_empty() || each(self.active()).any(|target| cx.awaited(target) > 0) {
            self.used_at = Some(cx.now());
        }
        self.used_at.is_some_and(|at| cx.now() < at + IDLE_AFTER)
    }

    fn slot(&mut self, number: u32) -> Option<&mut Slot> {
        let slots = self.copier.as_mut()?.slots.iter_mut();
        slots.into_iter().find(|slot| slot.number == number)
    }

    /// Reads a piece from a member in sync.
    fn read_copy(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let Some(slot) = self.slot(number) else {
            return;
        };
        let (at, len) = (slot.at, slot.len);
        if slot.lock == Lock::None && slot.tries >= TRIES && !self.lock_copy(cx, number) {
            return;
        }
        let held = self.lock.is_held(at, at + len);
        let Some(data) = self.buffer_of(cx, number) else {
            return;
        };
        let Some(slot) = self.slot(number) else {
            return;
        };
        // Its own lock is held too.
        slot.dirty = held && slot.lock != Lock::Held;
        slot.writing = false;
        slot.pending = 1 << slot.from;
        let target = Target(slot.from);
        // Guests may wait for the range.
        let background = slot.lock != Lock::Held;
        cx.issue(
            tag(COPY, number, target),
            SubIo {
                target,
                op: Op::Read,
                flags: Flags::NONE,
                offset: at,
                len,
                data,
                background,
            },
        );
    }

    /// Locks the range of a piece. Returns whether it has it now; otherwise it returns its buffer.
    fn lock_copy(&mut self, cx: &mut LayoutCx<'_>, number: u32) -> bool {
        let Some(slot) = self.slot(number) else {
            return false;
        };
        slot.lock = Lock::Waits;
        let wanted = Wanted {
            id: COPY_LOCK | number,
            start: slot.at,
            end: slot.at + slot.len,
            mode: Mode::Exclusive,
        };
        let has = self.lock.acquire(wanted);
        if let Some(slot) = self.slot(number) {
            if has {
                slot.lock = Lock::Held;
            } else if let Some(data) = slot.data.take() {
                cx.release(data);
            }
        }
        has
    }

    /// The buffer of a piece. If it has none and there is none, it goes on with [`Mirror::feed_copies`].
    fn buffer_of(&mut self, cx: &mut LayoutCx<'_>, number: u32) -> Option<Data> {
        let slot = self.slot(number)?;
        if slot.data.is_none() {
            slot.data = cx.claim();
        }
        slot.data
    }

    /// There may be buffers for pieces that have their lock.
    pub(super) fn feed_copies(&mut self, cx: &mut LayoutCx<'_>) {
        let slots = self.copier.iter().flat_map(|copier| &copier.slots);
        let hungry = slots.filter(|slot| slot.lock == Lock::Held && slot.data.is_none());
        let hungry: Vec<u32> = hungry.map(|slot| slot.number).collect();
        for number in hungry {
            self.read_copy(cx, number);
        }
    }

    /// The range of a piece is locked.
    pub(super) fn copy_locked(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        match self.slot(number) {
            Some(slot) => {
                slot.lock = Lock::Held;
                self.read_copy(cx, number);
            }
            // Its member was dropped meanwhile.
            None => self.unlock(cx, COPY_LOCK | number),
        }
    }

    /// A guest writes to this range.
    pub(super) fn disturb_copies(&mut self, start: u64, end: u64) {
        if let Some(copier) = &mut self.copier {
            for slot in &mut copier.slots {
                slot.dirty |= slot.at < end && start < slot.at + slot.len;
            }
        }
    }

    /// An I/O of a copy has ended.
    pub(super) fn copied(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        member: u8,
        outcome: Outcome,
    ) {
        let bit = 1 << member;
        if number == FLUSH {
            return self.copies_flushed(cx, bit, outcome);
        }
        let to = self.copier.as_ref().map(|copier| match copier.member {
            Some(member) => 1 << member,
            None => self.active(),
        });
        let (Some(slot), Some(to)) = (self.slot(number), to) else {
            return self.late_copy(cx, number, bit);
        };
        slot.pending &= !bit;
        let writing = slot.writing;
        match (writing, outcome) {
            // A source that was dropped meanwhile has old bytes.
            (false, Ok(())) if self.in_sync & bit == 0 => {
                let from = self.next_in_sync(member);
                if let Some(slot) = self.slot(number) {
                    slot.from = from;
                }
                self.read_copy(cx, number);
            }
            (false, Ok(())) => {
                let to = to & !bit;
                let slot = self.slot(number).expect("it is here");
                (slot.writing, slot.pending) = (true, to);
                let (offset, len) = (slot.at, slot.len);
                let data = slot.data.expect("it was read into its buffer");
                let background = slot.lock != Lock::Held;
                for target in each(to) {
                    let sub = SubIo {
                        target,
                        op: Op::Write,
                        flags: Flags::NONE,
                        offset,
                        len,
                        data,
                        background,
                    };
                    cx.issue(tag(COPY, number, target), sub);
                }
                if to == 0 {
                    self.piece_copied(cx, number);
                }
            }
            (false, Err(fault)) => self.read_copy_elsewhere(cx, number, member, fault),
            (true, outcome) => {
                // While the disk opens, what the last member has is what the disk has, as for a guest's write.
                if let Err(fault) = outcome
                    && (self.in_sync & bit == 0 || self.can_spare(bit))
                {
                    self.drop_members(cx, bit, fault);
                    self.record(cx);
                }
                if self.slot(number).is_some_and(|slot| slot.pending == 0) {
                    self.piece_copied(cx, number);
                }
            }
        }
    }

    fn read_copy_elsewhere(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        member: u8,
        fault: Fault,
    ) {
        let in_sync = self.in_sync;
        let next = self.next_in_sync(member);
        let Some(slot) = self.slot(number) else {
            return;
        };
        slot.unreadable |= 1 << member;
        if in_sync & !slot.unreadable != 0 {
            slot.from = next;
            return self.read_copy(cx, number);
        }
        self.copies_failed(cx, member, fault);
    }

    /// No member can read a piece, or the copier has lost its source.
    fn copies_failed(&mut self, cx: &mut LayoutCx<'_>, member: u8, fault: Fault) {
        match self.syncing {
            Some(syncing) if self.opening_is_done() => {
                self.drop_members(cx, 1 << syncing.member, fault);
                self.record(cx);
            }
            _ => {
                self.abandon_copies(cx);
                self.recovery_failed(cx, Target(member), fault);
            }
        }
    }

    /// A piece is written to all that get it.
    fn piece_copied(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let Some(slot) = self.slot(number) else {
            return;
        };
        if slot.dirty {
            slot.tries += 1;
            return self.read_copy(cx, number);
        }
        let Some(copier) = &mut self.copier else {
            return;
        };
        let at = copier.slots.iter().position(|slot| slot.number == number);
        let slot = copier.slots.swap_remove(at.expect("it is here"));
        copier.copied += slot.len;
        if let Some(data) = slot.data {
            cx.release(data);
        }
        if slot.lock == Lock::Held {
            self.unlock(cx, COPY_LOCK | number);
        }
        self.advance_copies(cx);
    }

    /// Flushes those that got copies.
    fn flush_copies(&mut self, cx: &mut LayoutCx<'_>) {
        let active = self.active();
        let Some(copier) = &mut self.copier else {
            return;
        };
        let pending = match copier.member {
            Some(member) => 1 << member,
            None => active,
        };
        let last = copier.ranges.is_empty();
        copier.step = Step::Flushing { pending, last };
        for target in each(pending) {
            let sub = SubIo {
                target,
                op: Op::Flush,
                flags: Flags::NONE,
                offset: 0,
                len: 0,
                data: Data::NONE,
                background: true,
            };
            cx.issue(tag(COPY, FLUSH, target), sub);
        }
    }

    fn copies_flushed(&mut self, cx: &mut LayoutCx<'_>, bit: u32, outcome: Outcome) {
        let Some(copier) = &mut self.copier else {
            return;
        };
        let Step::Flushing { pending, last } = &mut copier.step else {
            return;
        };
        if *pending & bit == 0 {
            return;
        }
        *pending &= !bit;
        let (pending, last) = (*pending, *last);
        if let Err(fault) = outcome
            && (copier.member.is_some() || self.in_sync != bit)
        {
            self.drop_members(cx, bit, fault);
            self.record(cx);
        }
        if pending != 0 || self.copier.is_none() {
            return;
        }
        if last {
            return self.copies_ended(cx);
        }
        if let Some(copier) = &mut self.copier {
            let next = copier.ranges.iter().map(|(from, _)| *from).min();
            copier.since = 0;
            copier.step = Step::Copying;
            if let (Some(syncing), Some(_), Some(next)) = (&mut self.syncing, copier.member, next) {
                syncing.upto = next;
            }
        }
        self.records.version += 1;
        self.record(cx);
        self.advance_copies(cx);
    }

    /// Everything is copied and durable.
    fn copies_ended(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(copier) = self.copier.take() else {
            return;
        };
        let Some(member) = copier.member else {
            return self.recovery_ended(cx);
        };
        self.syncing = None;
        self.in_sync |= 1 << member;
        // What it missed may be forgotten below: if it is dropped before a state says so, it gets all bytes.
        self.since[usize::from(member)] = 0;
        if !self.is_degraded() {
            self.missed.clear();
            self.overflow = false;
        }
        self.records.version += 1;
        self.readmission.done(member);
        cx.notice(LayoutNotice::Rebuilt {
            member: Target(member),
        });
        self.record(cx);
    }

    /// Ends the copies. Those that are with members keep their buffers until they end.
    pub(super) fn abandon_copies(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(copier) = self.copier.take() else {
            return;
        };
        for slot in copier.slots {
            let (number, held) = (slot.number, slot.lock == Lock::Held);
            match slot.data {
                Some(data) if slot.pending == 0 => cx.release(data),
                Some(_) => {
                    cx.make_late();
                    self.abandoned.push(slot);
                }
                None => {}
            }
            if held {
                self.unlock(cx, COPY_LOCK | number);
            }
        }
    }

    /// Goes on with the copies to a member that were interrupted. Those that are with members could overwrite newer bytes,
    /// and are waited for.
    pub(super) fn resume_copies(&mut self, cx: &mut LayoutCx<'_>) {
        let idle = self.copier.is_none() && self.abandoned.is_empty();
        if !idle || self.paused || self.closing || !self.opening_is_done() {
            return;
        }
        if let Some(Syncing { member, full, upto }) = self.syncing {
            let ranges = self.lacks(full, upto);
            self.begin_copies(cx, Copier::new(Some(member), ranges), 0);
        }
    }

    /// The disk is to have this size: a member that gets all bytes gets the new ones too.
    pub(super) fn extend_copies(&mut self, size: u64) {
        let (old, full) = (self.size, self.syncing.is_some_and(|syncing| syncing.full));
        let Some(copier) = self.copier.as_mut().filter(|_| full && size > old) else {
            return;
        };
        // The last ones of all.
        copier.ranges.insert(0, (old, size));
        copier.total += size - old;
        if let Step::Flushing { last, .. } = &mut copier.step {
            *last = false;
        }
    }

    /// No copy waits for this member any more. What it had is copied again.
    pub(super) fn give_up_copies(&mut self, cx: &mut LayoutCx<'_>, member: u8) {
        let bit = 1 << member;
        let Some(copier) = &mut self.copier else {
            return;
        };
        let stuck = |slot: &mut Slot| slot.pending & bit != 0;
        let stuck: Vec<Slot> = copier.slots.extract_if(.., stuck).collect();
        for slot in &stuck {
            copier.ranges.push((slot.at, slot.at + slot.len));
        }
        let flushing = matches!(copier.step, Step::Flushing { .. });
        for slot in stuck {
            let (number, held) = (slot.number, slot.lock == Lock::Held);
            cx.make_late();
            self.abandoned.push(slot);
            if held {
                self.unlock(cx, COPY_LOCK | number);
            }
        }
        match flushing {
            true => self.copies_flushed(cx, bit, Err(Fault::Gone)),
            false => self.advance_copies(cx),
        }
    }

    fn late_copy(&mut self, cx: &mut LayoutCx<'_>, number: u32, bit: u32) {
        let place = self.abandoned.iter().position(|slot| slot.number == number);
        let Some(place) = place else { return };
        let slot = &mut self.abandoned[place];
        slot.pending &= !bit;
        if slot.pending == 0 {
            let slot = self.abandoned.swap_remove(place);
            if let Some(data) = slot.data {
                cx.release_late(data);
            }
            self.resume_copies(cx);
        }
    }
}

/// The number of a flush among copies.
const FLUSH: u32 = COPY_LOCK - 1;
