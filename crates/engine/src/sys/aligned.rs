//! Page-aligned memory for direct I/O.

use super::guest::Mmap;
use std::io;

/// Zeroes until written. Nobody else maps it, and no operation of the kernel's outlives the call that began it.
pub(crate) struct Aligned {
    map: Mmap,
}

impl Aligned {
    /// `len` bytes.
    ///
    /// # Errors
    /// What mmap says.
    pub(crate) fn new(len: usize) -> io::Result<Aligned> {
        Ok(Aligned {
            map: Mmap::anonymous(len)?,
        })
    }

    /// All of it.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is private memory of `len` bytes, zero or written before, borrowed through `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.map.base(), self.map.len()) }
    }
}
