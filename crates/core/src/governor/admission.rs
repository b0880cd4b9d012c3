//! Admission control of reservations.
//!
//! `disk set --reservation` asks before it says yes. Promises are weighed in what they cost the datastore, over all
//! disks of all hosts that are known, against what the datastore was seen to do.
//!
//! # Units
//! Reservations in units a second, what they cost and capacity in reference I/Os a second.

use super::number::whole;

/// The part of the highest throughput seen that reservations may take. The rest is for slow days and for disks
/// without a reservation. Origin: chosen; no measurement.
const PROMISED: f64 = 0.8;

/// An answer to a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The datastore was seen to be able to.
    Verified,
    /// It was never driven to its most: nobody knows yet.
    Unverified,
    /// All promises together would be more than it can keep.
    Refused {
        /// What all reservations, this one included, cost a second.
        reserved: u64,
        /// What may be promised.
        capacity: u64,
    },
}

/// Answers. `reserved`: what the others' reservations cost; `peak`: the most seen, `saturated`: that it is the
/// datastore's most and not the load's.
pub fn admit(reserved: f64, asked: f64, peak: f64, saturated: bool) -> Admission {
    let capacity = PROMISED * peak;
    if asked <= 0.0 {
        return Admission::Verified;
    }
    if reserved + asked <= capacity {
        return Admission::Verified;
    }
    if !saturated {
        return Admission::Unverified;
    }
    Admission::Refused {
        reserved: whole(reserved + asked),
        capacity: whole(capacity),
    }
}

/// By how much reservations must shrink while they cannot all be met, 0 to 1. `now`: what is being done at this moment.
pub fn feasible(reserved: f64, peak: f64) -> f64 {
    if reserved <= 0.0 || peak <= 0.0 {
        return 1.0;
    }
    (0.9 * peak / reserved).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_seen_is_not_refused_but_not_promised_either() {
        assert_eq!(admit(0.0, 500.0, 0.0, false), Admission::Unverified);
        assert_eq!(admit(0.0, 500.0, 1_000.0, false), Admission::Verified);
    }

    #[test]
    fn the_last_fifth_is_not_promised() {
        assert_eq!(admit(700.0, 100.0, 1_000.0, true), Admission::Verified);
        let refused = Admission::Refused {
            reserved: 801,
            capacity: 800,
        };
        assert_eq!(admit(700.0, 101.0, 1_000.0, true), refused);
        assert_eq!(admit(700.0, 0.0, 100.0, true), Admission::Verified);
    }

    #[test]
    fn promises_that_cannot_be_kept_shrink_together() {
        assert_eq!(feasible(900.0, 1_000.0), 1.0);
        assert_eq!(feasible(1_800.0, 1_000.0), 0.5);
        assert_eq!(feasible(0.0, 0.0), 1.0);
    }
}
