//! The division of a cache among its disks: which chunks each has, and how many a new one gets.
//!
//! # Always true
//! - no chunk is given twice, and chunk 0, which has the label, never
//! - chunks are read as they are written, in the same order

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tidegate_api::descriptor::Uuid;
use tidegate_api::name::Name;
use tidegate_core::layout::cache::area::Area;

/// The fewest chunks with which a disk's cache works: one for its journal and one for pages.
pub(crate) const FEWEST: usize = 2;

/// A disk's part of a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    /// The disk, when it got the part.
    pub(crate) disk: Name,
    /// Whether it may have what the disk does not. The record says so before the disk's descriptor does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) dirty: bool,
    /// The disk's identity.
    pub(crate) uuid: Uuid,
    /// The disk's shares then.
    pub(crate) shares: u32,
    /// How many of its chunks are for the journal: the first ones. 0, in a record of an earlier version: as many as the others
    /// need.
    #[serde(default)]
    pub(crate) journal: usize,
    /// Its chunks, in order.
    #[serde(with = "ranges")]
    pub(crate) chunks: Vec<u32>,
}

/// What a disk wants of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) shares: u32,
    /// More chunks than this are of no use to the disk.
    pub(crate) useful: usize,
    /// The least and the most chunks, if the disk's settings say so.
    pub(crate) min: Option<usize>,
    pub(crate) max: Option<usize>,
    /// What the cache's division gives it now, if there is one. Otherwise it gets its share.
    pub(crate) planned: Option<usize>,
}

impl Part {
    /// Notes how long its journal is, so that it stays so long if the part gets smaller.
    pub(crate) fn keep_journal(&mut self, chunk: u64) {
        if self.journal == 0 {
            self.journal = Area::journal_chunks(chunk, self.chunks.len()).unwrap_or(0);
        }
    }

    /// The fewest chunks with which it works: its journal's, and one for pages.
    pub(crate) fn least(&self) -> usize {
        FEWEST.max(self.journal + 1)
    }

    /// The part of a disk that does not use it gets smaller: what it has is void, and its journal may become shorter.
    pub(crate) fn truncate(&mut self, chunks: usize, chunk: u64) {
        self.chunks.truncate(chunks);
        if 2 * self.journal > self.chunks.len() {
            self.journal = 0;
        }
        self.keep_journal(chunk);
    }

    /// Where the part is on each device.
    pub(crate) fn area(&self, chunk: u64) -> Option<Area> {
        if self.journal == 0 {
            return Area::new(chunk, self.chunks.clone());
        }
        let (journal, data) = self.chunks.split_at_checked(self.journal)?;
        Area::of(chunk, journal.to_vec(), data.to_vec())
    }
}

impl Wanted {
    /// The chunks that a disk is to have beside these others.
    pub(crate) fn fair(&self, chunks: u32, parts: &[Part]) -> usize {
        let others: u64 = parts.iter().map(|part| u64::from(part.shares)).sum();
        let all = (others + u64::from(self.shares)).max(1);
        let fair = u64::from(chunks.saturating_sub(1)) * u64::from(self.shares) / all;
        let fair = usize::try_from(fair).unwrap_or(usize::MAX);
        let fair = self.planned.unwrap_or(fair);
        let least = self.min.unwrap_or(FEWEST).max(FEWEST);
        let most = self.max.unwrap_or(usize::MAX).min(self.useful);
        fair.min(most).max(least)
    }

    /// The chunks of the journal, so that the disk's part can grow to the largest one that it may get.
    pub(crate) fn journal(&self, chunks: u32, chunk: u64) -> Option<usize> {
        let all = usize::try_from(chunks.saturating_sub(1)).unwrap_or(usize::MAX);
        let most = self.max.unwrap_or(usize::MAX).min(self.useful).min(all);
        Area::journal_chunks(chunk, most.max(FEWEST))
    }

    /// The fewest chunks that do.
    pub(crate) fn enough(&self) -> usize {
        self.min.unwrap_or(FEWEST).max(FEWEST)
    }
}

/// The chunks that a disk of this many bytes can use: a page has at most two slots, and the journal takes less than one chunk
/// in a hundred.
pub(crate) fn useful(size: u64, chunk: u64) -> usize {
    let slots = size.div_ceil(chunk.max(1)).saturating_mul(2);
    usize::try_from(slots + slots / 100 + 1).unwrap_or(usize::MAX)
}

/// Free chunks of a cache of so many for another disk: its fair part, or what is left of that. `None`: too few are free.
pub(crate) fn choose(chunks: u32, parts: &[Part], wanted: Wanted) -> Option<Vec<u32>> {
    let taken: BTreeSet<u32> = parts
        .iter()
        .flat_map(|part| part.chunks.iter().copied())
        .collect();
    let free = (1..chunks).filter(|chunk| !taken.contains(chunk));
    let chosen: Vec<u32> = free.take(wanted.fair(chunks, parts)).collect();
    (chosen.len() >= wanted.enough()).then_some(chosen)
}

/// Free chunks that follow each other, at most so many: the first one, and how many there are.
pub(crate) fn free_run(chunks: u32, parts: &[Part], most: usize) -> Option<(u32, u32)> {
    let taken: BTreeSet<u32> = parts
        .iter()
        .flat_map(|part| part.chunks.iter().copied())
        .collect();
    let is_free = |chunk: &u32| !taken.contains(chunk);
    let first = (1..chunks).find(is_free)?;
    let run = (first..chunks).take_while(is_free).take(most).count();
    let run = u32::try_from(run).ok()?;
    (run > 0).then_some((first, run))
}

/// How many chunks no disk has.
pub(crate) fn free(chunks: u32, parts: &[Part]) -> usize {
    let all = usize::try_from(chunks.saturating_sub(1)).unwrap_or(usize::MAX);
    let taken: usize = parts.iter().map(|part| part.chunks.len()).sum();
    all.saturating_sub(taken)
}

/// The disk that is to give chunks back so that another gets its part, and how many it keeps: the one with most for its
/// shares, if that is more than its fair part. It gives half of its chunks, so that not each new disk takes from each other.
pub(crate) fn who_gives(chunks: u32, parts: &[Part], wanted: Wanted) -> Option<(Uuid, usize)> {
    let weight = |part: &&Part| {
        let mine = part.chunks.len() as u64;
        mine * 1_000_000 / u64::from(part.shares.max(1))
    };
    let most = parts.iter().max_by_key(weight)?;
    let others: Vec<Part> = parts
        .iter()
        .filter(|part| part.uuid != most.uuid)
        .cloned()
        .collect();
    let sum = u64::from(most.shares)
        + u64::from(wanted.shares)
        + others
            .iter()
            .map(|part| u64::from(part.shares))
            .sum::<u64>();
    let fair = u64::from(chunks.saturating_sub(1)) * u64::from(most.shares) / sum.max(1);
    let half = most.chunks.len() / 2;
    let left = half.max(most.least());
    let is_above = most.chunks.len() as u64 > fair && left < most.chunks.len();
    is_above.then_some((most.uuid, left))
}

/// Chunks as text: `1-5,9,7`.
mod ranges {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::fmt::Write;

    pub(super) fn serialize<S: Serializer>(chunks: &[u32], to: S) -> Result<S::Ok, S::Error> {
        let mut text = String::new();
        let mut rest = chunks;
        while let Some(first) = rest.first() {
            let run = (0..)
                .zip(rest)
                .take_while(|(nth, chunk)| **chunk == first + nth);
            let len = run.count();
            let comma = if text.is_empty() { "" } else { "," };
            let written = match len {
                1 => write!(text, "{comma}{first}"),
                _ => write!(text, "{comma}{first}-{}", rest[len - 1]),
            };
            written.map_err(serde::ser::Error::custom)?;
            rest = &rest[len..];
        }
        to.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u32>, D::Error> {
        /// More chunks than any cache has.
        const MOST: usize = 1 << 20;
        let text = String::deserialize(from)?;
        let mut chunks = Vec::new();
        for run in text.split(',').filter(|run| !run.is_empty()) {
            let (first, last) = run.split_once('-').unwrap_or((run, run));
            let first: u32 = first.parse().map_err(D::Error::custom)?;
            let last: u32 = last.parse().map_err(D::Error::custom)?;
            if first > last || chunks.len() + (last - first) as usize >= MOST {
                return Err(D::Error::custom(format!("'{run}' are no chunks")));
            }
            chunks.extend(first..=last);
        }
        Ok(chunks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(nth: u8, shares: u32, chunks: Vec<u32>) -> Part {
        Part {
            disk: format!("d{nth}").parse().unwrap(),
            dirty: false,
            uuid: Uuid::from_random([nth; 16]),
            shares,
            journal: 0,
            chunks,
        }
    }

    const NORMAL: Wanted = Wanted {
        shares: 1000,
        useful: usize::MAX,
        min: None,
        max: None,
        planned: None,
    };

    #[test]
    fn chunks_are_read_as_they_are_written() {
        for chunks in [vec![5], vec![1, 2, 3, 9, 7, 8], vec![4, 3, 2]] {
            let part = part(1, 1000, chunks);
            let text = toml::to_string(&part).unwrap();
            assert_eq!(toml::from_str::<Part>(&text).unwrap(), part, "{text}");
        }
        for bad in ["5-2", "x", "1-4294967295", "0-2000000"] {
            let text = toml::to_string(&part(1, 1, vec![1])).unwrap();
            let text = text.replace("chunks = \"1\"", &format!("chunks = \"{bad}\""));
            assert!(toml::from_str::<Part>(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_new_disk_gets_its_fair_part_within_its_bounds() {
        assert_eq!(choose(101, &[], NORMAL).unwrap().len(), 100);
        let bounded = Wanted {
            max: Some(30),
            ..NORMAL
        };
        let first = choose(101, &[], bounded).unwrap();
        assert_eq!(first, (1..=30).collect::<Vec<_>>());
        let parts = [part(1, 1000, first)];
        let second = choose(101, &parts, NORMAL).unwrap();
        assert_eq!(second, (31..=80).collect::<Vec<_>>(), "a half");
        let high = Wanted {
            shares: 3000,
            ..NORMAL
        };
        assert_eq!(choose(101, &parts, high).unwrap().len(), 70, "what is left");
        let needs = Wanted {
            min: Some(71),
            ..NORMAL
        };
        assert_eq!(choose(101, &parts, needs), None, "70 are free");
    }

    #[test]
    fn a_small_disk_gets_no_more_than_it_can_use() {
        let chunk = 16 << 20;
        let useful = useful(1 << 30, chunk);
        let small = Wanted { useful, ..NORMAL };
        let chunks = choose(4096, &[], small).unwrap();
        assert_eq!(chunks.len(), 2 * 64 + 2);
        let area = Area::new(chunk, chunks).unwrap();
        assert!(u64::from(area.slots()) * (64 << 10) >= 2 << 30);
    }

    #[test]
    fn the_disk_with_most_for_its_shares_gives_half_and_never_below_what_works() {
        let parts = [
            part(1, 1000, (1..=60).collect()),
            part(2, 4000, (61..=100).collect()),
        ];
        let (who, left) = who_gives(101, &parts, NORMAL).unwrap();
        assert_eq!((who, left), (parts[0].uuid, 30));
        let small = [part(1, 1000, vec![1, 2])];
        assert_eq!(who_gives(3, &small, NORMAL), None);
        let mut journal = part(1, 1000, (1..=100).collect());
        journal.journal = 50;
        assert_eq!(who_gives(101, &[journal], NORMAL).unwrap().1, 51);
        assert_eq!(free(101, &parts), 0);
    }

    #[test]
    fn free_chunks_are_found_in_runs() {
        let parts = [part(1, 1000, vec![1, 2, 5]), part(2, 1000, vec![9])];
        assert_eq!(free_run(11, &parts, 10), Some((3, 2)));
        assert_eq!(free_run(11, &parts, 1), Some((3, 1)));
        assert_eq!(free_run(3, &parts, 10), None);
    }

    #[test]
    fn the_journal_is_long_enough_for_the_largest_part() {
        let chunk = 1 << 20;
        let journal = NORMAL.journal(4096, chunk).unwrap();
        assert!(Area::of(chunk, (1..=20).collect(), (21..4096).collect()).is_none());
        let last = u32::try_from(journal).unwrap();
        let area = Area::of(chunk, (1..=last).collect(), (last + 1..4096).collect());
        assert!(area.is_some(), "{journal}");
    }

    #[test]
    fn a_part_that_gets_smaller_has_its_journal_where_it_was() {
        let chunk = 1 << 20;
        let mut used = part(1, 1000, (1..=400).collect());
        let before = used.area(chunk).unwrap();
        assert!(before.journal().len() > 1);
        used.keep_journal(chunk);
        used.chunks.truncate(100);
        let after = used.area(chunk).unwrap();
        assert_eq!(after.journal(), before.journal());
        // What a detached disk has is void: its journal need not stay.
        used.journal = 60;
        used.truncate(50, chunk);
        assert_eq!(used.area(chunk).unwrap().journal().len(), 1);
    }

    #[test]
    fn two_hundred_disks_find_room_one_after_another() {
        let mut parts: Vec<Part> = Vec::new();
        for nth in 0..200 {
            let chunks = loop {
                if let Some(chunks) = choose(4096, &parts, NORMAL) {
                    break chunks;
                }
                let (who, left) = who_gives(4096, &parts, NORMAL).expect("somebody gives");
                let giver = parts.iter_mut().find(|part| part.uuid == who).unwrap();
                giver.chunks.truncate(left);
            };
            parts.push(part(nth, 1000, chunks));
        }
        let sizes = parts.iter().map(|part| part.chunks.len());
        assert!(sizes.min().unwrap() >= FEWEST);
        let all: BTreeSet<u32> = parts.iter().flat_map(|p| p.chunks.clone()).collect();
        let sum: usize = parts.iter().map(|part| part.chunks.len()).sum();
        assert_eq!(all.len(), sum, "no chunk is given twice");
    }
}
