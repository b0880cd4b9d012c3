//! Group limits: atomics that a host's I/O threads share.
//!
//! Every I/O thread lets I/Os of a group's disks pass here, whatever datastore they are for. What a thread cannot know
//! alone is whether a disk of the group on another thread is further behind: each tells it by a word at its seat.
//!
//! # Always true
//! - threads together never pass more of a group's limit than one thread would (loom)
//! - of threads that wait for a group's limit, the one furthest behind is never told to let others go first (loom)

use super::atomics::{AtomicU64, Ordering};
use alloc::boxed::Box;
use alloc::sync::Arc;

/// What the schedulers of a host share about groups.
pub type GroupsHandle = Arc<Groups>;

/// No tag and no moment: nothing waits.
pub(super) const NONE: u64 = u64::MAX;

/// Whether one tag comes before another, whichever has wrapped.
pub(super) const fn wraps_before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) < 0
}

/// After a limit has changed, the next request waits at most so long for what passed before, in ticks: a second. The
/// limit still holds on average, and no guest takes the disk for dead. Origin: chosen; no measurement.
pub(super) const DEBT_MOST: u64 = 16_000_000_000;

/// So much a second, and how far ahead of that one may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Per second; 0: no ceiling.
    pub per_second: u64,
    /// Ticks.
    pub slack: u64,
}

impl Rate {
    /// No ceiling.
    pub const NONE: Rate = Rate {
        per_second: 0,
        slack: 0,
    };

    /// How far ahead a meter is that takes on this rate. `ahead`: how far it was at the old one.
    ///
    /// What was used of the burst stays used, as an amount, as far as the new burst goes. What was ahead of that is the debt
    /// of the request that passed last: it stays as an amount too, and takes [`DEBT_MOST`] at most.
    pub(super) fn carry_over(&self, old: Rate, ahead: u64) -> u64 {
        if (old.per_second, old.slack) == (self.per_second, self.slack) {
            return ahead;
        }
        let at_new = |ticks: u64| {
            let amount = u128::from(ticks) * u128::from(old.per_second);
            let ticks = amount / u128::from(self.per_second.max(1));
            u64::try_from(ticks).unwrap_or(u64::MAX >> 4)
        };
        let used = ahead.min(old.slack);
        at_new(used).min(self.slack) + at_new(ahead - used).min(DEBT_MOST)
    }

    /// Ticks that `amount` takes at this rate, rounded up.
    #[inline]
    pub fn step(&self, amount: u64) -> u64 {
        const TICKS: u64 = 16_000_000_000;
        match amount.checked_mul(TICKS) {
            Some(ticks) => ticks.div_ceil(self.per_second),
            None => {
                let step =
                    (u128::from(amount) * u128::from(TICKS)).div_ceil(u128::from(self.per_second));
                u64::try_from(step).unwrap_or(u64::MAX >> 4)
            }
        }
    }
}

/// I/O threads that can have disks of one group and know of each other. Origin: chosen; no measurement.
const SEATS: usize = 32;

/// How far threads may differ in what their disks had of a group's limit: 2 ms of it, for a disk with 1000 shares. So
/// much may pass before another thread's timer expires. Origin: chosen; no measurement.
const GROUP_REACH: u64 = 2_000_000 * 16;

/// How far behind a disk of a group may be when it becomes active: as far as another may be ahead, and as much again.
const GROUP_CREDIT: u64 = 2 * GROUP_REACH;

/// The limits of the groups of a host, over all its datastores and threads, and how far each group's disks are with them.
///
/// A group has a virtual time of its own: the time that its limit takes for what passed, divided by the shares of whose
/// it was. Each thread tells the least tag that waits on it, and lets those of the others go first that are far behind.
/// All of that is advice: whoever does not know of it yet is wrong by what one thread may be ahead of another.
pub struct Groups {
    groups: Box<[SharedGroup]>,
}

struct SharedGroup {
    meters: [SharedMeter; 4],
    /// The latest tag at which something passed.
    v: AtomicU64,
    /// Which seats are taken, a bit each.
    taken: AtomicU64,
    /// By seat: the least tag that waits.
    waiting: [AtomicU64; SEATS],
}

struct SharedMeter {
    per_second: AtomicU64,
    slack: AtomicU64,
    tat: AtomicU64,
}

impl Groups {
    /// Room for that many groups, all without limits.
    pub fn new(capacity: usize) -> GroupsHandle {
        let meter = || SharedMeter {
            per_second: AtomicU64::new(0),
            slack: AtomicU64::new(0),
            tat: AtomicU64::new(0),
        };
        let groups = (0..capacity).map(|_| SharedGroup {
            meters: [meter(), meter(), meter(), meter()],
            v: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            waiting: core::array::from_fn(|_| AtomicU64::new(NONE)),
        });
        Arc::new(Groups {
            groups: groups.collect(),
        })
    }

    pub(super) fn sit_down(&self, group: usize) -> Option<usize> {
        let group = self.groups.get(group)?;
        let mut taken = group.taken.load(Ordering::Relaxed);
        loop {
            let seat = taken.trailing_ones() as usize;
            if seat >= SEATS {
                return None;
            }
            match group.taken.compare_exchange_weak(
                taken,
                taken | 1 << seat,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(seat),
                Err(other) => taken = other,
            }
        }
    }

    pub(super) fn stand_up(&self, group: usize, seat: usize) {
        let group = &self.groups[group];
        group.waiting[seat].store(NONE, Ordering::Relaxed);
        group.taken.fetch_and(!(1 << seat), Ordering::Release);
    }

    pub(super) fn tell(&self, group: usize, seat: usize, tag: Option<u64>) {
        // The tag that means "none" is one too late: nobody can tell.
        let tag = tag.map_or(NONE, |tag| tag.min(NONE - 1));
        let told = &self.groups[group].waiting[seat];
        // Nobody else writes it; a store that says nothing new would take the line from those who look.
        if told.load(Ordering::Relaxed) != tag {
            told.store(tag, Ordering::Relaxed);
        }
    }

    pub(super) fn before(
        &self,
        group: usize,
        own: Option<usize>,
        tag: u64,
        ignored: &[u64],
    ) -> Option<(usize, u64)> {
        let group = self.groups.get(group)?;
        let mut least: Option<(usize, u64)> = None;
        let mut taken = group.taken.load(Ordering::Relaxed);
        while taken != 0 {
            let seat = taken.trailing_zeros() as usize;
            taken &= taken - 1;
            let other = group.waiting[seat].load(Ordering::Relaxed);
            if own == Some(seat) || other == NONE || ignored.get(seat) == Some(&other) {
                continue;
            }
            if least.is_none_or(|(_, least)| wraps_before(other, least)) {
                least = Some((seat, other));
            }
        }
        least.filter(|(_, other)| wraps_before(other.wrapping_add(GROUP_REACH), tag))
    }

    /// The group's virtual time.
    pub(super) fn v(&self, group: usize) -> u64 {
        let group = self.groups.get(group);
        group.map_or(0, |group| group.v.load(Ordering::Relaxed))
    }

    /// From where a disk of the group goes on that had come to `tag`: a time without anything to do saves up little.
    pub(super) fn since(&self, group: usize, tag: u64) -> u64 {
        let Some(group) = self.groups.get(group) else {
            return tag;
        };
        let least = group.v.load(Ordering::Relaxed).wrapping_sub(GROUP_CREDIT);
        if wraps_before(tag, least) { least } else { tag }
    }

    /// Something passed whose disk had come to `tag`.
    pub(super) fn passed(&self, group: usize, tag: u64) {
        let Some(group) = self.groups.get(group) else {
            return;
        };
        let mut now = group.v.load(Ordering::Relaxed);
        while wraps_before(now, tag) {
            match group
                .v
                .compare_exchange_weak(now, tag, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }

    /// Sets the rates of a group: units, units at the peak, bytes, bytes at the peak. What was used is kept as amounts.
    pub(super) fn change(&self, group: usize, now: u64, rates: [Rate; 4]) {
        for (meter, rate) in self.groups[group].meters.iter().zip(rates) {
            let old = Rate {
                per_second: meter.per_second.load(Ordering::Relaxed),
                slack: meter.slack.load(Ordering::Relaxed),
            };
            let tat = meter.tat.load(Ordering::Relaxed);
            let ahead = rate.carry_over(old, tat.saturating_sub(now));
            meter.slack.store(rate.slack, Ordering::Relaxed);
            meter.per_second.store(rate.per_second, Ordering::Relaxed);
            // Whoever passes between these lines is counted at one of the two rates.
            let _raced = meter.tat.compare_exchange(
                tat,
                now.saturating_add(ahead),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// The tick from which on the group may pass something.
    pub(super) fn due(&self, group: usize) -> u64 {
        let Some(group) = self.groups.get(group) else {
            return 0;
        };
        group.meters.iter().map(SharedMeter::due).max().unwrap_or(0)
    }

    /// Lets so many units and bytes pass and tells how long that takes of the limit in the long run, or says no.
    pub(super) fn take(&self, group: usize, now: u64, units: u64, bytes: u64) -> Option<u64> {
        let Some(group) = self.groups.get(group) else {
            return Some(0);
        };
        let meters = &group.meters;
        let amounts = [units, units, bytes, bytes];
        let mut steps = [0; 4];
        for place in 0..4 {
            match meters[place].take(now, amounts[place]) {
                Some(step) => steps[place] = step,
                None => {
                    for (meter, step) in meters[..place].iter().zip(steps) {
                        meter.tat.fetch_sub(step, Ordering::Relaxed);
                    }
                    return None;
                }
            }
        }
        Some(steps[0].max(steps[2]))
    }
}

impl SharedMeter {
    fn due(&self) -> u64 {
        if self.per_second.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let tat = self.tat.load(Ordering::Relaxed);
        tat.saturating_sub(self.slack.load(Ordering::Relaxed))
    }

    /// Lets `amount` pass and tells by how much the meter moved on, or says no.
    fn take(&self, now: u64, amount: u64) -> Option<u64> {
        let rate = Rate {
            per_second: self.per_second.load(Ordering::Relaxed),
            slack: self.slack.load(Ordering::Relaxed),
        };
        if rate.per_second == 0 {
            return Some(0);
        }
        let step = rate.step(amount);
        let mut tat = self.tat.load(Ordering::Relaxed);
        loop {
            if tat.saturating_sub(rate.slack) > now {
                return None;
            }
            let next = tat.max(now).saturating_add(step);
            match self
                .tat
                .compare_exchange_weak(tat, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some(step),
                Err(other) => tat = other,
            }
        }
    }
}
