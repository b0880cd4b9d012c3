//! An A/B test in words: contestants, sweeps and expectations.
//!
//! For `lab show` and the report; [`super`] does the same for scenarios.

use serde::Serialize;

use super::{CheckSummary, SetUp, Summary};
use crate::draw::label;
use crate::experiment::PUBLISHED;
use crate::experiment::ab_test::{AbTest, Across, Expect, Over, Sweep};

/// An A/B test in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AbTestSummary {
    /// Who takes part.
    pub contestants: Vec<ContestantSummary>,
    /// In what.
    pub sweeps: Vec<SweepSummary>,
    /// How often contestants meet at each point.
    pub rounds: u32,
    /// How long each is measured in a block.
    pub trial_s: f64,
    /// Whether their servers run side by side in a block and are asked in turn.
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
    /// What is asked: at the first of them; at each, where they are kinds of work.
    pub work: Vec<String>,
}

impl AbTest {
    /// The contest in words.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let contestants = self.contestants.iter();
        let names: Vec<String> = contestants.clone().map(|one| one.name.clone()).collect();
        let lasts = self.lasts().as_secs_f64();
        Summary {
            name: self.name.clone(),
            title: self.title.clone(),
            source: self.source.clone(),
            published: PUBLISHED.contains(&self.name.as_str()),
            set_up: SetUp::AbTest(AbTestSummary {
                contestants: contestants
                    .map(|one| ContestantSummary {
                        name: one.name.clone(),
                        what: one.words(),
                    })
                    .collect(),
                sweeps: self
                    .sweeps
                    .iter()
                    .map(|sweep| SweepSummary {
                        title: sweep.title.clone(),
                        points: sweep
                            .points
                            .iter()
                            .map(|point| point.name.clone())
                            .collect(),
                        work: sweep
                            .points
                            .iter()
                            .take(match sweep.across {
                                Across::Work => usize::MAX,
                                _ => 1,
                            })
                            .map(|point| point.work.words())
                            .collect(),
                    })
                    .collect(),
                rounds: self.rounds,
                trial_s: self.span().as_secs_f64(),
                side_by_side: self.side_by_side,
                left_out: self.left_out.clone(),
            }),
            ways: names,
            checks: self
                .expects
                .iter()
                .map(|expect| CheckSummary {
                    what: self.words(expect),
                    bar: bar(expect),
                    published: expect.source.clone(),
                })
                .collect(),
            run_s: lasts / f64::from(self.rounds.max(1)),
            engine_s: lasts,
            only_simulated: None,
        }
    }

    /// Which figure a check is about.
    pub(in crate::experiment) fn words(&self, expect: &Expect) -> String {
        let sweep = &self.sweeps[expect.sweep];
        let own = &self.contestants[expect.contestant].name;
        let mut says = format!("{}, {own}", expect.what.words());
        match (&expect.at, expect.over) {
            (Some(at), _) => says += &format!(" at {}", point_words(sweep, at)),
            (None, Over::Mean) => {}
            (None, Over::Least) => says += ", where it is least",
            (None, Over::Most) => says += ", where it is most",
        }
        if let Some(against) = &expect.against {
            says += ", by that";
            if against.contestant != expect.contestant {
                says += &format!(" of {}", self.contestants[against.contestant].name);
            }
            if let Some(at) = &against.at {
                says += &format!(" at {}", point_words(sweep, at));
            }
        }
        if self.sweeps.len() > 1 {
            says += &format!(", \u{201c}{}\u{201d}", sweep.title);
        }
        says
    }
}

/// A point as one speaks of it.
pub(in crate::experiment) fn point_words(sweep: &Sweep, point: &str) -> String {
    match sweep.across {
        Across::Vms if point == "1" => "1 VM".to_owned(),
        Across::Vms => format!("{point} VMs"),
        Across::Outstanding => format!("{point} outstanding"),
        Across::Size => point.to_owned(),
        Across::Work => format!("\u{201c}{point}\u{201d}"),
    }
}

pub(in crate::experiment) fn unit(expect: &Expect) -> &'static str {
    match expect.against {
        Some(_) => "",
        None => expect.what.unit(),
    }
}

pub(in crate::experiment) fn bar(expect: &Expect) -> String {
    let unit = unit(expect);
    match (expect.at_least, expect.at_most) {
        (Some(least), Some(most)) => format!("{} to {}{unit}", label(least), label(most)),
        (Some(least), None) => format!("at least {}{unit}", label(least)),
        (None, Some(most)) => format!("at most {}{unit}", label(most)),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use crate::experiment::Entry;

    #[test]
    fn a_contest_says_who_competes_in_what_and_its_words_for_programs_keep_their_places() {
        let entry = Entry::find("filter-overhead").expect("it can be read");
        let summary = entry.expect("it is there").scaled(10).summary();
        assert!(summary.published && summary.only_simulated.is_none());
        assert_eq!(summary.ways, ["no filter", "null filter"]);
        let json = serde_json::to_value(&summary).expect("plain data");
        assert_eq!(json["sweeps"][0]["points"][2], "32");
        assert_eq!(json["contestants"][1]["name"], "null filter");
        assert_eq!(
            json["left_out"][0],
            "By number of VMs, each with 128 outstanding: 2, 4, 16"
        );
        assert!(json.get("disks").is_none());
        let check = &summary.checks[0];
        assert!(
            check
                .what
                .starts_with("throughput, null filter, by that of no filter"),
            "{}",
            check.what
        );
        assert_eq!(check.bar, "at least 0.99");
        let scenario = Entry::find("sioc-3").expect("it can be read");
        let summary = scenario.expect("it is there").summary();
        let scenario = serde_json::to_value(summary).expect("plain data");
        assert_eq!(scenario["hosts"][1], "host2");
    }
}
