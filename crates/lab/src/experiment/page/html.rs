//! Renders a report as one self-contained HTML page.

use super::document::{Block, Cell, Document, Item, Section, Table};
use crate::draw::{self, escape};
use crate::experiment::Verdict;

/// The page's own style.
const STYLE: &str = include_str!("style.css");
/// A table of more rows is folded away.
const LONG: usize = 24;

/// The page.
pub(super) fn page(document: &Document) -> String {
    let title = escape(&document.title);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title} \u{2013} Tidegate lab</title>\n\
         <style>\n{STYLE}{}</style>\n</head>\n<body>\n<header>\n<p class=\"kicker\">Tidegate lab</p>\n<h1>{title}</h1>\n",
        draw::STYLE
    );
    if !document.lede.is_empty() {
        page += &format!("<p class=\"lede\">{}</p>\n", escape(&document.lede));
    }
    let class = if document.failed { " bad" } else { "" };
    page += &format!(
        "</header>\n<main>\n<section class=\"verdict{class}\" aria-label=\"Verdict\">\n{}</section>\n",
        blocks(&document.verdict)
    );
    page.extend(document.sections.iter().map(section));
    page + &format!(
        "</main>\n<footer>\n<p>{}</p>\n</footer>\n</body>\n</html>\n",
        escape(&document.footer)
    )
}

fn section(section: &Section) -> String {
    let name = escape(&section.name);
    let heading = match section.title.as_str() {
        "" => String::new(),
        title => format!("<h2>{name}: {}</h2>\n", escape(title)),
    };
    let blocks = blocks(&section.blocks);
    format!("<section id=\"{name}\">\n{heading}{blocks}</section>\n")
}

fn blocks(blocks: &[Block]) -> String {
    blocks.iter().map(block).collect()
}

fn block(block: &Block) -> String {
    match block {
        Block::Heading(text) => format!("<h3>{}</h3>\n", escape(text)),
        Block::Text(text) => format!("<p>{}</p>\n", escape(text)),
        Block::Strong(text) => format!("<p><strong>{}</strong></p>\n", escape(text)),
        Block::Note(text) => format!("<p class=\"soft\">{}</p>\n", escape(text)),
        Block::List(items) => {
            let items: String = items.iter().map(item).collect();
            format!("<ul>\n{items}</ul>\n")
        }
        Block::Facts(facts) => {
            let each = facts.iter();
            let each = each.map(|(name, what)| {
                format!("<dt>{}</dt><dd>{}</dd>\n", escape(name), escape(what))
            });
            format!("<dl class=\"facts\">\n{}</dl>\n", each.collect::<String>())
        }
        Block::Table(table) | Block::Detail(table) => self::table(table),
        Block::Charts(picture) => {
            let (name, caption) = (escape(&picture.name), escape(&picture.caption));
            let one = if picture.panels.len() == 1 {
                " one"
            } else {
                ""
            };
            let panels = picture.panels.join("\n");
            format!(
                "<h3>{name}</h3>\n<figure>\n<div class=\"panels{one}\">\n{panels}\n</div>\n\
                 <figcaption>{caption}</figcaption>\n</figure>\n"
            )
        }
    }
}

fn item(item: &Item) -> String {
    let link = item.link.iter().map(|(label, to)| link(label, to) + ": ");
    format!(
        "<li>{}{}</li>\n",
        link.collect::<String>(),
        escape(&item.text)
    )
}

fn link(label: &str, to: &str) -> String {
    format!("<a href=\"{}\">{}</a>", escape(to), escape(label))
}

/// A table in a frame that scrolls, folded away if it is long. On a phone a table without numbers becomes cards.
fn table(table: &Table) -> String {
    let names: Vec<&str> = table.columns.split(" | ").collect();
    let mut classes = vec![""; names.len()];
    if let Some(row) = table.rows.first() {
        classes = row.iter().map(|cell| cell.class).collect();
    }
    let cards = if classes.contains(&"n") { "" } else { "cards" };
    let head = names.iter().zip(classes);
    let head = head.map(|(name, class)| format!("<th class=\"{class}\">{name}</th>"));
    let rows = table.rows.iter().map(|row| self::row(&names, row));
    let title = escape(&table.title);
    let frame = format!(
        "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{title}\">\n<table class=\"{cards}\">\n\
         <thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody>\n</table>\n</div>\n",
        head.collect::<String>(),
        rows.collect::<String>()
    );
    match table.rows.len() {
        _ if title.is_empty() => frame,
        rows if rows > LONG => {
            format!("<details>\n<summary>{title}: {rows} rows</summary>\n{frame}</details>\n")
        }
        _ => format!("<p class=\"soft\">{title}</p>\n{frame}"),
    }
}

fn row(names: &[&str], row: &[Cell]) -> String {
    let class = match row.first().and_then(|cell| cell.verdict) {
        Some(Verdict::Fail) => "fail",
        Some(Verdict::NotJudged) => "open",
        Some(Verdict::Pass) => "pass",
        None => "",
    };
    let cells = names.iter().zip(row).map(|(name, cell)| {
        let links = cell.links.iter().map(|(label, to)| link(label, to));
        let below = cell.below.iter();
        let below = below.map(|text| format!("<br><small>{}</small>", escape(text)));
        format!(
            "<td class=\"{}\" data-is=\"{name}\">{}{}{}</td>",
            cell.class,
            escape(&cell.text),
            links.collect::<Vec<_>>().join(" "),
            below.collect::<String>()
        )
    });
    format!("<tr class=\"{class}\">{}</tr>\n", cells.collect::<String>())
}
