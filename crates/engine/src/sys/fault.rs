//! Survives whoever cuts a file that is mapped here: a front end, that of its guest's memory; anybody, an image.
//!
//! Touching a page behind the end of a file is a SIGBUS, which would end the daemon and every other guest's I/O with it. The
//! handler here puts a page of zeroes in place when the address lies in a mapping that another process may cut, a huge one
//! where pages are huge (of those there may be none left, which is a SIGBUS, too): that front end's guest reads nonsense
//! from then on, which the ring walker refuses, and nobody else notices. A fault anywhere else ends the process as it
//! would have.
//!
//! # Always true
//! - the handler only loads atomics, compares, and calls mmap: all that a signal handler may
//! - a range stands in the table before its mapping is used, and until just before it is unmapped

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Mappings at one time: 509 memory slots for each of some guests, and one page of each image; beyond that new ones are
/// refused.
const MOST: usize = 8192;
/// Bytes of an ordinary page.
pub(super) const PAGE: usize = 4096;

static STARTS: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
static ENDS: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
/// Bytes of a page there.
static PAGES: [AtomicUsize; MOST] = [const { AtomicUsize::new(PAGE) }; MOST];
/// Whether a page was put in place there.
static PATCHED: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];
static INSTALL: Once = Once::new();

/// Guards a mapping with pages of `page` bytes from now on. Whether there was room for it.
pub(super) fn guard(start: usize, len: usize, page: usize) -> bool {
    INSTALL.call_once(install);
    for place in 0..MOST {
        // Claim the place with an end that makes its range empty, then fill it in.
        if STARTS[place]
            .compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            PATCHED[place].store(false, Ordering::Relaxed);
            PAGES[place].store(page, Ordering::Relaxed);
            ENDS[place].store(start + len, Ordering::Release);
            return true;
        }
    }
    false
}

/// Guards the mapping at `start` no longer.
pub(crate) fn release(start: usize) {
    for place in 0..MOST {
        if STARTS[place].load(Ordering::Acquire) == start {
            ENDS[place].store(0, Ordering::Release);
            STARTS[place].store(0, Ordering::Release);
            return;
        }
    }
}

/// Whether a page of the mapping at `start` was missing when it was touched, and zeroes are there instead.
pub(crate) fn is_patched(start: usize) -> bool {
    let mut places = 0..MOST;
    let found = places.find(|&place| STARTS[place].load(Ordering::Acquire) == start);
    found.is_some_and(|place| PATCHED[place].load(Ordering::Acquire))
}

fn install() {
    // SAFETY: sigaction is plain old data; zero is an empty mask and no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler is async-signal-safe (see the module) and lives as long as the program.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
    assert_eq!(set, 0, "a handler for SIGBUS can be installed");
}

extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid siginfo to a handler that was installed with SA_SIGINFO.
    let info = unsafe { &*info };
    // SAFETY: for SIGBUS the address is set.
    let address = unsafe { info.si_addr() } as usize;
    let guarded = (0..MOST).find(|&place| {
        let (start, end) = (
            STARTS[place].load(Ordering::Acquire),
            ENDS[place].load(Ordering::Acquire),
        );
        start != 0 && start <= address && address < end
    });
    if let Some(place) = guarded
        && patch(address, PAGES[place].load(Ordering::Relaxed))
    {
        PATCHED[place].store(true, Ordering::Release);
        return;
    }
    // Not ours: let the default action end the process when the instruction faults again.
    // SAFETY: restoring the default disposition is async-signal-safe.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Puts a page of zeroes, of `page` bytes, where the address lies.
fn patch(address: usize, page: usize) -> bool {
    let start = address - address % page;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the page lies in a mapping of ours that nobody holds a Rust reference into.
    let at = unsafe { libc::mmap(start as *mut libc::c_void, page, prot, flags, -1, 0) };
    at != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::guest::{GuestArea, Mmap};
    use crate::sys::os;
    use std::sync::Arc;
    use tidegate_front::vhost::Area;

    #[test]
    fn memory_that_is_cut_behind_our_back_reads_as_zeroes_instead_of_ending_us() {
        let file = os::memory_file(c"cut", 8192).expect("memory");
        let map = Arc::new(Mmap::file(&file, 0, 8192).expect("a mapping"));
        let area = GuestArea::of_map(&map, 0, 8192).expect("inside");
        area.store_u16(4096, 7);
        assert!(!is_patched(map.base() as usize));
        file.set_len(4096).expect("cut");
        assert_eq!(area.load_u16(4096), 0);
        assert!(is_patched(map.base() as usize));
        area.store_u16(0, 9);
        assert_eq!(area.load_u16(0), 9);
    }

    #[test]
    fn huge_pages_that_there_are_none_of_read_as_zeroes_instead_of_ending_us() {
        // Of two megabytes, of which a machine keeps none unless it is told to.
        const HUGE: usize = 2 << 20;
        let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
        let Ok(file) = os::memory_of(c"huge", flags, 2 * HUGE as u64) else {
            return;
        };
        let map = Arc::new(Mmap::file(&file, 0, HUGE + 1).expect("a mapping"));
        assert_eq!(map.len(), 2 * HUGE, "the last page wholly");
        let area = GuestArea::of_map(&map, 0, 2 * HUGE).expect("inside");
        file.set_len(0).expect("cut");
        assert_eq!(area.load_u16(HUGE + 4098), 0);
        assert!(is_patched(map.base() as usize));
        area.store_u16(2 * HUGE - 2, 9);
        assert_eq!(area.load_u16(2 * HUGE - 2), 9);
        assert_eq!(area.load_u16(0), 0);
    }

    #[test]
    fn a_file_that_is_no_memory_is_not_mapped_for_a_guest() {
        let file = std::fs::File::open("/proc/self/status").expect("a file");
        let error = Mmap::file(&file, 0, 4096).err().expect("refused");
        assert!(error.to_string().contains("memfd"), "{error}");
    }
}
