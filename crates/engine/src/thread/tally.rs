//! The counters of an I/O thread.
//!
//! # Always true
//! - busy, spinning and sleeping time add up to the thread's life, within a turn

use tidegate_core::units::{Span, Time};

/// See the module.
pub(crate) struct Tally {
    began: Time,
    mark: Time,
    pub(crate) busy: Span,
    pub(crate) spinning: Span,
    pub(crate) sleeping: Span,
    pub(crate) turns: u64,
    pub(crate) empty_turns: u64,
    pub(crate) wakes: u64,
}

impl Tally {
    pub(crate) fn new(now: Time) -> Tally {
        Tally {
            began: now,
            mark: now,
            busy: Span::ZERO,
            spinning: Span::ZERO,
            sleeping: Span::ZERO,
            turns: 0,
            empty_turns: 0,
            wakes: 0,
        }
    }

    /// A turn ends at `now`; the time since the last mark was spent working.
    pub(crate) fn turn(&mut self, now: Time, worked: bool) {
        self.busy = self.busy + now.since(self.mark);
        self.mark = now;
        self.turns += 1;
        self.empty_turns += u64::from(!worked);
    }

    /// The thread polled from `from` to `to`.
    pub(crate) fn spun(&mut self, from: Time, to: Time) {
        self.busy = self.busy + from.since(self.mark);
        self.spinning = self.spinning + to.since(from);
        self.mark = to;
    }

    /// The thread slept from `from` to `to`.
    pub(crate) fn slept(&mut self, from: Time, to: Time) {
        self.busy = self.busy + from.since(self.mark);
        self.sleeping = self.sleeping + to.since(from);
        self.mark = to;
        self.wakes += 1;
    }

    /// How long the thread has lived.
    pub(crate) fn age(&self, now: Time) -> Span {
        now.since(self.began)
    }
}
