//! Notices of layouts, and what the daemon itself sees of disks' members, on their way to the monitor.
//!
//! # Always true
//! - An I/O thread never waits here.
//! - At most [`MOST`] notices wait. The disk's state shows what the others said.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_api::events::Happening;
use tidegate_api::name::Name;
use tidegate_core::layout::LayoutNotice;
use tidegate_engine::NoticeSink;
use tokio::sync::{Notify, watch};

use super::cache_signals::CacheSignals;

/// The most notices that wait: many more than the members of a host's disks.
const MOST: usize = 4096;

/// See the module.
#[derive(Default)]
pub(crate) struct Notices {
    waiting: Mutex<VecDeque<(Name, Notice)>>,
    /// What administrators have done with I/O threads.
    of_threads: Mutex<VecDeque<Happening>>,
    come: Notify,
    /// Notified when a member is not in sync.
    degraded: Notify,
    /// What the caches of attached disks have reported.
    caches: Mutex<BTreeMap<Name, Arc<CacheSignals>>>,
    /// Notified when a cache is clean, or lost.
    cached: Notify,
    /// Disks whose caches' policies are to be stored.
    policies: Mutex<BTreeSet<Name>>,
    policy_due: Notify,
    /// Changes when a disk has got a cache.
    came: watch::Sender<()>,
}

/// What happened to a disk.
#[derive(Clone, Debug)]
pub(crate) enum Notice {
    /// Its layout reports this.
    Layout(LayoutNotice),
    /// It was moved between these datastores.
    Moved { from: Name, to: Name },
    /// This happened to one of its members, on this datastore; None: to something of this host.
    Member {
        on: Option<Name>,
        happening: Happening,
    },
}

impl Notices {
    /// What a disk's layout reports to.
    pub(crate) fn sink(self: &Arc<Notices>, disk: &Name) -> NoticeSink {
        let (notices, disk) = (Arc::clone(self), disk.clone());
        let signals = Arc::<CacheSignals>::default();
        self.caches().insert(disk.clone(), Arc::clone(&signals));
        NoticeSink(Arc::new(move |notice| {
            if notice == LayoutNotice::CacheStateDue {
                notices.policies().insert(disk.clone());
                return notices.policy_due.notify_one();
            }
            if signals.note(&notice) {
                notices.cached.notify_one();
            }
            notices.add(&disk, notice);
        }))
    }

    /// What the cache of a disk has reported since the disk was attached.
    pub(crate) fn cache_signals(&self, disk: &Name) -> Arc<CacheSignals> {
        Arc::clone(self.caches().entry(disk.clone()).or_default())
    }

    /// Says that a disk was attached with a cache, which may have reported something before.
    pub(crate) fn note_cache(&self) {
        self.cached.notify_one();
        self.came.send_replace(());
    }

    /// Waits until this is so. It is looked at again whenever a disk has got a cache.
    pub(crate) async fn until_a_cache(&self, is_so: impl Fn() -> bool) {
        let mut came = self.came.subscribe();
        while !is_so() {
            // The sender is this.
            if came.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until a cache is clean, or lost.
    pub(crate) async fn cache_reports(&self) {
        self.cached.notified().await;
    }

    /// Waits until the policies of disks' caches are to be stored, and takes out which.
    pub(crate) async fn policies_due(&self) -> BTreeSet<Name> {
        self.policy_due.notified().await;
        std::mem::take(&mut *self.policies())
    }

    fn policies(&self) -> MutexGuard<'_, BTreeSet<Name>> {
        self.policies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn caches(&self) -> MutexGuard<'_, BTreeMap<Name, Arc<CacheSignals>>> {
        self.caches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that a disk was moved.
    pub(crate) fn add_move(&self, disk: &Name, from: &Name, to: &Name) {
        let (from, to) = (from.clone(), to.clone());
        self.push(disk, Notice::Moved { from, to });
    }

    /// Says what happened to a member of a disk on this datastore.
    pub(crate) fn add_member(&self, disk: &Name, on: &Name, happening: Happening) {
        let on = Some(on.clone());
        self.push(disk, Notice::Member { on, happening });
    }

    /// Says what happened to a cache of this host.
    pub(crate) fn add_of_cache(&self, cache: &Name, happening: Happening) {
        let on = None;
        self.push(cache, Notice::Member { on, happening });
    }

    /// Says what happened to a pool of this host.
    pub(crate) fn add_of_pool(&self, pool: &Name, happening: Happening) {
        let on = None;
        self.push(pool, Notice::Member { on, happening });
    }

    /// Says what an administrator has done with I/O threads.
    pub(crate) fn add_of_threads(&self, happening: Happening) {
        let mut waiting = self.of_threads();
        if waiting.len() < MOST {
            waiting.push_back(happening);
        }
        drop(waiting);
        self.come.notify_one();
    }

    /// Takes out what administrators have done with I/O threads.
    pub(crate) fn take_of_threads(&self) -> Vec<Happening> {
        self.of_threads().drain(..).collect()
    }

    fn of_threads(&self) -> MutexGuard<'_, VecDeque<Happening>> {
        // No panic leaves it half changed.
        self.of_threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, disk: &Name, notice: Notice) {
        let mut waiting = self.waiting();
        if waiting.len() < MOST {
            waiting.push_back((disk.clone(), notice));
        }
        drop(waiting);
        self.come.notify_one();
    }

    fn add(&self, disk: &Name, notice: LayoutNotice) {
        self.push(disk, Notice::Layout(notice));
        if let LayoutNotice::Dropped { .. }
        | LayoutNotice::RebuildFailed { .. }
        | LayoutNotice::Waiting = notice
        {
            self.degraded.notify_one();
        }
    }

    /// Takes out what waits.
    pub(crate) fn take(&self) -> Vec<(Name, Notice)> {
        self.waiting().drain(..).collect()
    }

    /// Waits until there is something to take.
    pub(crate) async fn come(&self) {
        self.come.notified().await;
    }

    /// Says that a disk was attached without a member.
    pub(crate) fn note_degraded(&self) {
        self.degraded.notify_one();
    }

    /// Waits until a member is not in sync.
    pub(crate) async fn degraded(&self) {
        self.degraded.notified().await;
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<(Name, Notice)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::layout::Target;

    #[tokio::test]
    async fn a_policy_that_is_due_is_stored_once_and_is_no_event() {
        let notices = Arc::new(Notices::default());
        let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
        for disk in [&a, &b, &a] {
            let NoticeSink(sink) = notices.sink(disk);
            sink(LayoutNotice::CacheStateDue);
        }
        assert_eq!(notices.policies_due().await, BTreeSet::from([a, b]));
        assert!(notices.take().is_empty());
    }

    #[test]
    fn notices_are_bounded_and_taken_once() {
        let notices = Arc::new(Notices::default());
        let NoticeSink(sink) = notices.sink(&"a".parse().unwrap());
        for _ in 0..2 * MOST {
            sink(LayoutNotice::Rebuilt { member: Target(1) });
        }
        assert_eq!(notices.take().len(), MOST);
        assert!(notices.take().is_empty());
    }
}
