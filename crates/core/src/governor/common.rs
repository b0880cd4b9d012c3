//! Conversions between the fields of slot 0, the settings, and the values of the control laws. [`Dither`] varies the
//! window slightly to learn.

use super::Threshold;
use super::learn::Factors;
use super::number::{real, whole};
use super::slot::{Common, Flags};
use crate::iocontrol::{CostModel, Mode};
use crate::units::{Span, Time};

/// 64 KiB parts of a MiB.
const MIB_PARTS: f64 = 16.0;
/// Cost units of a reference I/O.
const COST: f64 = 256.0;

/// Ticks of one dither. Origin: chosen; no measurement.
const DITHER_TICKS: u32 = 5;
/// The minimum length of a dither. Origin: calm hosts read once a second ([`super::pace`]), and must take part.
const DITHER_HEARD: Span = Span::from_secs(1);
/// The time between two dithers. Origin: chosen; no measurement.
const DITHER_EVERY: Span = Span::from_secs(60);
/// The part by which a dither moves the window. Origin: chosen; no measurement.
const DITHER: f64 = 0.1;

pub(super) const fn mode_word(mode: Mode) -> u8 {
    match mode {
        Mode::Off => 0,
        Mode::Observe => 1,
        Mode::On => 2,
    }
}

pub(super) const fn mode(word: u8) -> Mode {
    match word {
        0 => Mode::Off,
        1 => Mode::Observe,
        _ => Mode::On,
    }
}

pub(super) fn words(threshold: Threshold) -> (u8, u64) {
    match threshold {
        Threshold::Auto => (0, 0),
        Threshold::Fixed(at) => (1, at.as_nanos().clamp(200_000, 100_000_000)),
        Threshold::Off => (2, 0),
    }
}

impl Common {
    /// The mode of control.
    pub fn mode(&self) -> Mode {
        mode(self.mode)
    }

    /// The congestion threshold.
    pub fn threshold(&self) -> Threshold {
        match self.threshold_mode {
            0 => Threshold::Auto,
            1 => Threshold::Fixed(Span::from_nanos(self.threshold)),
            _ => Threshold::Off,
        }
    }
}

/// The threshold before pressure: the fixed one, or else the automatic one, `auto`.
pub(super) fn target(common: &Common, auto: f64) -> f64 {
    match common.threshold_mode {
        1 => real(common.threshold),
        _ => auto,
    }
}

/// The costs in the learner's form.
pub(super) fn factors(costs: &CostModel) -> Factors {
    Factors {
        read: real(costs.read_base) / COST,
        write: real(costs.write_base) / COST,
        bytes_read: real(costs.read_per_mib) / COST / MIB_PARTS,
        bytes_written: real(costs.write_per_mib) / COST / MIB_PARTS,
    }
}

/// The costs in the schedulers' form. Sequential costs keep their proportion; transfer times are not learned.
pub(super) fn costs(kind: &CostModel, factors: &Factors) -> CostModel {
    let units = |cost: f64| whole(cost * COST + 0.5).max(1);
    let (read_base, write_base) = (units(factors.read), units(factors.write));
    CostModel {
        read_base,
        write_base,
        read_sequential: (kind.read_sequential * read_base / kind.read_base.max(1)).max(1),
        write_sequential: (kind.write_sequential * write_base / kind.write_base.max(1)).max(1),
        read_per_mib: units(factors.bytes_read * MIB_PARTS),
        write_per_mib: units(factors.bytes_written * MIB_PARTS),
        ..*kind
    }
}

/// Makes the window a tenth wider, a minute later a tenth narrower, and so on, to learn the curve around the current
/// point. The host with the least name leads; the others follow its slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dither {
    next: Option<Time>,
    left: u32,
    heard: Time,
    wider: bool,
    /// The leader's direction, if this host follows.
    follow: Option<bool>,
}

impl Dither {
    /// One tick of the law. `leader`: the leading host's flags, if another host leads.
    pub(super) fn tick(&mut self, now: Time, leader: Option<Flags>) {
        self.follow = None;
        if let Some(flags) = leader {
            self.left = 0;
            self.next = None;
            if flags.has(Flags::WIDER) || flags.has(Flags::NARROWER) {
                self.follow = Some(flags.has(Flags::WIDER));
            }
            return;
        }
        if self.left > 1 || now >= self.heard {
            self.left = self.left.saturating_sub(1);
        }
        let next = *self.next.get_or_insert(now + DITHER_EVERY);
        if now >= next {
            self.next = Some(now + DITHER_EVERY);
            self.left = DITHER_TICKS;
            self.heard = now + DITHER_HEARD;
            self.wider = !self.wider;
        }
    }

    /// Stops, because control is not engaged.
    pub(super) fn stop(&mut self) {
        *self = Dither {
            wider: self.wider,
            ..Dither::default()
        };
    }

    /// Whether the window is being varied, and if so, whether it is wider.
    pub(super) fn on(&self) -> Option<bool> {
        if self.left > 0 {
            Some(self.wider)
        } else {
            self.follow
        }
    }

    /// The factor for the window.
    pub(super) fn factor(&self) -> f64 {
        match self.on() {
            Some(true) => 1.0 + DITHER,
            Some(false) => 1.0 - DITHER,
            None => 1.0,
        }
    }

    pub(super) fn flags(&self) -> Flags {
        // Only the leader publishes it: followers would keep each other going.
        let leading = self.left > 0;
        let flags = Flags::default().with(Flags::WIDER, leading && self.wider);
        flags.with(Flags::NARROWER, leading && !self.wider)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_threshold_is_between_a_fifth_of_a_millisecond_and_a_hundred() {
        let fixed = |ns| words(Threshold::Fixed(Span::from_nanos(ns)));
        assert_eq!(fixed(0), (1, 200_000));
        assert_eq!(fixed(12_345_678), (1, 12_345_678));
        assert_eq!(fixed(u64::MAX), (1, 100_000_000));
    }

    #[test]
    fn costs_go_to_the_learner_and_back_unharmed() {
        for kind in [
            CostModel::flash(),
            CostModel::rotational(),
            CostModel::unknown(),
        ] {
            let back = costs(&kind, &factors(&kind));
            assert!(back.read_per_mib.abs_diff(kind.read_per_mib) <= 1);
            assert_eq!(
                CostModel {
                    read_per_mib: 0,
                    write_per_mib: 0,
                    ..back
                },
                CostModel {
                    read_per_mib: 0,
                    write_per_mib: 0,
                    ..kind
                }
            );
        }
    }

    #[test]
    fn the_leader_moves_the_window_once_a_minute_until_all_have_taken_part() {
        let (mut leader, mut follower) = (Dither::default(), Dither::default());
        let (mut wider, mut narrower) = (0, 0);
        for tick in 0..1_500 {
            let now = Time::from_nanos(tick * 100_000_000);
            leader.tick(now, None);
            follower.tick(now, Some(leader.flags()));
            assert_eq!(leader.on(), follower.on());
            assert_eq!(follower.flags(), Flags::default());
            wider += u32::from(follower.factor() > 1.0);
            narrower += u32::from(follower.factor() < 1.0);
        }
        // Ten ticks are a second.
        assert_eq!((wider, narrower), (10, 10));
    }
}
