//! A disk between two I/O threads: the messages of its move.
//!
//! [`moving`](super::moving) sends and receives them.

use super::AttachedDisk;
use crate::device::ReplyTo;
use crate::device::nbd::Connection;
use crate::device::ring::RingDevice;
use crate::error::Result;
use crate::sys::buffers::MovingSlots;
use crate::sys::ring::Completion;
use std::sync::mpsc::Sender;
use tidegate_core::request::{Data, DiskId};
use tidegate_core::shard::Moving;
use tidegate_core::units::{Span, Time};

/// A disk has moved to another I/O thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The thread that it has left.
    pub from: usize,
    /// The thread that has it.
    pub to: usize,
    /// How long no thread served it.
    pub pause: Span,
    /// I/Os that were under way meanwhile, of guests, filters and layouts.
    pub in_flight: usize,
}

/// Sends a disk to another thread.
pub(crate) struct Leave {
    pub(crate) disk: DiskId,
    pub(crate) to: usize,
    pub(crate) reply: Sender<Result<Moved>>,
}

/// A disk that comes from another thread.
pub(crate) struct Arrive {
    pub(super) disk: DiskId,
    pub(super) place: AttachedDisk,
    pub(super) moving: Box<Moving>,
    pub(super) slots: MovingSlots,
    /// The destinations of requests in flight, by their buffer.
    pub(super) replies: Vec<(u32, ReplyTo)>,
    pub(super) queues: Vec<(u32, Box<RingDevice>)>,
    pub(super) connections: Vec<(u32, Box<Connection>)>,
    /// What has ended on the old ring by then, such as the receives of its clients.
    pub(super) ended: Vec<Completion>,
    /// Bytes that its NBD clients hold.
    pub(super) held: usize,
    pub(super) from: usize,
    pub(super) left: Time,
    pub(super) reply: Sender<Result<Moved>>,
}

/// Buffers of an arena that a thread gives for those that came with a disk.
pub(crate) struct GivenBuffers(pub(super) MovingSlots, pub(super) Vec<Data>);

/// The place of a number in a table; adds places up to it.
pub(super) fn slot_for<T>(table: &mut Vec<Option<T>>, number: u32) -> &mut Option<T> {
    let at = number as usize;
    if table.len() <= at {
        table.resize_with(at + 1, || None);
    }
    &mut table[at]
}
