//! Tables and pictures of the study of I/O threads.

use super::{
    POLICIES, RATE, RATES, best, best_of, by_best, by_phase, exit_ratios, fixed_runs, mean, most,
    whole,
};
use crate::draw::{Across, Bars, Fill, Group, Line, Lines, Picture, Up, label, round_up};
use crate::experiment::study::store::StudyRun;
use crate::experiment::study::{Runs, StudyTable};

/// The phases of the trace, in order.
const PHASES: [&str; 8] = ["A", "B", "C", "D", "C", "A", "D", "B"];

/// The tables of a repeat.
pub(in crate::experiment::study) fn tables(runs: &Runs<'_>) -> Vec<StudyTable> {
    let mut tables = Vec::new();
    if !fixed_runs(runs).is_empty() {
        tables.extend([scores(runs), steps(runs)]);
    }
    tables.extend(on_engine(runs));
    for (vms, title) in [
        ("small", "Messages of six small VMs"),
        ("large", "Messages of one large VM"),
    ] {
        tables.extend(messages(runs, vms, title));
    }
    tables.extend(exits(runs));
    tables.extend(decisions(runs));
    tables
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// Every set-up and policy: each phase by the best fixed set-up's, after it has settled.
fn scores(runs: &Runs<'_>) -> StudyTable {
    let (settled, all) = (best(runs, "cores"), best(runs, "cores_whole"));
    let policies = POLICIES.iter().filter_map(|name| {
        let run = runs.get(format!("policy-{name}").as_str())?;
        Some(*run)
    });
    let mut rows: Vec<(f64, Vec<String>)> = Vec::new();
    for run in policies.chain(fixed_runs(runs)) {
        let score = whole(run, &all);
        let mut row = vec![run.head.piece.words.clone()];
        let parts = by_best(run, &settled, "cores");
        row.extend(parts.iter().map(|part| percent(*part)));
        row.push(percent(score));
        rows.push((score, row));
    }
    rows.sort_by(|one, other| other.0.total_cmp(&one.0));
    StudyTable {
        title:
            "Each phase by the best fixed set-up, after 1 s; the whole trace with its first seconds"
                .into(),
        columns: "Threads | A | B | C | D | C | A | D | B | Whole trace",
        rows: rows.into_iter().map(|(_, row)| row).collect(),
    }
}

/// The same trace on this machine's engine, with what its other programs and other machines took meanwhile.
fn on_engine(runs: &Runs<'_>) -> Option<StudyTable> {
    let own = runs.iter().filter(|(slug, _)| slug.starts_with("engine-"));
    let own: Vec<&StudyRun> = own.map(|(_, run)| *run).collect();
    let fixed = own.iter().copied();
    let fixed = fixed.filter(|run| run.head.piece.slug.starts_with("engine-fixed-"));
    let fixed: Vec<&StudyRun> = fixed.collect();
    let (settled, all) = (best_of(&fixed, "work"), best_of(&fixed, "work_whole"));
    if settled.is_empty() {
        return None;
    }
    let mut rows: Vec<(f64, Vec<String>)> = Vec::new();
    for run in own {
        let score = mean(&by_best(run, &all, "work_whole"));
        let mut row = vec![run.head.piece.words.clone()];
        let parts = by_best(run, &settled, "work");
        row.extend(parts.iter().map(|part| percent(*part)));
        row.push(percent(score));
        let count = |name| run.figure(name).map_or_else(|| "-".to_owned(), label);
        row.extend([count("moves"), count("resized")]);
        let busy = &run.head.busy;
        row.push(percent(busy.foreign_percent / 100.0));
        row.push(percent(busy.steal_percent / 100.0));
        rows.push((score, row));
    }
    rows.sort_by(|one, other| other.0.total_cmp(&one.0));
    Some(StudyTable {
        title: "On this machine's engine: each phase by the best fixed set-up, after 1 s; it decides nothing".into(),
        columns: "Threads | A | B | C | D | C | A | D | B | Whole trace | Moves | Threads changed | Other programs | Stolen",
        rows: rows.into_iter().map(|(_, row)| row).collect(),
    })
}

/// How policies answer a step of the load.
fn steps(runs: &Runs<'_>) -> StudyTable {
    let rows = POLICIES.iter().filter_map(|name| {
        let run = runs.get(format!("step-{name}").as_str())?;
        let figure = |name: &str| run.figure(&format!("phase1.{name}"));
        let after = figure("reacts_ms").map(|ms| format!("{} ms", label(ms)));
        let row = [
            (*name).to_owned(),
            after.unwrap_or_else(|| "never".into()),
            figure("threads").map(label).unwrap_or_default(),
            figure("cores").map(label).unwrap_or_default(),
        ];
        Some(row.to_vec())
    });
    StudyTable {
        title: "A step of the load: from nothing to four deep queues".into(),
        columns: "Policy | First change after | Threads at the end | Useful work after 1 s, cores",
        rows: rows.collect(),
    }
}

fn both<'a>(runs: &Runs<'a>, vms: &str) -> Option<[&'a StudyRun; 2]> {
    let own = runs.get(format!("messages-{vms}-auto").as_str())?;
    let other = runs.get(format!("messages-{vms}-per-vm").as_str())?;
    Some([own, other])
}

fn messages(runs: &Runs<'_>, vms: &str, title: &str) -> Option<StudyTable> {
    let both = both(runs, vms)?;
    let rows = (1..=RATES).map(|step| {
        let mut row = vec![format!("{}k", step * RATE / 1_000)];
        for run in both {
            let figure = |name: &str| run.figure(&format!("rate{step:02}.{name}"));
            row.push(figure("messages").map_or_else(String::new, |rate| label(rate / 1e3) + "k"));
            row.push(figure("p99_us").map_or_else(String::new, |p99| label(p99) + " us"));
            row.push(figure("threads").map(label).unwrap_or_default());
        }
        row
    });
    Some(StudyTable {
        title: title.to_owned(),
        columns: "Offered a second | auto, answered | 99 % within | Threads | A thread for each VM, answered | 99 % within | Threads",
        rows: rows.collect(),
    })
}

fn exits(runs: &Runs<'_>) -> Option<StudyTable> {
    let rows = exit_ratios(runs.get("exits")?).into_iter();
    let rows = rows.map(|(exit, own, other)| {
        let [shown, against] = [own, other].map(|rate| label(rate / 1e3) + "k");
        vec![exit, shown, against, label(own / other)]
    });
    Some(StudyTable {
        title: "The mixed phase at each cost of an exit, requests a second".into(),
        columns: "Exit | auto | A thread for each VM | Ratio",
        rows: rows.collect(),
    })
}

fn decisions(runs: &Runs<'_>) -> Option<StudyTable> {
    let notes = runs.get("policy-auto")?.notes.iter();
    let rows = notes.filter_map(|note| {
        let (when, what) = note.split_once(": ")?;
        Some(vec![when.to_owned(), what.to_owned()])
    });
    Some(StudyTable {
        title: "Decisions of auto on the trace".into(),
        columns: "When, threads afterwards | Decision and its inputs",
        rows: rows.collect(),
    })
}

/// The best fixed set-up over the whole trace.
fn best_fixed<'a>(runs: &Runs<'a>) -> Option<&'a StudyRun> {
    let all = best(runs, "cores_whole");
    let score = |run: &&StudyRun| whole(run, &all);
    let fixed = fixed_runs(runs).into_iter();
    fixed.max_by(|one, other| score(one).total_cmp(&score(other)))
}

/// The pictures of a repeat.
pub(in crate::experiment::study) fn pictures(runs: &Runs<'_>) -> Vec<Picture> {
    let mut pictures = Vec::new();
    pictures.extend(over_time(runs));
    pictures.extend(by_phases(runs));
    pictures.extend(rates(runs));
    pictures
}

fn shown<'a>(runs: &Runs<'a>) -> Option<Vec<(String, &'a StudyRun)>> {
    let fixed = best_fixed(runs)?;
    let mut shown = vec![
        ("auto".to_owned(), *runs.get("policy-auto")?),
        (fixed.head.piece.words.clone(), fixed),
    ];
    for name in &POLICIES[1..] {
        let run = runs.get(format!("policy-{name}").as_str())?;
        shown.push(((*name).to_owned(), run));
    }
    Some(shown)
}

fn over_time(runs: &Runs<'_>) -> Option<Picture> {
    let shown = shown(runs)?;
    let points = shown[0].1.line.len();
    let ends = points as f64 / 10.0;
    // A short study plays shorter phases with fixed set-ups.
    let whole = shown.iter().filter(|(_, run)| run.line.len() == points);
    let lines = whole.map(|(name, run)| Line {
        name: name.clone(),
        points: run
            .line
            .iter()
            .zip(1_u32..)
            .map(|(cores, at)| (f64::from(at) / 10.0, *cores))
            .collect(),
    });
    let lines: Vec<Line> = lines.collect();
    let highest = most(shown.iter().flat_map(|(_, run)| run.line.iter().copied()))?;
    let long = ends / PHASES.len() as f64;
    let phases = PHASES.iter().zip(0_u32..).map(|(name, place)| {
        let begins = f64::from(place) * long;
        ((*name).to_owned(), begins, begins + long)
    });
    let panel = Lines {
        name: "Useful work over the trace".into(),
        unit: "cores".into(),
        across: Across::Time(ends, "s"),
        up: Up::To(round_up(highest)),
        lines,
        phases: phases.collect(),
        level: None,
    };
    Some(Picture {
        name: "The trace".into(),
        caption: "Computing of guests, and for each answered request the guest's work and the service; tenths of a second. \
                  Phases: A compute, B deep queues, C one guest of depth 1, D mixed."
            .into(),
        panels: vec![panel.svg()],
    })
}

fn by_phases(runs: &Runs<'_>) -> Option<Picture> {
    const FILLS: [Fill; 4] = [Fill::Solid, Fill::Light, Fill::Outline, Fill::Light];
    let shown = shown(runs)?;
    let settled = best(runs, "cores");
    let own: Vec<Vec<f64>> = shown
        .iter()
        .map(|(_, run)| by_best(run, &settled, "cores"))
        .collect();
    let groups = PHASES
        .iter()
        .take(4)
        .enumerate()
        .map(|(place, name)| Group {
            name: (*name).to_owned(),
            bars: own
                .iter()
                .map(|values| values.get(place).map(|part| part * 100.0))
                .collect(),
        });
    let rows = shown.iter().zip(FILLS).enumerate();
    let rows = rows.map(|(style, ((name, _), fill))| (name.clone(), fill, style));
    let scores = Bars {
        name: "By phase, after 1 s".into(),
        unit: "percent of the best fixed set-up of the phase".into(),
        rows: rows.collect(),
        groups: groups.collect(),
    };
    let threads = shown.iter().map(|(_, run)| by_phase(run, "threads"));
    let threads: Vec<Vec<f64>> = threads.collect();
    let groups = PHASES.iter().enumerate().map(|(place, name)| Group {
        name: (*name).to_owned(),
        bars: threads
            .iter()
            .map(|values| values.get(place).copied())
            .collect(),
    });
    let rows = shown.iter().zip(FILLS).enumerate();
    let rows = rows.map(|(style, ((name, _), fill))| (name.clone(), fill, style));
    let threads = Bars {
        name: "Threads at the end of each phase".into(),
        unit: "active I/O threads".into(),
        rows: rows.collect(),
        groups: groups.collect(),
    };
    Some(Picture {
        name: "Phases".into(),
        caption: "auto beside the best single fixed set-up, iocm and spdk.".into(),
        panels: vec![scores.svg(), threads.svg()],
    })
}

fn rates(runs: &Runs<'_>) -> Option<Picture> {
    let panels = [("small", "Six small VMs"), ("large", "One large VM")].map(|(vms, name)| {
        let both = both(runs, vms)?;
        let names = ["auto", "a thread for each VM"];
        let lines = both.iter().zip(names).map(|(run, name)| Line {
            name: name.to_owned(),
            points: (1..=RATES)
                .zip(0_u32..)
                .filter_map(|(step, place)| {
                    let p99 = run.figure(&format!("rate{step:02}.p99_us"))?;
                    Some((f64::from(place), p99))
                })
                .collect(),
        });
        let lines: Vec<Line> = lines.collect();
        let names = (1..=RATES).map(|step| (step * RATE / 1_000).to_string());
        let panel = Lines {
            name: name.to_owned(),
            unit: "microseconds, 99 % of messages within".into(),
            across: Across::Places(names.collect(), "thousand messages a second offered"),
            up: Up::Powers(10.0, 1_000_000.0),
            lines,
            phases: Vec::new(),
            level: Some(("1 ms".into(), 1_000.0)),
        };
        Some(panel.svg())
    });
    Some(Picture {
        name: "Messages at rising rates".into(),
        caption: "512 bytes, at random times whatever becomes of earlier ones; latency counts from when a message was due.".into(),
        panels: panels.into_iter().collect::<Option<_>>()?,
    })
}
