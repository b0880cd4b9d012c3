//! The io_uring of one I/O thread.
//!
//! Every operation has a [`Tag`], which leads its completion to its owner. Buffers are lent from [`Buffers`] slots; the
//! thread returns them on completion.
//!
//! # Always true
//! - an operation is never refused for lack of room: a full submission queue is submitted first
//! - the ring belongs to the thread that created it (SINGLE_ISSUER), which alone submits and reaps
//!
//! # For tools
//! Some tools run all threads under one lock and do not know that `io_uring_enter` may block (valgrind up to 3.19).
//! They would stop the whole program there. With [`NAP`] in the environment a thread sleeps for a millisecond at a time
//! instead.

use super::buffers::Buffers;
use super::guest::Segment;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::io;
use std::os::fd::RawFd;
use tidegate_core::request::Data;
use tidegate_core::units::Span;

/// Submission queue entries. A full queue only costs one early system call.
const ENTRIES: u32 = 512;
/// Completion queue entries; the kernel queues what does not fit (NODROP).
const COMPLETIONS: u32 = 8192;
/// Locked memory of a ring (RLIMIT_MEMLOCK), where the kernel counts it for the user, as from Linux 6.14 on without
/// CAP_IPC_LOCK: 64 bytes for each submission, 16 for each completion, and a page for the ring's head and its array of
/// 4-byte indices.
pub(crate) const LOCKED: u64 = (ENTRIES * 64 + COMPLETIONS * 16 + 4096) as u64;
/// Maximum number of reads and writes that wait for submission. The kernel takes microseconds for each, and starts none
/// on the disk before it has processed the whole submission. A disk that waits for 32 idles meanwhile, and then all 32
/// stay in lockstep. The first of a turn is submitted alone, so that an idle disk starts at once. The others follow in
/// fours, with little cost for system calls.
const BATCH: u32 = 4;
/// The longest read or write that the kernel may perform during submission. If the data is in its cache it copies it at
/// once, which takes 8 ms for a guest's longest request. The thread has other guests, so kernel workers perform longer
/// ones.
const LONGEST_AT_ONCE: usize = 256 << 10;
/// The environment variable that makes threads sleep in user space instead of the kernel; see the module.
const NAP: &str = "TIDEGATE_NAP";

/// The largest number of an owner.
const OWNERS: u32 = (1 << 26) - 1;

/// The owner of an operation: a kind, and two numbers whose meaning depends on the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    /// The table that `owner` is an index of; chosen by the thread. At most 6 bits.
    pub(crate) kind: u8,
    /// At most 26 bits.
    pub(crate) owner: u32,
    /// For the owner's use.
    pub(crate) slot: u32,
}

impl Tag {
    fn to_bits(self) -> u64 {
        debug_assert!(self.owner <= OWNERS, "an owner's number fits 26 bits");
        u64::from(self.kind) << 58 | u64::from(self.owner) << 32 | u64::from(self.slot)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "each part is taken on purpose"
    )]
    fn from_bits(bits: u64) -> Tag {
        Tag {
            kind: (bits >> 58) as u8,
            owner: (bits >> 32) as u32 & OWNERS,
            slot: bits as u32,
        }
    }
}

/// A completed operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    /// Its owner.
    pub(crate) tag: Tag,
    /// The result of the system call, negative for an error number.
    pub(crate) result: i32,
    /// Whether the operation continues and will complete again.
    pub(crate) more: bool,
}

/// See the module.
pub(crate) struct Ring {
    inner: IoUring,
    queued: u32,
    /// Operations that have not completed for the last time, queued ones too.
    in_flight: usize,
    /// How many more reads and writes may be queued before a submission.
    queue_room: u32,
    /// Whether [`NAP`] is set.
    naps: bool,
}

impl Ring {
    /// A ring for the calling thread.
    ///
    /// # Errors
    /// If the kernel has no io_uring, denies it, or is older than 6.1.
    pub(crate) fn new() -> io::Result<Ring> {
        let inner = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(COMPLETIONS)
            .build(ENTRIES)?;
        Ok(Ring {
            inner,
            queued: 0,
            in_flight: 0,
            queue_room: 1,
            naps: std::env::var_os(NAP).is_some(),
        })
    }

    fn push(&mut self, entry: squeue::Entry, tag: Tag) {
        let entry = entry.user_data(tag.to_bits());
        // SAFETY: the targets of the entry stay valid until its completion: the callers below lend them from slots and
        // structures that live that long (see `sys`).
        while unsafe { self.inner.submission().push(&entry) }.is_err() {
            self.submit_now();
        }
        self.queued += 1;
        self.in_flight += 1;
    }

    /// Queues a read or a write: the disk may be idle until it is submitted.
    fn push_data(&mut self, entry: squeue::Entry, tag: Tag) {
        self.push(entry, tag);
        self.queue_room -= 1;
        if self.queue_room == 0 {
            self.queue_room = BATCH;
            self.queued = 0;
            self.submit_now();
        }
    }

    fn submit_now(&mut self) {
        match self.inner.submit() {
            Ok(_) => {}
            // Busy: completions must be reaped first, which the thread does next. Interrupted: it tries again then.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EBUSY | libc::EAGAIN | libc::EINTR)
                ) => {}
            Err(error) => panic!("the kernel refuses our submissions: {error}"),
        }
    }

    /// Reads `len` bytes at `offset` of `fd` into the buffer.
    pub(crate) fn read(
        &mut self,
        fd: RawFd,
        buffers: &mut Buffers,
        data: Data,
        len: usize,
        offset: u64,
        tag: Tag,
    ) {
        let entry = match buffers.lend(data, len) {
            [one] => opcode::Read::new(types::Fd(fd), one.0.iov_base.cast(), clamp(one.len()))
                .offset(offset)
                .build(),
            many => opcode::Readv::new(types::Fd(fd), iovecs(many), count(many))
                .offset(offset)
                .build(),
        };
        self.push_data(with_worker(entry, len), tag);
    }

    /// Writes `len` bytes from the buffer at `offset` of `fd`; durable before it completes if `durable`.
    #[expect(clippy::too_many_arguments, reason = "a write has that many parts")]
    pub(crate) fn write(
        &mut self,
        fd: RawFd,
        buffers: &mut Buffers,
        data: Data,
        len: usize,
        offset: u64,
        durable: Durability,
        tag: Tag,
    ) {
        let flags = match durable {
            Durability::Cached => 0,
            Durability::Durable => libc::RWF_DSYNC,
        };
        let entry = match buffers.lend(data, len) {
            [one] => opcode::Write::new(types::Fd(fd), one.0.iov_base.cast(), clamp(one.len()))
                .offset(offset)
                .rw_flags(flags)
                .build(),
            many => opcode::Writev::new(types::Fd(fd), iovecs(many), count(many))
                .offset(offset)
                .rw_flags(flags)
                .build(),
        };
        self.push_data(with_worker(entry, len), tag);
    }

    /// Makes earlier writes to `fd` durable (fdatasync).
    pub(crate) fn sync(&mut self, fd: RawFd, tag: Tag) {
        self.push(
            opcode::Fsync::new(types::Fd(fd))
                .flags(types::FsyncFlags::DATASYNC)
                .build(),
            tag,
        );
    }

    /// Changes the allocation of a range of `fd`.
    pub(crate) fn allocate(&mut self, fd: RawFd, mode: i32, offset: u64, len: u64, tag: Tag) {
        self.push(
            opcode::Fallocate::new(types::Fd(fd), len)
                .offset(offset)
                .mode(mode)
                .build(),
            tag,
        );
    }

    /// Completes each time `fd` becomes readable, until cancelled.
    pub(crate) fn watch(&mut self, fd: RawFd, tag: Tag) {
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32)
            .multi(true)
            .build();
        self.push(entry, tag);
    }

    /// Completes once, with poll's events, when the other end of the socket `fd` has closed both directions; if `half`,
    /// also when it sends no more.
    pub(crate) fn watch_other_end(&mut self, fd: RawFd, half: bool, tag: Tag) {
        let events = if half { libc::POLLRDHUP as u32 } else { 0 };
        let entry = opcode::PollAdd::new(types::Fd(fd), events).build();
        self.push(entry, tag);
    }

    /// Receives up to `len` bytes from the socket `fd` into the buffer.
    pub(crate) fn receive(
        &mut self,
        fd: RawFd,
        buffers: &mut Buffers,
        data: Data,
        len: usize,
        tag: Tag,
    ) {
        let entry = match buffers.lend(data, len) {
            [one] => {
                opcode::Recv::new(types::Fd(fd), one.0.iov_base.cast(), clamp(one.len())).build()
            }
            _ => panic!("bytes are received into one piece of memory"),
        };
        self.push(entry, tag);
    }

    /// Sends the segments of `message` to its socket.
    pub(crate) fn send(&mut self, fd: RawFd, message: &super::message::Message, tag: Tag) {
        let entry = opcode::SendMsg::new(types::Fd(fd), message.header())
            .flags(libc::MSG_NOSIGNAL as u32)
            .build();
        self.push(entry, tag);
    }

    /// Cancels the operations with this tag; they complete with ECANCELED or as usual.
    pub(crate) fn cancel(&mut self, target: Tag, tag: Tag) {
        let all = types::CancelBuilder::user_data(target.to_bits()).all();
        let entry = opcode::AsyncCancel2::new(all).build();
        self.push(entry, tag);
    }

    /// Submits queued operations and lets the kernel post completions, without waiting. Makes no system call if there
    /// is nothing to do.
    pub(crate) fn submit(&mut self) {
        self.queue_room = 1;
        let submission = self.inner.submission();
        if self.queued > 0 || submission.taskrun() || submission.cq_overflow() {
            drop(submission);
            self.queued = 0;
            self.submit_now();
        }
    }

    /// Waits until an operation completes, or for `timeout`.
    pub(crate) fn wait(&mut self, timeout: Option<Span>) {
        self.queued = 0;
        if self.naps {
            return self.nap();
        }
        let result = match timeout {
            None => self.inner.submitter().submit_and_wait(1),
            Some(span) => {
                let nanos = span.as_nanos();
                let time = types::Timespec::new()
                    .sec(nanos / 1_000_000_000)
                    .nsec((nanos % 1_000_000_000) as u32);
                self.inner
                    .submitter()
                    .submit_with_args(1, &types::SubmitArgs::new().timespec(&time))
            }
        };
        match result {
            Ok(_) => {}
            Err(error) => match error.raw_os_error() {
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
                _ => panic!("the kernel refuses to wait on our ring: {error}"),
            },
        }
    }

    #[cold]
    fn nap(&mut self) {
        self.submit_now();
        if !self.has_completions() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        self.submit_now();
    }

    /// Takes up to `most` completions into `out`.
    pub(crate) fn reap(&mut self, most: usize, out: &mut Vec<Completion>) {
        let in_flight = &mut self.in_flight;
        let completions = self.inner.completion().take(most);
        out.extend(completions.map(|entry| {
            let more = cqueue::more(entry.flags());
            *in_flight -= usize::from(!more);
            Completion {
                tag: Tag::from_bits(entry.user_data()),
                result: entry.result(),
                more,
            }
        }));
    }

    /// Completions that can be reaped; the kernel posts pending ones first.
    pub(crate) fn posted(&mut self) -> usize {
        self.submit();
        self.inner.completion().len()
    }

    /// Operations that have not completed for the last time.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether a completion can be reaped; the kernel posts pending ones first.
    ///
    /// The kernel's flag for pending work is not enough: another CPU sets it after it has queued work that may be done
    /// by then, and it stays set until there is work again. A thread that relied on it would never sleep.
    pub(crate) fn has_completions(&mut self) -> bool {
        if !self.inner.completion().is_empty() {
            return true;
        }
        if !self.inner.submission().taskrun() {
            return false;
        }
        self.submit();
        !self.inner.completion().is_empty()
    }
}

/// Whether a write may still be cached when it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// It may be.
    Cached,
    /// It is on stable storage (RWF_DSYNC).
    Durable,
}

/// The entry of an operation on `len` bytes, marked for the kernel's workers if it is long.
fn with_worker(entry: squeue::Entry, len: usize) -> squeue::Entry {
    if len > LONGEST_AT_ONCE {
        return entry.flags(squeue::Flags::ASYNC);
    }
    entry
}

/// A list in the kernel's format.
fn iovecs(segments: &[Segment]) -> *const libc::iovec {
    segments.as_ptr().cast()
}

fn count(segments: &[Segment]) -> u32 {
    clamp(segments.len())
}

/// One operation moves less than 4 GiB; the rest follows after a short count.
fn clamp(len: usize) -> u32 {
    const MOST: u32 = !4095;
    u32::try_from(len).unwrap_or(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    const TAG: Tag = Tag {
        kind: 1,
        owner: 0,
        slot: 0,
    };

    /// Whether the kernel has workers for this thread's operations.
    fn has_workers() -> bool {
        // SAFETY: no memory is involved.
        let own = unsafe { libc::gettid() };
        let name = format!("iou-wrk-{own}");
        let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
        let names = tasks.flatten().map(|task| {
            // A task may have ended meanwhile.
            std::fs::read_to_string(task.path().join("comm")).unwrap_or_default()
        });
        // Names are cut to 15 bytes.
        let name = &name[..name.len().min(15)];
        names.into_iter().any(|comm| comm.trim() == name)
    }

    #[test]
    fn only_long_copies_are_left_to_kernel_workers() {
        const LONG: usize = 2 * LONGEST_AT_ONCE;
        // A file of some megabytes that the kernel has in its cache: this program.
        let own = "/proc/self/exe";
        assert!(std::fs::read(own).is_ok_and(|all| all.len() >= LONG));
        let file = std::fs::File::open(own).expect("a program");
        let (mut ring, mut buffers) = (Ring::new().expect("a ring"), Buffers::new());
        let buffer = buffers
            .claim_pool(super::super::buffers::NO_DISK, LONG)
            .expect("memory");
        let data = Data { buffer, start: 0 };
        for (len, by_workers) in [(LONGEST_AT_ONCE, false), (LONG, true)] {
            ring.read(file.as_raw_fd(), &mut buffers, data, len, 0, TAG);
            let mut ended = Vec::new();
            while ended.is_empty() {
                ring.wait(None);
                ring.reap(1, &mut ended);
            }
            buffers.returned(buffer);
            assert_eq!(usize::try_from(ended[0].result), Ok(len));
            assert_eq!(has_workers(), by_workers, "{len} bytes");
        }
        buffers.release(buffer);
    }
}
