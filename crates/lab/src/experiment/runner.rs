//! Runs an experiment: one run after the other, each stored as soon as it has ended.
//!
//! Ways take turns, and turns at being first, so that a machine that changes meanwhile changes for all of them alike. What
//! a directory holds already is not made again: a course that was interrupted goes on where it was.
//!
//! # Always true
//! - A run that could not be made is reported as a problem, and the others are made.
//! - What is interrupted leaves whole runs and no daemon.

pub(super) mod ab_test;

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail};
use tidegate_sim::{Scenario, Variant, world};

use super::directory::{Directory, moment};
use super::store::{Busy, Late, StoredRun};
use super::summary::{way_slug, way_words};
use super::{Entry, Experiment, On};
use crate::array::Did;
use crate::attend;
use crate::interleaved::{TRIES, rotation};
use crate::measure::Meter;
use crate::play::{self, Performance};
use ab_test::Blocks;

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The experiment, at its length.
    pub experiment: &'a Entry,
    /// Where.
    pub on: &'a [On],
    /// How often.
    pub repeat: u32,
    /// Where the first repeat's chances begin.
    pub seed: u64,
    /// The Tidegate whose daemons are used.
    pub program: &'a Path,
    /// A run during which others had more of a processor than this is made again, twice at most.
    pub max_noise: Option<f64>,
}

/// One run that is to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Where.
    pub on: On,
    /// Which time.
    pub repeat: u32,
    /// In which way, as part of its file's name.
    pub slug: String,
    /// The same in words.
    pub words: String,
}

/// The runs of an experiment, of whichever kind.
pub(super) trait Runs {
    /// A run that was made.
    type Made;
    /// All of them, in the order in which they are made.
    fn pieces(&self) -> Vec<Piece>;
    /// How long one takes, as far as that can be known before.
    fn takes(&self, place: usize) -> Duration;
    /// Makes one, and calls `heed` often.
    fn make(&mut self, place: usize, heed: &mut dyn FnMut() -> Result<()>) -> Result<Self::Made>;
    /// Keeps it. What of it could not be made, and is to be made again, is the answer.
    fn keep(&mut self, made: Self::Made, directory: &Directory) -> Result<Option<String>>;
    /// Whether a run that is stored is to be made again.
    fn again(&self, piece: &Piece, directory: &Directory) -> Result<bool>;
}

/// The runs of a scenario.
struct Played<'a> {
    order: &'a Order<'a>,
    experiment: &'a Experiment,
    planned: Vec<(Piece, Variant)>,
    /// A simulated run needs this part of its own time, as seen of the last one.
    simulated: f64,
}

/// Who wants to know how it goes, and may stop it.
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

/// How a course ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All runs that can be made are there.
    Done,
    /// It was interrupted; what had ended is there.
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
        directory.miss(Path::new(on.word()), why)?;
    }
    match order.experiment {
        Entry::Scenario(experiment) => walk(&mut Played::of(order, experiment), directory, watcher),
        Entry::AbTest(ab_test) => walk(&mut Blocks::of(order, ab_test), directory, watcher),
    }
}

fn walk<R: Runs>(
    runs: &mut R,
    directory: &mut Directory,
    watcher: &mut dyn Watcher,
) -> Result<End> {
    let pieces = runs.pieces();
    let missing = |piece: &Piece| {
        let path = directory.run_path(piece.on, piece.repeat, &piece.slug);
        Ok(!path.is_file() || runs.again(piece, directory)?)
    };
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
                let problem = runs.keep(made, directory)?;
                watcher.ended(piece, took, problem.as_deref());
            }
            Err(error) => {
                let words = &piece.words;
                let says = format!("{}, {words}, repeat {}: {error:#}", piece.on, piece.repeat);
                watcher.ended(piece, took, Some(&says));
                let run = directory.run_path(piece.on, piece.repeat, &piece.slug);
                directory.miss(&run, says)?;
            }
        }
    }
    Ok(End::Done)
}

impl<'a> Played<'a> {
    /// All runs, the quick ones of the simulator first.
    fn of(order: &'a Order<'a>, experiment: &'a Experiment) -> Played<'a> {
        let scenario = &experiment.scenario;
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
                for place in rotation(first, ways.len()) {
                    let way = &ways[place];
                    let piece = Piece {
                        on,
                        repeat,
                        slug: way_slug(scenario, way),
                        words: way_words(scenario, way),
                    };
                    planned.push((piece, way.clone()));
                }
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
        self.planned
            .iter()
            .map(|(piece, _)| piece.clone())
            .collect()
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
            let others = stored.busy.foreign_percent + stored.busy.steal_percent;
            let disturbed = self.order.max_noise.is_some_and(|most| others > most);
            if !disturbed || rejected.len() + 1 >= TRIES {
                stored.rejected = rejected;
                return Ok(stored);
            }
            rejected.push(stored.busy);
        }
    }

    fn keep(&mut self, stored: StoredRun, directory: &Directory) -> Result<Option<String>> {
        if stored.on == On::Sim {
            self.simulated = stored.took_s / self.experiment.lasts().as_secs_f64().max(1e-3);
        }
        directory.keep(&stored)?;
        Ok(None)
    }

    fn again(&self, _piece: &Piece, _directory: &Directory) -> Result<bool> {
        Ok(false)
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
    let (began, begun) = (SystemTime::now(), Instant::now());
    let meter = Meter::start()?;
    let made = match piece.on {
        On::Engine => play::perform(order.program, scenario, way, seed, heed)?,
        On::Sim => simulate(scenario, way, seed, heed)?,
    };
    let (noise, own) = meter.end(Duration::ZERO)?;
    let took = begun.elapsed();
    let mut stored = StoredRun::of(scenario, piece.on, &made.run);
    stored.repeat = piece.repeat;
    stored.way = piece.slug.clone();
    stored.way_words = piece.words.clone();
    stored.began = moment(began);
    stored.took_s = took.as_secs_f64();
    stored.errors = made.errors;
    stored.late = (piece.on == On::Engine).then(|| {
        let (mean, most) = play::lateness(&made.array);
        Late {
            mean_us: mean.as_micros(),
            most_us: most.as_micros(),
        }
    });
    stored.busy = Busy::of(noise, own, took);
    Ok(stored)
}

/// Runs it in virtual time, on a thread of its own: who is interrupted does not wait for its end.
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
    use tidegate_sim::Policy;

    /// Counts, and stops after so many runs.
    struct Counter {
        ended: usize,
        most: usize,
    }

    impl Watcher for Counter {
        fn begins(&mut self, _piece: &Piece, _place: usize, _of: usize) {}
        fn goes(&mut self, _done: Duration, _of: Duration, _left: Duration) {}
        fn ended(&mut self, _piece: &Piece, _took: Duration, problem: Option<&str>) {
            assert_eq!(problem, None);
            self.ended += 1;
        }
        fn interrupted(&self) -> bool {
            self.ended >= self.most
        }
    }

    /// Lets everything happen.
    struct Patient;

    impl Watcher for Patient {
        fn begins(&mut self, _piece: &Piece, _place: usize, _of: usize) {}
        fn goes(&mut self, _done: Duration, _of: Duration, _left: Duration) {}
        fn ended(&mut self, _piece: &Piece, _took: Duration, _problem: Option<&str>) {}
        fn interrupted(&self) -> bool {
            false
        }
    }

    fn experiment() -> Entry {
        let found = Entry::find("sioc-1").expect("it can be read");
        found.expect("it is there").scaled(1)
    }

    #[test]
    fn ways_take_turns_at_being_first() {
        let experiment = experiment();
        let order = Order {
            experiment: &experiment,
            on: &[On::Engine],
            repeat: 2,
            seed: 1,
            program: Path::new("tidegate"),
            max_noise: None,
        };
        let Entry::Scenario(scenario) = &experiment else {
            panic!("sioc-1 is a scenario");
        };
        let played = Played::of(&order, scenario);
        let policies: Vec<Policy> = played.planned.iter().map(|(_, way)| way.policy).collect();
        let (ours, none) = (Policy::Ours, Policy::None);
        assert_eq!(policies, [ours, none, none, ours]);
        assert_eq!(order.expected(), 4 * (Duration::from_secs(6) + STAGE));
    }

    #[test]
    fn a_run_that_could_not_be_made_is_told_until_it_is_there() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let experiment = experiment();
        let go = |on: &[On], program: &str| {
            let order = Order {
                experiment: &experiment,
                on,
                repeat: 1,
                seed: 1,
                program: Path::new(program),
                max_noise: None,
            };
            let directory = Directory::begin(scratch.path(), &experiment, 1, 1, on, 1);
            let mut directory = directory.expect("it is ours");
            let end = run(&order, &mut directory, &mut Patient).expect("it can be kept");
            assert_eq!(end, End::Done);
            Findings::read(scratch.path()).expect("it can be read")
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
        for mut stored in directory.runs().expect("they can be read") {
            stored.on = On::Engine;
            directory.keep(&stored).expect("it can be written");
        }
        let last = go(&[On::Engine], "/bin/false");
        assert_eq!((last.problems.len(), last.missing), (0, 0));
    }

    #[test]
    fn what_was_interrupted_goes_on_where_it_was() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let experiment = experiment();
        let on = [On::Sim];
        let order = Order {
            experiment: &experiment,
            on: &on,
            repeat: 2,
            seed: 1,
            program: Path::new("tidegate"),
            max_noise: None,
        };
        let go = |most: usize| {
            let directory = Directory::begin(scratch.path(), &experiment, 1, 1, &on, 2);
            let mut directory = directory.expect("it is ours");
            let mut counter = Counter { ended: 0, most };
            let end = run(&order, &mut directory, &mut counter).expect("it can be kept");
            let stored = directory.runs().expect("they can be read").len();
            (end, counter.ended, stored)
        };
        assert_eq!(go(1), (End::Interrupted, 1, 1));
        assert_eq!(go(9), (End::Done, 3, 4));
        assert_eq!(go(9), (End::Done, 0, 4));
    }
}
