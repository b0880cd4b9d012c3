//! The explanation of a disk's speed: a pure function from counters to one cause, a sentence and a remedy.
//!
//! The monitor has a [`timeline::Timeline`] of each attached disk. [`Facts::of`] computes the differences over a span.
//! [`cause`] judges them. `words` turns the judgement into sentences. Nothing here queries the engine or reads a
//! clock.
//!
//! # Always true
//! - There is exactly one cause, and the sentence has the numbers that led to it.
//! - QoS wait is not counted as time in the filters, though the `stats` filter includes it there.
//!
//! # Picture: checked in this order; the first match is the cause
//! ```text
//! lease not held ─ no counters ─ no requests ─ no completions ─ waits for its turn ─ I/O thread full ─ filters
//!   ─ datastore slow ─ guest sends no more requests ─ nothing
//! ```
//!
//! # Units
//! Inside: nanoseconds summed over I/Os. Outside: microseconds per I/O.

use tidegate_api::explain::{
    Cause, Control, Explanation, HoldReason, Load, Part, PartName, ThreadLoad,
};
use tidegate_api::name::Name;
use tidegate_core::iocontrol::{Hold, Mode};
use tidegate_core::units::Span;
use tidegate_engine::datastore::condition::Harm;

use crate::control::report::mode;
use crate::host::LeaseState;
use crate::observe::sample::ratio;
use crate::text::float;

pub(crate) mod timeline;
mod words;

use timeline::{Level, Stretch, Used};
pub(crate) use words::time;

/// A wait limits a disk if it takes at least this part of its I/Os' time. Without the wait, a guest with the same
/// queue depth would get a fifth more.
const WAITS: f64 = 0.2;
/// The same for time in the filters and in the guest's queue, where I/Os always spend some.
const LINGERS: f64 = 0.3;
/// An I/O thread that is busy for this part of its time is saturated: the rest is spent on wake-ups.
const FULL: f64 = 0.9;
/// A guest with a lower mean queue depth leaves the disk idle for a good part of the time.
const ASKS: f64 = 0.8;
/// An I/O younger than this does not count as hung.
const HANGS: Span = Span::from_secs(1);
/// Latency above which a datastore counts as slow if no threshold is known: the initial threshold of I/O control.
const SLOW: Span = Span::from_millis(10);

/// The settings of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) shares: u32,
    /// Units a second; 0 means none.
    pub(crate) reservation: u64,
    /// Units a second, averaged over time.
    pub(crate) limit: Option<u64>,
    /// Bytes a second, averaged over time.
    pub(crate) bandwidth: Option<u64>,
    /// Units by which a burst may exceed the limit; 0 means no burst worth mentioning.
    pub(crate) burst: u64,
    /// Its group.
    pub(crate) group: Option<String>,
}

/// The disk that is explained.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    pub(crate) disk: &'a Name,
    pub(crate) datastore: &'a Name,
    pub(crate) terms: &'a Terms,
}

/// The activity of a disk in a span.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Facts {
    /// Length of the span.
    pub(crate) covers: Span,
    /// Whether a `stats` filter has counted. Without it, only the counters of I/O control are known.
    pub(crate) measured: bool,
    pub(crate) ios: u64,
    pub(crate) errors: u64,
    pub(crate) bytes: u64,
    pub(crate) units: u64,
    /// I/Os outstanding at the end.
    pub(crate) outstanding: u64,
    pub(crate) outstanding_mean: f64,
    /// Summed over the I/Os, in nanoseconds.
    pub(crate) queue: f64,
    pub(crate) filters: f64,
    pub(crate) datastore: f64,
    /// Time of waiting, by [`HoldReason`].
    pub(crate) held: [f64; 5],
    /// How far I/Os exceeded their limits in observe mode, where none is delayed.
    pub(crate) would_hold: f64,
    pub(crate) engaged_ratio: f64,
    pub(crate) thread: ThreadLoad,
    pub(crate) level: Option<Level>,
    /// The lease's state now, regardless of the span.
    pub(crate) claim: LeaseState,
    /// Harm to the image, regardless of when it happened.
    pub(crate) harm: Option<Harm>,
}

impl Facts {
    /// The same facts with this state of the lease.
    pub(crate) fn with(self, claim: LeaseState) -> Facts {
        Facts { claim, ..self }
    }

    /// The same facts with this harm to the image.
    pub(crate) fn harmed(self, harm: Option<Harm>) -> Facts {
        Facts { harm, ..self }
    }

    /// The differences between the two ends of a stretch.
    pub(crate) fn of(stretch: &Stretch) -> Facts {
        let Stretch { from, to, .. } = stretch;
        let mut facts = Facts {
            covers: to.at.since(from.at),
            engaged_ratio: stretch.engaged_ratio,
            level: to.level,
            ..Facts::default()
        };
        let age =
            to.thread.age.as_nanos() - from.thread.age.as_nanos().min(to.thread.age.as_nanos());
        let spent = |now: Span, then: Span| {
            ratio(now.as_nanos().saturating_sub(then.as_nanos()), age).min(1.0)
        };
        let busy_ratio = spent(to.thread.busy, from.thread.busy);
        let polling_ratio = spent(to.thread.polling, from.thread.polling);
        facts.thread = ThreadLoad {
            thread: to.thread.thread,
            busy_ratio,
            polling_ratio,
            sleeping_ratio: (1.0 - busy_ratio - polling_ratio).max(0.0),
        };
        if let Some(used) = to.used {
            facts.used(&used, &from.used.unwrap_or_default());
        }
        if let Some(pulse) = to.pulse {
            facts.measured = true;
            let old = from.pulse.unwrap_or_default();
            facts.ios = pulse.ios.saturating_sub(old.ios);
            facts.bytes = pulse.bytes.saturating_sub(old.bytes);
            facts.errors = pulse.errors.saturating_sub(old.errors);
            facts.outstanding = pulse.outstanding;
            let area = pulse
                .outstanding_integral(to.at)
                .wrapping_sub(old.outstanding_integral(from.at));
            facts.outstanding_mean = ratio(area, facts.covers.as_nanos());
            let total = float(pulse.latency_ns.wrapping_sub(old.latency_ns));
            let sampled =
                |stage: usize| float(pulse.sampled_ns[stage].wrapping_sub(old.sampled_ns[stage]));
            // While a disk is fast, the sums of stages cover only a sample; the sum of all I/Os is exact.
            let scale = if sampled(0) > 0.0 {
                total / sampled(0)
            } else {
                0.0
            };
            facts.queue = sampled(1) * scale;
            facts.datastore = sampled(3) * scale;
            facts.filters = (sampled(2) * scale - facts.turn()).max(0.0);
        }
        facts
    }

    fn used(&mut self, used: &Used, old: &Used) {
        self.ios = used.ios.saturating_sub(old.ios);
        self.bytes = used.bytes.saturating_sub(old.bytes);
        self.units = used.units.saturating_sub(old.units);
        self.datastore = float(used.latency_ns.saturating_sub(old.latency_ns));
        let held = |hold: Hold| {
            let place = hold.index();
            float(used.held_ns[place].saturating_sub(old.held_ns[place]))
        };
        let held = Hold::ALL.map(held);
        if self.level.is_some_and(|level| level.mode == Mode::Observe) {
            self.would_hold = held.iter().sum();
        } else {
            self.held = held;
        }
    }

    /// Time spent waiting for a turn.
    pub(crate) fn turn(&self) -> f64 {
        self.held.iter().sum()
    }

    /// All known time of its I/Os.
    pub(crate) fn whole(&self) -> f64 {
        self.queue + self.filters + self.turn() + self.datastore
    }

    /// A part of the whole, from 0 to 1.
    pub(crate) fn part(&self, ns: f64) -> f64 {
        let whole = self.whole();
        if whole > 0.0 { ns / whole } else { 0.0 }
    }

    /// Converts an amount over the span to a rate per second.
    pub(crate) fn each_second(&self, amount: u64) -> f64 {
        ratio(amount, self.covers.as_nanos()) * 1e9
    }

    /// Divides a sum over all I/Os by their number, in nanoseconds.
    pub(crate) fn each_io(&self, ns: f64) -> f64 {
        if self.ios > 0 {
            ns / float(self.ios)
        } else {
            0.0
        }
    }

    /// The latency above which the datastore counts as slow.
    fn slow(&self) -> Span {
        self.level.and_then(|level| level.threshold).unwrap_or(SLOW)
    }
}

/// Finds what limits the disk.
pub(crate) fn cause(facts: &Facts) -> Cause {
    if facts.claim != LeaseState::Held {
        return Cause::Lease;
    }
    if !facts.measured && facts.level.is_none() {
        return Cause::Unmeasured;
    }
    let inside = facts.outstanding_mean * float(facts.covers.as_nanos());
    if facts.ios == 0 && facts.turn() == 0.0 && inside < float(HANGS.as_nanos()) {
        return Cause::Idle;
    }
    // Also if no I/O has completed yet: a waiting I/O has a known reason.
    if facts.part(facts.turn()) >= WAITS {
        return held_by(facts);
    }
    if facts.ios == 0 {
        return Cause::Stuck;
    }
    let queued = facts.part(facts.queue);
    let asks = facts.outstanding_mean >= ASKS;
    if queued >= LINGERS || facts.thread.busy_ratio >= FULL && asks {
        return Cause::IoThread;
    }
    if facts.part(facts.filters) >= LINGERS {
        return Cause::Filters;
    }
    if facts.each_io(facts.datastore) >= float(facts.slow().as_nanos()) {
        return Cause::Datastore;
    }
    if facts.measured && !asks {
        return Cause::Guest;
    }
    Cause::Nothing
}

/// The longest of the waits of its I/Os.
fn held_by(facts: &Facts) -> Cause {
    let [shares, window, limit, group, bandwidth] = facts.held;
    let waits = [
        (limit, Cause::Limit),
        (group, Cause::GroupLimit),
        (bandwidth, Cause::Bandwidth),
        // Two sides of one thing: the window limits how many I/Os are dispatched, the shares decide which.
        (shares + window, Cause::Shares),
    ];
    waits
        .into_iter()
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or(Cause::Nothing, |(_, cause)| cause)
}

/// The whole explanation. `asked`: the span that was requested.
pub(crate) fn explain(about: About<'_>, facts: &Facts, asked: Span) -> Explanation {
    let cause = cause(facts);
    let us = |ns: f64| ns / 1e3;
    let part = |part, reason, ns: f64| Part {
        part,
        reason,
        mean_us: us(facts.each_io(ns)),
        ratio: facts.part(ns),
    };
    let mut parts = Vec::new();
    if facts.whole() > 0.0 {
        if facts.measured {
            parts.push(part(PartName::Queue, None, facts.queue));
            parts.push(part(PartName::Filters, None, facts.filters));
        }
        for (reason, ns) in HoldReason::ALL.into_iter().zip(facts.held) {
            parts.push(part(PartName::Turn, Some(reason), ns));
        }
        parts.push(part(PartName::Datastore, None, facts.datastore));
    }
    Explanation {
        disk: about.disk.clone(),
        datastore: about.datastore.clone(),
        covers_s: float(facts.covers.as_nanos()) / 1e9,
        cause,
        because: words::because(about, facts, cause),
        remedy: words::remedy(about, facts, cause),
        notes: words::notes(about, facts, cause, asked),
        load: Load {
            ios: facts.ios,
            iops: facts.each_second(facts.ios),
            units_per_s: facts.each_second(facts.units),
            bytes_per_s: facts.each_second(facts.bytes),
            outstanding_mean: facts.outstanding_mean,
            latency_mean_us: us(facts.each_io(facts.whole())),
        },
        parts,
        thread: facts.thread,
        control: facts.level.map(|level| control(about.terms, facts, &level)),
    }
}

fn control(terms: &Terms, facts: &Facts, level: &Level) -> Control {
    let us = |span: Span| float(span.as_nanos()) / 1e3;
    Control {
        mode: mode(level.mode),
        engaged_ratio: facts.engaged_ratio,
        latency_us: us(level.latency),
        threshold_us: level.threshold.map(us),
        entitled_iops: level.engaged.then_some(level.entitled),
        shares: terms.shares,
        reservation_iops: terms.reservation,
        limit_iops: terms.limit,
        limit_bytes_per_s: terms.bandwidth,
        burst_left: level.burst_left,
    }
}

#[cfg(test)]
mod tests;
