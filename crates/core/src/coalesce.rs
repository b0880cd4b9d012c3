//! Completion coalescing: it decides after how many completions of a queue, and when, its guest is called.
//!
//! A call is an interrupt of the guest, and the most expensive part of a small I/O. The I/O thread publishes completions
//! at once in any case, so a guest that is awake finds them. It then asks [`Coalescer::published`] whether to call.
//!
//! Two decisions are made. While more of the queue's requests are in flight or waiting, the call may wait for their
//! completions ([`Batch`]). If none are, nothing else will come without the guest: the call is only timed, by at most a
//! few microseconds ([`Moment`]). Under [`Coalesce::Adaptive`] both are learnt: the size of batches by a [`Ladder`], the
//! moment by trials.
//!
//! # Always true
//! - the call for the last completion of a queue is never held: nothing of the queue is then in flight or unfetched;
//!   unless the queue is told to ([`Coalescer::hold_last`])
//! - no call is held longer than its batch's time, and the rest of the thread's turn
//! - the completion of a flush and of a failed request is never held
//! - a queue with one request at a time is called as if there were no batches
//!
//! # Source
//! Net DIM of Linux (compare two samples, climb, park) and SPDK's vhost (frames and time). vIC (I. Ahmad et al., USENIX
//! ATC 2011) also coalesces calls; it sets a ratio from the commands in flight, which this does not do.

use crate::units::{Span, Time};
use core::fmt;

mod ladder;
mod moment;

pub use ladder::Ladder;
pub use moment::{Moment, Moments};

/// How the completions of a disk's queues are coalesced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coalesce {
    /// A guest that wants calls is called each time completions were published.
    Off,
    /// Calls wait for a fixed number of completions, or a fixed time.
    Static(Batch),
    /// Calls wait as long as that pays.
    #[default]
    Adaptive,
}

/// A number of completions, and the time after which fewer are enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    frames: u32,
    time: Span,
}

impl Batch {
    /// That of dense mode.
    pub const fn dense() -> Batch {
        let (frames, time) = crate::dense::COMPLETIONS;
        Batch { frames, time }
    }

    /// The most completions of a batch.
    pub const MOST_FRAMES: u32 = 1024;
    /// The longest time: what a guest may lose where its other requests take long.
    pub const MOST_TIME: Span = Span::from_millis(10);
    /// Every completion.
    const NONE: Batch = Batch {
        frames: 1,
        time: Span::ZERO,
    };

    /// A batch, if both are in range.
    pub fn new(frames: u32, time: Span) -> Option<Batch> {
        let in_range = (1..=Batch::MOST_FRAMES).contains(&frames) && time <= Batch::MOST_TIME;
        in_range.then_some(Batch { frames, time })
    }

    /// Completions.
    pub fn frames(self) -> u32 {
        self.frames
    }

    /// The longest time that the first of them waits for the call.
    pub fn time(self) -> Span {
        self.time
    }
}

impl fmt::Display for Coalesce {
    /// `off`, `adaptive`, `static:16,64us`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Coalesce::Off => f.write_str("off"),
            Coalesce::Adaptive => f.write_str("adaptive"),
            Coalesce::Static(batch) => {
                write!(f, "static:{},{}us", batch.frames, batch.time.as_micros())
            }
        }
    }
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// It is sent at this moment.
    Send(Moment),
    /// It waits for more completions, at most until [`Coalescer::due`].
    Hold,
}

/// What is left of a queue once completions were published.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// Completions that were published.
    pub completions: u32,
    /// Requests in flight.
    pub in_flight: u32,
    /// Whether one of the completions must not wait: of a flush, or with an error.
    pub urgent: bool,
}

/// The calls of one queue.
#[derive(Clone, Debug)]
pub struct Coalescer {
    setting: Coalesce,
    batch: Batch,
    /// Completions that the guest was not called for.
    held: u32,
    due: Time,
    /// Whether the call for the last completion waits as others do.
    hold_last: bool,
    moments: Moments,
    ladder: Ladder,
}

impl Coalescer {
    /// For a queue without completions.
    pub fn new(setting: Coalesce) -> Coalescer {
        Coalescer {
            setting,
            batch: match setting {
                Coalesce::Static(batch) => batch,
                Coalesce::Off | Coalesce::Adaptive => Batch::NONE,
            },
            held: 0,
            due: Time::NEVER,
            hold_last: false,
            moments: Moments::new(),
            ladder: Ladder::new(),
        }
    }

    /// Changes the setting. What is held keeps its time.
    pub fn set(&mut self, setting: Coalesce) {
        if setting != self.setting {
            let (held, due) = (self.held, self.due);
            *self = Coalescer {
                held,
                due,
                ..Coalescer::new(setting)
            };
        }
    }

    /// Whether the call for a queue's last completion waits for its batch, too. It does not unless set so.
    pub fn hold_last(&mut self, hold: bool) {
        self.hold_last = hold;
    }

    /// The setting.
    pub fn setting(&self) -> Coalesce {
        self.setting
    }

    /// The batch in use.
    pub fn batch(&self) -> Batch {
        self.batch
    }

    /// Whether a call is held.
    #[inline]
    pub fn is_holding(&self) -> bool {
        self.held > 0
    }

    /// When a held call is due.
    pub fn due(&self) -> Time {
        self.due
    }

    /// The moment at which a call is sent that waits for nothing.
    #[inline]
    pub fn moment(&self) -> Moment {
        match self.setting {
            Coalesce::Adaptive => self.moments.moment(),
            Coalesce::Off | Coalesce::Static(_) => Moment::AtOnce,
        }
    }

    /// Counts requests that the guest has made.
    #[inline]
    pub fn note_requests(&mut self, requests: u32, now: Time) {
        // While calls wait for batches, the rate says nothing about moments.
        if self.setting == Coalesce::Adaptive && self.batch.frames == 1 {
            self.moments.note(requests, now);
        }
    }

    /// Completions were published at `now`. `unfetched` tells whether requests of the queue wait to be fetched; it is
    /// asked only where that matters.
    #[inline]
    pub fn published(
        &mut self,
        now: Time,
        published: Published,
        unfetched: impl FnOnce() -> bool,
    ) -> Call {
        if self.setting == Coalesce::Adaptive {
            self.ladder.note(&published);
        }
        if self.batch.frames == 1 {
            return Call::Send(self.moment());
        }
        if self.held == 0 {
            self.due = now + self.batch.time;
        }
        self.held += published.completions;
        if published.in_flight == 0 && !self.hold_last && !unfetched() {
            return self.send(self.moment());
        }
        if published.urgent || self.held >= self.batch.frames || self.due <= now {
            return self.send(Moment::AtOnce);
        }
        Call::Hold
    }

    fn send(&mut self, moment: Moment) -> Call {
        self.release();
        Call::Send(moment)
    }

    /// Nothing is held any more.
    #[inline]
    fn release(&mut self) {
        self.held = 0;
        self.due = Time::NEVER;
    }

    /// The guest was called at `now`, or did not want it. Nothing is held any more.
    #[inline]
    pub fn called(&mut self, wanted: bool, now: Time) {
        self.release();
        if self.setting == Coalesce::Adaptive && self.ladder.called(wanted, now) {
            self.batch = self.ladder.batch();
        }
    }
}
