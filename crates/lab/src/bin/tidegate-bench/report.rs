//! The report of the bench: figures, target ratios, a table and JSON.
//!
//! # Always true
//! - A check without enough quiet rounds is neither passed nor forgiven: it is void, and void does not pass. Enough are
//!   half of those wanted and no fewer than three; all, where fewer than three are wanted.

use std::fmt;

use serde::Serialize;

use tidegate_lab::experiment::directory::MachineSeen;
use tidegate_lab::machine::Rejected;
use tidegate_lab::measure::Figures;
use tidegate_lab::statistics::{self, Spread};

/// One contestant's quiet trials of one case, in the order of the rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Series {
    /// `vhost null`, `NBD null` ...
    pub(crate) scenario: String,
    /// `QD 32` ...
    pub(crate) case: String,
    /// Who was measured.
    pub(crate) contestant: String,
    /// One per quiet round.
    pub(crate) trials: Vec<Figures>,
    /// So many were wanted.
    pub(crate) wanted: usize,
    /// Trials of this contestant that were thrown away.
    pub(crate) rejected: Rejected,
}

impl Series {
    /// One figure of every trial.
    #[must_use]
    pub(crate) fn each(&self, figure: fn(&Figures) -> f64) -> Vec<f64> {
        self.trials.iter().map(figure).collect()
    }

    /// The spread of one figure.
    #[must_use]
    pub(crate) fn spread(&self, figure: fn(&Figures) -> f64) -> Option<Spread> {
        statistics::spread(&self.each(figure))
    }
}

/// What a ratio must be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Rule {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Rule {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bound) => write!(f, ">= {bound}"),
            Self::AtMost(bound) => write!(f, "<= {bound}"),
        }
    }
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The median keeps the rule.
    Pass,
    /// It does not.
    Fail,
    /// Nothing was measured, for want of a program or of quiet.
    Void,
}

/// A ratio with the rule it must keep.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    /// What is claimed, in words.
    pub(crate) claim: String,
    /// The bound.
    pub(crate) rule: Rule,
    /// The ratio, round by round.
    pub(crate) ratio: Option<Spread>,
    /// How it came out.
    pub(crate) verdict: Verdict,
    /// Why it is void, where too few rounds were quiet.
    pub(crate) why: Option<String>,
}

impl Check {
    /// Judges a ratio that was to be taken of so many rounds.
    #[must_use]
    pub(crate) fn new(
        claim: impl Into<String>,
        rule: Rule,
        ratio: Option<Spread>,
        wanted: usize,
    ) -> Self {
        let few = ratio.filter(|spread| !statistics::enough(spread.count, wanted));
        let verdict = match ratio {
            None => Verdict::Void,
            Some(_) if few.is_some() => Verdict::Void,
            Some(spread) if rule.holds(spread.median) => Verdict::Pass,
            Some(_) => Verdict::Fail,
        };
        let why = few.map(|spread| {
            format!(
                "{} quiet blocks of {wanted} wanted: {} are the least to judge by",
                spread.count,
                statistics::least_of(wanted)
            )
        });
        Self {
            claim: claim.into(),
            rule,
            ratio,
            verdict,
            why,
        }
    }
}

/// Everything one run found.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Where.
    pub(crate) machine: MachineSeen,
    /// The figures.
    pub(crate) series: Vec<Series>,
    /// The judgements.
    pub(crate) checks: Vec<Check>,
    /// What could not be measured, and why.
    pub(crate) notes: Vec<String>,
}

impl Report {
    /// The series of a contestant in a case.
    #[must_use]
    pub(crate) fn find(&self, scenario: &str, case: &str, contestant: &str) -> Option<&Series> {
        self.series.iter().find(|series| {
            (
                series.scenario.as_str(),
                series.case.as_str(),
                series.contestant.as_str(),
            ) == (scenario, case, contestant)
        })
    }

    /// The round-by-round ratio of a figure between two contestants of one case.
    #[must_use]
    pub(crate) fn ratio(
        &self,
        scenario: &str,
        case: &str,
        ours: &str,
        theirs: &str,
        figure: fn(&Figures) -> f64,
    ) -> Option<Spread> {
        let ours = self.find(scenario, case, ours)?.each(figure);
        let theirs = self.find(scenario, case, theirs)?.each(figure);
        statistics::ratio(&ours, &theirs)
    }

    /// Judges a ratio that was taken of a case's rounds.
    pub(crate) fn judge(
        &mut self,
        scenario: &str,
        case: &str,
        claim: impl Into<String>,
        rule: Rule,
        ratio: Option<Spread>,
    ) {
        let of = |series: &&Series| series.scenario == scenario && series.case == case;
        let wanted = self
            .series
            .iter()
            .find(of)
            .map_or(0, |series| series.wanted);
        self.checks.push(Check::new(claim, rule, ratio, wanted));
    }

    /// Whether every check passed; one that is void did not.
    #[must_use]
    pub(crate) fn passed(&self) -> bool {
        self.checks
            .iter()
            .all(|check| check.verdict == Verdict::Pass)
    }

    /// Trials thrown away.
    #[must_use]
    pub(crate) fn rejected(&self) -> Rejected {
        let each = self.series.iter().map(|series| series.rejected);
        each.fold(Rejected::default(), |sum, one| Rejected {
            others: sum.others + one.others,
            steal: sum.steal + one.steal,
        })
    }

    /// The figures as an aligned table: medians, with the extremes of IOPS.
    #[must_use]
    pub(crate) fn table(&self) -> String {
        let head = [
            "scenario",
            "case",
            "contestant",
            "IOPS",
            "min..max",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "%/k",
            "client %",
            "apart ns",
            "trials",
            "rejected",
        ];
        let mut rows = vec![head.map(String::from).to_vec()];
        rows.extend(self.series.iter().map(row));
        align(&rows, 3)
    }

    /// The checks as an aligned table.
    #[must_use]
    pub(crate) fn verdicts(&self) -> String {
        let mut rows = vec![
            ["", "claim", "rule", "median", "95 % interval", "min..max"]
                .map(String::from)
                .to_vec(),
        ];
        for check in &self.checks {
            let verdict = match check.verdict {
                Verdict::Pass => "pass",
                Verdict::Fail => "FAIL",
                Verdict::Void => "void",
            };
            let show = |figure: fn(Spread) -> String| check.ratio.map_or("-".into(), figure);
            rows.push(vec![
                verdict.into(),
                match &check.why {
                    Some(why) => format!("{} ({why})", check.claim),
                    None => check.claim.clone(),
                },
                check.rule.to_string(),
                show(|ratio| format!("{:.3}", ratio.median)),
                show(|ratio| range(ratio.interval[0], ratio.interval[1])),
                show(|ratio| range(ratio.low, ratio.high)),
            ]);
        }
        align(&rows, 2)
    }
}

fn row(series: &Series) -> Vec<String> {
    let median = |figure: fn(&Figures) -> f64| series.spread(figure).map(|spread| spread.median);
    let show = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
    };
    let iops = series.spread(|figures| figures.iops);
    vec![
        series.scenario.clone(),
        series.case.clone(),
        series.contestant.clone(),
        iops.map_or_else(|| "-".into(), |spread| kilo(spread.median)),
        iops.map_or_else(
            || "-".into(),
            |spread| format!("{}..{}", kilo(spread.low), kilo(spread.high)),
        ),
        show(median(|figures| figures.p50_us), 1),
        show(median(|figures| figures.p99_us), 1),
        show(median(|figures| figures.p999_us), 1),
        show(median(|figures| figures.cpu_percent_per_kiops), 3),
        show(median(|figures| figures.client_percent), 0),
        show(median(|figures| figures.apart_ns), 0),
        series.trials.len().to_string(),
        series.rejected.total().to_string(),
    ]
}

fn kilo(value: f64) -> String {
    if value >= 1e6 {
        format!("{:.2} M", value / 1e6)
    } else {
        format!("{:.1} k", value / 1e3)
    }
}

fn range(from: f64, to: f64) -> String {
    format!("{from:.3}..{to:.3}")
}

/// Pads columns to equal width: the first `left` to the left, figures to the right.
fn align(rows: &[Vec<String>], left: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(String::len)
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let cells = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, width))| {
                if column < left {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let series = |contestant: &str, iops: [f64; 3]| Series {
            scenario: "vhost null".into(),
            case: "QD 32".into(),
            contestant: contestant.into(),
            trials: iops
                .map(|iops| Figures {
                    iops,
                    ..Figures::default()
                })
                .to_vec(),
            wanted: 3,
            rejected: Rejected {
                steal: 1,
                ..Rejected::default()
            },
        };
        Report {
            series: vec![
                series("ours", [2e6, 4e6, 2e6]),
                series("theirs", [1e6, 2e6, 1e6]),
            ],
            ..Report::default()
        }
    }

    #[test]
    fn a_check_passes_by_its_median() {
        let report = report();
        let ratio = report.ratio("vhost null", "QD 32", "ours", "theirs", |figures| {
            figures.iops
        });
        assert_eq!(
            Check::new("faster", Rule::AtLeast(1.8), ratio, 3).verdict,
            Verdict::Pass
        );
        assert_eq!(
            Check::new("faster", Rule::AtLeast(2.1), ratio, 3).verdict,
            Verdict::Fail
        );
        assert_eq!(
            Check::new("cheaper", Rule::AtMost(2.0), ratio, 3).verdict,
            Verdict::Pass
        );
    }

    #[test]
    fn what_was_not_measured_does_not_pass() {
        let mut report = report();
        let ratio = report.ratio("vhost null", "QD 32", "ours", "nobody", |figures| {
            figures.iops
        });
        report
            .checks
            .push(Check::new("faster", Rule::AtLeast(1.0), ratio, 3));
        assert_eq!(report.checks[0].verdict, Verdict::Void);
        assert!(!report.passed());
    }

    #[test]
    fn one_quiet_round_of_many_is_void_and_says_so() {
        let mut report = report();
        for series in &mut report.series {
            series.wanted = 7;
        }
        let iops = |figures: &Figures| figures.iops;
        let ratio = report.ratio("vhost null", "QD 32", "ours", "theirs", iops);
        report.judge("vhost null", "QD 32", "faster", Rule::AtLeast(1.8), ratio);
        assert_eq!(report.checks[0].verdict, Verdict::Void);
        assert!(!report.passed());
        let says = "faster (3 quiet blocks of 7 wanted: 4 are the least to judge by)";
        assert!(report.verdicts().contains(says), "{}", report.verdicts());
        let one = statistics::spread(&[2.0]);
        let check = Check::new("faster", Rule::AtLeast(1.8), one, 1);
        assert_eq!((check.verdict, check.why), (Verdict::Pass, None));
    }

    #[test]
    fn columns_line_up() {
        let table = report().table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(
            lines[0].find("IOPS").map(|at| at + 4),
            lines[1].find("2.00 M").map(|at| at + 6)
        );
    }

    #[test]
    fn the_json_names_units_and_verdicts() {
        let mut report = report();
        report
            .checks
            .push(Check::new("faster", Rule::AtLeast(1.5), None, 3));
        let json = serde_json::to_value(&report).expect("plain data");
        assert_eq!(json["checks"][0]["verdict"], "void");
        assert_eq!(json["checks"][0]["rule"]["at_least"], 1.5);
        assert_eq!(json["series"][0]["trials"][1]["iops"], 4e6);
        assert_eq!(json["series"][0]["rejected"]["steal"], 1);
        assert_eq!(report.rejected().steal, 2);
    }
}
