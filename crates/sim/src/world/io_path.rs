//! The path of an I/O: from the guest through its host's control to the array, and back.
//!
//! # Always true
//! - An I/O is issued, offered, started, ended and completed in this order, each once. Anything else is a breach.

use super::host::Deferred;
use super::{CIRCLES, Io, SLOT_IO, Stage, World};
use crate::control::{Ended, Next, Offered};
use crate::results::Record;
use crate::scenario::Control as Mode;
use std::collections::VecDeque;
use tidegate_core::iocontrol::{Cost, policy};
use tidegate_core::request::{IoId, Op};
use tidegate_model::{IoKind, ModelIo};

impl World<'_> {
    pub(super) fn issue(&mut self, disk: usize, actor: Option<u32>, op: Op, offset: u64, len: u64) {
        let now = self.now;
        let io = self.ios.insert_with(|id| Io {
            id,
            disk,
            actor,
            op,
            offset,
            len,
            arrived: now,
            issued: now,
            cost: Cost(0),
            stage: Stage::Deferred,
        });
        let plan = &self.scenario.disks[disk];
        if plan.unmanaged {
            return self.start(io, Cost(0));
        }
        let host = &mut self.hosts[plan.host];
        if host.paused {
            return host.deferred.push(Deferred::Issued(io));
        }
        if !self.has_cpu(plan.host, plan.thread) {
            return self.hosts[plan.host].asleep[plan.thread].push(Deferred::Issued(io));
        }
        self.offer(io);
    }

    pub(super) fn offer(&mut self, id: IoId) {
        let Some(io) = self.ios.get_mut(id) else {
            return;
        };
        io.stage = Stage::Waiting;
        let offered = Offered {
            disk: io.disk,
            io: id,
            op: io.op,
            offset: io.offset,
            len: io.len,
        };
        let (host, thread) = self.home(offered.disk);
        match self.hosts[host].control.offer(self.now, &offered) {
            Some(cost) => self.start(id, cost),
            None => {
                self.waits(offered.disk, 1);
                // As an I/O thread does before it sleeps.
                self.pump(host, thread);
            }
        }
        self.arm(host);
    }

    pub(super) fn answer(&mut self, disk: usize, actor: Option<u32>) {
        let mut actions = std::mem::take(&mut self.actions);
        let order = self.guests[disk].answered(self.now, actor, &mut actions);
        if let Some(took) = order
            && self.repaired.is_none()
        {
            self.results.ordered(disk, took);
        }
        self.execute(disk, actions);
    }

    pub(super) fn home(&self, disk: usize) -> (usize, usize) {
        let plan = &self.scenario.disks[disk];
        (plan.host, plan.thread)
    }

    pub(super) fn waits(&mut self, disk: usize, more: i64) {
        let waiting = &mut self.waiting[disk];
        *waiting = waiting.saturating_add_signed(more);
        let host = self.scenario.disks[disk].host;
        self.invariants.waits(host, disk, self.waiting[disk]);
    }

    /// Calls a thread's scheduler until it returns nothing, and then the threads that it names.
    pub(super) fn pump(&mut self, host: usize, thread: usize) {
        let mut awake = VecDeque::from([thread]);
        // Threads that only wake each other would loop forever.
        let mut idle = 0;
        while let Some(thread) = awake.pop_front() {
            if !self.has_cpu(host, thread) {
                continue;
            }
            loop {
                match self.hosts[host].control.pick(self.now, thread) {
                    Next::Start(io, cost) => {
                        idle = 0;
                        let disk = match self.ios.get(io) {
                            Some(found) if found.stage == Stage::Waiting => found.disk,
                            _ => {
                                let message = "a picked I/O was not waiting";
                                return self.invariants.breach(self.now, message);
                            }
                        };
                        self.waits(disk, -1);
                        self.start(io, cost);
                    }
                    Next::Thread(other) if idle < CIRCLES => {
                        idle += 1;
                        awake.push_back(other);
                        break;
                    }
                    Next::Thread(_) => {
                        let message = "I/O threads wake each other without starting an I/O";
                        return self.invariants.breach(self.now, message);
                    }
                    Next::Nothing => break,
                }
            }
        }
    }

    pub(super) fn start(&mut self, id: IoId, cost: Cost) {
        let Some(io) = self.ios.get_mut(id) else {
            return self
                .invariants
                .breach(self.now, "an unknown I/O is started");
        };
        (io.stage, io.issued, io.cost) = (Stage::Started, self.now, cost);
        let (disk, op, len) = (io.disk, io.op, io.len);
        let kind = match op {
            Op::Write | Op::WriteZeroes => IoKind::Write,
            Op::Flush => IoKind::Flush,
            Op::Read | Op::Discard | Op::Extents | Op::Prefetch => IoKind::Read,
        };
        let plan = &self.scenario.disks[disk];
        // Each disk has a separate range.
        let offset = plan.size * disk as u64 + io.offset;
        self.watch_start(disk, op, len, cost);
        self.array.submit(
            self.now.as_nanos(),
            ModelIo {
                id: id.to_bits(),
                kind,
                offset,
                len,
            },
        );
        self.started += 1;
        self.mark(1, id.to_bits());
    }

    pub(super) fn watch_start(&mut self, disk: usize, op: Op, len: u64, cost: Cost) {
        let plan = &self.scenario.disks[disk];
        if plan.unmanaged {
            return;
        }
        let units = match op {
            Op::Flush => 0,
            _ => policy::units(len, self.scenario.datastore.io_unit),
        };
        if self.repaired.is_none() {
            self.results.started(disk, units);
        }
        let ours = self.variant.policy == crate::policy::Policy::Ours;
        let limited = op != Op::Flush;
        if ours && limited && self.scenario.datastore.control == Mode::On {
            self.invariants
                .limited(self.now, disk, &plan.name, units, len);
            if let Some(group) = self.settings[disk].group {
                let of = &self.scenario.groups[group];
                self.invariants
                    .grouped(self.now, (plan.host, group), of, units, len);
            }
        }
        let host = &mut self.hosts[plan.host];
        let standing = host.control.state();
        if let Some(window) = standing.window
            && ours
            && limited
            && standing.engaged
            && self.scenario.datastore.control == Mode::On
        {
            let name = &self.scenario.hosts[plan.host].name;
            let window = window * 256.0;
            self.invariants
                .windowed(self.now, plan.host, name, host.in_flight_cost, window);
        }
        host.in_flight_cost += cost.0;
        host.in_flight += 1;
        let in_flight = host.in_flight;
        let (now, home) = (self.now, plan.host);
        self.invariants
            .served(now, home, disk, cost, in_flight, standing.engaged);
    }

    /// The array, or the separate storage of the coordination file, has completed an I/O.
    pub(super) fn completed(&mut self, number: u64) {
        self.mark(2, number);
        if number & SLOT_IO != 0 {
            return self.slot_io_completed(number);
        }
        let id = IoId::from_bits(number);
        let Some(io) = self.ios.get_mut(id) else {
            return self.invariants.breach(self.now, "an unknown I/O ends");
        };
        if io.stage == Stage::Lost {
            self.ios.remove(id);
            return;
        }
        if io.stage != Stage::Started {
            return self
                .invariants
                .breach(self.now, "an I/O ends without a start");
        }
        io.stage = Stage::Back;
        let plan = &self.scenario.disks[io.disk];
        let host = &mut self.hosts[plan.host];
        if host.paused && !plan.unmanaged {
            return host.deferred.push(Deferred::Back(id));
        }
        if !plan.unmanaged && !self.has_cpu(plan.host, plan.thread) {
            return self.hosts[plan.host].asleep[plan.thread].push(Deferred::Back(id));
        }
        self.finished(id);
    }

    /// A host notices that one of its I/Os has completed.
    pub(super) fn finished(&mut self, id: IoId) {
        let Some(io) = self.ios.remove(id) else {
            return self
                .invariants
                .breach(self.now, "an I/O is completed twice");
        };
        let plan = &self.scenario.disks[io.disk];
        let (host, thread) = (plan.host, plan.thread);
        if !plan.unmanaged {
            let ended = Ended {
                disk: io.disk,
                op: io.op,
                len: io.len,
                issued: io.issued,
                cost: io.cost,
            };
            let host = &mut self.hosts[host];
            host.control.finished(self.now, &ended);
            host.in_flight_cost -= io.cost.0;
            host.in_flight -= 1;
        }
        let record = Record {
            disk: io.disk,
            op: io.op,
            len: io.len,
            cost: io.cost,
            arrived: io.arrived,
            issued: io.issued,
            unmanaged: plan.unmanaged,
        };
        match &mut self.repaired {
            Some(repaired) => repaired[io.disk] += 1,
            None => {
                let member = &self.scenario.datastore.array.member;
                self.results.ended(self.now, &record, member);
            }
        }
        self.answer(io.disk, io.actor);
        if !plan.unmanaged {
            self.pump(host, thread);
            self.arm(host);
        }
    }
}
