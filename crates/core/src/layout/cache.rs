//! The flash cache of a disk: the pages that it uses most, on flash.
//!
//! The cache is a layout over any other. Its target 0 is the disk below it, the others are one or two flash devices that
//! have the same bytes. A disk has its own part of the devices, its own map and its own journal.
//!
//! A page is 64 KiB, and its blocks of 4 KiB are valid and dirty one by one. In write-through mode a write of a cached page
//! goes to flash, and then to the disk. In write-back mode it goes to flash, and to the disk later. Both have the same
//! states on flash: a block is dirty until the disk has it durably.
//!
//! # Always true
//! - a read returns the newest acknowledged bytes, or those of a write that overlaps it
//! - dirty means that every device that is used has the newest bytes durably
//! - a page of an earlier use of the cache, or of another disk, is never served
//! - a block on flash is written only if no durable record names it
//!
//! # Picture
//! ```text
//!            read: hit ────────────> flash, checked
//!   guest ──       miss ───────────> disk ──> guest, and to flash if it is worth it
//!            write ──> flash ──> record ──> answer ──(later)──> disk ──> flush ──> record: clean
//!                                     └──(write-through)──> disk ──> answer
//! ```
//!
//! # Source
//! FAST Cache (EMC) for pages and promotion by the number of accesses; Open CAS, bcache and dm-cache for what has gone wrong.

use super::slots::Slots;
use super::{
    BlockOutcome, CacheReport, Check, Hit, HitCx, Layout, LayoutCx, LayoutIo, LayoutNotice,
    LayoutOrder, Load, Map as Mapped, MemberReport, OrderRefusal, Ordered, Refusal, Target,
};
use crate::block::BLOCK;
use crate::range_lock::{Mode, RangeLock, Wanted};
use crate::request::{Data, Fault, Flags, IoId, Op as RequestOp, Outcome};
use crate::units::Time;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use area::Area;
use around::{Flushing, Stage};
use clean::Cleaner;
use fill::{Filler, Filling};
use hit::ManyBlocks;
use join::{Joiner, Joining};
use journal::{Heading, Journal};
use keep::Keeper;
use loose::Loose;
use map::Map;
use open::Opening;
use policy::{Exported, Params};
use read::Piece;
use resync::{Copying, Resync};
use size::Shrinking;
use write::{Part, in_pages};

mod age;
pub mod area;
mod around;
pub mod blocks;
pub mod broker;
pub mod budget;
mod clean;
mod fill;
mod hit;
mod join;
mod journal;
mod keep;
pub mod label;
mod loose;
mod map;
mod open;
pub mod policy;
mod read;
mod resync;
mod size;
mod write;

/// Bytes of a page. Origin: FAST Cache.
pub const PAGE: u64 = 64 << 10;
/// Bytes of a block, the unit that is valid or dirty.
pub const CACHE_BLOCK: u64 = 4 << 10;
/// Blocks of a page.
pub const BLOCKS: usize = 16;

/// The disk below the cache.
const BACKING: Target = Target(0);

/// When writes are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// Once the disk has them.
    WriteThrough,
    /// Once flash has them.
    WriteBack,
}

impl CacheMode {
    fn is_write_back(self) -> bool {
        self == CacheMode::WriteBack
    }
}

/// What may enter a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// What is read and what is written.
    #[default]
    All,
    /// Only what is read. A write goes to the disk, and what the cache has of it is given up.
    Reads,
    /// Nothing. The cache answers reads of what it has, and writes are as with [`Admission::Reads`].
    Nothing,
}

/// What a cache is built of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSetup {
    /// The cache's identity.
    pub cache: [u8; 16],
    /// The disk's identity.
    pub disk: [u8; 16],
    /// Size of the disk, in bytes.
    pub size: u64,
    /// Flash devices: one, or two that have the same bytes.
    pub devices: u8,
    /// Where its part of the devices is.
    pub area: Area,
    /// The mode.
    pub mode: CacheMode,
    /// The use of the disk that its descriptor names, and the one that begins now.
    pub attachments: [u64; 2],
    /// Whether the descriptor says that the cache may have what the disk does not.
    pub has_dirty: bool,
    /// Devices that are not used, whatever they have, one bit each.
    pub without: u32,
    /// What it keeps; `None` for the default.
    pub policy: Option<Params>,
    /// What the policy had learned in an earlier use of the disk
    /// ([`Shard::export_policy`](crate::shard::Shard::export_policy)). It begins anew if this is empty, or no such state.
    pub policy_state: Vec<u8>,
}

/// See the module.
pub struct Cache {
    setup: CacheSetup,
    area: Area,
    size: u64,
    mode: CacheMode,
    admission: Admission,
    /// Whether flash may have what the disk does not.
    keeps_dirty: bool,
    state: State,
    /// Devices that have everything, one bit for each target.
    in_sync: u32,
    map: Map,
    journal: Journal,
    heading: Heading,
    keeper: Keeper,
    cleaner: Cleaner,
    lock: RangeLock,
    ops: Slots<Op>,
    reads: Slots<Piece>,
    /// Reads of several blocks that one run of blocks on flash has, while they are there.
    direct: Slots<ManyBlocks>,
    parts: Slots<Part>,
    flushes: Slots<Flushing>,
    fillings: Slots<Filling>,
    filler: Filler,
    joinings: Slots<Joining>,
    joiner: Joiner,
    copies: Slots<Copying>,
    /// I/Os that copy pages to a device.
    copy_ops: u32,
    resync: Option<Resync>,
    /// How often that was begun.
    resyncs: u32,
    /// Whether the copies wait for a buffer.
    resync_waits: bool,
    /// Devices that could be read at the start: those that were left behind get everything again.
    behind_at_start: u32,
    shrinking: Option<Shrinking>,
    /// Where the next header of each device goes after the start.
    places: [u64; 2],
    /// I/Os that have got their range, while they are being begun.
    started: Vec<u32>,
    is_starting: bool,
    /// Parts and pieces that wait for a buffer.
    hungry: VecDeque<u32>,
    hungry_reads: VecDeque<u32>,
    /// Pieces that are to be read again with their range locked.
    again: Vec<u32>,
    /// Pages with blocks that were given up, and the change that says so.
    unsettled: BTreeMap<u32, u64>,
    /// Of these, blocks of which flash and the disk have different bytes until then.
    doubtful: BTreeMap<u32, u16>,
    /// I/Os that wait for pages to settle, and for the cleaner.
    settling: Vec<u32>,
    behind: Vec<u32>,
    /// Parts that go to the disk once their page is not being cleaned.
    parts_behind: Vec<u32>,
    /// Parts and I/Os that no device can record.
    stranded: Vec<u32>,
    stranded_ops: Vec<u32>,
    /// I/Os that wait until the cache is given up.
    held: Vec<u32>,
    /// Whether the disk has writes that were not flushed.
    unflushed: bool,
    /// Of these, the ones past the cache that no flush under way covers.
    loose: Loose,
    /// The device that the last read went to.
    last_read: u8,
    closing: bool,
    /// Whether the disk is being detached: nothing waits for an administrator.
    detaching: bool,
    /// Whether the cache is to be given up.
    gives_up: bool,
    hits: u64,
    misses: u64,
    fills: u64,
    read_faults: u64,
    /// Blocks that were read from flash and were not as they were written, each time.
    corrupt_blocks: u64,
    /// When a page with such blocks was reported last.
    corrupt_said: Option<Time>,
    /// Bytes of pages written to flash, and those of the journal and of headers.
    data_bytes: u64,
    journal_bytes: u64,
}

enum State {
    Opening(Box<Opening>),
    Refused,
    Ready,
    /// No device is left, and nothing is lost by that. Writes wait until the cache is given up.
    Losing,
    /// The cache is given up: everything goes to the disk.
    Through,
    /// No device is left, and it had what the disk does not.
    Lost,
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        core::mem::discriminant(self) == core::mem::discriminant(other)
    }
}

/// Whose an I/O is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// It is one that the cache has taken, and is answered.
    Guest,
    /// The cache fills a page.
    Fill,
    /// The cache copies a page to a device.
    Copy,
    /// The cache moves the blocks of a second slot.
    Join,
}

/// An I/O that the cache has taken, or one of its own.
struct Op {
    task: Task,
    io: LayoutIo,
    /// Whether it is part of a long sequence.
    is_sequential: bool,
    lock: Locked,
    /// Whether it has asked for its range alone.
    is_exclusive: bool,
    is_begun: bool,
    /// Parts of it that have not ended.
    open: u32,
    /// Pages of it that become part of the cache, one bit each, and how many are on their way.
    fills: u32,
    filling: u32,
    is_answered: bool,
    fault: Option<Fault>,
    stage: Stage,
}

/// Whether an I/O has its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Locked {
    No,
    Asked,
    Has,
}

/// What a tag names: the kind, more about it, a target and a number.
const READ: u64 = 0;
const READ_SUM: u64 = 1 << 56;
const EDGE: u64 = 2 << 56;
const EDGE_SUM: u64 = 3 << 56;
const PART_SUM: u64 = 4 << 56;
const DATA: u64 = 5 << 56;
const BACK: u64 = 6 << 56;
const DIRECT: u64 = 7 << 56;
const AROUND: u64 = 8 << 56;
const FLUSH: u64 = 9 << 56;
const CLEAN_READ: u64 = 10 << 56;
const CLEAN_SUM: u64 = 11 << 56;
const CLEAN_WRITE: u64 = 12 << 56;
const JOURNAL: u64 = 13 << 56;
const HEADER: u64 = 14 << 56;
const OPEN_HEADER: u64 = 15 << 56;
const OPEN_JOURNAL: u64 = 16 << 56;
const EXTENTS: u64 = 17 << 56;
const FILL: u64 = 18 << 56;
const COPY_READ: u64 = 19 << 56;
const COPY_SUM: u64 = 20 << 56;
const COPY_WRITE: u64 = 21 << 56;
const SYNC_HEADER: u64 = 22 << 56;
const SYNC_BLANK: u64 = 23 << 56;
const MARK: u64 = 24 << 56;
const JOIN_READ: u64 = 25 << 56;
const JOIN_SUM: u64 = 26 << 56;
const KIND: u64 = 0xff << 56;

fn tag(kind: u64, number: u32, target: Target) -> u64 {
    kind | u64::from(target.0) << 32 | u64::from(number)
}

/// A block, and the devices that were tried, one bit each, in a tag.
fn aux(block: usize, tried: u8) -> u64 {
    (block as u64) << 40 | u64::from(tried) << 48
}

/// The target, the block and the devices that were tried, and the number in a tag.
fn untag(tag: u64) -> (Target, (usize, u8), u32) {
    let [a, b, c, d, target, block, tried, _] = tag.to_le_bytes();
    let number = u32::from_le_bytes([a, b, c, d]);
    (Target(target), (block.into(), tried), number)
}

/// Targets of a set of devices.
fn each(devices: u32) -> impl Iterator<Item = Target> {
    (1..=2)
        .filter(move |device| devices >> device & 1 == 1)
        .map(Target)
}

/// A device as one bit.
fn bit(device: Target) -> u8 {
    1 << device.0
}

/// The blocks of a mask.
fn blocks_of(mask: u16) -> impl Iterator<Item = usize> {
    (0..BLOCKS).filter(move |block| mask >> block & 1 == 1)
}

/// The mask of the blocks from the first to the last one.
fn masked(first: u64, last: u64) -> u16 {
    let mask = (u32::from(u16::MAX) >> (15 - (last - first))) << first;
    u16::try_from(mask & 0xffff).expect("16 bits")
}

/// A page's number has 32 bits: a disk is below 256 TiB.
fn page_number(page: u64) -> u32 {
    u32::try_from(page).unwrap_or(u32::MAX)
}

/// The page and the block of a byte.
fn block_of(byte: u64) -> (u32, usize) {
    let block = byte % PAGE / CACHE_BLOCK;
    (
        page_number(byte / PAGE),
        usize::try_from(block).expect("16 blocks"),
    )
}

/// The blocks of a page that a range covers, at least in part.
fn blocks_within(page: u32, start: u64, end: u64) -> u16 {
    let first = u64::from(page) * PAGE;
    let (start, end) = (start.max(first), end.min(first + PAGE));
    if start >= end {
        return 0;
    }
    masked(
        (start - first) / CACHE_BLOCK,
        (end - 1 - first) / CACHE_BLOCK,
    )
}

/// The part of a block's CRC32C that is kept for each block.
fn check(sum: u32) -> u16 {
    let folded = (sum ^ sum >> 16) & 0xffff;
    u16::try_from(folded).expect("16 bits")
}

/// A length within a request's bytes.
fn skip(bytes: u64) -> u32 {
    u32::try_from(bytes).expect("front ends bound a request with bytes")
}

impl Cache {
    /// A cache that has not opened.
    ///
    /// # Panics
    /// Unless there are one or two devices.
    pub fn new(mut setup: CacheSetup) -> Cache {
        assert!(matches!(setup.devices, 1 | 2), "one device, or two");
        let mut keeper = Keeper::new(setup.area.slots());
        if let Some(params) = setup.policy {
            keeper.set_params(params);
        }
        let learned = core::mem::take(&mut setup.policy_state);
        // Bytes that are no state change nothing.
        let _ = keeper.import(setup.size, &learned);
        let heading = Heading::new(blocks::Header {
            cache: setup.cache,
            disk: setup.disk,
            generation: 0,
            epoch: 0,
            tail: 0,
            attachments: setup.attachments,
            size: setup.size,
            in_sync: 1,
            device: 0,
            devices: setup.devices,
            write_back: false,
        });
        Cache {
            area: setup.area.clone(),
            size: setup.size,
            mode: setup.mode,
            admission: Admission::All,
            keeps_dirty: setup.has_dirty || setup.mode.is_write_back(),
            state: State::Opening(Box::new(Opening::new())),
            in_sync: 0,
            map: Map::new(0),
            journal: Journal::new(0, 1),
            heading,
            keeper,
            cleaner: Cleaner::default(),
            lock: RangeLock::new(),
            ops: Slots::new(),
            reads: Slots::new(),
            direct: Slots::new(),
            parts: Slots::new(),
            flushes: Slots::new(),
            fillings: Slots::new(),
            filler: Filler::default(),
            joinings: Slots::new(),
            joiner: Joiner::default(),
            copies: Slots::new(),
            copy_ops: 0,
            resync: None,
            resyncs: 0,
            resync_waits: false,
            behind_at_start: 0,
            shrinking: None,
            places: [0; 2],
            started: Vec::new(),
            is_starting: false,
            hungry: VecDeque::new(),
            hungry_reads: VecDeque::new(),
            again: Vec::new(),
            unsettled: BTreeMap::new(),
            doubtful: BTreeMap::new(),
            settling: Vec::new(),
            behind: Vec::new(),
            parts_behind: Vec::new(),
            stranded: Vec::new(),
            stranded_ops: Vec::new(),
            held: Vec::new(),
            unflushed: true,
            loose: Loose::all(),
            last_read: 0,
            closing: false,
            detaching: false,
            gives_up: false,
            hits: 0,
            misses: 0,
            fills: 0,
            read_faults: 0,
            corrupt_blocks: 0,
            corrupt_said: None,
            data_bytes: 0,
            journal_bytes: 0,
            setup,
        }
    }

    /// All devices, one bit for each target.
    fn devices(&self) -> u32 {
        if self.setup.devices == 1 { 0b10 } else { 0b110 }
    }

    /// Whether flash can be written.
    fn is_writable(&self) -> bool {
        (self.state == State::Ready || self.is_settling_open()) && self.in_sync != 0
    }

    fn is_readable(&self) -> bool {
        self.is_writable()
    }

    /// Where blocks end that may be cached: one that the end of the disk cuts would have other bytes after the disk grew.
    fn cached_end(&self) -> u64 {
        self.size / CACHE_BLOCK * CACHE_BLOCK
    }

    /// The epoch of a journal that begins with this use of the disk. It differs from those of other disks and caches: chunks
    /// still have their blocks.
    fn new_epoch(&self) -> u64 {
        let CacheSetup { cache, disk, .. } = &self.setup;
        let words = cache
            .as_chunks::<8>()
            .0
            .iter()
            .chain(disk.as_chunks::<8>().0);
        let words = words.map(|word| u64::from_le_bytes(*word));
        words
            .chain([self.setup.attachments[1]])
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, word| {
                let mixed = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                mixed ^ (mixed >> 32)
            })
    }

    /// The device that a read goes to if these were tried, one bit each: the least loaded one, in turn.
    #[inline(always)]
    fn reader(&mut self, loads: &[Load], tried: u8) -> Option<Target> {
        let left = self.in_sync & !u32::from(tried);
        match left {
            0b10 => Some(Target(1)),
            0b100 => Some(Target(2)),
            _ => self.reader_of(loads, left),
        }
    }

    fn reader_of(&mut self, loads: &[Load], left: u32) -> Option<Target> {
        let last = self.last_read;
        let load = |device: Target| loads.get(usize::from(device.0));
        let load = |device| load(device).map_or(0, |load| load.in_flight);
        let ready = each(left).min_by_key(|device| (load(*device), device.0 == last));
        self.last_read = ready?.0;
        ready
    }

    fn insert_op(&mut self, io: &LayoutIo, fills: u32) -> u32 {
        self.ops.insert(Op {
            task: Task::Guest,
            io: *io,
            is_sequential: false,
            lock: Locked::No,
            is_exclusive: false,
            is_begun: false,
            open: 0,
            fills,
            filling: 0,
            is_answered: false,
            fault: None,
            stage: Stage::Begins,
        })
    }

    /// An I/O of its own, of which no guest knows.
    fn insert_task(&mut self, task: Task, offset: u64, len: u64) -> u32 {
        let io = LayoutIo {
            id: IoId::NONE,
            op: RequestOp::Read,
            flags: Flags::NONE,
            offset,
            len,
            data: Data::NONE,
            background: true,
        };
        let number = self.insert_op(&io, 0);
        let op = self.ops.at(number);
        (op.task, op.is_answered) = (task, true);
        number
    }

    /// Locks the range of such an I/O.
    fn lock_task(&mut self, cx: &mut LayoutCx<'_>, number: u32, mode: Mode) {
        let op = self.ops.at(number);
        op.lock = Locked::Asked;
        let wanted = Wanted {
            id: number,
            start: op.io.offset,
            end: op.io.offset + op.io.len,
            mode,
        };
        if self.lock.acquire(wanted) {
            self.locked(cx, number);
        }
    }

    /// Locks the range of a guest's I/O. What is locked in the background becomes urgent if it has to wait.
    fn lock_or_hurry(&mut self, cx: &mut LayoutCx<'_>, wanted: Wanted) {
        if self.lock.acquire(wanted) {
            self.locked(cx, wanted.id);
        } else if self.filler.active + self.copy_ops + self.joiner.active > 0 {
            cx.hurry();
        }
    }

    /// Takes an I/O that changes the disk.
    fn take_modifying(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) -> Mapped {
        if io.len == 0 {
            return Mapped::Done(Ok(()));
        }
        let number = self.insert_op(io, 0);
        self.ops.at(number).lock = Locked::Asked;
        if io.op == RequestOp::Write {
            let is_sequential = self.note_stream(io.offset, io.len);
            self.ops.at(number).is_sequential = is_sequential;
            if !is_sequential {
                in_pages(io.offset, io.len)
                    .for_each(|piece| self.shadow(cx.now(), piece.page, piece.blocks, true));
            }
        }
        let wanted = Wanted {
            id: number,
            start: io.offset / CACHE_BLOCK * CACHE_BLOCK,
            end: (io.offset + io.len).next_multiple_of(CACHE_BLOCK),
            mode: match self.state {
                State::Through => Mode::Shared,
                _ => Mode::Exclusive,
            },
        };
        self.lock_or_hurry(cx, wanted);
        Mapped::Issued
    }

    /// An I/O has its range.
    fn locked(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let op = self.ops.at(number);
        op.lock = Locked::Has;
        let io = op.io;
        match (op.task, op.io.op.modifies()) {
            (Task::Guest, true) => self.modify_locked(cx, number),
            (Task::Guest, false) if self.is_lost_to(&io) => {
                self.ops.at(number).fault = Some(Fault::Io);
                self.end(cx, number);
            }
            (Task::Guest, false) => self.read_locked(cx, number),
            (Task::Fill, _) => self.fill_locked(cx, number),
            (Task::Copy, _) => self.copy_locked(cx, number),
            (Task::Join, _) => self.join_locked(cx, number),
        }
    }

    fn modify_locked(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        match self.state {
            State::Ready => {}
            State::Losing if self.waits_for_order() => return self.held.push(number),
            State::Through => return self.pass(cx, number),
            _ => {
                self.ops.at(number).fault = Some(Fault::Io);
                return self.end(cx, number);
            }
        }
        match self.ops.at(number).io.op {
            RequestOp::Write if self.admission == Admission::All => self.write_locked(cx, number),
            _ => self.around(cx, number),
        }
    }

    /// Sends an I/O to the disk as it is.
    fn pass(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let op = self.ops.at(number);
        op.stage = Stage::Disk { dirty: false };
        let io = op.io;
        let sub = super::SubIo {
            target: BACKING,
            op: io.op,
            flags: io.flags,
            offset: io.offset,
            len: io.len,
            data: io.data,
            background: io.background,
        };
        cx.issue(tag(AROUND, number, BACKING), sub);
    }

    /// A part of an I/O has ended.
    fn op_part_ended(&mut self, cx: &mut LayoutCx<'_>, number: u32, fault: Option<Fault>) {
        let op = self.ops.at(number);
        op.open -= 1;
        op.fault = op.fault.or(fault);
        if op.open == 0 {
            self.end(cx, number);
        }
    }

    /// A page that an I/O brings into the cache is there, or not.
    fn fill_ended(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let op = self.ops.at(number);
        op.filling -= 1;
        if op.filling == 0 && op.is_answered {
            self.unlock(cx, number);
        }
    }

    /// Answers an I/O.
    fn end(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let op = self.ops.at(number);
        op.is_answered = true;
        let outcome = op.fault.map_or(Ok(()), Err);
        cx.answer(op.io.id, outcome);
        if op.filling == 0 {
            self.unlock(cx, number);
        }
    }

    /// Forgets an I/O, and lets those go on that waited for its range.
    fn unlock(&mut self, cx: &mut LayoutCx<'_>, number: u32) {
        let op = self.ops.remove(number);
        match op.task {
            Task::Guest => {}
            Task::Fill => self.filler.active -= 1,
            Task::Copy => self.copy_ops -= 1,
            Task::Join => self.joiner.active -= 1,
        }
        let has_range = op.lock != Locked::No;
        if has_range {
            // Before another one gets its number.
            self.lock.release(number, &mut self.started);
        }
        self.make_room(cx);
        if has_range {
            self.start_waiting(cx);
        }
    }

    /// Begins what has got its range. One that ends at once lets the next ones go on: a loop, because a guest decides how
    /// many wait.
    fn start_waiting(&mut self, cx: &mut LayoutCx<'_>) {
        if core::mem::replace(&mut self.is_starting, true) {
            return;
        }
        let mut next = 0;
        while let Some(&number) = self.started.get(next) {
            next += 1;
            self.locked(cx, number);
        }
        self.started.clear();
        self.is_starting = false;
    }

    /// A slot is used by one I/O less.
    fn unpin(&mut self, _cx: &mut LayoutCx<'_>, slot: u32) {
        self.map.unpin(slot);
        self.remove_if_empty(slot);
    }

    /// A page without a valid block leaves the cache, if nothing uses it and no durable record names it.
    #[inline(always)]
    fn remove_if_empty(&mut self, slot: u32) {
        // Most have one.
        if self.map.slot(slot).valid == 0 {
            self.remove_unless_used(slot);
        }
    }

    fn remove_unless_used(&mut self, slot: u32) {
        let page = self.map.page(slot);
        let is_used = self.map.slot(slot).is_pinned() || self.unsettled.contains_key(&page);
        if is_used || self.map.masks(slot).0 != 0 {
            return;
        }
        self.cleaner.cleaned(page);
        self.policy_remove(slot);
        for slot in self.map.remove(page).into_iter().flatten() {
            self.map.free_slot(slot);
        }
    }

    /// No device is left.
    fn lost(&mut self, cx: &mut LayoutCx<'_>, fault: Fault) {
        let dirty = match self.keeps_dirty {
            true => self.cleaner.dirty_pages() as u64,
            // The disk has had every acknowledged write.
            false => 0,
        };
        let opening = matches!(self.state, State::Opening(_));
        if opening && dirty > 0 {
            // The header does not say that this use of the disk has begun: nothing may begin.
            return self.opened(cx, Err(Refusal::Failed(Target(1), fault)));
        }
        self.state = match dirty {
            0 => State::Losing,
            _ => State::Lost,
        };
        cx.notice(LayoutNotice::CacheLost { fault, dirty });
        if opening {
            cx.opened(Ok(()));
        }
        self.release_stuck(cx);
    }

    /// What waits for flash goes on without it, or waits until the cache is given up.
    fn release_stuck(&mut self, cx: &mut LayoutCx<'_>) {
        for waiter in self.journal.drain() {
            match waiter {
                journal::Waiter::Part(part) => self.strand(cx, part),
                journal::Waiter::Op(op) => self.strand_op(cx, op),
                journal::Waiter::Settled(_) => {}
            }
        }
        self.resume_settled(cx);
        self.resume_behind(cx);
    }

    /// Changes when writes are answered.
    fn set_mode(&mut self, cx: &mut LayoutCx<'_>, mode: CacheMode) -> Result<(), OrderRefusal> {
        if self.state != State::Ready {
            return Err(OrderRefusal::NotOpen);
        }
        self.mode = mode;
        // What is dirty until now may be durable on flash only, also if the disk has it.
        self.keeps_dirty =
            mode.is_write_back() || self.keeps_dirty && self.cleaner.dirty_pages() > 0;
        self.heading.header.write_back = self.keeps_dirty;
        self.must_head(cx);
        if !mode.is_write_back() {
            self.clean_all(cx);
        }
        Ok(())
    }

    /// An administrator does without a device.
    fn drop_device(&mut self, cx: &mut LayoutCx<'_>, device: Target) -> Result<(), OrderRefusal> {
        let bit = 1 << device.0;
        if self.devices() & bit == 0 {
            return Err(OrderRefusal::NoMember);
        }
        if self.in_sync == bit {
            return Err(OrderRefusal::Last);
        }
        self.do_without(cx, device, super::DropCause::Ordered);
        Ok(())
    }

    /// Whether the cache is given up, or somebody may still order that.
    fn waits_for_order(&self) -> bool {
        self.gives_up || !self.detaching
    }

    /// Nobody gives the cache up any more: what waits for that fails.
    fn release_held(&mut self, cx: &mut LayoutCx<'_>) {
        if !matches!(self.state, State::Losing | State::Through) {
            return;
        }
        self.rescue_stranded(cx);
        for op in core::mem::take(&mut self.stranded_ops) {
            self.strand_op(cx, op);
        }
        for op in core::mem::take(&mut self.held) {
            self.modify_locked(cx, op);
        }
    }

    /// The cache is given up: no use of the disk counts it as valid any more.
    fn give_up_cache(&mut self, cx: &mut LayoutCx<'_>) -> Result<(), OrderRefusal> {
        if self.state != State::Losing {
            return Err(OrderRefusal::Busy);
        }
        self.cleaner.is_paused = true;
        self.gives_up = true;
        self.go_through(cx);
        Ok(())
    }

    /// Sends everything to the disk, once the cleaner has nothing there any more: its bytes are older than what follows.
    fn go_through(&mut self, cx: &mut LayoutCx<'_>) {
        if !self.gives_up || self.state != State::Losing || !self.cleaner.is_idle() {
            return;
        }
        self.state = State::Through;
        self.release_held(cx);
    }
}

impl Layout for Cache {
    fn name(&self) -> &'static str {
        "cache"
    }

    fn open(&mut self, cx: &mut LayoutCx<'_>, _usable: u32, _fresh: bool) {
        self.begin_opening(cx);
    }

    fn hit(&mut self, cx: &HitCx<'_>, offset: u64, len: u64) -> Option<Hit> {
        self.take_hit(cx, offset, len)
    }

    fn map(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) -> Mapped {
        self.cleaner.busy_at = cx.now();
        self.choose_policy(cx);
        // A write that was rescued may write more than its own bytes: what overlaps it waits.
        if self.state == State::Through && (self.lock.is_idle() || !io.op.modifies()) {
            return Mapped::One {
                target: BACKING,
                offset: io.offset,
            };
        }
        match io.op {
            RequestOp::Read => self.take_read(cx, io),
            RequestOp::Flush => self.take_flush(cx, io),
            RequestOp::Extents if self.keeps_dirty && self.cleaner.dirty_pages() > 0 => {
                self.take_extents(cx, io)
            }
            op if op.modifies() => self.take_modifying(cx, io),
            _ => Mapped::One {
                target: BACKING,
                offset: io.offset,
            },
        }
    }

    fn checked(&mut self, mark: u64, sum: u32) -> Check {
        self.hit_summed(mark, sum)
    }

    fn unchecked(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo, mark: u64, fault: Option<Fault>) {
        self.hit_bad(cx, io, mark, fault);
    }

    fn done(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: Outcome) {
        let (target, aux, number) = untag(tag);
        match tag & KIND {
            READ => self.piece_read(cx, number, target, outcome),
            EDGE => self.edge_read(cx, number, target, aux, outcome),
            DATA => self.data_written(cx, number, target, outcome),
            BACK => self.part_on_disk(cx, number, outcome),
            DIRECT => self.direct_done(cx, number, outcome),
            EXTENTS => self.extents_done(cx, number, (target, aux.1), outcome),
            AROUND => self.around_done(cx, number, outcome),
            FLUSH => self.flush_done(cx, number, outcome),
            FILL => self.fill_read(cx, number, outcome),
            JOIN_READ => self.join_read(cx, number, target, outcome),
            COPY_READ => self.copy_read(cx, number, outcome),
            COPY_WRITE => self.copy_written(cx, number, outcome),
            SYNC_BLANK => self.blanked(cx, number, outcome),
            CLEAN_READ => self.dirty_read(cx, number, (target, aux.0), outcome),
            CLEAN_WRITE => self.dirty_written(cx, number, outcome),
            _ => unreachable!("the cache issues no other I/O"),
        }
    }

    fn block_done(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: BlockOutcome) {
        let (device, (place, _), number) = untag(tag);
        if matches!(tag & KIND, HEADER | MARK) {
            let ended = outcome
                .as_ref()
                .map_or_else(|fault| Err(*fault), |_| Ok(()));
            self.heading.placed(device, place, ended);
        }
        match tag & KIND {
            OPEN_HEADER => self.header_read(cx, device, number, outcome),
            OPEN_JOURNAL => self.journal_read(cx, device, number, outcome),
            SYNC_HEADER => self.voided(cx, number, outcome),
            // It is not used any more, whether that is on it or not.
            MARK => {}
            HEADER => self.header_done(cx, device, number, outcome.map(|_| ())),
            _ if self.is_mending() => self.mended(cx, device, outcome.map(|_| ())),
            _ => self.journal_done(cx, device, number, outcome.map(|_| ())),
        }
    }

    fn summed(&mut self, cx: &mut LayoutCx<'_>, tag: u64, sum: u32) {
        let (target, aux, number) = untag(tag);
        match tag & KIND {
            READ_SUM => self.piece_summed(cx, number, aux.0, sum),
            EDGE_SUM => self.edge_summed(cx, number, target, aux, sum),
            COPY_SUM => self.copy_summed(cx, number, aux.0, sum),
            JOIN_SUM => self.join_summed(cx, number, aux.0, sum),
            PART_SUM => self.part_summed(cx, number, aux.0, sum),
            _ => self.dirty_summed(cx, number, aux.0, sum),
        }
    }

    fn arena_ready(&mut self, cx: &mut LayoutCx<'_>) {
        self.feed_hungry(cx);
        self.feed_hungry_reads(cx);
        self.advance_cleaner(cx);
        self.feed_resync(cx);
        self.advance_fills(cx);
    }

    fn hung(&mut self, cx: &mut LayoutCx<'_>, target: Target) {
        // Nothing more goes to it. What it has already is waited for, and so is the last device that has everything.
        if target != BACKING && self.in_sync != 1 << target.0 && self.state == State::Ready {
            self.do_without(cx, target, super::DropCause::Hung);
        }
    }

    fn deadline(&self) -> Option<Time> {
        if self.state != State::Ready {
            return None;
        }
        let shrinking = self.shrinking.as_ref().map(|shrinking| shrinking.at);
        [self.journal.deadline(), self.cleaner.deadline(), shrinking]
            .into_iter()
            .flatten()
            .min()
    }

    fn tick(&mut self, cx: &mut LayoutCx<'_>) {
        self.tick_cleaner(cx);
        if self.shrinking.as_ref().is_some_and(|it| it.at <= cx.now()) {
            self.advance_shrinking(cx);
        }
        self.advance_journal(cx);
    }

    fn order(
        &mut self,
        cx: &mut LayoutCx<'_>,
        order: LayoutOrder,
    ) -> Result<Ordered, OrderRefusal> {
        match order {
            LayoutOrder::CleanCache => {
                if self.state != State::Ready {
                    return Err(OrderRefusal::NotOpen);
                }
                self.clean_all(cx);
            }
            LayoutOrder::CacheMode(mode) => self.set_mode(cx, mode)?,
            LayoutOrder::CacheAdmission(admission) => self.admission = admission,
            LayoutOrder::GiveUpCache => self.give_up_cache(cx)?,
            LayoutOrder::GrowCache { first, count } => self.grow(cx, first, count)?,
            LayoutOrder::ShrinkCache { count } => self.shrink(cx, count)?,
            LayoutOrder::Rebuild(device) if cx.load(device) > 0 => {
                return Err(OrderRefusal::InFlight);
            }
            LayoutOrder::Rebuild(device) => self.begin_resync(cx, device)?,
            LayoutOrder::Replace(device) => {
                if self.in_sync & 1 << device.0 != 0 {
                    self.drop_device(cx, device)?;
                }
                self.begin_resync(cx, device)?;
            }
            LayoutOrder::Drop(device) => self.drop_device(cx, device)?,
            _ => return Err(OrderRefusal::NotRedundant),
        }
        Ok(Ordered::Now)
    }

    fn report(&self, _members: &mut Vec<MemberReport>) {}

    fn cached(&self) -> Option<CacheReport> {
        Some(CacheReport {
            mode: self.mode,
            admission: self.admission,
            in_use: self.state == State::Ready,
            devices: self.in_sync >> 1,
            resyncing: self.resync.is_some(),
            resynced: self.resync.as_ref().map_or(0, |resync| resync.next),
            policy: self.keeper.chosen(),
            pages: self.map.len(),
            free: self.map.free_count(),
            dirty: self.cleaner.dirty_pages() as u64,
            unreadable: self.cleaner.unreadable_pages() as u64,
            dirty_since: self.cleaner.oldest(),
            time_to_clean: self.cleaner.time_to_clean(),
            keeps_dirty: self.keeps_dirty,
            losing: self.state == State::Losing,
            hits: self.hits,
            misses: self.misses,
            fills: self.fills,
            read_faults: self.read_faults,
            corrupt_blocks: self.corrupt_blocks,
            flash_bytes: self.data_bytes + self.journal_bytes,
            journal_bytes: self.journal_bytes,
        })
    }

    fn export_policy(&self, most: usize, out: &mut Vec<u8>) -> Option<Exported> {
        let is_open = self.state == State::Ready;
        is_open.then(|| self.keeper.export(self.size, most, out))
    }

    fn resize(&mut self, cx: &mut LayoutCx<'_>, size: u64) {
        // A block that the end of the disk cuts is never cached, so none of them has bytes from beyond the old end.
        (self.size, self.setup.size) = (size, size);
        if self.state == State::Ready {
            self.heading.header.size = size;
            self.must_head(cx);
        }
    }

    fn pause(&mut self, _cx: &mut LayoutCx<'_>) {
        self.cleaner.is_paused = true;
    }

    fn resume(&mut self, cx: &mut LayoutCx<'_>) {
        self.cleaner.is_paused = self.gives_up;
        self.advance_cleaner(cx);
        self.advance_fills(cx);
        self.advance_resync(cx);
    }

    fn detaching(&mut self, cx: &mut LayoutCx<'_>) {
        self.detaching = true;
        if !self.waits_for_order() {
            self.release_held(cx);
        }
    }

    fn close(&mut self, cx: &mut LayoutCx<'_>) {
        self.closing = true;
        self.cleaner.is_paused = true;
        self.hasten();
        self.advance_journal(cx);
    }
}

const _: () = assert!(BLOCK as u64 == CACHE_BLOCK && PAGE == BLOCKS as u64 * CACHE_BLOCK);
