//! Admission control of reservations.
//!
//! `disk set --reservation` calls it before it accepts a reservation. It compares the cost of the reservations of all
//! known disks on all hosts with the datastore's observed throughput.
//!
//! # Units
//! Reservations in units a second; their cost and the capacity in reference I/Os a second.

use super::number::whole;

/// The part of the observed peak throughput that reservations may take. The rest covers slow days and disks without a
/// reservation. Origin: chosen; no measurement.
const PROMISED: f64 = 0.8;

/// The decision on a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The datastore has reached the necessary throughput.
    Verified,
    /// The datastore was never saturated: its capacity is unknown.
    Unverified,
    /// All reservations together would exceed the capacity.
    Refused {
        /// The cost of all reservations, including this one, per second.
        reserved: u64,
        /// The capacity for reservations.
        capacity: u64,
    },
}

/// Decides on a reservation. `reserved`: the cost of the others; `peak`: the highest observed throughput; `saturated`:
/// whether the datastore and not the load limited it.
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

/// The factor by which reservations shrink if they cannot all be met, 0 to 1. `now`: the current throughput.
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
    fn a_reservation_above_an_unsaturated_peak_is_unverified() {
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
    fn infeasible_reservations_shrink_together() {
        assert_eq!(feasible(900.0, 1_000.0), 1.0);
        assert_eq!(feasible(1_800.0, 1_000.0), 0.5);
        assert_eq!(feasible(0.0, 0.0), 1.0);
    }
}
