//! Events: what the engine (or the simulator) reports to a [`super::Shard`].
//!
//! Plain values only; the engine (or the simulator) makes events and carries out effects.

use crate::effect::ControlId;
use crate::filter::FilterKey;
use crate::iocontrol::{DiskKey, Orders, Policy, Scheduler, Spent};
use crate::request::{DiskId, IoId, Outcome, Request, Token};
use crate::stack::{Place, Stack};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// How a disk stands under I/O control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controlled {
    /// Its datastore's control, which this thread has been given before.
    pub control: ControlId,
    /// The disk, as every host names it.
    pub key: DiskKey,
    /// What it may and shall get.
    pub policy: Policy,
    /// What it had used of its limits when it was here last, as [`Effect::Detached`](crate::effect::Effect::Detached) told it.
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
    /// The datastore has ended an I/O that an [`Effect::Start`](crate::effect::Effect::Start) gave it.
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
    /// Bytes of a filter's [`Effect::SideWrite`](crate::effect::Effect::SideWrite) are on their file, or could not be put there.
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
    /// The disk's filters are to be these from now on; answered by [`Effect::Rearranged`](crate::effect::Effect::Rearranged).
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
    /// The disk goes; answered by [`Effect::Detached`](crate::effect::Effect::Detached) once nothing of it is in flight.
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
    /// Another I/O thread has found that it is this one's turn at a datastore ([`Effect::Wake`](crate::effect::Effect::Wake)).
    Woken {
        /// Which.
        control: ControlId,
    },
}
