//! The glossary rule: a synonym that docs/glossary.md bans appears nowhere.
//!
//! The glossary's table has a column, headed `not ...`, of words parted by commas. Words of others (an option of
//! QEMU's, a name on the wire) stand in a document's code spans, or in code on a line that says `glossary: whose`
//! in a comment, or on the line after it.

use super::links::prose;
use super::{Finding, Tree, finding};

const GLOSSARY: &str = "docs/glossary.md";

/// Documents that may say anything: history, and decisions that weigh others' words.
const FREE: &[&str] = &["docs/decisions/", "CHANGELOG.md", "docs/glossary.md"];

/// Written by the program about itself: its code spans are our own words too.
const OUR_OWN: &[&str] = &[
    "docs/cli.md",
    "docs/config.md",
    "docs/control-tree.md",
    "docs/metrics.md",
];

/// Says in a comment that a line's words are others'.
const EXCUSE: &str = "glossary:";

pub(super) fn findings(tree: &Tree) -> Vec<Finding> {
    let Some(glossary) = tree.text(GLOSSARY) else {
        return Vec::new();
    };
    let banned = banned(glossary);
    if banned.is_empty() {
        return vec![finding(
            GLOSSARY,
            0,
            "has no table with a column `not`: which words are not to be used?",
        )];
    }
    let mut found = Vec::new();
    for (path, text) in tree
        .texts(".md")
        .filter(|(path, _)| !FREE.iter().any(|free| path.starts_with(free)))
    {
        if OUR_OWN.contains(&path) {
            let lines = text
                .lines()
                .enumerate()
                .map(|(n, line)| (n + 1, line.to_owned()));
            found.extend(said(path, lines, &banned));
        } else {
            found.extend(said(
                path,
                prose(text).map(|(n, line)| (n, without_code(line))),
                &banned,
            ));
        }
    }
    // The rules' own tests say what is not to be said.
    let rules = |path: &str| path.starts_with("xtask/src/tidy/");
    for (path, text) in tree.texts(".rs").filter(|(path, _)| !rules(path)) {
        let mut excused = false;
        let lines = text.lines().enumerate().filter_map(|(n, line)| {
            let before = std::mem::replace(&mut excused, line.contains(EXCUSE));
            (!before && !excused).then(|| (n + 1, line.to_owned()))
        });
        found.extend(said(path, lines, &banned));
    }
    found
}

/// A word not to use, in small letters, with the word to use instead.
struct Banned {
    words: Vec<String>,
    instead: String,
}

fn banned(glossary: &str) -> Vec<Banned> {
    let mut column = None;
    let mut banned = Vec::new();
    for line in glossary.lines() {
        let Some(row) = line.trim().strip_prefix('|') else {
            column = None;
            continue;
        };
        let cells: Vec<&str> = row
            .trim_end_matches('|')
            .split('|')
            .map(str::trim)
            .collect();
        let Some(column) = column else {
            column = cells
                .iter()
                .position(|cell| words(cell).first().is_some_and(|word| word == "not"));
            continue;
        };
        let instead = cells[0].trim_matches(['*', '`']).to_owned();
        let phrases = cells.get(column).copied().unwrap_or_default().split(',');
        let phrases = phrases.map(words).filter(|words| !words.is_empty());
        banned.extend(phrases.map(|words| Banned {
            words,
            instead: instead.clone(),
        }));
    }
    banned
}

fn said(
    path: &str,
    lines: impl Iterator<Item = (usize, String)>,
    banned: &[Banned],
) -> Vec<Finding> {
    let mut found = Vec::new();
    for (n, line) in lines {
        let line = words(&line);
        for Banned { words, instead } in banned {
            let mut stretches = line.windows(words.len());
            if stretches.any(|stretch| alike(stretch, words)) {
                found.push(finding(
                    path,
                    n,
                    format!("says `{}`: our word is `{instead}`", words.join(" ")),
                ));
            }
        }
    }
    found
}

/// Whether they are the same words, but for the last one's plural.
fn alike(said: &[String], banned: &[String]) -> bool {
    let (Some((last, before)), Some((word, words))) = (said.split_last(), banned.split_last())
    else {
        return false;
    };
    before == words && (last == word || last.strip_suffix('s') == Some(word))
}

/// Words in small letters; names are taken apart at underscores and at capitals.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut small = false;
    for c in line.chars() {
        if !c.is_alphanumeric() || small && c.is_uppercase() {
            words.push(String::new());
        }
        if c.is_alphanumeric() {
            words
                .last_mut()
                .expect("there is always a word")
                .extend(c.to_lowercase());
        }
        small = c.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// A line of a document without its code spans and its links' targets.
fn without_code(line: &str) -> String {
    let spoken: String = line.split('`').step_by(2).collect::<Vec<_>>().join(" , ");
    let mut parts = spoken.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str("] ");
        text.push_str(part.split_once(')').map_or("", |(_, after)| after));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# Words\n| word | meaning | not |\n|---|---|---|\n\
        | **disk** | a virtual disk | `volume`, virtual drive |\n| host | a machine | |\n";

    fn says(path: &str, text: &str) -> Vec<String> {
        let tree = Tree::of(&[(GLOSSARY, TABLE), (path, text)]);
        findings(&tree).into_iter().map(|f| f.to_string()).collect()
    }

    #[test]
    fn a_synonym_is_found_in_documents_and_in_code() {
        assert_eq!(
            says("docs/a.md", "Each Volume.\n"),
            ["docs/a.md:1: says `volume`: our word is `disk`"]
        );
        for code in [
            "let volume_size = 1;",
            "struct VolumeName;",
            "/// All volumes.",
            "print(\"a volume\")",
        ] {
            assert_eq!(says("crates/a/src/lib.rs", code).len(), 1, "{code}");
        }
        assert_eq!(says("docs/a.md", "two virtual drives\n").len(), 1);
        assert!(says("docs/a.md", "a drive that is virtual, and volumetric\n").is_empty());
    }

    #[test]
    fn the_words_of_others_stand_in_code_spans_or_under_an_excuse() {
        assert!(
            says(
                "docs/a.md",
                "LVM's `volume`\n```\nvolume\n```\n[disk](volume.md)\n"
            )
            .is_empty()
        );
        assert!(says("a.rs", "// glossary: LVM's word\nlet volume = 1;\n").is_empty());
        assert_eq!(
            says(
                "a.rs",
                "// glossary: LVM's word\nlet a = 1;\nlet volume = 1;\n"
            )
            .len(),
            1
        );
        assert_eq!(says("docs/cli.md", "    --`volume`\n").len(), 1);
    }

    #[test]
    fn a_glossary_that_forbids_nothing_is_found() {
        let tree = Tree::of(&[(
            GLOSSARY,
            "| word | meaning |\n|---|---|\n| disk | a disk |\n",
        )]);
        assert_eq!(findings(&tree).len(), 1);
    }
}
