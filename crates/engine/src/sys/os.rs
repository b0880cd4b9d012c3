//! System calls that the standard library lacks.

use super::fault::PAGE;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use tidegate_core::units::Time;

/// The current time of the monotonic clock, as the I/O threads have it.
pub fn now() -> Time {
    let mut at = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the call fills the timespec it is given.
    let ok = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, at.as_mut_ptr()) };
    assert_eq!(ok, 0, "the monotonic clock exists");
    // SAFETY: filled by the successful call.
    let at = unsafe { at.assume_init() };
    Time::from_nanos(at.tv_sec.unsigned_abs() * 1_000_000_000 + at.tv_nsec.unsigned_abs())
}

/// The current time of the clock that includes a machine's suspend time.
pub(crate) fn boottime() -> Time {
    let mut at = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the call fills the timespec it is given.
    let ok = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, at.as_mut_ptr()) };
    assert_eq!(ok, 0, "the boot-time clock exists");
    // SAFETY: filled by the successful call.
    let at = unsafe { at.assume_init() };
    Time::from_nanos(at.tv_sec.unsigned_abs() * 1_000_000_000 + at.tv_nsec.unsigned_abs())
}

/// Locks one byte of a file for this open file description. The lock is held until the last reference is gone,
/// including the kernel's own for operations in flight. So a successor gets it only when no operation of ours can reach
/// the disk.
///
/// # Errors
/// `WouldBlock` if another holds it.
pub(crate) fn lock(file: &File, byte: u8, exclusive: bool) -> io::Result<()> {
    let kind = if exclusive {
        libc::F_WRLCK
    } else {
        libc::F_RDLCK
    };
    // SAFETY: flock is plain old data; zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    let short = |constant| {
        libc::c_short::try_from(constant).expect("the kernel's constants fit their field")
    };
    lock.l_type = short(kind);
    lock.l_whence = short(libc::SEEK_SET);
    lock.l_start = byte.into();
    lock.l_len = 1;
    // SAFETY: the kernel reads the structure during the call.
    let got = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if got == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Err(io::ErrorKind::WouldBlock.into()),
        _ => Err(error),
    }
}

/// The alignment that direct I/O on a file requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectAlignment {
    /// Of memory, in bytes.
    pub(crate) memory: usize,
    /// Of offsets and lengths, in bytes.
    pub(crate) offset: usize,
}

/// The alignment that direct I/O on this file requires, with an offset of zero if it is refused; `None` if the system
/// does not report it.
pub(crate) fn direct_alignment(file: &File) -> Option<DirectAlignment> {
    let mut info = MaybeUninit::<libc::statx>::zeroed();
    let empty = c"".as_ptr();
    // SAFETY: an empty path with AT_EMPTY_PATH means the descriptor itself; the call fills the structure.
    let ok = unsafe {
        libc::statx(
            file.as_raw_fd(),
            empty,
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            info.as_mut_ptr(),
        )
    };
    if ok != 0 {
        return None;
    }
    // SAFETY: zeroed before and filled by the successful call.
    let info = unsafe { info.assume_init() };
    if info.stx_mask & libc::STATX_DIOALIGN == 0 {
        return None;
    }
    Some(DirectAlignment {
        memory: info.stx_dio_mem_align as usize,
        offset: info.stx_dio_offset_align as usize,
    })
}

/// The length of a file, as far as this host knows. On a network file system the server is not asked, so the call does
/// not block.
///
/// # Errors
/// If statx fails.
pub(crate) fn length_now(file: &OwnedFd) -> io::Result<u64> {
    let mut info = MaybeUninit::<libc::statx>::zeroed();
    let empty = c"".as_ptr();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: an empty path with AT_EMPTY_PATH means the descriptor itself; the call fills the structure.
    let ok = unsafe {
        libc::statx(
            file.as_raw_fd(),
            empty,
            flags,
            libc::STATX_SIZE,
            info.as_mut_ptr(),
        )
    };
    if ok != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed before and filled by the successful call.
    Ok(unsafe { info.assume_init() }.stx_size)
}

/// Punches a hole in a file.
///
/// # Errors
/// If fallocate fails.
#[cfg(test)]
pub(crate) fn punch_hole(file: &OwnedFd, offset: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let [offset, len] = [offset, len].map(|n| libc::off_t::try_from(n).expect("small"));
    // SAFETY: no memory is involved.
    let ok = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) };
    if ok == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The next offset from `from` on at which the file has data; `None` if there is none.
///
/// # Errors
/// If lseek fails, as for files that do not support it.
pub(crate) fn seek_data(fd: RawFd, from: u64) -> io::Result<Option<u64>> {
    seek(fd, from, libc::SEEK_DATA)
}

/// The next offset from `from` on at which the file has a hole (its end is one).
///
/// # Errors
/// As [`seek_data`].
pub(crate) fn seek_hole(fd: RawFd, from: u64) -> io::Result<Option<u64>> {
    seek(fd, from, libc::SEEK_HOLE)
}

fn seek(fd: RawFd, from: u64, whence: i32) -> io::Result<Option<u64>> {
    let from = libc::off_t::try_from(from).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no memory is involved; the file's position is not used.
    let at = unsafe { libc::lseek(fd, from, whence) };
    if at >= 0 {
        return Ok(Some(at.unsigned_abs()));
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENXIO) {
        Ok(None)
    } else {
        Err(error)
    }
}

/// The size of a block device in bytes.
///
/// # Errors
/// If the file is not a block device, or the driver fails.
pub(crate) fn block_device_size(file: &File) -> io::Result<u64> {
    const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
    let mut size = 0u64;
    // SAFETY: this request stores one u64.
    let ok = unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut size) };
    if ok == 0 {
        Ok(size)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The UUID of a file's file system from the kernel; `None` if it has none.
pub(crate) fn file_system_uuid(file: &File) -> Option<Vec<u8>> {
    // _IOR(0x15, 0, struct fsuuid2), of `linux/fs.h`.
    const FS_IOC_GETFSUUID: libc::c_ulong = 0x8011_1500;
    #[repr(C)]
    struct Uuid {
        len: u8,
        uuid: [u8; 16],
    }
    let mut answer = Uuid {
        len: 0,
        uuid: [0; 16],
    };
    // SAFETY: this request stores one such structure.
    let ok = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_GETFSUUID, &raw mut answer) };
    let uuid = answer.uuid.get(..usize::from(answer.len))?;
    (ok == 0 && uuid.iter().any(|byte| *byte != 0)).then(|| uuid.to_vec())
}

/// Pins the calling thread to one CPU.
///
/// # Errors
/// If the CPU does not exist or the thread may not use it.
pub(crate) fn pin_to(cpu: usize) -> io::Result<()> {
    // SAFETY: cpu_set_t is plain old data; zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu >= libc::CPU_SETSIZE.unsigned_abs() as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the CPU's bit is inside the set, checked above.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: zero means the calling thread; the kernel reads the set during the call.
    let ok = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if ok == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The CPUs to which the calling thread may be pinned. It may run on any of them afterwards.
pub(crate) fn usable_cpus() -> Vec<usize> {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: cpu_set_t is plain old data; zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let all = 0..libc::CPU_SETSIZE.unsigned_abs() as usize;
    for cpu in all.clone() {
        // SAFETY: the CPU's bit is inside the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // The kernel takes the allowed subset. If it fails, the thread's old set stays.
    // SAFETY: zero means the calling thread; the kernel reads the set during the call.
    unsafe { libc::sched_setaffinity(0, size, &raw const set) };
    // SAFETY: as above, but the kernel fills the set.
    unsafe { libc::sched_getaffinity(0, size, &raw mut set) };
    // SAFETY: the CPU's bit is inside the set.
    all.filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) })
        .collect()
}

/// Creates an anonymous file in memory.
///
/// # Errors
/// If memfd_create fails.
pub(crate) fn memory_file(name: &std::ffi::CStr, len: u64) -> io::Result<File> {
    memory_of(name, libc::MFD_CLOEXEC, len)
}

/// As [`memory_file`], with these flags.
pub(super) fn memory_of(name: &std::ffi::CStr, flags: u32, len: u64) -> io::Result<File> {
    // SAFETY: the name is a terminated string that the kernel copies.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len)?;
    Ok(file)
}

/// Makes a file at least `len` bytes long, with space allocated if the file system supports that. Existing content
/// stays, even if others do the same.
///
/// # Errors
/// If fallocate fails, unless it is not supported.
pub(crate) fn preallocate(file: &File, len: u64) -> io::Result<()> {
    let length = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no memory is involved.
    let ok = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) };
    if ok == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::ENOSYS) if file.metadata()?.len() < len => file.set_len(len),
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => Ok(()),
        _ => Err(error),
    }
}

/// The page size of a file to be mapped as guest memory. The file must be memory: a memfd, or a file on tmpfs or
/// hugetlbfs. On another file system (FUSE, NFS) an access may block forever.
///
/// # Errors
/// If it is of another kind.
pub(crate) fn memory_page(file: &File) -> io::Result<usize> {
    // Only files in memory have seals, and no file system is asked for them.
    // SAFETY: no memory is involved.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) } < 0 {
        let what = "shared memory must be a memfd, or a file on tmpfs or hugetlbfs";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let status = file_system(file)?;
    if status.f_type != libc::HUGETLBFS_MAGIC {
        return Ok(PAGE);
    }
    usize::try_from(status.f_bsize).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The status of a file's file system.
fn file_system(file: &File) -> io::Result<libc::statfs> {
    let mut status = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the call fills the structure it is given.
    if unsafe { libc::fstatfs(file.as_raw_fd(), status.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: filled by the successful call.
    Ok(unsafe { status.assume_init() })
}

/// Whether a file's data is only in the page cache, so that it has no direct I/O.
pub(crate) fn is_memory(file: &File) -> bool {
    const RAMFS_MAGIC: libc::__fsword_t = 0x8584_58f6;
    file_system(file).is_ok_and(|status| matches!(status.f_type, libc::TMPFS_MAGIC | RAMFS_MAGIC))
}

/// The block size of a file's file system in bytes, a power of two: a hole aligned to it does not affect the page
/// cache.
pub(crate) fn hole_unit(file: &File) -> u64 {
    // Linux has no larger blocks; some network file systems report their preferred request size instead.
    const LARGEST: u64 = 65_536;
    let block = file_system(file).map_or(LARGEST, |status| status.f_bsize.unsigned_abs());
    block.max(PAGE as u64).min(LARGEST).next_power_of_two()
}

/// The smallest direct I/O of a block device, in bytes.
///
/// # Errors
/// If the file is not a block device, or the driver fails.
pub(crate) fn logical_block_size(file: &File) -> io::Result<usize> {
    const BLKSSZGET: libc::c_ulong = 0x1268;
    let mut size = 0_i32;
    // SAFETY: this request stores one int.
    if unsafe { libc::ioctl(file.as_raw_fd(), BLKSSZGET, &raw mut size) } < 0 {
        return Err(io::Error::last_os_error());
    }
    usize::try_from(size).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The process at the other end of a Unix socket: the one that connected it, or made the pair. None for other sockets,
/// and for a process that this one's namespace does not have.
pub(crate) fn peer_process(socket: &impl AsRawFd) -> Option<u32> {
    let mut peer = MaybeUninit::<libc::ucred>::zeroed();
    let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("some bytes");
    // SAFETY: the kernel writes at most `len` bytes to the structure of that length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            peer.as_mut_ptr().cast(),
            &mut len,
        )
    };
    if result != 0 {
        return None;
    }
    // SAFETY: zeroes are a valid value, and so is what the kernel wrote.
    let peer = unsafe { peer.assume_init() };
    u32::try_from(peer.pid).ok().filter(|&pid| pid > 0)
}

/// The number of the calling thread in the system.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: no memory is involved.
    let id = unsafe { libc::gettid() };
    id.unsigned_abs()
}

/// The CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Time {
    let mut at = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the call fills the timespec it is given.
    let ok = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, at.as_mut_ptr()) };
    assert_eq!(ok, 0, "every thread has a CPU clock");
    // SAFETY: filled by the successful call.
    let at = unsafe { at.assume_init() };
    Time::from_nanos(at.tv_sec.unsigned_abs() * 1_000_000_000 + at.tv_nsec.unsigned_abs())
}

/// Checks that a descriptor from a front end is an eventfd, and makes it non-blocking: neither a full pipe nor a full
/// counter may block an I/O thread.
///
/// # Errors
/// If it is of another kind.
pub(crate) fn check_eventfd(file: &File) -> io::Result<()> {
    let fd = file.as_raw_fd();
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}"))?;
    if link.as_os_str() != "anon_inode:[eventfd]" {
        let what = format!(
            "a kick or call descriptor is {}, not an eventfd",
            link.display()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    // SAFETY: no memory is involved.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    let set = unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) };
    if flags < 0 || set < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Enlarges the send buffer to `bytes`, so that a deep queue's replies are sent in one piece. Without the privilege for
/// that the system grants what it allows.
pub(crate) fn widen_send_buffer(socket: &OwnedFd, bytes: i32) {
    for option in [libc::SO_SNDBUF, libc::SO_SNDBUFFORCE] {
        let len = libc::socklen_t::try_from(size_of::<i32>()).expect("four bytes");
        let value = (&raw const bytes).cast();
        // SAFETY: the option's value is an i32 that the kernel reads during the call.
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, len) };
    }
}

/// Shuts down the receiving side of a socket, or both sides. A socket that is closed already is no error.
pub(crate) fn shut_down(socket: &OwnedFd, both: bool) {
    let how = if both { libc::SHUT_RDWR } else { libc::SHUT_RD };
    // SAFETY: no memory is involved.
    unsafe { libc::shutdown(socket.as_raw_fd(), how) };
}

/// Whether the other end of a socket is closed, or ours was shut down: only data sent before may still arrive.
pub(crate) fn has_hung_up(socket: &UnixStream) -> bool {
    let mut watched = [watch_for(socket.as_raw_fd(), libc::POLLRDHUP)];
    // If poll fails, the other end is assumed to be there.
    poll(&mut watched, 0).is_ok() && watched[0].revents != 0
}

/// Waits until `wakeup` is signalled or the other end of `socket` is closed.
///
/// # Errors
/// If poll fails.
pub(crate) fn wait_for_wakeup(wakeup: RawFd, socket: &UnixStream) -> io::Result<()> {
    let ends = [
        (wakeup, libc::POLLIN),
        (socket.as_raw_fd(), libc::POLLRDHUP),
    ];
    let mut watched = ends.map(|(fd, events)| watch_for(fd, events));
    poll(&mut watched, -1)
}

fn watch_for(fd: RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd {
        fd,
        events,
        revents: 0,
    }
}

/// Polls these for this many milliseconds, forever if negative.
fn poll(watched: &mut [libc::pollfd], timeout_ms: i32) -> io::Result<()> {
    let count = libc::nfds_t::try_from(watched.len()).expect("a few");
    loop {
        // SAFETY: the kernel reads and writes the slice, of the given length, during the call.
        if unsafe { libc::poll(watched.as_mut_ptr(), count, timeout_ms) } >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Waits for data on a socket and copies as much as fits without consuming it; fewer bytes mean its end.
///
/// # Errors
/// If recv fails.
pub(crate) fn peek(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        let flags = libc::MSG_PEEK | libc::MSG_WAITALL;
        // SAFETY: the kernel writes at most the slice's length into it.
        let got = unsafe {
            libc::recv(
                socket.as_raw_fd(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                flags,
            )
        };
        match usize::try_from(got) {
            Ok(got) => return Ok(got),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Writes to a socket without blocking, whatever its socket options; returns how many bytes were written.
///
/// # Errors
/// If send fails; `WouldBlock` if there is no room.
pub(crate) fn send_now(socket: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the kernel reads the slice's length from it.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            flags,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// A copy of the first descriptor that arrives with the next bytes on a socket; both stay unread.
///
/// # Errors
/// If recvmsg fails.
pub(crate) fn peek_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    /// Room for the descriptors of any vhost-user message.
    const ROOM: usize = 256;
    let mut byte = [0u8; 1];
    let mut piece = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: byte.len(),
    };
    let mut control = [0u64; ROOM / 8];
    // SAFETY: msghdr is plain old data; zero means nothing in it.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = ROOM as _;
    let flags = libc::MSG_PEEK | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message's pieces are the locals above, as long as they say.
    if unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has filled the control buffer that the message points to.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: not null, so it points into the control buffer.
        let part = unsafe { &*header };
        if part.cmsg_level == libc::SOL_SOCKET && part.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: a pure computation on a length.
            let head = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = (part.cmsg_len as usize).saturating_sub(head) / size_of::<RawFd>();
            // SAFETY: the data of a header that lies inside the buffer.
            let data = unsafe { libc::CMSG_DATA(header) }.cast::<RawFd>();
            for at in 0..count {
                // SAFETY: fewer than the count of descriptors that the header announces.
                let place = unsafe { data.add(at) };
                // SAFETY: inside the control buffer, which has no alignment to speak of.
                let fd = unsafe { place.read_unaligned() };
                // SAFETY: the kernel made this descriptor for us just now.
                descriptors.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: both point to what the kernel filled.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Ok(descriptors.into_iter().next())
}
