//! Usage accounting: what each disk uses of a datastore, and what the I/O thread completes.
//!
//! The scheduler calls these for every counted I/O, so each is a few additions. This module makes no decisions.
//!
//! On an uncongested datastore the shard samples about one I/O in 32 of a busy disk ([`super::sampler`]). A sample is
//! counted with the number of I/Os that it represents.
//!
//! # Always true
//! - an integral over time is exact whenever it is read, without updates in between
//! - every counted I/O that completed is included in the latencies, a sample as often as it represents I/Os

use super::{Bin, Hold, Usage};
use crate::units::{Span, Time};
use alloc::vec::Vec;

/// The length of a bin: short against a governor's tick, long against an I/O. Origin: chosen; no measurement.
const BIN: Span = Span::from_millis(100);

/// Bins that are stored until they are collected: 6 s. Origin: chosen; no measurement.
const BINS_MAX: usize = 64;

/// Below this rate a disk has every I/O counted; at such a rate the cost does not show. Origin: chosen
/// (decisions/0013).
const EVERY_BELOW: u64 = 20_000;

/// The rate of a disk is measured over this many I/Os, so that a sample represents a small part. Origin: chosen
/// (decisions/0013).
const EVERY_OF: u64 = 1_000;

/// The integral over time of a level that rises and falls.
///
/// `level * now - (sum of start times) + (sum of end times)`, all modulo 2^64; the true result is far smaller.
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
        self.level = self.level.wrapping_sub(by);
        self.sum = self.sum.wrapping_add(by.wrapping_mul(now.as_nanos()));
    }

    /// The integral since the last call.
    pub(super) fn take(&mut self, now: Time) -> u64 {
        let open = self.level.wrapping_mul(now.as_nanos());
        let area = self.sum.wrapping_add(open);
        self.sum = open.wrapping_neg();
        area
    }
}

/// One disk's counts since the last report. The fields that every I/O touches come first. Fields that one step updates
/// are not adjacent: otherwise the compiler merges them into vectors, at twice the instructions.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Account {
    /// Whether neither a limit nor a group can delay the disk. A detached disk is not free.
    pub(super) free: bool,
    /// The end offset of its last request.
    pub(super) end: u64,
    /// Cost of completed I/Os. With `started` it gives a level whose integral is `area`, computed as by [`Area`].
    ended: u64,
    /// Cost of started I/Os, including the cost in flight at the start of the interval.
    started: u64,
    units: u64,
    bytes: u64,
    area: u64,
    /// Completed reads and writes.
    ios: u64,
    /// The cost in flight at the start of the interval.
    carried: u64,
    /// Whether its rate is high enough for sampling.
    busy: bool,
    /// When the rate was last measured, and how many completions remain until the next measurement.
    mark: Time,
    marks_at: u64,
    since: Time,
    latency_ns: u64,
    latency_max: Span,
    latency_counts: [u32; 32],
}

impl Account {
    /// The account of a new disk.
    pub(super) fn new(now: Time, free: bool) -> Account {
        Account {
            free,
            end: u64::MAX,
            ended: 0,
            started: 0,
            units: 0,
            bytes: 0,
            area: 0,
            ios: 0,
            carried: 0,
            busy: false,
            mark: now,
            marks_at: EVERY_OF,
            since: now,
            latency_ns: 0,
            latency_max: Span::ZERO,
            latency_counts: [0; 32],
        }
    }

    #[inline]
    pub(super) fn started(&mut self, now: Time, cost: u64, units: u64, bytes: u64) {
        self.started += cost;
        self.units += units;
        self.bytes += bytes;
        self.area = self.area.wrapping_sub(cost.wrapping_mul(now.as_nanos()));
    }

    #[inline]
    pub(super) fn ended(&mut self, now: Time, cost: u64) {
        self.ended += cost;
        self.area = self.area.wrapping_add(cost.wrapping_mul(now.as_nanos()));
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.started.saturating_sub(self.ended)
    }

    /// The cost started since the last report.
    pub(super) fn cost_started(&self) -> u64 {
        self.started.saturating_sub(self.carried)
    }

    /// Counts completed reads or writes with this latency. Returns whether [`Account::is_busy`] was computed again.
    #[inline]
    pub(super) fn record(&mut self, now: Time, latency: Span, times: u64) -> bool {
        self.ios += times;
        self.latency_max = self.latency_max.max(latency);
        let sum = latency.as_nanos().saturating_mul(times);
        self.latency_ns = self.latency_ns.saturating_add(sum);
        let us = latency.as_micros();
        let bucket = (u64::BITS - us.leading_zeros()).min(31);
        let count = &mut self.latency_counts[bucket as usize];
        *count = count.saturating_add(u32::try_from(times).unwrap_or(u32::MAX));
        let marks = self.ios >= self.marks_at;
        if marks {
            self.pass_mark(now);
        }
        marks
    }

    #[cold]
    fn pass_mark(&mut self, now: Time) {
        let ended = self.ios - self.marks_at + EVERY_OF;
        self.busy = is_much(ended, now.since(self.mark));
        (self.mark, self.marks_at) = (now, self.ios + EVERY_OF);
    }

    /// Whether its rate is high enough for sampling.
    pub(super) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Whether any I/O started since the last report, or is in flight.
    pub(super) fn is_active(&self) -> bool {
        self.started > self.carried || self.in_flight() > 0
    }

    /// Reports the counts and resets them; I/Os in flight remain.
    pub(super) fn report(&mut self, now: Time, usage: &mut Usage) {
        usage.span = now.since(self.since);
        usage.ios = self.ios;
        usage.units = self.units;
        usage.cost = self.started - self.carried;
        usage.ended_cost = self.ended;
        usage.bytes = self.bytes;
        usage.latency_ns = self.latency_ns;
        usage.latency_max = self.latency_max;
        usage.latency_counts = self.latency_counts;
        let carried = self.in_flight();
        let open = carried.wrapping_mul(now.as_nanos());
        usage.in_flight_cost_ns = u128::from(self.area.wrapping_add(open));
        *self = Account {
            free: self.free,
            end: self.end,
            started: carried,
            carried,
            area: open.wrapping_neg(),
            busy: self.busy && is_much(self.ios, usage.span),
            ..Account::new(now, self.free)
        };
    }
}

/// Whether this rate is too high to count I/Os one by one.
fn is_much(ios: u64, span: Span) -> bool {
    let rate = u128::from(ios) * 1_000_000_000 / u128::from(span.as_nanos().max(1));
    ios >= EVERY_OF && rate > u128::from(EVERY_BELOW)
}

/// How much of one disk is queued, and why.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits {
    cost: Area,
    held_ns: [u64; 5],
    since: Time,
}

impl Waits {
    #[inline]
    pub(super) fn came(&mut self, now: Time, cost: u64) {
        self.cost.up(now, cost);
    }

    #[inline]
    pub(super) fn went(&mut self, now: Time, cost: u64) {
        self.cost.down(now, cost);
    }

    /// Adds I/Os that have waited for this reason since the last call.
    #[inline]
    pub(super) fn held(&mut self, now: Time, waiting: usize, hold: Hold) {
        let span = now.since(self.since).as_nanos();
        self.since = now;
        self.held_ns[hold.index()] += span.saturating_mul(waiting as u64);
    }

    /// Adds the time by which a limit would have delayed an I/O that was not delayed.
    pub(super) fn count_would_be_wait(&mut self, hold: Hold, ns: u64) {
        self.held_ns[hold.index()] += ns;
    }

    /// Reports the counts and resets them; queued I/Os remain.
    pub(super) fn report(&mut self, now: Time, usage: &mut Usage) {
        usage.waiting_cost_ns = u128::from(self.cost.take(now));
        usage.held_ns = core::mem::take(&mut self.held_ns);
    }
}

/// Completions of one I/O thread, in bins.
#[derive(Debug, Default)]
pub(super) struct Bins {
    open: Bin,
    closed: Vec<Bin>,
}

impl Bins {
    /// Counts completed reads and writes.
    pub(super) fn count(&mut self, now: Time, reads: u64, writes: u64, len: u64) {
        if now >= self.open.at + BIN {
            self.close(now);
        }
        self.open.reads += reads;
        self.open.writes += writes;
        self.open.bytes_read += reads * len;
        self.open.bytes_written += writes * len;
    }

    fn close(&mut self, now: Time) {
        self.open.span = now.since(self.open.at);
        if self.closed.len() == BINS_MAX {
            self.closed.remove(0);
        }
        self.closed.push(self.open);
        self.restart(now);
    }

    /// Starts a new bin and discards the last one.
    pub(super) fn restart(&mut self, now: Time) {
        self.open = Bin {
            at: now,
            ..Bin::default()
        };
    }

    /// Returns the closed bins.
    pub(super) fn take(&mut self, out: &mut Vec<Bin>) {
        out.append(&mut self.closed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iocontrol::DiskKey;
    use crate::request::DiskId;

    fn report(account: &mut Account, ms: u64) -> Usage {
        let mut usage = Usage::none(DiskId(0), DiskKey(0));
        account.report(Time::ZERO + Span::from_millis(ms), &mut usage);
        usage
    }

    #[test]
    fn an_integral_is_exact_at_any_moment() {
        let at = Time::from_nanos;
        let mut area = Area::default();
        area.up(at(10), 4);
        area.up(at(20), 2);
        assert_eq!(area.take(at(30)), 4 * 20 + 2 * 10);
        area.down(at(40), 4);
        assert_eq!(area.take(at(50)), 6 * 10 + 2 * 10);
    }

    #[test]
    fn io_in_flight_remains_counted_after_a_reset() {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let mut account = Account::new(at(0), true);
        account.started(at(10), 3, 1, 512);
        account.started(at(10), 1, 1, 512);
        let usage = report(&mut account, 20);
        assert_eq!((usage.cost, usage.in_flight_cost_ns), (4, 40_000_000));
        assert!(account.is_active());
        account.ended(at(25), 3);
        let usage = report(&mut account, 30);
        assert_eq!((usage.cost, usage.in_flight_cost_ns), (0, 25_000_000));
        account.ended(at(30), 1);
        assert!(!account.is_active());
        assert_eq!(report(&mut account, 40).in_flight_cost_ns, 0);
    }

    #[test]
    fn latencies_fall_into_buckets_that_double() {
        let mut account = Account::new(Time::ZERO, true);
        for us in [0, 1, 2, 3, 4, u64::MAX / 1_000] {
            account.record(Time::ZERO, Span::from_micros(us), 1);
        }
        let usage = report(&mut account, 1);
        assert_eq!(usage.latency_counts[..4], [1, 1, 2, 1]);
        assert_eq!(usage.latency_counts[31], 1);
    }

    #[test]
    fn a_sample_counts_for_the_ios_it_represents() {
        let mut account = Account::new(Time::ZERO, true);
        account.record(Time::ZERO, Span::from_micros(5), 16);
        account.record(Time::ZERO, Span::from_micros(1), 1);
        let usage = report(&mut account, 1);
        assert_eq!((usage.ios, usage.latency_ns), (17, 81_000));
        assert_eq!(usage.latency_max, Span::from_micros(5));
        assert_eq!(usage.latency_counts[..4], [0, 1, 0, 16]);
    }

    #[test]
    fn a_disk_is_busy_while_it_does_much() {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let latency = Span::from_micros(1);
        let mut account = Account::new(at(0), true);
        assert!(!account.record(at(40), latency, 999) && !account.is_busy());
        assert!(account.record(at(49), latency, 1) && account.is_busy());
        assert!(!account.record(at(60), latency, 999) && account.is_busy());
        assert!(account.record(at(99), latency, 1) && !account.is_busy());
        account.record(at(110), latency, 1_000);
        report(&mut account, 111);
        assert!(account.is_busy());
        account.record(at(120), latency, 500);
        assert!(account.is_busy());
        report(&mut account, 150);
        assert!(!account.is_busy(), "too few I/Os");
        account.record(at(160), latency, 1_000);
        assert!(account.is_busy());
        report(&mut account, 1_000);
        assert!(!account.is_busy(), "too long an interval");
    }

    #[test]
    fn a_bin_counts_its_completions() {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let mut bins = Bins::default();
        bins.restart(at(20));
        bins.count(at(40), 1, 0, 512);
        bins.count(at(140), 0, 1, 4_096);
        let mut out = Vec::new();
        bins.take(&mut out);
        assert_eq!(out.len(), 1);
        assert_eq!((out[0].at, out[0].span), (at(20), Span::from_millis(120)));
        assert_eq!((out[0].reads, out[0].bytes_read), (1, 512));
        assert_eq!(out[0].writes, 0);
    }
}
