//! The message of a TOML parser, with a bounded length. The parser quotes the whole line, which may be as long as the
//! file.
//!
//! Every reader of a TOML file that may be damaged reports its errors through here.
//!
//! # Always true
//! - A message has a few hundred characters, whatever the length of the line or of a name in it.

use std::borrow::Cow;

/// The most characters of the quoted line: one line of a wide terminal.
const QUOTED: usize = 100;
/// The most characters of each other line. It is more than the list of all keys of a file.
const SAID: usize = 1000;

/// The parser's message with its quoted line shortened.
pub fn message(error: &toml::de::Error) -> String {
    let text = error.to_string();
    let lines: Vec<_> = text.trim_end().lines().map(shortened).collect();
    lines.join("\n")
}

/// Shortens `12 | text`, or `   | ^` below it. Any other line is the parser's message.
fn shortened(line: &str) -> Cow<'_, str> {
    let number = line.split_once(" |").map(|(number, _)| number);
    let is_quoted = number.is_some_and(|number| {
        number
            .bytes()
            .all(|byte| byte == b' ' || byte.is_ascii_digit())
    });
    let most = if is_quoted { QUOTED } else { SAID };
    match line.char_indices().nth(most) {
        None => line.into(),
        Some((end, _)) if line[..end].ends_with(' ') => line[..end].trim_end().into(),
        Some((end, _)) => format!("{}...", &line[..end]).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_message(text: &str) -> String {
        message(&toml::from_str::<toml::Table>(text).unwrap_err())
    }

    #[test]
    fn a_long_line_is_shortened_wherever_its_error_is() {
        let long = "x".repeat(1 << 20);
        for text in [
            format!("a = 1\n{long}"),
            format!("{long} {long}"),
            format!("a = '{long}' b"),
        ] {
            let message = error_message(&text);
            assert!(message.len() < 400, "{} bytes", message.len());
            assert!(message.contains("TOML parse error at line "), "{message}");
            assert!(message.contains("x..."), "{message}");
        }
    }

    #[test]
    fn a_long_name_is_cut_and_a_short_message_is_unchanged() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Empty {}
        let text = format!("{} = 1", "x".repeat(1 << 20));
        let shortened = message(&toml::from_str::<Empty>(&text).unwrap_err());
        assert!(shortened.len() < 2000, "{} bytes", shortened.len());
        let error = toml::from_str::<Empty>("nonsense").unwrap_err();
        assert_eq!(message(&error), error.to_string().trim_end());
    }
}
