//! Reads that one run of blocks on flash has: they go there as they are, into the guest's memory, and are checked.
//!
//! Most hits are such. Everything else goes the way of [`super::read`], and so does a hit that is not as it was written, or
//! that its device fails: from the beginning, with its range locked if that is needed.
//!
//! # Always true
//! - the page is pinned until the read is good, or goes the other way

use super::{BLOCKS, CACHE_BLOCK, Cache, Locked, PAGE, State, block_of, check};
use crate::layout::{Check, Hit, HitCx, LayoutCx, LayoutIo, Target};
use crate::range_lock::{Mode, Wanted};
use crate::request::Fault;
use core::num::NonZeroU64;

/// The mark of a read of one block says all that is to be known of it: in bits, from the lowest one, its page's first slot 32,
/// its checksum 16, its device 8, and [`ONE`]. Any other mark is one more than the read's number.
const ONE: u64 = 1 << 63;

/// A read of several blocks.
pub(super) struct ManyBlocks {
    /// The page's first slot, pinned.
    slot: u32,
    device: Target,
    /// Blocks whose checksum has come, and all.
    summed: u8,
    count: u8,
    /// The checksums, as they were when it was begun.
    checks: [u16; BLOCKS],
}

impl Cache {
    /// Sends a read to flash, if that is all there is to do.
    #[inline]
    pub(super) fn take_hit(&mut self, cx: &HitCx<'_>, offset: u64, len: u64) -> Option<Hit> {
        let whole = (offset | len).is_multiple_of(CACHE_BLOCK);
        let some = len > 0 && len <= PAGE;
        if !whole || !some || self.state != State::Ready || self.must_choose(cx.now) {
            return None;
        }
        let (page, first) = block_of(offset);
        let blocks = ((1_u32 << (len / CACHE_BLOCK)) - 1) << first;
        // In one page.
        let blocks = u16::try_from(blocks).ok()?;
        let slot = self.map.find(page)?;
        let holder = self.map.holder_of_all(slot, blocks)?;
        if !self.lock.is_idle() && self.lock.is_wanted(offset, offset + len) {
            return None;
        }
        let device = self.reader(cx.loads, 0)?;
        self.hits += 1;
        self.cleaner.busy_at = cx.now;
        if !self.note_stream(offset, len) {
            self.shadow(cx.now, page, blocks, false);
            self.policy_hit(cx.now, slot, page);
        }
        self.map.pin(slot);
        let mark = match len {
            CACHE_BLOCK => {
                let check = self.map.slot(holder).checks[first];
                ONE | u64::from(device.0) << 48 | u64::from(check) << 32 | u64::from(slot)
            }
            _ => self.note_hit(slot, holder, device, blocks),
        };
        Some(Hit {
            target: device,
            offset: self.area.block_of_slot(holder, first),
            mark: NonZeroU64::new(mark)?,
        })
    }

    /// Notes a read of several blocks. Returns its mark.
    fn note_hit(&mut self, slot: u32, holder: u32, device: Target, blocks: u16) -> u64 {
        let (first, count) = (blocks.trailing_zeros(), blocks.count_ones());
        let of_holder = &self.map.slot(holder).checks;
        let mut checks = [0; BLOCKS];
        for (to, from) in checks.iter_mut().zip(&of_holder[first as usize..]) {
            *to = *from;
        }
        let number = self.direct.insert(ManyBlocks {
            slot,
            device,
            summed: 0,
            count: u8::try_from(count).expect("16 blocks"),
            checks,
        });
        u64::from(number) + 1
    }

    /// The checksum of the next block of such a read.
    #[inline]
    pub(super) fn hit_summed(&mut self, mark: u64, sum: u32) -> Check {
        if mark & ONE == 0 {
            return self.many_summed(mark, sum);
        }
        let [_, _, _, _, a, b, ..] = mark.to_le_bytes();
        if u16::from_le_bytes([a, b]) != check(sum) {
            return Check::Bad;
        }
        self.unpin_hit(low(mark));
        Check::Good
    }

    fn many_summed(&mut self, mark: u64, sum: u32) -> Check {
        let hit = self.direct.at(low(mark - 1));
        if hit.checks[usize::from(hit.summed)] != check(sum) {
            return Check::Bad;
        }
        hit.summed += 1;
        if hit.summed < hit.count {
            return Check::More;
        }
        self.end_hit(mark);
        Check::Good
    }

    /// Such a read has ended. Returns its device.
    fn end_hit(&mut self, mark: u64) -> Target {
        let (slot, device) = match mark & ONE {
            0 => {
                let hit = self.direct.remove(low(mark - 1));
                (hit.slot, hit.device)
            }
            _ => {
                let [.., device, _] = mark.to_le_bytes();
                (low(mark), Target(device))
            }
        };
        self.unpin_hit(slot);
        device
    }

    #[inline(always)]
    fn unpin_hit(&mut self, slot: u32) {
        self.map.unpin(slot);
        self.remove_if_empty(slot);
    }

    /// Such a read has failed, or has other bytes than were written: it is read again, in pieces.
    #[cold]
    pub(super) fn hit_bad(
        &mut self,
        cx: &mut LayoutCx<'_>,
        io: &LayoutIo,
        mark: u64,
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

/// The lower half of a mark.
fn low(mark: u64) -> u32 {
    let [a, b, c, d, ..] = mark.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
