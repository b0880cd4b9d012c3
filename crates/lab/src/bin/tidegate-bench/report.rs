//! The report of the bench: figures, target ratios, a table and JSON.
//!
//! # Always true
//! - A check without enough quiet blocks is discarded, and a discarded check does not pass. Enough are half of those wanted
//!   and no fewer than three; all, where fewer than three are wanted.

use std::fmt;

use serde::Serialize;

use tidegate_lab::experiment::directory::MachineSeen;
use tidegate_lab::machine::Rejected;
use tidegate_lab::measure::Figures;
use tidegate_lab::statistics::{self, Spread};

/// A figure that is checked.
#[derive(Clone, Copy)]
pub(crate) struct Figure {
    /// What it is called.
    pub(crate) name: &'static str,
    /// It, of a trial.
    pub(crate) of: fn(&Figures) -> f64,
}

/// Requests a second.
pub(crate) const IOPS: Figure = Figure {
    name: "IOPS",
    of: |figures| figures.iops,
};
/// The server's CPU time.
pub(crate) const CPU: Figure = Figure {
    name: "CPU per I/O",
    of: |figures| figures.cpu_percent_per_kiops,
};

/// One variant's quiet trials of one case, in the order of the blocks.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Series {
    /// `vhost null`, `NBD null` ...
    pub(crate) scenario: String,
    /// `QD 32` ...
    pub(crate) case: String,
    /// What was measured.
    #[serde(rename = "contestant")]
    pub(crate) variant: String,
    /// One per quiet block.
    pub(crate) trials: Vec<Figures>,
    /// So many were wanted.
    pub(crate) wanted: usize,
    /// Trials of this variant that were rejected.
    pub(crate) rejected: Rejected,
}

impl Series {
    /// An empty one of a case.
    pub(crate) fn of(scenario: &str, case: &str) -> Series {
        Series {
            scenario: scenario.into(),
            case: case.into(),
            ..Series::default()
        }
    }

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
    #[serde(rename = "void")]
    Discarded,
}

/// A ratio with the rule it must keep.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    /// What is claimed, in words.
    pub(crate) claim: String,
    /// The bound.
    pub(crate) rule: Rule,
    /// The ratio, block by block.
    pub(crate) ratio: Option<Spread>,
    /// How it came out.
    pub(crate) verdict: Verdict,
    /// Why it is discarded, where too few blocks were quiet.
    pub(crate) why: Option<String>,
}

impl Check {
    /// Judges a ratio that was to be taken of so many blocks.
    #[must_use]
    pub(crate) fn new(
        claim: impl Into<String>,
        rule: Rule,
        ratio: Option<Spread>,
        wanted: usize,
    ) -> Self {
        let few = ratio.filter(|spread| !statistics::enough(spread.count, wanted));
        let verdict = match ratio {
            None => Verdict::Discarded,
            Some(_) if few.is_some() => Verdict::Discarded,
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
    /// The series of a variant in a case.
    #[must_use]
    pub(crate) fn find(&self, scenario: &str, case: &str, variant: &str) -> Option<&Series> {
        let of = (scenario, case, variant);
        let key = |series: &Series| {
            (
                series.scenario == of.0,
                series.case == of.1,
                series.variant == of.2,
            )
        };
        self.series
            .iter()
            .find(|series| key(series) == (true, true, true))
    }

    /// The block-by-block ratio of a figure between two variants of one case.
    #[must_use]
    pub(crate) fn ratio(
        &self,
        (scenario, case): (&str, &str),
        ours: &str,
        theirs: &str,
        figure: Figure,
    ) -> Option<Spread> {
        let ours = self.find(scenario, case, ours)?.each(figure.of);
        let theirs = self.find(scenario, case, theirs)?.each(figure.of);
        statistics::ratio(&ours, &theirs)
    }

    /// Checks a figure of one variant by another's.
    pub(crate) fn check(
        &mut self,
        of: (&str, &str),
        ours: &str,
        theirs: &str,
        figure: Figure,
        rule: Rule,
    ) {
        let ratio = self.ratio(of, ours, theirs, figure);
        let (scenario, case) = of;
        let claim = format!(
            "{scenario} {case}: {ours}: {} by that of {theirs}",
            figure.name
        );
        self.judge(of, claim, rule, ratio);
    }

    /// Judges a ratio that was taken of a case's blocks.
    pub(crate) fn judge(
        &mut self,
        (scenario, case): (&str, &str),
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

    /// Whether every check passed; one that was discarded did not.
    #[must_use]
    pub(crate) fn passed(&self) -> bool {
        self.checks
            .iter()
            .all(|check| check.verdict == Verdict::Pass)
    }

    /// Trials that were rejected.
    #[must_use]
    pub(crate) fn rejected(&self) -> Rejected {
        let mut all = Rejected::default();
        self.series.iter().for_each(|series| all += series.rejected);
        all
    }

    /// The figures as an aligned table: medians, with the extremes of IOPS.
    #[must_use]
    pub(crate) fn table(&self) -> String {
        let mut rows = vec![COLUMNS.map(|(head, _)| head.to_owned()).to_vec()];
        let row = |series| COLUMNS.map(|(_, cell)| cell(series)).to_vec();
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
                Verdict::Discarded => "discarded",
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

/// A column of the table: its head, and its cell of a series.
type Column = (&'static str, fn(&Series) -> String);

const COLUMNS: [Column; 13] = [
    ("scenario", |series| series.scenario.clone()),
    ("case", |series| series.case.clone()),
    ("variant", |series| series.variant.clone()),
    ("IOPS", |series| {
        of(series, IOPS.of, |iops| kilo(iops.median))
    }),
    ("min..max", |series| {
        let range = |iops: Spread| format!("{}..{}", kilo(iops.low), kilo(iops.high));
        of(series, IOPS.of, range)
    }),
    ("p50 us", |series| median(series, |trial| trial.p50_us, 1)),
    ("p99 us", |series| median(series, |trial| trial.p99_us, 1)),
    ("p99.9 us", |series| {
        median(series, |trial| trial.p999_us, 1)
    }),
    ("%/k", |series| median(series, CPU.of, 3)),
    ("client %", |series| {
        median(series, |trial| trial.client_percent, 0)
    }),
    ("apart ns", |series| {
        median(series, |trial| trial.apart_ns, 0)
    }),
    ("trials", |series| series.trials.len().to_string()),
    ("rejected", |series| series.rejected.total().to_string()),
];

fn of(series: &Series, figure: fn(&Figures) -> f64, show: impl Fn(Spread) -> String) -> String {
    series.spread(figure).map_or_else(|| "-".into(), show)
}

fn median(series: &Series, figure: fn(&Figures) -> f64, digits: usize) -> String {
    of(series, figure, |spread| {
        format!("{:.digits$}", spread.median)
    })
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
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let line = |row: &Vec<String>| {
        let cells = row
            .iter()
            .enumerate()
            .map(|(column, cell)| match column < left {
                true => format!("{cell:<0$}", width(column)),
                false => format!("{cell:>0$}", width(column)),
            });
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: (&str, &str) = ("vhost null", "QD 32");

    fn report(wanted: usize) -> Report {
        let series = |variant: &str, iops: [f64; 3]| Series {
            variant: variant.into(),
            trials: iops
                .map(|iops| Figures {
                    iops,
                    ..Figures::default()
                })
                .to_vec(),
            wanted,
            rejected: Rejected {
                steal: 1,
                ..Rejected::default()
            },
            ..Series::of(OF.0, OF.1)
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
    fn a_check_passes_by_its_median_and_not_where_nothing_was_measured() {
        for (theirs, rule, verdict) in [
            ("theirs", Rule::AtLeast(1.8), Verdict::Pass),
            ("theirs", Rule::AtLeast(2.1), Verdict::Fail),
            ("theirs", Rule::AtMost(2.0), Verdict::Pass),
            ("nobody", Rule::AtLeast(1.0), Verdict::Discarded),
        ] {
            let mut report = report(3);
            report.check(OF, "ours", theirs, IOPS, rule);
            assert_eq!(report.checks[0].verdict, verdict);
            assert_eq!(report.passed(), verdict == Verdict::Pass);
        }
    }

    #[test]
    fn one_quiet_block_of_many_is_discarded_with_the_reason() {
        let mut report = report(7);
        report.check(OF, "ours", "theirs", IOPS, Rule::AtLeast(1.8));
        assert_eq!(report.checks[0].verdict, Verdict::Discarded);
        let says = "(3 quiet blocks of 7 wanted: 4 are the least to judge by)";
        assert!(report.verdicts().contains(says), "{}", report.verdicts());
        let one = statistics::spread(&[2.0]);
        let check = Check::new("faster", Rule::AtLeast(1.8), one, 1);
        assert_eq!((check.verdict, check.why), (Verdict::Pass, None));
    }

    #[test]
    fn columns_line_up() {
        let table = report(3).table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(
            lines[0].find("IOPS").map(|at| at + 4),
            lines[1].find("2.00 M").map(|at| at + 6)
        );
    }

    #[test]
    fn the_json_names_units_and_verdicts() {
        let mut report = report(3);
        report.check(OF, "ours", "nobody", IOPS, Rule::AtLeast(1.5));
        let json = serde_json::to_value(&report).expect("plain data");
        assert_eq!(json["checks"][0]["verdict"], "void");
        assert_eq!(json["checks"][0]["rule"]["at_least"], 1.5);
        assert_eq!(json["series"][0]["contestant"], "ours");
        assert_eq!(json["series"][0]["trials"][1]["iops"], 4e6);
        assert_eq!(json["series"][0]["rejected"]["steal"], 1);
        assert_eq!(report.rejected().steal, 2);
    }
}
