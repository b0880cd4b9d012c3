//! The rules that no lint checks: each is a function from a tree to findings.
//!
//! They read a [`Tree`], which may be the real one or made up: each rule's own tests show that it fires.
//!
//! # Always true
//! - A rule never looks at the disk; it sees what [`Tree::read`] saw.

mod arrows;
mod cycles;
mod glossary;
mod language;
mod links;
mod names;
mod promises;
mod sources;

use crate::workspace::Package;
use anyhow::Context;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

/// Folders that are nobody's source.
const SKIPPED: &[&str] = &[".git", "target", "node_modules", "corpus", "artifacts"];

/// Files whose text the rules read; of others they know that they exist.
const TEXTS: &[&str] = &["rs", "md", "toml", "sh", "yml"];

/// The files of a source tree, by their paths from its root; `None` for what is no text of ours.
#[derive(Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, Option<String>>,
}

impl Tree {
    /// The tree that lies at `root`.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Tree> {
        let mut tree = Tree::default();
        tree.gather(root, "")?;
        Ok(tree)
    }

    fn gather(&mut self, dir: &Path, prefix: &str) -> anyhow::Result<()> {
        let entries =
            fs::read_dir(dir).with_context(|| format!("{} cannot be read", dir.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if !SKIPPED.contains(&name.as_str()) {
                    self.gather(&entry.path(), &format!("{path}/"))?;
                }
                continue;
            }
            let ours = TEXTS
                .iter()
                .any(|ending| path.ends_with(&format!(".{ending}")));
            let text = if ours && kind.is_file() {
                let text = fs::read_to_string(entry.path());
                Some(text.with_context(|| format!("{path} cannot be read as text"))?)
            } else {
                None
            };
            self.files.insert(path, text);
        }
        Ok(())
    }

    /// Whether there is such a file, or a folder with files in it.
    fn has(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty()
            || self.files.contains_key(path)
            || self.files.keys().any(|file| file.starts_with(&folder))
    }

    fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// The texts whose names end so.
    fn texts<'a>(&'a self, ending: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let texts = self
            .files
            .iter()
            .filter(move |(path, _)| path.ends_with(ending));
        texts.filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }
}

#[cfg(test)]
impl Tree {
    /// A made-up tree.
    fn of(files: &[(&str, &str)]) -> Tree {
        let files = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), Some((*text).to_owned())));
        Tree {
            files: files.collect(),
        }
    }
}

/// Something that is wrong, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    /// Counted from one; zero for the file as a whole.
    line: usize,
    says: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.says),
            line => write!(f, "{}:{line}: {}", self.path, self.says),
        }
    }
}

fn finding(path: &str, line: usize, says: impl Into<String>) -> Finding {
    Finding {
        path: path.to_owned(),
        line,
        says: says.into(),
    }
}

/// All that is wrong.
pub(crate) fn findings(tree: &Tree, packages: &[Package]) -> Vec<Finding> {
    let mut all = arrows::findings(packages);
    all.extend(sources::findings(tree, packages));
    all.extend(cycles::findings(tree));
    all.extend(names::findings(tree));
    all.extend(links::findings(tree));
    all.extend(glossary::findings(tree));
    all.extend(promises::findings(tree));
    all.sort();
    all
}
