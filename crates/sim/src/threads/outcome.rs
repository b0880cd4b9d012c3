//! The outcome of a run: useful work by phase, latencies, changes, and where the cores' time went.
//!
//! # Units
//! Nanoseconds. Useful work of a second is a number of cores.

use super::io_thread::Totals;
use super::trace::Trace;
use tidegate_core::histogram::Histogram;
use tidegate_core::units::Span;
use tidegate_model::cpu::Cpus;

/// How far apart the points of a run's curve are.
pub const SAMPLE: u64 = 10_000_000;

/// Figures of the phase that is being played.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Useful work since the beginning of the run.
    pub(super) useful: u64,
    /// The part of it that vCPUs computed.
    pub(super) computed: u64,
    /// Requests that were due at a rate, in this phase.
    pub(super) offered: u64,
    latencies: Vec<Histogram>,
    answered: Vec<u64>,
}

impl Window {
    pub(super) fn begin(&mut self, vms: usize) {
        self.offered = 0;
        self.latencies.resize_with(vms, Histogram::new);
        self.latencies.iter_mut().for_each(Histogram::clear);
        self.answered.clear();
        self.answered.resize(vms, 0);
    }

    pub(super) fn answered(&mut self, vm: usize, latency: u64) {
        self.latencies[vm].record(Span::from_nanos(latency));
        self.answered[vm] += 1;
    }
}

/// A change that a policy made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// When.
    pub at: u64,
    /// Active threads afterwards.
    pub threads: usize,
    /// Whether the number of threads changed, by this or the decisions just before it.
    pub resized: bool,
    /// Whether a disk moved.
    pub moved: bool,
    /// The decision in words.
    pub words: String,
}

/// What came of a phase.
#[derive(Clone, Debug)]
pub struct PhaseOutcome {
    /// Active threads at its end.
    pub threads: usize,
    /// Requests answered, after it had settled.
    pub answered: u64,
    /// Requests of each VM.
    pub by_vm: Vec<u64>,
    /// Their latencies.
    pub latencies: Histogram,
    /// Those of each VM.
    pub latencies_by_vm: Vec<Histogram>,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How long a phase settles before it is judged.
    pub settles: u64,
    /// Phase by phase.
    pub phases: Vec<PhaseOutcome>,
    /// Useful work since the beginning, every [`SAMPLE`].
    pub curve: Vec<u64>,
    /// What a policy changed.
    pub changes: Vec<Change>,
    /// How long disks were served by no thread while they moved: from the last turn on one thread to the first on the other.
    pub pauses: Histogram,
    /// Time of all cores that nothing ran on.
    pub idle: u64,
    /// Time of all cores for wake-ups and switches.
    pub switched: u64,
    /// Wake-ups of I/O threads.
    pub wakes: u64,
    /// Kicks.
    pub kicks: u64,
    /// Calls.
    pub calls: u64,
    /// I/O threads' time in turns.
    pub busy: u64,
    /// I/O threads' time of polling.
    pub polled: u64,
    /// Requests answered in all.
    pub completions: u64,
    /// Requests that guests, queues, threads and the datastore have at the end.
    pub outstanding: u64,
}

impl Outcome {
    pub(super) fn new(trace: &Trace) -> Outcome {
        Outcome {
            settles: 0,
            phases: Vec::with_capacity(trace.phases.len()),
            curve: Vec::new(),
            changes: Vec::new(),
            pauses: Histogram::new(),
            idle: 0,
            switched: 0,
            wakes: 0,
            kicks: 0,
            calls: 0,
            busy: 0,
            polled: 0,
            completions: 0,
            outstanding: 0,
        }
    }

    pub(super) fn end_phase(&mut self, threads: usize, window: &Window) {
        let mut latencies = Histogram::new();
        for own in &window.latencies {
            latencies.merge(own);
        }
        self.phases.push(PhaseOutcome {
            threads,
            answered: window.answered.iter().sum(),
            by_vm: window.answered.clone(),
            latencies,
            latencies_by_vm: window.latencies.clone(),
        });
    }

    pub(super) fn count(&mut self, totals: &Totals) {
        self.wakes += totals.wakes;
        self.kicks += totals.kicks;
        self.calls += totals.calls;
        self.busy += totals.busy;
        self.polled += totals.polled;
        self.completions += totals.completions;
    }

    pub(super) fn finish(&mut self, cpus: &Cpus, now: u64) {
        for core in 0..cpus.cores() {
            let times = cpus.core_times(now, core);
            self.idle += times.idle;
            self.switched += times.switch;
        }
    }

    /// Useful work from one time to another, in thousandths of a core. Both are rounded to points of the curve.
    #[must_use]
    pub fn score(&self, from: u64, to: u64) -> u64 {
        let at = |time: u64| {
            let place = usize::try_from(time / SAMPLE).unwrap_or(0);
            let place = place.min(self.curve.len());
            place.checked_sub(1).map_or(0, |place| self.curve[place])
        };
        let span = to.saturating_sub(from).max(1);
        (at(to) - at(from)) * 1_000 / span
    }
}
