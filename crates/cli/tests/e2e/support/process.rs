//! A daemon's memory, descriptors and wake-ups, from `/proc`.
//!
//! # Units
//! - Memory in KiB, as the kernel prints it.

use std::fs;
use std::path::PathBuf;

/// A running process.
#[derive(Clone)]
pub(crate) struct Process {
    proc: PathBuf,
}

impl Process {
    /// The process of that number.
    pub(crate) fn of(id: u32) -> Process {
        Process {
            proc: format!("/proc/{id}").into(),
        }
    }

    /// Memory that it has in use.
    pub(crate) fn resident_kib(&self) -> u64 {
        field(&self.read("status"), "VmRSS:")
    }

    /// How many descriptors it has open.
    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(self.proc.join("fd"))
            .expect("a test may look at its own daemon")
            .count()
    }

    /// How often each of its threads has gone to sleep so far, by the thread's name and number.
    pub(crate) fn sleeps(&self) -> Vec<(String, u64)> {
        let tasks = fs::read_dir(self.proc.join("task")).expect("a process has threads");
        let mut sleeps: Vec<_> = tasks
            .flatten()
            .filter_map(|task| {
                // A thread may end while one looks.
                let status = fs::read_to_string(task.path().join("status")).ok()?;
                let name = status.lines().next()?.split_whitespace().nth(1)?.to_owned();
                let number = task.file_name().to_string_lossy().into_owned();
                Some((
                    format!("{name} {number}"),
                    field(&status, "voluntary_ctxt_switches:"),
                ))
            })
            .collect();
        sleeps.sort();
        sleeps
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.proc.join(name)).expect("the daemon runs")
    }
}

fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no {name} in:\n{status}"))
}
