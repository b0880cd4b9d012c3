//! The client's transmission phase: requests become messages, replies become steps.
//!
//! The caller numbers its requests with cookies and stores each as [`Sent`]. [`Replies::decode`] looks it up, because a
//! simple reply does not contain its payload's length. Payloads do not pass through here. A step returns the
//! payload's length and its offset on the disk. The caller receives the payload into its buffer.
//!
//! # Always true
//! - A [`Part`]'s range lies within the request of its cookie.
//! - Every reply ends with exactly one step whose `last` is set. The caller checks that the parts covered the whole
//!   range. A server that leaves a gap in a successful reply is faulty.

use super::handshake::Negotiated;
use crate::nbd::wire::{
    CHUNK, CHUNK_BYTES, EXTENT_BYTES, Fields, REQUEST_BYTES, RequestHeader, SIMPLE, SIMPLE_BYTES,
    chunk, command, command_flag, decode_extent, fault_of, len32,
};
use std::fmt;
use tidegate_core::request::{Extent, Fault, Flags, Op};

/// The longest error chunk that is read: an error, an offset, and a message of at most the protocol's 4096 bytes.
const ERROR_MAX: u32 = 6 + 4096 + 8;
/// The longest block status that is read. A server that returns more than a million extents at once is faulty.
const EXTENTS_MAX: u32 = 8 << 20;

/// A request that is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The operation.
    pub op: Op,
    /// Its flags.
    pub flags: Flags,
    /// First byte on the disk.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
}

impl Sent {
    /// The request's message. A write's data follows it.
    ///
    /// The server must support the operation: see [`Negotiated::abilities`].
    pub fn encode(&self, cookie: u64) -> [u8; REQUEST_BYTES] {
        let command = match self.op {
            Op::Read => command::READ,
            Op::Write => command::WRITE,
            Op::WriteZeroes => command::WRITE_ZEROES,
            Op::Discard => command::TRIM,
            Op::Flush => command::FLUSH,
            Op::Extents => command::BLOCK_STATUS,
            Op::Prefetch => command::CACHE,
        };
        let mut flags = 0;
        if self.flags.has(Flags::FUA) && self.op.modifies() {
            flags |= command_flag::FUA;
        }
        if self.op == Op::WriteZeroes {
            if !self.flags.has(Flags::MAY_UNMAP) {
                flags |= command_flag::NO_HOLE;
            }
            if self.flags.has(Flags::FAST_ONLY) {
                flags |= command_flag::FAST_ZERO;
            }
        }
        let (offset, len) = (self.offset, self.len);
        RequestHeader {
            flags,
            command,
            cookie,
            offset,
            len,
        }
        .encode()
    }
}

/// The disconnect message. It has no reply.
pub fn disconnect() -> [u8; REQUEST_BYTES] {
    let command = command::DISCONNECT;
    RequestHeader {
        flags: 0,
        command,
        cookie: 0,
        offset: 0,
        len: 0,
    }
    .encode()
}

/// The meaning of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Incomplete: this many bytes are needed, counted from the beginning.
    Need(usize),
    /// A reply, or a part of one.
    Part(Part),
    /// The stream is out of sync: close, and fail or repeat the requests in flight.
    Violation(Violation),
}

/// A reply, or one chunk of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The cookie of its request.
    pub cookie: u64,
    /// Its contents.
    pub what: What,
    /// Whether this is the last part for its request.
    pub last: bool,
    /// Consumed bytes of the input. The payload, if any, begins after them.
    pub consumed: usize,
}

/// The contents of a part of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Nothing. With `last`, the request has succeeded.
    Nothing,
    /// `len` bytes follow, read at `offset` of the disk.
    Data {
        /// Offset on the disk.
        offset: u64,
        /// Number of bytes.
        len: u32,
    },
    /// The disk has `len` zeroes at `offset`. Nothing follows.
    Zeroes {
        /// Offset on the disk.
        offset: u64,
        /// Number of bytes.
        len: u32,
    },
    /// `bytes` bytes follow, which [`extents`] decodes. The extents begin at the request's offset.
    Extents {
        /// Number of bytes, a multiple of an extent's size.
        bytes: u32,
    },
    /// The request failed. Further parts do not change that.
    Failed(Fault),
}

/// How a server broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A reply does not begin with a magic number, or not with the negotiated one.
    BadMagic,
    /// A reply to an unknown request.
    UnknownCookie,
    /// A part that does not belong to the request's operation.
    WrongPart,
    /// A part with an invalid length.
    WrongLength,
    /// Data outside the requested range.
    OutOfRange,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Violation::BadMagic => "a reply did not begin with its magic number",
            Violation::UnknownCookie => "a reply to a request that was not sent",
            Violation::WrongPart => "a reply of the wrong kind for its request",
            Violation::WrongLength => "a reply of impossible length",
            Violation::OutOfRange => "data outside the requested range",
        })
    }
}

/// Decodes the replies of one connection.
#[derive(Clone, Debug)]
pub struct Replies {
    structured: bool,
    context: Option<u32>,
}

impl Replies {
    /// Starts where the handshake ended.
    pub fn new(negotiated: &Negotiated) -> Replies {
        Replies {
            structured: negotiated.structured,
            context: negotiated.context,
        }
    }

    /// Decodes the first bytes of `input`. `sent` returns the request of a cookie, if it is in flight.
    pub fn decode(&self, input: &[u8], sent: impl FnOnce(u64) -> Option<Sent>) -> Step {
        let step = match Fields(input).u32() {
            None => Ok(Step::Need(SIMPLE_BYTES)),
            Some(SIMPLE) => self.simple(input, sent),
            Some(CHUNK) if self.structured => self.chunk(input, sent),
            Some(_) => Err(Violation::BadMagic),
        };
        step.unwrap_or_else(Step::Violation)
    }

    fn simple(
        &self,
        input: &[u8],
        sent: impl FnOnce(u64) -> Option<Sent>,
    ) -> Result<Step, Violation> {
        let mut fields = Fields(input);
        let (_, Some(errno), Some(cookie)) = (fields.u32(), fields.u32(), fields.u64()) else {
            return Ok(Step::Need(SIMPLE_BYTES));
        };
        let sent = sent(cookie).ok_or(Violation::UnknownCookie)?;
        let what = match (errno, sent.op) {
            (0, Op::Read) if self.structured => return Err(Violation::WrongPart),
            (0, Op::Extents) => return Err(Violation::WrongPart),
            (0, Op::Read) => What::Data {
                offset: sent.offset,
                len: sent.len,
            },
            (0, _) => What::Nothing,
            (errno, _) => What::Failed(fault_of(errno)),
        };
        Ok(Step::Part(Part {
            cookie,
            what,
            last: true,
            consumed: SIMPLE_BYTES,
        }))
    }

    fn chunk(
        &self,
        input: &[u8],
        sent: impl FnOnce(u64) -> Option<Sent>,
    ) -> Result<Step, Violation> {
        let Some((head, body)) = input.split_first_chunk::<CHUNK_BYTES>() else {
            return Ok(Step::Need(CHUNK_BYTES));
        };
        let mut fields = Fields(&head[4..]);
        let fields = (fields.u16(), fields.u16(), fields.u64(), fields.u32());
        let (Some(flags), Some(kind), Some(cookie), Some(len)) = fields else {
            return Ok(Step::Need(CHUNK_BYTES));
        };
        let sent = sent(cookie).ok_or(Violation::UnknownCookie)?;
        let last = flags & chunk::DONE != 0;
        let understood = match kind {
            chunk::NONE if len == 0 && last => Ok((What::Nothing, 0)),
            chunk::NONE => return Err(Violation::WrongLength),
            chunk::OFFSET_DATA | chunk::OFFSET_HOLE if sent.op != Op::Read => {
                return Err(Violation::WrongPart);
            }
            chunk::OFFSET_DATA => read_data(&sent, len, body)?,
            chunk::OFFSET_HOLE => read_zeroes(&sent, len, body)?,
            chunk::BLOCK_STATUS => self.read_status(&sent, len, body)?,
            kind if kind & chunk::IS_ERROR != 0 => read_error(len, body)?,
            _ => return Err(Violation::WrongPart),
        };
        Ok(match understood {
            Err(more) => Step::Need(CHUNK_BYTES + more),
            Ok((what, used)) => Step::Part(Part {
                cookie,
                what,
                last,
                consumed: CHUNK_BYTES + used,
            }),
        })
    }

    fn read_status(&self, sent: &Sent, len: u32, body: &[u8]) -> Result<Decoded, Violation> {
        let Some(context) = self.context.filter(|_| sent.op == Op::Extents) else {
            return Err(Violation::WrongPart);
        };
        let bytes = len.checked_sub(4).ok_or(Violation::WrongLength)?;
        let even = bytes.is_multiple_of(len32(EXTENT_BYTES));
        if bytes == 0 || !even || bytes > EXTENTS_MAX {
            return Err(Violation::WrongLength);
        }
        match Fields(body).u32() {
            None => Ok(Err(4)),
            Some(id) if id == context => Ok(Ok((What::Extents { bytes }, 4))),
            Some(_) => Err(Violation::WrongPart),
        }
    }
}

/// A chunk's contents and the number of bytes read for it, or the number of bytes needed to decode it.
type Decoded = Result<(What, usize), usize>;

fn read_data(sent: &Sent, len: u32, body: &[u8]) -> Result<Decoded, Violation> {
    let len = len
        .checked_sub(8)
        .filter(|len| *len > 0)
        .ok_or(Violation::WrongLength)?;
    let Some(offset) = Fields(body).u64() else {
        return Ok(Err(8));
    };
    within(sent, offset, len)?;
    Ok(Ok((What::Data { offset, len }, 8)))
}

fn read_zeroes(sent: &Sent, len: u32, body: &[u8]) -> Result<Decoded, Violation> {
    if len != 12 {
        return Err(Violation::WrongLength);
    }
    let mut fields = Fields(body);
    let (Some(offset), Some(len)) = (fields.u64(), fields.u32()) else {
        return Ok(Err(12));
    };
    within(sent, offset, len)?;
    Ok(Ok((What::Zeroes { offset, len }, 12)))
}

/// Decodes any error chunk, including unknown kinds: they all begin with the error. The message is skipped.
fn read_error(len: u32, body: &[u8]) -> Result<Decoded, Violation> {
    if !(6..=ERROR_MAX).contains(&len) {
        return Err(Violation::WrongLength);
    }
    let len = usize::try_from(len).map_err(|_| Violation::WrongLength)?;
    let mut fields = Fields(body.get(..len).unwrap_or_default());
    match fields.u32() {
        None => Ok(Err(len)),
        Some(errno) => Ok(Ok((What::Failed(fault_of(errno)), len))),
    }
}

fn within(sent: &Sent, offset: u64, len: u32) -> Result<(), Violation> {
    let start = offset
        .checked_sub(sent.offset)
        .ok_or(Violation::OutOfRange)?;
    let end = start
        .checked_add(u64::from(len))
        .ok_or(Violation::OutOfRange)?;
    (end <= u64::from(sent.len))
        .then_some(())
        .ok_or(Violation::OutOfRange)
}

/// Decodes the payload of [`What::Extents`]. Ends early at a malformed extent.
pub fn extents(payload: &[u8]) -> impl Iterator<Item = Extent> {
    payload
        .as_chunks::<EXTENT_BYTES>()
        .0
        .iter()
        .map_while(decode_extent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Sent = Sent {
        op: Op::Read,
        flags: Flags::NONE,
        offset: 4096,
        len: 512,
    };

    fn replies(structured: bool) -> Replies {
        Replies {
            structured,
            context: structured.then_some(1),
        }
    }

    fn chunk(kind: u16, len: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = CHUNK.to_be_bytes().to_vec();
        bytes.extend(chunk::DONE.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(7_u64.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend(body);
        bytes
    }

    fn violation(input: &[u8], sent: Sent) -> Option<Violation> {
        match replies(true).decode(input, |_| Some(sent)) {
            Step::Violation(violation) => Some(violation),
            _ => None,
        }
    }

    #[test]
    fn a_simple_reply_to_a_read_is_followed_by_its_data() {
        let mut reply = SIMPLE.to_be_bytes().to_vec();
        reply.extend([0; 4]);
        reply.extend(7_u64.to_be_bytes());
        let what = What::Data {
            offset: 4096,
            len: 512,
        };
        let part = Part {
            cookie: 7,
            what,
            last: true,
            consumed: 16,
        };
        assert_eq!(
            replies(false).decode(&reply, |_| Some(READ)),
            Step::Part(part)
        );
        assert_eq!(violation(&reply, READ), Some(Violation::WrongPart));
        assert_eq!(
            replies(false).decode(&reply[..15], |_| Some(READ)),
            Step::Need(16)
        );
    }

    #[test]
    fn a_reply_to_an_unknown_request_is_a_violation() {
        let reply = chunk(chunk::NONE, 0, &[]);
        let step = replies(true).decode(&reply, |_| None);
        assert_eq!(step, Step::Violation(Violation::UnknownCookie));
        let step = replies(false).decode(&reply, |_| Some(READ));
        assert_eq!(step, Step::Violation(Violation::BadMagic));
    }

    #[test]
    fn data_outside_the_requested_range_is_a_violation() {
        for (offset, len) in [(4095_u64, 1_u32), (4096, 513), (4608, 1), (u64::MAX, 1)] {
            let reply = chunk(chunk::OFFSET_DATA, 8 + len, &offset.to_be_bytes());
            assert_eq!(
                violation(&reply, READ),
                Some(Violation::OutOfRange),
                "{offset}+{len}"
            );
        }
        let reply = chunk(chunk::OFFSET_DATA, u32::MAX, &4096_u64.to_be_bytes());
        assert_eq!(violation(&reply, READ), Some(Violation::OutOfRange));
        assert_eq!(
            violation(&chunk(chunk::OFFSET_DATA, 8, &[]), READ),
            Some(Violation::WrongLength)
        );
        let write = Sent {
            op: Op::Write,
            ..READ
        };
        assert_eq!(
            violation(&chunk(chunk::OFFSET_DATA, 9, &[]), write),
            Some(Violation::WrongPart)
        );
    }

    #[test]
    fn an_error_chunk_of_an_unknown_kind_is_decoded_once_complete() {
        let mut body = 28_u32.to_be_bytes().to_vec();
        body.extend(b"\0\x02no");
        let reply = chunk(chunk::IS_ERROR | 77, 8, &body);
        let what = What::Failed(Fault::NoSpace);
        let part = Part {
            cookie: 7,
            what,
            last: true,
            consumed: 28,
        };
        assert_eq!(
            replies(true).decode(&reply, |_| Some(READ)),
            Step::Part(part)
        );
        assert_eq!(
            replies(true).decode(&reply[..27], |_| Some(READ)),
            Step::Need(28)
        );
        assert_eq!(
            violation(&chunk(chunk::ERROR, 5000, &[]), READ),
            Some(Violation::WrongLength)
        );
    }

    #[test]
    fn a_block_status_needs_the_negotiated_context_and_whole_extents() {
        let sent = Sent {
            op: Op::Extents,
            ..READ
        };
        let status =
            |context: u32, len: u32| chunk(chunk::BLOCK_STATUS, len, &context.to_be_bytes());
        let what = What::Extents { bytes: 16 };
        let part = Part {
            cookie: 7,
            what,
            last: true,
            consumed: 24,
        };
        let step = replies(true).decode(&status(1, 20), |_| Some(sent));
        assert_eq!(step, Step::Part(part));
        assert_eq!(violation(&status(2, 20), sent), Some(Violation::WrongPart));
        assert_eq!(violation(&status(1, 20), READ), Some(Violation::WrongPart));
        for len in [3, 4, 13, 4 + EXTENTS_MAX + 8] {
            let found = violation(&status(1, len), sent);
            assert_eq!(found, Some(Violation::WrongLength), "{len}");
        }
    }

    #[test]
    fn flags_for_zeroes_are_sent_with_write_zeroes_only() {
        let flags = Flags::FUA.with(Flags::FAST_ONLY);
        let sent = Sent {
            op: Op::Discard,
            flags,
            offset: 0,
            len: 1,
        };
        assert_eq!(sent.encode(0)[4..6], [0, 1]);
        let sent = Sent {
            op: Op::WriteZeroes,
            ..sent
        };
        assert_eq!(sent.encode(0)[4..6], [0, 1 | 2 | 16]);
        let sent = Sent {
            op: Op::Read,
            ..sent
        };
        assert_eq!(sent.encode(0)[4..6], [0, 0]);
    }
}
