//! A table of values that come and go without allocating, each under an [`IoId`] that is never valid twice.
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
    generation: u32,
    next_free: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
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
        self.put_with(make).0
    }

    /// The same, and shows the value where it lies.
    ///
    /// # Panics
    /// As above.
    #[inline]
    pub fn put_with(&mut self, make: impl FnOnce(IoId) -> T) -> (IoId, &mut T) {
        if self.free == NONE {
            self.grow();
        }
        let index = self.free;
        let place = &mut self.places[index as usize];
        let id = IoId {
            index,
            generation: place.generation,
        };
        self.free = place.next_free;
        self.len += 1;
        (id, place.value.insert(make(id)))
    }

    /// One place more.
    #[cold]
    fn grow(&mut self) {
        let index = u32::try_from(self.places.len()).expect("fewer than 2^32 I/Os are in flight");
        self.places.push(Place {
            generation: 0,
            next_free: NONE,
            value: None,
        });
        self.free = index;
    }

    /// The value under `id`, while it is inside.
    #[inline]
    pub fn get(&self, id: IoId) -> Option<&T> {
        let place = self.places.get(id.index as usize)?;
        if place.generation == id.generation {
            place.value.as_ref()
        } else {
            None
        }
    }

    /// The value under `id`, to change.
    #[inline]
    pub fn get_mut(&mut self, id: IoId) -> Option<&mut T> {
        let place = self.places.get_mut(id.index as usize)?;
        if place.generation == id.generation {
            place.value.as_mut()
        } else {
            None
        }
    }

    /// Takes the value under `id` out; the id is worth nothing from now on.
    #[inline]
    pub fn remove(&mut self, id: IoId) -> Option<T> {
        let place = self.places.get_mut(id.index as usize)?;
        if place.generation != id.generation {
            return None;
        }
        let value = place.value.take()?;
        place.generation = place.generation.wrapping_add(1);
        place.next_free = self.free;
        self.free = id.index;
        self.len -= 1;
        Some(value)
    }

    /// Drops the value under `id` where it lies; says whether it was inside.
    #[inline]
    pub fn discard(&mut self, id: IoId) -> bool {
        let Some(place) = self.places.get_mut(id.index as usize) else {
            return false;
        };
        if place.generation != id.generation || place.value.is_none() {
            return false;
        }
        place.value = None;
        place.generation = place.generation.wrapping_add(1);
        place.next_free = self.free;
        self.free = id.index;
        self.len -= 1;
        true
    }

    /// Every value, by place.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|place| place.value.as_ref())
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
    fn a_value_can_know_its_own_id() {
        let mut slab = Slab::with_capacity(0);
        let id = slab.insert_with(|id| id);
        assert_eq!(slab.get(id), Some(&id));
    }
}
