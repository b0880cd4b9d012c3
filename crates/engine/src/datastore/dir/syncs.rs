//! The syncs of an image: one at a time for all requests before it, and none succeeds after a failure.
//!
//! The kernel tells of an error in writing back once for each open file, and forgets the pages that it was for: the next
//! fdatasync succeeds, though what it is asked for is lost. So whoever asks while one is under way waits for the next,
//! all that one is for have its outcome, and after a failure the image makes nothing durable any more: its guest is
//! told each time, until the disk is attached anew and its file system has been looked at.
//!
//! # Always true
//! - one sync is under way at most, and it began after everything was written that it is for
//! - after one has failed no later one succeeds
//!
//! # Source
//! fsync(2), "Errors"; J. Corbet, "PostgreSQL's fsync() surprise" (LWN, 2018).

use crate::datastore::condition::{Condition, Harm};
use std::sync::Arc;
use tidegate_core::request::DiskId;

/// See the module. Jobs are known by their slots.
pub(super) struct Syncs {
    /// Those whom the sync under way is for; the first one carries it.
    riding: Vec<u32>,
    /// Those who came meanwhile.
    waiting: Vec<u32>,
    failed: bool,
    condition: Arc<Condition>,
}

/// What becomes of one who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It carries a sync, to be started now.
    Starts,
    /// It waits for the next.
    Waits,
    /// Nothing is made durable any more.
    Refused,
}

impl Syncs {
    /// Of an image that none was made of yet.
    pub(super) fn new(condition: Arc<Condition>) -> Syncs {
        Syncs {
            riding: Vec::new(),
            waiting: Vec::new(),
            failed: false,
            condition,
        }
    }

    /// The job of `slot` wants to be durable what was written until now.
    pub(super) fn ask(&mut self, slot: u32) -> Turn {
        if self.failed {
            return Turn::Refused;
        }
        if !self.riding.is_empty() {
            self.waiting.push(slot);
            return Turn::Waits;
        }
        self.riding.push(slot);
        Turn::Starts
    }

    /// The sync under way has failed: from now on all do. Those who waited for the next hear of this one, too.
    #[cold]
    pub(super) fn fail(&mut self, disk: DiskId, errno: i32) {
        self.failed = true;
        self.condition.note(Harm::FlushesFail);
        self.riding.append(&mut self.waiting);
        tracing::error!(
            disk = disk.0,
            errno,
            "an image could not be made durable, and what was written to it since the last flush may be lost: flushes fail \
             from now on; look after the datastore, detach the disk, check its file system, attach it again"
        );
    }

    /// The next of those whom the sync that has ended was for.
    pub(super) fn rider(&mut self) -> Option<u32> {
        self.riding.pop()
    }

    /// Once none rides any more: those who waited ride now, and one of them carries the sync.
    pub(super) fn next(&mut self) -> Option<u32> {
        std::mem::swap(&mut self.riding, &mut self.waiting);
        self.riding.first().copied()
    }

    /// How many wait for another's sync.
    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        self.waiting.len() + self.riding.len().saturating_sub(1)
    }
}
