//! A scrub: all members in sync are read and compared by checksum, piece by piece.
//!
//! The range of a piece is locked while it is read, so that members are compared at one moment. With repair, the bytes of
//! the first member that could be read go over those that differ.
//!
//! # Always true
//! - a piece is compared while no write to it is under way

use super::{Mirror, SCRUB, SCRUB_LOCK, each, tag};
use crate::layout::{LayoutCx, LayoutNotice, OrderRefusal, SLOT, ScrubReport, SubIo, Target};
use crate::range_lock::{Mode, Wanted};
use crate::request::{Data, Flags, Op, Outcome};
use alloc::vec::Vec;

/// A scrub that is under way.
pub(super) struct Scrub {
    pub(super) report: ScrubReport,
    repair: bool,
    at: u64,
    step: Step,
    /// The number of the piece, so that late ends are told apart.
    number: u32,
    copies: Vec<Copy>,
    /// I/Os and checksums under way.
    left: u32,
    /// Whether it ends as soon as nothing of it is under way.
    ending: bool,
    /// Whether a guest waits for the piece's range.
    hurried: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It waits for the range, or for the arena.
    Waits,
    Holds,
    Reads,
    Sums,
    Writes,
}

/// What one member has.
struct Copy {
    member: Target,
    data: Data,
    read: bool,
    sum: Option<u32>,
}

impl Scrub {
    /// Whether all is compared that the disk had when the scrub began.
    fn is_at_end(&self) -> bool {
        self.at >= self.report.to_compare
    }

    fn piece_len(&self) -> u64 {
        SLOT.min(self.report.to_compare.saturating_sub(self.at))
    }
}

impl Mirror {
    pub(super) fn order_scrub(
        &mut self,
        cx: &mut LayoutCx<'_>,
        repair: bool,
    ) -> Result<(), OrderRefusal> {
        if !self.opening_is_done() || self.closing {
            return Err(OrderRefusal::NotOpen);
        }
        if self.scrub.is_some() || self.syncing.is_some() || self.in_sync.count_ones() < 2 {
            return Err(OrderRefusal::Busy);
        }
        self.scrub = Some(Scrub {
            report: ScrubReport {
                running: true,
                to_compare: self.size,
                ..ScrubReport::default()
            },
            repair,
            at: 0,
            step: Step::Waits,
            number: 0,
            copies: Vec::new(),
            left: 0,
            ending: false,
            hurried: false,
        });
        self.lock_piece(cx);
        Ok(())
    }

    /// A guest waits for this range. Returns whether the scrub has it.
    pub(super) fn hurry_scrub(&mut self, start: u64, end: u64) -> bool {
        let Some(scrub) = &mut self.scrub else {
            return false;
        };
        let to = scrub.at + scrub.piece_len();
        let has_it = scrub.step != Step::Waits && scrub.at < end && start < to;
        scrub.hurried |= has_it;
        has_it
    }

    fn lock_piece(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(scrub) = &mut self.scrub else { return };
        if scrub.is_at_end() {
            return self.end_scrub(cx);
        }
        scrub.step = Step::Waits;
        scrub.hurried = false;
        let at = scrub.at;
        let wanted = Wanted {
            id: SCRUB_LOCK,
            start: at,
            end: at + scrub.piece_len(),
            mode: Mode::Exclusive,
        };
        if self.lock.acquire(wanted) {
            self.scrub_locked(cx);
        }
    }

    /// The piece's range is locked.
    pub(super) fn scrub_locked(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(scrub) = &mut self.scrub else { return };
        scrub.step = Step::Holds;
        match scrub.ending {
            true => self.end_scrub(cx),
            false => self.advance_scrub(cx),
        }
    }

    /// Reads the piece, if there are buffers for all members.
    pub(super) fn advance_scrub(&mut self, cx: &mut LayoutCx<'_>) {
        let in_sync = self.in_sync;
        let Some(scrub) = self
            .scrub
            .as_mut()
            .filter(|scrub| scrub.step == Step::Holds)
        else {
            return;
        };
        let mut copies = Vec::new();
        for member in each(in_sync) {
            let Some(data) = cx.claim() else { break };
            copies.push(Copy {
                member,
                data,
                read: false,
                sum: None,
            });
        }
        if copies.len() < in_sync.count_ones() as usize {
            for copy in copies {
                cx.release(copy.data);
            }
            return;
        }
        scrub.number += 1;
        scrub.step = Step::Reads;
        scrub.left = in_sync.count_ones();
        scrub.copies = copies;
        let (at, number, len) = (scrub.at, scrub.number, scrub.piece_len());
        for copy in self.scrub.iter().flat_map(|scrub| &scrub.copies) {
            let sub = sub_io(copy.member, Op::Read, at, len, copy.data);
            cx.issue(tag(SCRUB, number, copy.member), sub);
        }
    }

    /// A member has ended its part.
    pub(super) fn scrub_io_done(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        member: u8,
        outcome: Outcome,
    ) {
        let Some(scrub) = self.scrub.as_mut().filter(|scrub| scrub.number == number) else {
            return;
        };
        scrub.left -= 1;
        if scrub.ending {
            return self.end_scrub(cx);
        }
        let writes = scrub.step == Step::Writes;
        let copy = scrub.copies.iter_mut().find(|copy| copy.member.0 == member);
        match (writes, outcome) {
            (true, Err(fault)) => {
                self.drop_members(cx, 1 << member, fault);
                return self.record(cx);
            }
            (false, Ok(())) => {
                if let Some(copy) = copy {
                    copy.read = true;
                }
            }
            _ => {}
        }
        let Some(scrub) = self.scrub.as_mut().filter(|scrub| scrub.left == 0) else {
            return;
        };
        if writes {
            scrub.report.repaired += 1;
            return self.next_piece(cx);
        }
        scrub.step = Step::Sums;
        let read = scrub.copies.iter().filter(|copy| copy.read).count();
        scrub.left = u32::try_from(read).expect("few members");
        let len = scrub.piece_len();
        for copy in scrub.copies.iter().filter(|copy| copy.read) {
            cx.sum(tag(SCRUB, number, copy.member), copy.data, len);
        }
        if read == 0 {
            self.compare(cx);
        }
    }

    pub(super) fn scrub_summed(
        &mut self,
        cx: &mut LayoutCx<'_>,
        number: u32,
        member: u8,
        sum: u32,
    ) {
        let Some(scrub) = self.scrub.as_mut().filter(|scrub| scrub.number == number) else {
            return;
        };
        scrub.left -= 1;
        if scrub.ending {
            return self.end_scrub(cx);
        }
        let last = scrub.left == 0;
        if let Some(copy) = scrub.copies.iter_mut().find(|copy| copy.member.0 == member) {
            copy.sum = Some(sum);
        }
        if last {
            self.compare(cx);
        }
    }

    /// All members' checksums are known.
    fn compare(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(scrub) = &mut self.scrub else { return };
        let good = scrub.copies.iter().find(|copy| copy.read);
        let good = good.map(|copy| (copy.sum, copy.data));
        let differs = |copy: &&Copy| good.is_some_and(|(sum, _)| copy.sum != sum);
        let wrong: Vec<Target> = scrub
            .copies
            .iter()
            .filter(differs)
            .map(|copy| copy.member)
            .collect();
        let unreadable = scrub.copies.iter().any(|copy| !copy.read);
        scrub.report.unreadable += u64::from(unreadable);
        if wrong.is_empty() {
            return self.next_piece(cx);
        }
        let at = scrub.at;
        if scrub
            .copies
            .iter()
            .any(|copy| copy.read && wrong.contains(&copy.member))
        {
            scrub.report.different += 1;
            scrub.report.first.get_or_insert(at);
        }
        let Some((_, data)) = good.filter(|_| scrub.repair) else {
            return self.next_piece(cx);
        };
        scrub.step = Step::Writes;
        scrub.left = u32::try_from(wrong.len()).expect("few members");
        let (number, background, len) = (scrub.number, !scrub.hurried, scrub.piece_len());
        for member in wrong {
            let sub = sub_io(member, Op::Write, at, len, data);
            let sub = SubIo {
                flags: Flags::FUA,
                background,
                ..sub
            };
            cx.issue(tag(SCRUB, number, member), sub);
        }
    }

    fn next_piece(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(scrub) = &mut self.scrub else { return };
        for copy in scrub.copies.drain(..) {
            cx.release(copy.data);
        }
        let len = scrub.piece_len();
        scrub.at += len;
        scrub.report.compared += len;
        self.unlock(cx, SCRUB_LOCK);
        self.lock_piece(cx);
    }

    /// Ends the scrub, at its end or before. What is with members keeps its buffers until it ends.
    pub(super) fn end_scrub(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(scrub) = &mut self.scrub else { return };
        let first = !core::mem::replace(&mut scrub.ending, true);
        let reads = matches!(scrub.step, Step::Reads | Step::Sums);
        let waits = scrub.step == Step::Waits && !scrub.is_at_end();
        if scrub.left > 0 || waits {
            // A write of a repair keeps its range, so that a guest's later write does not land before it.
            if first && reads {
                self.unlock(cx, SCRUB_LOCK);
            }
            return;
        }
        let Some(mut scrub) = self.scrub.take() else {
            return;
        };
        scrub.report.running = false;
        self.scrubbed = Some(scrub.report);
        cx.notice(LayoutNotice::Scrubbed(scrub.report));
        for copy in scrub.copies {
            cx.release(copy.data);
        }
        let holds = matches!(scrub.step, Step::Holds | Step::Writes);
        if holds || first && reads {
            self.unlock(cx, SCRUB_LOCK);
        }
    }
}

fn sub_io(target: Target, op: Op, offset: u64, len: u64, data: Data) -> SubIo {
    SubIo {
        target,
        op,
        flags: Flags::NONE,
        offset,
        len,
        data,
        background: true,
    }
}
