//! The page that Prometheus scrapes, and the list of its metrics.
//!
//! Every family is declared once, in [`FAMILIES`]. The page's `HELP` and `TYPE` lines and the reference manual come
//! from there. Values come from the same moment as statistics.
//!
//! # Always true
//! - Names begin with `tidegate_`, end in their base unit, and counters (and only they) in `_total`.
//! - Label values are escaped. Names never need it, but versions and addresses might.
//!
//! # Source
//! Prometheus' text exposition format 0.0.4 and its page on naming.

use std::fmt::{Display, Write};

use tidegate_api::cache::Cache;
use tidegate_api::datastore::Datastore;
use tidegate_api::layout::MemberState;
use tidegate_api::name::Name;
use tidegate_api::pool::Pool;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::curve::Trust;
use tidegate_core::filter::stats::{Class, OpCounts, Stage, StatsReport};
use tidegate_core::histogram::Histogram;
use tidegate_core::request::Op;
use tidegate_core::units::Span;
use tidegate_engine::counters::DelayHistogram;

use crate::disks::counters::AttachedMoment;
use crate::observe::counters::Counters;
use crate::observe::sample::ControlMoment;
use crate::text::float;

mod cache;
mod control;
mod families;
mod iothreads;
mod pool;

use families::*;
pub(crate) use families::{FAMILIES, Family};
pub(crate) use iothreads::IoThreads;

/// Upper bounds of the latency buckets, in nanoseconds: 1, 2 and 5 in each decade. They range from a cached read to
/// the timeout of guests.
const BOUNDS: [u64; 19] = [
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// The input of the page.
pub(crate) struct Facts {
    pub(crate) moment: Counters,
    pub(crate) datastores: Vec<Datastore>,
    pub(crate) disks: Vec<AttachedMoment>,
    pub(crate) caches: Vec<Cache>,
    pub(crate) pools: Vec<Pool>,
    pub(crate) controls: Vec<ControlMoment>,
    pub(crate) problems: usize,
    pub(crate) nbd_refused: u64,
    pub(crate) log_lines_lost: u64,
    /// Listener, file and days left of each TLS certificate.
    pub(crate) certificates: Vec<(String, String, f64)>,
    pub(crate) uptime_s: f64,
    pub(crate) io_threads: IoThreads,
    pub(crate) active_threads: u32,
    /// The policy of I/O threads; none while the daemon stops.
    pub(crate) policy: Option<tidegate_engine::monitor::Status>,
}

/// The whole page.
///
/// `room`: the initial capacity in bytes, such as the length of the last page.
pub(crate) fn page(facts: &Facts, room: usize) -> String {
    let mut page = Page::with_room(room);
    daemon(&mut page, facts);
    datastores(&mut page, &facts.datastores);
    pool::of_host(&mut page, &facts.pools);
    cache::of_host(&mut page, &facts.caches);
    settings(&mut page, &facts.disks);
    control::families(&mut page, &facts.controls);
    disks(&mut page, &facts.moment);
    threads(&mut page, &facts.moment);
    iothreads::families(&mut page, &facts.io_threads);
    policy(&mut page, facts);
    page.text
}

fn daemon(page: &mut Page, facts: &Facts) {
    page.family(&BUILD_INFO)
        .value(&[("version", &env!("CARGO_PKG_VERSION"))], 1);
    page.family(&UPTIME).value(&[], facts.uptime_s);
    page.family(&PROBLEMS).value(&[], facts.problems);
    page.family(&NBD_REFUSED).value(&[], facts.nbd_refused);
    page.family(&LOG_LOST).value(&[], facts.log_lines_lost);
    let mut left = page.family(&CERTIFICATE_LEFT);
    for (listener, file, days) in &facts.certificates {
        left.value(&[("listener", listener), ("file", file)], days);
    }
}

fn datastores(page: &mut Page, datastores: &[Datastore]) {
    let each = |page: &mut Page, family: &Family, value: fn(&Datastore) -> Option<u64>| {
        let mut page = page.family(family);
        for datastore in datastores {
            if let Some(value) = value(datastore) {
                let kind = datastore.settings.kind();
                page.value(&[("datastore", &datastore.name), ("kind", &kind)], value);
            }
        }
    };
    each(page, &DATASTORE_UP, |d| {
        // A full datastore can be read, and written where data exists already. A read-only one can be read.
        let usable = |problem: &Problem| problem.code == ProblemCode::Full || d.read_only;
        Some(u64::from(d.problem.as_ref().is_none_or(usable)))
    });
    each(page, &DATASTORE_DISKS, |d| Some(d.disks));
    each(page, &DATASTORE_CAPACITY, |d| d.capacity_bytes);
    each(page, &DATASTORE_FREE, |d| d.free_bytes);
}

fn settings(page: &mut Page, disks: &[AttachedMoment]) {
    let whose: Vec<String> = disks
        .iter()
        .map(|disk| whose(&disk.name, &disk.datastore))
        .collect();
    let all = || whose.iter().zip(disks);
    let each = |page: &mut Page, family: &Family, value: fn(&AttachedMoment) -> Option<u64>| {
        let mut page = page.family(family);
        for (whose, disk) in all() {
            if let Some(value) = value(disk) {
                page.count(&[whose], value);
            }
        }
    };
    each(page, &DISK_SIZE, |d| Some(d.size_bytes));
    each(page, &DISK_ALLOCATED, |d| d.allocated_bytes);
    each(page, &DISK_SNAPSHOTS, |d| d.snapshots.map(|it| it.count));
    each(page, &DISK_OLDEST_SNAPSHOT, |d| d.snapshots?.oldest_s);
    members(page, disks);
    pool::families(page, disks);
    cache::families(page, disks);
    each(page, &DISK_SHARES, |d| Some(d.shares.into()));
    each(page, &DISK_RESERVATION, |d| Some(d.reservation_iops));
    each(page, &DISK_LIMIT, |d| d.limit_iops);
    each(page, &DISK_LIMIT_BYTES, |d| d.limit_bytes_per_s);
    let mut clients = page.family(&DISK_CLIENTS);
    for (whose, disk) in all() {
        clients.count(&[whose, ",kind=\"vhost-user\""], disk.clients.vhost_user);
        clients.count(&[whose, ",kind=\"nbd\""], disk.clients.nbd);
        clients.count(&[whose, ",kind=\"nbd-tls\""], disk.clients.nbd_tls);
    }
    each(page, &DISK_PROBLEMS, |d| Some(d.has_problem.into()));
    each(page, &DISK_NONSENSE, |d| Some(d.rings.nonsense_total));
    each(page, &DISK_BROKEN, |d| Some(d.rings.broken_total));
    each(page, &DISK_COMPLETIONS, |d| Some(d.calls.completions));
    each(page, &DISK_INTERRUPTS, |d| Some(d.calls.interrupts));
    let upstreams = || all().filter_map(|(whose, disk)| Some((whose, disk.upstream?)));
    let mut lost = page.family(&UPSTREAM_LOST);
    for (whose, up) in upstreams() {
        // These counters are read one after the other while they grow.
        let told = up.violations_total + up.silent_total;
        let ended = up.lost_total.saturating_sub(told);
        lost.count(&[whose, ",cause=\"violation\""], up.violations_total);
        lost.count(&[whose, ",cause=\"silence\""], up.silent_total);
        lost.count(&[whose, ",cause=\"end\""], ended);
    }
    let mut attempts = page.family(&UPSTREAM_ATTEMPTS);
    for (whose, up) in upstreams() {
        attempts.count(&[whose, ",outcome=\"returned\""], up.returned_total);
        attempts.count(&[whose, ",outcome=\"refused\""], up.refused_total);
    }
}

/// The members of disks' layouts.
fn members(page: &mut Page, disks: &[AttachedMoment]) {
    let all = || {
        let disks = disks.iter();
        disks.flat_map(|disk| disk.members.iter().map(move |member| (disk, member)))
    };
    let mut states = page.family(&DISK_MEMBER_STATE);
    for (disk, member) in all() {
        for state in MemberState::ALL {
            // Of an attached disk's member, this is never the state.
            if state == MemberState::Present {
                continue;
            }
            let labels: [(&str, &dyn Display); 4] = [
                ("disk", &disk.name),
                ("datastore", &member.datastore),
                ("member", &member.member),
                ("state", &state.as_str()),
            ];
            states.value(&labels, u8::from(state == member.state));
        }
    }
    let mut rebuilds = page.family(&DISK_REBUILD);
    for (disk, member) in all() {
        if let Some(left) = member.left_bytes {
            let labels: [(&str, &dyn Display); 3] = [
                ("disk", &disk.name),
                ("datastore", &member.datastore),
                ("member", &member.member),
            ];
            rebuilds.value(&labels, left);
        }
    }
}

fn disks(page: &mut Page, moment: &Counters) {
    let measured: Vec<(String, &StatsReport)> = (moment.disks.iter())
        .filter_map(|disk| {
            let stats = disk.stats.as_deref()?;
            Some((whose(&disk.name, &disk.datastore), stats))
        })
        .collect();
    let each_op = |page: &mut Page, family: &Family, value: fn(&OpCounts) -> u64| {
        let mut page = page.family(family);
        for (whose, stats) in &measured {
            for op in Op::ALL {
                let labels = [whose, ",op=\"", op_word(op), "\""];
                page.count(&labels, value(stats.op(op)));
            }
        }
    };
    each_op(page, &DISK_OPS, |op| op.count);
    each_op(page, &DISK_BYTES, |op| op.bytes);
    each_op(page, &DISK_ERRORS, |op| op.errors);
    let mut inflight = page.family(&DISK_INFLIGHT);
    for (whose, stats) in &measured {
        inflight.count(&[whose], stats.outstanding);
    }
    curves(page, moment);
    let mut durations = page.family(&DISK_DURATION);
    for (whose, stats) in &measured {
        for class in Class::ALL {
            for stage in Stage::ALL {
                if let Some(histogram) = stats.latency(class, stage) {
                    let (op, stage) = (class.name(), stage.name());
                    let labels = [whose, ",op=\"", op, "\",stage=\"", stage, "\""];
                    durations.histogram(&labels, histogram);
                }
            }
        }
    }
}

/// Parts of the space in use whose miss ratios are shown, in hundredths.
const CACHE_PERCENTS: [u64; 5] = [1, 2, 4, 8, 16];

/// What caches would miss. Absent until a curve can be relied on.
fn curves(page: &mut Page, moment: &Counters) {
    let disks = moment.disks.iter();
    let seen = disks.filter(|disk| disk.curve.since.is_some());
    let seen: Vec<_> = seen
        .map(|disk| (whose(&disk.name, &disk.datastore), &disk.curve))
        .collect();
    let mut touched = page.family(&DISK_TOUCHED);
    for (whose, curve) in &seen {
        touched.count(&[whose], curve.distinct_bytes);
    }
    let mut misses = page.family(&DISK_CACHE_MISS);
    for (whose, curve) in seen
        .iter()
        .filter(|(_, curve)| curve.trust == Trust::Enough)
    {
        for percent in CACHE_PERCENTS {
            if let Some(miss) = curve.miss(curve.distinct_bytes / 100 * percent) {
                misses.amount(&[whose, &format!(",cache_percent=\"{percent}\"")], miss);
            }
        }
    }
}

fn threads(page: &mut Page, moment: &Counters) {
    let mut strays = page.family(&THREAD_STRAYS);
    for thread in &moment.threads {
        strays.value(&[("thread", &thread.thread)], thread.strays);
    }
}

fn policy(page: &mut Page, facts: &Facts) {
    let mut active = page.family(&THREADS_ACTIVE);
    active.value(&[], facts.active_threads);
    let Some(policy) = &facts.policy else { return };
    page.family(&MONITOR_MOVES).value(&[], policy.moves);
    let mut changes = page.family(&MONITOR_CHANGES);
    changes.value(&[("change", &"activated")], policy.activated);
    changes.value(&[("change", &"parked")], policy.parked);
    let mut trials = page.family(&MONITOR_TRIALS);
    trials.value(&[("outcome", &"kept")], policy.kept);
    trials.value(&[("outcome", &"undone")], policy.undone);
    trials.value(&[("outcome", &"void")], policy.void);
    page.family(&MONITOR_FAILURES).value(&[], policy.failed);
    page.family(&MONITOR_FINDINGS).value(&[], policy.findings);
    page.family(&MONITOR_TICKS).value(&[], policy.ticks);
    let cpu = float(policy.cpu.as_nanos()) / 1e9;
    page.family(&MONITOR_CPU).value(&[], cpu);
}

const fn op_word(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::WriteZeroes => "write-zeroes",
        Op::Discard => "discard",
        Op::Flush => "flush",
        Op::Extents => "extents",
        Op::Prefetch => "prefetch",
    }
}

/// The labels that identify a disk. Hundreds of lines use them, so they are formatted once.
fn whose(disk: &Name, datastore: &Name) -> String {
    let mut text = String::new();
    write_labels(&mut text, &[("disk", disk), ("datastore", datastore)]);
    text
}

/// The page while it is written. It has megabytes every few seconds, so nothing is formatted twice or for nothing.
struct Page {
    text: String,
    /// The text after a histogram's labels: each of [`BOUNDS`] in seconds, and `+Inf`.
    ends: [String; BOUNDS.len() + 1],
    /// The start of a histogram's lines: its name and labels.
    begin: String,
    /// Formats counts.
    digits: itoa::Buffer,
}

impl Page {
    /// An empty page with this capacity in bytes.
    fn with_room(bytes: usize) -> Page {
        let end = |le: &dyn Display| format!(",le=\"{le}\"}} ");
        Page {
            text: String::with_capacity(bytes),
            ends: std::array::from_fn(|nth| match BOUNDS.get(nth) {
                Some(bound) => end(&(float(*bound) / 1e9)),
                None => end(&"+Inf"),
            }),
            begin: String::new(),
            digits: itoa::Buffer::new(),
        }
    }

    /// Begins a family; the values that follow belong to it.
    fn family(&mut self, family: &Family) -> Section<'_> {
        let _ = writeln!(self.text, "# HELP {} {}", family.name, family.help);
        let _ = writeln!(self.text, "# TYPE {} {}", family.name, family.kind.word());
        Section {
            page: self,
            name: family.name,
        }
    }
}

/// The part of the page that belongs to one family.
struct Section<'a> {
    page: &'a mut Page,
    name: &'static str,
}

impl Section<'_> {
    fn value(&mut self, labels: &[(&str, &dyn Display)], value: impl Display) {
        let text = &mut self.page.text;
        text.push_str(self.name);
        if !labels.is_empty() {
            text.push('{');
            write_labels(text, labels);
            text.push('}');
        }
        let _ = writeln!(text, " {value}");
    }

    /// Writes a count with labels that are already formatted, in parts.
    fn count(&mut self, labels: &[&str], count: u64) {
        let Page { text, digits, .. } = &mut *self.page;
        text.push_str(self.name);
        text.push('{');
        text.extend(labels.iter().copied());
        text.push_str("} ");
        text.push_str(digits.format(count));
        text.push('\n');
    }

    /// The same for a value that is not a count.
    fn amount(&mut self, labels: &[&str], amount: f64) {
        // Most amounts are zero.
        if amount == 0.0 {
            return self.count(labels, 0);
        }
        let text = &mut self.page.text;
        text.push_str(self.name);
        text.push('{');
        text.extend(labels.iter().copied());
        let _ = writeln!(text, "}} {amount}");
    }

    /// A histogram of delays, whose sum is not known: it is that of the buckets' middles.
    fn delays(&mut self, labels: &str, delays: &DelayHistogram) {
        let count = delays.count();
        if count == 0 {
            return;
        }
        let Page {
            text, ends, digits, ..
        } = &mut *self.page;
        let counts = iothreads::up_to_bounds(delays).into_iter().chain([count]);
        for (end, count) in ends.iter().zip(counts) {
            for part in [
                self.name,
                "_bucket{",
                labels,
                end,
                digits.format(count),
                "\n",
            ] {
                text.push_str(part);
            }
        }
        let sum = float(delays.sum().as_nanos()) / 1e9;
        let _ = writeln!(text, "{}_sum{{{labels}}} {sum}", self.name);
        let _ = writeln!(text, "{}_count{{{labels}}} {count}", self.name);
    }

    fn histogram(&mut self, labels: &[&str], histogram: &Histogram) {
        let count = histogram.count();
        // An empty histogram is left out; there may be sixteen per disk. I/Os that fail in a filter never reach the
        // datastore.
        if count == 0 {
            return;
        }
        let Page {
            text,
            ends,
            begin,
            digits,
        } = &mut *self.page;
        begin.clear();
        begin.push_str(self.name);
        begin.push_str("_bucket{");
        begin.extend(labels.iter().copied());
        let counts = histogram.counts_up_to(BOUNDS.map(Span::from_nanos));
        for (end, count) in ends.iter().zip(counts.into_iter().chain([count])) {
            text.push_str(begin);
            text.push_str(end);
            text.push_str(digits.format(count));
            text.push('\n');
        }
        let sum = float(histogram.sum().as_nanos()) / 1e9;
        let whose = &begin[self.name.len() + "_bucket".len()..];
        let _ = writeln!(text, "{}_sum{whose}}} {sum}", self.name);
        let _ = writeln!(text, "{}_count{whose}}} {count}", self.name);
    }
}

/// Writes labels with their values, separated by commas.
fn write_labels(text: &mut String, labels: &[(&str, &dyn Display)]) {
    for (nth, (key, value)) in labels.iter().enumerate() {
        if nth > 0 {
            text.push(',');
        }
        text.push_str(key);
        text.push_str("=\"");
        let _ = write!(Escaped(text), "{value}");
        text.push('"');
    }
}

/// Escapes a label's value as the format requires.
struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, value: &str) -> std::fmt::Result {
        // Almost no value needs escaping.
        if !value.contains(['\\', '"', '\n']) {
            self.0.push_str(value);
            return Ok(());
        }
        for part in value.split_inclusive(['\\', '"', '\n']) {
            let plain = part.trim_end_matches(['\\', '"', '\n']);
            self.0.push_str(plain);
            match part[plain.len()..].chars().next() {
                Some('\n') => self.0.push_str("\\n"),
                Some(special) => self.0.extend(['\\', special]),
                None => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disks::counters::{ClientCounts, DiskCounters, MemberMoment, SnapshotCounts};
    use crate::host::Calls;
    use crate::observe::sample::ThreadMoment;
    use std::collections::BTreeMap;
    use tidegate_api::cache::CacheCounts;
    use tidegate_api::datastore::DatastoreSettings;
    use tidegate_api::disk::{RingCounts, UpstreamCounts};
    use tidegate_core::curve::Curve;
    use tidegate_core::governor::{Governor, Kind, Settings, Threshold};
    use tidegate_core::iocontrol::{DiskKey, Mode};
    use tidegate_core::request::DiskId;
    use tidegate_core::units::Time;
    use tidegate_engine::control::{Report, Trouble, Used};
    use tidegate_engine::counters::{DiskActivity, QueueActivity, ThreadActivity, Wakes};

    /// A datastore that was just taken into use, with one disk that has waited.
    fn control() -> ControlMoment {
        let governor = Governor::new(Settings {
            host: [1; 16],
            incarnation: 1,
            mode: Mode::On,
            threshold: Threshold::Fixed(Span::from_millis(5)),
            io_unit: 32 << 10,
            kind: Kind::Unknown,
            window_most: 256,
            learn: false,
        });
        let used = Used {
            disk: tidegate_core::request::DiskId(0),
            key: DiskKey(1),
            ios: 10,
            units: 12,
            cost: 512,
            bytes: 40_960,
            latency_ns: 0,
            held_ns: [0, 0, 1_500_000_000, 0, 0],
            burst_left: 300,
        };
        let mut known = governor.report();
        known.engaged = true;
        known.disks = vec![tidegate_core::governor::DiskReport {
            key: used.key,
            shares: 1_000,
            reservation: 0,
            limit: 0,
            window: 0,
            demand: 0,
            entitled: 750,
            units: 12,
            unmet: false,
        }];
        ControlMoment {
            datastore: "local".parse().unwrap(),
            report: Report {
                governor: known,
                slot: Some(1),
                trouble: Some(Trouble {
                    what: "gone".to_owned(),
                }),
                disks: vec![used],
            },
            names: BTreeMap::from([(used.disk, "a".parse().unwrap())]).into(),
        }
    }

    #[test]
    fn what_io_control_knows_is_on_the_page() {
        let page = page(&facts(), 0);
        for line in [
            "tidegate_datastore_control_engaged{datastore=\"local\"} 1",
            "tidegate_datastore_congestion_threshold_seconds{datastore=\"local\"} 0.005",
            "tidegate_datastore_latency_seconds{datastore=\"local\"} 0",
            "tidegate_datastore_window_ios{datastore=\"local\"} 256",
            "tidegate_datastore_hosts{datastore=\"local\"} 1",
            "tidegate_datastore_control_trouble{datastore=\"local\"} 1",
            "tidegate_disk_entitlement_iops{disk=\"a\",datastore=\"local\"} 750",
            "tidegate_disk_cost_total{disk=\"a\",datastore=\"local\"} 2",
            "tidegate_disk_units_total{disk=\"a\",datastore=\"local\"} 12",
            "tidegate_disk_held_seconds_total{disk=\"a\",datastore=\"local\",reason=\"limit\"} 1.5",
            "tidegate_disk_held_seconds_total{disk=\"a\",datastore=\"local\",reason=\"shares\"} 0",
            "tidegate_disk_burst_left_units{disk=\"a\",datastore=\"local\"} 300",
        ] {
            assert!(page.lines().any(|told| told == line), "{line}\n{page}");
        }
    }

    fn facts() -> Facts {
        let thread = ThreadMoment {
            thread: 0,
            state: tidegate_api::thread::ThreadState::Active,
            cpu: None,
            disks: vec!["a".parse().unwrap()],
            age_ns: 2_000_000_000,
            busy_ns: 500_000_000,
            polling_ns: 0,
            sleeping_ns: 1_500_000_000,
            run_delay_ns: 0,
            delays: Default::default(),
            requests: 0,
            turns: 7,
            wakes: 3,
            strays: 0,
        };
        let disk = DiskCounters {
            name: "a".parse().unwrap(),
            datastore: "local".parse().unwrap(),
            thread: 0,
            attached: Time::ZERO,
            now: Time::from_nanos(2_000_000_000),
            cache: None,
            stats: None,
            curve: Curve::empty(),
        };
        Facts {
            moment: Counters {
                at_ms: 0,
                disks: vec![disk],
                threads: vec![thread],
            },
            datastores: vec![Datastore {
                name: "local".parse().unwrap(),
                settings: DatastoreSettings::Null {},
                io_control: tidegate_api::iocontrol::IoControl::default(),
                control: None,
                disks: 1,
                attached: 1,
                capacity_bytes: None,
                free_bytes: Some(4096),
                read_only: false,
                problem: None,
            }],
            disks: vec![attached()],
            caches: vec![flash_cache()],
            pools: vec![pool()],
            controls: vec![control()],
            problems: 0,
            nbd_refused: 2,
            log_lines_lost: 3,
            certificates: vec![("nbd 0.0.0.0:10809".to_owned(), "/c.pem".to_owned(), -1.5)],
            uptime_s: 1.5,
            io_threads: io_threads(),
            active_threads: 1,
            policy: Some(tidegate_engine::monitor::Status::new(
                tidegate_engine::monitor::Settings {
                    policy: tidegate_core::monitor::Kind::Auto,
                    limits: tidegate_core::monitor::Limits { min: 1, max: 4 },
                },
            )),
        }
    }

    fn pool() -> Pool {
        Pool {
            name: "p".parse().unwrap(),
            uuid: String::new(),
            size_bytes: 640 << 20,
            used_bytes: 128 << 20,
            reserved_bytes: 64 << 20,
            available_bytes: 448 << 20,
            level: Default::default(),
            grant_bytes: 64 << 20,
            catalog_bytes: 4 << 20,
            catalog_used_bytes: 1 << 20,
            groups: vec![tidegate_api::pool::PoolGroup {
                group: 0,
                layout: Default::default(),
                tier: Default::default(),
                size_bytes: 640 << 20,
                used_bytes: 128 << 20,
                members: vec![tidegate_api::pool::PoolMember {
                    member: 0,
                    path: None,
                    size_bytes: 645 << 20,
                    is_current: true,
                    trouble: None,
                }],
            }],
            disks: 1,
            by_disk: Vec::new(),
            problem: None,
        }
    }

    fn io_threads() -> IoThreads {
        // As nanoseconds they have a digit at each place.
        let (busy, spinning) = (Span::from_nanos(500_000_001), Span::from_nanos(70));
        let sleeping = Span::from_nanos(98_765_432_101_234);
        let thread = ThreadActivity {
            age: busy + spinning + sleeping,
            busy,
            spinning,
            sleeping,
            turns: 7,
            run_delay: Span::from_millis(20),
            requests: 9,
            wakes: Wakes {
                kicks: 3,
                ..Wakes::default()
            },
            stalls: 1,
            longest_turn: Span::from_millis(4),
            moved_in: 2,
            ..ThreadActivity::default()
        };
        let queue = QueueActivity {
            calls: 11,
            kicks: 5,
            busy: Span::from_millis(250),
            ..QueueActivity::default()
        };
        let disk = DiskActivity {
            disk: DiskId(0),
            at: Time::ZERO,
            queues: vec![queue],
            connections: QueueActivity::default(),
        };
        IoThreads {
            threads: vec![thread],
            disks: vec![("a".parse().unwrap(), "local".parse().unwrap(), disk)],
            dense: true,
        }
    }

    fn attached() -> AttachedMoment {
        AttachedMoment {
            name: "a".parse().unwrap(),
            datastore: "local".parse().unwrap(),
            size_bytes: 512,
            allocated_bytes: None,
            snapshots: Some(SnapshotCounts {
                count: 2,
                oldest_s: Some(1_700_000_000),
            }),
            shares: 1_000,
            reservation_iops: 0,
            limit_iops: None,
            limit_bytes_per_s: None,
            clients: ClientCounts {
                nbd: 2,
                ..ClientCounts::default()
            },
            has_problem: true,
            rings: RingCounts {
                nonsense_total: 3,
                broken_total: 1,
            },
            calls: Calls {
                completions: 90,
                interrupts: 30,
            },
            upstream: Some(UpstreamCounts {
                lost_total: 7,
                violations_total: 2,
                silent_total: 1,
                returned_total: 6,
                refused_total: 40,
            }),
            members: vec![MemberMoment {
                member: 1,
                datastore: "far".parse().unwrap(),
                state: MemberState::Rebuilding,
                left_bytes: Some(4096),
            }],
            cache: Some((
                "fast".parse().unwrap(),
                CacheCounts {
                    dirty_bytes: 65_536,
                    unreadable_pages: 1,
                    dirty_age_s: Some(12.5),
                    hits_total: 7,
                    flash_journal_bytes_total: 512,
                    corrupt_blocks_total: 2,
                    ..CacheCounts::default()
                },
            )),
            pool: Some(tidegate_api::disk::DiskInPool {
                reserved_bytes: 0,
                granted_bytes: 128 << 20,
                mapped_bytes: Some(3 << 20),
                waiting: 2,
                refused: true,
                problem: None,
            }),
        }
    }

    #[test]
    fn a_pool_and_its_disks_are_on_the_page() {
        let page = page(&facts(), 0);
        for line in [
            "tidegate_pool_used_bytes{pool=\"p\"} 134217728",
            "tidegate_pool_group_bytes{pool=\"p\",group=\"0\",tier=\"slow\"} 671088640",
            "tidegate_pool_member_current{pool=\"p\",group=\"0\",member=\"0\"} 1",
            "tidegate_disk_pool_mapped_bytes{disk=\"a\",datastore=\"local\"} 3145728",
            "tidegate_disk_pool_refused{disk=\"a\",datastore=\"local\"} 1",
        ] {
            assert!(page.lines().any(|is| is == line), "{line} is not in {page}");
        }
    }

    #[test]
    fn snapshots_are_counted_with_the_time_of_the_oldest() {
        let page = page(&facts(), 0);
        let labels = "{disk=\"a\",datastore=\"local\"}";
        for line in [
            format!("tidegate_disk_snapshots{labels} 2"),
            format!("tidegate_disk_oldest_snapshot_timestamp_seconds{labels} 1700000000"),
        ] {
            assert!(page.lines().any(|told| told == line), "{line}\n{page}");
        }
    }

    #[test]
    fn each_members_state_and_rebuild_are_on_the_page() {
        let page = page(&facts(), 0);
        let labels = "disk=\"a\",datastore=\"far\",member=\"1\"";
        for line in [
            format!("tidegate_disk_member_state{{{labels},state=\"rebuilding\"}} 1"),
            format!("tidegate_disk_member_state{{{labels},state=\"in-sync\"}} 0"),
            format!("tidegate_disk_rebuild_bytes{{{labels}}} 4096"),
        ] {
            assert!(page.lines().any(|told| told == line), "{line}\n{page}");
        }
    }

    fn flash_cache() -> Cache {
        Cache {
            name: "fast".parse().unwrap(),
            uuid: String::new(),
            devices: Vec::new(),
            size_bytes: 4096,
            free_bytes: 512,
            chunk_bytes: 512,
            dirty_bytes: 0,
            unreadable_pages: 0,
            dirty_age_s: None,
            flash_written_bytes_total: 8192,
            flash_journal_bytes_total: 4096,
            corrupt_blocks_total: 3,
            budget_bytes_per_day: Some(1000),
            budget_left_bytes: Some(0),
            budget_is_spent: true,
            disks: Vec::new(),
            problem: None,
        }
    }

    #[test]
    fn the_write_budget_of_a_flash_cache_is_on_the_page() {
        let page = page(&facts(), 0);
        for line in [
            "tidegate_cache_free_bytes{cache=\"fast\"} 512",
            "tidegate_cache_budget_daily_bytes{cache=\"fast\"} 1000",
            "tidegate_cache_budget_left_bytes{cache=\"fast\"} 0",
            "tidegate_cache_budget_spent_state{cache=\"fast\"} 1",
            "tidegate_cache_written_bytes_total{cache=\"fast\"} 8192",
            "tidegate_cache_journal_bytes_total{cache=\"fast\"} 4096",
            "tidegate_cache_corrupt_blocks_total{cache=\"fast\"} 3",
        ] {
            assert!(page.lines().any(|told| told == line), "{line}\n{page}");
        }
    }

    #[test]
    fn a_disks_flash_cache_is_on_the_page() {
        let page = page(&facts(), 0);
        let labels = "disk=\"a\",datastore=\"local\",cache=\"fast\"";
        for line in [
            format!("tidegate_disk_cache_dirty_bytes{{{labels}}} 65536"),
            format!("tidegate_disk_cache_unreadable_bytes{{{labels}}} 65536"),
            format!("tidegate_disk_cache_dirty_age_seconds{{{labels}}} 12.5"),
            format!("tidegate_disk_cache_hits_total{{{labels}}} 7"),
            format!("tidegate_disk_cache_journal_bytes_total{{{labels}}} 512"),
            format!("tidegate_disk_cache_corrupt_blocks_total{{{labels}}} 2"),
        ] {
            assert!(page.lines().any(|told| told == line), "{line}\n{page}");
        }
        let unknown = format!("tidegate_disk_cache_time_to_clean_seconds{{{labels}}}");
        assert!(!page.contains(&unknown), "nothing was cleaned yet: {page}");
    }

    #[test]
    fn what_io_threads_did_is_on_the_page() {
        let page = page(&facts(), 0);
        for line in [
            "tidegate_iothread_busy_seconds_total{thread=\"0\"} 0.500000001",
            "tidegate_iothread_turns_total{thread=\"0\"} 7",
            "tidegate_iothread_wakeups_total{thread=\"0\"} 3",
            "tidegate_iothread_stolen_seconds_total{thread=\"0\"} 0.02",
            "tidegate_iothread_requests_total{thread=\"0\"} 9",
            "tidegate_iothread_wakeup_causes_total{thread=\"0\",cause=\"kick\"} 3",
            "tidegate_iothread_wakeup_causes_total{thread=\"0\",cause=\"timer\"} 0",
            "tidegate_iothread_stalls_total{thread=\"0\"} 1",
            "tidegate_iothread_longest_turn_seconds{thread=\"0\"} 0.004",
            "tidegate_iothread_moves_total{thread=\"0\",direction=\"in\"} 2",
            "tidegate_dense_mode_state 1",
            "tidegate_disk_calls_total{disk=\"a\",datastore=\"local\"} 11",
            "tidegate_disk_kicks_total{disk=\"a\",datastore=\"local\"} 5",
            "tidegate_disk_iothread_busy_seconds_total{disk=\"a\",datastore=\"local\"} 0.25",
        ] {
            assert!(page.lines().any(|told| told == line), "{line}\n{page}");
        }
    }

    /// Seconds as they are written, in nanoseconds.
    fn nanoseconds(text: &str) -> u64 {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        assert!(part.len() <= 9, "{text} is not exact");
        format!("{whole}{part:0<9}").parse().unwrap()
    }

    #[test]
    fn the_times_of_an_io_thread_are_of_one_reading_and_add_up_to_its_age() {
        let facts = facts();
        // What the report of the thread itself says is of another moment.
        assert_ne!(
            facts.moment.threads[0].age_ns,
            facts.io_threads.threads[0].age.as_nanos()
        );
        let page = page(&facts, 0);
        let value = |time: &str| {
            let begin = format!("tidegate_iothread_{time}seconds_total{{thread=\"0\"}} ");
            let mut lines = page.lines();
            nanoseconds(lines.find_map(|line| line.strip_prefix(&begin)).unwrap())
        };
        let sum = value("busy_") + value("polling_") + value("sleeping_");
        assert_eq!(sum, value(""));
        assert_eq!(sum, 500_000_001 + 70 + 98_765_432_101_234);
    }

    #[test]
    fn what_guests_and_upstreams_get_wrong_is_on_the_page() {
        let page = page(&facts(), 0);
        for line in [
            "tidegate_disk_problems{disk=\"a\",datastore=\"local\"} 1",
            "tidegate_disk_nonsense_requests_total{disk=\"a\",datastore=\"local\"} 3",
            "tidegate_disk_broken_queues_total{disk=\"a\",datastore=\"local\"} 1",
            "tidegate_disk_ring_completions_total{disk=\"a\",datastore=\"local\"} 90",
            "tidegate_disk_interrupts_total{disk=\"a\",datastore=\"local\"} 30",
            "tidegate_disk_upstream_losses_total{disk=\"a\",datastore=\"local\",cause=\"violation\"} 2",
            "tidegate_disk_upstream_losses_total{disk=\"a\",datastore=\"local\",cause=\"silence\"} 1",
            "tidegate_disk_upstream_losses_total{disk=\"a\",datastore=\"local\",cause=\"end\"} 4",
            "tidegate_disk_upstream_attempts_total{disk=\"a\",datastore=\"local\",outcome=\"returned\"} 6",
            "tidegate_disk_upstream_attempts_total{disk=\"a\",datastore=\"local\",outcome=\"refused\"} 40",
            "tidegate_disk_clients{disk=\"a\",datastore=\"local\",kind=\"nbd\"} 2",
            "tidegate_disk_clients{disk=\"a\",datastore=\"local\",kind=\"nbd-tls\"} 0",
            "tidegate_tls_certificate_left_days{listener=\"nbd 0.0.0.0:10809\",file=\"/c.pem\"} -1.5",
        ] {
            assert!(page.lines().any(|told| told == line), "{line}\n{page}");
        }
    }

    #[test]
    fn every_family_is_on_the_page_once_with_help_and_type() {
        let page = page(&facts(), 0);
        for family in FAMILIES {
            let help = format!("# HELP {} ", family.name);
            assert_eq!(page.matches(&help).count(), 1, "{}", family.name);
            let kind = format!("# TYPE {} {}\n", family.name, family.kind.word());
            assert_eq!(page.matches(&kind).count(), 1, "{}", family.name);
        }
        assert!(
            page.contains(
                "tidegate_datastore_free_bytes{datastore=\"local\",kind=\"null\"} 4096\n"
            )
        );
    }

    #[test]
    fn every_line_belongs_to_the_family_declared_last_and_says_its_labels() {
        let page = page(&facts(), 0);
        let labels: BTreeMap<_, _> = FAMILIES
            .iter()
            .map(|family| (family.name, family.labels))
            .collect();
        let mut current = "";
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                current = rest.split(' ').next().unwrap();
            } else if !line.starts_with('#') {
                assert!(line.starts_with(current), "{line}");
                for label in labels[current]
                    .split(", ")
                    .filter(|label| !label.is_empty())
                {
                    assert!(
                        line.contains(&format!("{label}=\"")),
                        "{line} has no {label}"
                    );
                }
                line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
            }
        }
    }

    #[test]
    fn a_histogram_is_cumulative_and_ends_in_all() {
        let mut histogram = Histogram::new();
        for ns in [5_000, 15_000, 3_000_000_000, 60_000_000_000] {
            histogram.record(Span::from_nanos(ns));
        }
        let mut page = Page::with_room(0);
        page.family(&DISK_DURATION)
            .histogram(&["disk=\"a\""], &histogram);
        let counts: Vec<u64> = page
            .text
            .lines()
            .filter(|line| line.contains("_bucket"))
            .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(counts.is_sorted());
        assert_eq!((counts[0], counts[1], counts[BOUNDS.len()]), (1, 2, 4));
        assert!(
            page.text.contains("_bucket{disk=\"a\",le=\"0.00001\"} 1\n"),
            "{}",
            page.text
        );
        assert!(page.text.contains("_count{disk=\"a\"} 4\n"));
    }

    #[test]
    fn a_histogram_without_a_sample_is_not_told() {
        let mut page = Page::with_room(0);
        let mut durations = page.family(&DISK_DURATION);
        durations.histogram(&["disk=\"a\""], &Histogram::new());
        assert!(page.text.lines().all(|line| line.starts_with('#')));
    }

    #[test]
    fn a_labels_value_cannot_break_its_line() {
        let mut text = String::new();
        write!(Escaped(&mut text), "a\"b\\c\nd\"\"").expect("a text takes what is written");
        assert_eq!(text, "a\\\"b\\\\c\\nd\\\"\\\"");
    }
}
