//! The table of the experiment `flash-cache`, for the manual.
//!
//! `tidegate-sim --flash-cache` plays the scenario, prints its checks and writes the table. It takes some minutes.

use crate::cache_policies::tables::between;
use crate::judge::Stretch;
use crate::policy::Policy;
use crate::scenario::{Expect, Measure, Scenario, ScenarioError, Variant, wrong};
use crate::world::Run;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The command between whose marks the table is.
pub const COMMAND: &str = "cargo xtask flash-cache";

/// What was published: tiles that pass, and requests that hit.
const PUBLISHED: [(&str, &str, &str); 4] = [
    ("20 disks", "2", ""),
    ("11 disks", "none", ""),
    ("20 disks, 92 GB", "4", "92 % or more"),
    ("11 disks, 92 GB", "4", "96.5 %"),
];

/// The manual's text with a new table in the place of the old one, from runs of the scenario in each configuration.
///
/// # Errors
/// A run is missing, or the marks are.
pub fn updated(
    manual: &str,
    scenario: &Scenario,
    runs: &BTreeMap<Variant, Run>,
) -> Result<String, ScenarioError> {
    let table = table(scenario, runs)?;
    between(manual, COMMAND, &table).or_else(wrong)
}

fn table(scenario: &Scenario, runs: &BTreeMap<Variant, Run>) -> Result<String, ScenarioError> {
    let mut tiles = String::from(
        "| configuration | tiles that pass | published | hits in the last of them | published |\n|---|---|---|---|---|\n",
    );
    let phases = scenario.phases.iter();
    let names: Vec<_> = phases.map(|phase| phase.name.as_str()).collect();
    let mut each = format!("| configuration | {} |\n|---|", names.join(" | "));
    each += &"---|".repeat(names.len());
    each.push('\n');
    for (place, configuration) in scenario.configurations.iter().enumerate() {
        let variant = Variant {
            configuration: place,
            ..Variant::of(Policy::Ours)
        };
        let Some(run) = runs.get(&variant) else {
            return wrong(format!("{}: not run", configuration.name));
        };
        let name = &configuration.name;
        let published = PUBLISHED.iter().find(|(other, ..)| other == name);
        let (_, passed, hits) = published.copied().unwrap_or_default();
        let figure = |what, phase| figure(scenario, run, what, phase);
        let _ = writeln!(
            tiles,
            "| {name} | {} | {passed} | {} | {hits} |",
            figure(Measure::PhasesPassed, 0),
            percent(figure(Measure::HitRatioPassed, 0)),
        );
        let _ = write!(each, "| {name} |");
        let passed = figure(Measure::PhasesPassed, 0);
        for phase in 0..names.len() {
            let latency = figure(Measure::Latency, phase);
            let hits = match configuration.cache {
                Some(_) => format!(", {}", percent(figure(Measure::HitRatio, phase))),
                None => String::new(),
            };
            let fails = match crate::numbers::count(phase) < passed {
                true => "",
                false => ", fails",
            };
            let _ = write!(each, " {latency:.1} ms{hits}{fails} |");
        }
        each.push('\n');
    }
    Ok(format!(
        "{tiles}\nMean latency of all requests, and requests that hit:\n\n{each}"
    ))
}

fn percent(figure: f64) -> String {
    match figure.is_nan() {
        true => String::new(),
        false => format!("{figure:.1} %"),
    }
}

/// A figure of all disks in a phase.
fn figure(scenario: &Scenario, run: &Run, what: Measure, phase: usize) -> f64 {
    let Some(any) = scenario.quality.first() else {
        return f64::NAN;
    };
    let disks: Vec<usize> = (0..scenario.disks.len()).collect();
    let hosts: Vec<usize> = (0..scenario.hosts.len()).collect();
    let stretch = Stretch {
        scenario,
        run,
        phase,
        disks: &disks,
        hosts: &hosts,
    };
    let expect = Expect {
        what,
        ..any.clone()
    };
    stretch.measure(&expect)
}
