//! The families of I/O control: what each datastore's governor knows, and what each disk used and waited for.
//!
//! A datastore is on the page while it is in use on this host; so are its disks.

use tidegate_api::explain::HoldReason;
use tidegate_core::governor::{DiskReport, Threshold};
use tidegate_engine::control::{Report, Used};

use super::families::*;
use super::{Family, Page};
use crate::sample::{ControlMoment, float};

/// Parts of a reference I/O in windows and costs.
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
    each_disk(page, controls, &DISK_ENTITLEMENT, |report, _, disk| {
        let entitled = disk.filter(|_| report.governor.engaged)?.entitled;
        Some(float(entitled))
    });
    each_disk(page, controls, &DISK_COST, |_, used, _| {
        Some(float(used.cost) / COST)
    });
    each_disk(page, controls, &DISK_UNITS, |_, used, _| {
        Some(float(used.units))
    });
    held(page, controls);
    each_disk(page, controls, &DISK_BURST, |_, used, _| {
        Some(float(used.burst_left))
    });
}

/// What a disk used, what its governor knows of it, and the datastore's whole report.
type OfDisk = fn(&Report, &Used, Option<&DiskReport>) -> Option<f64>;

fn each_disk(page: &mut Page, controls: &[ControlMoment], family: &Family, value: OfDisk) {
    let mut page = page.family(family);
    for control in controls {
        for (name, used) in control.disks() {
            let mut known = control.report.governor.disks.iter();
            let known = known.find(|disk| disk.key == used.key);
            if let Some(value) = value(&control.report, used, known) {
                page.value(&[("disk", name), ("datastore", &control.datastore)], value);
            }
        }
    }
}

fn held(page: &mut Page, controls: &[ControlMoment]) {
    let mut page = page.family(&DISK_HELD);
    for control in controls {
        for (name, used) in control.disks() {
            for (reason, ns) in HoldReason::ALL.into_iter().zip(used.held_ns) {
                let labels: [(&str, &dyn std::fmt::Display); 3] = [
                    ("disk", name),
                    ("datastore", &control.datastore),
                    ("reason", &reason.name()),
                ];
                page.value(&labels, float(ns) / 1e9);
            }
        }
    }
}

fn flag(on: bool) -> f64 {
    f64::from(u8::from(on))
}
