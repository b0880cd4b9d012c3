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
//! - a slot belongs to a disk, and moves with it to another thread. Its number stays the same, and so do the addresses of its
//!   memory and of its lists: the kernel may use them meanwhile. A number that is free returns to the thread that gave it out
//! - the list of a part that the kernel uses is not changed until the kernel has returned it, however many parts of one
//!   slot are with the kernel together
//! - a free slot's lists have room for at most [`SHORT_LIST`] segments; some longer lists are cached for reuse
//!
//! # Units
//! Positions and lengths are bytes inside the slot.

use super::checksum::Checksum;
use super::guest::{Mapping, Mmap, Segment, gather};
use crate::numbered::{Numbered, giver};
use part_lists::{PartList, PartLists};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tidegate_core::request::{Data, DiskId};

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

/// The number of the slot of zeroes, on each thread.
const ZERO_SLOT: u32 = u32::MAX;
/// The disk of a slot that belongs to none.
pub(crate) const NO_DISK: DiskId = DiskId(u32::MAX);

/// Numbers of slots that became free on other threads than those that gave them out, by the latter.
pub(crate) struct ReturnedNumbers(Box<[Mutex<Vec<u32>>]>);

impl ReturnedNumbers {
    /// Those of so many threads.
    pub(crate) fn new(threads: usize) -> ReturnedNumbers {
        ReturnedNumbers((0..threads).map(|_| Mutex::default()).collect())
    }

    fn put(&self, number: u32) {
        let returned = &self.0[giver(number)];
        returned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(number);
    }

    fn take(&self, thread: usize) -> Vec<u32> {
        let mut returned = self.0[thread]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut returned)
    }
}

/// A slot on its way to another thread.
pub(crate) struct MovingSlot {
    number: u32,
    slot: Slot,
    /// The lists of further parts that are in the kernel.
    parts: Vec<Vec<Segment>>,
}

/// Slots on their way to another thread. If that has ended, their memory stays allocated while the kernel uses it.
#[derive(Default)]
pub(crate) struct MovingSlots(Vec<MovingSlot>);

impl MovingSlots {
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|moving| moving.number)
    }
}

impl Drop for MovingSlots {
    fn drop(&mut self) {
        for moving in self.0.drain(..) {
            if moving.slot.in_kernel > 0 {
                std::mem::forget(moving);
            }
        }
    }
}

/// See the module.
pub(crate) struct Buffers {
    thread: usize,
    slots: Numbered<Slot>,
    free: Vec<u32>,
    returned: Arc<ReturnedNumbers>,
    /// Unused long lists, empty.
    long: Vec<Vec<Segment>>,
    pool: Pool,
    /// Lists for parts of slots, besides each slot's own.
    parts: PartLists,
    /// The slot of zeroes, after its first use.
    zeroes: Option<Box<Slot>>,
    checksum: Checksum,
}

struct Slot {
    segments: Vec<Segment>,
    len: usize,
    owner: Owner,
    /// The list that the kernel reads for a part of the slot; unchanged until that operation's end.
    part: Vec<Segment>,
    in_kernel: u32,
    disk: DiskId,
    /// The first of the lists for further parts that are in the kernel together.
    further_parts: Option<PartList>,
}

/// What keeps a slot's segments valid.
#[derive(Default)]
enum Owner {
    #[default]
    Vacant,
    Guest(Arc<Mapping>),
    Pool(Mmap),
    /// The process keeps them.
    Zeroes,
}

/// The memory of the slots of zeroes, which all threads share. It is never unmapped.
static ZERO_MEMORY: OnceLock<Mmap> = OnceLock::new();

/// That memory, which exists from its first use on.
///
/// # Errors
/// If the system has no address space for it.
fn zero_memory() -> std::io::Result<&'static Mmap> {
    if let Some(memory) = ZERO_MEMORY.get() {
        return Ok(memory);
    }
    // A fresh mapping, because pool blocks contain old data.
    let fresh = Mmap::anonymous(ZEROES)?;
    Ok(ZERO_MEMORY.get_or_init(|| fresh))
}

/// A slot over them.
fn zeroes_of(memory: &'static Mmap) -> Box<Slot> {
    Box::new(Slot {
        segments: vec![Segment::new(memory.base(), ZEROES)],
        len: ZEROES,
        owner: Owner::Zeroes,
        disk: NO_DISK,
        ..Slot::default()
    })
}

impl Buffers {
    /// Empty, for a thread that shares no disks.
    pub(crate) fn new() -> Buffers {
        Buffers::of_thread(0, Arc::new(ReturnedNumbers::new(1)))
    }

    /// Empty, for the thread with this number.
    pub(crate) fn of_thread(thread: usize, returned: Arc<ReturnedNumbers>) -> Buffers {
        Buffers {
            thread,
            slots: Numbered::new(thread, 0),
            free: Vec::new(),
            returned,
            long: Vec::new(),
            pool: Pool::default(),
            parts: PartLists::default(),
            zeroes: None,
            checksum: Checksum::new(),
        }
    }

    /// Claims a slot over guest memory. Takes the list from `segments`, and leaves an empty one with room.
    #[inline(always)]
    pub(crate) fn claim_guest(
        &mut self,
        disk: DiskId,
        memory: &Arc<Mapping>,
        segments: &mut Vec<Segment>,
    ) -> u32 {
        let index = self.vacant();
        let slot = self.slot_mut(index);
        slot.disk = disk;
        slot.len = segments.iter().map(Segment::len).sum();
        std::mem::swap(&mut slot.segments, segments);
        slot.owner = Owner::Guest(Arc::clone(memory));
        index
    }

    /// As [`Buffers::claim_guest`], but `segments` may have room for many. If the list is short, `segments` keeps that
    /// room. If it is long, the slot takes it, and `segments` gets a cached list if there is one.
    #[cold]
    pub(crate) fn claim_guest_roomy(
        &mut self,
        disk: DiskId,
        memory: &Arc<Mapping>,
        segments: &mut Vec<Segment>,
    ) -> u32 {
        if segments.len() <= SHORT_LIST {
            let index = self.vacant();
            let slot = self.slot_mut(index);
            slot.disk = disk;
            slot.len = segments.iter().map(Segment::len).sum();
            slot.segments.append(segments);
            slot.owner = Owner::Guest(Arc::clone(memory));
            return index;
        }
        let index = self.claim_guest(disk, memory, segments);
        if let Some(long) = self.long.pop() {
            // The slot gets its short list back when it is released.
            self.slot_mut(index).part = std::mem::replace(segments, long);
        }
        index
    }

    /// How many segments the list of a slot over guest memory has room for: the memory that it takes while claimed.
    pub(crate) fn room(&self, index: u32) -> usize {
        self.slot(index).segments.capacity()
    }

    /// Claims a slot of `len` bytes of pool memory for a disk, page-aligned. Its content is undefined.
    ///
    /// # Errors
    /// If the system has no memory.
    pub(crate) fn claim_pool(&mut self, disk: DiskId, len: usize) -> std::io::Result<u32> {
        let block = self.pool.take(len)?;
        let index = self.vacant();
        let slot = self.slot_mut(index);
        slot.disk = disk;
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
        if self.zeroes.is_none() {
            self.zeroes = Some(zeroes_of(zero_memory()?));
        }
        Ok(ZERO_SLOT)
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> &Slot {
        match self.slots.get(index) {
            Some(slot) => slot,
            None => self.zero_slot(index),
        }
    }

    #[inline(always)]
    fn slot_mut(&mut self, index: u32) -> &mut Slot {
        match self.slots.get_mut(index) {
            Some(slot) => slot,
            None => zero_slot_mut(&mut self.zeroes, index),
        }
    }

    #[cold]
    #[inline(never)]
    fn zero_slot(&self, index: u32) -> &Slot {
        let zeroes = self.zeroes.as_ref().filter(|_| index == ZERO_SLOT);
        zeroes.expect("a buffer is used on the thread of its disk")
    }

    #[inline(always)]
    fn vacant(&mut self) -> u32 {
        match self.free.pop() {
            Some(index) => index,
            None => self.new_number(),
        }
    }

    /// A number that was returned by another thread, or a new one.
    #[cold]
    fn new_number(&mut self) -> u32 {
        self.free = self.returned.take(self.thread);
        let free = self.free.pop();
        free.unwrap_or_else(|| self.slots.add(Slot::default()))
    }

    /// Takes out the slots of a disk, and those with these numbers: another thread puts them in.
    pub(crate) fn take_out(&mut self, disk: DiskId, more: &[u32]) -> MovingSlots {
        let slots = self.slots.iter();
        let own = slots.filter(|(_, slot)| slot.disk == disk && !slot.is_vacant());
        let mut numbers: Vec<u32> = own.map(|(number, _)| number).collect();
        numbers.extend(more);
        self.take_numbers(&numbers)
    }

    /// Takes out the slots with these numbers: another thread puts them in.
    ///
    /// # Panics
    /// If one is not claimed.
    pub(crate) fn take_numbers(&mut self, numbers: &[u32]) -> MovingSlots {
        let moving = numbers.iter().map(|&number| {
            let mut slot = self.slots.take(number);
            assert!(!slot.is_vacant(), "a slot that moves is claimed");
            let parts = self.parts.take_out(&mut slot.further_parts);
            MovingSlot {
                number,
                slot,
                parts,
            }
        });
        MovingSlots(moving.collect())
    }

    /// Puts in the slots that another thread has taken out. What came with them may use the slot of zeroes.
    pub(crate) fn put_in(&mut self, mut slots: MovingSlots) {
        if let Some(memory) = ZERO_MEMORY.get() {
            self.zeroes.get_or_insert_with(|| zeroes_of(memory));
        }
        for moving in slots.0.drain(..) {
            let MovingSlot {
                number,
                mut slot,
                parts,
            } = moving;
            for part in parts {
                *self.parts.take(&mut slot.further_parts) = part;
            }
            self.slots.set(number, slot);
        }
    }

    /// Releases a slot.
    ///
    /// # Panics
    /// If the kernel still uses its memory, or it is not claimed.
    pub(crate) fn release(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index) else {
            panic!("a buffer is released on the thread of its disk");
        };
        assert_eq!(
            slot.in_kernel, 0,
            "a buffer is released only when the kernel is done with it"
        );
        match std::mem::take(&mut slot.owner) {
            // An arm of its own: it is the common case, and costs 20 instructions less so.
            Owner::Guest(memory) => drop(memory),
            Owner::Pool(block) => self.pool.put(block),
            Owner::Zeroes => {}
            Owner::Vacant => panic!("a buffer is released once"),
        }
        slot.segments.clear();
        // The list of a part is no longer than that of the whole.
        if slot.segments.capacity() > SHORT_LIST {
            self.cache_long_list(index);
        }
        match self.slots.is_own(index) {
            true => self.free.push(index),
            false => self.return_number(index),
        }
    }

    /// A number of another thread is free.
    #[cold]
    fn return_number(&mut self, index: u32) {
        drop(self.slots.take(index));
        self.returned.put(index);
    }

    /// Removes the long list of a slot, which keeps a short one.
    #[cold]
    fn cache_long_list(&mut self, index: u32) {
        let slot = self.slot_mut(index);
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
        self.slots.iter().any(|(_, slot)| slot.in_kernel > 0)
    }

    /// How many slots are claimed.
    #[cfg(test)]
    pub(crate) fn claimed(&self) -> usize {
        let slots = self.slots.iter();
        slots.filter(|(_, slot)| !slot.is_vacant()).count()
    }

    /// Bytes in a slot.
    pub(crate) fn len(&self, index: u32) -> usize {
        self.slot(index).len
    }

    /// Bytes of memory that a pool slot takes: its whole block.
    pub(crate) fn block(&self, index: u32) -> usize {
        match &self.slot(index).owner {
            Owner::Pool(block) => block.len(),
            Owner::Vacant | Owner::Guest(_) | Owner::Zeroes => 0,
        }
    }

    /// Bytes of memory that a pool slot of this length takes.
    pub(crate) fn block_of(len: usize) -> usize {
        len.max(SMALLEST_BLOCK).next_power_of_two()
    }

    /// Whether it is pool memory, so that stale bytes in it may be another disk's.
    pub(crate) fn is_pool(&self, index: u32) -> bool {
        matches!(self.slot(index).owner, Owner::Pool(_) | Owner::Zeroes)
    }

    /// The segments of a slot.
    pub(crate) fn segments(&self, index: u32) -> &[Segment] {
        &self.slot(index).segments
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
        let slot = match self.slots.get_mut(data.buffer) {
            Some(slot) => slot,
            None => zero_slot_mut(&mut self.zeroes, data.buffer),
        };
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
        let Some(slot) = self.slots.get_mut(index) else {
            // Zeroes may have been lent by another thread. They are always there, and not counted.
            assert_eq!(
                index, ZERO_SLOT,
                "a buffer returns to the thread of its disk"
            );
            return;
        };
        slot.in_kernel = slot
            .in_kernel
            .checked_sub(1)
            .expect("the kernel returns only what it was lent");
        if slot.in_kernel == 0 && slot.further_parts.is_some() {
            self.parts.put(&mut slot.further_parts);
        }
    }

    /// Where `len` bytes from `data` on are, if they are in the only piece of their slot. One piece is the rule.
    #[inline(always)]
    fn in_one_piece(&self, data: Data, len: usize) -> Option<*mut u8> {
        let start = data.start as usize;
        match self.segments(data.buffer) {
            [only] if start + len <= only.len() => {
                // SAFETY: the piece has so many bytes, as was compared.
                Some(unsafe { only.0.iov_base.cast::<u8>().add(start) })
            }
            _ => None,
        }
    }

    /// Copies `bytes` into the slot from `data` on; as much as fits.
    #[inline]
    pub(crate) fn put(&mut self, data: Data, bytes: &[u8]) {
        match self.in_one_piece(data, bytes.len()) {
            // SAFETY: the piece is valid memory of that length (module invariant); `bytes` is a plain slice, so they do
            // not overlap.
            Some(to) => unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) },
            None => self.put_pieces(data, bytes),
        }
    }

    #[inline(never)]
    fn put_pieces(&mut self, data: Data, bytes: &[u8]) {
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
    #[inline]
    pub(crate) fn get(&self, data: Data, bytes: &mut [u8]) {
        match self.in_one_piece(data, bytes.len()) {
            // SAFETY: as in `put`.
            Some(from) => unsafe {
                std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
            },
            None => self.get_pieces(data, bytes),
        }
    }

    #[inline(never)]
    fn get_pieces(&self, data: Data, bytes: &mut [u8]) {
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

    /// Makes `len` bytes from `data` on zero.
    pub(crate) fn zero(&mut self, data: Data, len: usize) {
        for piece in pieces(self.segments(data.buffer), data.start as usize, len) {
            // SAFETY: the piece is valid memory of its length (module invariant). A guest that writes to it meanwhile reads
            // a mixture, which is its own responsibility.
            unsafe {
                std::ptr::write_bytes(piece.0.iov_base.cast::<u8>(), 0, piece.len());
            }
        }
    }

    /// The checksum of `len` bytes from `data` on. Where a guest writes to them meanwhile, it is that of some mixture.
    #[inline(always)]
    pub(crate) fn sum(&self, data: Data, len: usize) -> u32 {
        match self.in_one_piece(data, len) {
            Some(base) => self.checksum.of_piece(&Segment::new(base, len)),
            None => self.sum_of_pieces(data, len),
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

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            segments: Vec::new(),
            len: 0,
            owner: Owner::Vacant,
            part: Vec::new(),
            in_kernel: 0,
            disk: NO_DISK,
            further_parts: None,
        }
    }
}

impl Slot {
    fn is_vacant(&self) -> bool {
        matches!(self.owner, Owner::Vacant)
    }
}

/// As [`Buffers::zero_slot`], while other parts of the buffers are in use.
#[cold]
#[inline(never)]
fn zero_slot_mut(zeroes: &mut Option<Box<Slot>>, index: u32) -> &mut Slot {
    let zeroes = zeroes.as_deref_mut().filter(|_| index == ZERO_SLOT);
    zeroes.expect("a buffer is used on the thread of its disk")
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

    // Not inline, so that releasing guest memory needs no registers for it.
    #[inline(never)]
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
