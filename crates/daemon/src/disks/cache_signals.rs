//! Reports of the flash cache of an attached disk: that it is clean, or that its devices are lost.
//!
//! The cache's I/O thread notes it here. Commands wait for it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_core::layout::LayoutNotice;

/// See the module.
#[derive(Default)]
pub(crate) struct CacheSignals {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How often it was cleaned, and how many pages could not be the last time.
    cleaned: u64,
    left: u64,
    /// It is lost, with so many pages that the disk does not have.
    lost: Option<u64>,
    /// The chunks that it was ordered to give back, until that is recorded.
    leaving: Option<Vec<u32>>,
    /// It has given them back.
    have_left: bool,
}

impl CacheSignals {
    /// The disk gets another cache: forgets what the earlier one has reported, which does not report any more.
    pub(crate) fn begin(&self) {
        let mut state = self.state();
        *state = State {
            cleaned: state.cleaned,
            ..State::default()
        };
    }

    /// Notes a report. Returns whether it is one of a cache.
    pub(crate) fn note(&self, notice: &LayoutNotice) -> bool {
        let mut state = self.state();
        match notice {
            LayoutNotice::CacheCleaned { left } => {
                state.cleaned += 1;
                state.left = *left;
            }
            LayoutNotice::CacheLost { dirty, .. } => state.lost = Some(*dirty),
            LayoutNotice::CacheShrunk { .. } => state.have_left = true,
            // A device of it may have everything again.
            LayoutNotice::Rebuilt { .. } => {}
            _ => return false,
        }
        drop(state);
        self.changed.notify_all();
        true
    }

    /// How often it was cleaned.
    pub(crate) fn cleaned(&self) -> u64 {
        self.state().cleaned
    }

    /// Whether it was cleaned completely the last time.
    pub(crate) fn is_clean(&self) -> bool {
        let state = self.state();
        state.cleaned > 0 && state.left == 0
    }

    /// Pages that could not be cleaned the last time.
    pub(crate) fn left(&self) -> u64 {
        self.state().left
    }

    /// Pages that are lost with it, if it is lost.
    pub(crate) fn lost(&self) -> Option<u64> {
        self.state().lost
    }

    /// It is ordered to give these chunks back. False: it was already, and that is not recorded yet.
    pub(crate) fn begin_shrink(&self, leaving: Vec<u32>) -> bool {
        let mut state = self.state();
        if state.leaving.is_some() {
            return false;
        }
        (state.leaving, state.have_left) = (Some(leaving), false);
        true
    }

    /// That order was refused, or what it gave back is recorded.
    pub(crate) fn end_shrink(&self) {
        let mut state = self.state();
        (state.leaving, state.have_left) = (None, false);
    }

    /// Whether it has such an order.
    pub(crate) fn is_shrinking(&self) -> bool {
        self.state().leaving.is_some()
    }

    /// Chunks that it has given back, and that the record has still.
    pub(crate) fn have_left(&self) -> Option<Vec<u32>> {
        let state = self.state();
        state.leaving.clone().filter(|_| state.have_left)
    }

    /// Waits for so long until it was cleaned more often than this, and returns how often it was, and how many pages could not be
    /// the last time.
    pub(crate) fn wait_cleaned(&self, before: u64, patience: Duration) -> Option<(u64, u64)> {
        let waiting = |state: &mut State| state.cleaned <= before && state.lost.is_none();
        let waited = self
            .changed
            .wait_timeout_while(self.state(), patience, waiting);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (state.cleaned > before).then_some((state.cleaned, state.left))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::request::Fault;

    #[test]
    fn a_waiter_learns_of_the_next_cleaning_and_of_a_loss() {
        let signals = CacheSignals::default();
        assert_eq!(signals.wait_cleaned(0, Duration::ZERO), None);
        assert!(signals.note(&LayoutNotice::CacheCleaned { left: 2 }));
        assert_eq!(signals.wait_cleaned(0, Duration::MAX), Some((1, 2)));
        assert!(!signals.is_clean());
        signals.note(&LayoutNotice::CacheCleaned { left: 0 });
        assert!(signals.is_clean());
        assert!(!signals.note(&LayoutNotice::Lost));
        let fault = Fault::Gone;
        signals.note(&LayoutNotice::CacheLost { fault, dirty: 3 });
        assert_eq!(signals.wait_cleaned(2, Duration::MAX), None);
        assert_eq!(signals.lost(), Some(3));
        signals.begin();
        assert_eq!(signals.lost(), None, "the next cache is not lost");
        assert_eq!(signals.cleaned(), 2);
    }

    #[test]
    fn the_chunks_that_leave_are_known_until_that_is_recorded() {
        let signals = CacheSignals::default();
        assert!(signals.begin_shrink(vec![7, 8]) && !signals.begin_shrink(vec![5]));
        assert_eq!(signals.have_left(), None, "it uses them still");
        assert!(signals.note(&LayoutNotice::CacheShrunk { chunks: 2 }));
        assert_eq!(signals.have_left(), Some(vec![7, 8]));
        assert!(signals.is_shrinking());
        signals.end_shrink();
        assert!(!signals.is_shrinking() && signals.have_left().is_none());
        assert!(signals.begin_shrink(vec![5]));
        assert_eq!(signals.have_left(), None);
    }
}
