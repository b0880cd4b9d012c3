//! Where rules are taken away: a copy of the tree, the builds of its tests, and their runs.
//!
//! What costs is the building, so as little as possible is built, and a run ends with the first test that fails.
//!
//! # Always true
//! - the copy is as the tree is, but while a rule is being tried
//! - a program that takes much longer than it took with all rules is ended, and counts as one that fails

use super::{LAST_RESORT, Mutant, SOURCE, places};
use crate::workspace::Workspace;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const PACKAGE: &str = "tidegate-core";
/// What a build of the packages needs, and no more.
const COPIED: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    ".cargo",
    "crates",
    // What tests of the simulator read.
    "docs",
    "scenarios",
    "xtask",
];
/// Tests are given this long where it is not known how long they take.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);

/// What became of a mutant.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) enum Fate {
    /// This test fails, or what else happened.
    Noticed(String),
    Survived,
    /// It is no program.
    Broken(String),
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::Noticed(by) => write!(f, "killed by {by}"),
            Fate::Survived => f.write_str("SURVIVED"),
            Fate::Broken(why) => write!(f, "IS NO PROGRAM: {why}"),
        }
    }
}

/// How long tests may take that took so long with all rules: the machine may be busier now, and some are run by chance.
pub(super) fn limit(took: Duration) -> Duration {
    10 * took + Duration::from_secs(20)
}

/// What an entry of `tests` names: a target, and a part of its tests' names.
pub(super) fn target_and_filter(tests: &str) -> (&str, Option<&str>) {
    match tests.split_once("::") {
        Some((target, filter)) => (target, Some(filter)),
        None => (tests, None),
    }
}

/// See the module.
pub(super) struct Bench {
    pub(super) tree: PathBuf,
    build: PathBuf,
    /// How long the last run of tests took.
    took: Cell<Duration>,
}

impl Bench {
    /// Brings the copy up to date. What is the same stays as it is, so that it need not be built again.
    pub(super) fn set_up(workspace: &Workspace) -> anyhow::Result<Bench> {
        let bench = Bench {
            tree: workspace.target.join("mutants/tree"),
            build: workspace.target.join("mutants/build"),
            took: Cell::default(),
        };
        for name in COPIED {
            mirror(&workspace.root.join(name), &bench.tree.join(name))?;
        }
        Ok(bench)
    }

    /// How long the last run of tests took, without their build.
    pub(super) fn took(&self) -> Duration {
        self.took.get()
    }

    /// Takes a rule away, and builds and runs tests without it.
    pub(super) fn test_without(
        &self,
        mutant: &Mutant,
        tests: &str,
        limit: Duration,
    ) -> anyhow::Result<Fate> {
        let path = self.tree.join(SOURCE).join(&mutant.file);
        let source = fs::read_to_string(&path)?;
        let place = places(&source, &mutant.find)
            .pop()
            .context("the table fitted when it was checked")?;
        let mut without = source.clone();
        without.replace_range(place, &mutant.replace);
        fs::write(&path, without)?;
        let fate = self.test(tests, limit);
        fs::write(&path, source)?;
        fate
    }

    /// Builds tests and runs them, until one fails or `limit` has passed.
    pub(super) fn test(&self, tests: &str, limit: Duration) -> anyhow::Result<Fate> {
        let (target, filter) = target_and_filter(tests);
        let program = match self.build(target)? {
            Ok(program) => program,
            Err(why) => return Ok(Fate::Broken(why)),
        };
        let began = Instant::now();
        let folder = if target == LAST_RESORT { "sim" } else { "core" };
        let mut child = Command::new(&program)
            .args(filter)
            .current_dir(self.tree.join("crates").join(folder))
            // Which case fails is all that counts, and none is to be remembered.
            .env("PROPTEST_MAX_SHRINK_ITERS", "0")
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let output = child.stdout.take().context("it was asked for")?;
        let (tell, told) = channel();
        let reader = std::thread::spawn(move || {
            let mut ran = 0_u32;
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let Some(line) = line.strip_prefix("test ") else {
                    continue;
                };
                ran += u32::from(line.contains(" ... "));
                if let Some(name) = line.strip_suffix(" ... FAILED") {
                    // Whoever asked may have lost patience.
                    let _ = tell.send(name.to_owned());
                }
            }
            ran
        });
        let heard = told.recv_timeout(limit);
        if heard != Err(RecvTimeoutError::Disconnected) {
            // It may have ended by itself.
            let _ = child.kill();
        }
        let status = child.wait()?;
        let ran = reader.join().ok().context("it only reads")?;
        self.took.set(began.elapsed());
        Ok(match heard {
            Ok(name) => Fate::Noticed(name),
            Err(RecvTimeoutError::Timeout) => Fate::Noticed(format!("{tests}, which hangs")),
            Err(RecvTimeoutError::Disconnected) if !status.success() => {
                Fate::Noticed(format!("{tests}, which dies: {status}"))
            }
            Err(RecvTimeoutError::Disconnected) => {
                ensure!(ran > 0, "{tests} names no test");
                Fate::Survived
            }
        })
    }

    /// Builds one test target: its program, or the first thing that the compiler says.
    fn build(&self, target: &str) -> anyhow::Result<Result<PathBuf, String>> {
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.build)
            .args(["test", "--quiet", "--no-run", "--message-format=json"]);
        match target {
            "lib" => build.args(["--package", PACKAGE, "--lib"]),
            LAST_RESORT => build.args(["--package", "tidegate-sim", "--test", "short"]),
            test => build.args(["--package", PACKAGE, "--test", test]),
        };
        let output = build.stdin(Stdio::null()).output()?;
        let (mut program, mut error) = (None, None);
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(line) = serde_json::from_str::<Value>(line) else {
                continue;
            };
            // Programs that a test runs are built with it.
            if let Some(path) = line["executable"].as_str()
                && line["profile"]["test"] == true
            {
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

/// Makes `to` what `from` is, and touches nothing that is the same.
fn mirror(from: &Path, to: &Path) -> anyhow::Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            if name != "target" {
                mirror(&from.join(&name), &to.join(&name))?;
                names.insert(name);
            }
        }
        for entry in fs::read_dir(to)? {
            let entry = entry?;
            if names.contains(&entry.file_name()) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
    } else if from.is_file() {
        let bytes = fs::read(from)?;
        if fs::read(to).is_ok_and(|there| there == bytes) {
            return Ok(());
        }
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(to, bytes).with_context(|| format!("{} cannot be copied", from.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_named_by_their_target_and_a_part_of_their_names() {
        assert_eq!(target_and_filter("lib"), ("lib", None));
        let part = ("lib", Some("governor::lease"));
        assert_eq!(target_and_filter("lib::governor::lease"), part);
    }

    #[test]
    fn a_copy_is_brought_up_to_date_and_what_is_the_same_is_not_touched() {
        let base = std::env::temp_dir().join(format!("tidegate-mirror-{}", std::process::id()));
        let (from, to) = (base.join("from"), base.join("to"));
        fs::create_dir_all(from.join("folder")).unwrap();
        fs::create_dir_all(to.join("gone/with")).unwrap();
        for (name, text) in [("same", "1"), ("folder/new", "2"), ("changed", "3")] {
            fs::write(from.join(name), text).unwrap();
        }
        fs::write(to.join("same"), "1").unwrap();
        fs::write(to.join("changed"), "4").unwrap();
        let before = fs::metadata(to.join("same")).unwrap().modified().unwrap();
        mirror(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("folder/new")).unwrap(), "2");
        assert_eq!(fs::read_to_string(to.join("changed")).unwrap(), "3");
        assert!(!to.join("gone").exists());
        let after = fs::metadata(to.join("same")).unwrap().modified().unwrap();
        assert_eq!(before, after);
        fs::remove_dir_all(base).unwrap();
    }
}
