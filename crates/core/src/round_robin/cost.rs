//! The estimated cost of a flow's requests, corrected by measured times of parts of turns.
//!
//! Two parts of a turn are measured: the completions of one disk, and the requests of one flow
//! ([`super::RoundRobin::is_learning`]). The error of the estimate is divided between requests, completions and bytes, and among
//! the flows of the disk (normalised least mean squares). Flows of different disks never share an error. So a flow with
//! few cheap requests is not charged for its neighbours'.
//!
//! # Always true
//! - estimates stay within [`STEP`] and [`KIB`], whatever a turn took: a thread may lose its CPU for milliseconds
//!
//! # Source
//! B. Widrow, M. Hoff: Adaptive switching circuits, 1960; S. Haykin: Adaptive filter theory, chapter on NLMS.

use crate::units::Span;

/// Costs are in this fraction of a nanosecond.
pub(super) const UNIT: i64 = 256;
/// The least and the most cost of an arrival, and of a completion.
const STEP: (i64, i64) = (25 * UNIT, 1_000_000 * UNIT);
/// The least and the most cost of a KiB.
const KIB: (i64, i64) = (0, 20_000 * UNIT);
/// So many KiB weigh as much as a step when an error is divided. Below it, the number of requests usually decides.
const KIB_OF_STEP: i64 = 16;
/// A correction takes one part in so many of the error. With 64 flows, each is measured once in 50 ms.
const PART: i64 = 4;
/// A part of a turn that took longer than so many times its estimate was interrupted, or the estimate is far too low. It
/// counts as this much.
const MOST_TIMES: i64 = 4;

/// The cost of a request: a part for each, and a part for each KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Of a request's arrival, in 1/256 ns.
    arrival: i64,
    /// Of its completion, in 1/256 ns. The two differ much where a filter works on the bytes of one of them.
    completion: i64,
    /// Of each KiB, in 1/256 ns.
    kib: i64,
}

/// What a flow has had in a measured part of a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    pub(super) arrivals: u32,
    pub(super) completions: u32,
    /// Bytes of the arrivals.
    pub(super) bytes: u64,
}

impl Default for Cost {
    /// 1 us for a request and 25 ns for a KiB: a file on a fast device.
    fn default() -> Cost {
        Cost::new(Span::from_micros(1), Span::from_nanos(25))
    }
}

impl Cost {
    /// Nothing costs anything.
    pub(super) const FREE: Cost = Cost {
        arrival: 0,
        completion: 0,
        kib: 0,
    };

    /// The cost of a request, and of each KiB.
    pub fn new(request: Span, kib: Span) -> Cost {
        let units = |span: Span| {
            i64::try_from(span.as_nanos()).map_or(i64::MAX, |ns| ns.saturating_mul(UNIT))
        };
        let half = (units(request) / 2).clamp(STEP.0, STEP.1);
        Cost {
            arrival: half,
            completion: half,
            kib: units(kib).clamp(KIB.0, KIB.1),
        }
    }

    /// Of so many requests with so many bytes, in 1/256 ns.
    #[inline]
    pub(super) fn of(&self, requests: u32, bytes: u64) -> i64 {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let requests = (self.arrival + self.completion) * i64::from(requests);
        requests.saturating_add(bytes.saturating_mul(self.kib) / 1024)
    }

    /// Of one request with so many bytes.
    pub fn of_request(&self, bytes: u64) -> Span {
        Span::from_nanos((self.of(1, bytes) / UNIT).unsigned_abs())
    }
}

/// The sums over the flows of a measured part of a turn.
pub(super) struct Fit {
    took: i64,
    expected: i64,
    /// The squares of arrivals, completions, and 16 KiB.
    norm: i64,
}

/// The error of a part, ready to be divided.
pub(super) struct Fitted {
    error: i64,
    expected: i64,
    norm: i64,
}

/// KiB of a turn, at most what the caps allow.
fn kib(bytes: u64) -> i64 {
    i64::try_from((bytes / 1024).min(1 << 20)).unwrap_or(0)
}

impl Fit {
    /// A part that took this long, of which `extra` is known, in 1/256 ns.
    pub(super) fn new(took: Span, extra: i64) -> Fit {
        let took = i64::try_from(took.as_nanos()).map_or(i64::MAX, |ns| ns.saturating_mul(UNIT));
        Fit {
            took,
            expected: extra,
            norm: 0,
        }
    }

    /// A flow of the part.
    pub(super) fn add(&mut self, cost: &Cost, work: &Work) {
        let (arrivals, completions) = (i64::from(work.arrivals), i64::from(work.completions));
        let kib = kib(work.bytes);
        let expected = cost.arrival * arrivals + cost.completion * completions + cost.kib * kib;
        self.expected = self.expected.saturating_add(expected);
        self.norm += arrivals * arrivals + completions * completions;
        self.norm += (kib / KIB_OF_STEP) * (kib / KIB_OF_STEP);
    }

    /// Nothing if the flows had nothing.
    pub(super) fn fitted(&self) -> Option<Fitted> {
        let took = self.took.min(self.expected.saturating_mul(MOST_TIMES));
        (self.norm > 0).then_some(Fitted {
            error: (took - self.expected) / PART,
            expected: self.expected,
            norm: self.norm,
        })
    }
}

impl Fitted {
    /// Whether the part took more than twice as long as was expected.
    pub(super) fn is_far_off(&self) -> bool {
        self.error * PART > self.expected
    }

    /// Corrects the cost of one flow of the part.
    pub(super) fn correct(&self, cost: &mut Cost, work: &Work) {
        let part = |of: i64| i128::from(self.error) * i128::from(of) / i128::from(self.norm);
        let add = |to: &mut i64, by: i128, (least, most): (i64, i64)| {
            let sum = i128::from(*to) + by;
            *to = i64::try_from(sum).unwrap_or(most).clamp(least, most);
        };
        add(&mut cost.arrival, part(work.arrivals.into()), STEP);
        add(&mut cost.completion, part(work.completions.into()), STEP);
        let of_kib = part(kib(work.bytes) / KIB_OF_STEP) / i128::from(KIB_OF_STEP);
        add(&mut cost.kib, of_kib, KIB);
    }
}
