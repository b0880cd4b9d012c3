//! The server's transmission phase: a message becomes a [`Request`], an [`Outcome`] becomes a reply.
//!
//! It is the entry of the I/O path for NBD clients. An I/O thread passes received bytes to [`Session::decode`] and
//! sends the replies that the other methods return. Payloads do not pass through here. A decoded write has a payload
//! length, and the I/O thread receives the payload into the write's buffer. A read's [`Head`] is sent with the read's
//! buffer after it.
//!
//! # Always true
//! - Every [`ClientRequest`] lies within the disk and the limits, and its operation was offered to the client.
//! - Only [`Session::extents`] allocates: it appends to the caller's buffer.
//! - A request gets one complete reply. A read is one chunk, so "do not fragment" is always honoured.
//! - The session has no stream state. The caller must consume each payload from the stream.

use super::bitmap::Bitmap;
use super::handshake::Negotiated;
use super::wire::{
    Abilities, CHUNK, CHUNK_BYTES, EXTENT_BYTES, PAYLOAD_MAX, REQUEST_BYTES, RequestHeader, SIMPLE,
    SIMPLE_BYTES, chunk, command, command_flag, encode_extent, errno_of, len32, state_of,
};
use std::fmt;
use tidegate_core::request::{Data, Extent, Fault, Flags, Op, Outcome, Request};
use tidegate_core::units::Time;

/// A rejected write's payload is read and discarded up to this size. Beyond it the connection is closed: twice the
/// protocol's limit is no mistake, and reading it would be wasted work.
const SKIP_MAX: u32 = 2 * PAYLOAD_MAX;
/// Extents of one context in one reply: at most 128 KiB. The client requests the rest.
pub const EXTENTS_MAX: usize = 16 << 10;
/// Extents of one bitmap in one reply: at most 16 KiB.
pub const BITMAP_EXTENTS_MAX: usize = 2048;
/// Bytes of a chunk's offset, or of its metadata context's id.
const OFFSET_BYTES: usize = 8;
const CONTEXT_BYTES: usize = 4;
/// Bytes of an error chunk's payload: the error and an empty message.
const ERROR_BYTES: usize = 6;

/// One client in the transmission phase.
#[derive(Clone, Debug)]
pub struct Session {
    size: u64,
    payload_max: u32,
    abilities: Abilities,
    structured: bool,
    context: Option<u32>,
    /// Its bitmaps, with the ids of their contexts.
    bitmaps: Vec<(u32, Bitmap)>,
}

/// The meaning of received bytes. All but [`Step::Need`] and [`Step::Violation`] have consumed [`REQUEST_BYTES`]. The
/// payload, if any, follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An incomplete message: this many bytes are needed, counted from its beginning.
    Need(usize),
    /// A request to execute.
    Request(ClientRequest),
    /// A request to reject: discard the payload, then send [`Session::done`].
    Refuse(ClientRequest, Fault),
    /// The client disconnects and sends no more: reply to the requests in flight, then close.
    Disconnect,
    /// The stream is out of sync: close.
    Violation(Violation),
}

/// A request as received, with the fields that its reply needs. It is small enough to be stored with the I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientRequest {
    /// The client's id for it.
    pub cookie: u64,
    /// First byte on the disk.
    pub offset: u64,
    /// Number of bytes on the disk.
    pub len: u32,
    /// Bytes of payload after the message.
    pub payload: u32,
    /// The operation.
    pub op: Op,
    /// Its flags.
    pub flags: Flags,
    /// Whether the client wants at most one extent.
    pub first_only: bool,
}

impl ClientRequest {
    /// The request for the shard, once it has a buffer.
    #[inline]
    pub fn request(&self, data: Data, arrived: Time) -> Request {
        let ClientRequest {
            op,
            flags,
            offset,
            len,
            ..
        } = *self;
        Request {
            op,
            flags,
            offset,
            len: u64::from(len),
            data,
            arrived,
        }
    }
}

/// A protocol violation that closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A message does not begin with the magic number.
    BadMagic,
    /// A write's payload is far longer than allowed.
    WriteTooLong,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Violation::BadMagic => "a request did not begin with its magic number",
            Violation::WriteTooLong => "a write's payload is far longer than allowed",
        })
    }
}

/// The header of a reply. It is sent before the payload, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    bytes: [u8; Head::MAX],
    len: usize,
}

impl Head {
    /// The longest header: a data chunk's.
    pub const MAX: usize = CHUNK_BYTES + OFFSET_BYTES;

    /// The bytes to send.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    #[inline]
    fn simple(cookie: u64, errno: u32) -> Head {
        let mut bytes = [0; Head::MAX];
        bytes[0..4].copy_from_slice(&SIMPLE.to_be_bytes());
        bytes[4..8].copy_from_slice(&errno.to_be_bytes());
        bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
        Head {
            bytes,
            len: SIMPLE_BYTES,
        }
    }

    /// The last chunk of a reply, with `payload` bytes of which the first are `first`.
    #[inline]
    fn chunk<const N: usize>(cookie: u64, kind: u16, payload: u32, first: [u8; N]) -> Head {
        let mut bytes = [0; Head::MAX];
        bytes[0..4].copy_from_slice(&CHUNK.to_be_bytes());
        bytes[4..6].copy_from_slice(&chunk::DONE.to_be_bytes());
        bytes[6..8].copy_from_slice(&kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
        bytes[16..20].copy_from_slice(&payload.to_be_bytes());
        bytes[20..20 + N].copy_from_slice(&first);
        Head {
            bytes,
            len: CHUNK_BYTES + N,
        }
    }
}

impl Session {
    /// Starts where the handshake ended.
    pub fn new(negotiated: &Negotiated) -> Session {
        let Negotiated {
            export,
            structured,
            context,
            bitmaps: _,
        } = negotiated;
        Session {
            size: export.size,
            payload_max: export.block.payload.min(PAYLOAD_MAX),
            abilities: export.abilities,
            structured: *structured,
            context: *context,
            bitmaps: Vec::new(),
        }
    }

    /// Answers the block status of these bitmaps, too. They come with the ids that were negotiated.
    #[must_use]
    pub fn with_bitmaps(mut self, bitmaps: Vec<(u32, Bitmap)>) -> Session {
        self.bitmaps = bitmaps;
        self
    }

    /// Sets a new disk size. NBD has no message for it. A client that learns the size otherwise may use it.
    pub fn resized(&mut self, size: u64) {
        self.size = size;
    }

    /// Decodes the first bytes of `input`.
    // On the path of every request, with a large return value.
    #[inline(always)]
    pub fn decode(&self, input: &[u8]) -> Step {
        let Some((message, _)) = input.split_first_chunk::<REQUEST_BYTES>() else {
            return Step::Need(REQUEST_BYTES);
        };
        match RequestHeader::decode(message) {
            Some(header) => self.judge(header),
            None => Step::Violation(Violation::BadMagic),
        }
    }

    #[inline(always)]
    fn judge(&self, header: RequestHeader) -> Step {
        let RequestHeader {
            flags,
            command,
            cookie,
            offset,
            len,
        } = header;
        let op = match command {
            command::READ => Op::Read,
            command::WRITE => Op::Write,
            command::FLUSH => Op::Flush,
            command::TRIM => Op::Discard,
            command::CACHE => Op::Prefetch,
            command::WRITE_ZEROES => Op::WriteZeroes,
            command::BLOCK_STATUS => Op::Extents,
            command::DISCONNECT => return Step::Disconnect,
            // Rejected like a flush: without a payload and with a simple reply.
            _ => return Step::Refuse(ClientRequest::unknown(cookie), Fault::Invalid),
        };
        let request = ClientRequest {
            cookie,
            offset,
            len,
            payload: if op == Op::Write { len } else { 0 },
            op,
            flags: meaning(op, flags),
            first_only: flags & command_flag::REQ_ONE != 0,
        };
        if request.payload > SKIP_MAX {
            return Step::Violation(Violation::WriteTooLong);
        }
        match self.fault(&request, flags) {
            None => Step::Request(request),
            Some(fault) => Step::Refuse(request, fault),
        }
    }

    /// Why the request is invalid. The order of the checks is the protocol's.
    #[inline]
    fn fault(&self, request: &ClientRequest, flags: u16) -> Option<Fault> {
        let ClientRequest {
            op, offset, len, ..
        } = *request;
        if op.modifies() && self.abilities.has(Abilities::READ_ONLY) {
            return Some(Fault::ReadOnly);
        }
        if !self.offered(op) || flags & !self.allowed_flags(op) != 0 {
            return Some(Fault::Invalid);
        }
        if op == Op::Flush {
            // Both fields are reserved.
            return (offset != 0 || len != 0).then_some(Fault::Invalid);
        }
        let carries = matches!(op, Op::Read | Op::Write);
        if len == 0 || (carries && len > self.payload_max) {
            return Some(Fault::Invalid);
        }
        let past_the_end = offset
            .checked_add(u64::from(len))
            .is_none_or(|end| end > self.size);
        past_the_end.then_some(match op {
            Op::Write | Op::WriteZeroes => Fault::NoSpace,
            _ => Fault::Invalid,
        })
    }

    /// Whether the operation was offered to the client.
    #[inline]
    fn offered(&self, op: Op) -> bool {
        match op {
            Op::Read | Op::Write => true,
            Op::Flush => self.abilities.has(Abilities::FLUSH),
            Op::Discard => self.abilities.has(Abilities::TRIM),
            Op::WriteZeroes => self.abilities.has(Abilities::WRITE_ZEROES),
            Op::Prefetch => self.abilities.has(Abilities::CACHE),
            Op::Extents => self.context.is_some() || !self.bitmaps.is_empty(),
        }
    }

    /// The flags that the client may set. FUA is valid with every command and has an effect on modifying ones.
    #[inline]
    fn allowed_flags(&self, op: Op) -> u16 {
        let when = |ability, flag| if self.abilities.has(ability) { flag } else { 0 };
        let own = match op {
            Op::Read => when(Abilities::DF, command_flag::DF),
            Op::WriteZeroes => {
                command_flag::NO_HOLE | when(Abilities::FAST_ZERO, command_flag::FAST_ZERO)
            }
            Op::Extents => command_flag::REQ_ONE,
            _ => 0,
        };
        own | when(Abilities::FUA, command_flag::FUA)
    }

    /// The reply to a failed request, or to a successful one without data. A successful read or block status uses
    /// [`data`](Session::data) or [`extents`](Session::extents).
    ///
    /// # Panics
    /// If a read or a block status is reported as successful.
    #[inline]
    pub fn done(&self, request: &ClientRequest, outcome: Outcome) -> Head {
        let chunked = self.structured && matches!(request.op, Op::Read | Op::Extents);
        match outcome {
            Ok(()) => {
                let no_data = !matches!(request.op, Op::Read | Op::Extents);
                assert!(no_data, "a successful read or block status must have data");
                Head::simple(request.cookie, 0)
            }
            Err(fault) if chunked => {
                let mut body = [0; ERROR_BYTES];
                body[..4].copy_from_slice(&errno_of(fault, request.op).to_be_bytes());
                Head::chunk(request.cookie, chunk::ERROR, len32(ERROR_BYTES), body)
            }
            Err(fault) => Head::simple(request.cookie, errno_of(fault, request.op)),
        }
    }

    /// The reply to a successful read. The `request.len` bytes of data follow it.
    #[inline]
    pub fn data(&self, request: &ClientRequest) -> Head {
        if !self.structured {
            return Head::simple(request.cookie, 0);
        }
        let payload = len32(OFFSET_BYTES) + request.len;
        Head::chunk(
            request.cookie,
            chunk::OFFSET_DATA,
            payload,
            request.offset.to_be_bytes(),
        )
    }

    /// Appends the complete reply to a successful block status: a chunk for each context. `extents` begin at
    /// `request.offset`. They are cut at the end of the request, and adjacent ones of one kind are merged. Without
    /// extents, the whole range is reported as data, which is always valid.
    ///
    /// # Panics
    /// If `request` is not a request for extents from [`Session::decode`].
    pub fn extents(
        &self,
        request: &ClientRequest,
        extents: impl IntoIterator<Item = Extent>,
        out: &mut Vec<u8>,
    ) {
        assert!(
            self.offered(Op::Extents),
            "block status is rejected unless a context was selected"
        );
        let last = |flags: bool| if flags { chunk::DONE } else { 0 };
        if let Some(context) = self.context {
            let flags = last(self.bitmaps.is_empty());
            let extents = extents.into_iter().map(|extent| {
                let len = u32::try_from(extent.len).unwrap_or(u32::MAX);
                (len, state_of(extent.kind))
            });
            status(request, (flags, context), EXTENTS_MAX, extents, out);
        }
        for (nth, (context, bitmap)) in self.bitmaps.iter().enumerate() {
            let flags = last(nth + 1 == self.bitmaps.len());
            let extents = bitmap.extents(request.offset, request.len);
            status(request, (flags, *context), BITMAP_EXTENTS_MAX, extents, out);
        }
    }

    /// The most bytes that [`extents`](Session::extents) appends, if it is given at most so many extents.
    pub fn extents_room(&self, request: &ClientRequest, extents: usize) -> usize {
        let one = |most: usize| {
            let most = if request.first_only { 1 } else { most };
            CHUNK_BYTES + CONTEXT_BYTES + most * EXTENT_BYTES
        };
        one(extents.clamp(1, EXTENTS_MAX)) + self.bitmaps.len() * one(BITMAP_EXTENTS_MAX)
    }

    /// The most bytes that [`extents`](Session::extents) appends for `base:allocation`.
    pub const EXTENTS_REPLY_MAX: usize = CHUNK_BYTES + CONTEXT_BYTES + EXTENTS_MAX * EXTENT_BYTES;
}

/// Appends the chunk of one context. Extents are lengths and states.
fn status(
    request: &ClientRequest,
    (flags, context): (u16, u32),
    most: usize,
    extents: impl Iterator<Item = (u32, u32)>,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    let mut left = request.len;
    // The chunk's length is filled in at the end.
    let head = Head::chunk(
        request.cookie,
        chunk::BLOCK_STATUS,
        0,
        context.to_be_bytes(),
    );
    out.extend_from_slice(head.as_bytes());
    out[start + 4..start + 6].copy_from_slice(&flags.to_be_bytes());
    let most = if request.first_only { 1 } else { most };
    let mut written = 0;
    let mut current: Option<(u32, u32)> = None;
    for (len, state) in extents {
        let len = len.min(left);
        left -= len;
        current = match current {
            Some((so_far, before)) if before == state => Some((so_far + len, state)),
            before => {
                if let Some((len, state)) = before {
                    out.extend_from_slice(&encode_extent(len, state));
                    written += 1;
                }
                Some((len, state))
            }
        };
        if left == 0 || written == most {
            break;
        }
    }
    if written < most {
        let (len, state) = current.unwrap_or((request.len, 0));
        out.extend_from_slice(&encode_extent(len, state));
    }
    let payload = len32(out.len() - start - CHUNK_BYTES);
    out[start + 16..start + 20].copy_from_slice(&payload.to_be_bytes());
}

impl ClientRequest {
    fn unknown(cookie: u64) -> ClientRequest {
        let (offset, len, payload) = (0, 0, 0);
        let (op, flags, first_only) = (Op::Flush, Flags::NONE, false);
        ClientRequest {
            cookie,
            offset,
            len,
            payload,
            op,
            flags,
            first_only,
        }
    }
}

/// The core's flags for a command's flags.
#[inline]
fn meaning(op: Op, flags: u16) -> Flags {
    let mut meant = Flags::NONE;
    if flags & command_flag::FUA != 0 && op.modifies() {
        meant = meant.with(Flags::FUA);
    }
    if op == Op::WriteZeroes {
        if flags & command_flag::NO_HOLE == 0 {
            meant = meant.with(Flags::MAY_UNMAP);
        }
        if flags & command_flag::FAST_ZERO != 0 {
            meant = meant.with(Flags::FAST_ONLY);
        }
    }
    meant
}

#[cfg(test)]
mod tests;
