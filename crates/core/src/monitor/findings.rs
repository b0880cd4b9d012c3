//! Findings and failures that repeat: which of them are events, and how many others each event stands for.
//!
//! A policy reports why a congested thread stays as it is. Under a load that comes and goes it finds the same many times, and
//! one of several reasons each time. Whoever reads the events wants to know the reason, and how often.
//!
//! # Always true
//! - of each thread there is at most one finding in [`CHANGED`], and one of the same kind in [`SAME`]
//! - an action that fails again for [`SAME`] is one event, unless 64 others have failed since
//! - each decision that is no event is counted in the next event of its thread or action, as long as that is remembered
//! - changes, and the ends of trials, are always events; the policy bounds their number

use super::ThreadNumber;
use super::decision::{Action, Decision, Finding};
use crate::units::{Span, Time};
use alloc::collections::{BTreeMap, VecDeque};

/// Another reason about the same thread is an event after this time.
pub const CHANGED: Span = Span::from_secs(10);
/// The same reason is an event after this time.
pub const SAME: Span = Span::from_secs(60);
/// Actions whose failures are remembered.
const FAILURES: usize = 64;

/// The last event about a thread or an action.
#[derive(Clone, Copy, Debug)]
struct Last<T> {
    what: T,
    at: Time,
    /// Decisions since then that were no events.
    repeats: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    threads: BTreeMap<ThreadNumber, Last<Finding>>,
    failures: VecDeque<Last<Action>>,
}

impl Findings {
    /// Whether a decision is an event, with the number of those like it since the last one.
    pub fn admit(&mut self, decision: &Decision, has_failed: bool) -> Option<u64> {
        if has_failed {
            return self.admit_failure(decision);
        }
        let Some((what, thread)) = decision.why.finding() else {
            return Some(0);
        };
        if decision.action != Action::Stay {
            return Some(0);
        }
        let at = decision.at;
        let new = Last {
            what,
            at,
            repeats: 0,
        };
        let last = self.threads.entry(thread);
        let mut repeats = None;
        let last = last.or_insert_with(|| {
            repeats = Some(0);
            new
        });
        if repeats.is_some() {
            return repeats;
        }
        let pause = if last.what == what { SAME } else { CHANGED };
        if at.since(last.at) < pause {
            last.repeats += 1;
            return None;
        }
        Some(core::mem::replace(last, new).repeats)
    }

    fn admit_failure(&mut self, decision: &Decision) -> Option<u64> {
        let (what, at) = (decision.action, decision.at);
        let new = Last {
            what,
            at,
            repeats: 0,
        };
        let mut known = self.failures.iter_mut();
        if let Some(last) = known.find(|last| last.what == what) {
            if at.since(last.at) < SAME {
                last.repeats += 1;
                return None;
            }
            return Some(core::mem::replace(last, new).repeats);
        }
        if self.failures.len() == FAILURES {
            self.failures.pop_front();
        }
        self.failures.push_back(new);
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Why;
    use super::*;
    use crate::request::DiskId;
    use alloc::vec::Vec;

    fn decision(ms: u64, action: Action, why: Why) -> Decision {
        let at = Time::ZERO + Span::from_millis(ms);
        Decision { at, action, why }
    }

    fn no_cpu(thread: ThreadNumber) -> Why {
        Why::NoCpu {
            thread,
            stolen: 450,
            busy: 990,
            delay: Span::from_millis(4),
        }
    }

    fn full(thread: ThreadNumber) -> Why {
        Why::NoThreadLeft {
            thread,
            busy: 990,
            delay: Span::from_millis(4),
            threads: 2,
            banned: Span::ZERO,
        }
    }

    /// When events were admitted, in seconds, with how many each stands for.
    fn events(decisions: impl Iterator<Item = Decision>) -> Vec<(u64, u64)> {
        let mut findings = Findings::default();
        let admitted = decisions.filter_map(|it| {
            let repeats = findings.admit(&it, false)?;
            Some((it.at.as_nanos() / 1_000_000_000, repeats))
        });
        admitted.collect()
    }

    #[test]
    fn one_reason_in_each_tick_is_an_event_a_minute_that_counts_the_others() {
        let ticks = (0..150_000 / 5).map(|tick| decision(tick * 5, Action::Stay, no_cpu(0)));
        assert_eq!(events(ticks), [(0, 0), (60, 11_999), (120, 11_999)]);
    }

    #[test]
    fn reasons_that_alternate_are_an_event_in_ten_seconds() {
        let ticks = (0..40_000 / 5).map(|tick| {
            let why = if tick % 2 == 0 { no_cpu(0) } else { full(0) };
            decision(tick * 5, Action::Stay, why)
        });
        let times: Vec<u64> = events(ticks).iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [0, 10, 20, 30]);
    }

    #[test]
    fn threads_are_apart_and_changes_are_always_events() {
        let both = (0..10).map(|tick| decision(tick, Action::Stay, full(u16::from(tick % 2 == 1))));
        assert_eq!(events(both), [(0, 0), (0, 0)]);
        let (disk, to) = (DiskId(1), 1);
        let moves = (0..10).map(|tick| decision(tick, Action::Move { disk, to }, full(0)));
        assert_eq!(events(moves).len(), 10);
    }

    #[test]
    fn an_action_that_fails_again_and_again_is_an_event_a_minute() {
        let mut findings = Findings::default();
        let mut admitted = Vec::new();
        for tick in 0..1_300 {
            for disk in 0..3 {
                let (disk, to) = (DiskId(disk), 1);
                let failed = decision(tick * 100, Action::Move { disk, to }, full(0));
                admitted.extend(findings.admit(&failed, true).map(|repeats| (tick, repeats)));
            }
        }
        let expected = [(0, 0), (600, 599), (1_200, 599)];
        assert_eq!(admitted, expected.map(|it| [it; 3]).concat());
    }

    #[test]
    fn the_failures_of_few_actions_are_remembered() {
        let mut findings = Findings::default();
        let mut is_event = |disk: usize| {
            let disk = DiskId(u32::try_from(disk).expect("few"));
            let failed = decision(0, Action::Move { disk, to: 1 }, full(0));
            findings.admit(&failed, true).is_some()
        };
        assert!((0..FAILURES).all(&mut is_event));
        assert!(!is_event(0));
        // One more, and the oldest is forgotten.
        assert!(is_event(FAILURES));
        assert!(is_event(0) && !is_event(FAILURES));
    }
}
