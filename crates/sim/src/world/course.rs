//! The scheduled events of a scenario: phases, bins, repairs.
//!
//! # Always true
//! - Once everything is mended nothing goes wrong any more, and every disk that takes part asks.

use super::{HEALED, Happens, World};
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
            self.move_guest(disk);
        }
    }

    /// Lets a guest do what its phase, host and part in the run say.
    pub(super) fn move_guest(&mut self, disk: usize) {
        let host = self.scenario.disks[disk].host;
        let active = self.scenario.phases[self.phase].active[disk] || self.healed.is_some();
        if active && self.present[disk] && self.hosts[host].up {
            let mut wants = std::mem::take(&mut self.wants);
            self.guests[disk].start(self.now, &mut wants);
            self.grant(disk, wants);
        } else {
            self.guests[disk].stop();
        }
    }

    pub(super) fn sample(&mut self) {
        if self.healed.is_some() {
            return;
        }
        let hosts = self.hosts.iter().map(|host| {
            let standing = host.control.standing();
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
            for says in host.control.told() {
                let says = format!("{}: {says}", self.scenario.hosts[place].name);
                self.results.told.push((self.now, says));
            }
        }
        self.queue.put(self.now + BIN, Happens::Sample);
    }

    /// Everything that was broken is mended, and everybody asks.
    pub(super) fn heal(&mut self) {
        self.faults.clear();
        self.array.resume(self.now.as_nanos());
        self.array.set_speed(self.now.as_nanos(), 1_000);
        self.healed = Some(vec![0; self.guests.len()]);
        for host in 0..self.hosts.len() {
            if !self.hosts[host].up {
                self.join(host);
            }
            self.unpause(host);
            self.give_cpu(host);
        }
        for disk in 0..self.guests.len() {
            self.move_guest(disk);
        }
    }

    /// Once everything was mended, every disk must have been served.
    pub(super) fn check_progress(&mut self) {
        let healed = self.healed.take().unwrap_or_default();
        for (disk, ended) in healed.iter().enumerate() {
            if *ended == 0 && self.present[disk] {
                let name = &self.scenario.disks[disk].name;
                let says =
                    format!("disk {name} was not served within {HEALED} of everything being whole");
                self.invariants.breach(self.now, says);
            }
        }
        self.healed = Some(healed);
    }
}
