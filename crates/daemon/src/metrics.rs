//! The page that Prometheus scrapes, and the list of what is on it.
//!
//! Every family is declared once, in [`FAMILIES`]: the page's `HELP` and `TYPE` lines and the reference manual come
//! from there. Values come from the same moment as statistics.
//!
//! # Always true
//! - Names begin with `tidegate_`, end in their base unit, and counters (and only they) in `_total`.
//! - A label's value is escaped; names cannot need it, versions and addresses might.
//!
//! # Source
//! Prometheus' text exposition format 0.0.4 and its page on naming.

use std::fmt::{Display, Write};

use tidegate_api::datastore::Datastore;
use tidegate_api::disk::{ClientKind, Disk};
use tidegate_core::filter::stats::{Class, Stage};
use tidegate_core::histogram::Histogram;
use tidegate_core::request::Op;
use tidegate_core::units::Span;

use crate::sample::{ControlMoment, float};
use crate::serve::Moment;

mod control;
mod families;

use families::*;
pub(crate) use families::{FAMILIES, Family};

/// Upper bounds of the latency buckets, in nanoseconds: 1, 2, 5 in each decade from what a cached read takes to when
/// guests give up.
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

/// What the page tells of.
pub(crate) struct Facts {
    pub(crate) moment: Moment,
    pub(crate) datastores: Vec<Datastore>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) controls: Vec<ControlMoment>,
    pub(crate) problems: usize,
    pub(crate) nbd_refused: u64,
    pub(crate) log_lines_lost: u64,
    pub(crate) uptime_s: f64,
}

/// The whole page.
pub(crate) fn page(facts: &Facts) -> String {
    let mut page = Page::default();
    daemon(&mut page, facts);
    datastores(&mut page, &facts.datastores);
    settings(&mut page, &facts.disks);
    control::families(&mut page, &facts.controls);
    disks(&mut page, &facts.moment);
    threads(&mut page, &facts.moment);
    page.text
}

fn daemon(page: &mut Page, facts: &Facts) {
    page.family(&BUILD_INFO)
        .value(&[("version", &env!("CARGO_PKG_VERSION"))], 1);
    page.family(&UPTIME).value(&[], facts.uptime_s);
    page.family(&PROBLEMS).value(&[], facts.problems);
    page.family(&NBD_REFUSED).value(&[], facts.nbd_refused);
    page.family(&LOG_LOST).value(&[], facts.log_lines_lost);
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
        Some(u64::from(d.problem.is_none()))
    });
    each(page, &DATASTORE_DISKS, |d| Some(d.disks));
    each(page, &DATASTORE_CAPACITY, |d| d.capacity_bytes);
    each(page, &DATASTORE_FREE, |d| d.free_bytes);
}

fn settings(page: &mut Page, disks: &[Disk]) {
    let each = |page: &mut Page, family: &Family, value: fn(&Disk) -> Option<u64>| {
        let mut page = page.family(family);
        for disk in disks.iter().filter(|disk| disk.attached) {
            if let Some(value) = value(disk) {
                page.value(
                    &[("disk", &disk.name), ("datastore", &disk.datastore)],
                    value,
                );
            }
        }
    };
    each(page, &DISK_SIZE, |d| Some(d.size_bytes));
    each(page, &DISK_ALLOCATED, |d| d.allocated_bytes);
    each(page, &DISK_SHARES, |d| Some(d.policy.shares.into()));
    each(page, &DISK_RESERVATION, |d| Some(d.policy.reservation_iops));
    each(page, &DISK_LIMIT, |d| d.policy.limit_iops);
    each(page, &DISK_LIMIT_BYTES, |d| d.policy.limit_bytes_per_s);
    // Every word of the third label with its count, for disks that have any.
    let each_word = |page: &mut Page,
                     family: &Family,
                     label: &str,
                     values: fn(&Disk) -> Vec<(&'static str, u64)>| {
        let mut page = page.family(family);
        for disk in disks.iter().filter(|disk| disk.attached) {
            for (word, value) in values(disk) {
                let labels: [(&str, &dyn Display); 3] = [
                    ("disk", &disk.name),
                    ("datastore", &disk.datastore),
                    (label, &word),
                ];
                page.value(&labels, value);
            }
        }
    };
    each_word(page, &DISK_CLIENTS, "kind", |disk| {
        let of = |kind| {
            let clients = disk.clients.iter();
            clients.filter(|client| client.kind == kind).count() as u64
        };
        vec![
            ("vhost-user", of(ClientKind::VhostUser)),
            ("nbd", of(ClientKind::Nbd)),
            ("nbd-tls", of(ClientKind::NbdTls)),
        ]
    });
    each(page, &DISK_PROBLEMS, |d| Some(d.problem.is_some().into()));
    each(page, &DISK_NONSENSE, |d| {
        d.rings.map(|rings| rings.nonsense_total)
    });
    each(page, &DISK_BROKEN, |d| {
        d.rings.map(|rings| rings.broken_total)
    });
    each_word(page, &UPSTREAM_LOST, "cause", |disk| {
        disk.upstream.map_or_else(Vec::new, |up| {
            // Read one after the other while they grow.
            let told = up.violations_total + up.silent_total;
            vec![
                ("violation", up.violations_total),
                ("silence", up.silent_total),
                ("end", up.lost_total.saturating_sub(told)),
            ]
        })
    });
    each_word(page, &UPSTREAM_ATTEMPTS, "outcome", |disk| {
        disk.upstream.map_or_else(Vec::new, |up| {
            vec![
                ("returned", up.returned_total),
                ("refused", up.refused_total),
            ]
        })
    });
}

fn disks(page: &mut Page, moment: &Moment) {
    let measured = || {
        moment
            .disks
            .iter()
            .filter_map(|disk| Some((disk, disk.stats.as_deref()?)))
    };
    let each_op = |page: &mut Page,
                   family: &Family,
                   value: fn(&tidegate_core::filter::stats::OpCounts) -> u64| {
        let mut page = page.family(family);
        for (disk, stats) in measured() {
            for op in Op::ALL {
                let labels: [(&str, &dyn Display); 3] = [
                    ("disk", &disk.name),
                    ("datastore", &disk.datastore),
                    ("op", &op_word(op)),
                ];
                page.value(&labels, value(stats.op(op)));
            }
        }
    };
    each_op(page, &DISK_OPS, |op| op.count);
    each_op(page, &DISK_BYTES, |op| op.bytes);
    each_op(page, &DISK_ERRORS, |op| op.errors);
    let mut inflight = page.family(&DISK_INFLIGHT);
    for (disk, stats) in measured() {
        inflight.value(
            &[("disk", &disk.name), ("datastore", &disk.datastore)],
            stats.outstanding,
        );
    }
    let mut durations = page.family(&DISK_DURATION);
    for (disk, stats) in measured() {
        for class in Class::ALL {
            for stage in Stage::ALL {
                let labels: [(&str, &dyn Display); 4] = [
                    ("disk", &disk.name),
                    ("datastore", &disk.datastore),
                    ("op", &class.name()),
                    ("stage", &stage.name()),
                ];
                durations.histogram(&labels, stats.latency(class, stage));
            }
        }
    }
}

fn threads(page: &mut Page, moment: &Moment) {
    let mut each = |family: &Family, value: fn(&crate::sample::ThreadMoment) -> f64| {
        let mut page = page.family(family);
        for thread in &moment.threads {
            page.value(&[("thread", &thread.thread)], value(thread));
        }
    };
    each(&THREAD_BUSY, |t| float(t.busy_ns) / 1e9);
    each(&THREAD_POLLING, |t| float(t.polling_ns) / 1e9);
    each(&THREAD_AGE, |t| float(t.age_ns) / 1e9);
    each(&THREAD_TURNS, |t| float(t.turns));
    each(&THREAD_WAKEUPS, |t| float(t.wakes));
    each(&THREAD_STRAYS, |t| float(t.strays));
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

/// The page while it is written. Megabytes every few seconds: nothing is made that is not on it, and nothing twice.
struct Page {
    text: String,
    /// [`BOUNDS`] in seconds, as they are written.
    bounds: [String; BOUNDS.len()],
    /// A histogram's labels.
    labels: String,
}

impl Default for Page {
    fn default() -> Page {
        Page {
            text: String::new(),
            bounds: BOUNDS.map(|bound| (float(bound) / 1e9).to_string()),
            labels: String::new(),
        }
    }
}

/// The part of the page that belongs to one family.
struct Section<'a> {
    page: &'a mut Page,
    name: &'static str,
}

impl Page {
    /// Begins a family; what is valued next belongs to it.
    fn family(&mut self, family: &Family) -> Section<'_> {
        let _ = writeln!(self.text, "# HELP {} {}", family.name, family.help);
        let _ = writeln!(self.text, "# TYPE {} {}", family.name, family.kind.word());
        Section {
            page: self,
            name: family.name,
        }
    }
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

    fn histogram(&mut self, labels: &[(&str, &dyn Display)], histogram: &Histogram) {
        let count = histogram.count();
        // One that is empty says nothing, sixteen times a disk.
        if count == 0 {
            return;
        }
        let Page {
            text,
            bounds,
            labels: written,
        } = &mut *self.page;
        written.clear();
        write_labels(written, labels);
        let counts = histogram.counts_up_to(BOUNDS.map(Span::from_nanos));
        let ends = bounds.iter().map(String::as_str).chain(["+Inf"]);
        for (le, count) in ends.zip(counts.into_iter().chain([count])) {
            let parts = [self.name, "_bucket{", written, ",le=\"", le, "\"} "];
            parts.iter().for_each(|part| text.push_str(part));
            let _ = writeln!(text, "{count}");
        }
        let sum = float(histogram.sum().as_nanos()) / 1e9;
        let _ = writeln!(text, "{}_sum{{{written}}} {sum}", self.name);
        let _ = writeln!(text, "{}_count{{{written}}} {count}", self.name);
    }
}

/// Labels with their values, separated by commas.
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

/// Writes a label's value as the format wants it.
struct Escaped<'a>(&'a mut String);

impl Write for Escaped<'_> {
    fn write_str(&mut self, value: &str) -> std::fmt::Result {
        // As good as all.
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
    use crate::sample::{DiskMoment, ThreadMoment};
    use std::collections::BTreeMap;
    use tidegate_api::datastore::DatastoreSettings;
    use tidegate_core::governor::{Governor, Kind, Settings, Threshold};
    use tidegate_core::iocontrol::{DiskKey, Mode};
    use tidegate_core::units::Time;
    use tidegate_engine::control::{Report, Trouble, Used};

    /// A datastore that has just come into use, with one disk on it that has waited.
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
            names: BTreeMap::from([(used.disk, "a".parse().unwrap())]),
        }
    }

    #[test]
    fn what_io_control_knows_is_on_the_page() {
        let page = page(&facts());
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
            cpu: None,
            disks: vec!["a".parse().unwrap()],
            age_ns: 2_000_000_000,
            busy_ns: 500_000_000,
            polling_ns: 0,
            requests: 0,
            turns: 7,
            wakes: 3,
            strays: 0,
        };
        let disk = DiskMoment {
            name: "a".parse().unwrap(),
            datastore: "local".parse().unwrap(),
            thread: 0,
            attached: Time::ZERO,
            now: Time::from_nanos(2_000_000_000),
            stats: None,
        };
        Facts {
            moment: Moment {
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
                problem: None,
            }],
            disks: vec![attached()],
            controls: vec![control()],
            problems: 0,
            nbd_refused: 2,
            log_lines_lost: 3,
            uptime_s: 1.5,
        }
    }

    fn attached() -> Disk {
        let disk = serde_json::json!({
            "name": "a", "datastore": "local", "uuid": "", "size_bytes": 512, "block_size_bytes": 512,
            "cache": "write-back", "read_only": false, "serial": "", "queues": 1, "filters": [],
            "policy": {}, "wanted": true, "attached": true, "clients": [],
            "problem": {"code": "datastore", "what": "disk a: its flushes fail"},
            "rings": {"nonsense_total": 3, "broken_total": 1},
            "upstream": {"lost_total": 7, "violations_total": 2, "silent_total": 1, "returned_total": 6,
                "refused_total": 40},
        });
        serde_json::from_value(disk).unwrap()
    }

    #[test]
    fn what_guests_and_upstreams_get_wrong_is_on_the_page() {
        let page = page(&facts());
        for line in [
            "tidegate_disk_problems{disk=\"a\",datastore=\"local\"} 1",
            "tidegate_disk_nonsense_requests_total{disk=\"a\",datastore=\"local\"} 3",
            "tidegate_disk_broken_queues_total{disk=\"a\",datastore=\"local\"} 1",
            "tidegate_disk_upstream_losses_total{disk=\"a\",datastore=\"local\",cause=\"violation\"} 2",
            "tidegate_disk_upstream_losses_total{disk=\"a\",datastore=\"local\",cause=\"silence\"} 1",
            "tidegate_disk_upstream_losses_total{disk=\"a\",datastore=\"local\",cause=\"end\"} 4",
            "tidegate_disk_upstream_attempts_total{disk=\"a\",datastore=\"local\",outcome=\"returned\"} 6",
            "tidegate_disk_upstream_attempts_total{disk=\"a\",datastore=\"local\",outcome=\"refused\"} 40",
            "tidegate_disk_clients{disk=\"a\",datastore=\"local\",kind=\"nbd\"} 0",
        ] {
            assert!(page.lines().any(|told| told == line), "{line}\n{page}");
        }
    }

    #[test]
    fn every_family_is_on_the_page_once_with_help_and_type() {
        let page = page(&facts());
        for family in FAMILIES {
            let help = format!("# HELP {} ", family.name);
            assert_eq!(page.matches(&help).count(), 1, "{}", family.name);
            let kind = format!("# TYPE {} {}\n", family.name, family.kind.word());
            assert_eq!(page.matches(&kind).count(), 1, "{}", family.name);
        }
        assert!(
            page.contains("tidegate_iothread_busy_seconds_total{thread=\"0\"} 0.5\n"),
            "{page}"
        );
        assert!(
            page.contains(
                "tidegate_datastore_free_bytes{datastore=\"local\",kind=\"null\"} 4096\n"
            )
        );
    }

    #[test]
    fn every_line_belongs_to_the_family_declared_last_and_says_its_labels() {
        let page = page(&facts());
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
        let mut page = Page::default();
        page.family(&DISK_DURATION)
            .histogram(&[("disk", &"a")], &histogram);
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
    fn a_labels_value_cannot_break_its_line() {
        let mut text = String::new();
        write!(Escaped(&mut text), "a\"b\\c\nd\"\"").expect("a text takes what is written");
        assert_eq!(text, "a\\\"b\\\\c\\nd\\\"\\\"");
    }
}
