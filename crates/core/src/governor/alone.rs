//! The control law of a host that cannot read the other hosts' slots.
//!
//! The governor calls [`step`] once a second after its reads have failed for a lease. Each host then follows its own
//! latency. Shares still have an effect through a small addend, though slower and less exact than by division.
//!
//! # Units
//! As [`super::window`].
//!
//! # Source
//! PARDA (FAST 2009): `w' = (1 - g) w + g (L* / L * w + b)`, with `b` the sum of the host's active shares.

/// The step of one tick. Origin: PARDA (FAST 2009), gamma; quoted from memory, not checked against the paper.
const GAIN: f64 = 0.8;
/// Shares that count as one unit of PARDA's addend: those of a normal disk. Origin: chosen; no measurement.
const SHARES: f64 = 1_000.0;

/// This host's window after one second without other hosts. `shares`: those of its active disks. Without latency the
/// window stays.
pub fn step(window: f64, target: f64, latency: f64, shares: f64, most: f64) -> f64 {
    if latency <= 0.0 {
        return window;
    }
    let goal = (target / latency).clamp(0.25, 2.0) * window + shares / SHARES;
    ((1.0 - GAIN) * window + GAIN * goal).clamp(1.0, most.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hosts_that_cannot_hear_each_other_end_in_the_proportion_of_their_shares() {
        let (mut a, mut b) = (40.0, 40.0);
        for _ in 0..200 {
            // An array of 3,000 a second, 1 ms at least.
            let latency = ((a + b) / 3_000.0 * 1e9_f64).max(1e6);
            a = step(a, 25e6, latency, 1_000.0, 256.0);
            b = step(b, 25e6, latency, 3_000.0, 256.0);
        }
        assert!((b / a - 3.0).abs() < 0.05, "{a} {b}");
    }

    #[test]
    fn it_stays_within_its_bounds_and_still_without_io() {
        assert_eq!(step(10.0, 25e6, 0.0, 9e9, 256.0), 10.0);
        assert_eq!(step(250.0, 25e6, 1.0, 1e9, 256.0), 256.0);
        assert_eq!(step(1.0, 1.0, 25e6, 0.0, 256.0), 1.0);
    }
}
