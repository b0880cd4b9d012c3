//! What the engine knows of a datastore's control, in the words of the outside.
//!
//! Pure: a report, and what this host calls the disks, go in; the answer comes out.

use std::collections::BTreeMap;

use tidegate_api::iocontrol::{
    CongestionThreshold, DatastoreControl, DiskControl, HostControl, IoControlMode,
};
use tidegate_api::name::Name;
use tidegate_api::units;
use tidegate_core::governor::{self, Threshold};
use tidegate_core::iocontrol::{DiskKey, Mode};
use tidegate_core::units::Span;
use tidegate_engine::control::Report;

use super::Running;

/// Parts of a reference I/O in the engine's windows and rates.
const COST: f64 = 256.0;

/// Whole of the part of the reservations that is met.
const THETA: f64 = 65_536.0;

/// The control of a datastore as it is told. `names`: the disks that this host knows there.
pub(crate) fn tell(
    running: &Running,
    report: &Report,
    names: &BTreeMap<DiskKey, Name>,
) -> DatastoreControl {
    let known = &report.governor;
    let mut shares: Vec<DiskControl> = disks_here(known, names);
    for host in known.hosts.iter().skip(1) {
        shares.extend(disks_there(host, names));
    }
    shares.sort_by(|a, b| (&a.disk, &a.key, &a.host).cmp(&(&b.disk, &b.key, &b.host)));
    DatastoreControl {
        mode: mode(known.mode),
        congestion_threshold: threshold(known.common.threshold()),
        io_unit_bytes: known.common.io_unit,
        engaged: known.engaged,
        why: why(known),
        latency_us: micros(known.latency),
        threshold_us: micros(known.threshold),
        window_all: cost(known.cluster),
        window: cost(known.window),
        in_flight: cost(known.in_flight),
        cost_per_s: cost(known.rate),
        peak_cost_per_s: cost(known.peak),
        saturated: known.saturated,
        reservations_met: f64::from(known.theta) / THETA,
        external_load: known.external,
        alone: known.alone,
        mute: known.mute,
        unreadable_slots_total: known.unreadable,
        directory: running.directory().map(Into::into),
        slot: report.slot,
        trouble: report
            .trouble
            .as_ref()
            .map(|trouble| trouble.what.to_owned()),
        hosts: hosts(known),
        shares,
    }
}

/// How far control goes, as it is written.
pub(crate) fn mode(mode: Mode) -> IoControlMode {
    match mode {
        Mode::On => IoControlMode::On,
        Mode::Observe => IoControlMode::Observe,
        Mode::Off => IoControlMode::Off,
    }
}

/// Where it engages, as it is written.
pub(crate) fn threshold(threshold: Threshold) -> CongestionThreshold {
    match threshold {
        Threshold::Auto => CongestionThreshold::Auto,
        Threshold::Fixed(at) => CongestionThreshold::At(units::Span(at.as_nanos())),
        Threshold::Off => CongestionThreshold::Off,
    }
}

/// A host's or a run's identity as it is written.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A disk's identity among hosts, as it is written.
pub(crate) fn key(key: DiskKey) -> String {
    format!("{:016x}", key.0)
}

/// What people call a host, if it says so.
pub(crate) fn host_name(host: &governor::HostReport) -> Option<String> {
    let name: String = host.name.chars().collect();
    (!name.is_empty()).then_some(name)
}

fn hosts(known: &governor::Report) -> Vec<HostControl> {
    let tell = |(nth, host): (usize, &governor::HostReport)| HostControl {
        host: hex(&host.host),
        name: host_name(host),
        here: nth == 0,
        silent_s: micros(host.age) / 1e6,
        lease_s: micros(host.lease) / 1e6,
        suspect: host.suspect,
        engaged: host.engaged,
        window: cost(host.window),
        in_flight: cost(host.in_flight),
        latency_us: micros(host.latency),
        cost_per_s: cost(host.rate),
        disks: host.disks as u64,
    };
    known.hosts.iter().enumerate().map(tell).collect()
}

fn disks_here(known: &governor::Report, names: &BTreeMap<DiskKey, Name>) -> Vec<DiskControl> {
    let here = known.hosts.first().map(|host| hex(&host.host));
    let tell = |disk: &governor::DiskReport| DiskControl {
        disk: names.get(&disk.key).cloned(),
        key: key(disk.key),
        host: here.clone().unwrap_or_default(),
        shares: disk.shares,
        reservation_iops: disk.reservation.into(),
        limit_iops: (disk.limit > 0).then_some(disk.limit),
        demand: cost(disk.demand),
        window: cost(disk.window),
        entitled_iops: disk.entitled,
        got_iops: Some(disk.units),
        unmet: disk.unmet,
        merged: false,
    };
    known.disks.iter().map(tell).collect()
}

fn disks_there<'a>(
    host: &'a governor::HostReport,
    names: &'a BTreeMap<DiskKey, Name>,
) -> impl Iterator<Item = DiskControl> + 'a {
    host.told.iter().map(|disk| DiskControl {
        // Several disks in one have the identity of one of them.
        disk: names.get(&disk.key).filter(|_| !disk.merged).cloned(),
        key: key(disk.key),
        host: hex(&host.host),
        shares: disk.shares,
        reservation_iops: disk.reservation.into(),
        limit_iops: (disk.limit > 0).then_some(disk.limit.into()),
        demand: cost(disk.demand),
        window: cost(disk.window),
        entitled_iops: disk.entitled,
        got_iops: None,
        unmet: false,
        merged: disk.merged,
    })
}

/// Why control is engaged, or is not.
fn why(known: &governor::Report) -> String {
    let (latency, threshold) = (milli(known.latency), milli(known.threshold));
    let seen = match known.latency {
        Span::ZERO => "no I/O was measured yet".to_owned(),
        _ => format!("the datastore's latency is {latency} ms"),
    };
    let auto = match known.common.threshold() {
        Threshold::Auto => "found while serving",
        _ => "as it was set",
    };
    if known.mode == Mode::Off {
        return "I/O control is off: only limits hold".to_owned();
    }
    if known.common.threshold() == Threshold::Off && !known.alone {
        return "the congestion threshold is off: only limits hold".to_owned();
    }
    let held = match known.mode {
        Mode::Observe => "nobody is held back, since control only observes",
        _ if known.alone => "the other hosts cannot be heard, so this one keeps to its own part",
        _ if known.engaged => "shares and reservations hold",
        _ => "nobody is held back but by limits",
    };
    let state = if known.engaged {
        "at or was above"
    } else {
        "below"
    };
    match (known.engaged, known.latency) {
        (false, Span::ZERO) => format!("{seen}; {held}"),
        (false, now) if now > known.threshold => format!(
            "{seen}, above the threshold of {threshold} ms ({auto}), but not for long enough or not under enough load; {held}"
        ),
        _ => format!("{seen}, {state} the threshold of {threshold} ms ({auto}); {held}"),
    }
}

fn milli(span: Span) -> String {
    format!("{:.2}", micros(span) / 1e3)
}

/// In microseconds.
#[expect(
    clippy::cast_precision_loss,
    reason = "spans are far below 2^53 ns, and this is for show"
)]
fn micros(span: Span) -> f64 {
    span.as_nanos() as f64 / 1e3
}

/// In reference I/Os.
#[expect(
    clippy::cast_precision_loss,
    reason = "exact up to 2^53, which no datastore reaches"
)]
fn cost(cost: u64) -> f64 {
    cost as f64 / COST
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::policy;
    use tidegate_api::datastore::DatastoreSettings;
    use tidegate_api::iocontrol::IoControl;
    use tidegate_core::governor::{DiskReport, Governor, HostReport, ToldDisk};

    fn known(io_control: &IoControl) -> governor::Report {
        let settings = policy::governor(&DatastoreSettings::Null {}, io_control, [1; 16], 7);
        Governor::new(settings).report()
    }

    #[test]
    fn why_control_is_engaged_or_not_is_a_sentence_with_its_numbers() {
        let set = |mode, threshold: &str| IoControl {
            mode,
            congestion_threshold: threshold.parse().unwrap(),
            ..IoControl::default()
        };
        let (on, off) = (IoControlMode::On, IoControlMode::Off);
        let observe = IoControlMode::Observe;
        for (io_control, latency_us, engaged, says) in [
            (set(on, "12ms"), 0, false, "no I/O was measured yet"),
            (
                set(on, "12ms"),
                3_000,
                false,
                "3.00 ms, below the threshold of 12.00 ms (as it was set)",
            ),
            (set(on, "12ms"), 20_000, false, "not for long enough"),
            (
                set(on, "12ms"),
                20_000,
                true,
                "shares and reservations hold",
            ),
            (set(on, "auto"), 20_000, true, "found while serving"),
            (
                set(on, "off"),
                20_000,
                false,
                "the congestion threshold is off",
            ),
            (set(observe, "12ms"), 20_000, true, "only observes"),
            (set(off, "12ms"), 20_000, false, "I/O control is off"),
        ] {
            let mut known = known(&io_control);
            known.latency = Span::from_micros(latency_us);
            known.engaged = engaged;
            let why = why(&known);
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn disks_are_told_by_their_names_of_all_hosts() {
        let mut known = known(&IoControl::default());
        known.disks = vec![DiskReport {
            key: DiskKey(1),
            shares: 500,
            reservation: 0,
            limit: 200,
            window: 512,
            demand: 256,
            entitled: 100,
            units: 90,
            unmet: true,
        }];
        let told = |key, merged| ToldDisk {
            key: DiskKey(key),
            shares: 2_000,
            reservation: 50,
            limit: 0,
            demand: 1_024,
            window: 1_024,
            entitled: 400,
            merged,
        };
        known.hosts.push(HostReport {
            host: [2; 16],
            told: vec![told(2, false), told(3, true)],
            ..known.hosts[0].clone()
        });
        let names = [(1, "a"), (2, "b"), (3, "c")];
        let names = names.map(|(key, name)| (DiskKey(key), name.parse().unwrap()));
        let names = BTreeMap::from(names);
        let here = disks_here(&known, &names);
        let [here] = here.as_slice() else {
            panic!("one disk is here")
        };
        assert_eq!(here.disk, Some("a".parse().unwrap()));
        assert_eq!(here.host, "01".repeat(16));
        assert_eq!((here.limit_iops, here.got_iops), (Some(200), Some(90)));
        assert!((here.window - 2.0).abs() < 1e-9 && here.unmet);
        let there: Vec<_> = disks_there(&known.hosts[1], &names).collect();
        assert_eq!(there[0].disk, Some("b".parse().unwrap()));
        assert_eq!((there[0].limit_iops, there[0].got_iops), (None, None));
        assert_eq!((&there[1].disk, there[1].merged), (&None, true));
        assert_eq!(key(DiskKey(0xab)), "00000000000000ab");
    }
}
