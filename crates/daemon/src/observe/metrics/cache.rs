//! Metrics of flash caches, and of disks' parts of them.

use std::fmt::Display;

use tidegate_api::cache::{Cache, CacheCounts};
use tidegate_core::layout::cache::PAGE;

use super::families::{
    CACHE_BEHIND, CACHE_BUDGET, CACHE_BUDGET_LEFT, CACHE_BUDGET_SPENT, CACHE_BYTES, CACHE_CORRUPT,
    CACHE_FREE, CACHE_JOURNAL, CACHE_WRITTEN, DISK_CACHE_CORRUPT, DISK_CACHE_DIRTY,
    DISK_CACHE_DIRTY_AGE, DISK_CACHE_FAULTS, DISK_CACHE_FILLS, DISK_CACHE_FREE, DISK_CACHE_HITS,
    DISK_CACHE_JOURNAL, DISK_CACHE_MISSES, DISK_CACHE_SIZE, DISK_CACHE_TO_CLEAN,
    DISK_CACHE_UNREADABLE, DISK_CACHE_WRITTEN, Family,
};
use super::{AttachedMoment, Page};

/// The flash caches of disks.
pub(super) fn families(page: &mut Page, disks: &[AttachedMoment]) {
    let count = |page: &mut Page, family: &Family, value: fn(&CacheCounts) -> u64| {
        each(page, disks, family, |counts| Some(value(counts)));
    };
    count(page, &DISK_CACHE_SIZE, |counts| counts.size_bytes);
    count(page, &DISK_CACHE_FREE, |counts| counts.free_bytes);
    count(page, &DISK_CACHE_DIRTY, |counts| counts.dirty_bytes);
    count(page, &DISK_CACHE_UNREADABLE, |counts| {
        counts.unreadable_pages * PAGE
    });
    each(page, disks, &DISK_CACHE_DIRTY_AGE, |counts| {
        Some(counts.dirty_age_s.unwrap_or(0.0))
    });
    each(page, disks, &DISK_CACHE_TO_CLEAN, |counts| {
        counts.time_to_clean_s
    });
    count(page, &DISK_CACHE_HITS, |counts| counts.hits_total);
    count(page, &DISK_CACHE_MISSES, |counts| counts.misses_total);
    count(page, &DISK_CACHE_FILLS, |counts| counts.fills_total);
    count(page, &DISK_CACHE_FAULTS, |counts| counts.read_faults_total);
    count(page, &DISK_CACHE_CORRUPT, |counts| {
        counts.corrupt_blocks_total
    });
    count(page, &DISK_CACHE_WRITTEN, |counts| {
        counts.flash_written_bytes_total
    });
    count(page, &DISK_CACHE_JOURNAL, |counts| {
        counts.flash_journal_bytes_total
    });
}

fn each<V: Display>(
    page: &mut Page,
    disks: &[AttachedMoment],
    family: &Family,
    value: impl Fn(&CacheCounts) -> Option<V>,
) {
    let mut page = page.family(family);
    for disk in disks {
        if let Some((cache, counts)) = &disk.cache
            && let Some(value) = value(counts)
        {
            let labels: [(&str, &dyn Display); 3] = [
                ("disk", &disk.name),
                ("datastore", &disk.datastore),
                ("cache", cache),
            ];
            page.value(&labels, value);
        }
    }
}

/// The caches of this host.
pub(super) fn of_host(page: &mut Page, caches: &[Cache]) {
    let mut each = |family: &Family, value: fn(&Cache) -> Option<u64>| {
        let mut page = page.family(family);
        for cache in caches {
            if let Some(value) = value(cache) {
                page.value(&[("cache", &cache.name)], value);
            }
        }
    };
    each(&CACHE_BYTES, |cache| Some(cache.size_bytes));
    each(&CACHE_FREE, |cache| Some(cache.free_bytes));
    each(&CACHE_BUDGET, |cache| cache.budget_bytes_per_day);
    each(&CACHE_BUDGET_LEFT, |cache| cache.budget_left_bytes);
    each(&CACHE_BUDGET_SPENT, |cache| {
        cache
            .budget_bytes_per_day
            .map(|_| u64::from(cache.budget_is_spent))
    });
    each(&CACHE_WRITTEN, |cache| {
        Some(cache.flash_written_bytes_total)
    });
    each(&CACHE_JOURNAL, |cache| {
        Some(cache.flash_journal_bytes_total)
    });
    each(&CACHE_CORRUPT, |cache| Some(cache.corrupt_blocks_total));
    let mut page = page.family(&CACHE_BEHIND);
    for cache in caches {
        for device in &cache.devices {
            let labels: [(&str, &dyn Display); 2] =
                [("cache", &cache.name), ("device", &device.device)];
            page.value(&labels, device.behind_disks);
        }
    }
}
