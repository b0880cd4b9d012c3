//! Follows a descriptor chain and sorts its segments into readable and writable ones.
//!
//! [`super::Queue`] passes the table and the chain's first descriptor. The result is segments of guest memory, not yet
//! a request. Every descriptor is checked.
//!
//! # Always true
//! - A chain is followed for at most [`MAX_SEGMENTS`] descriptors (fewer in a smaller table), so a loop ends.
//! - When a chain is rejected, the writable segments contain only the status byte, or nothing if its position is
//!   uncertain.
//!
//! # Source
//! VIRTIO 1.2 §2.7.5 (descriptors), §2.7.5.3 (indirect ones).

use super::super::GuestMemory;
use super::{ChainError, MAX_SEGMENTS};

pub(super) const DESC_NEXT: u16 = 1;
pub(super) const DESC_WRITE: u16 = 2;
pub(super) const DESC_INDIRECT: u16 = 4;
pub(super) const DESC_BYTES: usize = 16;

/// Follows `next` links from `start` in the table of `entries` that `load` reads. `walked` counts the work, also for a
/// rejected chain: descriptors read, plus segments from splitting at region boundaries.
pub(super) fn follow<M: GuestMemory>(
    memory: &M,
    load: impl Fn(u16) -> Option<[u64; 2]>,
    start: u16,
    entries: u16,
    readable: &mut Vec<M::Segment>,
    writable: &mut Vec<M::Segment>,
    walked: &mut u64,
) -> Result<(), ChainError> {
    let mut index = start;
    for _ in 0..usize::from(entries).min(MAX_SEGMENTS) {
        *walked += 1;
        let Some(desc) = load(index).map(Descriptor::decode) else {
            return reject_without_status(ChainError::Outside, writable);
        };
        if desc.flags & DESC_INDIRECT != 0 {
            return reject_without_status(ChainError::Indirect, writable);
        }
        let list = if desc.flags & DESC_WRITE != 0 {
            &mut *writable
        } else if writable.is_empty() {
            &mut *readable
        } else {
            let why = ChainError::Order;
            return find_status(memory, load, index, entries, why, writable, walked);
        };
        if let Some(piece) = memory.segment(desc.addr, desc.len) {
            list.push(piece);
        } else {
            let before = list.len();
            let whole = memory.segments(desc.addr, desc.len, list);
            *walked += (list.len() - before) as u64;
            if !whole {
                let why = ChainError::Outside;
                return find_status(memory, load, index, entries, why, writable, walked);
            }
        }
        if readable.len() + writable.len() > MAX_SEGMENTS {
            let why = ChainError::Long;
            return find_status(memory, load, index, entries, why, writable, walked);
        }
        if desc.flags & DESC_NEXT == 0 {
            return Ok(());
        }
        index = desc.next;
        if index >= entries {
            return reject_without_status(ChainError::Index, writable);
        }
    }
    let why = if usize::from(entries) > MAX_SEGMENTS {
        ChainError::Long
    } else {
        ChainError::Loop
    };
    reject_without_status(why, writable)
}

/// A chain without an end has no known status byte. The last writable byte may be data.
#[cold]
fn reject_without_status<S>(why: ChainError, writable: &mut Vec<S>) -> Result<(), ChainError> {
    writable.clear();
    Err(why)
}

/// The segment at `index` is invalid. Searches for the chain's end and leaves only its status byte in `writable`.
/// Without an error status, the guest may take the byte's old value for the result.
#[cold]
fn find_status<M: GuestMemory>(
    memory: &M,
    load: impl Fn(u16) -> Option<[u64; 2]>,
    mut index: u16,
    entries: u16,
    why: ChainError,
    writable: &mut Vec<M::Segment>,
    walked: &mut u64,
) -> Result<(), ChainError> {
    for _ in 0..usize::from(entries).min(MAX_SEGMENTS) {
        *walked += 1;
        let Some(desc) = load(index).map(Descriptor::decode) else {
            break;
        };
        if desc.flags & DESC_INDIRECT != 0 {
            break;
        }
        if desc.flags & DESC_WRITE != 0 && desc.len > 0 {
            writable.clear();
            let last = desc.addr.checked_add(u64::from(desc.len) - 1);
            // If this one is outside too, the list stays empty. It may not be the last one.
            let _ = last.is_some_and(|last| memory.segments(last, 1, writable));
        }
        if desc.flags & DESC_NEXT == 0 {
            return Err(why);
        }
        index = desc.next;
        if index >= entries {
            break;
        }
    }
    reject_without_status(why, writable)
}

/// A decoded descriptor.
pub(super) struct Descriptor {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
    pub(super) next: u16,
}

impl Descriptor {
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "each part has its own width"
    )]
    pub(super) fn decode([addr, rest]: [u64; 2]) -> Descriptor {
        Descriptor {
            addr,
            len: rest as u32,
            flags: (rest >> 32) as u16,
            next: (rest >> 48) as u16,
        }
    }
}
