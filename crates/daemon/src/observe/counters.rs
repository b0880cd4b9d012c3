//! All counters of the engine: the input of statistics and metrics.
//!
//! The counters of one disk are from one moment. Those of different disks may be some turns of their I/O thread apart,
//! between which guests are served.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_api::name::Name;
use tidegate_api::stats::{DiskStats, Sample};
use tidegate_api::thread::ThreadState;

use crate::disks::counters::DiskCounters;
use crate::host;
use crate::observe::sample::{self, ThreadMoment};
use crate::os_error::Outcome;
use crate::services::Services;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    /// Milliseconds since 1970.
    pub(crate) at_ms: u64,
    pub(crate) disks: Vec<DiskCounters>,
    pub(crate) threads: Vec<ThreadMoment>,
}

impl Counters {
    /// The rates and latencies since `before`, or since everything began.
    pub(crate) fn sample(&self, before: Option<&Counters>) -> Sample {
        let disk = |now: &DiskCounters| {
            let old = before.and_then(|b| b.disks.iter().find(|old| old.name == now.name));
            sample::disk(now, old)
        };
        let thread = |now: &ThreadMoment| {
            let old = before.and_then(|b| b.threads.iter().find(|old| old.thread == now.thread));
            sample::thread(now, old)
        };
        let used = self.threads.iter();
        let used = used.filter(|it| it.state != ThreadState::Parked);
        Sample {
            at_ms: self.at_ms,
            disks: self.disks.iter().map(disk).collect(),
            threads: used.map(thread).collect(),
        }
    }
}

impl Services {
    /// Queries every I/O thread for its counters.
    pub(crate) fn counters(&self) -> Outcome<Counters> {
        let attached: BTreeMap<host::Key, _> = self
            .disk_service
            .live()
            .all()
            .into_iter()
            .map(|disk| (disk.key(), disk))
            .collect();
        let mut disks = Vec::new();
        let mut threads = Vec::new();
        let host = self.disk_service.host();
        let activities = host.statistics()?.threads();
        let told = host.thread_states()?.into_iter().zip(activities);
        for (report, (state, did)) in host.threads()?.into_iter().zip(told) {
            let mut names = Vec::new();
            let mut requests = 0;
            for (key, counted) in report.disks {
                requests += counted.stats.as_ref().map_or(0, |stats| stats.count());
                // A disk that is being attached or detached is left out.
                let Some(disk) = attached.get(&key) else {
                    continue;
                };
                names.push(disk.name().clone());
                disks.push(disk.counters_of(counted));
            }
            names.sort();
            threads.push(ThreadMoment {
                thread: report.thread,
                state,
                cpu: report.cpu,
                disks: names,
                age_ns: did.age.as_nanos(),
                busy_ns: did.busy.as_nanos(),
                polling_ns: did.spinning.as_nanos(),
                sleeping_ns: did.sleeping.as_nanos(),
                run_delay_ns: did.run_delay.as_nanos(),
                delays: did.delays,
                requests,
                turns: did.turns,
                wakes: did.wakes.sum(),
                strays: report.strays,
            });
        }
        disks.sort_by(|a, b| a.name.cmp(&b.name));
        // One that has moved meanwhile was read on both threads, or on none.
        disks.dedup_by(|again, first| again.name == first.name);
        for disk in attached.values() {
            if let Err(place) = disks.binary_search_by(|it| it.name.cmp(disk.name()))
                && let Ok(counters) = disk.counters()
            {
                disks.insert(place, counters);
            }
        }
        let at = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_millis());
        Ok(Counters {
            at_ms: u64::try_from(at).unwrap_or(u64::MAX),
            disks,
            threads,
        })
    }

    /// The activity of one disk since it was attached.
    pub(crate) fn disk_stats(&self, name: &Name) -> Outcome<DiskStats> {
        let disk = self.disk_service.must_be_attached(name)?;
        let counters = disk.counters().map_err(|problem| {
            // The disk may have been detached between the two lookups.
            self.disk_service
                .must_be_attached(name)
                .err()
                .unwrap_or(problem)
        })?;
        Ok(sample::disk(&counters, None))
    }
}
