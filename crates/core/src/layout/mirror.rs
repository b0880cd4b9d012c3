//! The mirror layout (RAID 1): every member has all bytes of the disk.
//!
//! A write is copied to the arena, goes to all members in sync, and is answered once all have it. A read goes to the least
//! loaded one. Before the first write to a region, all members record that the region is hot; after a crash the hot regions
//! are made equal before the disk takes requests. A member that fails a write is dropped: the others record that before the
//! write is answered, so that a stale member is known whichever members are there at the next start. A member that comes
//! back gets the writes from then on, and what it lacks is copied to it.
//!
//! # Always true
//! - M1 a member in sync has every acknowledged write
//! - M2 the bytes that members get are the same: guests cannot change them on the way
//! - M3 no read returns older data than an answered write or an answered read
//! - M4 where members in sync differ, the region is hot in the recorded state
//! - M5 writes that overlap are with the members one after the other; a read that overlaps a write under way waits for it
//! - M6 a state is recorded on all members in sync before anything relies on it
//! - M7 a member is used again only after its earlier I/Os have ended
//!
//! # Picture
//! ```text
//!   write ──> lock ──> region hot? ──no──> record state ──┐
//!                          │ yes                          │
//!                          └──> copy, all members <───────┘
//!                                         │ one failed: drop it, record state
//!                                      answer
//! ```
//!
//! # Source
//! md's write-intent bitmap and event counter; DRBD's activity log and generation identifiers.

use super::slots::Slots;
use super::{
    BlockOutcome, DropCause, Layout, LayoutCx, LayoutIo, LayoutNotice, LayoutOrder, Map,
    MemberReport, MemberState, Members, OnLoss, OrderRefusal, Ordered, ScrubReport, Target,
};
use crate::block::BLOCK;
use crate::range_lock::RangeLock;
use crate::request::{Fault, IoId, Outcome};
use crate::units::{Span, Time};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use copier::Copier;
use loss::Loss;
use open::{Opening, Readmission};
use ops::{Op, Piece};
use records::{Hot, Records};
use scrub::Scrub;
use state::Syncing;

mod copier;
mod loss;
mod open;
mod ops;
mod orders;
mod records;
mod scrub;
pub mod state;

/// The most members.
pub const MEMBERS_MAX: usize = 4;
/// Where a member's states begin, in bytes: behind its label.
pub const STATE_AT: u64 = BLOCK as u64;

/// See the module.
pub struct Mirror {
    disk: [u8; 16],
    /// In bytes.
    size: u64,
    members: u8,
    /// Whether states are recorded on the members. Not while a disk moves: then member 0 leads.
    kept: bool,
    /// Whether the members of a new disk are equal.
    zeroed: bool,
    /// Members that must not be used at all, one bit each.
    without: u32,
    on_loss: OnLoss,
    in_sync: u32,
    /// The member that is being rebuilt.
    syncing: Option<Syncing>,
    /// For each member out of sync: the first state that says so. Zero for the others.
    since: [u64; MEMBERS_MAX],
    /// And the last durable state that had it in sync.
    until: [u64; MEMBERS_MAX],
    hot: BTreeMap<u32, Hot>,
    /// Regions that members out of sync may lack, besides the hot ones.
    missed: BTreeSet<u32>,
    /// Whether members out of sync may lack any region.
    overflow: bool,
    records: Records,
    lock: RangeLock,
    /// I/Os that the mirror has taken.
    ops: Slots<Op>,
    /// Their parts that are with the members.
    pieces: Slots<Piece>,
    /// Writes that wait for the arena, in order.
    hungry: VecDeque<u32>,
    /// Writes that wait for a region to become cold, because as many as possible are hot.
    crowded: Vec<u32>,
    /// Whether a flush of the mirror's own is under way.
    flushing: bool,
    /// Whether the disk is being detached, and no request is under way.
    closing: bool,
    /// Whether the disk is being detached.
    detaching: bool,
    /// Whether the work in the background is interrupted.
    paused: bool,
    /// Orders to do without a member that are not answered.
    dropping: u32,
    /// When they fail.
    dropped_by: Option<Time>,
    /// Since every member in sync is lost, if guests' I/O waits for one of them.
    loss: Option<Loss>,
    /// When idle regions are made cold.
    cool_at: Option<Time>,
    /// The member that the last read went to.
    last_read: u8,
    /// Each end of a write and each begin of a flush has a number of its own.
    moment: u64,
    opening: Option<Opening>,
    copier: Option<Copier>,
    /// Copies whose member was dropped and whose I/Os have not ended.
    abandoned: Vec<copier::Slot>,
    /// The number of the next copy.
    next_copy: u32,
    readmission: Readmission,
    scrub: Option<Scrub>,
    scrubbed: Option<ScrubReport>,
    /// Bytes a second that are copied at most; 0 for as many as possible.
    rate: u64,
    /// When it last had an I/O of a guest, as far as copies know.
    used_at: Option<Time>,
}

/// What a tag names.
const PIECE: u64 = 0;
const RECORD: u64 = 1 << 61;
const COPY: u64 = 2 << 61;
const STATE: u64 = 3 << 61;
const SCRUB: u64 = 4 << 61;
const KIND: u64 = 7 << 61;

/// Ranges that copies lock, not I/Os.
const COPY_LOCK: u32 = 1 << 31;
/// The range that a scrub locks.
const SCRUB_LOCK: u32 = u32::MAX;

/// Hot regions become cold after so long without a write. Origin: md's bitmap daemon sleeps 5 s.
const COOL_AFTER: Span = Span::from_secs(5);

impl Mirror {
    /// A mirror of `count` members of `size` bytes each.
    ///
    /// # Panics
    /// Unless there are 2 to [`MEMBERS_MAX`] members, and the size is a multiple of 4096; the plan refuses others before.
    pub fn new(members: &Members, count: u8, size: u64) -> Mirror {
        assert!(
            (2..=MEMBERS_MAX).contains(&usize::from(count)),
            "a mirror has 2 to {MEMBERS_MAX} members"
        );
        assert!(
            size.is_multiple_of(BLOCK as u64),
            "a mirror's size is a multiple of {BLOCK}"
        );
        Mirror {
            disk: members.disk,
            size,
            members: count,
            kept: true,
            zeroed: members.zeroed,
            without: 0,
            on_loss: members.on_loss,
            in_sync: 0,
            syncing: None,
            since: [0; MEMBERS_MAX],
            until: [0; MEMBERS_MAX],
            hot: BTreeMap::new(),
            missed: BTreeSet::new(),
            overflow: false,
            records: Records::default(),
            lock: RangeLock::new(),
            ops: Slots::new(),
            pieces: Slots::new(),
            hungry: VecDeque::new(),
            crowded: Vec::new(),
            flushing: false,
            closing: false,
            detaching: false,
            paused: false,
            dropping: 0,
            dropped_by: None,
            loss: None,
            cool_at: None,
            last_read: 0,
            moment: 0,
            opening: None,
            copier: None,
            abandoned: Vec::new(),
            next_copy: 0,
            readmission: Readmission::default(),
            scrub: None,
            scrubbed: None,
            rate: 0,
            used_at: None,
        }
    }

    /// The same, without these members, whatever they have: one bit each.
    #[must_use]
    pub fn without(mut self, members: u32) -> Mirror {
        self.without = members;
        self
    }

    /// A mirror in which member 0 leads and member 1 gets all bytes. No state is kept: after a crash member 1 is worthless.
    pub fn leading(size: u64) -> Mirror {
        let members = Members::new([0; 16], size, 2);
        let mut mirror = Mirror::new(&members, 2, size.next_multiple_of(BLOCK as u64));
        mirror.size = size;
        mirror.kept = false;
        mirror
    }

    /// Members that get writes, one bit each.
    fn active(&self) -> u32 {
        self.in_sync | self.syncing.map_or(0, |syncing| 1 << syncing.member)
    }

    fn all(&self) -> u32 {
        (1 << self.members) - 1
    }

    /// Whether the mirror can go on without these. One of those that stay must be in sync in the last durable state: a state
    /// that another member has may not know the others, and would take that member for the only one in sync.
    fn can_spare(&self, members: u32) -> bool {
        let left = self.in_sync & !members;
        match self.kept {
            true => left & self.records.last_in_sync != 0,
            false => left != 0,
        }
    }

    /// The member that stays if none can be spared.
    fn last_resort(&self) -> u32 {
        let trusted = self.in_sync & self.records.last_in_sync;
        let among = if trusted == 0 { self.in_sync } else { trusted };
        1 << among.trailing_zeros()
    }

    /// Whether the member without which the others are worthless is among these.
    fn leads(&self, members: u32) -> bool {
        !self.kept && members & 1 == 1
    }

    fn is_degraded(&self) -> bool {
        self.in_sync != self.all()
    }

    fn moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// The member that the next read goes to: the least loaded one in sync, in turn. In a move it is the leader: the other
    /// one may have a write that the leader fails, and is dropped then with what was read from it.
    fn reader(&mut self, cx: &LayoutCx<'_>) -> Target {
        if !self.kept {
            return Target(0);
        }
        let after = (1..=self.members).map(|step| (self.last_read + step) % self.members);
        let in_sync = self.in_sync;
        let ready = after.filter(|member| in_sync >> member & 1 == 1);
        let best = ready.min_by_key(|member| cx.load(Target(*member)));
        self.last_read = best.unwrap_or(self.last_read);
        Target(self.last_read)
    }

    /// The next member in sync after this one. There always is one.
    fn next_in_sync(&self, member: u8) -> u8 {
        let mut after = (1..=self.members).map(|step| (member + step) % self.members);
        after
            .find(|member| self.in_sync >> member & 1 == 1)
            .unwrap_or(member)
    }

    /// These members are not used from now on, because an I/O has failed.
    fn drop_members(&mut self, cx: &mut LayoutCx<'_>, dropped: u32, fault: Fault) {
        self.drop_for(cx, dropped, DropCause::Failed(fault));
    }

    /// These members are not used from now on. What is answered from now on waits until that is recorded.
    fn drop_for(&mut self, cx: &mut LayoutCx<'_>, dropped: u32, cause: DropCause) {
        let fault = cause.fault();
        let dropped = match self.leads(dropped) {
            // Only the leader's bytes count after a crash: the others are worthless without it.
            true => self.active() & !dropped,
            false => dropped & self.active(),
        };
        if dropped == 0 {
            return;
        }
        if let Some(Syncing { member, .. }) = self.syncing
            && dropped >> member & 1 == 1
        {
            self.syncing = None;
            // Copies of hot regions while the disk opens go on without it.
            if self.copier.as_ref().is_some_and(Copier::is_rebuild) {
                self.abandon_copies(cx);
            }
            let member = Target(member);
            cx.notice(LayoutNotice::RebuildFailed { member, fault });
        }
        for member in each(dropped & self.in_sync) {
            cx.notice(LayoutNotice::Dropped { member, cause });
        }
        self.in_sync &= !dropped;
        self.records.version += 1;
        self.records.set_at = self.records.version;
        for member in each(dropped) {
            self.readmission.later(member.0, cx.now());
        }
        if self.scrub.is_some() {
            self.end_scrub(cx);
        }
        self.refuse_new(cx, dropped, fault);
    }
}

impl Mirror {
    /// A member is dropped, and nothing waits any more for what it still has.
    fn do_without(&mut self, cx: &mut LayoutCx<'_>, member: u8, cause: DropCause) {
        // One that was dropped before may still have what others wait for.
        self.drop_for(cx, 1 << member, cause);
        self.give_up_reading(cx, member);
        self.give_up_on(cx, member);
        self.give_up_copies(cx, member);
        self.give_up_record(cx, member);
    }
}

/// The members of a set.
fn each(members: u32) -> impl Iterator<Item = Target> {
    (0..32)
        .filter(move |member| members >> member & 1 == 1)
        .map(Target)
}

impl Layout for Mirror {
    fn name(&self) -> &'static str {
        "mirror"
    }

    fn open(&mut self, cx: &mut LayoutCx<'_>, usable: u32, fresh: bool) {
        self.begin_opening(cx, usable & !self.without, fresh);
    }

    fn map(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) -> Map {
        self.take(cx, io)
    }

    fn failed(
        &mut self,
        cx: &mut LayoutCx<'_>,
        io: &LayoutIo,
        target: Target,
        fault: Fault,
        tries: u8,
    ) -> Map {
        if matches!(fault, Fault::Invalid | Fault::Unsupported) || !self.kept {
            return Map::Done(Err(fault));
        }
        let member = target;
        let others = self.in_sync & !(1 << member.0);
        if u32::from(tries) > self.in_sync.count_ones() || others == 0 {
            return match self.hold_read(cx, io, fault, tries) {
                true => Map::Issued,
                false => Map::Done(Err(fault)),
            };
        }
        let bit = 1 << member.0;
        if fault == Fault::Gone && self.can_spare(bit) {
            self.drop_members(cx, 1 << member.0, fault);
            self.record(cx);
        } else {
            cx.notice(LayoutNotice::ReadFailed { member, fault });
        }
        Map::One {
            target: Target(self.next_in_sync(member.0)),
            offset: io.offset,
        }
    }

    fn done(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: Outcome) {
        let [member, ..] = tag.to_le_bytes();
        let number = number(tag);
        match tag & KIND {
            COPY => self.copied(cx, number, member, outcome),
            SCRUB => self.scrub_io_done(cx, number, member, outcome),
            _ => self.piece_done(cx, number, member, outcome),
        }
    }

    fn block_done(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: BlockOutcome) {
        let [member, ..] = tag.to_le_bytes();
        match tag & KIND {
            RECORD => self.record_done(cx, u64::from(number(tag)), member, outcome.map(|_| ())),
            _ => self.state_read(cx, number(tag), member, outcome),
        }
    }

    fn summed(&mut self, cx: &mut LayoutCx<'_>, tag: u64, sum: u32) {
        let [member, ..] = tag.to_le_bytes();
        self.scrub_summed(cx, number(tag), member, sum);
    }

    fn arena_ready(&mut self, cx: &mut LayoutCx<'_>) {
        self.feed_hungry(cx);
        self.feed_copies(cx);
        self.advance_copies(cx);
        self.advance_scrub(cx);
    }

    fn hung(&mut self, cx: &mut LayoutCx<'_>, target: Target) {
        let bit = 1 << target.0;
        self.refuse_new(cx, bit & self.active(), Fault::Gone);
        let needed = self.in_sync & bit != 0 && !self.can_spare(bit);
        if needed && self.waits_after(Fault::Gone, false) {
            return self.lose(cx, Fault::Gone);
        }
        if needed || self.leads(bit) {
            return;
        }
        self.do_without(cx, target.0, DropCause::Hung);
        self.record(cx);
        // Those that found no buffer may need none now.
        self.feed_hungry(cx);
    }

    fn deadline(&self) -> Option<Time> {
        let copies = self.copies_at();
        let readmission = self.readmission_at();
        let loss = self.loss.as_ref().map(|loss| loss.at);
        [self.cool_at, copies, readmission, loss, self.dropped_by]
            .into_iter()
            .flatten()
            .min()
    }

    fn tick(&mut self, cx: &mut LayoutCx<'_>) {
        if self.cool_at.is_some_and(|at| at <= cx.now()) {
            self.cool_at = None;
            self.flush_own(cx);
        }
        if self.dropped_by.is_some_and(|at| at <= cx.now()) {
            self.answer_drops(cx, Err(OrderRefusal::Unrecorded));
        }
        if self.copies_at().is_some_and(|at| at <= cx.now()) {
            self.copies_due(cx);
        }
        if self.readmission_at().is_some_and(|at| at <= cx.now()) {
            self.readmit_next(cx);
        }
        if self.loss.as_ref().is_some_and(|loss| loss.at <= cx.now()) {
            self.probe(cx);
        }
    }

    fn order(
        &mut self,
        cx: &mut LayoutCx<'_>,
        order: LayoutOrder,
    ) -> Result<Ordered, OrderRefusal> {
        match order {
            LayoutOrder::Rebuild(member) => self.order_rebuild(cx, member.0),
            LayoutOrder::Replace(member) => self.order_replace(cx, member.0),
            LayoutOrder::Drop(member) => self.order_drop(cx, member.0),
            LayoutOrder::Scrub { repair } => self.order_scrub(cx, repair).map(|()| Ordered::Now),
            LayoutOrder::StopScrub => {
                self.end_scrub(cx);
                Ok(Ordered::Now)
            }
            LayoutOrder::CleanCache
            | LayoutOrder::GiveUpCache
            | LayoutOrder::CacheMode(_)
            | LayoutOrder::CacheAdmission(_)
            | LayoutOrder::GrowCache { .. }
            | LayoutOrder::ShrinkCache { .. } => Err(OrderRefusal::NotRedundant),
            LayoutOrder::Grant { .. }
            | LayoutOrder::NoSpace
            | LayoutOrder::SpaceAvailable
            | LayoutOrder::TakeSnapshot
            | LayoutOrder::RollBack(_)
            | LayoutOrder::DeleteGeneration(_)
            | LayoutOrder::Hold
            | LayoutOrder::Go
            | LayoutOrder::Vacate { .. }
            | LayoutOrder::Place { .. }
            | LayoutOrder::Readers(_)
            | LayoutOrder::HomeMoved { .. }
            | LayoutOrder::Standing { .. }
            | LayoutOrder::Unrecorded(_) => Err(OrderRefusal::NotPooled),
            LayoutOrder::Rate(rate) => {
                self.rate = rate;
                self.advance_copies(cx);
                Ok(Ordered::Now)
            }
            LayoutOrder::AddMember => self.order_add_member(),
            LayoutOrder::OnLoss(on_loss) => Ok(self.order_on_loss(cx, on_loss)),
            LayoutOrder::Timeout(_) => Ok(Ordered::Now),
        }
    }

    fn report(&self, members: &mut Vec<MemberReport>) {
        for member in 0..self.members {
            let rebuilding = self.syncing.is_some_and(|syncing| syncing.member == member);
            let state = match self.in_sync >> member & 1 {
                1 => MemberState::InSync,
                _ if rebuilding => MemberState::Rebuilding,
                _ => MemberState::OutOfSync,
            };
            let copier = self.copier.as_ref().filter(|_| rebuilding);
            members.push(MemberReport {
                state,
                is_tried: self.readmission.is_trying(member),
                in_flight: 0,
                faults: 0,
                copied: copier.map_or(0, |copier| copier.copied),
                to_copy: copier.map_or(0, |copier| copier.total),
            });
        }
    }

    fn scrubbed(&self) -> Option<ScrubReport> {
        let running = self.scrub.as_ref().map(|scrub| scrub.report);
        running.or(self.scrubbed)
    }

    fn labelled(&mut self, cx: &mut LayoutCx<'_>, target: Target, outcome: Outcome) {
        self.label_is_known(cx, target, outcome);
    }

    fn resize(&mut self, cx: &mut LayoutCx<'_>, size: u64) {
        self.extend_copies(size);
        self.size = size;
        self.advance_copies(cx);
    }

    fn waits(&self) -> bool {
        self.loss.is_some()
    }

    fn taken(&self, ios: &mut Vec<IoId>) {
        let ops = self.ops.iter().filter(|op| !op.gone);
        ios.extend(ops.filter_map(|op| op.io));
    }

    fn abandon(&mut self, cx: &mut LayoutCx<'_>, ios: &[IoId]) {
        for number in self.ops.numbers() {
            let op = self.ops.at(number);
            op.gone |= op.io.is_some_and(|io| ios.contains(&io));
        }
        self.end_abandoned(cx);
    }

    fn pause(&mut self, cx: &mut LayoutCx<'_>) {
        self.paused = true;
        self.abandon_copies(cx);
        self.end_scrub(cx);
    }

    fn resume(&mut self, cx: &mut LayoutCx<'_>) {
        self.paused = false;
        self.resume_copies(cx);
    }

    fn detaching(&mut self, cx: &mut LayoutCx<'_>) {
        self.detaching = true;
        self.fail_held(cx);
    }

    fn close(&mut self, cx: &mut LayoutCx<'_>) {
        self.closing = true;
        self.pause(cx);
        if self.opening_is_done() && !self.hot.is_empty() {
            self.flush_own(cx);
        }
    }
}

/// The number in a tag.
fn number(tag: u64) -> u32 {
    u32::try_from(tag >> 8 & 0xffff_ffff).expect("32 bits")
}

fn tag(kind: u64, number: u32, member: Target) -> u64 {
    kind | u64::from(number) << 8 | u64::from(member.0)
}
