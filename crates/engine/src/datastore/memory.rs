//! The `memory` datastore: bytes in the daemon's memory. For scratch disks, tests and measurements.
//!
//! Memory is allocated by the first write and freed by discards, so a large disk costs only what it contains.
//!
//! # Always true
//! - a request beyond the memory is refused, even if the disk has grown since
//! - jobs end in the order of their arrival, and none starts before the last has ended: each sees all of another or
//!   nothing

use self::chunked_copy::{ChunkedCopy, PORTION};
use super::{Image, ImageCx, ImageInfo, Job, OpenedImage, Progress, bytes};
use crate::error::{Error, Result};
use crate::sys::memory::Memory;
use crate::sys::ring::{Completion, Tag};
use crate::tag;
use std::collections::VecDeque;
use tidegate_core::request::Fault;

#[cfg(test)]
pub(super) mod bench;
pub(super) mod chunked_copy;

struct InMemory {
    memory: Memory,
    size: u64,
    /// The first one is being copied. Empty unless a job takes more than a turn.
    waiting: VecDeque<ChunkedCopy>,
}

/// Opens an image of `size` bytes, all zeroes.
///
/// # Errors
/// When the system has no address space for it.
pub fn open(size: u64) -> Result<OpenedImage> {
    let memory = Memory::new(bytes(size).max(1)).map_err(|e| {
        Error::io(
            format!("cannot reserve {size} bytes of memory for a disk"),
            e,
        )
    })?;
    let info = ImageInfo {
        size,
        block_size: 512,
        buffered: false,
        remark: None,
    };
    let image = InMemory {
        memory,
        size,
        waiting: VecDeque::new(),
    };
    Ok(OpenedImage::new(Box::new(image), info).with_zeroes(true))
}

impl Image for InMemory {
    fn timed(&self) -> bool {
        false
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    fn start(&mut self, cx: &mut ImageCx<'_>, job: Job) -> Progress {
        if !job.is_within(self.size) {
            return Progress::Done(Err(Fault::Invalid));
        }
        let copy = ChunkedCopy::new(job);
        if self.waiting.is_empty() {
            if copy.is_short() {
                copy.finish_at_once(&mut self.memory, cx.buffers);
                return Progress::Done(Ok(()));
            }
            continue_next_turn(cx);
        }
        self.waiting.push_back(copy);
        Progress::Pending
    }

    fn completed(&mut self, cx: &mut ImageCx<'_>, _completion: Completion) {
        let mut left_in_turn = PORTION;
        while let Some(copy) = self.waiting.front_mut() {
            if !copy.copy_some(&mut self.memory, cx.buffers, &mut left_in_turn) {
                return continue_next_turn(cx);
            }
            cx.finish(copy.io(), Ok(()));
            self.waiting.pop_front();
        }
    }
}

/// Has the ring call [`Image::completed`] in the thread's next turn. It cancels an operation that does not exist; the
/// failed cancellation completes like any operation. So the thread never polls an image with nothing to do, unlike one
/// with deadlines.
fn continue_next_turn(cx: &mut ImageCx<'_>) {
    let nothing = Tag {
        kind: tag::NOTHING,
        owner: cx.image.owner(),
        slot: u32::MAX,
    };
    let back = cx.tag(0);
    cx.ring.cancel(nothing, back);
}

#[cfg(test)]
mod tests {
    use super::bench::Bench;
    use super::*;
    use tidegate_core::request::Op;

    const MIB: usize = 1 << 20;

    #[test]
    fn a_long_job_takes_several_turns_and_ends_before_later_ones() {
        let mut bench = Bench::new();
        let mut image = open(4 << 20).expect("memory").image;
        let image = &mut *image;
        let (ones, twos) = (bench.buffer(1, MIB), bench.buffer(2, 4096));
        let (found, other) = (bench.buffer(0, MIB), bench.buffer(0, 4096));
        let at_once = Progress::Done(Ok(()));
        assert_eq!(
            bench.start(image, 1, Op::Write, 512, ones),
            Progress::Pending
        );
        assert_eq!(
            bench.start(image, 2, Op::Read, 512, found),
            Progress::Pending
        );
        assert_eq!(bench.start(image, 3, Op::Write, 0, twos), Progress::Pending);
        assert_eq!(bench.start(image, 4, Op::Flush, 0, twos), Progress::Pending);
        let mut turns = Vec::new();
        while bench.turn(image) {
            turns.push(bench.ended());
        }
        // The first takes a little more than four, as a portion ends at a page boundary, and the second starts in the
        // rest.
        let ends: Vec<(usize, u64)> = (1..)
            .zip(&turns)
            .flat_map(|(turn, ended)| ended.iter().map(move |&io| (turn, io)))
            .collect();
        assert_eq!(ends, [(5, 1), (9, 2), (9, 3), (9, 4)]);
        assert!(
            bench.is_full_of(1, found),
            "it has no data of the later write"
        );
        assert!(bench.with(|cx| image.close(cx)));

        assert_eq!(bench.start(image, 5, Op::Read, 0, other), at_once);
        assert!(bench.is_full_of(2, other));
        assert!(!bench.turn(image), "nothing is left on the ring");
    }

    #[test]
    fn a_job_of_one_portion_completes_at_once() {
        let mut bench = Bench::new();
        let mut image = open(4 << 20).expect("memory").image;
        let portion = bytes(PORTION);
        let (longest, longer) = (bench.buffer(7, portion), bench.buffer(7, portion + 512));
        let at_once = Progress::Done(Ok(()));
        for (op, buffer, progress) in [
            (Op::Write, longest, at_once),
            (Op::Discard, longer, at_once),
            (Op::Write, longer, Progress::Pending),
        ] {
            assert_eq!(bench.start(&mut *image, 1, op, 0, buffer), progress);
        }
    }
}
