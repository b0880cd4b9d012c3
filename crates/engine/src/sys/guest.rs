//! A guest's memory, mapped from the files that its front end sent.
//!
//! The vhost-user device builds a [`Mapping`] from the protocol's regions and passes it to the I/O thread. The ring
//! parser of `tidegate-front` uses it as [`GuestMemory`].
//!
//! # Always true
//! - a [`Segment`] or [`GuestArea`] lies completely within one region
//! - regions do not overlap in guest addresses (checked when a mapping is made)
//! - a front end's regions take at most [`MOST_MEMORY`], and any other file of it at most [`MOST_OF_A_FILE`]

use super::{fault, os};
use area::{Owner, load_pair};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tidegate_front::vhost::GuestMemory;

pub(crate) use area::GuestArea;

mod area;

/// Page size of the dirty log, by the vhost protocol.
const LOG_PAGE: u64 = 4096;

/// Bytes of memory that one front end may have mapped: enough for the largest guests, and a 32nd of the address space,
/// which all share. A sparse file costs its creator nothing, however long it is.
const MOST_MEMORY: u64 = 4 << 40;
/// The same for other files. A log of 8 GiB covers 256 TiB of guest addresses; an in-flight region is smaller.
const MOST_OF_A_FILE: u64 = 8 << 30;

/// A shared mapping of a file, unmapped when dropped.
pub(crate) struct Mmap {
    base: NonNull<u8>,
    len: usize,
    /// Its index among the guarded mappings: a truncation of the file by another process makes an access fault
    /// ([`super::fault`]).
    guarded: Option<usize>,
}

// SAFETY: the mapping is plain memory without thread affinity; all access goes through raw pointers.
unsafe impl Send for Mmap {}
// SAFETY: as above; concurrent access is by volatile or atomic operations only.
unsafe impl Sync for Mmap {}

impl Mmap {
    /// Maps `len` bytes of `file`, which must be memory ([`os::memory_page`]), from `offset`, readable, writable and
    /// shared. With huge pages the last page is mapped completely.
    ///
    /// # Errors
    /// If it is not memory, is more than [`MOST_OF_A_FILE`], too many files are mapped already, or mmap fails.
    pub(crate) fn file(file: &File, offset: u64, len: usize) -> io::Result<Mmap> {
        check_size(len as u64, MOST_OF_A_FILE)?;
        Mmap::shared(file, offset, len)
    }

    /// Maps a file as above, without a limit on its size.
    fn shared(file: &File, offset: u64, len: usize) -> io::Result<Mmap> {
        let page = os::memory_page(file)?;
        let len = match page {
            fault::PAGE => Some(len),
            huge => len.checked_next_multiple_of(huge),
        };
        let len = len.ok_or(io::ErrorKind::InvalidInput)?;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let map = Mmap::new(len, flags, file.as_raw_fd(), offset, page)?;
        if !map.is_guarded() {
            let what = "the maximum number of files is mapped already, for all front ends together: \
                        detach disks that are not in use, or plug less memory into their guests";
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, what));
        }
        Ok(map)
    }

    /// A private copy of `len` bytes of `file` from `offset`; writes do not reach the file.
    ///
    /// # Errors
    /// If mmap fails.
    pub(crate) fn private(file: &OwnedFd, offset: u64, len: usize) -> io::Result<Mmap> {
        let flags = libc::MAP_PRIVATE;
        Mmap::new(len, flags, file.as_raw_fd(), offset, fault::PAGE)
    }

    /// `len` bytes of private zeroes, page-aligned, backed by memory only on access.
    ///
    /// # Errors
    /// If mmap fails.
    pub(crate) fn anonymous(len: usize) -> io::Result<Mmap> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Mmap::new(len, flags, -1, 0, fault::PAGE)
    }

    fn new(len: usize, flags: i32, fd: i32, offset: u64, page: usize) -> io::Result<Mmap> {
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let guarded = match fd {
            0.. => fault::guard(base.as_ptr() as usize, len, page),
            _ => None,
        };
        Ok(Mmap { base, len, guarded })
    }

    /// Whether an access survives a truncation of its file by another process.
    pub(crate) fn is_guarded(&self) -> bool {
        self.guarded.is_some()
    }

    /// Whether a page of it was missing on access, and was replaced by zeroes.
    pub(crate) fn is_patched(&self) -> bool {
        self.guarded.is_some_and(fault::is_patched)
    }

    /// Its start address.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes mapped.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the whole pages of a range to the system; they read as zeroes afterwards.
    ///
    /// # Panics
    /// If the range is not inside.
    pub(crate) fn discard(&self, start: usize, len: usize) {
        assert!(
            start.checked_add(len).is_some_and(|end| end <= self.len),
            "a discard lies within the mapping"
        );
        // SAFETY: the range was just checked to lie inside the mapping.
        let at = unsafe { self.base.as_ptr().add(start) };
        // SAFETY: MADV_DONTNEED on a private anonymous mapping only drops its content; failure leaves it as it is.
        unsafe { libc::madvise(at.cast(), len, libc::MADV_DONTNEED) };
    }
}

impl Drop for Mmap {
    fn drop(&mut self) {
        if let Some(address) = self.guarded {
            fault::release(address);
        }
        // SAFETY: base and len are those of a mapping that this value owns; the module's invariants keep users away.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Rejects more bytes than a front end may have mapped.
fn check_size(bytes: u64, most: u64) -> io::Result<()> {
    if bytes <= most {
        return Ok(());
    }
    let what = format!(
        "a front end shares {bytes} bytes, but at most {most} are mapped for one front end, to leave room for others: \
         give its guest less memory"
    );
    Err(io::Error::new(io::ErrorKind::OutOfMemory, what))
}

/// A size or distance that fits this machine's memory.
fn memory_size(bytes: u64) -> usize {
    usize::try_from(bytes).expect("addresses have 64 bits on every machine that this runs on")
}

/// One contiguous range of guest memory.
pub(crate) struct Region {
    /// First guest address.
    pub(crate) guest: u64,
    /// Address of the same byte in the front end's process, which ring addresses refer to.
    pub(crate) user: u64,
    /// Length in bytes.
    pub(crate) len: u64,
    map: Mmap,
    /// Position of the region's first byte in the mapping.
    skip: usize,
}

impl Region {
    /// Maps a region of the vhost-user protocol: `len` bytes from `offset` of `file`.
    ///
    /// # Errors
    /// If the address range wraps, exceeds what one front end may have mapped, or mmap fails.
    pub(crate) fn map(
        file: &File,
        guest: u64,
        user: u64,
        offset: u64,
        len: u64,
    ) -> io::Result<Region> {
        let wraps = guest.checked_add(len).is_none() || user.checked_add(len).is_none();
        if wraps || len == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a memory region is empty or wraps around",
            ));
        }
        if (guest ^ offset) & (LOG_PAGE - 1) != 0 {
            // Otherwise guest-aligned addresses are not aligned here, and rings could not be accessed atomically.
            let what = "a memory region's offset in its file is not congruent to its guest address";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        check_size(len, MOST_MEMORY)?;
        let page = os::memory_page(file)? as u64;
        let page_start = offset - offset % page;
        let skip = usize::try_from(offset - page_start).map_err(|_| io::ErrorKind::InvalidInput)?;
        let map_len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        let map_len = map_len
            .checked_add(skip)
            .ok_or(io::ErrorKind::InvalidInput)?;
        if file.metadata()?.len() < page_start + map_len as u64 {
            // Accessing pages beyond the end of a file would raise SIGBUS.
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a memory region is longer than its file",
            ));
        }
        Ok(Region {
            guest,
            user,
            len,
            map: Mmap::shared(file, page_start, map_len)?,
            skip,
        })
    }

    fn address(&self) -> RegionAddress {
        // SAFETY: skip + len bytes are mapped.
        let host = unsafe { self.map.base().add(self.skip) };
        RegionAddress {
            guest: self.guest,
            len: self.len,
            host,
        }
    }
}

/// The addresses of a region, stored compactly: every address of every request is looked up.
#[derive(Clone, Copy)]
struct RegionAddress {
    guest: u64,
    len: u64,
    /// The host address of the region's first byte.
    host: *mut u8,
}

// SAFETY: an address in a mapping that the region next to it keeps mapped; it has no thread affinity.
unsafe impl Send for RegionAddress {}
// SAFETY: as above; the value itself never changes.
unsafe impl Sync for RegionAddress {}

impl RegionAddress {
    /// Host address of the byte at `guest`, and the number of bytes left in the region from there.
    #[inline]
    fn find(&self, guest: u64) -> Option<(*mut u8, u64)> {
        // An address below the region wraps to one far above it.
        let at = guest.wrapping_sub(self.guest);
        if at >= self.len {
            return None;
        }
        // SAFETY: at < len, and len bytes are mapped from `host`.
        let host = unsafe { self.host.add(memory_size(at)) };
        Some((host, self.len - at))
    }
}

/// All of a guest's memory at one moment, and the log of devices' writes, if there is one.
#[derive(Clone)]
pub(crate) struct Mapping {
    regions: Vec<Arc<Region>>,
    /// One for each region.
    addresses: Vec<RegionAddress>,
    log: Option<Arc<DirtyLog>>,
}

/// The bitmap in which devices mark what they write during live migration.
pub(crate) struct DirtyLog {
    map: Mmap,
}

impl DirtyLog {
    /// Maps a log of `len` bytes at `offset` of `file`.
    ///
    /// # Errors
    /// If mmap fails, or the file is too short.
    pub(crate) fn map(file: &File, offset: u64, len: u64) -> io::Result<DirtyLog> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        if offset
            .checked_add(len as u64)
            .is_none_or(|end| file.metadata().is_ok_and(|m| m.len() < end))
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the dirty log is longer than its file",
            ));
        }
        Ok(DirtyLog {
            map: Mmap::file(file, offset, len)?,
        })
    }

    fn mark(&self, addr: u64, len: usize) {
        let Some(last) = (len as u64)
            .checked_sub(1)
            .and_then(|l| addr.checked_add(l))
        else {
            return;
        };
        for page in addr / LOG_PAGE..=last / LOG_PAGE {
            let byte = memory_size(page / 8);
            if byte >= self.map.len() {
                return;
            }
            // SAFETY: byte < len, checked above.
            let at = unsafe { self.map.base().add(byte) };
            // SAFETY: the byte is mapped for as long as self, and only ever accessed atomically by us.
            let atom = unsafe { AtomicU8::from_ptr(at) };
            // A reader that sees the bit and then copies the page must find the written data.
            atom.fetch_or(1 << (page % 8), Ordering::Release);
        }
    }
}

impl Mapping {
    /// No memory.
    pub(crate) fn empty() -> Mapping {
        Mapping {
            regions: Vec::new(),
            addresses: Vec::new(),
            log: None,
        }
    }

    /// This mapping with one more region.
    ///
    /// # Errors
    /// If it overlaps another in guest addresses, or all exceed what one front end may have mapped.
    pub(crate) fn with(&self, region: Region) -> io::Result<Mapping> {
        let overlaps =
            |r: &Arc<Region>| region.guest < r.guest + r.len && r.guest < region.guest + region.len;
        if self.regions.iter().any(overlaps) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "memory regions overlap",
            ));
        }
        let mapped = |map: &Mmap| map.len() as u64;
        let sum: u64 = self.regions.iter().map(|r| mapped(&r.map)).sum();
        check_size(sum + mapped(&region.map), MOST_MEMORY)?;
        let mut next = self.clone();
        next.addresses.push(region.address());
        next.regions.push(Arc::new(region));
        Ok(next)
    }

    /// This mapping without the region at guest address `guest` of length `len`; `None` if there is none.
    pub(crate) fn without(&self, guest: u64, len: u64) -> Option<Mapping> {
        let at = self
            .regions
            .iter()
            .position(|r| r.guest == guest && r.len == len)?;
        let mut next = self.clone();
        next.regions.remove(at);
        next.addresses.remove(at);
        Some(next)
    }

    /// This mapping with or without a log of writes.
    pub(crate) fn logging(&self, log: Option<Arc<DirtyLog>>) -> Mapping {
        Mapping {
            regions: self.regions.clone(),
            addresses: self.addresses.clone(),
            log,
        }
    }

    /// Number of regions.
    pub(crate) fn regions(&self) -> usize {
        self.regions.len()
    }

    /// The guest address of the front end's address `user`.
    pub(crate) fn guest_of_user(&self, user: u64) -> Option<u64> {
        let region = self
            .regions
            .iter()
            .find(|r| user.checked_sub(r.user).is_some_and(|at| at < r.len))?;
        Some(region.guest + (user - region.user))
    }

    /// Whether a page of it, or of its log, was missing on access: its front end truncated it, or there was no memory
    /// left for it. Its content is unreliable until it is shared again.
    pub(crate) fn is_spoilt(&self) -> bool {
        // One load, unless some mapping has a missing page.
        fault::is_any_patched()
            && (self.regions.iter().any(|region| region.map.is_patched())
                || self.log.as_ref().is_some_and(|log| log.map.is_patched()))
    }

    /// Whether writes are logged.
    pub(crate) fn is_logging(&self) -> bool {
        self.log.is_some()
    }

    /// Marks a segment of this memory as written, if there is a log.
    pub(crate) fn mark_segment(&self, segment: &Segment) {
        let Some(log) = &self.log else { return };
        let host = segment.0.iov_base as usize;
        for region in &self.regions {
            let start = region.map.base() as usize + region.skip;
            if let Some(at) = host
                .checked_sub(start)
                .filter(|&at| (at as u64) < region.len)
            {
                return log.mark(region.guest + at as u64, segment.0.iov_len);
            }
        }
    }

    // A loop, since `find_map` is not inlined, and each request looks three addresses up.
    #[inline]
    fn find(&self, guest: u64) -> Option<(*mut u8, u64)> {
        for address in &self.addresses {
            if let Some(found) = address.find(guest) {
                return Some(found);
            }
        }
        None
    }
}

/// A contiguous piece of memory, in the kernel's format for scatter and gather.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Segment(pub(super) libc::iovec);

// SAFETY: an address and a length; using them is safe only while what they point into is kept mapped, which the
// module's invariants see to on whichever thread.
unsafe impl Send for Segment {}

impl Segment {
    pub(super) fn new(base: *mut u8, len: usize) -> Segment {
        Segment(libc::iovec {
            iov_base: base.cast(),
            iov_len: len,
        })
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.iov_len
    }

    /// Whether its address is a multiple of `alignment`.
    pub(crate) fn is_aligned(&self, alignment: usize) -> bool {
        (self.0.iov_base as usize).is_multiple_of(alignment)
    }

    /// Cuts a list to the pieces that contain its first `len` bytes.
    pub(crate) fn cut(list: &mut Vec<Segment>, len: usize) {
        let mut left = len;
        list.retain_mut(|piece| {
            piece.0.iov_len = piece.0.iov_len.min(left);
            left -= piece.0.iov_len;
            piece.0.iov_len > 0
        });
    }

    /// Stores one byte at its start, if there is room.
    pub(crate) fn put_u8(&self, value: u8) {
        if self.0.iov_len > 0 {
            // SAFETY: a non-empty segment points to at least one mapped byte (module invariant).
            unsafe { self.0.iov_base.cast::<u8>().write_volatile(value) };
        }
    }
}

impl GuestMemory for Mapping {
    type Area = GuestArea;
    type Segment = Segment;

    fn area(&self, addr: u64, len: usize) -> Option<GuestArea> {
        let found = |address: &RegionAddress| address.find(addr);
        let (region, (base, left)) = self
            .regions
            .iter()
            .zip(self.addresses.iter().map(found))
            .find_map(|(region, found)| Some((region, found?)))?;
        (len as u64 <= left).then(|| GuestArea {
            base,
            len,
            _region: Owner::Region(Arc::clone(region)),
        })
    }

    #[inline(always)]
    fn load_pair(&self, addr: u64) -> Option<[u64; 2]> {
        let (host, left) = self.find(addr)?;
        // SAFETY: 16 bytes are left in the region from `host`.
        (left >= 16).then(|| unsafe { load_pair(host) })
    }

    #[inline(always)]
    fn segment(&self, addr: u64, len: u32) -> Option<Segment> {
        let (host, left) = self.find(addr)?;
        let fits = len > 0 && u64::from(len) <= left;
        fits.then(|| Segment::new(host, len as usize))
    }

    #[cold]
    fn segments(&self, mut addr: u64, len: u32, out: &mut Vec<Segment>) -> bool {
        let mut need = u64::from(len);
        while need > 0 {
            let Some((host, left)) = self.find(addr) else {
                return false;
            };
            let take = need.min(left);
            out.push(Segment::new(host, memory_size(take)));
            need -= take;
            // Cannot wrap: the region of `addr` does not.
            addr += take;
        }
        true
    }

    #[inline]
    fn peek(&self, segments: &[Segment], bytes: &mut [u8]) -> usize {
        gather(segments, bytes)
    }

    #[inline]
    fn segment_pair(&self, segment: &Segment) -> Option<[u64; 2]> {
        // SAFETY: the segment is valid memory of its length (module invariant), which is checked first.
        (segment.len() >= 16).then(|| unsafe { load_pair(segment.0.iov_base.cast()) })
    }

    #[inline]
    fn segment_len(segment: &Segment) -> usize {
        segment.len()
    }

    #[inline]
    fn segment_skip(segment: &Segment, bytes: usize) -> Segment {
        let bytes = bytes.min(segment.len());
        // SAFETY: at most the segment's own length further on, so still inside it or one past its end.
        let base = unsafe { segment.0.iov_base.cast::<u8>().add(bytes) };
        Segment::new(base, segment.len() - bytes)
    }

    #[inline]
    fn segment_take(segment: &Segment, bytes: usize) -> Segment {
        Segment::new(segment.0.iov_base.cast(), bytes.min(segment.len()))
    }

    fn mark_dirty(&self, addr: u64, len: usize) {
        if let Some(log) = &self.log {
            log.mark(addr, len);
        }
    }

    #[inline]
    fn prefetch(&self, addr: u64) {
        if let Some((host, _)) = self.find(addr) {
            prefetch(host);
        }
    }
}

/// Prefetches a cache line.
#[inline]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing and never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Copies from the front of `segments` into `bytes`, as far as both reach; returns how many bytes.
pub(super) fn gather(segments: &[Segment], bytes: &mut [u8]) -> usize {
    let mut done = 0;
    for segment in segments {
        let take = segment.len().min(bytes.len() - done);
        // SAFETY: the segment is valid memory of its length (module invariant), `take` fits both sides.
        unsafe {
            std::ptr::copy_nonoverlapping(
                segment.0.iov_base.cast(),
                bytes[done..].as_mut_ptr(),
                take,
            )
        };
        done += take;
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_front::vhost::Area;

    const TIB: u64 = 1 << 40;

    /// A region of this many bytes, from a sparse file.
    fn region(guest: u64, len: u64) -> io::Result<Region> {
        let file = os::memory_file(c"much", len).expect("memory");
        Region::map(&file, guest, guest, 0, len)
    }

    #[test]
    fn a_front_end_maps_no_more_than_its_part_of_the_address_space() {
        let refused = |error: Option<io::Error>| {
            let error = error.expect("refused").to_string();
            assert!(error.contains("give its guest less memory"), "{error}");
        };
        refused(region(0, 4 * TIB + 4096).err());
        let whole = Mapping::empty().with(region(0, 4 * TIB).expect("as much as may be"));
        let whole = whole.expect("as much as may be");
        refused(whole.with(region(4 * TIB, 4096).expect("mapped")).err());
        let none = whole.without(0, 4 * TIB).expect("it exists");
        let some = none.with(region(0, TIB).expect("mapped")).expect("fits");
        refused(
            some.with(region(TIB, 3 * TIB + 4096).expect("mapped"))
                .err(),
        );
        some.with(region(TIB, 3 * TIB).expect("mapped"))
            .expect("as much as may be");
        let file = os::memory_file(c"log", TIB).expect("memory");
        refused(DirtyLog::map(&file, 0, MOST_OF_A_FILE + 1).err());
        DirtyLog::map(&file, 0, MOST_OF_A_FILE).expect("as much as may be");
    }

    #[test]
    fn a_missing_page_spoils_only_its_own_memory_or_log() {
        let files =
            ["cut", "first", "log"].map(|_| os::memory_file(c"guest", 8192).expect("memory"));
        let part = |file, guest| Region::map(file, guest, guest, 0, 8192).expect("a mapping");
        let first = Mapping::empty().with(part(&files[1], 0)).expect("fits");
        let both = first.with(part(&files[0], 8192)).expect("fits");
        let log = Arc::new(DirtyLog::map(&files[2], 0, 8192).expect("a mapping"));
        let logged = first.logging(Some(log));
        let spoilt = || [&first, &both, &logged].map(Mapping::is_spoilt);
        assert_eq!(spoilt(), [false; 3]);
        files[0].set_len(0).expect("cut");
        files[2].set_len(0).expect("cut");
        assert_eq!(spoilt(), [false; 3], "nothing was accessed yet");
        assert_eq!(both.area(8192, 2).expect("inside").load_u16(0), 0);
        assert_eq!(spoilt(), [false, true, false]);
        logged.mark_dirty(0, 1);
        assert_eq!(spoilt(), [false, true, true]);
        assert!(!both.without(8192, 8192).expect("it exists").is_spoilt());
    }

    #[test]
    fn a_list_is_cut_to_the_pieces_of_its_first_bytes() {
        let piece = |len| Segment::new(std::ptr::null_mut(), len);
        let cut = |lens: &[usize], len| {
            let mut list: Vec<Segment> = lens.iter().copied().map(piece).collect();
            Segment::cut(&mut list, len);
            list.iter().map(Segment::len).collect::<Vec<usize>>()
        };
        assert_eq!(cut(&[4096, 1 << 32], 20), [20]);
        assert_eq!(cut(&[8, 8, 8, 8], 20), [8, 8, 4]);
        assert_eq!(cut(&[8, 8], 20), [8, 8]);
        assert!(cut(&[8], 0).is_empty());
    }
}
