//! Since when the disk lacks what is dirty, and how fast that is cleaned.
//!
//! Pages that become dirty at about the same time share an epoch, which counts them. The oldest epoch with a page says how old
//! the oldest dirty data is. So nothing is searched.
//!
//! # Always true
//! - an age is too high by one second or a 64th of the oldest one at most
//! - the number of epochs grows with the logarithm of the oldest age

use crate::units::{Span, Time};
use alloc::collections::VecDeque;

/// The shortest epoch.
const EPOCH: Span = Span::from_secs(1);
/// An epoch is this part of the oldest age, if that is longer. Origin: chosen; people read ages with two digits.
const PART: u64 = 64;
/// After so much cleaning, earlier cleaning counts half. Origin: chosen; longer than one pass of a small cache.
const HALF: Span = Span::from_secs(16);

/// Epochs in which pages have become dirty.
#[derive(Default)]
pub(super) struct Ages {
    epochs: VecDeque<Epoch>,
    /// The number of the first one.
    first: u32,
}

struct Epoch {
    since: Time,
    /// Pages that are dirty since then.
    pages: u32,
}

impl Ages {
    /// A page has become dirty. Returns the epoch that it is in.
    pub(super) fn enter(&mut self, since: Time) -> u32 {
        let oldest = self.epochs.front().map_or(since, |epoch| epoch.since);
        let length = EPOCH.max(Span::from_nanos(since.since(oldest).as_nanos() / PART));
        let is_new = |last: &Epoch| since.since(last.since) >= length;
        if self.epochs.back().is_none_or(is_new) {
            self.epochs.push_back(Epoch { since, pages: 0 });
        }
        let after = self.epochs.partition_point(|epoch| epoch.since <= since);
        let at = after.saturating_sub(1);
        self.epochs[at].pages += 1;
        self.first
            .wrapping_add(u32::try_from(at).unwrap_or(u32::MAX))
    }

    /// A page of this epoch is clean.
    pub(super) fn leave(&mut self, epoch: u32) {
        self.epochs[epoch.wrapping_sub(self.first) as usize].pages -= 1;
        while self.epochs.front().is_some_and(|epoch| epoch.pages == 0) {
            self.epochs.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }

    /// Since when the disk lacks something.
    pub(super) fn oldest(&self) -> Option<Time> {
        self.epochs.front().map(|epoch| epoch.since)
    }
}

/// How fast pages are cleaned, while any are.
#[derive(Default)]
pub(super) struct Pace {
    since: Option<Time>,
    busy: Span,
    pages: u64,
}

impl Pace {
    /// Cleaning begins, goes on or ends, and so many pages have come to the disk.
    pub(super) fn note(&mut self, now: Time, is_busy: bool, pages: u64) {
        if let Some(since) = self.since.take() {
            self.busy = self.busy + now.since(since);
        }
        self.pages += pages;
        self.since = is_busy.then_some(now);
        if self.busy > HALF {
            self.busy = Span::from_nanos(self.busy.as_nanos() / 2);
            self.pages /= 2;
        }
    }

    /// How long so many pages take, if that is known.
    pub(super) fn time_of(&self, pages: u64) -> Option<Span> {
        if pages == 0 {
            return Some(Span::ZERO);
        }
        let nanos = u128::from(self.busy.as_nanos()) * u128::from(pages);
        let nanos = nanos.checked_div(u128::from(self.pages))?;
        Some(Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn the_oldest_page_that_is_dirty_counts() {
        let mut ages = Ages::default();
        assert_eq!(ages.oldest(), None);
        let first = ages.enter(at(0));
        assert_eq!(ages.enter(at(900)), first, "a second is one epoch");
        let second = ages.enter(at(5000));
        let third = ages.enter(at(9000));
        // It was cleaned, and has been written since then.
        let renewed = ages.enter(at(6000));
        assert_eq!(renewed, second);
        ages.leave(first);
        assert_eq!(ages.oldest(), Some(at(0)), "one of two pages is clean");
        ages.leave(first);
        assert_eq!(ages.oldest(), Some(at(5000)));
        for epoch in [second, renewed, third] {
            ages.leave(epoch);
        }
        assert_eq!(ages.oldest(), None);
    }

    #[test]
    fn epochs_of_a_page_that_is_never_cleaned_stay_few() {
        let mut ages = Ages::default();
        ages.enter(at(0));
        let year = 365 * 24 * 3600;
        for second in (1..year).step_by(600) {
            let epoch = ages.enter(at(second * 1000));
            let since = ages.epochs[epoch.wrapping_sub(ages.first) as usize].since;
            let late = at(second * 1000).since(since).as_nanos();
            assert!(late <= 1_000_000_000.max(second * 1_000_000_000 / 64));
        }
        assert!(ages.epochs.len() < 1200, "{}", ages.epochs.len());
    }

    #[test]
    fn the_time_of_cleaning_follows_what_was_cleaned_while_there_was_something() {
        let mut pace = Pace::default();
        assert_eq!(pace.time_of(7), None, "nothing is known");
        assert_eq!(pace.time_of(0), Some(Span::ZERO));
        pace.note(at(0), true, 0);
        pace.note(at(1000), false, 100);
        pace.note(at(60_000), true, 0);
        pace.note(at(61_000), false, 100);
        assert_eq!(pace.time_of(50), Some(Span::from_millis(500)));
    }
}
