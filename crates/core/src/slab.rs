//! A table of reusable entries; each [`IoId`] is valid once.
//!
//! The shard keeps its I/Os here. Places are reused; the generation in the id is not, so a completion that comes
//! late, or twice, finds nothing instead of somebody else's I/O.
//!
//! # Always true
//! - `get(insert(v)) == v` until `remove`, and `None` for ever after (property-tested against a map)
//! - `len()` is the number of values inside

use crate::request::IoId;
use alloc::vec::Vec;

/// End of the list of free places.
const NONE: u32 = u32::MAX;

/// See the module.
#[derive(Debug)]
pub struct Slab<T> {
    places: Vec<Place<T>>,
    free: u32,
    len: usize,
}

#[derive(Debug)]
struct Place<T> {
    /// Odd while a value is inside, as every id's is: none fits a place that is free.
    generation: u32,
    next_free: u32,
    /// Of a free place: the last that was inside.
    value: T,
}

impl<T> Place<T> {
    #[inline]
    fn holds(&self, id: IoId) -> bool {
        self.generation == id.generation && id.generation % 2 == 1
    }
}

impl<T: Copy> Slab<T> {
    /// Empty, with room for `capacity` values before it allocates.
    pub fn with_capacity(capacity: usize) -> Slab<T> {
        Slab {
            places: Vec::with_capacity(capacity),
            free: NONE,
            len: 0,
        }
    }

    /// How many values are inside.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts in the value that `make` builds for its id.
    ///
    /// # Panics
    /// With 2^32 values inside: no queue is that deep.
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

    /// The same, where no place is free.
    #[cold]
    fn grow(&mut self, make: impl FnOnce(IoId) -> T) -> IoId {
        let index = u32::try_from(self.places.len())
            .ok()
            .filter(|index| *index != NONE)
            .expect("fewer than 2^32 I/Os are in flight");
        let id = IoId {
            index,
            generation: 1,
        };
        self.places.push(Place {
            generation: id.generation,
            next_free: NONE,
            value: make(id),
        });
        id
    }

    /// The value under `id`, while it is inside.
    #[inline]
    pub fn get(&self, id: IoId) -> Option<&T> {
        let place = self.places.get(id.index as usize)?;
        place.holds(id).then_some(&place.value)
    }

    /// The value under `id`, to change.
    #[inline]
    pub fn get_mut(&mut self, id: IoId) -> Option<&mut T> {
        let place = self.places.get_mut(id.index as usize)?;
        place.holds(id).then_some(&mut place.value)
    }

    /// The value under an id that its holder knows to be inside, since nobody else takes it out.
    ///
    /// # Panics
    /// With an id that this table never gave.
    #[inline]
    pub(crate) fn inside(&self, id: IoId) -> &T {
        self.looked_at()(id)
    }

    /// [`Slab::inside`] for many, one after the other: where the table lies is read once.
    ///
    /// # Panics
    /// What it returns does, as above.
    #[inline]
    pub(crate) fn looked_at<'a>(&'a self) -> impl Fn(IoId) -> &'a T + Copy {
        let places = self.places.as_slice();
        move |id| {
            let place = &places[id.index as usize];
            debug_assert!(place.holds(id), "what is known to be inside is inside");
            &place.value
        }
    }

    /// The same, to change.
    ///
    /// # Panics
    /// As above.
    #[inline]
    pub(crate) fn inside_mut(&mut self, id: IoId) -> &mut T {
        let place = &mut self.places[id.index as usize];
        debug_assert!(place.holds(id), "what is known to be inside is inside");
        &mut place.value
    }

    /// Takes the value under `id` out; the id is worth nothing from now on.
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

    /// Every value, by place.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let inside = self.places.iter().filter(|place| place.generation % 2 == 1);
        inside.map(|place| &place.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
