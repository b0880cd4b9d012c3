//! Drives the core's governor of one datastore on one host, as the engine's governor thread does.
//!
//! The governor gets the schedulers' counters every 50 ms. At its deadline the coordination file is read, the governor
//! ticks, the schedulers get new settings and the host's slot is written.
//!
//! # Always true
//! - At most one read and one write of the coordination file are pending.
//! - A read that takes longer than [`READ_TIMEOUT`] counts as failed, and the governor ticks without it.

use super::{ControlState, SlotIo, Slots};
use crate::numbers::float;
use crate::scenario::{self, Datastore};
use tidegate_core::governor::{self, Governor, ReadFailed};
use tidegate_core::iocontrol::{Bin, CostModel, Mode, Orders, Usage};
use tidegate_core::units::{Span, Time};

/// How often the governor gets the schedulers' counters: the local latency check.
const CHECK: Span = Span::from_millis(50);
/// How long the governor waits for a read of the coordination file.
const READ_TIMEOUT: Span = Span::from_secs(1);
/// The widest window, equal to the published upper bound of a host's queue.
const WIDEST: u32 = 256;

/// The schedulers of a datastore on all I/O threads of a host.
pub(crate) trait Threads {
    /// Appends what disks used since the last call, and what was completed in each past interval.
    fn observe(&mut self, now: Time, usage: &mut Vec<Usage>, bins: &mut Vec<Bin>);
    /// Applies new orders.
    fn steer(&mut self, now: Time, orders: &Orders);
}

/// See the module.
pub(crate) struct GovernorLoop {
    governor: Governor,
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
pub(crate) fn costs(kind: scenario::Kind) -> CostModel {
    governor_kind(kind).costs()
}

fn governor_kind(kind: scenario::Kind) -> governor::Kind {
    match kind {
        scenario::Kind::Flash => governor::Kind::Flash,
        scenario::Kind::Rotational => governor::Kind::Rotational,
        scenario::Kind::Unknown => governor::Kind::Unknown,
    }
}

impl GovernorLoop {
    /// The governor of a host that starts now. `incarnation` distinguishes the starts of its daemon.
    pub(crate) fn new(
        now: Time,
        datastore: &Datastore,
        host: usize,
        incarnation: u64,
    ) -> GovernorLoop {
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
        let mut made = GovernorLoop {
            governor,
            orders: Orders::idle(costs(datastore.kind)),
            check: now + CHECK,
            reading: None,
            given_up: false,
            writing: false,
            state: ControlState::default(),
            events: Vec::new(),
        };
        made.store_state();
        made
    }

    /// The orders that are in effect.
    pub(crate) fn orders(&self) -> &Orders {
        &self.orders
    }

    /// The time of the next [`GovernorLoop::wake`].
    pub(crate) fn wake_at(&self) -> Time {
        match self.reading {
            None => self.check.min(self.governor.deadline()),
            Some(since) if !self.given_up => self.check.min(since + READ_TIMEOUT),
            Some(_) => self.check.min(self.governor.deadline()),
        }
    }

    /// The check runs at once, so that others learn of a change.
    pub(crate) fn check_now(&mut self, now: Time) {
        self.check = now;
    }

    /// Called at the time of [`GovernorLoop::wake_at`].
    pub(crate) fn wake(&mut self, now: Time, threads: &mut dyn Threads, out: &mut Vec<SlotIo>) {
        if now >= self.check {
            self.check = now + CHECK;
            self.observe(now, threads);
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
                self.tick(now, threads, out);
            }
            Some(_) if self.given_up && now >= self.governor.deadline() => {
                self.governor.heard(now, Err(ReadFailed));
                self.tick(now, threads, out);
            }
            None | Some(_) => {}
        }
    }

    /// A [`SlotIo::Read`] has completed.
    pub(crate) fn slots_read(
        &mut self,
        now: Time,
        slots: &Slots,
        threads: &mut dyn Threads,
        out: &mut Vec<SlotIo>,
    ) {
        self.reading = None;
        let slots = slots.as_ref().map(|slots| {
            let slots = slots.iter().map(|(slot, bytes)| (*slot, bytes.as_slice()));
            slots.collect::<Vec<_>>()
        });
        let read = slots.as_deref().map_err(|()| ReadFailed);
        // The decision uses all counters up to now.
        self.observe(now, threads);
        self.check = now + CHECK;
        self.governor.heard(now, read);
        self.tick(now, threads, out);
    }

    /// A [`SlotIo::Write`] has completed; `fine`: successfully.
    pub(crate) fn slot_written(&mut self, now: Time, fine: bool) {
        self.writing = false;
        self.governor.published(now, fine);
    }

    /// The state of control.
    pub(crate) fn state(&self) -> ControlState {
        self.state
    }

    /// The events since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    fn observe(&mut self, now: Time, threads: &mut dyn Threads) {
        let (mut usage, mut bins) = (Vec::new(), Vec::new());
        threads.observe(now, &mut usage, &mut bins);
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

    fn tick(&mut self, now: Time, threads: &mut dyn Threads, out: &mut Vec<SlotIo>) {
        let tick = self.governor.tick(now);
        for event in tick.events {
            self.events.push(format!("{event:?}"));
        }
        self.orders = tick.orders;
        self.store_state();
        threads.steer(now, &self.orders);
        if let Some(slot) = tick.publish
            && !self.writing
        {
            self.writing = true;
            out.push(SlotIo::Write(slot.to_vec()));
        }
    }
}
