//! Takes one rule away at a time from a copy of the tree, and tells whether a test notices: `cargo xtask mutants`.
//!
//! The rules are those of I/O control and of leases, one entry each in `crates/core/mutants.toml`. A rule that can go
//! without any test failing is either not tested or not needed; both are worth knowing. It takes the better part of an
//! hour, so `cargo xtask test` only looks whether every entry still fits the source ([`misfits`], in `tidy`).
//!
//! # Always true
//! - The tree itself is not touched: everything happens in `target/mutants`.
//! - Before anything is taken away the tests named pass, or nothing is said of any rule.

use crate::workspace::Workspace;
use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Where the rules are listed.
const TABLE: &str = "crates/core/mutants.toml";
/// Their source, to which each entry's file is relative.
const SOURCE: &str = "crates/core/src";
const PACKAGE: &str = "tidegate-core";
/// What a build of the package needs, and no more.
const COPIED: &[&str] = &["Cargo.toml", "Cargo.lock", ".cargo", "crates", "xtask"];
/// Seconds after which tests that used to end are taken to hang: that is noticed, too.
const PATIENCE: &str = "400";

#[derive(Deserialize)]
struct Table {
    mutant: Vec<Mutant>,
}

/// One rule, and how to take it away.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    /// Its name, by which it can be asked for.
    rule: String,
    /// What it says.
    says: String,
    file: String,
    /// The source as it is; white space does not matter.
    find: String,
    /// The source without the rule.
    replace: String,
    /// Test targets that may notice, the likeliest first; `lib` is the unit tests.
    tests: Vec<String>,
}

/// What became of a mutant.
enum Fate {
    /// These tests fail, or the name of the target that hangs.
    Noticed(String),
    Survived,
    /// It is no program.
    Broken(String),
}

/// What of the table does not fit the source.
pub(crate) fn misfits(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut misfits = Vec::new();
    let mut names = BTreeSet::new();
    for mutant in read(root)? {
        let name = &mutant.rule;
        if !names.insert(name.clone()) {
            misfits.push(format!("{TABLE}: two rules are called `{name}`"));
        }
        if mutant.tests.is_empty() || mutant.says.is_empty() {
            misfits.push(format!("{TABLE}: `{name}` says nothing, or names no tests"));
        }
        let path = root.join(SOURCE).join(&mutant.file);
        let source = fs::read_to_string(&path).unwrap_or_default();
        match places(&source, &mutant.find).len() {
            1 => {}
            n => misfits.push(format!(
                "{TABLE}: what `{name}` takes away stands {n} times in {}: bring the entry up to date",
                mutant.file
            )),
        }
    }
    Ok(misfits)
}

/// Tries the rules of these names, or all.
pub(crate) fn run(workspace: &Workspace, names: &[&str]) -> anyhow::Result<()> {
    let misfits = misfits(&workspace.root)?;
    ensure!(misfits.is_empty(), "{}", misfits.join("\n"));
    let mut mutants = read(&workspace.root)?;
    for name in names {
        let known = mutants.iter().any(|mutant| mutant.rule == *name);
        ensure!(known, "{TABLE} has no rule `{name}`");
    }
    mutants.retain(|mutant| names.is_empty() || names.contains(&mutant.rule.as_str()));
    let bench = Bench::set_up(workspace)?;
    let targets: BTreeSet<&String> = mutants.iter().flat_map(|m| &m.tests).collect();
    for target in targets {
        match bench.test(std::slice::from_ref(target))? {
            Fate::Survived => println!("{target}: passes as it is"),
            Fate::Noticed(tests) => bail!("{target} fails though nothing was taken away: {tests}"),
            Fate::Broken(why) => bail!("{target} cannot be built: {why}"),
        }
    }
    let mut bad = Vec::new();
    for mutant in &mutants {
        let began = Instant::now();
        let fate = bench.try_without(mutant)?;
        let says = match &fate {
            Fate::Noticed(tests) => format!("noticed by {tests}"),
            Fate::Survived => "SURVIVED".to_owned(),
            Fate::Broken(why) => format!("IS NO PROGRAM: {why}"),
        };
        let seconds = began.elapsed().as_secs();
        println!("{}: {says} ({seconds} s)", mutant.rule);
        if !matches!(fate, Fate::Noticed(_)) {
            bad.push(format!("{}: {}", mutant.rule, mutant.says));
        }
    }
    println!("{} of {} noticed", mutants.len() - bad.len(), mutants.len());
    ensure!(bad.is_empty(), "no test misses these:\n{}", bad.join("\n"));
    Ok(())
}

fn read(root: &Path) -> anyhow::Result<Vec<Mutant>> {
    let text = fs::read_to_string(root.join(TABLE))?;
    let table: Table = toml::from_str(&text).with_context(|| format!("{TABLE} cannot be read"))?;
    Ok(table.mutant)
}

/// Where `find` stands in `source`, whatever the white space.
fn places(source: &str, find: &str) -> Vec<Range<usize>> {
    let dense = |text: &str| -> Vec<(usize, char)> {
        let chars = text.char_indices();
        chars.filter(|(_, c)| !c.is_whitespace()).collect()
    };
    let (source, find) = (dense(source), dense(find));
    if find.is_empty() {
        return Vec::new();
    }
    let windows = source.windows(find.len());
    windows
        .filter(|window| window.iter().zip(&find).all(|(a, b)| a.1 == b.1))
        .map(|window| {
            let (last, c) = window[window.len() - 1];
            window[0].0..last + c.len_utf8()
        })
        .collect()
}

/// A copy of the tree, and where it is built.
struct Bench {
    tree: PathBuf,
    build: PathBuf,
}

impl Bench {
    fn set_up(workspace: &Workspace) -> anyhow::Result<Bench> {
        let bench = Bench {
            tree: workspace.target.join("mutants/tree"),
            build: workspace.target.join("mutants/build"),
        };
        if bench.tree.exists() {
            fs::remove_dir_all(&bench.tree)?;
        }
        for name in COPIED {
            copy(&workspace.root.join(name), &bench.tree.join(name))?;
        }
        Ok(bench)
    }

    fn try_without(&self, mutant: &Mutant) -> anyhow::Result<Fate> {
        let path = self.tree.join(SOURCE).join(&mutant.file);
        let source = fs::read_to_string(&path)?;
        let place = places(&source, &mutant.find)
            .pop()
            .context("the table fitted when it was checked")?;
        let mut without = source.clone();
        without.replace_range(place, &mutant.replace);
        fs::write(&path, without)?;
        let fate = self.test(&mutant.tests);
        fs::write(&path, source)?;
        fate
    }

    /// Builds and runs test targets until one fails.
    fn test(&self, targets: &[String]) -> anyhow::Result<Fate> {
        for target in targets {
            let program = match self.build(target)? {
                Ok(program) => program,
                Err(why) => return Ok(Fate::Broken(why)),
            };
            let log = self.build.join("output");
            let status = Command::new("timeout")
                .args(["--signal=KILL", PATIENCE])
                .arg(&program)
                .current_dir(self.tree.join("crates/core"))
                .stdin(Stdio::null())
                .stdout(File::create(&log)?)
                .stderr(Stdio::null())
                .status()
                .context("`timeout` (coreutils) does not start")?;
            if !status.success() {
                let log = fs::read_to_string(&log)?;
                let failed = log.lines().filter_map(|line| {
                    let name = line.strip_prefix("test ")?;
                    name.strip_suffix(" ... FAILED")
                });
                let failed: Vec<&str> = failed.take(3).collect();
                return Ok(Fate::Noticed(match failed[..] {
                    [] => format!("{target}, which hangs or dies"),
                    _ => failed.join(", "),
                }));
            }
        }
        Ok(Fate::Survived)
    }

    /// Builds one test target: its program, or the first thing that the compiler says.
    fn build(&self, target: &str) -> anyhow::Result<Result<PathBuf, String>> {
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.build)
            .args(["test", "--quiet", "--no-run", "--package", PACKAGE])
            .arg("--message-format=json");
        match target {
            "lib" => build.arg("--lib"),
            test => build.args(["--test", test]),
        };
        let output = build.stdin(Stdio::null()).output()?;
        let (mut program, mut error) = (None, None);
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(line) = serde_json::from_str::<Value>(line) else {
                continue;
            };
            if let Some(path) = line["executable"].as_str() {
                program = Some(PathBuf::from(path));
            }
            if line["message"]["level"] == "error" && error.is_none() {
                error = line["message"]["message"].as_str().map(str::to_owned);
            }
        }
        if output.status.success()
            && let Some(program) = program
        {
            return Ok(Ok(program));
        }
        let told = String::from_utf8_lossy(&output.stderr);
        let told = told.lines().next().unwrap_or("cargo ends without a word");
        Ok(Err(error.unwrap_or_else(|| told.to_owned())))
    }
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            if name != "target" {
                copy(&from.join(&name), &to.join(&name))?;
            }
        }
    } else if from.is_file() {
        if let Some(dir) = to.parent() {
            fs::create_dir_all(dir)?;
        }
        fs::copy(from, to).with_context(|| format!("{} cannot be copied", from.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_away_is_found_whatever_the_white_space() {
        let source = "fn f() {\n    a(\n        b,\n    );\n    a(b,);\n}";
        let found = places(source, "a(b, );");
        assert_eq!(found.len(), 2);
        assert_eq!(&source[found[1].clone()], "a(b,);");
        assert_eq!(&source[found[0].clone()], "a(\n        b,\n    );");
        assert!(places(source, "c").is_empty() && places(source, " ").is_empty());
    }
}
