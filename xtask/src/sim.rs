//! The simulator as a task: an optimised build that runs the scenarios.
//!
//! Everything after `sim` is the simulator's own: which scenario, which seed, for how long.

use crate::steps::{Steps, cargo};
use crate::workspace::Workspace;
use std::process::Command;

/// Builds and runs it.
pub(crate) fn run(workspace: &Workspace, args: &[&str]) -> anyhow::Result<()> {
    let mut steps = Steps::new();
    steps.run(
        "release build of the simulator",
        cargo(workspace).args(["build", "--release", "--package", "tidegate-sim", "--bins"]),
    )?;
    let mut sim = Command::new(workspace.target.join("release/tidegate-sim"));
    sim.current_dir(&workspace.root).args(args);
    steps.run("simulation", &mut sim)
}

/// Compares cache policies. The simulator is optimised in a debug build as well, and this takes seconds.
pub(crate) fn cache_policies(workspace: &Workspace, args: &[&str]) -> anyhow::Result<()> {
    let mut sim = cargo(workspace);
    sim.args(["run", "--quiet", "--package", "tidegate-sim", "--"]);
    sim.arg("--cache-policies").args(args);
    Steps::new().run("comparison of cache policies", &mut sim)
}

/// Plays the experiment of the flash cache, in a debug build too.
pub(crate) fn flash_cache(workspace: &Workspace) -> anyhow::Result<()> {
    let mut sim = cargo(workspace);
    sim.args(["run", "--quiet", "--package", "tidegate-sim", "--"]);
    sim.arg("--flash-cache");
    Steps::new().run("experiment of the flash cache", &mut sim)
}
