//! The policy `ours`: the core's scheduler and governor, driven as the engine drives them.
//!
//! There is a scheduler for each I/O thread and one governor. The governor gets the schedulers' counters every 50 ms.
//! At the governor's deadline the coordination file is read, the governor ticks, the schedulers get new settings and
//! the host's slot is written.
//!
//! # Always true
//! - At most one read and one write of the coordination file are pending.
//! - A read that takes longer than [`READ_TIMEOUT`] counts as failed, and the governor ticks without it.

use super::{Control, ControlState, Ended, Next, Offered, SlotIo, Slots};
use crate::numbers::{float, small};
use crate::scenario::{self, Ceiling, Scenario, Settings};
use tidegate_core::governor::{self, Governor, ReadFailed};
use tidegate_core::iocontrol::shared::{Groups, Shared};
use tidegate_core::iocontrol::{
    Cost, CostModel, DiskKey, GroupId, GroupPolicy, Limit, Mode, Offer, Orders, Pick, Policy,
    Scheduler,
};
use tidegate_core::request::DiskId;
use tidegate_core::units::{Span, Time};

/// How often the governor gets the schedulers' counters: the local latency check.
const CHECK: Span = Span::from_millis(50);
/// How long the governor waits for a read of the coordination file.
const READ_TIMEOUT: Span = Span::from_secs(1);
/// The widest window, equal to the published upper bound of a host's queue.
const WIDEST: u32 = 256;

/// See the module.
pub(super) struct Ours {
    schedulers: Vec<Scheduler>,
    governor: Governor,
    threads: Vec<usize>,
    orders: Orders,
    check: Time,
    /// When the pending read began, and whether it timed out.
    reading: Option<Time>,
    given_up: bool,
    writing: bool,
    state: ControlState,
    events: Vec<String>,
}

/// The cost model before any measurement.
pub(super) fn costs(kind: scenario::Kind) -> CostModel {
    governor_kind(kind).costs()
}

fn governor_kind(kind: scenario::Kind) -> governor::Kind {
    match kind {
        scenario::Kind::Flash => governor::Kind::Flash,
        scenario::Kind::Rotational => governor::Kind::Rotational,
        scenario::Kind::Unknown => governor::Kind::Unknown,
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
            let key = DiskKey(place as u64 + 1);
            schedulers[disk.thread].add(now, id(place), key, &policy);
        }
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&(host as u64 + 1).to_le_bytes());
        let mut governor = Governor::new(governor::Settings {
            host: uuid,
            incarnation,
            mode: match datastore.control {
                scenario::Control::On => Mode::On,
                scenario::Control::Observe => Mode::Observe,
                scenario::Control::Off => Mode::Off,
            },
            threshold: match datastore.threshold {
                scenario::Threshold::Auto => governor::Threshold::Auto,
                scenario::Threshold::Fixed(latency) => governor::Threshold::Fixed(latency),
                scenario::Threshold::Off => governor::Threshold::Off,
            },
            io_unit: datastore.io_unit,
            kind: governor_kind(datastore.kind),
            window_most: WIDEST,
            learn: datastore.learn,
        });
        // Slots are claimed in advance. Slot 0 is the common one.
        governor.sits_at(u16::try_from(host + 1).expect("a file has 255 slots for hosts"));
        let orders = Orders::idle(costs(datastore.kind));
        for scheduler in &mut schedulers {
            scheduler.steer(now, &orders);
        }
        let mut ours = Ours {
            schedulers,
            governor,
            threads: scenario.disks.iter().map(|disk| disk.thread).collect(),
            orders,
            check: now + CHECK,
            reading: None,
            given_up: false,
            writing: false,
            state: ControlState::default(),
            events: Vec::new(),
        };
        ours.store_state();
        ours
    }

    fn observe(&mut self, now: Time) {
        let (mut usage, mut bins) = (Vec::new(), Vec::new());
        for scheduler in &mut self.schedulers {
            scheduler.usage(now, &mut usage);
            scheduler.bins(&mut bins);
        }
        self.governor.observe(now, &usage, &bins);
    }

    /// Stores the state of control, which changes only at ticks.
    fn store_state(&mut self) {
        let report = self.governor.report();
        self.state = ControlState {
            window: Some(float(self.orders.window) / 256.0),
            latency: report.latency,
            threshold: report.threshold,
            engaged: self.orders.engaged,
        };
    }

    fn tick(&mut self, now: Time, out: &mut Vec<SlotIo>) {
        let tick = self.governor.tick(now);
        for event in tick.events {
            self.events.push(format!("{event:?}"));
        }
        self.orders = tick.orders;
        self.store_state();
        for scheduler in &mut self.schedulers {
            scheduler.steer(now, &self.orders);
        }
        if let Some(slot) = tick.publish
            && !self.writing
        {
            self.writing = true;
            out.push(SlotIo::Write(slot.to_vec()));
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
        match self.reading {
            None => self.check.min(self.governor.deadline()),
            Some(since) if !self.given_up => self.check.min(since + READ_TIMEOUT),
            Some(_) => self.check.min(self.governor.deadline()),
        }
    }

    fn wake(&mut self, now: Time, out: &mut Vec<SlotIo>) {
        if now >= self.check {
            self.check = now + CHECK;
            self.observe(now);
        }
        match self.reading {
            None if now >= self.governor.deadline() => {
                self.reading = Some(now);
                self.given_up = false;
                out.push(SlotIo::Read);
            }
            Some(since) if !self.given_up && now >= since + READ_TIMEOUT => {
                self.given_up = true;
                self.governor.heard(now, Err(ReadFailed));
                self.tick(now, out);
            }
            Some(_) if self.given_up && now >= self.governor.deadline() => {
                self.governor.heard(now, Err(ReadFailed));
                self.tick(now, out);
            }
            None | Some(_) => {}
        }
    }

    fn slots_read(&mut self, now: Time, slots: &Slots, out: &mut Vec<SlotIo>) {
        self.reading = None;
        let slots = slots.as_ref().map(|slots| {
            let slots = slots.iter().map(|(slot, bytes)| (*slot, bytes.as_slice()));
            slots.collect::<Vec<_>>()
        });
        let read = slots.as_deref().map_err(|()| ReadFailed);
        // The decision uses all counters up to now.
        self.observe(now);
        self.check = now + CHECK;
        self.governor.heard(now, read);
        self.tick(now, out);
    }

    fn slot_written(&mut self, now: Time, fine: bool) {
        self.writing = false;
        self.governor.published(now, fine);
    }

    fn change(&mut self, now: Time, disk: usize, settings: &Settings) {
        let scheduler = &mut self.schedulers[self.threads[disk]];
        scheduler.change(now, id(disk), &policy(settings));
        // The check runs at once, so that the others learn of the change.
        self.check = now;
    }

    fn state(&self) -> ControlState {
        self.state
    }

    fn take_events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }
}

fn id(disk: usize) -> DiskId {
    DiskId(small(disk))
}

fn limit(ceiling: Ceiling) -> Limit {
    Limit {
        sustained: ceiling.sustained,
        peak: ceiling.peak,
        burst: ceiling.burst,
    }
}

fn policy(settings: &Settings) -> Policy {
    Policy {
        shares: settings.shares,
        reservation: settings.reservation,
        limit: settings.limit.map(limit),
        bandwidth: settings.bandwidth.map(limit),
        latency_target: settings.latency_target,
        group: settings.group.map(|group| GroupId(small(group))),
    }
}
