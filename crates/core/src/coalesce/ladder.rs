//! The size of a queue's batches, learnt by trial: the largest that costs hardly any completions, if it saves calls.
//!
//! A trial alternates window by window between no batches and one step of [`STEPS`]. So a change of the load, or of the
//! host's, changes both alike. After [`PAIRS`] windows of each the step is judged:
//!
//! - it *costs* too much if completions per second are lower by more than 1.6 percent. Then no larger step is tried;
//! - it *pays* if it does not, and saves a sixth of the calls or brings 1.6 percent more completions.
//!
//! The search begins above the number of completions that a call has anyway: a smaller batch would save nothing. It goes up
//! until a step costs too much, or down until one does not. The last that paid is used. After a second, or when the load
//! changes, it is tried again, and then those above it.
//!
//! A closed loop with few requests loses completions by waiting, so it gets no batches.
//!
//! # Always true
//! - a queue with fewer than 2000 completions a second, or fewer than four requests at a time, has no batches: after a
//!   burst it loses them at the first call
//! - a guest that does not want calls has no batches: it would gain nothing

use super::{Batch, Published};
use crate::units::{Span, Time};

/// The longest time of a batch.
const LONGEST: u64 = 64;
/// The steps. Neighbours differ by at most a half, because a fifth of the calls may cost just 1.5 percent. The last are
/// for guests that handle a dozen completions in one interrupt anyway.
const STEPS: [Batch; 10] = [
    Batch::NONE,
    step(2),
    step(3),
    step(4),
    step(6),
    step(8),
    step(12),
    step(16),
    step(24),
    step(32),
];

/// A batch for a queue with 250,000 completions a second. A slower one sends most after the time.
const fn step(frames: u32) -> Batch {
    let micros = 4 * frames as u64;
    Batch {
        frames,
        time: Span::from_micros(if micros < LONGEST { micros } else { LONGEST }),
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

    /// Whether its rate is more than so many thousandths of the other's.
    fn exceeds(&self, thousandths: u64, other: &Sum) -> bool {
        self.per_second().saturating_mul(1000) > other.per_second().saturating_mul(thousandths)
    }

    /// Whether it needed at most five sixths of the other's calls for each completion.
    fn saves_calls(&self, other: &Sum) -> bool {
        let [own, theirs] = [(self, other), (other, self)]
            .map(|(of, by)| u128::from(of.calls) * u128::from(by.completions));
        theirs > 0 && own * 6 <= theirs * 5
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

    /// A difference of the sums alone may be one bad window: seven of eight pairs must show it too. By chance they do in 4 %
    /// of all trials.
    fn costs_too_much(&self) -> bool {
        !self.with.exceeds(984, &self.without) && self.worse + 1 >= PAIRS
    }

    fn pays(&self) -> bool {
        let gains = self.with.exceeds(1016, &self.without) && self.worse * 2 < PAIRS;
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
    /// The lowest step that cost too much in this search.
    ceiling: usize,
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
            ceiling: STEPS.len(),
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
            None => self.rest(window, now),
        }
    }

    /// Between two trials.
    fn rest(&mut self, window: Sum, now: Time) {
        let rate = window.per_second();
        let changed = rate.abs_diff(self.rate).saturating_mul(10) > self.rate.saturating_mul(3);
        if now >= self.rest_until || changed {
            self.ceiling = STEPS.len();
            self.start(match self.step {
                0 => above(&window),
                // The step in use must prove itself again.
                step => step,
            });
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
            // It has paid before, under another load.
            self.step = 0;
        }
        let next = if trial.costs_too_much() {
            self.ceiling = trial.step;
            // Down, as long as nothing has paid.
            if self.step == 0 { trial.step - 1 } else { 0 }
        } else {
            (trial.step + 1).max(above(&trial.without))
        };
        if next > 0 && next < self.ceiling {
            return self.start(next);
        }
        self.trial = None;
        self.used = self.step;
        self.rest_until = now + REST;
        self.rate = trial.without.per_second();
    }
}

/// The first step with more completions than a call has without batches; the last, if none has.
fn above(without: &Sum) -> usize {
    let each = without.completions / without.calls.max(1);
    let more = STEPS.iter().position(|step| u64::from(step.frames) > each);
    more.map_or(STEPS.len() - 1, |step| step.max(1))
}
