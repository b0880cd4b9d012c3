//! The engine as its monitor sees it: counters become snapshots, and actions become moves.
//!
//! Counters are read without a message to the I/O threads ([`Statistics`]). The times of a snapshot are differences to the
//! last one. What the kernel counts of CPUs and guests is read only with disks.
//!
//! # Units
//! Nanoseconds. A delay's histogram gives sums that are right within an eighth.

use super::threads::{Placement, PolicyAct};
use super::{Disk, DiskCore, guard};
use crate::counters::{DelayHistogram, DiskActivity, Statistics, ThreadActivity};
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
    host: Option<HostCpus>,
    guests: Guests,
    /// What was counted at the last snapshot, and at the last one with disks.
    at: Time,
    threads: Vec<ThreadActivity>,
    detailed_at: Time,
    disks: BTreeMap<DiskId, Before>,
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
    activity: DiskActivity,
    thread: ThreadNumber,
    moved: Option<Time>,
}

impl Monitored {
    pub(super) fn new(
        statistics: Statistics,
        placement: Arc<Placement>,
        known: Known,
        signals: Arc<Signals>,
        cpus: usize,
    ) -> Monitored {
        let host = HostCpus::open();
        if let Err(error) = &host {
            tracing::debug!(%error, "the times of the host's CPUs cannot be read");
        }
        let now = os::now();
        let threads = statistics.threads();
        Monitored {
            thread_waits: vec![(0, Span::ZERO); threads.len()],
            threads,
            statistics,
            placement,
            known,
            signals,
            cpus: u16::try_from(cpus).unwrap_or(u16::MAX),
            host: host.ok(),
            guests: Guests::default(),
            at: now,
            detailed_at: now,
            disks: BTreeMap::new(),
            cpu_times: None,
            guests_times: None,
            guests_rate: None,
        }
    }

    fn load_threads(&mut self, snapshot: &mut Snapshot) {
        let mut now = self.statistics.threads();
        let states = self.placement.states();
        let mut loads = std::mem::take(&mut snapshot.threads);
        loads.clear();
        let known = now.iter_mut().zip(&self.threads).zip(states);
        for (at, ((now, before), state)) in known.enumerate() {
            let times = now.since(before);
            now.run_delay = owed(now.run_delay, before.run_delay + times.stolen);
            let delays = now.delays.since(&before.delays);
            let arrivals = now.requests.saturating_sub(before.requests);
            let (requests, waited) = &mut self.thread_waits[at];
            *requests += arrivals;
            *waited = *waited + sum(&delays);
            loads.push(ThreadLoad {
                state: state.into(),
                busy: times.busy,
                spin: times.spinning,
                sleep: times.sleeping,
                stolen: times.stolen,
                delay_p99: delays.quantile(9900),
                standing: false,
                // A thread counts what it takes; what it answers is counted for each disk.
                arrivals,
                completions: arrivals,
                work: arrivals * REQUEST,
            });
        }
        snapshot.threads = loads;
        self.threads = now;
    }

    fn load_disks(&mut self, snapshot: &mut Snapshot, since: Time) {
        let now = snapshot.now;
        let span = now.since(self.detailed_at);
        self.detailed_at = now;
        snapshot.disks_span = Some(span);
        let mut disks = BTreeMap::new();
        for activity in self.statistics.disks() {
            let disk = activity.disk;
            let Some(home) = self.placement.peers.home(disk) else {
                continue;
            };
            let thread = ThreadNumber::try_from(home).unwrap_or(ThreadNumber::MAX);
            let before = self.disks.remove(&disk);
            let moved = match &before {
                Some(before) if before.thread != thread => Some(now),
                Some(before) => before.moved,
                None => None,
            };
            if let Some(before) = before {
                let load = difference(&activity, &before.activity);
                let waits = self.thread_waits.get(home).copied();
                let waited = waits.map_or(Span::ZERO, |(requests, waited)| {
                    part(waited, load.arrivals, requests)
                });
                let load = DiskLoad {
                    thread,
                    moved,
                    outstanding: load.outstanding + waited,
                    ..load
                };
                let tick = now.since(since);
                let standing = activity.all().any(|queue| queue.is_standing(now, tick));
                if let Some(thread) = snapshot.threads.get_mut(home) {
                    thread.standing |= standing;
                    thread.delay_p99 = thread.delay_p99.max(load.delay_p99);
                }
                snapshot.disks.push(load);
            } else {
                snapshot.disks.push(DiskLoad::idle(disk, thread));
            }
            let before = Before {
                activity,
                thread,
                moved,
            };
            disks.insert(disk, before);
        }
        self.disks = disks;
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
        let now = self.statistics.threads();
        let mut known = now.iter().zip(&self.threads);
        known.any(|(now, before)| now.busy > before.busy || now.spinning > before.spinning)
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

/// What a disk did between two readings, on thread 0.
fn difference(now: &DiskActivity, before: &DiskActivity) -> DiskLoad {
    let count = |of: fn(&DiskActivity) -> u64| of(now).saturating_sub(of(before));
    let (answered, bytes) = (count(DiskActivity::answered), count(DiskActivity::bytes));
    let delays = now.delays().since(&before.delays());
    let queues = now.all().zip(before.all());
    let used = queues.filter(|(now, before)| now.requests > before.requests);
    DiskLoad {
        busy: less(now.busy(), before.busy()),
        arrivals: count(DiskActivity::requests),
        completions: answered,
        work: answered * REQUEST + bytes / 1024,
        bytes,
        outstanding: less(now.outstanding(), before.outstanding()) + sum(&delays),
        delay_p99: delays.quantile(9900),
        queues: u16::try_from(used.count()).unwrap_or(u16::MAX),
        ..DiskLoad::idle(now.disk, 0)
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

/// The sum of delays. Each counts as seven eighths of its bucket's end: the middle of a bucket is within an eighth of that.
fn sum(delays: &DelayHistogram) -> Span {
    let counted = delays.buckets().skip(1).filter(|(_, times)| *times > 0);
    let sum = counted.map(|(end, times)| end.as_nanos() / 8 * 7 * times);
    Span::from_nanos(sum.sum())
}

/// The part of `whole` that falls to `count` of `all`.
fn part(whole: Span, count: u64, all: u64) -> Span {
    let share = u128::from(whole.as_nanos()) * u128::from(count);
    let share = share.checked_div(u128::from(all)).unwrap_or(0);
    Span::from_nanos(u64::try_from(share).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_was_longer_than_the_interval_is_shared_with_the_next_ones() {
        let ms = Span::from_millis;
        // 20 ms were counted in an interval that took 5 of them.
        assert_eq!(owed(ms(20), ms(5)), ms(5));
        assert_eq!(owed(ms(20), ms(20)), ms(20));
        // A long stop is not spread over seconds.
        assert_eq!(owed(ms(900), ms(5)), ms(850));
    }
}
