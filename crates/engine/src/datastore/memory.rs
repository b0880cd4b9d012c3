//! A datastore in the daemon's memory: fast, and gone with it. For scratch disks, tests and measuring.
//!
//! Memory is taken when first written and given back by discards, so a large disk costs what it holds.
//!
//! # Always true
//! - what is not within the memory is refused, whatever size the disk has been given since

use super::{Image, ImageInfo, Job, Lane, OpenedImage, Progress, bytes};
use crate::error::{Error, Result};
use crate::sys::memory::Memory;
use tidegate_core::request::{Extent, ExtentKind, Fault, Op};

struct InMemory {
    memory: Memory,
    size: u64,
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
    Ok(OpenedImage::new(Box::new(InMemory { memory, size }), info))
}

impl Image for InMemory {
    fn timed(&self) -> bool {
        false
    }

    fn start(&mut self, lane: &mut Lane<'_>, job: Job) -> Progress {
        if !job.is_within(self.size) {
            return Progress::Done(Err(Fault::Invalid));
        }
        let (at, len) = (bytes(job.offset), bytes(job.len));
        match job.op {
            Op::Read => self.memory.read(at, len, lane.buffers, job.data),
            Op::Write => self.memory.write(at, len, lane.buffers, job.data),
            Op::WriteZeroes | Op::Discard => self.memory.clear(at, len),
            Op::Extents => {
                let all = Extent {
                    len: job.len,
                    kind: ExtentKind::Data,
                };
                lane.buffers.put(job.data, &all.encode());
            }
            Op::Flush | Op::Prefetch => {}
        }
        Progress::Done(Ok(()))
    }
}
