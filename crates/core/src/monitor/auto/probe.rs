//! Probes: where guests lack CPUs, one thread fewer or threads without polling are tried from time to time.
//!
//! # Always true
//! - probes take at most a twentieth of the time, and only while the load is steady
//! - nothing is probed while a thread is congested

use super::bans::Direction;
use super::narrow;
use super::observed::SlowTick;
use super::placement::{self, Relocation};
use super::trial::{self, Trial};
use super::{
    Action, Auto, Decision, FIT, GAIN, PROBES_SAVED, Permille, Snapshot, ThreadNumber, Why,
};
use crate::units::Span;
use alloc::vec::Vec;

/// Time between two probes under one load. Under another load the next one may follow at once.
const PROBE: Span = Span::from_secs(10);
/// Probes take at most a twentieth of the time. Three may follow each other, after a time without any.
const PROBE_PART: u64 = 20;
/// The load is steady if it was the same in so many slow ticks.
const STEADY: u32 = 3;

impl Auto {
    /// Where guests lack CPUs: tries one thread fewer, or not to poll; and to poll again when the load has changed.
    pub(super) fn probe(
        &mut self,
        snapshot: &Snapshot,
        slow: &SlowTick,
        packed: Option<(ThreadNumber, &Vec<Relocation>, Permille)>,
        parts: &[placement::Part],
        out: &mut Vec<Decision>,
    ) -> bool {
        let (now, n, offered) = (self.now, snapshot.active(), self.observed.offered());
        let contention = Why::Contention {
            stolen: slow.stolen,
            guests_delay: slow.guests_delay,
        };
        let is_changed = !self.spin_off_at.is_near(offered);
        if !self.spin && (is_changed || !slow.is_contended) {
            return self.try_spin(n, true, contention, out);
        }
        let is_due = now.since(self.probed) >= PROBE || !self.probed_at.is_near(offered);
        let is_allowed = self.probe_credit >= trial::LENGTH && self.steady >= STEADY;
        if !slow.is_contended || slow.is_congested || !is_due || !is_allowed {
            return false;
        }
        self.probed = now;
        self.probed_at = offered;
        if let Some((thread, moves, highest)) = packed
            && highest <= FIT
            && n > usize::from(self.limits.min.max(1))
        {
            let why = Why::Probe {
                threads: narrow(n),
                guests_delay: slow.guests_delay,
            };
            if self.step_down(n, thread, moves, parts, why, out) {
                self.pay_probe();
                return true;
            }
        }
        // Polling that takes no time takes none from guests.
        let tried = self.spin && slow.spin > GAIN && self.try_spin(n, false, contention, out);
        if tried {
            self.pay_probe();
        }
        tried
    }

    fn pay_probe(&mut self) {
        let left = self.probe_credit.as_nanos() - trial::LENGTH.as_nanos();
        self.probe_credit = Span::from_nanos(left);
    }

    /// Notes whether the load is that of the slow tick before, and saves time for probes.
    pub(super) fn note_steadiness(&mut self, slow: &SlowTick) {
        let offered = self.observed.offered_since(slow.began());
        self.steady = match self.steady_at.is_near(offered) {
            true => self.steady + 1,
            false => 0,
        };
        self.steady_at = offered;
        let saved = Span::from_nanos(slow.span.as_nanos() / PROBE_PART);
        self.probe_credit = (self.probe_credit + saved).min(PROBES_SAVED);
    }

    fn try_spin(&mut self, n: usize, on: bool, why: Why, out: &mut Vec<Decision>) -> bool {
        let direction = match on {
            true => Direction::SpinOn,
            false => Direction::SpinOff,
        };
        let offered = self.observed.offered();
        if self.bans.left(self.now, n, direction, offered) > Span::ZERO {
            return false;
        }
        self.spin = on;
        self.spin_off_at = offered;
        self.push(out, Action::Spin { on }, why);
        self.trial = Some(Trial::new(self.now, direction, n, self.observed.all()));
        true
    }
}
