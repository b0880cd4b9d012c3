//! The size of a queue's batches, learnt by trial: the largest that costs hardly any completions, if it saves calls.
//!
//! A trial alternates window by window between no batches and one step of [`STEPS`]. So a change of the load, or of the
//! host's, changes both alike. After [`PAIRS`] windows of each the step is judged:
//!
//! - it *costs* too much if completions per second are lower by more than two percent. Then no larger step is tried;
//! - it *pays* if it does not, and saves a fifth of the calls or brings two percent more completions.
//!
//! Steps are tried in order up to the first that costs too much. The last that paid is used. After a second, or when the
//! load changes, it is tried again, and then those above it.
//!
//! A closed loop with few requests loses completions by waiting, so it gets no batches. A guest that handles several
//! completions at each interrupt anyway saves nothing with a small batch, but with a larger one. Therefore a step that
//! does not pay is no reason to stop.
//!
//! # Always true
//! - a queue with fewer than 2000 completions a second, or fewer than four requests at a time, has no batches: after a
//!   burst it loses them at the first call
//! - a guest that does not want calls has no batches: it would gain nothing

use super::{Batch, Published};
use crate::units::{Span, Time};

/// The steps. Neighbours differ by at most a half, because a fifth of the calls may cost just two percent. The last is
/// about what a guest handles in one interrupt.
const STEPS: [Batch; 8] = [
    Batch::NONE,
    step(2),
    step(3),
    step(4),
    step(6),
    step(8),
    step(12),
    step(16),
];

/// A batch for a queue with 250,000 completions a second. A slower one sends most after the time.
const fn step(frames: u32) -> Batch {
    Batch {
        frames,
        time: Span::from_micros(4 * frames as u64),
    }
}

/// The longest window, which also ends one of a slow queue.
const WINDOW: Span = Span::from_millis(10);
/// A window ends earlier, but not before this, once [`CALLS`] were made.
const SHORT_WINDOW: Span = Span::from_millis(2);
const CALLS: u32 = 64;
/// Completions per second, and requests in flight, below which there are no batches.
const LEAST_RATE: u64 = 2_000;
const LEAST_IN_FLIGHT: u32 = 4;
/// Windows with and without batches in a trial.
const PAIRS: u32 = 8;
/// How long nothing is tried once the steps were.
const REST: Span = Span::from_secs(1);

/// What happened in some windows.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    time_ns: u64,
    completions: u64,
    calls: u64,
}

impl Sum {
    fn add(&mut self, window: Sum) {
        self.time_ns += window.time_ns;
        self.completions += window.completions;
        self.calls += window.calls;
    }

    fn per_second(&self) -> u64 {
        self.completions.saturating_mul(1_000_000_000) / self.time_ns.max(1)
    }

    /// Whether its rate is more than this part of the other's, in percent.
    fn exceeds(&self, percent: u64, other: &Sum) -> bool {
        self.per_second().saturating_mul(100) > other.per_second().saturating_mul(percent)
    }

    /// Whether it needed at most four fifths of the other's calls for each completion.
    fn saves_calls(&self, other: &Sum) -> bool {
        let [own, theirs] = [(self, other), (other, self)]
            .map(|(of, by)| u128::from(of.calls) * u128::from(by.completions));
        theirs > 0 && own * 5 <= theirs * 4
    }
}

/// A comparison of one step with none.
#[derive(Clone, Copy, Debug)]
struct Trial {
    step: usize,
    windows: u32,
    without: Sum,
    with: Sum,
    /// The rate of the last window without batches, and in how many pairs the one with batches had less.
    last_rate: u64,
    worse: u32,
}

impl Trial {
    fn of(step: usize) -> Trial {
        Trial {
            step,
            windows: 0,
            without: Sum::default(),
            with: Sum::default(),
            last_rate: 0,
            worse: 0,
        }
    }

    /// Adds a window. Every second one has batches.
    fn add(&mut self, window: Sum) {
        if self.has_batches() {
            self.with.add(window);
            self.worse += u32::from(window.per_second() < self.last_rate);
        } else {
            self.without.add(window);
            self.last_rate = window.per_second();
        }
        self.windows += 1;
    }

    fn has_batches(&self) -> bool {
        self.windows % 2 == 1
    }

    fn is_over(&self) -> bool {
        self.windows == 2 * PAIRS
    }

    /// A difference of the sums alone may be one bad window: most pairs must show it too.
    fn costs_too_much(&self) -> bool {
        !self.with.exceeds(98, &self.without) && self.worse * 2 > PAIRS
    }

    fn pays(&self) -> bool {
        let gains = self.with.exceeds(102, &self.without) && self.worse * 2 < PAIRS;
        !self.costs_too_much() && (gains || self.with.saves_calls(&self.without))
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Ladder {
    /// The last step that paid.
    step: usize,
    /// The step in use.
    used: usize,
    trial: Option<Trial>,
    /// No trial before this, unless the rate is far from `rate`.
    rest_until: Time,
    rate: u64,
    began: Time,
    window: Sum,
    signals: u32,
    deepest: u32,
}

impl Default for Ladder {
    fn default() -> Ladder {
        Ladder::new()
    }
}

impl Ladder {
    /// On the lowest step.
    pub fn new() -> Ladder {
        Ladder {
            step: 0,
            used: 0,
            trial: None,
            rest_until: Time::ZERO,
            rate: 0,
            began: Time::ZERO,
            window: Sum::default(),
            signals: 0,
            deepest: 0,
        }
    }

    /// The batch in use.
    pub fn batch(&self) -> Batch {
        STEPS[self.used]
    }

    /// Completions were published.
    #[inline]
    pub(super) fn note(&mut self, published: &Published) {
        self.window.completions += u64::from(published.completions);
        let deep = published.in_flight + published.completions;
        self.deepest = self.deepest.max(deep);
    }

    /// The guest was called, or did not want it. Returns whether the batch may have changed.
    #[inline]
    pub(super) fn called(&mut self, wanted: bool, now: Time) -> bool {
        self.window.calls += u64::from(wanted);
        self.signals += 1;
        let long = now.since(self.began);
        let over = long >= WINDOW || self.signals >= CALLS && long >= SHORT_WINDOW;
        if over {
            self.close_window(now);
        }
        over
    }

    #[inline(never)]
    fn close_window(&mut self, now: Time) {
        self.window.time_ns = now.since(self.began).as_nanos();
        let (window, deepest) = (self.window, self.deepest);
        (self.began, self.window, self.signals, self.deepest) = (now, Sum::default(), 0, 0);
        if window.per_second() < LEAST_RATE || deepest < LEAST_IN_FLIGHT || window.calls == 0 {
            (self.step, self.used, self.trial) = (0, 0, None);
            self.rest_until = now;
            return;
        }
        match self.trial {
            Some(mut trial) => {
                trial.add(window);
                self.trial = Some(trial);
                self.used = if trial.has_batches() { trial.step } else { 0 };
                if trial.is_over() {
                    self.judge(&trial, now);
                }
            }
            None => self.rest(window.per_second(), now),
        }
    }

    /// Between two trials.
    fn rest(&mut self, rate: u64, now: Time) {
        let changed = rate.abs_diff(self.rate).saturating_mul(10) > self.rate.saturating_mul(3);
        if now >= self.rest_until || changed {
            // The step in use must prove itself again.
            self.start(self.step.max(1));
        }
    }

    fn start(&mut self, step: usize) {
        self.used = 0;
        self.trial = Some(Trial::of(step));
    }

    fn judge(&mut self, trial: &Trial, now: Time) {
        if trial.pays() {
            self.step = trial.step;
        } else if trial.step <= self.step {
            // It has paid before, under another load: the search begins anew.
            let again = trial.step > 1;
            self.step = 0;
            if again {
                return self.start(1);
            }
        }
        let next = trial.step + 1;
        if !trial.costs_too_much() && next < STEPS.len() {
            return self.start(next);
        }
        self.trial = None;
        self.used = self.step;
        self.rest_until = now + REST;
        self.rate = trial.without.per_second();
    }
}
