//! The I/O control section of `datastore show`.
//!
//! # Units
//! Windows, demands and what is in flight count reference I/Os (a 4 KiB random read).

use tidegate_api::iocontrol::{
    DatastoreControl, DiskControl, HostControl, IoControl, IoControlMode,
};

use crate::{figures, table};

/// Digits of an identity that tell hosts apart at a glance; JSON has them all.
const DIGITS: usize = 8;

/// The settings, as labelled lines.
pub(super) fn settings(
    set: &IoControl,
    now: Option<&DatastoreControl>,
) -> Vec<(&'static str, String)> {
    let (mode, threshold, unit) = match now {
        Some(now) => (now.mode, now.congestion_threshold, now.io_unit_bytes),
        None => (set.mode, set.congestion_threshold, set.io_unit_bytes),
    };
    let mode = match mode {
        IoControlMode::On => "on",
        IoControlMode::Observe => "observe",
        IoControlMode::Off => "off",
    };
    let mut pairs = vec![
        ("I/O control", mode.to_owned()),
        ("threshold", threshold.to_string()),
        ("I/O unit", figures::bytes(unit.into())),
    ];
    if let Some(directory) = &set.coordination {
        pairs.push(("coordination", directory.display().to_string()));
    }
    pairs
}

/// The present state, as labelled lines.
pub(super) fn state(now: &DatastoreControl) -> Vec<(&'static str, String)> {
    let engaged = format!("{}: {}", figures::yes_no(now.engaged), now.why);
    let mut pairs = vec![
        ("engaged", engaged),
        ("latency", figures::micros(now.latency_us)),
        ("congested above", figures::micros(now.threshold_us)),
        (
            "window",
            format!(
                "{} for this host, {} for all hosts; {} in flight on all hosts",
                amount(now.window),
                amount(now.window_all),
                amount(now.in_flight)
            ),
        ),
        (
            "throughput",
            format!("{} a second on all hosts", amount(now.cost_per_s)),
        ),
    ];
    if now.peak_cost_per_s > 0.0 {
        let most = if now.saturated {
            "the datastore's maximum"
        } else {
            "the highest load so far"
        };
        let peak = amount(now.peak_cost_per_s);
        pairs.push(("highest seen", format!("{peak} a second: {most}")));
    }
    if now.reservations_met < 0.995 {
        let met = figures::percent(now.reservations_met);
        pairs.push(("reservations", format!("{met} of each is met")));
    }
    let remarks = [
        (
            now.external_load,
            "something other than these hosts loads the datastore",
        ),
        (
            now.alone,
            "this host cannot read the slots of the other hosts",
        ),
        (now.mute, "this host cannot write its slot"),
    ];
    for (_, remark) in remarks.into_iter().filter(|(so, _)| *so) {
        pairs.push(("note", remark.to_owned()));
    }
    if let Some(trouble) = &now.trouble {
        pairs.push(("trouble", trouble.clone()));
    }
    let slot = now
        .slot
        .map_or_else(|| "no slot".to_owned(), |slot| format!("slot {slot}"));
    pairs.push((
        "slot file",
        match &now.directory {
            Some(directory) => format!("{}/.tidegate/hosts.v1, {slot}", directory.display()),
            None => "none: this host decides by itself".to_owned(),
        },
    ));
    pairs
}

/// The tables of hosts and of disks.
pub(super) fn tables(now: &DatastoreControl) -> String {
    let hosts: Vec<_> = now.hosts.iter().map(host).collect();
    let head = [
        "HOST", "STATE", "SILENT", "WINDOW", "INFLIGHT", "LATENCY", "COST/S", "DISKS",
    ];
    let hosts = table::columns(&head, &hosts);
    let disks: Vec<_> = now
        .shares
        .iter()
        .map(|share| disk(share, &now.hosts))
        .collect();
    let head = [
        "DISK",
        "HOST",
        "SHARES",
        "RESERVATION",
        "LIMIT",
        "DEMAND",
        "WINDOW",
        "ENTITLED",
        "THROUGHPUT",
        "NOTE",
    ];
    format!("\n{hosts}\n{}", table::columns(&head, &disks))
}

fn host(host: &HostControl) -> Vec<String> {
    let state = match (host.here, host.suspect, host.engaged) {
        (_, true, _) => "suspect",
        (true, _, true) => "here, engaged",
        (true, _, false) => "here",
        (false, _, true) => "engaged",
        (false, _, false) => "ok",
    };
    vec![
        called(host),
        state.to_owned(),
        format!("{:.1}s", host.silent_s),
        amount(host.window),
        amount(host.in_flight),
        figures::micros(host.latency_us),
        amount(host.cost_per_s),
        host.disks.to_string(),
    ]
}

fn disk(disk: &DiskControl, hosts: &[HostControl]) -> Vec<String> {
    let name = match (&disk.disk, disk.merged) {
        (Some(name), _) => name.to_string(),
        (None, true) => "(several)".to_owned(),
        (None, false) => format!("key {}", short(&disk.key)),
    };
    let note = if disk.unmet {
        "reservation not met"
    } else {
        ""
    };
    let iops = |iops: u64| figures::count(figures::to_f64(iops));
    let host = hosts.iter().find(|host| host.host == disk.host);
    vec![
        name,
        host.map_or_else(|| short(&disk.host), called),
        disk.shares.to_string(),
        iops(disk.reservation_iops),
        disk.limit_iops.map_or_else(figures::dash, iops),
        amount(disk.demand),
        amount(disk.window),
        if disk.entitled_iops == 0 {
            figures::dash()
        } else {
            iops(disk.entitled_iops)
        },
        disk.got_iops.map_or_else(figures::dash, iops),
        note.to_owned(),
    ]
}

/// A host's name and the first digits of its identity, because names need not be unique.
fn called(host: &HostControl) -> String {
    match &host.name {
        Some(name) => format!("{name} ({})", short(&host.host)),
        None => short(&host.host),
    }
}

fn short(identity: &str) -> String {
    identity.chars().take(DIGITS).collect()
}

fn amount(references: f64) -> String {
    figures::count(references)
}
