//! The policy `ours`: the core's scheduler and governor, driven as the engine drives them.
//!
//! A scheduler for each I/O thread, one governor: what the schedulers counted goes to the governor every 50 ms; at the
//! governor's deadline the coordination file is read, the governor ticks, the schedulers are steered and the host's slot
//! is written.
//!
//! # Always true
//! - One read and one write of the coordination file are under way at most.
//! - A read that does not come back within [`PATIENCE`] counts as failed, and the governor ticks without it.

use super::{Asked, Control, Ended, Errand, Next, Slots, Standing};
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

/// How often the governor sees what the schedulers counted: the local latency check.
const CHECK: Span = Span::from_millis(50);
/// How long a read of the coordination file may take before the governor goes on without.
const PATIENCE: Span = Span::from_secs(1);
/// The widest window: as the published upper bound of a host's queue.
const WIDEST: u32 = 256;

/// See the module.
pub(super) struct Ours {
    schedulers: Vec<Scheduler>,
    governor: Governor,
    threads: Vec<usize>,
    orders: Orders,
    check: Time,
    /// Since when a read is under way, and whether it was given up.
    reading: Option<Time>,
    given_up: bool,
    writing: bool,
    standing: Standing,
    told: Vec<String>,
}

/// What requests are taken to cost before anything is known.
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
        // Slots are claimed before anything else; slot 0 is common to all.
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
            standing: Standing::default(),
            told: Vec::new(),
        };
        ours.stand();
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

    /// Notes how things stand: between ticks nothing of it changes.
    fn stand(&mut self) {
        let report = self.governor.report();
        self.standing = Standing {
            window: Some(float(self.orders.window) / 256.0),
            latency: report.latency,
            threshold: report.threshold,
            engaged: self.orders.engaged,
        };
    }

    fn tick(&mut self, now: Time, out: &mut Vec<Errand>) {
        let tick = self.governor.tick(now);
        for event in tick.events {
            self.told.push(format!("{event:?}"));
        }
        self.orders = tick.orders;
        self.stand();
        for scheduler in &mut self.schedulers {
            scheduler.steer(now, &self.orders);
        }
        if let Some(slot) = tick.publish
            && !self.writing
        {
            self.writing = true;
            out.push(Errand::Write(slot.to_vec()));
        }
    }
}

impl Control for Ours {
    fn offer(&mut self, now: Time, asked: &Asked) -> Option<Cost> {
        let scheduler = &mut self.schedulers[self.threads[asked.disk]];
        let disk = id(asked.disk);
        match scheduler.offer(now, disk, asked.io, asked.op, asked.offset, asked.len) {
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

    fn alarm(&self) -> Time {
        match self.reading {
            None => self.check.min(self.governor.deadline()),
            Some(since) if !self.given_up => self.check.min(since + PATIENCE),
            Some(_) => self.check.min(self.governor.deadline()),
        }
    }

    fn wake(&mut self, now: Time, out: &mut Vec<Errand>) {
        if now >= self.check {
            self.check = now + CHECK;
            self.observe(now);
        }
        match self.reading {
            None if now >= self.governor.deadline() => {
                self.reading = Some(now);
                self.given_up = false;
                out.push(Errand::Read);
            }
            Some(since) if !self.given_up && now >= since + PATIENCE => {
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

    fn heard(&mut self, now: Time, slots: &Slots, out: &mut Vec<Errand>) {
        self.reading = None;
        let slots = slots.as_ref().map(|slots| {
            let slots = slots.iter().map(|(slot, bytes)| (*slot, bytes.as_slice()));
            slots.collect::<Vec<_>>()
        });
        let read = slots.as_deref().map_err(|()| ReadFailed);
        // What is decided rests on what was counted until now.
        self.observe(now);
        self.check = now + CHECK;
        self.governor.heard(now, read);
        self.tick(now, out);
    }

    fn published(&mut self, now: Time, fine: bool) {
        self.writing = false;
        self.governor.published(now, fine);
    }

    fn change(&mut self, now: Time, disk: usize, settings: &Settings) {
        let scheduler = &mut self.schedulers[self.threads[disk]];
        scheduler.change(now, id(disk), &policy(settings));
        // So that the others learn of it at once, and not at the next check.
        self.check = now;
    }

    fn standing(&self) -> Standing {
        self.standing
    }

    fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.told)
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
