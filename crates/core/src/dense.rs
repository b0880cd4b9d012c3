//! Dense mode: it decides when a full host trades latency for fewer wake-ups and interrupts.
//!
//! On a host with many virtual machines on each CPU, every wake-up of an I/O thread and every interrupt of a guest takes
//! a CPU from a guest that computes. So when three numbers say that the host is full, I/O threads look for requests at
//! intervals, and guests get one interrupt for several completions. The daemon takes a [`Sample`] once a minute, and
//! tells the I/O threads of each [`Change`].
//!
//! # Always true
//! - the mode changes only at its moments, which are a minute apart, or by an administrator
//! - it is on if and only if all three conditions held at the last moment, with [`Mode::Auto`]
//! - a sample before its moment changes nothing
//!
//! # Units
//! Utilisation in thousandths of all CPUs.
//! # Source
//! A switch by three fixed thresholds, as VMware's dense mode is described. There is no score and no table, on purpose:
//! US patent 9,606,823 describes those.

use crate::units::{Span, Time};

/// The time between two samples: shorter peaks of load do not change the mode.
pub const INTERVAL: Span = Span::from_secs(60);
/// vCPUs for each CPU of the host from which on it is full.
const VCPUS_PER_CPU: u32 = 2;
/// The utilisation from which on the host is full, in thousandths.
const UTILISATION: u32 = 500;

/// Completions for which one interrupt is enough, and the time after which fewer are.
pub const COMPLETIONS: (u32, Span) = (16, Span::from_millis(1));
/// Requests that a guest makes available before it kicks.
pub const KICK_BATCH: u16 = 8;
/// The time after which fewer requests are looked for.
pub const SCAN: Span = Span::from_millis(1);
/// A queue in which so many scans found nothing gets its kicks back.
pub const EMPTY_SCANS: u32 = 4;

/// What an administrator wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Never dense.
    Off,
    /// Dense while the host is full.
    #[default]
    Auto,
    /// Always dense.
    On,
}

/// How full the host is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Online CPUs of the host.
    pub cpus: u32,
    /// Virtual machines with a device.
    pub vms: u32,
    /// Their vCPUs.
    pub vcpus: u32,
    /// Virtual machines among them whose vCPUs are not known: each counts as one vCPU.
    pub assumed: u32,
    /// The part of the CPUs' time since the last sample that was neither idle nor waiting for I/O.
    pub utilisation: u32,
}

/// A number of a sample, and the one from which on its condition holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// The number.
    pub value: u32,
    /// From here on the host is full.
    pub threshold: u32,
}

impl Condition {
    /// Whether it holds.
    pub fn holds(self) -> bool {
        self.value >= self.threshold
    }
}

/// The three conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Virtual machines, and online CPUs.
    pub vms: Condition,
    /// vCPUs, and twice the online CPUs.
    pub vcpus: Condition,
    /// Utilisation, and the half, in thousandths.
    pub utilisation: Condition,
    /// Virtual machines whose vCPUs are not known.
    pub assumed: u32,
}

impl Conditions {
    /// Whether all three hold.
    pub fn hold(&self) -> bool {
        self.vms.holds() && self.vcpus.holds() && self.utilisation.holds()
    }
}

/// The mode changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whether it is on from now on.
    pub on: bool,
    /// The sample's conditions; none: an administrator changed it.
    pub why: Option<Conditions>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Dense {
    mode: Mode,
    /// By so many thousandths the utilisation may fall below its threshold before the mode ends.
    margin: u32,
    on: bool,
    due: Time,
    conditions: Option<Conditions>,
}

impl Dense {
    /// The largest margin, in thousandths.
    pub const MOST_MARGIN: u32 = 200;

    /// At `now`; the first sample is due after an interval. `margin` is in thousandths, at most
    /// [`Dense::MOST_MARGIN`].
    pub fn new(mode: Mode, margin: u32, now: Time) -> Dense {
        Dense {
            mode,
            margin: margin.min(Dense::MOST_MARGIN),
            on: mode == Mode::On,
            due: now + INTERVAL,
            conditions: None,
        }
    }

    /// Whether it is on.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// What the administrator wants.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// When the next sample is due.
    pub fn due(&self) -> Time {
        self.due
    }

    /// The conditions at the last moment; none before the first.
    pub fn conditions(&self) -> Option<Conditions> {
        self.conditions
    }

    /// An administrator changes the mode. From `off` or `on`, `auto` begins as it was and waits for the next moment.
    pub fn set_mode(&mut self, mode: Mode) -> Option<Change> {
        self.mode = mode;
        let on = match mode {
            Mode::Off => false,
            Mode::On => true,
            Mode::Auto => self.on,
        };
        self.change(on, None)
    }

    /// A sample that was taken at `now`. Before its moment it is ignored.
    pub fn sample(&mut self, now: Time, sample: &Sample) -> Option<Change> {
        if now < self.due {
            return None;
        }
        // Moments that were missed, while the host was suspended or overloaded, are not made up for.
        while self.due <= now {
            self.due = self.due + INTERVAL;
        }
        let margin = if self.on { self.margin } else { 0 };
        let conditions = Conditions {
            vms: Condition {
                value: sample.vms,
                threshold: sample.cpus,
            },
            vcpus: Condition {
                value: sample.vcpus,
                threshold: sample.cpus.saturating_mul(VCPUS_PER_CPU),
            },
            utilisation: Condition {
                value: sample.utilisation,
                threshold: UTILISATION - margin,
            },
            assumed: sample.assumed,
        };
        self.conditions = Some(conditions);
        match self.mode {
            Mode::Auto => self.change(conditions.hold(), Some(conditions)),
            Mode::Off | Mode::On => None,
        }
    }

    fn change(&mut self, on: bool, why: Option<Conditions>) -> Option<Change> {
        let changes = self.on != on;
        self.on = on;
        changes.then_some(Change { on, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUS: u32 = 8;

    fn sample(vms: u32, vcpus: u32, utilisation: u32) -> Sample {
        Sample {
            cpus: CPUS,
            vms,
            vcpus,
            assumed: 0,
            utilisation,
        }
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Span::from_secs(seconds)
    }

    /// The values of the three conditions at their thresholds, and one less.
    fn edges() -> impl Iterator<Item = (Sample, bool)> {
        (0..8).map(|case| {
            let less = [case & 1, case >> 1 & 1, case >> 2];
            let [vms, vcpus, utilisation] = less;
            let sample = sample(CPUS - vms, 2 * CPUS - vcpus, 500 - utilisation);
            (sample, less == [0; 3])
        })
    }

    #[test]
    fn it_is_on_if_all_three_conditions_hold_and_off_if_any_does_not() {
        for was_on in [false, true] {
            for (edge, full) in edges() {
                let mut dense = Dense::new(Mode::Auto, 0, at(0));
                if was_on {
                    let change = dense.sample(at(60), &sample(CPUS, 2 * CPUS, 500));
                    assert!(change.is_some_and(|change| change.on));
                }
                let change = dense.sample(at(120), &edge);
                assert_eq!(dense.is_on(), full, "{edge:?}");
                assert_eq!(
                    change.map(|change| change.on),
                    (was_on != full).then_some(full)
                );
                let why = dense.conditions().expect("it was sampled");
                assert_eq!(change.and_then(|change| change.why), change.map(|_| why));
                assert_eq!(why.vms.holds(), edge.vms == CPUS);
                assert_eq!(why.vcpus.holds(), edge.vcpus == 2 * CPUS);
                assert_eq!(why.utilisation.holds(), edge.utilisation == 500);
            }
        }
    }

    #[test]
    fn it_changes_only_at_its_moments() {
        let mut dense = Dense::new(Mode::Auto, 0, at(3));
        let (full, empty) = (sample(CPUS, 2 * CPUS, 500), sample(0, 0, 0));
        let mut changes = 0;
        let mut last = Time::ZERO;
        for tenth in 30..6000 {
            let now = Time::from_nanos(tenth * 100_000_000);
            // In turns, so that each sample would change it.
            let next = if dense.is_on() { &empty } else { &full };
            if dense.sample(now, next).is_some() {
                assert_eq!(now.since(at(3)).as_nanos() % INTERVAL.as_nanos(), 0);
                assert!(now.since(last) >= INTERVAL);
                last = now;
                changes += 1;
            }
        }
        assert_eq!(changes, 9);
    }

    #[test]
    fn missed_moments_are_not_made_up_for() {
        let mut dense = Dense::new(Mode::Auto, 0, at(0));
        let full = sample(CPUS, 2 * CPUS, 500);
        assert!(dense.sample(at(1000), &full).is_some());
        assert_eq!(dense.due(), at(1020));
        assert_eq!(dense.sample(at(1019), &sample(0, 0, 0)), None);
        assert!(dense.is_on());
    }

    #[test]
    fn the_margin_counts_only_for_the_end_and_only_for_utilisation() {
        let mut dense = Dense::new(Mode::Auto, 150, at(0));
        assert_eq!(dense.sample(at(60), &sample(CPUS, 2 * CPUS, 499)), None);
        assert!(
            dense
                .sample(at(120), &sample(CPUS, 2 * CPUS, 500))
                .is_some()
        );
        assert_eq!(dense.sample(at(180), &sample(CPUS, 2 * CPUS, 350)), None);
        assert!(
            dense
                .sample(at(240), &sample(CPUS, 2 * CPUS, 349))
                .is_some()
        );
        assert_eq!(dense.sample(at(300), &sample(CPUS, 2 * CPUS, 400)), None);
        assert!(
            dense
                .sample(at(360), &sample(CPUS, 2 * CPUS, 500))
                .is_some()
        );
        assert!(
            dense
                .sample(at(420), &sample(CPUS - 1, 2 * CPUS, 900))
                .is_some()
        );
        let most = Dense::new(Mode::Auto, 1000, at(0));
        assert_eq!(most.margin, Dense::MOST_MARGIN);
    }

    #[test]
    fn an_administrator_changes_it_at_once_and_samples_do_not() {
        let (full, empty) = (sample(CPUS, 2 * CPUS, 1000), sample(0, 0, 0));
        let mut dense = Dense::new(Mode::On, 0, at(0));
        assert!(dense.is_on());
        assert_eq!(dense.sample(at(60), &empty), None);
        assert!(dense.is_on());
        let off = dense.set_mode(Mode::Off);
        assert_eq!(
            off,
            Some(Change {
                on: false,
                why: None
            })
        );
        assert_eq!(dense.set_mode(Mode::Off), None);
        assert_eq!(dense.sample(at(120), &full), None);
        assert!(!dense.is_on());
        assert_eq!(dense.set_mode(Mode::Auto), None);
        assert!(dense.sample(at(180), &full).is_some());
        assert_eq!(dense.set_mode(Mode::On), None);
        assert_eq!(dense.set_mode(Mode::Auto), None);
        assert!(dense.is_on());
        assert!(dense.sample(at(240), &empty).is_some());
    }

    #[test]
    fn numbers_without_bounds_do_no_harm() {
        let mut dense = Dense::new(Mode::Auto, u32::MAX, at(0));
        let huge = Sample {
            cpus: u32::MAX,
            vms: u32::MAX,
            vcpus: u32::MAX,
            assumed: u32::MAX,
            utilisation: u32::MAX,
        };
        assert!(dense.sample(at(60), &huge).is_some());
        assert!(dense.sample(at(120), &Sample::default()).is_some());
    }
}
