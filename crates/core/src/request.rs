//! A guest's request, as plain values.
//!
//! A front end makes a [`Request`], the shard and the stack pass it on, a datastore performs it, and an [`Outcome`]
//! goes back. The bytes stay with the I/O thread; a [`Data`] names them here.
//!
//! # Units
//! Offsets and lengths are bytes. They need not be multiples of a block size: NBD has none.

use crate::units::Time;

/// One disk of an I/O thread. The engine assigns the number and does not reuse it while the disk is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskId(pub u32);

/// The front end's name for a request. The answer carries it unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// One I/O inside a shard, from its entry into a stack until its answer.
///
/// The generation identifies a stale or repeated completion: it can never complete another I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl IoId {
    /// Names no I/O.
    pub(crate) const NONE: IoId = IoId {
        index: u32::MAX,
        generation: u32::MAX,
    };

    /// The id as one number, for a completion's tag.
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// The inverse of [`IoId::to_bits`].
    #[expect(
        clippy::cast_possible_truncation,
        reason = "each half is taken on purpose"
    )]
    pub const fn from_bits(bits: u64) -> IoId {
        IoId {
            index: bits as u32,
            generation: (bits >> 32) as u32,
        }
    }
}

/// An operation on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// Read from the disk into the buffer.
    Read,
    /// Write the buffer to the disk.
    Write,
    /// Make the range read as zeroes. With [`Flags::MAY_UNMAP`] the datastore may free the space.
    WriteZeroes,
    /// The range's content no longer matters; the datastore should free the space.
    Discard,
    /// Make durable every write that completed before this request was submitted.
    Flush,
    /// Report which parts of the range contain data, as [`Extent`] records in the buffer.
    Extents,
    /// The range will be read soon.
    Prefetch,
}

impl Op {
    /// All operations, in the order of their numbers.
    pub const ALL: [Op; 7] = [
        Op::Read,
        Op::Write,
        Op::WriteZeroes,
        Op::Discard,
        Op::Flush,
        Op::Extents,
        Op::Prefetch,
    ];

    /// Whether a read-only disk refuses it.
    pub const fn modifies(self) -> bool {
        matches!(self, Op::Write | Op::WriteZeroes | Op::Discard)
    }

    /// The operation's index in [`Op::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// A set of flags that say how to carry out a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flags(u8);

impl Flags {
    /// No flags.
    pub const NONE: Flags = Flags(0);
    /// The write is durable before it completes (NBD's FUA; every write of a guest without a write-back cache).
    pub const FUA: Flags = Flags(1);
    /// The datastore may write zeroes by freeing the space (virtio's UNMAP; NBD without NO_HOLE).
    pub const MAY_UNMAP: Flags = Flags(2);
    /// Fail with [`Fault::Unsupported`] rather than write zeroes slowly (NBD's FAST_ZERO).
    pub const FAST_ONLY: Flags = Flags(4);
    /// Of a layout to a column of its pool: a read makes the members equal there, and a flush ends what was made equal. No
    /// datastore gets it.
    pub(crate) const RESYNC: Flags = Flags(8);

    /// Whether every flag of `other` is set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both sets.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// The set as a number, for the trace format. New flags only append bits.
    pub const fn bits(self) -> u8 {
        self.0
    }
}

/// Names bytes that the I/O thread stores: a buffer, and the offset where this I/O's bytes begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Data {
    /// The buffer's number.
    pub buffer: u32,
    /// Offset of this I/O's first byte in the buffer.
    pub start: u32,
}

impl Data {
    /// For operations without data.
    pub const NONE: Data = Data {
        buffer: u32::MAX,
        start: 0,
    };

    /// The same buffer, `bytes` further.
    #[must_use]
    pub const fn skip(self, bytes: u32) -> Data {
        Data {
            buffer: self.buffer,
            start: self.start + bytes,
        }
    }
}

/// One request, as the front end decoded it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// Its flags.
    pub flags: Flags,
    /// Offset on the disk, in bytes.
    pub offset: u64,
    /// Length in bytes; zero for a flush.
    pub len: u64,
    /// The bytes to write, or the buffer to read into.
    pub data: Data,
    /// When the front end first saw the request. Its latency starts here.
    pub arrived: Time,
}

/// One of a disk's targets, by its place in the disk's layout. To a layout of a tree: one of those below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target(pub u8);

/// Why a request failed. A front end reports each as a different error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The datastore returned an error (EIO).
    Io,
    /// The datastore is full (ENOSPC).
    NoSpace,
    /// The request is invalid: past the end, or too long (EINVAL).
    Invalid,
    /// The disk, or the datastore, is read-only (EPERM, EROFS).
    ReadOnly,
    /// The disk does not support the operation (EOPNOTSUPP).
    Unsupported,
    /// The disk is being detached (ESHUTDOWN).
    Gone,
}

impl Fault {
    /// All faults, in the order of their numbers.
    pub const ALL: [Fault; 6] = [
        Fault::Io,
        Fault::NoSpace,
        Fault::Invalid,
        Fault::ReadOnly,
        Fault::Unsupported,
        Fault::Gone,
    ];
}

/// The result of a request.
pub type Outcome = Result<(), Fault>;

/// One record of an answer to [`Op::Extents`]: a length and a kind. Extents follow each other without a gap.
///
/// In the buffer: 16 bytes each, `len` then `kind` as little-endian `u64`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes, never zero.
    pub len: u64,
    /// The kind.
    pub kind: ExtentKind,
}

/// The state of a range of a disk, as in NBD's `base:allocation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// Allocated, with any content.
    Data,
    /// Not allocated, reads as zeroes.
    Hole,
    /// Allocated, reads as zeroes.
    Zero,
}

impl Extent {
    /// Bytes of one record in the buffer.
    pub const SIZE: usize = 16;

    /// The record as stored in the buffer.
    pub fn encode(self) -> [u8; Extent::SIZE] {
        let mut bytes = [0; Extent::SIZE];
        bytes[..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..].copy_from_slice(&(self.kind as u64).to_le_bytes());
        bytes
    }

    /// The inverse of [`Extent::encode`]. `None` for a length of zero (the end of a shorter list) or an unknown kind.
    pub fn decode(bytes: &[u8; Extent::SIZE]) -> Option<Extent> {
        let (len, kind) = bytes.split_first_chunk::<8>()?;
        let len = u64::from_le_bytes(*len);
        let kind = match u64::from_le_bytes(kind.try_into().ok()?) {
            0 => ExtentKind::Data,
            1 => ExtentKind::Hole,
            2 => ExtentKind::Zero,
            _ => return None,
        };
        (len > 0).then_some(Extent { len, kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_io_survives_being_a_number() {
        let io = IoId {
            index: 7,
            generation: u32::MAX,
        };
        assert_eq!(IoId::from_bits(io.to_bits()), io);
    }

    #[test]
    fn an_op_knows_its_place() {
        for (i, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(op.index(), i);
        }
    }

    #[test]
    fn an_extent_survives_the_buffer_and_nonsense_is_refused() {
        let extent = Extent {
            len: 4096,
            kind: ExtentKind::Hole,
        };
        assert_eq!(Extent::decode(&extent.encode()), Some(extent));
        assert_eq!(Extent::decode(&[0; 16]), None);
        assert_eq!(Extent::decode(&[9; 16]), None);
    }
}
