//! The mirror layout (RAID 1): every member has all bytes of the disk.
//!
//! A write goes to all members in sync, and is answered once all have it. A read goes to one of them. Before the first
//! write to a region, all members record that the region is hot; after a crash the hot regions are made equal before the
//! disk takes requests. A member that fails a write is dropped: the others record that before the write is answered, so
//! that a stale member is known whichever members are there at the next start.
//!
//! # Always true
//! - M1 a member in sync has every acknowledged write
//! - M3 no read returns older data than an answered write or an answered read
//! - M4 where members in sync differ, the region is hot in the recorded state
//! - writes that overlap are with the members one after the other; a read that overlaps a write under way waits for it
//! - a state is recorded on all members in sync before anything relies on it
//!
//! # Picture
//! ```text
//!   write ──> lock ──> region hot? ──no──> record state ──┐
//!                          │ yes                          │
//!                          └────────> all members <───────┘
//!                                         │ one failed: drop it, record state
//!                                      answer
//! ```
//!
//! # Source
//! md's write-intent bitmap and event counter; DRBD's activity log and generation identifiers.

use super::{Layout, LayoutCx, Map, Refusal, SubIo, Target};
use crate::block::BLOCK;
use crate::filter::Io;
use crate::range_lock::{Mode, RangeLock, Wanted};
use crate::request::{Data, Fault, Flags, IoId, Op, Outcome};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use open::Opening;
use state::{HOT_MAX, REGION, State};

pub use open::PIECE;

mod open;
pub mod state;

/// The most members.
pub const MEMBERS_MAX: usize = 4;
/// Bytes behind the disk's own that each member has for its state.
pub const STATE_BYTES: u64 = 2 * BLOCK as u64;

/// See the module.
pub struct Mirror {
    disk: [u8; 16],
    /// Where the members' states begin, in bytes.
    state_at: u64,
    members: u8,
    /// What is recorded, or about to be.
    in_sync: u32,
    hot: BTreeMap<u32, Hot>,
    records: Records,
    lock: RangeLock,
    /// I/Os that the mirror has taken.
    ops: Vec<Option<Taken>>,
    free: Vec<u32>,
    /// Writes that wait for a region to become cold, because as many as possible are hot.
    crowded: Vec<u32>,
    /// Whether a flush of the mirror's own is under way.
    flushing: bool,
    /// Whether the disk is being detached.
    closing: bool,
    /// Memory to copy a piece through.
    scratch: Data,
    /// The member that the last read went to.
    last_read: u8,
    /// Each end of a write and each begin of a flush has a number of its own.
    moment: u64,
    opening: Option<Opening>,
}

/// A hot region.
#[derive(Clone, Copy, Debug, Default)]
struct Hot {
    /// The version of the state that has it.
    since: u64,
    /// Writes under way.
    writes: u32,
    /// When the last write ended.
    ended: u64,
}

/// What is recorded on the members, and who waits for it.
#[derive(Default)]
struct Records {
    /// The sequence of the last state that was written to members. It grows by one, so that places alternate.
    sequence: u64,
    /// The version of the state as it stands here.
    version: u64,
    /// The version that all members in sync have.
    durable: u64,
    /// The version since which the members in sync are these.
    set_at: u64,
    /// The version that is being written, and for how many members it waits.
    writing: Option<(u64, u32)>,
    /// Members that failed to write it.
    failed: u32,
    /// Which I/Os wait for which state.
    waiting: Vec<(u64, u32)>,
}

/// An I/O that the mirror has taken.
struct Taken {
    /// None for a flush of the mirror's own.
    io: Option<IoId>,
    op: Op,
    sub: SubIo,
    stage: Stage,
    /// Whether its regions count it.
    counted: bool,
    /// Members that have not answered.
    left: u32,
    /// Members that have failed.
    failed: u32,
    fault: Option<Fault>,
    /// For a flush: when it began.
    began: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// For its range, or for its regions to be recorded as hot.
    Waits,
    /// With the members.
    Issued,
    /// For a state without the members that failed it.
    Drops,
}

/// What a sub-I/O's tag names.
const OP: u64 = 0;
const RECORD: u64 = 1 << 62;
const OPEN: u64 = 2 << 62;
const KIND: u64 = 3 << 62;

impl Mirror {
    /// A mirror of this disk over so many members. `size` is the disk's, in bytes; each member has [`STATE_BYTES`] more.
    /// `scratch` is [`PIECE`] bytes of memory that are the mirror's alone.
    ///
    /// # Panics
    /// Unless there are 2 to [`MEMBERS_MAX`] members, and the size is a multiple of 4096; the plan refuses others before.
    pub fn new(disk: [u8; 16], members: u8, size: u64, scratch: Data) -> Mirror {
        assert!(
            (2..=MEMBERS_MAX).contains(&usize::from(members)),
            "a mirror has 2 to {MEMBERS_MAX} members"
        );
        assert!(
            size.is_multiple_of(BLOCK as u64),
            "a mirror's size is a multiple of {BLOCK}"
        );
        Mirror {
            disk,
            state_at: size,
            members,
            in_sync: 0,
            hot: BTreeMap::new(),
            records: Records::default(),
            lock: RangeLock::new(),
            ops: Vec::new(),
            free: Vec::new(),
            crowded: Vec::new(),
            flushing: false,
            closing: false,
            scratch,
            last_read: 0,
            moment: 0,
            opening: None,
        }
    }

    /// The state of a new mirror, whose members are all in sync, as a member's block and where it lies on the member.
    pub fn first_state(&self, member: u8) -> (u64, Box<[u8; BLOCK]>) {
        let state = State {
            disk: self.disk,
            sequence: 1,
            in_sync: (1 << self.members) - 1,
            members: self.members,
            hot: Vec::new(),
        };
        (self.state_place(1), state.encode(member))
    }

    /// The members that have every acknowledged write, one bit each.
    pub fn in_sync(&self) -> u32 {
        self.in_sync
    }

    fn state_place(&self, sequence: u64) -> u64 {
        self.state_at + sequence % 2 * BLOCK as u64
    }

    fn tick(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// The member that the next read goes to.
    fn reader(&mut self) -> Target {
        self.last_read = self.next_in_sync(self.last_read);
        Target(self.last_read)
    }

    /// The next member in sync after this one. There always is one.
    fn next_in_sync(&self, member: u8) -> u8 {
        let mut after = (1..=self.members).map(|step| (member + step) % self.members);
        after
            .find(|member| self.in_sync >> member & 1 == 1)
            .unwrap_or(member)
    }

    fn take(&mut self, taken: Taken) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.ops[place as usize] = Some(taken);
                place
            }
            None => {
                self.ops.push(Some(taken));
                u32::try_from(self.ops.len() - 1).expect("I/Os in flight are far fewer")
            }
        }
    }

    fn op(&mut self, place: u32) -> &mut Taken {
        self.ops[place as usize]
            .as_mut()
            .expect("the I/O has not ended")
    }

    /// Ends an I/O that the mirror has taken.
    fn end(&mut self, cx: &mut LayoutCx<'_>, place: u32, outcome: Outcome) {
        let taken = self.ops[place as usize]
            .take()
            .expect("the I/O has not ended");
        self.free.push(place);
        match taken.io {
            Some(io) => cx.answer(io, outcome),
            None => return self.own_flush_ended(cx, outcome),
        }
        if taken.op.modifies() {
            if taken.counted {
                self.uncount(&taken.sub);
            }
            self.unlock(cx, place);
        }
    }

    /// A write to these regions has ended.
    fn uncount(&mut self, sub: &SubIo) {
        let moment = self.tick();
        for region in regions(sub) {
            let hot = self
                .hot
                .get_mut(&region)
                .expect("a written region stays hot");
            hot.writes -= 1;
            hot.ended = moment;
        }
    }

    /// Lets those go on that waited for a range.
    fn unlock(&mut self, cx: &mut LayoutCx<'_>, place: u32) {
        let mut started = Vec::new();
        self.lock.release(place, &mut started);
        for place in started {
            self.locked(cx, place);
        }
    }

    /// An I/O has its range.
    fn locked(&mut self, cx: &mut LayoutCx<'_>, place: u32) {
        if self.op(place).op.modifies() {
            return self.heat(cx, place);
        }
        // A read only had to wait.
        let taken = self.ops[place as usize]
            .take()
            .expect("the I/O has not ended");
        self.free.push(place);
        let io = taken.io.expect("a read is a guest's or a filter's");
        let target = self.reader();
        cx.send(io, target, taken.sub.offset);
        self.unlock(cx, place);
    }

    /// Makes the regions of a write hot, then issues it.
    fn heat(&mut self, cx: &mut LayoutCx<'_>, place: u32) {
        let range = regions(&self.op(place).sub);
        let cold =
            |hot: &BTreeMap<u32, Hot>| range.clone().filter(|r| !hot.contains_key(r)).count();
        if self.hot.len() + cold(&self.hot) > HOT_MAX {
            self.forget_cold();
        }
        let new = cold(&self.hot);
        if self.hot.len() + new > HOT_MAX {
            self.crowded.push(place);
            return self.flush_own(cx);
        }
        if new > 0 {
            self.records.version += 1;
        }
        let version = self.records.version;
        let mut since = 0;
        for region in range {
            let hot = self.hot.entry(region).or_insert(Hot {
                since: version,
                ..Hot::default()
            });
            hot.writes += 1;
            since = since.max(hot.since);
        }
        self.op(place).counted = true;
        self.after_record(cx, place, since);
    }

    /// Flushes the members, so that regions become cold.
    fn flush_own(&mut self, cx: &mut LayoutCx<'_>) {
        if core::mem::replace(&mut self.flushing, true) {
            return;
        }
        let began = self.tick();
        let place = self.take(Taken {
            io: None,
            op: Op::Flush,
            sub: SubIo {
                target: Target(0),
                op: Op::Flush,
                flags: Flags::NONE,
                offset: 0,
                len: 0,
                data: Data::NONE,
            },
            stage: Stage::Waits,
            counted: false,
            left: 0,
            failed: 0,
            fault: None,
            began,
        });
        self.issue(cx, place);
    }

    fn own_flush_ended(&mut self, cx: &mut LayoutCx<'_>, outcome: Outcome) {
        self.flushing = false;
        self.forget_cold();
        if self.closing {
            self.records.version += 1;
            return self.record(cx);
        }
        for place in core::mem::take(&mut self.crowded) {
            match outcome {
                Ok(()) => self.heat(cx, place),
                Err(fault) => self.end(cx, place, Err(fault)),
            }
        }
    }

    /// Goes on with an I/O once this version of the state is recorded.
    fn after_record(&mut self, cx: &mut LayoutCx<'_>, place: u32, version: u64) {
        if self.records.durable >= version {
            return self.recorded(cx, place);
        }
        self.records.waiting.push((version, place));
        self.record(cx);
    }

    /// Writes the state as it stands, unless one is being written.
    fn record(&mut self, cx: &mut LayoutCx<'_>) {
        if self.records.writing.is_some() || self.records.durable >= self.records.version {
            return;
        }
        self.records.sequence += 1;
        let state = State {
            disk: self.disk,
            sequence: self.records.sequence,
            in_sync: self.in_sync,
            members: self.members,
            hot: self.hot.keys().copied().collect(),
        };
        let place = self.state_place(state.sequence);
        self.records.writing = Some((self.records.version, self.in_sync.count_ones()));
        for target in each(self.in_sync) {
            let tag = RECORD | u64::from(target.0);
            cx.write_block(tag, target, place, state.encode(target.0));
        }
    }

    /// A member has the state that is being written, or failed to write it.
    fn record_done(&mut self, cx: &mut LayoutCx<'_>, member: u8, outcome: Outcome) {
        if outcome.is_err() {
            self.records.failed |= 1 << member;
        }
        let Some((version, left)) = self.records.writing else {
            unreachable!("a record is being written");
        };
        if left > 1 {
            self.records.writing = Some((version, left - 1));
            return;
        }
        self.records.writing = None;
        let failed = core::mem::take(&mut self.records.failed) & self.in_sync;
        if failed == self.in_sync {
            // No member can record anything: what waits for it fails, and so does every write from now on.
            return self.fail_waiting(cx);
        }
        if failed != 0 {
            self.drop_members(failed);
            return self.record(cx);
        }
        self.records.durable = version;
        if self.opening.is_some() {
            return self.recovered(cx);
        }
        let waiting = core::mem::take(&mut self.records.waiting);
        let (ready, rest) = waiting
            .into_iter()
            .partition(|(wanted, _)| *wanted <= version);
        self.records.waiting = rest;
        let ready: Vec<(u64, u32)> = ready;
        for (_, place) in ready {
            self.recorded(cx, place);
        }
        self.record(cx);
    }

    fn fail_waiting(&mut self, cx: &mut LayoutCx<'_>) {
        if self.opening.is_some() {
            self.opening = None;
            return cx.opened(Err(Refusal::Failed(Fault::Io)));
        }
        for (_, place) in core::mem::take(&mut self.records.waiting) {
            self.end(cx, place, Err(Fault::Io));
        }
    }

    /// The state that an I/O waited for is recorded.
    fn recorded(&mut self, cx: &mut LayoutCx<'_>, place: u32) {
        match self.op(place).stage {
            Stage::Waits => self.issue(cx, place),
            Stage::Drops => self.end(cx, place, Ok(())),
            Stage::Issued => unreachable!("an issued I/O waits for its members only"),
        }
    }

    /// Gives an I/O to all members in sync.
    fn issue(&mut self, cx: &mut LayoutCx<'_>, place: u32) {
        let members = self.in_sync;
        let taken = self.op(place);
        (taken.stage, taken.left) = (Stage::Issued, members.count_ones());
        let sub = taken.sub;
        for target in each(members) {
            let tag = OP | u64::from(place) << 8 | u64::from(target.0);
            cx.issue(tag, SubIo { target, ..sub });
        }
    }

    fn op_done(&mut self, cx: &mut LayoutCx<'_>, place: u32, member: u8, outcome: Outcome) {
        let taken = self.op(place);
        taken.left -= 1;
        if let Err(fault) = outcome {
            taken.failed |= 1 << member;
            taken.fault.get_or_insert(fault);
        }
        if taken.left > 0 {
            return;
        }
        let (failed, fault, op, began) = (taken.failed, taken.fault, taken.op, taken.began);
        let failed = failed & self.in_sync;
        if failed == 0 {
            if op == Op::Flush {
                self.cool(began);
            }
            // Others may have dropped a member meanwhile: nothing is answered before that is recorded.
            self.op(place).stage = Stage::Drops;
            return self.after_record(cx, place, self.records.set_at);
        }
        // Of those that failed together one stays: what it has is what the disk has.
        let all = failed == self.in_sync;
        let dropped = if all { failed & (failed - 1) } else { failed };
        self.drop_members(dropped);
        if let (Some(fault), true) = (fault, all) {
            self.end(cx, place, Err(fault));
            return self.record(cx);
        }
        self.op(place).stage = Stage::Drops;
        self.after_record(cx, place, self.records.set_at);
    }

    /// These members are out of sync from now on; what is answered from now on waits until that is recorded.
    fn drop_members(&mut self, dropped: u32) {
        if dropped & self.in_sync != 0 {
            self.in_sync &= !dropped;
            self.records.version += 1;
            self.records.set_at = self.records.version;
        }
    }

    /// A flush that began at this moment has ended: regions without a later write are equal on all members.
    fn cool(&mut self, began: u64) {
        for hot in self.hot.values_mut() {
            if hot.writes == 0 && hot.ended < began {
                hot.ended = 0;
            }
        }
        if self.hot.len() > HOT_MAX / 2 {
            self.forget_cold();
        }
    }

    /// Forgets the regions that are equal on all members; the next record says so.
    fn forget_cold(&mut self) {
        self.hot.retain(|_, hot| hot.writes > 0 || hot.ended > 0);
    }
}

/// The members of a set.
fn each(members: u32) -> impl Iterator<Item = Target> {
    (0..32)
        .filter(move |member| members >> member & 1 == 1)
        .map(Target)
}

/// The regions of a write.
fn regions(sub: &SubIo) -> core::ops::Range<u32> {
    let region = |at: u64| u32::try_from(at / REGION).expect("a disk is far below 4 PiB");
    match sub.len {
        0 => 0..0,
        len => region(sub.offset)..region(sub.offset + len - 1) + 1,
    }
}

impl Layout for Mirror {
    fn name(&self) -> &'static str {
        "mirror"
    }

    fn targets(&self) -> usize {
        self.members.into()
    }

    fn open(&mut self, cx: &mut LayoutCx<'_>) {
        self.begin_opening(cx);
    }

    fn map(&mut self, cx: &mut LayoutCx<'_>, io: &Io) -> Map {
        let reads = !io.op.modifies() && io.op != Op::Flush;
        if reads && self.lock.is_idle() {
            return Map::One {
                target: self.reader(),
                offset: io.offset,
            };
        }
        // What a discard leaves could differ between members: zeroes do not.
        let (op, flags) = match io.op {
            Op::Discard => (Op::WriteZeroes, io.flags.with(Flags::MAY_UNMAP)),
            op => (op, io.flags),
        };
        let began = self.tick();
        let place = self.take(Taken {
            io: Some(io.id),
            op,
            sub: SubIo {
                target: Target(0),
                op,
                flags,
                offset: io.offset,
                len: io.len,
                data: io.data,
            },
            stage: Stage::Waits,
            counted: false,
            left: 0,
            failed: 0,
            fault: None,
            began,
        });
        if io.op == Op::Flush {
            self.issue(cx, place);
            return Map::Issued;
        }
        let wanted = Wanted {
            id: place,
            start: io.offset,
            end: io.offset + io.len,
            mode: if reads { Mode::Shared } else { Mode::Exclusive },
        };
        if self.lock.acquire(wanted) {
            self.locked(cx, place);
        }
        Map::Issued
    }

    fn failed(&mut self, _cx: &mut LayoutCx<'_>, io: &Io, fault: Fault) -> Map {
        if u32::from(io.tries) >= self.in_sync.count_ones() {
            return Map::Done(Err(fault));
        }
        Map::One {
            target: Target(self.next_in_sync(io.target.0)),
            offset: io.offset,
        }
    }

    fn done(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: Outcome) {
        let [member, ..] = tag.to_le_bytes();
        if tag & KIND == OPEN {
            return self.copy_done(cx, member, outcome);
        }
        let place = u32::try_from(tag >> 8).expect("a tag of ours");
        self.op_done(cx, place, member, outcome);
    }

    fn block_done(
        &mut self,
        cx: &mut LayoutCx<'_>,
        tag: u64,
        outcome: Result<Option<Box<[u8; BLOCK]>>, Fault>,
    ) {
        let [low, ..] = tag.to_le_bytes();
        if tag & KIND == OPEN {
            return self.opening_block(cx, low, outcome);
        }
        self.record_done(cx, low, outcome.map(|_| ()));
    }

    fn close(&mut self, cx: &mut LayoutCx<'_>) {
        self.closing = true;
        if self.opening.is_none() && !self.hot.is_empty() {
            self.flush_own(cx);
        }
    }
}
