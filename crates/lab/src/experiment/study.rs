//! Studies: experiments on the model of I/O threads and cores, in virtual time.
//!
//! A study has parts: a set-up or a policy on a trace, each of which is a run. A run leaves named figures, lines over time, and
//! notes. The expectations of the study's file name figures that are made of all parts. `io_threads.rs` and `dense_mode.rs` say
//! what is played and what the figures are; the guests and threads are those of [`tidegate_sim::threads`]. The trace of I/O threads
//! can also be played on a real engine (`io_threads/engine.rs`): that is reported, and decides nothing.
//!
//! # Always true
//! - An expected figure is one that the study has: its file is refused otherwise.

mod dense_mode;
pub mod file;
mod io_threads;
pub mod store;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::draw::Picture;
use store::StudyRun;

/// A study, read from its file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Study {
    /// What it is called.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// Where it is from.
    #[serde(default)]
    pub source: String,
    /// The file.
    #[serde(skip)]
    pub text: String,
    /// Its length, in percent of what the file says.
    #[serde(skip)]
    pub percent: u64,
    /// What is studied.
    #[serde(rename = "study")]
    pub rules: Rules,
    /// The expected results.
    #[serde(rename = "expect")]
    pub expects: Vec<Expect>,
}

/// What is studied, with the inputs that are not measured.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rules {
    /// Which model.
    pub of: Kind,
    /// Costs of an exit of a vCPU, in nanoseconds. The first one is that of the whole study; all of them are tried where the
    /// study says so.
    pub exit_ns: Vec<u64>,
}

/// A model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// How many I/O threads serve which disks.
    IoThreads,
    /// How many VMs a host carries in dense mode, and without it.
    DenseMode,
}

/// A figure and its bar.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Expect {
    /// Which figure.
    pub figure: String,
    /// The least it may be.
    pub at_least: Option<f64>,
    /// The most it may be.
    pub at_most: Option<f64>,
    /// Where the bar is from.
    pub source: String,
}

/// A part of a study.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// In files' names.
    pub(super) slug: String,
    /// In words.
    pub(super) words: String,
}

impl Part {
    fn new(slug: impl Into<String>, words: impl Into<String>) -> Part {
        Part {
            slug: slug.into(),
            words: words.into(),
        }
    }
}

/// A figure that can be expected.
pub(super) struct Known {
    /// Its name in files.
    pub(super) name: &'static str,
    /// In words.
    pub(super) words: &'static str,
    /// With a space before it.
    pub(super) unit: &'static str,
}

/// A table of a study's report.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct StudyTable {
    /// What it shows.
    pub title: String,
    /// The names of its columns, parted by bars.
    pub columns: &'static str,
    /// Its rows.
    pub rows: Vec<Vec<String>>,
}

/// What a part leaves.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Made {
    /// Named figures.
    pub(super) figures: BTreeMap<String, f64>,
    /// A line: a value for each hundred milliseconds.
    pub(super) line: Vec<f64>,
    /// What happened, in order.
    pub(super) notes: Vec<String>,
}

/// The runs of one repeat, by the slugs of their parts.
pub(super) type Runs<'a> = BTreeMap<&'a str, &'a StudyRun>;

impl Study {
    /// Its parts, in the order in which they are played.
    pub(super) fn parts(&self) -> Vec<Part> {
        match self.rules.of {
            Kind::IoThreads => io_threads::parts(),
            Kind::DenseMode => dense_mode::parts(self),
        }
    }

    /// Its parts on a real engine; none if it has only a model.
    pub(super) fn engine_parts(&self) -> Vec<Part> {
        match self.rules.of {
            Kind::IoThreads => io_threads::engine::parts(),
            Kind::DenseMode => Vec::new(),
        }
    }

    /// How long a part takes on a real engine.
    pub(super) fn takes_on_engine(&self) -> Duration {
        io_threads::engine::takes(self.percent)
    }

    /// Plays a part on a real engine.
    pub(super) fn play_on_engine(&self, slug: &str) -> anyhow::Result<Made> {
        io_threads::engine::play(self.percent, slug)
    }

    /// About how long a part takes in virtual time.
    pub(super) fn takes(&self) -> Duration {
        let whole = match self.rules.of {
            Kind::IoThreads => Duration::from_secs(6),
            Kind::DenseMode => Duration::from_secs(20),
        };
        whole.mul_f64(self.percent as f64 / 100.0)
    }

    /// Plays a part.
    pub(super) fn play(&self, slug: &str, seed: u64) -> Made {
        match self.rules.of {
            Kind::IoThreads => io_threads::play(self, slug, seed),
            Kind::DenseMode => dense_mode::play(self, slug, seed),
        }
    }

    /// The figures that can be expected.
    pub(super) fn known(&self) -> &'static [Known] {
        match self.rules.of {
            Kind::IoThreads => io_threads::KNOWN,
            Kind::DenseMode => dense_mode::KNOWN,
        }
    }

    /// The figures of a repeat.
    pub(super) fn figures(&self, runs: &Runs<'_>) -> BTreeMap<&'static str, f64> {
        match self.rules.of {
            Kind::IoThreads => io_threads::figures(runs),
            Kind::DenseMode => dense_mode::figures(self, runs),
        }
    }

    /// The tables of a repeat.
    pub(super) fn tables(&self, runs: &Runs<'_>) -> Vec<StudyTable> {
        match self.rules.of {
            Kind::IoThreads => io_threads::tables(runs),
            Kind::DenseMode => dense_mode::tables(runs),
        }
    }

    /// The pictures of a repeat.
    pub(super) fn pictures(&self, runs: &Runs<'_>) -> Vec<Picture> {
        match self.rules.of {
            Kind::IoThreads => io_threads::pictures(runs),
            Kind::DenseMode => dense_mode::pictures(runs),
        }
    }

    /// The machine and the inputs in words.
    pub(super) fn inputs(&self) -> Vec<(String, String)> {
        let mut inputs: Vec<(String, String)> = match self.rules.of {
            Kind::IoThreads => io_threads::inputs().into(),
            Kind::DenseMode => dense_mode::inputs().into(),
        };
        let exits = self.rules.exit_ns.iter();
        let exits: Vec<String> = exits.map(|ns| format!("{} us", *ns as f64 / 1e3)).collect();
        inputs.push(("exit of a vCPU, an input".into(), exits.join(", ")));
        inputs
    }
}
