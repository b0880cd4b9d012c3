//! Blocks of layouts' own: each is one job of an image, on a buffer of its own.
//!
//! The shard asks for them with [`Effect::ReadBlock`](tidegate_core::effect::Effect::ReadBlock) and
//! [`Effect::WriteBlock`](tidegate_core::effect::Effect::WriteBlock). There are few: when a layout opens, when its state
//! changes, and when it closes. An image cannot tell them from other jobs. A job's number tells the thread.
//!
//! # Always true
//! - a write is durable when it is reported: its job has [`Flags::FUA`], which every kind of image obeys
//! - each block is reported once, as its job ends once

use super::IoThread;
use crate::datastore::Job;
use crate::sys::buffers::Buffers;
use tidegate_core::block::BLOCK;
use tidegate_core::layout::Target;
use tidegate_core::request::{Data, DiskId, Fault, Flags, IoId, Op, Outcome};
use tidegate_core::shard::Event;

/// Marks the number of a block's job. The shard's own I/Os have lower ones.
const MARK: u32 = 1 << 31;

/// The bytes of a block.
pub(super) type Bytes = Box<[u8; BLOCK]>;

/// The blocks of a disk that are being read and written.
#[derive(Default)]
pub(super) struct Blocks {
    pending: Vec<Option<Block>>,
    free: Vec<u32>,
}

struct Block {
    disk: DiskId,
    /// The shard's name for it.
    io: IoId,
    op: Op,
    buffer: u32,
}

/// Whether it is the job of a block.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the lower half is the number"
)]
pub(super) fn is_block(io: IoId) -> bool {
    io.to_bits() as u32 & MARK != 0
}

impl Blocks {
    fn insert(&mut self, block: Block) -> IoId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.pending.push(None);
            u32::try_from(self.pending.len() - 1).expect("there are few blocks")
        });
        self.pending[place as usize] = Some(block);
        IoId::from_bits(u64::from(place | MARK))
    }

    /// The job of a block has ended: returns the event for the shard.
    pub(super) fn end(&mut self, buffers: &mut Buffers, job: IoId, outcome: Outcome) -> Event {
        let place = u32::try_from(job.to_bits()).map(|bits| bits & !MARK);
        let place = place.expect("the number of a block's job has 32 bits");
        let block = self.pending[place as usize]
            .take()
            .expect("the job of a block ends once");
        self.free.push(place);
        let read = (block.op == Op::Read && outcome.is_ok()).then(|| {
            let mut bytes = Box::new([0; BLOCK]);
            let data = Data {
                buffer: block.buffer,
                start: 0,
            };
            buffers.get(data, &mut bytes[..]);
            bytes
        });
        buffers.release(block.buffer);
        Event::BlockDone {
            disk: block.disk,
            io: block.io,
            outcome: outcome.map(|()| read),
        }
    }
}

impl IoThread {
    /// Starts to read a block, or to write `bytes` durably.
    pub(super) fn start_block(
        &mut self,
        disk: DiskId,
        target: Target,
        io: IoId,
        offset: u64,
        bytes: Option<Bytes>,
    ) {
        let Ok(buffer) = self.cx.buffers.claim_pool(disk, BLOCK) else {
            return self.cx.handle(Event::BlockDone {
                disk,
                io,
                outcome: Err(Fault::Io),
            });
        };
        let data = Data { buffer, start: 0 };
        let (op, flags) = match &bytes {
            Some(bytes) => {
                self.cx.buffers.put(data, &bytes[..]);
                (Op::Write, Flags::FUA)
            }
            None => (Op::Read, Flags::NONE),
        };
        let block = Block {
            disk,
            io,
            op,
            buffer,
        };
        let place = self.disks[disk.0 as usize].as_mut();
        let place = place.expect("the shard's disks are this thread's");
        let job = Job {
            io: place.blocks.insert(block),
            op,
            flags,
            offset,
            len: BLOCK as u64,
            data,
        };
        self.start_job(disk, target, job);
    }
}
