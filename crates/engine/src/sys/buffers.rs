//! The bytes of requests in flight: scatter lists over guest memory, or memory of our own.
//!
//! A front end claims a slot for each request; its number is the `buffer` of the request's `Data` and travels
//! through the shard. Datastores reach the bytes through it, and the front end releases it with the answer.
//!
//! # Always true
//! - a slot's segments stay valid while it is claimed: guest memory is kept mapped by the slot, pool memory is owned by it
//! - a slot is released only when the kernel holds none of its bytes (`in_kernel == 0`, asserted)
//! - in steady state nothing is allocated: lists and pool blocks are used again
//! - the bytes of the slot of zeroes ([`Buffers::zeroes`]) are never written
//! - a free slot's lists have room for [`SHORT_LIST`] segments at most; of longer ones a few are kept, for whoever needs one
//!
//! # Units
//! Positions and lengths are bytes inside the slot.

use super::guest::{Mapping, Mmap, Segment, gather};
use std::rc::Rc;
use tidegate_core::request::Data;

/// Pool blocks come in powers of two from this, so that one fits the next request of about its size.
const SMALLEST_BLOCK: usize = 4096;
/// Blocks above this are given back to the system rather than kept.
const LARGEST_KEPT: usize = 1 << 20;
/// Room for this many segments stays with a slot, for ever: there may once have been a million of them. Most requests have
/// one piece, and 64 KiB in scattered pages have these.
pub(crate) const SHORT_LIST: usize = 16;
/// Longer lists are kept with room for so many segments: a request of a driver has 126, and its header comes before them.
const LONGEST_KEPT: usize = 128;
/// How many of them: as many as a driver has requests in flight on a queue, which is 2 MiB on each I/O thread.
const LONG_KEPT: usize = 1024;
/// Free blocks kept per size: as many as come to this many bytes, and no fewer than so many. Four NBD clients that each
/// keep 512 requests of 4 KiB under way find their blocks again. A block that is not kept costs its next request two
/// system calls and a fault: with 64 kept, a read at queue depth 128 took five times the CPU of one at 64.
const KEPT_BYTES: usize = 8 << 20;
const KEPT_LEAST: usize = 64;
/// Bytes in the slot of zeroes. Its pages are the kernel's one page of zeroes: it takes no memory.
pub(crate) const ZEROES: usize = 1 << 20;

/// See the module.
pub(crate) struct Buffers {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Long lists that nobody uses, empty.
    long: Vec<Vec<Segment>>,
    pool: Pool,
    /// The slot of zeroes, once somebody has wanted it.
    zeroes: Option<u32>,
}

#[derive(Default)]
struct Slot {
    segments: Vec<Segment>,
    len: usize,
    keep: Keep,
    /// Lists that the kernel reads for a part of the slot; kept until that operation's end.
    part: Vec<Segment>,
    in_kernel: u32,
}

/// What keeps a slot's segments valid.
#[derive(Default)]
enum Keep {
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
            zeroes: None,
        }
    }

    /// A slot over guest memory. The list is taken from `segments`, which gets an empty one with room instead.
    pub(crate) fn claim_guest(&mut self, memory: &Rc<Mapping>, segments: &mut Vec<Segment>) -> u32 {
        let index = self.vacant();
        let slot = &mut self.slots[index as usize];
        slot.len = segments.iter().map(Segment::len).sum();
        std::mem::swap(&mut slot.segments, segments);
        slot.keep = Keep::Guest(Rc::clone(memory));
        index
    }

    /// The same where `segments` has room for many. It keeps that for the next that are many; where these are, the slot takes
    /// it, and `segments` gets as much again if some was kept.
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
            slot.keep = Keep::Guest(Rc::clone(memory));
            return index;
        }
        let index = self.claim_guest(memory, segments);
        if let Some(long) = self.long.pop() {
            // The short one is the slot's again when it is released.
            self.slots[index as usize].part = std::mem::replace(segments, long);
        }
        index
    }

    /// How many segments the list of a slot over guest memory has room for: the memory that it takes while it is claimed.
    pub(crate) fn room(&self, index: u32) -> usize {
        self.slots[index as usize].segments.capacity()
    }

    /// A slot of `len` bytes of our own, page-aligned. What is in them is not defined.
    ///
    /// # Errors
    /// When the system has no memory.
    pub(crate) fn claim_pool(&mut self, len: usize) -> std::io::Result<u32> {
        let block = self.pool.take(len)?;
        let index = self.vacant();
        let slot = &mut self.slots[index as usize];
        slot.len = len;
        slot.segments.clear();
        if len > 0 {
            slot.segments.push(Segment::new(block.base(), len));
        }
        slot.keep = Keep::Pool(block);
        Ok(index)
    }

    /// The slot of [`ZEROES`] bytes, all zero, that everybody shares: to be written from, never into, and never released.
    ///
    /// # Errors
    /// When the system has no room to map it.
    pub(crate) fn zeroes(&mut self) -> std::io::Result<u32> {
        if let Some(index) = self.zeroes {
            return Ok(index);
        }
        // Fresh, as blocks of the pool hold what they held last.
        let block = Mmap::anonymous(ZEROES)?;
        let index = self.vacant();
        let slot = &mut self.slots[index as usize];
        slot.len = ZEROES;
        slot.segments.clear();
        slot.segments.push(Segment::new(block.base(), ZEROES));
        slot.keep = Keep::Pool(block);
        self.zeroes = Some(index);
        Ok(index)
    }

    fn vacant(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 requests are in flight")
        })
    }

    /// Gives a slot back.
    ///
    /// # Panics
    /// While the kernel still holds its bytes, or when it is not claimed.
    pub(crate) fn release(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        assert_eq!(
            slot.in_kernel, 0,
            "a buffer is released only when the kernel is done with it"
        );
        match std::mem::take(&mut slot.keep) {
            Keep::Vacant => panic!("a buffer is released once"),
            Keep::Guest(_) => {}
            Keep::Pool(block) => self.pool.put(block),
        }
        slot.segments.clear();
        // The list of a part is no longer than that of the whole.
        if slot.segments.capacity() > SHORT_LIST {
            self.put_aside(index);
        }
        self.free.push(index);
    }

    /// Takes the long list of a slot away, which has a short one from now on.
    #[cold]
    fn put_aside(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        let mut short = std::mem::take(&mut slot.part);
        if short.capacity() > SHORT_LIST {
            short = Vec::new();
        }
        short.clear();
        let mut long = std::mem::replace(&mut slot.segments, short);
        if self.long.len() < LONG_KEPT {
            long.shrink_to(LONGEST_KEPT);
            self.long.push(long);
        }
    }

    /// Whether the kernel holds any of it.
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

    /// Bytes that a slot of our own memory takes: its whole block.
    pub(crate) fn block(&self, index: u32) -> usize {
        match &self.slots[index as usize].keep {
            Keep::Pool(block) => block.len(),
            Keep::Vacant | Keep::Guest(_) => 0,
        }
    }

    /// Bytes that a slot of so many of our own takes.
    pub(crate) fn block_of(len: usize) -> usize {
        len.max(SMALLEST_BLOCK).next_power_of_two()
    }

    /// Whether the slot's memory is our own, so that stale bytes in it might be another disk's.
    pub(crate) fn is_pool(&self, index: u32) -> bool {
        matches!(self.slots[index as usize].keep, Keep::Pool(_))
    }

    /// The segments of a slot.
    pub(crate) fn segments(&self, index: u32) -> &[Segment] {
        &self.slots[index as usize].segments
    }

    /// Whether every piece from `data` on begins and ends in memory at multiples of `alignment`, as direct I/O demands.
    pub(crate) fn is_memory_aligned(&self, data: Data, alignment: usize) -> bool {
        (data.start as usize).is_multiple_of(alignment)
            && self
                .segments(data.buffer)
                .iter()
                .all(|s| s.is_aligned(alignment) && s.len().is_multiple_of(alignment))
    }

    /// The scatter list of `len` bytes from `data`, for the kernel: valid until [`Buffers::returned`].
    ///
    /// # Panics
    /// When the range is not inside the slot, or when a part of this slot, which is in several pieces, is lent already: one
    /// list at a time. Of a slot in one piece any number of parts may be lent: the kernel is given the piece, not a list.
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
        assert!(
            slot.in_kernel == 1 || slot.segments.len() == 1,
            "one part of a buffer in pieces is with the kernel at a time"
        );
        slot.part.clear();
        for piece in pieces(&slot.segments, start, len) {
            slot.part.push(piece);
        }
        &slot.part
    }

    /// The kernel is done with one operation on the slot.
    ///
    /// # Panics
    /// When it had none.
    pub(crate) fn returned(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.in_kernel = slot
            .in_kernel
            .checked_sub(1)
            .expect("the kernel returns only what it was lent");
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

    /// The `N` bytes of a slot from `data` on; `None` if its first piece does not hold them all.
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

    /// Copies `len` bytes from one slot to another, whatever pieces either is in; as much as both have.
    ///
    /// # Panics
    /// When both are the same slot.
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
                // slots; where a guest's memory overlaps itself, its bytes are the guest's own trouble, hence `copy`.
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

    /// Copies `len` bytes from one slot of our own memory to another.
    ///
    /// # Panics
    /// When either is not one piece that long, or both are the same.
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

/// The pieces of `segments` that make up `len` bytes from `start`; fewer when they end before.
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

/// The one piece that `len` bytes from `start` are.
fn one_piece(segments: &[Segment], start: usize, len: usize) -> Segment {
    let piece = pieces(segments, start, len)
        .next()
        .expect("the range lies within the buffer");
    assert_eq!(piece.len(), len, "our own memory is in one piece");
    piece
}

/// Free blocks of our own, by size.
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
        if block.len() <= LARGEST_KEPT {
            let most = (KEPT_BYTES / block.len()).max(KEPT_LEAST);
            let free = &mut self.sizes[Pool::class(block.len())];
            if free.len() < most {
                free.push(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(buffer: u32, start: u32) -> Data {
        Data { buffer, start }
    }

    #[test]
    fn bytes_come_back_as_they_were_put() {
        let mut buffers = Buffers::new();
        let slot = buffers.claim_pool(10_000).expect("memory");
        buffers.put(data(slot, 100), b"hello");
        let mut out = [0; 5];
        buffers.get(data(slot, 100), &mut out);
        assert_eq!(buffers.get_array(data(slot, 100)), Some(out));
        assert_eq!(buffers.get_array::<5>(data(slot, 9_996)), None);
        assert_eq!(&out, b"hello");
        buffers.clear(data(slot, 101), 3);
        buffers.get(data(slot, 100), &mut out);
        assert_eq!(&out, b"h\0\0\0o");
        buffers.release(slot);
        assert_eq!(buffers.slots.len(), buffers.free.len());
    }

    #[test]
    fn a_part_that_is_lent_has_the_right_pieces() {
        let mut buffers = Buffers::new();
        let slot = buffers.claim_pool(8192).expect("memory");
        assert_eq!(buffers.lend(data(slot, 512), 1024)[0].len(), 1024);
        buffers.returned(slot);
        buffers.release(slot);
    }

    #[test]
    fn bytes_are_transferred_between_slots_in_different_pieces() {
        let mut buffers = Buffers::new();
        let [from, to] = [(); 2].map(|()| buffers.claim_pool(8192).expect("memory"));
        let bytes: Vec<u8> = (0..=255).cycle().take(8192).collect();
        buffers.put(data(from, 0), &bytes);
        for (slot, cuts) in [(from, [100, 700, 4000]), (to, [512, 600, 5000])] {
            let whole = buffers.slots[slot as usize].segments[0];
            let ends = cuts.into_iter().chain([8192]);
            let mut begin = 0;
            buffers.slots[slot as usize].segments = ends
                .map(|end| {
                    let piece = pieces(&[whole], begin, end - begin).next();
                    begin = end;
                    piece.expect("a piece")
                })
                .collect();
        }
        buffers.transfer(data(from, 50), data(to, 20), 6000);
        let mut out = vec![0; 6000];
        buffers.get(data(to, 20), &mut out);
        assert!(out == bytes[50..6050]);
        buffers.release(from);
        buffers.release(to);
    }

    #[test]
    fn zeroes_are_one_slot_of_which_many_parts_may_be_lent() {
        let mut buffers = Buffers::new();
        let zeroes = buffers.zeroes().expect("memory");
        assert_eq!(buffers.zeroes().expect("memory"), zeroes);
        for len in [512, 4096, ZEROES] {
            assert_eq!(buffers.lend(data(zeroes, 0), len)[0].len(), len);
        }
        let mut out = [1; 512];
        buffers.get(data(zeroes, 0), &mut out);
        assert_eq!(out, [0; 512]);
        for _ in 0..3 {
            buffers.returned(zeroes);
        }
    }

    #[test]
    fn the_blocks_of_a_deep_queue_are_used_again() {
        /// What one NBD client may keep under way.
        const DEPTH: usize = 512;
        let mut buffers = Buffers::new();
        let mut claim_all = || {
            let slots = (0..DEPTH).map(|_| buffers.claim_pool(4096).expect("memory"));
            let slots: Vec<u32> = slots.collect();
            let places = slots
                .iter()
                .map(|&slot| buffers.segments(slot)[0].0.iov_base);
            let mut places: Vec<_> = places.collect();
            places.sort_unstable();
            slots.iter().for_each(|&slot| buffers.release(slot));
            (places, buffers.pool.sizes[0].len())
        };
        let first = claim_all();
        assert_eq!(first.1, DEPTH, "all are kept");
        assert_eq!(claim_all(), first);
    }

    /// A list of so many pieces, all of them empty.
    fn list(pieces: usize) -> Vec<Segment> {
        vec![Segment::new(std::ptr::null_mut(), 0); pieces]
    }

    #[test]
    fn what_long_lists_took_is_given_back_but_for_a_few_that_are_used_again() {
        let mut buffers = Buffers::new();
        let memory = Rc::new(Mapping::empty());
        let slots = (0..3000).map(|_| buffers.claim_guest(&memory, &mut list(1024)));
        let slots: Vec<u32> = slots.collect();
        for &slot in &slots {
            assert_eq!(buffers.room(slot), 1024);
            // As a datastore does that was told of less than all.
            buffers.slots[slot as usize].part = list(1000);
        }
        slots.iter().for_each(|&slot| buffers.release(slot));
        let lists = buffers.slots.iter().flat_map(|s| [&s.segments, &s.part]);
        assert!(lists.into_iter().all(|l| l.capacity() <= SHORT_LIST));
        assert_eq!(buffers.long.len(), LONG_KEPT);
        assert!(buffers.long.iter().all(|l| l.capacity() <= LONGEST_KEPT));

        let kept = buffers.long.last().map(Vec::as_ptr);
        let mut next = list(100);
        let slot = buffers.claim_guest_roomy(&memory, &mut next);
        assert_eq!(kept, Some(next.as_ptr()));
        buffers.release(slot);
        assert_eq!(buffers.long.len(), LONG_KEPT);
    }

    #[test]
    fn requests_with_long_lists_and_short_ones_allocate_nothing_in_the_end() {
        let mut buffers = Buffers::new();
        let memory = Rc::new(Mapping::empty());
        let mut scratch = Vec::with_capacity(SHORT_LIST);
        let mut places = Vec::new();
        let mut new_in_a_round = || {
            let before = places.len();
            for pieces in [1, 100, 16, 17, 1] {
                scratch.clear();
                for piece in list(pieces) {
                    scratch.push(piece);
                }
                let slot = match scratch.capacity() {
                    ..=SHORT_LIST => buffers.claim_guest(&memory, &mut scratch),
                    _ => buffers.claim_guest_roomy(&memory, &mut scratch),
                };
                let list = buffers.segments(slot);
                assert_eq!(list.len(), pieces);
                assert!(pieces > SHORT_LIST || buffers.room(slot) <= SHORT_LIST);
                let place = list.as_ptr();
                if !places.contains(&place) {
                    places.push(place);
                }
                buffers.release(slot);
            }
            places.len() - before
        };
        for _ in 0..4 {
            new_in_a_round();
        }
        assert_eq!(new_in_a_round(), 0);
    }

    #[test]
    #[should_panic(expected = "the kernel is done with it")]
    fn a_buffer_that_the_kernel_holds_is_not_released() {
        let mut buffers = Buffers::new();
        let slot = buffers.claim_pool(4096).expect("memory");
        buffers.lend(data(slot, 0), 4096);
        buffers.release(slot);
    }
}
