//! The clock of a model: it maps the driver's time to work time, for slow-down, speed-up and stalls.
//!
//! Members know only work time. It runs as fast as the driver's time at full speed, half as fast when capacity
//! halves, and stands still during a stall. So a change touches the I/O in service too, costs nothing per I/O, and no
//! member knows of it.
//!
//! # Always true
//! - Work time never goes back.
//! - `work_at(real_at(w)) >= w`, and no earlier moment has that property.

/// A piecewise linear map from the driver's time to work time; only its last piece is kept.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    /// Where the present piece begins; in the future during a stall.
    since: u64,
    /// Work time there.
    worked: u64,
    /// Work nanoseconds per 1,000 of the driver's; never zero.
    permille: u32,
}

/// Later than anything that happens.
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

    /// The first moment at which `work` is reached.
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

    /// Stands still from `now` until `until`, or longer if it was told so before.
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
    fn half_the_speed_takes_twice_the_time_from_then_on() {
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
    fn nothing_is_worked_during_a_stall_and_it_can_be_ended() {
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
    fn the_first_moment_is_the_first_at_every_speed() {
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
