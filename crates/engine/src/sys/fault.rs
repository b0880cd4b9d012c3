//! Survives whoever cuts a file that is mapped here: a front end, that of its guest's memory; anybody, an image.
//!
//! Touching a page behind the end of a file is a SIGBUS, which would end the daemon and every other guest's I/O with it. The
//! handler here puts a page of zeroes in place when the address lies in a mapping that another process may cut: that
//! front end's guest reads nonsense from then on, which the ring walker refuses, and nobody else notices. A fault
//! anywhere else ends the process as it would have.
//!
//! # Always true
//! - the handler only loads atomics, compares, and calls mmap: all that a signal handler may
//! - a range stands in the table before its mapping is used, and until just before it is unmapped

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Mappings at one time: 509 memory slots for each of some guests, and one page of each image; beyond that new ones go
/// unguarded.
const MOST: usize = 8192;
const PAGE: usize = 4096;

static STARTS: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
static ENDS: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
/// Whether a page was put in place there.
static PATCHED: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];
static INSTALL: Once = Once::new();

/// Guards a mapping from now on. Whether there was room for it.
pub(crate) fn guard(start: usize, len: usize) -> bool {
    INSTALL.call_once(install);
    for place in 0..MOST {
        // Claim the place with an end that makes its range empty, then fill it in.
        if STARTS[place]
            .compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            PATCHED[place].store(false, Ordering::Relaxed);
            ENDS[place].store(start + len, Ordering::Release);
            return true;
        }
    }
    tracing::warn!("too many mapped files: one is not guarded against being cut");
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
        && patch(address & !(PAGE - 1))
    {
        PATCHED[place].store(true, Ordering::Release);
        return;
    }
    // Not ours: let the default action end the process when the instruction faults again.
    // SAFETY: restoring the default disposition is async-signal-safe.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Puts a page of zeroes at `page`.
fn patch(page: usize) -> bool {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the page lies in a mapping of ours that nobody holds a Rust reference into.
    let at = unsafe { libc::mmap(page as *mut libc::c_void, PAGE, prot, flags, -1, 0) };
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
}
