//! Constants and fixed-size messages of the NBD protocol.
//!
//! Every message layout is written here once. [`handshake`](super::handshake), [`session`](super::session) and
//! [`client`](super::client) decide what the messages mean.
//!
//! # Picture
//! ```text
//! option    IHAVEOPT:8  option:4  len:4             data
//! answer    magic:8     option:4  reply:4  len:4    data
//! request   magic:4     flags:2   command:2  cookie:8  offset:8  len:4    payload (writes)
//! simple    magic:4     errno:4   cookie:8                                payload (reads)
//! chunk     magic:4     flags:2   kind:2     cookie:8  len:4              payload
//! ```
//!
//! # Units
//! Every number is big-endian. Offsets and lengths are bytes.

use tidegate_core::request::{Extent, ExtentKind, Fault, Op};

/// First word of a server's greeting: `NBDMAGIC`.
pub const GREETING: u64 = 0x4e42_444d_4147_4943;
/// Second word of a greeting, and first of every option: `IHAVEOPT`.
pub const OPTION: u64 = 0x4948_4156_454f_5054;
/// First word of every answer to an option.
pub const ANSWER: u64 = 0x0003_e889_0455_65a9;
/// First word of a request.
pub const REQUEST: u32 = 0x2560_9513;
/// First word of a simple reply.
pub const SIMPLE: u32 = 0x6744_6698;
/// First word of a structured reply's chunk.
pub const CHUNK: u32 = 0x668e_33ef;

/// Bytes of a greeting.
pub const GREETING_BYTES: usize = 18;
/// Bytes of an option before its data.
pub const OPTION_BYTES: usize = 16;
/// Bytes of an answer before its data.
pub const ANSWER_BYTES: usize = 20;
/// Bytes of a request before its payload.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply before its payload.
pub const SIMPLE_BYTES: usize = 16;
/// Bytes of a chunk before its payload.
pub const CHUNK_BYTES: usize = 20;
/// Zeroes at the end of the answer to [`option::EXPORT_NAME`], unless both sides agreed to omit them.
pub const PADDING_BYTES: usize = 124;
/// Bytes of one extent in a block status chunk.
pub const EXTENT_BYTES: usize = 8;

/// The most bytes of one read or write. The protocol document says that every client may assume 32 MiB. Every client
/// known to us respects this.
pub const PAYLOAD_MAX: u32 = 32 << 20;
/// The longest string (export name, description, query) that the protocol allows.
pub const STRING_MAX: usize = 4096;
/// The only standard metadata context.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The namespace of standard metadata contexts.
pub const BASE_NAMESPACE: &str = "base:";
/// The namespace of QEMU's metadata contexts.
pub const QEMU_NAMESPACE: &str = "qemu:";
/// The metadata context of a dirty bitmap, before the bitmap's name.
pub const DIRTY_BITMAP: &str = "qemu:dirty-bitmap:";

/// Flags of the greeting. The client replies with the same bits.
pub mod hello {
    /// Fixed newstyle: unknown options get a reply instead of a closed connection.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// The padding after [`EXPORT_NAME`](super::option::EXPORT_NAME) can be omitted.
    pub const NO_ZEROES: u16 = 2;
}

/// Options that a client sends before the transmission phase.
pub mod option {
    /// Select an export and start. It has no error reply: the server can only disconnect.
    pub const EXPORT_NAME: u32 = 1;
    /// End the negotiation.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Start TLS.
    pub const STARTTLS: u32 = 5;
    /// Get information about an export.
    pub const INFO: u32 = 6;
    /// Select an export and start.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List the metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts for block status.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use 64-bit lengths.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to an option.
pub mod reply {
    /// Success, or the end of a list.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One piece of information about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error reply.
    pub const ERROR: u32 = 1 << 31;
    /// The option is not supported.
    pub const ERR_UNSUP: u32 = ERROR + 1;
    /// The option is not allowed here.
    pub const ERR_POLICY: u32 = ERROR + 2;
    /// The option is malformed.
    pub const ERR_INVALID: u32 = ERROR + 3;
    /// TLS is required.
    pub const ERR_TLS_REQD: u32 = ERROR + 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = ERROR + 6;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = ERROR + 7;
    /// The option is too long.
    pub const ERR_TOO_BIG: u32 = ERROR + 9;
}

/// Information about an export, in replies of type [`reply::INFO`].
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Its canonical name.
    pub const NAME: u16 = 1;
    /// A description for people.
    pub const DESCRIPTION: u16 = 2;
    /// Smallest, preferred and largest request.
    pub const BLOCK_SIZE: u16 = 3;
}

/// The commands of requests.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write.
    pub const WRITE: u16 = 1;
    /// Disconnect. It has no reply.
    pub const DISCONNECT: u16 = 2;
    /// Flush.
    pub const FLUSH: u16 = 3;
    /// Discard.
    pub const TRIM: u16 = 4;
    /// Prefetch.
    pub const CACHE: u16 = 5;
    /// Write zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// Get extents.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod command_flag {
    /// Durable before completion.
    pub const FUA: u16 = 1;
    /// Zeroes must stay allocated.
    pub const NO_HOLE: u16 = 2;
    /// A read's data in one chunk.
    pub const DF: u16 = 4;
    /// Return one extent only.
    pub const REQ_ONE: u16 = 8;
    /// Fail rather than write zeroes slowly.
    pub const FAST_ZERO: u16 = 16;
}

/// Types of chunks of a structured reply.
pub mod chunk {
    /// Flag: the last chunk of its reply.
    pub const DONE: u16 = 1;
    /// No data.
    pub const NONE: u16 = 0;
    /// An offset and data.
    pub const OFFSET_DATA: u16 = 1;
    /// An offset and a number of zeroes.
    pub const OFFSET_HOLE: u16 = 2;
    /// A metadata context and extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// Bit of every error type.
    pub const IS_ERROR: u16 = 1 << 15;
    /// An error and a message.
    pub const ERROR: u16 = IS_ERROR + 1;
    /// An error, a message and an offset.
    pub const ERROR_OFFSET: u16 = IS_ERROR + 2;
}

/// Error numbers of replies.
pub mod errno {
    /// Read-only.
    pub const EPERM: u32 = 1;
    /// I/O error.
    pub const EIO: u32 = 5;
    /// Invalid request.
    pub const EINVAL: u32 = 22;
    /// No space, or past the end.
    pub const ENOSPC: u32 = 28;
    /// Not supported.
    pub const ENOTSUP: u32 = 95;
    /// The server is shutting down.
    pub const ESHUTDOWN: u32 = 108;
}

/// States of `base:allocation`, and of a dirty bitmap.
pub mod state {
    /// Of a dirty bitmap: it differs from the older state.
    pub const DIRTY: u32 = 1;
    /// Not allocated.
    pub const HOLE: u32 = 1;
    /// Reads as zeroes.
    pub const ZERO: u32 = 2;
}

/// What a disk supports, as the transmission flags of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Abilities(u16);

impl Abilities {
    /// Nothing but reads and writes.
    pub const NONE: Abilities = Abilities(0);
    /// The field is valid; set in every message.
    pub const HAS_FLAGS: Abilities = Abilities(1);
    /// Only reads.
    pub const READ_ONLY: Abilities = Abilities(1 << 1);
    /// Flush.
    pub const FLUSH: Abilities = Abilities(1 << 2);
    /// Forced unit access: durable writes on request.
    pub const FUA: Abilities = Abilities(1 << 3);
    /// Seeks are slow.
    pub const ROTATIONAL: Abilities = Abilities(1 << 4);
    /// Discard.
    pub const TRIM: Abilities = Abilities(1 << 5);
    /// Write zeroes.
    pub const WRITE_ZEROES: Abilities = Abilities(1 << 6);
    /// Reads in one chunk on request. It needs structured replies, so the handshake sets it, not the disk.
    pub const DF: Abilities = Abilities(1 << 7);
    /// A flush on one connection covers all connections.
    pub const MULTI_CONN: Abilities = Abilities(1 << 8);
    /// Prefetch.
    pub const CACHE: Abilities = Abilities(1 << 10);
    /// Write zeroes, only if that is fast.
    pub const FAST_ZERO: Abilities = Abilities(1 << 11);

    /// From the protocol's field. Unknown bits are stored and have no effect.
    pub const fn from_bits(bits: u16) -> Abilities {
        Abilities(bits)
    }

    /// The protocol's field.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Whether all of `other` is set.
    pub const fn has(self, other: Abilities) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets.
    #[must_use]
    pub const fn with(self, other: Abilities) -> Abilities {
        Abilities(self.0 | other.0)
    }

    /// Without any of `other`.
    #[must_use]
    pub const fn without(self, other: Abilities) -> Abilities {
        Abilities(self.0 & !other.0)
    }
}

/// A request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// A set of [`command_flag`]s.
    pub flags: u16,
    /// One of [`command`].
    pub command: u16,
    /// The client's id for it.
    pub cookie: u64,
    /// First byte on the disk.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
}

impl RequestHeader {
    /// Encodes it.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0..4].copy_from_slice(&REQUEST.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// Decodes it; `None` if the magic number is wrong.
    #[inline]
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<RequestHeader> {
        let mut rest = Fields(bytes);
        (rest.u32()? == REQUEST).then_some(())?;
        Some(RequestHeader {
            flags: rest.u16()?,
            command: rest.u16()?,
            cookie: rest.u64()?,
            offset: rest.u64()?,
            len: rest.u32()?,
        })
    }
}

/// Reads numbers and strings from the front of a slice; `None` where the slice is too short.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A 32-bit length and that many bytes of text.
    pub(crate) fn string(&mut self) -> Option<&'a str> {
        let len = usize::try_from(self.u32()?).ok()?;
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        (len <= STRING_MAX).then(|| std::str::from_utf8(head).ok())?
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A length that fits the protocol's 32 bits, because every message of ours is far shorter.
#[inline]
pub(crate) fn len32(len: usize) -> u32 {
    u32::try_from(len).expect("every message is far shorter than 4 GiB")
}

/// The error number of `fault`. ENOTSUP is used only with [`command_flag::FAST_ZERO`]: clients take it as "use the slow
/// way", which exists only there.
pub const fn errno_of(fault: Fault, op: Op) -> u32 {
    match fault {
        Fault::Io => errno::EIO,
        Fault::NoSpace => errno::ENOSPC,
        Fault::Invalid => errno::EINVAL,
        Fault::ReadOnly => errno::EPERM,
        Fault::Unsupported if matches!(op, Op::WriteZeroes) => errno::ENOTSUP,
        Fault::Unsupported => errno::EINVAL,
        Fault::Gone => errno::ESHUTDOWN,
    }
}

/// The fault of an error number. Numbers that the protocol does not name count as I/O errors.
pub const fn fault_of(errno: u32) -> Fault {
    match errno {
        errno::EPERM => Fault::ReadOnly,
        errno::EINVAL => Fault::Invalid,
        errno::ENOSPC => Fault::NoSpace,
        errno::ENOTSUP => Fault::Unsupported,
        errno::ESHUTDOWN => Fault::Gone,
        _ => Fault::Io,
    }
}

/// The state of a kind of extent in `base:allocation`.
pub(crate) const fn state_of(kind: ExtentKind) -> u32 {
    match kind {
        ExtentKind::Data => 0,
        ExtentKind::Hole => state::HOLE | state::ZERO,
        ExtentKind::Zero => state::ZERO,
    }
}

/// Encodes one extent of a block status chunk.
pub(crate) fn encode_extent(len: u32, state: u32) -> [u8; EXTENT_BYTES] {
    let mut bytes = [0; EXTENT_BYTES];
    bytes[..4].copy_from_slice(&len.to_be_bytes());
    bytes[4..].copy_from_slice(&state.to_be_bytes());
    bytes
}

/// Decodes one extent. A hole that may contain non-zero data counts as data. `None` for a length of zero.
pub(crate) fn decode_extent(bytes: &[u8; EXTENT_BYTES]) -> Option<Extent> {
    let mut fields = Fields(bytes);
    let len = u64::from(fields.u32()?);
    let state = fields.u32()?;
    let kind = match (state & state::ZERO != 0, state & state::HOLE != 0) {
        (true, true) => ExtentKind::Hole,
        (true, false) => ExtentKind::Zero,
        (false, _) => ExtentKind::Data,
    };
    (len > 0).then_some(Extent { len, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_decodes_unchanged_and_a_wrong_magic_is_rejected() {
        let header = RequestHeader {
            flags: 1,
            command: 6,
            cookie: 7,
            offset: 1 << 40,
            len: 9,
        };
        let mut bytes = header.encode();
        assert_eq!(RequestHeader::decode(&bytes), Some(header));
        bytes[0] ^= 1;
        assert_eq!(RequestHeader::decode(&bytes), None);
    }

    #[test]
    fn a_string_longer_than_its_bytes_or_the_protocol_allows_is_rejected() {
        assert_eq!(Fields(&[0, 0, 0, 2, b'h', b'i']).string(), Some("hi"));
        assert_eq!(Fields(&[0, 0, 0, 3, b'h', b'i']).string(), None);
        assert_eq!(Fields(&[255, 255, 255, 255]).string(), None);
        assert_eq!(Fields(&[0, 0, 0, 1, 0xff]).string(), None);
        let mut long = 4097_u32.to_be_bytes().to_vec();
        long.extend([b'a'; 4097]);
        assert_eq!(Fields(&long).string(), None);
    }

    #[test]
    fn every_fault_decodes_from_its_error_number() {
        for fault in Fault::ALL {
            assert_eq!(fault_of(errno_of(fault, Op::WriteZeroes)), fault);
        }
        assert_eq!(errno_of(Fault::Unsupported, Op::Discard), errno::EINVAL);
        assert_eq!(fault_of(4711), Fault::Io);
    }

    #[test]
    fn every_kind_of_extent_decodes_from_its_state() {
        for kind in [ExtentKind::Data, ExtentKind::Hole, ExtentKind::Zero] {
            let extent = Extent { len: 4096, kind };
            assert_eq!(
                decode_extent(&encode_extent(4096, state_of(kind))),
                Some(extent)
            );
        }
        assert_eq!(decode_extent(&[0; EXTENT_BYTES]), None);
    }
}
