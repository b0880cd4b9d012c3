//! Runs an experiment: one run after the other, each stored as soon as it has ended.
//!
//! The ways of a scenario alternate, and so does the first one: a change of the machine affects all of them alike. A run that
//! is stored already is not made again, so an interrupted experiment can be resumed.
//!
//! # Always true
//! - A run that could not be made is reported as a problem, and the others are made.
//! - An interruption leaves whole runs and no daemon.

pub(super) mod ab_test;
mod study;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tidegate_sim::{Scenario, Variant, world};

use super::directory::{Directory, Stored};
use super::store::{Late, Making, StoredRun};
use super::summary::way_piece;
use super::{Entry, Experiment, On};
use crate::array::Did;
use crate::attend;
use crate::interleaved::{TRIES, rotation};
use crate::play::{self, Performance};
use ab_test::Blocks;
use study::Parts;

pub use super::store::Piece;

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The experiment, at its length.
    pub experiment: &'a Entry,
    /// Where.
    pub on: &'a [On],
    /// How often.
    pub repeat: u32,
    /// The seed of the first repeat; each further repeat has the next one.
    pub seed: u64,
    /// The Tidegate whose daemons are used.
    pub program: &'a Path,
    /// A run during which others had more of a processor than this is repeated, twice at most.
    pub max_noise: Option<f64>,
}

/// The runs of an experiment, of whichever kind.
trait Runs {
    /// A run that was made.
    type Made: Stored;
    /// All of them, in the order in which they are made.
    fn pieces(&self) -> Vec<Piece>;
    /// How long one takes, as far as that can be known before.
    fn takes(&self, place: usize) -> Duration;
    /// Makes one, and calls `heed` often.
    fn make(&mut self, place: usize, heed: &mut dyn FnMut() -> Result<()>) -> Result<Self::Made>;
    /// What failed in it. A resumed run repeats it then.
    fn problem(made: &Self::Made) -> Option<String>;
    /// Whether a stored run is repeated.
    fn again(&self, _piece: &Piece, _directory: &Directory) -> Result<bool> {
        Ok(false)
    }
}

/// The runs of a scenario.
struct Played<'a> {
    order: &'a Order<'a>,
    experiment: &'a Experiment,
    planned: Vec<(Piece, Variant)>,
    /// A simulated run needs this part of its own time, as the last one did.
    simulated: f64,
}

/// Shows the progress, and may stop it.
pub trait Watcher {
    /// A run begins, one of so many; runs that are stored already count.
    fn begins(&mut self, piece: &Piece, place: usize, of: usize);
    /// Called often: how far this run is, and how long all that are left will take.
    fn goes(&mut self, done: Duration, of: Duration, left: Duration);
    /// It has ended, or why it could not be made.
    fn ended(&mut self, piece: &Piece, took: Duration, problem: Option<&str>);
    /// Whether to stop.
    fn interrupted(&self) -> bool;
}

/// How the runs of an experiment ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All runs that can be made are there.
    Done,
    /// They were interrupted. Finished runs are there.
    Interrupted,
}

/// A stage needs about so long to be set up and taken down.
const STAGE: Duration = Duration::from_millis(1_500);
/// Until one has been timed, a simulated run is taken to need this part of its own time.
const SIMULATED: f64 = 1.0 / 40.0;

impl Order<'_> {
    /// How long all its runs take, as far as that can be known before.
    #[must_use]
    pub fn expected(&self) -> Duration {
        match self.experiment {
            Entry::Scenario(experiment) => expected(&Played::of(self, experiment)),
            Entry::AbTest(ab_test) => expected(&Blocks::of(self, ab_test)),
            Entry::Study(study) => expected(&Parts::of(self, study)),
        }
    }
}

fn expected<R: Runs>(runs: &R) -> Duration {
    let places = 0..runs.pieces().len();
    places.map(|place| runs.takes(place)).sum()
}

/// Makes the runs that the directory does not hold yet.
///
/// # Errors
/// What came out cannot be stored.
pub fn run(order: &Order<'_>, directory: &mut Directory, watcher: &mut dyn Watcher) -> Result<End> {
    if let Some((on, why)) = order.experiment.missed_in(order.on) {
        directory.miss(on.word(), why)?;
    }
    match order.experiment {
        Entry::Scenario(experiment) => walk(&mut Played::of(order, experiment), directory, watcher),
        Entry::AbTest(ab_test) => walk(&mut Blocks::of(order, ab_test), directory, watcher),
        Entry::Study(study) => walk(&mut Parts::of(order, study), directory, watcher),
    }
}

fn walk<R: Runs>(
    runs: &mut R,
    directory: &mut Directory,
    watcher: &mut dyn Watcher,
) -> Result<End> {
    let pieces = runs.pieces();
    let missing =
        |piece: &Piece| Ok(!directory.run_path(piece).is_file() || runs.again(piece, directory)?);
    let missing: Vec<bool> = pieces.iter().map(missing).collect::<Result<_>>()?;
    for (place, piece) in pieces.iter().enumerate() {
        if !missing[place] {
            continue;
        }
        if watcher.interrupted() {
            return Ok(End::Interrupted);
        }
        watcher.begins(piece, place + 1, pieces.len());
        let later = (place + 1..pieces.len()).filter(|place| missing[*place]);
        let later: Duration = later.map(|place| runs.takes(place)).sum();
        let takes = runs.takes(place);
        let begun = Instant::now();
        let mut heed = || {
            let done = begun.elapsed();
            watcher.goes(done, takes, later + takes.saturating_sub(done));
            if watcher.interrupted() {
                bail!("interrupted");
            }
            Ok(())
        };
        let made = runs.make(place, &mut heed);
        if watcher.interrupted() && made.is_err() {
            return Ok(End::Interrupted);
        }
        let took = begun.elapsed();
        match made {
            Ok(made) => {
                directory.store(&made)?;
                watcher.ended(piece, took, R::problem(&made).as_deref());
            }
            Err(error) => {
                let Piece {
                    on, words, repeat, ..
                } = piece;
                let says = format!("{on}, {words}, repeat {repeat}: {error:#}");
                watcher.ended(piece, took, Some(&says));
                directory.miss(&piece.file(), says)?;
            }
        }
    }
    Ok(End::Done)
}

impl<'a> Played<'a> {
    /// All runs, the quick ones of the simulator first.
    fn of(order: &'a Order<'a>, experiment: &'a Experiment) -> Played<'a> {
        let mut planned = Vec::new();
        let mut on = order.on.to_vec();
        on.sort();
        on.reverse();
        for on in on {
            if on == On::Engine && experiment.only_simulated().is_some() {
                continue;
            }
            let ways = experiment.ways_on(on);
            for repeat in 1..=order.repeat {
                let first = usize::try_from(repeat - 1).unwrap_or(0);
                planned.extend(rotation(first, ways.len()).map(|place| {
                    let way = &ways[place];
                    (
                        way_piece(&experiment.scenario, way, on, repeat),
                        way.clone(),
                    )
                }));
            }
        }
        Played {
            order,
            experiment,
            planned,
            simulated: SIMULATED,
        }
    }
}

impl Runs for Played<'_> {
    type Made = StoredRun;

    fn pieces(&self) -> Vec<Piece> {
        let planned = self.planned.iter();
        planned.map(|(piece, _)| piece.clone()).collect()
    }

    fn takes(&self, place: usize) -> Duration {
        match self.planned[place].0.on {
            On::Engine => self.experiment.lasts() + STAGE,
            On::Sim => self.experiment.lasts().mul_f64(self.simulated),
        }
    }

    /// Makes a run, again if others disturbed it more than they may.
    fn make(&mut self, place: usize, heed: &mut dyn FnMut() -> Result<()>) -> Result<StoredRun> {
        let (piece, way) = &self.planned[place];
        let mut rejected = Vec::new();
        loop {
            let mut stored = attempt(self.order, self.experiment, piece, way, heed)?;
            if piece.on == On::Sim {
                let own = self.experiment.lasts().as_secs_f64().max(1e-3);
                self.simulated = stored.head.took_s / own;
            }
            let busy = stored.head.busy;
            let others = busy.foreign_percent + busy.steal_percent;
            let disturbed = self.order.max_noise.is_some_and(|most| others > most);
            if !disturbed || rejected.len() + 1 >= TRIES {
                stored.rejected = rejected;
                return Ok(stored);
            }
            rejected.push(busy);
        }
    }

    fn problem(_made: &StoredRun) -> Option<String> {
        None
    }
}

fn attempt(
    order: &Order<'_>,
    experiment: &Experiment,
    piece: &Piece,
    way: &Variant,
    heed: &mut dyn FnMut() -> Result<()>,
) -> Result<StoredRun> {
    let scenario = &experiment.scenario;
    let seed = order.seed + u64::from(piece.repeat) - 1;
    let making = Making::begin(&scenario.name, piece)?;
    let made = match piece.on {
        On::Engine => play::perform(order.program, scenario, way, seed, heed)?,
        On::Sim => simulate(scenario, way, seed, heed)?,
    };
    let mut stored = StoredRun::of(making.end()?, scenario, &made.run);
    stored.errors = made.errors;
    stored.late = (piece.on == On::Engine).then(|| {
        let (mean, most) = play::lateness(&made.array);
        Late {
            mean_us: mean.as_micros(),
            most_us: most.as_micros(),
        }
    });
    Ok(stored)
}

/// Runs it in virtual time, on a thread of its own: an interruption does not wait for its end.
fn simulate(
    scenario: &Scenario,
    way: &Variant,
    seed: u64,
    heed: &mut dyn FnMut() -> Result<()>,
) -> Result<Performance> {
    let (scenario, way) = (scenario.clone(), way.clone());
    let run = attend::start("simulator", move || world::run(&scenario, &way, seed))?;
    Ok(Performance {
        run: attend::wait(&run, heed)??,
        errors: 0,
        array: Did::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Findings;
    use crate::experiment::fixtures::{entry, order, scenario};
    use tidegate_sim::Policy;

    /// Counts, and stops after so many runs.
    struct Counter {
        ended: usize,
        most: usize,
    }

    impl Watcher for Counter {
        fn begins(&mut self, _piece: &Piece, _place: usize, _of: usize) {}
        fn goes(&mut self, _done: Duration, _of: Duration, _left: Duration) {}
        fn ended(&mut self, _piece: &Piece, _took: Duration, _problem: Option<&str>) {
            self.ended += 1;
        }
        fn interrupted(&self) -> bool {
            self.ended >= self.most
        }
    }

    /// Makes runs until so many have ended; how that ended, the number of ended runs, and the findings.
    fn go(order: &Order<'_>, path: &Path, most: usize) -> (End, usize, Findings) {
        let directory = Directory::begin(path, order.experiment, 1, order.on, order.repeat);
        let mut counter = Counter { ended: 0, most };
        let end = run(order, &mut directory.expect("it is ours"), &mut counter);
        let findings = Findings::read(path).expect("it can be read");
        (end.expect("it can be stored"), counter.ended, findings)
    }

    #[test]
    fn ways_alternate_and_so_does_the_first() {
        let (experiment, scenario) = (entry("sioc-1", 1), scenario("sioc-1", 1));
        let order = order(&experiment, &[On::Engine], 2, "tidegate");
        let played = Played::of(&order, &scenario);
        let policies: Vec<Policy> = played.planned.iter().map(|(_, way)| way.policy).collect();
        let (ours, none) = (Policy::Ours, Policy::None);
        assert_eq!(policies, [ours, none, none, ours]);
        assert_eq!(order.expected(), 4 * (Duration::from_secs(6) + STAGE));
    }

    #[test]
    fn a_run_that_could_not_be_made_is_reported_until_it_is_there() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let experiment = entry("sioc-1", 1);
        let go = |on: &[On], program: &str| {
            let order = order(&experiment, on, 1, program);
            let (end, _, findings) = go(&order, scratch.path(), usize::MAX);
            assert_eq!(end, End::Done);
            findings
        };
        let failed = go(&[On::Engine], "/bin/false");
        assert_eq!((failed.problems.len(), failed.missing), (2, 2));
        let later = go(&[On::Sim], "tidegate");
        assert_eq!(later.problems, failed.problems);
        assert_eq!(later.missing, 2);
        assert!(!later.holds());
        // As if they had been made at last.
        let directory = Directory::open(scratch.path()).expect("it can be read");
        let directory = directory.expect("it is there");
        for mut stored in directory.runs::<StoredRun>().expect("they can be read") {
            stored.head.piece.on = On::Engine;
            directory.store(&stored).expect("it can be written");
        }
        let last = go(&[On::Engine], "/bin/false");
        assert_eq!((last.problems.len(), last.missing), (0, 0));
    }

    #[test]
    fn an_interrupted_experiment_is_resumed() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let experiment = entry("sioc-1", 1);
        let order = order(&experiment, &[On::Sim], 2, "tidegate");
        for (most, end, ended, missing) in [
            (1, End::Interrupted, 1, 3),
            (9, End::Done, 3, 0),
            (9, End::Done, 0, 0),
        ] {
            let (this, made, findings) = go(&order, scratch.path(), most);
            assert_eq!((this, made, findings.missing), (end, ended, missing));
        }
    }
}
