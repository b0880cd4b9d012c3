//! The findings of a results directory: every check with its figure and verdict, and the tables.
//!
//! The simulator's judge is used for all runs. With repeats, a figure is their median, and the verdict is the median's. The
//! number of repeats that pass alone is reported beside it.
//!
//! # Always true
//! - Each of a scenario's checks is there once for each place where it was run.
//! - No figure is rounded before it is judged.

pub mod ab_test;
pub mod agreement;
mod judged;
pub(in crate::experiment) mod study;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tidegate_sim::{Run, Scenario, Variant};

use super::directory::{Directory, MachineSeen, write_json};
use super::series::{Band, Slice, bands, mean_ms, percentile_ms};
use super::store::{Busy, FORMAT, Head, Late, Piece, StoredRun};
use super::study::StudyTable;
use super::summary::{CheckSummary, way_slug};
use super::{Experiment, On, Summary, way_words};
use crate::statistics::{Spread, spread};
use ab_test::{AbResults, Measured};
use agreement::Agreement;
use study::StudyResults;

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The figure is not within the bar.
    Fail,
    /// There is no figure.
    NotJudged,
    /// It is.
    Pass,
}

impl Verdict {
    /// As tables say it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Verdict::Fail => "FAIL",
            Verdict::NotJudged => "not judged",
            Verdict::Pass => "pass",
        }
    }
}

/// A check and its result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// Where it was run; a check of both places against each other has none.
    pub on: Option<On>,
    /// Which figure.
    pub what: String,
    /// What was published, or where the bar is from.
    pub published: String,
    /// What it must be.
    pub bar: String,
    /// The figure's unit, with a space before it.
    pub unit: &'static str,
    /// The figure.
    pub ours: Option<Spread>,
    /// How many of the repeats pass alone.
    #[serde(rename = "held")]
    pub passed: usize,
    /// The number of repeats, with those without a figure.
    pub of: usize,
    /// How it came out.
    pub verdict: Verdict,
    /// Why there is no figure, or what the reader must know.
    pub note: Option<String>,
}

impl Check {
    /// A check without a figure yet.
    fn new(on: Option<On>, summary: CheckSummary, unit: &'static str) -> Check {
        Check {
            on,
            what: summary.what,
            published: summary.published,
            bar: summary.bar,
            unit,
            ours: None,
            passed: 0,
            of: 0,
            verdict: Verdict::NotJudged,
            note: None,
        }
    }

    /// It cannot be judged.
    fn unjudged(self, why: String) -> Check {
        Check {
            note: Some(why),
            ..self
        }
    }

    /// Judges it by the median of `repeats`, or whatever they are called. A repeat without a figure (no number) fails
    /// every bar.
    fn judged(
        self,
        values: &[f64],
        at_least: Option<f64>,
        at_most: Option<f64>,
        repeats: &str,
    ) -> Check {
        if values.is_empty() {
            return self.unjudged("nothing was measured".to_owned());
        }
        let passes = |value: f64| {
            at_least.is_none_or(|least| value >= least) && at_most.is_none_or(|most| value <= most)
        };
        let median = |otherwise: f64| {
            let all = values.iter().map(|&value| match value.is_finite() {
                true => value,
                false => otherwise,
            });
            spread(&all.collect::<Vec<_>>()).is_some_and(|all| passes(all.median))
        };
        let figures = values.iter().filter(|value| value.is_finite());
        let (of, none) = (values.len(), values.len() - figures.clone().count());
        Check {
            ours: spread(values),
            passed: figures.filter(|value| passes(**value)).count(),
            of,
            verdict: match median(f64::MIN) && median(f64::MAX) {
                true => Verdict::Pass,
                false => Verdict::Fail,
            },
            note: (none > 0).then(|| {
                format!("{none} of {of} {repeats} fail, because nothing happened that has a figure")
            }),
            ..self
        }
    }
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Findings {
    /// The form of this file.
    pub format: u32,
    /// What was run.
    pub experiment: Summary,
    /// At which length, in percent.
    pub percent: u64,
    /// How often in every way.
    pub repeat: u32,
    /// Where chances began.
    pub seed: u64,
    /// When.
    pub began: String,
    /// By which Tidegate.
    pub version: String,
    /// On which machine.
    pub machine: MachineSeen,
    /// Every check.
    pub checks: Vec<Check>,
    /// By place: what every disk had.
    pub stages: Vec<Stage>,
    /// What contestants did, of an A/B test.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<Measured>,
    /// Tables of a study.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<StudyTable>,
    /// The two places against each other, where both are there.
    pub agreement: Option<Agreement>,
    /// Runs that could not be made.
    pub problems: Vec<String>,
    /// Runs that are missing yet.
    pub missing: usize,
}

/// What was found in one place.
#[derive(Clone, Debug, Serialize)]
pub struct Stage {
    /// Where.
    pub on: On,
    /// Every run.
    pub runs: Vec<Made>,
    /// By way, phase and disk.
    pub figures: Vec<Figure>,
}

/// A run that was made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Made {
    /// Its file's name without the ending.
    pub file: String,
    /// Its number among the repeats.
    pub repeat: u32,
    /// In which way.
    pub way: String,
    /// When it began.
    pub began: String,
    /// How long it took.
    pub took_s: f64,
    /// How busy the machine was.
    pub busy: Busy,
    /// How late the emulated array was, if there was one.
    pub late: Option<Late>,
    /// Discarded attempts before it.
    pub rejected: usize,
}

impl Made {
    fn of(head: &Head, late: Option<Late>, rejected: usize) -> Made {
        Made {
            file: head.piece.file(),
            repeat: head.piece.repeat,
            way: head.piece.words.clone(),
            began: head.began.clone(),
            took_s: head.took_s,
            busy: head.busy,
            late,
            rejected,
        }
    }
}

/// What disks had in a phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// In which way.
    pub way: String,
    /// In which phase.
    pub phase: String,
    /// Which disk, or which of several hosts together.
    pub disk: String,
    /// I/Os a second.
    pub iops: Option<Spread>,
    /// The part of all I/Os, in percent.
    pub share: Option<Spread>,
    /// Guests' mean latency.
    pub latency_ms: Option<Spread>,
    /// The 99th percentile of it.
    pub latency_p99_ms: Option<Spread>,
    /// Requests that its cache answered, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_ratio: Option<Spread>,
    /// Orders a second, of a shop.
    pub orders: Option<Spread>,
    /// The mean time of an order, of a shop.
    pub order_ms: Option<Spread>,
}

/// The runs of a results directory, as the judge and the charts take them.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Where they are.
    pub directory: Directory,
    /// What was run, at its length.
    pub experiment: Experiment,
    /// By place, way and repeat.
    pub runs: BTreeMap<On, BTreeMap<Variant, BTreeMap<u32, Run>>>,
    made: BTreeMap<On, Vec<Made>>,
    errors: BTreeMap<On, u64>,
}

impl Loaded {
    /// Reads a results directory.
    ///
    /// # Errors
    /// It is none, or a file in it is not what this program writes.
    pub fn read(path: &Path) -> Result<Loaded> {
        let Some(directory) = Directory::open(path)? else {
            bail!(
                "{} holds no results: it has no experiment.json",
                path.display()
            );
        };
        let experiment = directory.experiment()?;
        let scenario = &experiment.scenario;
        let ways: BTreeMap<String, Variant> = (experiment.ways().into_iter())
            .map(|way| (way_slug(scenario, &way), way))
            .collect();
        let mut loaded = Loaded {
            runs: BTreeMap::new(),
            made: BTreeMap::new(),
            errors: BTreeMap::new(),
            experiment: experiment.clone(),
            directory,
        };
        for stored in loaded.directory.runs::<StoredRun>()? {
            let Piece {
                on, repeat, slug, ..
            } = &stored.head.piece;
            let (on, repeat, file) = (*on, *repeat, stored.head.piece.file());
            let Some(way) = ways.get(slug) else {
                bail!("runs/{file}.json is of a way that the experiment does not know");
            };
            let run = stored.run(scenario, way);
            let run = run.with_context(|| format!("runs/{file}.json does not fit"))?;
            *loaded.errors.entry(on).or_default() += stored.errors;
            let made = Made::of(&stored.head, stored.late, stored.rejected.len());
            loaded.made.entry(on).or_default().push(made);
            let ways = loaded.runs.entry(on).or_default();
            ways.entry(way.clone()).or_default().insert(repeat, run);
        }
        Ok(loaded)
    }

    /// The places where something was run.
    pub fn places(&self) -> impl Iterator<Item = On> {
        self.runs.keys().copied()
    }

    /// The runs of one repeat, by their ways.
    fn repeat(&self, on: On, repeat: u32) -> BTreeMap<Variant, Run> {
        let ways = self.runs.get(&on).into_iter().flatten();
        let runs = ways.filter_map(|(way, runs)| Some((way.clone(), runs.get(&repeat)?.clone())));
        runs.collect()
    }

    fn repeats(&self, on: On) -> Vec<u32> {
        let runs = self.runs.get(&on).into_iter().flat_map(BTreeMap::values);
        let repeats: std::collections::BTreeSet<u32> =
            runs.flat_map(BTreeMap::keys).copied().collect();
        repeats.into_iter().collect()
    }
}

impl Findings {
    /// What a results directory comes to, of whichever kind its experiment is.
    ///
    /// # Errors
    /// It holds no results, or a file in it is not what this program writes.
    pub fn read(path: &Path) -> Result<Findings> {
        if let Some(results) = StudyResults::open(path)? {
            return Ok(results.findings());
        }
        match AbResults::open(path)? {
            Some(results) => Ok(results.findings()),
            None => Ok(Findings::of(&Loaded::read(path)?)),
        }
    }

    /// Findings without checks yet.
    fn new(directory: &Directory, experiment: Summary) -> Findings {
        let plan = directory.plan.clone();
        Findings {
            format: FORMAT,
            experiment,
            percent: plan.percent,
            repeat: plan.repeat,
            seed: plan.seed,
            began: plan.began,
            version: plan.version,
            machine: plan.machine,
            checks: Vec::new(),
            stages: Vec::new(),
            measured: Vec::new(),
            tables: Vec::new(),
            agreement: None,
            problems: directory.problems(),
            missing: 0,
        }
    }

    /// The findings of a scenario's runs.
    #[must_use]
    pub fn of(loaded: &Loaded) -> Findings {
        let (plan, experiment) = (&loaded.directory.plan, &loaded.experiment);
        let mut findings = Findings::new(&loaded.directory, experiment.summary());
        for &on in &plan.on {
            if on == On::Engine && experiment.only_simulated().is_some() {
                continue;
            }
            findings.checks.extend(judged::of(loaded, on));
            let made = loaded.made.get(&on).cloned().unwrap_or_default();
            let wanted = experiment.ways_on(on).len() * usize::try_from(plan.repeat).unwrap_or(1);
            findings.missing += wanted.saturating_sub(made.len());
            findings.stages.push(Stage {
                on,
                runs: made,
                figures: figures(loaded, on),
            });
        }
        findings.agreement = agreement::of(loaded);
        let agreement = findings.agreement.iter().flat_map(Agreement::checks);
        findings.checks.extend(agreement);
        findings
    }

    /// So many checks came out so.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.checks
            .iter()
            .filter(|check| check.verdict == verdict)
            .count()
    }

    /// Whether no check failed and every run could be made and is there.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.count(Verdict::Fail) == 0 && self.problems.is_empty() && self.missing == 0
    }

    /// Stores them beside the runs.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        write_json(&path.join("findings.json"), self)
    }
}

/// What every disk had, by way and phase.
fn figures(loaded: &Loaded, on: On) -> Vec<Figure> {
    let scenario = &loaded.experiment.scenario;
    let bands = bands(scenario);
    let mut figures = Vec::new();
    for (way, runs) in loaded.runs.get(&on).into_iter().flatten() {
        for (place, phase) in scenario.phases.iter().enumerate() {
            for band in &bands {
                if asks(band, way, &phase.active) {
                    figures.push(figure(scenario, way, runs, place, band));
                }
            }
        }
    }
    figures
}

/// Whether any of the disks asks for anything then.
pub(super) fn asks(band: &Band, way: &Variant, active: &[bool]) -> bool {
    let there = |disk: &usize| way.alone.as_ref().is_none_or(|alone| alone.contains(disk));
    band.disks.iter().any(|disk| active[*disk] && there(disk))
}

fn figure(
    scenario: &Scenario,
    way: &Variant,
    runs: &BTreeMap<u32, Run>,
    phase: usize,
    band: &Band,
) -> Figure {
    let slice = Slice::settled(scenario, phase);
    let disks = &band.disks;
    let of = |what: &dyn Fn(&Run) -> Option<f64>| {
        let values: Vec<f64> = runs.values().filter_map(what).collect();
        spread(&values)
    };
    let orders = |run: &Run| Some(slice.orders(run, disks)).filter(|orders| !orders.is_empty());
    Figure {
        way: way_words(scenario, way),
        phase: scenario.phases[phase].name.clone(),
        disk: band.name.clone(),
        iops: of(&|run| Some(slice.iops(run, disks))),
        share: of(&|run| Some(slice.share(run, disks))),
        latency_ms: of(&|run| mean_ms(&slice.latencies(run, disks))),
        latency_p99_ms: of(&|run| percentile_ms(&slice.latencies(run, disks), 0.99)),
        hit_ratio: of(&|run| slice.hit_ratio(run, disks)),
        orders: of(&|run| orders(run).map(|orders| slice.rate(orders.len()))),
        order_ms: of(&|run| mean_ms(&orders(run)?)),
    }
}
