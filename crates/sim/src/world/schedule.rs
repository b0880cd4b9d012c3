//! The scheduled events of a scenario: phases, bins, repairs.
//!
//! # Always true
//! - After the repair there are no faults, and every disk in the run is active.

use super::{Event, REPAIRED, World};
use crate::results::{BIN, HostBin};

impl World<'_> {
    pub(super) fn begin_phase(&mut self, phase: usize) {
        self.phase = phase;
        let plan = &self.scenario.phases[phase];
        self.array.set_speed(self.now.as_nanos(), plan.speed);
        for (disk, settings) in &plan.set {
            self.settings[*disk] = settings.clone();
            self.invariants.changed(*disk, settings);
            let host = self.scenario.disks[*disk].host;
            self.hosts[host].control.change(self.now, *disk, settings);
            self.arm(host);
        }
        for disk in 0..self.guests.len() {
            self.update_guest(disk);
        }
    }

    /// Starts or stops a guest according to the phase, its host and the run.
    pub(super) fn update_guest(&mut self, disk: usize) {
        let host = self.scenario.disks[disk].host;
        let active = self.scenario.phases[self.phase].active[disk] || self.repaired.is_some();
        if active && self.present[disk] && self.hosts[host].up {
            let mut actions = std::mem::take(&mut self.actions);
            self.guests[disk].start(self.now, &mut actions);
            self.execute(disk, actions);
        } else {
            self.guests[disk].stop();
        }
    }

    pub(super) fn sample(&mut self) {
        if self.repaired.is_some() {
            return;
        }
        let hosts = self.hosts.iter().map(|host| {
            let standing = host.control.state();
            HostBin {
                window: standing.window.unwrap_or(256.0),
                in_flight: host.in_flight,
                latency_us: standing.latency.as_micros(),
                threshold_us: standing.threshold.as_micros(),
                engaged: standing.engaged,
            }
        });
        self.results.sample(self.array.outstanding(), hosts);
        for (place, host) in self.hosts.iter_mut().enumerate() {
            for message in host.control.take_events() {
                let message = format!("{}: {message}", self.scenario.hosts[place].name);
                self.results.events.push((self.now, message));
            }
        }
        self.queue.put(self.now + BIN, Event::Sample);
    }

    /// Repairs all faults and starts all guests.
    pub(super) fn repair(&mut self) {
        self.faults.clear();
        self.array.resume(self.now.as_nanos());
        self.array.set_speed(self.now.as_nanos(), 1_000);
        self.repaired = Some(vec![0; self.guests.len()]);
        for host in 0..self.hosts.len() {
            if !self.hosts[host].up {
                self.join(host);
            }
            self.unpause(host);
            self.give_cpu(host);
        }
        for disk in 0..self.guests.len() {
            self.update_guest(disk);
        }
    }

    /// After the repair, every disk must have been served.
    pub(super) fn check_progress(&mut self) {
        let repaired = self.repaired.take().unwrap_or_default();
        for (disk, ended) in repaired.iter().enumerate() {
            if *ended == 0 && self.present[disk] {
                let name = &self.scenario.disks[disk].name;
                let message = format!("disk {name} was not served within {REPAIRED} of the repair");
                self.invariants.breach(self.now, message);
            }
        }
        self.repaired = Some(repaired);
    }
}
