//! A results directory: the plan, and every run that has ended.
//!
//! ```text
//! DIR/experiment.json   the plan: scenario, length, machine, versions
//! DIR/runs/*.json       a file for each run that has ended, whole or not there
//! DIR/csv/*.csv         the same by seconds, for a spreadsheet
//! DIR/findings.json     what they come to
//! DIR/report.html, DIR/report.md
//! ```
//! A suite's directory has `suite.json` and such a directory for each of its experiments.
//!
//! # Always true
//! - A file is there whole or not at all: it is written beside its place and renamed.
//! - Runs of one directory are of one scenario at one length. Others are refused.
//! - Runs of one directory are of one program on one machine under one kernel. Others are refused.
//! - A run that could not be made is reported until it is there.

mod maker;

pub use maker::MachineSeen;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::ab_test::store::Block;
pub use super::store::moment;
use super::store::{FORMAT, Piece, StoredRun};
use super::{Entry, Experiment, On};

/// What was to be run, and on what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The form of this file.
    pub format: u32,
    /// What the experiment is called.
    pub name: String,
    /// Its file, a scenario's or an A/B test's.
    pub scenario: String,
    /// The length of its phases, in percent of what the file says.
    pub percent: u64,
    /// Where the first repeat's chances begin; each further one's begin one further on.
    pub seed: u64,
    /// Where it was run.
    pub on: BTreeSet<On>,
    /// How often, in every way.
    pub repeat: u32,
    /// When the first run began.
    pub began: String,
    /// The Tidegate that wrote this.
    pub version: String,
    /// Which program that was: two of one version may differ.
    #[serde(default)]
    pub build: String,
    /// The machine.
    pub machine: MachineSeen,
    /// Runs that could not be made, by their files' names without the ending, and why.
    #[serde(default)]
    pub missed: BTreeMap<String, String>,
}

/// A results directory.
#[derive(Clone, Debug)]
pub struct Directory {
    /// Where.
    pub path: PathBuf,
    /// What is stored there.
    pub plan: Plan,
}

/// Several experiments' results in one directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Suite {
    /// The form of this file.
    pub format: u32,
    /// What the suite is called.
    pub suite: String,
    /// Its experiments, each in the directory of its name.
    pub experiments: Vec<String>,
}

const PLAN: &str = "experiment.json";
const SUITE: &str = "suite.json";

impl Directory {
    /// Makes a results directory, or opens one to go on in it.
    ///
    /// # Errors
    /// It holds another experiment, or the same at another length, or cannot be written.
    pub fn begin(
        path: &Path,
        experiment: &Entry,
        seed: u64,
        on: &[On],
        repeat: u32,
    ) -> Result<Directory> {
        let plan = Plan {
            format: FORMAT,
            name: experiment.name().to_owned(),
            scenario: experiment.text().to_owned(),
            percent: experiment.percent(),
            seed,
            on: on.iter().copied().collect(),
            repeat,
            began: moment(SystemTime::now()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            build: maker::build()?,
            machine: MachineSeen::here(),
            missed: BTreeMap::new(),
        };
        let plan = match Directory::open(path)? {
            None => plan,
            Some(there) => there.joined(plan).with_context(|| {
                let there = path.display();
                format!("{there} holds other results: name another directory with --out")
            })?,
        };
        for dir in ["runs", "csv"] {
            let dir = path.join(dir);
            fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        let directory = Directory {
            path: path.to_owned(),
            plan,
        };
        directory.save()?;
        Ok(directory)
    }

    /// Opens one that is there; none if it is no results directory.
    ///
    /// # Errors
    /// Its plan cannot be read.
    pub fn open(path: &Path) -> Result<Option<Directory>> {
        let plan: Option<Plan> = read(&path.join(PLAN))?;
        Ok(plan.map(|plan| Directory {
            path: path.to_owned(),
            plan,
        }))
    }

    /// Writes the plan anew.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self) -> Result<()> {
        write_json(&self.path.join(PLAN), &self.plan)
    }

    /// The scenario that is stored here, at its length.
    ///
    /// # Errors
    /// It cannot be read any more, or an A/B test is stored here.
    pub fn experiment(&self) -> Result<Experiment> {
        Ok(Experiment::read(&self.plan.scenario)?.scaled(self.plan.percent))
    }

    /// The experiment that is stored here, of whichever kind, at its length.
    ///
    /// # Errors
    /// It cannot be read any more.
    pub fn entry(&self) -> Result<Entry> {
        Ok(Entry::read(&self.plan.scenario)?.scaled(self.plan.percent))
    }

    /// A run's file, whether it is there or not.
    #[must_use]
    pub fn run_path(&self, piece: &Piece) -> PathBuf {
        self.run_file(&piece.file())
    }

    fn run_file(&self, name: &str) -> PathBuf {
        self.path.join("runs").join(format!("{name}.json"))
    }

    /// Stores why something could not be run, until its file is there.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn miss(&mut self, name: &str, why: String) -> Result<()> {
        self.plan.missed.insert(name.to_owned(), why);
        self.save()
    }

    /// Why runs could not be made that are not there yet.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let missed = self.plan.missed.iter();
        let missed = missed.filter(|(name, _)| !self.run_file(name).is_file());
        missed.map(|(_, why)| why.clone()).collect()
    }

    /// Stores a run, with a table of it beside it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn store(&self, run: &impl Stored) -> Result<()> {
        let beside = format!("{}.csv", run.piece().file());
        let table = run.table();
        write(&self.path.join("csv").join(beside), |file| {
            Ok(file.write_all(table.as_bytes())?)
        })?;
        write_json(&self.run_path(run.piece()), run)
    }

    /// A run that is stored; none if it is not.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn run<T: Stored>(&self, piece: &Piece) -> Result<Option<T>> {
        read(&self.run_path(piece))
    }

    /// All runs that are stored here, in the order of their files' names.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn runs<T: Stored>(&self) -> Result<Vec<T>> {
        let mut paths = stored_in(&self.path.join("runs"))?;
        paths.sort();
        let mut runs = Vec::new();
        for path in paths {
            runs.extend(read::<T>(&path)?);
        }
        Ok(runs)
    }
}

/// A run as a file, of either kind of experiment.
pub trait Stored: Serialize + DeserializeOwned {
    /// Which run it is.
    fn piece(&self) -> &Piece;
    /// The same for a spreadsheet.
    fn table(&self) -> String;
}

impl Stored for StoredRun {
    fn piece(&self) -> &Piece {
        &self.head.piece
    }

    fn table(&self) -> String {
        csv(self)
    }
}

impl Stored for Block {
    fn piece(&self) -> &Piece {
        &self.head.piece
    }

    fn table(&self) -> String {
        self.csv()
    }
}

impl Directory {
    /// This directory's plan with more repeats, or other places to run it. A directory without runs may be of any program.
    fn joined(self, with: Plan) -> Result<Plan> {
        let there = self.plan;
        if there.scenario != with.scenario {
            bail!("they are of {}, as its file was then", there.name);
        }
        if (there.percent, there.seed) != (with.percent, with.seed) {
            bail!(
                "they are at {} % of the full length with seed {}",
                there.percent,
                there.seed
            );
        }
        let stored = !stored_in(&self.path.join("runs"))?.is_empty();
        if stored && let Some(says) = maker::differs(&there, &with) {
            bail!("they were made {says}; figures of both would not be of one thing");
        }
        let own = match stored {
            true => there.clone(),
            false => with.clone(),
        };
        Ok(Plan {
            on: there.on.union(&with.on).copied().collect(),
            repeat: there.repeat.max(with.repeat),
            missed: there.missed,
            ..own
        })
    }
}

/// The files of the runs that are stored, in no order.
fn stored_in(runs: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(runs) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.and_then(Iterator::collect::<std::io::Result<Vec<_>>>),
    };
    let entries = entries.with_context(|| format!("cannot read {}", runs.display()))?;
    let paths = entries.into_iter().map(|entry| entry.path());
    let json = paths.filter(|path| path.extension().is_some_and(|end| end == "json"));
    Ok(json.collect())
}

impl Suite {
    /// Opens a suite's directory; none if it is none.
    ///
    /// # Errors
    /// Its list cannot be read.
    pub fn open(path: &Path) -> Result<Option<Suite>> {
        read(&path.join(SUITE))
    }

    /// Makes a suite's directory.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
        write_json(&path.join(SUITE), self)
    }
}

/// The directories of experiments, by name.
pub(super) type Places = Vec<(String, PathBuf)>;

/// The name of a suite, if it is one, and its experiments' directories; else the directory itself.
///
/// # Errors
/// The suite's list cannot be read.
pub(super) fn experiments(path: &Path) -> Result<(Option<String>, Places)> {
    let Some(suite) = Suite::open(path)? else {
        return Ok((None, vec![(String::new(), path.to_owned())]));
    };
    let places = suite.experiments.into_iter();
    let places = places.map(|name| (name.clone(), path.join(name)));
    Ok((Some(suite.suite), places.collect()))
}

/// What a run did in every second: a line each.
fn csv(stored: &StoredRun) -> String {
    let bins = usize::try_from(1_000 / stored.bin_ms.max(1))
        .unwrap_or(1)
        .max(1);
    let mut text = String::from("second");
    for disk in &stored.disks {
        let name = &disk.name;
        text +=
            &format!(",{name}_iops,{name}_bytes_per_s,{name}_latency_mean_ms,{name}_orders_per_s");
    }
    for host in &stored.hosts {
        text += &format!(",{0}_window,{0}_in_flight", host.name);
    }
    text += ",datastore_iops,datastore_latency_mean_ms,datastore_outstanding\n";
    let mut from: Vec<usize> = vec![0; stored.disks.len()];
    for second in 0..stored.datastore.ios.len() / bins {
        let here = second * bins..(second + 1) * bins;
        let sum = |column: &[u64]| -> u64 { column.get(here.clone()).unwrap_or(&[]).iter().sum() };
        let last = |column: &[u64]| column.get(here.end - 1).copied().unwrap_or(0);
        text += &second.to_string();
        for (disk, from) in stored.disks.iter().zip(&mut from) {
            let ios = sum(&disk.ios);
            let to = *from + usize::try_from(ios).unwrap_or(0);
            let took = disk.latencies_us.get(*from..to).unwrap_or(&[]);
            let sum_us: u64 = took.iter().map(|took| u64::from(*took)).sum();
            let orders: u32 = disk.orders.get(here.clone()).unwrap_or(&[]).iter().sum();
            *from = to;
            let mean = mean_ms(sum_us * 1_000, ios);
            text += &format!(",{ios},{},{mean},{orders}", sum(&disk.bytes));
        }
        for host in &stored.hosts {
            let window = host.window.get(here.end - 1).copied().unwrap_or(0.0);
            text += &format!(",{window:.2},{}", last(&host.in_flight));
        }
        let store = &stored.datastore;
        let ios = sum(&store.ios);
        let mean = mean_ms(sum(&store.latency_ns), ios);
        text += &format!(",{ios},{mean},{}\n", last(&store.outstanding));
    }
    text
}

/// A mean, or nothing of nothing.
fn mean_ms(sum_ns: u64, count: u64) -> String {
    match count {
        0 => String::new(),
        count => format!("{:.3}", sum_ns as f64 / count as f64 / 1e6),
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
    };
    let read = serde_json::from_slice(&text);
    read.map(Some)
        .with_context(|| format!("{} is not what this program writes", path.display()))
}

/// Writes a value as JSON, whole or not at all.
///
/// # Errors
/// It cannot be written.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    write(path, |file| {
        serde_json::to_writer(&mut *file, value)?;
        Ok(file.write_all(b"\n")?)
    })
}

/// Writes a file, whole or not at all.
///
/// # Errors
/// It cannot be written.
pub(super) fn write(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> Result<()>,
) -> Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let written = File::create(&beside)
        .map_err(anyhow::Error::from)
        .and_then(|file| {
            let mut file = BufWriter::new(file);
            fill(&mut file)?;
            let file = file.into_inner().context("cannot write its end")?;
            file.sync_all()?;
            Ok(fs::rename(&beside, path)?)
        });
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::fixtures::{entry, scenario, simulated};
    use tidegate_sim::{Policy, Variant};

    /// Stores a simulated run of an experiment.
    fn store(directory: &Directory) -> StoredRun {
        let scenario = scenario("sioc-1", 1).scenario;
        let stored = simulated(&scenario, On::Sim, &Variant::of(Policy::Ours), 1);
        directory.store(&stored).expect("it can be written");
        stored
    }

    #[test]
    fn another_program_or_machine_does_not_resume_stored_runs() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let experiment = entry("sioc-1", 1);
        let begin = || Directory::begin(scratch.path(), &experiment, 1, &[On::Sim], 1);
        let own = begin().expect("it is empty");
        store(&own);
        assert_eq!(begin().expect("it is the same").plan, own.plan);
        type Change = fn(&mut Plan);
        let others: [(Change, &str); 5] = [
            (|plan| plan.version = "0.0.7".into(), "Tidegate 0.0.7"),
            (|plan| plan.build = "feed".into(), "(build feed) and not"),
            (|plan| plan.machine.processor = "Z80".into(), "on Z80"),
            (|plan| plan.machine.cpus = 999, "with 999 processors"),
            (|plan| plan.machine.kernel = "2.4".into(), "under Linux 2.4"),
        ];
        for (change, says) in others {
            let mut other = own.clone();
            change(&mut other.plan);
            other.save().expect("it can be written");
            let error = format!("{:#}", begin().expect_err("it is another"));
            assert!(error.contains(says), "{error}");
            assert!(error.contains("name another directory"), "{error}");
        }
        // Without stored runs the program may be another.
        fs::remove_dir_all(scratch.path().join("runs")).expect("it is there");
        let anew = begin().expect("nothing is stored").plan;
        assert_eq!(
            (anew.machine.kernel, anew.build),
            (own.plan.machine.kernel, own.plan.build)
        );
    }

    #[test]
    fn a_run_is_stored_with_a_line_for_every_second() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let directory = Directory::begin(scratch.path(), &entry("sioc-1", 1), 1, &[On::Sim], 1);
        let directory = directory.expect("it is empty");
        let stored = store(&directory);
        let runs: Vec<StoredRun> = directory.runs().expect("it can be read");
        assert_eq!(runs, [stored]);
        let path = scratch.path().join("csv/sim-01-managed.csv");
        let table = fs::read_to_string(path).expect("it is there");
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 1 + 6, "{table}");
        assert!(lines[0].starts_with("second,vm1_iops,vm1_bytes_per_s,"));
        let columns = |line: &str| line.split(',').count();
        assert!(lines.iter().all(|line| columns(line) == columns(lines[0])));
        let left = fs::read_dir(scratch.path().join("runs")).expect("it is there");
        assert_eq!(left.count(), 1, "nothing is left beside it");
    }
}
