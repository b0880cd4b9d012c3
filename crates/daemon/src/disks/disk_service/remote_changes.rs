//! Takes up what other hosts change of a disk that is attached here, and looks whether its image is where it was.
//!
//! A disk's descriptor lies on its datastore, and any host may order a change of it. The watch calls here for each
//! attached disk whenever something may have changed; as long as the file is the same one, nothing is read.
//!
//! # Always true
//! - An order and a look never change one disk at the same time; neither makes the other fail.
//! - A descriptor that cannot be read or makes no sense changes nothing.
//! - A reservation that was raised elsewhere is admitted before it counts.
//! - A filter that writes a file is not taken up unless that file was named on this host.

use std::sync::Arc;

use tidegate_api::descriptor::Descriptor;

use super::DiskService;
use crate::config::plan;
use crate::disks::attached::Attached;
use crate::files::Stamp;
use crate::os_error::Outcome;

impl DiskService {
    /// Takes up a disk's descriptor, if it has changed.
    pub(crate) fn follow(&self, live: &Arc<Attached>) {
        self.look_after_image(live);
        let changed = || {
            let (path, known) = live.followed()?;
            let stamp = Stamp::of(&path)?;
            (Some(stamp) != known).then_some(stamp)
        };
        if changed().is_none() {
            return;
        }
        let _no_order = live.settling();
        // What was being ordered here may have been all there was.
        let Some(stamp) = changed() else { return };
        let is_attached = self.live.get(live.name()).is_some();
        if is_attached && let Err(problem) = self.take_up(live) {
            tracing::warn!(disk = %live.name(), %problem, "a disk's changed descriptor has no effect");
        }
        // Also one that was no good: it is told once.
        live.note_stamp(Some(stamp));
    }

    fn take_up(&self, live: &Arc<Attached>) -> Outcome<()> {
        let settings = self.store.datastore(live.datastore())?;
        let found = self
            .store
            .read_disk(live.datastore(), &settings, live.name())?;
        let Some(before) = live.descriptor() else {
            return Ok(());
        };
        let trusted = self.trusted(&found)?;
        trusted.tell();
        let now = &trusted.found.descriptor;
        if now.uuid != before.uuid || *now == before {
            return Ok(());
        }
        let mut policy = before.policy.clone();
        if now.policy != before.policy {
            let (counted, admission) = self.admit_from_elsewhere(live, &before.policy, now)?;
            let counting = Descriptor {
                policy: counted,
                ..now.clone()
            };
            live.set_policy(&self.policy(&counting)?)?;
            live.set_admission(admission);
            policy = counting.policy;
            tracing::info!(disk = %live.name(), "I/O control of a disk was changed in its descriptor");
        }
        let filters = plan::disk(&trusted.found)?.filters;
        if now.filters != before.filters {
            live.restack(&filters)?;
            tracing::info!(disk = %live.name(), "filters of a disk were changed in its descriptor");
        }
        // What a guest is told only when it connects stays as it is until the disk is attached again.
        live.set_descriptor(Descriptor {
            policy,
            filters: now.filters.clone(),
            ..before
        });
        Ok(())
    }
}
