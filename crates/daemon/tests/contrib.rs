//! The Grafana dashboard and the Prometheus rules in `contrib/` ask for metrics and labels that the daemon has; the unit
//! bounds its memory.
//!
//! What there is comes from the metrics reference, which the daemon's own list is made into. Expressions are read
//! roughly: names that begin as ours do, the labels in braces after them, and the function around them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Labels that Prometheus itself gives every series.
const GIVEN: [&str; 2] = ["instance", "job"];

struct Metric {
    kind: String,
    labels: BTreeSet<String>,
}

fn metrics() -> BTreeMap<String, Metric> {
    let reference = tidegate_daemon::metrics_reference();
    let rows = reference.lines().filter(|line| line.starts_with("| `"));
    let metrics = rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let labels = cells[3].split(", ").filter(|label| *label != "-");
        let metric = Metric {
            kind: cells[2].to_owned(),
            labels: labels.map(str::to_owned).collect(),
        };
        (cells[1].trim_matches('`').to_owned(), metric)
    });
    let metrics: BTreeMap<_, _> = metrics.collect();
    assert!(metrics.len() > 30, "the reference has changed its form");
    metrics
}

fn file(path: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../contrib")
        .join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The metrics that an expression names, each with what stands before it and after it.
fn named(expression: &str) -> Vec<(&str, String, &str)> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let mut named = Vec::new();
    for (at, _) in expression.match_indices("tidegate_") {
        if expression[..at].ends_with(is_name) {
            continue;
        }
        let end = expression[at..]
            .find(|c| !is_name(c))
            .map_or(expression.len(), |n| at + n);
        named.push((
            &expression[..at],
            expression[at..end].to_owned(),
            &expression[end..],
        ));
    }
    named
}

/// Labels that are chosen by, in the braces after a name.
fn chosen(after: &str) -> Vec<String> {
    let Some(inside) = after
        .strip_prefix('{')
        .and_then(|rest| rest.split_once('}'))
    else {
        return Vec::new();
    };
    let pairs = inside.0.split("\",");
    let labels = pairs.filter_map(|pair| pair.split(['=', '!']).next());
    labels
        .map(|label| label.trim().to_owned())
        .filter(|label| !label.is_empty())
        .collect()
}

fn check(expression: &str, metrics: &BTreeMap<String, Metric>) -> usize {
    let named = named(expression);
    for (before, name, after) in &named {
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|part| {
            let base = name.strip_suffix(part)?;
            metrics
                .get(base)
                .filter(|metric| metric.kind == "histogram")
        });
        let metric = histogram.or_else(|| metrics.get(name).filter(|m| m.kind != "histogram"));
        let metric =
            metric.unwrap_or_else(|| panic!("there is no {name}, asked for by {expression}"));
        for label in chosen(after) {
            let known = metric.labels.contains(&label) || GIVEN.contains(&label.as_str());
            assert!(known, "{name} has no label {label}: {expression}");
        }
        // A counter means nothing but by what it grows.
        let grows = before.ends_with("rate(") || before.ends_with("increase(");
        let counts = metric.kind != "gauge";
        assert_eq!(grows, counts, "{name} is a {}: {expression}", metric.kind);
    }
    named.len()
}

fn expressions(json: &Value, found: &mut Vec<String>) {
    match json {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(text) if name == "expr" => found.push(text.to_owned()),
                    _ => expressions(value, found),
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

#[test]
fn the_grafana_dashboard_asks_for_what_there_is() {
    let metrics = metrics();
    let board: Value = serde_json::from_str(&file("grafana/tidegate.json")).unwrap();
    let mut asked = Vec::new();
    expressions(&board, &mut asked);
    let names: usize = asked
        .iter()
        .map(|expression| check(expression, &metrics))
        .sum();
    assert!(
        asked.len() > 25 && names >= asked.len(),
        "{names} in {}",
        asked.len()
    );
    for variable in board["templating"]["list"].as_array().unwrap() {
        let query = variable["query"]["query"].as_str().unwrap_or_default();
        for (_, name, after) in named(query) {
            let metric = metrics
                .get(&name)
                .unwrap_or_else(|| panic!("there is no {name}"));
            let label = after.rsplit(", ").next().unwrap().trim_end_matches(')');
            let known = metric.labels.contains(label) || GIVEN.contains(&label);
            assert!(known, "{name} has no label {label}");
        }
    }
    let mut panels = BTreeSet::new();
    for panel in board["panels"].as_array().unwrap() {
        assert!(panels.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let told =
            panel["type"] == "row" || panel["description"].as_str().is_some_and(|d| !d.is_empty());
        assert!(told, "a panel without a description: {}", panel["title"]);
    }
}

#[test]
fn the_prometheus_rules_ask_for_what_there_is() {
    let metrics = metrics();
    let text = file("prometheus/tidegate.rules.yml");
    // A folded expression goes on in the lines that are further in.
    let mut asked = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(first) = line.trim_start().strip_prefix("expr:") else {
            continue;
        };
        let mut expression = first.trim().trim_start_matches(">-").to_owned();
        let indent = line.len() - line.trim_start().len();
        while let Some(next) = lines.next_if(|next| next.len() - next.trim_start().len() > indent) {
            expression = format!("{expression} {}", next.trim());
        }
        asked.push(expression);
    }
    let alerts = text.matches("- alert: ").count();
    let records: Vec<&str> = (text.lines())
        .filter_map(|line| line.trim().strip_prefix("- record: "))
        .collect();
    assert_eq!(asked.len(), alerts + records.len());
    for expression in &asked {
        let ours = check(expression, &metrics);
        let recorded = records.iter().any(|record| expression.contains(record));
        assert!(ours > 0 || recorded, "{expression}");
    }
    assert_eq!(text.matches("severity: ").count(), alerts);
    assert_eq!(text.matches("summary: ").count(), alerts);
}

#[test]
fn the_unit_bounds_the_daemons_memory_and_the_documents_say_by_how_much() {
    let unit = file("systemd/tidegate.service");
    let bound = unit.lines().find(|line| line.starts_with("MemoryMax="));
    let bound = bound.expect("the unit has a bound");
    let document = file("../docs/operating.md");
    assert!(document.contains("\n## Memory\n") && document.contains(bound));
}
