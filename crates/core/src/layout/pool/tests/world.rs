//! A small world for a pool's disk: members with a volatile cache, a catalog that gives grants, and guests' buffers.

use super::super::*;
use crate::block::BLOCK;
use crate::layout::tree::Load;
use crate::layout::{Arena, LayoutCommand, LayoutNotice, Refusal, SubIo};
use crate::request::{Data, DiskId};
use crate::units::Span;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec;

pub(super) const SUB: u64 = 4096;
pub(super) const EXTENT: u64 = 16 * SUB;
const COLUMNS: u8 = 2;
const GRANTS: u64 = 24;
/// The first buffer of the arena.
const ARENA: u32 = 1000;
const SLOTS: u32 = 8;

pub(super) fn geometry() -> Geometry {
    Geometry {
        sub_block: SUB,
        extents: 8,
        headers: 6,
        data_at: 4096,
    }
}

/// One member.
#[derive(Clone)]
pub(super) struct Store {
    pub(super) now: Vec<u8>,
    pub(super) durable: Vec<u8>,
}

/// An I/O that a member has.
#[derive(Clone, Debug)]
pub(super) enum Job {
    Sub(u64, SubIo),
    Guest(IoId, SubIo),
    Read(u64, Target, u64),
    Write(u64, Target, u64, Box<[u8; BLOCK]>),
}

pub(super) struct World {
    pub(super) pool: Pool,
    pub(super) stores: Vec<Store>,
    pub(super) grants: Vec<Option<Grant>>,
    /// Places that the catalog can give.
    pub(super) free: VecDeque<(u16, u32)>,
    pub(super) lives: u64,
    commands: VecDeque<(u8, LayoutCommand)>,
    /// With the side of the fence that they are on.
    pub(super) jobs: VecDeque<(Job, bool)>,
    side: bool,
    fence: bool,
    arena: Arena,
    memory: BTreeMap<u32, Vec<u8>>,
    next: u32,
    pub(super) answers: BTreeMap<u32, Outcome>,
    pub(super) notices: Vec<LayoutNotice>,
    pub(super) ordered: Vec<Result<(), OrderRefusal>>,
    pub(super) opened: Option<Result<(), Refusal>>,
    pub(super) now: Time,
    /// Whether the catalog gives what is asked for.
    pub(super) gives: bool,
    /// Columns of which it gives nothing, one bit each.
    pub(super) drained: u32,
    /// Members that fail so, by kind.
    pub(super) fails: BTreeSet<&'static str>,
    pub(super) size: u64,
    pub(super) ancestors: Vec<Ancestor>,
    /// How many I/Os members had.
    pub(super) performed: u32,
}

impl World {
    pub(super) fn new(size: u64) -> World {
        World::with(size, GRANTS)
    }

    /// The same, on columns of so many grants.
    pub(super) fn with(size: u64, grants: u64) -> World {
        let len = usize::try_from(4096 + grants * 8 * EXTENT).unwrap();
        // What other tenants have left.
        let store = Store {
            now: vec![0xee; len],
            durable: vec![0xee; len],
        };
        let free = (0..grants).flat_map(|number| {
            let number = u32::try_from(number).unwrap();
            (0..u16::from(COLUMNS)).map(move |column| (column, number))
        });
        let mut world = World {
            pool: Pool::new(setup(&[], size, &[]), None),
            stores: vec![store; usize::from(COLUMNS)],
            grants: Vec::new(),
            free: free.collect(),
            lives: 0,
            commands: VecDeque::new(),
            jobs: VecDeque::new(),
            side: false,
            fence: false,
            arena: Arena::default(),
            memory: BTreeMap::new(),
            next: 1,
            answers: BTreeMap::new(),
            notices: Vec::new(),
            ordered: Vec::new(),
            opened: None,
            now: Time::ZERO,
            gives: true,
            drained: 0,
            fails: BTreeSet::new(),
            size,
            ancestors: Vec::new(),
            performed: 0,
        };
        world.open(None);
        world.run();
        assert_eq!(world.opened, Some(Ok(())));
        world
    }

    /// Opens the disk again, from what the members have now.
    pub(super) fn open(&mut self, view: Option<Generation>) {
        self.pool = Pool::new(setup(&self.grants, self.size, &self.ancestors), view);
        self.commands.clear();
        self.jobs.clear();
        (self.side, self.fence) = (false, false);
        self.arena = Arena::default();
        self.arena.give(
            (ARENA..ARENA + SLOTS)
                .map(|buffer| Data { buffer, start: 0 })
                .collect(),
        );
        for buffer in ARENA..ARENA + SLOTS {
            // Whatever was there before.
            self.memory.insert(buffer, vec![0xdd; 65536]);
        }
        self.opened = None;
        self.answers.clear();
        self.hook(|pool, cx| pool.open(cx, u32::MAX, false));
    }

    /// The host fails: what was not flushed is lost.
    pub(super) fn crash(&mut self) {
        for store in &mut self.stores {
            store.now.clone_from(&store.durable);
        }
        self.open(None);
        self.run();
        assert_eq!(self.opened, Some(Ok(())));
    }

    pub(super) fn hook<T>(&mut self, act: impl FnOnce(&mut Pool, &mut LayoutCx<'_>) -> T) -> T {
        let loads = [Load::default(); COLUMNS as usize];
        let mut cx = LayoutCx {
            now: self.now,
            disk: DiskId(0),
            node: 0,
            loads: &loads,
            commands: &mut self.commands,
            arena: &mut self.arena,
        };
        let result = act(&mut self.pool, &mut cx);
        self.obey();
        result
    }

    fn bytes(&mut self, data: Data, len: u64) -> &mut [u8] {
        let start = data.start as usize;
        let bytes = self.memory.get_mut(&data.buffer).expect("a buffer");
        &mut bytes[start..start + usize::try_from(len).unwrap()]
    }

    fn obey(&mut self) {
        while let Some((_, command)) = self.commands.pop_front() {
            match command {
                LayoutCommand::Issue { tag, sub } => {
                    self.jobs.push_back((Job::Sub(tag, sub), self.side));
                }
                LayoutCommand::Answer { io, outcome } => {
                    let before = self.answers.insert(io.index, outcome);
                    assert_eq!(before, None, "an I/O is answered once");
                }
                LayoutCommand::ReadBlock {
                    tag,
                    target,
                    offset,
                    ..
                } => self
                    .jobs
                    .push_back((Job::Read(tag, target, offset), self.side)),
                LayoutCommand::WriteBlock {
                    tag,
                    target,
                    offset,
                    block,
                } => {
                    let job = Job::Write(tag, target, offset, block);
                    self.jobs.push_back((job, self.side));
                }
                LayoutCommand::Copy { from, to, len } => {
                    let bytes = self.bytes(from, len).to_vec();
                    self.bytes(to, len).copy_from_slice(&bytes);
                }
                LayoutCommand::Zero { to, len } => self.bytes(to, len).fill(0),
                LayoutCommand::Fence => {
                    assert!(!self.fence, "one fence at a time");
                    (self.fence, self.side) = (true, !self.side);
                    self.check_fence();
                }
                LayoutCommand::Ordered(outcome) => self.ordered.push(outcome),
                LayoutCommand::Opened(outcome) => self.opened = Some(outcome),
                LayoutCommand::Notice(notice) => {
                    self.notices.push(notice);
                    match notice {
                        LayoutNotice::GrantWanted { .. } if self.gives => self.give(),
                        LayoutNotice::GrantEmpty { index } => {
                            let grant = self.grants[index as usize].take();
                            let grant = grant.expect("the disk had it");
                            self.free.push_back((grant.column, grant.number));
                        }
                        LayoutNotice::HomeMoved { from, to } if self.gives => {
                            self.exchange(from, to);
                        }
                        _ => {}
                    }
                }
                LayoutCommand::Hurry => {}
                _ => panic!("a pool asks for nothing else"),
            }
        }
    }

    /// Gives the disk a grant, or says that there is none.
    pub(super) fn give(&mut self) {
        let is_open = |(column, _): &(u16, u32)| self.drained >> column & 1 == 0;
        let nth = self.free.iter().position(is_open);
        let Some((column, number)) = nth.and_then(|nth| self.free.remove(nth)) else {
            self.hook(|pool, cx| pool.order(cx, LayoutOrder::NoSpace))
                .unwrap();
            return;
        };
        self.lives += 1;
        let grant = Grant {
            column,
            number,
            life: self.lives,
        };
        let free = self.grants.iter().position(Option::is_none);
        let index = free.unwrap_or(self.grants.len());
        match free {
            Some(index) => self.grants[index] = Some(grant),
            None => self.grants.push(Some(grant)),
        }
        let index = u32::try_from(index).unwrap();
        let order = LayoutOrder::Grant { index, grant };
        assert_eq!(
            self.hook(|pool, cx| pool.order(cx, order)),
            Ok(Ordered::Now)
        );
    }

    /// The catalog exchanges two grants of the disk, and says so.
    pub(super) fn exchange(&mut self, from: u32, to: u32) {
        self.grants.swap(from as usize, to as usize);
        let order = LayoutOrder::HomeMoved { from, to };
        assert_eq!(
            self.hook(|pool, cx| pool.order(cx, order)),
            Ok(Ordered::Now)
        );
    }

    fn check_fence(&mut self) {
        let others = !self.side;
        let is_left = |(job, side): &(Job, bool)| {
            *side == others && matches!(job, Job::Sub(..) | Job::Guest(..))
        };
        if self.fence && !self.jobs.iter().any(is_left) {
            self.fence = false;
            self.hook(|pool, cx| pool.fenced(cx));
        }
    }

    fn fault(&self, kind: &'static str) -> Outcome {
        match self.fails.contains(kind) {
            true => Err(Fault::Io),
            false => Ok(()),
        }
    }

    fn perform(&mut self, sub: &SubIo) -> Outcome {
        self.performed += 1;
        let target = usize::from(sub.target.0);
        let at = usize::try_from(sub.offset).unwrap();
        let range = at..at + usize::try_from(sub.len).unwrap();
        match sub.op {
            Op::Read => {
                self.fault("read")?;
                let bytes = self.stores[target].now[range].to_vec();
                self.bytes(sub.data, sub.len).copy_from_slice(&bytes);
            }
            Op::Write => {
                self.fault("write")?;
                let bytes = self.bytes(sub.data, sub.len).to_vec();
                let store = &mut self.stores[target];
                store.now[range.clone()].copy_from_slice(&bytes);
                if sub.flags.has(Flags::FUA) {
                    store.durable[range].copy_from_slice(&bytes);
                }
            }
            Op::WriteZeroes => {
                self.fault("zero")?;
                self.stores[target].now[range].fill(0);
            }
            Op::Discard => self.stores[target].now[range].fill(0xdc),
            Op::Flush => {
                self.fault("flush")?;
                let store = &mut self.stores[target];
                store.durable.clone_from(&store.now);
            }
            Op::Extents | Op::Prefetch => {}
        }
        Ok(())
    }

    /// Ends the nth I/O that members have.
    pub(super) fn end(&mut self, nth: usize) {
        let (job, _) = self.jobs.remove(nth).expect("it is under way");
        match job {
            Job::Sub(tag, sub) => {
                let outcome = self.perform(&sub);
                self.hook(|pool, cx| pool.done(cx, tag, outcome));
            }
            Job::Guest(io, sub) => {
                let outcome = self.perform(&sub);
                self.answers.insert(io.index, outcome);
            }
            Job::Read(tag, target, at) => {
                let at = usize::try_from(at).unwrap();
                let bytes = &self.stores[usize::from(target.0)].now[at..at + BLOCK];
                let block = Box::new(<[u8; BLOCK]>::try_from(bytes).unwrap());
                let outcome = self.fault("read block").map(|()| Some(block));
                self.hook(|pool, cx| pool.block_done(cx, tag, outcome));
            }
            Job::Write(tag, target, at, block) => {
                let outcome = self.fault("write block");
                // It may have been written nevertheless.
                if outcome.is_ok() || self.fails.contains("landed") {
                    let at = usize::try_from(at).unwrap();
                    let store = &mut self.stores[usize::from(target.0)];
                    for bytes in [&mut store.now, &mut store.durable] {
                        bytes[at..at + BLOCK].copy_from_slice(&block[..]);
                    }
                }
                self.hook(|pool, cx| pool.block_done(cx, tag, outcome.map(|()| None)));
            }
        }
        self.check_fence();
        while self.arena.next_waiting().is_some() {
            self.hook(|pool, cx| pool.arena_ready(cx));
        }
    }

    /// Ends I/Os until members have none, and lets steps that wait for the next turn go on.
    pub(super) fn run(&mut self) {
        for _ in 0..1_000_000 {
            if !self.jobs.is_empty() {
                self.end(0);
                continue;
            }
            let soon = self.now + Span::from_millis(1);
            match self.pool.deadline() {
                Some(at) if at <= soon => self.tick(at),
                _ => return,
            }
        }
        panic!("it never ends");
    }

    /// Ends the oldest I/O, or lets time pass until something is due.
    pub(super) fn step(&mut self) {
        match self.pool.deadline() {
            _ if !self.jobs.is_empty() => self.end(0),
            Some(at) => self.tick(at),
            None => self.now = self.now + Span::from_millis(50),
        }
    }

    /// What was not flushed is durable by chance.
    pub(super) fn keep_all(&mut self) {
        for store in &mut self.stores {
            store.durable.clone_from(&store.now);
        }
    }

    /// Lets time pass.
    pub(super) fn wait(&mut self, span: Span) {
        let until = self.now + span;
        while let Some(at) = self.pool.deadline().filter(|at| *at <= until) {
            self.tick(at);
            self.run();
        }
        self.now = until;
    }

    pub(super) fn tick(&mut self, at: Time) {
        self.now = at.max(self.now);
        self.hook(|pool, cx| pool.tick(cx));
        let next = self.pool.deadline();
        assert!(next.is_none_or(|at| at > self.now), "a tick moves it");
    }

    /// Begins an I/O. Returns its number.
    pub(super) fn begin(
        &mut self,
        op: Op,
        flags: Flags,
        offset: u64,
        bytes: &[u8],
        len: u64,
    ) -> u32 {
        let index = self.next;
        self.next += 1;
        let buffer = 100_000 + index;
        let len_of = usize::try_from(len).unwrap();
        let memory = match op {
            Op::Write => bytes.to_vec(),
            Op::Read => vec![0xbb; len_of],
            _ => Vec::new(),
        };
        self.memory.insert(buffer, memory);
        let io = LayoutIo {
            id: IoId {
                index,
                generation: 0,
            },
            op,
            flags,
            offset,
            len,
            data: Data { buffer, start: 0 },
            background: false,
        };
        match self.hook(|pool, cx| pool.map(cx, &io)) {
            Map::One { target, offset } => {
                let sub = SubIo {
                    target,
                    op,
                    flags,
                    offset,
                    len,
                    data: io.data,
                    background: false,
                };
                self.jobs.push_back((Job::Guest(io.id, sub), self.side));
            }
            Map::Issued => {}
            Map::Done(outcome) => {
                self.answers.insert(index, outcome);
            }
        }
        index
    }

    pub(super) fn io(
        &mut self,
        op: Op,
        flags: Flags,
        offset: u64,
        bytes: &[u8],
        len: u64,
    ) -> Outcome {
        let index = self.begin(op, flags, offset, bytes, len);
        self.run();
        *self.answers.get(&index).expect("it is answered")
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let outcome = self.io(Op::Write, Flags::NONE, offset, bytes, bytes.len() as u64);
        assert_eq!(outcome, Ok(()));
    }

    pub(super) fn fill(&mut self, offset: u64, len: u64, byte: u8) {
        self.write(offset, &vec![byte; usize::try_from(len).unwrap()]);
    }

    pub(super) fn flush(&mut self) -> Outcome {
        self.io(Op::Flush, Flags::NONE, 0, &[], 0)
    }

    /// A guest writes to the buffer of an I/O that is under way.
    pub(super) fn change_buffer(&mut self, io: u32, byte: u8) {
        if let Some(buffer) = self.memory.get_mut(&(100_000 + io)) {
            buffer.fill(byte);
        }
    }

    pub(super) fn bytes_of(&mut self, io: u32) -> Vec<u8> {
        self.memory[&(100_000 + io)].clone()
    }

    pub(super) fn read(&mut self, offset: u64, len: u64) -> Vec<u8> {
        let io = self.begin(Op::Read, Flags::NONE, offset, &[], len);
        self.run();
        assert_eq!(self.answers[&io], Ok(()));
        self.bytes_of(io)
    }

    /// Whether a range has one byte everywhere.
    pub(super) fn has(&mut self, offset: u64, len: u64, byte: u8) -> bool {
        self.read(offset, len).iter().all(|it| *it == byte)
    }

    pub(super) fn order(&mut self, order: LayoutOrder) -> Result<(), OrderRefusal> {
        match self.hook(|pool, cx| pool.order(cx, order))? {
            Ordered::Now => Ok(()),
            Ordered::Later => {
                self.run();
                self.ordered.pop().expect("it is answered")
            }
        }
    }

    pub(super) fn snapshot(&mut self) -> Generation {
        assert_eq!(self.order(LayoutOrder::TakeSnapshot), Ok(()));
        let taken = self.notices.iter().rev().find_map(|notice| match notice {
            LayoutNotice::Generation(taken) => Some(*taken),
            _ => None,
        });
        taken.expect("it is reported")
    }

    pub(super) fn report(&self) -> PoolReport {
        self.pool.pooled().expect("it is in a pool")
    }

    /// Writes to members that are not done.
    pub(super) fn nth(&self, is_wanted: impl Fn(&Job) -> bool) -> Option<usize> {
        self.jobs.iter().position(|(job, _)| is_wanted(job))
    }
}

pub(super) fn setup(grants: &[Option<Grant>], size: u64, ancestors: &[Ancestor]) -> PoolSetup {
    PoolSetup {
        pool: [1; 16],
        disk: [2; 16],
        size,
        geometry: geometry(),
        columns: (0..COLUMNS).map(Target).collect(),
        members: Vec::new(),
        grants: grants.to_vec(),
        ancestors: ancestors.to_vec(),
        thick: false,
    }
}

impl World {
    pub(super) fn pool_order(&mut self, order: LayoutOrder) -> Result<Ordered, OrderRefusal> {
        self.hook(|pool, cx| pool.order(cx, order))
    }

    /// The blocks of the disk name another one.
    pub(super) fn rename(&mut self, disk: [u8; 16]) {
        for store in &mut self.stores {
            let blocks = (0..store.now.len() / BLOCK).map(|nth| nth * BLOCK);
            for at in blocks {
                let bytes = &mut store.now[at..at + BLOCK];
                if let Ok(mut header) = Header::decode(bytes) {
                    header.owner.disk = disk;
                    bytes.copy_from_slice(&header.encode()[..]);
                } else if let Ok(mut root) = Root::decode(bytes) {
                    root.owner.disk = disk;
                    bytes.copy_from_slice(&root.encode()[..]);
                }
            }
            store.durable.clone_from(&store.now);
        }
    }
}
