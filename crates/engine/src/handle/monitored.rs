//! The engine as its monitor sees it: counters become snapshots, and actions become moves.
//!
//! Counters are read without a message to the I/O threads ([`Statistics`]). The times of a snapshot are differences to the
//! last one. What the kernel counts of CPUs and guests is read only with disks.
//!
//! # Units
//! Nanoseconds. A delay's histogram gives sums that are right within an eighth.

use super::threads::{Placement, PolicyAct};
use super::{Disk, DiskCore, guard};
use crate::counters::{DiskSums, Statistics, ThreadActivity};
use crate::error::{Error, Kind, Result};
use crate::guests::{GuestActivity, Guests};
use crate::handle::ThreadState;
use crate::monitor::host_cpus::{CpuTimes, HostCpus};
use crate::monitor::{Signals, Subject};
use crate::sys::os;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use tidegate_core::monitor::{
    self as core, Action, DiskLoad, HostLoad, Snapshot, ThreadLoad, ThreadNumber, weight,
};
use tidegate_core::request::DiskId;
use tidegate_core::units::{Span, Time};

/// The weight of a request without bytes.
const REQUEST: u64 = weight(0);

/// Waits that ended are left to later intervals for at most so long. Origin: the longest slices of a handful of guests on a CPU.
const OWED_MOST: Span = Span::from_millis(50);

/// The attached disks, by number. An entry may be of a disk that is gone.
pub(super) type Known = Arc<Mutex<BTreeMap<DiskId, Weak<DiskCore>>>>;

/// See the module.
pub(super) struct Monitored {
    statistics: Statistics,
    placement: Arc<Placement>,
    known: Known,
    signals: Arc<Signals>,
    /// CPUs that I/O threads may use.
    cpus: u16,
    /// Whether each I/O thread runs on one of these only.
    pinned: bool,
    host: Option<HostCpus>,
    guests: Guests,
    /// What was counted at the last snapshot, and at the last one with disks.
    at: Time,
    /// None of a thread that was parked then.
    threads: Vec<Option<ThreadActivity>>,
    detailed_at: Time,
    disks: BTreeMap<DiskId, Before>,
    /// Snapshots with disks so far.
    readings: u64,
    cpu_times: Option<CpuTimes>,
    guests_times: Option<GuestTimes>,
    /// CPU time that guests got, and that they waited for, in the time between two readings.
    guests_rate: Option<(Span, Span, Span)>,
    /// Requests of each thread until the last snapshot with disks, and how long they waited for it.
    thread_waits: Vec<(u64, Span)>,
}

/// The times of all guests together at a reading.
#[derive(Clone, Copy)]
struct GuestTimes {
    at: Time,
    run: Span,
    delay: Span,
}

/// A disk at the last snapshot with disks.
struct Before {
    sums: Box<DiskSums>,
    thread: ThreadNumber,
    moved: Option<Time>,
    /// Which snapshot with disks that was.
    reading: u64,
}

impl Monitored {
    pub(super) fn new(
        statistics: Statistics,
        placement: Arc<Placement>,
        known: Known,
        signals: Arc<Signals>,
        (cpus, pinned): (usize, bool),
    ) -> Monitored {
        let host = HostCpus::open();
        if let Err(error) = &host {
            tracing::debug!(%error, "the times of the host's CPUs cannot be read");
        }
        let now = os::now();
        let threads = statistics.used_threads(|_| true);
        Monitored {
            thread_waits: vec![(0, Span::ZERO); threads.len()],
            threads,
            statistics,
            placement,
            known,
            signals,
            cpus: u16::try_from(cpus).unwrap_or(u16::MAX),
            pinned,
            host: host.ok(),
            guests: Guests::default(),
            at: now,
            detailed_at: now,
            disks: BTreeMap::new(),
            readings: 0,
            cpu_times: None,
            guests_times: None,
            guests_rate: None,
        }
    }

    fn load_threads(&mut self, snapshot: &mut Snapshot) {
        let states = self.placement.states();
        let now = self.statistics.used_threads(is_used(&states));
        let before = std::mem::replace(&mut self.threads, now);
        let mut loads = std::mem::take(&mut snapshot.threads);
        loads.clear();
        let known = self.threads.iter_mut().zip(&before).zip(states);
        for (at, ((now, before), state)) in known.enumerate() {
            let (Some(now), Some(before)) = (now, before) else {
                // It is parked, or was until now.
                loads.push(ThreadLoad {
                    state: state.into(),
                    sleep: snapshot.span,
                    ..ThreadLoad::default()
                });
                continue;
            };
            let times = now.since(before);
            now.run_delay = owed(now.run_delay, before.run_delay + times.stolen);
            let (delays, delay_p99) = now.delays.news(&before.delays);
            let arrivals = now.requests.saturating_sub(before.requests);
            let (requests, waited) = &mut self.thread_waits[at];
            *requests += arrivals;
            *waited = *waited + delays;
            loads.push(ThreadLoad {
                state: state.into(),
                busy: times.busy,
                spin: times.spinning,
                sleep: times.sleeping,
                stolen: times.stolen,
                delay_p99,
                standing: false,
                // A thread counts what it takes; what it answers is counted for each disk.
                arrivals,
                completions: arrivals,
                work: arrivals * REQUEST,
            });
        }
        snapshot.threads = loads;
    }

    fn load_disks(&mut self, snapshot: &mut Snapshot, since: Time) {
        let now = snapshot.now;
        let span = now.since(self.detailed_at);
        self.detailed_at = now;
        snapshot.disks_span = Some(span);
        let tick = now.since(since);
        self.readings += 1;
        let reading = self.readings;
        let (known, waits) = (&mut self.disks, &self.thread_waits);
        let peers = &self.placement.peers;
        let mut sums = Box::<DiskSums>::default();
        self.statistics.each_disk(|disk, counters| {
            let Some(home) = peers.home(disk) else {
                return;
            };
            let thread = ThreadNumber::try_from(home).unwrap_or(ThreadNumber::MAX);
            counters.sum(&mut sums);
            let Some(before) = known.get_mut(&disk) else {
                let before = Before {
                    sums: std::mem::take(&mut sums),
                    thread,
                    moved: None,
                    reading,
                };
                known.insert(disk, before);
                snapshot.disks.push(DiskLoad::idle(disk, thread));
                return;
            };
            if before.thread != thread {
                before.moved = Some(now);
            }
            let mut load = DiskLoad {
                moved: before.moved,
                ..difference(DiskLoad::idle(disk, thread), &sums, &before.sums)
            };
            let waited = waits.get(home).map_or(Span::ZERO, |&(requests, waited)| {
                part(waited, load.arrivals, requests)
            });
            load.outstanding = load.outstanding + waited;
            let standing = sums.standing_since;
            if let Some(thread) = snapshot.threads.get_mut(home) {
                thread.standing |= standing.is_some_and(|since| now.since(since) >= tick);
                thread.delay_p99 = thread.delay_p99.max(load.delay_p99);
            }
            snapshot.disks.push(load);
            // What was before is memory for the next disk.
            std::mem::swap(&mut before.sums, &mut sums);
            (before.thread, before.reading) = (thread, reading);
        });
        self.disks.retain(|_, before| before.reading == reading);
        self.thread_waits.fill((0, Span::ZERO));
    }

    fn load_host(&mut self, snapshot: &mut Snapshot) {
        let times = self.host.as_ref().and_then(HostCpus::read);
        if let (Some(now), Some(before)) = (times, self.cpu_times) {
            snapshot.host.idle = less(now.idle, before.idle);
            snapshot.host.steal = less(now.steal, before.steal);
        }
        self.cpu_times = times;
        self.load_guests(snapshot);
    }

    /// Guests are read less often than disks. Between two readings they are taken to go on as before.
    fn load_guests(&mut self, snapshot: &mut Snapshot) {
        let processes = self.statistics.guest_processes(|_| true);
        let guests = self.guests.read(&processes, snapshot.now);
        let known = guests.iter().filter(|guest| !guest.assumed);
        let total = |of: fn(&GuestActivity) -> Span| {
            known.clone().fold(Span::ZERO, |sum, guest| sum + of(guest))
        };
        let times = GuestTimes {
            at: snapshot.now,
            run: total(|guest| guest.run),
            delay: total(|guest| guest.run_delay),
        };
        if known.count() == 0 {
            self.guests_times = None;
            self.guests_rate = None;
            return;
        }
        match self.guests_times {
            // The same times are those of the last reading.
            Some(before) if times.run == before.run => {}
            Some(before) => {
                let (run, delay) = (less(times.run, before.run), less(times.delay, before.delay));
                self.guests_rate = Some((run, delay, times.at.since(before.at)));
                self.guests_times = Some(times);
            }
            None => self.guests_times = Some(times),
        }
        if let (Some((run, delay, span)), Some(of)) = (self.guests_rate, snapshot.disks_span) {
            let during = |time| part(time, of.as_nanos(), span.as_nanos());
            snapshot.host.guests_run = Some(during(run));
            snapshot.host.guests_delay = Some(during(delay));
        }
    }

    fn disk(&self, disk: DiskId) -> Result<Disk> {
        let mut known = guard(&self.known);
        let core = known.get(&disk).and_then(Weak::upgrade);
        let Some(core) = core else {
            known.remove(&disk);
            return Err(Error::new(Kind::Gone, "the disk is not attached any more"));
        };
        Ok(Disk { core })
    }
}

impl Subject for Monitored {
    fn snapshot(&mut self, with_disks: bool, snapshot: &mut Snapshot) {
        let since = self.at;
        self.at = os::now();
        snapshot.now = self.at;
        snapshot.span = self.at.since(since);
        snapshot.host = HostLoad {
            cpus: self.cpus,
            pinned: self.pinned,
            dense: self.signals.is_dense(),
            ..HostLoad::default()
        };
        snapshot.disks_span = None;
        snapshot.disks.clear();
        self.load_threads(snapshot);
        if with_disks {
            self.load_disks(snapshot, since);
            self.load_host(snapshot);
        }
    }

    fn has_worked(&mut self) -> bool {
        let now = self
            .statistics
            .used_threads(is_used(&self.placement.states()));
        let mut known = now.iter().zip(&self.threads);
        known.any(|known| match known {
            (Some(now), Some(before)) => now.busy > before.busy || now.spinning > before.spinning,
            // It has come into use, so the next snapshot knows it.
            (Some(_), None) => true,
            (None, _) => false,
        })
    }

    fn take_back(&mut self, thread: ThreadNumber) -> Result<()> {
        self.placement.act(thread.into(), PolicyAct::TakeBack)
    }

    fn act(&mut self, action: Action) -> Result<()> {
        match action {
            Action::Move { disk, to } => self.disk(disk)?.move_to(to.into()).map(drop),
            Action::Activate { thread } => self.placement.act(thread.into(), PolicyAct::Activate),
            Action::Lock { thread } => self.placement.act(thread.into(), PolicyAct::Leave),
            Action::Park { thread } => self.placement.act(thread.into(), PolicyAct::Park),
            Action::Spin { on } => {
                self.signals.let_spin(on);
                Ok(())
            }
            Action::Stay => Ok(()),
        }
    }
}

impl From<ThreadState> for core::ThreadState {
    fn from(state: ThreadState) -> core::ThreadState {
        match state {
            ThreadState::Active => core::ThreadState::Active,
            ThreadState::Locked => core::ThreadState::Locked,
            ThreadState::Leaving => core::ThreadState::Leaving,
            ThreadState::Draining => core::ThreadState::Draining,
            ThreadState::Parked => core::ThreadState::Parked,
        }
    }
}

/// Whether a thread is in use, by its number. A parked one does nothing, and has no disks.
fn is_used(states: &[ThreadState]) -> impl Fn(usize) -> bool {
    |thread| states.get(thread) != Some(&ThreadState::Parked)
}

/// What a disk did between two readings.
fn difference(idle: DiskLoad, now: &DiskSums, before: &DiskSums) -> DiskLoad {
    let since = u64::saturating_sub;
    let (answered, bytes) = (
        since(now.answered, before.answered),
        since(now.bytes, before.bytes),
    );
    let (delays, delay_p99) = now.delays.news(&before.delays);
    let queues = now.taken.iter().zip(&before.taken);
    let taken = queues.map(|(now, before)| since(*now, *before));
    let used = taken.clone().filter(|taken| *taken > 0);
    DiskLoad {
        busy: less(now.busy, before.busy),
        arrivals: taken.sum(),
        completions: answered,
        work: answered * REQUEST + bytes / 1024,
        bytes,
        outstanding: less(now.outstanding, before.outstanding) + delays,
        delay_p99,
        queues: u16::try_from(used.count()).unwrap_or(u16::MAX),
        ..idle
    }
}

/// The kernel counts a wait for a CPU when it ends, so more of it may be counted in an interval than that is long. The rest is
/// left to the next intervals: those during the wait have passed without it. `used`: what the intervals have had.
fn owed(counted: Span, used: Span) -> Span {
    let least = Span::from_nanos(counted.as_nanos().saturating_sub(OWED_MOST.as_nanos()));
    used.max(least).min(counted)
}

fn less(now: Span, before: Span) -> Span {
    Span::from_nanos(now.as_nanos().saturating_sub(before.as_nanos()))
}

/// The part of `whole` that falls to `count` of `all`.
fn part(whole: Span, count: u64, all: u64) -> Span {
    let share = u128::from(whole.as_nanos()) * u128::from(count);
    let share = share.checked_div(u128::from(all)).unwrap_or(0);
    Span::from_nanos(u64::try_from(share).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
