//! Four levels of how full a pool is: ample, and the three at which it raises an alarm.
//!
//! # Always true
//! - a level is left downwards only two percent below its threshold, so that alarms do not flap

/// How full a pool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Less than 70 % of its space is used or reserved.
    #[default]
    Ample,
    /// 70 % or more: time to add space.
    Filling,
    /// 85 % or more.
    Low,
    /// 95 % or more: soon writes to new space fail.
    Critical,
}

/// Percent at which each level but the first begins. Origin: the design.
const THRESHOLDS: [(Level, u64); 3] = [
    (Level::Critical, 95),
    (Level::Low, 85),
    (Level::Filling, 70),
];
/// Percent that use must fall below a threshold. Origin: chosen; no measurement.
const HYSTERESIS: u64 = 2;

impl Level {
    /// The level that follows this one when so many of all grants are used or reserved.
    pub fn next(self, used: u64, all: u64) -> Level {
        let reaches = |level: Level, threshold: u64| {
            let threshold = match level <= self {
                true => threshold - HYSTERESIS,
                false => threshold,
            };
            all > 0 && u128::from(used) * 100 >= u128::from(all) * u128::from(threshold)
        };
        let first = THRESHOLDS
            .iter()
            .find(|(level, threshold)| reaches(*level, *threshold));
        first.map_or(Level::Ample, |(level, _)| *level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_begins_at_its_threshold() {
        let level = |used| Level::Ample.next(used, 100);
        let seen = [0, 69, 70, 84, 85, 94, 95, 100].map(level);
        use Level::{Ample, Critical, Filling, Low};
        assert_eq!(
            seen,
            [Ample, Ample, Filling, Filling, Low, Low, Critical, Critical]
        );
        assert_eq!(Level::Ample.next(0, 0), Ample);
        assert_eq!(Level::Ample.next(u64::MAX, u64::MAX), Critical);
    }

    #[test]
    fn a_level_is_left_two_percent_below_its_threshold() {
        assert_eq!(Level::Low.next(84, 100), Level::Low);
        assert_eq!(Level::Low.next(83, 100), Level::Low);
        assert_eq!(Level::Low.next(82, 100), Level::Filling);
        assert_eq!(Level::Critical.next(68, 100), Level::Filling);
        assert_eq!(Level::Critical.next(67, 100), Level::Ample);
    }
}
