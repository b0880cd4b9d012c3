//! Counts what each disk uses of a datastore, and what the I/O thread gets through: the governor's eyes.
//!
//! The scheduler calls these on every I/O, so each is a few additions. Nothing here decides anything.
//!
//! While a datastore is not congested and a disk does more than some 20,000 I/Os a second, a latency is looked at for a
//! random one in sixteen, which then stands for those that follow it; in thirty-two beyond 40,000, in sixty-four beyond
//! 80,000: sixty and more in each of the governor's looks, by which a mean is known within an eighth of the latencies'
//! spread. A disk that does less, or has a latency target, has each of them looked at, and so has every disk of a
//! congested datastore.
//!
//! # Always true
//! - an integral over time is exact whenever it is read, though nothing is added up in between
//! - latencies are counted for as many I/Os as ended, however few were looked at

use super::{Bin, Hold, Usage};
use crate::units::{Span, Time};
use alloc::vec::Vec;

/// How long a bin is: short against the governor's tick, long against an I/O.
const BIN: Span = Span::from_millis(100);

/// Bins that are kept while nobody asks for them: 6 s.
const BINS_MAX: usize = 64;

/// A disk that does no more I/Os a second has every latency looked at: what that costs is not seen at such a rate.
const EVERY_BELOW: u64 = 20_000;

/// One latency in 2^4 is looked at beyond that rate, in 2^5 beyond twice that, and so on to 2^6.
const SPARSEST: u32 = 6;

/// With fewer I/Os in a count, too, every one is looked at: a mean of sixteenths of them would be a guess.
const EVERY_OF: u64 = 1_000;

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

/// One disk's counts since they were last read. What every I/O touches comes first, and what one step touches does not
/// stand side by side: where it does, the compiler gathers pairs of them at twice the instructions.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Account {
    /// Whether neither a limit nor a group can hold the disk. One that is not here is not free.
    pub(super) free: bool,
    /// Where its last request ended.
    pub(super) end: u64,
    /// Cost that has ended: with what started, a level of which `area` is the integral, as [`Area`] does it.
    ended: u64,
    /// Cost that has started, what was in flight at first among it.
    started: u64,
    /// Reads and writes until the next whose latency is looked at.
    left: u64,
    units: u64,
    /// The latency that was looked at last, if any was.
    latency: Option<Span>,
    bytes: u64,
    /// What `left` was then.
    gap: u64,
    area: u64,
    /// Reads and writes that ended, up to that look.
    ios: u64,
    /// What was in flight at first.
    carried: u64,
    /// One latency in 2^`sparse` is looked at; 0: every one.
    sparse: u32,
    random: u32,
    since: Time,
    latency_ns: u64,
    latency_max: Span,
    latency_counts: [u32; 32],
}

impl Account {
    /// That of a disk that comes now.
    pub(super) fn new(now: Time, free: bool) -> Account {
        Account {
            free,
            end: u64::MAX,
            ended: 0,
            started: 0,
            left: 1,
            units: 0,
            latency: None,
            bytes: 0,
            gap: 1,
            area: 0,
            ios: 0,
            carried: 0,
            sparse: 0,
            random: 1,
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

    fn in_flight(&self) -> u64 {
        self.started.saturating_sub(self.ended)
    }

    /// A read or write has ended; whether its latency is to be looked at.
    #[inline]
    pub(super) fn counts(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }

    /// The latency of the read or write that was just counted. It stands for those that follow it, until the next look.
    pub(super) fn look(&mut self, latency: Span) {
        // All that were counted since the last look, but this one.
        self.stand(self.gap - 1);
        self.latency = Some(latency);
        self.latency_max = self.latency_max.max(latency);
        self.gap = self.next_gap();
        self.left = self.gap;
    }

    /// The last latency has stood for its own I/O and so many that followed.
    fn stand(&mut self, followed: u64) {
        let Some(latency) = self.latency else { return };
        let times = 1 + followed;
        self.ios += times;
        let sum = latency.as_nanos().saturating_mul(times);
        self.latency_ns = self.latency_ns.saturating_add(sum);
        let us = latency.as_micros();
        let bucket = (u64::BITS - us.leading_zeros()).min(31);
        let count = &mut self.latency_counts[bucket as usize];
        *count = count.saturating_add(u32::try_from(times).unwrap_or(u32::MAX));
    }

    /// From one look to the next: 2^`sparse` on average, and no beat that a load could fall in with.
    fn next_gap(&mut self) -> u64 {
        if self.sparse == 0 {
            return 1;
        }
        self.random = self
            .random
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        1 + u64::from(self.random >> (31 - self.sparse))
    }

    /// Every latency counts from now on, until the next count at least.
    pub(super) fn look_at_all(&mut self) {
        self.sparse = 0;
        self.gap -= self.left - 1;
        self.left = 1;
    }

    /// Whether anything started since the counts were read, or is in flight.
    pub(super) fn is_active(&self) -> bool {
        self.started > self.carried || self.in_flight() > 0
    }

    /// How sparse looks may be at the rate of the I/Os that ended within `span`.
    fn sparse_at(&self, span: Span) -> u32 {
        let rate = u128::from(self.ios) * 1_000_000_000;
        let rate = rate.checked_div(span.as_nanos().into()).unwrap_or(0);
        let often = u64::try_from(rate).unwrap_or(u64::MAX) / EVERY_BELOW;
        if self.ios < EVERY_OF {
            return 0;
        }
        often
            .checked_ilog2()
            .map_or(0, |doublings| (4 + doublings).min(SPARSEST))
    }

    /// Tells the counts and starts new ones; what is in flight goes on. `all`: every latency matters from now on.
    pub(super) fn tell(&mut self, now: Time, all: bool, usage: &mut Usage) {
        self.stand(self.gap - self.left);
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
        let sparse = if all { 0 } else { self.sparse_at(usage.span) };
        *self = Account {
            free: self.free,
            end: self.end,
            started: carried,
            carried,
            area: open.wrapping_neg(),
            sparse,
            random: self.random,
            ..Account::new(now, self.free)
        };
    }
}

/// How much of one disk waits, and for what.
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

    /// So many I/Os have waited for this reason since the last call.
    #[inline]
    pub(super) fn held(&mut self, now: Time, waiting: usize, hold: Hold) {
        let span = now.since(self.since).as_nanos();
        self.since = now;
        self.held_ns[hold.index()] += span.saturating_mul(waiting as u64);
    }

    /// An I/O that was not held would have been, for so long.
    pub(super) fn would_be_held(&mut self, hold: Hold, ns: u64) {
        self.held_ns[hold.index()] += ns;
    }

    /// Tells the counts and starts new ones; what waits goes on.
    pub(super) fn tell(&mut self, now: Time, usage: &mut Usage) {
        usage.waiting_cost_ns = u128::from(self.cost.take(now));
        usage.held_ns = core::mem::take(&mut self.held_ns);
    }
}

/// What ends on one I/O thread, in bins.
#[derive(Debug, Default)]
pub(super) struct Bins {
    open: Bin,
    closed: Vec<Bin>,
}

impl Bins {
    /// Counts reads and writes that ended.
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

    /// Begins a new bin; what the last one counted is forgotten.
    pub(super) fn restart(&mut self, now: Time) {
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
    use crate::iocontrol::DiskKey;
    use crate::request::DiskId;

    fn told(account: &mut Account, ms: u64) -> Usage {
        let mut usage = Usage::none(DiskId(0), DiskKey(0));
        account.tell(Time::ZERO + Span::from_millis(ms), false, &mut usage);
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
    fn what_is_in_flight_is_counted_on_though_the_counts_begin_anew() {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let mut account = Account::new(at(0), true);
        account.started(at(10), 3, 1, 512);
        account.started(at(10), 1, 1, 512);
        let usage = told(&mut account, 20);
        assert_eq!((usage.cost, usage.in_flight_cost_ns), (4, 40_000_000));
        assert!(account.is_active());
        account.ended(at(25), 3);
        let usage = told(&mut account, 30);
        assert_eq!((usage.cost, usage.in_flight_cost_ns), (0, 25_000_000));
        account.ended(at(30), 1);
        assert!(!account.is_active());
        assert_eq!(told(&mut account, 40).in_flight_cost_ns, 0);
    }

    #[test]
    fn latencies_fall_into_buckets_that_double() {
        let mut account = Account::new(Time::ZERO, true);
        for us in [0, 1, 2, 3, 4, u64::MAX / 1_000] {
            assert!(
                account.counts(),
                "a disk that does little has all looked at"
            );
            account.look(Span::from_micros(us));
        }
        let usage = told(&mut account, 1);
        assert_eq!(usage.latency_counts[..4], [1, 1, 2, 1]);
        assert_eq!(usage.latency_counts[31], 1);
    }

    #[test]
    fn of_a_busy_disk_few_are_looked_at_and_stand_for_the_rest() {
        // So many in 50 ms, and how many of them are looked at.
        for (ios, few) in [(1_500, 60..130), (2_500, 50..110), (5_000, 50..110)] {
            looked_at(ios, few);
        }
    }

    fn looked_at(ios: u64, few: core::ops::Range<u64>) {
        let mut account = Account::new(Time::ZERO, true);
        let (mut looks, mut sum, mut usage) = (0, 0, told(&mut Account::new(Time::ZERO, true), 0));
        for count in 1..=10 {
            (looks, sum) = (0, 0);
            // A latency that has a beat of its own.
            for io in 0..ios {
                let latency = 80_000 + io % 16 * 10_000;
                sum += latency;
                if account.counts() {
                    looks += 1;
                    account.look(Span::from_nanos(latency));
                }
            }
            usage = told(&mut account, 50 * count);
            assert_eq!(usage.ios, ios);
            assert_eq!(u64::from(usage.latency_counts.iter().sum::<u32>()), ios);
            let off = usage.latency_ns.abs_diff(sum);
            assert!(off * 8 <= sum, "{} for {sum}", usage.latency_ns);
        }
        assert!(few.contains(&looks), "{looks} of {ios}");
        assert!(usage.latency_ns.abs_diff(sum) > 0, "it was not all of them");
        // Once it does little, or once told so, all are looked at.
        assert!(account.counts());
        account.look(Span::ZERO);
        account.look_at_all();
        assert!(account.counts());
        told(&mut account, 1_000);
        for _ in 0..500 {
            assert!(account.counts());
            account.look(Span::ZERO);
        }
    }

    #[test]
    fn a_bin_tells_what_ended_in_it() {
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
