//! The count of lost log lines.

use std::sync::atomic::{AtomicU64, Ordering};

/// What the log is told.
pub(super) const WORDS: &str = "log lines were lost, because their reader was too slow";

/// How many lines, or records, were lost.
pub(super) struct Lost {
    ever: AtomicU64,
    /// Of which the log has not been told.
    untold: AtomicU64,
}

impl Lost {
    pub(super) const fn none() -> Lost {
        Lost {
            ever: AtomicU64::new(0),
            untold: AtomicU64::new(0),
        }
    }

    /// Since the program began.
    pub(super) fn ever(&self) -> u64 {
        self.ever.load(Ordering::Relaxed)
    }

    pub(super) fn one_more(&self) {
        self.ever.fetch_add(1, Ordering::Relaxed);
        self.untold.fetch_add(1, Ordering::Relaxed);
    }

    /// How many the log is to be told of now, by who asks and by nobody else.
    pub(super) fn take_untold(&self) -> u64 {
        match self.untold.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.untold.swap(0, Ordering::Relaxed),
        }
    }

    /// Of so many it could not be told.
    pub(super) fn give_back(&self, untold: u64) {
        self.untold.fetch_add(untold, Ordering::Relaxed);
    }
}
