//! The walk of a descriptor chain: it sorts segments into readable and writable ones.
//!
//! [`super::Queue`] names the table and the chain's first descriptor; what comes out is pieces of the guest's memory, not yet
//! a request. Nothing that a descriptor says is believed.
//!
//! # Always true
//! - a chain is followed for at most [`MAX_SEGMENTS`] descriptors (fewer in a smaller table), so a loop ends
//! - where a chain is refused, only a status byte beyond doubt is left among the writable pieces
//!
//! # Source
//! VIRTIO 1.2 §2.7.5 (descriptors), §2.7.5.3 (indirect ones).

use super::super::GuestMemory;
use super::{MAX_SEGMENTS, Nonsense};

pub(super) const DESC_NEXT: u16 = 1;
pub(super) const DESC_WRITE: u16 = 2;
pub(super) const DESC_INDIRECT: u16 = 4;
pub(super) const DESC_BYTES: usize = 16;

/// Follows `next` links from `start` in the table of `entries` that `load` reads. `walked` counts what it took, also where
/// the chain is refused: descriptors read, and pieces found where memory is cut.
pub(super) fn follow<M: GuestMemory>(
    memory: &M,
    load: impl Fn(u16) -> Option<[u64; 2]>,
    start: u16,
    entries: u16,
    readable: &mut Vec<M::Segment>,
    writable: &mut Vec<M::Segment>,
    walked: &mut u64,
) -> Result<(), Nonsense> {
    let mut index = start;
    for _ in 0..usize::from(entries).min(MAX_SEGMENTS) {
        *walked += 1;
        let Some(desc) = load(index).map(Descriptor::decode) else {
            return hopeless(Nonsense::Outside, writable);
        };
        if desc.flags & DESC_INDIRECT != 0 {
            return hopeless(Nonsense::Indirect, writable);
        }
        let list = if desc.flags & DESC_WRITE != 0 {
            &mut *writable
        } else if writable.is_empty() {
            &mut *readable
        } else {
            let why = Nonsense::Order;
            return salvage(memory, load, index, entries, why, writable, walked);
        };
        if let Some(piece) = memory.segment(desc.addr, desc.len) {
            list.push(piece);
        } else {
            let before = list.len();
            let whole = memory.segments(desc.addr, desc.len, list);
            *walked += (list.len() - before) as u64;
            if !whole {
                let why = Nonsense::Outside;
                return salvage(memory, load, index, entries, why, writable, walked);
            }
        }
        if readable.len() + writable.len() > MAX_SEGMENTS {
            let why = Nonsense::Long;
            return salvage(memory, load, index, entries, why, writable, walked);
        }
        if desc.flags & DESC_NEXT == 0 {
            return Ok(());
        }
        index = desc.next;
        if index >= entries {
            return hopeless(Nonsense::Index, writable);
        }
    }
    let why = if usize::from(entries) > MAX_SEGMENTS {
        Nonsense::Long
    } else {
        Nonsense::Loop
    };
    hopeless(why, writable)
}

/// A chain without an end has no status byte: what looks like it may be somebody's data.
#[cold]
fn hopeless<S>(why: Nonsense, writable: &mut Vec<S>) -> Result<(), Nonsense> {
    writable.clear();
    Err(why)
}

/// The piece at `index` cannot be used. Looks for the chain's end all the same, and leaves its status byte alone in
/// `writable`: a guest that hears nothing may take what its status byte held before for an answer.
#[cold]
fn salvage<M: GuestMemory>(
    memory: &M,
    load: impl Fn(u16) -> Option<[u64; 2]>,
    mut index: u16,
    entries: u16,
    why: Nonsense,
    writable: &mut Vec<M::Segment>,
    walked: &mut u64,
) -> Result<(), Nonsense> {
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
            // Outside too: the list stays empty, and this may still not be the last one.
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
    hopeless(why, writable)
}

/// One descriptor, as the guest wrote it.
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
        reason = "each part is taken on purpose"
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
