//! Notices load on the datastore that none of our hosts causes, and keeps us from giving it everything.
//!
//! The window law takes less when latency is high. If somebody else makes the latency, that helps nobody: our hosts
//! shrink to their floors and the latency stays. Seen once (much less in flight, clearly less done, latency as before),
//! the window is held at half of what the datastore can use; the proportions between our disks stay.
//!
//! # Always true
//! - A hold ends after 30 s, and is tried anew from there: no sawtooth, no hold for ever.
//!
//! # Units
//! As [`super::window`].

use super::window::Sight;
use crate::units::{Span, Time};

/// Law ticks over which a cut is looked at.
const TICKS: usize = 4;
const HOLD: Span = Span::from_secs(30);

/// The watch over cuts that do not help.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    /// Window, rate and latency before each of the last ticks.
    past: [(f64, f64, f64); TICKS],
    seen: usize,
    /// Until when the window is held, and where.
    hold: Option<(Time, f64)>,
}

impl Watch {
    /// One tick of the law, with the window as it was before it. Returns whether external load is newly seen or newly
    /// gone. `knee`: what the datastore needs in flight for nearly all it does, if known.
    pub fn tick(
        &mut self,
        now: Time,
        window: f64,
        sight: &Sight,
        target: f64,
        knee: Option<f64>,
    ) -> Option<bool> {
        if let Some((until, _)) = self.hold {
            if now < until && sight.latency > target {
                return None;
            }
            *self = Watch::default();
            return Some(false);
        }
        let oldest = self.past[self.seen % TICKS];
        let highest = self.past.iter().map(|past| past.2).fold(0.0, f64::max);
        let full = self.seen >= TICKS;
        self.past[self.seen % TICKS] = (window, sight.rate, sight.latency);
        self.seen += 1;
        // Compared with the highest latency since: where the datastore itself slowed down, the cut did bring it back.
        let (before, rate, _) = oldest;
        let useless = full
            && sight.latency > target
            && window <= 0.7 * before
            && sight.rate <= 0.9 * rate
            && sight.latency > 0.95 * highest;
        if !useless {
            return None;
        }
        self.hold = Some((now + HOLD, knee.map_or(before, |knee| 0.5 * knee)));
        Some(true)
    }

    /// The least that the cluster's window may be now.
    pub fn least(&self) -> f64 {
        self.hold.map_or(0.0, |(_, least)| least)
    }

    /// Whether external load is seen.
    pub fn on(&self) -> bool {
        self.hold.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: f64 = 25e6;

    /// The law's tick every 100 ms with what `world` answers to a window.
    fn run(
        watch: &mut Watch,
        ticks: u64,
        window: &mut f64,
        world: impl Fn(u64, f64) -> Sight,
    ) -> bool {
        let mut seen = false;
        for tick in 0..ticks {
            let sight = world(tick, *window);
            let now = Time::from_nanos(tick * 100_000_000);
            seen |= watch.tick(now, *window, &sight, TARGET, Some(100.0)) == Some(true);
            *window = super::super::window::step(*window, TARGET, &sight).max(watch.least());
        }
        seen
    }

    #[test]
    fn a_cut_that_does_not_help_is_stopped_at_half_the_knee() {
        let (mut watch, mut window) = (Watch::default(), 100.0);
        // Somebody else keeps 400 in flight: latency hardly depends on us, our rate does.
        let world = |_, window: f64| {
            let latency = (window + 400.0) / 4_000.0 * 1e9;
            Sight {
                latency,
                in_flight: window,
                rate: window / latency * 1e9,
                hosts: 2,
            }
        };
        assert!(run(&mut watch, 12, &mut window, world));
        assert_eq!(window, 50.0);
    }

    #[test]
    fn an_array_that_lost_half_its_speed_is_not_external_load() {
        let (mut watch, mut window) = (Watch::default(), 100.0);
        let world = |tick, window: f64| {
            let most = if tick < 6 { 4_000.0 } else { 2_000.0 };
            Sight {
                latency: window / most * 1e9,
                in_flight: window,
                rate: most,
                hosts: 2,
            }
        };
        assert!(!run(&mut watch, 40, &mut window, world));
        assert!((48.0..52.0).contains(&window), "{window}");
    }

    #[test]
    fn a_hold_is_tried_anew_after_half_a_minute() {
        let (mut watch, mut window) = (Watch::default(), 100.0);
        let world = |tick, window: f64| {
            let others = if tick < 150 { 400.0 } else { 0.0 };
            let latency = (window + others) / 4_000.0 * 1e9;
            Sight {
                latency,
                in_flight: window,
                rate: window / latency * 1e9,
                hosts: 2,
            }
        };
        assert!(run(&mut watch, 20, &mut window, world));
        assert!(watch.on());
        run(&mut watch, 400, &mut window, world);
        assert!(!watch.on());
        assert!(window > 90.0, "{window}");
    }
}
