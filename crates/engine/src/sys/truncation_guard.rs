//! The truncation guard: a private page that shows that a file was cut before its end, whatever was written since.
//!
//! It is a private copy of the page in which the file ends, with a word of ours in it that no file sees. Whoever asks reads
//! that word: no system call. A write to the file does not reach the copy, nor does a hole made in it. But when a file
//! is cut, the kernel takes every page behind the new end out of every mapping, private copies as well, before the
//! file can be written again. From then on there is a fault where the word was (which [`super::fault`] answers with
//! zeroes), or, if the file has grown again meanwhile, what it has there.
//!
//! # Always true
//! - a word that is there means that the file was never cut to before the page since the wire was armed
//!
//! # What it does not see
//! - a cut inside the file's last page: the page stays. Who writes there asks for the length, which can be too short
//!   only as long as nobody has written there.
//! - a cut that another host makes to a file that both have mounted
//!
//! # Source
//! Linux, mm/memory.c, `unmap_mapping_range`: `even_cows` is "1 when truncating a file, unmap even private COWed pages".

use super::{guest::Mmap, os};
use std::io;
use std::os::fd::OwnedFd;

const PAGE: u64 = 4096;

/// What no file holds at the beginning of its last page, unless somebody wants to fool himself.
const WORD: u64 = 0x9e6b_51d7_c03f_a284;

/// See the module.
pub(crate) struct TruncationGuard {
    map: Mmap,
    /// Where in the file the page begins.
    start: u64,
    /// Where the file is to end.
    end: u64,
}

impl TruncationGuard {
    /// Watches over the file's first `end` bytes.
    ///
    /// # Errors
    /// When the file cannot be mapped, has not as many bytes, or cannot be read there.
    pub(crate) fn arm(file: &OwnedFd, end: u64) -> io::Result<TruncationGuard> {
        let last = end.checked_sub(1).ok_or(io::ErrorKind::InvalidInput)?;
        let start = last / PAGE * PAGE;
        let page = usize::try_from(PAGE).expect("a page fits memory");
        let map = Mmap::private(file, start, page)?;
        if !map.is_guarded() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // SAFETY: the page is mapped for as long as `map`, and nobody else knows of it.
        unsafe { map.base().cast::<u64>().write_volatile(WORD) };
        // A page of zeroes that was put in its place would stand for ever.
        if map.is_patched() || os::length_now(file)? < end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(TruncationGuard { map, start, end })
    }

    /// Whether the file was never cut to before [`TruncationGuard::start`].
    #[inline]
    pub(crate) fn is_intact(&self) -> bool {
        // SAFETY: mapped for as long as self; where its file no longer reaches it, the fault is answered with zeroes.
        unsafe { self.map.base().cast::<u64>().read_volatile() == WORD }
    }

    /// What lies behind this is not watched by the page itself.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Where the file is to end.
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

    /// A file of ones, once in memory and once where temporary files are.
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

    fn armed(file: &File) -> TruncationGuard {
        let own = file.try_clone().expect("a descriptor");
        TruncationGuard::arm(&own.into(), SIZE).expect("a wire")
    }

    #[test]
    fn it_stands_while_the_file_is_written_punched_and_grown_and_the_file_does_not_see_it() {
        for file in files() {
            let wire = armed(&file);
            file.write_all_at(&[2; 8192], SIZE - 8192).expect("written");
            let own: OwnedFd = file.try_clone().expect("a descriptor").into();
            let punched = os::punch_hole(&own, SIZE - 4096, 4096);
            punched.expect("a hole where the last page was");
            file.set_len(2 * SIZE).expect("grown");
            file.set_len(SIZE)
                .expect("shrunk again, not to before the end");
            assert!(wire.is_intact());
            let mut bytes = [9; 4096];
            file.read_exact_at(&mut bytes, SIZE - 4096).expect("read");
            assert_eq!(bytes, [0; 4096]);
        }
    }

    #[test]
    fn it_falls_when_the_file_is_cut_and_stays_down_when_it_grows_again() {
        for file in files() {
            for cut in [0, 4096, SIZE - 4096] {
                let wire = armed(&file);
                assert!(wire.is_intact());
                file.set_len(cut).expect("cut");
                file.write_all_at(&[3; 4096], SIZE - 4096).expect("grown");
                assert!(!wire.is_intact(), "cut to {cut}, and grown");
                file.set_len(cut).expect("cut");
                assert!(!wire.is_intact(), "cut to {cut} again");
                file.set_len(SIZE).expect("grown");
            }
        }
    }

    #[test]
    fn a_file_that_is_too_short_is_not_watched() {
        for file in files() {
            file.set_len(SIZE - 1).expect("cut");
            let own = file.try_clone().expect("a descriptor").into();
            assert!(TruncationGuard::arm(&own, SIZE).is_err());
            assert!(TruncationGuard::arm(&own, 2 * SIZE).is_err());
            assert!(TruncationGuard::arm(&own, 0).is_err());
        }
    }
}
