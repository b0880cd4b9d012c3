//! The division of the cluster's window: water-filling over the demands that all hosts published.
//!
//! Every host computes the same division and uses the parts of its own disks: there is no leader, and no message beyond
//! the slot. The governor passes its own current demands and the other hosts' last records (claim-first). A disk that
//! becomes active gets its part before the others know.
//!
//! # Always true
//! - Each disk gets at least its floor (reservation, by Little's law) and at most its ceiling (demand, limit). In
//!   between its part is proportional to its shares.
//! - The sum of the parts is the window, or the sum of the ceilings if that is less: no disk gets more than it can use.
//! - Reservations beyond nine tenths of the window shrink in proportion; a tenth is for the other disks.
//!
//! # Units
//! Windows and demands in reference I/Os, latencies in nanoseconds, reservations and limits in units a second.

use super::number::SECOND;

/// Bisection steps of the search for the level: 2^-50 is below the resolution of a window.
const STEPS: u32 = 50;
/// The part of the window that reservations may take. Origin: chosen; no measurement.
const RESERVED: f64 = 0.9;
/// A disk is offered this much times its use, and one I/O, so that it can show more demand. Origin: Linux's blk-iocost,
/// which leaves a donor 1.25 times its use.
const MARGIN: f64 = 1.25;
/// A disk with less demand counts as idle. Origin: chosen; no measurement.
pub const IDLE: f64 = 0.05;

/// One disk's claim on the window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// Its weight.
    pub shares: f64,
    /// The minimum.
    pub least: f64,
    /// The maximum.
    pub most: f64,
}

impl Demand {
    /// Computes a claim from a disk's policy and demand. `residence`: how long a unit of cost stays in flight.
    pub fn new(
        shares: u32,
        reservation: u32,
        limit: u64,
        demand: f64,
        unit_cost: f64,
        residence: f64,
    ) -> Demand {
        let shares = f64::from(shares);
        if demand < IDLE {
            return Demand {
                shares,
                ..Demand::default()
            };
        }
        let stays = residence / SECOND * unit_cost;
        let mut most = MARGIN * demand + 1.0;
        if limit > 0 {
            most = most.min(1.1 * super::number::real(limit) * stays + 1.0);
        }
        let least = (1.15 * f64::from(reservation) * stays).min(most);
        Demand {
            shares,
            least,
            most,
        }
    }
}

/// How a window was divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Division {
    level: f64,
    shrink: f64,
    /// The part of the window that no disk demanded.
    pub slack: f64,
}

impl Division {
    /// Finds the level at which the parts of `demands` sum up to `window`.
    pub fn of(demands: &[Demand], window: f64) -> Division {
        let asked: f64 = demands.iter().map(|demand| demand.most).sum();
        let reserved: f64 = demands.iter().map(|demand| demand.least).sum();
        let mut division = Division {
            level: 0.0,
            shrink: 1.0,
            slack: 0.0,
        };
        if reserved > RESERVED * window {
            division.shrink = RESERVED * window / reserved;
        }
        // At the level of the highest ceiling, all disks are at their ceilings.
        let fullest = demands
            .iter()
            .map(|demand| demand.most / demand.shares.max(1.0));
        let (mut low, mut high) = (0.0, fullest.fold(0.0, f64::max));
        division.level = high;
        if asked <= window {
            division.slack = window - asked;
            return division;
        }
        for _ in 0..STEPS {
            division.level = low + (high - low) / 2.0;
            let filled: f64 = demands.iter().map(|demand| division.part(demand)).sum();
            if filled > window {
                high = division.level;
            } else {
                low = division.level;
            }
        }
        division
    }

    /// The part of one disk.
    pub fn part(&self, demand: &Demand) -> f64 {
        (self.level * demand.shares.max(1.0))
            .max(self.shrink * demand.least)
            .min(demand.most)
    }
}

#[cfg(test)]
mod tests;
