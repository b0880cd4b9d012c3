//! The memory of requests in flight: scatter lists over guest memory, or pool memory.
//!
//! A front end claims a slot for each request. The slot's number is the `buffer` of the request's `Data` and travels
//! through the shard. Datastores access the memory through it, and the front end releases it with the completion.
//!
//! # Always true
//! - a slot's segments are valid while it is claimed: the slot keeps guest memory mapped, and owns pool memory
//! - a slot is released only when the kernel uses none of its memory (`in_kernel == 0`, asserted)
//! - in steady state nothing is allocated: lists and pool blocks are reused
//! - the slot of zeroes ([`Buffers::zeroes`]) is never written
//! - the list of a part that the kernel uses is not changed until the kernel has returned it, however many parts of one
//!   slot are with the kernel together
//! - a free slot's lists have room for at most [`SHORT_LIST`] segments; some longer lists are cached for reuse
//!
//! # Units
//! Positions and lengths are bytes inside the slot.

use super::checksum::Checksum;
use super::guest::{Mapping, Mmap, Segment, gather};
use part_lists::{PartList, PartLists};
use std::rc::Rc;
use tidegate_core::request::Data;

mod part_lists;

/// Pool blocks are powers of two from this size, so that a block fits the next request of similar size.
const SMALLEST_BLOCK: usize = 4096;
/// Larger blocks are returned to the system instead of cached.
const LARGEST_CACHED: usize = 1 << 20;
/// A slot keeps room for this many segments permanently; there may once have been a million slots. Most requests have
/// one piece; 64 KiB in scattered pages have 16.
pub(crate) const SHORT_LIST: usize = 16;
/// Cached long lists have room for this many segments: a driver's request has 126, and a header.
const LONGEST_CACHED: usize = 128;
/// How many long lists are cached: as many as a driver has requests in flight on a queue, 2 MiB on each I/O thread.
const LONG_LISTS: usize = 1024;
/// Free blocks cached per size: this many bytes, but at least this many blocks. Four NBD clients with 512 requests of 4
/// KiB in flight each can reuse their blocks. A block that is not cached costs its next request two system calls and a
/// page fault. With 64 cached blocks, a read at queue depth 128 took five times the CPU of one at depth 64.
const CACHED_BYTES: usize = 8 << 20;
const CACHED_LEAST: usize = 64;
/// Size of the slot of zeroes. Its pages are the kernel's shared zero page: it takes no memory.
pub(crate) const ZEROES: usize = 1 << 20;

/// See the module.
pub(crate) struct Buffers {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Unused long lists, empty.
    long: Vec<Vec<Segment>>,
    pool: Pool,
    /// Lists for parts of slots, besides each slot's own.
    parts: PartLists,
    /// The slot of zeroes, after its first use.
    zeroes: Option<u32>,
    checksum: Checksum,
}

#[derive(Default)]
struct Slot {
    segments: Vec<Segment>,
    len: usize,
    owner: Owner,
    /// The list that the kernel reads for a part of the slot; unchanged until that operation's end.
    part: Vec<Segment>,
    in_kernel: u32,
    /// The first of the lists for further parts that are in the kernel together.
    further_parts: Option<PartList>,
}

/// What keeps a slot's segments valid.
#[derive(Default)]
enum Owner {
    #[default]
    Vacant,
    Guest(#[expect(dead_code, reason = "held for its drop")] Rc<Mapping>),
    Pool(Mmap),
}

impl Buffers {
    /// Empty.
    pub(crate) fn new() -> Buffers {
        Buffers {
            slots: Vec::new(),
            free: Vec::new(),
            long: Vec::new(),
            pool: Pool::default(),
            parts: PartLists::default(),
            zeroes: None,
            checksum: Checksum::new(),
        }
    }

    /// Claims a slot over guest memory. Takes the list from `segments`, and leaves an empty one with room.
    #[inline(always)]
    pub(crate) fn claim_guest(&mut self, memory: &Rc<Mapping>, segments: &mut Vec<Segment>) -> u32 {
        let index = self.vacant();
        let slot = &mut self.slots[index as usize];
        slot.len = segments.iter().map(Segment::len).sum();
        std::mem::swap(&mut slot.segments, segments);
        slot.owner = Owner::Guest(Rc::clone(memory));
        index
    }

    /// As [`Buffers::claim_guest`], but `segments` may have room for many. If the list is short, `segments` keeps that
    /// room. If it is long, the slot takes it, and `segments` gets a cached list if there is one.
    #[cold]
    pub(crate) fn claim_guest_roomy(
        &mut self,
        memory: &Rc<Mapping>,
        segments: &mut Vec<Segment>,
    ) -> u32 {
        if segments.len() <= SHORT_LIST {
            let index = self.vacant();
            let slot = &mut self.slots[index as usize];
            slot.len = segments.iter().map(Segment::len).sum();
            slot.segments.append(segments);
            slot.owner = Owner::Guest(Rc::clone(memory));
            return index;
        }
        let index = self.claim_guest(memory, segments);
        if let Some(long) = self.long.pop() {
            // The slot gets its short list back when it is released.
            self.slots[index as usize].part = std::mem::replace(segments, long);
        }
        index
    }

    /// How many segments the list of a slot over guest memory has room for: the memory that it takes while claimed.
    pub(crate) fn room(&self, index: u32) -> usize {
        self.slots[index as usize].segments.capacity()
    }

    /// Claims a slot of `len` bytes of pool memory, page-aligned. Its content is undefined.
    ///
    /// # Errors
    /// If the system has no memory.
    pub(crate) fn claim_pool(&mut self, len: usize) -> std::io::Result<u32> {
        let block = self.pool.take(len)?;
        let index = self.vacant();
        let slot = &mut self.slots[index as usize];
        slot.len = len;
        slot.segments.clear();
        if len > 0 {
            slot.segments.push(Segment::new(block.base(), len));
        }
        slot.owner = Owner::Pool(block);
        Ok(index)
    }

    /// The shared slot of [`ZEROES`] bytes, all zero: it is only read, and never released.
    ///
    /// # Errors
    /// If the system has no address space for it.
    pub(crate) fn zeroes(&mut self) -> std::io::Result<u32> {
        if let Some(index) = self.zeroes {
            return Ok(index);
        }
        // A fresh mapping, because pool blocks contain old data.
        let block = Mmap::anonymous(ZEROES)?;
        let index = self.vacant();
        let slot = &mut self.slots[index as usize];
        slot.len = ZEROES;
        slot.segments.clear();
        slot.segments.push(Segment::new(block.base(), ZEROES));
        slot.owner = Owner::Pool(block);
        self.zeroes = Some(index);
        Ok(index)
    }

    #[inline(always)]
    fn vacant(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 requests are in flight")
        })
    }

    /// Releases a slot.
    ///
    /// # Panics
    /// If the kernel still uses its memory, or it is not claimed.
    pub(crate) fn release(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        assert_eq!(
            slot.in_kernel, 0,
            "a buffer is released only when the kernel is done with it"
        );
        match std::mem::take(&mut slot.owner) {
            Owner::Vacant => panic!("a buffer is released once"),
            Owner::Guest(_) => {}
            Owner::Pool(block) => self.pool.put(block),
        }
        slot.segments.clear();
        // The list of a part is no longer than that of the whole.
        if slot.segments.capacity() > SHORT_LIST {
            self.cache_long_list(index);
        }
        self.free.push(index);
    }

    /// Removes the long list of a slot, which keeps a short one.
    #[cold]
    fn cache_long_list(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let mut short = std::mem::take(&mut slot.part);
        if short.capacity() > SHORT_LIST {
            short = Vec::new();
        }
        short.clear();
        let mut long = std::mem::replace(&mut slot.segments, short);
        if self.long.len() < LONG_LISTS {
            long.shrink_to(LONGEST_CACHED);
            self.long.push(long);
        }
    }

    /// Whether the kernel uses the memory of any slot.
    pub(crate) fn is_lent(&self) -> bool {
        self.slots.iter().any(|slot| slot.in_kernel > 0)
    }

    /// How many slots are claimed.
    #[cfg(test)]
    pub(crate) fn claimed(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Bytes in a slot.
    pub(crate) fn len(&self, index: u32) -> usize {
        self.slots[index as usize].len
    }

    /// Bytes of memory that a pool slot takes: its whole block.
    pub(crate) fn block(&self, index: u32) -> usize {
        match &self.slots[index as usize].owner {
            Owner::Pool(block) => block.len(),
            Owner::Vacant | Owner::Guest(_) => 0,
        }
    }

    /// Bytes of memory that a pool slot of this length takes.
    pub(crate) fn block_of(len: usize) -> usize {
        len.max(SMALLEST_BLOCK).next_power_of_two()
    }

    /// Whether it is pool memory, so that stale bytes in it may be another disk's.
    pub(crate) fn is_pool(&self, index: u32) -> bool {
        matches!(self.slots[index as usize].owner, Owner::Pool(_))
    }

    /// The segments of a slot.
    pub(crate) fn segments(&self, index: u32) -> &[Segment] {
        &self.slots[index as usize].segments
    }

    /// Whether every piece from `data` on starts and ends at multiples of `alignment`, as direct I/O requires.
    pub(crate) fn is_memory_aligned(&self, data: Data, alignment: usize) -> bool {
        (data.start as usize).is_multiple_of(alignment)
            && self
                .segments(data.buffer)
                .iter()
                .all(|s| s.is_aligned(alignment) && s.len().is_multiple_of(alignment))
    }

    /// Lends the scatter list of `len` bytes from `data` to the kernel: valid until [`Buffers::returned`].
    ///
    /// Any number of parts of a slot may be lent together. The first has the slot's own list, each further one a list of
    /// its own, which returns to the pool of lists when the kernel uses none of the slot. If the slot is in one piece, the
    /// kernel gets the piece, not a list.
    ///
    /// # Panics
    /// If the range is not inside the slot.
    pub(super) fn lend(&mut self, data: Data, len: usize) -> &[Segment] {
        let slot = &mut self.slots[data.buffer as usize];
        let start = data.start as usize;
        assert!(
            start + len <= slot.len,
            "an operation lies within its buffer"
        );
        slot.in_kernel += 1;
        if start == 0 && len == slot.len {
            return &slot.segments;
        }
        let part = match slot.in_kernel == 1 || slot.segments.len() == 1 {
            true => &mut slot.part,
            false => self.parts.take(&mut slot.further_parts),
        };
        part.clear();
        for piece in pieces(&slot.segments, start, len) {
            part.push(piece);
        }
        part
    }

    /// The kernel has completed one operation on the slot.
    ///
    /// # Panics
    /// If there was none.
    pub(crate) fn returned(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.in_kernel = slot
            .in_kernel
            .checked_sub(1)
            .expect("the kernel returns only what it was lent");
        if slot.in_kernel == 0 && slot.further_parts.is_some() {
            self.parts.put(&mut slot.further_parts);
        }
    }

    /// Copies `bytes` into the slot from `data` on; as much as fits.
    pub(crate) fn put(&mut self, data: Data, bytes: &[u8]) {
        let mut rest = bytes;
        for piece in pieces(self.segments(data.buffer), data.start as usize, bytes.len()) {
            let (now, later) = rest.split_at(piece.len());
            // SAFETY: the piece is valid memory of its length (module invariant); `now` is as long and a plain slice,
            // so they do not overlap.
            unsafe {
                std::ptr::copy_nonoverlapping(now.as_ptr(), piece.0.iov_base.cast(), now.len())
            };
            rest = later;
        }
    }

    /// Copies out of the slot from `data` on into `bytes`; as much as there is.
    pub(crate) fn get(&self, data: Data, bytes: &mut [u8]) {
        let mut done = 0;
        for piece in pieces(self.segments(data.buffer), data.start as usize, bytes.len()) {
            done += gather(&[piece], &mut bytes[done..]);
        }
    }

    /// The `N` bytes of a slot from `data` on; `None` if its first piece does not contain them all.
    #[inline(always)]
    pub(crate) fn get_array<const N: usize>(&self, data: Data) -> Option<[u8; N]> {
        let piece = self.segments(data.buffer).first()?;
        let start = data.start as usize;
        if start + N > piece.len() {
            return None;
        }
        let from = piece.0.iov_base.cast::<u8>().wrapping_add(start);
        let mut bytes = [0; N];
        // SAFETY: the piece is valid memory of its length (module invariant), which was compared; `bytes` is our own.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), N) };
        Some(bytes)
    }

    /// Copies `len` bytes from one slot to another, in any pieces; as many as both have.
    ///
    /// # Panics
    /// If both are the same slot.
    pub(crate) fn transfer(&mut self, from: Data, to: Data, len: usize) {
        assert_ne!(
            from.buffer, to.buffer,
            "bytes are transferred between two buffers"
        );
        let mut targets = pieces(self.segments(to.buffer), to.start as usize, len);
        let mut target = targets.next();
        for source in pieces(self.segments(from.buffer), from.start as usize, len) {
            let mut source = Some(source);
            while let (Some(piece), Some(room)) = (source, target) {
                let take = piece.len().min(room.len());
                // SAFETY: both pieces are valid memory of at least `take` bytes (module invariant). They are of different
                // slots; where a guest's memory overlaps itself, its bytes are the guest's responsibility, hence `copy`.
                unsafe {
                    std::ptr::copy(
                        piece.0.iov_base.cast::<u8>(),
                        room.0.iov_base.cast::<u8>(),
                        take,
                    );
                }
                source = pieces(&[piece], take, piece.len() - take).next();
                target = pieces(&[room], take, room.len() - take)
                    .next()
                    .or_else(|| targets.next());
            }
        }
    }

    /// The checksum of `len` bytes from `data` on. Where a guest writes to them meanwhile, it is that of some mixture.
    #[inline(always)]
    pub(crate) fn sum(&self, data: Data, len: usize) -> u32 {
        let (segments, start) = (self.segments(data.buffer), data.start as usize);
        match segments {
            // One piece is the rule.
            [only] if start + len <= only.len() => {
                // SAFETY: the piece has so many bytes (module invariant, and compared).
                let base = unsafe { only.0.iov_base.cast::<u8>().add(start) };
                self.checksum.of_piece(&Segment::new(base, len))
            }
            _ => self.sum_of_pieces(data, len),
        }
    }

    #[inline(never)]
    fn sum_of_pieces(&self, data: Data, len: usize) -> u32 {
        let segments = self.segments(data.buffer);
        self.checksum.of(pieces(segments, data.start as usize, len))
    }

    /// Copies `len` bytes from one pool slot to another.
    ///
    /// # Panics
    /// If either is not one piece of that length, or both are the same.
    pub(crate) fn copy(&mut self, from: Data, to: Data, len: usize) {
        let source = one_piece(self.segments(from.buffer), from.start as usize, len);
        let target = one_piece(self.segments(to.buffer), to.start as usize, len);
        assert_ne!(
            from.buffer, to.buffer,
            "bytes are copied between two buffers"
        );
        // SAFETY: both pieces are valid memory of `len` bytes (module invariant), of different mappings.
        unsafe {
            std::ptr::copy_nonoverlapping(
                source.0.iov_base.cast::<u8>(),
                target.0.iov_base.cast(),
                len,
            )
        };
    }

    /// Fills `len` bytes from `data` on with zeroes.
    pub(crate) fn clear(&mut self, data: Data, len: usize) {
        for piece in pieces(self.segments(data.buffer), data.start as usize, len) {
            // SAFETY: the piece is valid memory of its length (module invariant).
            unsafe { std::ptr::write_bytes(piece.0.iov_base.cast::<u8>(), 0, piece.len()) };
        }
    }
}

impl Default for Buffers {
    fn default() -> Buffers {
        Buffers::new()
    }
}

/// The pieces of `segments` that make up `len` bytes from `start`; fewer if they end before.
pub(super) fn pieces(
    segments: &[Segment],
    start: usize,
    len: usize,
) -> impl Iterator<Item = Segment> + '_ {
    let mut skip = start;
    let mut left = len;
    segments.iter().filter_map(move |segment| {
        let here = segment.len();
        if skip >= here {
            skip -= here;
            return None;
        }
        let take = (here - skip).min(left);
        // SAFETY: skip < the segment's length.
        let base = unsafe { segment.0.iov_base.cast::<u8>().add(skip) };
        skip = 0;
        left -= take;
        (take > 0).then(|| Segment::new(base, take))
    })
}

/// The single piece of `len` bytes from `start`.
fn one_piece(segments: &[Segment], start: usize, len: usize) -> Segment {
    let piece = pieces(segments, start, len)
        .next()
        .expect("the range lies within the buffer");
    assert_eq!(piece.len(), len, "pool memory is in one piece");
    piece
}

/// Free pool blocks, by size.
#[derive(Default)]
struct Pool {
    sizes: [Vec<Mmap>; 9],
}

impl Pool {
    fn class(len: usize) -> usize {
        (Buffers::block_of(len) / SMALLEST_BLOCK).ilog2() as usize
    }

    fn take(&mut self, len: usize) -> std::io::Result<Mmap> {
        if let Some(block) = self.sizes.get_mut(Pool::class(len)).and_then(Vec::pop) {
            return Ok(block);
        }
        Mmap::anonymous(Buffers::block_of(len))
    }

    fn put(&mut self, block: Mmap) {
        if block.len() <= LARGEST_CACHED {
            let most = (CACHED_BYTES / block.len()).max(CACHED_LEAST);
            let free = &mut self.sizes[Pool::class(block.len())];
            if free.len() < most {
                free.push(block);
            }
        }
    }
}

#[cfg(test)]
mod tests;
