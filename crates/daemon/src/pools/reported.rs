//! Reports of a pool's disk about its generations, for commands that wait for them.
//!
//! # Always true
//! - an I/O thread never waits here
//! - at most [`MOST`] reports wait; the oldest go first

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_core::layout::LayoutNotice;

/// The most reports that wait: a disk has at most 480 generations.
const MOST: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    waiting: Mutex<VecDeque<LayoutNotice>>,
    came: Condvar,
}

impl Reported {
    /// The layout reports this.
    pub(super) fn add(&self, notice: LayoutNotice) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() == MOST {
            waiting.pop_front();
        }
        waiting.push_back(notice);
        drop(waiting);
        self.came.notify_all();
    }

    /// Takes out the first report that is wanted. Waits for it so long.
    pub(crate) fn take(
        &self,
        is_wanted: impl Fn(&LayoutNotice) -> bool,
        patience: Duration,
    ) -> Option<LayoutNotice> {
        let until = Instant::now() + patience;
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(at) = waiting.iter().position(&is_wanted) {
                return waiting.remove(at);
            }
            let left = until.checked_duration_since(Instant::now())?;
            let (after, _) = self
                .came
                .wait_timeout(waiting, left)
                .unwrap_or_else(PoisonError::into_inner);
            waiting = after;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::layout::pool::Generation;

    #[test]
    fn a_report_is_taken_once_and_the_oldest_are_forgotten() {
        let reported = Reported::default();
        for number in 0..=u32::try_from(MOST).unwrap() {
            reported.add(LayoutNotice::Generation(Generation(number)));
        }
        let take = |number| {
            let wanted = LayoutNotice::Generation(Generation(number));
            reported.take(|it| *it == wanted, Duration::ZERO)
        };
        assert_eq!(take(0), None, "it was the oldest");
        assert!(take(1).is_some());
        assert_eq!(take(1), None, "it was taken");
    }
}
