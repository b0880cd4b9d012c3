//! Decides how an I/O thread waits for more work: spinning, asleep, or asleep until just before the work is due.
//!
//! Waking a sleeper costs the sender a system call and us several microseconds; spinning costs a CPU that a guest might
//! use. As with renting and buying skis, spinning for about the price of a wake-up is never worse than twice the best
//! choice, and it pays only while requests come closer together than that.
//!
//! A datastore takes longer than that, but where it takes much the same time again and again, its answer can be met:
//! the thread sleeps until shortly before, and spins only then ([`Appointment`]). A batch of answers that finds the
//! thread awake goes round sooner by two wake-ups, its own and that of a processor gone to sleep.
//!
//! # Always true
//! - with a window of nothing the thread never spins, and sets itself no alarm
//! - a wait spins for at most one window, or two for an answer that has an appointment, met or missed
//!
//! # Source
//! Ski rental; QEMU's adaptive polling, of which the average over gaps is taken; Linux's hybrid polling (block layer,
//! `io_poll_delay`), which sleeps for half the mean. We aim at the early end of what was seen instead: the spread is
//! what spinning costs.

use tidegate_core::units::{Span, Time};

/// Weight of the newest gap in the average: 1/8, as QEMU's poll weight and TCP's round-trip time.
const NEWEST: u64 = 8;

/// See the module.
pub(crate) struct Idle {
    window: Span,
    always: bool,
    guests: Patience,
    datastores: Patience,
    appointment: Appointment,
}

/// What an idle thread waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// When it had nothing to do any more.
    pub(crate) since: Time,
    /// Guests were answered last: their next requests may come at once. Otherwise it is datastores' turn.
    pub(crate) for_guests: bool,
    /// Datastores owe answers.
    pub(crate) for_datastores: bool,
}

/// How to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Look for work until then, then sleep.
    Spin(Time),
    /// Sleep until something happens, or until then in order to spin.
    Nap(Time),
    /// Sleep until something happens.
    Sleep,
}

impl Idle {
    pub(crate) fn new(window: Span, always: bool) -> Idle {
        Idle {
            window,
            always,
            guests: Patience::new(window),
            datastores: Patience::new(window),
            appointment: Appointment::new(window),
        }
    }

    /// Work came at `now` after such a wait; `answered`: a datastore's answer, and nothing from a guest.
    pub(crate) fn worked(&mut self, waiting: Waiting, now: Time, answered: bool) {
        let wait = now.since(waiting.since);
        if waiting.for_guests {
            return self.guests.note(wait);
        }
        self.datastores.note(wait);
        if answered {
            self.appointment.note(wait);
        }
    }

    /// Whether guests that are answered now will be looked for.
    pub(crate) fn looks_for_guests(&self) -> bool {
        self.always || self.guests.pays()
    }

    /// How to wait from `now` on.
    pub(crate) fn plan(&self, waiting: Waiting, now: Time) -> Plan {
        let mine = if waiting.for_guests {
            &self.guests
        } else {
            &self.datastores
        };
        if self.window == Span::ZERO {
            Plan::Sleep
        } else if self.always || mine.pays() {
            Plan::Spin(now + self.window)
        } else if waiting.for_datastores && self.appointment.pays() {
            let from = waiting.since + Span::from_nanos(self.appointment.from);
            if now < from {
                Plan::Nap(from)
            } else if now < from + self.window {
                Plan::Spin(now + Span::from_nanos(self.appointment.length))
            } else {
                Plan::Sleep
            }
        } else {
            Plan::Sleep
        }
    }
}

/// How long waits of one kind are on average, compared with the window.
struct Patience {
    window: u64,
    /// In nanoseconds.
    mean: u64,
}

impl Patience {
    fn new(window: Span) -> Patience {
        Patience {
            window: window.as_nanos(),
            mean: window.as_nanos() / 2,
        }
    }

    /// One long silence says no more than "longer than the window"; without the cap it would take many waits to forget.
    fn note(&mut self, wait: Span) {
        let wait = wait.as_nanos().min(4 * self.window);
        self.mean = (self.mean * (NEWEST - 1) + wait) / NEWEST;
    }

    /// Whether work is likely to come while we spin.
    fn pays(&self) -> bool {
        self.mean < self.window
    }
}

/// When a datastore's answer is to be expected: a stretch of time, placed where answers came of late.
struct Appointment {
    /// Two windows: answers spread more widely than wake-ups cost, and most come early in it.
    length: u64,
    /// When to begin to look, in nanoseconds after the wait's begin.
    from: u64,
    /// How often the answer came in the stretch, of 256.
    kept: u64,
}

impl Appointment {
    /// How much earlier than the early answers to be there: a processor that has slept takes this long to come back.
    const LEAD: u64 = 20_000;
    /// It pays when at least so many of 256 answers are met; a wake-up saved is worth about a half of the spinning.
    const WORTH: u64 = 128;

    fn new(window: Span) -> Appointment {
        Appointment {
            length: 2 * window.as_nanos(),
            from: 0,
            kept: 0,
        }
    }

    /// An answer came after `wait`: learns how often answers come in the stretch, and moves it. Answers that came before
    /// move it four times as fast as those that came after, which places it at the early fifth of them.
    fn note(&mut self, wait: Span) {
        let wait = wait.as_nanos();
        let met = (self.from..=self.from + self.length).contains(&wait);
        self.kept = self.kept - self.kept / 16 + if met { 16 } else { 0 };
        // No single answer moves it by more than its length: a stall of seconds is no rhythm.
        let due = wait.saturating_sub(Self::LEAD);
        let step = due.abs_diff(self.from).min(4 * self.length);
        if due < self.from {
            self.from -= step / 4;
        } else {
            self.from += step / 16;
        }
    }

    fn pays(&self) -> bool {
        self.kept >= Self::WORTH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Span = Span::from_micros(50);

    fn micros(count: u64) -> Span {
        Span::from_micros(count)
    }

    fn guests(since: Time) -> Waiting {
        Waiting {
            since,
            for_guests: true,
            for_datastores: false,
        }
    }

    fn datastores(since: Time) -> Waiting {
        Waiting {
            since,
            for_guests: false,
            for_datastores: true,
        }
    }

    #[test]
    fn it_spins_while_requests_come_fast_and_stops_when_they_do_not() {
        let mut idle = Idle::new(WINDOW, false);
        let begin = guests(Time::ZERO);
        for _ in 0..50 {
            idle.worked(begin, Time::ZERO + micros(5), false);
        }
        assert!(idle.looks_for_guests());
        assert_eq!(
            idle.plan(begin, Time::ZERO),
            Plan::Spin(Time::ZERO + WINDOW)
        );
        for _ in 0..20 {
            idle.worked(begin, Time::ZERO + micros(1000), false);
        }
        assert!(!idle.looks_for_guests());
        assert_eq!(idle.plan(begin, Time::ZERO), Plan::Sleep);
    }

    #[test]
    fn a_window_of_nothing_never_spins() {
        let mut idle = Idle::new(Span::ZERO, false);
        for _ in 0..100 {
            idle.worked(datastores(Time::ZERO), Time::ZERO + micros(300), true);
            idle.worked(guests(Time::ZERO), Time::ZERO, false);
        }
        assert!(!idle.looks_for_guests());
        assert_eq!(idle.plan(datastores(Time::ZERO), Time::ZERO), Plan::Sleep);
        assert_eq!(idle.plan(guests(Time::ZERO), Time::ZERO), Plan::Sleep);
    }

    #[test]
    fn an_answer_that_comes_after_much_the_same_time_is_met_awake() {
        let mut idle = Idle::new(WINDOW, false);
        let since = Time::ZERO + micros(1000);
        for turn in 0..200 {
            idle.worked(
                datastores(since),
                since + micros(230 + 10 * (turn % 4)),
                true,
            );
        }
        let Plan::Nap(until) = idle.plan(datastores(since), since) else {
            panic!("answers take longer than a window: nap first");
        };
        let slept = until.since(since);
        assert!(
            (micros(190)..micros(230)).contains(&slept),
            "back before the first answer and not long before: {slept:?}"
        );
        assert_eq!(
            idle.plan(datastores(since), until),
            Plan::Spin(until + WINDOW + WINDOW),
            "the answer is due: look for it"
        );
        assert_eq!(
            idle.plan(datastores(since), until + WINDOW + WINDOW),
            Plan::Sleep,
            "missed: no more spinning"
        );
    }

    #[test]
    fn answers_without_a_rhythm_are_slept_through() {
        let mut idle = Idle::new(WINDOW, false);
        let since = Time::ZERO;
        for turn in 0..400_u64 {
            let wait = micros(200 + turn.wrapping_mul(7919) % 4000);
            idle.worked(datastores(since), since + wait, true);
        }
        assert_eq!(idle.plan(datastores(since), since), Plan::Sleep);
    }

    #[test]
    fn what_guests_do_says_nothing_of_datastores() {
        let mut idle = Idle::new(WINDOW, false);
        let since = Time::ZERO;
        for _ in 0..100 {
            idle.worked(guests(since), since + micros(5), false);
            idle.worked(datastores(since), since + micros(5000), false);
        }
        let both = Waiting {
            for_datastores: true,
            ..guests(since)
        };
        assert_eq!(idle.plan(both, since), Plan::Spin(since + WINDOW));
        assert_eq!(idle.plan(datastores(since), since), Plan::Sleep);
    }
}
