//! Trials: whether a change did good, by what was done before it and with it.
//!
//! A trial does not stop the monitor: congestion is relieved meanwhile. It ends after 300 ms, or early if one thread fewer
//! congests the rest.
//!
//! # Always true
//! - There is no verdict if the offered load or the host changed: nothing is banned, and what stays is what the change of the
//!   load speaks for ([`Trial::stays_without_verdict`]).
//!
//! # How a change of the offered load is told from its effect
//! Guests that keep a constant queue depth send more requests when they are served faster. So more requests alone are no
//! change of the load. A disk's offered load changed if its requests and its mean queue depth changed in one direction, the
//! depth at least half as much. Faster service brings more requests at the same or a lower depth.

use super::super::decision::Verdict;
use super::super::{Permille, Snapshot, ThreadNumber, ratio};
use super::bans::{Direction, Offered};
use super::placement::Relocation;
use crate::request::DiskId;
use crate::units::{Span, Time};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

/// Queues fill and drain for a while after a change, and this is not measured. Origin: a tenth of what a queue of 128
/// requests of 10 us each takes is 0.1 ms; the rest is for caches and schedulers of hosts.
pub(super) const SETTLING: Span = Span::from_millis(50);
/// How long a trial takes in all. Origin: long against settling, short against what a bad change costs.
pub(super) const LENGTH: Span = Span::from_millis(300);
/// Snapshots of this time are remembered, and the last three in any case.
const REMEMBERED: Span = Span::from_millis(300);
const REMEMBERED_ANYWAY: usize = 3;

/// Better or worse by so much counts: thousandths. Origin: throughput of one setting differs by 1 % from second to second.
const MARGIN: i64 = 20;
/// A thread counts up to 64 turns late. Origin: 64 turns of a busy thread take one to two milliseconds.
const LAG: Span = Span::from_millis(2);
/// So much less is no loss if the delay is good.
const TOLERATED: i64 = 10;
/// Guests that lost so much CPU time lost too much, without a gain.
const GUESTS_LOSS: i64 = 50;
/// So much less ends a trial before its time.
const DISASTER: i64 = 200;
/// A change of the offered load beyond this makes a trial void. So does one that explains half of what was measured.
const LOAD_CHANGE: Permille = 100;
/// A disk whose requests changed less has the same load.
const DISK_CHANGE: Permille = 10;
/// A hypervisor below that takes more makes a trial void.
const STEAL: Permille = 30;

/// What happened in some consecutive snapshots.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    pub(super) ticks: u32,
    span: Span,
    arrivals: u64,
    delay: Span,
    details: Details,
}

/// The part that only snapshots with disks have.
#[derive(Clone, Debug, Default)]
struct Details {
    count: u32,
    span: Span,
    work: u64,
    steal: Span,
    cpus: u16,
    guests_run: Option<Span>,
    disks: BTreeMap<DiskId, Demand>,
}

/// What a disk's guest asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    arrivals: u64,
    outstanding: Span,
}

impl Details {
    fn of(snapshot: &Snapshot) -> Option<Details> {
        let demand = |disk: &super::super::DiskLoad| Demand {
            arrivals: disk.arrivals,
            outstanding: disk.outstanding,
        };
        let used = snapshot.disks.iter().filter(|disk| disk.arrivals > 0);
        Some(Details {
            count: 1,
            span: snapshot.disks_span?,
            work: snapshot.disks.iter().map(|disk| disk.work).sum(),
            steal: snapshot.host.steal,
            cpus: snapshot.host.cpus,
            guests_run: snapshot.host.guests_run,
            disks: used.map(|disk| (disk.disk, demand(disk))).collect(),
        })
    }

    fn add(&mut self, more: &Details) {
        let first = self.count == 0;
        self.guests_run = match (self.guests_run, more.guests_run) {
            (Some(sum), Some(more)) => Some(sum + more),
            (None, more) if first => more,
            _ => None,
        };
        self.count += more.count;
        self.span = self.span + more.span;
        self.work += more.work;
        self.steal = self.steal + more.steal;
        self.cpus = more.cpus;
        for (&disk, more) in &more.disks {
            let demand = self.disks.entry(disk).or_default();
            demand.arrivals += more.arrivals;
            demand.outstanding = demand.outstanding + more.outstanding;
        }
    }

    /// CPU time of guests, in thousandths of a CPU.
    fn guests(&self) -> Option<Permille> {
        let run = self.guests_run?;
        Some(ratio(run.as_nanos(), self.span.as_nanos(), 1000))
    }
}

impl Window {
    fn tick(snapshot: &Snapshot) -> Window {
        let active = snapshot.threads.iter().filter(|thread| thread.is_active());
        Window {
            ticks: 1,
            span: snapshot.span,
            arrivals: snapshot.arrivals(),
            delay: active.map(|t| t.delay_p99).max().unwrap_or_default(),
            details: Details::default(),
        }
    }

    fn add_tick(&mut self, tick: &Window) {
        self.ticks += 1;
        self.span = self.span + tick.span;
        self.arrivals += tick.arrivals;
        self.delay = self.delay + tick.delay;
    }

    /// Adds a snapshot.
    fn add(&mut self, snapshot: &Snapshot) {
        self.add_tick(&Window::tick(snapshot));
        if let Some(details) = Details::of(snapshot) {
            self.details.add(&details);
        }
    }

    /// Weighted completions a second.
    fn score(&self) -> u64 {
        per_second(self.details.work, self.details.span)
    }

    /// The mean over ticks of the slowest thread's delay.
    fn mean_delay(&self) -> Span {
        Span::from_nanos(self.delay.as_nanos() / u64::from(self.ticks.max(1)))
    }

    /// What guests asked for.
    pub(super) fn offered(&self) -> Offered {
        let requests = self.details.disks.values().map(|demand| demand.arrivals);
        let hundredths = self.details.work.saturating_mul(100);
        Offered {
            rate: per_second(self.arrivals, self.span),
            weight: hundredths / requests.sum::<u64>().max(1),
        }
    }
}

/// The last snapshots, for what was before a change.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// Each with the beginning of its time.
    ticks: VecDeque<(Time, Window)>,
    details: VecDeque<(Time, Details)>,
}

impl History {
    pub(super) fn clear(&mut self) {
        self.ticks.clear();
        self.details.clear();
    }

    pub(super) fn add(&mut self, snapshot: &Snapshot) {
        let began = |span: Span| {
            let now = snapshot.now.as_nanos();
            Time::from_nanos(now.saturating_sub(span.as_nanos()))
        };
        let oldest = began(REMEMBERED);
        push(
            &mut self.ticks,
            began(snapshot.span),
            Window::tick(snapshot),
            oldest,
        );
        if let Some(details) = Details::of(snapshot) {
            push(&mut self.details, began(details.span), details, oldest);
        }
    }

    /// The snapshots since then; at least the last one with disks.
    pub(super) fn since(&self, then: Time) -> Window {
        let mut window = Window::default();
        for (began, tick) in &self.ticks {
            if *began >= then {
                window.add_tick(tick);
            }
        }
        let last = self.details.len().saturating_sub(1);
        for (at, (began, more)) in self.details.iter().enumerate() {
            if *began >= then || at == last {
                window.details.add(more);
            }
        }
        window
    }

    /// All of it.
    pub(super) fn all(&self) -> Window {
        self.since(Time::ZERO)
    }
}

/// Adds the newest, and forgets what began before `oldest`.
fn push<T>(all: &mut VecDeque<(Time, T)>, began: Time, newest: T, oldest: Time) {
    all.push_back((began, newest));
    while all.len() > REMEMBERED_ANYWAY && all.front().is_some_and(|(began, _)| *began < oldest) {
        all.pop_front();
    }
}

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Keep,
    Undo,
    Void(Cause),
}

/// Why there is no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Guests ask for more than before the change.
    MoreLoad,
    /// Guests ask for less.
    LessLoad,
    /// A hypervisor took CPUs, or too little was measured.
    Host,
}

/// A change under trial.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    pub(super) direction: Direction,
    /// Active threads before it.
    pub(super) base: usize,
    /// The threads that were activated or locked.
    pub(super) threads: Vec<ThreadNumber>,
    pub(super) moves: Vec<Relocation>,
    pub(super) before: Window,
    began: Time,
    after: Option<Window>,
    /// Everything since the change, also while it settles.
    since: Window,
}

impl Trial {
    pub(super) fn new(now: Time, direction: Direction, base: usize, before: Window) -> Trial {
        Trial {
            direction,
            base,
            threads: Vec::new(),
            moves: Vec::new(),
            before,
            began: now,
            after: None,
            since: Window::default(),
        }
    }

    /// Begins to measure anew: the change was extended.
    pub(super) fn restart(&mut self, now: Time) {
        self.began = now;
        self.after = None;
        self.since = Window::default();
    }

    /// Whether a snapshot with disks is wanted at `next`: measuring begins or ends then.
    pub(super) fn wants_disks(&self, next: Time) -> bool {
        let age = next.since(self.began);
        age >= LENGTH || (self.after.is_none() && age >= SETTLING)
    }

    /// Takes a snapshot; whether the trial has lasted long enough.
    pub(super) fn see(&mut self, snapshot: &Snapshot) -> bool {
        let age = snapshot.now.since(self.began);
        let detailed = snapshot.disks_span.is_some();
        self.since.add(snapshot);
        match &mut self.after {
            Some(after) => after.add(snapshot),
            None if detailed && age >= SETTLING => self.after = Some(Window::default()),
            None => {}
        }
        // Never on fewer than three samples.
        detailed && age >= LENGTH && self.after.as_ref().is_some_and(|after| after.ticks >= 3)
    }

    /// Whether the change does so much harm that the trial need not last any longer.
    pub(super) fn is_disaster(&self, target: Span) -> bool {
        let Some(after) = self.after.as_ref().filter(|after| after.ticks >= 5) else {
            return false;
        };
        let (outcome, verdict) = self.compare(after, target);
        let score = change(verdict.work_before, verdict.work_after);
        outcome == Outcome::Undo && score <= -DISASTER
    }

    /// Compares what was before with what is; `target`: of the queueing delay.
    pub(super) fn judge(&self, target: Span) -> (Outcome, Verdict) {
        self.compare(self.after.as_ref().unwrap_or(&self.since), target)
    }

    /// The verdict if requests wait too long since the change: it was wrong, unless the load or the host changed.
    pub(super) fn judge_early(&self, target: Span) -> (Outcome, Verdict) {
        match self.compare(&self.since, target) {
            (Outcome::Void(cause), verdict) => (Outcome::Void(cause), verdict),
            (_, verdict) => (Outcome::Undo, verdict),
        }
    }

    /// Whether a change without a verdict stays: the load changed so that it is needed more, or costs less, than when it was
    /// made. Otherwise what stood before is the state that is known to have been right. Threads poll unless a verdict is
    /// against it.
    pub(super) fn stays_without_verdict(&self, cause: Cause) -> bool {
        match self.direction {
            Direction::Up => cause == Cause::MoreLoad,
            Direction::Down => cause == Cause::LessLoad,
            Direction::SpinOn => true,
            Direction::SpinOff => false,
        }
    }

    fn compare(&self, after: &Window, target: Span) -> (Outcome, Verdict) {
        let before = &self.before;
        let cpu_time = after.details.span.as_nanos() * u64::from(after.details.cpus.max(1));
        let (offered_change, is_more) = offered_change(&before.details, &after.details);
        let verdict = Verdict {
            work_before: before.score(),
            work_after: after.score(),
            delay_before: before.mean_delay(),
            delay_after: after.mean_delay(),
            guests_before: before.details.guests(),
            guests_after: after.details.guests(),
            offered_change,
            steal: ratio(after.details.steal.as_nanos(), cpu_time, 1000),
        };
        let unmeasured = after.ticks < 3 || before.ticks == 0;
        let score = change(verdict.work_before, verdict.work_after);
        let explained = u64::from(verdict.offered_change) * 2 >= score.unsigned_abs();
        let other_load = verdict.offered_change > LOAD_CHANGE
            || (verdict.offered_change > DISK_CHANGE && explained);
        let cause = match (unmeasured || verdict.steal > STEAL, other_load, is_more) {
            (true, ..) => Some(Cause::Host),
            (false, true, true) => Some(Cause::MoreLoad),
            (false, true, false) => Some(Cause::LessLoad),
            (false, false, _) => None,
        };
        if let Some(cause) = cause {
            return (Outcome::Void(cause), verdict);
        }
        // Of N random arrivals, sqrt(N) are chance.
        let samples = before.arrivals.min(after.arrivals).max(1);
        let shorter = before.details.span.min(after.details.span);
        let chance =
            1000 / samples.isqrt() + u64::from(ratio(LAG.as_nanos(), shorter.as_nanos(), 1000));
        let margin = MARGIN.max(i64::try_from(chance).unwrap_or(1000));
        let outcome = match self.is_better(&verdict, margin, target) {
            true => Outcome::Keep,
            false => Outcome::Undo,
        };
        (outcome, verdict)
    }

    fn is_better(&self, verdict: &Verdict, chance: i64, target: Span) -> bool {
        let margin = MARGIN.max(chance);
        let score = change(verdict.work_before, verdict.work_after);
        let guests = match (verdict.guests_before, verdict.guests_after) {
            (Some(before), Some(after)) => change(before.into(), after.into()),
            _ => 0,
        };
        let (delay, was) = (verdict.delay_after, verdict.delay_before);
        if score <= -margin || (guests < -GUESTS_LOSS.max(chance) && score < margin) {
            return false;
        }
        if score >= margin {
            return true;
        }
        let no_loss = score >= -TOLERATED.max(margin / 2);
        let is_shorter = delay.as_nanos() <= was.as_nanos() / 4 * 3;
        let is_bearable = delay <= target || delay.as_nanos() <= was.as_nanos() / 4 * 5;
        match self.direction {
            // More CPU time needs a gain.
            Direction::Up | Direction::SpinOn => {
                no_loss && (is_shorter || (delay <= target && was > target))
            }
            // Less CPU time is the gain.
            Direction::Down | Direction::SpinOff => no_loss && is_bearable,
        }
    }
}

fn per_second(count: u64, span: Span) -> u64 {
    let nanos = u128::from(span.as_nanos().max(1));
    let rate = u128::from(count) * 1_000_000_000 / nanos;
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// The change from `before` to `after`, in thousandths of `before`.
fn change(before: u64, after: u64) -> i64 {
    let percentage = (i128::from(after) - i128::from(before)) * 1000 / i128::from(before.max(1));
    i64::try_from(percentage).unwrap_or(i64::MAX)
}

/// How much of the requests is of disks whose offered load changed, and whether guests ask for more than before.
fn offered_change(before: &Details, after: &Details) -> (Permille, bool) {
    if before.count == 0 || after.count == 0 {
        return (0, false);
    }
    let rate = |count: u64, details: &Details| {
        u64::from(ratio(count, details.span.as_nanos(), 1_000_000_000))
    };
    let depth = |demand: Demand, details: &Details| {
        let (sum, span) = (demand.outstanding.as_nanos(), details.span.as_nanos());
        u64::from(ratio(sum, span, 1000))
    };
    let (mut total_before, mut total_after) = (0, 0);
    // Of disks that changed beyond chance, whatever the direction; and of all, where chance cancels out.
    let (mut certain, mut more, mut less) = (0, 0, 0);
    let disks: BTreeSet<_> = before.disks.keys().chain(after.disks.keys()).collect();
    for disk in disks {
        let old = before.disks.get(disk).copied().unwrap_or_default();
        let new = after.disks.get(disk).copied().unwrap_or_default();
        let (old_rate, new_rate) = (rate(old.arrivals, before), rate(new.arrivals, after));
        let (old_depth, new_depth) = (depth(old, before), depth(new, after));
        total_before += old_rate;
        total_after += new_rate;
        let by = relative(old_rate, new_rate);
        let one_direction = (old_rate < new_rate) == (old_depth < new_depth);
        if by <= DISK_CHANGE || !one_direction || relative(old_depth, new_depth) * 2 < by {
            continue;
        }
        let difference = old_rate.abs_diff(new_rate);
        match old_rate < new_rate {
            true => more += difference,
            false => less += difference,
        }
        // Two deviations of the smaller sample.
        let samples = old.arrivals.min(new.arrivals);
        if samples == 0 || by > ratio(2, samples.isqrt(), 1000) {
            certain += difference;
        }
    }
    let changed = more.abs_diff(less).max(certain);
    (
        ratio(changed, total_before.max(total_after), 1000),
        more > less,
    )
}

/// The difference in thousandths of the larger.
fn relative(one: u64, other: u64) -> Permille {
    ratio(one.abs_diff(other), one.max(other), 1000)
}

#[cfg(test)]
mod tests {
    use super::super::super::{DiskLoad, HostLoad, ThreadLoad, ThreadState};
    use super::*;
    use alloc::vec;

    /// A tick of 100 ms, with disks: `rate` requests a second and the mean `depth` of disk 0.
    fn tick(at: u64, rate: u64, depth: u64, delay_us: u64) -> Snapshot {
        let span = Span::from_millis(100);
        let arrivals = rate / 10;
        let thread = ThreadLoad {
            state: ThreadState::Active,
            delay_p99: Span::from_micros(delay_us),
            arrivals,
            completions: arrivals,
            work: arrivals * 20,
            ..ThreadLoad::default()
        };
        let disk = DiskLoad {
            arrivals,
            work: arrivals * 20,
            outstanding: Span::from_nanos(span.as_nanos() * depth),
            ..DiskLoad::idle(DiskId(0), 0)
        };
        Snapshot {
            now: Time::ZERO + Span::from_millis(at),
            span,
            host: HostLoad {
                cpus: 2,
                guests_run: Some(span),
                ..HostLoad::default()
            },
            threads: vec![thread],
            disks_span: Some(span),
            disks: vec![disk],
        }
    }

    /// The outcome of a change at 1 s: `before` and `after` are rate, depth and delay in us.
    fn outcome(
        direction: Direction,
        before: (u64, u64, u64),
        after: (u64, u64, u64),
        tamper: impl Fn(&mut Snapshot),
    ) -> Outcome {
        let mut history = History::default();
        for at in 7..=10 {
            history.add(&tick(at * 100, before.0, before.1, before.2));
        }
        let mut trial = Trial::new(tick(1000, 0, 0, 0).now, direction, 1, history.all());
        let mut at = 1000;
        loop {
            at += 100;
            let mut snapshot = tick(at, after.0, after.1, after.2);
            tamper(&mut snapshot);
            if trial.see(&snapshot) {
                return trial.judge(Span::from_micros(100)).0;
            }
        }
    }

    #[test]
    fn a_thread_that_serves_more_or_sooner_is_kept_and_one_that_brings_nothing_is_not() {
        use Direction::Up;
        let congested = (100_000, 32, 300);
        let of = |after| outcome(Up, congested, after, |_| {});
        assert_eq!(of((103_000, 32, 290)), Outcome::Keep);
        assert_eq!(of((99_500, 32, 60)), Outcome::Keep);
        assert_eq!(of((100_000, 32, 300)), Outcome::Undo);
        assert_eq!(of((97_000, 32, 60)), Outcome::Undo);
    }

    #[test]
    fn a_thread_fewer_may_cost_nothing() {
        let calm = (50_000, 4, 20);
        let of = |after| outcome(Direction::Down, calm, after, |_| {});
        assert_eq!(of((50_000, 4, 60)), Outcome::Keep);
        assert_eq!(of((50_000, 4, 200)), Outcome::Undo);
        assert_eq!(of((47_000, 4, 20)), Outcome::Undo);
    }

    #[test]
    fn a_change_of_the_load_gives_no_verdict() {
        use Direction::{Down, Up};
        let calm = (50_000, 4, 20);
        for direction in [Up, Down] {
            let of = |after| outcome(direction, calm, after, |_| {});
            let (less, more) = (
                Outcome::Void(Cause::LessLoad),
                Outcome::Void(Cause::MoreLoad),
            );
            assert_eq!(of((25_000, 2, 20)), less, "half the guests ended");
            assert_eq!(of((0, 0, 0)), less, "all guests ended");
            assert_eq!(of((90_000, 8, 500)), more, "more guests came");
        }
        let slower = outcome(Down, calm, (25_000, 4, 500), |_| {});
        assert_eq!(slower, Outcome::Undo, "as deep as before, but slower");
        let faster = outcome(Up, (50_000, 8, 500), (90_000, 8, 50), |_| {});
        assert_eq!(faster, Outcome::Keep, "as deep as before, but faster");
    }

    #[test]
    fn a_stolen_cpu_gives_no_verdict() {
        let steal = |snapshot: &mut Snapshot| snapshot.host.steal = Span::from_millis(20);
        let congested = (100_000, 32, 300);
        assert_eq!(
            outcome(Direction::Up, congested, (50_000, 32, 300), steal),
            Outcome::Void(Cause::Host)
        );
    }

    #[test]
    fn without_a_verdict_that_stays_which_the_load_speaks_for() {
        use Cause::{Host, LessLoad, MoreLoad};
        let stays = |direction| {
            let trial = Trial::new(Time::ZERO, direction, 1, Window::default());
            [MoreLoad, LessLoad, Host].map(|cause| trial.stays_without_verdict(cause))
        };
        assert_eq!(stays(Direction::Up), [true, false, false]);
        assert_eq!(stays(Direction::Down), [false, true, false]);
        assert_eq!(stays(Direction::SpinOn), [true; 3]);
        assert_eq!(stays(Direction::SpinOff), [false; 3]);
    }

    #[test]
    fn guests_that_lose_their_cpu_need_a_gain() {
        let starve = |s: &mut Snapshot| s.host.guests_run = Some(Span::from_millis(90));
        let congested = (100_000, 32, 300);
        let of = |after| outcome(Direction::Up, congested, after, starve);
        assert_eq!(of((101_000, 32, 60)), Outcome::Undo);
        assert_eq!(of((130_000, 32, 60)), Outcome::Keep);
    }

    #[test]
    fn few_requests_need_a_larger_difference() {
        let of = |after| outcome(Direction::Down, (1_000, 1, 20), after, |_| {});
        assert_eq!(of((980, 1, 20)), Outcome::Keep, "2 % of so few is chance");
        assert_eq!(of((800, 1, 20)), Outcome::Undo);
    }
}
