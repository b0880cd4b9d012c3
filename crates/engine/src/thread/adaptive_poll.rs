//! Adaptive polling: it learns by trial how long an I/O thread polls before it sleeps.
//!
//! A thread that sleeps costs each request that wakes it, and each guest whose CPU idles meanwhile, a wake-up: 5 us where
//! idle CPUs wait at hand, 25 to 75 us where they are put to sleep. Where wake-ups are that dear, a thread that looks a
//! little longer is there when the guest has woken up, and so the next wake-up is saved, and the one after it. But a guest
//! whose requests come so far apart by themselves gains nothing from a thread that looks for them all that time. Neither
//! can be told from how long the waits are, so it is tried: now and then the thread looks for the other time, and what
//! comes of it is weighed by requests per second times requests per second of CPU time.
//!
//! # Units
//! - A score is requests per second times requests per CPU second, with a constant that does not matter.
//! # Source
//! Energy times delay as what is to be least: R. Gonzalez, M. Horowitz, "Energy dissipation in general purpose
//! microprocessors" (1996). Measured; see `docs/decisions/0017`.

use tidegate_core::units::{Span, Time};

/// The shorter time is this part of the longest.
const SHORTER: u64 = 4;
/// How long one time is followed before it is weighed.
const PERIOD: Span = Span::from_millis(10);
/// Requests without which a period says nothing: it goes on.
const ENOUGH: u64 = 50;
/// Requests after which a period begins: what comes after a silence, or a change, is not like the rest.
const SETTLED: u64 = 16;
/// A period with a longer wait in it says nothing: the guest did something else.
const SILENCE: Span = Span::from_millis(5);
/// Periods between looks at the other time: at first, and at most, when it was worse again and again.
const FIRST_GAP: u32 = 4;
const LONGEST_GAP: u32 = 64;
/// Weight of the newest period in the score of the time in use: 1/4.
const NEWEST: u64 = 4;
/// By the other time, what its score must be in sixteenths of that of the one in use. Others may want the CPU that a
/// patient thread looks for work on: it must bring more than it costs.
const BETTER_SIXTEENTHS: [u64; 2] = [13, 22];

/// See the module.
pub(crate) struct AdaptivePoll {
    /// The shorter time, and the longest.
    windows: [Span; 2],
    best: usize,
    /// The one in use: the best, or the other to see.
    used: usize,
    /// Of the best.
    score: u64,
    /// Periods until the other is tried, and from that on until the next time.
    left: u32,
    gap: u32,
    /// Requests that the thread has had in its life, when it last rested.
    requests: u64,
    period: Period,
}

/// What is being weighed.
#[derive(Clone, Copy)]
enum Period {
    /// Nothing yet: it begins when requests have come to so many.
    Settling { until: u64 },
    /// What has come to pass since these moments, of which the second is on the thread's CPU clock.
    Began { at: Time, cpu: Time, requests: u64 },
}

impl AdaptivePoll {
    /// Knows nothing yet: looks for a quarter of `longest`, which is never exceeded.
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

    /// How long to look for work at most.
    pub(crate) fn window(&self) -> Span {
        self.windows[self.used]
    }

    /// Work came after a wait.
    #[inline]
    pub(crate) fn waited(&mut self, wait: Span) {
        if wait > SILENCE {
            self.begin_anew();
        }
    }

    /// There is nothing to do at `now`, after so many requests in the thread's life: if the period is over, it is weighed.
    /// `cpu` reads the thread's CPU clock, which takes long and is asked for once a period.
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

    fn begin_anew(&mut self) {
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
        self.weigh(score(requests, now.since(at), cpu.since(before)));
        if self.used == used {
            self.begin(now, cpu);
        } else {
            self.begin_anew();
        }
    }

    fn weigh(&mut self, score: u64) {
        if self.used == self.best {
            self.went_on(score);
        } else {
            self.tried(score);
        }
    }

    /// So it is with the other time.
    fn tried(&mut self, score: u64) {
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

    /// So it is with the best.
    fn went_on(&mut self, score: u64) {
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

/// What so many requests in so long, for so much of a CPU, are worth.
fn score(requests: u64, long: Span, cpu: Span) -> u64 {
    let price = u128::from(long.as_nanos().max(1)) * u128::from(cpu.as_nanos().max(1));
    let score = u128::from(requests).pow(2) * 1_000_000_000_000_000_000 / price;
    u64::try_from(score).unwrap_or(u64::MAX).min(u64::MAX / 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Span = Span::from_micros(200);

    /// A guest of whom each request takes `time` and costs `cpu` microseconds while the thread looks for work for that long.
    struct Guest {
        adaptive_poll: AdaptivePoll,
        now: Time,
        cpu: Time,
        requests: u64,
        /// How often the CPU clock was read.
        looks: u32,
    }

    impl Guest {
        fn new() -> Guest {
            Guest {
                adaptive_poll: AdaptivePoll::new(LONGEST),
                now: Time::ZERO,
                cpu: Time::ZERO,
                requests: 0,
                looks: 0,
            }
        }

        fn asks(&mut self, time: u64, cpu: u64) {
            self.now = self.now + Span::from_micros(time);
            self.cpu = self.cpu + Span::from_micros(cpu);
            self.adaptive_poll.waited(Span::from_micros(time));
            self.requests += 1;
            let (spent, looks) = (self.cpu, &mut self.looks);
            self.adaptive_poll
                .before_sleep(self.now, self.requests, || {
                    *looks += 1;
                    spent
                });
        }

        /// Which part of `millis` the thread was patient in.
        fn runs(&mut self, millis: u64, each: [(u64, u64); 2]) -> f64 {
            let (from, mut patient) = (self.now, Span::ZERO);
            while self.now.since(from) < Span::from_millis(millis) {
                let before = self.now;
                let used = self.adaptive_poll.used;
                self.asks(each[used].0, each[used].1);
                if used == 1 {
                    patient = patient + self.now.since(before);
                }
            }
            patient.as_nanos() as f64 / self.now.since(from).as_nanos() as f64
        }
    }

    #[test]
    fn a_thread_whose_guest_would_fall_asleep_meanwhile_is_patient() {
        let mut guest = Guest::new();
        // As measured where idle CPUs sleep: it costs less, too.
        guest.runs(200, [(100, 42), (28, 28)]);
        let patient = guest.runs(10_000, [(100, 42), (28, 28)]);
        assert!(patient > 0.95, "{patient}");
    }

    #[test]
    fn a_guest_that_asks_no_sooner_for_it_is_not_waited_for() {
        let mut guest = Guest::new();
        guest.runs(1000, [(125, 40), (125, 125)]);
        let patient = guest.runs(10_000, [(125, 40), (125, 125)]);
        assert!(patient < 0.03, "{patient}");
        assert!(patient > 0.0, "it is looked at now and then");
    }

    #[test]
    fn when_that_changes_it_is_noticed() {
        let mut guest = Guest::new();
        let (dear, cheap) = ([(100, 42), (28, 28)], [(125, 40), (125, 125)]);
        for _ in 0..3 {
            guest.runs(1000, dear);
            let patient = guest.runs(2000, dear);
            assert!(patient > 0.9, "{patient}");
            guest.runs(1000, cheap);
            let patient = guest.runs(2000, cheap);
            assert!(patient < 0.1, "{patient}");
        }
    }

    #[test]
    fn what_makes_no_difference_changes_nothing() {
        let mut guest = Guest::new();
        let patient = guest.runs(10_000, [(10, 10), (10, 10)]);
        assert!(patient < 0.03, "{patient}");
    }

    #[test]
    fn one_who_asks_seldom_is_never_weighed_and_costs_no_look_at_a_clock() {
        let mut guest = Guest::new();
        guest.runs(100_000, [(6000, 40); 2]);
        assert_eq!((guest.looks, guest.adaptive_poll.used), (0, 0));
    }

    #[test]
    fn it_never_looks_longer_than_it_may() {
        for longest in [0, 3, 50, 20_000] {
            let adaptive_poll = AdaptivePoll::new(Span::from_micros(longest));
            let most = adaptive_poll.windows.into_iter().max();
            assert_eq!(most, Some(Span::from_micros(longest)));
        }
    }
}
