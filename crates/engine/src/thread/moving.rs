//! A disk moves from this I/O thread to another, or comes from one, while its guests use it.
//!
//! The disk goes as one value through an inbox: its images, queues and connections, what the shard knows of it, and the buffers
//! of its requests. Operations stay on the ring that they were submitted to. Its thread passes their completions on
//! ([`Command::Forwarded`]). So no move waits for a datastore or for a client. Operations that end only when somebody
//! else acts (kicks, receives) are cancelled on the old ring and begin anew on the new one.
//!
//! # Always true
//! - everything that a turn of the old thread has published was signalled before the disk leaves
//! - the new thread asks for kicks, then polls each queue once: no kick is lost
//! - a completion reaches the disk behind the disk itself, in the same inbox
//!
//! # Picture
//! ```text
//!   handle ──Prepare──> new thread: has an arena, if the disk has layouts
//!   handle ──Leave────> old thread ──Arrive(disk, what has ended)──> new thread ──Moved──> handle
//!                       its ring ───Forwarded(completion)──> new thread
//!                       old thread <──Buffers── new thread (of the arena, in return)
//! ```

use super::commands::Command;
use super::moving_disk::{Arrive, GivenBuffers, Leave, Moved, slot_for};
use super::{COMPLETIONS_PER_TURN, IoThread};
use crate::device::ReplyTo;
use crate::device::nbd::Connection;
use crate::device::ring::RingDevice;
use crate::error::{Error, Kind, Result};
use crate::sys::os;
use crate::sys::ring::{Completion, Tag};
use crate::tag::{self, ImageId};
use std::sync::mpsc::Sender;
use tidegate_core::request::{Data, DiskId};
use tidegate_core::units::Span;

impl IoThread {
    /// Gets ready for a disk with layouts.
    pub(super) fn prepare(&mut self, reply: &Sender<Result<()>>) {
        let _ = reply.send(self.give_arena());
    }

    /// Sends a disk to another thread.
    pub(super) fn leave(&mut self, leave: Leave) {
        let Leave { disk, to, reply } = leave;
        let refusal = match self.attached_disk(disk) {
            None => Some((Kind::Gone, "the disk is not attached any more")),
            Some(place) if place.detaching.is_some() => Some((
                Kind::Gone,
                "the disk is being detached: it does not move any more",
            )),
            Some(_) => None,
        };
        if let Some((kind, text)) = refusal {
            let _ = reply.send(Err(Error::new(kind, text)));
            return;
        }
        let (from, left) = (self.number, os::now());
        if from == to {
            let moved = Moved {
                from,
                to,
                pause: Span::ZERO,
                in_flight: 0,
            };
            let _ = reply.send(Ok(moved));
            return;
        }
        // Nothing of this turn is left for the disk after this.
        self.run_effects();
        self.divide_time();
        self.tally.moved_out();
        let moving = self
            .cx
            .shard
            .take_out(self.cx.now, disk, &mut self.cx.effects);
        let moving = moving.expect("the shard has the thread's disks");
        let queues = self.take_queues(disk);
        let connections = self.take_connections(disk);
        self.cancel_waits_of_images(disk);
        let place = self.disks[disk.0 as usize].take();
        let place = place.expect("it was found above");
        self.note_timed();
        let of_layouts: Vec<u32> = moving.buffers().iter().map(|data| data.buffer).collect();
        let slots = self.cx.buffers.take_out(disk, &of_layouts);
        let replies = slots.numbers();
        let replies = replies.map(|buffer| (buffer, self.cx.waiting.take(buffer)));
        let replies = replies.filter(|(_, reply)| !matches!(reply, ReplyTo::Nobody));
        let mut arrive = Arrive {
            disk,
            place,
            moving,
            replies: replies.collect(),
            slots,
            queues,
            connections,
            ended: Vec::new(),
            held: self.cx.budget.take_out(disk),
            from,
            left,
            reply,
        };
        self.wake_all_governors();
        // The kernel looks at descriptors and lists now: afterwards they are the other thread's.
        self.cx.ring.submit();
        arrive.ended = self.reap_for(disk);
        let arrive = Command::Arrive(Box::new(arrive));
        self.peers.send_disk(disk, to, arrive);
    }

    /// Handles what the ring has posted, but for a disk that leaves: returns its completions. The receives that were cancelled are
    /// among them. So the new thread serves the disk's clients in the turn in which it gets the disk.
    fn reap_for(&mut self, disk: DiskId) -> Vec<Completion> {
        let mut left = self.cx.ring.posted();
        let mut of_disk = Vec::new();
        let mut completions = std::mem::take(&mut self.completions);
        while left > 0 {
            self.cx
                .ring
                .reap(left.min(COMPLETIONS_PER_TURN), &mut completions);
            self.tally
                .completions_begin(|| completions.first().map(|first| first.tag.kind));
            left = left.saturating_sub(completions.len().max(1));
            for completion in completions.drain(..) {
                match self.moved_disk(completion.tag) == Some(disk) {
                    true => of_disk.push(completion),
                    false => self.completed(completion),
                }
            }
        }
        self.completions = completions;
        of_disk
    }

    /// Takes the queues of a disk. Their guests are called for all that was published.
    fn take_queues(&mut self, disk: DiskId) -> Vec<(u32, Box<RingDevice>)> {
        let queues = (0..).zip(&self.queues);
        let of_disk = queues.filter_map(|(index, queue)| {
            let queue = queue.as_ref().filter(|queue| queue.disk() == disk);
            queue.map(|_| index)
        });
        let of_disk: Vec<u32> = of_disk.collect();
        let mut taken = Vec::with_capacity(of_disk.len());
        for index in of_disk {
            self.call_before_leaving(index);
            if let Some(mut queue) = self.queues[index as usize].take() {
                queue.ignore_kicks(index, &mut self.cx.ring);
                queue.active = false;
                taken.push((index, queue));
            }
        }
        let is_here = |index: &u32| self.queues[*index as usize].is_some();
        self.active.retain(is_here);
        taken
    }

    /// Takes the NBD connections of a disk.
    fn take_connections(&mut self, disk: DiskId) -> Vec<(u32, Box<Connection>)> {
        let mut taken = Vec::new();
        for (index, place) in (0..).zip(&mut self.connections) {
            if let Some(mut connection) = place.take_if(|connection| connection.disk() == disk) {
                connection.leave(index, &mut self.cx.ring);
                taken.push((index, connection));
            }
        }
        for (index, _) in &taken {
            let at = *index as usize;
            if self.moved_connections.len() <= at {
                self.moved_connections.resize(at + 1, None);
            }
            self.moved_connections[at] = Some(disk);
            self.cx.budget.wait_no_more(*index);
            self.backlog.remove(*index);
            self.connection_count -= 1;
        }
        taken
    }

    fn cancel_waits_of_images(&mut self, disk: DiskId) {
        let place = self.attached_disk(disk);
        let images = place.into_iter().flat_map(|place| place.images.all());
        let images: Vec<ImageId> = images.map(|member| member.id).collect();
        for id in images {
            self.with_image(id, |image, cx| image.leave(cx));
        }
    }

    /// Takes in a disk that comes from another thread.
    pub(super) fn arrive(&mut self, arrive: Arrive) {
        let Arrive {
            disk,
            place,
            moving,
            slots,
            replies,
            queues,
            connections,
            ended,
            held,
            from,
            left,
            reply,
        } = arrive;
        let (in_flight, came) = (moving.in_flight(), moving.buffers().len());
        // Time does not run backwards for the disk: this turn may have begun before the other thread's last one.
        self.cx.now = self.cx.now.max(left);
        if moving.has_layout()
            && let Err(error) = self.give_arena()
        {
            // It got one before the move, unless its layout is newer.
            tracing::error!(%error, "a disk with a layout moved here");
        }
        self.cx.buffers.put_in(slots);
        for (buffer, reply) in replies {
            self.cx.waiting.set(buffer, reply);
        }
        let at = disk.0 as usize;
        if self.disks.len() <= at {
            self.disks.resize_with(at + 1, || None);
        }
        assert!(self.disks[at].is_none(), "a disk is on one thread");
        let io = place.io;
        self.disks[at] = Some(place);
        self.note_timed();
        for (index, mut queue) in queues {
            if !queue.is_stopping() {
                // One that stops needs no kicks, and would be dropped with its watch.
                queue.watch_kicks(index, &mut self.cx.ring);
            }
            // The guest may have kicked before the watch began: poll once.
            queue.wake();
            queue.last_request = self.cx.now;
            queue.flow.moved();
            // The default may have changed meanwhile.
            queue.set_io(&io, self.coalesce, self.dense);
            *slot_for(&mut self.queues, index) = Some(queue);
            self.active.push(index);
        }
        self.cx.budget.put_in(disk, held);
        for (index, mut connection) in connections {
            connection.flow.moved();
            *slot_for(&mut self.connections, index) = Some(connection);
            self.connection_count += 1;
            self.cx.note_ready_connection(index);
        }
        let given = self
            .cx
            .shard
            .take_in(self.cx.now, disk, moving, &mut self.cx.effects);
        if came > 0 {
            self.return_buffers(from, given);
        }
        for completion in ended {
            self.completed(completion);
        }
        self.tally.moved_in();
        self.wake_all_governors();
        let moved = Moved {
            from,
            to: self.number,
            pause: os::now().since(left),
            in_flight,
        };
        // Whoever asked for the move may be gone.
        let _ = reply.send(Ok(moved));
    }

    /// Gives the thread that a disk has left buffers for those that came with it, as far as there are free ones.
    fn return_buffers(&mut self, to: usize, given: Vec<Data>) {
        let numbers: Vec<u32> = given.iter().map(|data| data.buffer).collect();
        let slots = self.cx.buffers.take_numbers(&numbers);
        let given = GivenBuffers(slots, given);
        self.peers
            .inbox(to)
            .send_always(Command::Buffers(Box::new(given)));
    }

    /// Takes buffers for those that left with a disk. New ones replace those for which there were none: disks that are still
    /// here wait for them.
    pub(super) fn take_buffers(&mut self, given: GivenBuffers) {
        let GivenBuffers(slots, given) = given;
        self.cx.buffers.put_in(slots);
        self.cx.shard.give_arena(given);
        if let Err(error) = self.give_arena() {
            tracing::error!(%error, "a disk with a layout has left with buffers");
        }
        self.cx.use_given_arena();
    }

    /// A completion of this ring is for something that is not here: if its disk has moved, passes it on.
    #[cold]
    pub(super) fn forward(&mut self, completion: Completion) {
        if let Some(disk) = self.moved_disk(completion.tag) {
            // If the disk is detached, nothing of it was in flight that matters.
            let _ = self.pass_on(disk, Command::Forwarded(completion));
        }
    }

    /// The disk that an operation was for, if it is not here.
    fn moved_disk(&self, tag: Tag) -> Option<DiskId> {
        match tag.kind {
            tag::IMAGE => {
                let disk = ImageId::from_owner(tag.owner).disk();
                self.attached_disk(disk).is_none().then_some(disk)
            }
            tag::RECEIVE | tag::SEND | tag::HANG_UP => {
                let at = tag.owner as usize;
                let is_here = self.connections.get(at).is_some_and(Option::is_some);
                let moved = self.moved_connections.get(at).copied().flatten();
                moved.filter(|_| !is_here)
            }
            // A kick: the disk's thread has polled the queue meanwhile.
            _ => None,
        }
    }

    /// Passes a command on to the thread of its disk, which is not here. That may be this thread, if the disk is in its inbox.
    /// Returns the command if no thread has the disk.
    pub(super) fn pass_on(&self, disk: DiskId, command: Command) -> Option<Command> {
        let Some(home) = self.peers.home(disk) else {
            return Some(command);
        };
        // As many as there are operations and commands in flight.
        self.peers.inbox(home).send_always(command);
        None
    }
}
