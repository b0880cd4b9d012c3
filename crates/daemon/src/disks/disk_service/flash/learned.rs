//! The states of the policies of flash caches: stored while disks are used and when they are detached, and read at the next attach.
//!
//! The cache says when it is time, and says so only while the disk has I/O. So an idle disk is not woken, and writes nothing.

use std::sync::Arc;

use tidegate_api::events::Happening;
use tidegate_api::name::Name;

use super::DiskService;
use crate::caches::Record;
use crate::caches::policies::Owner;
use crate::disks::attached::Attached;
use crate::os_error;
use crate::store::Found;

/// Stores the policies of caches whenever it is time, until it is dropped.
pub(crate) async fn store_policies(disk_service: Arc<DiskService>) {
    loop {
        let due = disk_service.notices.policies_due().await;
        let storing = Arc::clone(&disk_service);
        let stored = os_error::blocking(move || {
            let live = due.iter().filter_map(|disk| storing.live.get(disk));
            live.for_each(|live| storing.store_policy(&live));
            Ok(())
        });
        if let Err(problem) = stored.await {
            tracing::warn!(%problem, "the policies of caches are not stored now");
        }
    }
}

impl DiskService {
    /// Stores what the policy of a disk's cache has learned. If that fails, what was stored before is used.
    pub(in super::super) fn store_policy(&self, live: &Attached) {
        let Some(using) = live.cache().filter(|using| !using.is_given_up) else {
            return;
        };
        let (Ok(record), Some(descriptor)) = (self.caches.record(&using.cache), live.descriptor())
        else {
            return;
        };
        let owner = Owner {
            name: &using.cache,
            cache: record.uuid,
            disk: descriptor.uuid,
        };
        let Ok(Some(state)) = live.policy_state() else {
            return;
        };
        if let Err(error) = self.caches.policies.store(owner, &state) {
            tracing::warn!(disk = %live.name(), cache = %using.cache, %error, "what the policy of its cache has learned is not \
                 stored");
        }
    }

    /// What the policy of a disk's cache had learned before, if that can be used.
    pub(super) fn learned(&self, found: &Found, cache: &Name, record: &Record) -> Vec<u8> {
        let owner = Owner {
            name: cache,
            cache: record.uuid,
            disk: found.descriptor.uuid,
        };
        self.caches.policies.load(owner).unwrap_or_else(|why| {
            let forgotten = Happening::CachePolicyForgotten {
                disk: found.name.clone(),
                cache: cache.clone(),
                why,
            };
            self.notices
                .add_member(&found.name, &found.datastore, forgotten);
            Vec::new()
        })
    }
}
