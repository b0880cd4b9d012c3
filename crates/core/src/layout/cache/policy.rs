//! Admission and eviction of a flash cache: one family of FIFO queues, whose parameters make it one policy or another.
//!
//! The cache owns slots of 64 KiB on flash. A [`Policy`] decides which pages enter them and which leave. It knows numbers of
//! slots and pages only. [`Streams`] finds sequential runs, which may bypass the cache. [`Shadows`] simulate several sets of
//! parameters on a sample of the pages, and choose one.
//!
//! # Always true
//! - a slot is in one queue from [`Policy::insert`] to [`Policy::victim`] or [`Policy::remove`], and otherwise in none
//! - a policy takes at most 16 bytes for each slot, ghosts included, and a fixed part
//! - [`Policy::new`] and [`Policy::resize`] allocate, nothing else does
//! - [`Policy::victim`] looks at no more than [`MOST_STEPS`] slots
//!
//! # Picture
//! ```text
//!   miss ──> counted by ghosts ──> nth access ──> small ──> referenced? ──yes──> main ──> referenced? ──yes─┐
//!                 ^                    │            │ no                          ^ │ no                    │
//!                 └── evicted from small ───────────┘                             │ └─> evicted             │
//!                                      └── was evicted from small ────────────────┴─────────────────────────┘
//! ```
//!
//! # Source
//! S3-FIFO (SOSP 2023), Clock2Q+ (arXiv 2511.21958), and the idea of one family from S4-FIFO (OSDI 2026).

use crate::units::Time;
use alloc::vec;
use alloc::vec::Vec;

mod ghosts;
mod params;
mod recent;
mod shadow;
mod shadows;
mod state;
mod streams;

pub use ghosts::BadGhosts;
pub use params::Params;
pub use shadow::{Access, Figures, Shadow};
pub use shadows::{CANDIDATES, Choice, EVERY, Judged, Shadows};
pub use state::{BadState, Exported, check_state};
pub(super) use state::{export, import};
pub use streams::{REMEMBERED, SEQUENTIAL, Streams};

use ghosts::{EVICTED, Ghosts};
use recent::Recent;

/// The most slots that one call of [`Policy::victim`] looks at. In the second half it takes also referenced ones.
pub const MOST_STEPS: u32 = 128;

/// No slot.
const NONE: u32 = u32::MAX;

/// The most units in which the age of a page of the small queue is counted, for all slots together. It is less than half of
/// what a stamp of twelve bits tells apart.
const AGES: u32 = 1 << 11;

/// See the module.
#[derive(Clone, Debug)]
pub struct Policy {
    params: Params,
    newer: Vec<u32>,
    older: Vec<u32>,
    pages: Vec<u32>,
    tags: Vec<Tag>,
    small: Queue,
    main: Queue,
    ghosts: Ghosts,
    recent: Recent,
    /// Pages that entered the small queue, ever.
    entered: u32,
    /// Entries in a unit of age, as a power of two.
    age_shift: u32,
    /// Below this age, in such units, an access of a page of the small queue does not count.
    window: u32,
}

/// Slots from the newest to the oldest, linked by [`Policy::newer`] and [`Policy::older`].
#[derive(Clone, Copy, Debug)]
struct Queue {
    newest: u32,
    oldest: u32,
    len: u32,
}

const EMPTY: Queue = Queue {
    newest: NONE,
    oldest: NONE,
    len: 0,
};

/// What is known of a slot: its queue in two bits, its references in two, and when it entered in twelve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tag(u16);

const FREE: u16 = 0;
const SMALL: u16 = 1;
const MAIN: u16 = 2;
const STAMPS: u32 = 1 << 12;

impl Tag {
    fn new(queue: u16, stamp: u32) -> Tag {
        let stamp = u16::try_from(stamp % STAMPS).expect("twelve bits");
        Tag(stamp << 4 | queue)
    }

    fn queue(self) -> u16 {
        self.0 & 3
    }

    fn refs(self) -> u8 {
        u8::try_from(self.0 >> 2 & 3).expect("two bits")
    }

    fn with_refs(self, refs: u8) -> Tag {
        Tag(self.0 & !0b1100 | u16::from(refs & 3) << 2)
    }

    fn stamp(self) -> u32 {
        u32::from(self.0 >> 4)
    }
}

impl Policy {
    /// A policy for `slots` slots, all of them free.
    pub fn new(slots: u32, params: Params) -> Policy {
        let count = slots as usize;
        let mut policy = Policy {
            params,
            newer: vec![NONE; count],
            older: vec![NONE; count],
            pages: vec![0; count],
            tags: vec![Tag::default(); count],
            small: EMPTY,
            main: EMPTY,
            ghosts: Ghosts::new(slots),
            recent: Recent::new(slots),
            entered: 0,
            age_shift: age_shift(slots),
            window: 0,
        };
        policy.set_window();
        policy
    }

    /// Its parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Goes on with other parameters. Pages stay where they are.
    pub fn set_params(&mut self, params: Params) {
        self.params = params;
        self.set_window();
    }

    /// The number of slots.
    pub fn slots(&self) -> u32 {
        u32::try_from(self.tags.len()).expect("slots are counted in 32 bits")
    }

    /// Pages in the cache.
    pub fn pages(&self) -> u32 {
        self.small.len + self.main.len
    }

    /// The page in a slot, if there is one.
    pub fn page(&self, slot: u32) -> Option<u32> {
        let used = self.tags[slot as usize].queue() != FREE;
        used.then(|| self.pages[slot as usize])
    }

    /// Whether the page in a slot was referenced since it entered, or was spared.
    pub fn is_referenced(&self, slot: u32) -> bool {
        self.tags[slot as usize].refs() > 0
    }

    /// The page in `slot` was accessed. Do not call it for an access of a bypassed sequential run. Returns whether there is a
    /// page.
    #[inline(always)]
    pub fn hit(&mut self, slot: u32, now: Time) -> bool {
        let tag = self.tags[slot as usize];
        if tag.queue() == FREE {
            return false;
        }
        // Nothing to note: most hits of a full cache end here.
        if self.params.reorder_on_hit || tag.refs() < self.params.most_refs {
            self.note_hit(slot, tag, now);
        }
        true
    }

    fn note_hit(&mut self, slot: u32, tag: Tag, now: Time) {
        let page = self.pages[slot as usize];
        if !self.recent.counts(page, now, self.params.correlated) {
            return;
        }
        if self.params.reorder_on_hit && tag.queue() == MAIN {
            self.unlink(slot);
            self.link(slot, MAIN);
        } else if tag.queue() == MAIN || !self.in_window(tag) {
            let refs = (tag.refs() + 1).min(self.params.most_refs);
            self.tags[slot as usize] = tag.with_refs(refs);
        }
    }

    /// A page that is not in the cache was accessed. Says whether it should enter. Do not call it for an access of a bypassed
    /// sequential run.
    pub fn miss(&mut self, page: u32, now: Time, is_write: bool) -> bool {
        let nth = match is_write {
            true => self.params.admit_write,
            false => self.params.admit,
        };
        if nth <= 1 {
            // Later accesses in the same moment are no references.
            self.recent.counts(page, now, self.params.correlated);
            return true;
        }
        let before = self.ghosts.count(page);
        if !self.recent.counts(page, now, self.params.correlated) {
            return before.is_some_and(|count| count != EVICTED && count >= nth);
        }
        match before {
            Some(EVICTED) => true,
            before => {
                let count = (before.unwrap_or(0) + 1).min(Params::MOST_ADMIT);
                self.ghosts.set(page, count, self.params.ghost_percent);
                count >= nth
            }
        }
    }

    /// A page enters a free slot.
    ///
    /// # Panics
    /// The slot is not free.
    pub fn insert(&mut self, page: u32, slot: u32) {
        let tag = self.tags[slot as usize];
        assert!(tag.queue() == FREE, "a page enters a free slot");
        let returns = self.params.ghost_to_main && self.ghosts.count(page) == Some(EVICTED);
        self.ghosts.remove(page);
        self.pages[slot as usize] = page;
        match self.params.small_percent == 0 || returns {
            true => self.link(slot, MAIN),
            false => {
                self.entered = self.entered.wrapping_add(1);
                self.link(slot, SMALL);
            }
        }
    }

    /// Chooses a page to evict, and frees its slot. `may_take` says of a slot whether it may be evicted now; dirty and busy
    /// ones may not. Returns nothing if it found none within its steps: clean some pages, then call again.
    pub fn victim(&mut self, mut may_take: impl FnMut(u32) -> bool) -> Option<u32> {
        for step in 0..MOST_STEPS {
            let hurried = step >= MOST_STEPS / 2;
            let small = self.small.len > self.small_target() || self.main.len == 0;
            let (queue, slot) = match small {
                true => (SMALL, self.small.oldest),
                false => (MAIN, self.main.oldest),
            };
            if slot == NONE {
                return None;
            }
            let tag = self.tags[slot as usize];
            let takeable = may_take(slot);
            let saved = match queue {
                SMALL => tag.refs() >= self.params.promote.max(1),
                _ => tag.refs() > 0 && !self.params.reorder_on_hit,
            };
            if takeable && (!saved || hurried) {
                self.unlink(slot);
                self.tags[slot as usize] = Tag::default();
                if queue == SMALL {
                    let percent = self.params.ghost_percent;
                    self.ghosts.set(self.pages[slot as usize], EVICTED, percent);
                }
                return Some(slot);
            }
            self.unlink(slot);
            match (queue, saved) {
                (SMALL, true) => self.link(slot, MAIN),
                (SMALL, false) => self.rotate_small(slot, tag),
                (_, saved) => {
                    self.link(slot, MAIN);
                    let refs = tag.refs() - u8::from(saved && takeable);
                    self.tags[slot as usize] = self.tags[slot as usize].with_refs(refs);
                }
            }
        }
        None
    }

    /// The page in `slot` has gone, without having been chosen: discarded, or invalid. The slot is free.
    pub fn remove(&mut self, slot: u32) {
        if self.tags[slot as usize].queue() != FREE {
            self.unlink(slot);
            self.tags[slot as usize] = Tag::default();
        }
    }

    /// Goes on with another number of slots. This allocates.
    ///
    /// # Panics
    /// A slot beyond the new number is not free.
    pub fn resize(&mut self, slots: u32) {
        let count = slots as usize;
        let beyond = self.tags.iter().skip(count);
        let free = beyond.into_iter().all(|tag| tag.queue() == FREE);
        assert!(free, "slots that go away are free");
        for links in [&mut self.newer, &mut self.older] {
            links.resize(count, NONE);
            links.shrink_to_fit();
        }
        self.pages.resize(count, 0);
        self.pages.shrink_to_fit();
        self.tags.resize(count, Tag::default());
        self.tags.shrink_to_fit();
        self.ghosts.resize(slots);
        self.recent = Recent::new(slots);
        if self.age_shift != age_shift(slots) {
            self.age_shift = age_shift(slots);
            // Their stamps have another unit now. All count as old.
            let old = self.age_now().wrapping_sub(AGES);
            for tag in self.tags.iter_mut().filter(|tag| tag.queue() == SMALL) {
                *tag = Tag::new(SMALL, old).with_refs(tag.refs());
            }
        }
        self.set_window();
    }

    /// Appends the ghosts as bytes that [`Policy::import_ghosts`] reads. They have no checksum.
    pub fn export_ghosts(&self, out: &mut Vec<u8>) {
        let at = out.len();
        while !self.ghosts.export(at, usize::MAX, out) {}
    }

    /// Replaces the ghosts. The number of slots may have been another.
    ///
    /// # Errors
    /// They are not what [`Policy::export_ghosts`] writes. Nothing has changed.
    pub fn import_ghosts(&mut self, bytes: &[u8]) -> Result<(), BadGhosts> {
        self.ghosts.import(bytes)
    }

    /// Bytes that it takes, with all that it allocated.
    pub fn memory(&self) -> usize {
        let slots = self.newer.capacity() * 4 + self.older.capacity() * 4;
        let slots = slots + self.pages.capacity() * 4 + self.tags.capacity() * 2;
        size_of::<Policy>() + slots + self.ghosts.memory() + self.recent.memory()
    }

    fn small_target(&self) -> u32 {
        percent_of(self.slots(), self.params.small_percent)
    }

    /// Whether a page of the small queue is so new that references do not count.
    #[inline]
    fn in_window(&self, tag: Tag) -> bool {
        let age = self.age_now().wrapping_sub(tag.stamp()) % STAMPS;
        age < self.window
    }

    fn set_window(&mut self) {
        let window = percent_of(self.small_target(), self.params.window_percent);
        self.window = window >> self.age_shift;
    }

    fn age_now(&self) -> u32 {
        self.entered >> self.age_shift
    }

    /// Puts a page of the small queue's tail, which may not be evicted, to its head. It stays as old as it was.
    fn rotate_small(&mut self, slot: u32, tag: Tag) {
        self.link(slot, SMALL);
        let old = self.age_now().wrapping_sub(AGES);
        self.tags[slot as usize] = Tag::new(SMALL, old).with_refs(tag.refs());
    }

    /// Makes a slot the newest of a queue, without references.
    fn link(&mut self, slot: u32, to: u16) {
        self.tags[slot as usize] = Tag::new(to, self.age_now());
        let queue = match to {
            SMALL => &mut self.small,
            _ => &mut self.main,
        };
        self.older[slot as usize] = queue.newest;
        self.newer[slot as usize] = NONE;
        match queue.newest {
            NONE => queue.oldest = slot,
            newest => self.newer[newest as usize] = slot,
        }
        queue.newest = slot;
        queue.len += 1;
    }

    fn unlink(&mut self, slot: u32) {
        let queue = match self.tags[slot as usize].queue() {
            SMALL => &mut self.small,
            _ => &mut self.main,
        };
        let (newer, older) = (self.newer[slot as usize], self.older[slot as usize]);
        match newer {
            NONE => queue.newest = older,
            newer => self.older[newer as usize] = older,
        }
        match older {
            NONE => queue.oldest = newer,
            older => self.newer[older as usize] = newer,
        }
        queue.len -= 1;
    }
}

fn percent_of(count: u32, percent: u8) -> u32 {
    let part = u64::from(count) * u64::from(percent) / 100;
    u32::try_from(part).unwrap_or(u32::MAX)
}

/// Entries in a unit of age for so many slots, as a power of two.
fn age_shift(slots: u32) -> u32 {
    slots.div_ceil(AGES).next_power_of_two().ilog2()
}

/// A hash of a page's number, in all its 64 bits.
#[inline]
fn mixed(page: u32) -> u64 {
    let once = u64::from(page).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let twice = (once ^ (once >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    twice ^ (twice >> 32)
}

#[cfg(test)]
mod tests;
