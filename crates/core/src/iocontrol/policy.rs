//! The policy of a disk or group: shares, reservation, limits, as checked values.
//!
//! The daemon builds these from the configuration; the scheduler does not check them again. The governor's admission
//! control decides whether a reservation can be met.
//!
//! # Units
//! Limits and reservations count units of I/O a second (see [`units`]); bandwidth counts bytes a second.

use super::GroupId;
use crate::units::Span;
use core::fmt;

/// Shares named `low`, `normal` and `high`. Origin: VMware's shares of a virtual disk.
pub const SHARES_LOW: u32 = 500;
/// See [`SHARES_LOW`].
pub const SHARES_NORMAL: u32 = 1_000;
/// See [`SHARES_LOW`].
pub const SHARES_HIGH: u32 = 2_000;
/// The fewest shares that a disk may have: a hundredth of the most, so that no disk starves. Origin: chosen; no
/// measurement.
pub const SHARES_MIN: u32 = 100;
/// The most shares that a disk may have. Origin: chosen; no measurement.
pub const SHARES_MAX: u32 = 10_000;

/// How many units a request of `len` bytes counts: one for every `io_unit` bytes or part of them, at least one.
#[inline]
pub const fn units(len: u64, io_unit: u32) -> u64 {
    if len <= io_unit as u64 {
        1
    } else {
        len.div_ceil(io_unit as u64)
    }
}

/// The policy of one disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its weight while the datastore is congested: 100 to 10 000.
    pub shares: u32,
    /// Units a second that it gets before shares apply; 0: none.
    pub reservation: u32,
    /// The limit in units a second.
    pub limit: Option<Limit>,
    /// The limit in bytes a second.
    pub bandwidth: Option<Limit>,
    /// A latency target for its I/Os. The disk may have priority for it, but gets no larger share.
    pub latency_target: Option<Span>,
    /// Its group, whose limits cover all the group's disks on this host.
    pub group: Option<GroupId>,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            shares: SHARES_NORMAL,
            reservation: 0,
            limit: None,
            bandwidth: None,
            latency_target: None,
            group: None,
        }
    }
}

/// The limits of a group of disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupPolicy {
    /// Units a second.
    pub limit: Option<Limit>,
    /// Bytes a second.
    pub bandwidth: Option<Limit>,
}

/// A ceiling: over any interval at most `sustained * interval + burst`, and one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Per second, sustained. Not zero.
    pub sustained: u64,
    /// Per second while the burst is spent; 0: no separate ceiling. Over any interval at most `peak` times the interval
    /// plus 10 ms, and one request.
    pub peak: u64,
    /// How much may be ahead of `sustained`. It is full at first and refills at `sustained` while unused.
    ///
    /// With a burst of zero, each late timer loses throughput; hence [`Limit::steady`].
    pub burst: u64,
}

impl Limit {
    /// A ceiling with a small default burst: a tenth of a second's, at least one, as in QEMU's throttling.
    ///
    /// The burst compensates for late timers, batches and queueing on a congested datastore. With 10 ms a disk with a
    /// limit near its share lost 3 to 30 % of the limit.
    pub const fn steady(sustained: u64) -> Limit {
        Limit {
            sustained,
            peak: 0,
            burst: if sustained < 10 { 1 } else { sustained / 10 },
        }
    }

    /// A ceiling that may be exceeded at `peak` a second for `seconds` after an idle time.
    pub const fn bursting(sustained: u64, peak: u64, seconds: u64) -> Limit {
        Limit {
            sustained,
            peak,
            burst: peak.saturating_sub(sustained).saturating_mul(seconds),
        }
    }

    fn check(&self, rate: LimitOf) -> Result<(), PolicyFault> {
        if self.sustained == 0 {
            return Err(PolicyFault::LimitZero(rate));
        }
        if self.peak != 0 && self.peak < self.sustained {
            return Err(PolicyFault::PeakBelowSustained {
                of: rate,
                peak: self.peak,
                sustained: self.sustained,
            });
        }
        Ok(())
    }
}

impl Policy {
    /// Whether every value is in its range, and the values agree.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self) -> Result<(), PolicyFault> {
        if !(SHARES_MIN..=SHARES_MAX).contains(&self.shares) {
            return Err(PolicyFault::Shares(self.shares));
        }
        if let Some(limit) = &self.limit {
            limit.check(LimitOf::Units)?;
            if limit.sustained < u64::from(self.reservation) {
                return Err(PolicyFault::LimitBelowReservation {
                    limit: limit.sustained,
                    reservation: self.reservation,
                });
            }
        }
        if let Some(bandwidth) = &self.bandwidth {
            bandwidth.check(LimitOf::Bytes)?;
        }
        match self.latency_target {
            Some(Span::ZERO) => Err(PolicyFault::LatencyTargetZero),
            _ => Ok(()),
        }
    }
}

impl GroupPolicy {
    /// Whether every value is in its range.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self) -> Result<(), PolicyFault> {
        if let Some(limit) = &self.limit {
            limit.check(LimitOf::Units)?;
        }
        if let Some(bandwidth) = &self.bandwidth {
            bandwidth.check(LimitOf::Bytes)?;
        }
        Ok(())
    }
}

/// The limit that a fault refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitOf {
    /// Units of I/O.
    Units,
    /// Bytes.
    Bytes,
}

impl fmt::Display for LimitOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LimitOf::Units => "limit of IOPS",
            LimitOf::Bytes => "limit of bandwidth",
        })
    }
}

/// A fault of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyFault {
    /// Too few or too many shares.
    Shares(u32),
    /// A limit of zero.
    LimitZero(LimitOf),
    /// A limit below the reservation.
    LimitBelowReservation {
        /// The sustained limit.
        limit: u64,
        /// The reservation.
        reservation: u32,
    },
    /// A peak that is not above the sustained rate.
    PeakBelowSustained {
        /// The limit.
        of: LimitOf,
        /// The peak.
        peak: u64,
        /// The sustained rate.
        sustained: u64,
    },
    /// A latency target of zero.
    LatencyTargetZero,
}

impl fmt::Display for PolicyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicyFault::Shares(shares) => write!(
                f,
                "{shares} shares are out of range: give {SHARES_MIN} to {SHARES_MAX}"
            ),
            PolicyFault::LimitZero(of) => write!(
                f,
                "a {of} of 0 would stop the disk: give at least 1, or no limit"
            ),
            PolicyFault::LimitBelowReservation { limit, reservation } => write!(
                f,
                "the limit of {limit} is below the reservation of {reservation}: raise the limit or lower the reservation"
            ),
            PolicyFault::PeakBelowSustained {
                of,
                peak,
                sustained,
            } => write!(
                f,
                "the peak of {peak} is below the {of} of {sustained}: give a higher peak, or none"
            ),
            PolicyFault::LatencyTargetZero => f.write_str(
                "a latency target of 0 cannot be met: give the latency that the disk needs, or none",
            ),
        }
    }
}

impl core::error::Error for PolicyFault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_one_unit_for_each_part() {
        assert_eq!(units(0, 32_768), 1);
        assert_eq!(units(32_768, 32_768), 1);
        assert_eq!(units(32_769, 32_768), 2);
        assert_eq!(units(1 << 20, 32_768), 32);
    }

    #[test]
    fn a_policy_out_of_range_is_refused_with_the_reason() {
        let good = Policy::default();
        assert_eq!(good.check(), Ok(()));
        let shares = Policy {
            shares: 99,
            ..good.clone()
        };
        assert_eq!(shares.check(), Err(PolicyFault::Shares(99)));
        let reservation = Policy {
            reservation: 500,
            limit: Some(Limit::steady(400)),
            ..good.clone()
        };
        assert!(matches!(
            reservation.check(),
            Err(PolicyFault::LimitBelowReservation { .. })
        ));
        let zero = Policy {
            bandwidth: Some(Limit::steady(0)),
            ..good.clone()
        };
        assert_eq!(zero.check(), Err(PolicyFault::LimitZero(LimitOf::Bytes)));
        let peak = GroupPolicy {
            limit: Some(Limit {
                sustained: 10,
                peak: 9,
                burst: 0,
            }),
            bandwidth: None,
        };
        assert!(matches!(
            peak.check(),
            Err(PolicyFault::PeakBelowSustained { .. })
        ));
        let target = Policy {
            latency_target: Some(Span::ZERO),
            ..good
        };
        assert_eq!(target.check(), Err(PolicyFault::LatencyTargetZero));
    }
}
