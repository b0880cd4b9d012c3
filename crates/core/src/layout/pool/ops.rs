//! I/Os that change a pool's disk and do not go to one target at once: they are done in steps, and may wait in between.
//!
//! # Always true
//! - an I/O that was taken is either in one queue, or has sub-I/Os under way, or waits for a commit
//! - it is answered once, after all of its sub-I/Os; with FUA after the commit that follows them

use super::commit::Waiter;
use super::{Pool, State};
use crate::layout::{LayoutCx, LayoutIo, Map};
use crate::request::{Fault, Flags, Op, Outcome};
use crate::units::Span;
use alloc::collections::VecDeque;

/// Steps that an I/O may take at once. Origin: chosen; each looks at an extent, some hundred nanoseconds.
const STEPS: u32 = 1024;

/// How long an I/O with more steps waits for others. Origin: chosen; the next turn of the I/O thread.
const STEP_AFTER: Span = Span::from_micros(1);

/// An I/O that was taken.
pub(super) struct Writing {
    pub(super) io: LayoutIo,
    /// Up to here it was looked at, in bytes of the disk.
    pub(super) at: u64,
    /// Sub-I/Os under way.
    pub(super) left: u32,
    pub(super) outcome: Outcome,
}

/// What an I/O waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// An extent that is free and zeroed.
    Space,
    /// A buffer of the arena.
    Slot,
    /// The end of a copy.
    Lock,
    /// The end of a snapshot.
    Gate,
    /// Others.
    Step,
    /// A commit: too many headers are to be written.
    Commit,
    /// A write-intent record.
    Intent,
}

/// I/Os that wait, each kind in order.
#[derive(Default)]
pub(super) struct Waiting {
    queues: [VecDeque<u32>; 7],
}

impl Waiting {
    fn queue(&mut self, wait: Wait) -> &mut VecDeque<u32> {
        &mut self.queues[wait as usize]
    }

    pub(super) fn of(&self, wait: Wait) -> usize {
        self.queues[wait as usize].len()
    }

    /// All that wait.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> + '_ {
        self.queues.iter().flatten().copied()
    }

    pub(super) fn take(&mut self, wait: Wait) -> VecDeque<u32> {
        core::mem::take(self.queue(wait))
    }

    pub(super) fn remove(&mut self, op: u32) {
        for queue in &mut self.queues {
            queue.retain(|other| *other != op);
        }
    }
}

/// What one step has come to.
pub(super) enum Step {
    /// So many bytes were looked at.
    Done(u64),
    Wait(Wait),
}

impl Pool {
    /// Takes an I/O that changes the disk.
    pub(super) fn take_op(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) -> Map {
        if !matches!(self.state, State::Open) {
            return Map::Done(Err(Fault::Gone));
        }
        let op = self.ops.insert(Writing {
            io: *io,
            at: io.offset,
            left: 0,
            outcome: Ok(()),
        });
        self.advance(cx, op);
        self.go_on(cx);
        Map::Issued
    }

    /// Goes on with an I/O until it waits or has ended.
    pub(super) fn advance(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let mut steps = 0;
        loop {
            let op = self.ops.peek(number);
            let (io, at) = (op.io, op.at);
            let end = (io.offset + io.len).min(self.size.max(io.offset));
            if at >= end || op.outcome.is_err() {
                break;
            }
            let step = match io.op {
                _ if !self.gate.is_open() => Step::Wait(Wait::Gate),
                _ if steps == STEPS => Step::Wait(Wait::Step),
                _ if self.has_too_many_dirty() => Step::Wait(Wait::Commit),
                Op::Write => self.step_write(cx, number, &io, at, end - at),
                _ => self.step_zeroes(cx, number, &io, at, end - at),
            };
            steps += 1;
            match step {
                Step::Done(bytes) => self.ops.at(number).at += bytes,
                Step::Wait(wait) => return self.wait(cx, number, wait),
            }
        }
        if self.ops.peek(number).left == 0 {
            self.end(cx, number);
        }
    }

    fn wait(&mut self, cx: &mut LayoutCx<'_>, number: u32, wait: Wait) {
        self.waiting.queue(wait).push_back(number);
        match wait {
            Wait::Space if self.is_refused(cx.now()) => {
                self.waiting.remove(number);
                self.fail(cx, number, Fault::NoSpace);
            }
            // A grant may never come.
            Wait::Space if self.detaching && self.is_exhausted() => {
                self.waiting.remove(number);
                self.fail(cx, number, Fault::Gone);
            }
            Wait::Space => self.refill(cx),
            // A copy of an extent that moves is in the background until then.
            Wait::Lock if !self.relocation.moves.is_empty() => cx.hurry(),
            Wait::Step => self.step_at = Some(cx.now() + STEP_AFTER),
            Wait::Commit if self.waiters.is_empty() => self.waiters.push(Waiter::Nobody),
            _ => {}
        }
    }

    /// Goes on with those that wait for this, in order, until one of them waits for it again.
    pub(super) fn retry(&mut self, cx: &mut LayoutCx<'_>, wait: Wait) {
        for _ in 0..self.waiting.of(wait) {
            let Some(number) = self.waiting.queue(wait).pop_front() else {
                return;
            };
            let before = self.waiting.of(wait);
            self.advance(cx, number);
            let queue = self.waiting.queue(wait);
            if queue.len() > before && queue.back() == Some(&number) {
                // It stays the first one.
                queue.rotate_right(1);
                if matches!(wait, Wait::Space | Wait::Slot) {
                    return;
                }
                queue.rotate_left(1);
            }
        }
    }

    /// An I/O is not carried out any further.
    pub(super) fn fail(&mut self, cx: &mut LayoutCx<'_>, number: u32, fault: Fault) {
        let op = self.ops.at(number);
        op.outcome = op.outcome.and(Err(fault));
        if op.left == 0 {
            self.end(cx, number);
        }
    }

    /// One of its sub-I/Os is under way.
    pub(super) fn begin_piece(&mut self, number: u32) {
        self.ops.at(number).left += 1;
        self.pieces += 1;
    }

    /// One of its sub-I/Os has ended.
    pub(super) fn end_piece(&mut self, cx: &mut LayoutCx<'_>, number: u32, outcome: Outcome) {
        self.pieces -= 1;
        let op = self.ops.at(number);
        op.left -= 1;
        op.outcome = op.outcome.and(outcome);
        let (is_last, failed) = (op.left == 0, op.outcome.is_err());
        if is_last && failed {
            self.waiting.remove(number);
        }
        if is_last && (failed || !self.waiting.all().any(|it| it == number)) {
            self.end(cx, number);
        }
        self.go_through_gate(cx);
    }

    fn end(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let op = self.ops.remove(number);
        match op.outcome {
            Ok(()) if op.io.flags.has(Flags::FUA) => self.waiters.push(Waiter::Io(op.io.id)),
            outcome => cx.answer(op.io.id, outcome),
        }
        self.begin_commit(cx);
    }
}
