//! I/Os that a layout has split into sub-I/Os, each until the last of them has ended.
//!
//! # Always true
//! - an I/O ends once, after all of its sub-I/Os, with the first fault of theirs

use crate::request::{IoId, Outcome};
use alloc::vec::Vec;

/// See the module.
#[derive(Default)]
pub(crate) struct Fanout {
    entries: Vec<Entry>,
    /// Entries that are not in use.
    free: Vec<u32>,
}

struct Entry {
    io: IoId,
    /// Sub-I/Os that have not ended.
    left: u32,
    outcome: Outcome,
}

impl Fanout {
    /// An I/O is split into so many sub-I/Os. Returns their tag.
    pub(crate) fn begin(&mut self, io: IoId, count: u32) -> u64 {
        let entry = Entry {
            io,
            left: count,
            outcome: Ok(()),
        };
        let place = match self.free.pop() {
            Some(place) => {
                self.entries[place as usize] = entry;
                place
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("I/Os in flight are far fewer")
            }
        };
        u64::from(place)
    }

    /// A sub-I/O with this tag has ended. Returns the I/O and its outcome if it was the last one.
    ///
    /// # Panics
    /// If there is no such tag: the stack reports each end once.
    pub(crate) fn end(&mut self, tag: u64, outcome: Outcome) -> Option<(IoId, Outcome)> {
        let place = u32::try_from(tag).expect("a tag that `begin` returned");
        let entry = &mut self.entries[place as usize];
        entry.left = entry.left.checked_sub(1).expect("a sub-I/O ends once");
        entry.outcome = entry.outcome.and(outcome);
        (entry.left == 0).then(|| {
            self.free.push(place);
            (entry.io, entry.outcome)
        })
    }
}
