//! Whether the machine was quiet during a trial.
//!
//! Two moments of `/proc/stat`, less the CPU time of the processes that belong to the trial, are other people's work.
//! Interrupts and softirqs are left out: they are mostly the trial's own I/O.
//!
//! # Units
//! - Percent of one core, since client and server have one each.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

/// `/proc/stat` counts in hundredths of a second on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// One look at the machine.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    at: Instant,
    busy: f64,
    steal: f64,
}

/// What disturbed a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Noise {
    /// CPU that processes outside the trial used.
    pub foreign_percent: f64,
    /// CPU that the hypervisor gave to other machines.
    pub steal_percent: f64,
}

impl Noise {
    /// Whether a trial with this noise must be thrown away.
    #[must_use]
    pub fn exceeds(&self, percent: f64) -> bool {
        self.foreign_percent > percent || self.steal_percent > percent
    }

    /// The worse of two, part by part.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            foreign_percent: self.foreign_percent.max(other.foreign_percent),
            steal_percent: self.steal_percent.max(other.steal_percent),
        }
    }
}

/// Looks now.
///
/// # Errors
/// `/proc/stat` cannot be read.
pub fn look() -> Result<Look> {
    let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let (busy, steal) = parse(&text).context("/proc/stat has no cpu line")?;
    Ok(Look {
        at: Instant::now(),
        busy,
        steal,
    })
}

/// Seconds of user, nice and system time; seconds of steal.
fn parse(text: &str) -> Option<(f64, f64)> {
    let line = text.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .map_while(|word| word.parse().ok())
        .collect();
    Some((
        ticks.get(..3)?.iter().sum::<f64>() / TICKS_PER_SECOND,
        ticks.get(7)? / TICKS_PER_SECOND,
    ))
}

/// The noise between two looks, of which `own` CPU time was the trial's.
#[must_use]
pub fn between(from: Look, to: Look, own: Duration) -> Noise {
    let span = to.at.duration_since(from.at).as_secs_f64().max(1e-9);
    let foreign = to.busy - from.busy - own.as_secs_f64();
    Noise {
        // Ticks are coarse: a quiet machine may come out below zero.
        foreign_percent: (foreign / span * 100.0).max(0.0),
        steal_percent: ((to.steal - from.steal) / span * 100.0).max(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  7900 100 2000 185004 694 50 94 20 0 0\ncpu0 1 2 3 4\n";

    #[test]
    fn busy_leaves_out_idle_and_interrupts() {
        assert_eq!(parse(STAT), Some((100.0, 0.2)));
        assert_eq!(parse("intr 5"), None);
    }

    #[test]
    fn our_own_work_is_no_noise() {
        let at = Instant::now();
        let from = Look {
            at,
            busy: 100.0,
            steal: 1.0,
        };
        let to = Look {
            at: at + Duration::from_secs(2),
            busy: 103.0,
            steal: 1.02,
        };
        let noise = between(from, to, Duration::from_millis(2900));
        assert!((noise.foreign_percent - 5.0).abs() < 1e-6, "{noise:?}");
        assert!((noise.steal_percent - 1.0).abs() < 1e-6, "{noise:?}");
        assert!(noise.exceeds(4.9) && !noise.exceeds(5.1));
    }

    #[test]
    fn a_quiet_machine_is_never_below_zero() {
        let look = Look {
            at: Instant::now(),
            busy: 0.0,
            steal: 0.0,
        };
        let later = Look {
            at: look.at + Duration::from_secs(1),
            ..look
        };
        assert_eq!(
            between(look, later, Duration::from_millis(5)),
            Noise::default()
        );
    }
}
