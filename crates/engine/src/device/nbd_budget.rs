//! The memory budget of an I/O thread's NBD clients: how much of the daemon's memory their requests may hold.
//!
//! Each client also has a limit of its own (`MOST_BYTES` in `nbd.rs`). The budget protects against many clients,
//! clients that never read their replies, and clients of a disk with a limit. It counts whole blocks of memory, as they
//! are allocated.
//!
//! # Always true
//! - all clients of a thread together hold at most [`MOST`], but for what came with disks from other threads
//! - the clients of one disk hold at most as much as remains for the other disks, less [`RESERVE`]
//! - a disk that holds nothing may take half of the rest. So the largest request always fits while fewer than four
//!   other disks hold a large one of the reserve
//! - a connection that waits for memory is retried after some was released; it is in the list once
//!
//! # Picture
//! ```text
//!   0                                          MOST - RESERVE          MOST
//!   |  what disks hold beyond their first request  |  first requests     |
//! ```

use std::collections::VecDeque;
use tidegate_core::request::DiskId;

/// Bytes that all clients of a thread may hold: a thousand requests of 512 KiB. A host of many guests can spare that on
/// each of its few I/O threads.
pub(crate) const MOST: usize = 512 << 20;
/// Bytes of [`MOST`] for disks that hold nothing: four of the largest requests.
const RESERVE: usize = 128 << 20;
/// Up to this many bytes in total, every request fits whatever its disk holds: twice as many still leave the reserve
/// free.
const PLENTY: usize = (MOST - RESERVE) / 2;

/// See the module.
#[derive(Default)]
pub(crate) struct Budget {
    held: usize,
    /// By disk.
    disks: Vec<usize>,
    waiting: VecDeque<u32>,
    /// Whether memory was released since the waiting connections were last retried.
    freed: bool,
}

impl Budget {
    /// A client of this disk holds this many more bytes.
    pub(crate) fn take(&mut self, disk: DiskId, bytes: usize) {
        self.held += bytes;
        let place = disk.0 as usize;
        if self.disks.len() <= place {
            self.disks.resize(place + 1, 0);
        }
        self.disks[place] += bytes;
    }

    /// A client of this disk released this many bytes.
    pub(crate) fn give_back(&mut self, disk: DiskId, bytes: usize) {
        self.held -= bytes;
        if let Some(held) = self.disks.get_mut(disk.0 as usize) {
            *held -= bytes;
        }
        self.freed = true;
    }

    /// A disk leaves the thread: returns what its clients hold.
    pub(crate) fn take_out(&mut self, disk: DiskId) -> usize {
        let held = self.disks.get_mut(disk.0 as usize);
        let held = held.map_or(0, std::mem::take);
        self.held -= held;
        self.freed = true;
        held
    }

    /// A disk comes whose clients hold so many bytes. They may be more than the others leave.
    pub(crate) fn put_in(&mut self, disk: DiskId, held: usize) {
        if held > 0 {
            self.take(disk, held);
        }
    }

    /// A connection leaves the thread.
    pub(crate) fn wait_no_more(&mut self, connection: u32) {
        self.waiting.retain(|waiting| *waiting != connection);
    }

    /// Whether a connection of this disk may start a request of this size. If not, it waits until [`Budget::wake`]
    /// returns it.
    #[inline]
    pub(crate) fn admits(&mut self, connection: u32, disk: DiskId, bytes: usize) -> bool {
        self.held + bytes <= PLENTY || self.admits_by_disk(connection, disk, bytes)
    }

    #[cold]
    fn admits_by_disk(&mut self, connection: u32, disk: DiskId, bytes: usize) -> bool {
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

    /// Whether memory was released since the last retry.
    #[inline]
    pub(crate) fn was_freed(&self) -> bool {
        self.freed
    }

    /// Moves the waiting connections to `ready_connections` if memory was released since the last retry. The longest
    /// waiting comes last, where the next is taken from. Returns whether there were any.
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

    /// Claims requests of this size for a disk until one does not fit; returns how many.
    fn fill(budget: &mut Budget, disk: DiskId, bytes: usize) -> usize {
        let mut count = 0;
        while budget.fits(disk, bytes) {
            budget.take(disk, bytes);
            count += 1;
        }
        count
    }

    #[test]
    fn a_connection_that_waits_for_memory_is_retried_after_a_release() {
        let mut budget = Budget::default();
        let mut ready_connections = Vec::new();
        let count = fill(&mut budget, ONE, LARGEST);
        for connection in [1, 2, 1] {
            assert!(!budget.admits(connection, ONE, LARGEST));
        }
        assert!(!budget.wake(&mut ready_connections), "nothing was released");
        budget.give_back(ONE, LARGEST);
        assert!(budget.wake(&mut ready_connections));
        assert_eq!(ready_connections, [2, 1], "the first is taken first");
        assert!(!budget.wake(&mut ready_connections));
        assert_eq!(fill(&mut budget, ONE, LARGEST), 1);
        (0..count).for_each(|_| budget.give_back(ONE, LARGEST));
        assert!(!budget.wake(&mut ready_connections), "no connection waits");
    }

    #[test]
    fn the_clients_of_one_disk_leave_half_to_the_others() {
        let mut budget = Budget::default();
        let own = fill(&mut budget, ONE, LARGEST);
        assert!(own * LARGEST <= MOST / 2, "{own}");
        assert!(budget.admits(1, OTHER, LARGEST));
        budget.take(OTHER, LARGEST);
        assert!(
            budget.admits(1, OTHER, LARGEST),
            "and more than one request"
        );
    }

    #[test]
    fn requests_never_exceed_the_budget_and_small_ones_still_fit() {
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
    fn a_request_that_passes_the_fast_check_passes_the_check_of_its_disk() {
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
    fn the_largest_request_of_an_idle_disk_fits_when_other_disks_hold_their_maximum() {
        let mut budget = Budget::default();
        for disk in 0..500 {
            // Each has a small request in flight already, so none uses the reserve.
            budget.take(DiskId(disk), 4096);
        }
        for disk in 0..500 {
            fill(&mut budget, DiskId(disk), LARGEST);
            fill(&mut budget, DiskId(disk), 4096);
        }
        assert!(budget.fits(DiskId(500), LARGEST));
    }
}
