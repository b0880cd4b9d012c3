//! The stores of a simulated pool: the I/Os that they have, what fails, and what a crash leaves of them.
//!
//! # Always true
//! - A disk writes in its own grants only, and reads in those and in its ancestors' ones.

use super::{ARENA, ARENA_SLOTS, Kind, World};
use crate::crash::choice::Choose;
use crate::crash::pool::GEOMETRY;
use crate::crash::store::{InFlight, StoreIo};
use crate::crash::world::Failing;
use std::collections::BTreeMap;
use tidegate_core::block::BLOCK;
use tidegate_core::layout::{SLOT, Target};
use tidegate_core::request::{Data, DiskId, Extent, Fault, Flags, IoId, Op, Outcome};
use tidegate_core::shard::Event;

/// An I/O that a store was given.
pub(super) struct Started {
    pub(super) seat: u32,
    pub(super) target: usize,
    pub(super) io: IoId,
    pub(super) op: Op,
    pub(super) flags: Flags,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) bytes: Bytes,
    /// For a flush: what it covers.
    pub(super) mark: u64,
}

/// The bytes of an I/O.
pub(super) enum Bytes {
    Memory(Data),
    /// A block of a layout's own; to be read, it is empty.
    Block(Option<Box<[u8; BLOCK]>>),
}

impl World {
    pub(super) fn begin(&mut self, started: Started) {
        self.note(|| format!("start {}", started.describe()));
        self.check_owner(&started);
        self.in_flight.push(started);
    }

    pub(super) fn begin_block(
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
                        grant.column == self.column_of(started.target)
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
        let is_spare = self.can_spare(started.target);
        // By chance only members fail that their columns can do without.
        let outcome = match self.members() > 0 && !is_spare {
            true => Ok(()),
            false => outcome,
        };
        let outcome = match self.gone & bit {
            0 => self.planned(bit).map_or(outcome, Err),
            _ => Err(Fault::Gone),
        };
        self.has_fault |= outcome.is_err() && !is_spare;
        self.faulted |= if outcome.is_err() { bit } else { 0 };
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
        self.check_after_crash();
        self.start();
    }
}

impl Started {
    fn describe(&self) -> String {
        let block = match self.bytes {
            Bytes::Memory(_) => "",
            Bytes::Block(_) => " of a block",
        };
        format!(
            "{:?}{block} {}+{} on target {} for seat {}",
            self.op, self.offset, self.len, self.target, self.seat
        )
    }
}

/// A part of the memory that an I/O names. Buffers of the arena have memory once they are used.
pub(super) fn bytes(memory: &mut BTreeMap<u32, Vec<u8>>, data: Data, len: usize) -> &mut [u8] {
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
