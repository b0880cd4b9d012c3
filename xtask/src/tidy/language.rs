//! A scanner that separates a Rust file's code from its comments and strings.

/// The code of a Rust file: comments, strings and characters become spaces; lines stay where they are.
pub(super) fn code(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = skipped(&chars, at);
        if end > at {
            out.extend(
                chars[at..end]
                    .iter()
                    .map(|c| if *c == '\n' { '\n' } else { ' ' }),
            );
            at = end;
        } else {
            out.push(chars[at]);
            at += 1;
        }
    }
    out
}

/// The end of what begins at `at` and is no code; `at` itself where there is code.
fn skipped(chars: &[char], at: usize) -> usize {
    let next = |n: usize| chars.get(at + n).copied();
    match chars[at] {
        '/' if next(1) == Some('/') => until(chars, at, |i| chars[i] == '\n'),
        '/' if next(1) == Some('*') => after_block_comment(chars, at),
        '"' => after_string(chars, at + 1),
        'r' if !follows_word(chars, at) || at > 0 && chars[at - 1] == 'b' => {
            after_raw_string(chars, at)
        }
        '\'' if next(1) == Some('\\') => until(chars, at + 3, |i| chars[i] == '\'') + 1,
        '\'' if next(2) == Some('\'') => at + 3,
        _ => at,
    }
}

fn until(chars: &[char], from: usize, stop: impl Fn(usize) -> bool) -> usize {
    (from..chars.len())
        .find(|i| stop(*i))
        .unwrap_or(chars.len())
}

fn follows_word(chars: &[char], at: usize) -> bool {
    at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_')
}

fn after_block_comment(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                i += 1;
                continue;
            }
        }
        i += 2;
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

fn after_string(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

fn after_raw_string(chars: &[char], at: usize) -> usize {
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    if chars.get(at + 1 + hashes) != Some(&'"') {
        return at;
    }
    let open = at + 2 + hashes;
    let closes = |i: usize| {
        chars[i] == '"' && chars[i + 1..].iter().take_while(|c| **c == '#').count() >= hashes
    };
    (until(chars, open, closes) + 1 + hashes).min(chars.len())
}

/// A line's words, names in one piece.
pub(super) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_no_code() {
        let source = "a /* b /* c */ d */ e // f\n\"g \\\" h\" i r#\"j \" k\"# 'l' '\\'' m";
        let words: Vec<_> = code(source).split_whitespace().map(str::to_owned).collect();
        assert_eq!(words, ["a", "e", "i", "m"]);
    }

    #[test]
    fn lifetimes_and_names_ending_in_r_are_code() {
        let source = "fn f<'a>(x: &'a str) { for_r(x) }";
        assert_eq!(code(source), source);
    }

    #[test]
    fn lines_stay_where_they_are() {
        assert_eq!(code("/* a\nb */\nc").lines().count(), 3);
    }
}
