//! Write intent of a pool's disk on mirrored columns: which extents may differ between members after a crash.
//!
//! An extent is hot while it may be written: a record says so, durably, before the first write. One that was not written for
//! some seconds becomes cold: what was under way has ended and was flushed, and then the record forgets it. After a crash the
//! hot extents are made equal before the disk opens. Records are in the extents that have headers, one for all grants whose
//! headers are there.
//!
//! # Always true
//! - W1 an extent of a mirrored column is hot in a durable record before it is written, until a flush of all members that began
//!   after its last write has ended
//! - an extent that is becoming cold gets no write before it is hot again
//! - of the two places of a record the newer valid one counts, and the next version goes over the other
//!
//! # Picture
//! ```text
//!   cold ──write──> wanted ──record──> hot ──quiet──> revoked ──fence, flush──> record without it: cold
//! ```
//!
//! # Source
//! md's write-intent bitmap, as the mirror layout has it.

use super::blocks::Owner;
use super::commit::Waiter;
use super::ops::Wait;
use super::records::{Space, Table};
use super::{EXTENTS_MAX, INTENT, NONE, Pool};
use crate::block::{BLOCK, Reader, Unreadable, Writer};
use crate::layout::LayoutCx;
use crate::request::Outcome;
use crate::units::{Span, Time};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The most hot extents of a disk: so much is read and written when it opens after a crash. Origin: as many regions as a
/// mirror has, 1 GiB.
const HOT_MAX: u32 = 1024;
/// One of so many hot extents becomes cold when there are as many as may be. Origin: chosen.
const PART: u32 = 4;
/// An extent becomes cold after some time without a write: at least once, at most twice this. Origin: that of a mirror.
const COOL_AFTER: Span = Span::from_secs(5);

const MAGIC: [u8; 8] = *b"TIDEPWIL";
const VERSION: u16 = 1;
const MASKS_AT: usize = 96;
/// The most grants of a record: as many masks as fit.
const MASKS_MAX: usize = (BLOCK - 4 - MASKS_AT) / 8;

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Whose it is, with the life of the grant that it is in.
    pub owner: Owner,
    /// Each record of a group of grants has a higher one.
    pub sequence: u64,
    /// The index of the grant that it is in.
    pub index: u32,
    /// The hot extents of that grant and those that follow it, one bit each.
    pub hot: Vec<u64>,
}

impl Intent {
    /// The block.
    ///
    /// # Panics
    /// With more grants than fit.
    pub fn encode(&self) -> Box<[u8; BLOCK]> {
        assert!(self.hot.len() <= MASKS_MAX, "the geometry bounds them");
        let mut out = Writer::new(MAGIC, VERSION);
        out.go_to(16);
        out.put(&self.owner.pool);
        out.put(&self.owner.disk);
        out.put(&self.owner.life.to_le_bytes());
        out.put(&self.sequence.to_le_bytes());
        out.put(&self.index.to_le_bytes());
        let count = u32::try_from(self.hot.len()).expect("bounded above");
        out.put(&count.to_le_bytes());
        out.go_to(MASKS_AT);
        for mask in &self.hot {
            out.put(&mask.to_le_bytes());
        }
        Box::new(out.finish())
    }

    /// The record in a block.
    ///
    /// # Errors
    /// The bytes are no record of a version that is known, or contradict themselves.
    pub fn decode(bytes: &[u8]) -> Result<Intent, Unreadable> {
        let mut from = Reader::open(bytes, MAGIC, VERSION)?;
        from.go_to(16);
        let owner = Owner {
            pool: from.take(),
            disk: from.take(),
            life: u64::from_le_bytes(from.take()),
        };
        let sequence = u64::from_le_bytes(from.take());
        let index = u32::from_le_bytes(from.take());
        let count = usize::try_from(u32::from_le_bytes(from.take())).unwrap_or(usize::MAX);
        if count > MASKS_MAX || sequence == u64::MAX {
            return Err(Unreadable::Torn);
        }
        from.go_to(MASKS_AT);
        let mask = |_| u64::from_le_bytes(from.take());
        Ok(Intent {
            owner,
            sequence,
            index,
            hot: (0..count).map(mask).collect(),
        })
    }

    /// Whether a block names this owner, whatever the checksum says.
    pub(super) fn names(owner: &Owner, bytes: &[u8]) -> bool {
        owner.is_named_with(MAGIC, bytes)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct IntentState {
    /// Whether any column has several members.
    pub(super) is_used: bool,
    /// By the number of the grant in the table.
    hot: BTreeMap<u32, Bits>,
    /// Extents that are wanted.
    count: u32,
    /// By the index of the grant that has the record.
    groups: BTreeMap<u32, Group>,
    cooling: Option<Cooling>,
    /// When idle extents become cold.
    pub(super) cool_at: Option<Time>,
}

/// The extents of one grant, one bit each.
#[derive(Clone, Copy, Debug, Default)]
struct Bits {
    /// Those that the next record has.
    wanted: u64,
    /// Those that may be written: a durable record has them.
    hot: u64,
    /// Those that were written since it was last looked.
    used: u64,
}

/// The record of some grants.
#[derive(Default)]
struct Group {
    sequence: u64,
    /// The place where the next one goes.
    next_place: u8,
    is_changed: bool,
    /// What is being written, by the number of the grant.
    writing: Option<Vec<(u32, u64)>>,
}

/// Extents that become cold.
struct Cooling {
    extents: Vec<(u32, u64)>,
    fence: u64,
    is_committing: bool,
}

impl IntentState {
    /// Nothing is hot.
    pub(super) fn new(is_used: bool) -> IntentState {
        IntentState {
            is_used,
            ..IntentState::default()
        }
    }
}

impl Pool {
    /// Whether a place may be written. Otherwise it is hot once the next record is durable.
    pub(super) fn heat(&mut self, place: u32) -> bool {
        if !self.intent.is_used || Table::is_mark(place) {
            return true;
        }
        let number = place / EXTENTS_MAX;
        let bit = 1 << (place % EXTENTS_MAX);
        let chunk = self.table.chunk(number);
        let (index, copies) = (chunk.index, self.setup.copies(chunk.target));
        if copies == 1 {
            return true;
        }
        let bits = self.intent.hot.entry(number).or_default();
        bits.used |= bit;
        if bits.hot & bit == 0 && bits.wanted & bit == 0 && self.intent.count < HOT_MAX {
            bits.wanted |= bit;
            self.intent.count += 1;
            let group = self.setup.geometry.header_of(index);
            self.intent.groups.entry(group).or_default().is_changed = true;
        }
        bits.hot & bit != 0
    }

    /// The same of all places that the current generation has of an extent of the disk.
    pub(super) fn heat_extent(&mut self, extent: u32) -> bool {
        if !self.intent.is_used {
            return true;
        }
        let current = self.current();
        let own = self.table.chain(extent);
        let own = own.filter(|place| self.table.at(*place).generation == current);
        let own: Vec<u32> = own.collect();
        own.into_iter().all(|place| self.heat(place))
    }

    /// The same of the place that a write goes to as it is.
    #[inline]
    pub(super) fn heat_at(&mut self, offset: u64) -> bool {
        if !self.intent.is_used {
            return true;
        }
        let first = self.table.first(self.extent_at(offset));
        first.is_none_or(|place| self.heat(place))
    }

    /// Writes the records that have changed.
    pub(super) fn write_intents(&mut self, cx: &mut LayoutCx<'_>) {
        if !self.intent.is_used || self.is_moving_home() {
            return;
        }
        let waiting = self.waiting.of(Wait::Intent);
        if waiting > 0 && self.intent.count >= HOT_MAX {
            self.begin_cooling(cx);
        }
        let changed = self.intent.groups.iter();
        let changed = changed.filter(|(_, it)| it.is_changed && it.writing.is_none());
        let changed: Vec<u32> = changed.map(|(index, _)| *index).collect();
        for index in changed {
            self.write_intent(cx, index);
        }
    }

    fn write_intent(&mut self, cx: &mut LayoutCx<'_>, index: u32) {
        let with = self.own.get(index as usize).copied().unwrap_or(NONE);
        let Some(chunk) = self.table.get(with) else {
            return;
        };
        let (life, target, at) = (chunk.grant.life, chunk.target, chunk.at);
        let geometry = self.setup.geometry;
        let (record, written) = self.intent_now(index, life);
        let group = self.intent.groups.entry(index).or_default();
        group.is_changed = false;
        group.writing = Some(written);
        let at = at + geometry.intent_at(group.next_place);
        cx.write_block(INTENT | u64::from(index), target, at, record.encode());
    }

    /// The next record of some grants, in a grant of this life; and what it says, by the numbers of the grants.
    fn intent_now(&mut self, index: u32, life: u64) -> (Intent, Vec<(u32, u64)>) {
        let geometry = self.setup.geometry;
        let indexes = index..index + geometry.headers;
        let mut written = Vec::new();
        let mask = |index: u32| {
            let number = self.own.get(index as usize).copied().unwrap_or(NONE);
            let wanted = self.intent.hot.get(&number).map_or(0, |bits| bits.wanted);
            if wanted != 0 {
                written.push((number, wanted));
            }
            wanted
        };
        let hot: Vec<u64> = indexes.map(mask).collect();
        let owner = self.owner(life);
        let group = self.intent.groups.entry(index).or_default();
        group.sequence += 1;
        let record = Intent {
            owner,
            sequence: group.sequence,
            index,
            hot,
        };
        (record, written)
    }

    /// Whether a record is being written.
    pub(super) fn is_writing_intent(&self) -> bool {
        let mut groups = self.intent.groups.values();
        groups.any(|group| group.writing.is_some())
    }

    /// Writes a record to the grant that its group is to be in. Returns whether there is any.
    pub(super) fn copy_intent(
        &mut self,
        cx: &mut LayoutCx<'_>,
        tag: u64,
        index: u32,
        to: u32,
    ) -> bool {
        if !self.intent.is_used {
            return false;
        }
        let chunk = self.table.chunk(to);
        let (life, target, at) = (chunk.grant.life, chunk.target, chunk.at);
        let (record, _) = self.intent_now(index, life);
        let next_place = self.intent.groups.entry(index).or_default().next_place;
        let at = at + self.setup.geometry.intent_at(next_place);
        cx.write_block(tag, target, at, record.encode());
        true
    }

    /// The group is where such a record was written.
    pub(super) fn intent_copied(&mut self, index: u32) {
        if self.intent.is_used {
            let group = self.intent.groups.entry(index).or_default();
            group.next_place = 1 - group.next_place;
            group.is_changed = true;
        }
    }

    /// A record was written.
    pub(super) fn intent_written(&mut self, cx: &mut LayoutCx<'_>, index: u32, outcome: Outcome) {
        let Some(group) = self.intent.groups.get_mut(&index) else {
            return;
        };
        let written = group.writing.take().unwrap_or_default();
        if let Err(fault) = outcome {
            group.is_changed = true;
            for op in self.waiting.take(Wait::Intent) {
                self.fail(cx, op, fault);
            }
            self.intent.cool_at.get_or_insert(cx.now() + COOL_AFTER);
            return;
        }
        group.next_place = 1 - group.next_place;
        let cooling = self.intent.cooling.as_ref();
        for (number, mask) in written {
            let revoked = cooling.map_or(0, |cooling| cooling.of(number));
            if let Some(bits) = self.intent.hot.get_mut(&number) {
                bits.hot |= mask & bits.wanted & !revoked;
            }
        }
        if !self.intent.hot.is_empty() && !self.paused {
            self.intent.cool_at.get_or_insert(cx.now() + COOL_AFTER);
        }
        self.retry(cx, Wait::Intent);
        self.go_on(cx);
    }

    /// Some time has passed: what was not written becomes cold.
    pub(super) fn cool(&mut self, cx: &mut LayoutCx<'_>) {
        if !self.intent.hot.is_empty() {
            self.begin_cooling(cx);
            self.intent.cool_at.get_or_insert(cx.now() + COOL_AFTER);
        }
    }

    /// Chooses what becomes cold: what is idle, or a part of all if there are as many as may be.
    fn begin_cooling(&mut self, cx: &mut LayoutCx<'_>) {
        if self.intent.cooling.is_some() || self.paused || !self.is_open() {
            return;
        }
        let is_crowded = self.intent.count >= HOT_MAX;
        let mut most = if is_crowded { HOT_MAX / PART } else { u32::MAX };
        let mut extents = Vec::new();
        let mut all = core::mem::take(&mut self.intent.hot);
        for (number, bits) in &mut all {
            let mut chosen = bits.hot & if is_crowded { u64::MAX } else { !bits.used };
            bits.used = 0;
            // What is zeroed ahead stays: its first write shall not wait.
            for nth in 0..EXTENTS_MAX {
                let is_zero = self.table.get(*number).is_some() && self.is_zeroed(*number, nth);
                if chosen >> nth & 1 == 1 && (is_zero || most == 0) {
                    chosen &= !(1 << nth);
                } else {
                    most -= u32::from(chosen >> nth & 1 == 1);
                }
            }
            if chosen != 0 {
                bits.hot &= !chosen;
                extents.push((*number, chosen));
            }
        }
        self.intent.hot = all;
        if !extents.is_empty() {
            let fence = self.space.next_fence(cx);
            self.intent.cooling = Some(Cooling {
                extents,
                fence,
                is_committing: false,
            });
        }
    }

    fn is_zeroed(&self, number: u32, nth: u32) -> bool {
        let extents = self.setup.geometry.extents;
        let place = number * EXTENTS_MAX + nth;
        let space = (nth < extents).then(|| self.table.at(place).space());
        matches!(space, Some(Some(Space::Zeroed | Space::Zeroing)))
    }

    /// Goes on with what becomes cold.
    pub(super) fn cool_on(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(cooling) = &mut self.intent.cooling else {
            return;
        };
        if cooling.is_committing {
            return;
        }
        if !self.space.is_fenced(cooling.fence) {
            self.space.next_fence(cx);
            return;
        }
        cooling.is_committing = true;
        self.waiters.push(Waiter::Intent);
        self.begin_commit(cx);
    }

    /// All writes of what becomes cold are durable, or could not be made so.
    pub(super) fn intent_committed(&mut self, cx: &mut LayoutCx<'_>, outcome: Outcome) {
        let Some(cooling) = self.intent.cooling.take_if(|it| it.is_committing) else {
            return;
        };
        for (number, mask) in cooling.extents {
            let Some(bits) = self.intent.hot.get_mut(&number) else {
                continue;
            };
            if outcome.is_err() {
                // The record still has them.
                bits.hot |= mask;
                continue;
            }
            bits.wanted &= !mask;
            self.intent.count -= mask.count_ones();
            if bits.wanted == 0 {
                self.intent.hot.remove(&number);
            }
            if let Some(chunk) = self.table.get(number) {
                let group = self.setup.geometry.header_of(chunk.index);
                self.intent.groups.entry(group).or_default().is_changed = true;
            }
        }
        self.retry(cx, Wait::Intent);
        self.write_intents(cx);
    }

    /// The disk is being detached, and nothing is under way: everything becomes cold once it was flushed.
    pub(super) fn cool_all(&mut self) {
        if self.intent.hot.is_empty() || self.intent.cooling.is_some() || !self.is_open() {
            return;
        }
        let mut extents = Vec::new();
        for (number, bits) in &mut self.intent.hot {
            bits.hot = 0;
            extents.push((*number, bits.wanted));
        }
        self.intent.cooling = Some(Cooling {
            extents,
            fence: 0,
            is_committing: true,
        });
        self.waiters.push(Waiter::Intent);
    }

    /// A grant was given back.
    pub(super) fn forget_intent(&mut self, number: u32) {
        if let Some(bits) = self.intent.hot.remove(&number) {
            self.intent.count -= bits.wanted.count_ones();
            if let Some(cooling) = &mut self.intent.cooling {
                cooling.extents.retain(|(other, _)| *other != number);
            }
            for group in self.intent.groups.values_mut() {
                let writing = group.writing.iter_mut();
                writing.for_each(|it| it.retain(|(other, _)| *other != number));
            }
        }
    }

    /// A record was read from a member when the disk was opened. None: nothing is there. What cannot be read is all hot.
    pub(super) fn load_intent(
        &mut self,
        index: u32,
        found: Option<(Intent, u8)>,
        is_damaged: bool,
    ) {
        let geometry = self.setup.geometry;
        let group = self.intent.groups.entry(index).or_default();
        let masks = match found {
            Some((record, place)) => {
                (group.sequence, group.next_place) = (record.sequence, 1 - place);
                record.hot
            }
            None if is_damaged => alloc::vec![u64::MAX; geometry.headers as usize],
            None => Vec::new(),
        };
        let extents = u64::MAX >> (64 - geometry.extents.min(64));
        for (index, mask) in (index..).zip(masks) {
            let number = self.own.get(index as usize).copied().unwrap_or(NONE);
            let wanted = mask & extents;
            if wanted != 0 && self.table.get(number).is_some() {
                self.intent.count += wanted.count_ones();
                let bits = Bits {
                    wanted,
                    hot: if is_damaged { 0 } else { wanted },
                    used: 0,
                };
                self.intent.hot.insert(number, bits);
            }
        }
        if is_damaged {
            self.intent.groups.entry(index).or_default().is_changed = true;
        }
    }

    /// The places that are hot.
    pub(super) fn hot_places(&self) -> Vec<u32> {
        let mut places = Vec::new();
        for (number, bits) in &self.intent.hot {
            let set = (0..EXTENTS_MAX).filter(|nth| bits.wanted >> nth & 1 == 1);
            places.extend(set.map(|nth| number * EXTENTS_MAX + nth));
        }
        places
    }

    /// Records of the disk may be in the extents with headers: the indexes of these grants.
    pub(super) fn intent_indexes(&self) -> Vec<u32> {
        let geometry = &self.setup.geometry;
        let own = (0..).zip(&self.own).filter(|(_, number)| **number != NONE);
        let own = own.map(|(index, _)| index);
        own.filter(|index| geometry.has_headers(*index)).collect()
    }

    /// How many extents are hot.
    pub(super) fn hot_extents(&self) -> u32 {
        self.intent.count
    }

    /// After opening, hot extents become cold when nothing is written.
    pub(super) fn plan_cooling(&mut self, cx: &mut LayoutCx<'_>) {
        if !self.intent.hot.is_empty() {
            self.intent.cool_at = Some(cx.now() + COOL_AFTER);
        }
    }
}

impl Cooling {
    /// What of a grant becomes cold.
    fn of(&self, number: u32) -> u64 {
        let mut all = self.extents.iter();
        all.find(|(other, _)| *other == number)
            .map_or(0, |(_, mask)| *mask)
    }
}
