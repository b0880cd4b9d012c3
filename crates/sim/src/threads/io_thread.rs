//! An I/O thread of a run: what it is at, what it has taken, and how its time is counted.

use super::guest::Request;
use super::trace::Idle;
use std::collections::VecDeque;
use tidegate_core::histogram::Histogram;
use tidegate_core::monitor::ThreadState;
use tidegate_core::round_robin::RoundRobin;
use tidegate_model::cpu::TaskId;

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// It sleeps.
    Sleeping,
    /// It works on what it has taken.
    Turning,
    /// It calls guests.
    Calling,
    /// It polls.
    Polling,
}

/// What a turn has taken: a new request, or one that the datastore has completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) vcpu: usize,
    pub(super) request: Request,
    pub(super) completed: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct IoThread {
    pub(super) task: TaskId,
    pub(super) state: ThreadState,
    pub(super) idle: Idle,
    pub(super) doing: Doing,
    /// Completions of datastores that it has not seen.
    pub(super) completions: VecDeque<(usize, Request)>,
    /// Disks that come to it.
    pub(super) inbox: Vec<usize>,
    /// Disks that leave it, and where they go.
    pub(super) leaving: Vec<(usize, usize)>,
    pub(super) disks: Vec<usize>,
    pub(super) taken: Vec<Taken>,
    pub(super) calls: Vec<usize>,
    /// Queues that were polled in the last turn.
    pub(super) queues: Vec<usize>,
    /// Which of them are visited, and for how long.
    pub(super) turns: RoundRobin,
    /// When its timer ends, if it has one: a scan, or a call that is held.
    pub(super) timer: Option<u64>,
    /// Where the next turn begins.
    pub(super) rotation: usize,
    /// The average time without work, a running one with weight 1/8.
    pub(super) gap: u64,
    /// When it ran out of work.
    pub(super) empty_since: u64,
    /// Requests of its disks that are with the datastore.
    pub(super) in_flight: usize,
    /// Run time up to which is counted.
    pub(super) counted: u64,
    pub(super) totals: Totals,
    pub(super) delays: Histogram,
}

/// Counters of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) busy: u64,
    pub(super) polled: u64,
    pub(super) arrivals: u64,
    pub(super) completions: u64,
    pub(super) work: u64,
    pub(super) turns: u64,
    pub(super) wakes: u64,
    pub(super) calls: u64,
    pub(super) kicks: u64,
    pub(super) scans: u64,
}

impl IoThread {
    pub(super) fn new(task: TaskId, idle: Idle) -> IoThread {
        IoThread {
            task,
            state: ThreadState::Parked,
            idle,
            doing: Doing::Sleeping,
            completions: VecDeque::new(),
            inbox: Vec::new(),
            leaving: Vec::new(),
            disks: Vec::new(),
            taken: Vec::new(),
            calls: Vec::new(),
            queues: Vec::new(),
            turns: RoundRobin::new(),
            timer: None,
            rotation: 0,
            gap: 0,
            empty_since: 0,
            in_flight: 0,
            counted: 0,
            totals: Totals::default(),
            delays: Histogram::new(),
        }
    }

    /// Counts run time up to `run` as what the thread has been at.
    pub(super) fn count(&mut self, run: u64) {
        let passed = run - self.counted;
        self.counted = run;
        match self.doing {
            Doing::Polling => self.totals.polled += passed,
            _ => self.totals.busy += passed,
        }
    }

    /// Work has come after a time without any.
    pub(super) fn note_gap(&mut self, now: u64) {
        let gap = now - self.empty_since;
        self.gap = (self.gap * 7 + gap) / 8;
    }
}
