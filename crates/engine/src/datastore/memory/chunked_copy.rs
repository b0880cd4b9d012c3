//! A copy between a request's buffer and a disk's memory, in bounded chunks.
//!
//! The images of [`super`] and of [`super::super::emulated`] copy the bytes on their I/O thread. The longest request of
//! a guest takes 12 ms, and seven times that in memory that was never touched. The thread has other guests to serve.
//!
//! # Always true
//! - a job ends only when all of its bytes were copied
//!
//! # Units
//! The rest of a turn's portion is in bytes copied.

use crate::datastore::{Job, bytes};
use crate::sys::buffers::Buffers;
use crate::sys::memory::{Memory, PAGE};
use tidegate_core::request::{Data, Extent, ExtentKind, IoId, Op};

/// What one image copies in one turn, and the largest job that is copied at once. It equals what the kernel may copy
/// during submission (`sys/ring.rs`): 30 us, or some 300 us in memory that was never touched.
pub(crate) const PORTION: u64 = 256 << 10;
/// Bytes cleared at the cost of one byte copied. Clearing frees pages: half a millisecond for 4 MiB of them, and 3 us
/// where there were none.
const CLEARED_FOR_COPIED: u64 = 8;
/// The minimum cost of a job: it must also be completed.
const LEAST: u64 = 512;

/// See the module.
pub(crate) struct ChunkedCopy {
    job: Job,
    /// Bytes copied so far.
    done: u64,
}

impl ChunkedCopy {
    /// A copy with nothing copied yet.
    pub(crate) fn new(job: Job) -> ChunkedCopy {
        ChunkedCopy { job, done: 0 }
    }

    pub(crate) fn io(&self) -> IoId {
        self.job.io
    }

    /// Whether it may be copied at once.
    pub(crate) fn is_short(&self) -> bool {
        self.len() <= PORTION * self.weight()
    }

    /// Copies all of it.
    pub(crate) fn finish_at_once(&self, memory: &mut Memory, buffers: &mut Buffers) {
        self.copy_part(memory, buffers, self.len());
    }

    /// Copies as much as this turn still allows. Returns whether it is complete.
    pub(crate) fn copy_some(
        &mut self,
        memory: &mut Memory,
        buffers: &mut Buffers,
        left_in_turn: &mut u64,
    ) -> bool {
        if *left_in_turn == 0 {
            return false;
        }
        let left = self.len() - self.done;
        let mut now = left.min(*left_in_turn * self.weight());
        if now < left {
            // A page that is cleared in two parts is not freed.
            let at = self.job.offset + self.done;
            let end = (at + now) / PAGE as u64 * PAGE as u64;
            now = end.saturating_sub(at);
            *left_in_turn = 0;
        } else {
            *left_in_turn = left_in_turn.saturating_sub((now / self.weight()).max(LEAST));
        }
        self.copy_part(memory, buffers, now);
        self.done += now;
        now == left
    }

    /// Number of bytes to copy.
    fn len(&self) -> u64 {
        match self.job.op {
            Op::Read | Op::Write | Op::WriteZeroes | Op::Discard => self.job.len,
            Op::Flush | Op::Extents | Op::Prefetch => 0,
        }
    }

    fn weight(&self) -> u64 {
        match self.job.op {
            Op::WriteZeroes | Op::Discard => CLEARED_FOR_COPIED,
            _ => 1,
        }
    }

    fn copy_part(&self, memory: &mut Memory, buffers: &mut Buffers, len: u64) {
        let job = &self.job;
        let (at, len) = (bytes(job.offset + self.done), bytes(len));
        match job.op {
            Op::Read => memory.read(at, len, buffers, self.data()),
            Op::Write => memory.write(at, len, buffers, self.data()),
            Op::WriteZeroes | Op::Discard => memory.clear(at, len),
            Op::Extents => {
                let all = Extent {
                    len: job.len,
                    kind: ExtentKind::Data,
                };
                buffers.put(job.data, &all.encode());
            }
            Op::Flush | Op::Prefetch => {}
        }
    }

    /// The rest of its buffer.
    fn data(&self) -> Data {
        let done = u32::try_from(self.done).expect("a buffer has less than 4 GiB");
        Data {
            start: self.job.data.start + done,
            ..self.job.data
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::request::{DiskId, Flags};

    #[test]
    fn a_job_copies_one_portion_per_turn_up_to_a_page_boundary() {
        const LEN: usize = 5 << 20;
        let mut memory = Memory::new(2 * LEN).expect("memory");
        let mut buffers = Buffers::new();
        let buffer = buffers.claim_pool(DiskId(0), LEN).expect("memory");
        for (op, most) in [
            (Op::Write, PORTION),
            (Op::Read, PORTION),
            (Op::WriteZeroes, CLEARED_FOR_COPIED * PORTION),
            (Op::Discard, CLEARED_FOR_COPIED * PORTION),
        ] {
            let mut copy = ChunkedCopy::new(Job {
                io: IoId::from_bits(1),
                op,
                flags: Flags::NONE,
                offset: 512,
                len: LEN as u64,
                data: Data { buffer, start: 0 },
            });
            let mut before = 0;
            while !copy.copy_some(&mut memory, &mut buffers, &mut PORTION.clone()) {
                let moved = copy.done - before;
                assert!(0 < moved && moved <= most, "{op:?}: {moved}");
                assert!((512 + copy.done).is_multiple_of(PAGE as u64), "{op:?}");
                before = copy.done;
            }
            assert!(copy.done - before <= most);
            assert_eq!(copy.done, LEN as u64);
        }
    }
}
