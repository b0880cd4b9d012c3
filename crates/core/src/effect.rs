//! Effects: what the engine (or the simulator) must do for an I/O thread's [`Shard`](crate::shard::Shard).
//!
//! Plain values. Stack and shard append them to a list; the engine performs them in order.

use crate::filter::FilterKey;
use crate::iocontrol::Spent;
use crate::request::{Data, DiskId, Flags, IoId, Op, Outcome, Token};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Names the I/O control of one datastore on all I/O threads of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ControlId(pub u32);

impl ControlId {
    /// What stands for no control at all: none has this number.
    pub const NONE: ControlId = ControlId(u32::MAX);
}

/// What an I/O thread must do, in the order given.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Give this I/O to the disk's datastore, and report its end with [`Event::Finished`](crate::shard::Event::Finished).
    Start {
        /// Of which disk.
        disk: DiskId,
        /// Which.
        io: IoId,
        /// What is asked.
        op: Op,
        /// How.
        flags: Flags,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        len: u64,
        /// The bytes.
        data: Data,
    },
    /// Tell the front end how its request ended.
    Answer {
        /// Of which disk.
        disk: DiskId,
        /// The front end's name for it.
        token: Token,
        /// What it was.
        op: Op,
        /// How it ended.
        outcome: Outcome,
    },
    /// Append these bytes to the filter's side file, then hand the buffer back with [`Event::SideWritten`](crate::shard::Event::SideWritten).
    SideWrite {
        /// Of which disk.
        disk: DiskId,
        /// Whose.
        filter: FilterKey,
        /// The bytes.
        buffer: Vec<u8>,
    },
    /// The disk has its new filters.
    Rearranged {
        /// Which disk.
        disk: DiskId,
    },
    /// Nothing of the disk is left here.
    Detached {
        /// Which disk.
        disk: DiskId,
        /// What it has used of its limits, if anything: for [`Controlled::spent`](crate::shard::Controlled::spent) should it come back.
        spent: Option<Box<Spent>>,
    },
    /// It is another I/O thread's turn at a datastore: tell it, by [`Event::Woken`](crate::shard::Event::Woken).
    Wake {
        /// Which datastore's control.
        control: ControlId,
        /// Which thread, as its scheduler was numbered.
        thread: usize,
    },
}
