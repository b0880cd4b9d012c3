//! A simulated host: its control, its threads' timers, and the events deferred while its daemon is paused.
//!
//! # Always true
//! - A paused host decides nothing. Its events are deferred in order.
//! - An earlier deadline replaces a later one. A replaced timer is ignored when it expires.

use super::{Event, Stage, World};
use crate::control::{self, Control, SlotIo};
use tidegate_core::request::IoId;
use tidegate_core::units::Time;

/// See the module.
pub(super) struct Host {
    pub(super) control: Box<dyn Control>,
    pub(super) up: bool,
    pub(super) paused: bool,
    pub(super) deferred: Vec<Deferred>,
    /// Events of each thread while it has no CPU.
    pub(super) asleep: Vec<Vec<Deferred>>,
    /// Each thread's timer.
    pub(super) armed: Vec<Option<Time>>,
    /// Its control's timer.
    pub(super) alarm: Option<Time>,
    /// Number of starts of its daemon.
    pub(super) incarnation: u64,
    pub(super) in_flight_cost: u64,
    pub(super) in_flight: u64,
}

/// An event of a paused host.
pub(super) enum Deferred {
    /// A guest issued an I/O.
    Issued(IoId),
    /// An I/O has completed.
    Back(IoId),
    /// An I/O on the coordination file has completed.
    SlotIo(SlotIo),
    /// Its control's timer has expired.
    Alarm,
}

impl World<'_> {
    pub(super) fn make_host(&mut self, host: usize, incarnation: u64) -> Host {
        // A random number distinguishes the starts of a daemon.
        let number = self.random.draw() | 1;
        let policy = self.variant.policy;
        let threads = self.scenario.hosts[host].threads;
        Host {
            control: control::control(
                policy,
                self.now,
                self.scenario,
                &self.settings,
                host,
                number,
            ),
            up: false,
            paused: false,
            deferred: Vec::new(),
            asleep: (0..threads).map(|_| Vec::new()).collect(),
            armed: vec![None; threads],
            alarm: None,
            incarnation,
            in_flight_cost: 0,
            in_flight: 0,
        }
    }

    /// A host's daemon starts.
    pub(super) fn join(&mut self, host: usize) {
        let incarnation = self.hosts[host].incarnation + 1;
        self.hosts[host] = self.make_host(host, incarnation);
        self.hosts[host].up = true;
        self.invariants.began(host);
        for disk in 0..self.guests.len() {
            if self.scenario.disks[disk].host == host {
                self.invariants.changed(disk, &self.settings[disk]);
                self.update_guest(disk);
            }
        }
        self.arm(host);
    }

    /// A host dies, with its guests and all their I/Os.
    pub(super) fn die(&mut self, host: usize) {
        self.hosts[host].up = false;
        self.hosts[host].deferred.clear();
        self.hosts[host].asleep.iter_mut().for_each(Vec::clear);
        let own = |disk: usize| {
            let disk = &self.scenario.disks[disk];
            disk.host == host && !disk.unmanaged
        };
        let lost = self.ios.iter().filter(|io| own(io.disk)).map(|io| io.id);
        let lost: Vec<IoId> = lost.collect();
        for id in lost {
            let at_array = self.ios.get_mut(id).is_some_and(|io| {
                let at_array = io.stage == Stage::Started;
                io.stage = Stage::Lost;
                at_array
            });
            if !at_array {
                self.ios.remove(id);
            }
        }
        for disk in 0..self.guests.len() {
            if self.scenario.disks[disk].host == host {
                self.guests[disk].lose();
                self.waiting[disk] = 0;
                self.invariants.waits(host, disk, 0);
            }
        }
    }

    pub(super) fn pause(&mut self, host: usize) {
        self.hosts[host].paused = true;
    }

    /// A paused host continues: it processes the deferred events in order.
    pub(super) fn unpause(&mut self, host: usize) {
        if !std::mem::take(&mut self.hosts[host].paused) {
            return;
        }
        for deferred in std::mem::take(&mut self.hosts[host].deferred) {
            self.resume(host, deferred);
        }
        for thread in 0..self.hosts[host].armed.len() {
            self.pump(host, thread);
        }
        self.arm(host);
    }

    pub(super) fn resume(&mut self, host: usize, deferred: Deferred) {
        match deferred {
            Deferred::Issued(io) => self.offer(io),
            Deferred::Back(io) => self.finished(io),
            Deferred::SlotIo(slot_io) => self.slot_io_noticed(host, slot_io),
            Deferred::Alarm => self.alarm(host),
        }
    }

    pub(super) fn thread_wakes(&mut self, host: usize, thread: usize) {
        let state = &mut self.hosts[host];
        if !state.up || state.paused || state.armed[thread] != Some(self.now) {
            return;
        }
        state.armed[thread] = None;
        self.invariants.woken(self.now, host);
        self.pump(host, thread);
        self.arm(host);
    }

    /// Sets the timers of a host's threads and its control.
    pub(super) fn arm(&mut self, host: usize) {
        for thread in 0..self.hosts[host].armed.len() {
            // A thread without a CPU gets one by itself.
            let has_cpu = self.has_cpu(host, thread);
            let state = &mut self.hosts[host];
            if !state.up {
                return;
            }
            if !has_cpu {
                continue;
            }
            let Some(at) = state.control.deadline(thread) else {
                continue;
            };
            let at = at.max(self.now);
            if state.armed[thread].is_none_or(|armed| at < armed || armed < self.now)
                && at < Time::NEVER
            {
                state.armed[thread] = Some(at);
                self.queue.put(at, Event::Thread { host, thread });
            }
        }
        let state = &mut self.hosts[host];
        if !state.up {
            return;
        }
        let at = state.control.wake_at().max(self.now);
        if at < Time::NEVER && state.alarm.is_none_or(|armed| at < armed) {
            state.alarm = Some(at);
            self.queue.put(at, Event::Alarm { host });
        }
    }
}
