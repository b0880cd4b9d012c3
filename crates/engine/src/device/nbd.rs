//! One NBD client on its disk's I/O thread.
//!
//! An NBD client's I/O starts and ends here, after the handshake (which runs elsewhere). Requests are decoded from one
//! large receive, many at a time. Replies are collected and sent in one system call; payloads are sent straight from
//! their buffers.
//!
//! # Always true
//! - at most one receive and one send are in flight, so the streams stay in order
//! - a client that does not read its replies holds at most [`MOST_REQUESTS`] requests and about [`MOST_BYTES`] of
//!   buffers: beyond that nothing more is received from it
//! - all clients of a thread together hold at most the budget of [`nbd_budget`](super::nbd_budget), and those of one
//!   disk at most its part
//! - once the client is gone, its requests that have not started are dropped ([`ThreadCx::abandon`])
//! - a client that sent a disconnect is gone when both directions of its socket are closed; any other, when it sends no
//!   more
//! - once the daemon closes the connection, none of its requests reaches the shard, not even received ones: its disk
//!   may be gone
//! - the connection is dropped when nothing of it is in flight: no request, no receive, no send
//!
//! # Picture
//! ```text
//!   socket ──> input buffer ──decode──> requests ──> shard
//!                  └ rest of a large payload goes straight into its own buffer
//!   socket <── sending <── next <── replies          (the kernel sends one message; the next is filled meanwhile)
//! ```

mod other_end;
mod outgoing;

use super::ReplyTo;
use super::account::Account;
use super::thread_cx::ThreadCx;
use crate::counters::DiskCounters;
use crate::sys::buffers::Buffers;
use crate::sys::ring::{Completion, Tag};
use crate::tag;
use other_end::{Watch, receive_tag};
use outgoing::Outgoing;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use tidegate_core::request::{Data, DiskId, Extent, Fault, Op, Outcome};
use tidegate_core::round_robin::{Allowance, Flow, Share};
use tidegate_core::units::{Span, Time};
use tidegate_front::nbd::session::{ClientRequest, Head, Session, Step};
use tidegate_front::nbd::wire::REQUEST_BYTES;

/// Bytes received at once: some thousand requests, or a few dozen 4 KiB writes.
const INPUT: usize = 256 << 10;
/// Requests of one client between their arrival and the sending of their replies.
const MOST_REQUESTS: usize = 512;
/// Bytes of buffers that one client may hold before no more requests are accepted (one request always is).
const MOST_BYTES: usize = 64 << 20;
/// Bytes that the socket should accept at once: the replies to 128 reads of 4 KiB, with the kernel's overhead for each.
const SEND_BUFFER: i32 = 1 << 20;
/// Room for the headers of all replies of a message.
const HEADS: usize = MOST_REQUESTS * Head::MAX;
/// Extents in one reply: the client repeats the request for the rest.
const MOST_EXTENTS: usize = 2048;
/// Extents in a list beyond those that are wanted: neighbours of one kind are merged.
const MORE_EXTENTS: usize = 4;

/// See the module.
pub(crate) struct Connection {
    socket: OwnedFd,
    disk: DiskId,
    session: Session,
    input: u32,
    /// Range of received bytes in `input` that are not decoded yet: from, to.
    fill: (usize, usize),
    /// The buffer that the receive in flight fills.
    receiving: Option<u32>,
    payload: Option<Payload>,
    sending: Outgoing,
    next: Outgoing,
    send_in_flight: bool,
    /// Requests in the shard.
    in_flight: usize,
    /// Bytes in buffers of requests and replies.
    held: usize,
    /// No more is received: the client has sent a disconnect, or is gone.
    closing: bool,
    /// The client has sent a disconnect: its earlier requests are carried out while its end is open.
    disconnect_received: bool,
    /// The kernel reports that the client sends no more; earlier data may not have been received yet.
    hung_up: bool,
    /// Whether its end was closed: its requests that had not started were dropped.
    abandoned: bool,
    watch: Watch,
    /// No more requests are accepted, not even received ones: its disk may be gone.
    dismissed: bool,
    /// Its next request waits for memory that other connections hold.
    waits_for_memory: bool,
    /// What it has received waits for its next turn: others compete.
    backlogged: bool,
    /// Its share of the thread, and what it has had.
    pub(crate) flow: Flow,
    /// Nothing can be sent any more.
    dead: bool,
    noted: bool,
    account: Account,
    counters: Option<Arc<DiskCounters>>,
    /// Dropped with the connection, to report its end to the code that accepted the client.
    presence: Option<Box<dyn Send>>,
}

/// A write whose payload is not complete yet.
#[derive(Clone, Copy)]
struct Payload {
    /// The request. With a refusal, the payload is discarded and then the refusal is sent.
    client_request: ClientRequest,
    refused: Option<Fault>,
    buffer: Option<u32>,
    got: usize,
}

impl Connection {
    /// Takes over a socket after the handshake; `early` are bytes that were received with its last message.
    pub(crate) fn new(
        socket: OwnedFd,
        disk: DiskId,
        session: Session,
        early: &[u8],
        buffers: &mut Buffers,
    ) -> std::io::Result<Connection> {
        crate::sys::os::widen_send_buffer(&socket, SEND_BUFFER);
        let input = buffers.claim_pool(disk, INPUT)?;
        let early = &early[..early.len().min(INPUT)];
        buffers.put(
            Data {
                buffer: input,
                start: 0,
            },
            early,
        );
        Ok(Connection {
            socket,
            disk,
            session,
            input,
            fill: (0, early.len()),
            receiving: None,
            payload: None,
            sending: Outgoing::new(disk, buffers)?,
            next: Outgoing::new(disk, buffers)?,
            send_in_flight: false,
            in_flight: 0,
            held: 0,
            closing: false,
            disconnect_received: false,
            hung_up: false,
            abandoned: false,
            watch: Watch::Off,
            dismissed: false,
            waits_for_memory: false,
            backlogged: false,
            flow: Flow::new(Share::default()),
            dead: false,
            noted: false,
            account: Account::default(),
            counters: None,
            presence: None,
        })
    }

    /// Owns `presence` until the connection is dropped.
    pub(crate) fn with_presence(mut self, presence: Box<dyn Send>) -> Connection {
        self.presence = Some(presence);
        self
    }

    /// What the I/O thread does for it is counted there.
    pub(crate) fn with_counters(mut self, counters: Arc<DiskCounters>) -> Connection {
        self.counters = Some(counters);
        self
    }

    /// Sets its share of the thread.
    pub(crate) fn with_share(mut self, share: Share) -> Connection {
        self.flow.set_share(share);
        self
    }

    /// Whether requests that it has received wait for its next turn.
    pub(crate) fn is_backlogged(&self) -> bool {
        self.backlogged && !self.dead && !self.dismissed
    }

    pub(crate) fn disk(&self) -> DiskId {
        self.disk
    }

    /// Whether this is the first time that it has work since its account was read.
    #[inline]
    pub(crate) fn is_served_first(&mut self) -> bool {
        self.account.is_served_first()
    }

    /// Its weight when the thread's time is divided.
    pub(crate) fn share(&self) -> u64 {
        self.account.share()
    }

    /// Gets its part of the thread's time.
    pub(crate) fn charge(&mut self, busy: Span, now: Time) {
        if let Some(counters) = &self.counters {
            let in_flight = self.in_flight as u64;
            self.account
                .charge(counters.connections(), busy, in_flight, now);
        }
    }

    /// The disk's size has changed.
    pub(crate) fn resized(&mut self, size: u64) {
        self.session.resized(size);
    }

    /// Accepts no more requests; those in flight are answered.
    pub(crate) fn close(&mut self) {
        self.closing = true;
        self.dismissed = true;
        // Ends a receive that waits for an idle client, and a send that waits for a client that does not read.
        crate::sys::os::shut_down(&self.socket, self.dead);
    }

    /// Disconnects the client at once, because its disk is being detached. Requests without a reply have not happened
    /// for the client. A client that never reads cannot delay the detach.
    pub(crate) fn dismiss(&mut self) {
        self.dead = true;
        self.close();
    }

    /// A receive or send has completed, or the other end was closed.
    pub(crate) fn completed(&mut self, cx: &mut ThreadCx, completion: Completion) {
        match completion.tag.kind {
            tag::RECEIVE => self.received(cx, completion.result),
            tag::HANG_UP => self.watched(completion.result),
            _ => self.sent(cx, completion.result),
        }
    }

    fn received(&mut self, cx: &mut ThreadCx, result: i32) {
        let target = self.receiving.take().expect("one receive was in flight");
        cx.buffers.returned(target);
        match usize::try_from(result) {
            Ok(0) => self.closing = true,
            Ok(bytes) if target == self.input => self.fill.1 += bytes,
            Ok(bytes) => {
                let payload = self
                    .payload
                    .as_mut()
                    .expect("a payload waits for its bytes");
                payload.got += bytes;
            }
            // A receive is cancelled when the connection moves to another thread.
            Err(_) if matches!(-result, libc::EINTR | libc::EAGAIN | libc::ECANCELED) => {}
            Err(_) => {
                self.closing = true;
                self.dead = true;
            }
        }
    }

    fn sent(&mut self, cx: &mut ThreadCx, result: i32) {
        self.send_in_flight = false;
        match usize::try_from(result) {
            Ok(bytes) => self.sending.message.sent(bytes),
            Err(_) if matches!(-result, libc::EINTR | libc::EAGAIN) => {}
            Err(_) => {
                self.dead = true;
                self.close();
            }
        }
        if self.dead || self.sending.message.is_empty() {
            let bytes = self.sending.clear(&mut cx.buffers);
            self.release_bytes(cx, bytes);
        }
    }

    /// Decodes received bytes as far as it may, then starts a receive and a send if none is in flight. Call after any
    /// change. Returns whether the connection has ended and can be dropped.
    pub(crate) fn advance(
        &mut self,
        index: u32,
        cx: &mut ThreadCx,
        allowance: &mut Allowance,
    ) -> bool {
        self.noted = false;
        self.decode(index, cx, allowance);
        self.drop_if_gone(index, cx);
        self.send(index, cx);
        self.receive(index, cx);
        let quiet = self.in_flight == 0 && self.receiving.is_none() && !self.send_in_flight;
        let over =
            quiet && self.closing && (self.dead || self.next.is_empty()) && !self.is_backlogged();
        self.stop_watching(index, cx, over) && over
    }

    /// Decodes the header at a position of the input.
    // Inline: it runs for every request, and its result is large.
    #[inline(always)]
    fn peek(&self, cx: &ThreadCx, at: usize) -> Step {
        if self.fill.1 - at < REQUEST_BYTES {
            return Step::Need(REQUEST_BYTES);
        }
        let head = cx.buffers.get_array::<REQUEST_BYTES>(self.at(at));
        self.session
            .decode(&head.expect("the input is one piece of memory"))
    }

    /// Releases its memory; only after [`Connection::advance`] returned true.
    pub(crate) fn free(mut self, cx: &mut ThreadCx) {
        let buffers = &mut cx.buffers;
        cx.budget.give_back(self.disk, self.held);
        self.sending.clear(buffers);
        self.next.clear(buffers);
        if let Some(buffer) = self.payload.and_then(|p| p.buffer) {
            buffers.release(buffer);
        }
        for slot in [self.sending.heads, self.next.heads, self.input] {
            buffers.release(slot);
        }
    }

    /// Size of a request's buffer in bytes.
    fn room(&self, client_request: &ClientRequest) -> usize {
        match client_request.op {
            Op::Write => client_request.payload as usize,
            Op::Read => client_request.len as usize,
            Op::Extents => {
                let extents = list_of(client_request);
                let list = extents * Extent::SIZE;
                list.max(self.session.extents_room(client_request, extents))
            }
            _ => 0,
        }
    }

    /// Whether a request, or a part of a payload or its end, has been received and is not decoded.
    fn has_input(&self) -> bool {
        let here = self.fill.1 - self.fill.0;
        match self.payload {
            Some(Payload {
                client_request,
                got,
                ..
            }) => here > 0 || got == client_request.payload as usize,
            None => here >= REQUEST_BYTES,
        }
    }

    /// Whether the client must wait: it has as many requests or bytes in flight as one client may.
    fn must_wait(&self) -> bool {
        self.must_wait_beyond(u32::MAX)
    }

    /// The same, where it may have so many requests at most.
    fn must_wait_beyond(&self, requests: u32) -> bool {
        let in_progress = self.in_flight + self.next.replies + self.sending.replies;
        in_progress >= MOST_REQUESTS.min(requests as usize) || self.held >= MOST_BYTES
    }

    fn decode(&mut self, index: u32, cx: &mut ThreadCx, allowance: &mut Allowance) {
        self.backlogged = false;
        while !self.dead && !self.dismissed {
            if !allowance.is_left() {
                self.backlogged = self.has_input();
                return;
            }
            if let Some(payload) = self.payload {
                if !self.finish_payload(index, cx) {
                    return;
                }
                allowance.take(payload.client_request.payload.into());
                continue;
            }
            self.waits_for_memory = false;
            if self.closing && self.fill.0 == self.fill.1
                || self.must_wait_beyond(allowance.in_flight())
            {
                return;
            }
            match self.peek(cx, self.fill.0) {
                Step::Need(_) => return,
                Step::Request(client_request) => {
                    let takes = Buffers::block_of(self.room(&client_request));
                    if !cx.budget.admits(index, self.disk, takes) {
                        self.waits_for_memory = true;
                        return;
                    }
                    self.begin(index, cx, client_request, None);
                    if self.payload.is_none() {
                        let moved = if client_request.op == Op::Read {
                            client_request.len
                        } else {
                            0
                        };
                        allowance.take(moved.into());
                    }
                }
                Step::Refuse(client_request, fault) => {
                    self.begin(index, cx, client_request, Some(fault));
                    if self.payload.is_none() {
                        allowance.take(0);
                    }
                }
                Step::Disconnect => {
                    self.fill = (0, 0);
                    self.closing = true;
                    self.disconnect_received = true;
                    return;
                }
                Step::Violation(_) => {
                    self.fill = (0, 0);
                    self.dead = true;
                    self.close();
                    return;
                }
            }
        }
    }

    fn begin(
        &mut self,
        index: u32,
        cx: &mut ThreadCx,
        client_request: ClientRequest,
        refused: Option<Fault>,
    ) {
        self.fill.0 += REQUEST_BYTES;
        if client_request.payload > 0 {
            let buffer = match refused {
                None => self.claim(cx, client_request.payload as usize),
                Some(_) => None,
            };
            let refused = refused.or(if buffer.is_none() {
                Some(Fault::Io)
            } else {
                None
            });
            self.payload = Some(Payload {
                client_request,
                refused,
                buffer,
                got: 0,
            });
            return;
        }
        match refused {
            Some(fault) => self.refuse(index, cx, &client_request, fault),
            None => self.submit_without_payload(index, cx, client_request),
        }
    }

    fn submit_without_payload(
        &mut self,
        index: u32,
        cx: &mut ThreadCx,
        client_request: ClientRequest,
    ) {
        let room = self.room(&client_request);
        match self.claim(cx, room) {
            Some(buffer) => {
                if client_request.op == Op::Extents {
                    // A zero length ends a list that the datastore does not fill.
                    let list = list_of(&client_request) * Extent::SIZE;
                    cx.buffers.clear(Data { buffer, start: 0 }, list.min(room));
                }
                self.submit(index, cx, client_request, buffer);
            }
            None => self.refuse(index, cx, &client_request, Fault::Io),
        }
    }

    fn submit(
        &mut self,
        index: u32,
        cx: &mut ThreadCx,
        client_request: ClientRequest,
        buffer: u32,
    ) {
        self.in_flight += 1;
        self.account.taken += 1;
        if matches!(client_request.op, Op::Read | Op::Write) {
            self.account.bytes += u64::from(client_request.len);
        }
        let request = client_request.request(Data { buffer, start: 0 }, cx.now);
        cx.submit(
            self.disk,
            request,
            ReplyTo::Nbd {
                connection: index,
                client_request,
            },
        );
    }

    fn refuse(
        &mut self,
        index: u32,
        cx: &mut ThreadCx,
        client_request: &ClientRequest,
        fault: Fault,
    ) {
        let head = self.session.done(client_request, Err(fault));
        self.next.push_head(&mut cx.buffers, &head);
        self.note(index, cx);
    }

    fn note(&mut self, index: u32, cx: &mut ThreadCx) {
        if !self.noted {
            self.noted = true;
            cx.note_ready_connection(index);
        }
    }

    #[inline]
    fn claim(&mut self, cx: &mut ThreadCx, len: usize) -> Option<u32> {
        let buffer = cx.buffers.claim_pool(self.disk, len).ok()?;
        let bytes = cx.buffers.block(buffer);
        self.held += bytes;
        cx.budget.take(self.disk, bytes);
        Some(buffer)
    }

    /// Releases this many bytes of buffers from the budget.
    fn release_bytes(&mut self, cx: &mut ThreadCx, bytes: usize) {
        self.held -= bytes;
        cx.budget.give_back(self.disk, bytes);
    }

    fn at(&self, position: usize) -> Data {
        Data {
            buffer: self.input,
            start: u32::try_from(position).expect("the input is far below 4 GiB"),
        }
    }

    /// Moves received bytes to their payload; true once it is complete and its request was submitted.
    fn finish_payload(&mut self, index: u32, cx: &mut ThreadCx) -> bool {
        let Some(mut payload) = self.payload else {
            return true;
        };
        let need = payload.client_request.payload as usize - payload.got;
        let here = (self.fill.1 - self.fill.0).min(need);
        if let (Some(buffer), true) = (payload.buffer, here > 0) {
            let start = u32::try_from(payload.got).expect("a payload is far below 4 GiB");
            cx.buffers
                .copy(self.at(self.fill.0), Data { buffer, start }, here);
        }
        self.fill.0 += here;
        payload.got += here;
        if here < need {
            self.payload = Some(payload);
            return false;
        }
        self.payload = None;
        match (payload.refused, payload.buffer) {
            (None, Some(buffer)) => self.submit(index, cx, payload.client_request, buffer),
            (refused, _) => self.refuse(
                index,
                cx,
                &payload.client_request,
                refused.unwrap_or(Fault::Io),
            ),
        }
        true
    }

    /// Starts a receive unless one is in flight or the client must wait. While it waits, the kernel watches for its
    /// disconnection. After a hang-up the rest is still received, as far as there is room, to see whether it ends with
    /// a disconnect.
    fn receive(&mut self, index: u32, cx: &mut ThreadCx) {
        // What it has received is decoded first: the rest of a payload is then received into its own buffer.
        if self.receiving.is_some() || self.is_backlogged() {
            return;
        }
        let waits = self.payload.is_none() && (self.waits_for_memory || self.must_wait());
        if self.closing || waits && !(self.hung_up && self.fill.1 < INPUT) {
            return self.watch_other_end(index, cx);
        }
        let tag = receive_tag(index);
        let fd = self.socket.as_raw_fd();
        if self.fill.0 == self.fill.1 {
            self.fill = (0, 0);
            if let Some(Payload {
                client_request,
                buffer: Some(buffer),
                got,
                ..
            }) = self.payload
            {
                // The rest of a large payload is received into its own buffer, without a copy.
                let start = u32::try_from(got).expect("a payload is far below 4 GiB");
                let left = client_request.payload as usize - got;
                cx.ring
                    .receive(fd, &mut cx.buffers, Data { buffer, start }, left, tag);
                self.receiving = Some(buffer);
                return;
            }
        } else if self.fill.1 == INPUT {
            self.make_room(cx);
        }
        if self.fill.1 < INPUT {
            let data = self.at(self.fill.1);
            cx.ring
                .receive(fd, &mut cx.buffers, data, INPUT - self.fill.1, tag);
            self.receiving = Some(self.input);
        }
    }

    /// Moves the start of an incomplete message to the front of the input.
    fn make_room(&mut self, cx: &mut ThreadCx) {
        let len = self.fill.1 - self.fill.0;
        let mut rest = [0; 32];
        if len <= rest.len() {
            cx.buffers.get(self.at(self.fill.0), &mut rest[..len]);
            cx.buffers.put(self.at(0), &rest[..len]);
            self.fill = (0, len);
        }
    }

    /// Starts a send unless one is in flight.
    fn send(&mut self, index: u32, cx: &mut ThreadCx) {
        if self.send_in_flight {
            return;
        }
        if self.dead {
            let bytes = self.next.clear(&mut cx.buffers);
            return self.release_bytes(cx, bytes);
        }
        if self.sending.message.is_empty() {
            if self.next.is_empty() {
                return;
            }
            std::mem::swap(&mut self.sending, &mut self.next);
        }
        self.sending.message.prepare();
        let tag = Tag {
            kind: tag::SEND,
            owner: index,
            slot: 0,
        };
        cx.ring
            .send(self.socket.as_raw_fd(), &self.sending.message, tag);
        self.send_in_flight = true;
    }

    /// A request has completed. Returns whether the thread should call [`Connection::advance`]: only the first
    /// completion does.
    pub(crate) fn answer(
        &mut self,
        cx: &mut ThreadCx,
        buffer: u32,
        client_request: &ClientRequest,
        outcome: Outcome,
    ) -> bool {
        self.in_flight -= 1;
        self.account.answered += 1;
        let buffers = &mut cx.buffers;
        match (outcome, client_request.op) {
            (Ok(()), Op::Read) => {
                let head = self.session.data(client_request);
                self.next.push_head(buffers, &head);
                self.next
                    .message
                    .push(buffers, buffer, 0, client_request.len as usize);
                self.next.buffers.push(buffer);
            }
            (Ok(()), Op::Extents) => self.answer_extents(buffers, buffer, client_request),
            _ => {
                let head = self.session.done(client_request, outcome);
                self.next.push_head(buffers, &head);
                let bytes = buffers.block(buffer);
                buffers.release(buffer);
                self.release_bytes(cx, bytes);
            }
        }
        !std::mem::replace(&mut self.noted, true)
    }

    fn answer_extents(
        &mut self,
        buffers: &mut Buffers,
        buffer: u32,
        client_request: &ClientRequest,
    ) {
        let mut extents = Vec::new();
        let most = list_of(client_request).min(buffers.len(buffer) / Extent::SIZE);
        for at in 0..most {
            let mut bytes = [0; Extent::SIZE];
            let start = u32::try_from(at * Extent::SIZE).expect("a list of extents is short");
            buffers.get(Data { buffer, start }, &mut bytes);
            match Extent::decode(&bytes) {
                Some(extent) => extents.push(extent),
                None => break,
            }
        }
        let room = self.session.extents_room(client_request, most);
        let mut reply = Vec::with_capacity(room);
        self.session.extents(client_request, extents, &mut reply);
        // The buffer was claimed with room for the reply.
        buffers.put(Data { buffer, start: 0 }, &reply);
        self.next.message.push(buffers, buffer, 0, reply.len());
        self.next.buffers.push(buffer);
        self.next.replies += 1;
    }
}

/// The most extents in the list of a request.
fn list_of(client_request: &ClientRequest) -> usize {
    let wanted = match client_request.first_only {
        true => 1,
        false => MOST_EXTENTS,
    };
    wanted + MORE_EXTENTS
}
