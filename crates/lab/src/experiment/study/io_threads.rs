//! The study of I/O threads: every fixed set-up beside the policies, on phases with different needs.
//!
//! The parts are: the trace of phases with each fixed set-up and each policy; constant loads; a step of the load; messages at
//! rising rates; and one phase at each cost of an exit. `io_threads/report.rs` makes tables and pictures of them.
//!
//! # Units
//! Scores are useful work in cores. Names of figures have their units.

pub(super) mod engine;
mod report;

use std::collections::BTreeMap;

use tidegate_core::monitor::Limits;
use tidegate_core::monitor::Policy;
use tidegate_core::monitor::auto::Auto;
use tidegate_core::monitor::iocm::Iocm;
use tidegate_core::monitor::spdk::Spdk;
use tidegate_sim::threads::evaluate::{BEGIN, Row, SETTLES, fixed, reacts, with_policy};
use tidegate_sim::threads::phases;
use tidegate_sim::threads::{Idle, Outcome, SetUp, Trace};

use super::store::StudyRun;
use super::{Known, Made, Part, Runs, Study};

pub(super) use report::{pictures, tables};

/// Cores of the trace of phases, and of the messages.
const CORES: u16 = 4;
const MESSAGE_CORES: u16 = 8;
/// The length of a phase, and the shortest one that can be judged after [`SETTLES`].
const PHASE: u64 = 10_000_000_000;
const SHORTEST_PHASE: u64 = 2_000_000_000;
/// A fixed set-up has nothing to learn. At less than this part of its length, in percent, the study plays shorter phases with it.
const BRIEF: u64 = 20;
const BRIEF_PHASE: u64 = 700_000_000;
const BRIEF_SETTLES: u64 = 200_000_000;
/// The length of a constant load, of which the last minute counts.
const CONSTANT: u64 = 62_000_000_000;
const SHORTEST_CONSTANT: u64 = 4_000_000_000;
/// After it, changes at a constant load count.
const CALM: u64 = 2_000_000_000;
/// The length of the step of the load, before and after.
const STEP: u64 = 3_000_000_000;
/// Rates of messages: so many steps of so many a second.
const RATES: u64 = 13;
const RATE: u64 = 100_000;
/// A rate is served if 99 of 100 messages are answered, and 99 of 100 within a millisecond.
const SERVED: f64 = 0.99;
const PROMPT_US: f64 = 1_000.0;
/// The policies in the tables. `none` is the set-up with which they begin.
const POLICIES: [&str; 3] = ["auto", "iocm", "spdk"];

pub(super) const KNOWN: &[Known] = &[
    known(
        "least-phase",
        "auto in the phase where it is worst, by the best fixed set-up of that phase",
        "",
    ),
    known(
        "whole",
        "auto over the whole trace, by the best single fixed set-up",
        "",
    ),
    known(
        "p99",
        "auto's 99th percentile of latency, by that of the best fixed set-up of the phase, at worst",
        "",
    ),
    known(
        "reacts-auto",
        "time until auto changes something after a step of the load",
        " ms",
    ),
    known("reacts-iocm", "the same of iocm", " ms"),
    known("reacts-spdk", "the same of spdk", " ms"),
    known(
        "reacts-trace",
        "time until auto changes something when deep queues begin, at worst",
        " ms",
    ),
    known(
        "constant-changes",
        "changes of auto in a minute of constant load, at worst",
        "",
    ),
    known(
        "constant-least",
        "auto at a constant load, by the best fixed set-up, at worst",
        "",
    ),
    known(
        "pause",
        "pause of a disk that moves, 99th percentile",
        " us",
    ),
    known(
        "messages-small",
        "highest rate of messages of six small VMs with auto, by that with a thread for each VM",
        "",
    ),
    known("messages-large", "the same of one large VM", ""),
    known(
        "messages-mixed",
        "requests of the mixed phase with auto, by those with a thread for each VM",
        "",
    ),
];

const fn known(name: &'static str, words: &'static str, unit: &'static str) -> Known {
    Known { name, words, unit }
}

/// The machine and the costs.
pub(super) fn inputs() -> [(String, String); 4] {
    let costs = tidegate_sim::threads::Costs::MEASURED;
    let us = |ns: u64| format!("{} us", ns as f64 / 1e3);
    [
        (
            "machine".into(),
            format!(
                "{CORES} cores, 8 VMs with a vCPU and a disk each; for messages {MESSAGE_CORES} cores, and six VMs with 2 vCPUs or one with 8"
            ),
        ),
        (
            "measured costs".into(),
            format!(
                "wake-up of an idle core {}, switch {}, kick or call for a sleeper {}, for one that is awake {}, turn {}, request {}",
                us(costs.wake),
                us(costs.switch),
                us(costs.wakeup),
                us(costs.notify),
                us(costs.turn),
                us(costs.request)
            ),
        ),
        (
            "slices".into(),
            format!(
                "vCPUs {}, I/O threads {}",
                us(costs.vcpu_slice),
                us(costs.thread_slice)
            ),
        ),
        (
            "polling".into(),
            format!(
                "an idle thread polls for at most {} if requests come that fast and nobody waits for its core",
                us(costs.spin)
            ),
        ),
    ]
}

fn slug_of(set_up: &SetUp) -> String {
    format!("fixed-{}", set_up.words().replace(' ', "-"))
}

fn set_ups() -> Vec<SetUp> {
    SetUp::all(CORES.into())
}

/// All parts, with the trace's first.
pub(super) fn parts() -> Vec<Part> {
    let fixed = set_ups().into_iter();
    let mut parts: Vec<Part> = fixed
        .map(|set_up| Part::new(slug_of(&set_up), format!("{}, fixed", set_up.words())))
        .collect();
    for policy in POLICIES {
        parts.push(Part::new(format!("policy-{policy}"), policy));
    }
    for policy in POLICIES {
        let words = format!("{policy}, a step of the load");
        parts.push(Part::new(format!("step-{policy}"), words));
    }
    for (place, name) in ["A", "B", "C", "D"].into_iter().enumerate() {
        let words = format!("auto, phase {name} for a minute");
        parts.push(Part::new(format!("constant-{place}"), words));
    }
    for (vms, name) in [("small", "six small VMs"), ("large", "one large VM")] {
        for how in ["auto", "per-vm"] {
            let words = format!("messages of {name}, {how}");
            parts.push(Part::new(format!("messages-{vms}-{how}"), words));
        }
    }
    parts.push(Part::new(
        "exits",
        "the mixed phase at each cost of an exit",
    ));
    parts
}

fn policy(name: &str, cores: u16) -> Box<dyn Policy> {
    let limits = Limits { min: 1, max: cores };
    match name {
        "iocm" => Box::new(Iocm::new(limits)),
        "spdk" => Box::new(Spdk::new(limits)),
        _ => Box::new(Auto::new(limits)),
    }
}

fn length(whole: u64, percent: u64, shortest: u64) -> u64 {
    (whole / 100 * percent).max(shortest)
}

/// Plays a part.
pub(super) fn play(study: &Study, slug: &str, seed: u64) -> Made {
    let exit = study.rules.exit_ns[0];
    let phase = length(PHASE, study.percent, SHORTEST_PHASE);
    if let Some(name) = slug.strip_prefix("policy-") {
        let trace = phases::trace(phase, exit);
        let outcome = with_policy(&trace, policy(name, CORES), SETTLES, seed);
        return of_trace(&trace, outcome);
    }
    if let Some(name) = slug.strip_prefix("step-") {
        let trace = phases::step(STEP, exit);
        let outcome = with_policy(&trace, policy(name, CORES), SETTLES, seed);
        return of_trace(&trace, outcome);
    }
    if let Some(place) = slug.strip_prefix("constant-") {
        let lasts = length(CONSTANT, study.percent, SHORTEST_CONSTANT);
        let place = place.parse().unwrap_or(0);
        let trace = phases::constant(lasts, exit).swap_remove(place);
        let outcome = with_policy(&trace, policy("auto", CORES), SETTLES, seed);
        let late = outcome.changes.iter();
        let late = late.filter(|change| change.at >= CALM && (change.moved || change.resized));
        let changes = late.count() as f64;
        let mut made = of_trace(&trace, outcome);
        made.figures.insert("changes".into(), changes);
        return made;
    }
    if let Some(which) = slug.strip_prefix("messages-") {
        return messages(study, which, seed);
    }
    if slug == "exits" {
        return exits(study, seed);
    }
    let set_up = set_ups().into_iter().find(|set_up| slug_of(set_up) == slug);
    let (phase, settles) = match study.percent < BRIEF {
        true => (BRIEF_PHASE, BRIEF_SETTLES),
        false => (phase, SETTLES),
    };
    let trace = phases::trace(phase, exit);
    let outcome = fixed(&trace, set_up.unwrap_or(BEGIN), settles, seed);
    of_trace(&trace, outcome)
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// The figures of each phase of a trace.
fn of_trace(trace: &Trace, outcome: Outcome) -> Made {
    let row = Row::new(String::new(), None, trace, outcome);
    let outcome = &row.outcome;
    let mut made = Made::default();
    for (place, phase) in outcome.phases.iter().enumerate() {
        let mut figure = |name: &str, value: f64| {
            made.figures.insert(format!("phase{place}.{name}"), value);
        };
        let settled = (trace.phases[place].lasts - outcome.settles) as f64 / 1e9;
        figure("cores", row.settled[place] as f64 / 1e3);
        figure("cores_whole", row.whole[place] as f64 / 1e3);
        figure("iops", phase.answered as f64 / settled);
        figure("p99_us", micros(phase.latencies.quantile(9_900).as_nanos()));
        figure("threads", phase.threads as f64);
        if let Some(after) = reacts(trace, outcome, place) {
            figure("reacts_ms", after as f64 / 1e6);
        }
    }
    let pause = outcome.pauses.quantile(9_900).as_nanos();
    made.figures.insert("pause_p99_us".into(), micros(pause));
    let moves = outcome.changes.iter().filter(|change| change.moved).count();
    made.figures.insert("moves".into(), moves as f64);
    let ten = outcome.curve.chunks(10);
    let mut before = 0;
    made.line = ten
        .filter_map(|points| {
            let last = *points.last()?;
            let cores = (last - before) as f64 / 1e8;
            before = last;
            Some(cores)
        })
        .collect();
    let changes = outcome.changes.iter();
    made.notes = changes
        .map(|change| {
            let (at, threads) = (change.at as f64 / 1e9, change.threads);
            format!("{at:.3} s, {threads} threads: {}", change.words)
        })
        .collect();
    made
}

/// Messages at rising rates, with `auto` or a thread that sleeps for each VM, as hypervisors have them.
fn messages(study: &Study, which: &str, seed: u64) -> Made {
    let exit = study.rules.exit_ns[0];
    let small = which.starts_with("small");
    let lasts = length(2_000_000_000, study.percent, 400_000_000);
    let settles = lasts / 2;
    let mut made = Made::default();
    for step in 1..=RATES {
        let trace = phases::messages(small, step * RATE, lasts, exit);
        let outcome = match which.ends_with("auto") {
            true => with_policy(&trace, policy("auto", MESSAGE_CORES), settles, seed),
            false => fixed(&trace, per_vm(&trace), settles, seed),
        };
        let phase = &outcome.phases[0];
        let rate = phase.answered as f64 / ((lasts - settles) as f64 / 1e9);
        let p99 = micros(phase.latencies.quantile(9_900).as_nanos());
        let prefix = format!("rate{step:02}");
        made.figures.insert(format!("{prefix}.messages"), rate);
        made.figures.insert(format!("{prefix}.p99_us"), p99);
        made.figures
            .insert(format!("{prefix}.threads"), phase.threads as f64);
    }
    made
}

/// A thread for each VM, which sleeps when it has no work.
fn per_vm(trace: &Trace) -> SetUp {
    SetUp {
        threads: trace.vms.len(),
        idle: Idle::Sleep,
        own_cores: false,
    }
}

/// The mixed phase at each cost of an exit.
fn exits(study: &Study, seed: u64) -> Made {
    const MIXED: usize = 3;
    let lasts = length(4_000_000_000, study.percent, 1_500_000_000);
    let settles = 500_000_000;
    let mut made = Made::default();
    for exit in &study.rules.exit_ns {
        let trace = phases::constant(lasts, *exit).swap_remove(MIXED);
        let auto = with_policy(&trace, policy("auto", CORES), settles, seed);
        let per_vm = fixed(&trace, per_vm(&trace), settles, seed);
        let seconds = (lasts - settles) as f64 / 1e9;
        for (name, outcome) in [("auto", auto), ("per_vm", per_vm)] {
            let iops = outcome.phases[0].answered as f64 / seconds;
            made.figures.insert(format!("exit{exit:05}.{name}"), iops);
        }
    }
    made
}

/// A figure of each phase.
fn by_phase(run: &StudyRun, name: &str) -> Vec<f64> {
    let phases = (0..).map_while(|place| run.figure(&format!("phase{place}.{name}")));
    phases.collect()
}

/// The fixed set-ups that were played.
fn fixed_runs<'a>(runs: &Runs<'a>) -> Vec<&'a StudyRun> {
    let fixed = runs.iter().filter(|(slug, _)| slug.starts_with("fixed-"));
    fixed.map(|(_, run)| *run).collect()
}

/// The best of each phase among fixed set-ups, by a figure.
fn best(runs: &Runs<'_>, name: &str) -> Vec<f64> {
    best_of(&fixed_runs(runs), name)
}

/// The best of each phase among some runs.
fn best_of(runs: &[&StudyRun], name: &str) -> Vec<f64> {
    let mut best: Vec<f64> = Vec::new();
    for run in runs {
        let own = by_phase(run, name);
        best.resize(own.len(), 0.0);
        for (best, own) in best.iter_mut().zip(own) {
            *best = best.max(own);
        }
    }
    best
}

/// A run's figures by the best of each phase.
fn by_best(run: &StudyRun, best: &[f64], name: &str) -> Vec<f64> {
    let own = by_phase(run, name).into_iter();
    own.zip(best).map(|(own, best)| own / best).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn least(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    values.into_iter().reduce(f64::min)
}

fn most(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    values.into_iter().reduce(f64::max)
}

/// The whole trace's score of a run: the mean over the phases, each by its best.
fn whole(run: &StudyRun, best: &[f64]) -> f64 {
    mean(&by_best(run, best, "cores_whole"))
}

/// The 99th percentile of a run by that of each phase's best set-up, at worst.
fn latency(runs: &Runs<'_>, auto: &StudyRun, best: &[f64]) -> Option<f64> {
    let own = by_phase(auto, "p99_us");
    let phases = own.iter().enumerate().filter_map(|(place, own)| {
        // Of equally good ones the quickest counts.
        let good = fixed_runs(runs).into_iter();
        let good = good.filter(|run| by_phase(run, "cores")[place] >= 0.99 * best[place]);
        let p99 = least(good.map(|run| by_phase(run, "p99_us")[place]))?;
        Some(own / p99)
    });
    most(phases)
}

/// The highest rate that is served, with all below it.
fn served(run: &StudyRun) -> f64 {
    let steps = (1..=RATES).take_while(|step| {
        let figure = |name: &str| run.figure(&format!("rate{step:02}.{name}"));
        let offered = (step * RATE) as f64;
        let enough = figure("messages").is_some_and(|rate| rate >= SERVED * offered);
        enough && figure("p99_us").is_some_and(|p99| p99 <= PROMPT_US)
    });
    (steps.count() as u64 * RATE) as f64
}

/// The figures of a repeat, those of which all parts are there.
pub(super) fn figures(runs: &Runs<'_>) -> BTreeMap<&'static str, f64> {
    let mut figures = BTreeMap::new();
    let best_settled = best(runs, "cores");
    let best_whole = best(runs, "cores_whole");
    if let Some(auto) = runs.get("policy-auto")
        && fixed_runs(runs).len() == set_ups().len()
    {
        let own = by_best(auto, &best_settled, "cores");
        figures.extend(least(own).map(|least| ("least-phase", least)));
        let others = fixed_runs(runs).into_iter();
        let other = most(others.map(|run| whole(run, &best_whole)));
        figures.extend(other.map(|other| ("whole", whole(auto, &best_whole) / other)));
        figures.extend(latency(runs, auto, &best_settled).map(|p99| ("p99", p99)));
        let deep = [1, 7].map(|place| auto.figure(&format!("phase{place}.reacts_ms")));
        let deep = deep.into_iter().map(|after| after.unwrap_or(f64::INFINITY));
        figures.extend(most(deep).map(|most| ("reacts-trace", most)));
        figures.extend(auto.figure("pause_p99_us").map(|pause| ("pause", pause)));
        let constant = (0..4).filter_map(|place| {
            let slug = format!("constant-{place}");
            runs.get(slug.as_str()).map(|run| (place, *run))
        });
        let constant: Vec<(usize, &StudyRun)> = constant.collect();
        if constant.len() == 4 {
            let changes = constant.iter().filter_map(|(_, run)| run.figure("changes"));
            figures.extend(most(changes).map(|most| ("constant-changes", most)));
            let parts = constant.iter().filter_map(|(place, run)| {
                let own = run.figure("phase0.cores")?;
                Some(own / best_settled[*place])
            });
            figures.extend(least(parts).map(|least| ("constant-least", least)));
        }
    }
    for (name, slug) in [
        ("reacts-auto", "step-auto"),
        ("reacts-iocm", "step-iocm"),
        ("reacts-spdk", "step-spdk"),
    ] {
        let run = runs.get(slug);
        figures.extend(run.map(|run| {
            let after = run.figure("phase1.reacts_ms");
            (name, after.unwrap_or(f64::INFINITY))
        }));
    }
    for (name, own, other) in [
        (
            "messages-small",
            "messages-small-auto",
            "messages-small-per-vm",
        ),
        (
            "messages-large",
            "messages-large-auto",
            "messages-large-per-vm",
        ),
    ] {
        if let (Some(own), Some(other)) = (runs.get(own), runs.get(other)) {
            figures.insert(name, served(own) / served(other));
        }
    }
    if let Some(exits) = runs.get("exits") {
        let mixed = exit_ratios(exits)
            .first()
            .map(|(_, own, other)| own / other);
        figures.extend(mixed.map(|ratio| ("messages-mixed", ratio)));
    }
    figures
}

/// The costs of an exit, with the requests of `auto` and of a thread for each VM; in the order of the figures' names, with
/// that of the whole study first.
fn exit_ratios(run: &StudyRun) -> Vec<(String, f64, f64)> {
    let names = run.figures.keys();
    let exits = names.filter_map(|name| name.strip_prefix("exit")?.strip_suffix(".auto"));
    let rows = exits.filter_map(|exit| {
        let figure = |how: &str| run.figure(&format!("exit{exit}.{how}"));
        let us = exit.parse::<f64>().ok()? / 1e3;
        Some((format!("{us} us"), figure("auto")?, figure("per_vm")?))
    });
    rows.collect()
}
