//! A host: a shard for each I/O thread, and a governor for each datastore.
//!
//! # Always true
//! - An earlier deadline replaces a later one. A replaced timer is ignored when it expires.

use super::{Event, Io, Of, World};
use crate::control::SlotIo;
use crate::control::governor_loop::{GovernorLoop, Threads};
use crate::control::ours::{id, key, policy};
use crate::numbers::small;
use crate::policy::Policy;
use crate::scenario::{Control, Coordination, Scenario, Variant};
use tidegate_core::effect::ControlId;
use tidegate_core::iocontrol::shared::{Groups, Shared};
use tidegate_core::iocontrol::{Bin, Orders, Scheduler, Usage};
use tidegate_core::layout::{Members, Tree};
use tidegate_core::request::{Data, IoId, Op};
use tidegate_core::shard::{self, Controlled, Shard};
use tidegate_core::stack::Stack;
use tidegate_core::units::{Span, Time};
use tidegate_model::{IoKind, ModelIo};

/// Buffers of each thread's arena, as in the engine.
pub(super) const ARENA: u32 = 128;
/// The latency of an I/O on separate storage.
const APART: Span = Span::from_micros(100);

/// See the module.
pub(super) struct Host {
    pub(super) threads: Vec<Thread>,
    /// By datastore; empty without control.
    pub(super) governors: Vec<Governor>,
    pub(super) in_flight: u64,
    /// Chunks of flash for the pages of its cached disks together.
    pub(super) flash_chunks: u32,
}

/// An I/O thread.
pub(super) struct Thread {
    pub(super) shard: Shard,
    armed: Option<Time>,
    /// Whether the bytes in each buffer of the arena were read from a member.
    pub(super) copies: Vec<bool>,
}

/// The governor of a datastore.
pub(super) struct Governor {
    pub(super) governor: GovernorLoop,
    alarm: Option<Time>,
}

/// The shards of a host, as the governor of a datastore sees them.
struct Shards<'a> {
    threads: &'a mut [Thread],
    control: ControlId,
    /// Orders that were given.
    orders: Option<Orders>,
}

impl Threads for Shards<'_> {
    fn observe(&mut self, now: Time, usage: &mut Vec<Usage>, bins: &mut Vec<Bin>) {
        for thread in self.threads.iter_mut() {
            thread.shard.usage(self.control, now, usage);
            thread.shard.bins(self.control, bins);
        }
    }

    fn steer(&mut self, _now: Time, orders: &Orders) {
        self.orders = Some(orders.clone());
    }
}

impl Host {
    /// A host without disks.
    pub(super) fn new(
        scenario: &Scenario,
        variant: &Variant,
        host: usize,
        incarnation: u64,
    ) -> Host {
        let datastore = &scenario.datastore;
        let count = scenario.hosts[host].threads;
        let threads = (0..count).map(|_| {
            let mut shard = Shard::new(1_024);
            let slots = (0..ARENA).map(|buffer| Data { buffer, start: 0 });
            shard.give_arena(slots.collect());
            Thread {
                shard,
                armed: None,
                copies: vec![false; ARENA as usize],
            }
        });
        let mut threads: Vec<Thread> = threads.collect();
        let mut governors = Vec::new();
        if variant.policy == Policy::Ours && datastore.control != Control::Off {
            for array in 0..datastore.arrays {
                let shared = Shared::new(count, &Groups::new(0));
                let governor = GovernorLoop::new(Time::ZERO, datastore, host, incarnation);
                for (number, thread) in threads.iter_mut().enumerate() {
                    let mut scheduler = Scheduler::new(number, shared.clone(), datastore.io_unit);
                    scheduler.steer(Time::ZERO, governor.orders());
                    let control = shard::Event::Control {
                        control: control_of(array),
                        scheduler: Box::new(scheduler),
                    };
                    thread.shard.handle(Time::ZERO, control, &mut Vec::new());
                }
                governors.push(Governor {
                    governor,
                    alarm: None,
                });
            }
        }
        Host {
            threads,
            governors,
            in_flight: 0,
            flash_chunks: 0,
        }
    }
}

/// The control of an array's datastore.
fn control_of(array: usize) -> ControlId {
    ControlId(small(array))
}

impl World<'_> {
    /// A host's daemon starts and attaches its disks.
    pub(super) fn join(&mut self, host: usize) {
        for disk in 0..self.disks.len() {
            if self.scenario.disks[disk].host == host {
                self.attach(disk);
            }
        }
        for array in 0..self.hosts[host].governors.len() {
            self.arm_governor(host, array);
        }
    }

    pub(super) fn attach(&mut self, disk: usize) {
        let plan = &self.scenario.disks[disk];
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&(disk as u64 + 1).to_le_bytes());
        let members = Members::new(uuid, plan.size, plan.members.len());
        let (cache, pooled) = (self.cache_of(disk), self.pooled(disk));
        let tree = match cache {
            Some(cache) => Some(Tree::cached(plan.layout, members, cache)),
            None => pooled.or_else(|| Tree::build(plan.layout, members)),
        };
        let arrays = self.arrays_of(disk);
        self.disks[disk].attached = true;
        let is_plain = tree.is_none();
        let stack = Stack::new(Vec::new());
        let is_controlled = !self.hosts[plan.host].governors.is_empty() && !plan.unmanaged;
        let controlled = is_controlled.then(|| {
            let members = arrays.iter().map(|array| control_of(*array));
            Box::new(Controlled {
                control: control_of(arrays[0]),
                members: members.filter(|_| !is_plain).collect(),
                key: key(disk),
                policy: policy(&self.disks[disk].settings),
                spent: None,
            })
        });
        let attach = shard::Event::Attach {
            disk: id(disk),
            size: plan.size,
            read_only: false,
            stack: match tree {
                Some(tree) => stack.over(tree),
                None => stack,
            },
            control: controlled,
        };
        self.deliver(disk, attach);
        if is_plain {
            self.disk_opened(disk);
        }
    }

    /// A disk can be used from now on.
    pub(super) fn disk_opened(&mut self, disk: usize) {
        self.disks[disk].opened = true;
        self.update_guest(disk);
    }

    pub(super) fn thread_wakes(&mut self, host: usize, thread: usize) {
        let of = &mut self.hosts[host].threads[thread];
        if of.armed != Some(self.now) {
            return;
        }
        of.armed = None;
        self.invariants.woken(self.now, host);
        self.inbox.push_back((host, thread, shard::Event::Ticked));
    }

    /// Sets the timer of an I/O thread.
    pub(super) fn arm_thread(&mut self, host: usize, thread: usize) {
        let of = &mut self.hosts[host].threads[thread];
        let Some((at, _)) = of.shard.deadline() else {
            return;
        };
        let at = at.max(self.now);
        if of.armed.is_none_or(|armed| at < armed || armed < self.now) {
            of.armed = Some(at);
            self.queue.put(at, Event::Thread { host, thread });
        }
    }

    fn arm_governor(&mut self, host: usize, array: usize) {
        let of = &mut self.hosts[host].governors[array];
        let at = of.governor.wake_at().max(self.now);
        if of.alarm.is_none_or(|armed| at < armed) {
            of.alarm = Some(at);
            self.queue.put(at, Event::Alarm { host, array });
        }
    }

    pub(super) fn alarm(&mut self, host: usize, array: usize) {
        self.hosts[host].governors[array].alarm = None;
        self.with_governor(host, array, |governor, now, shards, out| {
            governor.wake(now, shards, out);
        });
    }

    /// A governor acts: its orders go to the host's shards, and its I/Os to the coordination file.
    pub(super) fn with_governor(
        &mut self,
        host: usize,
        array: usize,
        act: impl FnOnce(&mut GovernorLoop, Time, &mut dyn Threads, &mut Vec<SlotIo>),
    ) {
        let of = &mut self.hosts[host];
        let control = control_of(array);
        let mut shards = Shards {
            threads: &mut of.threads,
            control,
            orders: None,
        };
        let mut slot_ios = Vec::new();
        let governor = &mut of.governors[array].governor;
        act(governor, self.now, &mut shards, &mut slot_ios);
        if let Some(orders) = shards.orders {
            for thread in 0..of.threads.len() {
                let orders = orders.clone();
                let steer = shard::Event::Steer { control, orders };
                self.inbox.push_back((host, thread, steer));
            }
        }
        for slot_io in slot_ios {
            self.submit_slot_io(host, array, slot_io);
        }
        self.arm_governor(host, array);
    }

    fn submit_slot_io(&mut self, host: usize, array: usize, slot_io: SlotIo) {
        let datastore = &mut self.datastores[array];
        let (op, kind, len) = match &slot_io {
            SlotIo::Read => (Op::Read, IoKind::Read, datastore.file.read_len()),
            SlotIo::Write(_) => (Op::Write, IoKind::Write, 4_096),
        };
        let issued = self.now;
        let id = self.ios.insert_with(|id| Io {
            id,
            host,
            array,
            of: Of::Slot,
            op,
            len,
            issued,
        });
        self.slot_ios.insert(id.to_bits(), slot_io);
        if self.after.is_none() {
            self.results.coordinated();
        }
        if self.scenario.datastore.coordination == Some(Coordination::Apart) {
            return self.queue.put(self.now + APART, Event::SlotIo(id));
        }
        // The file is after the disks.
        let io = ModelIo {
            id: id.to_bits(),
            kind,
            offset: datastore.end + 4_096 * host as u64,
            len,
        };
        datastore.array.submit(self.now.as_nanos(), io);
    }

    pub(super) fn slot_io_completed(&mut self, io: &Io, slot_io: SlotIo) {
        let (host, array) = (io.host, io.array);
        match slot_io {
            SlotIo::Read => {
                let slots = Ok(self.datastores[array].file.read(self.now));
                self.with_governor(host, array, |governor, now, shards, out| {
                    governor.slots_read(now, &slots, shards, out);
                });
            }
            SlotIo::Write(bytes) => {
                let file = &mut self.datastores[array].file;
                file.write(host, self.now, bytes, false);
                self.with_governor(host, array, |governor, now, _, _| {
                    governor.slot_written(now, true);
                });
            }
        }
    }

    /// An I/O is gone that the world does not know.
    pub(super) fn unknown(&mut self, what: &str, id: IoId) {
        let message = format!("{what} {id:?} is not known");
        self.invariants.breach(self.now, message);
    }
}
