//! Attaches disks whose datastores were unusable when the daemon started, once they become usable.
//!
//! After a power failure, hosts are often up before their file servers: a datastore is not mounted yet, or hangs. Its
//! disks must still be attached later, without an administrator.
//!
//! # Always true
//! - Only wanted disks are attached, and only if their datastore was the obstacle. A disk that another host has, or
//!   whose descriptor is invalid, is left to the administrator.
//! - A command on such a disk does not wait for a scan of its datastore. A datastore that hangs does not delay disks on
//!   others.
//! - While no disk is missing, there are no wakeups.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tokio::runtime::Handle;

use super::{DiskService, locked};
use crate::os_error::{self, Outcome};

/// Interval between attempts: guests may have to wait this long after their datastore is back.
const EVERY: Duration = Duration::from_secs(5);

/// Retries until it is dropped or no disk is missing. Disks can be missing only from the start: an attached disk stays
/// attached while its datastore is gone.
pub(crate) async fn attach_missing(disk_service: Arc<DiskService>) {
    while disk_service.misses_any() {
        tokio::time::sleep(EVERY).await;
        let disk_service = Arc::clone(&disk_service);
        // After a failure, the next attempt follows.
        let _ = os_error::blocking(move || disk_service.try_missing()).await;
    }
    std::future::pending().await
}

/// The right to retry a datastore's disks, until dropped.
struct Trying<'a> {
    disk_service: &'a DiskService,
    datastore: Name,
}

impl Drop for Trying<'_> {
    fn drop(&mut self) {
        locked(&self.disk_service.tried).remove(&self.datastore);
    }
}

impl DiskService {
    /// Whether any disk is not attached because of its datastore.
    pub(super) fn misses_any(&self) -> bool {
        locked(&self.troubles).values().any(may_pass)
    }

    /// The wanted disks that are not attached because of their datastores, by datastore.
    pub(super) fn missing(&self) -> Outcome<BTreeMap<Name, Vec<Name>>> {
        let wanted = self.store.attached()?;
        let troubles = locked(&self.troubles);
        let mut missing: BTreeMap<Name, Vec<Name>> = BTreeMap::new();
        for (disk, on) in wanted {
            if troubles.get(&disk).is_some_and(may_pass) {
                missing.entry(on).or_default().push(disk);
            }
        }
        Ok(missing)
    }

    /// Retries the missing disks of each datastore, unless that is already in progress.
    pub(super) fn try_missing(self: &Arc<DiskService>) -> Outcome<()> {
        let runtime = Handle::current();
        for (datastore, disks) in self.missing()? {
            if !locked(&self.tried).insert(datastore.clone()) {
                continue;
            }
            let (disk_service, runtime, name) =
                (Arc::clone(self), runtime.clone(), datastore.clone());
            let attach = move || {
                let _trying = Trying {
                    disk_service: &disk_service,
                    datastore,
                };
                // Their sockets are registered with this runtime.
                let _context = runtime.enter();
                disk_service.attach_those_missing(&disks);
            };
            let begun = std::thread::Builder::new()
                .name(format!("again-{name}"))
                .spawn(attach);
            if begun.is_err() {
                locked(&self.tried).remove(&name);
            }
        }
        Ok(())
    }

    /// Attaches a datastore's missing disks as far as possible.
    pub(super) fn attach_those_missing(&self, disks: &[Name]) {
        for disk in disks {
            // The lookup comes before the claim: however long it takes, it does not block commands on the disk.
            let attached = self.find(disk).and_then(|_| self.attach_if_wanted(disk));
            if let Err(problem) = attached {
                self.renew_trouble(disk, problem);
            }
        }
    }

    fn attach_if_wanted(&self, disk: &Name) -> Outcome<()> {
        let Ok(claim) = self.claim(disk, "") else {
            // Another command works on it and will have its own result.
            return Ok(());
        };
        if self.store.attached()?.contains_key(disk) {
            self.attach_claimed(&claim, self.remembered_order(disk))?;
        }
        Ok(())
    }

    /// Updates the reason why a disk is missing. A reason is logged only when it changes.
    fn renew_trouble(&self, disk: &Name, problem: Problem) {
        // A disk that was detached meanwhile has no reason any more.
        if let Some(known) = locked(&self.troubles).get_mut(disk)
            && *known != problem
        {
            tracing::error!(%disk, %problem, "a disk still could not be attached");
            *known = problem;
        }
    }
}

/// Whether a problem disappears by itself when a datastore comes back.
fn may_pass(problem: &Problem) -> bool {
    matches!(
        problem.code,
        ProblemCode::Datastore | ProblemCode::NotFound | ProblemCode::Exhausted
    )
}
