//! The world of a pool: one I/O thread with the disks of the pool, its stores, its guests and its daemon.
//!
//! Effects of the shard wait in `effects`, I/Os of the stores in `in_flight`, and what the daemon does next in `deeds`. The
//! caller decides which of them continues. A breach is recorded, and ends the run.

use super::COLUMNS_MAX;
use super::catalog::Catalog;
use super::oracle::{Disk, Oracle, Snapshot};
use crate::crash::SECTOR;
use crate::crash::store::Store;
use crate::crash::world::{Failing, GuestRequest};
use daemon::{Deed, Ordered};
pub use formatted::Formatted;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use stores::Started;
use tidegate_core::effect::Effect;
use tidegate_core::layout::pool::{Generation, PoolReport};
use tidegate_core::layout::{Refusal, Tree};
use tidegate_core::request::{Data, DiskId, Fault};
use tidegate_core::shard::{Event, Shard};
use tidegate_core::stack::Stack;
use tidegate_core::units::{Span, Time};

mod acts;
mod daemon;
mod formatted;
mod guest;
mod members;
mod metadata;
mod steps;
mod stores;
mod verify;

/// Buffers of the arena, from this number on.
const ARENA: u32 = u32::MAX - 100;
/// How many the thread has.
const ARENA_SLOTS: u32 = 12;
/// Views of snapshots have numbers from here on.
const VIEWS: u32 = 64;
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
    /// Whether the daemon has said that the pool has no grant, and nothing else since then.
    is_refused: bool,
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
    /// Whether the disk was refused a grant when the request was answered, and had no space that becomes free.
    is_refused: bool,
}

/// See the module.
pub struct World {
    shard: Shard,
    /// By target: one for each member of each column.
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
    /// Stores that fail everything, one bit each, until the next start.
    gone: u32,
    /// Stores that have failed something since the last start.
    faulted: u32,
    /// The member that is being rebuilt, and the disks that have copied their parts.
    syncing: Option<usize>,
    rebuilt: BTreeSet<u32>,
    /// How many members were rebuilt.
    joined: u64,
    now: Time,
    out: Vec<Effect>,
    completed: u64,
    breach: Option<String>,
    trace: Option<Vec<String>>,
}

impl World {
    /// The host starts: a new I/O thread, and all disks of the catalog.
    fn start(&mut self) {
        self.shard = Shard::new(16);
        let slots = (ARENA..ARENA + ARENA_SLOTS).map(|buffer| Data { buffer, start: 0 });
        self.shard.give_arena(slots.collect());
        (self.has_fault, self.gone, self.faulted) = (false, 0, 0);
        self.syncing = None;
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
        Tree::pool(self.with_syncing(self.catalog.setup(disk)), view)
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
            is_refused: false,
        };
        self.seats.insert(number, seat);
        self.rebuilt.remove(&number);
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
        for effect in &self.out {
            if let Effect::Answer {
                disk,
                token,
                outcome: Err(Fault::NoSpace),
                ..
            } = effect
            {
                let report = self.report(disk.0);
                let has_some = report.is_some_and(|it| it.free + it.zeroed + it.releasing > 0);
                let seat = self.seats.get(&disk.0);
                let is_refused = seat.is_some_and(|seat| seat.is_refused) && !has_some;
                if let Some(pending) = self.pending.get_mut(&token.0) {
                    pending.is_refused = is_refused;
                }
            }
        }
        self.effects.extend(self.out.drain(..));
        if self.shard.strays() > 0 {
            self.fail("the shard counts a stray completion".to_owned());
        }
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

    /// How many members were rebuilt so far.
    pub fn joined(&self) -> u64 {
        self.joined
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

    /// Of writes that fail, those happen nevertheless that would not have happened, and the other way round.
    pub fn let_others_happen(&mut self) {
        self.completed += 1;
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

/// The number of a disk on the I/O thread.
fn seat_of(disk: Disk) -> u32 {
    u32::try_from(disk.0).expect("few disks")
}
