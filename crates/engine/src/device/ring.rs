//! One queue of a vhost-user-blk device on its I/O thread.
//!
//! A guest's I/O starts and ends here. The protocol thread ([`crate::vhost`]) attaches and stops the queue by orders.
//! `tidegate-front` parses the ring in the guest's memory.
//!
//! # Always true
//! - the queue is dropped only when nothing of it is in flight, and all requests that a predecessor left in flight were
//!   taken again. The position that it reports lies behind both (a broken ring, or one whose disk is detached, takes
//!   nothing again)
//! - if a guest sees a write-through device, each of its writes is durable before it is answered
//! - a malformed ring is stopped here, counted, and reported through its error descriptor; other queues do not notice
//! - parsing chains takes a bounded part of a turn ([`effort`]), and requests in flight a bounded amount of memory
//!   (`MOST_ROOM`)

use super::ReplyTo;
use super::account::Account;
use super::shunned::Standing;
use super::thread_cx::ThreadCx;
use crate::counters::QueueCounters;
use crate::disk_spec::{DenseSettings, IoSettings};
use crate::sys::buffers::{Buffers, SHORT_LIST};
use crate::sys::eventfd::EventFd;
use crate::sys::guest::{Mapping, Segment};
use crate::sys::os;
use crate::sys::ring::{Ring, Tag};
use crate::tag;
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use tidegate_core::coalesce::{Batch, Call, Coalesce, Coalescer, Moment, Published};
use tidegate_core::dense::KICK_BATCH;
use tidegate_core::request::{Data, DiskId, Fault, Flags, Op, Outcome, Request};
use tidegate_core::round_robin::{Allowance, Flow, IoClass, Left, Share};
use tidegate_core::units::{Span, Time};
use tidegate_front::vhost::block::{
    BlockRequest, ID_BYTES, Kind, STATUS_IOERR, STATUS_OK, STATUS_UNSUPP,
};
use tidegate_front::vhost::queue::{ChainError, Queue, RingError, Taken};

mod effort;
mod facts;
pub(crate) mod malformed;

pub(crate) use facts::DeviceFacts;
use malformed::Malformed;

/// Limit of list entries that requests of one queue may take in flight; lists of up to [`SHORT_LIST`] are not counted.
/// Beyond it no more requests are taken. A queue has at most 1024 entries in QEMU, and its requests 126 pieces and a
/// header. There is room for 128, so no such guest waits. The lists take 2 MiB, and as much again where a datastore
/// splits requests. Without the limit the largest ring could take 512 MiB.
const MOST_ROOM: usize = 1024 * 128;
/// The same for all queues of a device together, of which there may be 64. Beyond it each queue has one such request at
/// a time.
const MOST_ROOM_OF_DEVICE: usize = 4 * MOST_ROOM;

/// How to answer a chain.
#[derive(Clone, Copy)]
pub(crate) struct Reply {
    head: u16,
    status: Segment,
    /// Bytes that a success writes for the guest, the status included.
    written: u32,
    kind: ReplyKind,
}

/// What the completion of a chain must take care of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReplyKind {
    /// The guest's memory was written.
    Read,
    /// The guest is called at once.
    Flush,
    Other,
}

/// See the module.
pub(crate) struct RingDevice {
    disk: DiskId,
    /// Its index on its device, as the guest counts.
    number: u16,
    queue: Queue<Mapping>,
    memory: Arc<Mapping>,
    facts: Arc<DeviceFacts>,
    standing: Standing,
    kick: EventFd,
    call: Option<EventFd>,
    error: Option<EventFd>,
    /// The available index when a fetch left requests behind, and the time of that fetch.
    seen: Option<(u16, Time)>,
    /// Heads that a predecessor left in flight; they are taken first.
    left_behind: VecDeque<u16>,
    /// Whether the thread polls it each turn.
    pub(crate) active: bool,
    /// When requests were last taken from it.
    pub(crate) last_request: Time,
    /// Receives the position for a successor once nothing is in flight; set when the queue is to stop.
    stopping: Option<Sender<u16>>,
    /// Its rings are malformed, or its kick descriptor cannot be watched.
    broken: bool,
    halted: bool,
    marked_dirty: bool,
    /// Its share of the thread, and what it has had.
    pub(crate) flow: Flow,
    /// Whether requests were left in the ring, because it has as many in flight as it may.
    capped: bool,
    /// Whether dense mode is on and applies to it.
    dense: bool,
    calls: Coalescer,
    /// Completions that were published since the last decision on a call, and whether one must not wait.
    fresh: u32,
    urgent: bool,
    /// Whether the thread lists it among those whose call waits for its moment.
    pub(crate) interrupt_pending: bool,
    /// Whether the thread lists it among those whose call waits for more completions.
    pub(crate) interrupt_held: bool,
    scratch: Vec<Segment>,
    /// Room that the long lists of its requests in flight take.
    room: usize,
    account: Account,
    /// Positions in both rings when its account was last read.
    accounted: (u16, u16),
}

/// What a queue is made of.
pub(crate) struct Parts {
    pub(crate) disk: DiskId,
    pub(crate) number: u16,
    pub(crate) queue: Queue<Mapping>,
    pub(crate) memory: Mapping,
    pub(crate) facts: Arc<DeviceFacts>,
    pub(crate) standing: Standing,
    pub(crate) kick: EventFd,
    pub(crate) call: Option<EventFd>,
    pub(crate) error: Option<EventFd>,
    pub(crate) left_behind: Vec<u16>,
}

impl RingDevice {
    pub(crate) fn new(parts: Parts) -> RingDevice {
        let Parts {
            disk,
            number,
            queue,
            memory,
            facts,
            standing,
            kick,
            call,
            error,
            left_behind,
        } = parts;
        let accounted = (queue.position(), queue.answered());
        RingDevice {
            disk,
            number,
            queue,
            memory: Arc::new(memory),
            facts,
            standing,
            kick,
            call,
            error,
            seen: None,
            left_behind: left_behind.into(),
            active: false,
            last_request: Time::ZERO,
            stopping: None,
            broken: false,
            halted: false,
            marked_dirty: false,
            flow: Flow::new(Share::default()),
            capped: false,
            dense: false,
            calls: Coalescer::new(Coalesce::default()),
            fresh: 0,
            urgent: false,
            interrupt_pending: false,
            interrupt_held: false,
            scratch: Vec::with_capacity(SHORT_LIST),
            room: 0,
            account: Account::default(),
            accounted,
        }
    }

    pub(crate) fn disk(&self) -> DiskId {
        self.disk
    }

    /// Sets its share of the thread, and how its completions are coalesced: `default`, if its disk has no setting; or as
    /// dense mode wants it, if its disk is not exempt either.
    pub(crate) fn set_io(
        &mut self,
        io: &IoSettings,
        default: Coalesce,
        dense: Option<DenseSettings>,
    ) {
        self.flow.set_share(io.share);
        let is_exempt = io.coalesce.is_some() || io.share.class != IoClass::Normal;
        let dense = dense.filter(|_| !is_exempt);
        self.dense = dense.is_some();
        let default = dense.map_or(default, |_| Coalesce::Static(Batch::dense()));
        self.calls.set(io.coalesce.unwrap_or(default));
        self.calls
            .hold_last(dense.is_some_and(|dense| dense.hold_last));
    }

    /// Whether dense mode is on and applies to it.
    pub(crate) fn is_dense(&self) -> bool {
        self.dense
    }

    /// From now on the guest kicks for a batch of requests: the thread looks for fewer itself. Returns whether a request
    /// is there already.
    pub(crate) fn want_batched_kicks(&mut self) -> bool {
        let came = self.queue.want_kicks_after(&self.memory, KICK_BATCH);
        (came || !self.left_behind.is_empty()) && self.due(1) > 0 && !self.capped
    }

    fn counters(&self) -> &QueueCounters {
        self.facts.counters.queue(self.number)
    }

    /// Its guest has kicked.
    pub(crate) fn note_kick(&mut self) {
        self.account.kicks += 1;
    }

    /// Whether this is the first time that it is served since its account was read.
    #[inline]
    pub(crate) fn is_served_first(&mut self) -> bool {
        self.account.is_served_first()
    }

    /// Its weight when the thread's time is divided.
    pub(crate) fn share(&mut self) -> u64 {
        let (taken, answered) = (self.queue.position(), self.queue.answered());
        let (last_taken, last_answered) = std::mem::replace(&mut self.accounted, (taken, answered));
        self.account.taken += u64::from(taken.wrapping_sub(last_taken));
        self.account.answered += u64::from(answered.wrapping_sub(last_answered));
        self.account.share()
    }

    /// Gets its part of the thread's time.
    pub(crate) fn charge(&mut self, busy: Span, now: Time) {
        let counters = self.facts.counters.queue(self.number);
        let in_flight = self.queue.in_flight().into();
        self.account.charge(counters, busy, in_flight, now);
    }

    /// Takes no more requests: its disk is being detached.
    pub(crate) fn halt(&mut self) {
        self.halted = true;
    }

    /// The kick descriptor cannot be watched: the guest could not wake the thread.
    pub(crate) fn cannot_be_kicked(&mut self, errno: i32) {
        self.fail(Malformed::Kick(errno), os::now());
    }

    /// Starts to watch the guest's kicks.
    pub(crate) fn watch_kicks(&self, index: u32, ring: &mut Ring) {
        ring.watch(self.kick.as_raw_fd(), kick_tag(index));
    }

    /// Stops watching the guest's kicks.
    pub(crate) fn ignore_kicks(&self, index: u32, ring: &mut Ring) {
        ring.cancel(kick_tag(index), tag::IGNORED);
    }

    /// From now on the thread polls the queue; the guest need not kick.
    pub(crate) fn wake(&mut self) {
        self.active = true;
        self.queue.silence_kicks(&self.memory);
    }

    /// From now on the guest kicks. Returns whether a request arrived meanwhile, or waits to be taken again. This
    /// includes requests for which there is no room: no kick would come for them, so the thread stays awake. It does not
    /// for those that wait for completions of others: these wake it.
    pub(crate) fn want_kicks(&mut self) -> bool {
        let came = self.queue.want_kicks(&self.memory);
        (came || !self.left_behind.is_empty()) && self.due(1) > 0 && !self.capped
    }

    /// Whether a request waits to be taken.
    pub(crate) fn has_work(&self) -> bool {
        self.allowance(1) > 0 && !self.capped && self.queue.has_work()
    }

    /// Whether a request waits to be taken; if so, prefetches what is needed first.
    pub(crate) fn sees_work(&self) -> bool {
        let works = self.has_work();
        if works {
            self.queue.prefetch_next_header(&self.memory);
        }
        works
    }

    /// Whether nothing of it is in flight: neither taken by this process, nor left by another and to be taken again.
    pub(crate) fn is_drained(&self) -> bool {
        let pending = !self.left_behind.is_empty() && !self.broken && !self.halted;
        self.queue.in_flight() == 0 && !pending
    }

    /// Takes no new requests; `reply` receives the position once nothing is in flight.
    pub(crate) fn stop(&mut self, reply: Sender<u16>) {
        self.stopping = Some(reply);
    }

    /// Whether it is to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// Publishes the last completions, and reports the position for a successor.
    pub(crate) fn finish(mut self) {
        self.publish();
        self.call_if_wanted(self.last_request);
        self.share();
        self.charge(Span::ZERO, os::now());
        self.counters().standing(None);
        if let Some(reply) = self.stopping {
            // The front end may be gone.
            let _ = reply.send(self.queue.position());
        }
    }

    /// The guest's call descriptor was replaced. A call may have been lost: repeat it.
    pub(crate) fn set_call(&mut self, call: Option<EventFd>) {
        self.call = call;
        self.call_guest();
    }

    /// Takes as many requests as it may and submits them to the shard. It takes fewer if they are long.
    /// The others wait for the thread's next turn, which follows at once, because this one had work.
    pub(crate) fn fetch(
        &mut self,
        index: u32,
        cx: &mut ThreadCx,
        allowance: &mut Allowance,
    ) -> Left {
        let most = self.allowance(allowance.requests() as usize);
        let room = allowance.in_flight() as usize;
        let room = room.saturating_sub(self.queue.in_flight().into());
        self.capped = room < most;
        let mut most = most.min(room);
        if most > 0 && self.memory.is_spoilt() {
            // The memory that was read may be missing pages.
            self.fail(Malformed::Memory, cx.now);
            self.note_if_drained(index, cx);
            return Left::Nothing;
        }
        if most == 0 {
            self.note_if_drained(index, cx);
            return if self.capped {
                Left::Blocked
            } else {
                Left::Nothing
            };
        }
        let position = self.queue.position();
        let seen = self
            .seen
            .map(|(until, at)| (until.wrapping_sub(position), at));
        let before = self.queue.walked();
        let until = before + self.facts.effort.left(cx.now);
        let mut count = 0;
        let mut bytes = self.account.bytes;
        let is_metered = allowance.is_metered();
        while count < most && self.queue.walked() < until {
            let arrived = self.arrival(cx.now);
            match self.take() {
                Ok(Some(taken)) => self.begin(index, cx, taken, arrived),
                Ok(None) => break,
                Err(broken) => {
                    self.stop_broken(index, cx, broken);
                    break;
                }
            }
            count += 1;
            if is_metered {
                if !allowance.charge(self.account.bytes - bytes) && count < most {
                    most = count;
                    self.capped = false;
                }
                bytes = self.account.bytes;
            }
        }
        if count > 0 {
            self.last_request = cx.now;
            let count = u32::try_from(count).expect("a part of a ring");
            allowance.count(count);
            self.calls.note_requests(count, cx.now);
        }
        if let Some((waiting, at)) = seen {
            let taken = self.queue.position().wrapping_sub(position);
            self.note_delayed(taken, waiting, cx.now.since(at));
        }
        let walked = self.queue.walked();
        if walked > before {
            self.facts.effort.spend(cx.now, walked - before);
            allowance.spend(effort::cost(walked - before));
        }
        let ended = count == most || walked >= until;
        let left = ended && self.queue.has_work();
        if left && self.seen.is_none() {
            self.seen = Some((self.queue.available(), cx.now));
            self.counters().standing(Some(cx.now));
        }
        self.capped &= count == most;
        match left {
            false => Left::Nothing,
            true if self.capped => Left::Blocked,
            true => Left::More,
        }
    }

    /// Whether requests were left because too many were in flight. From now on they may be taken.
    pub(crate) fn take_capped(&mut self) -> bool {
        std::mem::take(&mut self.capped)
    }

    /// So many requests were taken. The first `waiting` had been seen before, and waited for `delay`.
    #[inline(never)]
    fn note_delayed(&mut self, taken: u16, waiting: u16, delay: Span) {
        self.counters().delayed(taken.min(waiting), delay);
        if taken >= waiting {
            self.seen = None;
            self.counters().standing(None);
        }
    }

    /// When the next request was first seen: now, or at the last fetch if that left it behind.
    fn arrival(&mut self, now: Time) -> Time {
        match self.seen {
            // Positions advance one by one, so the recorded index is always met exactly.
            Some((until, _)) if until == self.queue.position() => {
                self.seen = None;
                now
            }
            Some((_, at)) => at,
            None => now,
        }
    }

    fn take(&mut self) -> Result<Option<Taken<Segment>>, RingError> {
        if let Some(head) = self.left_behind.pop_front() {
            return self
                .queue
                .retake(&self.memory, head, &mut self.scratch)
                .map(Some);
        }
        self.queue.next(&self.memory, &mut self.scratch)
    }

    /// How many of `most` requests may be taken now.
    fn allowance(&self, most: usize) -> usize {
        // Never blocked with nothing in flight: a completion always makes room.
        if self.room > 0 && self.is_out_of_room() {
            0
        } else {
            self.due(most)
        }
    }

    /// Whether the lists in flight of this queue, or of its device, take as much memory as they may.
    fn is_out_of_room(&self) -> bool {
        let of_device = self.facts.room.load(Ordering::Relaxed);
        self.room >= MOST_ROOM || of_device >= MOST_ROOM_OF_DEVICE
    }

    /// How many of `most` requests may be taken if there is room. A queue that is to stop takes only those of a
    /// predecessor.
    fn due(&self, most: usize) -> usize {
        if self.broken || self.halted {
            0
        } else if self.stopping.is_some() {
            most.min(self.left_behind.len())
        } else {
            most
        }
    }

    /// A stopping queue may be drained without a completion: it has broken, or its disk is detached.
    fn note_if_drained(&self, index: u32, cx: &mut ThreadCx) {
        if self.is_stopping() && self.is_drained() {
            cx.note_dirty(index);
        }
    }

    /// Counts a malformed request.
    #[cold]
    #[inline(never)]
    fn note_malformed(&self, why: ChainError, now: Time) {
        self.facts.note(self.number, Malformed::Request(why), now);
    }

    /// Stops this queue: its rings are malformed.
    #[cold]
    #[inline(never)]
    fn stop_broken(&mut self, index: u32, cx: &mut ThreadCx, broken: RingError) {
        self.fail(Malformed::Ring(broken), cx.now);
        self.note_if_drained(index, cx);
    }

    /// Stops this queue: its rings are invalid, its memory was truncated, its kicks cannot be watched, or its front end
    /// blocked the thread.
    #[cold]
    fn fail(&mut self, what: Malformed, now: Time) {
        self.facts.note(self.number, what, now);
        self.counters().standing(None);
        self.broken = true;
        if let Some(error) = &self.error
            && !self.standing.is_shunned()
            && error.call().is_err()
        {
            self.shun();
        }
    }

    /// Its front end blocked this thread: the guest is not called again, so its requests are not taken any more.
    #[cold]
    fn shun(&mut self) {
        self.standing.shun(&self.facts.offences);
        if !self.broken {
            self.fail(Malformed::Call, os::now());
        }
    }

    fn begin(&mut self, index: u32, cx: &mut ThreadCx, taken: Taken<Segment>, arrived: Time) {
        match taken {
            Taken::Request(request) => self.request(index, cx, &request, arrived),
            Taken::Bad { head, status, why } => {
                self.note_malformed(why, cx.now);
                if let Some(status) = status {
                    status.put_u8(STATUS_IOERR);
                    self.memory.mark_segment(&status);
                }
                self.urgent = true;
                self.complete_now(index, cx, head, u32::from(status.is_some()));
            }
        }
    }

    /// Completes a chain that needs no disk.
    fn complete_now(&mut self, index: u32, cx: &mut ThreadCx, head: u16, written: u32) {
        self.queue.complete(head, written);
        if self.is_dirty_first() {
            cx.note_dirty(index);
        }
    }

    fn request(
        &mut self,
        index: u32,
        cx: &mut ThreadCx,
        request: &BlockRequest<Segment>,
        arrived: Time,
    ) {
        let BlockRequest { head, kind, status } = *request;
        let (op, flags, offset, len) = match kind {
            Kind::Read { offset, len } => {
                self.account.bytes += len;
                (Op::Read, Flags::NONE, offset, len)
            }
            Kind::Write { offset, len } => {
                self.account.bytes += len;
                (Op::Write, self.durability(), offset, len)
            }
            Kind::Flush => {
                self.facts.flushed();
                (Op::Flush, Flags::NONE, 0, 0)
            }
            Kind::Discard { offset, len } => (Op::Discard, self.durability(), offset, len),
            Kind::WriteZeroes { offset, len, unmap } => {
                let unmap = if unmap { Flags::MAY_UNMAP } else { Flags::NONE };
                (Op::WriteZeroes, self.durability().with(unmap), offset, len)
            }
            Kind::GetId { len } => return self.answer_id(index, cx, head, &status, len),
            Kind::Unknown => {
                status.put_u8(STATUS_UNSUPP);
                self.memory.mark_segment(&status);
                return self.complete_now(index, cx, head, 1);
            }
        };
        let read = op == Op::Read;
        let filled = if read {
            u32::try_from(len).unwrap_or(u32::MAX - 1)
        } else {
            0
        };
        let buffer = if self.scratch.capacity() > SHORT_LIST {
            self.claim_roomy(&mut cx.buffers)
        } else {
            cx.buffers
                .claim_guest(self.disk, &self.memory, &mut self.scratch)
        };
        let reply = Reply {
            head,
            status,
            written: filled + 1,
            kind: match op {
                Op::Read => ReplyKind::Read,
                Op::Flush => ReplyKind::Flush,
                _ => ReplyKind::Other,
            },
        };
        let data = Data { buffer, start: 0 };
        let request = Request {
            op,
            flags,
            offset,
            len,
            data,
            arrived,
        };
        cx.submit(
            self.disk,
            request,
            ReplyTo::Ring {
                queue: index,
                reply,
            },
        );
    }

    /// Claims a buffer for the current pieces, and counts their room if they are many.
    #[cold]
    fn claim_roomy(&mut self, buffers: &mut Buffers) -> u32 {
        let buffer = buffers.claim_guest_roomy(self.disk, &self.memory, &mut self.scratch);
        let room = buffers.room(buffer);
        if room > SHORT_LIST {
            self.room += room;
            self.facts.room.fetch_add(room, Ordering::Relaxed);
        }
        buffer
    }

    /// A request is no longer in flight: returns the room of its list.
    #[cold]
    fn give_room_back(&mut self, buffers: &Buffers, buffer: u32) {
        let room = buffers.room(buffer);
        if room > SHORT_LIST {
            self.room -= room;
            self.facts.room.fetch_sub(room, Ordering::Relaxed);
        }
    }

    /// A guest without a write-back cache sends no flush: its writes must be durable on completion.
    fn durability(&self) -> Flags {
        if self.facts.write_back.load(Ordering::Relaxed) {
            Flags::NONE
        } else {
            Flags::FUA
        }
    }

    fn answer_id(&mut self, index: u32, cx: &mut ThreadCx, head: u16, status: &Segment, len: u64) {
        let mut id = [0; ID_BYTES];
        let serial = self.facts.serial.as_bytes();
        let used = serial.len().min(ID_BYTES);
        id[..used].copy_from_slice(&serial[..used]);
        let room = usize::try_from(len).unwrap_or(usize::MAX).min(ID_BYTES);
        // Write, and mark in the log, only as much of the guest's buffer as the name needs.
        Segment::cut(&mut self.scratch, room);
        let buffer = cx
            .buffers
            .claim_guest(self.disk, &self.memory, &mut self.scratch);
        cx.buffers.put(Data { buffer, start: 0 }, &id[..room]);
        self.mark_read(&cx.buffers, buffer);
        cx.buffers.release(buffer);
        status.put_u8(STATUS_OK);
        self.memory.mark_segment(status);
        self.complete_now(index, cx, head, u32::try_from(room).unwrap_or(0) + 1);
    }

    /// A request has completed.
    pub(crate) fn answer(
        &mut self,
        buffers: &mut Buffers,
        buffer: u32,
        reply: &Reply,
        outcome: Outcome,
    ) {
        let (status, written) = match outcome {
            Ok(()) => (STATUS_OK, reply.written),
            Err(fault) => {
                self.urgent = true;
                match fault {
                    Fault::Unsupported => (STATUS_UNSUPP, 1),
                    _ => (STATUS_IOERR, 1),
                }
            }
        };
        match reply.kind {
            ReplyKind::Read if self.memory.is_logging() => self.mark_read(buffers, buffer),
            ReplyKind::Flush => self.urgent = true,
            ReplyKind::Read | ReplyKind::Other => {}
        }
        if self.room > 0 {
            self.give_room_back(buffers, buffer);
        }
        reply.status.put_u8(status);
        self.memory.mark_segment(&reply.status);
        self.queue.complete(reply.head, written);
    }

    fn mark_read(&self, buffers: &Buffers, buffer: u32) {
        for segment in buffers.segments(buffer) {
            self.memory.mark_segment(segment);
        }
    }

    /// Whether it has completions to publish and was not noted for that yet.
    pub(crate) fn is_dirty_first(&mut self) -> bool {
        let first = !self.marked_dirty && self.queue.is_dirty();
        self.marked_dirty |= first;
        first
    }

    /// Makes completions visible to the guest. Returns how many.
    pub(crate) fn publish(&mut self) -> u32 {
        self.marked_dirty = false;
        let completions = self.queue.publish(&self.memory).into();
        self.fresh += completions;
        completions
    }

    /// When to call the guest for completions that were published in the turn that began at `now`.
    #[inline]
    pub(crate) fn next_call(&mut self, now: Time) -> Call {
        let published = Published {
            completions: std::mem::take(&mut self.fresh),
            in_flight: self.queue.in_flight().into(),
            urgent: std::mem::take(&mut self.urgent),
        };
        let queue = &self.queue;
        self.calls.published(now, published, || queue.has_work())
    }

    /// The moment of a call that waits for nothing else.
    pub(crate) fn moment(&self) -> Moment {
        self.calls.moment()
    }

    /// Whether its call waits for more completions, and until when.
    pub(crate) fn holds_call(&self) -> bool {
        self.calls.is_holding()
    }

    /// When a call that waits for more completions is due.
    pub(crate) fn call_due(&self) -> Time {
        self.calls.due()
    }

    /// The previous server of this ring may have died between publishing a completion and calling the guest. A spurious
    /// call is harmless.
    pub(crate) fn call_for_predecessor(&mut self) {
        if self.queue.was_used() {
            self.call_guest();
        }
    }

    /// Calls the guest, if it wants a call for the published completions.
    pub(crate) fn call_if_wanted(&mut self, now: Time) {
        let wanted = self.queue.wants_call();
        self.calls.called(wanted, now);
        if wanted {
            self.call_guest();
        }
    }

    fn call_guest(&mut self) {
        if let Some(call) = &self.call
            && !self.standing.is_shunned()
        {
            self.account.calls += 1;
            if call.call().is_err() {
                self.shun();
            }
        }
    }
}

fn kick_tag(index: u32) -> Tag {
    Tag {
        kind: tag::KICK,
        owner: index,
        slot: 0,
    }
}

#[cfg(test)]
mod tests;
