//! An array of disks or SSDs: it takes I/Os and completes them in virtual time.
//!
//! The simulator and the engine's `emulated` datastore call it. It splits an I/O over members (`stripe.rs`), puts
//! writes into its cache (`cache.rs`) and runs the members (`disk.rs`, `ssd.rs`). It does not store data.
//! It never rejects an I/O: an offset past its end wraps around, so a small model can back a large disk.
//!
//! # Always true
//! - Every submitted I/O completes exactly once, never before its submission, at a time announced by
//!   [`Array::next_completion`].
//! - The same specification, seed and calls give the same results. Ties are in order of start.
//! - A member is never idle while it has work.
//! - Each step costs O(log n) in the number of I/Os in flight, times the members that an I/O touches.
//!
//! # Picture
//! ```text
//! submit ─┬─> cache full? wait ─> in the cache ────────────────────┐
//!         └─> first parts on members ─> parts that follow ─────────┴─> link ─> completed ─> pop_completed
//!              destage: the same, in the background
//! ```
//!
//! # Units
//! The interface uses the driver's nanoseconds, the internals nanoseconds of work time (`clock.rs`). Sizes are bytes.

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::cache::Dirty;
use crate::clock::Clock;
use crate::disk::Disk;
use crate::kind::IoKind;
use crate::random::Random;
use crate::spec::{ArraySpec, CacheSpec, MemberSpec, SpecError};
use crate::ssd::{Job, Ssd, Started, transfer};
use crate::stripe::{Part, Stripe};

/// An I/O without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelIo {
    /// The driver's id for it, returned unchanged.
    pub id: u64,
    /// The operation.
    pub kind: IoKind,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// A completed I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The id of the I/O.
    pub id: u64,
    /// Its completion time, at or before the `now` of the call.
    pub at: u64,
}

/// A longer I/O costs as much as one of this length. It is far above the limit of the front ends (32 MiB), and splits
/// into few enough chunks.
const LONGEST: u64 = 256 << 20;

/// The state of an array.
#[derive(Clone, Debug)]
pub struct Array {
    spec: ArraySpec,
    capacity: u64,
    stripe: Stripe,
    random: Random,
    clock: Clock,
    /// The latest time passed by the driver.
    now: u64,
    members: Vec<Member>,
    /// Pieces of work on each member, queued or running.
    load: Vec<u32>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Future events: work time, sequence number, event.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    link_free: u64,
    dirty: Dirty,
    /// Bytes being written from the cache to members.
    destaging: u64,
    destages: u32,
    /// Writes that wait for space in the cache.
    no_room: VecDeque<u32>,
    completed: VecDeque<Completion>,
    outstanding: usize,
    /// Emptied after each use, to reuse the allocation.
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Member {
    Disk(Disk),
    Ssd(Ssd),
}

/// An I/O of the driver, or a destage, in progress.
#[derive(Clone, Debug)]
struct Slot {
    io: ModelIo,
    destage: bool,
    /// Unfinished pieces on members.
    pending: u32,
    /// The parts that start when they are finished.
    then: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A member has finished a piece of work of a slot.
    Worked { member: u32, slot: u32 },
    /// A completion leaves the cache, towards the link.
    Cached { slot: u32 },
    /// A completion reaches the host.
    Delivered { slot: u32 },
}

impl Array {
    /// An idle array with this specification.
    pub fn new(spec: &ArraySpec, seed: u64) -> Result<Array, SpecError> {
        spec.validate()?;
        let member = || match &spec.member {
            MemberSpec::Disk(disk) => Member::Disk(Disk::new(disk.clone())),
            MemberSpec::Ssd(ssd) => Member::Ssd(Ssd::new(ssd.clone())),
        };
        Ok(Array {
            capacity: spec.capacity(),
            stripe: Stripe {
                level: spec.level,
                members: spec.members,
                chunk: spec.chunk,
            },
            random: Random::new(seed),
            clock: Clock::new(),
            now: 0,
            members: (0..spec.members).map(|_| member()).collect(),
            load: (0..spec.members).map(|_| 0).collect(),
            slots: Vec::new(),
            free: Vec::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            link_free: 0,
            dirty: Dirty::default(),
            destaging: 0,
            destages: 0,
            no_room: VecDeque::new(),
            completed: VecDeque::new(),
            outstanding: 0,
            parts: Vec::new(),
            spec: spec.clone(),
        })
    }

    /// Submits an I/O. Time never goes back: an earlier `now` counts as the latest one.
    pub fn submit(&mut self, now: u64, mut io: ModelIo) {
        self.advance(now);
        // An I/O of zero bytes costs one access.
        io.len = io.len.clamp(1, self.capacity.min(LONGEST));
        io.offset = (io.offset % self.capacity).min(self.capacity - io.len);
        self.outstanding += 1;
        let slot = self.occupy(io, false);
        let now = self.clock.work_at(self.now);
        match (self.spec.cache.clone(), io.kind) {
            (None, _) => self.begin(now, slot),
            (Some(cache), IoKind::Read) => {
                let cached = self.dirty.covers(io.offset, io.offset + io.len);
                if cached || self.random.chance(cache.read_hits_permille) {
                    self.after(now, cache.hit, Event::Cached { slot });
                } else {
                    self.begin(now, slot);
                }
            }
            // Larger than the cache: it bypasses the cache.
            (Some(cache), IoKind::Write) if io.len > cache.size => self.begin(now, slot),
            (Some(cache), IoKind::Write) => {
                self.no_room.push_back(slot);
                self.fill(now, &cache);
            }
            // The cache's contents are durable.
            (Some(cache), IoKind::Flush) => self.after(now, cache.hit, Event::Cached { slot }),
        }
    }

    /// The time of the next call: no I/O completes earlier. `None` if nothing is in flight.
    ///
    /// There may be an internal event at that time without a completion (RAID 5 has read and now writes). Then
    /// [`Array::pop_completed`] returns nothing, and this returns a later time.
    pub fn next_completion(&self) -> Option<u64> {
        match self.completed.front() {
            Some(done) => Some(done.at),
            None => self
                .events
                .peek()
                .map(|Reverse((work, ..))| self.clock.real_at(*work)),
        }
    }

    /// The next completed I/O at `now`, in order of completion.
    pub fn pop_completed(&mut self, now: u64) -> Option<Completion> {
        self.advance(now);
        self.completed.pop_front()
    }

    /// From `now` on the array works at `permille` thousandths of its specified speed, also on I/Os in progress.
    pub fn set_speed(&mut self, now: u64, permille: u32) {
        self.advance(now);
        self.clock.set_speed(self.now, permille);
    }

    /// The array makes no progress from `now` until `until`; `u64::MAX` means until [`Array::resume`].
    pub fn stall(&mut self, now: u64, until: u64) {
        self.advance(now);
        self.clock.stall(self.now, until);
    }

    /// Ends a stall early.
    pub fn resume(&mut self, now: u64) {
        self.advance(now);
        self.clock.resume(self.now);
    }

    /// Submitted I/Os that are not completed.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Dirty bytes in the cache.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.bytes() + self.destaging
    }

    /// Data capacity in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Processes all events until `now`.
    fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        let work = self.clock.work_at(self.now);
        while let Some(Reverse((at, ..))) = self.events.peek()
            && *at <= work
            && let Some(Reverse((at, _, event))) = self.events.pop()
        {
            match event {
                Event::Worked { member, slot } => self.worked(at, member, slot),
                Event::Cached { slot } => self.send_completion(at, slot),
                Event::Delivered { slot } => self.deliver(at, slot),
            }
        }
    }

    fn worked(&mut self, now: u64, member: u32, slot: u32) {
        match &mut self.members[member as usize] {
            Member::Disk(disk) => disk.finish(),
            Member::Ssd(ssd) => ssd.finish(),
        }
        self.load[member as usize] -= 1;
        self.run(now, member);
        let waiting = &mut self.slots[slot as usize];
        waiting.pending -= 1;
        if waiting.pending > 0 {
            return;
        }
        if !waiting.then.is_empty() {
            core::mem::swap(&mut self.parts, &mut waiting.then);
            self.submit_parts(now, slot);
        } else if waiting.destage {
            self.destaged(now, slot);
        } else {
            self.send_completion(now, slot);
        }
    }

    /// Submits an I/O's first parts to members.
    fn begin(&mut self, now: u64, slot: u32) {
        let Slot { io, then, .. } = &mut self.slots[slot as usize];
        self.stripe.split(
            io.kind,
            io.offset,
            io.len,
            &self.load,
            &mut self.parts,
            then,
        );
        self.submit_parts(now, slot);
    }

    fn submit_parts(&mut self, now: u64, slot: u32) {
        for part in &self.parts {
            let Part {
                member,
                kind,
                offset,
                len,
            } = *part;
            let job = Job {
                slot,
                kind,
                offset,
                len,
            };
            let pieces = match &mut self.members[member as usize] {
                Member::Disk(disk) => disk.submit(job),
                Member::Ssd(ssd) => ssd.submit(job),
            };
            self.load[member as usize] += pieces;
            self.slots[slot as usize].pending += pieces;
        }
        // All parts are submitted before any starts. Otherwise one could finish alone and complete the I/O.
        let mut parts = core::mem::take(&mut self.parts);
        for part in parts.drain(..) {
            self.run(now, part.member);
        }
        self.parts = parts;
    }

    /// Starts as much work as a member can take.
    fn run(&mut self, now: u64, member: u32) {
        loop {
            let started = match &mut self.members[member as usize] {
                Member::Disk(disk) => disk.start(&mut self.random),
                Member::Ssd(ssd) => ssd.start(&mut self.random),
            };
            let Some(Started { slot, takes }) = started else {
                return;
            };
            self.after(now, takes, Event::Worked { member, slot });
        }
    }

    /// Admits waiting writes into the cache while there is space, and destages dirty bytes above the limit.
    fn fill(&mut self, now: u64, cache: &CacheSpec) {
        while let Some(&slot) = self.no_room.front() {
            let ModelIo { offset, len, .. } = self.slots[slot as usize].io;
            if self.dirty_bytes() + len > cache.size {
                break;
            }
            self.no_room.pop_front();
            self.dirty.insert(offset, offset + len);
            self.after(now, cache.hit, Event::Cached { slot });
        }
        while self.destages < cache.destage_depth
            && (self.dirty.bytes() > cache.destage_above || !self.no_room.is_empty())
            && let Some((start, end)) = self.dirty.take(self.stripe.row())
        {
            let io = ModelIo {
                id: 0,
                kind: IoKind::Write,
                offset: start,
                len: end - start,
            };
            self.destaging += io.len;
            self.destages += 1;
            let slot = self.occupy(io, true);
            self.begin(now, slot);
        }
    }

    fn destaged(&mut self, now: u64, slot: u32) {
        self.destaging -= self.slots[slot as usize].io.len;
        self.destages -= 1;
        self.free.push(slot);
        if let Some(cache) = self.spec.cache.clone() {
            self.fill(now, &cache);
        }
    }

    /// Sends a completion over the link, after the earlier ones.
    fn send_completion(&mut self, now: u64, slot: u32) {
        let mut sent_at = now;
        if let Some(rate) = self.spec.link.bytes_per_second {
            sent_at =
                sent_at.max(self.link_free) + transfer(self.slots[slot as usize].io.len, rate);
            self.link_free = sent_at;
        }
        let at = sent_at + self.spec.link.latency;
        if at > now {
            self.after(at, 0, Event::Delivered { slot });
        } else {
            self.deliver(now, slot);
        }
    }

    fn deliver(&mut self, work: u64, slot: u32) {
        let id = self.slots[slot as usize].io.id;
        self.completed.push_back(Completion {
            id,
            at: self.clock.real_at(work).min(self.now),
        });
        self.outstanding -= 1;
        self.free.push(slot);
    }

    fn after(&mut self, now: u64, takes: u64, event: Event) {
        self.events
            .push(Reverse((now.saturating_add(takes), self.sequence, event)));
        self.sequence += 1;
    }

    fn occupy(&mut self, io: ModelIo, destage: bool) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                let old = &mut self.slots[slot as usize];
                (old.io, old.destage) = (io, destage);
                slot
            }
            None => {
                self.slots.push(Slot {
                    io,
                    destage,
                    pending: 0,
                    then: Vec::new(),
                });
                u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 I/Os in flight")
            }
        }
    }
}
