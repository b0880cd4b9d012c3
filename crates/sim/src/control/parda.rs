//! The policy `parda`, as published: each host sets its window from the mean latency every four seconds.
//!
//! It is the baseline of the comparison. Each host writes its mean latency and its number of I/Os into the coordination
//! file, reads the slots of all hosts, and adjusts its window. On the host, SFQ(D) divides the window among the disks
//! by requests. There are no reservations and no limits.
//!
//! # Source
//! Gulati, Ahmad, Waldspurger: "PARDA: Proportional Allocation of Resources for Distributed Storage Access", FAST 2009.
//! The scale of beta (its sum over all hosts is 16) and the constants below are those reported for its experiments.

use super::{Control, ControlState, Ended, Next, Offered, SlotIo, Slots};
use crate::numbers::{count, float, part, whole};
use crate::scenario::{Kind, Scenario, Settings, Threshold};
use std::collections::VecDeque;
use tidegate_core::iocontrol::{Cost, CostModel};
use tidegate_core::request::IoId;
use tidegate_core::units::{Span, Time};

const EVERY: Span = Span::from_secs(4);
const GAMMA: f64 = 0.8;
/// The weight of the previous latency.
const ALPHA: f64 = 0.2;
const LEAST: f64 = 4.0;
const MOST_ROTATIONAL: f64 = 64.0;
const MOST_FLASH: f64 = 256.0;
/// The sum of all hosts' betas.
const BETAS: f64 = 16.0;
/// The threshold where the scenario's is automatic. It is the default of the product based on PARDA.
const THRESHOLD: Span = Span::from_millis(30);
/// A host that was silent for this many reads counts as gone.
const SILENT: u32 = 3;

/// See the module.
pub(super) struct Parda {
    flows: Vec<Flow>,
    threads: Vec<usize>,
    costs: CostModel,
    virtual_time: u64,
    in_flight: usize,
    window: f64,
    most: f64,
    beta_per_share: f64,
    threshold: f64,
    /// Smoothed, in nanoseconds.
    latency: f64,
    /// This host's, since the last tick.
    sum_ns: f64,
    ended: f64,
    next: Time,
    sequence: u64,
    /// For each slot: the last sequence number, and the number of reads without a change.
    seen: Vec<(u64, u32)>,
}

/// A disk of this host.
struct Flow {
    shares: u64,
    /// On another host, or not under control.
    foreign: bool,
    waiting: VecDeque<(IoId, Cost)>,
    finish: u64,
    in_flight: u64,
    /// The integral of its pending I/Os, sampled at offers. It shows whether the disk uses its share.
    pending: f64,
    samples: f64,
}

/// Virtual time of a request of a disk with one share.
const TICK: u64 = 1 << 24;

impl Parda {
    pub(super) fn new(now: Time, scenario: &Scenario, settings: &[Settings], host: usize) -> Parda {
        let all: u64 = settings.iter().map(|disk| u64::from(disk.shares)).sum();
        let most = match scenario.datastore.kind {
            Kind::Flash => MOST_FLASH,
            Kind::Rotational | Kind::Unknown => MOST_ROTATIONAL,
        };
        let threshold = match scenario.datastore.threshold {
            Threshold::Fixed(threshold) => threshold,
            Threshold::Auto => THRESHOLD,
            Threshold::Off => Span::from_secs(1_000),
        };
        let flows = scenario.disks.iter().zip(settings);
        Parda {
            flows: flows
                .map(|(disk, settings)| Flow {
                    shares: u64::from(settings.shares),
                    foreign: disk.host != host,
                    waiting: VecDeque::new(),
                    finish: 0,
                    in_flight: 0,
                    pending: 0.0,
                    samples: 0.0,
                })
                .collect(),
            threads: scenario.disks.iter().map(|disk| disk.thread).collect(),
            costs: super::governor_loop::costs(scenario.datastore.kind),
            virtual_time: 0,
            in_flight: 0,
            window: most,
            most,
            beta_per_share: part(BETAS, float(all)),
            threshold: float(threshold.as_nanos()),
            latency: 0.0,
            sum_ns: 0.0,
            ended: 0.0,
            next: now + EVERY,
            sequence: 0,
            seen: Vec::new(),
        }
    }

    fn fits(&self) -> bool {
        self.in_flight < usize::try_from(whole(self.window)).unwrap_or(usize::MAX)
    }

    fn start(&mut self, disk: usize) {
        let flow = &mut self.flows[disk];
        self.virtual_time = self.virtual_time.max(flow.finish);
        flow.finish = flow.finish.max(self.virtual_time) + TICK / flow.shares;
        flow.in_flight += 1;
        self.in_flight += 1;
    }

    /// The host's beta: the sum of its disks' shares, each reduced to the used part of its window.
    fn beta(&mut self) -> f64 {
        let own = self.flows.iter().filter(|flow| !flow.foreign);
        let active: u64 = own
            .filter(|flow| flow.samples > 0.0)
            .map(|flow| flow.shares)
            .sum();
        let mut beta = 0.0;
        for flow in self.flows.iter_mut().filter(|flow| flow.samples > 0.0) {
            let slice = self.window * part(float(flow.shares), float(active));
            let pending = part(flow.pending, flow.samples);
            beta += float(flow.shares) * part(pending, slice).min(1.0);
            (flow.pending, flow.samples) = (0.0, 0.0);
        }
        beta * self.beta_per_share
    }

    /// The mean latency of the live hosts, weighted by their I/Os.
    fn mean_latency(&mut self, slots: &[(u16, Vec<u8>)]) -> Option<f64> {
        let (mut sum, mut ios) = (0.0, 0.0);
        for (slot, bytes) in slots {
            let Some((sequence, mean, ended)) = decode(bytes) else {
                continue;
            };
            let place = usize::from(*slot);
            if self.seen.len() <= place {
                self.seen.resize(place + 1, (0, 0));
            }
            let seen = &mut self.seen[place];
            *seen = match seen.0 == sequence {
                true => (sequence, seen.1 + 1),
                false => (sequence, 0),
            };
            if seen.1 < SILENT {
                sum += mean * ended;
                ios += ended;
            }
        }
        (ios > 0.0).then(|| sum / ios)
    }
}

impl Control for Parda {
    fn offer(&mut self, _now: Time, offered: &Offered) -> Option<Cost> {
        let cost = self.costs.cost(offered.op, offered.len, false);
        let flow = &mut self.flows[offered.disk];
        flow.pending += count(flow.waiting.len() + 1) + float(flow.in_flight);
        flow.samples += 1.0;
        if self.flows.iter().all(|flow| flow.waiting.is_empty()) && self.fits() {
            self.start(offered.disk);
            return Some(cost);
        }
        let virtual_time = self.virtual_time;
        let flow = &mut self.flows[offered.disk];
        if flow.waiting.is_empty() {
            flow.finish = flow.finish.max(virtual_time);
        }
        flow.waiting.push_back((offered.io, cost));
        None
    }

    fn pick(&mut self, _now: Time, thread: usize) -> Next {
        if !self.fits() {
            return Next::Nothing;
        }
        let waiting = self.flows.iter().enumerate();
        let first = waiting
            .filter(|(_, flow)| !flow.waiting.is_empty())
            .min_by_key(|(place, flow)| (flow.finish, *place));
        let Some((disk, _)) = first else {
            return Next::Nothing;
        };
        if self.threads[disk] != thread {
            return Next::Thread(self.threads[disk]);
        }
        match self.flows[disk].waiting.pop_front() {
            Some((io, cost)) => {
                self.start(disk);
                Next::Start(io, cost)
            }
            None => Next::Nothing,
        }
    }

    fn finished(&mut self, now: Time, ended: &Ended) {
        self.flows[ended.disk].in_flight -= 1;
        self.in_flight -= 1;
        let latency = now.since(ended.issued);
        let latency = self.costs.normalise(ended.op, ended.len, latency);
        self.sum_ns += float(latency.as_nanos());
        self.ended += 1.0;
    }

    fn deadline(&self, _thread: usize) -> Option<Time> {
        None
    }

    fn wake_at(&self) -> Time {
        self.next
    }

    fn wake(&mut self, now: Time, out: &mut Vec<SlotIo>) {
        self.next = now + EVERY;
        self.sequence += 1;
        let mean = part(self.sum_ns, self.ended);
        out.push(SlotIo::Write(encode(self.sequence, mean, self.ended)));
        (self.sum_ns, self.ended) = (0.0, 0.0);
        out.push(SlotIo::Read);
    }

    fn slots_read(&mut self, _now: Time, slots: &Slots, _out: &mut Vec<SlotIo>) {
        let Some(latency) = slots
            .as_ref()
            .ok()
            .and_then(|slots| self.mean_latency(slots))
        else {
            return;
        };
        self.latency = match self.latency {
            0.0 => latency,
            before => (1.0 - ALPHA) * latency + ALPHA * before,
        };
        let beta = self.beta();
        let aim = part(self.threshold, self.latency) * self.window + beta;
        let next = (1.0 - GAMMA) * self.window + GAMMA * aim;
        self.window = next.clamp(LEAST, self.most);
    }

    fn slot_written(&mut self, _now: Time, _fine: bool) {}

    fn change(&mut self, _now: Time, disk: usize, settings: &Settings) {
        self.flows[disk].shares = u64::from(settings.shares);
    }

    fn state(&self) -> ControlState {
        ControlState {
            window: Some(self.window),
            latency: Span::from_nanos(whole(self.latency)),
            threshold: Span::from_nanos(whole(self.threshold)),
            engaged: self.window < self.most,
        }
    }
}

fn encode(sequence: u64, mean: f64, ended: f64) -> Vec<u8> {
    let mut bytes = sequence.to_le_bytes().to_vec();
    bytes.extend(mean.to_bits().to_le_bytes());
    bytes.extend(ended.to_bits().to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<(u64, f64, f64)> {
    let word = |at: usize| {
        let word = bytes.get(at..at + 8)?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    };
    let figures = (
        word(0)?,
        f64::from_bits(word(8)?),
        f64::from_bits(word(16)?),
    );
    (figures.1.is_finite() && figures.2.is_finite()).then_some(figures)
}
