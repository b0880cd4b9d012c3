//! Events: what the engine (or the simulator) reports to a [`super::Shard`].
//!
//! Plain values only; the engine (or the simulator) makes events and carries out effects.

use crate::block::BLOCK;
use crate::effect::ControlId;
use crate::filter::FilterKey;
use crate::iocontrol::{Orders, Policy, Scheduler};
use crate::layout::{CacheChange, LayoutOrder, Tree};
use crate::qos::Controlled;
use crate::request::{DiskId, Fault, IoId, Outcome, Request, Token};
use crate::stack::{Place, Stack};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// An event of an I/O thread.
#[expect(
    clippy::large_enum_variant,
    reason = "a disk is attached rarely, and events are not stored"
)]
pub enum Event {
    /// A front end has a request.
    Submitted {
        /// The disk.
        disk: DiskId,
        /// The front end's name for it.
        token: Token,
        /// The request.
        request: Request,
    },
    /// The datastore has completed an I/O of an [`Effect::Start`](crate::effect::Effect::Start).
    Finished {
        /// The disk.
        disk: DiskId,
        /// The I/O.
        io: IoId,
        /// The result.
        outcome: Outcome,
    },
    /// A block of a layout's own was read or written
    /// ([`Effect::ReadBlock`](crate::effect::Effect::ReadBlock), [`Effect::WriteBlock`](crate::effect::Effect::WriteBlock)).
    BlockDone {
        /// Of which disk.
        disk: DiskId,
        /// Which I/O.
        io: IoId,
        /// What was read.
        outcome: Result<Option<Box<[u8; BLOCK]>>, Fault>,
    },
    /// The checksum of an [`Effect::Sum`](crate::effect::Effect::Sum).
    Summed {
        /// The disk.
        disk: DiskId,
        /// The I/O.
        io: IoId,
        /// The checksum.
        sum: u32,
    },
    /// An order to the disk's layouts, answered by [`Effect::LayoutOrdered`](crate::effect::Effect::LayoutOrdered).
    LayoutOrder {
        /// The disk.
        disk: DiskId,
        /// The order.
        order: LayoutOrder,
    },
    /// Lets the disk's I/O end and its requests wait; then [`Effect::Held`](crate::effect::Effect::Held). Work of the
    /// layouts in the background ends. A disk that is already held, changes or detaches ignores it.
    Hold {
        /// The disk.
        disk: DiskId,
    },
    /// Lets requests go on that wait for [`Event::Hold`], if the disk is not held yet.
    Unhold {
        /// The disk.
        disk: DiskId,
    },
    /// A held disk goes on, over these layouts. Answered by [`Effect::Opened`](crate::effect::Effect::Opened).
    Relay {
        /// The disk.
        disk: DiskId,
        /// The layouts; `None` for one image.
        tree: Option<Box<Tree>>,
    },
    /// A held disk goes on, and its flash cache changes before; its layouts stay. Answered by
    /// [`Effect::Opened`](crate::effect::Effect::Opened). If a cache that is added is refused, the disk is held again until
    /// it is removed.
    ChangeCache {
        /// The disk.
        disk: DiskId,
        /// The change.
        change: CacheChange,
    },
    /// The client of these requests has disconnected. Requests that the datastore does not have yet are answered `Gone`
    /// at once. The others are answered when they complete. A request that was already answered is ignored.
    Abandon {
        /// The disk.
        disk: DiskId,
        /// The requests.
        tokens: Vec<Token>,
    },
    /// The time of [`Shard::deadline`](super::Shard::deadline) has come.
    Ticked,
    /// The bytes of a filter's [`Effect::SideWrite`](crate::effect::Effect::SideWrite) are written, or the write
    /// failed.
    SideWritten {
        /// The disk.
        disk: DiskId,
        /// The filter.
        filter: FilterKey,
        /// The buffer, for reuse.
        buffer: Vec<u8>,
        /// The result.
        outcome: Outcome,
    },
    /// Attaches a disk to this thread.
    Attach {
        /// Its number here.
        disk: DiskId,
        /// Its size in bytes.
        size: u64,
        /// Whether writes are rejected.
        read_only: bool,
        /// Its filters.
        stack: Stack,
        /// Its I/O control, if its datastore is under control.
        control: Option<Box<Controlled>>,
    },
    /// Replaces the disk's filters. [`Effect::Rearranged`](crate::effect::Effect::Rearranged) answers.
    Rearrange {
        /// The disk.
        disk: DiskId,
        /// Top first.
        places: Vec<Place>,
    },
    /// Changes the disk's size.
    Resize {
        /// The disk.
        disk: DiskId,
        /// The new size in bytes.
        size: u64,
    },
    /// Detaches the disk. [`Effect::Detached`](crate::effect::Effect::Detached) answers once none of its I/Os is in
    /// flight.
    Detach {
        /// The disk.
        disk: DiskId,
    },
    /// Puts a datastore under control, with this scheduler.
    Control {
        /// Its number here.
        control: ControlId,
        /// The scheduler, without disks.
        scheduler: Box<Scheduler>,
    },
    /// Ends a datastore's control. None of its disks is attached any more.
    Release {
        /// The control.
        control: ControlId,
    },
    /// The governor's orders for a datastore.
    Steer {
        /// The control.
        control: ControlId,
        /// The orders, valid from now on.
        orders: Orders,
    },
    /// Changes the controls of a disk, because its images are on other datastores from now on. I/O that is queued or in
    /// flight stays where it is. A disk that becomes one image, or more, is held ([`Event::Hold`]).
    Controls {
        /// The disk.
        disk: DiskId,
        /// Its new controls; `None` for none. What it has used of its limits stays used.
        controlled: Option<Box<Controlled>>,
    },
    /// Changes the disk's policy. A disk without control has none, and nothing changes.
    Policy {
        /// The disk.
        disk: DiskId,
        /// The new policy.
        policy: Policy,
    },
    /// Another I/O thread has found that this one should start I/O on a datastore
    /// ([`Effect::Wake`](crate::effect::Effect::Wake)).
    Woken {
        /// The control.
        control: ControlId,
    },
}
