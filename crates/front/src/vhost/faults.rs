//! Errors of a ring and of a single descriptor chain.

use std::fmt;

use super::{MAX_SEGMENTS, MAX_SIZE};

/// Why a queue cannot go on: its rings themselves make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The size is no power of two or too large.
    Size(u16),
    /// A ring is not aligned as virtio demands.
    Misaligned,
    /// A ring lies outside the guest's memory.
    Outside,
    /// The available index is further ahead than the ring is long.
    IndexJump {
        /// The available index.
        available: u16,
        /// Where the next entry was to be taken.
        position: u16,
    },
    /// An available entry names a descriptor beyond the table.
    Head(u16),
    /// An available entry names a chain that is still in flight.
    Reused(u16),
    /// The in-flight region does not fit the ring.
    Inflight,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Size(size) => write!(
                f,
                "the ring has {size} entries, which is no power of two up to {MAX_SIZE}"
            ),
            Broken::Misaligned => f.write_str("a ring is not aligned"),
            Broken::Outside => f.write_str("a ring lies outside the guest's memory"),
            Broken::IndexJump {
                available,
                position,
            } => write!(
                f,
                "the available index {available} is further ahead of {position} than the ring is long"
            ),
            Broken::Head(head) => write!(
                f,
                "an available entry names descriptor {head}, which lies beyond the table"
            ),
            Broken::Reused(head) => write!(
                f,
                "an available entry names chain {head}, which is still in flight"
            ),
            Broken::Inflight => f.write_str("the in-flight region does not fit the ring"),
        }
    }
}

/// Why one chain was refused; the guest sees an I/O error, or a used entry without a status when it left no room for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nonsense {
    /// The chain is longer than its table: it loops.
    Loop,
    /// More descriptors or pieces of memory than [`MAX_SEGMENTS`].
    Long,
    /// A descriptor names memory that the guest does not have.
    Outside,
    /// An indirect descriptor is malformed, nested, or was never negotiated.
    Indirect,
    /// A readable descriptor comes after a writable one.
    Order,
    /// There is no header, or no byte for the status.
    Short,
    /// A descriptor index beyond the table.
    Index,
    /// The request's own fields make no sense (length of a discard, flags).
    Fields,
}

impl fmt::Display for Nonsense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nonsense::Loop => f.write_str("the chain of descriptors loops"),
            Nonsense::Long => write!(
                f,
                "the chain has more than {MAX_SEGMENTS} descriptors or pieces of memory"
            ),
            Nonsense::Outside => {
                f.write_str("a descriptor names memory that the guest does not have")
            }
            Nonsense::Indirect => {
                f.write_str("an indirect descriptor is malformed, nested, or was not negotiated")
            }
            Nonsense::Order => f.write_str("a readable descriptor comes after a writable one"),
            Nonsense::Short => f.write_str("the request has no header, or no byte for its status"),
            Nonsense::Index => f.write_str("a descriptor names a next one beyond the table"),
            Nonsense::Fields => f.write_str("the request's length or sector makes no sense"),
        }
    }
}
