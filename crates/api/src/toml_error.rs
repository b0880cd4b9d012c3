//! The message of a TOML parser, bounded: it quotes the whole line, which may be as long as its file.
//!
//! Every reader of a TOML file that somebody may have damaged tells its error through here.
//!
//! # Always true
//! - a message has a few hundred characters, however long the line or a name in it is

use std::borrow::Cow;

/// The most characters of the quoted line: one line of a wide terminal.
const QUOTED: usize = 100;
/// The most characters of each other line: more than the list of all keys that a file may have.
const SAID: usize = 1000;

/// The parser's message, with its quoted line cut.
pub fn message(error: &toml::de::Error) -> String {
    let text = error.to_string();
    let lines: Vec<_> = text.trim_end().lines().map(shortened).collect();
    lines.join("\n")
}

/// `12 | text`, or `   | ^` below it; anything else is the parser's own words.
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

    fn told(text: &str) -> String {
        message(&toml::from_str::<toml::Table>(text).unwrap_err())
    }

    #[test]
    fn a_long_line_is_quoted_in_part_wherever_the_fault_is_in_it() {
        let long = "x".repeat(1 << 20);
        for text in [
            format!("a = 1\n{long}"),
            format!("{long} {long}"),
            format!("a = '{long}' b"),
        ] {
            let told = told(&text);
            assert!(told.len() < 400, "{} bytes", told.len());
            assert!(told.contains("TOML parse error at line "), "{told}");
            assert!(told.contains("x..."), "{told}");
        }
    }

    #[test]
    fn a_name_that_is_too_long_is_cut_and_a_short_message_stays_as_it_is() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Empty {}
        let text = format!("{} = 1", "x".repeat(1 << 20));
        let told = message(&toml::from_str::<Empty>(&text).unwrap_err());
        assert!(told.len() < 2000, "{} bytes", told.len());
        let error = toml::from_str::<Empty>("nonsense").unwrap_err();
        assert_eq!(message(&error), error.to_string().trim_end());
    }
}
