//! The project's own tasks: `cargo xtask check` before a commit, `cargo xtask test` for everything.
//!
//! Each task is a few lines here and a list of steps; the rules that no lint can keep are in `tidy`.

#![forbid(unsafe_code)]

mod command;
mod docs;
mod mutants;
mod needs;
mod packages;
mod sim;
mod steps;
mod tidy;
mod workspace;

use anyhow::{Context, bail};
use needs::LeftOut;
use std::process::ExitCode;
use steps::{Steps, cargo};
use workspace::Workspace;

const USAGE: &str = "\
cargo xtask TASK

  check                     formatting, clippy, tidy, the code's own documentation, the fast tests: before each commit;
                            installs nothing, and names the tests that it leaves out for want of a program
  test [--all] [--release]  everything: installs what the tests need (Debian packages, as root), then check, the
                            end-to-end tests, and three scenarios in real time (--all: all of them), of the program that
                            the checks built, which looks for overflows and broken assumptions; or of the one that is
                            shipped
  tidy                      the rules that no lint can keep
  bench data-path [ARGS]    the data path against its peers, as a table of ratios
  sim [ARGS]                scenarios in virtual time: --scenario S --seed N, or --swarm MINUTES; all of them without
  cache-policies [ARGS]     cache policies on recorded and made-up requests: writes the tables in docs/flash-cache.md;
                            --check only says whether they are stale; --trace FILE prints the table of that trace
  flash-cache               the experiment of the flash cache in virtual time: writes its table in docs/flash-cache.md
  mutants [GLOB]...         mutation tests of I/O control and leases, or of other files of the core, by cargo-mutants; fails
                            on a missed mutant that crates/core/survivors.txt does not list. Hours for all files
  docs [--check]            writes docs/cli.md, config.md, control-tree.md, openapi.json, metrics.md, man pages and
                            completions; --check only says whether they are stale
  fuzz [TARGET] [SECONDS]   fuzzes one target, or each in turn (60 seconds; needs cargo-fuzz and nightly)
  package                   a Debian package, by cargo-deb
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[&str]) -> anyhow::Result<()> {
    match args {
        ["check"] => {
            let workspace = Workspace::read()?;
            let mut steps = Steps::new();
            let left_out = LeftOut::here(&workspace)?;
            check(&workspace, &mut steps, &left_out)?;
            steps.summary();
            Ok(())
        }
        ["test", rest @ ..] => test(&Test::read(rest)?),
        ["tidy"] => tidy(&Workspace::read()?),
        ["bench", "data-path", rest @ ..] => bench(&Workspace::read()?, rest),
        ["sim", rest @ ..] => sim::run(&Workspace::read()?, rest),
        ["flash-cache"] => sim::flash_cache(&Workspace::read()?),
        ["cache-policies", rest @ ..] => sim::cache_policies(&Workspace::read()?, rest),
        ["mutants", rest @ ..] => mutants::run(&Workspace::read()?, rest),
        ["docs"] => docs::write(&Workspace::read()?),
        ["docs", "--check"] => docs::check(&Workspace::read()?),
        ["fuzz", rest @ ..] => fuzz(&Workspace::read()?, rest),
        ["package"] => package(&Workspace::read()?),
        [] | ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        _ => bail!("`{}` is no task; these are:\n\n{USAGE}", args.join(" ")),
    }
}

/// Everything fast but what is `left_out`.
fn check(workspace: &Workspace, steps: &mut Steps, left_out: &LeftOut) -> anyhow::Result<()> {
    steps.run(
        "formatting",
        cargo(workspace).args(["fmt", "--all", "--check"]),
    )?;
    steps.run(
        "clippy",
        cargo(workspace).args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]),
    )?;
    steps.time("tidy", || tidy(workspace))?;
    steps.run(
        "documentation of the code",
        cargo(workspace).env("RUSTDOCFLAGS", "-D warnings").args([
            "doc",
            "--workspace",
            "--no-deps",
        ]),
    )?;
    // All in one go, as each choice of crates builds others' crates anew with the features that those ask for. What wants
    // real clients and minutes comes later.
    let mut fast = cargo(workspace);
    fast.args(["test", "--workspace", "--no-fail-fast", "--lib", "--bins"]);
    for target in workspace.test_targets() {
        let later = [END_TO_END, SCENARIOS].contains(&target);
        if !later && !left_out.targets.contains(&target) {
            fast.args(["--test", target]);
        }
    }
    fast.args(["--", FAST_AT_ONCE]);
    for name in &left_out.names {
        fast.args(["--skip", name]);
    }
    steps.run("fast tests", &mut fast)?;
    steps.run(
        "examples in the documentation",
        cargo(workspace).args(["test", "--workspace", "--doc"]),
    )?;
    // Another `cfg` builds everything anew: in a folder of its own, lest the two chase each other's work away.
    steps.run(
        "what threads share, under loom",
        cargo(workspace)
            .env("RUSTFLAGS", "--cfg loom")
            .env("CARGO_TARGET_DIR", workspace.target.join("loom"))
            .args(["test", "--package", "tidegate-core"])
            .args(["--package", "tidegate-engine"])
            .args(["--test", "loom_shared", "--test", "loom_moves"]),
    )
}

/// So many of the fast tests at once: some wait, for daemons, guests and clocks. On two cores three take
/// 223 to 237 s where two take 251.
const FAST_AT_ONCE: &str = "--test-threads=3";

/// The test target that needs what [`packages`] installs.
const END_TO_END: &str = "e2e";

/// So many of them at once: most of the time they wait, for guests and daemons that are to end, time out or notice. On two
/// cores three take 283 s where two take 396.
const END_TO_END_AT_ONCE: &str = "--test-threads=3";

/// The test target that plays scenarios in real time: minutes, and little work.
const SCENARIOS: &str = "scenarios";

/// So many of them at once: each needs some tenths of a core.
const SCENARIOS_AT_ONCE: &str = "--test-threads=3";

/// Those that are played unless all are asked for: shares over hosts, limits, and latency at the threshold. The simulator
/// plays the same rows of all of them.
const SCENARIOS_PLAYED: [&str; 3] = ["row_2_", "row_6_limits_", "row_12_"];

/// What `cargo xtask test` is asked for.
#[derive(Default)]
struct Test {
    release: bool,
    all: bool,
}

impl Test {
    fn read(args: &[&str]) -> anyhow::Result<Test> {
        let mut test = Test::default();
        for arg in args {
            match *arg {
                "--release" => test.release = true,
                "--all" => test.all = true,
                other => bail!("`{other}` is no option: cargo xtask test [--all] [--release]"),
            }
        }
        Ok(test)
    }

    /// The words of `cargo test` that build the program under test.
    fn built(&self) -> &'static [&'static str] {
        match self.release {
            true => &["--release", "--package", "tidegate"],
            false => &["--workspace"],
        }
    }

    /// The filters of the scenarios to play: none, for all.
    fn scenarios(&self) -> &'static [&'static str] {
        match self.all {
            true => &[],
            false => &SCENARIOS_PLAYED,
        }
    }
}

/// Everything, of the program that `wish` names.
fn test(wish: &Test) -> anyhow::Result<()> {
    let built = wish.built();
    let workspace = Workspace::read()?;
    let mut steps = Steps::new();
    steps.time("Debian packages", packages::install)?;
    steps.time("a guest's kernel", || {
        packages::fetch_kernel(&workspace.target)
    })?;
    check(&workspace, &mut steps, &LeftOut::default())?;
    steps.time("generated documents", || docs::check(&workspace))?;
    steps.run(
        "end-to-end tests",
        cargo(&workspace)
            .arg("test")
            .args(built)
            .args(["--no-fail-fast", "--test", END_TO_END])
            .args(["--", END_TO_END_AT_ONCE]),
    )?;
    steps.run(
        "scenarios in real time",
        cargo(&workspace)
            .arg("test")
            .args(built)
            .args(["--test", SCENARIOS])
            .arg("--")
            .args(wish.scenarios())
            .arg(SCENARIOS_AT_ONCE),
    )?;
    steps.summary();
    Ok(())
}

fn tidy(workspace: &Workspace) -> anyhow::Result<()> {
    let tree = tidy::Tree::read(&workspace.root)?;
    let findings = tidy::findings(&tree, &workspace.packages);
    for finding in &findings {
        eprintln!("{finding}");
    }
    let misfits = mutants::misfits(&workspace.root)?;
    for misfit in &misfits {
        eprintln!("{misfit}");
    }
    match findings.len() + misfits.len() {
        0 => Ok(()),
        n => bail!("tidy: {n} findings, above; each says what to do"),
    }
}

fn bench(workspace: &Workspace, args: &[&str]) -> anyhow::Result<()> {
    let mut steps = Steps::new();
    steps.run(
        "release build",
        cargo(workspace)
            .args(["build", "--release", "--package", "tidegate"])
            .args(["--package", "tidegate-lab", "--bins"]),
    )?;
    let release = workspace.target.join("release");
    let mut bench = std::process::Command::new(release.join("tidegate-bench"));
    bench
        .current_dir(&workspace.root)
        .arg("data-path")
        .arg("--tidegate")
        .arg(release.join("tidegate"))
        .args(args);
    steps.run("bench", &mut bench)
}

fn fuzz(workspace: &Workspace, args: &[&str]) -> anyhow::Result<()> {
    let targets = workspace.fuzz_targets()?;
    let (chosen, seconds) = match args {
        [] => (targets, "60"),
        [target] => (vec![(*target).to_owned()], "60"),
        [target, seconds] => (vec![(*target).to_owned()], *seconds),
        _ => bail!("cargo xtask fuzz [TARGET] [SECONDS]"),
    };
    let seconds: u32 = seconds
        .parse()
        .with_context(|| format!("`{seconds}` is no number of seconds"))?;
    let mut steps = Steps::new();
    for target in chosen {
        let mut fuzz = std::process::Command::new("cargo");
        fuzz.current_dir(&workspace.root)
            .args(["+nightly", "fuzz", "run", &target, "--"]);
        fuzz.arg(format!("-max_total_time={seconds}"));
        steps.run(&format!("fuzzing {target}"), &mut fuzz).context(
            "needs a nightly toolchain (`rustup toolchain install nightly`) and `cargo install cargo-fuzz`",
        )?;
    }
    steps.summary();
    Ok(())
}

fn package(workspace: &Workspace) -> anyhow::Result<()> {
    let mut steps = Steps::new();
    if !command::succeeds(cargo(workspace).args(["deb", "--version"])) {
        steps.run(
            "installing cargo-deb",
            cargo(workspace).args(["install", "--locked", "cargo-deb"]),
        )?;
    }
    steps.run(
        "Debian package",
        &mut std::process::Command::new(workspace.root.join("contrib/debian/build")),
    )
}
