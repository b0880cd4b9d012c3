//! The metrics of I/O control: the state of each datastore's governor, and the usage and waits of each disk.
//!
//! A datastore and its disks are on the page while the datastore is in use on this host.

use std::collections::BTreeMap;

use tidegate_api::explain::HoldReason;
use tidegate_core::governor::{DiskReport, Threshold};
use tidegate_engine::control::{Report, Used};

use super::families::*;
use super::{Family, Page, whose};
use crate::observe::sample::ControlMoment;
use crate::text::float;

/// Internal cost units per reference I/O, in windows and costs.
const COST: f64 = 256.0;

pub(super) fn families(page: &mut Page, controls: &[ControlMoment]) {
    let mut each = |family: &Family, value: fn(&Report) -> Option<f64>| {
        let mut page = page.family(family);
        for control in controls {
            if let Some(value) = value(&control.report) {
                page.value(&[("datastore", &control.datastore)], value);
            }
        }
    };
    each(&DATASTORE_ENGAGED, |r| Some(flag(r.governor.engaged)));
    each(&DATASTORE_THRESHOLD, |r| {
        let has = r.governor.common.threshold() != Threshold::Off;
        has.then(|| float(r.governor.threshold.as_nanos()) / 1e9)
    });
    each(&DATASTORE_LATENCY, |r| {
        Some(float(r.governor.latency.as_nanos()) / 1e9)
    });
    each(&DATASTORE_WINDOW, |r| Some(float(r.governor.window) / COST));
    each(&DATASTORE_HOSTS, |r| {
        let live = r.governor.hosts.iter().filter(|host| !host.suspect);
        Some(float(live.count() as u64))
    });
    each(&DATASTORE_TROUBLE, |r| Some(flag(r.trouble.is_some())));
    let disks: Vec<OfDisk<'_>> = controls.iter().flat_map(of_disks).collect();
    each_disk(page, &disks, &DISK_ENTITLEMENT, |of| {
        let entitled = of.known.filter(|_| of.report.governor.engaged)?.entitled;
        Some(float(entitled))
    });
    each_disk(page, &disks, &DISK_COST, |of| {
        Some(float(of.used.cost) / COST)
    });
    each_disk(page, &disks, &DISK_UNITS, |of| Some(float(of.used.units)));
    held(page, &disks);
    each_disk(page, &disks, &DISK_BURST, |of| {
        Some(float(of.used.burst_left))
    });
}

/// One disk under control.
struct OfDisk<'a> {
    /// Its labels.
    whose: String,
    /// The report of its datastore.
    report: &'a Report,
    used: &'a Used,
    /// The governor's report of it; `None` if the governor does not know the disk yet.
    known: Option<&'a DiskReport>,
}

/// The disks of a datastore, looked up in a map because there may be hundreds.
fn of_disks(control: &ControlMoment) -> impl Iterator<Item = OfDisk<'_>> {
    let known = control.report.governor.disks.iter();
    let known: BTreeMap<_, _> = known.map(|disk| (disk.key, disk)).collect();
    control.disks().map(move |(name, used)| OfDisk {
        whose: whose(name, &control.datastore),
        report: &control.report,
        used,
        known: known.get(&used.key).copied(),
    })
}

fn each_disk(
    page: &mut Page,
    disks: &[OfDisk<'_>],
    family: &Family,
    value: fn(&OfDisk<'_>) -> Option<f64>,
) {
    let mut page = page.family(family);
    for of in disks {
        if let Some(value) = value(of) {
            page.amount(&[&of.whose], value);
        }
    }
}

fn held(page: &mut Page, disks: &[OfDisk<'_>]) {
    let mut page = page.family(&DISK_HELD);
    for of in disks {
        for (reason, ns) in HoldReason::ALL.into_iter().zip(of.used.held_ns) {
            let labels = [&of.whose, ",reason=\"", reason.name(), "\""];
            page.amount(&labels, float(ns) / 1e9);
        }
    }
}

fn flag(on: bool) -> f64 {
    f64::from(u8::from(on))
}
