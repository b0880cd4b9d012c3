//! Detection of external load: I/O on the datastore that no host of the cluster causes.
//!
//! The window law shrinks the window when latency is high. If another system causes the latency, shrinking helps only
//! that system. But a slower datastore looks the same: less in flight, less throughput, latency at the threshold. Only
//! a trial distinguishes them. With more in flight, throughput rises if an outside load used the rest, and not if the
//! datastore is slower. So the detector waits until little is in flight for a while, and tries half as much again. If
//! throughput rises, it reports external load. It then holds the window at half of its former size; the proportions
//! between our disks remain.
//!
//! One host runs the detector, the one with the least name; the others follow its slot.
//!
//! # Always true
//! - External load is reported, and a window held, only after a trial in which throughput followed the I/O in flight.
//! - A held window is tried again every 30 s, by a trial with less. It ends when latency is well below the threshold.
//!   So it neither oscillates nor lasts forever.
//! - A failed trial is not repeated until the window has fallen by half again.
//!
//! # Picture
//! ```text
//!               half of it, for 6 s              more was done
//!   watching ------------------------> trying more -----------> holding <----------+
//!     ^  ^                                  |                      | 30 s          | less was done
//!     |  +----------------------------------+                      v               |
//!     |            no more was done                           trying less ---------+
//!     +---------------------------------------------------------- | no less was done
//! ```
//!
//! # Units
//! As [`super::window`].

use super::number::{left, nanos};
use super::slot::{Flags, Record};
use super::window::Sight;
use super::{Governor, GovernorEvent};
use crate::units::{Span, Time};

/// The I/O in flight must be half of the usual for this long before a trial. By then the window has followed a passing
/// change. Origin: chosen; no measurement.
const LOW_FOR: Span = Span::from_secs(6);
/// The last part of that time, with which a trial is compared. Origin: chosen; no measurement.
const BEFORE: Span = Span::from_secs(3);
/// The length of a trial. Every host must read it and report, and a tenth must exceed the noise of some hundred I/Os a
/// second. Origin: chosen; no measurement.
const TRIAL: Span = Span::from_secs(4);
/// The first part of a trial, which is not counted: hosts may read of it a second late. Origin: chosen; no measurement.
const HEARD: Span = Span::from_millis(1_500);
/// Hosts sample often for this long before a trial: a host that reads of it a second late takes another's part until
/// then. Origin: simulation (`row-10-capacity-halves`; decisions/0010).
const AHEAD: Span = Span::from_millis(1_500);
/// The time after which a held window is tried again. Origin: chosen; no measurement.
const HOLD: Span = Span::from_secs(30);
/// The factor by which a trial moves the window. Origin: chosen; no measurement.
const STEP: f64 = 1.5;
/// Throughput follows the window if it moves by this part of the window's move. Less is noise, or a datastore near
/// its knee; beside an outside load of our size it is half. Origin: chosen; no measurement.
const FOLLOWS: f64 = 0.2;
/// The half-life of the usual load, because a datastore changes over time. Origin: chosen; no
/// measurement.
const USUAL_HALF_LIFE: Span = Span::from_secs(60);
/// With the window held, latency below this part of the threshold shows that the external load has ended. Origin:
/// chosen; no measurement.
const ENDED: f64 = 0.9;
/// The half-life of the current load. Origin: chosen; no measurement.
const RECENT_HALF_LIFE: Span = Span::from_millis(500);

/// Average I/O in flight and throughput over some time.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    span: f64,
    in_flight: f64,
    rate: f64,
}

impl Mean {
    fn add(&mut self, elapsed: Span, sight: &Sight) {
        let span = nanos(elapsed);
        self.span += span;
        if self.span > 0.0 {
            let part = span / self.span;
            self.in_flight += part * (sight.in_flight - self.in_flight);
            self.rate += part * (sight.rate - self.rate);
        }
    }

    /// Whether throughput changed along with the I/O in flight, from `less` to this.
    fn follows(&self, less: &Mean) -> bool {
        let moved = self.in_flight / less.in_flight.max(1e-9) - 1.0;
        let did = self.rate / less.rate.max(1e-9) - 1.0;
        // Without a change in flight there is nothing to compare.
        moved > 0.2 && did >= FOLLOWS * moved
    }
}

/// A trial: the window is `level` for a while; `before` is the average before it.
#[derive(Clone, Copy, Debug)]
struct Trial {
    since: Time,
    level: f64,
    /// The window to hold if external load is found.
    hold: f64,
    /// Whether external load is known already, and the trial uses less.
    held: bool,
    before: Mean,
    seen: Mean,
}

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    #[default]
    Watching,
    /// Little is in flight, and throughput is lower.
    Low {
        since: Time,
        seen: Mean,
    },
    Trying(Trial),
    Holding {
        since: Time,
        level: f64,
        seen: Mean,
    },
    /// Another host runs the detector, in this state.
    Following {
        level: f64,
        tries: bool,
        on: bool,
    },
}

/// The input of a tick of the law.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a> {
    /// The current time.
    pub now: Time,
    /// The time since the last tick.
    pub elapsed: Span,
    /// The window before this tick.
    pub window: f64,
    /// The sums of all hosts.
    pub sight: &'a Sight,
    /// The threshold, nanoseconds.
    pub target: f64,
    /// The I/O in flight at which the datastore reaches nearly its peak, if known.
    pub knee: Option<f64>,
}

/// The detector of external load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    stage: Stage,
    /// The highest I/O in flight at the threshold, with its throughput.
    usual: Sight,
    lately: Sight,
    /// The recent window.
    window: f64,
    nears_trial: bool,
}

impl Watch {
    /// One tick of the law. `watches`: whether this host runs the detector. Returns whether external load has begun or
    /// ended.
    pub fn tick(&mut self, round: &Round<'_>, watches: bool) -> Option<bool> {
        let was = self.on();
        if round.sight.latency > 0.0 {
            self.notice(round);
            self.stage = if watches {
                self.next(round)
            } else {
                Stage::Watching
            };
        }
        self.nears_trial = matches!(
            self.stage,
            Stage::Low { since, .. } if round.now.since(since) + AHEAD >= LOW_FOR
        );
        (self.on() != was).then_some(self.on())
    }

    /// Follows another host's detector, which tries or holds this window. Returns as [`Watch::tick`].
    pub fn follow(&mut self, level: f64, tries: bool, on: bool) -> Option<bool> {
        let was = self.on();
        self.nears_trial = false;
        self.stage = Stage::Following { level, tries, on };
        (on != was).then_some(on)
    }

    /// Updates the usual and the recent load.
    fn notice(&mut self, round: &Round<'_>) {
        let (sight, elapsed) = (round.sight, round.elapsed);
        let decay = left(elapsed, RECENT_HALF_LIFE);
        let mix = |old: f64, new: f64| {
            if old > 0.0 {
                decay * old + (1.0 - decay) * new
            } else {
                new
            }
        };
        self.window = mix(self.window, round.window);
        self.lately = Sight {
            latency: mix(self.lately.latency, sight.latency),
            in_flight: mix(self.lately.in_flight, sight.in_flight),
            rate: mix(self.lately.rate, sight.rate),
            ..*sight
        };
        if self.level().is_some() || self.lately.latency > 1.3 * round.target {
            return;
        }
        if self.lately.in_flight >= self.usual.in_flight {
            self.usual = self.lately;
        } else {
            let decay = left(elapsed, USUAL_HALF_LIFE);
            let fade = |usual: f64, lately: f64| lately + decay * (usual - lately);
            self.usual.in_flight = fade(self.usual.in_flight, self.lately.in_flight);
            self.usual.rate = fade(self.usual.rate, self.lately.rate);
        }
    }

    fn next(&mut self, round: &Round<'_>) -> Stage {
        let now = round.now;
        // A long interval counts as one second at most.
        let elapsed = round.elapsed.min(Span::from_secs(1));
        let half = 0.5 * round.knee.unwrap_or(f64::MAX).min(self.usual.in_flight);
        let is_low = self.is_low(round.target, half);
        let seen = Mean::default();
        match self.stage {
            Stage::Following {
                level, on: true, ..
            } => Stage::Holding {
                since: now,
                level,
                seen,
            },
            Stage::Watching | Stage::Following { .. } if is_low => Stage::Low { since: now, seen },
            Stage::Low { since, mut seen } if is_low => {
                let passed = now.since(since);
                if passed >= LOW_FOR {
                    return Stage::Trying(Trial {
                        since: now,
                        level: STEP * self.window,
                        hold: half,
                        held: false,
                        before: seen,
                        seen: Mean::default(),
                    });
                }
                if passed + BEFORE > LOW_FOR {
                    seen.add(elapsed, round.sight);
                }
                Stage::Low { since, seen }
            }
            Stage::Watching | Stage::Following { .. } | Stage::Low { .. } => Stage::Watching,
            Stage::Trying(mut trial) => {
                let passed = now.since(trial.since);
                if passed > HEARD {
                    trial.seen.add(elapsed, round.sight);
                }
                if passed < TRIAL {
                    Stage::Trying(trial)
                } else {
                    self.judge(now, &trial)
                }
            }
            Stage::Holding {
                since,
                level,
                mut seen,
            } => {
                let passed = now.since(since);
                if passed > HEARD && self.lately.latency < ENDED * round.target {
                    return Stage::Watching;
                }
                if passed >= HOLD {
                    return Stage::Trying(Trial {
                        since: now,
                        level: level / STEP,
                        hold: level,
                        held: true,
                        before: seen,
                        seen: Mean::default(),
                    });
                }
                if passed + BEFORE > HOLD {
                    seen.add(elapsed, round.sight);
                }
                Stage::Holding { since, level, seen }
            }
        }
    }

    fn judge(&mut self, now: Time, trial: &Trial) -> Stage {
        let (less, more) = if trial.held {
            (trial.seen, trial.before)
        } else {
            (trial.before, trial.seen)
        };
        if more.follows(&less) {
            return Stage::Holding {
                since: now,
                level: trial.hold,
                seen: Mean::default(),
            };
        }
        // The current load becomes the usual one.
        self.usual = Sight {
            in_flight: less.in_flight,
            rate: less.rate,
            ..self.lately
        };
        Stage::Watching
    }

    /// Whether our hosts fill their windows, have half of the usual I/O in flight, and reach much less throughput.
    fn is_low(&self, target: f64, half: f64) -> bool {
        let lately = &self.lately;
        lately.latency >= 0.75 * target
            && lately.in_flight >= 0.7 * self.window
            && lately.in_flight <= half
            && lately.rate <= 0.8 * self.usual.rate
    }

    /// The cluster's window, if the detector and not the law sets it.
    pub fn level(&self) -> Option<f64> {
        match self.stage {
            Stage::Watching | Stage::Low { .. } => None,
            Stage::Trying(Trial { level, .. })
            | Stage::Holding { level, .. }
            | Stage::Following { level, .. } => Some(level),
        }
    }

    /// Whether this host tries or holds a window that the others must follow.
    pub fn leads(&self) -> bool {
        matches!(self.stage, Stage::Trying(_) | Stage::Holding { .. })
    }

    /// Whether a trial is in progress, on this host or another.
    pub fn tries(&self) -> bool {
        matches!(
            self.stage,
            Stage::Trying(_) | Stage::Following { tries: true, .. }
        )
    }

    /// Whether a trial begins soon, so that all hosts should tick fast.
    pub fn nears_trial(&self) -> bool {
        self.nears_trial
    }

    /// Whether external load is present.
    pub fn on(&self) -> bool {
        match self.stage {
            Stage::Watching | Stage::Low { .. } => false,
            Stage::Trying(trial) => trial.held,
            Stage::Holding { .. } => true,
            Stage::Following { on, .. } => on,
        }
    }
}

impl Governor {
    /// Runs the detector on one host; the others follow its slot.
    pub(super) fn detect_external_load(&mut self, now: Time, knee: Option<f64>) -> Option<bool> {
        let own = self.settings.host;
        let engaged = || {
            let live = self.peers.iter().filter(|peer| peer.live());
            let records = live.map(|peer| &peer.record);
            records.filter(|record| record.flags.has(Flags::ENGAGED))
        };
        let tries =
            |record: &&Record| record.flags.has(Flags::TRYING) || record.flags.has(Flags::EXTERNAL);
        // The host that has begun continues, even if a host with a lesser name has joined since.
        let at_it = engaged().filter(tries).min_by_key(|record| record.host);
        if let Some(record) = at_it.filter(|record| !self.watch.leads() || record.host < own) {
            let (level, flags) = (record.cluster, record.flags);
            let (tries, on) = (flags.has(Flags::TRYING), flags.has(Flags::EXTERNAL));
            return self.watch.follow(level, tries, on);
        }
        let watches = self.watch.leads() || engaged().all(|record| own < record.host);
        let round = Round {
            now,
            elapsed: self.pace.since(now),
            window: self.cluster,
            sight: &self.sight,
            target: self.target,
            knee,
        };
        self.watch.tick(&round, watches)
    }

    /// Resets the detector; no window is held any more.
    pub(super) fn reset_external_detector(&mut self) {
        if self.watch.on() {
            self.events.push(GovernorEvent::ExternalLoad { on: false });
        }
        self.watch = Watch::default();
    }
}

#[cfg(test)]
mod tests;
