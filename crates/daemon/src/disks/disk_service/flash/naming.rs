//! Disks whose settings name a flash cache of this host, whether they have a part of it or not.
//!
//! A disk whose cache mode is `off`, or that was not attached since it got its cache, has no part: only its descriptor names
//! the cache.

use tidegate_api::cache::{CachedDisk, FlashMode, FlashUse};
use tidegate_api::descriptor::{Descriptor, Uuid};
use tidegate_api::name::Name;

use super::DiskService;

/// A disk and what its settings say about its cache.
pub(in super::super) struct Naming {
    pub(in super::super) disk: Name,
    pub(in super::super) uuid: Uuid,
    /// The cache's identity.
    pub(in super::super) cache: Uuid,
    pub(in super::super) mode: FlashMode,
    pub(in super::super) single_device: bool,
    pub(in super::super) has_dirty: bool,
}

impl Naming {
    /// The disk as it is listed if it has no part of the cache.
    pub(in super::super) fn without_part(&self) -> CachedDisk {
        CachedDisk {
            disk: self.disk.clone(),
            size_bytes: 0,
            mode: Some(self.mode),
            single_device: self.single_device,
            has_dirty: self.has_dirty,
            target: None,
            at_work: None,
        }
    }
}

impl DiskService {
    /// All disks whose settings name a cache of this host. Of a datastore that cannot be read, only attached disks are known.
    pub(in super::super) fn naming_caches(&self) -> Vec<Naming> {
        let mut all: Vec<Naming> = Vec::new();
        for live in self.live.all() {
            let descriptor = live.descriptor();
            all.extend(descriptor.and_then(|descriptor| self.naming(live.name(), &descriptor)));
        }
        for (on, settings) in self.store.datastores().unwrap_or_default() {
            let Ok(settings) = settings else {
                continue;
            };
            let (store, datastore) = (self.store.clone(), on.clone());
            let look = move || store.disks(&datastore, &settings);
            for (name, found) in self.surveys.at(&on, look).unwrap_or_default() {
                let Ok(found) = found else {
                    continue;
                };
                // An attached disk's settings are those that it was attached with, or got since.
                let is_elsewhere = found.is_copy || found.descriptor.moved_to.is_some();
                if !is_elsewhere && self.live.get(&name).is_none() {
                    all.extend(self.naming(&name, &found.descriptor));
                }
            }
        }
        all.sort_by_key(|disk| disk.uuid.0);
        all.dedup_by_key(|disk| disk.uuid.0);
        all
    }

    fn naming(&self, disk: &Name, descriptor: &Descriptor) -> Option<Naming> {
        let host = self.controls.host().id;
        let is_here = |flash: &&FlashUse| flash.host.0 == host;
        let flash = descriptor.flash.as_ref().filter(is_here)?;
        Some(Naming {
            disk: disk.clone(),
            uuid: descriptor.uuid,
            cache: flash.id,
            mode: flash.mode,
            single_device: flash.single_device,
            has_dirty: flash.has_dirty,
        })
    }
}
