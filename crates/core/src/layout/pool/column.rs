//! A column of several members below a pool's disk: all of them have the same bytes (RAID 1).
//!
//! It stands between the pool layout and the members, for one disk. A write goes to all members that are used, and a read to
//! one of them. What the catalog says of a member ([`Standing`]) comes with the setup and by orders. A member that fails is
//! not used any more at once; what lacks it is answered once the catalog says, durably, that the member is behind. So no
//! state is on the members themselves, and all disks of the pool learn the same.
//!
//! # Always true
//! - C1 a write is answered after all members have it that the catalog calls in sync, or calls behind by then
//! - C2 the bytes that members get are the same: guests cannot change them on the way
//! - C3 a member is read only while the catalog calls it in sync and it has failed no write of this disk
//! - C4 writes that overlap are with the members one after the other; a read that overlaps a write under way waits for it
//! - C5 a member that was copied to is waited for from the moment on at which that is reported
//! - C6 the last member in sync stays: what it fails, fails
//!
//! # Picture
//! ```text
//!   pool ──write──> lock ──> copy, all members ──all have it──────────────────────────> answer
//!                                      └──one failed──> notice Behind ──order──> answer
//!   behind ──order──> syncing ──all copied: notice Rebuilt──> joining ──order──> in sync
//! ```
//!
//! # Source
//! The mirror layout ([`mirror`](crate::layout::mirror)), with its state in the pool's catalog.

use super::setup::Standing;
use crate::layout::slots::Slots;
use crate::layout::{
    BlockIo, BlockOutcome, DropCause, Layout, LayoutCx, LayoutIo, LayoutNotice, LayoutOrder, Map,
    MemberReport, MemberState, OrderRefusal, Ordered, Target,
};
use crate::range_lock::RangeLock;
use crate::request::{Fault, Flags, Op, Outcome};
use crate::units::{Span, Time};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use ops::{Doing, Piece};

mod ops;

/// See the module.
pub(crate) struct Column {
    members: u8,
    /// Members by what the catalog says of them, one bit each; the others are behind.
    in_sync: u32,
    syncing: u32,
    /// Those that have everything, before the catalog says so.
    joining: u32,
    /// Those that have failed, before the catalog says that they are behind. They get no I/O.
    failing: u32,
    /// Of these, the ones that the catalog was asked about.
    asked: u32,
    lock: RangeLock,
    ops: Slots<Doing>,
    pieces: Slots<Piece>,
    /// I/Os that wait for the arena, in order.
    hungry: VecDeque<u32>,
    /// I/Os that have ended on the members, and wait for the catalog.
    held: Vec<u32>,
    last_read: u8,
    /// Whether the disk only shows a generation: it writes nothing, and so no member lacks anything of it.
    is_view: bool,
    detaching: bool,
    /// When nothing waits for the catalog any more, because the disk is being detached.
    give_up_at: Option<Time>,
    /// Bytes that were copied to the member that is rebuilt.
    copied: u64,
    /// How often a member has begun to sync: what was begun before does not count for it.
    rounds: u32,
}

/// How long a disk that is being detached waits for the catalog. Origin: chosen; as long as a mirror's order to do without a
/// member.
const PATIENCE: Span = Span::from_secs(10);

const PIECE: u64 = 0;
const KIND: u64 = 7 << 61;
/// A block, not a part of an I/O.
const BLOCK_PIECE: u64 = 1 << 61;

fn tag(kind: u64, number: u32, member: u8) -> u64 {
    kind | u64::from(number) << 8 | u64::from(member)
}

fn untag(tag: u64) -> (u32, u8) {
    let [member, a, b, c, d, ..] = tag.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), member)
}

/// The members of a set.
fn each(members: u32) -> impl Iterator<Item = u8> {
    (0..32).filter(move |member| members >> member & 1 == 1)
}

impl Column {
    /// A column whose members are these.
    pub(crate) fn new(members: &[Standing]) -> Column {
        let of = |standing: Standing| {
            let members = (0..).zip(members).filter(|(_, it)| **it == standing);
            members.map(|(member, _)| 1_u32 << member).sum()
        };
        Column {
            members: u8::try_from(members.len()).expect("checked in the setup"),
            in_sync: of(Standing::InSync),
            syncing: of(Standing::Syncing),
            joining: 0,
            failing: 0,
            asked: 0,
            lock: RangeLock::new(),
            ops: Slots::new(),
            pieces: Slots::new(),
            hungry: VecDeque::new(),
            held: Vec::new(),
            last_read: 0,
            is_view: false,
            detaching: false,
            give_up_at: None,
            copied: 0,
            rounds: 0,
        }
    }

    /// The same for a disk that only shows a generation.
    pub(crate) fn of_view(members: &[Standing]) -> Column {
        Column {
            is_view: true,
            ..Column::new(members)
        }
    }

    /// Members that get writes.
    fn writers(&self) -> u32 {
        (self.in_sync | self.joining | self.syncing) & !self.failing
    }

    /// Members without which nothing is answered, until the catalog calls them behind.
    fn needed(&self) -> u32 {
        self.in_sync | self.joining
    }

    /// Members that may be read.
    fn readers(&self) -> u32 {
        self.in_sync & !self.failing
    }

    /// The member that the next read goes to: the least loaded one, in turn.
    fn reader(&mut self, cx: &LayoutCx<'_>, without: u32) -> Option<u8> {
        let readers = self.readers() & !without;
        let after = (1..=self.members).map(|step| (self.last_read + step) % self.members);
        let best = after
            .filter(|member| readers >> member & 1 == 1)
            .min_by_key(|member| cx.load(Target(*member)));
        self.last_read = best.unwrap_or(self.last_read);
        best
    }

    /// A member is not used from now on. One that others wait for is asked about: the catalog is to call it behind.
    fn lose(&mut self, cx: &mut LayoutCx<'_>, member: u8, cause: DropCause) {
        let bit = 1 << member;
        if self.syncing & bit != 0 {
            self.syncing &= !bit;
            let (member, fault) = (Target(member), cause.fault());
            return cx.notice(LayoutNotice::RebuildFailed { member, fault });
        }
        let is_last = self.readers() == bit;
        if self.needed() & bit == 0 || is_last {
            return;
        }
        self.failing |= bit;
        self.ask(cx, member, cause);
    }

    fn ask(&mut self, cx: &mut LayoutCx<'_>, member: u8, cause: DropCause) {
        if self.asked >> member & 1 == 0 {
            self.asked |= 1 << member;
            let member = Target(member);
            cx.notice(LayoutNotice::Behind { member, cause });
        }
    }

    /// The catalog says this of a member.
    fn stand(
        &mut self,
        cx: &mut LayoutCx<'_>,
        member: u8,
        standing: Standing,
    ) -> Result<Ordered, OrderRefusal> {
        let bit = 1 << member;
        match standing {
            Standing::Behind if self.in_sync == bit => return Err(OrderRefusal::Last),
            Standing::Behind => {
                let all = [
                    &mut self.in_sync,
                    &mut self.syncing,
                    &mut self.joining,
                    &mut self.failing,
                    &mut self.asked,
                ];
                all.into_iter().for_each(|set| *set &= !bit);
                if self.readers() == 0 {
                    // The others have failed something too, and one stays.
                    self.failing &= !self.in_sync;
                }
                self.give_up_on(cx, member);
                self.feed_hungry(cx);
                self.judge_held(cx);
            }
            Standing::Syncing if self.is_view => {}
            Standing::Syncing if self.needed() & bit != 0 => return Err(OrderRefusal::InSync),
            Standing::Syncing if self.syncing == bit => {}
            Standing::Syncing if (self.syncing | self.joining) != 0 => {
                return Err(OrderRefusal::Busy);
            }
            // What it still has from before could go over what is copied.
            Standing::Syncing if cx.load(Target(member)) > 0 => return Err(OrderRefusal::InFlight),
            Standing::Syncing => {
                (self.syncing, self.copied) = (bit, 0);
                self.rounds += 1;
            }
            Standing::InSync if self.is_view => {
                self.in_sync |= bit;
                self.failing &= !bit;
            }
            Standing::InSync if self.needed() & bit == 0 => return Err(OrderRefusal::Busy),
            Standing::InSync => {
                self.joining &= !bit;
                self.in_sync |= bit;
            }
        }
        Ok(Ordered::Now)
    }

    /// The catalog could not record that a member is behind.
    fn unrecorded(&mut self, cx: &mut LayoutCx<'_>, member: u8) {
        let bit = 1 << member;
        self.asked &= !bit;
        if self.in_sync == bit {
            self.failing &= !bit;
        }
        self.fail_held(cx, bit, Fault::Io);
    }

    /// While the disk is being detached, what waits for the catalog waits for some time.
    fn be_patient(&mut self, now: Time) {
        if self.detaching && !self.held.is_empty() {
            self.give_up_at.get_or_insert(now + PATIENCE);
        }
    }

    /// What is copied is all there: the member that is rebuilt is waited for from now on.
    fn join(&mut self, cx: &mut LayoutCx<'_>) {
        for member in each(core::mem::take(&mut self.syncing)) {
            self.joining |= 1 << member;
            let member = Target(member);
            cx.notice(LayoutNotice::Rebuilt { member });
        }
    }
}

impl Layout for Column {
    fn name(&self) -> &'static str {
        "column"
    }

    fn open(&mut self, cx: &mut LayoutCx<'_>, _usable: u32, _fresh: bool) {
        cx.opened(Ok(()));
    }

    fn map(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) -> Map {
        let is_read = !io.op.modifies() && io.op != Op::Flush && !io.flags.has(Flags::RESYNC);
        if self.members == 1 && !io.flags.has(Flags::RESYNC) {
            return Map::One {
                target: Target(0),
                offset: io.offset,
            };
        }
        let end = io.offset + io.len;
        if is_read && (self.lock.is_idle() || !self.lock.is_wanted(io.offset, end)) {
            let target = Target(self.reader(cx, 0).unwrap_or(0));
            return Map::One {
                target,
                offset: io.offset,
            };
        }
        if io.flags.has(Flags::FAST_ONLY) {
            // Some members may be able to and others not: then they would differ.
            return Map::Done(Err(Fault::Unsupported));
        }
        self.take(cx, io);
        Map::Issued
    }

    fn block(&mut self, cx: &mut LayoutCx<'_>, io: BlockIo) {
        self.take_block(cx, io);
    }

    fn failed(
        &mut self,
        cx: &mut LayoutCx<'_>,
        io: &LayoutIo,
        target: Target,
        fault: Fault,
        tries: u8,
    ) -> Map {
        let bit = 1 << target.0;
        let others = self.readers() & !bit;
        let is_own = matches!(fault, Fault::Invalid | Fault::Unsupported);
        if is_own || others == 0 || tries > self.members || io.op.modifies() {
            return Map::Done(Err(fault));
        }
        match fault {
            Fault::Gone => self.lose(cx, target.0, DropCause::Failed(fault)),
            _ => cx.notice(LayoutNotice::ReadFailed {
                member: target,
                fault,
            }),
        }
        // Each one in turn.
        let after = (1..=self.members).map(|step| (target.0 + step) % self.members);
        let next = after.into_iter().find(|member| others >> member & 1 == 1);
        Map::One {
            target: Target(next.unwrap_or(0)),
            offset: io.offset,
        }
    }

    fn done(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: Outcome) {
        let (piece, member) = untag(tag & !KIND);
        self.piece_done(cx, piece, member, outcome);
    }

    fn block_done(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: BlockOutcome) {
        let (piece, member) = untag(tag & !KIND);
        self.block_piece_done(cx, piece, member, outcome);
    }

    fn arena_ready(&mut self, cx: &mut LayoutCx<'_>) {
        self.feed_hungry(cx);
    }

    fn hung(&mut self, cx: &mut LayoutCx<'_>, target: Target) {
        let bit = 1 << target.0;
        if self.readers() == bit || self.writers() & bit == 0 {
            return;
        }
        self.lose(cx, target.0, DropCause::Hung);
        self.give_up_on(cx, target.0);
        // Those that found no buffer may need none now.
        self.feed_hungry(cx);
    }

    fn order(
        &mut self,
        cx: &mut LayoutCx<'_>,
        order: LayoutOrder,
    ) -> Result<Ordered, OrderRefusal> {
        match order {
            LayoutOrder::Standing { member, standing } => self.stand(cx, member.0, standing),
            LayoutOrder::Unrecorded(member) => {
                self.unrecorded(cx, member.0);
                Ok(Ordered::Now)
            }
            _ => Err(OrderRefusal::NotRedundant),
        }
    }

    fn report(&self, members: &mut Vec<MemberReport>) {
        members.extend((0..self.members).map(|member| {
            let bit = 1 << member;
            let state = match () {
                () if self.readers() & bit != 0 => MemberState::InSync,
                () if (self.syncing | self.joining) & bit != 0 => MemberState::Rebuilding,
                () => MemberState::OutOfSync,
            };
            MemberReport {
                state,
                is_tried: false,
                in_flight: 0,
                faults: 0,
                copied: match state {
                    MemberState::Rebuilding => self.copied,
                    _ => 0,
                },
                to_copy: 0,
            }
        }));
    }

    fn deadline(&self) -> Option<Time> {
        self.give_up_at
    }

    fn tick(&mut self, cx: &mut LayoutCx<'_>) {
        let now = cx.now();
        if self.give_up_at.take_if(|at| *at <= now).is_some() {
            self.fail_held(cx, u32::MAX, Fault::Gone);
        }
    }

    fn detaching(&mut self, cx: &mut LayoutCx<'_>) {
        self.detaching = true;
        self.be_patient(cx.now());
    }
}

#[cfg(test)]
mod tests;
