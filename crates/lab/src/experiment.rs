//! Experiments: scenarios on real daemons or in virtual time, A/B tests of servers, and studies of the model of I/O threads;
//! measured, judged, reported.
//!
//! An [`Entry`] is a file, of those in the program or the user's own: a scenario ([`Experiment`]), an A/B test ([`AbTest`]) or a
//! study ([`Study`]). [`runner::run`] makes its runs and stores each in a results directory as soon as it has ended. [`Findings`]
//! judge the runs in such a directory, and [`page`] writes them as a report. [`tidegate_sim`] has the scenarios and their
//! judge, [`crate::play`] plays them on real daemons, and [`crate::interleaved`] compares servers.
//!
//! # Always true
//! - The findings have every expected check: as passed, as failed, or as not judged with the reason.
//! - Findings come from the files of a results directory and nothing else, so that they can be judged again.

pub mod ab_test;
pub mod compare;
pub mod directory;
pub mod findings;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod page;
pub mod runner;
mod series;
pub mod store;
pub mod study;
pub mod summary;

pub use ab_test::AbTest;
pub use directory::{Directory, Plan};
pub use findings::{Findings, Verdict};
pub use runner::{Order, Piece, Watcher};
pub use study::Study;
pub use summary::{SetUp, Summary, way_words};

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tidegate_core::units::Time;
use tidegate_sim::scenario::Coordination;
use tidegate_sim::{Scenario, Variant, judge};

use crate::play;

/// The files of `scenarios/`.
const FILES: &[&str] = include!(concat!(env!("OUT_DIR"), "/scenarios.rs"));

/// The published experiments that are built: those on I/O control in the order in which they were published, then those on
/// I/O threads, then the A/B tests.
pub const PUBLISHED: [&str; 13] = [
    "sioc-1",
    "sioc-2",
    "sioc-3",
    "sioc-4",
    "sioc-ssd",
    "flash-cache",
    "vsan-scaling",
    "pools",
    "io-threads",
    "dense-mode",
    "filter-overhead",
    "million-iops",
    "compare-scenarios",
];

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

    /// In words.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            On::Engine => "real daemons",
            On::Sim => "virtual time",
        }
    }
}

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// An experiment of any kind.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A scenario of I/O control: on real daemons or in virtual time.
    Scenario(Box<Experiment>),
    /// The same work for several contestants, on real servers.
    AbTest(Box<AbTest>),
    /// Set-ups and policies of I/O threads on a model of cores and guests: in virtual time.
    Study(Box<Study>),
}

impl Entry {
    /// All that the program has, the published ones first.
    ///
    /// # Errors
    /// Never: a test reads them all.
    pub fn all() -> Result<Vec<Entry>> {
        let all: Result<Vec<_>> = FILES.iter().map(|text| Entry::read(text)).collect();
        let mut all = all?;
        let rank = |entry: &Entry| {
            let name = entry.name();
            let published = PUBLISHED.iter().position(|other| *other == name);
            (published.unwrap_or(PUBLISHED.len()), name.to_owned())
        };
        all.sort_by_key(rank);
        Ok(all)
    }

    /// The one of this name, or in this file; none if there is neither.
    ///
    /// # Errors
    /// The file cannot be read, or is no experiment.
    pub fn find(word: &str) -> Result<Option<Entry>> {
        let all = Entry::all()?;
        if let Some(found) = all.into_iter().find(|other| other.name() == word) {
            return Ok(Some(found));
        }
        let path = Path::new(word);
        if !path.is_file() {
            return Ok(None);
        }
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let read = Entry::read(&text);
        read.map(Some)
            .with_context(|| format!("{} is no scenario", path.display()))
    }

    /// Reads one: an A/B test and a study say so, and all else is to be a scenario.
    ///
    /// # Errors
    /// The text is none of them.
    pub fn read(text: &str) -> Result<Entry> {
        Ok(match AbTest::read(text)? {
            Some(ab_test) => Entry::AbTest(Box::new(ab_test)),
            None => match Study::read(text)? {
                Some(study) => Entry::Study(Box::new(study)),
                None => Entry::Scenario(Box::new(Experiment::read(text)?)),
            },
        })
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Entry::Scenario(experiment) => experiment.name(),
            Entry::AbTest(ab_test) => &ab_test.name,
            Entry::Study(study) => &study.name,
        }
    }

    /// The file.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Entry::Scenario(experiment) => &experiment.text,
            Entry::AbTest(ab_test) => &ab_test.text,
            Entry::Study(study) => &study.text,
        }
    }

    /// The same at so many percent of its length.
    #[must_use]
    pub fn scaled(self, percent: u64) -> Entry {
        match self {
            Entry::Scenario(experiment) => Entry::Scenario(Box::new(experiment.scaled(percent))),
            Entry::AbTest(ab_test) => Entry::AbTest(Box::new(ab_test.scaled(percent))),
            Entry::Study(study) => Entry::Study(Box::new(study.scaled(percent))),
        }
    }

    /// The least percent of its length, and no less than `percent`, at which a run of it is not too short to judge. An A/B
    /// test or a study is never too short.
    #[must_use]
    pub fn at_least(&self, percent: u64) -> u64 {
        match self {
            Entry::Scenario(experiment) => experiment.at_least(percent),
            Entry::AbTest(_) | Entry::Study(_) => percent,
        }
    }

    /// Its length, in percent of what the file says.
    #[must_use]
    pub fn percent(&self) -> u64 {
        match self {
            Entry::Scenario(experiment) => experiment.percent,
            Entry::AbTest(ab_test) => ab_test.percent,
            Entry::Study(study) => study.percent,
        }
    }

    /// Why it cannot be run in some place, if it cannot.
    #[must_use]
    pub fn not_on(&self, on: On) -> Option<&'static str> {
        match (self, on) {
            (Entry::Scenario(experiment), On::Engine) => experiment.only_simulated(),
            (Entry::Study(study), On::Engine) => study.only_simulated(),
            (Entry::AbTest(_), On::Sim) => {
                Some("it measures real servers, and a processor's time is not modelled")
            }
            _ => None,
        }
    }

    /// A place in which it was to be run and cannot be, with the reason. The checks of an A/B test have it themselves. A study
    /// that is run in virtual time lacks nothing.
    pub(crate) fn missed_in(&self, on: &[On]) -> Option<(On, String)> {
        if matches!(self, Entry::Study(_)) && on.contains(&On::Sim) {
            return None;
        }
        let why = self
            .not_on(On::Engine)
            .filter(|_| on.contains(&On::Engine))?;
        Some((On::Engine, format!("not on real daemons: {why}")))
    }
}

impl From<Experiment> for Entry {
    fn from(experiment: Experiment) -> Entry {
        Entry::Scenario(Box::new(experiment))
    }
}

impl From<Study> for Entry {
    fn from(study: Study) -> Entry {
        Entry::Study(Box::new(study))
    }
}

impl From<AbTest> for Entry {
    fn from(ab_test: AbTest) -> Entry {
        Entry::AbTest(Box::new(ab_test))
    }
}

/// A scenario with the text that it was read from.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The set-up, the load and the expected results.
    pub scenario: Scenario,
    /// The file.
    pub text: String,
    /// Its length, in percent of what the file says.
    pub percent: u64,
}

impl Experiment {
    /// Reads one. Unless it says otherwise, hosts coordinate apart from the array in virtual time, as the lab's real daemons
    /// do. On the array the coordination would take one percent of its time.
    ///
    /// # Errors
    /// The text is no scenario.
    pub fn read(text: &str) -> Result<Experiment> {
        let mut scenario = Scenario::read(text)?;
        scenario
            .datastore
            .coordination
            .get_or_insert(Coordination::Apart);
        Ok(Experiment {
            scenario,
            text: text.to_owned(),
            percent: 100,
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
            self.percent = percent;
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
        ways.filter(|way| on == On::Sim || play::not_on_daemons(&self.scenario, way).is_none())
            .collect()
    }

    /// Why it cannot be played on real daemons, where it cannot.
    #[must_use]
    pub fn only_simulated(&self) -> Option<&'static str> {
        if play::frees_flash(&self.scenario) {
            return Some("its disks have the flash in turn, which only the simulator can play");
        }
        let mut all = self.scenario.configurations.iter();
        if all.any(|own| own.pool.is_some()) {
            return Some("its disks are in pools, which only the simulator plays so far");
        }
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
    use super::fixtures::{entry, scenario};
    use super::*;

    #[test]
    fn every_file_of_the_tree_is_in_the_program_and_the_published_ones_come_first() {
        let all = Entry::all().expect("they are experiments");
        let names: Vec<&str> = all.iter().map(Entry::name).collect();
        assert_eq!(names[..PUBLISHED.len()], PUBLISHED);
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios"));
        let files = files.expect("the tree has scenarios");
        let names = files.map(|file| file.expect("it can be read").file_name());
        let scenarios = names.filter(|name| name.to_string_lossy().ends_with(".toml"));
        assert_eq!(all.len(), scenarios.count());
    }

    #[test]
    fn hosts_of_an_experiment_meet_apart_unless_it_says_otherwise() {
        let plain = scenario("sioc-1", 100);
        let meet = |experiment: &Experiment| experiment.scenario.datastore.coordination;
        assert_eq!(meet(&plain), Some(Coordination::Apart));
        let said = "[datastore]\ncoordination = \"array\"";
        let said = Experiment::read(&plain.text.replace("[datastore]", said));
        assert_eq!(meet(&said.expect("a scenario")), Some(Coordination::Array));
    }

    #[test]
    fn a_short_experiment_is_not_cut_to_nothing() {
        for (name, percent, least) in [
            ("sioc-4", 10, 10),
            ("sioc-2", 10, 17),
            ("sioc-ssd", 10, 67),
            ("sioc-ssd", 80, 80),
            ("filter-overhead", 1, 1),
        ] {
            assert_eq!(entry(name, 100).at_least(percent), least, "{name}");
        }
    }
}
