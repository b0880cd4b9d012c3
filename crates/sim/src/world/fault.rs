//! Faults of the world, and their repair.
//!
//! A lasting fault is checked at each operation that it affects: a write of a mute host fails, a read of a deaf one.
//!
//! # Always true
//! - Random numbers are drawn only while a fault is active, so a scenario without faults does not depend on this code.

use super::{Event, World};
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
                (FaultKind::Starved, true) => self.next_slice(host, fault),
                (FaultKind::Starved, false) => self.give_cpu(host),
                // A stall ends by itself. A clock jump has no effect. The other faults are checked when needed.
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

    /// Whether an I/O thread has a CPU now.
    pub(super) fn has_cpu(&self, host: usize, thread: usize) -> bool {
        let mut faults = self.faults.iter();
        let starved =
            |fault: &&&Fault| fault.kind == FaultKind::Starved && fault.hosts.contains(&host);
        let Some(fault) = faults.find(starved) else {
            return true;
        };
        // A single thread has it half of the time.
        let slices = self.hosts[host].armed.len().max(2);
        let slice = self.now.as_nanos() / fault.by.as_nanos();
        slice % slices as u64 == thread as u64
    }

    /// The next of a starved host's threads gets the CPU.
    pub(super) fn next_slice(&mut self, host: usize, fault: usize) {
        let plan = &self.scenario.faults[fault];
        if !self.faults.iter().any(|other| std::ptr::eq(*other, plan)) {
            return;
        }
        let by = plan.by.as_nanos();
        let next = (self.now.as_nanos() / by + 1) * by;
        self.queue
            .put(Time::from_nanos(next), Event::TimeSlice { host, fault });
        self.give_cpu(host);
    }

    /// Threads that have a CPU process the events of the time without one.
    pub(super) fn give_cpu(&mut self, host: usize) {
        for thread in 0..self.hosts[host].armed.len() {
            if !self.has_cpu(host, thread) {
                continue;
            }
            for deferred in std::mem::take(&mut self.hosts[host].asleep[thread]) {
                self.resume(host, deferred);
            }
            self.pump(host, thread);
        }
        self.arm(host);
    }

    /// The active fault of this kind on a host, if any.
    fn active_fault(&mut self, kind: FaultKind, host: usize) -> Option<&Fault> {
        let mut faults = self.faults.iter();
        let fault = faults.find(|fault| fault.kind == kind && fault.hosts.contains(&host))?;
        self.random.chance(fault.chance).then_some(*fault)
    }

    pub(super) fn is_deaf(&mut self, host: usize) -> bool {
        self.active_fault(FaultKind::Deaf, host).is_some()
    }

    /// Applies a host's write of its slot that has reached the array. Returns whether it succeeded.
    pub(super) fn write_slot(&mut self, host: usize, bytes: Vec<u8>) -> bool {
        if self.active_fault(FaultKind::Mute, host).is_some() {
            return false;
        }
        let late = self
            .active_fault(FaultKind::Delayed, host)
            .map_or(Span::ZERO, |fault| fault.by);
        let torn = self.active_fault(FaultKind::Torn, host).is_some();
        self.file.write(host, self.now + late, bytes, torn);
        true
    }
}
