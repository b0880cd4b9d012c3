//! Compares two results directories: two revisions, two machines, or two places to run.
//!
//! # Always true
//! - Only what both have is compared. The rest is named and counted.
//! - A check that passed in the first and fails, is missing or not judged in the second is lost. If the two were run in
//!   different places, a check that only one place can judge is not.

use std::path::Path;

use anyhow::{Result, bail};
use serde::Serialize;

use super::On;
use super::directory::{self, Directory};
use super::findings::{Check, Findings, Verdict};
use crate::statistics::Spread;

/// The two, side by side.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Comparison {
    /// The first directory.
    pub before: String,
    /// The second.
    pub after: String,
    /// Checks that both have.
    pub checks: Vec<ComparedCheck>,
    /// Figures of disks, as far as both have them.
    pub figures: Vec<ComparedFigure>,
    /// Checks that only the first has.
    pub only_before: Vec<OneSided>,
    /// Checks that only the second has.
    pub only_after: Vec<OneSided>,
}

/// A check in one of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OneSided {
    /// Of which experiment.
    pub experiment: String,
    /// Which figure.
    pub what: String,
    /// How it came out.
    pub verdict: Verdict,
    /// Whether it passed, and should be there.
    pub lost: bool,
}

/// A check in both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedCheck {
    /// Of which experiment.
    pub experiment: String,
    /// Which figure.
    pub what: String,
    /// What it must be.
    pub bar: String,
    /// Its unit, with a space before it.
    pub unit: &'static str,
    /// It in the first.
    pub before: Option<Spread>,
    /// It in the second.
    pub after: Option<Spread>,
    /// How far the second is from the first, in percent of that.
    pub change_percent: Option<f64>,
    /// How it came out in the first.
    pub verdict_before: Verdict,
    /// How it came out in the second.
    pub verdict_after: Verdict,
    /// Whether it passed in the first, and not in the second.
    pub lost: bool,
}

/// What a disk had in both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedFigure {
    /// Of which experiment.
    pub experiment: String,
    /// In which way, phase, and which disk.
    pub of: String,
    /// I/Os a second in the first.
    pub iops_before: Option<Spread>,
    /// I/Os a second in the second.
    pub iops_after: Option<Spread>,
    /// Mean latency in the first; of an A/B test the median.
    pub latency_before_ms: Option<Spread>,
    /// Mean latency in the second; of an A/B test the median.
    pub latency_after_ms: Option<Spread>,
}

/// Compares the results in two directories; either may be a suite's.
///
/// # Errors
/// One holds no results, or they have nothing in common.
pub fn compare(before: &Path, after: &Path) -> Result<Comparison> {
    let (left, right) = (findings(before)?, findings(after)?);
    let mut comparison = Comparison {
        before: before.display().to_string(),
        after: after.display().to_string(),
        ..Comparison::default()
    };
    for one in &left {
        match same(one, &right) {
            Some(other) => comparison.add(one, other),
            None => comparison.only_before.extend(all_of(one, true)),
        }
    }
    for other in &right {
        if same(other, &left).is_none() {
            comparison.only_after.extend(all_of(other, false));
        }
    }
    if comparison.checks.is_empty() {
        bail!(
            "{} and {} have no check in common",
            before.display(),
            after.display()
        );
    }
    Ok(comparison)
}

/// The findings of a directory, or of each in a suite.
fn findings(path: &Path) -> Result<Vec<Findings>> {
    let (suite, places) = directory::experiments(path)?;
    let mut all = Vec::new();
    for (_, place) in places {
        if suite.is_none() || Directory::open(&place)?.is_some() {
            all.push(Findings::read(&place)?);
        }
    }
    Ok(all)
}

/// The same experiment among others.
fn same<'a>(one: &Findings, others: &'a [Findings]) -> Option<&'a Findings> {
    let mut others = others.iter();
    others.find(|other| other.experiment.name == one.experiment.name)
}

/// The checks of an experiment that the other directory does not have.
fn all_of(findings: &Findings, missed: bool) -> impl Iterator<Item = OneSided> {
    let checks = findings.checks.iter();
    checks.map(move |check| OneSided::of(findings, check, missed))
}

/// Whether two are one check. Where they were run in different places, these are what is compared.
fn alike(one: &Check, other: &Check, common: bool) -> bool {
    one.what == other.what
        && (one.on == other.on || !common && one.on.is_some() == other.on.is_some())
}

/// A check's name, with the place if it is wanted.
fn named(check: &Check, with_place: bool) -> String {
    match check.on {
        Some(on) if with_place => format!("{} ({})", check.what, on.title()),
        _ => check.what.clone(),
    }
}

impl OneSided {
    /// `missed`: it should be in the other, too.
    fn of(findings: &Findings, check: &Check, missed: bool) -> OneSided {
        OneSided {
            experiment: findings.experiment.name.clone(),
            what: named(check, true),
            verdict: check.verdict,
            lost: missed && check.verdict == Verdict::Pass,
        }
    }
}

/// The figures of disks or contestants: where, of what, I/Os a second, and latency.
fn rows(findings: &Findings) -> Vec<(On, String, Option<Spread>, Option<Spread>)> {
    let stages = findings.stages.iter();
    let disks = stages.flat_map(|stage| stage.figures.iter().map(|row| (stage.on, row)));
    let disks = disks.map(|(on, row)| {
        let of = format!("{} {}, {}", row.disk, row.way, row.phase);
        (on, of, row.iops, row.latency_ms)
    });
    let contestants = findings.measured.iter().map(|row| {
        let of = format!("{}, {}: {}", row.contestant, row.sweep, row.point);
        let latency_ms = row.p50_us.map(|us| us.scaled(1e-3));
        (On::Engine, of, row.iops, latency_ms)
    });
    disks.chain(contestants).collect()
}

impl Comparison {
    fn add(&mut self, one: &Findings, other: &Findings) {
        let experiment = &one.experiment.name;
        let places = |findings: &Findings| -> Vec<On> {
            findings.stages.iter().map(|stage| stage.on).collect()
        };
        let (left, right) = (places(one), places(other));
        let common = left.iter().any(|on| right.contains(on));
        for check in &one.checks {
            let mut others = other.checks.iter();
            let Some(theirs) = others.find(|theirs| alike(check, theirs, common)) else {
                self.only_before.push(OneSided::of(one, check, common));
                continue;
            };
            let lost = match common {
                true => theirs.verdict != Verdict::Pass,
                false => theirs.verdict == Verdict::Fail,
            };
            self.checks.push(ComparedCheck {
                experiment: experiment.clone(),
                what: named(check, common && left.len() > 1),
                bar: check.bar.clone(),
                unit: check.unit,
                change_percent: change(check.ours, theirs.ours),
                before: check.ours,
                after: theirs.ours,
                verdict_before: check.verdict,
                verdict_after: theirs.verdict,
                lost: check.verdict == Verdict::Pass && lost,
            });
        }
        let new = |theirs: &&Check| !one.checks.iter().any(|check| alike(check, theirs, common));
        let new = other.checks.iter().filter(new);
        self.only_after
            .extend(new.map(|theirs| OneSided::of(other, theirs, false)));
        let theirs = rows(other);
        for (on, of, iops_before, latency_before_ms) in rows(one) {
            let mut theirs = theirs.iter();
            let same = theirs.find(|row| row.1 == of && (row.0 == on || !common));
            self.figures.extend(same.map(|row| ComparedFigure {
                experiment: experiment.clone(),
                of,
                iops_before,
                iops_after: row.2,
                latency_before_ms,
                latency_after_ms: row.3,
            }));
        }
    }

    /// Checks that passed in the first and do not in the second, a line each with what became of them.
    #[must_use]
    pub fn lost(&self) -> Vec<String> {
        let both = self.checks.iter().filter(|check| check.lost);
        let both = both.map(|check| {
            let word = check.verdict_after.word();
            format!("{}: {}: {word}", check.experiment, check.what)
        });
        let gone = self.only_before.iter().filter(|check| check.lost);
        let gone = gone.map(|check| format!("{}: {}: missing", check.experiment, check.what));
        both.chain(gone).collect()
    }
}

/// How far a figure moved, in percent of where it was.
#[must_use]
pub fn change(before: Option<Spread>, after: Option<Spread>) -> Option<f64> {
    let (before, after) = (before?.median, after?.median);
    let change = (after / before - 1.0) * 100.0;
    change.is_finite().then_some(change)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::directory::Suite;
    use crate::experiment::fixtures::ab_results;
    use crate::experiment::store::FORMAT;

    /// The findings of an A/B test with every check passed.
    fn passed() -> Findings {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let mut findings = ab_results(scratch.path(), "million-iops", &[1.0, 1.0, 0.5]).findings();
        for check in &mut findings.checks {
            check.verdict = Verdict::Pass;
        }
        findings
    }

    fn compared(one: &Findings, other: &Findings) -> Comparison {
        let mut comparison = Comparison::default();
        comparison.add(one, other);
        comparison
    }

    #[test]
    fn a_passed_check_that_fails_is_missing_or_not_judged_is_lost() {
        let before = passed();
        assert!(compared(&before, &before).lost().is_empty());
        for verdict in [Verdict::Fail, Verdict::NotJudged] {
            let mut after = before.clone();
            after.checks[0].verdict = verdict;
            let lost = compared(&before, &after).lost();
            assert_eq!(lost.len(), 1, "{lost:?}");
            assert!(lost[0].ends_with(verdict.word()), "{lost:?}");
            // A check that did not pass before is not lost.
            assert!(compared(&after, &before).lost().is_empty());
        }
        let mut after = before.clone();
        let gone = after.checks.remove(0);
        let comparison = compared(&before, &after);
        assert_eq!(comparison.only_before.len(), 1);
        let lost = comparison.lost();
        assert!(
            lost[0].contains(&gone.what) && lost[0].ends_with("missing"),
            "{lost:?}"
        );
        let back = compared(&after, &before);
        assert_eq!((back.only_after.len(), back.lost().len()), (1, 0));
    }

    #[test]
    fn in_different_places_only_what_fails_is_lost() {
        let before = passed();
        let mut after = before.clone();
        after.stages[0].on = On::Sim;
        for check in &mut after.checks {
            check.on = Some(On::Sim);
        }
        after.checks[0].verdict = Verdict::NotJudged;
        after.checks.pop();
        assert!(compared(&before, &after).lost().is_empty());
        after.checks[1].verdict = Verdict::Fail;
        assert_eq!(compared(&before, &after).lost().len(), 1);
    }

    #[test]
    fn an_experiment_that_a_suite_no_longer_has_is_lost_with_its_passed_checks() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let names = ["million-iops", "filter-overhead"];
        let suite = |place: &str, made: &[&str]| {
            let place = scratch.path().join(place);
            let suite = Suite {
                format: FORMAT,
                suite: "published".into(),
                experiments: names.map(str::to_owned).to_vec(),
            };
            suite.save(&place).expect("it can be written");
            for name in made {
                ab_results(&place.join(name), name, &[1.0, 1.0, 0.5]);
            }
            place
        };
        let (before, after) = (suite("before", &names), suite("after", &names[..1]));
        let comparison = compare(&before, &after).expect("they have one in common");
        let lost = comparison.lost();
        let passed = comparison.only_before.iter();
        let passed = passed.filter(|check| check.verdict == Verdict::Pass);
        assert_eq!(lost.len(), passed.count());
        assert!(!lost.is_empty());
        for line in &lost {
            assert!(line.starts_with("filter-overhead: "), "{line}");
        }
        let back = compare(&after, &before).expect("they have one in common");
        assert!(back.lost().is_empty());
        assert_eq!(back.only_after.len(), comparison.only_before.len());
    }
}
