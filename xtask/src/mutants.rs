//! Mutation tests of I/O control and leases, by cargo-mutants, against a list of known survivors.
//!
//! cargo-mutants changes one expression or function at a time and runs the tests of the core. A mutant that no test
//! notices is missed. `crates/core/survivors.txt` lists the missed mutants that are known, each with its reason. A run
//! fails on a missed mutant that is not in the list, and names each listed one that is noticed now.
//!
//! # Always true
//! - line numbers do not count: a mutant is known by its file and its change

use crate::steps::cargo;
use crate::workspace::Workspace;
use anyhow::{Context, bail, ensure};
use std::collections::BTreeSet;
use std::path::Path;

/// The missed mutants that are known.
const SURVIVORS: &str = "crates/core/survivors.txt";
/// What is mutated unless other files are named: I/O control and leases.
const FILES: [&str; 2] = [
    "crates/core/src/governor/**/*.rs",
    "crates/core/src/iocontrol/**/*.rs",
];

/// Mutates the files that match `globs`, or [`FILES`], and compares what was missed with the kept list.
pub(crate) fn run(workspace: &Workspace, globs: &[&str]) -> anyhow::Result<()> {
    let globs = if globs.is_empty() { &FILES } else { globs };
    let known = survivors(&workspace.root)?;
    let out = workspace.target.join("mutants");
    let mut command = cargo(workspace);
    // In a target folder of its own copy of the tree: mutated code must not be taken for ours.
    command.env_remove("CARGO_TARGET_DIR");
    command.args(["mutants", "--package", "tidegate-core", "--no-shuffle"]);
    command.arg("--output").arg(&out);
    for glob in globs {
        command.args(["--file", glob]);
    }
    // Without the documentation's examples, which no rule is for.
    command.args(["--", "--lib", "--tests"]);
    let status = command.status().context("cannot run cargo")?;
    // 0: all noticed; 2: some missed; 3: some timed out. Anything else is a failure of its own.
    ensure!(
        matches!(status.code(), Some(0 | 2 | 3)),
        "cargo mutants failed ({status}); if it is not installed: cargo install cargo-mutants --locked"
    );
    let tried = mutants(&out.join("mutants.out/caught.txt"))?;
    let missed = mutants(&out.join("mutants.out/missed.txt"))?;
    for noticed in known.intersection(&tried) {
        println!("noticed now, take it off {SURVIVORS}: {noticed}");
    }
    let new: Vec<&String> = missed.difference(&known).collect();
    for mutant in &new {
        eprintln!("no test notices: {mutant}");
    }
    match new.len() {
        0 => Ok(()),
        n => bail!(
            "{n} mutants, above, are missed: add a test for each, or a line with its reason to {SURVIVORS}"
        ),
    }
}

/// What of the kept list does not fit the tree.
pub(crate) fn misfits(root: &Path) -> anyhow::Result<Vec<String>> {
    let gone = |mutant: &String| {
        let file = mutant.split(": ").next().unwrap_or_default();
        let missing = !root.join(file).is_file();
        missing.then(|| format!("{SURVIVORS}: there is no {file}: bring the line up to date"))
    };
    Ok(survivors(root)?.iter().filter_map(gone).collect())
}

/// The kept list: a mutant a line, after `#` lines that say why it may survive.
fn survivors(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(root.join(SURVIVORS))
        .with_context(|| format!("cannot read {SURVIVORS}"))?;
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

/// The mutants of one of cargo-mutants' lists, without line numbers.
fn mutants(path: &Path) -> anyhow::Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cargo mutants wrote no {}", path.display()))?;
    Ok(text.lines().filter_map(without_place).collect())
}

/// `src/x.rs:12:5: replace ...` as `src/x.rs: replace ...`.
fn without_place(line: &str) -> Option<String> {
    let (place, change) = line.split_once(": ")?;
    let file = place.split(':').next()?;
    Some(format!("{file}: {change}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_is_known_by_file_and_change_whatever_its_line() {
        let at = |line| without_place(&format!("src/a.rs:{line}:5: replace f -> bool with true"));
        assert_eq!(at(12), at(99));
        assert_eq!(
            at(12).as_deref(),
            Some("src/a.rs: replace f -> bool with true")
        );
        assert_eq!(without_place("garbage"), None);
    }

    #[test]
    fn a_listed_file_that_is_gone_is_found() {
        let root = std::env::temp_dir().join(format!("tidegate-survivors-{}", std::process::id()));
        std::fs::create_dir_all(root.join("crates/core")).unwrap();
        let text = "# why\nsrc/gone.rs: replace f with ()\n";
        std::fs::write(root.join(SURVIVORS), text).unwrap();
        let found = misfits(&root).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("src/gone.rs"), "{found:?}");
    }
}
