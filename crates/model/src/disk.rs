//! A rotating disk: seeks, rotation, and a queue that it may reorder.
//!
//! [`crate::array`] submits jobs and starts them one by one. Starting one returns its service time. The oldest
//! `queue_depth` waiting jobs are candidates. The arm serves them upwards and continues at the lowest after the last
//! (C-LOOK), similar to drives with native command queueing. So throughput grows with the queue.
//!
//! # Always true
//! - The arm is never idle while a job waits.
//! - A job is overtaken at most [`MOST_OVERTAKEN`] times the queue depth: a stream cannot starve the others.
//! - With a queue depth of 1, jobs are served in order of arrival.
//!
//! # Units
//! Nanoseconds of work time; bytes. The head's position is the byte after the last accessed one.

use alloc::collections::{BTreeMap, VecDeque};

use crate::kind::IoKind;
use crate::random::Random;
use crate::spec::DiskSpec;
use crate::ssd::{Job, Started, transfer};

/// After this many times the queue depth, the oldest candidate is served first. It equals four full sweeps, far more
/// than C-LOOK needs for random work. So it matters only where a sequential stream would occupy the arm forever.
const MOST_OVERTAKEN: u64 = 4;

/// The state of a disk.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    spec: DiskSpec,
    /// Jobs that arrived when the candidates were full.
    beyond: VecDeque<Job>,
    /// The candidates by position, then by age.
    by_offset: BTreeMap<(u64, u64), Job>,
    /// The candidates by age: sequence number -> offset.
    by_age: BTreeMap<u64, u64>,
    /// Sequence number of the next candidate.
    sequence: u64,
    head: u64,
    busy: bool,
}

impl Disk {
    pub(crate) fn new(spec: DiskSpec) -> Disk {
        Disk {
            spec,
            beyond: VecDeque::new(),
            by_offset: BTreeMap::new(),
            by_age: BTreeMap::new(),
            sequence: 0,
            head: 0,
            busy: false,
        }
    }

    /// Submits a job. A job is one piece: the arm serves it in one operation.
    pub(crate) fn submit(&mut self, job: Job) -> u32 {
        self.beyond.push_back(job);
        self.admit();
        1
    }

    /// Starts the next job, if the arm is free.
    pub(crate) fn start(&mut self, random: &mut Random) -> Option<Started> {
        if self.busy {
            return None;
        }
        let job = self.choose()?;
        self.busy = true;
        Some(Started {
            slot: job.slot,
            takes: self.serve(job, random).max(1),
        })
    }

    /// The job has finished. The arm is free.
    pub(crate) fn finish(&mut self) {
        assert!(self.busy, "a job must start before it finishes");
        self.busy = false;
    }

    fn admit(&mut self) {
        while self.by_age.len() < self.spec.queue_depth as usize {
            let Some(job) = self.beyond.pop_front() else {
                return;
            };
            self.by_offset.insert((job.offset, self.sequence), job);
            self.by_age.insert(self.sequence, job.offset);
            self.sequence += 1;
        }
    }

    fn choose(&mut self) -> Option<Job> {
        let (&oldest, &offset) = self.by_age.first_key_value()?;
        let most = MOST_OVERTAKEN * u64::from(self.spec.queue_depth);
        let key = if self.sequence - oldest > most {
            (offset, oldest)
        } else {
            let ahead = self.by_offset.range((self.head, 0)..).next();
            *ahead.or_else(|| self.by_offset.first_key_value())?.0
        };
        self.by_age.remove(&key.1);
        let job = self.by_offset.remove(&key);
        self.admit();
        job
    }

    fn serve(&mut self, job: Job, random: &mut Random) -> u64 {
        if job.kind == IoKind::Flush {
            return self.spec.flush;
        }
        let transfer = transfer(job.len, self.spec.bytes_per_second);
        let distance = job.offset.abs_diff(self.head);
        self.head = job.offset + job.len;
        if distance == 0 {
            // Sequential: the head is there, or the drive's read-ahead has the data.
            return transfer;
        }
        self.seek(distance) + random.below(self.spec.rotation) + transfer
    }

    fn seek(&self, distance: u64) -> u64 {
        let DiskSpec {
            capacity,
            seek_least,
            seek_most,
            ..
        } = self.spec;
        // sqrt(distance / capacity) in 2^-16ths.
        let fraction = (u128::from(distance.min(capacity)) << 32) / u128::from(capacity);
        let root = u64::try_from(fraction).map_or(1 << 16, u64::isqrt);
        let extra = (u128::from(seek_most - seek_least) * u128::from(root)) >> 16;
        seek_least + u64::try_from(extra).unwrap_or(seek_most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::MemberSpec;

    fn disk(queue_depth: u32) -> Disk {
        let Some(MemberSpec::Disk(spec)) = MemberSpec::named("10k") else {
            panic!("a disk")
        };
        Disk::new(DiskSpec {
            queue_depth,
            ..spec
        })
    }

    fn read(slot: u32, offset: u64) -> Job {
        Job {
            slot,
            kind: IoKind::Read,
            offset,
            len: 4_096,
        }
    }

    fn order(disk: &mut Disk) -> alloc::vec::Vec<u32> {
        let mut random = Random::new(1);
        core::iter::from_fn(|| {
            let started = disk.start(&mut random)?;
            disk.finish();
            Some(started.slot)
        })
        .collect()
    }

    #[test]
    fn candidates_are_served_upwards_and_then_from_the_lowest() {
        let mut disk = disk(32);
        disk.head = 50 << 20;
        for (slot, mib) in [(0, 90), (1, 10), (2, 60), (3, 30)] {
            disk.submit(read(slot, mib << 20));
        }
        assert_eq!(order(&mut disk), [2, 0, 1, 3]);
    }

    #[test]
    fn a_depth_of_one_serves_in_order() {
        let mut disk = disk(1);
        for (slot, mib) in [(0, 90), (1, 10), (2, 60)] {
            disk.submit(read(slot, mib << 20));
        }
        assert_eq!(order(&mut disk), [0, 1, 2]);
    }

    #[test]
    fn a_stream_at_the_head_cannot_starve_an_older_job() {
        let mut disk = disk(4);
        let mut random = Random::new(1);
        disk.head = 1 << 30;
        disk.submit(read(999, 0));
        let mut next = 1 << 30;
        for n in 0..100 {
            disk.submit(read(n, next));
            next += 4_096;
            let slot = disk.start(&mut random).unwrap().slot;
            disk.finish();
            if slot == 999 {
                assert!(n <= 16, "after {n}");
                return;
            }
        }
        panic!("starved");
    }

    #[test]
    fn a_sequential_access_costs_only_the_transfer() {
        let (mut disk, mut random) = (disk(32), Random::new(1));
        disk.head = 4_096;
        disk.submit(read(0, 4_096));
        assert_eq!(
            disk.start(&mut random).unwrap().takes,
            transfer(4_096, 200_000_000)
        );
        disk.finish();
        disk.submit(read(0, 300_000_000_000));
        let far = disk.start(&mut random).unwrap().takes;
        assert!((6_000_000..16_000_000).contains(&far), "{far}");
    }

    #[test]
    fn the_longest_seek_crosses_the_whole_disk() {
        let disk = disk(1);
        assert_eq!(disk.seek(600_000_000_000), 9_000_000);
        assert!(disk.seek(1) < 410_000);
    }
}
