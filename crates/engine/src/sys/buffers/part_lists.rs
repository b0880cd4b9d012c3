//! The lists of a buffer's parts that are with the kernel together.
//!
//! A part of a scattered buffer has a list of its own, which the kernel may read until the operation's end. Most buffers
//! have one part in flight, whose list is the slot's. A layout has several: a stripe reads one buffer from many targets.
//!
//! # Always true
//! - a list is in one chain: that of a slot, or the free ones
//! - in steady state nothing is allocated; some long lists are cached, as those of whole buffers

use super::super::guest::Segment;
use super::{LONG_LISTS, LONGEST_CACHED, SHORT_LIST};
use std::num::NonZeroU32;

/// The index of a list in [`PartLists`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartList(NonZeroU32);

/// Lists for parts of slots that are in the kernel together. The lists of one slot are a chain, and so are the free ones.
#[derive(Default)]
pub(super) struct PartLists {
    /// Each list, and the next one of its chain. An index is one more than the place here.
    pub(super) lists: Vec<(Vec<Segment>, Option<PartList>)>,
    free: Option<PartList>,
    /// How many are free.
    pub(super) free_count: usize,
}

impl PartLists {
    /// Adds a list to the chain of a slot.
    #[cold]
    pub(super) fn take(&mut self, chain: &mut Option<PartList>) -> &mut Vec<Segment> {
        let list = match self.free {
            Some(list) => {
                self.free_count -= 1;
                list
            }
            None => {
                self.lists.push((Vec::with_capacity(SHORT_LIST), None));
                let count = u32::try_from(self.lists.len())
                    .ok()
                    .and_then(NonZeroU32::new);
                PartList(count.expect("fewer than 2^32 operations are in flight"))
            }
        };
        let entry = &mut self.lists[list.0.get() as usize - 1];
        self.free = std::mem::replace(&mut entry.1, chain.replace(list));
        &mut entry.0
    }

    /// Takes the lists of a slot's chain out, and frees the chain.
    #[cold]
    pub(super) fn take_out(&mut self, chain: &mut Option<PartList>) -> Vec<Vec<Segment>> {
        let mut lists = Vec::new();
        let mut next = *chain;
        while let Some(list) = next {
            let entry = &mut self.lists[list.0.get() as usize - 1];
            lists.push(std::mem::take(&mut entry.0));
            next = entry.1;
        }
        self.put(chain);
        lists
    }

    /// Frees the chain of a slot.
    #[cold]
    pub(super) fn put(&mut self, chain: &mut Option<PartList>) {
        while let Some(list) = *chain {
            let entry = &mut self.lists[list.0.get() as usize - 1];
            let most = match self.free_count < LONG_LISTS {
                true => LONGEST_CACHED,
                false => SHORT_LIST,
            };
            if entry.0.capacity() > most {
                entry.0.clear();
                entry.0.shrink_to(most);
            }
            *chain = std::mem::replace(&mut entry.1, self.free.replace(list));
            self.free_count += 1;
        }
    }
}
