//! virtio-blk requests and configuration space: a descriptor chain becomes header, data and status.
//!
//! [`crate::vhost::queue`] passes the segments of a chain, and `parse` makes a [`BlockRequest`] of them. The guest may
//! split them anywhere: a header may share a descriptor with data, as virtio 1 allows.
//!
//! # Units
//! Sectors on the ring have 512 bytes, whatever the block size. A [`BlockRequest`] is in bytes.
//!
//! # Source
//! VIRTIO 1.2 §5.2.

use super::GuestMemory;
use super::faults::ChainError;

/// Feature bits of a block device and of virtio itself that this front end understands.
pub mod feature {
    /// `seg_max` is valid.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The disk is read-only.
    pub const RO: u64 = 1 << 5;
    /// `blk_size` is valid.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// The device has a cache that FLUSH writes back.
    pub const FLUSH: u64 = 1 << 9;
    /// `topology` is valid.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// `writeback` is valid and may be written.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// There are several queues.
    pub const MQ: u64 = 1 << 12;
    /// DISCARD is supported.
    pub const DISCARD: u64 = 1 << 13;
    /// WRITE_ZEROES is supported.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// VHOST_F_LOG_ALL: writes to guest memory are logged.
    pub const LOG_ALL: u64 = 1 << 26;
    /// Descriptors may point at tables of descriptors.
    pub const INDIRECT_DESC: u64 = 1 << 28;
    /// Notifications are suppressed by index.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// The vhost-user protocol has feature bits of its own.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// virtio 1.
    pub const VERSION_1: u64 = 1 << 32;
}

/// The unit of every sector number on the ring.
pub const SECTOR: u64 = 512;

/// `S_OK`: done.
pub const STATUS_OK: u8 = 0;
/// `S_IOERR`: failed.
pub const STATUS_IOERR: u8 = 1;
/// `S_UNSUPP`: not supported.
pub const STATUS_UNSUPP: u8 = 2;

/// The most bytes of a GET_ID reply.
pub const ID_BYTES: usize = 20;

/// The most bytes of one request, so that a guest cannot make the daemon store a huge list. Linux guests stay below 4
/// MiB, Windows guests below 2 MiB.
pub const MAX_DATA: u64 = 64 << 20;

/// The most sectors of one DISCARD or WRITE_ZEROES. Its bytes then fit 32 bits, as required everywhere below.
pub const MAX_RANGE_SECTORS: u32 = u32::MAX >> 9;

pub(super) const HEADER: usize = 16;
const RANGE: usize = 16;
pub(super) const T_IN: u32 = 0;
pub(super) const T_OUT: u32 = 1;
const T_FLUSH: u32 = 4;
const T_GET_ID: u32 = 8;
const T_DISCARD: u32 = 11;
const T_WRITE_ZEROES: u32 = 13;
const RANGE_UNMAP: u32 = 1;

/// The result of [`Queue::next`](super::queue::Queue::next).
#[derive(Debug)]
pub enum Taken<S> {
    /// A request. Its data segments are in the caller's list.
    Request(BlockRequest<S>),
    /// A malformed chain. It is completed with an error status if it has a status byte.
    Bad {
        /// Its first descriptor, which identifies it for completion.
        head: u16,
        /// The position of its status byte.
        status: Option<S>,
        /// What is wrong.
        why: ChainError,
    },
}

/// A decoded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRequest<S> {
    /// The chain's first descriptor, which identifies it for completion.
    pub head: u16,
    /// The operation.
    pub kind: Kind,
    /// The position of the status byte.
    pub status: S,
}

/// The operations of a block device. Data segments are separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read into the segments.
    Read {
        /// Byte offset on the disk.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Write from the segments.
    Write {
        /// Byte offset on the disk.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Make completed writes durable.
    Flush,
    /// Copy the disk's serial number into the segments, at most [`ID_BYTES`].
    GetId {
        /// Space for it, in bytes.
        len: u64,
    },
    /// Discard a range.
    Discard {
        /// Byte offset on the disk.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Write zeroes to a range.
    WriteZeroes {
        /// Byte offset on the disk.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Whether the space may be deallocated.
        unmap: bool,
    },
    /// An unknown type, answered UNSUPP.
    Unknown,
}

/// Makes a request of a chain's segments. On return `data` holds the segments of the request's data.
pub(super) fn parse<M: GuestMemory>(
    memory: &M,
    head: u16,
    walked: Result<(), ChainError>,
    data: &mut Vec<M::Segment>,
    writable: &mut Vec<M::Segment>,
) -> Taken<M::Segment> {
    let status = pop_status::<M>(writable);
    let bad = |why| Taken::Bad { head, status, why };
    if let Err(why) = walked {
        return bad(why);
    }
    let Some(status) = status else {
        return bad(ChainError::Short);
    };
    let Some([kind, sector]) = take_header(memory, data) else {
        return bad(ChainError::Short);
    };
    // The upper half is the priority, which is ignored.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the lower half is the type"
    )]
    let kind = match kind as u32 {
        T_IN => {
            std::mem::swap(data, writable);
            ranged::<M>(sector, data).map(|(offset, len)| Kind::Read { offset, len })
        }
        T_OUT => ranged::<M>(sector, data).map(|(offset, len)| Kind::Write { offset, len }),
        T_FLUSH => {
            // A flush has no data. Release the segments that came with it.
            data.clear();
            Ok(Kind::Flush)
        }
        T_GET_ID => {
            std::mem::swap(data, writable);
            Ok(Kind::GetId {
                len: total::<M>(data),
            })
        }
        T_DISCARD | T_WRITE_ZEROES if total::<M>(data) > RANGE as u64 => {
            // More ranges than announced in the configuration space. QEMU's device answers this way, and QEMU's test
            // checks it.
            data.clear();
            Ok(Kind::Unknown)
        }
        T_DISCARD => range(memory, data).map(|range| match range.flags {
            0 => Kind::Discard {
                offset: range.offset,
                len: range.len,
            },
            _ => Kind::Unknown,
        }),
        T_WRITE_ZEROES => range(memory, data).map(|range| match range.flags {
            0 => Kind::WriteZeroes {
                offset: range.offset,
                len: range.len,
                unmap: false,
            },
            RANGE_UNMAP => Kind::WriteZeroes {
                offset: range.offset,
                len: range.len,
                unmap: true,
            },
            _ => Kind::Unknown,
        }),
        _ => Ok(Kind::Unknown),
    };
    match kind {
        Ok(kind) => Taken::Request(BlockRequest { head, kind, status }),
        Err(why) => bad(why),
    }
}

/// Removes the status byte: the last byte that the device may write.
fn pop_status<M: GuestMemory>(writable: &mut Vec<M::Segment>) -> Option<M::Segment> {
    while let Some(last) = writable.last_mut() {
        let len = M::segment_len(last);
        if len == 0 {
            writable.pop();
            continue;
        }
        let status = M::segment_skip(last, len - 1);
        if len == 1 {
            writable.pop();
        } else {
            *last = M::segment_take(last, len - 1);
        }
        return Some(status);
    }
    None
}

/// Removes the header from the front, as two words: the type, and the sector.
#[inline]
fn take_header<M: GuestMemory>(memory: &M, data: &mut Vec<M::Segment>) -> Option<[u64; 2]> {
    if let [first, ..] = &data[..]
        && M::segment_len(first) == HEADER
    {
        // The usual layout: a separate segment.
        let words = memory.segment_pair(first)?;
        if data.len() == 1 {
            data.clear();
        } else {
            data.remove(0);
        }
        return Some(words);
    }
    let mut bytes = [[0; 8]; 2];
    if memory.peek(data, bytes.as_flattened_mut()) < HEADER {
        return None;
    }
    drop_front::<M>(data, HEADER);
    Some(bytes.map(u64::from_le_bytes))
}

/// Removes the first `bytes` of a list of segments.
fn drop_front<M: GuestMemory>(segments: &mut Vec<M::Segment>, mut bytes: usize) {
    let mut whole = 0;
    for segment in segments.iter_mut() {
        let len = M::segment_len(segment);
        if len > bytes {
            *segment = M::segment_skip(segment, bytes);
            break;
        }
        bytes -= len;
        whole += 1;
    }
    segments.drain(..whole);
}

fn total<M: GuestMemory>(segments: &[M::Segment]) -> u64 {
    segments.iter().map(|s| M::segment_len(s) as u64).sum()
}

/// Offset and length of a read or write, in bytes.
fn ranged<M: GuestMemory>(sector: u64, data: &[M::Segment]) -> Result<(u64, u64), ChainError> {
    let len = total::<M>(data);
    if !len.is_multiple_of(SECTOR) || len > MAX_DATA {
        return Err(ChainError::Fields);
    }
    let offset = sector.checked_mul(SECTOR).ok_or(ChainError::Fields)?;
    Ok((offset, len))
}

struct Range {
    offset: u64,
    len: u64,
    flags: u32,
}

/// The one segment of a DISCARD or WRITE_ZEROES. The configuration space announces a maximum of one.
fn range<M: GuestMemory>(memory: &M, data: &mut Vec<M::Segment>) -> Result<Range, ChainError> {
    let mut bytes = [0; RANGE];
    if total::<M>(data) != RANGE as u64 || memory.peek(data, &mut bytes) != RANGE {
        return Err(ChainError::Fields);
    }
    data.clear();
    let [s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, flags @ ..] = bytes;
    let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
    let sectors = u32::from_le_bytes([n0, n1, n2, n3]);
    if sectors > MAX_RANGE_SECTORS {
        return Err(ChainError::Fields);
    }
    let offset = sector.checked_mul(SECTOR).ok_or(ChainError::Fields)?;
    Ok(Range {
        offset,
        len: u64::from(sectors) * SECTOR,
        flags: u32::from_le_bytes(flags),
    })
}

/// The contents of the configuration space.
#[derive(Clone, Copy, Debug)]
pub struct BlockConfig {
    /// Disk size in bytes. The guest sees only whole blocks.
    pub size: u64,
    /// Logical block size in bytes: the smallest I/O that the guest should send.
    pub block_size: u32,
    /// Physical block size in bytes. Smaller writes need a read-modify-write on the datastore.
    pub physical_block_size: u32,
    /// Optimal I/O size in bytes.
    pub optimal_io_size: u32,
    /// The most data segments of a request.
    pub seg_max: u32,
    /// Number of rings.
    pub queues: u16,
    /// Whether the disk has a write-back cache, which FLUSH writes back.
    pub write_back: bool,
}

impl BlockConfig {
    /// Bytes of the configuration space.
    pub const LEN: usize = 60;
    /// Position of `writeback`, the only field that a guest may write.
    pub const WRITEBACK: usize = 32;

    /// Encodes `struct virtio_blk_config`, little-endian.
    pub fn encode(&self) -> [u8; BlockConfig::LEN] {
        let mut space = [0; BlockConfig::LEN];
        let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
        // A capacity that ends within a block would cause I/O that this device must reject.
        let blocks = self.size / u64::from(self.block_size.max(1));
        let sectors = blocks * u64::from(self.block_size) / SECTOR;
        put(0, &sectors.to_le_bytes());
        put(12, &self.seg_max.to_le_bytes());
        put(20, &self.block_size.to_le_bytes());
        let ratio = (self.physical_block_size / self.block_size.max(1)).max(1);
        put(24, &[u8::try_from(ratio.ilog2()).unwrap_or(0), 0]);
        put(
            28,
            &(self.optimal_io_size / self.block_size.max(1)).to_le_bytes(),
        );
        put(Self::WRITEBACK, &[self.write_back.into()]);
        put(34, &self.queues.to_le_bytes());
        put(36, &MAX_RANGE_SECTORS.to_le_bytes());
        put(40, &1u32.to_le_bytes());
        let alignment = u64::from(self.physical_block_size) / SECTOR;
        put(44, &u32::try_from(alignment).unwrap_or(1).to_le_bytes());
        put(48, &MAX_RANGE_SECTORS.to_le_bytes());
        put(52, &1u32.to_le_bytes());
        put(56, &[1]);
        space
    }
}
