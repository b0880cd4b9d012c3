//! Batch smoothing: it holds back a few I/Os of a batch, so that a disk stays busy between batches.
//!
//! Some disks answer a whole batch at once: those of virtual machines, of which the other side takes what has come, works
//! it off and tells of it in one interrupt. Guests that then ask for as much again do so in one batch too, and from there
//! on everything goes round in step: while answers travel to the guests and requests travel back, the disk has nothing
//! to do, each time. Where that is seen to happen, a few requests are held back from each batch and handed over at the
//! first answer; the disk works on those while the guests turn round.
//!
//! # Always true
//! - only a disk with other operations under way has one held back, and the first answer of any of them frees it: nothing
//!   waits for longer than the operations of the same disk that were started before it
//! - a disk whose answers do not come in whole batches has nothing held back
//!
//! # Picture
//! ```text
//!   without   disk  ▇▇▇▇▇▇▇▇········▇▇▇▇▇▇▇▇········        with   disk  ▇▇▇▇▇▇▇▁▇▇▇▇▇▇▇▁▇▇▇▇▇▇▇
//!             guests          turn            turn                 guests       turn    turn
//! ```

use std::collections::VecDeque;

/// Operations under way for one that is held back.
const SHARE: u32 = 7;
/// Most that are held back: what a disk does in the time of a few wake-ups.
const MOST: usize = 8;
/// Weight of the newest batch among those looked back on: 1/8.
const NEWEST: u32 = 8;
const ALL: u32 = 256;
/// A batch counts as answered whole when at most one in so many was still under way as the next request came.
const WHOLE: u32 = 4;

/// See the module.
pub(super) struct BatchSmoothing {
    under_way: u32,
    held: VecDeque<u32>,
    /// The batch that is being answered, if answers came last.
    batch: Option<Batch>,
    /// How many batches of late were answered whole, of [`ALL`].
    whole: u32,
}

struct Batch {
    size: u32,
    left: u32,
}

impl BatchSmoothing {
    pub(super) fn new() -> BatchSmoothing {
        BatchSmoothing {
            under_way: 0,
            held: VecDeque::new(),
            batch: None,
            whole: 0,
        }
    }

    /// A request came, to be known by `slot`. Whether its operation is to be started now; otherwise it is held.
    pub(super) fn starts(&mut self, slot: u32) -> bool {
        if let Some(Batch { size, left }) = self.batch.take() {
            let whole = if left * WHOLE <= size { ALL } else { 0 };
            self.whole = (self.whole * (NEWEST - 1) + whole) / NEWEST;
        }
        let few = u32::try_from(self.held.len()).is_ok_and(|held| held < self.under_way / SHARE);
        if self.whole >= ALL / 2 && few && self.held.len() < MOST {
            self.held.push_back(slot);
            return false;
        }
        self.under_way += 1;
        true
    }

    /// An operation was answered. One that has more to do starts again by [`BatchSmoothing::starts_again`].
    pub(super) fn answered(&mut self) {
        let size = self.under_way;
        self.under_way -= 1;
        match &mut self.batch {
            Some(batch) => batch.left = batch.left.saturating_sub(1),
            // Few operations that go round say nothing of batches, and none of them would be held.
            None if size <= SHARE => {}
            None => {
                let left = size - 1;
                self.batch = Some(Batch { size, left });
            }
        }
    }

    /// A part of a request that is under way starts.
    pub(super) fn starts_again(&mut self) {
        self.under_way += 1;
    }

    /// Whether the operation of `slot` is held back.
    pub(super) fn holds(&self, slot: u32) -> bool {
        self.held.contains(&slot)
    }

    /// The next held operation to start, once an answer has come.
    pub(super) fn freed(&mut self) -> Option<u32> {
        let slot = self.held.pop_front()?;
        self.under_way += 1;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One batch in step: `depth` requests, then all answers. Returns how many were held.
    fn round(smoothing: &mut BatchSmoothing, depth: u32, freed: u32) -> u32 {
        let held = (0..depth).filter(|&slot| !smoothing.starts(slot)).count();
        let held = u32::try_from(held).expect("a small number");
        let mut again = 0;
        for _ in 0..depth - held + freed {
            smoothing.answered();
            while smoothing.freed().is_some() {
                again += 1;
            }
        }
        assert_eq!(again, held, "the first answer frees what was held");
        held
    }

    #[test]
    fn a_disk_that_answers_whole_batches_has_a_few_held_back() {
        let mut smoothing = BatchSmoothing::new();
        let mut held = 0;
        for _ in 0..4 {
            held = round(&mut smoothing, 32, held);
            assert_eq!(held, 0, "not before it has been seen often enough");
        }
        for _ in 0..10 {
            held = round(&mut smoothing, 32, held);
        }
        assert_eq!(held, 4);
    }

    #[test]
    fn a_disk_that_answers_one_by_one_has_nothing_held_back() {
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
    fn it_stops_when_batches_end() {
        let mut smoothing = BatchSmoothing::new();
        let mut held = 0;
        for _ in 0..20 {
            held = round(&mut smoothing, 32, held);
        }
        assert_eq!(held, 4);
        for slot in 0..3 * u32::from(u8::MAX) {
            smoothing.answered();
            while smoothing.freed().is_some() {}
            if smoothing.starts(slot) {
                continue;
            }
            assert!(slot < 20, "still held back after {slot} single answers");
        }
    }

    #[test]
    fn a_batch_that_is_answered_nearly_whole_is_one() {
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
                while smoothing.freed().is_some() {}
            }
            held = (0..28).filter(|_| !start(&mut smoothing)).count();
        }
        assert!(held >= 3, "{held} held");
    }

    #[test]
    fn few_operations_are_never_held_and_teach_nothing() {
        let mut smoothing = BatchSmoothing::new();
        for _ in 0..100 {
            assert_eq!(round(&mut smoothing, SHARE, 0), 0);
        }
        assert_eq!(smoothing.whole, 0);
    }

    #[test]
    fn nothing_stays_held_when_the_guests_go() {
        let mut smoothing = BatchSmoothing::new();
        let mut held = 0;
        for _ in 0..20 {
            held = round(&mut smoothing, 64, held);
        }
        for _ in 0..held {
            smoothing.answered();
            while smoothing.freed().is_some() {}
        }
        assert_eq!(smoothing.under_way, 0);
        assert!(smoothing.held.is_empty());
    }
}
