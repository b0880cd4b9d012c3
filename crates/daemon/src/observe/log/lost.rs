//! The count of lost log lines.

use std::sync::atomic::{AtomicU64, Ordering};

/// The message that reports the loss in the log.
pub(super) const WORDS: &str = "log lines were lost, because their reader was too slow";

/// Counts lost lines or records.
pub(super) struct Lost {
    ever: AtomicU64,
    /// Lost lines that the log has not reported yet.
    untold: AtomicU64,
}

impl Lost {
    pub(super) const fn none() -> Lost {
        Lost {
            ever: AtomicU64::new(0),
            untold: AtomicU64::new(0),
        }
    }

    /// The number since the program began.
    pub(super) fn ever(&self) -> u64 {
        self.ever.load(Ordering::Relaxed)
    }

    pub(super) fn one_more(&self) {
        self.ever.fetch_add(1, Ordering::Relaxed);
        self.untold.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the number to report now. No other caller gets the same lines.
    pub(super) fn take_untold(&self) -> u64 {
        match self.untold.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.untold.swap(0, Ordering::Relaxed),
        }
    }

    /// Returns lines that could not be reported.
    pub(super) fn give_back(&self, untold: u64) {
        self.untold.fetch_add(untold, Ordering::Relaxed);
    }
}
