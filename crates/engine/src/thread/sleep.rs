//! The idle part of a turn: it polls fewer queues, spins, and sleeps.
//!
//! Before it sleeps it enables every guest's kicks and polls once more. A request that arrived meanwhile is found then;
//! a later one wakes the thread.

use super::IoThread;
use super::dense::quiet;
use crate::counters::State;
use crate::sys::os;
use crate::thread::idle::Wait;
use tidegate_core::dense::SCAN;
use tidegate_core::units::Time;

/// A spinning thread reads the clock once in this many polls: reading it takes longer than a poll.
const POLLS_PER_CLOCK: u32 = 4;

/// Operations of the thread itself on its ring: the watch of its inbox.
const OWN: usize = 1;

impl IoThread {
    /// Stops polling queues that have been idle for a while.
    pub(super) fn sweep(&mut self) {
        let now = self.cx.now;
        let queues = &mut self.queues;
        self.active.retain(|&index| {
            let Some(queue) = &mut queues[index as usize] else {
                return false;
            };
            if now.since(queue.last_request) < quiet(queue) {
                return true;
            }
            let keep = queue.want_kicks();
            if keep {
                queue.wake();
            } else {
                queue.active = false;
            }
            keep
        });
    }

    /// There is work: if it follows a wait, records the length of the wait.
    pub(super) fn note_wait_over(&mut self) {
        if let Some(wait) = self.wait.take() {
            self.idle.worked(wait, self.cx.now);
        }
    }

    /// There is no work: spins while that pays, then sleeps.
    pub(super) fn sleep(&mut self) {
        let begin = self.cx.now;
        self.idle
            .before_sleep(begin, self.cx.submitted, os::thread_cpu);
        let for_guests = self.cx.answered_last;
        self.wait.get_or_insert(Wait {
            since: begin,
            for_guests,
        });
        let may_spin = self.signals.may_spin() && self.may_spin(for_guests);
        if may_spin && self.spin(begin) {
            return;
        }
        self.call_timed();
        // Guests and other threads must be able to wake the thread before it polls a last time.
        let asked = self.cx.now;
        if self.ask_for_kicks(asked) {
            self.cx.now = os::now();
            for &index in &self.active {
                if let Some(queue) = &mut self.queues[index as usize] {
                    queue.wake();
                }
            }
            return;
        }
        let before = os::now();
        self.cx.now = before;
        let scan = self.deactivate_queues(asked).then(|| before + SCAN);
        if !self.inbox.prepare_sleep() {
            return;
        }
        self.peers
            .note_sleep(self.number, self.cx.ring.in_flight().saturating_sub(OWN));
        let next = self.next_deadline().into_iter().chain(scan).min();
        let timeout = next.map(|at| at.since(before));
        self.tally.fall_asleep(before);
        self.cx.ring.wait(timeout);
        self.inbox.wake();
        let after = os::now();
        self.cx.now = after;
        self.tally.enter(State::Busy, after);
        // Its counters show that it is awake: see there.
        self.signals.waker.notify();
    }

    /// Polls for as long as spinning pays; true if it found work.
    fn spin(&mut self, begin: Time) -> bool {
        let deadline = self.next_deadline().unwrap_or(Time::NEVER);
        let until = (begin + self.idle.window()).min(deadline);
        self.tally.enter(State::Spinning, begin);
        let mut now = begin;
        let mut polls = 0;
        let found = loop {
            if self.has_work() {
                break true;
            }
            polls += 1;
            if polls < POLLS_PER_CLOCK {
                std::hint::spin_loop();
                continue;
            }
            polls = 0;
            now = os::now();
            self.call_due(now);
            if now >= until {
                break now >= deadline;
            }
        };
        self.cx.now = now;
        self.tally.enter(State::Busy, now);
        found
    }

    /// From now on it expects its datastores to take longer than it polls, and its guests less.
    #[cfg(test)]
    pub(crate) fn expect_slow_datastores(&mut self) {
        let wait = Wait {
            since: Time::ZERO,
            for_guests: false,
        };
        // Many enough that a few short waits change nothing.
        for _ in 0..50 {
            self.idle.worked(wait, Time::from_nanos(u64::MAX));
        }
        assert!(self.idle.should_spin(true) && !self.idle.should_spin(false));
    }

    /// Whether there is a request, a completion or a message.
    fn has_work(&mut self) -> bool {
        let sees_work = |&index: &u32| {
            let queue = self.queues[index as usize].as_ref();
            queue.is_some_and(|queue| queue.sees_work())
        };
        self.active.iter().any(sees_work)
            || self.cx.ring.has_completions()
            || self.inbox.has_messages()
    }
}
