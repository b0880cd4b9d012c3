//! Pending interrupts: guests with published completions that were not called yet.
//!
//! A call waits for one of two things ([`tidegate_core::coalesce`]): for its moment, a few microseconds at most, or for
//! more completions.
//!
//! # Always true
//! - no call waits for its moment when an I/O thread goes to sleep. If one waits for completions, the thread sleeps at
//!   most until it is due
//! - no call is pending when an I/O thread ends, or a queue leaves it

use super::IoThread;
use crate::device::ring::RingDevice;
use tidegate_core::coalesce::{Call, Moment};
use tidegate_core::units::{Span, Time};

/// See the module.
pub(crate) struct PendingInterrupts {
    /// Queues whose calls wait for their moment.
    timed: Vec<u32>,
    /// The first clock reading after the oldest of their completions were published.
    since: Option<Time>,
    /// Queues whose calls wait for more completions, and some that do not any more.
    held: Vec<u32>,
    /// When the first of those is due at the earliest.
    due: Time,
}

impl PendingInterrupts {
    pub(crate) fn new() -> PendingInterrupts {
        PendingInterrupts {
            timed: Vec::new(),
            since: None,
            held: Vec::new(),
            due: Time::NEVER,
        }
    }

    /// Calls a guest whose completions were published in the turn that began at `now`, or queues the call.
    #[inline]
    pub(crate) fn call(&mut self, index: u32, queue: &mut RingDevice, now: Time) {
        match queue.next_call(now) {
            Call::Send(Moment::AtOnce) => queue.call_if_wanted(now),
            Call::Send(_) if queue.interrupt_pending => {}
            Call::Send(_) => {
                queue.interrupt_pending = true;
                if self.timed.is_empty() {
                    self.since = None;
                }
                self.timed.push(index);
            }
            Call::Hold => self.hold(index, queue),
        }
    }

    #[cold]
    fn hold(&mut self, index: u32, queue: &mut RingDevice) {
        self.due = self.due.min(queue.call_due());
        if !std::mem::replace(&mut queue.interrupt_held, true) {
            self.held.push(index);
        }
    }

    /// How long a call has waited for its moment at `now`.
    fn waited(&mut self, now: Time) -> Span {
        now.since(*self.since.get_or_insert(now))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.timed.is_empty() && self.held.is_empty()
    }

    /// When the first call that waits for completions is due.
    pub(crate) fn due(&self) -> Option<Time> {
        (self.due < Time::NEVER).then_some(self.due)
    }
}

impl IoThread {
    /// Sends the calls that are due at `now`.
    #[inline]
    pub(super) fn call_due(&mut self, now: Time) {
        if self.pending_interrupts.is_empty() {
            return;
        }
        if !self.pending_interrupts.timed.is_empty() {
            let waited = self.pending_interrupts.waited(now);
            if waited >= Moment::Later.wait() {
                self.call_matching(now, |queue| queue.moment().wait() <= waited);
            }
        }
        if self.pending_interrupts.due <= now {
            self.call_held(now, now);
        }
    }

    /// Sends all pending calls.
    pub(super) fn call_all(&mut self) {
        self.call_timed();
        self.call_held(self.cx.now, Time::NEVER);
    }

    /// Sends the calls that wait for their moment.
    pub(super) fn call_timed(&mut self) {
        self.call_matching(self.cx.now, |_| true);
    }

    /// A queue leaves the thread: what it has completed is published, and a call that waits is sent.
    pub(super) fn call_before_leaving(&mut self, index: u32) {
        if let Some(queue) = self.queues[index as usize].as_mut() {
            queue.publish();
            queue.call_if_wanted(self.cx.now);
            (queue.interrupt_pending, queue.interrupt_held) = (false, false);
        }
        self.pending_interrupts
            .timed
            .retain(|&timed| timed != index);
        self.pending_interrupts.held.retain(|&held| held != index);
    }

    /// More requests were found: sends the calls that waited for that.
    pub(super) fn call_after_more(&mut self) {
        if !self.pending_interrupts.timed.is_empty() {
            self.call_matching(self.cx.now, |queue| queue.moment() == Moment::AfterMore);
        }
    }

    fn call_matching(&mut self, now: Time, which: impl Fn(&RingDevice) -> bool) {
        let queues = &mut self.queues;
        self.pending_interrupts.timed.retain(|&index| {
            // The queue may be gone; it then called its guest itself.
            let Some(queue) = &mut queues[index as usize] else {
                return false;
            };
            let called = which(queue);
            if called {
                queue.interrupt_pending = false;
                queue.call_if_wanted(now);
            }
            !called
        });
    }

    /// Sends the calls that were to wait for completions until `until` at most. Forgets those that were sent with later
    /// completions.
    #[cold]
    fn call_held(&mut self, now: Time, until: Time) {
        let queues = &mut self.queues;
        let mut next = Time::NEVER;
        self.pending_interrupts.held.retain(|&index| {
            let Some(queue) = &mut queues[index as usize] else {
                return false;
            };
            let waits = queue.call_due() > until;
            if waits && queue.holds_call() {
                next = next.min(queue.call_due());
                return true;
            }
            queue.interrupt_held = false;
            if queue.holds_call() {
                queue.call_if_wanted(now);
            }
            false
        });
        self.pending_interrupts.due = next;
    }
}
