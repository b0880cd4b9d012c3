//! Bans of changes that did not help: from how many threads, in which direction, and for how long.
//!
//! # Always true
//! - a ban ends by itself; each further one of the same change is twice as long
//! - a change of the load forgives: what was banned under another load may be tried

use crate::units::{Span, Time};
use alloc::collections::BTreeMap;

/// The first ban. Origin: chosen; ten times a trial with what surrounds it, so a useless trial costs a tenth at most.
const FIRST: Span = Span::from_secs(2);
/// The longest ban under one load, by doubling. Origin: beyond a minute, a constant load sees at most one trial a minute.
const DOUBLINGS: u32 = 8;
/// How far the load may be from that of a ban, in hundredths. Origin: chosen; no measurement.
const FORGIVEN: u64 = 30;

/// A direction of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    /// One thread more.
    Up,
    /// One thread fewer.
    Down,
    /// Threads poll.
    SpinOn,
    /// Threads do not poll.
    SpinOff,
}

/// The offered load: requests a second, and their mean weight in hundredths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offered {
    pub(super) rate: u64,
    pub(super) weight: u64,
}

impl Offered {
    /// Whether both differ by at most 30 %.
    pub(super) fn is_near(self, other: Offered) -> bool {
        let near = |one: u64, other: u64| {
            one.abs_diff(other).saturating_mul(100) <= one.max(other).saturating_mul(FORGIVEN)
        };
        near(self.rate, other.rate) && near(self.weight, other.weight)
    }
}

#[derive(Clone, Copy, Debug)]
struct Ban {
    until: Time,
    /// How often it was banned under this load.
    times: u32,
    load: Offered,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Bans(BTreeMap<(usize, Direction), Ban>);

impl Bans {
    /// Bans a change from `threads` threads under this load; returns for how long.
    pub(super) fn add(
        &mut self,
        now: Time,
        threads: usize,
        direction: Direction,
        load: Offered,
    ) -> Span {
        let old = self.0.get(&(threads, direction));
        let times = match old {
            Some(old) if old.load.is_near(load) => old.times + 1,
            _ => 0,
        };
        let span = Span::from_nanos(FIRST.as_nanos() << times.min(DOUBLINGS));
        let ban = Ban {
            until: now + span,
            times,
            load,
        };
        self.0.insert((threads, direction), ban);
        span
    }

    /// How long this change is banned yet under this load; zero: it is not.
    pub(super) fn left(
        &mut self,
        now: Time,
        threads: usize,
        direction: Direction,
        load: Offered,
    ) -> Span {
        let Some(ban) = self.0.get(&(threads, direction)) else {
            return Span::ZERO;
        };
        if !ban.load.is_near(load) {
            self.0.remove(&(threads, direction));
            return Span::ZERO;
        }
        ban.until.since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Offered = Offered {
        rate: 1000,
        weight: 2000,
    };

    #[test]
    fn bans_double_until_they_outlast_minutes() {
        let mut bans = Bans::default();
        let spans: alloc::vec::Vec<u64> = (0..11)
            .map(|_| bans.add(Time::ZERO, 2, Direction::Up, LOAD).as_nanos() / 1_000_000_000)
            .collect();
        assert_eq!(spans, [2, 4, 8, 16, 32, 64, 128, 256, 512, 512, 512]);
        assert_eq!(
            bans.left(Time::ZERO, 2, Direction::Down, LOAD),
            Span::ZERO,
            "only this direction is banned"
        );
    }

    #[test]
    fn another_load_or_request_size_forgives() {
        let mut bans = Bans::default();
        let size = Offered {
            weight: 4000,
            ..LOAD
        };
        for other in [Offered { rate: 1500, ..LOAD }, size] {
            bans.add(Time::ZERO, 2, Direction::Up, LOAD);
            assert!(bans.left(Time::ZERO, 2, Direction::Up, LOAD) > Span::ZERO);
            assert_eq!(bans.left(Time::ZERO, 2, Direction::Up, other), Span::ZERO);
            assert_eq!(bans.left(Time::ZERO, 2, Direction::Up, LOAD), Span::ZERO);
        }
    }
}
