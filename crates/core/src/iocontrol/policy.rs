//! The policy of a disk or group: shares, reservation, limits, as checked values.
//!
//! The daemon builds these from words; the scheduler believes them. Whether a reservation can be met is not decided
//! here but by the governor's admission.
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

/// What one disk may and shall get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its weight against others while the datastore is congested: 100 to 10 000.
    pub shares: u32,
    /// Units a second that it gets before shares count; 0: none.
    pub reservation: u32,
    /// Units a second that it never exceeds.
    pub limit: Option<Limit>,
    /// Bytes a second that it never exceeds.
    pub bandwidth: Option<Limit>,
    /// A latency that its I/Os should keep; it may go before others for it, but gets no more.
    pub latency_target: Option<Span>,
    /// Its group, whose limits hold over all the group's disks on this host.
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
    /// Per second, in the long run. Not zero.
    pub sustained: u64,
    /// Per second while the burst is spent; 0: no ceiling of its own. Over any interval at most `peak` times the
    /// interval and 10 ms, and one request.
    pub peak: u64,
    /// How much may be ahead of `sustained`. It is full at first and fills at `sustained` while unused.
    ///
    /// With none, a timer that is late loses what it is late by; hence [`Limit::steady`].
    pub burst: u64,
}

impl Limit {
    /// A ceiling without a burst of its own: a tenth of a second's, and one at least, as QEMU gives its throttled disks.
    ///
    /// What late timers, batches and, on a congested datastore, the wait for a disk's turn hold up is made good from it:
    /// with 10 ms a disk whose limit was near its part by shares lost 3 to 30 % of the limit.
    pub const fn steady(sustained: u64) -> Limit {
        Limit {
            sustained,
            peak: 0,
            burst: if sustained < 10 { 1 } else { sustained / 10 },
        }
    }

    /// A ceiling that may be passed at `peak` a second for `seconds` after a rest.
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

/// Which limit a fault is about.
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

/// What is wrong with a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyFault {
    /// Too few or too many shares.
    Shares(u32),
    /// A limit of nothing.
    LimitZero(LimitOf),
    /// A limit that makes the reservation impossible.
    LimitBelowReservation {
        /// The sustained limit.
        limit: u64,
        /// The reservation.
        reservation: u32,
    },
    /// A peak that is none.
    PeakBelowSustained {
        /// Of which limit.
        of: LimitOf,
        /// The peak.
        peak: u64,
        /// What it should exceed.
        sustained: u64,
    },
    /// A latency target of nothing.
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
                "a latency target of 0 cannot be kept: give the latency that the disk needs, or none",
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
