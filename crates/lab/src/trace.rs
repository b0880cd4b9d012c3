//! Figures of a recorded trace, and its file ([`landing`]).
//!
//! Reading a trace is [`tidegate_sim::trace`]'s, playing it back [`crate::replay`]'s. These figures stand for both what was
//! recorded and what came of a replay, so that they can be laid beside each other.
//!
//! # Units
//! As the names say.

use serde::Serialize;
use tidegate_core::request::Op;
use tidegate_core::units::Span;
use tidegate_sim::trace::Trace;

pub mod landing;

pub use tidegate_sim::trace::ReadError;

/// I/Os in figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// How many.
    pub ios: u64,
    /// Those of them that read.
    pub reads: u64,
    /// Those that wrote.
    pub writes: u64,
    /// Those that did neither: flushes, discards and others.
    pub others: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// From the first question to the last answer.
    pub lasts_s: f64,
    /// I/Os a second.
    pub iops: f64,
    /// Bytes read and written a second.
    pub bytes_per_s: f64,
    /// How many were outstanding in the mean.
    pub outstanding_mean: f64,
    /// Mean latency.
    pub latency_mean_us: f64,
    /// Half of them took no longer.
    pub latency_p50_us: f64,
    /// 99 % of them took no longer.
    pub latency_p99_us: f64,
}

/// Figures while I/Os are still being counted. A trace has millions of them: only the latency of each is stored.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    figures: Figures,
    latencies: Vec<u64>,
}

impl Sum {
    /// One more that took so long.
    pub fn add(&mut self, op: Op, len: u64, latency: Span) {
        match op {
            Op::Read => self.figures.reads += 1,
            Op::Write => self.figures.writes += 1,
            Op::WriteZeroes | Op::Discard | Op::Flush | Op::Extents | Op::Prefetch => {
                self.figures.others += 1;
            }
        }
        if matches!(op, Op::Read | Op::Write) {
            self.figures.bytes += len;
        }
        self.latencies.push(latency.as_nanos());
    }

    /// All of them together took so long.
    #[must_use]
    pub fn over(self, lasts: Span) -> Figures {
        let Sum {
            mut figures,
            mut latencies,
        } = self;
        latencies.sort_unstable();
        let sum: u128 = latencies.iter().map(|ns| u128::from(*ns)).sum();
        let seconds = lasts.as_nanos() as f64 / 1e9;
        figures.ios = latencies.len() as u64;
        figures.lasts_s = seconds;
        if seconds > 0.0 {
            figures.iops = figures.ios as f64 / seconds;
            figures.bytes_per_s = figures.bytes as f64 / seconds;
            figures.outstanding_mean = sum as f64 / 1e9 / seconds;
        }
        figures.latency_mean_us = sum as f64 / 1e3 / latencies.len().max(1) as f64;
        figures.latency_p50_us = ranked(&latencies, 50);
        figures.latency_p99_us = ranked(&latencies, 99);
        figures
    }
}

impl Figures {
    /// Of I/Os that took so long each, and `lasts` all together.
    #[must_use]
    pub fn of(ios: impl Iterator<Item = (Op, u64, Span)>, lasts: Span) -> Figures {
        let mut sum = Sum::default();
        for (op, len, latency) in ios {
            sum.add(op, len, latency);
        }
        sum.over(lasts)
    }

    /// Of a trace, as it was recorded.
    #[must_use]
    pub fn recorded(trace: &Trace) -> Figures {
        let ios = trace.ios.iter().map(|io| (io.op, io.len, io.latency));
        Figures::of(ios, trace.lasts())
    }
}

/// Of sorted nanoseconds those that so many percent do not exceed, in microseconds; zero of none.
fn ranked(sorted: &[u64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    let ns = rank.checked_sub(1).and_then(|place| sorted.get(place));
    ns.copied().unwrap_or(0) as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_count_by_what_ios_do_and_rank_their_latencies() {
        let ios = (1..=100).map(|ms| (Op::Read, 4_096, Span::from_millis(ms)));
        let flush = [(Op::Flush, 0, Span::from_millis(200))].into_iter();
        let write = [(Op::Write, 512, Span::from_millis(200))].into_iter();
        let figures = Figures::of(ios.chain(flush).chain(write), Span::from_secs(10));
        assert_eq!((figures.reads, figures.writes, figures.others), (100, 1, 1));
        assert_eq!(figures.bytes, 100 * 4_096 + 512);
        assert!((figures.iops - 10.2).abs() < 1e-9);
        assert!((figures.latency_p50_us - 51e3).abs() < 1e-6);
        assert!((figures.latency_p99_us - 200e3).abs() < 1e-6);
        assert!((figures.outstanding_mean - 0.545).abs() < 1e-9);
    }

    #[test]
    fn nothing_is_nothing() {
        let none = Figures::of(std::iter::empty(), Span::ZERO);
        assert_eq!(none, Figures::default());
    }
}
