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

use super::age::{Ages, Pace};
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
/// While guests wait for the disk, so many.
const TOGETHER_BUSY: usize = 4;
/// Above so many tenths of the slots, dirty pages are cleaned whatever their age. Origin: chosen by the scenario `flash-cache`.
/// At four tenths, pages that are written all the time are cleaned in vain.
const HIGH: usize = 8;
/// Above so many tenths, writes of other pages go past the cache.
const MOST: usize = 9;
/// Of those that are cleaned at [`HIGH`], the ones that are used often are passed over, but only so many in a row.
const PASSED_OVER: usize = 32;
/// After so many pages the disk is flushed.
const FLUSH_AFTER: usize = 128;
/// A page is dirty for twice as long at most, in quiet times.
const MAX_AGE: Span = Span::from_secs(120);
/// Without a guest's I/O for so long, everything is cleaned.
const QUIET: Span = Span::from_secs(1);
/// After a failure of the disk.
const RETRY: Span = Span::from_secs(10);
/// How often a page with bytes that only flash had and that are not as they were written is reported, at most. Origin: chosen;
/// a counter has all of them.
const SAYS_CORRUPT: Span = Span::from_secs(60);

/// See the module.
#[derive(Default)]
pub(super) struct Cleaner {
    /// Pages with dirty blocks, and the epoch since when.
    dirty: BTreeMap<u32, u32>,
    ages: Ages,
    pace: Pace,
    /// When the cleaning began of pages of [`Cleaner::written`] that it has brought to the disk.
    begun: BTreeMap<u32, Time>,
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
    /// Dirty blocks whose bytes are not as they were written, on any device.
    broken: BTreeMap<u32, u16>,
    /// What the disk must have before everything counts as clean: it was dirty when that was asked for.
    owed: Owed,
    /// The next page.
    cursor: u32,
    /// Pages that are still cleaned in this pass.
    pass: usize,
    /// Whether the disk is flushed at the end of this pass, also in write-through mode: guests may not do it, and rest.
    must_flush: bool,
    /// What is owed is cleaned, and then that is reported.
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
    /// When it began.
    begun: Time,
    /// Whether a read or a write of it has failed. Then its blocks are read one by one.
    is_failed: bool,
    one_by_one: bool,
    /// Blocks that the device does not have as they were written, and those that no device tried so far has.
    bad: u16,
    bad_everywhere: u16,
    /// Devices that were tried, one bit each, and the one that is tried now.
    tried: u8,
    device: Target,
    /// Blocks that were written meanwhile.
    disturbed: u16,
    /// Of these, the ones that were written before it was noted what is owed: their older bytes do not pay it.
    outdated: u16,
}

/// Blocks that are owed to the disk. A block leaves this once the disk has these bytes of it, or newer ones, durably.
#[derive(Default)]
struct Owed {
    /// The disk does not have them.
    left: BTreeMap<u32, u16>,
    /// The disk has them, but perhaps not durably.
    written: BTreeMap<u32, u16>,
    /// The same, covered by the flush that is under way.
    flushing: BTreeMap<u32, u16>,
}

impl Owed {
    fn is_empty(&self) -> bool {
        self.left.is_empty() && self.written.is_empty() && self.flushing.is_empty()
    }

    /// The disk has them, perhaps not durably.
    fn wrote(&mut self, page: u32, blocks: u16) {
        let left = self.left.get(&page).copied().unwrap_or(0) & blocks;
        take_from(&mut self.left, page, left);
        add_to(&mut self.written, page, left);
    }

    /// Nobody waits for these any more.
    fn forgive(&mut self, page: u32, blocks: u16) {
        for set in [&mut self.left, &mut self.written, &mut self.flushing] {
            take_from(set, page, blocks);
        }
    }
}

fn add_to(set: &mut BTreeMap<u32, u16>, page: u32, blocks: u16) {
    if blocks != 0 {
        *set.entry(page).or_default() |= blocks;
    }
}

fn take_from(set: &mut BTreeMap<u32, u16>, page: u32, blocks: u16) {
    if let Some(of) = set.get_mut(&page) {
        *of &= !blocks;
        if *of == 0 {
            set.remove(&page);
        }
    }
}

impl Cleaner {
    /// These blocks have become dirty.
    pub(super) fn dirtied(&mut self, page: u32, blocks: u16, now: Time) {
        let ages = &mut self.ages;
        self.dirty.entry(page).or_insert_with(|| ages.enter(now));
        self.forget(page, blocks);
        let replaced = self.broken_of(page) & blocks;
        if replaced != 0 {
            // What the disk has is older than what was lost: it needs the new bytes instead.
            take_from(&mut self.broken, page, replaced);
            self.owe(page, replaced);
        }
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
        take_from(&mut self.replaced, page, blocks);
    }

    /// These blocks are not in the cache any more, and the disk needs nothing of them.
    pub(super) fn dropped(&mut self, page: u32, blocks: u16) {
        self.forget(page, blocks);
        self.owed.forgive(page, blocks);
        take_from(&mut self.broken, page, blocks);
    }

    /// What the disk has of these blocks is not the newest, or they are not cached any more.
    pub(super) fn forget(&mut self, page: u32, blocks: u16) {
        let sets = [Some(&mut self.written), self.flushing.as_mut()];
        for set in sets.into_iter().flatten() {
            take_from(set, page, blocks);
        }
        if let Some(item) = self.items.get_mut(&page) {
            item.disturbed |= blocks;
        }
    }

    /// A page has no dirty block any more.
    pub(super) fn cleaned(&mut self, page: u32) {
        if let Some(epoch) = self.dirty.remove(&page) {
            self.ages.leave(epoch);
        }
        self.begun.remove(&page);
        self.fresh.remove(&page);
        self.wanted.remove(&page);
        self.broken.remove(&page);
    }

    /// The disk has durably what a page had when its cleaning began. If it is dirty still, it was written since then.
    fn renewed(&mut self, page: u32) {
        let Some(begun) = self.begun.remove(&page) else {
            return;
        };
        if self.broken_of(page) == 0
            && let Some(epoch) = self.dirty.get_mut(&page)
        {
            let new = self.ages.enter(begun);
            self.ages.leave(core::mem::replace(epoch, new));
        }
    }

    /// The disk has the newest bytes of these blocks, perhaps not durably.
    pub(super) fn wrote(&mut self, page: u32, blocks: u16) {
        add_to(&mut self.written, page, blocks);
        self.owed.wrote(page, blocks);
    }

    /// The disk has a version of these blocks that is not the newest one.
    fn wrote_older(&mut self, page: u32, blocks: u16) {
        self.owed.wrote(page, blocks);
    }

    /// Which of these blocks are owed, and not on the disk.
    pub(super) fn owes(&self, page: u32, blocks: u16) -> u16 {
        self.owed.left.get(&page).copied().unwrap_or(0) & blocks
    }

    /// The disk lacks what flash has of these blocks, or has something else: cleaning does not end before it has them.
    pub(super) fn owe(&mut self, page: u32, blocks: u16) {
        if self.all {
            self.owed.forgive(page, blocks);
            add_to(&mut self.owed.left, page, blocks);
        }
    }

    /// These blocks cannot be cleaned.
    fn breaks(&mut self, page: u32, blocks: u16) {
        add_to(&mut self.broken, page, blocks);
        self.owed.forgive(page, blocks);
    }

    fn broken_of(&self, page: u32) -> u16 {
        self.broken.get(&page).copied().unwrap_or(0)
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

    /// Whether this block cannot be cleaned now: its bytes are not as they were written, or the disk fails.
    pub(super) fn is_stuck(&self, page: u32, block: usize) -> bool {
        self.broken_of(page) >> block & 1 == 1 || self.retry_at.is_some()
    }

    /// Whether this page is being cleaned.
    pub(super) fn is_cleaning(&self, page: u32) -> bool {
        self.items.contains_key(&page)
    }

    /// Whether a page of the range is being cleaned.
    pub(super) fn overlaps(&self, start: u64, end: u64) -> bool {
        let pages = super::page_number(start / PAGE)..=super::page_number((end - 1) / PAGE);
        self.items.range(pages).next().is_some()
    }

    /// Dirty pages of a range.
    pub(super) fn dirty_between(&self, start: u64, end: u64) -> alloc::vec::Vec<u32> {
        let pages = super::page_number(start / PAGE)..=super::page_number((end - 1) / PAGE);
        self.dirty.range(pages).map(|(page, _)| *page).collect()
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

    /// Since when the disk lacks something.
    pub(super) fn oldest(&self) -> Option<Time> {
        self.ages.oldest()
    }

    /// Pages with dirty blocks that no device returned as they were written when they were to be cleaned.
    pub(super) fn unreadable_pages(&self) -> usize {
        self.broken.len()
    }

    /// How long it takes to clean everything, if that is known. It never ends while a page cannot be read.
    pub(super) fn time_to_clean(&self) -> Option<Span> {
        match self.broken.is_empty() {
            true => self.pace.time_of(self.dirty.len() as u64),
            false => None,
        }
    }

    /// So many pages have come to the disk.
    fn note_pace(&mut self, now: Time, pages: u64) {
        let is_busy = !self.items.is_empty() || self.flushing.is_some();
        self.pace.note(now, is_busy, pages);
    }

    /// A flush of the disk begins. Returns whether it covers blocks: one does at a time.
    pub(super) fn begin_flush(&mut self) -> bool {
        if self.flushing.is_some() || !self.has_written() {
            return false;
        }
        self.must_flush = false;
        self.flushing = Some(core::mem::take(&mut self.written));
        self.owed.flushing = core::mem::take(&mut self.owed.written);
        true
    }

    /// Whether a flush of the disk makes something clean.
    fn has_written(&self) -> bool {
        !self.written.is_empty() || !self.owed.written.is_empty()
    }

    /// The flush that is under way has ended. Returns what it covers.
    fn end_flush(&mut self, outcome: Outcome) -> BTreeMap<u32, u16> {
        let owed = core::mem::take(&mut self.owed.flushing);
        if outcome.is_err() {
            for (page, blocks) in owed {
                add_to(&mut self.owed.written, page, blocks);
            }
        }
        self.flushing.take().unwrap_or_default()
    }

    /// The next page that is cleaned, and how many there are.
    fn next_page(&self, only_owed: bool) -> Option<(u32, usize)> {
        match only_owed {
            true => {
                let pages = &self.owed.left;
                let next = pages.range(self.cursor..).next().or(pages.iter().next());
                next.map(|(page, _)| (*page, pages.len()))
            }
            false => {
                let next = self.dirty.range(self.cursor..).next();
                let next = next.or(self.dirty.first_key_value());
                next.map(|(page, _)| (*page, self.dirty.len()))
            }
        }
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
            cleaner.must_flush = true;
        }
        self.advance_cleaner(cx);
    }

    /// Cleans everything, and reports when that is done.
    pub(super) fn clean_all(&mut self, cx: &mut LayoutCx<'_>) {
        self.owe_dirty();
        self.cleaner.all = true;
        self.cleaner.is_paused = false;
        self.advance_cleaner(cx);
        self.cleaning_advanced(cx);
    }

    /// What is dirty now is owed to the disk. What guests write meanwhile is not: cleaning must have an end.
    fn owe_dirty(&mut self) {
        let mut owed = Owed::default();
        for page in self.cleaner.dirty.keys() {
            let Some(slot) = self.map.find(*page) else {
                continue;
            };
            let cleaner = &self.cleaner;
            let of = |set: Option<&BTreeMap<u32, u16>>| set.and_then(|set| set.get(page).copied());
            let dirty = self.map.masks(slot).1 & !cleaner.broken_of(*page);
            let written = dirty & of(Some(&cleaner.written)).unwrap_or(0);
            let flushing = dirty & of(cleaner.flushing.as_ref()).unwrap_or(0);
            add_to(&mut owed.written, *page, written);
            add_to(&mut owed.flushing, *page, flushing);
            add_to(&mut owed.left, *page, dirty & !written & !flushing);
        }
        self.cleaner.owed = owed;
        for item in self.cleaner.items.values_mut() {
            item.outdated = item.disturbed;
        }
    }

    /// Whether there is a reason to clean all that is dirty.
    fn must_clean(&self) -> bool {
        let cleaner = &self.cleaner;
        let pages = self.map.len() as usize;
        cleaner.pass > 0 || cleaner.dirty.len() * 10 > pages * HIGH
    }

    /// Whether so few slots have dirty pages that writes of others may add to them.
    pub(super) fn may_get_dirty(&self) -> bool {
        self.cleaner.dirty.len() * 10 < self.map.len() as usize * MOST
    }

    /// Whether there is a reason to clean something.
    fn cleans(&self) -> bool {
        self.cleaner.all && !self.cleaner.owed.left.is_empty() || self.must_clean()
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
        let spares_guests = cx.awaited(BACKING) > 0 && !self.cleaner.all && self.may_get_dirty();
        let together = match spares_guests {
            true => TOGETHER_BUSY,
            false => TOGETHER,
        };
        let (mut looked, mut passed_over) = (0, 0);
        while self.cleans() && self.cleaner.items.len() < together {
            let only_owed = !self.must_clean();
            let Some((page, pages)) = self.cleaner.next_page(only_owed) else {
                break;
            };
            looked += 1;
            if looked > pages {
                break;
            }
            self.cleaner.cursor = page.wrapping_add(1);
            let by_level = self.cleaner.pass == 0 && !self.cleaner.all;
            if by_level && passed_over < PASSED_OVER && self.is_used_often(page) {
                passed_over += 1;
                continue;
            }
            self.cleaner.pass = self.cleaner.pass.saturating_sub(1);
            let start = u64::from(page) * PAGE;
            let taken = self.cleaner.items.contains_key(&page)
                || self.is_fresh(page)
                // A page that guests write all the time is cleaned nevertheless if that is owed.
                || !only_owed && self.lock.is_held(start, start + PAGE);
            if !taken && !self.begin_cleaning(cx, page) {
                break;
            }
        }
        self.flush_written(cx);
    }

    /// Whether a page will soon be written again: what is cleaned of it is in vain.
    fn is_used_often(&self, page: u32) -> bool {
        self.map
            .find(page)
            .is_some_and(|slot| self.keeper.is_used_often(slot))
    }

    /// Flushes the disk once enough was written to it, or nothing else is to be done.
    fn flush_written(&mut self, cx: &mut LayoutCx<'_>) {
        let cleaner = &self.cleaner;
        if !cleaner.has_written() || cleaner.flushing.is_some() {
            return;
        }
        let ends = cleaner.items.is_empty()
            && (self.mode.is_write_back()
                || cleaner.must_flush
                || cleaner.all
                || self.shrinking.is_some()
                || self.must_clean());
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
        if !self.cleaner.fresh.is_empty() && (self.cleans() || !self.cleaner.wanted.is_empty()) {
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
        let skipped = self.cleaner.on_disk(page) | replaced | self.cleaner.broken_of(page);
        let blocks = self.map.masks(slot).1 & !skipped;
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
                begun: cx.now(),
                is_failed: false,
                one_by_one: false,
                bad: 0,
                bad_everywhere: blocks,
                tried: 0,
                device: BACKING,
                disturbed: 0,
                outdated: 0,
            },
        );
        self.cleaner.note_pace(cx.now(), 0);
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
        let (blocks, one_by_one) = (item.blocks, item.one_by_one);
        if blocks == 0 {
            return self.cleaning_ended(cx, page);
        }
        let Some(device) = self.reader(cx.loads, tried) else {
            return self.dirty_unreadable(cx, page);
        };
        self.item(page).bad = 0;
        let item = self.item(page);
        (item.open, item.device) = (1, device);
        let twin = self.map.twin(slot);
        for slot in core::iter::once(slot).chain(twin) {
            let valid = self.map.slot(slot).valid & blocks;
            let singles = blocks_of(valid)
                .map(|block| (block, 1))
                .filter(|_| one_by_one);
            for (first, count) in runs(valid).filter(|_| !one_by_one).chain(singles) {
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
                cx.issue(tag(CLEAN_READ, page, device) | super::aux(first, 0), sub);
            }
        }
        self.dirty_read(cx, page, (device, 0), Ok(()));
    }

    /// No device has all dirty blocks of a page as they were written. Those that the last one has are cleaned.
    fn dirty_unreadable(&mut self, cx: &mut LayoutCx<'_>, page: u32) {
        let item = self.item(page);
        if item.is_failed && !item.one_by_one {
            // Perhaps not all of a run is unreadable.
            (item.one_by_one, item.tried, item.bad_everywhere) = (true, 0, item.blocks);
            return self.read_dirty(cx, page);
        }
        item.is_failed = false;
        let broken = item.blocks & item.bad_everywhere;
        item.blocks &= !item.bad;
        let is_tried = item.tried != 0;
        if self.keeps_dirty {
            self.cleaner.breaks(page, broken);
            self.corrupt(cx, page);
        } else if self.is_writable() {
            // The disk has had every answered write.
            self.drop_blocks(cx, page, broken);
        }
        match is_tried {
            true => self.write_dirty(cx, page),
            false => self.cleaning_ended(cx, page),
        }
    }

    /// A device has read a run of a page's dirty blocks.
    pub(super) fn dirty_read(
        &mut self,
        cx: &mut LayoutCx<'_>,
        page: u32,
        (device, block): (Target, usize),
        outcome: Outcome,
    ) {
        let item = self.item(page);
        item.open -= 1;
        if outcome.is_err() {
            item.is_failed = true;
            item.bad |= match item.one_by_one {
                true => 1 << block,
                false => item.blocks,
            };
        }
        if item.open > 0 {
            return;
        }
        let (blocks, arena) = (item.blocks & !item.bad, item.arena);
        if blocks == 0 {
            return self.tried(cx, page);
        }
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
        if matters && item.checks[block] != super::check(sum) {
            item.bad |= 1 << block;
            self.corrupt_blocks += 1;
        }
        let item = self.item(page);
        if item.open > 0 {
            return;
        }
        match item.bad & !item.disturbed {
            0 => self.write_dirty(cx, page),
            _ => self.tried(cx, page),
        }
    }

    /// A device does not have all of a page's dirty blocks: the next one may.
    fn tried(&mut self, cx: &mut LayoutCx<'_>, page: u32) {
        let item = self.item(page);
        item.tried |= super::bit(item.device);
        item.bad_everywhere &= item.bad;
        self.read_dirty(cx, page);
    }

    fn write_dirty(&mut self, cx: &mut LayoutCx<'_>, page: u32) {
        let item = self.item(page);
        item.blocks &= !item.disturbed;
        item.is_failed = false;
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
        item.is_failed |= outcome.is_err();
        if item.open > 0 {
            return;
        }
        match item.is_failed {
            false => {
                let (blocks, disturbed) = (item.blocks, item.disturbed);
                let older = blocks & disturbed & !item.outdated;
                let begun = item.begun;
                self.cleaner.begun.entry(page).or_insert(begun);
                self.cleaner.wrote(page, blocks & !disturbed);
                self.cleaner.wrote_older(page, older);
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
        self.cleaner.note_pace(cx.now(), 1);
        self.unpin(cx, item.slot);
        self.resume_behind(cx);
        self.advance_cleaner(cx);
        self.cleaning_advanced(cx);
        self.go_through(cx);
    }

    /// A flush of the disk that covers written blocks has ended.
    pub(super) fn disk_flushed(&mut self, cx: &mut LayoutCx<'_>, outcome: Outcome) {
        let covered = self.cleaner.end_flush(outcome);
        self.cleaner.note_pace(cx.now(), 0);
        for (page, blocks) in covered {
            if outcome.is_err() {
                self.cleaner.wrote(page, blocks);
                continue;
            }
            let Some(slot) = self.map.find(page) else {
                continue;
            };
            self.map.clean(slot, blocks);
            match self.map.masks(slot).1 {
                0 => self.cleaner.cleaned(page),
                _ => self.cleaner.renewed(page),
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
        if !is_lost && cleaner.all && cleaner.owed.is_empty() {
            cleaner.all = false;
            let left = cleaner.broken.len() as u64;
            self.keeps_dirty &= self.mode.is_write_back() || left > 0;
            cx.notice(LayoutNotice::CacheCleaned { left });
        }
    }

    /// Dirty bytes of a page are not as they were written, on any device. A guest that reads it again and again is reported
    /// once in a while.
    pub(super) fn corrupt(&mut self, cx: &mut LayoutCx<'_>, page: u32) {
        let now = cx.now();
        let is_said = |said: Time| now < said + SAYS_CORRUPT;
        if self.state == State::Ready && !self.corrupt_said.is_some_and(is_said) {
            self.corrupt_said = Some(now);
            cx.notice(LayoutNotice::CacheCorrupt {
                offset: u64::from(page) * PAGE,
            });
        }
    }
}
