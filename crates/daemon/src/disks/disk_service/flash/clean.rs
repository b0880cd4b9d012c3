//! Cleaning: what only a disk's flash cache has is brought to the disk.
//!
//! # Always true
//! - The descriptor says that flash has nothing that the disk does not only after the cache itself says so, in write-through
//!   mode.

use std::time::Instant;

use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::cache::{CacheMode, PAGE};
use tidegate_core::layout::{CacheReport, LayoutOrder};

use super::refusals::{corrupt, lost_dirty, not_yet};
use super::{CLEANING, DiskService, EVERY, standing};
use crate::disks::attached::Attached;
use crate::disks::copy::Progress;
use crate::os_error::Outcome;
use crate::store::Found;

impl DiskService {
    /// Has everything brought to the disk that only its cache has, and follows that. The cache goes on in its mode.
    pub(in super::super) fn clean(&self, live: &Attached, progress: &Progress) -> Outcome<()> {
        let signals = self.notices.cache_signals(live.name());
        let before = signals.cleaned();
        live.order(LayoutOrder::CleanCache)?;
        self.follow_cleaning(live, before, progress, None, |cleaned| cleaned > before)
    }

    /// Has the cache answer writes once the disk has them, and brings everything else to the disk. Afterwards flash has
    /// nothing that the disk does not.
    pub(super) fn go_through(
        &self,
        live: &Attached,
        progress: &Progress,
        until: Option<Instant>,
    ) -> Outcome<()> {
        let before = self.notices.cache_signals(live.name()).cleaned();
        live.order(LayoutOrder::CacheMode(CacheMode::WriteThrough))?;
        // Reports of a cleaning may be older than the change of the mode.
        self.follow_cleaning(live, before, progress, until, |_| is_through(live))
    }

    /// Follows a cleaning that began after this number of reports, until it is over.
    pub(in super::super) fn follow_cleaning(
        &self,
        live: &Attached,
        begun: u64,
        progress: &Progress,
        until: Option<Instant>,
        is_over: impl Fn(u64) -> bool,
    ) -> Outcome<()> {
        let signals = self.notices.cache_signals(live.name());
        let dirty = |report: Option<CacheReport>| report.map_or(0, |report| report.dirty * PAGE);
        let total = dirty(live.cache_report());
        progress.expect(total);
        // A report that comes between two looks is not missed: it may be the only one.
        let mut seen = begun;
        while !is_over(signals.cleaned()) {
            let report = live.cache_report();
            if signals.lost().is_some() || report.is_none() {
                return Err(
                    Problem::new(ProblemCode::Datastore, "the cache was lost meanwhile")
                        .remedy(format!("see its state: tidegate disk show {}", live.name())),
                );
            }
            if until.is_some_and(|until| Instant::now() > until) {
                return Err(not_yet(live));
            }
            progress.is_at(total.saturating_sub(dirty(report)));
            progress.check()?;
            match signals.wait_cleaned(seen, EVERY) {
                Some((_, left)) if left > 0 => return Err(corrupt(live.name(), left)),
                Some((cleaned, _)) => seen = cleaned,
                None => {}
            }
        }
        if signals.cleaned() > begun && !signals.is_clean() {
            return Err(corrupt(live.name(), signals.left()));
        }
        progress.is_at(total);
        Ok(())
    }

    /// Before a disk is detached: brings to it what only its cache has.
    pub(in super::super) fn save_dirty(&self, found: &Found, live: &Attached) -> Outcome<()> {
        if standing(found, Some(live)).is_none_or(|flash| !flash.has_dirty) {
            return Ok(());
        }
        let report = live.cache_report().filter(|report| report.in_use);
        let Some(CacheReport { mode, .. }) = report else {
            return Err(lost_dirty(live.name()));
        };
        let until = Instant::now() + CLEANING;
        let saved = self.go_through(live, &Progress::default(), Some(until));
        match saved {
            Ok(()) => self.note_clean(live),
            Err(problem) => {
                // It goes on as before. The descriptor says still that it may have what the disk does not.
                if mode == CacheMode::WriteBack {
                    let _ = live.order(LayoutOrder::CacheMode(mode));
                }
                Err(problem)
            }
        }
    }

    /// The cache of a disk in write-through mode has nothing that the disk does not: the descriptor says so.
    pub(in super::super) fn note_clean(&self, live: &Attached) -> Outcome<()> {
        if !is_through(live) || !says_dirty(live) {
            return Ok(());
        }
        let found = self.find(live.name())?;
        self.commit_flash(&found, Some(live), |flash| {
            if let Some(flash) = flash {
                flash.has_dirty = false;
            }
        })
    }
}

/// Whether an attached disk has every answered write, because its cache goes through and was cleaned since.
pub(super) fn is_through(live: &Attached) -> bool {
    let is_through = |report: CacheReport| {
        report.in_use && report.mode == CacheMode::WriteThrough && !report.keeps_dirty
    };
    live.cache_report().is_some_and(is_through)
}

/// Whether the descriptor of an attached disk says that only its cache may have some writes.
fn says_dirty(live: &Attached) -> bool {
    let flash = live.descriptor().and_then(|descriptor| descriptor.flash);
    flash.is_some_and(|flash| flash.has_dirty)
}

/// Whether the descriptor can say that flash has nothing that the disk does not, and does not say so yet.
pub(in super::super) fn became_clean(live: &Attached) -> bool {
    says_dirty(live) && is_through(live)
}
