//! A guest's memory, shared with the server by a memfd.
//!
//! [`super::ring`] and [`super::vm`] lay out rings and buffers in it. All accesses are atomic or volatile, because the
//! server may write at any time.
//!
//! # Units
//! - Offsets in bytes from the start of the memory; guest addresses are [`GUEST_BASE`] higher.

use std::fs::File;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use anyhow::{Context, Result};
use nix::sys::memfd::{MFdFlags, memfd_create};
use vhost::VhostUserMemoryRegionInfo;
use vm_memory::{FileOffset, GuestAddress, GuestRegionMmap, VolatileMemory};

/// The guest address of the memory. It is neither 0 nor the address of our mapping, so that a server that confuses
/// guest addresses, offsets and our addresses fails at once.
pub const GUEST_BASE: u64 = 0x1000_0000;
const PAGE: usize = 4096;

/// Shared memory. Every access is bounds-checked. A wrong offset is a bug of the client and panics.
#[derive(Debug)]
pub struct Memory {
    region: GuestRegionMmap<()>,
}

impl Memory {
    /// Maps `length` zero bytes.
    ///
    /// # Errors
    /// Creating or mapping a memfd fails.
    pub fn new(length: usize) -> Result<Self> {
        let length = length.next_multiple_of(PAGE);
        let fd = memfd_create("guest", MFdFlags::MFD_CLOEXEC).context("cannot create a memfd")?;
        let file = File::from(fd);
        file.set_len(length as u64)
            .context("cannot size the guest's memory")?;
        let region = GuestRegionMmap::from_range(
            GuestAddress(GUEST_BASE),
            length,
            Some(FileOffset::new(file, 0)),
        )
        .map_err(|error| anyhow::anyhow!("cannot map {length} bytes of guest memory: {error}"))?;
        Ok(Self { region })
    }

    /// The entry for the server's memory table.
    ///
    /// # Errors
    /// Never, because the memory is a file.
    pub fn table_entry(&self) -> Result<VhostUserMemoryRegionInfo> {
        VhostUserMemoryRegionInfo::from_guest_region(&self.region)
            .context("guest memory without a file")
    }

    /// Our address of `offset`. Ring addresses are sent to the server in this form.
    #[must_use]
    pub fn own_address(&self, offset: usize) -> u64 {
        self.region.as_ptr() as u64 + offset as u64
    }

    /// The guest's address of `offset`. Buffer addresses are sent to the server in this form.
    #[must_use]
    pub fn guest_address(&self, offset: usize) -> u64 {
        GUEST_BASE + offset as u64
    }

    /// The byte at `offset`.
    #[inline]
    #[must_use]
    pub fn u8(&self, offset: usize) -> &AtomicU8 {
        self.region
            .get_atomic_ref(offset)
            .expect("an offset of our own layout")
    }

    /// The 16-bit word at `offset`.
    #[inline]
    #[must_use]
    pub fn u16(&self, offset: usize) -> &AtomicU16 {
        self.region
            .get_atomic_ref(offset)
            .expect("an aligned offset of our own layout")
    }

    /// The 32-bit word at `offset`.
    #[inline]
    #[must_use]
    pub fn u32(&self, offset: usize) -> &AtomicU32 {
        self.region
            .get_atomic_ref(offset)
            .expect("an aligned offset of our own layout")
    }

    /// The 64-bit word at `offset`.
    #[inline]
    #[must_use]
    pub fn u64(&self, offset: usize) -> &AtomicU64 {
        self.region
            .get_atomic_ref(offset)
            .expect("an aligned offset of our own layout")
    }

    /// Copies `data` to `offset`.
    pub fn write(&self, offset: usize, data: &[u8]) {
        self.region
            .get_slice(offset, data.len())
            .expect("a buffer of our own layout")
            .copy_from(data);
    }

    /// Copies from `offset` to `data`.
    pub fn read(&self, offset: usize, data: &mut [u8]) {
        self.region
            .get_slice(offset, data.len())
            .expect("a buffer of our own layout")
            .copy_to(data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn words_and_bytes_share_one_memory() {
        let memory = Memory::new(100).expect("a memfd");
        memory.u32(8).store(0x0102_0304, Ordering::Relaxed);
        let mut data = [0; 4];
        memory.read(8, &mut data);
        assert_eq!(data, [4, 3, 2, 1]);
        memory.write(64, &[7]);
        assert_eq!(memory.u8(64).load(Ordering::Relaxed), 7);
        assert_eq!(memory.guest_address(16), GUEST_BASE + 16);
    }
}
