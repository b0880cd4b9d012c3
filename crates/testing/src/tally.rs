//! Counts and latencies of one queue or connection in a measured window.
//!
//! The clients fill it. The bench merges tallies and computes figures.
//!
//! # Units
//! - Latencies in nanoseconds inside, microseconds in [`Tally::percentile_us`].

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::stamp::Mismatch;

/// The condition that ends a run.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// Warms up for the first duration, then measures for the second.
    Time(Duration, Duration),
    /// Ends after this many requests of all queues. Everything is measured.
    Count(u64),
    /// Ends when no source has any more requests.
    Exhausted,
}

/// The start and the end of a measured window, reported to the caller on the client's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// The window opens now.
    Open,
    /// The window closes now.
    Close,
}

/// How long a client waits for a reply. A server that is silent for longer has failed.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Latencies in nanoseconds with two significant digits, up to 18 minutes.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let new = Histogram::new_with_max(1 << 40, 2);
        Self(new.expect("the range and the precision are valid"))
    }
}

impl Latencies {
    /// Records one latency.
    #[inline]
    pub fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos);
    }

    /// Number of recorded latencies.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether nothing is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn merge(&mut self, other: &Self) {
        let added = self.0.add(&other.0);
        added.expect("all have the same range");
    }
}

/// Counts and latencies of one window.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Successful requests.
    pub completed: u64,
    /// Failed requests.
    pub errors: u64,
    /// The first few blocks with wrong contents.
    pub mismatches: Vec<Mismatch>,
    /// Number of blocks with wrong contents.
    pub mismatched: u64,
    /// Number of reconnections to the server.
    pub reconnections: u64,
    /// Latencies in nanoseconds.
    pub latency: Latencies,
    /// The window's length.
    pub elapsed: Duration,
}

impl Tally {
    /// Counts a block with wrong contents.
    pub fn mismatch(&mut self, mismatch: Mismatch) {
        self.mismatched += 1;
        if self.mismatches.len() < 8 {
            self.mismatches.push(mismatch);
        }
    }

    /// Requests per second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
    pub fn iops(&self) -> f64 {
        self.completed as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// A percentile of latency in microseconds.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "latencies stay far below 2^52 ns"
    )]
    pub fn percentile_us(&self, percent: f64) -> f64 {
        self.latency.0.value_at_percentile(percent) as f64 / 1000.0
    }

    /// Resets counts and latencies at the start of a window. Wrong blocks stay counted.
    pub fn reopen(&mut self) {
        self.completed = 0;
        self.latency.0.clear();
    }

    /// Adds a later window of the same queue.
    pub fn follow(&mut self, next: &Self) {
        let elapsed = self.elapsed + next.elapsed;
        *self = Self::sum(&[std::mem::take(self), next.clone()]);
        self.elapsed = elapsed;
    }

    /// The sum of several queues over the same window.
    #[must_use]
    pub fn sum(tallies: &[Self]) -> Self {
        let mut all = Self::default();
        for tally in tallies {
            all.completed += tally.completed;
            all.errors += tally.errors;
            all.mismatched += tally.mismatched;
            all.mismatches.extend(tally.mismatches.iter().cloned());
            all.reconnections += tally.reconnections;
            all.latency.merge(&tally.latency);
            all.elapsed = all.elapsed.max(tally.elapsed);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_adds_counts_over_one_window() {
        let one = Tally {
            completed: 100,
            elapsed: Duration::from_secs(2),
            ..Tally::default()
        };
        let two = Tally {
            completed: 300,
            elapsed: Duration::from_secs(2),
            ..Tally::default()
        };
        assert_eq!(Tally::sum(&[one, two]).iops(), 200.0);
    }

    #[test]
    fn consecutive_windows_add_up_to_one() {
        let mut all = Tally::default();
        for completed in [100, 300] {
            all.follow(&Tally {
                completed,
                errors: 1,
                elapsed: Duration::from_secs(2),
                ..Tally::default()
            });
        }
        assert_eq!((all.completed, all.errors, all.iops()), (400, 2, 100.0));
    }

    #[test]
    fn reopening_retains_wrong_blocks() {
        let mut tally = Tally {
            completed: 5,
            errors: 1,
            ..Tally::default()
        };
        tally.mismatch(Mismatch {
            offset: 0,
            expected: 1,
            found: "zeroes".into(),
        });
        tally.reopen();
        assert_eq!((tally.completed, tally.errors, tally.mismatched), (0, 1, 1));
    }
}
