//! Opening: a pool's disk is read from its root and the headers of its grants, with those of its ancestors.
//!
//! Roots come first: of an ancestor that is written meanwhile, a header may be newer than its root, but not older. Then the
//! headers are read, some at a time. What does not name the pool, the disk, the grant and its life was left by somebody else.
//!
//! # Always true
//! - a disk does not open while a place cannot be read that may have the newest version
//! - nothing is written before the disk is open, but what makes members of a column equal

use super::blocks::{Header, Owner, Root};
use super::forest::NO_GENERATION;
use super::records::Table;
use super::resync::Equal;
use super::setup::{EXTENTS_MAX, Grant};
use super::{NONE, OPEN_HEADER, OPEN_ROOT, Pool, State};
use crate::block::{BLOCK, Unreadable};
use crate::layout::{BlockOutcome, LayoutCx, Refusal, Target};
use crate::request::Fault;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Grants whose headers are read at once.
const WINDOW: usize = 64;
/// How often the blocks of a disk that another one writes are read again, if both places are torn.
const TRIES: u8 = 4;

/// How far opening is.
pub(super) struct Opening {
    /// Roots by owner: 0 is the disk itself.
    roots: Vec<Option<Root>>,
    /// What is being read, by owner and index. Roots have index 0, as long as `are_roots`.
    pairs: BTreeMap<(u8, u32), Pair>,
    are_roots: bool,
    /// The next grant whose header is read.
    next: (u8, u32),
    /// The numbers in the table of those whose headers are being read.
    chunks: BTreeMap<(u8, u32), u32>,
    /// What is made equal on the members of columns.
    pub(super) equal: Equal,
}

/// The two places of a block, on each member of its column.
#[derive(Default)]
pub(super) struct Pair {
    left: u8,
    blocks: Vec<Read>,
    pub(super) failed: Option<Fault>,
    tries: u8,
}

/// A block that was read.
struct Read {
    place: u8,
    copy: u8,
    block: Box<[u8; BLOCK]>,
}

/// What two places have.
pub(super) struct Found<T> {
    pub(super) newest: Option<(T, u8)>,
    /// Whether both of a member name the owner, and none is valid.
    pub(super) is_damaged: bool,
    pub(super) is_newer: bool,
}

fn tag(kind: u64, owner: u8, index: u32, place: u8, copy: u8) -> u64 {
    let place = u64::from(copy << 1 | place);
    kind | u64::from(index) << 16 | u64::from(owner) << 8 | place
}

fn untag(tag: u64) -> (u8, u32, u8) {
    let [place, owner, a, b, c, d, ..] = tag.to_le_bytes();
    (owner, u32::from_le_bytes([a, b, c, d]), place)
}

impl Pair {
    /// The newest valid block of an owner.
    pub(super) fn judge<T>(
        &self,
        is_named: impl Fn(&[u8]) -> bool,
        decode: impl Fn(&[u8]) -> Result<T, Unreadable>,
        sequence: impl Fn(&T) -> Option<u64>,
    ) -> Found<T> {
        let mut found = Found {
            newest: None,
            is_damaged: false,
            is_newer: false,
        };
        let mut torn: Vec<u8> = Vec::new();
        let mut blocks: Vec<&Read> = self.blocks.iter().collect();
        blocks.sort_unstable_by_key(|read| (read.copy, read.place));
        for Read { place, copy, block } in blocks {
            let is_named = is_named(&block[..]);
            match decode(&block[..]) {
                Ok(read) => {
                    let newer = |known: &(T, u8)| sequence(&known.0) < sequence(&read);
                    if sequence(&read).is_some() && found.newest.as_ref().is_none_or(newer) {
                        found.newest = Some((read, *place));
                    }
                }
                Err(Unreadable::Newer(_)) => found.is_newer |= is_named,
                Err(_) if is_named => torn.push(*copy),
                Err(_) => {}
            }
        }
        let is_twice = torn.windows(2).any(|pair| pair[0] == pair[1]);
        found.is_damaged = found.newest.is_none() && is_twice;
        found
    }

    /// The block at the place of the newest one, if not all members have the same there.
    pub(super) fn lacking(
        &self,
        place: u8,
        is_newest: impl Fn(&[u8]) -> bool,
    ) -> Option<&[u8; BLOCK]> {
        let mut there = self.blocks.iter().filter(|read| read.place == place);
        let newest = there.clone().find(|read| is_newest(&read.block[..]))?;
        there
            .any(|read| read.block != newest.block)
            .then_some(&*newest.block)
    }
}

impl Pool {
    pub(super) fn opening(&mut self) -> Option<&mut Opening> {
        match &mut self.state {
            State::Opening(opening) => Some(opening),
            _ => None,
        }
    }

    /// The grants of an owner.
    fn grants_of(&self, owner: u8) -> &[Option<Grant>] {
        match owner.checked_sub(1) {
            None => &self.setup.grants,
            Some(nth) => &self.setup.ancestors[usize::from(nth)].grants,
        }
    }

    fn owner_of(&self, owner: u8, life: u64) -> Owner {
        let disk = match owner.checked_sub(1) {
            None => self.setup.disk,
            Some(nth) => self.setup.ancestors[usize::from(nth)].disk,
        };
        Owner {
            disk,
            ..self.owner(life)
        }
    }

    fn owners(&self) -> u8 {
        u8::try_from(self.setup.ancestors.len() + 1).expect("checked in the setup")
    }

    pub(super) fn begin_opening(&mut self, cx: &mut LayoutCx<'_>) {
        let owners = self.owners();
        self.state = State::Opening(Box::new(Opening {
            roots: (0..owners).map(|_| None).collect(),
            pairs: BTreeMap::new(),
            are_roots: true,
            next: (0, 0),
            chunks: BTreeMap::new(),
            equal: Equal::default(),
        }));
        for owner in 0..owners {
            if let Some(Some(grant)) = self.grants_of(owner).first().copied() {
                self.read_root(cx, owner, grant);
            }
        }
        self.go_on_opening(cx);
    }

    fn read_root(&mut self, cx: &mut LayoutCx<'_>, owner: u8, grant: Grant) {
        let geometry = self.setup.geometry;
        let target = self.setup.columns[usize::from(grant.column)];
        let at = [0, 1].map(|place| geometry.grant_at(grant) + geometry.root_at(place));
        self.read_pair(cx, OPEN_ROOT, owner, 0, target, at);
    }

    /// Reads the two places of a block, on each member.
    pub(super) fn read_pair(
        &mut self,
        cx: &mut LayoutCx<'_>,
        kind: u64,
        owner: u8,
        index: u32,
        target: Target,
        at: [u64; 2],
    ) {
        let copies = self.setup.copies(target);
        for copy in 0..copies {
            for (place, at) in (0..).zip(at) {
                cx.read_copy(tag(kind, owner, index, place, copy), target, at, copy);
            }
        }
        if let Some(opening) = self.opening() {
            let pair = opening.pairs.entry((owner, index)).or_default();
            pair.left = 2 * copies;
        }
    }

    /// Where the header of a grant is. None: the grant that has it was given back.
    fn header_place(&self, owner: u8, index: u32) -> Option<(Target, u64)> {
        let geometry = &self.setup.geometry;
        let with = geometry.header_of(index) as usize;
        let with = self.grants_of(owner).get(with).copied().flatten()?;
        let target = self.setup.columns[usize::from(with.column)];
        Some((
            target,
            geometry.grant_at(with) + geometry.header_at(index, 0),
        ))
    }

    fn read_header(&mut self, cx: &mut LayoutCx<'_>, owner: u8, index: u32) -> bool {
        let Some((target, at)) = self.header_place(owner, index) else {
            return false;
        };
        let at = [at, at + BLOCK as u64];
        self.read_pair(cx, OPEN_HEADER, owner, index, target, at);
        true
    }

    /// A block of a pair was read. Returns the pair once both were.
    pub(super) fn pair_read(&mut self, tag: u64, outcome: BlockOutcome) -> Option<(u8, u32, Pair)> {
        let (owner, index, place) = untag(tag & !super::KIND);
        let opening = self.opening()?;
        let pair = opening.pairs.get_mut(&(owner, index))?;
        match outcome {
            Ok(Some(block)) => pair.blocks.push(Read {
                place: place & 1,
                copy: place >> 1,
                block,
            }),
            Ok(None) => {}
            Err(fault) => pair.failed = Some(fault),
        }
        pair.left -= 1;
        if pair.left > 0 {
            return None;
        }
        let pair = opening.pairs.remove(&(owner, index))?;
        Some((owner, index, pair))
    }

    /// Whether a disk may be written while this one reads it.
    fn is_written_by_others(&self, owner: u8) -> bool {
        owner > 0 || self.view.is_some()
    }

    /// A place of a root was read.
    pub(super) fn root_read(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: BlockOutcome) {
        let Some((owner, _, pair)) = self.pair_read(tag, outcome) else {
            return;
        };
        let Some(Some(grant)) = self.grants_of(owner).first().copied() else {
            return;
        };
        let target = self.setup.columns[usize::from(grant.column)];
        if let Some(fault) = pair.failed {
            return self.refuse(cx, Refusal::Failed(target, fault));
        }
        let own = self.owner_of(owner, grant.life);
        let sequence = |root: &Root| (root.owner == own).then_some(root.sequence);
        let is_named = |block: &[u8]| own.is_named_in(block);
        let found = pair.judge(is_named, Root::decode, sequence);
        if found.is_newer {
            return self.refuse(cx, Refusal::Newer(target));
        }
        if found.is_damaged {
            return match self.again(owner, 0, &pair) {
                true => self.read_root(cx, owner, grant),
                false => self.refuse(cx, Refusal::Damaged(target)),
            };
        }
        if let Some((root, place)) = found.newest.as_ref().filter(|_| owner == 0) {
            let is_newest = |block: &[u8]| Root::decode(block).as_ref() == Ok(root);
            let geometry = self.setup.geometry;
            let at = geometry.grant_at(grant) + geometry.root_at(*place);
            self.repair(cx, pair.lacking(*place, is_newest), target, at);
        }
        let (root, place) = found.newest.unwrap_or((Root::first(own), 1));
        if owner == 0 {
            (self.root.sequence, self.root.next_place) = (root.sequence, 1 - place);
        }
        if let Some(opening) = self.opening() {
            opening.roots[usize::from(owner)] = Some(root);
        }
        self.go_on_opening(cx);
    }

    /// Whether a torn pair is read once more: its disk may have been writing it.
    fn again(&mut self, owner: u8, index: u32, pair: &Pair) -> bool {
        if !self.is_written_by_others(owner) || pair.tries >= TRIES {
            return false;
        }
        let tries = pair.tries + 1;
        if let Some(opening) = self.opening() {
            let again = opening.pairs.entry((owner, index)).or_default();
            again.tries = tries;
        }
        true
    }

    /// Reads on, or ends.
    pub(super) fn go_on_opening(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(opening) = self.opening() else {
            return;
        };
        if opening.are_roots {
            if !opening.pairs.is_empty() {
                return;
            }
            opening.are_roots = false;
            if let Err(refusal) = self.plant() {
                return self.refuse(cx, refusal);
            }
        }
        while let Some(opening) = self.opening()
            && opening.pairs.len() < WINDOW
            && opening.next.0 < self.owners()
        {
            let Some(opening) = self.opening() else {
                return;
            };
            let (owner, index) = opening.next;
            opening.next.1 += 1;
            let grants = self.grants_of(owner);
            let Some(grant) = grants.get(index as usize).copied() else {
                if let Some(opening) = self.opening() {
                    opening.next = (owner + 1, 0);
                }
                continue;
            };
            if owner == 0 {
                self.own.push(NONE);
            }
            let Some(grant) = grant else { continue };
            let chunk = self.put_chunk(owner, index, grant);
            if owner == 0 {
                self.own[index as usize] = chunk;
            }
            if let Some(opening) = self.opening() {
                opening.chunks.insert((owner, index), chunk);
            }
            if !self.read_header(cx, owner, index) {
                let target = self.setup.columns[usize::from(grant.column)];
                return self.refuse(cx, Refusal::Missing(target));
            }
        }
        let is_read = self.opening().is_some_and(|it| it.pairs.is_empty());
        if is_read && self.make_equal(cx) {
            self.end_opening(cx);
        }
    }

    /// All roots are known: the forest grows from the farthest ancestor.
    fn plant(&mut self) -> Result<(), Refusal> {
        let Some(opening) = self.opening() else {
            return Ok(());
        };
        let roots = core::mem::take(&mut opening.roots);
        let mut beyond = NO_GENERATION;
        let roots: Vec<(u8, Option<Root>)> = (0..).zip(roots).collect();
        for (owner, root) in roots.into_iter().rev() {
            let root = root.unwrap_or_else(|| Root::first(self.owner_of(owner, 0)));
            self.forest.add(owner, &root, beyond);
            let shown = match owner.checked_sub(1) {
                None => self.view.unwrap_or(root.current),
                Some(nth) => self.setup.ancestors[usize::from(nth)].at,
            };
            let target = self.grants_of(owner).iter().flatten().next();
            let target = target.map(|it| self.setup.columns[usize::from(it.column)]);
            let Some(found) = self.forest.find(owner, shown) else {
                return Err(Refusal::Damaged(target.unwrap_or(Target(0))));
            };
            beyond = found;
            if owner == 0 {
                self.root.last = root.last;
                self.forest.show(found);
            }
        }
        Ok(())
    }

    /// A place of a header was read.
    pub(super) fn header_read(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: BlockOutcome) {
        let Some((owner, index, pair)) = self.pair_read(tag, outcome) else {
            return;
        };
        let Some(Some(grant)) = self.grants_of(owner).get(index as usize).copied() else {
            return;
        };
        let Some((target, at)) = self.header_place(owner, index) else {
            return;
        };
        if let Some(fault) = pair.failed {
            return self.refuse(cx, Refusal::Failed(target, fault));
        }
        let own = self.owner_of(owner, grant.life);
        let sequence = |header: &Header| {
            let is_own = header.owner == own && header.is_of(index, grant);
            is_own.then_some(header.sequence)
        };
        let is_named = |block: &[u8]| own.is_named_in(block);
        let found = pair.judge(is_named, Header::decode, sequence);
        if found.is_newer {
            return self.refuse(cx, Refusal::Newer(target));
        }
        if found.is_damaged {
            return match self.again(owner, index, &pair) && self.read_header(cx, owner, index) {
                true => {}
                false => self.refuse(cx, Refusal::Damaged(target)),
            };
        }
        if let Some((header, place)) = found.newest.as_ref().filter(|_| owner == 0) {
            let is_newest = |block: &[u8]| Header::decode(block).as_ref() == Ok(header);
            let at = at + u64::from(*place) * BLOCK as u64;
            self.repair(cx, pair.lacking(*place, is_newest), target, at);
        }
        let chunk = self
            .opening()
            .and_then(|it| it.chunks.remove(&(owner, index)));
        let Some(chunk) = chunk else {
            return;
        };
        let is_read = match found.newest {
            Some((header, place)) => self.load(owner, chunk, &header, place),
            None => true,
        };
        match is_read {
            true => self.go_on_opening(cx),
            false => self.refuse(cx, Refusal::Damaged(target)),
        }
    }

    /// Takes over what a header says. Returns false if it contradicts the root.
    fn load(&mut self, owner: u8, chunk: u32, header: &Header, place: u8) -> bool {
        let state = self.table.header_mut(chunk);
        (state.sequence, state.next_place) = (header.sequence, 1 - place);
        let geometry = self.setup.geometry;
        let first = u32::from(geometry.has_headers(header.index));
        for (nth, entry) in (0..).zip(&header.extents) {
            if entry.is_free() {
                continue;
            }
            let generation = self.forest.find(owner, entry.generation);
            match generation {
                _ if nth < first || nth >= geometry.extents => return false,
                // A later one, or one that this disk does not see.
                None if self.is_written_by_others(owner) => continue,
                None => return false,
                Some(generation) if owner > 0 && self.forest.rank(generation) == 0 => continue,
                Some(generation) => {
                    let place = chunk * EXTENTS_MAX + nth;
                    let flags = super::records::USED_BEFORE;
                    let (extent, bits) = (entry.extent, entry.sub_blocks);
                    self.table.put(place, extent, generation, bits, flags);
                    self.forest.at_mut(generation).extents += 1;
                }
            }
        }
        for entry in &header.marks {
            match self.forest.find(owner, entry.generation) {
                None if self.is_written_by_others(owner) => {}
                None => return false,
                Some(generation) if owner > 0 && self.forest.rank(generation) == 0 => {}
                Some(generation) => {
                    let mark = self.table.new_mark(chunk);
                    let (extent, bits) = (entry.extent, entry.sub_blocks);
                    self.table.put(mark, extent, generation, bits, 0);
                }
            }
        }
        true
    }

    fn end_opening(&mut self, cx: &mut LayoutCx<'_>) {
        let extents: Vec<u32> = self.table.extents().collect();
        let mut twice = Vec::new();
        for extent in extents {
            self.table.settle(extent, &self.forest);
            self.separate(extent, &mut twice);
        }
        self.state = State::Open;
        self.begin_rebuilds();
        self.plan_cooling(cx);
        for place in twice {
            self.release(place);
        }
        self.list_free();
        cx.opened(Ok(()));
        self.release_ready(cx);
        self.go_on(cx);
    }

    /// If a crash came between two headers, one generation may have a sub-block twice. Nobody was told that either is durable:
    /// the first one stays. What a place has a mark need not hide.
    fn separate(&mut self, extent: u32, emptied: &mut Vec<u32>) {
        if self.view.is_some() {
            return;
        }
        let mut chain: Vec<u32> = self.table.chain(extent).collect();
        if chain.len() < 2 {
            return;
        }
        chain.sort_by_key(|place| {
            let generation = self.table.at(*place).generation;
            (generation, Table::is_mark(*place), *place)
        });
        let (mut last, mut covered) = (None, 0);
        for place in chain {
            let record = *self.table.at(place);
            if last.replace(record.generation) != Some(record.generation) {
                covered = 0;
            }
            let twice = record.bits & covered;
            covered |= record.bits;
            if twice == 0 || self.forest.at(record.generation).owner > 0 {
                continue;
            }
            match (Table::is_mark(place), record.bits == twice) {
                (true, true) => self.drop_mark(place),
                (false, true) => emptied.push(place),
                (_, false) => {
                    self.table.touch(place);
                    let left = record.bits & !twice;
                    self.table.relabel(place, record.generation, left);
                    self.table.settle(extent, &self.forest);
                }
            }
        }
    }

    pub(super) fn refuse(&mut self, cx: &mut LayoutCx<'_>, refusal: Refusal) {
        if matches!(self.state, State::Opening(_)) {
            self.state = State::Refused;
            cx.opened(Err(refusal));
        }
    }
}
