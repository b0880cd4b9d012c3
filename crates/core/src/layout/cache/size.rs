//! The size of a disk's cache changes while it is used: it gets more chunks, or gives some back.
//!
//! The disk's descriptor names its chunks. It names new ones before the cache uses them, and those that the cache gives back
//! until after that has ended. So every slot that a record of the journal could need is known when the disk is opened.
//!
//! The cache gives back its last chunks. No page gets a slot of these any more. Dirty pages are cleaned, and then all leave,
//! as work in the background. Older records that name these slots may stay in the journal: there are later ones.
//!
//! # Always true
//! - the cache reports that it gives chunks back only once no durable record of a page names them

use super::{Cache, State};
use crate::layout::{LayoutCx, LayoutNotice, OrderRefusal};
use crate::units::{Span, Time};

/// Pages that leave at once.
const TOGETHER: usize = 64;
/// How long until pages that were in use are looked at again.
const AGAIN: Span = Span::from_millis(50);
/// After so long, writes of pages that are to leave go past the cache. Origin: chosen; most pages have left before.
const PATIENCE: Span = Span::from_secs(5);

/// Chunks that are being given back.
pub(super) struct Shrinking {
    chunks: u32,
    /// The first slot that goes.
    bound: u32,
    /// Slots before this one have gone.
    from: u32,
    begun: Time,
    pub(super) at: Time,
}

impl Cache {
    /// The cache gets chunks of its devices.
    pub(super) fn grow(
        &mut self,
        cx: &mut LayoutCx<'_>,
        first: u32,
        count: u32,
    ) -> Result<(), OrderRefusal> {
        if self.state != State::Ready {
            return Err(OrderRefusal::NotOpen);
        }
        if self.shrinking.is_some() {
            return Err(OrderRefusal::Busy);
        }
        if !self.area.grow(first, count) {
            return Err(OrderRefusal::Fixed);
        }
        let slots = self.area.slots();
        self.map.grow(slots);
        self.keeper.resize(slots);
        self.make_room(cx);
        Ok(())
    }

    /// The cache gives its last chunks back.
    pub(super) fn shrink(&mut self, cx: &mut LayoutCx<'_>, count: u32) -> Result<(), OrderRefusal> {
        if self.state != State::Ready {
            return Err(OrderRefusal::NotOpen);
        }
        if self.shrinking.is_some() {
            return Err(OrderRefusal::Busy);
        }
        let Some(bound) = self.area.slots_without(count) else {
            return Err(OrderRefusal::Last);
        };
        self.map.set_bound(bound);
        self.shrinking = Some(Shrinking {
            chunks: count,
            bound,
            from: bound,
            begun: cx.now(),
            at: cx.now(),
        });
        self.advance_shrinking(cx);
        Ok(())
    }

    /// Lets the next pages leave the chunks that are given back.
    pub(super) fn advance_shrinking(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(shrinking) = &mut self.shrinking else {
            return;
        };
        let (chunks, bound, mut slot) = (shrinking.chunks, shrinking.bound, shrinking.from);
        shrinking.at = cx.now() + AGAIN;
        if self.state != State::Ready {
            return;
        }
        let mut left = TOGETHER;
        let mut first = None;
        while left > 0
            && let Some(used) = self.map.used_from(slot)
        {
            first = first.or(Some(used));
            (slot, left) = (used + 1, left - 1);
            self.let_go(cx, used);
        }
        if let Some(first) = first {
            if let Some(shrinking) = &mut self.shrinking {
                shrinking.from = first;
            }
            self.hasten();
            self.advance_journal(cx);
            return self.advance_cleaner(cx);
        }
        self.shrinking = None;
        self.map.shrink();
        self.area.shrink(chunks);
        self.keeper.resize(bound);
        cx.notice(LayoutNotice::CacheShrunk { chunks });
    }

    /// Whether the page with this first slot is to leave, and has not for so long that guests must be writing it all the time.
    pub(super) fn is_overdue(&self, now: Time, slot: u32) -> bool {
        self.shrinking.as_ref().is_some_and(|shrinking| {
            let leaves = |slot: u32| slot >= shrinking.bound;
            let is_late = now >= shrinking.begun + PATIENCE;
            is_late && (leaves(slot) || self.map.twin(slot).is_some_and(leaves))
        })
    }

    /// The page of a slot leaves the cache, once the disk has it. What uses it now does so to its end, and nothing else does: a guest
    /// that reads it all the time does not keep it.
    fn let_go(&mut self, cx: &mut LayoutCx<'_>, slot: u32) {
        let page = self.map.page(slot);
        let Some(slot) = self.map.find(page) else {
            return;
        };
        let (valid, dirty) = self.map.masks(slot);
        if dirty != 0 {
            self.cleaner.want(page);
        } else if valid != 0 {
            self.drop_blocks(cx, page, valid);
        }
    }
}
