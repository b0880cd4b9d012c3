//! The data-path bench: which servers meet in which scenario, round by round.
//!
//! [`run`] is what `xtask` and `tidegate-bench` call. Scenarios ([`scenarios`], [`fleet`], [`control`], [`dashboard`],
//! [`instructions`]) list contestants; this file makes them compete: A, B, C, then B, C, A ..., each trial with a fresh
//! server, client and server pinned to a core each. A trial during which the machine was not quiet, or its CPUs were moved
//! ([`crate::distance`]), is made again at once; when it will not be quiet, the whole round is thrown away. Those that
//! differ by a percent meet in `closely`.
//!
//! # Always true
//! - Every series of a case has the same rounds, so that ratios can be taken round by round.
//! # Units
//! - Percent of one core; IOPS; microseconds.

pub(crate) mod closely;
pub mod control;
pub mod dashboard;
pub mod fleet;
pub mod instructions;
pub mod measure;
pub mod scenarios;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::distance::{self, NEAR_NS, Patience};
use crate::interruption;
use crate::interrupts;
use crate::peers::{self, Store, Tidegate};
use crate::report::{Figures, Machine, Report, Series};
use crate::server;
use crate::spoiled::{Heed, Most, Rejected, Spoiled};
use crate::stillness;
use crate::wakeups::IdleCpus;

/// A group of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Scenario {
    /// vhost-user-blk on nothing: QD 1, 8, 32, 128.
    Null,
    /// vhost-user-blk on a file: QD 1, 8, 32, 128, with fio as the limit.
    File,
    /// NBD on nothing and on memory: QD 1, 8, 32, 128.
    Nbd,
    /// What filters cost.
    Filters,
    /// What I/O control costs where nothing is congested.
    Control,
    /// One and four guests of one daemon.
    Vms,
    /// From 1 to 64 disks on one I/O thread.
    Disks,
    /// What a dashboard that is watched costs, with 256 disks.
    Dashboard,
    /// Instructions per request under callgrind.
    Instructions,
}

/// The bench's flags.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Only these scenarios, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Scenario>,
    /// Three short trials: to see that it works, not to publish
    #[arg(long)]
    pub quick: bool,
    /// Quiet rounds per case (default 7, quick 3)
    #[arg(long, value_name = "N")]
    pub trials: Option<usize>,
    /// Seconds measured per trial (default 2, quick 0.5)
    #[arg(long, value_name = "S")]
    pub seconds: Option<f64>,
    /// Also write everything as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Measure only: do not judge, do not fail
    #[arg(long)]
    pub no_check: bool,
    /// The Tidegate to measure; while it does not exist, the peers are measured alone
    #[arg(long, value_name = "PATH", default_value = "target/release/tidegate")]
    pub tidegate: PathBuf,
    /// A tidegate-bench whose bare ring loop is shown as the ceiling
    #[arg(long, value_name = "PATH")]
    pub bare: Option<PathBuf>,
    /// The servers' core
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub server_cpu: usize,
    /// The clients' core
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    pub client_cpu: usize,
    /// Ask the kernel for wake-ups of at most this many microseconds while it measures: 0 keeps idle CPUs awake, as
    /// hosts are tuned for latency. With `any`, what the machine does by itself is measured too
    #[arg(long, value_name = "US", default_value = "0")]
    pub cpu_latency: IdleCpus,
    /// Reject a round in which other processes, or other machines, took more of a core than this
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub max_noise: f64,
    /// Reject a trial, and a round, in which the CPUs were moved, so that a word between them takes so many times as long;
    /// not a round in which all have turns of milliseconds
    #[arg(long, value_name = "TIMES", default_value_t = 1.3)]
    pub max_moved: f64,
    /// Wait up to so many seconds in each case of null, nbd, vms and disks for the hypervisor to put the two CPUs near each
    /// other, and count those trials alone; 0: measure where they are
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub near_for: u64,
    /// Where the test file is made: a directory on the datastore to measure
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    pub dir: PathBuf,
    /// The test file's size in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub file_mib: u64,
}

/// What a trial needs to know.
#[derive(Debug)]
pub struct Bench {
    /// The flags.
    pub options: Options,
    /// Sockets and logs live here while the bench runs.
    pub scratch: tempfile::TempDir,
    /// Quiet rounds per case.
    pub trials: usize,
    /// Before the window.
    pub warm: Duration,
    /// The window.
    pub span: Duration,
    /// Whether it is watched for how long the machine stands still.
    watched: bool,
    /// Somebody interrupts.
    stop: Arc<AtomicBool>,
}

/// How often a trial is made before its round is given up.
const TRIES: usize = 3;

/// On which terms contestants compete in a case.
struct Terms<'a> {
    /// So many rounds are wanted.
    rounds: usize,
    /// What spoiled a trial, if anything did.
    spoiled: &'a Judge<'a>,
    /// Is called before each trial.
    before: &'a dyn Fn() -> Result<()>,
}

impl<'a> Terms<'a> {
    /// So many rounds of such trials, each made at once.
    fn of(rounds: usize, spoiled: &'a Judge<'a>) -> Self {
        let before = &|| Ok(());
        Terms {
            rounds,
            spoiled,
            before,
        }
    }
}

/// Tells what spoiled a trial, if anything did.
type Judge<'a> = dyn Fn(&Figures) -> Option<Spoiled> + 'a;

/// Runs one trial.
pub type Trial<'a> = Box<dyn Fn(&Bench) -> Result<Figures> + 'a>;

/// Makes a round, by its number: a figure for each series, of which it counts what it rejects.
type Round<'a> = dyn FnMut(usize, &mut [Series]) -> Result<Vec<Figures>> + 'a;

/// One who takes part in a case.
pub struct Contestant<'a> {
    /// The name in the table.
    pub name: String,
    /// Runs one trial.
    pub trial: Trial<'a>,
}

impl<'a> Contestant<'a> {
    /// Names a trial.
    pub fn new(name: impl Into<String>, trial: impl Fn(&Bench) -> Result<Figures> + 'a) -> Self {
        Self {
            name: name.into(),
            trial: Box::new(trial),
        }
    }
}

/// Runs the bench, prints its tables, writes its JSON; whether every check passed (always, with `--no-check`).
///
/// # Errors
/// A server or client fails, or the machine has too few cores.
pub fn run(options: Options) -> Result<bool> {
    let held = options.cpu_latency.hold();
    let mut bench = Bench::new(options)?;
    bench.stop = interruption::noticed().context("cannot catch interruptions")?;
    let mut report = Report {
        machine: Machine::here(),
        ..Report::default()
    };
    report.notes.push(match (&held, bench.options.cpu_latency) {
        (Ok(Some(_)), IdleCpus::Within(us)) => {
            format!("the kernel is asked for wake-ups within {us} us")
        }
        (Err(error), _) => {
            format!("idle CPUs sleep as they will, and waking them is measured too: {error:#}")
        }
        _ => "idle CPUs sleep as they will, and waking them is measured too".to_owned(),
    });
    if !bench.has_tidegate() {
        let path = bench.options.tidegate.display();
        report.notes.push(format!(
            "{path} does not exist: the peers are measured alone"
        ));
    }
    let outcome = bench.measure(&mut report);
    // A terminal interrupts servers and clients, too: whatever they fail with then, that is why.
    let outcome = outcome.map_err(|error| bench.heed_interruptions().err().unwrap_or(error));
    // What was measured before a failure is shown all the same.
    let passed = finish(&bench, &report)?;
    outcome.map(|()| passed)
}

fn finish(bench: &Bench, report: &Report) -> Result<bool> {
    let machine = &report.machine;
    println!(
        "{}, {} CPUs, Linux {}\n",
        machine.processor, machine.cpus, machine.kernel
    );
    println!("{}", report.table());
    println!("{}", report.rejected());
    for note in &report.notes {
        println!("note: {note}");
    }
    if !bench.options.no_check {
        println!("\n{}", report.verdicts());
    }
    if let Some(path) = &bench.options.json {
        let text =
            serde_json::to_string_pretty(report).context("cannot write the report as JSON")?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(bench.options.no_check || report.passed())
}

impl Bench {
    /// Pins this thread and makes the scratch directory.
    ///
    /// # Errors
    /// A core is missing or no directory can be made.
    pub fn new(mut options: Options) -> Result<Self> {
        if options.server_cpu == options.client_cpu {
            bail!(
                "server and client need a core each: choose two with --server-cpu and --client-cpu"
            );
        }
        server::pin(options.client_cpu)?;
        if let Ok(path) = options.tidegate.canonicalize() {
            options.tidegate = path;
        }
        let (trials, seconds) = if options.quick { (3, 0.5) } else { (7, 2.0) };
        let seconds = options.seconds.unwrap_or(seconds);
        if !(seconds > 0.0 && seconds < 3600.0) {
            bail!("--seconds {seconds}: a trial lasts between 0 and 3600 seconds");
        }
        Ok(Self {
            scratch: tempfile::tempdir().context("cannot create a scratch directory")?,
            trials: options.trials.unwrap_or(trials).max(1),
            warm: Duration::from_millis(300),
            span: Duration::from_secs_f64(seconds),
            options,
            watched: false,
            stop: Arc::default(),
        })
    }

    fn chosen(&self) -> Vec<Scenario> {
        let mut chosen = self.options.only.clone();
        if chosen.is_empty() {
            chosen = Scenario::value_variants().to_vec();
        }
        chosen.sort();
        chosen.dedup();
        chosen
    }

    fn measure(&self, report: &mut Report) -> Result<()> {
        for scenario in self.chosen() {
            match scenario {
                Scenario::Null => scenarios::null(self, report)?,
                Scenario::File => scenarios::file(self, report)?,
                Scenario::Nbd => scenarios::nbd(self, report)?,
                Scenario::Filters => scenarios::filters(self, report)?,
                Scenario::Control => control::run(self, report)?,
                Scenario::Vms => fleet::vms(self, report)?,
                Scenario::Disks => fleet::disks(self, report)?,
                Scenario::Dashboard => dashboard::run(self, report)?,
                Scenario::Instructions => instructions::run(self, report)?,
            }
        }
        Ok(())
    }

    /// Whether there is a Tidegate to measure.
    #[must_use]
    pub fn has_tidegate(&self) -> bool {
        self.options.tidegate.is_file()
    }

    /// A path in the scratch directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// A Tidegate on `store`.
    #[must_use]
    pub fn tidegate(&self, store: &Store, filters: &[&str], poll_us: Option<u32>) -> Tidegate {
        Tidegate {
            program: self.options.tidegate.clone(),
            store: store.clone(),
            filters: filters.iter().map(|filter| (*filter).to_owned()).collect(),
            poll_us,
        }
    }

    /// Lets contestants compete in one case until there are enough quiet rounds, or twice as many were tried. With
    /// `--near-for` a trial is made while the two CPUs are near each other; if that never comes, where they are. So many
    /// times more rounds are wanted than in the usual case.
    ///
    /// # Errors
    /// A trial fails.
    pub fn compete(
        &self,
        report: &mut Report,
        scenario: &str,
        case: &str,
        contestants: &[Contestant<'_>],
        times: usize,
    ) -> Result<()> {
        let patience = Patience::new(Duration::from_secs(self.options.near_for));
        let heed = Heed {
            steal: true,
            moved: true,
        };
        let spoiled = |figures: &Figures| {
            let far = !patience.is_near_enough(figures.apart_ns);
            heed.judge(figures, self.most())
                .or(far.then_some(Spoiled::Far))
        };
        let apart = || {
            self.heed_interruptions()?;
            distance::to(self.options.server_cpu)
        };
        let wait = || patience.wait(apart);
        let terms = Terms {
            before: &wait,
            ..Terms::of(times * self.trials, &spoiled)
        };
        self.contest(report, scenario, case, contestants, &terms)?;
        if self.options.near_for > 0 {
            let found = if patience.was_in_vain() {
                "never, so they were measured where they are"
            } else {
                "and no other trial counts"
            };
            report.notes.push(format!(
                "{scenario}, {case}: waited up to {} s for CPUs within {NEAR_NS} ns of each other: {found}",
                self.options.near_for
            ));
        }
        Ok(())
    }

    /// The same where a real disk is read. In a virtual machine the hypervisor emulates that disk on the CPU time it
    /// steals from us, and other machines use the disk too: steal says nothing then, and only many rounds average it out:
    /// `times` as many as the bench's.
    ///
    /// # Errors
    /// A trial fails.
    pub fn compete_on_disk(
        &self,
        report: &mut Report,
        scenario: &str,
        case: &str,
        contestants: &[Contestant<'_>],
        times: usize,
    ) -> Result<()> {
        let heed = Heed {
            steal: false,
            moved: true,
        };
        let spoiled = |figures: &Figures| heed.judge(figures, self.most());
        let terms = Terms::of(times * self.trials, &spoiled);
        self.contest(report, scenario, case, contestants, &terms)
    }

    fn contest(
        &self,
        report: &mut Report,
        scenario: &str,
        case: &str,
        contestants: &[Contestant<'_>],
        terms: &Terms<'_>,
    ) -> Result<()> {
        let names = contestants.iter().map(|each| each.name.as_str());
        let series = empty_series(scenario, case, names, terms.rounds);
        self.rounds(report, series, terms.spoiled, &mut |attempt, series| {
            // Everybody begins a round once in a while: a disk may be slower for whoever comes after a busy neighbour.
            let mut round = vec![Figures::default(); contestants.len()];
            for turn in 0..contestants.len() {
                let whose = (attempt + turn) % contestants.len();
                let contestant = &contestants[whose];
                for _ in 0..TRIES {
                    (terms.before)()?;
                    [round[whose]] = self
                        .placed(|| Ok([(contestant.trial)(self)?]))
                        .with_context(|| format!("{scenario}, {case}, {}", contestant.name))?;
                    let Some(what) = (terms.spoiled)(&round[whose]) else {
                        break;
                    };
                    series[whose].rejected.add(what);
                }
            }
            Ok(round)
        })
    }

    /// The same with servers on the CPU where the interrupts of the test file's disk come, if that is the clients': the two
    /// change places. It is watched for how long the machine stands still meanwhile: that depends on who reads a disk, and how.
    fn where_interrupts_come(&self, report: &mut Report) -> Result<Bench> {
        let mut options = self.options.clone();
        let cpu = interrupts::of_disk_under(&options.dir);
        if let Some(cpu) = cpu.filter(|&cpu| cpu == options.client_cpu) {
            std::mem::swap(&mut options.server_cpu, &mut options.client_cpu);
            report.notes.push(format!(
                "the disk's interrupts come on CPU {cpu}: there its servers run, and fio, and guests on the other"
            ));
        }
        server::pin(options.client_cpu)?;
        Ok(Bench {
            options,
            scratch: tempfile::tempdir().context("cannot create a scratch directory")?,
            watched: true,
            stop: Arc::clone(&self.stop),
            ..*self
        })
    }

    fn most(&self) -> Most {
        Most {
            noise: self.options.max_noise,
            moved: self.options.max_moved,
        }
    }

    /// Fails once somebody has interrupted.
    fn heed_interruptions(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }

    /// Makes a trial, or one of each contestant, and tells how far apart client and server were, and whether the machine
    /// stood still.
    fn placed<T: AsMut<[Figures]>>(&self, trial: impl FnOnce() -> Result<T>) -> Result<T> {
        self.heed_interruptions()?;
        let before = distance::to(self.options.server_cpu)?;
        let cpus = [self.options.server_cpu, self.options.client_cpu];
        let watch = self.watched.then(|| stillness::Watch::start(cpus));
        let mut trial = trial()?;
        let stood = match watch {
            Some(watch) => watch?.end()?,
            None => 0.0,
        };
        let after = distance::to(self.options.server_cpu)?;
        for figures in trial.as_mut() {
            figures.stood_percent = stood;
            figures.apart_ns = after;
            figures.moved = distance::spread([before, after].into_iter());
        }
        Ok(trial)
    }

    /// Makes rounds until a case has enough quiet ones, or twice as many were tried; shows and keeps them.
    fn rounds(
        &self,
        report: &mut Report,
        mut series: Vec<Series>,
        spoiled: &Judge<'_>,
        round: &mut Round<'_>,
    ) -> Result<()> {
        let wanted = series.first().map_or(0, |series| series.wanted);
        for attempt in 0..2 * wanted {
            if series[0].trials.len() == wanted {
                break;
            }
            let figures = round(attempt, &mut series)?;
            keep_if_fair(&mut series, figures, spoiled, self.options.max_moved);
        }
        show(report, series);
        Ok(())
    }
}

/// A series for each who is named, of which so many rounds are wanted.
fn empty_series<'a>(
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

/// Shows a case that has ended, and keeps it. The bench is long: what is whole is never lost.
fn show(report: &mut Report, series: Vec<Series>) {
    for series in &series {
        if series.trials.len() < series.wanted {
            report.notes.push(format!(
                "{}, {}, {}: {} quiet rounds of {} wanted, {}",
                series.scenario,
                series.case,
                series.contestant,
                series.trials.len(),
                series.wanted,
                series.rejected,
            ));
        }
    }
    report.notes.extend(stillness::told(&series));
    let done = Report {
        series,
        ..Report::default()
    };
    eprintln!("{}", done.table());
    report.series.extend(done.series);
}

/// Adds a round to its series, unless a trial of it was not quiet, or the CPUs were farther apart for one than for another.
fn keep_if_fair(series: &mut [Series], round: Vec<Figures>, spoiled: &Judge<'_>, max_moved: f64) {
    let moved = distance::spread(round.iter().map(|figures| figures.apart_ns));
    if moved > max_moved {
        reject(series, Spoiled::Moved);
    } else if round.iter().all(|figures| spoiled(figures).is_none()) {
        for (series, figures) in series.iter_mut().zip(round) {
            series.trials.push(figures);
        }
    }
}

/// Counts a trial of each as thrown away.
fn reject(series: &mut [Series], what: Spoiled) {
    for series in series {
        series.rejected.add(what);
    }
}

/// Makes the test file: wholly written, with bytes that no server can tell to be zeroes.
///
/// # Errors
/// The directory is full or not writable.
pub fn test_file(dir: &Path, mib: u64) -> Result<tempfile::NamedTempFile> {
    use std::io::Write;
    let mut file = tempfile::NamedTempFile::new_in(dir)
        .with_context(|| format!("cannot make a test file in {}", dir.display()))?;
    let mut block = vec![0; 1 << 20];
    for index in 0..mib {
        crate::stamp::fill(&mut block, index << 20, 1);
        file.write_all(&block)
            .with_context(|| format!("cannot write {mib} MiB in {}", dir.display()))?;
    }
    file.as_file()
        .sync_all()
        .context("cannot sync the test file")?;
    Ok(file)
}

/// The programs a scenario needs that are not there; each is noted once.
pub(crate) fn missing(report: &mut Report, programs: &[&str]) -> bool {
    let mut lacks = false;
    for program in programs.iter().filter(|program| !peers::installed(program)) {
        let note = format!("{program} is not installed: install it to compare with it");
        if !report.notes.contains(&note) {
            report.notes.push(note);
        }
        lacks = true;
    }
    lacks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;

    #[test]
    fn a_trial_that_is_noisy_or_found_the_cpus_elsewhere_spoils_its_round_for_all() {
        let series = |name: &str| Series {
            scenario: String::new(),
            case: String::new(),
            contestant: name.into(),
            trials: Vec::new(),
            wanted: 1,
            rejected: Rejected::default(),
        };
        let figures = |foreign_percent: f64, apart_ns: f64| Figures {
            noise: Noise {
                foreign_percent,
                steal_percent: 0.0,
            },
            apart_ns,
            ..Figures::default()
        };
        let mut both = [series("a"), series("b")];
        let spoiled = |figures: &Figures| {
            let others = figures.noise.foreign_percent > 5.0;
            others.then_some(Spoiled::Others)
        };
        let mut keep = |one, other| keep_if_fair(&mut both, vec![one, other], &spoiled, 1.3);
        keep(figures(1.0, 100.0), figures(9.0, 100.0));
        keep(figures(1.0, 100.0), figures(2.0, 500.0));
        keep(figures(1.0, 100.0), figures(2.0, 110.0));
        assert_eq!((both[0].trials.len(), both[1].trials.len()), (1, 1));
        for series in both {
            assert_eq!((series.rejected.moved, series.rejected.total()), (1, 1));
        }
    }
}
