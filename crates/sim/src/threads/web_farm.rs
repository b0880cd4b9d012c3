//! A web farm in dense mode and without it: how many VMs a host carries at two ceilings, as published for dense mode.
//!
//! Each VM has one vCPU and answers web requests of 100 KB at random times. A web request takes [`WORK`] of the vCPU, and
//! [`GROUP`] requests of its disk. VMs are added until the 95th percentile of the response time passes 100 ms, or the CPUs are
//! busy for more than 90 % of the time. The thresholds of dense mode are decided by [`tidegate_core::dense`].
//!
//! # Units
//! Nanoseconds, thousandths of all CPUs.

use super::costs::Costs;
use super::trace::{Idle, Load, Phase, SetUp, Trace};
use super::world::World;
use std::collections::BTreeMap;
use tidegate_core::coalesce::Coalesce;
use tidegate_core::dense::{Dense, INTERVAL, Mode, Sample};
use tidegate_core::units::Time;

/// The host's cores.
pub const CORES: u32 = 8;
/// A vCPU's work for a web request: an input. The published hosts had about 1.5 ms with everything (470 VMs with 25 a second
/// at 100 ms, two processors of the time).
pub const WORK: u64 = 1_200_000;
/// Requests of the disk for a web request of 100 KB, of 12.5 KiB each: an input.
pub const GROUP: u64 = 8;
/// The ceilings: of the response time, and of the CPUs.
pub const RESPONSE: u64 = 100_000_000;
/// See [`RESPONSE`].
pub const UTILISATION: u64 = 900;
/// No farm has more web requests a second.
const MOST: u64 = 10_000;

/// A farm apart from its number of VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Farm {
    /// Web requests of a VM in a second.
    pub rate: u64,
    /// The cost of an exit.
    pub exit: u64,
    /// The length of a run, and how much of it is left out.
    pub lasts: u64,
    /// See `lasts`.
    pub settles: u64,
    /// The seed.
    pub seed: u64,
}

/// What a farm of so many VMs does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The 95th percentile of the response time.
    pub response: u64,
    /// Busy time of the CPUs.
    pub utilisation: u64,
    /// Kicks and calls for a thousand requests of disks.
    pub signals: u64,
    /// Wake-ups of I/O threads for a thousand requests of disks.
    pub wakes: u64,
}

impl Point {
    /// Whether responses are quick enough.
    #[must_use]
    pub fn is_quick(&self) -> bool {
        self.response <= RESPONSE
    }

    /// Whether the CPUs are below their ceiling.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.utilisation <= UTILISATION
    }
}

impl Farm {
    fn trace(&self, vms: usize, dense: bool) -> Trace {
        let load = Load {
            rate: self.rate,
            work: WORK / GROUP,
            service: 1_000,
            latency: 200_000,
            size: 12_800,
            group: GROUP,
            ..Load::IDLE
        };
        Trace {
            cores: CORES,
            costs: Costs {
                exit: self.exit,
                ..Costs::MEASURED
            },
            vms: vec![1; vms],
            phases: vec![Phase {
                name: "web farm".to_owned(),
                lasts: self.lasts,
                loads: vec![load; vms],
            }],
            coalesce: Coalesce::Adaptive,
            dense,
        }
    }

    /// Plays it with so many VMs.
    #[must_use]
    pub fn play(&self, vms: usize, dense: bool) -> Point {
        let trace = self.trace(vms, dense);
        let set_up = SetUp {
            threads: 1,
            idle: Idle::Spin,
            own_cores: false,
        };
        let outcome = World::new(&trace, set_up, None, self.seed).run(self.settles);
        let all = u64::from(CORES) * self.lasts;
        let answered = outcome.completions.max(1);
        let latencies = &outcome.phases[0].latencies;
        // Past saturation few requests are answered at all.
        let offered = self.rate * vms as u64 * (self.lasts - self.settles) / 1_000_000_000;
        let kept_up = outcome.phases[0].answered * 10 >= offered * 9;
        Point {
            response: match kept_up {
                true => latencies.quantile(9_500).as_nanos(),
                false => u64::MAX,
            },
            utilisation: 1_000 - outcome.idle * 1_000 / all,
            signals: (outcome.kicks + outcome.calls) * 1_000 / answered,
            wakes: outcome.wakes * 1_000 / answered,
        }
    }

    /// The most VMs for which this holds, by bisection; points that were played are kept in `played`.
    pub fn most(
        &self,
        dense: bool,
        played: &mut BTreeMap<usize, Point>,
        holds: impl Fn(&Point) -> bool,
    ) -> usize {
        let most = usize::try_from(MOST / self.rate.max(1)).unwrap_or(1);
        let (mut low, mut high) = (0, most);
        while high - low > 1 {
            let middle = low.midpoint(high);
            let point = played
                .entry(middle)
                .or_insert_with(|| self.play(middle, dense));
            if holds(point) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// Whether `auto` turns dense mode on for a host with so many VMs that does this.
#[must_use]
pub fn is_dense(vms: usize, point: &Point) -> bool {
    let vms = u32::try_from(vms).unwrap_or(u32::MAX);
    let mut dense = Dense::new(Mode::Auto, 0, Time::ZERO);
    let sample = Sample {
        cpus: CORES,
        vms,
        vcpus: vms,
        assumed: 0,
        utilisation: u32::try_from(point.utilisation).unwrap_or(u32::MAX),
    };
    dense.sample(Time::ZERO + INTERVAL, &sample);
    dense.is_on()
}
