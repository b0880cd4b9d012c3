//! The keeper of the cache: which pages come in, and which leave to make room.
//!
//! The policy decides. This file asks it, and carries out what it says: a page that leaves is given up in the journal first,
//! and its slot is free once that is durable. So some slots are always kept free.
//!
//! # Always true
//! - a page leaves only if it is clean and nothing uses it
//! - a slot that is free in the map is free in the policy

use super::policy::{
    self, Access, BadState, CANDIDATES, Exported, Params, Policy, Shadows, Streams,
};
use super::{Cache, PAGE};
use crate::layout::{LayoutCx, LayoutIo, LayoutNotice};
use crate::units::{Span, Time};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Slots that are kept free: one in so many.
const FREE: u32 = 256;
/// And at most so many.
const FREE_MOST: u32 = 64;
/// A write that is longer goes past the cache. Origin: chosen; it is sequential.
const WRITE_MOST: u64 = PAGE * 16;

/// How often the shadows are asked for another policy; they decide themselves how often that may be.
const CHOOSE: Span = Span::from_secs(5);

/// How often the policy's state is to be stored while the disk is used. Origin: chosen. A crash loses at most that.
const STORE: Span = Span::from_secs(300);

/// See the module.
pub(super) struct Keeper {
    policy: Policy,
    streams: Streams,
    /// What chooses the policy, unless it is given.
    shadows: Option<Box<Shadows>>,
    choose_at: Time,
    /// When the state is to be stored; unknown until the first access.
    store_at: Option<Time>,
}

impl Keeper {
    pub(super) fn new(slots: u32) -> Keeper {
        Keeper {
            policy: Policy::new(slots, CANDIDATES[0]),
            streams: Streams::new(),
            shadows: Some(Box::new(Shadows::new(slots))),
            choose_at: Time::ZERO,
            store_at: None,
        }
    }

    /// Goes on from the state of an earlier use of the disk, which has so many bytes now.
    pub(super) fn import(&mut self, size: u64, state: &[u8]) -> Result<(), BadState> {
        policy::import(&mut self.policy, self.shadows.as_deref_mut(), size, state)
    }

    /// Appends the next part of the state.
    pub(super) fn export(&self, size: u64, most: usize, out: &mut Vec<u8>) -> Exported {
        policy::export(&self.policy, self.shadows.as_deref(), size, most, out)
    }

    /// Decides by these parameters from now on.
    pub(super) fn set_params(&mut self, params: Params) {
        self.policy.set_params(params);
        self.shadows = None;
    }

    /// Valid blocks of a page from which the rest is read.
    pub(super) fn fill_from(&self) -> u32 {
        self.policy.params().fill_from.into()
    }

    /// The place of its policy among the candidates, if it chooses.
    pub(super) fn chosen(&self) -> Option<usize> {
        let params = self.shadows.as_ref()?.params();
        CANDIDATES.iter().position(|candidate| candidate == params)
    }

    /// Whether the page in a slot was referenced since it was looked at last.
    pub(super) fn is_used_often(&self, slot: u32) -> bool {
        self.policy.is_referenced(slot)
    }

    /// Goes on with so many slots.
    pub(super) fn resize(&mut self, slots: u32) {
        self.policy.resize(slots);
        if let Some(shadows) = &mut self.shadows {
            shadows.resize(slots);
        }
    }
}

impl Cache {
    /// A cached page was accessed.
    #[inline]
    pub(super) fn policy_hit(&mut self, now: Time, slot: u32, page: u32) {
        if !self.keeper.policy.hit(slot, now) {
            // It was about to leave.
            self.keeper.policy.insert(page, slot);
        }
    }

    /// A page is in this slot from now on.
    pub(super) fn policy_insert(&mut self, slot: u32, page: u32) {
        self.keeper.policy.insert(page, slot);
    }

    /// The slot is free.
    pub(super) fn policy_remove(&mut self, slot: u32) {
        self.keeper.policy.remove(slot);
    }

    /// Whether a page that is not cached, or not all of it, is worth to be.
    pub(super) fn admits(
        &mut self,
        cx: &LayoutCx<'_>,
        page: u32,
        slot: Option<u32>,
        is_write: bool,
    ) -> bool {
        match slot {
            Some(slot) => {
                self.policy_hit(cx.now(), slot, page);
                true
            }
            None => self.keeper.policy.miss(page, cx.now(), is_write),
        }
    }

    /// Whether a write of a page that is not cached brings it in.
    pub(super) fn allocates(
        &mut self,
        cx: &LayoutCx<'_>,
        io: &LayoutIo,
        page: u32,
        is_sequential: bool,
    ) -> bool {
        let has_room = self.may_get_dirty();
        let worth = self.mode.is_write_back() && has_room && io.len <= WRITE_MOST && !is_sequential;
        worth && !self.unsettled.contains_key(&page) && self.admits(cx, page, None, true)
    }

    /// Lets the shadows see an access. Long sequences go past the cache whatever the policy is.
    #[inline]
    pub(super) fn shadow(&mut self, now: Time, page: u32, blocks: u16, is_write: bool) {
        if let Some(shadows) = &mut self.keeper.shadows {
            let access = Access {
                page,
                blocks,
                is_write,
                is_sequential: false,
            };
            shadows.access(access, now);
        }
    }

    /// Goes on with another policy, if the shadows have found a better one.
    #[inline]
    pub(super) fn choose_policy(&mut self, cx: &mut LayoutCx<'_>) {
        if self.must_choose(cx.now()) {
            self.choose_now(cx);
        }
    }

    /// Whether the shadows are to be asked.
    #[inline]
    pub(super) fn must_choose(&self, now: Time) -> bool {
        now >= self.keeper.choose_at
    }

    #[cold]
    fn choose_now(&mut self, cx: &mut LayoutCx<'_>) {
        let keeper = &mut self.keeper;
        keeper.choose_at = cx.now() + CHOOSE;
        if let Some(shadows) = &mut keeper.shadows
            && let Some(choice) = shadows.choose(cx.now())
        {
            keeper.policy.set_params(*shadows.params());
            keeper.store_at = Some(cx.now());
            cx.notice(LayoutNotice::CachePolicy(choice));
        }
        // An idle disk learns nothing, so nothing wakes it for this.
        if cx.now() >= *keeper.store_at.get_or_insert(cx.now() + STORE) {
            keeper.store_at = Some(cx.now() + STORE);
            cx.notice(LayoutNotice::CacheStateDue);
        }
    }

    /// Notes where a request was. Returns whether it is part of a long sequence, which does not count.
    #[inline]
    pub(super) fn note_stream(&mut self, offset: u64, len: u64) -> bool {
        self.keeper.streams.access(offset, len)
    }

    /// Gives a page its slot.
    pub(super) fn add_page(&mut self, page: u32) -> Option<u32> {
        let slot = self.map.add(page)?;
        self.policy_insert(slot, page);
        Some(slot)
    }

    /// Lets pages leave, so that one that comes finds a free slot.
    pub(super) fn make_room(&mut self, cx: &mut LayoutCx<'_>) {
        self.advance_joins(cx);
        let reserve = (self.map.len() / FREE).clamp(1, FREE_MOST);
        if self.map.free_count() >= reserve || !self.is_writable() {
            return;
        }
        // Those that are leaving are nearly free.
        let leaving = u32::try_from(self.unsettled.len()).unwrap_or(u32::MAX);
        let wanted = (2 * reserve - self.map.free_count()).saturating_sub(leaving);
        for nth in 0..wanted as usize {
            let map = &self.map;
            let may_leave = |slot: u32| {
                let (valid, dirty) = map.masks(slot);
                !map.slot(slot).is_pinned() && dirty == 0 && valid != 0
            };
            let Some(slot) = self.keeper.policy.victim(may_leave) else {
                self.release_twins(cx, wanted as usize - nth);
                break;
            };
            let (page, (valid, _)) = (self.map.page(slot), self.map.masks(slot));
            self.drop_blocks(cx, page, valid);
        }
        self.hasten();
        self.advance_journal(cx);
    }
}
