//! The estimated cost of a flow's requests, corrected by the measured time of whole turns.
//!
//! A turn serves many flows, and its clock is read once. So the error of the estimated time is divided among the flows
//! of the turn, and between their requests and their bytes (normalised least mean squares). It is exact only if turns
//! differ; [`super::RoundRobin`] sees to that.
//!
//! # Always true
//! - estimates stay within [`STEP`] and [`KIB`], whatever a turn took: a thread may lose its CPU for milliseconds
//!
//! # Source
//! B. Widrow, M. Hoff: Adaptive switching circuits, 1960; S. Haykin: Adaptive filter theory, chapter on NLMS.

use crate::units::Span;

/// Costs are in this fraction of a nanosecond.
pub(super) const UNIT: i64 = 256;
/// The least and the most cost of a step.
const STEP: (i64, i64) = (25 * UNIT, 1_000_000 * UNIT);
/// The least and the most cost of a KiB.
const KIB: (i64, i64) = (0, 20_000 * UNIT);
/// So many KiB weigh as much as a step when an error is divided. Below it, the number of requests usually decides.
const KIB_OF_STEP: i64 = 16;
/// A correction takes one part in so many of the error: as quick as TCP's round-trip time.
const PART: i64 = 8;
/// A turn that took longer than so many times its estimate was interrupted, or the estimate is far too low. It counts as
/// this much.
const MOST_TIMES: i64 = 4;

/// The cost of a request: a part for each, and a part for each KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Of half a request: its arrival, or its completion. In 1/256 ns.
    step: i64,
    /// Of each KiB, in 1/256 ns.
    kib: i64,
}

impl Default for Cost {
    /// 1 us for a request and 25 ns for a KiB: a file on a fast device.
    fn default() -> Cost {
        Cost::new(Span::from_micros(1), Span::from_nanos(25))
    }
}

impl Cost {
    /// Nothing costs anything.
    pub(super) const FREE: Cost = Cost { step: 0, kib: 0 };

    /// The cost of a request, and of each KiB.
    pub fn new(request: Span, kib: Span) -> Cost {
        let units = |span: Span| {
            i64::try_from(span.as_nanos()).map_or(i64::MAX, |ns| ns.saturating_mul(UNIT))
        };
        Cost {
            step: (units(request) / 2).clamp(STEP.0, STEP.1),
            kib: units(kib).clamp(KIB.0, KIB.1),
        }
    }

    /// Of so many requests with so many bytes, in 1/256 ns.
    #[inline]
    pub(super) fn of(&self, requests: u32, bytes: u64) -> i64 {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let requests = 2 * self.step * i64::from(requests);
        requests.saturating_add(bytes.saturating_mul(self.kib) / 1024)
    }

    /// Of one request with so many bytes.
    pub fn of_request(&self, bytes: u64) -> Span {
        Span::from_nanos((self.of(1, bytes) / UNIT).unsigned_abs())
    }
}

/// The sums over the flows of a turn.
pub(super) struct Fit {
    took: i64,
    expected: i64,
    /// The squares of steps and of 16 KiB.
    norm: i64,
}

/// The error of a turn, ready to be divided.
pub(super) struct Fitted {
    error: i64,
    norm: i64,
}

/// KiB of a turn, at most what the caps allow.
fn kib(bytes: u64) -> i64 {
    i64::try_from((bytes / 1024).min(1 << 20)).unwrap_or(0)
}

impl Fit {
    pub(super) fn new(took: Span) -> Fit {
        let took = i64::try_from(took.as_nanos()).map_or(i64::MAX, |ns| ns.saturating_mul(UNIT));
        Fit {
            took,
            expected: 0,
            norm: 0,
        }
    }

    /// A flow of the turn, with its arrivals and completions together, and the bytes of its arrivals.
    pub(super) fn add(&mut self, cost: &Cost, steps: u32, bytes: u64) {
        let (steps, kib) = (i64::from(steps), kib(bytes));
        self.expected += cost.step * steps + cost.kib * kib;
        self.norm += steps * steps + (kib / KIB_OF_STEP) * (kib / KIB_OF_STEP);
    }

    /// A cost that is known, in 1/256 ns.
    pub(super) fn add_extra(&mut self, extra: i64) {
        self.expected = self.expected.saturating_add(extra);
    }

    /// Nothing if the turn did nothing.
    pub(super) fn fitted(&self) -> Option<Fitted> {
        let took = self.took.min(self.expected.saturating_mul(MOST_TIMES));
        (self.norm > 0).then_some(Fitted {
            error: (took - self.expected) / PART,
            norm: self.norm,
        })
    }
}

impl Fitted {
    /// Corrects the cost of one flow of the turn.
    pub(super) fn correct(&self, cost: &mut Cost, steps: u32, bytes: u64) {
        let part = |of: i64| i128::from(self.error) * i128::from(of) / i128::from(self.norm);
        let add = |to: &mut i64, by: i128, (least, most): (i64, i64)| {
            let sum = i128::from(*to) + by;
            *to = i64::try_from(sum).unwrap_or(most).clamp(least, most);
        };
        add(&mut cost.step, part(steps.into()), STEP);
        let of_kib = part(kib(bytes) / KIB_OF_STEP) / i128::from(KIB_OF_STEP);
        add(&mut cost.kib, of_kib, KIB);
    }
}
