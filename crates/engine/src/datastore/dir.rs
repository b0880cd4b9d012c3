//! Disk images in files or on block devices, by direct I/O where possible, else through the page cache.
//!
//! An image uses direct I/O or the page cache, never both. Bytes that one request caches and another writes directly
//! are lost, or make the next flush fail. With direct I/O, whole units of aligned memory are passed to the kernel
//! unchanged. All other requests use a bounce buffer (`bounce.rs`). A request that changes part of a unit locks its
//! range exclusively, so that no request overwrites another's bytes.
//!
//! # Always true
//! - an image is never both cached and written directly (`grain.rs` decides where direct I/O is possible)
//! - after overlapping requests in flight together each sector holds what one of them wrote
//! - a file is used only under an exclusive lock (shared, for a read-only disk) of each of its two descriptions. The
//!   kernel holds the lock until the last operation has ended, even when the daemon is killed
//! - a durable request completes after RWF_DSYNC or fdatasync, never before; once an fdatasync has failed none succeeds
//!   (`syncs.rs`)
//! - the opened file is the one at the path when both locks were acquired, not a file that was replaced meanwhile
//! - a read beyond the end of the file is an error, not zeroes, and so is a query for holes there
//! - once a truncation is detected nothing is written, and no write in flight is acknowledged (`reach.rs`)
//!
//! # Source
//! open(2) on O_DIRECT and its alignment; fallocate(2); why never both at once: `docs/decisions/`, 0002.

use super::condition::Condition;
use super::{Image, ImageCx, ImageInfo, Job, OpenedImage, Progress, bytes, fault};
use crate::blocking::Done;
use crate::error::Result;
use crate::lease::fence::Fence;
use crate::sys::ring::{Completion, Durability};
use batch_smoothing::BatchSmoothing;
use bounce::Bounces;
use extents::ExtentQuery;
use files::{Files, open_both};
use grain::Grain;
use reach::Reach;
pub use shared::SharedFile;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use syncs::{SyncState, Syncs};
use tidegate_core::range_lock::{Mode, RangeLock, Wanted};
use tidegate_core::request::{Data, DiskId, Extent, Fault, Flags, IoId, Op};
use zero::Method;

mod batch_smoothing;
mod bounce;
mod extents;
mod files;
mod grain;
mod reach;
mod shared;
mod syncs;
mod zero;

/// The unit of direct I/O if the system does not report it: no device has a larger one.
const PAGE: usize = 4096;

/// How long to wait for a lock that a dying predecessor still holds for its last operations.
const LOCK_PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of one extent in a buffer.
const EXTENT_BYTES: u32 = 16;

/// The source of an image's path, which decides what may be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// A trusted source: a file or a block device, also through links.
    #[default]
    Anywhere,
    /// A name in a directory that others may write to: a file, and no link to one.
    Shared,
    /// A descriptor that others may write: a block device, also through links.
    Device,
}

/// How to open an image.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Refuse writes, and share the file with other readers.
    pub read_only: bool,
    /// Use the page cache for everything.
    pub buffered: bool,
    /// How long to wait for another holder's lock; 20 s by default.
    pub patience: Duration,
    /// What may be at the path.
    pub place: Place,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            buffered: false,
            patience: LOCK_PATIENCE,
            place: Place::default(),
        }
    }
}

/// Opens the image at `path`, a file or a block device, and locks it. Blocks up to [`Options::patience`] for another
/// holder's lock.
///
/// # Errors
/// When it cannot be opened, is not what [`Options::place`] allows, or is in use by another daemon.
pub fn open(path: &Path, options: Options) -> Result<OpenedImage> {
    let condition = Arc::<Condition>::default();
    let (image, info) = open_dir(path, options, &condition)?;
    let is_zero = extents::is_hole(image.buffered.as_raw_fd());
    let opened = OpenedImage::new(Box::new(image), info);
    Ok(opened.with_condition(condition).with_zeroes(is_zero))
}

fn open_dir(path: &Path, options: Options, condition: &Arc<Condition>) -> Result<(Dir, ImageInfo)> {
    let files = open_both(path, options)?;
    Ok(image_of(files, path, options, condition))
}

/// The image of opened and locked files.
fn image_of(
    files: Files,
    path: &Path,
    options: Options,
    condition: &Arc<Condition>,
) -> (Dir, ImageInfo) {
    let shown = path.display();
    let (grain, remark) = match Grain::of(&files) {
        Ok(grain) => (grain, None),
        Err(_) if options.buffered => (Grain::CACHED, None),
        Err(why) => {
            let remark = format!("the page cache is used for {shown}: {why}");
            (Grain::CACHED, Some(remark))
        }
    };
    let direct = files.direct.filter(|_| grain != Grain::CACHED);
    let info = ImageInfo {
        size: files.size,
        block_size: match direct {
            Some(_) => u32::try_from(grain.unit).unwrap_or(u32::MAX),
            None => 512,
        },
        buffered: direct.is_none(),
        remark,
    };
    let buffered = Arc::new(OwnedFd::from(files.buffered));
    let can_be_cut = files.kind.is_file() && files.size > 0 && !options.read_only;
    let end = can_be_cut.then_some(files.size);
    let image = Dir {
        reach: Reach::new(&buffered, end, Arc::clone(condition)),
        buffered,
        direct: direct.map(|(file, _)| OwnedFd::from(file)),
        grain,
        pending: Vec::new(),
        free: Vec::new(),
        locks: RangeLock::new(),
        bounces: Bounces::default(),
        ready: VecDeque::new(),
        smoothing: BatchSmoothing::new(),
        syncs: Syncs::new(Arc::clone(condition)),
        zero_range: true,
        punch_hole: true,
        final_sync_begun: options.read_only,
        fence: None,
    };
    (image, info)
}

struct Dir {
    reach: Reach,
    /// For everything but the data; for the data as well, without direct I/O.
    buffered: Arc<OwnedFd>,
    direct: Option<OwnedFd>,
    grain: Grain,
    pending: Vec<Option<Pending>>,
    free: Vec<u32>,
    locks: RangeLock,
    bounces: Bounces,
    /// Jobs that waited for their range or for a buffer and may start now.
    ready: VecDeque<u32>,
    smoothing: BatchSmoothing,
    syncs: Syncs,
    /// Cleared when the file system does not support it.
    zero_range: bool,
    punch_hole: bool,
    /// The last sync has been submitted.
    final_sync_begun: bool,
    fence: Option<Arc<Fence>>,
}

/// A job in progress.
#[derive(Clone, Copy)]
struct Pending {
    job: Job,
    /// Bytes done so far.
    done: u64,
    step: Step,
    /// How it writes zeroes or frees space.
    method: Method,
    /// It waits for its range or for a buffer: none of it is in the kernel.
    waits: bool,
    /// Some of it is only in the page cache, and must be synced before it ends.
    needs_sync: bool,
}

impl Pending {
    fn new(job: Job, step: Step, method: Method) -> Pending {
        Pending {
            job,
            done: 0,
            step,
            method,
            waits: false,
            needs_sync: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Its bytes, from or into its own memory.
    Move,
    /// Its bytes, or part of a unit to zero, through a bounce buffer.
    Bounce,
    /// The file system makes a hole or zeroes.
    Allocate,
    /// Zeroes, from the shared buffer.
    WriteZeroes,
    Sync,
    /// The blocking worker looks for holes.
    FindExtents,
    /// The last sync before the image is closed.
    FinalSync,
}

impl Image for Dir {
    fn timed(&self) -> bool {
        false
    }

    fn start(&mut self, cx: &mut ImageCx<'_>, job: Job) -> Progress {
        if job.op.modifies() && !self.may_write(cx.disk(), &job) {
            return Progress::Done(Err(Fault::Io));
        }
        let mut method = Method::Punch;
        let step = match job.op {
            Op::Read | Op::Write => bounce::step(self, cx, &job, 0),
            Op::Flush => Step::Sync,
            Op::Discard | Op::WriteZeroes => match self.method(&job) {
                Ok(chosen) => {
                    method = chosen;
                    Step::Allocate
                }
                Err(outcome) => return Progress::Done(outcome),
            },
            Op::Prefetch => return Progress::Done(Ok(())),
            Op::Extents => {
                self.ask_extents(cx, job);
                return Progress::Pending;
            }
        };
        if job.len == 0 && job.op != Op::Flush {
            return Progress::Done(Ok(()));
        }
        let slot = self.note(Pending::new(job, step, method));
        if job.op.modifies() && !self.try_acquire_range(slot, &job) {
            return Progress::Pending;
        }
        self.begin(cx, slot);
        Progress::Pending
    }

    fn completed(&mut self, cx: &mut ImageCx<'_>, completion: Completion) {
        let slot = completion.tag.slot;
        let pending = self.pending[slot as usize]
            .as_mut()
            .expect("a completion belongs to a pending job");
        match pending.step {
            Step::Move => {
                cx.buffers.returned(pending.job.data.buffer);
                self.smoothing.answered();
            }
            Step::Bounce => self.window_returned(cx, slot),
            Step::WriteZeroes => zero::returned(cx),
            Step::FinalSync => {
                if completion.result < 0 {
                    tracing::warn!(
                        disk = cx.disk().0,
                        errno = -completion.result,
                        "the last sync of an image failed"
                    );
                }
                self.pending[slot as usize] = None;
                return self.free.push(slot);
            }
            _ => {}
        }
        let step = self.pending(slot).step;
        match u64::try_from(completion.result) {
            _ if step == Step::Sync => self.synced(cx, slot, completion.result),
            _ if !self.reach.is_whole() && self.is_spoilt(cx.disk(), slot) => {
                self.end(cx, slot, Err(Fault::Io));
            }
            Ok(moved) => self.advanced(cx, slot, moved),
            Err(_) => self.failed(cx, slot, -completion.result),
        }
        while let Some(held) = self.smoothing.next_held() {
            if self.may_start_after_wait(held) {
                self.submit(cx, held);
            } else {
                self.smoothing.answered();
                self.end(cx, held, Err(Fault::Io));
            }
        }
        while let Some(slot) = self.ready.pop_front() {
            self.begin_after_wait(cx, slot);
        }
    }

    fn resized(&mut self, size: u64) {
        self.reach.resized(size);
    }

    fn fence(&mut self, fence: &Arc<Fence>) {
        self.fence = Some(Arc::clone(fence));
    }

    fn blocking_done(&mut self, cx: &mut ImageCx<'_>, task: Done) {
        let Ok(query) = task.downcast::<ExtentQuery>() else {
            return;
        };
        // A hole that a truncation made is not zeroes: a client would copy it as such.
        if query.ends_early {
            self.notice_cut(cx.disk());
        }
        let spoilt = !self.reach.is_whole() && self.is_spoilt(cx.disk(), query.slot);
        if query.ends_early || spoilt {
            return self.end(cx, query.slot, Err(Fault::Io));
        }
        let pending = self.pending[query.slot as usize]
            .as_ref()
            .expect("an answered question is pending");
        let mut data = pending.job.data;
        for extent in &query.extents {
            cx.buffers.put(data, &extent.encode());
            data = data.skip(EXTENT_BYTES);
        }
        self.end(cx, query.slot, query.outcome);
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.pending.len()
    }

    fn close(&mut self, cx: &mut ImageCx<'_>) -> bool {
        let quiet = self.is_idle();
        if quiet && !self.final_sync_begun {
            // Unflushed writes were never promised to be durable; an orderly close syncs them nevertheless.
            self.final_sync_begun = true;
            let flush = Job {
                io: NO_IO,
                op: Op::Flush,
                flags: Flags::NONE,
                offset: 0,
                len: 0,
                data: Data::NONE,
            };
            let slot = self.note(Pending::new(flush, Step::FinalSync, Method::Punch));
            self.submit(cx, slot);
            return false;
        }
        quiet
    }
}

/// The id of an operation that belongs to no I/O.
const NO_IO: IoId = IoId::from_bits(u64::MAX);

impl Dir {
    /// The file for an image's data.
    fn data_fd(&self) -> &OwnedFd {
        self.direct.as_ref().unwrap_or(&self.buffered)
    }

    fn pending(&mut self, slot: u32) -> &mut Pending {
        self.pending[slot as usize]
            .as_mut()
            .expect("a job that is worked on is pending")
    }

    /// Whether the file may be written: not after a truncation.
    fn may_write(&mut self, disk: DiskId, job: &Job) -> bool {
        let may = self.reach.admits(job.offset + job.len);
        if !may {
            self.notice_cut(disk);
        }
        may
    }

    /// Whether a truncation, now detected, has spoilt a completed operation.
    #[cold]
    fn is_spoilt(&mut self, disk: DiskId, slot: u32) -> bool {
        self.notice_cut(disk);
        let pending = self.pending[slot as usize].as_ref();
        pending.is_some_and(|pending| !self.reach.is_valid(pending.job.op))
    }

    /// The file is shorter than the disk, or was.
    #[cold]
    fn notice_cut(&mut self, disk: DiskId) {
        let pending = (0..).zip(&self.pending);
        let mut writes = pending
            .filter(|(_, pending)| {
                let writes = |p: &Pending| p.job.op.modifies() && !p.waits;
                pending.as_ref().is_some_and(writes)
            })
            .map(|(slot, _)| slot);
        let writing = writes.any(|slot| !self.smoothing.holds(slot));
        self.reach.notice(disk, writing);
    }

    /// Whether a job that changes the image may start now. Otherwise it waits for overlapping jobs.
    #[inline]
    fn try_acquire_range(&mut self, slot: u32, job: &Job) -> bool {
        let whole = self.grain.is_whole(job.offset, job.len);
        if whole && self.locks.is_idle() {
            return true;
        }
        self.acquire(slot, job, whole)
    }

    #[cold]
    fn acquire(&mut self, slot: u32, job: &Job, whole: bool) -> bool {
        // A discard does not change partial units.
        let alone = !whole && job.op != Op::Discard;
        if self.locks.is_idle() {
            if !alone {
                return true;
            }
            for (other, pending) in (0..).zip(&self.pending) {
                let changes = |p: &&Pending| p.job.op.modifies() && other != slot;
                if let Some(pending) = pending.as_ref().filter(changes) {
                    let wanted = self.wanted(other, &pending.job, Mode::Shared);
                    self.locks.note_in_flight(wanted);
                }
            }
        }
        let mode = if alone { Mode::Exclusive } else { Mode::Shared };
        let has = self.locks.acquire(self.wanted(slot, job, mode));
        self.pending(slot).waits = !has;
        has
    }

    fn wanted(&self, id: u32, job: &Job, mode: Mode) -> Wanted {
        let (start, end) = self.grain.around(job.offset, job.len);
        Wanted {
            id,
            start,
            end,
            mode,
        }
    }

    /// Starts a job that has its range.
    #[inline(always)]
    fn begin(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        let step = self.pending(slot).step;
        match step {
            Step::Move if self.smoothing.starts(slot) => self.submit(cx, slot),
            Step::Move => {}
            Step::Sync => self.sync(cx, slot),
            _ => self.submit_other(cx, slot),
        }
    }

    /// Starts a job that has waited, unless writing was forbidden meanwhile.
    #[cold]
    fn begin_after_wait(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        self.pending(slot).waits = false;
        if !self.may_start_after_wait(slot) {
            return self.end(cx, slot, Err(Fault::Io));
        }
        self.begin(cx, slot);
    }

    /// Submits the next operation of a job that needs more than one read or write.
    fn submit_other(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        match self.pending(slot).job.op {
            Op::Read | Op::Write => self.next_window(cx, slot),
            _ => self.next_zero(cx, slot),
        }
    }

    /// Submits a job's own read or write, or a sync.
    fn submit(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        let Pending {
            job, done, step, ..
        } = *self.pending(slot);
        let tag = cx.tag(slot);
        if step != Step::Move {
            return cx.ring.sync(self.buffered.as_raw_fd(), tag);
        }
        let (offset, left) = (job.offset + done, job.len - done);
        let start = u32::try_from(done).expect("a request's bytes are counted in 32 bits");
        let data = job.data.skip(start);
        let fd = self.data_fd().as_raw_fd();
        if job.op == Op::Read {
            cx.ring.read(fd, cx.buffers, data, bytes(left), offset, tag);
        } else {
            let durable = self.durability(slot);
            cx.ring
                .write(fd, cx.buffers, data, bytes(left), offset, durable, tag);
        }
    }

    /// The durability of a job's write. With the page cache the file is synced afterwards: RWF_DSYNC would consume an
    /// error that a flush must report.
    fn durability(&mut self, slot: u32) -> Durability {
        let cached = self.direct.is_none();
        let pending = self.pending(slot);
        if !pending.job.flags.has(Flags::FUA) {
            return Durability::Cached;
        }
        if cached {
            pending.needs_sync = true;
            return Durability::Cached;
        }
        Durability::Durable
    }

    /// A job needs a sync, its own or a shared one.
    fn sync(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        match self.syncs.request(slot) {
            SyncState::Starts => self.submit(cx, slot),
            SyncState::Waits => {}
            SyncState::Refused => self.end(cx, slot, Err(Fault::Io)),
        }
    }

    /// The sync submitted for `slot` has completed, for all jobs that share it.
    fn synced(&mut self, cx: &mut ImageCx<'_>, slot: u32, result: i32) {
        if matches!(-result, libc::EINTR | libc::EAGAIN) {
            return self.submit(cx, slot);
        }
        let mut outcome = Ok(());
        if result < 0 {
            self.syncs.fail(cx.disk(), -result);
            outcome = Err(fault(-result));
        }
        while let Some(job) = self.syncs.take_finished() {
            let spoilt = !self.reach.is_whole() && self.is_spoilt(cx.disk(), job);
            self.end(cx, job, if spoilt { Err(Fault::Io) } else { outcome });
        }
        if let Some(slot_io) = self.syncs.next() {
            self.submit(cx, slot_io);
        }
    }

    /// Whether a delayed job may start: not if writing is forbidden now.
    fn may_start_after_wait(&mut self, slot: u32) -> bool {
        let modifies = self.pending(slot).job.op.modifies();
        !(modifies && !self.reach.is_whole() || self.is_fenced_off(slot))
    }

    /// Whether a job must stop because the disk's lease has ended.
    fn is_fenced_off(&mut self, slot: u32) -> bool {
        let over = |fence: &Arc<Fence>| !fence.is_open();
        self.fence.as_ref().is_some_and(over) && {
            let pending = self.pending(slot);
            pending.job.op.modifies() && pending.step != Step::Sync
        }
    }

    /// An operation succeeded with `moved` bytes.
    #[inline(always)]
    fn advanced(&mut self, cx: &mut ImageCx<'_>, slot: u32, moved: u64) {
        let grain = self.grain;
        let pending = self.pending(slot);
        match pending.step {
            Step::Sync | Step::FindExtents | Step::FinalSync => return self.end(cx, slot, Ok(())),
            Step::Bounce => return self.bounced(cx, slot, moved),
            Step::Allocate => pending.done += zero::allocated(&grain, pending),
            Step::Move | Step::WriteZeroes => match grain.done_whole(moved) {
                0 => {
                    self.notice_cut(cx.disk());
                    return self.end(cx, slot, Err(Fault::Io));
                }
                whole => pending.done += whole,
            },
        }
        self.advance(cx, slot);
    }

    /// Continues a partly completed job, or ends it.
    #[inline(always)]
    fn advance(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        let Pending {
            job,
            done,
            needs_sync,
            ..
        } = *self.pending(slot);
        if done < job.len {
            return self.resume(cx, slot);
        }
        let zeroed = matches!(job.op, Op::WriteZeroes | Op::Discard);
        if needs_sync || zeroed && job.flags.has(Flags::FUA) {
            self.pending(slot).step = Step::Sync;
            return self.sync(cx, slot);
        }
        self.end(cx, slot, Ok(()));
    }

    /// Submits the rest of a job of which one operation has completed.
    #[cold]
    fn resume(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        if self.is_fenced_off(slot) {
            return self.end(cx, slot, Err(Fault::Io));
        }
        let Pending { job, done, .. } = *self.pending(slot);
        if matches!(job.op, Op::Read | Op::Write) {
            let step = bounce::step(self, cx, &job, done);
            self.pending(slot).step = step;
            if step == Step::Move {
                self.smoothing.restarted();
                return self.submit(cx, slot);
            }
        }
        self.submit_other(cx, slot);
    }

    /// An operation failed: tries an alternative, or ends the job.
    #[cold]
    fn failed(&mut self, cx: &mut ImageCx<'_>, slot: u32, errno: i32) {
        let again = matches!(errno, libc::EINTR | libc::EAGAIN);
        match self.pending(slot).step {
            Step::Bounce if again => self.resume_window(cx, slot),
            Step::Move | Step::WriteZeroes | Step::Allocate if again => self.resume(cx, slot),
            Step::Allocate => self.not_allocated(cx, slot, errno),
            _ => self.end(cx, slot, Err(fault(errno))),
        }
    }

    fn ask_extents(&mut self, cx: &mut ImageCx<'_>, job: Job) {
        let slot = self.note(Pending::new(job, Step::FindExtents, Method::Punch));
        let query = ExtentQuery {
            slot,
            file: Arc::clone(&self.buffered),
            offset: job.offset,
            len: job.len,
            most: cx.buffers.len(job.data.buffer) / Extent::SIZE,
            extents: Vec::new(),
            ends_early: false,
            outcome: Ok(()),
        };
        cx.blocking.send(cx.image, Box::new(query));
    }

    /// Stores a job in a free slot.
    fn note(&mut self, pending: Pending) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.pending.push(None);
            u32::try_from(self.pending.len() - 1).expect("fewer than 2^32 operations are in flight")
        });
        self.pending[slot as usize] = Some(pending);
        slot
    }

    fn end(&mut self, cx: &mut ImageCx<'_>, slot: u32, outcome: tidegate_core::request::Outcome) {
        let pending = self.pending[slot as usize].take().expect("a job ends once");
        if pending.step == Step::Bounce {
            self.release_window(cx, slot);
        }
        self.free.push(slot);
        if !self.locks.is_idle() {
            self.release_range(slot);
        }
        cx.finish(pending.job.io, outcome);
    }

    /// A job has ended while others hold or wait for ranges: those that waited for it may start.
    #[cold]
    fn release_range(&mut self, slot: u32) {
        let mut started = Vec::new();
        self.locks.release(slot, &mut started);
        self.ready.extend(started);
    }
}

#[cfg(test)]
mod tests;
