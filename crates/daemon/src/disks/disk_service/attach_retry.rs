//! Attaches disks whose datastores could not be used when the daemon started, once they can be.
//!
//! After a power failure hosts are often up before their file servers: a datastore is not mounted yet, or hangs. Its disks
//! are wanted all the same, and nobody should have to be called to say so.
//!
//! # Always true
//! - Only disks that are remembered are attached, and only those that their datastore kept from it: one that another host
//!   has, or whose descriptor makes no sense, is left for its operator to decide.
//! - An order on such a disk waits for no look at its datastore, and one that hangs keeps no other's disks waiting.
//! - While no disk is missing, nothing wakes up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tokio::runtime::Handle;

use super::{DiskService, locked};
use crate::os_error::{self, Outcome};

/// How often it is tried: so long guests of a datastore that is back may have to wait.
const EVERY: Duration = Duration::from_secs(5);

/// Tries until it is dropped, or no disk is missing. Disks are missed at the start or never: one that was attached stays so
/// while its datastore is gone.
pub(crate) async fn attach_missing(disk_service: Arc<DiskService>) {
    while disk_service.misses_any() {
        tokio::time::sleep(EVERY).await;
        let disk_service = Arc::clone(&disk_service);
        // One that fails is followed by another.
        let _ = os_error::blocking(move || disk_service.try_missing()).await;
    }
    std::future::pending().await
}

/// The right to try a datastore's disks, until dropped.
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
    /// Whether a datastore keeps some disk from being attached.
    pub(super) fn misses_any(&self) -> bool {
        locked(&self.troubles).values().any(may_pass)
    }

    /// The remembered disks that their datastores keep from being attached, by datastore.
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

    /// Tries each datastore's missing disks, but for those where that is going on.
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
                // Their sockets are listened to there.
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

    /// Attaches what can be attached of one datastore's missing disks.
    pub(super) fn attach_those_missing(&self, disks: &[Name]) {
        for disk in disks {
            // Seen first: while that takes its time, no order is kept off the disk.
            let attached = self.find(disk).and_then(|_| self.attach_if_wanted(disk));
            if let Err(problem) = attached {
                self.renew_trouble(disk, problem);
            }
        }
    }

    fn attach_if_wanted(&self, disk: &Name) -> Outcome<()> {
        let Ok(claim) = self.claim(disk, "") else {
            // An order is at work on it, which will come to something.
            return Ok(());
        };
        if self.store.attached()?.contains_key(disk) {
            self.attach_claimed(&claim, self.remembered_order(disk))?;
        }
        Ok(())
    }

    /// The reason why a disk is missing may have become another one; nobody is told the same one twice.
    fn renew_trouble(&self, disk: &Name, problem: Problem) {
        // One that was let go of meanwhile has none any more.
        if let Some(known) = locked(&self.troubles).get_mut(disk)
            && *known != problem
        {
            tracing::error!(%disk, %problem, "a disk still could not be attached");
            *known = problem;
        }
    }
}

/// Whether a problem is one that goes away by itself when a datastore comes back.
fn may_pass(problem: &Problem) -> bool {
    matches!(
        problem.code,
        ProblemCode::Datastore | ProblemCode::NotFound | ProblemCode::Exhausted
    )
}
