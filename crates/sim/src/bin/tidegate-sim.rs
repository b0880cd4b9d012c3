//! `tidegate-sim`: runs scenarios in virtual time and says what came out.
//!
//! `cargo xtask sim` builds and calls it. Exit code 1 when something does not hold.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidegate_sim::judge::{judge, side_by_side, words};
use tidegate_sim::swarm::Tally;
use tidegate_sim::{Policy, Scenario};

const USAGE: &str = "\
tidegate-sim [--scenarios DIR] [--scenario NAME] [--seed N] [--scale PERCENT]
             [--swarm MINUTES] [--seeds COUNT] [--side-by-side] [--told]

Without --scenario: all in DIR (scenarios/). --scale: phases at PERCENT of their length. --swarm: seeds from N on for
that long, or COUNT of them. --side-by-side: each figure under each policy. --told: what governors had to say.
";

struct Options {
    dir: PathBuf,
    scenario: Option<String>,
    seed: u64,
    scale: u64,
    swarm: Option<Duration>,
    seeds: u64,
    side_by_side: bool,
    told: bool,
}

fn main() -> ExitCode {
    match options(std::env::args().skip(1)).and_then(|options| go(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        dir: PathBuf::from("scenarios"),
        scenario: None,
        seed: 1,
        scale: 100,
        swarm: None,
        seeds: u64::MAX,
        side_by_side: false,
        told: false,
    };
    while let Some(flag) = args.next() {
        let mut word = || {
            args.next()
                .ok_or_else(|| format!("{flag} needs a value\n\n{USAGE}"))
        };
        let number = |word: String| {
            let number: Result<u64, _> = word.parse();
            number.map_err(|_| format!("`{word}` is no number\n\n{USAGE}"))
        };
        match flag.as_str() {
            "--scenarios" => options.dir = PathBuf::from(word()?),
            "--scenario" => options.scenario = Some(word()?),
            "--seed" => options.seed = number(word()?)?,
            "--scale" => options.scale = number(word()?)?.clamp(1, 100),
            "--swarm" => options.swarm = Some(Duration::from_secs(60 * number(word()?)?)),
            "--seeds" => options.seeds = number(word()?)?,
            "--side-by-side" => options.side_by_side = true,
            "--told" => options.told = true,
            "--help" | "-h" => {
                println!("{USAGE}");
                std::process::exit(0);
            }
            _ => return Err(format!("`{flag}` is no option\n\n{USAGE}")),
        }
    }
    Ok(options)
}

fn go(options: &Options) -> Result<bool, String> {
    let mut scenarios = Vec::new();
    for path in files(&options.dir, options.scenario.as_deref())? {
        let text = std::fs::read_to_string(&path)
            .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
        let scenario = Scenario::read(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        scenarios.push(match options.scale {
            100 => scenario,
            percent => scenario.scaled(percent),
        });
    }
    match (
        options.swarm.is_some() || options.seeds < u64::MAX,
        options.side_by_side,
    ) {
        (true, _) => swarm(options, &scenarios),
        (false, true) => compare(options, &scenarios),
        (false, false) => once(options, &scenarios),
    }
}

fn files(dir: &Path, name: Option<&str>) -> Result<Vec<PathBuf>, String> {
    if let Some(name) = name {
        return Ok(vec![dir.join(format!("{name}.toml"))]);
    }
    let entries = std::fs::read_dir(dir)
        .map_err(|error| format!("there are no scenarios in {}: {error}", dir.display()))?;
    let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "toml"))
        .collect();
    paths.sort();
    Ok(paths)
}

fn once(options: &Options, scenarios: &[Scenario]) -> Result<bool, String> {
    let mut all = true;
    for scenario in scenarios {
        let began = Instant::now();
        let verdict = judge(scenario, options.seed).map_err(|error| error.to_string())?;
        let started: u64 = verdict.runs.values().map(|run| run.started).sum();
        println!(
            "{}: {} (seed {}, fingerprint {:016x}, {} runs, {started} I/Os, {:.1} s)",
            scenario.name,
            scenario.title,
            verdict.seed,
            verdict.fingerprint,
            verdict.runs.len(),
            began.elapsed().as_secs_f64()
        );
        for judged in &verdict.judgements {
            let expect = &scenario.expects[judged.expect];
            let mark = match (judged.holds, expect.of_seeds) {
                (true, _) => "holds ",
                (false, 100) => "MISSED",
                (false, _) => "missed",
            };
            println!(
                "  {mark} {:>10.3}  {}",
                judged.value,
                words(scenario, expect)
            );
        }
        for breach in &verdict.breaches {
            println!("  BREACH at {:?}: {}", breach.at, breach.what);
        }
        if options.told {
            for run in verdict
                .runs
                .values()
                .filter(|run| run.variant.policy == Policy::Ours)
            {
                for (at, says) in &run.results.told {
                    println!("  told at {:.1} s: {says}", at.as_nanos() as f64 / 1e9);
                }
            }
        }
        all &= verdict.holds(scenario);
    }
    Ok(all)
}

fn compare(options: &Options, scenarios: &[Scenario]) -> Result<bool, String> {
    println!("| scenario | figure | none | PARDA | ours |\n|---|---|---|---|---|");
    for scenario in scenarios {
        let rows = side_by_side(scenario, options.seed).map_err(|error| error.to_string())?;
        for (place, [ours, parda, none]) in rows {
            let figure = words(scenario, &scenario.expects[place]);
            let name = &scenario.name;
            println!("| {name} | {figure} | {none:.3} | {parda:.3} | {ours:.3} |");
        }
    }
    Ok(true)
}

fn swarm(options: &Options, scenarios: &[Scenario]) -> Result<bool, String> {
    let began = Instant::now();
    let mut tallies = vec![Tally::default(); scenarios.len()];
    for seed in (options.seed..).take(usize::try_from(options.seeds).unwrap_or(usize::MAX)) {
        for (scenario, tally) in scenarios.iter().zip(&mut tallies) {
            tally
                .add(scenario, seed)
                .map_err(|error| error.to_string())?;
        }
        if options.swarm.is_some_and(|most| began.elapsed() >= most) {
            break;
        }
    }
    for (scenario, tally) in scenarios.iter().zip(&tallies) {
        println!(
            "{}: {} seeds from {}",
            scenario.name, tally.seeds, options.seed
        );
        for (expect, expected) in scenario.expects.iter().zip(&tally.expects) {
            let mut values = expected.values.clone();
            values.sort_unstable_by(f64::total_cmp);
            let at = |part: usize| values.get((values.len() - 1) * part / 100).copied();
            let [least, middle, most] = [0, 50, 100].map(|part| at(part).unwrap_or(f64::NAN));
            let miss = match expected.first_miss {
                None => String::new(),
                Some(seed) => format!("; first missed with seed {seed}"),
            };
            println!(
                "  held {:>4} of {}  least {least:.3} middle {middle:.3} most {most:.3}  {}{miss}",
                expected.held,
                tally.seeds,
                words(scenario, expect)
            );
        }
        for (seed, says) in &tally.breached {
            println!("  BREACH with seed {seed} at {says}");
        }
    }
    Ok(scenarios
        .iter()
        .zip(&tallies)
        .all(|(scenario, tally)| tally.holds(scenario)))
}
