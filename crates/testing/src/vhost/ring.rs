//! The driver's side of one split virtqueue, with its request headers and buffers.
//!
//! [`super::guest_driver`] fills slots, publishes them and takes them back. A slot has space for one request. Its
//! header, status byte, buffer and descriptors never move, so a request writes only two words of header and one ring
//! entry. Descriptors are rewritten only when a slot's kind of request changes.
//!
//! # Always true
//! - A slot is in flight from `push` until `pop`. A head that is not in flight is an error of the server.
//! # Picture
//! ```text
//! descriptors | available ring | used ring | slots: header, status, indirect table | buffers
//! ```
//! # Source
//! Virtio 1.2, 2.7 (split virtqueues) and 5.2 (block device).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use anyhow::{Result, bail};

use super::memory::Memory;
use crate::load::Kind;

const DESCRIPTOR: usize = 16;
const NEXT: u64 = 1;
const WRITE: u64 = 2;
const INDIRECT: u64 = 4;
/// Header and status on one cache line, the indirect table on the next.
const SLOT: usize = 128;
const STATUS: usize = 16;
const TABLE: usize = 64;
const PAGE: usize = 4096;

/// The shape of a ring.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of requests.
    pub slots: u16,
    /// Bytes of buffer per request.
    pub buffer: u32,
    /// One descriptor per request, pointing to a table, instead of a chain of three.
    pub indirect: bool,
    /// Notifications by index rather than by flag.
    pub event_idx: bool,
}

impl Shape {
    fn descriptors_per_slot(self) -> u16 {
        if self.indirect { 1 } else { 3 }
    }

    /// The number of descriptors, a power of two.
    #[must_use]
    pub fn size(self) -> u16 {
        (self.slots * self.descriptors_per_slot())
            .next_power_of_two()
            .max(4)
    }

    /// Bytes of memory of the ring with its slots and buffers.
    #[must_use]
    pub fn length(self) -> usize {
        Layout::of(self, 0).end
    }
}

#[derive(Clone, Copy, Debug)]
struct Layout {
    descriptors: usize,
    available: usize,
    used: usize,
    slots: usize,
    buffers: usize,
    buffer: usize,
    end: usize,
}

impl Layout {
    fn of(shape: Shape, start: usize) -> Self {
        let size = usize::from(shape.size());
        let available = start + size * DESCRIPTOR;
        let used = (available + 6 + 2 * size).next_multiple_of(PAGE);
        let slots = (used + 6 + 8 * size).next_multiple_of(PAGE);
        let buffers = (slots + usize::from(shape.slots) * SLOT).next_multiple_of(PAGE);
        let buffer = usize::try_from(shape.buffer)
            .expect("u32 fits usize")
            .next_multiple_of(PAGE);
        let end = buffers + usize::from(shape.slots) * buffer;
        Self {
            descriptors: start,
            available,
            used,
            slots,
            buffers,
            buffer,
            end,
        }
    }
}

/// The guest's view of one ring.
#[derive(Debug)]
pub struct Ring {
    memory: Arc<Memory>,
    shape: Shape,
    layout: Layout,
    mask: u16,
    next: u16,
    published: u16,
    last_used: u16,
    seen_used: u16,
    kinds: Vec<Option<(Kind, u32)>>,
    in_flight: Vec<bool>,
}

impl Ring {
    /// Lays a ring out at `start`, which is a multiple of a page.
    #[must_use]
    pub fn new(memory: Arc<Memory>, shape: Shape, start: usize) -> Self {
        let slots = usize::from(shape.slots);
        Self {
            layout: Layout::of(shape, start),
            mask: shape.size() - 1,
            memory,
            shape,
            next: 0,
            published: 0,
            last_used: 0,
            seen_used: 0,
            kinds: vec![None; slots],
            in_flight: vec![false; slots],
        }
    }

    /// Its shape.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Our addresses of descriptor table, available ring and used ring, as sent to the server.
    #[must_use]
    pub fn addresses(&self) -> (u64, u64, u64) {
        let own = |offset| self.memory.own_address(offset);
        (
            own(self.layout.descriptors),
            own(self.layout.available),
            own(self.layout.used),
        )
    }

    /// Whether there are completions for [`Ring::pop`].
    #[must_use]
    pub fn has_answers(&self) -> bool {
        self.base() != self.last_used
    }

    /// The base for a restarted server: the used index, like QEMU's.
    #[must_use]
    pub fn base(&self) -> u16 {
        self.memory
            .u16(self.layout.used + 2)
            .load(Ordering::Acquire)
    }

    /// Writes a request's header. Writes the descriptors if the slot's previous request was of another kind.
    #[inline]
    pub fn prepare(&mut self, slot: u16, kind: Kind, sector: u64, length: u32) {
        let index = usize::from(slot);
        if self.kinds[index] != Some((kind, length)) {
            self.describe(slot, kind, length);
            self.kinds[index] = Some((kind, length));
        }
        let header = self.layout.slots + index * SLOT;
        self.memory.u64(header + 8).store(sector, Ordering::Relaxed);
    }

    fn describe(&self, slot: u16, kind: Kind, length: u32) {
        let index = usize::from(slot);
        let header = self.layout.slots + index * SLOT;
        let command = match kind {
            Kind::Read => 0,
            Kind::Write => 1,
            Kind::Flush => 4,
        };
        self.memory.u64(header).store(command, Ordering::Relaxed);

        let per_slot = self.shape.descriptors_per_slot();
        let head = self.layout.descriptors + index * usize::from(per_slot) * DESCRIPTOR;
        let (table, first) = if self.shape.indirect {
            (header + TABLE, 0)
        } else {
            (head, slot * 3)
        };
        let buffer = self.layout.buffers + index * self.layout.buffer;
        let data = if kind == Kind::Read { WRITE } else { 0 };
        self.descriptor(
            table,
            header,
            16,
            NEXT,
            first + if kind == Kind::Flush { 2 } else { 1 },
        );
        self.descriptor(table + DESCRIPTOR, buffer, length, NEXT | data, first + 2);
        self.descriptor(table + 2 * DESCRIPTOR, header + STATUS, 1, WRITE, 0);
        if self.shape.indirect {
            self.descriptor(head, header + TABLE, 48, INDIRECT, 0);
        }
    }

    fn descriptor(&self, at: usize, target: usize, length: u32, flags: u64, next: u16) {
        let rest = u64::from(length) | flags << 32 | u64::from(next) << 48;
        self.memory
            .u64(at)
            .store(self.memory.guest_address(target), Ordering::Relaxed);
        self.memory.u64(at + 8).store(rest, Ordering::Relaxed);
    }

    /// The used ring's range in the memory.
    #[must_use]
    pub fn used(&self) -> Range<usize> {
        let length = 6 + 8 * usize::from(self.shape.size());
        self.layout.used..self.layout.used + length
    }

    /// The offset of a slot's status byte.
    #[must_use]
    pub fn status_byte(&self, slot: u16) -> usize {
        self.layout.slots + usize::from(slot) * SLOT + STATUS
    }

    /// The offset of a slot's buffer.
    #[must_use]
    pub fn buffer(&self, slot: u16) -> usize {
        self.layout.buffers + usize::from(slot) * self.layout.buffer
    }

    /// The status of a slot's request: 0 is success.
    #[inline]
    #[must_use]
    pub fn status(&self, slot: u16) -> u8 {
        self.memory
            .u8(self.status_byte(slot))
            .load(Ordering::Relaxed)
    }

    /// Puts a prepared slot into the available ring. The server sees it after `publish`.
    #[inline]
    pub fn push(&mut self, slot: u16) {
        let head = slot * self.shape.descriptors_per_slot();
        let entry = self.layout.available + 4 + 2 * usize::from(self.next & self.mask);
        self.memory.u16(entry).store(head, Ordering::Relaxed);
        self.in_flight[usize::from(slot)] = true;
        self.next = self.next.wrapping_add(1);
    }

    /// Publishes the pushed slots. Returns whether the server must be kicked.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let (new, old) = (self.next, self.published);
        self.published = new;
        self.memory
            .u16(self.layout.available + 2)
            .store(new, Ordering::Release);
        // The server's notification setting is read after the new index is visible to it.
        fence(Ordering::SeqCst);
        if self.shape.event_idx {
            let event = self.layout.used + 4 + 8 * (usize::from(self.mask) + 1);
            let event = self.memory.u16(event).load(Ordering::Relaxed);
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.memory.u16(self.layout.used).load(Ordering::Relaxed) & 1 == 0
        }
    }

    /// Takes back one completed slot.
    ///
    /// # Errors
    /// The server returned a request that is not in flight.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<u16>> {
        if self.last_used == self.seen_used {
            self.seen_used = self
                .memory
                .u16(self.layout.used + 2)
                .load(Ordering::Acquire);
            if self.last_used == self.seen_used {
                return Ok(None);
            }
        }
        let entry = self.layout.used + 4 + 8 * usize::from(self.last_used & self.mask);
        let head = self.memory.u32(entry).load(Ordering::Relaxed);
        self.last_used = self.last_used.wrapping_add(1);
        let slot = head / u32::from(self.shape.descriptors_per_slot());
        match u16::try_from(slot) {
            Ok(slot) if self.take(slot, head) => Ok(Some(slot)),
            _ => bail!(
                "the server returned request {head}, which is not in flight: it was completed twice or never issued"
            ),
        }
    }

    #[inline]
    fn take(&mut self, slot: u16, head: u32) -> bool {
        head == u32::from(slot) * u32::from(self.shape.descriptors_per_slot())
            && self
                .in_flight
                .get_mut(usize::from(slot))
                .is_some_and(std::mem::take)
    }

    /// Enables an interrupt for the next completion. Returns true if there is one already, so that the caller must not
    /// wait.
    pub fn arm(&mut self) -> bool {
        if self.shape.event_idx {
            let event = self.layout.available + 4 + 2 * (usize::from(self.mask) + 1);
            self.memory
                .u16(event)
                .store(self.last_used, Ordering::Relaxed);
        }
        // The used index is read after the enabled interrupt is visible to the server.
        fence(Ordering::SeqCst);
        self.memory
            .u16(self.layout.used + 2)
            .load(Ordering::Acquire)
            != self.last_used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(indirect: bool) -> Ring {
        let shape = Shape {
            slots: 4,
            buffer: 4096,
            indirect,
            event_idx: true,
        };
        let memory = Arc::new(Memory::new(shape.length()).expect("a memfd"));
        Ring::new(memory, shape, 0)
    }

    /// Completes the `index`-th request like a server.
    fn answer(ring: &Ring, index: u16, head: u32) {
        let entry = ring.layout.used + 4 + 8 * usize::from(index & ring.mask);
        ring.memory.u32(entry).store(head, Ordering::Relaxed);
        ring.memory
            .u16(ring.layout.used + 2)
            .store(index.wrapping_add(1), Ordering::Release);
    }

    #[test]
    fn a_chain_is_header_data_status() {
        let mut ring = ring(false);
        ring.prepare(1, Kind::Read, 8, 4096);
        let word = |descriptor: usize| {
            ring.memory
                .u64(ring.layout.descriptors + descriptor * DESCRIPTOR + 8)
                .load(Ordering::Relaxed)
        };
        assert_eq!(word(3), 16 | NEXT << 32 | 4 << 48);
        assert_eq!(word(4), 4096 | (NEXT | WRITE) << 32 | 5 << 48);
        assert_eq!(word(5), 1 | WRITE << 32);
        ring.prepare(1, Kind::Flush, 0, 0);
        let head = ring
            .memory
            .u64(ring.layout.descriptors + 3 * DESCRIPTOR + 8)
            .load(Ordering::Relaxed);
        assert_eq!(head >> 48, 5, "a flush has no data");
    }

    #[test]
    fn an_indirect_request_takes_one_descriptor() {
        let mut ring = ring(true);
        ring.prepare(2, Kind::Write, 0, 512);
        let word = ring
            .memory
            .u64(ring.layout.descriptors + 2 * DESCRIPTOR + 8)
            .load(Ordering::Relaxed);
        assert_eq!(word, 48 | INDIRECT << 32);
    }

    #[test]
    fn a_completed_slot_is_returned_once() {
        let mut ring = ring(false);
        ring.prepare(2, Kind::Read, 0, 4096);
        ring.push(2);
        assert!(
            ring.publish(),
            "an idle server wants a kick for the first request"
        );
        assert_eq!(ring.pop().expect("no fault"), None);
        answer(&ring, 0, 6);
        assert!(ring.arm(), "there is a completion already");
        assert_eq!(ring.pop().expect("no fault"), Some(2));
        answer(&ring, 1, 6);
        ring.pop().expect_err("completed twice");
    }

    #[test]
    fn a_head_that_was_never_issued_is_an_error() {
        let mut ring = ring(false);
        ring.push(0);
        answer(&ring, 0, 1);
        ring.pop().expect_err("the middle of a chain");
    }

    #[test]
    fn indices_wrap() {
        let mut ring = ring(false);
        for round in 0..70_000_u32 {
            let index = u16::try_from(round % 65_536).expect("below 65536");
            ring.prepare(3, Kind::Read, 0, 4096);
            ring.push(3);
            ring.publish();
            answer(&ring, index, 9);
            assert_eq!(ring.pop().expect("no fault"), Some(3));
        }
    }
}
