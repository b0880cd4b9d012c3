//! Bounce buffers for requests that direct I/O cannot take: partial units, and unaligned memory.
//!
//! The units around the request are read into a bounce buffer, changed there, and written back; a read is copied out of
//! it. A long request is processed in windows, one after the other. A request that changes part of a unit locks its
//! range exclusively (`tidegate_core::range_lock`). So no other request changes the unit's other bytes between the read
//! and the write.
//!
//! # Always true
//! - a window is written only while the request holds its range, and after it was read if it contains other bytes
//! - the buffers of one image take at most [`BUDGET`]; a request without room waits in a queue and holds no buffer
//!
//! # Picture
//! ```text
//!   units      |     A     |     B     |     C     |
//!   request           |----------------|
//!   window     |===========|===========|             read, changed, written back: the start of A is unchanged
//! ```

use super::{Dir, Step};
use crate::datastore::{ImageCx, Job, bytes};
use crate::sys::buffers::Buffers;
use crate::sys::ring::Durability;
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use tidegate_core::request::{Data, Fault, Flags, Op};

/// Longest window: it is copied in some microseconds.
pub(super) const WINDOW: u64 = 64 << 10;
/// Bytes of memory for all windows of an image: 32 requests of 4 KiB that straddle two units, or four long ones.
const BUDGET: usize = 256 << 10;

/// The window of each request, by slot.
#[derive(Default)]
pub(super) struct Bounces {
    held: Vec<Option<Window>>,
    /// Bytes that the windows take.
    used: usize,
    /// Requests that wait for room, in order, and the start and end of their units.
    waiting: VecDeque<(u32, (u64, u64))>,
}

#[derive(Clone, Copy)]
struct Window {
    /// None while only its room is reserved.
    buffer: Option<u32>,
    /// Start and end of its units on the image.
    units: (u64, u64),
    /// Bytes that the current operation has moved.
    moved: u64,
    /// Whether it is being written, not read.
    writes: bool,
}

/// Bytes of memory for a window of these units.
fn room((start, end): (u64, u64)) -> usize {
    Buffers::block_of(bytes(end - start))
}

impl Window {
    fn buffer(&self) -> u32 {
        self.buffer.expect("a window that is used has a buffer")
    }
}

impl Bounces {
    /// Reserves room for a window, or queues the request. A request from the queue has its room already.
    fn admit(&mut self, slot: u32, units: (u64, u64)) -> bool {
        if self.held.get(slot as usize).is_some_and(Option::is_some) {
            return true;
        }
        if !self.waiting.is_empty() || !self.fits(units) {
            self.waiting.push_back((slot, units));
            return false;
        }
        self.reserve(slot, units);
        true
    }

    fn fits(&self, units: (u64, u64)) -> bool {
        self.used + room(units) <= BUDGET
    }

    fn reserve(&mut self, slot: u32, units: (u64, u64)) {
        let at = slot as usize;
        if self.held.len() <= at {
            self.held.resize(at + 1, None);
        }
        self.used += room(units);
        self.held[at] = Some(Window {
            buffer: None,
            units,
            moved: 0,
            writes: false,
        });
    }

    fn window(&mut self, slot: u32) -> &mut Window {
        self.held
            .get_mut(slot as usize)
            .and_then(Option::as_mut)
            .expect("a bounced request has a window")
    }

    /// Frees the window of a request and returns its buffer. Appends the requests that have room now to `ready`.
    fn drop_window(&mut self, slot: u32, ready: &mut VecDeque<u32>) -> Option<u32> {
        let window = self.held.get_mut(slot as usize)?.take()?;
        self.used -= room(window.units);
        while let Some(&(next, units)) = self.waiting.front()
            && self.fits(units)
        {
            self.waiting.pop_front();
            self.reserve(next, units);
            ready.push_back(next);
        }
        window.buffer
    }
}

impl Dir {
    /// Starts the next window of a request.
    pub(super) fn next_window(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        let pending = self.pending(slot);
        let (job, done) = (pending.job, pending.done);
        let (offset, left) = (job.offset + done, job.len - done);
        let (start, end) = self.grain.around(offset, left);
        // Only this unit of a range to zero needs a read-modify-write.
        let most = if job.op == Op::WriteZeroes {
            self.grain.unit
        } else {
            WINDOW
        };
        let units = (start, end.min(start + most));
        if !self.bounces.admit(slot, units) {
            self.pending(slot).waits = true;
            return;
        }
        let Ok(buffer) = cx.buffers.claim_pool(cx.disk(), bytes(units.1 - units.0)) else {
            return self.end(cx, slot, Err(Fault::Io));
        };
        // Whether it contains bytes outside the request.
        let has_other_bytes = offset > units.0 || offset + left < units.1;
        let window = self.bounces.window(slot);
        window.buffer = Some(buffer);
        window.writes = job.op.modifies() && !has_other_bytes;
        if window.writes {
            self.fill_window(cx, slot);
        }
        self.move_window(cx, slot);
    }

    /// Copies the request's data into its window.
    fn fill_window(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        let (inside, from, len) = self.request_in_window(slot);
        match self.pending(slot).job.op {
            Op::WriteZeroes => cx.buffers.clear(inside, bytes(len)),
            _ => cx.buffers.transfer(from, inside, bytes(len)),
        }
    }

    /// The next part of a request: its place in the window, its place in the request's memory, and its length.
    fn request_in_window(&mut self, slot: u32) -> (Data, Data, u64) {
        let pending = self.pending(slot);
        let (job, done) = (pending.job, pending.done);
        let window = *self.bounces.window(slot);
        let offset = job.offset + done;
        let len = (job.len - done).min(window.units.1 - offset);
        let small = |n: u64| u32::try_from(n).expect("a request's bytes are counted in 32 bits");
        let inside = Data {
            buffer: window.buffer(),
            start: small(offset - window.units.0),
        };
        (inside, job.data.skip(small(done)), len)
    }

    /// Reads or writes the rest of the window.
    fn move_window(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        let window = *self.bounces.window(slot);
        let Window {
            units: (start, end),
            moved,
            writes,
            ..
        } = window;
        let buffer = window.buffer();
        let fd = self.data_fd().as_raw_fd();
        let at = u32::try_from(moved).expect("a window is short");
        let data = Data { buffer, start: at };
        let (offset, len, tag) = (start + moved, bytes(end - start - moved), cx.tag(slot));
        if writes {
            let durable = match self.pending(slot).job.flags.has(Flags::FUA) {
                true => Durability::Durable,
                false => Durability::Cached,
            };
            cx.ring
                .write(fd, cx.buffers, data, len, offset, durable, tag);
        } else {
            cx.ring.read(fd, cx.buffers, data, len, offset, tag);
        }
    }

    /// The kernel no longer uses a request's window.
    pub(super) fn window_returned(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        let buffer = self.bounces.window(slot).buffer();
        cx.buffers.returned(buffer);
    }

    /// An operation on a window succeeded with `moved` bytes.
    pub(super) fn bounced(&mut self, cx: &mut ImageCx<'_>, slot: u32, moved: u64) {
        let memory = self.grain.memory as u64;
        let grain = self.grain;
        let window = self.bounces.window(slot);
        let all = window.units.1 - window.units.0;
        let before = window.moved;
        // Round down, so that the rest starts in aligned memory.
        window.moved = match before + moved {
            sum if sum >= all => all,
            sum => grain.done_whole(sum) & !(memory - 1),
        };
        if window.moved == before {
            self.notice_cut(cx.disk());
            return self.end(cx, slot, Err(Fault::Io));
        }
        let whole = window.moved == all;
        let wrote = window.writes;
        if !whole {
            return self.resume_window(cx, slot);
        }
        let op = self.pending(slot).job.op;
        if op.modifies() && !wrote {
            let window = self.bounces.window(slot);
            (window.writes, window.moved) = (true, 0);
            self.fill_window(cx, slot);
            return self.resume_window(cx, slot);
        }
        let (inside, out, len) = self.request_in_window(slot);
        if op == Op::Read {
            cx.buffers.transfer(inside, out, bytes(len));
        }
        self.release_window(cx, slot);
        self.pending(slot).done += len;
        self.advance(cx, slot);
    }

    /// Continues with a window unless the disk's lease has ended.
    pub(super) fn resume_window(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        if self.is_fenced_off(slot) {
            return self.end(cx, slot, Err(Fault::Io));
        }
        self.move_window(cx, slot);
    }

    /// Frees a request's window, if it has one.
    pub(super) fn release_window(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        if let Some(buffer) = self.bounces.drop_window(slot, &mut self.ready) {
            cx.buffers.release(buffer);
        }
    }
}

/// Whether the rest of a job after `done` bytes uses the job's own memory or a window.
#[inline]
pub(super) fn step(dir: &Dir, cx: &ImageCx<'_>, job: &Job, done: u64) -> Step {
    let (offset, left) = (job.offset + done, job.len - done);
    let start = u32::try_from(done).expect("a request's bytes are counted in 32 bits");
    match dir
        .grain
        .fits(cx.buffers, job.data.skip(start), offset, left)
    {
        true => Step::Move,
        false => Step::Bounce,
    }
}
