//! Page-aligned memory for direct I/O.

use super::guest::Mmap;
use std::io;

/// Page-aligned private memory, initially zeroes. It has no other user, and no kernel operation on it outlives the call
/// that started it.
pub(crate) struct Aligned {
    map: Mmap,
}

impl Aligned {
    /// `len` bytes.
    ///
    /// # Errors
    /// If mmap fails.
    pub(crate) fn new(len: usize) -> io::Result<Aligned> {
        Ok(Aligned {
            map: Mmap::anonymous(len)?,
        })
    }

    /// All of its bytes.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is private memory of `len` bytes, zero or written before, borrowed through `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.map.base(), self.map.len()) }
    }
}
