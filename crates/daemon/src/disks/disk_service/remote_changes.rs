//! Applies changes that other hosts make to a disk attached here, and checks that its image is still in place.
//!
//! A disk's descriptor is on its datastore, and any host may change it. The watch calls this for each attached disk
//! whenever something may have changed. If the file is the same, nothing is read.
//!
//! # Always true
//! - A command and a check never change one disk at the same time; neither makes the other fail.
//! - A descriptor that is unreadable or invalid changes nothing.
//! - A reservation that was raised elsewhere is admitted before it takes effect.
//! - A filter that writes a file is not applied unless that file was named on this host.

use std::sync::Arc;

use tidegate_api::descriptor::Descriptor;

use super::DiskService;
use super::change::order_loss;
use crate::config::plan;
use crate::disks::attached::Attached;
use crate::files::Stamp;
use crate::os_error::Outcome;

impl DiskService {
    /// Applies a disk's descriptor, if it has changed.
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
        // The change may have come from the command that ran here.
        let Some(stamp) = changed() else { return };
        let is_attached = self.live.get(live.name()).is_some();
        if is_attached && let Err(problem) = self.take_up(live) {
            tracing::warn!(disk = %live.name(), %problem, "a disk's changed descriptor has no effect");
        }
        // Also for an invalid version, so that it is logged only once.
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
        let lossy = |d: &Descriptor| (d.member_timeout, d.on_loss);
        if lossy(now) != lossy(&before) && live.layout().is_some() {
            order_loss(live, now)?;
        }
        if plan::io::of(now) != plan::io::of(&before) {
            live.set_io(plan::io::of(now))?;
        }
        // Values that a guest reads only when it connects stay the same until the disk is attached again.
        live.set_descriptor(Descriptor {
            policy,
            filters: now.filters.clone(),
            member_timeout: now.member_timeout,
            on_loss: now.on_loss,
            io_class: now.io_class,
            io_weight: now.io_weight,
            coalesce: now.coalesce,
            vcpus: now.vcpus,
            ..before
        });
        Ok(())
    }
}
