//! The moment of a call after which nothing else is expected: at once, or up to 3 us later.
//!
//! A guest that has just submitted requests is awake, falling asleep, or asleep. If it is awake it finds completions
//! without a call. A call is cheap before the guest gives up its CPU, and cheap again once that CPU idles and polls. It
//! is most expensive in between, and when the CPU is in a deep idle state.
//!
//! An I/O thread polls for more work before it sleeps, so it may choose the moment of the call. No rule is right for
//! all guests, kernels and idle states: throughput at small depths differs by a factor of two. So each queue learns its
//! own. It uses the moment with the highest request rate, and now and then tries another.
//!
//! A call is delayed by at most [`LATEST`] and the current work of the thread. Before the thread sleeps it sends all
//! calls that wait for their moment.
//!
//! # Units
//! - Rates are requests per second.
//! # Source
//! Measured; see `docs/decisions/0016`.

use crate::units::{Span, Time};

/// A short delay. By then a guest that submits, polls once and goes to sleep has done so.
const LATER: Span = Span::from_micros(1);
/// The longest delay. By then a CPU idles even where guest and thread are far apart, or the switch to the idle task is
/// slow.
const LATEST: Span = Span::from_micros(3);

/// How long one moment is used before its rate is read: some hundred requests of a busy guest.
const WINDOW: Span = Span::from_millis(1);
/// A window with a pause of this length is discarded: the guest's load has changed.
const SILENCE: Span = Span::from_millis(5);
/// A window with fewer requests is extended.
const ENOUGH: u32 = 32;
/// One window in this many tries another moment than the best.
const TRY_ONE_IN: u32 = 32;
/// Divisor of the newest window's weight in a rate: 1/4. It is large because the other moments are seldom tried.
const NEWEST: u64 = 4;
/// Another moment replaces the best if its rate is at least 17/16 of the best rate. Smaller differences may be noise.
const BETTER_SIXTEENTHS: u64 = 17;

/// When a guest is called after completions were published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Immediately.
    AtOnce,
    /// When more requests were found, or after `LATER`.
    AfterMore,
    /// After `LATER`.
    Later,
    /// After `LATEST`.
    Latest,
}

impl Moment {
    /// The longest delay of a call.
    pub fn wait(self) -> Span {
        match self {
            Moment::AtOnce => Span::ZERO,
            Moment::AfterMore | Moment::Later => LATER,
            Moment::Latest => LATEST,
        }
    }
}

const MOMENTS: [Moment; 4] = [
    Moment::AtOnce,
    Moment::AfterMore,
    Moment::Later,
    Moment::Latest,
];

/// See the module.
#[derive(Clone, Debug)]
pub struct Moments {
    /// Request rate by index in [`MOMENTS`]; zero: never tried.
    rates: [u64; MOMENTS.len()],
    best: usize,
    /// Index of the moment in use: the best, or one that is tried.
    used: usize,
    /// Windows so far.
    windows: u32,
    began: Time,
    /// When requests last arrived.
    last: Time,
    requests: u32,
}

impl Default for Moments {
    fn default() -> Moments {
        Moments::new()
    }
}

impl Moments {
    /// Has no rates yet: calls at once.
    pub fn new() -> Moments {
        Moments {
            rates: [0; MOMENTS.len()],
            best: 0,
            used: 0,
            windows: 0,
            began: Time::ZERO,
            last: Time::ZERO,
            requests: 0,
        }
    }

    /// When to call the guest.
    pub fn moment(&self) -> Moment {
        MOMENTS[self.used]
    }

    /// Counts requests that the guest has made.
    #[inline]
    pub fn note(&mut self, requests: u32, now: Time) {
        let silence = now.since(self.last);
        self.last = now;
        if silence >= SILENCE {
            // A pause says nothing about the moment: discard the window, and try another moment later.
            self.used = self.best;
            self.began = now;
            self.requests = 0;
            return;
        }
        self.requests += requests;
        if self.requests >= ENOUGH && now.since(self.began) >= WINDOW {
            self.judge(now);
        }
    }

    #[inline(never)]
    fn judge(&mut self, now: Time) {
        let rate = u64::from(self.requests) * 1_000_000_000 / now.since(self.began).as_nanos();
        let known = &mut self.rates[self.used];
        *known = match *known {
            0 => rate,
            known => (known * (NEWEST - 1) + rate) / NEWEST,
        };
        let most = (0..MOMENTS.len()).max_by_key(|&moment| self.rates[moment]);
        if let Some(most) = most
            && self.rates[most] * 16 > self.rates[self.best] * BETTER_SIXTEENTHS
        {
            self.best = most;
        }
        self.windows = self.windows.wrapping_add(1);
        self.used = self.best;
        if self.windows.is_multiple_of(TRY_ONE_IN) {
            let tries = (self.windows / TRY_ONE_IN) as usize;
            let others = MOMENTS.len() - 1;
            self.used = (self.best + 1 + tries % others) % MOMENTS.len();
        }
        self.began = now;
        self.requests = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a guest whose request rate depends on the moment; returns the end time and the share of time spent in each.
    fn run(
        calls: &mut Moments,
        from: Time,
        long: Span,
        rates: [u64; MOMENTS.len()],
    ) -> (Time, [f64; MOMENTS.len()]) {
        let mut spent = [0; MOMENTS.len()];
        let mut now = from;
        while now.since(from) < long {
            let gap = Span::from_nanos(8_000_000_000 / rates[calls.used]);
            spent[calls.used] += gap.as_nanos();
            now = now + gap;
            calls.note(8, now);
        }
        let all = now.since(from).as_nanos() as f64;
        (now, spent.map(|spent| spent as f64 / all))
    }

    #[test]
    fn the_best_moment_is_found_and_used_in_31_of_32_windows() {
        for best in 0..MOMENTS.len() {
            let mut rates = [500_000, 520_000, 510_000, 505_000];
            rates[best] = 900_000;
            let mut calls = Moments::new();
            let (now, _) = run(&mut calls, Time::ZERO, Span::from_millis(200), rates);
            let (_, spent) = run(&mut calls, now, Span::from_secs(1), rates);
            assert!(spent[best] > 0.95, "{best}: {spent:?}");
            for (moment, spent) in spent.into_iter().enumerate() {
                assert!(spent > 0.01, "{moment} is tried at times: {spent}");
            }
        }
    }

    #[test]
    fn a_change_of_the_best_moment_is_noticed() {
        let mut calls = Moments::new();
        let mut now = Time::ZERO;
        for best in [2, 1, 0, 3, 2, 0, 1, 3] {
            let mut rates = [700_000; MOMENTS.len()];
            rates[best] = 1_000_000;
            (now, _) = run(&mut calls, now, Span::from_millis(300), rates);
            let spent;
            (now, spent) = run(&mut calls, now, Span::from_millis(300), rates);
            assert!(spent[best] > 0.9, "{best}: {spent:?}");
        }
    }

    #[test]
    fn a_small_difference_changes_nothing() {
        let mut calls = Moments::new();
        let (_, spent) = run(
            &mut calls,
            Time::ZERO,
            Span::from_secs(1),
            [500_000, 505_000, 520_000, 515_000],
        );
        assert!(spent[0] > 0.95, "{spent:?}");
    }

    #[test]
    fn a_lower_load_does_not_change_the_best_moment() {
        let mut calls = Moments::new();
        let fast = [900_000, 500_000, 500_000, 400_000];
        let (now, _) = run(&mut calls, Time::ZERO, Span::from_millis(300), fast);
        let slow = [9_000, 5_000, 5_000, 4_000];
        let (now, _) = run(&mut calls, now, Span::from_secs(1), slow);
        let (_, spent) = run(&mut calls, now, Span::from_secs(2), slow);
        assert!(spent[0] > 0.9, "{spent:?}");
    }

    #[test]
    fn a_pause_does_not_change_the_best_moment() {
        let rates = [900_000, 800_000, 800_000, 800_000];
        let mut calls = Moments::new();
        let (mut now, _) = run(&mut calls, Time::ZERO, Span::from_millis(300), rates);
        let (mut best, mut all) = (0.0, 0.0);
        for _ in 0..40 {
            let spent;
            (now, spent) = run(&mut calls, now, Span::from_millis(30), rates);
            best += spent[0];
            all += spent.iter().sum::<f64>();
            // The first requests after the pause fall into the open window.
            now = now + Span::from_millis(60);
            calls.note(8, now);
        }
        assert!(best / all > 0.9, "{best} of {all}");
    }
}
