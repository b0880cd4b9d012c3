//! The loss of every member in sync, and guests' I/O that waits for one of them.
//!
//! Under [`OnLoss::Wait`], an I/O that no member in sync can do is not failed: it waits, and so do all later ones. The
//! states of these members are read again and again. The first member that answers with the state that it had last is used
//! alone, and the I/Os begin again. The others that were lost with it are dropped; they lack nothing but what comes now.
//!
//! A member that answers and fails the same I/O once more is not lost: the fault belongs to the I/O, which fails.
//!
//! # Always true
//! - a member that has missed an answered write is never waited for: nothing was answered after the loss
//! - an I/O that waits keeps the lock of its range, if it had it
//! - a write or flush whose client has disconnected does not wait
//!
//! # Picture
//! ```text
//!   last member fails an I/O ──> Loss ──every second──> probe ──answers──> the I/Os begin again
//!                                  └── detach, or policy `fail` ──> the I/Os fail
//! ```

use super::open::{PROBE, decode};
use super::state::State;
use super::{MEMBERS_MAX, Mirror, STATE, each, tag};
use crate::layout::{BlockOutcome, DropCause, LayoutCx, LayoutNotice, OnLoss, OrderRefusal};
use crate::request::{Fault, Outcome};
use crate::units::{Span, Time};
use alloc::vec::Vec;

/// How often lost members are probed. Origin: chosen; far below what guests notice after an outage.
const PROBE_EVERY: Span = Span::from_secs(1);

/// See the module.
pub(super) struct Loss {
    /// I/Os that wait, in order.
    held: Vec<Held>,
    /// When members are probed next.
    pub(super) at: Time,
    probes: [Probe; MEMBERS_MAX],
}

/// An I/O that waits.
struct Held {
    op: u32,
    next: Next,
}

/// How an I/O begins again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// From the beginning.
    Enter,
    /// It has its range, and goes to the members again.
    Issue,
}

/// The states of one member that are being read.
#[derive(Default)]
struct Probe {
    /// So many more.
    left: u8,
    newest: Option<State>,
    failed: bool,
}

impl Mirror {
    /// Whether an I/O that no member in sync can do waits. `tried`: it has failed on a member that was back.
    pub(super) fn waits_after(&self, fault: Fault, tried: bool) -> bool {
        let lost = match fault {
            Fault::Gone => true,
            Fault::Io => !tried,
            _ => false,
        };
        let open = self.kept && self.opening_is_done() && !self.detaching && !self.closing;
        lost && open && self.on_loss == OnLoss::Wait
    }

    /// Every member in sync is lost.
    pub(super) fn lose(&mut self, cx: &mut LayoutCx<'_>, fault: Fault) {
        if self.loss.is_some() {
            return;
        }
        let at = match fault {
            Fault::Gone => cx.now() + PROBE_EVERY,
            _ => cx.now(),
        };
        self.loss = Some(Loss {
            held: Vec::new(),
            at,
            probes: Default::default(),
        });
        self.answer_drops(cx, Err(OrderRefusal::Unrecorded));
        cx.notice(LayoutNotice::Waiting);
        if at <= cx.now() {
            self.probe(cx);
        }
    }

    /// An I/O waits for a member.
    pub(super) fn hold(&mut self, op: u32, next: Next) {
        if let Some(loss) = &mut self.loss {
            loss.held.push(Held { op, next });
        }
    }

    /// Reads the states of the lost members, unless they are being read.
    pub(super) fn probe(&mut self, cx: &mut LayoutCx<'_>) {
        self.end_abandoned(cx);
        let Some(loss) = &mut self.loss else { return };
        loss.at = cx.now() + PROBE_EVERY;
        for target in each(self.in_sync) {
            let probe = &mut loss.probes[usize::from(target.0)];
            if probe.left > 0 {
                continue;
            }
            *probe = Probe {
                left: 2,
                ..Probe::default()
            };
            for place in 0..2 {
                let offset = Mirror::state_at(place);
                cx.read_block(tag(STATE, PROBE + place, target), target, offset);
            }
        }
    }

    /// A state of a lost member was read.
    pub(super) fn probe_read(&mut self, cx: &mut LayoutCx<'_>, member: u8, outcome: BlockOutcome) {
        let (disk, members) = (self.disk, self.members);
        let Some(loss) = &mut self.loss else { return };
        let probe = &mut loss.probes[usize::from(member)];
        // One of an earlier loss may end late.
        let Some(left) = probe.left.checked_sub(1) else {
            return;
        };
        probe.left = left;
        probe.failed |= outcome.is_err();
        match decode(disk, members, member, outcome) {
            Ok(Some(state)) => {
                let known = &probe.newest;
                if known.as_ref().is_none_or(|k| k.sequence < state.sequence) {
                    probe.newest = Some(state);
                }
            }
            Ok(None) => {}
            Err(_) => probe.failed = true,
        }
        if left > 0 || probe.failed {
            return;
        }
        // An old copy has missed writes. And without a state that the others cannot contradict, it cannot be used alone.
        let known = self.records.last..=self.records.sequence;
        let is_current = probe.newest.as_ref().is_some_and(|state| {
            known.contains(&state.sequence) && state.in_sync >> member & 1 == 1
        });
        let is_trusted = self.in_sync & self.records.last_in_sync & 1 << member != 0;
        if is_current && is_trusted {
            self.found_again(cx, member);
        }
    }

    /// A lost member is back: it is used alone, and the I/Os begin again.
    fn found_again(&mut self, cx: &mut LayoutCx<'_>, member: u8) {
        let Some(loss) = self.loss.take() else { return };
        cx.notice(LayoutNotice::Resumed);
        for other in each(self.in_sync & !(1 << member)) {
            self.do_without(cx, other.0, DropCause::Failed(Fault::Gone));
        }
        self.records.retried = self.records.durable < self.records.version;
        self.record(cx);
        for Held { op, next } in loss.held {
            self.ops.at(op).retried = true;
            match next {
                Next::Enter => self.enter(cx, op),
                Next::Issue => self.issue(cx, op),
            }
        }
    }

    /// I/Os that wait for a member fail.
    pub(super) fn fail_held(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(loss) = self.loss.take() else { return };
        cx.notice(LayoutNotice::Lost);
        // What the members have of these writes may differ.
        let stays = self.last_resort();
        self.drop_members(cx, self.in_sync & !stays, Fault::Gone);
        self.fail_waiting(cx);
        for Held { op, next } in loss.held {
            self.fail_one(cx, op, next, Err(Fault::Io));
        }
    }

    /// Fails what waits though its client has disconnected. Nothing is answered as if it were done, and one member stays at the
    /// end of the loss: so the disk has either what a write has reached there, or not.
    pub(super) fn end_abandoned(&mut self, cx: &mut LayoutCx<'_>) {
        // Others may wait for the ranges of these.
        while let Some(loss) = &mut self.loss {
            let ops = &self.ops;
            let is_gone = |op: u32| ops.get(op).is_some_and(|op| op.gone);
            let held = loss.held.extract_if(.., |held| is_gone(held.op));
            let held: Vec<Held> = held.collect();
            let waiting = &mut self.records.waiting;
            let unrecorded = waiting.extract_if(.., |(_, op)| is_gone(*op));
            let unrecorded: Vec<(u64, u32)> = unrecorded.collect();
            if held.is_empty() && unrecorded.is_empty() {
                return;
            }
            for Held { op, next } in held {
                self.fail_one(cx, op, next, Err(Fault::Gone));
            }
            for (_, op) in unrecorded {
                self.end(cx, op, Err(Fault::Gone));
            }
        }
    }

    fn fail_one(&mut self, cx: &mut LayoutCx<'_>, op: u32, next: Next, outcome: Outcome) {
        match (next, self.ops.at(op).io) {
            // It has no lock.
            (Next::Enter, Some(io)) => {
                self.ops.remove(op);
                cx.answer(io, outcome);
            }
            _ => self.end(cx, op, outcome),
        }
    }
}
