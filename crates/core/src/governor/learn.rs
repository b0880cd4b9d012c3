//! The learner of I/O costs: it fits what each kind of I/O costs this datastore from measured throughput.
//!
//! While this host's window limits it and stays the same, each tenth of a second has the same amount of service. The
//! mix of reads, writes and bytes varies. The costs are those values that make every such interval cost the same. A
//! small least-squares fit finds them ([`Fit`]), with a ridge towards the former values. [`Learner`] moves towards the
//! fit slowly.
//!
//! # Always true
//! - A write costs 0.5 to 20 small reads, whatever the fit; no cost moves by more than a tenth a minute.
//! - A load with a constant mix contains no information: the fit then stays unchanged.
//!
//! # Units
//! Relative to a 4 KiB random read.

use super::number::{SECOND, nanos};
use crate::units::Span;

/// Reads, writes, 64 KiB read, 64 KiB written.
pub const FEATURES: usize = 4;
/// The weight of the former factors in a fit, in bins of full service. Origin: chosen; no measurement.
const RIDGE: f64 = 0.02;
/// The minimum number of bins for a fit: ten seconds of them. Origin: chosen; no measurement.
const MOMENTS: u32 = 100;

/// Relative costs; a 4 KiB random read is 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// A read, without its bytes.
    pub read: f64,
    /// A write, without its bytes.
    pub write: f64,
    /// 64 KiB read.
    pub bytes_read: f64,
    /// 64 KiB written.
    pub bytes_written: f64,
}

impl Factors {
    fn array(&self) -> [f64; FEATURES] {
        [self.read, self.write, self.bytes_read, self.bytes_written]
    }
}

/// Sums of a least-squares fit of a constant.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fit {
    products: [[f64; FEATURES]; FEATURES],
    sums: [f64; FEATURES],
    moments: u32,
}

impl Fit {
    /// Adds one interval of full service with its I/Os.
    pub fn add(&mut self, brought: [f64; FEATURES]) {
        for (row, &left) in self.products.iter_mut().zip(&brought) {
            for (cell, &right) in row.iter_mut().zip(&brought) {
                *cell += left * right;
            }
        }
        for (sum, &one) in self.sums.iter_mut().zip(&brought) {
            *sum += one;
        }
        self.moments += 1;
    }

    /// The number of intervals.
    pub fn moments(&self) -> u32 {
        self.moments
    }

    /// The costs that make all intervals equal, near `believed` where the data do not determine them. A read costs 1.
    pub fn solve(&self, believed: &Factors) -> Option<Factors> {
        let prior = believed.array();
        // The mean cost of an interval with the former costs, which scales them to the fit.
        let mean: f64 = self
            .sums
            .iter()
            .zip(&prior)
            .map(|(sum, cost)| sum * cost)
            .sum::<f64>()
            / f64::from(self.moments.max(1));
        if self.moments < MOMENTS || mean <= 0.0 {
            return None;
        }
        let mut rows = [[0.0; FEATURES + 1]; FEATURES];
        for (at, row) in rows.iter_mut().enumerate() {
            row[..FEATURES].copy_from_slice(&self.products[at]);
            row[FEATURES] = self.sums[at];
            // Weighted by the I/O of this kind alone that an interval would contain.
            let alone = mean / prior[at].max(1e-3);
            let weight = RIDGE * alone * alone;
            row[at] += weight;
            row[FEATURES] += weight * prior[at] / mean;
        }
        let solved = eliminate(rows)?;
        let [read, write, bytes_read, bytes_written] = solved;
        if read.is_nan() || read <= 0.0 {
            return None;
        }
        // A 4 KiB read is the unit: its base and its bytes together.
        let unit = read + bytes_read.max(0.0) / 16.0;
        Some(Factors {
            read: (read / unit).clamp(0.1, 1.0),
            write: (write / unit).clamp(0.5, 20.0),
            bytes_read: (bytes_read / unit).clamp(0.0, 16.0),
            bytes_written: (bytes_written / unit).clamp(0.0, 64.0),
        })
    }
}

/// Gaussian elimination with the largest pivot first. `None` if the system is singular.
fn eliminate(mut rows: [[f64; FEATURES + 1]; FEATURES]) -> Option<[f64; FEATURES]> {
    for column in 0..FEATURES {
        let size = |row: &usize| rows[*row][column].abs();
        let pivot = (column..FEATURES).max_by(|a, b| size(a).total_cmp(&size(b)))?;
        rows.swap(column, pivot);
        let lead = rows[column];
        if lead[column].abs() < 1e-12 || lead[column].is_nan() {
            return None;
        }
        for (at, row) in rows.iter_mut().enumerate() {
            if at != column {
                let times = row[column] / lead[column];
                for (cell, &of) in row.iter_mut().zip(&lead) {
                    *cell -= times * of;
                }
            }
        }
    }
    let mut solved = [0.0; FEATURES];
    for (at, value) in solved.iter_mut().enumerate() {
        *value = rows[at][FEATURES] / rows[at][at];
    }
    Some(solved)
}

/// Costs that move slowly towards the fits.
#[derive(Clone, Copy, Debug)]
pub struct Learner {
    now: Factors,
    fit: Fit,
    goal: Option<Factors>,
}

impl Learner {
    /// Starts with the costs of the kind of datastore.
    pub fn new(start: Factors) -> Learner {
        Learner {
            now: start,
            fit: Fit::default(),
            goal: None,
        }
    }

    /// The current costs.
    pub fn factors(&self) -> Factors {
        self.now
    }

    /// The last fit, if any. It is published, for the median of all hosts.
    pub fn found(&self) -> Option<Factors> {
        self.goal
    }

    /// Adds one interval of full service with an unchanged window.
    pub fn add(&mut self, brought: [f64; FEATURES]) {
        self.fit.add(brought);
        if self.fit.moments() >= MOMENTS {
            self.goal = self.fit.solve(&self.now).or(self.goal);
            self.fit = Fit::default();
        }
    }

    /// Discards the intervals so far, because the window has changed and they are not comparable with later ones.
    pub fn interrupt(&mut self) {
        self.fit = Fit::default();
    }

    /// Moves towards `goal` (the median of all hosts' fits), by a tenth a minute at most.
    pub fn approach(&mut self, elapsed: Span, goal: &Factors) {
        let step = 0.1 * (nanos(elapsed) / (60.0 * SECOND)).min(1.0);
        let slow = |now: f64, goal: f64| {
            let room = step * now.max(0.05);
            goal.clamp(now - room, now + room)
        };
        self.now = Factors {
            read: slow(self.now.read, goal.read),
            write: slow(self.now.write, goal.write).clamp(0.5, 20.0),
            bytes_read: slow(self.now.bytes_read, goal.bytes_read),
            bytes_written: slow(self.now.bytes_written, goal.bytes_written),
        };
    }
}

#[cfg(test)]
mod tests;
