//! The crash simulator's world: one disk's shard, its stores and its guest.
//!
//! Everything that the shard wants done waits in `effects`, and everything that a store was given waits in `in_flight`.
//! The caller decides which of them continues. A breach is recorded, and ends the run.

use super::choice::Choose;
use super::history::{End, History};
use super::store::{Defects, InFlight, Store};
use super::{SECTOR, fill, stamp};
use std::collections::{BTreeMap, VecDeque};
use tidegate_core::effect::Effect;
use tidegate_core::filter::{FilterKey, FilterSpec};
use tidegate_core::request::{
    Data, DiskId, Extent, ExtentKind, Flags, IoId, Op, Outcome, Request, Token,
};
use tidegate_core::shard::{Event, Shard};
use tidegate_core::stack::{Place, Stack};
use tidegate_core::units::{Span, Time};

const DISK: DiskId = DiskId(0);

/// What is built, and built again after each crash.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Size of the disk.
    pub sectors: u64,
    /// Its filters, top first.
    pub filters: Vec<FilterSpec>,
    /// What its store does wrong.
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
}

/// An I/O that a store was given.
struct Started {
    io: IoId,
    op: Op,
    flags: Flags,
    offset: u64,
    len: u64,
    data: Data,
    /// For a flush: what it covers.
    mark: u64,
}

/// See the module.
pub struct World {
    setup: Setup,
    shard: Shard,
    store: Store,
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
    now: Time,
    out: Vec<Effect>,
    /// I/Os that stores have completed.
    completed: u64,
    breach: Option<String>,
    /// What happened, if that is recorded.
    trace: Option<Vec<String>>,
}

impl World {
    /// A new disk of zeroes.
    pub fn new(setup: Setup) -> World {
        let mut store = Store::new(setup.sectors);
        store.defects = setup.defects;
        let mut world = World {
            shard: Shard::new(16),
            store,
            history: History::new(setup.sectors),
            effects: VecDeque::new(),
            in_flight: Vec::new(),
            memory: BTreeMap::new(),
            pending: BTreeMap::new(),
            next_token: 0,
            next_stamp: 0,
            next_filter: 0,
            rearranging: false,
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
                self.history.write(range, stamp)
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
                io,
                op,
                flags,
                offset,
                len,
                data,
                ..
            } => {
                self.note(|| format!("start {op:?} {offset}+{len}"));
                let started = Started {
                    io,
                    op,
                    flags,
                    offset,
                    len,
                    data,
                    mark: self.store.mark(),
                };
                self.in_flight.push(started);
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
            Effect::Detached { .. } | Effect::Wake { .. } => {
                self.fail(format!("{effect:?} has no cause"));
            }
        }
    }

    fn answered(&mut self, token: Token, outcome: Outcome) {
        self.note(|| format!("answer {}: {outcome:?}", token.0));
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
        let started = self.in_flight.remove(which);
        self.completed += 1;
        let outcome = outcome.and_then(|()| self.apply(&started));
        let Started {
            op, offset, len, ..
        } = started;
        self.note(|| format!("complete {op:?} {offset}+{len}: {outcome:?}"));
        self.handle(Event::Finished {
            disk: DISK,
            io: started.io,
            outcome,
        });
    }

    fn apply(&mut self, started: &Started) -> Outcome {
        let fua = started.flags.has(Flags::FUA);
        let len = usize::try_from(started.len).expect("a small disk");
        match started.op {
            Op::Read => {
                let mut bytes = vec![0; len];
                self.store.read(started.offset, &mut bytes);
                self.bytes(started.data, len).copy_from_slice(&bytes);
            }
            Op::Write => {
                let bytes = self.bytes(started.data, len).to_vec();
                self.store.write(started.offset, &bytes, fua);
            }
            Op::WriteZeroes | Op::Discard => self.store.write(started.offset, &vec![0; len], fua),
            Op::Flush => self.store.flush(started.mark),
            Op::Extents => {
                let extent = Extent {
                    len: started.len,
                    kind: ExtentKind::Data,
                };
                self.bytes(started.data, Extent::SIZE)
                    .copy_from_slice(&extent.encode());
            }
            Op::Prefetch => {}
        }
        Ok(())
    }

    fn bytes(&mut self, data: Data, len: usize) -> &mut [u8] {
        let memory = self
            .memory
            .get_mut(&data.buffer)
            .expect("an I/O names memory that its guest has not got back");
        let start = usize::try_from(data.start).expect("32 bits");
        &mut memory[start..start + len]
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

    /// The host crashes and starts again: the stores keep what is durable, and of the rest what the choices say.
    pub fn crash(&mut self, choices: &mut dyn Choose) {
        self.note(|| "CRASH".to_owned());
        let mut in_flight = Vec::new();
        for started in std::mem::take(&mut self.in_flight) {
            let len = usize::try_from(started.len).expect("a small disk");
            let bytes = match started.op {
                Op::Write => self.bytes(started.data, len).to_vec(),
                Op::WriteZeroes | Op::Discard => vec![0; len],
                Op::Read | Op::Flush | Op::Extents | Op::Prefetch => continue,
            };
            let offset = started.offset;
            in_flight.push(InFlight { offset, bytes });
        }
        self.store.crash(&in_flight, choices);
        self.history.crash();
        self.shard = Shard::new(16);
        self.effects.clear();
        self.pending.clear();
        self.memory.clear();
        self.rearranging = false;
        self.attach();
    }

    /// Lets everything under way end, oldest first.
    pub fn finish(&mut self) {
        while self.breach.is_none() {
            if self.effects() > 0 {
                self.perform();
            } else if self.in_flight() > 0 {
                self.complete(0, Ok(()));
            } else if let (false, Some((at, _))) = (self.pending.is_empty(), self.shard.deadline())
            {
                self.now = self.now.max(at);
                self.handle(Event::Ticked);
            } else {
                break;
            }
        }
        if self.breach.is_none() && !self.pending.is_empty() {
            let waiting: Vec<_> = self.pending.keys().collect();
            self.fail(format!("requests {waiting:?} are never answered"));
        }
    }

    /// Reads the whole disk twice, once nothing is under way.
    pub fn verify(&mut self) {
        self.finish();
        for _ in 0..2 {
            for sector in 0..self.setup.sectors {
                if self.breach.is_none() {
                    self.submit(GuestRequest {
                        op: Op::Read,
                        flags: Flags::NONE,
                        sector,
                        sectors: 1,
                    });
                    self.finish();
                }
            }
        }
    }
}
