//! Runs a study part by part, each on a thread of its own: an interruption does not wait for its end.

use std::time::Duration;

use anyhow::Result;

use super::{Order, Piece, Runs};
use crate::attend;
use crate::experiment::On;
use crate::experiment::store::Making;
use crate::experiment::study::Study;
use crate::experiment::study::store::StudyRun;

/// See the module.
pub(super) struct Parts<'a> {
    study: &'a Study,
    planned: Vec<Piece>,
    seed: u64,
    /// A part takes so long, as the last one did.
    took: Duration,
}

impl<'a> Parts<'a> {
    /// All parts of a study; none if it is not to run in virtual time.
    pub(super) fn of(order: &Order<'_>, study: &'a Study) -> Parts<'a> {
        let repeats = match order.on.contains(&On::Sim) {
            true => order.repeat,
            false => 0,
        };
        let parts = study.parts();
        let planned = (1..=repeats).flat_map(|repeat| {
            let parts = parts.iter();
            parts.map(move |part| Piece {
                on: On::Sim,
                repeat,
                slug: part.slug.clone(),
                words: part.words.clone(),
            })
        });
        Parts {
            study,
            planned: planned.collect(),
            seed: order.seed,
            took: study.takes(),
        }
    }
}

impl Runs for Parts<'_> {
    type Made = StudyRun;

    fn pieces(&self) -> Vec<Piece> {
        self.planned.clone()
    }

    fn takes(&self, _place: usize) -> Duration {
        self.took
    }

    fn make(&mut self, place: usize, heed: &mut dyn FnMut() -> Result<()>) -> Result<StudyRun> {
        let piece = &self.planned[place];
        let making = Making::begin(&self.study.name, piece)?;
        let seed = self.seed + u64::from(piece.repeat) - 1;
        let (study, slug) = (self.study.clone(), piece.slug.clone());
        let run = attend::start("simulator", move || study.play(&slug, seed))?;
        let made = attend::wait(&run, heed)?;
        let head = making.end()?;
        self.took = Duration::from_secs_f64(head.took_s);
        Ok(StudyRun {
            head,
            seed,
            figures: made.figures,
            line: made.line,
            notes: made.notes,
        })
    }

    fn problem(_made: &StudyRun) -> Option<String> {
        None
    }
}
