//! The part of an I/O thread that its devices use: they claim buffers, submit requests, and note what they have to do.
//!
//! The thread owns one. It also takes from here what the shard wants done, and hands the answers to the devices.

use super::ReplyTo;
use super::nbd_budget::Budget;
use crate::sys::buffers::Buffers;
use crate::sys::ring::Ring;
use tidegate_core::effect::Effect;
use tidegate_core::request::{DiskId, Request, Token};
use tidegate_core::shard::{Event, Shard};
use tidegate_core::units::Time;

/// I/Os that the shard holds before it first allocates.
pub(crate) const IN_FLIGHT: usize = 1024;

/// What a device uses of its thread to hand requests over.
pub(crate) struct ThreadCx {
    pub(crate) now: Time,
    pub(crate) ring: Ring,
    pub(crate) buffers: Buffers,
    pub(crate) shard: Shard,
    pub(crate) effects: Vec<Effect>,
    /// By buffer: who waits for the request that it belongs to.
    pub(crate) waiting: Vec<ReplyTo>,
    /// Queues with answers that their guests do not see yet.
    pub(crate) dirty: Vec<u32>,
    /// Connections that have something to send or decode.
    pub(crate) ready_connections: Vec<u32>,
    /// What all connections together hold.
    pub(crate) budget: Budget,
    /// Whether an answer was the last that happened, rather than a request: its guest may ask again.
    pub(crate) answered_last: bool,
    /// Requests handed to the shard, ever.
    pub(crate) submitted: u64,
}

impl ThreadCx {
    pub(crate) fn new(ring: Ring, now: Time) -> ThreadCx {
        ThreadCx {
            now,
            ring,
            buffers: Buffers::new(),
            shard: Shard::new(IN_FLIGHT),
            effects: Vec::with_capacity(2 * IN_FLIGHT),
            waiting: Vec::with_capacity(IN_FLIGHT),
            dirty: Vec::new(),
            ready_connections: Vec::new(),
            budget: Budget::default(),
            answered_last: false,
            submitted: 0,
        }
    }

    /// Hands a request to the shard, which carries it on with the turn's others. `request.data.buffer` names a claimed
    /// buffer, which comes back with the answer.
    // Inline, so that the request is built where the shard takes it, and not in memory first.
    #[inline(always)]
    pub(crate) fn submit(&mut self, disk: DiskId, request: Request, reply: ReplyTo) {
        let buffer = request.data.buffer;
        if self.waiting.len() <= buffer as usize {
            self.waiting
                .resize_with(buffer as usize + 1, || ReplyTo::Nobody);
        }
        self.waiting[buffer as usize] = reply;
        self.answered_last = false;
        self.submitted += 1;
        let event = Event::Submitted {
            disk,
            token: Token(buffer.into()),
            request,
        };
        self.shard.gather(self.now, event, &mut self.effects);
    }

    /// The client of a connection is gone: nobody waits for what of it has not started. Each is answered all the same, for
    /// its buffer.
    #[cold]
    pub(crate) fn abandon(&mut self, disk: DiskId, connection: u32) {
        let of_it = |reply: &ReplyTo| matches!(reply, ReplyTo::Nbd { connection: of, .. } if *of == connection);
        let waiting = (0..).zip(&self.waiting);
        let tokens = waiting.filter_map(|(buffer, reply)| of_it(reply).then_some(Token(buffer)));
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

    /// Has the shard carry on what was handed to it.
    pub(crate) fn flow(&mut self) {
        self.shard.flow(self.now, &mut self.effects);
    }

    /// This queue has answers to show.
    pub(crate) fn note_dirty(&mut self, queue: u32) {
        self.dirty.push(queue);
    }

    /// This connection has something to do.
    pub(crate) fn note_ready_connection(&mut self, connection: u32) {
        self.ready_connections.push(connection);
    }
}
