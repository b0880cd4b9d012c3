//! An SSD: one queue, several channels, different costs of reads and writes.
//!
//! [`crate::array`] submits jobs and starts their pages. Starting one returns its service time. A long job is split
//! into pages, which run on all free channels. The SSD has no clock and no list of running pages.
//!
//! # Always true
//! - No channel is idle while a page waits (the array starts pages until [`Ssd::start`] returns nothing).
//! - Pages start in order of arrival. On one channel they also finish in this order.
//! - `busy <= channels`.
//!
//! # Units
//! Nanoseconds of work time; bytes.

use alloc::collections::VecDeque;

use crate::kind::IoKind;
use crate::random::Random;
use crate::spec::{Cost, SsdSpec, Variation};

/// Work for one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// The array's slot of the I/O.
    pub(crate) slot: u32,
    pub(crate) kind: IoKind,
    /// Offset on the member.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Work that a member has started: its slot and service time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Started {
    pub(crate) slot: u32,
    pub(crate) takes: u64,
}

/// The state of an SSD.
#[derive(Clone, Debug)]
pub(crate) struct Ssd {
    spec: SsdSpec,
    waiting: VecDeque<Job>,
    busy: u32,
}

impl Ssd {
    pub(crate) fn new(spec: SsdSpec) -> Ssd {
        Ssd {
            spec,
            waiting: VecDeque::new(),
            busy: 0,
        }
    }

    /// Submits a job and returns its number of pages.
    pub(crate) fn submit(&mut self, job: Job) -> u32 {
        self.waiting.push_back(job);
        match job.kind {
            IoKind::Flush => 1,
            IoKind::Read | IoKind::Write => {
                u32::try_from(job.len.div_ceil(self.spec.page).max(1)).unwrap_or(u32::MAX)
            }
        }
    }

    /// Starts the oldest waiting page, if a channel is free.
    pub(crate) fn start(&mut self, random: &mut Random) -> Option<Started> {
        if self.busy == self.spec.channels {
            return None;
        }
        let job = self.waiting.front_mut()?;
        let page = job.len.min(self.spec.page);
        let cost = match job.kind {
            IoKind::Read => service(self.spec.read, page),
            IoKind::Write => service(self.spec.write, page),
            IoKind::Flush => self.spec.flush,
        };
        let started = Started {
            slot: job.slot,
            takes: match self.spec.variation {
                Variation::Fixed => cost,
                Variation::Exponential => random.exponential(cost),
            }
            .max(1),
        };
        job.len -= page;
        if job.len == 0 || job.kind == IoKind::Flush {
            self.waiting.pop_front();
        }
        self.busy += 1;
        Some(started)
    }

    /// A page has finished. Its channel is free.
    pub(crate) fn finish(&mut self) {
        self.busy = self
            .busy
            .checked_sub(1)
            .expect("a page must start before it finishes");
    }
}

fn service(cost: Cost, bytes: u64) -> u64 {
    cost.base + transfer(bytes, cost.bytes_per_second)
}

/// The time of `bytes` at a rate, rounded up.
pub(crate) fn transfer(bytes: u64, bytes_per_second: u64) -> u64 {
    let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_second));
    u64::try_from(ns).unwrap_or(u64::MAX >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::MemberSpec;

    fn ssd(channels: u32) -> Ssd {
        let Some(MemberSpec::Ssd(spec)) = MemberSpec::named("ssd") else {
            panic!("an SSD")
        };
        Ssd::new(SsdSpec { channels, ..spec })
    }

    fn job(slot: u32, kind: IoKind, len: u64) -> Job {
        Job {
            slot,
            kind,
            offset: 0,
            len,
        }
    }

    #[test]
    fn a_long_read_uses_every_channel_and_a_short_one_waits() {
        let (mut ssd, mut random) = (ssd(4), Random::new(1));
        assert_eq!(ssd.submit(job(1, IoKind::Read, 5 * 16_384)), 5);
        assert_eq!(ssd.submit(job(2, IoKind::Read, 4_096)), 1);
        for _ in 0..4 {
            assert_eq!(ssd.start(&mut random).unwrap().slot, 1);
        }
        assert_eq!(ssd.start(&mut random), None);
        ssd.finish();
        assert_eq!(ssd.start(&mut random).unwrap().slot, 1);
        ssd.finish();
        assert_eq!(ssd.start(&mut random).unwrap().slot, 2);
    }

    #[test]
    fn writing_costs_more_than_reading() {
        let (mut ssd, mut random) = (ssd(2), Random::new(1));
        ssd.submit(job(1, IoKind::Read, 4_096));
        ssd.submit(job(2, IoKind::Write, 4_096));
        let read = ssd.start(&mut random).unwrap().takes;
        let write = ssd.start(&mut random).unwrap().takes;
        assert!(write > read);
    }

    #[test]
    fn transfer_time_is_bytes_divided_by_rate() {
        assert_eq!(transfer(1_000_000, 1_000_000_000), 1_000_000);
        assert_eq!(transfer(1, 3_000_000_000), 1);
        assert_eq!(transfer(0, 1_000), 0);
    }
}
