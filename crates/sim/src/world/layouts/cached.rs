//! Disks with a flash cache: their parts of the flash, and what counts as a hit.
//!
//! Each host has two flash devices that have the same bytes. Its cached disks have equal parts of them at first. When a phase changes
//! how many disks are active, all disks are detached and attached again, with other parts and empty caches. So a phase says
//! what that many disks do with all of the flash.
//!
//! # Always true
//! - A disk is detached only after all its requests were answered.
//! - A request counts as a hit if, before its answer, nothing was read below the cache where it is, and none of its bytes
//!   were written there.

use super::World;
use super::broker::{CHUNK, Part};
use crate::control::ours::id;
use crate::scenario::{FlashCache, Scenario, Variant};
use tidegate_core::layout::Target;
use tidegate_core::layout::cache::area::Area;
use tidegate_core::layout::cache::{CacheMode, CacheSetup};
use tidegate_core::request::Op;
use tidegate_core::shard::Event;
use tidegate_model::ArraySpec;

/// Devices of each host.
const DEVICES: usize = 2;

/// The flash devices of all hosts, in order. They follow the datastores of disks.
pub(super) fn devices<'a>(
    scenario: &'a Scenario,
    variant: &Variant,
) -> impl Iterator<Item = &'a ArraySpec> {
    let each = scenario.cache(variant).map(|cache| &cache.flash);
    let count = scenario.hosts.len() * DEVICES;
    each.into_iter()
        .flat_map(move |flash| std::iter::repeat_n(flash, count))
}

impl World<'_> {
    pub(super) fn cache(&self) -> Option<&FlashCache> {
        self.scenario.cache(self.variant)
    }

    /// Whether a disk has a part of the flash in this phase.
    fn is_cached(&self, disk: usize) -> bool {
        let active = self.scenario.phases[self.phase].active[disk];
        self.scenario.disks[disk].cached && active && self.disks[disk].present
    }

    /// The cache that a disk gets now. It is empty.
    pub(super) fn cache_of(&mut self, disk: usize) -> Option<CacheSetup> {
        let (size, policy) = self.cache().map(|cache| (cache.size, cache.policy))?;
        (self.disks[disk].flash, self.disks[disk].part) = (None, None);
        if !self.is_cached(disk) {
            return None;
        }
        let all = 0..self.disks.len();
        let parts = all.filter(|disk| self.is_cached(*disk)).count() as u64;
        let chunks = u32::try_from(size / parts / CHUNK).unwrap_or(u32::MAX);
        let most = u32::try_from(size / CHUNK).unwrap_or(u32::MAX);
        let Some((area, journal)) = self.area(chunks, most) else {
            let message = format!("a part of {chunks} MiB is too small for a cache");
            self.invariants.breach(self.now, message);
            return None;
        };
        let plan = &self.scenario.disks[disk];
        self.disks[disk].flash = Some(disk as u64 * u64::from(most) * CHUNK);
        let pages = chunks - journal;
        self.disks[disk].part = Some(Part {
            journal,
            chunks: pages,
            shrinks: false,
            accesses: 0,
            planned: None,
        });
        self.hosts[plan.host].flash_chunks += pages;
        // What an earlier phase has left there is of another cache.
        let members = plan.members.len();
        self.blocks
            .retain(|(of, target, _), _| *of != disk || usize::from(*target) < members);
        let mut own = [0; 16];
        own[..8].copy_from_slice(&(disk as u64 + 1).to_le_bytes());
        Some(CacheSetup {
            cache: [self.phase.to_le_bytes()[0] + 1; 16],
            disk: own,
            size: plan.size,
            devices: 2,
            area,
            mode: CacheMode::WriteBack,
            attachments: [0, 1],
            has_dirty: false,
            without: 0,
            policy,
            policy_state: Vec::new(),
        })
    }

    /// A part of so many chunks, and how many the journal has. A part that a broker may enlarge has the journal for the most.
    fn area(&self, chunks: u32, most: u32) -> Option<(Area, u32)> {
        let grows = self.cache().is_some_and(|cache| cache.broker.is_some());
        let largest = if grows { most } else { chunks };
        let journal = Area::journal_chunks(CHUNK, largest as usize)?;
        let journal = u32::try_from(journal).ok().filter(|own| *own < chunks)?;
        let area = Area::of(CHUNK, (0..journal).collect(), (journal..chunks).collect())?;
        Some((area, journal))
    }

    /// The array of a target, and where the target begins on it.
    pub(super) fn place_of(&self, disk: usize, target: Target) -> (usize, u64) {
        if let Some(column) = self.column_of(disk, target) {
            return column;
        }
        let plan = &self.scenario.disks[disk];
        let target = usize::from(target.0);
        match plan.members.get(target) {
            Some(array) => (*array, self.disks[disk].begins[target]),
            None => {
                let device = plan.host * DEVICES + target - plan.members.len();
                let begins = self.disks[disk].flash.unwrap_or(0);
                (self.scenario.datastore.arrays + device, begins)
            }
        }
    }

    /// Whether an array is a flash device.
    pub(super) fn is_flash(&self, array: usize) -> bool {
        array >= self.scenario.datastore.arrays
    }

    /// The disk below a cache is read or written by a guest: requests there are no hits.
    pub(super) fn note_miss(&mut self, disk: usize, offset: u64, len: u64) {
        if self.disks[disk].flash.is_none() {
            return;
        }
        for id in &self.disks[disk].pending {
            if let Some(request) = self.requests.get_mut(*id)
                && request.offset < offset + len
                && offset < request.offset + request.len
            {
                request.missed = true;
            }
        }
    }

    /// A request was answered. Where there are caches, a disk without one has no hits.
    pub(super) fn count_hit(&mut self, disk: usize, missed: bool) {
        if self.after.is_none() && self.cache().is_some() {
            let hit = !missed && self.disks[disk].flash.is_some();
            self.results.hit_or_missed(disk, hit);
        }
    }

    /// Counts what is written to the first of a host's devices.
    pub(super) fn count_flash(&mut self, disk: usize, target: Target, op: Op, len: u64) {
        let first = self.scenario.disks[disk].members.len();
        if self.after.is_none() && op == Op::Write && usize::from(target.0) == first {
            self.results.flash_written(disk, len);
        }
    }

    /// A phase has begun: with caches, disks get other parts of the flash.
    pub(super) fn begin_reattaching(&mut self) {
        if self.cache().is_some() && self.phase > 0 {
            self.reattaches = true;
        }
    }

    /// Detaches disks that are at rest, and attaches all once none is left.
    pub(super) fn reattach(&mut self) {
        if !self.reattaches {
            return;
        }
        for disk in 0..self.disks.len() {
            let of = &mut self.disks[disk];
            if of.attached && of.opened && of.pending.is_empty() {
                of.opened = false;
                self.deliver(disk, Event::Detach { disk: id(disk) });
            }
        }
        self.drain();
        if self.disks.iter().any(|disk| disk.attached) {
            return;
        }
        self.reattaches = false;
        self.hosts.iter_mut().for_each(|host| host.flash_chunks = 0);
        for disk in 0..self.disks.len() {
            self.attach(disk);
        }
        self.drain();
    }

    pub(super) fn detached(&mut self, disk: usize) {
        self.disks[disk].attached = false;
    }
}
