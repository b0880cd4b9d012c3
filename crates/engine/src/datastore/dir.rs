//! Disk images in files or on block devices, read and written directly where the file system allows it.
//!
//! An image has two open files: one with O_DIRECT for whole 4 KiB blocks, one through the page cache for anything
//! smaller, where the kernel reads, changes and writes back the block. A block is never touched by both at once
//! on behalf of requests that do not overlap, so neither can undo the other.
//!
//! # Always true
//! - a file is used only under an exclusive lock (shared, for a read-only disk) of each of its two descriptions, which the
//!   kernel keeps until the last operation of ours has ended, even when the daemon is killed
//! - a request that asks for durability completes after RWF_DSYNC or fdatasync, never before; once an fdatasync has
//!   failed none succeeds (`syncs.rs`)
//! - what is used is what the path named when both locks were there: not a file that was replaced while one was waited for
//! - a read that meets the end of the file is an error, not zeroes, and so is a question for holes that does; once the
//!   image was cut behind our back nothing is written to it, and nothing that was is acknowledged (`reach.rs`)
//!
//! # Source
//! open(2) on O_DIRECT and its alignment; fallocate(2); the pairing of direct and buffered I/O in `docs/decisions/`.

use super::condition::Condition;
use super::{Image, ImageInfo, Job, Lane, OpenedImage, Progress, bytes, fault};
use crate::errand::{Errand, Map, Task};
use crate::error::Result;
use crate::lease::fence::Fence;
use crate::sys::os::{self, DirectAlignment};
use crate::sys::ring::{Completion, Durability};
use feed::Feed;
use files::{Files, open_both};
use reach::Reach;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use syncs::{Syncs, Turn};
use tidegate_core::request::{Data, DiskId, Extent, Fault, Flags, IoId, Op};

mod feed;
mod files;
mod reach;
mod syncs;

/// The granularity below which the page cache is used: that of the page cache itself, so that a page is never both
/// cached for one request and written directly for its neighbour.
const PAGE: usize = 4096;

/// How long to wait for a lock that a dying predecessor still holds for its last operations.
const LOCK_PATIENCE: Duration = Duration::from_secs(20);

/// Zeroes are written in pieces of this many bytes where the file system cannot make them itself.
const ZERO_PIECE: usize = 1 << 20;

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
    let Files {
        buffered,
        kind,
        size,
        direct,
    } = open_both(path, options)?;
    let mut remark = None;
    if direct.is_none() && !options.buffered {
        remark = Some(format!(
            "the file system of {shown} has no direct I/O: the page cache is used"
        ));
    }
    if direct.is_some() {
        // A folio of the cache that readahead made larger than a page could be dirty for one page while another of it is
        // written directly.
        os::expect_no_order(&buffered);
    }
    let (direct, alignment) = direct.unzip();
    let block_size = alignment.map_or(512, |a| u32::try_from(a.offset).unwrap_or(4096));
    let info = ImageInfo {
        size,
        block_size,
        buffered: direct.is_none(),
        remark,
    };
    let buffered = Arc::new(OwnedFd::from(buffered));
    let can_be_cut = kind.is_file() && size > 0 && !options.read_only;
    let image = Dir {
        reach: Reach::new(&buffered, can_be_cut.then_some(size), Arc::clone(condition)),
        buffered,
        direct: direct.map(OwnedFd::from),
        alignment: alignment.unwrap_or(DirectAlignment {
            memory: 1,
            offset: 1,
        }),
        pending: Vec::new(),
        free: Vec::new(),
        feed: Feed::new(),
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
    buffered: Arc<OwnedFd>,
    direct: Option<OwnedFd>,
    alignment: DirectAlignment,
    pending: Vec<Option<Pending>>,
    free: Vec<u32>,
    feed: Feed,
    syncs: Syncs,
    /// Cleared when the file system turns out not to know it.
    zero_range: bool,
    punch_hole: bool,
    /// The last sync is under way or done.
    parted: bool,
    fence: Option<Arc<Fence>>,
}

/// A job under way.
struct Pending {
    job: Job,
    /// Bytes moved so far.
    done: u64,
    step: Step,
    /// Some of it is in the page cache only, and is to be durable when it ends.
    owes_sync: bool,
}

impl Pending {
    fn new(job: Job, step: Step) -> Pending {
        Pending {
            job,
            done: 0,
            step,
            owes_sync: false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Move,
    Punch,
    ZeroRange,
    /// Zeroes written one piece at a time, from this buffer.
    WriteZeroes {
        buffer: u32,
        piece: u64,
    },
    Sync,
    /// The errand thread looks for holes.
    Ask,
    /// The last sync before the image is closed.
    Part,
}

impl Image for Dir {
    fn timed(&self) -> bool {
        false
    }

    fn start(&mut self, lane: &mut Lane<'_>, job: Job) -> Progress {
        if job.op.modifies() && !self.may_write(lane.disk, &job) {
            return Progress::Done(Err(Fault::Io));
        }
        let step = match job.op {
            Op::Read | Op::Write => Step::Move,
            Op::Flush => Step::Sync,
            Op::Discard if self.punch_hole => Step::Punch,
            Op::Discard | Op::Prefetch => return Progress::Done(Ok(())),
            Op::WriteZeroes if job.flags.has(Flags::MAY_UNMAP) && self.punch_hole => Step::Punch,
            Op::WriteZeroes => Step::ZeroRange,
            Op::Extents => {
                self.ask_extents(lane, job);
                return Progress::Pending;
            }
        };
        if job.len == 0 && job.op != Op::Flush {
            return Progress::Done(Ok(()));
        }
        let slot = self.note(Pending::new(job, step));
        if step == Step::Sync {
            self.sync(lane, slot);
        } else if step == Step::ZeroRange && !self.zero_range {
            self.write_zeroes(lane, slot);
        } else if step != Step::Move || self.feed.starts(slot) {
            self.go(lane, slot);
        }
        Progress::Pending
    }

    fn completed(&mut self, lane: &mut Lane<'_>, completion: Completion) {
        let slot = completion.tag.slot;
        let pending = self.pending[slot as usize]
            .as_mut()
            .expect("a completion belongs to a pending job");
        match pending.step {
            Step::Move => {
                lane.buffers.returned(pending.job.data.buffer);
                self.feed.answered();
            }
            Step::WriteZeroes { buffer, .. } => lane.buffers.returned(buffer),
            Step::Part => {
                if completion.result < 0 {
                    tracing::warn!(
                        disk = lane.disk.0,
                        errno = -completion.result,
                        "the last sync of an image failed"
                    );
                }
                self.pending[slot as usize] = None;
                return self.free.push(slot);
            }
            _ => {}
        }
        let step = pending.step;
        match u64::try_from(completion.result) {
            _ if step == Step::Sync => self.synced(lane, slot, completion.result),
            _ if !self.reach.is_whole() && self.is_spoilt(lane.disk, slot) => {
                self.end(lane, slot, Err(Fault::Io));
            }
            Ok(moved) => self.advanced(lane, slot, moved),
            Err(_) => self.failed(lane, slot, -completion.result),
        }
        while let Some(held) = self.feed.freed() {
            self.go_at_last(lane, held);
        }
    }

    fn resized(&mut self, size: u64) {
        self.reach.moved(size);
    }

    fn fence(&mut self, fence: &Arc<Fence>) {
        self.fence = Some(Arc::clone(fence));
    }

    fn mapped(&mut self, lane: &mut Lane<'_>, map: Map) {
        // A hole that a cut has made is no zeroes: who asks would copy it as such.
        if map.ends_early {
            self.notice_cut(lane.disk);
        }
        let spoilt = !self.reach.is_whole() && self.is_spoilt(lane.disk, map.slot);
        if map.ends_early || spoilt {
            return self.end(lane, map.slot, Err(Fault::Io));
        }
        let pending = self.pending[map.slot as usize]
            .as_ref()
            .expect("an answered question is pending");
        let mut data = pending.job.data;
        for extent in &map.extents {
            lane.buffers.put(data, &extent.encode());
            data = data.skip(EXTENT_BYTES);
        }
        self.end(lane, map.slot, map.outcome);
    }

    fn close(&mut self, lane: &mut Lane<'_>) -> bool {
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
            let slot = self.note(Pending::new(flush, Step::Part));
            self.go(lane, slot);
            return false;
        }
        quiet
    }
}

/// The name of an operation that no guest waits for.
const NOBODY: IoId = IoId::from_bits(u64::MAX);

impl Dir {
    /// The file for an operation on `len` bytes: direct when all of it is aligned.
    fn file_for(&self, lane: &Lane<'_>, data: Data, offset: u64, len: u64) -> RawFd {
        match &self.direct {
            Some(direct) => {
                let blocks = self.alignment.offset.max(PAGE) as u64;
                let aligned = offset.is_multiple_of(blocks)
                    && len.is_multiple_of(blocks)
                    && lane.buffers.is_memory_aligned(data, self.alignment.memory);
                if aligned {
                    direct.as_raw_fd()
                } else {
                    self.buffered.as_raw_fd()
                }
            }
            None => self.buffered.as_raw_fd(),
        }
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
            .filter(|(_, pending)| pending.as_ref().is_some_and(|p| p.job.op.modifies()))
            .map(|(slot, _)| slot);
        let writing = writes.any(|slot| !self.feed.holds(slot));
        self.reach.notice(disk, writing);
    }

    /// Submits the next operation of a job.
    fn go(&mut self, lane: &mut Lane<'_>, slot: u32) {
        let pending = self.pending[slot as usize]
            .as_ref()
            .expect("a job that moves is pending");
        let Pending {
            job, done, step, ..
        } = *pending;
        let tag = lane.tag(slot);
        let (offset, left) = (job.offset + done, job.len - done);
        let start = u32::try_from(done).expect("a request's bytes are counted in 32 bits");
        match step {
            Step::Ask => {}
            Step::Move => {
                let data = job.data.skip(start);
                let fd = self.file_for(lane, data, offset, left);
                if job.op == Op::Read {
                    lane.ring
                        .read(fd, lane.buffers, data, bytes(left), offset, tag);
                } else {
                    let durable = self.durability(slot, fd);
                    lane.ring
                        .write(fd, lane.buffers, data, bytes(left), offset, durable, tag);
                }
            }
            Step::Sync | Step::Part => lane.ring.sync(self.buffered.as_raw_fd(), tag),
            Step::Punch => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                lane.ring
                    .allocate(self.buffered.as_raw_fd(), mode, offset, left, tag);
            }
            Step::ZeroRange => {
                let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
                lane.ring
                    .allocate(self.buffered.as_raw_fd(), mode, offset, left, tag);
            }
            Step::WriteZeroes { buffer, piece } => {
                let len = left.min(piece);
                let data = Data { buffer, start: 0 };
                let fd = self.buffered.as_raw_fd();
                lane.ring.write(
                    fd,
                    lane.buffers,
                    data,
                    bytes(len),
                    offset,
                    Durability::Cached,
                    tag,
                );
            }
        }
    }

    /// How a write of a job goes to a file. Through the page cache the file is synced afterwards: RWF_DSYNC there would
    /// take an error upon itself that a flush is to hear of.
    fn durability(&mut self, slot: u32, fd: RawFd) -> Durability {
        let pending = self.pending[slot as usize]
            .as_mut()
            .expect("a job that moves is pending");
        if !pending.job.flags.has(Flags::FUA) {
            return Durability::Cached;
        }
        if fd == self.buffered.as_raw_fd() {
            pending.owes_sync = true;
            return Durability::Cached;
        }
        Durability::Durable
    }

    /// A job wants the file to be synced, now or with others.
    fn sync(&mut self, lane: &mut Lane<'_>, slot: u32) {
        match self.syncs.ask(slot) {
            Turn::Starts => self.go(lane, slot),
            Turn::Waits => {}
            Turn::Refused => self.end(lane, slot, Err(Fault::Io)),
        }
    }

    /// The sync that the job of `slot` carried has ended, for all that it was for.
    fn synced(&mut self, lane: &mut Lane<'_>, slot: u32, result: i32) {
        if matches!(-result, libc::EINTR | libc::EAGAIN) {
            return self.go(lane, slot);
        }
        let mut outcome = Ok(());
        if result < 0 {
            self.syncs.fail(lane.disk, -result);
            outcome = Err(fault(-result));
        }
        while let Some(rider) = self.syncs.rider() {
            let spoilt = !self.reach.is_whole() && self.is_spoilt(lane.disk, rider);
            self.end(lane, rider, if spoilt { Err(Fault::Io) } else { outcome });
        }
        if let Some(carrier) = self.syncs.next() {
            self.go(lane, carrier);
        }
    }

    /// Submits a job that was held back, unless nothing may be written any more.
    fn go_at_last(&mut self, lane: &mut Lane<'_>, slot: u32) {
        let job = self.pending[slot as usize].as_ref().map(|held| held.job);
        let cut = !self.reach.is_whole() && job.is_some_and(|job| job.op.modifies());
        if cut || self.is_barred(slot) {
            self.feed.answered();
            return self.end(lane, slot, Err(Fault::Io));
        }
        self.go(lane, slot);
    }

    /// Whether nothing more of a job may be done, since the disk's lease is over.
    fn is_barred(&self, slot: u32) -> bool {
        let job = |pending: &Pending| pending.job.op.modifies() && pending.step != Step::Sync;
        let over = |fence: &Arc<Fence>| !fence.is_open();
        self.fence.as_ref().is_some_and(over)
            && self.pending[slot as usize].as_ref().is_some_and(job)
    }

    /// Submits what is left of a job of which an operation has ended.
    fn go_again(&mut self, lane: &mut Lane<'_>, slot: u32) {
        if self.is_barred(slot) {
            return self.end(lane, slot, Err(Fault::Io));
        }
        let pending = self.pending[slot as usize].as_ref();
        if pending.is_some_and(|pending| pending.step == Step::Move) {
            self.feed.starts_again();
        }
        self.go(lane, slot);
    }

    /// An operation went well, as far as `moved` bytes.
    fn advanced(&mut self, lane: &mut Lane<'_>, slot: u32, moved: u64) {
        let pending = self.pending[slot as usize]
            .as_mut()
            .expect("a job that advances is pending");
        let job = pending.job;
        match pending.step {
            Step::Sync | Step::Ask | Step::Part => return self.end(lane, slot, Ok(())),
            Step::Punch | Step::ZeroRange => pending.done = job.len,
            Step::Move | Step::WriteZeroes { .. } => {
                if moved == 0 {
                    self.notice_cut(lane.disk);
                    return self.end(lane, slot, Err(Fault::Io));
                }
                pending.done += moved;
            }
        }
        if pending.done < job.len {
            return self.go_again(lane, slot);
        }
        let zeroed = matches!(job.op, Op::WriteZeroes | Op::Discard);
        if pending.owes_sync || zeroed && job.flags.has(Flags::FUA) {
            self.give_back(lane, slot);
            self.step(slot, Step::Sync);
            return self.sync(lane, slot);
        }
        self.end(lane, slot, Ok(()));
    }

    /// An operation failed: try what else does the same, or tell.
    fn failed(&mut self, lane: &mut Lane<'_>, slot: u32, errno: i32) {
        let pending = self.pending[slot as usize]
            .as_ref()
            .expect("a job that fails is pending");
        let job = pending.job;
        let not_known = matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)
            && !self.is_barred(slot);
        match (pending.step, job.op) {
            (Step::Move, _) if matches!(errno, libc::EINTR | libc::EAGAIN) => {
                self.go_again(lane, slot);
            }
            (Step::Punch, Op::Discard) if not_known => {
                self.punch_hole = errno == libc::EINVAL;
                self.end(lane, slot, Ok(()));
            }
            (Step::Punch, _) if not_known => {
                self.punch_hole = errno == libc::EINVAL;
                self.step(slot, Step::ZeroRange);
                self.go(lane, slot);
            }
            (Step::ZeroRange, _) if not_known => {
                self.zero_range = errno == libc::EINVAL;
                self.write_zeroes(lane, slot);
            }
            _ => self.end(lane, slot, Err(fault(errno))),
        }
    }

    fn write_zeroes(&mut self, lane: &mut Lane<'_>, slot: u32) {
        let job = self.pending[slot as usize]
            .as_ref()
            .expect("a job that moves is pending")
            .job;
        if job.flags.has(Flags::FAST_ONLY) {
            return self.end(lane, slot, Err(Fault::Unsupported));
        }
        let piece = job.len.min(ZERO_PIECE as u64);
        match lane.buffers.claim_pool(bytes(piece)) {
            Ok(buffer) => {
                lane.buffers.clear(Data { buffer, start: 0 }, bytes(piece));
                self.step(slot, Step::WriteZeroes { buffer, piece });
                self.go(lane, slot);
            }
            Err(_) => self.end(lane, slot, Err(Fault::Io)),
        }
    }

    fn ask_extents(&mut self, lane: &mut Lane<'_>, job: Job) {
        let slot = self.note(Pending::new(job, Step::Ask));
        let map = Map {
            slot,
            file: Arc::clone(&self.buffered),
            offset: job.offset,
            len: job.len,
            most: lane.buffers.len(job.data.buffer) / Extent::SIZE,
            extents: Vec::new(),
            ends_early: false,
            outcome: Ok(()),
        };
        lane.errands.send(Errand {
            disk: lane.disk,
            task: Task::Map(map),
        });
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

    fn step(&mut self, slot: u32, step: Step) {
        self.pending[slot as usize]
            .as_mut()
            .expect("a job that moves is pending")
            .step = step;
    }

    /// Releases the buffer of zeroes, if the job has one.
    fn give_back(&mut self, lane: &mut Lane<'_>, slot: u32) {
        if let Some(Pending {
            step: Step::WriteZeroes { buffer, .. },
            ..
        }) = &self.pending[slot as usize]
        {
            lane.buffers.release(*buffer);
        }
    }

    fn end(&mut self, lane: &mut Lane<'_>, slot: u32, outcome: tidegate_core::request::Outcome) {
        self.give_back(lane, slot);
        let pending = self.pending[slot as usize].take().expect("a job ends once");
        self.free.push(slot);
        lane.finish(pending.job.io, outcome);
    }
}

#[cfg(test)]
mod tests;
