//! The division of caches among the disks that use them: by miss-ratio curves and shares, from time to time.
//!
//! [`broker`] decides. What disks give back comes free in the background, and goes to other disks at the next turn. Parts of
//! disks that are not attached stay as they are.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_api::descriptor::Uuid;
use tidegate_api::events::Happening;
use tidegate_api::name::Name;
use tidegate_core::curve::Trust;
use tidegate_core::layout::cache::broker;

use super::{DiskService, wanted};
use crate::caches::Record;
use crate::caches::chunks::Part;
use crate::disks::attached::Attached;
use crate::disks::attached::part_plan::{Planned, sentence};
use crate::os_error::{self, Outcome};

/// Divides all caches so often, until it is dropped. `None`: never.
pub(crate) async fn divide_caches(disk_service: Arc<DiskService>, every: Option<Duration>) {
    let Some(every) = every else {
        return std::future::pending().await;
    };
    loop {
        let uses = || {
            disk_service
                .live
                .all()
                .iter()
                .any(|live| live.cache().is_some())
        };
        disk_service.notices.until_a_cache(uses).await;
        tokio::time::sleep(every).await;
        let dividing = Arc::clone(&disk_service);
        let work = move || {
            dividing.divide_all(Instant::now());
            Ok(())
        };
        if let Err(problem) = os_error::blocking(work).await {
            tracing::warn!(%problem, "caches are not divided now");
        }
    }
}

/// A disk that uses the cache.
struct User {
    live: Arc<Attached>,
    uuid: Uuid,
    has: usize,
    disk: broker::Disk,
}

impl DiskService {
    /// Divides all caches that disks use.
    pub(in super::super) fn divide_all(&self, now: Instant) {
        let live = self.live.all();
        let used = live.iter().filter_map(|live| live.cache());
        let used: BTreeSet<Name> = used.map(|using| using.cache).collect();
        for cache in used {
            if let Err(problem) = self.divide(&cache, now) {
                tracing::warn!(%cache, %problem, "a cache is not divided now");
            }
        }
    }

    fn divide(&self, cache: &Name, now: Instant) -> Outcome<()> {
        let record = self.caches.record(cache)?;
        let users: Vec<User> = record
            .parts
            .iter()
            .filter_map(|part| self.user(cache, &record, part, now))
            .collect();
        let is_used = |part: &&Part| users.iter().any(|user| user.uuid == part.uuid);
        let others = record.parts.iter().filter(|part| !is_used(part));
        let others: usize = others.map(|part| part.chunks.len()).sum();
        let whole = record.chunks().saturating_sub(1);
        let whole = whole.saturating_sub(u32::try_from(others).unwrap_or(u32::MAX));
        let disks: Vec<broker::Disk> = users.iter().map(|user| user.disk.clone()).collect();
        let decision = broker::decide(whole, &disks);
        let parts = decision.targets.iter().zip(&decision.step);
        for (user, (target, step)) in users.iter().zip(parts) {
            let step = *step as usize;
            user.live.part().plan(Planned {
                target: *target,
                step,
                from: user.disk.clone(),
            });
            if decision.is_new && user.disk.planned.unwrap_or(user.disk.now) != target.chunks {
                self.announce(cache, &record, user);
            }
            if step < user.has
                && let Some(claim) = self.claim_part(&user.live)
                && let Err(problem) = self.order_shrink(&claim, &user.live, cache, step)
            {
                tracing::warn!(disk = %user.live.name(), %cache, %problem, "a disk keeps its part of a cache");
            }
        }
        self.spread(cache, None);
        Ok(())
    }

    /// What is known of the disk of a part, if it is attached with the cache.
    fn user(&self, cache: &Name, record: &Record, part: &Part, now: Instant) -> Option<User> {
        let live = self.live.get(&part.disk)?;
        let using = live.cache()?;
        let is_in_use = live.cache_report().is_some_and(|report| report.in_use);
        let descriptor = live.descriptor()?;
        if using.cache != *cache || using.is_given_up || !is_in_use || descriptor.uuid != part.uuid
        {
            return None;
        }
        let shares = descriptor.policy.shares.get();
        let wanted = wanted(descriptor.flash.as_ref()?, record, shares, live.size());
        let chunks = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let has = part.chunks.len();
        let curve = live.curves().ok()?.all;
        let accesses = live.part().count(now, curve.accesses);
        let is_known = matches!(curve.trust, Trust::Enough | Trust::MostlyFirst);
        let mut points = broker::in_chunks(&curve.points, record.chunk.0);
        for (size, _) in &mut points {
            // The journal takes the first chunks.
            *size = size.saturating_add(chunks(part.journal.max(1)));
        }
        let least = wanted.enough().max(part.least());
        let most = wanted.max.unwrap_or(usize::MAX).min(wanted.useful);
        let most = match live.part().is_fixed() {
            true => most.min(has),
            false => most,
        };
        let disk = broker::Disk {
            curve: is_known.then_some(points),
            accesses,
            shares,
            min: chunks(least),
            max: chunks(most.max(least)),
            now: chunks(has),
            planned: live.part().planned().map(|planned| planned.target.chunks),
        };
        Some(User {
            live,
            uuid: part.uuid,
            has,
            disk,
        })
    }

    /// What becomes of an attached disk's part, as a sentence.
    pub(crate) fn part_note(&self, live: &Attached) -> Option<String> {
        let (planned, cache) = (live.part().planned()?, live.cache()?.cache);
        let record = self.caches.record(&cache).ok()?;
        let uuid = live.descriptor()?.uuid;
        let part = record.parts.iter().find(|part| part.uuid == uuid)?;
        let (has, chunk) = (part.chunks.len(), record.chunk.0);
        let target = planned.described(has, chunk);
        Some(sentence(live.name(), &cache, has as u64 * chunk, &target))
    }

    fn announce(&self, cache: &Name, record: &Record, user: &User) {
        let Some(planned) = user.live.part().planned() else {
            return;
        };
        let chunk = record.chunk.0;
        let event = Happening::CacheTarget {
            disk: user.live.name().clone(),
            cache: cache.clone(),
            part_bytes: user.has as u64 * chunk,
            target: planned.described(user.has, chunk),
        };
        self.notices
            .add_member(user.live.name(), user.live.datastore(), event);
    }
}
