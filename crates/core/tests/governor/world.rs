//! A simple world for governors: an array as a fluid, hosts that fill their windows, and a table of slots.
//!
//! The array does at most `most` reference I/Os a second, none faster than `least`; latency follows from Little's law.
//! Disks share their host's window by water-filling, as the schedulers do. Each host reports every 50 ms, and ticks at
//! its governor's deadline.

use tidegate_core::governor::division::{Demand, Division};
use tidegate_core::governor::{
    Governor, GovernorEvent, Kind, ReadFailed, Settings, Threshold, slot,
};
use tidegate_core::iocontrol::{DiskKey, Mode, Orders, Usage};
use tidegate_core::request::DiskId;
use tidegate_core::units::{Span, Time};

const STEP: u64 = 5;

#[derive(Clone, Debug)]
pub(crate) struct Disk {
    pub(crate) key: u64,
    pub(crate) shares: u32,
    pub(crate) reservation: u32,
    pub(crate) limit: u64,
    pub(crate) target: Span,
    /// The I/O that it would have in flight.
    pub(crate) wants: f64,
    /// Completed I/Os since the mark.
    pub(crate) done: f64,
    in_flight: f64,
    flown: f64,
    waited: f64,
    ended: f64,
    reported: u64,
}

pub(crate) struct Host {
    pub(crate) governor: Governor,
    pub(crate) orders: Orders,
    pub(crate) disks: Vec<Disk>,
    pub(crate) alive: bool,
    /// Whether its reads of the slots fail; whether its writes fail.
    pub(crate) deaf: bool,
    pub(crate) mute: bool,
    pub(crate) events: Vec<(u64, GovernorEvent)>,
    pub(crate) published: u32,
    pub(crate) ticks: u32,
}

pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) most: f64,
    pub(crate) least: f64,
    /// I/O in flight from outside the cluster.
    pub(crate) others: f64,
    pub(crate) hosts: Vec<Host>,
    pub(crate) slots: Vec<Vec<u8>>,
    pub(crate) latency: f64,
    pub(crate) rate: f64,
    /// Sum of latencies times milliseconds, and of I/Os, since the mark.
    sums: (f64, f64, f64),
}

pub(crate) fn disk(key: u64, shares: u32, wants: f64) -> Disk {
    Disk {
        key,
        shares,
        reservation: 0,
        limit: 0,
        target: Span::ZERO,
        wants,
        done: 0.0,
        in_flight: 0.0,
        flown: 0.0,
        waited: 0.0,
        ended: 0.0,
        reported: 0,
    }
}

pub(crate) fn settings(host: u8, threshold: Threshold) -> Settings {
    Settings {
        host: [host; 16],
        incarnation: 1_000 + u64::from(host),
        mode: Mode::On,
        threshold,
        io_unit: 32 << 10,
        kind: Kind::Unknown,
        window_most: 256,
        learn: false,
    }
}

impl World {
    /// `hosts` have these disks: key, shares, and the I/O it would have in flight.
    pub(crate) fn new(most: f64, least_ms: f64, threshold: Threshold, hosts: &[&[Disk]]) -> World {
        let mut world = World {
            now: 0,
            most,
            least: least_ms / 1e3,
            others: 0.0,
            hosts: Vec::new(),
            slots: vec![Vec::new(); 64],
            latency: 0.0,
            rate: 0.0,
            sums: (0.0, 0.0, 0.0),
        };
        for disks in hosts {
            world.join(threshold, disks);
        }
        world
    }

    pub(crate) fn join(&mut self, threshold: Threshold, disks: &[Disk]) {
        let number = u8::try_from(self.hosts.len() + 1).expect("a few hosts");
        let mut governor = Governor::new(settings(number, threshold));
        governor.sits_at(u16::from(number));
        self.hosts.push(Host {
            orders: Orders::idle(Kind::Unknown.costs()),
            governor,
            disks: disks.to_vec(),
            alive: true,
            deaf: false,
            mute: false,
            events: Vec::new(),
            published: 0,
            ticks: 0,
        });
    }

    pub(crate) fn time(&self) -> Time {
        Time::ZERO + Span::from_millis(self.now)
    }

    pub(crate) fn run(&mut self, ms: u64) {
        let until = self.now + ms;
        while self.now < until {
            self.flow();
            self.now += STEP;
            for at in 0..self.hosts.len() {
                // Hosts tick at different times.
                let phase = (at as u64 * 3 % 10) * STEP;
                if self.hosts[at].alive && self.now % 50 == phase % 50 {
                    self.report(at);
                }
            }
        }
    }

    fn flow(&mut self) {
        let latency = self.latency.max(self.least);
        for host in self.hosts.iter_mut().filter(|host| host.alive) {
            let window = host.orders.window as f64 / 256.0;
            let wants: Vec<Demand> = host
                .disks
                .iter()
                .map(|disk| {
                    let limit = if disk.limit > 0 {
                        disk.limit as f64 * latency
                    } else {
                        1e9
                    };
                    let most = disk.wants.min(limit);
                    let theta = f64::from(host.orders.theta) / 65_536.0;
                    let least = (f64::from(disk.reservation) * theta * latency).min(most);
                    Demand {
                        shares: f64::from(disk.shares),
                        least,
                        most,
                    }
                })
                .collect();
            let division = Division::of(&wants, window);
            for (disk, want) in host.disks.iter_mut().zip(&wants) {
                disk.in_flight = division.part(want);
            }
        }
        let live = || self.hosts.iter().filter(|host| host.alive);
        let ours: f64 = live()
            .flat_map(|host| &host.disks)
            .map(|disk| disk.in_flight)
            .sum();
        let all = ours + self.others;
        self.rate = self.most.min(all / self.least);
        self.latency = if all > 0.0 { all / self.rate } else { 0.0 };
        let seconds = STEP as f64 / 1e3;
        for disk in self
            .hosts
            .iter_mut()
            .filter(|host| host.alive)
            .flat_map(|host| &mut host.disks)
        {
            let done = if self.latency > 0.0 {
                disk.in_flight / self.latency * seconds
            } else {
                0.0
            };
            disk.done += done;
            disk.ended += done;
            disk.flown += disk.in_flight * STEP as f64 * 1e6;
            disk.waited += (disk.wants - disk.in_flight) * STEP as f64 * 1e6;
        }
        self.sums.0 += self.latency * seconds;
        self.sums.1 += seconds;
        self.sums.2 += self.rate * seconds;
    }

    fn report(&mut self, at: usize) {
        let (now, latency) = (self.time(), self.latency);
        let host = &mut self.hosts[at];
        let usage: Vec<Usage> = host
            .disks
            .iter_mut()
            .map(|disk| disk.usage(latency))
            .collect();
        host.governor.observe(now, &usage, &[]);
        if host.governor.deadline() > now {
            return;
        }
        if host.deaf {
            host.governor.heard(now, Err(ReadFailed));
        } else {
            let slots: Vec<(u16, &[u8])> =
                (0..).zip(self.slots.iter().map(Vec::as_slice)).collect();
            let full: Vec<_> = slots
                .into_iter()
                .filter(|(_, bytes)| !bytes.is_empty())
                .collect();
            host.governor.heard(now, Ok(&full));
        }
        let tick = host.governor.tick(now);
        assert!(host.governor.deadline() > now, "a tick moves the deadline");
        host.ticks += 1;
        host.orders = tick.orders;
        host.events
            .extend(tick.events.into_iter().map(|event| (self.now, event)));
        if let Some(bytes) = tick.publish {
            host.published += 1;
            if !host.mute {
                self.slots[at + 1] = bytes.to_vec();
            }
            host.governor.published(now, !host.mute);
        }
    }

    /// A host announces its leaving and stops.
    pub(crate) fn leave(&mut self, at: usize) {
        self.slots[at + 1] = self.hosts[at].governor.leave().to_vec();
        self.hosts[at].alive = false;
    }

    pub(crate) fn common(&mut self, from: usize, threshold: Threshold) {
        let now = self.time();
        self.slots[0] = self.hosts[from]
            .governor
            .set(now, Mode::On, threshold, 32 << 10)
            .to_vec();
        assert_eq!(self.slots[0].len(), slot::SLOT);
    }

    pub(crate) fn mark(&mut self) {
        self.sums = (0.0, 0.0, 0.0);
        for disk in self.hosts.iter_mut().flat_map(|host| &mut host.disks) {
            disk.done = 0.0;
        }
    }

    /// Mean latency in milliseconds since the mark.
    pub(crate) fn mean_latency(&self) -> f64 {
        self.sums.0 / self.sums.1 * 1e3
    }

    /// Mean rate of the array since the mark.
    pub(crate) fn mean_rate(&self) -> f64 {
        self.sums.2 / self.sums.1
    }

    /// I/Os a second since the mark, of each disk of all hosts.
    pub(crate) fn rates(&self) -> Vec<f64> {
        let disks = self.hosts.iter().flat_map(|host| &host.disks);
        disks.map(|disk| disk.done / self.sums.1).collect()
    }

    /// The worst disk's deviation from its part by shares.
    pub(crate) fn share_error(&self) -> f64 {
        let live = || {
            self.hosts
                .iter()
                .filter(|host| host.alive)
                .flat_map(|host| &host.disks)
        };
        let done: f64 = live().map(|disk| disk.done).sum();
        let shares: f64 = live().map(|disk| f64::from(disk.shares)).sum();
        live()
            .map(|disk| (disk.done / done / (f64::from(disk.shares) / shares) - 1.0).abs())
            .fold(0.0, f64::max)
    }

    /// Runs until every disk has its part by shares within 10 % over 100 ms, and returns how long that took.
    pub(crate) fn settles(&mut self, within: u64) -> u64 {
        let from = self.now;
        while self.now < from + within {
            self.mark();
            self.run(100);
            if self.share_error() < 0.10 {
                return self.now - from;
            }
        }
        u64::MAX
    }

    pub(crate) fn windows(&self) -> Vec<f64> {
        self.hosts
            .iter()
            .map(|host| host.orders.window as f64 / 256.0)
            .collect()
    }

    pub(crate) fn happened(&self, at: usize, is: impl Fn(&GovernorEvent) -> bool) -> usize {
        self.hosts[at]
            .events
            .iter()
            .filter(|(_, event)| is(event))
            .count()
    }
}

impl Disk {
    pub(crate) fn usage(&mut self, latency: f64) -> Usage {
        let total = self.ended + self.reported as f64;
        let ios = total as u64 - self.reported;
        self.reported += ios;
        self.ended -= ios as f64;
        let whole = self.ended.max(0.0);
        self.ended = whole;
        let latency_ns = (latency * 1e9) as u64;
        let mut latency_counts = [0; 32];
        let bucket = (latency_ns / 1_000).max(1).ilog2() as usize + 1;
        latency_counts[bucket.min(31)] = ios as u32;
        let waited = self.waited.max(0.0) as u64;
        let usage = Usage {
            disk: DiskId(self.key as u32),
            key: DiskKey(self.key),
            shares: self.shares,
            reservation: self.reservation,
            limit: self.limit,
            latency_target: self.target,
            span: Span::from_millis(50),
            ios,
            units: ios,
            cost: ios * 256,
            ended_cost: ios * 256,
            bytes: ios * 4096,
            latency_ns: ios * latency_ns,
            latency_max: Span::from_nanos(latency_ns),
            latency_counts,
            in_flight_cost_ns: (self.flown * 256.0) as u128,
            waiting_cost_ns: u128::from(waited) * 256,
            held_ns: [waited, 0, 0, 0, 0],
            active: self.wants > 0.0,
            burst_left: 0,
        };
        self.flown = 0.0;
        self.waited = 0.0;
        usage
    }
}
