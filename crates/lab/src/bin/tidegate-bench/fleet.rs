//! Many disks of one daemon on one I/O thread: cost per disk, and fairness.
//!
//! Tidegate serves them as a user would have it: `tidegate serve` with a root of its own, disks created and attached by
//! the command line. qemu-storage-daemon gets one export per disk.

use std::path::PathBuf;

use anyhow::{Context, Result};
use tidegate_lab::host::{Host, HostOptions};
use tidegate_lab::measure::{self, Figures};
use tidegate_lab::statistics;
use tidegate_testing::peers::{self, Store};

use crate::bench::{Bench, missing};
use crate::compare::{Blocks, Variant};
use crate::report::{Check, Report, Rule};

const OURS: &str = "tidegate";
const DAEMON: &str = "qemu-storage-daemon";
/// How many disks, on one I/O thread.
const COUNTS: [usize; 4] = [1, 4, 16, 64];
/// What one idle disk may take, in bytes.
const IDLE_DISK: f64 = 1_048_576.0;

/// Starts a daemon with one I/O thread and `count` null disks; their vhost-user sockets.
pub(crate) fn start(bench: &Bench, count: usize, more: &str) -> Result<(Host, Vec<PathBuf>)> {
    let root = bench.path("root");
    // The last trial's daemon left its root.
    let _absent = std::fs::remove_dir_all(&root);
    let host = Host::start(&HostOptions {
        program: &bench.options.tidegate,
        name: OURS,
        root: &root,
        config: &format!("version = 1\n[io]\nthreads = 1\n{more}"),
        cpu: Some(bench.setup.server_cpu),
        own_group: false,
    })?;
    host.run(&["datastore", "add", "void", "--kind", "null"])?;
    let names = (0..count).map(|index| format!("bench{index}"));
    let sockets = names.map(|name| host.create_disk(&name, "void", &[]));
    let sockets = sockets
        .collect::<Result<_>>()
        .context("the daemon's disks")?;
    Ok((host, sockets))
}

fn ours<'a>(name: impl Into<String>, count: usize, depth: u16) -> Variant<'a> {
    Variant::trial(name, move |bench: &Bench| {
        let (host, sockets) = start(bench, count, "")?;
        let figures = measure::guests(&bench.setup, host.server(), &sockets, depth)?;
        host.stop()?;
        Ok(figures)
    })
}

fn daemon<'a>(name: impl Into<String>, count: usize, depth: u16) -> Variant<'a> {
    Variant::trial(name, move |bench: &Bench| {
        let sockets: Vec<PathBuf> = (0..count)
            .map(|index| bench.path(&format!("v{index}.sock")))
            .collect();
        let launch = peers::storage_daemon(&Store::Null, &sockets, bench.setup.server_cpu);
        measure::vhost(&bench.setup, &launch, depth)
    })
}

fn variants<'a>(
    bench: &Bench,
    report: &mut Report,
    counts: &[usize],
    what: &str,
    depth: u16,
) -> Vec<Variant<'a>> {
    let with_daemon = !missing(report, &[DAEMON]);
    let mut variants = Vec::new();
    for &count in counts {
        if bench.has_tidegate() {
            variants.push(ours(format!("{OURS}, {count} {what}"), count, depth));
        }
        if with_daemon {
            variants.push(daemon(format!("{DAEMON}, {count} {what}"), count, depth));
        }
    }
    variants
}

fn cpu(figures: &Figures) -> f64 {
    figures.cpu_percent_per_kiops
}

/// One and four guests: what a request costs, and whether all get the same.
///
/// # Errors
/// A trial fails.
pub(crate) fn vms(bench: &Bench, report: &mut Report) -> Result<()> {
    const SCENARIO: &str = "VMs";
    const CASE: &str = "QD 32 each";
    let variants = variants(bench, report, &[1, 4], "VMs", 32);
    bench.compare(report, (SCENARIO, CASE), &variants, Blocks::of_trials(1))?;
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
pub(crate) fn disks(bench: &Bench, report: &mut Report) -> Result<()> {
    const SCENARIO: &str = "disks";
    const CASE: &str = "QD 8 each";
    let variants = variants(bench, report, &COUNTS, "disks", 8);
    bench.compare(report, (SCENARIO, CASE), &variants, Blocks::of_trials(1))?;
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
        let (host, _) = start(bench, count, "")?;
        let bytes = host.server().resident()?;
        host.stop()?;
        anyhow::Ok(bytes)
    };
    let (few, many) = (resident(1)?, resident(64)?);
    Ok(many.saturating_sub(few) as f64 / 63.0)
}
