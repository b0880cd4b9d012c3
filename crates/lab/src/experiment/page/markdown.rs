//! Renders a report as Markdown, for a ticket or a pull request: without charts and details.

use super::document::{Block, Cell, Document, Table};
use crate::experiment::Verdict;

/// The summary.
pub(super) fn page(document: &Document) -> String {
    let mut text = format!("# {}\n", document.title);
    if !document.lede.is_empty() {
        text += &format!("\n{}.\n", document.lede);
    }
    text.extend(document.verdict.iter().map(|part| block(part, "##")));
    for section in &document.sections {
        let mut level = "##";
        if !section.title.is_empty() {
            text += &format!("\n## {}\n\n{}.\n", section.name, section.title);
            level = "###";
        }
        text.extend(section.blocks.iter().map(|part| block(part, level)));
    }
    text + &format!("\n{} Charts: report.html.\n", document.footer)
}

fn block(block: &Block, level: &str) -> String {
    match block {
        Block::Heading(text) => format!("\n{level} {text}\n"),
        Block::Text(text) | Block::Note(text) => format!("\n{}\n", line(text)),
        Block::Strong(text) => format!("\n**{}**\n", line(text)),
        Block::List(items) => {
            let items = items.iter().map(|item| {
                let link = item.link.iter();
                let link = link.map(|(label, to)| format!("[{label}]({to}): "));
                format!("- {}{}\n", link.collect::<String>(), line(&item.text))
            });
            format!("\n{}", items.collect::<String>())
        }
        Block::Facts(facts) => {
            let facts = facts.iter();
            let facts = facts.map(|(name, what)| format!("- {name}: {}\n", line(what)));
            format!("\n{}", facts.collect::<String>())
        }
        Block::Table(table) => self::table(table),
        Block::Detail(_) | Block::Charts(..) => String::new(),
    }
}

fn table(table: &Table) -> String {
    let mut text = match table.title.as_str() {
        "" => "\n".to_owned(),
        title => format!("\n{title}:\n\n"),
    };
    let rule = "---|".repeat(table.columns.split(" | ").count());
    text += &format!("| {} |\n|{rule}\n", table.columns);
    for row in &table.rows {
        let cells: Vec<String> = row.iter().map(cell).collect();
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text
}

fn cell(cell: &Cell) -> String {
    let mut text = match cell.verdict {
        Some(Verdict::Fail) => format!("**{}**", cell.text),
        _ => cell.text.clone(),
    };
    if !cell.below.is_empty() {
        text += &format!(" ({})", cell.below.join("; "));
    }
    line(&text).replace('|', "\\|")
}

/// Text that does not end its line.
fn line(text: &str) -> String {
    text.replace('\n', " ")
}
