//! The crash simulator's world: one disk's shard, its stores and its guest.
//!
//! Everything that the shard wants done waits in `effects`, and everything that a store was given waits in `in_flight`.
//! The caller decides which of them continues. A breach is recorded, and ends the run.

use super::choice::Choose;
use super::history::{End, History};
use super::store::{Defects, InFlight, Store};
use super::{SECTOR, fill, stamp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use tidegate_core::block::BLOCK;
use tidegate_core::effect::Effect;
use tidegate_core::filter::{FilterKey, FilterSpec};
use tidegate_core::layout::mirror::STATE_AT;
use tidegate_core::layout::mirror::state::State;
use tidegate_core::layout::stripe::CHUNK_MIN;
use tidegate_core::layout::{
    self, LayoutNotice, LayoutOrder, LayoutSpec, MemberState, Members, Refusal, SLOT, Target, Tree,
};
use tidegate_core::request::{
    Data, DiskId, Extent, ExtentKind, Fault, Flags, IoId, Op, Outcome, Request, Token,
};
use tidegate_core::shard::{Event, Shard};
use tidegate_core::stack::{Place, Stack};
use tidegate_core::units::{Span, Time};

const DISK: DiskId = DiskId(0);

/// Where the disk's bytes begin on each member: behind a label and two states.
const DATA_AT: u64 = 3 * BLOCK as u64;
/// Buffers of the arena, from this number on.
const ARENA: u32 = u32::MAX - 100;
/// How many there are.
const ARENA_SLOTS: u32 = 6;

/// Everything ends in fewer steps.
const ENOUGH: u32 = 20_000;

/// How a disk's bytes lie on its targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One image.
    Plain,
    /// RAID 0 in chunks of 4 KiB.
    Stripe {
        /// Targets.
        targets: u8,
    },
    /// RAID 1.
    Mirror {
        /// Members.
        members: u8,
    },
    /// RAID 10 of mirrors of two, in chunks of 4 KiB.
    MirrorStripe {
        /// Members.
        members: u8,
    },
    /// One image, that can move between two stores.
    Movable,
}

impl Shape {
    fn targets(self) -> u8 {
        match self {
            Shape::Plain => 1,
            Shape::Movable => 2,
            Shape::Stripe { targets } => targets,
            Shape::Mirror { members } | Shape::MirrorStripe { members } => members,
        }
    }

    fn spec(self) -> LayoutSpec {
        let chunk = CHUNK_MIN;
        match self {
            Shape::Plain | Shape::Movable => LayoutSpec::Plain,
            Shape::Stripe { .. } => LayoutSpec::Stripe { chunk },
            Shape::Mirror { .. } => LayoutSpec::Mirror,
            Shape::MirrorStripe { .. } => LayoutSpec::MirrorStripe { chunk },
        }
    }

    /// The layouts of a disk of this size.
    fn tree(self, size: u64) -> Option<Tree> {
        if self.spec() == LayoutSpec::Plain {
            return None;
        }
        let members = Members {
            data_at: DATA_AT,
            ..Members::new([7; 16], size, self.targets().into())
        };
        Tree::build(self.spec(), members)
    }

    /// Whether the disk goes on without any one of its targets.
    fn is_redundant(self) -> bool {
        self.spec().is_redundant()
    }

    /// The members that have the same bytes as this one, and it.
    fn mirrors(self) -> Vec<Range<usize>> {
        match self {
            Shape::Plain | Shape::Movable | Shape::Stripe { .. } => Vec::new(),
            Shape::Mirror { members } => std::iter::once(0..members.into()).collect(),
            Shape::MirrorStripe { members } => {
                let pairs = 0..usize::from(members) / 2;
                pairs.map(|pair| 2 * pair..2 * pair + 2).collect()
            }
        }
    }

    /// Sectors of each target.
    fn member_sectors(self, sectors: u64) -> u64 {
        let size = sectors * SECTOR as u64;
        match self {
            Shape::Plain | Shape::Movable => sectors,
            _ => {
                let member = self.spec().member_size(size, self.targets().into());
                (member - layout::DATA_AT + DATA_AT).div_ceil(SECTOR as u64)
            }
        }
    }
}

/// What is built, and built again after each crash.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its layout.
    pub shape: Shape,
    /// Size of the disk.
    pub sectors: u64,
    /// Its filters, top first.
    pub filters: Vec<FilterSpec>,
    /// What its first store does wrong.
    pub defects: Defects,
}

/// What a guest requests for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRequest {
    /// The operation.
    pub op: Op,
    /// FUA, if anything.
    pub flags: Flags,
    /// First sector.
    pub sector: u64,
    /// Sectors; none for a flush.
    pub sectors: u64,
}

/// A request between its submission and its answer.
struct Pending {
    request: GuestRequest,
    buffer: u32,
    /// Its moment in the history.
    issued: u64,
    /// What the guest writes over its buffer meanwhile.
    fickle: Option<u64>,
}

/// How far a move of the disk to its other store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    None,
    /// Requests are to be held before the copies, or after them.
    Holding {
        ends: bool,
    },
    Held {
        ends: bool,
    },
    Copying,
    Copied,
    /// The other store has failed.
    Failed,
    /// The descriptor names the other store.
    Committed,
}

/// I/Os that are to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failing {
    /// So many I/Os complete before.
    pub after: u64,
    /// How it fails.
    pub fault: Fault,
    /// Whether all further I/Os of that target fail, until the next start.
    pub lasts: bool,
}

/// An I/O that a store was given.
struct Started {
    target: usize,
    io: IoId,
    op: Op,
    flags: Flags,
    offset: u64,
    len: u64,
    bytes: Bytes,
    /// For a flush: what it covers.
    mark: u64,
}

/// The bytes of an I/O.
enum Bytes {
    Memory(Data),
    /// A block of the layout's own; to be read, it is empty.
    Block(Option<Box<[u8; BLOCK]>>),
}

/// See the module.
pub struct World {
    setup: Setup,
    shard: Shard,
    /// By target.
    stores: Vec<Store>,
    history: History,
    effects: VecDeque<Effect>,
    in_flight: Vec<Started>,
    /// Guests' memory, by buffer.
    memory: BTreeMap<u32, Vec<u8>>,
    pending: BTreeMap<u64, Pending>,
    next_token: u64,
    next_stamp: u64,
    next_filter: u32,
    rearranging: bool,
    /// Targets that are away since the last start, one bit each.
    away: u32,
    /// Stores that complete nothing, one bit each.
    hung: u32,
    failing: Option<Failing>,
    /// Which store the disk's descriptor names: for a disk that can move.
    home: usize,
    moving: Move,
    /// Whether the disk was detached.
    detached: bool,
    /// Orders that were not answered yet.
    ordered: u32,
    /// What the layouts have reported.
    notices: Vec<LayoutNotice>,
    /// Whether a target has failed an I/O since the last start.
    failed_since_start: bool,
    /// How opening the disk ended.
    opened: Option<Result<(), Refusal>>,
    /// Targets that have failed an I/O, one bit each.
    faulty: u32,
    now: Time,
    out: Vec<Effect>,
    /// I/Os that stores have completed.
    completed: u64,
    breach: Option<String>,
    /// What happened, if that is recorded.
    trace: Option<Vec<String>>,
}

/// A disk that was formatted: its stores, from which runs begin.
pub struct Formatted {
    setup: Setup,
    stores: Vec<Store>,
}

impl Formatted {
    /// Formats a disk.
    ///
    /// # Panics
    /// If it cannot be formatted.
    pub fn new(setup: &Setup) -> Formatted {
        let honest = Setup {
            defects: Defects::default(),
            ..setup.clone()
        };
        let mut world = World::new(honest);
        world.open();
        assert_eq!(world.breach(), None, "an honest store is formatted");
        Formatted {
            setup: setup.clone(),
            stores: world.stores,
        }
    }

    /// A world that begins with the formatted disk.
    pub fn world(&self) -> World {
        World::over(self.setup.clone(), self.stores.clone())
    }
}

impl World {
    /// A new disk of zeroes.
    pub fn new(setup: Setup) -> World {
        let sectors = setup.shape.member_sectors(setup.sectors);
        let stores = (0..setup.shape.targets()).map(|_| Store::new(sectors));
        World::over(setup, stores.collect())
    }

    fn over(setup: Setup, mut stores: Vec<Store>) -> World {
        stores[0].defects = setup.defects;
        if setup.shape == Shape::Movable {
            // What it moves to has other bytes before.
            let size = usize::try_from(setup.sectors).expect("a small disk") * SECTOR;
            stores[1].write(0, &vec![0xdd; size], true);
        }
        let mut world = World {
            shard: Shard::new(16),
            stores,
            history: History::new(setup.sectors),
            effects: VecDeque::new(),
            in_flight: Vec::new(),
            memory: BTreeMap::new(),
            pending: BTreeMap::new(),
            next_token: 0,
            next_stamp: 0,
            next_filter: 0,
            rearranging: false,
            away: 0,
            hung: 0,
            failing: None,
            home: 0,
            moving: Move::None,
            detached: false,
            ordered: 0,
            notices: Vec::new(),
            failed_since_start: false,
            opened: None,
            faulty: 0,
            now: Time::ZERO,
            out: Vec::new(),
            completed: 0,
            breach: None,
            trace: None,
            setup,
        };
        world.attach();
        world
    }

    /// Opens a new disk completely.
    pub fn open(&mut self) {
        self.finish();
        if self.breach.is_none() && self.opened != Some(Ok(())) {
            let opened = self.opened;
            self.fail(format!("a new disk does not open: {opened:?}"));
        }
    }

    /// Orders something of the layouts.
    pub fn order(&mut self, order: LayoutOrder) {
        self.note(|| format!("order: {order:?}"));
        self.ordered += 1;
        if let LayoutOrder::Drop(target) = order {
            self.faulty |= 1 << target.0;
        }
        self.handle(Event::LayoutOrder { disk: DISK, order });
    }

    /// What the layouts have reported.
    pub fn notices(&self) -> &[LayoutNotice] {
        &self.notices
    }

    /// The members' states.
    pub fn members(&self) -> Vec<MemberState> {
        let report = self.shard.layout_report(DISK);
        let members = report.map(|report| report.members).unwrap_or_default();
        members.iter().map(|member| member.state).collect()
    }

    /// Time passes until the shard's next deadline. Returns whether there was one. One target at most may be slow: it is
    /// at fault then.
    pub fn pass_time(&mut self) -> bool {
        let Some((at, _)) = self.shard.deadline() else {
            return false;
        };
        let slow = self.in_flight.iter().map(|started| started.target);
        let slow: BTreeSet<usize> = slow.collect();
        if slow.len() > 1 || !self.effects.is_empty() || self.detached {
            return false;
        }
        if let Some(slow) = slow.first() {
            self.note_fault(1 << slow);
        }
        self.note(|| format!("time passes until {at:?}"));
        self.now = self.now.max(at);
        self.handle(Event::Ticked);
        true
    }

    /// Records what happens from now on.
    pub fn record(&mut self) {
        self.trace = Some(Vec::new());
    }

    /// What was recorded.
    pub fn trace(&self) -> &[String] {
        self.trace.as_deref().unwrap_or_default()
    }

    /// What does not hold, if anything.
    pub fn breach(&self) -> Option<&str> {
        self.breach.as_deref()
    }

    /// Size of the disk.
    pub fn sectors(&self) -> u64 {
        self.setup.sectors
    }

    /// How many targets it has.
    pub fn targets(&self) -> u8 {
        self.setup.shape.targets()
    }

    /// Effects that wait to be performed.
    pub fn effects(&self) -> usize {
        self.effects.len()
    }

    /// I/Os that a store has.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Requests that are not answered yet.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// I/Os that stores have completed so far.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    fn attach(&mut self) {
        let filters = self.setup.filters.clone();
        let filters = filters.iter().map(|spec| {
            self.next_filter += 1;
            (FilterKey(self.next_filter), spec.build())
        });
        let stack = Stack::new(filters.collect());
        let size = self.setup.sectors * SECTOR as u64;
        let tree = self.setup.shape.tree(size);
        self.opened = tree.is_none().then_some(Ok(()));
        let stack = match tree {
            Some(tree) => stack.over(tree),
            None => stack,
        };
        let slots = (0..ARENA_SLOTS).map(|slot| Data {
            buffer: ARENA + slot,
            start: 0,
        });
        let slots: Vec<Data> = slots.collect();
        self.shard.give_arena(slots);
        let attach = Event::Attach {
            disk: DISK,
            size,
            read_only: false,
            stack,
            control: None,
        };
        self.handle(attach);
    }

    fn handle(&mut self, event: Event) {
        self.now = self.now + Span::from_micros(1);
        self.shard.handle(self.now, event, &mut self.out);
        self.effects.extend(self.out.drain(..));
        if self.shard.strays() > 0 {
            self.fail("the shard counts a stray completion".to_owned());
        }
    }

    fn fail(&mut self, what: String) {
        self.note(|| format!("BREACH: {what}"));
        self.breach.get_or_insert(what);
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(line());
        }
    }

    /// The guest submits a request.
    pub fn submit(&mut self, request: GuestRequest) {
        self.submit_as(request, false);
    }

    /// The guest submits a write, and will change its buffer before the answer ([`World::scribble`]): each sector may
    /// become what it had at any time.
    pub fn submit_fickle(&mut self, request: GuestRequest) {
        self.submit_as(request, true);
    }

    /// The guest changes the buffers of its fickle writes.
    pub fn scribble(&mut self) {
        let mut fickle = Vec::new();
        for (token, pending) in &self.pending {
            if let Some(stamp) = pending.fickle {
                let sectors = pending.request.sector..;
                let memory = self.memory.get_mut(&pending.buffer);
                let memory = memory.expect("it is not answered yet");
                for (sector, bytes) in sectors.zip(memory.chunks_exact_mut(SECTOR)) {
                    bytes.copy_from_slice(&fill(sector, stamp));
                }
                fickle.push(format!("guest {token}: its buffer becomes stamp {stamp}"));
            }
        }
        for line in fickle {
            self.note(|| line);
        }
    }

    fn submit_as(&mut self, request: GuestRequest, fickle: bool) {
        self.forgive();
        let fickle = fickle && request.op == Op::Write;
        let token = self.next_token;
        self.next_token += 1;
        let buffer = u32::try_from(token).expect("a run is short");
        let range = request.sector..request.sector + request.sectors;
        let issued = match request.op {
            Op::Write => {
                self.next_stamp += 1;
                let stamp = self.next_stamp;
                let bytes = range.clone().flat_map(|sector| fill(sector, stamp));
                self.memory.insert(buffer, bytes.collect());
                if fickle {
                    self.next_stamp += 1;
                    self.history.write_either(range, stamp, stamp + 1)
                } else {
                    self.history.write(range, stamp)
                }
            }
            Op::WriteZeroes | Op::Discard => self.history.write(range, 0),
            Op::Read => {
                let len = usize::try_from(request.sectors).expect("a small disk") * SECTOR;
                self.memory.insert(buffer, vec![0xa5; len]);
                self.history.tick()
            }
            Op::Extents => {
                self.memory.insert(buffer, vec![0; 4 * Extent::SIZE]);
                self.history.tick()
            }
            Op::Flush | Op::Prefetch => self.history.tick(),
        };
        let stamp = self.next_stamp;
        self.note(|| format!("guest {token}: {request:?}, stamp {stamp}"));
        let pending = Pending {
            request,
            buffer,
            issued,
            fickle: fickle.then_some(stamp),
        };
        self.pending.insert(token, pending);
        let request = Request {
            op: request.op,
            flags: request.flags,
            offset: request.sector * SECTOR as u64,
            len: request.sectors * SECTOR as u64,
            data: Data { buffer, start: 0 },
            arrived: self.now,
        };
        self.handle(Event::Submitted {
            disk: DISK,
            token: Token(token),
            request,
        });
    }

    /// Performs the next effect.
    pub fn perform(&mut self) {
        let Some(effect) = self.effects.pop_front() else {
            return;
        };
        match effect {
            Effect::Start {
                target,
                io,
                op,
                flags,
                offset,
                len,
                data,
                ..
            } => {
                self.note(|| format!("start {op:?} {offset}+{len} on target {}", target.0));
                let target = self.store_of(target);
                let started = Started {
                    target,
                    io,
                    op,
                    flags,
                    offset,
                    len,
                    bytes: Bytes::Memory(data),
                    mark: self.stores[target].mark(),
                };
                self.in_flight.push(started);
            }
            Effect::ReadBlock {
                target, io, offset, ..
            } => self.start_block(target, io, Op::Read, offset, None),
            Effect::WriteBlock {
                target,
                io,
                offset,
                block,
                ..
            } => self.start_block(target, io, Op::Write, offset, Some(block)),
            Effect::Opened { outcome, .. } => {
                self.note(|| format!("opened: {outcome:?}"));
                if self.opened.replace(outcome).is_some() {
                    self.fail("the disk has opened twice".to_owned());
                }
            }
            Effect::Answer { token, outcome, .. } => self.answered(token, outcome),
            Effect::SideWrite {
                disk,
                filter,
                buffer,
            } => self.handle(Event::SideWritten {
                disk,
                filter,
                buffer,
                outcome: Ok(()),
            }),
            Effect::Rearranged { .. } => {
                self.note(|| "rearranged".to_owned());
                self.rearranging = false;
            }
            Effect::Copy { from, to, len } => {
                let len = usize::try_from(len).expect("a slot is small");
                let from = bytes(&mut self.memory, from, len).to_vec();
                bytes(&mut self.memory, to, len).copy_from_slice(&from);
            }
            Effect::Sum { io, data, len, .. } => {
                let len = usize::try_from(len).expect("a slot is small");
                let sum = sum(bytes(&mut self.memory, data, len));
                self.handle(Event::Summed {
                    disk: DISK,
                    io,
                    sum,
                });
            }
            Effect::LayoutNotice { notice, .. } => self.noticed(*notice),
            Effect::LayoutOrdered { outcome, .. } => {
                self.note(|| format!("ordered: {outcome:?}"));
                match self.ordered.checked_sub(1) {
                    Some(ordered) => self.ordered = ordered,
                    None => self.fail("an order is answered twice".to_owned()),
                }
            }
            Effect::Held { .. } => match self.moving {
                Move::Holding { ends } => self.moving = Move::Held { ends },
                _ => self.fail("the disk is held, and nobody asked for it".to_owned()),
            },
            Effect::Detached { .. } => {
                self.note(|| "detached".to_owned());
                self.detached = true;
            }
            Effect::Wake { .. } => self.fail(format!("{effect:?} has no cause")),
        }
    }

    fn start_block(
        &mut self,
        target: Target,
        io: IoId,
        op: Op,
        offset: u64,
        block: Option<Box<[u8; BLOCK]>>,
    ) {
        self.note(|| format!("{op:?} of a block at {offset} on target {}", target.0));
        let target = self.store_of(target);
        self.in_flight.push(Started {
            target,
            io,
            op,
            flags: Flags::FUA,
            offset,
            len: BLOCK as u64,
            bytes: Bytes::Block(block),
            mark: 0,
        });
    }

    /// The store that a target is.
    fn store_of(&self, target: Target) -> usize {
        usize::from(target.0) ^ self.home
    }

    fn noticed(&mut self, notice: LayoutNotice) {
        self.note(|| format!("notice: {notice:?}"));
        self.notices.push(notice);
        self.moving = match (self.moving, notice) {
            (Move::Copying, LayoutNotice::Rebuilt { .. }) => Move::Copied,
            (
                Move::Copying | Move::Copied,
                LayoutNotice::Dropped { .. } | LayoutNotice::RebuildFailed { .. },
            ) => Move::Failed,
            (moving, _) => moving,
        };
    }

    fn answered(&mut self, token: Token, outcome: Outcome) {
        self.note(|| format!("answer {}: {outcome:?}", token.0));
        let few_faults = match self.setup.shape {
            Shape::Movable => self.faulty >> self.home & 1 == 0,
            shape => self.faulty.count_ones() < 2 && shape.is_redundant(),
        };
        if outcome.is_err() && few_faults && !self.detached {
            self.fail(format!(
                "request {} fails though a member is whole",
                token.0
            ));
        }
        let Some(pending) = self.pending.remove(&token.0) else {
            return self.fail(format!("request {} is answered twice", token.0));
        };
        let memory = self.memory.remove(&pending.buffer);
        let GuestRequest {
            op,
            flags,
            sector,
            sectors,
        } = pending.request;
        match op {
            Op::Write | Op::WriteZeroes | Op::Discard => {
                let end = match outcome {
                    Err(_) => End::Unknown,
                    Ok(()) if op == Op::Discard => End::Unknown,
                    Ok(()) if flags.has(Flags::FUA) => End::Durable,
                    Ok(()) => End::Done,
                };
                self.history
                    .wrote(sector..sector + sectors, pending.issued, end);
            }
            Op::Flush if outcome.is_ok() => self.history.flushed(pending.issued),
            Op::Read if outcome.is_ok() => {
                let memory = memory.expect("a read has memory");
                for (sector, bytes) in (sector..).zip(memory.chunks_exact(SECTOR)) {
                    let seen = stamp(sector, bytes)
                        .and_then(|stamp| self.history.read(sector, pending.issued, stamp));
                    if let Err(what) = seen {
                        return self.fail(format!("read {}: {what}", token.0));
                    }
                }
            }
            Op::Flush | Op::Read | Op::Extents | Op::Prefetch => {}
        }
        if self.pending.is_empty() {
            self.history.forget();
        }
    }

    /// A store completes one of its I/Os, or fails it.
    pub fn complete(&mut self, which: usize, outcome: Outcome) {
        let mut started = self.in_flight.remove(which);
        self.completed += 1;
        let bit = 1 << started.target;
        let outcome = match self.away & bit {
            0 => self.planned(bit).map_or(outcome, Err),
            _ => Err(Fault::Gone),
        };
        if outcome.is_err() {
            self.note_fault(bit);
        }
        let outcome = outcome.and_then(|()| self.apply(&mut started));
        let Started {
            target,
            io,
            op,
            offset,
            len,
            bytes,
            ..
        } = started;
        self.note(|| format!("complete {op:?} {offset}+{len} on target {target}: {outcome:?}"));
        self.handle(match bytes {
            Bytes::Memory(_) => Event::Finished {
                disk: DISK,
                io,
                outcome,
            },
            Bytes::Block(block) => Event::BlockDone {
                disk: DISK,
                io,
                outcome: outcome.map(|()| block.filter(|_| op == Op::Read)),
            },
        });
    }

    /// Plans I/Os that fail.
    pub fn fail_later(&mut self, failing: Failing) {
        self.failing = Some(failing);
    }

    /// Whether this I/O was planned to fail.
    fn planned(&mut self, bit: u32) -> Option<Fault> {
        let failing = self.failing.as_mut()?;
        if let Some(after) = failing.after.checked_sub(1) {
            failing.after = after;
            return None;
        }
        let Failing { fault, lasts, .. } = self.failing.take()?;
        if lasts {
            self.away |= bit;
            self.faulty |= bit;
        }
        Some(fault)
    }

    /// Whether the planned I/O has failed.
    pub fn has_failed(&self) -> bool {
        self.failing.is_none()
    }

    /// Targets that were at fault and are in sync again are not at fault any more.
    fn forgive(&mut self) {
        let quiet = self.pending.is_empty() && self.in_flight.is_empty() && self.effects.is_empty();
        let members = self.members();
        if quiet && members.iter().all(|state| *state == MemberState::InSync) {
            self.faulty = self.away;
        }
    }

    /// A target is at fault.
    fn note_fault(&mut self, bit: u32) {
        self.faulty |= bit;
        self.failed_since_start = true;
    }

    fn apply(&mut self, started: &mut Started) -> Outcome {
        let store = &mut self.stores[started.target];
        let fua = started.flags.has(Flags::FUA);
        let len = usize::try_from(started.len).expect("a small disk");
        let bytes = match &mut started.bytes {
            Bytes::Block(block) if started.op == Op::Read => {
                block.insert(Box::new([0; BLOCK])).as_mut_slice()
            }
            Bytes::Block(block) => block.as_mut().map_or(&mut [][..], |block| &mut block[..]),
            Bytes::Memory(data) => match started.op {
                Op::Read | Op::Write => bytes(&mut self.memory, *data, len),
                Op::Extents => bytes(&mut self.memory, *data, Extent::SIZE),
                _ => &mut [],
            },
        };
        match started.op {
            Op::Read => store.read(started.offset, bytes),
            Op::Write => store.write(started.offset, bytes, fua),
            Op::WriteZeroes => store.write(started.offset, &vec![0; len], fua),
            // Each store discards other sectors.
            Op::Discard => {
                let ends = started.offset + started.len;
                for offset in (started.offset..ends).step_by(SECTOR) {
                    if (offset / SECTOR as u64 + started.target as u64).is_multiple_of(2) {
                        store.write(offset, &[0; SECTOR], fua);
                    }
                }
            }
            Op::Flush => store.flush(started.mark),
            Op::Extents => {
                let extent = Extent {
                    len: started.len,
                    kind: ExtentKind::Data,
                };
                bytes.copy_from_slice(&extent.encode());
            }
            Op::Prefetch => {}
        }
        Ok(())
    }

    /// Puts other filters on the disk, if that is not under way already.
    pub fn rearrange(&mut self, filters: Vec<FilterSpec>) {
        if self.rearranging {
            return;
        }
        self.rearranging = true;
        self.note(|| format!("rearrange: {filters:?}"));
        let places = filters.iter().map(|spec| {
            self.next_filter += 1;
            Place::New(FilterKey(self.next_filter), spec.build())
        });
        let places = places.collect();
        self.setup.filters = filters;
        self.handle(Event::Rearrange { disk: DISK, places });
    }

    /// The host crashes and starts again: the stores keep what is durable, and of the rest what the choices say. One
    /// target of a redundant disk may be away from then on.
    pub fn crash(&mut self, choices: &mut dyn Choose) {
        let targets = u32::from(self.setup.shape.targets());
        let away = match self.setup.shape.is_redundant() && self.away == 0 {
            true => choices.choose(targets + 1),
            false => 0,
        };
        self.restart(choices, if away == 0 { 0 } else { 1 << (away - 1) });
    }

    /// The same, with the same targets away as before.
    pub fn crash_again(&mut self, choices: &mut dyn Choose) {
        self.restart(choices, self.away);
    }

    /// The same, with these targets away.
    fn restart(&mut self, choices: &mut dyn Choose, away: u32) {
        self.note(|| match away {
            0 => "CRASH".to_owned(),
            _ => format!("CRASH, then target {} is away", away.trailing_zeros()),
        });
        let mut in_flight: Vec<Vec<InFlight>> = self.stores.iter().map(|_| Vec::new()).collect();
        for started in std::mem::take(&mut self.in_flight) {
            if self.away >> started.target & 1 == 1 {
                continue;
            }
            let len = usize::try_from(started.len).expect("a small disk");
            let bytes = match (started.op, started.bytes) {
                (Op::Write, Bytes::Memory(data)) => bytes(&mut self.memory, data, len).to_vec(),
                (Op::Write, Bytes::Block(Some(block))) => block.to_vec(),
                (Op::WriteZeroes | Op::Discard, _) => vec![0; len],
                _ => continue,
            };
            let offset = started.offset;
            in_flight[started.target].push(InFlight { offset, bytes });
        }
        for (store, in_flight) in self.stores.iter_mut().zip(&in_flight) {
            store.crash(in_flight, choices);
        }
        self.history.crash();
        self.shard = Shard::new(16);
        self.effects.clear();
        self.pending.clear();
        self.memory.clear();
        self.rearranging = false;
        self.away = away;
        self.hung = 0;
        self.moving = Move::None;
        self.detached = false;
        self.ordered = 0;
        self.faulty |= away;
        self.failed_since_start = false;
        self.attach();
    }

    /// Lets everything under way end, oldest first.
    pub fn finish(&mut self) {
        self.hung = 0;
        for step in 0.. {
            if step > ENOUGH {
                self.fail("what is under way never ends".to_owned());
            }
            if self.breach.is_some() {
                break;
            }
            if self.effects() > 0 {
                self.perform();
            } else if self.in_flight() > 0 {
                self.complete(0, Ok(()));
            } else if self.moving != Move::None && self.advance_move() {
            } else if self.pending.is_empty() || self.is_refused() || !self.pass_time() {
                break;
            }
        }
        if self.breach.is_none() && !self.pending.is_empty() && !self.is_refused() {
            let waiting: Vec<_> = self.pending.keys().collect();
            self.fail(format!("requests {waiting:?} are never answered"));
        }
    }

    /// Whether the disk refused to open: it lets its requests wait.
    fn is_refused(&self) -> bool {
        matches!(self.opened, Some(Err(_)))
    }

    /// The store completes nothing until it is ordered so again, or everything under way is to end.
    pub fn hang(&mut self, store: usize) {
        self.note(|| format!("store {store} hangs, or no longer"));
        self.hung ^= 1 << store;
    }

    /// Whether this I/O is with a store that hangs.
    pub fn hangs(&self, which: usize) -> bool {
        self.hung >> self.in_flight[which].target & 1 == 1
    }

    /// Everything ends that no store keeps by hanging, and time passes, so often.
    pub fn wait(&mut self, times: u32) {
        for _ in 0..times {
            while self.breach.is_none() {
                let ready = (0..self.in_flight()).find(|which| !self.hangs(*which));
                if self.effects() > 0 {
                    self.perform();
                } else if let Some(ready) = ready {
                    self.complete(ready, Ok(()));
                } else {
                    break;
                }
            }
            if !self.pass_time() {
                break;
            }
        }
    }

    /// The disk is detached in order.
    pub fn detach(&mut self) {
        self.note(|| "detach".to_owned());
        self.handle(Event::Detach { disk: DISK });
    }

    /// Attaches a disk that was detached.
    pub fn attach_again(&mut self) {
        self.finish();
        if !self.detached && self.breach.is_none() {
            self.fail("the disk is never detached".to_owned());
        }
        self.note(|| "attach".to_owned());
        self.shard = Shard::new(16);
        self.away = 0;
        (self.detached, self.moving, self.ordered) = (false, Move::None, 0);
        self.attach();
    }

    /// Whether a move is under way.
    pub fn is_moving(&self) -> bool {
        self.moving != Move::None
    }

    /// Targets that are away come back, and nothing fails any more.
    pub fn return_all(&mut self) {
        self.note(|| "all targets are back".to_owned());
        self.failing = None;
        self.away = 0;
    }

    /// Whether a move has a next step that can be taken now.
    pub fn can_advance_move(&self) -> bool {
        let waits = matches!(self.moving, Move::Holding { .. } | Move::Copying);
        let movable = self.setup.shape == Shape::Movable && !self.detached;
        movable && !waits && self.opened == Some(Ok(()))
    }

    /// Takes the next step of a move, or begins one. Returns whether there was such a step.
    pub fn advance_move(&mut self) -> bool {
        if !self.can_advance_move() || self.effects() > 0 {
            return false;
        }
        let moving = self.moving;
        self.note(|| format!("move: after {moving:?}"));
        match moving {
            Move::None => self.hold(false),
            Move::Copied | Move::Failed => self.hold(true),
            Move::Held { ends: false } => {
                let size = self.setup.sectors * SECTOR as u64;
                self.moving = Move::Copying;
                self.relay(Some(Box::new(Tree::transfer(size))));
            }
            Move::Held { ends: true } => {
                let members = self.members();
                if members.iter().all(|state| *state == MemberState::InSync) {
                    self.moving = Move::Committed;
                    self.home = 1 - self.home;
                } else {
                    self.moving = Move::None;
                    self.relay(None);
                }
            }
            Move::Committed => {
                self.moving = Move::None;
                self.relay(None);
            }
            Move::Holding { .. } | Move::Copying => return false,
        }
        true
    }

    fn hold(&mut self, ends: bool) {
        self.moving = Move::Holding { ends };
        self.handle(Event::Hold { disk: DISK });
    }

    fn relay(&mut self, tree: Option<Box<Tree>>) {
        self.opened = None;
        self.handle(Event::Relay { disk: DISK, tree });
    }

    /// Reads these sectors twice, once nothing is under way. A disk that has not opened is started with all its targets.
    pub fn verify(&mut self, sectors: Range<u64>, choices: &mut dyn Choose) {
        self.finish();
        if let (Some(Err(_)), true) = (self.opened, self.away != 0 || self.failed_since_start) {
            self.restart(choices, 0);
            self.finish();
        }
        if self.breach.is_none() && self.opened != Some(Ok(())) {
            let opened = self.opened;
            return self.fail(format!("the disk does not open: {opened:?}"));
        }
        for _ in 0..2 {
            if self.breach.is_none() && !sectors.is_empty() {
                self.submit(GuestRequest {
                    op: Op::Read,
                    flags: Flags::NONE,
                    sector: sectors.start,
                    sectors: sectors.end - sectors.start,
                });
                self.finish();
            }
        }
        self.compare_members();
        if self.away == 0 && self.breach.is_none() && self.setup.shape.is_redundant() {
            self.heal();
            self.compare_members();
        }
        if self.breach.is_none() && self.ordered > 0 {
            self.fail("an order is never answered".to_owned());
        }
    }
}

impl World {
    /// Lets time pass until every member is in sync again, if none is away.
    pub fn heal(&mut self) {
        for round in 0..100 {
            self.finish();
            let members = self.members();
            let out = members
                .iter()
                .position(|state| *state == MemberState::OutOfSync);
            let whole = members.iter().all(|state| *state == MemberState::InSync);
            if self.breach.is_some() || whole {
                break;
            }
            // One that an administrator has dropped comes back by an order only.
            let order = match round % 20 {
                10 => Some(LayoutOrder::Rebuild as fn(Target) -> LayoutOrder),
                19 => Some(LayoutOrder::Replace as fn(Target) -> LayoutOrder),
                _ => None,
            };
            if let (Some(order), Some(out)) = (order, out) {
                self.order(order(Target(u8::try_from(out).expect("a member"))));
            } else {
                self.pass_time();
            }
        }
        let members = self.members();
        if members.iter().any(|state| *state != MemberState::InSync) && self.away == 0 {
            self.fail(format!("members stay out of sync: {members:?}"));
        }
    }

    /// Once nothing is under way, the members of a mirror that are in sync are equal.
    fn compare_members(&mut self) {
        for mirror in self.setup.shape.mirrors() {
            let in_sync = self.in_sync(mirror.clone());
            let equal = mirror
                .clone()
                .filter(|member| in_sync >> (member - mirror.start) & 1 == 1);
            let sectors = self.setup.shape.member_sectors(self.setup.sectors);
            let size = usize::try_from(sectors * SECTOR as u64 - DATA_AT).expect("a small disk");
            let contents: Vec<Vec<u8>> = equal
                .map(|member| {
                    let mut bytes = vec![0; size];
                    self.stores[member].read(DATA_AT, &mut bytes);
                    bytes
                })
                .collect();
            if contents.windows(2).any(|pair| pair[0] != pair[1]) {
                self.fail(format!(
                    "the members {in_sync:b} of {mirror:?} are in sync and differ"
                ));
            }
        }
    }

    /// The members that the newest state on any store of a mirror calls in sync.
    fn in_sync(&self, mirror: Range<usize>) -> u32 {
        let places = self.stores[mirror].iter().flat_map(|store| {
            [STATE_AT, STATE_AT + BLOCK as u64].map(|at| {
                let mut block = [0; BLOCK];
                store.read(at, &mut block);
                State::decode(&block).ok()
            })
        });
        let newest = places.flatten().max_by_key(|(state, _)| state.sequence);
        newest.map_or(0, |(state, _)| state.in_sync)
    }
}

/// A checksum that tells blocks apart.
fn sum(bytes: &[u8]) -> u32 {
    let mix = |sum: u32, byte: &u8| (sum ^ u32::from(*byte)).wrapping_mul(16_777_619);
    bytes.iter().fold(2_166_136_261, mix)
}

/// A part of the memory that an I/O names. Buffers of the arena have memory once they are used.
fn bytes(memory: &mut BTreeMap<u32, Vec<u8>>, data: Data, len: usize) -> &mut [u8] {
    let start = usize::try_from(data.start).expect("32 bits");
    if (ARENA..ARENA + ARENA_SLOTS).contains(&data.buffer) {
        let memory = memory.entry(data.buffer).or_default();
        assert!((start + len) as u64 <= SLOT, "a slot is not so long");
        if memory.len() < start + len {
            memory.resize(start + len, 0xee);
        }
        return &mut memory[start..start + len];
    }
    let memory = memory
        .get_mut(&data.buffer)
        .expect("an I/O names memory that its guest has not got back");
    &mut memory[start..start + len]
}
