//! The SIGBUS handler: it survives the truncation of a mapped file.
//!
//! Touching a page behind the end of a file is a SIGBUS, which would end the daemon and every other guest's I/O with it. The
//! handler here puts a page of zeroes in place when the address lies in a mapping that another process may cut, a huge one
//! where pages are huge (of those there may be none left, which is a SIGBUS, too): that front end's guest reads nonsense
//! from then on, which the ring walker refuses, and nobody else notices. A fault anywhere else ends the process as it
//! would have.
//!
//! A page that is missing says nothing of those behind it: there may only have been no memory for it, and what the guest has
//! there must not reach its disk as zeroes. So pages are replaced one by one at first. But each splits its mapping, the
//! kernel bounds the pieces of a process, and a hostile front end has as many pages missing as it likes. Of a mapping of
//! which many are missing, therefore, and of any once many are missing in all, the page and whatever lies behind it are
//! replaced as one piece: memory like that is lost to its guest in any case. No ring is started over memory of which a page
//! is missing ([`super::guest::Mapping::is_spoilt`]).
//!
//! # Always true
//! - the handler only loads and stores atomics, compares, and calls mmap: all that a signal handler may
//! - a range stands in the table before its mapping is used, and until just before it is unmapped
//! - guarded mappings and what is put in place in them are fewer pieces than the kernel allows by default
//!   (`vm.max_map_count`, 65,530): each is one, or two where its end was replaced, and a page by itself makes two more

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Mappings at one time; beyond that new ones are refused. A front end has some ten at most, or 64 and a few more if it is
/// hostile or its guest has much memory plugged in, and an image has one: room for 500 disks as they are and for the two
/// front ends, each at its worst, of eighty others; in half the pieces that the kernel allows.
const MOST: usize = 16_384;
/// Pages of one mapping that are replaced one by one: more than an honest front end, whose host has run out of memory for
/// a while, has us touch before its virtual machine has touched one itself and ended.
const ALONE: usize = 64;
/// The same, of all mappings: a quarter of the pieces that the kernel allows. A last quarter is left to all else.
const ALONE_IN_ALL: usize = 8192;
/// Bytes of an ordinary page.
pub(super) const PAGE: usize = 4096;

static STARTS: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
static ENDS: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
/// Bytes of a page there.
static PAGES: [AtomicUsize; MOST] = [const { AtomicUsize::new(PAGE) }; MOST];
/// How many pages were replaced there one by one.
static PATCHES: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
/// The sum of these.
static PATCHES_IN_ALL: AtomicUsize = AtomicUsize::new(0);
static INSTALL: Once = Once::new();

/// Guards a mapping with pages of `page` bytes from now on. Its place in the table, if there was room for it.
pub(super) fn guard(start: usize, len: usize, page: usize) -> Option<usize> {
    INSTALL.call_once(install);
    for place in 0..MOST {
        // Claim the place with an end that makes its range empty, then fill it in.
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

/// Guards the mapping at `place` no longer.
pub(super) fn release(place: usize) {
    ENDS[place].store(0, Ordering::Release);
    let patches = PATCHES[place].swap(0, Ordering::Relaxed);
    PATCHES_IN_ALL.fetch_sub(patches, Ordering::Relaxed);
    STARTS[place].store(0, Ordering::Release);
}

/// Whether a page of the mapping at `place` was missing when it was touched, and zeroes are there instead.
pub(super) fn is_patched(place: usize) -> bool {
    PATCHES[place].load(Ordering::Acquire) > 0
}

/// Whether that is so of any mapping.
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
    // Not ours: let the default action end the process when the instruction faults again.
    // SAFETY: restoring the default disposition is async-signal-safe.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Puts zeroes where the address lies in the mapping at `place`: the page, or all from there on if too many were replaced
/// one by one. Where the system does not give that much, or splits no mapping further, whichever it does.
fn patch(place: usize, address: usize) -> bool {
    let page = PAGES[place].load(Ordering::Relaxed);
    let start = address - address % page;
    let rest = ENDS[place].load(Ordering::Acquire) - start;
    let alone = may_patch_alone(place);
    let [first, second] = if alone { [page, rest] } else { [rest, page] };
    zeroes(start, first) || zeroes(start, second)
}

/// Whether one page more is replaced by itself; counted, if so.
fn may_patch_alone(place: usize) -> bool {
    // Threads that come at the same time may count a few more than there should be.
    let own = PATCHES[place].load(Ordering::Relaxed);
    let may = own < ALONE && PATCHES_IN_ALL.load(Ordering::Relaxed) < ALONE_IN_ALL;
    // The first one is counted in any case: it tells that the mapping is patched.
    if may || own == 0 {
        PATCHES_IN_ALL.fetch_add(1, Ordering::Release);
        PATCHES[place].fetch_add(1, Ordering::Release);
    }
    may
}

/// Puts `len` bytes of zeroes at `start`, backed by memory only once they are written.
fn zeroes(start: usize, len: usize) -> bool {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the range lies in a mapping of ours that nobody holds a Rust reference into.
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
    fn memory_that_is_cut_behind_our_back_reads_as_zeroes_instead_of_ending_us() {
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

    /// The tests here use up what pages are replaced one by one, of all mappings.
    static TURN: Mutex<()> = Mutex::new(());

    fn turn() -> MutexGuard<'static, ()> {
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of how many pieces a mapping is, as the kernel tells.
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
    fn memory_of_which_ever_more_is_missing_comes_to_no_more_pieces() {
        let _turn = turn();
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
        // Also from behind, where what was put in place lies behind what is missing next.
        (0..5000).for_each(touch);
        (5000..10_000).rev().for_each(touch);
        let pieces = pieces(&[Arc::clone(&map)]);
        assert!(pieces <= 2 * ALONE + 2, "{pieces}");
        assert_eq!(area.load_u16(0), 7, "what was not cut is still there");
    }

    #[test]
    fn mappings_of_which_all_miss_pages_come_to_fewer_pieces_than_the_kernel_allows() {
        let _turn = turn();
        const MAPPINGS: usize = 2 * ALONE_IN_ALL / ALONE;
        const LEN: usize = 4 * ALONE * PAGE;
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
        let most = 2 * (ALONE_IN_ALL + MAPPINGS);
        assert!(pieces <= most, "{pieces}");
        // Each had at least one, and all are told to be patched; those that go give back what they took.
        assert!(PATCHES_IN_ALL.load(Ordering::Relaxed) >= ALONE_IN_ALL);
        drop(maps);
        let left = PATCHES_IN_ALL.load(Ordering::Relaxed);
        assert!(left < ALONE_IN_ALL / 2, "{left}");
    }

    #[test]
    fn one_page_that_is_missing_takes_nothing_of_those_behind_it() {
        let _turn = turn();
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
        assert!(map.is_patched());
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
