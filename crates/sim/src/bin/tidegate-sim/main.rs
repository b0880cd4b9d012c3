//! `tidegate-sim`: runs scenarios in virtual time and prints the results.
//!
//! `cargo xtask sim` builds and runs it. The exit code is 1 when an expectation or invariant fails.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidegate_sim::cache_policies::tables::MANUAL;
use tidegate_sim::cache_tables;
use tidegate_sim::compare::{ROWS, table};
use tidegate_sim::judge::{describe, judge, side_by_side, too_short};
use tidegate_sim::swarm::Tally;
use tidegate_sim::{Policy, Run, Scenario, Variant, Verdict};

mod cache_policies;
mod stack;

const USAGE: &str = "\
tidegate-sim [--scenarios DIR] [--scenario NAME] [--seed N] [--scale PERCENT]
             [--swarm MINUTES] [--seeds COUNT] [--side-by-side] [--told]
             [--trace FROM TO]
tidegate-sim --side-by-side [--seeds COUNT]
tidegate-sim --stack [--seed N] [--seeds COUNT] [--swarm MINUTES] [--shape NAME] [--runs COUNT]
tidegate-sim --cache-policies [--check] [--each-block] [--trace FILE]...
tidegate-sim --flash-cache

Without --scenario: all scenarios in DIR (scenarios/).
--scale: run phases at PERCENT of their length.
--swarm: run seeds from N on for that long, or COUNT of them.
--side-by-side: with --scenario, print each of its figures under each policy. Otherwise write the comparison in
  docs/io-control-compared.md again (default: 20 seeds).
--told: print the governors' events.
--trace: print the hosts' state in every tenth of a second, from second FROM to second TO.
--stack: run the data path through crashes: all schedules of short workloads, or random runs from seed N on.
--shape: with --stack, try this disk only, for instance 'mirror of 2'.
--runs: with --stack, run all schedules of a workload only if they are not more; otherwise sample as many (20000).
--cache-policies: compare cache policies, and write the tables in docs/flash-cache.md again.
--flash-cache: play the scenario flash-cache, and write its table in docs/flash-cache.md again. It takes some minutes.
";

struct Options {
    dir: PathBuf,
    scenario: Option<String>,
    /// The first seed, if one is named.
    seed: Option<u64>,
    stack: bool,
    scale: u64,
    swarm: Option<Duration>,
    seeds: u64,
    side_by_side: bool,
    events: bool,
    trace: Option<(u64, u64)>,
    shape: Option<String>,
    runs: Option<u64>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.split_first() {
        Some((first, rest)) if first == "--cache-policies" => cache_policies::run(rest),
        Some((first, [])) if first == "--flash-cache" => write_flash_cache(),
        _ => options(args.into_iter()).and_then(|options| dispatch(&options)),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the table of the scenario `flash-cache` into the manual.
fn write_flash_cache() -> Result<bool, String> {
    let scenario = read_scenario(Path::new("scenarios/flash-cache.toml"))?;
    let named = |error: &dyn std::fmt::Display| format!("{MANUAL}: {error}");
    let verdict = judge(&scenario, 1).map_err(|error| named(&error))?;
    for judged in &verdict.judgements {
        let text = describe(&scenario, &scenario.expects[judged.expect]);
        let holds = if judged.holds { "holds " } else { "MISSED" };
        println!("  {holds} {:10.3}  {text}", judged.value);
    }
    if let Some(breach) = verdict.breaches.first() {
        return Err(format!("breach at {:?}: {}", breach.at, breach.what));
    }
    // Now: the runs take minutes.
    let old = std::fs::read_to_string(MANUAL).map_err(|error| named(&error))?;
    let new = cache_tables::updated(&old, &scenario, &verdict.runs);
    let new = new.map_err(|error| named(&error))?;
    std::fs::write(MANUAL, new).map_err(|error| named(&error))?;
    println!("{MANUAL} is written");
    Ok(true)
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        dir: PathBuf::from("scenarios"),
        scenario: None,
        seed: None,
        stack: false,
        scale: 100,
        swarm: None,
        seeds: u64::MAX,
        side_by_side: false,
        events: false,
        trace: None,
        shape: None,
        runs: None,
    };
    while let Some(flag) = args.next() {
        let mut value = || {
            args.next()
                .ok_or_else(|| format!("{flag} needs a value\n\n{USAGE}"))
        };
        let number = |value: String| {
            let number: Result<u64, _> = value.parse();
            number.map_err(|_| format!("`{value}` is not a number\n\n{USAGE}"))
        };
        match flag.as_str() {
            "--scenarios" => options.dir = PathBuf::from(value()?),
            "--scenario" => options.scenario = Some(value()?),
            "--seed" => options.seed = Some(number(value()?)?),
            "--scale" => options.scale = number(value()?)?.clamp(1, 100),
            "--swarm" => options.swarm = Some(Duration::from_secs(60 * number(value()?)?)),
            "--seeds" => options.seeds = number(value()?)?,
            "--side-by-side" => options.side_by_side = true,
            "--stack" => options.stack = true,
            "--shape" => options.shape = Some(value()?),
            "--runs" => options.runs = Some(number(value()?)?),
            "--told" => options.events = true,
            "--trace" => {
                let (from, to) = (number(value()?)?, number(value()?)?);
                options.trace = Some((from, to));
            }
            "--help" | "-h" => {
                println!("{USAGE}");
                std::process::exit(0);
            }
            _ => return Err(format!("`{flag}` is not an option\n\n{USAGE}")),
        }
    }
    Ok(options)
}

fn dispatch(options: &Options) -> Result<bool, String> {
    if options.stack {
        let many = options.swarm.is_some() || options.seeds < u64::MAX;
        return stack::run(&stack::Options {
            seed: options.seed.or(many.then_some(1)),
            seeds: options.seeds,
            swarm: options.swarm,
            shape: options.shape.clone(),
            runs: options.runs,
        });
    }
    if options.side_by_side && options.scenario.is_none() {
        return write_comparison(options);
    }
    let mut scenarios = Vec::new();
    for path in files(&options.dir, options.scenario.as_deref())? {
        let scenario = read_scenario(&path)?;
        scenarios.push(match options.scale {
            100 => scenario,
            percent => scenario.scaled(percent),
        });
    }
    match (
        options.swarm.is_some() || options.seeds < u64::MAX,
        options.side_by_side,
    ) {
        (_, true) => compare(options, &scenarios),
        (true, false) => swarm(options, &scenarios),
        (false, false) => once(options, &scenarios),
    }
}

fn read_scenario(path: &Path) -> Result<Scenario, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    Scenario::read(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The file with the comparison table and the text around it.
const COMPARED: &str = "docs/io-control-compared.md";

fn write_comparison(options: &Options) -> Result<bool, String> {
    let seeds = if options.seeds == u64::MAX {
        20
    } else {
        options.seeds
    };
    let mut scenarios = BTreeMap::new();
    for row in ROWS {
        let path = options.dir.join(format!("{}.toml", row.scenario));
        scenarios.insert(row.scenario, read_scenario(&path)?);
    }
    let table = table(&scenarios, seeds).map_err(|error| error.to_string())?;
    let page = format!(
        "# I/O control compared\n\n\
         This page compares three policies on the same scenario files, in [the simulator](simulator.md). It is generated by\n\
         `cargo xtask sim --side-by-side --seeds {seeds}`.\n\n\
         The policies are no control, PARDA (FAST 2009) every four seconds as published, and ours. A cell is the median over\n\
         {seeds} seeds, with the least and the most in brackets. \"never\" means not within the phase: 20 s, and 300 s in\n\
         `sioc-3`. PARDA has neither reservations nor an automatic threshold. The arrays are models: compare the columns with\n\
         each other, not the figures with yours.\n\n\
         {table}"
    );
    std::fs::write(COMPARED, page).map_err(|e| format!("{COMPARED} cannot be written: {e}"))?;
    println!("{table}\n{COMPARED} is written");
    Ok(true)
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
    // An unreadable file counts as a scenario here, so that its error is reported.
    let meant = |path: &PathBuf| {
        let text = std::fs::read_to_string(path);
        text.map_or(true, |text| Scenario::is_meant(&text))
    };
    paths.retain(meant);
    paths.sort();
    Ok(paths)
}

fn once(options: &Options, scenarios: &[Scenario]) -> Result<bool, String> {
    let mut all = true;
    for scenario in scenarios {
        let began = Instant::now();
        let verdict =
            judge(scenario, options.seed.unwrap_or(1)).map_err(|error| error.to_string())?;
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
            let short = too_short(scenario, expect);
            let mark = match (judged.holds, expect.of_seeds) {
                (true, _) => "holds ",
                _ if short.is_some() => "------",
                (false, 100) => "MISSED",
                (false, _) => "missed",
            };
            let reason = short.map_or(String::new(), |reason| format!(" ({reason})"));
            println!(
                "  {mark} {:>10.3}  {}{reason}",
                judged.value,
                describe(scenario, expect)
            );
        }
        for breach in &verdict.breaches {
            println!("  BREACH at {:?}: {}", breach.at, breach.what);
        }
        if options.events {
            for run in verdict
                .runs
                .values()
                .filter(|run| run.variant.policy == Policy::Ours)
            {
                for (at, text) in &run.results.events {
                    println!("  event at {:.1} s: {text}", at.as_nanos() as f64 / 1e9);
                }
            }
        }
        if let Some((from, to)) = options.trace {
            trace(scenario, &verdict, from, to);
        }
        all &= verdict.holds(scenario);
    }
    Ok(all)
}

/// Prints each host's window, I/O in flight, measured latency and threshold, and each disk's I/Os, per bin.
fn trace(scenario: &Scenario, verdict: &Verdict, from: u64, to: u64) {
    let own = |run: &&Run| run.variant == Variant::of(Policy::Ours);
    let Some(run) = verdict.runs.values().find(own) else {
        return;
    };
    for bin in from * 10..to * 10 {
        let place = usize::try_from(bin).unwrap_or(usize::MAX);
        let mut line = format!("  {}.{} s:", bin / 10, bin % 10);
        for (host, series) in scenario.hosts.iter().zip(&run.results.hosts) {
            if let Some(bin) = series.bins.get(place) {
                let (window, in_flight) = (bin.window, bin.in_flight);
                let latency = bin.latency_us as f64 / 1e3;
                let threshold = bin.threshold_us as f64 / 1e3;
                let _ = write!(
                    line,
                    "  {} {in_flight}/{window:.1} {latency:.3} of {threshold:.3} ms",
                    host.name
                );
            }
        }
        for (disk, series) in scenario.disks.iter().zip(&run.results.disks) {
            if let Some(bin) = series.bins.get(place) {
                let _ = write!(line, "  {} {}", disk.name, bin.ios);
            }
        }
        println!("{line}");
    }
}

fn compare(options: &Options, scenarios: &[Scenario]) -> Result<bool, String> {
    println!("| scenario | figure | none | PARDA | ours |\n|---|---|---|---|---|");
    for scenario in scenarios {
        let rows =
            side_by_side(scenario, options.seed.unwrap_or(1)).map_err(|error| error.to_string())?;
        for (place, [ours, parda, none]) in rows {
            let figure = describe(scenario, &scenario.expects[place]);
            let name = &scenario.name;
            println!("| {name} | {figure} | {none:.3} | {parda:.3} | {ours:.3} |");
        }
    }
    Ok(true)
}

fn swarm(options: &Options, scenarios: &[Scenario]) -> Result<bool, String> {
    let began = Instant::now();
    let mut tallies = vec![Tally::default(); scenarios.len()];
    for seed in
        (options.seed.unwrap_or(1)..).take(usize::try_from(options.seeds).unwrap_or(usize::MAX))
    {
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
            scenario.name,
            tally.seeds,
            options.seed.unwrap_or(1)
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
                "  passed {:>4} of {}  least {least:.3} middle {middle:.3} most {most:.3}  {}{miss}",
                expected.passed,
                tally.seeds,
                describe(scenario, expect)
            );
        }
        for (seed, text) in &tally.breached {
            println!("  BREACH with seed {seed} at {text}");
        }
    }
    Ok(scenarios
        .iter()
        .zip(&tallies)
        .all(|(scenario, tally)| tally.holds(scenario)))
}
