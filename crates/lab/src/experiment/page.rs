//! Writes findings as a self-contained HTML page, and the same tables as Markdown.
//!
//! [`write()`] does it for a results directory or for a suite of them. `charts.rs` decides what is drawn, `html.rs` and
//! `markdown.rs` how it is laid out; both say the same words.
//!
//! # Always true
//! - What failed stands first.
//! - The page loads nothing and runs nothing: no script, no font, no picture from elsewhere.

mod ab_charts;
mod charts;
mod html;
mod markdown;
mod measured;
mod style;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::directory::{Suite, write as write_file};
use super::findings::ab_test::AbResults;
use super::findings::{Check, Findings, Loaded, Verdict};
use super::{Directory, On, SetUp};
use crate::draw::{fine, label};
use crate::statistics::Spread;

/// What was written.
#[derive(Clone, Debug)]
pub struct Written {
    /// The page.
    pub html: PathBuf,
    /// The tables as Markdown.
    pub markdown: PathBuf,
    /// What they tell, an entry for each experiment.
    pub findings: Vec<Findings>,
    /// Experiments of a suite of which nothing was run yet.
    pub unbegun: Vec<String>,
}

impl Written {
    /// Whether all that was to be run is there, and no check failed.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.unbegun.is_empty() && self.findings.iter().all(Findings::holds)
    }
}

/// Panels that belong together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Picture {
    /// What it is about.
    pub(super) name: String,
    /// What is to be seen, and how to read it.
    pub(super) caption: String,
    /// Its panels.
    pub(super) panels: Vec<String>,
}

/// One experiment on a page: what was found, its charts, and where its files are.
struct Chapter {
    findings: Findings,
    figures: Vec<(On, Vec<Picture>)>,
    agreement: Vec<String>,
    /// The directory of its files, from the page's; empty if it is the same.
    base: String,
}

impl Chapter {
    /// Of the results in a directory.
    fn of(place: &Path, base: String) -> Result<Chapter> {
        if let Some(results) = AbResults::open(place)? {
            let findings = results.findings();
            let pictures = ab_charts::of(&results, &findings.measured);
            return Ok(Chapter {
                figures: vec![(On::Engine, pictures)],
                agreement: Vec::new(),
                findings,
                base,
            });
        }
        let loaded = Loaded::read(place)?;
        let findings = Findings::of(&loaded);
        Ok(Chapter {
            figures: loaded
                .places()
                .map(|on| (on, charts::of(&loaded, on)))
                .collect(),
            agreement: charts::agreement(&findings),
            findings,
            base,
        })
    }
}

/// Judges what a results directory, or a suite's, holds, and writes the report anew.
///
/// # Errors
/// It holds no results, or the report cannot be written.
pub fn write(path: &Path) -> Result<Written> {
    let (title, places) = match Suite::open(path)? {
        Some(suite) => {
            let names = suite.experiments.iter();
            let places: Vec<(String, PathBuf)> = names
                .map(|name| (format!("{name}/"), path.join(name)))
                .collect();
            (Some(suite.suite), places)
        }
        None => (None, vec![(String::new(), path.to_owned())]),
    };
    let (mut chapters, mut unbegun) = (Vec::new(), Vec::new());
    for (base, place) in places {
        // One that a suite had not begun when it was interrupted.
        if title.is_some() && Directory::open(&place)?.is_none() {
            unbegun.push(base.trim_end_matches('/').to_owned());
            continue;
        }
        let chapter = Chapter::of(&place, base)?;
        chapter.findings.save(&place)?;
        chapters.push(chapter);
    }
    if chapters.is_empty() {
        bail!("{} holds no results yet", path.display());
    }
    let written = Written {
        html: path.join("report.html"),
        markdown: path.join("report.md"),
        findings: chapters
            .iter()
            .map(|chapter| chapter.findings.clone())
            .collect(),
        unbegun,
    };
    let title = title.map(|suite| format!("The {suite} experiments"));
    let page = html::page(title.as_deref(), &chapters);
    write_file(&written.html, |file| Ok(file.write_all(page.as_bytes())?))?;
    let text = markdown::page(title.as_deref(), &chapters);
    write_file(&written.markdown, |file| {
        Ok(file.write_all(text.as_bytes())?)
    })?;
    Ok(written)
}

/// A figure with what it was taken from: `1.08 (1.05 to 1.1)`.
#[must_use]
pub fn figure(spread: Option<Spread>, unit: &str) -> String {
    joined(parts(spread, unit, label))
}

fn joined((figure, range): (String, Option<String>)) -> String {
    match range {
        None => figure,
        Some(range) => format!("{figure} ({range})"),
    }
}

/// A figure, and from where to where its repeats are if they differ.
fn parts(spread: Option<Spread>, unit: &str, label: fn(f64) -> String) -> (String, Option<String>) {
    let Some(spread) = spread else {
        return ("-".to_owned(), None);
    };
    let (low, high) = (label(spread.low), label(spread.high));
    let range = (low != high).then(|| format!("{low} to {high}"));
    (format!("{}{unit}", label(spread.median)), range)
}

/// How many repeats would have held alone, where they are not of one mind.
fn repeats(check: &Check) -> Option<String> {
    let of = check.of;
    (of > 1 && check.held < of).then(|| format!("{} of {of} repeats hold", check.held))
}

/// What a check came to, with how many repeats would have held alone where they are not of one mind.
#[must_use]
pub fn came_to(check: &Check) -> String {
    let figure = joined(parts(check.ours, check.unit, fine));
    match repeats(check) {
        None => figure,
        Some(repeats) => format!("{figure}; {repeats}"),
    }
}

/// Where a check was run, in words.
#[must_use]
pub fn place(on: Option<On>) -> &'static str {
    on.map_or("both", On::title)
}

/// So many hold, so many do not, so many are not judged.
#[must_use]
pub fn tally(findings: &Findings) -> String {
    let all = findings.checks.len();
    let mut text = format!("{} of {all} checks hold", findings.count(Verdict::Pass));
    for (verdict, says) in [
        (Verdict::Fail, "do not hold"),
        (Verdict::NotJudged, "could not be judged"),
    ] {
        let count = findings.count(verdict);
        if count > 0 {
            text += &format!(", {count} {says}");
        }
    }
    text
}

/// Who else had more of a processor than this, in percent, while daemons ran, is reported beside the verdict.
const DISTURBED: f64 = 20.0;
/// Above so great a part of all processors, work waits for one now and then.
const FULL: f64 = 0.85;

/// That others had the processors too, or that they were full, where it was so: real daemons that wait for a processor
/// say little of I/O control.
fn disturbed<'a>(all: impl Iterator<Item = &'a Findings>) -> Vec<String> {
    let (mut of, mut others, mut full) = (0, 0, 0);
    let (mut still, mut most_ms) = (0, 0.0_f64);
    for findings in all {
        let most = findings.machine.cpus as f64 * 100.0 * FULL;
        let engine = findings
            .stages
            .iter()
            .filter(|stage| stage.on == On::Engine);
        for made in engine.flat_map(|stage| &stage.runs) {
            let foreign = made.busy.foreign_percent + made.busy.steal_percent;
            of += 1;
            if let Some(late) = made.late.filter(|late| late.stood_still()) {
                still += 1;
                most_ms = most_ms.max(late.most_us as f64 / 1e3);
            }
            others += usize::from(foreign > DISTURBED);
            // An A/B test is to fill its two processors.
            let filled = foreign + made.busy.own_percent > most
                && matches!(findings.experiment.set_up, SetUp::Scenario(_));
            full += usize::from(foreign <= DISTURBED && filled);
        }
    }
    let mut says = Vec::new();
    if still > 0 {
        says.push(format!(
            "The machine stood still during {still} of {of} runs on real daemons: the emulated array answered up to \
             {most_ms:.0} ms late. What does not hold there says nothing of I/O control: run it again."
        ));
    }
    if others > 0 {
        says.push(format!(
            "The machine was not quiet: during {others} of {of} runs on real daemons others had more than \
             {DISTURBED:.0} % of a processor (see the raw data). Run it again on a quiet one before you believe what \
             does not hold."
        ));
    }
    if full > 0 {
        says.push(format!(
            "The processors were full during {full} of {of} runs on real daemons. There they are the bound and not the \
             array, and what does not hold tells of them: a larger machine is needed."
        ));
    }
    says
}

/// How the runs were made: one sentence each.
fn method(findings: &Findings) -> Vec<String> {
    if let SetUp::AbTest(summary) = &findings.experiment.set_up {
        return measured::method(findings, summary);
    }
    let has = |on: On| findings.stages.iter().any(|stage| stage.on == on);
    let mut says = Vec::new();
    if has(On::Engine) {
        says.push(
            "On real daemons: a fresh daemon for each host, set up by its command line; guests of the scenario, over NBD; \
             behind the daemons one modelled array that they share, over NBD, in real time. The array is the bound, not \
             the processor."
                .to_owned(),
        );
    }
    if has(On::Sim) {
        says.push(
            "In virtual time: the same schedulers, governors, guests and array in the simulator; no clock of the machine \
             is read."
                .to_owned(),
        );
    }
    says.push(format!(
        "Length: {} % of the published phases. The guests' own times are as published.",
        findings.percent
    ));
    says.push(
        "Warm-up: each check leaves out the beginning of its phase, as its scenario says; at a part of the length, that \
         part of it."
            .to_owned(),
    );
    says.push(match findings.repeat {
        1 => "Each way was run once: figures have no spread.".to_owned(),
        n => format!(
            "Each way was run {n} times with seeds {} to {}. Ways took turns, and turns at being first. A figure is the \
             median, in brackets from the least to the most; the median is judged.",
            findings.seed,
            findings.seed + u64::from(n) - 1
        ),
    });
    let made = findings.stages.iter().flat_map(|stage| &stage.runs);
    let rejected: usize = made.clone().map(|made| made.rejected).sum();
    if rejected > 0 {
        says.push(format!(
            "{rejected} runs were thrown away and made again, since others had the processors."
        ));
    }
    let engine = findings.stages.iter().find(|stage| stage.on == On::Engine);
    if let Some(stage) = engine {
        let most = |what: fn(&super::store::Busy) -> f64| {
            stage
                .runs
                .iter()
                .map(|made| what(&made.busy))
                .fold(0.0, f64::max)
        };
        says.push(format!(
            "Of all processors, in percent of one: guests, daemons and array had up to {:.0}, other programs up to \
             {:.0}, other machines up to {:.0}. A run whose processors were full tells of them and not of I/O control.",
            most(|busy| busy.own_percent),
            most(|busy| busy.foreign_percent),
            most(|busy| busy.steal_percent)
        ));
    }
    says.push(
        "Lines over time are of the first repeat; latencies by percentile are of all of them together.".to_owned(),
    );
    says.push("Ratios travel, absolute figures do not: quote both with the machine.".to_owned());
    says
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::findings::ab_test::tests::results as contest_results;
    use crate::experiment::store::{FORMAT, Late, StoredRun};
    use crate::experiment::{Experiment, way_words};
    use tidegate_sim::world;

    /// A results directory with every way of an experiment run once, in the simulator, at a hundredth of its length.
    fn results(place: &Path, name: &str) {
        let found = Experiment::find(name).expect("it can be read");
        let experiment = found.expect("it is there").scaled(1);
        let entry = experiment.clone().into();
        let directory = Directory::begin(place, &entry, 1, 1, &[On::Sim], 1);
        let directory = directory.expect("it is empty");
        for way in experiment.ways_on(On::Sim) {
            let run = world::run(&experiment.scenario, &way, 1).expect("it can be modelled");
            let mut stored = StoredRun::of(&experiment.scenario, On::Sim, &run);
            stored.repeat = 1;
            stored.way = crate::experiment::summary::way_slug(&experiment.scenario, &way);
            stored.way_words = way_words(&experiment.scenario, &way);
            directory.keep(&stored).expect("it can be written");
        }
    }

    fn between<'a>(text: &'a str, open: &'static str) -> impl Iterator<Item = &'a str> {
        let rest = text.split(open).skip(1);
        rest.filter_map(|rest| rest.split('"').next())
    }

    #[test]
    fn a_suites_page_has_a_chapter_for_each_experiment_and_every_link_leads_somewhere() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let names = ["sioc-1", "sioc-2", "million-iops", "compare-scenarios"];
        for name in &names[..2] {
            results(&scratch.path().join(name), name);
        }
        for name in &names[2..] {
            let factors = [1.0, 0.9, 0.5, 0.1];
            contest_results(&scratch.path().join(name), name, &factors);
        }
        // One of which nothing was run yet is left out.
        let experiments = [&names[..], &["sioc-3"]].concat();
        let suite = Suite {
            format: FORMAT,
            suite: "published".into(),
            experiments: experiments.into_iter().map(str::to_owned).collect(),
        };
        suite.save(scratch.path()).expect("it can be written");
        let written = write(scratch.path()).expect("it can be written");
        assert_eq!(written.findings.len(), names.len());
        assert_eq!(written.unbegun, ["sioc-3"]);
        assert!(!written.holds(), "what was not run does not hold");
        let page = std::fs::read_to_string(&written.html).expect("it is there");
        assert_eq!(page.matches("<h2>").count(), names.len());
        for link in between(&page, "href=\"") {
            match link.strip_prefix('#') {
                Some(id) => assert!(page.contains(&format!("id=\"{id}\"")), "{link}"),
                None => assert!(scratch.path().join(link).is_file(), "{link}"),
            }
        }
        for tag in [
            "table", "section", "figure", "div", "ul", "ol", "li", "tr", "td", "dl", "svg",
        ] {
            let opened = page.matches(&format!("<{tag}>")).count()
                + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        let summary = std::fs::read_to_string(&written.markdown).expect("it is there");
        let mut columns = 0;
        for line in summary.lines() {
            let here = if line.starts_with('|') {
                line.matches('|').count()
            } else {
                0
            };
            assert!(columns == 0 || here == 0 || here == columns, "{line}");
            columns = here;
        }
        assert_eq!(summary.matches("\n## ").count(), names.len());
    }

    #[test]
    fn a_machine_that_was_not_quiet_or_full_is_told_once() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        results(scratch.path(), "sioc-1");
        let loaded = Loaded::read(scratch.path()).expect("it is there");
        let mut findings = Findings::of(&loaded);
        findings.machine.cpus = 2;
        findings.stages[0].on = On::Engine;
        let mut told = |own_percent, foreign_percent| {
            for made in &mut findings.stages[0].runs {
                made.busy.own_percent = own_percent;
                made.busy.foreign_percent = foreign_percent;
            }
            let says = disturbed([&findings, &findings].into_iter());
            says.iter()
                .map(|says| says[..12].to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(told(90.0, 5.0), [""; 0]);
        assert_eq!(told(90.0, 60.0), ["The machine "]);
        assert_eq!(told(185.0, 5.0), ["The processo"]);
        for made in &mut findings.stages[0].runs {
            made.busy.own_percent = 90.0;
            made.late = Some(Late {
                mean_us: 100,
                most_us: 41_000,
            });
        }
        let says = disturbed(std::iter::once(&findings)).join("\n");
        assert!(
            says.starts_with("The machine stood still during 2 of 2 runs"),
            "{says}"
        );
        assert!(says.contains("up to 41 ms late"), "{says}");
    }

    #[test]
    fn a_figure_says_its_spread_where_it_has_one() {
        let spread = |values: &[f64]| crate::statistics::spread(values);
        assert_eq!(figure(spread(&[1.0]), " %"), "1 %");
        assert_eq!(figure(spread(&[1.0, 1.0]), " %"), "1 %");
        assert_eq!(figure(spread(&[1.0, 3.0, 2.0]), " %"), "2 % (1 to 3)");
        assert_eq!(figure(None, " %"), "-");
    }
}
