//! A bound on the descriptors that all queues of a device may parse in one turn of the I/O thread.
//!
//! Limits on requests do not bound that. Most requests are three descriptors long, but a chain may have 1024. Each
//! descriptor's address is looked up among the memory regions, which may be many. Malformed chains take as long as
//! valid ones. When the turn's steps are used up, the remaining requests wait in the ring for the next turn.
//!
//! # Always true
//! - a queue has to wait only after a chain of its device was taken in the same turn: the thread had work, and takes
//!   another turn
//!
//! # Units
//! Steps: descriptors read, and pieces split where memory regions end
//! ([`tidegate_front::vhost::queue::Queue::walked`]).

use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::units::{Span, Time};

/// Steps after which no queue of the device starts another chain in this turn. A step is two address lookups. It takes
/// 10 ns in a usual memory layout, and 0.6 us with 509 regions (measured: 0.29 us per lookup), more than a front end
/// may share now. The last chain may exceed the limit by some 3500 steps: it is parsed, parsed again for its status,
/// and may be split. So a device delays others by at most 3 ms, however many queues it has. Eight requests of 126
/// pieces, the largest announced, are 4 MiB with pages as pieces.
const PER_TURN: u64 = 1024;

/// What a queue is charged for so many steps: 10 ns each, as in a usual memory layout.
pub(super) fn cost(steps: u64) -> Span {
    Span::from_nanos(steps.saturating_mul(10))
}

/// See the module. Only the device's I/O thread reads and writes it, although other threads share the struct around it.
#[derive(Debug, Default)]
pub(super) struct Effort {
    /// The start of the turn in which the steps were spent.
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

    /// The device has taken this many steps.
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
    fn steps_spent_in_a_turn_count_for_that_turn_only() {
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
