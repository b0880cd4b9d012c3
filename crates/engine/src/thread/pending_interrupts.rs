//! Pending interrupts: guests with published completions that were not called yet.
//!
//! # Always true
//! - no call is pending when an I/O thread goes to sleep or ends

use super::IoThread;
use crate::device::interrupt_moderation::Moment;
use crate::device::ring::RingDevice;
use tidegate_core::units::{Span, Time};

/// See the module.
pub(crate) struct PendingInterrupts {
    queues: Vec<u32>,
    /// The first clock reading after the oldest pending call's completions were published.
    since: Option<Time>,
}

impl PendingInterrupts {
    pub(crate) fn new() -> PendingInterrupts {
        PendingInterrupts {
            queues: Vec::new(),
            since: None,
        }
    }

    /// Calls a guest with published completions, or queues the call.
    pub(crate) fn call(&mut self, index: u32, queue: &mut RingDevice) {
        if queue.moment() == Moment::AtOnce {
            return queue.call_if_wanted();
        }
        if !queue.interrupt_pending {
            queue.interrupt_pending = true;
            if self.queues.is_empty() {
                self.since = None;
            }
            self.queues.push(index);
        }
    }

    /// How long a call has been pending at `now`.
    fn waited(&mut self, now: Time) -> Span {
        now.since(*self.since.get_or_insert(now))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
}

impl IoThread {
    /// Sends the calls that are due at `now`.
    #[inline]
    pub(super) fn call_due(&mut self, now: Time) {
        if self.pending_interrupts.is_empty() {
            return;
        }
        let waited = self.pending_interrupts.waited(now);
        if waited >= Moment::Later.wait() {
            self.call_matching(|queue| queue.moment().wait() <= waited);
        }
    }

    /// Sends all pending calls.
    pub(super) fn call_all(&mut self) {
        self.call_matching(|_| true);
    }

    /// More requests were found: sends the calls that waited for that.
    pub(super) fn call_after_more(&mut self) {
        if !self.pending_interrupts.is_empty() {
            self.call_matching(|queue| queue.moment() == Moment::AfterMore);
        }
    }

    fn call_matching(&mut self, which: impl Fn(&RingDevice) -> bool) {
        let queues = &mut self.queues;
        self.pending_interrupts.queues.retain(|&index| {
            // The queue may be gone; it then called its guest itself.
            let Some(queue) = &mut queues[index as usize] else {
                return false;
            };
            let called = which(queue);
            if called {
                queue.interrupt_pending = false;
                queue.call_if_wanted();
            }
            !called
        });
    }
}
