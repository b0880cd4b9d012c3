//! The content of a report, built once for both of its formats.

use super::{Picture, parts};
use crate::draw::label;
use crate::experiment::Verdict;
use crate::statistics::Spread;

/// A report.
pub(super) struct Document {
    /// The suite's name, or the experiment's.
    pub(super) title: String,
    /// What the experiment shows; empty for a suite.
    pub(super) lede: String,
    /// Whether a check failed or a run is missing.
    pub(super) failed: bool,
    /// The result, failures first.
    pub(super) verdict: Vec<Block>,
    /// One for each experiment.
    pub(super) sections: Vec<Section>,
    /// How the report is written again.
    pub(super) footer: String,
}

/// The part of one experiment.
pub(super) struct Section {
    /// The experiment's name.
    pub(super) name: String,
    /// What it shows; empty if the document's title says it.
    pub(super) title: String,
    pub(super) blocks: Vec<Block>,
}

/// A part of a section.
pub(super) enum Block {
    Heading(String),
    Text(String),
    /// Text that must not be overlooked.
    Strong(String),
    /// Text of less weight.
    Note(String),
    List(Vec<Item>),
    /// Names and what they are.
    Facts(Vec<(String, String)>),
    Table(Table),
    /// A table that a summary leaves out.
    Detail(Table),
    /// Panels that belong together. Markdown has none.
    Charts(Picture),
}

/// An item of a list: a label with its address, and text.
pub(super) struct Item {
    pub(super) link: Option<(String, String)>,
    pub(super) text: String,
}

/// A table. One without a title is never folded away.
pub(super) struct Table {
    pub(super) title: String,
    /// Their names, parted by bars.
    pub(super) columns: &'static str,
    pub(super) rows: Vec<Vec<Cell>>,
}

/// A cell, with what stands smaller below its text.
#[derive(Default)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) below: Vec<String>,
    /// Labels and addresses.
    pub(super) links: Vec<(String, String)>,
    /// How it is set: `n` for a number, `v` for a verdict, `k` for words that stay together.
    pub(super) class: &'static str,
    /// How the row's check came out.
    pub(super) verdict: Option<Verdict>,
}

impl<T: Into<String>> From<T> for Item {
    fn from(text: T) -> Item {
        Item {
            link: None,
            text: text.into(),
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell {
            text: text.into(),
            ..Cell::default()
        }
    }
}

impl Cell {
    /// A number with its unit.
    pub(super) fn number(text: String) -> Cell {
        Cell {
            class: "n",
            ..text.into()
        }
    }

    /// A figure, with the range of its repeats below.
    pub(super) fn figure((spread, unit): (Option<Spread>, &str)) -> Cell {
        let (figure, range) = parts(spread, unit, label);
        Cell {
            below: range.into_iter().collect(),
            ..Cell::number(figure)
        }
    }
}
