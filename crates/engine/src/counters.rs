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
pub(crate) use disk::{Client, ClientKind, DiskCounters, DiskSums, QueueCounters, Served};
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

    /// The same, of those threads that are used. Each reading costs a system call.
    pub(crate) fn used_threads(
        &self,
        is_used: impl Fn(usize) -> bool,
    ) -> Vec<Option<ThreadActivity>> {
        let pages = guard(&self.shared.threads);
        let numbered = pages.iter().enumerate();
        let read = |(at, page): (usize, &Arc<ThreadCounters>)| is_used(at).then(|| page.read());
        numbered.map(read).collect()
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

    /// What the queues of one attached disk have done so far. It reads no other disk.
    pub fn disk(&self, disk: DiskId) -> Option<DiskActivity> {
        let counters = guard(&self.shared.disks).get(&disk.0).map(Arc::clone);
        counters.map(|counters| counters.read(disk))
    }
}

impl Statistics {
    /// Calls `look` with the counters of each attached disk, by number.
    pub(crate) fn each_disk(&self, mut look: impl FnMut(DiskId, &DiskCounters)) {
        for (id, disk) in guard(&self.shared.disks).iter() {
            look(DiskId(*id), disk);
        }
    }

    /// The processes of virtual machines that use disks, by number: see [`Statistics::guests`].
    pub fn guest_processes(&self, is_guest: impl Fn(u32) -> bool) -> Vec<u32> {
        let guests = self.guests(|process, _| is_guest(process));
        guests.into_keys().collect()
    }

    /// The virtual machines that use disks, by process, with these disks: all front ends, and those NBD clients that `is_guest`
    /// knows as such by their process and disks. Connections that this process made to itself, for TLS, do not count.
    pub fn guests(
        &self,
        is_guest: impl Fn(u32, &BTreeSet<DiskId>) -> bool,
    ) -> BTreeMap<u32, BTreeSet<DiskId>> {
        let mut guests: BTreeMap<u32, BTreeSet<DiskId>> = BTreeMap::new();
        let mut front_ends = BTreeSet::new();
        for (&id, disk) in guard(&self.shared.disks).iter() {
            let own = disk.processes(ClientKind::VhostUser);
            front_ends.extend(own.iter().copied());
            let others = disk.processes(ClientKind::Nbd);
            for process in own.into_iter().chain(others) {
                guests.entry(process).or_default().insert(DiskId(id));
            }
        }
        let own = std::process::id();
        guests.retain(|process, disks| {
            front_ends.contains(process) || (*process != own && is_guest(*process, disks))
        });
        guests
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
    fn the_counters_of_one_disk_are_read_without_those_of_others() {
        let statistics = Statistics::default();
        let disks: Vec<_> = (0..100).map(|_| Arc::new(DiskCounters::new(2))).collect();
        for (id, counters) in (0..).zip(&disks) {
            statistics.add_disk(DiskId(id), counters);
        }
        let reads = || disks.iter().map(|disk| disk.reads()).collect::<Vec<_>>();
        let read = statistics.disk(DiskId(42)).expect("it is attached");
        assert_eq!((read.disk, read.queues.len()), (DiskId(42), 2));
        let mut expected = vec![0; 100];
        expected[42] = 1;
        assert_eq!(reads(), expected);
        assert_eq!(statistics.disks().len(), 100);
        assert_eq!(reads().iter().sum::<u64>(), 101);
        statistics.remove_disk(DiskId(42), &disks[42]);
        assert!(statistics.disk(DiskId(42)).is_none());
    }

    #[test]
    fn a_guest_is_known_with_all_its_disks_and_another_client_if_it_is_one() {
        let statistics = Statistics::default();
        let disks: Vec<_> = (0..3).map(|_| Arc::new(DiskCounters::new(1))).collect();
        for (id, counters) in (0..).zip(&disks) {
            statistics.add_disk(DiskId(id), counters);
        }
        let client = |process, kind| Client { process, kind };
        let own = std::process::id();
        let _connected = [
            disks[0].connected(client(7, ClientKind::VhostUser)),
            disks[2].connected(client(7, ClientKind::Nbd)),
            disks[1].connected(client(8, ClientKind::Nbd)),
            disks[2].connected(client(9, ClientKind::Nbd)),
            disks[1].connected(client(own, ClientKind::Nbd)),
        ];
        let of = |ids: &[u32]| ids.iter().map(|id| DiskId(*id)).collect::<BTreeSet<_>>();
        let guests = statistics.guests(|_, disks| disks.contains(&DiskId(1)));
        let expected = BTreeMap::from([(7, of(&[0, 2])), (8, of(&[1]))]);
        assert_eq!(guests, expected);
        assert_eq!(statistics.guest_processes(|process| process == 9), [7, 9]);
    }

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
