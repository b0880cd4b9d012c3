//! I/Os of a pool's disk that go to one place of one member as they are: they are neither split, nor is their end seen.
//!
//! A read goes so if one record sees all of it. A write goes so if the current generation has all of it at one place, or if
//! nobody has what it lacks there and the place is zeroed. Everything else takes the way of `read.rs` and `ops.rs`.
//!
//! # Always true
//! - a write with FUA goes so only if no crash changes what is at its place
//! - a place that is zeroed is seen from the moment on at which the first write goes there: what is not written yet is zeroes

use super::ops::Wait;
use super::records::{MOVING, Record, Table};
use super::{Pool, SUB_BLOCKS};
use crate::layout::{LayoutCx, LayoutIo, Target};
use crate::request::{Flags, Op};

/// The sub-blocks from one to another one, both among them.
#[inline]
fn through(first: u64, last: u64) -> u32 {
    (2_u32 << (last % 16)) - (1_u32 << (first % 16))
}

impl Pool {
    /// Where an I/O goes as it is, without any change of the disk's metadata.
    pub(super) fn direct(
        &self,
        op: Op,
        flags: Flags,
        offset: u64,
        len: u64,
    ) -> Option<(Target, u64)> {
        self.look_up(op, flags, offset, len)
    }

    /// The same, where nothing but the lookup shall cost anything.
    #[inline(always)]
    pub(super) fn look_up(
        &self,
        op: Op,
        flags: Flags,
        offset: u64,
        len: u64,
    ) -> Option<(Target, u64)> {
        let (sub_block, extent) = self.shifts;
        let within = offset & ((1 << extent) - 1);
        let last = within + len.checked_sub(1)?;
        if last >> extent != 0 {
            return None;
        }
        let number = self.extent_at(offset);
        let (first, record) = self.table.first_record(number)?;
        let wanted = through(within >> sub_block, last >> sub_block);
        let place = match u32::from(record.seen) & wanted == wanted {
            true if op == Op::Read || self.is_written_at(op, flags, first, record) => first,
            false if op == Op::Read => self.further(number, wanted)?,
            _ => return None,
        };
        (!Table::is_mark(place)).then(|| self.address(place, offset))
    }

    /// Whether a write to what the disk sees of a record goes there as it is.
    #[inline]
    fn is_written_at(&self, op: Op, flags: Flags, place: u32, record: &Record) -> bool {
        op == Op::Write
            && record.generation == self.current()
            && record.flags & MOVING == 0
            && self.gate.is_open()
            && self.view.is_none()
            && (!flags.has(Flags::FUA) || self.is_durable(place))
    }

    /// The record that sees all these sub-blocks, if the first one of the extent does not.
    #[cold]
    fn further(&self, extent: u32, wanted: u32) -> Option<u32> {
        let sees = |place: &u32| u32::from(self.table.at(*place).seen) & wanted == wanted;
        let mut chain = self.table.chain(extent);
        chain.by_ref().take(SUB_BLOCKS as usize).find(sees)
    }

    /// Whether no crash changes what is at a place.
    fn is_durable(&self, place: u32) -> bool {
        let header = &self.table.chunk(self.table.chunk_of(place)).header;
        !header.is_dirty() && !self.space.has_unwritten() && !self.root.is_doubtful
    }

    /// Where the first write to some sub-blocks goes as it is: to a place of the current generation that is zeroed there. The
    /// disk sees them at that place from now on.
    pub(super) fn first_write(
        &mut self,
        cx: &mut LayoutCx<'_>,
        io: &LayoutIo,
    ) -> Option<(Target, u64)> {
        let is_one = io.len > 0 && io.len <= self.left_of_extent(io.offset);
        let may = self.is_open() && self.gate.is_open() && !self.has_too_many_dirty();
        // On mirrored columns it may have to wait until its extent is hot.
        if !is_one || !may || io.flags.has(Flags::FUA) || self.intent.is_used {
            return None;
        }
        let extent = self.extent_at(io.offset);
        let wanted = self.range_bits(io.offset, io.len);
        if self.locks.get(&extent).is_some_and(|it| it & wanted != 0) {
            return None;
        }
        let current = self.current();
        if self.table.first(extent).is_some() {
            let place = self.table.fresh_at(extent, current, wanted)?;
            self.table.extend(place, wanted);
            self.table.touch(place);
            return Some(self.address(place, io.offset));
        }
        // Those that wait come first, and whole sub-blocks need no zeroed place.
        let whole = self.is_whole(io.offset, io.len) && self.table.free() > 0;
        if whole || self.waiting.of(Wait::Space) > 0 {
            return None;
        }
        let place = self.space.take_zeroed()?;
        self.table.put_only(place, extent, current, wanted);
        self.table.touch(place);
        self.forest.at_mut(current).extents += 1;
        self.refill(cx);
        Some(self.address(place, io.offset))
    }
}
