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
    /// Pages, and the millisecond of the access.
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
        // 49 days, then it begins again: a wrong answer once for a page.
        let ms = u32::try_from(now.as_nanos() / 1_000_000 % (1 << 32)).unwrap_or(0);
        let at = super::mixed(page) >> 40;
        let place = usize::try_from(at).unwrap_or(0) & (self.places.len() - 1);
        let (last, when) = self.places[place];
        if last == page && u64::from(ms.wrapping_sub(when)) < span.as_nanos() / 1_000_000 {
            return false;
        }
        self.places[place] = (page, ms);
        true
    }

    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.places)
    }
}
