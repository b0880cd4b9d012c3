//! The write budget of a cache's devices: how many bytes of each may be written in a day.
//!
//! A bucket that fills evenly, and has the bytes of one day at most. Whoever uses the cache reports what was written. Once the
//! bucket is empty, nothing may enter the cache until it has the bytes of an hour again: so the caches do not change their
//! ways every second. What was written beyond the budget is a debt, of one day at most.
//!
//! # Always true
//! - in any time of more than a day, no more is asked for than the budget of that time and one day's more, but for debts
//! # Units
//! Bytes of one device. Time is the caller's.

use crate::units::{Span, Time};

/// One day.
const DAY: Span = Span::from_secs(24 * 3600);
/// After the bucket was empty, this part of a day's bytes ends that: an hour's. Origin: chosen.
const ENOUGH: i64 = 24;

/// See the module.
#[derive(Clone, Debug)]
pub struct Budget {
    per_day: u64,
    /// Bytes that may be written now; negative: written too much.
    left: i64,
    /// What fills the bucket and is no whole byte yet, in bytes times nanoseconds of a day.
    rest: u128,
    at: Time,
    spent: bool,
}

impl Budget {
    /// A bucket of which this is left.
    pub fn new(per_day: u64, left: i64, now: Time) -> Budget {
        let mut budget = Budget {
            per_day,
            left,
            rest: 0,
            at: now,
            spent: false,
        };
        budget.clamp();
        budget.judge();
        budget
    }

    /// A full one.
    pub fn full(per_day: u64, now: Time) -> Budget {
        Budget::new(per_day, i64::MAX, now)
    }

    /// So many bytes were written since this was told last. Returns whether nothing more is to enter the cache.
    pub fn spend(&mut self, now: Time, written: u64) -> bool {
        self.fill(now.since(self.at));
        self.at = self.at.max(now);
        let written = i64::try_from(written).unwrap_or(i64::MAX);
        self.left = self.left.saturating_sub(written);
        self.clamp();
        self.judge();
        self.spent
    }

    /// Time has passed in which nothing was reported.
    pub fn fill(&mut self, passed: Span) {
        let day = u128::from(DAY.as_nanos());
        let rest = self.rest + u128::from(self.per_day) * u128::from(passed.as_nanos());
        self.rest = rest % day;
        let bytes = i64::try_from(rest / day).unwrap_or(i64::MAX);
        self.left = self.left.saturating_add(bytes);
        self.clamp();
        self.judge();
    }

    fn clamp(&mut self) {
        let most = self.most();
        self.left = self.left.clamp(-most, most);
    }

    fn judge(&mut self) {
        let enough = (self.most() / ENOUGH).max(1);
        self.spent = match self.spent {
            true => self.left < enough,
            false => self.left <= 0,
        };
    }

    fn most(&self) -> i64 {
        i64::try_from(self.per_day).unwrap_or(i64::MAX)
    }

    /// Bytes that may be written now; negative: that were written too much.
    pub fn left(&self) -> i64 {
        self.left
    }

    /// Whether nothing more is to enter the cache.
    pub fn is_spent(&self) -> bool {
        self.spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn after(hours: u64) -> Time {
        Time::ZERO + Span::from_secs(hours * 3600)
    }

    #[test]
    fn a_day_s_bytes_may_be_written_at_once_and_then_what_comes() {
        let mut budget = Budget::full(24 * GIB, after(0));
        assert!(!budget.spend(after(0), 24 * GIB - 1));
        assert!(budget.spend(after(0), 1), "it is empty");
        assert!(budget.spend(after(0) + Span::from_secs(3599), 0));
        assert!(!budget.spend(after(1), 0), "an hour's bytes are enough");
        assert!(!budget.spend(after(1), GIB - 1));
        assert_eq!(budget.left(), 1);
        assert!(budget.spend(after(1), 1));
    }

    #[test]
    fn what_was_written_too_much_is_owed_for_a_day_at_most() {
        let mut budget = Budget::full(24 * GIB, after(0));
        assert!(budget.spend(after(0), 1000 * GIB));
        assert!(budget.spend(after(24), 0));
        assert_eq!(budget.left(), 0);
        assert!(!budget.spend(after(25), 0));
        budget.fill(Span::from_secs(1_000_000));
        assert_eq!(budget.left(), i64::try_from(24 * GIB).expect("it fits"));
    }

    #[test]
    fn whoever_writes_steadily_gets_the_budget_and_no_more() {
        let per_day = 7 * GIB + 13;
        let mut budget = Budget::new(per_day, 0, Time::ZERO);
        assert!(budget.is_spent());
        let (mut now, mut written) = (Time::ZERO, 0);
        for _ in 0..7 * 24 * 3600 {
            now = now + Span::from_secs(1);
            let more = if budget.is_spent() { 0 } else { GIB / 1000 };
            written += more;
            budget.spend(now, more);
        }
        let allowed = 7 * per_day;
        assert!(written <= allowed + GIB / 1000, "{written} of {allowed}");
        assert!(written >= allowed - per_day / 12, "{written} of {allowed}");
    }
}
