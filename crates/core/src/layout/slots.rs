//! Entries with numbers that are used again.

use alloc::vec::Vec;

/// See the module.
pub(super) struct Slots<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(super) const fn new() -> Slots<T> {
        Slots {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn insert(&mut self, entry: T) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.entries[number as usize] = Some(entry);
                number
            }
            None => {
                self.entries.push(Some(entry));
                u32::try_from(self.entries.len() - 1).expect("I/Os in flight are far fewer")
            }
        }
    }

    /// # Panics
    /// If there is no such entry.
    pub(super) fn at(&mut self, number: u32) -> &mut T {
        self.entries[number as usize]
            .as_mut()
            .expect("an entry is used until it is removed")
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.entries.get(number as usize)?.as_ref()
    }

    /// # Panics
    /// If there is no such entry.
    pub(super) fn peek(&self, number: u32) -> &T {
        self.entries[number as usize]
            .as_ref()
            .expect("an entry is used until it is removed")
    }

    /// # Panics
    /// If there is no such entry.
    pub(super) fn remove(&mut self, number: u32) -> T {
        let entry = self.entries[number as usize].take();
        self.free.push(number);
        entry.expect("an entry is removed once")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().flatten()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.len() == self.free.len()
    }

    pub(super) fn numbers(&self) -> Vec<u32> {
        let used = (0..).zip(&self.entries);
        used.filter_map(|(number, entry)| entry.as_ref().map(|_| number))
            .collect()
    }
}
