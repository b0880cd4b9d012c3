//! Interrupt moderation: it decides when a guest is interrupted, at once or a moment later.
//!
//! A guest that has just asked for more is awake, falling asleep, or asleep. Awake it finds its answers by itself.
//! Calling it is cheap before it has let go of its CPU, cheap again once that CPU idles and looks for work, and dearest
//! in between and when the CPU has been put to sleep. An I/O thread looks for more work anyway before it rests, and may
//! choose the moment; no rule is right for all guests, kernels and idle states: throughput at small depths differs by a
//! factor of two either way. So it is learnt, for each queue alone: most of the time its calls come in the way in which
//! it had most requests answered, and now and then in one of the others, to see.
//!
//! What is shown is never held back, and no call by more than [`LATEST`] and what the thread does meanwhile; before the
//! thread sleeps it calls all.
//!
//! # Units
//! - Rates are requests per second.
//! # Source
//! Measured; see `docs/decisions/0016`. Calls that wait for more to tell of are interrupt coalescing, as in vIC (I. Ahmad
//! et al., USENIX ATC 2011), which holds them back by counts; here it is by a time that no guest notices.

use tidegate_core::units::{Span, Time};

/// How long a call waits: a guest that asks for more, looks once and goes to sleep has done so by then.
const LATER: Span = Span::from_micros(1);
/// How long it waits at most: where guest and thread are far apart, or changing to the idle task takes long, a CPU is idle
/// only by then.
const LATEST: Span = Span::from_micros(3);

/// How long one way is followed before its rate is read: some hundred requests of a busy guest.
const WINDOW: Span = Span::from_millis(1);
/// A window with so long a silence in it says nothing: the guest did something else.
const SILENCE: Span = Span::from_millis(5);
/// Requests without which a window says nothing.
const ENOUGH: u32 = 32;
/// One window in so many is for another way than the best.
const TRY_ONE_IN: u32 = 32;
/// Weight of the newest window in a way's rate: 1/4. The others are seldom tried, and should be believed soon.
const NEWEST: u64 = 4;
/// Another way is better when it has this many sixteenths of the best one's rate: less is chance.
const BETTER_SIXTEENTHS: u64 = 17;

/// When a guest is called, once it was shown answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// At once.
    AtOnce,
    /// When more requests were found, or [`LATER`].
    AfterMore,
    /// [`LATER`].
    Later,
    /// [`LATEST`].
    Latest,
}

impl Moment {
    /// How long a call may wait for it.
    pub(crate) fn wait(self) -> Span {
        match self {
            Moment::AtOnce => Span::ZERO,
            Moment::AfterMore | Moment::Later => LATER,
            Moment::Latest => LATEST,
        }
    }
}

const WAYS: [Moment; 4] = [
    Moment::AtOnce,
    Moment::AfterMore,
    Moment::Later,
    Moment::Latest,
];

/// See the module.
#[derive(Debug)]
pub(crate) struct InterruptModeration {
    /// By place in [`WAYS`]; zero: never tried.
    rates: [u64; WAYS.len()],
    best: usize,
    /// The one in use: the best, or another to see.
    used: usize,
    /// Windows so far.
    windows: u32,
    began: Time,
    /// When there were requests last.
    last: Time,
    requests: u32,
}

impl InterruptModeration {
    /// Knows nothing yet: calls at once.
    pub(crate) fn new() -> InterruptModeration {
        InterruptModeration {
            rates: [0; WAYS.len()],
            best: 0,
            used: 0,
            windows: 0,
            began: Time::ZERO,
            last: Time::ZERO,
            requests: 0,
        }
    }

    /// When the guest is to be called.
    pub(crate) fn moment(&self) -> Moment {
        WAYS[self.used]
    }

    /// The guest has made so many requests.
    #[inline]
    pub(crate) fn note(&mut self, requests: u32, now: Time) {
        let silence = now.since(self.last);
        self.last = now;
        if silence >= SILENCE {
            // However it was called: the window is given up, and another way is tried another time.
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
        let most = (0..WAYS.len()).max_by_key(|&way| self.rates[way]);
        if let Some(most) = most
            && self.rates[most] * 16 > self.rates[self.best] * BETTER_SIXTEENTHS
        {
            self.best = most;
        }
        self.windows = self.windows.wrapping_add(1);
        self.used = self.best;
        if self.windows.is_multiple_of(TRY_ONE_IN) {
            let tries = (self.windows / TRY_ONE_IN) as usize;
            let others = WAYS.len() - 1;
            self.used = (self.best + 1 + tries % others) % WAYS.len();
        }
        self.began = now;
        self.requests = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets a guest that has `rates` requests a second in these ways run for so long; how much of it in each way.
    fn run(
        calls: &mut InterruptModeration,
        from: Time,
        long: Span,
        rates: [u64; WAYS.len()],
    ) -> (Time, [f64; WAYS.len()]) {
        let mut spent = [0; WAYS.len()];
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
    fn the_way_in_which_a_guest_gets_most_is_found_and_kept_but_for_one_window_in_32() {
        for best in 0..WAYS.len() {
            let mut rates = [500_000, 520_000, 510_000, 505_000];
            rates[best] = 900_000;
            let mut calls = InterruptModeration::new();
            let (now, _) = run(&mut calls, Time::ZERO, Span::from_millis(200), rates);
            let (_, spent) = run(&mut calls, now, Span::from_secs(1), rates);
            assert!(spent[best] > 0.95, "{best}: {spent:?}");
            for (way, spent) in spent.into_iter().enumerate() {
                assert!(spent > 0.01, "{way} is tried now and then: {spent}");
            }
        }
    }

    #[test]
    fn when_another_way_becomes_the_best_it_is_noticed() {
        let mut calls = InterruptModeration::new();
        let mut now = Time::ZERO;
        for best in [2, 1, 0, 3, 2, 0, 1, 3] {
            let mut rates = [700_000; WAYS.len()];
            rates[best] = 1_000_000;
            (now, _) = run(&mut calls, now, Span::from_millis(300), rates);
            let spent;
            (now, spent) = run(&mut calls, now, Span::from_millis(300), rates);
            assert!(spent[best] > 0.9, "{best}: {spent:?}");
        }
    }

    #[test]
    fn a_difference_that_may_be_chance_changes_nothing() {
        let mut calls = InterruptModeration::new();
        let (_, spent) = run(
            &mut calls,
            Time::ZERO,
            Span::from_secs(1),
            [500_000, 505_000, 520_000, 515_000],
        );
        assert!(spent[0] > 0.95, "{spent:?}");
    }

    #[test]
    fn a_guest_that_asks_for_less_is_not_taken_for_a_way_that_is_worse() {
        let mut calls = InterruptModeration::new();
        let fast = [900_000, 500_000, 500_000, 400_000];
        let (now, _) = run(&mut calls, Time::ZERO, Span::from_millis(300), fast);
        let slow = [9_000, 5_000, 5_000, 4_000];
        let (now, _) = run(&mut calls, now, Span::from_secs(1), slow);
        let (_, spent) = run(&mut calls, now, Span::from_secs(2), slow);
        assert!(spent[0] > 0.9, "{spent:?}");
    }

    #[test]
    fn a_guest_that_pauses_is_not_taken_for_a_way_that_is_worse() {
        let rates = [900_000, 800_000, 800_000, 800_000];
        let mut calls = InterruptModeration::new();
        let (mut now, _) = run(&mut calls, Time::ZERO, Span::from_millis(300), rates);
        let (mut best, mut all) = (0.0, 0.0);
        for _ in 0..40 {
            let spent;
            (now, spent) = run(&mut calls, now, Span::from_millis(30), rates);
            best += spent[0];
            all += spent.iter().sum::<f64>();
            // The first requests after it come into the window that was open.
            now = now + Span::from_millis(60);
            calls.note(8, now);
        }
        assert!(best / all > 0.9, "{best} of {all}");
    }
}
