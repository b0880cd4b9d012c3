//! The crash simulator's world: one disk's shard, its stores and its guest.
//!
//! Everything that the shard wants done waits in `effects`, and everything that a store was given waits in `in_flight`.
//! The caller decides which of them continues. A breach is recorded, and ends the run.

use super::SECTOR;
use super::choice::Choose;
use super::history::History;
use super::shape::Use;
use super::store::{Defects, InFlight, Store, StoreIo};
use moves::Move;
use replacing::Replacing;
use std::collections::{BTreeMap, VecDeque};
use tidegate_core::block::BLOCK;
use tidegate_core::effect::Effect;
use tidegate_core::filter::{FilterKey, FilterSpec};
use tidegate_core::layout::cache::PAGE;
use tidegate_core::layout::mirror::state::REGION;
use tidegate_core::layout::{LayoutNotice, LayoutOrder, MemberState, Refusal, SLOT, Target};
use tidegate_core::request::{Data, DiskId, Extent, Fault, Flags, IoId, Op, Outcome};
use tidegate_core::shard::{Event, Shard};
use tidegate_core::stack::{Place, Stack};
use tidegate_core::units::{Span, Time};

pub use super::shape::{FlashDevices, Load, Over, Setup, Shape};
pub use faults::Failing;

mod cache;
mod exchange;
mod faults;
mod growth;
mod guest;
mod moves;
mod replacing;
mod verify;

const DISK: DiskId = DiskId(0);

/// Buffers of the arena, from this number on.
const ARENA: u32 = u32::MAX - 100;
/// How many each thread has.
const ARENA_SLOTS: u32 = 6;

/// Everything ends in fewer steps.
const ENOUGH: u32 = 200_000;

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
    /// Whether only flash may have had some bytes when it was submitted or since.
    had_dirty: bool,
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
    /// The image that has it, if that was replaced since.
    retired: Option<usize>,
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
    /// Another I/O thread, without the disk.
    other: Shard,
    changes_threads: bool,
    /// By target.
    stores: Vec<Store>,
    /// Images that were replaced since the last start.
    retired: Vec<Store>,
    replacing: Option<Replacing>,
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
    /// The use of the disk, as its descriptor says: the last one, and the one that begins.
    used: Use,
    /// Uses so far.
    uses: u64,
    /// Whether the cache gets a chunk by an order that is not answered yet, or gives one back.
    growing: bool,
    shrinking: bool,
    /// Whether that order is not answered.
    shrink_asked: bool,
    /// Whether the cache has lost its last device, and pages with it, since the last start.
    cache_lost: bool,
    /// Flash devices with decayed blocks, one bit each.
    decayed: u32,
    /// A number for each block of which a checksum was computed: they never collide.
    sums: BTreeMap<Vec<u8>, u32>,
    /// Whether the cache was given up in this use.
    gave_up: bool,
    /// Targets that are away since the last start, one bit each.
    away: u32,
    /// A flash device that is unplugged now, as one bit.
    unplugged: u32,
    /// Places of the cache without a device, one bit for each target.
    empty: u32,
    /// Stores that complete nothing, one bit each.
    hung: u32,
    failing: Option<Failing>,
    /// Which store the disk's descriptor names: for a disk that can move.
    home: usize,
    moving: Move,
    /// Whether the disk is being detached, and whether it was.
    detaching: bool,
    detached: bool,
    /// Orders that were not answered yet.
    ordered: u32,
    /// What the layouts have reported.
    notices: Vec<LayoutNotice>,
    /// Whether a target has failed an I/O since the last start.
    failed_since_start: bool,
    /// Whether a mirror has lost its last member since the last start.
    lost_since_start: bool,
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
        let sectors = |target| setup.shape.sectors_of(target, setup.sectors);
        let stores = (0..setup.shape.targets()).map(|target| Store::new(sectors(target)));
        let stores = stores.collect();
        World::over(setup, stores)
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
            other: Shard::new(16),
            changes_threads: false,
            stores,
            retired: Vec::new(),
            replacing: None,
            history: History::new(),
            effects: VecDeque::new(),
            in_flight: Vec::new(),
            memory: BTreeMap::new(),
            pending: BTreeMap::new(),
            next_token: 0,
            next_stamp: 0,
            next_filter: 0,
            rearranging: false,
            used: Use::default(),
            uses: 0,
            growing: false,
            shrinking: false,
            shrink_asked: false,
            cache_lost: false,
            decayed: 0,
            sums: BTreeMap::new(),
            gave_up: false,
            away: 0,
            unplugged: 0,
            empty: 0,
            hung: 0,
            failing: None,
            home: 0,
            moving: Move::None,
            detaching: false,
            detached: false,
            ordered: 0,
            notices: Vec::new(),
            failed_since_start: false,
            lost_since_start: false,
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
        match order {
            LayoutOrder::Replace(device) if self.setup.shape.flash() >> device.0 & 1 == 1 => {
                self.replace_flash(device);
            }
            LayoutOrder::Replace(member) if self.setup.shape.is_redundant() => self.replace(member),
            _ => self.order_now(order),
        }
    }

    pub(super) fn order_now(&mut self, order: LayoutOrder) {
        self.note(|| format!("order: {order:?}"));
        self.ordered += 1;
        if let LayoutOrder::Drop(target) = order {
            self.faulty |= 1 << target.0;
        }
        self.handle(Event::LayoutOrder { disk: DISK, order });
    }

    /// How opening the disk has ended.
    pub fn opened(&self) -> Option<Result<(), Refusal>> {
        self.opened
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

    /// Whether it has a flash cache.
    pub fn is_cached(&self) -> bool {
        matches!(self.setup.shape, Shape::Cached { .. })
    }

    /// Requests are around multiples of so many sectors: the edges of a cache's pages, or of a mirror's regions.
    pub fn grain(&self) -> Option<u64> {
        let sector = SECTOR as u64;
        let grain = if self.is_cached() {
            PAGE / sector
        } else {
            REGION / sector
        };
        (self.is_cached() || self.setup.sectors > 2 * grain).then_some(grain)
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
        self.used.attachments[1] = self.next_use();
        (self.gave_up, self.cache_lost) = (false, false);
        if self.is_cached() {
            let used = self.used;
            self.note(|| format!("the descriptor says {used:?}"));
        }
        let tree = self.setup.shape.tree(size, self.used);
        self.opened = tree.is_none().then_some(Ok(()));
        let stack = match tree {
            Some(tree) => stack.over(tree),
            None => stack,
        };
        self.new_threads();
        let attach = Event::Attach {
            disk: DISK,
            size,
            read_only: false,
            stack,
            control: None,
        };
        self.handle(attach);
    }

    /// From now on the disk changes its I/O thread before each event.
    pub fn change_threads(&mut self) {
        self.changes_threads = true;
    }

    /// Two I/O threads without disks.
    fn new_threads(&mut self) {
        let shards = [&mut self.shard, &mut self.other];
        for (shard, first) in shards.into_iter().zip([ARENA, ARENA + ARENA_SLOTS]) {
            *shard = Shard::new(16);
            let slots = (first..first + ARENA_SLOTS).map(|buffer| Data { buffer, start: 0 });
            shard.give_arena(slots.collect());
        }
    }

    /// The disk goes to the other I/O thread, with everything that is under way.
    fn hop(&mut self) {
        if !self.changes_threads {
            return;
        }
        if let Some(moving) = self.shard.take_out(self.now, DISK, &mut self.out) {
            std::mem::swap(&mut self.shard, &mut self.other);
            let given = self.shard.take_in(self.now, DISK, moving, &mut self.out);
            self.other.give_arena(given);
        }
    }

    fn handle(&mut self, event: Event) {
        self.now = self.now + Span::from_micros(1);
        self.hop();
        self.shard.handle(self.now, event, &mut self.out);
        self.handled();
    }

    /// An I/O has ended, and its bytes are checked if the shard wants that.
    fn ended(&mut self, io: IoId, outcome: Outcome) {
        self.now = self.now + Span::from_micros(1);
        self.hop();
        let (memory, sums) = (&mut self.memory, &mut self.sums);
        let sum = |data, len| summed(sums, bytes(memory, data, len as usize));
        self.shard.ended(self.now, DISK, io, outcome, sum);
        self.shard.flow(self.now, &mut self.out);
        self.handled();
    }

    fn handled(&mut self) {
        self.effects.extend(self.out.drain(..));
        if self.shard.strays() + self.other.strays() > 0 {
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
                    retired: None,
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
                if outcome.is_ok() {
                    self.commit_use();
                }
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
            Effect::Zero { to, len } => {
                let len = usize::try_from(len).expect("a request is small");
                bytes(&mut self.memory, to, len).fill(0);
            }
            Effect::Sum { io, data, len, .. } => {
                let len = usize::try_from(len).expect("a slot is small");
                let sum = summed(&mut self.sums, bytes(&mut self.memory, data, len));
                self.handle(Event::Summed {
                    disk: DISK,
                    io,
                    sum,
                });
            }
            Effect::LayoutNotice { notice, .. } => self.noticed(*notice),
            Effect::LayoutOrdered { outcome, .. } => {
                self.note(|| format!("ordered: {outcome:?}"));
                self.cache_ordered(outcome.is_err());
                match self.ordered.checked_sub(1) {
                    Some(ordered) => self.ordered = ordered,
                    None => self.fail("an order is answered twice".to_owned()),
                }
                self.replacement_advances(outcome);
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

    /// A number for a use of the disk that no other one has.
    pub(super) fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
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
            retired: None,
        });
    }

    /// A store completes one of its I/Os, or fails it.
    pub fn complete(&mut self, which: usize, outcome: Outcome) {
        let mut started = self.in_flight.remove(which);
        self.completed += 1;
        let bit = 1 << started.target;
        let is_empty = self.empty & bit != 0 && started.retired.is_none();
        let gone = self.away | self.unplugged | if is_empty { bit } else { 0 };
        let outcome = match gone & bit {
            0 => self.planned(bit).map_or(outcome, Err),
            _ => Err(Fault::Gone),
        };
        if outcome.is_err() && !is_empty {
            self.note_fault(bit);
        }
        // Every other write that fails has happened nevertheless.
        let modifies = started.op.modifies() && self.completed.is_multiple_of(2);
        let happens = gone & bit == 0 && modifies;
        if outcome.is_ok() || happens {
            self.apply(&mut started);
        }
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
        match bytes {
            Bytes::Memory(_) => self.ended(io, outcome),
            Bytes::Block(block) => self.handle(Event::BlockDone {
                disk: DISK,
                io,
                outcome: outcome.map(|()| block.filter(|_| op == Op::Read)),
            }),
        }
    }

    fn apply(&mut self, started: &mut Started) {
        let store = match started.retired {
            Some(retired) => &mut self.retired[retired],
            None => &mut self.stores[started.target],
        };
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
        let io = StoreIo {
            op: started.op,
            flags: started.flags,
            offset: started.offset,
            len: started.len,
            mark: started.mark,
            store: started.target,
        };
        store.carry_out(&io, bytes);
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
        let away = match self.setup.shape.may_lack_one() && self.away == 0 {
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
            if self.away >> started.target & 1 == 1 || started.retired.is_some() {
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
        self.new_threads();
        self.effects.clear();
        self.pending.clear();
        self.memory.clear();
        self.retired.clear();
        self.replacing = None;
        self.rearranging = false;
        self.away = away;
        (self.hung, self.unplugged) = (0, 0);
        self.moving = Move::None;
        (self.detaching, self.detached) = (false, false);
        self.ordered = 0;
        (self.growing, self.shrinking) = (false, false);
        self.shrink_asked = false;
        self.faulty |= away;
        self.failed_since_start = false;
        self.lost_since_start = false;
        self.attach();
    }

    /// Lets everything under way end, oldest first.
    pub fn finish(&mut self) {
        self.hung = 0;
        for step in 0.. {
            self.bound(step);
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

    /// The disk is detached in order.
    pub fn detach(&mut self) {
        self.note(|| "detach".to_owned());
        self.detaching = true;
        self.handle(Event::Detach { disk: DISK });
    }

    /// Attaches a disk that was detached.
    pub fn attach_again(&mut self) {
        self.finish();
        if !self.detached && self.breach.is_none() {
            self.fail("the disk is never detached".to_owned());
        }
        self.note(|| "attach".to_owned());
        self.new_threads();
        (self.away, self.unplugged) = (0, 0);
        (self.detaching, self.detached) = (false, false);
        (self.moving, self.ordered) = (Move::None, 0);
        self.replacing = None;
        (self.growing, self.shrinking) = (false, false);
        self.shrink_asked = false;
        self.attach();
    }
}

/// The checksum of bytes: those that differ have another one.
fn summed(sums: &mut BTreeMap<Vec<u8>, u32>, bytes: &[u8]) -> u32 {
    let next = u32::try_from(sums.len()).expect("a run is short");
    match sums.get(bytes) {
        Some(sum) => *sum,
        None => *sums.entry(bytes.to_vec()).or_insert(next),
    }
}

/// A part of the memory that an I/O names. Buffers of the arena have memory once they are used.
fn bytes(memory: &mut BTreeMap<u32, Vec<u8>>, data: Data, len: usize) -> &mut [u8] {
    let start = usize::try_from(data.start).expect("32 bits");
    if (ARENA..ARENA + 2 * ARENA_SLOTS).contains(&data.buffer) {
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
