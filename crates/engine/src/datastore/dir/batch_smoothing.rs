//! Batch smoothing: it holds back a few I/Os of a batch, so that a disk stays busy between batches.
//!
//! Some disks complete a whole batch at once. A virtual machine's host, for example, takes all requests that have
//! arrived, performs them, and reports them in one interrupt. Guests then submit their next requests as one batch too.
//! From then on all proceed in lockstep: the disk idles while completions travel to the guests and requests travel
//! back. When this is detected, a few requests of each batch are held back, and submitted at the first completion. The
//! disk works on those while the guests submit the next batch.
//!
//! # Always true
//! - a request is held back only while other operations of the disk are in flight, and the first completion releases
//!   it. So nothing waits longer than operations that started before it
//! - a disk whose completions do not arrive in whole batches has nothing held back
//!
//! # Picture
//! ```text
//!   without   disk  ▇▇▇▇▇▇▇▇········▇▇▇▇▇▇▇▇········        with   disk  ▇▇▇▇▇▇▇▁▇▇▇▇▇▇▇▁▇▇▇▇▇▇▇
//!             guests         submit          submit                guests      submit  submit
//! ```

use std::collections::VecDeque;

/// Operations in flight for each one that is held back.
const SHARE: u32 = 7;
/// Most operations held back: what a disk does in the time of a few wake-ups.
const MOST: usize = 8;
/// Divisor of the newest batch's weight in the average: 1/8.
const NEWEST: u32 = 8;
const ALL: u32 = 256;
/// A batch counts as whole if at most one in this many was in flight when the next request arrived.
const WHOLE: u32 = 4;

/// See the module.
pub(super) struct BatchSmoothing {
    in_flight: u32,
    held: VecDeque<u32>,
    /// The batch whose completions are arriving, if a completion was the last event.
    batch: Option<Batch>,
    /// Moving average of batches completed whole, out of [`ALL`].
    whole: u32,
}

struct Batch {
    size: u32,
    left: u32,
}

impl BatchSmoothing {
    pub(super) fn new() -> BatchSmoothing {
        BatchSmoothing {
            in_flight: 0,
            held: VecDeque::new(),
            batch: None,
            whole: 0,
        }
    }

    /// A request arrived in `slot`. Returns whether to start its operation now; otherwise it is held back.
    pub(super) fn starts(&mut self, slot: u32) -> bool {
        if let Some(Batch { size, left }) = self.batch.take() {
            let whole = if left * WHOLE <= size { ALL } else { 0 };
            self.whole = (self.whole * (NEWEST - 1) + whole) / NEWEST;
        }
        let few = u32::try_from(self.held.len()).is_ok_and(|held| held < self.in_flight / SHARE);
        if self.whole >= ALL / 2 && few && self.held.len() < MOST {
            self.held.push_back(slot);
            return false;
        }
        self.in_flight += 1;
        true
    }

    /// An operation completed. One with more to do starts again through [`BatchSmoothing::restarted`].
    pub(super) fn answered(&mut self) {
        let size = self.in_flight;
        self.in_flight -= 1;
        match &mut self.batch {
            Some(batch) => batch.left = batch.left.saturating_sub(1),
            // A few operations in a cycle say nothing about batches, and none of them would be held back.
            None if size <= SHARE => {}
            None => {
                let left = size - 1;
                self.batch = Some(Batch { size, left });
            }
        }
    }

    /// The next part of a request starts.
    pub(super) fn restarted(&mut self) {
        self.in_flight += 1;
    }

    /// Whether the operation of `slot` is held back.
    pub(super) fn holds(&self, slot: u32) -> bool {
        self.held.contains(&slot)
    }

    /// The next held operation to start, after a completion.
    pub(super) fn next_held(&mut self) -> Option<u32> {
        let slot = self.held.pop_front()?;
        self.in_flight += 1;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One batch in lockstep: `depth` requests, then all completions. Returns how many were held back.
    fn round(smoothing: &mut BatchSmoothing, depth: u32, next_held: u32) -> u32 {
        let held = (0..depth).filter(|&slot| !smoothing.starts(slot)).count();
        let held = u32::try_from(held).expect("a small number");
        let mut released = 0;
        for _ in 0..depth - held + next_held {
            smoothing.answered();
            while smoothing.next_held().is_some() {
                released += 1;
            }
        }
        assert_eq!(
            released, held,
            "the first completion releases the held ones"
        );
        held
    }

    #[test]
    fn a_disk_that_completes_whole_batches_has_a_few_held_back() {
        let mut smoothing = BatchSmoothing::new();
        let mut held = 0;
        for _ in 0..4 {
            held = round(&mut smoothing, 32, held);
            assert_eq!(held, 0, "not before enough batches were seen");
        }
        for _ in 0..10 {
            held = round(&mut smoothing, 32, held);
        }
        assert_eq!(held, 4);
    }

    #[test]
    fn a_disk_that_completes_one_by_one_has_nothing_held_back() {
        let mut smoothing = BatchSmoothing::new();
        for slot in 0..32 {
            assert!(smoothing.starts(slot));
        }
        for slot in 0..1000 {
            smoothing.answered();
            assert!(smoothing.starts(slot));
        }
    }

    #[test]
    fn smoothing_stops_when_batches_end() {
        let mut smoothing = BatchSmoothing::new();
        let mut held = 0;
        for _ in 0..20 {
            held = round(&mut smoothing, 32, held);
        }
        assert_eq!(held, 4);
        for slot in 0..3 * u32::from(u8::MAX) {
            smoothing.answered();
            while smoothing.next_held().is_some() {}
            if smoothing.starts(slot) {
                continue;
            }
            assert!(slot < 20, "still held back after {slot} single completions");
        }
    }

    #[test]
    fn a_batch_that_completes_nearly_whole_counts_as_whole() {
        let mut smoothing = BatchSmoothing::new();
        let mut slots = 0..;
        let mut start = |smoothing: &mut BatchSmoothing| {
            smoothing.starts(slots.next().expect("slots do not end"))
        };
        for _ in 0..32 {
            start(&mut smoothing);
        }
        let mut held = 0;
        for _ in 0..20 {
            for _ in 0..28 {
                smoothing.answered();
                while smoothing.next_held().is_some() {}
            }
            held = (0..28).filter(|_| !start(&mut smoothing)).count();
        }
        assert!(held >= 3, "{held} held");
    }

    #[test]
    fn a_few_operations_are_never_held_and_not_counted() {
        let mut smoothing = BatchSmoothing::new();
        for _ in 0..100 {
            assert_eq!(round(&mut smoothing, SHARE, 0), 0);
        }
        assert_eq!(smoothing.whole, 0);
    }

    #[test]
    fn held_operations_are_released_when_guests_stop() {
        let mut smoothing = BatchSmoothing::new();
        let mut held = 0;
        for _ in 0..20 {
            held = round(&mut smoothing, 64, held);
        }
        for _ in 0..held {
            smoothing.answered();
            while smoothing.next_held().is_some() {}
        }
        assert_eq!(smoothing.in_flight, 0);
        assert!(smoothing.held.is_empty());
    }
}
