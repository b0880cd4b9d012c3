//! The commands that other threads send to an I/O thread, and their execution.
//!
//! The handles of [`crate::handle`] and the vhost-user protocol threads send [`Command`]s. Each that can take a while
//! has a channel for its result. Nothing here is on the I/O path.

use super::blocks::Blocks;
use super::close::{Close, ClosedImage};
use super::images::Images;
use super::layouts::{LayoutParts, Opened, PendingOrder, Relay, Replace};
use super::moving_disk::{Arrive, GivenBuffers, Leave, slot_for};
use super::side_write::SideWrite;
use super::{AttachedDisk, IoThread};
pub(crate) use super::{OnDetached, Reply};
use crate::blocking::Done;
use crate::control::{DiskControl, Govern};
use crate::counters::DiskCounters;
use crate::datastore::OpenedImage;
use crate::device::nbd::Connection;
use crate::device::ring::{Parts, RingDevice};
use crate::disk_spec::{DenseSettings, IoSettings, NoticeSink};
use crate::error::{Error, Kind};
use crate::inbox;
use crate::sys::eventfd::EventFd;
use crate::sys::ring::Completion;
use crate::tag::ImageId;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use tidegate_core::coalesce::Coalesce;
use tidegate_core::effect::ControlId;
use tidegate_core::filter::FilterKey;
use tidegate_core::iocontrol::{Policy, Spent};
use tidegate_core::layout::LayoutOrder;
use tidegate_core::request::DiskId;
use tidegate_core::round_robin::Allowance;
use tidegate_core::shard::Event;
use tidegate_core::stack::{Place as FilterPlace, Stack};
use tidegate_front::nbd::session::Session;

pub(crate) use report::ChangeSearch;
pub(crate) use report::Query;
pub use report::{DiskCurves, DiskPulse, DiskReading, ThreadPulse, ThreadReport};

mod control;
mod report;

/// The inbox of an I/O thread.
pub(crate) type Inbox = inbox::Inbox<Command>;

/// A message to an I/O thread.
pub(crate) enum Command {
    Attach(Box<Attach>),
    Change(Box<Change>),
    AttachQueue(Box<AttachQueue>),
    StopQueue(StopQueue),
    Nbd(Box<NbdConnection>),
    /// How completions are coalesced, of disks that have no setting of their own.
    DefaultCoalesce(Coalesce),
    /// Get ready for a disk with layouts.
    Prepare(Sender<Result<(), Error>>),
    Leave(Leave),
    Arrive(Box<Arrive>),
    /// A completion of another thread's ring for a disk that has moved.
    Forwarded(Completion),
    /// Buffers for those that left with a disk.
    Buffers(Box<GivenBuffers>),
    /// Dense mode begins, with these details, or ends.
    Dense(Option<DenseSettings>),
    /// A query for statistics of the thread or its disks.
    Query(Query),
    /// A task of an image has run on the blocking worker.
    BlockingDone(ImageId, Done),
    /// For a datastore's control.
    Govern(ControlId, Box<Govern>),
    /// A datastore's window has room for this thread.
    Woken(ControlId),
    Stop,
    /// Runs a closure on the thread, for tests.
    #[cfg(test)]
    Run(Box<dyn FnOnce(&mut IoThread) + Send>),
}

/// Attaches a disk to this thread.
pub(crate) struct Attach {
    pub(crate) disk: DiskId,
    pub(crate) size: u64,
    pub(crate) read_only: bool,
    pub(crate) stack: Stack,
    pub(crate) sides: Vec<(FilterKey, Arc<OwnedFd>)>,
    /// One for each target, in order.
    pub(crate) images: Vec<OpenedImage>,
    /// For a disk that is more than one image.
    pub(crate) layout: Option<LayoutParts>,
    pub(crate) notices: Option<NoticeSink>,
    pub(crate) io: IoSettings,
    pub(crate) control: Option<Box<DiskControl>>,
    /// Told when the disk takes requests.
    pub(crate) opened: Opened,
}

/// Changes a disk.
pub(crate) struct Change {
    pub(crate) disk: DiskId,
    pub(crate) what: What,
    pub(crate) reply: Reply,
}

/// What changes.
pub(crate) enum What {
    /// Its filters, top first; and their side files.
    Filters {
        places: Vec<FilterPlace>,
        sides: Vec<(FilterKey, Arc<OwnedFd>)>,
    },
    /// Its size and that of each image, in bytes. None: the images stay as they are.
    Size { disk: u64, image: Option<u64> },
    /// The image of a target.
    Image(Box<Replace>),
    /// An order to its layout.
    Order(LayoutOrder),
    /// One more member of its mirror, with this image.
    AddMember(Box<OpenedImage>),
    /// What lies below its filters.
    Relay(Box<Relay>),
    /// It does not wait any longer for a change of that.
    Unhold,
    /// Its requests go on after [`Relay::Pause`].
    Resume,
    /// Its share of the datastore: shares, reservation and limits.
    Policy(Box<Policy>),
    /// Its share of this thread, and how its completions are coalesced.
    Io(IoSettings),
    /// Detaches the disk. Answered when nothing of it is left; `on_detached` is called then, even if the caller has
    /// timed out.
    Detach { on_detached: OnDetached },
}

impl Command {
    /// The attached disk that it is for, if it is for one.
    fn disk(&self) -> Option<DiskId> {
        match self {
            Command::Change(change) => Some(change.disk),
            Command::AttachQueue(attach) => Some(attach.parts.disk),
            Command::StopQueue(stop) => Some(stop.disk),
            Command::Nbd(connection) => Some(connection.disk),
            Command::Leave(leave) => Some(leave.disk),
            Command::Query(query) => query.disk(),
            Command::BlockingDone(image, _) => Some(image.disk()),
            Command::Attach(_)
            | Command::DefaultCoalesce(_)
            | Command::Dense(_)
            | Command::Prepare(_)
            | Command::Arrive(_)
            | Command::Forwarded(_)
            | Command::Buffers(_)
            | Command::Govern(..)
            | Command::Woken(_)
            | Command::Stop => None,
            #[cfg(test)]
            Command::Run(_) => None,
        }
    }
}

impl What {
    /// Whether it may run during a change of filters, which I/O in flight can delay for long. True for changes that
    /// speed up that I/O, and for a detach.
    fn may_run_during_change(&self) -> bool {
        match self {
            What::Filters { .. } | What::Size { .. } | What::Relay(_) => false,
            What::Image(_)
            | What::Order(_)
            | What::AddMember(_)
            | What::Policy(_)
            | What::Io(_)
            | What::Unhold
            | What::Resume
            | What::Detach { .. } => true,
        }
    }
}

/// Attaches a guest's queue; the answer is its index here.
pub(crate) struct AttachQueue {
    pub(crate) parts: Parts,
    pub(crate) reply: Sender<u32>,
}

/// Changes a guest's queue.
pub(crate) struct StopQueue {
    pub(crate) disk: DiskId,
    pub(crate) queue: u32,
    pub(crate) what: QueueChange,
}

/// What changes.
pub(crate) enum QueueChange {
    /// Stops it; the answer, once nothing of it is in flight, is the position for a successor.
    Stop(Sender<u16>),
    /// Replaces the descriptor through which its guest is called. It is answered, and the front end sends nothing else before:
    /// while the disk moves, a later command may overtake it.
    Call(Option<EventFd>, Sender<()>),
}

/// Adds an NBD client whose handshake is done.
pub(crate) struct NbdConnection {
    pub(crate) disk: DiskId,
    pub(crate) socket: OwnedFd,
    pub(crate) session: Session,
    pub(crate) early: Vec<u8>,
    pub(crate) counters: Arc<DiskCounters>,
    /// Dropped when the client is gone.
    pub(crate) presence: Box<dyn Send>,
}

/// A disk that is being detached.
pub(crate) struct Detaching {
    reply: Reply,
    on_detached: OnDetached,
    /// The shard has released it; its image is closing.
    detached: bool,
}

impl IoThread {
    pub(super) fn handle(&mut self, order: Command) {
        let order = match order.disk() {
            Some(disk) if self.attached_disk(disk).is_none() => match self.pass_on(disk, order) {
                Some(order) => order,
                None => return,
            },
            _ => order,
        };
        match order {
            Command::Attach(attach) => self.attach(*attach),
            Command::Change(change) => self.change(*change),
            Command::AttachQueue(attach) => self.attach_queue(*attach),
            Command::StopQueue(stop) => self.change_queue(stop),
            Command::DefaultCoalesce(coalesce) => self.set_default_coalesce(coalesce),
            Command::Dense(dense) => self.set_dense(dense),
            Command::Nbd(connection) => self.attach_connection(*connection),
            Command::Prepare(reply) => self.prepare(&reply),
            Command::Leave(leave) => self.leave(leave),
            Command::Arrive(arrive) => self.arrive(*arrive),
            Command::Forwarded(completion) => self.completed(completion),
            Command::Buffers(given) => self.take_buffers(*given),
            Command::Query(question) => self.queries.push_back(question),
            Command::BlockingDone(image, task) => self.blocking_done(image, task),
            Command::Govern(control, govern) => self.govern(control, *govern),
            Command::Woken(control) => self.cx.handle(Event::Woken { control }),
            Command::Stop => self.stopping = true,
            #[cfg(test)]
            Command::Run(act) => act(self),
        }
    }

    fn attach(&mut self, attach: Attach) {
        let Attach {
            disk,
            size,
            read_only,
            stack,
            sides,
            images,
            layout,
            notices,
            io,
            control,
            opened,
        } = attach;
        let is_plain = layout.is_none();
        let members = layout.as_ref().filter(|parts| parts.cache.is_some());
        let members = members.map(|parts| (parts.members.count, parts.spec));
        let stack = match layout.map(|parts| self.build_layout(&parts)) {
            None => stack,
            Some(Ok(tree)) => stack.over(tree),
            Some(Err(error)) => {
                let _ = opened.send(Err(error));
                return;
            }
        };
        let at = disk.0 as usize;
        if self.disks.len() <= at {
            self.disks.resize_with(at + 1, || None);
        }
        let mut opening = Some(opened);
        if is_plain && let Some(opened) = opening.take() {
            let _ = opened.send(Ok(Ok(())));
        }
        let controlled = control.as_ref().map(|control| control.attached(is_plain));
        let mut images = Images::new(disk, images);
        if let Some((members, layout)) = members {
            images.set_flash(members, layout);
        }
        self.disks[at] = Some(AttachedDisk {
            images,
            blocks: Blocks::default(),
            closes: false,
            opening,
            relay: None,
            io,
            held: false,
            new_flash: None,
            orders: VecDeque::new(),
            added: None,
            notices,
            sides,
            detaching: None,
            changing: None,
            control: control.map(|control| *control),
        });
        self.note_timed();
        self.cx.handle(Event::Attach {
            disk,
            size,
            read_only,
            stack,
            control: controlled,
        });
    }

    fn change(&mut self, change: Change) {
        let Change { disk, what, reply } = change;
        let Some(place) = self.disks.get_mut(disk.0 as usize).and_then(Option::as_mut) else {
            let _ = reply.send(Err(Error::new(
                Kind::Gone,
                "the disk is not attached any more",
            )));
            return;
        };
        let must_wait = place.changing.is_some() && !what.may_run_during_change();
        if place.detaching.is_some() || must_wait {
            let text = "the disk is being changed already; try again when that is done";
            let _ = reply.send(Err(Error::new(Kind::Busy, text)));
            return;
        }
        let event = match what {
            What::Filters { places, sides } => {
                // Side files of removed filters stay open until their last write: the write owns them as well.
                place.sides.extend(sides);
                place.changing = Some(reply);
                Event::Rearrange { disk, places }
            }
            What::Size { disk: size, image } => {
                if let Some(image) = image {
                    let members = place.images.of_members_mut();
                    members.for_each(|member| member.image.resized(image));
                }
                let connections = self.connections.iter_mut().flatten();
                connections
                    .filter(|connection| connection.disk() == disk)
                    .for_each(|connection| connection.resized(size));
                let _ = reply.send(Ok(()));
                Event::Resize { disk, size }
            }
            What::Policy(policy) => {
                let policy = *policy;
                if let Some(control) = &mut place.control {
                    control.set_policy(&policy);
                }
                self.wake_all_governors();
                self.cx.handle(Event::Policy { disk, policy });
                let _ = reply.send(Ok(()));
                return;
            }
            What::Io(io) => {
                place.io = io;
                self.set_io(disk, io);
                let _ = reply.send(Ok(()));
                return;
            }
            What::Image(replace) => return self.replace_image(disk, *replace, reply),
            What::Order(order) => {
                return self.order(disk, PendingOrder::new(order, reply));
            }
            What::AddMember(image) => {
                let order = PendingOrder::new(LayoutOrder::AddMember, reply);
                return self.order(disk, order.with_image(image));
            }
            What::Relay(relay) => {
                place.changing = Some(reply);
                place.relay = Some(*relay);
                if place.held {
                    return self.held(disk);
                }
                Event::Hold { disk }
            }
            What::Unhold => {
                // What was held meanwhile stays so until the move ends.
                let _ = reply.send(Ok(()));
                let Some(late) = place.relay.take() else {
                    return;
                };
                place.changing = None;
                let images = late.into_closed();
                if !images.is_empty() {
                    let (ignored, _) = std::sync::mpsc::channel();
                    self.send_close(disk, images, Box::new(|| ()), ignored);
                }
                Event::Unhold { disk }
            }
            What::Resume => return self.resume(disk, reply),
            What::Detach { on_detached } => {
                if let Some(waiting) = place.changing.take() {
                    let text = "the disk is being detached: it does not change any more";
                    let _ = waiting.send(Err(Error::new(Kind::Gone, text)));
                }
                place.detaching = Some(Detaching {
                    reply,
                    on_detached,
                    detached: false,
                });
                place.closes = true;
                self.dismiss_clients(disk);
                Event::Detach { disk }
            }
        };
        self.cx.handle(event);
    }

    /// Ends the connections of a disk. Its guests' queues take no more requests; their protocol threads stop them.
    fn dismiss_clients(&mut self, disk: DiskId) {
        let queues = self.queues.iter_mut().flatten();
        queues
            .filter(|queue| queue.disk() == disk)
            .for_each(|queue| queue.halt());
        for (index, connection) in (0u32..).zip(&mut self.connections) {
            if let Some(connection) = connection.as_mut().filter(|c| c.disk() == disk) {
                connection.dismiss();
                self.cx.note_ready_connection(index);
            }
        }
    }

    /// The shard has installed the new filters.
    pub(super) fn filters_changed(&mut self, disk: DiskId) {
        let Some(place) = self.disks[disk.0 as usize].as_mut() else {
            return;
        };
        if let Some(report) = self.cx.shard.report(disk) {
            place
                .sides
                .retain(|(key, _)| report.filters.iter().any(|(kept, ..)| kept == key));
        }
        if let Some(reply) = place.changing.take() {
            let _ = reply.send(Ok(()));
        }
    }

    /// The shard has released a disk.
    pub(super) fn detached(&mut self, disk: DiskId, spent: Option<Box<Spent>>) {
        if let Some(place) = self.disks[disk.0 as usize].as_mut() {
            if let Some(detaching) = &mut place.detaching {
                detaching.detached = true;
            }
            if let (Some(spent), Some(control)) = (spent, &place.control) {
                control.note_spent(self.cx.now, spent);
            }
        }
        self.close_if_unused(disk);
    }

    /// Closes the images of a disk that are not used any more, once nothing of them is on the ring.
    #[inline]
    pub(super) fn close_if_unused(&mut self, disk: DiskId) {
        if self.attached_disk(disk).is_some_and(|place| place.closes) {
            self.close_replaced(disk);
            self.close_if_detaching(disk);
        }
    }

    /// Drops a detached disk, once nothing of it is on the ring.
    fn close_if_detaching(&mut self, disk: DiskId) {
        let detaching = self
            .attached_disk(disk)
            .and_then(|place| place.detaching.as_ref());
        if !detaching.is_some_and(|detaching| detaching.detached) {
            return;
        }
        // Its number must not be reused while anything here refers to it.
        let named = self.queues.iter().flatten().any(|q| q.disk() == disk)
            || self.connections.iter().flatten().any(|c| c.disk() == disk);
        let place = self.attached_disk(disk);
        if named || place.is_none_or(|place| place.images.has_replaced()) {
            return;
        }
        let images = place
            .into_iter()
            .flat_map(|place| place.images.of_targets());
        let images: Vec<ImageId> = images.map(|member| member.id).collect();
        let mut closed = 0;
        for &id in &images {
            self.with_image(id, |image, cx| closed += usize::from(image.close(cx)));
        }
        if closed == images.len()
            && let Some(AttachedDisk {
                images,
                relay,
                orders,
                detaching: Some(detaching),
                ..
            }) = self.disks[disk.0 as usize].take()
        {
            self.peers.forget(disk);
            self.note_timed();
            let Detaching {
                reply, on_detached, ..
            } = detaching;
            let mut closed = images.into_closed();
            closed.extend(relay.into_iter().flat_map(Relay::into_closed));
            let unused = orders.into_iter().filter_map(PendingOrder::into_closed);
            closed.extend(unused);
            self.send_close(disk, closed, on_detached, reply);
        }
    }

    /// Has images closed that nothing uses any more.
    pub(super) fn send_close(
        &mut self,
        disk: DiskId,
        images: Vec<ClosedImage>,
        then: OnDetached,
        reply: Reply,
    ) {
        let close = Close::new(images, then, reply);
        self.blocking
            .send_alone(ImageId::first(disk), Box::new(close));
    }

    pub(super) fn attached_disk(&self, disk: DiskId) -> Option<&AttachedDisk> {
        self.disks.get(disk.0 as usize).and_then(Option::as_ref)
    }

    /// The disk's share of this thread, and how its completions are coalesced.
    fn io_of(&self, disk: DiskId) -> IoSettings {
        self.attached_disk(disk)
            .map_or_else(IoSettings::default, |place| place.io)
    }

    /// Applies a disk's settings to all that it has here.
    fn set_io(&mut self, disk: DiskId, io: IoSettings) {
        for queue in self.queues.iter_mut().flatten() {
            if queue.disk() == disk {
                queue.set_io(&io, self.coalesce, self.dense);
            }
        }
        let connections = self.connections.iter_mut().flatten();
        connections
            .filter(|connection| connection.disk() == disk)
            .for_each(|connection| connection.flow.set_share(io.share));
    }

    /// Sets how completions are coalesced, of disks that have no setting of their own.
    fn set_default_coalesce(&mut self, coalesce: Coalesce) {
        self.coalesce = coalesce;
        self.apply_defaults();
    }

    /// Applies what disks without settings of their own get, and their settings to the others.
    pub(super) fn apply_defaults(&mut self) {
        for queue in self.queues.iter_mut().flatten() {
            let place = self.disks.get(queue.disk().0 as usize);
            if let Some(place) = place.and_then(Option::as_ref) {
                queue.set_io(&place.io, self.coalesce, self.dense);
            }
        }
    }

    /// Whether the disk is attached and not being detached.
    fn accepts_clients_of(&self, disk: DiskId) -> bool {
        self.attached_disk(disk)
            .is_some_and(|place| place.detaching.is_none())
    }

    fn attach_queue(&mut self, attach: AttachQueue) {
        if !self.accepts_clients_of(attach.parts.disk) {
            // The disk was detached meanwhile: dropping the reply informs the protocol thread.
            return;
        }
        let index = self.peers.queue_number();
        let mut queue = Box::new(RingDevice::new(attach.parts));
        queue.watch_kicks(index, &mut self.cx.ring);
        // The guest may have kicked before the watch began: poll once.
        queue.wake();
        queue.call_for_predecessor();
        queue.last_request = self.cx.now;
        let disk = queue.disk();
        queue.set_io(&self.io_of(disk), self.coalesce, self.dense);
        *slot_for(&mut self.queues, index) = Some(queue);
        self.active.push(index);
        if attach.reply.send(index).is_err() {
            // The front end is gone: end the queue as if it was stopped.
            let (reply, _) = std::sync::mpsc::channel();
            self.change_queue(StopQueue {
                disk,
                queue: index,
                what: QueueChange::Stop(reply),
            });
        }
    }

    fn change_queue(&mut self, stop: StopQueue) {
        let StopQueue {
            queue: index, what, ..
        } = stop;
        let Some(queue) = self.queues.get_mut(index as usize).and_then(Option::as_mut) else {
            return;
        };
        match what {
            QueueChange::Call(call, reply) => {
                queue.set_call(call);
                let _ = reply.send(());
            }
            QueueChange::Stop(reply) => {
                queue.stop(reply);
                queue.ignore_kicks(index, &mut self.cx.ring);
                self.remove_queue_if_drained(index);
            }
        }
    }

    /// Drops a stopping queue, once nothing of it is in flight.
    pub(super) fn remove_queue_if_drained(&mut self, index: u32) {
        let Some(queue) = self.queues[index as usize].as_mut() else {
            return;
        };
        if queue.is_stopping() && queue.is_drained() {
            let disk = queue.disk();
            self.active.retain(|&active| active != index);
            if let Some(queue) = self.queues[index as usize].take() {
                queue.finish();
                self.peers.free_queue_number(index);
            }
            self.close_if_unused(disk);
        }
    }

    /// Lists the images that have deadlines, so that only these are asked.
    pub(super) fn note_timed(&mut self) {
        self.timed.clear();
        let members = self.disks.iter().flatten();
        let members = members.flat_map(|place| place.images.all());
        let timed = members.filter(|member| member.image.timed());
        self.timed.extend(timed.map(|member| member.id));
    }

    fn attach_connection(&mut self, order: NbdConnection) {
        let NbdConnection {
            disk,
            socket,
            session,
            early,
            counters,
            presence,
        } = order;
        if !self.accepts_clients_of(disk) {
            // The disk was detached meanwhile: dropping the socket informs the client.
            return;
        }
        let connection = match Connection::new(socket, disk, session, &early, &mut self.cx.buffers)
        {
            Ok(connection) => connection
                .with_presence(presence)
                .with_counters(counters)
                .with_share(self.io_of(disk).share),
            Err(error) => {
                tracing::warn!(%error, "no memory for an NBD client: its connection is closed");
                return;
            }
        };
        let index = self.peers.connection_number();
        *slot_for(&mut self.connections, index) = Some(Box::new(connection));
        self.connection_count += 1;
        self.cx.note_ready_connection(index);
    }

    pub(super) fn connection_event(&mut self, index: u32, completion: Completion) {
        if let Some(connection) = self
            .connections
            .get_mut(index as usize)
            .and_then(Option::as_mut)
        {
            connection.completed(&mut self.cx, completion);
            self.cx.note_ready_connection(index);
        } else {
            self.forward(completion);
        }
    }

    /// Advances a connection; drops it at its end.
    pub(super) fn advance_connection(&mut self, index: u32) {
        let mut allowance = self.allowance_at_once();
        self.advance_connection_by(index, &mut allowance);
    }

    /// Advances a connection, which may take so many requests; drops it at its end.
    pub(super) fn advance_connection_by(&mut self, index: u32, allowance: &mut Allowance) {
        let Some(connection) = self
            .connections
            .get_mut(index as usize)
            .and_then(Option::as_mut)
        else {
            return;
        };
        let over = connection.advance(index, &mut self.cx, allowance);
        if connection.is_backlogged() {
            self.backlog.add(index);
        }
        if connection.is_served_first() {
            self.tally.served_connection(index);
        }
        if over && let Some(connection) = self.connections[index as usize].take() {
            let disk = connection.disk();
            connection.free(&mut self.cx);
            self.connection_count -= 1;
            self.peers.free_connection_number(index);
            self.close_if_unused(disk);
        }
    }

    fn blocking_done(&mut self, id: ImageId, task: Done) {
        match task.downcast::<SideWrite>() {
            Ok(write) => self.cx.handle(write.into_event(id.disk())),
            // Its number may belong to another disk by now.
            Err(task) if task.is::<Close>() => {}
            Err(task) => {
                self.with_image(id, |image, cx| image.blocking_done(cx, task));
                self.close_if_unused(id.disk());
            }
        }
    }
}
