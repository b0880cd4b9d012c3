//! The truncation guard: a private page that shows that a file was truncated, whatever was written since.
//!
//! It is a private copy of the file's last page with a marker word that the file never contains. A check reads that
//! word: no system call. Neither a write to the file nor a hole in it changes the copy. A truncation does: the kernel
//! removes every page beyond the new end from every mapping, private copies included. It does so before the file can be
//! written again. Afterwards a read of the word faults (which [`super::fault`] answers with zeroes), or returns the
//! file's data if it has grown again.
//!
//! # Always true
//! - if the word is there, the file was never truncated to before the page since the guard was armed
//!
//! # What it does not detect
//! - a truncation within the file's last page: the page stays. A write there checks the length, which stays too short
//!   until something is written there
//! - a truncation by another host on a shared file system
//!
//! # Source
//! Linux, mm/memory.c, `unmap_mapping_range`: `even_cows` is "1 when truncating a file, unmap even private COWed
//! pages".

use super::{guest::Mmap, os};
use std::io;
use std::os::fd::OwnedFd;

const PAGE: u64 = 4096;

/// A value that no file has at the start of its last page, except on purpose.
const WORD: u64 = 0x9e6b_51d7_c03f_a284;

/// See the module.
pub(crate) struct TruncationGuard {
    map: Mmap,
    /// Offset of the page in the file.
    start: u64,
    /// The expected end of the file.
    end: u64,
}

impl TruncationGuard {
    /// Guards the file's first `end` bytes.
    ///
    /// # Errors
    /// If the file cannot be mapped, is too short, or cannot be read there.
    pub(crate) fn arm(file: &OwnedFd, end: u64) -> io::Result<TruncationGuard> {
        let last = end.checked_sub(1).ok_or(io::ErrorKind::InvalidInput)?;
        let start = last / PAGE * PAGE;
        let page = usize::try_from(PAGE).expect("a page fits memory");
        let map = Mmap::private(file, start, page)?;
        if !map.is_guarded() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // SAFETY: the page is mapped for as long as `map`, and has no other user.
        unsafe { map.base().cast::<u64>().write_volatile(WORD) };
        // If a page of zeroes was put in its place, it would stay forever.
        if map.is_patched() || os::length_now(file)? < end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(TruncationGuard { map, start, end })
    }

    /// Whether the file was never truncated to before [`TruncationGuard::start`].
    #[inline]
    pub(crate) fn is_intact(&self) -> bool {
        // SAFETY: mapped for as long as self; beyond the end of its file, the fault is answered with zeroes.
        unsafe { self.map.base().cast::<u64>().read_volatile() == WORD }
    }

    /// Truncations beyond this offset are not detected by the page itself.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// The expected end of the file.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    const SIZE: u64 = 64 << 10;

    /// Two files of ones: one in memory, one in the temporary directory.
    fn files() -> [File; 2] {
        let files = [
            os::memory_file(c"truncation_guard", 0).expect("memory"),
            tempfile::tempfile().expect("a file"),
        ];
        for file in &files {
            file.write_all_at(&[1; 64 << 10], 0).expect("written");
        }
        files
    }

    fn arm(file: &File) -> TruncationGuard {
        let own = file.try_clone().expect("a descriptor");
        TruncationGuard::arm(&own.into(), SIZE).expect("a guard")
    }

    #[test]
    fn the_guard_survives_writes_holes_and_growth_and_does_not_change_the_file() {
        for file in files() {
            let guard = arm(&file);
            file.write_all_at(&[2; 8192], SIZE - 8192).expect("written");
            let own: OwnedFd = file.try_clone().expect("a descriptor").into();
            let punched = os::punch_hole(&own, SIZE - 4096, 4096);
            punched.expect("a hole where the last page was");
            file.set_len(2 * SIZE).expect("grown");
            file.set_len(SIZE)
                .expect("shrunk again, not to before the end");
            assert!(guard.is_intact());
            let mut bytes = [9; 4096];
            file.read_exact_at(&mut bytes, SIZE - 4096).expect("read");
            assert_eq!(bytes, [0; 4096]);
        }
    }

    #[test]
    fn the_guard_detects_a_truncation_even_after_the_file_grows_again() {
        for file in files() {
            for cut in [0, 4096, SIZE - 4096] {
                let guard = arm(&file);
                assert!(guard.is_intact());
                file.set_len(cut).expect("cut");
                file.write_all_at(&[3; 4096], SIZE - 4096).expect("grown");
                assert!(!guard.is_intact(), "cut to {cut}, and grown");
                file.set_len(cut).expect("cut");
                assert!(!guard.is_intact(), "cut to {cut} again");
                file.set_len(SIZE).expect("grown");
            }
        }
    }

    #[test]
    fn a_file_that_is_too_short_is_not_guarded() {
        for file in files() {
            file.set_len(SIZE - 1).expect("cut");
            let own = file.try_clone().expect("a descriptor").into();
            assert!(TruncationGuard::arm(&own, SIZE).is_err());
            assert!(TruncationGuard::arm(&own, 2 * SIZE).is_err());
            assert!(TruncationGuard::arm(&own, 0).is_err());
        }
    }
}
