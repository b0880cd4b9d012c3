//! Series by the second, figures by phase and latencies by percentile, from runs.
//!
//! Findings and pages use it; the judge has figures of its own.
//!
//! # Units
//! Seconds across; I/Os a second, milliseconds, percent.

use tidegate_core::units::{Span, Time};
use tidegate_sim::results::{BIN, DiskBin};
use tidegate_sim::{Run, Scenario};

use crate::draw::STYLES;

/// Disks that are drawn as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Band {
    /// Its name.
    pub(super) name: String,
    /// The disks.
    pub(super) disks: Vec<usize>,
}

/// The disks, each for itself where lines can still be distinguished, else those of a name on all hosts together.
pub(super) fn bands(scenario: &Scenario) -> Vec<Band> {
    let names = scenario.disks.iter().map(|disk| disk.name.as_str());
    let mut bands: Vec<Band> = Vec::new();
    for (place, name) in names.enumerate() {
        let name = match name.rsplit_once('.') {
            Some((_, own)) if scenario.disks.len() > STYLES => own,
            // Tiles are compared as wholes.
            _ if scenario.disks.len() > STYLES && !scenario.configurations.is_empty() => {
                name.trim_end_matches(|letter: char| letter.is_ascii_digit())
            }
            _ => name,
        };
        match bands.iter_mut().find(|band| band.name == name) {
            Some(band) => band.disks.push(place),
            None => bands.push(Band {
                name: name.to_owned(),
                disks: vec![place],
            }),
        }
    }
    if bands.len() > STYLES {
        let others = bands.split_off(STYLES - 1);
        bands.push(Band {
            name: "others".to_owned(),
            disks: others.into_iter().flat_map(|band| band.disks).collect(),
        });
    }
    for band in &mut bands {
        if band.disks.len() > 1 {
            band.name += &format!(" ({})", band.disks.len());
        }
    }
    bands
}

/// A stretch of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) from: Time,
    pub(super) to: Time,
}

impl Slice {
    /// A phase without its beginning, in which things settle: what the scenario's checks leave out at most, and never
    /// more than half.
    pub(super) fn settled(scenario: &Scenario, phase: usize) -> Slice {
        let phase = &scenario.phases[phase];
        let half = phase.ends.since(phase.begins).as_nanos() / 2;
        let skips = scenario.expects.iter().map(|expect| expect.skip.as_nanos());
        let skip = skips.max().unwrap_or(0).min(half);
        Slice {
            from: phase.begins + Span::from_nanos(skip),
            to: phase.ends,
        }
    }

    /// All of it.
    pub(super) fn whole(scenario: &Scenario) -> Slice {
        Slice {
            from: Time::ZERO,
            to: scenario.ends(),
        }
    }

    fn seconds(self) -> f64 {
        super::summary::seconds(self.to.since(self.from))
    }

    fn sum(self, run: &Run, disks: &[usize], what: fn(&DiskBin) -> u64) -> f64 {
        let each = disks.iter().map(|&disk| {
            let bins = run.results.disks[disk].between(self.from, self.to);
            bins.iter().map(what).sum::<u64>()
        });
        each.sum::<u64>() as f64
    }

    /// I/Os a second.
    pub(super) fn iops(self, run: &Run, disks: &[usize]) -> f64 {
        self.sum(run, disks, |bin| bin.ios) / self.seconds().max(1e-9)
    }

    /// The part of requests that a cache answered, in percent; none without a cache.
    pub(super) fn hit_ratio(self, run: &Run, disks: &[usize]) -> Option<f64> {
        let hits = self.sum(run, disks, |bin| bin.hits);
        let all = hits + self.sum(run, disks, |bin| bin.misses);
        (all > 0.0).then(|| hits / all * 100.0)
    }

    /// The part of all I/Os, in percent.
    pub(super) fn share(self, run: &Run, disks: &[usize]) -> f64 {
        let all: Vec<usize> = (0..run.results.disks.len()).collect();
        let all = self.sum(run, &all, |bin| bin.ios);
        if all > 0.0 {
            self.sum(run, disks, |bin| bin.ios) / all * 100.0
        } else {
            0.0
        }
    }

    /// Guests' latencies in microseconds, sorted.
    pub(super) fn latencies(self, run: &Run, disks: &[usize]) -> Vec<u32> {
        let each = disks.iter().flat_map(|&disk| {
            let series = &run.results.disks[disk];
            series.latencies(self.from, self.to).iter().copied()
        });
        let mut all: Vec<u32> = each.collect();
        all.sort_unstable();
        all
    }

    /// Times of orders in microseconds.
    pub(super) fn orders(self, run: &Run, disks: &[usize]) -> Vec<u32> {
        let each = disks.iter().flat_map(|&disk| {
            let series = &run.results.disks[disk];
            series.orders(self.from, self.to).iter().copied()
        });
        each.collect()
    }

    /// So many a second.
    pub(super) fn rate(self, count: usize) -> f64 {
        count as f64 / self.seconds().max(1e-9)
    }
}

/// A mean in milliseconds of microseconds; none of none.
pub(super) fn mean_ms(all: &[u32]) -> Option<f64> {
    let sum: u64 = all.iter().map(|us| u64::from(*us)).sum();
    (!all.is_empty()).then(|| sum as f64 / all.len() as f64 / 1e3)
}

/// The value, in milliseconds, that so great a part of sorted microseconds is not above.
pub(super) fn percentile_ms(sorted: &[u32], part: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let rank = whole((sorted.len() as f64 * part).ceil() - 1.0);
    Some(f64::from(sorted[rank.min(last)]) / 1e3)
}

/// Latencies by the number of nines: `(0, least)`, `(1, 90th percentile)` and so on, as far as there are I/Os for it.
pub(super) fn by_nines(sorted: &[u32], most: u8) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    let enough = (sorted.len() as f64).log10();
    for step in 0..=u32::from(most) * 16 {
        let nines = f64::from(step) / 16.0;
        if nines > enough {
            break;
        }
        let part = 1.0 - 10f64.powf(-nines);
        points.extend(percentile_ms(sorted, part).map(|ms| (nines, ms)));
    }
    points
}

/// How long a run is, and how much of it is one point of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Grid {
    bins: usize,
    step: usize,
}

impl Grid {
    /// So fine that a line has some 150 points, and no finer than a second, or a tenth of a short run.
    pub(super) fn of(scenario: &Scenario) -> Grid {
        let bins = scenario.ends().as_nanos() / BIN.as_nanos();
        let bins = usize::try_from(bins).unwrap_or(usize::MAX);
        Grid {
            bins,
            step: (bins / 150).max(10).min((bins / 10).max(1)),
        }
    }

    /// A point for each step; what gives none is left out.
    fn points(self, value: impl Fn(std::ops::Range<usize>) -> Option<f64>) -> Vec<(f64, f64)> {
        let bin = super::summary::seconds(BIN);
        let steps = (0..self.bins / self.step).map(|step| {
            let bins = step * self.step..(step + 1) * self.step;
            let middle = (bins.start + bins.end) as f64 / 2.0 * bin;
            value(bins).map(|value| (middle, value))
        });
        steps.flatten().collect()
    }

    /// I/Os a second of some disks.
    pub(super) fn iops(self, run: &Run, disks: &[usize]) -> Vec<(f64, f64)> {
        let seconds = self.step as f64 * super::summary::seconds(BIN);
        self.points(|bins| {
            let each = disks.iter().map(|&disk| {
                let series = &run.results.disks[disk].bins;
                let here = series.get(bins.clone())?;
                Some(here.iter().map(|bin| bin.ios).sum::<u64>())
            });
            let sum: Option<u64> = each.sum();
            sum.map(|sum| sum as f64 / seconds)
        })
    }

    /// The datastore's mean latency in milliseconds.
    pub(super) fn latency(self, run: &Run) -> Vec<(f64, f64)> {
        self.points(|bins| {
            let here = run.results.datastore.bins.get(bins)?;
            let ios: u64 = here.iter().map(|bin| bin.ios).sum();
            let sum: u64 = here.iter().map(|bin| bin.latency_ns).sum();
            (ios > 0).then(|| sum as f64 / ios as f64 / 1e6)
        })
    }

    /// A host's mean window in reference I/Os, while control is engaged: nothing bounds it else.
    pub(super) fn window(self, run: &Run, host: usize) -> Vec<(f64, f64)> {
        self.points(|bins| {
            let here = run.results.hosts[host].bins.get(bins)?;
            let engaged = here.iter().filter(|bin| bin.engaged).map(|bin| bin.window);
            let (sum, count) = engaged.fold((0.0, 0.0), |(sum, n), window| (sum + window, n + 1.0));
            (count > 0.0).then(|| sum / count)
        })
    }

    /// The hosts' congestion threshold, on average, in milliseconds; where they know one.
    pub(super) fn threshold(self, run: &Run) -> Vec<(f64, f64)> {
        self.points(|bins| {
            let each = run
                .results
                .hosts
                .iter()
                .filter_map(|host| host.bins.get(bins.clone()));
            let known = each
                .flatten()
                .map(|bin| bin.threshold_us)
                .filter(|us| *us > 0);
            let (sum, count) = known.fold((0, 0_u64), |(sum, count), us| (sum + us, count + 1));
            (count > 0).then(|| sum as f64 / count as f64 / 1e3)
        })
    }
}

/// The greatest value of several lines.
pub(super) fn highest<'a>(lines: impl IntoIterator<Item = &'a Vec<(f64, f64)>>) -> f64 {
    let values = lines.into_iter().flatten().map(|(_, value)| *value);
    values.filter(|value| value.is_finite()).fold(0.0, f64::max)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rank: never below zero, and `as` saturates"
)]
fn whole(number: f64) -> usize {
    number.max(0.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Entry;
    use crate::experiment::fixtures::scenario;

    #[test]
    fn many_disks_are_drawn_by_their_names_on_all_hosts() {
        let names = |name: &str| -> Vec<String> {
            let bands = bands(&scenario(name, 100).scenario).into_iter();
            bands.map(|band| band.name).collect()
        };
        assert_eq!(names("sioc-1"), ["vm1", "vm2", "vm3", "vm4"]);
        assert_eq!(
            names("sioc-ssd"),
            ["high (3)", "normal (3)", "limited (3)", "reserved (3)"]
        );
        for entry in Entry::all().expect("they are experiments") {
            let Entry::Scenario(experiment) = entry else {
                continue;
            };
            let bands = bands(&experiment.scenario);
            assert!(bands.len() <= STYLES, "{}", experiment.name());
            let disks: usize = bands.iter().map(|band| band.disks.len()).sum();
            assert_eq!(disks, experiment.scenario.disks.len());
        }
    }

    #[test]
    fn percentiles_end_where_there_are_no_more_ios() {
        let sorted: Vec<u32> = (1..=1_000).map(|ms| ms * 1_000).collect();
        assert_eq!(percentile_ms(&sorted, 0.99), Some(990.0));
        assert_eq!(percentile_ms(&[], 0.5), None);
        let points = by_nines(&sorted, 4);
        assert_eq!(points.first(), Some(&(0.0, 1.0)));
        assert_eq!(points.last().map(|(nines, _)| *nines), Some(3.0));
        assert_eq!(mean_ms(&sorted), Some(500.5));
        assert_eq!(mean_ms(&[]), None);
    }

    #[test]
    fn a_line_has_some_hundred_points_and_a_short_run_some_ten() {
        let points = |percent| {
            let grid = Grid::of(&scenario("sioc-3", percent).scenario);
            grid.points(|_| Some(0.0)).len()
        };
        assert_eq!(points(100), 150);
        assert_eq!(points(10), 90);
        assert_eq!(points(1), 10);
    }
}
