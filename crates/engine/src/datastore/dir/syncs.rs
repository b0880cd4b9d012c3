//! The syncs of an image: one at a time for all requests before it, and none succeeds after a failure.
//!
//! The kernel reports a write-back error once for each open file, and forgets the failed pages. The next fdatasync
//! succeeds, although the data is lost. So a request that arrives during a sync waits for the next one, and all
//! requests of a sync share its outcome. After a failure the image makes nothing durable any more: every flush fails
//! until the disk is attached again and its file system has been checked.
//!
//! # Always true
//! - at most one sync is in flight, and it started after all writes that it covers
//! - after a failed sync no later one succeeds
//!
//! # Source
//! fsync(2), "Errors"; J. Corbet, "PostgreSQL's fsync() surprise" (LWN, 2018).

use crate::datastore::condition::{Condition, Harm};
use std::sync::Arc;
use tidegate_core::request::DiskId;

/// See the module. Jobs are identified by their slots.
pub(super) struct Syncs {
    /// The jobs that the sync in flight covers; it was submitted for the first one.
    current: Vec<u32>,
    /// The jobs that arrived during that sync.
    waiting: Vec<u32>,
    failed: bool,
    condition: Arc<Condition>,
}

/// What a job must do for its sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncState {
    /// Submit a sync now.
    Starts,
    /// Wait for the next sync.
    Waits,
    /// Fail: nothing is made durable any more.
    Refused,
}

impl Syncs {
    /// For an image that was never synced.
    pub(super) fn new(condition: Arc<Condition>) -> Syncs {
        Syncs {
            current: Vec::new(),
            waiting: Vec::new(),
            failed: false,
            condition,
        }
    }

    /// The job of `slot` needs all earlier writes to be durable.
    pub(super) fn request(&mut self, slot: u32) -> SyncState {
        if self.failed {
            return SyncState::Refused;
        }
        if !self.current.is_empty() {
            self.waiting.push(slot);
            return SyncState::Waits;
        }
        self.current.push(slot);
        SyncState::Starts
    }

    /// The sync in flight failed: all later ones fail. The waiting jobs fail with it.
    #[cold]
    pub(super) fn fail(&mut self, disk: DiskId, errno: i32) {
        self.failed = true;
        self.condition.note(Harm::FlushesFail);
        self.current.append(&mut self.waiting);
        tracing::error!(
            disk = disk.0,
            errno,
            "an image could not be synced, and writes since the last flush may be lost: flushes fail \
             from now on; check the datastore, detach the disk, check its file system, attach it again"
        );
    }

    /// Takes the next job of the sync that has completed.
    pub(super) fn take_finished(&mut self) -> Option<u32> {
        self.current.pop()
    }

    /// After all jobs of a sync were taken: starts the next sync for the waiting jobs. Returns the job to submit it
    /// for.
    pub(super) fn next(&mut self) -> Option<u32> {
        std::mem::swap(&mut self.current, &mut self.waiting);
        self.current.first().copied()
    }

    /// How many jobs wait for another job's sync.
    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        self.waiting.len() + self.current.len().saturating_sub(1)
    }
}
