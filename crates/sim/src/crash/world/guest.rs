//! The guest of a simulated disk: its requests, their buffers, and what their answers must be.
//!
//! Each write has a stamp of its own. The history decides whether what a read returns is possible.

use super::{DISK, Pending, World};
use crate::crash::history::End;
use crate::crash::shape::Shape;
use crate::crash::world::GuestRequest;
use crate::crash::{SECTOR, fill, stamp};
use tidegate_core::layout::MemberState;
use tidegate_core::request::{Data, Extent, Flags, Op, Outcome, Request, Token};
use tidegate_core::shard::Event;

impl World {
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

    pub(super) fn submit_as(&mut self, request: GuestRequest, fickle: bool) {
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
            had_dirty: self.used.has_dirty,
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

    pub(super) fn answered(&mut self, token: Token, outcome: Outcome) {
        self.note(|| format!("answer {}: {outcome:?}", token.0));
        let pending = self.pending.get(&token.0);
        let had_dirty = pending.is_some_and(|pending| pending.had_dirty);
        let has_dirty = had_dirty || self.used.has_dirty || self.cache_lost;
        let few_faults = match self.setup.shape {
            Shape::Movable => self.faulty >> self.home & 1 == 0,
            shape => !shape.may_fail(self.faulty, has_dirty),
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
                    Err(_) if self.lost_since_start => End::Lost,
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

    /// Targets that were at fault and are in sync again are not at fault any more.
    pub(super) fn forgive(&mut self) {
        let quiet = self.pending.is_empty() && self.in_flight.is_empty() && self.effects.is_empty();
        let members = self.members();
        let in_sync = members.iter().all(|state| *state == MemberState::InSync);
        let (flash, kept) = (
            self.setup.shape.flash(),
            self.away | self.unplugged | self.empty | self.decayed,
        );
        // A cleaner that has failed may not have tried again.
        let shape = self.setup.shape;
        let failed = self.is_cached() && shape.may_fail(self.faulty & !flash, false);
        if quiet && in_sync && shape.is_redundant() && !failed {
            self.faulty &= kept | flash;
        }
        let cache = self.cache();
        let devices = (flash & !self.empty).count_ones();
        let whole = cache.is_some_and(|it| it.devices.count_ones() == devices);
        if quiet && whole && self.opened == Some(Ok(())) {
            self.faulty &= kept | !flash;
        }
    }
}
