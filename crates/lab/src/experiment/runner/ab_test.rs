//! Runs an A/B test block by block: a block has one trial of every contestant at one point.
//!
//! [`super`] runs the blocks one after the other and stores them. Another contestant is first in each block. A disturbed
//! trial is repeated, but only so often in a whole A/B test: a machine that is never quiet is reported.
//!
//! # Always true
//! - All contestants of a sweep are in a block, as a trial, as absent or as failed, with the reason.
//! - A contestant is absent if it lacks something on this machine. A failed trial is reported, and a resumed run repeats
//!   its block.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Order, Piece, Runs};
use crate::attend;
use crate::experiment::On;
use crate::experiment::ab_test::servers::{Servers, Window};
use crate::experiment::ab_test::store::{Absent, Block, Trial};
use crate::experiment::ab_test::{AbTest, Contestant, Point, Sweep};
use crate::experiment::directory::Directory;
use crate::experiment::store::{Busy, Making};
use crate::interleaved::{TRIES, rotation};

/// One in so many of all trials may be repeated.
const AGAIN: usize = 5;
/// And so many in any case.
const AGAIN_LEAST: usize = 6;

/// See the module.
pub(super) struct Blocks<'a> {
    ab_test: &'a AbTest,
    program: PathBuf,
    planned: Vec<Planned<'a>>,
    quiet: f64,
    seed: u64,
    servers: Option<Servers>,
    /// What contestants lack, by name, once it is known.
    lacks: BTreeMap<&'a str, Option<String>>,
    /// So many more trials may be repeated.
    again: usize,
}

/// A block that is to be made.
#[derive(Clone)]
struct Planned<'a> {
    piece: Piece,
    sweep: &'a Sweep,
    point: &'a Point,
    /// The place of the contestant that is first.
    first: usize,
}

impl<'a> Blocks<'a> {
    /// All blocks of an A/B test; none if it is not to run on real servers.
    pub(super) fn of(order: &Order<'_>, ab_test: &'a AbTest) -> Blocks<'a> {
        let mut planned = Vec::new();
        let blocks = match order.on.contains(&On::Engine) {
            true => ab_test.rules.blocks.saturating_mul(order.repeat),
            false => 0,
        };
        for block in 1..=blocks {
            for sweep in &ab_test.sweeps {
                let first = usize::try_from(block).unwrap_or(0)..;
                planned.extend(
                    sweep
                        .points
                        .iter()
                        .zip(first)
                        .map(|(point, first)| Planned {
                            piece: Piece {
                                on: On::Engine,
                                repeat: block,
                                slug: sweep.slug(&point.name),
                                words: sweep.words(&point.name),
                            },
                            sweep,
                            point,
                            first,
                        }),
                );
            }
        }
        let trials = planned.iter().map(|block| block.sweep.contestants.len());
        let trials: usize = trials.sum();
        Blocks {
            ab_test,
            program: order.program.to_owned(),
            planned,
            quiet: order.max_noise.unwrap_or(ab_test.rules.quiet),
            seed: order.seed,
            servers: None,
            lacks: BTreeMap::new(),
            again: (trials / AGAIN).max(AGAIN_LEAST),
        }
    }

    /// A trial of one, or of several side by side, on a thread of its own, and whether they count.
    fn attempt(
        &mut self,
        contestants: &[&Contestant],
        block: &Planned<'_>,
        heed: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<Trial>> {
        let (ab_test, work) = (self.ab_test, block.point.work);
        let window = Window {
            warm: ab_test.rules.warm,
            span: ab_test.span(),
            seed: self.seed + u64::from(block.piece.repeat) - 1,
        };
        let servers = self.servers.as_mut().context("the servers were not set")?;
        for one in contestants {
            servers.prepare(one, &work)?;
        }
        heed()?;
        let servers = &*servers;
        let made = || match contestants {
            [one] => Ok(vec![servers.trial(one, &work, window)?]),
            all => servers.side_by_side(all, &work, window),
        };
        let mut trials = attended(servers, &made, heed)?;
        for trial in &mut trials {
            let noise = trial.noise;
            let quiet = |percent: f64| percent <= self.quiet;
            trial.quiet =
                quiet(noise.foreign_percent) && (ab_test.on_disk() || quiet(noise.steal_percent));
        }
        Ok(trials)
    }

    /// The same, repeated if it was disturbed and may be.
    fn trials(
        &mut self,
        contestants: &[&Contestant],
        block: &Planned<'_>,
        heed: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<Trial>> {
        let mut rejected: Vec<Vec<Busy>> = vec![Vec::new(); contestants.len()];
        let mut attempt = 0;
        loop {
            attempt += 1;
            let mut trials = self.attempt(contestants, block, heed)?;
            let quiet = trials.iter().all(|trial| trial.quiet);
            if quiet || self.again < trials.len() || attempt >= TRIES {
                for (trial, rejected) in trials.iter_mut().zip(rejected) {
                    trial.rejected = rejected;
                }
                return Ok(trials);
            }
            self.again -= trials.len();
            for (rejected, trial) in rejected.iter_mut().zip(trials) {
                rejected.push(trial.noise);
            }
        }
    }

    /// What a contestant lacks on this machine, if anything.
    fn lacks(&mut self, contestant: &'a Contestant) -> Result<Option<String>> {
        if self.servers.is_none() {
            self.servers = Some(Servers::new(&self.program, self.ab_test)?);
        }
        let servers = self.servers.as_mut().context("the servers were not set")?;
        let lacks = self.lacks.entry(&contestant.name);
        Ok(lacks.or_insert_with(|| servers.lacks(contestant)).clone())
    }
}

/// Runs trials on a thread of their own, so that progress is shown meanwhile. An interruption ends a guest at once, and
/// waits for the end of anything else: seconds, and no server is left.
fn attended(
    servers: &Servers,
    trial: &(dyn Fn() -> Result<Vec<Trial>> + Sync),
    heed: &mut dyn FnMut() -> Result<()>,
) -> Result<Vec<Trial>> {
    std::thread::scope(|scope| {
        let (sender, receiver) = channel();
        let body = move || {
            // Nobody listens any more once it was interrupted.
            let _received = sender.send(trial());
        };
        let thread = std::thread::Builder::new().name("trial".into());
        let started = thread.spawn_scoped(scope, body);
        started.context("cannot start a thread")?;
        attend::wait(&receiver, heed).unwrap_or_else(|error| {
            servers.stop.store(true, Ordering::Relaxed);
            Err(error)
        })
    })
}

/// What went wrong, without all that a server said before: its first line and its last.
fn brief(says: &str) -> String {
    let mut lines = says.lines();
    let first = lines.next().unwrap_or_default();
    match lines.last() {
        None => first.to_owned(),
        Some(last) => format!("{first} ... {}", last.trim()),
    }
}

impl Runs for Blocks<'_> {
    type Made = Block;

    fn pieces(&self) -> Vec<Piece> {
        let planned = self.planned.iter();
        planned.map(|block| block.piece.clone()).collect()
    }

    fn takes(&self, place: usize) -> Duration {
        let contestants = self.planned[place].sweep.contestants.iter();
        let there =
            contestants.filter(|one| !matches!(self.lacks.get(one.as_str()), Some(Some(_))));
        there.map(|one| self.ab_test.trial(one)).sum()
    }

    fn make(&mut self, place: usize, heed: &mut dyn FnMut() -> Result<()>) -> Result<Block> {
        let planned = self.planned[place].clone();
        let (ab_test, sweep) = (self.ab_test, planned.sweep);
        let piece = Piece {
            words: format!("{}: {}", sweep.title, planned.piece.words),
            ..planned.piece.clone()
        };
        let making = Making::begin(&ab_test.name, &piece)?;
        let (mut trials, mut absent, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let mut there = Vec::new();
        let names = &sweep.contestants;
        let order = rotation(planned.first, names.len()).map(|place| &names[place]);
        for contestant in order.filter_map(|name| ab_test.contestant(name)) {
            match self.lacks(contestant)? {
                Some(why) => absent.push(Absent::of(contestant, why)),
                None => there.push(contestant),
            }
        }
        let at_once = match ab_test.rules.side_by_side {
            true => there.len().max(1),
            false => 1,
        };
        for together in there.chunks(at_once) {
            match self.trials(together, &planned, heed) {
                Ok(made) => trials.extend(made),
                Err(error) => {
                    heed()?;
                    let why = brief(&format!("{error:#}"));
                    failed.extend(together.iter().map(|one| Absent::of(one, why.clone())));
                }
            }
        }
        Ok(Block {
            head: making.end()?,
            sweep: sweep.name.clone(),
            point: planned.point.name.clone(),
            trials,
            absent,
            failed,
        })
    }

    fn problem(made: &Block) -> Option<String> {
        made.problem()
    }

    fn again(&self, piece: &Piece, directory: &Directory) -> Result<bool> {
        let block: Option<Block> = directory.run(piece)?;
        Ok(block.is_some_and(|block| !block.failed.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::fixtures::{ab_test, entry, order};
    use crate::experiment::{Entry, Findings, page};
    use std::collections::BTreeSet;

    #[test]
    fn the_points_of_every_ab_test_have_files_of_their_own() {
        for entry in Entry::all().expect("they are experiments") {
            let Entry::AbTest(ab_test) = entry else {
                continue;
            };
            let name = &ab_test.name;
            for percent in [1, 10, 100] {
                let ab_test = ab_test.clone().scaled(percent);
                let mut slugs = BTreeSet::new();
                for sweep in &ab_test.sweeps {
                    for point in &sweep.points {
                        let slug = sweep.slug(&point.name);
                        assert!(slugs.insert(slug.clone()), "{name}: {slug}");
                    }
                }
                assert!(ab_test.rules.blocks >= 3);
            }
        }
    }

    #[test]
    fn of_a_servers_log_the_first_and_the_last_line_are_reported() {
        assert_eq!(brief("it ended"), "it ended");
        let says = "it ended: begun\n  serving\n  no room";
        assert_eq!(brief(says), "it ended: begun ... no room");
    }

    #[test]
    fn a_failed_trial_is_a_problem_and_is_repeated_and_no_contestant_is_absent() {
        let text = include_str!("../../../../../scenarios/filter-overhead.toml");
        let text = text.replace("side-by-side = true", "");
        let entry = Entry::read(&text).expect("an A/B test").scaled(1);
        let Entry::AbTest(ab_test) = &entry else {
            panic!("it is an A/B test");
        };
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let directory = Directory::begin(scratch.path(), &entry, 1, &[On::Engine], 1);
        let directory = directory.expect("it is empty");
        let order = order(&entry, &[On::Engine], 1, "/bin/false");
        let mut blocks = Blocks::of(&order, ab_test);
        let piece = blocks.pieces().remove(0);
        let block = blocks.make(0, &mut || Ok(())).expect("a block is made");
        assert_eq!((block.trials.len(), block.absent.len()), (0, 0));
        assert_eq!(block.failed.len(), 2, "each has its trial: {block:?}");
        directory.store(&block).expect("it can be written");
        let problem = block.problem().unwrap_or_default();
        assert!(problem.contains("block 1"), "{problem}");
        assert!(blocks.again(&piece, &directory).expect("it can be read"));
        let findings = Findings::read(scratch.path()).expect("it can be read");
        assert_eq!(findings.problems, [problem]);
        assert!(!findings.holds());
        let written = page::write(scratch.path()).expect("it can be written");
        for path in [written.html, written.markdown] {
            let report = std::fs::read_to_string(path).expect("it is there");
            assert!(report.contains("block 1: "), "{report}");
        }
    }

    #[test]
    fn every_contestant_is_in_every_block_and_none_runs_in_virtual_time() {
        let (entry, ab_test) = (entry("million-iops", 10), ab_test("million-iops", 10));
        let on = [On::Engine, On::Sim];
        let blocks = Blocks::of(&order(&entry, &on, 2, "tidegate"), &ab_test);
        let pieces = blocks.pieces();
        assert_eq!(pieces.len(), 2 * 3 * (3 + 2));
        let first = (pieces[0].slug.as_str(), pieces[0].words.as_str());
        assert_eq!(first, ("vms-1", "1 VM"));
        assert_eq!(pieces.last().map(|piece| piece.repeat), Some(6));
        let trial = ab_test.trial("tidegate");
        assert_eq!((blocks.takes(0), blocks.takes(3)), (2 * trial, 3 * trial));
        let simulated = Blocks::of(&order(&entry, &on[1..], 2, "tidegate"), &ab_test);
        assert!(simulated.pieces().is_empty());
    }
}
