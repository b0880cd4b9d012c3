//! The tick interval of a governor: short after a change, long while the load is steady.
//!
//! # Always true
//! - Slot reads and writes use at most one per cent of the datastore's throughput. Unused budget is saved for changes,
//!   up to ten seconds' worth.
//! - No tick happens earlier than planned, except after [`Pace::hurry`] or [`Pace::wake`].
//!
//! # Picture
//! ```text
//!            engaged             8 ticks without a change
//!   off 4 s --------> fast 100 ms --------------------> calm 1 s
//!      ^                | ^  ^                            |
//!      +----------------+ |  +----------------------------+
//!          disengaged     |        a change
//! ```

use super::number::{SECOND, span};
use crate::units::{Span, Time};

/// The interval while something changes. Origin: simulation of the design, before `crates/sim`: a start took 1.5 s
/// with 250 ms, 4.3 s with 1 s, 17 s with 4 s.
const FAST: Span = Span::from_millis(100);
/// The interval while control is engaged and nothing changes. Origin: chosen; no measurement.
const CALM: Span = Span::from_secs(1);
/// The interval while control is not engaged. Origin: chosen; no measurement.
const OFF: Span = Span::from_secs(4);
/// The longest interval between two writes of a slot.
pub(super) const SLOWEST: Span = OFF;
/// Ticks without a change before the interval becomes [`CALM`]. Origin: chosen; no measurement.
const QUIET: u32 = 8;
/// The part of the datastore's throughput that slot I/O may take. Origin: chosen; no measurement.
const BUDGET: f64 = 0.01;
/// Unused budget is saved up to this time. Origin: saving is from simulation (`row-12-start`; decisions/0010); the
/// length is chosen.
const SAVED_MOST: Span = Span::from_secs(10);
/// Fast ticks after a change: one to publish it, one for the other hosts, one to see the effect. Origin: chosen; no
/// measurement.
const AFTER: u32 = 3;

/// The tick intervals of one host.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    engaged: bool,
    quiet: u32,
    recent: u32,
    fast: Span,
    /// The saved budget, as the time in which it accumulates.
    credit: Span,
    planned: Span,
    deadline: Time,
    last: Option<Time>,
}

/// The cost of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The time until its effect is visible.
    pub seen: Span,
    /// The time in which its budget accumulates.
    pub affordable: Span,
}

impl Cost {
    /// The cost at a datastore with this threshold and number of hosts, and a throughput of `peak` reference I/Os a
    /// second; 0: not known.
    pub fn of(target: f64, hosts: u32, peak: f64) -> Cost {
        let affordable = if peak > 0.0 {
            span(2.0 * f64::from(hosts) / (BUDGET * peak) * SECOND)
        } else {
            Span::ZERO
        };
        Cost {
            seen: FAST.max(span(4.0 * target)).min(OFF),
            affordable: affordable.min(OFF),
        }
    }
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            engaged: false,
            quiet: 0,
            recent: 0,
            fast: FAST,
            credit: SAVED_MOST,
            planned: FAST,
            deadline: Time::ZERO,
            last: None,
        }
    }
}

impl Pace {
    /// Something has changed that the other hosts should know soon.
    pub fn hurry(&mut self, now: Time) {
        self.recent = AFTER;
        self.quiet = 0;
        self.look_at(now);
    }

    /// Something has changed that may need a reaction: the next tick comes as soon as allowed.
    pub fn wake(&mut self, now: Time) {
        self.quiet = 0;
        let next = self.last.map_or(now, |last| last + self.fast);
        self.deadline = self.deadline.min(next.max(now));
    }

    /// Sets a latest time for the next tick.
    pub fn look_at(&mut self, at: Time) {
        self.deadline = self.deadline.min(at);
    }

    /// A tick of the law is done. `quiet`: it changed nothing.
    pub fn ticked(&mut self, now: Time, engaged: bool, quiet: bool, cost: Cost) {
        self.engaged = engaged;
        let earned = self.credit + self.last.map_or(Span::ZERO, |last| now.since(last));
        let saved = earned.min(SAVED_MOST).as_nanos();
        self.credit = Span::from_nanos(saved.saturating_sub(cost.affordable.as_nanos()));
        self.fast = if self.credit >= cost.affordable {
            cost.seen
        } else {
            cost.seen.max(cost.affordable)
        };
        self.quiet = if quiet {
            self.quiet.saturating_add(1)
        } else {
            0
        };
        self.recent = self.recent.saturating_sub(1);
        self.last = Some(now);
        self.planned = self.interval();
        self.deadline = now + self.planned;
    }

    /// A tick between two ticks of the law is done. It does not change the interval.
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

    /// The time since the last tick of the law; initially the time until an effect is visible.
    pub fn since(&self, now: Time) -> Span {
        self.last.map_or(FAST, |last| now.since(last))
    }

    /// The time until the next tick.
    pub fn interval(&self) -> Span {
        match (self.engaged, self.recent > 0) {
            (_, true) => self.fast,
            (false, false) => OFF,
            (true, false) if self.quiet >= QUIET => CALM.max(self.fast),
            (true, false) => self.fast,
        }
    }

    /// The interval that the last tick of the law planned. A wake since then shortens the wait, which then does not
    /// count as a pause.
    pub fn planned(&self) -> Span {
        self.planned
    }

    /// The time of the next tick.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// The current minimum time between two publications.
    pub fn fast(&self) -> Span {
        self.fast
    }

    /// Whether a recent change is still being published.
    pub fn changed_recently(&self) -> bool {
        self.recent > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    /// A tick of almost no cost.
    const CHEAP: Cost = Cost {
        seen: FAST,
        affordable: Span::ZERO,
    };

    #[test]
    fn a_fast_datastore_is_looked_at_ten_times_a_second_and_a_slow_one_less() {
        let of = |target, hosts, peak| {
            let Cost { seen, affordable } = Cost::of(target, hosts, peak);
            (seen, affordable)
        };
        let ms = Span::from_millis;
        assert_eq!(of(5e6, 4, 200_000.0), (FAST, ms(4)));
        assert_eq!(of(50e6, 4, 200_000.0), (ms(200), ms(4)));
        assert_eq!(of(5e6, 4, 3_200.0), (FAST, ms(250)));
        assert_eq!(of(5e6, 255, 10.0), (FAST, OFF));
        assert_eq!(of(5e6, 4, 0.0), (FAST, Span::ZERO));
    }

    #[test]
    fn saved_budget_is_spent_after_a_change_and_no_more() {
        let cost = Cost {
            seen: FAST,
            affordable: Span::from_millis(500),
        };
        let mut pace = Pace::default();
        let mut ticks = Vec::new();
        let mut now = 0;
        while now < 60_000 {
            pace.ticked(at(now), true, false, cost);
            ticks.push(now);
            now += pace.interval().as_nanos() / 1_000_000;
        }
        // Ten a second at first; in total a minute's budget and the saved ten seconds.
        assert!(ticks[20] == 2_000, "{ticks:?}");
        assert!((138..=140).contains(&ticks.len()), "{}", ticks.len());
        // While calm, each tick saves half a second; after ten seconds there is budget to spend again.
        assert_eq!(pace.interval(), cost.affordable);
        for second in 0..10 {
            pace.ticked(at(now + second * 1_000), true, true, cost);
        }
        assert_eq!(pace.fast(), FAST);
        // Regardless of the calm time: ten seconds' worth, at four tenths a tick.
        let mut now = now + 10_000;
        for _ in 0..100 {
            pace.ticked(at(now), true, true, cost);
            now += 1_000;
        }
        let mut looks = 0;
        while pace.fast() == FAST {
            pace.ticked(at(now), true, false, cost);
            now += 100;
            looks += 1;
        }
        assert!((22..=26).contains(&looks), "{looks}");
    }

    #[test]
    fn a_wake_shortens_the_wait_but_not_the_planned_interval() {
        let mut pace = Pace::default();
        pace.ticked(at(0), false, true, CHEAP);
        pace.hurry(at(3_000));
        assert_eq!((pace.interval(), pace.planned()), (FAST, OFF));
        assert_eq!(pace.deadline(), at(3_000));
    }

    #[test]
    fn eight_quiet_ticks_bring_calm_and_a_stir_ends_it() {
        let mut pace = Pace::default();
        for tick in 0..7 {
            pace.ticked(at(tick * 100), true, true, CHEAP);
            assert_eq!(pace.interval(), FAST);
        }
        pace.ticked(at(700), true, true, CHEAP);
        assert_eq!(pace.deadline(), at(1_700));
        pace.hurry(at(900));
        assert_eq!((pace.deadline(), pace.interval()), (at(900), FAST));
        assert!(pace.due(at(900)));
    }

    #[test]
    fn not_engaged_it_looks_every_four_seconds() {
        let mut pace = Pace::default();
        pace.ticked(at(0), false, false, CHEAP);
        assert_eq!(pace.deadline(), at(4_000));
    }

    #[test]
    fn a_claim_does_not_run_the_law_twice() {
        let mut pace = Pace::default();
        pace.ticked(at(0), true, false, CHEAP);
        pace.hurry(at(50));
        assert!(!pace.due(at(50)));
        pace.claimed(at(50));
        assert_eq!(pace.deadline(), at(100));
    }
}
