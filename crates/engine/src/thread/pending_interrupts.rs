//! Interrupts that are due: guests that have new answers and were not interrupted yet.
//!
//! # Always true
//! - an I/O thread owes no guest a call when it goes to sleep or ends

use super::IoThread;
use crate::device::interrupt_moderation::Moment;
use crate::device::ring::RingDevice;
use tidegate_core::units::{Span, Time};

/// See the module.
pub(crate) struct PendingInterrupts {
    queues: Vec<u32>,
    /// The first time that was read after the first of them was shown its answers.
    since: Option<Time>,
}

impl PendingInterrupts {
    pub(crate) fn new() -> PendingInterrupts {
        PendingInterrupts {
            queues: Vec::new(),
            since: None,
        }
    }

    /// Calls a guest that was shown answers, or remembers to.
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

    /// How long there has been a guest that waits, at `now`.
    fn waited(&mut self, now: Time) -> Span {
        now.since(*self.since.get_or_insert(now))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
}

impl IoThread {
    /// Calls those whose time has come at `now`.
    #[inline]
    pub(super) fn call_due(&mut self, now: Time) {
        if self.pending_interrupts.is_empty() {
            return;
        }
        let waited = self.pending_interrupts.waited(now);
        if waited >= Moment::Later.wait() {
            self.call_those(|queue| queue.moment().wait() <= waited);
        }
    }

    /// Calls all of them.
    pub(super) fn call_all(&mut self) {
        self.call_those(|_| true);
    }

    /// More requests were found: calls those that waited for that.
    pub(super) fn call_after_more(&mut self) {
        if !self.pending_interrupts.is_empty() {
            self.call_those(|queue| queue.moment() == Moment::AfterMore);
        }
    }

    fn call_those(&mut self, which: impl Fn(&RingDevice) -> bool) {
        let queues = &mut self.queues;
        self.pending_interrupts.queues.retain(|&index| {
            // It may have gone meanwhile, and called its guest then.
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
