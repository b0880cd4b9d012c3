//! Writes a JSON value as YAML, for `-o yaml`.
//!
//! Only writing, and only what JSON can hold: so this is shorter than the dependency that it replaces.
//!
//! # Always true
//! - What is written reads back as the same value: a text that YAML could take for something else is quoted as in
//!   JSON, of whose quoted texts YAML 1.2 is a superset.

use serde_json::Value;

/// The value as a YAML document without markers.
pub(crate) fn write(value: &Value) -> String {
    let mut out = String::new();
    block(value, 0, &mut out);
    out.trim_start_matches('\n').to_owned()
}

/// Writes what follows a `key:` or a `-`, up to and with the end of its last line.
fn block(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            out.push('\n');
            // In the alphabet's order, whatever order the map keeps.
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(key, _)| key.as_str());
            for (key, value) in fields {
                indent(depth, out);
                out.push_str(&scalar(key));
                out.push(':');
                block(value, depth + 1, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            for item in items {
                indent(depth, out);
                out.push('-');
                let mut inner = String::new();
                block(item, depth + 1, &mut inner);
                // A nested block begins on the dash's own line.
                let inner = match inner.strip_prefix('\n') {
                    Some(nested) => format!(" {}", nested.trim_start_matches(' ')),
                    None => inner,
                };
                out.push_str(&inner);
            }
        }
        Value::Object(_) => out.push_str(" {}\n"),
        Value::Array(_) => out.push_str(" []\n"),
        Value::String(text) => {
            out.push(' ');
            out.push_str(&scalar(text));
            out.push('\n');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            out.push_str(&format!(" {value}\n"));
        }
    }
}

fn indent(depth: usize, out: &mut String) {
    for _ in 0..depth {
        out.push_str("  ");
    }
}

/// A text bare where nothing can take it for anything else, else quoted as in JSON.
fn scalar(text: &str) -> String {
    let begins_as_a_word =
        text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '_');
    let harmless = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    // YAML 1.1 readers take these for booleans, null and numbers.
    let taken = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    let reserved = taken.contains(&text.to_ascii_lowercase().as_str());
    if begins_as_a_word && text.chars().all(harmless) && !reserved {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nested_values_are_indented_by_two() {
        let value = json!({
            "disks": [{"name": "web1", "filters": ["stats", "fault:rate=1"], "clients": []}, {"name": "x"}],
            "free": null,
            "policy": {"shares": 1000},
            "none": {}
        });
        let expected = "\
disks:
  - clients: []
    filters:
      - stats
      - \"fault:rate=1\"
    name: web1
  - name: x
free: null
none: {}
policy:
  shares: 1000
";
        assert_eq!(write(&value), expected);
    }

    #[test]
    fn texts_that_look_like_something_else_are_quoted() {
        let value = json!([
            "no",
            "Null",
            "1e3",
            "-",
            "",
            "a: b",
            "# c",
            "two\nlines",
            "/run/x.sock"
        ]);
        let expected = "\
- \"no\"
- \"Null\"
- \"1e3\"
- \"-\"
- \"\"
- \"a: b\"
- \"# c\"
- \"two\\nlines\"
- /run/x.sock
";
        assert_eq!(write(&value), expected);
    }

    #[test]
    fn lists_in_lists_keep_their_shape() {
        assert_eq!(
            write(&json!([[1, 2], {"a": [3]}])),
            "- - 1\n  - 2\n- a:\n    - 3\n"
        );
    }
}
