//! A stored part of a study: its figures, its line over time, and what happened, as a file.
//!
//! # Units
//! As the figures' names say; a value of the line is of a hundred milliseconds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::experiment::store::{Head, Piece};

/// A part that was played.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StudyRun {
    /// What every stored run begins with.
    #[serde(flatten)]
    pub head: Head,
    /// The seed of its random numbers.
    pub seed: u64,
    /// Named figures.
    pub figures: BTreeMap<String, f64>,
    /// Useful work in cores, or what the study says.
    pub line: Vec<f64>,
    /// What happened, in order.
    pub notes: Vec<String>,
}

impl StudyRun {
    /// A figure; none if the part has none of this name.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.figures.get(name).copied()
    }
}

impl crate::experiment::directory::Stored for StudyRun {
    fn piece(&self) -> &Piece {
        &self.head.piece
    }

    fn table(&self) -> String {
        let figures = self.figures.iter();
        let lines: Vec<String> = figures
            .map(|(name, value)| format!("{name},{value}\n"))
            .collect();
        format!("figure,value\n{}", lines.concat())
    }
}
