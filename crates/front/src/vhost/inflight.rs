//! The in-flight region: a ring's requests in flight, in memory that outlives the process.
//!
//! The front end (QEMU) owns the region. When the daemon dies, the next one reads from it which chains were taken and
//! never completed, and takes them again. So no request of the guest is lost.
//!
//! # Always true
//! [`Inflight::recover`] finds exactly the chains that were taken and that the guest does not see as used, whenever the
//! process died. The order of the stores ensures this. A request is marked before it is executed. It is unmarked after
//! the used index is visible. The last published index is stored last.
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
    /// Heads that are completed and not yet published.
    batch: Vec<u16>,
    fresh: bool,
}

/// Bytes of the region of one ring of `size` entries (rounded so that each ring's is aligned).
pub fn region_len(size: u16) -> usize {
    (HEADER + ENTRY * usize::from(size)).next_multiple_of(64)
}

impl<A: Area> Inflight<A> {
    /// Opens a region of `len` bytes; new (all zero) or written by another process. `None` if it does not fit the ring
    /// or has an unknown version.
    pub fn open(region: A, len: usize, size: u16) -> Option<Inflight<A>> {
        if len < HEADER + ENTRY * usize::from(size) {
            return None;
        }
        let version = region.load_u16(VERSION);
        if version > VERSION_1 {
            return None;
        }
        // A ring changes its size only when the guest sets it up again (its firmware used another). Records of another
        // size belong to a ring that no longer exists.
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

    /// Whether it is empty: no other process has recorded this ring here.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// The heads in flight, oldest first, for the used index that the guest sees.
    pub fn recover(&mut self, used_idx: u16) -> Vec<u16> {
        if self.region.load_u16(USED_IDX) != used_idx {
            // The process died between publishing a batch and unmarking it. The batch is linked by `next`.
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

    /// Records that a chain is taken.
    pub fn take(&mut self, head: u16) {
        self.region.store_u64(entry(head) + COUNTER, self.counter);
        self.counter = self.counter.wrapping_add(1);
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        self.region.store_u8(entry(head), 1);
    }

    /// Records that a chain is in the used ring, not yet visible.
    pub fn complete(&mut self, head: u16) {
        self.region
            .store_u16(entry(head) + NEXT, self.region.load_u16(LAST_BATCH_HEAD));
        self.region.release_u16(LAST_BATCH_HEAD, head);
        self.batch.push(head);
    }

    /// Records that the guest sees every entry up to `used_idx`.
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
