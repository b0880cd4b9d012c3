//! One second of the whole host, as the dashboard's pages read it: I/O threads, datastores under control, and disks.
//!
//! It asks the I/O threads for a few sums a disk and each governor for its report, as the lookout does, and takes the
//! differences to the look before. What it makes is compact: rows without names, whose columns `hello` tells once.
//!
//! # Always true
//! - No histogram is asked for, and no file is read.
//!
//! # Units
//! As their columns say; `_s` is a second, and rates are each second. Windows and costs are reference I/Os.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use tidegate_api::explain::Cause;
use tidegate_api::iocontrol::IoControlMode;
use tidegate_api::name::Name;
use tidegate_core::governor::{self, Threshold};
use tidegate_core::units::{Span, Time};
use tidegate_engine::control::Report;

use super::feed::{Frame, Look, event};
use crate::control::report;
use crate::explain::course::{Beat, Stretch, Worked};
use crate::explain::{self, Facts, Terms};
use crate::lookout::Standing;
use crate::sample::{float, ratio};
use crate::serve::Daemon;
use crate::trouble::Outcome;

/// Parts of a reference I/O in windows and costs.
const COST: f64 = 256.0;

/// What stands where in a row of `threads`.
pub(crate) const THREADS: [&str; 4] = ["thread", "busy", "spinning", "disks"];

/// What stands where in a row of `datastores`.
pub(crate) const DATASTORES: [&str; 17] = [
    "name",
    "mode",
    "engaged",
    "latency_us",
    "threshold_us",
    "window",
    "window_all",
    "in_flight",
    "cost_per_s",
    "peak_cost_per_s",
    "reservations_met",
    "external",
    "alone",
    "mute",
    "trouble",
    "hosts",
    "others",
];

/// What stands where in a row of a datastore's `hosts`.
pub(crate) const HOSTS: [&str; 8] = [
    "host",
    "silent_s",
    "suspect",
    "window",
    "in_flight",
    "latency_us",
    "cost_per_s",
    "disks",
];

/// What stands where in a row of a datastore's `others`: disks that other hosts serve.
pub(crate) const OTHERS: [&str; 8] = [
    "key",
    "host",
    "shares",
    "reservation",
    "limit",
    "demand",
    "entitled",
    "merged",
];

/// What stands where in a row of `disks`.
pub(crate) const DISKS: [&str; 14] = [
    "name",
    "datastore",
    "thread",
    "cause",
    "outstanding_now",
    "shares",
    "reservation",
    "limit",
    "bandwidth",
    "entitled",
    "demand",
    "burst_left",
    "unmet",
    "did",
];

/// What stands where in what a disk `did`, also in the past.
pub(crate) const DID: [&str; 13] = [
    "iops",
    "bytes",
    "units",
    "errors",
    "outstanding",
    "queue_us",
    "filters_us",
    "shares_us",
    "window_us",
    "limit_us",
    "group_us",
    "bandwidth_us",
    "datastore_us",
];

/// One second of everything.
#[derive(Serialize)]
pub(crate) struct Second<'a> {
    /// Milliseconds since 1970.
    at: u64,
    threads: Vec<ThreadRow>,
    datastores: Vec<DatastoreRow<'a>>,
    disks: Vec<DiskRow<'a>>,
}

#[derive(Serialize)]
struct ThreadRow(u32, f64, f64, usize);

#[derive(Serialize)]
struct DatastoreRow<'a>(
    &'a Name,
    IoControlMode,
    bool,
    f64,
    Option<f64>,
    f64,
    f64,
    f64,
    f64,
    f64,
    f64,
    bool,
    bool,
    bool,
    Option<&'a str>,
    Vec<HostRow>,
    Vec<OtherRow>,
);

#[derive(Serialize)]
struct HostRow(String, f64, bool, f64, f64, f64, f64, usize);

#[derive(Serialize)]
struct OtherRow(String, usize, u32, u32, Option<u32>, f64, u64, bool);

#[derive(Serialize)]
struct DiskRow<'a>(
    &'a Name,
    &'a Name,
    u32,
    Cause,
    u64,
    u32,
    u64,
    Option<u64>,
    Option<u64>,
    Option<u64>,
    Option<f64>,
    u64,
    bool,
    Did,
);

/// What a disk did, each second or for each I/O, in the order of [`DID`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Did([f64; DID.len()]);

impl Serialize for Did {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0.iter().map(|number| Short(*number)))
    }
}

/// A number that is written without a point where it needs none: most are nothing.
struct Short(f64);

impl Serialize for Short {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if self.0 == 0.0 {
            s.serialize_u8(0)
        } else {
            s.serialize_f64(self.0)
        }
    }
}

impl Did {
    /// What these facts say.
    pub(crate) fn of(facts: &Facts) -> Did {
        let us = |ns: f64| round(facts.each_io(ns) / 1e3);
        let [shares, window, limit, group, bandwidth] = facts.held.map(us);
        Did([
            round(facts.each_second(facts.ios)),
            facts.each_second(facts.bytes).round(),
            round(facts.each_second(facts.units)),
            round(facts.each_second(facts.errors)),
            round(facts.outstanding_mean),
            us(facts.queue),
            us(facts.filters),
            shares,
            window,
            limit,
            group,
            bandwidth,
            us(facts.datastore),
        ])
    }
}

/// Looks at the whole host; remembers how it stood when it looked last.
#[derive(Default)]
pub(crate) struct Beats {
    disks: Option<BTreeMap<Name, (Time, Beat)>>,
    threads: Vec<Worked>,
}

impl Look for Beats {
    fn look(&mut self, daemon: &Daemon) -> Outcome<Frame> {
        let reports = daemon.control_reports();
        let standing = daemon.standing(&reports)?;
        // At first, the lookout knows how everything stood a moment ago.
        let before = self.disks.take().unwrap_or_else(|| daemon.lookout.last());
        let second = Second {
            at: now_ms(),
            threads: threads(&standing, &self.threads),
            datastores: reports.iter().map(datastore).collect(),
            disks: disks(&standing, &reports, &before),
        };
        let frame = event("beat", &second);
        let seen = standing.disks.iter();
        let seen = seen.map(|(live, beat)| (live.name().clone(), (live.attached(), *beat)));
        self.disks = Some(seen.collect());
        self.threads = standing.threads;
        Ok(frame)
    }
}

fn threads(standing: &Standing, before: &[Worked]) -> Vec<ThreadRow> {
    let row = |now: &Worked| {
        let then = before.iter().find(|then| then.thread == now.thread);
        let then = then.copied().unwrap_or_default();
        let since = |now: Span, then: Span| now.as_nanos().saturating_sub(then.as_nanos());
        let age = since(now.age, then.age);
        let part = |ns| (ratio(ns, age).min(1.0) * 1e3).round() / 1e3;
        let disks = standing.disks.iter();
        ThreadRow(
            now.thread,
            part(since(now.busy, then.busy)),
            part(since(now.polling, then.polling)),
            disks
                .filter(|(live, _)| live.thread() == now.thread)
                .count(),
        )
    };
    standing.threads.iter().map(row).collect()
}

fn datastore<'a>((name, report): (&'a Name, &'a Report)) -> DatastoreRow<'a> {
    let known = &report.governor;
    let has_threshold = known.common.threshold() != Threshold::Off;
    DatastoreRow(
        name,
        report::mode(known.mode),
        known.engaged,
        us(known.latency),
        has_threshold.then(|| us(known.threshold)),
        cost(known.window),
        cost(known.cluster),
        cost(known.in_flight),
        cost(known.rate),
        cost(known.peak),
        (f64::from(known.theta) / 65.536).round() / 1e3,
        known.external,
        known.alone,
        known.mute,
        report.trouble.as_ref().map(|trouble| trouble.what.as_str()),
        known.hosts.iter().map(host).collect(),
        others(known),
    )
}

fn host(host: &governor::HostReport) -> HostRow {
    HostRow(
        report::hex(&host.host),
        round(float(host.age.as_nanos()) / 1e9),
        host.suspect,
        cost(host.window),
        cost(host.in_flight),
        us(host.latency),
        cost(host.rate),
        host.disks,
    )
}

/// Disks that other hosts tell of.
fn others(known: &governor::Report) -> Vec<OtherRow> {
    let hosts = known.hosts.iter().enumerate().skip(1);
    let rows = hosts.flat_map(|(nth, host)| {
        host.told.iter().map(move |disk| {
            OtherRow(
                report::key(disk.key),
                nth,
                disk.shares,
                disk.reservation,
                (disk.limit > 0).then_some(disk.limit),
                cost(disk.demand),
                disk.entitled,
                disk.merged,
            )
        })
    });
    rows.collect()
}

fn disks<'a>(
    standing: &'a Standing,
    reports: &BTreeMap<Name, Report>,
    before: &BTreeMap<Name, (Time, Beat)>,
) -> Vec<DiskRow<'a>> {
    // By the engine's keys, so that hundreds of disks are not searched for hundreds of times.
    let mut demands = BTreeMap::new();
    for report in reports.values() {
        let known: BTreeMap<_, _> = (report.governor.disks.iter())
            .map(|disk| (disk.key, disk.demand))
            .collect();
        let used = report.disks.iter();
        demands.extend(used.filter_map(|used| Some((used.disk, *known.get(&used.key)?))));
    }
    let row = |(live, beat): &'a (std::sync::Arc<crate::live::Live>, Beat)| {
        let then = before.get(live.name());
        let then = then.filter(|(attached, then)| {
            *attached == live.attached() && explain::course::goes_on(then, beat)
        });
        let from = then.map_or_else(
            || Beat {
                at: live.attached(),
                ..Beat::default()
            },
            |(_, then)| *then,
        );
        let facts = Facts::of(&Stretch {
            from,
            to: *beat,
            engaged_ratio: 0.0,
        });
        let facts = facts.with(live.claim());
        let Terms {
            shares,
            reservation,
            limit,
            bandwidth,
            ..
        } = Daemon::terms(live);
        let level = beat.level;
        DiskRow(
            live.name(),
            live.datastore(),
            live.thread(),
            explain::cause(&facts),
            facts.outstanding,
            shares,
            reservation,
            limit,
            bandwidth,
            level.filter(|level| level.engaged).map(|it| it.entitled),
            demands.get(&live.key()).map(|demand| cost(*demand)),
            level.map_or(0, |level| level.burst_left),
            level.is_some_and(|level| level.unmet),
            Did::of(&facts),
        )
    };
    let mut rows: Vec<_> = standing.disks.iter().map(row).collect();
    rows.sort_by_key(|row| row.0);
    rows
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// In microseconds.
pub(crate) fn us(span: Span) -> f64 {
    round(float(span.as_nanos()) / 1e3)
}

/// In reference I/Os.
fn cost(cost: u64) -> f64 {
    round(float(cost) / COST)
}

/// To a tenth: nobody reads more of it, and it is sent every second.
pub(crate) fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::filter::stats::Pulse;

    #[test]
    fn every_column_has_its_place_in_the_row() {
        let columns = |row: serde_json::Value| row.as_array().unwrap().len();
        let name: Name = "a".parse().unwrap();
        let did = Did([0.0; DID.len()]);
        let disk = DiskRow(
            &name,
            &name,
            0,
            Cause::Idle,
            0,
            0,
            0,
            None,
            None,
            None,
            None,
            0,
            false,
            did,
        );
        let row = serde_json::to_value(disk).unwrap();
        assert_eq!(row[DISKS.len() - 1].as_array().unwrap().len(), DID.len());
        assert_eq!(columns(row), DISKS.len());
        let thread = serde_json::to_value(ThreadRow(0, 0.0, 0.0, 0)).unwrap();
        assert_eq!(columns(thread), THREADS.len());
        let host = HostRow(String::new(), 0.0, false, 0.0, 0.0, 0.0, 0.0, 0);
        assert_eq!(columns(serde_json::to_value(host).unwrap()), HOSTS.len());
        let other = OtherRow(String::new(), 0, 0, 0, None, 0.0, 0, false);
        assert_eq!(columns(serde_json::to_value(other).unwrap()), OTHERS.len());
        let mode = IoControlMode::On;
        let datastore = DatastoreRow(
            &name,
            mode,
            false,
            0.0,
            None,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            false,
            false,
            false,
            None,
            vec![],
            vec![],
        );
        let row = serde_json::to_value(datastore).unwrap();
        assert_eq!(columns(row), DATASTORES.len());
    }

    #[test]
    fn what_a_disk_did_is_told_each_second_and_for_each_io() {
        let beat = |at: u64, ios, latency_ns| Beat {
            at: Time::from_nanos(at * 1_000_000_000),
            pulse: Some(Pulse {
                ios,
                bytes: ios * 4096,
                latency_ns,
                sampled_ns: [latency_ns, 0, latency_ns / 4, latency_ns / 4 * 3],
                ..Pulse::default()
            }),
            ..Beat::default()
        };
        let facts = Facts::of(&Stretch {
            from: beat(10, 1_000, 5_000_000),
            to: beat(12, 3_000, 205_000_000),
            engaged_ratio: 0.0,
        });
        let Did(did) = Did::of(&facts);
        let is = |column: &str| did[DID.iter().position(|known| *known == column).unwrap()];
        assert_eq!((is("iops"), is("bytes")), (1_000.0, 4_096_000.0));
        assert_eq!((is("filters_us"), is("datastore_us")), (25.0, 75.0));
        assert_eq!(is("shares_us"), 0.0);
    }
}
