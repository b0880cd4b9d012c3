//! The fast path for the usual request layout: one descriptor each for header, data and status.
//!
//! Almost all requests have this layout, so it is recognised before any list is filled. Every other layout (more
//! segments, other lengths or flags, split or missing memory, another type) is left unchanged to [`super::chain`]. Only
//! that module rejects malformed chains.
//!
//! # Always true
//! - The result equals the result of [`super::chain`] (`tests/vhost_guest/requests.rs` compares them).
//!
//! # Source
//! VIRTIO 1.2 §5.2.6; the layout of Linux' `virtio_blk`, of Windows' `viostor` and of SeaBIOS.

use super::super::GuestMemory;
use super::super::block::{BlockRequest, HEADER, Kind, MAX_DATA, SECTOR, T_IN, T_OUT};
use super::chain::{DESC_NEXT, DESC_WRITE, Descriptor};

/// The request of the chain that starts with `header`, and its one data segment, if it is a plain read or write. `load`
/// reads the chain's table of `entries` descriptors.
#[inline]
pub(super) fn read<M: GuestMemory>(
    memory: &M,
    header: &Descriptor,
    load: impl Fn(u16) -> Option<[u64; 2]>,
    entries: u16,
    head: u16,
) -> Option<(BlockRequest<M::Segment>, M::Segment)> {
    if header.flags != DESC_NEXT || header.len as usize != HEADER || header.next >= entries {
        return None;
    }
    let data = Descriptor::decode(load(header.next)?);
    if data.flags & !DESC_WRITE != DESC_NEXT || data.next >= entries {
        return None;
    }
    let status = Descriptor::decode(load(data.next)?);
    if status.flags != DESC_WRITE || status.len != 1 {
        return None;
    }
    let len = u64::from(data.len);
    if !len.is_multiple_of(SECTOR) || len > MAX_DATA {
        return None;
    }
    let [kind, sector] = memory.load_pair(header.addr)?;
    let offset = sector.checked_mul(SECTOR)?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the upper half is the priority, which is ignored"
    )]
    let kind = match (kind as u32, data.flags & DESC_WRITE != 0) {
        (T_IN, true) => Kind::Read { offset, len },
        (T_OUT, false) => Kind::Write { offset, len },
        _ => return None,
    };
    let piece = memory.segment(data.addr, data.len)?;
    let status = memory.segment(status.addr, 1)?;
    Some((BlockRequest { head, kind, status }, piece))
}
