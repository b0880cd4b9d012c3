//! The governor's state, as `datastore show`, `explain` and the dashboard report it.

use super::division::{Demand, Division};
use super::name::Name;
use super::number::{nanos, span, whole};
use super::peers::lease;
use super::slot::{Common, Entry, Flags};
use super::{Governor, common};
use crate::iocontrol::{CostModel, DiskKey, Mode};
use crate::units::Span;
use alloc::vec::Vec;

/// A datastore as one host sees it. Windows and queues in 1/256 of a reference I/O, rates per second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The mode of control.
    pub mode: Mode,
    /// The common settings of all hosts.
    pub common: Common,
    /// Whether control is engaged.
    pub engaged: bool,
    /// The datastore's normalised latency over all hosts.
    pub latency: Span,
    /// The congestion threshold.
    pub threshold: Span,
    /// The window of all hosts together.
    pub cluster: u64,
    /// This host's part.
    pub window: u64,
    /// The I/O in flight of all hosts.
    pub in_flight: u64,
    /// The throughput of all hosts, cost a second.
    pub rate: u64,
    /// The highest observed throughput, cost a second; 0: not known.
    pub peak: u64,
    /// Whether the datastore and not only the load limits `peak`.
    pub saturated: bool,
    /// The fraction of the reservations that is met, in 1/65536.
    pub theta: u32,
    /// Whether there is load from outside the cluster.
    pub external: bool,
    /// Whether the other hosts' slots cannot be read.
    pub alone: bool,
    /// Whether the other hosts do not see this one.
    pub mute: bool,
    /// The costs of I/Os here.
    pub costs: CostModel,
    /// Foreign or torn slots seen so far.
    pub unreadable: u64,
    /// All hosts, this one first.
    pub hosts: Vec<HostReport>,
    /// All disks of this host.
    pub disks: Vec<DiskReport>,
}

/// One host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostReport {
    /// The host.
    pub host: [u8; 16],
    /// Its display name; empty if it has none.
    pub name: Name,
    /// The time since its last new record.
    pub age: Span,
    /// How long it may be silent before its part goes to the others. It depends on its announced interval.
    pub lease: Span,
    /// Whether it is suspect: its record is overdue.
    pub suspect: bool,
    /// Whether its control is engaged.
    pub engaged: bool,
    /// Its part, 1/256.
    pub window: u64,
    /// Its I/O in flight, 1/256.
    pub in_flight: u64,
    /// Its latency.
    pub latency: Span,
    /// Its throughput, cost a second.
    pub rate: u64,
    /// The number of disks that it reports.
    pub disks: usize,
    /// Those disks; this host's own are in [`Report::disks`].
    pub told: Vec<ToldDisk>,
}

/// One disk of another host, as that host reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldDisk {
    /// The disk.
    pub key: DiskKey,
    /// Its shares; the sum where disks were merged.
    pub shares: u32,
    /// Its reservation, units a second; 0: none.
    pub reservation: u32,
    /// Its limit, units a second; 0: none.
    pub limit: u32,
    /// Its demand, 1/256.
    pub demand: u64,
    /// Its part of the window, 1/256, by the common division; undefined while not engaged.
    pub window: u64,
    /// The throughput of its part in units a second at the current speed of the datastore, at most its limit; 0: not
    /// known.
    pub entitled: u64,
    /// Several disks of equal shares in one.
    pub merged: bool,
}

/// One disk of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskReport {
    /// The disk.
    pub key: DiskKey,
    /// Its shares.
    pub shares: u32,
    /// Its reservation, units a second; 0: none.
    pub reservation: u32,
    /// Its limit, units a second; 0: none.
    pub limit: u64,
    /// Its part of the window, 1/256; undefined while not engaged.
    pub window: u64,
    /// Its demand, 1/256.
    pub demand: u64,
    /// The throughput of its part in units a second at the current speed of the datastore, at most its limit; 0: not
    /// known.
    pub entitled: u64,
    /// Its recent throughput in units a second.
    pub units: u64,
    /// Whether its reservation was not met in the last second.
    pub unmet: bool,
}

impl Governor {
    /// The current state.
    pub fn report(&self) -> Report {
        let cost = |value: f64| whole(value * 256.0 + 0.5);
        let knee = self.curve.knee().unwrap_or_default();
        let own = HostReport {
            host: self.settings.host,
            name: self.name,
            age: Span::ZERO,
            lease: lease(self.pace.interval()),
            suspect: false,
            engaged: self.engaged,
            window: cost(self.part),
            in_flight: cost(self.meter.in_flight),
            latency: span(self.meter.latency),
            rate: cost(self.meter.rate),
            disks: self.disks.all.len(),
            told: Vec::new(),
        };
        let residence = self.residence();
        let demands = |entry: &Entry| {
            let limit = u64::from(entry.limit);
            let (demand, unit_cost) = (entry.demand, entry.unit_cost);
            Demand::new(
                entry.shares,
                entry.reservation,
                limit,
                demand,
                unit_cost,
                residence,
            )
        };
        let (here, elsewhere) = self.all_disks();
        let all: Vec<Demand> = here.iter().chain(&elsewhere).map(demands).collect();
        let division = Division::of(&all, self.cluster);
        let entitled = |part: f64, unit_cost: f64, limit: u64| {
            let brought = whole(part / residence * nanos(Span::from_secs(1)) / unit_cost);
            if limit == 0 {
                brought
            } else {
                brought.min(limit)
            }
        };
        let disk_report = |entry: &Entry| {
            let part = division.part(&demands(entry));
            ToldDisk {
                key: DiskKey(entry.key),
                shares: entry.shares,
                reservation: entry.reservation,
                limit: entry.limit,
                demand: cost(entry.demand),
                window: cost(part),
                entitled: entitled(part, entry.unit_cost, entry.limit.into()),
                merged: entry.merged,
            }
        };
        let others = self.peers.iter().map(|peer| HostReport {
            host: peer.record.host,
            name: peer.record.name,
            age: peer.age,
            lease: peer.lease(),
            suspect: !peer.live(),
            engaged: peer.record.flags.has(Flags::ENGAGED),
            window: cost(peer.record.window),
            in_flight: cost(peer.record.in_flight),
            latency: span(peer.record.latency),
            rate: cost(peer.record.rate),
            disks: peer.record.disks.len(),
            told: peer.record.disks.iter().map(disk_report).collect(),
        });
        let disks = self.disks.all.iter().map(|disk| DiskReport {
            key: disk.key,
            shares: disk.shares,
            reservation: disk.reservation,
            limit: disk.limit,
            window: cost(disk.part),
            demand: cost(disk.demand),
            entitled: entitled(disk.part, disk.unit_cost, disk.limit),
            units: whole(disk.units + 0.5),
            unmet: disk.unmet(),
        });
        Report {
            mode: common::mode(self.common.mode),
            common: self.common,
            engaged: self.engaged,
            latency: span(self.sight.latency),
            threshold: span(self.target),
            cluster: cost(self.cluster),
            window: cost(self.part),
            in_flight: cost(self.sight.in_flight),
            rate: cost(self.sight.rate),
            peak: cost(knee.peak),
            saturated: knee.saturated,
            theta: super::number::whole32(self.theta * 65_536.0),
            external: self.watch.on(),
            alone: self.alone,
            mute: self.mute,
            costs: common::costs(&self.settings.kind.costs(), &self.learner.factors()),
            unreadable: self.unreadable,
            hosts: core::iter::once(own).chain(others).collect(),
            disks: disks.collect(),
        }
    }
}
