//! The input of a run: the guests' loads over time, and how the I/O threads are set up.
//!
//! A VM has vCPUs and one disk. Each vCPU has a queue of the disk. A phase gives each VM a load.
//!
//! # Units
//! Nanoseconds, bytes, requests a second.

use super::costs::Costs;
use tidegate_core::coalesce::Coalesce;

/// The input of a run, apart from the set-up of the I/O threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The machine's cores.
    pub cores: u32,
    /// The costs.
    pub costs: Costs,
    /// The vCPUs of each VM.
    pub vms: Vec<u32>,
    /// One after the other.
    pub phases: Vec<Phase>,
    /// How completions are coalesced.
    pub coalesce: Coalesce,
    /// Whether the host is in dense mode: kicks and calls are coalesced, and idle threads sleep at once.
    pub dense: bool,
}

/// A part of the trace with constant loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// Its length.
    pub lasts: u64,
    /// The load of each VM.
    pub loads: Vec<Load>,
}

/// What a VM does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Each vCPU computes whenever it has nothing else to do.
    pub compute: bool,
    /// Requests a second of the VM, at random times, whatever becomes of earlier ones; zero for none.
    pub rate: u64,
    /// Requests that each vCPU keeps outstanding; zero for none.
    pub outstanding: u32,
    /// A vCPU's work for a request.
    pub work: u64,
    /// The I/O thread's work for a request, beside [`Costs::request`]: filters, copies, checksums.
    pub service: u64,
    /// The datastore's latency; zero if a request ends within the turn that took it.
    pub latency: u64,
    /// Bytes of a request.
    pub size: u64,
    /// Requests that are due together, of a load with a rate; the last one's latency counts. Zero is one.
    pub group: u64,
}

impl Load {
    /// Nothing.
    pub const IDLE: Load = Load {
        compute: false,
        rate: 0,
        outstanding: 0,
        work: 0,
        service: 0,
        latency: 0,
        size: 0,
        group: 0,
    };

    /// The useful work of a request: the guest's and the service, without the costs that depend on the set-up.
    #[must_use]
    pub fn useful(&self, costs: &Costs) -> u64 {
        self.work + self.service + costs.request
    }
}

impl Trace {
    /// The length of all phases.
    #[must_use]
    pub fn lasts(&self) -> u64 {
        self.phases.iter().map(|phase| phase.lasts).sum()
    }

    /// When a phase begins.
    #[must_use]
    pub fn begins(&self, phase: usize) -> u64 {
        self.phases[..phase].iter().map(|phase| phase.lasts).sum()
    }

    /// What a request of a VM costs its I/O thread when it is taken.
    pub(super) fn cost(&self, vm: usize, phase: usize) -> u64 {
        self.phases[phase].loads[vm].service + self.costs.request
    }
}

/// What an idle I/O thread does before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Idle {
    /// It sleeps at once.
    Sleep,
    /// It polls for [`Costs::spin`] if requests come that fast and nobody waits for its core.
    Spin,
    /// It polls and never sleeps.
    Poll,
}

impl Idle {
    /// Its word in tables.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Idle::Sleep => "sleep",
            Idle::Spin => "spin",
            Idle::Poll => "poll",
        }
    }
}

/// The set-up of the I/O threads at the beginning of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetUp {
    /// Active threads; disks are dealt out to them.
    pub threads: usize,
    /// What they do when idle.
    pub idle: Idle,
    /// Whether each has a core that vCPUs may not use.
    pub own_cores: bool,
}

impl SetUp {
    /// All that can be chosen once and for all on a machine: 1 to `cores` threads that sleep, spin or poll, on cores of their
    /// own or shared ones. Threads with own cores leave at least one core to the vCPUs.
    #[must_use]
    pub fn all(cores: usize) -> Vec<SetUp> {
        let mut all = Vec::new();
        for own_cores in [false, true] {
            for threads in 1..=cores - usize::from(own_cores) {
                for idle in [Idle::Sleep, Idle::Spin, Idle::Poll] {
                    all.push(SetUp {
                        threads,
                        idle,
                        own_cores,
                    });
                }
            }
        }
        all
    }

    /// In words.
    #[must_use]
    pub fn words(&self) -> String {
        let cores = if self.own_cores { "own" } else { "shared" };
        format!("{} {} {cores}", self.threads, self.idle.word())
    }
}
