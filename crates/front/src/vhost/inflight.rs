//! The in-flight region: the requests of a ring, in memory that outlives the process.
//!
//! The front end (QEMU) holds the region. When the daemon dies, the next one reads from it which chains were taken
//! and never given back, and takes them again, so that a guest loses nothing and waits for nothing for ever.
//!
//! # Always true
//! Whatever the moment of death, a chain that the guest does not see as used is found by [`Inflight::recover`], and one
//! that it does see is not. The order of the stores is what makes it so: mark before the request is acted on, unmark
//! after the used index is visible, and the index last published is noted last.
//!
//! # Picture: the region of one ring
//! ```text
//!   0  features u64 │ 8 version u16 │ 10 desc_num u16 │ 12 last_batch_head u16 │ 14 used_idx u16
//!   16 + 16 i:  inflight u8, padding, next u16 (at 6), counter u64 (at 8)
//! ```
//!
//! # Source
//! vhost-user protocol, "Inflight I/O tracking", split virtqueue.

use super::Area;

const HEADER: usize = 16;
const ENTRY: usize = 16;
const VERSION: usize = 8;
const DESC_NUM: usize = 10;
const LAST_BATCH_HEAD: usize = 12;
const USED_IDX: usize = 14;
const NEXT: usize = 6;
const COUNTER: usize = 8;
const VERSION_1: u16 = 1;

/// See the module.
pub struct Inflight<A> {
    region: A,
    size: u16,
    counter: u64,
    /// Heads completed and not yet shown to the guest.
    batch: Vec<u16>,
    fresh: bool,
}

/// Bytes that the region of one ring of `size` entries takes (rounded so that each ring's is aligned).
pub fn region_len(size: u16) -> usize {
    (HEADER + ENTRY * usize::from(size)).next_multiple_of(64)
}

impl<A: Area> Inflight<A> {
    /// Takes on a region of `len` bytes; fresh (all zero) or left by another process. `None` if it does not fit the
    /// ring, or is of a version that this code does not know.
    pub fn open(region: A, len: usize, size: u16) -> Option<Inflight<A>> {
        if len < HEADER + ENTRY * usize::from(size) {
            return None;
        }
        let version = region.load_u16(VERSION);
        if version > VERSION_1 {
            return None;
        }
        // A ring changes its size only when a guest sets it up anew (its firmware used another): what an account of
        // another size says is about a ring that the guest has given up.
        let fresh = version == 0 || region.load_u16(DESC_NUM) != size;
        if fresh {
            for head in 0..size {
                region.store_u8(entry(head), 0);
            }
            region.store_u16(DESC_NUM, size);
            region.release_u16(VERSION, VERSION_1);
        }
        Some(Inflight {
            region,
            size,
            counter: 0,
            batch: Vec::with_capacity(size.into()),
            fresh,
        })
    }

    /// Whether it knows nothing: no other process has kept account of this ring here.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// The heads in flight, oldest first, given the used index that the guest sees.
    pub fn recover(&mut self, used_idx: u16) -> Vec<u16> {
        if self.region.load_u16(USED_IDX) != used_idx {
            // Died between showing a batch to the guest and unmarking it. The batch hangs together by `next`.
            let behind = used_idx
                .wrapping_sub(self.region.load_u16(USED_IDX))
                .min(self.size);
            let mut head = self.region.load_u16(LAST_BATCH_HEAD);
            for _ in 0..behind {
                if head >= self.size {
                    break;
                }
                self.region.store_u8(entry(head), 0);
                head = self.region.load_u16(entry(head) + NEXT);
            }
            self.region.release_u16(USED_IDX, used_idx);
        }
        let marked = (0..self.size).filter(|&head| self.region.load_u8(entry(head)) == 1);
        let mut heads: Vec<(u64, u16)> = marked
            .map(|head| (self.region.load_u64(entry(head) + COUNTER), head))
            .collect();
        heads.sort_unstable();
        self.counter = heads
            .last()
            .map_or(0, |(counter, _)| counter.wrapping_add(1));
        heads.into_iter().map(|(_, head)| head).collect()
    }

    /// A chain is taken.
    pub fn take(&mut self, head: u16) {
        self.region.store_u64(entry(head) + COUNTER, self.counter);
        self.counter = self.counter.wrapping_add(1);
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        self.region.store_u8(entry(head), 1);
    }

    /// A chain is in the used ring, not yet visible.
    pub fn complete(&mut self, head: u16) {
        self.region
            .store_u16(entry(head) + NEXT, self.region.load_u16(LAST_BATCH_HEAD));
        self.region.release_u16(LAST_BATCH_HEAD, head);
        self.batch.push(head);
    }

    /// The guest sees everything up to `used_idx`.
    pub fn published(&mut self, used_idx: u16) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        for head in self.batch.drain(..) {
            self.region.store_u8(entry(head), 0);
        }
        self.region.release_u16(USED_IDX, used_idx);
    }
}

fn entry(head: u16) -> usize {
    HEADER + ENTRY * usize::from(head)
}
