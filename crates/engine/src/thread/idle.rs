//! The decision to poll or to sleep, for guests and datastore apart.
//!
//! A wake-up costs the sender a system call and the thread several microseconds. Spinning costs CPU time that a guest
//! might use. This is the ski rental problem: spinning for about the cost of a wake-up is never worse than twice the
//! optimum. It pays only while work arrives at shorter intervals.
//!
//! A thread waits for guests after completions and for datastores after submissions. Each has its own delays, so each
//! average is learnt separately. The effective cost of a wake-up is found by trial ([`AdaptivePoll`]).
//!
//! # Source
//! Ski rental; QEMU's adaptive polling, which also averages the gaps.

use super::adaptive_poll::AdaptivePoll;
use tidegate_core::units::{Span, Time};

/// Divisor of the newest wait's weight in the average: 1/8, as QEMU's poll weight and TCP's round-trip time.
const NEWEST: u64 = 8;

/// See the module.
pub(crate) struct Idle {
    adaptive_poll: AdaptivePoll,
    always: bool,
    guests: Waits,
    datastores: Waits,
}

/// A wait for more work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// When the work ended.
    pub(crate) since: Time,
    /// Whether completions came last, so that guests are expected to submit. Otherwise datastores are expected to
    /// complete.
    pub(crate) for_guests: bool,
}

impl Idle {
    /// Spins for `longest` at most.
    pub(crate) fn new(longest: Span, always: bool) -> Idle {
        let adaptive_poll = AdaptivePoll::new(longest);
        let waits = Waits::within(adaptive_poll.window());
        Idle {
            adaptive_poll,
            always,
            guests: waits,
            datastores: waits,
        }
    }

    /// There is no work at `now`, after this many requests in the thread's life; `cpu` reads its CPU clock.
    #[inline]
    pub(crate) fn before_sleep(&mut self, now: Time, requests: u64, cpu: impl FnOnce() -> Time) {
        self.adaptive_poll.before_sleep(now, requests, cpu);
    }

    /// Work arrived at `now` after this wait.
    pub(crate) fn worked(&mut self, wait: Wait, now: Time) {
        let waits = if wait.for_guests {
            &mut self.guests
        } else {
            &mut self.datastores
        };
        let long = now.since(wait.since);
        waits.note(long, self.adaptive_poll.window());
        self.adaptive_poll.waited(long);
    }

    /// Whether the next work is likely to arrive while spinning.
    pub(crate) fn should_spin(&self, for_guests: bool) -> bool {
        let waits = if for_guests {
            &self.guests
        } else {
            &self.datastores
        };
        let window = self.window();
        window > Span::ZERO && (self.always || waits.are_within(window))
    }

    /// How long to spin at most.
    pub(crate) fn window(&self) -> Span {
        self.adaptive_poll.window()
    }
}

/// The average length of waits of one kind.
#[derive(Clone, Copy)]
struct Waits {
    mean_ns: u64,
}

impl Waits {
    fn within(window: Span) -> Waits {
        Waits {
            mean_ns: window.as_nanos() / 2,
        }
    }

    fn note(&mut self, wait: Span, window: Span) {
        // Cap a wait: beyond the window its length does not matter, and the average recovers sooner.
        let wait = wait.as_nanos().min(4 * window.as_nanos());
        self.mean_ns = (self.mean_ns * (NEWEST - 1) + wait) / NEWEST;
    }

    fn are_within(&self, window: Span) -> bool {
        self.mean_ns < window.as_nanos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thread spins for 20 us of it at first.
    const LONGEST: Span = Span::from_micros(80);

    fn wait(idle: &mut Idle, for_guests: bool, micros: u64) {
        let since = Time::ZERO;
        let wait = Wait { since, for_guests };
        idle.worked(wait, since + Span::from_micros(micros));
    }

    #[test]
    fn it_spins_only_while_requests_arrive_fast() {
        let mut idle = Idle::new(LONGEST, false);
        for _ in 0..50 {
            wait(&mut idle, true, 5);
        }
        assert!(idle.should_spin(true));
        for _ in 0..20 {
            wait(&mut idle, true, 1000);
        }
        assert!(!idle.should_spin(true));
    }

    #[test]
    fn one_long_pause_has_a_short_effect() {
        let mut idle = Idle::new(LONGEST, false);
        wait(&mut idle, true, 3_000_000);
        for _ in 0..10 {
            wait(&mut idle, true, 5);
        }
        assert!(idle.should_spin(true));
    }

    #[test]
    fn quick_guests_cause_no_spinning_for_a_slow_datastore() {
        let mut idle = Idle::new(LONGEST, false);
        for _ in 0..50 {
            wait(&mut idle, true, 5);
            wait(&mut idle, false, 300);
        }
        assert!(idle.should_spin(true));
        assert!(!idle.should_spin(false));
    }

    #[test]
    fn a_zero_window_never_spins() {
        let idle = Idle::new(Span::ZERO, true);
        assert!(!idle.should_spin(true));
        assert!(!idle.should_spin(false));
    }
}
