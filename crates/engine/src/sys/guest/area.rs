//! An area of shared memory that a peer may change at any time: rings and in-flight regions.
//!
//! The ring parser of `tidegate-front` uses it as [`Area`]. It lies in a guest's [`super::Mapping`], or in a mapping of
//! its own.
//!
//! # Always true
//! - its memory stays mapped while it exists
//! - each access is one volatile or atomic load or store, checked to be inside and, if atomic, aligned

use super::{Mmap, Region, prefetch};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use tidegate_front::vhost::Area;

/// A range of shared memory (rings, in-flight region) that stays mapped while this exists.
pub(crate) struct GuestArea {
    pub(super) base: *mut u8,
    pub(super) len: usize,
    pub(super) _region: Owner,
}

// SAFETY: a pointer into a mapping that is kept alive by reference count and has no thread affinity.
unsafe impl Send for GuestArea {}

/// The owner that keeps an area mapped.
pub(super) enum Owner {
    Region(#[expect(dead_code, reason = "held for its drop")] Arc<Region>),
    Map(#[expect(dead_code, reason = "held for its drop")] Arc<Mmap>),
}

impl GuestArea {
    /// `len` bytes of `map` from `start`; `None` if they are not inside.
    pub(crate) fn of_map(map: &Arc<Mmap>, start: usize, len: usize) -> Option<GuestArea> {
        if start.checked_add(len)? > map.len() {
            return None;
        }
        // SAFETY: start + len lies within the mapping, checked above.
        let base = unsafe { map.base().add(start) };
        Some(GuestArea {
            base,
            len,
            _region: Owner::Map(Arc::clone(map)),
        })
    }

    /// The address of `bytes` bytes at `at`.
    fn at(&self, at: usize, bytes: usize) -> *mut u8 {
        assert!(
            at <= self.len && bytes <= self.len - at,
            "an access lies within its area"
        );
        // SAFETY: at + bytes <= len, checked above.
        unsafe { self.base.add(at) }
    }

    /// As [`GuestArea::at`], as an atomic.
    fn atom(&self, at: usize) -> &AtomicU16 {
        let place = self.at(at, 2).cast::<u16>();
        assert!(place.is_aligned(), "an atomic access is aligned");
        // SAFETY: mapped for as long as self and aligned, both checked; other parties access it atomically.
        unsafe { AtomicU16::from_ptr(place) }
    }
}

impl Area for GuestArea {
    fn load_u16(&self, at: usize) -> u16 {
        u16::from_le(self.atom(at).load(Ordering::Relaxed))
    }

    fn acquire_u16(&self, at: usize) -> u16 {
        u16::from_le(self.atom(at).load(Ordering::Acquire))
    }

    fn store_u16(&self, at: usize, value: u16) {
        self.atom(at).store(value.to_le(), Ordering::Relaxed);
    }

    fn release_u16(&self, at: usize, value: u16) {
        self.atom(at).store(value.to_le(), Ordering::Release);
    }

    fn load_u8(&self, at: usize) -> u8 {
        // SAFETY: `at` checks the bounds.
        unsafe { self.at(at, 1).read_volatile() }
    }

    fn store_u8(&self, at: usize, value: u8) {
        // SAFETY: `at` checks the bounds.
        unsafe { self.at(at, 1).write_volatile(value) };
    }

    fn load_u64(&self, at: usize) -> u64 {
        let place = self.at(at, 8).cast::<u64>();
        assert!(
            place.is_aligned(),
            "the only 64-bit values read are the in-flight region's counters"
        );
        // SAFETY: `at` checks the bounds, the assertion the alignment.
        u64::from_le(unsafe { place.read_volatile() })
    }

    fn store_u64(&self, at: usize, value: u64) {
        let place = self.at(at, 8).cast::<u32>();
        assert!(
            place.is_aligned(),
            "used entries and counters are aligned to four bytes"
        );
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the low half is taken on purpose"
        )]
        let [low, high] = [value as u32, (value >> 32) as u32];
        // SAFETY: `at` checks the bounds of eight bytes, the assertion the alignment.
        unsafe { place.write_volatile(low.to_le()) };
        // SAFETY: the second four of those eight bytes.
        let place = unsafe { place.add(1) };
        // SAFETY: as the first half.
        unsafe { place.write_volatile(high.to_le()) };
    }

    #[inline]
    fn prefetch(&self, at: usize) {
        if at < self.len {
            // No access: only the address counts.
            prefetch(self.base.wrapping_add(at));
        }
    }

    #[inline]
    fn load_pair(&self, at: usize) -> [u64; 2] {
        // SAFETY: `at` checks the bounds.
        unsafe { load_pair(self.at(at, 16)) }
    }
}

/// Reads 16 bytes that a guest may be writing: a torn value is possible, so callers check what they read.
///
/// # Safety
/// 16 bytes are mapped at `place`.
#[inline]
pub(super) unsafe fn load_pair(place: *const u8) -> [u64; 2] {
    let words = place.cast::<[u64; 2]>();
    if !words.is_aligned() {
        // SAFETY: the caller's promise.
        return unsafe { load_pair_unaligned(place) };
    }
    // SAFETY: the caller's promise, and the alignment was just checked.
    unsafe { words.read_volatile() }.map(u64::from_le)
}

/// Reads at any address: no common driver has such a layout.
///
/// # Safety
/// 16 bytes are mapped at `place`.
#[cold]
#[inline(never)]
unsafe fn load_pair_unaligned(place: *const u8) -> [u64; 2] {
    // SAFETY: the caller's promise; an array of bytes has no alignment.
    let bytes = unsafe { place.cast::<[[u8; 8]; 2]>().read_volatile() };
    bytes.map(u64::from_le_bytes)
}
