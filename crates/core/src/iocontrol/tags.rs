//! Scheduling tags, and the heaps that order disks by them.
//!
//! A tag is virtual time: device cost divided by shares. Tags may wrap after years, so they are compared by their
//! difference. Heaps are 4-ary and store the position of each disk, so that any disk can be moved or removed.
//!
//! # Always true
//! - `peek` returns the least key, and among equal keys the one that was set first (property-tested against a sorted
//!   list)
//! - every operation is O(log n); none allocates once the heap has reached its largest size

use alloc::vec::Vec;

/// The shift of a cost before it is divided by shares: virtual time is finer than cost.
pub const SCALE_BITS: u32 = 20;

/// The additional precision of a slope, which is a quotient that is multiplied by costs.
const SLOPE_BITS: u32 = 20;

/// Whether tag `a` comes before tag `b`.
#[inline]
pub const fn before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) < 0
}

/// The later of two tags.
#[inline]
pub const fn later(a: u64, b: u64) -> u64 {
    if before(a, b) { b } else { a }
}

/// The earlier of two tags.
#[inline]
pub const fn earlier(a: u64, b: u64) -> u64 {
    if before(a, b) { a } else { b }
}

/// The growth of a disk's tag for each unit of cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slope(u64);

impl Slope {
    /// The slope of a disk with this many shares.
    pub const fn of(shares: u32) -> Slope {
        let shares = if shares == 0 { 1 } else { shares };
        Slope((1 << (SCALE_BITS + SLOPE_BITS)) / shares as u64)
    }

    /// The growth of the tag for this cost; never zero.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a cost is below 2^32 and a slope at most 2^40: less than 2^64 once shifted"
    )]
    pub const fn span(self, cost: u64) -> u64 {
        let span = (cost as u128 * self.0 as u128) >> SLOPE_BITS;
        if span == 0 { 1 } else { span as u64 }
    }
}

/// The virtual time that passes while `cost` is divided among disks with this many shares in total.
pub fn virtual_span(cost: u64, shares: u64) -> u64 {
    let span = (u128::from(cost) << SCALE_BITS) / u128::from(shares.max(1));
    u64::try_from(span).unwrap_or(u64::MAX >> 2)
}

/// The virtual time of a group that passes while a disk of this many shares occupies its limit for `ticks`: the same
/// number for 1000 shares.
pub fn virtual_ticks(ticks: u64, shares: u32) -> u64 {
    let span = u128::from(ticks) * 1_000 / u128::from(shares.max(1));
    u64::try_from(span).unwrap_or(u64::MAX >> 2)
}

/// Not in the heap.
const OUT: u32 = u32::MAX;

/// A heap of disk numbers, in the order of their keys.
#[derive(Debug, Default)]
pub struct Heap {
    items: Vec<Item>,
    /// The position of each disk in `items`.
    at: Vec<u32>,
    order: u64,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    key: u64,
    order: u64,
    slot: u32,
}

impl Item {
    #[inline]
    fn before(&self, other: &Item) -> bool {
        if self.key == other.key {
            self.order < other.order
        } else {
            before(self.key, other.key)
        }
    }
}

impl Heap {
    /// An empty heap.
    pub const fn new() -> Heap {
        Heap {
            items: Vec::new(),
            at: Vec::new(),
            order: 0,
        }
    }

    /// The number of disks in the heap.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether it is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The first key and its disk number.
    #[inline]
    pub fn peek(&self) -> Option<(u64, u32)> {
        self.items.first().map(|item| (item.key, item.slot))
    }

    /// Whether this disk is in the heap.
    #[inline]
    pub fn contains(&self, slot: u32) -> bool {
        self.at.get(slot as usize).is_some_and(|at| *at != OUT)
    }

    /// Inserts the disk under this key, or moves it there; after disks with the same key.
    #[inline]
    pub fn set(&mut self, slot: u32, key: u64) {
        let index = slot as usize;
        if index >= self.at.len() {
            self.at.resize(index + 1, OUT);
        }
        self.order += 1;
        let item = Item {
            key,
            order: self.order,
            slot,
        };
        let place = self.at[index];
        if place == OUT {
            self.items.push(item);
            self.up(self.items.len() - 1, item);
        } else {
            let place = place as usize;
            if item.before(&self.items[place]) {
                self.up(place, item);
            } else {
                self.down(place, item);
            }
        }
    }

    /// Removes the disk; does nothing if it is not in the heap.
    pub fn remove(&mut self, slot: u32) {
        let Some(place) = self.at.get_mut(slot as usize) else {
            return;
        };
        let hole = core::mem::replace(place, OUT);
        if hole == OUT {
            return;
        }
        let last = self
            .items
            .pop()
            .expect("a disk with a position is in the heap");
        if last.slot != slot {
            let hole = hole as usize;
            if hole > 0 && last.before(&self.items[(hole - 1) / 4]) {
                self.up(hole, last);
            } else {
                self.down(hole, last);
            }
        }
    }

    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "disks are numbered in 32 bits, so there are no more places"
    )]
    fn put(&mut self, place: usize, item: Item) {
        self.items[place] = item;
        self.at[item.slot as usize] = place as u32;
    }

    fn up(&mut self, mut place: usize, item: Item) {
        while place > 0 {
            let parent = (place - 1) / 4;
            let above = self.items[parent];
            if !item.before(&above) {
                break;
            }
            self.put(place, above);
            place = parent;
        }
        self.put(place, item);
    }

    fn down(&mut self, mut place: usize, item: Item) {
        loop {
            let first = place * 4 + 1;
            let Some(below) = self.items.get(first..) else {
                break;
            };
            let (least, below) = match below.first_chunk() {
                Some(four) => least_of(four),
                None => match below.iter().enumerate().reduce(earlier_item) {
                    Some((least, item)) => (least, *item),
                    None => break,
                },
            };
            if !below.before(&item) {
                break;
            }
            self.put(place, below);
            place = first + least;
        }
        self.put(place, item);
    }
}

/// The first of up to four children.
#[inline]
fn least_of(four: &[Item; 4]) -> (usize, Item) {
    let low = usize::from(four[1].before(&four[0]));
    let high = 2 + usize::from(four[3].before(&four[2]));
    if four[high].before(&four[low]) {
        (high, four[high])
    } else {
        (low, four[low])
    }
}

fn earlier_item<'a>(one: (usize, &'a Item), other: (usize, &'a Item)) -> (usize, &'a Item) {
    if other.1.before(one.1) { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tags_keep_their_order_when_they_wrap() {
        assert!(before(u64::MAX - 3, 5));
        assert_eq!(later(u64::MAX, 2), 2);
        assert_eq!(earlier(u64::MAX, 2), u64::MAX);
    }

    #[test]
    fn twice_the_shares_make_half_the_virtual_time() {
        let cost = 25_600;
        let half = Slope::of(2_000).span(cost);
        let whole = Slope::of(1_000).span(cost);
        assert!(whole.abs_diff(2 * half) <= 2);
        assert!(virtual_span(cost, 1_000).abs_diff(whole) <= 1);
        assert!(Slope::of(10_000).span(1) >= 1);
    }

    proptest! {
        #[test]
        fn the_heap_agrees_with_a_sorted_list(
            acts in prop::collection::vec((0..24_u32, prop::option::weighted(0.7, 0..12_u64)), 1..200),
            origin in prop_oneof![Just(0_u64), Just(u64::MAX - 6)],
        ) {
            let mut heap = Heap::new();
            let mut list: Vec<(u64, u64, u32)> = Vec::new();
            for (order, (slot, key)) in (0..).zip(acts) {
                list.retain(|item| item.2 != slot);
                match key {
                    Some(key) => {
                        heap.set(slot, origin.wrapping_add(key));
                        list.push((key, order, slot));
                    }
                    None => heap.remove(slot),
                }
                list.sort_unstable();
                prop_assert_eq!(heap.len(), list.len());
                let first = list.first().map(|item| (origin.wrapping_add(item.0), item.2));
                prop_assert_eq!(heap.peek(), first);
                prop_assert_eq!(heap.contains(slot), key.is_some());
            }
            while let Some((_, slot)) = heap.peek() {
                prop_assert_eq!(slot, list.remove(0).2);
                heap.remove(slot);
            }
        }
    }
}
