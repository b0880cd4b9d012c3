//! One second of the whole host for the dashboard's pages: I/O threads, datastores under control, and disks.
//!
//! Like the monitor, it queries the I/O threads for a few sums per disk and each governor for its report. It computes
//! the differences to the previous sample. The output is compact: rows without names, whose columns `hello` sends
//! once.
//!
//! # Always true
//! - No histogram is queried, and no file is read.
//!
//! # Units
//! As the columns say; `_s` means seconds, and rates are per second. Windows and costs are in reference I/Os.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use tidegate_api::explain::Cause;
use tidegate_api::iocontrol::IoControlMode;
use tidegate_api::name::Name;
use tidegate_api::thread::ThreadState;
use tidegate_core::governor::{self, Threshold};
use tidegate_core::units::{Span, Time};
use tidegate_engine::control::Report;

use super::feed::{Frame, Look, event};
use crate::control::report;
use crate::disks::attached::Attached;
use crate::host::Key;
use crate::observe::explain::timeline::{Beat, Stretch, Worked};
use crate::observe::explain::{self, Facts, Terms};
use crate::observe::monitor::{Monitor, Standing};
use crate::observe::sample::ratio;
use crate::os_error::Outcome;
use crate::text::float;
use crate::text::hex;

/// Internal cost units per reference I/O, in windows and costs.
const COST: f64 = 256.0;

/// The columns of a row of `threads`.
pub(crate) const THREADS: [&str; 5] = ["thread", "busy", "spinning", "disks", "state"];

/// The columns of a row of `datastores`.
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

/// The columns of a row of a datastore's `hosts`.
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

/// The columns of a row of a datastore's `others`: disks that other hosts serve.
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

/// The columns of a row of `disks`.
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

/// The columns of a disk's `did`, also in the history.
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

/// One second of the whole host.
#[derive(Serialize)]
pub(crate) struct Second<'a> {
    /// Milliseconds since 1970.
    at: u64,
    threads: Vec<ThreadRow>,
    datastores: Vec<DatastoreRow<'a>>,
    disks: Vec<DiskRow<'a>>,
}

#[derive(Serialize)]
struct ThreadRow(u32, f64, f64, usize, ThreadState);

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

/// The activity of a disk, per second or per I/O, in the order of [`DID`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Did([f64; DID.len()]);

impl Serialize for Did {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0.iter().map(|number| Short(*number)))
    }
}

/// A number that is written without a decimal point if it needs none: most are zero.
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
    /// Converts these facts.
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

/// The counters of a disk at one moment.
struct Seen {
    key: Key,
    attached: Time,
    beat: Beat,
}

/// An ordered walk over the previous counters, in the order of names, because there may be hundreds of disks.
struct Visit<'a> {
    ahead: &'a [Seen],
}

impl<'a> Visit<'a> {
    /// The previous counters of the disk with this key and this attachment. Call it in the disks' order.
    fn to(&mut self, key: Key, attached: Time) -> Option<&'a Beat> {
        let is_it = |seen: &Seen| seen.key == key && seen.attached == attached;
        // The disks before it are gone.
        let nth = self.ahead.iter().position(is_it)?;
        let seen = &self.ahead[nth];
        self.ahead = &self.ahead[nth + 1..];
        Some(&seen.beat)
    }
}

/// Samples the whole host, and stores the previous sample.
#[derive(Default)]
pub(crate) struct HostSample {
    disks: Option<Vec<Seen>>,
    threads: Vec<Worked>,
}

impl Look for HostSample {
    fn look(&mut self, monitor: &Monitor) -> Outcome<Frame> {
        let reports = monitor.control_reports();
        let standing = monitor.standing(&reports)?;
        let states = monitor.services().disk_service.host().thread_states()?;
        // For the first sample, the monitor has recent counters of all disks.
        let before = self.disks.take().unwrap_or_else(|| {
            let seen = |live: &Attached| Some(seen(live, monitor.last(live)?));
            let all = standing.disks.iter();
            all.filter_map(|(live, _)| seen(live)).collect()
        });
        let second = Second {
            at: now_ms(),
            threads: threads(&standing, &self.threads, &states),
            datastores: reports.iter().map(datastore).collect(),
            disks: disks(&standing, &before),
        };
        let frame = event("beat", &second);
        let all = standing.disks.iter();
        self.disks = Some(all.map(|(live, beat)| seen(live, *beat)).collect());
        self.threads = standing.threads;
        Ok(frame)
    }
}

fn seen(live: &Attached, beat: Beat) -> Seen {
    Seen {
        key: live.key(),
        attached: live.attached(),
        beat,
    }
}

fn threads(standing: &Standing, before: &[Worked], states: &[ThreadState]) -> Vec<ThreadRow> {
    let row = |(now, state): (&Worked, &ThreadState)| {
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
            *state,
        )
    };
    standing.threads.iter().zip(states).map(row).collect()
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
        hex(&host.host),
        round(float(host.age.as_nanos()) / 1e9),
        host.suspect,
        cost(host.window),
        cost(host.in_flight),
        us(host.latency),
        cost(host.rate),
        host.disks,
    )
}

/// The disks that other hosts report.
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

fn disks<'a>(standing: &'a Standing, before: &[Seen]) -> Vec<DiskRow<'a>> {
    let mut walk = Visit { ahead: before };
    let row = |(live, beat): &'a (Arc<Attached>, Beat)| {
        let then = walk.to(live.key(), live.attached());
        let then = then.filter(|then| explain::timeline::goes_on(then, beat));
        let from = then.map_or_else(
            || Beat {
                at: live.attached(),
                ..Beat::default()
            },
            |then| *then,
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
        } = Monitor::terms(live);
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
            level.and_then(|level| level.demand).map(cost),
            level.map_or(0, |level| level.burst_left),
            level.is_some_and(|level| level.unmet),
            Did::of(&facts),
        )
    };
    standing.disks.iter().map(row).collect()
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// Converts to microseconds.
pub(crate) fn us(span: Span) -> f64 {
    round(float(span.as_nanos()) / 1e3)
}

/// Converts to reference I/Os.
fn cost(cost: u64) -> f64 {
    round(float(cost) / COST)
}

/// Rounds to a tenth: more digits are useless, and the value is sent every second.
pub(crate) fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::filter::stats::Pulse;
    use tidegate_core::request::DiskId;

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
        let thread = serde_json::to_value(ThreadRow(0, 0.0, 0.0, 0, ThreadState::Active)).unwrap();
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
    fn a_disk_is_found_as_it_stood_whoever_has_come_and_gone() {
        let seen = |number, attached, at| Seen {
            key: DiskId(number),
            attached: Time::from_nanos(attached),
            beat: Beat {
                at: Time::from_nanos(at),
                ..Beat::default()
            },
        };
        let before = [seen(7, 1, 100), seen(2, 2, 200), seen(5, 3, 300)];
        let mut walk = Visit { ahead: &before };
        let mut at = |number, attached| {
            let beat = walk.to(DiskId(number), Time::from_nanos(attached))?;
            Some(beat.at.as_nanos())
        };
        // A new disk has the number of a former one later in the list; the first disk is gone.
        assert_eq!(at(5, 9), None);
        assert_eq!((at(2, 2), at(5, 3)), (Some(200), Some(300)));
        assert_eq!(at(7, 1), None);
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
