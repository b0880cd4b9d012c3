//! The part of an I/O thread that its devices use: they claim buffers, submit requests, and note pending work.
//!
//! Each I/O thread owns one. The thread also takes the shard's effects from here, and passes completions to the
//! devices.

use super::ReplyTo;
use super::nbd_budget::Budget;
use crate::numbered::Numbered;
use crate::sys::buffers::Buffers;
use crate::sys::ring::Ring;
use tidegate_core::effect::Effect;
use tidegate_core::request::{DiskId, IoId, Request, Token};
use tidegate_core::shard::{Event, Shard};
use tidegate_core::units::Time;

/// I/Os of all disks for which the thread has room before it allocates, and of each disk.
pub(crate) const IN_FLIGHT: usize = 1024;
const IN_FLIGHT_OF_DISK: usize = 64;

/// The part of a thread through which a device submits requests.
pub(crate) struct ThreadCx {
    pub(crate) now: Time,
    pub(crate) ring: Ring,
    pub(crate) buffers: Buffers,
    pub(crate) shard: Shard,
    pub(crate) effects: Vec<Effect>,
    /// By buffer: the destination of its request's completion.
    pub(crate) waiting: Numbered<ReplyTo>,
    /// Queues with completions that are not published yet.
    pub(crate) dirty: Vec<u32>,
    /// Connections that have data to send or decode.
    pub(crate) ready_connections: Vec<u32>,
    /// The memory that all connections together hold.
    pub(crate) budget: Budget,
    /// Whether the last event was a completion, not a request: its guest may submit again soon.
    pub(crate) answered_last: bool,
    /// Requests submitted to the shard, ever.
    pub(crate) submitted: u64,
}

impl ThreadCx {
    /// That of the thread with this number.
    pub(crate) fn new(thread: usize, ring: Ring, buffers: Buffers, now: Time) -> ThreadCx {
        ThreadCx {
            now,
            ring,
            buffers,
            shard: Shard::new(IN_FLIGHT_OF_DISK),
            effects: Vec::with_capacity(2 * IN_FLIGHT),
            waiting: Numbered::new(thread, IN_FLIGHT),
            dirty: Vec::new(),
            ready_connections: Vec::new(),
            budget: Budget::default(),
            answered_last: false,
            submitted: 0,
        }
    }

    /// Submits a request to the shard, which processes it with the others of this turn. `request.data.buffer` names a
    /// claimed buffer, which the completion returns.
    // Inline, so that the request is built directly in the shard's queue.
    #[inline(always)]
    pub(crate) fn submit(&mut self, disk: DiskId, request: Request, reply: ReplyTo) {
        let buffer = request.data.buffer;
        self.waiting.set(buffer, reply);
        self.answered_last = false;
        self.submitted += 1;
        let event = Event::Submitted {
            disk,
            token: Token(buffer.into()),
            request,
        };
        self.shard.gather(self.now, event, &mut self.effects);
    }

    /// The client of a connection is gone: drops its requests that have not started. Each still completes, to return
    /// its buffer.
    #[cold]
    pub(crate) fn abandon(&mut self, disk: DiskId, connection: u32) {
        let is_of_client = |reply: &ReplyTo| matches!(reply, ReplyTo::Nbd { connection: of, .. } if *of == connection);
        let waiting = self.waiting.iter();
        let tokens = waiting
            .filter_map(|(buffer, reply)| is_of_client(reply).then_some(Token(buffer.into())));
        let event = Event::Abandon {
            disk,
            tokens: tokens.collect(),
        };
        self.handle(event);
    }

    /// Has the shard handle an event at once. Its effects are carried out later in the turn.
    pub(crate) fn handle(&mut self, event: Event) {
        self.shard.handle(self.now, event, &mut self.effects);
    }

    /// The shard gets a checksum that it asked for. What waits for it goes on with the others of this turn.
    pub(crate) fn summed(&mut self, disk: DiskId, io: IoId, sum: u32) {
        let event = Event::Summed { disk, io, sum };
        self.shard.gather(self.now, event, &mut self.effects);
    }

    /// Lets the shard process the submitted requests.
    pub(crate) fn flow(&mut self) {
        self.shard.flow(self.now, &mut self.effects);
    }

    /// Layouts that wait for buffers use those that were given.
    pub(crate) fn use_given_arena(&mut self) {
        self.shard.use_given_arena(self.now, &mut self.effects);
    }

    /// This queue has completions to publish.
    pub(crate) fn note_dirty(&mut self, queue: u32) {
        self.dirty.push(queue);
    }

    /// This connection has work to do.
    pub(crate) fn note_ready_connection(&mut self, connection: u32) {
        self.ready_connections.push(connection);
    }
}
