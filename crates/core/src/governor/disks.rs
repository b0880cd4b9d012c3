//! The load of this host's disks, from the schedulers' usage reports.
//!
//! The governor hands in every report ([`Disks::saw`]) and takes sums once a tick ([`Disks::meter`]).
//!
//! # Always true
//! - A demand rises at once and halves in a tenth of a second of time, however often reports come.
//! - A disk that no report has named for two seconds is forgotten.
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
/// A disk without reports for so long is forgotten. Origin: chosen; no measurement.
const FORGOTTEN: Span = Span::from_secs(2);
/// A disk with at least this demand counts as active. A rare small I/O should not wake every host. Origin: chosen; no
/// measurement.
const AWAKE: f64 = 0.25;
/// The I/Os that a latency percentile needs at least; with fewer, more time is collected. Origin: chosen; no
/// measurement.
const IOS: u64 = 32;
/// The time after which fewer I/Os are enough. Origin: chosen; no measurement.
const COLLECT_MOST: Span = Span::from_millis(400);
/// Cost units of a reference I/O.
const COST: f64 = 256.0;
/// Buckets of latency, as schedulers count them: number `i` ends at 2^i us.
pub(super) const BUCKETS: usize = 32;

/// One of our disks.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) key: DiskKey,
    pub(super) shares: u32,
    pub(super) reservation: u32,
    pub(super) limit: u64,
    pub(super) target: Span,
    pub(super) demand: f64,
    /// What it got through, reference I/Os a second, lately.
    pub(super) rate: f64,
    /// The same in units.
    pub(super) units: f64,
    pub(super) unit_cost: f64,
    pub(super) awake: bool,
    pub(super) part: f64,
    /// What it had in flight on average, lately.
    pub(super) uses: f64,
    seen: Time,
    latencies: [f64; BUCKETS],
    second: Second,
    burst_most: u64,
    burst_told: u64,
    unmet: bool,
}

/// What a disk did in the second under way.
#[derive(Clone, Copy, Debug, Default)]
struct Second {
    span: u64,
    units: u64,
    waited: u64,
}

/// What all of them did between two ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meter {
    pub(super) in_flight: f64,
    pub(super) rate: f64,
    pub(super) ios: f64,
    pub(super) latency: f64,
    pub(super) p99: f64,
    /// I/Os waited for their turn or the window.
    pub(super) held: bool,
}

/// A change of load that a usage report shows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoadChange {
    /// A disk woke, fell idle, came, went, or has another policy.
    pub(super) changed: bool,
    /// Mean latency of this report; 0 if it had too few I/Os to tell.
    pub(super) latency: f64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Disks {
    /// By key.
    pub(super) all: Vec<Disk>,
    last: Option<Time>,
    /// Since the last tick.
    span: u64,
    cost: f64,
    in_flight: f64,
    held: u64,
    /// Since there were enough of them.
    ios: u64,
    latency: f64,
    ios_span: u64,
    buckets: [f64; BUCKETS],
    meter: Meter,
}

impl Disks {
    /// What the schedulers of all threads counted since the last report.
    pub(super) fn saw(
        &mut self,
        now: Time,
        usage: &[Usage],
        events: &mut Vec<GovernorEvent>,
    ) -> LoadChange {
        let passed = self.last.map_or(Span::ZERO, |last| now.since(last));
        self.last = Some(now);
        let mut change = LoadChange::default();
        let kept = left(passed, HALF_LIFE);
        for disk in &mut self.all {
            disk.demand *= kept;
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

    /// One disk's part of a report; whether something changed that others should know.
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
        disk.told(usage, events);
        changed
    }

    /// What all disks did since this was last asked. Without a report in between: what was said then.
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

    /// By how much the worst disk misses its latency target; 1: just met, 0: none has one.
    pub(super) fn pressure(&self) -> f64 {
        let aimed = self
            .all
            .iter()
            .filter(|disk| disk.target > Span::ZERO && disk.awake);
        aimed
            .map(|disk| quantile(&disk.latencies, 0.99) / nanos(disk.target))
            .fold(0.0, f64::max)
    }

    /// Shares of the disks that ask for something.
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

    /// What it asks for, with room for its I/Os to come in a crowd where they are not to wait for their turn.
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

    /// Keeps count of what administrators demand to hear of.
    fn told(&mut self, usage: &Usage, events: &mut Vec<GovernorEvent>) {
        let kept = left(usage.span, Span::from_secs(1));
        for (sum, &count) in self.latencies.iter_mut().zip(&usage.latency_counts) {
            *sum = *sum * kept + f64::from(count);
        }
        self.second.span += usage.span.as_nanos();
        self.second.units += usage.units;
        self.second.waited +=
            usage.held_ns[Hold::Shares.index()] + usage.held_ns[Hold::Window.index()];
        if self.second.span >= 1_000_000_000 {
            let got = real(self.second.units) * SECOND / real(self.second.span);
            // Something of it waited all the time, by no limit of its own, and yet it got less than it was promised.
            let asked = self.second.waited >= self.second.span / 2;
            let unmet = asked && got < 0.95 * f64::from(self.reservation);
            if unmet && !self.unmet {
                events.push(GovernorEvent::ReservationUnmet { key: self.key });
            }
            self.unmet = unmet;
            self.second = Second::default();
        }
        self.burst_most = self.burst_most.max(usage.burst_left);
        // A few units of grace are no burst that anybody counts on.
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
            // Told again only after it has clearly refilled.
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

/// The latency that `part` of the counted do not exceed, nanoseconds: straight within a bucket; 0 of nothing.
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
