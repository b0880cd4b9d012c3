//! The I/O threads' policy, as the engine's monitor runs it: its state and its decisions.

use super::Host;
use tidegate_engine::ThreadState;
use tidegate_engine::monitor::{Event, Monitor, Status};

impl Host {
    /// Number of I/O threads that take disks; none once they are stopped.
    pub(crate) fn active_threads(&self) -> u32 {
        let states = self.with(|engine| Ok(engine.thread_states()));
        let states = states.unwrap_or_default();
        let active = states.iter().filter(|state| **state == ThreadState::Active);
        u32::try_from(active.count()).unwrap_or(u32::MAX)
    }

    /// What the monitor has done; none once it is stopped.
    pub(crate) fn monitor_status(&self) -> Option<Status> {
        let status = self.with(|engine| Ok(engine.monitor().map(Monitor::status)));
        status.ok().flatten()
    }

    /// Its decisions since the last call.
    pub(crate) fn take_decisions(&self) -> Vec<Event> {
        let events = self.with(|engine| Ok(engine.monitor().map(Monitor::take_events)));
        events.ok().flatten().unwrap_or_default()
    }
}
