//! Reads that one run of blocks on flash has: they go there as they are, into the guest's memory, and are checked.
//!
//! Most hits are such. Everything else goes the way of [`super::read`], and so does a hit that is not as it was written, or
//! that its device fails: from the beginning, with its range locked if that is needed.
//!
//! # Always true
//! - the page is pinned until the read is good, or goes the other way

use super::{BLOCKS, CACHE_BLOCK, Cache, Locked, PAGE, State, block_of, check, masked};
use crate::layout::{Check, LayoutCx, LayoutIo, Map, Target};
use crate::range_lock::{Mode, Wanted};
use crate::request::Fault;

/// The most such reads at a time: their marks have 16 bits.
const MOST: usize = 1 << 15;

/// See the module.
pub(super) struct Hit {
    /// The page's first slot, pinned.
    slot: u32,
    device: Target,
    /// Blocks whose checksum has come, and all.
    summed: u8,
    count: u8,
    is_bad: bool,
    /// The checksums, as they were when it was begun.
    checks: [u16; BLOCKS],
}

impl Cache {
    /// Sends a read to flash, if that is all there is to do.
    #[inline]
    pub(super) fn take_hit(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) -> Option<Map> {
        let within = io.offset % PAGE;
        let whole = (io.offset | io.len).is_multiple_of(CACHE_BLOCK);
        if !whole || io.len == 0 || within + io.len > PAGE || self.state != State::Ready {
            return None;
        }
        let (page, first) = block_of(io.offset);
        let count = usize::try_from(io.len / CACHE_BLOCK).expect("within a page");
        let last = (within + io.len - 1) / CACHE_BLOCK;
        let blocks = masked(within / CACHE_BLOCK, last);
        let slot = self.map.find(page)?;
        let holder = self.map.holder_of_all(slot, blocks)?;
        let end = io.offset + io.len;
        if !self.lock.is_idle() && self.lock.is_wanted(io.offset, end) {
            return None;
        }
        if self.direct.len() >= MOST {
            return None;
        }
        let device = self.reader(cx, 0)?;
        let of_holder = &self.map.slot(holder).checks;
        let mut checks = [0; BLOCKS];
        // One block is the rule, and needs no call.
        checks[0] = of_holder[first];
        if count > 1 {
            checks[..count].copy_from_slice(&of_holder[first..first + count]);
        }
        self.hits += 1;
        if !self.note_stream(io.offset, io.len) {
            self.shadow(cx, page, blocks, false);
            self.policy_hit(cx, slot, page);
        }
        self.map.pin(slot);
        let number = self.direct.insert(Hit {
            slot,
            device,
            summed: 0,
            count: u8::try_from(count).expect("16 blocks"),
            is_bad: false,
            checks,
        });
        Some(Map::Checked {
            target: device,
            offset: self.area.block_of_slot(holder, first),
            mark: u16::try_from(number + 1).expect("bounded before"),
        })
    }

    /// The checksum of the next block of such a read.
    #[inline]
    pub(super) fn hit_summed(&mut self, mark: u16, sum: u32) -> Check {
        let hit = self.direct.at(u32::from(mark) - 1);
        let is_bad = hit.is_bad || hit.checks[usize::from(hit.summed)] != check(sum);
        if hit.summed + 1 < hit.count {
            hit.summed += 1;
            hit.is_bad = is_bad;
            return Check::More;
        }
        if is_bad {
            return Check::Bad;
        }
        self.end_hit(mark);
        Check::Good
    }

    /// Such a read has ended.
    #[inline]
    pub(super) fn end_hit(&mut self, mark: u16) -> Target {
        let hit = self.direct.remove(u32::from(mark) - 1);
        self.map.unpin(hit.slot);
        self.remove_if_empty(hit.slot);
        hit.device
    }

    /// Such a read has failed, or has other bytes than were written: it is read again, in pieces.
    #[cold]
    pub(super) fn hit_bad(
        &mut self,
        cx: &mut LayoutCx<'_>,
        io: &LayoutIo,
        mark: u16,
        fault: Option<Fault>,
    ) {
        let device = self.end_hit(mark);
        if let Some(fault) = fault {
            self.read_faults += 1;
            if fault == Fault::Gone {
                self.flash_failed(cx, device, fault);
            }
        }
        let number = self.insert_op(io, 0);
        let op = self.ops.at(number);
        (op.lock, op.is_exclusive) = (Locked::Asked, true);
        let wanted = Wanted {
            id: number,
            start: io.offset,
            end: io.offset + io.len,
            mode: Mode::Exclusive,
        };
        self.lock_or_hurry(cx, wanted);
    }
}
