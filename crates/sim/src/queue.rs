//! The event queue: the simulator's only clock.
//!
//! The world inserts events and removes the earliest. Events of equal time are removed in order of insertion, so that a
//! run is reproducible.
//!
//! # Always true
//! - No event is removed before an earlier one.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use tidegate_core::units::Time;

/// Future events.
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Entry<E>>,
    sequence: u64,
}

struct Entry<E> {
    at: Time,
    sequence: u64,
    what: E,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Queue<E> {
        Queue {
            heap: BinaryHeap::new(),
            sequence: 0,
        }
    }

    pub(crate) fn put(&mut self, at: Time, what: E) {
        self.heap.push(Entry {
            at,
            sequence: self.sequence,
            what,
        });
        self.sequence += 1;
    }

    /// The time of the next event.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|entry| entry.at)
    }

    pub(crate) fn take(&mut self) -> Option<(Time, E)> {
        self.heap.pop().map(|entry| (entry.at, entry.what))
    }
}

// Reversed: the heap returns its greatest.
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Entry<E>) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Entry<E>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Entry<E>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_event_comes_first_and_ties_are_in_order_of_insertion() {
        let mut queue = Queue::new();
        for (at, what) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b')] {
            queue.put(Time::from_nanos(at), what);
        }
        assert_eq!(queue.next(), Some(Time::from_nanos(1)));
        let order: String = std::iter::from_fn(|| queue.take().map(|(_, what)| what)).collect();
        assert_eq!(order, "abcd");
    }
}
