//! The memory of a `memory` disk.

use super::buffers::Buffers;
use super::guest::Mmap;
use std::io;
use tidegate_core::request::Data;

/// The unit in which memory is freed.
pub(crate) const PAGE: usize = 4096;

/// Private memory, initially zeroes.
pub(crate) struct Memory {
    map: Mmap,
}

impl Memory {
    /// `len` bytes of address space.
    ///
    /// # Errors
    /// If mmap fails.
    pub(crate) fn new(len: usize) -> io::Result<Memory> {
        Ok(Memory {
            map: Mmap::anonymous(len)?,
        })
    }

    /// The address of a range.
    ///
    /// # Panics
    /// If it is not inside.
    fn at(&self, start: usize, len: usize) -> *mut u8 {
        let inside = start
            .checked_add(len)
            .is_some_and(|end| end <= self.map.len());
        assert!(inside, "the shard admits only requests within the disk");
        // SAFETY: start lies within the mapping or at its end, checked above.
        unsafe { self.map.base().add(start) }
    }

    /// Copies `len` bytes from `start` into the buffer.
    pub(crate) fn read(&self, start: usize, len: usize, buffers: &mut Buffers, data: Data) {
        let from = self.at(start, len);
        // SAFETY: the range is mapped, and not written meanwhile: only the image's thread uses it.
        let bytes = unsafe { std::slice::from_raw_parts(from, len) };
        buffers.put(data, bytes);
    }

    /// Copies `len` bytes of the buffer to `start`.
    pub(crate) fn write(&mut self, start: usize, len: usize, buffers: &Buffers, data: Data) {
        let to = self.at(start, len);
        // SAFETY: the range is mapped and borrowed exclusively through `&mut self`.
        let bytes = unsafe { std::slice::from_raw_parts_mut(to, len) };
        buffers.get(data, bytes);
    }

    /// Zeroes `len` bytes from `start`; whole pages of them are freed.
    pub(crate) fn clear(&mut self, start: usize, len: usize) {
        let end = start + len;
        let (first, last) = (start.next_multiple_of(PAGE), end / PAGE * PAGE);
        if first < last {
            self.zero(start, first - start);
            self.map.discard(first, last - first);
            self.zero(last, end - last);
        } else {
            self.zero(start, len);
        }
    }

    fn zero(&mut self, start: usize, len: usize) {
        let to = self.at(start, len);
        // SAFETY: the range is mapped, checked by `at`.
        unsafe { std::ptr::write_bytes(to, 0, len) };
    }
}
