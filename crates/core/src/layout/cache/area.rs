//! The area of a disk's cache: where it is on its flash devices.
//!
//! A device is divided into chunks. A disk has some of them: some have its headers and its journal, the others its pages.
//! Those of pages can become more or fewer; a longer journal is for that. All devices of a mirrored cache have the same at the same places.
//!
//! # Always true
//! - a slot is one page long, and aligned to that
//!
//! # Picture
//! ```text
//!   chunk 7: header, header, journal ...      chunk 12: slot 384, 385 ...      chunk 9: slot 288 ...
//! ```

use super::{CACHE_BLOCK, PAGE};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Slots for each block of the journal, at most. A third of the ring must suffice to record all of them again, beside new
/// records: at most 36 of the 80 or more records of a block.
const SLOTS_PER_BLOCK: u64 = 12;
/// Blocks of the ring, at least.
const RING_MIN: u64 = 16;
/// Blocks before the ring.
const HEADERS: u64 = 2;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// Bytes of a chunk, and its pages.
    chunk: u64,
    pages: u32,
    /// Chunks of the headers and the journal.
    journal: Vec<u32>,
    /// Chunks of pages.
    data: Vec<u32>,
}

impl Area {
    /// The area of these chunks of so many bytes each; `None` if they are too few. The first ones are the journal's: as many
    /// as this number of chunks needs.
    ///
    /// # Panics
    /// If a chunk is not a multiple of a page.
    pub fn new(chunk: u64, mut chunks: Vec<u32>) -> Option<Area> {
        assert!(
            chunk > 0 && chunk.is_multiple_of(PAGE),
            "a chunk has whole pages"
        );
        let journal = Area::journal_chunks(chunk, chunks.len())?;
        let data = chunks.split_off(journal);
        Area::of(chunk, chunks, data)
    }

    /// How many chunks the journal needs if there are so many in all; `None` if these are too few.
    pub fn journal_chunks(chunk: u64, all: usize) -> Option<usize> {
        (1..all).find(|journal| are_enough(chunk, *journal, all - journal))
    }

    /// The area of these chunks for the journal and these for pages. The journal may have more than it needs: then the area
    /// can grow. `None` if it has too few, or there are none for pages.
    pub fn of(chunk: u64, journal: Vec<u32>, data: Vec<u32>) -> Option<Area> {
        let enough = !data.is_empty() && are_enough(chunk, journal.len(), data.len());
        enough.then_some(Area {
            chunk,
            pages: u32::try_from(chunk / PAGE).expect("a chunk is below 256 TiB"),
            journal,
            data,
        })
    }

    /// Chunks of the headers and the journal, in order.
    pub fn journal(&self) -> &[u32] {
        &self.journal
    }

    /// Chunks of pages, in order.
    pub fn data(&self) -> &[u32] {
        &self.data
    }

    /// Adds chunks of pages, from this one on. Returns whether the journal is long enough for them.
    pub(super) fn grow(&mut self, first: u32, count: u32) -> bool {
        let all = self.data.len() + count as usize;
        let enough = are_enough(self.chunk, self.journal.len(), all);
        if enough {
            self.data.extend(first..first + count);
        }
        enough
    }

    /// How many slots there are without so many of the last chunks; `None` if no chunk is left.
    pub(super) fn slots_without(&self, count: u32) -> Option<u32> {
        let slots = self.slots().checked_sub(count.checked_mul(self.pages)?)?;
        (slots > 0 && count > 0).then_some(slots)
    }

    /// Takes the last chunks away.
    pub(super) fn shrink(&mut self, count: u32) {
        let left = self.data.len() - count as usize;
        self.data.truncate(left);
    }

    /// How many slots there are.
    pub fn slots(&self) -> u32 {
        let chunks = u32::try_from(self.data.len()).expect("chunks have 32 bits");
        chunks * self.pages
    }

    /// Blocks of the journal's ring.
    pub fn ring(&self) -> u64 {
        self.journal.len() as u64 * (self.chunk / CACHE_BLOCK) - HEADERS
    }

    /// Where a header is on each device, in bytes: there are two places.
    pub fn header_at(&self, place: u64) -> u64 {
        self.block_at(place % HEADERS)
    }

    /// Where a block of the journal is on each device, in bytes.
    pub fn journal_at(&self, sequence: u64) -> u64 {
        self.block_at(HEADERS + sequence % self.ring())
    }

    /// Where the n-th part of the ring is on each device, in bytes, and how long it is.
    pub(super) fn ring_part(&self, nth: usize) -> Option<(u64, u64)> {
        let chunk = u64::from(*self.journal.get(nth)?) * self.chunk;
        let skipped = if nth == 0 { HEADERS * CACHE_BLOCK } else { 0 };
        Some((chunk + skipped, self.chunk - skipped))
    }

    fn block_at(&self, block: u64) -> u64 {
        let at = block * CACHE_BLOCK;
        let chunk = usize::try_from(at / self.chunk).expect("within the ring");
        u64::from(self.journal[chunk]) * self.chunk + at % self.chunk
    }

    /// The number of a slot over the whole device.
    #[inline(always)]
    pub fn number(&self, slot: u32) -> u32 {
        let chunk = self.data[(slot / self.pages) as usize];
        chunk * self.pages + slot % self.pages
    }

    /// Where a block of a slot is on each device, in bytes.
    #[inline(always)]
    pub fn block_of_slot(&self, slot: u32, block: usize) -> u64 {
        u64::from(self.number(slot)) * PAGE + block as u64 * CACHE_BLOCK
    }

    /// From numbers over the whole device to slots, for recovery.
    pub fn slots_by_number(&self) -> SlotsByNumber {
        let chunks = (0..).zip(&self.data);
        SlotsByNumber {
            pages: self.pages,
            places: chunks.map(|(place, chunk)| (*chunk, place)).collect(),
        }
    }
}

/// Whether a journal of so many chunks is long enough.
fn are_enough(chunk: u64, journal: usize, data: usize) -> bool {
    let slots = data as u64 * (chunk / PAGE);
    let ring = (journal as u64 * chunk / CACHE_BLOCK).saturating_sub(HEADERS);
    ring >= RING_MIN && slots <= ring * SLOTS_PER_BLOCK
}

/// See [`Area::slots_by_number`].
pub struct SlotsByNumber {
    pages: u32,
    places: BTreeMap<u32, u32>,
}

impl SlotsByNumber {
    /// The slot of this number, if the disk has it.
    pub fn slot(&self, number: u32) -> Option<u32> {
        let place = self.places.get(&(number / self.pages))?;
        Some(place * self.pages + number % self.pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn slots_are_numbered_over_the_device_and_found_again() {
        let area = Area::new(2 * PAGE, vec![7, 12, 9]).expect("enough");
        assert_eq!((area.slots(), area.ring()), (4, 30));
        let by_number = area.slots_by_number();
        let numbers: Vec<u32> = (0..4).map(|slot| area.number(slot)).collect();
        assert_eq!(numbers, [24, 25, 18, 19]);
        for slot in 0..4 {
            assert_eq!(by_number.slot(area.number(slot)), Some(slot));
        }
        assert_eq!(by_number.slot(14), None, "the journal's");
        assert_eq!(area.block_of_slot(3, 2), 19 * PAGE + 2 * CACHE_BLOCK);
    }

    #[test]
    fn the_journal_grows_with_the_pages() {
        let chunk = 16 << 20;
        let area = |chunks| Area::new(chunk, (0..chunks).collect()).expect("enough");
        assert_eq!(area(2).journal.len(), 1);
        assert_eq!(area(190).journal.len(), 1);
        assert_eq!(area(1000).journal.len(), 6);
        assert!(Area::new(chunk, vec![3]).is_none());
    }

    #[test]
    fn headers_and_the_ring_do_not_overlap() {
        let area = Area::new(PAGE, vec![5, 3, 8]).expect("enough");
        let headers = [0, 1].map(|place| area.header_at(place));
        let mut blocks: Vec<u64> = (0..area.ring()).map(|at| area.journal_at(at)).collect();
        let parts: Vec<(u64, u64)> = (0..).map_while(|nth| area.ring_part(nth)).collect();
        let in_parts = |at: &u64| {
            parts
                .iter()
                .any(|(from, len)| (*from..from + len).contains(at))
        };
        assert!(blocks.iter().all(in_parts) && !headers.iter().any(in_parts));
        blocks.extend(headers);
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(blocks.len() as u64, area.ring() + 2);
        assert!(blocks.iter().all(|at| at / PAGE == 5 || at / PAGE == 3));
    }
}
