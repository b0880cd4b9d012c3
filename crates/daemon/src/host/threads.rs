//! I/O threads at run time: their states, which of them run, and disks that move between them.

use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::thread::ThreadState;
use tidegate_engine::monitor::{self, Monitor};
use tidegate_engine::{Moved, Statistics};

use super::{Disk, Host, problem};
use crate::os_error::Outcome;

/// The number of an I/O thread as the engine has it.
fn index(thread: u32) -> usize {
    usize::try_from(thread).unwrap_or(usize::MAX)
}

/// The number of an I/O thread as users have it.
pub(super) fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

impl Host {
    /// The states of all I/O threads that may run, by number.
    pub(crate) fn thread_states(&self) -> Outcome<Vec<ThreadState>> {
        self.with(|engine| Ok(engine.thread_states().into_iter().map(state).collect()))
    }

    /// The number of I/O threads in use: those that have disks, or may get some.
    pub(crate) fn used_threads(&self) -> Outcome<u32> {
        let states = self.thread_states()?.into_iter();
        use ThreadState::{Active, Leaving, Locked};
        let is_used = |state: &ThreadState| matches!(state, Active | Locked | Leaving);
        Ok(number(states.filter(is_used).count()))
    }

    /// The state of the monitor, which places disks on threads.
    pub(crate) fn monitor(&self) -> Outcome<monitor::Status> {
        self.with(|engine| running(engine.monitor()).map(Monitor::status))
    }

    /// Sets how the monitor decides.
    pub(crate) fn set_monitor(&self, settings: monitor::Settings) -> Outcome<()> {
        self.with(|engine| {
            running(engine.monitor())?.set(settings);
            Ok(())
        })
    }

    /// The counters of I/O threads and disks. Reading them wakes no thread.
    pub(crate) fn statistics(&self) -> Outcome<Statistics> {
        self.with(|engine| Ok(engine.statistics()))
    }

    /// The CPU that a thread is pinned to, if any.
    pub(crate) fn thread_cpu(&self, thread: u32) -> Option<u32> {
        let nth = index(thread);
        (!self.cpus.is_empty()).then(|| self.cpus[nth % self.cpus.len()])
    }

    /// The thread that was chosen for new disks.
    pub(crate) fn default_thread(&self) -> Outcome<Option<u32>> {
        self.with(|engine| Ok(engine.default_thread().map(number)))
    }

    /// Chooses the thread for new disks; `None`: each goes to the active one with the fewest.
    pub(crate) fn set_default_thread(&self, thread: Option<u32>) -> Outcome<()> {
        self.with(|engine| {
            let set = engine.set_default_thread(thread.map(index));
            set.map_err(|e| problem(&e))
        })
    }

    /// Takes the lowest parked thread into use, and returns its number.
    pub(crate) fn create_thread(&self) -> Outcome<u32> {
        self.with(|engine| engine.create_thread().map(number).map_err(|e| problem(&e)))
    }

    /// Parks a locked thread without disks, once its I/O in flight has ended.
    pub(crate) fn remove_thread(&self, thread: u32) -> Outcome<()> {
        self.with(|engine| engine.remove_thread(index(thread)).map_err(|e| problem(&e)))
    }

    /// Locks a thread: it gets no more disks.
    pub(crate) fn lock_thread(&self, thread: u32) -> Outcome<()> {
        self.with(|engine| engine.lock_thread(index(thread)).map_err(|e| problem(&e)))
    }

    /// Unlocks a thread.
    pub(crate) fn unlock_thread(&self, thread: u32) -> Outcome<()> {
        self.with(|engine| engine.unlock_thread(index(thread)).map_err(|e| problem(&e)))
    }
}

impl Disk {
    /// Moves it to another I/O thread with its I/O in flight.
    pub(crate) fn move_to(&self, thread: u32) -> Outcome<Moved> {
        self.disk.move_to(index(thread)).map_err(|e| problem(&e))
    }
}

/// The monitor, unless the engine is stopping.
fn running(monitor: Option<&Monitor>) -> Outcome<&Monitor> {
    monitor.ok_or_else(|| {
        Problem::new(
            ProblemCode::Stopping,
            "the monitor of I/O threads does not run",
        )
        .remedy("start the daemon again: tidegate serve")
    })
}

fn state(state: tidegate_engine::ThreadState) -> ThreadState {
    match state {
        tidegate_engine::ThreadState::Active => ThreadState::Active,
        tidegate_engine::ThreadState::Locked => ThreadState::Locked,
        tidegate_engine::ThreadState::Leaving => ThreadState::Leaving,
        tidegate_engine::ThreadState::Draining => ThreadState::Draining,
        tidegate_engine::ThreadState::Parked => ThreadState::Parked,
    }
}
