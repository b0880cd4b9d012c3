//! The program and the machine that made the runs of a results directory.
//!
//! # Always true
//! - Two builds of one version are distinguished, and copies of one are not.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Plan;

/// A machine, as far as figures depend on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineSeen {
    /// The processor's name.
    pub processor: String,
    /// How many processors.
    pub cpus: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// How many programs wanted a processor in the minute before.
    pub load: String,
}

impl MachineSeen {
    /// This machine, now.
    #[must_use]
    pub fn here() -> MachineSeen {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let info = read("/proc/cpuinfo");
        let cpus = info.lines().filter(|line| line.starts_with("processor"));
        let processor = info
            .lines()
            .find_map(|line| line.strip_prefix("model name"));
        let processor = processor.unwrap_or("unknown");
        let memory = read("/proc/meminfo");
        let kib = memory
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"));
        let kib = kib.and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        let load = read("/proc/loadavg");
        MachineSeen {
            processor: processor.trim_start_matches(['\t', ' ', ':']).to_owned(),
            cpus: cpus.count(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_bytes: kib.unwrap_or(0) << 10,
            load: load.split(' ').next().unwrap_or_default().to_owned(),
        }
    }
}

/// In what the Tidegate and the machine that made what is stored differ from those of now; none if in nothing.
pub(super) fn differs(stored: &Plan, now: &Plan) -> Option<String> {
    let (there, here) = (&stored.machine, &now.machine);
    let program = |plan: &Plan| format!("Tidegate {} (build {})", plan.version, plan.build);
    let each = [
        ("by", program(stored), program(now)),
        ("on", there.processor.clone(), here.processor.clone()),
        ("with", cpus(there), cpus(here)),
        ("under", kernel(there), kernel(here)),
    ];
    let differ = each.into_iter().filter(|(_, then, now)| then != now);
    let says: Vec<String> = differ
        .map(|(by, then, now)| format!("{by} {then} and not {now}"))
        .collect();
    (!says.is_empty()).then(|| says.join(", "))
}

fn cpus(machine: &MachineSeen) -> String {
    format!("{} processors", machine.cpus)
}

fn kernel(machine: &MachineSeen) -> String {
    format!("Linux {}", machine.kernel)
}

/// This very program, distinguished from others by the content of its file.
pub(super) fn build() -> Result<String> {
    let path = Path::new("/proc/self/exe");
    let hash = || -> std::io::Result<u64> {
        let mut file = File::open(path)?;
        let mut hasher = DefaultHasher::new();
        let mut block = vec![0; 1 << 20];
        loop {
            match file.read(&mut block)? {
                0 => return Ok(hasher.finish()),
                len => hasher.write(&block[..len]),
            }
        }
    };
    let hash = hash().with_context(|| format!("cannot read {}", path.display()))?;
    Ok(format!("{hash:016x}"))
}
