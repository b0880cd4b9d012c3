//! What happens to an I/O thread, and what it must do: the words between the engine and a [`super::Shard`].
//!
//! Plain values only; the engine (or the simulator) makes events and carries out effects.

use crate::iocontrol::{DiskKey, Orders, Policy, Scheduler, Spent};
use crate::request::{Data, DiskId, Flags, IoId, Op, Outcome, Request, Token};
use crate::stack::{FilterKey, Place, Stack};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Names the I/O control of one datastore on all I/O threads of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ControlId(pub u32);

impl ControlId {
    /// What stands for no control at all: none has this number.
    pub const NONE: ControlId = ControlId(u32::MAX);
}

/// How a disk stands under I/O control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controlled {
    /// Its datastore's control, which this thread has been given before.
    pub control: ControlId,
    /// The disk, as every host names it.
    pub key: DiskKey,
    /// What it may and shall get.
    pub policy: Policy,
    /// What it had used of its limits when it was here last, as [`Effect::Detached`] told it.
    pub spent: Option<Box<Spent>>,
}

/// What happens to an I/O thread.
pub enum Event {
    /// A front end has a request.
    Submitted {
        /// For which disk.
        disk: DiskId,
        /// The front end's name for it.
        token: Token,
        /// The request.
        request: Request,
    },
    /// The datastore has ended an I/O that an [`Effect::Start`] gave it.
    Finished {
        /// Of which disk.
        disk: DiskId,
        /// Which.
        io: IoId,
        /// How.
        outcome: Outcome,
    },
    /// Whoever asked these requests is gone. Those that the datastore does not have yet are answered `Gone` at once; the
    /// others are answered when they end, as ever. A request that was answered before is no matter.
    Abandon {
        /// Of which disk.
        disk: DiskId,
        /// Which.
        tokens: Vec<Token>,
    },
    /// The moment of [`Shard::deadline`](super::Shard::deadline) has come.
    Ticked,
    /// Bytes of a filter's [`Effect::SideWrite`] are on their file, or could not be put there.
    SideWritten {
        /// Of which disk.
        disk: DiskId,
        /// Whose.
        filter: FilterKey,
        /// The buffer, to be used again.
        buffer: Vec<u8>,
        /// How it went.
        outcome: Outcome,
    },
    /// A disk comes to this thread.
    Attach {
        /// Under this name.
        disk: DiskId,
        /// Bytes it holds.
        size: u64,
        /// Whether writes are refused.
        read_only: bool,
        /// Its filters.
        stack: Stack,
        /// Whether its I/Os wait for their turn, and by what policy.
        control: Option<Box<Controlled>>,
    },
    /// The disk's filters are to be these from now on; answered by [`Effect::Rearranged`].
    Rearrange {
        /// Which disk.
        disk: DiskId,
        /// Top first.
        places: Vec<Place>,
    },
    /// The disk's size is to be this from now on.
    Resize {
        /// Which disk.
        disk: DiskId,
        /// Bytes.
        size: u64,
    },
    /// The disk goes; answered by [`Effect::Detached`] once nothing of it is in flight.
    Detach {
        /// Which disk.
        disk: DiskId,
    },
    /// A datastore comes under control: this is its scheduler here.
    Control {
        /// Under this name.
        control: ControlId,
        /// Without disks.
        scheduler: Box<Scheduler>,
    },
    /// A datastore's control goes; none of its disks is here any more.
    Release {
        /// Which.
        control: ControlId,
    },
    /// The governor's orders for a datastore.
    Steer {
        /// Whose.
        control: ControlId,
        /// They hold from now on.
        orders: Orders,
    },
    /// The disk's policy is to be this from now on. A disk without control has none, and nothing changes.
    Policy {
        /// Which disk.
        disk: DiskId,
        /// From now on.
        policy: Policy,
    },
    /// Another I/O thread has found that it is this one's turn at a datastore ([`Effect::Wake`]).
    Woken {
        /// Which.
        control: ControlId,
    },
}

/// What an I/O thread must do, in the order given.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Give this I/O to the disk's datastore, and report its end with [`Event::Finished`].
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
    /// Append these bytes to the filter's side file, then hand the buffer back with [`Event::SideWritten`].
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
        /// What it has used of its limits, if anything: for [`Controlled::spent`] should it come back.
        spent: Option<Box<Spent>>,
    },
    /// It is another I/O thread's turn at a datastore: tell it, by [`Event::Woken`].
    Wake {
        /// Which datastore's control.
        control: ControlId,
        /// Which thread, as its scheduler was numbered.
        thread: usize,
    },
}
