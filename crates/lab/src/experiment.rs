//! Experiments: a scenario played on real daemons or in virtual time, as often as one likes, measured, judged, reported.
//!
//! The face of the lab for whoever has a `tidegate` and nothing else. An [`Experiment`] is a scenario file, of those in the
//! program or one's own; [`course::run`] makes its runs and keeps each in a results directory as soon as it has ended;
//! [`Findings`] are what the runs in such a directory come to; [`page`] writes them down. Scenarios are
//! [`tidegate_sim`]'s, and so is the judge; real daemons are [`crate::play`]'s.
//!
//! # Always true
//! - A check that was expected is found in the findings: as held, as not held, or as not judged with the reason.
//! - Findings come from the files of a results directory and nothing else: who has these can judge again.

pub mod about;
pub mod agreement;
pub mod compare;
pub mod course;
pub mod directory;
pub mod findings;
pub mod kept;
pub mod page;
mod series;

pub use about::{About, way_words};
pub use course::{Order, Piece, Watcher};
pub use directory::{Directory, Plan};
pub use findings::{Findings, Verdict};

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tidegate_core::units::Time;
use tidegate_sim::{Policy, Scenario, Variant, judge};

/// The files of `scenarios/`.
const FILES: &[&str] = include!(concat!(env!("OUT_DIR"), "/scenarios.rs"));

/// The published experiments that are built, in the order in which they were published.
pub const PUBLISHED: [&str; 5] = ["sioc-1", "sioc-2", "sioc-3", "sioc-4", "sioc-ssd"];

/// In a suite no run is shorter: windows settle in a second or two, and what is judged by seconds needs some.
const SHORTEST: Duration = Duration::from_secs(20);

/// Where runs are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum On {
    /// On real daemons, in real time.
    Engine,
    /// In the simulator, in virtual time.
    Sim,
}

impl On {
    /// Its word in files and on the command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            On::Engine => "engine",
            On::Sim => "sim",
        }
    }

    /// As one speaks of it.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            On::Engine => "real daemons",
            On::Sim => "virtual time",
        }
    }

    /// The same, where something stands under it.
    #[must_use]
    pub const fn heading(self) -> &'static str {
        match self {
            On::Engine => "On real daemons",
            On::Sim => "In virtual time",
        }
    }
}

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A scenario with the text that it was read from.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// What is to happen and what is to come out.
    pub scenario: Scenario,
    /// The file.
    pub text: String,
}

impl Experiment {
    /// All that the program has, the published ones first.
    ///
    /// # Errors
    /// Never: a test reads them all.
    pub fn all() -> Result<Vec<Experiment>> {
        let all: Result<Vec<_>> = FILES.iter().map(|text| Experiment::read(text)).collect();
        let mut all = all?;
        let rank = |experiment: &Experiment| {
            let name = experiment.name();
            let published = PUBLISHED.iter().position(|other| *other == name);
            (published.unwrap_or(PUBLISHED.len()), name.to_owned())
        };
        all.sort_by_key(rank);
        Ok(all)
    }

    /// The one of this name, or in this file; none if there is neither.
    ///
    /// # Errors
    /// The file cannot be read, or is no scenario.
    pub fn find(word: &str) -> Result<Option<Experiment>> {
        let all = Experiment::all()?;
        if let Some(found) = all.into_iter().find(|other| other.name() == word) {
            return Ok(Some(found));
        }
        let path = Path::new(word);
        if !path.is_file() {
            return Ok(None);
        }
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let read = Experiment::read(&text);
        read.map(Some)
            .with_context(|| format!("{} is no scenario", path.display()))
    }

    /// Reads one.
    ///
    /// # Errors
    /// The text is no scenario.
    pub fn read(text: &str) -> Result<Experiment> {
        Ok(Experiment {
            scenario: Scenario::read(text)?,
            text: text.to_owned(),
        })
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.scenario.name
    }

    /// The same at so many percent of its length.
    #[must_use]
    pub fn scaled(mut self, percent: u64) -> Experiment {
        if percent != 100 {
            self.scenario = self.scenario.scaled(percent);
        }
        self
    }

    /// In which ways it is to be run for its checks to be judged.
    #[must_use]
    pub fn ways(&self) -> BTreeSet<Variant> {
        judge::needed(&self.scenario)
    }

    /// The ways that can be run there.
    #[must_use]
    pub fn ways_on(&self, on: On) -> Vec<Variant> {
        let ways = self.ways().into_iter();
        ways.filter(|way| on == On::Sim || way.policy != Policy::Parda)
            .collect()
    }

    /// Why it cannot be played on real daemons, where it cannot.
    #[must_use]
    pub fn only_simulated(&self) -> Option<&'static str> {
        (!self.scenario.faults.is_empty())
            .then_some("it has faults, which only the simulator can play")
    }

    /// The least percent of its length, and no less than `percent`, at which a run of it is not too short to judge.
    #[must_use]
    pub fn at_least(&self, percent: u64) -> u64 {
        let whole = u64::try_from(self.lasts().as_millis()).unwrap_or(u64::MAX);
        let shortest = u64::try_from(SHORTEST.as_millis() * 100).unwrap_or(u64::MAX);
        percent.max(shortest.div_ceil(whole.max(1))).min(100)
    }

    /// How long one run of it takes, in its own time.
    #[must_use]
    pub fn lasts(&self) -> Duration {
        let lasts = self.scenario.ends().since(Time::ZERO);
        Duration::from_nanos(lasts.as_nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_of_the_tree_is_in_the_program_and_the_published_ones_come_first() {
        let all = Experiment::all().expect("they are scenarios");
        let names: Vec<&str> = all.iter().map(Experiment::name).collect();
        assert_eq!(names[..PUBLISHED.len()], PUBLISHED);
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios"));
        assert_eq!(all.len(), files.expect("the tree has scenarios").count());
    }

    #[test]
    fn an_experiment_is_found_by_its_name_and_by_its_file() {
        let found = Experiment::find("sioc-3").expect("it can be read");
        assert_eq!(found.expect("it is there").name(), "sioc-3");
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/sioc-1.toml");
        let found = Experiment::find(path).expect("it can be read");
        assert_eq!(found.expect("it is there").name(), "sioc-1");
        assert!(Experiment::find("sioc-99").expect("no fault").is_none());
        let error = Experiment::find(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let error = format!("{:#}", error.expect_err("no scenario"));
        assert!(error.contains("is no scenario"), "{error}");
    }

    #[test]
    fn a_short_experiment_is_not_cut_to_nothing() {
        let find = |name| Experiment::find(name).ok().flatten().expect("it is there");
        assert_eq!(find("sioc-4").at_least(10), 10);
        assert_eq!(find("sioc-2").at_least(10), 17);
        assert_eq!(find("sioc-ssd").at_least(10), 67);
        assert_eq!(find("sioc-ssd").at_least(80), 80);
    }

    #[test]
    fn what_has_faults_is_the_simulators_alone() {
        let find = |name| Experiment::find(name).ok().flatten().expect("it is there");
        assert!(find("row-11-host-death").only_simulated().is_some());
        assert!(find("sioc-4").only_simulated().is_none());
    }
}
