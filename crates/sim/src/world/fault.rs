//! Faults of the world, and their repair.
//!
//! Faults of a stretch of time are looked up when they could show: a write of a mute host fails, a read of a deaf one.
//!
//! # Always true
//! - Chance is drawn only while a fault holds, so a scenario without faults does not depend on their code.

use super::{Happens, World};
use crate::scenario::{Fault, FaultKind};
use tidegate_core::units::{Span, Time};

impl World<'_> {
    pub(super) fn fault(&mut self, fault: usize, begins: bool) {
        let plan = &self.scenario.faults[fault];
        match begins {
            true => self.faults.push(plan),
            false => self.faults.retain(|other| !std::ptr::eq(*other, plan)),
        }
        for &host in &plan.hosts {
            match (plan.kind, begins) {
                (FaultKind::Dead, true) => self.die(host),
                (FaultKind::Dead, false) => self.join(host),
                (FaultKind::Paused, true) => self.pause(host),
                (FaultKind::Paused, false) => self.unpause(host),
                (FaultKind::Stalled, true) => {
                    let until = plan.ends.as_nanos();
                    self.array.stall(self.now.as_nanos(), until);
                }
                (FaultKind::Starved, true) => self.turn(host, fault),
                (FaultKind::Starved, false) => self.give_cpu(host),
                // A stall ends by itself; a clock that jumps is seen by nobody; the rest is looked up.
                (
                    FaultKind::Stalled
                    | FaultKind::Clock
                    | FaultKind::Mute
                    | FaultKind::Deaf
                    | FaultKind::Torn
                    | FaultKind::Delayed,
                    _,
                ) => {}
            }
        }
    }

    /// Whether an I/O thread has a processor now.
    pub(super) fn has_cpu(&self, host: usize, thread: usize) -> bool {
        let mut faults = self.faults.iter();
        let starved =
            |fault: &&&Fault| fault.kind == FaultKind::Starved && fault.hosts.contains(&host);
        let Some(fault) = faults.find(starved) else {
            return true;
        };
        // One thread alone has it half of the time.
        let turns = self.hosts[host].armed.len().max(2);
        let turn = self.now.as_nanos() / fault.by.as_nanos();
        turn % turns as u64 == thread as u64
    }

    /// The next of a starved host's threads has the processor.
    pub(super) fn turn(&mut self, host: usize, fault: usize) {
        let plan = &self.scenario.faults[fault];
        if !self.faults.iter().any(|other| std::ptr::eq(*other, plan)) {
            return;
        }
        let by = plan.by.as_nanos();
        let next = (self.now.as_nanos() / by + 1) * by;
        self.queue
            .put(Time::from_nanos(next), Happens::Turn { host, fault });
        self.give_cpu(host);
    }

    /// Threads that have a processor take notice of what happened while they had none.
    pub(super) fn give_cpu(&mut self, host: usize) {
        for thread in 0..self.hosts[host].armed.len() {
            if !self.has_cpu(host, thread) {
                continue;
            }
            for held in std::mem::take(&mut self.hosts[host].asleep[thread]) {
                self.held_no_more(host, held);
            }
            self.pump(host, thread);
        }
        self.arm(host);
    }

    /// The fault of this kind that befalls a host now, if one does.
    fn befalls(&mut self, kind: FaultKind, host: usize) -> Option<&Fault> {
        let mut faults = self.faults.iter();
        let fault = faults.find(|fault| fault.kind == kind && fault.hosts.contains(&host))?;
        self.random.chance(fault.chance).then_some(*fault)
    }

    pub(super) fn befalls_deaf(&mut self, host: usize) -> bool {
        self.befalls(FaultKind::Deaf, host).is_some()
    }

    /// A host's write of its slot has reached the array; whether it went well.
    pub(super) fn write_slot(&mut self, host: usize, bytes: Vec<u8>) -> bool {
        if self.befalls(FaultKind::Mute, host).is_some() {
            return false;
        }
        let late = self
            .befalls(FaultKind::Delayed, host)
            .map_or(Span::ZERO, |fault| fault.by);
        let torn = self.befalls(FaultKind::Torn, host).is_some();
        self.file.write(host, self.now + late, bytes, torn);
        true
    }
}
