//! The path of a request: from the guest to the shard, from there to the arrays of the disk's targets, and back.
//!
//! # Always true
//! - Each request is answered once, without an error. Anything else is a breach.

use super::host::ARENA;
use super::{Block, Class, Io, Of, Request, World};
use crate::control::ours::id;
use crate::numbers::index;
use crate::results::Record;
use tidegate_core::block::BLOCK;
use tidegate_core::effect::Effect;
use tidegate_core::layout::{LayoutNotice, Target};
use tidegate_core::request::{self, Data, DiskId, Flags, IoId, Op, Outcome, Token};
use tidegate_core::shard::Event;
use tidegate_model::{IoKind, ModelIo};

/// The buffer of all guests. It has no bytes.
const GUESTS: Data = Data {
    buffer: ARENA,
    start: 0,
};

impl World<'_> {
    /// A guest submits a request.
    pub(super) fn submit(
        &mut self,
        disk: usize,
        actor: Option<u32>,
        op: Op,
        offset: u64,
        len: u64,
    ) {
        let arrived = self.now;
        let token = self.requests.insert_with(|_| Request {
            disk,
            actor,
            op,
            offset,
            len,
            arrived,
            missed: false,
        });
        self.disks[disk].pending.push(token);
        let request = request::Request {
            op,
            flags: Flags::NONE,
            offset,
            len,
            data: if op == Op::Flush { Data::NONE } else { GUESTS },
            arrived,
        };
        let submitted = Event::Submitted {
            disk: id(disk),
            token: Token(token.to_bits()),
            request,
        };
        self.deliver(disk, submitted);
    }

    /// Does what a shard wants done.
    pub(super) fn perform(&mut self, host: usize, thread: usize, effect: Effect) {
        match effect {
            Effect::Start {
                disk,
                target,
                io,
                op,
                offset,
                len,
                data,
                ..
            } => {
                let class = self.class(host, thread, op, data);
                let disk = place(disk);
                let below = usize::from(target.0) < self.scenario.disks[disk].members.len();
                if below && (op == Op::Read || data.buffer >= ARENA) {
                    self.note_miss(disk, offset, len);
                }
                let of = Of::Disk { disk, io, class };
                self.start(disk, target, of, op, offset, len);
            }
            Effect::ReadBlock {
                disk,
                target,
                io,
                offset,
            } => self.start_block(place(disk), target, io, offset, None),
            Effect::WriteBlock {
                disk,
                target,
                io,
                offset,
                block,
            } => self.start_block(place(disk), target, io, offset, Some(block)),
            Effect::Copy { to, .. } => self.fill(host, thread, to, false),
            // What buffers are for does not change by zeroes.
            Effect::Zero { .. } => {}
            Effect::Sum { disk, io, .. } => {
                // Members have equal bytes here.
                let sum = 0;
                self.deliver(place(disk), Event::Summed { disk, io, sum });
            }
            Effect::Answer { token, outcome, .. } => self.answered(token, outcome),
            Effect::Opened { disk, outcome } => match outcome {
                Ok(()) => self.disk_opened(place(disk)),
                Err(refusal) => self.refused(place(disk), &format!("it opens: {refusal:?}")),
            },
            Effect::LayoutOrdered { disk, outcome } => {
                if let Err(refusal) = outcome {
                    self.refused(place(disk), &format!("an order: {refusal:?}"));
                }
            }
            Effect::LayoutNotice { disk, notice } => self.noticed(place(disk), *notice),
            Effect::Wake { control, thread } => {
                self.inbox
                    .push_back((host, thread, Event::Woken { control }));
            }
            Effect::Detached { disk, .. } => self.detached(place(disk)),
            Effect::SideWrite { .. } | Effect::Rearranged { .. } | Effect::Held { .. } => {
                let message = format!("{effect:?} has no cause");
                self.invariants.breach(self.now, message);
            }
        }
    }

    fn refused(&mut self, disk: usize, what: &str) {
        let name = &self.scenario.disks[disk].name;
        let message = format!("disk {name} refuses {what}");
        self.invariants.breach(self.now, message);
    }

    fn noticed(&mut self, disk: usize, notice: LayoutNotice) {
        match notice {
            LayoutNotice::Rebuilding { .. } => {}
            LayoutNotice::GrantWanted { .. } => self.grant_wanted(disk),
            LayoutNotice::CacheShrunk { chunks } => self.shrunk(disk, chunks),
            LayoutNotice::Rebuilt { .. } if self.after.is_some() => {}
            LayoutNotice::Rebuilt { .. } => self.results.rebuilt.push((self.now, disk)),
            LayoutNotice::Dropped { member, .. }
                if self.disks[disk].removed >> member.0 & 1 == 1 => {}
            notice => {
                let name = &self.scenario.disks[disk].name;
                let message = format!("disk {name} reports {notice:?}");
                self.invariants.breach(self.now, message);
            }
        }
    }

    /// Remembers where the bytes of a buffer of the arena are from.
    fn fill(&mut self, host: usize, thread: usize, data: Data, is_copy: bool) {
        let copies = &mut self.hosts[host].threads[thread].copies;
        if let Some(place) = copies.get_mut(data.buffer as usize) {
            *place = is_copy;
        }
    }

    /// What an I/O is for, by its buffer.
    fn class(&mut self, host: usize, thread: usize, op: Op, data: Data) -> Class {
        if data.buffer >= ARENA {
            return Class::Guest;
        }
        if op == Op::Read {
            self.fill(host, thread, data, true);
        }
        match self.hosts[host].threads[thread].copies[data.buffer as usize] {
            true => Class::Background,
            false => Class::Guest,
        }
    }

    fn start_block(
        &mut self,
        disk: usize,
        target: Target,
        io: IoId,
        offset: u64,
        block: Option<Block>,
    ) {
        let of = Of::Block {
            disk,
            io,
            target,
            offset,
        };
        let op = if block.is_some() { Op::Write } else { Op::Read };
        let id = self.start(disk, target, of, op, offset, BLOCK as u64);
        if let Some(block) = block {
            self.written.insert(id.to_bits(), block);
        }
    }

    /// Submits an I/O to the array of a disk's target.
    fn start(
        &mut self,
        disk: usize,
        target: Target,
        of: Of,
        op: Op,
        offset: u64,
        len: u64,
    ) -> IoId {
        let host = self.scenario.disks[disk].host;
        let (array, begins) = self.place_of(disk, target);
        let issued = self.now;
        let id = self.ios.insert_with(|id| Io {
            id,
            host,
            array,
            of,
            op,
            len,
            issued,
        });
        let kind = match op {
            Op::Write | Op::WriteZeroes => IoKind::Write,
            Op::Flush => IoKind::Flush,
            Op::Read | Op::Discard | Op::Extents | Op::Prefetch => IoKind::Read,
        };
        let io = ModelIo {
            id: id.to_bits(),
            kind,
            offset: begins + offset,
            len,
        };
        self.datastores[array].array.submit(self.now.as_nanos(), io);
        self.count_flash(disk, target, op, len);
        self.hosts[host].in_flight += 1;
        self.started += 1;
        self.mark(1, id.to_bits());
        id
    }

    /// An array, or the separate storage of a coordination file, has completed an I/O.
    pub(super) fn completed(&mut self, id: IoId) {
        self.mark(2, id.to_bits());
        let Some(io) = self.ios.remove(id) else {
            return self.unknown("the completed I/O", id);
        };
        match io.of {
            Of::Slot => match self.slot_ios.remove(&id.to_bits()) {
                Some(slot_io) => self.slot_io_completed(&io, slot_io),
                None => self.unknown("the slot I/O", id),
            },
            Of::Disk {
                disk,
                io: of,
                class,
            } => {
                self.hosts[io.host].in_flight -= 1;
                self.count(disk, &io, class);
                let finished = Event::Finished {
                    disk: self::id(disk),
                    io: of,
                    outcome: Ok(()),
                };
                self.deliver(disk, finished);
            }
            Of::Block {
                disk,
                io: of,
                target,
                offset,
            } => {
                self.hosts[io.host].in_flight -= 1;
                let at = (disk, target.0, offset);
                let read = match self.written.remove(&io.id.to_bits()) {
                    Some(block) => {
                        self.blocks.insert(at, block);
                        None
                    }
                    None => {
                        let block = self.blocks.get(&at).cloned();
                        Some(block.unwrap_or_else(|| Box::new([0; BLOCK])))
                    }
                };
                let done = Event::BlockDone {
                    disk: self::id(disk),
                    io: of,
                    outcome: Ok(read),
                };
                self.deliver(disk, done);
            }
        }
    }

    /// Counts what an array has done for a disk.
    fn count(&mut self, disk: usize, io: &Io, class: Class) {
        if self.after.is_some() || io.op == Op::Flush || self.is_flash(io.array) {
            return;
        }
        let cost = self.costs.cost(io.op, io.len, false).0;
        let bin = self.results.arrays[io.array].open(disk);
        match class {
            Class::Guest => bin.guests += cost,
            Class::Background => {
                bin.background += cost;
                bin.copied += if io.op == Op::Write { io.len } else { 0 };
            }
        }
        if !self.scenario.disks[disk].unmanaged {
            self.results.datastore_ended(self.now.since(io.issued));
        }
    }

    fn answered(&mut self, token: Token, outcome: Outcome) {
        let Some(request) = self.requests.remove(IoId::from_bits(token.0)) else {
            return self.unknown("the answered request", IoId::from_bits(token.0));
        };
        let Request {
            disk,
            actor,
            op,
            offset,
            len,
            arrived,
            missed,
        } = request;
        self.disks[disk]
            .pending
            .retain(|id| id.to_bits() != token.0);
        if op != Op::Flush && !self.disks[disk].guest.is_stream(actor, offset) {
            self.count_hit(disk, missed);
        }
        if let Err(fault) = outcome {
            let name = &self.scenario.disks[disk].name;
            let message = format!("disk {name} answers {fault:?}");
            self.invariants.breach(self.now, message);
        }
        let record = Record {
            disk,
            op,
            len,
            cost: self.costs.cost(op, len, false),
            arrived,
            issued: arrived,
            unmanaged: true,
        };
        match &mut self.after {
            Some(after) => after[disk] += 1,
            None => {
                let member = &self.scenario.datastore.array.member;
                self.results.ended(self.now, &record, member);
            }
        }
        let mut actions = std::mem::take(&mut self.actions);
        let guest = &mut self.disks[disk].guest;
        let order = guest.answered(self.now, actor, &mut actions);
        if let (Some(took), None) = (order, &self.after) {
            self.results.ordered(disk, took);
        }
        self.execute(disk, actions);
    }
}

/// A disk's place in the scenario.
fn place(disk: DiskId) -> usize {
    index(u64::from(disk.0))
}
