//! The comparison of our policy with PARDA and with no control, over many seeds.
//!
//! `tidegate-sim --side-by-side` runs [`table`] and writes the result into `docs/io-control-compared.md`. Each row is a
//! figure for which a scenario sets an expectation under our control. Here it is computed under each policy, and not
//! divided by a reference.
//!
//! # Always true
//! - If a row's scenario, phase or figure does not exist, there is no table.

use crate::judge::Stretch;
use crate::policy::Policy;
use crate::scenario::{Expect, Measure, Scenario, ScenarioError, Threshold, Variant, wrong};
use crate::world::run;
use std::collections::BTreeMap;
use std::fmt::Write;
use tidegate_core::units::Span;

/// A row of the comparison.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its text.
    pub text: &'static str,
    /// Its scenario: a file of `scenarios/`, without its extension.
    pub scenario: &'static str,
    /// Its figure.
    pub what: Measure,
    /// Its phase, if there are several.
    pub phase: Option<&'static str>,
    /// Number of decimals.
    pub digits: usize,
}

const fn row(
    text: &'static str,
    scenario: &'static str,
    what: Measure,
    phase: Option<&'static str>,
    digits: usize,
) -> Row {
    Row {
        text,
        scenario,
        what,
        phase,
        digits,
    }
}

const CHANGES: &str = "row-09-start-idle-resume";

/// The rows in the order of the table.
pub const ROWS: &[Row] = &[
    row(
        "time until shares are met after a cold start, s",
        CHANGES,
        Measure::Settles,
        Some("start"),
        1,
    ),
    row(
        "the same after a disk has become idle, s",
        CHANGES,
        Measure::Settles,
        Some("idle"),
        1,
    ),
    row(
        "the same after it has become active again, s",
        CHANGES,
        Measure::Settles,
        Some("resume"),
        1,
    ),
    row(
        "the same after a change of shares, s",
        CHANGES,
        Measure::Settles,
        Some("shares"),
        1,
    ),
    row(
        "the disk that becomes active again: its first second, % of its fair share",
        CHANGES,
        Measure::Resumed,
        Some("resume"),
        0,
    ),
    row(
        "time until latency is within 1.3 times the threshold after the array's speed is halved, s",
        "row-10-capacity-halves",
        Measure::DeviceLatencySettles,
        Some("half"),
        1,
    ),
    row(
        "worst deviation of a disk from its fair share over 10 s, %",
        "row-02-share-error",
        Measure::ShareError,
        None,
        2,
    ),
    row(
        "deviation of latency from the threshold, % (our target is 7 below it)",
        "row-02-share-error",
        Measure::DeviceLatencyError,
        None,
        1,
    ),
    row(
        "throughput, four hosts, I/Os per second",
        "row-02-share-error",
        Measure::Iops,
        None,
        0,
    ),
    row(
        "a disk with a reservation of 800 among heavy disks, mean units per second",
        "row-04-reservation",
        Measure::Units,
        None,
        0,
    ),
    row(
        "the same in its worst second",
        "row-04-reservation",
        Measure::UnitsLeast,
        None,
        0,
    ),
    row(
        "latency of light disks, 99th percentile, ms (PARDA's threshold is 4.5 ms)",
        "row-17-tail",
        Measure::LatencyPercentile,
        None,
        1,
    ),
    row(
        "throughput of the other disks, I/Os per second",
        "row-17-tail",
        Measure::Iops,
        None,
        0,
    ),
    row(
        "four shops: the large one's fraction of all I/Os, % (40 by shares)",
        "sioc-1",
        Measure::Share,
        None,
        1,
    ),
    row(
        "four shops: time of an order of the large one, ms",
        "sioc-1",
        Measure::OrderTime,
        None,
        0,
    ),
    row(
        "four shops: throughput, I/Os per second",
        "sioc-1",
        Measure::Iops,
        None,
        0,
    ),
    row(
        "four shops: time until shares are met after the large one has become active again, s",
        "sioc-3",
        Measure::Settles,
        Some("again"),
        1,
    ),
];

/// PARDA's threshold where the scenario has an automatic one, because PARDA has none. Ours converges to about this
/// value.
const PARDA_THRESHOLD: Span = Span::from_micros(4_500);

const ORDER: [Policy; 3] = [Policy::None, Policy::Parda, Policy::Ours];

impl Row {
    /// The scenario's expectation for this row.
    fn expect<'a>(&self, scenario: &'a Scenario) -> Result<&'a Expect, ScenarioError> {
        let fits = |expect: &&Expect| {
            let phase = &scenario.phases[expect.phase].name;
            expect.what == self.what
                && expect.run.policy == Policy::Ours
                && self.phase.is_none_or(|wanted| wanted == phase)
        };
        match scenario.expects.iter().find(fits) {
            Some(expect) => Ok(expect),
            None => wrong(format!(
                "scenario `{}` has no expectation for `{}` that matches the comparison",
                self.scenario,
                self.what.word()
            )),
        }
    }
}

fn variant(scenario: &Scenario, policy: Policy) -> Variant {
    let found = policy == Policy::Parda && scenario.datastore.threshold == Threshold::Auto;
    Variant {
        threshold: found.then_some(Threshold::Fixed(PARDA_THRESHOLD)),
        ..Variant::of(policy)
    }
}

/// The table over the seeds 1 to `seeds`. The scenarios are given by name.
///
/// # Errors
/// When a scenario or its figure does not exist.
pub fn table(scenarios: &BTreeMap<&str, Scenario>, seeds: u64) -> Result<String, ScenarioError> {
    check(scenarios)?;
    let mut values: Vec<[Vec<f64>; 3]> = vec![Default::default(); ROWS.len()];
    for (name, scenario) in scenarios {
        for (place, &policy) in ORDER.iter().enumerate() {
            let variant = variant(scenario, policy);
            for seed in 1..=seeds {
                let run = run(scenario, &variant, seed)?;
                for (row, values) in ROWS.iter().zip(&mut values) {
                    if row.scenario == *name {
                        let expect = row.expect(scenario)?;
                        let stretch = Stretch {
                            scenario,
                            run: &run,
                            phase: expect.phase,
                            disks: &expect.disks,
                            hosts: &expect.hosts,
                        };
                        values[place].push(stretch.measure(expect));
                    }
                }
            }
        }
    }
    let mut table =
        String::from("| figure | scenario | none | PARDA | ours |\n|---|---|---|---|---|\n");
    for (row, values) in ROWS.iter().zip(&values) {
        let _ = write!(table, "| {} | `{}` |", row.text, row.scenario);
        let expect = row.expect(&scenarios[row.scenario])?;
        let phase = &scenarios[row.scenario].phases[expect.phase];
        let whole = phase.ends.since(phase.begins);
        for values in values {
            let _ = write!(table, " {} |", cell(row, values, whole));
        }
        table.push('\n');
    }
    Ok(table)
}

/// Checks that every row's scenario and figure exist.
///
/// # Errors
/// The first missing one.
pub fn check(scenarios: &BTreeMap<&str, Scenario>) -> Result<(), ScenarioError> {
    for row in ROWS {
        match scenarios.get(row.scenario) {
            Some(scenario) => row.expect(scenario)?,
            None => return wrong(format!("there is no scenario `{}`", row.scenario)),
        };
    }
    Ok(())
}

/// The median, with the range if the values differ.
fn cell(row: &Row, values: &[f64], phase: Span) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let settles = matches!(row.what, Measure::Settles | Measure::DeviceLatencySettles);
    let whole = crate::numbers::float(phase.as_nanos()) / 1e9;
    let word = |value: f64| {
        if settles && value >= whole {
            "never".to_owned()
        } else {
            format!("{value:.digits$}", digits = row.digits)
        }
    };
    let (Some(&least), Some(&most)) = (sorted.first(), sorted.last()) else {
        return String::new();
    };
    let (least, middle, most) = (word(least), word(sorted[sorted.len() / 2]), word(most));
    if least == most {
        middle
    } else {
        format!("{middle} ({least} to {most})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_the_median_with_its_range_or_never() {
        let row = &ROWS[0];
        let phase = Span::from_secs(20);
        assert_eq!(cell(row, &[0.7, 0.5, 0.6], phase), "0.6 (0.5 to 0.7)");
        assert_eq!(cell(row, &[20.0, 20.0], phase), "never");
        assert_eq!(cell(row, &[0.5], phase), "0.5");
    }
}
