//! The scheduled events of a scenario with layouts: phases with their changes of members, bins, the end.
//!
//! # Always true
//! - After the scenario's end, every disk in the run is active.

use super::{Event, World};
use crate::control::ours::{id, policy};
use crate::results::{BIN, HostBin};
use crate::world::REPAIRED;
use tidegate_core::layout::{LayoutOrder, Target};
use tidegate_core::shard;

impl World<'_> {
    pub(super) fn begin_phase(&mut self, phase: usize) {
        self.phase = phase;
        let plan = &self.scenario.phases[phase];
        let now = self.now.as_nanos();
        for datastore in &mut self.datastores {
            datastore.array.set_speed(now, plan.speed);
        }
        for (disk, settings) in &plan.set {
            self.disks[*disk].settings = settings.clone();
            let policy = shard::Event::Policy {
                disk: id(*disk),
                policy: policy(settings),
            };
            self.deliver(*disk, policy);
            let host = self.scenario.disks[*disk].host;
            for array in 0..self.hosts[host].governors.len() {
                self.with_governor(host, array, |governor, now, _, _| governor.check_now(now));
            }
        }
        for change in &plan.members {
            if self.is_present(change) {
                self.change_member(change.disk, change.member, change.removes);
            }
        }
        self.begin_reattaching();
        for disk in 0..self.disks.len() {
            self.update_guest(disk);
        }
    }

    /// As `tidegate disk member remove` and `add` do: a member is dropped, or gets an empty image and is rebuilt.
    fn change_member(&mut self, disk: usize, member: u8, removes: bool) {
        let order = match removes {
            true => {
                self.disks[disk].removed |= 1 << member;
                LayoutOrder::Drop(Target(member))
            }
            false => {
                self.blocks
                    .retain(|(of, number, _), _| (*of, *number) != (disk, member));
                LayoutOrder::Replace(Target(member))
            }
        };
        let disk_id = id(disk);
        self.deliver(
            disk,
            shard::Event::LayoutOrder {
                disk: disk_id,
                order,
            },
        );
    }

    /// Starts or stops a guest according to the phase and the run.
    pub(super) fn update_guest(&mut self, disk: usize) {
        let active = self.scenario.phases[self.phase].active[disk] || self.after.is_some();
        let of = &mut self.disks[disk];
        if active && of.present && of.opened && !self.reattaches {
            let mut actions = std::mem::take(&mut self.actions);
            of.guest.start(self.now, &mut actions);
            self.execute(disk, actions);
        } else {
            of.guest.stop();
        }
    }

    pub(super) fn sample(&mut self) {
        if self.after.is_some() {
            return;
        }
        let hosts = self.hosts.iter().map(|host| {
            let state = host.governors.first();
            let state = state.map(|first| first.governor.state());
            let state = state.unwrap_or_default();
            HostBin {
                window: state.window.unwrap_or(256.0),
                in_flight: host.in_flight,
                latency_us: state.latency.as_micros(),
                threshold_us: state.threshold.as_micros(),
                engaged: state.engaged,
            }
        });
        let arrays = self.datastores.iter();
        let outstanding = arrays.map(|datastore| datastore.array.outstanding()).sum();
        self.results.sample(outstanding, hosts);
        for (place, host) in self.hosts.iter_mut().enumerate() {
            for (array, of) in host.governors.iter_mut().enumerate() {
                for message in of.governor.take_events() {
                    let name = &self.scenario.hosts[place].name;
                    let message = format!("{name}, array {array}: {message}");
                    self.results.events.push((self.now, message));
                }
            }
        }
        self.queue.put(self.now + BIN, Event::Sample);
    }

    /// The scenario ends: all guests are active once more.
    pub(super) fn scenario_ends(&mut self) {
        let now = self.now.as_nanos();
        for datastore in &mut self.datastores {
            datastore.array.set_speed(now, 1_000);
        }
        self.after = Some(vec![0; self.disks.len()]);
        for disk in 0..self.disks.len() {
            self.update_guest(disk);
        }
    }

    /// After the scenario's end, every disk must have been served.
    pub(super) fn check_progress(&mut self) {
        let after = self.after.take().unwrap_or_default();
        for (disk, answered) in after.iter().enumerate() {
            if *answered == 0 && self.disks[disk].present {
                let name = &self.scenario.disks[disk].name;
                let message = format!("disk {name} was not served within {REPAIRED} of the end");
                self.invariants.breach(self.now, message);
            }
        }
        self.after = Some(after);
    }
}
