//! Experiments and stored runs for tests.

use std::path::Path;

use tidegate_sim::{Scenario, Variant, world};

use super::ab_test::store::{Block, Trial};
use super::findings::ab_test::AbResults;
use super::store::{Head, Piece, StoredRun};
use super::summary::way_piece;
use super::{AbTest, Directory, Entry, Experiment, On, Order};

/// An experiment of the program, at so many percent of its length.
pub(crate) fn entry(name: &str, percent: u64) -> Entry {
    let found = Entry::find(name).expect("it can be read");
    found.expect("it is there").scaled(percent)
}

/// The same, which is a scenario.
pub(crate) fn scenario(name: &str, percent: u64) -> Experiment {
    match entry(name, percent) {
        Entry::Scenario(experiment) => *experiment,
        Entry::AbTest(_) | Entry::Study(_) => panic!("{name} is no scenario"),
    }
}

/// The same, which is an A/B test.
pub(crate) fn ab_test(name: &str, percent: u64) -> AbTest {
    match entry(name, percent) {
        Entry::Scenario(_) | Entry::Study(_) => panic!("{name} is no A/B test"),
        Entry::AbTest(ab_test) => *ab_test,
    }
}

/// An order of some repeats.
pub(super) fn order<'a>(
    experiment: &'a Entry,
    on: &'a [On],
    repeat: u32,
    program: &'a str,
) -> Order<'a> {
    Order {
        experiment,
        on,
        repeat,
        seed: 1,
        program: Path::new(program),
        max_noise: None,
    }
}

/// A simulated run, as if it had been made there.
pub(crate) fn simulated(scenario: &Scenario, on: On, way: &Variant, repeat: u32) -> StoredRun {
    let head = Head::new(&scenario.name, &way_piece(scenario, way, on, repeat));
    let run = world::run(scenario, way, repeat.into()).expect("it can be modelled");
    StoredRun::of(head, scenario, &run)
}

/// A results directory with every way of a scenario, each run changed by `change`.
pub(crate) fn stored(
    place: &Path,
    experiment: &Experiment,
    on: On,
    repeats: u32,
    change: impl Fn(&Variant, u32, &mut StoredRun),
) -> Directory {
    let entry = Entry::from(experiment.clone());
    let directory = Directory::begin(place, &entry, 1, &[on], repeats);
    let directory = directory.expect("it is ours");
    for repeat in 1..=repeats {
        for way in experiment.ways_on(on) {
            let mut stored = simulated(&experiment.scenario, on, &way, repeat);
            change(&way, repeat, &mut stored);
            directory.store(&stored).expect("it can be written");
        }
    }
    directory
}

/// The results of an A/B test whose contestants differ by these factors.
pub(in crate::experiment) fn ab_results(path: &Path, name: &str, factors: &[f64]) -> AbResults {
    let ab_test = ab_test(name, 10);
    let entry = Entry::from(ab_test.clone());
    let directory = Directory::begin(path, &entry, 1, &[On::Engine], 1);
    let directory = directory.expect("it is empty");
    for (repeat, drift) in (1..=ab_test.rules.blocks).zip([1.0, 0.5, 2.0]) {
        for sweep in &ab_test.sweeps {
            for point in &sweep.points {
                let others = ab_test.contestants.iter().zip(factors);
                let own = others.filter(|(one, _)| sweep.contestants.contains(&one.name));
                let trials = own.map(|(one, factor)| Trial {
                    contestant: one.name.clone(),
                    iops: 2e6 * drift * factor,
                    size: point.work.size,
                    p50_us: 10.0 / factor,
                    p99_us: 20.0,
                    server_percent: 80.0 * drift,
                    client_percent: Some(99.0),
                    quiet: true,
                    ..Trial::default()
                });
                let piece = Piece {
                    on: On::Engine,
                    repeat,
                    slug: sweep.slug(&point.name),
                    words: point.name.clone(),
                };
                let block = Block {
                    head: Head::new(name, &piece),
                    sweep: sweep.name.clone(),
                    point: point.name.clone(),
                    trials: trials.collect(),
                    absent: Vec::new(),
                    failed: Vec::new(),
                };
                directory.store(&block).expect("it can be written");
            }
        }
    }
    let results = AbResults::open(path).expect("it can be read");
    results.expect("an A/B test")
}
