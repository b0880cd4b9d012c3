//! Redistribution: the unused share of a disk is available to all hosts.
//!
//! A host's window is the sum of its disks' parts. If a disk leaves some of its part unused, the other disks of its
//! host use it at once. Other hosts do not see that, so equal shares bring more on a host with an intermittent disk. If
//! disks of other hosts are constantly short, a disk that exceeds its part is limited to it. The unused part then
//! lowers the latency, and the window law gives it to all hosts.
//!
//! The governor sends the parts with its orders. A disk that on average uses no more than its part is not limited, so
//! its bursts pass. If no disk on another host is short, no disk is limited.
//!
//! # Units
//! In reference I/Os in flight; orders in 1/256 of one.

use super::disks::Disk;
use super::division::{Demand, Division};
use super::number::{left, whole};
use super::slot::Entry;
use super::{DiskKey, Governor};
use crate::units::Span;
use alloc::vec::Vec;

/// A disk that gets less than this part of its demand is short. A demand is a peak, so a little less is acceptable.
/// Origin: simulation (`sioc-4`, `vmmark-tiles`; decisions/0014).
const SHORT: f64 = 0.8;
/// The half-life of a shortage. Origin: simulation (`sioc-4`, `vmmark-tiles`; decisions/0014).
const HALF_LIFE: Span = Span::from_secs(4);
/// A shortage lasts if disks of other hosts are short for this part of the time. Origin: simulation (`sioc-4`,
/// `vmmark-tiles`; decisions/0014).
const ALWAYS: f64 = 0.95;
/// A disk that takes this much times its part is limited to it. Origin: simulation (`sioc-4`, `vmmark-tiles`;
/// decisions/0014).
const TOLERANCE: f64 = 1.1;
/// The I/O that a limited disk may have in flight beyond its part, because whole I/Os divide a window coarsely.
/// Origin: simulation (`sioc-4`, `vmmark-tiles`; decisions/0014).
const SLACK: f64 = 0.25;

/// Whether any of these disks gets less than it demands.
pub(super) fn is_any_short<'a>(
    division: &Division,
    mut disks: impl Iterator<Item = (&'a Entry, &'a Demand)>,
) -> bool {
    disks.any(|(disk, demand)| division.part(demand) < SHORT * disk.demand)
}

impl Governor {
    /// Updates, after a tick of the law, how long disks of other hosts have been short.
    pub(super) fn watch_shortage(&mut self, elapsed: Span) {
        let now = if self.others_lack { 1.0 } else { 0.0 };
        let decay = left(elapsed, HALF_LIFE);
        self.others_lacked = decay * self.others_lacked + (1.0 - decay) * now;
    }

    /// The limits of single disks. While a latency target makes the window narrower than the threshold would, no disk
    /// is limited: the free room is intended.
    pub(super) fn parts(&self) -> Vec<(DiskKey, u64)> {
        if self.alone || self.others_lacked < ALWAYS || self.target < self.base {
            return Vec::new();
        }
        // As with windows, parts are wider for I/Os with a longer residence time.
        let part = |disk: &Disk| self.stay * disk.part;
        let disks = self.disks.all.iter();
        let held = disks.filter(|disk| disk.part > 0.0 && disk.uses > TOLERANCE * part(disk));
        held.map(|disk| (disk.key, whole((part(disk) + SLACK) * 256.0)))
            .collect()
    }
}
