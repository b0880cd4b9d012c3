//! Room in a cache for a disk: its part, for which others give back some of theirs if that is necessary.
//!
//! # Always true
//! - a disk's part changes only under the disk's claim
//! - while a disk gives chunks back it gets none, until the record does not name those any more
//! - the record names chunks before a disk uses them, and until it does not use them any more

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_api::cache::FlashUse;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::LayoutOrder;
use tidegate_core::layout::cache::area::Area;

use super::{DiskService, new_attachment, wanted};
use crate::caches::Record;
use crate::caches::chunks::{self, Part, Wanted};
use crate::disks::attached::{Attached, CacheInUse};
use crate::disks::disk_service::claims::Claim;
use crate::disks::disk_service::locked;
use crate::os_error::Outcome;
use crate::store::Found;

/// How many disks may give back some of their chunks for one. Each gives half.
const GIVERS: usize = 8;
/// How long one may take for that: its dirty pages go to its datastore.
const GIVING: Duration = Duration::from_secs(10);
/// How often that is looked at.
const EVERY: Duration = Duration::from_millis(20);

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
        let Some(part) = record.parts.iter().find(|part| part.uuid == who) else {
            return Ok(false);
        };
        match self.gives(cache, record, part, left) {
            Ok(gave) => Ok(gave),
            Err(problem) => {
                tracing::warn!(disk = %part.disk, %cache, %problem, "a disk keeps its part of a cache");
                Ok(false)
            }
        }
    }

    fn gives(&self, cache: &Name, record: &Record, part: &Part, left: usize) -> Outcome<bool> {
        let (name, uuid) = (&part.disk, part.uuid);
        let claim = self.claim(
            name,
            format!("cannot take a part of cache {cache} from disk {name}"),
        )?;
        if self.release_if_left(cache, record, part)? {
            return Ok(true);
        }
        let found = self.find(name).ok();
        let Some(found) = found.filter(|found| found.descriptor.uuid == uuid) else {
            return Ok(false);
        };
        let live = self.live.get(name).filter(|live| live.cache().is_some());
        let Some(live) = live else {
            let flash = found.descriptor.flash.clone();
            // Of a copy of the descriptor nothing is sure.
            if part.dirty || found.is_copy || flash.is_some_and(|flash| flash.has_dirty) {
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
        let record = self.caches.record(cache)?;
        if flash
            .min
            .is_some_and(|min| min.0 > left as u64 * record.chunk.0)
        {
            return Ok(false);
        }
        let until = Instant::now() + GIVING;
        while Instant::now() < until {
            self.note_shrunk(&claim, &live)?;
            let record = self.caches.record(cache)?;
            let part = record.parts.iter().find(|part| part.uuid == uuid);
            let has = part.map_or(0, |part| part.chunks.len());
            if has <= left {
                return Ok(true);
            }
            // An earlier order may have asked for less.
            self.order_shrink(&claim, &live, cache, left)?;
            std::thread::sleep(EVERY);
        }
        Ok(false)
    }

    /// Has a disk's cache give back all chunks but so many, in the background. Nothing happens if it gives some back already.
    pub(in super::super) fn order_shrink(
        &self,
        _claim: &Claim,
        live: &Attached,
        cache: &Name,
        left: usize,
    ) -> Outcome<()> {
        let Some(descriptor) = live.descriptor() else {
            return Ok(());
        };
        let record = self.caches.record(cache)?;
        let mut parts = record.parts.iter();
        let part = parts.find(|part| part.uuid == descriptor.uuid);
        let leaving = part.and_then(|part| part.chunks.get(left..));
        let leaving = leaving.unwrap_or_default();
        let signals = self.notices.cache_signals(live.name());
        if leaving.is_empty() || !signals.begin_shrink(leaving.to_vec()) {
            return Ok(());
        }
        let count = u32::try_from(leaving.len()).unwrap_or(u32::MAX);
        let ordered = live.order(LayoutOrder::ShrinkCache { count });
        if ordered.is_err() {
            signals.end_shrink();
        }
        ordered
    }

    /// Has a disk's cache give back at once, in the background, what the disk's settings do not allow any more. If it gives
    /// something back already, this is done once that has ended.
    pub(in super::super) fn fit_part(&self, claim: &Claim, live: &Attached) {
        if let Err(problem) = self.order_fit(claim, live) {
            tracing::warn!(disk = %live.name(), %problem, "a disk keeps more of a cache than its settings allow");
        }
    }

    fn order_fit(&self, claim: &Claim, live: &Attached) -> Outcome<()> {
        let (using, descriptor) = (live.cache(), live.descriptor());
        let (Some(using), Some(descriptor)) = (using, descriptor) else {
            return Ok(());
        };
        let Some(flash) = descriptor.flash.filter(|_| !using.is_given_up) else {
            return Ok(());
        };
        let record = self.caches.record(&using.cache)?;
        let shares = descriptor.policy.shares.get();
        let wanted = wanted(&flash, &record, shares, live.size());
        let mut parts = record.parts.iter();
        let part = parts.find(|part| part.uuid == descriptor.uuid);
        let (Some(most), Some(part)) = (wanted.max, part) else {
            return Ok(());
        };
        let left = most.max(wanted.enough()).max(part.least());
        self.order_shrink(claim, live, &using.cache, left)
    }

    /// Records that a disk's cache has given chunks back.
    fn note_shrunk(&self, claim: &Claim, live: &Attached) -> Outcome<()> {
        let signals = self.notices.cache_signals(live.name());
        if let Some(chunks) = signals.have_left()
            && let (Some(using), Some(descriptor)) = (live.cache(), live.descriptor())
        {
            self.caches.take(&using.cache, descriptor.uuid, chunks)?;
            signals.end_shrink();
            self.fit_part(claim, live);
        }
        Ok(())
    }

    /// The same, if no command has the disk's claim. Returns whether one has it.
    pub(in super::super) fn note_shrunk_unclaimed(&self, live: &Arc<Attached>) -> Outcome<bool> {
        let signals = self.notices.cache_signals(live.name());
        if signals.have_left().is_none() {
            return Ok(false);
        }
        match self.claim_part(live) {
            Some(claim) => self.note_shrunk(&claim, live).map(|()| false),
            None => Ok(true),
        }
    }

    /// The right to change a disk's part. None: a command works on the disk, or it is not attached any more.
    pub(in super::super) fn claim_part(&self, live: &Arc<Attached>) -> Option<Claim> {
        let claim = self.claims.claim_briefly(live.name());
        claim.filter(|_| self.is_still(live))
    }

    /// Gives free chunks of a cache to the attached disks that have less than is planned, or than their fair part. A disk that
    /// another command works on gets them later. `held` is the caller's claim.
    pub(in super::super) fn spread(&self, cache: &Name, held: Option<&Claim>) {
        for live in self.live.all() {
            let uses = |using: CacheInUse| using.cache == *cache && !using.is_given_up;
            if !live.cache().is_some_and(uses) {
                continue;
            }
            match self.grow_part(cache, &live, held) {
                Ok(true) => {}
                Ok(false) => {
                    locked(&self.spread_later).insert(cache.clone());
                    self.notices.note_cache();
                }
                Err(problem) => {
                    tracing::warn!(disk = %live.name(), %cache, %problem, "a disk gets no more of a cache now");
                }
            }
        }
    }

    /// Spreads what could not be spread before. Returns whether some of it cannot now.
    pub(in super::super) fn spread_again(&self) -> bool {
        let caches = std::mem::take(&mut *locked(&self.spread_later));
        caches.iter().for_each(|cache| self.spread(cache, None));
        !locked(&self.spread_later).is_empty()
    }

    /// Gives an attached disk free chunks. Returns false if that is to be tried later.
    fn grow_part(&self, cache: &Name, live: &Arc<Attached>, held: Option<&Claim>) -> Outcome<bool> {
        let Some(descriptor) = live.descriptor() else {
            return Ok(true);
        };
        let Some(flash) = &descriptor.flash else {
            return Ok(true);
        };
        let uuid = descriptor.uuid;
        let record = self.caches.record(cache)?;
        let shares = descriptor.policy.shares.get();
        let wanted = Wanted {
            planned: live.part().planned().map(|planned| planned.step),
            ..wanted(flash, &record, shares, live.size())
        };
        if record.offer(uuid, wanted).is_none() {
            return Ok(true);
        }
        let taken;
        let claim = match held.filter(|claim| claim.name() == live.name()) {
            Some(held) => held,
            None => {
                taken = self.claim_part(live);
                match &taken {
                    Some(taken) => taken,
                    None => return Ok(false),
                }
            }
        };
        self.note_shrunk(claim, live)?;
        if self.notices.cache_signals(live.name()).is_shrinking() {
            return Ok(false);
        }
        while let Some((first, count)) = self.caches.extend(cache, uuid, wanted)? {
            if let Err(problem) = live.order(LayoutOrder::GrowCache { first, count }) {
                self.caches.take(cache, uuid, first..first + count)?;
                // A part that was small at first has too short a journal.
                return match problem.code {
                    ProblemCode::Unsupported => {
                        live.part().fix();
                        Ok(true)
                    }
                    _ => Err(problem),
                };
            }
        }
        Ok(true)
    }
}
