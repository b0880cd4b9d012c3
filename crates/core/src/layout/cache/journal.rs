//! The journal of a disk's cache, and its header.
//!
//! What changes in the map waits in a queue, page by page, and is written in blocks, one block at a time: what arrives while
//! a block is being written goes together into the next one. A block has the state of each page as it is when the block is
//! filled. The room that is left takes the states of pages in turn, a *sweep* over all slots. What is older than the last
//! whole sweep is not needed any more, and the header says so: the ring never overflows, and there is no other copy of the
//! map.
//!
//! # Always true
//! - one block is being written at a time, so a crash leaves at most the last one in part
//! - a block is written over only once the durable header says that it is not needed
//! - no block is begun while a header must become durable first
//! - a change counts as durable only after the blocks before it
//!
//! # Source
//! The sweep is the incremental checkpoint of a log: Rosenblum and Ousterhout, "The Design and Implementation of a
//! Log-Structured File System" (TOCS 1992), §3, without segments.

use super::blocks::{Filling, Header, Journalled, Named, Sweep};
use super::{Cache, HEADER, JOURNAL, MARK, aux, each, tag};
use crate::block::BLOCK;
use crate::layout::{DropCause, LayoutCx, LayoutNotice, Target};
use crate::request::{Fault, Outcome};
use crate::units::{Span, Time};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// What nobody waits for is written after so long.
const LAZY: Span = Span::from_millis(100);
/// Or once so many changes wait.
const MANY: usize = 64;

/// See the module.
pub(super) struct Journal {
    pub(super) epoch: u64,
    /// The number of the next block.
    pub(super) next: u64,
    /// The first block that the durable header names.
    pub(super) tail: u64,
    /// Pages whose state has changed, in order.
    queue: VecDeque<u32>,
    /// Changes that were put into the queue, that were taken out of it, and that are durable.
    asked: u64,
    taken: u64,
    pub(super) durable: u64,
    /// The last change that somebody waits for.
    urgent: u64,
    writing: Option<Writing>,
    /// When the queue is written though nobody waits.
    lazy_at: Option<Time>,
    sweep: Sweep,
    /// What waits for a change to become durable, in order.
    waiting: VecDeque<(u64, Waiter)>,
}

/// What waits for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiter {
    /// A part of a write.
    Part(u32),
    /// An I/O.
    Op(u32),
    /// A page whose free blocks may be written then.
    Settled(u32),
}

struct Writing {
    sequence: u64,
    block: Box<[u8; BLOCK]>,
    /// Devices that have not ended it.
    pending: u32,
    /// What is durable once it is.
    taken: u64,
    /// Whether it is on a device that is still used.
    is_done: bool,
}

/// The header, and its write that is under way.
pub(super) struct Heading {
    pub(super) header: Header,
    /// Where the next header of each device goes: not over its newest one.
    pub(super) places: [u64; 2],
    /// Where the newest durable header of each device is.
    pub(super) newest: [u64; 2],
    /// Devices that have not ended the write.
    pending: u32,
    /// What is written has this tail.
    writing_tail: u64,
    /// Whether it has changed since the write began.
    changed: bool,
    /// Whether nothing may become durable in the journal before it.
    must: bool,
    /// Whether what is being written includes all that must be.
    covers: bool,
    /// Devices that are not used any more, and do not know it.
    pub(super) behind: u32,
}

impl Heading {
    /// What a device's header says, beside these devices that have everything.
    pub(super) fn header_of(&self, device: Target, in_sync: u32) -> Header {
        Header {
            device: device.0 - 1,
            in_sync: in_sync >> 1,
            ..self.header.clone()
        }
    }

    /// The next header of each device goes to these places.
    pub(super) fn go_to(&mut self, places: [u64; 2]) {
        self.places = places;
        self.newest = places.map(|place| 1 - place);
    }

    /// A header has been written to a place of a device, or has failed there: then the older one may still be there.
    pub(super) fn placed(&mut self, device: Target, place: usize, outcome: Outcome) {
        let known = match outcome {
            Ok(()) => &mut self.newest,
            Err(_) => &mut self.places,
        };
        known[usize::from(device.0) - 1] = place as u64;
    }

    /// The next place of a device's header: not over its newest one.
    fn take_place(&mut self, device: Target) -> u64 {
        let next = &mut self.places[usize::from(device.0) - 1];
        let place = *next;
        *next = 1 - place;
        place
    }

    pub(super) fn new(header: Header) -> Heading {
        Heading {
            header,
            places: [0; 2],
            newest: [1; 2],
            pending: 0,
            writing_tail: 0,
            changed: false,
            must: false,
            covers: false,
            behind: 0,
        }
    }
}

impl Journal {
    pub(super) fn new(epoch: u64, next: u64) -> Journal {
        Journal {
            epoch,
            next,
            tail: next,
            queue: VecDeque::new(),
            asked: 0,
            taken: 0,
            durable: 0,
            urgent: 0,
            writing: None,
            lazy_at: None,
            sweep: Sweep {
                from: next,
                slot: 0,
                tail: next,
            },
            waiting: VecDeque::new(),
        }
    }

    /// A journal that goes on after this block.
    pub(super) fn after(block: &Journalled) -> Journal {
        Journal {
            sweep: block.sweep,
            tail: block.sweep.tail,
            ..Journal::new(block.epoch, block.sequence + 1)
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.lazy_at
    }

    /// Takes out everything that waits: nothing becomes durable any more.
    pub(super) fn drain(&mut self) -> Vec<Waiter> {
        self.queue.clear();
        self.lazy_at = None;
        let waiting = self.waiting.drain(..);
        waiting.map(|(_, waiter)| waiter).collect()
    }
}

impl Cache {
    /// The state of a page has changed. Returns the change, for [`Cache::after`].
    pub(super) fn change(&mut self, cx: &LayoutCx<'_>, page: u32) -> u64 {
        let queued = match self.map.find(page) {
            Some(slot) => !self.map.queue(slot),
            None => false,
        };
        if !queued {
            self.journal.queue.push_back(page);
            self.journal.asked += 1;
        }
        self.journal.lazy_at.get_or_insert(cx.now() + LAZY);
        self.journal.asked
    }

    /// The waiter goes on once a change is durable.
    pub(super) fn after(&mut self, change: u64, waiter: Waiter) {
        if !matches!(waiter, Waiter::Settled(_)) {
            self.journal.urgent = self.journal.urgent.max(change);
        }
        let waiting = &mut self.journal.waiting;
        // Changes are asked for in order, so this is nearly always the end.
        let at = waiting.partition_point(|(earlier, _)| *earlier <= change);
        waiting.insert(at, (change, waiter));
    }

    /// Everything that has changed so far becomes durable soon.
    pub(super) fn hasten(&mut self) {
        self.journal.urgent = self.journal.asked;
    }

    /// Writes the next block, if there is a reason to.
    pub(super) fn advance_journal(&mut self, cx: &mut LayoutCx<'_>) {
        if self.journal.lazy_at.is_some_and(|at| at <= cx.now()) {
            self.journal.lazy_at = None;
            self.hasten();
        }
        let journal = &self.journal;
        let forced = self.resync_needs_journal();
        let wanted = forced || journal.urgent > journal.taken || journal.queue.len() >= MANY;
        let has_room = journal.next - journal.tail < self.area.ring();
        if journal.queue.is_empty() && !forced {
            self.journal.lazy_at = None;
            return;
        }
        let heading = &self.heading;
        if !wanted || journal.writing.is_some() || heading.must || !self.is_writable() {
            return;
        }
        if !has_room {
            // The header that trims it is under way, or has failed on the last device.
            return self.write_header(cx);
        }
        self.begin_block(cx);
    }

    fn begin_block(&mut self, cx: &mut LayoutCx<'_>) {
        let sequence = self.journal.next;
        let mut filling = Filling::new(self.journal.epoch, sequence);
        self.sweep(&mut filling, sequence);
        while filling.has_room()
            && let Some(page) = self.journal.queue.pop_front()
        {
            self.journal.taken += 1;
            if let Some(slot) = self.map.find(page) {
                self.map.unqueue(slot);
            }
            filling.put(&self.map.record(page, |slot| self.area.number(slot)));
        }
        self.journal.lazy_at = match self.journal.queue.is_empty() {
            true => None,
            false => Some(cx.now() + LAZY),
        };
        let named = Named::new(self.heading.header.generation, self.in_sync >> 1);
        let block = filling.finish(self.journal.sweep, named);
        self.journal.next += 1;
        let pending = self.written();
        self.journal.writing = Some(Writing {
            sequence,
            block: block.clone(),
            pending,
            taken: self.journal.taken,
            is_done: false,
        });
        let at = self.area.journal_at(sequence);
        for device in each(pending) {
            cx.write_block(
                tag(JOURNAL, low(sequence), device),
                device,
                at,
                block.clone(),
            );
        }
        self.journal_bytes += BLOCK as u64 * u64::from(pending.count_ones());
    }

    /// Records pages in turn.
    fn sweep(&mut self, filling: &mut Filling, sequence: u64) {
        let slots = self.map.len();
        // A third of the ring suffices for a sweep.
        let steps = (3 * u64::from(slots)).div_ceil(self.area.ring());
        for _ in 0..steps {
            let slot = self.journal.sweep.slot;
            // Each of a page's slots: after a crash the second one may be its first, and the sweep goes on from here.
            if slot < slots && self.map.has_page(slot) {
                let page = self.map.page(slot);
                filling.put(&self.map.record(page, |slot| self.area.number(slot)));
            }
            let sweep = &mut self.journal.sweep;
            sweep.slot += 1;
            if sweep.slot >= slots {
                // All that was recorded before this sweep began is recorded again.
                *sweep = Sweep {
                    from: sequence,
                    slot: 0,
                    tail: sweep.from,
                };
            }
        }
    }

    /// A device has ended the write of a block.
    pub(super) fn journal_done(
        &mut self,
        cx: &mut LayoutCx<'_>,
        device: Target,
        number: u32,
        outcome: Outcome,
    ) {
        // Another image of the device may still have an earlier block: that one's end, good or bad, does not count.
        let bit = 1 << device.0;
        let writing = self.journal.writing.as_ref();
        let counts = writing.is_some_and(|it| low(it.sequence) == number && it.pending & bit != 0);
        if let (Err(fault), true) = (outcome, counts) {
            self.flash_failed(cx, device, fault);
        }
        let Some(writing) = &mut self.journal.writing else {
            return;
        };
        if low(writing.sequence) == number {
            writing.pending &= !bit;
        }
        self.finish_block(cx);
    }

    /// A block counts once every device that is used has it, and the header says which those are.
    pub(super) fn finish_block(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(writing) = &mut self.journal.writing else {
            return;
        };
        if writing.pending != 0 || self.in_sync == 0 {
            return;
        }
        writing.is_done = true;
        if self.heading.must {
            return;
        }
        let Some(writing) = self.journal.writing.take_if(|writing| writing.is_done) else {
            return;
        };
        self.journal.durable = writing.taken;
        if self.heading.header.tail < self.journal.sweep.tail {
            self.heading.header.tail = self.journal.sweep.tail;
            self.heading.changed = true;
            self.write_header(cx);
        }
        debug_assert!(writing.sequence < self.journal.next);
        drop(writing.block);
        self.wake(cx);
        self.advance_journal(cx);
    }

    /// Lets those go on whose change is durable.
    fn wake(&mut self, cx: &mut LayoutCx<'_>) {
        let mut ready = Vec::new();
        while let Some((change, waiter)) = self.journal.waiting.front().copied()
            && change <= self.journal.durable
        {
            self.journal.waiting.pop_front();
            match waiter {
                Waiter::Settled(page) => self.settled(page, change),
                Waiter::Part(_) | Waiter::Op(_) => ready.push(waiter),
            }
        }
        for waiter in ready {
            match waiter {
                Waiter::Part(part) => self.part_recorded(cx, part),
                Waiter::Op(op) => self.around_recorded(cx, op),
                Waiter::Settled(_) => {}
            }
        }
        self.resume_settled(cx);
        self.open_if_settled(cx);
        self.clean_recorded(cx);
    }

    /// What the header says has changed, and nothing becomes durable before it.
    pub(super) fn must_head(&mut self, cx: &mut LayoutCx<'_>) {
        self.heading.changed = true;
        self.heading.must = true;
        self.heading.covers = false;
        self.write_header(cx);
    }

    /// Writes the header, if it has changed and is not being written.
    pub(super) fn write_header(&mut self, cx: &mut LayoutCx<'_>) {
        let syncing = self.syncing();
        let heading = &mut self.heading;
        if heading.pending != 0 || !heading.changed || self.in_sync == 0 {
            return;
        }
        heading.changed = false;
        heading.covers = true;
        heading.header.generation += 1;
        heading.header.in_sync = self.in_sync >> 1;
        heading.writing_tail = heading.header.tail;
        heading.pending = self.in_sync | syncing;
        let pending = heading.pending;
        for device in each(pending) {
            let block = self.heading.header_of(device, self.in_sync);
            let number = low(block.generation);
            let place = self.heading.take_place(device);
            let tag = tag(HEADER, number, device) | aux(usize::from(place == 1), 0);
            cx.write_block(tag, device, self.area.header_at(place), block.encode());
        }
        self.journal_bytes += BLOCK as u64 * u64::from(pending.count_ones());
    }

    /// A device has ended the write of a header.
    pub(super) fn header_done(
        &mut self,
        cx: &mut LayoutCx<'_>,
        device: Target,
        number: u32,
        outcome: Outcome,
    ) {
        let is_last = low(self.heading.header.generation) == number;
        if is_last {
            self.heading.pending &= !(1 << device.0);
        }
        // As above: one header is being written at a time.
        if let (Err(fault), true) = (outcome, is_last) {
            self.flash_failed(cx, device, fault);
        }
        let heading = &mut self.heading;
        if heading.pending != 0 || self.in_sync == 0 || !is_last {
            return;
        }
        if heading.covers {
            heading.must = false;
        }
        self.journal.tail = self.journal.tail.max(heading.writing_tail);
        let durable = heading.header.generation;
        self.write_header(cx);
        if !self.heading.must {
            self.mark_behind(cx, durable);
            self.headed(cx);
            self.resync_headed(cx);
            self.advance_resync(cx);
            self.finish_block(cx);
            self.advance_journal(cx);
        }
    }

    /// A device cannot be written or read: it is not used any more.
    pub(super) fn flash_failed(&mut self, cx: &mut LayoutCx<'_>, device: Target, fault: Fault) {
        self.do_without(cx, device, DropCause::Failed(fault));
    }

    /// Writes on devices that are not used any more that they are behind, if they can still be written. Later an
    /// administrator may give up the other one, and a device alone would not know it. This header is durable on that one.
    fn mark_behind(&mut self, cx: &mut LayoutCx<'_>, generation: u64) {
        for device in each(core::mem::take(&mut self.heading.behind)) {
            let header = Header {
                generation,
                ..self.heading.header_of(device, self.in_sync)
            };
            let place = self.heading.take_place(device);
            let tag = tag(MARK, 0, device) | aux(usize::from(place == 1), 0);
            cx.write_block(tag, device, self.area.header_at(place), header.encode());
        }
    }

    /// A device is not used any more.
    pub(super) fn do_without(&mut self, cx: &mut LayoutCx<'_>, device: Target, cause: DropCause) {
        let bit = 1 << device.0;
        if self.in_sync & bit == 0 {
            if self.resync.as_ref().is_some_and(|it| it.device == device) {
                self.resync_failed(cx, cause.fault());
            }
            return;
        }
        self.in_sync &= !bit;
        if cause != DropCause::Hung {
            self.heading.behind |= bit;
        }
        self.resync.take_if(|resync| resync.device == device);
        self.journal_forget(device);
        if self.in_sync == 0 {
            self.resync = None;
            return self.lost(cx, cause.fault());
        }
        cx.notice(LayoutNotice::Dropped {
            member: device,
            cause,
        });
        self.must_head(cx);
    }

    /// Nothing waits for what this device has of the journal.
    pub(super) fn journal_forget(&mut self, device: Target) {
        let bit = 1 << device.0;
        self.heading.pending &= !bit;
        if let Some(writing) = &mut self.journal.writing {
            writing.pending &= !bit;
        }
    }
}

/// The part of a number that is in a tag.
fn low(number: u64) -> u32 {
    let [a, b, c, d, ..] = number.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
