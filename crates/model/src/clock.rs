//! The clock of a model: it maps the driver's time to work time, for slow-down, speed-up and stalls.
//!
//! Members use only work time. At full speed it runs like the driver's time, at half capacity half as fast, and during
//! a stall it stops. So a change of speed affects the I/O in service too and costs nothing per I/O, and the members
//! need no code for it.
//!
//! # Always true
//! - Work time never goes back.
//! - `work_at(real_at(w)) >= w`, and this holds for no earlier time.

/// A piecewise linear map from the driver's time to work time. Only its last piece is stored.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    /// Start of the current piece; in the future during a stall.
    since: u64,
    /// Work time at the start.
    worked: u64,
    /// Work nanoseconds per 1,000 of the driver's; never zero.
    permille: u32,
}

/// Later than any event.
pub(crate) const NEVER: u64 = u64::MAX;

impl Clock {
    pub(crate) const fn new() -> Clock {
        Clock {
            since: 0,
            worked: 0,
            permille: 1_000,
        }
    }

    pub(crate) fn work_at(&self, now: u64) -> u64 {
        let passed = u128::from(now.saturating_sub(self.since));
        let done = passed * u128::from(self.permille) / 1_000;
        self.worked
            .saturating_add(u64::try_from(done).unwrap_or(NEVER))
    }

    /// The first time at which `work` is reached.
    pub(crate) fn real_at(&self, work: u64) -> u64 {
        let left = u128::from(work.saturating_sub(self.worked));
        let takes = (left * 1_000).div_ceil(u128::from(self.permille));
        self.since
            .saturating_add(u64::try_from(takes).unwrap_or(NEVER))
    }

    pub(crate) fn set_speed(&mut self, now: u64, permille: u32) {
        self.worked = self.work_at(now);
        self.since = self.since.max(now);
        self.permille = permille.max(1);
    }

    /// Stops from `now` until `until`, or longer if an earlier stall lasts longer.
    pub(crate) fn stall(&mut self, now: u64, until: u64) {
        self.worked = self.work_at(now);
        self.since = self.since.max(now).max(until);
    }

    /// Ends a stall early.
    pub(crate) fn resume(&mut self, now: u64) {
        self.since = self.since.min(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_the_speed_takes_twice_the_time_from_the_change_on() {
        let mut clock = Clock::new();
        assert_eq!(clock.real_at(1_000), 1_000);
        clock.set_speed(400, 500);
        assert_eq!(clock.real_at(1_000), 400 + 1_200);
        assert_eq!(clock.work_at(1_600), 1_000);
        clock.set_speed(800, 2_000);
        assert_eq!(clock.work_at(800), 600);
        assert_eq!(clock.real_at(1_000), 1_000);
    }

    #[test]
    fn a_stall_stops_work_and_can_be_ended_early() {
        let mut clock = Clock::new();
        clock.stall(100, 500);
        assert_eq!(clock.work_at(499), 100);
        assert_eq!(clock.real_at(150), 550);
        clock.resume(200);
        assert_eq!(clock.real_at(150), 250);
        clock.stall(250, NEVER);
        assert_eq!(clock.real_at(200), NEVER);
        clock.resume(1_000);
        assert_eq!(clock.real_at(200), 1_050);
    }

    #[test]
    fn real_at_returns_the_first_time_at_every_speed() {
        for permille in [1, 3, 333, 999, 1_000, 1_001, 7_777] {
            let mut clock = Clock::new();
            clock.set_speed(17, permille);
            for work in [18, 19, 1_000, 12_345] {
                let at = clock.real_at(work);
                assert!(clock.work_at(at) >= work);
                assert!(clock.work_at(at - 1) < work);
            }
        }
    }
}
