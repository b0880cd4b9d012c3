//! The decision to poll or to sleep, for guests and datastore apart.
//!
//! Waking a sleeper costs the sender a system call and us several microseconds; spinning costs a CPU that a guest might
//! use. As with renting and buying skis, spinning for about the price of a wake-up is never worse than twice the best
//! choice, and it pays only while work comes closer together than that.
//!
//! A guest that was just answered and a datastore that was just asked are waited for in turn, and take their time each in
//! its own way: whether spinning pays is learnt for each of the two alone. What the price of a wake-up is, all in all, is
//! found by trying ([`AdaptivePoll`]).
//!
//! # Source
//! Ski rental; QEMU's adaptive polling, of which the average over gaps is taken.

use super::adaptive_poll::AdaptivePoll;
use tidegate_core::units::{Span, Time};

/// Weight of the newest wait in the average: 1/8, as QEMU's poll weight and TCP's round-trip time.
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
    /// When there was nothing to do any more.
    pub(crate) since: Time,
    /// Guests were answered last: their next requests are what may come. Otherwise it is datastores' turn.
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

    /// There is nothing to do at `now`, after so many requests in the thread's life; `cpu` reads its CPU clock.
    #[inline]
    pub(crate) fn before_sleep(&mut self, now: Time, requests: u64, cpu: impl FnOnce() -> Time) {
        self.adaptive_poll.before_sleep(now, requests, cpu);
    }

    /// Work came at `now` after such a wait.
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

    /// Whether the next work is likely to come while we spin.
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

/// How long waits of one kind are on average.
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
        // One long silence says no more than "longer than the window"; without the cap it would take many waits to forget.
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

    /// Of which 20 us are spun for at first.
    const LONGEST: Span = Span::from_micros(80);

    fn wait(idle: &mut Idle, for_guests: bool, micros: u64) {
        let since = Time::ZERO;
        let wait = Wait { since, for_guests };
        idle.worked(wait, since + Span::from_micros(micros));
    }

    #[test]
    fn it_spins_while_requests_come_fast_and_stops_when_they_do_not() {
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
    fn one_long_silence_is_soon_forgotten() {
        let mut idle = Idle::new(LONGEST, false);
        wait(&mut idle, true, 3_000_000);
        for _ in 0..10 {
            wait(&mut idle, true, 5);
        }
        assert!(idle.should_spin(true));
    }

    #[test]
    fn quick_guests_make_nobody_spin_for_a_slow_datastore() {
        let mut idle = Idle::new(LONGEST, false);
        for _ in 0..50 {
            wait(&mut idle, true, 5);
            wait(&mut idle, false, 300);
        }
        assert!(idle.should_spin(true));
        assert!(!idle.should_spin(false));
    }

    #[test]
    fn a_window_of_nothing_never_spins() {
        let idle = Idle::new(Span::ZERO, true);
        assert!(!idle.should_spin(true));
        assert!(!idle.should_spin(false));
    }
}
