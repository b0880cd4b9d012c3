//! Runs a study part by part, each on a thread of its own: an interruption does not wait for its end. In virtual time first.

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
    /// A part in virtual time takes so long, as the last one did.
    took: Duration,
}

impl<'a> Parts<'a> {
    /// All parts of a study, in the places where it is to run.
    pub(super) fn of(order: &Order<'_>, study: &'a Study) -> Parts<'a> {
        let mut planned = Vec::new();
        for (on, parts) in [(On::Sim, study.parts()), (On::Engine, study.engine_parts())] {
            let repeats = if order.on.contains(&on) {
                order.repeat
            } else {
                0
            };
            planned.extend((1..=repeats).flat_map(|repeat| {
                let parts = parts.iter();
                parts.map(move |part| Piece {
                    on,
                    repeat,
                    slug: part.slug.clone(),
                    words: part.words.clone(),
                })
            }));
        }
        Parts {
            study,
            planned,
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

    fn takes(&self, place: usize) -> Duration {
        match self.planned[place].on {
            On::Sim => self.took,
            On::Engine => self.study.takes_on_engine(),
        }
    }

    fn make(&mut self, place: usize, heed: &mut dyn FnMut() -> Result<()>) -> Result<StudyRun> {
        let piece = &self.planned[place];
        let making = Making::begin(&self.study.name, piece)?;
        let seed = self.seed + u64::from(piece.repeat) - 1;
        let (study, slug) = (self.study.clone(), piece.slug.clone());
        let on = piece.on;
        let run = attend::start("study", move || match on {
            On::Sim => Ok(study.play(&slug, seed)),
            On::Engine => study.play_on_engine(&slug),
        })?;
        let made = attend::wait(&run, heed)??;
        let head = making.end()?;
        if on == On::Sim {
            self.took = Duration::from_secs_f64(head.took_s);
        }
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
