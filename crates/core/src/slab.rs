//! A table of reusable entries; each [`IoId`] is valid once.
//!
//! The shard stores its I/Os here. Entries are reused, but generations are not. A late or repeated completion therefore
//! finds nothing instead of another I/O.
//!
//! # Always true
//! - `get(insert(v)) == v` until `remove`, and `None` afterwards (property-tested against a map)
//! - `len()` is the number of stored values

use crate::request::IoId;
use alloc::vec::Vec;

/// End of the list of free entries.
const NONE: u32 = u32::MAX;

/// See the module.
#[derive(Debug)]
pub struct Slab<T> {
    places: Vec<Place<T>>,
    free: u32,
    len: usize,
    /// That of the first value of each new place: odd.
    first: u32,
}

#[derive(Debug)]
struct Place<T> {
    /// Odd while the entry stores a value, as in every id. No id matches a free entry.
    generation: u32,
    next_free: u32,
    /// For a free entry: the last value that it stored.
    value: T,
}

impl<T> Place<T> {
    #[inline]
    fn holds(&self, id: IoId) -> bool {
        self.generation == id.generation && id.generation % 2 == 1
    }
}

impl<T: Copy> Slab<T> {
    /// An empty table, with room for `capacity` values before it allocates.
    pub fn with_capacity(capacity: usize) -> Slab<T> {
        Slab::beginning_at(0, capacity)
    }

    /// The same in the place of another table, whose [`Slab::generation`] this is: no id of that one finds anything here.
    pub fn beginning_at(generation: u32, capacity: usize) -> Slab<T> {
        Slab {
            places: Vec::with_capacity(capacity),
            free: NONE,
            len: 0,
            first: generation.wrapping_add(1) | 1,
        }
    }

    /// No id has a later generation. They wrap after 2^31 values in one place.
    pub fn generation(&self) -> u32 {
        let places = self.places.iter();
        let age = |place: &Place<T>| place.generation.wrapping_sub(self.first);
        let oldest = places.map(age).max();
        self.first.wrapping_add(oldest.unwrap_or(0))
    }

    /// The number of stored values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Inserts the value that `make` builds for its id.
    ///
    /// # Panics
    /// If it stores 2^32 values: no queue is that deep.
    #[inline]
    pub fn insert_with(&mut self, make: impl FnOnce(IoId) -> T) -> IoId {
        self.len += 1;
        let index = self.free;
        let Some(place) = self.places.get_mut(index as usize) else {
            return self.grow(make);
        };
        place.generation = place.generation.wrapping_add(1);
        let id = IoId {
            index,
            generation: place.generation,
        };
        self.free = place.next_free;
        place.value = make(id);
        id
    }

    /// The same, if no entry is free.
    #[cold]
    fn grow(&mut self, make: impl FnOnce(IoId) -> T) -> IoId {
        let index = u32::try_from(self.places.len())
            .ok()
            .filter(|index| *index != NONE)
            .expect("fewer than 2^32 I/Os are in flight");
        let id = IoId {
            index,
            generation: self.first,
        };
        self.places.push(Place {
            generation: id.generation,
            next_free: NONE,
            value: make(id),
        });
        id
    }

    /// The value under `id`, if it is stored.
    #[inline]
    pub fn get(&self, id: IoId) -> Option<&T> {
        let place = self.places.get(id.index as usize)?;
        place.holds(id).then_some(&place.value)
    }

    /// The value under `id`, mutable, if it is stored.
    #[inline]
    pub fn get_mut(&mut self, id: IoId) -> Option<&mut T> {
        let place = self.places.get_mut(id.index as usize)?;
        place.holds(id).then_some(&mut place.value)
    }

    /// The value under an id that the caller knows to be valid.
    ///
    /// # Panics
    /// If this table never gave out the id.
    #[inline]
    pub(crate) fn inside(&self, id: IoId) -> &T {
        self.looked_at()(id)
    }

    /// [`Slab::inside`] for a list of ids. It reads the table's address once.
    ///
    /// # Panics
    /// The returned function panics as above.
    #[inline]
    pub(crate) fn looked_at<'a>(&'a self) -> impl Fn(IoId) -> &'a T + Copy {
        let places = self.places.as_slice();
        move |id| {
            let place = &places[id.index as usize];
            debug_assert!(place.holds(id), "the id is valid");
            &place.value
        }
    }

    /// The same, mutable.
    ///
    /// # Panics
    /// As above.
    #[inline]
    pub(crate) fn inside_mut(&mut self, id: IoId) -> &mut T {
        let place = &mut self.places[id.index as usize];
        debug_assert!(place.holds(id), "the id is valid");
        &mut place.value
    }

    /// Removes the value under `id`. The id is invalid from now on.
    #[inline]
    pub fn remove(&mut self, id: IoId) -> Option<T> {
        let place = self.places.get_mut(id.index as usize)?;
        if !place.holds(id) {
            return None;
        }
        place.generation = place.generation.wrapping_add(1);
        place.next_free = self.free;
        self.free = id.index;
        self.len -= 1;
        Some(place.value)
    }

    /// Every value, by index.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let inside = self.places.iter().filter(|place| place.generation % 2 == 1);
        inside.map(|place| &place.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn an_id_dies_with_its_value_though_the_place_is_reused() {
        let mut slab = Slab::with_capacity(1);
        let first = slab.insert_with(|_| 'a');
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert_with(|_| 'b');
        assert_eq!(second.index, first.index);
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&'b'));
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn no_id_finds_anything_in_a_table_that_takes_the_place_of_its_own() {
        let mut slab = Slab::with_capacity(2);
        let mut ids = vec![slab.insert_with(|_| 'a')];
        for _ in 0..5 {
            slab.remove(ids[ids.len() - 1]);
            ids.push(slab.insert_with(|_| 'b'));
        }
        ids.push(slab.insert_with(|_| 'c'));
        let mut next = Slab::beginning_at(slab.generation(), 2);
        let inside = [(); 2].map(|()| next.insert_with(|_| 'd'));
        assert!(ids.iter().all(|id| next.get(*id).is_none()));
        assert!(inside.iter().all(|id| slab.get(*id).is_none()));
        assert_eq!(next.get(inside[1]), Some(&'d'));
    }

    #[test]
    fn no_id_finds_a_place_that_is_free() {
        let mut slab = Slab::with_capacity(1);
        let id = slab.insert_with(|_| 'a');
        slab.remove(id);
        for generation in 0..4 {
            let forged = IoId { generation, ..id };
            assert_eq!(slab.get(forged), None);
            assert_eq!(slab.remove(forged), None);
        }
        assert_eq!((slab.len(), slab.iter().count()), (0, 0));
    }

    #[test]
    fn a_value_can_know_its_own_id() {
        let mut slab = Slab::with_capacity(0);
        let id = slab.insert_with(|id| id);
        assert_eq!(slab.get(id), Some(&id));
    }
}
