//! The server's transmission phase: a message becomes a [`Request`], an [`Outcome`] becomes a reply.
//!
//! The first stop of an I/O's journey for NBD clients. An I/O thread asks [`Session::decode`] what the bytes that it
//! received are, and sends what the other methods give it. Payloads never pass through here: a decoded write tells
//! how many bytes follow, which the I/O thread receives straight into the write's buffer; a read's [`Head`] is sent
//! with the read's buffer behind it.
//!
//! # Always true
//! - Every [`Asked`] lies within the disk, is within the limits, and is of a kind that the client was offered.
//! - Nothing allocates but [`Session::extents`], which appends to the caller's buffer.
//! - A request gets one reply, whole: reads are one chunk, so "do not fragment" is always honoured.
//! - The session keeps no state of the stream; who forgets to take a payload off it has lost it.

use super::handshake::Negotiated;
use super::wire::{
    Abilities, CHUNK, CHUNK_BYTES, EXTENT_BYTES, PAYLOAD_MAX, REQUEST_BYTES, RequestHeader, SIMPLE,
    SIMPLE_BYTES, chunk, command, command_flag, encode_extent, errno_of, len32,
};
use std::fmt;
use tidegate_core::request::{Data, Extent, ExtentKind, Fault, Flags, Op, Outcome, Request};
use tidegate_core::units::Time;

/// A refused write's payload is read and thrown away up to here; beyond, the connection is closed: twice what the
/// protocol lets a client assume is no oversight, and reading on would be work for nothing.
const SKIP_MAX: u32 = 2 * PAYLOAD_MAX;
/// Extents in one reply. A client asks again for the rest; 128 KiB of them are plenty at a time.
pub const EXTENTS_MAX: usize = 16 << 10;
/// Bytes of a chunk's offset, or of its metadata context's number.
const OFFSET_BYTES: usize = 8;
const CONTEXT_BYTES: usize = 4;
/// Bytes of an error chunk's payload: the error, and a message of no length.
const ERROR_BYTES: usize = 6;

/// One client in the transmission phase.
#[derive(Clone, Debug)]
pub struct Session {
    size: u64,
    payload_max: u32,
    abilities: Abilities,
    structured: bool,
    context: Option<u32>,
}

/// What the received bytes are. All but [`Step::Need`] and [`Step::Violation`] consumed
/// [`REQUEST_BYTES`]; the payload, if any, follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Not a whole message: so many bytes are needed from its beginning on.
    Need(usize),
    /// Something to do.
    Request(Asked),
    /// Something to refuse: throw away the payload, then send [`Session::done`].
    Refuse(Asked, Fault),
    /// The client goes, and sends no more: answer what is in flight, then close.
    Disconnect,
    /// The stream has lost its sense: close.
    Violation(Violation),
}

/// A request as it came, with what its reply needs. Small enough to be kept beside the I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The client's name for it.
    pub cookie: u64,
    /// Where on the disk.
    pub offset: u64,
    /// How many bytes of the disk.
    pub len: u32,
    /// Bytes that follow the message.
    pub payload: u32,
    /// What.
    pub op: Op,
    /// How.
    pub flags: Flags,
    /// Whether the client wants one extent at most.
    pub first_only: bool,
}

impl Asked {
    /// As the shard takes it, once its bytes have a place.
    #[inline]
    pub fn request(&self, data: Data, arrived: Time) -> Request {
        let Asked {
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

/// How a client broke the protocol beyond repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A message does not begin like one.
    BadMagic,
    /// A write that announces far more than was allowed.
    WriteTooLong,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Violation::BadMagic => "a request did not begin with its magic number",
            Violation::WriteTooLong => "a write announced far more than was allowed",
        })
    }
}

/// The beginning of a reply, to be sent before its payload if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    bytes: [u8; Head::MAX],
    len: usize,
}

impl Head {
    /// The longest there is: a data chunk's.
    pub const MAX: usize = CHUNK_BYTES + OFFSET_BYTES;

    /// To be sent.
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

    /// The last chunk of a reply, announcing `payload` bytes of which the first are `first`.
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
    /// Begins where the handshake ended.
    pub fn new(negotiated: &Negotiated) -> Session {
        let Negotiated {
            export,
            structured,
            context,
        } = negotiated;
        Session {
            size: export.size,
            payload_max: export.block.payload.min(PAYLOAD_MAX),
            abilities: export.abilities,
            structured: *structured,
            context: *context,
        }
    }

    /// The disk has another size now. NBD has no word for it; a client that learns it elsewhere may use it.
    pub fn resized(&mut self, size: u64) {
        self.size = size;
    }

    /// What the first bytes of `input` are.
    // On the way of every request, and its answer is large.
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
            // Refused as a flush would be: without a payload and with a simple reply.
            _ => return Step::Refuse(Asked::unknown(cookie), Fault::Invalid),
        };
        let asked = Asked {
            cookie,
            offset,
            len,
            payload: if op == Op::Write { len } else { 0 },
            op,
            flags: meaning(op, flags),
            first_only: flags & command_flag::REQ_ONE != 0,
        };
        if asked.payload > SKIP_MAX {
            return Step::Violation(Violation::WriteTooLong);
        }
        match self.fault(&asked, flags) {
            None => Step::Request(asked),
            Some(fault) => Step::Refuse(asked, fault),
        }
    }

    /// Why the request cannot be, in the order in which a client wants to hear it.
    #[inline]
    fn fault(&self, asked: &Asked, flags: u16) -> Option<Fault> {
        let Asked {
            op, offset, len, ..
        } = *asked;
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

    /// Whether the client was told that it may ask this.
    #[inline]
    fn offered(&self, op: Op) -> bool {
        match op {
            Op::Read | Op::Write => true,
            Op::Flush => self.abilities.has(Abilities::FLUSH),
            Op::Discard => self.abilities.has(Abilities::TRIM),
            Op::WriteZeroes => self.abilities.has(Abilities::WRITE_ZEROES),
            Op::Prefetch => self.abilities.has(Abilities::CACHE),
            Op::Extents => self.context.is_some(),
        }
    }

    /// The flags that the client may set. FUA goes with every command, and means something to those that write.
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

    /// The reply to everything but a read or a block status that succeeded; those have
    /// [`data`](Session::data) and [`extents`](Session::extents).
    ///
    /// # Panics
    /// If a read or a block status is said to have succeeded.
    #[inline]
    pub fn done(&self, asked: &Asked, outcome: Outcome) -> Head {
        let chunked = self.structured && matches!(asked.op, Op::Read | Op::Extents);
        match outcome {
            Ok(()) => {
                let bare = !matches!(asked.op, Op::Read | Op::Extents);
                assert!(bare, "a reply that owes its client bytes must carry them");
                Head::simple(asked.cookie, 0)
            }
            Err(fault) if chunked => {
                let mut body = [0; ERROR_BYTES];
                body[..4].copy_from_slice(&errno_of(fault, asked.op).to_be_bytes());
                Head::chunk(asked.cookie, chunk::ERROR, len32(ERROR_BYTES), body)
            }
            Err(fault) => Head::simple(asked.cookie, errno_of(fault, asked.op)),
        }
    }

    /// The reply to a read that succeeded; the `asked.len` bytes that were read follow it.
    #[inline]
    pub fn data(&self, asked: &Asked) -> Head {
        if !self.structured {
            return Head::simple(asked.cookie, 0);
        }
        let payload = len32(OFFSET_BYTES) + asked.len;
        Head::chunk(
            asked.cookie,
            chunk::OFFSET_DATA,
            payload,
            asked.offset.to_be_bytes(),
        )
    }

    /// Appends the whole reply to a block status that succeeded. `extents` begin at `asked.offset`; they are cut
    /// at the end of what was asked, and neighbours of one kind are told as one. Without any, the whole range is
    /// called data, which is always true.
    ///
    /// # Panics
    /// If `asked` is none that [`Session::decode`] gave as a request for extents.
    pub fn extents(
        &self,
        asked: &Asked,
        extents: impl IntoIterator<Item = Extent>,
        out: &mut Vec<u8>,
    ) {
        let context = self
            .context
            .expect("block status is refused unless its context was chosen");
        let start = out.len();
        let mut left = asked.len;
        // Its length on the wire is written last, when it is known.
        let head = Head::chunk(asked.cookie, chunk::BLOCK_STATUS, 0, context.to_be_bytes());
        out.extend_from_slice(head.as_bytes());
        let most = if asked.first_only { 1 } else { EXTENTS_MAX };
        let mut told = 0;
        let mut current: Option<(u32, ExtentKind)> = None;
        for extent in extents {
            let len = u32::try_from(extent.len).unwrap_or(u32::MAX).min(left);
            left -= len;
            current = match current {
                Some((so_far, kind)) if kind == extent.kind => Some((so_far + len, kind)),
                before => {
                    if let Some((len, kind)) = before {
                        out.extend_from_slice(&encode_extent(len, kind));
                        told += 1;
                    }
                    Some((len, extent.kind))
                }
            };
            if left == 0 || told == most {
                break;
            }
        }
        if told < most {
            let (len, kind) = current.unwrap_or((asked.len, ExtentKind::Data));
            out.extend_from_slice(&encode_extent(len, kind));
        }
        let payload = len32(out.len() - start - CHUNK_BYTES);
        out[start + 16..start + 20].copy_from_slice(&payload.to_be_bytes());
    }

    /// The most bytes that [`extents`](Session::extents) appends.
    pub const EXTENTS_REPLY_MAX: usize = CHUNK_BYTES + CONTEXT_BYTES + EXTENTS_MAX * EXTENT_BYTES;
}

impl Asked {
    fn unknown(cookie: u64) -> Asked {
        let (offset, len, payload) = (0, 0, 0);
        let (op, flags, first_only) = (Op::Flush, Flags::NONE, false);
        Asked {
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

/// What command flags ask of an op, in the core's words.
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
