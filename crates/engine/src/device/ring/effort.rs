//! A bound on the descriptors that all queues of a device may follow in one turn of the I/O thread.
//!
//! The caps on requests do not bound that: most requests are three descriptors long, and a chain may have 1024 of them, in
//! memory of many regions through which each is looked for. Whether it then makes sense or not, its guest has had the time.
//! When the turn's steps are spent, what is left waits in its ring for the next turn.
//!
//! # Always true
//! - a queue is refused only after a chain of its device was taken in the same turn: the thread has had work, and comes again
//!
//! # Units
//! Steps: descriptors read, and pieces found where memory is cut ([`tidegate_front::vhost::queue::Queue::walked`]).

use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::units::Time;

/// Steps after which no queue of the device begins another chain in this turn. A step is two looks for an address: 10 ns in
/// the memory of an honest guest, 0.6 us where it has 509 regions (measured: 0.29 us for a look through all of them), which
/// is more than a front end may share by now. The last chain may go over by some 3500 (it is followed, followed once more
/// for its status, and may be cut into pieces), so a device, however many queues it has, keeps others waiting for 3 ms at
/// most. Eight requests of 126 pieces, the most that is announced, are 4 MiB where pieces are pages: a turn that is worth
/// its while.
const PER_TURN: u64 = 1024;

/// See the module. Read and written by the device's I/O thread alone, though others hold what it is part of.
#[derive(Debug, Default)]
pub(super) struct Effort {
    /// When the turn began that the steps were spent in.
    turn: AtomicU64,
    spent: AtomicU64,
}

impl Effort {
    /// Steps that the device may still take in the turn that began at `turn`.
    #[inline]
    pub(super) fn left(&self, turn: Time) -> u64 {
        if self.turn.load(Ordering::Relaxed) == turn.as_nanos() {
            PER_TURN.saturating_sub(self.spent.load(Ordering::Relaxed))
        } else {
            PER_TURN
        }
    }

    /// It has taken so many.
    #[cold]
    pub(super) fn spend(&self, turn: Time, steps: u64) {
        let before = PER_TURN - self.left(turn);
        self.turn.store(turn.as_nanos(), Ordering::Relaxed);
        self.spent.store(before + steps, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_in_a_turn_is_missing_in_that_turn_alone() {
        let effort = Effort::default();
        let [first, second] = [1, 2].map(Time::from_nanos);
        assert_eq!(effort.left(first), PER_TURN);
        effort.spend(first, 1000);
        assert_eq!(effort.left(first), PER_TURN - 1000);
        effort.spend(first, 3000);
        assert_eq!(effort.left(first), 0);
        assert_eq!(effort.left(second), PER_TURN);
        effort.spend(second, 1);
        assert_eq!(effort.left(second), PER_TURN - 1);
    }
}
