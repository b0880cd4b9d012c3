//! Room in a cache for a disk: its part, for which others give back some of theirs if that is necessary.
//!
//! # Always true
//! - a disk gives chunks back only while it does not use them, and what it had there is void
//!
//! # Limits
//! A disk that gives chunks back begins with an empty cache.

use std::sync::Arc;

use tidegate_api::cache::FlashUse;
use tidegate_api::descriptor::Uuid;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::units::Size;
use tidegate_core::layout::cache::area::Area;

use super::{DiskService, new_attachment, wanted};
use crate::caches::Record;
use crate::caches::chunks::{self, Wanted};
use crate::disks::attached::Attached;
use crate::disks::copy::Progress;
use crate::os_error::Outcome;
use crate::store::Found;

/// How many disks may give back some of their chunks for one. Each gives half.
const GIVERS: usize = 8;

impl DiskService {
    /// Where a disk's part of a cache is. It gets one if it has none.
    pub(super) fn area(
        &self,
        flash: &FlashUse,
        record: &Record,
        found: &Found,
        shares: u32,
    ) -> Outcome<Area> {
        let (disk, uuid) = (&found.name, found.descriptor.uuid);
        let wanted = wanted(flash, record, shares, found.descriptor.size.0);
        for _ in 0..GIVERS {
            let record = self.caches.record(&flash.cache)?;
            let has_part = record.parts.iter().any(|part| part.uuid == uuid);
            let fair = wanted.fair(record.chunks(), &record.parts);
            let is_enough = has_part || chunks::free(record.chunks(), &record.parts) * 2 >= fair;
            if is_enough || !self.somebody_gives(&flash.cache, &record, wanted)? {
                break;
            }
        }
        let area = self.caches.grant(&flash.cache, disk, uuid, wanted)?;
        area.ok_or_else(|| {
            Problem::new(
                ProblemCode::Full,
                format!("cache {} has no room for disk {disk}", flash.cache),
            )
            .because("its other disks need what they have")
            .remedy(format!(
                "lower --cache-min or --cache-max of its disks (see `tidegate cache show {}`), or use a larger cache",
                flash.cache
            ))
        })
    }

    /// Has the disk with most for its shares give half of its chunks back. Returns whether one did.
    fn somebody_gives(&self, cache: &Name, record: &Record, wanted: Wanted) -> Outcome<bool> {
        let Some((who, left)) = chunks::who_gives(record.chunks(), &record.parts, wanted) else {
            return Ok(false);
        };
        let part = record.parts.iter().find(|part| part.uuid == who);
        let Some(name) = part.map(|part| part.disk.clone()) else {
            return Ok(false);
        };
        match self.gives(cache, &name, who, left) {
            Ok(gave) => Ok(gave),
            Err(problem) => {
                tracing::warn!(disk = %name, %cache, %problem, "a disk keeps its part of a cache");
                Ok(false)
            }
        }
    }

    fn gives(&self, cache: &Name, name: &Name, uuid: Uuid, left: usize) -> Outcome<bool> {
        let _claim = self.claim(
            name,
            format!("cannot take a part of cache {cache} from disk {name}"),
        )?;
        let found = match self.find(name) {
            Ok(found) => found,
            // A disk that does not exist any more has left its part.
            Err(problem) if problem.code == ProblemCode::NotFound => {
                self.caches.release(cache, uuid)?;
                return Ok(true);
            }
            Err(problem) => return Err(problem),
        };
        if found.descriptor.uuid != uuid {
            self.caches.release(cache, uuid)?;
            return Ok(true);
        }
        let live = self.live.get(name).filter(|live| live.cache().is_some());
        let Some(live) = live else {
            let flash = found.descriptor.flash.clone();
            if flash.as_ref().is_some_and(|flash| flash.has_dirty) {
                return Ok(false);
            }
            let attachment = new_attachment()?;
            self.commit_flash(&found, None, |flash| {
                if let Some(flash) = flash {
                    flash.attachment = attachment;
                }
            })?;
            self.caches.shrink(cache, uuid, left)?;
            return Ok(true);
        };
        let Some(flash) = live.descriptor().and_then(|descriptor| descriptor.flash) else {
            return Ok(false);
        };
        let chunk = self.caches.record(cache)?.chunk.0;
        if flash.min.is_some_and(|min| min.0 > left as u64 * chunk) {
            return Ok(false);
        }
        self.change_part_of(&found, &live, &flash, left)?;
        Ok(true)
    }

    /// Takes the cache off an attached disk and puts it on again, with fewer chunks.
    fn change_part_of(
        &self,
        found: &Found,
        live: &Arc<Attached>,
        flash: &FlashUse,
        left: usize,
    ) -> Outcome<()> {
        let largest = flash.max;
        let chunk = self.caches.record(&flash.cache)?.chunk.0;
        self.take_off(found, live, Some(flash), &Progress::default())?;
        let mut again = flash.clone();
        again.has_dirty = false;
        again.max = Some(Size(left as u64 * chunk));
        self.put_on(found, live, again)?;
        self.commit_flash(found, Some(live), |flash| {
            if let Some(flash) = flash {
                flash.max = largest;
            }
        })
    }
}
