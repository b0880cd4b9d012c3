//! `tidegate lab`: experiments on real daemons or in virtual time, and their reports.
//!
//! Experiments need no daemon: those that are measured are started from this very program. What an experiment is and what
//! its runs come to is `tidegate_lab`'s to say; here are the verbs, the progress that is shown, and the tables. Recording,
//! replaying and asking what would be have files of their own, and a daemon that serves.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_lab::experiment::directory::{Suite as SuiteFile, moment};
use tidegate_lab::experiment::page::{self, came_to, place, tally};
use tidegate_lab::experiment::runner::{self, End};
use tidegate_lab::experiment::{self, Directory, Entry, Findings, Order, PUBLISHED, Verdict};

use crate::failure::Failure;
use crate::session::Session;

mod demo;
mod progress;
mod record;
mod replay;
mod shown;
mod whatif;

use progress::Progress;
use shown::{ExperimentList, FindingsList};

/// Run published experiments, record and replay I/O, and predict effects of policies
///
/// An experiment is a scenario, a contest or a study.
///
/// A scenario describes hosts, disks, guests, a modelled array and expectations with their sources. It runs on real daemons
/// (this program, one for each host, in real time) or in virtual time (the same schedulers and governors in the simulator).
/// The lab judges the runs and reports them with charts.
///
/// A contest is an A/B comparison on real servers: several contestants do the same work in turn.
///
/// A study compares set-ups and policies of I/O threads in virtual time: cores and guests are modelled. `io-threads` also plays
/// its trace on an engine and this machine's CPUs, which is reported and not judged.
#[derive(Debug, Subcommand)]
pub(crate) enum Lab {
    Demo(demo::Demo),
    List(List),
    Show(Show),
    Run(Run),
    Suite(Suite),
    Report(Report),
    Compare(Compare),
    Record(record::Record),
    Replay(replay::Replay),
    WhatIf(whatif::WhatIf),
}

impl Lab {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Lab::Demo(verb) => verb.run(session),
            Lab::List(verb) => verb.run(session),
            Lab::Show(verb) => verb.run(session),
            Lab::Run(verb) => verb.run(session),
            Lab::Suite(verb) => verb.run(session),
            Lab::Report(verb) => verb.run(session),
            Lab::Compare(verb) => verb.run(session),
            Lab::Record(verb) => verb.run(session),
            Lab::Replay(verb) => verb.run(session),
            Lab::WhatIf(verb) => verb.run(session),
        }
    }
}

/// List the experiments, the published ones first
#[derive(Debug, Args)]
#[command(
    visible_alias = "ls",
    after_help = "\
Examples:
  tidegate lab list
  tidegate lab list -o wide
  tidegate lab list --published -o name"
)]
pub(crate) struct List {
    /// List only experiments of published papers
    #[arg(long)]
    published: bool,
}

/// Show an experiment: its hosts, disks, phases and expectations
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate lab show sioc-3
  tidegate lab show ./my-scenario.toml -o json")]
pub(crate) struct Show {
    /// The experiment's name, or a scenario file
    experiment: String,
}

/// Run an experiment, judge it, and write a report
///
/// The experiment is run once for each setting that its checks compare: with I/O control, without it, with a disk alone, with
/// and without a flash cache.
/// Each run is stored when it has ended. After an interruption (Ctrl-C), the same command with the same --out resumes.
///
/// A contest has blocks. In each block every contestant has one trial. At less than half its length a contest has fewer
/// points, and the report names the omitted ones.
///
/// The exit status is 1 if a check fails or a run could not be made.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate lab run sioc-3 --scale 0.1
  tidegate lab run sioc-3 --on sim
  tidegate lab run io-threads --on sim --scale 0.1
  tidegate lab run sioc-1 --on engine,sim --repeat 5 --out results/sioc-1
  tidegate lab run engine-flash-cache --scale 0.4
  tidegate lab run ./my-scenario.toml --on sim -o json | jq '.checks[] | select(.verdict == \"fail\")'")]
pub(crate) struct Run {
    /// The experiment's name, or a scenario file
    experiment: String,

    #[command(flatten)]
    how: How,

    /// The seed of the first run; each repeat uses the next number
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Repeat a run if other programs or machines used more of a processor than this
    ///
    /// In percent of one processor. A run is repeated twice at most. Without this flag every run counts, and the report says
    /// how busy the machine was. Trials of a contest count up to 5 percent.
    #[arg(long, value_name = "PERCENT")]
    max_noise: Option<f64>,
}

/// Run a suite of experiments into one report
///
/// `published` contains all experiments of published papers. Scenarios run on real daemons and in the simulator, contests on
/// real servers only. Each run of a scenario takes at least 20 s. After an interruption (Ctrl-C), the same command with the
/// same --out resumes.
///
/// The exit status is 1 if a check fails or a run could not be made.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate lab suite published --scale 0.1
  tidegate lab suite published --repeat 3 --out results/published")]
pub(crate) struct Suite {
    /// The suite
    #[arg(value_enum)]
    suite: Which,

    #[command(flatten)]
    how: How,
}

/// How experiments are run.
#[derive(Debug, Args)]
struct How {
    /// Where to run; if both are given, separated by a comma, they are also compared
    ///
    /// Default: engine; for a suite: both.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PLACE")]
    on: Vec<Place>,

    /// The number of runs for each setting; the median is judged
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    repeat: u32,

    /// The length of the phases, as a part of the published length: 0.01 to 1
    #[arg(long, value_name = "PART", default_value = "1", value_parser = percent)]
    scale: u64,

    /// The directory for results; default: a new directory under ./tidegate-lab
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    out: Option<PathBuf>,
}

/// Judge stored results again and write their report
///
/// The exit status is 1 if a check fails or a run is missing.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate lab report results/sioc-1")]
pub(crate) struct Report {
    /// A results directory, of one experiment or of a suite
    #[arg(value_hint = ValueHint::DirPath)]
    dir: PathBuf,
}

/// Compare two results directories: two versions, two machines, two settings
///
/// The exit status is 1 if a check passed in the first directory and fails, is missing or not judged in the second.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate lab compare results/before results/after
  tidegate lab compare results/before results/after -o wide")]
pub(crate) struct Compare {
    /// The first directory
    #[arg(value_hint = ValueHint::DirPath)]
    before: PathBuf,

    /// The second directory
    #[arg(value_hint = ValueHint::DirPath)]
    after: PathBuf,
}

/// A place to run an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Place {
    /// Real daemons, in real time
    Engine,
    /// The simulator, in virtual time
    Sim,
}

/// A suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    /// The experiments of published papers
    Published,
}

/// A part of the whole, in percent.
fn percent(text: &str) -> Result<u64, String> {
    let part: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    // In whole hundredths: phases are cut by percent.
    let hundredths = (1..=100).find(|n: &u32| (f64::from(*n) / 100.0 - part).abs() < 1e-9);
    hundredths
        .map(u64::from)
        .ok_or_else(|| "it must be from 0.01 to 1, in hundredths".to_owned())
}

impl How {
    fn places(&self, otherwise: &[experiment::On]) -> Vec<experiment::On> {
        if self.on.is_empty() {
            return otherwise.to_vec();
        }
        let on = self.on.iter().map(|place| match place {
            Place::Engine => experiment::On::Engine,
            Place::Sim => experiment::On::Sim,
        });
        let mut on: Vec<_> = on.collect();
        on.sort_unstable();
        on.dedup();
        on
    }

    /// Where results go.
    fn out(&self, name: &str) -> PathBuf {
        self.out.clone().unwrap_or_else(|| {
            let now = moment(SystemTime::now()).replace([':', '-'], "");
            Path::new("tidegate-lab").join(format!("{name}-{now}"))
        })
    }
}

impl List {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let all = Entry::all().map_err(|error| failed("cannot list experiments", &error))?;
        let experiments = all.iter().map(Entry::summary);
        session.console.show(&ExperimentList {
            experiments: experiments
                .filter(|summary| summary.published || !self.published)
                .collect(),
        })
    }
}

impl Show {
    fn run(self, session: &Session) -> Result<(), Failure> {
        session.console.show(&find(&self.experiment)?.summary())
    }
}

impl Run {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let on = self.how.places(&[experiment::On::Engine]);
        let found = find(&self.experiment)?;
        if let Some(why) = found.not_on(experiment::On::Engine)
            && on == [experiment::On::Engine]
        {
            return Err(Failure::usage(
                format!("{} cannot be run on real daemons: {why}", found.name()),
                "run it with --on sim",
            ));
        }
        if let Some(why) = found.not_on(experiment::On::Sim)
            && on.contains(&experiment::On::Sim)
        {
            return Err(Failure::usage(
                format!("{} cannot be run in virtual time: {why}", found.name()),
                "run it with --on engine",
            ));
        }
        let out = self.how.out(found.name());
        let mut progress = Progress::new(&session.console)?;
        let course = Course {
            experiment: found.scaled(self.how.scale),
            on,
            repeat: self.how.repeat,
            seed: self.seed,
            max_noise: self.max_noise,
        };
        let end = course.go(&out, &mut progress);
        progress.end();
        let end = end?;
        let written = report(&out)?;
        conclude(session, &out, end, written)
    }
}

impl Suite {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let Which::Published = self.suite;
        let on = self
            .how
            .places(&[experiment::On::Engine, experiment::On::Sim]);
        let out = self.how.out("published");
        let file = SuiteFile {
            format: experiment::store::FORMAT,
            suite: "published".to_owned(),
            experiments: PUBLISHED.map(str::to_owned).to_vec(),
        };
        file.save(&out)
            .map_err(|error| failed("cannot begin the suite", &error))?;
        let mut courses = Vec::new();
        for name in PUBLISHED {
            let found = find(name)?;
            let percent = found.at_least(self.how.scale);
            courses.push(Course {
                experiment: found.scaled(percent),
                on: on.clone(),
                repeat: self.how.repeat,
                seed: 1,
                max_noise: None,
            });
        }
        let mut progress = Progress::new(&session.console)?;
        let mut end = End::Done;
        for (place, course) in courses.iter().enumerate() {
            let later = courses[place + 1..].iter().map(Course::expected);
            progress.later(later.sum::<Result<Duration, Failure>>()?);
            let dir = out.join(course.experiment.name());
            match course.go(&dir, &mut progress) {
                Ok(End::Done) => {}
                Ok(End::Interrupted) => {
                    end = End::Interrupted;
                    break;
                }
                Err(failure) => {
                    progress.end();
                    return Err(failure);
                }
            }
        }
        progress.end();
        let written = report(&out)?;
        conclude(session, &out, end, written)
    }
}

impl Report {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let written = report(&self.dir)?;
        conclude(session, &self.dir, End::Done, written)
    }
}

impl Compare {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let compared = experiment::compare::compare(&self.before, &self.after)
            .map_err(|error| failed("cannot compare", &error))?;
        session.console.show(&compared)?;
        let lost = compared.lost();
        if lost.is_empty() {
            return Ok(());
        }
        let what = format!("{} checks no longer pass", lost.len());
        let problem = lost
            .iter()
            .fold(Problem::new(ProblemCode::Invalid, what), Problem::because);
        Err(Failure::Failed(problem))
    }
}

/// An experiment that is to be run, at its length.
struct Course {
    experiment: Entry,
    on: Vec<experiment::On>,
    repeat: u32,
    seed: u64,
    max_noise: Option<f64>,
}

impl Course {
    fn order<'a>(&'a self, program: &'a Path) -> Order<'a> {
        Order {
            experiment: &self.experiment,
            on: &self.on,
            repeat: self.repeat,
            seed: self.seed,
            program,
            max_noise: self.max_noise,
        }
    }

    fn expected(&self) -> Result<Duration, Failure> {
        Ok(self.order(&this_program()?).expected())
    }

    /// Makes its runs, those that are not there yet.
    fn go(&self, out: &Path, progress: &mut Progress) -> Result<End, Failure> {
        let program = this_program()?;
        let begun = Directory::begin(out, &self.experiment, self.seed, &self.on, self.repeat);
        let name = self.experiment.name();
        let mut directory = begun.map_err(|error| failed(format!("cannot run {name}"), &error))?;
        progress.of(name, out);
        runner::run(&self.order(&program), &mut directory, progress)
            .map_err(|error| failed(format!("cannot run {name}"), &error))
    }
}

fn find(word: &str) -> Result<Entry, Failure> {
    let found = Entry::find(word);
    match found.map_err(|error| failed(format!("cannot read experiment {word}"), &error))? {
        Some(found) => Ok(found),
        None => Err(Failure::usage(
            format!("there is no experiment `{word}`, and no such file"),
            "see `tidegate lab list`",
        )),
    }
}

/// The program whose daemons are measured: this one.
fn this_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure::io("cannot find this program", &error))
}

fn report(dir: &Path) -> Result<page::Written, Failure> {
    page::write(dir).map_err(|error| failed("cannot write the report", &error))
}

/// Shows what came out, and fails if it is not what was expected.
fn conclude(
    session: &Session,
    out: &Path,
    end: End,
    written: page::Written,
) -> Result<(), Failure> {
    let console = &session.console;
    let held = written.holds();
    let problem = outcome(out, end, &written);
    let all = written.findings;
    match <[Findings; 1]>::try_from(all) {
        Ok([one]) => console.show(&one)?,
        Err(several) => console.show(&FindingsList {
            experiments: several,
        })?,
    }
    console.say(&format!("report: {}", written.html.display()));
    match (end, held) {
        (End::Done, true) => Ok(()),
        _ => Err(Failure::Failed(problem)),
    }
}

/// What is to be said of results that are not what was expected, or not whole.
fn outcome(out: &Path, end: End, written: &page::Written) -> Problem {
    let all = &written.findings;
    if end == End::Interrupted {
        let there: usize = all
            .iter()
            .flat_map(|one| &one.stages)
            .map(|stage| stage.runs.len())
            .sum();
        return Problem::new(
            ProblemCode::Stopping,
            "interrupted before all runs were made",
        )
        .because(format!("{there} runs are stored in {}", out.display()))
        .remedy(format!(
            "the same command with --out {} resumes",
            out.display()
        ));
    }
    let tallies: Vec<String> = all
        .iter()
        .filter(|findings| !findings.holds())
        .map(|findings| format!("{}: {}", findings.experiment.name, tally(findings)))
        .collect();
    let says = match tallies.is_empty() {
        true => "not all experiments were run".to_owned(),
        false => tallies.join("; "),
    };
    let mut problem = Problem::new(ProblemCode::Invalid, says);
    for findings in all {
        let failed = findings
            .checks
            .iter()
            .filter(|check| check.verdict == Verdict::Fail);
        for check in failed {
            problem = problem.because(format!(
                "{}, {}: {} is {}, expected {}",
                findings.experiment.name,
                place(check.on),
                check.what,
                came_to(check),
                check.bar
            ));
        }
        for says in &findings.problems {
            let name = &findings.experiment.name;
            problem = problem.because(format!("{name}: a run could not be made: {says}"));
        }
        if findings.missing > 0 {
            let (name, missing) = (&findings.experiment.name, findings.missing);
            problem = problem.because(format!("{name}: {missing} runs are missing"));
        }
    }
    for name in &written.unbegun {
        problem = problem.because(format!("{name}: nothing was run yet"));
    }
    problem.remedy(format!("see {}", out.join("report.html").display()))
}

/// A failure of the lab's, with all that it says of why.
fn failed(what: impl Into<String>, error: &anyhow::Error) -> Failure {
    let problem = Problem::new(ProblemCode::Internal, what);
    Failure::Failed(error.chain().fold(problem, Problem::because))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_a_part_in_hundredths() {
        assert_eq!(percent("0.1"), Ok(10));
        assert_eq!(percent("0.29"), Ok(29));
        assert_eq!(percent("1"), Ok(100));
        for wrong in ["0", "1.5", "0.005", "10%", "-1"] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn places_are_named_once_and_the_default_holds_where_none_is() {
        let how = |on: Vec<Place>| How {
            on,
            repeat: 1,
            scale: 100,
            out: None,
        };
        let (engine, sim) = (experiment::On::Engine, experiment::On::Sim);
        assert_eq!(how(vec![]).places(&[engine]), [engine]);
        let both = how(vec![Place::Sim, Place::Engine, Place::Sim]);
        assert_eq!(both.places(&[engine]), [engine, sim]);
    }
}
