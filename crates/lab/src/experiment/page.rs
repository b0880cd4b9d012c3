//! Writes findings as a self-contained HTML page, and the same tables as Markdown.
//!
//! [`write()`] does it for a results directory or for a suite of them. `content.rs` says what is in a report, `charts.rs` and
//! `ab_charts.rs` what is drawn; `html.rs` and `markdown.rs` render it.
//!
//! # Always true
//! - What failed stands first.
//! - The page loads nothing and runs nothing: no script, no font, no picture from elsewhere.

mod ab_charts;
mod charts;
mod content;
mod document;
mod html;
mod markdown;
mod method;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::directory::{self, write as write_file};
use super::findings::ab_test::AbResults;
use super::findings::study::StudyResults;
use super::findings::{Check, Findings, Loaded, Verdict};
use super::{Directory, On};
pub(in crate::experiment) use crate::draw::Picture;
use crate::draw::{fine, label};
use crate::statistics::Spread;

/// What was written.
#[derive(Clone, Debug)]
pub struct Written {
    /// The page.
    pub html: PathBuf,
    /// The tables as Markdown.
    pub markdown: PathBuf,
    /// The findings of each experiment.
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

/// One experiment on a page: what was found, its charts, and where its files are.
struct Chapter {
    findings: Findings,
    pictures: Vec<Picture>,
    /// The directory of its files, from the page's; empty if it is the same.
    base: String,
}

impl Chapter {
    /// Of the results in a directory.
    fn of(place: &Path, base: String) -> Result<Chapter> {
        if let Some(results) = StudyResults::open(place)? {
            return Ok(Chapter {
                findings: results.findings(),
                pictures: results.pictures(),
                base,
            });
        }
        let (findings, pictures) = match AbResults::open(place)? {
            Some(results) => {
                let findings = results.findings();
                let pictures = ab_charts::of(&results, &findings.measured);
                (findings, pictures)
            }
            None => {
                let loaded = Loaded::read(place)?;
                let findings = Findings::of(&loaded);
                let pictures = charts::of(&loaded, &findings);
                (findings, pictures)
            }
        };
        Ok(Chapter {
            findings,
            pictures,
            base,
        })
    }
}

/// Judges the results in a directory, or a suite's, and writes the report again.
///
/// # Errors
/// It holds no results, or the report cannot be written.
pub fn write(path: &Path) -> Result<Written> {
    let (title, places) = directory::experiments(path)?;
    let (mut chapters, mut unbegun) = (Vec::new(), Vec::new());
    for (name, place) in places {
        // One that a suite had not begun when it was interrupted.
        if title.is_some() && Directory::open(&place)?.is_none() {
            unbegun.push(name);
            continue;
        }
        let base = match title {
            Some(_) => format!("{name}/"),
            None => String::new(),
        };
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
    let document = content::document(title.as_deref(), &chapters);
    for (path, text) in [
        (&written.html, html::page(&document)),
        (&written.markdown, markdown::page(&document)),
    ] {
        write_file(path, |file| Ok(file.write_all(text.as_bytes())?))?;
    }
    Ok(written)
}

/// A figure with the range of its repeats: `1.08 (1.05 to 1.1)`.
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

/// A figure, and the range of its repeats if they differ.
fn parts(spread: Option<Spread>, unit: &str, label: fn(f64) -> String) -> (String, Option<String>) {
    let Some(spread) = spread else {
        return ("-".to_owned(), None);
    };
    let (low, high) = (label(spread.low), label(spread.high));
    let range = (low != high).then(|| format!("{low} to {high}"));
    (format!("{}{unit}", label(spread.median)), range)
}

/// How many repeats pass alone, where not all do.
fn repeats(check: &Check) -> Option<String> {
    let (passed, of) = (check.passed, check.of);
    (of > 1 && passed < of).then(|| format!("{passed} of {of} repeats pass"))
}

/// A check's figure, with how many repeats pass alone where not all do.
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

/// How many checks passed, failed and were not judged.
#[must_use]
pub fn tally(findings: &Findings) -> String {
    let count = |verdict| findings.count(verdict);
    let all = findings.checks.len();
    let mut text = format!("{} of {all} checks passed", count(Verdict::Pass));
    for (verdict, says) in [
        (Verdict::Fail, "failed"),
        (Verdict::NotJudged, "not judged"),
    ] {
        if count(verdict) > 0 {
            text += &format!(", {} {says}", count(verdict));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::directory::Suite;
    use crate::experiment::fixtures::{ab_results, scenario, stored};
    use crate::experiment::store::{FORMAT, Late};

    fn between<'a>(text: &'a str, open: &'static str) -> impl Iterator<Item = &'a str> {
        let rest = text.split(open).skip(1);
        rest.filter_map(|rest| rest.split('"').next())
    }

    #[test]
    fn a_suites_report_has_a_section_for_each_experiment_and_every_link_leads_somewhere() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let names = ["sioc-1", "sioc-2", "million-iops", "compare-scenarios"];
        for name in &names[..2] {
            let experiment = scenario(name, 1);
            stored(
                &scratch.path().join(name),
                &experiment,
                On::Sim,
                1,
                |_, _, _| (),
            );
        }
        for name in &names[2..] {
            ab_results(&scratch.path().join(name), name, &[1.0, 0.9, 0.5, 0.1]);
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
        assert!(!written.holds(), "what was not run does not pass");
        let page = std::fs::read_to_string(&written.html).expect("it is there");
        assert_eq!(page.matches("<h2>").count(), names.len());
        for link in between(&page, "href=\"") {
            match link.strip_prefix('#') {
                Some(id) => assert!(page.contains(&format!("id=\"{id}\"")), "{link}"),
                None => assert!(scratch.path().join(link).exists(), "{link}"),
            }
        }
        for tag in [
            "table", "section", "figure", "div", "ul", "li", "tr", "td", "th", "dl", "svg",
        ] {
            let opened = page.matches(&format!("<{tag}>")).count()
                + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        let summary = std::fs::read_to_string(&written.markdown).expect("it is there");
        let mut columns = 0;
        for line in summary.lines() {
            let bars = line.replace("\\|", "").matches('|').count();
            let here = if line.starts_with('|') { bars } else { 0 };
            assert!(columns == 0 || here == 0 || here == columns, "{line}");
            columns = here;
        }
        for name in names {
            assert!(summary.contains(&format!("\n## {name}\n")), "{name}");
        }
    }

    #[test]
    fn a_machine_that_stalled_was_busy_or_full_is_reported() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        stored(
            scratch.path(),
            &scenario("sioc-1", 1),
            On::Sim,
            1,
            |_, _, _| (),
        );
        let mut findings = Findings::read(scratch.path()).expect("it is there");
        findings.machine.cpus = 2;
        findings.stages[0].on = On::Engine;
        for (own, foreign, most_us, says) in [
            (90.0, 5.0, 0, ""),
            (90.0, 60.0, 0, "The machine was not quiet. In 2 of 2 runs"),
            (185.0, 5.0, 0, "The processors were full in 2 of 2 runs"),
            (90.0, 5.0, 41_000, "The machine stalled in 2 of 2 runs"),
        ] {
            for made in &mut findings.stages[0].runs {
                made.busy.own_percent = own;
                made.busy.foreign_percent = foreign;
                made.late = Some(Late {
                    mean_us: most_us / 400,
                    most_us,
                });
            }
            let all = method::disturbed(&[&findings]).join("\n");
            assert!(
                all.starts_with(says) && all.is_empty() == says.is_empty(),
                "{all}"
            );
            assert_eq!(all.contains("up to 41 ms late"), most_us > 0, "{all}");
        }
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
