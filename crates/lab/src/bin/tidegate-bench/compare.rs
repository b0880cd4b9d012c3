//! Compares variants in one case of the bench, block by block.
//!
//! # Always true
//! - Every series of a case has the same blocks, so that ratios can be taken block by block.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use tidegate_lab::interleaved::{self, BRIEF, Slice, Started, rotation, until_accepted};
use tidegate_lab::machine::{self, Rejected};
use tidegate_lab::measure::{Ask, Figures};
use tidegate_testing::server::Launch;

use crate::bench::Bench;
use crate::report::{Report, Series};

/// Slices that begin after a poll-mode thread has polled for the last time ([`crate::scenarios::POLL_US`]): they share a CPU.
pub(crate) const AFTER_POLLING: Slice = Slice {
    before: Duration::from_millis(6),
    ..BRIEF
};
/// Slices on a disk that takes half a millisecond for a batch.
pub(crate) const ON_DISK: Slice = Slice {
    before: Duration::from_millis(10),
    span: Duration::from_millis(60),
};

/// How many times as many blocks differences of one and of three percent need as factors. New servers differ by some 4 %
/// from one another: of 15 blocks even a server against itself has a standard error of 1 %.
pub(crate) const BLOCKS_FOR_ONE_PERCENT: usize = 12;
pub(crate) const BLOCKS_FOR_THREE_PERCENT: usize = 6;

/// A program that is compared.
pub(crate) struct Variant<'a> {
    /// The name in the table.
    pub(crate) name: String,
    /// What it is.
    pub(crate) work: Work<'a>,
}

/// Makes a trial.
type Trial<'a> = Box<dyn Fn(&Bench) -> Result<Figures> + 'a>;

/// The command line of a server, by the sockets of its guests.
type Launcher<'a> = Box<dyn Fn(&Bench, &[PathBuf]) -> Launch + 'a>;

/// How a variant is measured.
pub(crate) enum Work<'a> {
    /// By a whole trial.
    Trial(Trial<'a>),
    /// In slices: a server.
    Server(Launcher<'a>),
    /// In slices: fio on the file itself, in the servers' place.
    Fio(&'a Path),
}

/// How many blocks are wanted, and how they are made.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a> {
    /// So many times the bench's.
    pub(crate) times: usize,
    /// Whether a real disk is read: then steal says nothing.
    pub(crate) on_disk: bool,
    /// In slices: how long, how many guests, and their load; none for whole trials.
    pub(crate) slices: Option<(Slice, usize, &'a Ask)>,
}

impl<'a> Blocks<'a> {
    /// Whole trials.
    pub(crate) const fn of_trials(times: usize) -> Self {
        Self {
            times,
            on_disk: false,
            slices: None,
        }
    }

    /// Slices.
    pub(crate) const fn of_slices(times: usize, slice: Slice, guests: usize, ask: &'a Ask) -> Self {
        Self {
            times,
            on_disk: false,
            slices: Some((slice, guests, ask)),
        }
    }

    /// The same on a real disk.
    pub(crate) const fn on_disk(self) -> Self {
        Self {
            on_disk: true,
            ..self
        }
    }
}

impl<'a> Variant<'a> {
    /// A variant that is measured by whole trials.
    pub(crate) fn trial(
        name: impl Into<String>,
        trial: impl Fn(&Bench) -> Result<Figures> + 'a,
    ) -> Self {
        Self {
            name: name.into(),
            work: Work::Trial(Box::new(trial)),
        }
    }

    /// A server that is measured in slices.
    pub(crate) fn server(
        name: impl Into<String>,
        launch: impl Fn(&Bench, &[PathBuf]) -> Launch + 'a,
    ) -> Self {
        Self {
            name: name.into(),
            work: Work::Server(Box::new(launch)),
        }
    }

    /// fio on the file itself, in slices.
    pub(crate) fn fio(name: &str, file: &'a Path) -> Self {
        Self {
            name: name.into(),
            work: Work::Fio(file),
        }
    }
}

/// Makes a block, by its number: the figures of each series, in which it counts rejected trials.
type Make<'a> = dyn FnMut(usize, &mut [Series]) -> Result<Vec<Figures>> + 'a;

impl Bench {
    /// Compares variants until there are enough quiet blocks, or twice as many were made; shows and stores them.
    ///
    /// # Errors
    /// A server or a client fails.
    pub(crate) fn compare(
        &self,
        report: &mut Report,
        (scenario, case): (&str, &str),
        variants: &[Variant<'_>],
        blocks: Blocks<'_>,
    ) -> Result<()> {
        let names = variants.iter().map(|variant| variant.name.as_str());
        let series = empty_series(scenario, case, names, blocks.times * self.blocks);
        let make = &mut |block, series: &mut [Series]| {
            let made = match blocks.slices {
                None => self.trials(block, variants, series, blocks.on_disk),
                Some((slice, guests, ask)) => self.sliced(variants, slice, guests, ask),
            };
            made.with_context(|| format!("{scenario}, {case}"))
        };
        self.blocks(report, series, blocks.on_disk, make)
    }

    /// A trial of each variant, one after the other.
    fn trials(
        &self,
        block: usize,
        variants: &[Variant<'_>],
        series: &mut [Series],
        on_disk: bool,
    ) -> Result<Vec<Figures>> {
        let most = self.options.max_noise;
        let mut made = vec![Figures::default(); variants.len()];
        for place in rotation(block, variants.len()) {
            let variant = &variants[place];
            let Work::Trial(trial) = &variant.work else {
                anyhow::bail!("{} is measured in slices", variant.name);
            };
            let trial = || {
                self.check_interrupted()?;
                let figures = trial(self).with_context(|| variant.name.clone())?;
                Ok(Figures {
                    apart_ns: machine::core_latency(self.setup.server_cpu)?,
                    ..figures
                })
            };
            let rejected = &mut series[place].rejected;
            made[place] = until_accepted(trial, |figures| {
                let why = figures.noise.rejection(most, on_disk);
                why.map(|why| rejected.add(why)).is_none()
            })?;
        }
        Ok(made)
    }

    /// Slices of all variants side by side.
    fn sliced(
        &self,
        variants: &[Variant<'_>],
        slice: Slice,
        guests: usize,
        ask: &Ask,
    ) -> Result<Vec<Figures>> {
        self.check_interrupted()?;
        let started = variants.iter().zip(0..).map(|(variant, number)| {
            // Each reads other places: what one has just read is not in the disk's cache for another.
            let ask = ask.elsewhere(number);
            let scratch = self.path(&format!("variant{number}"));
            let sockets = interleaved::sockets(&scratch, guests);
            match &variant.work {
                Work::Server(launch) => {
                    let launch = launch(self, &sockets);
                    Started::start(&variant.name, &launch, &sockets, &scratch, &ask)
                }
                Work::Fio(file) => Started::fio(&variant.name, file, &ask, self.setup.server_cpu),
                Work::Trial(_) => anyhow::bail!("{} is measured by trials", variant.name),
            }
        });
        let started = started.collect::<Result<Vec<_>>>()?;
        let stop = || self.stop.load(Ordering::Relaxed);
        let span = (self.setup.warm, self.setup.span);
        let mut made = interleaved::in_slices(started, slice, span, &stop)?;
        let apart_ns = machine::core_latency(self.setup.server_cpu)?;
        for figures in &mut made {
            figures.apart_ns = apart_ns;
        }
        Ok(made)
    }

    /// Makes blocks until enough are quiet, or twice as many were made; shows and stores them.
    ///
    /// # Errors
    /// A block fails.
    pub(crate) fn blocks(
        &self,
        report: &mut Report,
        mut series: Vec<Series>,
        on_disk: bool,
        make: &mut Make<'_>,
    ) -> Result<()> {
        let wanted = series.first().map_or(0, |series| series.wanted);
        for block in 0..2 * wanted {
            if series[0].trials.len() == wanted {
                break;
            }
            let figures = make(block, &mut series)?;
            store_if_quiet(&mut series, figures, self.options.max_noise, on_disk);
        }
        show(report, series);
        Ok(())
    }
}

/// Adds a block to its series, unless one of its trials was disturbed.
fn store_if_quiet(series: &mut [Series], block: Vec<Figures>, most: f64, on_disk: bool) {
    let mut rejections = block
        .iter()
        .map(|figures| figures.noise.rejection(most, on_disk));
    match rejections.find_map(|why| why) {
        Some(why) => series
            .iter_mut()
            .for_each(|series| series.rejected.add(why)),
        None => {
            for (series, figures) in series.iter_mut().zip(block) {
                series.trials.push(figures);
            }
        }
    }
}

/// An empty series for each name.
pub(crate) fn empty_series<'a>(
    scenario: &str,
    case: &str,
    names: impl Iterator<Item = &'a str>,
    wanted: usize,
) -> Vec<Series> {
    let empty = |name: &str| Series {
        scenario: scenario.into(),
        case: case.into(),
        contestant: name.into(),
        trials: Vec::new(),
        wanted,
        rejected: Rejected::default(),
    };
    names.map(empty).collect()
}

/// Shows a case that has ended, and stores it. The bench is long: what is whole is never lost.
fn show(report: &mut Report, series: Vec<Series>) {
    for series in series
        .iter()
        .filter(|series| series.trials.len() < series.wanted)
    {
        report.notes.push(format!(
            "{}, {}, {}: {} quiet blocks of {} wanted, {}",
            series.scenario,
            series.case,
            series.contestant,
            series.trials.len(),
            series.wanted,
            series.rejected,
        ));
    }
    let done = Report {
        series,
        ..Report::default()
    };
    eprintln!("{}", done.table());
    report.series.extend(done.series);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_lab::machine::Noise;

    #[test]
    fn a_disturbed_trial_rejects_its_block_for_all() {
        let mut both = empty_series("", "", ["a", "b"].into_iter(), 1);
        let figures = |foreign_percent: f64| Figures {
            noise: Noise {
                foreign_percent,
                steal_percent: 0.0,
            },
            ..Figures::default()
        };
        for other in [9.0, 2.0] {
            store_if_quiet(&mut both, vec![figures(1.0), figures(other)], 5.0, false);
        }
        for series in both {
            assert_eq!((series.trials.len(), series.rejected.others), (1, 1));
        }
    }

    #[test]
    fn a_slice_begins_after_another_variant_has_polled_for_the_last_time() {
        let polls = Duration::from_micros(crate::scenarios::POLL_US.into());
        assert!(AFTER_POLLING.before > polls && ON_DISK.before > polls);
    }
}
