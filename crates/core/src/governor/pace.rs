//! How often a host looks and speaks: often while something moves, seldom while nothing does.
//!
//! # Always true
//! - Looking and speaking cost the datastore one per cent of what it does at most.
//! - Nothing happens in between but what [`Pace::hurry`] names.
//!
//! # Picture
//! ```text
//!            engaged             8 ticks without a stir
//!   off 4 s --------> fast 100 ms --------------------> calm 1 s
//!      ^                | ^  ^                            |
//!      +----------------+ |  +----------------------------+
//!          disengaged     |        a stir
//! ```

use super::number::{SECOND, span};
use crate::units::{Span, Time};

const FAST: Span = Span::from_millis(100);
const CALM: Span = Span::from_secs(1);
const OFF: Span = Span::from_secs(4);
/// Quiet ticks before calm.
const QUIET: u32 = 8;
/// What of the datastore's work may go into coordination.
const BUDGET: f64 = 0.01;
/// Fast ticks after a stir: one to tell, one for the others, one to see what came of it.
const AFTER: u32 = 3;

/// The cadence of one host.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    engaged: bool,
    quiet: u32,
    stirred: u32,
    fast: Span,
    planned: Span,
    deadline: Time,
    last: Option<Time>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            engaged: false,
            quiet: 0,
            stirred: 0,
            fast: FAST,
            planned: FAST,
            deadline: Time::ZERO,
            last: None,
        }
    }
}

impl Pace {
    /// The least time between two publications: long enough to see what the last did, and within the budget.
    /// `peak`: reference I/Os a second of the datastore, 0 if not known.
    pub fn budget(target: f64, hosts: u32, peak: f64) -> Span {
        let seen = span(4.0 * target);
        let affordable = if peak > 0.0 {
            span(2.0 * f64::from(hosts) / (BUDGET * peak) * SECOND)
        } else {
            Span::ZERO
        };
        FAST.max(seen).max(affordable).min(OFF)
    }

    /// Something has changed that the others should know soon.
    pub fn hurry(&mut self, now: Time) {
        self.stirred = AFTER;
        self.quiet = 0;
        self.soon(now);
    }

    /// Something moved that may need an answer: the next tick comes as soon as one may.
    pub fn wake(&mut self, now: Time) {
        self.quiet = 0;
        let next = self.last.map_or(now, |last| last + self.fast);
        self.deadline = self.deadline.min(next.max(now));
    }

    fn soon(&mut self, now: Time) {
        self.deadline = self.deadline.min(now);
    }

    /// A tick of the law has been made. `quiet`: it moved nothing.
    pub fn ticked(&mut self, now: Time, engaged: bool, quiet: bool, fast: Span) {
        self.engaged = engaged;
        self.fast = fast;
        self.quiet = if quiet {
            self.quiet.saturating_add(1)
        } else {
            0
        };
        self.stirred = self.stirred.saturating_sub(1);
        self.last = Some(now);
        self.planned = self.interval();
        self.deadline = now + self.planned;
    }

    /// A tick between those of the law has been made: it moves no cadence.
    pub fn claimed(&mut self, now: Time) {
        let next = self
            .last
            .map_or(now, |last| last + self.fast.min(self.interval()));
        self.deadline = next.max(now + Span::from_millis(1));
    }

    /// Whether a tick of the law is due, or only a claim.
    pub fn due(&self, now: Time) -> bool {
        let least = Span::from_nanos(self.fast.as_nanos() / 4 * 3);
        self.last.is_none_or(|last| now.since(last) >= least)
    }

    /// How long ago the law was last applied; at first as long as it takes to be seen.
    pub fn since(&self, now: Time) -> Span {
        self.last.map_or(FAST, |last| now.since(last))
    }

    /// Until the next tick.
    pub fn interval(&self) -> Span {
        match (self.engaged, self.stirred > 0) {
            (_, true) => self.fast,
            (false, false) => OFF,
            (true, false) if self.quiet >= QUIET => CALM.max(self.fast),
            (true, false) => self.fast,
        }
    }

    /// How long the last tick of the law meant to wait for the next; a stir since then makes the wait shorter, and
    /// the time before it no pause.
    pub fn planned(&self) -> Span {
        self.planned
    }

    /// When the next tick is due.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Whether it still tells of a stir.
    pub fn stirred(&self) -> bool {
        self.stirred > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    #[test]
    fn a_fast_datastore_is_looked_at_ten_times_a_second_and_a_slow_one_less() {
        assert_eq!(Pace::budget(5e6, 4, 200_000.0), FAST);
        assert_eq!(Pace::budget(50e6, 4, 200_000.0), Span::from_millis(200));
        assert_eq!(Pace::budget(5e6, 4, 3_200.0), Span::from_millis(250));
        assert_eq!(Pace::budget(5e6, 255, 10.0), OFF);
    }

    #[test]
    fn a_stir_shortens_the_wait_and_not_what_was_planned() {
        let mut pace = Pace::default();
        pace.ticked(at(0), false, true, FAST);
        pace.hurry(at(3_000));
        assert_eq!((pace.interval(), pace.planned()), (FAST, OFF));
        assert_eq!(pace.deadline(), at(3_000));
    }

    #[test]
    fn eight_quiet_ticks_bring_calm_and_a_stir_ends_it() {
        let mut pace = Pace::default();
        for tick in 0..7 {
            pace.ticked(at(tick * 100), true, true, FAST);
            assert_eq!(pace.interval(), FAST);
        }
        pace.ticked(at(700), true, true, FAST);
        assert_eq!(pace.deadline(), at(1_700));
        pace.hurry(at(900));
        assert_eq!((pace.deadline(), pace.interval()), (at(900), FAST));
        assert!(pace.due(at(900)));
    }

    #[test]
    fn not_engaged_it_looks_every_four_seconds() {
        let mut pace = Pace::default();
        pace.ticked(at(0), false, false, FAST);
        assert_eq!(pace.deadline(), at(4_000));
    }

    #[test]
    fn a_claim_does_not_run_the_law_twice() {
        let mut pace = Pace::default();
        pace.ticked(at(0), true, false, FAST);
        pace.hurry(at(50));
        assert!(!pace.due(at(50)));
        pace.claimed(at(50));
        assert_eq!(pace.deadline(), at(100));
    }
}
