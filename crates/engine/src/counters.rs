//! The counters of I/O threads and disks, which other threads read without a message.
//!
//! An I/O thread writes the counters of its own page and of its disks' queues; [`Statistics`] reads them from any
//! thread. A reader neither wakes an I/O thread nor takes a lock that it uses.
//!
//! # Always true
//! - each counter has one writer, and never decreases
//! - the times of a thread add up to its age at each reading
//! - the busy times of all queues, connections and the rest ([`ThreadActivity::unassigned`]) add up to the busy time of
//!   the thread, but for the last 64 turns
//!
//! # Units
//! Times are nanoseconds of the monotonic clock.

use crate::sys::os;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_core::request::DiskId;

mod delays;
mod disk;
mod schedstat;
mod thread;

pub use delays::DelayHistogram;
pub(crate) use disk::{Client, ClientKind, DiskCounters, QueueCounters, Served};
pub use disk::{DiskActivity, QueueActivity};
pub use schedstat::Schedstat;
pub(crate) use thread::{State, ThreadCounters, WakeCause};
pub use thread::{ThreadActivity, ThreadTimes, Wakes};

/// The counters of all I/O threads and disks of an engine. Clones read the same ones.
#[derive(Clone, Default)]
pub struct Statistics {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    threads: Mutex<Vec<Arc<ThreadCounters>>>,
    disks: Mutex<BTreeMap<u32, Arc<DiskCounters>>>,
}

impl Statistics {
    /// The page of one more I/O thread.
    pub(crate) fn add_thread(&self) -> Arc<ThreadCounters> {
        let page = Arc::new(ThreadCounters::new(os::now()));
        guard(&self.shared.threads).push(Arc::clone(&page));
        page
    }

    /// A disk was attached.
    pub(crate) fn add_disk(&self, disk: DiskId, counters: &Arc<DiskCounters>) {
        guard(&self.shared.disks).insert(disk.0, Arc::clone(counters));
    }

    /// A disk was detached. Its number may belong to another one already.
    pub(crate) fn remove_disk(&self, disk: DiskId, counters: &Arc<DiskCounters>) {
        let mut disks = guard(&self.shared.disks);
        if let Some(known) = disks.get(&disk.0)
            && Arc::ptr_eq(known, counters)
        {
            disks.remove(&disk.0);
        }
    }

    /// What each I/O thread has done so far, by number.
    pub fn threads(&self) -> Vec<ThreadActivity> {
        let pages = guard(&self.shared.threads).clone();
        pages.iter().map(|page| page.read()).collect()
    }

    /// What the queues of each attached disk have done so far, by disk.
    pub fn disks(&self) -> Vec<DiskActivity> {
        let disks = guard(&self.shared.disks);
        let disks: Vec<_> = disks
            .iter()
            .map(|(&id, disk)| (id, Arc::clone(disk)))
            .collect();
        let read = |(id, disk): &(u32, Arc<DiskCounters>)| disk.read(DiskId(*id));
        disks.iter().map(read).collect()
    }
}

impl Statistics {
    /// The processes of virtual machines that use disks, by number: all front ends, and those NBD clients that
    /// `is_guest` knows as such. Connections that this process made to itself, for TLS, do not count.
    pub fn guest_processes(&self, is_guest: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut processes = BTreeSet::new();
        let mut others = BTreeSet::new();
        for disk in guard(&self.shared.disks).values() {
            processes.extend(disk.processes(ClientKind::VhostUser));
            others.extend(disk.processes(ClientKind::Nbd));
        }
        let own = std::process::id();
        others.retain(|&process| {
            process != own && !processes.contains(&process) && is_guest(process)
        });
        processes.append(&mut others);
        processes.into_iter().collect()
    }
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data behind these locks is valid even if a holder panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The part of `time` in proportion, rounded down.
pub(crate) fn part_of(time: u64, part: u64, all: u64) -> u64 {
    if all == 0 {
        return 0;
    }
    let share = u128::from(time) * u128::from(part) / u128::from(all);
    u64::try_from(share).expect("a part is not more than all of it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_never_exceed_the_whole() {
        for (time, parts) in [(1000, [1, 2, 3]), (7, [1, 1, 1]), (u64::MAX, [5, 0, 9])] {
            let all = parts.iter().sum();
            let shares = parts.map(|part| u128::from(part_of(time, part, all)));
            let sum: u128 = shares.iter().sum();
            assert!(sum <= time.into() && sum + 3 > time.into(), "{shares:?}");
        }
        assert_eq!(part_of(1000, 0, 0), 0);
    }
}
