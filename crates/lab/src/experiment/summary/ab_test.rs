//! An A/B test in words: contestants, sweeps and expectations.
//!
//! For `lab show` and the report; [`super`] does the same for scenarios.

use serde::Serialize;

use super::{CheckSummary, SetUp, Summary, bounds};
use crate::experiment::PUBLISHED;
use crate::experiment::ab_test::{AbTest, Across, Expect, Over, Sweep};

/// An A/B test in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AbTestSummary {
    /// The contestants.
    pub contestants: Vec<ContestantSummary>,
    /// Their work.
    pub sweeps: Vec<SweepSummary>,
    /// The number of blocks at each point.
    #[serde(rename = "rounds")]
    pub blocks: u32,
    /// How long each is measured in a block.
    pub trial_s: f64,
    /// Whether their servers run side by side in a block and are measured in slices.
    pub side_by_side: bool,
    /// Points that are left out at this length.
    pub left_out: Vec<String>,
}

/// A contestant in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContestantSummary {
    /// What it is called.
    pub name: String,
    /// What it is.
    pub what: String,
}

/// A sweep in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweepSummary {
    /// What it is called.
    pub title: String,
    /// Its points.
    pub points: Vec<String>,
    /// The load: at the first of them; at each, if they are kinds of work.
    pub work: Vec<String>,
}

impl AbTest {
    /// The A/B test in words.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let contestants = self.contestants.iter().map(|one| ContestantSummary {
            name: one.name.clone(),
            what: one.words(),
        });
        let names = self.contestants.iter().map(|one| one.name.clone());
        let lasts = self.lasts().as_secs_f64();
        Summary {
            name: self.name.clone(),
            title: self.title.clone(),
            source: self.source.clone(),
            published: PUBLISHED.contains(&self.name.as_str()),
            set_up: SetUp::AbTest(AbTestSummary {
                contestants: contestants.collect(),
                sweeps: self.sweeps.iter().map(sweep).collect(),
                blocks: self.rules.blocks,
                trial_s: self.span().as_secs_f64(),
                side_by_side: self.rules.side_by_side,
                left_out: self.left_out.clone(),
            }),
            ways: names.collect(),
            checks: self
                .expects
                .iter()
                .map(|expect| self.check(expect))
                .collect(),
            run_s: lasts / f64::from(self.rules.blocks.max(1)),
            engine_s: lasts,
            only_simulated: None,
        }
    }

    /// A check in words.
    pub(in crate::experiment) fn check(&self, expect: &Expect) -> CheckSummary {
        CheckSummary {
            what: self.words(expect),
            bar: bounds(expect.at_least, expect.at_most, unit(expect)),
            published: expect.source.clone(),
        }
    }

    /// Which figure a check is about.
    fn words(&self, expect: &Expect) -> String {
        let own = &expect.contestant;
        let mut says = format!("{}, {own}", expect.what.words());
        let Some(sweep) = self.sweep(&expect.sweep) else {
            return says;
        };
        let at = |point: &str| match sweep.across {
            Across::Work => format!(" at \u{201c}{point}\u{201d}"),
            _ => format!(" at {}", sweep.words(point)),
        };
        match (&expect.at, expect.over) {
            (Some(point), _) => says += &at(point),
            (None, Over::Mean) => {}
            (None, Over::Least) => says += ", where it is least",
            (None, Over::Most) => says += ", where it is most",
        }
        if let Some(against) = &expect.against {
            says += ", by that";
            if let Some(other) = against.contestant.as_ref().filter(|other| *other != own) {
                says += &format!(" of {other}");
            }
            says += &against.at.as_deref().map(at).unwrap_or_default();
        }
        if self.sweeps.len() > 1 {
            says += &format!(", \u{201c}{}\u{201d}", sweep.title);
        }
        says
    }
}

fn sweep(sweep: &Sweep) -> SweepSummary {
    let points = sweep.points.iter();
    let described = match sweep.across {
        Across::Work => usize::MAX,
        _ => 1,
    };
    let work = points.clone().take(described);
    SweepSummary {
        title: sweep.title.clone(),
        points: points.map(|point| point.name.clone()).collect(),
        work: work.map(|point| point.work.words()).collect(),
    }
}

pub(in crate::experiment) fn unit(expect: &Expect) -> &'static str {
    match expect.against {
        Some(_) => "",
        None => expect.what.unit(),
    }
}

#[cfg(test)]
mod tests {
    use crate::experiment::fixtures::entry;

    #[test]
    fn an_ab_test_says_what_is_compared_and_its_json_fields_stay() {
        let summary = entry("filter-overhead", 10).summary();
        assert!(summary.published && summary.only_simulated.is_none());
        assert_eq!(summary.ways, ["no filter", "null filter"]);
        let json = serde_json::to_value(&summary).expect("plain data");
        assert_eq!(json["sweeps"][0]["points"][2], "32");
        assert_eq!(json["contestants"][1]["name"], "null filter");
        let left_out = "By number of VMs, each with 128 outstanding: 2, 4, 16";
        assert_eq!(json["left_out"][0], left_out);
        assert_eq!(json["rounds"], 3);
        assert!(json.get("disks").is_none());
        let check = &summary.checks[0];
        let says = "throughput, null filter, by that of no filter";
        assert!(check.what.starts_with(says), "{}", check.what);
        assert_eq!(check.bar, "at least 0.99");
        let scenario = serde_json::to_value(entry("sioc-3", 100).summary()).expect("plain data");
        assert_eq!(scenario["hosts"][1], "host2");
    }
}
