//! The planned size of an attached disk's part of a flash cache, and what that comes from.
//!
//! The disk service decides it from time to time. `cache show` and `explain` show it.
//!
//! # Units
//! Chunks inside, bytes outside; accesses in an hour.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_api::cache::{CacheTarget, TargetReason};
use tidegate_api::name::Name;
use tidegate_api::units::Size;
use tidegate_core::layout::cache::broker::{ALL, Disk, Reason, Target};

use crate::text::float;

/// The time after which accesses count little. Origin: shorter than a working day, longer than a backup's pause.
const HOUR: Duration = Duration::from_secs(3600);

/// See the module.
#[derive(Default)]
pub(crate) struct PartPlan(Mutex<State>);

#[derive(Default)]
struct State {
    /// When accesses were counted last, and how many there were.
    counted: Option<(Instant, u64)>,
    /// Accesses in an hour.
    rate: Option<u64>,
    planned: Option<Planned>,
    /// Its journal is too short for more chunks.
    is_fixed: bool,
}

/// What is planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) target: Target,
    /// What it may have until the next step.
    pub(crate) step: usize,
    /// What it comes from.
    pub(crate) from: Disk,
}

impl PartPlan {
    /// The disk has another cache, or none.
    pub(crate) fn forget(&self) {
        let mut state = self.state();
        (state.planned, state.is_fixed) = (None, false);
    }

    /// So many accesses have been counted until now. Returns those in an hour, in about the last hour.
    pub(crate) fn count(&self, now: Instant, accesses: u64) -> u64 {
        let mut state = self.state();
        let before = state.counted.replace((now, accesses));
        if let Some((then, before)) = before {
            let passed = now.saturating_duration_since(then).as_millis().max(1);
            let more = u128::from(accesses.saturating_sub(before));
            let hour = HOUR.as_millis();
            let rate = match state.rate {
                None => more * hour / passed,
                Some(rate) => (u128::from(rate) * hour + more * hour) / (hour + passed),
            };
            state.rate = Some(u64::try_from(rate).unwrap_or(u64::MAX));
        }
        state.rate.unwrap_or(0)
    }

    /// What is planned, if anything.
    pub(crate) fn planned(&self) -> Option<Planned> {
        self.state().planned.clone()
    }

    /// Plans this.
    pub(crate) fn plan(&self, planned: Planned) {
        self.state().planned = Some(planned);
    }

    /// Whether it can have more chunks.
    pub(crate) fn is_fixed(&self) -> bool {
        self.state().is_fixed
    }

    /// It cannot.
    pub(crate) fn fix(&self) {
        self.state().is_fixed = true;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Planned {
    /// In bytes, if the disk has so many chunks now.
    pub(crate) fn described(&self, now: usize, chunk: u64) -> CacheTarget {
        let misses = |chunks: u32| {
            let hits = f64::from(self.from.hits(chunks)) / f64::from(ALL);
            self.from.curve.is_some().then_some(1.0 - hits)
        };
        CacheTarget {
            size_bytes: u64::from(self.target.chunks) * chunk,
            reason: match self.target.reason {
                Reason::Hits => TargetReason::Hits,
                Reason::Shares => TargetReason::Shares,
                Reason::Minimum => TargetReason::Minimum,
                Reason::Maximum => TargetReason::Maximum,
                Reason::Rest => TargetReason::Rest,
            },
            accesses_per_s: float(self.from.accesses) / HOUR.as_secs_f64(),
            shares: self.from.shares,
            miss_ratio: misses(u32::try_from(now).unwrap_or(u32::MAX)),
            target_miss_ratio: misses(self.target.chunks),
        }
    }
}

/// What is to become of a disk's part, and why.
pub(crate) fn sentence(disk: &Name, cache: &Name, part: u64, target: &CacheTarget) -> String {
    let size = target.size_bytes;
    let verb = match size.cmp(&part) {
        std::cmp::Ordering::Less => "is to shrink",
        std::cmp::Ordering::Equal => "stays",
        std::cmp::Ordering::Greater => "is to grow",
    };
    let misses = match (target.miss_ratio, target.target_miss_ratio) {
        (Some(now), Some(then)) => format!(
            ", misses {:.0} % now and {:.0} % then by its curve",
            now * 100.0,
            then * 100.0
        ),
        _ => ", its curve is not known yet".to_owned(),
    };
    format!(
        "the part of cache {cache} of disk {disk} {verb}, from {} to {}: {}; {:.0} accesses a second, {} shares{misses}",
        Size(part),
        Size(size),
        why(target.reason),
        target.accesses_per_s,
        target.shares
    )
}

const fn why(reason: TargetReason) -> &'static str {
    match reason {
        TargetReason::Hits => "more would add fewer hits than elsewhere",
        TargetReason::Shares => "its share",
        TargetReason::Minimum => "more would add no hits, or more elsewhere",
        TargetReason::Maximum => "its maximum",
        TargetReason::Rest => "what it gains from, and a share of the rest",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_follows_the_last_hour() {
        let plan = PartPlan::default();
        let begin = Instant::now();
        assert_eq!(plan.count(begin, 1_000), 0, "nothing is known yet");
        let minute = Duration::from_secs(60);
        assert_eq!(plan.count(begin + minute, 7_000), 360_000);
        let mut rate = 0;
        for nth in 2..62 {
            rate = plan.count(begin + minute * nth, 7_000);
        }
        assert!((100_000..180_000).contains(&rate), "{rate}");
        assert!(plan.count(begin + minute * 63, 0) <= rate, "begun anew");
    }

    #[test]
    fn a_plan_says_what_it_comes_from() {
        let planned = Planned {
            target: Target {
                chunks: 4,
                reason: Reason::Hits,
            },
            step: 3,
            from: Disk {
                curve: Some(vec![(2, 250_000), (4, 750_000)]),
                accesses: 3_600_000,
                shares: 1000,
                ..Disk::default()
            },
        };
        let target = planned.described(2, 1 << 20);
        assert_eq!(target.miss_ratio, Some(0.75));
        let (disk, cache) = ("db1".parse().unwrap(), "fast".parse().unwrap());
        let text = sentence(&disk, &cache, 2 << 20, &target);
        for part in [
            "to grow",
            "from 2MiB to 4MiB",
            "1000 accesses a second",
            "75 % now and 25 % then",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
