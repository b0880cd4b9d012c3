//! The report's tables as Markdown, for a ticket or a pull request.

use super::html::{cells, phase_words};
use super::{Chapter, came_to, disturbed, measured, method, place, tally};
use crate::draw::label;
use crate::experiment::SetUp;
use crate::experiment::findings::{Check, Findings, Stage, Verdict};
use crate::experiment::summary::{ScenarioSummary, Summary};

/// The summary; `title` is a suite's.
pub(super) fn page(title: Option<&str>, chapters: &[Chapter]) -> String {
    let mut text = String::new();
    if let Some(title) = title {
        text += &format!("# {title}\n\n");
        for chapter in chapters {
            let findings = &chapter.findings;
            let name = &findings.experiment.name;
            text += &format!("- [{name}](#{name}): {}\n", tally(findings));
        }
        text += "\n";
    }
    for (place, chapter) in chapters.iter().enumerate() {
        if place > 0 {
            text += "\n";
        }
        text += &self::chapter(chapter, if title.is_some() { "##" } else { "#" });
    }
    text
}

fn chapter(chapter: &Chapter, level: &str) -> String {
    let findings = &chapter.findings;
    let summary = &findings.experiment;
    let mut text = format!("{level} {}\n\n{}.\n", summary.name, summary.title);
    if !summary.source.is_empty() {
        text += &format!("{}.\n", summary.source);
    }
    text += &format!("\n**{}.**", tally(findings));
    if findings.missing > 0 {
        text += &format!(" {} runs are not there (yet).", findings.missing);
    }
    text += "\n";
    for says in disturbed(std::iter::once(findings)) {
        text += &format!("\n{says}\n");
    }
    for problem in &findings.problems {
        text += &format!("\nCould not be run: {}\n", problem.replace('\n', " "));
    }
    text += &checks(&findings.checks);
    if measured::ab_test(findings).is_some() {
        text += &competed(findings);
    } else {
        for stage in &findings.stages {
            text += &figures(stage);
        }
    }
    text += &format!("\n{level}# Set-up\n\n");
    text += &set_up(summary);
    let machine = &findings.machine;
    text += &format!("\n{level}# Machine and method\n\n");
    text += &format!(
        "- {} x {}, {} GiB, Linux {}, load {} before; Tidegate {}, begun {}\n",
        machine.cpus,
        machine.processor,
        label(machine.memory_bytes as f64 / f64::from(1 << 30)),
        machine.kernel,
        machine.load,
        findings.version,
        findings.began
    );
    for says in method(findings) {
        text += &format!("- {says}\n");
    }
    let base = &chapter.base;
    text += &format!(
        "\nRaw data: [{base}runs/]({base}runs/) (JSON), [{base}csv/]({base}csv/), \
         [{base}findings.json]({base}findings.json). Charts: report.html.\n"
    );
    text
}

fn set_up(summary: &Summary) -> String {
    match &summary.set_up {
        SetUp::Scenario(scenario) => hosts(scenario),
        SetUp::AbTest(ab_test) => {
            let facts = measured::set_up(ab_test).into_iter();
            facts
                .map(|(name, what)| format!("- {name}: {what}\n"))
                .collect()
        }
    }
}

fn hosts(summary: &ScenarioSummary) -> String {
    let mut text = format!("- Hosts: {}\n", summary.hosts.join(", "));
    text += &format!("- Datastore: {}\n", summary.datastore);
    text += &format!("- Congestion threshold: {}\n", summary.threshold);
    for disk in &summary.disks {
        let settings = match disk.settings.as_str() {
            "" => String::new(),
            some => format!(", {some}"),
        };
        text += &format!(
            "- {} on {}: {} shares{settings}; {}\n",
            disk.name, disk.host, disk.shares, disk.workload
        );
    }
    if summary.phases.len() > 1 {
        let phases = summary.phases.iter().map(phase_words);
        text += &format!("- Phases: {}\n", phases.collect::<Vec<_>>().join("; "));
    }
    text
}

/// What contestants did, sweep by sweep.
fn competed(findings: &Findings) -> String {
    let mut text = String::new();
    for (title, rows) in measured::sweeps(findings) {
        text += &format!(
            "\n{title}:\n\n| {} |\n|{}\n",
            measured::HEAD.join(" | "),
            "---|".repeat(measured::HEAD.len())
        );
        for row in rows {
            let (cells, note) = measured::cells(row);
            let note = note.map_or(String::new(), |note| format!(" ({note})"));
            text += &format!(
                "| {} | {}{} |",
                cell(&row.point),
                cell(&row.contestant),
                cell(&note)
            );
            for (figure, spread) in cells {
                let spread = spread.map_or(String::new(), |spread| format!(" ({spread})"));
                text += &format!(" {figure}{spread} |");
            }
            text += "\n";
        }
    }
    text + &format!("\n{}\n", measured::KEY)
}

fn checks(checks: &[Check]) -> String {
    let mut sorted: Vec<&Check> = checks.iter().collect();
    sorted.sort_by_key(|check| check.verdict);
    let mut text = String::from(
        "\n| | check | on | published, or why | ours | bar |\n|---|---|---|---|---|---|\n",
    );
    for check in sorted {
        let verdict = match check.verdict {
            Verdict::Fail => "**FAIL**",
            other => other.word(),
        };
        let note = check
            .note
            .as_ref()
            .map_or(String::new(), |note| format!(" ({note})"));
        text += &format!(
            "| {verdict} | {} | {} | {} | {}{} | {} |\n",
            cell(&check.what),
            place(check.on),
            cell(&check.published),
            cell(&came_to(check)),
            cell(&note),
            cell(&check.bar)
        );
    }
    text
}

fn figures(stage: &Stage) -> String {
    let shops = stage.figures.iter().any(|row| row.orders.is_some());
    let mut text = format!(
        "\n{}:\n\n| way | phase | disk | I/Os a second | part | latency, mean | 99 % at or below |",
        stage.on.heading()
    );
    if shops {
        text += " orders a second | time of an order |";
    }
    text += "\n|---|---|---|---|---|---|---|";
    if shops {
        text += "---|---|";
    }
    text += "\n";
    for row in &stage.figures {
        text += &format!(
            "| {} | {} | {} |",
            cell(&row.way),
            cell(&row.phase),
            cell(&row.disk)
        );
        for (figure, spread) in cells(row, shops) {
            let spread = spread.map_or(String::new(), |spread| format!(" ({spread})"));
            text += &format!(" {figure}{spread} |");
        }
        text += "\n";
    }
    text
}

/// Text that does not end its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
