//! Blocks that were written to the disk past the cache, and that the disk may not have durably yet.
//!
//! What is read of them and becomes part of the cache counts as dirty until the disk is flushed: otherwise the cache would
//! have them after a crash that takes them from the disk, and a read would later go back in time.
//!
//! At its start a cache does not know what the disk has durably: every block is loose until the first flush.
//!
//! # Always true
//! - a block is loose from the begin of its write until a flush has ended that began after the write's end

use super::write::in_pages;
use alloc::collections::BTreeMap;

/// Pages, at most; beyond them every block counts as loose.
const MOST: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Loose {
    pages: BTreeMap<u32, u16>,
    all: bool,
}

impl Loose {
    /// All blocks: it is not known what was written before, and not flushed.
    pub(super) fn all() -> Loose {
        Loose {
            all: true,
            ..Loose::default()
        }
    }

    pub(super) fn add(&mut self, start: u64, len: u64) {
        for piece in in_pages(start, len) {
            if self.pages.len() >= MOST {
                self.all = true;
            }
            if self.all {
                return;
            }
            *self.pages.entry(piece.page).or_default() |= piece.blocks;
        }
    }

    /// Takes over those of another one.
    pub(super) fn merge(&mut self, other: Loose) {
        self.all |= other.all;
        for (page, blocks) in other.pages {
            *self.pages.entry(page).or_default() |= blocks;
        }
    }

    /// Which of a page's blocks are among them.
    pub(super) fn of(&self, page: u32, blocks: u16) -> u16 {
        match self.all {
            true => blocks,
            false => blocks & self.pages.get(&page).copied().unwrap_or(0),
        }
    }
}
