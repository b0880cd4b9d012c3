//! The virtio-blk device behind vhost-user: rings, requests, configuration space.
//!
//! The engine's I/O thread owns a [`queue::Queue`] for each ring and turns what [`queue::Queue::next`] yields into
//! shard requests. The guest's memory is behind [`GuestMemory`], so that the same code walks real memory, a test's
//! vector, or a fuzzer's garbage. Everything read here was written by a guest and is believed only after a check.
//!
//! # Source
//! Virtual I/O Device (VIRTIO) 1.2, §2.7 split virtqueues, §5.2 block device; the vhost-user protocol's in-flight I/O
//! tracking.

pub mod block;
mod faults;
pub mod inflight;
pub mod queue;

/// The largest ring that virtio allows.
pub const MAX_SIZE: u16 = 32_768;

/// The most descriptors of a chain, and the most pieces of memory that they may come to where memory is cut into
/// regions. One readv or writev of the kernel takes as many (UIO_MAXIOV), and QEMU's own devices follow no longer
/// chain; drivers stay at the announced `seg_max` and two more. It also bounds what one hostile chain costs.
pub const MAX_SEGMENTS: usize = 1024;

/// A guest's memory, addressed as the guest does.
pub trait GuestMemory {
    /// A stretch of it that is contiguous on the host, bounds-checked once.
    type Area: Area;
    /// A contiguous piece for scatter and gather.
    type Segment: Copy;

    /// The `len` bytes at guest address `addr`, if they lie within one region.
    fn area(&self, addr: u64, len: usize) -> Option<Self::Area>;

    /// The 16 bytes at guest address `addr` as two little-endian words, if they lie within one region.
    fn load_pair(&self, addr: u64) -> Option<[u64; 2]>;

    /// The `len` bytes at `addr` as one piece, where they are one: nearly always.
    fn segment(&self, addr: u64, len: u32) -> Option<Self::Segment>;

    /// Appends the pieces of `len` bytes at `addr`; false, with any part appended, when a byte lies outside.
    fn segments(&self, addr: u64, len: u32, out: &mut Vec<Self::Segment>) -> bool;

    /// Copies from the front of `segments` into `bytes`, as far as both reach; returns how many.
    fn peek(&self, segments: &[Self::Segment], bytes: &mut [u8]) -> usize;

    /// The first 16 bytes of a segment that has as many, as two little-endian words.
    fn segment_pair(&self, segment: &Self::Segment) -> Option<[u64; 2]>;

    /// Bytes in a segment.
    fn segment_len(segment: &Self::Segment) -> usize;

    /// The segment without its first `bytes` (at most its length).
    fn segment_skip(segment: &Self::Segment, bytes: usize) -> Self::Segment;

    /// Only the first `bytes` of the segment (at most its length).
    fn segment_take(segment: &Self::Segment, bytes: usize) -> Self::Segment;

    /// Notes that the device wrote `len` bytes at `addr`, for live migration; nothing unless a log is kept.
    fn mark_dirty(&self, addr: u64, len: usize);

    /// Calls the cache line at guest address `addr` from wherever it is, to be read and written soon. A hint: an address
    /// that the guest does not have is nothing.
    fn prefetch(&self, addr: u64) {
        let _ = addr;
    }
}

/// Shared memory that another party writes at any time: each access is one volatile or atomic load or store.
///
/// `at` is a byte position inside the area; all values are little-endian.
///
/// # Panics
/// Every method panics when the access is not wholly inside, or not aligned where it is atomic: callers have
/// checked both when they made the area.
pub trait Area {
    /// A plain load.
    fn load_u16(&self, at: usize) -> u16;
    /// A load before which nothing after it may be read.
    fn acquire_u16(&self, at: usize) -> u16;
    /// A plain store.
    fn store_u16(&self, at: usize, value: u16);
    /// A store before which everything is visible.
    fn release_u16(&self, at: usize, value: u16);
    /// Calls the cache line at `at`, to be read soon. A hint.
    fn prefetch(&self, at: usize) {
        let _ = at;
    }
    /// A plain load of a byte.
    fn load_u8(&self, at: usize) -> u8;
    /// A plain store of a byte.
    fn store_u8(&self, at: usize, value: u8);
    /// A plain load, possibly in parts.
    fn load_u64(&self, at: usize) -> u64;
    /// A plain store, possibly in parts.
    fn store_u64(&self, at: usize, value: u64);
    /// Sixteen bytes as two little-endian words; whatever mixture comes out if they are written meanwhile.
    fn load_pair(&self, at: usize) -> [u64; 2];
}
