//! A copy between a request's buffer and a disk's memory, in bounded chunks.
//!
//! The images of [`super`] and of [`super::super::emulated`] have their thread move the bytes itself. The longest request that
//! a guest can ask for takes it 12 ms, seven times that where the memory is touched for the first time, and it has other
//! guests.
//!
//! # Always true
//! - a job has ended when all of its bytes have moved: nobody is told of one that has moved in part
//!
//! # Units
//! What a turn has left is in bytes copied.

use crate::datastore::{Job, bytes};
use crate::sys::buffers::Buffers;
use crate::sys::memory::{Memory, PAGE};
use tidegate_core::request::{Data, Extent, ExtentKind, IoId, Op};

/// What one image moves in one turn, and what is moved at once when it is asked for: as much as the kernel is let copy while
/// it is submitted (`sys/ring.rs`). 30 us, or some 300 us of memory that is touched for the first time.
pub(crate) const PORTION: u64 = 256 << 10;
/// Bytes that are made zero in place of one that is copied: their pages are given back, of which 4 MiB took half a
/// millisecond, and 3 us where there were none.
const CLEARED_FOR_COPIED: u64 = 8;
/// The least that a job counts for: it has to be answered, too.
const LEAST: u64 = 512;

/// See the module.
pub(crate) struct ChunkedCopy {
    job: Job,
    /// Bytes that have moved.
    done: u64,
}

impl ChunkedCopy {
    /// Of which nothing has moved.
    pub(crate) fn new(job: Job) -> ChunkedCopy {
        ChunkedCopy { job, done: 0 }
    }

    pub(crate) fn io(&self) -> IoId {
        self.job.io
    }

    /// Whether it may be moved at once.
    pub(crate) fn is_short(&self) -> bool {
        self.len() <= PORTION * self.weight()
    }

    /// Moves all of it.
    pub(crate) fn finish_at_once(&self, memory: &mut Memory, buffers: &mut Buffers) {
        self.move_part(memory, buffers, self.len());
    }

    /// Moves as much of it as may be moved in this turn yet. Returns whether that was the last of it.
    pub(crate) fn go_on(
        &mut self,
        memory: &mut Memory,
        buffers: &mut Buffers,
        turn_has: &mut u64,
    ) -> bool {
        if *turn_has == 0 {
            return false;
        }
        let left = self.len() - self.done;
        let mut now = left.min(*turn_has * self.weight());
        if now < left {
            // A page of which two parts are cleared apart is not given back.
            let at = self.job.offset + self.done;
            let end = (at + now) / PAGE as u64 * PAGE as u64;
            now = end.saturating_sub(at);
            *turn_has = 0;
        } else {
            *turn_has = turn_has.saturating_sub((now / self.weight()).max(LEAST));
        }
        self.move_part(memory, buffers, now);
        self.done += now;
        now == left
    }

    /// Bytes of it that move.
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

    fn move_part(&self, memory: &mut Memory, buffers: &mut Buffers, len: u64) {
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

    /// Where in its buffer it goes on.
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
    use tidegate_core::request::Flags;

    #[test]
    fn a_job_moves_so_much_in_a_turn_up_to_the_end_of_a_page() {
        const LEN: usize = 5 << 20;
        let mut memory = Memory::new(2 * LEN).expect("memory");
        let mut buffers = Buffers::new();
        let buffer = buffers.claim_pool(LEN).expect("memory");
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
            while !copy.go_on(&mut memory, &mut buffers, &mut PORTION.clone()) {
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
