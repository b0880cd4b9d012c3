//! A simulated cache: a policy, and which sub-blocks each page has, without any bytes.
//!
//! [`Shadows`](super::Shadows) run small ones beside the real cache. The comparison of policies runs large ones.
//!
//! # Always true
//! - the table has each page of the cache once, and no other
//! - nothing is allocated after [`Shadow::new`]
//!
//! # Units
//! Sub-blocks of 4 KiB, sixteen to a page.

use super::{Params, Policy, mixed};
use crate::units::Time;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// What a request wants of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The page.
    pub page: u32,
    /// Its sub-blocks, one bit each; at least one.
    pub blocks: u16,
    /// Whether it writes.
    pub is_write: bool,
    /// Whether it belongs to a sequential run.
    pub is_sequential: bool,
}

/// Counts of sub-blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Accessed by requests.
    pub accessed: u64,
    /// Of them, found in the cache.
    pub hits: u64,
    /// Written to flash: read from the disk into the cache, or written by requests to pages in the cache.
    pub flash: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Shadow {
    policy: Policy,
    /// Open addressing: one more than the slot of the page whose place it is; zero if empty.
    table: Box<[u32]>,
    valid: Vec<u16>,
    /// Slots from here on were never used.
    unused: u32,
    figures: Figures,
}

impl Figures {
    /// The part of sub-blocks that was missed, in ten thousandths. All, if there were none.
    pub fn miss_ratio(&self) -> u64 {
        let misses = self.accessed - self.hits;
        (misses * 10_000)
            .checked_div(self.accessed)
            .unwrap_or(10_000)
    }

    /// Sub-blocks written to flash for each one accessed, in ten thousandths.
    pub fn flash_ratio(&self) -> u64 {
        (self.flash * 10_000)
            .checked_div(self.accessed)
            .unwrap_or(0)
    }

    /// Forgets an eighth, so that old accesses count less.
    pub(super) fn fade(&mut self) {
        self.accessed -= self.accessed / 8;
        self.hits -= self.hits / 8;
        self.flash -= self.flash / 8;
    }
}

impl Shadow {
    /// An empty cache of `slots` pages, at least one.
    pub fn new(slots: u32, params: Params) -> Shadow {
        let slots = slots.max(1);
        Shadow {
            policy: Policy::new(slots, params),
            table: vec![0; (2 * slots as usize).next_power_of_two()].into_boxed_slice(),
            valid: vec![0; slots as usize],
            unused: 0,
            figures: Figures::default(),
        }
    }

    /// Takes an access.
    pub fn access(&mut self, access: Access, now: Time) {
        self.figures.accessed += u64::from(access.blocks.count_ones());
        let bypass = access.is_sequential && self.policy.params().bypass;
        match self.table[self.find(access.page)].checked_sub(1) {
            Some(slot) => self.present(slot, access, bypass, now),
            None if bypass => {}
            None => {
                if self.policy.miss(access.page, now, access.is_write) {
                    let slot = self.make_room();
                    self.policy.insert(access.page, slot);
                    let place = self.find(access.page);
                    self.table[place] = slot + 1;
                    self.valid[slot as usize] = 0;
                    self.fill(slot, access);
                }
            }
        }
    }

    /// Its policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Goes on with other parameters.
    pub fn set_params(&mut self, params: Params) {
        self.policy.set_params(params);
    }

    /// Its counts.
    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    pub(super) fn figures_mut(&mut self) -> &mut Figures {
        &mut self.figures
    }

    /// Bytes that it takes, with all that it allocated.
    pub fn memory(&self) -> usize {
        let own = size_of::<Shadow>() - size_of::<Policy>();
        own + self.policy.memory() + size_of_val(&*self.table) + self.valid.capacity() * 2
    }

    fn present(&mut self, slot: u32, access: Access, bypass: bool, now: Time) {
        if bypass && access.is_write {
            // Only the disk gets it.
            self.valid[slot as usize] &= !access.blocks;
            return;
        }
        let found = self.valid[slot as usize] & access.blocks;
        self.figures.hits += u64::from(found.count_ones());
        if bypass {
            return;
        }
        self.policy.hit(slot, now);
        if access.is_write || found != access.blocks {
            self.fill(slot, access);
        }
    }

    /// Puts into the page what the access brings, and what the policy reads beside it.
    fn fill(&mut self, slot: u32, access: Access) {
        let valid = &mut self.valid[slot as usize];
        let written = if access.is_write { access.blocks } else { 0 };
        let wanted = access.blocks | *valid;
        let whole = wanted.count_ones() >= u32::from(self.policy.params().fill_from);
        let after = if whole { u16::MAX } else { wanted };
        let read = after & !*valid & !written;
        self.figures.flash += u64::from(read.count_ones() + written.count_ones());
        *valid = after;
    }

    /// A free slot.
    fn make_room(&mut self) -> u32 {
        if self.unused < self.policy.slots() {
            self.unused += 1;
            return self.unused - 1;
        }
        let slot = self.policy.victim(|_| true);
        let slot = slot.expect("every page may be evicted");
        // The number of the page is there until the slot is used again.
        let page = self.policy.pages[slot as usize];
        self.forget(page);
        slot
    }

    /// The page's place, or the empty one that it would get.
    fn find(&self, page: u32) -> usize {
        let mask = self.table.len() - 1;
        let mut place = self.home(page);
        while let Some(slot) = self.table[place].checked_sub(1) {
            if self.policy.pages[slot as usize] == page {
                break;
            }
            place = (place + 1) & mask;
        }
        place
    }

    fn home(&self, page: u32) -> usize {
        let hash = mixed(page) & u64::from(u32::MAX);
        usize::try_from(hash).expect("32 bits") & (self.table.len() - 1)
    }

    /// Empties the page's place, and moves the pages behind it that belong before.
    fn forget(&mut self, page: u32) {
        let mask = self.table.len() - 1;
        let (mut hole, mut at) = (self.find(page), self.find(page));
        loop {
            at = (at + 1) & mask;
            let Some(slot) = self.table[at].checked_sub(1) else {
                break;
            };
            let home = self.home(self.policy.pages[slot as usize]);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.table[hole] = self.table[at];
                hole = at;
            }
        }
        self.table[hole] = 0;
    }
}
