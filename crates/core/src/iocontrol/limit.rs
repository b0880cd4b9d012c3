//! Exact limits: the generic cell rate algorithm for IOPS and bandwidth, sustained and at peak.
//!
//! A meter is one time value: when all passed requests would have been due at the steady rate. A request passes while
//! that time is not further ahead than the burst lasts; then the time advances. A disk's meters belong to its I/O
//! thread. A group's meters are atomics ([`super::shared::Groups`]) that every thread advances.
//!
//! # Always true
//! - over any interval, at most `rate * interval + burst` and the last request pass (property-tested), also after a
//!   change of the limit
//! - an old rate does not delay a new one: after a change the next request is due within `groups::DEBT_MOST`, and no
//!   later than the last passed request takes at the new rate
//!
//! # Units
//! Times are ticks of 1/16 ns, so that a rate of a million a second is exact within 0.01 %. Every step is rounded up.

use super::policy::{GroupPolicy, Limit};
use super::shared::{Groups, Rate};
use super::{GroupId, Hold};
use crate::units::Time;

/// Ticks in a nanosecond.
pub(super) const TICKS_PER_NS: u64 = 16;
/// Ticks in a second.
pub(super) const TICKS_PER_S: u64 = 1_000_000_000 * TICKS_PER_NS;
/// How far a peak may be ahead: requests come in batches, and timers are late. Origin: chosen; no measurement.
const PEAK_SLACK: u64 = TICKS_PER_S / 100;

/// A time in ticks.
#[inline]
pub(super) const fn ticks(now: Time) -> u64 {
    now.as_nanos().saturating_mul(TICKS_PER_NS)
}

/// The first time that is not before this tick.
#[inline]
pub(super) const fn moment(ticks: u64) -> Time {
    Time::from_nanos(ticks.div_ceil(TICKS_PER_NS))
}

/// The rates of a limit: sustained and peak.
fn rates(limit: Option<&Limit>) -> [Rate; 2] {
    let Some(limit) = limit else {
        return [Rate::NONE; 2];
    };
    let slack =
        u128::from(limit.burst) * u128::from(TICKS_PER_S) / u128::from(limit.sustained.max(1));
    let sustained = Rate {
        per_second: limit.sustained.max(1),
        // A burst of more than a year is useless, and must not overflow a time.
        slack: u64::try_from(slack).map_or(u64::MAX >> 4, |slack| slack.min(u64::MAX >> 4)),
    };
    let peak = Rate {
        per_second: limit.peak,
        slack: PEAK_SLACK,
    };
    [sustained, peak]
}

/// One rate and its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Meter {
    rate: Rate,
    tat: u64,
}

impl Meter {
    fn new(rate: Rate) -> Meter {
        Meter { rate, tat: 0 }
    }

    /// The tick from which a request may pass.
    #[inline]
    fn due(&self) -> u64 {
        if self.rate.per_second == 0 {
            0
        } else {
            self.tat.saturating_sub(self.rate.slack)
        }
    }

    #[inline]
    fn take(&mut self, now: u64, amount: u64) {
        if self.rate.per_second != 0 {
            self.tat = self.tat.max(now).saturating_add(self.rate.step(amount));
        }
    }

    /// Converts the current use to another rate.
    fn change(&mut self, now: u64, rate: Rate) {
        let ahead = rate.carry_over(self.rate, self.tat.saturating_sub(now));
        self.tat = now.saturating_add(ahead);
        self.rate = rate;
    }
}

/// A disk's limit of units, or of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gate {
    sustained: Meter,
    peak: Meter,
    burst: u64,
}

impl Gate {
    /// A gate with its whole burst left.
    pub(super) fn new(limit: Option<&Limit>) -> Gate {
        let [sustained, peak] = rates(limit);
        Gate {
            sustained: Meter::new(sustained),
            peak: Meter::new(peak),
            burst: limit.map_or(0, |limit| limit.burst),
        }
    }

    /// Changes the limit; used amounts stay used.
    pub(super) fn change(&mut self, now: Time, limit: Option<&Limit>) {
        let [sustained, peak] = rates(limit);
        self.sustained.change(ticks(now), sustained);
        self.peak.change(ticks(now), peak);
        self.burst = limit.map_or(0, |limit| limit.burst);
    }

    /// The tick from which a request may pass.
    #[inline]
    pub(super) fn due(&self) -> u64 {
        self.sustained.due().max(self.peak.due())
    }

    /// Passes a request. The caller has checked `due`.
    #[inline]
    pub(super) fn take(&mut self, now: u64, amount: u64) {
        self.sustained.take(now, amount);
        self.peak.take(now, amount);
    }

    /// Passes a request that a limit would have delayed, and returns by how long. The excess is forgiven, since no I/O
    /// was delayed.
    pub(super) fn observe(&mut self, now: u64, amount: u64) -> u64 {
        let late = self.due().saturating_sub(now);
        for meter in [&mut self.sustained, &mut self.peak] {
            meter.tat = meter.tat.min(now.saturating_add(meter.rate.slack));
        }
        self.take(now, amount);
        late / TICKS_PER_NS
    }

    /// The remaining burst.
    pub(super) fn burst_left(&self, now: Time) -> u64 {
        let ahead = self.sustained.tat.saturating_sub(ticks(now));
        let used = u128::from(ahead) * u128::from(self.sustained.rate.per_second)
            / u128::from(TICKS_PER_S);
        self.burst
            .saturating_sub(u64::try_from(used).unwrap_or(u64::MAX))
    }
}

/// Both limits of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gates {
    pub(super) units: Gate,
    pub(super) bytes: Gate,
}

impl Gates {
    /// The tick from which a request may pass, and the limit that determines it.
    #[inline]
    pub(super) fn due(&self) -> (u64, Hold) {
        let (units, bytes) = (self.units.due(), self.bytes.due());
        if bytes > units {
            (bytes, Hold::Bandwidth)
        } else {
            (units, Hold::Limit)
        }
    }

    /// Passes a request regardless of the limits.
    pub(super) fn pass(&mut self, now: Time, units: u64, bytes: u64) {
        self.units.take(ticks(now), units);
        self.bytes.take(ticks(now), bytes);
    }

    /// The used amounts, if any.
    pub(super) fn spent(&self) -> Option<Spent> {
        let spent = Spent(*self);
        (spent.over_at() > Time::ZERO).then_some(spent)
    }
}

/// The used amounts of a disk's limits at its detachment. They count when the disk returns, whatever its limits are
/// then ([`super::Scheduler::resume`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent(Gates);

impl Spent {
    /// The used amounts converted to these new limits.
    pub(super) fn of(&self, now: Time, limit: Option<&Limit>, bandwidth: Option<&Limit>) -> Gates {
        let mut gates = self.0;
        gates.units.change(now, limit);
        gates.bytes.change(now, bandwidth);
        gates
    }

    /// When the used amounts have expired; the value can then be dropped.
    pub fn over_at(&self) -> Time {
        let gates = [self.0.units, self.0.bytes];
        let meters = gates.iter().flat_map(|gate| [gate.sustained, gate.peak]);
        let used = meters.filter(|meter| meter.rate.per_second != 0);
        used.map(|meter| moment(meter.tat))
            .max()
            .unwrap_or(Time::ZERO)
    }
}

impl Groups {
    /// Sets the group's limits. A group that never had limits delays no I/O.
    ///
    /// # Panics
    /// If there is no such group: the plan numbers groups within the capacity it requested.
    pub fn set(&self, now: Time, group: GroupId, policy: &GroupPolicy) {
        let [units, units_peak] = rates(policy.limit.as_ref());
        let [bytes, bytes_peak] = rates(policy.bandwidth.as_ref());
        self.change(
            group.0 as usize,
            ticks(now),
            [units, units_peak, bytes, bytes_peak],
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iocontrol::GroupsHandle;
    use crate::units::Span;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// The amount in the busiest interval, minus what the rate and the burst allow: never more than the last request.
    fn exceeds(passed: &[(u64, u64)], per_second: u64, slack_ns: u64, burst: u64) -> bool {
        (0..passed.len()).any(|first| {
            let mut amount = 0_u128;
            (first..passed.len()).any(|last| {
                let span = u128::from(passed[last].0 - passed[first].0 + slack_ns);
                let allowed = span * u128::from(per_second) + u128::from(burst) * 1_000_000_000;
                let over = amount * 1_000_000_000 > allowed;
                amount += u128::from(passed[last].1);
                over
            })
        })
    }

    proptest! {
        #[test]
        fn no_interval_sees_more_than_rate_and_burst_and_one_request(
            sustained in 1..100_000_u64,
            factor in 0..5_u64,
            burst in prop_oneof![Just(0), 1..10_000_u64],
            arrivals in prop::collection::vec((0..40_000_000_u64, 1..64_u64), 1..120),
        ) {
            let limit = Limit { sustained, peak: factor * sustained, burst };
            let mut gate = Gate::new(Some(&limit));
            let mut now = 0;
            let mut passed = Vec::new();
            for (gap, amount) in arrivals {
                now = (now + gap).max(moment(gate.due()).as_nanos());
                gate.take(ticks(Time::from_nanos(now)), amount);
                passed.push((now, amount));
            }
            prop_assert!(!exceeds(&passed, sustained, 0, burst));
            if factor > 0 {
                prop_assert!(!exceeds(&passed, limit.peak, 10_000_000, 0));
            }
        }
    }

    fn limit() -> impl Strategy<Value = Limit> {
        let burst = prop_oneof![Just(0), 1..10_000_u64];
        (1..100_000_u64, 0..5_u64, burst).prop_map(|(sustained, factor, burst)| Limit {
            sustained,
            peak: factor * sustained,
            burst,
        })
    }

    proptest! {
        #[test]
        fn a_new_limit_applies_at_once_and_the_old_one_delays_little(
            old in limit(),
            new in limit(),
            arrivals in prop::collection::vec((0..40_000_000_u64, 1..100_000_u64), 1..60),
            change in any::<prop::sample::Index>(),
            grouped in any::<bool>(),
        ) {
            let policy = |limit: Limit| GroupPolicy { limit: Some(limit), bandwidth: None };
            let mut gate = Gate::new(Some(&old));
            let groups = group(Some(old), None);
            let change = change.index(arrivals.len());
            let mut now = 0;
            let mut passed = Vec::new();
            for (place, (gap, amount)) in arrivals.into_iter().enumerate() {
                now += gap;
                if place == change {
                    let at = Time::from_nanos(now);
                    gate.change(at, Some(&new));
                    groups.set(at, GroupId(0), &policy(new));
                    passed.clear();
                    let due = moment(if grouped { groups.due(0) } else { gate.due() });
                    prop_assert!(due <= at + Span::from_secs(1), "due {due:?} at {at:?}");
                }
                if grouped {
                    now = now.max(moment(groups.due(0)).as_nanos());
                    let took = groups.take(0, ticks(Time::from_nanos(now)), amount, 0);
                    prop_assert!(took.is_some());
                } else {
                    now = now.max(moment(gate.due()).as_nanos());
                    gate.take(ticks(Time::from_nanos(now)), amount);
                }
                passed.push((now, amount));
            }
            prop_assert!(!exceeds(&passed, new.sustained, 0, new.burst));
            if new.peak > 0 {
                prop_assert!(!exceeds(&passed, new.peak, 10_000_000, 0));
            }
        }
    }

    #[test]
    fn a_lowered_limit_has_the_next_request_wait_for_a_second_at_most() {
        let steady = |sustained| Limit {
            sustained,
            peak: 0,
            burst: 0,
        };
        // 32 MiB at 20 MiB a second, then 1 KiB a second: nine hours, if the debt were paid at the new rate.
        let mut gate = Gate::new(Some(&steady(20 << 20)));
        gate.take(0, 32 << 20);
        gate.change(Time::ZERO, Some(&steady(1 << 10)));
        assert_eq!(moment(gate.due()), Time::from_nanos(1_000_000_000));
        // The new limit holds from then on.
        gate.take(gate.due(), 4096);
        assert_eq!(moment(gate.due()), Time::from_nanos(5_000_000_000));
        // A change of another setting has no effect.
        gate.change(Time::from_nanos(1_000_000_000), Some(&steady(1 << 10)));
        assert_eq!(moment(gate.due()), Time::from_nanos(5_000_000_000));
    }

    #[test]
    fn used_burst_stays_used_up_to_the_new_burst() {
        let bursting = |sustained, burst| Limit {
            sustained,
            peak: 0,
            burst,
        };
        let mut gate = Gate::new(Some(&bursting(1_000, 4_000)));
        gate.take(0, 3_000);
        gate.change(Time::ZERO, Some(&bursting(500, 4_000)));
        assert_eq!(gate.burst_left(Time::ZERO), 1_000);
        gate.change(Time::ZERO, Some(&bursting(100, 2_000)));
        assert_eq!(gate.burst_left(Time::ZERO), 0);
        assert_eq!(gate.due(), 0, "nothing passed beyond its burst");
    }

    #[test]
    fn a_rate_is_exact_on_average() {
        for rate in [3, 300, 2_500, 999_983] {
            let mut gate = Gate::new(Some(&Limit::steady(rate)));
            let mut now = Time::ZERO;
            let n = 1_000_000;
            for _ in 0..n {
                now = now.max(moment(gate.due()));
                gate.take(ticks(now), 1);
            }
            let expected = u128::from(n - rate / 10) * 1_000_000_000 / u128::from(rate);
            let error = expected.abs_diff(u128::from(now.as_nanos()));
            assert!(error * 1_000 <= expected, "{rate}: {now:?} for {expected}");
        }
    }

    #[test]
    fn a_spent_burst_refills_at_the_sustained_rate() {
        let limit = Limit::bursting(1_000, 3_000, 2);
        let mut gate = Gate::new(Some(&limit));
        assert_eq!(gate.burst_left(Time::ZERO), 4_000);
        gate.take(0, 4_000);
        assert_eq!(gate.burst_left(Time::ZERO), 0);
        let full = Time::from_nanos(4_000_000_000);
        assert_eq!(gate.burst_left(full), 4_000);
        assert!(gate.burst_left(Time::from_nanos(3_960_000_000)) < 4_000);
    }

    fn group(limit: Option<Limit>, bandwidth: Option<Limit>) -> GroupsHandle {
        let groups = Groups::new(1);
        let policy = GroupPolicy { limit, bandwidth };
        groups.set(Time::ZERO, GroupId(0), &policy);
        groups
    }

    #[test]
    fn a_groups_bandwidth_limit_works_like_its_unit_limit() {
        let peak = Limit {
            sustained: 1 << 20,
            peak: 4 << 20,
            burst: 1 << 20,
        };
        let groups = group(None, Some(peak));
        assert!(groups.take(0, 0, 1, 1 << 18).is_some());
        // A quarter of a MiB takes 62.5 ms at the peak, of which 10 ms may be ahead.
        let due = groups.due(0);
        assert_eq!(moment(due), Time::from_nanos(52_500_000));
        assert!(groups.take(0, due - 1, 1, 4_096).is_none());
        assert!(groups.take(0, due, 1, 4_096).is_some());
    }

    #[test]
    fn a_request_refused_by_one_group_meter_is_charged_to_none() {
        let steady = |sustained| Limit {
            sustained,
            peak: 0,
            burst: 0,
        };
        let groups = group(Some(Limit::steady(1_000)), Some(steady(1 << 20)));
        assert!(groups.take(0, 0, 1, 1 << 20).is_some());
        for _ in 0..1_000 {
            assert!(groups.take(0, 1, 1, 4_096).is_none());
        }
        // The bytes of the first are due after a second; units never delayed a request.
        assert_eq!(moment(groups.due(0)), Time::from_nanos(1_000_000_000));
        let units = GroupPolicy {
            limit: Some(Limit::steady(1_000)),
            bandwidth: None,
        };
        groups.set(Time::ZERO, GroupId(0), &units);
        assert_eq!(groups.due(0), 0);
    }

    #[test]
    fn a_small_limit_makes_up_for_a_timer_that_was_late() {
        let mut gate = Gate::new(Some(&Limit::steady(5)));
        let late = ticks(Time::from_nanos(30_000_000));
        let mut now = 0;
        for io in 0..50 {
            now = now.max(gate.due()) + late;
            gate.take(now, 1);
            let ms = (io + 1) * 200;
            let most = Time::ZERO + Span::from_millis(ms + 30);
            assert!(
                moment(now) <= most,
                "the {io}th was later than the one before it"
            );
        }
    }

    #[test]
    fn a_changed_limit_does_not_forget_what_was_used() {
        let mut gate = Gate::new(Some(&Limit {
            sustained: 100,
            peak: 0,
            burst: 0,
        }));
        gate.take(0, 50);
        gate.change(
            Time::ZERO,
            Some(&Limit {
                sustained: 1_000,
                peak: 0,
                burst: 0,
            }),
        );
        assert_eq!(moment(gate.due()), Time::from_nanos(50_000_000));
    }
}
