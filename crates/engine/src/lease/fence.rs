//! The fence of a leased disk: it stops I/O when the lease has run out.
//!
//! The renewer sets the time until which I/O may start. For each operation the I/O thread reads the clock and compares;
//! it takes no lock. `datastore/fenced.rs` is the layer around an image that checks the fence.
//!
//! # Picture
//! ```text
//!            time passes                      lost
//!   open ────────────────────> shut (waits) ──────> lost (changes fail)
//!    ^                          │
//!    └──────── extended ────────┘
//! ```

use crate::sys::os;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::units::Time;

/// The time until which operations may start.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    /// Nanoseconds of the clock that includes a machine's suspend time.
    before: AtomicU64,
    lost: OnceLock<String>,
}

/// The state of a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    Shut,
    Lost,
}

impl Fence {
    /// Operations may start before `end`.
    pub(crate) fn open_before(&self, end: Time) {
        self.before.store(end.as_nanos(), Ordering::Release);
    }

    /// Operations may not start any more, for this reason.
    pub(crate) fn lose(&self, why: String) {
        self.before.store(0, Ordering::Release);
        // The first reason stays.
        let _ = self.lost.set(why);
    }

    /// Why it was lost.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// Its state now, by reading the clock: the time of an I/O thread's turn may be old after a pause.
    pub(crate) fn gate(&self) -> Gate {
        if os::boottime().as_nanos() < self.before.load(Ordering::Acquire) {
            Gate::Open
        } else if self.lost.get().is_some() {
            Gate::Lost
        } else {
            Gate::Shut
        }
    }

    /// Whether a job that modifies may continue.
    pub(crate) fn is_open(&self) -> bool {
        self.gate() == Gate::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::units::Span;

    #[test]
    fn a_fence_is_shut_before_it_is_opened_and_after_its_time() {
        let fence = Fence::default();
        assert_eq!(fence.gate(), Gate::Shut);
        fence.open_before(os::boottime() + Span::from_secs(3600));
        assert_eq!(fence.gate(), Gate::Open);
        fence.open_before(os::boottime());
        assert_eq!(fence.gate(), Gate::Shut);
    }

    #[test]
    fn a_lost_fence_stays_lost_with_its_first_reason() {
        let fence = Fence::default();
        fence.open_before(Time::NEVER);
        fence.lose("first".into());
        fence.lose("second".into());
        assert_eq!(fence.gate(), Gate::Lost);
        assert_eq!(fence.lost(), Some("first"));
    }
}
