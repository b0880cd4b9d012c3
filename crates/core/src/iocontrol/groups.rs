//! Group limits: atomics that a host's I/O threads share.
//!
//! Every I/O thread takes the I/Os of a group's disks from the same meters, for any datastore. A thread cannot know
//! whether a disk of the group on another thread is further behind. Each thread therefore publishes one word in its
//! seat.
//!
//! # Always true
//! - threads together never pass more of a group's limit than one thread would (loom)
//! - among threads that wait for a group's limit, the one furthest behind never yields to another (loom)

use super::atomics::{AtomicU64, Ordering};
use alloc::boxed::Box;
use alloc::sync::Arc;

/// The group state that the schedulers of a host share.
pub type GroupsHandle = Arc<Groups>;

/// No tag and no time: no disk waits.
pub(super) const NONE: u64 = u64::MAX;

/// Whether one tag precedes another, even if one has wrapped.
pub(super) const fn wraps_before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) < 0
}

/// After a change of a limit, the next request waits at most this long (a second, in ticks) for earlier ones. The limit
/// still holds on average, and no guest times out. Origin: chosen; no measurement.
pub(super) const DEBT_MOST: u64 = 16_000_000_000;

/// A rate per second, and how far ahead of it a meter may be.
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

    /// How far ahead a meter is when it changes to this rate. `ahead`: how far it was at the old rate.
    ///
    /// The used amount of the burst stays used, up to the new burst. Anything beyond is the debt of the last request.
    /// It remains as an amount too, and takes at most [`DEBT_MOST`].
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

/// The maximum number of I/O threads that coordinate in one group. Origin: chosen; no measurement.
const SEATS: usize = 32;

/// How far threads may differ in what their disks used of a group's limit: 2 ms of it, for a disk with 1000 shares.
/// This amount may pass before another thread's timer expires. Origin: chosen; no measurement.
const GROUP_REACH: u64 = 2_000_000 * 16;

/// How far behind a disk of a group may be when it becomes active: twice the reach, since another may be ahead by it.
const GROUP_CREDIT: u64 = 2 * GROUP_REACH;

/// The limits of a host's groups over all datastores and threads, and the position of each group's disks.
///
/// A group has its own virtual time: the time that its limit takes for an I/O, divided by the shares of the I/O's disk.
/// Each thread publishes the least tag that waits on it, and yields to threads that are far behind. The coordination is
/// advisory: a thread with stale information errs by at most what one thread may be ahead of another.
pub struct Groups {
    groups: Box<[SharedGroup]>,
}

struct SharedGroup {
    meters: [SharedMeter; 4],
    /// The latest tag of a passed I/O.
    v: AtomicU64,
    /// A bit for each occupied seat.
    taken: AtomicU64,
    /// By seat: the least waiting tag.
    waiting: [AtomicU64; SEATS],
}

struct SharedMeter {
    per_second: AtomicU64,
    slack: AtomicU64,
    tat: AtomicU64,
}

impl Groups {
    /// Allocates this many groups, all without limits.
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

    pub(super) fn take_seat(&self, group: usize) -> Option<usize> {
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

    pub(super) fn publish(&self, group: usize, seat: usize, tag: Option<u64>) {
        // The tag that means "none" is replaced by the next one; the difference does not matter.
        let tag = tag.map_or(NONE, |tag| tag.min(NONE - 1));
        let word = &self.groups[group].waiting[seat];
        // Only this thread writes it. Storing an unchanged value would take the cache line from the readers.
        if word.load(Ordering::Relaxed) != tag {
            word.store(tag, Ordering::Relaxed);
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

    /// The tag at which a disk of the group continues after `tag`: an idle disk saves little.
    pub(super) fn since(&self, group: usize, tag: u64) -> u64 {
        let Some(group) = self.groups.get(group) else {
            return tag;
        };
        let least = group.v.load(Ordering::Relaxed).wrapping_sub(GROUP_CREDIT);
        if wraps_before(tag, least) { least } else { tag }
    }

    /// Records that an I/O of a disk at `tag` has passed.
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

    /// Sets the rates of a group: units, units at the peak, bytes, bytes at the peak. Used amounts remain.
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
            // A request that passes between these lines is counted at one of the two rates.
            let _raced = meter.tat.compare_exchange(
                tat,
                now.saturating_add(ahead),
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// The tick from which the group may pass an I/O.
    pub(super) fn due(&self, group: usize) -> u64 {
        let Some(group) = self.groups.get(group) else {
            return 0;
        };
        group.meters.iter().map(SharedMeter::due).max().unwrap_or(0)
    }

    /// Passes this many units and bytes and returns the time that they take of the sustained limit, or refuses.
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

    /// Passes `amount` and returns how far the meter advanced, or refuses.
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
