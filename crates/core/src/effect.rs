//! Effects: what the engine (or the simulator) must do for an I/O thread's [`Shard`](crate::shard::Shard).
//!
//! Plain values. Stack and shard append them to a list; the engine performs them in order.

use crate::block::BLOCK;
use crate::filter::FilterKey;
use crate::iocontrol::Spent;
use crate::layout::{LayoutNotice, OrderRefusal, Refusal, Target};
use crate::request::{Data, DiskId, Flags, IoId, Op, Outcome, Token};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Names the I/O control of one datastore on all I/O threads of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ControlId(pub u32);

impl ControlId {
    /// Stands for no I/O control. No control has this number.
    pub const NONE: ControlId = ControlId(u32::MAX);
}

/// An action for the engine. The order matters.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Submit this I/O to the disk's datastore. Its completion comes back as
    /// [`Event::Finished`](crate::shard::Event::Finished).
    Start {
        /// The disk.
        disk: DiskId,
        /// The target.
        target: Target,
        /// The I/O.
        io: IoId,
        /// The operation.
        op: Op,
        /// Its flags.
        flags: Flags,
        /// Offset on the target, in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The bytes.
        data: Data,
    },
    /// Read a block of a layout's own from the target, and report it with
    /// [`Event::BlockDone`](crate::shard::Event::BlockDone).
    ReadBlock {
        /// Of which disk.
        disk: DiskId,
        /// From which of its targets.
        target: Target,
        /// Which I/O.
        io: IoId,
        /// Where on the target, in bytes.
        offset: u64,
    },
    /// Write a block of a layout's own to the target, durably, and report that with
    /// [`Event::BlockDone`](crate::shard::Event::BlockDone).
    WriteBlock {
        /// Of which disk.
        disk: DiskId,
        /// To which of its targets.
        target: Target,
        /// Which I/O.
        io: IoId,
        /// Where on the target, in bytes.
        offset: u64,
        /// The bytes.
        block: Box<[u8; BLOCK]>,
    },
    /// Copy bytes from one buffer to another, at once.
    Copy {
        /// From here.
        from: Data,
        /// To here.
        to: Data,
        /// Length in bytes.
        len: u64,
    },
    /// Make bytes of a buffer zero, at once.
    Zero {
        /// The first of them.
        to: Data,
        /// Length in bytes.
        len: u64,
    },
    /// Compute a checksum of bytes, and report it with [`Event::Summed`](crate::shard::Event::Summed). Layouts store some:
    /// it must be the same in every version of the program.
    Sum {
        /// The disk.
        disk: DiskId,
        /// The I/O.
        io: IoId,
        /// The bytes.
        data: Data,
        /// Length in bytes.
        len: u64,
    },
    /// A layout reports something to the administrator.
    LayoutNotice {
        /// The disk.
        disk: DiskId,
        /// The report. In a box, because effects of requests are small.
        notice: Box<LayoutNotice>,
    },
    /// The result of [`Event::LayoutOrder`](crate::shard::Event::LayoutOrder).
    LayoutOrdered {
        /// The disk.
        disk: DiskId,
        /// Whether it is carried out.
        outcome: Result<(), OrderRefusal>,
    },
    /// Nothing of the disk is in flight, and its requests wait: the result of [`Event::Hold`](crate::shard::Event::Hold).
    Held {
        /// The disk.
        disk: DiskId,
    },
    /// The disk's layout has opened, or refuses to.
    Opened {
        /// Which disk.
        disk: DiskId,
        /// How it went.
        outcome: Result<(), Refusal>,
    },
    /// Complete a request of the front end.
    Answer {
        /// The disk.
        disk: DiskId,
        /// The front end's name for it.
        token: Token,
        /// The operation.
        op: Op,
        /// The result.
        outcome: Outcome,
    },
    /// Append these bytes to the filter's side file, then return the buffer with
    /// [`Event::SideWritten`](crate::shard::Event::SideWritten).
    SideWrite {
        /// The disk.
        disk: DiskId,
        /// The filter.
        filter: FilterKey,
        /// The bytes.
        buffer: Vec<u8>,
    },
    /// The disk's new filters are in place.
    Rearranged {
        /// The disk.
        disk: DiskId,
    },
    /// The disk is detached; no I/O of it is left here.
    Detached {
        /// The disk.
        disk: DiskId,
        /// What the disk has used of its limits, if anything. Pass it as
        /// [`Controlled::spent`](crate::shard::Controlled::spent) when the disk returns.
        spent: Option<Box<Spent>>,
    },
    /// Another I/O thread may start I/O on a datastore now. Send that thread
    /// [`Event::Woken`](crate::shard::Event::Woken).
    Wake {
        /// The datastore's control.
        control: ControlId,
        /// The number of that thread's scheduler.
        thread: usize,
    },
}

const _: () = assert!(
    size_of::<Effect>() <= 40,
    "effects are moved for each request"
);
