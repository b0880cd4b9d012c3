//! Dense mode on this host: once a minute it counts virtual machines, vCPUs and the CPUs' use, and tells the I/O threads.
//!
//! `tidegate-core` decides ([`tidegate_core::dense`]). No I/O thread takes part in a sample, and none wakes up unless the
//! mode changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_api::dense::{DenseCondition, DenseConditions, DenseMode, DenseStatus};
use tidegate_api::events::Happening;
use tidegate_core::dense::{Condition, Conditions, Dense, Mode, Sample};
use tidegate_core::request::DiskId;
use tidegate_engine::counters::Statistics;
use tidegate_engine::guests;

use crate::clock;
use crate::config::plan::DensePlan;
use crate::host::Host;
use crate::os_error::Outcome;

/// The time after which I/O threads that could not be told of the mode are told again.
pub(crate) const TELL_AGAIN: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct DenseWatch {
    state: Mutex<State>,
    hold_last: bool,
}

struct State {
    dense: Dense,
    /// What all I/O threads know; none if some may know something else.
    known: Option<bool>,
    /// At the last sample.
    cpu: CpuTimes,
}

/// The time that all CPUs have spent, in the kernel's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CpuTimes {
    /// Online CPUs.
    cpus: u32,
    all: u64,
    /// Idle, or waiting for I/O.
    unused: u64,
}

impl DenseWatch {
    /// Of a daemon that starts.
    pub(crate) fn new(plan: &DensePlan) -> DenseWatch {
        DenseWatch {
            state: Mutex::new(State {
                dense: Dense::new(core_mode(plan.mode), plan.margin, clock::now()),
                known: Some(false),
                cpu: CpuTimes::read(),
            }),
            hold_last: plan.hold_last,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic leaves it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its state, for people.
    pub(crate) fn status(&self) -> DenseStatus {
        let state = self.state();
        DenseStatus {
            mode: match state.dense.mode() {
                Mode::Off => DenseMode::Off,
                Mode::Auto => DenseMode::Auto,
                Mode::On => DenseMode::On,
            },
            on: state.dense.is_on(),
            conditions: state.dense.conditions().map(conditions),
        }
    }

    /// Whether it is on.
    pub(crate) fn is_on(&self) -> bool {
        self.state().dense.is_on()
    }

    /// Takes a sample. Returns the change, which the I/O threads are still to be [told](DenseWatch::tell) of.
    ///
    /// `declared`: the vCPUs of virtual machines that use these disks.
    pub(crate) fn sample(
        &self,
        host: &Host,
        declared: &BTreeMap<DiskId, u32>,
    ) -> Option<Happening> {
        let mut state = self.state();
        let cpu = CpuTimes::read();
        let sample = Sample {
            cpus: cpu.cpus,
            utilisation: cpu.utilisation_since(state.cpu),
            ..count_guests(host, declared)
        };
        state.cpu = cpu;
        let change = state.dense.sample(clock::now(), &sample)?;
        Some(Happening::DenseMode {
            on: change.on,
            conditions: change.why.map(conditions),
        })
    }

    /// Sets when it is on, and tells the I/O threads of a change before it is answered. Returns the change.
    pub(crate) fn set_mode(&self, host: &Host, mode: DenseMode) -> Outcome<Option<Happening>> {
        let mut state = self.state();
        let before = state.dense.clone();
        let Some(change) = state.dense.set_mode(core_mode(mode)) else {
            return Ok(None);
        };
        if let Err(problem) = host.set_dense(change.on, self.hold_last) {
            state.dense = before;
            // Those that were told of the change are told that there is none.
            state.known = None;
            return Err(problem);
        }
        state.known = Some(change.on);
        Ok(Some(Happening::DenseMode {
            on: change.on,
            conditions: change.why.map(conditions),
        }))
    }

    /// Tells the I/O threads whether it is on, unless all know. Returns whether all know now: if not, they must be told again.
    pub(crate) fn tell(&self, host: &Host) -> bool {
        self.tell_by(|on| host.set_dense(on, self.hold_last))
    }

    fn tell_by(&self, tell: impl FnOnce(bool) -> Outcome<()>) -> bool {
        let mut state = self.state();
        let on = state.dense.is_on();
        if state.known == Some(on) {
            return true;
        }
        match tell(on) {
            Ok(()) => {
                state.known = Some(on);
                true
            }
            Err(problem) => {
                // The daemon is stopping, or a thread does not take commands.
                if state.known.take().is_some() {
                    tracing::warn!(on, %problem, "I/O threads could not be told of dense mode; they are told again");
                }
                false
            }
        }
    }
}

/// The setting as the core has it.
fn core_mode(mode: DenseMode) -> Mode {
    match mode {
        DenseMode::Off => Mode::Off,
        DenseMode::Auto => Mode::Auto,
        DenseMode::On => Mode::On,
    }
}

/// Counts the virtual machines and their vCPUs.
fn count_guests(host: &Host, declared: &BTreeMap<DiskId, u32>) -> Sample {
    let Ok(statistics) = host.statistics() else {
        return Sample::default();
    };
    count_vcpus(&statistics, declared)
}

/// An NBD client is a virtual machine if its vCPUs are declared or counted.
fn count_vcpus(statistics: &Statistics, declared: &BTreeMap<DiskId, u32>) -> Sample {
    let vcpus = |process, disks: &BTreeSet<DiskId>| {
        vcpus_of(disks, declared, || guests::count_vcpus(process))
    };
    let guests = statistics.guests(|process, disks| vcpus(process, disks).is_some());
    let counts = guests.iter().map(|(process, disks)| vcpus(*process, disks));
    sum(&counts.collect::<Vec<_>>())
}

/// The vCPUs of a virtual machine: the most that one of its disks declares, or else as many as are counted.
fn vcpus_of(
    disks: &BTreeSet<DiskId>,
    declared: &BTreeMap<DiskId, u32>,
    count: impl FnOnce() -> Option<u32>,
) -> Option<u32> {
    let declared = disks.iter().filter_map(|disk| declared.get(disk)).max();
    declared.copied().or_else(count)
}

/// The virtual machines with these vCPUs. One of which nothing is known has one.
fn sum(counts: &[Option<u32>]) -> Sample {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Sample {
        vms: number(counts.len()),
        vcpus: counts.iter().map(|count| count.unwrap_or(1)).sum(),
        assumed: number(counts.iter().filter(|count| count.is_none()).count()),
        ..Sample::default()
    }
}

/// The conditions in the API's words.
fn conditions(conditions: Conditions) -> DenseConditions {
    let convert = |condition: Condition, unit: f64| DenseCondition {
        value: f64::from(condition.value) / unit,
        threshold: f64::from(condition.threshold) / unit,
        holds: condition.holds(),
    };
    DenseConditions {
        vms: convert(conditions.vms, 1.0),
        vcpus: convert(conditions.vcpus, 1.0),
        utilisation_percent: convert(conditions.utilisation, 10.0),
        assumed_vms: conditions.assumed,
    }
}

impl CpuTimes {
    /// Now; nothing if the kernel does not say.
    fn read() -> CpuTimes {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        CpuTimes::parse(&text)
    }

    /// Of the text of `/proc/stat`: a line of all CPUs, and one for each that is online.
    fn parse(text: &str) -> CpuTimes {
        let mut times = CpuTimes::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("cpu") => {
                    // Guests' time, after the eighth, is in the first two already.
                    let ticks: Vec<u64> = words.take(8).map(|w| w.parse().unwrap_or(0)).collect();
                    times.all = ticks.iter().sum();
                    times.unused = ticks.iter().skip(3).take(2).sum();
                }
                Some(name) if name.starts_with("cpu") => times.cpus += 1,
                _ => {}
            }
        }
        times
    }

    /// The part that was used since then, in thousandths.
    fn utilisation_since(self, before: CpuTimes) -> u32 {
        let all = self.all.saturating_sub(before.all);
        // The kernel's idle time may step back by a tick.
        let unused = self.unused.saturating_sub(before.unused).min(all);
        let used = (all - unused).saturating_mul(1000).checked_div(all);
        u32::try_from(used.unwrap_or(0)).unwrap_or(1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os_error;

    const STAT: &str = "cpu  100 5 50 800 40 3 2 0 77 0\ncpu0 50 5 25 400 20 3 2 0 30 0\ncpu1 50 0 25 400 20 0 0 0 47 0\n\
                        intr 1234\nctxt 99\n";

    #[test]
    fn utilisation_is_neither_idle_time_nor_waiting_for_io() {
        let before = CpuTimes::parse(STAT);
        assert_eq!((before.cpus, before.all, before.unused), (2, 1000, 840));
        let after = CpuTimes::parse("cpu  400 5 250 1200 140 3 2 0 0 0\ncpu0 1\n");
        assert_eq!(after.cpus, 1);
        // 1000 ticks, 500 of them unused.
        assert_eq!(after.utilisation_since(before), 500);
        assert_eq!(before.utilisation_since(before), 0);
        assert_eq!(before.utilisation_since(after), 0);
        assert_eq!(
            CpuTimes::parse("nonsense\ncpu\ncpu x y"),
            CpuTimes::default()
        );
    }

    #[test]
    fn declared_vcpus_count_before_those_that_are_counted_and_else_there_is_one() {
        let disks = |ids: &[u32]| ids.iter().map(|id| DiskId(*id)).collect();
        let declared = BTreeMap::from([(DiskId(1), 6), (DiskId(2), 4)]);
        let of = |ids: &[u32], counted| vcpus_of(&disks(ids), &declared, || counted);
        let counts = [
            of(&[1, 2, 3], Some(9)),
            of(&[2], None),
            of(&[3], Some(9)),
            of(&[3], None),
        ];
        assert_eq!(counts, [Some(6), Some(4), Some(9), None]);
        let sample = sum(&counts);
        assert_eq!((sample.vms, sample.vcpus, sample.assumed), (4, 20, 1));
    }

    fn watch(mode: DenseMode) -> DenseWatch {
        DenseWatch::new(&DensePlan {
            mode,
            margin: 0,
            hold_last: false,
        })
    }

    #[test]
    fn threads_that_could_not_be_told_are_told_again_until_all_know() {
        let watch = watch(DenseMode::On);
        let mut told = Vec::new();
        for refused in [true, true, false, false] {
            let all_know = watch.tell_by(|on| {
                told.push(on);
                match refused {
                    true => Err(os_error::invalid("a thread takes no commands")),
                    false => Ok(()),
                }
            });
            assert_eq!(all_know, !refused);
        }
        // Once all know, nobody is told again.
        assert_eq!(told, [true, true, true]);
    }

    #[test]
    fn threads_of_a_host_that_is_not_dense_need_not_be_told() {
        let watch = watch(DenseMode::Auto);
        assert!(watch.tell_by(|_| panic!("nothing has changed")));
        // After a refused change some may know something else.
        watch.state().known = None;
        let mut told = Vec::new();
        assert!(watch.tell_by(|on| {
            told.push(on);
            Ok(())
        }));
        assert_eq!(told, [false]);
    }

    #[test]
    fn conditions_are_in_percent_outside() {
        let converted = conditions(Conditions {
            utilisation: Condition {
                value: 499,
                threshold: 500,
            },
            ..Conditions::default()
        });
        let utilisation = converted.utilisation_percent;
        assert_eq!((utilisation.value, utilisation.threshold), (49.9, 50.0));
        assert!(!utilisation.holds && converted.vms.holds);
    }
}
