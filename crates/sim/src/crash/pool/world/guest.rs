//! The guests of a pool's disks: their requests, their buffers, and what their answers must be.
//!
//! Each write has a stamp of its own, over all disks. The oracle decides whether what a read returns is possible.

use super::{Kind, Leaving, Pending, World, seat_of};
use crate::crash::history::End;
use crate::crash::pool::SUB_BLOCK;
use crate::crash::pool::oracle::Disk;
use crate::crash::world::GuestRequest;
use crate::crash::{SECTOR, fill, stamp};
use std::ops::Range;
use tidegate_core::request::{Data, DiskId, Extent, Fault, Flags, Op, Outcome, Request, Token};
use tidegate_core::shard::Event;

impl World {
    /// The guest of a disk submits a request, if the disk is open.
    pub fn submit(&mut self, disk: Disk, request: GuestRequest) {
        let number = seat_of(disk);
        let seat = self.seats.get(&number);
        if !seat.is_some_and(|seat| seat.opened == Some(Ok(())) && seat.leaving == Leaving::No) {
            return;
        }
        let end = self.sectors(disk);
        let request = GuestRequest {
            sector: request.sector.min(end.saturating_sub(1)),
            sectors: request
                .sectors
                .min(end.saturating_sub(request.sector).max(1)),
            ..request
        };
        let request = match request.op {
            Op::Flush => GuestRequest {
                sector: 0,
                sectors: 0,
                ..request
            },
            _ => request,
        };
        self.submit_to(number, request);
    }

    /// A request for a disk or a view.
    pub(super) fn submit_to(&mut self, number: u32, request: GuestRequest) {
        let token = self.next_token;
        self.next_token += 1;
        let buffer = u32::try_from(token).expect("a run is short");
        let range = request.sector..request.sector + request.sectors;
        let len = usize::try_from(request.sectors).expect("a small disk") * SECTOR;
        let memory = match request.op {
            Op::Write => {
                self.next_stamp += 1;
                let stamp = self.next_stamp;
                range
                    .clone()
                    .flat_map(|sector| fill(sector, stamp))
                    .collect()
            }
            Op::Extents => vec![0; 4 * Extent::SIZE],
            _ => vec![0xa5; len],
        };
        self.memory.insert(buffer, memory);
        let stamp = self.next_stamp;
        let issued = match (self.disk_of(number), request.op) {
            (Some(disk), Op::Write) => self.oracle.history(disk).write(range.clone(), stamp),
            (Some(disk), Op::WriteZeroes | Op::Discard) => {
                self.oracle.history(disk).write(range.clone(), 0)
            }
            (Some(disk), _) => self.oracle.history(disk).tick(),
            (None, _) => 0,
        };
        let has_space = self
            .disk_of(number)
            .is_some_and(|disk| self.has_space(disk, &range));
        self.note(|| format!("guest of seat {number}: {token}: {request:?}, stamp {stamp}"));
        let pending = Pending {
            seat: number,
            request,
            buffer,
            issued,
            has_space,
            is_refused: false,
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
            disk: DiskId(number),
            token: Token(token),
            request,
        });
    }

    /// Whether the current generation has written each sub-block of these sectors, and kept it.
    fn has_space(&self, disk: Disk, sectors: &Range<u64>) -> bool {
        let own = self.own.get(&disk);
        own.is_some_and(|(_, own)| sub_blocks(sectors).all(|sub| own.contains(&sub)))
    }

    /// A request is answered.
    pub(super) fn answered(&mut self, token: Token, outcome: Outcome) {
        self.note(|| format!("answer {}: {outcome:?}", token.0));
        let Some(pending) = self.pending.remove(&token.0) else {
            return self.fail(format!("request {} is answered twice", token.0));
        };
        let memory = self.memory.remove(&pending.buffer).unwrap_or_default();
        let Some(kind) = self.seats.get(&pending.seat).map(|seat| seat.kind) else {
            return;
        };
        if let Err(fault) = outcome {
            self.check_fault(&pending, fault);
        }
        match kind {
            Kind::Disk(disk) => self.answered_disk(disk, &pending, &memory, outcome),
            Kind::View(disk, generation, snapshot) if outcome.is_ok() => {
                let mut shown = Vec::new();
                let sectors = pending.request.sector..;
                for (sector, bytes) in sectors.zip(memory.chunks_exact(SECTOR)) {
                    let seen = stamp(sector, bytes).and_then(|stamp| {
                        shown.push(stamp);
                        self.oracle.read_snapshot(snapshot, sector, stamp)
                    });
                    if let Err(what) = seen {
                        return self.fail(format!("{generation:?} of {disk:?}: {what}"));
                    }
                }
                self.shown.insert((disk, generation), shown);
            }
            Kind::View(..) => {}
        }
        if self.pending.is_empty() {
            self.oracle.forget();
        }
    }

    fn answered_disk(&mut self, disk: Disk, pending: &Pending, memory: &[u8], outcome: Outcome) {
        let GuestRequest {
            op,
            flags,
            sector,
            sectors,
        } = pending.request;
        let range = sector..sector + sectors;
        let issued = pending.issued;
        match op {
            Op::Write | Op::WriteZeroes | Op::Discard => {
                let end = match outcome {
                    Err(_) => End::Unknown,
                    Ok(()) if op == Op::Discard => End::Unknown,
                    Ok(()) if flags.has(Flags::FUA) => End::Durable,
                    Ok(()) => End::Done,
                };
                self.oracle.wrote(disk, range.clone(), issued, end);
                self.note_space(disk, &range, op == Op::Write && outcome.is_ok(), issued);
            }
            Op::Flush if outcome.is_ok() => self.oracle.flushed(disk, issued),
            Op::Read if outcome.is_ok() => {
                for (sector, bytes) in (sector..).zip(memory.chunks_exact(SECTOR)) {
                    let seen = stamp(sector, bytes)
                        .and_then(|stamp| self.oracle.read(disk, sector, issued, stamp));
                    if let Err(what) = seen {
                        return self.fail(format!("{disk:?}: {what}"));
                    }
                }
            }
            Op::Flush | Op::Read | Op::Extents | Op::Prefetch => {}
        }
    }

    /// These sectors have space of the current generation from now on, or may have none.
    fn note_space(&mut self, disk: Disk, sectors: &Range<u64>, has_it: bool, issued: u64) {
        let is_busy = self.oracle.is_busy(disk);
        let Some((since, own)) = self.own.get_mut(&disk) else {
            return;
        };
        for sub in sub_blocks(sectors) {
            match has_it && !is_busy && issued > *since {
                true => own.insert(sub),
                false => own.remove(&sub),
            };
        }
    }

    /// A request has failed: it may, if an I/O has failed, or if it needs space that the pool does not have.
    fn check_fault(&mut self, pending: &Pending, fault: Fault) {
        let request = pending.request;
        let leaves = self.seats.get(&pending.seat);
        let leaves = leaves.is_some_and(|seat| seat.leaving != Leaving::No);
        let may = match fault {
            Fault::NoSpace => {
                let may = pending.is_refused && !pending.has_space;
                request.op.modifies() && may || self.has_fault
            }
            Fault::Unsupported => request.op == Op::Extents,
            Fault::Gone => leaves || self.has_fault,
            _ => self.has_fault,
        };
        if !may {
            let space = if pending.has_space {
                "has its space"
            } else {
                "was not refused space"
            };
            self.fail(format!("{request:?} fails with {fault:?}, and {space}"));
        }
    }
}

/// The sub-blocks that these sectors touch.
fn sub_blocks(sectors: &Range<u64>) -> Range<u64> {
    sectors.start / SUB_BLOCK..sectors.end.div_ceil(SUB_BLOCK)
}
