//! The figures of a run for which scenarios set expectations.
//!
//! # Always true
//! - A figure without data is NaN, which is within no bound.
//!
//! # Units
//! Each figure of [`Measure`] names its unit: percent, seconds, milliseconds, or a rate per second.

use crate::numbers::{count, float, index, whole};
use crate::results::{ArrayBin, BIN, DiskBin, bins};
use crate::scenario::{Expect, Measure, Scenario};
use crate::world::Run;
use std::collections::BTreeMap;
use tidegate_core::units::{Span, Time};

/// A phase of a run, with the disks and hosts to measure.
#[derive(Clone, Copy)]
pub struct Stretch<'a> {
    /// The scenario of the run.
    pub scenario: &'a Scenario,
    /// The results.
    pub run: &'a Run,
    /// The phase.
    pub phase: usize,
    /// The disks.
    pub disks: &'a [usize],
    /// The hosts.
    pub hosts: &'a [usize],
}

/// The number of consecutive windows that count as settled. With windows of half a second it is one tick of the slowest
/// policy.
pub(super) const STAYS: u64 = 8;

impl Stretch<'_> {
    /// The figure of an expectation.
    pub fn measure(&self, expect: &Expect) -> f64 {
        let phase = &self.scenario.phases[self.phase];
        let (from, to) = (phase.begins + expect.skip, phase.ends);
        let seconds = secs(to.since(from));
        let window = expect.window;
        match expect.what {
            Measure::Iops => part(self.sum(from, to, |bin| bin.ios), seconds),
            Measure::Bandwidth => part(self.sum(from, to, |bin| bin.bytes), seconds) / 1e6,
            Measure::Share => self.part_of_all(from, to, |bin| bin.ios),
            Measure::DeviceShare => self.part_of_all(from, to, |bin| bin.device_ns),
            Measure::ShareError => most(self.share_errors(from, to)),
            Measure::ShareErrorWindows => {
                let errors = windows(from, to, window);
                let errors = errors.flat_map(|(from, to)| self.share_errors(from, to));
                percentile(errors.collect(), expect.percentile)
            }
            Measure::Evenness => {
                let served: Vec<f64> = self.per_share(from, to);
                part(least(served.iter().copied()), most(served))
            }
            Measure::Units => part(self.sum(from, to, |bin| bin.units), seconds),
            Measure::UnitsLeast => {
                let each = windows(from, to, window);
                least(each.map(|(from, to)| self.sum(from, to, |bin| bin.units) / secs(window)))
            }
            Measure::UnitsFirst => match self.first(window) {
                Some((from, to)) => self.sum(from, to, |bin| bin.units),
                None => f64::NAN,
            },
            Measure::UnitsError => {
                let rate = part(self.sum(from, to, |bin| bin.units), seconds);
                (rate / expect.of - 1.0).abs() * 100.0
            }
            Measure::Latency => mean(&self.latencies(from, to)) / 1e3,
            Measure::LatencyPercentile => {
                percentile(self.latencies(from, to), expect.percentile) / 1e3
            }
            Measure::DeviceLatency => self.device_latency(from, to),
            Measure::DeviceLatencyError => {
                (self.device_latency(from, to) / expect.of - 1.0).abs() * 100.0
            }
            Measure::DeviceLatencySettles => self.settles(window, |from, to| {
                self.device_latency(from, to) <= expect.of
            }),
            Measure::Settles => self.settles(window, |from, to| {
                most(self.share_errors(from, to)) <= expect.within
            }),
            Measure::Dip => {
                let each = windows(from, to, window);
                let each = each.map(|(from, to)| self.sum(from, to, |bin| bin.ios));
                let mean = part(self.sum(from, to, |bin| bin.ios), seconds) * secs(window);
                part(least(each), mean) * 100.0
            }
            Measure::Resumed => match self.first(window) {
                Some((from, to)) => self.resumed(from, to),
                None => f64::NAN,
            },
            Measure::Window => self.window(from, to),
            Measure::LongestWait => {
                let waits = self.disks.iter().flat_map(|&disk| {
                    let series = &self.run.results.disks[disk];
                    series.waits(from, to).iter().copied()
                });
                waits.max().map_or(f64::NAN, f64::from) / 1e6
            }
            Measure::Lag => self.run.lag,
            Measure::Coordination => {
                let bins = self.datastore(from, to);
                let own: u64 = bins.iter().map(|bin| bin.coordination).sum();
                let all: u64 = bins.iter().map(|bin| bin.ios).sum();
                part(float(own), float(own + all)) * 100.0
            }
            Measure::Orders => part(count(self.orders(from, to).len()), seconds),
            Measure::OrderTime => mean(&self.orders(from, to)) / 1e3,
            Measure::Isolation => {
                let each = windows(from, to, window);
                let rates = each.map(|(from, to)| self.sum(from, to, |bin| bin.ios) / secs(window));
                let parts = rates.map(|rate| (rate / expect.of).min(1.0) * 100.0);
                percentile(parts.collect(), 1.0)
            }
            Measure::LatencyImpact => {
                let each = windows(from, to, window);
                let above = each.map(|(from, to)| match self.latencies(from, to) {
                    none if none.is_empty() => 100.0,
                    some => (mean(&some) / 1e3 / expect.of - 1.0).max(0.0) * 100.0,
                });
                percentile(above.collect(), 90.0)
            }
            Measure::HostsLost => self.count_events(from, to, "HostLost"),
            Measure::External => self.count_events(from, to, "ExternalLoad { on: true }"),
            Measure::ArrayShare => {
                let own = self.on_array(expect.array, from, to, |bin| bin.guests);
                part(own.0, own.1) * 100.0
            }
            Measure::Background => {
                let array = expect.array;
                let (own, _) = self.on_array(array, from, to, |bin| bin.background);
                let (_, all) = self.on_array(array, from, to, |bin| bin.background + bin.guests);
                part(own, all) * 100.0
            }
            Measure::RebuildRate => {
                let arrays = 0..self.run.results.arrays.len();
                let copied = arrays.map(|array| self.on_array(array, from, to, |bin| bin.copied).0);
                part(copied.sum(), seconds) / 1e6
            }
            Measure::RebuildTime => self.rebuild_time(from),
            Measure::HitRatio => self.hit_ratio(from, to),
            Measure::PhasesPassed => count(self.passed_phases()),
            Measure::HitRatioPassed => match self.passed_phases() {
                0 => f64::NAN,
                passed => {
                    let phase = &self.scenario.phases[passed - 1];
                    self.hit_ratio(phase.begins + expect.skip, phase.ends)
                }
            },
            Measure::Score => part(self.score(from, to), seconds),
            Measure::FlashWrites => {
                let written = self.sum(from, to, |bin| bin.flash_bytes);
                part(written, self.sum(from, to, |bin| bin.bytes))
            }
            Measure::Outstanding => {
                let each = self.datastore(from, to).iter();
                mean(&each.map(|bin| float(bin.outstanding)).collect::<Vec<_>>())
            }
        }
    }

    /// In percent.
    fn hit_ratio(&self, from: Time, to: Time) -> f64 {
        let hits = self.sum(from, to, |bin| bin.hits);
        part(hits, hits + self.sum(from, to, |bin| bin.misses)) * 100.0
    }

    /// The number of phases, from the first one on, that are within every quality.
    fn passed_phases(&self) -> usize {
        let phases = 0..self.scenario.phases.len();
        let passes = |phase: &usize| {
            let mut all = self.scenario.quality.iter();
            all.all(|quality| self.is_within(quality, *phase))
        };
        phases.take_while(passes).count()
    }

    /// Whether the disks that are active in a phase are within a quality.
    fn is_within(&self, quality: &Expect, phase: usize) -> bool {
        let active = &self.scenario.phases[phase].active;
        let disks = quality.disks.iter().copied().filter(|disk| active[*disk]);
        let disks: Vec<usize> = disks.collect();
        let there = Stretch {
            phase,
            disks: &disks,
            ..*self
        };
        let value = there.measure(quality);
        quality.at_least.is_none_or(|least| value >= least)
            && quality.at_most.is_none_or(|most| value <= most)
    }

    /// I/Os: of each tile the geometric mean of its disks, summed over the tiles.
    fn score(&self, from: Time, to: Time) -> f64 {
        let mut tiles: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for &disk in self.disks.iter().filter(|&&disk| self.is_active(disk)) {
            let name = self.scenario.disks[disk].name.as_str();
            let kind = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
            let ios = self.of(disk, from, to, |bin| bin.ios);
            tiles.entry(&name[kind.len()..]).or_default().push(ios.ln());
        }
        let means = tiles.values().map(|tile| mean(tile).exp());
        means.sum()
    }

    /// The first window of the phase, if it is complete.
    fn first(&self, window: Span) -> Option<(Time, Time)> {
        let phase = &self.scenario.phases[self.phase];
        windows(phase.begins, phase.ends, window).next()
    }

    /// Number of governor events that contain `of`.
    fn count_events(&self, from: Time, to: Time, of: &str) -> f64 {
        let events = self.run.results.events.iter();
        let events = events.filter(|(at, text)| (from..to).contains(at) && text.contains(of));
        count(events.count())
    }

    fn sum(&self, from: Time, to: Time, what: impl Fn(&DiskBin) -> u64) -> f64 {
        self.disks
            .iter()
            .map(|&disk| self.of(disk, from, to, &what))
            .sum()
    }

    fn of(&self, disk: usize, from: Time, to: Time, what: impl Fn(&DiskBin) -> u64) -> f64 {
        let bins = self.run.results.disks[disk].between(from, to);
        float(bins.iter().map(what).sum())
    }

    /// What the disks had of an array, and what all had.
    fn on_array(
        &self,
        array: usize,
        from: Time,
        to: Time,
        what: impl Fn(&ArrayBin) -> u64,
    ) -> (f64, f64) {
        let Some(series) = self.run.results.arrays.get(array) else {
            return (f64::NAN, f64::NAN);
        };
        let (from, to) = bins(from, to, series.bins.len());
        let mut sums = (0.0, 0.0);
        for (disk, bin) in series.bins[from..to]
            .iter()
            .flat_map(|bin| bin.iter().enumerate())
        {
            let amount = float(what(bin));
            sums.1 += amount;
            sums.0 += if self.disks.contains(&disk) {
                amount
            } else {
                0.0
            };
        }
        sums
    }

    /// Seconds until a rebuild of each disk has ended; NaN if one has not.
    fn rebuild_time(&self, from: Time) -> f64 {
        let ends = self.disks.iter().map(|disk| {
            let mut rebuilt = self.run.results.rebuilt.iter();
            let found = rebuilt.find(|(at, of)| of == disk && *at >= from);
            found.map_or(f64::NAN, |(at, _)| secs(at.since(from)))
        });
        ends.fold(0.0, |last, end| {
            if end > last || end.is_nan() {
                end
            } else {
                last
            }
        })
    }

    fn part_of_all(&self, from: Time, to: Time, what: impl Fn(&DiskBin) -> u64) -> f64 {
        let all = 0..self.scenario.disks.len();
        let all: f64 = all.map(|disk| self.of(disk, from, to, &what)).sum();
        part(self.sum(from, to, what), all) * 100.0
    }

    /// A disk's shares in this phase.
    fn shares(&self, disk: usize) -> f64 {
        let until = &self.scenario.phases[..=self.phase];
        let set = until.iter().flat_map(|phase| &phase.set).rev();
        let settings = set.into_iter().find(|(other, _)| *other == disk);
        let settings = settings.map_or(&self.scenario.disks[disk].policy, |(_, new)| new);
        f64::from(settings.shares)
    }

    fn is_active(&self, disk: usize) -> bool {
        self.scenario.phases[self.phase].active[disk]
    }

    /// Each disk's cost per share.
    fn per_share(&self, from: Time, to: Time) -> Vec<f64> {
        let active = self.disks.iter().filter(|&&disk| self.is_active(disk));
        let cost = |&disk: &usize| self.of(disk, from, to, |bin| bin.cost) / self.shares(disk);
        active.map(cost).collect()
    }

    /// Each disk's deviation from its fair share, in percent.
    fn share_errors(&self, from: Time, to: Time) -> Vec<f64> {
        let active = self.disks.iter().filter(|&&disk| self.is_active(disk));
        let all: f64 = active.clone().map(|&disk| self.shares(disk)).sum();
        let cost: f64 = active
            .map(|&disk| self.of(disk, from, to, |bin| bin.cost))
            .sum();
        let fair = if all > 0.0 { cost / all } else { 0.0 };
        let each = self.per_share(from, to).into_iter();
        each.map(|own| match fair > 0.0 {
            true => (own / fair - 1.0).abs() * 100.0,
            false => 100.0,
        })
        .collect()
    }

    /// The disks' cost relative to their fair share among all active disks.
    fn resumed(&self, from: Time, to: Time) -> f64 {
        let all = (0..self.scenario.disks.len()).filter(|&disk| self.is_active(disk));
        let shares: f64 = all.clone().map(|disk| self.shares(disk)).sum();
        let cost: f64 = all
            .map(|disk| self.of(disk, from, to, |bin| bin.cost))
            .sum();
        let own: f64 = self.disks.iter().map(|&disk| self.shares(disk)).sum();
        part(self.sum(from, to, |bin| bin.cost), cost * part(own, shares)) * 100.0
    }

    /// When `good` first holds for several consecutive windows; the whole phase if it never does.
    fn settles(&self, window: Span, good: impl Fn(Time, Time) -> bool) -> f64 {
        let phase = &self.scenario.phases[self.phase];
        let mut at = phase.begins;
        let after = |at: Time, n: u64| at + Span::from_nanos(window.as_nanos() * n);
        while after(at, STAYS) <= phase.ends {
            if (0..STAYS).all(|n| good(after(at, n), after(at, n + 1))) {
                return secs(at.since(phase.begins));
            }
            at = at + BIN;
        }
        secs(phase.ends.since(phase.begins))
    }

    fn latencies(&self, from: Time, to: Time) -> Vec<f64> {
        let each = self.disks.iter().flat_map(|&disk| {
            let series = &self.run.results.disks[disk];
            series.latencies(from, to).iter().copied()
        });
        each.map(f64::from).collect()
    }

    fn orders(&self, from: Time, to: Time) -> Vec<f64> {
        let each = self.disks.iter().flat_map(|&disk| {
            let series = &self.run.results.disks[disk];
            series.orders(from, to).iter().copied()
        });
        each.map(f64::from).collect()
    }

    fn datastore(&self, from: Time, to: Time) -> &[crate::results::DatastoreBin] {
        let all = &self.run.results.datastore.bins;
        let (from, to) = bins(from, to, all.len());
        &all[from..to]
    }

    /// In milliseconds.
    fn device_latency(&self, from: Time, to: Time) -> f64 {
        let bins = self.datastore(from, to);
        let sum: u64 = bins.iter().map(|bin| bin.latency_ns).sum();
        let ios: u64 = bins.iter().map(|bin| bin.ios).sum();
        part(float(sum), float(ios)) / 1e6
    }

    fn window(&self, from: Time, to: Time) -> f64 {
        let each = self.hosts.iter().map(|&host| {
            let all = &self.run.results.hosts[host].bins;
            let (from, to) = bins(from, to, all.len());
            mean(
                &all[from..to]
                    .iter()
                    .map(|bin| bin.window)
                    .collect::<Vec<_>>(),
            )
        });
        each.sum()
    }
}

/// Consecutive whole windows.
fn windows(from: Time, to: Time, window: Span) -> impl Iterator<Item = (Time, Time)> {
    std::iter::successors(Some(from), move |at| Some(*at + window))
        .map(move |at| (at, at + window))
        .take_while(move |(_, end)| *end <= to)
}

fn secs(span: Span) -> f64 {
    float(span.as_nanos()) / 1e9
}

/// A fraction; NaN of nothing.
fn part(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { f64::NAN }
}

/// The mean; NaN of nothing.
fn mean(all: &[f64]) -> f64 {
    part(all.iter().sum(), count(all.len()))
}

/// The greatest; NaN of nothing.
fn most(all: impl IntoIterator<Item = f64>) -> f64 {
    all.into_iter().reduce(f64::max).unwrap_or(f64::NAN)
}

/// The least; NaN of nothing.
fn least(all: impl IntoIterator<Item = f64>) -> f64 {
    all.into_iter().reduce(f64::min).unwrap_or(f64::NAN)
}

/// The percentile by nearest rank; NaN of nothing.
fn percentile(mut all: Vec<f64>, percent: f64) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    let rank = whole((count(all.len()) * percent / 100.0).ceil()).saturating_sub(1);
    let value = all.get(index(rank)).or(all.last()).copied();
    value.unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values = || (1..=100).map(count).collect::<Vec<_>>();
        assert_eq!(percentile(values(), 99.0), 99.0);
        assert_eq!(percentile(values(), 1.0), 1.0);
        assert_eq!(percentile(values(), 100.0), 100.0);
        assert_eq!(percentile(vec![7.0], 50.0), 7.0);
    }

    #[test]
    fn a_figure_without_data_is_nan() {
        for figure in [
            percentile(Vec::new(), 50.0),
            mean(&[]),
            most([]),
            least([]),
            part(0.0, 0.0),
        ] {
            assert!(figure.is_nan(), "{figure}");
        }
    }

    #[test]
    fn windows_are_whole() {
        let at = |ms: u64| Time::from_nanos(ms * 1_000_000);
        let all: Vec<_> = windows(at(0), at(2_500), Span::from_secs(1)).collect();
        assert_eq!(all, [(at(0), at(1_000)), (at(1_000), at(2_000))]);
    }
}
