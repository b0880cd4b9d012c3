//! The generated documents: written by the program, stored in the tree, checked for staleness.
//!
//! The program knows its own flags, configuration, routes and metrics; `tidegate internal-docs DIR` writes them
//! down, with man pages and completions in folders beside them.

use crate::command::run;
use crate::steps::cargo;
use crate::workspace::Workspace;
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What must come out, at least.
const DOCUMENTS: &[&str] = &[
    "cli.md",
    "config.md",
    "control-tree.md",
    "metrics.md",
    "openapi.json",
];

/// Writes them into `docs/`.
pub(crate) fn write(workspace: &Workspace) -> anyhow::Result<()> {
    let docs = workspace.root.join("docs");
    for (name, text) in generate(workspace)? {
        let path = docs.join(&name);
        let folder = path.parent().context("a document lies in a folder")?;
        fs::create_dir_all(folder)
            .with_context(|| format!("{} cannot be made", folder.display()))?;
        fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))?;
        println!("  docs/{name}");
    }
    Ok(())
}

/// Fails when one in `docs/` is not what the program would write.
pub(crate) fn check(workspace: &Workspace) -> anyhow::Result<()> {
    let docs = workspace.root.join("docs");
    let stale = stale(&generate(workspace)?, |name| {
        fs::read_to_string(docs.join(name)).ok()
    });
    match stale.as_slice() {
        [] => Ok(()),
        _ => bail!(
            "stale: docs/{}; run `cargo xtask docs`",
            stale.join(", docs/")
        ),
    }
}

fn stale(fresh: &BTreeMap<String, String>, kept: impl Fn(&str) -> Option<String>) -> Vec<String> {
    fresh
        .iter()
        .filter(|(name, text)| kept(name).as_ref() != Some(*text))
        .map(|(name, _)| name.clone())
        .collect()
}

fn generate(workspace: &Workspace) -> anyhow::Result<BTreeMap<String, String>> {
    // As the tests build the program that they run: by itself it would be built anew, with the features that it alone asks for.
    run(cargo(workspace).args(["test", "--workspace", "--no-run", "--test", "cli"]))?;
    let dir = workspace.target.join("tmp/docs");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).with_context(|| format!("{} cannot be made", dir.display()))?;
    run(Command::new(workspace.target.join("debug/tidegate"))
        .arg("internal-docs")
        .arg(&dir))?;
    let mut documents = BTreeMap::new();
    gather(&dir, "", &mut documents)?;
    for name in DOCUMENTS {
        if !documents.contains_key(*name) {
            bail!("`tidegate internal-docs` wrote no {name}");
        }
    }
    Ok(documents)
}

fn gather(dir: &Path, prefix: &str, into: &mut BTreeMap<String, String>) -> anyhow::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            gather(&entry.path(), &format!("{name}/"), into)?;
        } else {
            let text = fs::read_to_string(entry.path())
                .with_context(|| format!("{name} is no text, but documents are"))?;
            into.insert(name, text);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_stale_when_it_differs_or_is_missing() {
        let fresh = BTreeMap::from(
            [
                ("cli.md", "new"),
                ("config.md", "same"),
                ("man/tidegate.1", "page"),
            ]
            .map(|(name, text)| (name.to_owned(), text.to_owned())),
        );
        let kept = |name: &str| match name {
            "cli.md" => Some("old".to_owned()),
            "config.md" => Some("same".to_owned()),
            _ => None,
        };
        assert_eq!(stale(&fresh, kept), ["cli.md", "man/tidegate.1"]);
    }
}
