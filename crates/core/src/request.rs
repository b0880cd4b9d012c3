//! A guest's request, as plain values.
//!
//! A front end makes a [`Request`]; the shard takes it, the stack carries it, a datastore performs it, and an
//! [`Outcome`] goes back. The bytes themselves stay with the I/O thread; here they are a [`Data`], a name.
//!
//! # Units
//! Offsets and lengths are bytes. They are not necessarily multiples of any block: NBD has none.

use crate::units::Time;

/// One disk among those of an I/O thread. Given by the engine; never reused while the disk is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskId(pub u32);

/// The front end's own name for a request; comes back with its answer, untouched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// One I/O inside a shard, from the moment it enters a stack to its answer.
///
/// The generation makes a stale or repeated completion recognisable: it can never end another I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl IoId {
    /// As one number, for a completion's tag.
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// Back from [`IoId::to_bits`].
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

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// Fill the buffer from the disk.
    Read,
    /// Put the buffer on the disk.
    Write,
    /// Make the range read as zeroes; with [`Flags::MAY_UNMAP`], space may be given back.
    WriteZeroes,
    /// The range's content no longer matters; space should be given back.
    Discard,
    /// Make durable every write that was answered before this was asked.
    Flush,
    /// Tell which parts of the range hold data, as [`Extent`] records in the buffer.
    Extents,
    /// The range will be read soon.
    Prefetch,
}

impl Op {
    /// All of them, in the order of their numbers.
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

    /// Its place in [`Op::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// How a request is to be carried out: a small set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flags(u8);

impl Flags {
    /// Nothing special.
    pub const NONE: Flags = Flags(0);
    /// Durable before it is answered (NBD's FUA; every write of a guest without a write-back cache).
    pub const FUA: Flags = Flags(1);
    /// Zeroes may be written by giving the space back (virtio's UNMAP; NBD without NO_HOLE).
    pub const MAY_UNMAP: Flags = Flags(2);
    /// Fail with [`Fault::Unsupported`] rather than write zeroes slowly (NBD's FAST_ZERO).
    pub const FAST_ONLY: Flags = Flags(4);

    /// Whether every flag of `other` is set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// As a number, for the trace format. New flags only append bits.
    pub const fn bits(self) -> u8 {
        self.0
    }
}

/// Names bytes that the I/O thread holds: a buffer, and where in it this I/O's bytes begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Data {
    /// Which buffer.
    pub buffer: u32,
    /// First byte of it that belongs to this I/O.
    pub start: u32,
}

impl Data {
    /// For operations that carry no bytes.
    pub const NONE: Data = Data {
        buffer: u32::MAX,
        start: 0,
    };

    /// The same buffer, `bytes` further on.
    #[must_use]
    pub const fn skip(self, bytes: u32) -> Data {
        Data {
            buffer: self.buffer,
            start: self.start + bytes,
        }
    }
}

/// One request, as a front end understood it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked.
    pub op: Op,
    /// How.
    pub flags: Flags,
    /// Where on the disk, in bytes.
    pub offset: u64,
    /// How much, in bytes; zero for a flush.
    pub len: u64,
    /// The bytes to write, or the place to read into.
    pub data: Data,
    /// When the front end first saw it waiting (a stage of its latency begins here).
    pub arrived: Time,
}

/// Why a request failed: what front ends must be able to tell a guest apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The datastore could not do it (EIO).
    Io,
    /// The datastore is full (ENOSPC).
    NoSpace,
    /// The request makes no sense: past the end, overlong (EINVAL).
    Invalid,
    /// The disk, or the datastore, is read-only (EPERM, EROFS).
    ReadOnly,
    /// This disk cannot do that (EOPNOTSUPP).
    Unsupported,
    /// The disk is being taken away (ESHUTDOWN).
    Gone,
}

impl Fault {
    /// All of them, in the order of their numbers.
    pub const ALL: [Fault; 6] = [
        Fault::Io,
        Fault::NoSpace,
        Fault::Invalid,
        Fault::ReadOnly,
        Fault::Unsupported,
        Fault::Gone,
    ];
}

/// How a request ended.
pub type Outcome = Result<(), Fault>;

/// One answer to [`Op::Extents`]: this many bytes, and what they are. Extents follow each other without a gap.
///
/// In the buffer: 16 bytes each, `len` then `kind` as little-endian `u64`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes, never zero.
    pub len: u64,
    /// What they are.
    pub kind: ExtentKind,
}

/// What a stretch of a disk is, as NBD's `base:allocation` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// Allocated; may hold anything.
    Data,
    /// Not allocated, reads as zeroes.
    Hole,
    /// Allocated, reads as zeroes.
    Zero,
}

impl Extent {
    /// Bytes that one takes in a buffer.
    pub const SIZE: usize = 16;

    /// As it lies in the buffer.
    pub fn encode(self) -> [u8; Extent::SIZE] {
        let mut bytes = [0; Extent::SIZE];
        bytes[..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..].copy_from_slice(&(self.kind as u64).to_le_bytes());
        bytes
    }

    /// Back from [`Extent::encode`]. `None` for a length of zero (the end of a shorter list) or an unknown kind.
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
