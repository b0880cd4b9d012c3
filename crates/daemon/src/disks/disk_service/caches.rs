//! Commands on flash caches, and what becomes of a disk whose cache is clean or lost.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate_api::cache::{
    Cache, CacheCounts, CacheCreate, CacheDevice, CacheFlush, CachedDisk, DiskFlash, FlashMode,
};
use tidegate_api::events::Happening;
use tidegate_api::job::Job;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::cache::{Admission, CacheMode, PAGE};
use tidegate_core::layout::{CacheReport, LayoutOrder};
use tidegate_core::units::Span;

use super::DiskService;
use super::flash::{Naming, became_clean, new_attachment, unreadable_pages};
use crate::caches::{Record, Total, chunks};
use crate::disks::attached::{Attached, CacheInUse};
use crate::os_error::{self, Outcome};
use crate::store::{Found, Identity};

/// How often a failed reaction to a cache's report is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Reacts to caches that are clean or lost, until it is dropped.
pub(crate) async fn mind_caches(disk_service: Arc<DiskService>) {
    loop {
        disk_service.notices.cache_reports().await;
        loop {
            let minding = Arc::clone(&disk_service);
            let rest = os_error::blocking(move || Ok(minding.react_to_caches()));
            if matches!(rest.await, Ok(false)) {
                break;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}

impl DiskService {
    /// All flash caches. One whose record cannot be read has its problem, and zeroes.
    pub(crate) fn caches(&self) -> Outcome<Vec<Cache>> {
        let records = self.caches.all()?;
        if records.is_empty() {
            return Ok(Vec::new());
        }
        let naming = self.naming_caches();
        let describe = |(name, record): (Name, Outcome<Record>)| match record {
            Ok(record) => self.describe_cache(&name, &record, &naming),
            Err(problem) => unreadable(name, problem),
        };
        Ok(records.into_iter().map(describe).collect())
    }

    /// One flash cache.
    pub(crate) fn cache(&self, name: &Name) -> Outcome<Cache> {
        let record = self.caches.record(name)?;
        Ok(self.describe_cache(name, &record, &self.naming_caches()))
    }

    /// Creates a flash cache.
    pub(crate) fn create_cache(&self, order: &CacheCreate) -> Outcome<Cache> {
        let what = format!("cannot create cache {}", order.name);
        self.caches
            .create(order, |path| {
                self.must_be_no_image_of_ours(path)?;
                self.pools.must_be_of_no_pool(path)
            })
            .map_err(|e| e.within(&what))?;
        tracing::info!(cache = %order.name, "created");
        self.cache(&order.name)
    }

    /// Fails if a path is the image of a disk that is attached here.
    pub(super) fn must_be_no_image_of_ours(&self, path: &Path) -> Outcome<()> {
        let Ok(there) = Identity::at(path) else {
            return Ok(());
        };
        match self.live.all().iter().find(|live| live.uses(there)) {
            None => Ok(()),
            Some(live) => Err(Problem::new(
                ProblemCode::Busy,
                format!("{} is the image of disk {}", path.display(), live.name()),
            )
            .remedy("name another file or device")),
        }
    }

    /// Removes a flash cache of which no disk has a part.
    pub(crate) fn remove_cache(&self, name: &Name) -> Outcome<()> {
        let record = self.caches.record(name)?;
        for part in &record.parts {
            self.release_if_left(name, &record, part)
                .map_err(|e| e.within(format!("cannot remove cache {name}")))?;
        }
        self.caches.remove(name)?;
        tracing::info!(cache = %name, "removed");
        Ok(())
    }

    /// Brings to the datastores what only a cache has.
    pub(crate) fn flush_cache(self: &Arc<Self>, name: &Name, order: &CacheFlush) -> Outcome<Job> {
        let record = self.caches.record(name)?;
        let mut disks = self.live.all();
        disks.retain(|live| live.cache().is_some_and(|cache| cache.cache == *name));
        if let Some(disk) = &order.disk {
            disks.retain(|live| live.name() == disk);
            if disks.is_empty() {
                self.disk(disk)?;
                return Err(Problem::new(
                    ProblemCode::NotFound,
                    format!("disk {disk} is not attached with cache {name}"),
                )
                .remedy(format!("attach it: tidegate disk attach {disk}")));
            }
        }
        let is_live = |disk: &Name| disks.iter().any(|live| live.name() == disk);
        let parts = record.parts.iter();
        let mut kept = parts.filter(|part| part.dirty && order.disk.is_none());
        let kept = kept.find(|part| !is_live(&part.disk));
        let kept = kept.map(|part| part.disk.clone());
        let service = Arc::clone(self);
        let what = match &order.disk {
            Some(disk) => format!("flush cache {name} of disk {disk}"),
            None => format!("flush cache {name}"),
        };
        let remedy = format!("start it again: tidegate cache flush {name}");
        let instead = "it cannot be stopped".to_owned();
        let on = order.disk.clone().unwrap_or_else(|| name.clone());
        let work = move |progress: &crate::disks::copy::Progress| {
            for live in disks {
                if live.cache_report().is_some_and(|report| report.in_use) {
                    service.clean(&live, progress)?;
                }
            }
            match kept {
                None => Ok(()),
                Some(disk) => Err(Problem::new(
                    ProblemCode::Busy,
                    format!(
                        "disk {disk} is not attached, and may have writes that are only on flash"
                    ),
                )
                .remedy(format!(
                    "attach it, and flush again: tidegate disk attach {disk}"
                ))),
            }
        };
        Ok(self.jobs.start_lasting(what, on, remedy, instead, work))
    }

    fn describe_cache(&self, name: &Name, record: &Record, naming: &[Naming]) -> Cache {
        let devices = self.caches.devices(name, record);
        let live = self.live.all();
        let using: Vec<_> = live
            .iter()
            .filter_map(|live| Some((live, live.cache().filter(|using| using.cache == *name)?)))
            .filter_map(|(live, using)| {
                Some((live.name().clone(), using.attachment, live.cache_report()?))
            })
            .collect();
        let totals: Vec<_> = using
            .iter()
            .map(|(_, attachment, report)| (*attachment, Total::of(report)))
            .collect();
        let total = self.caches.totals.note(name, &totals);
        let chunk = record.chunk.0;
        let naming = || naming.iter().filter(|disk| disk.cache == record.uuid);
        let disks = record.parts.iter().map(|part| {
            let settings = naming().find(|disk| disk.uuid == part.uuid);
            let report = using.iter().find(|(disk, ..)| *disk == part.disk);
            let planned = live.iter().find(|live| *live.name() == part.disk);
            let planned = planned.and_then(|live| live.part().planned());
            CachedDisk {
                disk: part.disk.clone(),
                size_bytes: part.chunks.len() as u64 * chunk,
                mode: settings.map(|disk| disk.mode),
                single_device: settings.is_some_and(|disk| disk.single_device),
                // Of a disk that cannot be found, only the host's record is known.
                has_dirty: settings.map_or(part.dirty, |disk| disk.has_dirty),
                target: planned
                    .filter(|_| report.is_some())
                    .map(|planned| planned.described(part.chunks.len(), chunk)),
                at_work: report.map(|(.., report)| counts(report)),
            }
        });
        let has_part = |disk: &&Naming| record.parts.iter().any(|part| part.uuid == disk.uuid);
        let others = naming()
            .filter(|disk| !has_part(disk))
            .map(Naming::without_part);
        let mut disks: Vec<_> = disks.chain(others).collect();
        disks.sort_by(|one, other| one.disk.cmp(&other.disk));
        let problems = devices.problems().into_iter().enumerate();
        let astray = |nth| self.caches.astray.of(name, nth);
        let problems = problems.map(|(nth, problem)| problem.or_else(|| astray(nth)));
        let problems: Vec<_> = problems.collect();
        // Writes that are lost matter more than a device that is missing.
        let unreadable = using
            .iter()
            .filter(|(.., report)| report.in_use)
            .find_map(|(disk, _, report)| unreadable_pages(disk, name, report.unreadable));
        let now = tidegate_engine::now();
        let left = self.caches.budgets.left(name, record, now);
        let dirty: u64 = using.iter().map(|(.., report)| report.dirty).sum();
        let behind = |nth: u8| {
            let lacks = |report: &CacheReport| report.in_use && report.devices >> nth & 1 == 0;
            let behind = using.iter().filter(|(.., report)| lacks(report)).count();
            u32::try_from(behind).unwrap_or(u32::MAX)
        };
        let device = |(nth, path): (u8, &Path)| {
            let problem = problems.get(usize::from(nth)).cloned().flatten();
            CacheDevice {
                device: nth,
                path: path.to_owned(),
                size_bytes: problem.is_none().then_some(record.size.0),
                behind_disks: behind(nth),
                problem,
            }
        };
        Cache {
            name: name.clone(),
            uuid: record.uuid.to_string(),
            devices: record.devices().map(device).collect(),
            size_bytes: u64::from(record.chunks().saturating_sub(1)) * chunk,
            free_bytes: chunks::free(record.chunks(), &record.parts) as u64 * chunk,
            chunk_bytes: chunk,
            dirty_bytes: dirty * PAGE,
            unreadable_pages: using.iter().map(|(.., report)| report.unreadable).sum(),
            dirty_age_s: using
                .iter()
                .filter_map(|(.., report)| dirty_age(report))
                .reduce(f64::max),
            flash_written_bytes_total: total.written,
            flash_journal_bytes_total: total.journal,
            corrupt_blocks_total: total.corrupt,
            budget_bytes_per_day: record.budget(),
            budget_left_bytes: left.map(|left| u64::try_from(left.bytes).unwrap_or(0)),
            budget_is_spent: left.is_some_and(|left| left.is_spent),
            disks,
            problem: unreadable.or_else(|| problems.into_iter().flatten().next()),
        }
    }

    /// What a disk says about its flash cache.
    pub(super) fn describe_flash(
        &self,
        found: &Found,
        live: Option<&Attached>,
    ) -> Option<DiskFlash> {
        let standing = live.and_then(Attached::descriptor);
        let flash = match standing {
            Some(descriptor) => descriptor.flash,
            None => found.descriptor.flash.clone(),
        }?;
        let report = live.and_then(Attached::cache_report);
        let size = |size: Option<tidegate_api::units::Size>| size.map(|size| size.0);
        Some(DiskFlash {
            cache: flash.cache,
            host: flash.host_name,
            here: flash.host.0 == self.controls.host().id,
            mode: flash.mode,
            single_device: flash.single_device,
            has_dirty: flash.has_dirty,
            part_bytes: size(flash.part),
            min_bytes: size(flash.min),
            max_bytes: size(flash.max),
            at_work: report.as_ref().map(counts),
            problem: live.and_then(|live| self.cache_problem(live)),
        })
    }

    /// What is wrong with the cache of an attached disk.
    fn cache_problem(&self, live: &Attached) -> Option<Problem> {
        let astray = |using: CacheInUse| self.caches.astray.of_cache(&using.cache);
        live.cache_problem()
            .or_else(|| unreadable_of(live))
            .or_else(|| live.cache().and_then(astray))
    }

    /// Attached disks with writes that only their cache has and that it cannot read.
    pub(super) fn unreadable_pages(&self) -> Vec<Problem> {
        let live = self.live.all();
        live.iter().filter_map(|live| unreadable_of(live)).collect()
    }

    /// Records what caches have reported. Returns whether something is to be tried again.
    pub(super) fn react_to_caches(&self) -> bool {
        let mut again = false;
        let disks = self.live.all();
        for live in &disks {
            let Some(cache) = live.cache().filter(|cache| !cache.is_given_up) else {
                continue;
            };
            let signals = self.notices.cache_signals(live.name());
            match self.note_shrunk_unclaimed(live) {
                Ok(is_late) => again |= is_late,
                Err(problem) => {
                    tracing::warn!(disk = %live.name(), %problem, "chunks of a cache that are free again are not used yet");
                }
            }
            match self.write_back_again(live) {
                Ok(is_late) => again |= is_late,
                Err(problem) => {
                    tracing::warn!(disk = %live.name(), %problem, "writes go through the cache to the disk");
                }
            }
            let reacted = match signals.lost() {
                Some(0) => self.go_on_without(live, &cache),
                Some(pages) => {
                    live.set_cache_problem(Some(lost(live.name(), &cache.cache, pages)));
                    Ok(())
                }
                None if became_clean(live) => match self.claim(live.name(), "") {
                    Ok(_claim) => self.note_clean(live),
                    // A command changes the disk; perhaps it does that itself.
                    Err(_) => {
                        again = true;
                        Ok(())
                    }
                },
                None => Ok(()),
            };
            if let Err(problem) = reacted {
                tracing::warn!(disk = %live.name(), %problem, "a cache's report has no effect yet");
                again = true;
            }
        }
        self.spread_again() || again
    }

    /// The same for one disk, during a command that has its claim for long: its requests may wait for that.
    pub(super) fn react_while_claimed(&self, live: &Attached) {
        let cache = live.cache().filter(|cache| !cache.is_given_up);
        let lost = self.notices.cache_signals(live.name()).lost();
        if let (Some(cache), Some(0)) = (cache, lost)
            && let Err(problem) = self.go_on_without_claimed(live, &cache)
        {
            tracing::warn!(disk = %live.name(), %problem, "a cache's report has no effect yet");
        }
    }

    /// The devices of a cache have failed, and the disk has everything: it goes on without the cache.
    fn go_on_without(&self, live: &Attached, cache: &CacheInUse) -> Outcome<()> {
        let what = format!("disk {} cannot go on without its cache", live.name());
        let _claim = self.claim(live.name(), what)?;
        self.go_on_without_claimed(live, cache)
    }

    fn go_on_without_claimed(&self, live: &Attached, cache: &CacheInUse) -> Outcome<()> {
        // Until the claim, a command may have given the disk another cache. That one may have what the disk does not.
        let is_losing = live.cache_report().is_some_and(|report| report.losing);
        let is_same = |now: CacheInUse| now.attachment == cache.attachment && !now.is_given_up;
        if !is_losing || !live.cache().is_some_and(is_same) {
            return Ok(());
        }
        let found = self.find(live.name())?;
        let attachment = new_attachment()?;
        self.commit_flash(&found, Some(live), |flash| {
            if let Some(flash) = flash {
                (flash.attachment, flash.has_dirty) = (attachment, false);
            }
        })?;
        live.order(LayoutOrder::GiveUpCache)?;
        live.set_cache(Some(CacheInUse {
            is_given_up: true,
            ..cache.clone()
        }));
        let problem = Problem::new(
            ProblemCode::Datastore,
            format!("the devices of cache {} have failed", cache.cache),
        )
        .because("the disk goes on without it, and nothing is lost")
        .remedy(format!(
            "see `tidegate cache show {0}`; once they work: tidegate disk set {1} --cache none, then --cache {0}",
            cache.cache,
            live.name()
        ));
        live.set_cache_problem(Some(problem));
        let (disk, cache) = (live.name().clone(), cache.cache.clone());
        let event = Happening::CacheLost {
            disk,
            cache,
            lost_bytes: 0,
        };
        self.notices
            .add_member(live.name(), live.datastore(), event);
        Ok(())
    }
}

/// The problem of a disk whose cache has failed with writes that nothing else has.
fn lost(disk: &Name, cache: &Name, pages: u64) -> Problem {
    Problem::new(
        ProblemCode::Datastore,
        format!("disk {disk} has stopped: the devices of cache {cache} have failed"),
    )
    .because(format!(
        "they had up to {} bytes of writes that the disk does not have",
        pages * PAGE
    ))
    .remedy(format!(
        "detach it: tidegate disk detach {disk} --keep-dirty --disconnect; once the device works, attach it again; to lose these \
         writes: tidegate disk attach {disk} --discard-cache"
    ))
}

fn unreadable_of(live: &Attached) -> Option<Problem> {
    // One that has failed has another problem.
    let report = live.cache_report().filter(|report| report.in_use)?;
    unreadable_pages(live.name(), &live.cache()?.cache, report.unreadable)
}

/// What a cache's report says, in bytes.
pub(crate) fn counts(report: &CacheReport) -> CacheCounts {
    CacheCounts {
        mode: match (report.mode, report.admission) {
            (CacheMode::WriteBack, _) => FlashMode::WriteBack,
            (CacheMode::WriteThrough, Admission::Reads) => FlashMode::WriteAround,
            (CacheMode::WriteThrough, _) => FlashMode::WriteThrough,
        },
        in_use: report.in_use,
        budget_is_spent: report.admission == Admission::Nothing,
        devices: u8::try_from(report.devices.count_ones()).unwrap_or(u8::MAX),
        size_bytes: u64::from(report.pages) * PAGE,
        free_bytes: u64::from(report.free) * PAGE,
        dirty_bytes: report.dirty * PAGE,
        unreadable_pages: report.unreadable,
        dirty_age_s: dirty_age(report),
        time_to_clean_s: report.time_to_clean.map(seconds),
        hits_total: report.hits,
        misses_total: report.misses,
        fills_total: report.fills,
        read_faults_total: report.read_faults,
        corrupt_blocks_total: report.corrupt_blocks,
        flash_written_bytes_total: report.flash_bytes,
        flash_journal_bytes_total: report.journal_bytes,
    }
}

/// For how long the disk has lacked the oldest dirty data, in seconds.
fn dirty_age(report: &CacheReport) -> Option<f64> {
    let since = report.dirty_since?;
    Some(seconds(tidegate_engine::now().since(since)))
}

fn seconds(span: Span) -> f64 {
    crate::text::float(span.as_micros()) / 1e6
}

/// The cache of an attached disk, if it has one.
pub(super) fn moment(live: &Attached) -> Option<(Name, CacheCounts)> {
    let cache = live.cache()?.cache;
    Some((cache, counts(&live.cache_report()?)))
}

fn unreadable(name: Name, problem: Problem) -> Cache {
    Cache {
        name,
        uuid: String::new(),
        devices: Vec::new(),
        size_bytes: 0,
        free_bytes: 0,
        chunk_bytes: 0,
        dirty_bytes: 0,
        unreadable_pages: 0,
        dirty_age_s: None,
        flash_written_bytes_total: 0,
        flash_journal_bytes_total: 0,
        corrupt_blocks_total: 0,
        budget_bytes_per_day: None,
        budget_left_bytes: None,
        budget_is_spent: false,
        disks: Vec::new(),
        problem: Some(problem),
    }
}
