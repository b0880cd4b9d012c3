//! The places of a guest's random accesses: some are used far more often than others.
//!
//! A disk with a working set accesses nothing else at random. The popularity of its places is that of the recorded VM's
//! pages: the most popular recorded page stands for the most popular part of the working set, and so on. Each access is
//! drawn on its own. Places of similar popularity are not adjacent.
//!
//! # Units
//! A place is as long as a request, but no shorter than 64 KiB, the page of a recorded access.
//!
//! # Source
//! `scenarios/traces/README.md`: 177,678 accesses of 19,372 pages in two hours.

use crate::cache_policies::requests::embedded;
use std::sync::OnceLock;
use tidegate_model::Random;

/// The page of a recorded access.
const PAGE: u64 = 64 << 10;
/// A prime above the number of places of any disk, so that multiples of it visit each place once.
const SPREAD: u64 = 2_654_435_761;

/// See the module.
pub(super) struct Locality {
    /// Bytes in which the working set is scattered.
    span: u64,
    /// Bytes of the working set.
    working_set: u64,
}

impl Locality {
    pub(super) fn new(span: u64, working_set: u64) -> Locality {
        Locality {
            span,
            working_set: working_set.min(span),
        }
    }

    /// The offset of a request of `size` bytes.
    pub(super) fn draw(&self, random: &mut Random, size: u64) -> u64 {
        let unit = size.max(1).next_multiple_of(PAGE);
        let places = (self.span / unit).max(1);
        let used = (self.working_set / unit).clamp(1, places);
        let place = popular(random, used) * SPREAD % places;
        let within = (unit / size.max(1)).max(1);
        place * unit + random.below(within) * size
    }
}

/// A number below `count`, small ones more often.
fn popular(random: &mut Random, count: u64) -> u64 {
    let sums = sums();
    let all = sums.last().copied().unwrap_or(1);
    let at = random.below(all);
    let rank = sums.partition_point(|sum| *sum <= at) as u64;
    // A recorded page stands for a part of the working set.
    let (rank, ranks) = (u128::from(rank), sums.len().max(1) as u128);
    let scaled = |rank: u128| u64::try_from(rank * u128::from(count) / ranks).unwrap_or(count);
    let (first, end) = (scaled(rank), scaled(rank + 1));
    first + random.below(end - first)
}

/// Sums of the accesses of the recorded pages, the most popular page first.
fn sums() -> &'static [u64] {
    static SUMS: OnceLock<Vec<u64>> = OnceLock::new();
    SUMS.get_or_init(|| {
        let mut pages: Vec<u64> = Vec::new();
        for request in embedded() {
            pages.extend(request.offset / PAGE..=(request.offset + request.len - 1) / PAGE);
        }
        pages.sort_unstable();
        let mut counts: Vec<u64> = pages
            .chunk_by(|a, b| a == b)
            .map(|of| of.len() as u64)
            .collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let sums = counts.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        sums.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tidegate_core::layout::cache::policy::{CANDIDATES, Params, Policy};
    use tidegate_core::units::Time;

    #[test]
    fn places_are_as_popular_as_recorded_pages_and_within_the_working_set() {
        let sums = sums();
        assert_eq!((sums.len(), sums.last()), (19_372, Some(&177_678)));
        let locality = Locality::new(1 << 30, 100 << 20);
        let mut random = Random::new(1);
        let mut places: BTreeMap<u64, u32> = BTreeMap::new();
        for _ in 0..100_000 {
            let offset = locality.draw(&mut random, 8 << 10);
            assert!(offset.is_multiple_of(8 << 10) && offset < 1 << 30);
            *places.entry(offset / PAGE).or_default() += 1;
        }
        assert!(places.len() <= 1_600, "{}", places.len());
        let mut counts: Vec<u32> = places.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let tenth: u32 = counts[..160].iter().sum();
        // Of the recorded accesses, 39.7 % are of a tenth of the pages.
        assert!((38_500..41_500).contains(&tenth), "{tenth}");
    }

    /// Hits, in percent, of a policy with a slot for three quarters of a working set's pages, each of which has one slot.
    fn hits(params: Params) -> u32 {
        let (pages, slots) = (2_432, 1_824);
        let locality = Locality::new(pages * PAGE, pages * PAGE);
        let (mut random, mut policy) = (Random::new(3), Policy::new(slots, params));
        let mut places: BTreeMap<u64, u32> = BTreeMap::new();
        let mut free: Vec<u32> = (0..slots).collect();
        let mut hits = 0;
        for n in 0..200_000 {
            let page = locality.draw(&mut random, PAGE) / PAGE;
            let now = Time::from_nanos(n * 1_000_000);
            let number = u32::try_from(page).expect("a few");
            if let Some(slot) = places.get(&page) {
                policy.hit(*slot, now);
                hits += u32::from(n >= 100_000);
            } else if policy.miss(number, now, false) {
                let victim = || {
                    let slot = policy.victim(|_| true).expect("a page may leave");
                    places.retain(|_, other| *other != slot);
                    slot
                };
                let slot = free.pop().unwrap_or_else(victim);
                policy.insert(number, slot);
                places.insert(page, slot);
            }
        }
        hits / 1_000
    }

    #[test]
    fn with_one_slot_for_each_page_nine_in_ten_requests_would_hit() {
        for params in [Params::FAST, Params::S3_FIFO, CANDIDATES[0]] {
            let hits = hits(params);
            assert!((90..=94).contains(&hits), "{params:?}: {hits} %");
        }
    }

    #[test]
    fn a_long_request_has_a_place_of_its_own() {
        let locality = Locality::new(1 << 30, 64 << 20);
        let mut random = Random::new(2);
        for _ in 0..1_000 {
            let offset = locality.draw(&mut random, 100 << 10);
            assert!(offset.is_multiple_of(128 << 10), "{offset}");
        }
    }
}
