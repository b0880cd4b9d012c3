//! Disk images in files or on block devices, by direct I/O where possible, else through the page cache.
//!
//! An image is used in one of the two ways, whole: bytes that are in the page cache for one request and written directly for
//! another are lost, or make the kernel fail the next flush. Where it is used directly, whole units of aligned memory are
//! given to the kernel as they are. All else goes by way of a buffer of ours (`bounce.rs`), and what would change part of a
//! unit has its range exclusively meanwhile, so that no request's bytes are undone by another's.
//!
//! # Always true
//! - an image is never both cached and written directly (`grain.rs` says where direct I/O is possible)
//! - after any requests that overlap and are in flight together each sector holds what one of them wrote
//! - a file is used only under an exclusive lock (shared, for a read-only disk) of each of its two descriptions, which the
//!   kernel keeps until the last operation of ours has ended, even when the daemon is killed
//! - a request that asks for durability completes after RWF_DSYNC or fdatasync, never before; once an fdatasync has
//!   failed none succeeds (`syncs.rs`)
//! - what is used is what the path named when both locks were there: not a file that was replaced while one was waited for
//! - a read that meets the end of the file is an error, not zeroes, and so is a question for holes that does; once the
//!   image was cut behind our back nothing is written to it, and nothing that was is acknowledged (`reach.rs`)
//!
//! # Source
//! open(2) on O_DIRECT and its alignment; fallocate(2); why not both ways at once: `docs/decisions/`, 0002.

use super::condition::Condition;
use super::{Image, ImageCx, ImageInfo, Job, OpenedImage, Progress, bytes, fault};
use crate::blocking::Done;
use crate::error::Result;
use crate::lease::fence::Fence;
use crate::sys::ring::{Completion, Durability};
use batch_smoothing::BatchSmoothing;
use bounce::Bounces;
use extents::ExtentQuery;
use files::open_both;
use grain::Grain;
use reach::Reach;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use syncs::{Syncs, Turn};
use tidegate_core::range_lock::{Mode, RangeLock, Wanted};
use tidegate_core::request::{Data, DiskId, Extent, Fault, Flags, IoId, Op};
use zero::Method;

mod batch_smoothing;
mod bounce;
mod extents;
mod files;
mod grain;
mod reach;
mod syncs;
mod zero;

/// The unit of direct I/O where the system does not tell: no device has a larger one.
const PAGE: usize = 4096;

/// How long to wait for a lock that a dying predecessor still holds for its last operations.
const LOCK_PATIENCE: Duration = Duration::from_secs(20);

/// Bytes of one extent in a buffer.
const EXTENT_BYTES: u32 = 16;

/// Who named the path of an image, and so what may be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Somebody who may name anything: a file or a block device, by links too.
    #[default]
    Anywhere,
    /// It is a name in a directory that strangers may write to: a file, and no link to one.
    Shared,
    /// A descriptor that strangers may write: a block device, by links too.
    Device,
}

/// How to open an image.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Refuse writes, and share the file with other readers.
    pub read_only: bool,
    /// Use the page cache for everything.
    pub buffered: bool,
    /// How long to wait while another holds the image; 20 s by default.
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

/// Opens the image at `path`, a file or a block device, and locks it. Blocks while another holds it, for as long as
/// [`Options::patience`] says.
///
/// # Errors
/// When it cannot be opened, is not what [`Options::place`] allows, or is in use by another daemon.
pub fn open(path: &Path, options: Options) -> Result<OpenedImage> {
    let condition = Arc::<Condition>::default();
    let (image, info) = open_dir(path, options, &condition)?;
    Ok(OpenedImage::new(Box::new(image), info).noting(condition))
}

fn open_dir(path: &Path, options: Options, condition: &Arc<Condition>) -> Result<(Dir, ImageInfo)> {
    let shown = path.display();
    let files = open_both(path, options)?;
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
        parted: options.read_only,
        fence: None,
    };
    Ok((image, info))
}

struct Dir {
    reach: Reach,
    /// For all but the bytes; for these, too, where there is no direct I/O.
    buffered: Arc<OwnedFd>,
    direct: Option<OwnedFd>,
    grain: Grain,
    pending: Vec<Option<Pending>>,
    free: Vec<u32>,
    locks: RangeLock,
    bounces: Bounces,
    /// Jobs that waited for their range or for a buffer, and need not any more.
    ready: VecDeque<u32>,
    smoothing: BatchSmoothing,
    syncs: Syncs,
    /// Cleared when the file system turns out not to know it.
    zero_range: bool,
    punch_hole: bool,
    /// The last sync is under way or done.
    parted: bool,
    fence: Option<Arc<Fence>>,
}

/// A job under way.
#[derive(Clone, Copy)]
struct Pending {
    job: Job,
    /// Bytes done so far.
    done: u64,
    step: Step,
    /// How it makes zeroes or gives space back.
    method: Method,
    /// It waits for its range or for a buffer: nothing of it is with the kernel.
    waits: bool,
    /// Some of it is in the page cache only, and is to be durable when it ends.
    owes_sync: bool,
}

impl Pending {
    fn new(job: Job, step: Step, method: Method) -> Pending {
        Pending {
            job,
            done: 0,
            step,
            method,
            waits: false,
            owes_sync: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Its bytes, from or into its own memory.
    Move,
    /// The same, or part of a unit that is to be zeroed, by way of a buffer of ours.
    Bounce,
    /// The file system makes a hole or zeroes.
    Allocate,
    /// Zeroes, from the buffer that all share.
    WriteZeroes,
    Sync,
    /// The job thread looks for holes.
    Ask,
    /// The last sync before the image is closed.
    Part,
}

impl Image for Dir {
    fn timed(&self) -> bool {
        false
    }

    fn start(&mut self, cx: &mut ImageCx<'_>, job: Job) -> Progress {
        if job.op.modifies() && !self.may_write(cx.disk, &job) {
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
        if job.op.modifies() && !self.takes_range(slot, &job) {
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
            Step::Part => {
                if completion.result < 0 {
                    tracing::warn!(
                        disk = cx.disk.0,
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
            _ if !self.reach.is_whole() && self.is_spoilt(cx.disk, slot) => {
                self.end(cx, slot, Err(Fault::Io));
            }
            Ok(moved) => self.advanced(cx, slot, moved),
            Err(_) => self.failed(cx, slot, -completion.result),
        }
        while let Some(held) = self.smoothing.freed() {
            if self.may_go_at_last(held) {
                self.go(cx, held);
            } else {
                self.smoothing.answered();
                self.end(cx, held, Err(Fault::Io));
            }
        }
        while let Some(slot) = self.ready.pop_front() {
            self.begin_at_last(cx, slot);
        }
    }

    fn resized(&mut self, size: u64) {
        self.reach.moved(size);
    }

    fn fence(&mut self, fence: &Arc<Fence>) {
        self.fence = Some(Arc::clone(fence));
    }

    fn blocking_done(&mut self, cx: &mut ImageCx<'_>, task: Done) {
        let Ok(query) = task.downcast::<ExtentQuery>() else {
            return;
        };
        // A hole that a cut has made is no zeroes: who asks would copy it as such.
        if query.ends_early {
            self.notice_cut(cx.disk);
        }
        let spoilt = !self.reach.is_whole() && self.is_spoilt(cx.disk, query.slot);
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

    fn close(&mut self, cx: &mut ImageCx<'_>) -> bool {
        let quiet = self.free.len() == self.pending.len();
        if quiet && !self.parted {
            // What the guest never flushed was never promised; an orderly goodbye keeps it all the same.
            self.parted = true;
            let flush = Job {
                io: NOBODY,
                op: Op::Flush,
                flags: Flags::NONE,
                offset: 0,
                len: 0,
                data: Data::NONE,
            };
            let slot = self.note(Pending::new(flush, Step::Part, Method::Punch));
            self.go(cx, slot);
            return false;
        }
        quiet
    }
}

/// The name of an operation that no guest waits for.
const NOBODY: IoId = IoId::from_bits(u64::MAX);

impl Dir {
    /// The file for an image's bytes.
    fn data_fd(&self) -> &OwnedFd {
        self.direct.as_ref().unwrap_or(&self.buffered)
    }

    fn pending(&mut self, slot: u32) -> &mut Pending {
        self.pending[slot as usize]
            .as_mut()
            .expect("a job that is worked on is pending")
    }

    /// Whether the file may be written: not once it was cut.
    fn may_write(&mut self, disk: DiskId, job: &Job) -> bool {
        let may = self.reach.admits(job.offset + job.len);
        if !may {
            self.notice_cut(disk);
        }
        may
    }

    /// Whether an operation that has ended was spoilt by the cut that now shows.
    #[cold]
    fn is_spoilt(&mut self, disk: DiskId, slot: u32) -> bool {
        self.notice_cut(disk);
        let pending = self.pending[slot as usize].as_ref();
        pending.is_some_and(|pending| !self.reach.believes(pending.job.op))
    }

    /// The file ends before the disk does, or has done so.
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

    /// Whether a job that changes the image may start now. Otherwise it waits for others that overlap it.
    #[inline]
    fn takes_range(&mut self, slot: u32, job: &Job) -> bool {
        let whole = self.grain.is_whole(job.offset, job.len);
        if whole && self.locks.is_idle() {
            return true;
        }
        self.acquire(slot, job, whole)
    }

    #[cold]
    fn acquire(&mut self, slot: u32, job: &Job, whole: bool) -> bool {
        // Of a discard the parts of units are left alone.
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
            Step::Move if self.smoothing.starts(slot) => self.go(cx, slot),
            Step::Move => {}
            Step::Sync => self.sync(cx, slot),
            _ => self.go_otherwise(cx, slot),
        }
    }

    /// The same for a job that waited, unless nothing may be written any more.
    #[cold]
    fn begin_at_last(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        self.pending(slot).waits = false;
        if !self.may_go_at_last(slot) {
            return self.end(cx, slot, Err(Fault::Io));
        }
        self.begin(cx, slot);
    }

    /// The next operation of a job that does not simply move its bytes.
    fn go_otherwise(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        match self.pending(slot).job.op {
            Op::Read | Op::Write => self.go_bounced(cx, slot),
            _ => self.go_zero(cx, slot),
        }
    }

    /// Submits the operation that a job's own bytes are for, or a sync.
    fn go(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
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

    /// How a write of a job goes to the file. Through the page cache the file is synced afterwards: RWF_DSYNC there would
    /// take an error upon itself that a flush is to hear of.
    fn durability(&mut self, slot: u32) -> Durability {
        let cached = self.direct.is_none();
        let pending = self.pending(slot);
        if !pending.job.flags.has(Flags::FUA) {
            return Durability::Cached;
        }
        if cached {
            pending.owes_sync = true;
            return Durability::Cached;
        }
        Durability::Durable
    }

    /// A job wants the file to be synced, now or with others.
    fn sync(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        match self.syncs.ask(slot) {
            Turn::Starts => self.go(cx, slot),
            Turn::Waits => {}
            Turn::Refused => self.end(cx, slot, Err(Fault::Io)),
        }
    }

    /// The sync that the job of `slot` carried has ended, for all that it was for.
    fn synced(&mut self, cx: &mut ImageCx<'_>, slot: u32, result: i32) {
        if matches!(-result, libc::EINTR | libc::EAGAIN) {
            return self.go(cx, slot);
        }
        let mut outcome = Ok(());
        if result < 0 {
            self.syncs.fail(cx.disk, -result);
            outcome = Err(fault(-result));
        }
        while let Some(rider) = self.syncs.rider() {
            let spoilt = !self.reach.is_whole() && self.is_spoilt(cx.disk, rider);
            self.end(cx, rider, if spoilt { Err(Fault::Io) } else { outcome });
        }
        if let Some(slot_io) = self.syncs.next() {
            self.go(cx, slot_io);
        }
    }

    /// Whether a job that was held back may start: not if something may not be written any more.
    fn may_go_at_last(&mut self, slot: u32) -> bool {
        let modifies = self.pending(slot).job.op.modifies();
        !(modifies && !self.reach.is_whole() || self.is_barred(slot))
    }

    /// Whether nothing more of a job may be done, since the disk's lease is over.
    fn is_barred(&mut self, slot: u32) -> bool {
        let over = |fence: &Arc<Fence>| !fence.is_open();
        self.fence.as_ref().is_some_and(over) && {
            let pending = self.pending(slot);
            pending.job.op.modifies() && pending.step != Step::Sync
        }
    }

    /// An operation went well, as far as `moved` bytes.
    #[inline(always)]
    fn advanced(&mut self, cx: &mut ImageCx<'_>, slot: u32, moved: u64) {
        let grain = self.grain;
        let pending = self.pending(slot);
        match pending.step {
            Step::Sync | Step::Ask | Step::Part => return self.end(cx, slot, Ok(())),
            Step::Bounce => return self.bounced(cx, slot, moved),
            Step::Allocate => pending.done += zero::allocated(&grain, pending),
            Step::Move | Step::WriteZeroes => match grain.done_whole(moved) {
                0 => {
                    self.notice_cut(cx.disk);
                    return self.end(cx, slot, Err(Fault::Io));
                }
                whole => pending.done += whole,
            },
        }
        self.advance(cx, slot);
    }

    /// Goes on with a job of which a part was done, or ends it.
    #[inline(always)]
    fn advance(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        let Pending {
            job,
            done,
            owes_sync,
            ..
        } = *self.pending(slot);
        if done < job.len {
            return self.go_on(cx, slot);
        }
        let zeroed = matches!(job.op, Op::WriteZeroes | Op::Discard);
        if owes_sync || zeroed && job.flags.has(Flags::FUA) {
            self.pending(slot).step = Step::Sync;
            return self.sync(cx, slot);
        }
        self.end(cx, slot, Ok(()));
    }

    /// Submits what is left of a job of which an operation has ended.
    #[cold]
    fn go_on(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        if self.is_barred(slot) {
            return self.end(cx, slot, Err(Fault::Io));
        }
        let Pending { job, done, .. } = *self.pending(slot);
        if matches!(job.op, Op::Read | Op::Write) {
            let step = bounce::step(self, cx, &job, done);
            self.pending(slot).step = step;
            if step == Step::Move {
                self.smoothing.starts_again();
                return self.go(cx, slot);
            }
        }
        self.go_otherwise(cx, slot);
    }

    /// An operation failed: try what else does the same, or tell.
    #[cold]
    fn failed(&mut self, cx: &mut ImageCx<'_>, slot: u32, errno: i32) {
        let again = matches!(errno, libc::EINTR | libc::EAGAIN);
        match self.pending(slot).step {
            Step::Bounce if again => self.go_on_with_window(cx, slot),
            Step::Move | Step::WriteZeroes | Step::Allocate if again => self.go_on(cx, slot),
            Step::Allocate => self.not_allocated(cx, slot, errno),
            _ => self.end(cx, slot, Err(fault(errno))),
        }
    }

    fn ask_extents(&mut self, cx: &mut ImageCx<'_>, job: Job) {
        let slot = self.note(Pending::new(job, Step::Ask, Method::Punch));
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
        cx.blocking.send(cx.disk, Box::new(query));
    }

    /// Gives a job a place.
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

    /// A job has ended while others hold or await ranges: those that waited for it may start.
    #[cold]
    fn release_range(&mut self, slot: u32) {
        let mut started = Vec::new();
        self.locks.release(slot, &mut started);
        self.ready.extend(started);
    }
}

#[cfg(test)]
mod tests;
