//! The cleaner: brings dirty blocks to the disk.
//!
//! It takes dirty pages in the order of the disk, some at once, as work in the background. A page's dirty blocks are read
//! from flash and checked, and written to the disk. After a flush of the disk they are clean, unless they were written
//! again. A write-through cache has the same states: its writes have brought the blocks to the disk themselves.
//!
//! # Always true
//! - a block becomes clean only after the disk has its newest bytes durably
//! - while a page is being cleaned, nothing else writes its blocks to the disk
//! - a block whose bytes are not as they were written stays dirty, and is reported

use super::write::{at_block, runs};
use super::{
    BACKING, BLOCKS, CACHE_BLOCK, CLEAN_READ, CLEAN_SUM, CLEAN_WRITE, Cache, PAGE, State,
    blocks_of, tag,
};
use crate::layout::{LayoutCx, LayoutNotice, SubIo, Target};
use crate::request::{Data, Fault, Flags, Op, Outcome};
use crate::units::{Span, Time};
use alloc::collections::{BTreeMap, BTreeSet};

/// Pages that are cleaned at once. Origin: storage arrays of disks sort some dozens of writes.
const TOGETHER: usize = 16;
/// After so many pages the disk is flushed.
const FLUSH_AFTER: usize = 128;
/// A page is dirty for twice as long at most, in quiet times.
const MAX_AGE: Span = Span::from_secs(60);
/// Without a guest's I/O for so long, everything is cleaned.
const QUIET: Span = Span::from_secs(1);
/// After a failure of the disk.
const RETRY: Span = Span::from_secs(10);

/// See the module.
#[derive(Default)]
pub(super) struct Cleaner {
    /// Pages with dirty blocks.
    dirty: BTreeSet<u32>,
    /// Dirty blocks that the disk has, but perhaps not durably.
    written: BTreeMap<u32, u16>,
    /// The same, covered by the flush that is under way.
    flushing: Option<BTreeMap<u32, u16>>,
    items: BTreeMap<u32, Item>,
    /// The last change of pages with blocks that have become dirty.
    fresh: BTreeMap<u32, u64>,
    /// Dirty blocks that the disk is about to have replaced, past the cache.
    replaced: BTreeMap<u32, u16>,
    /// Pages that somebody waits for.
    wanted: BTreeSet<u32>,
    /// Pages whose bytes are not as they were written.
    broken: BTreeSet<u32>,
    /// The next page.
    cursor: u32,
    /// Pages that are still cleaned in this pass.
    pass: usize,
    /// Everything is cleaned, and nothing else begins before.
    pub(super) all: bool,
    /// When the next pass begins because of age.
    age_at: Option<Time>,
    /// When a guest's I/O came last.
    pub(super) busy_at: Time,
    retry_at: Option<Time>,
    /// Whether it begins nothing.
    pub(super) is_paused: bool,
}

/// A page that is being cleaned.
struct Item {
    slot: u32,
    arena: Data,
    /// Blocks that are cleaned, and where they were and what they were when it began.
    blocks: u16,
    checks: [u16; BLOCKS],
    /// Reads, checksums or writes that have not ended.
    open: u32,
    is_bad: bool,
    /// Devices that were tried, one bit each, and the one that is tried now.
    tried: u8,
    device: Target,
    /// Blocks that were written meanwhile.
    disturbed: u16,
}

impl Cleaner {
    /// These blocks have become dirty.
    pub(super) fn dirtied(&mut self, page: u32, blocks: u16, now: Time) {
        self.dirty.insert(page);
        self.forget(page, blocks);
        self.age_at.get_or_insert(now + MAX_AGE);
    }

    /// This change records blocks that have become dirty.
    pub(super) fn recorded_by(&mut self, page: u32, change: u64) {
        self.fresh.insert(page, change);
    }

    /// These dirty blocks are being replaced on the disk, past the cache: until that ends they are not cleaned.
    pub(super) fn replace(&mut self, page: u32, blocks: u16) {
        *self.replaced.entry(page).or_default() |= blocks;
        self.forget(page, blocks);
    }

    /// That has ended.
    pub(super) fn replaced(&mut self, page: u32, blocks: u16) {
        if let Some(of) = self.replaced.get_mut(&page) {
            *of &= !blocks;
            if *of == 0 {
                self.replaced.remove(&page);
            }
        }
    }

    /// What the disk has of these blocks is not the newest, or they are not cached any more.
    pub(super) fn forget(&mut self, page: u32, blocks: u16) {
        let sets = [Some(&mut self.written), self.flushing.as_mut()];
        for set in sets.into_iter().flatten() {
            if let Some(of) = set.get_mut(&page) {
                *of &= !blocks;
                if *of == 0 {
                    set.remove(&page);
                }
            }
        }
        if let Some(item) = self.items.get_mut(&page) {
            item.disturbed |= blocks;
        }
    }

    /// A page has no dirty block any more.
    pub(super) fn cleaned(&mut self, page: u32) {
        self.dirty.remove(&page);
        self.fresh.remove(&page);
        self.wanted.remove(&page);
        self.broken.remove(&page);
    }

    /// The disk has the newest bytes of these blocks, perhaps not durably.
    pub(super) fn wrote(&mut self, page: u32, blocks: u16) {
        if blocks != 0 {
            *self.written.entry(page).or_default() |= blocks;
        }
    }

    /// Dirty blocks of a page that the disk has, perhaps not durably.
    fn on_disk(&self, page: u32) -> u16 {
        let of = |set: &BTreeMap<u32, u16>| set.get(&page).copied().unwrap_or(0);
        of(&self.written) | self.flushing.as_ref().map_or(0, of)
    }

    /// Somebody waits for this page.
    pub(super) fn want(&mut self, page: u32) {
        self.wanted.insert(page);
    }

    /// Whether this page cannot be cleaned now: its bytes are not as they were written, or the disk fails.
    pub(super) fn is_stuck(&self, page: u32) -> bool {
        self.broken.contains(&page) || self.retry_at.is_some()
    }

    /// Whether a page of the range is being cleaned.
    pub(super) fn overlaps(&self, start: u64, end: u64) -> bool {
        let pages = super::page_number(start / PAGE)..=super::page_number((end - 1) / PAGE);
        self.items.range(pages).next().is_some()
    }

    /// Dirty pages of a range.
    pub(super) fn dirty_between(&self, start: u64, end: u64) -> alloc::vec::Vec<u32> {
        let pages = super::page_number(start / PAGE)..=super::page_number((end - 1) / PAGE);
        self.dirty.range(pages).copied().collect()
    }

    /// Pages of a range with blocks that are being replaced.
    pub(super) fn replaced_between(&self, start: u64, end: u64) -> alloc::vec::Vec<u32> {
        let pages = super::page_number(start / PAGE)..=super::page_number((end - 1) / PAGE);
        self.replaced.range(pages).map(|(page, _)| *page).collect()
    }

    /// Whether no page is being cleaned.
    pub(super) fn is_idle(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn dirty_pages(&self) -> usize {
        self.dirty.len()
    }

    /// A flush of the disk begins. Returns whether it covers blocks: one does at a time.
    pub(super) fn begin_flush(&mut self) -> bool {
        if self.flushing.is_some() || self.written.is_empty() {
            return false;
        }
        self.flushing = Some(core::mem::take(&mut self.written));
        true
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        if self.dirty.is_empty() || self.is_paused {
            return None;
        }
        let quiet = (self.pass == 0).then_some(self.busy_at + QUIET);
        match self.retry_at {
            Some(at) => Some(at),
            None => [self.age_at, quiet].into_iter().flatten().min(),
        }
    }
}

impl Cache {
    /// Dirty blocks that were found at the start.
    pub(super) fn found_dirty(&mut self, page: u32, now: Time) {
        self.cleaner.dirtied(page, 0, now);
    }

    /// Begins a pass over all dirty pages if it is time.
    pub(super) fn tick_cleaner(&mut self, cx: &mut LayoutCx<'_>) {
        let now = cx.now();
        let cleaner = &mut self.cleaner;
        if cleaner.retry_at.is_some_and(|at| at <= now) {
            cleaner.retry_at = None;
        }
        let due = cleaner.age_at.is_some_and(|at| at <= now);
        if due {
            cleaner.age_at = Some(now + MAX_AGE);
        }
        let quiet = cleaner.busy_at + QUIET <= now;
        if quiet {
            // Once a second, if it is not done before.
            cleaner.busy_at = now;
        }
        if due || quiet {
            cleaner.pass = cleaner.dirty.len();
        }
        self.advance_cleaner(cx);
    }

    /// Cleans everything, and reports when that is done.
    pub(super) fn clean_all(&mut self, cx: &mut LayoutCx<'_>) {
        self.cleaner.all = true;
        self.cleaner.is_paused = false;
        self.advance_cleaner(cx);
        self.cleaning_advanced(cx);
    }

    /// Whether there is a reason to clean now.
    fn must_clean(&self) -> bool {
        let cleaner = &self.cleaner;
        let pages = self.map.len() as usize;
        // Above two fifths of the slots, down to three tenths.
        let high = cleaner.dirty.len() * 10 > pages * if cleaner.pass > 0 { 3 } else { 4 };
        cleaner.all || cleaner.pass > 0 || high
    }

    /// Cleans the next pages.
    pub(super) fn advance_cleaner(&mut self, cx: &mut LayoutCx<'_>) {
        if self.cleaner.is_paused || !self.is_readable() || self.cleaner.retry_at.is_some() {
            return;
        }
        let wanted = core::mem::take(&mut self.cleaner.wanted);
        for page in wanted {
            let item = self.cleaner.items.contains_key(&page);
            if !item && (self.is_fresh(page) || !self.begin_cleaning(cx, page)) {
                self.cleaner.wanted.insert(page);
            }
        }
        let mut looked = 0;
        while self.must_clean() && self.cleaner.items.len() < TOGETHER {
            let cleaner = &self.cleaner;
            looked += 1;
            if looked > cleaner.dirty.len() {
                break;
            }
            let next = cleaner.dirty.range(cleaner.cursor..).next();
            let Some(page) = next.or(cleaner.dirty.first()).copied() else {
                break;
            };
            self.cleaner.cursor = page.wrapping_add(1);
            self.cleaner.pass = self.cleaner.pass.saturating_sub(1);
            let start = u64::from(page) * PAGE;
            let taken = self.cleaner.items.contains_key(&page)
                || self.cleaner.broken.contains(&page)
                || self.is_fresh(page)
                || self.lock.is_held(start, start + PAGE);
            if !taken && !self.begin_cleaning(cx, page) {
                break;
            }
        }
        self.flush_written(cx);
    }

    /// Flushes the disk once enough was written to it, or nothing else is to be done.
    fn flush_written(&mut self, cx: &mut LayoutCx<'_>) {
        let cleaner = &self.cleaner;
        if cleaner.written.is_empty() || cleaner.flushing.is_some() {
            return;
        }
        let ends = cleaner.items.is_empty() && (self.mode.is_write_back() || self.must_clean());
        if ends || cleaner.written.len() >= FLUSH_AFTER || !self.behind.is_empty() {
            self.flush_disk(cx, None);
        }
    }

    /// Whether a page has dirty blocks whose record is not durable. If they came to the disk now, a crash could leave the
    /// older ones valid on flash.
    fn is_fresh(&mut self, page: u32) -> bool {
        let change = self.cleaner.fresh.get(&page);
        let is_fresh = change.is_some_and(|change| *change > self.journal.durable);
        if !is_fresh {
            self.cleaner.fresh.remove(&page);
        }
        is_fresh
    }

    /// Goes on with pages that were fresh.
    pub(super) fn clean_recorded(&mut self, cx: &mut LayoutCx<'_>) {
        if !self.cleaner.fresh.is_empty() && (self.must_clean() || !self.cleaner.wanted.is_empty())
        {
            self.advance_cleaner(cx);
        }
    }

    /// Reads the dirty blocks of a page. Returns false if there is no buffer.
    fn begin_cleaning(&mut self, cx: &mut LayoutCx<'_>, page: u32) -> bool {
        let Some(slot) = self.map.find(page) else {
            self.cleaner.cleaned(page);
            return true;
        };
        let replaced = self.cleaner.replaced.get(&page).copied().unwrap_or(0);
        let blocks = self.map.masks(slot).1 & !self.cleaner.on_disk(page) & !replaced;
        if blocks == 0 {
            return true;
        }
        let Some(arena) = cx.claim_above() else {
            return false;
        };
        self.map.pin(slot);
        let mut checks = [0; BLOCKS];
        for block in blocks_of(blocks) {
            let holder = self
                .map
                .holder(slot, block)
                .expect("what is dirty is valid");
            checks[block] = self.map.slot(holder).checks[block];
        }
        self.cleaner.items.insert(
            page,
            Item {
                slot,
                arena,
                blocks,
                checks,
                open: 0,
                is_bad: false,
                tried: 0,
                device: BACKING,
                disturbed: 0,
            },
        );
        self.read_dirty(cx, page);
        true
    }

    fn item(&mut self, page: u32) -> &mut Item {
        let item = self.cleaner.items.get_mut(&page);
        item.expect("a page is an item until it is clean")
    }

    fn read_dirty(&mut self, cx: &mut LayoutCx<'_>, page: u32) {
        let item = self.item(page);
        let (slot, tried, arena) = (item.slot, item.tried, item.arena);
        // What was written meanwhile is cleaned another time.
        item.blocks &= !item.disturbed;
        item.is_bad = false;
        let blocks = item.blocks;
        if blocks == 0 {
            return self.cleaning_ended(cx, page);
        }
        let Some(device) = self.reader(cx, tried) else {
            if self.keeps_dirty {
                self.cleaner.broken.insert(page);
                self.corrupt(cx, page);
            } else if self.is_writable() {
                // The disk has had every answered write.
                self.drop_blocks(cx, page, blocks);
            }
            return self.cleaning_ended(cx, page);
        };
        let item = self.item(page);
        (item.open, item.device) = (1, device);
        let twin = self.map.twin(slot);
        for slot in core::iter::once(slot).chain(twin) {
            for (first, count) in runs(self.map.slot(slot).valid & blocks) {
                self.item(page).open += 1;
                let sub = SubIo {
                    target: device,
                    op: Op::Read,
                    flags: Flags::NONE,
                    offset: self.area.block_of_slot(slot, first),
                    len: count as u64 * CACHE_BLOCK,
                    data: arena.skip(at_block(first)),
                    background: true,
                };
                cx.issue(tag(CLEAN_READ, page, device), sub);
            }
        }
        self.dirty_read(cx, page, device, Ok(()));
    }

    /// A device has read a run of a page's dirty blocks.
    pub(super) fn dirty_read(
        &mut self,
        cx: &mut LayoutCx<'_>,
        page: u32,
        device: Target,
        outcome: Outcome,
    ) {
        let item = self.item(page);
        item.open -= 1;
        item.is_bad |= outcome.is_err();
        if item.open > 0 {
            return;
        }
        if item.is_bad {
            item.tried |= super::bit(item.device);
            return self.read_dirty(cx, page);
        }
        let (blocks, arena) = (item.blocks, item.arena);
        item.open = blocks.count_ones();
        for block in blocks_of(blocks) {
            let tag = tag(CLEAN_SUM, page, device) | super::aux(block, 0);
            cx.sum(tag, arena.skip(at_block(block)), CACHE_BLOCK);
        }
    }

    /// The checksum of a dirty block.
    pub(super) fn dirty_summed(
        &mut self,
        cx: &mut LayoutCx<'_>,
        page: u32,
        block: usize,
        sum: u32,
    ) {
        let item = self.item(page);
        item.open -= 1;
        // One that was written meanwhile is not cleaned now.
        let matters = item.disturbed >> block & 1 == 0;
        item.is_bad |= matters && item.checks[block] != super::check(sum);
        if item.open > 0 {
            return;
        }
        if item.is_bad {
            item.tried |= super::bit(item.device);
            return self.read_dirty(cx, page);
        }
        self.write_dirty(cx, page);
    }

    fn write_dirty(&mut self, cx: &mut LayoutCx<'_>, page: u32) {
        let item = self.item(page);
        item.blocks &= !item.disturbed;
        let (blocks, arena) = (item.blocks, item.arena);
        let is_given_up = self.state == State::Losing;
        if blocks == 0 || is_given_up {
            return self.cleaning_ended(cx, page);
        }
        self.item(page).open = 0;
        for (first, count) in runs(blocks) {
            let offset = u64::from(page) * PAGE + u64::from(at_block(first));
            self.item(page).open += 1;
            let sub = SubIo {
                target: BACKING,
                op: Op::Write,
                flags: Flags::NONE,
                offset,
                len: (count as u64 * CACHE_BLOCK).min(self.size - offset),
                data: arena.skip(at_block(first)),
                background: true,
            };
            cx.issue(tag(CLEAN_WRITE, page, BACKING), sub);
        }
    }

    /// The disk has a run of a page.
    pub(super) fn dirty_written(&mut self, cx: &mut LayoutCx<'_>, page: u32, outcome: Outcome) {
        self.unflushed = true;
        let item = self.item(page);
        item.open -= 1;
        item.is_bad |= outcome.is_err();
        if item.open > 0 {
            return;
        }
        match item.is_bad {
            false => {
                let blocks = item.blocks & !item.disturbed;
                self.cleaner.wrote(page, blocks);
            }
            true => self.cleaner.retry_at = Some(cx.now() + RETRY),
        }
        self.cleaning_ended(cx, page);
    }

    fn cleaning_ended(&mut self, cx: &mut LayoutCx<'_>, page: u32) {
        let Some(item) = self.cleaner.items.remove(&page) else {
            return;
        };
        cx.release_above(item.arena);
        self.unpin(cx, item.slot);
        self.resume_behind(cx);
        self.advance_cleaner(cx);
        self.cleaning_advanced(cx);
        self.go_through(cx);
    }

    /// A flush of the disk that covers written blocks has ended.
    pub(super) fn disk_flushed(&mut self, cx: &mut LayoutCx<'_>, outcome: Outcome) {
        let covered = self.cleaner.flushing.take().unwrap_or_default();
        for (page, blocks) in covered {
            if outcome.is_err() {
                self.cleaner.wrote(page, blocks);
                continue;
            }
            let Some(slot) = self.map.find(page) else {
                continue;
            };
            self.map.clean(slot, blocks);
            if self.map.masks(slot).1 == 0 {
                self.cleaner.cleaned(page);
            }
            if self.is_writable() {
                self.change(cx, page);
            }
        }
        if outcome.is_err() {
            self.cleaner.retry_at = Some(cx.now() + RETRY);
        }
        self.resume_behind(cx);
        self.advance_cleaner(cx);
        self.advance_journal(cx);
        self.advance_shrinking(cx);
        self.cleaning_advanced(cx);
    }

    /// Reports that everything is clean, if that was asked for.
    fn cleaning_advanced(&mut self, cx: &mut LayoutCx<'_>) {
        let is_lost = self.state == State::Lost;
        let cleaner = &mut self.cleaner;
        if is_lost && cleaner.dirty.is_empty() {
            // The last that the disk lacked has come to it: nothing is lost.
            self.state = State::Losing;
            let fault = Fault::Gone;
            return cx.notice(LayoutNotice::CacheLost { fault, dirty: 0 });
        }
        if !is_lost
            && cleaner.all
            && cleaner.dirty.len() == cleaner.broken.len()
            && cleaner.items.is_empty()
        {
            cleaner.all = false;
            let left = cleaner.broken.len() as u64;
            self.keeps_dirty &= self.mode.is_write_back() || left > 0;
            cx.notice(LayoutNotice::CacheCleaned { left });
        }
    }

    /// Dirty bytes of a page are not as they were written, on any device.
    pub(super) fn corrupt(&mut self, cx: &mut LayoutCx<'_>, page: u32) {
        if self.state == State::Ready {
            cx.notice(LayoutNotice::CacheCorrupt {
                offset: u64::from(page) * PAGE,
            });
        }
    }
}
