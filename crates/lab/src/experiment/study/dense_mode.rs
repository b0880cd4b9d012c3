//! The study of dense mode: how many VMs of a web farm a host carries at two ceilings, with it and without it.
//!
//! The parts are: 25 and 50 web requests a second of each VM, at each cost of an exit.
//!
//! # Units
//! Names of figures have their units.

use std::collections::BTreeMap;

use tidegate_sim::threads::Costs;
use tidegate_sim::threads::web_farm::{CORES, Farm, GROUP, Point, WORK, is_dense};

use super::{Known, Made, Part, Runs, Study, StudyTable};
use crate::draw::{Across, Line, Lines, Picture, Up, label};
use crate::experiment::study::store::StudyRun;

/// Web requests a second of each VM.
const RATES: [u64; 2] = [25, 50];
/// The length of a run, and the shortest one.
const LASTS: u64 = 4_000_000_000;
const SHORTEST: u64 = 1_500_000_000;
const SETTLES: u64 = 500_000_000;
/// At less than this part of its length, in percent, the study has the first two costs of an exit only.
const BRIEF: u64 = 20;

pub(super) const KNOWN: &[Known] = &[
    known(
        "cpu-25",
        "VMs at 90 % of the CPUs with 25 requests a second, dense by not dense",
    ),
    known("cpu-50", "the same with 50 requests a second"),
    known(
        "response-25",
        "VMs at 100 ms with 25 requests a second, dense by not dense",
    ),
    known("response-50", "the same with 50 requests a second"),
    known(
        "least",
        "VMs at either ceiling at any cost of an exit, dense by not dense, at least",
    ),
    known(
        "signals",
        "kicks and calls of a request at 90 % of the CPUs, dense by not dense, at most",
    ),
    known(
        "turns-on",
        "the part of all farms at a ceiling for which `auto` turns dense mode on",
    ),
];

const fn known(name: &'static str, words: &'static str) -> Known {
    Known {
        name,
        words,
        unit: "",
    }
}

/// The machine and the costs.
pub(super) fn inputs() -> [(String, String); 3] {
    let costs = Costs::MEASURED;
    let us = |ns: u64| format!("{} us", ns as f64 / 1e3);
    [
        (
            "machine".into(),
            format!("{CORES} cores, VMs with a vCPU and a disk each, one I/O thread"),
        ),
        (
            "web request, an input".into(),
            format!("{} of a vCPU, {GROUP} requests of 12.5 KiB", us(WORK)),
        ),
        (
            "measured costs".into(),
            format!(
                "wake-up of an idle core {}, switch {}, kick or call for a sleeper {}, turn {}, request {}",
                us(costs.wake),
                us(costs.switch),
                us(costs.wakeup),
                us(costs.turn),
                us(costs.request)
            ),
        ),
    ]
}

fn slug(rate: u64, exit: u64) -> String {
    format!("rate{rate}-exit{exit:05}")
}

/// The costs of an exit that are played.
fn exits(study: &Study) -> &[u64] {
    let all = &study.rules.exit_ns;
    match study.percent < BRIEF {
        true => &all[..all.len().min(2)],
        false => all,
    }
}

/// All parts.
pub(super) fn parts(study: &Study) -> Vec<Part> {
    let exits = exits(study).iter();
    let parts = exits.flat_map(|exit| {
        RATES.map(|rate| {
            let us = *exit as f64 / 1e3;
            let words = format!("{rate} requests a second, an exit of {us} us");
            Part::new(slug(rate, *exit), words)
        })
    });
    parts.collect()
}

/// Plays a part.
pub(super) fn play(study: &Study, own: &str, seed: u64) -> Made {
    let mut made = Made::default();
    let all = RATES
        .into_iter()
        .flat_map(|rate| exits(study).iter().map(move |exit| (rate, *exit)));
    for (rate, exit) in all.filter(|(rate, exit)| slug(*rate, *exit) == own) {
        let farm = Farm {
            rate,
            exit,
            lasts: (LASTS / 100 * study.percent).max(SHORTEST),
            settles: SETTLES,
            seed,
        };
        made.figures.insert("rate".into(), rate as f64);
        made.figures.insert("exit_us".into(), exit as f64 / 1e3);
        for (dense, name) in [(false, "off"), (true, "on")] {
            of_mode(&farm, dense, name, &mut made);
        }
    }
    made
}

/// The figures of a farm with dense mode, or without it.
fn of_mode(farm: &Farm, dense: bool, name: &str, made: &mut Made) {
    let mut played = BTreeMap::new();
    let response = farm.most(dense, &mut played, Point::is_quick);
    let cpu = farm.most(dense, &mut played, Point::has_room);
    let mut figure = |what: &str, value: f64| {
        made.figures.insert(format!("{name}.{what}"), value);
    };
    figure("vms_response", response as f64);
    figure("vms_cpu", cpu as f64);
    let Some(point) = played.get(&cpu) else {
        return;
    };
    figure("p95_ms", point.response as f64 / 1e6);
    figure("signals", point.signals as f64 / 1e3);
    figure("wakes", point.wakes as f64 / 1e3);
    if !dense {
        let at_response = played
            .get(&response)
            .is_some_and(|point| is_dense(response, point));
        figure("turns_on_cpu", f64::from(u8::from(is_dense(cpu, point))));
        figure("turns_on_response", f64::from(u8::from(at_response)));
    }
}

fn ratio(run: &StudyRun, what: &str) -> Option<f64> {
    let figure = |mode: &str| run.figure(&format!("{mode}.{what}"));
    Some(figure("on")? / figure("off")?)
}

/// Runs of a rate, by the cost of an exit.
fn of_rate<'a>(runs: &Runs<'a>, rate: u64) -> Vec<(f64, &'a StudyRun)> {
    let own = runs
        .values()
        .filter(|run| run.figure("rate") == Some(rate as f64));
    let mut own: Vec<(f64, &StudyRun)> = own
        .filter_map(|run| Some((run.figure("exit_us")?, *run)))
        .collect();
    own.sort_by(|one, other| one.0.total_cmp(&other.0));
    own
}

/// The figures of a repeat. Those of a rate are at the study's first cost of an exit.
pub(super) fn figures(study: &Study, runs: &Runs<'_>) -> BTreeMap<&'static str, f64> {
    let mut figures = BTreeMap::new();
    for (rate, cpu, response) in [(25, "cpu-25", "response-25"), (50, "cpu-50", "response-50")] {
        let slug = slug(rate, study.rules.exit_ns[0]);
        if let Some(run) = runs.get(slug.as_str()) {
            figures.extend(ratio(run, "vms_cpu").map(|ratio| (cpu, ratio)));
            figures.extend(ratio(run, "vms_response").map(|ratio| (response, ratio)));
        }
    }
    if runs.len() < parts(study).len() {
        return figures;
    }
    let all = || runs.values();
    let ratios = |what: &'static str| all().filter_map(move |run| ratio(run, what));
    let vms = ratios("vms_cpu").chain(ratios("vms_response"));
    figures.extend(vms.reduce(f64::min).map(|least| ("least", least)));
    figures.extend(
        ratios("signals")
            .reduce(f64::max)
            .map(|most| ("signals", most)),
    );
    let turns = ["off.turns_on_cpu", "off.turns_on_response"];
    let turns = turns
        .iter()
        .flat_map(|name| all().filter_map(|run| run.figure(name)));
    let turns: Vec<f64> = turns.collect();
    figures.insert(
        "turns-on",
        turns.iter().sum::<f64>() / turns.len().max(1) as f64,
    );
    figures
}

/// The tables of a repeat.
pub(super) fn tables(runs: &Runs<'_>) -> Vec<StudyTable> {
    let tables = RATES.map(|rate| {
        let rows = of_rate(runs, rate).into_iter().map(|(exit, run)| {
            let figure = |name: &str| run.figure(name).map(label).unwrap_or_default();
            let by = |what: &str| {
                let ratio = ratio(run, what);
                ratio.map_or_else(String::new, |ratio| format!("{:+.1} %", (ratio - 1.0) * 100.0))
            };
            vec![
                format!("{} us", label(exit)),
                figure("off.vms_response"),
                figure("on.vms_response"),
                by("vms_response"),
                figure("off.vms_cpu"),
                figure("on.vms_cpu"),
                by("vms_cpu"),
                figure("off.signals"),
                figure("on.signals"),
                figure("off.wakes"),
                figure("on.wakes"),
            ]
        });
        StudyTable {
            title: format!("{rate} requests a second of each VM"),
            columns: "Exit | VMs at 100 ms | dense | more | VMs at 90 % of the CPUs | dense | more | Kicks and calls of a request | dense | Wake-ups of the thread | dense",
            rows: rows.collect(),
        }
    });
    tables.into()
}

/// The pictures of a repeat.
pub(super) fn pictures(runs: &Runs<'_>) -> Vec<Picture> {
    let panels = [
        ("vms_cpu", "At 90 % of the CPUs"),
        ("vms_response", "At a response time of 100 ms"),
    ];
    let panels = panels.map(|(what, name)| {
        let lines = RATES.map(|rate| {
            let points = of_rate(runs, rate).into_iter().zip(0_u32..);
            let points = points.filter_map(|((_, run), place)| {
                let more = ratio(run, what)?;
                Some((f64::from(place), (more * 100.0).max(0.0)))
            });
            Line {
                name: format!("{rate} a second"),
                points: points.collect(),
            }
        });
        let exits = of_rate(runs, RATES[0]).into_iter();
        let panel = Lines {
            name: name.to_owned(),
            unit: "VMs in dense mode, percent of those without it".into(),
            across: Across::Places(
                exits.map(|(exit, _)| label(exit)).collect(),
                "cost of an exit, us",
            ),
            up: Up::To(120.0),
            lines: lines.into(),
            phases: Vec::new(),
            level: Some(("as many".into(), 100.0)),
        };
        panel.svg()
    });
    vec![Picture {
        name: "How many more VMs".into(),
        caption: "The cost of an exit is an input, not a measurement. The axis below has its values at equal distances.".into(),
        panels: panels.into(),
    }]
}
