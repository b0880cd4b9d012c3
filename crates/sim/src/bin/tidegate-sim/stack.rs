//! `tidegate-sim --stack`: the crash simulator of the data path.
//!
//! With `--seed` one random run, or as many as `--seeds` or `--swarm` allow from there on; without, the enumeration of
//! short workloads.

use std::time::{Duration, Instant};
use tidegate_core::filter::FilterSpec;
use tidegate_core::layout::cache::CacheMode;
use tidegate_sim::crash::explore::{Depth, Failure, explore, requests};
use tidegate_sim::crash::store::Defects;
use tidegate_sim::crash::world::{FlashDevices, Load, Over, Setup, Shape};
use tidegate_sim::crash::{pool, seeds};

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
    let is_pool = tried(POOL) || tried(MIRRORED_POOL);
    if !DISKS.iter().any(|disk| tried(disk.name)) && !is_pool {
        let names = DISKS.iter().map(|disk| disk.name);
        let names = names.chain([POOL, MIRRORED_POOL]);
        let names: Vec<&str> = names.collect();
        return Err(format!("the disks are {}", names.join(", ")));
    }
    Ok(match options.seed {
        Some(seed) => random(options, seed, tried),
        None => enumerate(options, tried) && (!tried(POOL) || enumerate_pool()),
    })
}

/// The disks, snapshots and clones of a pool.
const POOL: &str = "pool";
/// The same, with several members of each column.
const MIRRORED_POOL: &str = "mirrored-pool";

/// A disk that is tried.
struct Disk {
    name: &'static str,
    shape: Shape,
    sectors: u64,
    /// The sector around which short workloads are enumerated, if they are: a chunk or a page ends there.
    edge: Option<u64>,
    /// What becomes of its flash devices while it is used.
    devices: FlashDevices,
    load: Load,
}

/// Sectors of a small disk.
const SMALL: u64 = 96;
/// Sectors of a disk of several regions of a mirror's state: two regions and a part of a third.
const WIDE: u64 = 2 * 2048 + 64;
/// Sectors of a disk with a cache: five pages and a part of a block.
const PAGES: u64 = 5 * 128 + 3;

const fn small(name: &'static str, shape: Shape, edge: u64) -> Disk {
    Disk {
        name,
        shape,
        sectors: SMALL,
        edge: Some(edge),
        devices: FlashDevices::Stay,
        load: Load::Short,
    }
}

const fn cached(name: &'static str, over: Over, devices: u8, mode: CacheMode) -> Disk {
    Disk {
        name,
        shape: Shape::Cached {
            over,
            devices,
            mode,
        },
        sectors: match over {
            Over::Plain => PAGES,
            Over::Stripe | Over::Mirror => 5 * 128,
        },
        edge: Some(128),
        devices: FlashDevices::Stay,
        load: Load::Short,
    }
}

/// The same, whose devices come and go.
const fn unplugged(name: &'static str, devices: u8, mode: CacheMode) -> Disk {
    Disk {
        edge: None,
        devices: FlashDevices::Unplugged,
        ..cached(name, Over::Plain, devices, mode)
    }
}

/// The same, whose devices are replaced, removed and added.
const fn exchanged(name: &'static str, mode: CacheMode) -> Disk {
    Disk {
        edge: None,
        devices: FlashDevices::Exchanged,
        ..cached(name, Over::Plain, 2, mode)
    }
}

/// The same, with requests that go past the cache.
const fn around(name: &'static str, over: Over, devices: u8, mode: CacheMode) -> Disk {
    Disk {
        edge: None,
        load: Load::Around,
        ..cached(name, over, devices, mode)
    }
}

const DISKS: [Disk; 28] = [
    small("plain", Shape::Plain, 1),
    small("movable", Shape::Movable, 1),
    small("stripe of 2", Shape::Stripe { targets: 2 }, 8),
    small("stripe of 3", Shape::Stripe { targets: 3 }, 8),
    small("stripe of 4", Shape::Stripe { targets: 4 }, 8),
    small("mirror of 2", Shape::Mirror { members: 2 }, 1),
    small("mirror of 3", Shape::Mirror { members: 3 }, 1),
    small("mirror+stripe of 4", Shape::MirrorStripe { members: 4 }, 8),
    Disk {
        name: "wide mirror of 2",
        shape: Shape::Mirror { members: 2 },
        sectors: WIDE,
        edge: None,
        devices: FlashDevices::Stay,
        load: Load::Short,
    },
    cached("write-through", Over::Plain, 1, CacheMode::WriteThrough),
    cached(
        "write-through on 2",
        Over::Plain,
        2,
        CacheMode::WriteThrough,
    ),
    cached("write-back", Over::Plain, 1, CacheMode::WriteBack),
    cached("write-back on 2", Over::Plain, 2, CacheMode::WriteBack),
    cached(
        "write-through over a stripe",
        Over::Stripe,
        1,
        CacheMode::WriteThrough,
    ),
    cached(
        "write-back over a stripe",
        Over::Stripe,
        2,
        CacheMode::WriteBack,
    ),
    cached(
        "write-through over a mirror",
        Over::Mirror,
        1,
        CacheMode::WriteThrough,
    ),
    cached(
        "write-back over a mirror",
        Over::Mirror,
        2,
        CacheMode::WriteBack,
    ),
    unplugged("write-through, unplugged", 1, CacheMode::WriteThrough),
    unplugged("write-through on 2, unplugged", 2, CacheMode::WriteThrough),
    unplugged("write-back on 2, unplugged", 2, CacheMode::WriteBack),
    exchanged("write-through, devices exchanged", CacheMode::WriteThrough),
    exchanged("write-back, devices exchanged", CacheMode::WriteBack),
    around(
        "write-through, around",
        Over::Plain,
        1,
        CacheMode::WriteThrough,
    ),
    around(
        "write-through on 2, around",
        Over::Plain,
        2,
        CacheMode::WriteThrough,
    ),
    around("write-back, around", Over::Plain, 1, CacheMode::WriteBack),
    around(
        "write-back on 2, around",
        Over::Plain,
        2,
        CacheMode::WriteBack,
    ),
    around(
        "write-back over a stripe, around",
        Over::Stripe,
        2,
        CacheMode::WriteBack,
    ),
    around(
        "write-back over a mirror, around",
        Over::Mirror,
        2,
        CacheMode::WriteBack,
    ),
];

fn setup(disk: &Disk) -> Setup {
    Setup {
        shape: disk.shape,
        sectors: disk.sectors,
        filters: vec![FilterSpec::Stats],
        defects: Defects::default(),
        devices: disk.devices,
        load: disk.load,
    }
}

fn enumerate(options: &Options, tried: impl Fn(&str) -> bool) -> bool {
    let depth = Depth {
        runs: options.runs.unwrap_or(DEPTH.runs),
        ..DEPTH
    };
    let mut disks = DISKS.iter().filter(|disk| tried(disk.name));
    disks.all(|disk| {
        let Some(edge) = disk.edge else { return true };
        let began = Instant::now();
        let found = explore(&setup(disk), &requests(edge - 1), depth);
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "{}: {} workloads of up to {} requests ({} sampled), {} runs, {seconds:.1} s",
            disk.name, found.workloads, DEPTH.longest, found.sampled, found.runs
        );
        let failure = found.failure.as_ref();
        failure.is_none_or(|failure| breach("cargo xtask sim --stack", failure))
    })
}

/// All workloads of three acts on a pool, with a crash at each step.
fn enumerate_pool() -> bool {
    use pool::explore::{Depth, acts, explore};
    let began = Instant::now();
    let depth = Depth {
        longest: 3,
        stride: 1,
    };
    let found = explore(&pool::Setup::default(), &acts(), depth);
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{POOL}: {} workloads of {} acts, {} runs, {seconds:.1} s",
        found.workloads, depth.longest, found.runs
    );
    let failure = found.failure.as_ref();
    failure.is_none_or(|failure| breach("cargo xtask sim --stack --shape pool", failure))
}

/// A random run of each disk that is tried. Returns the runs and their I/Os.
///
/// # Errors
/// The name of the disk that failed, and how.
fn random_of(
    seed: u64,
    tried: impl Fn(&str) -> bool,
) -> Result<(u64, u64), (&'static str, Failure)> {
    let (mut runs, mut ios) = (0, 0);
    for disk in DISKS.iter().filter(|disk| tried(disk.name)) {
        let run = seeds::run(&setup(disk), seed, STEPS);
        (runs, ios) = (runs + 1, ios + run.map_err(|failure| (disk.name, failure))?);
    }
    if tried(POOL) {
        let run = pool::seeds::run(seed, STEPS);
        (runs, ios) = (runs + 1, ios + run.map_err(|failure| (POOL, failure))?);
    }
    if tried(MIRRORED_POOL) {
        let run = pool::seeds::run_mirrored(seed, STEPS);
        let (completed, _) = run.map_err(|failure| (MIRRORED_POOL, failure))?;
        (runs, ios) = (runs + 1, ios + completed);
    }
    Ok((runs, ios))
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
        match random_of(seed, &tried) {
            Ok((more, completed)) => (runs, ios) = (runs + more, ios + completed),
            Err((name, failure)) => {
                println!("{name}:");
                let command = format!("cargo xtask sim --stack --seed {seed} --shape '{name}'");
                return breach(&command, &failure);
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
