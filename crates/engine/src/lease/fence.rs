//! The fence of a leased disk: it stops I/O when the lease has run out.
//!
//! The renewer moves the moment. The I/O thread reads the clock and compares, for each operation. It takes no lock and asks
//! nobody. The layer around an image that looks at the gate is `datastore/fenced.rs`.
//!
//! # Picture
//! ```text
//!            moment passes                    lost
//!   open ────────────────────> shut (waits) ──────> lost (what modifies fails)
//!    ^                          │
//!    └──────── moved on ────────┘
//! ```

use crate::sys::os;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::units::Time;

/// Up to when operations may begin.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    /// Nanoseconds of the clock that counts a suspended machine's time too.
    before: AtomicU64,
    lost: OnceLock<String>,
}

/// How a gate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    Shut,
    Lost,
}

impl Fence {
    /// Operations may begin before then.
    pub(super) fn open_before(&self, end: Time) {
        self.before.store(end.as_nanos(), Ordering::Release);
    }

    /// None may begin any more, for this reason.
    pub(super) fn lose(&self, why: String) {
        self.before.store(0, Ordering::Release);
        // Who lost it before knows why.
        let _ = self.lost.set(why);
    }

    /// Why it was lost.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// How it stands now, by a clock read for it: the time of an I/O thread's turn may be as old as a pause.
    pub(crate) fn gate(&self) -> Gate {
        if os::boottime().as_nanos() < self.before.load(Ordering::Acquire) {
            Gate::Open
        } else if self.lost.get().is_some() {
            Gate::Lost
        } else {
            Gate::Shut
        }
    }

    /// Whether a job that modifies may go on.
    pub(crate) fn is_open(&self) -> bool {
        self.gate() == Gate::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::units::Span;

    #[test]
    fn a_gate_is_shut_until_it_is_opened_and_when_its_time_is_over() {
        let fence = Fence::default();
        assert_eq!(fence.gate(), Gate::Shut);
        fence.open_before(os::boottime() + Span::from_secs(3600));
        assert_eq!(fence.gate(), Gate::Open);
        fence.open_before(os::boottime());
        assert_eq!(fence.gate(), Gate::Shut);
    }

    #[test]
    fn what_is_lost_stays_lost_and_keeps_its_first_reason() {
        let fence = Fence::default();
        fence.open_before(Time::NEVER);
        fence.lose("first".into());
        fence.lose("second".into());
        assert_eq!(fence.gate(), Gate::Lost);
        assert_eq!(fence.lost(), Some("first"));
    }
}
