//! The report as one self-contained HTML page.

use super::style::STYLE;
use super::{Chapter, Picture, came_to, disturbed, measured, method, parts, place, repeats, tally};
use crate::draw::{self, escape, fine, label};
use crate::experiment::findings::{Check, Figure, Findings, Stage, Verdict};
use crate::experiment::summary::{ScenarioSummary, Summary};
use crate::experiment::{On, SetUp};

/// A table of more rows is folded away.
const LONG: usize = 24;

/// The page; `title` is a suite's.
pub(super) fn page(title: Option<&str>, chapters: &[Chapter]) -> String {
    let (name, lede) = match (title, chapters) {
        (Some(title), _) => (title.to_owned(), String::new()),
        (None, [chapter]) => {
            let summary = &chapter.findings.experiment;
            (summary.name.clone(), summary.title.clone())
        }
        (None, _) => ("Results".to_owned(), String::new()),
    };
    let mut page =
        String::from("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page += "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n";
    page += "<meta name=\"color-scheme\" content=\"light dark\">\n";
    page += &format!("<title>{} \u{2013} Tidegate lab</title>\n", escape(&name));
    page += &format!("<style>\n{STYLE}{}</style>\n</head>\n<body>\n", draw::STYLE);
    page += &format!(
        "<header>\n<p class=\"kicker\">Tidegate lab</p>\n<h1>{}</h1>\n",
        escape(&name)
    );
    if !lede.is_empty() {
        page += &format!("<p class=\"lede\">{}</p>\n", escape(&lede));
    }
    page += "</header>\n<main>\n";
    page += &verdict(chapters);
    if chapters.len() > 1 {
        page += &contents(chapters);
    }
    for chapter in chapters {
        page += &self::chapter(chapter, chapters.len() > 1);
    }
    page += "</main>\n<footer>\n";
    if let Some(chapter) = chapters.first() {
        let findings = &chapter.findings;
        page += &format!(
            "<p>Begun {} with Tidegate {}. Figures, charts and verdicts are from the files beside this page and nothing \
             else: <code>tidegate lab report</code> writes it anew from them.</p>\n",
            escape(&findings.began),
            escape(&findings.version)
        );
    }
    page + "</footer>\n</body>\n</html>\n"
}

/// What came out, what failed first.
fn verdict(chapters: &[Chapter]) -> String {
    let count = |verdict| -> usize {
        chapters
            .iter()
            .map(|chapter| chapter.findings.count(verdict))
            .sum()
    };
    let all: usize = chapters
        .iter()
        .map(|chapter| chapter.findings.checks.len())
        .sum();
    let (failed, open) = (count(Verdict::Fail), count(Verdict::NotJudged));
    let problems = chapters
        .iter()
        .flat_map(|chapter| &chapter.findings.problems);
    let problems: Vec<&String> = problems.collect();
    let missing: usize = chapters
        .iter()
        .map(|chapter| chapter.findings.missing)
        .sum();
    let bad = failed > 0 || !problems.is_empty() || missing > 0;
    let mut text = format!(
        "<section class=\"verdict{}\" aria-label=\"Verdict\">\n<p><strong>{} of {all} checks hold.</strong>",
        if bad { " bad" } else { "" },
        count(Verdict::Pass)
    );
    if failed > 0 {
        text += &format!(" <strong>{failed} FAIL:</strong>");
    }
    text += "</p>\n";
    if failed > 0 {
        text += "<ul>\n";
        for chapter in chapters {
            let failed = chapter.findings.checks.iter();
            for check in failed.filter(|check| check.verdict == Verdict::Fail) {
                let of = if chapters.len() > 1 {
                    let name = escape(&chapter.findings.experiment.name);
                    format!("<a href=\"#{name}\">{name}</a>: ")
                } else {
                    String::new()
                };
                text += &format!(
                    "<li>{of}{}: {}, {} ({})</li>\n",
                    escape(&check.what),
                    escape(&came_to(check)),
                    escape(&check.bar),
                    place(check.on)
                );
            }
        }
        text += "</ul>\n";
    }
    if open > 0 {
        text += &format!("<p>{open} could not be judged; the tables say why.</p>\n");
    }
    if missing > 0 {
        text += &format!("<p>{missing} runs are not there (yet).</p>\n");
    }
    for says in disturbed(chapters.iter().map(|chapter| &chapter.findings)) {
        text += &format!("<p>{}</p>\n", escape(&says));
    }
    if !problems.is_empty() {
        text += "<p>Runs that could not be made:</p>\n<ul>\n";
        for problem in problems {
            text += &format!("<li>{}</li>\n", escape(problem));
        }
        text += "</ul>\n";
    }
    text + "</section>\n"
}

fn contents(chapters: &[Chapter]) -> String {
    let mut text = String::from("<nav aria-label=\"Contents\">\n<h3>Contents</h3>\n<ol>\n");
    for chapter in chapters {
        let summary = &chapter.findings.experiment;
        text += &format!(
            "<li><a href=\"#{0}\">{0}</a>: {1} <span class=\"soft\">({2})</span></li>\n",
            escape(&summary.name),
            escape(&summary.title),
            tally(&chapter.findings)
        );
    }
    text + "</ol>\n</nav>\n"
}

fn chapter(chapter: &Chapter, one_of_many: bool) -> String {
    let findings = &chapter.findings;
    let summary = &findings.experiment;
    let mut text = format!("<section id=\"{}\">\n", escape(&summary.name));
    if one_of_many {
        text += &format!(
            "<h2>{}: {}</h2>\n",
            escape(&summary.name),
            escape(&summary.title)
        );
    }
    if !summary.source.is_empty() {
        text += &format!("<p class=\"soft\">{}</p>\n", escape(&summary.source));
    }
    text += "<h3>Published, ours, and the bar</h3>\n";
    text += &checks(&findings.checks);
    for (on, figures) in &chapter.figures {
        text += &drawn(*on, figures, chapter.figures.len() > 1);
    }
    text += &agreement(chapter);
    if measured::ab_test(findings).is_some() {
        text += "<h3>What was measured</h3>\n";
        text += &competed(findings);
    } else {
        text += "<h3>What every disk had</h3>\n";
        for stage in &findings.stages {
            text += &tables(stage);
        }
    }
    text += "<h3>Set-up</h3>\n";
    text += &set_up(summary);
    text += "<h3>Machine and method</h3>\n";
    text += &machine(findings);
    text += "<h3>Raw data</h3>\n";
    text += &raw(chapter);
    text + "</section>\n"
}

/// Fails first, then what could not be judged, then the rest; each in the order of the scenario.
fn checks(checks: &[Check]) -> String {
    let mut sorted: Vec<&Check> = checks.iter().collect();
    sorted.sort_by_key(|check| check.verdict);
    let mut text = String::from(
        "<div class=\"wide\">\n<table class=\"cards\">\n<thead><tr><th>Verdict</th><th>Check</th><th>On</th>\
         <th>Published, or why</th><th>Ours</th><th>Bar</th></tr></thead>\n<tbody>\n",
    );
    for check in sorted {
        let class = match check.verdict {
            Verdict::Fail => "fail",
            Verdict::NotJudged => "open",
            Verdict::Pass => "pass",
        };
        let (ours, spread) = parts(check.ours, check.unit, fine);
        let below = [spread, repeats(check), check.note.clone()];
        let below: String = below.iter().map(|text| small(text.as_deref())).collect();
        text += &format!(
            "<tr class=\"{class}\"><td class=\"v\">{}</td><td data-is=\"Check\">{}</td><td class=\"k\" data-is=\"On\">{}</td>\
             <td data-is=\"Source\">{}</td><td class=\"k\" data-is=\"Ours\">{}{below}</td><td class=\"k\" data-is=\"Bar\">{}</td></tr>\n",
            check.verdict.word(),
            escape(&check.what),
            place(check.on),
            escape(&check.published),
            escape(&ours),
            escape(&check.bar)
        );
    }
    text + "</tbody>\n</table>\n</div>\n"
}

fn drawn(on: On, figures: &[Picture], several: bool) -> String {
    let mut text = String::new();
    for figure in figures {
        let place = if several {
            format!(", {}", on.title())
        } else {
            String::new()
        };
        text += &format!("<h3>{}{place}</h3>\n", escape(&figure.name));
        text += &panels(&figure.panels, &figure.caption);
    }
    text
}

fn panels(panels: &[String], caption: &str) -> String {
    let one = if panels.len() == 1 { " one" } else { "" };
    format!(
        "<figure>\n<div class=\"panels{one}\">\n{}\n</div>\n<figcaption>{}</figcaption>\n</figure>\n",
        panels.join("\n"),
        escape(caption)
    )
}

fn agreement(chapter: &Chapter) -> String {
    let Some(agreement) = &chapter.findings.agreement else {
        return String::new();
    };
    let mut text = String::from("<h3>Real daemons against the simulator</h3>\n");
    if !chapter.agreement.is_empty() {
        text += &panels(
            &chapter.agreement,
            "One scenario in both places, in the phase in which most disks ask.",
        );
    }
    let mut table = String::from(
        "<table>\n<thead><tr><th>Way</th><th>Phase</th><th>Disk</th><th class=\"n\">Part, daemons</th>\
         <th class=\"n\">simulator</th><th class=\"n\">off by</th><th class=\"n\">Latency, daemons</th>\
         <th class=\"n\">simulator</th><th class=\"n\">off by</th></tr></thead>\n<tbody>\n",
    );
    let told = |figure: Option<f64>, unit: &str| match figure {
        Some(figure) => format!("{}{unit}", label(figure)),
        None => "-".to_owned(),
    };
    for row in &agreement.rows {
        table += &format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{} %</td><td class=\"n\">{} %</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
            escape(&row.way),
            escape(&row.phase),
            escape(&row.disk),
            label(row.share_engine),
            label(row.share_sim),
            told(row.share_off, " %"),
            told(row.latency_engine_ms, " ms"),
            told(row.latency_sim_ms, " ms"),
            told(row.latency_off, " %")
        );
    }
    table += "</tbody>\n</table>\n";
    text + &folded(&table, agreement.rows.len(), "By way, phase and disk")
}

/// A table in a frame that scrolls, folded away if it is long.
fn folded(table: &str, rows: usize, what: &str) -> String {
    let frame = format!(
        "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\n{table}</div>\n",
        escape(what)
    );
    if rows <= LONG {
        return frame;
    }
    format!(
        "<details>\n<summary>{}: {rows} rows</summary>\n{frame}</details>\n",
        escape(what)
    )
}

fn tables(stage: &Stage) -> String {
    let shops = stage.figures.iter().any(|row| row.orders.is_some());
    let mut table = String::from(
        "<table>\n<thead><tr><th>Way</th><th>Phase</th><th>Disk</th><th class=\"n\">I/Os a second</th>\
         <th class=\"n\">Part</th><th class=\"n\">Latency, mean</th><th class=\"n\">99 % at or below</th>",
    );
    if shops {
        table += "<th class=\"n\">Orders a second</th><th class=\"n\">Time of an order</th>";
    }
    table += "</tr></thead>\n<tbody>\n";
    for row in &stage.figures {
        table += &format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td>",
            escape(&row.way),
            escape(&row.phase),
            escape(&row.disk)
        );
        for (cell, spread) in cells(row, shops) {
            table += &format!("<td class=\"n\">{cell}{}</td>", small(spread.as_deref()));
        }
        table += "</tr>\n";
    }
    table += "</tbody>\n</table>\n";
    let what = stage.on.heading();
    let heading = if stage.figures.len() > LONG {
        String::new()
    } else {
        format!("<p class=\"soft\">{what}</p>\n")
    };
    heading + &folded(&table, stage.figures.len(), what)
}

/// What contestants did, sweep by sweep.
fn competed(findings: &Findings) -> String {
    let mut text = String::new();
    for (title, rows) in measured::sweeps(findings) {
        let mut table = String::from("<table>\n<thead><tr>");
        for (place, head) in measured::HEAD.iter().enumerate() {
            let class = if place < 2 { "" } else { " class=\"n\"" };
            table += &format!("<th{class}>{head}</th>");
        }
        table += "</tr></thead>\n<tbody>\n";
        for row in &rows {
            let (cells, note) = measured::cells(row);
            table += &format!(
                "<tr><td>{}</td><td>{}{}</td>",
                escape(&row.point),
                escape(&row.contestant),
                small(note.as_deref())
            );
            for (cell, spread) in cells {
                table += &format!("<td class=\"n\">{cell}{}</td>", small(spread.as_deref()));
            }
            table += "</tr>\n";
        }
        table += "</tbody>\n</table>\n";
        text += &format!("<p class=\"soft\">{}</p>\n", escape(title));
        text += &folded(&table, rows.len(), title);
    }
    text + &format!("<p class=\"soft\">{}</p>\n", escape(measured::KEY))
}

/// What stands smaller below.
fn small(text: Option<&str>) -> String {
    text.map_or(String::new(), |text| {
        format!("<br><small>{}</small>", escape(text))
    })
}

/// A row's figures, each with its least and most; those of shops where there are shops.
pub(super) fn cells(row: &Figure, shops: bool) -> Vec<(String, Option<String>)> {
    let mut figures = vec![
        (row.iops, ""),
        (row.share, " %"),
        (row.latency_ms, " ms"),
        (row.latency_p99_ms, " ms"),
    ];
    if shops {
        figures.extend([(row.orders, ""), (row.order_ms, " ms")]);
    }
    let cells = figures
        .into_iter()
        .map(|(spread, unit)| parts(spread, unit, label));
    cells.collect()
}

/// Names and what they are.
fn facts<T: AsRef<str>>(facts: &[(T, String)]) -> String {
    let mut text = String::from("<dl class=\"facts\">\n");
    for (name, what) in facts {
        text += &format!(
            "<dt>{}</dt><dd>{}</dd>\n",
            escape(name.as_ref()),
            escape(what)
        );
    }
    text + "</dl>\n"
}

fn set_up(summary: &Summary) -> String {
    match &summary.set_up {
        SetUp::Scenario(scenario) => hosts(scenario, &summary.ways),
        SetUp::AbTest(ab_test) => facts(&measured::set_up(ab_test)),
    }
}

fn hosts(summary: &ScenarioSummary, ways: &[String]) -> String {
    let mut text = facts(&[
        ("Hosts", summary.hosts.join(", ")),
        ("Datastore", summary.datastore.clone()),
        ("Congestion threshold", summary.threshold.clone()),
        ("Ways", ways.join("; ")),
    ]);
    let mut table = String::from(
        "<table class=\"cards\">\n<thead><tr><th>Disk</th><th>Host</th><th>Shares</th><th>Limits</th><th>Guest</th></tr>\
         </thead>\n<tbody>\n",
    );
    for disk in &summary.disks {
        let settings = if disk.settings.is_empty() {
            "-"
        } else {
            &disk.settings
        };
        table += &format!(
            "<tr><td data-is=\"Disk\">{}</td><td data-is=\"Host\">{}</td><td data-is=\"Shares\">{}</td>\
             <td data-is=\"Limits\">{}</td><td data-is=\"Guest\">{}</td></tr>\n",
            escape(&disk.name),
            escape(&disk.host),
            disk.shares,
            escape(settings),
            escape(&disk.workload)
        );
    }
    table += "</tbody>\n</table>\n";
    text += &folded(&table, summary.disks.len(), "Disks and guests");
    if summary.phases.len() > 1 {
        text += "<ol>\n";
        for phase in &summary.phases {
            text += &format!("<li>{}</li>\n", escape(&phase_words(phase)));
        }
        text += "</ol>\n";
    }
    text
}

/// A phase in a line.
pub(super) fn phase_words(phase: &crate::experiment::summary::PhaseSummary) -> String {
    let mut words = format!("{}: {} s", phase.name, label(phase.lasts_s));
    if !phase.idle.is_empty() {
        words += &format!(", without {}", phase.idle.join(", "));
    }
    for change in &phase.changes {
        words += &format!(", {change}");
    }
    words
}

fn machine(findings: &Findings) -> String {
    let machine = &findings.machine;
    let mut text = facts(&[
        (
            "Processor",
            format!("{} \u{00d7} {}", machine.cpus, machine.processor),
        ),
        (
            "Memory",
            format!(
                "{} GiB",
                label(machine.memory_bytes as f64 / f64::from(1 << 30))
            ),
        ),
        ("Kernel", machine.kernel.clone()),
        ("Load before", machine.load.clone()),
        ("Tidegate", findings.version.clone()),
    ]);
    text += "<ul>\n";
    for says in method(findings) {
        text += &format!("<li>{}</li>\n", escape(&says));
    }
    text + "</ul>\n"
}

fn raw(chapter: &Chapter) -> String {
    let base = escape(&chapter.base);
    let mut text = format!(
        "<p><a href=\"{base}experiment.json\">experiment.json</a> (the plan, with the scenario), \
         <a href=\"{base}findings.json\">findings.json</a> (these tables). By run, each with its series by seconds:</p>\n"
    );
    let mut table = String::from(
        "<table>\n<thead><tr><th>Run</th><th>Way</th><th>Begun</th><th class=\"n\">Took</th>\
         <th class=\"n\">Own processors</th><th class=\"n\">Others'</th><th>Files</th></tr></thead>\n<tbody>\n",
    );
    let mut rows = 0;
    for stage in &chapter.findings.stages {
        for made in &stage.runs {
            let file = escape(&made.file);
            let others = made.busy.foreign_percent + made.busy.steal_percent;
            table += &format!(
                "<tr><td>{}, {}</td><td>{}</td><td>{}</td><td class=\"n\">{} s</td><td class=\"n\">{:.0} %</td>\
                 <td class=\"n\">{others:.0} %</td><td><a href=\"{base}runs/{file}.json\">JSON</a> \
                 <a href=\"{base}csv/{file}.csv\">CSV</a></td></tr>\n",
                stage.on.title(),
                made.repeat,
                escape(&made.way),
                escape(&made.began),
                label(made.took_s),
                made.busy.own_percent
            );
            rows += 1;
        }
    }
    table += "</tbody>\n</table>\n";
    text += &folded(&table, rows, "Runs");
    text
}
