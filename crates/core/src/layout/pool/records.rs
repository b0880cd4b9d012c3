//! The records of a pool's disk: which extent of the disk is where, which generation wrote it, and what of it is seen.
//!
//! A record stands at its place: an extent of a grant, or a mark that hides what is older and has no place. The records of one
//! extent of the disk form a chain. Those that the disk sees something of come first, so a read looks at 16 at most.
//!
//! # Always true
//! - the sub-blocks that are seen of the records of a chain are disjoint
//! - in a chain no record that is not seen comes before one that is
//! - places of one extent and one generation have no sub-block in common
//!
//! # Picture
//! ```text
//!   index ──> record (now, 0b0011) ──> record (snapshot, 0b1100) ──> record (older, nothing is seen)
//! ```

use super::forest::Forest;
use super::index::{Index, NONE};
use super::setup::{EXTENTS_MAX, Grant};
use crate::layout::Target;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The most sources of one extent: each has a sub-block at least.
const SOURCES_MAX: usize = super::SUB_BLOCKS as usize;

/// Places from here on are marks.
const MARKS: u32 = 1 << 31;

/// Sub-blocks that the place does not have may not be zeroes.
pub(super) const USED_BEFORE: u16 = 1;
/// The record moves to another place: writes of guests go to both.
pub(super) const MOVING: u16 = 2;

/// One record. `extent` is [`NONE`] if the place is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Which extent of the disk.
    pub(super) extent: u32,
    /// The next one of the chain, or [`NONE`].
    next: u32,
    /// The generation, by its place in the [`Forest`]. Of a free place: its [`Space`].
    pub(super) generation: u16,
    pub(super) flags: u16,
    /// The sub-blocks that it has, one bit each.
    pub(super) bits: u16,
    /// Those of them that the disk sees now.
    pub(super) seen: u16,
}

/// The state of a place that has nothing of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    /// It must be zeroed first.
    Free,
    /// That is under way.
    Zeroing,
    /// It reads as zeroes.
    Zeroed,
    /// It is free once that is durable, and nothing is under way there.
    Releasing,
    /// It has headers.
    Metadata,
    /// It gets what is at another place.
    Moving,
}

impl Record {
    const fn free(space: Space) -> Record {
        Record {
            extent: NONE,
            next: NONE,
            generation: space as u16,
            flags: 0,
            bits: 0,
            seen: 0,
        }
    }

    /// Its state, if it is free.
    pub(super) fn space(&self) -> Option<Space> {
        const ALL: [Space; 6] = [
            Space::Free,
            Space::Zeroing,
            Space::Zeroed,
            Space::Releasing,
            Space::Metadata,
            Space::Moving,
        ];
        let space = ALL.into_iter().find(|it| *it as u16 == self.generation);
        space.filter(|_| self.extent == NONE)
    }
}

/// A grant as the table knows it: its records, and how far its header is.
pub(super) struct Chunk {
    /// 0: the disk itself; otherwise an ancestor.
    pub(super) owner: u8,
    /// The index of the grant.
    pub(super) index: u32,
    pub(super) grant: Grant,
    pub(super) target: Target,
    /// Where its first extent is on its member, in bytes.
    pub(super) at: u64,
    /// How many extents it has.
    extents: u32,
    /// Its marks.
    pub(super) marks: Vec<u32>,
    /// Extents that are [`Space::Free`].
    pub(super) free: u32,
    /// Whether it is among those with free extents.
    pub(super) is_listed: bool,
    /// Whether it gets nothing new. Its free extents do not count.
    pub(super) is_closed: bool,
    /// Extents that have data.
    pub(super) mapped: u32,
    pub(super) header: HeaderState,
}

/// How far the header of a grant is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HeaderState {
    /// The last sequence that was used.
    pub(super) sequence: u64,
    /// The place where the next one goes. The newest valid one is at the other place. Until there is any it is place 0,
    /// however often that is torn.
    pub(super) next_place: u8,
    /// How often what it should say has changed.
    pub(super) changed: u64,
    /// How much of that is durable.
    pub(super) written: u64,
    /// Whether it is among those that the next commit writes.
    pub(super) is_listed: bool,
}

impl HeaderState {
    pub(super) fn is_dirty(&self) -> bool {
        self.changed != self.written
    }
}

struct Mark {
    record: Record,
    chunk: u32,
}

/// The records of a grant's extents: those that the grant has come first.
type Records = Box<[Record; EXTENTS_MAX as usize]>;

/// See the module.
pub(super) struct Table {
    index: Index,
    /// By the number of the grant. Apart from the rest of it, because each lookup is here.
    records: Vec<Option<Records>>,
    chunks: Vec<Option<Chunk>>,
    free_chunks: Vec<u32>,
    marks: Vec<Mark>,
    free_marks: Vec<u32>,
    /// Grants whose headers are to be written again.
    dirty: Vec<u32>,
    /// Places of the disk that are [`Space::Free`].
    free: u64,
    /// The chain that is being ordered.
    scratch: Vec<u32>,
}

#[inline(always)]
fn record<'a>(records: &'a [Option<Records>], marks: &'a [Mark], place: u32) -> &'a Record {
    if place & MARKS != 0 {
        return &marks[(place & !MARKS) as usize].record;
    }
    let of_grant = records[(place / EXTENTS_MAX) as usize].as_ref();
    let of_grant = of_grant.expect("a record names a grant that the disk has");
    &of_grant[(place % EXTENTS_MAX) as usize]
}

impl Table {
    pub(super) fn new(key: u64) -> Table {
        Table {
            index: Index::new(key),
            records: Vec::new(),
            chunks: Vec::new(),
            free_chunks: Vec::new(),
            marks: Vec::new(),
            free_marks: Vec::new(),
            dirty: Vec::new(),
            free: 0,
            scratch: Vec::new(),
        }
    }

    /// Whether a place is that of a mark.
    #[inline]
    pub(super) fn is_mark(place: u32) -> bool {
        place & MARKS != 0
    }

    #[inline]
    pub(super) fn at(&self, place: u32) -> &Record {
        record(&self.records, &self.marks, place)
    }

    fn at_mut(&mut self, place: u32) -> &mut Record {
        if place & MARKS != 0 {
            return &mut self.marks[(place & !MARKS) as usize].record;
        }
        let of_grant = self.records[(place / EXTENTS_MAX) as usize].as_mut();
        let of_grant = of_grant.expect("a record names a grant that the disk has");
        &mut of_grant[(place % EXTENTS_MAX) as usize]
    }

    /// The grant that has a place, or its mark.
    #[inline]
    pub(super) fn chunk_of(&self, place: u32) -> u32 {
        match place & MARKS {
            0 => place / EXTENTS_MAX,
            _ => self.marks[(place & !MARKS) as usize].chunk,
        }
    }

    /// A grant.
    ///
    /// # Panics
    /// If the disk does not have it.
    #[inline]
    pub(super) fn chunk(&self, number: u32) -> &Chunk {
        let chunk = self.chunks[number as usize].as_ref();
        chunk.expect("a grant is used until it is removed")
    }

    /// The same, to change it.
    ///
    /// # Panics
    /// If the disk does not have it.
    pub(super) fn chunk_mut(&mut self, number: u32) -> &mut Chunk {
        let chunk = self.chunks[number as usize].as_mut();
        chunk.expect("a grant is used until it is removed")
    }

    /// A grant, if the disk has it.
    pub(super) fn get(&self, number: u32) -> Option<&Chunk> {
        self.chunks.get(number as usize)?.as_ref()
    }

    /// All grants, with ancestors' ones.
    pub(super) fn chunks(&self) -> impl Iterator<Item = (u32, &Chunk)> {
        let chunks = (0..).zip(&self.chunks);
        chunks.filter_map(|(number, chunk)| chunk.as_ref().map(|chunk| (number, chunk)))
    }

    /// The same, from this number on.
    pub(super) fn chunks_from(&self, from: u32) -> impl Iterator<Item = (u32, &Chunk)> {
        let chunks = self.chunks.get(from as usize..).unwrap_or_default();
        let chunks = (from..).zip(chunks);
        chunks.filter_map(|(number, chunk)| chunk.as_ref().map(|chunk| (number, chunk)))
    }

    /// One more than the highest number of a grant.
    pub(super) fn chunks_end(&self) -> u32 {
        u32::try_from(self.chunks.len()).expect("grants are bounded")
    }

    /// Adds a grant with so many extents. Returns its number.
    pub(super) fn add_chunk(&mut self, add: NewChunk) -> u32 {
        let mut records = Box::new([Record::free(Space::Free); EXTENTS_MAX as usize]);
        if add.has_headers {
            records[0] = Record::free(Space::Metadata);
        }
        let chunk = Chunk {
            owner: add.owner,
            index: add.index,
            grant: add.grant,
            target: add.target,
            at: add.at,
            extents: add.extents,
            marks: Vec::new(),
            free: match add.owner {
                0 => add.extents - u32::from(add.has_headers),
                _ => 0,
            },
            is_listed: false,
            is_closed: false,
            mapped: 0,
            header: HeaderState::default(),
        };
        self.free += u64::from(chunk.free);
        match self.free_chunks.pop() {
            Some(number) => {
                self.chunks[number as usize] = Some(chunk);
                self.records[number as usize] = Some(records);
                number
            }
            None => {
                if self.chunks.len() == self.chunks.capacity() {
                    // A quarter more, not twice as many: there are many of them.
                    let more = (self.chunks.len() / 4).max(8);
                    self.chunks.reserve_exact(more);
                    self.records.reserve_exact(more);
                }
                self.chunks.push(Some(chunk));
                self.records.push(Some(records));
                self.chunks_end() - 1
            }
        }
    }

    /// Removes a grant in which nothing is.
    pub(super) fn remove_chunk(&mut self, number: u32) -> Chunk {
        let chunk = self.chunks[number as usize].take();
        let chunk = chunk.expect("a grant is removed once");
        self.records[number as usize] = None;
        self.free_chunks.push(number);
        if !chunk.is_closed {
            self.free -= u64::from(chunk.free);
        }
        chunk
    }

    /// A grant of the disk gets nothing new from now on, or does again.
    pub(super) fn close(&mut self, number: u32, closes: bool) {
        let chunk = self.chunk_mut(number);
        let free = u64::from(chunk.free);
        match (core::mem::replace(&mut chunk.is_closed, closes), closes) {
            (false, true) => self.free -= free,
            (true, false) => self.free += free,
            _ => {}
        }
    }

    /// Two grants in which nothing is get each other's index, and the header of it.
    pub(super) fn exchange(&mut self, one: u32, other: u32) {
        let [a, b] = [one, other].map(|it| {
            let chunk = self.chunk(it);
            assert!(!chunk.header.is_dirty(), "nothing of it is to be written");
            (chunk.index, chunk.header)
        });
        for (number, (index, header)) in [(one, b), (other, a)] {
            let chunk = self.chunk_mut(number);
            (chunk.index, chunk.header) = (index, header);
        }
    }

    /// Whether a record moves.
    pub(super) fn set_moving(&mut self, place: u32, moves: bool) {
        let record = self.at_mut(place);
        match moves {
            true => record.flags |= MOVING,
            false => record.flags &= !MOVING,
        }
    }

    /// What was at one place is at another one, and what the disk sees of it is the same.
    pub(super) fn swap(&mut self, from: u32, to: u32) {
        let mut record = *self.at(from);
        record.flags &= !MOVING;
        match self.first(record.extent) {
            Some(first) if first == from => self.index.replace(record.extent, from, to),
            _ => {
                let before = self
                    .chain(record.extent)
                    .find(|it| self.at(*it).next == from);
                let before = before.expect("the chain has this record");
                self.at_mut(before).next = to;
            }
        }
        *self.at_mut(to) = record;
        *self.at_mut(from) = Record::free(Space::Releasing);
        self.chunk_mut(to / EXTENTS_MAX).mapped += 1;
        self.chunk_mut(from / EXTENTS_MAX).mapped -= 1;
    }

    /// A mark is in the header of another grant.
    pub(super) fn move_mark(&mut self, mark: u32, to: u32) {
        let from = core::mem::replace(&mut self.marks[(mark & !MARKS) as usize].chunk, to);
        self.chunk_mut(from).marks.retain(|it| *it != mark);
        self.chunk_mut(to).marks.push(mark);
    }

    /// The extents of a grant.
    pub(super) fn records(&self, number: u32) -> impl Iterator<Item = (u32, &Record)> {
        let extents = self.chunk(number).extents as usize;
        let records = self.records[number as usize].iter();
        let records = records.flat_map(move |of_grant| &of_grant[..extents]);
        (number * EXTENTS_MAX..).zip(records)
    }

    /// A place that has nothing gets another state.
    pub(super) fn set_space(&mut self, place: u32, space: Space) {
        let was = self.at(place).space();
        assert!(was.is_some(), "what is in use has no such state");
        *self.at_mut(place) = Record::free(space);
        self.count_free(place, was == Some(Space::Free), space == Space::Free);
    }

    /// A place of the disk was free, or is.
    fn count_free(&mut self, place: u32, was: bool, is: bool) {
        let chunk = self.chunk_mut(place / EXTENTS_MAX);
        if chunk.owner == 0 {
            chunk.free = chunk.free + u32::from(is) - u32::from(was);
            if !chunk.is_closed {
                self.free = self.free + u64::from(is) - u64::from(was);
            }
        }
    }

    /// Places of the disk that are [`Space::Free`].
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// What the header of a place's grant should say has changed.
    pub(super) fn touch(&mut self, place: u32) {
        self.touch_chunk(self.chunk_of(place));
    }

    /// The same, by the grant.
    pub(super) fn touch_chunk(&mut self, number: u32) {
        let header = &mut self.chunk_mut(number).header;
        header.changed += 1;
        if !core::mem::replace(&mut header.is_listed, true) {
            self.dirty.push(number);
        }
    }

    /// Grants whose headers are to be written again.
    pub(super) fn dirty(&self) -> usize {
        self.dirty.len()
    }

    /// Takes them out.
    pub(super) fn take_dirty(&mut self) -> Vec<u32> {
        let dirty = core::mem::take(&mut self.dirty);
        for number in &dirty {
            self.chunk_mut(*number).header.is_listed = false;
        }
        dirty
    }

    /// A header was not written: it is to be written again.
    pub(super) fn list_again(&mut self, number: u32) {
        let header = &mut self.chunk_mut(number).header;
        if !core::mem::replace(&mut header.is_listed, true) {
            self.dirty.push(number);
        }
    }

    /// The first record of an extent.
    #[inline]
    pub(super) fn first(&self, extent: u32) -> Option<u32> {
        self.first_record(extent).map(|(place, _)| place)
    }

    /// The first record of an extent, with its place.
    #[inline(always)]
    pub(super) fn first_record(&self, extent: u32) -> Option<(u32, &Record)> {
        let (records, marks) = (&self.records[..], &self.marks[..]);
        self.index.find(extent, |place| {
            let record = record(records, marks, place);
            (record.extent == extent).then_some(record)
        })
    }

    /// The records of an extent: those that are seen come first.
    pub(super) fn chain(&self, extent: u32) -> impl Iterator<Item = u32> + '_ {
        let first = self.first(extent);
        core::iter::successors(first, |place| {
            let next = self.at(*place).next;
            (next != NONE).then_some(next)
        })
    }

    /// The place that has a sub-block, which may be a mark.
    #[inline]
    pub(super) fn source(&self, extent: u32, sub_block: u32) -> Option<u32> {
        let mut place = self.first(extent)?;
        loop {
            let record = self.at(place);
            if record.seen >> sub_block & 1 == 1 {
                return Some(place);
            }
            if record.seen == 0 || record.next == NONE {
                return None;
            }
            place = record.next;
        }
    }

    /// The extents that have a record.
    pub(super) fn extents(&self) -> impl Iterator<Item = u32> + '_ {
        self.index.iter().map(|place| self.at(place).extent)
    }

    /// A place gets a record, which is not ordered yet.
    pub(super) fn put(&mut self, place: u32, extent: u32, generation: u16, bits: u16, flags: u16) {
        if place & MARKS == 0 {
            let was = self.at(place).space();
            self.chunk_mut(place / EXTENTS_MAX).mapped += 1;
            self.count_free(place, was == Some(Space::Free), false);
        }
        *self.at_mut(place) = Record {
            extent,
            next: NONE,
            generation,
            flags,
            bits,
            seen: 0,
        };
        self.link_after_seen(place);
    }

    /// A record gets more sub-blocks, which the disk sees from now on.
    pub(super) fn claim(&mut self, place: u32, bits: u16) {
        let extent = self.at(place).extent;
        let mut gone = [NONE; SOURCES_MAX];
        let mut count = 0;
        let mut at = self.first(extent).unwrap_or(NONE);
        // The place itself may be anywhere: a new one is first, and sees nothing yet.
        while at != NONE && (self.at(at).seen != 0 || at == place) {
            let next = self.at(at).next;
            let record = self.at_mut(at);
            if at == place {
                record.bits |= bits;
                record.seen |= bits;
            } else {
                record.seen &= !bits;
                if record.seen == 0 {
                    gone[count] = at;
                    count += 1;
                }
            }
            at = next;
        }
        let record = self.at_mut(place);
        if record.seen & bits != bits {
            // It was behind those that are seen.
            record.bits |= bits;
            record.seen |= bits;
            self.unlink(place);
            self.link_first(place);
        }
        // All of them first: none may stand before what is seen when another one is put behind it.
        let gone = &gone[..count];
        gone.iter().for_each(|place| self.unlink(*place));
        gone.iter().for_each(|place| self.link_after_seen(*place));
    }

    /// An extent without records gets its only one: a place that was zeroed has these sub-blocks of it.
    pub(super) fn put_only(&mut self, place: u32, extent: u32, generation: u16, bits: u16) {
        let was = self.at(place).space();
        assert_eq!(was, Some(Space::Zeroed), "it reads as zeroes");
        self.chunk_mut(place / EXTENTS_MAX).mapped += 1;
        *self.at_mut(place) = Record {
            extent,
            next: NONE,
            generation,
            flags: 0,
            bits,
            seen: bits,
        };
        self.insert(extent, place);
    }

    /// The place of a generation that can have these sub-blocks too, of which nobody has any: it reads as zeroes there.
    pub(super) fn fresh_at(&self, extent: u32, generation: u16, wanted: u16) -> Option<u32> {
        let mut own = None;
        let seen = |place: &u32| self.at(*place).seen != 0;
        for place in self.chain(extent).take_while(seen) {
            let record = self.at(place);
            let is_own = record.generation == generation && !Table::is_mark(place);
            if record.seen & wanted != 0 {
                return None;
            }
            if is_own && record.flags == 0 {
                own = own.or(Some(place));
            }
        }
        own
    }

    /// A place that the disk sees something of gets more sub-blocks, of which nobody has any.
    pub(super) fn extend(&mut self, place: u32, bits: u16) {
        let record = self.at_mut(place);
        record.bits |= bits;
        record.seen |= bits;
    }

    fn link_first(&mut self, place: u32) {
        let extent = self.at(place).extent;
        match self.first(extent) {
            Some(first) => {
                self.at_mut(place).next = first;
                self.index.replace(extent, first, place);
            }
            None => {
                self.at_mut(place).next = NONE;
                self.insert(extent, place);
            }
        }
    }

    /// An extent that has no record gets its first one.
    fn insert(&mut self, extent: u32, place: u32) {
        let (records, marks) = (&self.records[..], &self.marks[..]);
        self.index
            .insert(extent, place, |it| record(records, marks, it).extent);
    }

    fn link_after_seen(&mut self, place: u32) {
        let extent = self.at(place).extent;
        let is_seen = |it: &u32| self.at(*it).seen != 0;
        match self.chain(extent).take_while(is_seen).last() {
            Some(last) => {
                self.at_mut(place).next = self.at(last).next;
                self.at_mut(last).next = place;
            }
            None => self.link_first(place),
        }
    }

    /// Takes a record out of its chain.
    fn unlink(&mut self, place: u32) {
        let Record { extent, next, .. } = *self.at(place);
        let first = self.first(extent).expect("the chain has this record");
        if first != place {
            let before = self.chain(extent).find(|it| self.at(*it).next == place);
            let before = before.expect("the chain has this record");
            self.at_mut(before).next = next;
        } else if next == NONE {
            let (records, marks) = (&self.records[..], &self.marks[..]);
            self.index
                .remove(extent, place, |it| record(records, marks, it).extent);
        } else {
            self.index.replace(extent, place, next);
        }
    }

    /// Orders a chain anew, by the generations. Of one generation a place comes before a mark.
    pub(super) fn settle(&mut self, extent: u32, forest: &Forest) {
        let mut chain = core::mem::take(&mut self.scratch);
        chain.clear();
        chain.extend(self.chain(extent));
        let Some(first) = chain.first().copied() else {
            return;
        };
        let rank = |table: &Table, place: u32| forest.rank(table.at(place).generation);
        chain.sort_unstable_by_key(|place| {
            let is_mark = Table::is_mark(*place);
            (core::cmp::Reverse(rank(self, *place)), is_mark, *place)
        });
        let mut covered = 0;
        for place in &chain {
            let is_seen = rank(self, *place) > 0;
            let record = self.at_mut(*place);
            record.seen = match is_seen {
                true => record.bits & !covered,
                false => 0,
            };
            covered |= record.seen;
        }
        // Stable: what is seen comes first.
        chain.sort_by_key(|place| self.at(*place).seen == 0);
        for (nth, place) in chain.iter().enumerate() {
            self.at_mut(*place).next = chain.get(nth + 1).copied().unwrap_or(NONE);
        }
        self.index.replace(extent, first, chain[0]);
        self.scratch = chain;
    }

    /// A record goes: its place is in this state, or the mark is gone. The chain is ordered anew.
    pub(super) fn remove(&mut self, place: u32, space: Space, forest: &Forest) {
        let extent = self.at(place).extent;
        self.unlink(place);
        if Table::is_mark(place) {
            let chunk = self.chunk_of(place);
            self.chunk_mut(chunk).marks.retain(|mark| *mark != place);
            *self.at_mut(place) = Record::free(Space::Free);
            self.free_marks.push(place & !MARKS);
        } else {
            *self.at_mut(place) = Record::free(space);
            self.chunk_mut(place / EXTENTS_MAX).mapped -= 1;
            self.count_free(place, false, space == Space::Free);
        }
        if self.first(extent).is_some() {
            self.settle(extent, forest);
        }
    }

    /// Whether there is any mark.
    pub(super) fn has_marks(&self) -> bool {
        self.marks.len() > self.free_marks.len()
    }

    /// Makes room for a mark in a grant's header. It is put with [`Table::put`].
    pub(super) fn new_mark(&mut self, chunk: u32) -> u32 {
        let mark = Mark {
            record: Record::free(Space::Free),
            chunk,
        };
        let number = match self.free_marks.pop() {
            Some(number) => {
                self.marks[number as usize] = mark;
                number
            }
            None => {
                self.marks.push(mark);
                u32::try_from(self.marks.len() - 1).expect("marks are bounded by grants")
            }
        };
        let place = number | MARKS;
        self.chunk_mut(chunk).marks.push(place);
        place
    }

    /// A record belongs to another generation, with these of its sub-blocks.
    pub(super) fn relabel(&mut self, place: u32, generation: u16, bits: u16) {
        let record = self.at_mut(place);
        if record.bits != bits {
            record.flags |= USED_BEFORE;
        }
        record.generation = generation;
        record.bits = bits;
        record.seen &= bits;
    }

    /// The sub-blocks that a place does not have may not be zeroes.
    pub(super) fn set_used_before(&mut self, place: u32) {
        self.at_mut(place).flags |= USED_BEFORE;
    }

    /// The state of a grant's header, to change it.
    pub(super) fn header_mut(&mut self, chunk: u32) -> &mut HeaderState {
        &mut self.chunk_mut(chunk).header
    }

    /// Bytes in memory.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let chunks = self.chunks.capacity() * size_of::<Option<Chunk>>();
        let each = self.records.capacity() * size_of::<Option<Records>>();
        let records = self.records.iter().flatten().count() * size_of::<[Record; 64]>();
        self.index.bytes() + chunks + each + records
    }
}

/// A grant that is added.
pub(super) struct NewChunk {
    pub(super) owner: u8,
    pub(super) index: u32,
    pub(super) grant: Grant,
    pub(super) target: Target,
    /// Where it is on its member, in bytes.
    pub(super) at: u64,
    pub(super) extents: u32,
    pub(super) has_headers: bool,
}

const _: () = assert!(size_of::<Record>() == 16, "records are most of the memory");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::pool::{Generation, Owner, Root};

    fn chunk(table: &mut Table, index: u32) -> u32 {
        table.add_chunk(NewChunk {
            owner: 0,
            index,
            grant: Grant {
                column: 0,
                number: index,
                life: 1,
            },
            target: Target(0),
            at: 0,
            extents: EXTENTS_MAX,
            has_headers: false,
        })
    }

    fn forest() -> Forest {
        let owner = Owner {
            pool: [0; 16],
            disk: [0; 16],
            life: 1,
        };
        let mut forest = Forest::default();
        forest.add(0, &Root::first(owner), super::super::NO_GENERATION);
        forest.show(0);
        forest
    }

    #[test]
    fn an_extent_takes_32_bytes_at_most_in_all() {
        let mut table = Table::new(3);
        let mut worst = 0;
        for number in 0..3_000 {
            let chunk = chunk(&mut table, number);
            for nth in 0..EXTENTS_MAX {
                let place = chunk * EXTENTS_MAX + nth;
                // As guests do: some far apart.
                table.put(place, (number * EXTENTS_MAX + nth) * 97, 0, 0, 0);
                table.claim(place, 1);
            }
            let extents = (number as usize + 1) * EXTENTS_MAX as usize;
            if extents > 4096 {
                worst = worst.max(table.bytes() * 100 / extents);
            }
        }
        assert!(worst <= 3_200, "{worst} hundredths of a byte");
    }

    #[test]
    fn a_read_looks_at_sixteen_records_at_most_after_two_hundred_generations() {
        let (mut table, mut forest) = (Table::new(3), forest());
        let chunks = [0, 1, 2, 3].map(|index| chunk(&mut table, index));
        for nth in 0..200_u32 {
            let generation = match nth {
                0 => 0,
                _ => forest.grow(Generation(nth + 1), forest.shown()),
            };
            forest.show(generation);
            let place = chunks[nth as usize / 64] * EXTENTS_MAX + nth % 64;
            table.put(place, 7, generation, 0, 0);
            // The first one has everything; later ones overwrite one sub-block, all but the last, in turn.
            let wanted = if nth == 0 { u16::MAX } else { 1 << (nth % 15) };
            table.claim(place, wanted);
        }
        let check = |table: &Table| {
            let looked_at = table.chain(7).take_while(|it| table.at(*it).seen != 0);
            assert_eq!((table.chain(7).count(), looked_at.count()), (200, 16));
            for sub_block in 0..16 {
                let place = table.source(7, sub_block).expect("all of it is there");
                let newest = (0..200)
                    .rev()
                    .find(|nth| *nth % 15 == sub_block && *nth > 0);
                let newest = newest.unwrap_or(0);
                let expected = chunks[newest as usize / 64] * EXTENTS_MAX + newest % 64;
                assert_eq!(place, expected);
            }
        };
        check(&table);
        // Ordered anew, as when the disk is opened, the chain is the same.
        table.settle(7, &forest);
        check(&table);
        assert_eq!(table.source(8, 0), None);
    }

    #[test]
    fn what_is_removed_shows_what_was_below_it() {
        let (mut table, mut forest) = (Table::new(3), forest());
        let chunk = chunk(&mut table, 0);
        let [older, newer] = [0, 1].map(|nth| chunk * EXTENTS_MAX + nth);
        table.put(older, 5, 0, 0, 0);
        table.claim(older, 0b11);
        let generation = forest.grow(Generation(2), 0);
        forest.show(generation);
        table.put(newer, 5, generation, 0, 0);
        table.claim(newer, 0b01);
        let mark = table.new_mark(chunk);
        table.put(mark, 5, generation, 0, 0);
        table.claim(mark, 0b10);
        assert_eq!(table.source(5, 0), Some(newer));
        assert_eq!(table.source(5, 1), Some(mark));
        assert_eq!(table.at(older).seen, 0);
        table.remove(mark, Space::Free, &forest);
        assert_eq!(table.source(5, 1), Some(older));
        table.remove(newer, Space::Free, &forest);
        table.remove(older, Space::Free, &forest);
        assert_eq!(table.first(5), None);
        assert_eq!(table.free(), u64::from(EXTENTS_MAX));
    }
}
