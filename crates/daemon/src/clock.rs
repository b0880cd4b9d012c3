//! The clock that the engine uses, for the daemon's own times.

use tidegate_core::units::Time;

/// The time of the monotonic clock.
pub(crate) fn now() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    Time::from_nanos(seconds * 1_000_000_000 + nanos)
}
