//! The monitor of a world: it takes snapshots, asks the policy of the core, and carries out what that decides.

use super::super::outcome::Change;
use super::super::trace::Idle;
use super::{Event, World};
use tidegate_core::monitor::{
    Action, Class, Decision, DiskLoad, HostLoad, Policy, Snapshot, ThreadLoad, ThreadState,
};
use tidegate_core::request::DiskId;
use tidegate_core::units::{Span, Time};

/// Ticks of the processor and threads at the last snapshot.
#[derive(Default)]
struct Last {
    at: u64,
    disks_at: u64,
    idle: u64,
    guests_run: u64,
    guests_delay: u64,
    threads: Vec<Seen>,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    busy: u64,
    polled: u64,
    wait: u64,
    arrivals: u64,
    completions: u64,
    work: u64,
}

/// A policy with what it saw last.
pub(super) struct Monitor<'a> {
    policy: Box<dyn Policy + 'a>,
    last: Last,
    decisions: Vec<Decision>,
}

impl<'a> Monitor<'a> {
    pub(super) fn new(policy: Box<dyn Policy + 'a>) -> Monitor<'a> {
        Monitor {
            policy,
            last: Last::default(),
            decisions: Vec::new(),
        }
    }

    /// When the next snapshot is due.
    pub(super) fn after(&self) -> Option<u64> {
        Some(self.policy.next()?.after.as_nanos())
    }
}

impl World<'_> {
    /// Takes a snapshot, and does what the policy decides.
    pub(super) fn monitor(&mut self) {
        let Some(mut monitor) = self.monitor.take() else {
            return;
        };
        let disks = monitor.policy.next().is_some_and(|wish| wish.disks);
        let snapshot = self.snapshot(&mut monitor.last, disks);
        let mut decisions = std::mem::take(&mut monitor.decisions);
        monitor.policy.decide(&snapshot, &mut decisions);
        for decision in decisions.drain(..) {
            self.carry_out(&decision);
        }
        self.drain_threads();
        monitor.decisions = decisions;
        if let Some(after) = monitor.after() {
            self.put(self.now + after, Event::Monitor);
        }
        self.monitor = Some(monitor);
    }

    fn snapshot(&mut self, last: &mut Last, disks: bool) -> Snapshot {
        let now = self.now;
        let since = |value: u64, before: &mut u64| {
            Span::from_nanos(value - std::mem::replace(before, value))
        };
        let span = since(now, &mut last.at);
        let host = HostLoad {
            cpus: u16::try_from(self.cpus.cores()).unwrap_or(u16::MAX),
            ..HostLoad::default()
        };
        last.threads.resize(self.threads.len(), Seen::default());
        let mut threads = Vec::with_capacity(self.threads.len());
        for thread in 0..self.threads.len() {
            threads.push(self.thread_load(thread, span, &mut last.threads[thread]));
        }
        let mut snapshot = Snapshot {
            now: Time::from_nanos(now),
            span,
            host,
            threads,
            disks_span: None,
            disks: Vec::new(),
        };
        if disks {
            snapshot.disks_span = Some(since(now, &mut last.disks_at));
            let cores = 0..self.cpus.cores();
            let idle = cores.map(|core| self.cpus.core_times(now, core).idle).sum();
            let vcpus = self.vcpus.iter();
            let times = vcpus.map(|vcpu| self.cpus.times(now, vcpu.task));
            let (run, delay) = times.fold((0, 0), |(run, delay), times| {
                (run + times.run, delay + times.wait)
            });
            snapshot.host.idle = since(idle, &mut last.idle);
            snapshot.host.guests_run = Some(since(run, &mut last.guests_run));
            snapshot.host.guests_delay = Some(since(delay, &mut last.guests_delay));
            let all = 0..self.disks.len();
            snapshot.disks = all.map(|disk| self.disk_load(disk)).collect();
        }
        snapshot
    }

    fn thread_load(&mut self, thread: usize, span: Span, seen: &mut Seen) -> ThreadLoad {
        let times = self.cpus.times(self.now, self.threads[thread].task);
        self.threads[thread].count(times.run);
        let standing = self.standing(thread);
        let own = &mut self.threads[thread];
        let since = |value: u64, before: &mut u64| value - std::mem::replace(before, value);
        let busy = Span::from_nanos(since(own.totals.busy, &mut seen.busy));
        let spin = Span::from_nanos(since(own.totals.polled, &mut seen.polled));
        let stolen = Span::from_nanos(since(times.wait, &mut seen.wait));
        let load = ThreadLoad {
            state: own.state,
            busy,
            spin,
            stolen,
            sleep: Span::from_nanos(
                span.as_nanos()
                    .saturating_sub((busy + spin + stolen).as_nanos()),
            ),
            delay_p99: own.delays.quantile(9_900),
            standing,
            arrivals: since(own.totals.arrivals, &mut seen.arrivals),
            completions: since(own.totals.completions, &mut seen.completions),
            work: since(own.totals.work, &mut seen.work),
        };
        own.delays.clear();
        load
    }

    /// Whether a request that the last snapshot found in a queue of the thread is there still.
    fn standing(&mut self, thread: usize) -> bool {
        let mut standing = false;
        for at in 0..self.threads[thread].disks.len() {
            let disk = self.threads[thread].disks[at];
            for at in 0..self.disks[disk].vcpus.len() {
                let vcpu = &mut self.vcpus[self.disks[disk].vcpus[at]];
                standing |= vcpu.taken < vcpu.seen;
                vcpu.seen = vcpu.newest();
            }
        }
        standing
    }

    fn disk_load(&mut self, disk: usize) -> DiskLoad {
        let busy_queues = self.disks[disk].vcpus.len();
        let own = &mut self.disks[disk];
        let take = |value: &mut u64| std::mem::take(value);
        let arrivals = take(&mut own.arrivals);
        let queues = if arrivals > 0 { busy_queues } else { 0 };
        let load = DiskLoad {
            disk: DiskId(u32::try_from(disk).unwrap_or(u32::MAX)),
            thread: u16::try_from(own.thread).unwrap_or(u16::MAX),
            busy: Span::from_nanos(take(&mut own.busy)),
            arrivals,
            completions: take(&mut own.completions),
            work: take(&mut own.work),
            bytes: take(&mut own.bytes),
            outstanding: Span::from_nanos(take(&mut own.outstanding)),
            delay_p99: own.delays.quantile(9_900),
            queues: u16::try_from(queues).unwrap_or(u16::MAX),
            class: Class::Normal,
            moved: own.moved.map(Time::from_nanos),
        };
        own.delays.clear();
        load
    }

    fn carry_out(&mut self, decision: &Decision) {
        let before = self.active();
        let mut moved = false;
        match decision.action {
            Action::Move { disk, to } => {
                let disk = usize::try_from(disk.0).unwrap_or(usize::MAX);
                moved = self.move_disk(disk, usize::from(to));
            }
            Action::Activate { thread } => self.set_state(usize::from(thread), ThreadState::Active),
            Action::Lock { thread } => self.set_state(usize::from(thread), ThreadState::Leaving),
            Action::Park { thread } => {
                let own = &self.threads[usize::from(thread)];
                if own.state == ThreadState::Leaving && self.is_empty(usize::from(thread)) {
                    self.set_state(usize::from(thread), ThreadState::Draining);
                }
            }
            Action::Spin { on } => {
                for thread in &mut self.threads {
                    thread.idle = if on { self.set_up.idle } else { Idle::Sleep };
                }
            }
            Action::Stay => {}
        }
        let threads = self.active();
        self.outcome.changes.push(Change {
            at: self.now,
            threads,
            resized: threads != before,
            moved,
            words: decision.to_string(),
        });
    }

    fn set_state(&mut self, thread: usize, state: ThreadState) {
        if let Some(own) = self.threads.get_mut(thread) {
            own.state = state;
        }
    }

    /// Whether no disk is on the thread or goes to it.
    fn is_empty(&self, thread: usize) -> bool {
        let on = |disk: &super::Disk| disk.thread == thread || disk.moving == Some(thread);
        !self.disks.iter().any(on)
    }

    /// Threads without I/O in flight end draining.
    fn drain_threads(&mut self) {
        for thread in &mut self.threads {
            if thread.state == ThreadState::Draining && thread.in_flight == 0 {
                thread.state = ThreadState::Parked;
            }
        }
    }

    /// Orders a move. Returns whether the disk goes.
    fn move_disk(&mut self, disk: usize, to: usize) -> bool {
        let ready = self.threads.get(to).map(|thread| thread.state) == Some(ThreadState::Active);
        let Some(own) = self.disks.get_mut(disk) else {
            return false;
        };
        if !ready || own.moving.is_some() || own.thread == to {
            return false;
        }
        own.moving = Some(to);
        let from = own.thread;
        self.threads[from].leaving.push((disk, to));
        self.nudge(from);
        true
    }
}
