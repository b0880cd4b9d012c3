//! A daemon's accounts of a datastore as plain values, and one disk's guest by them.
//!
//! Who asks a daemon fills them in; [`super::live`] makes a case of them.
//!
//! # Units
//! As the names say. Rates of hosts and demands count reference I/Os: random reads of 4 KiB.

use tidegate_core::iocontrol::CostModel;
use tidegate_core::request::Op;
use tidegate_core::units::Span;
use tidegate_sim::scenario::{Control, Io, Threshold, Workload};
pub use tidegate_sim::scenario::{Group, Settings};

use super::Did;
use crate::statistics::whole;

/// Other hosts' disks are modelled with I/Os of this size.
const REFERENCE: u64 = 4 << 10;

/// What a daemon says of a datastore under I/O control.
#[derive(Clone, Debug)]
pub struct Accounts {
    /// The datastore.
    pub datastore: String,
    /// How far control goes.
    pub mode: Control,
    /// Where it counts as congested, as of now.
    pub threshold: Threshold,
    /// Bytes of a unit of limits.
    pub io_unit: u32,
    /// Whether shares and reservations hold now.
    pub engaged: bool,
    /// Whether what it does is its most.
    pub saturated: bool,
    /// Whether there is load that no host of ours causes.
    pub external: bool,
    /// Its latency, as of a reference I/O.
    pub latency_us: f64,
    /// The most that it was seen to do, reference I/Os a second; 0 where that is not known.
    pub peak_per_s: f64,
    /// The hosts that use it.
    pub hosts: Vec<HostAccount>,
    /// Their disks.
    pub disks: Vec<DiskAccount>,
    /// Groups of disks of the host that was asked.
    pub groups: Vec<Group>,
}

/// A host.
#[derive(Clone, Debug)]
pub struct HostAccount {
    /// Its identity.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// It is the one that was asked.
    pub here: bool,
    /// What it gets through, reference I/Os a second.
    pub cost_per_s: f64,
}

/// A disk.
#[derive(Clone, Debug)]
pub struct DiskAccount {
    /// Its name.
    pub name: String,
    /// The identity of its host.
    pub host: String,
    /// What it is set to.
    pub settings: Settings,
    /// What it did; none where another host serves it.
    pub load: Option<LoadAccount>,
    /// What it asks for, reference I/Os: what its host reports to the others.
    pub demand: f64,
}

/// What a disk did in the last minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadAccount {
    /// How long this covers.
    pub covers_s: f64,
    /// I/Os a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// How many were outstanding, in the mean; 0 where that was not counted.
    pub outstanding: f64,
    /// How long an I/O took, in the mean.
    pub latency_us: f64,
    /// The part of them that were reads, 0 to 1, since the disk was attached.
    pub reads: f64,
    /// The part of them that went on where the one before ended, 0 to 1, since the disk was attached.
    pub sequential: f64,
    /// Its I/O thread had no time left.
    pub thread_full: bool,
}

impl DiskAccount {
    /// Whether its guest wants anything.
    pub(super) fn asks(&self) -> bool {
        match &self.load {
            Some(load) => load.iops > 0.0,
            None => self.demand >= 0.5,
        }
    }

    pub(super) fn did(&self) -> Option<Did> {
        let load = self.load?;
        Some(Did {
            iops: load.iops,
            latency_us: load.latency_us,
        })
    }

    pub(super) fn workload(&self) -> Workload {
        let Some(load) = self.load else {
            return Workload::Access {
                outstanding: places(self.demand.round().max(1.0)),
                io: Io {
                    size: REFERENCE,
                    reads: 100,
                    random: 100,
                    flush_every: 0,
                },
                think: Span::ZERO,
            };
        };
        // By Little's law, where it was not counted.
        let inside = match load.outstanding > 0.0 {
            true => load.outstanding,
            false => load.iops * load.latency_us / 1e6,
        };
        let actors = (inside - 0.01).ceil().max(1.0);
        // Those that are not outstanding pause: so many I/Os a second leave each of them so long.
        let think = (actors - inside).max(0.0) / load.iops * 1e9;
        Workload::Access {
            outstanding: places(actors),
            io: Io {
                size: load.size(),
                reads: percent(load.reads),
                random: percent(1.0 - load.sequential),
                flush_every: 0,
            },
            think: nanos(if think < 1e3 { 0.0 } else { think }),
        }
    }
}

impl LoadAccount {
    /// The mean size, in whole sectors.
    fn size(&self) -> u64 {
        let sectors = self.bytes_per_s / self.iops.max(1e-9) / 512.0;
        whole(sectors.round()).clamp(1, 65_536) * 512
    }

    /// What one of its I/Os costs, in reference I/Os.
    pub(super) fn cost(&self, model: &CostModel, sequential: f64) -> f64 {
        let of = |op: Op, sequential: bool| model.cost(op, self.size(), sequential).0 as f64;
        let mix = |sequential: bool| {
            self.reads * of(Op::Read, sequential) + (1.0 - self.reads) * of(Op::Write, sequential)
        };
        (sequential * mix(true) + (1.0 - sequential) * mix(false)) / 256.0
    }
}

fn percent(part: f64) -> u32 {
    places(part * 100.0).min(100)
}

fn places(number: f64) -> u32 {
    u32::try_from(whole(number)).unwrap_or(u32::MAX).min(65_536)
}

pub(super) fn nanos(ns: f64) -> Span {
    Span::from_nanos(whole(ns))
}
