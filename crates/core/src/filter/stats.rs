//! The `stats` filter: counts, bytes, sizes, order, outstanding I/Os, errors, and latencies by operation and stage.
//!
//! It passes everything. The daemon copies its [`StatsReport`] out for `stats`, `top`, REST and metrics; two reports
//! give the rates between them. Its manual is `docs/filters/stats.md`.
//!
//! It is on by default, so it must cost next to nothing: one cache line and some thirty instructions.
//! Counts, bytes, errors, order, mean and maximum are exact. Into the histograms goes every I/O while the disk does
//! fewer than some 10,000 a second, and beyond that about one in each millisecond or in [`GAP_MAX`], at random, which then
//! stands for those before it: nobody can tell the p99 of a thousand in each second from the true one.
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

use super::{Batch, Cx, Filter, FilterReport, Io};
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
    /// Of classes of which any was: most disks have two or three, idle ones none.
    samples: [Option<Samples>; Class::ALL.len()],
}

/// What was sampled of one class.
#[derive(Clone, Debug, Default)]
struct Samples {
    latencies: [Histogram; Stage::ALL.len()],
    sizes: [u64; SIZES],
}

impl Samples {
    /// A copy, if there is anything in it.
    fn if_any(&self) -> Option<Samples> {
        // Each sample has a size.
        self.sizes
            .iter()
            .any(|size| *size > 0)
            .then(|| self.clone())
    }
}

impl StatsReport {
    /// Latencies of one class in one stage; none if nothing of that class was sampled.
    pub fn latency(&self, class: Class, stage: Stage) -> Option<&Histogram> {
        let samples = self.samples[class as usize].as_ref()?;
        Some(&samples.latencies[stage as usize])
    }

    /// I/Os of one class by size; [`size_limit`] tells which is which.
    pub fn sizes(&self, class: Class) -> &[u64; SIZES] {
        let samples = self.samples[class as usize].as_ref();
        samples.map_or(&[0; SIZES], |samples| &samples.sizes)
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
    ops: [OpState; Op::ALL.len()],
    /// I/Os until the next one that is sampled.
    gap: usize,
    /// How many it stands for.
    stands_for: usize,
    /// When the last one was.
    sampled: Time,
    /// From here on touched only by what is seldom.
    last: Sampled,
    /// From one I/O to the next, in nanoseconds; mean of the last window or less.
    apart: u64,
    /// When the window began in which I/Os are counted, and how many there were.
    window: Time,
    seen: u64,
    random: u32,
    since: Option<Time>,
    faults: [u64; Fault::ALL.len()],
    samples: [Samples; Class::ALL.len()],
}

/// What is counted of an operation: one cache line. What every I/O adds to is kept apart by what few do, since the
/// compiler would add two neighbours at once, which takes more instructions than one after the other.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
struct OpState {
    bytes: u64,
    latency_max: u64,
    /// Latencies summed; wraps.
    latency_sum: u64,
    errors: u64,
    count: u64,
    sequential: u64,
}

/// One that went into the distributions.
#[derive(Clone, Copy, Debug)]
struct Sampled {
    class: Class,
    size: usize,
    total: Span,
    queue: Span,
    filters: Span,
    /// Of those that got there.
    datastore: Option<Span>,
}

/// What I/Os of one operation come to that end one after the other at one moment: summed in registers, as five cells of
/// memory would wait for themselves at each.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    bytes: u64,
    sequential: u64,
    /// Latencies, wrapping; those that failed, or arrive after they end, are put right in `remarkable`.
    latency: u64,
    longest: u64,
}

impl Sums {
    #[inline(always)]
    fn add(&mut self, now: Time, io: &Io) {
        let latency = now.as_nanos().wrapping_sub(io.arrived.as_nanos());
        self.bytes = self.bytes.wrapping_add(io.len);
        self.sequential += u64::from(io.follows);
        self.latency = self.latency.wrapping_add(latency);
        self.longest = self.longest.max(latency);
    }
}

impl OpState {
    #[inline(always)]
    fn add(&mut self, count: usize, sums: &Sums) {
        self.count += count as u64;
        self.bytes = self.bytes.wrapping_add(sums.bytes);
        self.sequential += sums.sequential;
        self.latency_sum = self.latency_sum.wrapping_add(sums.latency);
    }
}

/// Below this rate every I/O is sampled: at 100 us from one to the next, a few nanoseconds are not seen.
const EVERY_BELOW: Span = Span::from_micros(100);

/// Beyond it, at most so long from one sample to the next where gaps may be that long: half of it on average.
const PAUSE: Span = Span::from_millis(2);

/// One that waits for its sample for longer than this is of another time; and so long is counted to know a rate.
const LATE: Span = Span::from_millis(10);

/// The most I/Os that one sample stands for; the mean is half of it.
pub const GAP_MAX: usize = 1024;

impl Stats {
    /// One that has seen nothing.
    pub fn new() -> Stats {
        Stats {
            outstanding: 0,
            outstanding_max: 0,
            ends_less_entries: 0,
            gap: 1,
            stands_for: 1,
            ops: [OpState::default(); Op::ALL.len()],
            sampled: Time::ZERO,
            last: Sampled {
                class: Class::Other,
                size: 0,
                total: Span::ZERO,
                queue: Span::ZERO,
                filters: Span::ZERO,
                datastore: None,
            },
            apart: LATE.as_nanos(),
            window: Time::ZERO,
            seen: 0,
            random: 1,
            since: None,
            faults: [0; Fault::ALL.len()],
            samples: Default::default(),
        }
    }

    /// Counts those that have ended: in runs of one operation, of which at most the first one failed, so that nothing but
    /// sums is carried from one I/O to the next.
    #[inline(always)]
    fn count<'a>(&mut self, now: Time, mut ios: impl ExactSizeIterator<Item = &'a Io> + Clone) {
        loop {
            let run = ios.clone();
            let Some(first) = ios.next() else { break };
            let op = first.op;
            let mut sums = Sums::default();
            sums.add(now, first);
            // It is looked at closely.
            if first.outcome.is_err() {
                sums.longest = u64::MAX;
            }
            let mut beyond = ios.clone();
            while let Some(io) = beyond.next()
                && io.op == op
                && io.outcome.is_ok()
            {
                sums.add(now, io);
                ios = beyond.clone();
            }
            let count = run.len() - ios.len();
            let state = &mut self.ops[op.index()];
            state.add(count, &sums);
            if sums.longest > state.latency_max {
                self.look_closely(now, run.take(count));
            }
        }
    }

    /// Puts right what was counted of these.
    #[cold]
    #[inline(never)]
    fn look_closely<'a>(&mut self, now: Time, ios: impl Iterator<Item = &'a Io>) {
        ios.for_each(|io| self.remarkable(now, io));
    }

    /// One that failed, that took longer than any before, or whose arrival lies after its end: clocks are not to be trusted
    /// with what is summed for ever. All others are as they were counted.
    fn remarkable(&mut self, now: Time, io: &Io) {
        let op = &mut self.ops[io.op.index()];
        let latency = now.since(io.arrived).as_nanos();
        let counted = now.as_nanos().wrapping_sub(io.arrived.as_nanos());
        op.latency_sum = op.latency_sum.wrapping_sub(counted.wrapping_sub(latency));
        op.latency_max = op.latency_max.max(latency);
        if let Err(fault) = io.outcome {
            op.bytes = op.bytes.wrapping_sub(io.len);
            op.errors += 1;
            self.faults[fault as usize] += 1;
        }
    }

    /// Has one go into the distributions, for itself and those before it, and chooses the next.
    #[inline(never)]
    fn sample(&mut self, now: Time, io: &Io) {
        let below = io.returned.since(io.issued);
        let inside = now.since(io.entered).as_nanos();
        let sampled = Sampled {
            class: Class::of(io.op),
            size: size_place(io.len),
            total: now.since(io.arrived),
            queue: io.entered.since(io.arrived),
            filters: Span::from_nanos(inside.saturating_sub(below.as_nanos())),
            // A filter may have ended it before it reached the datastore.
            datastore: (io.returned != Time::ZERO).then_some(below),
        };
        self.record(&sampled, self.stands_for as u64);
        self.last = sampled;
        self.next_gap(now);
    }

    fn record(&mut self, sampled: &Sampled, times: u64) {
        let Samples { latencies, sizes } = &mut self.samples[sampled.class as usize];
        let [total, queue, filters, datastore] = latencies;
        sizes[sampled.size] += times;
        total.record_many(sampled.total, times);
        queue.record_many(sampled.queue, times);
        filters.record_many(sampled.filters, times);
        if let Some(span) = sampled.datastore {
            datastore.record_many(span, times);
        }
    }

    /// The next one that is sampled was long in coming, since there are fewer now: those of before are counted as the last
    /// one of their time, and from now on all are seen again.
    #[cold]
    fn slow_down(&mut self) {
        let last = self.last;
        self.record(&last, (self.stands_for - self.gap) as u64);
        (self.gap, self.stands_for) = (1, 1);
    }

    /// Learns how far I/Os are apart: from a window's end, or from so many in it that they cannot be far.
    fn look_at_rate(&mut self, now: Time) {
        self.seen += self.stands_for as u64;
        let passed = now.since(self.window);
        if passed >= LATE {
            self.apart = passed.as_nanos() / self.seen;
            (self.window, self.seen) = (now, 0);
        } else {
            self.apart = self.apart.min(LATE.as_nanos() / self.seen);
        }
    }

    /// Chooses the next one to sample. At random, as a fixed gap could fall in step with the guest's batches.
    fn next_gap(&mut self, now: Time) {
        self.sampled = now;
        self.look_at_rate(now);
        // A linear congruence's upper bits are random enough to break step, and its lower ones are not used.
        self.random = self
            .random
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        self.gap = if self.apart < EVERY_BELOW.as_nanos() {
            let most = PAUSE.as_nanos() / self.apart.max(1);
            let most = usize::try_from(most).map_or(GAP_MAX, |most| most.min(GAP_MAX));
            (self.random >> 16) as usize % most + 1
        } else {
            1
        };
        self.stands_for = self.gap;
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

    fn submit_all(&mut self, cx: &mut Cx<'_>, batch: &mut Batch<'_>) {
        let ios = batch.len() as u64;
        let entries = cx.now().as_nanos().wrapping_mul(ios);
        self.ends_less_entries = self.ends_less_entries.wrapping_sub(entries);
        self.outstanding += ios;
        if self.outstanding > self.outstanding_max {
            self.most_outstanding(cx.now());
        }
    }

    fn complete_all(&mut self, cx: &mut Cx<'_>, batch: &mut Batch<'_>) {
        let now = cx.now();
        let ends = now.as_nanos().wrapping_mul(batch.len() as u64);
        self.ends_less_entries = self.ends_less_entries.wrapping_add(ends);
        self.outstanding -= batch.len() as u64;
        if self.gap > 1 && now.since(self.sampled) > LATE {
            self.slow_down();
        }
        let mut at = 0;
        while at < batch.len() {
            let ios = batch.ios(at, self.gap);
            at += ios.len();
            self.gap -= ios.len();
            self.count(now, ios);
            if self.gap == 0 {
                self.sample(now, batch.io(at - 1));
            }
        }
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
            errors: sum(|op| op.errors),
            bytes: sum(|op| op.bytes),
            latency_ns: sum(|op| op.latency_sum),
            outstanding: self.outstanding,
            sampled_ns: Stage::ALL.map(stage),
            ends_less_entries: self.ends_less_entries,
        })
    }

    fn report(&self) -> FilterReport {
        let counts = |op: &OpState| OpCounts {
            count: op.count,
            bytes: op.bytes,
            sequential: op.sequential,
            errors: op.errors,
            latency_sum: Span::from_nanos(op.latency_sum),
            latency_max: Span::from_nanos(op.latency_max),
        };
        FilterReport::Stats(Box::new(StatsReport {
            since: self.since,
            ops: self.ops.each_ref().map(counts),
            faults: self.faults,
            outstanding: self.outstanding,
            outstanding_max: self.outstanding_max,
            ends_less_entries: self.ends_less_entries,
            samples: self.samples.each_ref().map(Samples::if_any),
        }))
    }
}

/// Which size a length belongs to.
const fn size_place(len: u64) -> usize {
    let place = u64::BITS - (len.saturating_sub(1) >> 9).leading_zeros();
    let place = place as usize;
    if place < SIZES { place } else { SIZES - 1 }
}
