//! One connection to an NBD server on the I/O thread's ring: requests out, replies in.
//!
//! The image advances it after any change. It takes requests from the [`Work`] and passes the replies back. Write
//! payloads are sent straight from their buffers; large read payloads are received straight into theirs.
//!
//! # Always true
//! - at most one send and one receive are in flight, and the connection is dropped only when neither is
//! - a request whose memory the kernel may still read is `in_message`, and does not end
//! - after an invalid reply the connection is aborted, and nothing more is read from it

use super::connect::Connected;
use super::work::{InvalidReply, Offer, Work};
use crate::datastore::{ImageCx, bytes};
use crate::sys::buffers::Buffers;
use crate::sys::message::Message;
use crate::sys::os;
use crate::tag;
use std::os::fd::{AsRawFd, OwnedFd};
use tidegate_core::request::{Data, DiskId, Fault, Op};
use tidegate_front::nbd::client::requests::{self, Part, Replies, Step, What};
use tidegate_front::nbd::wire::{EXTENT_BYTES, REQUEST_BYTES};

/// The slots of the connection's operations on the ring.
pub(super) const RECEIVE: u32 = 0;
pub(super) const SEND: u32 = 1;

/// Bytes received at once: the same as in our server.
const INPUT: usize = 256 << 10;
/// Requests in one message; bounds the memory for its headers.
const MOST_PARTS: usize = 256;
/// Payload bytes after which a message is full (the last may exceed it): a few milliseconds of a fast network.
const MOST_BYTES: usize = 4 << 20;
/// Payloads with this much missing are received straight into their buffer; smaller ones through the input.
const LARGE: usize = 32 << 10;
/// Enough for almost every reply header.
const HEAD: usize = 64;
/// The input is copied in pieces that fit the processor's cache.
const PIECE: usize = 4096;

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// The server closed it, or the network failed.
    Gone,
    /// The server reports that it is shutting down.
    ShuttingDown,
    /// The server violated the protocol.
    Violation,
    /// The image gave it up.
    GivenUp,
}

/// The rest of a reply whose header was decoded.
#[derive(Clone, Copy)]
struct Body {
    cookie: u64,
    last: bool,
    left: usize,
    kind: BodyKind,
}

#[derive(Clone, Copy)]
enum BodyKind {
    /// Into the buffer, from this position.
    Data(Data),
    Extents,
}

/// See the module.
pub(super) struct Connection {
    socket: OwnedFd,
    replies: Replies,
    message: Message,
    heads: u32,
    input: u32,
    /// Range of received bytes that are not decoded yet: from, to.
    fill: (usize, usize),
    body: Option<Body>,
    sending: bool,
    /// Requests taken that have no reply yet, and how many the current message contains.
    unanswered: usize,
    carried: usize,
    /// Requests whose data is in the current message.
    in_message: Vec<u32>,
    /// The buffer that the receive in flight fills.
    receiving: Option<u32>,
    loss: Option<Loss>,
    /// The last message contains the disconnect.
    disconnecting: bool,
}

impl Connection {
    pub(super) fn new(
        disk: DiskId,
        connected: Connected,
        buffers: &mut Buffers,
    ) -> std::io::Result<Connection> {
        let heads = buffers.claim_pool(disk, MOST_PARTS * REQUEST_BYTES)?;
        let input = match buffers.claim_pool(disk, INPUT) {
            Ok(input) => input,
            Err(error) => {
                buffers.release(heads);
                return Err(error);
            }
        };
        Ok(Connection {
            replies: Replies::new(&connected.agreed),
            socket: connected.socket,
            message: Message::new(),
            heads,
            input,
            fill: (0, 0),
            body: None,
            sending: false,
            unanswered: 0,
            carried: 0,
            in_message: Vec::new(),
            receiving: None,
            loss: None,
            disconnecting: false,
        })
    }

    /// Why it ends, if it does.
    pub(super) fn loss(&self) -> Option<Loss> {
        self.loss
    }

    /// Whether no operation of it is in flight.
    pub(super) fn is_idle(&self) -> bool {
        !self.sending && self.receiving.is_none()
    }

    /// Releases its memory; only when it is idle.
    pub(super) fn free(self, buffers: &mut Buffers) {
        buffers.release(self.heads);
        buffers.release(self.input);
    }

    /// Ends it: shuts the socket down, so that its operations complete.
    pub(super) fn abort(&mut self, why: Loss) {
        if self.loss.is_none() {
            self.loss = Some(why);
            os::shut_down(&self.socket, true);
        }
    }

    /// Disconnects in order if nothing is in flight; otherwise closes at once.
    pub(super) fn disconnect(&mut self, cx: &mut ImageCx<'_>) {
        if self.sending || self.disconnecting || self.loss.is_some() {
            return self.abort(Loss::GivenUp);
        }
        self.disconnecting = true;
        self.message.clear();
        self.push_head(cx, 0, &requests::disconnect());
        self.submit(cx);
    }

    /// An operation of it has completed. Returns whether the server's silence ends: data was received, or was sent
    /// while no earlier request waited for a reply. Data sent behind a waiting request proves nothing, because the
    /// kernel also buffers it for a dead server.
    pub(super) fn completed(
        &mut self,
        cx: &mut ImageCx<'_>,
        slot: u32,
        result: i32,
        offer: &Offer,
        work: &mut Work,
    ) -> bool {
        let moved = usize::try_from(result);
        let mut ends_silence = moved.is_ok_and(|bytes| bytes > 0);
        if slot == SEND {
            ends_silence &= self.unanswered <= self.carried;
            self.sent(moved, -result, offer, work);
        } else {
            self.received(cx, moved, -result);
        }
        ends_silence
    }

    fn sent(
        &mut self,
        moved: Result<usize, std::num::TryFromIntError>,
        errno: i32,
        offer: &Offer,
        work: &mut Work,
    ) {
        self.sending = false;
        match moved {
            Ok(bytes) => self.message.sent(bytes),
            Err(_) if matches!(errno, libc::EINTR | libc::EAGAIN) => {}
            Err(_) => self.abort(Loss::Gone),
        }
        if self.loss.is_some() || self.message.is_empty() {
            self.message.clear();
            for part in self.in_message.drain(..) {
                work.message_sent(offer, part);
            }
            if self.disconnecting {
                self.abort(Loss::GivenUp);
            }
        }
    }

    fn received(
        &mut self,
        cx: &mut ImageCx<'_>,
        moved: Result<usize, std::num::TryFromIntError>,
        errno: i32,
    ) {
        let buffer = self.receiving.take().expect("one receive was in flight");
        cx.buffers.returned(buffer);
        match moved {
            Ok(0) => self.abort(Loss::Gone),
            Ok(bytes) if buffer == self.input => self.fill.1 += bytes,
            Ok(bytes) => self.advance_body(bytes),
            // A receive is cancelled when the disk moves to another thread.
            Err(_) if matches!(errno, libc::EINTR | libc::EAGAIN | libc::ECANCELED) => {}
            Err(_) => self.abort(Loss::Gone),
        }
    }

    /// Ends the receive in flight, which the other end may not end for long: the disk moves to another thread.
    pub(super) fn leave(&self, cx: &mut ImageCx<'_>) {
        if self.receiving.is_some() {
            cx.ring.cancel(cx.tag(RECEIVE), tag::IGNORED);
        }
    }

    fn advance_body(&mut self, bytes: usize) {
        let body = self.body.as_mut().expect("a payload waits for its bytes");
        body.left -= bytes;
        if let BodyKind::Data(data) = &mut body.kind {
            *data = data.skip(u32::try_from(bytes).expect("a payload is far below 4 GiB"));
        }
    }

    /// Decodes received data, then starts a send and a receive if none is in flight. Returns how many replies were
    /// decoded.
    pub(super) fn advance(&mut self, cx: &mut ImageCx<'_>, offer: &Offer, work: &mut Work) -> u32 {
        let mut replies = 0;
        if self.loss.is_none()
            && let Err(loss) = self.decode(cx, offer, work, &mut replies)
        {
            self.abort(loss);
        }
        self.unanswered -= replies as usize;
        if self.loss.is_none() {
            self.send(cx, work);
            self.receive(cx);
        }
        replies
    }

    fn decode(
        &mut self,
        cx: &mut ImageCx<'_>,
        offer: &Offer,
        work: &mut Work,
        replies: &mut u32,
    ) -> Result<(), Loss> {
        loop {
            if let Some(body) = self.body {
                self.take_body(cx, work)?;
                let left = self.body.map_or(0, |body| body.left);
                if left > 0 {
                    return Ok(());
                }
                self.body = None;
                if body.last {
                    work.answered(offer, body.cookie)
                        .map_err(|InvalidReply| Loss::Violation)?;
                    *replies += 1;
                }
                continue;
            }
            let Some(part) = self.head(cx, work)? else {
                return Ok(());
            };
            self.fill.0 += part.consumed;
            let (cookie, last) = (part.cookie, part.last);
            let body = |left, kind| {
                Some(Body {
                    cookie,
                    last,
                    left,
                    kind,
                })
            };
            match part.what {
                What::Nothing => {}
                What::Data { offset, len } => {
                    let data = work
                        .cover(cookie, offset, len)
                        .map_err(|InvalidReply| Loss::Violation)?;
                    self.body = body(bytes(len.into()), BodyKind::Data(data));
                }
                What::Zeroes { offset, len } => {
                    let data = work
                        .cover(cookie, offset, len)
                        .map_err(|InvalidReply| Loss::Violation)?;
                    cx.buffers.clear(data, bytes(len.into()));
                }
                What::Extents { bytes: len } => {
                    self.body = body(bytes(len.into()), BodyKind::Extents)
                }
                What::Failed(Fault::Gone) => return Err(Loss::ShuttingDown),
                What::Failed(fault) => work.fail(cookie, fault),
            }
            if self.body.is_none() && last {
                work.answered(offer, cookie)
                    .map_err(|InvalidReply| Loss::Violation)?;
                *replies += 1;
            }
        }
    }

    /// The next reply's header, if it was received completely.
    fn head(&mut self, cx: &mut ImageCx<'_>, work: &Work) -> Result<Option<Part>, Loss> {
        let have = self.fill.1 - self.fill.0;
        if have == 0 {
            return Ok(None);
        }
        let mut short = [0; HEAD];
        let mut long = Vec::new();
        let mut head = &mut short[..have.min(HEAD)];
        loop {
            cx.buffers.get(self.at(self.fill.0), head);
            match self.replies.decode(head, |cookie| work.sent(cookie)) {
                Step::Part(part) => return Ok(Some(part)),
                Step::Violation(violation) => {
                    tracing::debug!(%violation, "an NBD server broke the protocol");
                    return Err(Loss::Violation);
                }
                Step::Need(more) if more <= have && more > head.len() => {
                    // An error with its message.
                    long.resize(more, 0);
                    head = &mut long;
                }
                Step::Need(more) if more < INPUT => return Ok(None),
                Step::Need(_) => return Err(Loss::Violation),
            }
        }
    }

    /// Moves received payload to its buffer.
    fn take_body(&mut self, cx: &mut ImageCx<'_>, work: &mut Work) -> Result<(), Loss> {
        while let Some(Body {
            cookie, left, kind, ..
        }) = self.body
        {
            let here = left.min(self.fill.1 - self.fill.0).min(PIECE);
            match kind {
                BodyKind::Data(data) if here > 0 => {
                    let mut piece = [0; PIECE];
                    cx.buffers.get(self.at(self.fill.0), &mut piece[..here]);
                    cx.buffers.put(data, &piece[..here]);
                    self.take(here);
                }
                BodyKind::Extents if here >= EXTENT_BYTES => {
                    let mut piece = [0; EXTENT_BYTES];
                    cx.buffers.get(self.at(self.fill.0), &mut piece);
                    let extent = requests::extents(&piece).next().ok_or(Loss::Violation)?;
                    let list = work.data_of(cookie);
                    let room = cx.buffers.len(list.buffer) - list.start as usize;
                    if let Some((data, extent)) = work.place_extent(cookie, extent, room) {
                        cx.buffers.put(data, &extent.encode());
                    }
                    self.take(EXTENT_BYTES);
                }
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    fn take(&mut self, bytes: usize) {
        self.fill.0 += bytes;
        self.advance_body(bytes);
    }

    fn at(&self, position: usize) -> Data {
        Data {
            buffer: self.input,
            start: u32::try_from(position).expect("the input is far below 4 GiB"),
        }
    }

    fn send(&mut self, cx: &mut ImageCx<'_>, work: &mut Work) {
        if self.sending || self.disconnecting {
            return;
        }
        if self.message.is_empty() {
            let (mut heads, mut payload) = (0, 0);
            while heads < MOST_PARTS && payload < MOST_BYTES {
                let Some((at, part)) = work.next() else {
                    break;
                };
                let head = part.sent.encode(part.cookie);
                self.push_head(cx, heads, &head);
                heads += 1;
                if part.sent.op == Op::Write {
                    let len = bytes(part.sent.len.into());
                    part.in_message = true;
                    self.in_message.push(at);
                    self.message
                        .push(cx.buffers, part.data.buffer, part.data.start as usize, len);
                    payload += len;
                }
            }
            self.unanswered += heads;
            self.carried = heads;
        }
        if !self.message.is_empty() {
            self.submit(cx);
        }
    }

    fn push_head(&mut self, cx: &mut ImageCx<'_>, index: usize, head: &[u8; REQUEST_BYTES]) {
        let start = index * REQUEST_BYTES;
        let data = Data {
            buffer: self.heads,
            start: u32::try_from(start).expect("the headers of a message are few"),
        };
        cx.buffers.put(data, head);
        self.message
            .push(cx.buffers, self.heads, start, REQUEST_BYTES);
    }

    fn submit(&mut self, cx: &mut ImageCx<'_>) {
        self.message.prepare();
        cx.ring
            .send(self.socket.as_raw_fd(), &self.message, cx.tag(SEND));
        self.sending = true;
    }

    fn receive(&mut self, cx: &mut ImageCx<'_>) {
        if self.receiving.is_some() {
            return;
        }
        let fd = self.socket.as_raw_fd();
        let tag = cx.tag(RECEIVE);
        if self.fill.0 == self.fill.1 {
            self.fill = (0, 0);
            if let Some(Body {
                left,
                kind: BodyKind::Data(data),
                ..
            }) = self.body
                && left >= LARGE
            {
                // A plain read, because it supports vectors: guest memory is scattered.
                cx.ring.read(fd, cx.buffers, data, left, 0, tag);
                self.receiving = Some(data.buffer);
                return;
            }
        } else if INPUT - self.fill.1 < INPUT / 4 {
            self.make_room(cx);
        }
        let data = self.at(self.fill.1);
        cx.ring
            .receive(fd, cx.buffers, data, INPUT - self.fill.1, tag);
        self.receiving = Some(self.input);
    }

    /// Moves the start of a reply to the front of the input. It is short, otherwise it would have been decoded.
    fn make_room(&mut self, cx: &mut ImageCx<'_>) {
        let mut rest = vec![0; self.fill.1 - self.fill.0];
        cx.buffers.get(self.at(self.fill.0), &mut rest);
        cx.buffers.put(self.at(0), &rest);
        self.fill = (0, rest.len());
    }
}
