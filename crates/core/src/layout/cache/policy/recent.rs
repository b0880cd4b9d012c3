//! Pages whose last counted access was a moment ago.
//!
//! A small table without chains: a page replaces another with the same place. Then a correlated access may count.

use crate::units::{Span, Time};
use alloc::boxed::Box;
use alloc::vec;

/// The most places. Origin: as many pages as a guest works on at one moment, and little memory.
const MOST: u32 = 256;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Recent {
    /// Pages, and when the access was.
    places: Box<[(u32, u32)]>,
}

impl Recent {
    pub(super) fn new(slots: u32) -> Recent {
        let places = (slots / 4).next_power_of_two().clamp(1, MOST);
        Recent {
            places: vec![(u32::MAX, 0); places as usize].into_boxed_slice(),
        }
    }

    /// Whether an access of the page counts. If it does, those within `span` after it do not.
    #[inline]
    pub(super) fn counts(&mut self, page: u32, now: Time, span: Span) -> bool {
        if span == Span::ZERO {
            return true;
        }
        // In units of 2^20 ns, about a millisecond, which costs no division. After 52 days it begins again: a wrong answer
        // once for a page.
        let units = |nanos: u64| u32::try_from(nanos >> 20 & u64::from(u32::MAX)).unwrap_or(0);
        let now = units(now.as_nanos());
        let at = super::mixed(page) >> 40;
        let place = usize::try_from(at).unwrap_or(0) & (self.places.len() - 1);
        let (last, when) = self.places[place];
        if last == page && now.wrapping_sub(when) < units(span.as_nanos()) {
            return false;
        }
        self.places[place] = (page, now);
        true
    }

    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.places)
    }
}
