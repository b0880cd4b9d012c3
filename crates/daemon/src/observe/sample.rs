//! Samples: rates and latencies over a window, from the engine's counters.
//!
//! A one-shot answer covers the time since a disk was attached. A stream stores the previous report and covers the
//! time between the two. Nothing here queries the engine: reports are passed in.
//!
//! # Units
//! Input: nanoseconds. Output: seconds and microseconds.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_api::name::Name;
use tidegate_api::stats::{DiskStats, LatencySummary, OpStats, StageLatency, ThreadStats};
use tidegate_api::thread::ThreadState;
use tidegate_core::filter::stats::{Class, OpCounts, Stage, StatsReport};
use tidegate_core::histogram::Histogram;
use tidegate_core::request::Op;
use tidegate_core::units::Span;
use tidegate_engine::control::{Report, Used};
use tidegate_engine::counters::DelayHistogram;

use crate::disks::counters::DiskCounters;
use crate::host::Key;
use crate::text::float;

/// An I/O thread's counters at one moment.
#[derive(Clone, Debug)]
pub(crate) struct ThreadMoment {
    pub(crate) thread: u32,
    pub(crate) state: ThreadState,
    pub(crate) cpu: Option<u32>,
    pub(crate) disks: Vec<Name>,
    /// Time since it started.
    pub(crate) age_ns: u64,
    pub(crate) busy_ns: u64,
    pub(crate) polling_ns: u64,
    pub(crate) sleeping_ns: u64,
    /// Time in which it could run and others had its CPU.
    pub(crate) run_delay_ns: u64,
    /// How long requests waited, at most, until it saw them.
    pub(crate) delays: DelayHistogram,
    pub(crate) requests: u64,
    pub(crate) turns: u64,
    pub(crate) wakes: u64,
    /// Completions that matched no I/O; anything but zero is a bug of ours.
    pub(crate) strays: u64,
}

/// A datastore's I/O control at one moment.
#[derive(Clone, Debug)]
pub(crate) struct ControlMoment {
    pub(crate) datastore: Name,
    pub(crate) report: Report,
    /// The names of attached disks.
    pub(crate) names: Arc<BTreeMap<Key, Name>>,
}

impl ControlMoment {
    /// The usage of its disks, by name. A disk that is being attached or detached is left out.
    pub(crate) fn disks(&self) -> impl Iterator<Item = (&Name, &Used)> {
        let disks = self.report.disks.iter();
        disks.filter_map(|used| Some((self.names.get(&used.disk)?, used)))
    }
}

/// The activity of a disk between `before` (or its attachment) and now.
pub(crate) fn disk(now: &DiskCounters, before: Option<&DiskCounters>) -> DiskStats {
    // A disk that was attached again, or whose stats filter was replaced, counts from zero.
    let before = before.filter(|before| {
        before.attached == now.attached
            && count(before.stats.as_deref()) <= count(now.stats.as_deref())
            && before.stats.is_some()
    });
    let from = before.map_or(now.attached, |before| before.now);
    let window_s = seconds(now.now.since(from).as_nanos());
    let old = before.and_then(|before| before.stats.as_deref());
    let mut stats = DiskStats {
        name: now.name.clone(),
        datastore: now.datastore.clone(),
        thread: now.thread,
        window_s,
        measured: now.stats.is_some(),
        outstanding: 0,
        outstanding_mean: 0.0,
        all: OpStats {
            op: "all".to_owned(),
            ..OpStats::default()
        },
        cache_hit_ratio: hit_ratio(now, before),
        ops: Vec::new(),
    };
    let Some(new) = now.stats.as_deref() else {
        return stats;
    };
    stats.outstanding = new.outstanding;
    let integral = new.outstanding_integral(now.now);
    let old_integral = before.map_or(0, |b| old.map_or(0, |old| old.outstanding_integral(b.now)));
    stats.outstanding_mean = ratio(
        integral.wrapping_sub(old_integral),
        now.now.since(from).as_nanos(),
    );
    let mut all = Kind::default();
    for class in Class::ALL {
        let kind = Kind::of(new, old, class);
        all.merge(&kind);
        if kind.counts.count > 0 {
            stats.ops.push(kind.tell(class.name(), window_s));
        }
    }
    stats.all = all.tell("all", window_s);
    stats
}

/// The part of page reads between the two that a flash cache answered.
fn hit_ratio(now: &DiskCounters, before: Option<&DiskCounters>) -> Option<f64> {
    let [hits, misses] = now.cache?;
    let old = before.and_then(|before| before.cache);
    // The cache of another attachment, or one that was given again, counts from zero.
    let [old_hits, old_misses] = old
        .filter(|[old_hits, old_misses]| *old_hits <= hits && *old_misses <= misses)
        .unwrap_or_default();
    let (hits, misses) = (hits - old_hits, misses - old_misses);
    (hits + misses > 0).then(|| ratio(hits, hits + misses))
}

/// The activity of an I/O thread between `before` (or its start) and now.
pub(crate) fn thread(now: &ThreadMoment, before: Option<&ThreadMoment>) -> ThreadStats {
    let since =
        |field: fn(&ThreadMoment) -> u64| field(now).saturating_sub(before.map_or(0, field));
    let age = since(|t| t.age_ns);
    let delays = match before {
        Some(before) => now.delays.since(&before.delays),
        None => now.delays.clone(),
    };
    let delay_us = |permyriad| float(delays.quantile(permyriad).as_nanos()) / 1e3;
    ThreadStats {
        thread: now.thread,
        state: now.state,
        cpu: now.cpu,
        disks: now.disks.clone(),
        window_s: seconds(age),
        requests_total: now.requests,
        requests_per_s: ratio(since(|t| t.requests), age) * 1e9,
        busy_ratio: ratio(since(|t| t.busy_ns), age).min(1.0),
        polling_ratio: ratio(since(|t| t.polling_ns), age).min(1.0),
        sleeping_ratio: ratio(since(|t| t.sleeping_ns), age).min(1.0),
        run_delay_ratio: ratio(since(|t| t.run_delay_ns), age).min(1.0),
        queue_delay_p50_us: delay_us(5_000),
        queue_delay_p99_us: delay_us(9_900),
        turns_total: now.turns,
        wakeups_total: now.wakes,
    }
}

/// The counters of one kind of operation: in total, and in the window.
#[derive(Default)]
struct Kind {
    counts: OpCounts,
    window: OpCounts,
    latencies: [Histogram; Stage::ALL.len()],
}

impl Kind {
    fn of(new: &StatsReport, old: Option<&StatsReport>, class: Class) -> Kind {
        let mut kind = Kind::default();
        for op in Op::ALL.into_iter().filter(|op| Class::of(*op) == class) {
            let now = *new.op(op);
            let then = old.map_or(OpCounts::default(), |old| *old.op(op));
            add(&mut kind.counts, now);
            add(
                &mut kind.window,
                OpCounts {
                    count: now.count.saturating_sub(then.count),
                    bytes: now.bytes.saturating_sub(then.bytes),
                    errors: now.errors.saturating_sub(then.errors),
                    sequential: now.sequential.saturating_sub(then.sequential),
                    latency_sum: Span::from_nanos(
                        now.latency_sum
                            .as_nanos()
                            .wrapping_sub(then.latency_sum.as_nanos()),
                    ),
                    // Only the maximum since the beginning is stored.
                    latency_max: now.latency_max,
                },
            );
        }
        for (latency, stage) in kind.latencies.iter_mut().zip(Stage::ALL) {
            let Some(now) = new.latency(class, stage) else {
                continue;
            };
            *latency = match old.and_then(|old| old.latency(class, stage)) {
                Some(old) => now.since(old),
                None => now.clone(),
            };
        }
        kind
    }

    fn merge(&mut self, other: &Kind) {
        add(&mut self.counts, other.counts);
        add(&mut self.window, other.window);
        for (mine, theirs) in self.latencies.iter_mut().zip(&other.latencies) {
            mine.merge(theirs);
        }
    }

    fn tell(&self, name: &str, window_s: f64) -> OpStats {
        let rate = |amount: u64| {
            if window_s > 0.0 {
                float(amount) / window_s
            } else {
                0.0
            }
        };
        let latency = |stage: Stage| {
            let at = Stage::ALL.iter().position(|known| *known == stage);
            summary(&self.latencies[at.expect("every stage is among all")])
        };
        OpStats {
            op: name.to_owned(),
            ops_total: self.counts.count,
            bytes_total: self.counts.bytes,
            errors_total: self.counts.errors,
            sequential_ratio: ratio(self.counts.sequential, self.counts.count).min(1.0),
            iops: rate(self.window.count),
            bytes_per_s: rate(self.window.bytes),
            latency: StageLatency {
                queue: latency(Stage::Queue),
                filters: latency(Stage::Filters),
                datastore: latency(Stage::Datastore),
                // This sum has every I/O, while the histograms may sample.
                total: LatencySummary {
                    mean_us: float(self.window.latency_mean().as_nanos()) / 1e3,
                    ..latency(Stage::Total)
                },
            },
        }
    }
}

fn add(sum: &mut OpCounts, more: OpCounts) {
    sum.count += more.count;
    sum.bytes += more.bytes;
    sum.errors += more.errors;
    sum.sequential += more.sequential;
    sum.latency_sum = Span::from_nanos(
        sum.latency_sum
            .as_nanos()
            .wrapping_add(more.latency_sum.as_nanos()),
    );
    sum.latency_max = sum.latency_max.max(more.latency_max);
}

fn count(stats: Option<&StatsReport>) -> u64 {
    stats.map_or(0, StatsReport::count)
}

/// Summarises a distribution in six numbers.
fn summary(histogram: &Histogram) -> LatencySummary {
    let us = |span: Span| float(span.as_nanos()) / 1e3;
    LatencySummary {
        count: histogram.count(),
        mean_us: us(histogram.mean()),
        p50_us: us(histogram.quantile(5_000)),
        p95_us: us(histogram.quantile(9_500)),
        p99_us: us(histogram.quantile(9_900)),
        p999_us: us(histogram.quantile(9_990)),
        max_us: us(histogram.max()),
    }
}

/// A part of a whole; 0 if the whole is 0.
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        float(part) / float(whole)
    }
}

fn seconds(ns: u64) -> f64 {
    float(ns) / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::units::Time;

    fn moment(age_ns: u64, busy_ns: u64, requests: u64) -> ThreadMoment {
        ThreadMoment {
            thread: 0,
            state: ThreadState::Active,
            cpu: None,
            disks: vec![],
            age_ns,
            busy_ns,
            polling_ns: 0,
            sleeping_ns: age_ns - busy_ns,
            run_delay_ns: 0,
            delays: DelayHistogram::default(),
            requests,
            turns: 0,
            wakes: 0,
            strays: 0,
        }
    }

    #[test]
    fn a_threads_rates_cover_the_time_between_two_moments() {
        let before = moment(1_000_000_000, 900_000_000, 5_000);
        let now = moment(3_000_000_000, 1_400_000_000, 25_000);
        let stats = thread(&now, Some(&before));
        assert_eq!(stats.window_s, 2.0);
        assert_eq!(stats.requests_per_s, 10_000.0);
        assert_eq!(stats.busy_ratio, 0.25);
        assert_eq!(stats.sleeping_ratio, 0.75);
        assert_eq!(stats.requests_total, 25_000);
    }

    #[test]
    fn a_thread_that_has_just_begun_divides_by_nothing() {
        assert_eq!(thread(&moment(0, 0, 0), None).busy_ratio, 0.0);
    }

    #[test]
    fn a_disk_without_a_stats_filter_says_so() {
        let moment = DiskCounters {
            name: "a".parse().unwrap(),
            datastore: "d".parse().unwrap(),
            thread: 0,
            attached: Time::ZERO,
            now: Time::from_nanos(5_000_000_000),
            cache: None,
            stats: None,
            curve: tidegate_core::curve::Curve::empty(),
        };
        let stats = disk(&moment, Some(&moment));
        assert!(!stats.measured);
        assert_eq!(stats.all.ops_total, 0);
        assert_eq!(stats.window_s, 5.0);
    }
}
