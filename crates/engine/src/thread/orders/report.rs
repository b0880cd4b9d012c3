//! What an I/O thread tells of itself and its disks.

use crate::sys::os;
use crate::thread::IoThread;
use tidegate_core::filter::stats::Pulse;
use tidegate_core::request::DiskId;
use tidegate_core::shard::DiskReport;
use tidegate_core::units::{Span, Time};

/// What an I/O thread tells of itself.
#[derive(Clone, Debug)]
pub struct ThreadReport {
    /// Its name.
    pub name: String,
    /// How long it has lived.
    pub age: Span,
    /// How much of that it worked.
    pub busy: Span,
    /// How much it looked for work in vain.
    pub spinning: Span,
    /// How much it slept.
    pub sleeping: Span,
    /// Turns, and those among them that found nothing.
    pub turns: u64,
    /// Turns that found nothing.
    pub empty_turns: u64,
    /// Times it was woken.
    pub wakes: u64,
    /// CPU time that the system counts for it.
    pub cpu: Span,
    /// I/Os inside its shard.
    pub in_flight: usize,
    /// Completions that matched no I/O: must be zero.
    pub strays: u64,
    /// Its disks.
    pub disks: Vec<(DiskId, DiskReport)>,
    /// Guests' queues on it.
    pub queues: usize,
    /// NBD clients on it.
    pub connections: usize,
}

/// The sums of what an I/O thread and its disks have done: small enough to be asked for every second.
#[derive(Clone, Debug)]
pub struct ThreadPulse {
    /// When it was read.
    pub now: Time,
    /// How long the thread has lived.
    pub age: Span,
    /// How much of that it worked.
    pub busy: Span,
    /// How much it looked for work in vain.
    pub spinning: Span,
    /// Its disks, each with the sums of its topmost filter that measures, if it has one.
    pub disks: Vec<(DiskId, Option<Pulse>)>,
}

impl IoThread {
    pub(super) fn pulse(&self) -> ThreadPulse {
        let now = os::now();
        let disks = (0u32..).map(DiskId).take(self.disks.len());
        ThreadPulse {
            now,
            age: self.tally.age(now),
            busy: self.tally.busy,
            spinning: self.tally.spinning,
            disks: disks
                .filter_map(|id| Some((id, self.desk.shard.pulse(id)?)))
                .collect(),
        }
    }

    pub(super) fn report(&self) -> ThreadReport {
        let now = os::now();
        let disks = (0u32..).map(DiskId).take(self.disks.len());
        let (_, queues, connections) = self.census();
        ThreadReport {
            name: self.name.clone(),
            age: self.tally.age(now),
            busy: self.tally.busy,
            spinning: self.tally.spinning,
            sleeping: self.tally.sleeping,
            turns: self.tally.turns,
            empty_turns: self.tally.empty_turns,
            wakes: self.tally.wakes,
            cpu: Span::from_nanos(os::thread_cpu_ns()),
            in_flight: self.desk.shard.in_flight(),
            strays: self.desk.shard.strays(),
            disks: disks
                .filter_map(|id| Some((id, self.desk.shard.report(id)?)))
                .collect(),
            queues,
            connections,
        }
    }
}
