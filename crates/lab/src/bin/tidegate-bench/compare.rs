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
use tidegate_lab::measure::{Ask, Figures, Meter};
use tidegate_testing::fio;
use tidegate_testing::server::{Launch, Server};

use crate::bench::{Bench, missing};
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
pub(crate) struct Variant {
    /// The name in the table.
    pub(crate) name: String,
    /// Programs that it needs.
    needs: &'static [&'static str],
    work: Work,
}

/// Starts a server, whose sockets and log go to a directory; the server, and the sockets of its clients.
type Starter = Box<dyn Fn(&Bench, &Path) -> Result<(Server, Vec<PathBuf>)>>;

/// How a variant is measured.
enum Work {
    /// A server with a guest for each socket.
    Guests(Starter),
    /// A server with an NBD client of this export.
    Nbd(&'static str, Starter),
    /// fio on the file itself, in the servers' place.
    Fio(PathBuf),
}

/// How many blocks are wanted, and how they are made.
pub(crate) struct Blocks {
    /// So many times the bench's.
    pub(crate) times: usize,
    /// Whether a real disk is read: then steal says nothing.
    pub(crate) on_disk: bool,
    /// In slices, all side by side; in whole trials otherwise.
    pub(crate) slice: Option<Slice>,
    /// What each guest requests.
    pub(crate) ask: Ask,
}

impl Blocks {
    /// Whole trials of random reads.
    pub(crate) fn of_trials(times: usize, depth: u16) -> Self {
        Self {
            times,
            on_disk: false,
            slice: None,
            ask: Ask::random_reads(depth),
        }
    }

    /// Slices of random reads.
    pub(crate) fn of_slices(times: usize, slice: Slice, depth: u16) -> Self {
        Self {
            slice: Some(slice),
            ..Self::of_trials(times, depth)
        }
    }

    /// The same on a real disk.
    pub(crate) fn on_disk(self) -> Self {
        Self {
            on_disk: true,
            ..self
        }
    }
}

/// Starts the server of a command line.
fn starter(launch: impl Fn(&Bench, &Path) -> Launch + 'static) -> Starter {
    Box::new(move |bench, dir| {
        let launch = launch(bench, dir);
        Ok((Server::start(&launch, dir)?, launch.sockets))
    })
}

impl Variant {
    fn new(name: impl Into<String>, needs: &'static [&'static str], work: Work) -> Self {
        Self {
            name: name.into(),
            needs,
            work,
        }
    }

    /// A vhost-user server, by its command line in a directory.
    pub(crate) fn server(
        name: impl Into<String>,
        needs: &'static [&'static str],
        launch: impl Fn(&Bench, &Path) -> Launch + 'static,
    ) -> Self {
        Self::new(name, needs, Work::Guests(starter(launch)))
    }

    /// A vhost-user server that is started in some other way.
    pub(crate) fn started(
        name: impl Into<String>,
        needs: &'static [&'static str],
        start: impl Fn(&Bench) -> Result<(Server, Vec<PathBuf>)> + 'static,
    ) -> Self {
        let start: Starter = Box::new(move |bench, _| start(bench));
        Self::new(name, needs, Work::Guests(start))
    }

    /// An NBD server with this export, by its command line with a socket.
    pub(crate) fn nbd(
        name: impl Into<String>,
        needs: &'static [&'static str],
        export: &'static str,
        launch: impl Fn(&Bench, &Path) -> Launch + 'static,
    ) -> Self {
        let start = starter(move |bench, dir| launch(bench, &dir.join("nbd.sock")));
        Self::new(name, needs, Work::Nbd(export, start))
    }

    /// fio on the file itself.
    pub(crate) fn fio(name: &str, file: &Path) -> Self {
        Self::new(name, &["fio"], Work::Fio(file.to_owned()))
    }

    /// Starts it, its files in `dir`.
    fn start(&self, bench: &Bench, dir: &Path, ask: &Ask) -> Result<Started> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        match &self.work {
            Work::Guests(start) => {
                let (server, sockets) = start(bench, dir)?;
                Started::of(&self.name, server, &sockets, ask)
            }
            Work::Nbd(export, start) => {
                let (server, sockets) = start(bench, dir)?;
                let socket = sockets.first().context("an NBD server has a socket")?;
                Started::nbd(&self.name, server, socket, export, &ask.load)
            }
            Work::Fio(file) => Started::fio(&self.name, file, ask, bench.server_cpu()),
        }
    }
}

/// Makes a block, by its number: the figures of each series, in which it counts rejected trials.
type Make<'a> = dyn FnMut(usize, &mut [Series]) -> Result<Vec<Figures>> + 'a;

impl Bench {
    /// Compares those of the variants that are there until there are enough quiet blocks, or twice as many were made; shows
    /// and stores them. Of slices there must be two variants at least.
    pub(crate) fn compare(
        &self,
        report: &mut Report,
        (scenario, case): (&str, &str),
        mut variants: Vec<Variant>,
        how: &Blocks,
    ) -> Result<()> {
        variants.retain(|variant| !missing(self, report, variant.needs));
        if variants.len() < 1 + usize::from(how.slice.is_some()) {
            return Ok(());
        }
        let names = variants.iter().map(|variant| variant.name.as_str());
        let series = empty_series(scenario, case, names, how.times * self.blocks);
        let make = &mut |block, series: &mut [Series]| {
            let made = match how.slice {
                None => self.trials(block, &variants, series, how),
                Some(slice) => self.slices(&variants, slice, &how.ask),
            };
            made.with_context(|| format!("{scenario}, {case}"))
        };
        self.blocks(report, series, how.on_disk, make)
    }

    /// A trial of each variant, one after the other.
    fn trials(
        &self,
        block: usize,
        variants: &[Variant],
        series: &mut [Series],
        how: &Blocks,
    ) -> Result<Vec<Figures>> {
        let most = self.options.max_noise;
        let mut made = vec![Figures::default(); variants.len()];
        for place in rotation(block, variants.len()) {
            let variant = &variants[place];
            let trial = || {
                self.check_interrupted()?;
                let figures = self.trial(variant, &how.ask);
                Ok(Figures {
                    apart_ns: machine::core_latency(self.server_cpu())?,
                    ..figures.with_context(|| variant.name.clone())?
                })
            };
            let rejected = &mut series[place].rejected;
            made[place] = until_accepted(trial, |figures| {
                rejected.accepts(figures.noise, most, how.on_disk)
            })?;
        }
        Ok(made)
    }

    /// A trial is one long slice. fio's has latencies only if fio is not stopped.
    fn trial(&self, variant: &Variant, ask: &Ask) -> Result<Figures> {
        if let Work::Fio(file) = &variant.work {
            return self.fio(file, ask.load.depth);
        }
        let started = variant.start(self, &self.path("trial"), ask)?;
        let slice = Slice {
            before: self.warm,
            span: self.span,
        };
        let span = (Duration::ZERO, self.span);
        let made = interleaved::in_slices(vec![started], slice, span, &|| false)?;
        made.into_iter().next().context("a trial has figures")
    }

    /// fio on the file itself, on the servers' core.
    fn fio(&self, file: &Path, depth: u16) -> Result<Figures> {
        let meter = Meter::start()?;
        let job = fio::Job {
            warm: self.warm,
            span: self.span,
            ..fio::random_reads_of(file, depth)
        };
        let done = fio::run(&job, self.server_cpu())?;
        Ok(Figures {
            iops: done.iops,
            p50_us: done.p50_us,
            p99_us: done.p99_us,
            p999_us: done.p999_us,
            cpu_percent_per_kiops: done.cpu_percent / (done.iops / 1000.0),
            noise: meter.end(Duration::ZERO)?.0,
            ..Figures::default()
        })
    }

    /// Slices of all variants side by side.
    fn slices(&self, variants: &[Variant], slice: Slice, ask: &Ask) -> Result<Vec<Figures>> {
        self.check_interrupted()?;
        let started = variants.iter().zip(0..).map(|(variant, number)| {
            // Each reads other places: what one has just read is not in the disk's cache for another.
            let ask = ask.elsewhere(number);
            variant.start(self, &self.path(&format!("variant{number}")), &ask)
        });
        let started = started.collect::<Result<Vec<_>>>()?;
        let stop = || self.stop.load(Ordering::Relaxed);
        let span = (self.warm, self.span);
        let mut made = interleaved::in_slices(started, slice, span, &stop)?;
        let apart_ns = machine::core_latency(self.server_cpu())?;
        for figures in &mut made {
            figures.apart_ns = apart_ns;
        }
        Ok(made)
    }

    /// Makes blocks until enough are quiet, or twice as many were made; shows and stores them.
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
    let mut rejected = Rejected::default();
    let quiet = block
        .iter()
        .all(|figures| rejected.accepts(figures.noise, most, on_disk));
    for (series, figures) in series.iter_mut().zip(block) {
        series.rejected += rejected;
        if quiet {
            series.trials.push(figures);
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
        variant: name.into(),
        wanted,
        ..Series::of(scenario, case)
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
            series.variant,
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
