//! The content of a report: verdict, checks, charts, figures, set-up and method.

use super::document::{Block, Cell, Document, Item, Section, Table};
use super::{Chapter, came_to, method, parts, place, repeats, tally};
use crate::draw::{fine, label};
use crate::experiment::findings::ab_test::Measured;
use crate::experiment::findings::agreement::Agreement;
use crate::experiment::findings::{Check, Findings, Made, Stage, Verdict};
use crate::experiment::study::StudyTable;
use crate::experiment::summary::{AbTestSummary, PhaseSummary, Summary};
use crate::experiment::{On, SetUp};

/// The report of some experiments; `suite` is the name of theirs.
pub(super) fn document(suite: Option<&str>, chapters: &[Chapter]) -> Document {
    let (title, lede) = match (suite, chapters.first()) {
        (None, Some(Chapter { findings, .. })) => {
            let summary = &findings.experiment;
            (summary.name.clone(), summary.title.clone())
        }
        (suite, _) => {
            let suite = suite.unwrap_or_default();
            (format!("The {suite} experiments"), String::new())
        }
    };
    let all: Vec<&Findings> = chapters.iter().map(|chapter| &chapter.findings).collect();
    let mut verdict = verdict(&all, suite.is_some());
    if suite.is_some() {
        verdict.push(Block::Heading("Contents".to_owned()));
        let items = all.iter().map(|findings| Item {
            link: Some(anchor(findings)),
            text: format!("{} ({})", findings.experiment.title, tally(findings)),
        });
        verdict.push(Block::List(items.collect()));
    }
    let begun = all.first().map_or(String::new(), |findings| {
        format!(
            "Begun {} with Tidegate {}.",
            findings.began, findings.version
        )
    });
    Document {
        title,
        lede,
        failed: all.iter().any(|findings| !findings.holds()),
        verdict,
        sections: chapters
            .iter()
            .map(|chapter| section(chapter, suite.is_some()))
            .collect(),
        footer: format!(
            "{begun} Figures, charts and verdicts come from the files beside this report and nothing else: \
             `tidegate lab report` writes it again."
        ),
    }
}

fn anchor(findings: &Findings) -> (String, String) {
    let name = &findings.experiment.name;
    (name.clone(), format!("#{name}"))
}

/// The result, failures first.
fn verdict(all: &[&Findings], several: bool) -> Vec<Block> {
    let count = |verdict| -> usize { all.iter().map(|findings| findings.count(verdict)).sum() };
    let checks: usize = all.iter().map(|findings| findings.checks.len()).sum();
    let (failed, open) = (count(Verdict::Fail), count(Verdict::NotJudged));
    let missing: usize = all.iter().map(|findings| findings.missing).sum();
    let mut says = format!("{} of {checks} checks passed.", count(Verdict::Pass));
    if failed > 0 {
        says += &format!(" {failed} FAIL:");
    }
    let mut blocks = vec![Block::Strong(says)];
    let failures = all.iter().flat_map(|findings| {
        let failed = findings.checks.iter();
        let failed = failed.filter(|check| check.verdict == Verdict::Fail);
        failed.map(move |check| Item {
            link: several.then(|| anchor(findings)),
            text: format!(
                "{}: {}, {} ({})",
                check.what,
                came_to(check),
                check.bar,
                place(check.on)
            ),
        })
    });
    blocks.extend((failed > 0).then(|| Block::List(failures.collect())));
    if open > 0 {
        let says = format!("{open} were not judged. The tables have the reasons.");
        blocks.push(Block::Text(says));
    }
    if missing > 0 {
        blocks.push(Block::Text(format!("{missing} runs are missing.")));
    }
    blocks.extend(method::disturbed(all).into_iter().map(Block::Text));
    let problems = all.iter().flat_map(|findings| &findings.problems);
    let problems: Vec<Item> = problems.map(Item::from).collect();
    if !problems.is_empty() {
        blocks.push(Block::Text("Runs that could not be made:".to_owned()));
        blocks.push(Block::List(problems));
    }
    blocks
}

fn section(chapter: &Chapter, several: bool) -> Section {
    let findings = &chapter.findings;
    let summary = &findings.experiment;
    let heading = |text: &str| Block::Heading(text.to_owned());
    let mut blocks = Vec::new();
    if !summary.source.is_empty() {
        blocks.push(Block::Note(summary.source.clone()));
    }
    blocks.push(heading("Published, ours, and the bar"));
    blocks.push(checks(&findings.checks));
    blocks.extend(chapter.pictures.iter().cloned().map(Block::Charts));
    if let Some(agreement) = &findings.agreement {
        blocks.push(heading("Real daemons against the simulator"));
        blocks.push(agreement_table(agreement));
    }
    match &summary.set_up {
        SetUp::AbTest(_) => {
            blocks.push(heading("What was measured"));
            blocks.extend(measured(findings));
            blocks.push(Block::Note(KEY.to_owned()));
        }
        SetUp::Study(_) => {
            blocks.push(heading("What was played"));
            blocks.extend(findings.tables.iter().map(study_table));
        }
        SetUp::Scenario(_) => {
            blocks.push(heading("What every disk had"));
            blocks.extend(findings.stages.iter().map(figures));
        }
    }
    blocks.push(heading("Set-up"));
    blocks.extend(set_up(summary));
    blocks.push(heading("Machine and method"));
    blocks.push(machine(findings));
    let method = method::of(findings).into_iter();
    blocks.push(Block::List(method.map(Item::from).collect()));
    blocks.push(heading("Raw data"));
    blocks.extend(raw(chapter));
    Section {
        name: summary.name.clone(),
        title: match several {
            true => summary.title.clone(),
            false => String::new(),
        },
        blocks,
    }
}

fn table(title: &str, columns: &'static str, rows: impl Iterator<Item = Vec<Cell>>) -> Table {
    Table {
        title: title.to_owned(),
        columns,
        rows: rows.collect(),
    }
}

fn texts<const N: usize>(texts: [&str; N]) -> Vec<Cell> {
    texts.map(Cell::from).into()
}

/// Failures first, then what was not judged, then the rest, each in the order of the experiment.
fn checks(checks: &[Check]) -> Block {
    let mut sorted: Vec<&Check> = checks.iter().collect();
    sorted.sort_by_key(|check| check.verdict);
    let rows = sorted.into_iter().map(|check| {
        let (figure, range) = parts(check.ours, check.unit, fine);
        let below = [range, repeats(check), check.note.clone()];
        let (verdict, on) = (check.verdict.word(), place(check.on));
        let mut cells = texts([
            verdict,
            &check.what,
            on,
            &check.published,
            &figure,
            &check.bar,
        ]);
        cells[0].verdict = Some(check.verdict);
        cells[4].below = below.into_iter().flatten().collect();
        for (cell, class) in cells.iter_mut().zip(["v", "", "k", "", "k", "k"]) {
            cell.class = class;
        }
        cells
    });
    let columns = "Verdict | Check | On | Published, or why | Ours | Bar";
    Block::Table(table("", columns, rows))
}

fn agreement_table(agreement: &Agreement) -> Block {
    let rows = agreement.rows.iter().map(|row| {
        let mut cells = texts([&row.way, &row.phase, &row.disk]);
        let figures = [
            (Some(row.share_engine), " %"),
            (Some(row.share_sim), " %"),
            (row.share_off, " %"),
            (row.latency_engine_ms, " ms"),
            (row.latency_sim_ms, " ms"),
            (row.latency_off, " %"),
        ];
        let figures = figures.map(|(figure, unit)| match figure {
            Some(figure) => Cell::number(format!("{}{unit}", label(figure))),
            None => Cell::number("-".to_owned()),
        });
        cells.extend(figures);
        cells
    });
    let columns = "Way | Phase | Disk | Part, daemons | simulator | off by | Latency, daemons | simulator | off by";
    Block::Table(table("By way, phase and disk", columns, rows))
}

/// What every disk had in one place; with the shops' orders where there are shops.
fn figures(stage: &Stage) -> Block {
    let shops = stage.figures.iter().any(|row| row.orders.is_some());
    let caches = stage.figures.iter().any(|row| row.hit_ratio.is_some());
    let columns = match (shops, caches) {
        (true, true) => {
            "Way | Phase | Disk | I/Os a second | Part | Latency, mean | 99 % at or below | Hits | Orders a second | Time of an order"
        }
        (true, false) => {
            "Way | Phase | Disk | I/Os a second | Part | Latency, mean | 99 % at or below | Orders a second | Time of an order"
        }
        (false, true) => {
            "Way | Phase | Disk | I/Os a second | Part | Latency, mean | 99 % at or below | Hits"
        }
        (false, false) => {
            "Way | Phase | Disk | I/Os a second | Part | Latency, mean | 99 % at or below"
        }
    };
    let rows = stage.figures.iter().map(|row| {
        let mut cells = texts([&row.way, &row.phase, &row.disk]);
        let figures = [
            (true, (row.iops, "")),
            (true, (row.share, " %")),
            (true, (row.latency_ms, " ms")),
            (true, (row.latency_p99_ms, " ms")),
            (caches, (row.hit_ratio, " %")),
            (shops, (row.orders, "")),
            (shops, (row.order_ms, " ms")),
        ];
        let shown = figures.into_iter().filter(|(shown, _)| *shown);
        cells.extend(shown.map(|(_, figure)| Cell::figure(figure)));
        cells
    });
    Block::Table(table(stage.on.title(), columns, rows))
}

/// A table of a study.
fn study_table(own: &StudyTable) -> Block {
    let rows = own.rows.iter();
    let rows = rows.map(|row| row.iter().map(|text| Cell::from(text.as_str())).collect());
    Block::Table(table(&own.title, own.columns, rows))
}

/// Stands below the tables of an A/B test.
const KEY: &str = "%/k: percent of a processor for 1,000 I/Os a second, of the server alone and with its client. A client \
     with nearly 100 % of a processor is the limit itself.";

/// The figures of an A/B test: a table for each sweep.
fn measured(findings: &Findings) -> impl Iterator<Item = Block> {
    let columns = "Point | Contestant | I/Os a second | MB/s | Latency, median | 99 % at or below | Server, %/k | Both, %/k | \
                   Client's CPU";
    let all = &findings.measured;
    let sweeps = all.chunk_by(|one, other| one.sweep == other.sweep);
    sweeps.map(move |rows| {
        Block::Table(table(
            &rows[0].sweep,
            columns,
            rows.iter().map(measured_row),
        ))
    })
}

fn measured_row(row: &Measured) -> Vec<Cell> {
    let mut notes: Vec<String> = row.note.clone().into_iter().collect();
    if row.quiet < row.blocks {
        notes.push(format!("{} of {} blocks quiet", row.quiet, row.blocks));
    }
    if row.rejected > 0 {
        notes.push(format!("{} trials repeated", row.rejected));
    }
    let figures = [
        (row.iops, ""),
        (row.mb_per_s, ""),
        (row.p50_us, " us"),
        (row.p99_us, " us"),
        (row.cpu_percent_per_kiops, ""),
        (row.cpu_of_both_percent_per_kiops, ""),
        (row.client_percent, " %"),
    ];
    let mut cells = texts([&row.point, &row.contestant]);
    cells[1].below = notes;
    cells.extend(figures.map(Cell::figure));
    cells
}

fn facts<const N: usize>(facts: [(&str, String); N]) -> Block {
    let facts = facts.into_iter();
    Block::Facts(facts.map(|(name, what)| (name.to_owned(), what)).collect())
}

fn set_up(summary: &Summary) -> Vec<Block> {
    let scenario = match &summary.set_up {
        SetUp::Scenario(scenario) => scenario,
        SetUp::AbTest(ab_test) => return vec![contestants(ab_test)],
        SetUp::Study(study) => return vec![Block::Facts(study.inputs.clone())],
    };
    let disks = scenario.disks.iter().map(|disk| {
        let (shares, settings) = (disk.shares.to_string(), disk.settings.as_str());
        let settings = if settings.is_empty() { "-" } else { settings };
        texts([&disk.name, &disk.host, &shares, settings, &disk.workload])
    });
    let mut blocks = vec![
        facts([
            ("Hosts", scenario.hosts.join(", ")),
            ("Datastore", scenario.datastore.clone()),
            ("Congestion threshold", scenario.threshold.clone()),
            ("Ways", summary.ways.join("; ")),
        ]),
        Block::Table(table(
            "Disks and guests",
            "Disk | Host | Shares | Limits | Guest",
            disks,
        )),
    ];
    if scenario.phases.len() > 1 {
        blocks.push(Block::Facts(scenario.phases.iter().map(phase).collect()));
    }
    blocks
}

fn phase(phase: &PhaseSummary) -> (String, String) {
    let mut words = format!("{} s", label(phase.lasts_s));
    if !phase.idle.is_empty() {
        words += &format!(", without {}", phase.idle.join(", "));
    }
    for change in &phase.changes {
        words += &format!(", {change}");
    }
    (phase.name.clone(), words)
}

/// The contestants of an A/B test and what they did.
fn contestants(summary: &AbTestSummary) -> Block {
    let contestants = summary.contestants.iter();
    let contestants = contestants.map(|one| (one.name.clone(), one.what.clone()));
    let sweeps = summary.sweeps.iter().map(|sweep| {
        let what = if sweep.work.len() == sweep.points.len() && sweep.points.len() > 1 {
            let each = sweep.points.iter().zip(&sweep.work);
            let each = each.map(|(point, work)| format!("{point}: {work}"));
            each.collect::<Vec<_>>().join("; ")
        } else {
            let (points, work) = (sweep.points.join(", "), sweep.work.join("; "));
            format!("{points} (at the first: {work})")
        };
        (sweep.title.clone(), what)
    });
    Block::Facts(contestants.chain(sweeps).collect())
}

fn machine(findings: &Findings) -> Block {
    let machine = &findings.machine;
    let gib = machine.memory_bytes as f64 / f64::from(1 << 30);
    let processors = format!("{} \u{00d7} {}", machine.cpus, machine.processor);
    facts([
        ("Processor", processors),
        ("Memory", format!("{} GiB", label(gib))),
        ("Kernel", machine.kernel.clone()),
        ("Load before", machine.load.clone()),
        ("Tidegate", findings.version.clone()),
        ("Begun", findings.began.clone()),
    ])
}

/// The files that the report comes from.
fn raw(chapter: &Chapter) -> [Block; 2] {
    let base = &chapter.base;
    let files = [
        ("experiment.json", "the plan, with the experiment's file"),
        ("findings.json", "these tables"),
        ("runs/", "a file for each run, as JSON"),
        ("csv/", "the same as tables"),
    ];
    let files = files.map(|(file, what)| Item {
        link: Some((file.to_owned(), format!("{base}{file}"))),
        text: what.to_owned(),
    });
    let row = |on: On, made: &Made| {
        let busy = made.busy;
        let numbers = [
            format!("{} s", label(made.took_s)),
            format!("{:.0} %", busy.own_percent),
            format!("{:.0} %", busy.foreign_percent + busy.steal_percent),
        ];
        let run = format!("{}, {}", on.title(), made.repeat);
        let mut cells = texts([&run, &made.way, &made.began]);
        cells.extend(numbers.map(Cell::number));
        let links = [("runs", "json"), ("csv", "csv")].map(|(place, kind)| {
            let to = format!("{base}{place}/{}.{kind}", made.file);
            (kind.to_uppercase(), to)
        });
        cells.push(Cell {
            links: links.into(),
            ..Cell::default()
        });
        cells
    };
    let stages = chapter.findings.stages.iter();
    let rows = stages.flat_map(|stage| stage.runs.iter().map(|made| row(stage.on, made)));
    let columns = "Run | Way | Begun | Took | Own processors | Others' | Files";
    [
        Block::List(files.into()),
        Block::Detail(table("Runs", columns, rows)),
    ]
}
