//! The memory budget of an I/O thread's NBD clients: how much of our own memory they may hold with their requests.
//!
//! Each client also has a bound of its own (`MOST_BYTES` in `nbd.rs`). The budget is for many clients, for clients that
//! never read their replies, and for clients of a disk with a limit. It counts whole blocks of memory, as they are taken
//! from the system.
//!
//! # Always true
//! - all clients of a thread together hold at most [`MOST`], whatever they ask for
//! - the clients of one disk never hold more than what is left for the other disks, less [`RESERVE`]
//! - a disk of which nothing is held may take half of what is left: the largest request of a client always fits while fewer
//!   than four other disks hold a large one of the reserve
//! - a client that waits for memory is asked again after some was given back; it is in the list once
//!
//! # Picture
//! ```text
//!   0                                          MOST - RESERVE          MOST
//!   |  what disks hold beyond their first request  |  first requests     |
//! ```

use std::collections::VecDeque;
use tidegate_core::request::DiskId;

/// Bytes that all clients of a thread may hold. A thousand requests of 512 KiB; a host of many guests can spare it on each
/// of its few I/O threads.
pub(crate) const MOST: usize = 512 << 20;
/// Bytes of them that are left to disks of which nothing is held: four of the largest requests.
const RESERVE: usize = 128 << 20;
/// Bytes up to which no disk need be asked how much it holds: twice as many, whoever holds them, leave the reserve untouched.
const PLENTY: usize = (MOST - RESERVE) / 2;

/// See the module.
#[derive(Default)]
pub(crate) struct Budget {
    held: usize,
    /// By disk.
    disks: Vec<usize>,
    waiting: VecDeque<u32>,
    /// Whether any was given back since those that wait were asked.
    freed: bool,
}

impl Budget {
    /// A client of this disk holds so many more bytes.
    pub(crate) fn take(&mut self, disk: DiskId, bytes: usize) {
        self.held += bytes;
        let place = disk.0 as usize;
        if self.disks.len() <= place {
            self.disks.resize(place + 1, 0);
        }
        self.disks[place] += bytes;
    }

    /// A client of this disk holds so many less.
    pub(crate) fn give_back(&mut self, disk: DiskId, bytes: usize) {
        self.held -= bytes;
        if let Some(held) = self.disks.get_mut(disk.0 as usize) {
            *held -= bytes;
        }
        self.freed = true;
    }

    /// Whether a connection of this disk may begin a request that takes so many bytes. If not, [`Budget::wake`] says when to
    /// ask again.
    #[inline]
    pub(crate) fn lets_on(&mut self, connection: u32, disk: DiskId, bytes: usize) -> bool {
        self.held + bytes <= PLENTY || self.lets_on_by_disk(connection, disk, bytes)
    }

    #[cold]
    fn lets_on_by_disk(&mut self, connection: u32, disk: DiskId, bytes: usize) -> bool {
        let fits = self.fits(disk, bytes);
        if !fits && !self.waiting.contains(&connection) {
            self.waiting.push_back(connection);
        }
        fits
    }

    fn fits(&self, disk: DiskId, bytes: usize) -> bool {
        let left = MOST - self.held.min(MOST);
        match self.disks.get(disk.0 as usize) {
            None | Some(0) => bytes <= left / 2,
            Some(own) => own + bytes <= left.saturating_sub(RESERVE),
        }
    }

    /// Adds to `ready_connections` those that wait, if memory was given back since they were asked: the one that has waited longest
    /// comes last, where the next is taken from. Returns whether there were any.
    pub(crate) fn wake(&mut self, ready_connections: &mut Vec<u32>) -> bool {
        let any = std::mem::take(&mut self.freed) && !self.waiting.is_empty();
        if any {
            ready_connections.extend(self.waiting.drain(..).rev());
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGEST: usize = 32 << 20;
    const ONE: DiskId = DiskId(0);
    const OTHER: DiskId = DiskId(7);

    /// Takes requests of this size for a disk until no more are let on; returns how many.
    fn fill(budget: &mut Budget, disk: DiskId, bytes: usize) -> usize {
        let mut count = 0;
        while budget.fits(disk, bytes) {
            budget.take(disk, bytes);
            count += 1;
        }
        count
    }

    #[test]
    fn a_client_that_waits_for_memory_is_asked_again_once_some_was_given_back() {
        let mut budget = Budget::default();
        let mut ready_connections = Vec::new();
        let count = fill(&mut budget, ONE, LARGEST);
        for connection in [1, 2, 1] {
            assert!(!budget.lets_on(connection, ONE, LARGEST));
        }
        assert!(
            !budget.wake(&mut ready_connections),
            "nothing was given back"
        );
        budget.give_back(ONE, LARGEST);
        assert!(budget.wake(&mut ready_connections));
        assert_eq!(ready_connections, [2, 1], "the first is taken first");
        assert!(!budget.wake(&mut ready_connections));
        assert_eq!(fill(&mut budget, ONE, LARGEST), 1);
        (0..count).for_each(|_| budget.give_back(ONE, LARGEST));
        assert!(!budget.wake(&mut ready_connections), "nobody waits");
    }

    #[test]
    fn the_clients_of_one_disk_leave_as_much_to_others_however_many_they_are() {
        let mut budget = Budget::default();
        let own = fill(&mut budget, ONE, LARGEST);
        assert!(own * LARGEST <= MOST / 2, "{own}");
        assert!(budget.lets_on(1, OTHER, LARGEST));
        budget.take(OTHER, LARGEST);
        assert!(
            budget.lets_on(1, OTHER, LARGEST),
            "and more than one request"
        );
    }

    #[test]
    fn no_requests_of_any_disks_pass_the_bound_and_small_ones_still_fit() {
        let mut budget = Budget::default();
        for disk in 0..500 {
            fill(&mut budget, DiskId(disk), LARGEST);
        }
        assert!(budget.held <= MOST, "{}", budget.held);
        for disk in 500..510 {
            assert!(budget.fits(DiskId(disk), 4096), "disk {disk}");
            budget.take(DiskId(disk), 4096);
        }
    }

    #[test]
    fn what_fits_where_plenty_is_left_fits_by_the_rule_of_its_disk_too() {
        for own in [0, 4096, PLENTY - LARGEST] {
            let mut budget = Budget::default();
            budget.take(ONE, own);
            budget.take(OTHER, PLENTY - LARGEST - own);
            assert!(
                budget.held + LARGEST <= PLENTY && budget.fits(ONE, LARGEST),
                "{own}"
            );
        }
    }

    #[test]
    fn the_largest_request_of_a_disk_that_holds_nothing_fits_where_others_hold_all_they_may() {
        let mut budget = Budget::default();
        for disk in 0..500 {
            // They all had a small one under way before, so none takes of the reserve.
            budget.take(DiskId(disk), 4096);
        }
        for disk in 0..500 {
            fill(&mut budget, DiskId(disk), LARGEST);
            fill(&mut budget, DiskId(disk), 4096);
        }
        assert!(budget.fits(DiskId(500), LARGEST));
    }
}
