//! A table of an I/O thread by numbers that no other thread gives out.
//!
//! Each thread gives out numbers of its own. What one of them names may move to another thread, and keeps its number there.
//! So the entries of own numbers are a list, and those of other threads' numbers, which are few, a map.
//!
//! # Always true
//! - an entry is in the table of one thread, or on its way
//! - an own number costs one subtraction more than an index of a list

use std::collections::BTreeMap;

/// Bits of a number that count the entries of its thread; those above are the thread's number.
const INDEX_BITS: u32 = 24;
/// The most threads whose numbers can be told apart. The last number of all is left to the zeroes of
/// [`Buffers`](crate::sys::buffers::Buffers).
pub(crate) const MOST_THREADS: usize = (1 << (32 - INDEX_BITS)) - 1;

/// See the module.
pub(crate) struct Numbered<T> {
    base: u32,
    own: Vec<T>,
    others: BTreeMap<u32, T>,
}

/// The thread that gave out a number.
pub(crate) fn giver(number: u32) -> usize {
    (number >> INDEX_BITS) as usize
}

impl<T: Default> Numbered<T> {
    /// The table of the thread with this number, with room for so many own entries.
    ///
    /// # Panics
    /// If there are [`MOST_THREADS`] threads before it.
    pub(crate) fn new(thread: usize, room: usize) -> Numbered<T> {
        assert!(thread < MOST_THREADS, "at most {MOST_THREADS} I/O threads");
        let thread = u32::try_from(thread).expect("checked above");
        Numbered {
            base: thread << INDEX_BITS,
            own: Vec::with_capacity(room),
            others: BTreeMap::new(),
        }
    }

    /// Gives out one more number.
    pub(crate) fn add(&mut self, entry: T) -> u32 {
        let index = u32::try_from(self.own.len()).expect("numbers have 24 bits");
        assert!(
            index < 1 << INDEX_BITS,
            "fewer than 2^24 numbers are in use"
        );
        self.own.push(entry);
        self.base + index
    }

    #[inline(always)]
    fn index(&self, number: u32) -> usize {
        number.wrapping_sub(self.base) as usize
    }

    /// Whether this thread has given out the number.
    #[inline(always)]
    pub(crate) fn is_own(&self, number: u32) -> bool {
        self.index(number) < self.own.len()
    }

    /// The entry of a number, if it is here.
    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let index = self.index(number);
        match index < self.own.len() {
            true => Some(&self.own[index]),
            false => self.get_other(number),
        }
    }

    /// The same, to change it.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let index = self.index(number);
        match index < self.own.len() {
            true => Some(&mut self.own[index]),
            false => self.get_other_mut(number),
        }
    }

    #[cold]
    #[inline(never)]
    fn get_other(&self, number: u32) -> Option<&T> {
        self.others.get(&number)
    }

    #[cold]
    #[inline(never)]
    fn get_other_mut(&mut self, number: u32) -> Option<&mut T> {
        self.others.get_mut(&number)
    }

    /// Sets an entry, which need not exist.
    #[inline(always)]
    pub(crate) fn set(&mut self, number: u32, entry: T) {
        let index = self.index(number);
        match index < self.own.len() {
            true => self.own[index] = entry,
            false => self.set_other(number, entry),
        }
    }

    #[cold]
    #[inline(never)]
    fn set_other(&mut self, number: u32, entry: T) {
        if giver(number) == giver(self.base) {
            let index = self.index(number);
            self.own.resize_with(index + 1, T::default);
            self.own[index] = entry;
        } else {
            self.others.insert(number, entry);
        }
    }

    /// Takes an entry out, and leaves the default one if the number is an own one.
    #[inline(always)]
    pub(crate) fn take(&mut self, number: u32) -> T {
        let index = self.index(number);
        match index < self.own.len() {
            true => std::mem::take(&mut self.own[index]),
            false => self.take_other(number),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_other(&mut self, number: u32) -> T {
        self.others.remove(&number).unwrap_or_default()
    }

    /// All entries, with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let own = (self.base..).zip(&self.own);
        own.chain(self.others.iter().map(|(number, entry)| (*number, entry)))
    }

    /// How many numbers this thread has given out.
    #[cfg(test)]
    pub(crate) fn given(&self) -> usize {
        self.own.len()
    }

    /// How many entries have numbers of other threads.
    #[cfg(test)]
    pub(crate) fn others(&self) -> usize {
        self.others.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_keeps_its_number_on_another_thread_and_comes_back() {
        let (mut from, mut to) = (Numbered::new(3, 4), Numbered::new(0, 4));
        let (one, two) = (from.add(11_u32), from.add(12));
        assert_eq!((giver(one), to.add(5)), (3, 0));
        to.set(two, from.take(two));
        assert_eq!(
            (from.get(two), to.get(two), to.get(one)),
            (Some(&0), Some(&12), None)
        );
        assert_eq!(to.iter().collect::<Vec<_>>(), [(0, &5), (two, &12)]);
        *to.get_mut(two).expect("it is here") += 1;
        from.set(two, to.take(two));
        assert_eq!(
            (from.get(two), to.get(two), to.others()),
            (Some(&13), None, 0)
        );
        assert_eq!(to.take(one), 0, "what is elsewhere is not here");
    }
}
