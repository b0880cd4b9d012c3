//! Reference documents that are generated from the program itself, so that they are correct: configuration, metrics,
//! REST, the control tree.

use std::fmt::Write;

use tidegate_api::config::Config;

use crate::observe::metrics;
use crate::rest;
use crate::tree;

/// The REST interface as an OpenAPI 3.1 document.
pub fn openapi_json() -> String {
    rest::document()
}

/// The control tree, as a page of the manual.
pub fn control_tree_reference() -> String {
    tree::reference()
}

/// All metrics, as a page of the manual.
pub fn metrics_reference() -> String {
    let mut text = String::from(
        "# Metrics\n\n\
         The daemon exports these metrics at `/metrics` on its REST socket. Names follow Prometheus' rules: base units, and\n\
         `_total` on counters. Histograms have the labels `op` (`read`, `write`, `flush` or `other`) and `stage` (`queue`,\n\
         `filters`, `datastore` or `total`).\n\n\
         | metric | type | labels | meaning |\n|---|---|---|---|\n",
    );
    for family in metrics::FAMILIES {
        let labels = if family.labels.is_empty() {
            "-"
        } else {
            family.labels
        };
        let _ = writeln!(
            text,
            "| `{}` | {} | {labels} | {} |",
            family.name,
            family.kind.word(),
            family.help
        );
    }
    text
}

/// All keys of `tidegate.toml`, as a page of the manual.
///
/// # Panics
/// Never: the schema is plain data.
pub fn config_reference() -> String {
    let schema = serde_json::to_value(Config::schema()).expect("a schema is plain data");
    let mut text = String::from(
        "# Configuration\n\n\
         `tidegate.toml` is the daemon's configuration file. It is in the root directory; for the system's root it may also be\n\
         `/etc/tidegate/tidegate.toml`. Every key is optional, and so is the file. Unknown keys are errors. Relative paths begin\n\
         at the root directory.\n",
    );
    section(&mut text, &schema, &schema, "");
    text
}

/// One table of the file: its own keys first, then its subtables.
fn section(text: &mut String, root: &serde_json::Value, schema: &serde_json::Value, path: &str) {
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    let mut tables = Vec::new();
    let mut keys = String::new();
    for (name, property) in properties {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let inner = table_in(root, property);
        let help = property["description"]
            .as_str()
            .unwrap_or_default()
            .replace('\n', " ");
        match inner {
            Some((inner, list)) => tables.push((path, help, inner, list)),
            None => {
                let _ = writeln!(keys, "| `{name}` | {} | {help} |", kind(root, property));
            }
        }
    }
    if !keys.is_empty() {
        let _ = write!(text, "\n| key | type | meaning |\n|---|---|---|\n{keys}");
    }
    for (path, help, inner, list) in tables {
        let title = if list {
            format!("[[{path}]]")
        } else {
            format!("[{path}]")
        };
        let _ = write!(text, "\n## `{title}`\n\n{help}\n");
        section(text, root, inner, &path);
    }
}

/// The table of a property that is a table or a list of tables.
fn table_in<'a>(
    root: &'a serde_json::Value,
    property: &'a serde_json::Value,
) -> Option<(&'a serde_json::Value, bool)> {
    let property = resolve(root, property);
    let items = resolve(root, &property["items"]);
    if items["properties"].is_object() {
        return Some((items, true));
    }
    property["properties"]
        .is_object()
        .then_some((property, false))
}

/// Resolves a reference; of "this or null", takes the type that is not null.
fn resolve<'a>(
    root: &'a serde_json::Value,
    schema: &'a serde_json::Value,
) -> &'a serde_json::Value {
    if let Some(name) = schema["$ref"]
        .as_str()
        .and_then(|path| path.strip_prefix("#/$defs/"))
    {
        return resolve(root, &root["$defs"][name]);
    }
    match schema["anyOf"].as_array() {
        Some(options) => options
            .iter()
            .find(|option| option["type"] != "null")
            .map_or(schema, |option| resolve(root, option)),
        None => schema,
    }
}

fn kind(root: &serde_json::Value, property: &serde_json::Value) -> String {
    let schema = resolve(root, property);
    if let Some(options) = schema["oneOf"].as_array() {
        let words: Vec<_> = options
            .iter()
            .filter_map(|option| option["const"].as_str())
            .collect();
        return words.join(", ");
    }
    if let Some(example) = schema["examples"][0].as_str() {
        return format!("such as `\"{example}\"`");
    }
    let own = &schema["type"];
    let word = own.as_str().or_else(|| own[0].as_str()).unwrap_or("value");
    match word {
        "array" => format!("list of {}", kind(root, &schema["items"])),
        "string" => "text".to_owned(),
        "integer" => "number".to_owned(),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_reference_tells_every_key_with_its_meaning() {
        let text = config_reference();
        for line in [
            "## `[io]`",
            "| `poll` | such as `\"25ms\"` |",
            "## `[[nbd.tcp]]`",
            "## `[nbd.tcp.tls]`",
            "| `client_ca` | text |",
            "| `format` | text, json, journald |",
            "| `cpus` | list of number |",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(
            text.lines().all(|line| !line.ends_with("|  |")),
            "a key without a meaning:\n{text}"
        );
    }

    #[test]
    fn the_metrics_reference_tells_every_metric() {
        let text = metrics_reference();
        assert!(
            metrics::FAMILIES
                .iter()
                .all(|family| text.contains(family.name))
        );
    }
}
