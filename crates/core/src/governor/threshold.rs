//! The automatic congestion threshold of a datastore.
//!
//! The search needs no injected I/O and no idle hours. Ordinary load shows over time how throughput depends on the I/O
//! in flight ([`Curve`]). The knee of that curve is where throughput reaches nine tenths of its peak. More in flight
//! only increases latency. The threshold ([`Seeker`]) moves towards the knee slowly. It moves down as long as less in
//! flight was not seen to do less.
//!
//! # Always true
//! - The threshold stays between 0.3 ms and 50 ms and moves by a tenth in ten seconds at most.
//! - Initially it is the value for the kind of datastore.
//!
//! # Units
//! In flight in reference I/Os, rates in those a second, latencies in nanoseconds.
//!
//! # Source
//! "Latency at 90 % of peak throughput" is Storage I/O Control's automatic threshold of vSphere 5.1. The search during
//! normal operation is our own.

use super::number::{SECOND, left, nanos, real};
use super::window::Sight;
use crate::units::Span;

/// Bins of half an octave each, from a quarter of an I/O to 2^20 of them. Origin: chosen; no measurement.
const BINS: usize = 45;
/// The lower end of the first bin, in I/Os.
const FIRST: f64 = 0.25;
/// The ratio of two bins.
const HALF_OCTAVE: f64 = core::f64::consts::SQRT_2;
/// A bin without new data loses half its weight in this time, because the array may change. Origin: chosen; no
/// measurement.
const HALF_LIFE: Span = Span::from_secs(3_600);
/// The time constant within a bin, in nanoseconds: shorter than a day's changes, longer than noise. Origin: chosen; no
/// measurement.
const MEMORY: f64 = 20e9;
/// A bin is used after this much time in it, in nanoseconds, until half of that has decayed. Origin: chosen; no
/// measurement.
const ENOUGH: f64 = 0.4e9;
/// The knee is the least I/O in flight with this part of the highest throughput. Origin: Storage I/O Control (vSphere
/// 5.1), whose automatic threshold is the latency at 90 % of the peak throughput.
const KNEE: f64 = 0.9;
/// The search downwards ends if the lowest known I/O in flight reaches less than this part of the peak. Origin:
/// measurement (decisions/0010); the value is chosen.
const FALLS: f64 = 0.95;
/// That applies after this much time in the bin, in nanoseconds. In half a second, chance alone gives a twentieth less.
/// Origin: simulation (`row-17-tail`; decisions/0010).
const SURE: f64 = 2e9;
/// A lower bin that did this much times the current throughput of a higher one is out of date: more in flight never
/// does less. Origin: chosen; no measurement.
const STALE: f64 = 1.1;
/// The factor of a step down into the unknown. Origin: chosen; no measurement.
const DOWN: f64 = 0.7;
/// A latency of at least this part of a threshold is near it. Origin: chosen; no measurement.
const SEEN: f64 = 0.5;
/// A threshold is at least this much times the least latency. Origin: simulation (`row-18-unattainable`;
/// decisions/0010).
const ABOVE_LEAST: f64 = 1.1;
/// The lowest automatic threshold, in nanoseconds. Origin: chosen; no measurement.
const LEAST: f64 = 0.3e6;
/// The highest automatic threshold, in nanoseconds. Origin: chosen; no measurement.
const MOST: f64 = 50e6;

/// The throughput and latency at one level of I/O in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    /// Nanoseconds of load, decayed.
    weight: f64,
    /// Whether the bin has enough data, and half of that still counts.
    believed: bool,
    rate: f64,
    latency: f64,
}

/// Throughput and latency by I/O in flight.
#[derive(Clone, Debug)]
pub struct Curve {
    bins: [Bin; BINS],
}

/// The knee of a curve.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Knee {
    /// The highest throughput seen.
    pub peak: f64,
    /// I/O in flight at the knee.
    pub in_flight: f64,
    /// Latency at the knee.
    pub latency: f64,
    /// The lowest latency of all bins.
    pub least: f64,
    /// Whether less in flight did clearly less: the knee is here, and not below.
    pub bracketed: bool,
    /// Whether no lower I/O in flight is known, and throughput already falls there: the knee is hardly below.
    pub falls: bool,
    /// Whether much more in flight did hardly more: the datastore and not the load limits `peak`.
    pub saturated: bool,
}

impl Default for Curve {
    fn default() -> Curve {
        Curve {
            bins: [Bin::default(); BINS],
        }
    }
}

impl Curve {
    /// Adds an observation of this length.
    pub fn saw(&mut self, span: Span, sight: &Sight) {
        if sight.latency <= 0.0 || sight.in_flight < FIRST || span == Span::ZERO {
            return;
        }
        let decay = left(span, HALF_LIFE);
        for bin in &mut self.bins {
            bin.weight *= decay;
            bin.believed &= bin.weight >= ENOUGH / 2.0;
        }
        let place = place(sight.in_flight);
        let weight = nanos(span);
        let bin = &mut self.bins[place];
        bin.weight = (bin.weight + weight).min(MEMORY.max(weight));
        bin.believed |= bin.weight >= ENOUGH;
        let part = weight / bin.weight;
        bin.rate += part * (sight.rate - bin.rate);
        bin.latency += part * (sight.latency - bin.latency);
        let bin = *bin;
        if !bin.believed {
            return;
        }
        for old in &mut self.bins[..place] {
            if old.rate > STALE * bin.rate {
                old.weight *= left(span, Span::from_secs(5));
            }
        }
    }

    /// The bins with enough data, in ascending order of I/O in flight.
    fn known(&self) -> impl Iterator<Item = (usize, &Bin)> {
        let bins = self.bins.iter().enumerate();
        bins.filter(|(_, bin)| bin.believed)
    }

    /// The highest throughput seen.
    fn peak(&self) -> f64 {
        self.known().map(|(_, bin)| bin.rate).fold(0.0, f64::max)
    }

    /// The knee as far as it is known; `None` without data.
    pub fn knee(&self) -> Option<Knee> {
        let known = || self.known();
        let peak = self.peak();
        let (place, knee) = known().find(|(_, bin)| bin.rate >= KNEE * peak)?;
        let least = known().map(|(_, bin)| bin.latency).fold(f64::MAX, f64::min);
        // An octave more in flight brought no more than a tenth: the datastore is saturated.
        let saturated = known().any(|(beyond, _)| beyond >= place + 2);
        let bracketed = place == 0 || known().any(|(below, _)| below < place && below + 2 >= place);
        let falls = knee.rate < FALLS * peak && knee.weight >= SURE;
        let (in_flight, latency) = (middle(place), knee.latency);
        Some(Knee {
            peak,
            in_flight,
            latency,
            least,
            bracketed,
            falls,
            saturated,
        })
    }

    /// The least I/O in flight that reaches `part` of the peak; `None` if unknown. At such levels the latency is nearly
    /// that of an idle datastore, and does not show how little is in flight.
    pub fn narrowest(&self, part: f64) -> Option<f64> {
        let (place, _) = self.least_with(part)?;
        Some(self.down_from(place) * middle(place))
    }

    /// The bin with the least I/O in flight that reaches `part` of the peak.
    fn least_with(&self, part: f64) -> Option<(usize, &Bin)> {
        let peak = self.peak();
        self.known().find(|(_, bin)| bin.rate >= part * peak)
    }

    /// The factor of a step down from a bin: 1 if a slightly lower level is known, otherwise the step into the unknown.
    fn down_from(&self, place: usize) -> f64 {
        let near = |(below, _): (usize, &Bin)| below < place && below + 2 >= place;
        if self.known().any(near) { 1.0 } else { DOWN }
    }

    /// The tightest threshold that leaves `part` of the peak: the latency at the least I/O in flight that reaches it,
    /// or a step below it while no slightly lower level is known. `base`, the threshold without targets, applies until
    /// there is data near it; before that the peak is unknown.
    pub fn tightest(&self, part: f64, base: f64) -> f64 {
        let known = || self.known();
        if known().all(|(_, bin)| bin.latency < SEEN * base) {
            return base;
        }
        let Some((place, found)) = self.least_with(part) else {
            return base;
        };
        let below = || known().take_while(|&(below, _)| below < place);
        // No window makes I/Os faster than on an idle datastore: with that as its target the window would only shrink.
        let least = below().map(|(_, bin)| bin.latency).fold(f64::MAX, f64::min);
        let attainable = if least < f64::MAX {
            ABOVE_LEAST * least
        } else {
            0.0
        };
        let wanted = self.down_from(place) * found.latency;
        wanted.max(attainable)
    }
}

/// The bin of this I/O in flight.
fn place(in_flight: f64) -> usize {
    let (mut place, mut bound) = (0, FIRST * HALF_OCTAVE);
    while bound <= in_flight && place < BINS - 1 {
        bound *= HALF_OCTAVE;
        place += 1;
    }
    place
}

/// The I/O in flight at the middle of a bin.
fn middle(place: usize) -> f64 {
    (0..place).fold(FIRST * 1.2, |at, _| at * HALF_OCTAVE)
}

/// The automatic threshold, which moves slowly towards the knee.
#[derive(Clone, Copy, Debug)]
pub struct Seeker {
    at: f64,
}

impl Seeker {
    /// Starts at a first guess, in nanoseconds.
    pub fn new(guess: f64) -> Seeker {
        Seeker {
            at: guess.clamp(LEAST, MOST),
        }
    }

    /// The current threshold.
    pub fn at(&self) -> f64 {
        self.at
    }

    /// Moves towards the knee, by a tenth in ten seconds at most.
    pub fn seek(&mut self, elapsed: Span, knee: &Knee) {
        let mut goal = 1.25 * knee.latency;
        if knee.least < knee.latency {
            // The lowest possible latency is known only if less than at the knee was in flight.
            goal = goal.max(2.0 * knee.least);
        }
        if !knee.bracketed && !knee.falls {
            // The lowest known I/O in flight still sufficed: the knee is below, and only going there shows it.
            goal = DOWN * knee.latency;
        }
        let goal = goal.clamp(LEAST, MOST);
        let step = 0.1 * (nanos(elapsed) / (10.0 * SECOND)).min(1.0);
        self.at = goal.clamp(self.at * (1.0 - step), self.at * (1.0 + step));
    }
}

/// What tightens the threshold for disks that miss their latency target.
#[derive(Clone, Copy, Debug)]
pub struct Pressure {
    held: f64,
}

impl Default for Pressure {
    fn default() -> Pressure {
        Pressure { held: 1.0 }
    }
}

impl Pressure {
    /// Takes the worst ratio of all hosts (1: just met). A higher one counts at once; it decays by a twentieth a
    /// second.
    pub fn felt(&mut self, elapsed: Span, worst: f64) {
        let seconds = real(elapsed.as_nanos()) / SECOND;
        let relaxed = self.held * (1.0 - 0.05 * seconds.min(1.0));
        // A target that is missed at a tight threshold needs a tighter one: pressure multiplies, slowly.
        let grown = if worst > 1.0 {
            self.held * (1.0 + seconds.min(1.0) * (worst.min(4.0) - 1.0))
        } else {
            0.0
        };
        self.held = relaxed.max(grown).clamp(1.0, 4.0);
    }

    /// The effective threshold. `least`: the result of [`Curve::tightest`].
    pub fn on(&self, threshold: f64, least: f64) -> f64 {
        let tight = threshold / self.held;
        tight.max(least).min(threshold)
    }
}

#[cfg(test)]
mod tests;
