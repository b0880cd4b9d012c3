//! A split virtqueue: it takes available chains, returns used ones, and decides on notifications.
//!
//! The I/O thread calls [`Queue::next`] until it returns nothing, [`Queue::complete`] for each completion, and
//! [`Queue::publish`] once per loop iteration. A malformed chain affects only that request. An invalid ring
//! ([`RingError`]) stops only this queue.
//!
//! # Always true
//! - A head is completed only while it is in flight, so the used ring never holds more than `size` entries.
//! - `last_avail` moves by one for each chain taken, valid or malformed.
//! - A request has at most [`MAX_SEGMENTS`] segments, whatever its descriptors say.
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
pub use super::faults::{ChainError, RingError};
pub use super::{MAX_SEGMENTS, MAX_SIZE};

/// How many chains ahead the descriptor of a chain is prefetched. Each part of a chain points to the next part, and
/// fetching one takes about as long as handling two requests.
const DESCRIPTOR_AHEAD: u16 = 8;
const TABLE_AHEAD: u16 = 5;
const HEADER_AHEAD: u16 = 2;

const AVAIL_NO_INTERRUPT: u16 = 1;
const USED_NO_NOTIFY: u16 = 1;
/// Bytes of `flags` and `idx` before the entries of either ring.
const RING_HEADER: usize = 4;
const IDX: usize = 2;

/// The addresses of a ring and the negotiated features.
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
    /// The next available entry to take (from `SET_VRING_BASE`).
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
    /// Next used entry to fill. The guest sees it only after `publish`.
    used_idx: u16,
    /// The used index that the guest sees.
    published: u16,
    /// `published` at the last check of the guest's notification setting.
    call_checked: u16,
    /// Heads that are taken and not yet completed.
    taken: Vec<bool>,
    in_flight: u16,
    inflight: Option<Inflight<M::Area>>,
    writable: Vec<M::Segment>,
    /// See [`Queue::walked`].
    walked: u64,
    kicks_wanted: bool,
    /// Whether the last check found exactly one chain.
    lone: bool,
    /// The guest address of the last plain request's header.
    last_header: u64,
}

impl<M: GuestMemory> Queue<M> {
    /// A queue over rings in `memory`.
    ///
    /// # Errors
    /// [`RingError`] when the rings cannot be at the given addresses.
    pub fn new(memory: &M, config: QueueConfig) -> Result<Queue<M>, RingError> {
        let size = config.size;
        if size == 0 || size > MAX_SIZE || !size.is_power_of_two() {
            return Err(RingError::Size(size));
        }
        let aligned = config.desc.is_multiple_of(16)
            && config.avail.is_multiple_of(2)
            && config.used.is_multiple_of(4);
        if !aligned {
            return Err(RingError::Misaligned);
        }
        let entries = usize::from(size);
        let area = |addr, len| memory.area(addr, len).ok_or(RingError::Outside);
        let used_len = RING_HEADER + 8 * entries + 2;
        let used = area(config.used, used_len)?;
        if let Some(log) = config.log_used {
            // A predecessor may have died after writing here and before logging it.
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
            call_checked: used_idx,
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

    /// Records the chains in flight in memory that outlives this process. Returns the heads that an earlier process
    /// took but never completed, in that process's order. The caller must take them again with [`Queue::retake`].
    ///
    /// # Errors
    /// [`RingError::Inflight`] when the region does not fit.
    pub fn track(&mut self, region: M::Area, region_len: usize) -> Result<Vec<u16>, RingError> {
        let mut inflight =
            Inflight::open(region, region_len, self.config.size).ok_or(RingError::Inflight)?;
        let heads = inflight.recover(self.used_idx);
        if !inflight.is_fresh() {
            // Every taken chain is either used or in flight, so the record gives the exact position. The front end's
            // base is less certain: after a crash it is the used index, or one from before the last completions.
            let resumed = u16::try_from(heads.len()).map_err(|_| RingError::Inflight)?;
            self.last_avail = self.used_idx.wrapping_add(resumed);
            self.avail_seen = self.last_avail;
        }
        self.inflight = Some(inflight);
        Ok(heads)
    }

    /// The number of chains that are taken and not completed.
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// The next available entry: the answer to `GET_VRING_BASE` once nothing is in flight.
    pub fn position(&self) -> u16 {
        self.last_avail
    }

    /// The next used entry: it moves by one with each completed chain.
    pub fn answered(&self) -> u16 {
        self.used_idx
    }

    /// Whether any process has completed a request in this ring.
    pub fn was_used(&self) -> bool {
        self.used_idx != 0
    }

    /// Whether an earlier process recorded this ring in the region passed to [`Queue::track`].
    pub fn is_resumed(&self) -> bool {
        let region = self.inflight.as_ref();
        region.is_some_and(|region| !region.is_fresh())
    }

    /// The guest's current available index.
    pub fn available(&self) -> u16 {
        self.avail.load_u16(IDX)
    }

    /// The work so far of following chains, valid or malformed: descriptors read, plus segments from splitting at
    /// region boundaries. Plain reads and writes are not counted: they are minimal.
    pub fn walked(&self) -> u64 {
        self.walked
    }

    /// Entries in the ring.
    pub fn size(&self) -> u16 {
        self.config.size
    }

    /// Whether the guest has made chains available that are not taken yet.
    pub fn has_work(&self) -> bool {
        self.avail_seen != self.last_avail || self.avail.load_u16(IDX) != self.last_avail
    }

    /// Prefetches the header of a waiting request ([`Queue::has_work`]) that will be taken soon, if the guest runs one
    /// request at a time. Drivers reuse the memory that was freed last, so the header is at the same address as the
    /// previous one.
    #[inline]
    pub fn prefetch_next_header(&self, memory: &M) {
        if self.lone {
            memory.prefetch(self.last_header);
        }
    }

    /// Takes the next chain. Its data segments are stored in `data`, which is cleared first.
    ///
    /// # Errors
    /// [`RingError`] when the ring is invalid.
    pub fn next(
        &mut self,
        memory: &M,
        data: &mut Vec<M::Segment>,
    ) -> Result<Option<Taken<M::Segment>>, RingError> {
        if self.avail_seen == self.last_avail {
            let idx = self.avail.acquire_u16(IDX);
            if idx.wrapping_sub(self.last_avail) > self.config.size {
                return Err(RingError::IndexJump {
                    available: idx,
                    position: self.last_avail,
                });
            }
            if idx == self.last_avail {
                return Ok(None);
            }
            self.avail_seen = idx;
            let waiting = idx.wrapping_sub(self.last_avail);
            // A single chain is read at once: no other work could hide the latency.
            self.lone = waiting == 1;
            if !self.lone {
                for ahead in 0..waiting.min(TABLE_AHEAD) {
                    self.prefetch_descriptor(ahead);
                }
                for ahead in 0..waiting.min(HEADER_AHEAD) {
                    self.prefetch_table(memory, ahead);
                }
            }
        }
        self.look_ahead(memory);
        let head = self.head(0);
        if head >= self.config.size {
            return Err(RingError::Head(head));
        }
        if self.taken[usize::from(head)] {
            return Err(RingError::Reused(head));
        }
        self.last_avail = self.last_avail.wrapping_add(1);
        if let Some(inflight) = &mut self.inflight {
            inflight.take(head);
        }
        Ok(Some(self.open(memory, head, data)))
    }

    /// The head of the chain `ahead` places after the next one in the available ring. An unchecked value from the
    /// guest.
    #[inline]
    fn head(&self, ahead: u16) -> u16 {
        let slot = usize::from(self.last_avail.wrapping_add(ahead) & self.mask);
        self.avail.load_u16(RING_HEADER + 2 * slot)
    }

    /// Prefetches the memory of the chains after the next one. The guest wrote it on another CPU, so each step from
    /// descriptor to table to header would wait for that CPU's cache. The prefetches run in parallel.
    #[inline]
    fn look_ahead(&self, memory: &M) {
        let waiting = self.avail_seen.wrapping_sub(self.last_avail);
        if waiting > DESCRIPTOR_AHEAD {
            self.prefetch_descriptor(DESCRIPTOR_AHEAD);
        }
        if waiting > TABLE_AHEAD {
            self.prefetch_table(memory, TABLE_AHEAD);
        }
        if waiting > HEADER_AHEAD {
            self.prefetch_header(memory, HEADER_AHEAD);
        }
    }

    #[inline]
    fn prefetch_descriptor(&self, ahead: u16) {
        self.desc
            .prefetch(DESC_BYTES * usize::from(self.head(ahead)));
    }

    /// Prefetches the target of the first descriptor: the header, or the indirect table.
    #[inline]
    fn prefetch_table(&self, memory: &M, ahead: u16) {
        if let Some(first) = self.first(ahead) {
            memory.prefetch(first.addr);
        }
    }

    #[inline]
    fn prefetch_header(&self, memory: &M, ahead: u16) {
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
    /// [`RingError`] when the head is invalid.
    pub fn retake(
        &mut self,
        memory: &M,
        head: u16,
        data: &mut Vec<M::Segment>,
    ) -> Result<Taken<M::Segment>, RingError> {
        if head >= self.config.size {
            return Err(RingError::Head(head));
        }
        if self.taken[usize::from(head)] {
            return Err(RingError::Reused(head));
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

    /// The chain's request, if it is a plain read or write. Almost all are.
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
        // An indirect table of exactly three descriptors.
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

    /// The chain's request, for any layout.
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

    /// Follows a chain and sorts its segments into readable and writable ones. On an error `writable` holds only the
    /// status byte, or nothing if its position is uncertain.
    fn walk(
        &self,
        memory: &M,
        head: u16,
        first: &Descriptor,
        readable: &mut Vec<M::Segment>,
        writable: &mut Vec<M::Segment>,
        walked: &mut u64,
    ) -> Result<(), ChainError> {
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
            return Err(ChainError::Indirect);
        }
        let entries = u16::try_from(bytes / DESC_BYTES).map_err(|_| ChainError::Indirect)?;
        let load = |index| {
            memory.load_pair(
                first
                    .addr
                    .checked_add(DESC_BYTES as u64 * u64::from(index))?,
            )
        };
        follow(memory, load, 0, entries, readable, writable, walked)
    }

    /// Returns a chain with `written` bytes of its writable part filled. The guest sees it after `publish`.
    ///
    /// # Panics
    /// When `head` is not in flight: a request would be completed twice.
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

    /// Publishes all completed chains in one store. [`Queue::wants_call`] returns whether the guest needs a call.
    pub fn publish(&mut self, memory: &M) -> u16 {
        let old = self.published;
        if old == self.used_idx {
            return 0;
        }
        self.used.release_u16(IDX, self.used_idx);
        self.published = self.used_idx;
        if let Some(inflight) = &mut self.inflight {
            inflight.published(self.used_idx);
        }
        self.log_used(memory, old);
        self.used_idx.wrapping_sub(old)
    }

    /// Whether the guest wants a call for the chains published since the last check. The check may be delayed after
    /// publishing: a guest that has seen its completions no longer wants a call.
    pub fn wants_call(&mut self) -> bool {
        let old = self.call_checked;
        if old == self.published {
            return false;
        }
        self.call_checked = self.published;
        // The guest's setting must be read after our index is visible. Otherwise both sides would wait.
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
            // The front end may set any address. The log ignores addresses beyond its end.
            memory.mark_dirty(base.wrapping_add(at as u64), 8);
            idx = idx.wrapping_add(1);
        }
        memory.mark_dirty(base, RING_HEADER);
    }

    /// Suppresses kicks: the ring is polled.
    pub fn silence_kicks(&mut self, memory: &M) {
        if !self.kicks_wanted {
            return;
        }
        self.kicks_wanted = false;
        if !self.config.event_idx {
            self.store_and_log(memory, 0, USED_NO_NOTIFY);
        } else if !self.has_work() {
            // The event index is moved behind the guest's position, if the guest has not passed it yet. If it has,
            // kicks are suppressed already. The write is avoided because it is expensive: the guest reads this word for
            // each request.
            self.set_kick_event(memory, self.last_avail.wrapping_sub(1));
        }
    }

    /// Requests a kick for the next request. Returns whether a request arrived meanwhile, for which no kick may follow.
    pub fn want_kicks(&mut self, memory: &M) -> bool {
        self.kicks_wanted = true;
        if self.config.event_idx {
            self.set_kick_event(memory, self.last_avail);
        } else {
            self.store_and_log(memory, 0, 0);
        }
        fence(Ordering::SeqCst);
        self.has_work()
    }

    /// Requests a kick for the last of the next `batch` requests, which are at least one; none, without event-idx. Returns
    /// whether a request is there already.
    pub fn want_kicks_after(&mut self, memory: &M, batch: u16) -> bool {
        if !self.config.event_idx {
            self.silence_kicks(memory);
            return self.has_work();
        }
        self.kicks_wanted = true;
        let ahead = batch.min(self.config.size).saturating_sub(1);
        self.set_kick_event(memory, self.last_avail.wrapping_add(ahead));
        fence(Ordering::SeqCst);
        self.has_work()
    }

    /// With event-idx: requests a kick for the request at this position only.
    fn set_kick_event(&self, memory: &M, position: u16) {
        let avail_event = RING_HEADER + 8 * usize::from(self.config.size);
        self.store_and_log(memory, avail_event, position);
    }

    /// Writes a notification word of the used ring, and logs it.
    fn store_and_log(&self, memory: &M, at: usize, word: u16) {
        self.used.store_u16(at, word);
        if let Some(log) = self.config.log_used {
            memory.mark_dirty(log.wrapping_add(at as u64), 2);
        }
    }
}

/// The start position of a ring for the front end's `base`. Nothing is used before it is taken, so a base behind the
/// used index is outdated: a predecessor completed requests after it was read.
fn position(base: u16, used_idx: u16, size: u16) -> u16 {
    let behind = used_idx.wrapping_sub(base);
    if behind <= size { used_idx } else { base }
}
