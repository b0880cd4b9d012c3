//! Adaptive polling: it learns by trial how long an I/O thread polls before it sleeps.
//!
//! A thread that sleeps costs each request a wake-up, and often wakes the guest's CPU too: 5 us with shallow C-states,
//! 25 to 75 us with deep ones. Where wake-ups are that expensive, a thread that polls a little longer saves them: it is
//! awake for the guest's next request, and for those after it. A guest with long pauses between requests gains nothing
//! from that.
//!
//! The lengths of the waits do not show which case it is. So the thread tries: now and then it polls for the other
//! time, and compares the scores. The score is requests per second times requests per CPU second.
//!
//! # Units
//! - A score is requests per second times requests per CPU second, times a constant.
//! # Source
//! Energy times delay as the quantity to minimize: R. Gonzalez, M. Horowitz, "Energy dissipation in general purpose
//! microprocessors" (1996). Measured; see `docs/decisions/0017`.

use tidegate_core::units::{Span, Time};

/// The shorter polling time is this fraction of the longest.
const SHORTER: u64 = 4;
/// How long one time is used before it is scored.
const PERIOD: Span = Span::from_millis(10);
/// A period with fewer requests is extended.
const ENOUGH: u64 = 50;
/// Requests before a period starts: those just after a pause or a change are not typical.
const SETTLED: u64 = 16;
/// A period with a longer wait in it is discarded: the guest's load has changed.
const SILENCE: Span = Span::from_millis(5);
/// Periods until the other time is tried again: at first, and at most, after repeated failures.
const FIRST_GAP: u32 = 4;
const LONGEST_GAP: u32 = 64;
/// Divisor of the newest period's weight in the score: 1/4.
const NEWEST: u64 = 4;
/// Sixteenths of the current score that the other time must exceed, for the shorter and the longest. Others may need
/// the CPU that a polling thread uses: a longer time must gain more than it costs.
const BETTER_SIXTEENTHS: [u64; 2] = [13, 22];

/// See the module.
pub(crate) struct AdaptivePoll {
    /// The shorter time, and the longest.
    windows: [Span; 2],
    best: usize,
    /// Index of the time in use: the best, or the other one as a trial.
    used: usize,
    /// The score of the best.
    score: u64,
    /// Periods until the other is tried, and the gap after the next trial.
    left: u32,
    gap: u32,
    /// Requests that the thread has handled in its life, at its last idle moment.
    requests: u64,
    period: Period,
}

/// The state of the current measurement.
#[derive(Clone, Copy)]
enum Period {
    /// Not started: it starts at this number of requests.
    Settling { until: u64 },
    /// Started at this time, CPU time and number of requests.
    Began { at: Time, cpu: Time, requests: u64 },
}

impl AdaptivePoll {
    /// Starts with a quarter of `longest`, which is never exceeded.
    pub(crate) fn new(longest: Span) -> AdaptivePoll {
        AdaptivePoll {
            windows: [Span::from_nanos(longest.as_nanos() / SHORTER), longest],
            best: 0,
            used: 0,
            score: 0,
            left: FIRST_GAP,
            gap: FIRST_GAP,
            requests: 0,
            period: Period::Settling { until: SETTLED },
        }
    }

    /// How long to poll at most.
    pub(crate) fn window(&self) -> Span {
        self.windows[self.used]
    }

    /// Work arrived after a wait.
    #[inline]
    pub(crate) fn waited(&mut self, wait: Span) {
        if wait > SILENCE {
            self.restart();
        }
    }

    /// There is no work at `now`, after this many requests in the thread's life. If the period is over, it is scored.
    /// `cpu` reads the thread's CPU clock; that is slow, so it is called once a period.
    #[inline]
    pub(crate) fn before_sleep(&mut self, now: Time, requests: u64, cpu: impl FnOnce() -> Time) {
        self.requests = requests;
        match self.period {
            Period::Settling { until } if requests >= until => self.begin(now, cpu()),
            Period::Began {
                at, requests: had, ..
            } if now.since(at) >= PERIOD && requests - had >= ENOUGH => {
                self.end(now, cpu());
            }
            _ => {}
        }
    }

    fn begin(&mut self, now: Time, cpu: Time) {
        self.period = Period::Began {
            at: now,
            cpu,
            requests: self.requests,
        };
    }

    fn restart(&mut self) {
        let until = self.requests + SETTLED;
        self.period = Period::Settling { until };
    }

    #[inline(never)]
    fn end(&mut self, now: Time, cpu: Time) {
        let Period::Began {
            at,
            cpu: before,
            requests,
        } = self.period
        else {
            return;
        };
        let used = self.used;
        let requests = self.requests - requests;
        self.apply(score(requests, now.since(at), cpu.since(before)));
        if self.used == used {
            self.begin(now, cpu);
        } else {
            self.restart();
        }
    }

    fn apply(&mut self, score: u64) {
        if self.used == self.best {
            self.score_best(score);
        } else {
            self.score_trial(score);
        }
    }

    /// Handles the score of the other time.
    fn score_trial(&mut self, score: u64) {
        if score * 16 > self.score * BETTER_SIXTEENTHS[self.used] {
            self.best = self.used;
            self.score = score;
            self.gap = FIRST_GAP;
        } else {
            self.gap = (2 * self.gap).min(LONGEST_GAP);
        }
        self.left = self.gap;
        self.used = self.best;
    }

    /// Handles the score of the best.
    fn score_best(&mut self, score: u64) {
        self.score = match self.score {
            0 => score,
            known => (known * (NEWEST - 1) + score) / NEWEST,
        };
        self.left -= 1;
        if self.left == 0 {
            self.used = 1 - self.best;
        }
    }
}

/// The score of this many requests in this time, for this much CPU time.
fn score(requests: u64, long: Span, cpu: Span) -> u64 {
    let price = u128::from(long.as_nanos().max(1)) * u128::from(cpu.as_nanos().max(1));
    let score = u128::from(requests).pow(2) * 1_000_000_000_000_000_000 / price;
    u64::try_from(score).unwrap_or(u64::MAX).min(u64::MAX / 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Span = Span::from_micros(200);

    /// A guest each of whose requests takes `time` and costs `cpu` microseconds, depending on the polling time.
    struct Guest {
        adaptive_poll: AdaptivePoll,
        now: Time,
        cpu: Time,
        requests: u64,
        /// How often the CPU clock was read.
        clock_reads: u32,
    }

    impl Guest {
        fn new() -> Guest {
            Guest {
                adaptive_poll: AdaptivePoll::new(LONGEST),
                now: Time::ZERO,
                cpu: Time::ZERO,
                requests: 0,
                clock_reads: 0,
            }
        }

        fn submits(&mut self, time: u64, cpu: u64) {
            self.now = self.now + Span::from_micros(time);
            self.cpu = self.cpu + Span::from_micros(cpu);
            self.adaptive_poll.waited(Span::from_micros(time));
            self.requests += 1;
            let (spent, clock_reads) = (self.cpu, &mut self.clock_reads);
            self.adaptive_poll
                .before_sleep(self.now, self.requests, || {
                    *clock_reads += 1;
                    spent
                });
        }

        /// The share of `millis` in which the thread polled for the longest time.
        fn runs(&mut self, millis: u64, each: [(u64, u64); 2]) -> f64 {
            let (from, mut share) = (self.now, Span::ZERO);
            while self.now.since(from) < Span::from_millis(millis) {
                let before = self.now;
                let used = self.adaptive_poll.used;
                self.submits(each[used].0, each[used].1);
                if used == 1 {
                    share = share + self.now.since(before);
                }
            }
            share.as_nanos() as f64 / self.now.since(from).as_nanos() as f64
        }
    }

    #[test]
    fn polling_is_long_where_it_saves_wakeups() {
        let mut guest = Guest::new();
        // As measured with deep C-states: it also costs less CPU.
        guest.runs(200, [(100, 42), (28, 28)]);
        let share = guest.runs(10_000, [(100, 42), (28, 28)]);
        assert!(share > 0.95, "{share}");
    }

    #[test]
    fn polling_is_short_where_it_gains_nothing() {
        let mut guest = Guest::new();
        guest.runs(1000, [(125, 40), (125, 125)]);
        let share = guest.runs(10_000, [(125, 40), (125, 125)]);
        assert!(share < 0.03, "{share}");
        assert!(share > 0.0, "the longest time is tried at times");
    }

    #[test]
    fn a_change_of_load_changes_the_polling_time() {
        let mut guest = Guest::new();
        let (dear, cheap) = ([(100, 42), (28, 28)], [(125, 40), (125, 125)]);
        for _ in 0..3 {
            guest.runs(1000, dear);
            let share = guest.runs(2000, dear);
            assert!(share > 0.9, "{share}");
            guest.runs(1000, cheap);
            let share = guest.runs(2000, cheap);
            assert!(share < 0.1, "{share}");
        }
    }

    #[test]
    fn without_a_difference_polling_stays_short() {
        let mut guest = Guest::new();
        let share = guest.runs(10_000, [(10, 10), (10, 10)]);
        assert!(share < 0.03, "{share}");
    }

    #[test]
    fn rare_requests_are_never_scored_and_read_no_clock() {
        let mut guest = Guest::new();
        guest.runs(100_000, [(6000, 40); 2]);
        assert_eq!((guest.clock_reads, guest.adaptive_poll.used), (0, 0));
    }

    #[test]
    fn polling_never_exceeds_the_longest_time() {
        for longest in [0, 3, 50, 20_000] {
            let adaptive_poll = AdaptivePoll::new(Span::from_micros(longest));
            let most = adaptive_poll.windows.into_iter().max();
            assert_eq!(most, Some(Span::from_micros(longest)));
        }
    }
}
