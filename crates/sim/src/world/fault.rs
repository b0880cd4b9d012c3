//! What goes wrong in the world, and how it is mended.
//!
//! Faults of a stretch of time are looked up when they could show: a write of a mute host fails, a read of a deaf one.
//!
//! # Always true
//! - Chance is drawn only while a fault holds, so a scenario without faults does not depend on their code.

use super::World;
use crate::scenario::{Fault, FaultKind};
use tidegate_core::units::Span;

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
