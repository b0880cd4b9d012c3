//! The budget of changes: how many moves and changes of the number of threads guests can bring about.
//!
//! Each load that comes and goes may be a reason for changes, and a guest chooses its load. So changes are counted: one is a
//! move, or a thread more or fewer with its moves. Those that only save CPUs use the first half of the budget. So under a load
//! that swings for long, the threads that it needs at its height stay.
//!
//! # Always true
//! - in any time `t` there are at most `MOST + t / EACH` changes, apart from those that take a trial back
//!
//! # Units
//! The budget is time that was not used: [`EACH`] for a change.

use crate::units::{Span, Time};

/// One change is allowed in this time, on average. Origin: 20 a minute. The trace of the experiment, with another load every
/// 10 s, needs less than half as many.
const EACH: Span = Span::from_secs(3);
/// So many may follow each other. Origin: a host of 16 CPUs gets all its threads at once, twice within a minute.
const MOST: u64 = 32;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    left: Span,
    at: Time,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            left: Span::from_nanos(EACH.as_nanos() * MOST),
            at: Time::ZERO,
        }
    }
}

impl Budget {
    /// Time goes on.
    pub(super) fn earn(&mut self, now: Time) {
        let most = Span::from_nanos(EACH.as_nanos() * MOST);
        self.left = (self.left + now.since(self.at)).min(most);
        self.at = now;
    }

    /// Until a change may be made; zero: now.
    pub(super) fn wait(&self) -> Span {
        Span::from_nanos(EACH.as_nanos().saturating_sub(self.left.as_nanos()))
    }

    /// Whether a change may be made that only saves CPUs.
    pub(super) fn is_ample(&self) -> bool {
        self.left.as_nanos() >= EACH.as_nanos() * MOST / 2
    }

    /// Pays for a change. One that takes a trial back is made in any case.
    pub(super) fn pay(&mut self) {
        let left = self.left.as_nanos().saturating_sub(EACH.as_nanos());
        self.left = Span::from_nanos(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_bounded_over_any_time_and_savings_end_first() {
        let mut budget = Budget::default();
        let mut now = Time::ZERO;
        let (mut made, mut savings) = (0, 0);
        while now < Time::ZERO + Span::from_secs(600) {
            now = now + Span::from_millis(5);
            budget.earn(now);
            savings += u64::from(budget.is_ample());
            if budget.wait() == Span::ZERO {
                budget.pay();
                made += 1;
            }
        }
        assert!((MOST + 195..=MOST + 200).contains(&made), "{made}");
        assert!(savings <= MOST, "{savings}");
        assert!(budget.wait() > Span::ZERO && budget.wait() <= EACH);
    }
}
