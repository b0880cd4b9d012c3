//! `tidegate-sim --stack`: the crash simulator of the data path.
//!
//! With `--seed` one random run, or as many as `--seeds` or `--swarm` allow from there on; without, the enumeration of
//! short workloads.

use std::time::{Duration, Instant};
use tidegate_core::filter::FilterSpec;
use tidegate_sim::crash::explore::{Depth, Failure, explore, requests};
use tidegate_sim::crash::seeds;
use tidegate_sim::crash::store::Defects;
use tidegate_sim::crash::world::{Setup, Shape};

const DEPTH: Depth = Depth {
    longest: 3,
    faults: true,
    runs: 20_000,
};
/// Steps of a random run.
const STEPS: u32 = 2_000;

/// What to run.
pub(crate) struct Options {
    /// The first seed; `None` for the enumeration.
    pub(crate) seed: Option<u64>,
    /// Seeds, at most.
    pub(crate) seeds: u64,
    /// For how long.
    pub(crate) swarm: Option<Duration>,
    /// The only disk to try, by name; all of them if there is none.
    pub(crate) shape: Option<String>,
    /// Runs of a workload, at most; one that has more is sampled instead, so often.
    pub(crate) runs: Option<u64>,
}

/// Runs it and prints the result. Returns whether everything held.
///
/// # Errors
/// No disk has that name.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let tried = |name: &str| options.shape.as_ref().is_none_or(|only| only == name);
    let mut names = SHAPES.iter().map(|(name, ..)| *name);
    if !tried(WIDE_NAME) && !names.any(tried) {
        let names: Vec<&str> = SHAPES.iter().map(|(name, ..)| *name).collect();
        let names = names.join(", ");
        return Err(format!("the disks are {names}, {WIDE_NAME}"));
    }
    Ok(match options.seed {
        Some(seed) => random(options, seed, tried),
        None => enumerate(options, tried),
    })
}

/// The disks that are tried, by name, and where their first chunk ends.
const SHAPES: [(&str, Shape, u64); 8] = [
    ("plain", Shape::Plain, 1),
    ("movable", Shape::Movable, 1),
    ("stripe of 2", Shape::Stripe { targets: 2 }, 8),
    ("stripe of 3", Shape::Stripe { targets: 3 }, 8),
    ("stripe of 4", Shape::Stripe { targets: 4 }, 8),
    ("mirror of 2", Shape::Mirror { members: 2 }, 1),
    ("mirror of 3", Shape::Mirror { members: 3 }, 1),
    ("mirror+stripe of 4", Shape::MirrorStripe { members: 4 }, 8),
];
/// Sectors of a disk.
const SECTORS: u64 = 96;
/// Sectors of a disk of several regions of a mirror's state: two regions and a part of a third.
const WIDE: u64 = 2 * 2048 + 64;
const WIDE_NAME: &str = "wide mirror of 2";

fn setup(shape: Shape, sectors: u64) -> Setup {
    Setup {
        shape,
        sectors,
        filters: vec![FilterSpec::Stats],
        defects: Defects::default(),
    }
}

fn enumerate(options: &Options, tried: impl Fn(&str) -> bool) -> bool {
    let depth = Depth {
        runs: options.runs.unwrap_or(DEPTH.runs),
        ..DEPTH
    };
    let mut shapes = SHAPES.iter().filter(|(name, ..)| tried(name));
    shapes.all(|(name, shape, edge)| {
        let began = Instant::now();
        let found = explore(&setup(*shape, SECTORS), &requests(edge - 1), depth);
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "{name}: {} workloads of up to {} requests ({} sampled), {} runs, {seconds:.1} s",
            found.workloads, DEPTH.longest, found.sampled, found.runs
        );
        let failure = found.failure.as_ref();
        failure.is_none_or(|failure| breach("cargo xtask sim --stack", failure))
    })
}

fn random(options: &Options, first: u64, tried: impl Fn(&str) -> bool) -> bool {
    let began = Instant::now();
    let seeds = match options.swarm {
        Some(_) => options.seeds,
        // One seed, unless a number is given.
        None if options.seeds == u64::MAX => 1,
        None => options.seeds,
    };
    let (mut runs, mut ios) = (0, 0);
    for seed in first..first.saturating_add(seeds) {
        if options.swarm.is_some_and(|most| began.elapsed() > most) {
            break;
        }
        let small = SHAPES.map(|(name, shape, _)| (name, setup(shape, SECTORS)));
        let wide = (WIDE_NAME, setup(SHAPES[5].1, WIDE));
        let disks = small.into_iter().chain([wide]);
        for (name, setup) in disks.filter(|(name, _)| tried(name)) {
            match seeds::run(&setup, seed, STEPS) {
                Ok(completed) => (runs, ios) = (runs + 1, ios + completed),
                Err(failure) => {
                    println!("{name}:");
                    let command = format!("cargo xtask sim --stack --seed {seed} --shape '{name}'");
                    return breach(&command, &failure);
                }
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{runs} runs, {ios} I/Os, {seconds:.1} s");
    true
}

fn breach(command: &str, failure: &Failure) -> bool {
    println!("{}", failure.trace.join("\n"));
    println!("\n{}\nrepeat: {command}", failure.what);
    false
}
