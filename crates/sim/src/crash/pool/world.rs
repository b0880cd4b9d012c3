//! The world of a pool: one I/O thread with the disks of the pool, its stores, its guests and its daemon.
//!
//! Effects of the shard wait in `effects`, I/Os of the stores in `in_flight`, and what the daemon does next in `deeds`. The
//! caller decides which of them continues. A breach is recorded, and ends the run.

use super::catalog::Catalog;
use super::oracle::{Disk, Oracle, Snapshot};
use super::{COLUMNS_MAX, EXTENT, GEOMETRY, Setup};
use crate::crash::choice::Choose;
use crate::crash::store::{InFlight, Store, StoreIo};
use crate::crash::world::{Failing, GuestRequest};
use crate::crash::{SECTOR, fill};
use daemon::{Deed, Ordered};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tidegate_core::block::BLOCK;
use tidegate_core::effect::Effect;
use tidegate_core::layout::pool::{Generation, PoolReport};
use tidegate_core::layout::{Refusal, SLOT, Target, Tree};
use tidegate_core::request::{Data, DiskId, Extent, Fault, Flags, IoId, Op, Outcome};
use tidegate_core::shard::{Event, Shard};
use tidegate_core::stack::Stack;
use tidegate_core::units::{Span, Time};

mod acts;
mod daemon;
mod guest;
mod metadata;
mod verify;

/// Buffers of the arena, from this number on.
const ARENA: u32 = u32::MAX - 100;
/// How many the thread has.
const ARENA_SLOTS: u32 = 12;
/// Views of snapshots have numbers from here on.
const VIEWS: u32 = 64;
/// Everything ends in fewer steps.
const ENOUGH: u32 = 5_000;
/// The write that another tenant's bytes are of.
const FOREIGN: u64 = 0xbad;

/// A disk or a view that is attached.
struct Seat {
    kind: Kind,
    /// Sectors when it was attached.
    sectors: u64,
    /// How opening has ended.
    opened: Option<Result<(), Refusal>>,
    /// The columns that its layout knows.
    columns: u8,
    /// The act that is not answered.
    ordered: Option<Ordered>,
    /// Whether one of the two answers of a snapshot has come: the notice, or that of the order.
    is_half_answered: bool,
    /// Indexes of grants that its layout has given back.
    returned: BTreeSet<u32>,
    leaving: Leaving,
    /// What it is held for.
    holding: Holding,
}

/// What a seat is attached for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Disk(Disk),
    /// A snapshot of a disk, read-only.
    View(Disk, Generation, Snapshot),
}

/// Whether a seat is being detached, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    No,
    /// It is attached again at once.
    Returns,
    /// It is not used any more; a disk is deleted.
    Goes,
}

/// Whether a disk is held, so that its layout is exchanged for one with more columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holding {
    No,
    Asked,
}

/// A request between its submission and its answer.
struct Pending {
    seat: u32,
    request: GuestRequest,
    buffer: u32,
    /// Its moment in the history of the disk.
    issued: u64,
    /// Whether all its sub-blocks were the current generation's own when it was submitted.
    has_space: bool,
    /// Whether the pool had no grant since then.
    is_warned: bool,
}

/// An I/O that a store was given.
struct Started {
    seat: u32,
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
    /// A block of a layout's own; to be read, it is empty.
    Block(Option<Box<[u8; BLOCK]>>),
}

/// See the module.
pub struct World {
    shard: Shard,
    /// By column.
    stores: Vec<Store>,
    catalog: Catalog,
    oracle: Oracle,
    deeds: VecDeque<Deed>,
    /// By the number of the disk on the I/O thread.
    seats: BTreeMap<u32, Seat>,
    next_view: u32,
    effects: VecDeque<Effect>,
    in_flight: Vec<Started>,
    memory: BTreeMap<u32, Vec<u8>>,
    pending: BTreeMap<u64, Pending>,
    next_token: u64,
    next_stamp: u64,
    /// The generation that each disk writes.
    current: BTreeMap<Disk, Generation>,
    /// Since when, and the sub-blocks that it has written and not discarded.
    own: BTreeMap<Disk, (u64, BTreeSet<u64>)>,
    /// Generations of acts that have failed: they may exist after a crash, and nobody reads them.
    failed: BTreeSet<(Disk, Generation)>,
    /// What the last view has read, by disk and generation.
    shown: BTreeMap<(Disk, Generation), Vec<u64>>,
    failing: Option<Failing>,
    /// Whether an I/O has failed since the last start.
    has_fault: bool,
    /// Columns that fail everything, one bit each, until the next start.
    gone: u32,
    now: Time,
    out: Vec<Effect>,
    completed: u64,
    breach: Option<String>,
    trace: Option<Vec<String>>,
}

/// A pool whose disks have opened once, from which runs begin.
pub struct Formatted {
    setup: Setup,
    stores: Vec<Store>,
    catalog: Catalog,
}

impl Formatted {
    /// Makes a pool and its disks.
    ///
    /// # Panics
    /// If a new pool does not open.
    pub fn new(setup: &Setup) -> Formatted {
        let mut world = World::new(setup);
        world.finish();
        assert_eq!(world.breach(), None, "a new pool opens");
        Formatted {
            setup: setup.clone(),
            stores: world.stores,
            catalog: world.catalog,
        }
    }

    /// A world that begins with it.
    pub fn world(&self) -> World {
        World::over(&self.setup, self.stores.clone(), self.catalog.clone())
    }
}

impl World {
    /// A new pool on stores that have another tenant's bytes.
    pub fn new(setup: &Setup) -> World {
        let data = u64::from(setup.grants) * u64::from(GEOMETRY.extents) * EXTENT;
        let sectors = GEOMETRY.data_at / SECTOR as u64 + data;
        let store = || {
            let mut store = Store::new(sectors);
            let bytes: Vec<u8> = (0..sectors)
                .flat_map(|at| fill(FOREIGN + at, FOREIGN))
                .collect();
            store.write(0, &bytes, true);
            store
        };
        let stores = (0..COLUMNS_MAX).map(|_| store()).collect();
        let mut catalog = Catalog::new(setup);
        for _ in 0..setup.disks {
            catalog.create(setup.sectors, None);
        }
        World::over(setup, stores, catalog)
    }

    fn over(setup: &Setup, stores: Vec<Store>, catalog: Catalog) -> World {
        let mut oracle = Oracle::default();
        for disk in catalog.disks() {
            oracle.create(disk, setup.sectors, None);
        }
        let mut world = World {
            shard: Shard::new(16),
            stores,
            catalog,
            oracle,
            deeds: VecDeque::new(),
            seats: BTreeMap::new(),
            next_view: VIEWS,
            effects: VecDeque::new(),
            in_flight: Vec::new(),
            memory: BTreeMap::new(),
            pending: BTreeMap::new(),
            next_token: 0,
            next_stamp: 0,
            current: BTreeMap::new(),
            own: BTreeMap::new(),
            failed: BTreeSet::new(),
            shown: BTreeMap::new(),
            failing: None,
            has_fault: false,
            gone: 0,
            now: Time::ZERO,
            out: Vec::new(),
            completed: 0,
            breach: None,
            trace: None,
        };
        world.start();
        world
    }

    /// The host starts: a new I/O thread, and all disks of the catalog.
    fn start(&mut self) {
        self.shard = Shard::new(16);
        let slots = (ARENA..ARENA + ARENA_SLOTS).map(|buffer| Data { buffer, start: 0 });
        self.shard.give_arena(slots.collect());
        (self.has_fault, self.gone) = (false, 0);
        for disk in self.catalog.disks() {
            self.attach(disk);
        }
    }

    fn attach(&mut self, disk: Disk) {
        let sectors = self.sectors(disk);
        let tree = self.tree(disk, None);
        self.note(|| format!("attach {disk:?}"));
        self.seat(seat_of(disk), Kind::Disk(disk), sectors, tree);
    }

    /// The layouts of a disk, or of a view of one of its generations.
    fn tree(&self, disk: Disk, view: Option<Generation>) -> Tree {
        Tree::pool(self.catalog.setup(disk), view)
    }

    fn seat(&mut self, number: u32, kind: Kind, sectors: u64, tree: Tree) {
        let seat = Seat {
            kind,
            sectors,
            opened: None,
            columns: self.catalog.columns(),
            ordered: None,
            is_half_answered: false,
            returned: BTreeSet::new(),
            leaving: Leaving::No,
            holding: Holding::No,
        };
        self.seats.insert(number, seat);
        self.handle(Event::Attach {
            disk: DiskId(number),
            size: sectors * SECTOR as u64,
            read_only: matches!(kind, Kind::View(..)),
            stack: Stack::new(Vec::new()).over(tree),
            control: None,
        });
    }

    fn handle(&mut self, event: Event) {
        self.now = self.now + Span::from_micros(1);
        self.shard.handle(self.now, event, &mut self.out);
        self.effects.extend(self.out.drain(..));
        if self.shard.strays() > 0 {
            self.fail("the shard counts a stray completion".to_owned());
        }
    }

    /// Performs the next effect.
    pub fn perform(&mut self) {
        let Some(effect) = self.effects.pop_front() else {
            return;
        };
        match effect {
            Effect::Start {
                disk,
                target,
                io,
                op,
                flags,
                offset,
                len,
                data,
            } => {
                let target = usize::from(target.0);
                let started = Started {
                    seat: disk.0,
                    target,
                    io,
                    op,
                    flags,
                    offset,
                    len,
                    bytes: Bytes::Memory(data),
                    mark: self.stores[target].mark(),
                };
                self.begin(started);
            }
            Effect::ReadBlock {
                disk,
                target,
                io,
                offset,
            } => self.begin_block(disk, target, io, Op::Read, offset, None),
            Effect::WriteBlock {
                disk,
                target,
                io,
                offset,
                block,
            } => self.begin_block(disk, target, io, Op::Write, offset, Some(block)),
            Effect::Opened { disk, outcome } => self.opened(disk.0, outcome),
            Effect::Answer { token, outcome, .. } => self.answered(token, outcome),
            Effect::Copy { from, to, len } => {
                let len = usize::try_from(len).expect("a slot is small");
                let from = bytes(&mut self.memory, from, len).to_vec();
                bytes(&mut self.memory, to, len).copy_from_slice(&from);
            }
            Effect::Zero { to, len } => {
                let len = usize::try_from(len).expect("a request is small");
                bytes(&mut self.memory, to, len).fill(0);
            }
            Effect::LayoutNotice { disk, notice } => self.noticed(disk.0, *notice),
            Effect::LayoutOrdered { disk, outcome } => self.ordered(disk.0, outcome),
            Effect::Held { disk } => self.held(disk.0),
            Effect::Detached { disk, .. } => self.detached(disk.0),
            Effect::Sum { .. }
            | Effect::SideWrite { .. }
            | Effect::Rearranged { .. }
            | Effect::Wake { .. } => self.fail(format!("{effect:?} has no cause")),
        }
    }

    fn begin(&mut self, started: Started) {
        self.note(|| format!("start {}", started.describe()));
        self.check_owner(&started);
        self.in_flight.push(started);
    }

    fn begin_block(
        &mut self,
        disk: DiskId,
        target: Target,
        io: IoId,
        op: Op,
        offset: u64,
        block: Option<Box<[u8; BLOCK]>>,
    ) {
        let started = Started {
            seat: disk.0,
            target: usize::from(target.0),
            io,
            op,
            flags: Flags::FUA,
            offset,
            len: BLOCK as u64,
            bytes: Bytes::Block(block),
            mark: 0,
        };
        self.begin(started);
    }

    /// A disk reads and writes in its own grants, and reads in those of its ancestors. What is read of headers is not
    /// checked: their grant may be another disk's by then, and nothing in them counts.
    fn check_owner(&mut self, started: &Started) {
        let is_header = matches!(started.bytes, Bytes::Block(_));
        let Some(seat) = self.seats.get(&started.seat) else {
            return;
        };
        if started.len == 0 || is_header && !started.op.modifies() {
            return;
        }
        let (Kind::Disk(disk) | Kind::View(disk, ..)) = seat.kind;
        let is_view = matches!(seat.kind, Kind::View(..));
        let grant = u64::from(GEOMETRY.extents) * GEOMETRY.extent();
        let Some(at) = started.offset.checked_sub(GEOMETRY.data_at) else {
            let what = started.describe();
            return self.fail(format!("{what} is before all grants"));
        };
        let mut touched = at / grant..(at + started.len).div_ceil(grant);
        let mut owners = vec![disk];
        while !started.op.modifies()
            && let Some(entry) = owners.last().and_then(|last| self.catalog.entry(*last))
            && let Some((parent, _)) = entry.parent
        {
            owners.push(parent);
        }
        let is_owned = |number: u64| {
            owners.iter().any(|owner| {
                let entry = self.catalog.entry(*owner);
                let grants = entry.map(|entry| entry.grants.iter().zip(0..));
                grants.into_iter().flatten().any(|(grant, index)| {
                    let is_returned = *owner == disk && !is_view && seat.returned.contains(&index);
                    let is_here = grant.is_some_and(|grant| {
                        usize::from(grant.column) == started.target
                            && u64::from(grant.number) == number
                    });
                    is_here && !is_returned
                })
            })
        };
        if !touched.all(is_owned) || is_view && started.op.modifies() {
            let what = started.describe();
            self.fail(format!("{what} is not within a grant of {disk:?}"));
        }
    }

    /// A store completes one of its I/Os, or fails it.
    pub fn complete(&mut self, which: usize, outcome: Outcome) {
        let mut started = self.in_flight.remove(which);
        self.completed += 1;
        let bit = 1 << started.target;
        let outcome = match self.gone & bit {
            0 => self.planned(bit).map_or(outcome, Err),
            _ => Err(Fault::Gone),
        };
        self.has_fault |= outcome.is_err();
        // Every other write that fails has happened nevertheless.
        let happens = started.op.modifies() && self.completed.is_multiple_of(2);
        if outcome.is_ok() || happens && self.gone & bit == 0 {
            self.apply(&mut started);
        }
        self.note(|| format!("complete {}: {outcome:?}", started.describe()));
        let Started {
            seat,
            io,
            op,
            bytes,
            ..
        } = started;
        let disk = DiskId(seat);
        self.handle(match bytes {
            Bytes::Memory(_) => Event::Finished { disk, io, outcome },
            Bytes::Block(block) => Event::BlockDone {
                disk,
                io,
                outcome: outcome.map(|()| block.filter(|_| op == Op::Read)),
            },
        });
    }

    fn planned(&mut self, bit: u32) -> Option<Fault> {
        let failing = self.failing.as_mut()?;
        if let Some(after) = failing.after.checked_sub(1) {
            failing.after = after;
            return None;
        }
        let Failing { fault, lasts, .. } = self.failing.take()?;
        self.gone |= if lasts { bit } else { 0 };
        Some(fault)
    }

    fn apply(&mut self, started: &mut Started) {
        let store = &mut self.stores[started.target];
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

    /// The host crashes and starts again: the stores keep what is durable, and of the rest what the choices say.
    pub fn crash(&mut self, choices: &mut dyn Choose) {
        self.note(|| "CRASH".to_owned());
        let mut in_flight: Vec<Vec<InFlight>> = self.stores.iter().map(|_| Vec::new()).collect();
        for started in std::mem::take(&mut self.in_flight) {
            if self.gone >> started.target & 1 == 1 {
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
        self.oracle.crash();
        self.deeds.clear();
        self.effects.clear();
        self.seats.clear();
        self.pending.clear();
        self.memory.clear();
        self.own.clear();
        self.start();
    }

    /// Lets everything under way end, oldest first.
    pub fn finish(&mut self) {
        for step in 0.. {
            if step > ENOUGH {
                self.fail("what is under way never ends".to_owned());
            }
            if self.breach.is_some() {
                break;
            }
            let goes_on = self.step() || self.waits() && self.pass_time();
            if !goes_on {
                break;
            }
        }
        if self.breach.is_none() && self.waits() {
            let waiting: Vec<String> = self.waiting();
            self.fail(format!("these are never answered: {waiting:?}"));
        }
    }

    /// Continues what is oldest. Returns whether there was something.
    pub fn step(&mut self) -> bool {
        if !self.effects.is_empty() {
            self.perform();
        } else if !self.in_flight.is_empty() {
            self.complete(0, Ok(()));
        } else if !self.deeds.is_empty() {
            self.work();
        } else {
            return false;
        }
        true
    }

    /// Whether somebody waits for an answer.
    fn waits(&self) -> bool {
        let mut seats = self.seats.values();
        !self.pending.is_empty() || seats.any(Seat::waits)
    }

    fn waiting(&self) -> Vec<String> {
        let pending = self.pending.values();
        let pending = pending.map(|pending| format!("{:?}", pending.request));
        let seats = self.seats.values().filter(|seat| seat.waits());
        let seats = seats.map(|seat| {
            format!(
                "{:?}: {:?} {:?} {:?} {:?}",
                seat.kind, seat.opened, seat.ordered, seat.leaving, seat.holding
            )
        });
        pending.chain(seats).collect()
    }

    /// Time passes until the shard's next deadline. Returns whether there was one.
    pub fn pass_time(&mut self) -> bool {
        let Some((at, _)) = self.shard.deadline() else {
            return false;
        };
        self.note(|| format!("time passes until {at:?}"));
        self.now = self.now.max(at);
        self.handle(Event::Ticked);
        true
    }

    /// What a disk's layout reports.
    fn report(&self, number: u32) -> Option<PoolReport> {
        self.shard.layout_report(DiskId(number))?.pool
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

    /// I/Os that stores have, effects and deeds that wait.
    pub fn ways(&self) -> [usize; 3] {
        [self.in_flight.len(), self.effects.len(), self.deeds.len()]
    }

    /// Requests that are not answered yet.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// I/Os that stores have completed so far.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// All disks, by number.
    pub fn disks(&self) -> Vec<Disk> {
        self.catalog.disks()
    }

    /// Sectors of a disk.
    pub fn sectors(&self, disk: Disk) -> u64 {
        self.catalog.entry(disk).map_or(0, |entry| entry.sectors)
    }

    /// Plans I/Os that fail.
    pub fn fail_later(&mut self, failing: Failing) {
        self.failing = Some(failing);
    }

    /// Whether the planned I/O has failed.
    pub fn has_failed(&self) -> bool {
        self.failing.is_none()
    }

    /// Nothing fails any more.
    pub fn repair(&mut self) {
        (self.failing, self.gone) = (None, 0);
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
}

impl Seat {
    /// A snapshot is answered by a notice and by the end of its order, in any order.
    fn half_answered(&mut self) {
        if self.is_half_answered {
            self.ordered = None;
        }
        self.is_half_answered = !self.is_half_answered;
    }

    fn waits(&self) -> bool {
        let opens = self.opened.is_none();
        opens
            || self.ordered.is_some()
            || self.leaving != Leaving::No
            || self.holding != Holding::No
    }
}

impl Started {
    fn describe(&self) -> String {
        let block = match self.bytes {
            Bytes::Memory(_) => "",
            Bytes::Block(_) => " of a block",
        };
        format!(
            "{:?}{block} {}+{} on column {} for seat {}",
            self.op, self.offset, self.len, self.target, self.seat
        )
    }
}

/// The number of a disk on the I/O thread.
fn seat_of(disk: Disk) -> u32 {
    u32::try_from(disk.0).expect("few disks")
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
