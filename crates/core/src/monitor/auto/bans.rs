//! Bans of changes that did not help or had no verdict: from how many threads, in which direction, and for how long.
//!
//! A change that did not help is banned under its load. One without a verdict was taken back because the load kept changing:
//! it is held back under any load, or else a guest whose load swings would have it tried all the time.
//!
//! # Always true
//! - bans and holds end by themselves; each further one of the same change is twice as long
//! - a change of the load lifts a ban, not a hold: what did not help under another load may be tried
//! - a verdict ends the row of holds, and so does a time without any

use crate::units::{Span, Time};
use alloc::collections::BTreeMap;

/// The first ban. Origin: chosen; ten times a trial with what surrounds it, so a useless trial costs a tenth at most.
const FIRST: Span = Span::from_secs(2);
/// The longest ban under one load, by doubling. Origin: beyond a minute, a constant load sees at most one trial a minute.
const DOUBLINGS: u32 = 8;
/// How far the load may be from that of a ban, in hundredths. Origin: chosen; no measurement.
const FORGIVEN: u64 = 30;

/// The first hold. Origin: three trials long, so that a load that swings costs a fourth of the time at most, and soon less.
const FIRST_HOLD: Span = Span::from_secs(1);
/// The longest hold, by doubling: 64 s.
const HOLD_DOUBLINGS: u32 = 6;
/// A row of holds ends when nothing was held for so many times the last one. Origin: chosen; what swings more slowly costs a tenth
/// of the time at most.
const HOLD_FORGOTTEN: u64 = 10;

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

#[derive(Clone, Copy, Debug)]
struct Hold {
    until: Time,
    span: Span,
    /// How often there was no verdict since the last one.
    times: u32,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Bans {
    bans: BTreeMap<(usize, Direction), Ban>,
    holds: BTreeMap<(usize, Direction), Hold>,
}

impl Bans {
    /// Bans a change from `threads` threads under this load; returns for how long.
    pub(super) fn add(
        &mut self,
        now: Time,
        threads: usize,
        direction: Direction,
        load: Offered,
    ) -> Span {
        let old = self.bans.get(&(threads, direction));
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
        self.bans.insert((threads, direction), ban);
        span
    }

    /// Holds a change without a verdict back; returns for how long.
    pub(super) fn hold(&mut self, now: Time, threads: usize, direction: Direction) -> Span {
        let old = self.holds.get(&(threads, direction));
        let recent = old
            .filter(|old| now.since(old.until).as_nanos() <= old.span.as_nanos() * HOLD_FORGOTTEN);
        let times = recent.map_or(0, |old| old.times + 1);
        let span = Span::from_nanos(FIRST_HOLD.as_nanos() << times.min(HOLD_DOUBLINGS));
        let until = now + span;
        self.holds
            .insert((threads, direction), Hold { until, span, times });
        span
    }

    /// The change had a verdict.
    pub(super) fn judged(&mut self, threads: usize, direction: Direction) {
        self.holds.remove(&(threads, direction));
    }

    /// How long this change is banned yet under this load, or held back; zero: it may be tried.
    pub(super) fn left(
        &mut self,
        now: Time,
        threads: usize,
        direction: Direction,
        load: Offered,
    ) -> Span {
        let held = self.holds.get(&(threads, direction));
        let held = held.map_or(Span::ZERO, |hold| hold.until.since(now));
        held.max(self.banned(now, threads, direction, load))
    }

    fn banned(&mut self, now: Time, threads: usize, direction: Direction, load: Offered) -> Span {
        let Some(ban) = self.bans.get(&(threads, direction)) else {
            return Span::ZERO;
        };
        if !ban.load.is_near(load) {
            self.bans.remove(&(threads, direction));
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

    #[test]
    fn a_hold_outlasts_a_change_of_the_load_and_doubles_until_there_is_a_verdict() {
        let mut bans = Bans::default();
        let mut hold = || bans.hold(Time::ZERO, 1, Direction::Up).as_nanos() / 1_000_000_000;
        let spans: alloc::vec::Vec<u64> = (0..8).map(|_| hold()).collect();
        assert_eq!(spans, [1, 2, 4, 8, 16, 32, 64, 64]);
        let other = Offered { rate: 1500, ..LOAD };
        let mut left = |load| bans.left(Time::ZERO, 1, Direction::Up, load);
        assert_eq!([left(LOAD), left(other)], [Span::from_secs(64); 2]);
        let (short, long) = (
            Time::from_nanos(704_000_000_000),
            Time::from_nanos(705_000_000_000),
        );
        let mut later = bans.clone();
        assert_eq!(later.hold(short, 1, Direction::Up), Span::from_secs(64));
        let mut later = bans.clone();
        assert_eq!(later.hold(long, 1, Direction::Up), FIRST_HOLD, "a row ends");
        bans.judged(1, Direction::Up);
        assert_eq!(bans.left(Time::ZERO, 1, Direction::Up, LOAD), Span::ZERO);
        let again = bans.hold(Time::ZERO, 1, Direction::Up);
        assert_eq!(again, FIRST_HOLD);
    }
}
