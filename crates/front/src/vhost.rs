//! The virtio-blk device behind vhost-user: rings, requests, configuration space.
//!
//! The engine's I/O thread owns a [`queue::Queue`] for each ring and turns the results of [`queue::Queue::next`] into
//! shard requests. Guest memory is behind [`GuestMemory`], so that the same code reads real memory, a test's vector or
//! a fuzzer's input. The guest writes everything that is read here, so every value is checked before use.
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

/// The most descriptors of a chain, and the most segments after splitting at region boundaries. It equals the kernel's
/// limit for one readv or writev (UIO_MAXIOV) and QEMU's limit for a chain. Drivers use at most the announced `seg_max`
/// and two more. It also bounds the cost of one hostile chain.
pub const MAX_SEGMENTS: usize = 1024;

/// A guest's memory, accessed by guest address.
pub trait GuestMemory {
    /// A range of it that is contiguous on the host and bounds-checked once.
    type Area: Area;
    /// A contiguous segment for scatter and gather.
    type Segment: Copy;

    /// The `len` bytes at guest address `addr`, if they lie within one region.
    fn area(&self, addr: u64, len: usize) -> Option<Self::Area>;

    /// The 16 bytes at guest address `addr` as two little-endian words, if they lie within one region.
    fn load_pair(&self, addr: u64) -> Option<[u64; 2]>;

    /// The `len` bytes at `addr` as one segment, if they are contiguous on the host. They almost always are.
    fn segment(&self, addr: u64, len: u32) -> Option<Self::Segment>;

    /// Appends the segments of `len` bytes at `addr`. Returns false if a byte lies outside; some segments may be
    /// appended then.
    fn segments(&self, addr: u64, len: u32, out: &mut Vec<Self::Segment>) -> bool;

    /// Copies from the front of `segments` into `bytes`, up to the shorter length. Returns the number of copied bytes.
    fn peek(&self, segments: &[Self::Segment], bytes: &mut [u8]) -> usize;

    /// The first 16 bytes of a segment as two little-endian words, if it is long enough.
    fn segment_pair(&self, segment: &Self::Segment) -> Option<[u64; 2]>;

    /// Bytes of a segment.
    fn segment_len(segment: &Self::Segment) -> usize;

    /// The segment without its first `bytes` (at most its length).
    fn segment_skip(segment: &Self::Segment, bytes: usize) -> Self::Segment;

    /// Only the first `bytes` of the segment (at most its length).
    fn segment_take(segment: &Self::Segment, bytes: usize) -> Self::Segment;

    /// Records that the device wrote `len` bytes at `addr`, for live migration. Does nothing without a log.
    fn mark_dirty(&self, addr: u64, len: usize);

    /// Prefetches the cache line at guest address `addr` for reading and writing. A hint: an invalid address is
    /// ignored.
    fn prefetch(&self, addr: u64) {
        let _ = addr;
    }
}

/// Shared memory that the guest may write at any time: each access is one volatile or atomic load or store.
///
/// `at` is a byte position inside the area; all values are little-endian.
///
/// # Panics
/// Every method panics if the access is not wholly inside, or not aligned where it is atomic. Callers check both when
/// they create the area.
pub trait Area {
    /// A plain load.
    fn load_u16(&self, at: usize) -> u16;
    /// A load with acquire ordering.
    fn acquire_u16(&self, at: usize) -> u16;
    /// A plain store.
    fn store_u16(&self, at: usize, value: u16);
    /// A store with release ordering.
    fn release_u16(&self, at: usize, value: u16);
    /// Prefetches the cache line at `at` for reading. A hint.
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
    /// Sixteen bytes as two little-endian words. Concurrent writes may yield any mixture.
    fn load_pair(&self, at: usize) -> [u64; 2];
}
