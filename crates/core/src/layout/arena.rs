//! The arena: buffers of an I/O thread for the layouts' own bytes.
//!
//! A fixed number of buffers of [`SLOT`] bytes. A layout that finds none waits; the shard tells its disk when one has been
//! returned.
//!
//! # Always true
//! - a buffer is with one layout at a time
//! - nothing is allocated after the buffers were given

use crate::request::{Data, DiskId};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Bytes of a buffer. Origin: chosen; most requests fit, and a copy of this length is long enough for any device.
pub const SLOT: u64 = 64 << 10;

/// See the module.
#[derive(Debug, Default)]
pub struct Arena {
    free: Vec<Data>,
    /// Disks that found none, in order.
    waiting: VecDeque<DiskId>,
}

impl Arena {
    /// Adds buffers of [`SLOT`] bytes each.
    pub fn give(&mut self, slots: Vec<Data>) {
        self.free.extend(slots);
    }

    /// Free buffers.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// How many disks wait for a buffer.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a disk waits for a buffer.
    #[inline]
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn claim(&mut self, disk: DiskId) -> Option<Data> {
        let slot = self.free.pop();
        if slot.is_none() && !self.waiting.contains(&disk) {
            self.waiting.push_back(disk);
        }
        slot
    }

    pub(crate) fn release(&mut self, slot: Data) {
        self.free.push(slot);
    }

    /// The next disk that waits, if there is a free buffer.
    pub(crate) fn next_waiting(&mut self) -> Option<DiskId> {
        if self.free.is_empty() {
            return None;
        }
        self.waiting.pop_front()
    }
}
