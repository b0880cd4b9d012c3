//! One governor alone, with usage and slots that the test gives it.
//!
//! A world of many hosts hides the effect of a single rule. Here only the governor reacts.

use super::world::settings;
use tidegate_core::governor::slot::{Entry, Flags, Record};
use tidegate_core::governor::{Governor, GovernorEvent, ReadFailed, Report, Settings, Threshold};
use tidegate_core::iocontrol::{DiskKey, Orders, Usage};
use tidegate_core::request::DiskId;
use tidegate_core::units::{Span, Time};

/// The load of our only disk for a while.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    latency_ms: f64,
    in_flight: f64,
    waiting: f64,
}

pub(crate) const fn load(latency_ms: f64, in_flight: f64, waiting: f64) -> Load {
    Load {
        latency_ms,
        in_flight,
        waiting,
    }
}

/// The governor under test, host 5, with a disk of key 5; and the other hosts' slots.
pub(crate) struct Bench {
    pub(crate) governor: Governor,
    now: u64,
    pub(crate) peers: Vec<Record>,
    /// Whether its reads of the slots fail.
    pub(crate) deaf: bool,
    /// Whether its writes of its own slot fail.
    pub(crate) mute: bool,
    /// Whether the others publish nothing new.
    pub(crate) silent: bool,
    orders: Option<Orders>,
    pub(crate) events: Vec<GovernorEvent>,
    /// The times of its ticks.
    pub(crate) ticks: Vec<u64>,
    /// When it published a slot, and the interval announced there.
    pub(crate) published: Vec<(u64, Span)>,
}

impl Bench {
    pub(crate) fn new(threshold: Threshold, peers: Vec<Record>) -> Bench {
        Bench::with(settings(5, threshold), peers)
    }

    pub(crate) fn with(settings: Settings, peers: Vec<Record>) -> Bench {
        let mut governor = Governor::new(settings);
        governor.sits_at(5);
        Bench {
            governor,
            now: 0,
            peers,
            deaf: false,
            mute: false,
            silent: false,
            orders: None,
            events: Vec::new(),
            ticks: Vec::new(),
            published: Vec::new(),
        }
    }

    /// Runs our disk with this load for `ms`; the others repeat their records.
    pub(crate) fn pass(&mut self, ms: u64, load: Load) {
        for _ in 0..ms.div_ceil(50) {
            self.report(&usage(load));
        }
    }

    /// As [`Bench::pass`], until it has ticked this often.
    pub(crate) fn pass_ticks(&mut self, ticks: usize, load: Load) {
        let until = self.ticks.len() + ticks;
        while self.ticks.len() < until {
            self.report(&usage(load));
        }
    }

    /// Reports fifty milliseconds of this usage.
    pub(crate) fn report(&mut self, usage: &Usage) {
        self.now += 50;
        let now = self.time();
        self.governor
            .observe(now, core::slice::from_ref(usage), &[]);
        if self.governor.deadline() <= now {
            self.round(now);
        }
    }

    /// Reads the slots, without a tick.
    pub(crate) fn hear(&mut self) {
        for peer in &mut self.peers {
            peer.sequence += u64::from(!self.silent);
        }
        let slots = self
            .peers
            .iter()
            .map(|peer| (u16::from(peer.host[0]), peer.encode()));
        let slots: Vec<_> = slots.collect();
        let slots: Vec<(u16, &[u8])> = slots.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
        let read = if self.deaf {
            Err(ReadFailed)
        } else {
            Ok(&slots[..])
        };
        self.governor.heard(self.time(), read);
    }

    /// An administrator sets another threshold.
    pub(crate) fn set(&mut self, threshold: Threshold) {
        let (now, common) = (self.time(), self.governor.common());
        let (mode, io_unit) = (common.mode(), common.io_unit);
        self.governor.set(now, mode, threshold, io_unit);
    }

    fn time(&self) -> Time {
        Time::ZERO + Span::from_millis(self.now)
    }

    fn round(&mut self, now: Time) {
        self.hear();
        let tick = self.governor.tick(now);
        self.ticks.push(self.now);
        self.orders = Some(tick.orders);
        self.events.extend(tick.events);
        if let Some(slot) = tick.publish {
            let said = Record::decode(&slot).expect("a slot of ours").tick_ms;
            self.published
                .push((self.now, Span::from_millis(said.into())));
            self.governor.published(now, !self.mute);
        }
    }

    /// The last intervals between ticks.
    pub(crate) fn pauses(&self, last: usize) -> Vec<u64> {
        let from = self.ticks.len().saturating_sub(last + 1);
        self.ticks[from..]
            .windows(2)
            .map(|two| two[1] - two[0])
            .collect()
    }

    pub(crate) fn engaged(&self) -> bool {
        self.orders.as_ref().is_some_and(|orders| orders.engaged)
    }

    /// The limits of our single disks.
    pub(crate) fn parts(&self) -> &[(DiskKey, u64)] {
        self.orders.as_ref().map_or(&[], |orders| &orders.parts)
    }

    /// Our window, reference I/Os.
    pub(crate) fn window(&self) -> f64 {
        self.orders
            .as_ref()
            .map_or(0.0, |orders| orders.window as f64 / 256.0)
    }

    /// The cluster's window, as we compute it.
    pub(crate) fn cluster(&self) -> f64 {
        self.known().cluster as f64 / 256.0
    }

    pub(crate) fn known(&self) -> Report {
        self.governor.report()
    }
}

/// The counts of a disk of key 5 in fifty milliseconds.
pub(crate) fn usage(load: Load) -> Usage {
    let span = Span::from_millis(50);
    let latency_ns = (load.latency_ms * 1e6) as u64;
    let ios = if latency_ns > 0 {
        (load.in_flight / load.latency_ms * 50.0) as u64
    } else {
        0
    };
    let mut latency_counts = [0; 32];
    latency_counts[((latency_ns / 1_000).max(1).ilog2() as usize + 1).min(31)] = ios as u32;
    let area = |level: f64| (level * 256.0 * 50e6) as u128;
    Usage {
        disk: DiskId(5),
        key: DiskKey(5),
        shares: 1_000,
        reservation: 0,
        limit: 0,
        latency_target: Span::ZERO,
        span,
        ios,
        units: ios,
        cost: ios * 256,
        ended_cost: ios * 256,
        bytes: ios * 4_096,
        latency_ns: ios * latency_ns,
        latency_max: Span::from_nanos(latency_ns),
        latency_counts,
        in_flight_cost_ns: area(load.in_flight),
        waiting_cost_ns: area(load.waiting),
        held_ns: [(load.waiting * 50e6) as u64, 0, 0, 0, 0],
        active: load.in_flight > 0.0,
        burst_left: 0,
    }
}

/// Another engaged host, with a cluster window of 40. Its throughput is that of 20 in flight at its latency.
pub(crate) fn peer(host: u8, latency_ms: f64) -> Record {
    Record {
        host: [host; 16],
        incarnation: u64::from(host),
        tick_ms: 100,
        flags: Flags::ENGAGED,
        cluster: 40.0,
        window: 20.0,
        in_flight: 20.0,
        latency: latency_ms * 1e6,
        ios: 20.0 / latency_ms * 1e3,
        rate: 20.0 / latency_ms * 1e3,
        disks: vec![asks(u64::from(host), 20.0)],
        ..Record::default()
    }
}

pub(crate) fn asks(key: u64, demand: f64) -> Entry {
    Entry {
        key,
        shares: 1_000,
        demand,
        unit_cost: 1.0,
        served: true,
        ..Entry::default()
    }
}
