//! The state of a datastore's I/O control, as REST reports it.
//!
//! Pure: takes a report and this host's names of the disks, and returns the answer.

use crate::text::hex;
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

/// Internal cost units per reference I/O, in the engine's windows and rates.
const COST: f64 = 256.0;

/// The value of `theta` at which all reservations are met in full.
const THETA: f64 = 65_536.0;

/// The governor disengages after latency was below this part of the threshold for this time (`governor/steer.rs` in
/// core).
const LETS_GO_TENTHS: u64 = 6;
const LETS_GO_AFTER: &str = "10 s";

/// The control of a datastore as REST reports it. `names`: the disks that this host knows there.
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

/// The I/O control mode in the API's type.
pub(crate) fn mode(mode: Mode) -> IoControlMode {
    match mode {
        Mode::On => IoControlMode::On,
        Mode::Observe => IoControlMode::Observe,
        Mode::Off => IoControlMode::Off,
    }
}

/// The congestion threshold in the API's type.
pub(crate) fn threshold(threshold: Threshold) -> CongestionThreshold {
    match threshold {
        Threshold::Auto => CongestionThreshold::Auto,
        Threshold::Fixed(at) => CongestionThreshold::At(units::Span(at.as_nanos())),
        Threshold::Off => CongestionThreshold::Off,
    }
}

/// A disk's identity among hosts, as text.
pub(crate) fn key(key: DiskKey) -> String {
    format!("{:016x}", key.0)
}

/// The name that people use for a host, if the host publishes one.
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
        // A merged entry stands for several disks, but has the key of only one of them.
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

/// Explains why control is engaged or not.
fn why(known: &governor::Report) -> String {
    if known.mode == Mode::Off {
        return "I/O control is off: only limits apply".to_owned();
    }
    if known.common.threshold() == Threshold::Off && !known.alone {
        return "the congestion threshold is off: only limits apply".to_owned();
    }
    let mut says = vec![seen(known)];
    if known.engaged && !known.alone && known.latency < known.threshold {
        let low = Span::from_nanos(known.threshold.as_nanos() / 10 * LETS_GO_TENTHS);
        says.push(format!(
            "control disengages when latency has been below {} ms, and no host's window has delayed I/O, for \
             {LETS_GO_AFTER}",
            milli(low)
        ));
    }
    says.push(match known.mode {
        Mode::Observe => "no I/O is delayed, because control only observes".to_owned(),
        _ if known.alone => {
            "the other hosts' slots cannot be read, so this host controls only its own part"
                .to_owned()
        }
        _ if known.engaged => "shares and reservations apply".to_owned(),
        _ => "only limits delay I/O".to_owned(),
    });
    says.join("; ")
}

/// Compares the current latency with the threshold.
fn seen(known: &governor::Report) -> String {
    let latency = known.latency;
    if latency == Span::ZERO {
        return "no recent I/O was measured".to_owned();
    }
    let how = match known.common.threshold() {
        Threshold::Auto => "automatic".to_owned(),
        Threshold::Fixed(at) if at == known.threshold => "fixed".to_owned(),
        // The threshold is lowered while disks miss their latency targets.
        Threshold::Fixed(at) => format!("{} ms is set, and a latency target lowers it", milli(at)),
        Threshold::Off => return format!("the datastore's latency is {} ms", milli(latency)),
    };
    let side = match latency < known.threshold {
        true => "below",
        false => "at or above",
    };
    let but = match latency < known.threshold || known.engaged || known.alone {
        true => "",
        false => ", but not for long enough or not under enough load",
    };
    format!(
        "the datastore's latency is {} ms, {side} the threshold of {} ms ({how}){but}",
        milli(latency),
        milli(known.threshold)
    )
}

fn milli(span: Span) -> String {
    format!("{:.2}", micros(span) / 1e3)
}

/// Converts to microseconds.
#[expect(
    clippy::cast_precision_loss,
    reason = "spans are far below 2^53 ns, and this is for show"
)]
fn micros(span: Span) -> f64 {
    span.as_nanos() as f64 / 1e3
}

/// Converts to reference I/Os.
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
    use crate::config::plan::policy;
    use tidegate_api::datastore::DatastoreSettings;
    use tidegate_api::iocontrol::IoControl;
    use tidegate_core::governor::{DiskReport, Governor, HostReport, ToldDisk};

    fn known(io_control: &IoControl) -> governor::Report {
        let settings = policy::governor(&DatastoreSettings::Null {}, io_control, [1; 16], 7);
        Governor::new(settings).report()
    }

    fn told(
        mode: IoControlMode,
        threshold: &str,
        change: impl Fn(&mut governor::Report),
    ) -> String {
        let mut known = known(&IoControl {
            mode,
            congestion_threshold: threshold.parse().unwrap(),
            ..IoControl::default()
        });
        change(&mut known);
        why(&known)
    }

    fn at(latency_ms: u64, engaged: bool) -> impl Fn(&mut governor::Report) {
        move |known| {
            known.latency = Span::from_millis(latency_ms);
            known.engaged = engaged;
        }
    }

    const ON: IoControlMode = IoControlMode::On;

    #[test]
    fn while_nobody_is_held_back_it_is_said_how_far_latency_is_from_the_threshold() {
        assert_eq!(
            told(ON, "12ms", at(0, false)),
            "no recent I/O was measured; only limits delay I/O"
        );
        assert_eq!(
            told(ON, "12ms", at(3, false)),
            "the datastore's latency is 3.00 ms, below the threshold of 12.00 ms (fixed); \
             only limits delay I/O"
        );
        assert_eq!(
            told(ON, "12ms", at(20, false)),
            "the datastore's latency is 20.00 ms, at or above the threshold of 12.00 ms (fixed), \
             but not for long enough or not under enough load; only limits delay I/O"
        );
    }

    #[test]
    fn engaged_above_the_threshold_says_just_that() {
        for (latency_ms, seen) in [(60, "60.00"), (70, "70.00")] {
            assert_eq!(
                told(ON, "60ms", at(latency_ms, true)),
                format!(
                    "the datastore's latency is {seen} ms, at or above the threshold of 60.00 ms (fixed); \
                     shares and reservations apply"
                )
            );
        }
        let why = told(ON, "auto", at(1_000, true));
        assert!(why.contains("(automatic); shares"), "{why}");
    }

    #[test]
    fn engaged_below_the_threshold_says_what_it_waits_for() {
        let stays = "control disengages when latency has been below 36.00 ms, and no host's window has delayed I/O, \
                     for 10 s; shares and reservations apply";
        for (latency_ms, seen) in [(35, "35.00"), (59, "59.00")] {
            assert_eq!(
                told(ON, "60ms", at(latency_ms, true)),
                format!(
                    "the datastore's latency is {seen} ms, below the threshold of 60.00 ms (fixed); {stays}"
                )
            );
        }
        assert_eq!(
            told(ON, "60ms", at(0, true)),
            format!("no recent I/O was measured; {stays}")
        );
    }

    #[test]
    fn a_threshold_that_was_tightened_for_latency_targets_is_not_the_one_that_was_set() {
        let why = told(ON, "60ms", |known| {
            at(50, true)(known);
            known.threshold = Span::from_millis(40);
        });
        assert!(
            why.contains("at or above the threshold of 40.00 ms (60.00 ms is set"),
            "{why}"
        );
    }

    #[test]
    fn who_is_alone_goes_by_itself_whatever_was_engaged() {
        let keeps =
            "the other hosts' slots cannot be read, so this host controls only its own part";
        for (threshold, engaged, seen) in [
            ("60ms", true, ", below the threshold of 60.00 ms (fixed)"),
            ("60ms", false, ", below the threshold of 60.00 ms (fixed)"),
            (
                "20ms",
                false,
                ", at or above the threshold of 20.00 ms (fixed)",
            ),
            ("off", false, ""),
        ] {
            let why = told(ON, threshold, |known| {
                at(35, engaged)(known);
                known.alone = true;
            });
            let wanted = format!("the datastore's latency is 35.00 ms{seen}; {keeps}");
            assert_eq!(why, wanted);
        }
    }

    #[test]
    fn what_is_switched_off_or_only_observes_says_so() {
        assert_eq!(
            told(ON, "off", at(20, false)),
            "the congestion threshold is off: only limits apply"
        );
        assert_eq!(
            told(IoControlMode::Off, "12ms", at(20, false)),
            "I/O control is off: only limits apply"
        );
        let why = told(IoControlMode::Observe, "12ms", at(20, true));
        assert!(
            why.ends_with("; no I/O is delayed, because control only observes"),
            "{why}"
        );
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
