//! The SIGBUS handler: it survives the truncation of a mapped file.
//!
//! An access beyond the end of a mapped file raises SIGBUS, which would end the daemon and the I/O of all guests. So
//! does a huge page if none is free. If the address lies in a mapping of a file that another process may truncate, this
//! handler maps a page of zeroes there. That front end's guest then reads invalid data, which the ring parser rejects;
//! others do not notice. Any other SIGBUS ends the process as usual.
//!
//! A missing page says nothing about those behind it: there may only have been no memory for it, and the guest's other
//! data must not reach its disk as zeroes. So pages are first replaced one by one. But each replacement splits the
//! mapping, and the kernel limits the mappings of a process. A hostile front end can have any number of pages missing.
//! So beyond a limit per mapping and in total, a page and everything behind it are replaced as one piece. Such memory
//! is lost to its guest anyway. No ring starts over memory with a missing page ([`super::guest::Mapping::is_spoilt`]).
//!
//! # Always true
//! - the handler only loads and stores atomics, compares, and calls mmap: all of that is allowed in a signal handler
//! - a range is in the table before its mapping is used, and until just before it is unmapped
//! - guarded mappings and their replaced pages are fewer than the kernel's default limit of mappings
//!   (`vm.max_map_count`, 65,530). Each mapping counts as one, or two if its end was replaced; each single page adds
//!   two

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of guarded mappings; beyond it new ones are refused. A usual front end has at most ten. A hostile
/// one, or one with much hot-plugged memory, has 64 and a few more; an image has one. This is enough for 500 usual
/// disks, plus two front ends at their worst for each of eighty others. It uses half of the kernel's limit.
const MOST: usize = 16_384;
/// Pages of one mapping that are replaced one by one. An honest front end on a host without free memory loses fewer
/// before its virtual machine touches a missing page itself and ends.
const SINGLE: usize = 64;
/// The same for all mappings together: a quarter of the kernel's limit. The last quarter is left for other mappings.
const SINGLE_IN_ALL: usize = 8192;
/// Bytes of an ordinary page.
pub(super) const PAGE: usize = 4096;

static STARTS: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
static ENDS: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
/// Page size of each mapping, in bytes.
static PAGES: [AtomicUsize; MOST] = [const { AtomicUsize::new(PAGE) }; MOST];
/// How many pages of each were replaced one by one.
static PATCHES: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
/// The sum of these.
static PATCHES_IN_ALL: AtomicUsize = AtomicUsize::new(0);
static INSTALL: Once = Once::new();

/// Guards a mapping with pages of `page` bytes. Returns its index in the table, if there was room.
pub(super) fn guard(start: usize, len: usize, page: usize) -> Option<usize> {
    INSTALL.call_once(install);
    for place in 0..MOST {
        // Claim the entry with an empty range, then fill it in.
        if STARTS[place]
            .compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            PAGES[place].store(page, Ordering::Relaxed);
            ENDS[place].store(start + len, Ordering::Release);
            return Some(place);
        }
    }
    None
}

/// Stops guarding the mapping at `place`.
pub(super) fn release(place: usize) {
    ENDS[place].store(0, Ordering::Release);
    let patches = PATCHES[place].swap(0, Ordering::Relaxed);
    PATCHES_IN_ALL.fetch_sub(patches, Ordering::Relaxed);
    STARTS[place].store(0, Ordering::Release);
}

/// Whether a page of the mapping at `place` was missing on access, and was replaced by zeroes.
pub(super) fn is_patched(place: usize) -> bool {
    PATCHES[place].load(Ordering::Acquire) > 0
}

/// Whether that applies to any mapping.
pub(super) fn is_any_patched() -> bool {
    PATCHES_IN_ALL.load(Ordering::Acquire) > 0
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
        && patch(place, address)
    {
        return;
    }
    // Not a guarded address: let the default action end the process when the instruction faults again.
    // SAFETY: restoring the default disposition is async-signal-safe.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Maps zeroes at the address in the mapping at `place`: one page, or everything from there on beyond the limit. If the
/// system refuses one, tries the other.
fn patch(place: usize, address: usize) -> bool {
    let page = PAGES[place].load(Ordering::Relaxed);
    let start = address - address % page;
    let rest = ENDS[place].load(Ordering::Acquire) - start;
    let single = may_patch_single(place);
    let [first, second] = if single { [page, rest] } else { [rest, page] };
    zeroes(start, first) || zeroes(start, second)
}

/// Whether one more page may be replaced alone; counts it if so.
fn may_patch_single(place: usize) -> bool {
    // Concurrent threads may exceed the limit by a few.
    let own = PATCHES[place].load(Ordering::Relaxed);
    let may = own < SINGLE && PATCHES_IN_ALL.load(Ordering::Relaxed) < SINGLE_IN_ALL;
    // The first one always counts: it marks the mapping as patched.
    if may || own == 0 {
        PATCHES_IN_ALL.fetch_add(1, Ordering::Release);
        PATCHES[place].fetch_add(1, Ordering::Release);
    }
    may
}

/// Maps `len` bytes of zeroes at `start`, backed by memory only once they are written.
fn zeroes(start: usize, len: usize) -> bool {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the range lies in a guarded mapping without Rust references into it.
    let at = unsafe { libc::mmap(start as *mut libc::c_void, len, prot, flags, -1, 0) };
    at != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::guest::{GuestArea, Mmap};
    use crate::sys::os;
    use std::os::unix::fs::FileExt;
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use tidegate_front::vhost::Area;

    #[test]
    fn truncated_memory_reads_as_zeroes_and_the_process_survives() {
        let file = os::memory_file(c"cut", 8192).expect("memory");
        let map = Arc::new(Mmap::file(&file, 0, 8192).expect("a mapping"));
        let area = GuestArea::of_map(&map, 0, 8192).expect("inside");
        area.store_u16(4096, 7);
        assert!(!map.is_patched());
        file.set_len(4096).expect("cut");
        assert_eq!(area.load_u16(4096), 0);
        assert!(map.is_patched());
        area.store_u16(0, 9);
        assert_eq!(area.load_u16(0), 9);
    }

    /// These tests share the limit for all mappings.
    static LOCK: Mutex<()> = Mutex::new(());

    fn lock() -> MutexGuard<'static, ()> {
        LOCK.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of pieces of a mapping in the kernel's table.
    fn pieces(maps: &[Arc<Mmap>]) -> usize {
        let inside = |at: usize| {
            maps.iter()
                .any(|map| (map.base() as usize..map.base() as usize + map.len()).contains(&at))
        };
        let table = std::fs::read_to_string("/proc/self/maps").expect("a table");
        let start = |line: &str| {
            let (start, _) = line.split_once('-').expect("a range");
            usize::from_str_radix(start, 16).expect("an address")
        };
        table.lines().filter(|line| inside(start(line))).count()
    }

    #[test]
    fn more_missing_pages_of_a_mapping_do_not_split_it_further() {
        let _lock = lock();
        const LEN: usize = 256 << 20;
        const STRIDE: usize = LEN / 10_000 / PAGE * PAGE;
        let file = os::memory_file(c"cut", LEN as u64).expect("memory");
        let map = Arc::new(Mmap::file(&file, 0, LEN).expect("a mapping"));
        let area = GuestArea::of_map(&map, 0, LEN).expect("inside");
        area.store_u16(0, 7);
        file.set_len(PAGE as u64).expect("cut");
        let touch = |page: usize| {
            let at = (page + 1) * STRIDE;
            assert_eq!(area.load_u16(at), 0);
            area.store_u16(at, 9);
            assert_eq!(area.load_u16(at), 9);
        };
        // Also backwards, where replaced pages lie behind the next missing one.
        (0..5000).for_each(touch);
        (5000..10_000).rev().for_each(touch);
        let pieces = pieces(&[Arc::clone(&map)]);
        assert!(pieces <= 2 * SINGLE + 2, "{pieces}");
        assert_eq!(area.load_u16(0), 7, "the rest of the file is still there");
    }

    #[test]
    fn many_mappings_with_missing_pages_stay_below_the_kernels_limit() {
        let _lock = lock();
        const MAPPINGS: usize = 2 * SINGLE_IN_ALL / SINGLE;
        const LEN: usize = 4 * SINGLE * PAGE;
        let file = os::memory_file(c"cut", LEN as u64).expect("memory");
        let map = |_| Arc::new(Mmap::file(&file, 0, LEN).expect("a mapping"));
        let maps: Vec<Arc<Mmap>> = (0..MAPPINGS).map(map).collect();
        file.set_len(0).expect("cut");
        for map in &maps {
            let area = GuestArea::of_map(map, 0, LEN).expect("inside");
            for page in (0..LEN / PAGE).step_by(2) {
                assert_eq!(area.load_u16(page * PAGE), 0);
            }
            assert!(map.is_patched());
        }
        let pieces = pieces(&maps);
        let most = 2 * (SINGLE_IN_ALL + MAPPINGS);
        assert!(pieces <= most, "{pieces}");
        // Each had at least one, and each reports it; a dropped mapping releases its count.
        assert!(PATCHES_IN_ALL.load(Ordering::Relaxed) >= SINGLE_IN_ALL);
        drop(maps);
        let left = PATCHES_IN_ALL.load(Ordering::Relaxed);
        assert!(left < SINGLE_IN_ALL / 2, "{left}");
    }

    #[test]
    fn a_missing_page_does_not_affect_those_behind_it() {
        let _lock = lock();
        let file = os::memory_file(c"cut", 3 * PAGE as u64).expect("memory");
        let map = Arc::new(Mmap::file(&file, 0, 3 * PAGE).expect("a mapping"));
        let area = GuestArea::of_map(&map, 0, 3 * PAGE).expect("inside");
        file.set_len(PAGE as u64).expect("cut");
        assert_eq!(area.load_u16(PAGE), 0);
        file.set_len(3 * PAGE as u64).expect("grown");
        area.store_u16(2 * PAGE, 7);
        let mut bytes = [0; 2];
        let read = file.read_exact_at(&mut bytes, 2 * PAGE as u64);
        read.expect("the file has it");
        assert_eq!(bytes, [7, 0], "it is still the guest's own memory");
    }

    #[test]
    fn missing_huge_pages_read_as_zeroes_and_the_process_survives() {
        // Huge pages of two megabytes, of which a machine has none by default.
        const HUGE: usize = 2 << 20;
        let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
        let Ok(file) = os::memory_of(c"huge", flags, 2 * HUGE as u64) else {
            return;
        };
        let map = Arc::new(Mmap::file(&file, 0, HUGE + 1).expect("a mapping"));
        assert_eq!(map.len(), 2 * HUGE, "the last page is whole");
        let area = GuestArea::of_map(&map, 0, 2 * HUGE).expect("inside");
        file.set_len(0).expect("cut");
        assert_eq!(area.load_u16(HUGE + 4098), 0);
        assert!(map.is_patched());
        area.store_u16(2 * HUGE - 2, 9);
        assert_eq!(area.load_u16(2 * HUGE - 2), 9);
        assert_eq!(area.load_u16(0), 0);
    }

    #[test]
    fn a_file_that_is_not_memory_is_not_mapped_for_a_guest() {
        let file = std::fs::File::open("/proc/self/status").expect("a file");
        let error = Mmap::file(&file, 0, 4096).err().expect("refused");
        assert!(error.to_string().contains("memfd"), "{error}");
    }
}
