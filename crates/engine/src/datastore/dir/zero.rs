//! Write-zeroes and discard: by the file system where it can, else by writing zeroes.
//!
//! The file system frees or zeroes whole blocks only. The ends of the range are written from a shared buffer of zeroes,
//! and partial units at its very ends through a window (`bounce.rs`). A discard does not change its ends: the contents
//! of a discarded range are undefined.
//!
//! # Always true
//! - however long the range, a request has one operation in flight, and no memory of its own
//! - a request that must be fast or fail ([`Flags::FAST_ONLY`]) writes zeroes at the range's ends only
//!
//! # Source
//! fallocate(2), FALLOC_FL_PUNCH_HOLE and FALLOC_FL_ZERO_RANGE.

use super::grain::{Grain, Piece};
use super::{Dir, Pending, Step};
use crate::datastore::{ImageCx, Job, bytes, fault};
use crate::sys::buffers::ZEROES;
use crate::sys::ring::Durability;
use std::os::fd::AsRawFd;
use tidegate_core::request::{Data, Fault, Flags, Op, Outcome};

/// How zeroes or a hole are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Punch,
    ZeroRange,
    /// The image writes zeroes.
    Write,
}

impl Dir {
    /// How to perform a job, or the outcome if it ends at once.
    pub(super) fn method(&self, job: &Job) -> Result<Method, Outcome> {
        let space = job.op == Op::Discard || job.flags.has(Flags::MAY_UNMAP);
        match job.op {
            _ if space && self.punch_hole => Ok(Method::Punch),
            Op::Discard => Err(Ok(())),
            _ if self.zero_range => Ok(Method::ZeroRange),
            _ if job.flags.has(Flags::FAST_ONLY) => Err(Err(Fault::Unsupported)),
            _ => Ok(Method::Write),
        }
    }

    /// Starts the next piece of a range.
    pub(super) fn next_zero(&mut self, cx: &mut ImageCx<'_>, slot: u32) {
        let grain = self.grain;
        loop {
            let pending = self.pending(slot);
            let Pending { job, done, .. } = *pending;
            if done == job.len {
                return self.advance(cx, slot);
            }
            match next(&grain, pending) {
                Piece::Blocks(len) => {
                    pending.step = Step::Allocate;
                    return self.allocate(cx, slot, len);
                }
                Piece::Zeroes(len) | Piece::Edge(len) if job.op == Op::Discard => {
                    pending.done += len;
                }
                Piece::Zeroes(len) => {
                    pending.step = Step::WriteZeroes;
                    return self.write_zeroes(cx, slot, len);
                }
                Piece::Edge(_) => {
                    pending.step = Step::Bounce;
                    return self.next_window(cx, slot);
                }
            }
        }
    }

    fn allocate(&mut self, cx: &mut ImageCx<'_>, slot: u32, len: u64) {
        let pending = self.pending(slot);
        let offset = pending.job.offset + pending.done;
        let what = match pending.method {
            Method::Punch => libc::FALLOC_FL_PUNCH_HOLE,
            Method::ZeroRange | Method::Write => libc::FALLOC_FL_ZERO_RANGE,
        };
        let mode = what | libc::FALLOC_FL_KEEP_SIZE;
        let (fd, tag) = (self.buffered.as_raw_fd(), cx.tag(slot));
        cx.ring.allocate(fd, mode, offset, len, tag);
    }

    fn write_zeroes(&mut self, cx: &mut ImageCx<'_>, slot: u32, len: u64) {
        let pending = self.pending(slot);
        let offset = pending.job.offset + pending.done;
        let Ok(buffer) = cx.buffers.zeroes() else {
            // Nothing was submitted, so no completion will arrive.
            return self.end(cx, slot, Err(Fault::Io));
        };
        let (fd, tag) = (self.data_fd().as_raw_fd(), cx.tag(slot));
        let data = Data { buffer, start: 0 };
        let len = bytes(len.min(ZEROES as u64));
        let cached = Durability::Cached;
        cx.ring
            .write(fd, cx.buffers, data, len, offset, cached, tag);
    }

    /// The file system did not make a hole or zeroes: if it does not support that, use the next method.
    pub(super) fn not_allocated(&mut self, cx: &mut ImageCx<'_>, slot: u32, errno: i32) {
        let known = !matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL);
        if known || self.is_fenced_off(slot) {
            return self.end(cx, slot, Err(fault(errno)));
        }
        // EINVAL may concern this range only.
        let ever = errno == libc::EINVAL;
        let pending = self.pending(slot);
        let Pending { job, method, .. } = *pending;
        match method {
            Method::Punch if job.op == Op::Discard => {
                self.punch_hole = ever;
                return self.end(cx, slot, Ok(()));
            }
            Method::Punch => {
                pending.method = Method::ZeroRange;
                self.punch_hole = ever;
            }
            Method::ZeroRange | Method::Write => {
                pending.method = Method::Write;
                self.zero_range = ever;
                if job.flags.has(Flags::FAST_ONLY) {
                    return self.end(cx, slot, Err(Fault::Unsupported));
                }
            }
        }
        self.next_zero(cx, slot);
    }
}

/// The next piece of a job's range.
fn next(grain: &Grain, pending: &Pending) -> Piece {
    let Pending {
        job, done, method, ..
    } = *pending;
    grain.piece(job.offset + done, job.len - done, method != Method::Write)
}

/// Number of bytes in the last request to the file system.
pub(super) fn allocated(grain: &Grain, pending: &Pending) -> u64 {
    match next(grain, pending) {
        Piece::Blocks(len) => len,
        Piece::Zeroes(_) | Piece::Edge(_) => 0,
    }
}

/// The kernel no longer uses the buffer of zeroes.
pub(super) fn returned(cx: &mut ImageCx<'_>) {
    let buffer = cx.buffers.zeroes();
    cx.buffers
        .returned(buffer.expect("the buffer exists after it was written from"));
}
