//! Many disks of one daemon on one I/O thread: cost per disk, and fairness.
//!
//! Tidegate serves them as a user would have it: `tidegate serve` with a root of its own, disks created and attached by
//! the command line. qemu-storage-daemon gets one export per disk.

use std::path::PathBuf;

use anyhow::{Context, Result};
use tidegate_lab::host::{Host, HostOptions};
use tidegate_lab::{interleaved, statistics};
use tidegate_testing::peers::{self, Store};

use crate::bench::{Bench, TIDEGATE};
use crate::compare::{Blocks, Variant};
use crate::report::{CPU, Check, Report, Rule};

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
        cpu: Some(bench.server_cpu()),
        own_group: false,
    })?;
    host.run(&["datastore", "add", "empty", "--kind", "null"])?;
    let names = (0..count).map(|index| format!("bench{index}"));
    let sockets = names.map(|name| host.create_disk(&name, "empty", &[]));
    let sockets = sockets
        .collect::<Result<_>>()
        .context("the daemon's disks")?;
    Ok((host, sockets))
}

fn variants(counts: &[usize], what: &str) -> Vec<Variant> {
    let both = counts.iter().flat_map(|&count| {
        let ours = Variant::started(
            format!("{OURS}, {count} {what}"),
            &[TIDEGATE],
            move |bench| {
                let (host, sockets) = start(bench, count, "")?;
                Ok((host.into_server(), sockets))
            },
        );
        let name = format!("{DAEMON}, {count} {what}");
        let daemon = Variant::server(name, &[DAEMON], move |bench, dir| {
            let sockets = interleaved::sockets(dir, count);
            peers::storage_daemon(&Store::Null, &sockets, bench.server_cpu())
        });
        [ours, daemon]
    });
    both.collect()
}

/// One and four guests: what a request costs, and whether all get the same.
pub(crate) fn vms(bench: &Bench, report: &mut Report) -> Result<()> {
    const OF: (&str, &str) = ("VMs", "QD 32 each");
    bench.compare(
        report,
        OF,
        variants(&[1, 4], "VMs"),
        &Blocks::of_trials(1, 32),
    )?;
    let four = format!("{OURS}, 4 VMs");
    // "No worse" is judged with the bench's own resolution, which is a few percent.
    let one = format!("{OURS}, 1 VMs");
    report.check(OF, &four, &one, CPU, Rule::AtMost(1.03));
    let series = report.find(OF.0, OF.1, &four);
    let fair = series.and_then(|series| series.spread(|figures| figures.unfairness));
    let tail = series.and_then(|series| series.spread(|figures| figures.p999_us / figures.p50_us));
    let claim = "4 VMs: IOPS of the fastest by the slowest's";
    report.judge(OF, claim, Rule::AtMost(1.05), fair);
    report.judge(OF, "4 VMs: p99.9 by p50", Rule::AtMost(5.0), tail);
    Ok(())
}

/// From 1 to 64 disks: what a request costs, and what an idle disk takes.
pub(crate) fn disks(bench: &Bench, report: &mut Report) -> Result<()> {
    const OF: (&str, &str) = ("disks", "QD 8 each");
    bench.compare(
        report,
        OF,
        variants(&COUNTS, "disks"),
        &Blocks::of_trials(1, 8),
    )?;
    let name = |count| format!("{OURS}, {count} disks");
    for count in &COUNTS[1..] {
        report.check(OF, &name(*count), &name(1), CPU, Rule::AtMost(1.10));
    }
    let per_disk = bench.has_tidegate().then(|| idle_memory(bench));
    let spread = per_disk
        .transpose()?
        .and_then(|bytes| statistics::spread(&[bytes / IDLE_DISK]));
    let claim = "64 idle disks: MiB of memory each";
    report
        .checks
        .push(Check::new(claim, Rule::AtMost(1.0), spread, 1));
    Ok(())
}

/// What each of 64 disks adds to the daemon's resident memory while it is idle.
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
