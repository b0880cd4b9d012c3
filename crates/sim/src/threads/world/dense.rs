//! Kicks and calls of a world: when guests kick and are called, in dense mode and otherwise.
//!
//! Calls are held by the core's coalescer. In dense mode a guest kicks after a batch of requests, and the thread looks for
//! fewer at intervals; a queue in which some scans found nothing gets its kicks back.

use super::super::trace::Trace;
use super::{Event, World};
use tidegate_core::coalesce::{Batch, Call, Coalesce, Published};
use tidegate_core::dense;
use tidegate_core::units::Time;

/// How the completions of all queues are coalesced.
pub(super) fn coalesced(trace: &Trace) -> Coalesce {
    let (frames, time) = dense::COMPLETIONS;
    match Batch::new(frames, time) {
        Some(batch) if trace.dense => Coalesce::Static(batch),
        _ => trace.coalesce,
    }
}

impl World<'_> {
    /// A completion is in the queue: its guest is called, now or later.
    pub(super) fn published(&mut self, thread: usize, vcpu: usize) {
        let now = Time::from_nanos(self.now);
        let own = &mut self.vcpus[vcpu];
        let published = Published {
            completions: 1,
            in_flight: own.in_flight,
            urgent: false,
        };
        let unfetched = !own.avail.is_empty();
        match own.coalescer.published(now, published, || unfetched) {
            Call::Send(_) => self.send_call(thread, vcpu),
            Call::Hold => {
                let due = self.vcpus[vcpu].coalescer.due().as_nanos();
                self.set_timer(thread, due);
            }
        }
    }

    fn send_call(&mut self, thread: usize, vcpu: usize) {
        let own = &mut self.vcpus[vcpu];
        let wanted = own.needs_call();
        own.coalescer.called(wanted, Time::from_nanos(self.now));
        if wanted {
            own.called = true;
            self.threads[thread].calls.push(vcpu);
        }
    }

    /// Held calls whose time has come.
    pub(super) fn call_due(&mut self, thread: usize) {
        if self.threads[thread].timer.is_none_or(|at| at > self.now) {
            return;
        }
        self.threads[thread].timer = None;
        let mut next = u64::MAX;
        for disk in 0..self.threads[thread].disks.len() {
            let disk = self.threads[thread].disks[disk];
            for at in 0..self.disks[disk].vcpus.len() {
                let vcpu = self.disks[disk].vcpus[at];
                let own = &self.vcpus[vcpu].coalescer;
                let due = own.due().as_nanos();
                if own.is_holding() && due <= self.now {
                    self.send_call(thread, vcpu);
                } else if own.is_holding() {
                    next = next.min(due);
                }
            }
        }
        if next < u64::MAX {
            self.set_timer(thread, next);
        }
        if self.trace.dense {
            self.scan(thread);
        }
    }

    /// Requests that have not been kicked for are read, too.
    fn scan(&mut self, thread: usize) {
        self.threads[thread].totals.scans += 1;
        for disk in &self.threads[thread].disks {
            for vcpu in &self.disks[*disk].vcpus {
                let own = &mut self.vcpus[*vcpu];
                if !own.armed || own.kicks_at == 1 {
                    continue;
                }
                if own.avail.is_empty() {
                    own.empty_scans += 1;
                } else {
                    own.empty_scans = 0;
                    own.armed = false;
                    own.last = self.now;
                }
            }
        }
    }

    /// Before the thread sleeps, guests are asked to kick.
    pub(super) fn ask_for_kicks(&mut self, thread: usize) {
        let mut scans = false;
        for disk in &self.threads[thread].disks {
            for vcpu in &self.disks[*disk].vcpus {
                let own = &mut self.vcpus[*vcpu];
                let few = self.trace.dense && own.empty_scans < dense::EMPTY_SCANS;
                own.kicks_at = if few {
                    usize::from(dense::KICK_BATCH)
                } else {
                    1
                };
                own.armed = true;
                scans |= few;
            }
        }
        if scans {
            self.set_timer(thread, self.now + dense::SCAN.as_nanos());
        }
    }

    fn set_timer(&mut self, thread: usize, at: u64) {
        if self.threads[thread].timer.is_none_or(|set| at < set) {
            self.threads[thread].timer = Some(at);
            self.put(at, Event::Timer { thread, at });
        }
    }

    /// A timer has ended, unless an earlier one has taken its place.
    pub(super) fn timer(&mut self, thread: usize, at: u64) {
        if self.threads[thread].timer == Some(at) {
            self.nudge(thread);
        }
    }
}
