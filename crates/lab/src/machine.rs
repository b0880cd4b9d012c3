//! The state of the machine during a measurement: steal, other processes, and the distance of its CPUs.
//!
//! - CPU time of other processes and of other virtual machines (steal), from `/proc/stat`. The kernel's own threads and
//!   interrupts do not count: most of their work is the measurement's own I/O.
//! - Core latency: the round trip of a cache line between two CPUs. A hypervisor that migrates vCPUs changes it.
//! - PM QoS: while [`Held`] lives, idle CPUs wake up quickly.
//!
//! # Units
//! - Percent of one core; nanoseconds for a round trip; microseconds for a wake-up.
//! # Source
//! proc(5); the kernel's Documentation/power/pm_qos_interface.rst.

use std::collections::HashMap;
use std::fmt;
use std::fs::{File, OpenOptions, read_to_string};
use std::io::Write;
use std::ops::AddAssign;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;

use crate::statistics;
use tidegate_testing::server;

/// `/proc/stat` counts in hundredths of a second on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;
/// The flag of the kernel's threads (`PF_KTHREAD` of Linux' `include/linux/sched.h`).
const KERNEL_THREAD: u64 = 0x0020_0000;
/// Where the kernel takes PM QoS requests.
const PM_QOS: &str = "/dev/cpu_dma_latency";
/// Round trips of one sample of the core latency, samples, and round trips before the first sample.
const TRIPS: u32 = 100;
const SAMPLES: u32 = 31;
const WARM: u32 = 1000;

/// The CPU counters at one moment, in seconds.
#[derive(Clone, Debug)]
pub struct Look {
    at: Instant,
    busy: f64,
    steal: f64,
    /// CPU time of each kernel thread.
    workers: HashMap<u32, f64>,
}

/// CPU time that others took during a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Noise {
    /// CPU time of processes outside the trial.
    pub foreign_percent: f64,
    /// CPU time that the hypervisor gave to other machines.
    pub steal_percent: f64,
}

/// How many trials were rejected, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rejected {
    /// Other processes took CPU time.
    pub others: usize,
    /// The hypervisor gave CPU time to other machines.
    pub steal: usize,
}

impl Rejected {
    /// Whether a trial with this noise is accepted; it is counted otherwise. More than `most` percent are too much. Where a
    /// real disk is read, steal does not count: a hypervisor emulates the disk on the CPU time that it steals.
    pub fn accepts(&mut self, noise: Noise, most: f64, on_disk: bool) -> bool {
        let others = noise.foreign_percent > most;
        let steal = !others && !on_disk && noise.steal_percent > most;
        self.others += usize::from(others);
        self.steal += usize::from(steal);
        !others && !steal
    }

    /// All of them.
    #[must_use]
    pub fn total(self) -> usize {
        self.others + self.steal
    }
}

impl AddAssign for Rejected {
    fn add_assign(&mut self, more: Self) {
        self.others += more.others;
        self.steal += more.steal;
    }
}

/// `3 trials rejected: 2 for other processes, 1 for steal`.
impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (others, steal) = (self.others, self.steal);
        write!(f, "{} trials rejected", self.total())?;
        if self.total() > 0 {
            write!(f, ": {others} for other processes, {steal} for steal")?;
        }
        Ok(())
    }
}

/// Reads the counters.
///
/// # Errors
/// `/proc` cannot be read.
pub fn look() -> Result<Look> {
    let text = read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let (busy, steal) = parse(&text).context("/proc/stat has no cpu line")?;
    let processes = std::fs::read_dir("/proc").context("cannot list /proc")?;
    let workers = processes.flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = read_to_string(entry.path().join("stat")).ok()?;
        Some((pid, worker(&stat)?))
    });
    Ok(Look {
        at: Instant::now(),
        busy,
        steal,
        workers: workers.collect(),
    })
}

/// The noise between two looks, of which `own` CPU time was the trial's.
#[must_use]
pub fn between(from: &Look, to: &Look, own: Duration) -> Noise {
    let span = to.at.duration_since(from.at).as_secs_f64().max(1e-9);
    let kernel: f64 = (to.workers.iter())
        .map(|(pid, used)| (used - from.workers.get(pid).unwrap_or(&0.0)).max(0.0))
        .sum();
    let foreign = to.busy - from.busy - own.as_secs_f64() - kernel;
    let percent = |seconds: f64| (seconds / span * 100.0).max(0.0);
    Noise {
        foreign_percent: percent(foreign),
        steal_percent: percent(to.steal - from.steal),
    }
}

/// Seconds of user, nice and system time; seconds of steal.
fn parse(text: &str) -> Option<(f64, f64)> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks = line.split_whitespace().map_while(|word| word.parse().ok());
    let ticks: Vec<f64> = ticks.collect();
    let busy: f64 = ticks.get(..3)?.iter().sum();
    Some((busy / TICKS_PER_SECOND, ticks.get(7)? / TICKS_PER_SECOND))
}

/// CPU seconds of a kernel thread, by its `/proc/PID/stat`; `None` for any other process.
fn worker(stat: &str) -> Option<f64> {
    // The name before the fields may contain blanks and brackets.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
    let used = Duration::from_millis(10) * u32::try_from(number(11)? + number(12)?).ok()?;
    (number(6)? & KERNEL_THREAD != 0).then_some(used.as_secs_f64())
}

/// A cache line, and the one beside it.
#[repr(align(128))]
#[derive(Default)]
struct Word(AtomicU32);

/// The round trip of a cache line between the calling thread's CPU and `other`, in nanoseconds: the median of some samples.
///
/// # Errors
/// There is no such CPU, or no thread can be started.
pub fn core_latency(other: usize) -> Result<f64> {
    let words = Arc::new((Word::default(), Word::default()));
    let theirs = Arc::clone(&words);
    let echo = move || {
        server::pin(other)?;
        for word in 1..=WARM + SAMPLES * TRIPS {
            while theirs.0.0.load(Ordering::Acquire) != word {
                std::hint::spin_loop();
            }
            theirs.1.0.store(word, Ordering::Release);
        }
        anyhow::Ok(())
    };
    let echo = std::thread::Builder::new().name("echo".into()).spawn(echo);
    let echo = echo.context("cannot start a thread")?;
    let mut samples = Vec::new();
    let mut begun = Instant::now();
    'all: for word in 1..=WARM + SAMPLES * TRIPS {
        words.0.0.store(word, Ordering::Release);
        while words.1.0.load(Ordering::Acquire) != word {
            if echo.is_finished() && words.1.0.load(Ordering::Acquire) != word {
                break 'all;
            }
            std::hint::spin_loop();
        }
        if word >= WARM && word % TRIPS == 0 {
            samples.push(begun.elapsed().as_secs_f64() * 1e9 / f64::from(TRIPS));
            begun = Instant::now();
        }
    }
    let ended = echo.join();
    ended.map_err(|_| anyhow!("the echoing thread panicked"))??;
    // The first sample is the warm-up.
    let middle = statistics::spread(samples.get(1..).unwrap_or_default());
    Ok(middle.context("nothing was measured")?.median)
}

/// What idle CPUs do during a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleCpus {
    /// They wake up within so many microseconds; 0 keeps them awake.
    Within(u16),
    /// The machine's own setting.
    AsTheyAre,
}

impl FromStr for IdleCpus {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> Result<Self> {
        match (word, word.parse()) {
            ("any", _) => Ok(Self::AsTheyAre),
            (_, Ok(us)) => Ok(Self::Within(us)),
            _ => bail!("give a number of microseconds, such as 0, or `any`"),
        }
    }
}

/// A PM QoS request, which ends with this value.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "closing it ends the request")] File);

impl IdleCpus {
    /// Asks the kernel for it; nothing for [`IdleCpus::AsTheyAre`].
    ///
    /// # Errors
    /// The kernel takes no such requests, or not from this user.
    pub fn hold(self) -> Result<Option<Held>> {
        let Self::Within(us) = self else {
            return Ok(None);
        };
        let open = OpenOptions::new().write(true).open(PM_QOS);
        let mut file = open.with_context(|| format!("cannot write to {PM_QOS}"))?;
        file.write_all(&i32::from(us).to_ne_bytes())
            .with_context(|| format!("{PM_QOS} refuses {us}"))?;
        Ok(Some(Held(file)))
    }
}

/// The CPU that gets at least 90 % of the interrupts of the disk under `place`; `None` where there is no such CPU.
/// A server on another CPU would have a second CPU work for it, and a program without a client would not.
#[must_use]
pub fn interrupt_cpu(place: &Path) -> Option<usize> {
    let device = std::fs::metadata(place).ok()?.dev();
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let disk = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let disk = disk.canonicalize().ok()?;
    let mut parents = disk.ancestors();
    let listed = parents.find_map(|dir| std::fs::read_dir(dir.join("msi_irqs")).ok())?;
    let names = listed.flatten().map(|entry| entry.file_name());
    let numbers: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
    busiest(&read_to_string("/proc/interrupts").ok()?, &numbers)
}

/// The CPU with 90 % of these interrupts.
fn busiest(table: &str, numbers: &[String]) -> Option<usize> {
    let mut lines = table.lines();
    let cpus = lines.next()?.split_whitespace();
    let cpus: Vec<usize> = cpus
        .filter_map(|cpu| cpu.strip_prefix("CPU")?.parse().ok())
        .collect();
    let mut counts = vec![0_u64; cpus.len()];
    for line in lines {
        let (number, rest) = line.split_once(':')?;
        if numbers.iter().any(|one| one == number.trim()) {
            let words = rest
                .split_whitespace()
                .map_while(|word| word.parse::<u64>().ok());
            counts
                .iter_mut()
                .zip(words)
                .for_each(|(sum, one)| *sum += one);
        }
    }
    let (most, cpu) = counts.iter().zip(cpus).max()?;
    (*most > 0 && most * 10 >= counts.iter().sum::<u64>() * 9).then_some(cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_excludes_the_trial_and_kernel_threads() {
        let stat = "cpu  7900 100 2000 185004 694 50 94 20 0 0\ncpu0 1 2 3 4\n";
        assert_eq!(parse(stat), Some((100.0, 0.2)));
        let now = Instant::now();
        let look = |at, busy, steal, workers: &[(u32, f64)]| Look {
            at,
            busy,
            steal,
            workers: workers.iter().copied().collect(),
        };
        let from = look(now, 100.0, 1.0, &[(8, 40.0), (9, 2.0), (10, 7.0)]);
        let later = now + Duration::from_secs(2);
        let to = look(later, 103.5, 1.02, &[(8, 40.0), (9, 2.375), (11, 0.125)]);
        let noise = between(&from, &to, Duration::from_millis(2900));
        assert!((noise.foreign_percent - 5.0).abs() < 1e-6, "{noise:?}");
        assert!((noise.steal_percent - 1.0).abs() < 1e-6, "{noise:?}");
        assert_eq!(between(&from, &from, later - now), Noise::default());
    }

    #[test]
    fn kernel_threads_are_recognized() {
        let kernel =
            "17 (kworker/0:1 (x) y) I 2 0 0 0 -1 69238880 0 0 0 0 50 200 0 0 20 0 1 0 77 0 0";
        assert_eq!(worker(kernel), Some(2.5));
        let shell = "18 (sh) S 1 18 18 0 -1 4194304 0 0 0 0 50 200 0 0 20 0 1 0 77 0 0";
        assert_eq!(worker(shell), None);
        assert_eq!(worker("17 (cut) I 2 0 0"), None);
    }

    #[test]
    fn other_processes_reject_a_trial_and_steal_does_except_on_a_disk() {
        let mut rejected = Rejected::default();
        assert_eq!(rejected.to_string(), "0 trials rejected");
        for (foreign_percent, steal_percent, on_disk, accepted) in [
            (4.9, 4.9, false, true),
            (4.9, 4.9, true, true),
            (5.1, 9.0, false, false),
            (5.1, 9.0, true, false),
            (0.0, 5.1, false, false),
            (0.0, 5.1, true, true),
        ] {
            let noise = Noise {
                foreign_percent,
                steal_percent,
            };
            assert_eq!(rejected.accepts(noise, 5.0, on_disk), accepted, "{noise:?}");
        }
        let text = "3 trials rejected: 2 for other processes, 1 for steal";
        assert_eq!((rejected.total(), rejected.to_string()), (3, text.into()));
    }

    #[test]
    fn core_latency_is_measured_and_a_missing_cpu_is_an_error() {
        let measured = std::thread::spawn(|| server::pin(0).and_then(|()| core_latency(1)));
        // A machine may have one CPU.
        if let Ok(ns) = measured.join().expect("no panic") {
            assert!(ns > 1.0, "{ns} ns");
        }
        let missing = std::thread::spawn(|| core_latency(4096));
        assert!(missing.join().expect("no panic").is_err());
    }

    #[test]
    fn idle_cpus_take_a_number_or_any() {
        let read = |word: &str| word.parse::<IdleCpus>().ok();
        assert_eq!(read("25"), Some(IdleCpus::Within(25)));
        assert_eq!(read("any"), Some(IdleCpus::AsTheyAre));
        assert_eq!((read("-1"), read("none")), (None, None));
        let nothing = IdleCpus::AsTheyAre.hold().expect("nothing is asked");
        assert!(nothing.is_none());
    }

    #[test]
    fn the_interrupt_cpu_gets_nearly_all_interrupts() {
        let table = "           CPU0       CPU1       CPU3\n 35:  0  1  0  PCI-MSIX  virtio1-config\n 36:  2  3  5702073  PCI-MSIX  virtio1-req.0\n 37:  9000  9000  9000  PCI-MSIX  virtio2\nNMI:  1  1  1  Non-maskable\n";
        let of = |numbers: &[&str]| {
            busiest(
                table,
                &numbers.iter().map(|&n| n.into()).collect::<Vec<_>>(),
            )
        };
        assert_eq!(
            (of(&["35", "36"]), of(&["37"]), of(&["99"])),
            (Some(3), None, None)
        );
        assert_eq!(interrupt_cpu(Path::new("/proc")), None);
    }
}
