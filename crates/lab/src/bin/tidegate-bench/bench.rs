//! The bench: its flags, its scratch directory, and the machine that a run has.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use tidegate_lab::machine::{self, IdleCpus};
use tidegate_testing::peers::{self, Store, Tidegate};
use tidegate_testing::server;

use crate::report::Report;

/// A group of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Scenario {
    /// vhost-user-blk on the null backend: QD 1, 8, 32, 128.
    Null,
    /// vhost-user-blk on a file: QD 1, 8, 32, 128, with fio as the limit.
    File,
    /// NBD on the null backend and on memory: QD 1, 8, 32, 128.
    Nbd,
    /// What filters cost.
    Filters,
    /// What I/O control costs without congestion.
    Control,
    /// One and four guests of one daemon.
    Vms,
    /// From 1 to 64 disks on one I/O thread.
    Disks,
    /// What an open dashboard costs, with 256 disks.
    Dashboard,
    /// Instructions per request under callgrind.
    Instructions,
    /// Calls per completion, by how completions are coalesced.
    Coalescing,
}

/// The bench's flags.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Only these scenarios, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) only: Vec<Scenario>,
    /// Three short trials: to see that it works, not to publish
    #[arg(long)]
    pub(crate) quick: bool,
    /// Quiet blocks per case (default 7, quick 3)
    #[arg(long, value_name = "N")]
    pub(crate) trials: Option<usize>,
    /// Seconds measured per trial (default 2, quick 0.5)
    #[arg(long, value_name = "S")]
    pub(crate) seconds: Option<f64>,
    /// Also write everything as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Measure only: do not judge, do not fail
    #[arg(long)]
    pub(crate) no_check: bool,
    /// The Tidegate to measure; while it does not exist, the peers are measured alone
    #[arg(long, value_name = "PATH", default_value = "target/release/tidegate")]
    pub(crate) tidegate: PathBuf,
    /// A tidegate-bench whose bare ring loop is shown as the ceiling
    #[arg(long, value_name = "PATH")]
    pub(crate) bare: Option<PathBuf>,
    /// The servers' core
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    pub(crate) server_cpu: usize,
    /// The clients' core
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    pub(crate) client_cpu: usize,
    /// Ask the kernel for wake-ups within this many microseconds while it measures: 0 keeps idle CPUs awake, as on hosts
    /// that are tuned for latency. With `any`, idle CPUs sleep as they do by themselves
    #[arg(long, value_name = "US", default_value = "0")]
    pub(crate) cpu_latency: IdleCpus,
    /// Reject a block in which other processes, or other machines, took more of a core than this
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub(crate) max_noise: f64,
    /// Where the test file is made: a directory on the datastore to measure
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    pub(crate) dir: PathBuf,
    /// The test file's size in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub(crate) file_mib: u64,
}

/// One run of the bench.
#[derive(Debug)]
pub(crate) struct Bench {
    /// The flags.
    pub(crate) options: Options,
    /// Sockets and logs live here while the bench runs.
    pub(crate) scratch: tempfile::TempDir,
    /// The warm-up before a window.
    pub(crate) warm: Duration,
    /// The window.
    pub(crate) span: Duration,
    /// Quiet blocks per case.
    pub(crate) blocks: usize,
    /// Set when somebody interrupts.
    pub(crate) stop: Arc<AtomicBool>,
}

impl Bench {
    /// Pins this thread and makes the scratch directory.
    pub(crate) fn new(mut options: Options) -> Result<Self> {
        if options.server_cpu == options.client_cpu {
            bail!(
                "server and client need a core each: choose two with --server-cpu and --client-cpu"
            );
        }
        server::pin(options.client_cpu)?;
        if let Ok(path) = options.tidegate.canonicalize() {
            options.tidegate = path;
        }
        let (blocks, seconds) = if options.quick { (3, 0.5) } else { (7, 2.0) };
        let seconds = options.seconds.unwrap_or(seconds);
        if !(seconds > 0.0 && seconds < 3600.0) {
            bail!("--seconds {seconds}: a trial lasts between 0 and 3600 seconds");
        }
        Ok(Self {
            scratch: tempfile::tempdir().context("cannot create a scratch directory")?,
            warm: Duration::from_millis(300),
            span: Duration::from_secs_f64(seconds),
            blocks: options.trials.unwrap_or(blocks).max(1),
            options,
            stop: Arc::default(),
        })
    }

    /// The scenarios to run, in order, each once.
    pub(crate) fn chosen(&self) -> Vec<Scenario> {
        let mut chosen = self.options.only.clone();
        if chosen.is_empty() {
            chosen = Scenario::value_variants().to_vec();
        }
        chosen.sort();
        chosen.dedup();
        chosen
    }

    /// Whether there is a Tidegate to measure.
    #[must_use]
    pub(crate) fn has_tidegate(&self) -> bool {
        self.options.tidegate.is_file()
    }

    /// The `tidegate-bench` whose bare ring loop and engine are measured.
    #[must_use]
    pub(crate) fn itself(&self) -> PathBuf {
        self.options.bare.clone().unwrap_or_default()
    }

    /// The servers' core.
    #[must_use]
    pub(crate) fn server_cpu(&self) -> usize {
        self.options.server_cpu
    }

    /// A path in the scratch directory.
    #[must_use]
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// A Tidegate on `store`.
    #[must_use]
    pub(crate) fn tidegate(
        &self,
        store: &Store,
        filters: &[&str],
        poll_us: Option<u32>,
    ) -> Tidegate {
        Tidegate {
            program: self.options.tidegate.clone(),
            store: store.clone(),
            filters: filters.iter().map(|filter| (*filter).to_owned()).collect(),
            poll_us,
        }
    }

    /// The same with the servers on the CPU that gets the interrupts of the test file's disk. If that is the clients' CPU,
    /// the two change places.
    pub(crate) fn at_interrupts(&self, report: &mut Report) -> Result<Bench> {
        let mut options = self.options.clone();
        let cpu = machine::interrupt_cpu(&options.dir);
        if let Some(cpu) = cpu.filter(|&cpu| cpu == options.client_cpu) {
            std::mem::swap(&mut options.server_cpu, &mut options.client_cpu);
            report.notes.push(format!(
                "CPU {cpu} gets the disk's interrupts: servers and fio run there, and guests on the other"
            ));
        }
        let bench = Bench::new(options)?;
        Ok(Bench {
            stop: Arc::clone(&self.stop),
            ..bench
        })
    }

    /// Fails once somebody has interrupted.
    pub(crate) fn check_interrupted(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }
}

/// A need of variants that are Tidegate itself.
pub(crate) const TIDEGATE: &str = "tidegate";

/// Whether one of these programs is missing. Each of the peers' is noted once.
pub(crate) fn missing(bench: &Bench, report: &mut Report, programs: &[&str]) -> bool {
    let ours = programs.contains(&TIDEGATE);
    let mut lacks = ours && !bench.has_tidegate();
    let peers = programs.iter().filter(|program| **program != TIDEGATE);
    for program in peers.filter(|program| !peers::installed(program)) {
        let note = format!("{program} is not installed: install it to compare with it");
        if !report.notes.contains(&note) {
            report.notes.push(note);
        }
        lacks = true;
    }
    lacks
}
