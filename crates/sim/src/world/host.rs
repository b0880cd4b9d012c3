//! A simulated host: its control, its threads' wake-ups, and I/Os that wait while its daemon is stopped.
//!
//! # Always true
//! - A paused host decides nothing; what happens to it meanwhile is kept in order.
//! - An earlier deadline replaces a later one; a moment that was replaced is ignored when it comes.

use super::{Happens, Stage, World};
use crate::control::{self, Control, Errand};
use tidegate_core::request::IoId;
use tidegate_core::units::Time;

/// See the module.
pub(super) struct Host {
    pub(super) control: Box<dyn Control>,
    pub(super) up: bool,
    pub(super) paused: bool,
    pub(super) held: Vec<Held>,
    /// What waits for each thread while that has no processor.
    pub(super) asleep: Vec<Vec<Held>>,
    /// When each thread is to be woken.
    pub(super) armed: Vec<Option<Time>>,
    /// When its control is.
    pub(super) alarm: Option<Time>,
    /// Starts of its daemon.
    pub(super) incarnation: u64,
    pub(super) in_flight_cost: u64,
    pub(super) in_flight: u64,
}

/// What happened to a paused host.
pub(super) enum Held {
    /// A guest asked.
    Asked(IoId),
    /// An I/O came back.
    Back(IoId),
    /// So did one on the coordination file.
    Errand(Errand),
    /// Its control had a moment of its own.
    Alarm,
}

impl World<'_> {
    pub(super) fn make_host(&mut self, host: usize, incarnation: u64) -> Host {
        // A start of a daemon is told from others by a random number.
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
            held: Vec::new(),
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
                self.move_guest(disk);
            }
        }
        self.arm(host);
    }

    /// A host is gone, with its guests and all that they asked for.
    pub(super) fn die(&mut self, host: usize) {
        self.hosts[host].up = false;
        self.hosts[host].held.clear();
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

    /// A paused host goes on: it takes notice of what happened meanwhile, in order.
    pub(super) fn unpause(&mut self, host: usize) {
        if !std::mem::take(&mut self.hosts[host].paused) {
            return;
        }
        for held in std::mem::take(&mut self.hosts[host].held) {
            self.held_no_more(host, held);
        }
        for thread in 0..self.hosts[host].armed.len() {
            self.pump(host, thread);
        }
        self.arm(host);
    }

    pub(super) fn held_no_more(&mut self, host: usize, held: Held) {
        match held {
            Held::Asked(io) => self.offer(io),
            Held::Back(io) => self.finished(io),
            Held::Errand(errand) => self.errand_noticed(host, errand),
            Held::Alarm => self.alarm(host),
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

    /// Puts into the queue when a host's threads and its control want to be woken.
    pub(super) fn arm(&mut self, host: usize) {
        for thread in 0..self.hosts[host].armed.len() {
            // Its turn comes by itself.
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
                self.queue.put(at, Happens::Thread { host, thread });
            }
        }
        let state = &mut self.hosts[host];
        if !state.up {
            return;
        }
        let at = state.control.alarm().max(self.now);
        if at < Time::NEVER && state.alarm.is_none_or(|armed| at < armed) {
            state.alarm = Some(at);
            self.queue.put(at, Happens::Alarm { host });
        }
    }
}
