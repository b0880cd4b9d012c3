//! Decides how long an I/O thread spins for more work before it sleeps.
//!
//! Waking a sleeper costs the sender a system call and us several microseconds; spinning costs a CPU that a guest might
//! use. As with renting and buying skis, spinning for about the price of a wake-up is never worse than twice the best
//! choice, and it pays only while requests come closer together than that.
//!
//! # Source
//! Ski rental; QEMU's adaptive polling, of which the average over gaps is taken.

use tidegate_core::units::{Span, Time};

/// Weight of the newest gap in the average: 1/8, as QEMU's poll weight and TCP's round-trip time.
const NEWEST: u64 = 8;

/// See the module.
pub(crate) struct Idle {
    window: Span,
    always: bool,
    /// Average time between the end of work and the next work, in nanoseconds.
    gap_ns: u64,
    last_work: Time,
}

impl Idle {
    pub(crate) fn new(window: Span, always: bool) -> Idle {
        Idle {
            window,
            always,
            gap_ns: window.as_nanos() / 2,
            last_work: Time::ZERO,
        }
    }

    /// A turn at `now` found work.
    pub(crate) fn worked(&mut self, now: Time) {
        // One long silence says no more than "longer than the window"; without the cap it would take many gaps to forget.
        let gap = now
            .since(self.last_work)
            .as_nanos()
            .min(4 * self.window.as_nanos());
        self.gap_ns = (self.gap_ns * (NEWEST - 1) + gap) / NEWEST;
        self.last_work = now;
    }

    /// Whether the next work is likely to come while we spin.
    pub(crate) fn should_spin(&self) -> bool {
        self.window > Span::ZERO && (self.always || self.gap_ns < self.window.as_nanos())
    }

    /// How long to spin at most.
    pub(crate) fn window(&self) -> Span {
        self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_spins_while_requests_come_fast_and_stops_when_they_do_not() {
        let mut idle = Idle::new(Span::from_micros(20), false);
        let mut now = Time::ZERO;
        for _ in 0..50 {
            now = now + Span::from_micros(5);
            idle.worked(now);
        }
        assert!(idle.should_spin());
        for _ in 0..20 {
            now = now + Span::from_millis(1);
            idle.worked(now);
        }
        assert!(!idle.should_spin());
    }

    #[test]
    fn a_window_of_nothing_never_spins() {
        assert!(!Idle::new(Span::ZERO, true).should_spin());
    }
}
