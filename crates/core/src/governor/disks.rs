//! The load of this host's disks, from the schedulers' usage reports.
//!
//! The governor passes every report to [`Disks::saw`] and reads the sums once a tick ([`Disks::meter`]).
//!
//! # Always true
//! - A demand rises at once and halves in a tenth of a second, regardless of the frequency of reports.
//! - A disk without reports for two seconds is removed.
//!
//! # Units
//! Costs in reference I/Os, latencies in nanoseconds.

use super::GovernorEvent;
use super::division::{Demand, IDLE};
use super::number::{SECOND, left, nanos, real};
use crate::iocontrol::{DiskKey, Hold, Usage};
use crate::units::{Span, Time};
use alloc::vec::Vec;

/// The factor of its demand, and the I/Os on top, that a disk with a latency target may have in flight. Its I/Os may
/// arrive together. Origin: simulation (`row-18-isolation`; decisions/0010).
const BURST_MARGIN: f64 = 1.6;
/// The half-life of a disk's demand. Origin: chosen; `row-09-start-idle-resume` checks the result.
const HALF_LIFE: Span = Span::from_millis(100);
/// The half-life of a disk's average use: longer than a burst, and shorter than a disk should wait for its part.
/// Origin: simulation (`sioc-4`, `vmmark-tiles`; decisions/0014).
const USE_HALF_LIFE: Span = Span::from_millis(500);
/// A disk without reports for this long is removed. Origin: chosen; no measurement.
const FORGOTTEN: Span = Span::from_secs(2);
/// A disk with at least this demand counts as active. A rare small I/O should not wake every host. Origin: chosen; no
/// measurement.
const AWAKE: f64 = 0.25;
/// The minimum number of I/Os for a latency percentile; with fewer, the collection continues. Origin: chosen; no
/// measurement.
const IOS: u64 = 32;
/// The time after which fewer I/Os are enough. Origin: chosen; no measurement.
const COLLECT_MOST: Span = Span::from_millis(400);
/// Cost units of a reference I/O.
const COST: f64 = 256.0;
/// Buckets of latency, as schedulers count them: number `i` ends at 2^i us.
pub(super) const BUCKETS: usize = 32;

/// A disk of this host.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) key: DiskKey,
    pub(super) shares: u32,
    pub(super) reservation: u32,
    pub(super) limit: u64,
    pub(super) target: Span,
    pub(super) demand: f64,
    /// Its recent throughput, in reference I/Os a second.
    pub(super) rate: f64,
    /// The same in units.
    pub(super) units: f64,
    pub(super) unit_cost: f64,
    pub(super) awake: bool,
    pub(super) part: f64,
    /// Its recent average I/O in flight.
    pub(super) uses: f64,
    seen: Time,
    latencies: [f64; BUCKETS],
    second: Second,
    burst_most: u64,
    burst_told: u64,
    unmet: bool,
}

/// A disk's counts in the current second.
#[derive(Clone, Copy, Debug, Default)]
struct Second {
    span: u64,
    units: u64,
    waited: u64,
}

/// The sums of all disks between two ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meter {
    pub(super) in_flight: f64,
    pub(super) rate: f64,
    pub(super) ios: f64,
    pub(super) latency: f64,
    pub(super) p99: f64,
    /// Whether I/Os waited for priority or the window.
    pub(super) held: bool,
}

/// A change of load in a usage report.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoadChange {
    /// A disk became active or idle, was added or removed, or has another policy.
    pub(super) changed: bool,
    /// Mean latency of this report; 0 if it had too few I/Os.
    pub(super) latency: f64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Disks {
    /// Sorted by key.
    pub(super) all: Vec<Disk>,
    last: Option<Time>,
    /// Since the last tick.
    span: u64,
    cost: f64,
    in_flight: f64,
    held: u64,
    /// Since the last percentile.
    ios: u64,
    latency: f64,
    ios_span: u64,
    buckets: [f64; BUCKETS],
    meter: Meter,
}

impl Disks {
    /// Takes the counts of all threads' schedulers since the last report.
    pub(super) fn saw(
        &mut self,
        now: Time,
        usage: &[Usage],
        events: &mut Vec<GovernorEvent>,
    ) -> LoadChange {
        let passed = self.last.map_or(Span::ZERO, |last| now.since(last));
        self.last = Some(now);
        let mut change = LoadChange::default();
        let decay = left(passed, HALF_LIFE);
        for disk in &mut self.all {
            disk.demand *= decay;
        }
        let (mut ios, mut latency, mut span) = (0, 0.0, 0);
        for one in usage {
            span = span.max(one.span.as_nanos());
            ios += one.ios;
            latency += real(one.latency_ns);
            self.cost += real(one.ended_cost) / COST;
            self.in_flight += wide(one.in_flight_cost_ns);
            self.held += one.held_ns[Hold::Shares.index()] + one.held_ns[Hold::Window.index()];
            for (sum, &count) in self.buckets.iter_mut().zip(&one.latency_counts) {
                *sum += f64::from(count);
            }
            change.changed |= self.disk(now, one, events);
        }
        self.span += span;
        self.ios += ios;
        self.latency += latency;
        self.ios_span += span;
        if ios >= 8 {
            change.latency = latency / real(ios);
        }
        for disk in &mut self.all {
            if disk.awake && disk.demand < IDLE {
                disk.awake = false;
                disk.demand = 0.0;
                change.changed = true;
            }
        }
        let before = self.all.len();
        self.all.retain(|disk| now.since(disk.seen) <= FORGOTTEN);
        change.changed |= self.all.len() != before;
        change
    }

    /// Takes one disk's part of a report. Returns whether a change occurred that other hosts should know.
    fn disk(&mut self, now: Time, usage: &Usage, events: &mut Vec<GovernorEvent>) -> bool {
        let mut changed = false;
        let place = match self.all.binary_search_by_key(&usage.key, |disk| disk.key) {
            Ok(place) => place,
            Err(place) => {
                changed = true;
                self.all.insert(place, Disk::new(usage));
                place
            }
        };
        let disk = &mut self.all[place];
        changed |= (disk.shares, disk.reservation, disk.limit)
            != (usage.shares, usage.reservation, usage.limit);
        disk.shares = usage.shares;
        disk.reservation = usage.reservation;
        disk.limit = usage.limit;
        disk.target = usage.latency_target;
        disk.seen = now;
        if usage.span > Span::ZERO {
            let span = nanos(usage.span);
            let asked = (wide(usage.in_flight_cost_ns) + wide(usage.waiting_cost_ns)) / span;
            disk.demand = disk.demand.max(asked);
            let part = 1.0 - left(usage.span, Span::from_millis(200));
            disk.rate += part * (real(usage.cost) / COST * SECOND / span - disk.rate);
            disk.units += part * (real(usage.units) * SECOND / span - disk.units);
            let part = 1.0 - left(usage.span, USE_HALF_LIFE);
            disk.uses += part * (wide(usage.in_flight_cost_ns) / span - disk.uses);
        }
        if usage.units > 0 {
            let cost = real(usage.cost) / COST / real(usage.units);
            disk.unit_cost += 0.25 * (cost - disk.unit_cost);
        }
        if !disk.awake && disk.demand >= AWAKE {
            disk.awake = true;
            changed = true;
        }
        disk.note_events(usage, events);
        changed
    }

    /// The sums since the last call. Without a report in between: the previous result.
    pub(super) fn meter(&mut self) -> Meter {
        if self.span == 0 {
            return self.meter;
        }
        let span = real(self.span);
        self.meter.in_flight = self.in_flight / span;
        self.meter.rate = self.cost * SECOND / span;
        self.meter.held = real(self.held) > 0.1 * span;
        (self.span, self.cost, self.in_flight, self.held) = (0, 0.0, 0.0, 0);
        let ios_span = real(self.ios_span);
        self.meter.ios = real(self.ios) * SECOND / ios_span;
        if self.ios > 0 {
            self.meter.latency = self.latency / real(self.ios);
            self.meter.p99 = quantile(&self.buckets, 0.99);
        }
        if self.ios >= IOS || self.ios_span >= COLLECT_MOST.as_nanos() {
            (self.ios, self.latency, self.ios_span) = (0, 0.0, 0);
            for bucket in &mut self.buckets {
                *bucket *= 0.5;
            }
        }
        self.meter
    }

    /// The ratio by which the worst disk misses its latency target; 1: just met, 0: no disk has one.
    pub(super) fn pressure(&self) -> f64 {
        let aimed = self
            .all
            .iter()
            .filter(|disk| disk.target > Span::ZERO && disk.awake);
        aimed
            .map(|disk| quantile(&disk.latencies, 0.99) / nanos(disk.target))
            .fold(0.0, f64::max)
    }

    /// Shares of the active disks.
    pub(super) fn shares(&self) -> f64 {
        let awake = self.all.iter().filter(|disk| disk.awake);
        awake.map(|disk| f64::from(disk.shares)).sum()
    }
}

impl Disk {
    fn new(usage: &Usage) -> Disk {
        Disk {
            key: usage.key,
            shares: usage.shares,
            reservation: usage.reservation,
            limit: usage.limit,
            target: usage.latency_target,
            demand: 0.0,
            rate: 0.0,
            units: 0.0,
            unit_cost: 1.5,
            awake: false,
            part: 0.0,
            uses: 0.0,
            seen: Time::ZERO,
            latencies: [0.0; BUCKETS],
            second: Second::default(),
            burst_most: 0,
            burst_told: 100,
            unmet: false,
        }
    }

    /// Its demand, with room for bursts if its I/Os must not wait.
    pub(super) fn asks(&self) -> f64 {
        if self.target > Span::ZERO && self.awake {
            BURST_MARGIN * self.demand + BURST_MARGIN
        } else {
            self.demand
        }
    }

    pub(super) fn demand(&self, residence: f64) -> Demand {
        let (shares, reservation) = (self.shares, self.reservation);
        Demand::new(
            shares,
            reservation,
            self.limit,
            self.asks(),
            self.unit_cost,
            residence,
        )
    }

    /// Whether its reservation was not met in the last second.
    pub(super) fn unmet(&self) -> bool {
        self.unmet
    }

    /// Updates the state behind events for administrators.
    fn note_events(&mut self, usage: &Usage, events: &mut Vec<GovernorEvent>) {
        let decay = left(usage.span, Span::from_secs(1));
        for (sum, &count) in self.latencies.iter_mut().zip(&usage.latency_counts) {
            *sum = *sum * decay + f64::from(count);
        }
        self.second.span += usage.span.as_nanos();
        self.second.units += usage.units;
        self.second.waited +=
            usage.held_ns[Hold::Shares.index()] + usage.held_ns[Hold::Window.index()];
        if self.second.span >= 1_000_000_000 {
            let got = real(self.second.units) * SECOND / real(self.second.span);
            // It had queued I/O all the time, not due to its own limit, and yet got less than its reservation.
            let asked = self.second.waited >= self.second.span / 2;
            let unmet = asked && got < 0.95 * f64::from(self.reservation);
            if unmet && !self.unmet {
                events.push(GovernorEvent::ReservationUnmet { key: self.key });
            }
            self.unmet = unmet;
            self.second = Second::default();
        }
        self.burst_most = self.burst_most.max(usage.burst_left);
        // A small default burst is not reported.
        if self.limit > 0 && self.burst_most > self.limit {
            let percent = usage.burst_left * 100 / self.burst_most;
            let step = match percent {
                0 => 0,
                1..=20 => 20,
                _ => 100,
            };
            if step < self.burst_told {
                events.push(GovernorEvent::BurstLow {
                    key: self.key,
                    percent: step,
                });
            }
            // It is reported again only after a clear refill.
            if step < self.burst_told || percent >= 40 {
                self.burst_told = step;
            }
        }
    }
}

/// Cost integrated over time, as reference I/Os times nanoseconds.
#[expect(clippy::cast_precision_loss, reason = "a mean, not an identity")]
fn wide(cost_ns: u128) -> f64 {
    cost_ns as f64 / COST
}

/// The latency that `part` of the counted I/Os do not exceed, in nanoseconds, interpolated linearly within a bucket; 0
/// without I/Os.
fn quantile(buckets: &[f64; BUCKETS], part: f64) -> f64 {
    let rank = part * buckets.iter().sum::<f64>();
    let (mut below, mut start, mut end) = (0.0, 0.0, 1_000.0);
    for &count in buckets {
        if count > 0.0 && below + count >= rank {
            return start + (end - start) * (rank - below) / count;
        }
        below += count;
        start = end;
        end *= 2.0;
    }
    0.0
}
