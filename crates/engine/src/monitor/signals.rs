//! Signals between the monitor and the I/O threads, without messages.

use super::Waker;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Notified by I/O threads that wake up.
    pub(crate) waker: Waker,
    may_spin: AtomicBool,
    is_dense: AtomicBool,
}

impl Default for Signals {
    fn default() -> Signals {
        Signals {
            waker: Waker::default(),
            may_spin: AtomicBool::new(true),
            is_dense: AtomicBool::new(false),
        }
    }
}

impl Signals {
    /// Whether an idle I/O thread may poll, if its own rules allow it.
    #[inline]
    pub(crate) fn may_spin(&self) -> bool {
        self.may_spin.load(Ordering::Relaxed)
    }

    /// Whether dense mode is on.
    pub(crate) fn is_dense(&self) -> bool {
        self.is_dense.load(Ordering::Relaxed)
    }

    /// Notes whether dense mode is on.
    pub(crate) fn set_dense(&self, on: bool) {
        self.is_dense.store(on, Ordering::Relaxed);
    }

    /// Lets idle I/O threads poll, or not.
    pub(crate) fn let_spin(&self, on: bool) {
        self.may_spin.store(on, Ordering::Relaxed);
    }
}
