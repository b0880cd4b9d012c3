//! Admission to disks' flash caches: by the disk's mode, and by what is left of the cache's write budget.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_api::cache::FlashMode;
use tidegate_api::events::Happening;
use tidegate_api::name::Name;
use tidegate_core::layout::LayoutOrder;
use tidegate_core::layout::cache::Admission;

use super::DiskService;
use crate::caches::{Left, Total};
use crate::disks::attached::Attached;
use crate::os_error::{self, Outcome};

/// How often what was written is counted. So much more than the budget may be written.
const EVERY: Duration = Duration::from_secs(1);

/// Keeps caches to their write budgets, until it is dropped.
pub(crate) async fn keep_budgets(disk_service: Arc<DiskService>) {
    loop {
        // Without a budget nothing is woken.
        let notices = &disk_service.notices;
        notices.until_a_cache(|| disk_service.has_budgets()).await;
        tokio::time::sleep(EVERY).await;
        let counting = Arc::clone(&disk_service);
        let counted = os_error::blocking(move || {
            counting.count_writes();
            Ok(())
        });
        // It is tried again.
        let _ = counted.await;
    }
}

impl DiskService {
    /// Whether an attached disk uses a cache that has a budget.
    fn has_budgets(&self) -> bool {
        let live = self.live.all();
        let mut used = live.iter().filter_map(|live| live.cache());
        used.any(|using| !using.is_given_up && self.has_budget(&using.cache))
    }

    fn has_budget(&self, cache: &Name) -> bool {
        let record = || self.caches.record(cache).ok();
        let now = tidegate_engine::now();
        self.caches.budgets.has(cache, now, record)
    }

    /// Counts what was written to caches, and has them keep to their budgets.
    pub(in super::super) fn count_writes(&self) {
        let mut caches: BTreeMap<Name, Vec<(Arc<Attached>, u64)>> = BTreeMap::new();
        for live in self.live.all() {
            if let Some(using) = live.cache().filter(|using| !using.is_given_up) {
                let disks = caches.entry(using.cache).or_default();
                disks.push((live, using.attachment));
            }
        }
        for (cache, disks) in caches {
            // Disks of the others are not asked: that would wake their I/O threads.
            if !self.has_budget(&cache) {
                continue;
            }
            let record = || self.caches.record(&cache).ok();
            let now = tidegate_engine::now();
            let written = disks.iter().filter_map(|(live, attachment)| {
                let report = live.cache_report()?;
                Some((*attachment, report.flash_bytes))
            });
            let written: Vec<_> = written.collect();
            let left = self.caches.budgets.spend(&cache, &written, now, record);
            if let Some((left, true)) = left {
                self.say_budget(&cache, left);
            }
            for (live, _) in &disks {
                if let Err(problem) = self.admit_to_cache(live) {
                    tracing::warn!(disk = %live.name(), %cache, %problem, "a cache does not keep to its write budget yet");
                }
            }
        }
    }

    /// A disk is about to leave its cache: counts what it has done there.
    pub(in super::super) fn count_use(&self, live: &Attached) {
        let (Some(using), Some(report)) = (live.cache(), live.cache_report()) else {
            return;
        };
        let (cache, number) = (&using.cache, using.attachment);
        self.caches
            .totals
            .note(cache, &[(number, Total::of(&report))]);
        let record = || self.caches.record(cache).ok();
        let now = tidegate_engine::now();
        let written = [(number, report.flash_bytes)];
        if let Some((left, true)) = self.caches.budgets.spend(cache, &written, now, record) {
            self.say_budget(cache, left);
        }
    }

    /// Stores what the caches may still write.
    pub(crate) fn store_budgets(&self) {
        self.caches.budgets.store_all();
    }

    /// The budget of a cache is used up, or not any more.
    fn say_budget(&self, cache: &Name, left: Left) {
        let record = self.caches.record(cache).ok();
        let name = cache.clone();
        let happening = match left.is_spent {
            true => Happening::CacheBudgetSpent {
                cache: name,
                budget_bytes_per_day: record.and_then(|record| record.budget()).unwrap_or(0),
            },
            false => Happening::CacheBudgetBack { cache: name },
        };
        self.notices.add_of_cache(cache, happening);
    }

    /// Lets enter the cache of an attached disk what may enter it now.
    pub(super) fn admit_to_cache(&self, live: &Attached) -> Outcome<()> {
        let flash = live.descriptor().and_then(|descriptor| descriptor.flash);
        let (Some(flash), Some(report)) = (flash, live.cache_report()) else {
            return Ok(());
        };
        let admission = match flash.mode {
            _ if self.caches.budgets.is_spent(&flash.cache) => Admission::Nothing,
            FlashMode::WriteAround => Admission::Reads,
            FlashMode::WriteThrough | FlashMode::WriteBack | FlashMode::Off => Admission::All,
        };
        match report.in_use && report.admission != admission {
            true => live.order(LayoutOrder::CacheAdmission(admission)),
            false => Ok(()),
        }
    }
}
