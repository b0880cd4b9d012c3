//! Counts what each disk uses of a datastore, and what the I/O thread gets through: the governor's eyes.
//!
//! The scheduler calls these on every I/O, so each is a few additions. Nothing here decides anything.
//!
//! # Always true
//! - an integral over time is exact whenever it is read, though nothing is added up in between

use super::{Bin, Hold};
use crate::units::{Span, Time};
use alloc::vec::Vec;

/// How long a bin is: short against the governor's tick, long against an I/O.
const BIN: Span = Span::from_millis(100);

/// Bins that are kept while nobody asks for them: 6 s.
const BINS_MAX: usize = 64;

/// The integral over time of a level that goes up and down.
///
/// `level * now - (what each came in at) + (what each went at)`, all modulo 2^64; the true result is far smaller.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Area {
    level: u64,
    sum: u64,
}

impl Area {
    #[inline]
    pub(super) fn up(&mut self, now: Time, by: u64) {
        self.level += by;
        self.sum = self.sum.wrapping_sub(by.wrapping_mul(now.as_nanos()));
    }

    #[inline]
    pub(super) fn down(&mut self, now: Time, by: u64) {
        self.level = self.level.saturating_sub(by);
        self.sum = self.sum.wrapping_add(by.wrapping_mul(now.as_nanos()));
    }

    pub(super) fn level(&self) -> u64 {
        self.level
    }

    /// The integral since the last call.
    pub(super) fn take(&mut self, now: Time) -> u64 {
        let open = self.level.wrapping_mul(now.as_nanos());
        let area = self.sum.wrapping_add(open);
        self.sum = open.wrapping_neg();
        area
    }
}

/// One disk's counts since they were last read.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    pub(super) since: Time,
    pub(super) ios: u64,
    pub(super) units: u64,
    pub(super) cost: u64,
    pub(super) bytes: u64,
    pub(super) latency_ns: u64,
    pub(super) latency_max: Span,
    pub(super) latency_counts: [u32; 32],
    pub(super) in_flight: Area,
    pub(super) waiting: Area,
    pub(super) held_ns: [u64; 5],
    held_since: Time,
}

impl Account {
    pub(super) fn new(now: Time) -> Account {
        Account {
            since: now,
            ..Account::default()
        }
    }

    #[inline]
    pub(super) fn started(&mut self, now: Time, cost: u64, units: u64, bytes: u64) {
        self.units += units;
        self.cost += cost;
        self.bytes += bytes;
        self.in_flight.up(now, cost);
    }

    #[inline]
    pub(super) fn latency(&mut self, latency: Span) {
        self.latency_ns = self.latency_ns.saturating_add(latency.as_nanos());
        self.latency_max = self.latency_max.max(latency);
        let us = latency.as_micros();
        let bucket = (u64::BITS - us.leading_zeros()).min(31);
        self.latency_counts[bucket as usize] += 1;
    }

    /// `waiting` I/Os have waited for this reason since the last call.
    pub(super) fn held(&mut self, now: Time, waiting: usize, hold: Hold) {
        let span = now.since(self.held_since).as_nanos();
        self.held_since = now;
        self.held_ns[hold.index()] += span.saturating_mul(waiting as u64);
    }

    /// Starts a new count. What is in flight or waits goes on.
    pub(super) fn restart(&mut self, now: Time) {
        *self = Account {
            since: now,
            in_flight: self.in_flight,
            waiting: self.waiting,
            held_since: self.held_since,
            ..Account::default()
        };
    }
}

/// What one I/O thread gets through, in bins.
#[derive(Debug, Default)]
pub(super) struct Bins {
    open: Bin,
    closed: Vec<Bin>,
    ios: u64,
    busy_since: Time,
    area: Area,
}

impl Bins {
    #[inline]
    pub(super) fn started(&mut self, now: Time, cost: u64) {
        if self.ios == 0 {
            self.busy_since = now;
        }
        self.ios += 1;
        self.area.up(now, cost);
    }

    #[inline]
    pub(super) fn ended(&mut self, now: Time, cost: u64) {
        self.ios = self.ios.saturating_sub(1);
        self.area.down(now, cost);
        if self.ios == 0 {
            self.open.busy = self.open.busy + now.since(self.busy_since);
        }
    }

    /// Counts a read or write that ended.
    #[inline]
    pub(super) fn count(&mut self, now: Time, reads: u64, writes: u64, len: u64) {
        if now >= self.open.at + BIN {
            self.close(now);
        }
        self.open.reads += reads;
        self.open.writes += writes;
        self.open.bytes_read += reads * len;
        self.open.bytes_written += writes * len;
    }

    #[cold]
    fn close(&mut self, now: Time) {
        if self.ios > 0 {
            self.open.busy = self.open.busy + now.since(self.busy_since);
            self.busy_since = now;
        }
        self.open.span = now.since(self.open.at);
        self.open.in_flight_cost_ns = self.area.take(now);
        if self.closed.len() == BINS_MAX {
            self.closed.remove(0);
        }
        self.closed.push(self.open);
        self.open = Bin {
            at: now,
            ..Bin::default()
        };
    }

    /// Hands out the bins that are closed.
    pub(super) fn take(&mut self, out: &mut Vec<Bin>) {
        out.append(&mut self.closed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integral_is_exact_at_any_moment() {
        let at = Time::from_nanos;
        let mut area = Area::default();
        area.up(at(10), 4);
        area.up(at(20), 2);
        assert_eq!(area.take(at(30)), 4 * 20 + 2 * 10);
        area.down(at(40), 4);
        assert_eq!(area.take(at(50)), 6 * 10 + 2 * 10);
        assert_eq!(area.level(), 2);
    }

    #[test]
    fn latencies_fall_into_buckets_that_double() {
        let mut account = Account::default();
        for us in [0, 1, 2, 3, 4, u64::MAX / 1_000] {
            account.latency(Span::from_micros(us));
        }
        assert_eq!(account.latency_counts[..4], [1, 1, 2, 1]);
        assert_eq!(account.latency_counts[31], 1);
    }

    #[test]
    fn a_bin_tells_how_long_the_thread_was_busy() {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let mut bins = Bins::default();
        bins.started(at(10), 3);
        bins.ended(at(40), 3);
        bins.count(at(40), 1, 0, 512);
        bins.started(at(90), 1);
        bins.count(at(120), 0, 1, 4_096);
        let mut out = Vec::new();
        bins.take(&mut out);
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].busy, Span::from_millis(60));
        assert_eq!(out[0].in_flight_cost_ns, 90_000_000 + 30_000_000);
        assert_eq!((out[0].reads, out[0].bytes_read), (1, 512));
    }
}
