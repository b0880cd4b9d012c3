//! Measures a disk's I/O: counts, bytes, sizes, order, outstanding, errors, and latencies by operation and stage.
//!
//! It passes everything. The daemon copies its [`StatsReport`] out for `stats`, `top`, REST and metrics; two reports
//! give the rates between them. Its manual is `docs/filters/stats.md`.
//!
//! It is on by default, so it must cost next to nothing: two cache lines and some fifty instructions.
//! Counts, bytes, errors, order, mean and maximum are exact. Into the histograms goes every I/O while the disk does
//! fewer than some 10,000 a second, and beyond that a random one in sixteen, which then stands for those before it:
//! at 100,000 a second that is 6,000 looked at in each, and nobody can tell their p99 from the true one.
//!
//! # Always true
//! - every I/O is passed, untouched, both ways
//! - `count` counts exactly the I/Os that have ended; `outstanding` those that have not
//! - the histograms of one stage together count as many as that, save the last few (less than [`GAP_MAX`])
//! - the time-weighted mean of outstanding I/Os is exact: ends less entries, summed, over time passed
//!
//! # Picture: the stages of one I/O
//! ```text
//! arrived      entered               issued        returned               ended
//!    |--queue-----|------filters--------|--datastore---|------filters-------|
//!    |------------------------------total-----------------------------------|
//! ```

use super::{Cx, Filter, FilterReport, Io, Verdict};
use crate::histogram::Histogram;
use crate::request::{Fault, Op};
use crate::units::{Span, Time};
use alloc::boxed::Box;

/// Kinds of operations whose latencies are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// All others: they are seldom, and each would cost as much memory as reads do.
    Other,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 4] = [Class::Read, Class::Write, Class::Flush, Class::Other];

    /// The class of an operation.
    pub const fn of(op: Op) -> Class {
        match op {
            Op::Read => Class::Read,
            Op::Write => Class::Write,
            Op::Flush => Class::Flush,
            Op::WriteZeroes | Op::Discard | Op::Extents | Op::Prefetch => Class::Other,
        }
    }

    /// Its name outside.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Read => "read",
            Class::Write => "write",
            Class::Flush => "flush",
            Class::Other => "other",
        }
    }
}

/// A part of an I/O's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// From its arrival at the front end to its end.
    Total,
    /// From its arrival to its entry into the filters.
    Queue,
    /// In the filters, both ways.
    Filters,
    /// With the datastore.
    Datastore,
}

impl Stage {
    /// All of them.
    pub const ALL: [Stage; 4] = [Stage::Total, Stage::Queue, Stage::Filters, Stage::Datastore];

    /// Its name outside.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Total => "total",
            Stage::Queue => "queue",
            Stage::Filters => "filters",
            Stage::Datastore => "datastore",
        }
    }
}

/// How many sizes are told apart: up to 512 bytes, 1 KiB, 2 KiB, ... 8 MiB, and beyond.
pub const SIZES: usize = 16;

/// What was counted of one operation; exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCounts {
    /// I/Os that have ended, errors included.
    pub count: u64,
    /// Bytes of those that succeeded.
    pub bytes: u64,
    /// Those that began where the one before, of the same operation, had ended.
    pub sequential: u64,
    /// Those that failed.
    pub errors: u64,
    /// Their latencies from arrival to end, summed. Wraps after 584 years.
    pub latency_sum: Span,
    /// The longest of them.
    pub latency_max: Span,
}

impl OpCounts {
    /// Their mean latency from arrival to end; zero where there were none.
    pub const fn latency_mean(&self) -> Span {
        match self.latency_sum.as_nanos().checked_div(self.count) {
            Some(mean) => Span::from_nanos(mean),
            None => Span::ZERO,
        }
    }
}

/// Everything a disk's `stats` filter has counted since it was put in.
#[derive(Clone, Debug)]
pub struct StatsReport {
    /// When the first I/O came; `None` before it.
    pub since: Option<Time>,
    /// By operation.
    pub ops: [OpCounts; Op::ALL.len()],
    /// Failures by fault, in the order of [`Fault::ALL`].
    pub faults: [u64; Fault::ALL.len()],
    /// I/Os inside now.
    pub outstanding: u64,
    /// The most there ever were.
    pub outstanding_max: u64,
    /// The moments at which I/Os ended less those at which they entered, summed; wraps. See `outstanding_integral`.
    ends_less_entries: u64,
    samples: [Samples; Class::ALL.len()],
}

/// What was sampled of one class.
#[derive(Clone, Debug, Default)]
struct Samples {
    latencies: [Histogram; Stage::ALL.len()],
    sizes: [u64; SIZES],
}

impl StatsReport {
    /// Latencies of one class in one stage.
    pub fn latency(&self, class: Class, stage: Stage) -> &Histogram {
        &self.samples[class as usize].latencies[stage as usize]
    }

    /// I/Os of one class by size; [`size_limit`] tells which is which.
    pub fn sizes(&self, class: Class) -> &[u64; SIZES] {
        &self.samples[class as usize].sizes
    }

    /// What was counted of one operation.
    pub fn op(&self, op: Op) -> &OpCounts {
        &self.ops[op.index()]
    }

    /// All I/Os that have ended.
    pub fn count(&self) -> u64 {
        self.ops.iter().map(|op| op.count).sum()
    }

    /// Outstanding I/Os integrated over time until `now`, in I/O-nanoseconds: the difference between two moments over
    /// the time between them is the mean outstanding in between. Wraps; subtract with `wrapping_sub`.
    pub fn outstanding_integral(&self, now: Time) -> u64 {
        // Each that is inside has stayed from its entry until now.
        self.outstanding
            .wrapping_mul(now.as_nanos())
            .wrapping_add(self.ends_less_entries)
    }

    /// Mean outstanding I/Os from the first I/O to `now`, in thousandths.
    pub fn outstanding_mean_milli(&self, now: Time) -> u64 {
        let passed = self.since.map_or(0, |since| now.since(since).as_nanos());
        let area = u128::from(self.outstanding_integral(now)) * 1_000;
        area.checked_div(u128::from(passed))
            .map_or(0, |mean| u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// Share of an operation's I/Os that went on where the one before ended, in thousandths.
    pub fn sequential_milli(&self, op: Op) -> u64 {
        let OpCounts {
            count, sequential, ..
        } = self.op(op);
        (sequential * 1_000)
            .checked_div(*count)
            .map_or(0, |share| share.min(1_000))
    }
}

/// The sums of what was counted: small enough to be asked for every second, on every disk, without being felt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    /// I/Os that have ended, errors included.
    pub ios: u64,
    /// Those that failed.
    pub errors: u64,
    /// Bytes of those that succeeded.
    pub bytes: u64,
    /// Latencies from arrival to end, summed, in nanoseconds; exact. Wraps.
    pub latency_ns: u64,
    /// I/Os inside now.
    pub outstanding: u64,
    /// Latencies summed by stage, in the order of [`Stage::ALL`], in nanoseconds, of the I/Os that were sampled, each as
    /// often as it stands for. Wraps.
    pub sampled_ns: [u64; Stage::ALL.len()],
    /// The moments at which I/Os ended less those at which they entered, summed, in nanoseconds; wraps. What
    /// [`Pulse::outstanding_integral`] is made of.
    pub ends_less_entries: u64,
}

impl Pulse {
    /// As [`StatsReport::outstanding_integral`].
    pub fn outstanding_integral(&self, now: Time) -> u64 {
        self.outstanding
            .wrapping_mul(now.as_nanos())
            .wrapping_add(self.ends_less_entries)
    }
}

/// The largest length, in bytes, that counts into the `place`-th size; `None` for the last, which has no end.
pub const fn size_limit(place: usize) -> Option<u64> {
    if place + 1 < SIZES {
        Some(512 << place)
    } else {
        None
    }
}

/// See the module.
#[derive(Debug)]
pub struct Stats {
    outstanding: u64,
    outstanding_max: u64,
    ends_less_entries: u64,
    /// I/Os until the next one that is sampled.
    gap: u32,
    /// How many it stands for.
    stands_for: u32,
    ops: [OpState; Op::ALL.len()],
    /// From here on touched only by what is seldom.
    sampled: Time,
    random: u32,
    since: Option<Time>,
    errors: [u64; Op::ALL.len()],
    faults: [u64; Fault::ALL.len()],
    samples: [Samples; Class::ALL.len()],
}

/// What every I/O of an operation touches: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct OpState {
    count: u64,
    bytes: u64,
    sequential: u64,
    latency_sum: u64,
    latency_max: u64,
    /// Where the next sequential one begins.
    next: u64,
}

/// Below this rate every I/O is sampled: at 100 us from one to the next, a few nanoseconds are not seen.
const EVERY_BELOW: Span = Span::from_micros(100);

/// The most I/Os that one sample stands for; the mean is half of it.
pub const GAP_MAX: u32 = 32;

impl Stats {
    /// One that has seen nothing.
    pub fn new() -> Stats {
        let op = OpState {
            count: 0,
            bytes: 0,
            sequential: 0,
            latency_sum: 0,
            latency_max: 0,
            next: u64::MAX,
        };
        Stats {
            outstanding: 0,
            outstanding_max: 0,
            ends_less_entries: 0,
            gap: 1,
            stands_for: 1,
            ops: [op; Op::ALL.len()],
            sampled: Time::ZERO,
            random: 1,
            since: None,
            errors: [0; Op::ALL.len()],
            faults: [0; Fault::ALL.len()],
            samples: Default::default(),
        }
    }

    /// What a few I/Os need beside the counts: those that are sampled, that failed, that took longest.
    #[cold]
    #[inline(never)]
    fn seldom(&mut self, now: Time, io: &Io) -> Verdict {
        let op = &mut self.ops[io.op.index()];
        op.latency_max = op.latency_max.max(now.since(io.arrived).as_nanos());
        if let Err(fault) = io.outcome {
            op.bytes = op.bytes.wrapping_sub(io.len);
            self.errors[io.op.index()] += 1;
            self.faults[fault as usize] += 1;
        }
        if self.gap == 0 {
            self.sample(now, io);
            self.next_gap(now);
        }
        Verdict::Pass
    }

    fn sample(&mut self, now: Time, io: &Io) {
        let times = u64::from(self.stands_for);
        let Samples { latencies, sizes } = &mut self.samples[Class::of(io.op) as usize];
        let [total, queue, filters, datastore] = latencies;
        sizes[size_place(io.len)] += times;
        total.record_many(now.since(io.arrived), times);
        queue.record_many(io.entered.since(io.arrived), times);
        let below = io.returned.since(io.issued);
        // A filter may have ended it before it reached the datastore.
        if io.returned != Time::ZERO {
            datastore.record_many(below, times);
        }
        let inside = now.since(io.entered).as_nanos();
        filters.record_many(
            Span::from_nanos(inside.saturating_sub(below.as_nanos())),
            times,
        );
    }

    /// Chooses the next one to sample. At random, as a fixed gap could fall in step with the guest's batches.
    fn next_gap(&mut self, now: Time) {
        let each = now.since(self.sampled).as_nanos() / u64::from(self.stands_for);
        let busy = each < EVERY_BELOW.as_nanos();
        // A linear congruence's upper bits are random enough to break step, and its lower ones are not used.
        self.random = self
            .random
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        self.gap = if busy {
            (self.random >> 16) % GAP_MAX + 1
        } else {
            1
        };
        self.stands_for = self.gap;
        self.sampled = now;
    }

    /// More are inside than ever before.
    #[cold]
    #[inline(never)]
    fn most_outstanding(&mut self, now: Time) {
        self.outstanding_max = self.outstanding;
        self.since.get_or_insert(now);
    }
}

impl Default for Stats {
    fn default() -> Stats {
        Stats::new()
    }
}

impl Filter for Stats {
    fn name(&self) -> &'static str {
        "stats"
    }

    fn submit(&mut self, cx: &mut Cx<'_>, io: &Io) -> Verdict {
        self.ends_less_entries = self.ends_less_entries.wrapping_sub(cx.now().as_nanos());
        let op = &mut self.ops[io.op.index()];
        op.sequential += u64::from(io.offset == op.next);
        op.next = io.offset.wrapping_add(io.len);
        self.outstanding += 1;
        if self.outstanding > self.outstanding_max {
            self.most_outstanding(cx.now());
        }
        Verdict::Pass
    }

    fn complete(&mut self, cx: &mut Cx<'_>, io: &Io) -> Verdict {
        let now = cx.now();
        self.outstanding -= 1;
        self.ends_less_entries = self.ends_less_entries.wrapping_add(now.as_nanos());
        let op = &mut self.ops[io.op.index()];
        let latency = now.since(io.arrived).as_nanos();
        op.count += 1;
        // Those that failed are taken back in `seldom`: cheaper than to ask here.
        op.bytes = op.bytes.wrapping_add(io.len);
        op.latency_sum = op.latency_sum.wrapping_add(latency);
        self.gap -= 1;
        if self.gap == 0 || latency > op.latency_max || io.outcome.is_err() {
            return self.seldom(now, io);
        }
        Verdict::Pass
    }

    fn pulse(&self) -> Option<Pulse> {
        let sum = |of: fn(&OpState) -> u64| {
            let each = self.ops.iter().map(of);
            each.fold(0, u64::wrapping_add)
        };
        let stage = |stage: Stage| {
            let sums = self.samples.iter().map(|samples| {
                let latencies = &samples.latencies[stage as usize];
                latencies.sum().as_nanos()
            });
            sums.fold(0, u64::wrapping_add)
        };
        Some(Pulse {
            ios: sum(|op| op.count),
            errors: self.errors.iter().sum(),
            bytes: sum(|op| op.bytes),
            latency_ns: sum(|op| op.latency_sum),
            outstanding: self.outstanding,
            sampled_ns: Stage::ALL.map(stage),
            ends_less_entries: self.ends_less_entries,
        })
    }

    fn report(&self) -> FilterReport {
        let counts = |(op, errors): (&OpState, &u64)| OpCounts {
            count: op.count,
            bytes: op.bytes,
            sequential: op.sequential,
            errors: *errors,
            latency_sum: Span::from_nanos(op.latency_sum),
            latency_max: Span::from_nanos(op.latency_max),
        };
        let mut ops = [OpCounts::default(); Op::ALL.len()];
        for (place, op) in self.ops.iter().zip(&self.errors).enumerate() {
            ops[place] = counts(op);
        }
        FilterReport::Stats(Box::new(StatsReport {
            since: self.since,
            ops,
            faults: self.faults,
            outstanding: self.outstanding,
            outstanding_max: self.outstanding_max,
            ends_less_entries: self.ends_less_entries,
            samples: self.samples.clone(),
        }))
    }
}

/// Which size a length belongs to.
const fn size_place(len: u64) -> usize {
    let place = u64::BITS - (len.saturating_sub(1) >> 9).leading_zeros();
    let place = place as usize;
    if place < SIZES { place } else { SIZES - 1 }
}
