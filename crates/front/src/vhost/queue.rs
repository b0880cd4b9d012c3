//! A split virtqueue: it takes available chains, returns used ones, and decides on notifications.
//!
//! The I/O thread calls [`Queue::next`] until it yields nothing, [`Queue::complete`] for each answer, and
//! [`Queue::publish`] once a turn. A bad chain costs its guest that one request; a ring that makes no sense
//! ([`Broken`]) stops this queue and nothing else.
//!
//! # Always true
//! - a head is completed only while it is in flight, so the used ring never holds more than `size` entries
//! - `last_avail` moves by one for each chain taken, good or bad
//! - a request holds at most [`MAX_SEGMENTS`] pieces of memory, whatever its descriptors say
//!
//! # Picture
//! ```text
//!   guest's memory      desc table     avail ring: flags idx ring[size] used_event
//!                                      used ring:  flags idx elem[size] avail_event
//!   last_avail ──> next() ──> in flight ──> complete() ──> used_idx ──publish()──> used.idx, call?
//! ```
//!
//! # Source
//! VIRTIO 1.2 §2.7 (layout, §2.7.5.3 indirect descriptors, §2.7.7 and §2.7.10 notification suppression).

use super::block::{self, BlockRequest};
use super::inflight::Inflight;
use super::{Area, GuestMemory};
use chain::{DESC_BYTES, DESC_INDIRECT, DESC_NEXT, Descriptor, follow};
use std::sync::atomic::{Ordering, fence};

mod chain;
mod plain;

pub use super::block::Taken;
pub use super::faults::{Broken, Nonsense};
pub use super::{MAX_SEGMENTS, MAX_SIZE};

/// How many chains ahead of its use each part of a chain is called for: the parts are found one through the other, and
/// each takes about as long to come as it takes to handle two requests.
const DESCRIPTOR_AHEAD: u16 = 8;
const TABLE_AHEAD: u16 = 5;
const HEADER_AHEAD: u16 = 2;

const AVAIL_NO_INTERRUPT: u16 = 1;
const USED_NO_NOTIFY: u16 = 1;
/// `flags` and `idx` come before the entries of either ring.
const RING_HEADER: usize = 4;
const IDX: usize = 2;

/// Where a ring lies and how guest and device agreed to use it.
#[derive(Clone, Copy, Debug)]
pub struct QueueConfig {
    /// Entries; a power of two up to [`MAX_SIZE`].
    pub size: u16,
    /// Guest address of the descriptor table.
    pub desc: u64,
    /// Guest address of the available ring.
    pub avail: u64,
    /// Guest address of the used ring.
    pub used: u64,
    /// The next available entry to take (what `SET_VRING_BASE` said).
    pub base: u16,
    /// VIRTIO_F_EVENT_IDX was negotiated.
    pub event_idx: bool,
    /// VIRTIO_F_INDIRECT_DESC was negotiated.
    pub indirect: bool,
    /// Guest address at which writes to the used ring are logged for live migration.
    pub log_used: Option<u64>,
}

/// See the module.
pub struct Queue<M: GuestMemory> {
    desc: M::Area,
    avail: M::Area,
    used: M::Area,
    config: QueueConfig,
    mask: u16,
    /// Next available entry to take.
    last_avail: u16,
    /// The guest's available index as last read.
    avail_seen: u16,
    /// Next used entry to fill; ahead of the guest's view until `publish`.
    used_idx: u16,
    /// What the guest sees as used.
    published: u16,
    /// The same when its wish to be called was read last.
    asked: u16,
    /// Heads that were taken and not yet completed.
    taken: Vec<bool>,
    in_flight: u16,
    inflight: Option<Inflight<M::Area>>,
    writable: Vec<M::Segment>,
    /// See [`Queue::walked`].
    walked: u64,
    kicks_wanted: bool,
    /// Whether the last look found one chain and no more.
    lone: bool,
    /// Where the header of the last plain request was. The guest's number.
    last_header: u64,
}

impl<M: GuestMemory> Queue<M> {
    /// A queue over rings in `memory`.
    ///
    /// # Errors
    /// [`Broken`] when the rings cannot be where the guest says.
    pub fn new(memory: &M, config: QueueConfig) -> Result<Queue<M>, Broken> {
        let size = config.size;
        if size == 0 || size > MAX_SIZE || !size.is_power_of_two() {
            return Err(Broken::Size(size));
        }
        let aligned = config.desc.is_multiple_of(16)
            && config.avail.is_multiple_of(2)
            && config.used.is_multiple_of(4);
        if !aligned {
            return Err(Broken::Misaligned);
        }
        let entries = usize::from(size);
        let area = |addr, len| memory.area(addr, len).ok_or(Broken::Outside);
        let used_len = RING_HEADER + 8 * entries + 2;
        let used = area(config.used, used_len)?;
        if let Some(log) = config.log_used {
            // One that died between writing here and logging it has left nobody else to log it.
            memory.mark_dirty(log, used_len);
        }
        let used_idx = used.load_u16(IDX);
        let base = position(config.base, used_idx, size);
        Ok(Queue {
            desc: area(config.desc, DESC_BYTES * entries)?,
            avail: area(config.avail, RING_HEADER + 2 * entries + 2)?,
            used,
            config,
            mask: size - 1,
            last_avail: base,
            avail_seen: base,
            used_idx,
            published: used_idx,
            asked: used_idx,
            taken: vec![false; entries],
            in_flight: 0,
            inflight: None,
            writable: Vec::with_capacity(8),
            walked: 0,
            kicks_wanted: true,
            lone: false,
            last_header: 0,
        })
    }

    /// Keeps account of what is in flight in memory that outlives this process, and returns the heads that an earlier
    /// process took but never completed, in the order it took them: they are to be taken again with [`Queue::retake`].
    ///
    /// # Errors
    /// [`Broken::Inflight`] when the region does not fit.
    pub fn track(&mut self, region: M::Area, region_len: usize) -> Result<Vec<u16>, Broken> {
        let mut inflight =
            Inflight::open(region, region_len, self.config.size).ok_or(Broken::Inflight)?;
        let heads = inflight.recover(self.used_idx);
        if !inflight.is_fresh() {
            // What was taken is used or in flight, so the account knows the position, and better than the front end,
            // which after a crash says the used index, or one that it read before the last answers.
            let resumed = u16::try_from(heads.len()).map_err(|_| Broken::Inflight)?;
            self.last_avail = self.used_idx.wrapping_add(resumed);
            self.avail_seen = self.last_avail;
        }
        self.inflight = Some(inflight);
        Ok(heads)
    }

    /// How many chains are taken and not completed.
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// The next available entry: what `GET_VRING_BASE` answers once nothing is in flight.
    pub fn position(&self) -> u16 {
        self.last_avail
    }

    /// Whether something was answered in this ring, by whomever.
    pub fn was_used(&self) -> bool {
        self.used_idx != 0
    }

    /// Whether an earlier process kept account of it in the region that it is tracked in.
    pub fn is_resumed(&self) -> bool {
        let region = self.inflight.as_ref();
        region.is_some_and(|region| !region.is_fresh())
    }

    /// How far the guest has made entries available, as of now.
    pub fn available(&self) -> u16 {
        self.avail.load_u16(IDX)
    }

    /// What it has taken so far to follow chains, good or bad: descriptors read, and pieces found where memory is cut. Plain
    /// reads and writes are not counted: they are as short as can be.
    pub fn walked(&self) -> u64 {
        self.walked
    }

    /// Entries in the ring.
    pub fn size(&self) -> u16 {
        self.config.size
    }

    /// Whether the guest has made something available that was not taken yet.
    pub fn has_work(&self) -> bool {
        self.avail_seen != self.last_avail || self.avail.load_u16(IDX) != self.last_avail
    }

    /// Calls for the header of a request that was just seen to wait ([`Queue::has_work`]) and will be taken soon, if the
    /// guest has one under way at a time: drivers reuse what was freed last, so its header lies where the last one lay.
    /// It is on its way then while the thread turns to it.
    #[inline]
    pub fn foresee(&self, memory: &M) {
        if self.lone {
            memory.prefetch(self.last_header);
        }
    }

    /// Takes the next chain. Its data segments are put into `data` (which is cleared first).
    ///
    /// # Errors
    /// [`Broken`] when the ring itself makes no sense.
    pub fn next(
        &mut self,
        memory: &M,
        data: &mut Vec<M::Segment>,
    ) -> Result<Option<Taken<M::Segment>>, Broken> {
        if self.avail_seen == self.last_avail {
            let idx = self.avail.acquire_u16(IDX);
            if idx.wrapping_sub(self.last_avail) > self.config.size {
                return Err(Broken::IndexJump {
                    available: idx,
                    position: self.last_avail,
                });
            }
            if idx == self.last_avail {
                return Ok(None);
            }
            self.avail_seen = idx;
            let waiting = idx.wrapping_sub(self.last_avail);
            // A lone chain is read at once: there is nothing to do meanwhile.
            self.lone = waiting == 1;
            if !self.lone {
                for ahead in 0..waiting.min(TABLE_AHEAD) {
                    self.call_descriptor(ahead);
                }
                for ahead in 0..waiting.min(HEADER_AHEAD) {
                    self.call_table(memory, ahead);
                }
            }
        }
        self.look_ahead(memory);
        let head = self.head(0);
        if head >= self.config.size {
            return Err(Broken::Head(head));
        }
        if self.taken[usize::from(head)] {
            return Err(Broken::Reused(head));
        }
        self.last_avail = self.last_avail.wrapping_add(1);
        if let Some(inflight) = &mut self.inflight {
            inflight.take(head);
        }
        Ok(Some(self.open(memory, head, data)))
    }

    /// The head of the chain that is `ahead` places behind the next one in the available ring. The guest's number.
    #[inline]
    fn head(&self, ahead: u16) -> u16 {
        let slot = usize::from(self.last_avail.wrapping_add(ahead) & self.mask);
        self.avail.load_u16(RING_HEADER + 2 * slot)
    }

    /// Calls for the memory of the chains that come after the next one. The guest wrote it on another CPU, and each step
    /// from descriptor to table to header would wait for that CPU's cache; called for ahead, they come side by side.
    #[inline]
    fn look_ahead(&self, memory: &M) {
        let waiting = self.avail_seen.wrapping_sub(self.last_avail);
        if waiting > DESCRIPTOR_AHEAD {
            self.call_descriptor(DESCRIPTOR_AHEAD);
        }
        if waiting > TABLE_AHEAD {
            self.call_table(memory, TABLE_AHEAD);
        }
        if waiting > HEADER_AHEAD {
            self.call_header(memory, HEADER_AHEAD);
        }
    }

    #[inline]
    fn call_descriptor(&self, ahead: u16) {
        self.desc
            .prefetch(DESC_BYTES * usize::from(self.head(ahead)));
    }

    /// What the first descriptor names: the header, or the table in which the others are.
    #[inline]
    fn call_table(&self, memory: &M, ahead: u16) {
        if let Some(first) = self.first(ahead) {
            memory.prefetch(first.addr);
        }
    }

    #[inline]
    fn call_header(&self, memory: &M, ahead: u16) {
        let table = self
            .first(ahead)
            .filter(|first| first.flags & DESC_INDIRECT != 0);
        if let Some(words) = table.and_then(|table| memory.load_pair(table.addr)) {
            memory.prefetch(Descriptor::decode(words).addr);
        }
    }

    #[inline]
    fn first(&self, ahead: u16) -> Option<Descriptor> {
        let head = self.head(ahead);
        (head < self.config.size)
            .then(|| Descriptor::decode(self.desc.load_pair(DESC_BYTES * usize::from(head))))
    }

    /// Takes a chain again that an earlier process had taken ([`Queue::track`]).
    ///
    /// # Errors
    /// [`Broken`] when the head makes no sense.
    pub fn retake(
        &mut self,
        memory: &M,
        head: u16,
        data: &mut Vec<M::Segment>,
    ) -> Result<Taken<M::Segment>, Broken> {
        if head >= self.config.size {
            return Err(Broken::Head(head));
        }
        if self.taken[usize::from(head)] {
            return Err(Broken::Reused(head));
        }
        Ok(self.open(memory, head, data))
    }

    fn open(&mut self, memory: &M, head: u16, data: &mut Vec<M::Segment>) -> Taken<M::Segment> {
        self.taken[usize::from(head)] = true;
        self.in_flight += 1;
        data.clear();
        let first = Descriptor::decode(self.desc.load_pair(DESC_BYTES * usize::from(head)));
        if let Some((request, piece)) = self.plain(memory, head, &first) {
            data.push(piece);
            return Taken::Request(request);
        }
        self.open_any(memory, head, &first, data)
    }

    /// The chain, if it is a plain read or write: nearly always.
    #[inline]
    fn plain(
        &mut self,
        memory: &M,
        head: u16,
        first: &Descriptor,
    ) -> Option<(BlockRequest<M::Segment>, M::Segment)> {
        if first.flags != DESC_INDIRECT {
            self.last_header = first.addr;
            let load = |index| Some(self.desc.load_pair(DESC_BYTES * usize::from(index)));
            return plain::read(memory, first, load, self.config.size, head);
        }
        // A table of just these three.
        if !self.config.indirect || first.len as usize != 3 * DESC_BYTES {
            return None;
        }
        let load = |index: u16| {
            let at = DESC_BYTES as u64 * u64::from(index);
            memory.load_pair(first.addr.checked_add(at)?)
        };
        let header = Descriptor::decode(load(0)?);
        self.last_header = header.addr;
        plain::read(memory, &header, load, 3, head)
    }

    /// Any chain.
    #[inline(never)]
    fn open_any(
        &mut self,
        memory: &M,
        head: u16,
        first: &Descriptor,
        data: &mut Vec<M::Segment>,
    ) -> Taken<M::Segment> {
        let mut writable = std::mem::take(&mut self.writable);
        writable.clear();
        let mut walked = self.walked + 1;
        let end = self.walk(memory, head, first, data, &mut writable, &mut walked);
        let taken = block::parse(memory, head, end, data, &mut writable);
        self.writable = writable;
        self.walked = walked;
        taken
    }

    /// Follows a chain and sorts its pieces into those the device reads and those it writes. On an error `writable`
    /// holds the status byte, if there is one beyond doubt, and nothing else.
    fn walk(
        &self,
        memory: &M,
        head: u16,
        first: &Descriptor,
        readable: &mut Vec<M::Segment>,
        writable: &mut Vec<M::Segment>,
        walked: &mut u64,
    ) -> Result<(), Nonsense> {
        if first.flags & DESC_INDIRECT == 0 {
            let load = |index| Some(self.desc.load_pair(DESC_BYTES * usize::from(index)));
            let entries = self.config.size;
            return follow(memory, load, head, entries, readable, writable, walked);
        }
        let bytes = first.len as usize;
        if !self.config.indirect
            || first.flags & DESC_NEXT != 0
            || bytes == 0
            || !bytes.is_multiple_of(DESC_BYTES)
        {
            return Err(Nonsense::Indirect);
        }
        let entries = u16::try_from(bytes / DESC_BYTES).map_err(|_| Nonsense::Indirect)?;
        let load = |index| {
            memory.load_pair(
                first
                    .addr
                    .checked_add(DESC_BYTES as u64 * u64::from(index))?,
            )
        };
        follow(memory, load, 0, entries, readable, writable, walked)
    }

    /// Hands a chain back with `written` bytes of its writable part filled. Seen by the guest after `publish`.
    ///
    /// # Panics
    /// When `head` is not in flight: a request would be answered twice.
    pub fn complete(&mut self, head: u16, written: u32) {
        let taken = &mut self.taken[usize::from(head)];
        assert!(*taken, "a chain is completed once, while it is in flight");
        *taken = false;
        self.in_flight -= 1;
        let at = RING_HEADER + 8 * usize::from(self.used_idx & self.mask);
        self.used
            .store_u64(at, u64::from(written) << 32 | u64::from(head));
        if let Some(inflight) = &mut self.inflight {
            inflight.complete(head);
        }
        self.used_idx = self.used_idx.wrapping_add(1);
    }

    /// Whether completed chains wait for [`Queue::publish`].
    pub fn is_dirty(&self) -> bool {
        self.used_idx != self.published
    }

    /// Shows the guest all that was completed, in one store. Whether it is to be called, [`Queue::wants_call`] says.
    pub fn publish(&mut self, memory: &M) {
        let old = self.published;
        if old == self.used_idx {
            return;
        }
        self.used.release_u16(IDX, self.used_idx);
        self.published = self.used_idx;
        if let Some(inflight) = &mut self.inflight {
            inflight.published(self.used_idx);
        }
        self.log_used(memory, old);
    }

    /// Whether the guest wants to be called for something that it was shown since this was asked last. It may be asked
    /// later than it is shown: a guest that finds its answers meanwhile no longer wants to be.
    pub fn wants_call(&mut self) -> bool {
        let old = self.asked;
        if old == self.published {
            return false;
        }
        self.asked = self.published;
        // The guest's wish must not be read before our index is visible, or both sides would wait.
        fence(Ordering::SeqCst);
        if self.config.event_idx {
            let event = self
                .avail
                .load_u16(RING_HEADER + 2 * usize::from(self.config.size));
            let passed = self.published.wrapping_sub(event).wrapping_sub(1);
            passed < self.published.wrapping_sub(old)
        } else {
            self.avail.load_u16(0) & AVAIL_NO_INTERRUPT == 0
        }
    }

    fn log_used(&self, memory: &M, old: u16) {
        let Some(base) = self.config.log_used else {
            return;
        };
        let mut idx = old;
        while idx != self.used_idx {
            let at = RING_HEADER + 8 * usize::from(idx & self.mask);
            // The front end's number, which may be anything; the log ignores what lies behind its end.
            memory.mark_dirty(base.wrapping_add(at as u64), 8);
            idx = idx.wrapping_add(1);
        }
        memory.mark_dirty(base, RING_HEADER);
    }

    /// Asks the guest not to kick: the ring is looked at anyway.
    pub fn silence_kicks(&mut self, memory: &M) {
        if !self.kicks_wanted {
            return;
        }
        self.kicks_wanted = false;
        if !self.config.event_idx {
            self.tell_driver(memory, 0, USED_NO_NOTIFY);
        } else if !self.has_work() {
            // The guest is still to pass what it was asked to kick for: that is put behind it. What it has passed
            // already is silence enough, and the word is dear to write, as the guest reads it for each request.
            self.ask_for_kick_at(memory, self.last_avail.wrapping_sub(1));
        }
    }

    /// Asks the guest to kick for the next request. Returns whether something came meanwhile: then no kick may follow.
    pub fn want_kicks(&mut self, memory: &M) -> bool {
        self.kicks_wanted = true;
        if self.config.event_idx {
            self.ask_for_kick_at(memory, self.last_avail);
        } else {
            self.tell_driver(memory, 0, 0);
        }
        fence(Ordering::SeqCst);
        self.has_work()
    }

    /// With event-idx: a kick is wanted for the request at this position, and for none before or after it.
    fn ask_for_kick_at(&self, memory: &M, position: u16) {
        let avail_event = RING_HEADER + 8 * usize::from(self.config.size);
        self.tell_driver(memory, avail_event, position);
    }

    /// Writes one of the used ring's words about notifications, and logs it.
    fn tell_driver(&self, memory: &M, at: usize, word: u16) {
        self.used.store_u16(at, word);
        if let Some(log) = self.config.log_used {
            memory.mark_dirty(log.wrapping_add(at as u64), 2);
        }
    }
}

/// Where a ring goes on that the front end says is at `base`. Nothing is used before it is taken, so a base behind the
/// used index is old: it was read while a predecessor still answered what it had in flight.
fn position(base: u16, used_idx: u16, size: u16) -> u16 {
    let behind = used_idx.wrapping_sub(base);
    if behind <= size { used_idx } else { base }
}
