//! The steps of a task: run in order, and timed.
//!
//! A step's own output goes straight through: the closing lines of `cargo test` are seen as they come.

use crate::command::run;
use crate::workspace::Workspace;
use anyhow::Context;
use std::process::Command;
use std::time::{Duration, Instant};

/// Steps, and how long those that are done took.
pub(crate) struct Steps {
    done: Vec<(String, Duration)>,
}

impl Steps {
    pub(crate) fn new() -> Steps {
        Steps { done: Vec::new() }
    }

    /// Does one thing under a name.
    pub(crate) fn time(
        &mut self,
        name: &str,
        act: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        println!("==> {name}");
        let start = Instant::now();
        act().with_context(|| format!("{name} failed"))?;
        let took = start.elapsed();
        println!("==> {name}: {:.1} s", took.as_secs_f64());
        self.done.push((name.to_owned(), took));
        Ok(())
    }

    /// Runs one command under a name; it is given no input.
    pub(crate) fn run(&mut self, name: &str, command: &mut Command) -> anyhow::Result<()> {
        self.time(name, || run(command))
    }

    /// What took how long.
    pub(crate) fn summary(&self) {
        println!("==> all steps passed");
        for (name, took) in &self.done {
            println!("    {:>7.1} s  {name}", took.as_secs_f64());
        }
        let total: Duration = self.done.iter().map(|(_, took)| *took).sum();
        println!("    {:>7.1} s  in all", total.as_secs_f64());
    }
}

/// The cargo that runs us, at the workspace's root.
pub(crate) fn cargo(workspace: &Workspace) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(&workspace.root);
    // `cargo run` tells us of our own package. That would go on to what we build, where ring's build script is run anew whenever
    // it differs: all that stands on ring would be built by turns, for us and for cargo by hand.
    let ours = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(ours) {
            command.env_remove(name);
        }
    }
    // What is built once and thrown away need not be prepared for changes, nor for a debugger.
    if std::env::var_os("CI").is_some() {
        for name in ["CARGO_INCREMENTAL", "CARGO_PROFILE_DEV_DEBUG"] {
            if std::env::var_os(name).is_none() {
                command.env(name, "0");
            }
        }
    }
    command
}
