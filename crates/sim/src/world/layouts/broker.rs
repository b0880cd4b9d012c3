//! The broker of each host's flash: it gives cached disks larger or smaller parts, as the daemon does.
//!
//! # Always true
//! - the parts of a host's disks are together at most the flash that they had at the beginning of the phase

use super::{Event, World};
use crate::control::ours::id;
use tidegate_core::curve::Trust;
use tidegate_core::layout::LayoutOrder;
use tidegate_core::layout::cache::broker::{Disk, decide, in_chunks};
use tidegate_core::shard;

/// Bytes of a chunk of a flash device.
pub(super) const CHUNK: u64 = 1 << 20;

/// The least part of a disk, in chunks.
const LEAST: u32 = 2;

/// A disk's part of the flash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Chunks of its journal, and of its pages.
    pub(super) journal: u32,
    pub(super) chunks: u32,
    /// Whether it gives some back.
    pub(super) shrinks: bool,
    /// Its accesses until the last turn.
    pub(super) accesses: u64,
    /// Its chunks in the plan that holds.
    pub(super) planned: Option<u32>,
}

impl World<'_> {
    /// Gives the disks of each host other parts, and comes again.
    pub(super) fn broker_turn(&mut self) {
        let interval = self.cache().and_then(|cache| cache.broker);
        let Some(interval) = interval else { return };
        self.queue.put(self.now + interval, Event::Broker);
        if self.after.is_some() || self.reattaches {
            return;
        }
        for host in 0..self.scenario.hosts.len() {
            self.divide(host);
        }
        self.drain();
    }

    fn divide(&mut self, host: usize) {
        let disks: Vec<usize> = (0..self.disks.len())
            .filter(|disk| self.scenario.disks[*disk].host == host)
            .filter(|disk| self.disks[*disk].opened && self.disks[*disk].part.is_some())
            .collect();
        let known: Vec<Disk> = disks.iter().map(|disk| self.seen(*disk)).collect();
        let whole = self.hosts[host].flash_chunks;
        let decision = decide(whole, &known);
        let has: u32 = known.iter().map(|disk| disk.now).sum();
        let mut free = whole.saturating_sub(has);
        let next = decision.step.iter().zip(&decision.targets);
        for (disk, (chunks, target)) in disks.into_iter().zip(next) {
            let Some(part) = &mut self.disks[disk].part else {
                continue;
            };
            part.planned = Some(target.chunks);
            if part.shrinks {
                continue;
            }
            let order = if *chunks < part.chunks {
                part.shrinks = true;
                let count = part.chunks - chunks;
                LayoutOrder::ShrinkCache { count }
            } else {
                let count = (chunks - part.chunks).min(free);
                if count == 0 {
                    continue;
                }
                free -= count;
                let first = part.journal + part.chunks;
                part.chunks += count;
                LayoutOrder::GrowCache { first, count }
            };
            let disk_id = id(disk);
            let order = shard::Event::LayoutOrder {
                disk: disk_id,
                order,
            };
            self.deliver(disk, order);
        }
    }

    /// What the broker knows of a disk.
    fn seen(&mut self, disk: usize) -> Disk {
        let plan = &self.scenario.disks[disk];
        let shard = &self.hosts[plan.host].threads[plan.thread].shard;
        let curve = shard.curves(id(disk)).map(|[all, ..]| all);
        let accesses = curve.as_ref().map_or(0, |curve| curve.accesses);
        let trusted = curve.filter(|curve| curve.trust == Trust::Enough);
        let whole = self.hosts[plan.host].flash_chunks;
        let part = self.disks[disk].part.as_mut().expect("it has one");
        let since = accesses.saturating_sub(part.accesses);
        part.accesses = accesses;
        Disk {
            curve: trusted.map(|curve| in_chunks(&curve.points, CHUNK)),
            accesses: since,
            shares: 1000,
            min: LEAST,
            max: whole,
            now: part.chunks,
            planned: part.planned,
        }
    }

    /// A disk has given chunks back.
    pub(super) fn shrunk(&mut self, disk: usize, chunks: u32) {
        if let Some(part) = &mut self.disks[disk].part {
            part.chunks -= chunks;
            part.shrinks = false;
        }
    }
}
