//! What was found of each rule, one line for each, so that a run can be cut off at any moment.
//!
//! The lines lie in `target/mutants/found.jsonl`. Each bears a stamp of all that it was found with: the core's sources
//! and tests, the versions of what it is built with, and the rule's entry.
//!
//! # Always true
//! - a line is added when something is known, and none is changed: the last of a rule with the right stamp counts

use super::bench::Fate;
use super::{Mutant, TABLE};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::Path;

/// What the tests of the core are made of.
const MADE_OF: &[&str] = &["Cargo.toml", "Cargo.lock", "crates/core"];

/// See the module.
pub(super) struct Book {
    file: File,
    /// Of all sources and tests.
    stamp: u64,
    /// By rule.
    lines: BTreeMap<String, Line>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Line {
    rule: String,
    stamp: u64,
    fate: Fate,
}

impl Book {
    /// The book in `folder`, for the tree as it is.
    pub(super) fn open(folder: &Path, tree: &Path) -> anyhow::Result<Book> {
        let path = folder.join("found.jsonl");
        let mut stamp = DefaultHasher::new();
        for name in MADE_OF {
            add(&mut stamp, &tree.join(name))?;
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        // A line that was cut off is none.
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let lines = lines.map(|line: Line| (line.rule.clone(), line)).collect();
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let mut file = file.with_context(|| format!("{} cannot be written", path.display()))?;
        if !text.is_empty() && !text.ends_with('\n') {
            writeln!(file)?;
        }
        Ok(Book {
            file,
            stamp: stamp.finish(),
            lines,
        })
    }

    /// Whether a test is known to miss a rule. One that was found to be missed by none is tried again.
    pub(super) fn is_noticed(&self, mutant: &Mutant) -> bool {
        matches!(self.fate(mutant), Some(Fate::Noticed(_)))
    }

    /// What is known of a rule.
    pub(super) fn fate(&self, mutant: &Mutant) -> Option<&Fate> {
        let line = self.lines.get(&mutant.rule)?;
        (line.stamp == self.stamp_of(mutant)).then_some(&line.fate)
    }

    /// These are tried again.
    pub(super) fn forget(&mut self, mutants: &[Mutant]) {
        for mutant in mutants {
            self.lines.remove(&mutant.rule);
        }
    }

    /// So it is.
    pub(super) fn note(&mut self, mutant: &Mutant, fate: &Fate) -> anyhow::Result<()> {
        let line = Line {
            rule: mutant.rule.clone(),
            stamp: self.stamp_of(mutant),
            fate: fate.clone(),
        };
        writeln!(self.file, "{}", serde_json::to_string(&line)?)?;
        self.lines.insert(mutant.rule.clone(), line);
        Ok(())
    }

    fn stamp_of(&self, mutant: &Mutant) -> u64 {
        let mut stamp = DefaultHasher::new();
        self.stamp.hash(&mut stamp);
        (&mutant.file, &mutant.find, &mutant.replace).hash(&mut stamp);
        stamp.finish()
    }
}

/// Adds a file, or all files of a folder but the table: each entry has a stamp of its own.
fn add(stamp: &mut DefaultHasher, path: &Path) -> anyhow::Result<()> {
    if path.is_file() && !path.ends_with(TABLE) {
        path.hash(stamp);
        fs::read(path)?.hash(stamp);
    } else if path.is_dir() {
        let entries = fs::read_dir(path)?.map(|entry| Ok(entry?.path()));
        let mut paths = entries.collect::<anyhow::Result<Vec<_>>>()?;
        paths.sort();
        for path in paths {
            add(stamp, &path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn mutant(replace: &str) -> Mutant {
        Mutant {
            rule: "calm".into(),
            says: "so".into(),
            file: "a.rs".into(),
            find: "a".into(),
            replace: replace.into(),
            tests: vec!["lib".into()],
        }
    }

    /// A folder of its own, with a tree of one file.
    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("tidegate-mutants-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("crates/core/src")).unwrap();
        fs::write(folder.join("crates/core/src/a.rs"), "a").unwrap();
        fs::write(folder.join(TABLE), "one").unwrap();
        folder
    }

    #[test]
    fn what_was_found_is_known_after_a_cut_and_only_of_the_same_sources_and_entry() {
        let folder = folder("known");
        let mut book = Book::open(&folder, &folder).unwrap();
        assert_eq!(book.fate(&mutant("")), None);
        let fate = Fate::Noticed("a_test".into());
        book.note(&mutant(""), &fate).unwrap();
        write!(book.file, "{{\"rule\": \"ca").unwrap();
        fs::write(folder.join(TABLE), "another").unwrap();
        let mut book = Book::open(&folder, &folder).unwrap();
        assert_eq!(book.fate(&mutant("")), Some(&fate));
        assert_eq!(book.fate(&mutant("b")), None);
        book.note(&mutant("b"), &Fate::Survived).unwrap();
        let book = Book::open(&folder, &folder).unwrap();
        assert_eq!(book.fate(&mutant("b")), Some(&Fate::Survived));
        fs::write(folder.join("crates/core/src/a.rs"), "b").unwrap();
        let book = Book::open(&folder, &folder).unwrap();
        assert_eq!(book.fate(&mutant("b")), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
