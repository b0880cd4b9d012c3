//! Opening: a disk's cache is recovered from its headers and its journal, without a look at its pages.
//!
//! The newest header says which devices have everything and for which use of the disk the cache is valid. The journal is
//! read from the header's tail to its end, in both copies, and gives the map. Its last block may be on one device only: it
//! is written to all of them again before anything else. A device that could not read what follows may have one more, of which
//! nobody knows: it is made blank there, because that block would count at the next start.
//!
//! # Always true
//! - nothing is served from a cache that is not the disk's, or of an earlier use of the disk
//! - dirty blocks are not thrown away: the disk is refused instead
//! - a block that is missing in the middle of the journal is damage, and not its end
//!
//! # Source
//! A stale mapping of an earlier instance was served: Open CAS #617. Dirty data was thrown away at a start: #1160.

use super::area::SlotsByNumber;
use super::blocks::{Header, Journalled};
use super::journal::{Heading, Journal};
use super::map::{Map, Replayed};
use super::{Cache, JOURNAL, OPEN_HEADER, OPEN_JOURNAL, State, each, tag};
use crate::block::{BLOCK, Unreadable};
use crate::layout::{BlockOutcome, DropCause, LayoutCx, LayoutNotice, Refusal, Target};
use crate::request::{Fault, Outcome};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// Blocks of the journal that are read at once.
const WINDOW: u64 = 16;

/// How far opening is.
pub(super) struct Opening {
    step: Step,
    /// The newest header of each device; its place is its generation's.
    found: [Found; 2],
    /// Blocks that are being read or written.
    left: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    header: Option<Header>,
    /// The place that the newest one is not in.
    next_place: u64,
    /// Reads that failed.
    failed: u32,
    refusal: Option<Unreadable>,
}

enum Step {
    Headers,
    Journal(Box<Replay>),
    /// The last block of the journal goes to all devices, and what nobody knows behind it is made blank.
    Mending,
    Heading,
    /// What was given up becomes durable.
    Settling,
}

/// The journal, while it is read.
struct Replay {
    header: Header,
    by_number: SlotsByNumber,
    /// The next block that is applied.
    next: u64,
    /// The next block that is read.
    ahead: u64,
    /// Blocks that were read out of order, from any device.
    read: BTreeMap<u64, Option<Box<Journalled>>>,
    /// How many devices have yet to answer, by block, and which have failed, one bit each.
    waits: BTreeMap<u64, (u32, u32)>,
    /// Blocks that nobody has, and the devices that could not read them, one bit each. If none could, they are not missing.
    unreadable: BTreeMap<u64, u32>,
    /// The last block, and its bytes.
    last: Option<(Box<Journalled>, Box<[u8; BLOCK]>)>,
    raw: BTreeMap<u64, Box<[u8; BLOCK]>>,
    /// The first block that is not there.
    end: Option<u64>,
    is_damaged: bool,
    /// Pages whose last record names chunks that the disk does not have any more.
    elsewhere: BTreeSet<u32>,
}

impl Opening {
    pub(super) fn new() -> Opening {
        Opening {
            step: Step::Headers,
            found: [const {
                Found {
                    header: None,
                    next_place: 0,
                    failed: 0,
                    refusal: None,
                }
            }; 2],
            left: 0,
        }
    }
}

impl Cache {
    fn opening(&mut self) -> &mut Opening {
        match &mut self.state {
            State::Opening(opening) => opening,
            _ => unreachable!("blocks are read only while the cache opens"),
        }
    }

    pub(super) fn begin_opening(&mut self, cx: &mut LayoutCx<'_>) {
        let devices = self.devices() & !self.given_up();
        let mut left = 0;
        for device in each(devices) {
            for place in 0..2 {
                left += 1;
                let number = u32::try_from(place).expect("two places");
                cx.read_block(
                    tag(OPEN_HEADER, number, device),
                    device,
                    self.area.header_at(place),
                );
            }
        }
        self.opening().left = left;
        if left == 0 {
            self.opened(cx, Err(Refusal::Missing(Target(1))));
        }
    }

    /// A place of a header was read.
    pub(super) fn header_read(
        &mut self,
        cx: &mut LayoutCx<'_>,
        device: Target,
        place: u32,
        outcome: BlockOutcome,
    ) {
        let (cache, disk) = (self.setup.cache, self.setup.disk);
        let (last_use, size) = (self.setup.attachments[0], self.size);
        let opening = self.opening();
        opening.left -= 1;
        let found = &mut opening.found[usize::from(device.0) - 1];
        match outcome {
            Ok(Some(block)) => match Header::decode(&block[..]) {
                Ok(header) => {
                    // The other place may have a higher one of a disk that had the chunk before, or of an earlier use.
                    let rank = |header: &Header| {
                        let ours = (header.cache, header.disk) == (cache, disk);
                        let is_own = header.device == device.0 - 1;
                        let used = header.is_of_use(last_use, size);
                        (ours, is_own, used, header.generation)
                    };
                    let known = found.header.as_ref();
                    if known.is_none_or(|known| rank(known) < rank(&header)) {
                        found.header = Some(header);
                        found.next_place = u64::from(1 - place);
                    }
                }
                // Another version may have used the chunk for another disk.
                Err(Unreadable::Newer(_)) if !Header::is_for(&block[..], cache, disk) => {}
                // The other place may be blank, or has been found so.
                Err(_) if matches!(found.refusal, Some(Unreadable::Newer(_))) => {}
                Err(unreadable) => found.refusal = Some(unreadable),
            },
            _ => found.failed += 1,
        }
        if opening.left == 0 {
            self.judge(cx);
        }
    }

    /// All headers are known.
    fn judge(&mut self, cx: &mut LayoutCx<'_>) {
        let found = self.opening().found.clone();
        self.places = [0, 1].map(|device: usize| found[device].next_place);
        let given_up = |device: usize| self.setup.without >> device & 1 == 1;
        let mut newest: Option<&Header> = None;
        for (device, of) in found.iter().enumerate() {
            let target = target(device);
            // A cache that has nothing else begins empty instead.
            if self.setup.has_dirty && matches!(of.refusal, Some(Unreadable::Newer(_))) {
                return self.opened(cx, Err(Refusal::Newer(target)));
            }
            if of.failed == 1 && self.setup.has_dirty {
                // The newest header may be where it cannot be read.
                return self.opened(cx, Err(Refusal::Failed(target, Fault::Io)));
            }
            let Some(header) = &of.header else { continue };
            if header.cache != self.setup.cache || header.disk != self.setup.disk {
                // A chunk that another disk had before: it is this one's now.
                continue;
            }
            if usize::from(header.device) != device {
                // It is in the other one's place: what the header says of devices does not fit.
                match self.setup.has_dirty {
                    true => return self.opened(cx, Err(Refusal::Foreign(target))),
                    false => continue,
                }
            }
            // A device that was alone may have begun anew, with lower generations than the other one.
            let rank = |header: &Header| (self.is_of_this_use(header), header.generation);
            if newest.is_none_or(|known| rank(known) < rank(header)) {
                newest = Some(header);
            }
        }
        // Devices that can be read may be used again later.
        let present: u32 = (0..2)
            .filter(|device| {
                self.devices() >> (device + 1) & 1 == 1
                    && !given_up(*device)
                    && found[*device].failed < 2
            })
            .map(|device| 2 << device)
            .sum();
        self.behind_at_start = present;
        let Some(header) = newest else {
            // A place that is given up, or has no device, does not decide.
            let missing = each(self.devices() & !self.given_up() & !present).next();
            let blank = each(present).next();
            let refusal = match (missing, blank) {
                (None, Some(blank)) => Refusal::Blank(blank),
                (missing, _) => Refusal::Missing(missing.unwrap_or(Target(1))),
            };
            return match self.setup.has_dirty {
                true => self.opened(cx, Err(refusal)),
                false => self.format(cx, present, 0),
            };
        };
        let header = header.clone();
        let in_sync = header.in_sync << 1 & self.devices();
        let absent = in_sync & !present;
        // A copy of a device from an earlier use, or of the other device, has the same epoch. So has a device that was about
        // to get everything again.
        let same = |device: &Target| {
            let place = device.0 - 1;
            let own = found[usize::from(place)].header.as_ref();
            own.is_some_and(|own| {
                own.epoch == header.epoch
                    && own.device == place
                    && own.in_sync >> place & 1 == 1
                    && own.generation + 1 >= header.generation
                    && self.is_of_this_use(own)
            })
        };
        let usable = each(in_sync & present).filter(same);
        let usable: u32 = usable.map(|device| 1 << device.0).sum();
        let is_ours = self.is_of_this_use(&header);
        let generation = header.generation;
        let refusal = match each(absent).next() {
            // It may have gone on alone.
            Some(missing) if self.setup.has_dirty && !given_up(usize::from(missing.0) - 1) => {
                Some(Refusal::Missing(missing))
            }
            _ if usable == 0 && self.setup.has_dirty => Some(Refusal::Missing(target_of(in_sync))),
            _ if !is_ours && self.setup.has_dirty => Some(Refusal::Foreign(target_of(usable))),
            _ => None,
        };
        if let Some(refusal) = refusal {
            return self.opened(cx, Err(refusal));
        }
        let is_given_up = absent != 0 && self.setup.has_dirty;
        if !is_ours || usable == 0 || absent != 0 && !is_given_up {
            return self.format(cx, present, generation);
        }
        // A place without a device that no header names had none before.
        self.in_sync = self.devices() & !(self.given_up() & !in_sync);
        self.use_only(cx, usable);
        self.begin_replay(cx, header);
    }

    /// Devices that are not used at this start, one bit for each target.
    fn given_up(&self) -> u32 {
        self.setup.without << 1
    }

    /// Of the devices in sync only these have everything.
    fn use_only(&mut self, cx: &mut LayoutCx<'_>, usable: u32) {
        for member in each(self.in_sync & !usable) {
            let cause = DropCause::Failed(Fault::Gone);
            cx.notice(LayoutNotice::Dropped { member, cause });
        }
        self.in_sync = usable;
    }

    /// Whether a header is of the last use of the disk.
    fn is_of_this_use(&self, header: &Header) -> bool {
        header.is_of_use(self.setup.attachments[0], self.size)
    }

    /// Makes the cache empty, on the devices that can be written.
    fn format(&mut self, cx: &mut LayoutCx<'_>, present: u32, generation: u64) {
        if present == 0 {
            // It can be done without.
            self.in_sync = 0;
            return self.lost(cx, Fault::Gone);
        }
        self.in_sync = present;
        self.map = Map::new(self.area.slots());
        let header = self.header(generation, self.new_epoch(), 1);
        self.journal = Journal::new(header.epoch, 1);
        self.heading = Heading::new(header);
        self.heading.go_to(self.places);
        self.opening().step = Step::Heading;
        self.must_head(cx);
    }

    fn header(&self, generation: u64, epoch: u64, tail: u64) -> Header {
        Header {
            cache: self.setup.cache,
            disk: self.setup.disk,
            generation,
            epoch,
            tail,
            attachments: self.setup.attachments,
            size: self.size,
            in_sync: self.in_sync >> 1,
            device: 0,
            devices: self.setup.devices,
            write_back: self.keeps_dirty,
        }
    }

    fn begin_replay(&mut self, cx: &mut LayoutCx<'_>, header: Header) {
        self.map = Map::new(self.area.slots());
        let (next, by_number) = (header.tail, self.area.slots_by_number());
        self.opening().step = Step::Journal(Box::new(Replay {
            header,
            by_number,
            next,
            ahead: next,
            read: BTreeMap::new(),
            waits: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            last: None,
            raw: BTreeMap::new(),
            end: None,
            is_damaged: false,
            elsewhere: BTreeSet::new(),
        }));
        self.read_ahead(cx);
    }

    /// Reads blocks of the journal ahead.
    fn read_ahead(&mut self, cx: &mut LayoutCx<'_>) {
        let (in_sync, ring) = (self.in_sync, self.area.ring());
        let Step::Journal(replay) = &mut self.opening().step else {
            return;
        };
        let mut reads = Vec::new();
        // What follows the end is looked at as well: there is nothing behind it, unless blocks have decayed.
        let enough = replay.end.unwrap_or(replay.next) + WINDOW.min(ring);
        while replay.ahead < enough {
            replay.waits.insert(replay.ahead, (in_sync.count_ones(), 0));
            reads.push(replay.ahead);
            replay.ahead += 1;
        }
        let first = replay.header.tail;
        for sequence in reads {
            let number = u32::try_from(sequence - first).expect("a ring is shorter");
            let at = self.area.journal_at(sequence);
            for device in each(in_sync) {
                cx.read_block(tag(OPEN_JOURNAL, number, device), device, at);
            }
        }
    }

    /// A device has read a block of the journal.
    pub(super) fn journal_read(
        &mut self,
        cx: &mut LayoutCx<'_>,
        device: Target,
        number: u32,
        outcome: BlockOutcome,
    ) {
        let Step::Journal(replay) = &mut self.opening().step else {
            return;
        };
        let sequence = replay.header.tail + u64::from(number);
        let is_failed = outcome.is_err();
        if let Ok(Some(block)) = outcome
            && let Ok(read) = Journalled::decode(&block[..])
            && read.epoch == replay.header.epoch
        {
            if read.sequence == sequence {
                replay.read.insert(sequence, Some(Box::new(read)));
                replay.raw.insert(sequence, block);
            } else {
                // The ring is further than any header that can be read.
                replay.is_damaged |= read.sequence > sequence;
            }
        }
        let waits = replay.waits.get_mut(&sequence);
        let (waits, failed) = waits.expect("a block is read once on each device");
        *waits -= 1;
        *failed |= u32::from(is_failed) << device.0;
        if *waits == 0 {
            if *failed != 0 {
                replay.unreadable.insert(sequence, *failed);
            }
            replay.waits.remove(&sequence);
            replay.read.entry(sequence).or_insert(None);
            self.replay(cx);
        }
    }

    /// Applies the blocks that have come, in order.
    fn replay(&mut self, cx: &mut LayoutCx<'_>) {
        let window = WINDOW.min(self.area.ring());
        let State::Opening(opening) = &mut self.state else {
            return;
        };
        let Step::Journal(replay) = &mut opening.step else {
            return;
        };
        while !replay.waits.contains_key(&replay.next)
            && let Some(block) = replay.read.remove(&replay.next)
        {
            let raw = replay.raw.remove(&replay.next);
            match block {
                // One block is written at a time: there is none behind the last one.
                Some(_) if replay.end.is_some() => replay.is_damaged = true,
                Some(block) => {
                    replay.unreadable.remove(&replay.next);
                    for record in &block.records {
                        let slot = |number| replay.by_number.slot(number);
                        match self.map.replay(record, slot) {
                            Replayed::Agrees => drop(replay.elsewhere.remove(&record.page)),
                            Replayed::Elsewhere => drop(replay.elsewhere.insert(record.page)),
                            Replayed::Contradiction => replay.is_damaged = true,
                        }
                    }
                    replay.last = raw.map(|raw| (block, raw));
                }
                None => {
                    replay.end.get_or_insert(replay.next);
                }
            }
            replay.next += 1;
        }
        let seen = replay.end.is_some_and(|end| replay.next >= end + window);
        match seen && replay.waits.is_empty() {
            true => self.replayed(cx),
            false => self.read_ahead(cx),
        }
    }

    /// The journal is at its end.
    fn replayed(&mut self, cx: &mut LayoutCx<'_>) {
        let Step::Journal(replay) = core::mem::replace(&mut self.opening().step, Step::Heading)
        else {
            return;
        };
        let mut generation = replay.header.generation;
        let end = replay.end.unwrap_or(replay.next);
        let unread = replay.unreadable.get(&end).copied().unwrap_or(0);
        if self.in_sync & !unread == 0 {
            return self.end_unknown(cx, generation);
        }
        if replay.is_damaged || !replay.elsewhere.is_empty() {
            let device = target_of(self.in_sync);
            return match self.setup.has_dirty {
                true => self.opened(cx, Err(Refusal::Damaged(device))),
                false => self.format(cx, self.in_sync, generation),
            };
        }
        let named = replay.last.as_ref().and_then(|(last, _)| last.named);
        let newer = named.filter(|named| named.newer_than(generation) > 0);
        if let Some(named) = newer {
            generation += named.newer_than(generation);
            if !self.believe(cx, named.in_sync() << 1, generation) {
                return;
            }
            if self.in_sync & !unread == 0 {
                return self.end_unknown(cx, generation);
            }
        }
        self.map.relink();
        let epoch = replay.header.epoch;
        self.journal = match &replay.last {
            Some((last, _)) => Journal::after(last),
            None => Journal::new(epoch, replay.header.tail),
        };
        self.heading = Heading::new(self.header(generation, epoch, self.journal.tail));
        self.heading.go_to(self.places);
        // Until it is durable, the ring is as long as it was.
        self.journal.tail = replay.header.tail;
        self.adopt(cx);
        self.mend(cx, replay.last, end, unread & self.in_sync);
    }

    /// No device that counts could read the end of the journal: it may have been the last block.
    fn end_unknown(&mut self, cx: &mut LayoutCx<'_>, generation: u64) {
        let device = target_of(self.in_sync);
        match self.setup.has_dirty {
            true => self.opened(cx, Err(Refusal::Failed(device, Fault::Io))),
            false => self.format(cx, self.in_sync, generation),
        }
    }

    /// Writes the last block of the journal to all devices, and makes its end blank on those that could not read it.
    fn mend(
        &mut self,
        cx: &mut LayoutCx<'_>,
        last: Option<(Box<Journalled>, Box<[u8; BLOCK]>)>,
        end: u64,
        unread: u32,
    ) {
        // In a ring that is full the first block is there.
        let has_room = end - self.journal.tail < self.area.ring();
        let blank = if has_room { unread } else { 0 };
        let whole = if last.is_some() { self.in_sync } else { 0 };
        let left = whole.count_ones() + blank.count_ones();
        if left == 0 {
            return self.must_head(cx);
        }
        let opening = self.opening();
        (opening.step, opening.left) = (Step::Mending, left);
        if let Some((last, block)) = last {
            let at = self.area.journal_at(last.sequence);
            for device in each(whole) {
                cx.write_block(tag(JOURNAL, 0, device), device, at, block.clone());
            }
        }
        let at = self.area.journal_at(end);
        for device in each(blank) {
            cx.write_block(tag(JOURNAL, 0, device), device, at, Box::new([0; BLOCK]));
        }
    }

    /// The journal names a header that is newer than any that was found: that one has decayed. A device that it did not name
    /// may lack anything. Returns whether opening goes on.
    fn believe(&mut self, cx: &mut LayoutCx<'_>, named: u32, generation: u64) -> bool {
        let used = self.in_sync & named;
        match (used, self.setup.has_dirty) {
            (0, true) => self.opened(cx, Err(Refusal::Missing(target_of(named)))),
            (0, false) => self.format(cx, self.in_sync, generation),
            _ => self.use_only(cx, used),
        }
        used != 0
    }

    /// Makes the policy and the cleaner know what was found.
    ///
    /// The disk of a cache that does not write back had every answered write, and a crash may have taken those that were not flushed.
    /// What flash has of these is given up: served now, and gone with flash later, a read would go back in time.
    fn adopt(&mut self, cx: &LayoutCx<'_>) {
        for slot in 0..self.map.len() {
            if !self.map.is_first(slot) {
                continue;
            }
            let page = self.map.page(slot);
            self.policy_insert(slot, page);
            let dirty = self.map.masks(slot).1;
            if dirty == 0 {
                continue;
            }
            match self.setup.has_dirty {
                true => self.found_dirty(page, cx.now()),
                false => drop(self.drop_blocks(cx, page, dirty)),
            }
        }
    }

    /// A device has the last block of the journal, or is blank behind it.
    pub(super) fn mended(&mut self, cx: &mut LayoutCx<'_>, device: Target, outcome: Outcome) {
        let bit = 1 << device.0;
        if let Err(fault) = outcome
            && self.in_sync & bit != 0
        {
            self.in_sync &= !bit;
            cx.notice(LayoutNotice::Dropped {
                member: device,
                cause: DropCause::Failed(fault),
            });
        }
        let opening = self.opening();
        opening.left -= 1;
        if opening.left > 0 {
            return;
        }
        opening.step = Step::Heading;
        if self.in_sync == 0 {
            return match self.setup.has_dirty {
                true => self.opened(cx, Err(Refusal::Failed(device, Fault::Io))),
                false => self.lost(cx, Fault::Io),
            };
        }
        self.must_head(cx);
    }

    /// The header is durable: the cache is valid for this use of the disk.
    pub(super) fn headed(&mut self, cx: &mut LayoutCx<'_>) {
        if let State::Opening(opening) = &mut self.state
            && matches!(opening.step, Step::Heading)
        {
            opening.step = Step::Settling;
            self.hasten();
            self.advance_journal(cx);
            self.open_if_settled(cx);
        }
    }

    /// Ends opening once nothing that was given up can come back.
    pub(super) fn open_if_settled(&mut self, cx: &mut LayoutCx<'_>) {
        if self.is_settling_open() && self.unsettled.is_empty() {
            self.opened(cx, Ok(()));
        }
    }

    /// Whether opening waits only for what was given up.
    pub(super) fn is_settling_open(&self) -> bool {
        matches!(&self.state, State::Opening(opening) if matches!(opening.step, Step::Settling))
    }

    /// Opening has ended.
    pub(super) fn opened(&mut self, cx: &mut LayoutCx<'_>, outcome: Result<(), Refusal>) {
        self.state = match outcome {
            Ok(()) => State::Ready,
            Err(_) => State::Refused,
        };
        cx.opened(outcome);
        if outcome.is_ok()
            && let Some(device) = each(self.behind_at_start & !self.in_sync).next()
            && cx.load(device) == 0
        {
            let begun = self.begin_resync(cx, device);
            debug_assert!(begun.is_ok(), "nothing is under way at a start");
        }
    }

    /// Whether the last block is being written to all devices.
    pub(super) fn is_mending(&self) -> bool {
        matches!(&self.state, State::Opening(opening) if matches!(opening.step, Step::Mending))
    }
}

fn target(device: usize) -> Target {
    Target(u8::try_from(device + 1).expect("two devices"))
}

fn target_of(devices: u32) -> Target {
    each(devices).next().unwrap_or(Target(1))
}
