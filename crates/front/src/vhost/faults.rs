//! Errors of a ring and of a single descriptor chain.

use std::fmt;

use super::{MAX_SEGMENTS, MAX_SIZE};

/// Why a queue must stop: its ring is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingError {
    /// The size is not a power of two, or too large.
    Size(u16),
    /// A ring is not aligned as virtio requires.
    Misaligned,
    /// A ring lies outside the guest's memory.
    Outside,
    /// The available index is further ahead than the ring's length.
    IndexJump {
        /// The available index.
        available: u16,
        /// The position of the next entry.
        position: u16,
    },
    /// An available entry names a descriptor beyond the table.
    Head(u16),
    /// An available entry names a chain that is still in flight.
    Reused(u16),
    /// The in-flight region does not fit the ring.
    Inflight,
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingError::Size(size) => write!(
                f,
                "the ring has {size} entries, which is not a power of two up to {MAX_SIZE}"
            ),
            RingError::Misaligned => f.write_str("a ring is not aligned"),
            RingError::Outside => f.write_str("a ring lies outside the guest's memory"),
            RingError::IndexJump {
                available,
                position,
            } => write!(
                f,
                "the available index {available} is further ahead of {position} than the ring is long"
            ),
            RingError::Head(head) => write!(
                f,
                "an available entry names descriptor {head}, which lies beyond the table"
            ),
            RingError::Reused(head) => write!(
                f,
                "an available entry names chain {head}, which is still in flight"
            ),
            RingError::Inflight => f.write_str("the in-flight region does not fit the ring"),
        }
    }
}

/// Why one chain was rejected. The guest sees an I/O error, or a used entry without a status if the chain has no status
/// byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainError {
    /// The chain is longer than its table: it loops.
    Loop,
    /// More descriptors or segments than [`MAX_SEGMENTS`].
    Long,
    /// A descriptor points to memory that the guest does not have.
    Outside,
    /// An indirect descriptor is malformed, nested, or was never negotiated.
    Indirect,
    /// A readable descriptor comes after a writable one.
    Order,
    /// There is no header, or no status byte.
    Short,
    /// A descriptor index beyond the table.
    Index,
    /// The request's fields are invalid (length of a discard, flags).
    Fields,
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChainError::Loop => f.write_str("the chain of descriptors loops"),
            ChainError::Long => write!(
                f,
                "the chain has more than {MAX_SEGMENTS} descriptors or pieces of memory"
            ),
            ChainError::Outside => {
                f.write_str("a descriptor names memory that the guest does not have")
            }
            ChainError::Indirect => {
                f.write_str("an indirect descriptor is malformed, nested, or was not negotiated")
            }
            ChainError::Order => f.write_str("a readable descriptor comes after a writable one"),
            ChainError::Short => {
                f.write_str("the request has no header, or no byte for its status")
            }
            ChainError::Index => f.write_str("a descriptor names a next one beyond the table"),
            ChainError::Fields => f.write_str("the request's length or sector is invalid"),
        }
    }
}
