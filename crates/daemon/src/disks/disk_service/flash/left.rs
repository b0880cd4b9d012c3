//! Parts of caches whose disks have left them, and the host's record of parts that may have what their disks do not.
//!
//! # Always true
//! - a part that may have what its disk does not is given back only after the disk's descriptor says that it has not
//! - a disk counts as deleted only if every datastore was read, and none has a disk with its identity

use tidegate_api::cache::FlashUse;
use tidegate_api::descriptor::Uuid;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use super::DiskService;
use crate::caches::Record;
use crate::caches::chunks::Part;
use crate::os_error::Outcome;

impl DiskService {
    /// Gives back the part of a disk that does not exist any more, or whose descriptor does not name it. Returns whether it
    /// did.
    pub(in super::super) fn release_if_left(
        &self,
        cache: &Name,
        record: &Record,
        part: &Part,
    ) -> Outcome<bool> {
        let found = self.find(&part.disk).ok();
        if let Some(found) = found.filter(|found| found.descriptor.uuid == part.uuid) {
            let flash = found.descriptor.flash.as_ref();
            let is_named = flash.is_some_and(|flash| self.is_of(flash, record));
            let live = self.live.get(&part.disk);
            if is_named || found.is_copy || live.is_some_and(|live| live.cache().is_some()) {
                return Ok(false);
            }
            self.caches.release(cache, part.uuid)?;
            return Ok(true);
        }
        if self.exists(part.uuid)? {
            return Ok(false);
        }
        if part.dirty {
            return Err(Problem::new(
                ProblemCode::Locked,
                format!("disk {} is not found", part.disk),
            )
            .because("only this cache has some of its writes")
            .remedy(format!(
                "add the disk's datastore again, and attach the disk; to lose these writes: tidegate disk attach {} \
                 --discard-cache; if the disk was deleted on another host, stop the daemon and remove the disk's part from \
                 the record of the cache, caches/{cache}.toml in the state directory",
                part.disk
            )));
        }
        self.caches.release(cache, part.uuid)?;
        Ok(true)
    }

    /// Whether there is a disk with this identity. Fails if a datastore or a descriptor cannot be read.
    fn exists(&self, uuid: Uuid) -> Outcome<bool> {
        for (on, settings) in self.store.datastores()? {
            let (store, datastore, settings) = (self.store.clone(), on.clone(), settings?);
            let look = move || store.disks(&datastore, &settings);
            for disk in self.surveys.at(&on, look)?.into_values() {
                if disk?.descriptor.uuid == uuid {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn is_of(&self, flash: &FlashUse, record: &Record) -> bool {
        flash.host.0 == self.controls.host().id && flash.id == record.uuid
    }

    /// Before a descriptor says that flash may have what the disk does not, the host's record does.
    pub(super) fn note_stake(
        &self,
        disk: Uuid,
        before: Option<&FlashUse>,
        after: Option<&FlashUse>,
    ) -> Outcome<()> {
        let host = self.controls.host().id;
        let Some(flash) = after.filter(|flash| flash.has_dirty && flash.host.0 == host) else {
            return Ok(());
        };
        let is_new = before.is_none_or(|before| before.id != flash.id || !before.has_dirty);
        match self.caches.set_dirty(&flash.cache, disk, true) {
            Ok(false) if is_new => Err(Problem::new(
                ProblemCode::Corrupt,
                format!("the disk has no part of cache {} any more", flash.cache),
            )
            .remedy("take the cache off the disk, and give it to the disk again")),
            Err(problem) if is_new => Err(problem),
            // The descriptor says so already, and it counts.
            _ => Ok(()),
        }
    }

    /// After a descriptor says that flash has nothing that the disk does not, the host's record does.
    pub(super) fn note_no_stake(
        &self,
        disk: Uuid,
        before: Option<&FlashUse>,
        after: Option<&FlashUse>,
    ) {
        if after.is_some_and(|flash| flash.has_dirty) {
            return;
        }
        let host = self.controls.host().id;
        for flash in [before, after].into_iter().flatten() {
            if flash.host.0 == host
                && let Err(problem) = self.caches.set_dirty(&flash.cache, disk, false)
            {
                tracing::warn!(cache = %flash.cache, %problem, "a part of a cache counts as dirty still");
            }
        }
    }
}
