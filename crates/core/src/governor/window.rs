//! The window of the whole cluster: every host computes the same number from the same reports.
//!
//! The governor calls [`next`] once a tick while control is engaged. The division of the window is separate
//! ([`super::division`]): efficiency and fairness are two laws.
//!
//! # Always true
//! - The result is between `hosts * floor` and `hosts * most`, for any input.
//! - If the load does not fill the window and no disk could use more, the window stays (coast), so it does not grow
//!   while idle.
//! - The difference between two hosts halves with each tick (consensus).
//!
//! # Units
//! Windows and queues in reference I/Os, latencies in nanoseconds.
//!
//! # Source
//! PARDA's (FAST 2009) feedback on latency, with Little's law in place of its small steps. With `Q` in flight and a
//! latency `L`, the array does `Q / L`, so `Q * L* / L` in flight give the latency `L*` at once. While an earlier queue
//! drains, `L` belongs to that queue. Then throughput counts: at `X` a second, `X * L*` in flight.

use super::number::SECOND;

/// Below this ratio of threshold to latency the window comes down in one tick; above it, by half. Origin: chosen; no
/// measurement.
const URGENT: f64 = 0.7;
/// The step of a tick upwards, as a part of the way. Origin: chosen; no measurement.
const UP: f64 = 0.3;
/// The step of a tick downwards that is not urgent, as a part of the way. Origin: chosen; no measurement.
const DOWN: f64 = 0.5;
/// The highest ratio of threshold to latency that a tick uses. Origin: chosen; no measurement.
const MOST_RATIO: f64 = 2.0;
/// The minimum of each host, as a part of an equal division. Origin: chosen; no measurement.
const FLOOR_PART: f64 = 0.25;
/// The highest floor, in I/Os. With a fixed floor of four, shares of 24 hosts on a fast array were 16 % off. Origin:
/// simulation of the design, before `crates/sim`; `row-16-many-hosts` checks it.
const FLOOR_MOST: f64 = 4.0;
/// While less than this part of the window is in use, latency says nothing about the window. Origin: chosen; no
/// measurement.
const IN_USE: f64 = 0.7;
/// A tick never sets the window below this part of the I/O in flight. Origin: chosen; no measurement.
pub(super) const LEAST_RATIO: f64 = 0.25;
/// The part of a difference between hosts that each removes in a tick. Origin: chosen; a difference halves in a tick.
const CONSENSUS: f64 = 0.5;

/// The sums of all hosts since their last records.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sight {
    /// Mean normalised latency, weighted by I/Os; 0: without I/O.
    pub latency: f64,
    /// Average I/O in flight.
    pub in_flight: f64,
    /// Throughput a second.
    pub rate: f64,
    /// The number of hosts, including this one.
    pub hosts: u32,
    /// Whether any disk got less than it could use, apart from unused parts of others.
    pub short: bool,
}

/// The minimum of each host: a host with nothing in flight would have no measurements.
pub fn floor(cluster: f64, hosts: u32) -> f64 {
    (FLOOR_PART * cluster / f64::from(hosts.max(1))).clamp(1.0, FLOOR_MOST)
}

/// The cluster's window after one tick, before consensus.
pub fn step(window: f64, target: f64, sight: &Sight) -> f64 {
    if sight.latency <= 0.0 {
        return window;
    }
    let ratio = (target / sight.latency).clamp(LEAST_RATIO, MOST_RATIO);
    if ratio >= 1.0 {
        if sight.in_flight < IN_USE * window && !sight.short {
            return window;
        }
        return (1.0 - UP) * window + UP * ratio * window;
    }
    let part = if ratio < URGENT { 1.0 } else { DOWN };
    // While an earlier queue drains, latency belongs to that queue; throughput times the target latency is right.
    let through = target / SECOND * sight.rate;
    let goal = (ratio * sight.in_flight.min(window)).max(through.min(window));
    (1.0 - part) * window + part * goal
}

/// The cluster's window after one tick: the law, then half way towards the mean of all hosts' windows (`mean`).
pub fn next(window: f64, mean: f64, target: f64, sight: &Sight, most: f64) -> f64 {
    let stepped = step(window, target, sight);
    let agreed = stepped + CONSENSUS * (mean - window);
    let hosts = f64::from(sight.hosts.max(1));
    let least = floor(agreed, sight.hosts) * hosts;
    agreed.max(least).min((hosts * most).max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn sight(latency: f64, in_flight: f64) -> Sight {
        Sight {
            latency,
            in_flight,
            rate: in_flight / latency * 1e9,
            hosts: 2,
            short: false,
        }
    }

    #[test]
    fn a_window_with_unused_parts_grows_for_disks_that_can_use_it() {
        let half = sight(5e6, 40.0);
        assert_eq!(step(80.0, 25e6, &half), 80.0);
        let short = Sight {
            short: true,
            ..half
        };
        assert!(step(80.0, 25e6, &short) > 100.0);
    }

    #[test]
    fn one_tick_answers_a_doubled_latency() {
        assert_eq!(step(80.0, 25e6, &sight(50e6, 80.0)), 40.0);
    }

    #[test]
    fn a_small_excess_is_taken_back_half_way() {
        let after = step(80.0, 25e6, &sight(27.5e6, 80.0));
        assert!((76.0..77.0).contains(&after), "{after}");
    }

    #[test]
    fn the_window_shrinks_from_the_io_in_flight_if_that_is_less() {
        assert_eq!(step(80.0, 25e6, &sight(50e6, 40.0)), 20.0);
        assert_eq!(step(80.0, 25e6, &sight(31.25e6, 60.0)), 64.0);
        // The excess over the window came before it: half of the I/O in flight takes half the time.
        assert_eq!(step(80.0, 25e6, &sight(50e6, 100.0)), 50.0);
    }

    #[test]
    fn while_an_earlier_queue_drains_the_window_follows_throughput() {
        // A thousand a second: 25 of them in 25 ms; the earlier ones must wait.
        let mut window = 80.0;
        for (latency, in_flight) in [(600e6, 600.0), (700e6, 300.0), (500e6, 30.0), (200e6, 25.0)] {
            let draining = Sight {
                rate: 1_000.0,
                ..sight(latency, in_flight)
            };
            window = step(window, 25e6, &draining);
            assert_eq!(window, 25.0);
        }
        // Throughput during a burst does not make it grow.
        let burst = Sight {
            rate: 10_000.0,
            ..sight(50e6, 25.0)
        };
        assert_eq!(step(25.0, 25e6, &burst), 25.0);
    }

    #[test]
    fn a_window_that_is_not_filled_does_not_grow() {
        assert_eq!(step(80.0, 25e6, &sight(5e6, 40.0)), 80.0);
        assert!(step(80.0, 25e6, &sight(5e6, 79.0)) > 100.0);
    }

    #[test]
    fn without_a_single_io_the_window_stays() {
        assert_eq!(step(80.0, 25e6, &Sight::default()), 80.0);
    }

    #[test]
    fn a_disagreement_halves_each_tick() {
        // At the threshold the law itself changes nothing.
        let quiet = sight(25e6, 60.0);
        let (mut a, mut b) = (40.0_f64, 80.0_f64);
        for _ in 0..4 {
            let (before, mean) = (b - a, (a + b) / 2.0);
            a = next(
                a,
                mean,
                25e6,
                &Sight {
                    in_flight: a,
                    ..quiet
                },
                256.0,
            );
            b = next(
                b,
                mean,
                25e6,
                &Sight {
                    in_flight: b,
                    ..quiet
                },
                256.0,
            );
            assert!(((b - a) * 2.0 - before).abs() < 1e-9, "{a} {b}");
        }
    }

    #[test]
    fn the_floor_is_between_one_and_four_of_a_host() {
        assert_eq!(floor(1_000.0, 10), 4.0);
        assert_eq!(floor(24.0, 24), 1.0);
        assert_eq!(floor(20.0, 2), 2.5);
        assert_eq!(next(8.0, 8.0, 1e6, &sight(100e6, 8.0), 256.0), 2.0);
    }
}
