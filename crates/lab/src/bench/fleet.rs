//! Many disks of one daemon on one I/O thread: what they cost each, and whether they are served alike.
//!
//! Tidegate serves them as a user would have it: `tidegate serve` with a root of its own, disks created and attached by
//! the command line. qemu-storage-daemon gets one export per disk.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Bench, Contestant, measure, missing};
use crate::peers::{self, Store};
use crate::report::{Check, Figures, Report, Rule};
use crate::server::{Launch, Server};
use crate::statistics;

const OURS: &str = "tidegate";
const DAEMON: &str = "qemu-storage-daemon";
/// How many disks, on one I/O thread.
const COUNTS: [usize; 4] = [1, 4, 16, 64];
/// What one idle disk may take, in bytes.
const IDLE_DISK: f64 = 1_048_576.0;

/// Starts a daemon with one I/O thread and `count` null disks; their vhost-user sockets.
fn start(bench: &Bench, count: usize) -> Result<(Server, Vec<PathBuf>)> {
    let root = bench.path("root");
    // The last trial's daemon left its root.
    let _absent = std::fs::remove_dir_all(&root);
    std::fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
    let config = root.join("tidegate.toml");
    std::fs::write(&config, "version = 1\n[io]\nthreads = 1\n")
        .with_context(|| format!("cannot write {}", config.display()))?;
    let launch = Launch {
        name: OURS.into(),
        program: bench.options.tidegate.clone(),
        arguments: vec!["--root".into(), (&root).into(), "serve".into()],
        sockets: Vec::new(),
        cpu: Some(bench.options.server_cpu),
    };
    let server = Server::start(&launch, bench.scratch.path())?;
    let command = |words: &[&str]| tidegate(&bench.options.tidegate, &root, words);
    command(&["status", "--wait", "20s"])?;
    command(&["datastore", "add", "void", "--kind", "null"])?;
    let mut sockets = Vec::new();
    for index in 0..count {
        let name = format!("bench{index}");
        command(&[
            "disk",
            "create",
            &name,
            "--datastore",
            "void",
            "--size",
            "1G",
        ])?;
        command(&["disk", "attach", &name])?;
        let shown: Value = serde_json::from_str(&command(&["disk", "show", &name, "-o", "json"])?)
            .with_context(|| format!("disk show {name} -o json is not JSON"))?;
        let socket = shown["vhost_user_socket"].as_str();
        sockets.push(
            socket
                .with_context(|| format!("disk show {name} tells no vhost_user_socket"))?
                .into(),
        );
    }
    Ok((server, sockets))
}

fn tidegate(program: &Path, root: &Path, words: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .arg("--root")
        .arg(root)
        .args(words)
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    if !output.status.success() {
        bail!(
            "tidegate {}: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn ours<'a>(name: impl Into<String>, count: usize, depth: u16) -> Contestant<'a> {
    Contestant::new(name, move |bench: &Bench| {
        let (server, sockets) = start(bench, count)?;
        let figures = measure::guests(bench, &server, &sockets, depth)?;
        server.stop()?;
        Ok(figures)
    })
}

fn daemon<'a>(name: impl Into<String>, count: usize, depth: u16) -> Contestant<'a> {
    Contestant::new(name, move |bench: &Bench| {
        let sockets: Vec<PathBuf> = (0..count)
            .map(|index| bench.path(&format!("v{index}.sock")))
            .collect();
        let launch = peers::storage_daemon(&Store::Null, &sockets, bench.options.server_cpu);
        measure::vhost(bench, &launch, depth)
    })
}

fn contestants<'a>(
    bench: &Bench,
    report: &mut Report,
    counts: &[usize],
    what: &str,
    depth: u16,
) -> Vec<Contestant<'a>> {
    let with_daemon = !missing(report, &[DAEMON]);
    let mut contestants = Vec::new();
    for &count in counts {
        if bench.has_tidegate() {
            contestants.push(ours(format!("{OURS}, {count} {what}"), count, depth));
        }
        if with_daemon {
            contestants.push(daemon(format!("{DAEMON}, {count} {what}"), count, depth));
        }
    }
    contestants
}

fn cpu(figures: &Figures) -> f64 {
    figures.cpu_percent_per_kiops
}

/// One and four guests: what a request costs, and whether all get the same.
///
/// # Errors
/// A trial fails.
pub fn vms(bench: &Bench, report: &mut Report) -> Result<()> {
    const SCENARIO: &str = "VMs";
    const CASE: &str = "QD 32 each";
    let contestants = contestants(bench, report, &[1, 4], "VMs", 32);
    bench.compete(report, SCENARIO, CASE, &contestants, 1)?;
    let four = format!("{OURS}, 4 VMs");
    let cost = report.ratio(SCENARIO, CASE, &four, &format!("{OURS}, 1 VMs"), cpu);
    // "No worse" is judged with the bench's own resolution, which is a few percent.
    report.judge(
        SCENARIO,
        CASE,
        "4 VMs: CPU per I/O by 1 VM's",
        Rule::AtMost(1.03),
        cost,
    );
    let series = report.find(SCENARIO, CASE, &four);
    let fair = series.and_then(|series| series.spread(|figures| figures.unfairness));
    let tail = series.and_then(|series| series.spread(|figures| figures.p999_us / figures.p50_us));
    report.judge(
        SCENARIO,
        CASE,
        "4 VMs: IOPS of the fastest by the slowest's",
        Rule::AtMost(1.05),
        fair,
    );
    report.judge(
        SCENARIO,
        CASE,
        "4 VMs: p99.9 by p50",
        Rule::AtMost(5.0),
        tail,
    );
    Ok(())
}

/// From 1 to 64 disks: what a request costs, and what an idle disk takes.
///
/// # Errors
/// A trial fails.
pub fn disks(bench: &Bench, report: &mut Report) -> Result<()> {
    const SCENARIO: &str = "disks";
    const CASE: &str = "QD 8 each";
    let contestants = contestants(bench, report, &COUNTS, "disks", 8);
    bench.compete(report, SCENARIO, CASE, &contestants, 1)?;
    let one = format!("{OURS}, 1 disks");
    for count in &COUNTS[1..] {
        let ratio = report.ratio(SCENARIO, CASE, &format!("{OURS}, {count} disks"), &one, cpu);
        let claim = format!("{count} disks on one I/O thread: CPU per I/O by 1 disk's");
        report.judge(SCENARIO, CASE, claim, Rule::AtMost(1.10), ratio);
    }
    let per_disk = if bench.has_tidegate() {
        Some(idle_memory(bench)?)
    } else {
        None
    };
    let spread = per_disk.and_then(|bytes| statistics::spread(&[bytes / IDLE_DISK]));
    report.checks.push(Check::new(
        "64 idle disks: MiB of memory each",
        Rule::AtMost(1.0),
        spread,
        1,
    ));
    Ok(())
}

/// What each of 64 disks adds to the daemon's resident memory while nobody uses it.
#[expect(
    clippy::cast_precision_loss,
    reason = "memory sizes stay far below 2^52"
)]
fn idle_memory(bench: &Bench) -> Result<f64> {
    let resident = |count: usize| {
        let (server, _) = start(bench, count)?;
        let bytes = server.resident()?;
        server.stop()?;
        anyhow::Ok(bytes)
    };
    let (few, many) = (resident(1)?, resident(64)?);
    Ok(many.saturating_sub(few) as f64 / 63.0)
}
