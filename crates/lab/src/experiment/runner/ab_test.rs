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
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};

use super::{Order, Piece, Runs};
use crate::experiment::On;
use crate::experiment::ab_test::servers::{Servers, Window};
use crate::experiment::ab_test::store::{Absent, Block, Trial};
use crate::experiment::ab_test::{AbTest, Across, Sweep, slug};
use crate::experiment::directory::{Directory, moment};
use crate::experiment::store::{Busy, FORMAT};
use crate::interleaved::{TRIES, rotation};
use crate::measure::Meter;

/// How often a trial is looked after while it runs.
const LOOK: Duration = Duration::from_millis(100);
/// Of all trials one in so many may be made again.
const AGAIN: usize = 5;
/// And so many in any case.
const AGAIN_LEAST: usize = 6;

/// See the module.
pub(in crate::experiment) struct Blocks<'a> {
    ab_test: &'a AbTest,
    program: PathBuf,
    /// By place among the pieces: which block, sweep and point.
    planned: Vec<(u32, usize, usize)>,
    quiet: f64,
    seed: u64,
    servers: Option<Servers>,
    /// By contestant, once asked.
    lacks: BTreeMap<usize, Option<String>>,
    /// So many trials may be made again yet.
    again: usize,
}

/// A point as part of a file's name.
fn way(sweep: &Sweep, point: usize) -> String {
    slug(&format!("{}-{}", sweep.name, sweep.points[point].name))
}

impl<'a> Blocks<'a> {
    /// All blocks of an A/B test; none where it is not to be run on real servers.
    pub(in crate::experiment) fn of(order: &Order<'_>, ab_test: &'a AbTest) -> Blocks<'a> {
        let mut planned = Vec::new();
        if order.on.contains(&On::Engine) {
            for round in 1..=ab_test.rounds.saturating_mul(order.repeat) {
                for (sweep, points) in ab_test.sweeps.iter().enumerate() {
                    planned.extend((0..points.points.len()).map(|point| (round, sweep, point)));
                }
            }
        }
        let trials: usize = planned
            .iter()
            .map(|(_, sweep, _)| ab_test.sweeps[*sweep].contestants.len())
            .sum();
        Blocks {
            ab_test,
            program: order.program.to_owned(),
            planned,
            quiet: order.max_noise.unwrap_or(ab_test.quiet),
            seed: order.seed,
            servers: None,
            lacks: BTreeMap::new(),
            again: (trials / AGAIN).max(AGAIN_LEAST),
        }
    }

    /// A trial of one, or of several side by side, on a thread of its own, and whether they are to count.
    fn attempt(
        &mut self,
        contestants: &[usize],
        place: usize,
        heed: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<Trial>> {
        let (round, sweep, point) = self.planned[place];
        let ab_test = self.ab_test;
        let who = contestants.iter().map(|one| &ab_test.contestants[*one]);
        let who: Vec<_> = who.collect();
        let work = ab_test.sweeps[sweep].points[point].work;
        let window = Window {
            warm: ab_test.warm,
            span: ab_test.span(),
            seed: self.seed + u64::from(round) - 1,
        };
        let servers = self.servers.as_mut().context("the servers was not set")?;
        for one in &who {
            servers.prepare(one, &work)?;
        }
        heed()?;
        let servers = &*servers;
        let made = || match who.as_slice() {
            [one] => Ok(vec![servers.trial(one, &work, window)?]),
            all => servers.side_by_side(all, &work, window),
        };
        let mut trials = attended(servers, &made, heed)?;
        for trial in &mut trials {
            let busy = trial.noise;
            let steal = if ab_test.on_disk() {
                0.0
            } else {
                busy.steal_percent
            };
            trial.quiet = busy.foreign_percent <= self.quiet && steal <= self.quiet;
        }
        Ok(trials)
    }

    /// The same, made again if it was disturbed and may be.
    fn trials(
        &mut self,
        contestants: &[usize],
        place: usize,
        heed: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<Trial>> {
        let mut rejected: Vec<Vec<Busy>> = vec![Vec::new(); contestants.len()];
        let mut attempt = 0;
        loop {
            attempt += 1;
            let mut trials = self.attempt(contestants, place, heed)?;
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

    fn words(&self, place: usize) -> String {
        let (_, sweep, point) = self.planned[place];
        let sweep = &self.ab_test.sweeps[sweep];
        let name = &sweep.points[point].name;
        match sweep.across {
            Across::Vms if name == "1" => "1 VM".to_owned(),
            Across::Vms => format!("{name} VMs"),
            Across::Outstanding => format!("{name} outstanding"),
            Across::Size | Across::Work => name.clone(),
        }
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
        let (tell, heard) = channel();
        let body = move || {
            // Nobody listens any more once it was interrupted.
            let _heard = tell.send(trial());
        };
        let thread = std::thread::Builder::new().name("trial".into());
        thread
            .spawn_scoped(scope, body)
            .context("cannot start a thread")?;
        loop {
            match heard.recv_timeout(LOOK) {
                Ok(trial) => return trial,
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(error) = heed() {
                        servers.stop.store(true, Ordering::Relaxed);
                        return Err(error);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => bail!("a trial panicked"),
            }
        }
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
        let places = self.planned.iter().enumerate();
        let pieces = places.map(|(place, (round, sweep, point))| Piece {
            on: On::Engine,
            repeat: *round,
            slug: way(&self.ab_test.sweeps[*sweep], *point),
            words: self.words(place),
        });
        pieces.collect()
    }

    fn takes(&self, place: usize) -> Duration {
        let (_, sweep, _) = self.planned[place];
        let contestants = self.ab_test.sweeps[sweep].contestants.iter();
        let there = contestants.filter(|one| !matches!(self.lacks.get(one), Some(Some(_))));
        there.map(|one| self.ab_test.trial(*one)).sum()
    }

    fn make(&mut self, place: usize, heed: &mut dyn FnMut() -> Result<()>) -> Result<Block> {
        let (round, sweep, point) = self.planned[place];
        let (began, begun) = (SystemTime::now(), Instant::now());
        let meter = Meter::start()?;
        if self.servers.is_none() {
            self.servers = Some(Servers::new(&self.program, self.ab_test)?);
        }
        let ab_test = self.ab_test;
        let variants = &ab_test.sweeps[sweep];
        let (mut trials, mut absent, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let mut there = Vec::new();
        let first = usize::try_from(round).unwrap_or(0) + point;
        for place in rotation(first, variants.contestants.len()) {
            let contestant = variants.contestants[place];
            let who = &ab_test.contestants[contestant];
            if !self.lacks.contains_key(&contestant) {
                let servers = self.servers.as_mut().context("the servers was not set")?;
                self.lacks.insert(contestant, servers.lacks(who));
            }
            if let Some(Some(why)) = self.lacks.get(&contestant) {
                absent.push(Absent {
                    contestant: who.name.clone(),
                    why: why.clone(),
                });
                continue;
            }
            there.push(contestant);
        }
        let at_once = if ab_test.side_by_side {
            there.len().max(1)
        } else {
            1
        };
        for together in there.chunks(at_once) {
            match self.trials(together, place, heed) {
                Ok(made) => trials.extend(made),
                Err(error) => {
                    heed()?;
                    failed.extend(together.iter().map(|one| Absent {
                        contestant: ab_test.contestants[*one].name.clone(),
                        why: brief(&format!("{error:#}")),
                    }));
                }
            }
        }
        let (noise, own) = meter.end(Duration::ZERO)?;
        let took = begun.elapsed();
        Ok(Block {
            format: FORMAT,
            experiment: ab_test.name.clone(),
            on: On::Engine,
            repeat: round,
            way: way(variants, point),
            way_words: format!("{}: {}", variants.title, self.words(place)),
            sweep: variants.name.clone(),
            point: variants.points[point].name.clone(),
            began: moment(began),
            took_s: took.as_secs_f64(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            busy: Busy::of(noise, own, took),
            trials,
            absent,
            failed,
        })
    }

    fn keep(&mut self, made: Block, directory: &Directory) -> Result<Option<String>> {
        directory.store_block(&made)?;
        Ok(made.problem())
    }

    fn again(&self, piece: &Piece, directory: &Directory) -> Result<bool> {
        let round = directory.round(piece.on, piece.repeat, &piece.slug)?;
        Ok(round.is_some_and(|round| !round.failed.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Entry, Findings, PUBLISHED, page};
    use std::collections::BTreeSet;

    #[test]
    fn every_contest_is_published_and_its_points_have_files_of_their_own() {
        for entry in Entry::all().expect("they are experiments") {
            let Entry::AbTest(ab_test) = entry else {
                continue;
            };
            assert!(
                PUBLISHED.contains(&ab_test.name.as_str()),
                "{}",
                ab_test.name
            );
            for percent in [1, 10, 100] {
                let ab_test = ab_test.clone().scaled(percent);
                let mut slugs = BTreeSet::new();
                for sweep in &ab_test.sweeps {
                    for point in 0..sweep.points.len() {
                        let slug = way(sweep, point);
                        assert!(slugs.insert(slug.clone()), "{}: {slug}", ab_test.name);
                    }
                }
                assert!(ab_test.rounds >= 3);
            }
        }
    }

    #[test]
    fn of_what_a_server_said_the_first_and_the_last_line_are_told() {
        assert_eq!(brief("it ended"), "it ended");
        let says = "it ended: begun\n  serving\n  no room";
        assert_eq!(brief(says), "it ended: begun ... no room");
    }

    /// Two Tidegates, one of them on memory.
    const TWO: &str = r#"
        name = "two"
        title = "Two Tidegates"
        source = "made up"
        [contest]
        measure = "1s"
        warm = "50ms"
        rounds = 1
        [[contestant]]
        name = "one"
        server = "tidegate"
        [[contestant]]
        name = "other"
        server = "tidegate"
        store = "memory"
        [[sweep]]
        name = "vms"
        title = "By number of VMs"
        across = "vms"
        points = [1]
        work = { outstanding = 4, size = "4KiB", reads = 100, random = 0 }
        [[expect]]
        what = "iops"
        sweep = "vms"
        contestant = "one"
        against = { contestant = "other" }
        at-least = 0.001
        source = "made up"
    "#;

    #[test]
    fn a_trial_that_fails_is_a_problem_and_is_made_again_while_nobody_is_taken_to_be_absent() {
        let entry = Entry::read(TWO).expect("a contest");
        let Entry::AbTest(ab_test) = &entry else {
            panic!("it is a contest");
        };
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let directory = Directory::begin(scratch.path(), &entry, 100, 1, &[On::Engine], 1);
        let directory = directory.expect("it is empty");
        let order = Order {
            experiment: &entry,
            on: &[On::Engine],
            repeat: 1,
            seed: 1,
            program: std::path::Path::new("/bin/false"),
            max_noise: None,
        };
        let mut rounds = Blocks::of(&order, ab_test);
        let piece = rounds.pieces().remove(0);
        let round = rounds.make(0, &mut || Ok(())).expect("a round is made");
        assert_eq!((round.trials.len(), round.absent.len()), (0, 0));
        let failed: Vec<&str> = round
            .failed
            .iter()
            .map(|failed| failed.contestant.as_str())
            .collect();
        assert_eq!(failed.len(), 2, "each has its turn: {failed:?}");
        let problem = rounds.keep(round, &directory).expect("it can be written");
        assert!(problem.is_some_and(|says| says.contains("block 1")));
        assert!(rounds.again(&piece, &directory).expect("it can be read"));
        let findings = Findings::read(scratch.path()).expect("it can be read");
        assert_eq!((findings.problems.len(), findings.missing), (1, 0));
        assert!(!findings.holds());
        let written = page::write(scratch.path()).expect("it can be written");
        for path in [written.html, written.markdown] {
            let told = std::fs::read_to_string(path).expect("it is there");
            assert!(told.contains("block 1: "), "{told}");
        }
    }

    #[test]
    fn everybody_is_in_every_round_and_nothing_is_run_where_no_server_is() {
        let entry = Entry::find("million-iops").expect("it can be read");
        let entry = entry.expect("it is there").scaled(10);
        let Entry::AbTest(ab_test) = &entry else {
            panic!("it is a contest");
        };
        let order = |on| Order {
            experiment: &entry,
            on,
            repeat: 2,
            seed: 1,
            program: std::path::Path::new("tidegate"),
            max_noise: None,
        };
        let rounds = Blocks::of(&order(&[On::Engine, On::Sim]), ab_test);
        let pieces = rounds.pieces();
        assert_eq!(pieces.len(), 2 * 3 * (3 + 2));
        assert_eq!(
            (pieces[0].slug.as_str(), pieces[0].words.as_str()),
            ("vms-1", "1 VM")
        );
        assert_eq!(pieces.last().map(|piece| piece.repeat), Some(6));
        let trial = ab_test.trial(0);
        assert_eq!((rounds.takes(0), rounds.takes(3)), (2 * trial, 3 * trial));
        assert!(Blocks::of(&order(&[On::Sim]), ab_test).pieces().is_empty());
    }
}
