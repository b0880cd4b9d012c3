//! The policy `ours`: the core's schedulers and governor, driven as the engine drives them.
//!
//! There is a scheduler for each I/O thread. One governor steers them all ([`GovernorLoop`]).

use super::governor_loop::{GovernorLoop, Threads};
use super::{Control, ControlState, Ended, Next, Offered, SlotIo, Slots};
use crate::numbers::small;
use crate::scenario::{Ceiling, Scenario, Settings};
use tidegate_core::iocontrol::shared::{Groups, Shared};
use tidegate_core::iocontrol::{
    Bin, Cost, DiskKey, GroupId, GroupPolicy, Limit, Offer, Orders, Pick, Policy, Scheduler, Usage,
};
use tidegate_core::request::DiskId;
use tidegate_core::units::Time;

/// See the module.
pub(super) struct Ours {
    schedulers: Vec<Scheduler>,
    governor: GovernorLoop,
    threads: Vec<usize>,
}

impl Threads for Vec<Scheduler> {
    fn observe(&mut self, now: Time, usage: &mut Vec<Usage>, bins: &mut Vec<Bin>) {
        for scheduler in self {
            scheduler.usage(now, usage);
            scheduler.bins(bins);
        }
    }

    fn steer(&mut self, now: Time, orders: &Orders) {
        for scheduler in self {
            scheduler.steer(now, orders);
        }
    }
}

impl Ours {
    pub(super) fn new(
        now: Time,
        scenario: &Scenario,
        settings: &[Settings],
        host: usize,
        incarnation: u64,
    ) -> Ours {
        let datastore = &scenario.datastore;
        let threads = scenario.hosts[host].threads;
        let groups = Groups::new(scenario.groups.len());
        for (number, group) in (0..).zip(&scenario.groups) {
            let policy = GroupPolicy {
                limit: group.limit.map(limit),
                bandwidth: group.bandwidth.map(limit),
            };
            groups.set(now, GroupId(number), &policy);
        }
        let shared = Shared::new(threads, &groups);
        let mut schedulers: Vec<Scheduler> = (0..threads)
            .map(|thread| Scheduler::new(thread, shared.clone(), datastore.io_unit))
            .collect();
        let own = scenario.disks.iter().enumerate();
        for (place, disk) in own.filter(|(_, disk)| disk.host == host && !disk.unmanaged) {
            let policy = policy(&settings[place]);
            schedulers[disk.thread].add(now, id(place), key(place), &policy);
        }
        let governor = GovernorLoop::new(now, datastore, host, incarnation);
        schedulers.steer(now, governor.orders());
        Ours {
            schedulers,
            governor,
            threads: scenario.disks.iter().map(|disk| disk.thread).collect(),
        }
    }
}

impl Control for Ours {
    fn offer(&mut self, now: Time, offered: &Offered) -> Option<Cost> {
        let scheduler = &mut self.schedulers[self.threads[offered.disk]];
        let disk = id(offered.disk);
        match scheduler.offer(
            now,
            disk,
            offered.io,
            offered.op,
            offered.offset,
            offered.len,
        ) {
            Offer::Start(cost) => Some(cost),
            Offer::Wait => None,
        }
    }

    fn pick(&mut self, now: Time, thread: usize) -> Next {
        match self.schedulers[thread].pick(now) {
            Pick::Now(_, io, cost) => Next::Start(io, cost),
            Pick::Other(thread) => Next::Thread(thread),
            Pick::At(..) | Pick::Full | Pick::Behind | Pick::Empty => Next::Nothing,
        }
    }

    fn finished(&mut self, now: Time, ended: &Ended) {
        self.schedulers[self.threads[ended.disk]].finished(
            now,
            id(ended.disk),
            ended.op,
            ended.len,
            ended.issued,
            ended.cost,
        );
    }

    fn deadline(&self, thread: usize) -> Option<Time> {
        self.schedulers[thread].deadline()
    }

    fn wake_at(&self) -> Time {
        self.governor.wake_at()
    }

    fn wake(&mut self, now: Time, out: &mut Vec<SlotIo>) {
        self.governor.wake(now, &mut self.schedulers, out);
    }

    fn slots_read(&mut self, now: Time, slots: &Slots, out: &mut Vec<SlotIo>) {
        self.governor
            .slots_read(now, slots, &mut self.schedulers, out);
    }

    fn slot_written(&mut self, now: Time, fine: bool) {
        self.governor.slot_written(now, fine);
    }

    fn change(&mut self, now: Time, disk: usize, settings: &Settings) {
        let scheduler = &mut self.schedulers[self.threads[disk]];
        scheduler.change(now, id(disk), &policy(settings));
        self.governor.check_now(now);
    }

    fn state(&self) -> ControlState {
        self.governor.state()
    }

    fn take_events(&mut self) -> Vec<String> {
        self.governor.take_events()
    }
}

/// A disk's number on its I/O thread.
pub(crate) fn id(disk: usize) -> DiskId {
    DiskId(small(disk))
}

/// A disk's identity on all hosts.
pub(crate) fn key(disk: usize) -> DiskKey {
    DiskKey(disk as u64 + 1)
}

fn limit(ceiling: Ceiling) -> Limit {
    Limit {
        sustained: ceiling.sustained,
        peak: ceiling.peak,
        burst: ceiling.burst,
    }
}

/// A disk's settings as the core takes them.
pub(crate) fn policy(settings: &Settings) -> Policy {
    Policy {
        shares: settings.shares,
        reservation: settings.reservation,
        limit: settings.limit.map(limit),
        bandwidth: settings.bandwidth.map(limit),
        latency_target: settings.latency_target,
        group: settings.group.map(|group| GroupId(small(group))),
    }
}
