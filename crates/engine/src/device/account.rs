//! The account of a queue or connection: its requests since the I/O thread last divided its time.
//!
//! Requests write plain fields here. The thread moves the sums to the [`QueueCounters`] when it divides its time, every 64
//! turns or after a long one.

use crate::counters::{QueueCounters, Served};
use tidegate_core::units::{Span, Time};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Requests taken and answered.
    pub(super) taken: u64,
    pub(super) answered: u64,
    /// Bytes of the requests taken.
    pub(super) bytes: u64,
    /// Kicks of its guest, and calls.
    pub(super) kicks: u64,
    pub(super) calls: u64,
    /// When the sums were last moved.
    since: Time,
    /// Whether the thread knows that it was served.
    noted: bool,
}

impl Account {
    /// Whether this is the first time that it is served since the sums were moved.
    #[inline]
    pub(super) fn is_served_first(&mut self) -> bool {
        !std::mem::replace(&mut self.noted, true)
    }

    /// Its weight when the thread's time is divided.
    pub(super) fn share(&self) -> u64 {
        self.taken + self.answered
    }

    /// Moves the sums at `now`, with its part of the thread's time; `in_flight` requests are in flight.
    pub(super) fn charge(
        &mut self,
        counters: &QueueCounters,
        busy: Span,
        in_flight: u64,
        now: Time,
    ) {
        let since = match self.since {
            Time::ZERO => now,
            since => since,
        };
        counters.charge(&Served {
            taken: self.taken,
            answered: self.answered,
            bytes: self.bytes,
            kicks: self.kicks,
            calls: self.calls,
            busy,
            outstanding: Span::from_nanos(now.since(since).as_nanos().saturating_mul(in_flight)),
        });
        *self = Account {
            since: now,
            ..Account::default()
        };
    }
}
