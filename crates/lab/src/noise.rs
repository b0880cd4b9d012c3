//! Whether the machine was quiet during a trial.
//!
//! Two moments of `/proc/stat`, less the CPU time of the processes that belong to the trial, are other people's work.
//! Interrupts, softirqs and the kernel's own threads are left out: they are mostly the trial's own I/O. A file that is
//! written keeps the journal's and the block layer's workers busy for 5 to 20 % of a core.
//!
//! # Units
//! - Percent of one core, since client and server have one each.
//! # Source
//! proc(5): `/proc/stat` and `/proc/PID/stat`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

/// `/proc/stat` counts in hundredths of a second on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// The flag of the kernel's threads (`PF_KTHREAD` of Linux' `include/linux/sched.h`).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// One look at the machine.
#[derive(Clone, Debug)]
pub struct Look {
    at: Instant,
    busy: f64,
    steal: f64,
    workers: Workers,
}

/// CPU seconds that each of the kernel's threads has used.
type Workers = HashMap<Worker, f64>;

/// One of the kernel's threads. A number may be given anew, but not to two that start at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Worker {
    pid: u32,
    started: u64,
}

/// What disturbed a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Noise {
    /// CPU that processes outside the trial used, the kernel's threads aside.
    pub foreign_percent: f64,
    /// CPU that the hypervisor gave to other machines.
    pub steal_percent: f64,
}

impl Noise {
    /// The worse of two, part by part.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            foreign_percent: self.foreign_percent.max(other.foreign_percent),
            steal_percent: self.steal_percent.max(other.steal_percent),
        }
    }
}

/// Looks now.
///
/// # Errors
/// `/proc` cannot be read.
pub fn look() -> Result<Look> {
    let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let (busy, steal) = parse(&text).context("/proc/stat has no cpu line")?;
    Ok(Look {
        at: Instant::now(),
        busy,
        steal,
        workers: workers()?,
    })
}

/// Those of the kernel's threads that there are now. One that ends while it is looked at is left out.
fn workers() -> Result<Workers> {
    let processes = std::fs::read_dir("/proc").context("cannot list /proc")?;
    let stats = processes.flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let text = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let (started, used) = worker(&text)?;
        Some((Worker { pid, started }, used))
    });
    Ok(stats.collect())
}

/// When one of the kernel's threads started, in ticks since the boot, and the CPU seconds that it has used, by its
/// `/proc/PID/stat`; `None` of any other process.
fn worker(stat: &str) -> Option<(u64, f64)> {
    // The name before it may have blanks and brackets of its own.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<u64>().ok();
    if ticks(6)? & KERNEL_THREAD == 0 {
        return None;
    }
    #[expect(
        clippy::cast_precision_loss,
        reason = "2^53 hundredths of a second are long enough"
    )]
    let used = (ticks(11)? + ticks(12)?) as f64 / TICKS_PER_SECOND;
    Some((ticks(19)?, used))
}

/// CPU seconds that they used between two looks. What one did that ended meanwhile is not known.
fn worked(from: &Workers, to: &Workers) -> f64 {
    let spent = to.iter().map(|(worker, used)| {
        let before = from.get(worker).unwrap_or(&0.0);
        used - before
    });
    spent.sum()
}

/// Seconds of user, nice and system time; seconds of steal.
fn parse(text: &str) -> Option<(f64, f64)> {
    let line = text.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .map_while(|word| word.parse().ok())
        .collect();
    Some((
        ticks.get(..3)?.iter().sum::<f64>() / TICKS_PER_SECOND,
        ticks.get(7)? / TICKS_PER_SECOND,
    ))
}

/// The noise between two looks, of which `own` CPU time was the trial's.
#[must_use]
pub fn between(from: &Look, to: &Look, own: Duration) -> Noise {
    let span = to.at.duration_since(from.at).as_secs_f64().max(1e-9);
    let kernel = worked(&from.workers, &to.workers);
    let foreign = to.busy - from.busy - own.as_secs_f64() - kernel;
    Noise {
        // Ticks are coarse: a quiet machine may come out below zero.
        foreign_percent: (foreign / span * 100.0).max(0.0),
        steal_percent: ((to.steal - from.steal) / span * 100.0).max(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  7900 100 2000 185004 694 50 94 20 0 0\ncpu0 1 2 3 4\n";

    #[test]
    fn busy_leaves_out_idle_and_interrupts() {
        assert_eq!(parse(STAT), Some((100.0, 0.2)));
        assert_eq!(parse("intr 5"), None);
    }

    fn look(at: Instant, busy: f64, steal: f64, workers: &[(u32, f64)]) -> Look {
        let workers = workers.iter().map(|&(pid, used)| {
            let started = 3;
            (Worker { pid, started }, used)
        });
        Look {
            at,
            busy,
            steal,
            workers: workers.collect(),
        }
    }

    #[test]
    fn our_own_work_is_no_noise_and_neither_is_what_the_kernel_does_for_it() {
        let now = Instant::now();
        // One of its threads has done nothing, one is new, and one has ended.
        let from = look(now, 100.0, 1.0, &[(8, 40.0), (9, 2.0), (10, 7.0)]);
        let later = now + Duration::from_secs(2);
        let to = look(later, 103.5, 1.02, &[(8, 40.0), (9, 2.375), (11, 0.125)]);
        let noise = between(&from, &to, Duration::from_millis(2900));
        assert!((noise.foreign_percent - 5.0).abs() < 1e-6, "{noise:?}");
        assert!((noise.steal_percent - 1.0).abs() < 1e-6, "{noise:?}");
    }

    #[test]
    fn the_kernels_threads_are_told_from_other_processes() {
        let kernel =
            "17 (kworker/0:1 (x) y) I 2 0 0 0 -1 69238880 0 0 0 0 50 200 0 0 20 0 1 0 77 0 0";
        assert_eq!(worker(kernel), Some((77, 2.5)));
        let shell = "18 (sh) S 1 18 18 0 -1 4194304 0 0 0 0 50 200 0 0 20 0 1 0 77 0 0";
        assert_eq!(worker(shell), None);
        assert_eq!(worker("17 (cut) I 2 0 0"), None);
    }

    #[test]
    fn where_the_kernels_threads_can_be_seen_they_are_found() {
        let own = std::fs::read_to_string("/proc/self/stat").expect("proc");
        assert_eq!(worker(&own), None);
        // A container has none.
        let first = std::fs::read_to_string("/proc/2/comm").unwrap_or_default();
        let seen = first.trim() == "kthreadd";
        assert_eq!(workers().expect("proc").is_empty(), !seen);
    }

    #[test]
    fn a_quiet_machine_is_never_below_zero() {
        let now = Instant::now();
        let from = look(now, 0.0, 0.0, &[]);
        let to = look(now + Duration::from_secs(1), 0.0, 0.0, &[]);
        assert_eq!(
            between(&from, &to, Duration::from_millis(5)),
            Noise::default()
        );
    }
}
