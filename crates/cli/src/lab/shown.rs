//! Experiments, findings and comparisons as tables.

use serde::Serialize;
use tidegate_lab::experiment::compare::Comparison;
use tidegate_lab::experiment::page::{came_to, figure, place, tally};
use tidegate_lab::experiment::summary::{AbTestSummary, ScenarioSummary};
use tidegate_lab::experiment::{Findings, SetUp, Summary};

use crate::output::{Detail, Shown};
use crate::{figures, table};

/// The experiments that there are.
#[derive(Serialize)]
pub(super) struct ExperimentList {
    /// Each of them.
    pub(super) experiments: Vec<Summary>,
}

/// What a suite came to.
#[derive(Serialize)]
pub(super) struct FindingsList {
    /// Each of its experiments.
    pub(super) experiments: Vec<Findings>,
}

impl Shown for ExperimentList {
    fn names(&self) -> Vec<String> {
        self.experiments
            .iter()
            .map(|summary| summary.name.clone())
            .collect()
    }

    fn table(&self, detail: Detail) -> String {
        let rows = self.experiments.iter().map(|summary| {
            let mut row = vec![
                summary.name.clone(),
                if summary.published { "published" } else { "-" }.to_owned(),
                summary.checks.len().to_string(),
                match summary.only_simulated {
                    Some(_) => "sim only".to_owned(),
                    None => length(summary.engine_s),
                },
                summary.title.clone(),
            ];
            if detail == Detail::Wide {
                row.push(summary.ways.join("; "));
                row.push(summary.source.clone());
            }
            row
        });
        let mut head = vec!["NAME", "KIND", "CHECKS", "ENGINE", "TITLE"];
        if detail == Detail::Wide {
            head.extend(["WAYS", "SOURCE"]);
        }
        table::columns(&head, &rows.collect::<Vec<_>>())
    }
}

impl Shown for Summary {
    fn names(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    fn table(&self, detail: Detail) -> String {
        let mut pairs = vec![
            ("experiment", self.name.clone()),
            ("shows", self.title.clone()),
        ];
        if !self.source.is_empty() {
            pairs.push(("source", self.source.clone()));
        }
        match &self.set_up {
            SetUp::Scenario(scenario) => {
                pairs.push(("datastore", scenario.datastore.clone()));
                pairs.push(("threshold", scenario.threshold.clone()));
                pairs.push(("hosts", scenario.hosts.join(", ")));
                pairs.push(("ways", self.ways.join("; ")));
                pairs.push(("one run", length(self.run_s)));
            }
            SetUp::Study(study) => {
                let inputs = study.inputs.iter();
                pairs.extend(inputs.map(|(name, what)| (name.as_str(), what.clone())));
            }
            SetUp::AbTest(ab_test) => {
                pairs.push(("rounds", ab_test.blocks.to_string()));
                pairs.push(("one round", length(self.run_s)));
            }
        }
        pairs.push((
            "engine",
            match (self.only_simulated, &self.set_up) {
                (Some(why), _) => format!("no: {why}"),
                (None, SetUp::Scenario(_)) => {
                    format!("{} for every way once", length(self.engine_s))
                }
                (None, SetUp::Study(_)) => {
                    format!(
                        "{} for all parts; reported, not judged",
                        length(self.engine_s)
                    )
                }
                (None, SetUp::AbTest(_)) => format!("{} for all rounds", length(self.engine_s)),
            },
        ));
        let mut text = table::pairs(&pairs);
        text += "\n";
        text += &match &self.set_up {
            SetUp::Scenario(scenario) => disks_and_phases(scenario),
            SetUp::AbTest(ab_test) => contestants_and_sweeps(ab_test),
            SetUp::Study(study) => {
                let parts = study.parts.iter().map(|part| vec![part.clone()]);
                table::columns(&["PLAYED"], &parts.collect::<Vec<_>>())
            }
        };
        let checks = self.checks.iter().map(|check| {
            let mut row = vec![check.what.clone(), check.bar.clone()];
            if detail == Detail::Wide {
                row.push(check.published.clone());
            }
            row
        });
        let mut head = vec!["CHECK", "BAR"];
        if detail == Detail::Wide {
            head.push("PUBLISHED, OR WHY");
        }
        text + "\n" + &table::columns(&head, &checks.collect::<Vec<_>>())
    }
}

/// Who competes, and in what.
fn contestants_and_sweeps(summary: &AbTestSummary) -> String {
    let contestants = summary.contestants.iter();
    let contestants = contestants.map(|one| vec![one.name.clone(), one.what.clone()]);
    let mut text = table::columns(&["CONTESTANT", "WHAT"], &contestants.collect::<Vec<_>>());
    let sweeps = summary.sweeps.iter().map(|sweep| {
        vec![
            sweep.title.clone(),
            sweep.points.join(", "),
            sweep.work.join("; "),
        ]
    });
    text += "\n";
    text += &table::columns(&["SWEEP", "POINTS", "WORK"], &sweeps.collect::<Vec<_>>());
    text
}

/// Who shares what, and what happens.
fn disks_and_phases(summary: &ScenarioSummary) -> String {
    let disks = summary.disks.iter().map(|disk| {
        vec![
            disk.name.clone(),
            disk.host.clone(),
            disk.shares.to_string(),
            if disk.settings.is_empty() {
                figures::dash()
            } else {
                disk.settings.clone()
            },
            disk.workload.clone(),
        ]
    });
    let mut text = table::columns(
        &["DISK", "HOST", "SHARES", "LIMITS", "GUEST"],
        &disks.collect::<Vec<_>>(),
    );
    if summary.phases.len() > 1 {
        let phases = summary.phases.iter().map(|phase| {
            let idle = phase.idle.join(", ");
            vec![
                phase.name.clone(),
                length(phase.lasts_s),
                if idle.is_empty() {
                    figures::dash()
                } else {
                    idle
                },
                if phase.changes.is_empty() {
                    figures::dash()
                } else {
                    phase.changes.join("; ")
                },
            ]
        });
        text += "\n";
        text += &table::columns(
            &["PHASE", "LASTS", "IDLE", "CHANGES"],
            &phases.collect::<Vec<_>>(),
        );
    }
    text
}

impl Shown for Findings {
    fn names(&self) -> Vec<String> {
        vec![self.experiment.name.clone()]
    }

    fn table(&self, detail: Detail) -> String {
        let mut checks: Vec<_> = self.checks.iter().collect();
        checks.sort_by_key(|check| check.verdict);
        let rows = checks.iter().map(|check| {
            let mut row = vec![
                check.verdict.word().to_owned(),
                came_to(check),
                check.bar.clone(),
                place(check.on).to_owned(),
                check.what.clone(),
            ];
            if detail == Detail::Wide {
                row.push(check.published.clone());
                row.push(check.note.clone().unwrap_or_else(figures::dash));
            }
            row
        });
        let mut head = vec!["VERDICT", "OURS", "BAR", "ON", "CHECK"];
        if detail == Detail::Wide {
            head.extend(["PUBLISHED, OR WHY", "NOTE"]);
        }
        let rows: Vec<_> = rows.collect();
        format!(
            "{}: {}\n{}",
            self.experiment.name,
            tally(self),
            table::columns(&head, &rows)
        )
    }
}

impl Shown for FindingsList {
    fn names(&self) -> Vec<String> {
        self.experiments.iter().flat_map(Shown::names).collect()
    }

    fn table(&self, detail: Detail) -> String {
        let each = self
            .experiments
            .iter()
            .map(|findings| findings.table(detail));
        each.collect::<Vec<_>>().join("\n")
    }
}

impl Shown for Comparison {
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .checks
            .iter()
            .map(|row| row.experiment.clone())
            .collect();
        names.dedup();
        names
    }

    fn table(&self, detail: Detail) -> String {
        let rows = self.checks.iter().map(|row| {
            let verdict = if row.verdict_before == row.verdict_after {
                row.verdict_after.word().to_owned()
            } else {
                format!(
                    "{}, was {}",
                    row.verdict_after.word(),
                    row.verdict_before.word()
                )
            };
            vec![
                row.experiment.clone(),
                verdict,
                figure(row.before, row.unit),
                figure(row.after, row.unit),
                row.change_percent
                    .map_or_else(figures::dash, |change| format!("{change:+.1} %")),
                row.bar.clone(),
                row.what.clone(),
            ]
        });
        let head = [
            "EXPERIMENT",
            "VERDICT",
            "BEFORE",
            "AFTER",
            "CHANGE",
            "BAR",
            "CHECK",
        ];
        let mut text = table::columns(&head, &rows.collect::<Vec<_>>());
        for (only, place) in [
            (&self.only_before, &self.before),
            (&self.only_after, &self.after),
        ] {
            if !only.is_empty() {
                text += &format!("{} checks are only in {place}\n", only.len());
            }
        }
        if detail == Detail::Wide {
            let rows = self.figures.iter().map(|row| {
                vec![
                    row.experiment.clone(),
                    figure(row.iops_before, ""),
                    figure(row.iops_after, ""),
                    figure(row.latency_before_ms, " ms"),
                    figure(row.latency_after_ms, " ms"),
                    row.of.clone(),
                ]
            });
            let head = [
                "EXPERIMENT",
                "IOPS BEFORE",
                "AFTER",
                "LATENCY BEFORE",
                "AFTER",
                "DISK",
            ];
            text += "\n";
            text += &table::columns(&head, &rows.collect::<Vec<_>>());
        }
        text
    }
}

/// Seconds as people say them.
fn length(seconds: f64) -> String {
    let time = std::time::Duration::try_from_secs_f64(seconds.round()).unwrap_or_default();
    figures::seconds(time.as_secs())
}
