//! The invariants of a run, checked from outside the core.
//!
//! The world reports starts, completions and waiting I/Os. A breach is recorded with its time and a description.
//!
//! # Always true, or it is a breach
//! - Over any interval, a limited disk starts at most `limit * interval + burst` units and one request. The same holds
//!   for bytes, and for the peak over any interval and 10 ms. The same holds for a group's disks on a host together.
//! - While control is engaged, nothing starts on a host whose window is full, unless nothing is in flight.
//! - A deadline moves once it has been reached.
//! - Once all faults are repaired, every waiting I/O is started and every started I/O is completed.

use crate::numbers::float;
use crate::scenario::{Ceiling, Group, Settings};
use std::collections::BTreeMap;
use tidegate_core::iocontrol::Cost;
use tidegate_core::units::{Span, Time};

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// When it was detected.
    pub at: Time,
    /// What happened, and what should have happened.
    pub what: String,
}

/// The most breaches that are recorded.
const MOST: usize = 20;
/// The most wake-ups of one thread at the same time.
const MOST_WAKEUPS: u32 = 10_000;
/// The idle credit of a disk that becomes active again, in reference I/Os.
const CREDIT: u64 = 16;
/// The most that I/O threads may diverge, in reference I/Os of a disk with 1,000 shares.
const DIVERGENCE: u64 = 8;
/// The time after engaging until a host's window has reached its target.
const SETTLED: Span = Span::from_secs(1);
/// Nanoseconds per second.
const SECOND: u128 = 1_000_000_000;

/// The state of all checks.
pub(crate) struct Invariants {
    breaches: Vec<Breach>,
    limits: Vec<Limits>,
    /// Indexed by host and group.
    groups: BTreeMap<(usize, usize), Limits>,
    lags: Vec<Lags>,
    woken: (Time, usize, u32),
}

/// A disk's limits, and how far they are used.
#[derive(Clone, Default)]
struct Limits {
    units: [Option<Bucket>; 2],
    bytes: [Option<Bucket>; 2],
}

/// A leaky bucket: it drains at a rate, and each start adds to it.
#[derive(Clone, Copy)]
struct Bucket {
    rate: u128,
    /// In units times nanoseconds per second, like the level.
    holds: u128,
    level: u128,
    at: Time,
}

/// The fairness check of a host's disks, in pairs.
struct Lags {
    disks: Vec<usize>,
    threads: u64,
    /// Cost served to each disk, and each disk's largest request.
    served: Vec<u64>,
    greatest: Vec<u64>,
    shares: Vec<u64>,
    waiting: Vec<u64>,
    /// For each pair: the least and the greatest difference since both are backlogged.
    pairs: Vec<Option<(f64, f64)>>,
    most_in_flight: u64,
    /// When control engaged.
    engaged: Option<Time>,
    /// The widest gap, relative to its bound.
    worst: f64,
}

impl Invariants {
    pub(crate) fn new(
        settings: &[Settings],
        hosts: impl Iterator<Item = (Vec<usize>, usize)>,
    ) -> Invariants {
        let lags = hosts.map(|(disks, threads)| {
            // Disks with a limit or a reservation do not follow their shares.
            let free = |&disk: &usize| {
                let of = &settings[disk];
                of.limit.is_none()
                    && of.bandwidth.is_none()
                    && of.reservation == 0
                    && of.group.is_none()
            };
            let disks: Vec<usize> = disks.into_iter().filter(free).collect();
            let n = disks.len();
            Lags {
                shares: disks
                    .iter()
                    .map(|&disk| u64::from(settings[disk].shares))
                    .collect(),
                disks,
                threads: threads as u64,
                served: vec![0; n],
                greatest: vec![0; n],
                waiting: vec![0; n],
                pairs: vec![None; n * n],
                most_in_flight: 0,
                engaged: None,
                worst: 0.0,
            }
        });
        Invariants {
            breaches: Vec::new(),
            limits: settings.iter().map(Limits::of).collect(),
            groups: BTreeMap::new(),
            lags: lags.collect(),
            woken: (Time::ZERO, 0, 0),
        }
    }

    pub(crate) fn breach(&mut self, at: Time, what: impl Into<String>) {
        if self.breaches.len() < MOST {
            self.breaches.push(Breach {
                at,
                what: what.into(),
            });
        }
    }

    pub(crate) fn into_breaches(self) -> Vec<Breach> {
        self.breaches
    }

    /// A disk has new settings.
    pub(crate) fn changed(&mut self, disk: usize, settings: &Settings) {
        self.limits[disk] = Limits::of(settings);
        for lags in &mut self.lags {
            if let Some(place) = lags.disks.iter().position(|&other| other == disk) {
                lags.shares[place] = u64::from(settings.shares);
                lags.forget(place);
            }
        }
    }

    /// A limited I/O starts.
    pub(crate) fn limited(&mut self, now: Time, disk: usize, name: &str, units: u64, bytes: u64) {
        let limits = &mut self.limits[disk];
        let units_over = add(&mut limits.units, now, units);
        let bytes_over = add(&mut limits.bytes, now, bytes);
        for (over, what) in [(units_over, "units"), (bytes_over, "bytes")] {
            if let Some(over) = over {
                self.breach(
                    now,
                    format!("disk {name} started {over:.3} {what} more than its limit allows"),
                );
            }
        }
    }

    /// A host's daemon starts: the bursts of its groups are full again.
    pub(crate) fn began(&mut self, host: usize) {
        self.groups.retain(|(of, _), _| *of != host);
    }

    /// A limited I/O of a disk in a group starts.
    pub(crate) fn grouped(
        &mut self,
        now: Time,
        (host, group): (usize, usize),
        plan: &Group,
        units: u64,
        bytes: u64,
    ) {
        let limits = self
            .groups
            .entry((host, group))
            .or_insert_with(|| Limits::new(plan.limit, plan.bandwidth));
        let units_over = add(&mut limits.units, now, units);
        let bytes_over = add(&mut limits.bytes, now, bytes);
        for (over, what) in [(units_over, "units"), (bytes_over, "bytes")] {
            if let Some(over) = over {
                let name = &plan.name;
                self.breach(
                    now,
                    format!("group {name} started {over:.3} {what} more than its limit allows"),
                );
            }
        }
    }

    /// An I/O starts on a host whose window is `window` cost units, with `before` in flight already.
    pub(crate) fn windowed(
        &mut self,
        now: Time,
        host: usize,
        name: &str,
        before: u64,
        window: f64,
    ) {
        // Threads count I/Os in flight in batches of eight.
        let threads = self.lags[host].threads;
        let slack = if threads > 1 {
            threads * DIVERGENCE * Cost::REFERENCE.0
        } else {
            0
        };
        if before > 0 && float(before) > window + float(slack) + 1.0 {
            self.breach(
                now,
                format!(
                    "host {name} starts an I/O with {before} cost units in flight, but its window is {window:.0}"
                ),
            );
        }
    }

    /// A thread was woken at its deadline.
    pub(crate) fn woken(&mut self, now: Time, host: usize) {
        self.woken = match self.woken {
            (at, of, times) if at == now && of == host => (at, of, times + 1),
            _ => (now, host, 1),
        };
        if self.woken.2 == MOST_WAKEUPS {
            self.breach(now, "a deadline does not move once it has been reached");
        }
    }

    /// Whether a thread loops without progress.
    pub(crate) fn is_hung(&self) -> bool {
        self.woken.2 >= MOST_WAKEUPS
    }

    /// A disk of a host has this many waiting I/Os.
    pub(crate) fn waits(&mut self, host: usize, disk: usize, waiting: u64) {
        let lags = &mut self.lags[host];
        if let Some(place) = lags.disks.iter().position(|&other| other == disk) {
            lags.waiting[place] = waiting;
            if waiting == 0 {
                lags.forget(place);
            }
        }
    }

    /// An I/O of a disk is served while its host's control is engaged or not.
    pub(crate) fn served(
        &mut self,
        now: Time,
        host: usize,
        disk: usize,
        cost: Cost,
        in_flight: u64,
        engaged: bool,
    ) {
        let lags = &mut self.lags[host];
        let Some(place) = lags.disks.iter().position(|&other| other == disk) else {
            return;
        };
        lags.served[place] += cost.0;
        lags.greatest[place] = lags.greatest[place].max(cost.0);
        if !engaged {
            lags.engaged = None;
            return lags.pairs.fill(None);
        }
        // I/Os from before engaging stay for a while and would widen the bound.
        let since = *lags.engaged.get_or_insert(now);
        if now.since(since) < SETTLED {
            lags.most_in_flight = 0;
            return lags.pairs.fill(None);
        }
        lags.most_in_flight = lags.most_in_flight.max(in_flight);
        lags.widen(place);
    }

    /// The widest gap between two backlogged disks of a host, relative to its bound.
    pub(crate) fn lag(&self) -> f64 {
        self.lags.iter().map(|lags| lags.worst).fold(0.0, f64::max)
    }
}

impl Limits {
    fn of(settings: &Settings) -> Limits {
        Limits::new(settings.limit, settings.bandwidth)
    }

    fn new(units: Option<Ceiling>, bytes: Option<Ceiling>) -> Limits {
        Limits {
            units: buckets(units),
            bytes: buckets(bytes),
        }
    }
}

fn buckets(ceiling: Option<Ceiling>) -> [Option<Bucket>; 2] {
    let bucket = |rate: u64, holds: u128| Bucket {
        rate: u128::from(rate),
        holds,
        level: 0,
        at: Time::ZERO,
    };
    let Some(ceiling) = ceiling else {
        return [None; 2];
    };
    let burst = u128::from(ceiling.burst) * SECOND;
    [
        Some(bucket(ceiling.sustained, burst)),
        (ceiling.peak > 0).then(|| bucket(ceiling.peak, u128::from(ceiling.peak) * SECOND / 100)),
    ]
}

/// Adds to each bucket. Returns by how much one was over its limit before.
fn add(buckets: &mut [Option<Bucket>; 2], now: Time, amount: u64) -> Option<f64> {
    let mut over = None;
    for bucket in buckets.iter_mut().flatten() {
        let leaked = bucket.rate * u128::from(now.since(bucket.at).as_nanos());
        bucket.level = bucket.level.saturating_sub(leaked);
        bucket.at = now;
        // One nanosecond's drain is rounding.
        if bucket.level > bucket.holds + bucket.rate {
            let parts = u64::try_from((bucket.level - bucket.holds) / (SECOND / 1_000));
            over = Some(float(parts.unwrap_or(u64::MAX)) / 1_000.0);
        }
        bucket.level += u128::from(amount) * SECOND;
    }
    over
}

impl Lags {
    fn forget(&mut self, place: usize) {
        let n = self.disks.len();
        for other in 0..n {
            self.pairs[place * n + other] = None;
            self.pairs[other * n + place] = None;
        }
    }

    fn widen(&mut self, place: usize) {
        let n = self.disks.len();
        for other in 0..n {
            if other == place || self.waiting[place] == 0 || self.waiting[other] == 0 {
                continue;
            }
            let (low, high) = (place.min(other), place.max(other));
            let of = |at: usize| float(self.served[at]) / float(self.shares[at]);
            let gap = of(low) - of(high);
            let pair = &mut self.pairs[low * n + high];
            let (least, most) = pair.unwrap_or((gap, gap));
            let (least, most) = (least.min(gap), most.max(gap));
            *pair = Some((least, most));
            let request = |at: usize| float(self.greatest[at]) / float(self.shares[at]);
            let depth = float(self.most_in_flight + 1);
            let fewest = self.shares[low].min(self.shares[high]);
            let credit = float(CREDIT * Cost::REFERENCE.0) / float(fewest);
            let apart = match self.threads {
                1 => 0.0,
                _ => 2.0 * float(DIVERGENCE * Cost::REFERENCE.0) / 1_000.0,
            };
            let bound = depth * (request(low) + request(high)) + credit + apart;
            self.worst = self.worst.max((most - least) / bound);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(limit: Ceiling) -> Invariants {
        let settings = Settings {
            shares: 1_000,
            reservation: 0,
            limit: Some(limit),
            bandwidth: None,
            latency_target: None,
            group: None,
        };
        Invariants::new(&[settings], [(vec![0], 1)].into_iter())
    }

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_limit_may_be_used_exactly_and_one_unit_more_is_a_breach() {
        let mut safety = limited(Ceiling {
            sustained: 100,
            peak: 0,
            burst: 5,
        });
        for _ in 0..6 {
            safety.limited(at(0), 0, "d", 1, 0);
        }
        safety.limited(at(10), 0, "d", 1, 0);
        assert_eq!(safety.breaches, []);
        safety.limited(at(15), 0, "d", 1, 0);
        assert_eq!(safety.breaches.len(), 1);
    }

    #[test]
    fn a_peak_is_checked_in_addition_to_the_burst() {
        let mut safety = limited(Ceiling {
            sustained: 100,
            peak: 200,
            burst: 1_000,
        });
        for ms in 0..100 {
            safety.limited(at(ms * 5), 0, "d", 1, 0);
        }
        assert_eq!(safety.breaches, []);
        for _ in 0..4 {
            safety.limited(at(500), 0, "d", 1, 0);
        }
        assert_eq!(safety.breaches.len(), 1);
    }

    #[test]
    fn a_full_window_is_a_breach_unless_nothing_is_in_flight() {
        let mut safety = limited(Ceiling {
            sustained: 100,
            peak: 0,
            burst: 1,
        });
        safety.windowed(at(0), 0, "h", 0, 100.0);
        safety.windowed(at(0), 0, "h", 512, 512.0);
        assert_eq!(safety.breaches, []);
        safety.windowed(at(0), 0, "h", 768, 512.0);
        assert_eq!(safety.breaches.len(), 1);
    }
}
