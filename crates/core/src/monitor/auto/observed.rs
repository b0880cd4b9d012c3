//! The recent past that `auto` decides by: three ticks of each thread, and the time since the last slow tick.
//!
//! # Always true
//! - nothing is concluded from fewer than three ticks since the last change of a thread

use super::super::{DiskLoad, Permille, Snapshot, ThreadNumber, permille};
use super::bans::Offered;
use super::placement::Loads;
use super::trial::{History, Window};
use super::{FRESH, SLOW, TARGET, TARGET_DENSE};
use crate::units::{Span, Time};
use alloc::vec::Vec;

/// Ticks that decide about congestion, and how many of them must be bad.
const LAST: usize = 3;
const BAD: u32 = 2;
/// A congested thread is at least so busy; requests of an idler one wait for other reasons.
const BUSY: Permille = 500;
/// Threads that are idler are looked at less often.
const LIGHT: Permille = 250;
/// A thread that is so busy may have requests waiting in rings, which only its disks' counts show. They are looked at so
/// often until it is known.
const FULL: Permille = 900;
const LOOK: Span = Span::from_millis(20);
/// So many looks at disks between slow ticks may follow each other; each slow tick allows one more. Origin: a look at 256 disks
/// takes up to a fifth of a millisecond, and the monitor may take a hundredth of a CPU.
const LOOKS: u32 = 8;
/// A percentile of fewer requests is chance.
const SAMPLES: u64 = 3;
/// Slow ticks without congestion after which it is reported again.
const QUIET: u32 = 10;
/// Threads that wait so much for a CPU are not alone: thousandths of their time.
const STOLEN: Permille = 20;
/// Guests that wait so much lack CPUs: thousandths of a CPU.
const GUESTS_DELAY: Permille = 100;

/// A thread that waited for a CPU for so much of its last ticks, in thousandths, lacks one. Origin: beside one task that
/// computes it is half of the time; wake-ups of a thread that is busy for half of its time are below a tenth.
const NO_CPU: Permille = 200;
/// It has one again below this.
const CPU_AGAIN: Permille = 100;

/// The last ticks of a thread.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    /// Whether each tick was bad, the newest in the lowest bit.
    bad: u8,
    /// Ticks since the thread or its disks changed, up to `LAST`.
    samples: usize,
    /// When this congestion began; none while there is none.
    since: Option<Time>,
    busy: [Span; LAST],
    /// Time that it had a CPU.
    own: [Span; LAST],
    /// Time that it waited for one.
    stolen: [Span; LAST],
    /// Whether its congestion was reported.
    reported: bool,
    quiet: u32,
}

/// Whether a thread lacks a CPU. Moves of its disks do not change that.
#[derive(Clone, Copy, Debug, Default)]
struct Robbed {
    lacks: bool,
    /// The part of its last ticks that it waited.
    stolen: Permille,
    /// Whether that was reported, and slow ticks without it since.
    reported: bool,
    quiet: u32,
}

/// The time since the last slow tick.
#[derive(Clone, Debug, Default)]
pub(super) struct SlowTick {
    pub(super) span: Span,
    ended: Time,
    ticks: u32,
    /// Ticks whose slowest thread was above half of the target.
    late: u32,
    busy: Vec<Span>,
    own: Vec<Span>,
    stolen_time: Span,
    spin_time: Span,
    delay_sum: Span,
    guests_waited: Span,
    guests_span: Span,
    /// Of active threads.
    pub(super) loads: Loads,
    pub(super) disks: Vec<DiskLoad>,
    /// The mean over ticks of the slowest thread's delay.
    pub(super) delay: Span,
    /// Whether at most a tenth of the ticks had delays above half of the target.
    pub(super) is_prompt: bool,
    pub(super) is_congested: bool,
    /// Time that active threads waited for a CPU, in thousandths of it.
    pub(super) stolen: Permille,
    /// Time that they polled, in thousandths of a CPU.
    pub(super) spin: Permille,
    /// Time that vCPUs waited for a CPU, in thousandths of a CPU.
    pub(super) guests_delay: Permille,
    /// Whether threads or guests compete for CPUs.
    pub(super) is_contended: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    /// The target of the queueing delay.
    pub(super) target: Span,
    threads: Vec<Recent>,
    robbed: Vec<Robbed>,
    /// Whether each thread runs on one CPU only.
    pinned: bool,
    history: History,
    slow: SlowTick,
    slow_at: Time,
    /// The last snapshot with disks.
    detailed_at: Time,
    /// Looks at disks between slow ticks that have not been allowed since.
    looked: u32,
}

impl Observed {
    /// The host rested: begins anew.
    pub(super) fn forget(&mut self, now: Time) {
        self.threads.clear();
        self.robbed.clear();
        self.history.clear();
        self.slow = SlowTick::default();
        self.slow_at = now;
    }

    /// Takes a snapshot.
    pub(super) fn add(&mut self, snapshot: &Snapshot) {
        self.target = match snapshot.host.dense {
            true => TARGET_DENSE,
            false => TARGET,
        };
        self.pinned = snapshot.host.pinned;
        self.history.add(snapshot);
        if snapshot.disks_span.is_some() {
            self.detailed_at = snapshot.now;
            self.looked += u32::from(!self.is_slow(snapshot.now));
        }
        let count = snapshot.threads.len();
        self.threads.resize(count, Recent::default());
        self.robbed.resize(count, Robbed::default());
        let began = snapshot.now.as_nanos() - snapshot.now.as_nanos().min(snapshot.span.as_nanos());
        let began = Time::from_nanos(began);
        let known = self.threads.iter_mut().zip(&mut self.robbed);
        for ((recent, robbed), load) in known.zip(&snapshot.threads) {
            let late = load.delay_p99 > self.target && load.arrivals >= SAMPLES;
            let is_bad = load.is_active() && (late || load.standing);
            recent.bad = recent.bad << 1 | u8::from(is_bad);
            recent.samples = (recent.samples + 1).min(LAST);
            recent.since = match recent.bad & 0b11 {
                0 => None,
                _ => recent.since.or(Some(began)),
            };
            recent.busy.rotate_right(1);
            recent.busy[0] = load.busy;
            recent.own.rotate_right(1);
            recent.own[0] = load.busy + load.spin + load.sleep;
            recent.stolen.rotate_right(1);
            recent.stolen[0] = load.stolen;
            let stolen = recent.stolen_share();
            if recent.samples == LAST {
                robbed.stolen = stolen;
                robbed.lacks = stolen >= if robbed.lacks { CPU_AGAIN } else { NO_CPU };
            }
        }
        self.slow.add(snapshot, self.target);
    }

    /// The busy share of a thread in its last ticks.
    pub(super) fn busy(&self, thread: usize) -> Permille {
        self.threads.get(thread).map_or(0, Recent::busy_share)
    }

    /// Whether a thread lacks a CPU: its requests wait for that, and not for the thread.
    pub(super) fn lacks_cpu(&self, thread: usize) -> bool {
        self.robbed.get(thread).is_some_and(|robbed| robbed.lacks)
    }

    /// Whether other threads can serve a thread's disks sooner: it has a CPU, or they have CPUs of their own.
    fn is_helped_by_moves(&self, thread: usize) -> bool {
        self.pinned || !self.lacks_cpu(thread)
    }

    /// The busy shares of active threads that have a CPU when they need one.
    pub(super) fn loads_with_cpu(&self, snapshot: &Snapshot) -> Loads {
        let mut loads = self.loads(snapshot);
        for (thread, load) in loads.iter_mut().enumerate() {
            if self.lacks_cpu(thread) {
                *load = None;
            }
        }
        loads
    }

    /// A thread whose requests wait because it lacks a CPU, with the part of its time; once, until that is over for a second.
    pub(super) fn report_lack(&mut self, snapshot: &Snapshot) -> Option<(ThreadNumber, Permille)> {
        for (number, load) in (0..).zip(&snapshot.threads) {
            let at = usize::from(number);
            let lacks = self.lacks_cpu(at);
            let robbed = &mut self.robbed[at];
            robbed.quiet = if lacks { 0 } else { robbed.quiet + 1 };
            robbed.reported &= robbed.quiet < QUIET;
            let is_late = self.threads[at].is_bad();
            if lacks && load.is_active() && is_late && !robbed.reported {
                robbed.reported = true;
                return Some((number, robbed.stolen));
            }
        }
        None
    }

    /// The busy shares of active threads.
    pub(super) fn loads(&self, snapshot: &Snapshot) -> Loads {
        let numbered = snapshot.threads.iter().enumerate();
        let load = |(at, load): (usize, &super::super::ThreadLoad)| {
            load.is_active().then(|| self.busy(at))
        };
        numbered.map(load).collect()
    }

    fn is_congested(&self, thread: usize) -> bool {
        let recent = self.threads.get(thread);
        recent.is_some_and(|recent| recent.is_bad() && self.busy(thread) >= BUSY)
            && self.is_helped_by_moves(thread)
    }

    /// The congested thread whose requests wait longest. Those that could not be relieved are looked at again in each slow
    /// tick; others need disks' counts that are no older than their congestion.
    pub(super) fn worst(&self, snapshot: &Snapshot) -> Option<ThreadNumber> {
        let is_fresh = snapshot.disks_span? <= FRESH;
        let is_slow = self.is_slow(snapshot.now);
        let numbered = (0..).zip(&snapshot.threads);
        let congested = numbered.filter(|&(number, load)| {
            let at = usize::from(number);
            let is_due = match self.threads[at].reported {
                true => is_slow,
                false => is_fresh,
            };
            load.is_active() && is_due && self.is_congested(at)
        });
        let worst = congested.max_by_key(|&(number, load)| (load.delay_p99, u16::MAX - number));
        worst.map(|(number, _)| number)
    }

    /// These threads got or lost disks: their past does not count any more.
    pub(super) fn changed(&mut self, threads: &[ThreadNumber]) {
        for &thread in threads {
            self.threads[usize::from(thread)] = Recent::default();
        }
    }

    /// Marks a thread's congestion as reported; whether it was not. A second without congestion ends that.
    pub(super) fn report(&mut self, thread: ThreadNumber) -> bool {
        let recent = &mut self.threads[usize::from(thread)];
        recent.quiet = 0;
        !core::mem::replace(&mut recent.reported, true)
    }

    /// The same for all congested threads.
    pub(super) fn report_all(&mut self) -> bool {
        let congested: Vec<usize> = (0..self.threads.len())
            .filter(|&at| self.is_congested(at))
            .collect();
        let mut is_new = false;
        for at in congested {
            let recent = &mut self.threads[at];
            recent.quiet = 0;
            is_new |= !core::mem::replace(&mut recent.reported, true);
        }
        is_new
    }

    /// What was while this thread was congested.
    pub(super) fn congested_window(&self, thread: ThreadNumber) -> Window {
        let since = self.threads[usize::from(thread)].since;
        self.history.since(since.unwrap_or(Time::ZERO))
    }

    /// What was in the last 300 ms.
    pub(super) fn all(&self) -> Window {
        self.history.all()
    }

    /// The load of the last 300 ms.
    pub(super) fn offered(&self) -> Offered {
        self.history.all().offered()
    }

    /// The load since then.
    pub(super) fn offered_since(&self, then: Time) -> Offered {
        self.history.since(then).offered()
    }

    /// Whether no thread is busy for more than a quarter of its time, and nothing waits.
    pub(super) fn is_light(&self) -> bool {
        let mut threads = self.threads.iter().enumerate();
        threads.all(|(at, recent)| recent.bad & 1 == 0 && self.busy(at) <= LIGHT)
    }

    /// Whether disks' counts are needed at this moment, the next tick.
    pub(super) fn wants_disks(&self, next: Time) -> bool {
        if self.looked >= LOOKS {
            return false;
        }
        let mut threads = self.threads.iter().enumerate();
        let is_stale = next.since(self.detailed_at) >= LOOK;
        threads.any(|(at, recent)| {
            let is_full = recent.busy_share() >= FULL;
            let is_suspect = recent.bad & 1 == 1 || (is_stale && is_full);
            is_suspect && !recent.reported && self.is_helped_by_moves(at)
        })
    }

    /// Whether the slow tick is due.
    pub(super) fn is_slow(&self, now: Time) -> bool {
        now.since(self.slow_at) >= SLOW
    }

    /// Ends the slow tick, and returns it.
    pub(super) fn take_slow(&mut self, snapshot: &Snapshot) -> SlowTick {
        self.slow_at = snapshot.now;
        self.looked = self.looked.saturating_sub(1);
        let mut slow = core::mem::take(&mut self.slow);
        slow.finish(snapshot);
        slow.is_congested = (0..self.threads.len()).any(|at| self.is_congested(at));
        for at in 0..self.threads.len() {
            let is_congested = self.is_congested(at);
            let recent = &mut self.threads[at];
            recent.quiet = if is_congested { 0 } else { recent.quiet + 1 };
            recent.reported &= recent.quiet < QUIET;
        }
        slow
    }
}

impl Recent {
    /// Whether requests waited too long in two of three ticks.
    fn is_bad(&self) -> bool {
        let bad = (self.bad & ((1 << LAST) - 1)).count_ones();
        self.samples == LAST && bad >= BAD
    }

    /// The part of its last ticks in which it worked, of the time that it had a CPU.
    fn busy_share(&self) -> Permille {
        let last = self.samples.clamp(1, LAST);
        permille(sum(&self.busy[..last]), sum(&self.own[..last]))
    }

    /// The part of its last ticks in which it waited for a CPU.
    fn stolen_share(&self) -> Permille {
        let stolen = sum(&self.stolen);
        permille(stolen, stolen + sum(&self.own))
    }
}

fn sum(spans: &[Span]) -> Span {
    spans.iter().fold(Span::ZERO, |sum, &span| sum + span)
}

impl SlowTick {
    fn add(&mut self, snapshot: &Snapshot, target: Span) {
        self.span = self.span + snapshot.span;
        self.ticks += 1;
        self.busy.resize(snapshot.threads.len(), Span::ZERO);
        self.own.resize(snapshot.threads.len(), Span::ZERO);
        let mut slowest = Span::ZERO;
        for (at, load) in snapshot.threads.iter().enumerate() {
            self.busy[at] = self.busy[at] + load.busy;
            self.own[at] = self.own[at] + load.busy + load.spin + load.sleep;
            if load.is_active() {
                self.stolen_time = self.stolen_time + load.stolen;
                self.spin_time = self.spin_time + load.spin;
                slowest = slowest.max(load.delay_p99);
            }
        }
        self.delay_sum = self.delay_sum + slowest;
        self.late += u32::from(slowest.as_nanos() > target.as_nanos() / 2);
        if let Some(span) = snapshot.disks_span {
            self.guests_span = self.guests_span + span;
            let waited = snapshot.host.guests_delay.unwrap_or_default();
            self.guests_waited = self.guests_waited + waited;
            self.add_disks(&snapshot.disks);
        }
    }

    /// Adds disks' counts; a disk is where it is now.
    fn add_disks(&mut self, disks: &[DiskLoad]) {
        let mut sums = core::mem::take(&mut self.disks);
        sums.sort_by_key(|sum| sum.disk);
        self.disks.reserve(disks.len());
        for disk in disks {
            let mut load = *disk;
            if let Ok(at) = sums.binary_search_by_key(&disk.disk, |sum| sum.disk) {
                load.busy = load.busy + sums[at].busy;
                load.arrivals += sums[at].arrivals;
            }
            self.disks.push(load);
        }
    }

    /// When it began.
    pub(super) fn began(&self) -> Time {
        Time::from_nanos(self.ended.as_nanos().saturating_sub(self.span.as_nanos()))
    }

    fn finish(&mut self, snapshot: &Snapshot) {
        self.ended = snapshot.now;
        let shares = self.busy.iter().zip(&self.own);
        let states = shares.zip(&snapshot.threads);
        let loads =
            states.map(|((busy, own), load)| load.is_active().then(|| permille(*busy, *own)));
        self.loads = loads.collect();
        let ticks = u64::from(self.ticks.max(1));
        self.delay = Span::from_nanos(self.delay_sum.as_nanos() / ticks);
        self.is_prompt = self.late * 10 <= self.ticks;
        let active = u64::try_from(snapshot.active()).unwrap_or(1).max(1);
        let all = Span::from_nanos(self.span.as_nanos() * active);
        self.stolen = permille(self.stolen_time, all);
        self.spin = permille(self.spin_time, self.span);
        self.guests_delay = permille(self.guests_waited, self.guests_span);
        self.is_contended = self.stolen > STOLEN || self.guests_delay > GUESTS_DELAY;
    }
}
