//! Ghosts: pages that are not in the cache, and how often they were accessed or that they were evicted.
//!
//! Each entry is 13 bits of the page's hash and a count of three bits, in a set that the hash names. A set is a short
//! FIFO queue. Two pages in one set are taken for each other once in 8,192 times; then a page enters too early.
//!
//! # Always true
//! - two bytes for each slot of the cache, and nothing else
//! - a count is at least one; [`EVICTED`] stands for a page that was in the cache
//!
//! # Picture: what [`Ghosts::export`] writes, little-endian
//! ```text
//! 0 version u8   1 log2 of the sets u8   2 entries of a set u16   4 entries [u16], set by set, newest first
//! ```
//! An export of more than [`MOST_EXPORTED`] bytes has only the newest entries of each set.

use alloc::vec;
use alloc::vec::Vec;

/// The count of a page that was evicted.
pub(super) const EVICTED: u8 = 7;

const COUNT_BITS: u32 = 3;
const COUNT: u16 = (1 << COUNT_BITS) - 1;
/// The fewest entries of a set, if there are so many. Sets have fewer than twice as many.
const WAYS: u32 = 8;
const VERSION: u8 = 1;
const HEADER: usize = 4;
/// The most bytes of exported entries. Origin: chosen. It is all of 512 GiB of flash, and one entry of each set of 4 TiB.
pub(super) const MOST_EXPORTED: usize = 16 << 20;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ghosts {
    entries: Vec<u16>,
    set_bits: u8,
    ways: u16,
}

/// Why exported ghosts are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadGhosts;

impl Ghosts {
    /// None yet, for a cache of `slots`.
    pub(super) fn new(slots: u32) -> Ghosts {
        let (mut set_bits, mut ways) = (0, slots);
        while ways >= 2 * WAYS {
            ways /= 2;
            set_bits += 1;
        }
        Ghosts {
            entries: vec![0; (ways as usize) << set_bits],
            set_bits,
            ways: u16::try_from(ways).expect("fewer than sixteen"),
        }
    }

    /// The page's count.
    pub(super) fn count(&self, page: u32) -> Option<u8> {
        let (set, mark) = self.place(page);
        let entries = &self.entries[set..set + usize::from(self.ways)];
        let found = entries.iter().find(|entry| is(**entry, mark))?;
        u8::try_from(*found & COUNT).ok()
    }

    /// Sets the page's count. A page that is new to its set enters it, among its newest `percent` of entries.
    pub(super) fn set(&mut self, page: u32, count: u8, percent: u8) {
        let (set, mark) = self.place(page);
        let used = usize::from(self.ways) * usize::from(percent.min(100));
        let entries = &mut self.entries[set..set + used.div_ceil(100)];
        let entry = mark | u16::from(count);
        if let Some(found) = entries.iter_mut().find(|entry| is(**entry, mark)) {
            *found = entry;
        } else if !entries.is_empty() {
            entries.rotate_right(1);
            entries[0] = entry;
        }
    }

    /// Removes the page.
    pub(super) fn remove(&mut self, page: u32) {
        let (set, mark) = self.place(page);
        let entries = &mut self.entries[set..set + usize::from(self.ways)];
        if let Some(at) = entries.iter().position(|entry| is(*entry, mark)) {
            entries[at..].rotate_left(1);
            if let Some(last) = entries.last_mut() {
                *last = 0;
            }
        }
    }

    /// Goes on with another number of slots. Which of two new sets an entry belongs to is unknown: both get it.
    pub(super) fn resize(&mut self, slots: u32) {
        let old = core::mem::replace(self, Ghosts::new(slots));
        self.take_over(&old);
    }

    /// Appends the next part of an export, which begins at `at` in `out`: `most` bytes, or a set at least. An export of other
    /// sets begins anew. Returns whether that was all.
    pub(super) fn export(&self, at: usize, most: usize, out: &mut Vec<u8>) -> bool {
        let sets = 1_usize << self.set_bits;
        let ways = usize::from(self.ways).min(MOST_EXPORTED / 2 / sets);
        let [low, high] = u16::try_from(ways)
            .expect("fewer than sixteen")
            .to_le_bytes();
        let header = [VERSION, self.set_bits, low, high];
        if out.get(at..at + HEADER) != Some(&header) {
            out.truncate(at);
            out.reserve_exact(HEADER + 2 * ways * sets);
            out.extend(header);
        }
        if ways == 0 {
            return true;
        }
        let (done, more) = (
            (out.len() - at - HEADER) / 2 / ways,
            (most / 2 / ways).max(1),
        );
        let every = self.entries.chunks_exact(self.ways.into());
        for set in every.skip(done).take(more) {
            out.extend(set[..ways].iter().flat_map(|entry| entry.to_le_bytes()));
        }
        done + more >= sets
    }

    /// Whether these bytes are an export.
    pub(super) fn is_export(bytes: &[u8]) -> bool {
        parse(bytes).is_some()
    }

    pub(super) fn import(&mut self, bytes: &[u8]) -> Result<(), BadGhosts> {
        let (set_bits, ways, entries) = parse(bytes).ok_or(BadGhosts)?;
        let entries = entries.iter().map(|entry| u16::from_le_bytes(*entry));
        // A count of zero is an empty entry.
        let entries = entries.map(|entry| if entry & COUNT == 0 { 0 } else { entry });
        self.take_over(&Ghosts {
            entries: entries.collect(),
            set_bits,
            ways,
        });
        Ok(())
    }

    /// Replaces all entries by those of `old`, newest first as far as there is room.
    fn take_over(&mut self, old: &Ghosts) {
        let ways = usize::from(self.ways);
        if ways == 0 {
            return;
        }
        for (set, entries) in self.entries.chunks_mut(ways).enumerate() {
            let shrunk = old.set_bits.saturating_sub(self.set_bits);
            let grown = self.set_bits.saturating_sub(old.set_bits);
            let first = (set >> grown) << shrunk;
            let sources = 1 << shrunk;
            let from = |n: usize| {
                let (age, source) = (n / sources, first + n % sources);
                let entry = old.entries.get(source * usize::from(old.ways) + age);
                entry.copied().filter(|entry| *entry != 0)
            };
            let all = usize::from(old.ways) * sources;
            entries.fill(0);
            let mut used = 0;
            for entry in (0..all).filter_map(from) {
                // Growing may have copied it.
                let twice = entries[..used].iter().any(|it| is(*it, entry & !COUNT));
                if used < ways && !twice {
                    entries[used] = entry;
                    used += 1;
                }
            }
        }
    }

    pub(super) fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<u16>()
    }

    /// Where the page's set begins, and its part of the hash with a count of zero.
    fn place(&self, page: u32) -> (usize, u16) {
        let hash = super::mixed(page);
        let set = (hash >> 32) >> (32 - u32::from(self.set_bits));
        let mark = u16::try_from(hash & 0xffff).expect("sixteen bits") & !COUNT;
        (
            usize::try_from(set).expect("a set") * usize::from(self.ways),
            mark,
        )
    }
}

fn is(entry: u16, mark: u16) -> bool {
    entry != 0 && entry & !COUNT == mark
}

/// Of an export: the sets as a power of two, the entries of each, and all entries.
fn parse(bytes: &[u8]) -> Option<(u8, u16, &[[u8; 2]])> {
    let (&[version, set_bits, low, high], entries) = bytes.split_first_chunk::<HEADER>()?;
    let ways = u16::from_le_bytes([low, high]);
    let (entries, []) = entries.as_chunks::<2>() else {
        return None;
    };
    let expected = usize::from(ways).checked_mul(1_usize.checked_shl(set_bits.into())?);
    let is_sound = u32::from(ways) < 2 * WAYS && set_bits < 32 && expected == Some(entries.len());
    (version == VERSION && is_sound).then_some((set_bits, ways, entries))
}
